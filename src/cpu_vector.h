/* The CPU's work on vectors: norms, activations, rotary positions, sums. Lengths are arbitrary; nothing needs alignment
 * and no result depends on it. The plain and fast versions agree within a few units in the last place. */
#ifndef NOVA_CPU_VECTOR_H
#define NOVA_CPU_VECTOR_H

#include "cpu_input.h"

typedef enum norm_kind { NORM_RMS = 0, NORM_LAYER = 1 } norm_kind;

/* y = normalised x times w (NULL: 1) plus b (NULL: 0). Sums are kept in double or pairwise, whatever the length.
 * RMS: x / sqrt(mean(x^2) + eps). Layer: (x - mean) / sqrt(variance + eps). y may be x. */
static void vector_norm(cpu_level level, norm_kind kind, float *y, const float *x, const float *w, const float *b,
                        size_t n, float eps);

/* The activation of a feed-forward layer; source of the names: the models' papers. */
typedef enum activation {
    ACT_NONE = 0,
    ACT_SILU,       /* x * sigmoid(x) */
    ACT_GELU,       /* tanh form, as Gemma and GPT-2 */
    ACT_GELU_ERF,
    ACT_RELU,
    ACT_RELU_SQR,   /* max(x, 0)^2 */
    ACT_SWIGLU_CLAMPED   /* gpt-oss: g = min(gate, 7), g * sigmoid(1.702 g) * (1 + max(-7, min(up, 7))); of a gate alone without the last factor */
} activation;

/* y = act(x), in place allowed. exp and tanh are within 2 ulp of the exact ones, also for huge and tiny x; NaN stays
 * NaN; of -infinity only ACT_NONE makes something other than 0. */
static void vector_act(cpu_level level, activation act, float *y, const float *x, size_t n);
/* y = act(gate) * up */
static void vector_glu(cpu_level level, activation act, float *y, const float *gate, const float *up, size_t n);

static void  vector_add(cpu_level level, float *y, const float *x, size_t n);              /* y += x */
static void  vector_add_scaled(float *y, const float *x, float scale, size_t n);           /* y += scale * x */
static void  vector_cap(float *y, float cap, size_t n);                                    /* y = cap * tanh(y / cap) */
static void  vector_scale(cpu_level level, float *y, float scale, size_t n);               /* y *= scale */
NOVA_UNUSED static float vector_dot(cpu_level level, const float *a, const float *b, size_t n);
/* Softmax in place; the largest element is subtracted first. Zeros where all is -infinity. */
NOVA_UNUSED static void  vector_softmax(cpu_level level, float *x, size_t n);
/* Index of the largest element, the first of equals; NaN never wins. False when every element is NaN or n is 0. */
NOVA_UNUSED static bool  vector_argmax(cpu_level level, const float *x, size_t n, size_t *index);
/* False when an element is a NaN or an infinity. */
static bool  vector_finite(cpu_level level, const float *x, size_t n);

static void vector_half_from_float(cpu_level level, uint16_t *y, const float *x, size_t n);  /* nearest even */
static void vector_float_from_half(cpu_level level, float *y, const uint16_t *x, size_t n);

/* Rotary position embedding of one head (RoFormer, arXiv 2104.09864), in place. Pairs are (2i, 2i+1) ("norm") or
 * (i, i + n_rot/2) ("neox"); pair i is turned by the angle whose cosine and sine are cos_sin[2i], cos_sin[2i+1].
 * n_rot is even and at most the head's length; the rest of the head is left alone. */
static void vector_rope(cpu_level level, float *x, const float *cos_sin, uint32_t n_rot, bool neox);

#endif
