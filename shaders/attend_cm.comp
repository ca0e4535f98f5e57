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
// Subgroups stand in strips of M rows; SPLIT of them share a strip: of the scores each takes some tokens, of the result some
// dimensions. In a step K (turned to [token][dimension]) and V are put into shared memory as halves; scores go through shared
// memory to lanes that know their row, and weights come back as halves. The result stays in registers; a row's rescaling is a
// matrix whose columns are all the same, loaded with stride 0.
//
// Bindings: attend.glsl. Groups: blocks of heads, blocks of rows. Spec: attend.glsl; lanes = subgroups * SIZE.
layout(local_size_x_id = 0) in;
#include "attend.glsl"
#include "attend_block.glsl"

layout(constant_id = 10) const uint LOOP = 0;             // 1: long loops stay loops, for CPUs, whose compilers choke on long blocks
layout(constant_id = 11) const uint M = 16;
layout(constant_id = 12) const uint N = 16;
layout(constant_id = 13) const uint K = 16;
layout(constant_id = 14) const uint SIZE = 32;            // of a subgroup
layout(constant_id = 15) const uint HELD = 1;             // queries stay in registers

const uint STEP = 32;
const uint STRIPS = ROWS / M;
const uint SPLIT = LANES / SIZE / STRIPS;
const uint DEEP = (DK + K - 1) / K * K;                   // dimensions, with zeros
const uint WIDE = (DV + N * SPLIT - 1) / (N * SPLIT) * (N * SPLIT);
const uint TILES = WIDE / (N * SPLIT);                    // of the result, of a subgroup
const uint S_TILES = STEP / (N * SPLIT);                  // of the scores, of a subgroup

/* Rows of shared memory, in uvec4s: an odd number, so that rows lie in different banks. */
const uint KP = (DEEP + 7) / 8 | 1;
const uint VP = (WIDE + 7) / 8 | 1;
const uint PP = STEP / 8 | 1;
const uint SP = STEP / 4 | 1;
const uint K_SIZE = STEP * KP > ROWS * PP ? STEP * KP : ROWS * PP;
const uint P_AT = 0;                                      // weights take K's place
const uint V_AT = K_SIZE;
const uint S_AT = V_AT + STEP * VP;
const uint A_AT = S_AT + ROWS * SP;
const uint ALL = A_AT + ROWS / 4;
const uint Q_AT = HELD != 0 ? 0 : ALL;
const uint MEM = Q_AT + ROWS * KP > ALL ? Q_AT + ROWS * KP : ALL;
const uint PER_ROW = LANES / ROWS;                        // lanes that weigh a row
const uint MINE = STEP / PER_ROW;                         // tokens of each: a multiple of 8

shared uvec4 mem[MEM];

#define MAT_A coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA>
#define MAT_B coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB>
#define MAT_C coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>

// score += queries of dimensions d * K.. by keys; acc += weights of tokens t * K.. by values.
#define ADD_SCORES(d)                                                                                                          \
    MAT_A q;                                                                                                                   \
    if (HELD != 0) q = held[d];                                                                                                \
    else coopMatLoad(q, mem, Q_AT + strip * M * KP + d * (K / 8), KP, gl_CooperativeMatrixLayoutRowMajor);                     \
    [[unroll]] for (uint n = 0; n < S_TILES; n++) {                                                                            \
        MAT_B k;                                                                                                               \
        coopMatLoad(k, mem, (split * S_TILES + n) * N * KP + d * (K / 8), KP, gl_CooperativeMatrixLayoutColumnMajor);          \
        score[n] = coopMatMulAdd(q, k, score[n]);                                                                              \
    }
#define ADD_VALUES(t)                                                                                                          \
    MAT_A w;                                                                                                                   \
    coopMatLoad(w, mem, P_AT + strip * M * PP + t * (K / 8), PP, gl_CooperativeMatrixLayoutRowMajor);                          \
    [[unroll]] for (uint i = 0; i < TILES; i++) {                                                                              \
        MAT_B x;                                                                                                               \
        coopMatLoad(x, mem, V_AT + t * K * VP + (split * TILES + i) * (N / 8), VP, gl_CooperativeMatrixLayoutRowMajor);        \
        acc[i] = coopMatMulAdd(w, x, acc[i]);                                                                                  \
    }

uint lane, head_kv, head, n_head;

uint halves(float x, float y) { return packHalf2x16(vec2(x, y)); }

void load_queries(block b, bool sinks) {
    uint turn = p.sink_turn_table + b.run * p.n_rot;
    for (uint j = lane; j < ROWS * (DEEP / 2); j += LANES) {
        uint row = j / (DEEP / 2), i = j % (DEEP / 2);
        float x = 0, y = 0;
        if (row < b.n_row) {
            uint base = (b.first + row / n_head) * p.ld_q + (head + row % n_head) * DK;
            if (2 * i < DK) x = query(base, 2 * i, sinks, turn);
            if (2 * i + 1 < DK) y = query(base, 2 * i + 1, sinks, turn);
        }
        float scale = CAPPED != 0 ? 1 : p.scale;
        mem[Q_AT + row * KP + i / 4][i & 3u] = halves(x * scale, y * scale);
    }
}

// Two dimensions of four tokens, a word each.
uvec4 k_words(uint k_at, uint i, uint quad) {
    if (i >= (DK + 1) / 2) return uvec4(0);
    if (K_F32 == 0) return cache4_[k_at / 4 + i * 16 + quad];
    vec4 x = uintBitsToFloat(cache4_[k_at / 4 + 2 * i * 16 + quad]), y = vec4(0);
    if (DK % 2 == 0 || 2 * i + 1 < DK) y = uintBitsToFloat(cache4_[k_at / 4 + (2 * i + 1) * 16 + quad]);
    return uvec4(halves(x.x, y.x), halves(x.y, y.y), halves(x.z, y.z), halves(x.w, y.w));
}

// Turns K round: lanes read 4 tokens of two dimensions and write a word into each token's row, in an order that hits all banks.
void stage_k(uint k_at, uint first) {
    for (uint j = lane; j < DEEP / 2 * (STEP / 4); j += LANES) {
        uint quad = j % (STEP / 4), i = j / (STEP / 4), turn = quad / 2;
        uvec4 w = k_words(k_at, i, first / 4 + quad);
        if ((turn & 1u) != 0) w = w.yzwx;
        if ((turn & 2u) != 0) w = w.zwxy;
        [[unroll]] for (uint t = 0; t < 4; t++) mem[(quad * 4 + (t + turn & 3u)) * KP + i / 4][i & 3u] = w[t];
    }
}

uint v_word(uint at, uint i) {
    if (V_F32 == 0) return i < V_ROW ? cache_[at + i] : 0;
    float x = 2 * i < DV ? uintBitsToFloat(cache_[at + 2 * i]) : 0, y = 2 * i + 1 < DV ? uintBitsToFloat(cache_[at + 2 * i + 1]) : 0;
    return halves(x, y);
}

// Tokens first.., of which lo <= t < hi are seen by some row; the others may be no numbers, and become zeros.
void stage_v(uint v_at, uint first, uint lo, uint hi) {
    for (uint j = lane; j < STEP * (WIDE / 8); j += LANES) {
        uint t = j / (WIDE / 8), o = j % (WIDE / 8), at = v_at + (first + t) * V_ROW;
        uvec4 w = uvec4(0);
        if (first + t >= lo && first + t < hi) {
            if (V_ROW % 4 == 0 && V_F32 == 0) {
                if (WIDE == DV || 8 * o < DV) w = cache4_[at / 4 + o];
            } else {
                [[unroll]] for (uint i = 0; i < 4; i++) w[i] = v_word(at, 4 * o + i);
            }
        }
        mem[V_AT + t * VP + o] = w;
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
    sequence s = sequence_of(p.run_table, b.run);
    uint last = b.position + b.n_col - 1, from, sink_from;
    seen_from(s, b.position, p.window, from, sink_from);
    visits v = visits_of(s, from, last, sink_from);

    /* The row that this lane weighs, and from where. */
    uint row = lane / PER_ROW, mine = lane % PER_ROW * MINE, position = b.position + row / n_head, row_from, row_sinks;
    seen_from(s, position, p.window, row_from, row_sinks);
    float top = LOWEST, sum = 0;

    uint strip = gl_SubgroupID / SPLIT, split = gl_SubgroupID % SPLIT;
    MAT_C acc[TILES];
    MAT_A held[HELD != 0 ? DEEP / K : 1];
    [[unroll]] for (uint i = 0; i < TILES; i++) acc[i] = MAT_C(0.0);

    for (uint visit = 0; visit < v.n; visit++) {
        bool sinks = visit < v.n_sink;
        if (visit == 0 || visit == v.n_sink) {
            load_queries(b, sinks);
            barrier();
            if (HELD != 0) {
                [[unroll]] for (uint d = 0; d < DEEP / K; d++)
                    coopMatLoad(held[d], mem, Q_AT + strip * M * KP + d * (K / 8), KP, gl_CooperativeMatrixLayoutRowMajor);
                barrier();
            }
        }
        uint page = sinks ? v.sink_page + visit : v.page + visit - v.n_sink, base = page * PAGE;
        uint k_at = cache_of(page_of(s, page), head_kv), v_at = k_at + K_WORDS;
        uint first = sinks ? sink_from : from, end = sinks ? s.n_sinks : last + 1;
        uint lo = first > base ? first - base : 0, hi = min(end - base, PAGE);
        uint row_lo = sinks ? row_sinks : row_from, row_hi = sinks ? s.n_sinks : position + 1;

        for (uint t0 = lo / STEP * STEP; t0 < hi; t0 += STEP) {
            stage_k(k_at, t0);
            stage_v(v_at, t0, lo, hi);
            barrier();

            MAT_C score[S_TILES];
            [[unroll]] for (uint n = 0; n < S_TILES; n++) score[n] = MAT_C(0.0);
            if (LOOP != 0) {
                [[dont_unroll]] for (uint d = 0; d < DEEP / K; d++) { ADD_SCORES(d) }
            } else {
                [[unroll]] for (uint d = 0; d < DEEP / K; d++) { ADD_SCORES(d) }
            }
            [[unroll]] for (uint n = 0; n < S_TILES; n++)
                coopMatStore(score[n], mem, S_AT + strip * M * SP + (split * S_TILES + n) * (N / 4), SP, gl_CooperativeMatrixLayoutRowMajor);
            barrier();

            vec4 x[MINE / 4];
            float high = top;
            [[unroll]] for (uint i = 0; i < MINE / 4; i++) {
                uvec4 token = base + t0 + mine + 4 * i + uvec4(0, 1, 2, 3);
                x[i] = scored(uintBitsToFloat(mem[S_AT + row * SP + mine / 4 + i]));
                x[i] = mix(vec4(LOWEST), x[i], lessThan(token - row_lo, uvec4(row_hi - min(row_lo, row_hi))));
                high = max(high, max(max(x[i].x, x[i].y), max(x[i].z, x[i].w)));
            }
            [[unroll]] for (uint i = 1; i < PER_ROW; i *= 2) high = max(high, subgroupShuffleXor(high, i));
            float keep = exp2(top - high);
            top = high;
            sum *= keep;
            [[unroll]] for (uint i = 0; i < MINE / 4; i++) {
                uvec4 token = base + t0 + mine + 4 * i + uvec4(0, 1, 2, 3);
                x[i] = mix(vec4(0), exp2(x[i] - high), lessThan(token - row_lo, uvec4(row_hi - min(row_lo, row_hi))));
                sum += (x[i].x + x[i].y) + (x[i].z + x[i].w);
            }
            [[unroll]] for (uint i = 0; i < MINE / 8; i++)
                mem[P_AT + row * PP + mine / 8 + i] = uvec4(halves(x[2 * i].x, x[2 * i].y), halves(x[2 * i].z, x[2 * i].w),
                                                              halves(x[2 * i + 1].x, x[2 * i + 1].y), halves(x[2 * i + 1].z, x[2 * i + 1].w));
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
    }

    [[unroll]] for (uint i = 1; i < PER_ROW; i *= 2) sum += subgroupShuffleXor(sum, i);
    float keep = 1;
    if (SINK != 0) {
        float score = sink_[head + row % n_head] * LOG2E, both = max(top, score);
        keep = exp2(top - both);
        sum = fma(sum, keep, exp2(score - both));
    }
    if (mine == 0) mem[A_AT + row / 4][row & 3u] = floatBitsToUint(sum == 0 ? 0 : keep / sum);
    barrier();
    MAT_C shares;
    coopMatLoad(shares, mem, A_AT + strip * (M / 4), 0, gl_CooperativeMatrixLayoutColumnMajor);
    uint box = gl_SubgroupID * M * (N / 4);               // a tile of this subgroup's own
    [[unroll]] for (uint i = 0; i < TILES; i++) {
        acc[i] = acc[i] * shares;
        coopMatStore(acc[i], mem, box, N / 4, gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint j = gl_SubgroupInvocationID; j < M * N; j += SIZE) {
            uint r = strip * M + j / N, d = (split * TILES + i) * N + j % N;
            if (r < b.n_row && d < DV)
                out_[(b.first + r / n_head) * p.ld_out + (head + r % n_head) * DV + d] = uintBitsToFloat(mem[box + j / 4][j & 3u]);
        }
        barrier();
    }
}
