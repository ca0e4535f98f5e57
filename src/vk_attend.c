/* The cache and attention on a Vulkan device: see vk_attend.h. */
#include "vk_attend.h"

#ifndef NOVA_NO_VULKAN

static uint32_t attend_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }
static uint32_t attend_least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- The cache ---- */

/* Of a token. */
static uint32_t k_row_words(const vk_cache *c) { return c->k_f32 ? c->head_dim_k : attend_div(c->head_dim_k, 2); }
static uint32_t v_row_words(const vk_cache *c) { return c->v_f32 ? c->head_dim_v : attend_div(c->head_dim_v, 2); }

static uint64_t vk_cache_page_bytes(const vk_cache *c) {
    return (uint64_t)4 * KV_PAGE * c->n_head_kv * (k_row_words(c) + v_row_words(c));
}

/* A CPU that acts as a device runs a workgroup's lanes one subgroup after the other: there, small workgroups. */
static bool is_cpu(const vk_device *d) { return d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU; }

static void vk_store_add(const vk_device *d, vk_list *list, const vk_store *s) {
    const vk_cache *c     = s->cache;
    uint32_t        lanes = is_cpu(d) ? 32 : 128, cols = s->n_col < 8 ? 1 : 8;
    uint32_t        pairs = attend_div(c->head_dim_k, 2) + attend_div(c->head_dim_v, 2);
    uint32_t        items = s->n_head * (s->n_rot / 2) + c->n_head_kv * pairs;
    vk_dispatch     x     = vk_begin(KERNEL_STORE, lanes);
    vk_spec(&x, cols);
    vk_spec(&x, c->k_f32);
    vk_spec(&x, c->v_f32);
    vk_spec(&x, s->neox);
    vk_push(&x, s->now->col);
    vk_push(&x, s->now->run);
    vk_push(&x, s->now->turn);
    vk_push(&x, s->n_head);
    vk_push(&x, c->n_head_kv);
    vk_push(&x, c->head_dim_k);
    vk_push(&x, c->head_dim_v);
    vk_push(&x, s->n_rot);
    vk_push(&x, s->ld_q);
    vk_push(&x, s->ld_k);
    vk_push(&x, s->ld_v);
    vk_bind(&x, s->now->bytes);
    vk_bind(&x, s->q);
    vk_bind(&x, s->k);
    vk_bind(&x, s->v);
    vk_bind(&x, c->bytes);
    x.groups[0] = attend_div(items, lanes / cols);
    x.groups[1] = attend_div(s->n_col, cols);
    x.barrier   = s->barrier;
    vk_list_add(list, &x);
}

/* ---- Attention: what the kernels are told ---- */

#define ATTEND_MOST_SPLITS 128   /* merge.comp's MOST_SPLITS */

/* What a workgroup takes. */
typedef struct attend_plan {
    attend_path path;
    uint32_t    lanes, rows;
    uint32_t    heads, head_blocks;   /* a workgroup takes `heads` of a KV head's, head_blocks of them all */
    uint32_t    n_splits;
    uint32_t    unit;                 /* words of V that a lane loads at once */
    uint32_t    lane_rows;            /* of ATTEND_MANY_F32: rows of a lane, 0 elsewhere */
    vk_matrix   matrix;
    uint32_t    subgroup;             /* of ATTEND_MANY_MATRIX: lanes, 0 elsewhere */
    bool        held, loop;           /* queries stay in registers; loops stay loops */
} attend_plan;

/* The widest load that divides a row of V. */
static uint32_t widest_unit(uint32_t row) { return row % 4 == 0 ? 4 : row % 2 == 0 ? 2 : 1; }

/* Loads of V that leave the fewest of 16 lanes without work, and of those the widest. */
static uint32_t busiest_unit(uint32_t row) {
    uint32_t best = 1;
    for (uint32_t unit = 2; unit <= 4; unit *= 2)
        if (row % unit == 0 && attend_div(row / unit, 16) * unit <= attend_div(row / best, 16) * best) best = unit;
    return best;
}

/* Shared memory of attend.comp, in bytes. */
static uint32_t few_shared(const vk_cache *c, uint32_t lanes, uint32_t rows) {
    uint32_t quads = attend_div(rows, 4), units = v_row_words(c) / widest_unit(v_row_words(c));
    uint32_t each = attend_div(units, lanes), v_lanes = attend_least(units, lanes);
    uint32_t v_groups = attend_least(16, lanes / v_lanes);
    uint32_t row   = v_groups * v_lanes * each * widest_unit(v_row_words(c)) * (c->v_f32 ? 1 : 2);
    uint32_t share = rows * lanes * 4, joined = row > share ? row : share;
    return 4 * (k_row_words(c) * (c->k_f32 ? 1 : 2) * quads * 4 + joined + rows * 81 + 16);
}

/* Heads that share loads: as many as registers hold accumulators for, and shared memory queries. */
static uint32_t few_rows(const vk_device *d, const vk_attend *a, uint32_t lanes) {
    uint32_t n_rep = a->n_head / a->cache->n_head_kv, most = attend_least(n_rep, 8);
    uint32_t row = v_row_words(a->cache), unit = widest_unit(row);
    uint32_t acc = attend_div(row / unit, lanes) * unit * (a->cache->v_f32 ? 1 : 2);
    uint32_t limit = attend_least(16384, d->caps.max_shared);
    for (;; most--) {
        uint32_t rows = attend_div(n_rep, attend_div(n_rep, most));
        if (most == 1 || (rows * acc <= 64 && few_shared(a->cache, lanes, rows) <= limit)) return rows;
    }
}

/* Splits of the pages, so that `want` workgroups are at work, with two pages or more each. */
static uint32_t attend_splits(const vk_attend *a, uint32_t groups, uint32_t want) {
    uint32_t pages = attend_div(a->n_ctx, KV_PAGE) + 2, n = a->n_splits ? a->n_splits : want / groups;
    if (a->window) pages = attend_least(pages, a->window / KV_PAGE + 3);
    n = attend_least(n, a->n_splits ? pages : pages / 2);
    return n < 1 ? 1 : attend_least(n, ATTEND_MOST_SPLITS);
}

static attend_plan few_plan(const vk_device *d, const vk_attend *a) {
    attend_plan p;
    uint32_t    n_rep = a->n_head / a->cache->n_head_kv;
    memset(&p, 0, sizeof p);
    p.path        = ATTEND_FEW;
    p.lanes       = is_cpu(d) ? 16 : 128;
    p.unit        = is_cpu(d) ? busiest_unit(v_row_words(a->cache)) : widest_unit(v_row_words(a->cache));
    p.heads       = few_rows(d, a, p.lanes);
    p.rows        = p.heads;
    p.head_blocks = attend_div(n_rep, p.heads);
    p.n_splits    = attend_splits(a, a->n_col * a->cache->n_head_kv * p.head_blocks, is_cpu(d) ? 16 : 512);
    return p;
}

/* Workgroups of blocks of columns, where each run may end inside one. */
static uint32_t many_blocks(const vk_attend *a, const attend_plan *p) {
    return attend_div(a->n_col, p->rows / p->heads) + a->n_run - 1;
}

static void many_splits(const vk_device *d, const vk_attend *a, attend_plan *p) {
    p->n_splits = attend_splits(a, a->cache->n_head_kv * p->head_blocks * many_blocks(a, p), is_cpu(d) ? 8 : 192);
}

/* As many rows as shared memory holds queries for. */
static attend_plan many_plan(const vk_device *d, const vk_attend *a) {
    attend_plan     p;
    const vk_cache *c     = a->cache;
    uint32_t        n_rep = a->n_head / c->n_head_kv, k_dims = k_row_words(c) * (c->k_f32 ? 1 : 2);
    memset(&p, 0, sizeof p);
    p.path = ATTEND_MANY_F32;
    p.rows = is_cpu(d) ? 16 : 32;
    uint32_t row_bytes = (k_dims + KV_PAGE + 16) * (uint32_t)sizeof(float);
    while (p.rows > 4 && (row_bytes * p.rows > d->caps.max_shared || 4 * p.rows > d->caps.max_workgroup)) p.rows /= 2;
    p.lane_rows   = is_cpu(d) ? p.rows : 4;
    p.lanes       = 16 * p.rows / p.lane_rows;
    p.unit        = busiest_unit(v_row_words(c));
    p.head_blocks = attend_div(n_rep, p.rows);
    p.heads       = attend_div(n_rep, p.head_blocks);
    many_splits(d, a, &p);
    return p;
}

static uint32_t attend_round(uint32_t n, uint32_t to) { return attend_div(n, to) * to; }

/* Shared memory of attend_cm.comp, in bytes: the same sums as there. */
static uint32_t matrix_shared(const vk_cache *c, const attend_plan *p, uint32_t split, uint32_t step) {
    uint32_t deep = attend_round(c->head_dim_k, p->matrix.k * split);
    uint32_t wide = attend_round(c->head_dim_v, p->matrix.n * split);
    uint32_t kp = attend_div(deep, 8) | 1, vp = attend_div(wide, 8) | 1, pp = step / 8 | 1, sp = step / 4 | 1;
    uint32_t k   = step * kp > p->rows * pp ? step * kp : p->rows * pp;
    uint32_t all = k + step * vp + split * p->rows * sp + p->rows / 4;
    uint32_t q = (p->held ? 0 : all) + p->rows * kp;
    return 16 * (q > all ? q : all);
}

/* The matrix shape to use: halves with float sums, as large as there is. */
static bool attend_matrix(const vk_device *d, vk_matrix *out) {
    uint32_t most = 0;
    if (!(d->caps.can & VK_CAN_MATRIX) || !(d->caps.can & VK_CAN_F16) || !(d->caps.can & VK_CAN_SUBGROUP)) return false;
    for (uint32_t i = 0; i < d->caps.n_matrices; i++) {
        const vk_matrix *m = &d->caps.matrices[i];
        uint32_t         size = m->m * m->n * m->k;
        if (m->a != VK_COMPONENT_TYPE_FLOAT16_KHR || m->b != m->a || m->c != VK_COMPONENT_TYPE_FLOAT32_KHR) continue;
        if (m->m % 4 || m->n % 8 || m->k % 8 || m->n > 16 || m->k > 32 || size <= most) continue;
        most = size;
        *out = *m;
    }
    return most != 0;
}

/* Four subgroups, or fewer where shared memory is short. For large heads two subgroups share a strip of rows, and with
 * it the registers that its queries and its result take. False: these heads do not fit. */
static bool matrix_plan(const vk_device *d, const vk_attend *a, attend_plan *p) {
    const vk_cache *c     = a->cache;
    uint32_t        n_rep = a->n_head / c->n_head_kv, split, step, groups, per_row;
    memset(p, 0, sizeof *p);
    if (!attend_matrix(d, &p->matrix) || c->head_dim_k > 256 || c->head_dim_v > 256) return false;
    p->path     = ATTEND_MANY_MATRIX;
    p->subgroup = d->caps.subgroup;
    if ((d->caps.can & VK_CAN_SIZED) && d->caps.subgroup_min <= 32 && d->caps.subgroup_max >= 32) p->subgroup = 32;
    split   = c->head_dim_k > 128 || c->head_dim_v > 128 ? 2 : 1;
    step    = split == 2 ? 16 : 32;
    per_row = split * p->subgroup / p->matrix.m;      /* lanes of a row: whole ones, with whole fours of tokens */
    if (per_row * p->matrix.m != split * p->subgroup || step % (4 * per_row) || step % p->matrix.n ||
        step % p->matrix.k || p->matrix.m * p->matrix.n % (4 * p->subgroup))
        return false;
    p->loop = is_cpu(d);
    p->held = !p->loop;
    for (groups = 4; groups >= split; groups /= 2) {
        p->rows  = groups / split * p->matrix.m;
        p->lanes = groups * p->subgroup;
        if (p->lanes <= d->caps.max_workgroup && matrix_shared(c, p, split, step) <= d->caps.max_shared) break;
    }
    if (groups < split || p->lanes < step || p->lanes % step) return false;
    p->unit        = 1;
    p->head_blocks = attend_div(n_rep, p->rows);
    p->heads       = attend_div(n_rep, p->head_blocks);
    many_splits(d, a, p);
    return true;
}

/* Up to as many columns, which mostly are of different texts, go by themselves. */
#define ATTEND_FEW_COLUMNS 8

static attend_path vk_attend_path(const vk_device *d, const vk_attend *a) {
    attend_plan p;
    attend_path path = a->path;
    if (path == ATTEND_BEST) {
        bool halves = !a->cache->k_f32 && !a->cache->v_f32;       /* who keeps floats wants them */
        path = halves && !is_cpu(d) ? ATTEND_MANY_MATRIX : ATTEND_MANY_F32;
        if (a->n_col <= ATTEND_FEW_COLUMNS) path = ATTEND_FEW;
    }
    return path == ATTEND_MANY_MATRIX && !matrix_plan(d, a, &p) ? ATTEND_MANY_F32 : path;
}

static attend_plan plan_of(const vk_device *d, const vk_attend *a) {
    attend_plan p;
    attend_path path = vk_attend_path(d, a);
    if (path == ATTEND_MANY_MATRIX && matrix_plan(d, a, &p)) return p;
    return path == ATTEND_FEW ? few_plan(d, a) : many_plan(d, a);
}

/* Of one split. */
static uint64_t split_bytes(const vk_attend *a) {
    return (uint64_t)a->n_col * a->n_head * (a->cache->head_dim_v + 2) * sizeof(float);
}

static uint64_t vk_attend_partial(const vk_device *d, const vk_attend *a) {
    attend_plan p = plan_of(d, a);
    return p.n_splits == 1 ? 0 : p.n_splits * split_bytes(a);
}

/* The specialization constants, push constants and bindings of attend.glsl. */
static vk_dispatch attend_dispatch(vk_kernel kernel, const vk_attend *a, const attend_plan *p) {
    const float     log2e = 1.442695041f;
    const vk_cache *c     = a->cache;
    vk_dispatch     x     = vk_begin(kernel, p->lanes);
    bool            cap   = a->soft_cap != 0;
    vk_spec(&x, c->head_dim_k);
    vk_spec(&x, c->head_dim_v);
    vk_spec(&x, c->k_f32);
    vk_spec(&x, c->v_f32);
    vk_spec(&x, p->unit);
    vk_spec(&x, p->rows);
    vk_spec(&x, cap);
    vk_spec(&x, a->sinks.size != 0);
    vk_spec(&x, p->n_splits == 1);
    if (p->lane_rows) vk_spec(&x, p->lane_rows);
    if (p->subgroup) {
        vk_spec(&x, p->loop);
        vk_spec(&x, p->matrix.m);
        vk_spec(&x, p->matrix.n);
        vk_spec(&x, p->matrix.k);
        vk_spec(&x, p->subgroup);
        vk_spec(&x, p->held);
        x.subgroup = p->subgroup;
    }
    vk_push(&x, a->now->col);
    vk_push(&x, a->now->run);
    vk_push(&x, a->now->sink_turn);
    vk_push(&x, a->n_head);
    vk_push(&x, c->n_head_kv);
    vk_push(&x, a->n_rot);
    vk_push(&x, a->neox);
    vk_push(&x, a->ld_q);
    vk_push(&x, a->ld_out);
    vk_push(&x, a->window);
    vk_push(&x, p->n_splits);
    vk_push_f32(&x, cap ? a->scale / a->soft_cap : a->scale * log2e);
    vk_push_f32(&x, a->soft_cap * log2e);
    vk_push(&x, p->head_blocks);
    vk_push(&x, p->heads);
    vk_push(&x, a->n_col);
    vk_bind(&x, a->now->bytes);
    vk_bind(&x, a->q);
    vk_bind(&x, c->bytes);
    vk_bind(&x, a->out);
    vk_bind(&x, a->sinks.size ? a->sinks : a->now->bytes);   /* a binding that a constant turns off must be something */
    vk_bind(&x, p->n_splits > 1 ? a->partial : a->now->bytes);
    x.barrier = a->barrier;
    return x;
}

static void vk_attend_add(const vk_device *d, vk_list *list, const vk_attend *a) {
    static const vk_kernel kernels[] = {KERNEL_ATTEND, KERNEL_ATTEND, KERNEL_ATTEND_MANY, KERNEL_ATTEND_CM};
    attend_plan p   = plan_of(d, a);
    bool        few = p.path == ATTEND_FEW;
    if (p.n_splits > 1 && p.n_splits * split_bytes(a) > a->partial.size)
        p.n_splits = (uint32_t)size_max(1, (size_t)(a->partial.size / split_bytes(a)));
    vk_dispatch x   = attend_dispatch(kernels[p.path], a, &p);
    x.groups[0] = a->cache->n_head_kv * p.head_blocks;
    x.groups[1] = few ? p.n_splits : many_blocks(a, &p);
    x.groups[2] = few ? a->n_col : p.n_splits;
    vk_list_add(list, &x);
    if (p.n_splits == 1) return;
    p.lanes     = attend_least(is_cpu(d) ? 16 : 128, attend_round(a->cache->head_dim_v, 16));
    p.lane_rows = p.subgroup = 0;
    x = attend_dispatch(KERNEL_MERGE, a, &p);
    x.groups[0] = a->n_head;
    x.groups[1] = a->n_col;
    x.barrier   = true;
    vk_list_add(list, &x);
}

#endif
