/* Activations as int8: see cpu_input.h. */
#include "cpu_input.h"

static cpu_level cpu_level_of(uint32_t features) {
    if (!(features & NOVA_CPU_AVX2)) return CPU_PLAIN;
    return features & NOVA_CPU_AVX512 ? CPU_AVX512 : CPU_AVX2;
}

/* Every level computes the same bits: the largest |x| is found among integers, the factor is one division, each code
 * one multiplication and one rounding. */

/* From the largest |x| of a block, as bits: its d, and the factor that x is multiplied by. */
static float input_factor(uint32_t max_bits, float *d) {
    float max;
    memcpy(&max, &max_bits, sizeof max);
    if (max_bits >= 0x7f800000u) {
        *d = NAN;
        return 0;
    }
    if (max < INPUT_SMALLEST) {
        *d = 0;
        return 0;
    }
    *d = max / 127.0f;
    return 127.0f / max;
}

static void input_quantise_plain(const float *x, size_t n, int8_t *q, float *d) {
    for (size_t b = 0; b < n / INPUT_BLOCK; b++, x += INPUT_BLOCK, q += INPUT_BLOCK) {
        uint32_t max_bits = 0;
        for (int i = 0; i < INPUT_BLOCK; i++) {
            uint32_t bits = load_u32(x + i) & 0x7fffffffu;
            if (bits > max_bits) max_bits = bits;
        }
        float factor = input_factor(max_bits, &d[b]);
        if (factor == 0) {
            memset(q, 0, INPUT_BLOCK);
            continue;
        }
        /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits. */
        for (int i = 0; i < INPUT_BLOCK; i++) {
            float    scaled = x[i] * factor;
            float    moved  = scaled + 12582912.0f;
            q[i] = (int8_t)(int32_t)(load_u32(&moved) - 0x4b400000u);
        }
    }
}

#ifdef NOVA_X86

NOVA_TARGET_AVX2
static void input_quantise_avx2(const float *x, size_t n, int8_t *q, float *d) {
    const __m256i positive = _mm256_set1_epi32(0x7fffffff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (size_t b = 0; b < n / INPUT_BLOCK; b++, x += INPUT_BLOCK, q += INPUT_BLOCK) {
        __m256  v[4];
        __m256i m = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            m    = _mm256_max_epu32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), positive));
        }
        __m128i h = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
        h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0x4e));
        h = _mm_max_epu32(h, _mm_shuffle_epi32(h, 0xb1));
        float factor = input_factor((uint32_t)_mm_cvtsi128_si32(h), &d[b]);
        if (factor == 0) {
            memset(q, 0, INPUT_BLOCK);
            continue;
        }
        __m256i r[4];
        for (int i = 0; i < 4; i++) r[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], _mm256_set1_ps(factor)));
        __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
        _mm256_storeu_si256((__m256i *)(void *)q, _mm256_permutevar8x32_epi32(packed, order));
    }
}

#endif

static void input_quantise(cpu_level level, const float *x, size_t n, int8_t *q, float *d) {
#ifdef NOVA_X86
    if (level >= CPU_AVX2) {
        input_quantise_avx2(x, n, q, d);
        return;
    }
#endif
    (void)level;
    input_quantise_plain(x, n, q, d);
}
