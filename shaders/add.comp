#version 450

// A lane a quad. y += scale * x; or, with ALONE, y = scale * y, softly capped where there is a cap: cap * tanh(y / cap).
//
// Bindings: 0 y, 1 x (ALONE: any). Groups: x quads / L, y columns.

layout(local_size_x_id = 0) in;
layout(constant_id = 1) const uint ALONE = 0;

layout(set = 0, binding = 0) buffer y_vec4s { vec4 y4[]; };
layout(set = 0, binding = 1) readonly buffer x_vec4s { vec4 x4[]; };

layout(push_constant) uniform push { uint quads, ld_y, ld_x; float scale, cap; };   // a last quad that is not full has zeros, which stay

// Without the infinities of a tanh by exponentials.
vec4 tanh_of(vec4 x) {
    vec4 e = exp(abs(x) * -2);
    return sign(x) * (1 - e) / (1 + e);
}

void main() {
    uint quad = gl_GlobalInvocationID.x, column = gl_WorkGroupID.y, at = column * (ld_y / 4) + quad;
    if (quad >= quads) return;
    if (ALONE == 0) y4[at] += scale * x4[column * (ld_x / 4) + quad];
    else {
        vec4 v = scale * y4[at];
        y4[at] = cap != 0 ? cap * tanh_of(v / cap) : v;
    }
}
