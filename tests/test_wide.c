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
    uint32_t block = type_of(f->type)->block_bytes;
    w->type      = f->type;
    w->n_in      = n_in;
    w->n_out     = n_out;
    w->row_bytes = type_row_bytes(f->type, n_in);
    size_t   size = w->row_bytes * n_out;
    uint8_t *base = (uint8_t *)exact(size + 1), *p = base + 1;
    w->data = p;
    for (size_t i = 0; i < size; i++) p[i] = (uint8_t)test_random();
    for (size_t i = 0; i < size; i += block) {
        float x = test_uniform();
        if (f->d >= 0) put_half(p + i + f->d, x);
        if (f->m >= 0) put_half(p + i + f->m, test_uniform() * 4);
        if (f->type == TYPE_F32) memcpy(p + i, &x, 4);
        if (f->type == TYPE_BF16) memcpy(p + i, (const uint8_t *)&x + 2, 2);
    }
    return base;
}

/* ---- A matmul to try ---- */

typedef struct trial {
    cpu_level level;
    weight    w;
    uint8_t  *base;      /* of the weights */
    uint32_t  n_col;
    size_t    ld_x;
    float    *x, *out;   /* out: [column][row], sentinels at first */
} trial;

#define SENTINEL 12345.5f

static float *sentinels(size_t n) {
    float *p = (float *)exact(n * sizeof(float));
    for (size_t i = 0; i < n; i++) p[i] = SENTINEL;
    return p;
}

static const char *trial_name(const trial *t) {
    static char   text[96];
    const weight *w    = &t->w;
    const char   *type = type_of(w->type)->name;
    snprintf(text, sizeof text, "level %d %s %u x %u x %u", (int)t->level, type, w->n_in, w->n_out, t->n_col);
    return text;
}

static trial trial_begin(cpu_level level, const format *f, uint32_t n_in, uint32_t n_out, uint32_t n_col) {
    trial t;
    t.level = level;
    t.base  = random_weight(&t.w, f, n_in, n_out);
    t.n_col = n_col;
    t.ld_x  = n_in + test_below(5);
    size_t n = (n_col - 1) * t.ld_x + n_in;
    t.x   = (float *)exact(sizeof(float) * n);
    t.out = sentinels((size_t)n_out * n_col);
    for (size_t i = 0; i < n; i++) t.x[i] = test_uniform() * (i % 7 ? 1.0f : 30.0f);
    return t;
}

static void trial_end(trial *t) {
    free(t->out);
    free(t->x);
    free(t->base);
}

/* Packs and multiplies rows begin..end of some columns; in shares: tiles in two, rows in pieces cut anywhere. */
static void run_part(const trial *t, const uint32_t *columns, uint32_t n_col, float *out, size_t ld_out, uint32_t begin,
                     uint32_t end, bool shares) {
    uint32_t form = wide_form(t->w.type), tiles = wide_tiles(t->level, form, n_col);
    marked   input   = marked_alloc(wide_input_bytes(t->level, form, t->w.n_in, n_col));
    marked   scratch = marked_alloc(wide_scratch_bytes(t->level, t->w.type, t->w.n_in));
    CHECK(input.size % 64 == 0 && scratch.size % 64 == 0, "sizes %zu %zu", input.size, scratch.size);
    uint32_t cut = shares ? test_below(tiles + 1) : 0;
    wide_prepare(t->level, form, t->x, t->ld_x, columns, t->w.n_in, n_col, cut, tiles, input.p);
    wide_prepare(t->level, form, t->x, t->ld_x, columns, t->w.n_in, n_col, 0, cut, input.p);
    for (uint32_t r = begin, n; r < end; r += n) {
        n = shares ? 1 + test_below(end - r) : end - r;
        memset(scratch.p, (int)test_below(256), scratch.size);
        wide_matmul(t->level, &t->w, input.p, n_col, columns, r, r + n, out, ld_out, scratch.p);
    }
    marked_free(&input, "packed columns");
    marked_free(&scratch, "scratch");
}

static void run_all(trial *t) { run_part(t, NULL, t->n_col, t->out, t->w.n_out, 0, t->w.n_out, false); }

/* ---- The reference ---- */

static float *dequantise(const weight *w) {
    float *rows = (float *)exact(sizeof(float) * w->n_in * w->n_out);
    for (uint32_t r = 0; r < w->n_out; r++)
        type_of(w->type)->to_float(w->data + w->row_bytes * r, rows + (size_t)r * w->n_in, w->n_in);
    return rows;
}

/* One column as the matmul sees it. */
static double *reference_column(const weight *w, const float *x) {
    double *v = (double *)exact(sizeof(double) * w->n_in);
    if (wide_form(w->type) == FORM_WIDE_FLOAT) {
        for (uint32_t i = 0; i < w->n_in; i++) v[i] = (double)x[i];
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

/* The greatest weight that the numbers of a block can make (floats: blocks of one): what roundings are relative to. */
static double *reference_sizes(const weight *w, uint32_t r, const float *row) {
    const wide_type *t = wide_type_of(w->type);
    double          *v = (double *)exact(sizeof(double) * w->n_in);
    for (uint32_t i = 0; i < w->n_in && t->kind == WIDE_FLOAT; i++) v[i] = fabs((double)row[i]);
    for (uint32_t k = 0; k < w->n_in && t->kind != WIDE_FLOAT; k += CHUNK_CODES) {
        wide_chunk chunk;
        uint32_t   n = (uint32_t)size_min(CHUNK_CODES, w->n_in - k);
        t->unpack[0](w->data + w->row_bytes * r + type_row_bytes(w->type, k), n, &chunk);
        for (uint32_t b = 0; b < n / 32; b++) {
            const float *s = chunk.scale;
            double       scale = fabs((double)s[b]), offset = 0;
            int          code  = 0;
            for (uint32_t i = 32 * b; i < 32 * b + 32; i++)
                if (abs(chunk.w.codes[i]) > code) code = abs(chunk.w.codes[i]);
            if (t->kind == WIDE_16) scale = fmax(fabs((double)s[2 * b]), fabs((double)s[2 * b + 1]));
            if (t->kind == WIDE_32_OFFSET) offset = fabs((double)s[8 + b]);
            v[k / 32 + b] = code * scale + offset;
        }
    }
    return v;
}

/* The exact dot product. *limit: how far floats may be off, who round terms, and sums after each of them, whose errors
 * add up like a random walk. */
static double reference_dot(const weight *w, const float *row, const double *sizes, const double *x, double *limit) {
    uint32_t block = wide_form(w->type) == FORM_WIDE_FLOAT ? 1 : 32;
    double   sum = 0, size = 0;
    for (uint32_t i = 0; i < w->n_in; i += block) {
        double all = 0;
        for (uint32_t j = i; j < i + block; j++) {
            sum += (double)row[j] * x[j];
            all += fabs(x[j]);
        }
        size += sizes[i / block] * all;
    }
    *limit = (double)FLT_EPSILON * size * (4 + sqrt((double)(w->n_in / block))) + 1e-30;
    return sum;
}

/* By the bits: -ffast-math lets compilers believe that every float is finite. */
static bool is_finite(float f) { return (load_u32(&f) & 0x7f800000u) != 0x7f800000u; }

static double worst_error[CPU_LEVELS][TYPE_LIMIT];   /* in parts of the limit */

/* Rows of finite weights must be right, and others must show it. */
static void check_all(const trial *t) {
    const weight *w     = &t->w;
    float        *rows  = dequantise(w);
    double      **v     = (double **)exact(t->n_col * sizeof(double *)), *worst = &worst_error[t->level][w->type];
    size_t        wrong = 0, hidden = 0;
    for (uint32_t c = 0; c < t->n_col; c++) v[c] = reference_column(w, t->x + c * t->ld_x);
    for (uint32_t r = 0; r < w->n_out; r++) {
        const float *row    = rows + (size_t)r * w->n_in;
        double      *sizes  = reference_sizes(w, r, row);
        bool         finite = true;
        for (uint32_t i = 0; i < w->n_in; i++) finite = finite && is_finite(row[i]) && fabsf(row[i]) < 1e30f;
        for (uint32_t c = 0; c < t->n_col; c++) {
            double limit, want = reference_dot(w, row, sizes, v[c], &limit);
            float  got   = t->out[(size_t)c * w->n_out + r];
            double error = fabs((double)got - want) / limit;
            if (finite && error > *worst) *worst = error;
            if (finite) wrong += !(error <= 1) || !is_finite(got);
            else hidden += !is_finite((float)want) && is_finite(got);
        }
        free(sizes);
    }
    CHECK(wrong == 0, "%s: %zu wrong, worst so far %g times the limit", trial_name(t), wrong, *worst);
    CHECK(hidden == 0, "%s: %zu should not be finite", trial_name(t), hidden);
    for (uint32_t c = 0; c < t->n_col; c++) free(v[c]);
    free(v);
    free(rows);
}

/* Some columns in random order, some rows by shares: the same bits, and nothing else written. */
static void check_subset(const trial *t) {
    uint32_t *columns = (uint32_t *)exact(t->n_col * sizeof(uint32_t)), n = 1 + test_below(t->n_col);
    uint8_t  *chosen  = (uint8_t *)exact(t->n_col);
    size_t    ld = t->w.n_out + test_below(3), differ = 0, touched = 0;
    uint32_t  begin = test_below(t->w.n_out), end = begin + 1 + test_below(t->w.n_out - begin);
    float    *out = sentinels(ld * t->n_col);
    memset(chosen, 0, t->n_col);
    for (uint32_t i = 0; i < t->n_col; i++) columns[i] = i;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t j = i + test_below(t->n_col - i), c = columns[j];
        columns[j] = columns[i];
        columns[i] = c;
        chosen[c]  = 1;
    }
    run_part(t, columns, n, out, ld, begin, end, true);
    for (uint32_t c = 0; c < t->n_col; c++)
        for (size_t r = 0; r < ld; r++) {
            float got = out[c * ld + r];
            if (chosen[c] && r >= begin && r < end) differ += memcmp(&got, &t->out[(size_t)c * t->w.n_out + r], 4) != 0;
            else touched += got != SENTINEL;
        }
    CHECK(differ == 0, "%s: %u columns, rows %u..%u: %zu differ", trial_name(t), n, begin, end, differ);
    CHECK(touched == 0, "%s: %u columns, rows %u..%u: %zu others written", trial_name(t), n, begin, end, touched);
    free(out);
    free(columns);
    free(chosen);
}

/* ---- Shapes ---- */

/* A length of about n that the type allows, for floats any. */
static uint32_t length_near(const format *f, uint32_t n) {
    uint32_t block = type_of(f->type)->block_weights;
    return (n + block - 1) / block * block;
}

static void test_shape(cpu_level level, const format *f, uint32_t n_in, uint32_t n_out, uint32_t n_col) {
    trial t = trial_begin(level, f, length_near(f, n_in), n_out, n_col);
    run_all(&t);
    check_all(&t);
    check_subset(&t);
    trial_end(&t);
}

static void test_shapes(cpu_level level, const format *f) {
    for (uint32_t i = 1; i <= 70; i++) test_shape(level, f, 1 + test_below(130), i, 1 + i * 37 % 70);
    test_shape(level, f, 1, 1, 1);
    test_shape(level, f, 1057, 131, 13);   /* more than a depth */
    test_shape(level, f, 2600, 37, 29);
    test_shape(level, f, 4200, 5, 7);
    test_shape(level, f, 500, 263, 97);    /* more than a panel */
}

/* ---- Integers: floats add them exactly, so not one term may be missing, or there twice ---- */

static void test_integers(cpu_level level, const format *f) {
    trial    t = trial_begin(level, f, length_near(f, 256), 67, 19);
    uint8_t *p = t.base + 1;
    uint32_t block_weights = type_of(f->type)->block_weights, block_bytes = type_of(f->type)->block_bytes;
    for (size_t i = 0; i < t.w.row_bytes * t.w.n_out; i += block_bytes) {
        float sign = (float)(int)(test_below(3) - 1), v = (float)(int)(test_below(17) - 8);
        if (f->d >= 0) put_half(p + i + f->d, block_weights == 1 ? v : sign);
        if (f->m >= 0) put_half(p + i + f->m, block_weights == 256 ? sign : v);
        if (f->type == TYPE_F32) memcpy(p + i, &v, 4);
        if (f->type == TYPE_BF16) memcpy(p + i, (const uint8_t *)&v + 2, 2);
    }
    for (uint32_t c = 0; c < t.n_col; c++)
        for (uint32_t i = 0; i < t.w.n_in; i++) {
            bool greatest = i % 32 == (i / 32 + c) % 32;   /* 127 makes the block's d = 1 */
            t.x[c * t.ld_x + i] = (float)(greatest ? 127 : (int)test_below(7) - 3);
        }
    run_all(&t);
    float *rows  = dequantise(&t.w);
    size_t wrong = 0;
    for (uint32_t c = 0; c < t.n_col; c++)
        for (uint32_t r = 0; r < t.w.n_out; r++) {
            double sum = 0;
            for (uint32_t i = 0; i < t.w.n_in; i++) sum += (double)rows[r * t.w.n_in + i] * (double)t.x[c * t.ld_x + i];
            wrong += (double)t.out[c * t.w.n_out + r] != sum;
        }
    CHECK(wrong == 0, "%s: %zu sums of integers are wrong", trial_name(&t), wrong);
    free(rows);
    trial_end(&t);
}

/* ---- Extremes: no sum of products may saturate or wrap ---- */

static const uint8_t EXTREME_BYTES[][2] = {
    { 0, 0 }, { 0xff, 0xff }, { 0x80, 0x80 }, { 0x7f, 0x7f }, { 0x80, 0x7f }, { 0x81, 0xff }
};
static const uint16_t EXTREME_HALVES[] = { 0x0001, 0x83ff, 0x0400, 0x3c00, 0x7bff, 0xfbff };

/* Columns whose q are 127, -127, one and the other, at random; half as much but for one; zero. */
static float extreme_input(uint32_t c, uint32_t i) {
    if (c == 8) return 0;
    bool minus = c == 1 || (c == 2 && i % 2) || (c > 2 && test_below(2));
    return (minus ? -1.0f : 1.0f) * (c == 7 && i % 32 ? 5e4f : 1e5f);
}

static void test_extremes(cpu_level level, const format *f) {
    if (wide_form(f->type) == FORM_WIDE_FLOAT) return;
    for (uint32_t k = 0; k < COUNT_OF(EXTREME_BYTES) * COUNT_OF(EXTREME_HALVES); k++) {
        trial    t = trial_begin(level, f, 512, 17, 9);
        uint8_t *p = t.base + 1;
        size_t   size = t.w.row_bytes * t.w.n_out;
        for (size_t i = 0; i < size; i++) p[i] = EXTREME_BYTES[k % COUNT_OF(EXTREME_BYTES)][i % 2];
        for (size_t i = 0; i < size; i += type_of(f->type)->block_bytes) {
            memcpy(p + i + f->d, &EXTREME_HALVES[k / COUNT_OF(EXTREME_BYTES)], 2);
            if (f->m >= 0) memcpy(p + i + f->m, &EXTREME_HALVES[test_below(COUNT_OF(EXTREME_HALVES))], 2);
        }
        for (uint32_t c = 0; c < t.n_col; c++)
            for (uint32_t i = 0; i < t.w.n_in; i++) t.x[c * t.ld_x + i] = extreme_input(c, i);
        run_all(&t);
        check_all(&t);
        trial_end(&t);
    }
}

/* ---- What is not finite ---- */

static void test_not_finite(cpu_level level, const format *f) {
    trial  t = trial_begin(level, f, length_near(f, 300), 35, 23);
    size_t hidden = 0, spread = 0, n = (size_t)t.w.n_out * t.n_col;
    run_all(&t);
    float *clean = t.out;
    t.out = sentinels(n);
    t.x[4 * t.ld_x + test_below(t.w.n_in)]  = NAN;
    t.x[5 * t.ld_x + test_below(t.w.n_in)]  = INFINITY;
    t.x[17 * t.ld_x + test_below(t.w.n_in)] = -INFINITY;
    run_all(&t);
    for (size_t i = 0; i < n; i++) {
        size_t c = i / t.w.n_out;
        if (c == 4 || c == 5 || c == 17) hidden += is_finite(t.out[i]);
        else spread += memcmp(&t.out[i], &clean[i], 4) != 0;
    }
    CHECK(hidden == 0 && spread == 0, "%s: %zu not shown, %zu spread", trial_name(&t), hidden, spread);
    free(clean);
    trial_end(&t);
}

/* Weights of any bits. */
static void test_garbage(cpu_level level, const format *f) {
    trial t = trial_begin(level, f, length_near(f, 600), 61, 11);
    for (size_t i = 0; i < t.w.row_bytes * t.w.n_out; i++) t.base[1 + i] = (uint8_t)test_random();
    run_all(&t);
    check_all(&t);
    trial_end(&t);
}

/* ---- Twins: both functions that unpack a row give the same codes and scales, and these are the type's weights ---- */

static double unpacked(const wide_type *t, const wide_chunk *chunk, uint32_t i, double *size) {
    double v, offset = 0;
    if (t->kind == WIDE_FLOAT) v = (double)chunk->w.floats[i];
    else v = (double)chunk->w.codes[i] * (double)chunk->scale[t->kind == WIDE_16 ? i / 16 : i / 32];
    if (t->kind == WIDE_32_OFFSET) offset = (double)chunk->scale[8 + i / 32];
    *size = fabs(v) + fabs(offset);
    return v + offset;
}

static void test_unpack(const format *f) {
    const wide_type *t    = wide_type_of(f->type);
    uint32_t         most = t->kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    CHECK(t->type == f->type, "no row for %s", type_of(f->type)->name);
    for (int k = 0; k < 200; k++) {
        weight     w;
        uint32_t   n    = length_near(f, 1 + test_below(most)), wrong = 0;
        uint8_t   *base = random_weight(&w, f, n, 1);
        float     *row  = dequantise(&w);
        wide_chunk a, b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        t->unpack[0](w.data, n, &a);
        if (best_level >= CPU_AVX2) t->unpack[1](w.data, n, &b);
        bool same = best_level < CPU_AVX2 || memcmp(&a, &b, sizeof a) == 0;
        CHECK(same, "%s: the twins differ for %u weights", type_of(f->type)->name, n);
        for (uint32_t i = 0; i < n; i++) {
            double size, v = unpacked(t, &a, i, &size);
            wrong += !(fabs(v - (double)row[i]) <= (double)FLT_EPSILON * size);
        }
        CHECK(wrong == 0, "%s: %u of %u weights are wrong", type_of(f->type)->name, wrong, n);
        free(row);
        free(base);
    }
}

static void test_sizes(void) {
    for (int i = 0; i < CPU_LEVELS * WIDE_FORMS; i++) {
        cpu_level level = (cpu_level)(i / WIDE_FORMS);
        uint32_t  form  = (uint32_t)i % WIDE_FORMS;
        CHECK(wide_input_bytes(level, form, SIZE_MAX / 2, 3) > SIZE_MAX / 2, "overflow by n_in");
        CHECK(wide_input_bytes(level, form, (size_t)1 << 20, SIZE_MAX / 64) > SIZE_MAX / 2, "overflow by n_col");
        CHECK(wide_tiles(level, form, 0) == 0, "tiles without columns");
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
        for (int l = 0; l <= (int)best_level; l++) {
            cpu_level level = (cpu_level)l;
            test_shapes(level, f);
            test_integers(level, f);
            test_extremes(level, f);
            test_not_finite(level, f);
            test_garbage(level, f);
        }
        for (int l = 0; l < CPU_LEVELS && getenv("NOVA_VERBOSE"); l++)
            printf("%-5s level %d: error %.2f of the limit\n", type_of(f->type)->name, l, worst_error[l][f->type]);
    }
    return test_end();
}
