#version 450
#extension GL_GOOGLE_include_directive : require

// Activations as halves, in front of a matmul that multiplies those: words of two, [n_col][ld_x / 2], and behind
// them, at word scale_at, pairs of floats. A column or a group of 32 is divided by a power of two, d:
//
//   COLUMN 1   the whole column's max |x| becomes 8192..16384: one large channel does not cost the others their last
//              bits, since halves are as exact down to 2^-14. Pairs: d and 0, [n_col]. Quads lie as 0 2 1 3.
//   COLUMN 0   a group's becomes 4..8, so that sums of 32 products with codes stay in range. Pairs: d and d times the
//              sum of the halves, [n_col][ld_x / 32].
//
// A NaN or an infinity makes d a NaN and the halves 0.
//
// Bindings: 0 x, 1 out. A workgroup makes a column, or L quads of it, WorkGroupID.x; column WorkGroupID.y.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint L = 64;        // a multiple of 8
layout(constant_id = 1) const uint COLUMN = 0;

#define REDUCE L
#include "common.glsl"

layout(set = 0, binding = 0) readonly buffer x_floats { vec4 x4[]; };
layout(set = 0, binding = 1) buffer out_words { uint out_word[]; };
layout(set = 0, binding = 1) buffer out_quads { uvec2 out_quad[]; };

layout(push_constant) uniform push {
    uint n_pad, ld_x;
    uint scale_at;
};

shared float most[L];
shared vec4  sums[L];

const float INFINITE = uintBitsToFloat(0x7f800000u), NOT_A_NUMBER = uintBitsToFloat(0x7fc00000u);

float max4(vec4 v) {
    v = abs(v);
    float m = max(max(v.x, v.y), max(v.z, v.w));
    // Comparisons may lose a NaN; exponents do not.
    uvec4 e = floatBitsToUint(v) & 0x7f800000u;
    return any(equal(e, uvec4(0x7f800000u))) ? INFINITE : m;
}

// To nearest even; |f| below 65504. packHalf2x16 may cut off.
uint half_bits(float f) {
    uint b = floatBitsToUint(f), size = b & 0x7fffffffu;
    uint h = size < 0x38800000u ? uint(roundEven(uintBitsToFloat(size) * 16777216.0))
                                : size - 0x38000000u + 0xfffu + (size >> 13 & 1u) >> 13;
    return b >> 16 & 0x8000u | h;
}
uvec2 half_quad(vec4 v) {
    return uvec2(half_bits(v.x) | half_bits(v.y) << 16, half_bits(v.z) | half_bits(v.w) << 16);
}

// The power of two that leaves m in 2^by .. 2^(by + 1); 0 where m is too small to matter.
float power_of(float m, int by) {
    int e = int(floatBitsToUint(m) >> 23) - by;
    return e <= 0 ? 0.0 : uintBitsToFloat(uint(e) << 23);
}
float inverse_of(float d) { return d == 0 ? 0.0 : uintBitsToFloat(0x7f000000u - floatBitsToUint(d)); }

void put_scale(uint at, float d, float sum) {
    out_word[scale_at + 2 * at]     = floatBitsToUint(d);
    out_word[scale_at + 2 * at + 1] = floatBitsToUint(d * sum);
}

void whole_column(uint col, uint lane) {
    uint  quads = n_pad / 4, from = col * (ld_x / 4);
    float m = 0;
    for (uint i = lane; i < quads; i += L) m = max(m, max4(x4[from + i]));
    m = group_max(m);
    bool  bad = m >= INFINITE;
    float d = power_of(m, 13), r = inverse_of(d);
    for (uint i = lane; i < quads; i += L) out_quad[from + i] = bad ? uvec2(0) : half_quad(x4[from + i].xzyw * r);
    if (lane == 0) put_scale(col, bad ? NOT_A_NUMBER : d, 0);
}

// Eight lanes a group.
void groups_of_32(uint col, uint lane) {
    uint  i = gl_WorkGroupID.x * L + lane, from = col * (ld_x / 4), first = lane & ~7u;
    bool  mine = i < n_pad / 4;
    vec4  v = mine ? x4[from + i] : vec4(0);
    most[lane] = max4(v);
    barrier();
    float m = most[first];
    for (uint j = 1; j < 8; j++) m = max(m, most[first + j]);
    bool  bad = m >= INFINITE;
    float d = power_of(m, 2);
    uvec2 h = bad ? uvec2(0) : half_quad(v * inverse_of(d));
    if (mine) out_quad[from + i] = h;
    sums[lane] = vec4(half_low(h.x), half_high(h.x), half_low(h.y), half_high(h.y));
    barrier();
    if (mine && lane == first) {
        vec4 sum = sums[lane];
        for (uint j = 1; j < 8; j++) sum += sums[lane + j];
        put_scale(col * (ld_x / 32) + i / 8, bad ? NOT_A_NUMBER : d, sum.x + sum.y + sum.z + sum.w);
    }
}

void main() {
    if (COLUMN == 1) whole_column(gl_WorkGroupID.y, gl_LocalInvocationIndex);
    else groups_of_32(gl_WorkGroupID.y, gl_LocalInvocationIndex);
}
