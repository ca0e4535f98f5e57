/* Multiplications for 1 to 8 columns: see vk_matvec.h and shaders/matvec.comp. */
#include "vk_matvec.h"

#ifndef NOVA_NO_VULKAN

#define MATVEC_SUMS       16u     /* that a lane holds at most: weights times rows times columns */
#define MATVEC_STAGE      9216u   /* bytes of x in shared memory: leaves room for sums and for a second workgroup */
#define MATVEC_ROWS       1024u   /* of a weight for each of a lane: with fewer, more lanes beat full ones */
#define MATVEC_UP         4u      /* the shader's fifth epilogue: y = act(y) * r */

static uint32_t quads_of(vk_format f) { return f == GPU_F32 ? 1 : f <= GPU_BF16 ? 2 : f == GPU_Q8_0 ? 4 : 8; }

/* Gate and up in one dispatch take the same format, cut into the same parts. */
static bool is_pair(const vk_matmul *m) { return m->epilogue == EPILOGUE_GLU && m->w[1]; }
static bool is_fused(const vk_matmul *m) {
    return m->w[0]->format == m->w[1]->format && m->w[0]->n_parts == m->w[1]->n_parts;
}

static uint32_t n_sums(const vk_matmul *m) { return m->n_col * (is_pair(m) ? 2 : 1); }

static uint32_t stage_bytes(const vk_matmul *m, const vk_matvec_shape *s) {
    return s->stage * (quads_of(m->w[0]->format) | 1) * 16 * m->n_col;
}

static uint32_t shared_bytes(const vk_matmul *m, const vk_matvec_shape *s) {
    uint32_t bytes = stage_bytes(m, s) + 32, lanes = (uint32_t)1 << s->lanes_log;
    if (s->kernel == KERNEL_MATVEC && lanes > 1) bytes += s->local / lanes * n_sums(m) * s->rows * (lanes + 1) * 4;
    return bytes;
}

static bool vk_matvec_fits(const vk_device *d, const vk_matmul *m, const vk_matvec_shape *s) {
    const vk_caps *c = &d->caps;
    uint32_t lanes = (uint32_t)1 << s->lanes_log;
    if (m->n_col == 0 || m->n_col > VK_MATVEC_MAX || s->local > c->max_workgroup || s->local % lanes) return false;
    if (shared_bytes(m, s) > c->max_shared) return false;
    bool dots = (c->can & VK_CAN_DOT) && m->xq.size && m->w[0]->format >= GPU_Q4_0;
    if (s->kernel == KERNEL_MATVEC_DOT_SG && !dots) return false;
    if (s->kernel == KERNEL_MATVEC) return true;
    uint32_t least = s->subgroup ? s->subgroup : c->subgroup_min;
    return (c->can & VK_CAN_SUBGROUP) && s->local % c->subgroup == 0 && lanes <= least;
}

/* Lanes that share a row: a power of two, few enough that each has two units and that they are of one subgroup. */
static uint32_t lanes_log_for(const vk_caps *c, const vk_matmul *m, const vk_matvec_shape *s, uint32_t units) {
    uint32_t most = s->kernel == KERNEL_MATVEC ? 32 : s->subgroup ? s->subgroup : c->subgroup_min, log = 0;
    bool     stages = s->kernel != KERNEL_MATVEC_DOT_SG;
    if (most > 32) most = 32;
    while ((uint32_t)2 << log <= most && (uint32_t)2 << log <= (units > 8 ? units / 2 : 4)) {
        vk_matvec_shape more = *s;
        more.stage = (uint32_t)2 << log;
        if (stages && stage_bytes(m, &more) > MATVEC_STAGE) break;
        log++;
    }
    return log;
}

/* Measured on lavapipe; on GPUs from what their compilers say of registers, and from what must be in flight: a lane's
 * 64 bytes of codes (four rows of one weight, two of a pair), and some 30,000 lanes before one takes several rows. */
static vk_matvec_shape vk_matvec_choose(const vk_device *d, const vk_matmul *m) {
    const vk_caps   *c    = &d->caps;
    const vk_weight *w    = m->w[0];
    uint32_t         sums = n_sums(m), units = w->n_pad / 4 / quads_of(w->format);
    vk_matvec_shape  s;
    memset(&s, 0, sizeof s);
    s.kernel = KERNEL_MATVEC;
    s.rows   = 4;
    while (s.rows > 1 && s.rows * sums > MATVEC_SUMS) s.rows /= 2;
    if (c->type == VK_PHYSICAL_DEVICE_TYPE_CPU) {   /* a row a lane: x is the same for a whole vector */
        s.local = c->subgroup;
        return s;
    }
    if (is_pair(m) && s.rows > 2) s.rows = 2;
    while (s.rows > 1 && w->n_out < MATVEC_ROWS * s.rows) s.rows /= 2;
    s.local = 128;
    if (c->can & VK_CAN_SUBGROUP) s.kernel = KERNEL_MATVEC_SG;
    if (s.kernel == KERNEL_MATVEC_SG && (c->can & VK_CAN_DOT) && c->dot_fast && m->xq.size && w->format >= GPU_Q4_0)
        s.kernel = KERNEL_MATVEC_DOT_SG;
    if (s.kernel == KERNEL_MATVEC) s.local = 64;
    else if ((c->can & VK_CAN_SIZED) && c->subgroup_min < 16 && c->subgroup_max >= 16) s.subgroup = 16;
    s.lanes_log = lanes_log_for(c, m, &s, units);
    if (s.kernel != KERNEL_MATVEC_DOT_SG) {
        uint32_t lanes = (uint32_t)1 << s.lanes_log, all = (units + lanes - 1) / lanes * lanes;
        s.stage = MATVEC_STAGE / ((quads_of(w->format) | 1) * 16 * m->n_col) / lanes * lanes;
        if (s.stage > all) s.stage = all;
    }
    return s;
}

static vk_slice or_any(vk_slice s, vk_slice any) { return s.size ? s : any; }

static void push_planes(vk_dispatch *x, const vk_part *p) {
    vk_push(x, p->codes);
    vk_push(x, p->high);
    vk_push(x, p->scales);
    vk_push(x, p->extra);
}

/* Never more than there are: the last lanes then begin so many before the end. */
static uint32_t rows_of_lane(const vk_matvec_shape *s, const vk_part *p) {
    uint32_t rows = s->rows;
    while (rows > p->n_rows) rows /= 2;
    return rows;
}

static void add_part(vk_list *list, const vk_matmul *m, const vk_matvec_shape *s, uint32_t part) {
    bool           pair = is_pair(m), dot = s->kernel == KERNEL_MATVEC_DOT_SG;
    const vk_part *p0 = &m->w[0]->parts[part], *p1 = pair ? &m->w[1]->parts[part] : p0;
    uint32_t       rows = rows_of_lane(s, p0), team_rows = (s->local >> s->lanes_log) * rows;
    uint32_t       groups = (p0->n_rows + team_rows - 1) / team_rows;
    uint32_t       epilogue = m->epilogue == EPILOGUE_GLU && !pair ? MATVEC_UP : (uint32_t)m->epilogue;
    bool           acts = m->epilogue == EPILOGUE_ACT || m->epilogue == EPILOGUE_GLU;
    vk_dispatch    x = vk_begin(s->kernel, s->local);
    x.subgroup = s->subgroup;
    x.barrier  = m->barrier && part == 0;
    vk_spec(&x, (uint32_t)m->w[0]->format);
    vk_spec(&x, m->n_col);
    vk_spec(&x, s->lanes_log);
    vk_spec(&x, rows);
    vk_spec(&x, s->stage);
    vk_spec(&x, epilogue);
    vk_spec(&x, (uint32_t)(acts ? m->act : ACT_NONE));
    vk_spec(&x, (m->bias[0].size ? 1u : 0u) | (pair && m->bias[1].size ? 2u : 0u));
    vk_bind(&x, p0->bytes);
    vk_bind(&x, p1->bytes);
    vk_bind(&x, dot ? m->xq : m->x);
    vk_bind(&x, m->y);
    vk_bind(&x, or_any(m->bias[0], m->x));
    vk_bind(&x, or_any(m->bias[1], m->x));
    push_planes(&x, p0);
    push_planes(&x, p1);
    vk_push(&x, m->w[0]->n_pad);
    vk_push(&x, p0->n_rows);
    vk_push(&x, p0->row);
    vk_push(&x, m->ld_x);
    vk_push(&x, m->ld_y);
    vk_push(&x, m->xq_scales / 2);
    x.groups[1] = (groups + 65534) / 65535;   /* every device takes as many along x */
    x.groups[0] = (groups + x.groups[1] - 1) / x.groups[1];
    vk_list_add(list, &x);
}

static void vk_matvec_add_as(vk_list *list, const vk_matmul *m, const vk_matvec_shape *s) {
    for (uint32_t i = 0; i < m->w[0]->n_parts; i++) add_part(list, m, s, i);
}

static void vk_matvec_add(vk_device *d, vk_list *list, const vk_matmul *m) {
    if (is_pair(m) && !is_fused(m)) {   /* the gate's sums first, then up's, which finish it */
        vk_matmul gate = *m, up = *m;
        gate.epilogue = EPILOGUE_NONE;
        up.w[0]       = m->w[1];
        up.bias[0]    = m->bias[1];
        gate.w[1] = up.w[1] = NULL;
        up.barrier = true;
        vk_matvec_add(d, list, &gate);
        vk_matvec_add(d, list, &up);
        return;
    }
    vk_matvec_shape s = vk_matvec_choose(d, m);
    vk_matvec_add_as(list, m, &s);
}

#endif
