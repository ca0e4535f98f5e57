/* Compute pipelines from the embedded SPIR-V, and lists of dispatches. */
#ifndef NOVA_VK_KERNEL_H
#define NOVA_VK_KERNEL_H

#include "vk_spirv.h"

#ifndef NOVA_NO_VULKAN

/* One dispatch: everything that recording it needs. A list of these is what a program becomes on a device. */
typedef struct vk_dispatch {
    vk_kernel kernel;                /* KERNEL_COUNT: no kernel, but a copy of bind[0] to bind[1] */
    uint32_t  subgroup;              /* required subgroup size, whole subgroups; 0: the driver's choice */
    uint32_t  n_spec, n_bind, n_push;
    uint32_t  spec[VK_SPECS];        /* of specialization constants 0, 1, ... */
    uint32_t  push[VK_PUSH];
    vk_slice  bind[VK_BINDINGS];
    uint32_t  groups[3];
    bool      barrier;               /* what was dispatched before must have finished */
    uint32_t  pipeline;              /* filled by vk_compile */
    double    cost;                  /* multiply-adds, roughly: what its time is estimated by */
} vk_dispatch;


/* Makes n descriptor sets in a pool of their own. */
static nova_result vk_sets_open(vk_device *d, uint32_t n, VkDescriptorPool *out, VkDescriptorSet *sets, nova_error *error);

/* A growing list; after one failed growth it stays failed and ignores what is added. */
typedef struct vk_list {
    const host  *h;
    vk_dispatch *at;
    uint32_t     n, capacity;
    bool         failed;
} vk_list;

static void vk_list_init(vk_list *l, const host *h);
static void vk_list_free(vk_list *l);
static void vk_list_add(vk_list *l, const vk_dispatch *d);

/* Building a dispatch a word at a time. */
static void vk_spec(vk_dispatch *d, uint32_t value);
static void vk_push(vk_dispatch *d, uint32_t value);
static void vk_push_f32(vk_dispatch *d, float value);
static void vk_bind(vk_dispatch *d, vk_slice slice);
/* Begins one: zeroed, groups 1 1 1, barrier set. */
static vk_dispatch vk_begin(vk_kernel kernel, uint32_t local_size);

/* Makes the pipelines that the list needs and the device has not. Errors: DEVICE (a shader was refused: by name), MEMORY. */
static nova_result vk_compile(vk_device *d, vk_dispatch *list, uint32_t n, nova_error *error);

/* Records a compiled list. `sets` are n descriptor sets of d->set_layout, which are written here. */
static void vk_record(vk_device *d, VkCommandBuffer commands, const vk_dispatch *list, uint32_t n, const VkDescriptorSet *sets);

/* What the driver tells of a pipeline, where it was made with d->statistics. Freed with vk_statistics_free. */
#define VK_MOST_STATISTICS 64
typedef struct vk_statistics {
    uint32_t    n;
    char        names[VK_MOST_STATISTICS][VK_MAX_DESCRIPTION_SIZE];
    const char *name_of[VK_MOST_STATISTICS];
    double      values[VK_MOST_STATISTICS];
    char       *code;           /* the last textual representation: the nearest to the machine */
    size_t      code_bytes;
} vk_statistics;

static nova_result vk_statistics_get(vk_device *d, uint32_t pipeline, vk_statistics *out, nova_error *error);
static void        vk_statistics_free(vk_device *d, vk_statistics *s);

/* Compiles, records, runs and waits: for tests and for work at opening. */
NOVA_UNUSED static nova_result vk_run_list(vk_device *d, vk_dispatch *list, uint32_t n, nova_error *error);

#endif
#endif
