// What several kernels share: halves, activations, and, where REDUCE is defined, sums and maxima over a workgroup.
//
// REDUCE: the workgroup's size, a constant expression (usually the specialization constant 0). With SG defined the
// module may use subgroup operations.
#ifndef COMMON_GLSL
#define COMMON_GLSL

#ifdef SG
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#extension GL_EXT_control_flow_attributes : require

// ---- Halves ----

// By integer arithmetic: drivers may flush a subnormal half, or a subnormal float, to zero.
float half_of(uint h) {
    uint  size = h & 0x7fffu;
    float f = uintBitsToFloat((size << 13) + 0x38000000u);                      // exponent + 112
    if (size < 0x400u) f = float(size) * 5.9604644775390625e-8;                 // 2^-24
    if (size >= 0x7c00u) f = uintBitsToFloat((size << 13) | 0x7f800000u);
    return uintBitsToFloat(floatBitsToUint(f) | (h & 0x8000u) << 16);
}
float half_low(uint w) { return half_of(w & 0xffffu); }
float half_high(uint w) { return half_of(w >> 16); }

// ---- Activations: numbers as `activation` in src/cpu_vector.h, constants as in src/cpu_vector.c ----

const uint ACT_NONE = 0, ACT_SILU = 1, ACT_GELU = 2, ACT_GELU_ERF = 3, ACT_RELU = 4, ACT_RELU_SQR = 5;

// x / (1 + e^-z), never through an infinity; 0 where the share is.
float gated(float x, float z) {
    float e = exp(-abs(z)), share = (z < 0 ? e : 1.0) / (1.0 + e);
    return share == 0 ? 0.0 : x * share;
}

// x P(X < x) for a normal X: the tail e^(-x^2/2) t (c0 + c1 t + ...) with t = 1 / (1 + c |x|).
float gelu_erf(float x) {
    float a = abs(x), t = 1.0 / (1.0 + 0.319999993 * a), p = -1.659473963e-2;
    p = fma(p, t, 7.209257782e-2);
    p = fma(p, t, -9.459164739e-2);
    p = fma(p, t, -1.667760516e-4);
    p = fma(p, t, 4.142346978e-2);
    p = fma(p, t, 3.353587911e-2);
    p = fma(p, t, 9.571313113e-2);
    p = fma(p, t, 1.131133512e-1);
    p = fma(p, t, 1.278202832e-1);
    p = fma(p, t, 1.276544631e-1);
    float tail = a < 15.0 ? exp(-0.5 * a * a) * t * p : 0.0;
    float share = x < 0 ? tail : 1.0 - tail;
    return share == 0 ? 0.0 : x * share;
}

float activate(uint act, float x) {
    float y = x;
    if (act == ACT_SILU) y = gated(x, x);
    if (act == ACT_GELU) y = gated(x, x * fma(7.135481283e-2, x * x, 1.595769122));   // 2 sqrt(2/pi) (x + 0.044715 x^3)
    if (act == ACT_GELU_ERF) y = gelu_erf(x);
    if (act == ACT_RELU) y = x > 0 ? x : 0.0;
    if (act == ACT_RELU_SQR) y = x > 0 ? x * x : 0.0;
    return isnan(x) ? x : y;
}

// ---- Over a workgroup: every lane gives a value and gets the result; all of them must come here ----

#ifdef REDUCE

shared float reduce_at[REDUCE];

#ifdef SG

float group_sum(float v) {
    v = subgroupAdd(v);
    if (gl_NumSubgroups == 1) return v;
    barrier();                                    // the last result has been read
    if (subgroupElect()) reduce_at[gl_SubgroupID] = v;
    barrier();
    v = 0;
    for (uint i = 0; i < gl_NumSubgroups; i++) v += reduce_at[i];
    return v;
}

float group_max(float v) {
    v = subgroupMax(v);
    if (gl_NumSubgroups == 1) return v;
    barrier();
    if (subgroupElect()) reduce_at[gl_SubgroupID] = v;
    barrier();
    v = reduce_at[0];
    for (uint i = 1; i < gl_NumSubgroups; i++) v = max(v, reduce_at[i]);
    return v;
}

#else

// Two steps instead of a tree, so that there are few barriers: up to 16 lanes add up every 16th value each, then all
// lanes add up those. No bank is met twice; the second step's reads are broadcasts.
#define REDUCE_STEP 16u
shared float reduce_step[16];

#define GROUP_REDUCE(name, begin, join)                                                                     \
    float name(float v) {                                                                                   \
        uint lane = gl_LocalInvocationIndex, n = min(uint(REDUCE), REDUCE_STEP);                            \
        barrier();                                                                                          \
        reduce_at[lane] = v;                                                                                \
        barrier();                                                                                          \
        if (lane < n) {                                                                                     \
            v = begin;                                                                                      \
            for (uint i = lane; i < REDUCE; i += REDUCE_STEP) { float a = v, b = reduce_at[i]; v = join; }  \
            reduce_step[lane] = v;                                                                          \
        }                                                                                                   \
        barrier();                                                                                          \
        v = begin;                                                                                          \
        for (uint i = 0; i < n; i++) { float a = v, b = reduce_step[i]; v = join; }                         \
        return v;                                                                                           \
    }
GROUP_REDUCE(group_sum, 0.0, a + b)
GROUP_REDUCE(group_max, uintBitsToFloat(0xff800000u), max(a, b))

#endif
#endif
#endif
