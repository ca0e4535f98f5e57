/* Attention on the CPU over cache pages (cpu_page.h), with a running softmax (FlashAttention, arXiv 2205.14135): scores of
 * a page are never kept, and any number of pages can follow each other.
 *
 * Order: a query's result depends on its own keys alone: bit-identical for any number of queries computed together.
 * Scores of -infinity weigh nothing; a NaN or +infinity among a query's scores makes its result NaN. */
#ifndef NOVA_CPU_ATTEND_H
#define NOVA_CPU_ATTEND_H

#include "cpu_page.h"

typedef struct attend_shape {
    uint32_t head_dim_k, head_dim_v;   /* any, up to 1024 */
    uint32_t type_k, type_v;           /* F32, F16, Q8_0 or Q4_0 */
    float    scale;                    /* of q . k */
    float    soft_cap;                 /* score = cap * tanh(score / cap); 0: none */
} attend_shape;

/* One query's running state: greatest score, sum of exponentials, weighted sum of values (head_dim_v floats). */
typedef struct attend_state {
    float  top, sum;
    float *acc;
} attend_state;

static void attend_begin(attend_state *s, float *acc, uint32_t head_dim_v);
/* An attention sink: a learned score that takes weight and has no value (gpt-oss). */
NOVA_UNUSED static void attend_sink(attend_state *s, float score, uint32_t head_dim_v);

/* Bytes of scratch for attend_page with up to n_q queries, aligned to 64. */
static size_t attend_scratch_bytes(const attend_shape *shape, uint32_t n_q);

/* Lets query i (q[i], head_dim_k floats) see the page's tokens first[i] <= t < last[i] (none when first >= last).
 * Tokens outside may hold anything, NaN included. */
static void attend_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                        attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                        const void *v_page, void *scratch);

/* out = acc / sum; zeros when the query saw nothing. out may be acc. */
static void attend_end(const attend_state *s, float *out, uint32_t head_dim_v);

/* Stores one token's key and value (floats) into slot t of a page. */
static void attend_store(cpu_level level, const attend_shape *shape, void *k_page, void *v_page, uint32_t t,
                         const float *k, const float *v);
static size_t attend_k_page_bytes(const attend_shape *shape);   /* multiples of 64 */
static size_t attend_v_page_bytes(const attend_shape *shape);

#endif
