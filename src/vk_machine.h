/* The Vulkan executor: runs a program's operations from op_first on, on one device. What it needs lies on the device: weights,
 * cache pages of its layers, buffers. A list of operations becomes a list of dispatches; for passes of a token a session it
 * is recorded once and replayed, so that a token costs one submit. */
#ifndef NOVA_VK_MACHINE_H
#define NOVA_VK_MACHINE_H

#include "cpu.h"   /* pass, pass_run */
#include "vk_attend.h"
#include "vk_choose.h"
#include "vk_matmul.h"
#include "vk_matvec.h"
#include "vk_small.h"

#ifndef NOVA_NO_VULKAN

#define VK_REPLAYED      8   /* columns up to which a pass is recorded for replaying */
#define VK_CHOICE_KINDS  4   /* what a replayed pass ends with: logits, or the greatest 1, 64 or 256 */

typedef struct vk_machine_desc {
    const nova_model *model;
    const program    *prog;
    const kv_pool    *kv;              /* shapes of the layers; pages are the machine's own */
    uint32_t          op_first, op_last;
    uint32_t          n_ctx, n_batch, n_seqs, n_logits, max_pages;   /* max_pages: of a sequence */
    uint32_t          force;           /* a NOVA_GPU_... whose kernels are taken; 0: the best */
    nova_progress_fn  progress;
    void             *progress_user;
} vk_machine_desc;

typedef struct vk_tensor { const void *key; vk_weight w; } vk_tensor;
typedef struct vk_vector { const float *key; vk_slice at; } vk_vector;

/* What an operation reads besides columns, as it lies on the device; empty slices: there is none. */
typedef struct vk_operands {
    const vk_weight *w[OP_WEIGHTS];
    vk_slice         bias[OP_WEIGHTS], vec;
} vk_operands;

/* Recorded commands for one number of columns. */
typedef struct vk_recorded {
    VkCommandBuffer  commands;
    VkDescriptorPool pool;
    uint32_t         n_dispatch, n_barriers;
} vk_recorded;

typedef struct vk_machine {
    host             h;
    vk_device       *dev;
    vk_machine_desc  desc;
    arena            a;
    uint32_t         ld[BUF_COUNT];    /* floats between columns, multiples of 64: a column is a possible binding */
    vk_slice         buf[BUF_COUNT];
    vk_slice         twin[BUF_COUNT];  /* quantised, of what matmuls read; size 0: none */
    vk_slice         scratch;          /* of matmuls */
    vk_slice         kept_x, kept_att; /* BUF_X and BUF_ATT of the gathered columns, where these are fewer than all */
    vk_slice         partial;          /* of attention over split caches */
    vk_now           now;              /* the buffer of what changes per pass, and the words where its tables begin */
    vk_now           turns[ROPE_KINDS];   /* the same, each with the angles of one kind of rotary positions */
    uint32_t         at_out, at_table;
    vk_slice         x_in;             /* the residual stream from and to another machine; likewise */
    vk_slice         logits_out;       /* where the host cannot read BUF_LOGITS at memory's speed */
    vk_slice         choose_parts, choices;   /* choices: the host reads */
    uint32_t         choice_kind;      /* of the last pass */
    vk_cache        *caches;           /* [n_layer] */
    vk_tensor       *tensors;
    vk_vector       *vectors;
    uint32_t         n_tensors, n_vectors;
    vk_operands     *operands;         /* [op_last - op_first] */

    VkCommandPool    replay_pool, once_pool;
    VkCommandBuffer  once;
    VkFence          fence;
    bool             busy;             /* what was submitted may still run: waiting for it failed */
    VkDescriptorPool once_sets_pool;   /* of what is recorded for once: the sets in once_sets, as many as any of it needed */
    VkDescriptorSet *once_sets;
    uint32_t         n_once_sets;
    vk_recorded      replayed[VK_REPLAYED][VK_CHOICE_KINDS];
    vk_list          list;             /* of the pass that is not replayed */
    double           cost_per_ns;      /* measured, of the slowest kind of work */
    double           seen_now;         /* tokens of the window that the pass's columns see, of all together */
    bool             kept_now;         /* the pass keeps fewer columns than it has */
    bool             head_done;        /* the replayed pass had the head in it */
    bool           (*cancelled)(void *user);
    void            *cancelled_user;

    uint64_t         n_submits, n_dispatches, n_barriers, wait_ns, longest_ns;   /* since opening */
} vk_machine;

/* Device bytes that the operations op_first..op_last and the layers' caches take, with all buffers; and how many must be free, since
 * the ends of blocks are wasted. False: some of it is beyond the device's limits. */
static bool vk_machine_bytes(const vk_device *d, const vk_machine_desc *desc, uint64_t *bytes, uint64_t *room);

/* What of an operation this executor has no kernels for, in words; NULL: nothing, its weights' and caches' types aside. */
static const char *vk_machine_cannot(const vk_machine_desc *desc, const op *o);

/* Loads weights with progress, makes the pipelines, records; on a device that only measures it counts what it would take and
 * cannot run. The device stays the caller's.
 * Errors: MEMORY, DEVICE, UNSUPPORTED, CANCELLED. */
static nova_result vk_machine_open(vk_machine **out, const host *h, vk_device *d, const vk_machine_desc *desc, nova_error *error);
static void        vk_machine_close(vk_machine *m);

/* Runs the body of the pass. x: the residual stream of the columns from the machine in front, ld_x floats apart; NULL where
 * this machine embeds. k: choices that will do instead of logits, 0: logits. Errors: CANCELLED, DEVICE. vk_machine_head then gives logits of gathered columns first..first + n
 * (n at most n_logits), *ld floats apart; vk_machine_x the residual stream where another machine goes on: of all
 * columns, or of the gathered ones where that machine has the head alone. */
static nova_result vk_machine_body(vk_machine *m, const pass *p, uint32_t k, const float *x, size_t ld_x, nova_error *error);
static nova_result vk_machine_head(vk_machine *m, uint32_t first, uint32_t n, const float **logits, size_t *ld, nova_error *error);
static nova_result vk_machine_x(vk_machine *m, uint32_t n_col, float *x, size_t ld_x, nova_error *error);

/* The choices of a row of the last pass, k or more; NULL where it gave logits: then ask vk_machine_head. */
static const vk_choices *vk_machine_choices(const vk_machine *m, uint32_t row);

/* See gpu.h. */
static nova_result vk_machine_copy_page(vk_machine *m, uint32_t from, uint32_t to, nova_error *error);
static nova_result vk_machine_page_get(vk_machine *m, uint32_t layer, uint32_t page, uint8_t *out, nova_error *error);
static nova_result vk_machine_page_put(vk_machine *m, uint32_t layer, uint32_t page, const uint8_t *in, nova_error *error);

/* See nova_engine_kernels; *go_on becomes what `fn` last said. */
static nova_result vk_machine_kernels(vk_machine *m, nova_kernel_fn fn, void *user, bool *go_on, nova_error *error);

/* Columns that a pass may have so that a submit stays short, by what was measured so far. */
static uint32_t vk_machine_columns(const vk_machine *m);

#endif
#endif
