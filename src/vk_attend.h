/* The cache and attention on a Vulkan device: shaders store, attend, merge, attend_many. Layouts: shaders/README.md. */
#ifndef NOVA_VK_ATTEND_H
#define NOVA_VK_ATTEND_H

#include "cpu_attend.h"
#include "vk_kernel.h"

#ifndef NOVA_NO_VULKAN

/* The buffer of what changes per pass, and the first words of its tables (multiples of 4). */
typedef struct vk_now {
    vk_slice bytes;
    uint32_t col, run, turn, sink_turn;
} vk_now;

/* A layer's cache. */
typedef struct vk_cache {
    vk_slice bytes;
    uint32_t n_head_kv, head_dim_k, head_dim_v;
    bool     k_f32, v_f32;
} vk_cache;

/* Bytes of a page, all heads. */
static uint64_t vk_cache_page_bytes(const vk_cache *c);

/* Turns q and k by the columns' angles; q goes back to its place, k and v into the cache. */
typedef struct vk_store {
    const vk_now   *now;
    const vk_cache *cache;
    vk_slice        q, k, v;           /* [n_col][ld] floats */
    uint32_t        ld_q, ld_k, ld_v;
    uint32_t        n_col;             /* most columns of a pass */
    uint32_t        n_head;
    uint32_t        n_rot;             /* elements of a head that are turned, even; the angles' row length */
    bool            neox;              /* pairs i, i + n_rot / 2; else 2 i, 2 i + 1 */
    bool            barrier;
} vk_store;

static void vk_store_add(const vk_device *d, vk_list *list, const vk_store *s);

typedef enum attend_path {
    ATTEND_BEST,
    ATTEND_FEW,            /* a workgroup a column, split over pages: generation */
    ATTEND_MANY_F32,       /* blocks of queries */
    ATTEND_MANY_MATRIX     /* on matrix units; where there are none that fit, ATTEND_MANY_F32 */
} attend_path;

typedef struct vk_attend {
    const vk_now   *now;
    const vk_cache *cache;
    vk_slice        q, out;            /* [n_col][ld] floats; q turned by vk_store */
    vk_slice        partial;           /* vk_attend_partial bytes, or fewer and so fewer splits; layers may share it */
    vk_slice        sinks;             /* size 0: none; else a learned score a head: takes weight, has no value */
    uint32_t        ld_q, ld_out;
    uint32_t        n_col, n_run;      /* most of a pass */
    uint32_t        n_ctx;             /* most tokens of a text; for lists that are not kept, rather of these texts */
    uint32_t        n_head;
    uint32_t        n_rot;
    bool            neox;
    float           scale;             /* of q . k */
    float           soft_cap;          /* score = cap * tanh(score / cap); 0: none */
    uint32_t        window;            /* a query sees the last so many tokens, itself among them; 0: all */
    attend_path     path;
    uint32_t        n_splits;          /* of the pages; 0: chosen by n_ctx and the device */
    bool            barrier;
} vk_attend;

/* Bytes of partial results that vk_attend_add needs. */
static uint64_t    vk_attend_partial(const vk_device *d, const vk_attend *a);
static attend_path vk_attend_path(const vk_device *d, const vk_attend *a);
static void        vk_attend_add(const vk_device *d, vk_list *list, const vk_attend *a);

#endif
#endif
