/* The CPU's attention, every level that this machine has, against a plain softmax attention in double precision. */
#define NOVA_TEST_STAYS   /* -ffast-math is not for the expected values either */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

static const char *const level_texts[CPU_LEVELS] = { "plain", "avx2", "avx512" };

#define MOST_PAGES   4
#define MOST_QUERIES 70
#define MOST_DIM     1024
#define GUARD        64
#define GUARD_BYTE   0xa5

static float from_bits(uint32_t bits) { return load_f32(&bits); }
static bool  is_nan(float x) { return (load_u32(&x) & 0x7fffffffu) > 0x7f800000u; }
static bool  is_finite(float x) { return (load_u32(&x) & 0x7f800000u) != 0x7f800000u; }

#if defined(__SANITIZE_ADDRESS__)
#define POISONED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define POISONED 1
#endif
#endif
#ifdef POISONED
#include <sanitizer/asan_interface.h>
#endif

/* Memory aligned to 64 with sentinels on both sides; where addresses are watched, even reading them is an error. */
typedef struct area {
    uint8_t *block, *p;
    size_t   n;
} area;

static area area_take(size_t n) {
    area a;
    a.block = (uint8_t *)malloc(n + 3 * GUARD);
    if (!a.block) exit(2);
    a.p = (uint8_t *)(((uintptr_t)a.block + GUARD + 63) & ~(uintptr_t)63);
    a.n = n;
    memset(a.block, GUARD_BYTE, n + 3 * GUARD);
#ifdef POISONED
    ASAN_POISON_MEMORY_REGION(a.block, (size_t)(a.p - a.block));
    ASAN_POISON_MEMORY_REGION(a.p + n, (size_t)(a.block + n + 3 * GUARD - (a.p + n)));
#endif
    return a;
}

static bool area_whole(const area *a) {
#ifdef POISONED
    (void)a;
#else
    for (int i = 1; i <= 32; i++)
        if (a->p[-i] != GUARD_BYTE || a->p[a->n + (size_t)i - 1] != GUARD_BYTE) return false;
#endif
    return true;
}

/* ---- A problem: pages with tokens in them, queries, what they see ---- */

typedef struct problem {
    attend_shape shape;
    uint32_t     n_q, n_pages;
    area         k, v, q;                       /* pages; queries */
    float       *tokens_k, *tokens_v;           /* the same as floats, as the cache rounded them */
    uint32_t     first[MOST_PAGES][MOST_QUERIES], last[MOST_PAGES][MOST_QUERIES];
    bool         sink;
    float        sink_score;
} problem;

static float *floats(size_t n) {
    float *p = (float *)malloc((n ? n : 1) * sizeof *p);
    if (!p) exit(2);
    return p;
}

/* What a page holds for a token, read by the layout that cpu_page.h tells. */
static float held_k(uint32_t type, const uint8_t *page, uint32_t n, uint32_t t, uint32_t d) {
    size_t at = (size_t)d * KV_PAGE + t, scale = (size_t)(d / 32) * KV_PAGE + t;
    if (type == TYPE_F32) return load_f32(page + 4 * at);
    if (type == TYPE_F16) return half_to_float(load_u16(page + 2 * at));
    if (type == TYPE_Q8_0) return half_to_float(load_u16(page + (size_t)n * 64 + 2 * scale)) * (float)(int8_t)page[at];
    int byte = page[(size_t)d * 32 + t % 32];
    return half_to_float(load_u16(page + (size_t)n * 32 + 2 * scale)) * (float)((t < 32 ? byte & 15 : byte >> 4) - 8);
}

static float held_v(uint32_t type, const uint8_t *page, uint32_t n, uint32_t t, uint32_t d) {
    size_t at = (size_t)t * n + d, blocks = (n + 31) / 32, block = t * blocks + d / 32, j = d % 32;
    if (type == TYPE_F32) return load_f32(page + 4 * at);
    if (type == TYPE_F16) return half_to_float(load_u16(page + 2 * at));
    if (type == TYPE_Q8_0) return half_to_float(load_u16(page + 64 * blocks * 32 + 2 * block)) * (float)(int8_t)page[32 * block + j];
    int byte = page[16 * block + j % 16];
    return half_to_float(load_u16(page + 64 * blocks * 16 + 2 * block)) * (float)((j < 16 ? byte & 15 : byte >> 4) - 8);
}

/* Every byte of a page that no token was stored into is a NaN, as a half and as a float. */
static void problem_open(problem *p, attend_shape shape, uint32_t n_q, uint32_t n_pages) {
    memset(p, 0, sizeof *p);
    p->shape   = shape;
    p->n_q     = n_q;
    p->n_pages = n_pages;
    p->k = area_take(n_pages * attend_k_page_bytes(&shape));
    p->v = area_take(n_pages * attend_v_page_bytes(&shape));
    p->q = area_take(n_q * shape.head_dim_k * sizeof(float));
    memset(p->k.p, 0xff, p->k.n);
    memset(p->v.p, 0xff, p->v.n);
    p->tokens_k = floats((size_t)n_pages * KV_PAGE * shape.head_dim_k);
    p->tokens_v = floats((size_t)n_pages * KV_PAGE * shape.head_dim_v);
}

static void problem_close(problem *p) {
    free(p->k.block);
    free(p->v.block);
    free(p->q.block);
    free(p->tokens_k);
    free(p->tokens_v);
}

static uint8_t *k_page(const problem *p, uint32_t page) { return p->k.p + page * attend_k_page_bytes(&p->shape); }
static uint8_t *v_page(const problem *p, uint32_t page) { return p->v.p + page * attend_v_page_bytes(&p->shape); }

static void put_token(cpu_level level, problem *p, uint32_t page, uint32_t t, float size) {
    float k[MOST_DIM], v[MOST_DIM];
    for (uint32_t d = 0; d < p->shape.head_dim_k; d++) k[d] = test_uniform() * size;
    for (uint32_t d = 0; d < p->shape.head_dim_v; d++) v[d] = test_uniform();
    attend_store(level, &p->shape, k_page(p, page), v_page(p, page), t, k, v);
    for (uint32_t d = 0; d < p->shape.head_dim_k; d++)
        p->tokens_k[(size_t)(page * KV_PAGE + t) * p->shape.head_dim_k + d] = held_k(p->shape.type_k, k_page(p, page), p->shape.head_dim_k, t, d);
    for (uint32_t d = 0; d < p->shape.head_dim_v; d++)
        p->tokens_v[(size_t)(page * KV_PAGE + t) * p->shape.head_dim_v + d] = held_v(p->shape.type_v, v_page(p, page), p->shape.head_dim_v, t, d);
}

static const float *query(const problem *p, uint32_t i) {
    return (const float *)(void *)p->q.p + (size_t)i * p->shape.head_dim_k;
}

static void put_queries(problem *p, float size) {
    for (uint32_t i = 0; i < p->n_q * p->shape.head_dim_k; i++) ((float *)(void *)p->q.p)[i] = test_uniform() * size;
}

/* A causal edge: query i stands at position from + i / n_rep. Or ranges at random, many of them empty. */
static void put_ranges(problem *p, bool causal) {
    uint32_t n_rep = 1 + test_below(4), from = test_below(p->n_pages * KV_PAGE);
    uint32_t start = test_below(3) ? 0 : test_below(from + 1);
    for (uint32_t page = 0; page < p->n_pages; page++)
        for (uint32_t i = 0; i < p->n_q; i++) {
            uint32_t a = test_below(KV_PAGE + 1), b = test_below(KV_PAGE + 1);
            uint32_t base = page * KV_PAGE, end = from + i / n_rep + 1;
            if (causal) {
                a = start <= base ? 0 : start - base;
                b = end <= base ? 0 : (uint32_t)size_min(end - base, KV_PAGE);
            }
            p->first[page][i] = a;
            p->last[page][i]  = b;
        }
}

/* Stores every token that some query sees. */
static void put_tokens(cpu_level level, problem *p, float size) {
    for (uint32_t page = 0; page < p->n_pages; page++)
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            bool seen = false;
            for (uint32_t i = 0; i < p->n_q; i++) seen |= p->first[page][i] <= t && t < p->last[page][i];
            if (seen) put_token(level, p, page, t, size);
        }
}

/* ---- The expected result ---- */

static double score_exact(const problem *p, uint32_t i, uint32_t token, double *rounding) {
    double sum = 0, size = 0;
    for (uint32_t d = 0; d < p->shape.head_dim_k; d++) {
        double product = (double)query(p, i)[d] * (double)p->tokens_k[(size_t)token * p->shape.head_dim_k + d];
        sum += product;
        size += fabs(product);
    }
    double scale = (double)p->shape.scale, cap = (double)p->shape.soft_cap;
    /* A chain of n multiply-adds is off by a few of these at random, and never by n. */
    *rounding = (size + fabs(sum)) * scale * 6e-8 * (4 + sqrt((double)p->shape.head_dim_k));
    return cap != 0 ? cap * tanh(sum * scale / cap) : sum * scale;
}

/* out, and how far a result in floats may be from it. */
static void attend_exact(const problem *p, uint32_t i, double *out, double *allowed) {
    static double score[MOST_PAGES * KV_PAGE];
    static bool   seen[MOST_PAGES * KV_PAGE];
    double max = p->sink ? (double)p->sink_score : -INFINITY, sum = 0, rounding = 0;
    for (uint32_t t = 0; t < p->n_pages * KV_PAGE; t++) {
        double off = 0;
        seen[t] = p->first[t / KV_PAGE][i] <= t % KV_PAGE && t % KV_PAGE < p->last[t / KV_PAGE][i];
        if (!seen[t]) continue;
        score[t] = score_exact(p, i, t, &off);
        if (score[t] > max) max = score[t];
        if (off > rounding) rounding = off;
    }
    for (uint32_t d = 0; d < p->shape.head_dim_v; d++) out[d] = 0;
    if (p->sink) sum += exp((double)p->sink_score - max);
    for (uint32_t t = 0; t < p->n_pages * KV_PAGE; t++) {
        if (!seen[t]) continue;
        const float *v = p->tokens_v + (size_t)t * p->shape.head_dim_v;
        double       w = exp(score[t] - max);
        sum += w;
        for (uint32_t d = 0; d < p->shape.head_dim_v; d++) out[d] += w * (double)v[d];
    }
    for (uint32_t d = 0; d < p->shape.head_dim_v; d++) out[d] = sum > 0 ? out[d] / sum : 0;
    *allowed = 2e-6 + 4 * rounding;
}

/* ---- Running it ---- */

/* Queries begin .. end together; results to out + i * head_dim_v. */
static void run(cpu_level level, const problem *p, uint32_t begin, uint32_t end, float *out) {
    const float  *q[MOST_QUERIES];
    attend_state  states[MOST_QUERIES];
    uint32_t      n = end - begin, dim = p->shape.head_dim_v;
    size_t        bytes = attend_scratch_bytes(&p->shape, n);
    area          scratch = area_take(bytes), acc = area_take(n * dim * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        q[i] = query(p, begin + i);
        attend_begin(&states[i], (float *)(void *)acc.p + (size_t)i * dim, dim);
    }
    for (uint32_t page = 0; page < p->n_pages; page++) {
        if (page == p->n_pages / 2 && p->sink)
            for (uint32_t i = 0; i < n; i++) attend_sink(&states[i], p->sink_score, dim);
        attend_page(level, &p->shape, n, q, states, p->first[page] + begin, p->last[page] + begin, k_page(p, page),
                    v_page(p, page), scratch.p);
    }
    for (uint32_t i = 0; i < n; i++) attend_end(&states[i], out + (size_t)(begin + i) * dim, dim);
    CHECK(area_whole(&scratch) && area_whole(&acc), "%s: wrote outside of scratch or acc", level_texts[level]);
    free(scratch.block);
    free(acc.block);
}

/* The same queries one by one, or in pieces of random sizes: the same bits. */
static void check_grouping(cpu_level level, const problem *p, const float *together) {
    size_t n = (size_t)p->n_q * p->shape.head_dim_v;
    float *apart = floats(n);
    bool   single = test_below(2) != 0;
    for (uint32_t at = 0; at < p->n_q;) {
        uint32_t some = single ? 1 : 1 + test_below(p->n_q - at);
        run(level, p, at, at + some, apart);
        at += some;
    }
    CHECK(n == 0 || memcmp(apart, together, n * sizeof *apart) == 0,
          "%s: %u queries of %u/%u are others apart than together",
          level_texts[level], p->n_q, p->shape.head_dim_k, p->shape.head_dim_v);
    free(apart);
}

/* Other things in what a query does not see: the same bits. The slots no query sees are NaNs already. */
static void check_unseen(cpu_level level, problem *p, const float *before) {
    static const uint32_t odd[] = { 0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f7fffffu };
    uint32_t i = test_below(p->n_q), dim = p->shape.head_dim_v;
    float   *out = floats((size_t)p->n_q * dim), k[MOST_DIM], v[MOST_DIM];
    for (uint32_t page = 0; page < p->n_pages; page++)
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            if (p->first[page][i] <= t && t < p->last[page][i]) continue;
            for (uint32_t d = 0; d < MOST_DIM; d++) k[d] = v[d] = from_bits(odd[test_below(4)]);
            attend_store(level, &p->shape, k_page(p, page), v_page(p, page), t, k, v);
        }
    run(level, p, 0, p->n_q, out);
    CHECK(memcmp(out + (size_t)i * dim, before + (size_t)i * dim, dim * sizeof *out) == 0,
          "%s: query %u of %u depends on what it does not see (%u/%u)", level_texts[level], i, p->n_q,
          p->shape.head_dim_k, dim);
    free(out);
}

static void check_problem(cpu_level level, problem *p) {
    uint32_t dim = p->shape.head_dim_v;
    float   *out = floats((size_t)p->n_q * dim);
    double  *exact = (double *)malloc(dim * sizeof *exact);
    if (!exact) exit(2);
    run(level, p, 0, p->n_q, out);
    for (uint32_t i = 0; i < p->n_q; i++) {
        double worst = 0, allowed = 0;
        attend_exact(p, i, exact, &allowed);
        for (uint32_t d = 0; d < dim; d++) {
            double off = is_finite(out[(size_t)i * dim + d]) ? fabs((double)out[(size_t)i * dim + d] - exact[d]) : 1e9;
            if (off > worst) worst = off;
        }
        CHECK(worst <= allowed, "%s: %u/%u types %u %u, query %u of %u, %u pages, cap %g: off by %g, not %g",
              level_texts[level], p->shape.head_dim_k, dim, p->shape.type_k, p->shape.type_v, i, p->n_q, p->n_pages,
              (double)p->shape.soft_cap, worst, allowed);
    }
    CHECK(area_whole(&p->k) && area_whole(&p->v), "%s: wrote outside of a page", level_texts[level]);
    check_grouping(level, p, out);
    check_unseen(level, p, out);
    free(out);
    free(exact);
}

/* ---- Tests ---- */

static attend_shape random_shape(void) {
    static const uint32_t dims[] = { 64, 128, 80, 96, 32, 16, 1, 3, 7, 17, 33, 100, 112, 160, 192, 256, 576 };
    attend_shape s;
    s.head_dim_k = test_below(3) ? dims[test_below(COUNT_OF(dims))] : 1 + test_below(140);
    s.head_dim_v = s.head_dim_k;
    if (test_below(2)) s.head_dim_v = test_below(3) ? dims[test_below(COUNT_OF(dims))] : 1 + test_below(140);
    static const uint32_t types[] = { TYPE_F16, TYPE_F16, TYPE_F32, TYPE_Q8_0, TYPE_Q4_0 };
    s.type_k     = types[test_below(COUNT_OF(types))];
    s.type_v     = types[test_below(COUNT_OF(types))];
    s.scale      = 1.0f / sqrtf((float)s.head_dim_k);
    s.soft_cap   = test_below(3) ? 0 : 1.0f + 49.0f * fabsf(test_uniform());
    return s;
}

static void test_problems(cpu_level level) {
    static const uint32_t counts[] = { 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 23, 24, 25, 31, 49, 64, 70 };
    for (int round = 0; round < 220; round++) {
        problem      p;
        attend_shape s = random_shape();
        uint32_t     n_q = counts[test_below(COUNT_OF(counts))];
        problem_open(&p, s, n_q, 1 + test_below(MOST_PAGES));
        p.sink       = test_below(4) == 0;
        p.sink_score = test_uniform() * 3;
        put_queries(&p, test_below(4) ? 2.0f : 30.0f);
        put_ranges(&p, test_below(3) != 0);
        put_tokens(level, &p, 2.0f);
        check_problem(level, &p);
        problem_close(&p);
    }
}

static void test_largest(cpu_level level) {
    attend_shape s;
    problem      p;
    s.head_dim_k = s.head_dim_v = MOST_DIM;
    s.type_k   = TYPE_F16;
    s.type_v   = TYPE_F32;
    s.scale    = 1.0f / 32;
    s.soft_cap = 0;
    problem_open(&p, s, 13, 2);
    put_queries(&p, 2);
    put_ranges(&p, true);
    put_tokens(level, &p, 2);
    check_problem(level, &p);
    problem_close(&p);
}

/* One query and one dimension with scores as wanted: token t of page 0 has score[t] and the value t + 1. */
static float attend_scores(cpu_level level, const float *score, uint32_t n, float cap, bool sink, float sink_score) {
    attend_shape s;
    problem      p;
    float        one = 1, out = 0;
    memset(&s, 0, sizeof s);
    s.head_dim_k = s.head_dim_v = 1;
    s.type_k = s.type_v = TYPE_F32;
    s.scale    = 1;
    s.soft_cap = cap;
    problem_open(&p, s, 1, 1);
    p.sink       = sink;
    p.sink_score = sink_score;
    memcpy(p.q.p, &one, sizeof one);
    for (uint32_t t = 0; t < n; t++) {
        float v = (float)(t + 1);
        attend_store(level, &s, p.k.p, p.v.p, t, &score[t], &v);
    }
    p.last[0][0] = n;
    run(level, &p, 0, 1, &out);
    problem_close(&p);
    return out;
}

static void test_extremes(cpu_level level) {
    const float inf = from_bits(0x7f800000u), nan = from_bits(0x7fc00000u);
    const float huge[] = { 1e5f, -1e5f, 99999.0f }, largest[] = { -FLT_MAX, FLT_MAX, 0 };
    const float lowest[] = { -inf, -inf, -inf }, low[] = { -3e38f, -3e38f, -inf };
    const float some[] = { -inf, 2, -inf }, above[] = { 1, inf, 2 }, none[] = { 1, nan, 2 };
    const float equal[] = { 1e-40f, 0, -0.0f };
    const char *name = level_texts[level];
    float       e    = expf(-1.0f);
    float got = attend_scores(level, huge, 3, 0, false, 0);
    CHECK(fabsf(got - (1 + 3 * e) / (1 + e)) < 1e-5f, "%s: scores of 1e5: %g", name, (double)got);
    got = attend_scores(level, huge, 3, 10, false, 0);
    CHECK(fabsf(got - 2) < 1e-6f, "%s: capped scores of 1e5: %g", name, (double)got);
    CHECK(attend_scores(level, largest, 3, 0, false, 0) == 2, "%s: scores of FLT_MAX", name);
    CHECK(attend_scores(level, largest, 1, 0, false, 0) == 1, "%s: a score of -FLT_MAX alone", name);
    CHECK(attend_scores(level, low, 3, 0, false, 0) == 1.5f, "%s: scores of -3e38", name);
    CHECK(attend_scores(level, lowest, 3, 0, false, 0) == 0, "%s: nothing but -infinity", name);
    CHECK(attend_scores(level, some, 3, 0, false, 0) == 2, "%s: one above -infinity", name);
    CHECK(attend_scores(level, equal, 3, 0, false, 0) == 2, "%s: equal scores", name);
    CHECK(is_nan(attend_scores(level, above, 3, 0, false, 0)), "%s: a score of infinity must show", name);
    CHECK(is_nan(attend_scores(level, none, 3, 0, false, 0)), "%s: a score that is a NaN must show", name);
    CHECK(is_nan(attend_scores(level, none, 3, 5, false, 0)), "%s: a capped score that is a NaN must show", name);
    CHECK(attend_scores(level, huge, 0, 0, false, 0) == 0, "%s: nothing seen", name);
    CHECK(attend_scores(level, huge, 0, 0, true, 3) == 0, "%s: nothing seen but a sink", name);
    CHECK(attend_scores(level, some, 3, 0, true, -inf) == 2, "%s: a sink of -infinity", name);
    CHECK(attend_scores(level, some, 3, 0, true, 2) == 1, "%s: a sink as heavy as the token", name);
    CHECK(attend_scores(level, some, 3, 0, true, 200) < 1e-30f, "%s: a sink that takes all", name);
}

/* A NaN score in one page must show through any number of later pages; a page of -infinity must not hide others. */
static void test_pages_after(cpu_level level) {
    for (int kind = 0; kind < 2; kind++) {
        attend_shape s = random_shape();
        problem      p;
        float        out[MOST_DIM];
        s.type_k = s.type_v = TYPE_F32;
        s.soft_cap = 0;
        problem_open(&p, s, 1, 3);
        put_queries(&p, 1);
        for (uint32_t page = 0; page < 3; page++) p.last[page][0] = KV_PAGE;
        put_tokens(level, &p, 1);
        float *k = (float *)(void *)k_page(&p, (uint32_t)kind);
        float  bad = from_bits(kind == 0 ? 0x7fc00000u : query(&p, 0)[0] > 0 ? 0xff800000u : 0x7f800000u);
        for (uint32_t t = 0; t < KV_PAGE; t++) k[t] = bad;
        if (kind == 1)
            for (uint32_t d = 1; d < s.head_dim_k; d++)
                for (uint32_t t = 0; t < KV_PAGE; t++) k[d * KV_PAGE + t] = 0;
        run(level, &p, 0, 1, out);
        if (kind == 0) CHECK(is_nan(out[0]), "%s: a NaN vanished", level_texts[level]);
        else {
            float with[MOST_DIM];
            p.last[1][0] = 0;
            memcpy(with, out, sizeof with);
            run(level, &p, 0, 1, out);
            CHECK(memcmp(with, out, s.head_dim_v * sizeof *out) == 0, "%s: a page of -infinity weighs something",
                  level_texts[level]);
        }
        problem_close(&p);
    }
}

/* How far a held number may be from the one that was stored: half a step of its block's scale, and the scale's own rounding. */
static double step_of(uint32_t type, const float *x, uint32_t n, uint32_t d) {
    double top = 0, steps = type == TYPE_Q8_0 ? 127 : 8;
    if (type == TYPE_F32) return 0;
    if (type == TYPE_F16) return fabs((double)x[d]) / 2048 + 3e-8;
    for (uint32_t i = d / 32 * 32; i < n && i < d / 32 * 32 + 32; i++) top = fmax(top, fabs((double)x[i]));
    /* Q4_0 looks for the scale that is best for the block, and reaches to 8 on one side alone */
    return top / steps * (type == TYPE_Q4_0 ? fabs((double)x[d]) > top * 0.8 ? 1.6 : 0.6 : 0.502) + top / 2000 + 3e-8;
}

/* Neighbours that share no byte with the token. */
static bool is_others(uint32_t type, size_t i, size_t token, bool k, uint32_t n) {
    if (type != TYPE_F32 && type != TYPE_F16) return false;   /* looked at by their values below */
    size_t size = type_row_bytes(type, 1);
    return k ? i / size % KV_PAGE != token : i / size / n != token;
}

/* A store among others leaves all that these hold. */
static void test_neighbours(cpu_level level) {
    for (int round = 0; round < 40; round++) {
        attend_shape s = random_shape();
        area         k = area_take(attend_k_page_bytes(&s)), v = area_take(attend_v_page_bytes(&s));
        float        x[MOST_DIM], *before_k = floats((size_t)KV_PAGE * MOST_DIM), *before_v = floats((size_t)KV_PAGE * MOST_DIM);
        uint32_t     again = test_below(KV_PAGE), moved = 0;
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            for (uint32_t d = 0; d < MOST_DIM; d++) x[d] = test_uniform() * 10;
            attend_store(level, &s, k.p, v.p, (t * 37 + 11) % KV_PAGE, x, x);
        }
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            for (uint32_t d = 0; d < s.head_dim_k; d++) before_k[t * MOST_DIM + d] = held_k(s.type_k, k.p, s.head_dim_k, t, d);
            for (uint32_t d = 0; d < s.head_dim_v; d++) before_v[t * MOST_DIM + d] = held_v(s.type_v, v.p, s.head_dim_v, t, d);
        }
        attend_store(level, &s, k.p, v.p, again, x, x);
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            if (t == again) continue;
            for (uint32_t d = 0; d < s.head_dim_k; d++) moved += before_k[t * MOST_DIM + d] != held_k(s.type_k, k.p, s.head_dim_k, t, d);
            for (uint32_t d = 0; d < s.head_dim_v; d++) moved += before_v[t * MOST_DIM + d] != held_v(s.type_v, v.p, s.head_dim_v, t, d);
        }
        CHECK(moved == 0, "%s: a store moved %u numbers of its neighbours", level_texts[level], moved);
        free(before_k);
        free(before_v);
        free(k.block);
        free(v.block);
    }
}

/* Pages as floats: every level the same bits, and the numbers of the layout. */
static void test_floats(cpu_level level) {
    for (int round = 0; round < 40; round++) {
        attend_shape s = random_shape();
        area         k = area_take(attend_k_page_bytes(&s)), v = area_take(attend_v_page_bytes(&s));
        area         fk = area_take((size_t)KV_PAGE * s.head_dim_k * 4), fv = area_take((size_t)KV_PAGE * s.head_dim_v * 4);
        uint32_t     wrong = 0;
        float        x[MOST_DIM];
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            for (uint32_t d = 0; d < MOST_DIM; d++) x[d] = test_uniform() * (t % 7 ? 10.0f : 1e-6f);
            attend_store(level, &s, k.p, v.p, t, x, x);
        }
        const float *ks = page_k_floats(level, s.type_k, k.p, s.head_dim_k, (float *)(void *)fk.p);
        const float *vs = page_v_floats(level, s.type_v, v.p, s.head_dim_v, (float *)(void *)fv.p);
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            for (uint32_t d = 0; d < s.head_dim_k; d++) wrong += ks[(size_t)d * KV_PAGE + t] != held_k(s.type_k, k.p, s.head_dim_k, t, d);
            for (uint32_t d = 0; d < s.head_dim_v; d++) wrong += vs[(size_t)t * s.head_dim_v + d] != held_v(s.type_v, v.p, s.head_dim_v, t, d);
        }
        CHECK(wrong == 0 && area_whole(&k) && area_whole(&v) && area_whole(&fk) && area_whole(&fv), "%s: %u floats of types %u, %u are wrong",
              level_texts[level], wrong, s.type_k, s.type_v);
        free(k.block);
        free(v.block);
        free(fk.block);
        free(fv.block);
    }
}

static void test_store(cpu_level level) {
    for (int round = 0; round < 60; round++) {
        attend_shape s = random_shape();
        area         k = area_take(attend_k_page_bytes(&s)), v = area_take(attend_v_page_bytes(&s));
        uint32_t     t = test_below(KV_PAGE), wrong = 0, touched = 0;
        float        x[MOST_DIM];
        for (uint32_t d = 0; d < MOST_DIM; d++) x[d] = test_uniform() * 100;
        attend_store(level, &s, k.p, v.p, t, x, x);
        for (uint32_t d = 0; d < s.head_dim_k; d++) {
            double off = fabs((double)held_k(s.type_k, k.p, s.head_dim_k, t, d) - (double)x[d]);
            wrong += !(off <= step_of(s.type_k, x, s.head_dim_k, d));
        }
        for (uint32_t d = 0; d < s.head_dim_v; d++) {
            double off = fabs((double)held_v(s.type_v, v.p, s.head_dim_v, t, d) - (double)x[d]);
            wrong += !(off <= step_of(s.type_v, x, s.head_dim_v, d));
        }
        for (size_t i = 0; i < k.n; i++) touched += k.p[i] != GUARD_BYTE && is_others(s.type_k, i, t, true, s.head_dim_k);
        for (size_t i = 0; i < v.n; i++) touched += v.p[i] != GUARD_BYTE && is_others(s.type_v, i, t, false, s.head_dim_v);
        CHECK(wrong == 0 && touched == 0 && area_whole(&k) && area_whole(&v),
              "%s: store of %u/%u: %u wrong, %u others touched",
              level_texts[level], s.head_dim_k, s.head_dim_v, wrong, touched);
        CHECK(k.n % 64 == 0 && v.n % 64 == 0, "page sizes %zu %zu", k.n, v.n);
        free(k.block);
        free(v.block);
    }
}

int main(void) {
    test_begin(1);
    cpu_level  best = cpu_level_of(cpu_features());
    float_mode mode = float_mode_enter();
    for (int l = 0; l < CPU_LEVELS; l++) {
        cpu_level level = (cpu_level)l;
        if (level > best) {
            SKIP("this processor has no %s", level_texts[level]);
            continue;
        }
        test_store(level);
        test_neighbours(level);
        test_floats(level);
        test_extremes(level);
        test_pages_after(level);
        test_largest(level);
        test_problems(level);
    }
    float_mode_leave(mode);
    return test_end();
}
