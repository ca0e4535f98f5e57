#version 450
// The picture of examples/share.c: rings that drift, a pixel a lane. Compiled into share_spv.h by
//   glslangValidator -V --target-env vulkan1.1 --vn share_spv -o share_spv.h share.comp
layout(local_size_x = 8, local_size_y = 8) in;
layout(set = 0, binding = 0) writeonly buffer Pixels { uint pixels[]; };   // 0xBBGGRR
layout(push_constant) uniform Now { uint width, height; float seconds; };

void main() {
    uvec2 at = gl_GlobalInvocationID.xy;
    if (at.x >= width || at.y >= height) return;
    vec2  p = (vec2(at) * 2 - vec2(width, height)) / float(height);
    float rings = 0;
    for (int i = 0; i < 3; i++) {
        float turn = seconds * (0.7 + 0.3 * float(i)) + 2.1 * float(i);
        rings += sin(12 * length(p - 0.7 * vec2(cos(turn), sin(turn * 1.3))));
    }
    vec3  colour = 0.5 + 0.5 * cos(rings + vec3(0, 2.1, 4.2) + seconds);
    uvec3 bytes  = uvec3(colour * 255);
    pixels[at.y * width + at.x] = bytes.r | bytes.g << 8 | bytes.b << 16;
}
