#version 450
#extension GL_GOOGLE_include_directive : require

// y[c][row] (=, +=, act, glu) sum over i of w[row][i] x[c][i], + bias[row], for N_COL columns, 1 to 8.
//
// LANES neighbours, a team, share a row: lane k takes units k, k + LANES, ... of it, so that neighbours read
// neighbouring 16 bytes; each takes the same units of ROWS rows, so that x is read once for all of them. At the end the
// sums of a team are added up and dealt out over its lanes. LANES = 1, a row a lane, is for CPUs: x is then the same
// for a whole vector, and nothing is added across lanes.
//
// x comes straight from its buffer, or, STAGE units at a time, through shared memory, where a unit takes an odd number
// of vec4s: lanes that read the same quad of neighbouring units then meet no bank twice. With DOT x is quantised.
//
// Bindings: 0 w[0], 1 w[1] (glu; else any), 2 x (floats; DOT: quantised), 3 y, 4 bias[0], 5 bias[1] (where none: any).

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint L = 64;
layout(constant_id = 1) const uint FORMAT = 3;
layout(constant_id = 2) const uint N_COL = 1;
layout(constant_id = 3) const uint LANES_LOG = 0;
layout(constant_id = 4) const uint ROWS = 1;
layout(constant_id = 5) const uint STAGE = 0;       // units, 0: straight
layout(constant_id = 6) const uint EPILOGUE = 0;    // as op_epilogue; 4: y = act(y) * r
layout(constant_id = 7) const uint ACT = 0;
layout(constant_id = 8) const uint BIAS = 0;        // bit i: bias[i] is there

#define W_BINDINGS 2
#include "weight.glsl"
#ifdef DOT
#extension GL_EXT_integer_dot_product : require
layout(set = 0, binding = 2) readonly buffer x_codes { ivec4 x4[]; };
layout(set = 0, binding = 2) readonly buffer x_scales { vec2 x_scale[]; };   // d, d * sum of the codes
#else
layout(set = 0, binding = 2) readonly buffer x_floats { vec4 x4[]; };
#endif
layout(set = 0, binding = 3) buffer y_floats { float y[]; };
layout(set = 0, binding = 4) readonly buffer bias_floats_0 { float bias_0[]; };
layout(set = 0, binding = 5) readonly buffer bias_floats_1 { float bias_1[]; };

layout(push_constant) uniform push {
    uint codes_0, high_0, scales_0, extra_0;
    uint codes_1, high_1, scales_1, extra_1;
    uint n_pad;
    uint n_rows, first_row;   // of this part
    uint ld_x, ld_y;
    uint x_scale_at;          // DOT: where (d, sum) of column 0 begin, in pairs
};

const uint ADD = 1, GLU = 3, UP = 4;

const uint LANES = 1 << LANES_LOG, TEAMS = L / LANES;
const uint N = ROWS * N_COL;                        // sums of one weight
const uint N_W = EPILOGUE == GLU ? 2 : 1;
const uint UNIT = W_QUADS | 1;                      // of shared memory

#ifdef SG
// Sums of a lane after each step of dealing them out: halved as long as they part evenly. By name, so that every index
// is a constant.
const uint N_1 = N % 2 == 0 ? N / 2 : N, N_2 = N_1 % 2 == 0 ? N_1 / 2 : N_1, N_3 = N_2 % 2 == 0 ? N_2 / 2 : N_2,
           N_4 = N_3 % 2 == 0 ? N_3 / 2 : N_3, N_5 = N_4 % 2 == 0 ? N_4 / 2 : N_4, N_6 = N_5 % 2 == 0 ? N_5 / 2 : N_5;
const uint N_END = LANES_LOG == 0 ? N : LANES_LOG == 1 ? N_1 : LANES_LOG == 2 ? N_2 : LANES_LOG == 3 ? N_3 :
                   LANES_LOG == 4 ? N_4 : LANES_LOG == 5 ? N_5 : N_6;
#endif

float acc[N_W * N];   // [weight][row][column]

// Few lanes have many units each: their sums are taken in blocks.
const bool BLOCKS = LANES < 8;
const uint BLOCK = 32 * LANES;

#ifndef DOT
shared vec4 stage[STAGE > 0 ? STAGE * UNIT * N_COL : 1];
#endif
#ifndef SG
shared float sums[LANES > 1 ? TEAMS * N_W * N * (LANES + 1) : 1];
#endif

// Unit `unit` of the team's rows, which begin at base[weight]; it lies at `at` of the stage.
void add_unit(w_row base[2], w_row step, uint unit, uint at) {
    w_raw  raw[N_W * ROWS];
    w_unit u[N_W * ROWS];
    [[unroll]] for (uint i = 0; i < N_W; i++)
        [[unroll]] for (uint r = 0; r < ROWS; r++)
            raw[i * ROWS + r] = w_fetch_at(i, w_row_add(base[i], w_row_times(step, r)), unit);
    [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) u[r] = w_open(raw[r], unit);
#ifdef DOT
    [[unroll]] for (uint c = 0; c < N_COL; c++) {
        ivec4 x[2];
        uint  from = c * (ld_x / 16) + unit * (W_QUADS / 4);
        x[0] = x4[from];
        if (W_QUADS == 8) x[1] = x4[from + 1];
        vec2 scale = x_scale[x_scale_at + c * (ld_x / 32) + unit * W_QUADS / 8];
        [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) {
            int low = 0, high = 0;
            [[unroll]] for (uint q = 0; q < 4; q++) low += dotPacked4x8EXT(w_pack(u[r], q), x[0][q]);
            if (W_QUADS == 8)
                [[unroll]] for (uint q = 4; q < 8; q++) high += dotPacked4x8EXT(w_pack(u[r], q), x[1][q - 4]);
            float sum = FORMAT == W_Q6_K ? u[r].d0 * float(low) + u[r].d1 * float(high) : u[r].d0 * float(low + high);
            sum *= scale.x;
            if (W_AFFINE) sum = fma(u[r].m, scale.y, sum);
            acc[r * N_COL + c] += sum;
        }
    }
#else
    // A unit is summed by itself, then multiplied by its scale: a long row's sum has few additions in a row.
    float part[N_W * N];
    [[unroll]] for (uint q = 0; q < W_QUADS; q++) {
        vec4 w[N_W * ROWS];
        [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) w[r] = w_codes(u[r], q);
        [[unroll]] for (uint c = 0; c < N_COL; c++) {
            vec4 x = STAGE > 0 ? stage[(c * STAGE + at) * UNIT + q] : x4[c * (ld_x / 4) + unit * W_QUADS + q];
            [[unroll]] for (uint r = 0; r < N_W * ROWS; r++) {
                bool  begins = q == 0 || (FORMAT == W_Q6_K && q == 4);
                bool  ends = q + 1 == W_QUADS || (FORMAT == W_Q6_K && q == 3);
                float p = begins ? w[r].x * x.x : fma(w[r].x, x.x, part[r * N_COL + c]);
                p = fma(w[r].y, x.y, p);
                p = fma(w[r].z, x.z, p);
                p = fma(w[r].w, x.w, p);
                part[r * N_COL + c] = p;
                if (!ends) continue;
                if (W_DEFERS) acc[r * N_COL + c] = fma(p, w_scale(u[r], q), acc[r * N_COL + c]);
                else acc[r * N_COL + c] += p;
            }
        }
    }
#endif
}

// Sums of (row - first row of the part), which begin at `from` for this team: what lies before is another team's.
void finish(uint from, uint row, uint c, float r0, float r1) {
    if (row < from) return;
    row += first_row;
    uint at = c * ld_y + row;
    if ((BIAS & 1) != 0) r0 += bias_0[row];
    if ((BIAS & 2) != 0) r1 += bias_1[row];
    if (EPILOGUE == ADD) r0 += y[at];
    else if (EPILOGUE == UP) r0 *= activate(ACT, y[at]);
    else r0 = activate(ACT, r0);
    if (EPILOGUE == GLU) r0 *= r1;
    y[at] = r0;
}

void main() {
#ifdef SG
    uint lane = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
#else
    uint lane = gl_LocalInvocationIndex;
#endif
    uint k = lane % LANES, team = lane / LANES;
    uint group = gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x;
    uint own = (group * TEAMS + team) * ROWS, units = n_pad / (4 * W_QUADS);
    // The last rows of the part are read by several teams, and written by the one that they belong to. ROWS <= n_rows.
    uint row = min(own, n_rows - ROWS);
    w_row base[2], step = w_rows(n_pad, 1);
    base[0] = w_row_of(w_planes(codes_0, high_0, scales_0, extra_0), n_pad, row);
    base[1] = w_row_of(w_planes(codes_1, high_1, scales_1, extra_1), n_pad, row);

    [[unroll]] for (uint i = 0; i < N_W * N; i++) acc[i] = 0;
#ifndef DOT
    if (STAGE > 0) {
        for (uint first = 0; first < units; first += STAGE) {
            uint n = min(STAGE, units - first);
            if (first > 0) barrier();
            [[unroll]] for (uint c = 0; c < N_COL; c++)
                for (uint j = lane; j < n * W_QUADS; j += L)
                    stage[(c * STAGE + j / W_QUADS) * UNIT + j % W_QUADS] = x4[c * (ld_x / 4) + first * W_QUADS + j];
            barrier();
            for (uint j = k; j < n; j += LANES) add_unit(base, step, first + j, j);
        }
    } else
#endif
    if (!BLOCKS) {
        for (uint unit = k; unit < units; unit += LANES) add_unit(base, step, unit, 0);
    } else {
        float total[BLOCKS ? N_W * N : 1];
        [[unroll]] for (uint i = 0; i < N_W * N; i++) total[BLOCKS ? i : 0] = 0;
        for (uint first = 0; first < units; first += BLOCK) {
            for (uint unit = first + k; unit < min(first + BLOCK, units); unit += LANES) add_unit(base, step, unit, 0);
            [[unroll]] for (uint i = 0; i < N_W * N; i++) {
                total[BLOCKS ? i : 0] += acc[i];
                acc[i] = 0;
            }
        }
        [[unroll]] for (uint i = 0; i < N_W * N; i++) acc[i] = total[BLOCKS ? i : 0];
    }

#ifdef SG
    // At each step a lane keeps one half of its sums and gives the other one to its partner; where they do not part
    // evenly, both add up all, and the upper one is out.
    uint first = 0;
    bool mine = true;
#define STEP(s, HAD, HAS)                                                                              \
    if (LANES_LOG > s) {                                                                               \
        const uint other = LANES >> (s + 1);                                                           \
        bool upper = (k & other) != 0;                                                                 \
        if (HAS < HAD) first += upper ? HAS : 0;                                                       \
        else mine = mine && !upper;                                                                    \
        [[unroll]] for (uint i = 0; i < N_W; i++)                                                      \
            [[unroll]] for (uint v = 0; v < HAS; v++) {                                                \
                float a = acc[i * N + v], b = acc[i * N + HAD - HAS + v];                              \
                acc[i * N + v] = (upper ? b : a) + subgroupShuffleXor(upper ? a : b, other);           \
            }                                                                                          \
    }
    STEP(0, N, N_1) STEP(1, N_1, N_2) STEP(2, N_2, N_3) STEP(3, N_3, N_4) STEP(4, N_4, N_5) STEP(5, N_5, N_6)
    if (mine)
        [[unroll]] for (uint v = 0; v < N_END; v++) {
            uint which = first + v;
            finish(own, row + which / N_COL, which % N_COL, acc[v], acc[N_W * N - N + v]);
        }
#else
    if (LANES == 1) {
        [[unroll]] for (uint v = 0; v < N; v++) finish(own, row + v / N_COL, v % N_COL, acc[v], acc[N_W * N - N + v]);
    } else {
        // [team][weight][sum][lane]: a sum's column is odd, so lanes that add up different sums meet no bank twice.
        [[unroll]] for (uint v = 0; v < N_W * N; v++) sums[(team * N_W * N + v) * (LANES + 1) + k] = acc[v];
        barrier();
        for (uint v = k; v < N; v += LANES) {
            float r0 = 0, r1 = 0;
            uint  at = (team * N_W * N + v) * (LANES + 1);
            for (uint i = 0; i < LANES; i++) {
                r0 += sums[at + i];
                if (N_W == 2) r1 += sums[at + N * (LANES + 1) + i];
            }
            finish(own, row + v / N_COL, v % N_COL, r0, r1);
        }
    }
#endif
}
