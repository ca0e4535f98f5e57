/* Matmul for 1 to 8 columns: weights are read once, where they lie in the file, at memory speed. */
#ifndef NOVA_CPU_NARROW_H
#define NOVA_CPU_NARROW_H

#include "cpu_input.h"

#define NARROW_MAX 8   /* columns */

/* A column is prepared once for all weights of one form; types tell which form they read. */
static uint32_t narrow_form(uint32_t type);                       /* 0 .. NARROW_FORMS - 1 */
static size_t   narrow_input_bytes(uint32_t form, size_t n_in);   /* of one prepared column, a multiple of 64 */
#define NARROW_FORMS 3

/* Prepares elements begin..end of one column (multiples of 256, or end == n_in), so that threads can share the work.
 * `out` is the column's area, aligned to 64. */
static void narrow_prepare(cpu_level level, uint32_t form, const float *x, size_t n_in, size_t begin, size_t end,
                           void *out);

/* out[c * ld_out + r] for rows row_begin <= r < row_end and columns 0 <= c < n_col; inputs[c] are prepared columns in the
 * type's form. Every row count and every row_bytes works; nothing behind the last row is read. */
static void narrow_matmul(cpu_level level, const weight *w, const void *const *inputs, uint32_t n_col,
                          uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out);

#endif
