#version 450
#extension GL_GOOGLE_include_directive : require

// The quantised twin of a buffer (README.md): a lane a group of 32.
//
// Bindings: 0 x, 1 quantised x. Groups: x groups of a column / L, y columns.

layout(local_size_x_id = 0) in;

#include "common.glsl"
#define QUANTISE_BINDING 1
#include "quantise.glsl"

layout(set = 0, binding = 0) readonly buffer x_floats { vec4 x4[]; };

layout(push_constant) uniform push {
    uint groups, ld;   // groups with weights: those behind are never read
    uint q_scales;
};

void main() {
    uint g = gl_GlobalInvocationID.x, at = gl_WorkGroupID.y * (ld / 32) + g;
    if (g >= groups) return;
    vec4 v[8];
    [[unroll]] for (uint q = 0; q < 8; q++) v[q] = x4[8 * at + q];   // the row's pad is zero
    quantise(v, at, q_scales);
}
