// Cooperative matrices of [TILE_M][TILE_K] by [TILE_K][TILE_N].
//
// A workgroup makes BM x BN sums, a subgroup WM x WN of them, which it keeps in its registers. STAGE groups of 32 of
// the weights and of x at a time lie in shared memory, both with k running along a row (weights [row][k], x
// [column][k]), rows padded by 16 bytes so that the rows of a matrix that is read or written lie in different banks.
// While they are multiplied, the next ones are on their way from the buffers to registers.
//
// For glu, the tile's rows are those of both weights, TILE_M by TILE_M in turn, so that a subgroup has the sums of
// both.
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_shader_subgroup_basic : require
#ifdef MATRIX_S8
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#endif

layout(constant_id = 6) const uint BM = 64;
layout(constant_id = 7) const uint BN = 64;
layout(constant_id = 8) const uint WM = 32;
layout(constant_id = 9) const uint WN = 32;
layout(constant_id = 10) const uint TILE_M = 16;
layout(constant_id = 11) const uint TILE_N = 16;
layout(constant_id = 12) const uint TILE_K = 16;
layout(constant_id = 13) const uint SUBGROUP = 32;
layout(constant_id = 14) const uint STAGE = 1;

const uint ACROSS = BN / WN;                                // subgroups side by side
const uint FM = WM / TILE_M, FN = WN / TILE_N;              // matrices of a subgroup
const uint GROUP_UNITS = 8 / W_QUADS;                       // 16-byte loads of weights for a group
const uint ROW_UNITS = STAGE * GROUP_UNITS;
const uint A_UNITS = BM * ROW_UNITS, A_EACH = (A_UNITS + L - 1) / L;

#ifdef MATRIX_S8

// Bytes. Shared memory goes by 8, since TILE_K may be 8.
layout(set = 0, binding = 2) readonly buffer x_codes { uvec4 x4[]; };
layout(set = 0, binding = 2) readonly buffer x_scales { vec2 x_scale[]; };   // d, d * sum of the codes, a group each
#define ELEMENT int8_t
#define CELL uvec2
const uint GROUP_VECS = 2, CELLS = 2;
// Sums of a group are scaled before they are added up; Q6_K has a scale for each 16.
const uint STEP = FORMAT == W_Q6_K ? 16 : 32, STEPS = 32 / STEP;

#else

// Halves.
layout(set = 0, binding = 2) readonly buffer x_halves { uvec4 x4[]; };
layout(set = 0, binding = 2) readonly buffer x_scales { vec2 x_scale[]; };   // d, 0, a column each
#define ELEMENT float16_t
#define CELL uvec4
const uint GROUP_VECS = 4, CELLS = 1;
const uint STEP = TILE_K, STEPS = 1;

#endif

const uint VEC_ELEMENTS = 32 / GROUP_VECS, CELL_ELEMENTS = VEC_ELEMENTS / CELLS;
const uint ROW_VECS = STAGE * GROUP_VECS;                                    // uvec4s of a row of a tile
const uint ROW_STEP = (ROW_VECS + 1) * CELLS;                                // its cells, with the pad
const uint X_UNITS = BN * ROW_VECS, X_EACH = (X_UNITS + L - 1) / L;
const uint OUT_CELLS = TILE_M * TILE_N / 4 * CELLS;                          // a matrix of sums
const uint TILE_CELLS = (BM + BN) * ROW_STEP, OUT_ALL = L / SUBGROUP * N_W * OUT_CELLS;
const uint X_AT = BM * ROW_STEP;

shared CELL tile[TILE_CELLS > OUT_ALL ? TILE_CELLS : OUT_ALL];
#ifdef MATRIX_S8
shared float row_d[STAGE * STEPS * BM], row_m[W_AFFINE ? STAGE * BM : 1];    // [group][part][row]
shared float col_d[STAGE * BN], col_s[W_AFFINE ? STAGE * BN : 1];            // [group][column]
#endif

w_raw raw[A_EACH];
uvec4 raw_x[X_EACH];
#ifdef MATRIX_S8
const uint XS_EACH = (BN * STAGE + L - 1) / L;
vec2 raw_scale[XS_EACH];
#endif

// Unit i of the tile's weights: which weight, its row in the tile's rows of that weight, its unit in the stage. Units
// of the two weights are parted in the middle, so that a load's weight is the same for a whole subgroup.
const uint ROWS_EACH = BM / N_W;
uint unit_weight(uint i) { return N_W == 2 && i >= A_UNITS / 2 ? 1 : 0; }
uint unit_row(uint i) { return i / ROW_UNITS % ROWS_EACH; }
uint tile_row(uint i) {
    uint r = unit_row(i);
    return N_W == 2 ? (r / TILE_M * 2 + unit_weight(i)) * TILE_M + r % TILE_M : r;
}

// The lane's j-th unit.
uint unit_of(uint j) { return min(gl_LocalInvocationIndex + j * L, A_UNITS - 1); }

// Places that do not change from stage to stage.
w_row row_at[A_EACH];
uint x_of[X_EACH];                             // of the stage's first vec in x4

void find_places(uint row, uint col) {
    [[unroll]] for (uint j = 0; j < A_EACH; j++) {
        uint i = unit_of(j);
        row_at[j] = w_row_of(planes(unit_weight(i)), n_pad, min(row + unit_row(i), n_rows - 1));
    }
    [[unroll]] for (uint j = 0; j < X_EACH; j++) {
        uint i = gl_LocalInvocationIndex + j * L;
        x_of[j] = min(col + i / ROW_VECS, n_col - 1) * (ld_x / VEC_ELEMENTS) + i % ROW_VECS;
    }
}

// What lies behind the last group must not count: weights there are those of the last one, x is zero.
bool is_there(uint group, uint groups) { return STAGE == 1 || group < groups; }

void fetch(uint col, uint first, uint groups) {
    [[unroll]] for (uint j = 0; j < A_EACH; j++) {
        uint i = unit_of(j), unit = first * GROUP_UNITS + i % ROW_UNITS;
        uint weight = A_UNITS / 2 % L == 0 ? unit_weight(j * L) : unit_weight(i);
        raw[j] = w_fetch_at(weight, row_at[j], STAGE == 1 ? unit : min(unit, groups * GROUP_UNITS - 1));
    }
    [[unroll]] for (uint j = 0; j < X_EACH; j++) {
        uint k = (gl_LocalInvocationIndex + j * L) % ROW_VECS;
        raw_x[j] = is_there(first + k / GROUP_VECS, groups) ? x4[x_of[j] + first * GROUP_VECS] : uvec4(0);
    }
#ifdef MATRIX_S8
    [[unroll]] for (uint j = 0; j < XS_EACH; j++) {
        uint i = gl_LocalInvocationIndex + j * L, k = i % STAGE, c = min(col + i / STAGE, n_col - 1);
        raw_scale[j] = is_there(first + k, groups) ? x_scale[x_scale_at + c * (ld_x / 32) + first + k] : vec2(0);
    }
#endif
}

#ifndef MATRIX_S8

// Quads are kept as elements 0 2 1 3 (so is x, by matmul_pack.comp): then codes, a byte each, become halves by masks
// alone, since the half 1024 + code has the code in its last bits.
struct half_quad { f16vec2 a, b; };            // elements 0 2, 1 3

uvec2 words_of(half_quad h) { return uvec2(packFloat2x16(h.a), packFloat2x16(h.b)); }
f16vec2 halves_of(uint w) { return unpackFloat2x16(w | 0x64006400u); }

// Codes less what stands for zero, exact.
half_quad quad_codes(w_unit u, uint q) {
    if (FORMAT == W_Q4_0 || FORMAT == W_Q4_1 || FORMAT == W_Q4_K) {
        // High halves stay where they are, 16 times as large.
        uint w = u.codes[q & 3], v = w >> 8;
        float16_t zero = float16_t(FORMAT == W_Q4_0 ? 8 : 0);
        f16vec2   low = f16vec2(1024.0hf + zero), part = f16vec2(0.0625hf), less = f16vec2(-64.0hf - zero);
        if (q < 4) return half_quad(halves_of(w & 0xf000fu) - low, halves_of(v & 0xf000fu) - low);
        return half_quad(fma(halves_of(w & 0xf000f0u), part, less), fma(halves_of(v & 0xf000f0u), part, less));
    }
    uint w = w_bytes(u, q);
    if (FORMAT == W_Q8_0) w ^= 0x80808080u;
    float16_t zero = 1024.0hf + float16_t(FORMAT == W_Q5_0 ? 16 : FORMAT == W_Q6_K ? 32 : FORMAT == W_Q8_0 ? 128 : 0);
    return half_quad(halves_of(w & 0xff00ffu) - zero, halves_of(w >> 8 & 0xff00ffu) - zero);
}

// Weights times `scale`.
uvec2 quad_halves(w_unit u, uint q, float scale) {
    if (FORMAT == W_F16) {
        uvec2   w = q == 0 ? u.codes.xy : u.codes.zw;
        f16vec2 a = unpackFloat2x16(w.x), b = unpackFloat2x16(w.y);
        return words_of(half_quad(f16vec2(a.x, b.x) * float16_t(scale), f16vec2(a.y, b.y) * float16_t(scale)));
    }
    if (FORMAT == W_F32 || FORMAT == W_BF16) {
        vec4 v = w_quad(u, q) * scale;
        return words_of(half_quad(f16vec2(v.xz), f16vec2(v.yw)));
    }
    half_quad h = quad_codes(u, q);
    f16vec2   d = f16vec2(w_scale(u, q) * scale);
    if (W_AFFINE) {
        f16vec2 m = f16vec2(u.m * scale);
        return words_of(half_quad(fma(h.a, d, m), fma(h.b, d, m)));
    }
    return words_of(half_quad(h.a * d, h.b * d));
}

#endif

// What was fetched into shared memory.
void put(uint first) {
    [[unroll]] for (uint j = 0; j < A_EACH; j++) {
        uint i = gl_LocalInvocationIndex + j * L;
        if (A_UNITS % L != 0 && i >= A_UNITS) break;
        uint   k = i % ROW_UNITS;
        w_unit u = w_open(raw[j], first * GROUP_UNITS + k);
#ifdef MATRIX_S8
        uint to = tile_row(i) * ROW_STEP + k * (W_QUADS / 2), group = k / GROUP_UNITS;
        [[unroll]] for (uint q = 0; q < W_QUADS; q += 2) tile[to + q / 2] = uvec2(w_pack(u, q), w_pack(u, q + 1));
        if (k % GROUP_UNITS == 0) {
            row_d[group * STEPS * BM + tile_row(i)] = u.d0;
            if (STEPS == 2) row_d[(group * STEPS + 1) * BM + tile_row(i)] = u.d1;
            if (W_AFFINE) row_m[group * BM + tile_row(i)] = u.m;
        }
#else
        uint  to = tile_row(i) * ROW_STEP;
        float scale = unit_weight(i) == 0 ? w_scale_0 : w_scale_1;
        if (W_QUADS == 1) {
            // Half a uvec4: the neighbour, which has the next unit, writes the other one.
            uvec2 h = quad_halves(u, 0, scale);
            if (k % 2 == 0) tile[to + k / 2].xy = h;
            else tile[to + k / 2].zw = h;
        } else {
            [[unroll]] for (uint q = 0; q < W_QUADS; q += 2)
                tile[to + (k * W_QUADS + q) / 2] = uvec4(quad_halves(u, q, scale), quad_halves(u, q + 1, scale));
        }
#endif
    }
    [[unroll]] for (uint j = 0; j < X_EACH; j++) {
        uint i = gl_LocalInvocationIndex + j * L;
        if (X_UNITS % L != 0 && i >= X_UNITS) break;
        uint to = X_AT + i / ROW_VECS * ROW_STEP + i % ROW_VECS * CELLS;
#ifdef MATRIX_S8
        tile[to] = raw_x[j].xy, tile[to + 1] = raw_x[j].zw;
#else
        tile[to] = raw_x[j];
#endif
    }
#ifdef MATRIX_S8
    [[unroll]] for (uint j = 0; j < XS_EACH; j++) {
        uint i = gl_LocalInvocationIndex + j * L;
        if (BN * STAGE % L != 0 && i >= BN * STAGE) break;
        col_d[i % STAGE * BN + i / STAGE] = raw_scale[j].x;
        if (W_AFFINE) col_s[i % STAGE * BN + i / STAGE] = raw_scale[j].y;
    }
#endif
}

#define SUMS(type) coopmat<type, gl_ScopeSubgroup, TILE_M, TILE_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

SUMS(float) acc[FM * FN];

// Adds products of STEP elements, from the stage's `at` on. All matrices of weights that it takes are in registers,
// those of x come by one after the other.
void multiply(uint at_row, uint at_col, uint at) {
    const uint KS = STEP / TILE_K;
    coopmat<ELEMENT, gl_ScopeSubgroup, TILE_M, TILE_K, gl_MatrixUseA> a[FM * KS];
    coopmat<ELEMENT, gl_ScopeSubgroup, TILE_K, TILE_N, gl_MatrixUseB> b[KS];
    [[unroll]] for (uint i = 0; i < FM; i++)
        [[unroll]] for (uint k = 0; k < KS; k++)
            coopMatLoad(a[i * KS + k], tile, (at_row + i * TILE_M) * ROW_STEP + (at + k * TILE_K) / CELL_ELEMENTS,
                        ROW_STEP, ROW_MAJOR);
#ifdef MATRIX_S8
    // A row's scale in every column, a column's scale in every row: matrices read with a stride of 0.
    uint scale = at / STEP * BM + at_row, group = at / 32;
    SUMS(float) d[FM], m[FM], x_d, x_s;
    [[unroll]] for (uint i = 0; i < FM; i++) {
        coopMatLoad(d[i], row_d, scale + i * TILE_M, 0, COLUMN_MAJOR);
        if (W_AFFINE) coopMatLoad(m[i], row_m, group * BM + at_row + i * TILE_M, 0, COLUMN_MAJOR);
    }
#endif
    [[unroll]] for (uint j = 0; j < FN; j++) {
        uint c = at_col + j * TILE_N;
        [[unroll]] for (uint k = 0; k < KS; k++)
            coopMatLoad(b[k], tile, X_AT + c * ROW_STEP + (at + k * TILE_K) / CELL_ELEMENTS, ROW_STEP, COLUMN_MAJOR);
#ifdef MATRIX_S8
        coopMatLoad(x_d, col_d, group * BN + c, 0, ROW_MAJOR);
        if (W_AFFINE) coopMatLoad(x_s, col_s, group * BN + c, 0, ROW_MAJOR);
        [[unroll]] for (uint i = 0; i < FM; i++) {
            // Sums begin at 0x4b400000, which is the float 3 2^22: read as a float, a sum s (less than 2^22) is then
            // 3 2^22 + s, and a subtraction does what a conversion does at a quarter of the rate. Both kinds of
            // matrix keep an element at the same place.
            SUMS(int) sum = SUMS(int)(0x4b400000);
            [[unroll]] for (uint k = 0; k < KS; k++) sum = coopMatMulAdd(a[i * KS + k], b[k], sum);
            [[unroll]] for (uint e = 0; e < acc[0].length(); e++) {
                float t = fma((intBitsToFloat(sum[e]) - 12582912.0) * x_d[e], d[i][e], acc[i * FN + j][e]);
                acc[i * FN + j][e] = W_AFFINE ? fma(m[i][e], x_s[e], t) : t;
            }
        }
#else
        [[unroll]] for (uint i = 0; i < FM; i++)
            [[unroll]] for (uint k = 0; k < KS; k++)
                acc[i * FN + j] = coopMatMulAdd(a[i * KS + k], b[k], acc[i * FN + j]);
#endif
    }
}

vec4 out_values(uint from, uint at) {
#ifdef MATRIX_S8
    return uintBitsToFloat(uvec4(tile[from + 2 * at], tile[from + 2 * at + 1]));
#else
    return uintBitsToFloat(tile[from + at]);
#endif
}

void main() {
    uint row = gl_WorkGroupID.y * ROWS_EACH, col = gl_WorkGroupID.x * BN, groups = n_pad / 32;
    uint at_row = gl_SubgroupID / ACROSS * WM, at_col = gl_SubgroupID % ACROSS * WN;
    [[unroll]] for (uint i = 0; i < FM * FN; i++) acc[i] = SUMS(float)(0.0);
    find_places(row, col);
    fetch(col, 0, groups);
    for (uint first = 0; first < groups; first += STAGE) {
        if (first > 0) barrier();
        put(first);
        barrier();
        if (first + STAGE < groups) fetch(col, first + STAGE, groups);
        [[unroll]] for (uint at = 0; at < end_of(STAGE * 32); at += STEP) multiply(at_row, at_col, at);
    }
    barrier();
    // A matrix at a time through shared memory, [column][row], since only there its elements have places.
    uint out_at = gl_SubgroupID * N_W * OUT_CELLS;
    [[unroll]] for (uint i = 0; i < FM; i += N_W)
        [[unroll]] for (uint j = 0; j < FN; j++) {
            [[unroll]] for (uint w = 0; w < N_W; w++)
                coopMatStore(acc[(i + w) * FN + j], tile, out_at + w * OUT_CELLS, TILE_M / 4 * CELLS, COLUMN_MAJOR);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            for (uint at = gl_SubgroupInvocationID; at < TILE_M * TILE_N / 4; at += SUBGROUP) {
                uint c = col + at_col + j * TILE_N + at / (TILE_M / 4);
                uint r = row + (at_row + i * TILE_M) / N_W + at % (TILE_M / 4) * 4;
                vec4 r0 = out_values(out_at, at), r1 = out_values(out_at + (N_W - 1) * OUT_CELLS, at);
#ifndef MATRIX_S8
                float d = x_scale[x_scale_at + min(c, n_col - 1)].x;
                r0 *= d / w_scale_0;
                r1 *= d / w_scale_1;
#endif
                finish4(r, c, r0, r1);
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
}
