/* Samplers: distributions by chi-square against exact probabilities from a full sort, edges, determinism, speed. */
#define NOVA_TEST_STAYS   /* -ffast-math is not for the expected values either */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

#define MOST_VOCAB_TESTED 4000

static float from_bits(uint32_t bits) { return load_f32(&bits); }
static float minus_infinity(void) { return from_bits(0xff800000u); }

static nova_sampler settings(float temperature, uint32_t top_k, float top_p, float min_p, uint64_t seed) {
    nova_sampler s;
    memset(&s, 0, sizeof s);
    s.temperature = temperature;
    s.top_k       = top_k;
    s.top_p       = top_p;
    s.min_p       = min_p;
    s.seed        = seed;
    return s;
}

/* A sampler with its scratch between sentinels. */
typedef struct rig {
    sampler  s;
    uint8_t *block;
    size_t   bytes;
} rig;

#define GUARD 64

static void rig_open(rig *r, uint32_t n_vocab, nova_sampler set) {
    nova_error error;
    r->bytes = sampler_bytes(n_vocab);
    r->block = (uint8_t *)malloc(r->bytes + 2 * GUARD);
    if (!r->block) exit(2);
    memset(r->block, 0xa5, r->bytes + 2 * GUARD);
    sampler_place(&r->s, r->block + GUARD, n_vocab);
    nova_result result = sampler_set(&r->s, &set, &error);
    CHECK(result == NOVA_OK, "settings refused: %s", error.message);
    sampler_restart(&r->s);
}

static void rig_close(rig *r) {
    bool whole = true;
    for (size_t i = 0; i < GUARD; i++) whole = whole && r->block[i] == 0xa5 && r->block[GUARD + r->bytes + i] == 0xa5;
    CHECK(whole, "wrote outside of the scratch");
    free(r->block);
}

static int32_t pick_one(rig *r, const float *logits, const int32_t *recent, size_t n_recent) {
    nova_error  error;
    int32_t     id = -1;
    nova_result result = sampler_pick(&r->s, logits, recent, n_recent, &id, &error);
    CHECK(result == NOVA_OK, "pick failed: %s", error.message);
    CHECK(id >= 0 && (uint32_t)id < r->s.n_vocab, "id %d", id);
    return id;
}

/* ---- The expected distribution, by sorting everything in long double ---- */

typedef struct ranked {
    long double x;   /* penalised logit over temperature */
    uint32_t    id;
} ranked;

static int by_rank(const void *a, const void *b) {
    const ranked *p = (const ranked *)a, *q = (const ranked *)b;
    if (p->x != q->x) return p->x > q->x ? -1 : 1;
    return p->id < q->id ? -1 : p->id > q->id;
}

/* Probabilities by id. A cut whose place is in doubt, because a sum or a weight falls within 1e-5 of its bound, makes
 * the result false. */
static bool expect(const nova_sampler *set, const float *logits, uint32_t n, const int32_t *recent, size_t n_recent,
                   double *p) {
    ranked     *r      = (ranked *)malloc(n * sizeof *r);
    long double sum    = 0, part = 0, *w = (long double *)malloc(n * sizeof *w);
    bool        sure   = true;
    uint32_t    kept   = n;
    size_t      last   = set->repeat_last ? set->repeat_last : 64;
    if (!r || !w) exit(2);
    for (uint32_t i = 0; i < n; i++) {
        bool again = false;
        for (size_t k = n_recent - size_min(n_recent, last); k < n_recent; k++) again |= recent[k] == (int32_t)i;
        float x = logits[i];
        if (again && set->repeat_penalty != 0 && load_u32(&x) != 0xff800000u)
            x = x > 0 ? x / set->repeat_penalty : x * set->repeat_penalty;
        r[i].id = i;
        r[i].x  = (long double)x / (long double)set->temperature;
        p[i]    = 0;
    }
    qsort(r, n, sizeof *r, by_rank);
    if (set->top_k > 0 && set->top_k < n) kept = set->top_k;
    for (uint32_t i = 0; i < kept; i++) sum += w[i] = expl(r[i].x - r[0].x);
    if (set->top_p > 0 && set->top_p < 1)
        for (uint32_t i = 0; i < kept; i++) {
            part += w[i];
            if (fabsl(part / sum - (long double)set->top_p) < 1e-5L) sure = false;
            if (part >= (long double)set->top_p * sum) kept = i + 1;
        }
    for (uint32_t i = 0; i < kept; i++) {
        if (set->min_p > 0 && fabsl(w[i] / (long double)set->min_p - 1) < 1e-5L) sure = false;
        if (w[i] < (long double)set->min_p) kept = i;
    }
    sum = 0;
    for (uint32_t i = 0; i < kept; i++) sum += w[i];
    for (uint32_t i = 0; i < kept; i++) p[r[i].id] = (double)(w[i] / sum);
    free(r);
    free(w);
    return sure;
}

/* Draws, and compares the counts: chi-square over the tokens expected at least 8 times, the others as one. */
static void check_distribution(const char *what, const nova_sampler *set, const float *logits, uint32_t n,
                               const int32_t *recent, size_t n_recent, uint32_t n_draws) {
    rig       r;
    double   *p     = (double *)malloc(n * sizeof *p);
    uint32_t *count = (uint32_t *)calloc(n, sizeof *count);
    if (!p || !count) exit(2);
    bool sure = expect(set, logits, n, recent, n_recent, p);
    rig_open(&r, n, *set);
    for (uint32_t i = 0; i < n_draws; i++) count[pick_one(&r, logits, recent, n_recent)]++;
    double   square = 0, rest = 0;
    uint32_t rest_count = 0, cells = 0, impossible = 0;
    for (uint32_t i = 0; i < n; i++) {
        double e = p[i] * n_draws;
        if (p[i] == 0) impossible += count[i];
        if (e >= 8) square += (count[i] - e) * (count[i] - e) / e, cells++;
        else rest += e, rest_count += count[i];
    }
    if (rest >= 8) square += (rest_count - rest) * (rest_count - rest) / rest, cells++;
    /* Mean cells - 1, variance twice that: five deviations, and something for few cells. */
    double freedom = cells > 1 ? cells - 1 : 0, limit = freedom + 5 * sqrt(2 * freedom);
    limit += cells > 1 || rest > 0 ? 10 : 1e-6;
    if (sure) {
        CHECK(impossible == 0, "%s: %u draws of tokens that are cut", what, impossible);
        CHECK(square <= limit, "%s: chi-square %.1f over %u cells", what, square, cells);
    }
    rig_close(&r);
    free(p);
    free(count);
}

/* ---- Tests ---- */

static double normal(void) {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += (double)test_uniform();
    return sum / 2;   /* variance 1 */
}

static void random_logits(float *logits, uint32_t n, int kind) {
    for (uint32_t i = 0; i < n; i++) {
        if (kind == 0) logits[i] = (float)(3 * normal());
        if (kind == 1) logits[i] = (float)test_below(5);                                  /* many equal ones */
        if (kind == 2) logits[i] = test_below(2) ? minus_infinity() : (float)normal();
        if (kind == 3) logits[i] = test_uniform() * 1e4f;
        if (kind == 4) logits[i] = test_below(2) ? 0.0f : -0.0f;
    }
    logits[test_below(n)] = 1.5f;   /* at least one that is finite */
}

static void test_distributions(void) {
    static float logits[MOST_VOCAB_TESTED];
    static const nova_sampler sets[] = {
        { 1, 0, 0, 0, 0, 0, 1 },          { 0.7f, 0, 0, 0, 0, 0, 2 },       { 2, 0, 1, 0, 1, 0, 3 },
        { 1, 5, 0, 0, 0, 0, 4 },          { 1, 1, 0, 0, 0, 0, 5 },          { 1, 0, 0.9f, 0, 0, 0, 6 },
        { 1, 0, 0.3f, 0, 0, 0, 7 },       { 1, 0, 0, 0.1f, 0, 0, 8 },       { 0.8f, 40, 0.95f, 0.05f, 0, 0, 9 },
        { 1.5f, 20, 0.5f, 0, 1.3f, 0, 10 }, { 1, 0, 0, 0, 2, 3, 11 },       { 1, 0, 0.99f, 0.5f, 0.5f, 0, 12 },
        { 1e6f, 0, 0, 0, 0, 0, 13 },      { 1e6f, 0, 0.5f, 0, 0, 0, 14 },   { 1e-6f, 0, 0.9f, 0, 0, 0, 15 },
        { 1, 3000, 0.8f, 0, 0, 0, 16 },   { 1, 0, 0, 1, 0, 0, 17 },         { 1e6f, 2, 0, 0, 0, 0, 18 },
    };
    static const uint32_t sizes[] = { 1, 2, 3, 10, 63, 64, 65, 200, MOST_VOCAB_TESTED };
    for (size_t k = 0; k < COUNT_OF(sets); k++)
        for (size_t i = 0; i < COUNT_OF(sizes); i++) {
            char         what[96];
            int32_t      recent[70];
            uint32_t     n_recent = test_below(70);
            nova_sampler set = sets[k];
            int          kind = (int)((k + i) % 5);
            if (set.temperature >= 1e6f && kind == 3) kind = 0;
            random_logits(logits, sizes[i], kind);
            for (uint32_t j = 0; j < n_recent; j++) recent[j] = (int32_t)test_below(sizes[i]);
            snprintf(what, sizeof what, "settings %zu, %u tokens, kind %d", k, sizes[i], kind);
            check_distribution(what, &set, logits, sizes[i], recent, n_recent, sizes[i] > 1000 ? 2000 : 6000);
        }
}

/* Settings at random; every token that can be drawn must be among those expected. */
static void test_random_settings(void) {
    static float logits[MOST_VOCAB_TESTED];
    for (int round = 0; round < 400; round++) {
        static const float odd[] = { 0, 1, 0.5f, 1e-6f, 0.999999f, 1e-38f, 1.17549435e-38f / 2 };
        char         what[96];
        int32_t      recent[20];
        uint32_t     n   = 1 + test_below(test_below(4) ? 100 : MOST_VOCAB_TESTED), n_recent = test_below(20);
        nova_sampler set = settings(0.01f + 3 * fabsf(test_uniform()), 0, 0, 0, 0);
        set.seed = test_random();
        if (test_below(2)) set.top_k = test_below(n + 5);
        if (test_below(2)) set.top_p = test_below(2) ? odd[test_below(7)] : fabsf(test_uniform());
        if (test_below(2)) set.min_p = test_below(2) ? odd[test_below(7)] : fabsf(test_uniform());
        if (test_below(2)) set.repeat_penalty = 2 * fabsf(test_uniform());
        set.repeat_last = test_below(2) ? 0 : test_below(30);
        random_logits(logits, n, (int)test_below(5));
        for (uint32_t j = 0; j < n_recent; j++) recent[j] = (int32_t)test_below(n);
        snprintf(what, sizeof what, "round %d, %u tokens", round, n);
        check_distribution(what, &set, logits, n, recent, n_recent, 60);
    }
}

static void test_greedy(void) {
    static float logits[MOST_VOCAB_TESTED];
    for (int round = 0; round < 300; round++) {
        uint32_t     n = 1 + test_below(300), best = 0;
        int32_t      recent[80];
        uint32_t     n_recent = test_below(80);
        nova_sampler set = settings(0, test_below(3), test_below(2) ? 0.1f : 0, 0, 1);
        set.repeat_penalty = test_below(2) ? 1.7f : 0;
        set.repeat_last    = test_below(2) ? 0 : 1 + test_below(9);
        random_logits(logits, n, (int)test_below(5));
        for (uint32_t j = 0; j < n_recent; j++) recent[j] = (int32_t)test_below(n);
        float penalised[300];
        for (uint32_t i = 0; i < n; i++) penalised[i] = logits[i];
        if (set.repeat_penalty != 0)
            for (size_t j = n_recent - size_min(n_recent, set.repeat_last ? set.repeat_last : 64); j < n_recent; j++) {
                float x = logits[recent[j]];
                if (load_u32(&x) != 0xff800000u) penalised[recent[j]] = x > 0 ? x / 1.7f : x * 1.7f;
            }
        for (uint32_t i = 1; i < n; i++)
            if (penalised[i] > penalised[best]) best = i;
        rig r;
        rig_open(&r, n, set);
        int32_t id = pick_one(&r, logits, recent, n_recent);
        CHECK((uint32_t)id == best, "greedy of %u: %d, not %u", n, id, best);
        CHECK(r.s.random == r.s.set.seed, "a greedy choice took a random number");
        rig_close(&r);
    }
}

/* The very tokens of one seed; they may never change, nor differ between machines. */
static void test_same_everywhere(void) {
    static float logits[1000];
    static const int32_t expected[8] = { 751, 199, 307, 363, 42, 881, 243, 817 };
    uint64_t     state = 1;
    int32_t      got[8], again[8];
    rig          r;
    nova_sampler set = settings(0.9f, 300, 0.97f, 0.001f, 42);
    set.repeat_penalty = 1.1f;
    for (size_t i = 0; i < 1000; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        logits[i] = (float)(int32_t)(state >> 40) * (1.0f / 4194304.0f) - 2.0f;   /* exact */
    }
    rig_open(&r, 1000, set);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t k = 0; k < 2; k++) {
        int32_t *out = k == 0 ? got : again;
        sampler_restart(&r.s);
        for (size_t i = 0; i < 8; i++) out[i] = pick_one(&r, logits, out, i);
    }
    CHECK(memcmp(got, again, sizeof got) == 0, "a restart does not repeat");
    for (size_t i = 0; i < 2000; i++) hash = (hash ^ (uint64_t)pick_one(&r, logits, got, 8)) * 0x100000001b3u;
    for (size_t i = 0; i < 8; i++)
        CHECK(got[i] == expected[i], "choice %zu is %d, not %d as always", i, got[i], expected[i]);
    CHECK(hash == 0x36557eba6daa974eu, "other tokens than always: 0x%016llx", (unsigned long long)hash);
    r.s.set.seed = 43;
    sampler_restart(&r.s);
    for (size_t i = 0; i < 8; i++) again[i] = pick_one(&r, logits, again, i);
    CHECK(memcmp(got, again, sizeof got) != 0, "another seed, the same tokens");
    rig_close(&r);
}

/* Every choice takes one random number, so that texts stay comparable. */
static void test_random_use(void) {
    float        logits[4] = { 1, 2, 3, 4 };
    nova_sampler sets[4]   = { settings(1, 0, 0, 0, 9), settings(1, 1, 0, 0, 9), settings(1, 0, 0.5f, 0, 9),
                               settings(1, 0, 0, 1, 9) };
    uint64_t     after[4];
    for (size_t k = 0; k < 4; k++) {
        rig r;
        rig_open(&r, 4, sets[k]);
        pick_one(&r, logits, NULL, 0);
        after[k] = r.s.random;
        rig_close(&r);
    }
    CHECK(after[0] == after[1] && after[1] == after[2] && after[2] == after[3] && after[0] != 9,
          "random numbers taken");
}

static void test_ties(void) {
    float logits[200];
    for (uint32_t k = 1; k <= 200; k += 13) {
        rig r;
        for (uint32_t i = 0; i < 200; i++) logits[i] = 7;
        rig_open(&r, 200, settings(1, k, 0, 0, k));
        int32_t most = 0;
        for (int i = 0; i < 300; i++) {
            int32_t id = pick_one(&r, logits, NULL, 0);
            most = id > most ? id : most;
        }
        CHECK((uint32_t)most < k && (k > 50 || (uint32_t)most == k - 1), "of equal ones, top_k %u keeps up to %d", k,
              most);
        rig_close(&r);
    }
}

static void expect_number_error(const char *what, float *logits, uint32_t n, nova_sampler set, const char *text) {
    nova_error error;
    rig        r;
    int32_t    id = 77;
    rig_open(&r, n, set);
    nova_result result = sampler_pick(&r.s, logits, NULL, 0, &id, &error);
    CHECK(result == NOVA_ERROR_NUMBER && error.code == NOVA_ERROR_NUMBER && strstr(error.message, text),
          "%s: %d, %s", what, (int)result, error.message);
    CHECK(id == 77 && r.s.random == set.seed, "%s: a failed pick changed something", what);
    CHECK(sampler_pick(&r.s, logits, NULL, 0, &id, NULL) == NOVA_ERROR_NUMBER, "%s without an error to fill", what);
    rig_close(&r);
}

static void test_bad_logits(void) {
    static const uint32_t nans[] = { 0x7fc00000u, 0xffc00000u, 0x7f800001u, 0xff800001u, 0xffffffffu };
    float logits[100];
    for (int greedy = 0; greedy < 2; greedy++) {
        nova_sampler set = settings(greedy ? 0 : 1, 0, 0.5f, 0, 3);
        for (size_t k = 0; k < COUNT_OF(nans); k++)
            for (uint32_t at = 0; at < 100; at += 33) {
                char text[32];
                random_logits(logits, 100, 0);
                logits[at] = from_bits(nans[k]);
                snprintf(text, sizeof text, "token %u is no number", at);
                expect_number_error("a NaN", logits, 100, set, text);
            }
        random_logits(logits, 100, 0);
        logits[71] = from_bits(0x7f800000u);
        expect_number_error("infinity", logits, 100, set, "token 71 is infinite");
        for (uint32_t i = 0; i < 100; i++) logits[i] = minus_infinity();
        expect_number_error("-infinity alone", logits, 100, set, "no token");
        logits[3] = -3e38f;
        rig r;
        rig_open(&r, 100, set);
        CHECK(pick_one(&r, logits, NULL, 0) == 3, "the only one that is possible");
        rig_close(&r);
    }
}

static void expect_refused(nova_sampler bad, const char *field, const char *value) {
    nova_error   error;
    rig          r;
    nova_sampler good = settings(0.5f, 3, 0.25f, 0, 8);
    rig_open(&r, 10, good);
    nova_result result = sampler_set(&r.s, &bad, &error);
    CHECK(result == NOVA_ERROR_ARGUMENT && strstr(error.message, field) && strstr(error.message, value),
          "%s %s: %d, %s", field, value, (int)result, error.message);
    CHECK(memcmp(&r.s.set, &good, sizeof good) == 0, "%s: the old settings are gone", field);
    rig_close(&r);
}

static void test_bad_settings(void) {
    const float inf = from_bits(0x7f800000u), nan = from_bits(0x7fc00000u);
    nova_sampler s;
    memset(&s, 0, sizeof s);
#define REFUSE(field, number, text) s = settings(1, 0, 0, 0, 0), s.field = number, expect_refused(s, #field, text)
    REFUSE(temperature, -1, "-1");
    REFUSE(temperature, nan, "nan");
    REFUSE(temperature, inf, "inf");
    REFUSE(temperature, -1e-45f, "-1.4");
    REFUSE(top_p, -0.25f, "-0.25");
    REFUSE(top_p, 1.5f, "1.5");
    REFUSE(top_p, nan, "nan");
    REFUSE(min_p, -2, "-2");
    REFUSE(min_p, 1.25f, "1.25");
    REFUSE(min_p, nan, "nan");
    REFUSE(repeat_penalty, -1, "-1");
    REFUSE(repeat_penalty, nan, "nan");
    REFUSE(repeat_penalty, inf, "inf");
#undef REFUSE
}

/* Values at the ends of what settings allow. */
static void test_edges(void) {
    static const float temperatures[] = { 1e-45f, 1e-38f, 1e-6f, 1, 1e6f, FLT_MAX };
    static const float penalties[] = { 0, 1e-45f, 1, FLT_MAX };
    static const float values[] = { 0, -0.0f, 1e-45f, -1e-45f, 1, -1, FLT_MAX, -FLT_MAX };
    float logits[70];
    for (int round = 0; round < 2000; round++) {
        int32_t      recent[3] = { (int32_t)test_below(70), -5, 100000 };
        uint32_t     n = 1 + test_below(70);
        nova_sampler set = settings(temperatures[test_below(6)], test_below(4), (float)test_below(5) / 4,
                                    (float)test_below(5) / 4, 5);
        set.repeat_penalty = penalties[test_below(4)];
        set.repeat_last    = test_below(2) ? 0 : UINT32_MAX;
        for (uint32_t i = 0; i < n; i++) logits[i] = test_below(5) ? values[test_below(8)] : minus_infinity();
        logits[0] = values[test_below(8)];
        rig r;
        rig_open(&r, n, set);
        nova_error  error;
        int32_t     id = -1;
        nova_result result = sampler_pick(&r.s, logits, recent, 3, &id, &error);
        bool        possible = result == NOVA_OK && id >= 0 && (uint32_t)id < n;
        if (possible) possible = load_u32(&logits[id]) != 0xff800000u;
        /* A penalty can turn the only token that was possible into one that is not. */
        CHECK(possible || (result == NOVA_ERROR_NUMBER && set.repeat_penalty > 1), "round %d: %d, id %d", round,
              (int)result, id);
        rig_close(&r);
    }
}

/* A penalty by hand: positive logits are divided, negative ones multiplied, each once, none outside the window. */
static void test_penalty(void) {
    float        logits[3] = { 2, 1.5f, -1 };
    int32_t      recent[5] = { 1, 0, 0, 0, 2 };
    nova_sampler set = settings(0, 0, 0, 0, 0);
    set.repeat_penalty = 1.25f;
    set.repeat_last    = 4;
    rig r;
    rig_open(&r, 3, set);
    CHECK(pick_one(&r, logits, recent, 5) == 0, "2 / 1.25 = 1.6 is still the greatest when it is penalised once");
    r.s.set.repeat_penalty = 1.5f;
    CHECK(pick_one(&r, logits, recent, 5) == 1, "2 / 1.5 falls below 1.5, which is outside the window");
    r.s.set.repeat_last = 5;
    CHECK(pick_one(&r, logits, recent, 5) == 0, "inside the window 1.5 becomes 1");
    float negative[2] = { -1, -1.25f };
    CHECK(logits[0] == 2, "logits were changed");
    rig_close(&r);
    rig_open(&r, 2, set);
    r.s.set.repeat_penalty = 1.5f;
    CHECK(pick_one(&r, negative, recent + 1, 1) == 1, "a negative logit is multiplied");
    rig_close(&r);
}

static void test_weights(void) {
    rig    r;
    double worst = 0;
    float  before = 0;
    rig_open(&r, 4, settings(1, 0, 0, 0, 0));
    r.s.top     = 0;
    r.s.octaves = 1.44269504f * ONE_OCTAVE;
    uint64_t last = WEIGHT_ONE;
    bool     falling = weight_of(&r.s, 0) == WEIGHT_ONE;
    for (float x = 0; x > -30; x -= 0.000371f) {
        uint64_t w = weight_of(&r.s, x);
        double   e = exp((double)x) * (double)WEIGHT_ONE, off = fabs((double)w - e) / (e * 4e-6 + 2);
        falling = falling && w <= last;
        last = w;
        if (off > worst) worst = off, before = x;
    }
    CHECK(worst <= 1, "weight at %g: off by %g times what is allowed", (double)before, worst);
    CHECK(falling, "a weight grows where the logit falls");
    CHECK(weight_of(&r.s, -1000) == 0 && weight_of(&r.s, minus_infinity()) == 0, "weights of the impossible");
    rig_close(&r);
}

/* The last unit of a token's share is its own, the next one the next token's; a weight of 0 has none. */
static void test_shares(void) {
    float logits[4] = { minus_infinity(), 0, -1, 0 };
    rig   r;
    rig_open(&r, 4, settings(1, 0, 0, 0, 0));
    r.s.top     = 0;
    r.s.octaves = 1.44269504f * ONE_OCTAVE;
    r.s.logits  = logits;
    r.s.n_ids   = 4;
    for (uint32_t i = 0; i < 4; i++) r.s.ids[i] = i;
    uint64_t w = weight_of(&r.s, -1);
    CHECK(pick_candidate(&r.s, 0) == 1 && pick_candidate(&r.s, WEIGHT_ONE - 1) == 1, "the first share");
    CHECK(pick_candidate(&r.s, WEIGHT_ONE) == 2 && pick_candidate(&r.s, WEIGHT_ONE + w - 1) == 2, "the second share");
    CHECK(pick_candidate(&r.s, WEIGHT_ONE + w) == 3 && pick_candidate(&r.s, 2 * WEIGHT_ONE + w - 1) == 3,
          "the third share");
    CHECK(share_of(0.5, 10) == 5 && share_of(0.51, 10) == 6 && share_of(1e-9, 10) == 1 && share_of(1, 10) == 10,
          "shares of 10");
    for (int i = 0; i < 1000; i++) {
        uint64_t n = test_random() >> test_below(64), high = 0;
        r.s.random = test_random();
        uint64_t random = random_next(&r.s);
        for (uint32_t bit = 0; bit < 64; bit++)   /* the upper half of the product, by hand */
            if (random >> (63 - bit) & 1) high += n >> bit >> 1;
        r.s.random -= 0x9e3779b97f4a7c15u;
        uint64_t got = random_below(&r.s, n);
        CHECK(n == 0 || got < n, "%llu is not below %llu", (unsigned long long)got, (unsigned long long)n);
        CHECK(got >= high && got - high <= 63, "%llu of %llu", (unsigned long long)got, (unsigned long long)n);
    }
    r.s.random = 0;
    uint64_t one = random_next(&r.s);
    r.s.random = 0;
    CHECK(random_below(&r.s, UINT64_MAX) == one - (one != 0), "the largest product");
    rig_close(&r);
}

static void test_large_vocabulary(void) {
    nova_error error;
    sampler    s;
    nova_sampler set = settings(1, 0, 0, 0, 0);
    memset(&s, 0, sizeof s);
    s.n_vocab = MOST_VOCAB + 1;
    CHECK(sampler_set(&s, &set, &error) == NOVA_ERROR_UNSUPPORTED, "a vocabulary whose weights could overflow");
}

static void test_speed(void) {
    uint32_t n = 151936;
    float   *logits = (float *)malloc(n * sizeof *logits);
    uint64_t best = UINT64_MAX;
    rig      r;
    if (!logits) exit(2);
    for (uint32_t i = 0; i < n; i++) logits[i] = (float)(2.5 * normal());
    for (int i = 0; i < 50; i++) logits[test_below(n)] = (float)(15 + 3 * normal());
    rig_open(&r, n, settings(0.8f, 0, 0.95f, 0, 1));
    for (int i = 0; i < 20; i++) {
        uint64_t t = clock_ns();
        pick_one(&r, logits, NULL, 0);
        t = clock_ns() - t;
        best = t < best ? t : best;
    }
    printf("temperature and top_p of %u tokens: %.0f us\n", n, (double)best * 1e-3);
    rig_close(&r);
    free(logits);
}

int main(void) {
    test_begin(1);
    float_mode mode = float_mode_enter();
    test_weights();
    test_shares();
    test_greedy();
    test_distributions();
    test_random_settings();
    test_same_everywhere();
    test_random_use();
    test_ties();
    test_bad_logits();
    test_bad_settings();
    test_edges();
    test_penalty();
    test_large_vocabulary();
    test_speed();
    float_mode_leave(mode);
    return test_end();
}
