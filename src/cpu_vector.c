/* The CPU's work on vectors: see cpu_vector.h.
 *
 * Each level has functions of one register (or number), and the same loops over them. What memory bounds anyway has no
 * version of its own for AVX-512. */
#include "cpu_vector.h"

/* ---- Constants of the fast functions ----
 *
 * exp(x) = 2^n * e^r with |r| <= ln(2)/2, and e^r = 1 + r + r^2 (EXP_2 + EXP_3 r + ...): minimax in the relative error,
 * below 2^-28, by Remez's exchange with the coefficients rounded to floats one after the other. So are the others. */
#define LOG2_E   1.44269504f
#define LN2_HIGH 0.693147182f
#define LN2_LOW  -1.90465430e-9f
#define EXP_2    4.999999404e-1f
#define EXP_3    1.666651666e-1f
#define EXP_4    4.166810215e-2f
#define EXP_5    8.369193412e-3f
#define EXP_6    1.383893308e-3f
#define EXP_LOW  -104.0f   /* below, and above, the result is 0 and infinity */
#define EXP_HIGH 89.0f

/* tanh(x) = x + x^3 (TANH_1 + TANH_2 x^2 + ...) up to TANH_MIDDLE, 2^-29; above it 1 - 2 / (e^2x + 1). */
#define TANH_MIDDLE 0.55f
#define TANH_1      -3.333331645e-1f
#define TANH_2      1.333254427e-1f
#define TANH_3      -5.384754762e-2f
#define TANH_4      2.105071396e-2f
#define TANH_5      -6.242848933e-3f

/* The normal distribution's tail: P(X > x) = e^(-x^2/2) t (TAIL_0 + TAIL_1 t + ...) with t = 1 / (1 + TAIL_T x), for
 * 0 <= x <= TAIL_END, 2^-25.9. Behind that it is below the smallest float. */
#define TAIL_T   0.319999993f
#define TAIL_END 15.0f
#define TAIL_0   1.276544631e-1f
#define TAIL_1   1.278202832e-1f
#define TAIL_2   1.131133512e-1f
#define TAIL_3   9.571313113e-2f
#define TAIL_4   3.353587911e-2f
#define TAIL_5   4.142346978e-2f
#define TAIL_6   -1.667760516e-4f
#define TAIL_7   -9.459164739e-2f
#define TAIL_8   7.209257782e-2f
#define TAIL_9   -1.659473963e-2f

#define GELU_1   1.595769122f     /* 2 sqrt(2/pi): gelu(x) = x sigmoid(GELU_1 x + GELU_3 x^3) */
#define GELU_3   7.135481283e-2f  /* 0.044715 of that */

/* ---- Plain: one number, in double, so that the float it is rounded to is nearly always the nearest ---- */

static bool is_nan_bits(float x) { return (load_u32(&x) & 0x7fffffffu) > 0x7f800000u; }

/* Taylor's series up to r^11: its rest is below 2^-44. */
static double exp_double(double x) {
    static const double inverse[] = { 1.0, 1.0, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8, 1.0 / 9,
                                      1.0 / 10, 1.0 / 11 };
    double  n = floor(x * 1.44269504088896341 + 0.5), r = x - n * 0.693147180559945309, p = 1, power;
    int64_t bits = (1023 + (int64_t)n) * ((int64_t)1 << 52);
    for (int k = 11; k > 0; k--) p = 1 + p * r * inverse[k];
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static float exp_plain(float x) {
    if (is_nan_bits(x)) return x;
    if (x < EXP_LOW) return 0;
    return x > EXP_HIGH ? INFINITY : (float)exp_double((double)x);
}

static float tanh_plain(float x) { return (float)tanh((double)x); }

/* 1 / (1 + e^-x) */
static double sigmoid_double(double x) {
    double e = x > -700 && x < 700 ? exp_double(x < 0 ? x : -x) : 0;
    return (x < 0 ? e : 1.0) / (1.0 + e);
}

/* x times its share, which is 0 where x is -infinity. */
static float gate_plain(double x, double share) { return share == 0 ? 0.0f : (float)(x * share); }

static float act_plain(activation act, float x) {
    double d = (double)x;
    if (is_nan_bits(x)) return x;
    switch (act) {
    case ACT_NONE:     return x;
    case ACT_SILU:     return gate_plain(d, sigmoid_double(d));
    case ACT_GELU:     return gate_plain(d, sigmoid_double(1.5957691216057308 * (d + 0.044715 * d * d * d)));
    case ACT_GELU_ERF: return gate_plain(d, 0.5 * erfc(-d * 0.70710678118654752));
    case ACT_RELU:     return x > 0 ? x : 0;
    case ACT_RELU_SQR: return x > 0 ? x * x : 0;
    case ACT_SWIGLU_CLAMPED: break;   /* not by elements of one vector */
    }
    return x;
}

/* ---- Plain: vectors ---- */

static void norm_plain(norm_kind kind, float *y, const float *x, const float *w, const float *b, size_t n, double eps) {
    double mean = 0, squares = 0;
    if (kind == NORM_LAYER) {
        for (size_t i = 0; i < n; i++) mean += (double)x[i];
        mean /= (double)n;
    }
    for (size_t i = 0; i < n; i++) squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    double scale = 1.0 / sqrt(squares / (double)n + eps);
    for (size_t i = 0; i < n; i++) {
        float v = (float)(((double)x[i] - mean) * scale);
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

static void glu_plain(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = up ? act_plain(act, gate[i]) * up[i] : act_plain(act, gate[i]);
}

static float dot_plain(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

static void softmax_plain(float *x, size_t n) {
    float  top = -FLT_MAX;
    double sum = 0;
    for (size_t i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++) sum += (double)(x[i] = exp_plain(x[i] - top));
    for (size_t i = 0; i < n; i++) x[i] = sum == 0 ? 0 : (float)((double)x[i] / sum);
}

static bool argmax_plain(const float *x, size_t n, size_t *index) {
    bool  found = false;
    float top   = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_nan_bits(x[i]) || (found && x[i] <= top)) continue;
        found  = true;
        top    = x[i];
        *index = i;
    }
    return found;
}

static bool finite_plain(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((load_u32(x + i) & 0x7f800000u) == 0x7f800000u) return false;
    return true;
}

/* half_to_float without a branch, for loops of which compilers make vectors: exponent and mantissa move to their
 * places, and a product, exact also from and to subnormals, corrects the exponent's bias. */
NOVA_INLINE float half_moved(uint16_t h) {
    uint32_t rest = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t special = rest >= 0x0f800000u ? 0x7f800000u : 0;   /* infinities and NaNs */
    float    f;
    memcpy(&f, &rest, sizeof f);
    f *= 5192296858534827628530496329220096.0f;   /* 2^112 */
    memcpy(&rest, &f, sizeof f);
    rest |= sign | special;
    memcpy(&f, &rest, sizeof f);
    return f;
}

static void float_from_half_plain(float *y, const uint16_t *x, size_t n) {
    for (; n >= 16; n -= 16, x += 16, y += 16)
        for (size_t i = 0; i < 16; i++) y[i] = half_moved(x[i]);
    for (size_t i = 0; i < n; i++) y[i] = half_moved(x[i]);
}

static void rope_plain(float *x, const float *cos_sin, uint32_t begin, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2;
    for (uint32_t i = begin; i < half; i++) {
        float *a = neox ? x + i : x + 2 * i, *b = neox ? x + i + half : a + 1;
        float  c = cos_sin[2 * i], s = cos_sin[2 * i + 1], u = *a, v = *b;
        *a = u * c - v * s;
        *b = u * s + v * c;
    }
}

#ifdef NOVA_X86

/* ---- AVX2: functions of a register ---- */

#define AVX2   NOVA_TARGET_AVX2 NOVA_INLINE
#define AVX512 NOVA_TARGET_AVX512 NOVA_INLINE

AVX2 __m256 set_avx2(float x) { return _mm256_set1_ps(x); }

/* Lanes below n. */
AVX2 __m256i lanes_avx2(size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)size_min(n, 8)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

AVX2 __m256 exp_avx2(__m256 x) {
    x = _mm256_blendv_ps(x, set_avx2(EXP_LOW), _mm256_cmp_ps(x, set_avx2(EXP_LOW), _CMP_LT_OQ));
    x = _mm256_blendv_ps(x, set_avx2(EXP_HIGH), _mm256_cmp_ps(x, set_avx2(EXP_HIGH), _CMP_GT_OQ));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, set_avx2(LOG2_E)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, set_avx2(LN2_LOW), _mm256_fnmadd_ps(n, set_avx2(LN2_HIGH), x));
    __m256 p = _mm256_fmadd_ps(r, set_avx2(EXP_6), set_avx2(EXP_5));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_4));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_3));
    p = _mm256_fmadd_ps(p, r, set_avx2(EXP_2));
    p = _mm256_fmadd_ps(p, r, set_avx2(1));
    p = _mm256_fmadd_ps(p, r, set_avx2(1));
    /* In two steps, since neither 2^128 nor a subnormal power is a normal float; the second rounds, once. */
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    __m256i rest  = _mm256_sub_epi32(whole, half);
    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}

AVX2 __m256 tanh_avx2(__m256 x) {
    const __m256 sign = set_avx2(-0.0f), one = set_avx2(1);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_fmadd_ps(z, set_avx2(TANH_5), set_avx2(TANH_4));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_3));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_2));
    p = _mm256_fmadd_ps(p, z, set_avx2(TANH_1));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    __m256 e   = exp_avx2(_mm256_add_ps(a, a));
    __m256 big = _mm256_sub_ps(one, _mm256_div_ps(set_avx2(2), _mm256_add_ps(e, one)));
    p = _mm256_blendv_ps(p, big, _mm256_cmp_ps(a, set_avx2(TANH_MIDDLE), _CMP_GT_OQ));
    return _mm256_or_ps(p, _mm256_and_ps(sign, x));
}

/* x times its share, which is 0 where x is -infinity. */
AVX2 __m256 gate_avx2(__m256 x, __m256 share) {
    return _mm256_and_ps(_mm256_mul_ps(x, share), _mm256_cmp_ps(share, _mm256_setzero_ps(), _CMP_NEQ_UQ));
}

AVX2 __m256 sigmoid_avx2(__m256 x) {
    const __m256 one = set_avx2(1);
    __m256 e = exp_avx2(_mm256_or_ps(x, set_avx2(-0.0f)));
    __m256 above = _mm256_blendv_ps(one, e, x);   /* chosen by x's sign */
    return _mm256_div_ps(above, _mm256_add_ps(e, one));
}

/* P(X < x) of the normal distribution. */
AVX2 __m256 normal_avx2(__m256 x) {
    __m256 a = _mm256_andnot_ps(set_avx2(-0.0f), x);
    a = _mm256_blendv_ps(a, set_avx2(TAIL_END), _mm256_cmp_ps(a, set_avx2(TAIL_END), _CMP_GT_OQ));
    __m256 t = _mm256_div_ps(set_avx2(1), _mm256_fmadd_ps(a, set_avx2(TAIL_T), set_avx2(1)));
    __m256 p = _mm256_fmadd_ps(t, set_avx2(TAIL_9), set_avx2(TAIL_8));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_7));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_6));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_5));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_4));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_3));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_2));
    p = _mm256_fmadd_ps(p, t, set_avx2(TAIL_1));
    p = _mm256_mul_ps(_mm256_fmadd_ps(p, t, set_avx2(TAIL_0)), t);
    /* The square's rounding error is a factor of its own. */
    __m256 square = _mm256_mul_ps(a, a), error = _mm256_fmsub_ps(a, a, square);
    __m256 e = exp_avx2(_mm256_mul_ps(square, set_avx2(-0.5f)));
    e = _mm256_fnmadd_ps(_mm256_mul_ps(error, set_avx2(0.5f)), e, e);
    __m256 tail = _mm256_mul_ps(p, e);
    return _mm256_blendv_ps(_mm256_sub_ps(set_avx2(1), tail), tail, x);
}

AVX2 __m256 act_avx2(activation act, __m256 x) {
    __m256 positive;
    switch (act) {
    case ACT_NONE:     break;
    case ACT_SWIGLU_CLAMPED: break;
    case ACT_SILU:     return gate_avx2(x, sigmoid_avx2(x));
    case ACT_GELU:
        return gate_avx2(x, sigmoid_avx2(_mm256_mul_ps(
                                x, _mm256_fmadd_ps(_mm256_mul_ps(x, x), set_avx2(GELU_3), set_avx2(GELU_1)))));
    case ACT_GELU_ERF: return gate_avx2(x, normal_avx2(x));
    case ACT_RELU:
    case ACT_RELU_SQR:
        positive = _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LE_OQ), x);   /* a NaN stays */
        return act == ACT_RELU ? positive : _mm256_mul_ps(positive, positive);
    }
    return x;
}

/* ---- AVX2: vectors ---- */

NOVA_TARGET_AVX2
static double sum_lanes_avx2(__m256d a, __m256d b) {
    a = _mm256_add_pd(a, b);
    __m128d c = _mm_add_pd(_mm256_castpd256_pd128(a), _mm256_extractf128_pd(a, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

/* The sum of (x - mean), or of its square. */
NOVA_TARGET_AVX2
static double moment_avx2(const float *x, size_t n, double mean, bool square) {
    __m256d m = _mm256_set1_pd(mean), sum[2] = { _mm256_setzero_pd(), _mm256_setzero_pd() };
    size_t  i = 0;
    double  rest = 0;
    for (; i + 8 <= n; i += 8) {
        __m256d a = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), m);
        __m256d b = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)), m);
        sum[0] = square ? _mm256_fmadd_pd(a, a, sum[0]) : _mm256_add_pd(a, sum[0]);
        sum[1] = square ? _mm256_fmadd_pd(b, b, sum[1]) : _mm256_add_pd(b, sum[1]);
    }
    for (; i < n; i++) {
        double a = (double)x[i] - mean;
        rest += square ? a * a : a;
    }
    return sum_lanes_avx2(sum[0], sum[1]) + rest;
}

NOVA_TARGET_AVX2
static void norm_avx2(norm_kind kind, float *y, const float *x, const float *w, const float *b, size_t n, double eps) {
    double  mean  = kind == NORM_LAYER ? moment_avx2(x, n, 0, false) / (double)n : 0;
    double  scale = 1.0 / sqrt(moment_avx2(x, n, mean, true) / (double)n + eps);
    __m256d m = _mm256_set1_pd(mean), s = _mm256_set1_pd(scale);
    size_t  i = 0;
    for (; i + 4 <= n; i += 4) {
        __m128 v = _mm256_cvtpd_ps(_mm256_mul_pd(_mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(x + i)), m), s));
        if (w) v = _mm_mul_ps(v, _mm_loadu_ps(w + i));
        if (b) v = _mm_add_ps(v, _mm_loadu_ps(b + i));
        _mm_storeu_ps(y + i, v);
    }
    for (; i < n; i++) {
        float v = (float)(((double)x[i] - mean) * scale);
        if (w) v *= w[i];
        y[i] = b ? v + b[i] : v;
    }
}

NOVA_TARGET_AVX2
static void glu_avx2(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256  v     = act_avx2(act, _mm256_maskload_ps(gate + i, lanes));
        if (up) v = _mm256_mul_ps(v, _mm256_maskload_ps(up + i, lanes));
        _mm256_maskstore_ps(y + i, lanes, v);
    }
}

NOVA_TARGET_AVX2
static void add_avx2(float *y, const float *x, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(y + i), _mm256_loadu_ps(x + i)));
    for (; i < n; i++) y[i] += x[i];
}

NOVA_TARGET_AVX2
static void scale_avx2(float *y, float scale, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), set_avx2(scale)));
    for (; i < n; i++) y[i] *= scale;
}

NOVA_TARGET_AVX2
static float vector_dot_avx2(const float *a, const float *b, size_t n) {
    __m256 sum[4] = { _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps() };
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 4; k++)
            sum[k] = _mm256_fmadd_ps(_mm256_loadu_ps(a + i + 8 * k), _mm256_loadu_ps(b + i + 8 * k), sum[k]);
    for (; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        sum[0] = _mm256_fmadd_ps(_mm256_maskload_ps(a + i, lanes), _mm256_maskload_ps(b + i, lanes), sum[0]);
    }
    __m256 all = _mm256_add_ps(_mm256_add_ps(sum[0], sum[1]), _mm256_add_ps(sum[2], sum[3]));
    __m128 h   = _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

/* Keys are integers in the order of the floats; -0 is 0; a NaN is the least of all. */
AVX2 __m256i key_avx2(__m256 x) {
    __m256i bits = _mm256_castps_si256(x), sign = _mm256_srai_epi32(bits, 31);
    __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan  = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7f800000));
    __m256i key  = _mm256_sub_epi32(_mm256_xor_si256(size, sign), sign);
    return _mm256_blendv_epi8(key, _mm256_set1_epi32(INT32_MIN), nan);
}

NOVA_TARGET_AVX2
static int32_t greatest_key_avx2(const float *x, size_t n) {
    __m256i a = _mm256_set1_epi32(INT32_MIN), b = a;
    size_t  i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_epi32(a, key_avx2(_mm256_loadu_ps(x + i)));
        b = _mm256_max_epi32(b, key_avx2(_mm256_loadu_ps(x + i + 8)));
    }
    for (; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        a = _mm256_max_epi32(a, _mm256_blendv_epi8(a, key_avx2(_mm256_maskload_ps(x + i, lanes)), lanes));
    }
    int32_t out[8], greatest = INT32_MIN;
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_max_epi32(a, b));
    for (int k = 0; k < 8; k++) greatest = out[k] > greatest ? out[k] : greatest;
    return greatest;
}

NOVA_TARGET_AVX2
static bool argmax_avx2(const float *x, size_t n, size_t *index) {
    int32_t greatest = greatest_key_avx2(x, n);
    if (greatest == INT32_MIN) return false;
    const __m256i key = _mm256_set1_epi32(greatest);
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256i equal = _mm256_and_si256(lanes, _mm256_cmpeq_epi32(key, key_avx2(_mm256_maskload_ps(x + i, lanes))));
        int     mask  = _mm256_movemask_ps(_mm256_castsi256_ps(equal));
        if (!mask) continue;
        for (*index = i; !(mask & 1); mask >>= 1) (*index)++;
        return true;
    }
    return false;
}

NOVA_TARGET_AVX2
static bool finite_avx2(const float *x, size_t n) {
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256i bits  = _mm256_and_si256(_mm256_castps_si256(_mm256_maskload_ps(x + i, lanes)), exponent);
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
    }
    return _mm256_testz_si256(bad, bad) != 0;
}

NOVA_TARGET_AVX2
static void half_from_float_avx2(uint16_t *y, const float *x, size_t n) {
    for (; n >= 8; n -= 8, x += 8, y += 8)
        _mm_storeu_si128((__m128i *)(void *)y, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
    for (size_t i = 0; i < n; i++) y[i] = float_to_half(x[i]);
}

NOVA_TARGET_AVX2
static void float_from_half_avx2(float *y, const uint16_t *x, size_t n) {
    for (; n >= 8; n -= 8, x += 8, y += 8)
        _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)x)));
    for (size_t i = 0; i < n; i++) y[i] = half_to_float(x[i]);
}

/* (c0, s0, c1, s1, ...) of eight pairs to eight cosines and eight sines. */
AVX2 void split_avx2(const float *cos_sin, __m256 *c, __m256 *s) {
    __m256 a = _mm256_loadu_ps(cos_sin), b = _mm256_loadu_ps(cos_sin + 8);
    __m256 low = _mm256_permute2f128_ps(a, b, 0x20), high = _mm256_permute2f128_ps(a, b, 0x31);
    *c = _mm256_shuffle_ps(low, high, 0x88);
    *s = _mm256_shuffle_ps(low, high, 0xdd);
}

NOVA_TARGET_AVX2
static void rope_avx2(float *x, const float *cos_sin, uint32_t n_rot, bool neox) {
    uint32_t half = n_rot / 2, i = 0;
    if (neox)
        for (; i + 8 <= half; i += 8) {
            __m256 c, s, a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + half + i);
            split_avx2(cos_sin + 2 * i, &c, &s);
            _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s)));
            _mm256_storeu_ps(x + half + i, _mm256_add_ps(_mm256_mul_ps(a, s), _mm256_mul_ps(b, c)));
        }
    else
        for (; i + 4 <= half; i += 4) {
            __m256 turn = _mm256_loadu_ps(cos_sin + 2 * i), v = _mm256_loadu_ps(x + 2 * i);
            __m256 sine = _mm256_mul_ps(_mm256_permute_ps(v, 0xb1), _mm256_movehdup_ps(turn));
            _mm256_storeu_ps(x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, _mm256_moveldup_ps(turn)), sine));
        }
    rope_plain(x, cos_sin, i, n_rot, neox);
}

/* x = e^(x - top); gives the sum. */
NOVA_TARGET_AVX2
static double exponentials_avx2(float *x, size_t n, float top) {
    __m256d sum[2] = { _mm256_setzero_pd(), _mm256_setzero_pd() };
    for (size_t i = 0; i < n; i += 8) {
        __m256i lanes = lanes_avx2(n - i);
        __m256  e     = exp_avx2(_mm256_sub_ps(_mm256_maskload_ps(x + i, lanes), set_avx2(top)));
        _mm256_maskstore_ps(x + i, lanes, e);
        e = _mm256_and_ps(e, _mm256_castsi256_ps(lanes));
        sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
        sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
    }
    return sum_lanes_avx2(sum[0], sum[1]);
}

/* ---- AVX-512: functions of a register, as above ---- */

AVX512 __m512 set_avx512(float x) { return _mm512_set1_ps(x); }

AVX512 __mmask16 lanes_avx512(size_t n) { return (__mmask16)(n < 16 ? (1u << n) - 1 : 0xffffu); }

/* e^x for x <= 0; x below EXP_LOW gives a number without meaning, a NaN stays. */
AVX512 __m512 exp_core_avx512(__m512 x) {
    __m512 n = _mm512_cvtepi32_ps(_mm512_cvtps_epi32(_mm512_mul_ps(x, set_avx512(LOG2_E))));
    __m512 r = _mm512_fnmadd_ps(n, set_avx512(LN2_LOW), _mm512_fnmadd_ps(n, set_avx512(LN2_HIGH), x));
    __m512 p = _mm512_fmadd_ps(r, set_avx512(EXP_6), set_avx512(EXP_5));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_4));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_3));
    p = _mm512_fmadd_ps(p, r, set_avx512(EXP_2));
    p = _mm512_fmadd_ps(p, r, set_avx512(1));
    p = _mm512_fmadd_ps(p, r, set_avx512(1));
    return _mm512_scalef_ps(p, n);
}

AVX512 __m512 exp_avx512(__m512 x) {
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, set_avx512(EXP_LOW), _CMP_LT_OQ), set_avx512(EXP_LOW));
    x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, set_avx512(EXP_HIGH), _CMP_GT_OQ), set_avx512(EXP_HIGH));
    return exp_core_avx512(x);
}

AVX512 __m512 tanh_avx512(__m512 x) {
    const __m512 sign = set_avx512(-0.0f), one = set_avx512(1);
    __m512 a = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_fmadd_ps(z, set_avx512(TANH_5), set_avx512(TANH_4));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_3));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_2));
    p = _mm512_fmadd_ps(p, z, set_avx512(TANH_1));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, z), a, a);
    __m512 e   = exp_avx512(_mm512_add_ps(a, a));
    __m512 big = _mm512_sub_ps(one, _mm512_div_ps(set_avx512(2), _mm512_add_ps(e, one)));
    p = _mm512_mask_mov_ps(p, _mm512_cmp_ps_mask(a, set_avx512(TANH_MIDDLE), _CMP_GT_OQ), big);
    return _mm512_or_ps(p, _mm512_and_ps(sign, x));
}

AVX512 __m512 gate_avx512(__m512 x, __m512 share) {
    return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(share, _mm512_setzero_ps(), _CMP_NEQ_UQ), x, share);
}

AVX512 __m512 sigmoid_avx512(__m512 x) {
    const __m512 one = set_avx512(1);
    __m512 e = exp_avx512(_mm512_or_ps(x, set_avx512(-0.0f)));
    __m512 above = _mm512_mask_mov_ps(one, _mm512_movepi32_mask(_mm512_castps_si512(x)), e);
    return _mm512_div_ps(above, _mm512_add_ps(e, one));
}

AVX512 __m512 normal_avx512(__m512 x) {
    __m512 a = _mm512_andnot_ps(set_avx512(-0.0f), x);
    a = _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, set_avx512(TAIL_END), _CMP_GT_OQ), set_avx512(TAIL_END));
    __m512 t = _mm512_div_ps(set_avx512(1), _mm512_fmadd_ps(a, set_avx512(TAIL_T), set_avx512(1)));
    __m512 p = _mm512_fmadd_ps(t, set_avx512(TAIL_9), set_avx512(TAIL_8));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_7));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_6));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_5));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_4));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_3));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_2));
    p = _mm512_fmadd_ps(p, t, set_avx512(TAIL_1));
    p = _mm512_mul_ps(_mm512_fmadd_ps(p, t, set_avx512(TAIL_0)), t);
    __m512 square = _mm512_mul_ps(a, a), error = _mm512_fmsub_ps(a, a, square);
    __m512 e = exp_avx512(_mm512_mul_ps(square, set_avx512(-0.5f)));
    e = _mm512_fnmadd_ps(_mm512_mul_ps(error, set_avx512(0.5f)), e, e);
    __m512 tail = _mm512_mul_ps(p, e);
    return _mm512_mask_mov_ps(_mm512_sub_ps(set_avx512(1), tail), _mm512_movepi32_mask(_mm512_castps_si512(x)), tail);
}

AVX512 __m512 act_avx512(activation act, __m512 x) {
    __m512 positive;
    switch (act) {
    case ACT_NONE:     break;
    case ACT_SWIGLU_CLAMPED: break;
    case ACT_SILU:     return gate_avx512(x, sigmoid_avx512(x));
    case ACT_GELU:
        return gate_avx512(x, sigmoid_avx512(_mm512_mul_ps(
                                  x, _mm512_fmadd_ps(_mm512_mul_ps(x, x), set_avx512(GELU_3), set_avx512(GELU_1)))));
    case ACT_GELU_ERF: return gate_avx512(x, normal_avx512(x));
    case ACT_RELU:
    case ACT_RELU_SQR:
        positive = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NLE_UQ), x);
        return act == ACT_RELU ? positive : _mm512_mul_ps(positive, positive);
    }
    return x;
}

/* ---- AVX-512: vectors ---- */

NOVA_TARGET_AVX512
static void glu_avx512(activation act, float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_avx512(n - i);
        __m512    v     = act_avx512(act, _mm512_maskz_loadu_ps(lanes, gate + i));
        if (up) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(lanes, up + i));
        _mm512_mask_storeu_ps(y + i, lanes, v);
    }
}

NOVA_TARGET_AVX512
static double exponentials_avx512(float *x, size_t n, float top) {
    __m512d sum[2] = { _mm512_setzero_pd(), _mm512_setzero_pd() };
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 lanes = lanes_avx512(n - i);
        __m512    e     = exp_avx512(_mm512_sub_ps(_mm512_maskz_loadu_ps(lanes, x + i), set_avx512(top)));
        _mm512_mask_storeu_ps(x + i, lanes, e);
        e = _mm512_maskz_mov_ps(lanes, e);
        sum[0] = _mm512_add_pd(sum[0], _mm512_cvtps_pd(_mm512_castps512_ps256(e)));
        sum[1] = _mm512_add_pd(sum[1], _mm512_cvtps_pd(_mm512_extractf32x8_ps(e, 1)));
    }
    sum[0] = _mm512_add_pd(sum[0], sum[1]);
    return sum_lanes_avx2(_mm512_castpd512_pd256(sum[0]), _mm512_extractf64x4_pd(sum[0], 1));
}

static void softmax_fast(cpu_level level, float *x, size_t n) {
    size_t at;
    float  top = argmax_avx2(x, n, &at) && x[at] > -FLT_MAX ? x[at] : -FLT_MAX;
    double sum = level == CPU_AVX512 ? exponentials_avx512(x, n, top) : exponentials_avx2(x, n, top);
    scale_avx2(x, sum == 0 ? 0 : (float)(1 / sum), n);
}

#endif

/* ---- By level ---- */

#ifdef NOVA_X86
#define BY_LEVEL(level, plain, avx2, avx512) \
    switch (level) {                         \
    case CPU_AVX512: avx512; break;          \
    case CPU_AVX2:   avx2; break;            \
    default:         plain; break;           \
    }
#else
#define BY_LEVEL(level, plain, avx2, avx512) (void)(level); plain;
#endif
#define FROM_AVX2(level, plain, avx2) BY_LEVEL(level, plain, avx2, avx2)

static void vector_norm(cpu_level level, norm_kind kind, float *y, const float *x, const float *w, const float *b,
                        size_t n, float eps) {
    FROM_AVX2(level, norm_plain(kind, y, x, w, b, n, (double)eps), norm_avx2(kind, y, x, w, b, n, (double)eps))
}

static void vector_act(cpu_level level, activation act, float *y, const float *x, size_t n) {
    vector_glu(level, act, y, x, NULL, n);
}

/* As in OpenAI's gpt-oss reference: limit 7, alpha 1.702. */
static void swiglu_clamped(float *y, const float *gate, const float *up, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float g = gate[i] > 7.0f ? 7.0f : gate[i], u = up ? up[i] : 0.0f;
        u = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
        y[i] = g / (1.0f + exp_plain(-1.702f * g)) * (u + 1.0f);
    }
}

static void vector_glu(cpu_level level, activation act, float *y, const float *gate, const float *up, size_t n) {
    if (act == ACT_SWIGLU_CLAMPED) {
        swiglu_clamped(y, gate, up, n);
        return;
    }
    BY_LEVEL(level, glu_plain(act, y, gate, up, n), glu_avx2(act, y, gate, up, n), glu_avx512(act, y, gate, up, n))
}

static void vector_add(cpu_level level, float *y, const float *x, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] += x[i], add_avx2(y, x, n))
}

static void vector_add_scaled(float *y, const float *x, float scale, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] += scale * x[i];
}

static void vector_cap(float *y, float cap, size_t n) {
    for (size_t i = 0; i < n; i++) y[i] = cap * tanh_plain(y[i] / cap);
}

static void vector_scale(cpu_level level, float *y, float scale, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] *= scale, scale_avx2(y, scale, n))
}

NOVA_UNUSED static float vector_dot(cpu_level level, const float *a, const float *b, size_t n) {
    float dot;
    FROM_AVX2(level, dot = dot_plain(a, b, n), dot = vector_dot_avx2(a, b, n))
    return dot;
}

NOVA_UNUSED static void vector_softmax(cpu_level level, float *x, size_t n) {
    FROM_AVX2(level, softmax_plain(x, n), softmax_fast(level, x, n))
}

NOVA_UNUSED static bool vector_argmax(cpu_level level, const float *x, size_t n, size_t *index) {
    bool found;
    FROM_AVX2(level, found = argmax_plain(x, n, index), found = argmax_avx2(x, n, index))
    return found;
}

static bool vector_finite(cpu_level level, const float *x, size_t n) {
    bool finite;
    FROM_AVX2(level, finite = finite_plain(x, n), finite = finite_avx2(x, n))
    return finite;
}

static void vector_half_from_float(cpu_level level, uint16_t *y, const float *x, size_t n) {
    FROM_AVX2(level, for (size_t i = 0; i < n; i++) y[i] = float_to_half(x[i]), half_from_float_avx2(y, x, n))
}

static void vector_float_from_half(cpu_level level, float *y, const uint16_t *x, size_t n) {
    FROM_AVX2(level, float_from_half_plain(y, x, n), float_from_half_avx2(y, x, n))
}

static void vector_rope(cpu_level level, float *x, const float *cos_sin, uint32_t n_rot, bool neox) {
    FROM_AVX2(level, rope_plain(x, cos_sin, 0, n_rot, neox), rope_avx2(x, cos_sin, n_rot, neox))
}
