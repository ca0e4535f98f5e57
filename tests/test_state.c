/* Forks, and sessions saved and loaded: they go on exactly as the one that they come from; damage is found before anything changes. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#include "test.h"

#include "rig.h"

static nova_session_desc desc_of(float temperature, nova_limit limit) {
    nova_session_desc d;
    memset(&d, 0, sizeof d);
    d.sampler.temperature = temperature;
    d.sampler.top_k       = 20;
    d.sampler.seed        = 7;
    d.limit      = limit;
    d.ignore_end = true;
    return d;
}

static void generate(nova_session *s, int32_t *out, int n) {
    nova_token token;
    nova_error error;
    for (int i = 0; i < n; i++) {
        nova_result r = nova_session_next(s, &token, &error);
        CHECK(r == NOVA_OK, "%s", error.message);
        out[i] = token.id;
    }
}

static uint8_t *save(nova_session *s, size_t *n) {
    nova_error error;
    CHECK(nova_session_save(s, NULL, 0, n, &error) == NOVA_ERROR_TOO_SMALL, "%s", error.message);
    uint8_t *bytes = (uint8_t *)malloc(*n);
    size_t   again = 0;
    if (!bytes) exit(2);
    CHECK(nova_session_save(s, bytes, *n - 1, &again, &error) == NOVA_ERROR_TOO_SMALL && again == *n, "%s", error.message);
    CHECK(nova_session_save(s, bytes, *n, &again, &error) == NOVA_OK && again == *n, "%s", error.message);
    return bytes;
}

/* Two sessions that begin alike share pages and then go their own ways, as if each had been alone. */
static void test_fork(nova_limit limit, uint32_t before) {
    tiny              t;
    rig               r, alone;
    int32_t           ids[90], a[80], b[80], right[80];
    nova_session_desc sd = desc_of(0.8f, limit);
    nova_engine_desc  d  = engine_desc(limit == NOVA_LIMIT_SLIDE ? 100 : 300, 2);
    tiny_make(&t, 2, false);
    random_ids(ids, 90);
    d.n_sessions = 3;
    CHECK(rig_try(&r, &t, &d, &sd) && rig_try(&alone, &t, &d, &sd), "%s", r.error.message);
    uint32_t all = r.engine->kv.n_free;
    CHECK(nova_session_feed(r.session, ids, before, &r.error) == NOVA_OK, "%s", r.error.message);
    CHECK(nova_session_feed(alone.session, ids, before, &r.error) == NOVA_OK, "%s", r.error.message);
    generate(r.session, a, 5);
    generate(alone.session, right, 5);
    uint32_t      used = all - r.engine->kv.n_free;
    nova_session *fork = nova_session_fork(r.session, &r.error);
    CHECK(fork && all - r.engine->kv.n_free == used, "a fork takes no pages: %s", r.error.message);
    nova_session *sessions[2] = {r.session, fork};
    nova_token    tokens[2];
    nova_result   results[2];
    for (int i = 0; i < 70; i++) {
        CHECK(nova_session_next_batch(sessions, 2, tokens, results, &r.error) == NOVA_OK, "%s", r.error.message);
        a[i] = tokens[0].id, b[i] = tokens[1].id;
    }
    generate(alone.session, right, 70);
    CHECK(!memcmp(a, right, 70 * sizeof *a) && !memcmp(b, right, 70 * sizeof *b), "forks go on as one alone, %u tokens in front", before);
    CHECK(nova_session_feed(fork, ids + 10, 9, &r.error) == NOVA_OK, "%s", r.error.message);
    generate(r.session, a, 20);
    generate(alone.session, right, 20);
    CHECK(!memcmp(a, right, 20 * sizeof *a), "what one fork reads does not reach the other");
    CHECK(nova_session_feed(alone.session, ids, 3, &r.error) == NOVA_OK, "%s", r.error.message);
    nova_session_close(r.session);
    generate(fork, b, 10);
    CHECK(nova_session_set(fork, ids, 20, &r.error) == NOVA_OK, "%s", r.error.message);
    nova_session_close(fork);
    CHECK(r.engine->kv.n_free == all, "%u pages of %u came back", r.engine->kv.n_free, all);
    r.session = NULL;
    rig_close(&r);
    rig_close(&alone);
    tiny_free(&t);
}

/* Saved at every tenth token and loaded by another engine of another batch, context and thread count. */
static void test_save(nova_cache_type k, nova_cache_type v, nova_limit limit) {
    tiny              t;
    rig               r;
    int32_t           ids[70], right[130];
    nova_session_desc sd = desc_of(0.9f, limit);
    nova_engine_desc  d  = engine_desc(limit == NOVA_LIMIT_SLIDE ? 90 : 250, 2);
    uint8_t          *saved[13];
    size_t            n[13];
    tiny_make(&t, 2, true);
    random_ids(ids, 70);
    d.cache_k = k, d.cache_v = v;
    CHECK(rig_try(&r, &t, &d, &sd), "%s", r.error.message);
    CHECK(nova_session_feed(r.session, ids, 40, &r.error) == NOVA_OK, "%s", r.error.message);
    for (int i = 0; i < 13; i++) {
        saved[i] = save(r.session, &n[i]);
        generate(r.session, right + 10 * i, 10);
    }
    rig_close(&r);
    d.n_batch = 17, d.n_threads = 1;
    sd = desc_of(0.1f, limit);   /* the sampler's settings come with what was saved */
    sd.sampler.seed = 99;
    for (int i = 0; i < 13; i++) {
        int32_t again[10];
        CHECK(rig_try(&r, &t, &d, &sd), "%s", r.error.message);
        if (i % 2) CHECK(nova_session_feed(r.session, ids, 11, &r.error) == NOVA_OK, "%s", r.error.message);
        CHECK(nova_session_load(r.session, saved[i], n[i], &r.error) == NOVA_OK, "%s", r.error.message);
        generate(r.session, again, 10);
        CHECK(!memcmp(again, right + 10 * i, sizeof again), "caches %d/%d, saved at %d: another text", (int)k, (int)v, 10 * i);
        rig_close(&r);
        free(saved[i]);
    }
    tiny_free(&t);
}

/* Every byte changed and every length cut: refused, and the session goes on as if nothing had been. */
static void test_damage(void) {
    tiny              t;
    rig               r;
    size_t            n, odd = 0;
    int32_t           ids[10], right[6], got[6];
    nova_session_desc sd = desc_of(0, NOVA_LIMIT_ERROR);
    nova_engine_desc  d  = engine_desc(64, 1);
    tiny_make(&t, 1, false);
    random_ids(ids, 10);
    CHECK(rig_try(&r, &t, &d, &sd) && nova_session_feed(r.session, ids, 5, &r.error) == NOVA_OK, "%s", r.error.message);
    uint8_t *bytes = save(r.session, &n), *copy = (uint8_t *)malloc(n);
    if (!copy) exit(2);
    generate(r.session, right, 6);
    CHECK(nova_session_load(r.session, bytes, n, &r.error) == NOVA_OK, "%s", r.error.message);
    memcpy(copy, bytes, n);
    for (size_t i = 0; i < n; i += i < 4096 ? 1 : 61) {
        copy[i] ^= (uint8_t)(1u << i % 8);
        odd += nova_session_load(r.session, copy, n, &r.error) != NOVA_ERROR_FORMAT;
        copy[i] = bytes[i];
    }
    CHECK(odd == 0, "%zu changed bytes were taken", odd);
    for (size_t i = 0; i < n; i += i < 1024 ? 1 : 997) odd += nova_session_load(r.session, bytes, i, &r.error) != NOVA_ERROR_FORMAT;
    CHECK(odd == 0, "%zu cut ones were taken", odd);
    generate(r.session, got, 6);
    CHECK(!memcmp(got, right, sizeof got), "behind refusals it goes on as before");
    /* With a right checksum, numbers that contradict: refused as well, or harmless. */
    for (size_t i = offsetof(state_head, model); i + 8 <= sizeof(state_head); i += 4)
        for (int k = 0; k < 6; k++) {
            static const uint64_t values[] = {0, 1, 63, 0x7fffffffffffffffu, 0xffffffffffffffffu, (uint64_t)1 << 40};
            state_head            h;
            memcpy(copy, bytes, n);
            memcpy(copy + i, &values[k], 8);
            memcpy(&h, copy, sizeof h);
            h.hash = hash_bytes(copy + STATE_HASHED, n - STATE_HASHED, STATE_MAGIC);
            memcpy(copy, &h, sizeof h);
            if (nova_session_load(r.session, copy, n, &r.error) == NOVA_OK) {
                nova_token token;
                nova_session_next(r.session, &token, &r.error);
            }
        }
    CHECK(nova_session_load(r.session, bytes, n, &r.error) == NOVA_OK, "%s", r.error.message);
    generate(r.session, got, 6);
    CHECK(!memcmp(got, right, sizeof got), "and loads what is whole");
    rig_close(&r);
    /* another model, another cache, a context that is too small */
    tiny other;
    tiny_make(&other, 2, false);
    CHECK(rig_try(&r, &other, &d, &sd) && nova_session_load(r.session, bytes, n, &r.error) == NOVA_ERROR_FORMAT, "another model: %s", r.error.message);
    rig_close(&r);
    d.cache_k = NOVA_CACHE_F16;
    CHECK(rig_try(&r, &t, &d, &sd) && nova_session_load(r.session, bytes, n, &r.error) == NOVA_ERROR_FORMAT, "another cache: %s", r.error.message);
    rig_close(&r);
    d.cache_k = NOVA_CACHE_F32, d.n_ctx = 4;
    CHECK(rig_try(&r, &t, &d, &sd) && nova_session_load(r.session, bytes, n, &r.error) == NOVA_ERROR_CONTEXT_FULL, "a small context: %s", r.error.message);
    rig_close(&r);
    free(bytes);
    free(copy);
    tiny_free(&other);
    tiny_free(&t);
}

int main(void) {
    test_begin(1);
    for (uint32_t before = 3; before < 90; before += 20) {
        test_fork(NOVA_LIMIT_ERROR, before);
        test_fork(NOVA_LIMIT_SLIDE, before);
    }
    test_fork(NOVA_LIMIT_ERROR, 59);   /* and five more: a page is just full */
    test_save(NOVA_CACHE_F16, NOVA_CACHE_F16, NOVA_LIMIT_ERROR);
    test_save(NOVA_CACHE_F32, NOVA_CACHE_Q8_0, NOVA_LIMIT_SLIDE);
    test_save(NOVA_CACHE_Q4_0, NOVA_CACHE_F16, NOVA_LIMIT_SLIDE);
    test_save(NOVA_CACHE_Q8_0, NOVA_CACHE_Q4_0, NOVA_LIMIT_ERROR);
    test_damage();
    return test_end();
}
