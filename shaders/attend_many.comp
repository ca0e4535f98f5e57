#version 450
#extension GL_GOOGLE_include_directive : require
// Attention of many columns in plain floats: a workgroup takes ROWS rows of a KV head (attend_block.glsl) through all
// pages that one of them sees, with running maxima as attend.comp. A lane has LANE_ROWS rows, of which it computes the
// scores of four tokens and then some dimensions of the result, so that sixteen lanes share a row and rescaling needs
// no exchange.
//
// Bindings and specialization constants: attend.glsl; lanes = 16 * GROUPS, GROUPS a power of two up to 8. Groups:
// blocks of heads, blocks of rows, splits (each takes every n_split-th page).
layout(local_size_x_id = 0) in;
#include "attend.glsl"
#include "attend_block.glsl"

layout(constant_id = 10) const uint LANE_ROWS = 4;     // rows of a lane, a multiple of 4

const uint GROUPS = ROWS / LANE_ROWS;                  // of lanes, each with LANE_ROWS rows
const uint FOURS = LANE_ROWS / 4;
const uint ROW_FOURS = ROWS / 4;
const uint K_DIMS = K_ROWS * (K_F32 != 0 ? 1 : 2);
const uint V_EACH = (UNITS + 15) / 16;                 // units of a lane
const uint ACC = V_EACH * PER;
const uint BATCH = ACC > 8 ? 2 : 4;                    // loads at once that registers have room for

shared vec4 queries[K_DIMS * ROW_FOURS];               // [dimension][four rows]
shared vec4 weights[PAGE * ROW_FOURS];                 // [token][four rows], see place()
shared vec4 tops[16 * ROW_FOURS];

uint lane, group, head_kv, head, n_head;

// Neighbouring lanes write weights of every fourth token: the groups are shuffled so that they hit different banks.
uint place(uint token, uint four) { return token * ROW_FOURS + (group ^ (token / 4 & (GROUPS - 1))) * FOURS + four; }

// Rows: column row / n_head of the block, head row % n_head.
void load_queries(block b, bool sinks) {
    uint turn = p.sink_turn_table + b.run * p.n_rot;
    for (uint row = lane / 16; row < ROWS; row += LANES / 16) {
        uint base = (b.first + row / n_head) * p.ld_q + (head + row % n_head) * DK;
        for (uint d = lane % 16; d < K_DIMS; d += 16) {
            float x = 0;
            if (d < DK && row < b.n_row) x = query(base, d, sinks, turn);
            queries[d * ROW_FOURS + row / 4][row & 3u] = CAPPED != 0 ? x : x * p.scale;
        }
    }
}

void main() {
    lane = gl_LocalInvocationIndex;
    group = GROUPS == 1 ? 0 : lane / 16;
    head_kv = gl_WorkGroupID.x / p.head_blocks;
    uint n_rep = p.n_head / p.n_head_kv, part = gl_WorkGroupID.x % p.head_blocks;
    head = head_kv * n_rep + part * p.heads;
    n_head = min(p.heads, n_rep - part * p.heads);
    block b = block_of(ROWS / p.heads, n_head);
    if (b.n_row == 0) return;
    sequence s = sequence_of(p.run_table, b.run);
    uint last = b.position + b.n_col - 1, from, sink_from;
    seen_from(s, b.position, p.window, from, sink_from);     // the first column sees farthest back
    visits v = visits_of(s, from, last, sink_from);

    uint  quad = lane % 16, position[LANE_ROWS];     // quad: of tokens
    float top[LANE_ROWS], sum[LANE_ROWS], acc[LANE_ROWS][ACC];
    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        position[r] = b.position + (group * LANE_ROWS + r) / n_head;
        top[r] = FLOOR, sum[r] = 0;
        [[unroll]] for (uint i = 0; i < ACC; i++) acc[r][i] = 0;
    }

    bool loaded = false, sinks_loaded = false;
    for (uint visit = gl_WorkGroupID.z; visit < v.n; visit += p.n_split) {
        bool sinks = visit < v.n_sink;
        if (!loaded || sinks != sinks_loaded) {
            barrier();
            load_queries(b, sinks);
            barrier();
            loaded = true, sinks_loaded = sinks;
        }
        uint page = sinks ? v.sink_page + visit : v.page + visit - v.n_sink, base = page * PAGE;
        uint k_at = cache_of(page_of(s, page), head_kv), v_at = k_at + K_WORDS;

        vec4 score[LANE_ROWS];                                // of four tokens
        [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) score[r] = vec4(0);
        [[dont_unroll]] for (uint i0 = 0; i0 < K_ROWS; i0 += BATCH) {
            uvec4 w[BATCH];
            [[unroll]] for (uint u = 0; u < BATCH; u++) w[u] = cache4_[k_at / 4 + min(i0 + u, K_ROWS - 1) * 16 + quad];
            [[unroll]] for (uint u = 0; u < BATCH; u++) {
                uint i = i0 + u, q = group * FOURS;
                if (K_ROWS % BATCH != 0 && i >= K_ROWS) break;
                if (K_F32 != 0) {
                    vec4 k = uintBitsToFloat(w[u]);
                    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++)
                        score[r] = fma(vec4(queries[i * ROW_FOURS + q + r / 4][r & 3u]), k, score[r]);
                } else {
                    vec4 k0, k1;
                    two_dimensions(w[u], k0, k1);
                    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++)
                        score[r] = fma(vec4(queries[2 * i * ROW_FOURS + q + r / 4][r & 3u]), k0, score[r]);
                    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++)
                        score[r] = fma(vec4(queries[(2 * i + 1) * ROW_FOURS + q + r / 4][r & 3u]), k1, score[r]);
                }
            }
        }

        uvec4 token = base + quad * 4 + uvec4(0, 1, 2, 3);
        [[unroll]] for (uint f = 0; f < FOURS; f++) {
            vec4 high;
            [[unroll]] for (uint j = 0; j < 4; j++) {
                uint r = 4 * f + j, first, first_sink, end = sinks ? s.n_sinks : position[r] + 1;
                seen_from(s, position[r], p.window, first, first_sink);
                if (sinks) first = first_sink;
                vec4 x = mix(vec4(LOWEST), scored(score[r]), lessThan(token - first, uvec4(end - min(first, end))));
                score[r] = x;
                high[j] = max(max(x.x, x.y), max(x.z, x.w));
            }
            tops[quad * ROW_FOURS + group * FOURS + f] = high;
        }
        barrier();
        [[unroll]] for (uint f = 0; f < FOURS; f++) {
            vec4 high = vec4(top[4 * f], top[4 * f + 1], top[4 * f + 2], top[4 * f + 3]);
            vec4 weight[4];                                   // [token] of four rows
            [[unroll]] for (uint i = 0; i < 16; i++) high = max(high, tops[i * ROW_FOURS + group * FOURS + f]);
            [[unroll]] for (uint j = 0; j < 4; j++) {
                uint r = 4 * f + j;
                vec4 w = exp2(score[r] - high[j]);
                float keep = exp2(top[r] - high[j]);
                top[r] = high[j];
                sum[r] = fma(sum[r], keep, (w.x + w.y) + (w.z + w.w));
                [[unroll]] for (uint t = 0; t < 4; t++) weight[t][j] = w[t];
                [[unroll]] for (uint i = 0; i < ACC; i++) acc[r][i] *= keep;
            }
            [[unroll]] for (uint t = 0; t < 4; t++) weights[place(quad * 4 + t, f)] = weight[t];
        }
        barrier();

        /* Tokens that no row sees are left out, or one that is seen stands in: they may be no numbers. */
        uint first = sinks ? sink_from : from, end = sinks ? s.n_sinks : last + 1;
        uint lo = first > base ? first - base : 0, hi = min(end - base, PAGE);
        [[dont_unroll]] for (uint t0 = lo / BATCH * BATCH; t0 < hi; t0 += BATCH) {
            [[unroll]] for (uint e = 0; e < V_EACH; e++) {
                float x[BATCH][PER];
                uint unit = min(quad + e * 16, UNITS - 1);
                [[unroll]] for (uint t = 0; t < BATCH; t++)
                    unit_of(v_at + clamp(t0 + t, lo, hi - 1) * V_ROW + unit * UNIT, x[t]);
                [[unroll]] for (uint t = 0; t < BATCH; t++) {
                    [[unroll]] for (uint f = 0; f < FOURS; f++) {
                        vec4 w = weights[place(t0 + t, f)];
                        [[unroll]] for (uint j = 0; j < 4; j++)
                            [[unroll]] for (uint i = 0; i < PER; i++)
                                acc[4 * f + j][e * PER + i] = fma(w[j], x[t][i], acc[4 * f + j][e * PER + i]);
                    }
                }
            }
        }
    }

    barrier();                                                // tops have been read
    [[unroll]] for (uint f = 0; f < FOURS; f++)
        tops[quad * ROW_FOURS + group * FOURS + f] = vec4(sum[4 * f], sum[4 * f + 1], sum[4 * f + 2], sum[4 * f + 3]);
    barrier();
    [[unroll]] for (uint r = 0; r < LANE_ROWS; r++) {
        uint row = group * LANE_ROWS + r, h = head + row % n_head;
        if (row >= b.n_row) break;
        float t = 0;
        [[unroll]] for (uint i = 0; i < 16; i++) t += tops[i * ROW_FOURS + row / 4][r & 3u];
        uint to = (b.first + row / n_head) * p.ld_out + h * DV;
        if (DIRECT == 0) {
            uint at = partial_at(b.first + row / n_head, h, gl_WorkGroupID.z);
            if (quad == 0) put_sum(at, top[r], t);
            to = at * DV;
        }
        float share = DIRECT != 0 ? share_of(top[r], t, h) : 1;
        [[unroll]] for (uint e = 0; e < V_EACH; e++)
            [[unroll]] for (uint i = 0; i < PER; i++) {
                uint d = (quad + e * 16) * PER + i;
                if (d >= DV) continue;
                if (DIRECT != 0) out_[to + d] = acc[r][e * PER + i] * share;
                else partial_[to + d] = acc[r][e * PER + i];
            }
    }
}
