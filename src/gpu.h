/* What an engine knows of GPUs: they take the end of the program, as much of it as fits. Without Vulkan there are none. */
#ifndef NOVA_GPU_H
#define NOVA_GPU_H

#include "cpu.h"

#define GPU_MOST 4   /* devices of an engine */

typedef struct gpu_desc {
    const nova_model *model;
    const program    *prog;
    const kv_pool    *kv;
    const char       *device;          /* as in nova_engine_desc, not NULL */
    uint64_t          vram;            /* bytes to use at most; 0: what the driver offers */
    uint32_t          n_layers;        /* layers to take at most, the output counting as one; UINT32_MAX: all */
    uint32_t          n_ctx, n_seqs, n_logits, max_pages;
    uint32_t          n_batch;         /* columns of a pass that the CPU has a part in ... */
    uint32_t          n_batch_whole;   /* ... and of one that it has none in, where GPUs take the whole program */
    bool              measure;         /* only count what would be taken: the group cannot run */
    uint32_t          without, force;  /* NOVA_GPU_... */
    bool              statistics, no_import;
    const nova_vulkan *vulkan;
    const void       *cache;
    size_t            cache_size;
    nova_progress_fn  progress;
    void             *progress_user;
} gpu_desc;

typedef struct gpu_group gpu_group;

/* *out is NULL without an error where the device is "cpu", or "auto" and there is no real GPU or it cannot be used (which is
 * logged). Errors: DEVICE, MEMORY, UNSUPPORTED, CANCELLED. */
static nova_result gpu_open(gpu_group **out, const host *h, const gpu_desc *desc, nova_error *error);
static void        gpu_close(gpu_group *g);

/* Columns that a pass may have at most; UINT32_MAX for NULL. */
static uint32_t    gpu_batch(const gpu_group *g);
/* Operations from this one on are the GPU's; n_ops for NULL. */
static uint32_t gpu_first_op(const gpu_group *g, const program *p);
static bool     gpu_has_layer(const gpu_group *g, const program *p, uint32_t layer);

/* The greatest logits of a row, sorted by logit, equal ones by id, instead of all. */
typedef struct gpu_choice { uint32_t id; float logit; } gpu_choice;
typedef struct gpu_choices {
    float    top, sum;      /* greatest logit, sum of exp(logit - top) over the row */
    uint32_t odd;           /* not 0: some logit is not finite, and the rest means nothing */
    uint32_t n;
} gpu_choices;              /* then n times gpu_choice */

#define GPU_MOST_CHOICES 256

/* See vk_machine_body and vk_machine_head. k: 0, or choices wanted instead of logits; gpu_get_choices gives what there is, or NULL
 * where the pass gave none and gpu_head is to be asked. */
static nova_result gpu_body(gpu_group *g, const pass *p, uint32_t k, const float *x, size_t ld_x, bool (*cancelled)(void *), void *user, nova_error *error);
static const gpu_choices *gpu_get_choices(const gpu_group *g, uint32_t row);
static nova_result gpu_head(gpu_group *g, uint32_t first, uint32_t n, const float **logits, size_t *ld, bool (*cancelled)(void *), void *user,
                            nova_error *error);
static uint32_t    gpu_columns(const gpu_group *g);

/* Cache pages of all layers that GPUs have: copied; of one layer taken out and put in, as cpu_page.h lays them out. */
static nova_result gpu_copy_page(gpu_group *g, uint32_t from, uint32_t to, nova_error *error);
static nova_result gpu_page_get(gpu_group *g, const program *p, uint32_t layer, uint32_t page, uint8_t *out, nova_error *error);
static nova_result gpu_page_put(gpu_group *g, const program *p, uint32_t layer, uint32_t page, const uint8_t *in, nova_error *error);

static nova_result gpu_cache_get(gpu_group *g, text_buffer *out, nova_error *error);
static nova_result gpu_kernels(gpu_group *g, nova_kernel_fn fn, void *user, nova_error *error);

typedef struct gpu_stats {
    uint64_t    n_submits, n_dispatches, n_barriers, wait_ns, longest_ns, vram_bytes, imported_bytes;
    const char *name;
    uint32_t    n_layers;              /* on GPUs, the output counting as one */
} gpu_stats;
static void gpu_get_stats(const gpu_group *g, gpu_stats *out);

#endif
