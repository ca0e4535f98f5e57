/* Matmul for many columns: see cpu_wide.h.
 *
 * Rows go by panels: `depth` weights of some rows are unpacked to int8 codes and float scales in the thread's scratch,
 * where they stay in the L2 cache while all columns pass. A panel is made of strips, and columns are packed into tiles;
 * one call of a kernel multiplies one strip by one tile. Between two depths the sums lie in `out`.
 *
 * Codes. A weight is scale * code, or scale * code + offset, with one scale for 32 or 16 weights. Codes are centred
 * (Q4_1's 0..15 become -8..7, and its minimum makes up for it): that keeps offsets small, and also sums of products, as
 * the AVX2 kernels need it. Activations are packed as code + 128 in unsigned bytes, since the instructions multiply
 * unsigned by signed bytes. What that adds to a sum, 128 times the sum of the weights' codes, depends on the row alone:
 * it is found once, when the row is unpacked, and sums start from its negative.
 *
 * An element of `out` gets its terms in the order of the weights, block by block, one after the other, whichever tile
 * its column and whichever strip its row fall into, and wherever a depth ends. So columns and rows never meet.
 *
 * A new format is a row of WIDE_TYPES and two functions that unpack a row, plain and fast. */
#include "cpu_wide.h"

/* How a type is computed. Kinds differ by the kernels that can do them without overflow. */
typedef enum wide_kind {
    WIDE_FLOAT,        /* to float */
    WIDE_32,           /* a scale for 32 codes within -16..15 */
    WIDE_32_OFFSET,    /* the same with an offset */
    WIDE_32_BYTE,      /* a scale for 32 codes of any int8 */
    WIDE_16,           /* a scale for 16 codes within -32..31 */
    WIDE_KINDS
} wide_kind;

enum { FORM_WIDE_FLOAT, FORM_WIDE_INT8 };   /* of packed columns */

#define CHUNK_CODES  256   /* weights of a row that are unpacked at once */
#define CHUNK_FLOATS 64

/* One row's chunk, unpacked. */
typedef struct wide_chunk {
    union {
        int8_t codes[CHUNK_CODES];
        float  floats[CHUNK_FLOATS];
    } w;
    float scale[16];   /* of 16 blocks of 16; or of 8 blocks of 32, and behind them 8 offsets */
} wide_chunk;

/* Unpacks n weights, at most a chunk, whole blocks of the type. */
typedef void (*wide_unpack_fn)(const uint8_t *p, uint32_t n, wide_chunk *out);

typedef struct wide_type {
    uint32_t       type;
    wide_kind      kind;
    wide_unpack_fn unpack[2];   /* plain; AVX2 and above */
} wide_type;

/* ---- Unpacking a row, plain ---- */

static void wide_f32(const uint8_t *p, uint32_t n, wide_chunk *out) { memcpy(out->w.floats, p, n * sizeof(float)); }

static void wide_f16(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t i = 0; i < n; i++) out->w.floats[i] = half_to_float(load_u16(p + 2 * i));
}

static void wide_bf16(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t i = 0; i < n; i++) out->w.floats[i] = bf16_to_float(load_u16(p + 2 * i));
}

/* 16 bytes hold codes 0..15 in their low halves and 16..31 in their high ones, fifth bits in a word of their own. */
static void wide_codes_4(const uint8_t *p, int centre, int8_t *codes) {
    for (int i = 0; i < 16; i++) {
        codes[i]      = (int8_t)((p[i] & 15) - centre);
        codes[i + 16] = (int8_t)((p[i] >> 4) - centre);
    }
}

static void wide_codes_5(const uint8_t *p, uint32_t fifth, int8_t *codes) {
    wide_codes_4(p, 16, codes);
    for (int i = 0; i < 32; i++) codes[i] = (int8_t)(codes[i] + (int)((fifth >> i) & 1u) * 16);
}

static void wide_q4_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 18) {
        out->scale[b] = half_to_float(load_u16(p));
        wide_codes_4(p + 2, 8, out->w.codes + 32 * b);
    }
}

static void wide_q4_1(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 20) {
        out->scale[b]     = half_to_float(load_u16(p));
        out->scale[b + 8] = half_to_float(load_u16(p + 2)) + 8 * out->scale[b];
        wide_codes_4(p + 4, 8, out->w.codes + 32 * b);
    }
}

static void wide_q5_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 22) {
        out->scale[b] = half_to_float(load_u16(p));
        wide_codes_5(p + 6, load_u32(p + 2), out->w.codes + 32 * b);
    }
}

static void wide_q5_1(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 24) {
        out->scale[b]     = half_to_float(load_u16(p));
        out->scale[b + 8] = half_to_float(load_u16(p + 2)) + 16 * out->scale[b];
        wide_codes_5(p + 8, load_u32(p + 4), out->w.codes + 32 * b);
    }
}

static void wide_q8_0(const uint8_t *p, uint32_t n, wide_chunk *out) {
    for (uint32_t b = 0; b < n / 32; b++, p += 34) {
        out->scale[b] = half_to_float(load_u16(p));
        memcpy(out->w.codes + 32 * b, p + 2, 32);
    }
}

/* Eight scales and eight minima of 6 bits in 12 bytes, as Q4_K and Q5_K have them: 0..3 lie in the low 6 bits of bytes
 * 0..3 and 4..7; 4..7 have their low 4 bits in the halves of bytes 8..11 and their high 2 bits above those of 0..3.
 * Gives scales in one, minima in the other word, a byte each. */
static void wide_k_scales(const uint8_t *p, uint64_t *scales, uint64_t *minima) {
    uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
    uint32_t scale_high = (c & 0x0f0f0f0fu) | ((a >> 2) & 0x30303030u);
    uint32_t min_high   = ((c >> 4) & 0x0f0f0f0fu) | ((b >> 2) & 0x30303030u);
    *scales = (a & 0x3f3f3f3fu) | (uint64_t)scale_high << 32;
    *minima = (b & 0x3f3f3f3fu) | (uint64_t)min_high << 32;
}

static void wide_k_head(const uint8_t *p, float centre, float *scale) {
    float    d = half_to_float(load_u16(p)), dmin = half_to_float(load_u16(p + 2));
    uint64_t scales, minima;
    wide_k_scales(p + 4, &scales, &minima);
    for (int i = 0; i < 8; i++) {
        scale[i]     = d * (float)((scales >> (8 * i)) & 255);
        scale[i + 8] = centre * scale[i] - dmin * (float)((minima >> (8 * i)) & 255);
    }
}

static void wide_q4_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;   /* a chunk is one block */
    wide_k_head(p, 8, out->scale);
    for (int i = 0; i < CHUNK_CODES; i++) {
        uint8_t byte = p[16 + i / 64 * 32 + i % 32];
        out->w.codes[i] = (int8_t)((i / 32 % 2 ? byte >> 4 : byte & 15) - 8);
    }
}

static void wide_q5_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head(p, 16, out->scale);
    for (int i = 0; i < CHUNK_CODES; i++) {
        uint8_t byte = p[48 + i / 64 * 32 + i % 32];
        int     fifth = (p[16 + i % 32] >> (i / 32)) & 1;
        out->w.codes[i] = (int8_t)((i / 32 % 2 ? byte >> 4 : byte & 15) + 16 * fifth - 16);
    }
}

static void wide_q6_k(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    float d = half_to_float(load_u16(p + 208));
    for (int i = 0; i < 16; i++) out->scale[i] = d * (float)(int8_t)p[192 + i];
    for (int i = 0; i < CHUNK_CODES; i++) {
        int     run = i / 32 % 4;   /* four runs of 32 weights share 64 bytes of low and 32 bytes of high bits */
        uint8_t low = p[i / 128 * 64 + run % 2 * 32 + i % 32], high = p[128 + i / 128 * 32 + i % 32];
        out->w.codes[i] = (int8_t)(((run / 2 ? low >> 4 : low & 15) | ((high >> (2 * run)) & 3) << 4) - 32);
    }
}

/* ---- Unpacking a row, AVX2 ---- */

#ifdef NOVA_X86

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_load_256(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
NOVA_TARGET_AVX2 NOVA_INLINE __m128i wide_load_128(const void *p) { return _mm_loadu_si128((const __m128i *)p); }
NOVA_TARGET_AVX2 NOVA_INLINE void    wide_store_256(void *p, __m256i v) { _mm256_storeu_si256((__m256i *)p, v); }

NOVA_TARGET_AVX2 NOVA_INLINE float wide_half_avx2(const uint8_t *p) {
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u16(p))));
}

/* One half of each of n blocks, at most 8, to floats. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_halves_avx2(const uint8_t *p, size_t stride, uint32_t n, float *out) {
    if (n < 8) {
        for (uint32_t i = 0; i < n; i++) out[i] = wide_half_avx2(p + i * stride);
        return;
    }
#define HALF(i) (short)load_u16(p + i * stride)
    __m128i v = _mm_setr_epi16(HALF(0), HALF(1), HALF(2), HALF(3), HALF(4), HALF(5), HALF(6), HALF(7));
#undef HALF
    _mm256_storeu_ps(out, _mm256_cvtph_ps(v));
}

/* The same for d and m behind it: out[0..7] = d, out[8..15] = m + centre * d. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_scales_avx2(const uint8_t *p, size_t stride, uint32_t n, float centre,
                                                   float *out) {
    wide_halves_avx2(p, stride, n, out);
    wide_halves_avx2(p + 2, stride, n, out + 8);
    for (uint32_t i = 0; i < n; i++) out[i + 8] += centre * out[i];
}

/* Bits `shift`.. of every byte that `mask` leaves. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_bits_avx2(__m256i v, int shift, int mask) {
    return _mm256_and_si256(_mm256_srli_epi16(v, shift), _mm256_set1_epi8((char)mask));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_store_centred(int8_t *codes, __m256i v, int centre) {
    wide_store_256(codes, _mm256_sub_epi8(v, _mm256_set1_epi8((char)centre)));
}

/* As wide_codes_4 and wide_codes_5, before centring. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_codes_4_avx2(const uint8_t *p) {
    __m128i v    = wide_load_128(p);
    __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(v), _mm_srli_epi16(v, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_codes_5_avx2(const uint8_t *p, uint32_t fifth) {
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit    = _mm256_set1_epi64x((long long)0x8040201008040201u);
    __m256i       own    = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)fifth), spread), bit);
    __m256i       set    = _mm256_cmpeq_epi8(own, bit);
    return _mm256_or_si256(wide_codes_4_avx2(p), _mm256_and_si256(set, _mm256_set1_epi8(16)));
}

NOVA_TARGET_AVX2
static void wide_f16_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out->w.floats + i, _mm256_cvtph_ps(wide_load_128(p + 2 * i)));
    for (; i < n; i++) out->w.floats[i] = wide_half_avx2(p + 2 * i);
}

NOVA_TARGET_AVX2
static void wide_bf16_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        wide_store_256(out->w.floats + i, _mm256_slli_epi32(_mm256_cvtepu16_epi32(wide_load_128(p + 2 * i)), 16));
    for (; i < n; i++) out->w.floats[i] = bf16_to_float(load_u16(p + 2 * i));
}

NOVA_TARGET_AVX2
static void wide_q4_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 18, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 18)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_4_avx2(p + 2), 8);
}

NOVA_TARGET_AVX2
static void wide_q4_1_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_scales_avx2(p, 20, n / 32, 8, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 20)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_4_avx2(p + 4), 8);
}

NOVA_TARGET_AVX2
static void wide_q5_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 22, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 22)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_5_avx2(p + 6, load_u32(p + 2)), 16);
}

NOVA_TARGET_AVX2
static void wide_q5_1_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_scales_avx2(p, 24, n / 32, 16, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 24)
        wide_store_centred(out->w.codes + 32 * b, wide_codes_5_avx2(p + 8, load_u32(p + 4)), 16);
}

NOVA_TARGET_AVX2
static void wide_q8_0_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    wide_halves_avx2(p, 34, n / 32, out->scale);
    for (uint32_t b = 0; b < n / 32; b++, p += 34) wide_store_256(out->w.codes + 32 * b, wide_load_256(p + 2));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_k_head_avx2(const uint8_t *p, float centre, float *scale) {
    uint64_t scales, minima;
    wide_k_scales(p + 4, &scales, &minima);
    __m256 s = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scales)));
    __m256 m = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)minima)));
    s = _mm256_mul_ps(s, _mm256_set1_ps(wide_half_avx2(p)));
    m = _mm256_mul_ps(m, _mm256_set1_ps(wide_half_avx2(p + 2)));
    _mm256_storeu_ps(scale, s);
    _mm256_storeu_ps(scale + 8, _mm256_sub_ps(_mm256_mul_ps(_mm256_set1_ps(centre), s), m));
}

NOVA_TARGET_AVX2
static void wide_q4_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head_avx2(p, 8, out->scale);
    for (int i = 0; i < 4; i++) {
        __m256i v = wide_load_256(p + 16 + 32 * i);
        wide_store_centred(out->w.codes + 64 * i, wide_bits_avx2(v, 0, 15), 8);
        wide_store_centred(out->w.codes + 64 * i + 32, wide_bits_avx2(v, 4, 15), 8);
    }
}

NOVA_TARGET_AVX2
static void wide_q5_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    wide_k_head_avx2(p, 16, out->scale);
    __m256i high = wide_load_256(p + 16);
    for (int i = 0; i < 4; i++) {
        __m256i v = wide_load_256(p + 48 + 32 * i);
        __m256i fifth_0 = _mm256_slli_epi16(wide_bits_avx2(high, 0, 1), 4);
        __m256i fifth_1 = _mm256_slli_epi16(wide_bits_avx2(high, 1, 1), 4);
        wide_store_centred(out->w.codes + 64 * i, _mm256_or_si256(wide_bits_avx2(v, 0, 15), fifth_0), 16);
        wide_store_centred(out->w.codes + 64 * i + 32, _mm256_or_si256(wide_bits_avx2(v, 4, 15), fifth_1), 16);
        high = _mm256_srli_epi16(high, 2);
    }
}

NOVA_TARGET_AVX2
static void wide_q6_k_avx2(const uint8_t *p, uint32_t n, wide_chunk *out) {
    (void)n;
    __m256  d = _mm256_set1_ps(wide_half_avx2(p + 208));
    __m128i s = wide_load_128(p + 192);
    _mm256_storeu_ps(out->scale, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)), d));
    _mm256_storeu_ps(out->scale + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(s, 8))), d));
    for (int i = 0; i < 2; i++) {
        int8_t *codes = out->w.codes + 128 * i;
        __m256i a = wide_load_256(p + 64 * i), b = wide_load_256(p + 64 * i + 32);
        __m256i high = wide_load_256(p + 128 + 32 * i);
        __m256i h0 = _mm256_slli_epi16(wide_bits_avx2(high, 0, 3), 4);
        __m256i h1 = _mm256_slli_epi16(wide_bits_avx2(high, 2, 3), 4);
        wide_store_centred(codes, _mm256_or_si256(wide_bits_avx2(a, 0, 15), h0), 32);
        wide_store_centred(codes + 32, _mm256_or_si256(wide_bits_avx2(b, 0, 15), h1), 32);
        wide_store_centred(codes + 64, _mm256_or_si256(wide_bits_avx2(a, 4, 15), wide_bits_avx2(high, 0, 0x30)), 32);
        wide_store_centred(codes + 96, _mm256_or_si256(wide_bits_avx2(b, 4, 15), wide_bits_avx2(high, 2, 0x30)), 32);
    }
}

#define WIDE_UNPACK(plain, fast) { plain, fast }
#else
#define WIDE_UNPACK(plain, fast) { plain, NULL }
#endif

static const wide_type WIDE_TYPES[] = {
    { TYPE_F32, WIDE_FLOAT, WIDE_UNPACK(wide_f32, wide_f32) },
    { TYPE_F16, WIDE_FLOAT, WIDE_UNPACK(wide_f16, wide_f16_avx2) },
    { TYPE_BF16, WIDE_FLOAT, WIDE_UNPACK(wide_bf16, wide_bf16_avx2) },
    { TYPE_Q4_0, WIDE_32, WIDE_UNPACK(wide_q4_0, wide_q4_0_avx2) },
    { TYPE_Q4_1, WIDE_32_OFFSET, WIDE_UNPACK(wide_q4_1, wide_q4_1_avx2) },
    { TYPE_Q5_0, WIDE_32, WIDE_UNPACK(wide_q5_0, wide_q5_0_avx2) },
    { TYPE_Q5_1, WIDE_32_OFFSET, WIDE_UNPACK(wide_q5_1, wide_q5_1_avx2) },
    { TYPE_Q8_0, WIDE_32_BYTE, WIDE_UNPACK(wide_q8_0, wide_q8_0_avx2) },
    { TYPE_Q4_K, WIDE_32_OFFSET, WIDE_UNPACK(wide_q4_k, wide_q4_k_avx2) },
    { TYPE_Q5_K, WIDE_32_OFFSET, WIDE_UNPACK(wide_q5_k, wide_q5_k_avx2) },
    { TYPE_Q6_K, WIDE_16, WIDE_UNPACK(wide_q6_k, wide_q6_k_avx2) },
};

/* The model refuses files with other types, so there is no error to tell. */
static const wide_type *wide_type_of(uint32_t type) {
    size_t i = 0;
    while (i + 1 < COUNT_OF(WIDE_TYPES) && WIDE_TYPES[i].type != type) i++;
    return &WIDE_TYPES[i];
}

/* Byte offset of weight k, the first of a block, in a row. */
static size_t wide_offset(const wide_type *t, uint32_t k) { return type_row_bytes(t->type, k); }

/* ---- What a level offers ---- */

#define WIDE_MAX_ROWS    32   /* of a strip */
#define WIDE_MAX_COLUMNS 12   /* of a tile */

/* Multiplies n weights of a strip's rows by a tile, into columns out[0], out[1], ...: rows 0 .. rows - 1 of the strip.
 * Sums go on from what is there, but for the `first` call. */
typedef void (*wide_kernel_fn)(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *const *out, uint32_t rows,
                               bool first);

/* Unpacks n weights of as many rows as a strip has. */
typedef void (*wide_strip_fn)(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip);

/* How a level computes a kind. A fast level's strip of floats: [weight][row]. Of codes, for each 32 weights: a part, or
 * two: codes as [group of four weights][row][4], what sums start from, scales; then offsets, if the kind has any. */
typedef struct wide_method {
    uint32_t rows;            /* of a strip */
    uint32_t columns;         /* of a tile, at most */
    uint32_t strips;          /* of a panel: many, to read a tile from the L1 cache many times */
    uint32_t depth;           /* of a panel: a tile's depth fits the L1, a panel the L2 cache */
    uint32_t strip_bytes;     /* of a strip, for 32 weights of each row */
    wide_strip_fn         unpack;
    const wide_kernel_fn *kernels;   /* for 1 .. columns columns */
} wide_method;

/* Packed columns, for each 32 elements of a tile of n columns. Floats: [element][column]. Int8: [group of four]
 * [column][4], then [column] d, then [column] d * sum of codes. */
#define TILE_BLOCK 40   /* times n: bytes of an int8 block, and where d and d * sum lie in it */
#define TILE_D     32
#define TILE_DS    36

/* ---- Plain ---- */

#define PLAIN_ROWS 8

/* Strip: [chunk][row] as unpacked. */
static void wide_strip_plain(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    uint32_t    size = t->kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    wide_chunk *out  = (wide_chunk *)(void *)strip;
    for (uint32_t k = 0; k < n; k += size)
        for (uint32_t r = 0; r < PLAIN_ROWS; r++)
            t->unpack[0](rows[r] + wide_offset(t, k), (uint32_t)size_min(n - k, size), out++);
}

static float wide_dot_floats(const wide_chunk *w, const float *x, uint32_t n) {
    float    sum[8] = { 0 };
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (uint32_t j = 0; j < 8; j++) sum[j] += w->w.floats[i + j] * x[i + j];
    for (; i < n; i++) sum[i % 8] += w->w.floats[i] * x[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

NOVA_INLINE int32_t wide_dot_int8(const int8_t *w, const int8_t *x, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) sum += w[i] * x[i];
    return sum;
}

static float wide_dot_codes(const wide_chunk *w, const uint8_t *x, uint32_t n, wide_kind kind) {
    float sum = 0;
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK) {
        const int8_t *codes = w->w.codes + 32 * b, *q = (const int8_t *)x;
        float         d = load_f32(x + TILE_D), ds = load_f32(x + TILE_DS);
        if (kind == WIDE_16) {
            sum += w->scale[2 * b] * (float)wide_dot_int8(codes, q, 16) * d;
            sum += w->scale[2 * b + 1] * (float)wide_dot_int8(codes + 16, q + 16, 16) * d;
        } else {
            sum += w->scale[b] * (float)wide_dot_int8(codes, q, 32) * d;
        }
        if (kind == WIDE_32_OFFSET) sum += w->scale[b + 8] * ds;
    }
    return sum;
}

static void wide_multiply_plain(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *out, uint32_t rows,
                                bool first, wide_kind kind) {
    uint32_t size = kind == WIDE_FLOAT ? CHUNK_FLOATS : CHUNK_CODES;
    size_t   step = kind == WIDE_FLOAT ? CHUNK_FLOATS * sizeof(float) : CHUNK_CODES / 32 * TILE_BLOCK;
    for (uint32_t r = 0; r < rows; r++) {
        const wide_chunk *w   = (const wide_chunk *)(const void *)strip + r;
        const uint8_t    *x   = tile;
        float             sum = first ? 0 : out[r];
        for (uint32_t k = 0; k < n; k += size, w += PLAIN_ROWS, x += step) {
            uint32_t m = (uint32_t)size_min(n - k, size);
            if (kind == WIDE_FLOAT) sum += wide_dot_floats(w, (const float *)(const void *)x, m);
            else sum += wide_dot_codes(w, x, m, kind);
        }
        out[r] = sum;
    }
}

#define PLAIN_KERNEL(name, kind)                                                                          \
    static void name##_1(const uint8_t *strip, const uint8_t *tile, uint32_t n, float *const *out, uint32_t rows, \
                         bool first) {                                                                    \
        wide_multiply_plain(strip, tile, n, out[0], rows, first, kind);                                   \
    }                                                                                                     \
    static const wide_kernel_fn name[] = { name##_1 };

PLAIN_KERNEL(wide_float_plain, WIDE_FLOAT)
PLAIN_KERNEL(wide_32_plain, WIDE_32)
PLAIN_KERNEL(wide_32_offset_plain, WIDE_32_OFFSET)
PLAIN_KERNEL(wide_16_plain, WIDE_16)

/* ---- Kernels for several columns ----
 *
 * A kernel is one inlined function, made for each number of columns: n_col is a constant there, the accumulators of the
 * columns below it live in registers, and the others are never touched. Columns are written out by EACH_..., because
 * compilers do not unroll loops at -O2. */

#ifdef NOVA_X86

#define EACH_6(X)  X(0) X(1) X(2) X(3) X(4) X(5)
#define EACH_8(X)  EACH_6(X) X(6) X(7)
#define EACH_12(X) EACH_8(X) X(8) X(9) X(10) X(11)

#define KERNEL_TAKES  const uint8_t *w, const uint8_t *x, uint32_t n, float *const *out, uint32_t rows, bool first
#define KERNEL_PASSES w, x, n, out, rows, first, n_col
#define KERNEL(name, columns, target, call)                                                            \
    target static void name##_##columns(KERNEL_TAKES) {                                                \
        const int n_col = columns;                                                                     \
        call;                                                                                          \
    }
#define KERNELS_1_TO_6(name, target, call)                                                             \
    KERNEL(name, 1, target, call) KERNEL(name, 2, target, call) KERNEL(name, 3, target, call)          \
    KERNEL(name, 4, target, call) KERNEL(name, 5, target, call) KERNEL(name, 6, target, call)
#define NAMES_1_TO_6(name) name##_1, name##_2, name##_3, name##_4, name##_5, name##_6
#define KERNELS_6(name, target, call)                                                                  \
    KERNELS_1_TO_6(name, target, call)                                                                 \
    static const wide_kernel_fn name[] = { NAMES_1_TO_6(name) };
#define KERNELS_12(name, target, call)                                                                 \
    KERNELS_1_TO_6(name, target, call)                                                                 \
    KERNEL(name, 7, target, call) KERNEL(name, 8, target, call) KERNEL(name, 9, target, call)          \
    KERNEL(name, 10, target, call) KERNEL(name, 11, target, call) KERNEL(name, 12, target, call)       \
    static const wide_kernel_fn name[] = {                                                             \
        NAMES_1_TO_6(name), name##_7, name##_8, name##_9, name##_10, name##_11, name##_12              \
    };

/* Compilers must not see through these: they would add in another order or load far ahead, and run out of registers. */
#if defined(__GNUC__) || defined(__clang__)
#define HOLD_SUM(v)     __asm__("" : "+v"(v))
#define HOLD_POINTER(p) __asm__("" : "+r"(p))
#else
#define HOLD_SUM(v)     (void)(v)
#define HOLD_POINTER(p) (void)(p)
#endif

/* Where part p of a block finds its elements: parts of 16 weights follow each other, parts of 32 share the block. */
#define PART_OF_X(x, p, groups, n_col) ((x) + ((groups) == 8 ? 0 : 4 * (groups) * (p) * (n_col)))

/* ---- AVX2: strips of 8 rows, 16 for floats; tiles of 6 columns ----
 *
 * Products are summed in 16 bits, two of every four weights in a lane. vpmaddubsw saturates beyond +-32767, but two
 * products of 0..255 by codes within -32..31 reach 16320 at most. Additions wrap, so only what a lane holds in the end
 * must fit: |x| <= 127 times a code, 16 products by codes within -16..15 or 8 by -32..31, make at most 32512. Codes of
 * a whole byte are split into 16 * high + low, two parts with scales of their own: high within -8..7, low 0..15, which
 * make at most 30480. */

NOVA_TARGET_AVX2 NOVA_INLINE __m256 wide_floats_256(const void *p) { return _mm256_loadu_ps((const float *)p); }

NOVA_TARGET_AVX2 NOVA_INLINE void wide_group_avx2(__m256i *sum, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256i v = wide_load_256(w);
#define COLUMN(c)                                                              \
    if (c < n_col) {                                                           \
        __m256i four = _mm256_set1_epi32((int)load_u32(x + 4 * c));            \
        sum[c] = _mm256_add_epi16(sum[c], _mm256_maddubs_epi16(four, v));      \
        HOLD_SUM(sum[c]);                                                      \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += sum[column] * scale * d[column] */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_scale_avx2(__m256 *acc, const __m256i *sum, const uint8_t *scale,
                                                  const uint8_t *d, int n_col) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256        s    = wide_floats_256(scale);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        __m256 v = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(sum[c], ones)), s);    \
        acc[c]   = _mm256_fmadd_ps(v, _mm256_set1_ps(load_f32(d + 4 * c)), acc[c]);          \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += w * x[column] */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_add_avx2(__m256 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256 v = wide_floats_256(w);
#define COLUMN(c) if (c < n_col) acc[c] = _mm256_fmadd_ps(_mm256_set1_ps(load_f32(x + 4 * c)), v, acc[c]);
    EACH_6(COLUMN)
#undef COLUMN
}

/* The same with two registers of rows. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_add_16_avx2(__m256 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m256 v0 = wide_floats_256(w), v1 = wide_floats_256(w + 32);
#define COLUMN(c)                                                \
    if (c < n_col) {                                             \
        __m256 f = _mm256_set1_ps(load_f32(x + 4 * c));          \
        acc[2 * c]     = _mm256_fmadd_ps(f, v0, acc[2 * c]);     \
        acc[2 * c + 1] = _mm256_fmadd_ps(f, v1, acc[2 * c + 1]); \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* Lanes of the rows that are there. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_mask_avx2(uint32_t rows) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)rows), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

NOVA_TARGET_AVX2 NOVA_INLINE __m256 wide_begin_avx2(const float *out, uint32_t rows, bool first) {
    return first ? _mm256_setzero_ps() : _mm256_maskload_ps(out, wide_mask_avx2(rows));
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_end_avx2(float *out, uint32_t rows, __m256 acc) {
    if (rows >= 8) _mm256_storeu_ps(out, acc);
    else _mm256_maskstore_ps(out, wide_mask_avx2(rows), acc);
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_codes_avx2(KERNEL_TAKES, int n_col, int parts, int groups, bool offsets) {
    __m256 acc[6];
#define COLUMN(c) if (c < n_col) acc[c] = wide_begin_avx2(out[c], rows, first);
    EACH_6(COLUMN)
#undef COLUMN
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK * n_col) {
        for (int p = 0; p < parts; p++, w += 32 * groups + 64) {
            const uint8_t *q = PART_OF_X(x, p, groups, n_col);
            __m256i        sum[6], start = wide_load_256(w + 32 * groups);
            HOLD_POINTER(q);
#define COLUMN(c) if (c < n_col) sum[c] = start;
            EACH_6(COLUMN)
#undef COLUMN
#define GROUP(g) if (g < groups) wide_group_avx2(sum, w + 32 * g, q + 4 * g * n_col, n_col);
            EACH_8(GROUP)
#undef GROUP
            wide_scale_avx2(acc, sum, w + 32 * groups + 32, x + TILE_D * n_col, n_col);
        }
        if (offsets) {
            wide_add_avx2(acc, w, x + TILE_DS * n_col, n_col);
            w += 32;
        }
    }
#define COLUMN(c) if (c < n_col) wide_end_avx2(out[c], rows, acc[c]);
    EACH_6(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_floats_avx2(KERNEL_TAKES, int n_col) {
    uint32_t low = rows < 8 ? rows : 8, high = rows - low;
    __m256   acc[12];
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        acc[2 * c]     = wide_begin_avx2(out[c], low, first);            \
        acc[2 * c + 1] = wide_begin_avx2(out[c] + 8, high, first);       \
    }
    EACH_6(COLUMN)
#undef COLUMN
    for (uint32_t k = 0; k < n; k++, w += 64, x += 4 * n_col) wide_add_16_avx2(acc, w, x, n_col);
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        wide_end_avx2(out[c], low, acc[2 * c]);                          \
        wide_end_avx2(out[c] + 8, high, acc[2 * c + 1]);                 \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

KERNELS_6(wide_32_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 1, 8, false))
KERNELS_6(wide_32_offset_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 1, 8, true))
KERNELS_6(wide_32_byte_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 2, 8, false))
KERNELS_6(wide_16_avx2, NOVA_TARGET_AVX2, wide_codes_avx2(KERNEL_PASSES, 2, 4, false))
KERNELS_6(wide_float_avx2, NOVA_TARGET_AVX2, wide_floats_avx2(KERNEL_PASSES))

/* Four registers of 8 rows: bytes 0..3 of each, bytes 4..7, ... */
typedef struct wide_turned_avx2 { __m256i v0, v1, v2, v3; } wide_turned_avx2;

/* Turns 16 bytes of each of 8 rows. */
NOVA_TARGET_AVX2 NOVA_INLINE wide_turned_avx2 wide_turn_avx2(const void *rows, size_t stride) {
    const uint8_t *p = (const uint8_t *)rows;
#define ROW(r)  wide_load_128(p + (r) * stride)
#define ROWS(r) _mm256_inserti128_si256(_mm256_castsi128_si256(ROW(r)), ROW(r + 4), 1)
    __m256i r0 = ROWS(0), r1 = ROWS(1), r2 = ROWS(2), r3 = ROWS(3);
#undef ROWS
#undef ROW
    __m256i a = _mm256_unpacklo_epi32(r0, r1), b = _mm256_unpacklo_epi32(r2, r3);
    __m256i c = _mm256_unpackhi_epi32(r0, r1), d = _mm256_unpackhi_epi32(r2, r3);
    wide_turned_avx2 t;
    t.v0 = _mm256_unpacklo_epi64(a, b);
    t.v1 = _mm256_unpackhi_epi64(a, b);
    t.v2 = _mm256_unpacklo_epi64(c, d);
    t.v3 = _mm256_unpackhi_epi64(c, d);
    return t;
}

NOVA_TARGET_AVX2 NOVA_INLINE void wide_store_turned_avx2(uint8_t *out, size_t stride, wide_turned_avx2 t) {
    wide_store_256(out, t.v0);
    wide_store_256(out + stride, t.v1);
    wide_store_256(out + 2 * stride, t.v2);
    wide_store_256(out + 3 * stride, t.v3);
}

/* What a part takes of a code: all, the high or the low half of a byte. */
enum { TAKE_ALL, TAKE_HIGH, TAKE_LOW };

NOVA_TARGET_AVX2 NOVA_INLINE __m256i wide_take_avx2(__m256i v, int take) {
    const __m256i sign = _mm256_set1_epi8(8);
    if (take == TAKE_LOW) return wide_bits_avx2(v, 0, 15);
    return take == TAKE_HIGH ? _mm256_sub_epi8(_mm256_xor_si256(wide_bits_avx2(v, 4, 15), sign), sign) : v;
}

/* A part of 8 rows: codes, what sums start from (-128 times the codes' sum, by lanes), scales. Returns its end. */
NOVA_TARGET_AVX2
static uint8_t *wide_part_avx2(const int8_t *codes, uint32_t groups, int take, const float *scale, uint8_t *out) {
    const __m256i x128 = _mm256_set1_epi8(-128);
    __m256i       sum  = _mm256_setzero_si256();
    for (uint32_t g = 0; g < groups; g += 4, codes += 16, out += 128) {
        wide_turned_avx2 t = wide_turn_avx2(codes, sizeof(wide_chunk));
        t.v0 = wide_take_avx2(t.v0, take);
        t.v1 = wide_take_avx2(t.v1, take);
        t.v2 = wide_take_avx2(t.v2, take);
        t.v3 = wide_take_avx2(t.v3, take);
        wide_store_turned_avx2(out, 32, t);
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v0));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v1));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v2));
        sum = _mm256_sub_epi16(sum, _mm256_maddubs_epi16(x128, t.v3));
    }
    wide_store_256(out, sum);
    __m256 factor = _mm256_set1_ps(take == TAKE_HIGH ? 16.0f : 1.0f);
    _mm256_storeu_ps((float *)(void *)(out + 32), _mm256_mul_ps(wide_floats_256(scale), factor));
    return out + 64;
}

NOVA_TARGET_AVX2
static void wide_strip_codes_avx2(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[8];
    float      scale[16 * 8];
    for (uint32_t k = 0; k < n; k += CHUNK_CODES) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_CODES);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 8; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (int i = 0; i < 16; i += 4)
            wide_store_turned_avx2((uint8_t *)&scale[8 * i], 32, wide_turn_avx2(chunk->scale + i, sizeof *chunk));
        for (uint32_t b = 0; b < size / 32; b++) {
            const int8_t *codes = chunk->w.codes + 32 * b;
            if (t->kind == WIDE_16) {
                strip = wide_part_avx2(codes, 4, TAKE_ALL, scale + 8 * (2 * b), strip);
                strip = wide_part_avx2(codes + 16, 4, TAKE_ALL, scale + 8 * (2 * b + 1), strip);
            } else if (t->kind == WIDE_32_BYTE) {
                strip = wide_part_avx2(codes, 8, TAKE_HIGH, scale + 8 * b, strip);
                strip = wide_part_avx2(codes, 8, TAKE_LOW, scale + 8 * b, strip);
            } else {
                strip = wide_part_avx2(codes, 8, TAKE_ALL, scale + 8 * b, strip);
            }
            if (t->kind != WIDE_32_OFFSET) continue;
            memcpy(strip, scale + 8 * (b + 8), 32);
            strip += 32;
        }
    }
}

NOVA_TARGET_AVX2
static void wide_strip_floats_avx2(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[16];
    for (uint32_t k = 0; k < n; k += CHUNK_FLOATS) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_FLOATS);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 16; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (uint32_t i = 0; i < size; i += 4, strip += 256) {
            wide_store_turned_avx2(strip, 64, wide_turn_avx2(chunk[0].w.floats + i, sizeof(wide_chunk)));
            wide_store_turned_avx2(strip + 32, 64, wide_turn_avx2(chunk[8].w.floats + i, sizeof(wide_chunk)));
        }
    }
}

/* ---- AVX-512: strips of 32 rows in two registers; tiles of 6 columns, 12 for floats ----
 *
 * Integer sums start from the bits of MAGIC. A sum s within +-2^22 then reads as the float MAGIC + s, and
 * (MAGIC + s) * scale - MAGIC * scale takes one multiply-add, where converting s and multiplying takes two operations.
 * It is s * scale, rounded once: MAGIC * scale is exact, because MAGIC has 2 significant bits and a scale at most 19 (a
 * half's 11 times an integer of 8). s is at most 32 * 128 * 127 < 2^19; on the way to it integers wrap. */
#define MAGIC      12582912.0f   /* 1.5 * 2^23 */
#define MAGIC_BITS 0x4b400000

NOVA_TARGET_AVX512 NOVA_INLINE __m512i wide_load_512(const void *p) { return _mm512_loadu_si512(p); }
NOVA_TARGET_AVX512 NOVA_INLINE void    wide_store_512(void *p, __m512i v) { _mm512_storeu_si512(p, v); }

NOVA_TARGET_AVX512 NOVA_INLINE void wide_group_avx512(__m512i *sum, const uint8_t *w, const uint8_t *x, int n_col) {
    __m512i w0 = wide_load_512(w), w1 = wide_load_512(w + 64);
#define COLUMN(c)                                                        \
    if (c < n_col) {                                                     \
        __m512i v = _mm512_set1_epi32((int)load_u32(x + 4 * c));         \
        sum[2 * c]     = _mm512_dpbusd_epi32(sum[2 * c], v, w0);         \
        sum[2 * c + 1] = _mm512_dpbusd_epi32(sum[2 * c + 1], v, w1);     \
        HOLD_SUM(sum[2 * c]);                                            \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += sum[column] * scale * d[column] */
NOVA_TARGET_AVX512 NOVA_INLINE void wide_scale_avx512(__m512 *acc, const __m512i *sum, const uint8_t *scale,
                                                      const uint8_t *d, int n_col) {
    const __m512 magic = _mm512_set1_ps(-MAGIC);
    __m512       s0 = _mm512_loadu_ps(scale), s1 = _mm512_loadu_ps(scale + 64);
    __m512       t0 = _mm512_mul_ps(s0, magic), t1 = _mm512_mul_ps(s1, magic);
#define COLUMN(c)                                                                     \
    if (c < n_col) {                                                                  \
        __m512 v  = _mm512_set1_ps(load_f32(d + 4 * c));                              \
        __m512 p0 = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[2 * c]), s0, t0);         \
        __m512 p1 = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[2 * c + 1]), s1, t1);     \
        acc[2 * c]     = _mm512_fmadd_ps(p0, v, acc[2 * c]);                          \
        acc[2 * c + 1] = _mm512_fmadd_ps(p1, v, acc[2 * c + 1]);                      \
    }
    EACH_6(COLUMN)
#undef COLUMN
}

/* acc[column] += w * x[column] */
NOVA_TARGET_AVX512 NOVA_INLINE void wide_add_avx512(__m512 *acc, const uint8_t *w, const uint8_t *x, int n_col) {
    __m512 w0 = _mm512_loadu_ps(w), w1 = _mm512_loadu_ps(w + 64);
#define COLUMN(c)                                                \
    if (c < n_col) {                                             \
        __m512 v = _mm512_set1_ps(load_f32(x + 4 * c));          \
        acc[2 * c]     = _mm512_fmadd_ps(v, w0, acc[2 * c]);     \
        acc[2 * c + 1] = _mm512_fmadd_ps(v, w1, acc[2 * c + 1]); \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

/* Bits of the rows that are there. */
NOVA_INLINE uint32_t wide_mask_avx512(uint32_t rows) { return rows >= 32 ? 0xffffffffu : (1u << rows) - 1; }

NOVA_TARGET_AVX512 NOVA_INLINE void wide_begin_avx512(__m512 *acc, float *const *out, uint32_t rows, bool first,
                                                      int n_col) {
    uint32_t mask = first ? 0 : wide_mask_avx512(rows);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        acc[2 * c]     = _mm512_maskz_loadu_ps((__mmask16)mask, out[c]);                     \
        acc[2 * c + 1] = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), out[c] + 16);        \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_end_avx512(const __m512 *acc, float *const *out, uint32_t rows, int n_col) {
    uint32_t mask = wide_mask_avx512(rows);
#define COLUMN(c)                                                                            \
    if (c < n_col) {                                                                         \
        _mm512_mask_storeu_ps(out[c], (__mmask16)mask, acc[2 * c]);                          \
        _mm512_mask_storeu_ps(out[c] + 16, (__mmask16)(mask >> 16), acc[2 * c + 1]);         \
    }
    EACH_12(COLUMN)
#undef COLUMN
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_codes_avx512(KERNEL_TAKES, int n_col, int parts, int groups, bool offsets) {
    __m512 acc[12];
    wide_begin_avx512(acc, out, rows, first, n_col);
    for (uint32_t b = 0; b < n / 32; b++, x += TILE_BLOCK * n_col) {
        for (int p = 0; p < parts; p++, w += 128 * groups + 256) {
            const uint8_t *q = PART_OF_X(x, p, groups, n_col), *start = w + 128 * groups;
            __m512i        sum[12], s0 = wide_load_512(start), s1 = wide_load_512(start + 64);
#define COLUMN(c) if (c < n_col) sum[2 * c] = s0, sum[2 * c + 1] = s1;
            EACH_6(COLUMN)
#undef COLUMN
#define GROUP(g) if (g < groups) wide_group_avx512(sum, w + 128 * g, q + 4 * g * n_col, n_col);
            EACH_8(GROUP)
#undef GROUP
            wide_scale_avx512(acc, sum, start + 128, x + TILE_D * n_col, n_col);
        }
        if (offsets) {
            wide_add_avx512(acc, w, x + TILE_DS * n_col, n_col);
            w += 128;
        }
    }
    wide_end_avx512(acc, out, rows, n_col);
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_floats_avx512(KERNEL_TAKES, int n_col) {
    __m512 acc[24];
    wide_begin_avx512(acc, out, rows, first, n_col);
    for (uint32_t k = 0; k < n; k++, w += 128, x += 4 * n_col) wide_add_avx512(acc, w, x, n_col);
    wide_end_avx512(acc, out, rows, n_col);
}

KERNELS_6(wide_32_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 1, 8, false))
KERNELS_6(wide_32_offset_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 1, 8, true))
KERNELS_6(wide_16_avx512, NOVA_TARGET_AVX512, wide_codes_avx512(KERNEL_PASSES, 2, 4, false))
KERNELS_12(wide_float_avx512, NOVA_TARGET_AVX512, wide_floats_avx512(KERNEL_PASSES))

typedef struct wide_turned_avx512 { __m512i v0, v1, v2, v3; } wide_turned_avx512;

/* Turns 16 bytes of each of 16 rows: bytes 0..3 of each, bytes 4..7, ... */
NOVA_TARGET_AVX512 NOVA_INLINE wide_turned_avx512 wide_turn_avx512(const void *rows, size_t stride) {
    const uint8_t *p = (const uint8_t *)rows;
#define ROW(r)     wide_load_128(p + (r) * stride)
#define ROWS(r)                                                                                              \
    _mm512_inserti32x4(_mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(ROW(r)), ROW(r + 4), 1), \
                                          ROW(r + 8), 2), ROW(r + 12), 3)
    __m512i r0 = ROWS(0), r1 = ROWS(1), r2 = ROWS(2), r3 = ROWS(3);
#undef ROWS
#undef ROW
    __m512i a = _mm512_unpacklo_epi32(r0, r1), b = _mm512_unpacklo_epi32(r2, r3);
    __m512i c = _mm512_unpackhi_epi32(r0, r1), d = _mm512_unpackhi_epi32(r2, r3);
    wide_turned_avx512 t;
    t.v0 = _mm512_unpacklo_epi64(a, b);
    t.v1 = _mm512_unpackhi_epi64(a, b);
    t.v2 = _mm512_unpacklo_epi64(c, d);
    t.v3 = _mm512_unpackhi_epi64(c, d);
    return t;
}

NOVA_TARGET_AVX512 NOVA_INLINE void wide_store_turned_avx512(uint8_t *out, size_t stride, wide_turned_avx512 t) {
    wide_store_512(out, t.v0);
    wide_store_512(out + stride, t.v1);
    wide_store_512(out + 2 * stride, t.v2);
    wide_store_512(out + 3 * stride, t.v3);
}

/* A part of 16 rows, half of a strip's: codes, what sums start from, scales. Returns its end. */
NOVA_TARGET_AVX512
static uint8_t *wide_part_avx512(const int8_t *codes, uint32_t groups, const float *scale, uint8_t *out) {
    const __m512i x128 = _mm512_set1_epi8(-128);
    __m512i       sum  = _mm512_setzero_si512();
    for (uint32_t g = 0; g < groups; g += 4, codes += 16, out += 512) {
        wide_turned_avx512 t = wide_turn_avx512(codes, sizeof(wide_chunk));
        wide_store_turned_avx512(out, 128, t);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v0);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v1);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v2);
        sum = _mm512_dpbusd_epi32(sum, x128, t.v3);
    }
    wide_store_512(out, _mm512_sub_epi32(_mm512_set1_epi32(MAGIC_BITS), sum));
    wide_store_512(out + 128, wide_load_512(scale));
    return out + 256;
}

NOVA_TARGET_AVX512
static void wide_half_strip_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[16];
    float      scale[16 * 16];
    for (uint32_t k = 0; k < n; k += CHUNK_CODES) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_CODES);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 16; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (int i = 0; i < 16; i += 4)
            wide_store_turned_avx512((uint8_t *)&scale[16 * i], 64, wide_turn_avx512(chunk->scale + i, sizeof *chunk));
        for (uint32_t b = 0; b < size / 32; b++) {
            const int8_t *codes = chunk->w.codes + 32 * b;
            if (t->kind == WIDE_16) {
                strip = wide_part_avx512(codes, 4, scale + 16 * (2 * b), strip);
                strip = wide_part_avx512(codes + 16, 4, scale + 16 * (2 * b + 1), strip);
            } else {
                strip = wide_part_avx512(codes, 8, scale + 16 * b, strip);
            }
            if (t->kind != WIDE_32_OFFSET) continue;
            memcpy(strip, scale + 16 * (b + 8), 64);
            strip += 128;
        }
    }
}

static void wide_strip_codes_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_half_strip_avx512(t, rows, n, strip);
    wide_half_strip_avx512(t, rows + 16, n, strip + 64);
}

NOVA_TARGET_AVX512
static void wide_strip_floats_avx512(const wide_type *t, const uint8_t *const *rows, uint32_t n, uint8_t *strip) {
    wide_chunk chunk[32];
    for (uint32_t k = 0; k < n; k += CHUNK_FLOATS) {
        uint32_t size = (uint32_t)size_min(n - k, CHUNK_FLOATS);
        size_t   at   = wide_offset(t, k);
        for (int r = 0; r < 32; r++) t->unpack[1](rows[r] + at, size, &chunk[r]);
        for (uint32_t i = 0; i < size; i += 4, strip += 512) {
            wide_store_turned_avx512(strip, 128, wide_turn_avx512(chunk[0].w.floats + i, sizeof(wide_chunk)));
            wide_store_turned_avx512(strip + 64, 128, wide_turn_avx512(chunk[16].w.floats + i, sizeof(wide_chunk)));
        }
    }
}

#endif

/* ---- The table of levels and kinds ---- */

#define FLOAT_BYTES(rows)                        ((rows) * 32 * 4)
#define CODE_BYTES(rows, parts, groups, offsets) ((rows) * ((parts) * ((groups) * 4 + 8) + (offsets) * 4))

static const wide_method WIDE_METHODS[][WIDE_KINDS] = {
    {   /* rows, columns, strips, depth, bytes of 32 weights */
        { 8, 1, 1, 512, 8 * sizeof(wide_chunk) / 2, wide_strip_plain, wide_float_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_offset_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_32_plain },
        { 8, 1, 1, 1024, 8 * sizeof(wide_chunk) / 8, wide_strip_plain, wide_16_plain },
    },
#ifdef NOVA_X86
    {
        { 16, 6, 4, 512, FLOAT_BYTES(16), wide_strip_floats_avx2, wide_float_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 1, 8, 0), wide_strip_codes_avx2, wide_32_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 1, 8, 1), wide_strip_codes_avx2, wide_32_offset_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 2, 8, 0), wide_strip_codes_avx2, wide_32_byte_avx2 },
        { 8, 6, 8, 1024, CODE_BYTES(8, 2, 4, 0), wide_strip_codes_avx2, wide_16_avx2 },
    },
    {
        { 32, 12, 4, 1024, FLOAT_BYTES(32), wide_strip_floats_avx512, wide_float_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 0), wide_strip_codes_avx512, wide_32_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 1), wide_strip_codes_avx512, wide_32_offset_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 1, 8, 0), wide_strip_codes_avx512, wide_32_avx512 },
        { 32, 6, 4, 2048, CODE_BYTES(32, 2, 4, 0), wide_strip_codes_avx512, wide_16_avx512 },
    },
#endif
};

static const wide_method *wide_method_of(cpu_level level, wide_kind kind) {
    return &WIDE_METHODS[size_min((size_t)level, COUNT_OF(WIDE_METHODS) - 1)][kind];
}

/* ---- Packing columns ---- */

static uint32_t wide_form(uint32_t type) {
    return wide_type_of(type)->kind == WIDE_FLOAT ? FORM_WIDE_FLOAT : FORM_WIDE_INT8;
}

/* All kinds of a form have tiles of the same width. */
static uint32_t wide_columns(cpu_level level, uint32_t form) {
    return wide_method_of(level, form == FORM_WIDE_FLOAT ? WIDE_FLOAT : WIDE_32)->columns;
}

static uint32_t wide_tiles(cpu_level level, uint32_t form, size_t n_col) {
    uint32_t columns = wide_columns(level, form);
    return (uint32_t)((n_col + columns - 1) / columns);
}

/* First column of a tile. Tiles are as even as can be: a narrow one would leave the processor waiting for sums. */
static size_t wide_tile_begin(uint32_t tile, uint32_t tiles, size_t n_col) {
    return tiles ? (size_t)((uint64_t)n_col * tile / tiles) : 0;
}

static size_t wide_column_bytes(uint32_t form, size_t n_in) {
    return form == FORM_WIDE_FLOAT ? n_in * sizeof(float) : n_in / 32 * TILE_BLOCK;
}

static size_t wide_input_bytes(cpu_level level, uint32_t form, size_t n_in, size_t n_col) {
    (void)level;
    size_t bytes;
    if (n_in > SIZE_MAX / 8 || !size_mul(wide_column_bytes(form, n_in), n_col, &bytes) || bytes > SIZE_MAX - 64)
        return SIZE_MAX / 64 * 64;   /* which nobody can allocate */
    return size_align(bytes, 64);
}

/* Elements k .. n_in - 1 of n_col columns x[0], x[1], ... */
static void wide_pack_floats_plain(const float *const *x, uint32_t n_col, size_t k, size_t n_in, uint8_t *out) {
    for (out += 4 * n_col * k; k < n_in; k++)
        for (uint32_t c = 0; c < n_col; c++, out += 4) memcpy(out, &x[c][k], 4);
}

static void wide_pack_int8_plain(const float *x, size_t n_in, uint8_t *out) {
    for (size_t k = 0; k < n_in; k += 32, out += TILE_BLOCK) {
        int8_t  q[32];
        float   d;
        int32_t sum = 0;
        input_quantise(CPU_PLAIN, x + k, 32, q, &d);
        for (int i = 0; i < 32; i++) sum += q[i];
        float ds = d * (float)sum;
        memcpy(out, q, 32);
        memcpy(out + TILE_D, &d, 4);
        memcpy(out + TILE_DS, &ds, 4);
    }
}

#ifdef NOVA_X86

/* Four elements of four columns from c on. */
NOVA_TARGET_AVX2 NOVA_INLINE void wide_pack_4x4(const float *const *x, uint32_t c, uint32_t n_col, size_t k,
                                                uint8_t *out) {
    __m128 a = _mm_loadu_ps(x[c] + k), b = _mm_loadu_ps(x[c + 1] + k);
    __m128 d = _mm_loadu_ps(x[c + 2] + k), e = _mm_loadu_ps(x[c + 3] + k);
    _MM_TRANSPOSE4_PS(a, b, d, e);
    float *p = (float *)(void *)out + k * n_col + c;
    _mm_storeu_ps(p, a);
    _mm_storeu_ps(p + n_col, b);
    _mm_storeu_ps(p + 2 * n_col, d);
    _mm_storeu_ps(p + 3 * n_col, e);
}

NOVA_TARGET_AVX2
static void wide_pack_floats_avx2(const float *const *x, uint32_t n_col, size_t n_in, uint8_t *out) {
    size_t k = 0;
    if (n_col >= 4)
        for (; k + 4 <= n_in; k += 4) {
            for (uint32_t c = 0; c + 4 <= n_col; c += 4) wide_pack_4x4(x, c, n_col, k, out);
            if (n_col % 4) wide_pack_4x4(x, n_col - 4, n_col, k, out);   /* some of them once more */
        }
    wide_pack_floats_plain(x, n_col, k, n_in, out);
}

/* One block of up to 8 columns, q[column], turned to groups of four by columns. With four columns or more, whole
 * registers are stored: what they write behind their n_col columns is overwritten next; the last one is cut. */
NOVA_TARGET_AVX2
static void wide_pack_block_avx2(const int8_t *q, __m256i d, uint32_t n_col, uint8_t *out) {
    const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi8(1), mask = wide_mask_avx2(n_col);
    __m256i       sum = _mm256_setzero_si256();
#define STORE(v)                                                               \
    if (n_col >= 4) wide_store_256(out, v);                                    \
    else _mm256_maskstore_epi32((int *)(void *)out, mask, v);                  \
    out += 4 * n_col;
#define GROUP(v)                                                               \
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, v));                \
    STORE(_mm256_xor_si256(v, flip))
    for (int half = 0; half < 2; half++) {
        wide_turned_avx2 t = wide_turn_avx2(q + 16 * half, CHUNK_CODES);
        GROUP(t.v0)
        GROUP(t.v1)
        GROUP(t.v2)
        GROUP(t.v3)
    }
    STORE(d)
#undef GROUP
#undef STORE
    __m256 sums = _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
    _mm256_maskstore_ps((float *)(void *)out, mask, _mm256_mul_ps(_mm256_castsi256_ps(d), sums));
}

NOVA_TARGET_AVX2
static void wide_pack_int8_avx2(cpu_level level, const float *const *x, uint32_t n_col, size_t n_in, uint8_t *out) {
    int8_t q[8][CHUNK_CODES];
    float  d[8][CHUNK_CODES / 32], by_block[CHUNK_CODES / 32][8];
    memset(q, 0, sizeof q);
    memset(d, 0, sizeof d);
    for (size_t k = 0; k < n_in; k += CHUNK_CODES) {
        size_t size = size_min(n_in - k, CHUNK_CODES);
        for (uint32_t c = 0; c < n_col; c++) input_quantise(level, x[c] + k, size, q[c], d[c]);
        wide_store_turned_avx2((uint8_t *)by_block[0], sizeof by_block[0], wide_turn_avx2(d[0], sizeof d[0]));
        wide_store_turned_avx2((uint8_t *)by_block[4], sizeof by_block[0], wide_turn_avx2(d[0] + 4, sizeof d[0]));
        for (size_t b = 0; b < size / 32; b++, out += TILE_BLOCK * n_col)
            wide_pack_block_avx2(q[0] + 32 * b, wide_load_256(by_block[b]), n_col, out);
    }
}

#endif

static void wide_pack(cpu_level level, uint32_t form, const float *const *x, uint32_t n_col, size_t n_in,
                      uint8_t *out) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        if (form == FORM_WIDE_FLOAT) wide_pack_floats_avx2(x, n_col, n_in, out);
        else wide_pack_int8_avx2(level, x, n_col, n_in, out);
        return;
    }
#endif
    (void)level;
    if (form == FORM_WIDE_FLOAT) wide_pack_floats_plain(x, n_col, 0, n_in, out);
    else wide_pack_int8_plain(x[0], n_in, out);
}

static void wide_prepare(cpu_level level, uint32_t form, const float *x, size_t ld_x, const uint32_t *columns,
                         size_t n_in, size_t n_col, uint32_t tile_begin, uint32_t tile_end, void *out) {
    uint32_t tiles = wide_tiles(level, form, n_col);
    for (uint32_t t = tile_begin; t < tile_end; t++) {
        const float *from[WIDE_MAX_COLUMNS];
        size_t       begin = wide_tile_begin(t, tiles, n_col);
        uint32_t     n     = (uint32_t)(wide_tile_begin(t + 1, tiles, n_col) - begin);
        uint8_t     *tile  = (uint8_t *)out + begin * wide_column_bytes(form, n_in);
        for (uint32_t c = 0; c < n; c++) from[c] = x + (columns ? columns[begin + c] : begin + c) * ld_x;
        wide_pack(level, form, from, n, n_in, tile);
    }
}

/* ---- Multiplying ---- */

/* Of the panels of rows with n_in weights: a short row needs less memory. */
static uint32_t wide_depth(const wide_method *m, size_t n_in) {
    return n_in < m->depth ? (uint32_t)size_align(n_in, CHUNK_CODES) : m->depth;
}

static size_t wide_scratch_bytes(cpu_level level, uint32_t type, size_t n_in) {
    const wide_method *m = wide_method_of(level, wide_type_of(type)->kind);
    return size_align((size_t)m->strips * (wide_depth(m, n_in) / 32) * m->strip_bytes, 64);
}

static uint32_t wide_panel_rows(cpu_level level, uint32_t type, size_t n_in) {
    (void)n_in;
    return wide_method_of(level, wide_type_of(type)->kind)->rows;
}

/* A matmul in progress: what does not change, and the panel. */
typedef struct wide_job {
    const wide_type   *t;
    const wide_method *m;
    const weight      *w;
    const uint8_t     *input;
    size_t             n_col;
    const uint32_t    *columns;
    float             *out;
    size_t             ld_out;
    uint8_t           *panel;
    size_t             strip_bytes;
    uint32_t           begin, end;   /* rows of the panel */
    uint32_t           k, n;         /* its n weights from k on */
} wide_job;

/* A strip without enough rows repeats the last one. */
static void wide_unpack_panel(const wide_job *j) {
    uint8_t *strip = j->panel;
    for (size_t r = j->begin; r < j->end; r += j->m->rows, strip += j->strip_bytes) {
        const uint8_t *rows[WIDE_MAX_ROWS];
        for (uint32_t i = 0; i < j->m->rows; i++)
            rows[i] = j->w->data + size_min(r + i, j->end - 1) * j->w->row_bytes + wide_offset(j->t, j->k);
        j->m->unpack(j->t, rows, j->n, strip);
    }
}

/* The panel times all columns. */
static void wide_multiply_panel(const wide_job *j) {
    uint32_t form = wide_form(j->w->type), tiles = (uint32_t)((j->n_col + j->m->columns - 1) / j->m->columns);
    size_t   column = wide_column_bytes(form, j->w->n_in), before = wide_column_bytes(form, j->k);
    for (uint32_t t = 0; t < tiles; t++) {
        size_t         c     = wide_tile_begin(t, tiles, j->n_col), n_col = wide_tile_begin(t + 1, tiles, j->n_col) - c;
        const uint8_t *tile  = j->input + c * column + n_col * before, *strip = j->panel;
        for (size_t r = j->begin; r < j->end; r += j->m->rows, strip += j->strip_bytes) {
            float *out[WIDE_MAX_COLUMNS];
            for (size_t i = 0; i < n_col; i++)
                out[i] = j->out + (j->columns ? j->columns[c + i] : c + i) * j->ld_out + r;
            j->m->kernels[n_col - 1](strip, tile, j->n, out, (uint32_t)size_min(j->m->rows, j->end - r), j->k == 0);
        }
    }
}

static void wide_matmul(cpu_level level, const weight *w, const void *input, size_t n_col, const uint32_t *columns,
                        uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out, void *scratch) {
    wide_job j;
    j.t       = wide_type_of(w->type);
    j.m       = wide_method_of(level, j.t->kind);
    j.w       = w;
    j.input   = (const uint8_t *)input;
    j.n_col   = n_col;
    j.columns = columns;
    j.out     = out;
    j.ld_out  = ld_out;
    j.panel   = (uint8_t *)scratch;
    uint32_t depth = wide_depth(j.m, w->n_in), panel_rows = j.m->strips * j.m->rows;
    j.strip_bytes = (size_t)(depth / 32) * j.m->strip_bytes;
    for (j.begin = row_begin; j.begin < row_end; j.begin = j.end) {
        j.end = j.begin + (uint32_t)size_min(row_end - j.begin, panel_rows);
        for (j.k = 0; j.k < w->n_in; j.k += j.n) {
            j.n = (uint32_t)size_min(w->n_in - j.k, depth);
            wide_unpack_panel(&j);
            wide_multiply_panel(&j);
        }
    }
}

#undef EACH_6
#undef EACH_8
#undef EACH_12
#undef KERNEL_TAKES
#undef KERNEL_PASSES
#undef KERNEL
#undef KERNELS_1_TO_6
#undef KERNELS_6
#undef KERNELS_12
#undef NAMES_1_TO_6
#undef PLAIN_KERNEL
#undef PART_OF_X
#undef HOLD_SUM
#undef HOLD_POINTER
#undef MAGIC
#undef MAGIC_BITS
