/* The matmul for many columns: every type on every level that this processor has, against sums in double. */
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C
#include "test.h"

static cpu_level best_level;

/* ---- Memory ---- */

/* Of exactly the size asked for, so that AddressSanitizer sees one byte too many. */
static void *exact(size_t size) {
    void *p = malloc(size ? size : 1);
    if (!p) exit(1);
    return p;
}

/* Aligned to 64, with marks behind its end. */
typedef struct marked {
    uint8_t *base, *p;
    size_t   size;
} marked;

#define MARKS 256

static marked marked_alloc(size_t size) {
    marked m;
    m.base = (uint8_t *)exact(size + MARKS + 64);
    m.p    = m.base + (64 - (uintptr_t)m.base % 64) % 64;
    m.size = size;
    memset(m.p, 0xa5, size + MARKS);
    return m;
}

static void marked_free(marked *m, const char *what) {
    size_t wrong = 0;
    for (size_t i = 0; i < MARKS; i++) wrong += m->p[m->size + i] != 0xa5;
    CHECK(wrong == 0, "%zu bytes behind the %s were written", wrong, what);
    free(m->base);
}

/* ---- Weights ---- */

typedef struct format {
    uint32_t type;
    int      d, m;      /* where a block has its halves, -1: none */
} format;

static const format FORMATS[] = {
    { TYPE_F32, -1, -1 }, { TYPE_F16, 0, -1 }, { TYPE_BF16, -1, -1 }, { TYPE_Q4_0, 0, -1 }, { TYPE_Q4_1, 0, 2 },
    { TYPE_Q5_0, 0, -1 }, { TYPE_Q5_1, 0, 2 }, { TYPE_Q8_0, 0, -1 }, { TYPE_Q4_K, 0, 2 }, { TYPE_Q5_K, 0, 2 },
    { TYPE_Q6_K, 208, -1 },
};

static void put_half(uint8_t *p, float f) {
    uint16_t h = float_to_half(f);
    memcpy(p, &h, 2);
}

/* Random codes with halves of ordinary size. The data lie at an odd address and end where the memory ends. */
static uint8_t *random_weight(weight *w, const format *f, uint32_t n_in, uint32_t n_out) {
    const type_info *info = type_of(f->type);
    w->type      = f->type;
    w->n_in      = n_in;
    w->n_out     = n_out;
    w->row_bytes = type_row_bytes(f->type, n_in);
    size_t   size = w->row_bytes * n_out;
    uint8_t *base = (uint8_t *)exact(size + 1), *p = base + 1;
    w->data = p;
    for (size_t i = 0; i < size; i++) p[i] = (uint8_t)test_random();
    for (size_t i = 0; i < size; i += info->block_bytes) {
        float x = test_uniform();
        if (f->d >= 0) put_half(p + i + f->d, x);
        if (f->m >= 0) put_half(p + i + f->m, test_uniform() * 4);
        if (f->type == TYPE_F32) memcpy(p + i, &x, 4);
        if (f->type == TYPE_BF16) memcpy(p + i, (const uint8_t *)&x + 2, 2);
    }
    return base;
}

/* ---- The reference ---- */

/* One column as the matmul sees it, and the greatest of each row's possible terms. */
static double *reference_column(const weight *w, const float *x) {
    double *v = (double *)exact(sizeof(double) * w->n_in);
    if (wide_form(w->type) == FORM_WIDE_FLOAT) {
        for (uint32_t i = 0; i < w->n_in; i++) v[i] = x[i];
        return v;
    }
    int8_t *q = (int8_t *)exact(w->n_in);
    float  *d = (float *)exact(w->n_in / 32 * sizeof(float));
    input_quantise(CPU_PLAIN, x, w->n_in, q, d);
    for (uint32_t i = 0; i < w->n_in; i++) v[i] = (double)q[i] * (double)d[i / 32];
    free(q);
    free(d);
    return v;
}

/* The exact dot product. *limit: how far floats may be off by their rounding. Terms are rounded (blocks of 32 for int8,
 * where the largest code counts), and so is the sum after each of them, whose errors add up like a random walk. */
static double reference_dot(const weight *w, const float *row, const double *terms, const double *x, double *limit) {
    uint32_t block = wide_form(w->type) == FORM_WIDE_FLOAT ? 1 : 32;
    double   sum = 0, size = 0;
    for (uint32_t i = 0; i < w->n_in; i += block) {
        double all = 0;
        for (uint32_t j = i; j < i + block; j++) {
            sum += (double)row[j] * x[j];
            all += fabs(x[j]);
        }
        size += terms[i / block] * all;
    }
    *limit = FLT_EPSILON * size * (4 + sqrt((double)(w->n_in / block))) + 1e-30;
    return sum;
}

/* The greatest term that a weight of a block can make, by blocks. */
static double *reference_terms(const weight *w, uint32_t r, const float *row) {
    const wide_type *t = wide_type_of(w->type);
    double          *v = (double *)exact(sizeof(double) * w->n_in);
    for (uint32_t i = 0; i < w->n_in && t->kind == WIDE_FLOAT; i++) v[i] = fabs((double)row[i]);
    for (uint32_t k = 0; k < w->n_in && t->kind != WIDE_FLOAT; k += CHUNK_CODES) {
        wide_chunk chunk;
        uint32_t   n = (uint32_t)size_min(CHUNK_CODES, w->n_in - k);
        t->unpack[0](w->data + w->row_bytes * r + type_row_bytes(w->type, k), n, &chunk);
        for (uint32_t b = 0; b < n / 32; b++) {
            const float *s = chunk.scale;
            double       most = 0;
            for (uint32_t i = 32 * b; i < 32 * b + 32; i++) most = fmax(most, fabs((double)chunk.w.codes[i]));
            v[k / 32 + b] = t->kind == WIDE_16 ? most * fmax(fabs((double)s[2 * b]), fabs((double)s[2 * b + 1]))
                                               : most * fabs((double)s[b]) + (t->kind == WIDE_32_OFFSET) * fabs((double)s[8 + b]);
        }
    }
    return v;
}

#define SENTINEL 12345.5f

static float *sentinels(size_t n) {
    float *p = (float *)exact(n * sizeof(float));
    for (size_t i = 0; i < n; i++) p[i] = SENTINEL;
    return p;
}

/* ---- Running it ---- */

/* Packs in up to three shares of tiles and multiplies in up to three shares of rows, cut anywhere. */
static void run_shares(cpu_level level, const weight *w, const float *x, size_t ld_x, const uint32_t *columns, uint32_t n_col,
                       float *out, size_t ld_out, uint32_t begin, uint32_t end, bool shares) {
    uint32_t form = wide_form(w->type), tiles = wide_tiles(level, form, n_col);
    marked   input = marked_alloc(wide_input_bytes(level, form, w->n_in, n_col));
    marked   scratch = marked_alloc(wide_scratch_bytes(level, w->type, w->n_in));
    CHECK(input.size % 64 == 0 && scratch.size % 64 == 0, "sizes %zu %zu", input.size, scratch.size);
    uint32_t t = shares ? test_below(tiles + 1) : 0;
    wide_prepare(level, form, x, ld_x, columns, w->n_in, n_col, t, tiles, input.p);
    wide_prepare(level, form, x, ld_x, columns, w->n_in, n_col, 0, t, input.p);
    for (uint32_t r = begin; r < end;) {
        uint32_t n = shares ? 1 + test_below(end - r) : end - r;
        memset(scratch.p, (int)test_below(256), scratch.size);
        wide_matmul(level, w, input.p, n_col, columns, r, r + n, out, ld_out, scratch.p);
        r += n;
    }
    marked_free(&input, "packed columns");
    marked_free(&scratch, "scratch");
}

static float *dequantise(const weight *w) {
    float *rows = (float *)exact(sizeof(float) * w->n_in * w->n_out);
    for (uint32_t r = 0; r < w->n_out; r++)
        type_of(w->type)->to_float(w->data + w->row_bytes * r, rows + (size_t)r * w->n_in, w->n_in);
    return rows;
}

static double worst_error[CPU_LEVELS][TYPE_LIMIT];   /* in parts of the limit */

/* All results, [column][row], against the exact ones; rows that are not finite are the business of test_garbage. */
static void check_all(cpu_level level, const weight *w, const float *x, size_t ld_x, uint32_t n_col, const float *out) {
    float  *rows  = dequantise(w);
    size_t  wrong = 0, hidden = 0;
    double *worst = &worst_error[level][w->type];
    double **v    = (double **)exact(n_col * sizeof(double *));
    for (uint32_t c = 0; c < n_col; c++) v[c] = reference_column(w, x + c * ld_x);
    for (uint32_t r = 0; r < w->n_out; r++) {
        const float *row    = rows + (size_t)r * w->n_in;
        double      *terms  = reference_terms(w, r, row);
        bool         finite = true;
        for (uint32_t i = 0; i < w->n_in; i++) finite = finite && fabsf(row[i]) < 1e30f;
        for (uint32_t c = 0; c < n_col; c++) {
            double limit, want = reference_dot(w, row, terms, v[c], &limit), got = (double)out[(size_t)c * w->n_out + r];
            if (finite) {
                double part = fabs(got - want) / limit;
                if (part > *worst) *worst = part;
                wrong += !(part <= 1);
            } else {
                hidden += !isfinite(want) && isfinite(got);
            }
        }
        free(terms);
    }
    CHECK(wrong == 0 && hidden == 0, "level %d %s %u x %u x %u: %zu wrong (worst %g), %zu not finite and not shown", (int)level,
          type_of(w->type)->name, w->n_in, w->n_out, n_col, wrong, *worst, hidden);
    for (uint32_t c = 0; c < n_col; c++) free(v[c]);
    free(v);
    free(rows);
}

/* A random subset of columns in random order, by shares of rows: the same bits, and nothing else written. */
static void check_subset(cpu_level level, const weight *w, const float *x, size_t ld_x, uint32_t n_col, const float *all) {
    uint32_t *columns = (uint32_t *)exact(n_col * sizeof(uint32_t)), n = 1 + test_below(n_col);
    uint8_t  *chosen  = (uint8_t *)exact(n_col);
    size_t    ld = w->n_out + test_below(3), wrong = 0, touched = 0;
    uint32_t  begin = test_below(w->n_out), end = begin + 1 + test_below(w->n_out - begin);
    float    *out = sentinels(ld * n_col);
    memset(chosen, 0, n_col);
    for (uint32_t i = 0; i < n_col; i++) columns[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + test_below(n_col - i), c = columns[j];
        columns[j] = columns[i];
        columns[i] = c;
        chosen[c]  = 1;
    }
    run_shares(level, w, x, ld_x, columns, n, out, ld, begin, end, true);
    for (uint32_t c = 0; c < n_col; c++)
        for (size_t r = 0; r < ld; r++) {
            float got = out[c * ld + r];
            if (chosen[c] && r >= begin && r < end) wrong += memcmp(&got, all + (size_t)c * w->n_out + r, 4) != 0;
            else touched += got != SENTINEL;
        }
    CHECK(wrong == 0 && touched == 0, "level %d %s n_in %u: %zu of %u columns x rows %u..%u differ, %zu others written", (int)level,
          type_of(w->type)->name, w->n_in, wrong, n, begin, end, touched);
    free(out);
    free(columns);
    free(chosen);
}

static void check_shape(cpu_level level, const format *f, uint32_t n_in, uint32_t n_out, uint32_t n_col) {
    weight   w;
    uint8_t *base = random_weight(&w, f, n_in, n_out);
    size_t   ld_x = n_in + test_below(5);
    float   *x = (float *)exact(sizeof(float) * ((n_col - 1) * ld_x + n_in)), *out = sentinels((size_t)n_out * n_col);
    for (size_t i = 0; i < (n_col - 1) * ld_x + n_in; i++) x[i] = test_uniform() * (i % 7 ? 1.0f : 30.0f);
    run_shares(level, &w, x, ld_x, NULL, n_col, out, n_out, 0, n_out, false);
    check_all(level, &w, x, ld_x, n_col, out);
    check_subset(level, &w, x, ld_x, n_col, out);
    free(out);
    free(x);
    free(base);
}

/* A length of about n that the type allows, for floats any. */
static uint32_t length_near(uint32_t type, uint32_t n) {
    uint32_t block = type_of(type)->block_weights;
    return block == 1 ? n : (n + block - 1) / block * block;
}

static void test_shapes(cpu_level level, const format *f) {
    for (uint32_t i = 1; i <= 70; i++) check_shape(level, f, length_near(f->type, 1 + test_below(130)), i, 1 + i * 37 % 70);
    check_shape(level, f, length_near(f->type, 1), 1, 1);
    check_shape(level, f, length_near(f->type, 1057), 131, 13);
    check_shape(level, f, length_near(f->type, 2600), 37, 29);
    check_shape(level, f, length_near(f->type, 500), 263, 97);
}

/* ---- Integers: floats add them exactly, so not one term may be missing or twice ---- */

static void test_integers(cpu_level level, const format *f) {
    weight   w;
    uint32_t n_in = length_near(f->type, 256), n_out = 67, n_col = 19;
    uint8_t *base = random_weight(&w, f, n_in, n_out), *p = base + 1;
    const type_info *info = type_of(f->type);
    for (size_t i = 0; i < w.row_bytes * n_out; i += info->block_bytes) {
        float one = (float)(int)(test_below(3) - 1), v = (float)(int)(test_below(17) - 8);
        if (f->d >= 0) put_half(p + i + f->d, info->block_weights == 1 ? v : one);
        if (f->m >= 0) put_half(p + i + f->m, info->block_weights == 256 ? one : v);
        if (f->type == TYPE_F32) memcpy(p + i, &v, 4);
        if (f->type == TYPE_BF16) memcpy(p + i, (const uint8_t *)&v + 2, 2);
    }
    float *x = (float *)exact(sizeof(float) * n_in * n_col), *out = sentinels((size_t)n_out * n_col), *rows = dequantise(&w);
    for (uint32_t i = 0; i < n_in * n_col; i++)   /* 127 makes d = 1 */
        x[i] = i % 32 == i / 32 % 32 ? (test_below(2) ? 127.0f : -127.0f) : (float)(int)(test_below(7) - 3);
    run_shares(level, &w, x, n_in, NULL, n_col, out, n_out, 0, n_out, true);
    size_t wrong = 0;
    for (uint32_t c = 0; c < n_col; c++)
        for (uint32_t r = 0; r < n_out; r++) {
            double sum = 0;
            for (uint32_t i = 0; i < n_in; i++) sum += (double)rows[(size_t)r * n_in + i] * (double)x[(size_t)c * n_in + i];
            wrong += (double)out[(size_t)c * n_out + r] != sum;
        }
    CHECK(wrong == 0, "level %d %s: %zu of %u sums of integers are wrong", (int)level, info->name, wrong, n_out * n_col);
    free(rows);
    free(out);
    free(x);
    free(base);
}

/* ---- Extremes: no sum of products may saturate or wrap ---- */

static void test_extremes(cpu_level level, const format *f) {
    static const uint8_t BYTES[][2] = { { 0, 0 }, { 0xff, 0xff }, { 0x80, 0x80 }, { 0x7f, 0x7f }, { 0x80, 0x7f }, { 0x81, 0xff } };
    static const uint16_t HALVES[] = { 0x0001, 0x83ff, 0x0400, 0x3c00, 0x7bff, 0xfbff };
    if (f->d < 0 || type_of(f->type)->block_weights == 1) return;
    for (uint32_t k = 0; k < COUNT_OF(BYTES) * COUNT_OF(HALVES); k++) {
        weight   w;
        uint32_t n_in = 512, n_out = 17, n_col = 9;
        uint8_t *base = random_weight(&w, f, n_in, n_out), *p = base + 1;
        size_t   size = w.row_bytes * n_out;
        for (size_t i = 0; i < size; i++) p[i] = BYTES[k % COUNT_OF(BYTES)][i % 2];
        for (size_t i = 0; i < size; i += type_of(f->type)->block_bytes) {
            memcpy(p + i + f->d, &HALVES[k / COUNT_OF(BYTES)], 2);
            if (f->m >= 0) memcpy(p + i + f->m, &HALVES[test_below(COUNT_OF(HALVES))], 2);
        }
        float *x = (float *)exact(sizeof(float) * n_in * n_col), *out = sentinels((size_t)n_out * n_col);
        for (uint32_t c = 0; c < n_col; c++)   /* q = 127, -127, one and the other, at random, half as much, zero */
            for (uint32_t i = 0; i < n_in; i++) {
                float sign = c == 0 ? 1.0f : c == 1 ? -1.0f : c == 2 ? (i % 2 ? 1.0f : -1.0f) : test_below(2) ? 1.0f : -1.0f;
                x[c * n_in + i] = c == 8 ? 0 : sign * (c == 7 && i % 32 ? 6e4f : 1e5f);
            }
        run_shares(level, &w, x, n_in, NULL, n_col, out, n_out, 0, n_out, true);
        check_all(level, &w, x, n_in, n_col, out);
        free(out);
        free(x);
        free(base);
    }
}

/* ---- What is not finite ---- */

static void test_not_finite(cpu_level level, const format *f) {
    weight   w;
    uint32_t n_in = length_near(f->type, 300), n_out = 35, n_col = 23;
    uint8_t *base = random_weight(&w, f, n_in, n_out);
    float   *x = (float *)exact(sizeof(float) * n_in * n_col);
    float   *clean = sentinels((size_t)n_out * n_col), *out = sentinels((size_t)n_out * n_col);
    for (uint32_t i = 0; i < n_in * n_col; i++) x[i] = test_uniform();
    run_shares(level, &w, x, n_in, NULL, n_col, clean, n_out, 0, n_out, false);
    x[4 * n_in + test_below(n_in)]  = NAN;
    x[5 * n_in + test_below(n_in)]  = INFINITY;
    x[17 * n_in + test_below(n_in)] = -INFINITY;
    run_shares(level, &w, x, n_in, NULL, n_col, out, n_out, 0, n_out, false);
    size_t hidden = 0, spread = 0;
    for (uint32_t c = 0; c < n_col; c++)
        for (uint32_t r = 0; r < n_out; r++) {
            size_t i = (size_t)c * n_out + r;
            if (c == 4 || c == 5 || c == 17) hidden += isfinite(out[i]) != 0;
            else spread += memcmp(&out[i], &clean[i], 4) != 0;
        }
    CHECK(hidden == 0 && spread == 0, "level %d %s: %zu not shown, %zu spread", (int)level, type_of(f->type)->name, hidden, spread);
    free(clean);
    free(out);
    free(x);
    free(base);
}

/* Weights of any bits: rows of finite weights have right results, others show it. */
static void test_garbage(cpu_level level, const format *f) {
    weight   w;
    uint32_t n_in = length_near(f->type, 600), n_out = 61, n_col = 11;
    uint8_t *base = random_weight(&w, f, n_in, n_out);
    for (size_t i = 0; i < w.row_bytes * n_out; i++) base[1 + i] = (uint8_t)test_random();
    float *x = (float *)exact(sizeof(float) * n_in * n_col), *out = sentinels((size_t)n_out * n_col);
    for (uint32_t i = 0; i < n_in * n_col; i++) x[i] = test_uniform();
    run_shares(level, &w, x, n_in, NULL, n_col, out, n_out, 0, n_out, true);
    check_all(level, &w, x, n_in, n_col, out);
    free(out);
    free(x);
    free(base);
}

/* ---- Twins ---- */

/* Both functions that unpack a row give the same codes and scales, and these are the type's weights. */
static void test_unpack(const format *f) {
    const wide_type *t    = wide_type_of(f->type);
    uint32_t         most = t->kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    CHECK(t->type == f->type, "no row for %s", type_of(f->type)->name);
    for (int k = 0; k < 200; k++) {
        weight     w;
        uint32_t   n = length_near(f->type, 1 + test_below(most));
        uint8_t   *base = random_weight(&w, f, n, 1);
        float     *rows = dequantise(&w);
        wide_chunk a, b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        t->unpack[0](w.data, n, &a);
        if (best_level >= CPU_AVX2) {
            t->unpack[1](w.data, n, &b);
            CHECK(memcmp(&a, &b, sizeof a) == 0, "%s: %u weights unpack to other values", type_of(f->type)->name, n);
        }
        double worst = -1;
        for (uint32_t i = 0; i < n; i++) {
            double v = t->kind == WIDE_FLOAT ? (double)a.w.floats[i]
                                             : (double)a.w.codes[i] * (double)a.scale[t->kind == WIDE_16 ? i / 16 : i / 32];
            double offset = t->kind == WIDE_32_OFFSET ? (double)a.scale[8 + i / 32] : 0;
            worst = fmax(worst, fabs(v + offset - (double)rows[i]) - FLT_EPSILON * (fabs(v) + fabs(offset)));
        }
        CHECK(worst <= 0, "%s: unpacked weights are off by %g", type_of(f->type)->name, worst);
        free(rows);
        free(base);
    }
}

static void test_sizes(void) {
    for (int level = 0; level < CPU_LEVELS; level++)
        for (uint32_t form = 0; form < WIDE_FORMS; form++) {
            CHECK(wide_input_bytes((cpu_level)level, form, SIZE_MAX / 2, 3) > SIZE_MAX / 2, "overflow in n_in");
            CHECK(wide_input_bytes((cpu_level)level, form, (size_t)1 << 20, SIZE_MAX / 64) > SIZE_MAX / 2, "overflow in n_col");
            CHECK(wide_input_bytes((cpu_level)level, form, 4096, 512) % 64 == 0, "not a multiple of 64");
            CHECK(wide_tiles((cpu_level)level, form, 0) == 0, "tiles without columns");
        }
}

int main(void) {
    test_begin(20250117);
    best_level = cpu_level_of(cpu_features());
    if (best_level < CPU_AVX512) SKIP("this processor has no AVX-512 with VNNI");
    if (best_level < CPU_AVX2) SKIP("this processor has no AVX2");
    test_sizes();
    for (size_t i = 0; i < COUNT_OF(FORMATS); i++) {
        const format *f = &FORMATS[i];
        test_unpack(f);
        for (int level = 0; level <= (int)best_level; level++) {
            test_shapes((cpu_level)level, f);
            test_integers((cpu_level)level, f);
            test_extremes((cpu_level)level, f);
            test_not_finite((cpu_level)level, f);
            test_garbage((cpu_level)level, f);
        }
        if (getenv("NOVA_VERBOSE"))
            printf("%-5s worst errors %.2f %.2f %.2f\n", type_of(f->type)->name, worst_error[0][f->type], worst_error[1][f->type],
                   worst_error[2][f->type]);
    }
    return test_end();
}
