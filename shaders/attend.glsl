// What the attention kernels share: their bindings' types, dimensions, scores and pages.
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LANES = 64;
layout(constant_id = 1) const uint DK = 64;            // head sizes of keys and values
layout(constant_id = 2) const uint DV = 64;
layout(constant_id = 3) const uint K_F32 = 0;
layout(constant_id = 4) const uint V_F32 = 0;
layout(constant_id = 5) const uint UNIT = 4;           // words of V that a lane loads at once: 4, 2 or 1; divides V_ROW
layout(constant_id = 6) const uint ROWS = 1;           // queries of a workgroup
layout(constant_id = 7) const uint CAPPED = 0;
layout(constant_id = 8) const uint SINK = 0;           // heads have learned sinks
layout(constant_id = 9) const uint DIRECT = 1;         // results go to `out`, else partial ones to `partial`

layout(binding = 0) readonly buffer now_words { uint now_[]; };
layout(binding = 0) readonly buffer now_quads { uvec4 now4_[]; };
layout(binding = 1) readonly buffer q_floats { float q_[]; };
layout(binding = 2) readonly buffer cache_words { uint cache_[]; };
layout(binding = 2) readonly buffer cache_pairs { uvec2 cache2_[]; };
layout(binding = 2) readonly buffer cache_quads { uvec4 cache4_[]; };
layout(binding = 3) writeonly buffer out_floats { float out_[]; };
layout(binding = 3) writeonly buffer out_quads { vec4 out4_[]; };
layout(binding = 4) readonly buffer sink_floats { float sink_[]; };
layout(binding = 5) buffer partial_floats { float partial_[]; };
layout(binding = 5) buffer partial_quads { vec4 partial4_[]; };

layout(push_constant) uniform push {
    uint col_table, run_table, sink_turn_table;
    uint n_head, n_head_kv, n_rot, neox;
    uint ld_q, ld_out;
    uint window;
    uint n_split;
    float scale;          // of q . k, in units of log2(e) where CAPPED is 0
    float cap;            // in those units
    uint head_blocks;     // workgroups that share a KV head, for `heads` heads each
    uint heads;
    uint n_col;           // columns that `partial` has room for
} p;

#include "cache.glsl"

const uint V_PER = V_F32 != 0 ? 1 : 2;                          // elements of a word
const uint K_ROWS = K_F32 != 0 ? DK : (DK + 1) / 2;             // rows of PAGE words
const uint K_WORDS = K_ROWS * PAGE;
const uint V_ROW = V_F32 != 0 ? DV : (DV + 1) / 2;              // words of a token
const uint V_WORDS = V_ROW * PAGE;
const uint UNITS = V_ROW / UNIT;
const uint PER = UNIT * V_PER;                                  // elements of a unit
const float LOG2E = 1.442695041;

/* Running maxima start at FLOOR and tokens that are not seen score LOWEST, far below: so these weigh
 * exp2(LOWEST - top) = 0 without an infinity, and scores below FLOOR nothing either. */
const float FLOOR = -1e37, LOWEST = -3e38;

// The first word of a page of a KV head.
uint cache_of(uint page, uint head_kv) { return (page * p.n_head_kv + head_kv) * (K_WORDS + V_WORDS); }

// cap * tanh(s / cap), without the infinities of a tanh by exponentials.
vec4 capped(vec4 s) {
    vec4 x = s * p.scale, e = exp2(abs(x) * (-2 * LOG2E));
    return p.cap * sign(x) * (1 - e) / (1 + e);
}
vec4 scored(vec4 s) { return CAPPED != 0 ? capped(s) : s; }

// A uvec4 of K: two dimensions of four tokens.
void two_dimensions(uvec4 w, out vec4 even, out vec4 odd) {
    vec2 a = unpackHalf2x16(w.x), b = unpackHalf2x16(w.y), c = unpackHalf2x16(w.z), d = unpackHalf2x16(w.w);
    even = vec4(a.x, b.x, c.x, d.x);
    odd = vec4(a.y, b.y, c.y, d.y);
}

// A unit of V, as PER floats.
void unit_of(uint at, out float x[PER]) {
    if (UNIT == 4) {
        uvec4 w = cache4_[at / 4];
        [[unroll]] for (uint i = 0; i < UNIT; i++) {
            if (V_F32 != 0) x[i] = uintBitsToFloat(w[i]);
            else {
                vec2 h = unpackHalf2x16(w[i]);
                x[V_PER * i] = h.x, x[V_PER * i + V_PER - 1] = h.y;
            }
        }
    } else if (UNIT == 2) {
        uvec2 w = cache2_[at / 2];
        [[unroll]] for (uint i = 0; i < UNIT; i++) {
            if (V_F32 != 0) x[i] = uintBitsToFloat(w[i]);
            else {
                vec2 h = unpackHalf2x16(w[i]);
                x[V_PER * i] = h.x, x[V_PER * i + V_PER - 1] = h.y;
            }
        }
    } else {
        uint w = cache_[at];
        vec2 h = unpackHalf2x16(w);
        if (V_F32 != 0) x[0] = uintBitsToFloat(w);
        else x[0] = h.x, x[V_PER - 1] = h.y;
    }
}

// An element of a head's query, as its column sees the window, or the sinks.
float query(uint at, uint d, bool sinks, uint turn) {
    float x = q_[at + d];
    if (!sinks || d >= p.n_rot) return x;
    uint n_pair = p.n_rot / 2;
    bool low = p.neox != 0 ? d < n_pair : (d & 1u) == 0;
    uint step = p.neox != 0 ? n_pair : 1, pair = p.neox != 0 ? (low ? d : d - n_pair) : d / 2;
    vec2 t = vec2(uintBitsToFloat(now_[turn + 2 * pair]), uintBitsToFloat(now_[turn + 2 * pair + 1]));
    return turned(x, q_[low ? at + d + step : at + d - step], t, low);
}

// Results of splits: [column][head][split] of DV floats, then of (greatest score, sum).
uint partial_at(uint col, uint head, uint split) { return (col * p.n_head + head) * p.n_split + split; }
void put_sum(uint at, float top, float sum) {
    uint to = p.n_col * p.n_head * p.n_split * DV + 2 * at;
    partial_[to] = top;
    partial_[to + 1] = sum;
}

// What accumulators are multiplied with in the end: 1 / sum, where a learned sink of the head takes its share.
float share_of(float top, float sum, uint head) {
    float keep = 1;
    if (SINK != 0) {
        float score = sink_[head] * LOG2E, both = max(top, score);
        keep = exp2(top - both);
        sum = fma(sum, keep, exp2(score - both));
    }
    return sum == 0 ? 0 : keep / sum;
}
