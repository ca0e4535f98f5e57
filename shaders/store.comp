#version 450
#extension GL_GOOGLE_include_directive : require
// Turns queries and keys by their columns' angles; queries go back to their place, keys and values into the cache.
//
// Bindings: 0 now, 1 q, 2 k, 3 v, 4 cache. Spec: 0 lanes, 1 columns of a workgroup (lanes are columns, then pairs: so
// that neighbours' keys, which lie side by side in the cache, are written together), 2 K is F32, 3 V is F32, 4 neox.
// Groups: pairs of a column, blocks of columns.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 64;
layout(constant_id = 1) const uint COLS = 1;
layout(constant_id = 2) const uint K_F32 = 0;
layout(constant_id = 3) const uint V_F32 = 0;
layout(constant_id = 4) const uint NEOX = 0;

layout(binding = 0) readonly buffer now_words { uint now_[]; };
layout(binding = 0) readonly buffer now_quads { uvec4 now4_[]; };
layout(binding = 1) buffer q_floats { float q_[]; };
layout(binding = 2) readonly buffer k_floats { float k_[]; };
layout(binding = 3) readonly buffer v_floats { float v_[]; };
layout(binding = 4) writeonly buffer cache_words { uint cache_[]; };

layout(push_constant) uniform push {
    uint col_table, run_table, turn_table;
    uint n_head, n_head_kv, head_dim_k, head_dim_v, n_rot;
    uint ld_q, ld_k, ld_v;
} p;

#include "cache.glsl"

vec2 angle(uint col, uint pair) {
    uint at = p.turn_table + col * p.n_rot + 2 * pair;
    return vec2(uintBitsToFloat(now_[at]), uintBitsToFloat(now_[at + 1]));
}

// Rounds to nearest, ties to even, as the CPU does; a driver's packHalf2x16 may cut instead.
uint half_of(float x) {
    uint bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, m = bits & 0x7fffffffu;
    if (m >= 0x7f800000u) return sign | (m > 0x7f800000u ? 0x7e00u : 0x7c00u);
    if (m >= 0x47800000u) return sign | 0x7c00u;
    if (m >= 0x38800000u) return sign | (m + 0xfffu + (m >> 13 & 1u) - 0x38000000u) >> 13;
    if (m < 0x33000000u) return sign;
    uint shift = 126u - (m >> 23), f = (m & 0x7fffffu) | 0x800000u;     // a subnormal half: 14 <= shift <= 24
    uint low = f & ((1u << shift) - 1u), up = 1u << (shift - 1u), r = f >> shift;
    return sign | (r + uint(low > up || (low == up && (r & 1u) != 0u)));
}

void turn_query(uint col, uint pair_of_all) {
    uint n_pair = p.n_rot / 2, head = pair_of_all / n_pair, pair = pair_of_all % n_pair;
    uint at = col * p.ld_q + head * p.head_dim_k;
    uint a = at + (NEOX != 0 ? pair : 2 * pair), b = NEOX != 0 ? a + n_pair : a + 1;
    vec2 t = angle(col, pair);
    float x = q_[a], y = q_[b];
    q_[a] = turned(x, y, t, true);
    q_[b] = turned(y, x, t, false);
}

float key(uint col, uint head, uint d) {
    if (d >= p.head_dim_k) return 0;
    uint at = col * p.ld_k + head * p.head_dim_k, n_pair = p.n_rot / 2;
    float x = k_[at + d];
    if (d >= p.n_rot) return x;
    bool low = NEOX != 0 ? d < n_pair : (d & 1u) == 0;
    uint pair = NEOX != 0 ? (low ? d : d - n_pair) : d / 2, step = NEOX != 0 ? n_pair : 1;
    return turned(x, k_[low ? at + d + step : at + d - step], angle(col, pair), low);
}

// Elements d, d + 1 of a token: two words `step` apart, or two halves of one.
void put(bool f32, uint at, uint step, float x, float y, bool both) {
    if (!f32) {
        cache_[at] = half_of(x) | half_of(y) << 16;
        return;
    }
    cache_[at] = floatBitsToUint(x);
    if (both) cache_[at + step] = floatBitsToUint(y);
}

void main() {
    uint col = gl_WorkGroupID.y * COLS + gl_LocalInvocationIndex % COLS;
    uint item = gl_WorkGroupID.x * (LANES / COLS) + gl_LocalInvocationIndex / COLS;
    if (col >= now_[0]) return;
    uint n_q = p.n_head * (p.n_rot / 2), n_k = (p.head_dim_k + 1) / 2, n_v = (p.head_dim_v + 1) / 2;
    if (item < n_q) {
        turn_query(col, item);
        return;
    }
    item -= n_q;
    bool is_k = item < n_k * p.n_head_kv;
    if (!is_k) item -= n_k * p.n_head_kv;
    uint n = is_k ? n_k : n_v, head = item / n, pair = item % n, d = 2 * pair;
    if (head >= p.n_head_kv) return;

    uvec4 column = now4_[p.col_table / 4 + col];
    uint page = page_of(sequence_of(p.run_table, column.y), column.z / PAGE), slot = column.z % PAGE;
    uint k_words = PAGE * (K_F32 != 0 ? p.head_dim_k : n_k), v_row = V_F32 != 0 ? p.head_dim_v : n_v;
    uint at = (page * p.n_head_kv + head) * (k_words + PAGE * v_row);
    if (is_k) {
        at += (K_F32 != 0 ? d : pair) * PAGE + slot;
        put(K_F32 != 0, at, PAGE, key(col, head, d), key(col, head, d + 1), d + 1 < p.head_dim_k);
    } else {
        uint from = col * p.ld_v + head * p.head_dim_v + d;
        bool both = d + 1 < p.head_dim_v;
        at += k_words + slot * v_row + (V_F32 != 0 ? d : pair);
        put(V_F32 != 0, at, 1, v_[from], both ? v_[from + 1] : 0, both);
    }
}
