#version 450
#extension GL_GOOGLE_include_directive : require

// y[c][row] (=, +=, act, glu) sum over i of w[row][i] x[c][i], + bias[row], for many columns. By flags:
//
//   (none)      floats                             matmul_rows.glsl
//   HALVES      codes and x as halves, sums of 32  matmul_rows.glsl      formats with codes only
//   DOT         integer dot, x in 8 bits           matmul_rows.glsl      formats with codes only
//   MATRIX      cooperative matrix of halves       matmul_matrix.glsl
//   MATRIX_S8   cooperative matrix of bytes        matmul_matrix.glsl    formats with codes only
//
// A workgroup makes a tile of rows (WorkGroupID.y) by columns (WorkGroupID.x, so that tiles of the same weights run
// side by side). All loads are clamped to the last row and column, only stores are guarded, so that no lane leaves
// early.
//
// Bindings: 0 w[0], 1 w[1] (glu; else any), 2 x (floats; else as matmul_pack.comp leaves it), 3 y, 4 bias[0],
// 5 bias[1] (where none: any).

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint L = 64;
layout(constant_id = 1) const uint FORMAT = 3;
layout(constant_id = 2) const uint EPILOGUE = 0;    // as op_epilogue; 4: y = act(y) * r
layout(constant_id = 3) const uint ACT = 0;
layout(constant_id = 4) const uint BIAS = 0;        // bit i: bias[i] is there
layout(constant_id = 5) const uint LOOP = 0;        // 1: inner loops stay loops: for CPUs, whose compilers are slow

#if defined(HALVES) || defined(MATRIX)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#define W_BINDINGS 2
#include "weight.glsl"

layout(set = 0, binding = 3) buffer y_floats { float y[]; };
layout(set = 0, binding = 3) buffer y_vec4s { vec4 y4[]; };
layout(set = 0, binding = 4) readonly buffer bias_floats_0 { float bias_0[]; };
layout(set = 0, binding = 5) readonly buffer bias_floats_1 { float bias_1[]; };

layout(push_constant) uniform push {
    uint  codes_0, high_0, scales_0, extra_0;
    uint  codes_1, high_1, scales_1, extra_1;
    uint  n_pad;
    uint  n_rows, first_row;   // of this part
    uint  ld_x, ld_y;
    uint  x_scale_at;          // where the scales of column 0 begin, in pairs
    uint  n_col;
    float w_scale_0, w_scale_1;   // MATRIX: powers of two, what weights are multiplied by before they become halves
};

const uint ADD = 1, GLU = 3, UP = 4;
const uint N_W = EPILOGUE == GLU ? 2 : 1;

// A loop's end; the compiler cannot know that n_pad is not less.
uint end_of(uint n) { return LOOP == 1 ? min(n, n_pad) : n; }

w_planes planes(uint i) {
    return i == 0 ? w_planes(codes_0, high_0, scales_0, extra_0) : w_planes(codes_1, high_1, scales_1, extra_1);
}

// y of sums, of both weights for glu, where it was `before`.
float result(uint row, float r0, float r1, float before) {
    if ((BIAS & 1) != 0) r0 += bias_0[row];
    if ((BIAS & 2) != 0) r1 += bias_1[row];
    if (EPILOGUE == ADD) return r0 + before;
    if (EPILOGUE == UP) return r0 * activate(ACT, before);
    r0 = activate(ACT, r0);
    return EPILOGUE == GLU ? r0 * r1 : r0;
}
const bool READS_Y = EPILOGUE == ADD || EPILOGUE == UP;

void finish(uint row, uint c, float r0, float r1) {
    if (row >= n_rows || c >= n_col) return;
    uint at = c * ld_y + first_row + row;
    y[at] = result(first_row + row, r0, r1, READS_Y ? y[at] : 0);
}

// Four rows; row is a multiple of 4.
void finish4(uint row, uint c, vec4 r0, vec4 r1) {
    uint at = c * ld_y + first_row + row;
    if (c >= n_col) return;
    if (row + 3 < n_rows && (first_row & 3) == 0) {
        vec4 v = READS_Y ? y4[at / 4] : vec4(0);
        [[unroll]] for (uint i = 0; i < 4; i++) v[i] = result(first_row + row + i, r0[i], r1[i], v[i]);
        y4[at / 4] = v;
    } else {
        [[unroll]] for (uint i = 0; i < 4; i++) finish(row + i, c, r0[i], r1[i]);
    }
}

#if defined(MATRIX) || defined(MATRIX_S8)
#include "matmul_matrix.glsl"
#else
#include "matmul_rows.glsl"
#endif
