/* The CPU's work on vectors: see cpu_vector.h. */
#include "cpu_vector.h"

/* ---- Plain functions of one number, in double, so that the float they are rounded to is nearly always the nearest ---- */

static float exp_plain(float x) { return (float)exp((double)x); }

static float tanh_plain(float x) { return (float)tanh((double)x); }

static double sigmoid_plain(double x) { return 1.0 / (1.0 + exp(-x)); }

#define SQRT_1_2      0.70710678118654752440
#define SQRT_2_OVER_PI 0.79788456080286535588

static float act_plain(activation act, float x) {
    double d = x;
    switch (act) {
    case ACT_NONE:     return x;
    case ACT_SILU:     return (float)(d * sigmoid_plain(d));
    case ACT_GELU:     return (float)(d * sigmoid_plain(2.0 * SQRT_2_OVER_PI * (d + 0.044715 * d * d * d)));
    case ACT_GELU_ERF: return (float)(d * 0.5 * erfc(-d * SQRT_1_2));
    case ACT_RELU:     return x > 0 ? x : 0;
    case ACT_RELU_SQR: return x > 0 ? x * x : 0;
    }
    return x;
}

/* ---- Norms ---- */

static void vector_norm(cpu_level level, norm_kind kind, float *y, const float *x, const float *w, const float *b,
                        size_t n, float eps) {
    (void)level;
    double mean = 0, squares = 0;
    if (kind == NORM_LAYER) {
        for (size_t i = 0; i < n; i++) mean += x[i];
        mean /= (double)n;
    }
    for (size_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    double scale = 1.0 / sqrt(squares / (double)n + (double)eps);
    for (size_t i = 0; i < n; i++) {
        float v = (float)((x[i] - mean) * scale);
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

/* ---- Activations ---- */

static void vector_act(cpu_level level, activation act, float *y, const float *x, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] = act_plain(act, x[i]);
}

static void vector_glu(cpu_level level, activation act, float *y, const float *gate, const float *up, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] = act_plain(act, gate[i]) * up[i];
}

/* ---- Sums ---- */

static void vector_add(cpu_level level, float *y, const float *x, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

static void vector_scale(cpu_level level, float *y, float scale, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] *= scale;
}

static float vector_dot(cpu_level level, const float *a, const float *b, size_t n) {
    (void)level;
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return (float)sum;
}

static void vector_softmax(cpu_level level, float *x, size_t n) {
    (void)level;
    float  max = -FLT_MAX;
    double sum = 0;
    for (size_t i = 0; i < n; i++) max = x[i] > max ? x[i] : max;
    for (size_t i = 0; i < n; i++) sum += x[i] = exp_plain(x[i] - max);
    for (size_t i = 0; i < n; i++) x[i] = (float)(x[i] / sum);
}

static bool vector_argmax(cpu_level level, const float *x, size_t n, size_t *index) {
    (void)level;
    bool  found = false;
    float max   = 0;
    for (size_t i = 0; i < n; i++) {
        if ((load_u32(x + i) & 0x7fffffffu) > 0x7f800000u || (found && x[i] <= max)) continue;
        found  = true;
        max    = x[i];
        *index = i;
    }
    return found;
}

static bool vector_finite(cpu_level level, const float *x, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++)
        if ((load_u32(x + i) & 0x7f800000u) == 0x7f800000u) return false;
    return true;
}

/* ---- Half precision ---- */

static void vector_half_from_float(cpu_level level, uint16_t *y, const float *x, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] = float_to_half(x[i]);
}

static void vector_float_from_half(cpu_level level, float *y, const uint16_t *x, size_t n) {
    (void)level;
    for (size_t i = 0; i < n; i++) y[i] = half_to_float(x[i]);
}

/* ---- Rotary positions ---- */

static void vector_rope(cpu_level level, float *x, const float *cos_sin, uint32_t n_rot, bool neox) {
    (void)level;
    uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + i + half : a + 1;
        float  c = cos_sin[2 * i], s = cos_sin[2 * i + 1], u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}
