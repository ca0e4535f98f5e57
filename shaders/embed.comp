#version 450
#extension GL_GOOGLE_include_directive : require

// y[c] = row id(c) of a weight, as floats times scale: a lane a quad. Ids come from the columns' table in `now`; those that lie in
// another part of the weight are left to its dispatch.
//
// Bindings: 0 the weight's part, 1 now, 2 y. Groups: x quads / L, y columns.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint FORMAT = 3;

#include "weight.glsl"

layout(set = 0, binding = 1) readonly buffer now_words { uint now[]; };
layout(set = 0, binding = 2) writeonly buffer y_floats { float y[]; };
layout(set = 0, binding = 2) writeonly buffer y_vec4s { vec4 y4[]; };

layout(push_constant) uniform push {
    uint codes, high, scales, extra;
    uint n_pad;
    uint n_rows, first_row;
    uint n, ld;
    uint col;              // word where the columns' table begins
    float scale;
};

void main() {
    uint quad = gl_GlobalInvocationID.x, column = gl_WorkGroupID.y;
    if (column >= now[0] || 4 * quad >= n) return;
    uint row = now[col + 4 * column] - first_row;   // one before the part wraps to far behind it
    if (row >= n_rows) return;
    vec4 v = w_element4(0, w_planes(codes, high, scales, extra), n_pad, row, quad) * scale;
    uint at = column * (ld / 4) + quad;
    if (4 * quad + 4 <= n) y4[at] = v;
    else for (uint j = 0; 4 * quad + j < n; j++) y[4 * at + j] = v[j];
}
