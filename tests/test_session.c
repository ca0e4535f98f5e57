/* Models, engines and sessions as a whole, on tiny random models: against a plain forward pass in double precision, bit by bit
 * among themselves, at their limits, and under faults. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE   /* as nova.c would, were it the first to include */
#endif
#include "faults.h"

#include NOVA_C

#include "rig.h"

/* ---- Helpers ---- */

static bool rig_open(rig *r, const tiny *t, const nova_engine_desc *ed, const nova_session_desc *sd) {
    bool good = rig_try(r, t, ed, sd);
    CHECK(good, "%s", r->error.message);
    return good;
}

static double nmse_f(const float *a, const float *b, size_t n) {
    double err = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        err += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        sum += (double)b[i] * (double)b[i];
    }
    return err / sum;
}

/* ---- Against the plain forward pass ---- */

static void test_forward(bool arcee) {
    tiny    t;
    int32_t ids[150];
    rig     r;
    tiny_make(&t, 1 + test_below(TINY_LAYERS), arcee);
    random_ids(ids, 150);
    double *right = tiny_logits(&t, ids, 150);
    static const uint32_t steps[] = {150, 1, 7, 8, 9, 64};
    for (size_t i = 0; i < COUNT_OF(steps); i++) {
        nova_engine_desc d = engine_desc(200, 2);
        if (!rig_open(&r, &t, &d, NULL)) break;
        float *got = score(r.session, ids, 150, steps[i], &r.error);
        double e   = nmse(got, right, (size_t)150 * TINY_VOCAB);
        CHECK(e < 1e-10, "steps of %u: nmse %g", steps[i], e);
        free(got);
        rig_close(&r);
    }
    for (uint32_t half = 0; half < 2; half++) {   /* half-precision keys, then values */
        nova_engine_desc d = engine_desc(200, 1);
        if (half) d.cache_k = NOVA_CACHE_F16;
        else d.cache_v = NOVA_CACHE_F16;
        if (!rig_open(&r, &t, &d, NULL)) break;
        float *got = score(r.session, ids, 150, 150, &r.error);
        double e   = nmse(got, right, (size_t)150 * TINY_VOCAB);
        CHECK(e < 1e-5 && e > 1e-12, "half %s: nmse %g", half ? "keys" : "values", e);
        free(got);
        rig_close(&r);
    }
    free(right);
    tiny_free(&t);
}

/* ---- Bit-identity: threads, pieces of up to 8, neighbours, instruction sets within rounding ---- */

static void test_identity(void) {
    tiny    t;
    int32_t ids[100];
    rig     r;
    tiny_make(&t, 2, false);
    random_ids(ids, 100);
    float *first[2] = {NULL, NULL};   /* narrow, wide */
    for (uint32_t threads = 1; threads <= 5; threads++)
        for (uint32_t wide = 0; wide < 2; wide++) {
            nova_engine_desc d = engine_desc(128, threads);
            if (!rig_open(&r, &t, &d, NULL)) continue;
            float *got = score(r.session, ids, 100, wide ? 50 : 1 + threads % 8, &r.error);
            if (!first[wide]) first[wide] = got;
            else {
                CHECK(!memcmp(got, first[wide], (size_t)100 * TINY_VOCAB * sizeof *got), "%u threads, wide %u: other bits", threads, wide);
                free(got);
            }
            rig_close(&r);
        }
    double e = nmse_f(first[0], first[1], (size_t)100 * TINY_VOCAB);
    CHECK(e < 1e-6, "narrow and wide differ by %g", e);
    for (uint32_t level = 0; level < 3; level++) {
        nova_engine_desc d = engine_desc(128, 1);
        d.cpu_without = level == 0 ? NOVA_CPU_AVX2 | NOVA_CPU_AVX512 : level == 1 ? NOVA_CPU_AVX512 : 0;
        if (!rig_open(&r, &t, &d, NULL)) continue;
        nova_engine_info info;
        nova_engine_get_info(r.engine, &info);
        CHECK(level != 0 || !strcmp(info.cpu, "plain"), "%s although it was turned off", info.cpu);
        float *got = score(r.session, ids, 100, 100, &r.error);
        e = nmse_f(got, first[1], (size_t)100 * TINY_VOCAB);
        CHECK(e < 1e-8, "level %s differs by %g", info.cpu, e);
        free(got);
        rig_close(&r);
    }
    free(first[0]), free(first[1]);
    tiny_free(&t);
}

/* Sessions in one batch give what they give alone: prompts of any length beside them, too. */
static void test_neighbours(void) {
    enum { N = 5, STEPS = 20 };
    tiny          t;
    rig           r;
    int32_t       ids[N][40], alone[N][STEPS];
    nova_session *s[N];
    nova_token    tokens[N];
    nova_result   results[N];
    tiny_make(&t, 2, false);
    nova_engine_desc  d = engine_desc(80, 2);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    sd.ignore_end = true;
    d.n_sessions  = N;
    if (!rig_open(&r, &t, &d, &sd)) return;
    nova_session_close(r.session);
    r.session = NULL;
    float *logits = (float *)malloc((size_t)N * TINY_VOCAB * sizeof *logits);
    for (uint32_t i = 0; i < N; i++) {
        random_ids(ids[i], 40);
        sd.sampler.temperature = i % 2 ? 0.0f : 1.0f;
        sd.sampler.seed        = i;
        nova_session *a = nova_session_open(r.engine, &sd, &r.error);
        CHECK(nova_session_feed(a, ids[i], 3 + 9 * i, &r.error) == NOVA_OK, "%s", r.error.message);
        for (uint32_t k = 0; k < STEPS; k++) {
            CHECK(nova_session_next(a, &tokens[0], &r.error) == NOVA_OK, "%s", r.error.message);
            alone[i][k] = tokens[0].id;
        }
        memcpy(logits + (size_t)i * TINY_VOCAB, nova_session_logits(a, &r.error), TINY_VOCAB * sizeof *logits);
        nova_session_close(a);
    }
    for (uint32_t i = 0; i < N; i++) {
        sd.sampler.temperature = i % 2 ? 0.0f : 1.0f;
        sd.sampler.seed        = i;
        s[i] = nova_session_open(r.engine, &sd, &r.error);
        CHECK(nova_session_feed(s[i], ids[i], 3 + 9 * i, &r.error) == NOVA_OK, "%s", r.error.message);
    }
    CHECK(nova_session_open(r.engine, &sd, &r.error) == NULL && r.error.code == NOVA_ERROR_ARGUMENT, "a session too many");
    for (uint32_t k = 0; k < STEPS; k++) {
        CHECK(nova_session_next_batch(s, N, tokens, results, &r.error) == NOVA_OK, "%s", r.error.message);
        for (uint32_t i = 0; i < N; i++) CHECK(tokens[i].id == alone[i][k], "session %u, token %u", i, k);
    }
    for (uint32_t i = 0; i < N; i++) {
        const float *l = nova_session_logits(s[i], &r.error);
        CHECK(!memcmp(l, logits + (size_t)i * TINY_VOCAB, TINY_VOCAB * sizeof *l), "session %u: other bits in company", i);
    }
    for (uint32_t i = 0; i < N; i++) nova_session_close(s[i]);
    free(logits);
    rig_close(&r);
    tiny_free(&t);
}

/* ---- The context's end ---- */

static void test_full(void) {
    tiny       t;
    rig        r;
    int32_t    ids[100];
    nova_token token;
    tiny_make(&t, 1, false);
    random_ids(ids, 100);
    nova_engine_desc  d = engine_desc(50, 1);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    sd.ignore_end = true;
    if (!rig_open(&r, &t, &d, &sd)) return;
    CHECK(nova_session_feed(r.session, ids, 51, &r.error) == NOVA_ERROR_CONTEXT_FULL, "51 tokens in 50");
    CHECK(strstr(r.error.message, "51") && strstr(r.error.message, "50"), "both numbers: %s", r.error.message);
    nova_session_info info;
    nova_session_get_info(r.session, &info);
    CHECK(info.n_tokens == 0, "nothing was appended");
    CHECK(nova_session_feed(r.session, ids, 48, &r.error) == NOVA_OK, "%s", r.error.message);
    nova_result result = NOVA_OK;
    uint32_t    n = 0;
    while ((result = nova_session_next(r.session, &token, &r.error)) == NOVA_OK) n++;
    CHECK(result == NOVA_ERROR_CONTEXT_FULL && n == 3, "%u tokens behind 48 of 50, then %s", n, nova_result_text(result));
    CHECK(nova_session_set(r.session, ids, 20, &r.error) == NOVA_OK, "it goes on after a shorter start");
    CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "%s", r.error.message);
    rig_close(&r);
    d.n_ctx = 1;
    memset(&r, 0, sizeof r);
    nova_model_desc md;
    memset(&md, 0, sizeof md);
    md.data = t.bytes, md.size = t.n_bytes;
    r.model = nova_model_open(&md, &r.error);
    CHECK(!nova_engine_open(r.model, &d, &r.error) && r.error.code == NOVA_ERROR_ARGUMENT, "context 1: %s", r.error.message);
    rig_close(&r);
    tiny_free(&t);
}

/* With one layer, keys and values depend on their own token alone, so a slid cache must give what its tokens give afresh. */
static void test_slide(uint32_t n_ctx, uint32_t n_sinks) {
    tiny              t;
    rig               r;
    int32_t           ids[1200];
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    tiny_make(&t, 1, false);
    random_ids(ids, 1200);
    nova_engine_desc d = engine_desc(n_ctx, 2);
    sd.limit   = NOVA_LIMIT_SLIDE;
    sd.n_sinks = n_sinks ? n_sinks : NOVA_NO_SINKS;
    if (!rig_open(&r, &t, &d, &sd)) return;
    uint32_t fed = 0;
    while (fed < 1200) {
        uint32_t n = 1 + test_below(test_below(4) ? 5 : 150);
        if (n > 1200 - fed) n = 1200 - fed;
        CHECK(nova_session_feed(r.session, ids + fed, n, &r.error) == NOVA_OK, "%s", r.error.message);
        fed += n;
        nova_session_info info;
        nova_session_get_info(r.session, &info);
        uint32_t held = (uint32_t)(info.n_tokens - info.n_dropped);
        CHECK(info.n_tokens == fed && held <= n_ctx, "%u held of %u", held, n_ctx);
        int32_t kept[1200];
        uint32_t sinks = info.n_dropped ? n_sinks : 0;
        for (uint32_t i = 0; i < held; i++) kept[i] = i < sinks ? ids[i] : ids[fed - held + i];
        double *right = tiny_logits(&t, kept, held);
        double  e = nmse(nova_session_logits(r.session, &r.error), right + (size_t)(held - 1) * TINY_VOCAB, TINY_VOCAB);
        CHECK(e < 1e-9, "context %u, %u sinks, %u tokens, %u held: nmse %g", n_ctx, n_sinks, fed, held, e);
        free(right);
    }
    nova_session_info info;
    nova_session_get_info(r.session, &info);
    CHECK(info.n_dropped > 0, "it slid");
    /* A longer text that starts with all that was fed goes on from here; another one starts afresh. */
    ids[0] ^= 1;
    CHECK(nova_session_set(r.session, ids, 40, &r.error) == NOVA_OK, "%s", r.error.message);
    nova_session_get_info(r.session, &info);
    CHECK(info.n_tokens == 40, "started afresh");
    CHECK(r.engine->kv.n_free + r.session->seq.n_pages == r.engine->kv.n_pages, "pages lost");
    rig_close(&r);
    tiny_free(&t);
}

/* ---- Common starts, pending tokens ---- */

static void test_set(void) {
    tiny       t;
    rig        r;
    int32_t    ids[60];
    nova_token token;
    tiny_make(&t, 2, true);
    random_ids(ids, 60);
    nova_engine_desc  d = engine_desc(100, 1);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    sd.ignore_end = true;
    if (!rig_open(&r, &t, &d, &sd)) return;
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t n = 1 + test_below(60);
        ids[test_below(60)] = (int32_t)(3 + test_below(TINY_VOCAB - 3));
        if (test_below(2)) nova_session_next(r.session, &token, &r.error);
        CHECK(nova_session_set(r.session, ids, n, &r.error) == NOVA_OK, "%s", r.error.message);
        double *right = tiny_logits(&t, ids, n);
        double  e = nmse(nova_session_logits(r.session, &r.error), right + (size_t)(n - 1) * TINY_VOCAB, TINY_VOCAB);
        CHECK(e < 1e-9, "round %u: nmse %g", round, e);
        free(right);
    }
    /* Feeding behind a chosen token evaluates that token first. */
    int32_t text[8];
    memcpy(text, ids, sizeof text);
    nova_session_reset(r.session);
    CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_ERROR_ARGUMENT, "nothing fed");
    CHECK(nova_session_logits(r.session, &r.error) == NULL, "nothing fed");
    CHECK(nova_session_feed(r.session, text, 3, &r.error) == NOVA_OK, "%s", r.error.message);
    CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "%s", r.error.message);
    text[3] = token.id;
    CHECK(nova_session_feed(r.session, text + 4, 4, &r.error) == NOVA_OK, "%s", r.error.message);
    double *right = tiny_logits(&t, text, 8);
    double  e = nmse(nova_session_logits(r.session, &r.error), right + (size_t)7 * TINY_VOCAB, TINY_VOCAB);
    CHECK(e < 1e-9, "behind a pending token: nmse %g", e);
    free(right);
    rig_close(&r);
    tiny_free(&t);
}

/* ---- Cancelling ---- */

static bool cancel_soon(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)total;
    return done < *(uint64_t *)user;
}

static bool cancel_inside(void *user, size_t index, const float *logits) {
    (void)logits;
    if (index == 5) nova_session_cancel((nova_session *)user);
    return true;
}

static void test_cancel(void) {
    tiny       t;
    rig        r;
    int32_t    ids[90];
    nova_token token;
    uint64_t   limit = 30;
    tiny_make(&t, 2, false);
    random_ids(ids, 90);
    nova_engine_desc  d = engine_desc(100, 2);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    sd.ignore_end    = true;
    sd.progress      = cancel_soon;
    sd.progress_user = &limit;
    d.n_batch = 10;
    if (!rig_open(&r, &t, &d, &sd)) return;
    nova_session_info info;
    CHECK(nova_session_feed(r.session, ids, 90, &r.error) == NOVA_CANCELLED, "cancelled by progress");
    nova_session_get_info(r.session, &info);
    CHECK(info.n_tokens == 30, "%llu tokens stay", (unsigned long long)info.n_tokens);
    limit = 1000;
    CHECK(nova_session_set(r.session, ids, 40, &r.error) == NOVA_OK, "%s", r.error.message);
    double *right = tiny_logits(&t, ids, 40);
    double  e = nmse(nova_session_logits(r.session, &r.error), right + (size_t)39 * TINY_VOCAB, TINY_VOCAB);
    CHECK(e < 1e-9, "after a cancel: nmse %g", e);
    free(right);
    nova_session_cancel(r.session);
    CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_CANCELLED, "the next call is cancelled");
    CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "once: %s", r.error.message);
    CHECK(nova_session_score(r.session, ids, 20, cancel_inside, r.session, &r.error) == NOVA_CANCELLED, "cancelled inside");
    CHECK(nova_session_set(r.session, ids, 12, &r.error) == NOVA_OK, "%s", r.error.message);
    rig_close(&r);
    tiny_free(&t);
}

static void cancel_loop(void *arg) {
    nova_session *s = (nova_session *)arg;
    for (int i = 0; i < 300; i++) {
        uint64_t until = clock_ns() + 50000;
        while (clock_ns() < until) cpu_pause();
        nova_session_cancel(s);
    }
}

/* From another thread at any moment: every call ends as cancelled or done, and the text is what it is without. */
static void test_cancel_thread(void) {
    tiny       t;
    rig        r;
    int32_t    ids[40], wanted[400];
    nova_token token;
    tiny_make(&t, 2, false);
    random_ids(ids, 40);
    nova_engine_desc  d = engine_desc(500, 2);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    sd.ignore_end = true;
    if (!rig_open(&r, &t, &d, &sd)) return;
    CHECK(nova_session_feed(r.session, ids, 40, &r.error) == NOVA_OK, "%s", r.error.message);
    for (int i = 0; i < 400; i++) nova_session_next(r.session, &token, &r.error), wanted[i] = token.id;
    nova_session_reset(r.session);
    CHECK(nova_session_feed(r.session, ids, 40, &r.error) == NOVA_OK, "%s", r.error.message);
    thread canceller;
    CHECK(thread_start(&canceller, cancel_loop, r.session), "no thread");
    int cancelled = 0;
    for (int i = 0; i < 400;) {
        nova_result result = nova_session_next(r.session, &token, &r.error);
        if (result == NOVA_CANCELLED) cancelled++;
        else {
            CHECK(result == NOVA_OK && token.id == wanted[i], "token %d after %d cancels", i, cancelled);
            i++;
        }
    }
    thread_join(&canceller);
    printf("%d calls were cancelled\n", cancelled);
    rig_close(&r);
    tiny_free(&t);
}

/* ---- Memory ---- */

static void test_no_allocation(void) {
    tiny       t;
    rig        r;
    int32_t    ids[20];
    nova_token token;
    faults     heap;
    tiny_make(&t, 2, false);
    random_ids(ids, 20);
    faults_init(&heap, 0);
    nova_engine_desc  d = engine_desc(64, 2);
    nova_session_desc sd;
    memset(&sd, 0, sizeof sd);
    d.alloc      = faults_alloc;
    d.alloc_user = &heap;
    sd.ignore_end = true;
    sd.limit      = NOVA_LIMIT_SLIDE;
    sd.sampler.temperature = 0.9f, sd.sampler.top_k = 40, sd.sampler.top_p = 0.9f, sd.sampler.min_p = 0.01f;
    sd.sampler.repeat_penalty = 1.1f;
    if (!rig_open(&r, &t, &d, &sd)) return;
    CHECK(nova_session_feed(r.session, ids, 20, &r.error) == NOVA_OK, "%s", r.error.message);
    long before = heap.calls;
    CHECK(before > 0, "the host's allocator is used");
    for (int i = 0; i < 100; i++) CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "%s", r.error.message);
    CHECK(heap.calls == before, "%ld allocations while 100 tokens were generated", heap.calls - before);
    nova_engine_info size, took;
    nova_engine_get_info(r.engine, &took);
    CHECK(nova_engine_size(r.model, &d, &size, &r.error) == NOVA_OK && size.cache_bytes == took.cache_bytes &&
              size.scratch_bytes == took.scratch_bytes && size.n_batch == took.n_batch, "sizes told beforehand");
    rig_close(&r);
    CHECK(faults_end(&heap) == 0, "%s", heap.first_error);
    tiny_free(&t);
}

/* Everything once, with every allocation, mapping, read and thread start failing in turn. */
static nova_result whole_life(const char *path, bool to_memory, faults *heap, nova_error *error) {
    nova_model_desc  md;
    nova_engine_desc ed = engine_desc(64, 2);
    nova_message     message;
    nova_chat        chat;
    nova_token       token;
    memset(&md, 0, sizeof md);
    memset(&message, 0, sizeof message);
    memset(&chat, 0, sizeof chat);
    md.path           = path;
    md.read_to_memory = to_memory;
    md.alloc          = faults_alloc;
    md.alloc_user     = heap;
    message.role      = "user";
    message.content   = "ab a";
    chat.messages     = &message;
    chat.n_messages   = 1;
    nova_model   *m = nova_model_open(&md, error);
    nova_engine  *e = nova_engine_open(m, &ed, error);
    nova_session *s = nova_session_open(e, NULL, error);
    nova_result   result = nova_session_chat(s, &chat, error);
    for (int i = 0; i < 3 && result == NOVA_OK; i++) result = nova_session_next(s, &token, error);
    nova_session_close(s);
    nova_engine_close(e);
    nova_model_close(m);
    return result == NOVA_END ? NOVA_OK : result;
}

static void test_faults(void) {
    static const char *const kinds[] = {"allocation", "map", "read", "thread", "mutex"};
    tiny        t;
    const char *path = "build/test_session.gguf";
    tiny_make(&t, 1, false);
    CHECK(gw_save(&t.file, path), "cannot write %s", path);
    for (int to_memory = 0; to_memory < 2; to_memory++) {
        for (size_t kind = 0; kind < COUNT_OF(kinds); kind++) {
            long n = 1;
            for (; n < 10000; n++) {
                faults     heap;
                nova_error error;
                faults_init(&heap, kind == 0 ? n : 0);
                fault_arm(kind ? kinds[kind] : NULL, n);
                nova_result result = whole_life(path, to_memory != 0, &heap, &error);
                long        hits = kind ? fault_armed.hits : heap.failed;
                fault_arm(NULL, 0);
                CHECK(faults_end(&heap) == 0, "%s number %ld: %s", kinds[kind], n, heap.first_error);
                if (!hits) {
                    CHECK(result == NOVA_OK, "without a fault: %s", error.message);
                    break;
                }
                CHECK(result < 0 && error.code == result && error.message[0], "%s number %ld: %s", kinds[kind], n,
                      nova_result_text(result));
            }
            printf("%s: %ld points of failure of kind %s\n", to_memory ? "read" : "mapped", n - 1, kinds[kind]);
        }
    }
    remove(path);
    tiny_free(&t);
}

/* The file's bytes at any address give the same bits. */
static void test_misaligned(void) {
    tiny    t, moved;
    rig     r;
    int32_t ids[12];
    tiny_make(&t, 1, false);
    moved = t;
    random_ids(ids, 12);
    unsigned char *room = (unsigned char *)malloc(t.n_bytes + 16);
    float         *want = NULL;
    nova_engine_desc d = engine_desc(32, 1);
    for (size_t shift = 0; shift < 16; shift++) {
        moved.bytes = room + shift;
        memmove(moved.bytes, t.bytes, t.n_bytes);
        if (!rig_open(&r, &moved, &d, NULL)) break;
        float *narrow = score(r.session, ids, 2, 1, &r.error), *wide = score(r.session, ids, 12, 12, &r.error);
        size_t n_narrow = 2 * TINY_VOCAB, n = n_narrow + 12 * TINY_VOCAB;
        float *got = (float *)malloc(n * sizeof *got);
        memcpy(got, narrow, n_narrow * sizeof *got);
        memcpy(got + n_narrow, wide, (n - n_narrow) * sizeof *got);
        if (want) CHECK(memcmp(got, want, n * sizeof *got) == 0, "%zu bytes behind an aligned address", shift);
        else want = got;
        if (want != got) free(got);
        free(narrow), free(wide);
        rig_close(&r);
    }
    free(want);
    free(room);
    tiny_free(&t);
}

/* ---- Misuse ---- */

static void test_misuse(void) {
    tiny        t;
    rig         r;
    int32_t     ids[4] = {5, 6, 7, 8};
    nova_error  error;
    nova_token  token;
    tiny_make(&t, 1, false);
    nova_model_desc md;
    memset(&md, 0, sizeof md);
    md.path = "build/there is no such file.gguf";
    nova_model   *m = nova_model_open(&md, &error);
    nova_engine  *e = nova_engine_open(m, NULL, &error);
    nova_session *s = nova_session_open(e, NULL, &error);
    CHECK(!s && nova_session_next(s, &token, &error) == NOVA_ERROR_FILE, "the open's error stands");
    CHECK(strstr(error.message, "no such file"), "%s", error.message);
    nova_session_close(s), nova_engine_close(e), nova_model_close(m);
    CHECK(!nova_model_open(NULL, &error) && error.code == NOVA_ERROR_ARGUMENT, "no descriptor");
    CHECK(!nova_model_open(NULL, NULL), "no descriptor, no error");
    nova_engine_desc d = engine_desc(32, 1);
    if (!rig_open(&r, &t, &d, NULL)) return;
    CHECK(nova_session_feed(r.session, ids, 0, &error) == NOVA_ERROR_ARGUMENT, "no tokens");
    CHECK(nova_session_feed(r.session, NULL, 3, &error) == NOVA_ERROR_ARGUMENT, "NULL tokens");
    ids[2] = TINY_VOCAB;
    CHECK(nova_session_feed(r.session, ids, 4, &error) == NOVA_ERROR_ARGUMENT && strstr(error.message, "token 2"), "%s", error.message);
    ids[2] = -1;
    CHECK(nova_session_set(r.session, ids, 4, &error) == NOVA_ERROR_ARGUMENT && strstr(error.message, "token 2"), "%s", error.message);
    nova_session *twice[2] = {r.session, r.session};
    nova_token    tokens[2];
    nova_result   results[2];
    CHECK(nova_session_next_batch(twice, 2, tokens, results, &error) == NOVA_ERROR_ARGUMENT, "twice the same session");
    static const char *const devices[] = {"gpu", "gpu:0", "tpu", ""};
    for (size_t i = 0; i < COUNT_OF(devices); i++) {
        d.device = devices[i];
        CHECK(!nova_engine_open(r.model, &d, &error) && error.code < 0, "device '%s'", devices[i]);
    }
    rig_close(&r);
    tiny_free(&t);
}

/* What a sliding session has dropped does not depend on the batch, nor do its logits. */
static void test_slide_batches(void) {
    static const uint32_t batches[] = {0, 1, 7, 16, 33, 64};
    tiny   t;
    float *first = (float *)calloc(TINY_VOCAB, sizeof *first);
    tiny_make(&t, 2, false);
    for (size_t b = 0; b < COUNT_OF(batches); b++) {
        rig               r;
        int32_t           ids[300];
        nova_token        token;
        nova_session_info info;
        nova_session_desc sd;
        nova_engine_desc  d = engine_desc(100, 2);
        memset(&sd, 0, sizeof sd);
        sd.limit = NOVA_LIMIT_SLIDE, sd.ignore_end = true;
        d.n_batch = batches[b];
        for (int i = 0; i < 300; i++) ids[i] = 3 + i * 11 % (TINY_VOCAB - 3);
        CHECK(rig_try(&r, &t, &d, &sd), "%s", r.error.message);
        for (uint32_t i = 0, n = 60; i < 5; i++, n += 40) {   /* with a token between, which is pending then */
            CHECK(nova_session_feed(r.session, ids, n, &r.error) == NOVA_OK, "%s", r.error.message);
            CHECK(nova_session_next(r.session, &token, &r.error) == NOVA_OK, "%s", r.error.message);
        }
        nova_session_get_info(r.session, &info);
        const float *logits = nova_session_logits(r.session, &r.error);
        CHECK(logits && info.n_tokens == 705 && info.n_dropped > 600, "%llu tokens, %llu dropped", (unsigned long long)info.n_tokens,
              (unsigned long long)info.n_dropped);
        double off = 0, sum = 1e-30;
        for (int i = 0; logits && i < TINY_VOCAB; i++) {
            if (b == 0) first[i] = logits[i];
            off += ((double)logits[i] - first[i]) * ((double)logits[i] - first[i]);
            sum += (double)first[i] * first[i];
        }
        CHECK(off / sum < 1e-6, "batches of %u: nmse %g", batches[b], off / sum);
        rig_close(&r);
    }
    free(first);
    tiny_free(&t);
}


int main(void) {
    test_begin(20261201);
    for (int i = 0; i < 4; i++) test_forward(i % 2);
    for (int i = 0; i < 3; i++) test_identity();
    test_neighbours();
    test_full();
    test_slide(64, 4);
    test_slide(200, 0);
    test_slide(130, 64);
    test_slide(257, 70);
    test_slide(8, 1);
    test_slide(3, 1);
    test_set();
    test_cancel();
    test_cancel_thread();
    test_no_allocation();
    test_faults();
    test_misaligned();
    test_misuse();
    test_slide_batches();
    return test_end();
}
