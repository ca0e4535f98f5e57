/* Multiplications for many columns: see vk_matmul.h and shaders/matmul.comp. */
#include "vk_matmul.h"

#ifndef NOVA_NO_VULKAN

#define MATMUL_UP      4u     /* the shader's fifth epilogue: y = act(y) * r */
#define MATMUL_GROUPS  96u    /* workgroups that fill a GPU */
#define VENDOR_NVIDIA  0x10deu

static const char *vk_path_name(vk_path p) {
    static const char *const names[VK_PATH_COUNT] = {"f32", "f16", "dot", "matrix f16", "matrix s8"};
    return (uint32_t)p < VK_PATH_COUNT ? names[p] : "?";
}

/* ---- What the device has ---- */

/* The largest matrices for a path whose k divides `group`; NULL: none. */
static const vk_matrix *matrix_for(const vk_device *d, vk_path path, uint32_t group) {
    const vk_matrix *best = NULL;
    if (!(d->caps.can & VK_CAN_MATRIX)) return NULL;
    for (uint32_t i = 0; i < d->caps.n_matrices; i++) {
        const vk_matrix *x = &d->caps.matrices[i];
        bool bytes  = x->a == VK_COMPONENT_TYPE_SINT8_KHR && x->b == x->a && x->c == VK_COMPONENT_TYPE_SINT32_KHR;
        bool halves = x->a == VK_COMPONENT_TYPE_FLOAT16_KHR && x->b == x->a && x->c == VK_COMPONENT_TYPE_FLOAT32_KHR;
        if (!(path == VK_PATH_MATRIX_S8 ? bytes : halves) || group % x->k || x->k % 8) continue;
        if (x->m % 4 || x->m > 32 || x->n > 32) continue;
        if (!best || x->m * x->n * x->k > best->m * best->n * best->k) best = x;
    }
    return best;
}

/* Lanes of a subgroup with matrices. */
static uint32_t matrix_subgroup(const vk_device *d) {
    const vk_caps *c = &d->caps;
    return (c->can & VK_CAN_SIZED) && c->subgroup_min <= 32 && c->subgroup_max >= 32 ? 32 : c->subgroup;
}

static uint32_t vk_matmul_paths(const vk_device *d) {
    uint32_t paths = 1u << VK_PATH_F32;
    if (d->caps.can & VK_CAN_F16) paths |= 1u << VK_PATH_F16;
    if (d->caps.can & VK_CAN_DOT) paths |= 1u << VK_PATH_DOT;
    /* Subgroups must be of the size that tiles are made for. */
    bool sized = (d->caps.can & VK_CAN_SIZED) || d->caps.subgroup_min == d->caps.subgroup_max;
    if ((d->caps.can & VK_CAN_SUBGROUP) && sized) {
        if ((d->caps.can & VK_CAN_F16) && matrix_for(d, VK_PATH_MATRIX_F16, 32)) paths |= 1u << VK_PATH_MATRIX_F16;
        if ((d->caps.can & VK_CAN_INT8) && matrix_for(d, VK_PATH_MATRIX_S8, 32)) paths |= 1u << VK_PATH_MATRIX_S8;
    }
    return paths;
}

static bool vk_matmul_can(const vk_device *d, const vk_matmul *m, vk_path path) {
    bool codes = m->w[0]->format >= GPU_Q4_0 && (!m->w[1] || m->w[1]->format >= GPU_Q4_0);
    bool six   = m->w[0]->format == GPU_Q6_K || (m->w[1] && m->w[1]->format == GPU_Q6_K);
    if (!(vk_matmul_paths(d) >> path & 1)) return false;
    switch (path) {
    case VK_PATH_F16:        return codes && m->scratch.size;
    case VK_PATH_DOT:        return codes && m->xq.size;
    case VK_PATH_MATRIX_F16: return m->scratch.size != 0;
    case VK_PATH_MATRIX_S8:  return codes && m->xq.size && (!six || matrix_for(d, path, 16));
    default:                 return true;
    }
}

/* Dot products in one instruction; matrices of bytes not smaller for Q6_K, which takes them 16 by 16. */
static bool is_worth(const vk_device *d, const vk_matmul *m, vk_path path) {
    if (path == VK_PATH_DOT) return d->caps.dot_fast;
    if (path != VK_PATH_MATRIX_S8 || m->w[0]->format != GPU_Q6_K) return true;
    return matrix_for(d, path, 16)->m == matrix_for(d, path, 32)->m;
}

static vk_path vk_matmul_choose(const vk_device *d, const vk_matmul *m) {
    static const vk_path bytes_first[] = {VK_PATH_MATRIX_S8, VK_PATH_MATRIX_F16, VK_PATH_DOT, VK_PATH_F16};
    static const vk_path halves_first[] = {VK_PATH_MATRIX_F16, VK_PATH_DOT, VK_PATH_F16};
    if (m->path && vk_matmul_can(d, m, (vk_path)(m->path - 1))) return (vk_path)(m->path - 1);
    if (d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU) return VK_PATH_F32;
    /* NVIDIA's matrices take bytes at 2 to 4 times the rate of halves, others' do not. */
    bool           bytes = d->caps.vendor == VENDOR_NVIDIA;
    const vk_path *order = bytes ? bytes_first : halves_first;
    uint32_t       n     = bytes ? 4 : 3;
    for (uint32_t i = 0; i < n; i++)
        if (vk_matmul_can(d, m, order[i]) && is_worth(d, m, order[i])) return order[i];
    return VK_PATH_F32;
}

/* Words of halves, then pairs, a group each at most. */
static uint64_t scratch_scales(uint32_t ld_x, uint32_t n_col) { return (uint64_t)ld_x / 2 * n_col; }

static uint64_t vk_matmul_scratch(const vk_device *d, uint32_t ld_x, uint32_t n_col) {
    uint32_t halves = 1u << VK_PATH_F16 | 1u << VK_PATH_MATRIX_F16;
    return vk_matmul_paths(d) & halves ? (scratch_scales(ld_x, n_col) + (uint64_t)ld_x / 16 * n_col) * 4 : 0;
}

/* ---- Tiles ---- */

static uint32_t div_up(uint32_t a, uint32_t b) { return (a + b - 1) / b; }

static bool is_matrix_path(vk_path p) { return p == VK_PATH_MATRIX_F16 || p == VK_PATH_MATRIX_S8; }
static bool is_glu(const vk_matmul *m) { return m->epilogue == EPILOGUE_GLU && m->w[1]; }

/* Bytes of shared memory, as shaders/matmul_rows.glsl and matmul_matrix.glsl declare it. */
static uint32_t tile_shared(const vk_device *d, const vk_matmul *m, vk_path path, const vk_tile *t) {
    uint32_t quads = t->stage * 8 * (t->cols + 1);
    if (path == VK_PATH_F32) return quads * 16;
    if (path == VK_PATH_F16) return quads * 8 + t->stage * t->cols * 8;
    if (path == VK_PATH_DOT) return t->stage * t->cols * (32 + 8);
    const vk_matrix *x = matrix_for(d, path, 32);
    uint32_t tile = (t->rows + t->cols) * ((path == VK_PATH_MATRIX_S8 ? 2 : 4) * t->stage + 1) * 16;
    uint32_t out  = t->local / matrix_subgroup(d) * (is_glu(m) ? 2u : 1u) * x->m * x->n * 4;
    uint32_t scales = path == VK_PATH_MATRIX_S8 ? t->stage * (3 * t->rows + 2 * t->cols) * 4 + 8 : 0;
    return (tile > out ? tile : out) + scales;
}

static bool tile_fits(const vk_device *d, const vk_matmul *m, vk_path path, const vk_tile *t) {
    uint32_t n_w = is_glu(m) ? 2 : 1;
    if (t->local > d->caps.max_workgroup || tile_shared(d, m, path, t) > d->caps.max_shared) return false;
    if (!is_matrix_path(path))
        return t->cols % 4 == 0 && t->each_cols == t->cols && t->rows == t->local * t->each_rows * n_w;
    const vk_matrix *x = matrix_for(d, path, path == VK_PATH_MATRIX_S8 && m->w[0]->format == GPU_Q6_K ? 16 : 32);
    if (!x || t->each_rows % (x->m * n_w) || t->each_cols % x->n || t->rows % t->each_rows || t->cols % t->each_cols)
        return false;
    return t->local == t->rows / t->each_rows * (t->cols / t->each_cols) * matrix_subgroup(d);
}

/* What a tile costs: all tiles' sums, or those of a GPU that is not full, and what each of their rows and columns adds
 * for its loads and its share of the barriers. */
static uint64_t tile_cost(const vk_matmul *m, const vk_tile *t) {
    uint64_t rows  = div_up(m->w[0]->n_out, t->rows / (is_glu(m) ? 2 : 1)), cols = div_up(m->n_col, t->cols);
    uint64_t tiles = rows * cols > MATMUL_GROUPS ? rows * cols : MATMUL_GROUPS;
    return tiles * ((uint64_t)t->rows * t->cols + 24 * ((uint64_t)t->rows + t->cols));
}

static vk_tile matrix_tile(const vk_device *d, const vk_matmul *m, vk_path path) {
    static const uint32_t shapes[][4] = {   /* rows, cols; of a subgroup */
        {32, 32, 32, 16}, {64, 32, 32, 16}, {128, 32, 32, 32}, {64, 64, 32, 32}, {128, 64, 32, 32}, {128, 128, 32, 64},
    };
    vk_tile  best;
    uint64_t least = UINT64_MAX;
    memset(&best, 0, sizeof best);
    if (d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU) {   /* little to compile */
        best.each_rows = is_glu(m) ? 16 : 8, best.each_cols = 8;
        best.rows = 2 * best.each_rows, best.cols = 2 * best.each_cols;
        best.local = 4 * matrix_subgroup(d), best.stage = 1, best.loop = true;
        if (!tile_fits(d, m, path, &best)) best.local = 0;
        return best;
    }
    for (uint32_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        vk_tile t;
        t.rows = shapes[i][0], t.cols = shapes[i][1], t.each_rows = shapes[i][2], t.each_cols = shapes[i][3];
        t.local = t.rows / t.each_rows * (t.cols / t.each_cols) * matrix_subgroup(d);
        t.stage = 1, t.loop = false;
        if (tile_fits(d, m, path, &t) && tile_cost(m, &t) < least) best = t, least = tile_cost(m, &t);
    }
    return best;
}

static vk_tile rows_tile(const vk_device *d, const vk_matmul *m, vk_path path) {
    uint32_t n_w = is_glu(m) ? 2 : 1;
    vk_tile  t;
    t.stage = 1;
    t.loop  = d->caps.type == VK_PHYSICAL_DEVICE_TYPE_CPU;
    if (t.loop) {
        t.local = 2 * d->caps.subgroup, t.each_rows = 4 / n_w, t.cols = 8;
        if (path == VK_PATH_F32) t.cols = 16, t.stage = 4;   /* measured; the others are there for tests */
    } else {
        /* 32 sums a lane; two of them with integer dots, whose operands take less room. */
        t.local = 128, t.each_rows = 2 / n_w, t.cols = path == VK_PATH_DOT ? 32 : 16;
        uint32_t across = div_up(m->n_col, t.cols);
        while (t.local > 32 && div_up(m->w[0]->n_out, t.local * t.each_rows) * across < MATMUL_GROUPS) t.local /= 2;
    }
    while (t.cols > 4 && t.cols / 2 >= m->n_col) t.cols /= 2;
    t.each_cols = t.cols;
    t.rows      = t.local * t.each_rows * n_w;
    return t;
}

static vk_tile tile_for(const vk_device *d, const vk_matmul *m, vk_path path) {
    return is_matrix_path(path) ? matrix_tile(d, m, path) : rows_tile(d, m, path);
}

/* ---- Dispatches ---- */

/* Halves of the activations into the scratch. */
static void add_pack(vk_list *list, const vk_matmul *m, bool column) {
    vk_dispatch x = vk_begin(KERNEL_MATMUL_PACK, column ? 128 : 64);
    x.barrier = m->barrier;
    vk_spec(&x, column);
    vk_bind(&x, m->x);
    vk_bind(&x, m->scratch);
    vk_push(&x, m->w[0]->n_pad);
    vk_push(&x, m->ld_x);
    vk_push(&x, (uint32_t)scratch_scales(m->ld_x, m->n_col));
    x.groups[0] = column ? 1 : div_up(m->w[0]->n_pad / 4, 64);
    x.groups[1] = m->n_col;
    vk_list_add(list, &x);
}

/* The power of two that brings the largest weight to 1024..2048: halves then neither overflow nor lose bits. */
static float weight_scale(const vk_weight *w) {
    int e = 0;
    if (!(w->largest > 0) || !(w->largest <= FLT_MAX)) return 1;
    (void)frexpf(w->largest, &e);
    e = 11 - e;
    return ldexpf(1, e < -14 ? -14 : e > 15 ? 15 : e);
}

static void add_planes(vk_dispatch *x, const vk_part *p) {
    vk_push(x, p->codes);
    vk_push(x, p->high);
    vk_push(x, p->scales);
    vk_push(x, p->extra);
}

static vk_dispatch begin_path(const vk_device *d, const vk_matmul *m, vk_path path, const vk_tile *t) {
    static const vk_kernel kernels[VK_PATH_COUNT] = {
        KERNEL_MATMUL, KERNEL_MATMUL_F16, KERNEL_MATMUL_DOT, KERNEL_MATMUL_CM, KERNEL_MATMUL_CM_S8};
    bool        acts = m->epilogue == EPILOGUE_ACT || m->epilogue == EPILOGUE_GLU;
    vk_dispatch x    = vk_begin(kernels[path], t->local);
    vk_spec(&x, (uint32_t)m->w[0]->format);
    vk_spec(&x, m->epilogue == EPILOGUE_GLU && !m->w[1] ? MATMUL_UP : (uint32_t)m->epilogue);
    vk_spec(&x, (uint32_t)(acts ? m->act : ACT_NONE));
    vk_spec(&x, (m->bias[0].size ? 1u : 0u) | (is_glu(m) && m->bias[1].size ? 2u : 0u));
    vk_spec(&x, t->loop);
    if (!is_matrix_path(path)) {
        vk_spec(&x, t->each_rows);
        vk_spec(&x, t->cols);
        vk_spec(&x, t->stage);
        return x;
    }
    const vk_matrix *matrix = matrix_for(d, path, path == VK_PATH_MATRIX_S8 && m->w[0]->format == GPU_Q6_K ? 16 : 32);
    vk_spec(&x, t->rows);
    vk_spec(&x, t->cols);
    vk_spec(&x, t->each_rows);
    vk_spec(&x, t->each_cols);
    vk_spec(&x, matrix->m);
    vk_spec(&x, matrix->n);
    vk_spec(&x, matrix->k);
    vk_spec(&x, matrix_subgroup(d));
    vk_spec(&x, t->stage);
    x.subgroup = matrix_subgroup(d);
    return x;
}

static void matmul_add_part(vk_device *d, vk_list *list, const vk_matmul *m, vk_path path, const vk_tile *t,
                            uint32_t part) {
    bool           scratch = path == VK_PATH_F16 || path == VK_PATH_MATRIX_F16, glu = is_glu(m);
    const vk_part *p0 = &m->w[0]->parts[part], *p1 = glu ? &m->w[1]->parts[part] : p0;
    vk_slice       x_from = scratch ? m->scratch : path == VK_PATH_F32 ? m->x : m->xq;
    vk_dispatch    x = begin_path(d, m, path, t);
    x.barrier = part == 0 && (m->barrier || (scratch && !m->packed));
    vk_bind(&x, p0->bytes);
    vk_bind(&x, p1->bytes);
    vk_bind(&x, x_from);
    vk_bind(&x, m->y);
    vk_bind(&x, m->bias[0].size ? m->bias[0] : x_from);
    vk_bind(&x, m->bias[1].size ? m->bias[1] : x_from);
    add_planes(&x, p0);
    add_planes(&x, p1);
    vk_push(&x, m->w[0]->n_pad);
    vk_push(&x, p0->n_rows);
    vk_push(&x, p0->row);
    vk_push(&x, m->ld_x);
    vk_push(&x, m->ld_y);
    vk_push(&x, (scratch ? (uint32_t)scratch_scales(m->ld_x, m->n_col) : m->xq_scales) / 2);
    vk_push(&x, m->n_col);
    if (path == VK_PATH_MATRIX_F16) {
        vk_push_f32(&x, weight_scale(m->w[0]));
        vk_push_f32(&x, weight_scale(m->w[glu ? 1 : 0]));
    } else {
        vk_push_f32(&x, 12582912);   /* what sums of bytes begin with: 3 2^22 */
        vk_push_f32(&x, 1);
    }
    x.groups[0] = div_up(m->n_col, t->cols);
    x.groups[1] = div_up(p0->n_rows, t->rows / (glu ? 2 : 1));
    vk_list_add(list, &x);
}

static void add_tiles(vk_device *d, vk_list *list, const vk_matmul *m, vk_path path, const vk_tile *t) {
    bool scratch = path == VK_PATH_F16 || path == VK_PATH_MATRIX_F16;
    if (scratch && !m->packed) add_pack(list, m, path == VK_PATH_MATRIX_F16);
    for (uint32_t i = 0; i < m->w[0]->n_parts; i++) matmul_add_part(d, list, m, path, t, i);
}

static bool vk_matmul_add_as(vk_device *d, vk_list *list, const vk_matmul *m, vk_path path, const vk_tile *tile) {
    if (!vk_matmul_can(d, m, path) || !tile_fits(d, m, path, tile)) return false;
    add_tiles(d, list, m, path, tile);
    return true;
}

static void vk_matmul_add(vk_device *d, vk_list *list, const vk_matmul *m) {
    vk_path path = vk_matmul_choose(d, m);
    /* Gate and up in one dispatch take the same format, cut into the same parts. */
    if (is_glu(m) && (m->w[0]->format != m->w[1]->format || m->w[0]->n_parts != m->w[1]->n_parts)) {
        vk_matmul gate = *m, up = *m;
        gate.epilogue = EPILOGUE_NONE;
        gate.path = up.path = 1 + (uint32_t)path;
        gate.w[1] = up.w[1] = NULL;
        up.w[0]    = m->w[1];
        up.bias[0] = m->bias[1];
        up.barrier = up.packed = true;
        vk_matmul_add(d, list, &gate);
        vk_matmul_add(d, list, &up);
        return;
    }
    vk_tile tile = tile_for(d, m, path);
    if (tile.local == 0) {   /* matrices, but no room for any tile of them */
        path = VK_PATH_F32;
        tile = tile_for(d, m, path);
    }
    add_tiles(d, list, m, path, &tile);
}

#endif
