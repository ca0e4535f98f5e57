/* Engines on Vulkan devices: the same logits as on the CPU wherever the layers lie, at lowered limits, in batches, sliding, on two
 * devices, on two threads; cancelled; within a budget; and with every Vulkan call failing in turn. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "faults.h"

#include "vk_faults.h"

#include NOVA_C

#include "rig.h"

#define CONTEXT 200

static nova_engine_desc desc_for(const char *device) {
    nova_engine_desc d = engine_desc(CONTEXT, 2);
    d.device = device;
    return d;
}

/* ---- The same logits ---- */

static void check_score(const tiny *t, const nova_engine_desc *d, const int32_t *ids, const double *right, uint32_t n,
                        uint32_t step, double most, const char *what) {
    rig r;
    if (rig_try(&r, t, d, NULL)) {
        float *got = score(r.session, ids, n, step, &r.error);
        double e   = nmse(got, right, (size_t)n * TINY_VOCAB);
        CHECK(e < most, "%s, %u layers, steps of %u: nmse %g", what, d->gpu_layers, step, e);
        free(got);
    } else {
        CHECK(false, "%s: %s", what, r.error.message);
    }
    rig_close(&r);
}

static void test_forward(bool arcee) {
    tiny    t;
    int32_t ids[150];
    tiny_make(&t, TINY_LAYERS, arcee);
    random_ids(ids, 150);
    double *right = tiny_logits(&t, ids, 150);
    static const uint32_t steps[] = {150, 1, 7, 8, 9, 64};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        nova_engine_desc d = desc_for("gpu");
        check_score(&t, &d, ids, right, 150, steps[i], 1e-9, "gpu");
    }
    for (uint32_t layers = 1; layers <= TINY_LAYERS + 1; layers++) {
        nova_engine_desc d = desc_for("gpu");
        d.gpu_layers = layers;
        check_score(&t, &d, ids, right, 150, 60, 1e-9, "part");
    }
    for (uint32_t without = 1; without < 64; without = without * 2 + 1) {
        nova_engine_desc d = desc_for("gpu");
        d.gpu_without = without;
        check_score(&t, &d, ids, right, 150, 100, 1e-9, "without");
        d.gpu_layers = 2;
        check_score(&t, &d, ids, right, 150, 5, 1e-9, "part without");
    }
    vkf.uncached = 1;
    nova_engine_desc bus = desc_for("gpu");
    check_score(&t, &bus, ids, right, 150, 70, 1e-9, "over a bus");
    check_score(&t, &bus, ids, right, 150, 1, 1e-9, "over a bus");
    bus.gpu_layers = 2;
    check_score(&t, &bus, ids, right, 150, 70, 1e-9, "part over a bus");
    vkf.uncached = 0;
    for (uint32_t half = 0; half < 2; half++) {
        nova_engine_desc d = desc_for("gpu");
        if (half) d.cache_k = NOVA_CACHE_F16;
        else d.cache_v = NOVA_CACHE_F16;
        check_score(&t, &d, ids, right, 150, 150, 1e-5, "half caches");
        check_score(&t, &d, ids, right, 150, 1, 1e-5, "half caches");
    }
    free(right);
    tiny_free(&t);
}

/* Every path of matmul and attention that the device has; and with a channel of 1e5, which halves cannot hold as it is. */
static void test_paths(float massive) {
    static const struct { uint32_t force; double most; } paths[] = {
        {NOVA_GPU_SUBGROUP, 1e-9}, {NOVA_GPU_F16, 1e-4}, {NOVA_GPU_MATRIX_F16, 1e-4}, {NOVA_GPU_DOT, 1e-4}, {NOVA_GPU_MATRIX_S8, 1e-4},
    };
    tiny    t;
    int32_t ids[70];
    tiny_massive = massive;
    tiny_make(&t, 2, false);
    tiny_massive = 0;
    random_ids(ids, 70);
    double *right = tiny_logits(&t, ids, 70);
    for (size_t i = 0; i < COUNT_OF(paths); i++)
        for (uint32_t step = 70; step; step = step == 70 ? 11 : step == 11 ? 1 : 0) {
            nova_engine_desc d = desc_for("gpu");
            d.gpu_force = paths[i].force;
            d.cache_k = d.cache_v = NOVA_CACHE_F16;   /* what attention on matrices reads */
            check_score(&t, &d, ids, right, 70, step, massive != 0 ? 1e-3 : fmax(paths[i].most, 1e-5), "a forced path");
            d.cache_k = d.cache_v = NOVA_CACHE_F32;
            check_score(&t, &d, ids, right, 70, step, massive != 0 ? 1e-3 : paths[i].most, "a forced path");
        }
    free(right);
    tiny_free(&t);
}

/* The smallest ranges and allocations that a device could have and the model fits in: weights are split by rows. */
static void test_limits(void) {
    tiny    t;
    int32_t ids[40];
    tiny_make(&t, 2, false);
    random_ids(ids, 40);
    double *right = tiny_logits(&t, ids, 40);
    nova_engine_desc d = desc_for("gpu");
    d.n_ctx   = 64;
    d.n_batch = 40;
    vkf.max_range = (uint64_t)128 << 10;
    vkf.max_alloc = (uint64_t)1 << 20;
    rig r;
    nova_engine_info info;
    memset(&info, 0, sizeof info);
    if (rig_try(&r, &t, &d, NULL)) nova_engine_get_info(r.engine, &info);
    CHECK(info.gpu_layers == 3, "%u layers at low limits, %s", info.gpu_layers, r.error.message);
    rig_close(&r);
    d.n_batch = 4000, d.n_ctx = 4000;   /* buffers that are no bindings: the CPU's */
    if (rig_try(&r, &t, &d, NULL)) nova_engine_get_info(r.engine, &info);
    CHECK(info.n_ctx == 4000 && info.gpu_layers == 0, "%u layers where no buffer fits a binding, %s", info.gpu_layers, r.error.message);
    rig_close(&r);
    d.n_batch = 40, d.n_ctx = 64;
    check_score(&t, &d, ids, right, 40, 40, 1e-9, "low limits");
    check_score(&t, &d, ids, right, 40, 1, 1e-9, "low limits");
    vkf.max_range = vkf.max_alloc = 0;
    free(right);
    tiny_free(&t);
}

static void test_two_devices(uint32_t n_devices) {
    tiny    t;
    int32_t ids[60];
    tiny_make(&t, TINY_LAYERS, false);
    random_ids(ids, 60);
    double *right = tiny_logits(&t, ids, 60);
    nova_engine_desc d = desc_for(n_devices > 1 ? "gpu:0,gpu:1" : "gpu:0,gpu:0");   /* one device twice is two as well */
    check_score(&t, &d, ids, right, 60, 60, 1e-9, "two devices");
    check_score(&t, &d, ids, right, 60, 1, 1e-9, "two devices");
    d.gpu_layers = 3;
    check_score(&t, &d, ids, right, 60, 9, 1e-9, "two devices and the CPU");
    free(right);
    tiny_free(&t);
}

/* The logits behind a fed prompt, of which the last token alone gets any, beside the CPU's. */
static void check_feed(const tiny *t, const nova_engine_desc *d, const int32_t *ids, uint32_t n, const char *what) {
    nova_engine_desc cpu = *d;
    rig              r[2];
    const float     *logits[2] = {NULL, NULL};
    double           worst = 0;
    cpu.device = "cpu", cpu.vulkan = NULL;
    for (int k = 0; k < 2; k++) {
        if (rig_try(&r[k], t, k ? d : &cpu, NULL) && nova_session_feed(r[k].session, ids, n, &r[k].error) == NOVA_OK)
            logits[k] = nova_session_logits(r[k].session, &r[k].error);
        CHECK(logits[k] != NULL, "%s: %s", what, r[k].error.message);
    }
    for (int i = 0; logits[0] && logits[1] && i < TINY_VOCAB; i++)
        worst = fmax(worst, fabs((double)logits[0][i] - (double)logits[1][i]));
    CHECK(worst < 1e-3, "%s: logits behind %u fed tokens differ by %g", what, n, worst);
    for (int k = 0; k < 2; k++) rig_close(&r[k]);
}

/* The last device has room for the output alone: what crosses are the gathered columns. */
static void test_output_alone(uint32_t n_devices) {
    tiny    t;
    int32_t ids[60];
    tiny_make(&t, 1, false);
    random_ids(ids, 60);
    nova_engine_desc d = desc_for(n_devices > 1 ? "gpu:0,gpu:1" : "gpu:0,gpu:0");
    for (uint32_t mapped = 0; mapped < 2; mapped++) {
        d.gpu_without = mapped ? 0 : NOVA_GPU_MAPPED;
        check_feed(&t, &d, ids, 60, "the output on a device of its own");
        d.n_batch = 16;
        check_feed(&t, &d, ids, 60, "the output on a device of its own, in pieces");
        d.n_batch = 0;
    }
    tiny_free(&t);
}

/* ---- Sessions ---- */

/* Three sessions in one batch and each for itself; texts that slide; the CPU and the GPU. */
static void generate(const tiny *t, const nova_engine_desc *ed, uint32_t n_sessions, uint32_t n, float *last, uint64_t *dropped) {
    nova_session     *sessions[4];
    nova_session_desc sd;
    nova_token        tokens[4];
    nova_result       results[4];
    int32_t           ids[20];
    rig               r;
    nova_engine_desc  d = *ed;
    memset(&sd, 0, sizeof sd);
    sd.limit = NOVA_LIMIT_SLIDE, sd.ignore_end = true;
    d.n_sessions = n_sessions;
    if (!rig_try(&r, t, &d, &sd)) {
        CHECK(false, "%s", r.error.message);
        rig_close(&r);
        return;
    }
    sessions[0] = r.session;
    for (uint32_t s = 1; s < n_sessions; s++) sessions[s] = nova_session_open(r.engine, &sd, &r.error);
    for (uint32_t s = 0; s < n_sessions; s++) {
        for (uint32_t i = 0; i < 20; i++) ids[i] = (int32_t)(3 + (i * 7 + s * 31) % (TINY_VOCAB - 3));
        CHECK(nova_session_feed(sessions[s], ids, 10 + s * 3, &r.error) == NOVA_OK, "%s", r.error.message);
    }
    for (uint32_t i = 0; i < n; i++)
        CHECK(nova_session_next_batch(sessions, n_sessions, tokens, results, &r.error) == NOVA_OK, "%s", r.error.message);
    for (uint32_t s = 0; s < n_sessions; s++) {
        const float      *logits = nova_session_logits(sessions[s], &r.error);
        nova_session_info info;
        CHECK(logits != NULL, "%s", r.error.message);
        if (logits) memcpy(last + (size_t)s * TINY_VOCAB, logits, TINY_VOCAB * sizeof *last);
        nova_session_get_info(sessions[s], &info);
        dropped[s] = info.n_dropped;
    }
    for (uint32_t s = 1; s < n_sessions; s++) nova_session_close(sessions[s]);
    rig_close(&r);
}

static void test_batch_and_slide(void) {
    tiny     t;
    uint64_t dropped[2][4];
    tiny_make(&t, 2, true);
    float *a = (float *)calloc(4 * TINY_VOCAB, sizeof *a), *b = (float *)calloc(4 * TINY_VOCAB, sizeof *b);
    nova_engine_desc cpu = desc_for("cpu"), gpu = desc_for("gpu");
    cpu.n_ctx = gpu.n_ctx = 100;
    generate(&t, &cpu, 3, 130, a, dropped[0]);
    generate(&t, &gpu, 3, 130, b, dropped[1]);
    double worst = 0;
    for (size_t i = 0; i < 3 * TINY_VOCAB; i++) worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
    CHECK(worst < 1e-2, "three sliding sessions differ by %g from the CPU's", worst);
    for (int s = 0; s < 3; s++) CHECK(dropped[0][s] == dropped[1][s] && dropped[0][s] > 0, "session %d slid", s);
    free(a);
    free(b);
    tiny_free(&t);
}

/* A text of more tokens than 32 bits count: what a session would be that had gone on for so long. */
static void test_far_positions(void) {
    tiny  t;
    float all[2][TINY_VOCAB];
    tiny_make(&t, 2, false);
    for (int k = 0; k < 2; k++) {
        rig               r;
        int32_t           ids[150];
        nova_session_desc sd;
        nova_engine_desc  d = desc_for(k ? "gpu" : "cpu");
        const int64_t     jump = ((int64_t)1 << 32) - 64 * 3;
        memset(&sd, 0, sizeof sd);
        sd.limit = NOVA_LIMIT_SLIDE;
        CHECK(rig_try(&r, &t, &d, &sd), "%s", r.error.message);
        for (int i = 0; i < 150; i++) ids[i] = (int32_t)(3 + i * 11 % (TINY_VOCAB - 3));
        for (int i = 0; i < 6; i++) {   /* in the middle the jump; behind it the count passes 2^32 */
            CHECK(nova_session_feed(r.session, ids, 50 + 5 * (size_t)i, &r.error) == NOVA_OK, "%s", r.error.message);
            if (i != 3) continue;
            CHECK(r.session->seq.n_dropped > 0 && r.session->seq.n_tokens > 192, "the text slid");
            r.session->seq.n_tokens += jump, r.session->seq.n_dropped += jump, r.session->seq.window_page += (uint32_t)(jump / KV_PAGE);
        }
        CHECK(r.session->seq.n_tokens > ((int64_t)1 << 32), "%lld tokens", (long long)r.session->seq.n_tokens);
        const float *logits = nova_session_logits(r.session, &r.error);
        memcpy(all[k], logits, sizeof all[k]);
        rig_close(&r);
    }
    double worst = 0;
    for (int i = 0; i < TINY_VOCAB; i++) worst = fmax(worst, fabs((double)all[0][i] - (double)all[1][i]));
    CHECK(worst < 1e-3, "behind 2^32 tokens logits differ by %g", worst);
    tiny_free(&t);
}

/* Tokens of a session take no memory, whatever chooses them, the first one included. */
static void test_no_allocation(void) {
    tiny t;
    tiny_make(&t, 2, false);
    for (int how = 0; how < 4; how++) {
        rig               r;
        faults            heap;
        nova_token        token;
        nova_session_desc sd;
        nova_engine_desc  d = desc_for("gpu");
        int32_t           ids[12] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
        faults_init(&heap, 0);
        memset(&sd, 0, sizeof sd);
        sd.ignore_end = true, sd.limit = NOVA_LIMIT_SLIDE;
        if (how) sd.sampler.temperature = 0.9f;
        sd.sampler.top_k = how == 1 ? 40 : how == 2 ? 200 : 0;
        d.alloc = faults_alloc, d.alloc_user = &heap;
        CHECK(rig_try(&r, &t, &d, &sd) && nova_session_feed(r.session, ids, 12, &r.error) == NOVA_OK, "%s", r.error.message);
        long before = heap.calls;
        for (int i = 0; i < 20; i++) CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "%s", r.error.message);
        CHECK(heap.calls == before, "%ld allocations while 20 tokens were chosen, way %d", heap.calls - before, how);
        rig_close(&r);
        CHECK(faults_end(&heap) == 0, "%s", heap.first_error);
    }
    tiny_free(&t);
}

static nova_session *to_cancel;
static void cancel_now(void) { nova_session_cancel(to_cancel); }

/* More sessions than a recorded pass has, one of which is cancelled while the device works: every one goes on where it was,
 * and gives what it would have given. The same with a wait that fails. */
static void test_cancel_batch(void) {
    enum { N = 10, TOKENS = 6 };
    tiny    t;
    int32_t ids[12] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, right[N][TOKENS];
    tiny_make(&t, 2, false);
    for (long fault = -2; fault < 40; fault++) {   /* -2: none; -1: cancelled; else the wait that fails */
        nova_session     *sessions[N];
        nova_token        tokens[N];
        nova_result       results[N];
        nova_session_desc sd;
        nova_engine_desc  d = desc_for("gpu");
        rig               r;
        memset(&sd, 0, sizeof sd);
        sd.ignore_end = true;
        d.n_sessions = N;
        CHECK(rig_try(&r, &t, &d, &sd), "%s", r.error.message);
        sessions[0] = r.session;
        for (int s = 1; s < N; s++) sessions[s] = nova_session_open(r.engine, &sd, &r.error);
        for (int s = 0; s < N; s++) CHECK(nova_session_feed(sessions[s], ids + s % 3, 9, &r.error) == NOVA_OK, "%s", r.error.message);
        to_cancel = sessions[4];
        uint32_t got[N] = {0};
        for (int round = 0; round < 4 * TOKENS; round++) {
            nova_session *now[N];
            size_t        n = 0, of[N];
            for (size_t s = 0; s < N; s++)
                if (got[s] < TOKENS) of[n] = s, now[n++] = sessions[s];
            if (n == 0) break;
            if (fault == -1 && round == 2) vkf_on_wait = cancel_now;
            if (fault >= 0 && round == 2) vkf.waits = 0, vkf.wait_at = fault + 1, vkf.code = VK_ERROR_OUT_OF_HOST_MEMORY;
            nova_session_next_batch(now, n, tokens, results, &r.error);
            vkf_on_wait = NULL;
            for (size_t k = 0; k < n; k++) {
                bool failed = results[k] == NOVA_CANCELLED || results[k] == NOVA_ERROR_MEMORY;
                CHECK(results[k] == NOVA_OK || (failed && fault > -2), "fault %ld, session %zu: %d, %s", fault, of[k], (int)results[k], r.error.message);
                if (results[k] != NOVA_OK) continue;
                if (fault == -2) right[of[k]][got[of[k]]] = tokens[k].id;
                CHECK(tokens[k].id == right[of[k]][got[of[k]]], "fault %ld, session %zu, token %u", fault, of[k], got[of[k]]);
                got[of[k]]++;
            }
        }
        for (int s = 0; s < N; s++) CHECK(got[s] == TOKENS, "fault %ld, session %d gave %u tokens", fault, s, got[s]);
        bool last = fault >= 0 && vkf.waits <= fault;
        memset(&vkf, 0, sizeof vkf);
        for (int s = 1; s < N; s++) nova_session_close(sessions[s]);
        rig_close(&r);
        if (last) break;
    }
    memset(&vkf, 0, sizeof vkf);
    tiny_free(&t);
}

/* Saved by a GPU and loaded by the CPU, by half of each, by a GPU again; and a fork on a GPU: the logits behind are the same. */
static void test_state(nova_cache_type type) {
    static const uint32_t layers[] = {0, 1, 2, 3};   /* 0: all; 3 of 3 is all as well */
    tiny           t;
    rig            r;
    int32_t        ids[100];
    float          right[TINY_VOCAB];
    unsigned char *bytes = NULL;
    size_t         n = 0;
    tiny_make(&t, 2, false);
    random_ids(ids, 100);
    for (int i = 0; i < 6; i++) {
        nova_engine_desc d = desc_for(i == 1 ? "cpu" : "gpu");
        d.cache_k = d.cache_v = type, d.n_sessions = 2;
        d.gpu_layers  = i < 2 ? 0 : layers[i - 2];
        d.gpu_without = i == 5 ? NOVA_GPU_MAPPED : 0;
        CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
        if (i == 0) {
            CHECK(nova_session_feed(r.session, ids, 75, &r.error) == NOVA_OK, "%s", r.error.message);
            nova_session_save(r.session, NULL, 0, &n, &r.error);
            bytes = (unsigned char *)malloc(n);
            CHECK(nova_session_save(r.session, bytes, n, &n, &r.error) == NOVA_OK, "%s", r.error.message);
        } else {
            CHECK(nova_session_load(r.session, bytes, n, &r.error) == NOVA_OK, "%s", r.error.message);
        }
        nova_session *fork = nova_session_fork(r.session, &r.error);
        CHECK(fork && nova_session_feed(fork, ids + 40, 30, &r.error) == NOVA_OK, "%s", r.error.message);
        CHECK(nova_session_feed(r.session, ids + 75, 12, &r.error) == NOVA_OK, "%s", r.error.message);
        const float *logits = nova_session_logits(r.session, &r.error);
        double       worst  = logits ? 0 : 1;
        for (int k = 0; logits && k < TINY_VOCAB; k++) {
            if (i == 0) right[k] = logits[k];
            worst = fmax(worst, fabs((double)logits[k] - (double)right[k]));
        }
        CHECK(worst < 1e-3, "way %d: loaded logits differ by %g", i, worst);
        nova_session_close(fork);
        rig_close(&r);
    }
    free(bytes);
    tiny_free(&t);
}

/* ---- Memory ---- */

/* The file at the start of a page, as if it were mapped: about half of its tensors lie where a device can bind them. */
static void page_align(tiny *t) {
    void *pages = NULL;
    CHECK(posix_memalign(&pages, 4096, t->n_bytes) == 0, "%zu bytes", t->n_bytes);
    memcpy(pages, t->bytes, t->n_bytes);
    free(t->bytes);
    t->bytes = (uint8_t *)pages;
}

/* What an engine takes is what it was said to take, wherever its layers lie; and weights that the device can read in the file stay there. */
static void test_size(void) {
    tiny t;
    tiny_make(&t, TINY_LAYERS, false);
    page_align(&t);
    for (uint32_t i = 0; i < 24; i++) {
        nova_engine_desc d = desc_for(i % 8 == 7 ? "cpu" : "gpu");
        nova_engine_info said, took;
        rig              r;
        memset(&said, 0, sizeof said);
        memset(&took, 0, sizeof took);
        d.gpu_layers  = i % 4;
        d.n_sessions  = 1 + i % 3;
        d.gpu_without = i % 5 == 4 ? NOVA_GPU_MAPPED : 0;
        d.vram_bytes  = i >= 12 ? (uint64_t)(i - 11) << 18 : 0;
        d.n_batch     = i % 6 == 5 ? 33 : 0;
        CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
        CHECK(nova_engine_size(r.model, &d, &said, &r.error) == NOVA_OK, "%s", r.error.message);
        if (r.engine) nova_engine_get_info(r.engine, &took);
        CHECK(said.vram_bytes == took.vram_bytes && said.imported_bytes == took.imported_bytes && said.gpu_layers == took.gpu_layers,
              "way %u: %llu bytes and %u layers on the GPU, but %llu and %u were said", i, (unsigned long long)took.vram_bytes, took.gpu_layers,
              (unsigned long long)said.vram_bytes, said.gpu_layers);
        CHECK(said.cache_bytes == took.cache_bytes && said.scratch_bytes == took.scratch_bytes && said.n_batch == took.n_batch,
              "way %u: main memory", i);
        CHECK(!took.gpu_layers == !took.vram_bytes && took.imported_bytes <= took.vram_bytes, "way %u", i);
        CHECK(!d.gpu_without || !took.imported_bytes, "way %u: %llu bytes imported", i, (unsigned long long)took.imported_bytes);
        rig_close(&r);
    }
    CHECK(vkf.live == 0, "%ld Vulkan objects are left", vkf.live);
    tiny_free(&t);
}

/* A driver that takes the host's pages and fails when they are used, as some do with pages of a file: they are copied instead. */
static void test_refused_import(void) {
    tiny             t;
    rig              r;
    nova_engine_info info;
    nova_engine_desc d = desc_for("gpu");
    int32_t          ids[40];
    tiny_make(&t, 2, false);
    page_align(&t);
    random_ids(ids, 40);
    double *right = tiny_logits(&t, ids, 40);
    memset(&info, 0, sizeof info);
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    if (r.engine) nova_engine_get_info(r.engine, &info);
    rig_close(&r);
    if (!info.imported_bytes) {
        SKIP("this driver imports no memory of the host's");
    } else {
        for (long n = 1; n < 6; n++) {
            memset(&vkf, 0, sizeof vkf);
            vkf.wait_at = n, vkf.code = VK_ERROR_DEVICE_LOST;
            check_score(&t, &d, ids, right, 40, 40, 1e-9, "refused pages");
            CHECK(vkf.waits >= n && vkf.live == 0, "wait %ld: %ld objects", n, vkf.live);
        }
        memset(&vkf, 0, sizeof vkf);
    }
    free(right);
    tiny_free(&t);
}

static bool never(void *user, const char *what, uint64_t done, uint64_t total) { return (void)user, (void)what, (void)done, (void)total, false; }

static void test_cancel_and_budget(void) {
    tiny t;
    rig  r;
    tiny_make(&t, TINY_LAYERS, false);
    nova_engine_desc d = desc_for("gpu");
    d.progress = never;
    CHECK(!rig_try(&r, &t, &d, NULL) && r.error.code == NOVA_CANCELLED, "loading cancelled: %s", r.error.message);
    rig_close(&r);
    d.progress = NULL;
    nova_engine_info info;
    memset(&info, 0, sizeof info);
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    if (r.engine) nova_engine_get_info(r.engine, &info);
    CHECK(info.gpu_layers == info.n_layers && info.vram_bytes > 0, "%u of %u layers, %llu bytes", info.gpu_layers, info.n_layers,
          (unsigned long long)info.vram_bytes);
    int32_t ids[90];
    random_ids(ids, 90);
    if (r.session) {
        nova_session_cancel(r.session);
        CHECK(nova_session_feed(r.session, ids, 90, &r.error) == NOVA_CANCELLED, "%s", r.error.message);
        CHECK(nova_session_feed(r.session, ids, 90, &r.error) == NOVA_OK, "behind a cancel: %s", r.error.message);
    }
    rig_close(&r);
    uint32_t before = info.n_layers;
    for (uint64_t budget = (uint64_t)8 << 20; budget > 16384; budget = budget > info.vram_bytes + 262144 ? budget * 3 / 4 : budget * 63 / 64) {
        d.vram_bytes = budget;
        memset(&info, 0, sizeof info);
        if (rig_try(&r, &t, &d, NULL)) {
            nova_engine_get_info(r.engine, &info);
            CHECK(nova_session_feed(r.session, ids, 90, &r.error) == NOVA_OK, "%s", r.error.message);
        } else {
            CHECK(false, "%llu bytes: %s", (unsigned long long)budget, r.error.message);
        }
        CHECK(info.vram_bytes <= budget, "%llu bytes taken of %llu", (unsigned long long)info.vram_bytes, (unsigned long long)budget);
        CHECK(info.gpu_layers <= before, "%u layers within %llu bytes, %u in more", info.gpu_layers, (unsigned long long)budget, before);
        before = info.gpu_layers;
        rig_close(&r);
    }
    CHECK(before < TINY_LAYERS + 1, "%u layers within 16 KiB", before);
    tiny_free(&t);
}

/* ---- Twice ---- */

static void use_device(void *arg) {
    const tiny *t = (const tiny *)arg;
    rig         r;
    nova_engine_desc d = desc_for("gpu");
    for (int i = 0; i < 3; i++) {
        nova_token token;
        int32_t    ids[12] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
        bool good = rig_try(&r, t, &d, NULL) && nova_session_feed(r.session, ids, 12, &r.error) == NOVA_OK;
        for (int k = 0; good && k < 4; k++) good = nova_session_next(r.session, &token, &r.error) >= 0;
        if (!good) r.error.code = NOVA_ERROR_DEVICE;
        rig_close(&r);
        if (!good) {
            printf("a thread: %s\n", r.error.message);
            *(volatile int *)&test_failed += 1;
        }
    }
}

static void test_threads_and_reloads(void) {
    tiny   t;
    thread other;
    tiny_make(&t, 1, false);
    bool two = thread_start(&other, use_device, &t);
    use_device(&t);
    if (two) thread_join(&other);
    CHECK(two, "a second thread");
    const char *long_run = getenv("RUN_LONG");
    int         n        = long_run && *long_run == '1' ? 200 : 10;
    for (int i = 0; i < n; i++) use_device(&t);
    CHECK(vkf.live == 0, "%ld Vulkan objects are left over %d openings", vkf.live, n);
    tiny_free(&t);
}

/* ---- A device of the host's, kept pipelines ---- */

static int  locks, locked_now;
static void lock_queue(void *user) { (void)user, locks++, locked_now++; }
static void unlock_queue(void *user) { (void)user, locked_now--; }

static void test_shared_device(void) {
    tiny           t;
    int32_t        ids[60];
    vk_device     *d;
    vk_device_desc desc;
    nova_vulkan    v;
    nova_error     error;
    feature_chain  f;
    extension_list l;
    host           h = host_init(NULL, NULL, NULL, NULL);
    tiny_make(&t, 2, false);
    random_ids(ids, 60);
    double *right = tiny_logits(&t, ids, 60);
    memset(&desc, 0, sizeof desc);
    desc.want = "gpu";
    CHECK(vk_device_open(&d, &h, &desc, &error) == NOVA_OK, "%s", error.message);
    list_extensions(&d->api, &h, d->physical, &l, &error);
    chain_features(&f, &l, d->caps.api);
    d->api.GetPhysicalDeviceFeatures2(d->physical, &f.all);
    mem_free(&h, l.at, l.n * sizeof *l.at);
    memset(&v, 0, sizeof v);
    memcpy(&v.get_instance_proc_addr, &d->api.GetInstanceProcAddr, sizeof v.get_instance_proc_addr);
    v.instance = d->instance, v.physical_device = d->physical, v.device = d->device, v.queue = d->queue;
    v.queue_family = d->family;
    v.lock = lock_queue, v.unlock = unlock_queue;
    for (int k = 0; k < 3; k++) {   /* without features, with them, by halves */
        nova_engine_desc ed = desc_for("gpu");
        ed.vulkan  = &v;
        v.features = k ? &f.all : NULL;
        if (k == 2) ed.gpu_layers = 2;
        locks = 0;
        check_score(&t, &ed, ids, right, 60, k == 2 ? 1 : 60, 1e-9, "the host's device");
        CHECK(locks > 0 && locked_now == 0, "%d locks, %d left", locks, locked_now);
    }
    v.queue = NULL;
    rig r;
    nova_engine_desc ed = desc_for("gpu");
    ed.vulkan = &v;
    CHECK(!rig_try(&r, &t, &ed, NULL) && r.error.code == NOVA_ERROR_ARGUMENT, "%s", r.error.message);
    rig_close(&r);
    vk_slice after;
    CHECK(vk_take(d, VK_USE_DEVICE, 1000, &after, &error) == NOVA_OK && vk_fill(d, &after, 7, &error) == NOVA_OK, "the host goes on: %s", error.message);
    vk_device_close(d);
    CHECK(vkf.live == 0, "%ld Vulkan objects are left", vkf.live);
    free(right);
    tiny_free(&t);
}

static void test_kept_pipelines(void) {
    tiny t;
    rig  r;
    tiny_make(&t, 1, false);
    nova_engine_desc d = desc_for("gpu");
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    size_t n = 0, again = 0;
    CHECK(nova_engine_gpu_cache(r.engine, NULL, 0, &n, &r.error) == NOVA_ERROR_TOO_SMALL && n > 0, "%zu bytes, %s", n, r.error.message);
    unsigned char *bytes = (unsigned char *)malloc(n + 64);
    CHECK(nova_engine_gpu_cache(r.engine, bytes, n + 64, &again, &r.error) == NOVA_OK, "%s", r.error.message);
    rig_close(&r);
    for (int damage = 0; damage < 12; damage++) {   /* whole, cut, changed: opening works every time */
        unsigned char *copy = (unsigned char *)malloc(again);
        memcpy(copy, bytes, again);
        d.gpu_cache      = copy;
        d.gpu_cache_size = damage == 1 ? again / 2 : damage == 2 ? 10 : damage == 3 ? 0 : again;
        if (damage > 3) copy[test_below((uint32_t)again)] ^= (unsigned char)(1 + test_below(255));
        CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
        if (damage == 0) {   /* a driver may keep nothing in it; what it keeps it takes again */
            size_t more = 0;
            nova_engine_gpu_cache(r.engine, NULL, 0, &more, &r.error);
            CHECK(more >= again, "%zu bytes, then %zu", again, more);
        }
        rig_close(&r);
        free(copy);
    }
    free(bytes);
    tiny_free(&t);
}

static bool count_kernel(void *user, const nova_kernel_info *k) {
    uint32_t *n = (uint32_t *)user;
    CHECK(k->name && k->specialisation && (k->n_token || k->n_prompt), "kernel %u", *n);
    ++*n;
    return true;
}

static bool one_kernel(void *user, const nova_kernel_info *k) { return (void)k, ++*(uint32_t *)user, false; }

static void test_kernels(void) {
    tiny     t;
    rig      r;
    uint32_t n = 0;
    tiny_make(&t, 1, false);
    nova_engine_desc d = desc_for("gpu");
    d.gpu_statistics = true;
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    CHECK(nova_engine_kernels(r.engine, count_kernel, &n, &r.error) == NOVA_OK && n > 5, "%u kernels, %s", n, r.error.message);
    rig_close(&r);
    d.device = "gpu:0,gpu:0", n = 0;   /* told to end by the first device's, the list ends */
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    CHECK(nova_engine_kernels(r.engine, one_kernel, &n, &r.error) == NOVA_OK && n == 1, "%u kernels, %s", n, r.error.message);
    rig_close(&r);
    tiny_free(&t);
}

/* ---- Faults ---- */

/* One run with whatever fault is armed: open, feed, choose. A failure is a clear error. */
static nova_result run_all(const tiny *t, const char *device, faults *f, nova_engine_info *info, char *message) {
    rig              r;
    nova_token       token;
    nova_engine_desc d = desc_for(device);
    int32_t          ids[12] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
    d.alloc = faults_alloc, d.alloc_user = f;
    nova_result result = NOVA_OK;
    memset(info, 0, sizeof *info);
    if (!rig_try(&r, t, &d, NULL)) result = r.error.code;
    if (result == NOVA_OK) result = nova_session_feed(r.session, ids, 12, &r.error);
    for (int i = 0; result == NOVA_OK && i < 3; i++) {
        result = nova_session_next(r.session, &token, &r.error);
        if (result == NOVA_END) result = NOVA_OK;
    }
    if (r.engine) nova_engine_get_info(r.engine, info);
    snprintf(message, 320, "%s", r.error.message);
    rig_close(&r);
    return result;
}

static void test_vulkan_faults(void) {
    static const VkResult codes[] = {VK_ERROR_OUT_OF_HOST_MEMORY, VK_ERROR_OUT_OF_DEVICE_MEMORY, VK_ERROR_DEVICE_LOST, VK_ERROR_INITIALIZATION_FAILED};
    const char *long_run = getenv("RUN_LONG");
    bool        whole    = long_run && *long_run == '1';
    tiny        t;
    faults      f;
    nova_engine_info info;
    char        message[320];
    tiny_make(&t, 1, false);
    long total = 0;
    for (long n = 1, step = 0; n < 5000; n += whole ? 1 : 1 + step++ / 40) {   /* every call; in the short run ever fewer */
        VkResult code = codes[(size_t)n % COUNT_OF(codes)];
        for (size_t k = 0; k < (whole ? COUNT_OF(codes) : 1); k++) {
            faults_init(&f, 0);
            memset(&vkf, 0, sizeof vkf);
            vkf.at = n, vkf.code = whole ? codes[k] : code;
            nova_result result = run_all(&t, "gpu", &f, &info, message);
            bool        hit    = vkf.seen >= n;
            total = n;
            CHECK(vkf.live == 0, "call %ld fails with %d: %ld Vulkan objects are left", n, (int)vkf.code, vkf.live);
            CHECK(result == NOVA_OK || (hit && (result == NOVA_ERROR_DEVICE || result == NOVA_ERROR_MEMORY) && message[0]),
                  "call %ld fails with %d: result %d, '%s'", n, (int)vkf.code, (int)result, message);
            CHECK(faults_end(&f) == 0, "%s", f.first_error);
            if (!hit) n = 5000;
        }
    }
    printf("%ld Vulkan calls in a run\n", total);
    /* With "auto", what fails at opening leaves the CPU. */
    for (long n = 1; n < 40; n += 3) {
        faults_init(&f, 0);
        memset(&vkf, 0, sizeof vkf);
        vkf.at = n, vkf.code = VK_ERROR_INITIALIZATION_FAILED, vkf.pretend_discrete = 1;
        nova_result result = run_all(&t, "auto", &f, &info, message);
        CHECK(result == NOVA_OK, "auto, call %ld fails: %d, '%s'", n, (int)result, message);
        CHECK(faults_end(&f) == 0 && vkf.live == 0, "%s, %ld objects", f.first_error, vkf.live);
    }
    memset(&vkf, 0, sizeof vkf);
    vkf.pretend_discrete = 1;
    faults_init(&f, 0);
    CHECK(run_all(&t, "auto", &f, &info, message) == NOVA_OK && info.gpu_layers == 2, "auto takes a real GPU: %u layers", info.gpu_layers);
    faults_end(&f);
    memset(&vkf, 0, sizeof vkf);
    tiny_free(&t);
}

/* A wait that fails while the work goes on: nothing is pulled away from under it, and the session is as before. */
static void test_wait_faults(void) {
    tiny    t;
    int32_t ids[40];
    tiny_make(&t, 1, false);
    random_ids(ids, 40);
    nova_engine_desc d = desc_for("gpu");
    double *right = tiny_logits(&t, ids, 40);
    for (uint32_t staged = 0; staged < 2; staged++) {
        d.gpu_without = staged ? NOVA_GPU_MAPPED : 0;
        for (long n = 1, hit = 1; hit; n++) {
            rig               r;
            nova_session_info info;
            memset(&vkf, 0, sizeof vkf);
            vkf.wait_at = n, vkf.code = VK_ERROR_OUT_OF_HOST_MEMORY;
            bool open = rig_try(&r, &t, &d, NULL);
            for (int k = 0; open && k < 2; k++) {   /* once in a prompt, once in a token */
                nova_result result = nova_session_feed(r.session, ids, k ? 39 : 38, &r.error);
                if (result == NOVA_OK && k == 0) result = nova_session_feed(r.session, ids + 38, 1, &r.error);
                if (result != NOVA_OK) CHECK(result == NOVA_ERROR_MEMORY, "wait %ld: %d, %s", n, (int)result, r.error.message);
                nova_session_reset(r.session);
            }
            hit = vkf.waits >= n;
            vkf.wait_at = 0;
            if (open) {
                float *got = score(r.session, ids, 40, 20, &r.error);
                CHECK(nmse(got, right, 40 * TINY_VOCAB) < 1e-9, "wait %ld: the logits behind it", n);
                free(got);
                nova_session_get_info(r.session, &info);
                CHECK(info.n_tokens == 40, "%llu tokens", (unsigned long long)info.n_tokens);
            }
            rig_close(&r);
            CHECK(vkf.live == 0, "wait %ld: %ld Vulkan objects are left", n, vkf.live);
        }
    }
    memset(&vkf, 0, sizeof vkf);
    free(right);
    tiny_free(&t);
}

static void test_memory_faults(void) {
    tiny t;
    nova_engine_info info;
    char message[320];
    tiny_make(&t, 1, false);
    for (long n = 1; n < 3000; n++) {
        faults f;
        faults_init(&f, n);
        nova_result result = run_all(&t, "gpu", &f, &info, message);
        long failed = f.failed;
        CHECK(!failed || result == NOVA_ERROR_MEMORY || result == NOVA_OK, "allocation %ld fails: %d, '%s'", n, (int)result, message);
        CHECK(faults_end(&f) == 0 && vkf.live == 0, "%s, %ld objects", f.first_error, vkf.live);
        if (!failed) break;
    }
    tiny_free(&t);
}

static void test_names(void) {
    static const char *const bad[] = {"gpu:9", "gpu:", "gpu:x", "gpu:0,", "gpu:0,gpu:1,gpu:2,gpu:3,gpu:4", "vulkan", "gpux", "gpu:0,cpu"};
    tiny t;
    rig  r;
    tiny_make(&t, 1, false);
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        nova_engine_desc d = desc_for(bad[i]);
        CHECK(!rig_try(&r, &t, &d, NULL) && r.error.code < 0 && r.error.message[0], "device '%s' is taken", bad[i]);
        rig_close(&r);
    }
    nova_engine_desc d = desc_for("auto");
    nova_engine_info info;
    memset(&info, 0, sizeof info);
    CHECK(rig_try(&r, &t, &d, NULL), "%s", r.error.message);
    nova_engine_get_info(r.engine, &info);
    CHECK(info.gpu_layers == 0 || strcmp(info.device, "cpu"), "auto and %s", info.device);
    rig_close(&r);
    tiny_free(&t);
}

int main(void) {
    nova_gpu_info gpus[16];
    nova_error    error;
    uint32_t      n = 0;
    test_begin(1);
    if (nova_list_gpus(gpus, 16, &n, &error) != NOVA_OK || n == 0) {
        SKIP("no Vulkan device: %s", error.message);
        return test_end();
    }
    for (uint32_t i = 0; i < n; i++) printf("gpu:%u %s\n", i, gpus[i].name);
    bool brief = getenv("NOVA_BRIEF") != NULL;   /* under layers that make every call slow: each part once */
    test_forward(false);
    if (!brief) test_forward(true);
    test_paths(0);
    if (!brief) test_paths(1e5f);
    test_limits();
    test_two_devices(n);
    test_output_alone(n);
    test_batch_and_slide();
    test_state(NOVA_CACHE_F32);
    test_state(NOVA_CACHE_F16);
    test_size();
    test_refused_import();
    test_cancel_and_budget();
    test_cancel_batch();
    test_far_positions();
    test_no_allocation();
    test_shared_device();
    test_kept_pipelines();
    test_kernels();
    if (brief) return test_end();
    test_threads_and_reloads();
    test_names();
    test_wait_faults();
    test_memory_faults();
    test_vulkan_faults();
    return test_end();
}
