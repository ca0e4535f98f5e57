/* Matmul for few columns, and activations as int8: every type on every level that this processor has, against sums in
 * double of exactly dequantised weights times the quantised activations. */
#define NOVA_TEST_STAYS   /* -ffast-math is not for the expected values either */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

static const char *const names_of_levels[CPU_LEVELS] = { "plain", "avx2", "avx512" };
static cpu_level best_level;

/* By bits, so that -ffast-math does not take these checks for constants. */
static bool finite_bits(float f) { return (load_u32(&f) & 0x7f800000u) != 0x7f800000u; }
static bool nan_bits(float f) { return (load_u32(&f) & 0x7fffffffu) > 0x7f800000u; }

static void *checked_malloc(size_t n) {
    void *p = malloc(n ? n : 1);
    if (!p) exit(2);
    return p;
}

/* aligned to 64 */
typedef struct area { void *whole; uint8_t *p; } area;
static area area_new(size_t n) {
    area a;
    a.whole = checked_malloc(n + 64);
    a.p     = (uint8_t *)(((uintptr_t)a.whole + 63) & ~(uintptr_t)63);
    return a;
}

/* ---- A matrix with sane scales, in a buffer that ends where its last row ends ---- */

typedef struct matrix { weight w; uint8_t *buffer; } matrix;

/* Offsets of a block's halves, -1: none. */
static void scales_of(uint32_t type, int at[2]) {
    at[0] = type == TYPE_F32 || type == TYPE_BF16 ? -1 : type == TYPE_Q6_K ? 208 : 0;
    at[1] = type == TYPE_Q4_1 || type == TYPE_Q5_1 || type == TYPE_Q4_K || type == TYPE_Q5_K ? 2 : -1;
}

/* `garbage`: random bits everywhere, so that scales are infinities and NaN here and there. */
static matrix matrix_new(uint32_t type, uint32_t n_in, uint32_t n_out, size_t row_gap, size_t misalign, bool garbage) {
    const type_layout *info = type_of(type);
    size_t row_length = type_row_bytes(type, n_in), size;
    matrix m;
    m.w.type      = type;
    m.w.n_in      = n_in;
    m.w.n_out     = n_out;
    m.w.row_bytes = row_length + row_gap;
    size          = misalign + (n_out - 1) * m.w.row_bytes + row_length;
    m.buffer      = (uint8_t *)checked_malloc(size);
    m.w.data      = m.buffer + misalign;
    for (size_t i = 0; i < size; i++) m.buffer[i] = (uint8_t)test_random();
    if (garbage) return m;
    int at[2];
    scales_of(type, at);
    for (uint32_t r = 0; r < n_out; r++)
        for (size_t b = 0; b < n_in / info->block_weights; b++) {
            uint8_t *p = m.buffer + misalign + r * m.w.row_bytes + b * info->block_bytes;
            float    f = test_uniform();
            if (type == TYPE_F32) memcpy(p, &f, 4);
            if (type == TYPE_BF16) memcpy(p, (uint8_t *)&f + 2, 2);
            for (int k = 0; k < 2; k++) {
                uint16_t h = float_to_half(0.01f * test_uniform());
                if (at[k] >= 0) memcpy(p + at[k], &h, 2);
            }
        }
    return m;
}

/* ---- What is expected ---- */

static float *activations_new(size_t n) {
    float *x = (float *)checked_malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = test_uniform() * (test_below(16) ? 1.0f : 20.0f);
    return x;
}

/* The activations that a type sees. */
static double *seen_new(uint32_t type, const float *x, size_t n) {
    double *seen = (double *)checked_malloc(n * sizeof *seen);
    for (size_t i = 0; i < n; i++) seen[i] = (double)x[i];
    if (narrow_form(type) == FORM_FLOAT) return seen;
    int8_t *q = (int8_t *)checked_malloc(n);
    float  *d = (float *)checked_malloc(n / 32 * sizeof *d);
    input_quantise(CPU_PLAIN, x, n, q, d);
    for (size_t i = 0; i < n; i++) seen[i] = (double)d[i / 32] * q[i];
    free(q);
    free(d);
    return seen;
}

/* The sum, and the sum of magnitudes that float rounding is measured against: each activation times the largest weight
 * of its 32, because codes are summed before what a format subtracts from them is. */
static void expected(const weight *w, uint32_t row, const double *seen, double *sum, double *bound) {
    float *floats = (float *)checked_malloc(w->n_in * sizeof *floats);
    type_of(w->type)->to_float(w->data + row * w->row_bytes, floats, w->n_in);
    *sum = *bound = 0;
    for (size_t i = 0; i < w->n_in; i += 32) {
        size_t n       = size_min(32, w->n_in - i);
        double largest = 0;
        for (size_t k = 0; k < n; k++) {
            *sum += (double)floats[i + k] * seen[i + k];
            if (fabs((double)floats[i + k]) > largest) largest = fabs((double)floats[i + k]);
        }
        for (size_t k = 0; k < n; k++) *bound += largest * fabs(seen[i + k]);
    }
    free(floats);
}

/* ---- Running ---- */

typedef struct columns { area a[NARROW_MAX]; const void *in[NARROW_MAX]; } columns;

static columns columns_new(cpu_level level, uint32_t type, float *const *x, uint32_t n_col, size_t n_in) {
    columns  c;
    uint32_t form = narrow_form(type);
    memset(&c, 0, sizeof c);
    for (uint32_t i = 0; i < n_col; i++) {
        c.a[i]  = area_new(narrow_input_bytes(form, n_in));
        c.in[i] = c.a[i].p;
        narrow_prepare(level, form, x[i], n_in, 0, n_in, c.a[i].p);
    }
    return c;
}

static void columns_free(columns *c) {
    for (int i = 0; i < NARROW_MAX; i++) free(c->a[i].whole);
}

#define SENTINEL 12345.678f

/* Result of all rows, [n_col][n_out], computed by rows row_begin..row_end and checked for writes elsewhere. */
static float *run(cpu_level level, const weight *w, const columns *in, uint32_t n_col, uint32_t row_begin,
                  uint32_t row_end) {
    size_t ld = w->n_out + 3, n = n_col * ld + 2;
    float *out    = (float *)checked_malloc(n * sizeof *out);
    float *result = (float *)checked_malloc(n_col * w->n_out * sizeof *out);
    bool   clean = true;
    for (size_t i = 0; i < n; i++) out[i] = SENTINEL;
    narrow_matmul(level, w, in->in, n_col, row_begin, row_end, out + 1, ld);
    for (size_t i = 0; i < n; i++) {
        size_t r = i == 0 ? w->n_out : (i - 1) % ld;
        bool   ours = r >= row_begin && r < row_end && i <= n_col * ld;
        if (!ours && out[i] != SENTINEL) clean = false;
    }
    CHECK(clean, "%s %s: wrote outside of rows %u..%u of %u", type_of(w->type)->name, names_of_levels[level], row_begin,
          row_end, w->n_out);
    for (uint32_t c = 0; c < n_col; c++) memcpy(result + c * w->n_out, out + 1 + c * ld, w->n_out * sizeof *out);
    free(out);
    return result;
}

static double worst[CPU_LEVELS];   /* error in units of bound * 2^-24, over the whole test */

/* One shape on one level: each column against the double sum; the columns by 1, 2, ... 8 and the rows in two parts
 * bit-identical to that. */
static void check_shape(cpu_level level, const matrix *m, float *const *x) {
    const weight *w    = &m->w;
    const char   *name = type_of(w->type)->name;
    columns in    = columns_new(level, w->type, x, NARROW_MAX, w->n_in);
    float  *all   = run(level, w, &in, NARROW_MAX, 0, w->n_out);
    double  limit = 4;
    for (uint32_t c = 0; c < NARROW_MAX; c++) {
        double  error = 0, *seen = seen_new(w->type, x[c], w->n_in);
        for (uint32_t r = 0; r < w->n_out; r++) {
            double sum, bound;
            expected(w, r, seen, &sum, &bound);
            double e = fabs((double)all[c * w->n_out + r] - sum) / (bound * ldexp(1, -24) + 1e-30);
            if (!(e <= error)) error = e;
        }
        CHECK(error <= limit, "%s %s %u x %u column %u: error of %g units", name, names_of_levels[level], w->n_out,
              w->n_in, c, error);
        if (error > worst[level]) worst[level] = error;
        free(seen);
    }
    for (uint32_t n = 1; n < NARROW_MAX; n++) {
        float *some = run(level, w, &in, n, 0, w->n_out);
        CHECK(memcmp(some, all, n * w->n_out * sizeof *all) == 0, "%s %s %u x %u: %u columns differ from 8", name,
              names_of_levels[level], w->n_out, w->n_in, n);
        free(some);
    }
    uint32_t cut  = test_below(w->n_out + 1);
    float   *low  = run(level, w, &in, NARROW_MAX, 0, cut);
    float   *high = run(level, w, &in, NARROW_MAX, cut, w->n_out);
    bool     same = true;
    for (uint32_t c = 0; c < NARROW_MAX; c++)
        for (uint32_t r = 0; r < w->n_out; r++)
            same &= memcmp((r < cut ? low : high) + c * w->n_out + r, all + c * w->n_out + r, sizeof *all) == 0;
    CHECK(same, "%s %s: rows cut at %u differ", name, names_of_levels[level], cut);
    free(low);
    free(high);
    free(all);
    columns_free(&in);
}

static const uint32_t all_types[] = {
#define TYPE_NUMBER(name, number, weights, bytes) number,
    TENSOR_TYPES(TYPE_NUMBER)
#undef TYPE_NUMBER
};

static void test_shapes(void) {
    static const uint32_t lengths[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 15, 18, 27, 33, 70, 129 };   /* blocks, or 32s */
    for (size_t t = 0; t < COUNT_OF(all_types); t++)
        for (size_t l = 0; l < COUNT_OF(lengths); l++) {
            uint32_t type = all_types[t], block = type_of(type)->block_weights;
            uint32_t n_in = block == 1 ? lengths[l] * 32 - test_below(32) : lengths[l] * block;
            uint32_t n_out = l == 5 ? 40 : 1 + test_below(9);
            if (n_in > 5000) continue;
            size_t row_gap = 3 * (size_t)test_below(2), misalign = test_below(4);
            matrix m = matrix_new(type, n_in, n_out, row_gap, misalign, false);
            float *x[NARROW_MAX];
            for (int c = 0; c < NARROW_MAX; c++) x[c] = activations_new(n_in);
            for (int level = 0; level <= (int)best_level; level++) check_shape((cpu_level)level, &m, x);
            for (int c = 0; c < NARROW_MAX; c++) free(x[c]);
            free(m.buffer);
        }
    for (int level = 0; level <= (int)best_level; level++)
        printf("%s: largest error %.2f units of 2^-24\n", names_of_levels[level], worst[level]);
}

/* ---- Activations out of the ordinary ---- */

static void test_activations(void) {
    for (size_t t = 0; t < COUNT_OF(all_types); t++)
        for (int level = 0; level <= (int)best_level; level++) {
            uint32_t    type = all_types[t], n_in = type_of(type)->block_weights == 256 ? 768 : 544, n_out = 5;
            const char *name = type_of(type)->name;
            matrix      m    = matrix_new(type, n_in, n_out, 0, 0, false);
            float      *x[NARROW_MAX];
            for (int c = 0; c < NARROW_MAX; c++) x[c] = activations_new(n_in);
            for (uint32_t i = 0; i < n_in; i++) x[0][i] *= 1e5f;
            for (uint32_t i = 0; i < n_in; i++) x[1][i] *= 1e-30f;
            memset(x[2] + 32, 0, 96 * sizeof(float));
            check_shape((cpu_level)level, &m, x);

            columns in     = columns_new((cpu_level)level, type, x, NARROW_MAX, n_in);
            float  *before = run((cpu_level)level, &m.w, &in, NARROW_MAX, 0, n_out);
            columns_free(&in);
            static const float odd[] = { NAN, INFINITY, -INFINITY };
            for (size_t k = 0; k < 3; k++) x[1 + k][test_below(n_in)] = odd[k];
            x[1][n_in - 1] = NAN;                                     /* where groups overlap */
            for (uint32_t i = 0; i < n_in; i++) x[7][i] = 0;
            in = columns_new((cpu_level)level, type, x, NARROW_MAX, n_in);
            float *after = run((cpu_level)level, &m.w, &in, NARROW_MAX, 0, n_out);
            bool   found = true, zero = true, same = true;
            for (uint32_t r = 0; r < n_out; r++) {
                for (uint32_t c = 1; c <= 3; c++) found &= !finite_bits(after[c * n_out + r]);
                zero &= after[7 * n_out + r] == 0;
                same &= after[r] == before[r] && after[5 * n_out + r] == before[5 * n_out + r];
            }
            CHECK(found, "%s %s: a NaN or an infinity got lost", name, names_of_levels[level]);
            CHECK(zero, "%s %s: zeros give no zero", name, names_of_levels[level]);
            CHECK(same, "%s %s: a column depends on its neighbours", name, names_of_levels[level]);
            free(before);
            free(after);
            columns_free(&in);
            for (int c = 0; c < NARROW_MAX; c++) free(x[c]);
            free(m.buffer);
        }
}

/* ---- Weights out of the ordinary ---- */

static void test_garbage(void) {
    for (size_t t = 0; t < COUNT_OF(all_types); t++)
        for (uint32_t round = 0; round < 6; round++) {
            uint32_t type = all_types[t], block = type_of(type)->block_weights, n_out = 24;
            uint32_t n_in = block * (1 + test_below(block == 1 ? 200 : 9));
            matrix   m    = matrix_new(type, n_in, n_out, 0, 0, true);
            float   *x    = activations_new(n_in);
            double  *seen = seen_new(type, x, n_in);
            for (int level = 0; level <= (int)best_level; level++) {
                columns in  = columns_new((cpu_level)level, type, &x, 1, n_in);
                float  *out = run((cpu_level)level, &m.w, &in, 1, 0, n_out);
                for (uint32_t r = 0; r < n_out; r++) {
                    double sum, bound;
                    expected(&m.w, r, seen, &sum, &bound);
                    if (!finite_bits((float)sum))
                        CHECK(!finite_bits(out[r]), "%s %s: %g instead of %g", type_of(type)->name,
                              names_of_levels[level], (double)out[r], sum);
                    else if (bound < 1e37)
                        CHECK(fabs((double)out[r] - sum) <= bound * 4e-6, "%s %s: %g instead of %g",
                              type_of(type)->name, names_of_levels[level], (double)out[r], sum);
                }
                free(out);
                columns_free(&in);
            }
            free(seen);
            free(x);
            free(m.buffer);
        }
}

/* ---- Preparing ---- */

static void test_prepare(void) {
    for (uint32_t form = 0; form < NARROW_FORMS; form++)
        for (int level = 0; level <= (int)best_level; level++)
            for (int round = 0; round < 8; round++) {
                size_t n_in  = form == FORM_16 ? 256 * (1 + test_below(6))
                             : form == FORM_32 ? 32 * (1 + test_below(40)) : 1 + test_below(999);
                size_t bytes = narrow_input_bytes(form, n_in);
                float *x     = activations_new(n_in);
                area   whole = area_new(bytes + 64), parts = area_new(bytes + 64);
                memset(whole.p, 0x5a, bytes + 64);
                memset(parts.p, 0x5a, bytes + 64);
                narrow_prepare((cpu_level)level, form, x, n_in, 0, n_in, whole.p);
                for (size_t end = n_in, begin; end > 0; end = begin) {
                    begin = (end - 1) / 256 * 256;
                    if (begin >= 256 && test_below(2)) begin -= 256;
                    narrow_prepare((cpu_level)level, form, x, n_in, begin, end, parts.p);
                }
                CHECK(bytes % 64 == 0 && memcmp(whole.p, parts.p, bytes + 64) == 0, "form %u %s: parts differ", form,
                      names_of_levels[level]);
                CHECK(whole.p[bytes] == 0x5a, "form %u %s: wrote behind its area", form, names_of_levels[level]);
                free(x);
                free(whole.whole);
                free(parts.whole);
            }
}

static void test_quantise(void) {
    enum { N = 4096 };
    static float  x[N], d[N / 32], d2[N / 32];
    static int8_t q[N], q2[N];
    uint32_t wrong = 0, differ = 0;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) x[i] = ldexpf(test_uniform(), (int)test_below(4) - 2 + 12 * (round - 10));
        for (int i = 0; i < N; i += 96) x[i] = 0.5f * x[i + 1];             /* ties */
        memset(x + 64, 0, 32 * sizeof *x);
        x[100] = NAN, x[200] = INFINITY, x[300] = -INFINITY;
        for (int i = 320; i < 352; i++) x[i] = ldexpf(test_uniform(), -140);   /* subnormal */
        for (int i = 352; i < 384; i++) x[i] = FLT_MAX * (i % 2 ? 1.0f : -0.25f);
        input_quantise(CPU_PLAIN, x, N, q, d);
        for (int b = 0; b < N / 32; b++) {
            float largest = 0;
            bool  finite  = true;
            for (int i = 32 * b; i < 32 * b + 32; i++) {
                finite &= finite_bits(x[i]);
                if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
            }
            bool zero = finite && largest < INPUT_SMALLEST;
            if (finite ? d[b] != (zero ? 0 : largest / 127.0f) : !nan_bits(d[b])) wrong++;
            for (int i = 32 * b; i < 32 * b + 32; i++) {
                double exact = finite && !zero ? (double)x[i] * 127 / (double)largest : 0;
                if (fabs((double)q[i] - exact) > 0.50002 || q[i] < -127) wrong++;
            }
        }
        for (int level = 1; level <= (int)best_level; level++) {
            memset(q2, 1, sizeof q2);
            input_quantise((cpu_level)level, x, N, q2, d2);
            for (int b = 0; b < N / 32; b++) differ += (nan_bits(d[b]) ? !nan_bits(d2[b]) : d[b] != d2[b]) ? 1u : 0u;
            differ += memcmp(q, q2, N) != 0;
        }
    }
    CHECK(wrong == 0, "%u codes or scales are wrong", wrong);
    CHECK(differ == 0, "%u blocks differ between levels", differ);
    CHECK(cpu_level_of(0) == CPU_PLAIN && cpu_level_of(NOVA_CPU_AVX512) == CPU_PLAIN, "levels without AVX2");
    CHECK(cpu_level_of(NOVA_CPU_AVX2) == CPU_AVX2, "AVX2");
    CHECK(cpu_level_of(NOVA_CPU_AVX2 | NOVA_CPU_AVX512) == CPU_AVX512, "AVX-512");
}

int main(void) {
    test_begin(7);
    best_level = cpu_level_of(cpu_features());
    for (int level = (int)best_level + 1; level < CPU_LEVELS; level++)
        SKIP("this processor has no %s", names_of_levels[level]);
    test_quantise();
    test_prepare();
    test_shapes();
    test_activations();
    test_garbage();
    return test_end();
}
