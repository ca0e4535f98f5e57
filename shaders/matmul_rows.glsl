// Lanes hold rows, and x is the same for all of them.
//
// A lane holds ROWS rows (L apart, so that stores are neighbours) by COLS columns of sums in registers. Its weights
// go from the buffer through the registers, nobody else needs them; x goes through shared memory, STAGE groups of 32
// at a time, where all lanes read the same address at once: a broadcast on a GPU, one scalar load on a CPU. So a vec4
// of x serves 4 ROWS multiplications a lane, and there are two barriers for 32 STAGE ROWS COLS of them.
layout(constant_id = 6) const uint ROWS = 2;
layout(constant_id = 7) const uint COLS = 16;       // a multiple of 4
layout(constant_id = 8) const uint STAGE = 1;

const uint QUADS_COL = COLS / 4;
const uint GROUP_UNITS = 8 / W_QUADS;

#ifdef DOT

#extension GL_EXT_integer_dot_product : require
layout(set = 0, binding = 2) readonly buffer x_codes { ivec4 x4[]; };
layout(set = 0, binding = 2) readonly buffer x_scales { vec2 x_scale[]; };   // d, d * sum of the codes
shared ivec4 stage[STAGE * COLS * 2];          // [group][column][2]
shared vec2  stage_scale[STAGE * COLS];

void stage_x(uint col, uint first, uint n) {
    for (uint i = gl_LocalInvocationIndex; i < n * COLS * 2; i += L) {
        uint k = i % (2 * n), c = i / (2 * n);
        stage[(k / 2 * COLS + c) * 2 + k % 2] = x4[min(col + c, n_col - 1) * (ld_x / 16) + first * 2 + k];
    }
    for (uint i = gl_LocalInvocationIndex; i < n * COLS; i += L) {
        uint k = i % n, c = i / n;
        stage_scale[k * COLS + c] = x_scale[x_scale_at + min(col + c, n_col - 1) * (ld_x / 32) + first + k];
    }
}

#elif defined(HALVES)

layout(set = 0, binding = 2) readonly buffer x_halves { uvec2 x2[]; };
layout(set = 0, binding = 2) readonly buffer x_scales { vec2 x_scale[]; };   // d, d * sum
// [group][k][column], 4 columns at a time; one between quads of k, so that lanes that write neighbouring quads meet
// no bank twice
const uint QUAD_STEP = 4 * QUADS_COL + 1;
shared uvec2 stage[STAGE * 8 * QUAD_STEP];
shared vec2  stage_scale[STAGE * COLS];

void stage_x(uint col, uint first, uint n) {
    for (uint i = gl_LocalInvocationIndex; i < n * 8 * QUADS_COL; i += L) {
        uint k = i % (8 * n), c = i / (8 * n), at = k * QUAD_STEP + c;
        uvec2 h[4];
        [[unroll]] for (uint j = 0; j < 4; j++) h[j] = x2[min(col + 4 * c + j, n_col - 1) * (ld_x / 4) + first * 8 + k];
        [[unroll]] for (uint j = 0; j < 2; j++) {
            stage[at + 2 * j * QUADS_COL] = uvec2(h[0][j] & 0xffffu | h[1][j] << 16, h[2][j] & 0xffffu | h[3][j] << 16);
            stage[at + (2 * j + 1) * QUADS_COL] = uvec2(h[0][j] >> 16 | h[1][j] & 0xffff0000u,
                                                        h[2][j] >> 16 | h[3][j] & 0xffff0000u);
        }
    }
    for (uint i = gl_LocalInvocationIndex; i < n * COLS; i += L) {
        uint k = i % n, c = i / n;
        stage_scale[k * COLS + c] = x_scale[x_scale_at + min(col + c, n_col - 1) * (ld_x / 32) + first + k];
    }
}

#else

layout(set = 0, binding = 2) readonly buffer x_floats { vec4 x4[]; };
const uint QUAD_STEP = 4 * QUADS_COL + 1;      // as above
shared vec4 stage[STAGE * 8 * QUAD_STEP];

void stage_x(uint col, uint first, uint n) {
    for (uint i = gl_LocalInvocationIndex; i < n * 8 * QUADS_COL; i += L) {
        uint k = i % (8 * n), c = i / (8 * n), at = k * QUAD_STEP + c;
        vec4 v[4];
        [[unroll]] for (uint j = 0; j < 4; j++) v[j] = x4[min(col + 4 * c + j, n_col - 1) * (ld_x / 4) + first * 8 + k];
        [[unroll]] for (uint j = 0; j < 4; j++) stage[at + j * QUADS_COL] = vec4(v[0][j], v[1][j], v[2][j], v[3][j]);
    }
}

#endif

// Global, since a parameter's size cannot be a specialization constant.
vec4   acc[N_W * ROWS * QUADS_COL];   // [weight][row][columns]
w_row  row_at[N_W * ROWS];
w_raw  raw[N_W * ROWS];               // of the next unit, in flight while this one is multiplied
w_unit u[N_W * ROWS];

#ifdef DOT

// A unit; `at` is its place in the stage, `part` in its group.
void add_unit(uint at, uint part) {
    int code[N_W * ROWS * 8];
    [[unroll]] for (uint r = 0; r < N_W * ROWS; r++)
        [[unroll]] for (uint q = 0; q < W_QUADS; q++) code[r * 8 + q] = w_pack(u[r], q);
    [[unroll]] for (uint c = 0; c < COLS; c++) {
        ivec4 x[2];
        uint  group = at / GROUP_UNITS;
        x[0] = stage[(group * COLS + c) * 2 + part];
        if (W_QUADS == 8) x[1] = stage[(group * COLS + c) * 2 + 1];
        vec2 scale = stage_scale[group * COLS + c];
        [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) {
            int low = 0, high = 0;
            [[unroll]] for (uint q = 0; q < 4; q++) low = dotPacked4x8EXT(code[r * 8 + q], x[0][q]) + low;
            if (FORMAT != W_Q6_K) high = low;
            if (W_QUADS == 8)
                [[unroll]] for (uint q = 4; q < 8; q++) high = dotPacked4x8EXT(code[r * 8 + q], x[1][q - 4]) + high;
            float sum = FORMAT == W_Q6_K ? u[r].d0 * float(low) + u[r].d1 * float(high) : u[r].d0 * float(high);
            float a   = fma(scale.x, sum, acc[r * QUADS_COL + c / 4][c % 4]);
            if (W_AFFINE && part == 0) a = fma(u[r].m, scale.y, a);
            acc[r * QUADS_COL + c / 4][c % 4] = a;
        }
    }
}

#elif defined(HALVES)

// Four stored codes as halves, exact: 1024 + code has the code in its last bits.
f16vec4 half_codes(w_unit u, uint q) {
    uint w = w_bytes(u, q);
    if (FORMAT == W_Q8_0) w ^= 0x80808080u;
    float16_t zero = 1024.0hf + float16_t(FORMAT == W_Q4_0 ? 8 : FORMAT == W_Q5_0 ? 16 : FORMAT == W_Q6_K ? 32 :
                                          FORMAT == W_Q8_0 ? 128 : 0);
    f16vec2 a = unpackFloat2x16(w & 0xff00ffu | 0x64006400u) - zero;
    f16vec2 b = unpackFloat2x16(w >> 8 & 0xff00ffu | 0x64006400u) - zero;
    return f16vec4(a.x, b.x, a.y, b.y);
}

// Codes are at most 128 and x at most 8 (matmul_pack.comp), so that a sum of 32 products stays below 65504.
void add_unit(uint at, uint part) {
    uint group = at / GROUP_UNITS;
    [[unroll]] for (uint s = 0; s < (FORMAT == W_Q6_K ? 2 : 1); s++) {
        const uint quads = FORMAT == W_Q6_K ? 4 : W_QUADS;
        f16vec4 sum[N_W * ROWS * QUADS_COL];
        [[unroll]] for (uint i = 0; i < N_W * ROWS * QUADS_COL; i++) sum[i] = f16vec4(0);
        [[unroll]] for (uint q = 0; q < end_of(quads); q++) {
            f16vec4 w[N_W * ROWS];
            [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) w[r] = half_codes(u[r], s * 4 + q);
            [[unroll]] for (uint k = 0; k < 4; k++)
                [[unroll]] for (uint c = 0; c < QUADS_COL; c++) {
                    uvec2   h = stage[(group * 8 + part * 4 + s * 4 + q) * QUAD_STEP + k * QUADS_COL + c];
                    f16vec4 x = f16vec4(unpackFloat2x16(h.x), unpackFloat2x16(h.y));
                    [[unroll]] for (uint r = 0; r < N_W * ROWS; r++)
                        sum[r * QUADS_COL + c] = fma(f16vec4(w[r][k]), x, sum[r * QUADS_COL + c]);
                }
        }
        [[unroll]] for (uint c = 0; c < QUADS_COL; c++) {
            vec4 d, dx;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                vec2 pair = stage_scale[group * COLS + 4 * c + j];
                d[j] = pair.x, dx[j] = pair.y;
            }
            [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) {
                vec4 a = fma(vec4(sum[r * QUADS_COL + c]) * d, vec4(w_scale(u[r], s * 4)), acc[r * QUADS_COL + c]);
                if (W_AFFINE && part == 0) a = fma(dx, vec4(u[r].m), a);
                acc[r * QUADS_COL + c] = a;
            }
        }
    }
}

#else

// Quad q of the units by x at `from` of the stage.
void add_quad(uint q, uint from) {
    vec4 w[N_W * ROWS];
    [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) w[r] = w_quad(u[r], q);
    [[unroll]] for (uint k = 0; k < 4; k++)
        [[unroll]] for (uint c = 0; c < QUADS_COL; c++) {
            vec4 x = stage[from * QUAD_STEP + k * QUADS_COL + c];
            [[unroll]] for (uint r = 0; r < N_W * ROWS; r++)
                acc[r * QUADS_COL + c] = fma(vec4(w[r][k]), x, acc[r * QUADS_COL + c]);
        }
}

void add_unit(uint at, uint part) {
    if (LOOP == 0 || W_QUADS < 4) {
        [[unroll]] for (uint q = 0; q < W_QUADS; q++) add_quad(q, at * W_QUADS + q);
        return;
    }
    // Two quads a turn, of constant numbers: the others come to their places. A turn costs taking the sums out of
    // memory and putting them back.
    const uint second = W_QUADS == 8 ? 4 : 2;
    [[dont_unroll]] for (uint i = 0; i < end_of(W_QUADS / 2); i++) {
        add_quad(0, at * W_QUADS + i);
        add_quad(second, at * W_QUADS + second + i);
        [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) {
            u[r].codes = u[r].codes.yzwx;
            u[r].high0 >>= FORMAT == W_Q6_K ? 2 : 1;
            u[r].high1 >>= 2;
        }
    }
}

#endif

void fetch(uint unit) {
    [[unroll]] for (uint i = 0; i < N_W; i++)
        [[unroll]] for (uint r = 0; r < ROWS; r++) raw[i * ROWS + r] = w_fetch_at(i, row_at[i * ROWS + r], unit);
}

void main() {
    uint row = gl_WorkGroupID.y * L * ROWS + gl_LocalInvocationIndex, col = gl_WorkGroupID.x * COLS;
    uint groups = n_pad / 32, units = groups * GROUP_UNITS;
    [[unroll]] for (uint i = 0; i < N_W * ROWS * QUADS_COL; i++) acc[i] = vec4(0);
    [[unroll]] for (uint i = 0; i < N_W; i++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            row_at[i * ROWS + r] = w_row_of(planes(i), n_pad, min(row + r * L, n_rows - 1));
    fetch(0);
    for (uint first = 0; first < groups; first += STAGE) {
        uint n = min(STAGE, groups - first);
        if (first > 0) barrier();
        stage_x(col, first, n);
        barrier();
        for (uint j = 0; j < n * GROUP_UNITS; j++) {
            uint unit = first * GROUP_UNITS + j;
            [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) u[r] = w_open(raw[r], unit);
            fetch(min(unit + 1, units - 1));
            add_unit(j, j % GROUP_UNITS);
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint c = 0; c < COLS; c++)
            finish(row + r * L, col + c, acc[r * QUADS_COL + c / 4][c % 4],
                   acc[((N_W - 1) * ROWS + r) * QUADS_COL + c / 4][c % 4]);
}
