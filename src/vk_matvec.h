/* Multiplications for 1 to 8 columns on the device: weights are read once, at memory speed. */
#ifndef NOVA_VK_MATVEC_H
#define NOVA_VK_MATVEC_H

#include "vk_weight.h"

#ifndef NOVA_NO_VULKAN

#define VK_MATVEC_MAX 8   /* columns */

/* How a matvec is cut up; see shaders/matvec.comp. */
typedef struct vk_matvec_shape {
    vk_kernel kernel;      /* KERNEL_MATVEC, _SG (subgroup operations), _DOT_SG (over quantised activations) */
    uint32_t  subgroup;    /* to be required, 0: any */
    uint32_t  local;       /* lanes of a workgroup */
    uint32_t  lanes_log;   /* 2^this lanes share a row */
    uint32_t  rows;        /* of a lane */
    uint32_t  stage;       /* units of x in shared memory at once, 0: none */
} vk_matvec_shape;

/* The shape for this device. */
static vk_matvec_shape vk_matvec_choose(const vk_device *d, const vk_matmul *m);
/* False: the device or the shader's arrays do not allow it. */
NOVA_UNUSED static bool vk_matvec_fits(const vk_device *d, const vk_matmul *m, const vk_matvec_shape *s);

/* Appends the dispatches: one a part, or two a part for a glu whose weights differ in format.
 * 1 <= m->n_col <= VK_MATVEC_MAX. */
static void vk_matvec_add(vk_device *d, vk_list *list, const vk_matmul *m);
NOVA_UNUSED static void vk_matvec_add_as(vk_list *list, const vk_matmul *m, const vk_matvec_shape *s);

#endif
#endif
