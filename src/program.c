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

static nova_result rope_build(rope_table *t, arena *a, const nova_model *m, bool local, uint32_t n_ctx, nova_error *error) {
    rope_params        params   = m->rope;
    const rope_params *r        = &params;
    const float       *divisors = rope_divisors(m, n_ctx);
    if (local) {
        params.freq_base = params.freq_base_local;
        params.scaling   = ROPE_SCALING_NONE, params.factor = 1.0f, params.ext_factor = 0;
    }
    bool               yarn     = r->scaling == ROPE_SCALING_YARN;
    double             ext      = r->ext_factor >= 0.0f ? r->ext_factor : yarn ? 1.0 : 0.0;
    t->n_pairs = r->n_rot / 2;
    if (t->n_pairs == 0) return NOVA_OK;
    t->freq    = (double *)arena_alloc(a, t->n_pairs * sizeof *t->freq);
    if (!t->freq) return fail_memory(error, t->n_pairs * sizeof *t->freq, "rope frequencies");
    for (uint32_t i = 0; i < t->n_pairs; i++) {
        double freq = pow(r->freq_base, -2.0 * i / r->n_rot);
        double keep = ext != 0.0 ? yarn_ramp(r, i) * ext : 0.0;
        if (divisors) freq /= divisors[i];
        t->freq[i] = freq * (keep + (1.0 - keep) / r->factor);
    }
    t->magnitude = r->attn_factor;
    if (m->n_v) return NOVA_OK;   /* YaRN's temperature is in the scale of attention */
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
    o->scale  = 1.0f;
    return o;
}

/* A norm of rows of n floats, or of as many groups of them as come to `width`. */
static op *emit_norm(program *p, const nova_model *m, uint32_t layer, const model_tensor *t, buffer_id src, buffer_id dst, uint32_t n,
                     uint32_t width) {
    op *o = emit_op(p, OP_NORM, layer, src, dst);
    o->norm     = m->kind->norm;
    o->vec      = t->vec;
    o->bias[0]  = t->bias;
    o->n        = n;
    o->n_groups = width / n;
    o->n_vec    = t->n_vec;
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

static void emit_head_norm(program *p, const nova_model *m, uint32_t il, const model_tensor *t, buffer_id b, uint32_t width) {
    if (!t->vec) return;
    bool across = t->n_vec == width && m->kind->norm == NORM_RMS && width != m->head_dim_k;   /* one norm over all heads */
    emit_norm(p, m, il, t, b, b, across ? width : m->head_dim_k, width);
}

/* What a block gives joins the residual stream: at once, or behind a norm (`post`, NULL: none) and a factor. */
static void emit_output(program *p, const nova_model *m, uint32_t il, buffer_id src, const model_tensor *t, const model_tensor *post) {
    bool normed = post && post->vec;
    if (!normed && m->residual_scale == 1.0f) {
        emit_matmul(p, il, src, BUF_X, t, EPILOGUE_ADD);
        return;
    }
    emit_matmul(p, il, src, BUF_Y, t, EPILOGUE_NONE);
    if (normed) emit_norm(p, m, il, post, BUF_Y, BUF_Y, m->n_embd, m->n_embd);
    emit_op(p, OP_ADD, il, BUF_Y, BUF_X)->scale = m->residual_scale;
}

/* The norm behind attention; where its name stands for the one in front of the FFN, there is none (NULL). */
static const model_tensor *post_norm(const nova_model *m, const model_tensor *t) {
    return m->kind->flags & ARCH_POST_IS_FFN ? NULL : t;
}

static const model_tensor *ffn_norm(const nova_model *m, const model_layer *l) {
    return m->kind->flags & ARCH_POST_IS_FFN ? LAYER_TENSOR(l, ATTN_POST_NORM) : LAYER_TENSOR(l, FFN_NORM);
}

/* Keys and values stay latent: the part of a query that is not turned goes to where the latent rows are, and what it attends comes back. */
static void emit_latent_attention(program *p, const nova_model *m, uint32_t il, buffer_id in) {
    const model_layer *l = &m->layers[il];
    op                *q = emit_matmul(p, il, in, BUF_HEADS, LAYER_TENSOR(l, MLA_Q), EPILOGUE_NONE);
    add_weight(q, LAYER_TENSOR(l, MLA_KV), BUF_LATENT);
    emit_norm(p, m, il, LAYER_TENSOR(l, MLA_NORM), BUF_LATENT, BUF_V, m->head_dim_v, m->head_dim_v);
    add_weight(emit_op(p, OP_LATENT, il, BUF_HEADS, BUF_Q), LAYER_TENSOR(l, MLA_K), BUF_Q);
    emit_op(p, OP_STORE, il, BUF_Q, BUF_Q);
    emit_op(p, OP_ATTEND, il, BUF_Q, BUF_ATT);
    add_weight(emit_op(p, OP_HEADS, il, BUF_ATT, BUF_HEADS), LAYER_TENSOR(l, MLA_V), BUF_HEADS);
}

static void emit_attention(program *p, const nova_model *m, uint32_t il, buffer_id in) {
    const model_layer *l   = &m->layers[il];
    op                *qkv = emit_matmul(p, il, in, BUF_Q, LAYER_TENSOR(l, ATTN_Q), EPILOGUE_NONE);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_K), BUF_K);
    add_weight(qkv, LAYER_TENSOR(l, ATTN_V), BUF_V);
    emit_head_norm(p, m, il, LAYER_TENSOR(l, ATTN_Q_NORM), BUF_Q, dim_of(m, l, DIM_Q));
    emit_head_norm(p, m, il, LAYER_TENSOR(l, ATTN_K_NORM), BUF_K, dim_of(m, l, DIM_K));
    emit_op(p, OP_STORE, il, BUF_Q, BUF_Q);
    emit_op(p, OP_ATTEND, il, BUF_Q, BUF_ATT)->vec = LAYER_TENSOR(l, ATTN_SINKS)->vec;
}

/* Neurons from `in` to BUF_FF: gate, up and their product, or up alone. */
static void emit_neurons(program *p, const nova_model *m, uint32_t il, buffer_id in, const model_tensor *gate, const model_tensor *up) {
    op *o = emit_matmul(p, il, in, BUF_FF, gate->w.data ? gate : up, EPILOGUE_ACT);
    o->act = m->kind->act;
    if (!gate->w.data) return;
    o->epilogue = EPILOGUE_GLU;
    add_weight(o, up, BUF_FF2);
}

static void emit_router(program *p, const nova_model *m, uint32_t il, buffer_id in) {
    emit_matmul(p, il, in, BUF_ROUTER, LAYER_TENSOR(&m->layers[il], ROUTER), EPILOGUE_NONE);
    emit_op(p, OP_ROUTE, il, BUF_ROUTER, BUF_CHOSEN);
}

static void emit_experts(program *p, const nova_model *m, uint32_t il, buffer_id in) {
    const model_layer *l = &m->layers[il];
    if (!(m->kind->flags & ARCH_ROUTE_EARLY)) emit_router(p, m, il, in);
    op *up = emit_op(p, OP_EXPERTS_UP, il, in, BUF_EXPERTS);
    up->act = m->kind->act;
    add_weight(up, LAYER_TENSOR(l, EXPERTS_GATE), BUF_EXPERTS);
    add_weight(up, LAYER_TENSOR(l, EXPERTS_UP), BUF_EXPERTS);
    op *down = emit_op(p, OP_EXPERTS_DOWN, il, BUF_EXPERTS, BUF_Y);
    add_weight(down, LAYER_TENSOR(l, EXPERTS_DOWN), BUF_Y);
    emit_op(p, OP_ADD, il, BUF_Y, BUF_X)->scale = m->residual_scale;
    if (!LAYER_TENSOR(l, SHARED_UP)->w.data) return;
    if (LAYER_TENSOR(l, SHARED_ROUTER)->w.data) emit_matmul(p, il, in, BUF_GATE, LAYER_TENSOR(l, SHARED_ROUTER), EPILOGUE_NONE);
    emit_neurons(p, m, il, in, LAYER_TENSOR(l, SHARED_GATE), LAYER_TENSOR(l, SHARED_UP));
    emit_matmul(p, il, BUF_FF, BUF_Y, LAYER_TENSOR(l, SHARED_DOWN), EPILOGUE_NONE);
    op *add = emit_op(p, OP_ADD, il, BUF_Y, BUF_X);
    add->scale = m->residual_scale;
    add->gated = LAYER_TENSOR(l, SHARED_ROUTER)->w.data != NULL;
}

static void emit_feed_forward(program *p, const nova_model *m, uint32_t il, buffer_id in) {
    const model_layer *l = &m->layers[il];
    if (LAYER_TENSOR(l, ROUTER)->w.data) {
        emit_experts(p, m, il, in);
        return;
    }
    emit_neurons(p, m, il, in, LAYER_TENSOR(l, FFN_GATE), LAYER_TENSOR(l, FFN_UP));
    if (LAYER_TENSOR(l, FFN_SUB_NORM)->vec) emit_norm(p, m, il, LAYER_TENSOR(l, FFN_SUB_NORM), BUF_FF, BUF_FF, l->n_ff, l->n_ff);
    emit_output(p, m, il, BUF_FF, LAYER_TENSOR(l, FFN_DOWN), LAYER_TENSOR(l, FFN_POST_NORM));
}

/* The norm in front of a block, where there is one; gives what the block reads. */
static buffer_id emit_input(program *p, const nova_model *m, uint32_t il, const model_tensor *norm) {
    if (!norm->vec) return BUF_X;
    emit_norm(p, m, il, norm, BUF_X, BUF_NORMED, m->n_embd, m->n_embd);
    return BUF_NORMED;
}

static void emit_layer(program *p, const nova_model *m, uint32_t il) {
    const model_layer  *l        = &m->layers[il];
    const model_tensor *sub      = LAYER_TENSOR(l, ATTN_SUB_NORM);
    bool                early    = LAYER_TENSOR(l, ROUTER)->w.data && (m->kind->flags & ARCH_ROUTE_EARLY);
    bool                parallel = (m->kind->flags & ARCH_PARALLEL) && !ffn_norm(m, l)->vec;
    bool                last     = il + 1 == m->n_layer;
    if (early) emit_router(p, m, il, BUF_X);
    buffer_id in = emit_input(p, m, il, LAYER_TENSOR(l, ATTN_NORM));
    buffer_id att = m->n_v ? BUF_HEADS : BUF_ATT;
    if (m->n_v) emit_latent_attention(p, m, il, in);
    else emit_attention(p, m, il, in);
    if (parallel) emit_feed_forward(p, m, il, in);   /* a sum, which may come in any order; here all columns have their input */
    /* Behind the last attention a column no longer serves others: those without logits end here. */
    if (last && !early) emit_op(p, OP_GATHER, il, att, BUF_X);
    if (sub->vec) emit_norm(p, m, il, sub, BUF_ATT, BUF_ATT, dim_of(m, l, DIM_ATT), dim_of(m, l, DIM_ATT));
    emit_output(p, m, il, att, LAYER_TENSOR(l, ATTN_OUT), post_norm(m, LAYER_TENSOR(l, ATTN_POST_NORM)));
    if (!parallel) emit_feed_forward(p, m, il, emit_input(p, m, il, ffn_norm(m, l)));
    if (last && early) emit_op(p, OP_GATHER, il, BUF_ATT, BUF_X);
}

#define OPS_PER_LAYER 24
#define OPS_OUTSIDE   4

static void emit_all(program *p, const nova_model *m) {
    op *embed = emit_op(p, OP_EMBED, 0, BUF_X, BUF_X);
    embed->n_w   = 1;
    embed->w[0]  = &m->t[ROLE_TOKEN_EMBD].w;
    embed->scale = m->embed_scale;
    if (m->n_positions) embed->w[embed->n_w++] = &m->t[ROLE_POSITION_EMBD].w;
    for (uint32_t il = 0; il < m->n_layer; il++) emit_layer(p, m, il);
    p->n_body = p->n_ops;
    emit_norm(p, m, m->n_layer - 1, &m->t[ROLE_OUTPUT_NORM], BUF_X, BUF_NORMED, m->n_embd, m->n_embd);
    op *head = emit_matmul(p, m->n_layer - 1, BUF_NORMED, BUF_LOGITS, &m->t[ROLE_OUTPUT], EPILOGUE_NONE);
    head->scale = m->logit_scale;
    head->cap   = m->logit_cap;
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
    for (uint32_t i = 0; i < p->n_ops; i++) {   /* a matmul gives all of its rows; attention and experts see below */
        const op *o = &p->ops[i];
        for (uint32_t k = 0; o->kind == OP_MATMUL && k < o->n_w; k++) widen(p, o->dst[k], o->w[k]->n_out);
        if (o->kind == OP_MATMUL && o->epilogue == EPILOGUE_ADD) widen(p, BUF_T, o->w[0]->n_out);
        if (o->kind == OP_ATTEND) widen(p, BUF_ATT, m->layers[o->layer].n_head * m->head_dim_v);
        if (o->kind == OP_LATENT) widen(p, BUF_Q, dim_of(m, &m->layers[o->layer], DIM_Q)), widen(p, BUF_K, m->head_dim_k), widen(p, BUF_V, m->head_dim_v);
        if (o->kind == OP_HEADS) widen(p, BUF_HEADS, dim_of(m, &m->layers[o->layer], DIM_ATT));
        if (o->kind == OP_ROUTE) widen(p, BUF_CHOSEN, 2 * m->n_expert_used);
        if (o->kind == OP_EXPERTS_UP) widen(p, BUF_EXPERTS, m->n_expert_used * m->n_ff_expert);
        if (o->kind == OP_EXPERTS_DOWN) widen(p, BUF_Y, m->n_embd);
    }
}

static bool has_rope(const nova_model *m, uint32_t kind) {
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (m->layers[il].rope == kind) return true;
    return false;
}

static nova_result program_build(program *p, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error) {
    memset(p, 0, sizeof *p);
    size_t bytes = ((size_t)m->n_layer * OPS_PER_LAYER + OPS_OUTSIDE) * sizeof(op);
    p->ops = (op *)arena_alloc(a, bytes);
    if (!p->ops) return fail_memory(error, bytes, "the program");
    emit_all(p, m);
    size_buffers(p, m);
    for (uint32_t k = 0; k < ROPE_KINDS; k++)
        if (has_rope(m, k)) TRY(rope_build(&p->ropes[k], a, m, k == ROPE_LOCAL, n_ctx, error));
    return NOVA_OK;
}
