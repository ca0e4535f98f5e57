/* A program: the forward pass of a model as a flat list of operations over buffers, compiled once when an engine opens.
 * The executors run the rows in order; what changes per pass (columns, positions, pages) is in a `pass`, never in a row.
 *
 * A buffer holds one row of floats a column (token). Behind OP_GATHER the columns are those whose logits are wanted. */
#ifndef NOVA_PROGRAM_H
#define NOVA_PROGRAM_H

#include "model.h"

typedef enum buffer_id {
    BUF_X,          /* the residual stream, n_embd */
    BUF_NORMED,
    BUF_Q, BUF_K, BUF_V,
    BUF_ATT,        /* the heads' outputs */
    BUF_FF, BUF_FF2,
    BUF_T,          /* the CPU's own: what a matmul gives before it is added */
    BUF_Y,          /* what is normed or scaled before it joins the residual stream */
    BUF_HEADS,      /* latent attention: the heads' queries before, their values behind */
    BUF_LATENT,     /* ... and what keys and values come from */
    BUF_GATE,       /* one number: the gate of the shared expert */
    BUF_ROUTER,     /* a logit for each expert */
    BUF_CHOSEN,     /* n_expert_used times (expert, weight), see op_route */
    BUF_EXPERTS,    /* the neurons of the chosen experts, one behind the other */
    BUF_LOGITS,     /* of at most program.n_logits columns at a time */
    BUF_COUNT
} buffer_id;

typedef enum op_kind {
    OP_EMBED,       /* dst = scale * rows of w[0] by the columns' ids, + rows of w[1] by their positions where n_w is 2 */
    OP_NORM,        /* dst = norm(src) * vec + bias, in n_groups of n floats; vec of n floats, or of all */
    OP_MATMUL,      /* r[i] = w[i] src + bias[i] for i < n_w, then by `epilogue`; then scaled, then capped */
    OP_STORE,       /* turns src (queries) and keys by position; puts keys and values into the cache */
    OP_ATTEND,      /* dst = attention of the queries src over the cache; vec: the heads' sinks */
    OP_GATHER,      /* keeps the columns of dst and src whose logits are wanted */
    OP_ADD,         /* dst += scale * src, times sigmoid of BUF_GATE where `gated` */
    OP_ROUTE,       /* dst = the experts that the logits src choose, and their weights */
    OP_EXPERTS_UP,  /* dst = act(w[0] src) * (w[1] src) of the chosen experts */
    OP_LATENT,      /* latent attention: queries of BUF_HEADS, by w[0] of each head, and BUF_LATENT to dst (BUF_Q) and BUF_K */
    OP_HEADS,       /* dst = w[0] of each head times its part of src */
    OP_EXPERTS_DOWN,   /* dst = weighted sum of w[0] src over the chosen experts */
    OP_KIND_COUNT
} op_kind;

typedef enum op_epilogue {
    EPILOGUE_NONE,  /* dst[i] = r[i] */
    EPILOGUE_ADD,   /* dst[0] += r[0] */
    EPILOGUE_ACT,   /* dst[0] = act(r[0]) */
    EPILOGUE_GLU    /* dst[0] = act(r[0]) * r[1] */
} op_epilogue;

#define OP_WEIGHTS 3

typedef struct op {
    op_kind       kind;
    op_epilogue   epilogue;
    activation    act;
    norm_kind     norm;
    uint32_t      layer;
    uint32_t      n_w;
    buffer_id     src;
    buffer_id     dst[OP_WEIGHTS];
    const weight *w[OP_WEIGHTS];
    const float  *bias[OP_WEIGHTS];   /* NULL: none */
    const float  *vec;                /* a norm's weight */
    uint32_t      n, n_groups, n_vec; /* of a norm: floats of a group, groups, floats of vec */
    float         scale, cap;         /* cap 0: none */
    bool          gated;
    bool          gathered;           /* works on the gathered columns */
} op;

/* Frequencies of rotary positions: pair i at position p is turned by p * freq[i], and its cosine and sine grow by
 * `magnitude`. */
typedef struct rope_table {
    uint32_t n_pairs;
    double  *freq;
    double   magnitude;
} rope_table;

typedef struct program {
    op        *ops;
    uint32_t   n_ops, n_body;         /* ops[n_body..] make logits, for n_logits gathered columns at a time */
    uint32_t   width[BUF_COUNT];      /* floats a column, 0: unused */
    rope_table ropes[ROPE_KINDS];     /* that a layer does not use has no pairs */
} program;

/* `n_ctx` chooses between long and short rope factors. Everything goes into the arena. Errors: MEMORY. */
static nova_result program_build(program *p, arena *a, const nova_model *m, uint32_t n_ctx, nova_error *error);

/* Cosine and sine of every pair at a position (which may be negative): n_pairs times two floats. */
static void rope_fill(const rope_table *t, int64_t position, double magnitude, float *cos_sin);

#endif
