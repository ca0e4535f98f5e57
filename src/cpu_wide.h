/* Matmul for many columns: a panel of rows is unpacked to int8 (or float) into the cache and used for all columns. */
#ifndef NOVA_CPU_WIDE_H
#define NOVA_CPU_WIDE_H

#include "cpu_input.h"

/* Columns are packed by tiles for all weights of one form; types tell which form they read. */
static uint32_t wide_form(uint32_t type);                                          /* 0 .. WIDE_FORMS - 1 */
static size_t   wide_input_bytes(cpu_level level, uint32_t form, size_t n_in, size_t n_col);  /* a multiple of 64 */
static uint32_t wide_tiles(cpu_level level, uint32_t form, size_t n_col);          /* units of sharing wide_prepare */
#define WIDE_FORMS 2

/* Packs tiles tile_begin..tile_end. Column c starts at x + columns[c] * ld_x; `columns` NULL: 0, 1, 2, ...
 * `out` is aligned to 64. */
static void wide_prepare(cpu_level level, uint32_t form, const float *x, size_t ld_x, const uint32_t *columns,
                         size_t n_in, size_t n_col, uint32_t tile_begin, uint32_t tile_end, void *out);

/* Scratch of one thread (the unpacked panel), aligned to 64. */
static size_t wide_scratch_bytes(cpu_level level, uint32_t type, size_t n_in);
/* Rows are best handed out in multiples of this. */
static uint32_t wide_panel_rows(cpu_level level, uint32_t type, size_t n_in);

/* Column c goes to out + columns[c] * ld_out, rows row_begin <= r < row_end of it. */
static void wide_matmul(cpu_level level, const weight *w, const void *input, size_t n_col, const uint32_t *columns,
                        uint32_t row_begin, uint32_t row_end, float *out, size_t ld_out, void *scratch);

#endif
