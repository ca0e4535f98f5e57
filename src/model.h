/* A model: the mapped file, its hyper-parameters, and for every layer the tensors by their role. Immutable once open. */
#ifndef NOVA_MODEL_H
#define NOVA_MODEL_H

#include "chat.h"
#include "cpu_vector.h"
#include "platform.h"

/* ---- Tensors by role ---- */

/* What the sizes of tensors are called; their values are a model's or a layer's (dim_of). */
typedef enum model_dim {
    DIM_ONE, DIM_EMBD, DIM_Q, DIM_K, DIM_V, DIM_QKV, DIM_HEAD, DIM_HEADS, DIM_ATT, DIM_FF, DIM_FF_TWICE, DIM_FF_EXPERT, DIM_FF_SHARED,
    DIM_EXPERTS, DIM_VOCAB, DIM_ROPE, DIM_POSITIONS,
    DIM_MLA_Q, DIM_MLA_KV, DIM_MLA_LATENT, DIM_MLA_NOPE, DIM_MLA_HEAD,   /* multi-head latent attention */
    DIM_COUNT
} model_dim;

/* role, name in the file, row length, rows (DIM_ONE: a vector). Vectors of DIM_HEAD may have as many for each head. */
#define MODEL_TENSORS(X)                                      \
    X(TOKEN_EMBD, "token_embd", DIM_EMBD, DIM_VOCAB)          \
    X(POSITION_EMBD, "position_embd", DIM_EMBD, DIM_POSITIONS) \
    X(OUTPUT_NORM, "output_norm", DIM_EMBD, DIM_ONE)          \
    X(OUTPUT, "output", DIM_EMBD, DIM_VOCAB)                  \
    X(ROPE_FREQS, "rope_freqs", DIM_ROPE, DIM_ONE)            \
    X(ROPE_LONG, "rope_factors_long", DIM_ROPE, DIM_ONE)      \
    X(ROPE_SHORT, "rope_factors_short", DIM_ROPE, DIM_ONE)

#define LAYER_TENSORS(X)                                      \
    X(ATTN_NORM, "attn_norm", DIM_EMBD, DIM_ONE)              \
    X(ATTN_Q, "attn_q", DIM_EMBD, DIM_Q)                      \
    X(ATTN_K, "attn_k", DIM_EMBD, DIM_K)                      \
    X(ATTN_V, "attn_v", DIM_EMBD, DIM_V)                      \
    X(ATTN_QKV, "attn_qkv", DIM_EMBD, DIM_QKV)                \
    X(ATTN_Q_NORM, "attn_q_norm", DIM_HEAD, DIM_ONE)          \
    X(ATTN_K_NORM, "attn_k_norm", DIM_HEAD, DIM_ONE)          \
    X(ATTN_SINKS, "attn_sinks", DIM_HEADS, DIM_ONE)           \
    X(MLA_Q, "attn_q", DIM_EMBD, DIM_MLA_Q)                   \
    X(MLA_KV, "attn_kv_a_mqa", DIM_EMBD, DIM_MLA_KV)          \
    X(MLA_NORM, "attn_kv_a_norm", DIM_MLA_LATENT, DIM_ONE)    \
    X(MLA_K, "attn_k_b", DIM_MLA_NOPE, DIM_MLA_LATENT)        \
    X(MLA_V, "attn_v_b", DIM_MLA_LATENT, DIM_MLA_HEAD)        \
    X(ATTN_SUB_NORM, "attn_sub_norm", DIM_ATT, DIM_ONE)       \
    X(ATTN_OUT, "attn_output", DIM_ATT, DIM_EMBD)             \
    X(ATTN_POST_NORM, "post_attention_norm", DIM_EMBD, DIM_ONE) \
    X(FFN_NORM, "ffn_norm", DIM_EMBD, DIM_ONE)                \
    X(FFN_GATE, "ffn_gate", DIM_EMBD, DIM_FF)                 \
    X(FFN_UP, "ffn_up", DIM_EMBD, DIM_FF)                     \
    X(FFN_UP_TWICE, "ffn_up", DIM_EMBD, DIM_FF_TWICE)         \
    X(FFN_SUB_NORM, "ffn_sub_norm", DIM_FF, DIM_ONE)          \
    X(FFN_DOWN, "ffn_down", DIM_FF, DIM_EMBD)                 \
    X(FFN_POST_NORM, "post_ffw_norm", DIM_EMBD, DIM_ONE)      \
    X(ROUTER, "ffn_gate_inp", DIM_EMBD, DIM_EXPERTS)          \
    X(EXPERTS_GATE, "ffn_gate_exps", DIM_EMBD, DIM_FF_EXPERT) \
    X(EXPERTS_UP, "ffn_up_exps", DIM_EMBD, DIM_FF_EXPERT)     \
    X(EXPERTS_DOWN, "ffn_down_exps", DIM_FF_EXPERT, DIM_EMBD) \
    X(SHARED_ROUTER, "ffn_gate_inp_shexp", DIM_EMBD, DIM_ONE) \
    X(SHARED_GATE, "ffn_gate_shexp", DIM_EMBD, DIM_FF_SHARED) \
    X(SHARED_UP, "ffn_up_shexp", DIM_EMBD, DIM_FF_SHARED)     \
    X(SHARED_DOWN, "ffn_down_shexp", DIM_FF_SHARED, DIM_EMBD)

typedef enum role {
#define ROLE_ENUM(role, name, n_in, n_out) ROLE_##role,
    MODEL_TENSORS(ROLE_ENUM) ROLE_MODEL_COUNT,
    ROLE_LAYER_FIRST = ROLE_MODEL_COUNT - 1,
    LAYER_TENSORS(ROLE_ENUM) ROLE_COUNT
#undef ROLE_ENUM
} role;

#define ROLE_BIT(role) ((uint64_t)1 << ROLE_##role)
typedef char roles_fit_64_bits[ROLE_COUNT <= 64 ? 1 : -1];

/* Roles whose matrices are stacked, one for each head. */
#define ROLES_HEADS (ROLE_BIT(MLA_K) | ROLE_BIT(MLA_V))
/* ... and one for each expert. */
#define ROLES_STACKED (ROLE_BIT(EXPERTS_GATE) | ROLE_BIT(EXPERTS_UP) | ROLE_BIT(EXPERTS_DOWN))

/* One tensor in use. A matrix is read where it lies; a vector is always float32 (in the file, or converted). */
typedef struct model_tensor {
    weight       w;      /* data NULL: the model has none */
    const float *vec;    /* a vector's floats, NULL for a matrix */
    const float *bias;   /* "<name>.bias", or NULL; of stacked matrices all, one behind the other */
    uint32_t     n_vec;  /* floats of the vector */
} model_tensor;

/* ---- Architectures ---- */

/* What sets an architecture apart from llama, beyond its tensors. */
enum {
    ARCH_NEOX          = 1,      /* rotary pairs (i, i + n/2), else (2i, 2i + 1) */
    ARCH_WHOLE_HEAD    = 2,      /* rotary positions turn all of a head */
    ARCH_NO_ROPE       = 4,
    ARCH_EMBED_SQRT    = 8,      /* embeddings are multiplied by sqrt(n_embd) */
    ARCH_POST_IS_FFN   = 16,     /* the tensor post_attention_norm stands in front of the FFN, as ffn_norm does elsewhere */
    ARCH_PARALLEL      = 32,     /* where ffn_norm is missing, the FFN reads what attention reads */
    ARCH_INVERSE_LOGIT = 64,     /* logits are divided by logit_scale */
    ARCH_NORM_WEIGHTS  = 128,    /* weights of the chosen experts are made to sum to 1 */
    ARCH_ROUTE_EARLY   = 256,    /* experts are chosen by what the layer reads, in front of attention */
    ARCH_WINDOW_UNKNOWN = 1024,  /* files of this name may have windows, by rules that are not known here */
    ARCH_DENSE_FIRST   = 512,    /* of a window's period the first layer is the one without a window, and then without rotary
                                    positions; else the last is */
};

/* How a router's logits become weights: softmax or sigmoid of all, or softmax of the chosen. The file's numbers. */
typedef enum gating { GATING_DEFAULT, GATING_SOFTMAX, GATING_SIGMOID, GATING_SOFTMAX_CHOSEN } gating;

typedef struct arch {
    const char *name;
    uint64_t    required, optional;   /* ROLE_BITs: tensors that must and that may be there */
    norm_kind   norm;
    activation  act;                  /* of the feed-forward layer; gated where there is a gate */
    uint32_t    flags;                /* ARCH_... */
    uint32_t    window_period;        /* of so many layers one has no window; 0: none has one */
    float       rope_base_local;      /* of layers with a window; 0: as the others, scaling included */
    uint32_t    widest_layers;        /* a model of so many layers scales attention by n_embd / n_head; 0: none does */
    float       attn_cap, logit_cap;  /* defaults of the soft caps; 0: none */
    gating      route;
} arch;

/* ---- Hyper-parameters ---- */

#define MAX_EXPERTS 1024

typedef enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LONGROPE } rope_scaling;

/* Rotary positions as the file describes them; program.c makes frequencies of it. */
typedef struct rope_params {
    rope_scaling scaling;
    uint32_t     n_rot;
    uint32_t     n_ctx_orig;                 /* context before scaling */
    float        freq_base, factor;          /* factor: of the scaling, 1: none */
    float        freq_base_local;            /* of layers with a window, which then have no scaling; 0: as the others */
    float        attn_factor;                /* multiplies cosine and sine */
    float        ext_factor, beta_fast, beta_slow, log_multiplier;   /* YaRN, arXiv 2309.00071; ext_factor < 0: by type */
} rope_params;

/* Which rotary positions a layer has. */
enum { ROPE_GLOBAL, ROPE_LOCAL, ROPE_KINDS, ROPE_NOT = ROPE_KINDS };

typedef struct model_layer {
    uint32_t n_head, n_head_kv, n_ff;
    uint32_t window;     /* tokens that a query sees, itself included; 0: all */
    uint32_t rope;       /* ROPE_... */
    model_tensor t[ROLE_COUNT - ROLE_MODEL_COUNT];
} model_layer;

#define LAYER_TENSOR(layer, role) (&(layer)->t[ROLE_##role - ROLE_MODEL_COUNT])

struct nova_model {
    host        h;
    arena       a;
    file_map    file;
    bool        owns_file;
    file_map   *parts;              /* the files behind the first, of a model in several */
    gguf       *part_heads;
    uint32_t    n_parts;
    bool        vocab_only;
    gguf        g;
    tokenizer  *tok;
    str         chat_template;      /* n 0: none */
    const char *name, *type_name;   /* terminated */
    uint64_t    n_params;

    const arch *kind;
    uint32_t    n_layer, n_embd, n_vocab, n_ctx_train;
    uint32_t    head_dim_k, head_dim_v;
    float       norm_eps;
    float       attn_scale;         /* of q . k */
    float       attn_cap, logit_cap;   /* soft caps: cap * tanh(x / cap); 0: none */
    float       embed_scale, residual_scale, logit_scale;
    uint32_t    n_expert, n_expert_used, n_ff_expert, n_ff_shared;   /* n_expert 0: none */
    float       expert_scale;       /* of the chosen experts' weights */
    gating      route;
    bool        norm_weights;
    uint32_t    n_positions;        /* learned ones; 0: none */
    /* Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): heads have n_nope + n_rot dimensions of keys and n_v of values, made
     * of one latent row of head_dim_v numbers, which is what the cache keeps, with the turned part of the key. */
    uint32_t    n_nope, n_v;        /* 0: none */
    rope_params rope;
    model_tensor t[ROLE_MODEL_COUNT];
    model_layer *layers;
};

/* The value of a dim for a layer (`l` NULL: for tensors of the model itself). */
static uint32_t dim_of(const nova_model *m, const model_layer *l, model_dim d);

#endif
