/* Matmul for few columns: see cpu_narrow.h.
 *
 * A row is read in groups of weights: 256, or 32 of the float types. Codes are unpacked once a group to unsigned bytes,
 * and each column adds their dot products with its int8 activations. What a format subtracts from its codes contributes
 * a multiple of the activations' sum, so that sum is prepared with them: as the value that an integer sum starts from,
 * or as a float to add a multiple of.
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
    FORM_32,      /* for weights with a scale for 32 */
    FORM_16       /* for weights with a scale for 16 */
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
    X(Q4_K, FORM_32)    \
    X(Q5_K, FORM_32)    \
    X(Q6_K, FORM_16)

NOVA_INLINE uint32_t type_form(uint32_t type) {
#define NARROW_FORM_CASE(name, form) case TYPE_##name: return form;
    switch (type) { NARROW_TYPES(NARROW_FORM_CASE) }
#undef NARROW_FORM_CASE
    return FORM_FLOAT;
}

static uint32_t narrow_form(uint32_t type) { return type_form(type); }

/* ---- Prepared activations, one struct a group ----
 *
 * q lies in natural order, or in that of the AVX-512 kernels' codes, see arrange_avx512. s is the sum of q over the
 * 32 or 16 weights of one scale. */

typedef struct input_float {
    float x[32];
} input_float;

typedef struct input_32 {
    int8_t  q[256];
    float   d[8];
    float   ds[8];    /* d * s */
    int32_t s4[8];    /* -4 * s: two sums start from it and make up for codes that mean code - 8 */
    int32_t s8[8];    /* -8 * s: the same for code - 16 */
} input_32;

typedef struct input_16 {
    int8_t q[256];
    union {
        struct { float d[16]; int32_t s32[16]; } by_16;   /* AVX-512; s32 = -32 * s: code - 32 */
        struct { float d[8]; float ds32[16]; } by_32;     /* others; ds32 = -32 * d * s */
    } u;
} input_16;

NOVA_INLINE uint32_t form_group(uint32_t form) { return form == FORM_FLOAT ? 32 : 256; }
NOVA_INLINE uint32_t form_input_bytes(uint32_t form) {
    return form == FORM_FLOAT ? sizeof(input_float) : form == FORM_32 ? sizeof(input_32) : sizeof(input_16);
}

static size_t narrow_input_bytes(uint32_t form, size_t n_in) {
    uint32_t group = form_group(form);
    return (n_in / group + (n_in % group != 0)) * form_input_bytes(form);
}

/* Loads from anywhere. */
#define V128(p) _mm_loadu_si128((const __m128i *)(const void *)(p))
#define V256(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define V512(p) _mm512_loadu_si512((const void *)(p))

static int32_t sum_16(const int8_t *q) {
#ifdef NOVA_X86
    /* Sums of absolute differences from zero, after a shift to 0..255. */
    __m128i moved = _mm_xor_si128(V128(q), _mm_set1_epi8(-128));
    __m128i sums  = _mm_sad_epu8(moved, _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 16 * 128;
#else
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += q[i];
    return sum;
#endif
}

/* Each of the four registers of codes has one dword of every 16 weights with a scale (FORM_16), or two of every 32, one
 * in each half (FORM_32): so one register of sums takes all codes of a group, and is scaled once. */
#ifdef NOVA_X86
NOVA_TARGET_AVX512 static void arrange_avx512(uint32_t form, const int8_t *q, int8_t *out) {
    /* From the first 128 bytes or the last, by the mask. */
    const __m512i by_16 = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i by_32 = _mm512_setr_epi32(0, 8, 16, 24, 0, 8, 16, 24, 1, 9, 17, 25, 1, 9, 17, 25);
    const __m512i a = V512(q), b = V512(q + 64), c = V512(q + 128), d = V512(q + 192);
    for (int v = 0; v < 4; v++) {
        __m512i index = form == FORM_16 ? _mm512_add_epi32(by_16, _mm512_set1_epi32(v))
                                        : _mm512_add_epi32(by_32, _mm512_set1_epi32(2 * v));
        __m512i first = _mm512_permutex2var_epi32(a, index, b), last = _mm512_permutex2var_epi32(c, index, d);
        _mm512_storeu_si512(out + 64 * v, _mm512_mask_mov_epi32(first, form == FORM_16 ? 0xff00 : 0xf0f0, last));
    }
}
#else
static void arrange_avx512(uint32_t form, const int8_t *q, int8_t *out) { (void)form, (void)q, (void)out; }
#endif

static void prepare_32(cpu_level level, const float *x, input_32 *out) {
    int8_t  natural[256];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, out->d);
    for (int b = 0; b < 8; b++) {
        int32_t s = sum_16(q + 32 * b) + sum_16(q + 32 * b + 16);
        out->ds[b] = out->d[b] * (float)s;
        out->s4[b] = -4 * s;
        out->s8[b] = -8 * s;
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_32, q, out->q);
}

static void prepare_16(cpu_level level, const float *x, input_16 *out) {
    int8_t  natural[256];
    float   d[8];
    int8_t *q = level == CPU_AVX512 ? natural : out->q;
    input_quantise(level, x, 256, q, d);
    for (int b = 0; b < 16; b++) {
        int32_t s = sum_16(q + 16 * b);
        if (level == CPU_AVX512) {
            out->u.by_16.d[b]   = d[b / 2];
            out->u.by_16.s32[b] = -32 * s;
        } else {
            out->u.by_32.d[b / 2] = d[b / 2];
            out->u.by_32.ds32[b]  = -32.0f * d[b / 2] * (float)s;
        }
    }
    if (level == CPU_AVX512) arrange_avx512(FORM_16, q, out->q);
    else memset(out->u.by_32.ds32 + 16, 0, sizeof out->u - sizeof out->u.by_32);
}

static void prepare_group(cpu_level level, uint32_t form, const float *x, void *out) {
    switch (form) {
        case FORM_32: prepare_32(level, x, (input_32 *)out); break;
        case FORM_16: prepare_16(level, x, (input_16 *)out); break;
        default:      memcpy(out, x, sizeof(input_float));
    }
}

static void narrow_prepare(cpu_level level, uint32_t form, const float *x, size_t n_in, size_t begin, size_t end,
                           void *out) {
    size_t   group = form_group(form), bytes = form_input_bytes(form);
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

/* ---- Plain C: weights as floats, times the quantised activations ---- */

static float plain_dot(uint32_t form, const float *w, const void *in) {
    float sum = 0;
    if (form == FORM_FLOAT) {
        const float *x = ((const input_float *)in)->x;
        for (int i = 0; i < 32; i++) sum += w[i] * x[i];
        return sum;
    }
    const int8_t *q = (const int8_t *)in;   /* first in both forms */
    const float  *d = form == FORM_32 ? ((const input_32 *)in)->d : ((const input_16 *)in)->u.by_32.d;
    for (int b = 0; b < 8; b++, w += 32, q += 32) {
        float part = 0;
        for (int i = 0; i < 32; i++) part += w[i] * (float)q[i];
        sum += part * d[b];
    }
    return sum;
}

static void narrow_plain(const narrow_job *job, uint32_t type, uint32_t n_col) {
    const type_layout *info = type_of(type);
    uint32_t form = narrow_form(type), group = form_group(form), input_bytes = form_input_bytes(form);
    size_t   end  = narrow_input_bytes(form, job->n_in), n = size_min(group, job->n_in);
    for (size_t r = 0; r < job->n_rows; r++) {
        const uint8_t *row = job->rows + r * job->row_bytes;
        float w[256] = { 0 }, sum[NARROW_MAX] = { 0 };
        for (size_t at = 0, i = 0; at < end; at += input_bytes, i += group) {
            info->to_float(row + size_min(i, job->n_in - n) / info->block_weights * info->block_bytes, w, n);
            for (uint32_t c = 0; c < n_col; c++) sum[c] += plain_dot(form, w, job->in[c] + at);
        }
        for (uint32_t c = 0; c < n_col; c++) job->out[c][r] = sum[c];
    }
}

#ifdef NOVA_X86

/* ---- What both levels share ---- */

#define INLINE_AVX2   NOVA_TARGET_AVX2 NOVA_INLINE
#define INLINE_AVX512 NOVA_TARGET_AVX512 NOVA_INLINE

/* One stream of addresses does not keep enough reads from memory under way. So the rows of a call are walked in
 * NARROW_STREAMS parts side by side, a tile of each part's row at a time, and each stream is fetched ahead. */
#define NARROW_STREAMS    4
#define NARROW_TILE_BYTES 768
#define NARROW_AHEAD      2048

#define NARROW_PADDED     272   /* the largest group of a type whose rows may be shorter than one: Q8_0's */

/* DO(c) for every column of 1, 2, 4 or 8, a constant: arrays indexed like this become registers in every compiler. */
#define COLUMNS(n, DO)                                      \
    do {                                                    \
        DO(0);                                              \
        if ((n) > 1) { DO(1); }                             \
        if ((n) > 2) { DO(2); DO(3); }                      \
        if ((n) > 4) { DO(4); DO(5); DO(6); DO(7); }        \
    } while (0)

/* Before a loop of a constant number of rounds: all of them (registers are indexed), or some (speed alone). */
#if defined(__clang__)
#define NARROW_UNROLL      _Pragma("clang loop unroll(full)")
#define NARROW_UNROLL_SOME
#elif defined(__GNUC__)
#define NARROW_UNROLL      _Pragma("GCC unroll 4")
#define NARROW_UNROLL_SOME _Pragma("GCC unroll 4")
#else
#define NARROW_UNROLL
#define NARROW_UNROLL_SOME
#endif

NOVA_INLINE uint32_t type_group_bytes(uint32_t type) {
#define GROUP_BYTES_CASE(name, number, weights, bytes) \
    case number: return form_group(type_form(type)) / weights * bytes;
    switch (type) { TENSOR_TYPES(GROUP_BYTES_CASE) }
#undef GROUP_BYTES_CASE
    return 0;
}

NOVA_INLINE uint32_t type_tile_groups(uint32_t type) {
    uint32_t bytes = type_group_bytes(type);
    return bytes < NARROW_TILE_BYTES ? NARROW_TILE_BYTES / bytes : 1;
}

/* A part of every row. */
typedef struct narrow_tile {
    size_t in, in_end;   /* of the prepared activations, in bytes */
    size_t p, p_last;    /* of the row: here, and where its last group starts */
} narrow_tile;

/* Behind the last row this asks for what is not there, which does no harm. */
NOVA_INLINE void fetch_group(const uint8_t *p, uint32_t bytes) {
    for (uint32_t i = 0; i < bytes; i += CACHE_LINE)
        _mm_prefetch((const char *)((uintptr_t)p + NARROW_AHEAD + i), _MM_HINT_T0);
}

/* ---- AVX-512 ---- */


/* 256 codes in the order of arrange_avx512, and what they are multiplied by. */
typedef struct group_avx512 {
    __m512i codes[4];
    __m512  scale;   /* of each dword of sums */
    __m512  min;     /* in the upper half: of eight blocks */
} group_avx512;

/* A dword for each of eight blocks, in both halves; and one for each half. */
INLINE_AVX512 __m512i per_block(int b0, int b1, int b2, int b3, int b4, int b5, int b6, int b7) {
    return _mm512_setr_epi32(b0, b1, b2, b3, b4, b5, b6, b7, b0, b1, b2, b3, b4, b5, b6, b7);
}
INLINE_AVX512 __m512i per_half(int h0, int h1) {
    return _mm512_setr_epi32(h0, h0, h0, h0, h0, h0, h0, h0, h1, h1, h1, h1, h1, h1, h1, h1);
}

/* Eight blocks of 32 are gathered from three windows of 64 bytes: blocks 0 1 2, 3 4 5, 6 7. */
typedef struct windows_avx512 { __m512i a, b, c; } windows_avx512;

/* `shift`: where a window starts behind its first block; the last ends where the group ends. */
INLINE_AVX512 void windows_load(windows_avx512 *w, const uint8_t *p, uint32_t bytes, uint32_t shift) {
    w->a = V512(p + shift);
    w->b = V512(p + 3 * bytes + shift);
    w->c = V512(p + 8 * bytes - 64);
}

/* Where in its window each block's byte `at` lies, in every byte of the block's dwords. */
INLINE_AVX512 __m512i windows_index(int bytes, int shift, int at) {
    const int every = 0x01010101, a = at - shift, c = at + 64 - 2 * bytes;
    return per_block(a * every, (a + bytes) * every, (a + 2 * bytes) * every, a * every, (a + bytes) * every,
                     (a + 2 * bytes) * every, c * every, (c + bytes) * every);
}

/* A mask of bytes for both halves. */
#define BOTH_HALVES(bytes) ((uint64_t)(bytes) * 0x100000001u)

INLINE_AVX512 __m512i windows_gather(const windows_avx512 *w, __m512i index) {
    __m512i v = _mm512_permutexvar_epi8(index, w->a);
    v = _mm512_mask_permutexvar_epi8(v, BOTH_HALVES(0x00fff000), index, w->b);
    return _mm512_mask_permutexvar_epi8(v, BOTH_HALVES(0xff000000), index, w->c);
}

/* Eight bytes of each block, from the one that `first` names: dword h of them in half h. */
INLINE_AVX512 __m512i codes_index(__m512i first) {
    return _mm512_add_epi8(first, _mm512_add_epi8(per_half(0, 0x04040404), _mm512_set1_epi32(0x03020100)));
}

INLINE_AVX512 void nibbles_avx512(__m512i codes, __m512i *low, __m512i *high) {
    const __m512i nibble = _mm512_set1_epi8(15);
    *low  = _mm512_and_si512(codes, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi16(codes, 4), nibble);
}

/* For what is not codes: of each block the half at byte `first`, then that at `second`, then the dword at `third`. */
INLINE_AVX512 __m512i heads_index(int bytes, int first, int second, int third) {
    const int every = 0x01010101, c = 64 - 2 * bytes;
#define PAIR(x, y) (0x01000100 + 0x0101 * (x) + 0x01010000 * (y))
#define DWORD(x) (0x03020100 + 0x01010101 * (x))
    const __m512i from = _mm512_setr_epi32(
        PAIR(0, bytes), PAIR(2 * bytes, 0), PAIR(bytes, 2 * bytes), PAIR(c, c + bytes),
        PAIR(0, bytes), PAIR(2 * bytes, 0), PAIR(bytes, 2 * bytes), PAIR(c, c + bytes),
        DWORD(0), DWORD(bytes), DWORD(2 * bytes), DWORD(0), DWORD(bytes), DWORD(2 * bytes), DWORD(c), DWORD(c + bytes));
#undef PAIR
#undef DWORD
    first *= every, second *= every, third *= every;
    return _mm512_add_epi8(from, _mm512_setr_epi32(first, first, first, first, second, second, second, second,
                                                   third, third, third, third, third, third, third, third));
}

INLINE_AVX512 __m512i heads_gather(const windows_avx512 *w, __m512i index) {
    __m512i v = _mm512_permutexvar_epi8(index, w->a);
    v = _mm512_mask_permutexvar_epi8(v, 0x00fff0000fc00fc0, index, w->b);
    return _mm512_mask_permutexvar_epi8(v, 0xff000000f000f000, index, w->c);
}

INLINE_AVX512 __m512 lower_halves(__m512i v) { return _mm512_cvtph_ps(_mm512_castsi512_si256(v)); }

/* Sets bit 4 of codes by the fifth bits in the upper half of `heads`: register v's are byte v of a block's dword. */
INLINE_AVX512 __m512i add_bit_5(__m512i codes, __m512i heads, int v) {
    const __m512i index = per_block(0x20202020, 0x24242424, 0x28282828, 0x2c2c2c2c,
                                    0x30303030, 0x34343434, 0x38383838, 0x3c3c3c3c);
    const __m512i which = per_half(0x08040201, (int)0x80402010);
    __m512i bits = _mm512_permutexvar_epi8(_mm512_add_epi8(index, _mm512_set1_epi8((char)v)), heads);
    return _mm512_mask_add_epi8(codes, _mm512_test_epi8_mask(bits, which), codes, _mm512_set1_epi8(16));
}

/* Q4_0, Q4_1, Q5_0, Q5_1: what lies where is said in quant.c. */
INLINE_AVX512 void unpack_nibbles_avx512(uint32_t type, const uint8_t *p, group_avx512 *g) {
    const bool has_min = type == TYPE_Q4_1 || type == TYPE_Q5_1, has_bit_5 = type == TYPE_Q5_0 || type == TYPE_Q5_1;
    const int  bytes = (int)type_group_bytes(type) / 8;
    const int  bits_at = has_min ? 4 : 2, codes_at = bits_at + (has_bit_5 ? 4 : 0);
    const int  shift = has_bit_5 ? 8 : 0;   /* the second eight bytes of codes end beyond the first windows */
    windows_avx512 w;
    windows_load(&w, p, (uint32_t)bytes, 0);
    __m512i heads = heads_gather(&w, heads_index(bytes, 0, has_min ? 2 : 0, bits_at));
    const __m512i first = codes_index(windows_index(bytes, 0, codes_at));
    nibbles_avx512(windows_gather(&w, first), &g->codes[0], &g->codes[2]);
    if (shift) windows_load(&w, p, (uint32_t)bytes, (uint32_t)shift);
    const __m512i second = codes_index(windows_index(bytes, shift, codes_at + 8));
    nibbles_avx512(windows_gather(&w, second), &g->codes[1], &g->codes[3]);
    if (has_bit_5) {
        g->codes[0] = add_bit_5(g->codes[0], heads, 0);
        g->codes[1] = add_bit_5(g->codes[1], heads, 1);
        g->codes[2] = add_bit_5(g->codes[2], heads, 2);
        g->codes[3] = add_bit_5(g->codes[3], heads, 3);
    }
    g->scale = g->min = lower_halves(heads);
    if (has_min) g->scale = _mm512_shuffle_f32x4(g->min, g->min, 0x44);
}

/* Q8_0: blocks are gathered from four windows of two blocks; the codes are moved to 0..255. */
INLINE_AVX512 void unpack_q8_0_avx512(const uint8_t *p, group_avx512 *g) {
    const __m512i move   = _mm512_set1_epi8(-128), halves = _mm512_set1_epi32(0x23220100);
    const __m512i blocks = _mm512_set1_epi64(0x2222222200000000);   /* the second of a window starts 34 bytes later */
    __m512i w[4], scales;
    for (int i = 0; i < 4; i++) w[i] = V512(p + 68 * i);
    scales = _mm512_permutexvar_epi8(halves, w[0]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0x00f000f0, halves, w[1]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0x0f000f00, halves, w[2]);
    scales = _mm512_mask_permutexvar_epi8(scales, 0xf000f000, halves, w[3]);
    g->scale = g->min = lower_halves(scales);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        const int     shift = v == 3 ? 4 : 0;   /* the last eight bytes end beyond the first windows */
        const __m512i index = codes_index(_mm512_add_epi8(blocks, _mm512_set1_epi8((char)(2 + 8 * v - shift))));
        if (shift)
            for (int i = 0; i < 4; i++) w[i] = V512(p + 68 * i + shift);
        __m512i codes = _mm512_permutexvar_epi8(index, w[0]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0x0000ff00), index, w[1]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0x00ff0000), index, w[2]);
        codes = _mm512_mask_permutexvar_epi8(codes, BOTH_HALVES(0xff000000), index, w[3]);
        g->codes[v] = _mm512_xor_si512(codes, move);
    }
}

/* d times eight scales, dmin times eight minima, from the head of a K-quant: d, dmin and 12 bytes of 6-bit factors. A
 * dword takes the byte with a factor's lower bits, and that with its upper two bits, if it has those elsewhere. */
INLINE_AVX512 __m512 factors_k_avx512(__m128i head) {
#define AT(low, high) (4 + (low)) | (4 + (high)) << 8
    const __m512i index = _mm512_setr_epi32(
        AT(0, 0), AT(1, 0), AT(2, 0), AT(3, 0), AT(8, 0), AT(9, 1), AT(10, 2), AT(11, 3),
        AT(4, 0), AT(5, 0), AT(6, 0), AT(7, 0), AT(8, 4), AT(9, 5), AT(10, 6), AT(11, 7));
#undef AT
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4);
    const __m512i lower = per_block(63, 63, 63, 63, 15, 15, 15, 15);
    const __m512i upper = per_block(0, 0, 0, 0, 0x30, 0x30, 0x30, 0x30);
    __m512i bytes   = _mm512_permutexvar_epi8(index, _mm512_castsi128_si512(head));
    __m512i factors = _mm512_and_si512(_mm512_srlv_epi32(bytes, shift), lower);
    factors = _mm512_or_si512(factors, _mm512_and_si512(_mm512_srli_epi32(bytes, 10), upper));
    __m256i halves = _mm256_permutexvar_epi16(_mm256_setr_epi32(0, 0, 0, 0, 0x10001, 0x10001, 0x10001, 0x10001),
                                              _mm256_castsi128_si256(head));
    return _mm512_mul_ps(_mm512_cvtepi32_ps(factors), _mm512_cvtph_ps(halves));
}

/* Q4_K, Q5_K: two sub-blocks share 32 bytes of codes, low bits and high bits. */
INLINE_AVX512 void unpack_k_avx512(uint32_t type, const uint8_t *p, group_avx512 *g) {
    const __m512i dwords = _mm512_add_epi32(per_block(0, 0, 8, 8, 16, 16, 24, 24), per_half(0, 1));
    const __m512i shift  = per_block(0, 4, 0, 4, 0, 4, 0, 4), nibble = _mm512_set1_epi8(15);
    const __m512i turn   = per_block(4, 3, 2, 1, 0, 31, 30, 29), bit = _mm512_set1_epi8(16);   /* bit k to bit 4 */
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m512i a = V512(codes), b = V512(codes + 64), high = V512(p + 16);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i both = _mm512_permutex2var_epi32(a, _mm512_add_epi32(dwords, _mm512_set1_epi32(2 * v)), b);
        g->codes[v] = _mm512_and_si512(_mm512_srlv_epi32(both, shift), nibble);
        if (type == TYPE_Q5_K) {
            __m512i bits = _mm512_permutexvar_epi32(_mm512_add_epi32(per_half(0, 1), _mm512_set1_epi32(2 * v)), high);
            g->codes[v] = _mm512_or_si512(g->codes[v], _mm512_and_si512(_mm512_rolv_epi32(bits, turn), bit));
        }
    }
    g->min   = factors_k_avx512(V128(p));
    g->scale = _mm512_shuffle_f32x4(g->min, g->min, 0x44);
}

/* Q6_K: register v has dword v of each sub-block. Per half of the block, four runs of two sub-blocks: the first two in
 * the low nibbles, the others in the high nibbles of the same bytes; all four share 32 bytes of upper bits. */
INLINE_AVX512 void unpack_q6_k_avx512(const uint8_t *p, group_avx512 *g) {
    const __m512i low   = per_block(0, 4, 8, 12, 0, 4, 8, 12), high = per_block(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i shift = per_block(0, 0, 0, 0, 4, 4, 4, 4), turn = per_block(4, 4, 2, 2, 0, 0, 30, 30);
    const __m512i nibble = _mm512_set1_epi8(15), upper = _mm512_set1_epi8(0x30);
    __m512i a = V512(p), b = V512(p + 64), bits = V512(p + 128);
    NARROW_UNROLL
    for (int v = 0; v < 4; v++) {
        __m512i l = _mm512_permutex2var_epi32(a, _mm512_add_epi32(low, per_half(v, 16 + v)), b);
        __m512i h = _mm512_permutexvar_epi32(_mm512_add_epi32(high, per_half(v, 8 + v)), bits);
        g->codes[v] = _mm512_or_si512(_mm512_and_si512(_mm512_srlv_epi32(l, shift), nibble),
                                      _mm512_and_si512(_mm512_rolv_epi32(h, turn), upper));
    }
    __m512 d = _mm512_cvtph_ps(_mm256_set1_epi16((short)load_u16(p + 208)));
    g->scale = g->min = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(V128(p + 192))));
}

/* Eight dwords in both halves. */
INLINE_AVX512 __m512i both_halves(const int32_t *p) { return _mm512_broadcast_i32x8(V256(p)); }

/* What a column's integer sums start from, and what they are multiplied by. */
INLINE_AVX512 __m512i start_avx512(uint32_t type, const uint8_t *in) {
    const input_32 *in_32 = (const input_32 *)(const void *)in;
    switch (type) {
        case TYPE_Q4_0: return both_halves(in_32->s4);
        case TYPE_Q5_0: return both_halves(in_32->s8);
        case TYPE_Q8_0: return _mm512_slli_epi32(both_halves(in_32->s4), 4);   /* code - 128 */
        case TYPE_Q6_K: return V512(((const input_16 *)(const void *)in)->u.by_16.s32);
        default:        return _mm512_setzero_si512();
    }
}
INLINE_AVX512 __m512 scale_avx512(uint32_t type, const uint8_t *in) {
    if (type_form(type) == FORM_16) return _mm512_loadu_ps(((const input_16 *)(const void *)in)->u.by_16.d);
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(((const input_32 *)(const void *)in)->d));
}

/* Adds a group to a column's sums. */
INLINE_AVX512 __m512 column_avx512(uint32_t type, const group_avx512 *g, const uint8_t *in, __m512 acc) {
    __m512i sum = start_avx512(type, in);
    sum = _mm512_dpbusd_epi32(sum, g->codes[0], V512(in));
    sum = _mm512_dpbusd_epi32(sum, g->codes[1], V512(in + 64));
    sum = _mm512_dpbusd_epi32(sum, g->codes[2], V512(in + 128));
    sum = _mm512_dpbusd_epi32(sum, g->codes[3], V512(in + 192));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(g->scale, scale_avx512(type, in)), acc);
    if (type_form(type) == FORM_16) return acc;
    __m512 ds = _mm512_broadcast_f32x8(_mm256_loadu_ps(((const input_32 *)(const void *)in)->ds));
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) acc = _mm512_mask3_fmadd_ps(g->min, ds, acc, 0xff00);
    if (type == TYPE_Q4_K || type == TYPE_Q5_K) acc = _mm512_mask3_fnmadd_ps(g->min, ds, acc, 0xff00);
    return acc;
}

/* 16 weights of a float type. */
INLINE_AVX512 __m512 floats_avx512(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm512_loadu_ps((const void *)p);
    if (type == TYPE_F16) return _mm512_cvtph_ps(V256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(V256(p)), 16));
}

/* Adds a group of a row to the sums of n columns. */
INLINE_AVX512 void group_avx512_add(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                    __m512 *acc) {
    if (type_form(type) == FORM_FLOAT) {
        __m512 w0 = floats_avx512(type, p), w1 = floats_avx512(type, p + type_group_bytes(type) / 2);
#define DO(c)                                                                                     \
    acc[c] = _mm512_fmadd_ps(w0, _mm512_loadu_ps((const void *)(in[c] + at)), acc[c]);            \
    acc[c] = _mm512_fmadd_ps(w1, _mm512_loadu_ps((const void *)(in[c] + at + 64)), acc[c])
        COLUMNS(n, DO);
#undef DO
        return;
    }
    group_avx512 g;
    switch (type) {
        case TYPE_Q8_0: unpack_q8_0_avx512(p, &g); break;
        case TYPE_Q4_K: case TYPE_Q5_K: unpack_k_avx512(type, p, &g); break;
        case TYPE_Q6_K: unpack_q6_k_avx512(p, &g); break;
        default:        unpack_nibbles_avx512(type, p, &g);
    }
#define DO(c) acc[c] = column_avx512(type, &g, in[c] + at, acc[c])
    COLUMNS(n, DO);
#undef DO
}

/* Sums of four vectors. */
INLINE_AVX512 __m128 sum_4_avx512(const __m512 *v, size_t stride) {
    __m512 a = v[0], b = v[stride], c = v[2 * stride], d = v[3 * stride];
    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    c = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    a = _mm512_add_ps(_mm512_shuffle_f32x4(a, c, 0x88), _mm512_shuffle_f32x4(a, c, 0xdd));   /* a lane each */
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0x4e));
    a = _mm512_add_ps(a, _mm512_shuffle_ps(a, a, 0xb1));
    const __m512i lanes = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(lanes, a));
}

/* Adds a tile of one row to the sums of n columns, which lie in memory between tiles. */
INLINE_AVX512 void tile_avx512(uint32_t type, uint32_t n, const uint8_t *row, narrow_tile tile,
                               const uint8_t *const *in, __m512 *sums) {
    __m512 acc[NARROW_MAX];
#define DO(c) acc[c] = sums[c]
    COLUMNS(n, DO);
#undef DO
    for (; tile.in < tile.in_end; tile.in += form_input_bytes(type_form(type))) {
        fetch_group(row + tile.p, type_group_bytes(type));
        group_avx512_add(type, n, row + tile.p, in, tile.in, acc);
        tile.p = size_min(tile.p + type_group_bytes(type), tile.p_last);
    }
#define DO(c) sums[c] = acc[c]
    COLUMNS(n, DO);
#undef DO
}

INLINE_AVX512 void rows_avx512(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t groups   = type_tile_groups(type), group_bytes = type_group_bytes(type);
    const bool     is_short = job->n_in < form_group(type_form(type));
    const size_t   length   = type_row_bytes(type, job->n_in), end = narrow_input_bytes(type_form(type), job->n_in);
    const size_t   n_steps  = (job->n_rows + NARROW_STREAMS - 1) / NARROW_STREAMS;
    uint8_t        padded[NARROW_PADDED] = { 0 };
    narrow_tile    tile;
    tile.p_last = is_short ? 0 : length - group_bytes;
    for (size_t i = 0; i < n_steps; i++) {
        __m512 sums[NARROW_STREAMS][NARROW_MAX];
        for (int s = 0; s < NARROW_STREAMS; s++)
            for (uint32_t c = 0; c < n; c++) sums[s][c] = _mm512_setzero_ps();
        tile.p = 0;
        for (tile.in = 0; tile.in < end; tile.in = tile.in_end) {
            tile.in_end = size_min(tile.in + groups * form_input_bytes(type_form(type)), end);
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps) {
                const uint8_t *row = job->rows + r * job->row_bytes;
                if (is_short) row = (const uint8_t *)memcpy(padded, row, length);
                tile_avx512(type, n, row, tile, job->in, sums[s]);
            }
            tile.p = size_min(tile.p + groups * group_bytes, tile.p_last);
        }
        for (uint32_t c = 0; c < n; c++) {
            float four[NARROW_STREAMS];
            _mm_storeu_ps(four, sum_4_avx512(&sums[0][c], NARROW_MAX));
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps)
                job->out[c][r] = four[s];
        }
    }
}

/* ---- AVX2: activations and codes in natural order ---- */

/* Sums of four products each: unsigned codes, so small that pairs of products fit 16 bits, times activations. */
INLINE_AVX2 __m256i dot_unsigned_avx2(__m256i codes, __m256i x) {
    return _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1));
}

/* Q8_0's codes are signed: their signs go to the activations. */
INLINE_AVX2 __m256i dot_avx2(uint32_t type, __m256i codes, __m256i x) {
    if (type == TYPE_Q8_0) return dot_unsigned_avx2(_mm256_abs_epi8(codes), _mm256_sign_epi8(x, codes));
    return dot_unsigned_avx2(codes, x);
}

/* acc + sum * scale[0] */
INLINE_AVX2 __m256 add_scaled_avx2(__m256 acc, __m256i sum, const float *scale) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_broadcast_ss(scale), acc);
}

/* Four dwords at a distance. */
INLINE_AVX2 __m128i dwords_avx2(const uint8_t *p, uint32_t bytes) {
    return _mm_setr_epi32((int)load_u32(p), (int)load_u32(p + bytes), (int)load_u32(p + 2 * bytes),
                          (int)load_u32(p + 3 * bytes));
}

/* Scales of eight blocks of 32, and what a sum of activations is multiplied by. */
INLINE_AVX2 void scales_32_avx2(uint32_t type, const uint8_t *p, __m256 *scale, __m256 *min) {
    const uint32_t bytes = type_group_bytes(type) / 8;
    __m128i a = dwords_avx2(p, bytes), b = dwords_avx2(p + 4 * bytes, bytes);   /* each starts with d, or d and m */
    if (type == TYPE_Q4_1 || type == TYPE_Q5_1) {
        __m256 l = _mm256_cvtph_ps(a), h = _mm256_cvtph_ps(b);
        *scale = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(l, h, 0x88)), 0xd8));
        *min   = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(l, h, 0xdd)), 0xd8));
        return;
    }
    const __m128i low = _mm_set1_epi32(0xffff);
    *scale = _mm256_cvtph_ps(_mm_packus_epi32(_mm_and_si128(a, low), _mm_and_si128(b, low)));
    *min   = _mm256_mul_ps(*scale, _mm256_set1_ps(type == TYPE_Q4_0 ? -8.0f : -16.0f));   /* Q8_0: not used */
}

/* 32 codes of a block with 4 or 5 bits. */
INLINE_AVX2 __m256i codes_32_avx2(uint32_t type, const uint8_t *p) {
    const uint32_t at = type == TYPE_Q4_0 ? 2 : type == TYPE_Q4_1 ? 4 : type == TYPE_Q5_0 ? 6 : 8;
    __m256i both  = _mm256_broadcastsi128_si256(V128(p + at));
    __m256i codes = _mm256_and_si256(_mm256_srlv_epi64(both, _mm256_setr_epi64x(0, 0, 4, 4)), _mm256_set1_epi8(15));
    if (type == TYPE_Q4_0 || type == TYPE_Q4_1) return codes;
    const __m256i replicate = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i which     = _mm256_set1_epi64x((int64_t)0x8040201008040201);
    __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_u32(p + at - 4)), replicate);
    __m256i set   = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, which), which);
    return _mm256_or_si256(codes, _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

#define IN_32(c) ((const input_32 *)(const void *)(in[c] + at))

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 */
INLINE_AVX2 void group_32_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                               __m256 *acc) {
    float  s[NARROW_MAX][8];
    __m256 scale, min;
    scales_32_avx2(type, p, &scale, &min);
#define DO(c)                                                                                            \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(scale, _mm256_loadu_ps(IN_32(c)->d)));                          \
    if (type != TYPE_Q8_0) acc[c] = _mm256_fmadd_ps(min, _mm256_loadu_ps(IN_32(c)->ds), acc[c])
    COLUMNS(n, DO);
#undef DO
    NARROW_UNROLL_SOME
    for (int b = 0; b < 8; b++, p += type_group_bytes(type) / 8) {
        __m256i codes = type == TYPE_Q8_0 ? V256(p + 2) : codes_32_avx2(type, p);
#define DO(c) acc[c] = add_scaled_avx2(acc[c], dot_avx2(type, codes, V256(IN_32(c)->q + 32 * b)), &s[c][b])
        COLUMNS(n, DO);
#undef DO
    }
}

/* d times eight scales and dmin times eight minima from the head of a K-quant: the 6-bit factors by four at a time. */
INLINE_AVX2 void factors_k_avx2(const uint8_t *p, __m256 *scale, __m256 *min) {
    const uint32_t low6 = 0x3f3f3f3f, low4 = 0x0f0f0f0f, bits_4_5 = 0x30303030;
    uint32_t a = load_u32(p + 4), b = load_u32(p + 8), c = load_u32(p + 12);
    uint64_t scales = (a & low6) | (uint64_t)((c & low4) | ((a >> 2) & bits_4_5)) << 32;
    uint64_t minima = (b & low6) | (uint64_t)(((c >> 4) & low4) | ((b >> 2) & bits_4_5)) << 32;
    __m128 d = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(p)));   /* d, dmin */
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)scales)));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)minima)));
    *scale = _mm256_mul_ps(s, _mm256_broadcastss_ps(d));
    *min   = _mm256_mul_ps(m, _mm256_broadcastss_ps(_mm_movehdup_ps(d)));
}

/* Q4_K, Q5_K */
INLINE_AVX2 void group_k_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                              __m256 *acc) {
    const __m256i nibble = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    float  s[NARROW_MAX][8];
    __m256 scale, min;
    factors_k_avx2(p, &scale, &min);
#define DO(c)                                                                       \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(scale, _mm256_loadu_ps(IN_32(c)->d)));     \
    acc[c] = _mm256_fnmadd_ps(min, _mm256_loadu_ps(IN_32(c)->ds), acc[c])
    COLUMNS(n, DO);
#undef DO
    const uint8_t *codes = p + (type == TYPE_Q5_K ? 48 : 16);
    __m256i        high  = V256(p + 16);   /* Q5_K: fifth bits, the next sub-block's in bit 0 of each byte */
    NARROW_UNROLL_SOME
    for (int run = 0; run < 4; run++) {
        __m256i both = V256(codes + 32 * run);
        __m256i even = _mm256_and_si256(both, nibble), odd = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        if (type == TYPE_Q5_K) {
            even = _mm256_or_si256(even, _mm256_and_si256(_mm256_slli_epi16(high, 4), bit));
            odd  = _mm256_or_si256(odd, _mm256_and_si256(_mm256_slli_epi16(high, 3), bit));
            high = _mm256_srli_epi16(high, 2);
        }
#define DO(c)                                                                                                        \
    acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(even, V256(IN_32(c)->q + 64 * run)), &s[c][2 * run]);         \
    acc[c] = add_scaled_avx2(acc[c], dot_unsigned_avx2(odd, V256(IN_32(c)->q + 64 * run + 32)), &s[c][2 * run + 1])
        COLUMNS(n, DO);
#undef DO
    }
}

/* Q6_K */
INLINE_AVX2 void group_q6_k_avx2(uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at, __m256 *acc) {
#define IN_16(c) ((const input_16 *)(const void *)(in[c] + at))
    const __m256i nibble = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(0x30);
    __m128i bytes  = V128(p + 192);
    __m256i scales = _mm256_cvtepi8_epi16(bytes);
    __m256  d      = _mm256_cvtph_ps(_mm_set1_epi16((short)load_u16(p + 208)));
    __m256  first  = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    __m256  second = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
    float   s[NARROW_MAX][8];
#define DO(c)                                                                             \
    _mm256_storeu_ps(s[c], _mm256_mul_ps(d, _mm256_loadu_ps(IN_16(c)->u.by_32.d)));       \
    acc[c] = _mm256_fmadd_ps(first, _mm256_loadu_ps(IN_16(c)->u.by_32.ds32), acc[c]);     \
    acc[c] = _mm256_fmadd_ps(second, _mm256_loadu_ps(IN_16(c)->u.by_32.ds32 + 8), acc[c])
    COLUMNS(n, DO);
#undef DO
    /* Even sub-blocks' scales in the lower lane, odd ones' in the upper: each lane of 32 codes has its own. */
    const __m256i pairs = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
                                           0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    scales = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(scales, pairs), 0xd8);
    for (int half = 0; half < 2; half++) {
        __m256i high = V256(p + 128 + 32 * half);
        NARROW_UNROLL_SOME
        for (int run = 0; run < 4; run++) {
            int     j   = 4 * half + run;
            __m256i low = V256(p + 64 * half + 32 * (run % 2));
            if (run >= 2) low = _mm256_srli_epi16(low, 4);
            __m256i bits  = _mm256_and_si256(_mm256_slli_epi16(high, 4), upper);
            __m256i codes = _mm256_or_si256(_mm256_and_si256(low, nibble), bits);
            __m256i scale = _mm256_shuffle_epi8(scales, _mm256_set1_epi16((short)(0x0100 + 0x0202 * j)));
            high = _mm256_srli_epi16(high, 2);
#define DO(c)                                                                                      \
    acc[c] = add_scaled_avx2(acc[c], _mm256_madd_epi16(                                            \
                                         _mm256_maddubs_epi16(codes, V256(IN_16(c)->q + 32 * j)), scale), &s[c][j])
            COLUMNS(n, DO);
#undef DO
        }
    }
}

/* 8 weights of a float type. */
INLINE_AVX2 __m256 floats_avx2(uint32_t type, const uint8_t *p) {
    if (type == TYPE_F32) return _mm256_loadu_ps((const float *)(const void *)p);
    if (type == TYPE_F16) return _mm256_cvtph_ps(V128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(V128(p)), 16));
}

INLINE_AVX2 void group_float_avx2(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                  __m256 *acc) {
    NARROW_UNROLL_SOME
    for (uint32_t i = 0; i < 4; i++) {
        __m256 w = floats_avx2(type, p + i * type_group_bytes(type) / 4);
#define DO(c) acc[c] = _mm256_fmadd_ps(w, _mm256_loadu_ps((const float *)(const void *)(in[c] + at + 32 * i)), acc[c])
        COLUMNS(n, DO);
#undef DO
    }
}

INLINE_AVX2 void group_avx2_add(uint32_t type, uint32_t n, const uint8_t *p, const uint8_t *const *in, size_t at,
                                __m256 *acc) {
    switch (type) {
        case TYPE_F32: case TYPE_F16: case TYPE_BF16: group_float_avx2(type, n, p, in, at, acc); break;
        case TYPE_Q4_K: case TYPE_Q5_K:               group_k_avx2(type, n, p, in, at, acc); break;
        case TYPE_Q6_K:                               group_q6_k_avx2(n, p, in, at, acc); break;
        default:                                      group_32_avx2(type, n, p, in, at, acc);
    }
}

/* Sums of four vectors. */
INLINE_AVX2 __m128 sum_4_avx2(const __m256 *v, size_t stride) {
    __m256 s = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[stride]), _mm256_hadd_ps(v[2 * stride], v[3 * stride]));
    return _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
}

/* Adds a tile of one row to the sums of n columns, which lie in memory between tiles. */
INLINE_AVX2 void tile_avx2(uint32_t type, uint32_t n, const uint8_t *row, narrow_tile tile,
                           const uint8_t *const *in, __m256 *sums) {
    __m256 acc[NARROW_MAX];
#define DO(c) acc[c] = sums[c]
    COLUMNS(n, DO);
#undef DO
    for (; tile.in < tile.in_end; tile.in += form_input_bytes(type_form(type))) {
        fetch_group(row + tile.p, type_group_bytes(type));
        group_avx2_add(type, n, row + tile.p, in, tile.in, acc);
        tile.p = size_min(tile.p + type_group_bytes(type), tile.p_last);
    }
#define DO(c) sums[c] = acc[c]
    COLUMNS(n, DO);
#undef DO
}

INLINE_AVX2 void rows_avx2(uint32_t type, uint32_t n, const narrow_job *job) {
    const uint32_t groups   = type_tile_groups(type), group_bytes = type_group_bytes(type);
    const bool     is_short = job->n_in < form_group(type_form(type));
    const size_t   length   = type_row_bytes(type, job->n_in), end = narrow_input_bytes(type_form(type), job->n_in);
    const size_t   n_steps  = (job->n_rows + NARROW_STREAMS - 1) / NARROW_STREAMS;
    uint8_t        padded[NARROW_PADDED] = { 0 };
    narrow_tile    tile;
    tile.p_last = is_short ? 0 : length - group_bytes;
    for (size_t i = 0; i < n_steps; i++) {
        __m256 sums[NARROW_STREAMS][NARROW_MAX];
        for (int s = 0; s < NARROW_STREAMS; s++)
            for (uint32_t c = 0; c < n; c++) sums[s][c] = _mm256_setzero_ps();
        tile.p = 0;
        for (tile.in = 0; tile.in < end; tile.in = tile.in_end) {
            tile.in_end = size_min(tile.in + groups * form_input_bytes(type_form(type)), end);
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps) {
                const uint8_t *row = job->rows + r * job->row_bytes;
                if (is_short) row = (const uint8_t *)memcpy(padded, row, length);
                tile_avx2(type, n, row, tile, job->in, sums[s]);
            }
            tile.p = size_min(tile.p + groups * group_bytes, tile.p_last);
        }
        for (uint32_t c = 0; c < n; c++) {
            float four[NARROW_STREAMS];
            _mm_storeu_ps(four, sum_4_avx2(&sums[0][c], NARROW_MAX));
            for (size_t s = 0, r = i; s < NARROW_STREAMS && r < job->n_rows; s++, r += n_steps)
                job->out[c][r] = four[s];
        }
    }
}

/* ---- The kernels' table ---- */

#define NARROW_KERNEL(level, LEVEL, name, n)                                             \
    NOVA_TARGET_##LEVEL static void narrow_##name##_##level##_##n(const narrow_job *job) { \
        rows_##level(TYPE_##name, n, job);                                               \
    }
#define NARROW_KERNELS(name, form)                                                       \
    NARROW_KERNEL(avx2, AVX2, name, 1)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 2)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 4)                                                   \
    NARROW_KERNEL(avx2, AVX2, name, 8)                                                   \
    NARROW_KERNEL(avx512, AVX512, name, 1)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 2)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 4)                                               \
    NARROW_KERNEL(avx512, AVX512, name, 8)
NARROW_TYPES(NARROW_KERNELS)

/* For n = 1, 2, 4, 8 columns; NULL for a type without. */
static narrow_kernel narrow_kernel_of(cpu_level level, uint32_t type, uint32_t n) {
#define NARROW_KERNEL_ROW(name, form)                                                    \
    case TYPE_##name: {                                                                  \
        static const narrow_kernel kernels[2][4] = {                                     \
            { narrow_##name##_avx2_1, narrow_##name##_avx2_2,                            \
              narrow_##name##_avx2_4, narrow_##name##_avx2_8 },                          \
            { narrow_##name##_avx512_1, narrow_##name##_avx512_2,                        \
              narrow_##name##_avx512_4, narrow_##name##_avx512_8 } };                    \
        return kernels[level == CPU_AVX512][n == 8 ? 3 : n / 2];                         \
    }
    switch (type) { NARROW_TYPES(NARROW_KERNEL_ROW) }
#undef NARROW_KERNEL_ROW
    return NULL;
}

#undef IN_16
#undef IN_32
#undef BOTH_HALVES
#undef COLUMNS
#undef INLINE_AVX2
#undef INLINE_AVX512
#endif

#undef V128
#undef V256
#undef V512

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
