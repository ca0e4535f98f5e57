/* What the CPU's matmuls share: the view of a weight matrix, the level of the instruction set, activations as int8.
 *
 * A matmul computes out[c][r] = sum over i of w[r][i] * x[c][i] for columns c (tokens) and rows r. Columns come in two
 * ways. Narrow: up to 8 at once, weights streamed at memory speed, for generation. Wide: many, weights unpacked by
 * panels, for prompts. Both quantise activations alike, so they differ by the rounding of float sums only.
 *
 * Order of additions: a column's result never depends on which or how many other columns are computed with it, nor on
 * how rows are shared among threads; within narrow and within wide it is bit-identical. */
#ifndef NOVA_CPU_INPUT_H
#define NOVA_CPU_INPUT_H

#include "platform.h"
#include "quant.h"

#ifdef NOVA_X86
#if defined(__GNUC__) && !defined(__clang__)   /* gcc 12's header initialises vectors by themselves (PR 105593) */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif

typedef enum cpu_level { CPU_PLAIN = 0, CPU_AVX2 = 1, CPU_AVX512 = 2, CPU_LEVELS } cpu_level;

/* The best level that `features` (NOVA_CPU_... bits) allow. */
static cpu_level cpu_level_of(uint32_t features);

typedef struct weight {
    uint32_t       type;        /* tensor_type */
    uint32_t       n_in;        /* row length, a multiple of the type's block */
    uint32_t       n_out;       /* rows */
    size_t         row_bytes;
    const uint8_t *data;        /* as it lies in the file: aligned to 32 at least in a sound file, assume 1 */
} weight;

/* Activations as int8, by blocks of 32: d = max|x| / 127, q = x * (127 / max|x|) rounded to nearest even, the same bits
 * on every level. A block of zeros has d = 0, and so has one below INPUT_SMALLEST, whose d would be subnormal. A block
 * with a NaN or an infinity gets d = NaN and q = 0, so that it stays visible in the result. |q| <= 127. */
#define INPUT_BLOCK    32
#define INPUT_SMALLEST (127 * FLT_MIN)
static void input_quantise(cpu_level level, const float *x, size_t n, int8_t *q, float *d);  /* n: a multiple of 32 */

#endif
