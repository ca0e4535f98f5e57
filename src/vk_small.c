/* The device's work on columns: see vk_small.h and the shaders' heads. */
#include "vk_small.h"

#ifndef NOVA_NO_VULKAN

/* Lanes for n pieces of work: whole subgroups, as many as are of use and allowed. */
static uint32_t lanes_for(const vk_device *d, uint32_t n, uint32_t most) {
    uint32_t subgroup = d->caps.subgroup_max ? d->caps.subgroup_max : d->caps.subgroup;
    uint32_t lanes    = subgroup ? subgroup : 32;
    if (most > d->caps.max_workgroup) most = d->caps.max_workgroup;
    while (lanes < n && 2 * lanes <= most) lanes *= 2;
    return lanes;
}

/* A dispatch with a lane a piece, and a row of workgroups a column. */
static vk_dispatch columns_begin(const vk_device *d, vk_kernel kernel, uint32_t pieces, uint32_t n_col, bool barrier) {
    uint32_t    lanes = lanes_for(d, pieces, 64);
    vk_dispatch x     = vk_begin(kernel, lanes);
    x.groups[0] = (pieces + lanes - 1) / lanes;
    x.groups[1] = n_col;
    x.barrier   = barrier;
    return x;
}

static void vk_norm_add(vk_device *d, vk_list *list, const vk_norm *m) {
    /* On a GPU one column must not leave it waiting: many lanes. On a CPU every further subgroup costs, and one needs
     * no barrier. */
    bool        cpu   = d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU, quantised = m->yq.size != 0;
    bool        sg    = (d->caps.can & VK_CAN_SUBGROUP) != 0;
    uint32_t    lanes = cpu ? d->caps.subgroup : lanes_for(d, (m->n + 3) / 4, 512);
    vk_dispatch x     = vk_begin(sg ? KERNEL_NORM_SG : KERNEL_NORM, lanes);
    x.groups[0] = m->n_col;
    x.barrier   = m->barrier;
    vk_spec(&x, m->kind == NORM_LAYER ? 1 : 0);
    vk_spec(&x, (m->w.size ? 1u : 0u) | (m->b.size ? 2u : 0u));
    vk_spec(&x, m->y.size ? 1 : 0);
    vk_spec(&x, quantised ? 1 : 0);
    vk_bind(&x, m->x);
    vk_bind(&x, m->y.size ? m->y : m->x);
    vk_bind(&x, m->w.size ? m->w : m->x);
    vk_bind(&x, m->b.size ? m->b : m->x);
    vk_bind(&x, quantised ? m->yq : m->x);
    vk_push(&x, m->n);
    vk_push(&x, m->ld_x);
    vk_push(&x, m->ld_y);
    vk_push(&x, m->yq_scales / 2);
    vk_push_f32(&x, m->eps);
    vk_list_add(list, &x);
}

static void vk_embed_add(vk_device *d, vk_list *list, const vk_weight *w, vk_slice now, uint32_t col, vk_slice y,
                         uint32_t ld, uint32_t n_col, float scale, bool barrier) {
    for (uint32_t i = 0; i < w->n_parts; i++) {
        const vk_part *p = &w->parts[i];
        vk_dispatch    x = columns_begin(d, KERNEL_EMBED, (w->n_in + 3) / 4, n_col, barrier && i == 0);
        vk_spec(&x, (uint32_t)w->format);
        vk_bind(&x, p->bytes);
        vk_bind(&x, now);
        vk_bind(&x, y);
        vk_push(&x, p->codes);
        vk_push(&x, p->high);
        vk_push(&x, p->scales);
        vk_push(&x, p->extra);
        vk_push(&x, w->n_pad);
        vk_push(&x, p->n_rows);
        vk_push(&x, p->row);
        vk_push(&x, w->n_in);
        vk_push(&x, ld);
        vk_push(&x, col);
        vk_push_f32(&x, scale);
        vk_list_add(list, &x);
    }
}

static void vk_gather_add(vk_device *d, vk_list *list, vk_slice from, uint32_t ld_x, vk_slice now, uint32_t out,
                          bool windowed, vk_slice y, uint32_t ld_y, uint32_t n, uint32_t n_col, bool barrier) {
    vk_dispatch x = columns_begin(d, KERNEL_GATHER, (n + 3) / 4, n_col, barrier);
    vk_bind(&x, from);
    vk_bind(&x, now);
    vk_bind(&x, y);
    vk_push(&x, (n + 3) / 4);
    vk_push(&x, ld_x);
    vk_push(&x, ld_y);
    vk_push(&x, out);
    vk_push(&x, windowed ? 1 : 0);
    vk_list_add(list, &x);
}

static uint32_t vk_quantised_scales(uint32_t ld, uint32_t n_col) { return n_col * (ld / 4); }
static uint64_t vk_quantised_bytes(uint32_t ld, uint32_t n_col) { return (uint64_t)n_col * (ld / 32) * 40; }

static void vk_quantise_add(vk_device *d, vk_list *list, vk_slice from, vk_slice xq, uint32_t scales, uint32_t n,
                            uint32_t ld, uint32_t n_col, bool barrier) {
    vk_dispatch x = columns_begin(d, KERNEL_QUANTISE, (n + 31) / 32, n_col, barrier);
    vk_bind(&x, from);
    vk_bind(&x, xq);
    vk_push(&x, (n + 31) / 32);
    vk_push(&x, ld);
    vk_push(&x, scales / 2);
    vk_list_add(list, &x);
}

static void vk_add_add(vk_device *d, vk_list *list, vk_slice y, uint32_t ld_y, vk_slice addend, uint32_t ld_x,
                       uint32_t n, uint32_t n_col, float scale, bool barrier) {
    vk_dispatch x = columns_begin(d, KERNEL_ADD, (n + 3) / 4, n_col, barrier);
    vk_spec(&x, 0);
    vk_bind(&x, y);
    vk_bind(&x, addend);
    vk_push(&x, (n + 3) / 4);
    vk_push(&x, ld_y);
    vk_push(&x, ld_x);
    vk_push_f32(&x, scale);
    vk_push_f32(&x, 0);
    vk_list_add(list, &x);
}

static void vk_scale_add(vk_device *d, vk_list *list, vk_slice y, uint32_t ld, uint32_t n, uint32_t n_col, float scale, float cap, bool barrier) {
    vk_dispatch x = columns_begin(d, KERNEL_ADD, (n + 3) / 4, n_col, barrier);
    vk_spec(&x, 1);
    vk_bind(&x, y);
    vk_bind(&x, y);
    vk_push(&x, (n + 3) / 4);
    vk_push(&x, ld);
    vk_push(&x, ld);
    vk_push_f32(&x, scale);
    vk_push_f32(&x, cap);
    vk_list_add(list, &x);
}

#endif
