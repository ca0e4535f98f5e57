/* Attention on the CPU: see cpu_attend.h.
 *
 * On a page it is a product, a softmax and a product: scores = queries x K, weights = softmax(scores),
 * acc += weights x V. Both products are computed by tiles of some rows (queries) by some registers of columns (tokens,
 * then dimensions), and every element of a result is one chain of multiply-adds, from the first term to the last: so
 * tiles of all shapes give the same bits, and it does not matter which queries come together.
 *
 * Few queries read K and V where they lie. For many, pages of halves are first converted to floats, once; quantised pages always. */
#include "cpu_attend.h"

/* ---- States ----
 *
 * The greatest score starts at -FLT_MAX instead of -infinity, so that no difference of scores is ever inf - inf: scores
 * of -infinity, and nothing else, weigh nothing. */

static void attend_begin(attend_state *s, float *acc, uint32_t head_dim_v) {
    s->top = -FLT_MAX;
    s->sum = 0;
    s->acc = acc;
    for (uint32_t d = 0; d < head_dim_v; d++) acc[d] = 0;
}

NOVA_UNUSED static void attend_sink(attend_state *s, float score, uint32_t head_dim_v) {
    float top = score > s->top ? score : s->top, keep = exp_plain(s->top - top);
    s->sum = s->sum * keep + exp_plain(score - top);
    s->top = top;
    for (uint32_t d = 0; d < head_dim_v; d++) s->acc[d] *= keep;
}

static void attend_end(const attend_state *s, float *out, uint32_t head_dim_v) {
    for (uint32_t d = 0; d < head_dim_v; d++) out[d] = s->sum == 0 ? 0 : s->acc[d] / s->sum;
}

/* ---- Pages ---- */

static size_t attend_k_page_bytes(const attend_shape *shape) { return page_k_bytes(shape->type_k, shape->head_dim_k); }
static size_t attend_v_page_bytes(const attend_shape *shape) { return page_v_bytes(shape->type_v, shape->head_dim_v); }

static void attend_store(cpu_level level, const attend_shape *shape, void *k_page, void *v_page, uint32_t t,
                         const float *k, const float *v) {
    page_store_k(level, shape->type_k, k_page, shape->head_dim_k, t, k);
    page_store_v(level, shape->type_v, v_page, shape->head_dim_v, t, v);
}

/* ---- Scratch: the page's K and V as floats, and rows of scores ---- */

#define TILE_ROWS  8    /* most queries in a tile */
#define BEST_ROWS  6    /* the best number, when there are many */
#define GROUP_ROWS 24   /* queries between which K, and then V, stays in the first cache */

static size_t attend_scratch_bytes(const attend_shape *shape, uint32_t n_q) {
    size_t rows = size_min(GROUP_ROWS, n_q);
    return ((size_t)shape->head_dim_k + shape->head_dim_v + rows) * KV_PAGE * sizeof(float);
}

/* ---- Plain ---- */

static void scores_plain(const attend_shape *shape, const float *q, const float *k, float *scores) {
    for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] = 0;
    for (uint32_t d = 0; d < shape->head_dim_k; d++)
        for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] += q[d] * k[(size_t)d * KV_PAGE + t];
    for (uint32_t t = 0; t < KV_PAGE; t++) {
        scores[t] *= shape->scale;
        if (shape->soft_cap != 0) scores[t] = shape->soft_cap * tanh_plain(scores[t] / shape->soft_cap);
    }
}

/* By sixteens, of which compilers make vectors even at -O2. */
static void values_plain(float *NOVA_RESTRICT acc, const float *weights, uint32_t first, uint32_t last,
                         const float *NOVA_RESTRICT v, size_t n) {
    for (uint32_t t = first; t < last; t++) {
        const float *row = v + t * n;
        float        w   = weights[t];
        size_t       d   = 0;
        for (; d + 16 <= n; d += 16)
            for (size_t j = 0; j < 16; j++) acc[d + j] += w * row[d + j];
        for (; d < n; d++) acc[d] += w * row[d];
    }
}

static void query_plain(const attend_shape *shape, const float *q, attend_state *s, uint32_t first, uint32_t last,
                        const float *k, const float *v) {
    float scores[KV_PAGE], top = s->top;
    scores_plain(shape, q, k, scores);
    for (uint32_t t = first; t < last; t++) top = scores[t] > top ? scores[t] : top;
    float keep = exp_plain(s->top - top);
    s->top = top;
    s->sum *= keep;
    for (uint32_t d = 0; d < shape->head_dim_v; d++) s->acc[d] *= keep;
    for (uint32_t t = first; t < last; t++) s->sum += scores[t] = exp_plain(scores[t] - top);
    values_plain(s->acc, scores, first, last, v, shape->head_dim_v);
}

static void page_plain(const attend_shape *shape, uint32_t n_q, const float *const *q, attend_state *states,
                       const uint32_t *first, const uint32_t *last, const void *k_page, const void *v_page,
                       float *scratch) {
    size_t       n_k = (size_t)KV_PAGE * shape->head_dim_k;
    const float *k = page_k_floats(CPU_PLAIN, shape->type_k, k_page, shape->head_dim_k, scratch);
    const float *v = page_v_floats(CPU_PLAIN, shape->type_v, v_page, shape->head_dim_v, scratch + n_k);
    for (uint32_t i = 0; i < n_q; i++)
        if (first[i] < last[i]) query_plain(shape, q[i], &states[i], first[i], last[i], k, v);
}

#ifdef NOVA_X86

/* Loops over registers, which must be unrolled; not by "unroll" in clang, which does so before it inlines. */
#if defined(__clang__)
#define ATTEND_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define ATTEND_UNROLL _Pragma("GCC unroll 8")
#else
#define ATTEND_UNROLL
#endif

/* ---- A product of rows: c[r] = keep[r] * c[r] + sum over i of a[r][i] * b[i], where b[i] is a row of the page ---- */

typedef struct row_product {
    const float *a[TILE_ROWS];
    float       *c[TILE_ROWS];
    float        keep[TILE_ROWS];
    const void  *b;               /* halves or floats */
    bool         half;            /* then n_col is a multiple of 16 */
    size_t       n_b, n_col;      /* rows of b, and their length */
    const void  *next;            /* what will be read behind b, and the bytes from there to its next row */
    size_t       next_bytes;
} row_product;

/* Memory is asked for so many rows ahead, since the processor itself looks no further than its next few hundred
 * instructions and the end of a memory page. Each row asks for the cache lines that a tile reads of it. */
#define ROWS_AHEAD 32

NOVA_INLINE void read_ahead(const row_product *p, bool half, size_t i, size_t at, size_t width) {
    size_t      size = half ? sizeof(uint16_t) : sizeof(float), row = p->n_col * size, j = i + ROWS_AHEAD;
    const char *from = (const char *)p->b + j * row + at * size;
    if (j >= p->n_b) from = at + width < p->n_col ? (const char *)p->b + (j - p->n_b) * row + (at + width) * size
                                                  : (const char *)p->next + (j - p->n_b) * p->next_bytes;
    _mm_prefetch(from, _MM_HINT_T0);
    if (width * size > 64) _mm_prefetch(from + 64, _MM_HINT_T0);
}

/* The sixteen (eight) columns from `at` on of the ith row of b: all that a new type of the cache has to bring. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256 load_avx2(const row_product *p, bool half, bool whole, size_t i, size_t at,
                                              __m256i lanes) {
    const uint16_t *halves = (const uint16_t *)p->b + i * p->n_col + at;
    const float    *floats = (const float *)p->b + i * p->n_col + at;
    if (half) return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)halves));
    return whole ? _mm256_loadu_ps(floats) : _mm256_maskload_ps(floats, lanes);   /* a mask costs something */
}

NOVA_TARGET_AVX512 NOVA_INLINE __m512 load_avx512(const row_product *p, bool half, size_t i, size_t at,
                                                  __mmask16 lanes) {
    const uint16_t *halves = (const uint16_t *)p->b + i * p->n_col + at;
    if (half) return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)halves));
    return _mm512_maskz_loadu_ps(lanes, (const float *)p->b + i * p->n_col + at);
}

#define EVERY_ROW      ATTEND_UNROLL for (int r = 0; r < rows; r++)
#define EVERY_REGISTER ATTEND_UNROLL for (int v = 0; v < registers; v++)

/* Columns at .. at + 16 * registers of c. Only a tile of one register may have lanes that are not its own. */
NOVA_TARGET_AVX512 NOVA_INLINE
void attend_tile_avx512(const row_product *p, int rows, int registers, bool half, size_t at) {
    const __mmask16 lanes = registers > 1 ? (__mmask16)0xffff : lanes_avx512(p->n_col - at);
    const float    *a[TILE_ROWS];
    __m512          sum[TILE_ROWS][8], b[8];
    EVERY_ROW {
        const __m512 keep = _mm512_set1_ps(p->keep[r]);
        a[r] = p->a[r];
        EVERY_REGISTER sum[r][v] = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, p->c[r] + at + 16 * (size_t)v), keep);
    }
    for (size_t i = 0; i < p->n_b; i++) {
        if (half) read_ahead(p, half, i, at, 16 * (size_t)registers);
        EVERY_REGISTER b[v] = load_avx512(p, half, i, at + 16 * (size_t)v, lanes);
        EVERY_ROW {
            __m512 x = _mm512_set1_ps(a[r][i]);
            EVERY_REGISTER sum[r][v] = _mm512_fmadd_ps(x, b[v], sum[r][v]);
        }
    }
    EVERY_ROW EVERY_REGISTER _mm512_mask_storeu_ps(p->c[r] + at + 16 * (size_t)v, lanes, sum[r][v]);
}

NOVA_TARGET_AVX2 NOVA_INLINE
void attend_tile_avx2(const row_product *p, int rows, int registers, bool half, size_t at) {
    const __m256i lanes = registers > 1 ? _mm256_set1_epi32(-1) : lanes_avx2(p->n_col - at);
    const float  *a[TILE_ROWS];
    __m256        sum[TILE_ROWS][8], b[8];
    EVERY_ROW {
        const __m256 keep = _mm256_set1_ps(p->keep[r]);
        a[r] = p->a[r];
        EVERY_REGISTER sum[r][v] = _mm256_mul_ps(_mm256_maskload_ps(p->c[r] + at + 8 * (size_t)v, lanes), keep);
    }
    for (size_t i = 0; i < p->n_b; i++) {
        if (half) read_ahead(p, half, i, at, 8 * (size_t)registers);
        EVERY_REGISTER b[v] = load_avx2(p, half, registers > 1, i, at + 8 * (size_t)v, lanes);
        EVERY_ROW {
            __m256 x = _mm256_set1_ps(a[r][i]);
            EVERY_REGISTER sum[r][v] = _mm256_fmadd_ps(x, b[v], sum[r][v]);
        }
    }
    EVERY_ROW EVERY_REGISTER _mm256_maskstore_ps(p->c[r] + at + 8 * (size_t)v, lanes, sum[r][v]);
}

/* All columns of a number of rows. */
#define PRODUCT_ROWS(name, tile, attribute, rows, registers, lanes)                       \
    attribute static void name(const row_product *p) {                                        \
        size_t at = 0;                                                                    \
        if (p->half) {                                                                    \
            for (; at + lanes * registers <= p->n_col; at += lanes * registers)           \
                tile(p, rows, registers, true, at);                                       \
            for (; at < p->n_col; at += lanes) tile(p, rows, 1, true, at);                \
        } else {                                                                          \
            for (; at + lanes * registers <= p->n_col; at += lanes * registers)           \
                tile(p, rows, registers, false, at);                                      \
            for (; at < p->n_col; at += lanes) tile(p, rows, 1, false, at);               \
        }                                                                                 \
    }

PRODUCT_ROWS(product_1_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 1, 8, 8)
PRODUCT_ROWS(product_2_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 2, 4, 8)
PRODUCT_ROWS(product_3_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 3, 2, 8)
PRODUCT_ROWS(product_4_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 4, 2, 8)
PRODUCT_ROWS(product_5_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 5, 2, 8)
PRODUCT_ROWS(product_6_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 6, 2, 8)
PRODUCT_ROWS(product_7_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 7, 1, 8)
PRODUCT_ROWS(product_8_avx2, attend_tile_avx2, NOVA_TARGET_AVX2, 8, 1, 8)
PRODUCT_ROWS(product_1_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 1, 4, 16)
PRODUCT_ROWS(product_2_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 2, 4, 16)
PRODUCT_ROWS(product_3_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 3, 4, 16)
PRODUCT_ROWS(product_4_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 4, 4, 16)
PRODUCT_ROWS(product_5_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 5, 4, 16)
PRODUCT_ROWS(product_6_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 6, 4, 16)
PRODUCT_ROWS(product_7_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 7, 2, 16)
PRODUCT_ROWS(product_8_avx512, attend_tile_avx512, NOVA_TARGET_AVX512, 8, 2, 16)

static void multiply(cpu_level level, const row_product *p, uint32_t rows) {
    static void (*const by_rows[2][TILE_ROWS])(const row_product *) = {
        { product_1_avx2, product_2_avx2, product_3_avx2, product_4_avx2, product_5_avx2, product_6_avx2,
          product_7_avx2, product_8_avx2 },
        { product_1_avx512, product_2_avx512, product_3_avx512, product_4_avx512, product_5_avx512, product_6_avx512,
          product_7_avx512, product_8_avx512 },
    };
    by_rows[level == CPU_AVX512][rows - 1](p);
}

/* ---- The softmax of one row: scores become weights, the state moves on. Gives what the sums so far shrink by. ----
 *
 * Weights below e^-87 are taken for 0, before they become subnormal and slow: where the bits of score - top, which is
 * no positive number, are from those of -87 to those of -infinity. A comparison of floats would not do, as some
 * compilers under -ffast-math do not care on which side of it a NaN falls. */

#define BITS_MINUS_87  ((int32_t)0xc2ae0000u)
#define BITS_MINUS_INF ((int32_t)0xff800000u)

/* Not the compilers' own reductions, which may choose an order, and take it that there is no NaN. */
NOVA_TARGET_AVX2 NOVA_INLINE float sum_of_avx2(__m256 x) {
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

NOVA_TARGET_AVX2 NOVA_INLINE float max_of_avx2(__m256 x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

NOVA_TARGET_AVX512 NOVA_INLINE float sum_of_avx512(__m512 x) {
    return sum_of_avx2(_mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

NOVA_TARGET_AVX512 NOVA_INLINE float max_of_avx512(__m512 x) {
    return max_of_avx2(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

/* The greatest score so far; a NaN among the scores does not matter here, it shows in its weight. */
NOVA_INLINE float top_so_far(float before, float page) { return page > before ? page : before; }

NOVA_TARGET_AVX2
static float softmax_row_avx2(const attend_shape *shape, attend_state *s, float *row, uint32_t first, uint32_t last) {
    const __m256 scale = set_avx2(shape->scale), cap = set_avx2(shape->soft_cap), none = set_avx2(-FLT_MAX);
    __m256  score[KV_PAGE / 8], greatest = none, sum = _mm256_setzero_ps();
    __m256i seen[KV_PAGE / 8];
    for (int v = 0; v < KV_PAGE / 8; v++) {
        __m256i t = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(8 * v));
        seen[v]  = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32((int)first), t),
                                       _mm256_cmpgt_epi32(_mm256_set1_epi32((int)last), t));
        score[v] = _mm256_mul_ps(_mm256_loadu_ps(row + 8 * v), scale);
        if (shape->soft_cap != 0) score[v] = _mm256_mul_ps(cap, tanh_avx2(_mm256_div_ps(score[v], cap)));
        score[v] = _mm256_blendv_ps(none, score[v], _mm256_castsi256_ps(seen[v]));
        greatest = _mm256_max_ps(greatest, score[v]);
    }
    float        top_now = top_so_far(s->top, max_of_avx2(greatest)), keep = 1;
    const __m256 top     = set_avx2(top_now);
    for (int v = 0; v < KV_PAGE / 8; v++) {
        __m256  x     = _mm256_sub_ps(score[v], top), p = exp_avx2(x);
        __m256i bits  = _mm256_castps_si256(x);
        __m256i tiny = _mm256_andnot_si256(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(BITS_MINUS_INF)),
                                            _mm256_cmpgt_epi32(bits, _mm256_set1_epi32(BITS_MINUS_87)));
        p   = _mm256_and_ps(p, _mm256_castsi256_ps(_mm256_andnot_si256(tiny, seen[v])));
        sum = _mm256_add_ps(sum, p);
        _mm256_storeu_ps(row + 8 * v, p);
    }
    if (top_now > s->top) keep = _mm256_cvtss_f32(exp_avx2(set_avx2(s->top - top_now)));
    s->top = top_now;
    s->sum = s->sum * keep + sum_of_avx2(sum);
    return keep;
}

NOVA_TARGET_AVX512
static float softmax_row_avx512(const attend_shape *shape, attend_state *s, float *row, uint32_t first, uint32_t last) {
    const __m512   scale = set_avx512(shape->scale), cap = set_avx512(shape->soft_cap), none = set_avx512(-FLT_MAX);
    const uint64_t seen  = (~(uint64_t)0 << first) & (~(uint64_t)0 >> (KV_PAGE - last));
    __m512 score[KV_PAGE / 16], sum[KV_PAGE / 16];
    ATTEND_UNROLL for (int v = 0; v < KV_PAGE / 16; v++) {
        __m512 x = _mm512_mul_ps(_mm512_loadu_ps(row + 16 * v), scale);
        if (shape->soft_cap != 0) x = _mm512_mul_ps(cap, tanh_avx512(_mm512_div_ps(x, cap)));
        score[v] = _mm512_mask_mov_ps(none, (__mmask16)(seen >> 16 * v), x);
    }
    __m512 greatest = _mm512_max_ps(_mm512_max_ps(score[0], score[1]), _mm512_max_ps(score[2], score[3]));
    float  top_now  = top_so_far(s->top, max_of_avx512(greatest)), keep = 1;
    ATTEND_UNROLL for (int v = 0; v < KV_PAGE / 16; v++) {
        __m512    x     = _mm512_sub_ps(score[v], set_avx512(top_now));
        __m512i   bits  = _mm512_castps_si512(x);
        __mmask16 large = _mm512_cmple_epi32_mask(bits, _mm512_set1_epi32(BITS_MINUS_87));
        __mmask16 other = _mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(BITS_MINUS_INF));
        sum[v] = _mm512_maskz_mov_ps((__mmask16)((seen >> 16 * v) & (uint64_t)(large | other)), exp_core_avx512(x));
        _mm512_storeu_ps(row + 16 * v, sum[v]);
    }
    if (top_now > s->top) keep = _mm512_cvtss_f32(exp_avx512(set_avx512(s->top - top_now)));
    s->top = top_now;
    s->sum = s->sum * keep + sum_of_avx512(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
    return keep;
}

/* ---- A page ---- */

/* Queries that see something, and their rows of scores, then weights. */
typedef struct attend_group {
    uint32_t      n;
    const float  *q[GROUP_ROWS];
    attend_state *state[GROUP_ROWS];
    uint32_t      first[GROUP_ROWS], last[GROUP_ROWS];
    float         keep[GROUP_ROWS];
    float        *rows;
} attend_group;

static uint32_t tile_rows(uint32_t left) { return left <= TILE_ROWS ? left : BEST_ROWS; }

static void scores_of(cpu_level level, const attend_shape *shape, const attend_group *g, row_product *p) {
    p->n_b   = shape->head_dim_k;
    p->n_col = KV_PAGE;
    memset(g->rows, 0, (size_t)g->n * KV_PAGE * sizeof(float));
    for (uint32_t at = 0, n; at < g->n; at += n) {
        n = tile_rows(g->n - at);
        for (uint32_t r = 0; r < n; r++) {
            p->a[r] = g->q[at + r];
            p->c[r] = g->rows + (size_t)(at + r) * KV_PAGE;
            p->keep[r] = 1;
        }
        multiply(level, p, n);
    }
}

/* Adds tokens begin .. end of the page to the group's queries at .. at + n. */
static void add_values(cpu_level level, attend_group *g, row_product *p, const uint8_t *v_page, size_t row_bytes,
                       uint32_t at, uint32_t n, uint32_t begin, uint32_t end) {
    if (begin >= end) return;
    for (uint32_t r = 0; r < n; r++) {
        p->a[r]    = g->rows + (size_t)(at + r) * KV_PAGE + begin;
        p->c[r]    = g->state[at + r]->acc;
        p->keep[r] = g->keep[at + r];
        g->keep[at + r] = 1;   /* applied */
    }
    p->b    = v_page + begin * row_bytes;
    p->n_b  = end - begin;
    p->next = p->b;   /* what follows a page is not known here */
    multiply(level, p, n);
}

/* What one query sees and its neighbour does not must not be touched for the neighbour, even with a weight of 0: it may
 * be an infinity. So tiles take the tokens that all their queries see, and the rest is done one by one. */
static void values_of(cpu_level level, const attend_shape *shape, attend_group *g, row_product *p,
                      const uint8_t *v_page) {
    size_t row_bytes = (size_t)shape->head_dim_v * (p->half ? sizeof(uint16_t) : sizeof(float));
    p->n_col = shape->head_dim_v;
    for (uint32_t at = 0, n; at < g->n; at += n) {
        uint32_t begin = 0, end = KV_PAGE;
        n = tile_rows(g->n - at);
        for (uint32_t r = at; r < at + n; r++) {
            if (g->first[r] > begin) begin = g->first[r];
            if (g->last[r] < end) end = g->last[r];
        }
        if (begin >= end) begin = end = KV_PAGE;
        for (uint32_t r = at; r < at + n; r++)
            add_values(level, g, p, v_page, row_bytes, r, 1, g->first[r], (uint32_t)size_min(begin, g->last[r]));
        add_values(level, g, p, v_page, row_bytes, at, n, begin, end);
        for (uint32_t r = at; r < at + n; r++) add_values(level, g, p, v_page, row_bytes, r, 1, end, g->last[r]);
    }
}

typedef struct page_view {
    const void *k, *v;
    bool        half_k, half_v;
} page_view;

static void attend_rows(cpu_level level, const attend_shape *shape, attend_group *g, const page_view *page) {
    row_product p;
    p.b          = page->k;
    p.half       = page->half_k;
    p.next       = page->v;
    p.next_bytes = shape->head_dim_v * (page->half_v ? sizeof(uint16_t) : sizeof(float));
    scores_of(level, shape, g, &p);
    for (uint32_t r = 0; r < g->n; r++) {
        float *row = g->rows + (size_t)r * KV_PAGE;
        g->keep[r] = level == CPU_AVX512 ? softmax_row_avx512(shape, g->state[r], row, g->first[r], g->last[r])
                                         : softmax_row_avx2(shape, g->state[r], row, g->first[r], g->last[r]);
    }
    p.half = page->half_v;
    values_of(level, shape, g, &p, (const uint8_t *)page->v);
}

/* From so many queries on, converting a page once is faster than converting what each tile reads. */
#define CONVERT_ROWS 17

static page_view view_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const void *k_page,
                           const void *v_page, float *scratch) {
    size_t    n_k = (size_t)KV_PAGE * shape->head_dim_k;
    page_view view;
    view.half_k = shape->type_k == TYPE_F16 && n_q < CONVERT_ROWS;
    view.half_v = shape->type_v == TYPE_F16 && n_q < CONVERT_ROWS && shape->head_dim_v % 16 == 0;
    view.k      = view.half_k ? k_page : page_k_floats(level, shape->type_k, k_page, shape->head_dim_k, scratch);
    view.v      = view.half_v ? v_page : page_v_floats(level, shape->type_v, v_page, shape->head_dim_v, scratch + n_k);
    return view;
}

static void page_fast(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                      attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                      const void *v_page, float *scratch) {
    page_view    view = view_page(level, shape, n_q, k_page, v_page, scratch);
    attend_group g;
    g.n    = 0;
    g.rows = scratch + (size_t)KV_PAGE * ((size_t)shape->head_dim_k + shape->head_dim_v);
    for (uint32_t i = 0; i < n_q; i++) {
        if (first[i] < last[i]) {
            g.q[g.n]     = q[i];
            g.state[g.n] = &states[i];
            g.first[g.n] = first[i];
            g.last[g.n]  = last[i];
            g.n++;
        }
        if (g.n == 0 || (g.n < GROUP_ROWS && i + 1 < n_q)) continue;
        attend_rows(level, shape, &g, &view);
        g.n = 0;
    }
}

#endif

static void attend_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                        attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                        const void *v_page, void *scratch) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        page_fast(level, shape, n_q, q, states, first, last, k_page, v_page, (float *)scratch);
        return;
    }
#endif
    (void)level;
    page_plain(shape, n_q, q, states, first, last, k_page, v_page, (float *)scratch);
}
