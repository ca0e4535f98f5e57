#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of few columns: a workgroup takes one column, up to ROWS heads of a KV head, and every n_split-th page that
// the column sees. Softmax by running maxima (FlashAttention, arXiv 2205.14135), in powers of two.
//
// Bindings and specialization constants: attend.glsl. Groups: blocks of heads, splits, columns. A page's scores: 16
// lanes stand side by side on 64 tokens (four each), groups of 16 share the dimensions. Its values: lanes stand on a
// token's V, groups share the tokens. Shared memory holds the queries, the groups' shares and the weights.
layout(local_size_x_id = 0) in;
#include "attend.glsl"

const uint QUADS = (ROWS + 3) / 4;                       // queries by fours
const uint K_GROUPS = LANES / 16;
const uint SLOTS = (ROWS * 16 + LANES - 1) / LANES;      // fours of scores that a lane weighs
const uint V_LANES = UNITS < LANES ? UNITS : LANES;
const uint V_EACH = (UNITS + LANES - 1) / LANES;         // units of a lane
const uint V_GROUPS = LANES / V_LANES < 16 ? LANES / V_LANES : 16;
const uint V_TURNS = (16 + V_GROUPS - 1) / V_GROUPS;     // fours of tokens of a lane
const uint SHARE = ROWS * K_GROUPS * 16;                 // vec4s
const uint ACC = V_EACH * PER;
const uint JOIN_ROW = V_GROUPS * V_LANES * ACC;          // floats: a row's accumulators
const uint JOIN_FIT = SHARE * 4 / JOIN_ROW;
const uint JOIN = JOIN_FIT == 0 ? 1 : JOIN_FIT < ROWS ? JOIN_FIT : ROWS;     // rows that are joined at once
const uint SHARE_SIZE = SHARE * 4 > JOIN * JOIN_ROW ? SHARE : (JOIN * JOIN_ROW + 3) / 4;

shared vec4 queries[K_ROWS * (K_F32 != 0 ? 1 : 2) * QUADS];
shared vec4 share[SHARE_SIZE];
shared vec4 weights[ROWS * 16];
shared vec4 tops[ROWS * 4];
shared float keeps[ROWS];

uint lane, head_kv, head, n_head;

void load_queries(uint col, bool sinks, uint turn) {
    uint base = col * p.ld_q + head * DK;
    for (uint j = lane; j < QUADS * 4 * K_ROWS * (K_F32 != 0 ? 1 : 2); j += LANES) {
        uint d = j / (QUADS * 4), r = j % (QUADS * 4);
        float x = 0;
        if (d < DK && r < n_head) x = query(base + r * DK, d, sinks, turn);
        queries[d * QUADS + r / 4][r & 3u] = CAPPED != 0 ? x : x * p.scale;
    }
}

// This group's share of the scores of four tokens.
void share_scores(uint k_at) {
    vec4 s[ROWS];
    /* A constant makes addresses uniform, which CPUs like. */
    uint quad = lane % 16, group = K_GROUPS == 1 ? 0 : lane / 16;
    [[unroll]] for (uint r = 0; r < ROWS; r++) s[r] = vec4(0);
    [[dont_unroll]] for (uint i0 = group; i0 < K_ROWS; i0 += 4 * K_GROUPS) {
        uvec4 w[4];
        [[unroll]] for (uint u = 0; u < 4; u++)
            w[u] = cache4_[k_at / 4 + min(i0 + u * K_GROUPS, K_ROWS - 1) * 16 + quad];
        [[unroll]] for (uint u = 0; u < 4; u++) {
            uint i = i0 + u * K_GROUPS;
            if (K_ROWS % (4 * K_GROUPS) != 0 && i >= K_ROWS) break;
            if (K_F32 != 0) {
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    s[r] = fma(vec4(queries[i * QUADS + r / 4][r & 3u]), uintBitsToFloat(w[u]), s[r]);
            } else {
                vec4 even, odd;
                two_dimensions(w[u], even, odd);
                [[unroll]] for (uint r = 0; r < ROWS; r++) {
                    s[r] = fma(vec4(queries[2 * i * QUADS + r / 4][r & 3u]), even, s[r]);
                    s[r] = fma(vec4(queries[(2 * i + 1) * QUADS + r / 4][r & 3u]), odd, s[r]);
                }
            }
        }
    }
    [[unroll]] for (uint r = 0; r < ROWS; r++) share[(group * ROWS + r) * 16 + quad] = s[r];
}

void main() {
    lane = gl_LocalInvocationIndex;
    head_kv = gl_WorkGroupID.x / p.head_blocks;
    uint block = gl_WorkGroupID.x % p.head_blocks, n_rep = p.n_head / p.n_head_kv;
    uint split = gl_WorkGroupID.y, col = gl_WorkGroupID.z;
    head = head_kv * n_rep + block * p.heads;
    n_head = min(p.heads, n_rep - block * p.heads);
    if (col >= now_[0]) return;
    uvec4 column = now4_[p.col_table / 4 + col];
    sequence s = sequence_of(p.run_table, column.y);
    uint from, sink_from;
    seen_from(s, column.z, p.window, from, sink_from);
    visits v = visits_of(s, from, column.z, sink_from);
    if (split >= v.n) {
        if (lane < n_head) put_sum(partial_at(col, head + lane, split), FLOOR, 0);
        return;
    }

    vec4  score[SLOTS];
    float top[SLOTS], sum[SLOTS], acc[ROWS * ACC];
    [[unroll]] for (uint j = 0; j < SLOTS; j++) top[j] = FLOOR, sum[j] = 0;
    [[unroll]] for (uint i = 0; i < ROWS * ACC; i++) acc[i] = 0;
    uint v_lane = lane % V_LANES, v_group = V_LANES == LANES ? 0 : lane / V_LANES;
    bool loaded = false, sinks_loaded = false;

    for (uint visit = split; visit < v.n; visit += p.n_split) {
        bool sinks = visit < v.n_sink;
        if (!loaded || sinks_loaded != sinks) {
            barrier();
            load_queries(col, sinks, p.sink_turn_table + column.y * p.n_rot);
            barrier();
            loaded = true, sinks_loaded = sinks;
        }
        uint page = sinks ? v.sink_page + visit : v.page + visit - v.n_sink, base = page * PAGE;
        uint first = sinks ? sink_from : from, end = sinks ? s.n_sinks : column.z + 1;
        uint lo = first > base ? first - base : 0, hi = min(end - base, PAGE);       // visible tokens of the page
        uint k_at = cache_of(page_of(s, page), head_kv), v_at = k_at + K_WORDS;
        share_scores(k_at);
        barrier();
        [[unroll]] for (uint j = 0; j < SLOTS; j++) {
            uint i = lane + j * LANES, r = i / 16, t = i % 16 * 4;
            if (i >= ROWS * 16) break;
            vec4 x = share[i];
            [[unroll]] for (uint g = 1; g < K_GROUPS; g++) x += share[g * ROWS * 16 + i];
            x = scored(x);
            uvec4 at = t + uvec4(0, 1, 2, 3);
            score[j] = mix(vec4(LOWEST), x, lessThan(at - lo, uvec4(hi - lo)));
            tops[i / 4][i & 3u] = max(max(score[j].x, score[j].y), max(score[j].z, score[j].w));
        }
        barrier();
        [[unroll]] for (uint j = 0; j < SLOTS; j++) {
            uint i = lane + j * LANES, r = i / 16, t = i % 16 * 4;
            if (i >= ROWS * 16) break;
            vec4 m = max(max(tops[r * 4], tops[r * 4 + 1]), max(tops[r * 4 + 2], tops[r * 4 + 3]));
            float high = max(top[j], max(max(m.x, m.y), max(m.z, m.w))), keep = exp2(top[j] - high);
            vec4 w = exp2(score[j] - high);
            weights[i] = w;
            sum[j] = fma(sum[j], keep, (w.x + w.y) + (w.z + w.w));
            top[j] = high;
            if (t == 0) keeps[r] = keep;
        }
        barrier();
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float keep = keeps[r];
            [[unroll]] for (uint i = 0; i < ACC; i++) acc[r * ACC + i] *= keep;
        }
        [[dont_unroll]] for (uint turn = 0; turn < V_TURNS; turn++) {
            uint quad = turn * V_GROUPS + v_group;
            if (v_group >= V_GROUPS || quad >= 16 || 4 * quad >= hi || 4 * quad + 3 < lo) continue;
            vec4 w[ROWS];
            [[unroll]] for (uint r = 0; r < ROWS; r++) w[r] = weights[r * 16 + quad];
            [[unroll]] for (uint e = 0; e < V_EACH; e++) {
                uint unit = min(v_lane + e * V_LANES, UNITS - 1);
                float x[4][PER];
                /* Tokens that are not visible weigh nothing, but may be no numbers: a visible one stands in. */
                [[unroll]] for (uint k = 0; k < 4; k++)
                    unit_of(v_at + clamp(4 * quad + k, lo, hi - 1) * V_ROW + unit * UNIT, x[k]);
                [[unroll]] for (uint r = 0; r < ROWS; r++)
                    [[unroll]] for (uint i = 0; i < PER; i++) {
                        float a = acc[r * ACC + e * PER + i];
                        a = fma(w[r].x, x[0][i], a);
                        a = fma(w[r].y, x[1][i], a);
                        a = fma(w[r].z, x[2][i], a);
                        acc[r * ACC + e * PER + i] = fma(w[r].w, x[3][i], a);
                    }
            }
        }
    }

    barrier();                   // keeps have been read
    /* Sums over the lanes of a row, then accumulators over the groups. */
    [[unroll]] for (uint j = 0; j < SLOTS; j++) {
        uint i = lane + j * LANES;
        if (i < ROWS * 16) tops[i / 4][i & 3u] = sum[j];
    }
    [[unroll]] for (uint j = 0; j < SLOTS; j++) {
        uint i = lane + j * LANES;
        if (i < ROWS * 16 && i % 16 == 0) keeps[i / 16] = top[j];
    }
    for (uint r0 = 0; r0 < ROWS; r0 += JOIN) {
        barrier();
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            if (r < r0 || r >= r0 + JOIN || v_group >= V_GROUPS) continue;
            uint at = (r - r0) * JOIN_ROW + v_group * V_LANES * ACC;
            [[unroll]] for (uint e = 0; e < V_EACH; e++)
                [[unroll]] for (uint i = 0; i < PER; i++) {
                    uint to = at + (e * V_LANES + v_lane) * PER + i;
                    share[to / 4][to & 3u] = acc[r * ACC + e * PER + i];
                }
        }
        barrier();
        for (uint j = lane; j < min(JOIN, n_head - min(n_head, r0)) * DV; j += LANES) {
            uint r = j / DV, d = j % DV, row = r0 + r;
            float x = 0;
            [[unroll]] for (uint g = 0; g < V_GROUPS; g++) {
                uint at = r * JOIN_ROW + g * V_LANES * ACC + d;
                x += share[at / 4][at & 3u];
            }
            vec4 m = (tops[row * 4] + tops[row * 4 + 1]) + (tops[row * 4 + 2] + tops[row * 4 + 3]);
            float high = keeps[row], total = (m.x + m.y) + (m.z + m.w);
            if (DIRECT != 0) {
                out_[col * p.ld_out + (head + row) * DV + d] = x * share_of(high, total, head + row);
            } else {
                uint at = partial_at(col, head + row, split);
                if (d == 0) put_sum(at, high, total);
                partial_[at * DV + d] = x;
            }
        }
    }
}
