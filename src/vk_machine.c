/* The Vulkan executor: see vk_machine.h. */
#include "vk_machine.h"

#ifndef NOVA_NO_VULKAN

#define SUBMIT_NS       20e6      /* what a submit is planned to last; 30 ms is the most it should */
#define FIRST_GUESS     5.0       /* multiply-adds a nanosecond, before anything was measured */
#define HEADER_WORDS    16
#define RUN_WORDS       12
#define VK_MOST_COLUMNS 65535u    /* of a pass: every device takes as many workgroups along an axis */

static uint32_t round_up(uint32_t n, uint32_t to) { return (n + to - 1) / to * to; }

/* ---- Sizes ---- */

/* Is an operation this machine's? */
static bool is_mine(const vk_machine_desc *d, uint32_t i) { return i >= d->op_first && i < d->op_last; }

static bool has_head(const vk_machine_desc *d) { return d->op_last > d->prog->n_body; }

static vk_cache cache_of(const vk_machine_desc *d, uint32_t layer) {
    const kv_layer *l = &d->kv->layers[layer];
    vk_cache        c;
    memset(&c, 0, sizeof c);
    c.n_head_kv  = l->n_head_kv;
    c.head_dim_k = l->shape.head_dim_k;
    c.head_dim_v = l->shape.head_dim_v;
    c.k_f32      = l->shape.type_k == TYPE_F32;
    c.v_f32      = l->shape.type_v == TYPE_F32;
    return c;
}

static uint64_t cache_bytes_of(const vk_machine_desc *d, uint32_t layer) {
    vk_cache c = cache_of(d, layer);
    return d->kv->n_pages * vk_cache_page_bytes(&c);
}

static uint32_t columns_in(const vk_machine_desc *d, int b) { return b == BUF_LOGITS ? d->n_logits : d->n_batch; }

static uint32_t ld_of(const vk_machine_desc *d, int b) { return round_up(d->prog->width[b], 64); }

/* BUF_T is the CPU's alone: a matmul adds to the residual itself here. BUF_FF2 too: a gated one is fused. And all of experts. */
static bool is_used(int b) {
    return b != BUF_T && b != BUF_FF2 && b != BUF_HEADS && b != BUF_LATENT && b != BUF_GATE && b != BUF_ROUTER && b != BUF_CHOSEN && b != BUF_EXPERTS;
}

/* Floats of a position's cosines and sines. */
static uint32_t turn_floats(const vk_machine_desc *d, uint32_t rope) { return 2 * d->prog->ropes[rope].n_pairs; }

static uint32_t rotated(const vk_machine_desc *d, uint32_t layer) {
    uint32_t rope = d->model->layers[layer].rope;
    return rope == ROPE_NOT ? 0 : turn_floats(d, rope);
}

static bool is_neox_arch(const vk_machine_desc *d) { return d->model->kind->flags & ARCH_NEOX; }

static uint64_t now_words(const vk_machine_desc *d) {
    uint64_t turn = 0;
    for (uint32_t k = 0; k < ROPE_KINDS; k++) turn += turn_floats(d, k) + 4;
    return HEADER_WORDS + (uint64_t)d->n_batch * (4 + 1 + turn) + d->n_seqs * (RUN_WORDS + turn + d->max_pages) + 64;
}

/* What matmuls read may have a quantised twin, where the device multiplies bytes. */
static bool has_twin(const vk_device *d, int b) {
    bool bytes = d->caps.can & VK_CAN_DOT;
    for (uint32_t i = 0; i < d->caps.n_matrices; i++) bytes = bytes || d->caps.matrices[i].a == VK_COMPONENT_TYPE_SINT8_KHR;
    return bytes && (b == BUF_NORMED || b == BUF_ATT || b == BUF_FF);
}

static uint64_t scratch_bytes(const vk_device *d, const vk_machine_desc *desc) {
    uint64_t most = 0;
    for (int b = 0; b < BUF_LOGITS; b++)
        if (is_used(b) && desc->prog->width[b]) {
            uint64_t n = vk_matmul_scratch(d, ld_of(desc, b), desc->n_batch);
            if (n > most) most = n;
        }
    return most;
}

static attend_path forced_attend(const vk_machine_desc *d, uint32_t n_col) {
    if (!d->force || n_col <= VK_MATVEC_MAX) return ATTEND_BEST;
    return d->force & NOVA_GPU_MATRIX_F16 ? ATTEND_MANY_MATRIX : ATTEND_MANY_F32;
}

/* A layer's attention, without buffers and columns. */
static vk_attend attend_shape_of(const vk_machine_desc *d, uint32_t layer, const vk_cache *cache) {
    const kv_layer *kv = &d->kv->layers[layer];
    vk_attend       x;
    memset(&x, 0, sizeof x);
    x.cache    = cache;
    x.ld_q     = ld_of(d, BUF_Q);
    x.ld_out   = ld_of(d, BUF_ATT);
    x.n_ctx    = d->n_ctx;
    x.n_head   = d->model->layers[layer].n_head;
    x.n_rot    = rotated(d, layer);
    x.neox     = is_neox_arch(d);
    x.window   = d->model->layers[layer].window;
    x.scale    = kv->shape.scale;
    x.soft_cap = kv->shape.soft_cap;
    x.barrier  = true;
    return x;
}

/* The most that any number of columns needs for attention over a split cache. */
static uint64_t partial_bytes(const vk_device *d, const vk_machine_desc *desc) {
    uint64_t most = 0;
    for (uint32_t i = desc->op_first; i < desc->op_last; i++) {
        if (desc->prog->ops[i].kind != OP_ATTEND) continue;
        vk_cache  cache = cache_of(desc, desc->prog->ops[i].layer);
        vk_attend x     = attend_shape_of(desc, desc->prog->ops[i].layer, &cache);
        for (uint64_t n = 1; n <= desc->n_batch; n = n < VK_REPLAYED ? n + 1 : n * 2) {
            x.n_col = (uint32_t)n, x.n_run = (uint32_t)size_min(n, desc->n_seqs);
            x.path  = forced_attend(desc, x.n_col);
            uint64_t need = vk_attend_partial(d, &x);
            if (need > most) most = need;
        }
    }
    return most;
}

/* A row of choices for each column that a recorded pass may have; n_rows 0: none are made. */
static vk_choose choose_of(const vk_machine_desc *desc) {
    vk_choose c;
    memset(&c, 0, sizeof c);
    if (!has_head(desc) || desc->model->n_vocab > VK_CHOOSE_VOCAB) return c;
    c.n_rows  = (uint32_t)size_min(VK_REPLAYED, desc->n_logits);
    c.n_vocab = desc->model->n_vocab;
    c.ld      = ld_of(desc, BUF_LOGITS);
    c.k       = VK_CHOOSE_MOST;
    return c;
}

/* Slices to be taken: their sum, the largest one, and whether each may be a binding. */
typedef struct slice_sum { uint64_t limit, total, largest; bool fits; } slice_sum;

static void sum_slice(slice_sum *s, uint64_t bytes) {
    s->total += vk_slice_bytes(bytes);
    if (bytes > s->largest) s->largest = bytes;
    if (bytes > s->limit) s->fits = false;
}

static void sum_vector(slice_sum *s, const float *v, uint32_t n) {
    if (v) sum_slice(s, (uint64_t)round_up(n, 4) * sizeof(float));
}

/* Floats of an operation's vector: of a norm's weight, or sinks. */
static uint32_t vector_length(const vk_machine_desc *desc, const op *o) {
    return o->kind == OP_NORM ? o->n_vec : desc->model->layers[o->layer].n_head;
}

static void sum_op(slice_sum *s, const vk_device *d, const vk_machine_desc *desc, const op *o) {
    for (uint32_t k = 0; k < o->n_w; k++) {
        bool tied = o->kind == OP_EMBED && desc->op_last == desc->prog->n_ops && desc->prog->ops[desc->prog->n_ops - 1].w[0]->data == o->w[k]->data;
        uint64_t bytes = vk_weight_bytes(d, o->w[k]);
        sum_vector(s, o->bias[k], o->w[k]->n_out);
        if (bytes == 0) s->fits = false;
        if (tied) continue;   /* the output has it */
        s->total += bytes;
        if (bytes > s->largest) s->largest = bytes < s->limit ? bytes : s->limit;
    }
    if (o->kind == OP_STORE) sum_slice(s, cache_bytes_of(desc, o->layer));
    sum_vector(s, o->vec, vector_length(desc, o));
    if (o->kind == OP_NORM) sum_vector(s, o->bias[0], vector_length(desc, o));
}

static bool vk_machine_bytes(const vk_device *d, const vk_machine_desc *desc, uint64_t *bytes, uint64_t *room) {
    slice_sum s;
    vk_choose c = choose_of(desc);
    memset(&s, 0, sizeof s);
    s.limit = d->caps.max_range < d->caps.max_alloc ? d->caps.max_range : d->caps.max_alloc;
    s.fits  = desc->n_seqs <= VK_MOST_COLUMNS;
    sum_slice(&s, now_words(desc) * 4);
    for (int b = 0; b < BUF_COUNT; b++) {
        if (is_used(b)) sum_slice(&s, (uint64_t)columns_in(desc, b) * ld_of(desc, b) * sizeof(float));
        if (has_twin(d, b)) sum_slice(&s, vk_quantised_bytes(ld_of(desc, b), desc->n_batch));
    }
    sum_slice(&s, (uint64_t)desc->n_batch * ld_of(desc, BUF_X) * sizeof(float));
    sum_slice(&s, (uint64_t)desc->n_batch * ld_of(desc, BUF_ATT) * sizeof(float));
    sum_slice(&s, scratch_bytes(d, desc));
    if (s.fits) sum_slice(&s, partial_bytes(d, desc));
    if (c.n_rows) sum_slice(&s, vk_choose_scratch(d, &c));
    for (uint32_t i = desc->op_first; i < desc->op_last; i++) sum_op(&s, d, desc, &desc->prog->ops[i]);
    *bytes = s.total;
    *room  = s.total + vk_blocks_waste(d, s.total, s.largest) + VK_BLOCK_HOST;   /* in whose block `now` is */
    return s.fits;
}

/* ---- Loading ---- */

static const vk_weight *tensor_of(const vk_machine *m, const weight *w) {
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensors[i].key == (const void *)w->data) return &m->tensors[i].w;
    return NULL;
}

static vk_slice vector_of(const vk_machine *m, const float *key) {
    vk_slice none;
    memset(&none, 0, sizeof none);
    for (uint32_t i = 0; key && i < m->n_vectors; i++)
        if (m->vectors[i].key == key) return m->vectors[i].at;
    return none;
}

static nova_result load_vector(vk_machine *m, const float *v, uint32_t n, nova_error *error) {
    if (!v || vector_of(m, v).size) return NOVA_OK;
    vk_vector *out = &m->vectors[m->n_vectors];
    TRY(vk_take(m->dev, VK_USE_DEVICE, (uint64_t)round_up(n, 4) * sizeof(float), &out->at, error));
    TRY(vk_write(m->dev, &out->at, 0, v, (uint64_t)n * sizeof(float), error));
    out->key = v;
    m->n_vectors++;
    return NOVA_OK;
}

static nova_result load_weight(vk_machine *m, const weight *w, nova_error *error) {
    if (tensor_of(m, w)) return NOVA_OK;
    TRY(vk_weight_load(m->dev, &m->a, w, &m->tensors[m->n_tensors].w, error));
    m->tensors[m->n_tensors++].key = w->data;
    return NOVA_OK;
}

static vk_operands *operands_of(const vk_machine *m, const op *o) {
    return &m->operands[(size_t)(o - m->desc.prog->ops) - m->desc.op_first];
}

static nova_result load_op(vk_machine *m, const op *o, nova_error *error) {
    vk_operands *x = operands_of(m, o);
    uint32_t     n = vector_length(&m->desc, o);
    for (uint32_t k = 0; k < o->n_w; k++) {
        TRY(load_weight(m, o->w[k], error));
        TRY(load_vector(m, o->bias[k], o->w[k]->n_out, error));
        x->w[k]    = tensor_of(m, o->w[k]);
        x->bias[k] = vector_of(m, o->bias[k]);
    }
    TRY(load_vector(m, o->vec, n, error));
    x->vec = vector_of(m, o->vec);
    if (o->kind != OP_NORM) return NOVA_OK;
    TRY(load_vector(m, o->bias[0], n, error));
    x->bias[0] = vector_of(m, o->bias[0]);
    return NOVA_OK;
}

static nova_result load_all(vk_machine *m, nova_error *error) {
    uint32_t first = m->desc.op_first, n = m->desc.op_last - first;
    m->tensors = (vk_tensor *)arena_zalloc(&m->a, (size_t)n * OP_WEIGHTS * sizeof *m->tensors);
    m->vectors = (vk_vector *)arena_zalloc(&m->a, (size_t)n * (OP_WEIGHTS + 2) * sizeof *m->vectors);
    m->operands = (vk_operands *)arena_zalloc(&m->a, (size_t)n * sizeof *m->operands);
    if (!m->tensors || !m->vectors || !m->operands) return fail_memory(error, (size_t)n * 256, "the device's tensors");
    for (uint32_t i = 0; i < n; i++) {
        TRY(load_op(m, &m->desc.prog->ops[first + i], error));
        if (m->desc.progress && !m->dev->desc.measure && !m->desc.progress(m->desc.progress_user, "weights to the GPU", i + 1, n))
            return fail(error, NOVA_CANCELLED, "cancelled");
    }
    return NOVA_OK;
}

static nova_result take_zeroed(vk_machine *m, uint64_t size, vk_slice *out, nova_error *error) {
    TRY(vk_take(m->dev, VK_USE_DEVICE, (size + 3) & ~(uint64_t)3, out, error));
    if (!out->map) return vk_fill(m->dev, out, 0, error);
    memset(out->map, 0, (size_t)out->size);
    return NOVA_OK;
}

static nova_result take_caches(vk_machine *m, nova_error *error) {
    m->caches = (vk_cache *)arena_zalloc(&m->a, m->desc.model->n_layer * sizeof *m->caches);
    if (!m->caches) return fail_memory(error, m->desc.model->n_layer * sizeof *m->caches, "the device's caches");
    for (uint32_t i = m->desc.op_first; i < m->desc.op_last; i++) {
        const op *o = &m->desc.prog->ops[i];
        if (o->kind != OP_STORE) continue;
        uint64_t bytes = cache_bytes_of(&m->desc, o->layer);
        m->caches[o->layer] = cache_of(&m->desc, o->layer);
        TRY(take_zeroed(m, bytes, &m->caches[o->layer].bytes, error));   /* what is saved of it must not be another program's */
    }
    return NOVA_OK;
}

static bool is_readable(const vk_slice *s) { return s->map && s->cached; }

static nova_result take_buffers(vk_machine *m, nova_error *error) {
    const vk_machine_desc *d = &m->desc;
    for (int b = 0; b < BUF_COUNT; b++) {
        m->ld[b] = ld_of(d, b);
        if (is_used(b) && m->ld[b])
            TRY(take_zeroed(m, (uint64_t)columns_in(d, b) * m->ld[b] * sizeof(float), &m->buf[b], error));
    }
    TRY(take_zeroed(m, (uint64_t)d->n_batch * m->ld[BUF_X] * sizeof(float), &m->kept_x, error));
    TRY(take_zeroed(m, (uint64_t)d->n_batch * m->ld[BUF_ATT] * sizeof(float), &m->kept_att, error));
    TRY(vk_take(m->dev, VK_USE_UPLOAD, now_words(d) * 4, &m->now.bytes, error));
    if (!is_readable(&m->buf[BUF_X]) || !is_readable(&m->kept_x)) TRY(vk_take(m->dev, VK_USE_READBACK, m->buf[BUF_X].size, &m->x_in, error));
    if (m->buf[BUF_LOGITS].size && !is_readable(&m->buf[BUF_LOGITS]))
        TRY(vk_take(m->dev, VK_USE_READBACK, m->buf[BUF_LOGITS].size, &m->logits_out, error));
    for (int b = 0; b < BUF_COUNT; b++)
        if (has_twin(m->dev, b) && m->ld[b]) TRY(take_zeroed(m, vk_quantised_bytes(m->ld[b], d->n_batch), &m->twin[b], error));
    uint64_t scratch = scratch_bytes(m->dev, d);
    if (scratch) TRY(take_zeroed(m, scratch, &m->scratch, error));
    return take_caches(m, error);
}

/* Tables begin at multiples of 4 words. */
static void place_now(vk_machine *m) {
    uint32_t n = m->desc.n_batch, at = 0;
    m->now.col       = HEADER_WORDS;
    m->now.run       = m->now.col + 4 * n;
    at = m->now.run + RUN_WORDS * m->desc.n_seqs;
    for (uint32_t k = 0; k < ROPE_KINDS; k++) {
        m->turns[k]           = m->now;   /* the same buffer, with the angles of one kind */
        m->turns[k].col       = m->now.col, m->turns[k].run = m->now.run;
        m->turns[k].turn      = at;
        m->turns[k].sink_turn = round_up(at + turn_floats(&m->desc, k) * n, 4);
        at = round_up(m->turns[k].sink_turn + turn_floats(&m->desc, k) * m->desc.n_seqs, 4);
    }
    m->at_out        = at;
    m->at_table      = round_up(m->at_out + n, 4);
}

/* ---- What changes per pass ---- */

/* Positions count from the first page behind the sinks' that is held: only distances matter to attention, and a text may go on
 * for more tokens than 32 bits count. */
static int64_t position_base(const kv_seq *s) { return ((int64_t)s->window_page - s->n_sink_pages) * KV_PAGE; }

static void write_run(const vk_machine *m, uint32_t *w, const pass_run *run, uint32_t r) {
    const kv_seq *s  = run->seq;
    uint32_t     *at = w + m->now.run + RUN_WORDS * r, table = m->at_table + m->desc.max_pages * r;
    bool          slid = s->n_dropped != 0;
    at[0]  = run->first_col;
    at[1]  = run->n_col;
    at[2]  = table;
    at[3]  = slid;
    at[4]  = slid ? s->n_sinks : 0;
    at[5]  = s->n_sink_pages;
    at[6]  = s->n_sink_pages;
    at[7]  = (uint32_t)(kv_window_start(s) - position_base(s));
    memcpy(w + table, s->table, s->n_pages * sizeof *w);
    for (uint32_t k = 0; slid && k < ROPE_KINDS; k++)
        rope_fill(&m->desc.prog->ropes[k], -s->n_dropped, 1.0, (float *)(void *)(w + m->turns[k].sink_turn + turn_floats(&m->desc, k) * r));
    for (uint32_t i = 0; i < run->n_out; i++) w[m->at_out + run->first_out + i] = run->first_col + run->n_col - run->n_out + i;
}

static void write_now(vk_machine *m, const pass *p) {
    uint32_t *w = (uint32_t *)(void *)m->now.bytes.map;
    w[0] = p->n_col, w[1] = p->n_run, w[2] = p->n_out;
    m->seen_now = 0;
    for (uint32_t r = 0; r < p->n_run; r++) {
        const pass_run *run = &p->runs[r];
        int64_t         base = position_base(run->seq), start = kv_window_start(run->seq);
        write_run(m, w, run, r);
        for (uint32_t i = 0; i < run->n_col; i++) {
            uint32_t  col = run->first_col + i, *at = w + m->now.col + 4 * col;
            int64_t   position = run->seq->n_tokens + i;
            at[0] = (uint32_t)p->ids[col];
            at[1] = r;
            at[2] = (uint32_t)(position - base);
            m->seen_now += (double)(position - start + 1);
            for (uint32_t k = 0; k < ROPE_KINDS; k++)
                rope_fill(&m->desc.prog->ropes[k], position, m->desc.prog->ropes[k].magnitude,
                          (float *)(void *)(w + m->turns[k].turn + turn_floats(&m->desc, k) * col));
        }
    }
}

/* ---- Operations to dispatches ---- */

/* A pass as the list is made for it. */
typedef struct pass_shape {
    uint32_t n_col, n_out;
    bool     kept;          /* behind OP_GATHER the columns lie in kept_x and kept_att */
    uint32_t head_first;    /* gathered column that the head's window begins with */
} pass_shape;

static vk_slice part_of(vk_slice s, uint64_t offset, uint64_t size) {
    s.offset += offset;
    s.size = size;
    if (s.map) s.map += offset;
    return s;
}

/* Where an operation finds a buffer. */
static vk_slice buffer_at(const vk_machine *m, const op *o, const pass_shape *s, buffer_id b) {
    vk_slice at = m->buf[b];
    if (s->kept && o->gathered && b == BUF_X) at = m->kept_x;
    if (s->kept && o->gathered && b == BUF_ATT) at = m->kept_att;
    uint64_t skip = b == BUF_X ? (uint64_t)s->head_first * m->ld[b] * sizeof(float) : 0;
    return part_of(at, skip, at.size - skip);
}

static uint32_t columns_for(const op *o, const pass_shape *s) { return o->gathered ? s->n_out : s->n_col; }

typedef void (*vk_op_fn)(vk_machine *m, vk_list *l, const op *o, const pass_shape *s);

static void list_embed(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    vk_embed_add(m->dev, l, operands_of(m, o)->w[0], m->now.bytes, m->now.col, m->buf[BUF_X], m->ld[BUF_X], s->n_col, o->scale, true);
}

static const struct { uint32_t ability; vk_path path; } forced_paths[] = {
    {NOVA_GPU_MATRIX_F16, VK_PATH_MATRIX_F16}, {NOVA_GPU_MATRIX_S8, VK_PATH_MATRIX_S8}, {NOVA_GPU_DOT, VK_PATH_DOT},
    {NOVA_GPU_F16, VK_PATH_F16}, {NOVA_GPU_SUBGROUP, VK_PATH_F32},
};

/* 1 + the path of an ability; 0: none is forced. */
static uint32_t forced_path(uint32_t ability) {
    for (size_t i = 0; i < COUNT_OF(forced_paths); i++)
        if (ability & forced_paths[i].ability) return 1 + (uint32_t)forced_paths[i].path;
    return 0;
}

/* Multiplications of a matmul: a gated one does both of its weights at once. */
static uint32_t n_products(const op *o) { return o->epilogue == EPILOGUE_GLU ? 1 : o->n_w; }

/* The multiplication of an operation's weight k (and k + 1, for a gated one), without what depends on the path. */
static vk_matmul matmul_of(const vk_machine *m, const op *o, const pass_shape *s, uint32_t k) {
    vk_matmul x;
    uint32_t  n_w = o->epilogue == EPILOGUE_GLU ? 2 : 1;
    memset(&x, 0, sizeof x);
    for (uint32_t i = 0; i < n_w; i++) {
        x.w[i]    = operands_of(m, o)->w[k + i];
        x.bias[i] = operands_of(m, o)->bias[k + i];
    }
    x.x         = buffer_at(m, o, s, o->src);
    x.y         = buffer_at(m, o, s, o->dst[k]);
    x.ld_x      = m->ld[o->src];
    x.ld_y      = m->ld[o->dst[k]];
    x.n_col     = columns_for(o, s);
    x.epilogue  = o->epilogue;
    x.act       = o->act;
    x.path      = forced_path(m->desc.force);
    if (!m->desc.force || x.path == 1 + VK_PATH_DOT || x.path == 1 + VK_PATH_MATRIX_S8) x.xq = m->twin[o->src];
    x.xq_scales = vk_quantised_scales(m->ld[o->src], m->desc.n_batch);
    x.scratch   = m->scratch;
    return x;
}

/* Does a multiplication read its input quantised? */
static bool reads_twin(const vk_machine *m, const vk_matmul *x) {
    if (!x->xq.size) return false;
    if (x->n_col <= VK_MATVEC_MAX) return vk_matvec_choose(m->dev, x).kernel == KERNEL_MATVEC_DOT_SG;
    vk_path p = vk_matmul_choose(m->dev, x);
    return p == VK_PATH_DOT || p == VK_PATH_MATRIX_S8;
}

static bool any_reads_twin(const vk_machine *m, const op *o, const pass_shape *s) {
    if (o->kind != OP_MATMUL) return false;
    for (uint32_t k = 0; k < n_products(o); k++) {
        vk_matmul x = matmul_of(m, o, s, k);
        if (reads_twin(m, &x)) return true;
    }
    return false;
}

/* Does anything that reads a norm's result read it quantised? */
static bool wants_twin(const vk_machine *m, const op *norm, const pass_shape *s) {
    const op *end = m->desc.prog->ops + m->desc.op_last;
    if (norm->dst[0] != BUF_NORMED) return false;
    for (const op *o = norm + 1; o < end && !(o->kind == OP_NORM && o->dst[0] == BUF_NORMED); o++)
        if (o->src == BUF_NORMED && any_reads_twin(m, o, s)) return true;
    return false;
}

static void list_norm(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    vk_norm n;
    memset(&n, 0, sizeof n);
    n.kind    = o->norm;
    n.x       = buffer_at(m, o, s, o->src);
    n.y       = buffer_at(m, o, s, o->dst[0]);
    n.w       = operands_of(m, o)->vec;
    n.b       = operands_of(m, o)->bias[0];
    n.n       = o->n;
    n.ld_x    = o->n_groups > 1 ? o->n : m->ld[o->src];
    n.ld_y    = o->n_groups > 1 ? o->n : m->ld[o->dst[0]];
    n.n_col   = columns_for(o, s) * o->n_groups;
    n.eps     = m->desc.model->norm_eps;
    n.barrier = true;
    if (wants_twin(m, o, s)) {
        n.yq        = m->twin[o->dst[0]];
        n.yq_scales = vk_quantised_scales(m->ld[o->dst[0]], m->desc.n_batch);
    }
    vk_norm_add(m->dev, l, &n);
}

static void list_matmul(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    bool     quantised = o->src == BUF_NORMED;   /* by the norm in front, where it is wanted */
    uint32_t path      = VK_PATH_COUNT;          /* that filled the scratch */
    for (uint32_t k = 0; k < n_products(o); k++) {
        vk_matmul x = matmul_of(m, o, s, k);
        if (!reads_twin(m, &x)) {
            x.xq.size = 0;
        } else if (!quantised) {
            vk_quantise_add(m->dev, l, x.x, x.xq, x.xq_scales, x.w[0]->n_in, x.ld_x, x.n_col, true);
            quantised = x.barrier = true;
        }
        x.barrier = x.barrier || k == 0;
        if (x.n_col <= VK_MATVEC_MAX) {
            vk_matvec_add(m->dev, l, &x);
            continue;
        }
        vk_path taken = vk_matmul_choose(m->dev, &x);
        x.packed = (uint32_t)taken == path;
        path     = (uint32_t)taken;
        vk_matmul_add(m->dev, l, &x);
    }
    if (o->scale == 1.0f && o->cap == 0) return;
    vk_scale_add(m->dev, l, buffer_at(m, o, s, o->dst[0]), m->ld[o->dst[0]], o->w[0]->n_out, columns_for(o, s), o->scale, o->cap, true);
}

static const vk_now *now_of(const vk_machine *m, uint32_t layer) {
    uint32_t rope = m->desc.model->layers[layer].rope;
    return &m->turns[rope == ROPE_NOT ? (uint32_t)ROPE_GLOBAL : rope];
}

static void list_store(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    vk_store x;
    memset(&x, 0, sizeof x);
    x.now     = now_of(m, o->layer);
    x.cache   = &m->caches[o->layer];
    x.q       = m->buf[BUF_Q];
    x.k       = m->buf[BUF_K];
    x.v       = m->buf[BUF_V];
    x.ld_q    = m->ld[BUF_Q];
    x.ld_k    = m->ld[BUF_K];
    x.ld_v    = m->ld[BUF_V];
    x.n_col   = s->n_col;
    x.n_head  = m->desc.model->layers[o->layer].n_head;
    x.n_rot   = rotated(&m->desc, o->layer);
    x.neox    = is_neox_arch(&m->desc);
    x.barrier = true;
    vk_store_add(m->dev, l, &x);
}

static vk_attend attend_of(const vk_machine *m, uint32_t layer, uint32_t n_col) {
    vk_attend x = attend_shape_of(&m->desc, layer, &m->caches[layer]);
    x.now     = now_of(m, layer);
    x.q       = m->buf[BUF_Q];
    x.out     = m->buf[BUF_ATT];
    x.partial = m->partial;
    x.n_col   = n_col;
    x.n_run   = (uint32_t)size_min(n_col, m->desc.n_seqs);
    x.path    = forced_attend(&m->desc, n_col);
    return x;
}

static void list_attend(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    vk_attend x = attend_of(m, o->layer, s->n_col);
    x.sinks = operands_of(m, o)->vec;
    vk_attend_add(m->dev, l, &x);
}

static void list_gather(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    const buffer_id ids[2]  = {BUF_X, BUF_ATT};
    const vk_slice  kept[2] = {m->kept_x, m->kept_att};
    (void)o;
    for (int i = 0; s->kept && i < 2; i++)
        vk_gather_add(m->dev, l, m->buf[ids[i]], m->ld[ids[i]], m->now.bytes, m->at_out, false, kept[i], m->ld[ids[i]],
                      m->desc.prog->width[ids[i]], s->n_out, i == 0);
}

static void list_add(vk_machine *m, vk_list *l, const op *o, const pass_shape *s) {
    vk_add_add(m->dev, l, buffer_at(m, o, s, o->dst[0]), m->ld[o->dst[0]], buffer_at(m, o, s, o->src), m->ld[o->src],
               m->desc.model->n_embd, columns_for(o, s), o->scale, true);
}

/* What there is a function for is what vk_machine_can says. */
static const vk_op_fn vk_op_functions[OP_KIND_COUNT] = {list_embed, list_norm, list_matmul, list_store, list_attend, list_gather, list_add};

static const char *vk_machine_cannot(const vk_machine_desc *d, const op *o) {
    if (o->kind >= OP_KIND_COUNT || !vk_op_functions[o->kind]) return "experts and latent attention";
    if (o->gated) return "gated shared experts";
    if (o->kind == OP_EMBED && o->n_w > 1) return "learned positions";
    if (o->act == ACT_SWIGLU_CLAMPED) return "the clamped SwiGLU";
    if (o->kind == OP_NORM && o->n_groups > 1 && (o->n % 4 || o->n_vec != o->n || o->n * o->n_groups % 64 || o->n * o->n_groups != d->prog->width[o->src]))
        return "norms of such heads";
    return NULL;
}

/* Multiply-adds of an operation: what its time is estimated by. */
static double op_cost(const vk_machine *m, const op *o, const pass_shape *s) {
    double cost = 1e4, columns = columns_for(o, s);
    if (o->kind == OP_MATMUL)
        for (uint32_t k = 0; k < o->n_w; k++) cost += (double)o->w[k]->n_in * o->w[k]->n_out * columns;
    if (o->kind == OP_ATTEND) {
        const model_layer *l = &m->desc.model->layers[o->layer];
        cost += 2.0 * l->n_head * m->desc.model->head_dim_k * m->seen_now;
    }
    return cost;
}

/* The operations first..last as dispatches, behind what the list holds. */
static void list_ops(vk_machine *m, vk_list *l, uint32_t first, uint32_t last, const pass_shape *s) {
    for (uint32_t i = first; i < last; i++) {
        const op *o = &m->desc.prog->ops[i];
        uint32_t  before = l->n;
        if (!is_mine(&m->desc, i)) continue;
        if (o->gathered && s->n_out == 0) break;
        if (o->kind == OP_ATTEND && o->layer + 1 == m->desc.model->n_layer && s->n_out == 0) break;
        vk_op_functions[o->kind](m, l, o, s);
        double cost = op_cost(m, o, s);
        for (uint32_t k = before; k < l->n; k++) l->at[k].cost = cost / (l->n - before);
    }
}

/* What crosses where the host does not see the device's buffer: the first n columns, between the buffer and the place that the
 * host sees (size 0: it sees the buffer). */
static void list_copy(const vk_machine *m, vk_list *l, buffer_id b, vk_slice from, vk_slice to, uint32_t n) {
    uint64_t size = (uint64_t)n * m->ld[b] * sizeof(float);
    if (!from.size || !to.size || !size) return;
    vk_dispatch d = vk_begin(KERNEL_COUNT, 1);
    vk_bind(&d, part_of(from, 0, size));
    vk_bind(&d, part_of(to, 0, size));
    vk_list_add(l, &d);
}

static void list_x_in(const vk_machine *m, vk_list *l, uint32_t n) { list_copy(m, l, BUF_X, m->x_in, m->buf[BUF_X], n); }
static void list_x_out(const vk_machine *m, vk_list *l, vk_slice x, uint32_t n) { list_copy(m, l, BUF_X, x, m->x_in, n); }
static void list_logits_out(const vk_machine *m, vk_list *l, uint32_t n) { list_copy(m, l, BUF_LOGITS, m->buf[BUF_LOGITS], m->logits_out, n); }

/* ---- Submitting ---- */

static nova_result submit(vk_machine *m, VkCommandBuffer commands, uint32_t n_dispatch, uint32_t n_barriers, nova_error *error) {
    TRY(vk_submit_fence(m->dev, commands, m->fence, &m->busy, error));
    m->n_submits++;
    m->n_dispatches += n_dispatch;
    m->n_barriers += n_barriers;
    uint64_t    start  = clock_ns();
    nova_result result = vk_fence_wait(m->dev, m->fence, &m->busy, error);
    uint64_t    waited = clock_ns() - start;
    m->wait_ns += waited;
    if (waited > m->longest_ns) m->longest_ns = waited;
    return result;
}

static nova_result record(vk_machine *m, VkCommandBuffer commands, bool once, const vk_dispatch *list, uint32_t n,
                          const VkDescriptorSet *sets, nova_error *error) {
    TRY(commands_start(m->dev, commands, once, error));
    vk_record(m->dev, commands, list, n, sets);
    return commands_end(m->dev, commands, error);
}

/* One in front of every dispatch that asks for it but the first, and one behind the last. */
static uint32_t count_barriers(const vk_dispatch *list, uint32_t n) {
    uint32_t barriers = 1;
    for (uint32_t i = 1; i < n; i++) barriers += list[i].barrier;
    return barriers;
}

static void once_sets_close(vk_machine *m) {
    if (m->once_sets_pool) m->dev->api.DestroyDescriptorPool(m->dev->device, m->once_sets_pool, NULL);
    mem_free(&m->h, m->once_sets, m->n_once_sets * sizeof *m->once_sets);
    m->once_sets_pool = VK_NULL_HANDLE, m->once_sets = NULL, m->n_once_sets = 0;
}

/* At least n descriptor sets, which what is recorded for once writes anew. */
static nova_result once_sets_reserve(vk_machine *m, uint32_t n, nova_error *error) {
    if (n <= m->n_once_sets) return NOVA_OK;
    once_sets_close(m);
    m->once_sets = (VkDescriptorSet *)mem_zalloc(&m->h, n * sizeof *m->once_sets);
    if (!m->once_sets) return fail_memory(error, n * sizeof *m->once_sets, "descriptors");
    m->n_once_sets = n;
    nova_result result = vk_sets_open(m->dev, n, &m->once_sets_pool, m->once_sets, error);
    if (result != NOVA_OK) once_sets_close(m);
    return result;
}

/* Runs a part of a list, recorded for this once. */
static nova_result run_once(vk_machine *m, const vk_dispatch *list, uint32_t n, nova_error *error) {
    vk_device *d = m->dev;
    TRY(vk_fence_wait(d, m->fence, &m->busy, error));
    TRY(once_sets_reserve(m, n, error));
    VK_TRY(d->api.ResetCommandPool(d->device, m->once_pool, 0), "a command pool");
    TRY(record(m, m->once, true, list, n, m->once_sets, error));
    return submit(m, m->once, n, count_barriers(list, n), error);
}

/* Dispatches from `first` on that are expected to last SUBMIT_NS, one at least. */
static uint32_t submit_length(const vk_machine *m, const vk_list *l, uint32_t first, double *cost) {
    uint32_t n = 0;
    *cost = 0;
    while (first + n < l->n && (n == 0 || *cost + l->at[first + n].cost <= SUBMIT_NS * m->cost_per_ns)) *cost += l->at[first + n++].cost;
    return n;
}

/* Learns the device's pace from a submit. */
static void learn_pace(vk_machine *m, double cost, double ns) {
    double pace = cost / (ns > 1 ? ns : 1);
    if (pace > m->cost_per_ns) m->cost_per_ns = pace < 4 * m->cost_per_ns ? pace : 4 * m->cost_per_ns;   /* careful upwards */
    else m->cost_per_ns = pace > 0.01 ? pace : 0.01;
}

static nova_result run_in_pieces(vk_machine *m, vk_list *l, nova_error *error) {
    if (l->failed) return fail_memory(error, l->capacity * sizeof *l->at, "the list of dispatches");
    TRY(vk_compile(m->dev, l->at, l->n, error));
    for (uint32_t first = 0; first < l->n;) {
        double   cost;
        uint32_t n = submit_length(m, l, first, &cost);
        if (m->cancelled && m->cancelled(m->cancelled_user)) return fail(error, NOVA_CANCELLED, "cancelled");
        uint64_t start = clock_ns();
        TRY(run_once(m, l->at + first, n, error));
        if (cost > 1e6) learn_pace(m, cost, (double)(clock_ns() - start));
        first += n;
    }
    return NOVA_OK;
}

static uint32_t vk_machine_columns(const vk_machine *m) {
    double widest = 1;
    pass_shape one;
    memset(&one, 0, sizeof one);
    one.n_col = 1;
    for (uint32_t i = m->desc.op_first; i < m->desc.op_last && i < m->desc.prog->n_body; i++)
        if (m->desc.prog->ops[i].kind == OP_MATMUL && !m->desc.prog->ops[i].gathered) {
            double cost = op_cost(m, &m->desc.prog->ops[i], &one);
            if (cost > widest) widest = cost;
        }
    double columns = SUBMIT_NS * m->cost_per_ns / widest;
    uint32_t most = (uint32_t)size_min(m->desc.n_batch, VK_MOST_COLUMNS);
    return columns < 1 ? 1 : columns >= most ? most : (uint32_t)columns;
}

/* ---- Replaying ---- */

/* A pass with one token of each session: the whole of it is one recorded command buffer. */
static bool is_replayable(const vk_machine *m, const pass *p) {
    return p->n_col <= VK_REPLAYED && p->n_col == p->n_run && p->n_out == p->n_col && p->n_col <= m->desc.n_logits;
}

static const uint32_t choices_of_kind[VK_CHOICE_KINDS] = {0, 1, 64, VK_CHOOSE_MOST};

static uint32_t choice_kind_for(const vk_machine *m, uint32_t k) {
    uint32_t kind = 0;
    if (k == 0 || !m->choices.size) return 0;
    while (kind < VK_CHOICE_KINDS && choices_of_kind[kind] < k) kind++;
    return kind < VK_CHOICE_KINDS ? kind : 0;
}

static void list_choose(vk_machine *m, vk_list *l, uint32_t n_col, uint32_t kind) {
    vk_choose c = choose_of(&m->desc);
    c.logits  = m->buf[BUF_LOGITS];
    c.parts   = m->choose_parts;
    c.out     = m->choices;
    c.n_rows  = n_col;
    c.k       = choices_of_kind[kind];
    c.barrier = true;
    vk_choose_add(m->dev, l, &c);
}

static const vk_choices *vk_machine_choices(const vk_machine *m, uint32_t row) {
    if (!m->choice_kind) return NULL;
    return (const vk_choices *)(const void *)(m->choices.map + row * vk_choose_row_bytes(choices_of_kind[m->choice_kind]));
}

static void list_whole(vk_machine *m, vk_list *l, uint32_t n_col, uint32_t kind) {
    pass_shape s;
    memset(&s, 0, sizeof s);
    s.n_col = s.n_out = n_col;
    if (m->desc.op_first > 0) list_x_in(m, l, n_col);
    list_ops(m, l, m->desc.op_first, m->desc.op_last, &s);
    if (kind) list_choose(m, l, n_col, kind);
    else if (has_head(&m->desc)) list_logits_out(m, l, n_col);
    else list_x_out(m, l, m->buf[BUF_X], n_col);
}

static nova_result record_replayed(vk_machine *m, uint32_t n_col, uint32_t kind, nova_error *error) {
    vk_recorded *r = &m->replayed[n_col - 1][kind];
    vk_list      l;
    vk_list_init(&l, &m->h);
    list_whole(m, &l, n_col, kind);
    VkDescriptorSet *sets   = (VkDescriptorSet *)mem_zalloc(&m->h, l.n * sizeof *sets);
    nova_result      result = l.failed || !sets ? fail_memory(error, l.n * sizeof(vk_dispatch), "a recorded pass") : NOVA_OK;
    if (result == NOVA_OK) result = vk_compile(m->dev, l.at, l.n, error);
    if (result == NOVA_OK) result = vk_sets_open(m->dev, l.n, &r->pool, sets, error);
    VkCommandBuffer commands = VK_NULL_HANDLE;
    if (result == NOVA_OK) result = commands_take(m->dev, m->replay_pool, &commands, error);
    if (result == NOVA_OK) result = record(m, commands, false, l.at, l.n, sets, error);
    if (result == NOVA_OK) r->commands = commands, r->n_dispatch = l.n, r->n_barriers = count_barriers(l.at, l.n);
    else if (r->pool) {
        m->dev->api.DestroyDescriptorPool(m->dev->device, r->pool, NULL);
        r->pool = VK_NULL_HANDLE;
    }
    mem_free(&m->h, sets, l.n * sizeof *sets);
    vk_list_free(&l);
    return result;
}

static nova_result replay(vk_machine *m, uint32_t n_col, uint32_t k, nova_error *error) {
    uint32_t     kind = has_head(&m->desc) ? choice_kind_for(m, k) : 0;
    vk_recorded *r    = &m->replayed[n_col - 1][kind];
    if (!r->commands) TRY(record_replayed(m, n_col, kind, error));
    TRY(submit(m, r->commands, r->n_dispatch, r->n_barriers, error));
    m->choice_kind = kind;
    m->head_done   = has_head(&m->desc);
    return NOVA_OK;
}

/* ---- The interface ---- */

static void write_x(vk_machine *m, uint32_t n_col, const float *x, size_t ld_x) {
    uint8_t *to = m->x_in.size ? m->x_in.map : m->buf[BUF_X].map;
    size_t   width = m->desc.prog->width[BUF_X] * sizeof(float);
    for (uint32_t c = 0; c < n_col; c++) memcpy(to + (size_t)c * m->ld[BUF_X] * sizeof(float), x + c * ld_x, width);
}

/* Where the residual stream lies behind this machine's operations: that of the gathered columns has a place of its own. */
static const vk_slice *last_x(const vk_machine *m) {
    bool gathers = m->desc.op_first < m->desc.prog->n_body && m->desc.op_last >= m->desc.prog->n_body;
    return gathers && m->kept_now ? &m->kept_x : &m->buf[BUF_X];
}

static nova_result run_prompt(vk_machine *m, const pass *p, bool x_given, nova_error *error) {
    pass_shape s;
    memset(&s, 0, sizeof s);
    s.n_col = p->n_col, s.n_out = p->n_out, s.kept = m->kept_now;
    m->list.n = 0, m->list.failed = false;
    if (x_given) list_x_in(m, &m->list, p->n_col);
    list_ops(m, &m->list, m->desc.op_first, (uint32_t)size_min(m->desc.op_last, m->desc.prog->n_body), &s);
    uint32_t left = last_x(m) == &m->kept_x ? p->n_out : p->n_col;
    if (!has_head(&m->desc)) list_x_out(m, &m->list, *last_x(m), left);
    return run_in_pieces(m, &m->list, error);
}

static nova_result vk_machine_body(vk_machine *m, const pass *p, uint32_t k, const float *x, size_t ld_x, nova_error *error) {
    TRY(vk_fence_wait(m->dev, m->fence, &m->busy, error));   /* it reads what is written now */
    write_now(m, p);
    if (x) write_x(m, m->desc.op_first >= m->desc.prog->n_body ? p->n_out : p->n_col, x, ld_x);
    m->head_done   = false;
    m->choice_kind = 0;
    m->kept_now  = p->n_out != p->n_col;
    if (is_replayable(m, p)) return replay(m, p->n_col, k, error);
    if (m->desc.op_first < m->desc.prog->n_body) return run_prompt(m, p, x != NULL, error);
    return NOVA_OK;
}

static nova_result machine_head_now(vk_machine *m, uint32_t first, uint32_t n, nova_error *error) {
    pass_shape s;
    memset(&s, 0, sizeof s);
    /* Where the head alone is this machine's, X holds the gathered columns already. */
    s.n_out = n, s.head_first = first, s.kept = m->kept_now && m->desc.op_first < m->desc.prog->n_body;
    m->list.n = 0, m->list.failed = false;
    if (m->desc.op_first >= m->desc.prog->n_body) list_x_in(m, &m->list, m->desc.n_batch);
    list_ops(m, &m->list, m->desc.prog->n_body, m->desc.op_last, &s);
    list_logits_out(m, &m->list, n);
    return run_in_pieces(m, &m->list, error);
}

static nova_result vk_machine_head(vk_machine *m, uint32_t first, uint32_t n, const float **logits, size_t *ld, nova_error *error) {
    if (!m->head_done) TRY(machine_head_now(m, first, n, error));
    const float *at = (const float *)(const void *)(m->logits_out.size ? m->logits_out.map : m->buf[BUF_LOGITS].map);
    *ld     = m->ld[BUF_LOGITS];
    *logits = at + (m->head_done ? (size_t)first * *ld : 0);
    return NOVA_OK;
}

static nova_result vk_machine_x(vk_machine *m, uint32_t n_col, float *x, size_t ld_x, nova_error *error) {
    const uint8_t *from = m->x_in.size ? m->x_in.map : last_x(m)->map;
    size_t         width = m->desc.prog->width[BUF_X] * sizeof(float);
    (void)error;
    for (uint32_t c = 0; c < n_col; c++) memcpy(x + c * ld_x, from + (size_t)c * m->ld[BUF_X] * sizeof(float), width);
    return NOVA_OK;
}

/* ---- Cache pages ---- */

static nova_result vk_machine_copy_page(vk_machine *m, uint32_t from, uint32_t to, nova_error *error) {
    VkCommandBuffer commands = VK_NULL_HANDLE;
    TRY(vk_fence_wait(m->dev, m->fence, &m->busy, error));
    TRY(commands_begin(m->dev, &commands, error));
    for (uint32_t il = 0; il < m->desc.model->n_layer; il++) {
        const vk_cache *c = &m->caches[il];
        if (!c->bytes.size) continue;
        uint64_t bytes = vk_cache_page_bytes(c);
        record_piece(m->dev, commands, &c->bytes, from * bytes, &c->bytes, to * bytes, bytes);
    }
    return commands_run(m->dev, commands, error);
}

/* Between a head's K (or V) as the device and as the CPU lays it out: they differ where halves are paired in words. K: [dimensions / 2] words
 * of KV_PAGE tokens, a half of each of two dimensions; V: a token's halves, up to a whole word. */
static void turn_k(uint8_t *device, uint8_t *cpu, uint32_t head_dim, bool f32, bool to_cpu) {
    size_t each = f32 ? 4 : 2;
    for (uint32_t d = 0; d < head_dim; d++)
        for (uint32_t t = 0; t < KV_PAGE; t++) {
            uint8_t *x = device + (f32 ? ((size_t)d * KV_PAGE + t) * 4 : ((size_t)(d / 2) * KV_PAGE + t) * 4 + d % 2 * 2);
            uint8_t *y = cpu + ((size_t)d * KV_PAGE + t) * each;
            memcpy(to_cpu ? y : x, to_cpu ? x : y, each);
        }
}

static void turn_v(uint8_t *device, uint8_t *cpu, uint32_t head_dim, bool f32, bool to_cpu) {
    size_t row = (size_t)head_dim * (f32 ? 4 : 2), padded = (row + 3) & ~(size_t)3;
    for (uint32_t t = 0; t < KV_PAGE; t++)
        memcpy(to_cpu ? cpu + t * row : device + t * padded, to_cpu ? device + t * padded : cpu + t * row, row);
}

static void turn_page(const vk_machine *m, uint32_t layer, uint8_t *device, uint8_t *cpu, bool to_cpu) {
    const vk_cache *c    = &m->caches[layer];
    const kv_layer *l    = &m->desc.kv->layers[layer];
    uint64_t        head = vk_cache_page_bytes(c) / c->n_head_kv, k = (uint64_t)KV_PAGE * 4 * k_row_words(c);
    for (uint32_t h = 0; h < c->n_head_kv; h++) {
        turn_k(device + h * head, cpu + h * l->k_bytes, c->head_dim_k, c->k_f32, to_cpu);
        turn_v(device + h * head + k, cpu + l->n_head_kv * l->k_bytes + h * l->v_bytes, c->head_dim_v, c->v_f32, to_cpu);
    }
}

static nova_result vk_machine_page_get(vk_machine *m, uint32_t layer, uint32_t page, uint8_t *out, nova_error *error) {
    uint64_t bytes = vk_cache_page_bytes(&m->caches[layer]);
    uint8_t *temp  = (uint8_t *)mem_alloc(&m->h, (size_t)bytes);
    if (!temp) return fail_memory(error, (size_t)bytes, "a page of the device's cache");
    nova_result result = vk_fence_wait(m->dev, m->fence, &m->busy, error);
    if (result == NOVA_OK) result = vk_read(m->dev, &m->caches[layer].bytes, page * bytes, temp, bytes, error);
    memset(out, 0, m->desc.kv->layers[layer].page_bytes);
    if (result == NOVA_OK) turn_page(m, layer, temp, out, true);
    mem_free(&m->h, temp, (size_t)bytes);
    return result;
}

static nova_result vk_machine_page_put(vk_machine *m, uint32_t layer, uint32_t page, const uint8_t *in, nova_error *error) {
    uint64_t bytes = vk_cache_page_bytes(&m->caches[layer]);
    uint8_t *temp  = (uint8_t *)mem_zalloc(&m->h, (size_t)bytes);
    if (!temp) return fail_memory(error, (size_t)bytes, "a page of the device's cache");
    nova_result result = vk_fence_wait(m->dev, m->fence, &m->busy, error);
    turn_page(m, layer, temp, (uint8_t *)(uintptr_t)in, false);
    if (result == NOVA_OK) result = vk_write(m->dev, &m->caches[layer].bytes, page * bytes, temp, bytes, error);
    mem_free(&m->h, temp, (size_t)bytes);
    return result;
}

/* ---- Telling of kernels ---- */

/* Dispatches of each pipeline in a list, which is compiled. */
static nova_result count_pipelines(vk_machine *m, vk_list *l, uint32_t **counts, size_t *bytes, nova_error *error) {
    if (l->failed) return fail_memory(error, l->capacity * sizeof *l->at, "the list of dispatches");
    TRY(vk_compile(m->dev, l->at, l->n, error));
    *bytes  = (m->dev->n_pipelines + 1) * sizeof **counts;
    *counts = (uint32_t *)mem_zalloc(&m->h, *bytes);
    if (!*counts) return fail_memory(error, *bytes, "the kernels' counts");
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i].kernel != KERNEL_COUNT) (*counts)[l->at[i].pipeline]++;
    return NOVA_OK;
}

static nova_result tell_kernel(vk_machine *m, uint32_t index, uint32_t n_token, uint32_t n_prompt, nova_kernel_fn fn, void *user,
                               bool *go_on, nova_error *error) {
    const vk_pipeline *p = &m->dev->pipelines[index];
    nova_kernel_info   info;
    char               constants[VK_SPECS * 12];
    size_t             at = 0;
    vk_statistics     *s  = (vk_statistics *)mem_zalloc(&m->h, sizeof *s);
    if (!s) return fail_memory(error, sizeof *s, "a kernel's statistics");
    constants[0] = 0;
    for (uint32_t i = 0; i < p->n_spec; i++) at += (size_t)snprintf(constants + at, sizeof constants - at, "%s%u", i ? "," : "", p->spec[i]);
    nova_result result = vk_statistics_get(m->dev, index, s, error);
    memset(&info, 0, sizeof info);
    info.name           = vk_kernels[p->kernel].name;
    info.specialisation = constants;
    info.n_token        = n_token;
    info.n_prompt       = n_prompt;
    info.subgroup       = p->subgroup;
    info.n_statistics   = s->n;
    info.statistics     = s->name_of;
    info.values         = s->values;
    info.code           = s->code;
    if (result == NOVA_OK) *go_on = fn(user, &info);
    vk_statistics_free(m->dev, s);
    mem_free(&m->h, s, sizeof *s);
    return result;
}

static nova_result vk_machine_kernels(vk_machine *m, nova_kernel_fn fn, void *user, bool *go_on, nova_error *error) {
    vk_list     token, prompt;
    pass_shape  shape;
    uint32_t   *n_token = NULL, *n_prompt = NULL;
    size_t      token_bytes = 0, prompt_bytes = 0;
    vk_list_init(&token, &m->h);
    vk_list_init(&prompt, &m->h);
    memset(&shape, 0, sizeof shape);
    shape.n_col = m->desc.n_batch, shape.n_out = 1, shape.kept = m->desc.n_batch > 1;
    list_whole(m, &token, 1, has_head(&m->desc) ? choice_kind_for(m, 1) : 0);
    list_ops(m, &prompt, m->desc.op_first, m->desc.op_last, &shape);
    nova_result result = count_pipelines(m, &token, &n_token, &token_bytes, error);
    if (result == NOVA_OK) result = count_pipelines(m, &prompt, &n_prompt, &prompt_bytes, error);
    for (uint32_t i = 0; result == NOVA_OK && *go_on && i < m->dev->n_pipelines; i++) {
        uint32_t of_token = (i + 1) * sizeof *n_token < token_bytes ? n_token[i] : 0;
        if (of_token || n_prompt[i]) result = tell_kernel(m, i, of_token, n_prompt[i], fn, user, go_on, error);
    }
    mem_free(&m->h, n_token, token_bytes);
    mem_free(&m->h, n_prompt, prompt_bytes);
    vk_list_free(&token);
    vk_list_free(&prompt);
    return result;
}

/* ---- Opening ---- */

static nova_result take_partial(vk_machine *m, nova_error *error) {
    uint64_t most = partial_bytes(m->dev, &m->desc);
    return most ? vk_take(m->dev, VK_USE_DEVICE, most, &m->partial, error) : NOVA_OK;
}

/* Where the vocabulary is within the shader's limits. */
static nova_result take_choices(vk_machine *m, nova_error *error) {
    vk_choose c = choose_of(&m->desc);
    if (!c.n_rows) return NOVA_OK;
    TRY(vk_take(m->dev, VK_USE_DEVICE, vk_choose_scratch(m->dev, &c), &m->choose_parts, error));
    return vk_take(m->dev, VK_USE_READBACK, c.n_rows * vk_choose_row_bytes(c.k), &m->choices, error);
}

/* What any number of sessions may ask for: no token waits or takes memory for it. */
static nova_result record_all(vk_machine *m, nova_error *error) {
    uint32_t most = (uint32_t)size_min(size_min(VK_REPLAYED, m->desc.n_seqs), m->desc.n_logits);
    for (uint32_t n = 1; n <= most; n++)
        for (uint32_t kind = 0; kind < VK_CHOICE_KINDS; kind++)
            if (kind == 0 || m->choices.size) TRY(record_replayed(m, n, kind, error));
    return NOVA_OK;
}

static nova_result machine_begin(vk_machine *m, nova_error *error) {
    vk_device *d = m->dev;
    uint64_t   bytes, room;
    if (!vk_machine_bytes(d, &m->desc, &bytes, &room))
        return fail(error, NOVA_ERROR_UNSUPPORTED, "a buffer is beyond the device's %llu bytes", (unsigned long long)d->caps.max_range);
    d->expected = bytes;
    TRY(take_buffers(m, error));
    place_now(m);
    TRY(take_partial(m, error));
    TRY(load_all(m, error));
    TRY(take_choices(m, error));
    if (d->desc.measure) return NOVA_OK;
    TRY(create_fence(d, &m->fence, error));
    TRY(create_command_pool(d, 0, &m->replay_pool, error));
    TRY(create_command_pool(d, 0, &m->once_pool, error));
    TRY(commands_take(m->dev, m->once_pool, &m->once, error));
    d->expected = 0;
    return record_all(m, error);
}

static nova_result vk_machine_open(vk_machine **out, const host *h, vk_device *d, const vk_machine_desc *desc, nova_error *error) {
    vk_machine *m = (vk_machine *)mem_zalloc(h, sizeof *m);
    *out = NULL;
    if (!m) return fail_memory(error, sizeof *m, "the GPU's executor");
    m->h    = *h;
    m->dev  = d;
    m->desc = *desc;
    m->cost_per_ns = FIRST_GUESS;
    arena_init(&m->a, &m->h);
    vk_list_init(&m->list, &m->h);
    nova_result result = machine_begin(m, error);
    if (result != NOVA_OK) {
        vk_machine_close(m);
        return result;
    }
    *out = m;
    return NOVA_OK;
}

static void vk_machine_close(vk_machine *m) {
    if (!m) return;
    host       h = m->h;
    vk_device *d = m->dev;
    if (!d->borrowed) d->api.DeviceWaitIdle(d->device);
    vk_fence_wait(d, m->fence, &m->busy, NULL);
    for (uint32_t i = 0; i < VK_REPLAYED * VK_CHOICE_KINDS; i++) {
        vk_recorded *r = &m->replayed[i / VK_CHOICE_KINDS][i % VK_CHOICE_KINDS];
        if (r->pool) d->api.DestroyDescriptorPool(d->device, r->pool, NULL);
    }
    if (m->replay_pool) d->api.DestroyCommandPool(d->device, m->replay_pool, NULL);
    if (m->once_pool) d->api.DestroyCommandPool(d->device, m->once_pool, NULL);
    if (m->fence) d->api.DestroyFence(d->device, m->fence, NULL);
    once_sets_close(m);
    vk_list_free(&m->list);
    arena_free(&m->a);
    mem_free(&h, m, sizeof *m);
}

#endif
