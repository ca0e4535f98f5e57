/* The choice of tokens on a Vulkan device: see vk_choose.h. */
#include "vk_choose.h"

#ifndef NOVA_NO_VULKAN

static uint32_t choose_lanes(const vk_device *d) {
    if (d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU) return 16;
    return d->caps.max_workgroup >= 256 ? 256 : 128;
}

/* Logits of a workgroup: enough of them that the second round has little to read. */
static uint32_t choose_part(const vk_device *d) { return d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU ? 16384 : 4096; }

static uint32_t choose_parts(const vk_device *d, const vk_choose *c) {
    return (c->n_vocab + choose_part(d) - 1) / choose_part(d);
}

static uint64_t vk_choose_row_bytes(uint32_t k) { return sizeof(vk_choices) + (uint64_t)k * sizeof(vk_choice); }

static uint64_t vk_choose_scratch(const vk_device *d, const vk_choose *c) {
    return vk_choose_row_bytes(c->k) * choose_parts(d, c) * c->n_rows;
}

static void vk_choose_add(const vk_device *d, vk_list *list, const vk_choose *c) {
    for (uint32_t round = 0; round < 2; round++) {
        vk_dispatch x = vk_begin(KERNEL_CHOOSE, choose_lanes(d));
        vk_spec(&x, c->k == 1);
        vk_spec(&x, round);
        vk_push(&x, c->n_vocab);
        vk_push(&x, c->ld);
        vk_push(&x, choose_parts(d, c));
        vk_push(&x, choose_part(d));
        vk_push(&x, c->k);
        vk_bind(&x, c->logits);
        vk_bind(&x, c->parts);
        vk_bind(&x, c->out);
        x.groups[0] = round == 0 ? choose_parts(d, c) : 1;
        x.groups[1] = c->n_rows;
        x.barrier   = round == 0 ? c->barrier : true;
        vk_list_add(list, &x);
    }
}

#endif
