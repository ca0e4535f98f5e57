/* Matmul for few columns: see cpu_narrow.h.
 *
 * A row is read in groups of weights: 32 (float types), 128 (types with blocks of 32) or 256 (K-quants). Codes are
 * unpacked once a group to unsigned bytes, and each column adds their dot products with its int8 activations. What a
 * format subtracts from its codes is a product of two sums that do not depend on the codes, so it is prepared with the
 * activations: as the value that an integer sum starts from, or as a float to add a multiple of.
 *
 * Where a row is no multiple of the group, its last group overlaps the one before, and the prepared activations of what
 * is counted already are zero. A row shorter than one group is copied to a padded buffer.
 *
 * The kernels of a level are one loop over rows, inlined for each type and for 1, 2, 4 and 8 columns; other numbers
 * compute a column twice. A new format is a line in NARROW_TYPES and a case where its level unpacks. */
#include "cpu_narrow.h"

/* How the activations lie that a type reads. */
enum {
    FORM_FLOAT,   /* floats */
    FORM_32,      /* blocks of 32 with one scale */
    FORM_K,       /* Q4_K, Q5_K: sub-blocks of 32 with scale and minimum */
    FORM_6K       /* Q6_K: sub-blocks of 16 with a scale */
};

#define NARROW_TYPES(X) /* name, form */ \
    X(F32, FORM_FLOAT)  \
    X(F16, FORM_FLOAT)  \
    X(BF16, FORM_FLOAT) \
    X(Q4_0, FORM_32)    \
    X(Q4_1, FORM_32)    \
    X(Q5_0, FORM_32)    \
    X(Q5_1, FORM_32)    \
    X(Q8_0, FORM_32)    \
    X(Q4_K, FORM_K)     \
    X(Q5_K, FORM_K)     \
    X(Q6_K, FORM_6K)

NOVA_INLINE uint32_t type_form(uint32_t type) {
#define NARROW_FORM_CASE(name, form) case TYPE_##name: return form;
    switch (type) { NARROW_TYPES(NARROW_FORM_CASE) }
#undef NARROW_FORM_CASE
    return FORM_FLOAT;
}

static uint32_t narrow_form(uint32_t type) { return type_form(type); }

/* ---- Prepared activations, one struct a group ----
 *
 * `q` lies in the order of the level's unpacked codes. s is the sum of a (sub-)block's q. */

typedef struct input_float {
    float x[32];
} input_float;

typedef struct input_32 {
    int8_t  q[128];
    float   d[4];
    float   ds[4];      /* d * s */
    int32_t s8[4];      /* -8 * s / 4: four lanes start from it and make up codes that mean code - 8 */
    int32_t s16[4];     /* -16 * s / 4 */
} input_32;

typedef struct input_k {
    int8_t q[256];
    float  d[8];
    float  ds[8];       /* -d * s */
} input_k;

typedef struct input_6k {
    int8_t q[256];
    union {
        struct { float d[16]; int32_t s32[16]; } wide;  /* AVX-512; s32 = -32 * s / 2, for two dwords a sub-block */
        struct { float d[8]; float ds[16]; } half;      /* AVX2; ds = -32 * d * s */
    } u;
} input_6k;

typedef struct narrow_shape {
    uint32_t group;         /* activations */
    uint32_t input_bytes;   /* a group, prepared */
} narrow_shape;

static const narrow_shape narrow_shapes[NARROW_FORMS] = {
    { 32, sizeof(input_float) }, { 128, sizeof(input_32) }, { 256, sizeof(input_k) }, { 256, sizeof(input_6k) }
};

static size_t narrow_groups(uint32_t form, size_t n_in) {
    uint32_t group = narrow_shapes[form].group;
    return n_in / group + (n_in % group != 0);
}

static size_t narrow_input_bytes(uint32_t form, size_t n_in) {
    return narrow_groups(form, n_in) * narrow_shapes[form].input_bytes;
}

static int32_t sum_16(const int8_t *q) {
#ifdef NOVA_X86
    /* Sums of absolute differences from zero, after a shift to 0..255. */
    __m128i moved = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(const void *)q), _mm_set1_epi8(-128));
    __m128i sums  = _mm_sad_epu8(moved, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += q[i];
    return sum;
#endif
}

/* The dwords of q, which is in natural order, in that of the AVX-512 kernels. The four dwords of a lane belong to four
 * blocks (FORM_32) or sub-blocks (FORM_K), the eight dwords of a half register to eight sub-blocks (FORM_6K), so that
 * one register of sums takes all codes and is scaled once. See the unpacking functions. */
static void arrange_avx512(uint32_t form, const int8_t *q, int8_t *out) {
    int n_registers = form == FORM_32 ? 2 : 4;
    for (int v = 0; v < n_registers; v++)
        for (int i = 0; i < 16; i++, out += 4) {
            int lane = i / 4, block = i % 4, sub = i % 8 + (i & 4) + 4 * (v / 2), from;
            if (form == FORM_32) from = 8 * block + 4 * v + lane;
            else if (form == FORM_K) from = 16 * block + 4 * v + lane;
            else from = 4 * sub + 2 * (v % 2) + i / 8;
            memcpy(out, q + 4 * from, 4);
        }
}

static void prepare_32(cpu_level level, const float *x, input_32 *out) {
    int8_t  natural[128];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 128, q, out->d);
    for (int b = 0; b < 4; b++) {
        int32_t s = sum_16(q + 32 * b) + sum_16(q + 32 * b + 16);
        out->ds[b]  = out->d[b] * (float)s;
        out->s8[b]  = -2 * s;
        out->s16[b] = -4 * s;
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_32, q, out->q);
}

/* AVX-512 wants scales of even sub-blocks first, then of odd ones. */
static void prepare_k(cpu_level level, const float *x, input_k *out) {
    int8_t  natural[256];
    float   d[8];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, d);
    for (int b = 0; b < 8; b++) {
        int at = level == CPU_AVX512 ? b / 2 + 4 * (b % 2) : b;
        out->d[at]  = d[b];
        out->ds[at] = -d[b] * (float)(sum_16(q + 32 * b) + sum_16(q + 32 * b + 16));
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_K, q, out->q);
}

/* AVX-512 wants the sub-blocks of each half's first 64 weights, then those of the second 64. */
static void prepare_6k(cpu_level level, const float *x, input_6k *out) {
    int8_t  natural[256];
    float   d[8];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, d);
    for (int b = 0; b < 16; b++) {
        int32_t s = sum_16(q + 16 * b);
        if (level == CPU_AVX512) {
            int at = b % 4 + b / 8 * 4 + b / 4 % 2 * 8;
            out->u.wide.d[at]   = d[b / 2];
            out->u.wide.s32[at] = -16 * s;
        } else {
            out->u.half.d[b / 2] = d[b / 2];
            out->u.half.ds[b]    = -32.0f * d[b / 2] * (float)s;
        }
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_6K, q, out->q);
}

static void prepare_group(cpu_level level, uint32_t form, const float *x, void *out) {
    switch (form) {
        case FORM_32: prepare_32(level, x, (input_32 *)out); break;
        case FORM_K:  prepare_k(level, x, (input_k *)out); break;
        case FORM_6K: prepare_6k(level, x, (input_6k *)out); break;
        default:      memcpy(out, x, sizeof(input_float));
    }
}

static void narrow_prepare(cpu_level level, uint32_t form, const float *x, size_t n_in, size_t begin, size_t end,
                           void *out) {
    size_t   group = narrow_shapes[form].group, bytes = narrow_shapes[form].input_bytes;
    uint8_t *p = (uint8_t *)out + begin / group * bytes;
    for (size_t i = begin; i < end; i += group, p += bytes) {
        if (i + group <= n_in) {
            prepare_group(level, form, x + i, p);
            continue;
        }
        float  last[256] = { 0 };
        size_t rest = n_in - i;   /* at the end of the group, or alone in it */
        memcpy(n_in < group ? last : last + group - rest, x + i, rest * sizeof *x);
        prepare_group(level, form, last, p);
    }
}

/* ---- One call of a kernel ---- */

typedef struct narrow_job {
    const uint8_t *rows;        /* the first row */
    size_t         row_bytes, n_in, n_rows;
    const uint8_t *in[NARROW_MAX];
    float         *out[NARROW_MAX];
} narrow_job;

typedef void (*narrow_kernel)(const narrow_job *job);

/* Constants of a type where the type is a constant. */
NOVA_INLINE uint32_t type_group(uint32_t type) {
#define NARROW_GROUP_CASE(name, form) \
    case TYPE_##name: return form == FORM_FLOAT ? 32 : form == FORM_32 ? 128 : 256;
    switch (type) { NARROW_TYPES(NARROW_GROUP_CASE) }
#undef NARROW_GROUP_CASE
    return 32;
}

NOVA_INLINE uint32_t type_group_bytes(uint32_t type) {
#define GROUP_BYTES_CASE(name, number, weights, bytes) case number: return type_group(type) / weights * bytes;
    switch (type) { TENSOR_TYPES(GROUP_BYTES_CASE) }
#undef GROUP_BYTES_CASE
    return 0;
}

/* ---- Plain C: blocks as floats, times the quantised activations ---- */

static float plain_dot(uint32_t form, const float *w, const void *in) {
    float sum = 0;
    if (form == FORM_FLOAT) {
        const float *x = ((const input_float *)in)->x;
        for (int i = 0; i < 32; i++) sum += w[i] * x[i];
        return sum;
    }
    const int8_t *q = (const int8_t *)in;   /* first in every form */
    const float  *d = form == FORM_32 ? ((const input_32 *)in)->d
                    : form == FORM_K  ? ((const input_k *)in)->d : ((const input_6k *)in)->u.half.d;
    for (uint32_t b = 0; b < narrow_shapes[form].group / 32; b++, w += 32, q += 32) {
        float part = 0;
        for (int i = 0; i < 32; i++) part += w[i] * (float)q[i];
        sum += part * d[b];
    }
    return sum;
}

static void narrow_plain(const narrow_job *job, uint32_t type, uint32_t n_col) {
    const type_info *info = type_of(type);
    uint32_t form  = narrow_form(type);
    size_t   group = narrow_shapes[form].group, n_groups = narrow_groups(form, job->n_in);
    for (size_t r = 0; r < job->n_rows; r++) {
        float w[256] = { 0 }, sum[NARROW_MAX] = { 0 };
        for (size_t g = 0; g < n_groups; g++) {
            size_t n = size_min(group, job->n_in), i = size_min(g * group, job->n_in - n);
            info->to_float(job->rows + r * job->row_bytes + i / info->block_weights * info->block_bytes, w, n);
            for (uint32_t c = 0; c < n_col; c++)
                sum[c] += plain_dot(form, w, job->in[c] + g * narrow_shapes[form].input_bytes);
        }
        for (uint32_t c = 0; c < n_col; c++) job->out[c][r] = sum[c];
    }
}

#ifdef NOVA_X86

#define NARROW_PADDED 136   /* bytes of the largest group of the types whose rows may be shorter than one */

/* Bytes that a row's stream is fetched ahead of its use. */
#define NARROW_AHEAD 1024

#ifdef __clang__
#define NARROW_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define NARROW_UNROLL _Pragma("GCC unroll 4")
#else
#define NARROW_UNROLL
#endif

/* DO(c) for every column of 1, 2, 4 or 8, a constant: arrays indexed like this become registers in every compiler. */
#define COLUMNS(n, DO)                                      \
    do {                                                    \
        DO(0);                                              \
        if ((n) > 1) { DO(1); }                             \
        if ((n) > 2) { DO(2); DO(3); }                      \
        if ((n) > 4) { DO(4); DO(5); DO(6); DO(7); }        \
    } while (0)

NOVA_INLINE void prefetch_group(const uint8_t *p, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += CACHE_LINE) _mm_prefetch((const char *)p + NARROW_AHEAD + i, _MM_HINT_T0);
}

NOVA_TARGET_AVX2 NOVA_INLINE float sum_avx2(__m256 v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/* ---- AVX-512 ---- */

NOVA_TARGET_AVX512 NOVA_INLINE float sum_avx512(__m512 v) {
    return sum_avx2(_mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1)));
}

#define V512(p) _mm512_loadu_si512((const void *)(p))

/* A dword for each of the four positions in a lane, and for each of the four lanes. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i per_block(int b0, int b1, int b2, int b3) { return _mm512_set4_epi32(b3, b2, b1, b0); }
NOVA_TARGET_AVX512 NOVA_INLINE __m512i per_lane(int l0, int l1, int l2, int l3) {
    return _mm512_setr_epi32(l0, l0, l0, l0, l1, l1, l1, l1, l2, l2, l2, l2, l3, l3, l3, l3);
}

/* Bytes of four blocks, one in each dword of a lane: byte i of dword `block` of lane l comes from first_block + 4 l + i. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i blocks_index(int first0, int first1, int first2, int first3) {
    const int every = 0x01010101;
    return _mm512_add_epi8(_mm512_add_epi8(per_block(first0 * every, first1 * every, first2 * every, first3 * every),
                                           per_lane(0, 4 * every, 8 * every, 12 * every)),
                           _mm512_set1_epi32(0x03020100));
}

/* The same with the blocks of `from_b` (a bit a byte) taken from another register. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i blocks_gather(__m512i index, __m512i a, uint64_t from_b, __m512i b) {
    return _mm512_mask_permutexvar_epi8(_mm512_permutexvar_epi8(index, a), from_b, index, b);
}

#define BLOCK_3    0xf000f000f000f000u
#define BLOCKS_2_3 0xff00ff00ff00ff00u

/* Four 16-bit words, repeated. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i words_index(int w0, int w1, int w2, int w3) {
    return _mm512_set1_epi64((int64_t)((uint64_t)w0 | (uint64_t)w1 << 16 | (uint64_t)w2 << 32 | (uint64_t)w3 << 48));
}

/* For one gather of what is not codes: the scales' halves, repeated, in the lower 32 bytes; four dwords of fifth bits from
 * byte 32 on; the minima's halves from byte 48 on. Arguments are offsets in bytes. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i meta_index(int d0, int d1, int d2, int d3, int h0, int h1, int h2, int h3,
                                                  int m0, int m1, int m2, int m3) {
    const __m512i halves = _mm512_set1_epi16(0x0100);
    __m512i scales = _mm512_add_epi8(halves, words_index(d0 * 0x0101, d1 * 0x0101, d2 * 0x0101, d3 * 0x0101));
    __m512i minima = _mm512_add_epi8(halves, words_index(m0 * 0x0101, m1 * 0x0101, m2 * 0x0101, m3 * 0x0101));
    __m512i high   = _mm512_add_epi8(_mm512_set1_epi32(0x03020100),
                                     per_block(h0 * 0x01010101, h1 * 0x01010101, h2 * 0x01010101, h3 * 0x01010101));
    return _mm512_mask_mov_epi64(_mm512_mask_mov_epi64(scales, 0x30, high), 0xc0, minima);
}

/* The lower 16 halves as floats; and four halves from byte 48 on, alone. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512 lower_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_castsi512_si256(v)); }
NOVA_TARGET_AVX512 NOVA_INLINE __m512 halves_at_48(__m512i v) {
    return _mm512_zextps128_ps512(_mm_cvtph_ps(_mm512_extracti32x4_epi32(v, 3)));
}

/* A group of four blocks of 32: lo are weights 0..15 of each, hi 16..31. */
typedef struct group_32_avx512 {
    __m512i lo, hi;
    __m512  scale;   /* of blocks 0 1 2 3 0 1 2 3 ... */
    __m512  min;     /* of blocks 0 1 2 3, then zeros */
} group_32_avx512;

/* Fifth bits. `bits` holds them from byte 32 on, 4 bytes a block; byte i of dword `block` of lane l takes bit
 * 16 * high + 4 l + i of its block. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512i add_bit_5(__m512i codes, __m512i bits, int high) {
    const __m512i index = _mm512_add_epi8(per_block(0x20202020, 0x24242424, 0x28282828, 0x2c2c2c2c),
                                          per_lane(0, 0, 0x01010101, 0x01010101));
    const __m512i which = per_lane(0x08040201, (int)0x80402010, 0x08040201, (int)0x80402010);
    __m512i bytes = _mm512_permutexvar_epi8(_mm512_add_epi8(index, _mm512_set1_epi8((char)(2 * high))), bits);
    return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(bytes, which), codes, _mm512_set1_epi8(16));
}

NOVA_TARGET_AVX512 NOVA_INLINE void nibbles_avx512(__m512i codes, __m512i *lo, __m512i *hi) {
    const __m512i nibble = _mm512_set1_epi8(15);
    *lo = _mm512_and_si512(codes, nibble);
    *hi = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
}

/* What lies where is said in quant.c. Two registers a, b cover the group from its first to its last byte. */
NOVA_TARGET_AVX512 NOVA_INLINE void unpack_32_avx512(uint32_t type, const uint8_t *p, group_32_avx512 *g) {
    __m512i a = V512(p), b, meta;
    g->min = _mm512_setzero_ps();
    switch (type) {
        case TYPE_Q4_0:   /* blocks at 0, 18, 36, 54 */
            b = V512(p + 8);
            nibbles_avx512(blocks_gather(blocks_index(2, 20, 38, 56 - 8), a, BLOCK_3, b), &g->lo, &g->hi);
            g->scale = lower_halves(_mm512_permutexvar_epi16(words_index(0, 9, 18, 27), a));
            break;
        case TYPE_Q4_1:   /* 0, 20, 40, 60 */
            b = V512(p + 16);
            nibbles_avx512(blocks_gather(blocks_index(4, 24, 44, 64 - 16), a, BLOCK_3, b), &g->lo, &g->hi);
            meta = _mm512_permutexvar_epi16(_mm512_mask_mov_epi64(words_index(0, 10, 20, 30), 0xc0, words_index(1, 11, 21, 31)), a);
            g->scale = lower_halves(meta);
            g->min   = halves_at_48(meta);
            break;
        case TYPE_Q5_0:   /* 0, 22, 44, 66 */
            b = V512(p + 24);
            nibbles_avx512(blocks_gather(blocks_index(6, 28, 50 - 24, 72 - 24), a, BLOCKS_2_3, b), &g->lo, &g->hi);
            meta = _mm512_permutex2var_epi8(a, meta_index(0, 22, 44, 66 - 24 + 64, 2, 24, 46, 68 - 24 + 64, 0, 0, 0, 0), b);
            g->lo = add_bit_5(g->lo, meta, 0);
            g->hi = add_bit_5(g->hi, meta, 1);
            g->scale = lower_halves(meta);
            break;
        case TYPE_Q5_1:   /* 0, 24, 48, 72 */
            b = V512(p + 32);
            nibbles_avx512(blocks_gather(blocks_index(8, 32, 56 - 32, 80 - 32), a, BLOCKS_2_3, b), &g->lo, &g->hi);
            meta = _mm512_permutex2var_epi8(a, meta_index(0, 24, 48, 72 - 32 + 64, 4, 28, 52, 76 - 32 + 64,
                                                          2, 26, 50, 74 - 32 + 64), b);
            g->lo = add_bit_5(g->lo, meta, 0);
            g->hi = add_bit_5(g->hi, meta, 1);
            g->scale = lower_halves(meta);
            g->min   = halves_at_48(meta);
            break;
        default:          /* Q8_0: 0, 34, 68, 102; four registers, and codes moved to 0..255 */
            b = V512(p + 56);
            g->scale = lower_halves(_mm512_mask_permutexvar_epi16(_mm512_permutexvar_epi16(words_index(0, 17, 0, 0), a),
                                                                  0xcccccccc, words_index(0, 0, 6, 23), b));
            g->lo = blocks_gather(blocks_index(2, 36, 70 - 56, 104 - 56), a, BLOCKS_2_3, b);
            g->hi = blocks_gather(blocks_index(18 - 18, 52 - 18, 86 - 72, 120 - 72), V512(p + 18), BLOCKS_2_3, V512(p + 72));
            g->lo = _mm512_xor_si512(g->lo, _mm512_set1_epi8(-128));
            g->hi = _mm512_xor_si512(g->hi, _mm512_set1_epi8(-128));
    }
}

NOVA_TARGET_AVX512 NOVA_INLINE __m512 column_32_avx512(uint32_t type, const group_32_avx512 *g, const input_32 *in, __m512 acc) {
    __m512i sum = _mm512_setzero_si512();
    if (type == TYPE_Q4_0 || type == TYPE_Q8_0)
        sum = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)in->s8));
    if (type == TYPE_Q8_0) sum = _mm512_slli_epi32(sum, 4);
    if (type == TYPE_Q5_0) sum = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)in->s16));
    sum = _mm512_dpbusd_epi32(sum, g->lo, V512(in->q));
    sum = _mm512_dpbusd_epi32(sum, g->hi, V512(in->q + 64));
    __m512 scale = _mm512_mul_ps(g->scale, _mm512_broadcast_f32x4(_mm_load_ps(in->d)));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, acc);
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1)
        acc = _mm512_fmadd_ps(g->min, _mm512_zextps128_ps512(_mm_load_ps(in->ds)), acc);
    return acc;
}

/* Sub-blocks 0 2 4 6 (even) and 1 3 5 7 (odd), four dwords of each in each register, as blocks above. */
typedef struct group_k_avx512 {
    __m512i even[2], odd[2];
    __m512  even_scale, odd_scale;
    __m512  factors;   /* d times 8 scales, dmin times 8 minima, each even before odd */
} group_k_avx512;

/* From d, dmin and the 12 bytes of 6-bit factors. A dword takes the byte with a factor's lower bits, and that with its
 * upper two bits, if it has those elsewhere. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512 factors_k_avx512(__m128i head) {
#define AT(low, high) (4 + (low)) | (4 + (high)) << 8
    const __m512i index = _mm512_setr_epi32(AT(0, 0), AT(2, 0), AT(8, 0), AT(10, 2), AT(1, 0), AT(3, 0), AT(9, 1), AT(11, 3),
                                            AT(4, 0), AT(6, 0), AT(8, 4), AT(10, 6), AT(5, 0), AT(7, 0), AT(9, 5), AT(11, 7));
#undef AT
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 0, 0, 4, 4);
    const __m512i lower = per_block(63, 63, 15, 15), upper = per_block(0, 0, 0x30, 0x30);
    __m512i bytes   = _mm512_permutexvar_epi8(index, _mm512_castsi128_si512(head));
    __m512i factors = _mm512_and_si512(_mm512_srlv_epi32(bytes, shift), lower);
    factors = _mm512_or_si512(factors, _mm512_and_si512(_mm512_srli_epi32(bytes, 10), upper));
    __m256i halves = _mm256_permutexvar_epi16(_mm256_setr_epi32(0, 0, 0, 0, 0x10001, 0x10001, 0x10001, 0x10001),
                                              _mm256_castsi128_si256(head));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(factors), _mm512_cvtph_ps(halves));
}

NOVA_TARGET_AVX512 NOVA_INLINE void unpack_k_avx512(uint32_t type, const uint8_t *p, group_k_avx512 *g) {
    /* Dword `run` of lane l: dword l of the 32 bytes of a run, then dword 4 + l. */
    const __m512i first = _mm512_add_epi32(per_block(0, 8, 16, 24), per_lane(0, 1, 2, 3));
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m512i a = V512(codes), b = V512(codes + 64);
    nibbles_avx512(_mm512_permutex2var_epi32(a, first, b), &g->even[0], &g->odd[0]);
    nibbles_avx512(_mm512_permutex2var_epi32(a, second, b), &g->even[1], &g->odd[1]);
    if (type == TYPE_Q5_K) {
        const __m512i bit = _mm512_set1_epi8(16), lanes = per_lane(0, 1, 2, 3);
        const __m512i even = per_block(4, 2, 0, 30), odd = per_block(3, 1, 31, 29);   /* turn bit 2 * run (+ 1) to bit 4 */
        __m512i high = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)(p + 16)));
        for (int v = 0; v < 2; v++) {
            __m512i h = _mm512_permutexvar_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(4 * v)), high);
            g->even[v] = _mm512_or_si512(g->even[v], _mm512_and_si512(_mm512_rolv_epi32(h, even), bit));
            g->odd[v]  = _mm512_or_si512(g->odd[v], _mm512_and_si512(_mm512_rolv_epi32(h, odd), bit));
        }
    }
    g->factors    = factors_k_avx512(_mm_loadu_si128((const __m128i *)(const void *)p));
    g->even_scale = _mm512_shuffle_f32x4(g->factors, g->factors, 0x00);
    g->odd_scale  = _mm512_shuffle_f32x4(g->factors, g->factors, 0x55);
}

NOVA_TARGET_AVX512 NOVA_INLINE __m512 column_k_avx512(const group_k_avx512 *g, const input_k *in, __m512 acc) {
    __m512i even = _mm512_dpbusd_epi32(_mm512_setzero_si512(), g->even[0], V512(in->q));
    __m512i odd  = _mm512_dpbusd_epi32(_mm512_setzero_si512(), g->odd[0], V512(in->q + 128));
    even = _mm512_dpbusd_epi32(even, g->even[1], V512(in->q + 64));
    odd  = _mm512_dpbusd_epi32(odd, g->odd[1], V512(in->q + 192));
    __m512 even_scale = _mm512_mul_ps(g->even_scale, _mm512_broadcast_f32x4(_mm_load_ps(in->d)));
    __m512 odd_scale  = _mm512_mul_ps(g->odd_scale, _mm512_broadcast_f32x4(_mm_load_ps(in->d + 4)));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(even), even_scale, acc);
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(odd), odd_scale, acc);
    return _mm512_mask3_fmadd_ps(g->factors, _mm512_broadcast_f32x8(_mm256_loadu_ps(in->ds)), acc, 0xff00);
}

/* Sub-blocks 0 1 2 3 8 9 10 11 (a) and 4 5 6 7 12 13 14 15 (b), each with a dword in each half of each register. */
typedef struct group_6k_avx512 {
    __m512i a[2], b[2];
    __m512  a_scale, b_scale;
} group_6k_avx512;

NOVA_TARGET_AVX512 NOVA_INLINE void unpack_6k_avx512(const uint8_t *p, group_6k_avx512 *g) {
    /* Dword k of half h: dword h (then 2 + h) of sub-block k's four in the lower bits; the same of the upper bits,
     * where sub-blocks 2, 3 share the bytes of 0, 1, and 6, 7 those of 4, 5. */
    const __m512i low  = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i high = _mm512_setr_epi32(0, 4, 0, 4, 8, 12, 8, 12, 1, 5, 1, 5, 9, 13, 9, 13);
    const __m512i left = per_block(4, 4, 2, 2), right = per_block(0, 0, 2, 2);
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(0x30);
    __m512i low0 = V512(p), low1 = V512(p + 64), high01 = V512(p + 128);
    for (int v = 0; v < 2; v++) {
        const __m512i step = _mm512_set1_epi32(2 * v);
        __m512i l = _mm512_permutex2var_epi32(low0, _mm512_add_epi32(low, step), low1);
        __m512i h = _mm512_permutexvar_epi32(_mm512_add_epi32(high, step), high01);
        g->a[v] = _mm512_or_si512(_mm512_and_si512(l, nibble), _mm512_and_si512(_mm512_sllv_epi32(h, left), upper));
        g->b[v] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(l, 4), nibble),
                                  _mm512_and_si512(_mm512_srlv_epi32(h, right), upper));
    }
    __m512 d      = _mm512_cvtph_ps(_mm256_set1_epi16((short)load_u16(p + 208)));
    __m512 scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 192))));
    scales = _mm512_mul_ps(scales, d);
    g->a_scale = _mm512_shuffle_f32x4(scales, scales, 0x88);
    g->b_scale = _mm512_shuffle_f32x4(scales, scales, 0xdd);
}

NOVA_TARGET_AVX512 NOVA_INLINE __m512 column_6k_avx512(const group_6k_avx512 *g, const input_6k *in, __m512 acc) {
    const __m256i *s32 = (const __m256i *)(const void *)in->u.wide.s32;
    __m512i a = _mm512_broadcast_i32x8(_mm256_loadu_si256(s32)), b = _mm512_broadcast_i32x8(_mm256_loadu_si256(s32 + 1));
    a = _mm512_dpbusd_epi32(a, g->a[0], V512(in->q));
    b = _mm512_dpbusd_epi32(b, g->b[0], V512(in->q + 128));
    a = _mm512_dpbusd_epi32(a, g->a[1], V512(in->q + 64));
    b = _mm512_dpbusd_epi32(b, g->b[1], V512(in->q + 192));
    __m512 a_scale = _mm512_mul_ps(g->a_scale, _mm512_broadcast_f32x8(_mm256_loadu_ps(in->u.wide.d)));
    __m512 b_scale = _mm512_mul_ps(g->b_scale, _mm512_broadcast_f32x8(_mm256_loadu_ps(in->u.wide.d + 8)));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a), a_scale, acc);
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(b), b_scale, acc);
}

/* 16 weights of a float type. */
NOVA_TARGET_AVX512 NOVA_INLINE __m512 floats_avx512(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm512_loadu_ps((const void *)p);
    __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)p);
    if (type == TYPE_F16) return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Adds one group of a row to the sums of n columns. Float types use two sums a column, acc[c] and acc[8 + c]. */
NOVA_TARGET_AVX512 NOVA_INLINE void group_avx512(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in,
                                                 size_t at, __m512 *acc) {
#define IN(c, form) ((const form *)(const void *)(in[c] + at))
    if (type_form(type) == FORM_32) {
        group_32_avx512 g;
        unpack_32_avx512(type, p, &g);
#define DO(c) acc[c] = column_32_avx512(type, &g, IN(c, input_32), acc[c])
        COLUMNS(n, DO);
#undef DO
    } else if (type_form(type) == FORM_K) {
        group_k_avx512 g;
        unpack_k_avx512(type, p, &g);
#define DO(c) acc[c] = column_k_avx512(&g, IN(c, input_k), acc[c])
        COLUMNS(n, DO);
#undef DO
    } else if (type_form(type) == FORM_6K) {
        group_6k_avx512 g;
        unpack_6k_avx512(p, &g);
#define DO(c) acc[c] = column_6k_avx512(&g, IN(c, input_6k), acc[c])
        COLUMNS(n, DO);
#undef DO
    } else {
        __m512 w0 = floats_avx512(type, p), w1 = floats_avx512(type, p + type_group_bytes(type) / 2);
#define DO(c)                                                                            acc[c]     = _mm512_fmadd_ps(w0, _mm512_loadu_ps(IN(c, input_float)->x), acc[c]);     acc[8 + c] = _mm512_fmadd_ps(w1, _mm512_loadu_ps(IN(c, input_float)->x + 16), acc[8 + c])
        COLUMNS(n, DO);
#undef DO
    }
#undef IN
}

NOVA_TARGET_AVX512 NOVA_INLINE void rows_avx512(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t group_bytes = type_group_bytes(type), input_bytes = narrow_shapes[type_form(type)].input_bytes;
    const bool     is_short    = job->n_in < type_group(type);
    const size_t   row_length  = type_row_bytes(type, job->n_in);
    const size_t   last        = is_short ? 0 : row_length - group_bytes;   /* where a row's last group starts */
    const size_t   end         = narrow_input_bytes(type_form(type), job->n_in);
    uint8_t        padded[NARROW_PADDED] = { 0 };
    for (size_t r = 0; r < job->n_rows; r++) {
        const uint8_t *row = job->rows + r * job->row_bytes;
        if (is_short) row = (const uint8_t *)memcpy(padded, row, row_length);
        __m512 acc[2 * NARROW_MAX];
#define DO(c) acc[c] = acc[8 + c] = _mm512_setzero_ps()
        COLUMNS(n, DO);
#undef DO
        for (size_t at = 0, p = 0; at < end; at += input_bytes) {
            prefetch_group(row + p, group_bytes);
            group_avx512(type, n, row + p, job->in, at, acc);
            p = size_min(p + group_bytes, last);
        }
#define DO(c) job->out[c][r] = sum_avx512(type_form(type) == FORM_FLOAT ? _mm512_add_ps(acc[c], acc[8 + c]) : acc[c])
        COLUMNS(n, DO);
#undef DO
    }
}

/* ---- AVX2: activations and codes in natural order ---- */

#define V256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))

/* Sums of four products each: unsigned codes, so small that pairs of products fit 16 bits, times activations. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i dot_unsigned_avx2(__m256i codes, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}

NOVA_TARGET_AVX2 NOVA_INLINE __m256i dot_signed_avx2(__m256i codes, __m256i x) {
    return dot_unsigned_avx2(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
}

/* acc + sum * scale[0] */
NOVA_TARGET_AVX2 NOVA_INLINE __m256 add_scaled_avx2(__m256 acc, __m256i sum, const float *scale) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(scale), acc);
}

/* Scales of four blocks of 32, and what is added for a sum of activations. */
NOVA_TARGET_AVX2 NOVA_INLINE void scales_32_avx2(uint32_t type, const uint8_t *p, __m128 *scale, __m128 *min) {
    const uint32_t bytes = type_group_bytes(type) / 4;
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) {
        __m256 v = _mm256_cvtph_ps(_mm_setr_epi32((int)load_u32(p), (int)load_u32(p + bytes), (int)load_u32(p + 2 * bytes),
                                                  (int)load_u32(p + 3 * bytes)));
        __m128 l = _mm256_castps256_ps128(v), h = _mm256_extractf128_ps(v, 1);
        *scale = _mm_shuffle_ps(l, h, 0x88);
        *min   = _mm_shuffle_ps(l, h, 0xdd);
        return;
    }
    uint64_t halves = (uint64_t)load_u16(p) | (uint64_t)load_u16(p + bytes) << 16 | (uint64_t)load_u16(p + 2 * bytes) << 32
                    | (uint64_t)load_u16(p + 3 * bytes) << 48;
    *scale = _mm_cvtph_ps(_mm_cvtsi64_si128((int64_t)halves));
    *min   = type == TYPE_Q8_0 ? _mm_setzero_ps() : _mm_mul_ps(*scale, _mm_set1_ps(type == TYPE_Q4_0 ? -8.0f : -16.0f));
}

/* 32 codes of a block with 4 or 5 bits. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i codes_32_avx2(uint32_t type, const uint8_t *p) {
    const uint32_t at = type == TYPE_Q4_0 ? 2 : type == TYPE_Q4_1 ? 4 : type == TYPE_Q5_0 ? 6 : 8;
    __m256i both  = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p + at)));
    __m256i codes = _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
    if (type == TYPE_Q4_0 || type == TYPE_Q4_1) return codes;
    const __m256i replicate = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i which     = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_u32(p + at - 4)), replicate);
    __m256i set   = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, which), which);
    return _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

NOVA_TARGET_AVX2 NOVA_INLINE void group_32_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in,
                                                size_t at, __m256 *acc) {
#define IN(c) ((const input_32 *)(const void *)(in[c] + at))
    float  s[NARROW_MAX][4];
    __m128 scale, min;
    scales_32_avx2(type, p, &scale, &min);
#define DO(c) _mm_storeu_ps(s[c], _mm_mul_ps(scale, _mm_loadu_ps(IN(c)->d)))
    COLUMNS(n, DO);
#undef DO
    if (type != TYPE_Q8_0) {
#define DO(c) acc[c] = _mm256_fmadd_ps(_mm256_zextps128_ps256(min), _mm256_zextps128_ps256(_mm_loadu_ps(IN(c)->ds)), acc[c])
        COLUMNS(n, DO);
#undef DO
    }
    NARROW_UNROLL
    for (int b = 0; b < 4; b++, p += type_group_bytes(type) / 4) {
        __m256i codes = type == TYPE_Q8_0 ? V256(p + 2) : codes_32_avx2(type, p);
#define DO(c)                                                                                                                  acc[c] = add_scaled_avx2(acc[c], type == TYPE_Q8_0 ? dot_signed_avx2(codes, V256(IN(c)->q + 32 * b))                                                                          : dot_unsigned_avx2(codes, V256(IN(c)->q + 32 * b)), &s[c][b])
        COLUMNS(n, DO);
#undef DO
    }
#undef IN
}

/* d times 8 scales and dmin times 8 minima from the head of a K-quant: the 6-bit factors by four at a time. */
NOVA_TARGET_AVX2 NOVA_INLINE void factors_k_avx2(const uint8_t *p, __m256 *scale, __m256 *min) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, bits_4_5 = 0x30303030;
    uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    uint64_t scales = (a & low6) | (uint64_t)((c & low4) | ((a >> 2) & bits_4_5)) << 32;
    uint64_t minima = (b & low6) | (uint64_t)(((c >> 4) & low4) | ((b >> 2) & bits_4_5)) << 32;
    __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(p)));   /* d, dmin */
    *scale = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)scales))), _mm256_broadcastss_ps(d));
    *min   = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)minima))),
                           _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

NOVA_TARGET_AVX2 NOVA_INLINE void group_k_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in,
                                               size_t at, __m256 *acc) {
#define IN(c) ((const input_k *)(const void *)(in[c] + at))
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    float  s[NARROW_MAX][8];
    __m256 scale, min;
    factors_k_avx2(p, &scale, &min);
#define DO(c)                                                                _mm256_storeu_ps(s[c], _mm256_mul_ps(scale, _mm256_loadu_ps(IN(c)->d)));     acc[c] = _mm256_fmadd_ps(min, _mm256_loadu_ps(IN(c)->ds), acc[c])
    COLUMNS(n, DO);
#undef DO
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m256i        high  = V256(p + 16);   /* Q5_K: the next sub-block's fifth bits, kept in bit 0 of each byte */
    NARROW_UNROLL
    for (int run = 0; run < 4; run++) {
        __m256i both = V256(codes + 32 * run);
        __m256i even = _mm256_and_si256(both, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        if (type == TYPE_Q5_K) {
            even = _mm256_or_si256(even, _mm256_and_si256(_mm256_slli_epi16(high, 4), bit));
            odd  = _mm256_or_si256(odd, _mm256_and_si256(_mm256_slli_epi16(high, 3), bit));
            high = _mm256_srli_epi16(high, 2);
        }
#define DO(c)                                                                                                            acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(even, V256(IN(c)->q + 64 * run)), &s[c][2 * run]);                acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(odd, V256(IN(c)->q + 64 * run + 32)), &s[c][2 * run + 1])
        COLUMNS(n, DO);
#undef DO
    }
#undef IN
}

NOVA_TARGET_AVX2 NOVA_INLINE void group_6k_avx2(uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at, __m256 *acc) {
#define IN(c) ((const input_6k *)(const void *)(in[c] + at))
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(0x30);
    __m128i bytes  = _mm_loadu_si128((const __m128i *)(const void *)(p + 192));
    __m256i scales = _mm256_cvtepi8_epi16(bytes);
    __m256  d      = _mm256_cvtph_ps(_mm_set1_epi16((short)load_u16(p + 208)));
    __m256  first  = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    __m256  second = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
    float   s[NARROW_MAX][8];
#define DO(c)                                                                         _mm256_storeu_ps(s[c], _mm256_mul_ps(d, _mm256_loadu_ps(IN(c)->u.half.d)));       acc[c] = _mm256_fmadd_ps(first, _mm256_loadu_ps(IN(c)->u.half.ds), acc[c]);       acc[c] = _mm256_fmadd_ps(second, _mm256_loadu_ps(IN(c)->u.half.ds + 8), acc[c])
    COLUMNS(n, DO);
#undef DO
    /* Even sub-blocks' scales in the lower lane, odd ones' in the upper: each lane of 32 codes has its own. */
    const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    scales = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scales, pairs), 0xd8);
    NARROW_UNROLL
    for (int half = 0; half < 2; half++, p += 64) {
        __m256i high = V256(p + (half ? 96 : 128));   /* bytes 128 and 160 of the block: p has moved by 64 */
        NARROW_UNROLL
        for (int run = 0; run < 4; run++) {
            int     j   = 4 * half + run;
            __m256i low = V256(p + 32 * (run % 2));
            if (run >= 2) low = _mm256_srli_epi16(low, 4);
            __m256i codes = _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_and_si256(_mm256_slli_epi16(high, 4), upper));
            __m256i scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
            high = _mm256_srli_epi16(high, 2);
#define DO(c)                                                                                                                   acc[c] = add_scaled_avx2(acc[c], _mm256_madd_epi16(_mm256_maddubs_epi16(codes, V256(IN(c)->q + 32 * j)), scale), &s[c][j])
            COLUMNS(n, DO);
#undef DO
        }
    }
#undef IN
}

/* 8 weights of a float type. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256 floats_avx2(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)p);
    if (type == TYPE_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

NOVA_TARGET_AVX2 NOVA_INLINE void group_float_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in,
                                                   size_t at, __m256 *acc) {
    NARROW_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t half = type_group_bytes(type) / 2;
        __m256 w0 = floats_avx2(type, p + i * half), w1 = floats_avx2(type, p + i * half + half / 2);
#define DO(c)                                                                                                               acc[c] = _mm256_fmadd_ps(w0, _mm256_loadu_ps((const float *)(const void *)(in[c] + at + 64 * i)), acc[c]);              acc[8 + c] = _mm256_fmadd_ps(w1, _mm256_loadu_ps((const float *)(const void *)(in[c] + at + 64 * i + 32)), acc[8 + c])
        COLUMNS(n, DO);
#undef DO
    }
}

NOVA_TARGET_AVX2 NOVA_INLINE void group_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in,
                                             size_t at, __m256 *acc) {
    switch (type_form(type)) {
        case FORM_32: group_32_avx2(type, n, p, in, at, acc); break;
        case FORM_K:  group_k_avx2(type, n, p, in, at, acc); break;
        case FORM_6K: group_6k_avx2(n, p, in, at, acc); break;
        default:      group_float_avx2(type, n, p, in, at, acc);
    }
}

NOVA_TARGET_AVX2 NOVA_INLINE void rows_avx2(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t group_bytes = type_group_bytes(type), input_bytes = narrow_shapes[type_form(type)].input_bytes;
    const bool     is_short    = job->n_in < type_group(type);
    const size_t   row_length  = type_row_bytes(type, job->n_in);
    const size_t   last        = is_short ? 0 : row_length - group_bytes;   /* where a row's last group starts */
    const size_t   end         = narrow_input_bytes(type_form(type), job->n_in);
    uint8_t        padded[NARROW_PADDED] = { 0 };
    for (size_t r = 0; r < job->n_rows; r++) {
        const uint8_t *row = job->rows + r * job->row_bytes;
        if (is_short) row = (const uint8_t *)memcpy(padded, row, row_length);
        __m256 acc[2 * NARROW_MAX];
#define DO(c) acc[c] = acc[8 + c] = _mm256_setzero_ps()
        COLUMNS(n, DO);
#undef DO
        for (size_t at = 0, p = 0; at < end; at += input_bytes) {
            prefetch_group(row + p, group_bytes);
            group_avx2(type, n, row + p, job->in, at, acc);
            p = size_min(p + group_bytes, last);
        }
#define DO(c) job->out[c][r] = sum_avx2(type_form(type) == FORM_FLOAT ? _mm256_add_ps(acc[c], acc[8 + c]) : acc[c])
        COLUMNS(n, DO);
#undef DO
    }
}

/* ---- The kernels' table ---- */

#define NARROW_KERNEL(level, LEVEL, name, n) \
    NOVA_TARGET_##LEVEL static void narrow_##name##_##level##_##n(const narrow_job *job) { rows_##level(TYPE_##name, n, job); }
#define NARROW_KERNELS(name, form)                                                      \
    NARROW_KERNEL(avx2, AVX2, name, 1) NARROW_KERNEL(avx2, AVX2, name, 2)               \
    NARROW_KERNEL(avx2, AVX2, name, 4) NARROW_KERNEL(avx2, AVX2, name, 8)               \
    NARROW_KERNEL(avx512, AVX512, name, 1) NARROW_KERNEL(avx512, AVX512, name, 2)       \
    NARROW_KERNEL(avx512, AVX512, name, 4) NARROW_KERNEL(avx512, AVX512, name, 8)
NARROW_TYPES(NARROW_KERNELS)

/* For n = 1, 2, 4, 8 columns. */
static narrow_kernel narrow_kernel_of(cpu_level level, uint32_t type, uint32_t n) {
#define NARROW_KERNEL_ROW(name, form)                                                                               \
    case TYPE_##name: {                                                                                             \
        static const narrow_kernel kernels[2][4] = {                                                                \
            { narrow_##name##_avx2_1, narrow_##name##_avx2_2, narrow_##name##_avx2_4, narrow_##name##_avx2_8 },      \
            { narrow_##name##_avx512_1, narrow_##name##_avx512_2, narrow_##name##_avx512_4, narrow_##name##_avx512_8 } }; \
        return kernels[level == CPU_AVX512][n == 8 ? 3 : n / 2];                                                    \
    }
    switch (type) { NARROW_TYPES(NARROW_KERNEL_ROW) }
#undef NARROW_KERNEL_ROW
    return NULL;
}

#endif

static void narrow_matmul(cpu_level level, const weight *w, const void *const *inputs, uint32_t n_col,
                          uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out) {
    uint32_t   n = n_col <= 1 ? 1 : n_col <= 2 ? 2 : n_col <= 4 ? 4 : 8;
    narrow_job job;
    job.rows      = w->data + row_begin * w->row_bytes;
    job.row_bytes = w->row_bytes;
    job.n_in      = w->n_in;
    job.n_rows    = row_end - row_begin;
    for (uint32_t c = 0; c < n; c++) {   /* a kernel's columns beyond n_col repeat the first */
        job.in[c]  = (const uint8_t *)inputs[c < n_col ? c : 0];
        job.out[c] = out + (c < n_col ? c : 0) * ld_out + row_begin;
    }
#ifdef NOVA_X86
    narrow_kernel kernel = level == CPU_PLAIN ? NULL : narrow_kernel_of(level, w->type, n);
    if (kernel) {
        kernel(&job);
        return;
    }
#endif
    (void)level;
    narrow_plain(&job, w->type, n_col);
}
