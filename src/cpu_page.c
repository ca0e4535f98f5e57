/* Pages of the cache on the CPU: see cpu_page.h. */
#include "cpu_page.h"

#define PAGE_BLOCK 32   /* dimensions of a scale */

static uint32_t page_blocks(uint32_t head_dim) { return head_dim / PAGE_BLOCK + (head_dim % PAGE_BLOCK != 0); }

static bool page_is_plain(uint32_t type) { return type == TYPE_F32 || type == TYPE_F16; }

/* Bytes of so many codes. */
static size_t code_bytes(uint32_t type, size_t n) { return type == TYPE_Q4_0 ? n / 2 : type == TYPE_Q8_0 ? n : n * type_row_bytes(type, 1); }

/* Where a page's scales begin. */
static size_t k_codes(uint32_t type, uint32_t head_dim) { return code_bytes(type, (size_t)head_dim * KV_PAGE); }
static size_t v_codes(uint32_t type, uint32_t head_dim) {
    return code_bytes(type, page_is_plain(type) ? (size_t)head_dim * KV_PAGE : (size_t)page_blocks(head_dim) * PAGE_BLOCK * KV_PAGE);
}

static size_t scale_bytes(uint32_t type, uint32_t head_dim) {
    return page_is_plain(type) ? 0 : (size_t)page_blocks(head_dim) * KV_PAGE * sizeof(uint16_t);
}

static size_t page_k_bytes(uint32_t type, uint32_t head_dim) {
    return (k_codes(type, head_dim) + scale_bytes(type, head_dim) + 63) & ~(size_t)63;
}
static size_t page_v_bytes(uint32_t type, uint32_t head_dim) {
    return (v_codes(type, head_dim) + scale_bytes(type, head_dim) + 63) & ~(size_t)63;
}

/* ---- Blocks ---- */

#define LARGEST_HALF 65504.0f
#define HALF_NAN     0x7e00u

static float signed_largest(const float *x, uint32_t n) {   /* with its sign */
    float top = 0;
    for (uint32_t i = 0; i < n; i++)
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    return top;
}

static bool all_finite(const float *x, uint32_t n) {
    bool finite = true;
    for (uint32_t i = 0; i < n; i++) finite = finite && f32_is_finite(x[i]);
    return finite;
}

/* A scale as a half that holds it; 0 stays 0. */
static uint16_t scale_half(float d) { return float_to_half(d > LARGEST_HALF ? LARGEST_HALF : d < -LARGEST_HALF ? -LARGEST_HALF : d); }

static int nearest_code(float x, float inverse, int low, int high) {
    float y = x * inverse;
    y = y < (float)low ? (float)low : y > (float)high ? (float)high : y;
    return (int)(y < 0 ? y - 0.5f : y + 0.5f);
}

/* The scale of 4-bit codes: the one of the largest, then the best one for the codes that it gives (least squares). */
static float scale_of_4_bits(const float *x, uint32_t n) {
    float d = signed_largest(x, n) / -8.0f, inverse = 1.0f / d, xy = 0, yy = 0;
    if (d == 0 || !f32_is_finite(inverse)) return 0;
    for (uint32_t i = 0; i < n; i++) {
        float y = (float)nearest_code(x[i], inverse, -8, 7);
        xy += x[i] * y;
        yy += y * y;
    }
    return f32_is_finite(xy) ? xy / yy : d;
}

/* The codes of up to 32 floats, those behind them 0, and their scale: w = scale * code (Q8_0), scale * (code - 8) (Q4_0). The scale is
 * rounded to a half before the codes are found. */
static uint16_t block_codes(uint32_t type, const float *x, uint32_t n, uint8_t codes[PAGE_BLOCK]) {
    bool     wide = type == TYPE_Q8_0, finite = all_finite(x, n);
    float    d    = !finite ? 0 : wide ? fabsf(signed_largest(x, n)) / 127.0f : scale_of_4_bits(x, n);
    uint16_t half = scale_half(d);
    float    s    = half_to_float(half), inverse = s == 0 ? 0 : 1.0f / s;
    for (uint32_t i = 0; i < PAGE_BLOCK; i++) {
        float y = i < n && finite ? x[i] : 0;
        codes[i] = (uint8_t)(wide ? nearest_code(y, inverse, -127, 127) : nearest_code(y, inverse, -8, 7) + 8);
    }
    return finite ? half : HALF_NAN;
}

/* ---- Spreading ---- */

static void hadamard(float *x, uint32_t n) {
    for (uint32_t half = 1; half < n; half *= 2)
        for (uint32_t at = 0; at < n; at += 2 * half)
            for (uint32_t i = at; i < at + half; i++) {
                float a = x[i], b = x[i + half];
                x[i]        = a + b;
                x[i + half] = a - b;
            }
    float norm = 1.0f / sqrtf((float)n);
    for (uint32_t i = 0; i < n; i++) x[i] *= norm;
}

static void page_spread(uint32_t type, float *x, uint32_t head_dim) {
    if (page_is_plain(type)) return;
    for (uint32_t left = head_dim, n; left; left -= n, x += n) {
        for (n = 1; n <= left / 2; n *= 2) { }
        hadamard(x, n);
    }
}

/* ---- Storing ---- */

static void store_floats(uint8_t *page, const float *x, uint32_t n, size_t step) {
    float *to = (float *)(void *)page;
    for (uint32_t d = 0; d < n; d++) to[d * step] = x[d];
}

static void store_halves(cpu_level level, uint8_t *page, const float *x, uint32_t n, size_t step) {
    uint16_t *to = (uint16_t *)(void *)page, halves[64];
    for (uint32_t d = 0; d < n; d += 64) {
        uint32_t some = (uint32_t)size_min(64, n - d);
        vector_half_from_float(level, halves, x + d, some);
        for (uint32_t i = 0; i < some; i++) to[(size_t)(d + i) * step] = halves[i];
    }
}

/* A nibble of its own; the other half of the byte stays. */
static void put_nibble(uint8_t *byte, bool high, uint8_t code) {
    *byte = high ? (uint8_t)((*byte & 0x0f) | code << 4) : (uint8_t)((*byte & 0xf0) | code);
}

static void store_k_blocks(uint32_t type, uint8_t *page, const float *x, uint32_t n, uint32_t t) {
    uint16_t *scales = (uint16_t *)(void *)(page + k_codes(type, n));
    uint8_t   codes[PAGE_BLOCK];
    for (uint32_t d = 0; d < n; d += PAGE_BLOCK) {
        uint32_t some = (uint32_t)size_min(PAGE_BLOCK, n - d);
        scales[d / PAGE_BLOCK * KV_PAGE + t] = block_codes(type, x + d, some, codes);
        for (uint32_t i = 0; i < some; i++) {
            if (type == TYPE_Q8_0) page[(size_t)(d + i) * KV_PAGE + t] = codes[i];
            else put_nibble(page + (size_t)(d + i) * (KV_PAGE / 2) + t % 32, t >= 32, codes[i]);
        }
    }
}

static void store_v_blocks(uint32_t type, uint8_t *page, const float *x, uint32_t n, uint32_t t) {
    uint32_t  blocks = page_blocks(n);
    uint16_t *scales = (uint16_t *)(void *)(page + v_codes(type, n)) + (size_t)t * blocks;
    uint8_t   codes[PAGE_BLOCK];
    for (uint32_t b = 0; b < blocks; b++) {
        uint8_t *to = page + code_bytes(type, ((size_t)t * blocks + b) * PAGE_BLOCK);
        scales[b] = block_codes(type, x + (size_t)b * PAGE_BLOCK, (uint32_t)size_min(PAGE_BLOCK, n - b * PAGE_BLOCK), codes);
        if (type == TYPE_Q8_0) memcpy(to, codes, PAGE_BLOCK);
        for (uint32_t i = 0; type == TYPE_Q4_0 && i < 16; i++) to[i] = (uint8_t)(codes[i] | codes[i + 16] << 4);
    }
}

static void page_store_k(cpu_level level, uint32_t type, void *page, uint32_t head_dim, uint32_t t, const float *k) {
    uint8_t *p = (uint8_t *)page;
    if (type == TYPE_F32) store_floats(p + t * sizeof(float), k, head_dim, KV_PAGE);
    else if (type == TYPE_F16) store_halves(level, p + t * sizeof(uint16_t), k, head_dim, KV_PAGE);
    else store_k_blocks(type, p, k, head_dim, t);
}

static void page_store_v(cpu_level level, uint32_t type, void *page, uint32_t head_dim, uint32_t t, const float *v) {
    uint8_t *p = (uint8_t *)page;
    if (type == TYPE_F32) store_floats(p + (size_t)t * head_dim * sizeof(float), v, head_dim, 1);
    else if (type == TYPE_F16) vector_half_from_float(level, (uint16_t *)page + (size_t)t * head_dim, v, head_dim);
    else store_v_blocks(type, p, v, head_dim, t);
}

/* ---- To floats: products of a half and a small integer, which are exact ---- */

/* A dimension of all tokens; scales of its block as floats. */
static void k_row_plain(uint32_t type, const uint8_t *codes, const float *scales, float *out) {
    for (uint32_t t = 0; t < KV_PAGE; t++) {
        int code = type == TYPE_Q8_0 ? (int8_t)codes[t] : (t < 32 ? codes[t] & 15 : codes[t - 32] >> 4) - 8;
        out[t] = scales[t] * (float)code;
    }
}

static void v_block_plain(uint32_t type, const uint8_t *codes, float scale, float *out, uint32_t n) {
    for (uint32_t j = 0; j < n; j++) {
        int code = type == TYPE_Q8_0 ? (int8_t)codes[j] : (j < 16 ? codes[j] & 15 : codes[j - 16] >> 4) - 8;
        out[j] = scale * (float)code;
    }
}

#ifdef NOVA_X86

/* Eight signed bytes, or eight nibbles from the low (high) halves of eight bytes less 8. */
NOVA_TARGET_AVX2 NOVA_INLINE __m256 codes_avx2(uint32_t type, const uint8_t *codes, bool high) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes);
    if (type == TYPE_Q8_0) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    __m256i wide = _mm256_cvtepu8_epi32(bytes);
    wide = high ? _mm256_srli_epi32(wide, 4) : _mm256_and_si256(wide, _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(wide, _mm256_set1_epi32(8)));
}

NOVA_TARGET_AVX2 static void k_row_avx2(uint32_t type, const uint8_t *codes, const float *scales, float *out) {
    for (uint32_t t = 0; t < KV_PAGE; t += 8) {
        const uint8_t *at = codes + (type == TYPE_Q8_0 ? t : t % 32);
        _mm256_storeu_ps(out + t, _mm256_mul_ps(_mm256_loadu_ps(scales + t), codes_avx2(type, at, t >= 32)));
    }
}

NOVA_TARGET_AVX2 static void v_block_avx2(uint32_t type, const uint8_t *codes, float scale, float *out) {
    for (uint32_t j = 0; j < PAGE_BLOCK; j += 8) {
        const uint8_t *at = codes + (type == TYPE_Q8_0 ? j : j % 16);
        _mm256_storeu_ps(out + j, _mm256_mul_ps(_mm256_set1_ps(scale), codes_avx2(type, at, j >= 16)));
    }
}

#endif

static void k_row(cpu_level level, uint32_t type, const uint8_t *codes, const float *scales, float *out) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        k_row_avx2(type, codes, scales, out);
        return;
    }
#endif
    (void)level;
    k_row_plain(type, codes, scales, out);
}

static void v_block(cpu_level level, uint32_t type, const uint8_t *codes, float scale, float *out, uint32_t n) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2 && n == PAGE_BLOCK) {
        v_block_avx2(type, codes, scale, out);
        return;
    }
#endif
    (void)level;
    v_block_plain(type, codes, scale, out, n);
}

static const float *page_k_floats(cpu_level level, uint32_t type, const void *page, uint32_t head_dim, float *scratch) {
    const uint8_t  *p      = (const uint8_t *)page;
    const uint16_t *halves = (const uint16_t *)(const void *)(p + k_codes(type, head_dim));
    float           scales[KV_PAGE];
    if (type == TYPE_F32) return (const float *)page;
    if (type == TYPE_F16) return vector_float_from_half(level, scratch, (const uint16_t *)page, (size_t)KV_PAGE * head_dim), scratch;
    for (uint32_t d = 0; d < head_dim; d++) {
        if (d % PAGE_BLOCK == 0) vector_float_from_half(level, scales, halves + d / PAGE_BLOCK * KV_PAGE, KV_PAGE);
        k_row(level, type, p + code_bytes(type, (size_t)d * KV_PAGE), scales, scratch + (size_t)d * KV_PAGE);
    }
    return scratch;
}

static const float *page_v_floats(cpu_level level, uint32_t type, const void *page, uint32_t head_dim, float *scratch) {
    const uint8_t  *p      = (const uint8_t *)page;
    const uint16_t *halves = (const uint16_t *)(const void *)(p + v_codes(type, head_dim));
    uint32_t        blocks = page_blocks(head_dim);
    if (type == TYPE_F32) return (const float *)page;
    if (type == TYPE_F16) return vector_float_from_half(level, scratch, (const uint16_t *)page, (size_t)KV_PAGE * head_dim), scratch;
    for (uint32_t t = 0; t < KV_PAGE; t++)
        for (uint32_t b = 0; b < blocks; b++) {
            size_t at = (size_t)t * blocks + b;
            v_block(level, type, p + code_bytes(type, at * PAGE_BLOCK), half_to_float(halves[at]),
                    scratch + (size_t)t * head_dim + b * PAGE_BLOCK, (uint32_t)size_min(PAGE_BLOCK, head_dim - b * PAGE_BLOCK));
        }
    return scratch;
}
