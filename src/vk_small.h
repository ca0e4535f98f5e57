/* The device's work on columns: norms, embedding, gathering, quantising, sums. Columns lie `ld` floats apart (a
 * multiple of 32), their pads are zero and stay so. Each function appends one dispatch
 * (embedding: one a part of the weight). */
#ifndef NOVA_VK_SMALL_H
#define NOVA_VK_SMALL_H

#include "vk_weight.h"

#ifndef NOVA_NO_VULKAN

typedef struct vk_norm {
    norm_kind kind;
    vk_slice  x, y;         /* y size 0: only the quantised twin is wanted; y may be x */
    vk_slice  w, b;         /* size 0: none */
    vk_slice  yq;           /* y quantised, as the twin of a buffer with ld_y; size 0: none */
    uint32_t  yq_scales;    /* word where its pairs begin */
    uint32_t  n, n_col;
    uint32_t  ld_x, ld_y;
    float     eps;
    bool      barrier;
} vk_norm;

static void vk_norm_add(vk_device *d, vk_list *list, const vk_norm *m);

/* y[c] = scale times row id of w, of each of the pass's columns; `col` is the word of `now` where the columns' table begins. n_col:
 * columns at most, those behind the pass's are left alone. */
static void vk_embed_add(vk_device *d, vk_list *list, const vk_weight *w, vk_slice now, uint32_t col, vk_slice y,
                         uint32_t ld, uint32_t n_col, float scale, bool barrier);

/* y[i] = x[now[out + i]] for at most n_col gathered columns, from the head's window on where `windowed`. y is not x. */
static void vk_gather_add(vk_device *d, vk_list *list, vk_slice x, uint32_t ld_x, vk_slice now, uint32_t out,
                          bool windowed, vk_slice y, uint32_t ld_y, uint32_t n, uint32_t n_col, bool barrier);

/* Bytes of the quantised twin of a buffer of n_col columns; the word where its pairs begin. */
static uint64_t vk_quantised_bytes(uint32_t ld, uint32_t n_col);
static uint32_t vk_quantised_scales(uint32_t ld, uint32_t n_col);
/* The first n numbers of each column; `scales`: the word where the pairs begin. */
static void vk_quantise_add(vk_device *d, vk_list *list, vk_slice x, vk_slice xq, uint32_t scales, uint32_t n,
                            uint32_t ld, uint32_t n_col, bool barrier);

/* y += scale * x */
static void vk_add_add(vk_device *d, vk_list *list, vk_slice y, uint32_t ld_y, vk_slice x, uint32_t ld_x,
                       uint32_t n, uint32_t n_col, float scale, bool barrier);
/* y = scale * y, then cap * tanh(y / cap); cap 0: none */
static void vk_scale_add(vk_device *d, vk_list *list, vk_slice y, uint32_t ld, uint32_t n, uint32_t n_col, float scale, float cap, bool barrier);

#endif
#endif
