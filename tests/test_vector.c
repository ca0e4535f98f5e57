/* The CPU's vector functions, every level that this machine has, against long double. */
#define NOVA_TEST_STAYS   /* -ffast-math is not for the expected values either */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

static const char *const level_texts[CPU_LEVELS] = { "plain", "avx2", "avx512" };
static cpu_level best;

#define N_MOST 300
#define GUARD  16
#define SENTINEL 12345.5f

/* A vector at any alignment with sentinels around it. */
typedef struct box {
    float  all[GUARD + N_MOST + 2 * GUARD];
    float *x;
    size_t n;
} box;

static void box_open(box *b, size_t n, size_t shift) {
    for (size_t i = 0; i < COUNT_OF(b->all); i++) b->all[i] = SENTINEL;
    b->x = b->all + GUARD + shift;
    b->n = n;
}

static bool box_whole(const box *b) {
    for (const float *p = b->all; p < b->all + COUNT_OF(b->all); p++)
        if ((p < b->x || p >= b->x + b->n) && *p != SENTINEL) return false;
    return true;
}

static void box_random(box *b, size_t n, size_t shift, float scale) {
    box_open(b, n, shift);
    for (size_t i = 0; i < n; i++) b->x[i] = test_uniform() * scale;
}

static bool same_bits(const float *a, const float *b, size_t n) { return n == 0 || memcmp(a, b, n * sizeof *a) == 0; }

static float from_bits(uint32_t bits) { return load_f32(&bits); }

/* NaN, both infinities: by bits, whatever -ffast-math says. */
static uint32_t bits_of(float x) { return load_u32(&x); }
static bool     is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
static float    infinity(void) { return from_bits(0x7f800000u); }
static float    nan_of(void) { return from_bits(0x7fc00000u); }

/* The distance in units of the exact value's last place. */
static double ulps(float got, long double exact) {
    if (exact > (long double)FLT_MAX * 1.00000003L) return bits_of(got) == 0x7f800000u ? 0 : 1e9;
    if (is_nan(got) || (bits_of(got) & 0x7fffffffu) == 0x7f800000u) return 1e9;
    int e = 0;
    (void)frexpl(exact, &e);
    if (exact == 0 || e < -125) e = -125;
    return (double)fabsl(((long double)got - exact) / ldexpl(1, e - 24));
}

/* ---- Functions of one number ---- */

static void exp_all(cpu_level level, float *y, const float *x, size_t n);
static void tanh_all(cpu_level level, float *y, const float *x, size_t n);

#ifdef NOVA_X86
NOVA_TARGET_AVX2 static void map_avx2(float *y, const float *x, size_t n, bool is_exp) {
    for (size_t i = 0; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i, is_exp ? exp_avx2(_mm256_loadu_ps(x + i)) : tanh_avx2(_mm256_loadu_ps(x + i)));
}
NOVA_TARGET_AVX512 static void map_avx512(float *y, const float *x, size_t n, bool is_exp) {
    for (size_t i = 0; i + 16 <= n; i += 16)
        _mm512_storeu_ps(y + i, is_exp ? exp_avx512(_mm512_loadu_ps(x + i)) : tanh_avx512(_mm512_loadu_ps(x + i)));
}
#endif

static void map(cpu_level level, float *y, const float *x, size_t n, bool is_exp) {
#ifdef NOVA_X86
    if (level == CPU_AVX2) map_avx2(y, x, n, is_exp);
    if (level == CPU_AVX512) map_avx512(y, x, n, is_exp);
#endif
    if (level == CPU_PLAIN)
        for (size_t i = 0; i < n; i++) y[i] = is_exp ? exp_plain(x[i]) : tanh_plain(x[i]);
}

static void exp_all(cpu_level level, float *y, const float *x, size_t n) { map(level, y, x, n, true); }
static void tanh_all(cpu_level level, float *y, const float *x, size_t n) { map(level, y, x, n, false); }

static void silu_all(cpu_level level, float *y, const float *x, size_t n) { vector_act(level, ACT_SILU, y, x, n); }
static void gelu_all(cpu_level level, float *y, const float *x, size_t n) { vector_act(level, ACT_GELU, y, x, n); }
static void gelu_erf_all(cpu_level level, float *y, const float *x, size_t n) {
    vector_act(level, ACT_GELU_ERF, y, x, n);
}

static long double silu_exact(long double x) { return x / (1 + expl(-x)); }
static long double gelu_exact(long double x) {
    return x / (1 + expl(-2 * sqrtl(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x)));
}
static long double gelu_erf_exact(long double x) { return 0.5L * x * erfcl(-x / sqrtl(2)); }

typedef struct function {
    const char *name;
    void      (*fast)(cpu_level, float *, const float *, size_t);
    long double (*exact)(long double);
    double      most;      /* ulps */
    double      per_power; /* and so many more for each power of e by which it is smaller: its exponent's rounding */
} function;

static const function functions[] = {
    { "exp", exp_all, expl, 1.0, 0 },
    { "tanh", tanh_all, tanhl, 1.5, 0 },
    { "silu", silu_all, silu_exact, 3.0, 0 },
    { "gelu", gelu_all, gelu_exact, 4.0, 2.0 },
    { "gelu_erf", gelu_erf_all, gelu_erf_exact, 6.0, 0 },
};

/* Below the smallest normal number a product has the error of a factor that was subnormal. */
static double tail_excused(float got, long double exact, double off) {
    bool tail = fabsl(exact) < (long double)FLT_MIN * 64;
    return tail && fabsl((long double)got - exact) < (long double)FLT_MIN / 16384 ? 0 : off;
}

static void test_function(const function *f, cpu_level level) {
    float  x[1024], y[1024], worst_x = 0;
    double worst = 0;
    size_t n = 0;
    /* Through all floats in odd steps, so that every last digit comes up; fewer where long double is software. */
    const uint64_t step = LDBL_MANT_DIG > 64 ? 40961 : 4093;
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += step) {
        float v = from_bits((uint32_t)bits);
        if ((bits & 0x7f800000u) != 0x7f800000u) x[n++] = v;
        if (n < 1024 && bits + step <= 0xffffffffu) continue;
        while (n < 1024) x[n++] = 0.5f;
        f->fast(level, y, x, n);
        for (size_t i = 0; i < n; i++) {
            long double exact = f->exact((long double)x[i]);
            double      off   = tail_excused(y[i], exact, ulps(y[i], exact));
            if (f->per_power > 0 && x[i] < 0 && exact != 0) off -= f->per_power * log((double)(x[i] / exact));
            if (off > worst) worst = off, worst_x = x[i];
        }
        n = 0;
    }
    CHECK(worst <= f->most, "%s %s: %.3f ulp at %.9g", level_texts[level], f->name, worst, (double)worst_x);
    if (getenv("NOVA_VERBOSE"))
        printf("%s %s: %.3f ulp at %.9g\n", level_texts[level], f->name, worst, (double)worst_x);
}

static void test_specials(cpu_level level) {
    float x[16], y[16];
    for (size_t i = 0; i < 16; i++) x[i] = 0;
    x[0] = nan_of(), x[1] = infinity(), x[2] = -infinity(), x[3] = -0.0f, x[4] = from_bits(0xffc00001u);
    x[5] = FLT_MAX, x[6] = -FLT_MAX, x[7] = FLT_MIN / 4, x[8] = 1e-30f;
    exp_all(level, y, x, 16);
    CHECK(is_nan(y[0]) && is_nan(y[4]), "%s: exp(NaN)", level_texts[level]);
    CHECK(bits_of(y[1]) == 0x7f800000u && bits_of(y[5]) == 0x7f800000u, "%s: exp of large ones", level_texts[level]);
    CHECK(bits_of(y[2]) == 0 && bits_of(y[6]) == 0 && y[3] == 1 && y[8] == 1, "%s: exp of small ones",
          level_texts[level]);
    tanh_all(level, y, x, 16);
    CHECK(is_nan(y[0]) && is_nan(y[4]), "%s: tanh(NaN)", level_texts[level]);
    CHECK(y[1] == 1 && y[2] == -1 && y[5] == 1 && y[6] == -1, "%s: tanh of large ones", level_texts[level]);
    CHECK(bits_of(y[3]) == 0x80000000u && y[7] == x[7] && y[8] == x[8], "%s: tanh of small ones", level_texts[level]);
    static const activation acts[] = { ACT_NONE, ACT_SILU, ACT_GELU, ACT_GELU_ERF, ACT_RELU, ACT_RELU_SQR };
    for (size_t k = 0; k < COUNT_OF(acts); k++) {
        vector_act(level, acts[k], y, x, 9);
        CHECK(is_nan(y[0]) && is_nan(y[4]), "%s: activation %d of a NaN", level_texts[level], (int)acts[k]);
        CHECK(bits_of(y[1]) == 0x7f800000u, "%s: activation %d of infinity: %g", level_texts[level], (int)acts[k],
              (double)y[1]);
        if (acts[k] == ACT_NONE) continue;
        CHECK(y[2] == 0 && y[3] == 0 && y[6] == 0, "%s: activation %d: %g %g %g", level_texts[level], (int)acts[k],
              (double)y[2], (double)y[3], (double)y[6]);
        if (acts[k] == ACT_RELU_SQR) continue;
        CHECK(y[5] == FLT_MAX, "%s: activation %d of FLT_MAX: %g", level_texts[level], (int)acts[k], (double)y[5]);
    }
}

/* ---- Vectors ---- */

static size_t random_length(void) { return test_below(3) == 0 ? test_below(N_MOST + 1) : test_below(70); }

static void test_glu(cpu_level level) {
    box a, b, y, z;
    for (int round = 0; round < 400; round++) {
        activation act = (activation)test_below(6);
        size_t     n   = random_length();
        box_random(&a, n, test_below(GUARD), 6);
        box_random(&b, n, test_below(GUARD), 6);
        box_open(&y, n, test_below(GUARD));
        box_open(&z, n, test_below(GUARD));
        vector_glu(level, act, y.x, a.x, b.x, n);
        vector_act(level, act, z.x, a.x, n);
        CHECK(box_whole(&y) && box_whole(&z), "%s: activation %d wrote outside of %zu", level_texts[level], (int)act,
              n);
        bool product = true, close = true;
        for (size_t i = 0; i < n; i++) {
            float plain = act_plain(act, a.x[i]);
            product = product && y.x[i] == z.x[i] * b.x[i];
            close   = close && fabsf(z.x[i] - plain) <= 2e-6f * fabsf(plain) + 1e-9f;
        }
        CHECK(product, "%s: glu %d is not act * up", level_texts[level], (int)act);
        CHECK(close, "%s: activation %d differs from plain", level_texts[level], (int)act);
        vector_glu(level, act, a.x, a.x, b.x, n);
        CHECK(same_bits(a.x, y.x, n), "%s: glu %d in place, or at another alignment", level_texts[level], (int)act);
    }
}

static void test_norms(cpu_level level) {
    box x, w, b, y;
    for (int round = 0; round < 400; round++) {
        norm_kind kind = test_below(2) ? NORM_LAYER : NORM_RMS;
        size_t    n    = 1 + test_below(N_MOST);
        float     eps  = 1e-5f, offset = test_below(4) == 0 ? 1000.0f : 0.0f;
        bool      with_w = test_below(3) != 0, with_b = test_below(2) != 0;
        box_random(&x, n, test_below(GUARD), test_below(3) == 0 ? 1e15f : 1.0f);
        box_random(&w, n, test_below(GUARD), 2);
        box_random(&b, n, test_below(GUARD), 2);
        box_open(&y, n, test_below(GUARD));
        for (size_t i = 0; i < n; i++) x.x[i] += offset;
        vector_norm(level, kind, y.x, x.x, with_w ? w.x : NULL, with_b ? b.x : NULL, n, eps);
        CHECK(box_whole(&y), "%s: norm wrote outside of %zu", level_texts[level], n);
        long double mean = 0, squares = 0;
        for (size_t i = 0; i < n; i++) mean += (long double)x.x[i];
        mean = kind == NORM_LAYER ? mean / (long double)n : 0;
        for (size_t i = 0; i < n; i++) squares += ((long double)x.x[i] - mean) * ((long double)x.x[i] - mean);
        long double scale = 1 / sqrtl(squares / (long double)n + (long double)eps), worst = 0;
        for (size_t i = 0; i < n; i++) {
            long double v = ((long double)x.x[i] - mean) * scale * (with_w ? (long double)w.x[i] : 1);
            long double e = v + (with_b ? (long double)b.x[i] : 0);
            long double off = fabsl((long double)y.x[i] - e) / (fabsl(v) + fabsl(e) + 1e-12L);
            if (off > worst) worst = off;
        }
        CHECK(worst < 2.5e-7L, "%s: norm %d of %zu: off by %Lg", level_texts[level], (int)kind, n, worst);
        vector_norm(level, kind, x.x, x.x, with_w ? w.x : NULL, with_b ? b.x : NULL, n, eps);
        CHECK(same_bits(x.x, y.x, n), "%s: norm in place, or at another alignment", level_texts[level]);
    }
}

/* A sum in floats, one after the other, would be off by 1e-4 here. */
static void test_long_norm(cpu_level level) {
    size_t n = 1u << 18;
    float *x = (float *)malloc(n * sizeof *x);
    if (!x) exit(2);
    long double squares = 0;
    for (size_t i = 0; i < n; i++) {
        x[i] = 1 + test_uniform() * 0.001f;
        squares += (long double)x[i] * (long double)x[i];
    }
    float first = x[0];
    vector_norm(level, NORM_RMS, x, x, NULL, NULL, n, 0);
    long double exact = (long double)first / sqrtl(squares / (long double)n);
    CHECK(ulps(x[0], exact) <= 1, "%s: long norm: %.9g, not %.9Lg", level_texts[level], (double)x[0], exact);
    free(x);
}

static void test_sums(cpu_level level) {
    box a, b, c;
    for (int round = 0; round < 400; round++) {
        size_t n = random_length();
        float  s = test_uniform();
        box_random(&a, n, test_below(GUARD), 1);
        box_random(&b, n, test_below(GUARD), 1);
        c = a, c.x = c.all + (a.x - a.all);
        long double dot = 0, size = 0;
        for (size_t i = 0; i < n; i++) {
            dot += (long double)a.x[i] * (long double)b.x[i];
            size += fabsl((long double)a.x[i] * (long double)b.x[i]);
        }
        float got = vector_dot(level, a.x, b.x, n);
        CHECK(fabsl((long double)got - dot) <= 5e-7L * size, "%s: dot of %zu: %g, not %Lg", level_texts[level], n,
              (double)got, dot);
        vector_add(level, a.x, b.x, n);
        bool sum = true, scaled = true;
        for (size_t i = 0; i < n; i++) sum = sum && a.x[i] == c.x[i] + b.x[i];
        CHECK(sum && box_whole(&a), "%s: add of %zu", level_texts[level], n);
        vector_scale(level, c.x, s, n);
        for (size_t i = 0; i < n; i++) scaled = scaled && fabsf(c.x[i] - (a.x[i] - b.x[i]) * s) <= 1e-6f;
        CHECK(scaled && box_whole(&c), "%s: scale of %zu", level_texts[level], n);
    }
}

static void test_softmax(cpu_level level) {
    box x, y;
    for (int round = 0; round < 300; round++) {
        size_t n = 1 + random_length() % N_MOST;
        box_random(&x, n, test_below(GUARD), test_below(3) == 0 ? 1e5f : 10.0f);
        if (test_below(3) == 0) x.x[test_below((uint32_t)n)] = -infinity();
        box_open(&y, n, test_below(GUARD));
        memcpy(y.x, x.x, n * sizeof(float));
        vector_softmax(level, y.x, n);
        long double max = -INFINITY, sum = 0, worst = 0;
        for (size_t i = 0; i < n; i++) max = (long double)x.x[i] > max ? (long double)x.x[i] : max;
        if (bits_of((float)max) == 0xff800000u) {
            CHECK(y.x[0] == 0, "%s: softmax of -infinity alone", level_texts[level]);
            continue;
        }
        for (size_t i = 0; i < n; i++) sum += expl((long double)x.x[i] - max);
        for (size_t i = 0; i < n; i++) {
            /* x - max is rounded to a float first */
            long double below = max - (long double)x.x[i], e = expl(-below) / sum;
            long double off   = fabsl((long double)y.x[i] - e) / (e * (1 + 0.3L * below) + 1e-37L);
            if (bits_of(x.x[i]) == 0xff800000u) off = (long double)y.x[i];
            if (off > worst) worst = off;
        }
        CHECK(worst < 4e-7L && box_whole(&y), "%s: softmax of %zu: off by %Lg", level_texts[level], n, worst);
    }
    float bad[20];
    for (size_t i = 0; i < 20; i++) bad[i] = (float)i;
    bad[17] = nan_of();
    vector_softmax(level, bad, 20);
    CHECK(is_nan(bad[0]) && is_nan(bad[19]), "%s: a NaN must not vanish in a softmax", level_texts[level]);
}

static void test_search(cpu_level level) {
    static const uint32_t odd[] = { 0, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffc00001u, 0x7f800001u,
                                    0xffffffffu, 0x00000001u, 0x80000001u, 0x7f7fffffu, 0xff7fffffu };
    box x;
    for (int round = 0; round < 4000; round++) {
        size_t n = random_length(), at = SIZE_MAX, expected = SIZE_MAX;
        bool   finite = true, some = false;
        int    kind = (int)test_below(3);
        box_random(&x, n, test_below(GUARD), 3);
        for (size_t i = 0; i < n; i++) {
            if (kind == 1) x.x[i] = (float)(int)x.x[i];
            if (kind == 2 && test_below(4) != 0) x.x[i] = from_bits(odd[test_below(round % 2 ? 12 : 8)]);
            if ((bits_of(x.x[i]) & 0x7f800000u) == 0x7f800000u) finite = false;
            if (is_nan(x.x[i]) || (some && !(x.x[i] > x.x[expected]))) continue;
            some     = true;
            expected = i;
        }
        bool found = vector_argmax(level, x.x, n, &at);
        CHECK(found == some && at == expected, "%s: argmax of %zu: %d %zu, not %d %zu", level_texts[level], n, found,
              at, some, expected);
        CHECK(vector_finite(level, x.x, n) == finite, "%s: finite of %zu", level_texts[level], n);
    }
    float x1[1] = { nan_of() };
    size_t at = 7;
    CHECK(!vector_argmax(level, x1, 1, &at) && !vector_argmax(level, x1, 0, &at) && at == 7, "%s: argmax of nothing",
          level_texts[level]);
}

static bool same_half(uint16_t a, uint16_t b) {
    bool both_nan = (a & 0x7fff) > 0x7c00 && (b & 0x7fff) > 0x7c00;   /* whose payloads may differ */
    return both_nan ? (a & 0x8000) == (b & 0x8000) : a == b;
}

static void test_halves(cpu_level level) {
    static uint16_t h[65536 + 5], back[65536 + 5];
    static float    f[65536 + 5];
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    vector_float_from_half(level, f, h, 65536);
    for (uint32_t i = 0; i < 65536; i++) {
        float e = half_to_float(h[i]);
        wrong += is_nan(e) ? !is_nan(f[i]) : bits_of(e) != bits_of(f[i]);
    }
    CHECK(wrong == 0, "%s: halves to floats: %u wrong", level_texts[level], wrong);
    for (int round = 0; round < 20; round++) {
        uint32_t shift = test_below(4), n = 65521 + test_below(8);
        for (uint32_t i = 0; i < n; i++) {
            /* all kinds of exponents around those of a half, and middles */
            uint32_t bits = (uint32_t)test_random();
            if (i % 3) bits = (bits & 0x80007fffu) | (95 + bits % 60) << 23 | ((bits >> 8) & 0x7f0000u);
            if (i % 3 == 2) bits &= 0xfffff000u;
            f[i + shift] = from_bits(bits);
        }
        back[n + shift] = 0x1234;
        vector_half_from_float(level, back + shift, f + shift, n);
        wrong = 0;
        for (uint32_t i = 0; i < n; i++) wrong += !same_half(back[i + shift], float_to_half(f[i + shift]));
        CHECK(wrong == 0 && back[n + shift] == 0x1234, "%s: floats to halves: %u wrong", level_texts[level], wrong);
    }
}

static void test_rope(cpu_level level) {
    box x, y;
    for (int round = 0; round < 400; round++) {
        uint32_t n = test_below(N_MOST + 1), n_rot = test_below(n / 2 + 1) * 2, half = n_rot / 2;
        bool     neox = test_below(2) != 0;
        float    turn[N_MOST];
        for (uint32_t i = 0; i < half; i++) {
            double angle = (double)test_uniform() * 100;
            turn[2 * i] = (float)cos(angle), turn[2 * i + 1] = (float)sin(angle);
        }
        box_random(&x, n, test_below(GUARD), 1);
        box_open(&y, n, test_below(GUARD));
        memcpy(y.x, x.x, n * sizeof(float));
        vector_rope(level, y.x, turn, n_rot, neox);
        bool right = box_whole(&y) && same_bits(y.x + n_rot, x.x + n_rot, n - n_rot);
        for (uint32_t i = 0; i < half; i++) {
            uint32_t a = neox ? i : 2 * i, b = neox ? i + half : 2 * i + 1;
            double   c = (double)turn[2 * i], s = (double)turn[2 * i + 1], u = (double)x.x[a], v = (double)x.x[b];
            right = right && fabs((double)y.x[a] - (u * c - v * s)) <= 2e-7
                && fabs((double)y.x[b] - (u * s + v * c)) <= 2e-7;
        }
        CHECK(right, "%s: rope of %u in %u, neox %d", level_texts[level], n_rot, n, neox);
    }
}

int main(void) {
    test_begin(1);
    best = cpu_level_of(cpu_features());
    float_mode mode = float_mode_enter();
    for (int l = 0; l < CPU_LEVELS; l++) {
        cpu_level level = (cpu_level)l;
        if (level > best) {
            SKIP("this processor has no %s", level_texts[level]);
            continue;
        }
        for (size_t i = 0; i < COUNT_OF(functions); i++) test_function(&functions[i], level);
        test_specials(level);
        test_glu(level);
        test_norms(level);
        test_long_norm(level);
        test_sums(level);
        test_softmax(level);
        test_search(level);
        test_halves(level);
        test_rope(level);
    }
    float_mode_leave(mode);
    return test_end();
}
