/* Attention on the CPU: see cpu_attend.h. */
#include "cpu_attend.h"

/* The greatest score starts at -FLT_MAX instead of -infinity, so that no difference of scores is ever inf - inf: scores
 * of -infinity, and nothing else, weigh nothing. */

static void attend_begin(attend_state *s, float *acc, uint32_t head_dim_v) {
    s->max = -FLT_MAX;
    s->sum = 0;
    s->acc = acc;
    for (uint32_t d = 0; d < head_dim_v; d++) acc[d] = 0;
}

static void attend_sink(attend_state *s, float score, uint32_t head_dim_v) {
    float max = score > s->max ? score : s->max, keep = exp_plain(s->max - max);
    s->sum = s->sum * keep + exp_plain(score - max);
    s->max = max;
    for (uint32_t d = 0; d < head_dim_v; d++) s->acc[d] *= keep;
}

static void attend_end(const attend_state *s, float *out, uint32_t head_dim_v) {
    for (uint32_t d = 0; d < head_dim_v; d++) out[d] = s->sum == 0 ? 0 : s->acc[d] / s->sum;
}

static size_t attend_k_page_bytes(const attend_shape *shape) {
    return (size_t)KV_PAGE * shape->head_dim_k * type_row_bytes(shape->type_k, 1);
}

static size_t attend_v_page_bytes(const attend_shape *shape) {
    return (size_t)KV_PAGE * shape->head_dim_v * type_row_bytes(shape->type_v, 1);
}

static void attend_store(cpu_level level, const attend_shape *shape, void *k_page, void *v_page, uint32_t t,
                         const float *k, const float *v) {
    if (shape->type_k == TYPE_F16) {
        uint16_t *out = (uint16_t *)k_page + t;
        for (uint32_t d = 0; d < shape->head_dim_k; d++) out[(size_t)d * KV_PAGE] = float_to_half(k[d]);
    } else {
        float *out = (float *)k_page + t;
        for (uint32_t d = 0; d < shape->head_dim_k; d++) out[(size_t)d * KV_PAGE] = k[d];
    }
    size_t at = (size_t)t * shape->head_dim_v;
    if (shape->type_v == TYPE_F16) vector_half_from_float(level, (uint16_t *)v_page + at, v, shape->head_dim_v);
    else memcpy((float *)v_page + at, v, shape->head_dim_v * sizeof *v);
}

/* ---- Scratch: the page's K and V as floats ---- */

static size_t attend_scratch_bytes(const attend_shape *shape, uint32_t n_q) {
    (void)n_q;
    return ((size_t)shape->head_dim_k + shape->head_dim_v) * KV_PAGE * sizeof(float);
}

static const float *page_floats(cpu_level level, uint32_t type, const void *page, float *scratch, size_t n) {
    if (type == TYPE_F32) return (const float *)page;
    vector_float_from_half(level, scratch, (const uint16_t *)page, n);
    return scratch;
}

/* ---- Plain ---- */

static void scores_plain(const attend_shape *shape, const float *q, const float *k, float *scores) {
    for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] = 0;
    for (uint32_t d = 0; d < shape->head_dim_k; d++)
        for (uint32_t t = 0; t < KV_PAGE; t++) scores[t] += q[d] * k[(size_t)d * KV_PAGE + t];
    for (uint32_t t = 0; t < KV_PAGE; t++) {
        scores[t] *= shape->scale;
        if (shape->soft_cap != 0) scores[t] = shape->soft_cap * tanh_plain(scores[t] / shape->soft_cap);
    }
}

static void query_plain(const attend_shape *shape, const float *q, attend_state *s, uint32_t first, uint32_t last,
                        const float *k, const float *v) {
    float scores[KV_PAGE], max = s->max;
    scores_plain(shape, q, k, scores);
    for (uint32_t t = first; t < last; t++) max = scores[t] > max ? scores[t] : max;
    float keep = exp_plain(s->max - max);
    s->max = max;
    s->sum *= keep;
    for (uint32_t d = 0; d < shape->head_dim_v; d++) s->acc[d] *= keep;
    for (uint32_t t = first; t < last; t++) {
        float p = exp_plain(scores[t] - max);
        s->sum += p;
        for (uint32_t d = 0; d < shape->head_dim_v; d++) s->acc[d] += p * v[(size_t)t * shape->head_dim_v + d];
    }
}

static void attend_page(cpu_level level, const attend_shape *shape, uint32_t n_q, const float *const *q,
                        attend_state *states, const uint32_t *first, const uint32_t *last, const void *k_page,
                        const void *v_page, void *scratch) {
    size_t       n_k = (size_t)KV_PAGE * shape->head_dim_k, n_v = (size_t)KV_PAGE * shape->head_dim_v;
    const float *k = page_floats(level, shape->type_k, k_page, (float *)scratch, n_k);
    const float *v = page_floats(level, shape->type_v, v_page, (float *)scratch + n_k, n_v);
    for (uint32_t i = 0; i < n_q; i++)
        if (first[i] < last[i]) query_plain(shape, q[i], &states[i], first[i], last[i], k, v);
}
