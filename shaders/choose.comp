#version 450
#extension GL_GOOGLE_include_directive : require
// The `top` greatest logits of each row, with their ids, and what a softmax over all of them needs. Two rounds: in the
// first a workgroup takes a part of a row, in the second all parts' lists.
//
// Bindings: 0 logits, 1 lists of the parts, 2 lists of the rows. Spec: 0 lanes (at least 16), 1 whether only one is
// wanted, 2 round (0, 1). Groups: parts (second round: 1), rows. A list, in words: greatest logit, sum of exp(logit -
// greatest), whether one is not finite, entries; then `top` times id, logit: in the second round sorted by logit, then
// by id.
//
// Selection is exact whatever the values: digits of 8 bits from the highest down say where the last entry stands (radix
// select); equal logits are told apart by their ids, so the set does not depend on the order of the lanes.
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LANES = 64;
layout(constant_id = 1) const uint ONE = 1;
layout(constant_id = 2) const uint ROUND = 0;
#define REDUCE LANES
#include "common.glsl"

layout(binding = 0) readonly buffer logit_floats { float logit_[]; };
layout(binding = 1) buffer part_words { uint part_[]; };
layout(binding = 2) writeonly buffer row_words { uint row_[]; };

layout(push_constant) uniform push {
    uint n;           // logits of a row
    uint ld;
    uint n_part;
    uint part;        // logits of a part
    uint top;         // entries of a list, up to MOST
} p;

const uint MOST = 256, EACH = 8, NOTHING = 0xffffffffu, LOW = 0xffffffu;

shared uvec2 found[ONE != 0 ? LANES : MOST];
shared uint  bins[MOST];
shared uint  sums[16];
shared uint  n_found;

uint lane, row, count;     // count: elements to look at
uint top, list;            // entries, and words, of a list

// Unsigned numbers in the order of the floats; never 0, which is no element.
uint rank_of(float x) {
    uint b = floatBitsToUint(x);
    if (b == 0x80000000u) b = 0;
    return (b & 0x80000000u) != 0 ? max(1, ~b) : b | 0x80000000u;
}
uint bits_of(uint rank) { return (rank & 0x80000000u) != 0 ? rank ^ 0x80000000u : ~rank; }

// Entry e of this workgroup's: rank, and LOW - id.
uvec2 element(uint e) {
    if (e >= count) return uvec2(0);
    if (ROUND == 0) {
        uint id = gl_WorkGroupID.x * p.part + e;
        return uvec2(rank_of(logit_[row * p.ld + id]), LOW - id);
    }
    uint at = (row * p.n_part + e / top) * list;
    if (e % top >= part_[at + 3]) return uvec2(0);
    at += 4 + 2 * (e % top);
    return uvec2(rank_of(uintBitsToFloat(part_[at + 1])), LOW - part_[at]);
}

#define EACH_ELEMENT(what)                                                                           \
    for (uint base = 0; base < count; base += LANES * EACH) {                                         \
        uvec2 several[EACH];                                                                          \
        [[unroll]] for (uint i = 0; i < EACH; i++) several[i] = element(base + i * LANES + lane);     \
        [[unroll]] for (uint i = 0; i < EACH; i++) {                                                  \
            uvec2 x = several[i];                                                                     \
            if (x.x != 0) { what; }                                                            \
        }                                                                                             \
    }

bool above(uvec2 a, uvec2 b) { return a.x > b.x || (a.x == b.x && a.y > b.y); }

// Digits 0..3 of the rank, 4..6 of the id.
uint digit(uvec2 x, uint d) { return (d < 4 ? x.x >> (24 - 8 * d) : x.y >> (48 - 8 * d)) & 255u; }
// The digits before d, the rest zero.
uvec2 head(uvec2 x, uint d) {
    if (d == 0) return uvec2(0);
    if (d <= 4) return uvec2(x.x & 0xffffffffu << (32 - 8 * d), 0);
    return uvec2(x.x, x.y & 0xffffffffu << (56 - 8 * d));
}

// found[0] = the greatest.
void find_one() {
    uvec2 best = uvec2(0);
    EACH_ELEMENT(if (above(x, best)) best = x)
    found[lane] = best;
    barrier();
    if (lane < 16) {
        for (uint i = lane; i < LANES; i += 16)
            if (above(found[i], best)) best = found[i];
    }
    barrier();
    if (lane < 16) found[lane] = best;
    barrier();
    if (lane == 0) {
        for (uint i = 1; i < min(16, LANES); i++)
            if (above(found[i], best)) best = found[i];
        found[0] = best;
        n_found = best.x != 0 ? 1 : 0;
    }
    barrier();
}

// found[0..n_found) = the `top` greatest, in any order.
void find_some() {
    uint  need = top, digits = 0;
    uvec2 limit = uvec2(0);                            // the least of those taken, as far as its digits are known
    if (lane == 0) n_found = 0;
    for (bool more = count > top; more && digits < 7; digits++) {
        for (uint i = lane; i < MOST; i += LANES) bins[i] = 0;
        barrier();
        EACH_ELEMENT(if (head(x, digits) == limit) atomicAdd(bins[digit(x, digits)], 1))
        barrier();
        if (lane < 16) {
            uint sum = 0;
            for (uint i = 0; i < 16; i++) sum += bins[16 * lane + i];
            sums[lane] = sum;
        }
        barrier();
        /* From the highest bin down; every lane for itself. */
        uint high = 15, bin = 15;
        while (high > 0 && sums[high] < need) need -= sums[high--];
        while (bin > 0 && bins[16 * high + bin] < need) need -= bins[16 * high + bin--];
        bin += 16 * high;
        more = bins[bin] > need;
        if (digits < 4) limit.x |= bin << (24 - 8 * digits);
        else limit.y |= bin << (48 - 8 * digits);
        barrier();
    }
    barrier();
    EACH_ELEMENT(
        uvec2 h = head(x, digits);
        if (h == limit || above(h, limit)) {
            uint at = atomicAdd(n_found, 1);
            if (at < top) found[at] = x;
        })
    barrier();
}

// Adds with the rounding error of the last addition carried along (Kahan), which no compiler may take out.
void add(inout precise float sum, inout precise float lost, float x) {
    precise float y = x - lost, t = sum + y;
    lost = (t - sum) - y;
    sum = t;
}

// Greatest, sum, and whether one is not finite.
void softmax_terms(uint to) {
    float high = uintBitsToFloat(0xff800000u), odd = 0;
    precise float sum = 0, lost = 0;
    if (ROUND == 0) {
        EACH_ELEMENT(
            float f = uintBitsToFloat(bits_of(x.x));
            high = max(high, f);
            if ((floatBitsToUint(f) & 0x7f800000u) == 0x7f800000u) odd = 1)
        high = group_max(high);
        EACH_ELEMENT(add(sum, lost, exp(uintBitsToFloat(bits_of(x.x)) - high)))
    } else {
        uint at = row * p.n_part * list;
        for (uint i = lane; i < p.n_part; i += LANES) {
            high = max(high, uintBitsToFloat(part_[at + i * list]));
            if (part_[at + i * list + 2] != 0) odd = 1;
        }
        high = group_max(high);
        for (uint i = lane; i < p.n_part; i += LANES)
            add(sum, lost,
                uintBitsToFloat(part_[at + i * list + 1]) * exp(uintBitsToFloat(part_[at + i * list]) - high));
    }
    float total = group_sum(sum);
    odd = group_max(odd);
    if (lane != 0) return;
    uvec4 out_words = uvec4(floatBitsToUint(high), floatBitsToUint(total), odd != 0 ? 1 : 0, min(n_found, top));
    [[unroll]] for (uint i = 0; i < 4; i++) {
        if (ROUND == 0) part_[to + i] = out_words[i];
        else row_[to + i] = out_words[i];
    }
}

void main() {
    lane = gl_LocalInvocationIndex;
    row = gl_WorkGroupID.y;
    top = ONE != 0 ? 1 : p.top;
    list = 4 + 2 * top;
    count = ROUND == 0 ? min(p.part, p.n - gl_WorkGroupID.x * p.part) : p.n_part * top;
    uint to = ROUND == 0 ? (row * p.n_part + gl_WorkGroupID.x) * list : row * list;
    if (ONE != 0) find_one();
    else find_some();
    softmax_terms(to);
    uint n = min(n_found, top);
    for (uint i = lane; i < top; i += LANES) {
        uvec2 x = found[i];
        uint at = i;
        if (ROUND == 1 && i < n) {
            at = 0;
            for (uint j = 0; j < n; j++) at += above(found[j], x) ? 1 : 0;
        }
        uint id = i < n ? LOW - x.y : NOTHING, bits = i < n ? bits_of(x.x) : 0xff800000u;
        if (ROUND == 0) part_[to + 4 + 2 * at] = id, part_[to + 5 + 2 * at] = bits;
        else row_[to + 4 + 2 * at] = id, row_[to + 5 + 2 * at] = bits;
    }
}
