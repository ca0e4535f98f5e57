#version 450

// y[i] = x[column i of those that are gathered]: a lane a quad.
//
// Bindings: 0 x, 1 now, 2 y. Groups: x quads / L, y gathered columns.

layout(local_size_x_id = 0) in;

layout(set = 0, binding = 0) readonly buffer x_vec4s { vec4 x4[]; };
layout(set = 0, binding = 1) readonly buffer now_words { uint now[]; };
layout(set = 0, binding = 2) writeonly buffer y_vec4s { vec4 y4[]; };

layout(push_constant) uniform push {
    uint quads, ld_x, ld_y;   // of a column; a last one that is not full takes zeros along
    uint table;               // word where the gathered columns' table begins
    uint windowed;            // 1: from the head's window on
};

void main() {
    uint quad = gl_GlobalInvocationID.x, i = gl_WorkGroupID.y;
    uint column = i + (windowed != 0 ? now[3] : 0);
    if (quad >= quads || column >= now[2]) return;
    y4[i * (ld_y / 4) + quad] = x4[now[table + column] * (ld_x / 4) + quad];
}
