/* Block formats to float: see quant.h. Layouts as in the GGUF specification and ggml's type definitions.
 *
 * Every product below is exact: a half's 11 bits times a scale of at most 7 bits times a code of at most 6 bits fits
 * the 24 bits of a float, and nothing is so small that it would be subnormal. At most one sum follows, which rounds
 * once. So no compiler option (contraction to multiply-add, reassociation) changes a result. */
#include "quant.h"

/* ---- Half precision ---- */

static float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu, u;
    if (exponent == 31) {
        u = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        u = (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa == 0) {
        u = 0;
    } else {
        for (exponent = 113; !(mantissa & 0x400u); exponent--) mantissa <<= 1;
        u = exponent << 23 | (mantissa & 0x3ffu) << 13;
    }
    u |= sign;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint16_t float_to_half(float f) {
    uint32_t u, half;
    memcpy(&u, &f, sizeof u);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {            /* NaN: the upper payload bits, made quiet */
        half = 0x7e00u | ((u >> 13) & 0x3ffu);
    } else if (u >= 0x477ff000u) {    /* 65520 and above rounds to infinity */
        half = 0x7c00u;
    } else if (u >= 0x38800000u) {    /* 2^-14: normal as a half. A carry runs into the exponent, as it must. */
        half = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
    } else if (u >= 0x33000000u) {    /* 2^-25 and above: a count of 2^-24 */
        uint32_t mantissa = (u & 0x7fffffu) | 0x800000u, shift = 126 - (u >> 23);
        uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
        half = mantissa >> shift;
        if (rest > middle || (rest == middle && (half & 1u))) half++;
    } else {
        half = 0;
    }
    return (uint16_t)(sign | half);
}

static float load_half(const uint8_t *p) { return half_to_float(load_u16(p)); }

/* ---- Plain types ---- */

static void f32_to_float(const void *blocks, float *out, size_t n) { memcpy(out, blocks, n * sizeof *out); }

static void f16_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i++) out[i] = load_half(p + 2 * i);
}

static void bf16_to_floats(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(load_u16(p + 2 * i));
}

/* ---- Blocks of 32: weight j in the low half of byte j, weight j + 16 in the high half ---- */

/* d (half), 16 bytes of codes: w = d * (code - 8) */
static void q4_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 18) {
        float d = load_half(p);
        for (int j = 0; j < 16; j++) {
            out[i + (size_t)j]      = d * (float)((p[2 + j] & 15) - 8);
            out[i + (size_t)j + 16] = d * (float)((p[2 + j] >> 4) - 8);
        }
    }
}

/* d, m (halves), 16 bytes of codes: w = d * code + m */
static void q4_1_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 20) {
        float d = load_half(p), m = load_half(p + 2);
        for (int j = 0; j < 16; j++) {
            out[i + (size_t)j]      = d * (float)(p[4 + j] & 15) + m;
            out[i + (size_t)j + 16] = d * (float)(p[4 + j] >> 4) + m;
        }
    }
}

/* The 5-bit code of weight j: its fifth bit is bit j of a 32-bit word. */
static int code_5(const uint8_t *codes, uint32_t high, int j) {
    int low = j < 16 ? codes[j] & 15 : codes[j - 16] >> 4;
    return low | (int)((high >> j) & 1u) << 4;
}

/* d (half), 4 bytes of fifth bits, 16 bytes of codes: w = d * (code - 16) */
static void q5_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 22) {
        float    d    = load_half(p);
        uint32_t high = load_u32(p + 2);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)(code_5(p + 6, high, j) - 16);
    }
}

/* d, m (halves), 4 bytes of fifth bits, 16 bytes of codes: w = d * code + m */
static void q5_1_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 24) {
        float    d = load_half(p), m = load_half(p + 2);
        uint32_t high = load_u32(p + 4);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)code_5(p + 8, high, j) + m;
    }
}

/* d (half), 32 signed bytes: w = d * code */
static void q8_0_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (size_t i = 0; i < n; i += 32, p += 34) {
        float d = load_half(p);
        for (int j = 0; j < 32; j++) out[i + (size_t)j] = d * (float)(int8_t)p[2 + j];
    }
}

/* ---- Blocks of 256 ---- */

/* Scale and minimum, 6 bits each, of sub-block j of Q4_K and Q5_K, from 12 packed bytes. */
static void k_scale_min(const uint8_t *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min   = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min   = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* d, dmin (halves), 12 bytes of scales, 128 bytes of codes: w = d * scale * code - dmin * min by sub-blocks of 32.
 * 32 bytes hold the codes of two sub-blocks: low halves, then high halves. */
static void q4_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 144, out += 256) {
        float d = load_half(p), dmin = load_half(p + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *codes = p + 16 + 32 * (j / 2);
            int            scale, min;
            k_scale_min(p + 4, j, &scale, &min);
            float a = d * (float)scale, b = dmin * (float)min;
            for (int l = 0; l < 32; l++) out[32 * j + l] = a * (float)(j % 2 ? codes[l] >> 4 : codes[l] & 15) - b;
        }
    }
}

/* As Q4_K, with 32 bytes of fifth bits before the codes: bit j of byte l belongs to weight l of sub-block j. */
static void q5_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 176, out += 256) {
        float d = load_half(p), dmin = load_half(p + 2);
        for (int j = 0; j < 8; j++) {
            const uint8_t *high = p + 16, *codes = p + 48 + 32 * (j / 2);
            int            scale, min;
            k_scale_min(p + 4, j, &scale, &min);
            float a = d * (float)scale, b = dmin * (float)min;
            for (int l = 0; l < 32; l++) {
                int code = (j % 2 ? codes[l] >> 4 : codes[l] & 15) | ((high[l] >> j) & 1) << 4;
                out[32 * j + l] = a * (float)code - b;
            }
        }
    }
}

/* 128 bytes of low 4 bits, 64 bytes of high 2 bits, 16 signed scales, d (half): w = d * scale * (code - 32) by
 * sub-blocks of 16. Each half of the block: 64 bytes of low bits hold four runs of 32 weights (low halves of the first
 * and second 32 bytes, then high halves), 32 bytes of high bits the same runs by pairs of bits. */
static void q6_k_to_float(const void *blocks, float *out, size_t n) {
    const uint8_t *p = (const uint8_t *)blocks;
    for (; n; n -= 256, p += 210, out += 256) {
        float d = load_half(p + 208);
        for (int j = 0; j < 256; j++) {
            int     half = j / 128, run = j / 32 % 4, l = j % 32;
            uint8_t low  = p[64 * half + 32 * (run % 2) + l], high = p[128 + 32 * half + l];
            int     code = (run < 2 ? low & 15 : low >> 4) | ((high >> (2 * run)) & 3) << 4;
            out[j] = d * (float)(int8_t)p[192 + j / 16] * (float)(code - 32);
        }
    }
}

/* ---- The table ---- */

#define F32_TO_FLOAT  f32_to_float
#define F16_TO_FLOAT  f16_to_float
#define BF16_TO_FLOAT bf16_to_floats
#define Q4_0_TO_FLOAT q4_0_to_float
#define Q4_1_TO_FLOAT q4_1_to_float
#define Q5_0_TO_FLOAT q5_0_to_float
#define Q5_1_TO_FLOAT q5_1_to_float
#define Q8_0_TO_FLOAT q8_0_to_float
#define Q4_K_TO_FLOAT q4_k_to_float
#define Q5_K_TO_FLOAT q5_k_to_float
#define Q6_K_TO_FLOAT q6_k_to_float

static const type_layout *type_of(uint32_t type) {
    static const type_layout none = { NULL, 1, 0, NULL };
#define TYPE_CASE(name, number, weights, bytes)                                    \
    case number: {                                                                 \
        static const type_layout info = { #name, weights, bytes, name##_TO_FLOAT };  \
        return &info;                                                              \
    }
    switch (type) {
        TENSOR_TYPES(TYPE_CASE)
        default: return &none;
    }
#undef TYPE_CASE
}

static bool name_eq_any_case(const char *a, const char *b) {
    for (;; a++, b++) {
        char x = *a >= 'a' && *a <= 'z' ? (char)(*a - 32) : *a;
        char y = *b >= 'a' && *b <= 'z' ? (char)(*b - 32) : *b;
        if (x != y) return false;
        if (x == 0) return true;
    }
}

NOVA_UNUSED static int type_by_name(const char *name) {
    for (uint32_t t = 0; t < TYPE_LIMIT; t++)
        if (type_of(t)->name && name_eq_any_case(type_of(t)->name, name)) return (int)t;
    return -1;
}

static size_t type_row_bytes(uint32_t type, size_t n) {
    const type_layout *info = type_of(type);
    return n / info->block_weights * info->block_bytes;
}
