#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
// Attention of many columns on matrix units, halves with sums in floats: a workgroup takes ROWS rows of a KV head
// (attend_block.glsl) through all pages that one of them sees, STEP tokens at a time.
//
// Subgroups stand in strips of M rows; for large heads two of them share a strip, and each takes half of the
// dimensions, of the scores and of the result. In a step K (turned to [token][dimension]) and V are put into shared
// memory as halves; scores go through shared memory to lanes that know their row, and weights come back as halves. The
// result stays in registers; a row's rescaling is a matrix whose columns are all the same, loaded with stride 0. The
// next step's K and V are on their way from the cache to registers meanwhile.
//
// Bindings: attend.glsl. Groups: blocks of heads, blocks of rows, splits (each takes every
// n_split-th page). Spec: attend.glsl; lanes = subgroups * SIZE,
// at least STEP.
layout(local_size_x_id = 0) in;
#include "attend.glsl"
#include "attend_block.glsl"

layout(constant_id = 10) const uint LOOP = 0;       // 1: long loops stay loops: CPUs' compilers choke on long blocks
layout(constant_id = 11) const uint M = 16;
layout(constant_id = 12) const uint N = 16;
layout(constant_id = 13) const uint K = 16;
layout(constant_id = 14) const uint SIZE = 32;            // of a subgroup
layout(constant_id = 15) const uint HELD = 1;             // queries stay in registers

const uint LARGE = DK > 128 || DV > 128 ? 1 : 0;
const uint STEP = LARGE != 0 ? 16 : 32;
const uint SPLIT = LARGE != 0 ? 2 : 1;
const uint STRIPS = ROWS / M;
const uint DEEP = (DK + K * SPLIT - 1) / (K * SPLIT) * K; // dimensions of a subgroup's share of the scores
const uint WIDE = (DV + N * SPLIT - 1) / (N * SPLIT) * N; // and of the result
const uint DEPTH = DEEP / K;
const uint TILES = WIDE / N;
const uint S_TILES = STEP / N;

/* Rows of shared memory, in uvec4s: an odd number, so that rows lie in different banks. */
const uint KP = (DEEP * SPLIT + 7) / 8 | 1;
const uint VP = (WIDE * SPLIT + 7) / 8 | 1;
const uint PP = STEP / 8 | 1;
const uint SP = STEP / 4 | 1;
const uint K_SIZE = STEP * KP > ROWS * PP ? STEP * KP : ROWS * PP;
const uint P_AT = 0;                                      // weights take K's place
const uint V_AT = K_SIZE;
const uint S_AT = V_AT + STEP * VP;
const uint A_AT = S_AT + SPLIT * ROWS * SP;
const uint ALL = A_AT + ROWS / 4;
const uint Q_AT = HELD != 0 ? 0 : ALL;
const uint MEM = Q_AT + ROWS * KP > ALL ? Q_AT + ROWS * KP : ALL;
const uint PER_ROW = LANES / ROWS;                        // lanes that weigh a row
const uint MINE = STEP / PER_ROW;                         // tokens of each: a multiple of 4
const uint PIECES = M * N / 4 / SIZE;                     // fours of a tile of a lane

/* What a lane stages in a step: uvec4s of K (two dimensions of four tokens) and of V (eight dimensions of a token). */
const uint K_LANES = STEP / 4;
const uint K_JUMP = LANES / K_LANES;                      // a multiple of 4
const uint K_EACH = (DEEP * SPLIT / 2 + K_JUMP - 1) / K_JUMP;
const uint V_LANES = WIDE * SPLIT / 8;
const uint V_EACH = (STEP * V_LANES + LANES - 1) / LANES;

shared uvec4 mem[MEM];

#define MAT_A coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define MAT_B coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define MAT_C coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

// score += queries of dimensions d * K.. by keys; acc += weights of tokens t * K.. by values.
#define ADD_SCORES(d)                                                                                                  \
    MAT_A q;                                                                                                           \
    if (HELD != 0) q = held[d];                                                                                        \
    else coopMatLoad(q, mem, q_at + d * (K / 8), KP, gl_CooperativeMatrixLayoutRowMajor);                              \
    [[unroll]] for (uint n = 0; n < S_TILES; n++) {                                                                    \
        MAT_B k;                                                                                                       \
        coopMatLoad(k, mem, n * N * KP + (split * DEPTH + d) * (K / 8), KP, gl_CooperativeMatrixLayoutColumnMajor);    \
        score[n] = coopMatMulAdd(q, k, score[n]);                                                                      \
    }
#define ADD_VALUES(t)                                                                                                  \
    MAT_A w;                                                                                                           \
    coopMatLoad(w, mem, P_AT + strip * M * PP + t * (K / 8), PP, gl_CooperativeMatrixLayoutRowMajor);                  \
    [[unroll]] for (uint i = 0; i < TILES; i++) {                                                                      \
        MAT_B x;                                                                                                       \
        coopMatLoad(x, mem, V_AT + t * K * VP + (split * TILES + i) * (N / 8), VP, gl_CooperativeMatrixLayoutRowMajor);\
        acc[i] = coopMatMulAdd(w, x, acc[i]);                                                                          \
    }

struct step {              // STEP tokens of a page, of which lo <= t < hi are seen by some row
    bool sinks;
    uint visit, base, k_at, v_at, lo, hi, token;
};

uint lane, head_kv, head, n_head, ahead;         // ahead: the page of the next visit
sequence s;
visits v;
uint from, sink_from, last;
uvec4 k_words[K_EACH], v_words[V_EACH];

// To the nearest; packHalf2x16 may cut.
uint halves(float x, float y) { return packFloat2x16(f16vec2(x, y)); }

// Queries of the block's rows as halves.
void load_queries(block b, bool sinks) {
    uint turn = p.sink_turn_table + b.run * p.n_rot;
    const uint words = DEEP * SPLIT / 2;
    float scale = CAPPED != 0 ? 1 : p.scale;
    for (uint j = lane; j < ROWS * words; j += LANES) {
        uint row = j / words, i = j % words;
        float x = 0, y = 0;
        if (row < b.n_row) {
            uint base = (b.first + row / n_head) * p.ld_q + (head + row % n_head) * DK;
            if (2 * i < DK) x = query(base, 2 * i, sinks, turn);
            if (2 * i + 1 < DK) y = query(base, 2 * i + 1, sinks, turn);
        }
        mem[Q_AT + row * KP + i / 4][i & 3u] = halves(x * scale, y * scale);
    }
}

uint page_of_visit(uint visit) {
    return page_of(s, visit < v.n_sink ? v.sink_page + visit : v.page + visit - v.n_sink);
}

step first_step(uint visit) {
    step t;
    t.visit = visit;
    t.sinks = visit < v.n_sink;
    t.base = (t.sinks ? v.sink_page + visit : v.page + visit - v.n_sink) * PAGE;
    t.k_at = cache_of(ahead, head_kv);
    t.v_at = t.k_at + K_WORDS;
    uint first = t.sinks ? sink_from : from, end = t.sinks ? s.n_sinks : last + 1;
    t.lo = first > t.base ? first - t.base : 0;
    t.hi = min(end - t.base, PAGE);
    t.token = t.lo / STEP * STEP;
    ahead = page_of_visit(min(visit + p.n_split, v.n - 1));
    return t;
}

// Dimensions behind the last one meet queries of zero, values behind the last one are not written: the last ones stand
// in. So does a token that is seen for those that are not, which weigh nothing, but may be no numbers.
uvec4 k_of(step t, uint i, uint quad) {
    if (K_F32 == 0) return cache4_[t.k_at / 4 + min(i, K_ROWS - 1) * 16 + quad];
    vec4 x = uintBitsToFloat(cache4_[t.k_at / 4 + min(2 * i, DK - 1) * 16 + quad]);
    vec4 y = uintBitsToFloat(cache4_[t.k_at / 4 + min(2 * i + 1, DK - 1) * 16 + quad]);
    return uvec4(halves(x.x, y.x), halves(x.y, y.y), halves(x.z, y.z), halves(x.w, y.w));
}
uint v_word(uint at, uint i) {
    if (V_F32 == 0) return cache_[at + min(i, V_ROW - 1)];
    uint x = cache_[at + min(2 * i, DV - 1)], y = cache_[at + min(2 * i + 1, DV - 1)];
    return halves(uintBitsToFloat(x), uintBitsToFloat(y));
}
uvec4 v_of(step t, uint token, uint i) {
    uint at = t.v_at + clamp(token, t.lo, t.hi - 1) * V_ROW;
    if (V_F32 == 0 && V_ROW % 4 == 0) return cache4_[at / 4 + min(i, V_ROW / 4 - 1)];
    return uvec4(v_word(at, 4 * i), v_word(at, 4 * i + 1), v_word(at, 4 * i + 2), v_word(at, 4 * i + 3));
}

void load_step(step t) {
    [[unroll]] for (uint j = 0; j < K_EACH; j++)
        k_words[j] = k_of(t, lane / K_LANES + j * K_JUMP, t.token / 4 + lane % K_LANES);
    [[unroll]] for (uint j = 0; j < V_EACH; j++)
        v_words[j] = v_of(t, t.token + (lane + j * LANES) / V_LANES, (lane + j * LANES) % V_LANES);
}

// Turns K round: a word goes into each of four tokens' rows, in an order that hits all banks.
void store_step() {
    uint quad = lane % K_LANES, i = lane / K_LANES, turn = quad / 2;
    [[unroll]] for (uint j = 0; j < K_EACH; j++) {
        uvec4 w = k_words[j];
        if (i + j * K_JUMP >= DEEP * SPLIT / 2) break;
        if ((turn & 1u) != 0) w = w.yzwx;
        if ((turn & 2u) != 0) w = w.zwxy;
        [[unroll]] for (uint t = 0; t < 4; t++)
            mem[(quad * 4 + (t + turn & 3u)) * KP + i / 4 + j * (K_JUMP / 4)][i & 3u] = w[t];
    }
    [[unroll]] for (uint j = 0; j < V_EACH; j++) {
        uint at = lane + j * LANES;
        if (STEP * V_LANES % LANES == 0 || at < STEP * V_LANES)
            mem[V_AT + at / V_LANES * VP + at % V_LANES] = v_words[j];
    }
}

void main() {
    lane = gl_SubgroupID * SIZE + gl_SubgroupInvocationID;
    head_kv = gl_WorkGroupID.x / p.head_blocks;
    uint n_rep = p.n_head / p.n_head_kv, part = gl_WorkGroupID.x % p.head_blocks;
    head = head_kv * n_rep + part * p.heads;
    n_head = min(p.heads, n_rep - part * p.heads);
    block b = block_of(ROWS / p.heads, n_head);
    if (b.n_row == 0) return;
    s = sequence_of(p.run_table, b.run);
    last = b.position + b.n_col - 1;
    seen_from(s, b.position, p.window, from, sink_from);
    v = visits_of(s, from, last, sink_from);

    /* The row that this lane weighs, and from where. */
    uint row = lane / PER_ROW, mine = lane % PER_ROW * MINE, position = b.position + row / n_head, row_from, row_sinks;
    uint row_head = head + row % n_head, row_partial = partial_at(b.first + row / n_head, row_head, gl_WorkGroupID.z);
    if (gl_WorkGroupID.z >= v.n) {
        if (mine == 0 && row < b.n_row) put_sum(row_partial, FLOOR, 0);
        return;
    }
    ahead = page_of_visit(gl_WorkGroupID.z);
    step now = first_step(gl_WorkGroupID.z);
    load_step(now);
    seen_from(s, position, p.window, row_from, row_sinks);
    float top = FLOOR, sum = 0;

    uint strip = gl_SubgroupID / SPLIT, split = gl_SubgroupID % SPLIT;
    uint q_at = Q_AT + strip * M * KP + split * DEPTH * (K / 8), s_at = S_AT + (split * ROWS + strip * M) * SP;
    MAT_C acc[TILES];
    MAT_A held[HELD != 0 ? DEPTH : 1];
    [[unroll]] for (uint i = 0; i < TILES; i++) acc[i] = MAT_C(0.0);

    for (bool more = true, fresh = true; more;) {
        if (fresh) {
            load_queries(b, now.sinks);
            barrier();
            if (HELD != 0) {
                [[unroll]] for (uint d = 0; d < DEPTH; d++)
                    coopMatLoad(held[d], mem, q_at + d * (K / 8), KP, gl_CooperativeMatrixLayoutRowMajor);
                barrier();
            }
        }
        store_step();
        barrier();
        step here = now;
        if (now.token + STEP < now.hi) now.token += STEP;
        else if (now.visit + p.n_split < v.n) now = first_step(now.visit + p.n_split);
        else more = false;
        fresh = now.sinks != here.sinks;
        load_step(now);                          // behind the last one: the last one, for nothing

        MAT_C score[S_TILES];
        [[unroll]] for (uint n = 0; n < S_TILES; n++) score[n] = MAT_C(0.0);
        if (LOOP != 0) {
            [[dont_unroll]] for (uint d = 0; d < DEPTH; d++) { ADD_SCORES(d) }
        } else {
            [[unroll]] for (uint d = 0; d < DEPTH; d++) { ADD_SCORES(d) }
        }
        [[unroll]] for (uint n = 0; n < S_TILES; n++)
            coopMatStore(score[n], mem, s_at + n * (N / 4), SP, gl_CooperativeMatrixLayoutRowMajor);
        barrier();

        vec4 x[MINE / 4];
        float high = top;
        uint seen_lo = here.sinks ? row_sinks : row_from, seen_hi = here.sinks ? s.n_sinks : position + 1;
        [[unroll]] for (uint i = 0; i < MINE / 4; i++) {
            uvec4 token = here.base + here.token + mine + 4 * i + uvec4(0, 1, 2, 3);
            vec4 f = uintBitsToFloat(mem[S_AT + row * SP + mine / 4 + i]);
            if (SPLIT == 2) f += uintBitsToFloat(mem[S_AT + (ROWS + row) * SP + mine / 4 + i]);
            x[i] = mix(vec4(LOWEST), scored(f), lessThan(token - seen_lo, uvec4(seen_hi - min(seen_lo, seen_hi))));
            high = max(high, max(max(x[i].x, x[i].y), max(x[i].z, x[i].w)));
        }
        [[unroll]] for (uint i = 1; i < PER_ROW; i *= 2) high = max(high, subgroupShuffleXor(high, i));
        float keep = exp2(top - high);
        top = high;
        sum *= keep;
        [[unroll]] for (uint i = 0; i < MINE / 4; i++) {
            vec4 w = exp2(x[i] - high);
            uint at = mine + 4 * i;
            sum += (w.x + w.y) + (w.z + w.w);
            mem[P_AT + row * PP + at / 8][at / 2 & 3u] = halves(w.x, w.y);
            mem[P_AT + row * PP + at / 8][(at / 2 & 3u) + 1] = halves(w.z, w.w);
        }
        if (mine == 0) mem[A_AT + row / 4][row & 3u] = floatBitsToUint(keep);
        barrier();

        MAT_C keeps;
        coopMatLoad(keeps, mem, A_AT + strip * (M / 4), 0, gl_CooperativeMatrixLayoutColumnMajor);
        [[unroll]] for (uint i = 0; i < TILES; i++) acc[i] = acc[i] * keeps;
        if (LOOP != 0) {
            [[dont_unroll]] for (uint t = 0; t < STEP / K; t++) { ADD_VALUES(t) }
        } else {
            [[unroll]] for (uint t = 0; t < STEP / K; t++) { ADD_VALUES(t) }
        }
        barrier();
    }

    [[unroll]] for (uint i = 1; i < PER_ROW; i *= 2) sum += subgroupShuffleXor(sum, i);
    if (mine == 0) {
        if (DIRECT != 0) mem[A_AT + row / 4][row & 3u] = floatBitsToUint(share_of(top, sum, row_head));
        else if (row < b.n_row) put_sum(row_partial, top, sum);
    }
    barrier();
    MAT_C shares;
    coopMatLoad(shares, mem, A_AT + strip * (M / 4), 0, gl_CooperativeMatrixLayoutColumnMajor);

    /* Tiles go through a box of this subgroup's own, from where lanes write four elements each. */
    uint box = gl_SubgroupID * M * (N / 4), to[PIECES];
    const uint NOWHERE = 0xffffffffu;
    [[unroll]] for (uint i = 0; i < PIECES; i++) {
        uint j = gl_SubgroupInvocationID + i * SIZE, r = strip * M + j / (N / 4);
        uint col = b.first + r / n_head, h = head + r % n_head;
        to[i] = DIRECT != 0 ? col * p.ld_out + h * DV : partial_at(col, h, gl_WorkGroupID.z) * DV;
        to[i] = r < b.n_row ? to[i] + j % (N / 4) * 4 : NOWHERE;
    }
    [[unroll]] for (uint i = 0; i < TILES; i++) {
        if (DIRECT != 0) acc[i] = acc[i] * shares;
        coopMatStore(acc[i], mem, box, N / 4, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        [[unroll]] for (uint j = 0; j < PIECES; j++) {
            vec4 x = uintBitsToFloat(mem[box + gl_SubgroupInvocationID + j * SIZE]);
            uint d = (split * TILES + i) * N, at = d + (gl_SubgroupInvocationID + j * SIZE) % (N / 4) * 4;
            if (to[j] == NOWHERE || at >= DV) continue;
            if (DV % 4 == 0) {
                if (DIRECT != 0) out4_[(to[j] + d) / 4] = x;
                else partial4_[(to[j] + d) / 4] = x;
            } else {
                [[unroll]] for (uint e = 0; e < 4; e++)
                    if (at + e < DV) {
                        if (DIRECT != 0) out_[to[j] + d + e] = x[e];
                        else partial_[to[j] + d + e] = x[e];
                    }
            }
        }
        barrier();
    }
}
