/* Multiplications for many columns on the device, at the speed of its arithmetic. */
#ifndef NOVA_VK_MATMUL_H
#define NOVA_VK_MATMUL_H

#include "vk_weight.h"

#ifndef NOVA_NO_VULKAN

/* The ways to multiply. vk_matmul.path forces one (1 + it). */
typedef enum vk_path {
    VK_PATH_F32,          /* floats: every device, every format */
    VK_PATH_F16,          /* stored codes by activations as halves, sums of 32 */
    VK_PATH_DOT,          /* integer dot products over quantised activations (vk_matmul.xq) */
    VK_PATH_MATRIX_F16,   /* cooperative matrices of halves, summed in floats: every format */
    VK_PATH_MATRIX_S8,    /* cooperative matrices of bytes, over quantised activations */
    VK_PATH_COUNT
} vk_path;

NOVA_UNUSED static const char *vk_path_name(vk_path p);

/* The paths that the device has: bit 1 << path. */
static uint32_t vk_matmul_paths(const vk_device *d);
/* Whether this path can do this multiplication here: format, scratch, quantised activations. F32 always can. */
static bool vk_matmul_can(const vk_device *d, const vk_matmul *m, vk_path path);
/* What vk_matmul_add takes: the forced one where it can, else the best that can. */
static vk_path vk_matmul_choose(const vk_device *d, const vk_matmul *m);

/* Bytes that vk_matmul.scratch needs for n_col columns of ld_x, on any path; 0: none. */
static uint64_t vk_matmul_scratch(const vk_device *d, uint32_t ld_x, uint32_t n_col);

/* Appends the dispatches. */
static void vk_matmul_add(vk_device *d, vk_list *list, const vk_matmul *m);

/* A workgroup's work: `rows` by `cols` of sums (rows of both weights for glu). */
typedef struct vk_tile {
    uint32_t local;          /* lanes */
    uint32_t rows, cols;
    uint32_t each_rows, each_cols;   /* of a lane, or of a subgroup with matrices */
    uint32_t stage;          /* groups of 32 in shared memory at once */
    bool     loop;           /* inner loops stay loops: for CPUs, whose compilers are slow */
} vk_tile;

/* A tile to take instead of the chosen one (tests, measurements). False: the device has no room for it. */
NOVA_UNUSED static bool vk_matmul_add_as(vk_device *d, vk_list *list, const vk_matmul *m, vk_path path,
                                         const vk_tile *tile);

#endif
#endif
