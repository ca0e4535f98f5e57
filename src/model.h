/* A model: the mapped file, its hyper-parameters, and for every layer the tensors by their role. Immutable once open. */
#ifndef NOVA_MODEL_H
#define NOVA_MODEL_H

#include "chat.h"
#include "cpu_vector.h"
#include "platform.h"

/* ---- Tensors by role ---- */

/* What the sizes of tensors are called; their values are a model's or a layer's (dim_of). */
typedef enum model_dim { DIM_ONE, DIM_EMBD, DIM_Q, DIM_K, DIM_V, DIM_ATT, DIM_FF, DIM_VOCAB, DIM_ROPE, DIM_COUNT } model_dim;

/* role, name in the file, row length, rows (DIM_ONE: a vector) */
#define MODEL_TENSORS(X)                                      \
    X(TOKEN_EMBD, "token_embd", DIM_EMBD, DIM_VOCAB)          \
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
    X(ATTN_OUT, "attn_output", DIM_ATT, DIM_EMBD)             \
    X(FFN_NORM, "ffn_norm", DIM_EMBD, DIM_ONE)                \
    X(FFN_GATE, "ffn_gate", DIM_EMBD, DIM_FF)                 \
    X(FFN_UP, "ffn_up", DIM_EMBD, DIM_FF)                     \
    X(FFN_DOWN, "ffn_down", DIM_FF, DIM_EMBD)

typedef enum role {
#define ROLE_ENUM(role, name, n_in, n_out) ROLE_##role,
    MODEL_TENSORS(ROLE_ENUM) ROLE_MODEL_COUNT,
    ROLE_LAYER_FIRST = ROLE_MODEL_COUNT - 1,
    LAYER_TENSORS(ROLE_ENUM) ROLE_COUNT
#undef ROLE_ENUM
} role;

#define ROLE_BIT(role) ((uint64_t)1 << ROLE_##role)

/* One tensor in use. A matrix is read where it lies; a vector is always float32 (in the file, or converted). */
typedef struct model_tensor {
    weight       w;      /* data NULL: the model has none */
    const float *vec;    /* a vector's floats, NULL for a matrix */
    const float *bias;   /* "<name>.bias", or NULL */
} model_tensor;

/* ---- Architectures ---- */

typedef struct arch {
    const char *name;
    uint64_t    required, optional;   /* ROLE_BITs: tensors that must and that may be there */
    norm_kind   norm;
    activation  act;                  /* of the feed-forward layer; gated where ROLE_FFN_GATE is required */
    bool        rope_neox;            /* pairs (i, i + n/2), else (2i, 2i + 1) */
    bool        rope_whole_head;      /* n_rot must be the head size */
} arch;

/* ---- Hyper-parameters ---- */

typedef enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LONGROPE } rope_scaling;

/* Rotary positions as the file describes them; program.c makes frequencies of it. */
typedef struct rope_params {
    rope_scaling scaling;
    uint32_t     n_rot;
    uint32_t     n_ctx_orig;                 /* context before scaling */
    float        freq_base, factor;          /* factor: of the scaling, 1: none */
    float        attn_factor;                /* multiplies cosine and sine */
    float        ext_factor, beta_fast, beta_slow, log_multiplier;   /* YaRN, arXiv 2309.00071; ext_factor < 0: by type */
} rope_params;

typedef struct model_layer {
    uint32_t n_head, n_head_kv, n_ff;
    model_tensor t[ROLE_COUNT - ROLE_MODEL_COUNT];
} model_layer;

#define LAYER_TENSOR(layer, role) (&(layer)->t[ROLE_##role - ROLE_MODEL_COUNT])

struct nova_model {
    host        h;
    arena       a;
    file_map    file;
    bool        owns_file;
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
    rope_params rope;
    model_tensor t[ROLE_MODEL_COUNT];
    model_layer *layers;
};

/* The value of a dim for a layer (`l` NULL: for tensors of the model itself). */
static uint32_t dim_of(const nova_model *m, const model_layer *l, model_dim d);

#endif
