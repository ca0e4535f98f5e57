/* Weights on the device: the planar layouts of shaders/README.md, and what a matmul is told. */
#ifndef NOVA_VK_WEIGHT_H
#define NOVA_VK_WEIGHT_H

#include "cpu_narrow.h"
#include "program.h"
#include "vk_kernel.h"

#ifndef NOVA_NO_VULKAN

typedef enum vk_format {
    GPU_F32, GPU_F16, GPU_BF16, GPU_Q4_0, GPU_Q4_1, GPU_Q5_0, GPU_Q5_1, GPU_Q8_0, GPU_Q4_K, GPU_Q5_K, GPU_Q6_K,
    GPU_FORMAT_COUNT
} vk_format;

/* Rows row..row + n_rows of a weight, one binding. Planes by their first word. */
typedef struct vk_part {
    vk_slice bytes;
    uint32_t row, n_rows;
    uint32_t codes, high, scales, extra;
} vk_part;

typedef struct vk_weight {
    vk_format format;
    uint32_t  n_in, n_out, n_pad;
    uint32_t  n_parts;
    vk_part  *parts;          /* in the arena it was made with */
    float     largest;        /* no |weight|, nor a block's scale times code or minimum, is larger; 0: unknown */
} vk_weight;

/* The format of a tensor type; false: none yet. */
static bool vk_format_of(uint32_t type, vk_format *out);

/* Bytes on the device, all parts; never overflows for a weight that was checked when the file was read. */
static uint64_t vk_weight_bytes(const vk_device *d, const weight *w);

/* Takes device memory and writes the planar copy: straight into mapped memory, else piece by piece through staging.
 * Errors: MEMORY, DEVICE, UNSUPPORTED. */
static nova_result vk_weight_load(vk_device *d, arena *a, const weight *w, vk_weight *out, nova_error *error);

/* What OP_MATMUL becomes: y (=, +=, act, glu) w x + bias for n_col columns. */
typedef struct vk_matmul {
    const vk_weight *w[2];        /* w[1] only for EPILOGUE_GLU; NULL there: w[0] is up, and y holds the gate's sums */
    vk_slice         bias[2];     /* size 0: none */
    vk_slice         x, y;        /* [n_col][ld] floats */
    vk_slice         xq;          /* x quantised (shaders/README.md), size 0: it is not; then no path over int8 */
    uint32_t         xq_scales;   /* word where its pairs begin */
    uint32_t         ld_x, ld_y;  /* multiples of 32 */
    uint32_t         n_col;
    op_epilogue      epilogue;
    activation       act;
    bool             barrier;     /* of its first dispatch */
    vk_slice         scratch;     /* for activations in 8 or 16 bits: vk_matmul_scratch bytes; size 0: floats only */
    bool             packed;      /* the scratch holds this x already, from the matmul before with the same path */
    uint32_t         path;        /* 1 + vk_path to force, 0: the best one */
} vk_matmul;

#endif
#endif
