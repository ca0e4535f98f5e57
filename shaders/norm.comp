#version 450
#extension GL_GOOGLE_include_directive : require

// y[c] = normalised x[c] times w plus b, a column a workgroup: RMS x / sqrt(mean(x^2) + eps), or LayerNorm
// (x - mean) / sqrt(variance + eps). With FLOATS as floats (y may be x), with QUANTISED as int8 (README.md).
//
// Lanes take a vec4 each; a column is read again for each step, out of the cache. Where it is quantised, a lane takes a
// group of 32: nothing is exchanged then.
//
// Bindings: 0 x, 1 y, 2 w, 3 b, 4 quantised y; where one is not there, any.

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint L = 64;
layout(constant_id = 1) const uint LAYER = 0;       // 0 RMS, 1 LayerNorm
layout(constant_id = 2) const uint WITH = 0;        // 1 w, 2 b
layout(constant_id = 3) const uint FLOATS = 1;
layout(constant_id = 4) const uint QUANTISED = 0;

#define REDUCE L
#include "common.glsl"
#define QUANTISE_BINDING 4
#include "quantise.glsl"

layout(set = 0, binding = 0) readonly buffer x_floats { vec4 x4[]; };
layout(set = 0, binding = 1) buffer y_floats { float y[]; };
layout(set = 0, binding = 1) buffer y_vec4s { vec4 y4[]; };
layout(set = 0, binding = 2) readonly buffer w_floats { float w[]; };
layout(set = 0, binding = 3) readonly buffer b_floats { float b[]; };

layout(push_constant) uniform push {
    uint n, ld_x, ld_y;   // ld_y: of the quantised twin too
    uint q_scales;        // pair where they begin
    float eps;
};

// Quad i of a row, zeros behind the row's end.
vec4 inside(vec4 v, uint i) { return mix(vec4(0), v, lessThan(uvec4(4 * i) + uvec4(0, 1, 2, 3), uvec4(n))); }

vec4 normalised(vec4 x, uint i, float mean, float scale) {
    vec4  v = (x - mean) * scale;
    uvec4 at = min(uvec4(4 * i) + uvec4(0, 1, 2, 3), uvec4(n - 1));
    if ((WITH & 1) != 0) v *= vec4(w[at.x], w[at.y], w[at.z], w[at.w]);
    if ((WITH & 2) != 0) v += vec4(b[at.x], b[at.y], b[at.z], b[at.w]);
    return inside(v, i);
}

void put(uint row, uint i, vec4 v) {
    if (4 * i + 4 <= n) y4[row + i] = v;
    else for (uint j = 0; 4 * i + j < n; j++) y[4 * (row + i) + j] = v[j];
}

void main() {
#ifdef SG
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    uint lane = gl_LocalInvocationIndex;
#endif
    uint  column = gl_WorkGroupID.x, quads = (n + 3) / 4, from = column * (ld_x / 4), to = column * (ld_y / 4);
    float mean = 0, squares = 0;
    if (LAYER != 0) {
        for (uint i = lane; i < quads; i += L) mean += dot(inside(x4[from + i], i), vec4(1));
        mean = group_sum(mean) / float(n);
    }
    for (uint i = lane; i < quads; i += L) {
        vec4 v = inside(x4[from + i] - mean, i);
        squares += dot(v, v);
    }
    float scale = 1.0 / sqrt(group_sum(squares) / float(n) + eps);
    if (QUANTISED == 0) {
        for (uint i = lane; i < quads; i += L) put(to, i, normalised(x4[from + i], i, mean, scale));
        return;
    }
    for (uint g = lane; g < (n + 31) / 32; g += L) {
        vec4 v[8];
        [[unroll]] for (uint q = 0; q < 8; q++) {
            uint i = 8 * g + q;
            v[q] = i < quads ? normalised(x4[from + i], i, mean, scale) : vec4(0);
            if (FLOATS != 0 && i < quads) put(to, i, v[q]);
        }
        quantise(v, column * (ld_y / 32) + g, q_scales);
    }
}
