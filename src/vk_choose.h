/* The choice of tokens on a Vulkan device: what crosses the bus is a short list a row, not the vocabulary. */
#ifndef NOVA_VK_CHOOSE_H
#define NOVA_VK_CHOOSE_H

#include "vk_kernel.h"

#ifndef NOVA_NO_VULKAN

#define VK_CHOOSE_MOST  256           /* greatest k */
#define VK_CHOOSE_VOCAB 0xffffffu     /* greatest n_vocab */

typedef struct vk_choice {
    uint32_t id;                      /* UINT32_MAX behind the last of a row with fewer than k logits */
    float    logit;
} vk_choice;

/* A row's list in the output: this, then k times vk_choice, sorted by logit from the greatest down, then by id. */
typedef struct vk_choices {
    float    top, sum;                /* greatest logit, sum of exp(logit - top) over the row */
    uint32_t odd;                     /* not 0: some logit is not finite, and the rest means nothing */
    uint32_t n;                       /* entries */
} vk_choices;

typedef struct vk_choose {
    vk_slice logits;                  /* [n_rows][ld] floats */
    vk_slice parts;                   /* vk_choose_scratch bytes */
    vk_slice out;                     /* n_rows * vk_choose_row_bytes */
    uint32_t n_rows, n_vocab, ld, k;  /* k: 1 to VK_CHOOSE_MOST */
    bool     barrier;
} vk_choose;

static uint64_t vk_choose_row_bytes(uint32_t k);
static uint64_t vk_choose_scratch(const vk_device *d, const vk_choose *c);
static void     vk_choose_add(const vk_device *d, vk_list *list, const vk_choose *c);

#endif
#endif
