#version 450

// y += x: a lane a quad.
//
// Bindings: 0 y, 1 x. Groups: x quads / L, y columns.

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) buffer y_vec4s { vec4 y4[]; };
layout(set = 0, binding = 1) readonly buffer x_vec4s { vec4 x4[]; };

layout(push_constant) uniform push { uint quads, ld_y, ld_x; };   // a last quad that is not full adds zeros to zeros

void main() {
    uint quad = gl_GlobalInvocationID.x, column = gl_WorkGroupID.y;
    if (quad < quads) y4[column * (ld_y / 4) + quad] += x4[column * (ld_x / 4) + quad];
}
