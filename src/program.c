/* Compiles a model into a program: see program.h. */
#include "program.h"

/* ---- Rotary positions ---- */

#define TWO_PI 6.283185307179586

/* YaRN (arXiv 2309.00071, section 3.2): the pair whose wave turns `beta` times within the original context. */
static double yarn_pair(const rope_params *r, double beta) {
    return r->n_rot * log(r->n_ctx_orig / (beta * TWO_PI)) / (2.0 * log((double)r->freq_base));
}

/* Share of a pair's position that is left as it is (1: fast pairs) instead of divided by the factor (0: slow ones). */
static double yarn_ramp(const rope_params *r, uint32_t pair) {
    double low  = fmax(0.0, floor(yarn_pair(r, r->beta_fast)));
    double high = fmin(r->n_rot - 1.0, ceil(yarn_pair(r, r->beta_slow)));
    double at   = ((double)pair - low) / fmax(0.001, high - low);
    return 1.0 - fmin(1.0, fmax(0.0, at));
}

/* YaRN's attention temperature: with a factor s the logits grow by (0.1 ln s + 1)^2, half of it on each of q and k. */
static double yarn_magnitude(double factor, double m) { return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0; }

static const float *rope_divisors(const nova_model *m, uint32_t n_ctx) {
    if (m->rope.scaling == ROPE_SCALING_LONGROPE || m->t[ROLE_ROPE_LONG].vec) {
        role r = n_ctx > m->rope.n_ctx_orig ? ROLE_ROPE_LONG : ROLE_ROPE_SHORT;
        if (m->t[r].vec) return m->t[r].vec;
    }
    return m->t[ROLE_ROPE_FREQS].vec;
}

static nova_result rope_build(rope_table *t, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error) {
    const rope_params *r        = &m->rope;
    const float       *divisors = rope_divisors(m, n_ctx);
    bool               yarn     = r->scaling == ROPE_SCALING_YARN;
    double             ext      = r->ext_factor >= 0.0f ? r->ext_factor : yarn ? 1.0 : 0.0;
    t->n_pairs = r->n_rot / 2;
    t->freq    = (double *)arena_alloc(a, t->n_pairs * sizeof *t->freq);
    if (!t->freq) return fail_memory(error, t->n_pairs * sizeof *t->freq, "rope frequencies");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        double freq = pow(r->freq_base, -2.0 * i / r->n_rot);
        double keep = ext != 0.0 ? yarn_ramp(r, i) * ext : 0.0;
        if (divisors) freq /= divisors[i];
        t->freq[i] = freq * (keep + (1.0 - keep) / r->factor);
    }
    t->magnitude = r->attn_factor;
    if (ext != 0.0) t->magnitude *= yarn_magnitude(r->factor, 1.0);
    if (ext != 0.0 && r->log_multiplier != 0.0f) t->magnitude /= yarn_magnitude(r->factor, r->log_multiplier);
    return NOVA_OK;
}

static void rope_fill(const rope_table *t, int64_t position, double magnitude, float *cos_sin) {
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        double angle = (double)position * t->freq[i];
        cos_sin[2 * i]     = (float)(cos(angle) * magnitude);
        cos_sin[2 * i + 1] = (float)(sin(angle) * magnitude);
    }
}

/* ---- Rows ---- */

static op *emit_op(program *p, op_kind kind, uint32_t layer, buffer_id src, buffer_id dst) {
    op *o = &p->ops[p->n_ops++];
    memset(o, 0, sizeof *o);
    o->kind   = kind;
    o->layer  = layer;
    o->src    = src;
    o->dst[0] = dst;
    return o;
}

static op *emit_norm(program *p, const nova_model *m, uint32_t layer, const model_tensor *t) {
    op *o = emit_op(p, OP_NORM, layer, BUF_X, BUF_NORMED);
    o->norm    = m->kind->norm;
    o->vec     = t->vec;
    o->bias[0] = t->bias;
    return o;
}

static void add_weight(op *o, const model_tensor *t, buffer_id dst) {
    o->w[o->n_w]    = &t->w;
    o->bias[o->n_w] = t->bias;
    o->dst[o->n_w]  = dst;
    o->n_w++;
}

static op *emit_matmul(program *p, uint32_t layer, buffer_id src, buffer_id dst, const model_tensor *t, op_epilogue e) {
    op *o = emit_op(p, OP_MATMUL, layer, src, dst);
    o->epilogue = e;
    add_weight(o, t, dst);
    return o;
}

static void emit_attention(program *p, const nova_model *m, uint32_t il) {
    const model_layer *l = &m->layers[il];
    emit_norm(p, m, il, LAYER_TENSOR(l, ATTN_NORM));
    op *qkv = emit_matmul(p, il, BUF_NORMED, BUF_Q, LAYER_TENSOR(l, ATTN_Q), EPILOGUE_NONE);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_K), BUF_K);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_V), BUF_V);
    emit_op(p, OP_STORE, il, BUF_Q, BUF_Q);
    emit_op(p, OP_ATTEND, il, BUF_Q, BUF_ATT);
}

static void emit_feed_forward(program *p, const nova_model *m, uint32_t il) {
    const model_layer *l    = &m->layers[il];
    const model_tensor *gate = LAYER_TENSOR(l, FFN_GATE);
    emit_norm(p, m, il, LAYER_TENSOR(l, FFN_NORM));
    op *up = emit_matmul(p, il, BUF_NORMED, BUF_FF, gate->w.data ? gate : LAYER_TENSOR(l, FFN_UP), EPILOGUE_ACT);
    up->act = m->kind->act;
    if (gate->w.data) {
        up->epilogue = EPILOGUE_GLU;
        add_weight(up, LAYER_TENSOR(l, FFN_UP), BUF_FF2);
    }
    emit_matmul(p, il, BUF_FF, BUF_X, LAYER_TENSOR(l, FFN_DOWN), EPILOGUE_ADD);
}

#define OPS_PER_LAYER 9
#define OPS_OUTSIDE   4

static void emit_all(program *p, const nova_model *m) {
    op *embed = emit_op(p, OP_EMBED, 0, BUF_X, BUF_X);
    embed->n_w  = 1;
    embed->w[0] = &m->t[ROLE_TOKEN_EMBD].w;
    for (uint32_t il = 0; il < m->n_layer; il++) {
        emit_attention(p, m, il);
        /* Behind the last attention a column no longer serves others: those without logits end here. */
        if (il + 1 == m->n_layer) emit_op(p, OP_GATHER, il, BUF_ATT, BUF_X);
        emit_matmul(p, il, BUF_ATT, BUF_X, LAYER_TENSOR(&m->layers[il], ATTN_OUT), EPILOGUE_ADD);
        emit_feed_forward(p, m, il);
    }
    p->n_body = p->n_ops;
    emit_norm(p, m, m->n_layer - 1, &m->t[ROLE_OUTPUT_NORM]);
    emit_matmul(p, m->n_layer - 1, BUF_NORMED, BUF_LOGITS, &m->t[ROLE_OUTPUT], EPILOGUE_NONE);
    bool gathered = false;
    for (uint32_t i = 0; i < p->n_ops; i++) {
        p->ops[i].gathered = gathered;
        if (p->ops[i].kind == OP_GATHER) gathered = true;
    }
}

/* ---- Buffers ---- */

static void widen(program *p, buffer_id b, uint32_t width) {
    if (width > p->width[b]) p->width[b] = width;
}

static void size_buffers(program *p, const nova_model *m) {
    widen(p, BUF_X, m->n_embd);
    widen(p, BUF_NORMED, m->n_embd);
    widen(p, BUF_T, m->n_embd);
    for (uint32_t il = 0; il < m->n_layer; il++) {
        const model_layer *l = &m->layers[il];
        widen(p, BUF_Q, dim_of(m, l, DIM_Q));
        widen(p, BUF_K, dim_of(m, l, DIM_K));
        widen(p, BUF_V, dim_of(m, l, DIM_V));
        widen(p, BUF_ATT, dim_of(m, l, DIM_ATT));
        widen(p, BUF_FF, l->n_ff);
        if (LAYER_TENSOR(l, FFN_GATE)->w.data) widen(p, BUF_FF2, l->n_ff);
    }
    widen(p, BUF_LOGITS, m->n_vocab);
}

static nova_result program_build(program *p, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error) {
    memset(p, 0, sizeof *p);
    size_t bytes = ((size_t)m->n_layer * OPS_PER_LAYER + OPS_OUTSIDE) * sizeof(op);
    p->ops = (op *)arena_alloc(a, bytes);
    if (!p->ops) return fail_memory(error, bytes, "the program");
    emit_all(p, m);
    size_buffers(p, m);
    return rope_build(&p->rope, a, m, n_ctx, error);
}
