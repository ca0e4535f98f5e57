/* A model: see model.h. Opening reads the header, finds every tensor by role, and checks its shape; no weight is touched. */
#include "model.h"

/* ---- Architectures: one row each ---- */

#define ROLES_BLOCK  (ROLE_BIT(TOKEN_EMBD) | ROLE_BIT(OUTPUT_NORM) | ROLE_BIT(ATTN_OUT))
#define ROLES_QKV    (ROLE_BIT(ATTN_Q) | ROLE_BIT(ATTN_K) | ROLE_BIT(ATTN_V))
#define ROLES_NORMS  (ROLE_BIT(ATTN_NORM) | ROLE_BIT(FFN_NORM))
#define ROLES_POST   (ROLE_BIT(ATTN_POST_NORM) | ROLE_BIT(FFN_POST_NORM))
#define ROLES_QK     (ROLE_BIT(ATTN_Q_NORM) | ROLE_BIT(ATTN_K_NORM))
#define ROLES_PLAIN  (ROLE_BIT(FFN_UP) | ROLE_BIT(FFN_DOWN))
#define ROLES_GATED  (ROLES_PLAIN | ROLE_BIT(FFN_GATE))
#define ROLES_MOE    (ROLE_BIT(ROUTER) | ROLES_STACKED)
#define ROLES_SHARED (ROLE_BIT(SHARED_GATE) | ROLE_BIT(SHARED_UP) | ROLE_BIT(SHARED_DOWN))
#define ROLES_ROPE   (ROLE_BIT(ROPE_FREQS) | ROLE_BIT(ROPE_LONG) | ROLE_BIT(ROPE_SHORT))
#define ROLES_OUT    (ROLE_BIT(OUTPUT) | ROLES_ROPE)

#define ROLES_LLAMA  (ROLES_BLOCK | ROLES_QKV | ROLES_NORMS)

static const arch archs[] = {
    /* name, required, optional, norm, activation, flags, window period, local base, widest, caps, routing */
    {"llama", ROLES_LLAMA, ROLES_OUT | ROLES_GATED | ROLES_MOE, NORM_RMS, ACT_SILU, ARCH_WHOLE_HEAD | ARCH_NORM_WEIGHTS,
     0, 0, 0, 0, 0, GATING_SOFTMAX},
    {"arcee", ROLES_LLAMA | ROLES_PLAIN, ROLES_OUT, NORM_RMS, ACT_RELU_SQR, ARCH_WHOLE_HEAD, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"qwen2", ROLES_LLAMA | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_NEOX | ARCH_WHOLE_HEAD, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"qwen2moe", ROLES_LLAMA | ROLES_MOE | ROLES_SHARED | ROLE_BIT(SHARED_ROUTER), ROLES_OUT, NORM_RMS, ACT_SILU,
     ARCH_NEOX | ARCH_WHOLE_HEAD, 0, 0, 0, 0, 0, GATING_SOFTMAX},
    {"qwen3", ROLES_LLAMA | ROLES_QK | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_NEOX | ARCH_WHOLE_HEAD, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"qwen3moe", ROLES_LLAMA | ROLES_QK | ROLES_MOE, ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_NEOX | ARCH_WHOLE_HEAD | ARCH_NORM_WEIGHTS,
     0, 0, 0, 0, 0, GATING_SOFTMAX},
    {"gemma", ROLES_LLAMA | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_GELU, ARCH_NEOX | ARCH_EMBED_SQRT, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"gemma2", ROLES_LLAMA | ROLES_POST | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_GELU, ARCH_NEOX | ARCH_EMBED_SQRT,
     2, 0, 46, 50, 30, GATING_DEFAULT},
    {"gemma3", ROLES_LLAMA | ROLES_POST | ROLES_QK | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_GELU, ARCH_NEOX | ARCH_EMBED_SQRT,
     6, 10000, 62, 0, 0, GATING_DEFAULT},
    {"phi2", ROLES_BLOCK | ROLE_BIT(ATTN_NORM) | ROLES_PLAIN, ROLES_OUT | ROLES_QKV | ROLE_BIT(ATTN_QKV), NORM_LAYER, ACT_GELU,
     ARCH_NEOX | ARCH_PARALLEL, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"phi3", ROLES_BLOCK | ROLES_NORMS | ROLE_BIT(FFN_UP_TWICE) | ROLE_BIT(FFN_DOWN), ROLES_OUT | ROLES_QKV | ROLE_BIT(ATTN_QKV), NORM_RMS, ACT_SILU,
     ARCH_NEOX, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"gpt-oss", ROLES_BLOCK | ROLES_QKV | ROLE_BIT(ATTN_NORM) | ROLE_BIT(ATTN_POST_NORM) | ROLE_BIT(ATTN_SINKS) | ROLES_MOE, ROLES_OUT, NORM_RMS,
     ACT_SWIGLU_CLAMPED, ARCH_NEOX | ARCH_POST_IS_FFN, 2, 0, 0, 0, 0, GATING_SOFTMAX_CHOSEN},
    {"smallthinker", ROLES_LLAMA | ROLES_MOE, ROLES_OUT, NORM_RMS, ACT_RELU,
     ARCH_NEOX | ARCH_ROUTE_EARLY | ARCH_DENSE_FIRST | ARCH_NORM_WEIGHTS, 4, 0, 0, 0, 0, GATING_SIGMOID},
    {"nemotron", ROLES_LLAMA | ROLES_PLAIN, ROLES_OUT, NORM_LAYER, ACT_RELU_SQR, ARCH_NEOX, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"olmo2", ROLES_BLOCK | ROLES_QKV | ROLES_QK | ROLES_POST | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_NEOX | ARCH_WINDOW_UNKNOWN, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"granite", ROLES_LLAMA | ROLES_GATED, ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_INVERSE_LOGIT, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"starcoder2", ROLES_LLAMA | ROLES_PLAIN, ROLES_OUT, NORM_LAYER, ACT_GELU, ARCH_NEOX, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"gpt2", ROLES_BLOCK | ROLES_NORMS | ROLES_PLAIN | ROLE_BIT(POSITION_EMBD), ROLES_OUT | ROLES_QKV | ROLE_BIT(ATTN_QKV), NORM_LAYER, ACT_GELU,
     ARCH_NO_ROPE, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"stablelm", ROLES_BLOCK | ROLES_QKV | ROLE_BIT(ATTN_NORM) | ROLES_GATED, ROLES_OUT | ROLES_QK | ROLE_BIT(FFN_NORM), NORM_LAYER, ACT_SILU,
     ARCH_NEOX | ARCH_PARALLEL, 0, 0, 0, 0, 0, GATING_DEFAULT},
    {"deepseek2", ROLES_BLOCK | ROLES_NORMS | ROLE_BIT(MLA_Q) | ROLE_BIT(MLA_KV) | ROLE_BIT(MLA_NORM) | ROLES_HEADS,
     ROLES_OUT | ROLES_GATED | ROLES_MOE | ROLES_SHARED, NORM_RMS, ACT_SILU, 0, 0, 0, 0, 0, 0, GATING_SOFTMAX},
    {"bitnet", ROLES_LLAMA | ROLES_GATED | ROLE_BIT(ATTN_SUB_NORM) | ROLE_BIT(FFN_SUB_NORM), ROLES_OUT, NORM_RMS, ACT_SILU, ARCH_NEOX,
     0, 0, 0, 0, 0, GATING_DEFAULT},
};

typedef struct role_info {
    const char *name;
    model_dim   n_in, n_out;
} role_info;

static const role_info role_infos[ROLE_COUNT] = {
#define ROLE_INFO(role, name, n_in, n_out) {name, n_in, n_out},
    MODEL_TENSORS(ROLE_INFO) LAYER_TENSORS(ROLE_INFO)
#undef ROLE_INFO
};

#define MAX_HEAD_DIM 1024   /* what the attention kernels keep in registers and scratch */

static uint32_t dim_of(const nova_model *m, const model_layer *l, model_dim d) {
    switch (d) {
    case DIM_ONE:       return 1;
    case DIM_EMBD:      return m->n_embd;
    case DIM_VOCAB:     return m->n_vocab;
    case DIM_ROPE:      return m->rope.n_rot / 2;
    case DIM_POSITIONS: return m->n_positions;
    case DIM_HEAD:      return m->head_dim_k;
    case DIM_EXPERTS:   return m->n_expert;
    case DIM_FF_EXPERT: return m->n_ff_expert;
    case DIM_FF_SHARED: return m->n_ff_shared;
    case DIM_HEADS:     return l ? l->n_head : 0;
    case DIM_Q:         return l ? l->n_head * m->head_dim_k : 0;
    case DIM_K:         return l ? l->n_head_kv * m->head_dim_k : 0;
    case DIM_V:         return l ? l->n_head_kv * m->head_dim_v : 0;
    case DIM_QKV:       return dim_of(m, l, DIM_Q) + dim_of(m, l, DIM_K) + dim_of(m, l, DIM_V);
    case DIM_ATT:       return l ? l->n_head * (m->n_v ? m->n_v : m->head_dim_v) : 0;
    case DIM_FF:        return l ? l->n_ff : 0;
    case DIM_FF_TWICE:  return l ? 2 * l->n_ff : 0;
    case DIM_MLA_Q:     return l ? l->n_head * (m->n_nope + m->rope.n_rot) : 0;
    case DIM_MLA_KV:    return m->head_dim_v + m->rope.n_rot;
    case DIM_MLA_LATENT: return m->head_dim_v;
    case DIM_MLA_NOPE:  return m->n_nope;
    case DIM_MLA_HEAD:  return m->n_v;
    case DIM_COUNT:     break;
    }
    return 0;
}

/* ---- Hyper-parameters ---- */

/* "llama.block_count" from "block_count". */
typedef struct key_name { char z[128]; } key_name;

static key_name arch_key(const nova_model *m, const char *name) {
    key_name k;
    snprintf(k.z, sizeof k.z, "%s.%s", m->kind->name, name);
    return k;
}

static nova_result read_u32(const nova_model *m, const char *name, uint32_t *out, nova_error *error) {
    return gguf_get_u32(&m->g, arch_key(m, name).z, out, error);
}

static nova_result read_f32(const nova_model *m, const char *name, float *out, nova_error *error) {
    key_name k = arch_key(m, name);
    TRY(gguf_get_f32(&m->g, k.z, out, error));
    return f32_is_finite(*out) ? NOVA_OK : fail(error, NOVA_ERROR_FORMAT, "the key '%s' is no finite number", k.z);
}

/* A size that must be there, from 1 to `limit`. */
static nova_result read_size(const nova_model *m, const char *name, uint32_t limit, uint32_t *out, nova_error *error) {
    uint32_t    v      = 0;
    nova_result result = read_u32(m, name, &v, error);
    if (result != NOVA_OK) return result;
    key_name k = arch_key(m, name);
    if (!gguf_find(&m->g, str_c(k.z))) return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is missing", k.z);
    if (v == 0 || v > limit) return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is %u, not 1 to %u", k.z, v, limit);
    *out = v;
    return NOVA_OK;
}

/* One number for all layers, or an array with one a layer. Missing: `fallback`, or an error where that is 0. */
static nova_result read_layer_u32(const nova_model *m, const char *name, uint32_t il, uint32_t fallback, uint32_t limit,
                                  uint32_t *out, nova_error *error) {
    key_name          k = arch_key(m, name);
    const gguf_value *v = gguf_find(&m->g, str_c(k.z));
    if (!v && fallback) {
        *out = fallback;
        return NOVA_OK;
    }
    if (!v || v->type != GGUF_ARRAY) return read_size(m, name, limit, out, error);
    bool integers = v->item != GGUF_F32 && v->item != GGUF_F64 && v->item != GGUF_STRING && v->item != GGUF_ARRAY;
    if (!integers || v->n != m->n_layer)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "the key '%s' is no array of %u integers", k.z, m->n_layer);
    int64_t n = gguf_item_int(v, il);
    if (n < 1 || n > (int64_t)limit)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "the key '%s' has %lld for layer %u, not 1 to %u", k.z,
                       (long long)n, il, limit);
    *out = (uint32_t)n;
    return NOVA_OK;
}

static nova_result read_layers(nova_model *m, nova_error *error) {
    const uint32_t limit = 1u << 24;   /* above any model, and low enough that products stay in 64 bits */
    size_t bytes;
    if (m->n_layer > m->g.n_tensors)
        return fail(error, NOVA_ERROR_FORMAT, "%u layers, but only %u tensors", m->n_layer, m->g.n_tensors);
    if (!size_mul(m->n_layer, sizeof(model_layer), &bytes)) return fail_memory(error, SIZE_MAX, "layers");
    m->layers = (model_layer *)arena_zalloc(&m->a, bytes);
    if (!m->layers) return fail_memory(error, bytes, "layers");
    for (uint32_t il = 0; il < m->n_layer; il++) {
        model_layer *l = &m->layers[il];
        TRY(read_layer_u32(m, "attention.head_count", il, 0, 65536, &l->n_head, error));
        TRY(read_layer_u32(m, "attention.head_count_kv", il, l->n_head, 65536, &l->n_head_kv, error));
        TRY(read_layer_u32(m, "feed_forward_length", il, 0, limit, &l->n_ff, error));
        if (l->n_head % l->n_head_kv != 0)
            return fail(error, NOVA_ERROR_FORMAT, "layer %u: %u heads do not share %u KV heads evenly", il, l->n_head,
                        l->n_head_kv);
    }
    return NOVA_OK;
}

static nova_result read_rope(nova_model *m, nova_error *error) {
    static const struct { const char *name; rope_scaling kind; } scalings[] = {
        {"none", ROPE_SCALING_NONE}, {"linear", ROPE_SCALING_LINEAR},
        {"yarn", ROPE_SCALING_YARN}, {"longrope", ROPE_SCALING_LONGROPE}};
    rope_params *r = &m->rope;
    memset(r, 0, sizeof *r);
    r->n_rot       = m->head_dim_k;
    r->n_ctx_orig  = m->n_ctx_train;
    r->freq_base   = 10000.0f;
    r->attn_factor = 1.0f;
    r->ext_factor  = -1.0f;
    r->beta_fast   = 32.0f;
    r->beta_slow   = 1.0f;
    r->scaling     = ROPE_SCALING_LINEAR;   /* the format's default, without effect at factor 1 */
    str type = {NULL, 0};
    TRY(read_u32(m, "rope.dimension_count", &r->n_rot, error));
    TRY(read_u32(m, "rope.scaling.original_context_length", &r->n_ctx_orig, error));
    TRY(read_f32(m, "rope.freq_base", &r->freq_base, error));
    TRY(read_f32(m, "rope.scale_linear", &r->factor, error));   /* the older name */
    TRY(read_f32(m, "rope.scaling.factor", &r->factor, error));
    TRY(read_f32(m, "rope.scaling.attn_factor", &r->attn_factor, error));
    TRY(read_f32(m, "rope.scaling.yarn_ext_factor", &r->ext_factor, error));
    TRY(read_f32(m, "rope.scaling.yarn_beta_fast", &r->beta_fast, error));
    TRY(read_f32(m, "rope.scaling.yarn_beta_slow", &r->beta_slow, error));
    TRY(read_f32(m, "rope.scaling.yarn_log_multiplier", &r->log_multiplier, error));
    TRY(gguf_get_str(&m->g, arch_key(m, "rope.scaling.type").z, &type, error));
    if (type.n) {
        size_t i = 0;
        while (i < COUNT_OF(scalings) && !str_is(type, scalings[i].name)) i++;
        if (i == COUNT_OF(scalings))
            return fail(error, NOVA_ERROR_UNSUPPORTED, "RoPE scaling '%.*s' is not supported", STR_ARG(type));
        r->scaling = scalings[i].kind;
    }
    if (r->factor == 0.0f || r->scaling == ROPE_SCALING_NONE) r->factor = 1.0f;
    if (m->kind->flags & ARCH_NO_ROPE) {
        r->n_rot = 0;
        return NOVA_OK;
    }
    if (r->n_rot == 0 || r->n_rot % 2 != 0 || r->n_rot > m->head_dim_k || ((m->kind->flags & ARCH_WHOLE_HEAD) && r->n_rot != m->head_dim_k))
        return fail(error, NOVA_ERROR_FORMAT, "RoPE turns %u of %u dimensions of a head", r->n_rot, m->head_dim_k);
    r->freq_base_local = m->kind->rope_base_local;
    TRY(read_f32(m, "rope.freq_base_swa", &r->freq_base_local, error));
    if (!(r->freq_base_local >= 0.0f) || !(r->freq_base > 0.0f) || !(r->factor > 0.0f) || r->n_ctx_orig == 0 || !(r->beta_fast > 0.0f) || !(r->beta_slow > 0.0f))
        return fail(error, NOVA_ERROR_FORMAT, "RoPE base, scaling factor, betas and original context must be positive");
    return NOVA_OK;
}

/* Factors and caps: finite, and 0 where there is none. */
static nova_result read_factor(const nova_model *m, const char *name, float fallback, float *out, nova_error *error) {
    *out = fallback;
    TRY(read_f32(m, name, out, error));
    if (!f32_is_finite(*out) || *out < 0.0f) return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is no positive number", arch_key(m, name).z);
    if (*out == 0.0f) *out = fallback;
    return NOVA_OK;
}

static nova_result read_factors(nova_model *m, nova_error *error) {
    bool embed_sqrt = m->kind->flags & ARCH_EMBED_SQRT;
    TRY(read_factor(m, "attn_logit_softcapping", m->kind->attn_cap, &m->attn_cap, error));
    TRY(read_factor(m, "final_logit_softcapping", m->kind->logit_cap, &m->logit_cap, error));
    TRY(read_factor(m, "embedding_scale", embed_sqrt ? sqrtf((float)m->n_embd) : 1.0f, &m->embed_scale, error));
    TRY(read_factor(m, "residual_scale", 1.0f, &m->residual_scale, error));
    TRY(read_factor(m, "logit_scale", 1.0f, &m->logit_scale, error));
    if (m->kind->flags & ARCH_INVERSE_LOGIT) m->logit_scale = 1.0f / m->logit_scale;
    return NOVA_OK;
}

/* Windows: which layers have one, and what rotary positions these have. */
static nova_result read_windows(nova_model *m, nova_error *error) {
    uint32_t window = 0, period = m->kind->window_period;
    if (m->kind->flags & ARCH_WINDOW_UNKNOWN) {
        TRY(read_u32(m, "attention.sliding_window", &window, error));
        if (window) return fail(error, NOVA_ERROR_UNSUPPORTED, "the key '%s': windows of '%s' are not supported", arch_key(m, "attention.sliding_window").z, m->kind->name);
    }
    if (period == 0 || (m->kind->flags & ARCH_NO_ROPE)) {
        for (uint32_t il = 0; il < m->n_layer; il++) m->layers[il].rope = m->kind->flags & ARCH_NO_ROPE ? ROPE_NOT : ROPE_GLOBAL;
        return NOVA_OK;
    }
    TRY(read_u32(m, "attention.sliding_window", &window, error));
    TRY(read_u32(m, "attention.sliding_window_pattern", &period, error));
    for (uint32_t il = 0; il < m->n_layer; il++) {
        bool first = m->kind->flags & ARCH_DENSE_FIRST;
        bool full  = window == 0 || period == 0 || il % period == (first ? 0 : period - 1);
        m->layers[il].window = full ? 0 : window;
        m->layers[il].rope   = !full && m->rope.freq_base_local > 0.0f ? ROPE_LOCAL : full && window && first ? ROPE_NOT : ROPE_GLOBAL;
    }
    return NOVA_OK;
}

static nova_result read_experts(nova_model *m, nova_error *error) {
    uint32_t route = 0, groups = 0;
    m->route        = m->kind->route;
    m->norm_weights = m->kind->flags & ARCH_NORM_WEIGHTS;
    TRY(read_u32(m, "expert_count", &m->n_expert, error));
    if (m->n_expert == 0 || !((m->kind->required | m->kind->optional) & ROLE_BIT(ROUTER))) {
        m->n_expert = 0;
        return NOVA_OK;
    }
    TRY(read_u32(m, "expert_used_count", &m->n_expert_used, error));
    if (m->n_expert > MAX_EXPERTS || m->n_expert_used == 0 || m->n_expert_used > m->n_expert)
        return fail(error, NOVA_ERROR_FORMAT, "%u of %u experts are used (of %d at most)", m->n_expert_used, m->n_expert, MAX_EXPERTS);
    m->n_ff_expert = m->n_ff_shared = m->layers[0].n_ff;
    TRY(read_u32(m, "expert_feed_forward_length", &m->n_ff_expert, error));
    TRY(read_u32(m, "expert_shared_feed_forward_length", &m->n_ff_shared, error));
    bool fits = m->n_ff_expert <= 1u << 24 && m->n_ff_shared <= 1u << 24 && (uint64_t)m->n_expert_used * m->n_ff_expert <= 1u << 30;
    if (m->n_ff_expert == 0 || m->n_ff_shared == 0 || !fits)
        return fail(error, NOVA_ERROR_FORMAT, "experts of %u and %u neurons", m->n_ff_expert, m->n_ff_shared);
    TRY(read_factor(m, "expert_weights_scale", 1.0f, &m->expert_scale, error));
    TRY(gguf_get_bool(&m->g, arch_key(m, "expert_weights_norm").z, &m->norm_weights, error));
    TRY(read_u32(m, "expert_gating_func", &route, error));
    if (route > GATING_SOFTMAX_CHOSEN)
        return fail(error, NOVA_ERROR_UNSUPPORTED, "the key '%s' is %u: how experts are chosen is not known", arch_key(m, "expert_gating_func").z, route);
    if (route) m->route = (gating)route;
    TRY(read_u32(m, "expert_group_count", &groups, error));
    if (groups > 1) return fail(error, NOVA_ERROR_UNSUPPORTED, "the key '%s' is %u: groups of experts are not supported", arch_key(m, "expert_group_count").z, groups);
    return NOVA_OK;
}

/* What heads are made of a latent row. The scale of attention grows by YaRN's temperature, which the turned parts then do not have. */
static nova_result read_latent(nova_model *m, nova_error *error) {
    uint32_t head = 0, latent = 0, shared = 1;
    if (!(m->kind->required & ROLE_BIT(MLA_KV))) return NOVA_OK;
    for (uint32_t il = 0; il < m->n_layer; il++)
        if (m->layers[il].n_head_kv != 1)
            return fail(error, NOVA_ERROR_FORMAT, "layer %u: %u KV heads, where latent attention has one", il, m->layers[il].n_head_kv);
    TRY(read_size(m, "attention.kv_lora_rank", MAX_HEAD_DIM, &latent, error));
    TRY(read_size(m, "attention.key_length_mla", MAX_HEAD_DIM, &head, error));
    TRY(read_size(m, "attention.value_length_mla", MAX_HEAD_DIM, &m->n_v, error));
    if (head <= m->rope.n_rot || latent != m->head_dim_v || latent + m->rope.n_rot != m->head_dim_k)
        return fail(error, NOVA_ERROR_FORMAT, "latent attention of %u + %u dimensions, of which %u are turned, by heads of %u and %u", latent,
                    m->rope.n_rot, m->rope.n_rot, m->head_dim_k, m->head_dim_v);
    m->n_nope = head - m->rope.n_rot;
    double grown = 1.0 + m->rope.log_multiplier * log((double)m->rope.factor);   /* the key has the factor 0.1 already */
    m->attn_scale = (float)(grown * grown / sqrt((double)head));
    m->rope.log_multiplier = 0;
    TRY(read_u32(m, "expert_shared_count", &shared, error));
    if (shared == 0 || shared > 64) return fail(error, NOVA_ERROR_FORMAT, "%u shared experts", shared);
    m->n_ff_shared = m->n_ff_expert * shared;
    return NOVA_OK;
}

/* As many learned positions as their tensor has rows. */
static nova_result read_positions(nova_model *m, nova_error *error) {
    if (!(m->kind->required & ROLE_BIT(POSITION_EMBD))) return NOVA_OK;
    const gguf_tensor *t = gguf_find_tensor(&m->g, str_c("position_embd.weight"));
    if (!t || t->n_dims != 2 || t->ne[1] == 0 || t->ne[1] > 1u << 30)
        return fail(error, NOVA_ERROR_FORMAT, "the tensor 'position_embd.weight' is missing or no matrix");
    m->n_positions = (uint32_t)t->ne[1];
    return NOVA_OK;
}

static nova_result read_hyper_parameters(nova_model *m, nova_error *error) {
    TRY(read_size(m, "context_length", 1u << 30, &m->n_ctx_train, error));
    TRY(read_size(m, "embedding_length", 1u << 24, &m->n_embd, error));
    TRY(read_size(m, "block_count", 65535, &m->n_layer, error));
    TRY(read_layers(m, error));
    uint32_t n_head = m->layers[0].n_head;
    if (m->n_embd / n_head == 0)
        return fail(error, NOVA_ERROR_FORMAT, "%u heads for a width of %u", n_head, m->n_embd);
    m->head_dim_k = m->n_embd / n_head;
    TRY(read_u32(m, "attention.key_length", &m->head_dim_k, error));
    m->head_dim_v = m->head_dim_k;
    TRY(read_u32(m, "attention.value_length", &m->head_dim_v, error));
    if (m->head_dim_k == 0 || m->head_dim_k > MAX_HEAD_DIM || m->head_dim_v == 0 || m->head_dim_v > MAX_HEAD_DIM)
        return fail(error, NOVA_ERROR_UNSUPPORTED, "head sizes of %u and %u (1 to %d are supported)", m->head_dim_k,
                    m->head_dim_v, MAX_HEAD_DIM);
    m->attn_scale = 0.0f;
    TRY(read_f32(m, "attention.scale", &m->attn_scale, error));
    bool widest = m->kind->widest_layers == m->n_layer;
    if (m->attn_scale == 0.0f) m->attn_scale = 1.0f / sqrtf((float)(widest ? m->n_embd / n_head : m->head_dim_k));
    m->norm_eps = -1.0f;
    const char *eps = m->kind->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    TRY(read_f32(m, eps, &m->norm_eps, error));
    if (!(m->norm_eps >= 0.0f))
        return fail(error, NOVA_ERROR_FORMAT, "the key '%s' is missing or negative", arch_key(m, eps).z);
    m->n_vocab = tokenizer_n_vocab(m->tok);
    TRY(read_factors(m, error));
    TRY(read_experts(m, error));
    TRY(read_positions(m, error));
    TRY(read_rope(m, error));
    TRY(read_latent(m, error));
    return read_windows(m, error);
}

/* ---- Tensors ---- */

static const float *vector_floats(nova_model *m, const gguf_tensor *gt, size_t n) {
    if (gt->type == TYPE_F32 && (uintptr_t)gt->data % sizeof(float) == 0) return (const float *)(const void *)gt->data;
    size_t bytes, row = (size_t)gt->ne[0];
    if (!size_mul(n, sizeof(float), &bytes)) return NULL;
    float *f = (float *)arena_alloc(&m->a, bytes);
    for (size_t at = 0; f && at < n; at += row)
        type_of(gt->type)->to_float(gt->data + at / row * type_row_bytes(gt->type, row), f + at, row);
    return f;
}

/* The floats of the tensor `name`: n in a row and n_rows rows, or n_each in as many as come to `n_other`; NULL with NOVA_OK where there
 * is none. */
static nova_result find_floats(nova_model *m, const char *name, uint32_t n, uint32_t n_rows, uint64_t n_other, const float **out,
                               uint32_t *n_vec, bool *used, nova_error *error) {
    const gguf_tensor *gt = gguf_find_tensor(&m->g, str_c(name));
    *out = NULL;
    if (!gt) return NOVA_OK;
    uint64_t have = gt->ne[0] * gt->ne[1];
    bool     good = gt->n_dims <= 2 && ((gt->ne[0] == n && gt->ne[1] == n_rows) || (n_other && have == n_other));
    if (!good || have > UINT32_MAX)
        return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' has %u dimensions and is %llu x %llu, not %u x %u", name, gt->n_dims,
                    (unsigned long long)gt->ne[0], (unsigned long long)gt->ne[1], n, n_rows);
    used[gt - m->g.tensors] = true;
    *out   = vector_floats(m, gt, (size_t)have);
    *n_vec = (uint32_t)have;
    return *out ? NOVA_OK : fail_memory(error, (size_t)have * sizeof(float), "a vector");
}

/* A matrix, or a stack of n of them. */
static nova_result find_matrix(nova_model *m, const char *name, uint32_t n_in, uint32_t n_out, uint32_t n, weight *w, bool *used,
                               nova_error *error) {
    const gguf_tensor *gt = gguf_find_tensor(&m->g, str_c(name));
    if (!gt) return NOVA_OK;
    if (gt->n_dims > 3 || gt->ne[0] != n_in || gt->ne[1] != n_out || gt->ne[2] != n)
        return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' has %u dimensions and is %llu x %llu x %llu, not %u x %u x %u", name,
                    gt->n_dims, (unsigned long long)gt->ne[0], (unsigned long long)gt->ne[1], (unsigned long long)gt->ne[2], n_in, n_out, n);
    used[gt - m->g.tensors] = true;
    w->type      = gt->type;
    w->n_in      = n_in;
    w->n_out     = n_out;
    w->row_bytes = type_row_bytes(gt->type, n_in);
    w->data      = gt->data;
    return NOVA_OK;
}

/* Finds one role's weight and bias; `il` < 0: a tensor of the model itself. */
static nova_result find_role(nova_model *m, int il, uint32_t r, bool *used, nova_error *error) {
    const role_info *info   = &role_infos[r];
    const model_layer     *l      = il < 0 ? NULL : &m->layers[il];
    model_tensor *t      = il < 0 ? &m->t[r] : &m->layers[il].t[r - ROLE_MODEL_COUNT];
    uint32_t         n_in   = dim_of(m, l, info->n_in), n_out = dim_of(m, l, info->n_out);
    bool             vector = info->n_out == DIM_ONE && r != ROLE_SHARED_ROUTER;
    uint32_t         n      = ROLES_STACKED >> r & 1 ? m->n_expert : ROLES_HEADS >> r & 1 ? l->n_head : 1, ignored;
    uint64_t         heads  = r == ROLE_ATTN_Q_NORM ? dim_of(m, l, DIM_Q) : r == ROLE_ATTN_K_NORM ? dim_of(m, l, DIM_K) : 0;
    char             name[96], bias[96];
    char             prefix[24] = "";
    if (il >= 0) snprintf(prefix, sizeof prefix, "blk.%d.", il);
    snprintf(name, sizeof name, "%s%s.weight", prefix, info->name);
    snprintf(bias, sizeof bias, "%s%s.bias", prefix, info->name);
    if (vector) TRY(find_floats(m, name, n_in, 1, heads, &t->vec, &t->n_vec, used, error));
    else TRY(find_matrix(m, name, n_in, n_out, n, &t->w, used, error));
    TRY(find_floats(m, bias, vector ? n_in : n_out, n, 0, &t->bias, &ignored, used, error));
    bool there = vector ? t->vec != NULL : t->w.data != NULL;
    if (!there && (m->kind->required >> r & 1)) return fail(error, NOVA_ERROR_FORMAT, "the tensor '%s' is missing", name);
    return NOVA_OK;
}

/* Rows first..first + n of a matrix are a matrix too, of which no copy is made. */
static void view_rows(model_tensor *out, const model_tensor *of, uint32_t first, uint32_t n) {
    *out = *of;
    out->w.data += (size_t)first * of->w.row_bytes;
    out->w.n_out = n;
    if (of->bias) out->bias = of->bias + first;
}

/* What may lie in one tensor or in several. */
static nova_result complete_layer(nova_model *m, uint32_t il, nova_error *error) {
    model_layer        *l = &m->layers[il];
    const model_tensor *qkv = LAYER_TENSOR(l, ATTN_QKV), *twice = LAYER_TENSOR(l, FFN_UP_TWICE);
    uint32_t            q = dim_of(m, l, DIM_Q), k = dim_of(m, l, DIM_K), v = dim_of(m, l, DIM_V);
    if (qkv->w.data) {
        view_rows(LAYER_TENSOR(l, ATTN_Q), qkv, 0, q);
        view_rows(LAYER_TENSOR(l, ATTN_K), qkv, q, k);
        view_rows(LAYER_TENSOR(l, ATTN_V), qkv, q + k, v);
    }
    if (twice->w.data) {
        view_rows(LAYER_TENSOR(l, FFN_GATE), twice, 0, l->n_ff);
        view_rows(LAYER_TENSOR(l, FFN_UP), twice, l->n_ff, l->n_ff);
    }
    if (!m->n_v && (!LAYER_TENSOR(l, ATTN_Q)->w.data || !LAYER_TENSOR(l, ATTN_K)->w.data || !LAYER_TENSOR(l, ATTN_V)->w.data))
        return fail(error, NOVA_ERROR_FORMAT, "the tensor 'blk.%u.attn_q.weight' is missing, or k or v", il);
    bool dense   = LAYER_TENSOR(l, FFN_UP)->w.data && LAYER_TENSOR(l, FFN_DOWN)->w.data;
    bool experts = LAYER_TENSOR(l, ROUTER)->w.data && LAYER_TENSOR(l, EXPERTS_GATE)->w.data && LAYER_TENSOR(l, EXPERTS_UP)->w.data &&
                   LAYER_TENSOR(l, EXPERTS_DOWN)->w.data;
    if (dense == experts)
        return fail(error, NOVA_ERROR_FORMAT, "layer %u has %s", il, dense ? "a feed-forward layer and experts" : "no 'blk.N.ffn_up.weight', 'ffn_down', nor experts");
    return NOVA_OK;
}

static nova_result find_roles(nova_model *m, bool *used, nova_error *error) {
    uint64_t known = m->kind->required | m->kind->optional;
    for (uint32_t r = 0; r < ROLE_MODEL_COUNT; r++)
        if (known >> r & 1) TRY(find_role(m, -1, r, used, error));
    for (uint32_t il = 0; il < m->n_layer; il++) {
        for (uint32_t r = ROLE_MODEL_COUNT; r < ROLE_COUNT; r++)
            if (known >> r & 1) TRY(find_role(m, (int)il, r, used, error));
        TRY(complete_layer(m, il, error));
    }
    for (uint32_t i = 0; i < m->g.n_tensors; i++)
        if (!used[i])
            return fail(error, NOVA_ERROR_UNSUPPORTED, "the tensor '%.*s' is not known to the architecture '%s'",
                        STR_ARG(m->g.tensors[i].name), m->kind->name);
    if (!m->t[ROLE_OUTPUT].w.data) m->t[ROLE_OUTPUT] = m->t[ROLE_TOKEN_EMBD];   /* tied */
    return NOVA_OK;
}

static nova_result find_tensors(nova_model *m, nova_error *error) {
    bool *used = (bool *)mem_zalloc(&m->h, m->g.n_tensors);
    if (!used) return fail_memory(error, m->g.n_tensors, "tensor marks");
    nova_result result = find_roles(m, used, error);
    mem_free(&m->h, used, m->g.n_tensors);
    return result;
}

/* ---- Opening ---- */

static const char *copy_terminated(nova_model *m, str s) {
    char *z = (char *)arena_alloc(&m->a, s.n + 1);
    if (!z) return NULL;
    if (s.n) memcpy(z, s.p, s.n);
    z[s.n] = 0;
    return z;
}

/* The type that most bytes of the file are in. */
static const char *main_type(const nova_model *m) {
    uint64_t bytes[TYPE_LIMIT] = {0};
    uint32_t best = TYPE_F32;
    for (uint32_t i = 0; i < m->g.n_tensors; i++) {
        const gguf_tensor *t = &m->g.tensors[i];
        bytes[t->type] += t->n_bytes;
        if (bytes[t->type] > bytes[best]) best = t->type;
    }
    return type_of(best)->name;
}

static nova_result read_names(nova_model *m, nova_error *error) {
    str name = {NULL, 0};
    nova_error ignored;
    gguf_get_str(&m->g, "general.name", &name, &ignored);   /* of another type: nothing depends on it */
    gguf_get_str(&m->g, "tokenizer.chat_template", &m->chat_template, &ignored);
    m->name = copy_terminated(m, name);
    if (!m->name) return fail_memory(error, name.n + 1, "the name");
    m->type_name = main_type(m);
    for (uint32_t i = 0; i < m->g.n_tensors; i++) {
        const uint64_t *ne = m->g.tensors[i].ne;
        m->n_params += ne[0] * ne[1] * ne[2] * ne[3];   /* checked by gguf_read */
    }
    return NOVA_OK;
}

static nova_result find_arch(nova_model *m, nova_error *error) {
    str name = {NULL, 0};
    TRY(gguf_get_str(&m->g, "general.architecture", &name, error));
    if (!name.n) return fail(error, NOVA_ERROR_FORMAT, "the key 'general.architecture' is missing");
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (str_is(name, archs[i].name)) m->kind = &archs[i];
    if (!m->kind) return fail(error, NOVA_ERROR_UNSUPPORTED, "the architecture '%.*s' is not supported", STR_ARG(name));
    return NOVA_OK;
}

/* ---- A model in several files: NAME-00001-of-00003.gguf, and so on ---- */

#define MOST_PARTS 1000

/* Of the number that a file's name has at its end: "-00001-of-00003.gguf". */
static const char *part_suffix(char out[32], uint32_t part, uint32_t n) {
    snprintf(out, 32, "-%05u-of-%05u.gguf", part + 1, n);
    return out;
}

static nova_result read_part(nova_model *m, const nova_model_desc *d, const char *path, uint32_t part, uint32_t n_files, nova_error *error) {
    gguf    *g  = &m->part_heads[part - 1];
    uint32_t no = 0, n = 0;
    TRY(file_open(&m->parts[part - 1], &m->h, path, d->read_to_memory, d->progress, d->progress_user, error));
    m->n_parts = part;
    TRY(gguf_read(g, &m->a, m->parts[part - 1].data, m->parts[part - 1].size, false, error));
    TRY(gguf_get_u32(g, "split.no", &no, error));
    TRY(gguf_get_u32(g, "split.count", &n, error));
    if (no != part || n != n_files)
        return fail(error, NOVA_ERROR_FORMAT, "%s: it says that it is file %u of %u", path, no + 1, n);
    return gguf_join(&m->g, &m->a, g, error);
}

static nova_result read_parts(nova_model *m, const nova_model_desc *d, uint32_t n, char *path, nova_error *error) {
    char   suffix[32];
    size_t len = strlen(path), end = strlen(part_suffix(suffix, 0, n));
    if (len < end || strcmp(path + len - end, suffix))
        return fail(error, NOVA_ERROR_FORMAT, "this is the first of %u files, but its name does not end in '%s'", n, suffix);
    m->parts      = (file_map *)arena_zalloc(&m->a, n * sizeof *m->parts);
    m->part_heads = (gguf *)arena_zalloc(&m->a, n * sizeof *m->part_heads);
    if (!m->parts || !m->part_heads) return fail_memory(error, n * (sizeof *m->parts + sizeof *m->part_heads), "the files' heads");
    for (uint32_t part = 1; part < n; part++) {
        memcpy(path + len - end, part_suffix(suffix, part, n), end);
        nova_result result = read_part(m, d, path, part, n, error);
        if (result != NOVA_OK && error) {   /* say which of them */
            nova_error why = *error;
            return fail(error, result, "file %u of %u: %.400s", part + 1, n, why.message);
        }
        if (result != NOVA_OK) return result;
    }
    return NOVA_OK;
}

static nova_result open_parts(nova_model *m, const nova_model_desc *d, nova_error *error) {
    uint32_t n = 1, no = 0, n_tensors = 0;
    TRY(gguf_get_u32(&m->g, "split.count", &n, error));
    TRY(gguf_get_u32(&m->g, "split.no", &no, error));
    TRY(gguf_get_u32(&m->g, "split.tensors.count", &n_tensors, error));
    if (n <= 1 || m->vocab_only) return NOVA_OK;
    if (n > MOST_PARTS) return fail(error, NOVA_ERROR_FORMAT, "the key 'split.count' is %u: %d files are the most", n, MOST_PARTS);
    if (no != 0) return fail(error, NOVA_ERROR_FORMAT, "this is file %u of %u: open the first", no + 1, n);
    if (!d->path || d->data) return fail(error, NOVA_ERROR_UNSUPPORTED, "a model in %u files is opened by its path", n);
    size_t size = strlen(d->path) + 1;
    char  *path = (char *)mem_alloc(&m->h, size);
    if (!path) return fail_memory(error, size, "a path");
    memcpy(path, d->path, size);
    nova_result result = read_parts(m, d, n, path, error);
    mem_free(&m->h, path, size);
    if (result == NOVA_OK && n_tensors && n_tensors != m->g.n_tensors)
        return fail(error, NOVA_ERROR_FORMAT, "%u tensors in all files, not %u", m->g.n_tensors, n_tensors);
    return result;
}

static nova_result model_open(nova_model *m, const nova_model_desc *d, nova_error *error) {
    if (d->data) {
        m->file.data = (const uint8_t *)d->data;
        m->file.size = d->size;
    } else {
        TRY(file_open(&m->file, &m->h, d->path, d->read_to_memory, d->progress, d->progress_user, error));
        m->owns_file = true;
    }
    TRY(gguf_read(&m->g, &m->a, m->file.data, m->file.size, m->vocab_only, error));
    TRY(open_parts(m, d, error));
    TRY(read_names(m, error));
    TRY(tokenizer_open(&m->tok, &m->a, &m->h, &m->g, error));
    if (m->vocab_only) {
        m->n_vocab = tokenizer_n_vocab(m->tok);
        return NOVA_OK;
    }
    TRY(find_arch(m, error));
    TRY(read_hyper_parameters(m, error));
    return find_tensors(m, error);
}

NOVA_API nova_model *nova_model_open(const nova_model_desc *desc, nova_error *error) {
    error_clear(error);
    if (!desc || (!desc->path && !desc->data)) {
        fail(error, NOVA_ERROR_ARGUMENT, "no model file was named");
        return NULL;
    }
    host        h = host_init(desc->alloc, desc->alloc_user, desc->log, desc->log_user);
    nova_model *m = (nova_model *)mem_zalloc(&h, sizeof *m);
    if (!m) {
        fail_memory(error, sizeof *m, "the model");
        return NULL;
    }
    m->h          = h;
    m->vocab_only = desc->vocab_only;
    arena_init(&m->a, &m->h);
    if (model_open(m, desc, error) != NOVA_OK) {
        nova_model_close(m);
        return NULL;
    }
    return m;
}

NOVA_API void nova_model_close(nova_model *model) {
    if (!model) return;
    host h = model->h;
    for (uint32_t i = 0; i < model->n_parts; i++) file_close(&model->parts[i], &h);
    if (model->owns_file) file_close(&model->file, &h);
    arena_free(&model->a);
    mem_free(&h, model, sizeof *model);
}

/* ---- What the file holds ---- */

NOVA_API void nova_model_get_info(const nova_model *model, nova_model_info *info) {
    memset(info, 0, sizeof *info);
    info->architecture      = model->kind ? model->kind->name : "";
    info->name              = model->name;
    info->type              = model->type_name;
    info->n_bytes           = model->file.size;
    for (uint32_t i = 0; i < model->n_parts; i++) info->n_bytes += model->parts[i].size;
    info->n_params          = model->n_params;
    info->n_tensors         = model->g.n_tensors;
    info->n_meta            = model->g.n_meta;
    info->n_layer           = model->n_layer;
    info->n_embd            = model->n_embd;
    info->n_head            = model->layers ? model->layers[0].n_head : 0;
    info->n_head_kv         = model->layers ? model->layers[0].n_head_kv : 0;
    info->n_vocab           = model->n_vocab;
    info->n_ctx_train       = model->n_ctx_train;
    info->has_chat_template = model->chat_template.n != 0;
}

/* The start of the file that an address is in. */
static const uint8_t *file_of(const nova_model *m, const uint8_t *at) {
    for (uint32_t i = 0; i < m->n_parts; i++)
        if ((uintptr_t)at - (uintptr_t)m->parts[i].data < m->parts[i].size) return m->parts[i].data;
    return m->g.data;
}

NOVA_API bool nova_model_tensor(const nova_model *model, uint32_t index, nova_tensor_info *info) {
    if (index >= model->g.n_tensors) return false;
    const gguf_tensor *t = &model->g.tensors[index];
    info->name    = t->name.p;
    info->n_name  = t->name.n;
    info->type    = type_of(t->type)->name;
    info->n_dims  = t->n_dims;
    info->offset  = (uint64_t)(t->data - file_of(model, t->data));
    info->n_bytes = t->n_bytes;
    memcpy(info->dims, t->ne, sizeof info->dims);
    return true;
}

NOVA_API bool nova_model_meta(const nova_model *model, uint32_t index, const char **key, size_t *n_key, char *value,
                              size_t size) {
    if (index >= model->g.n_meta) return false;
    const gguf_meta *meta = &model->g.meta[index];
    *key   = meta->key.p;
    *n_key = meta->key.n;
    if (size) gguf_print(&meta->value, value, size);
    return true;
}
