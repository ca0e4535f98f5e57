// Decoding of the planar weight layouts (README.md): every format behind one interface, chosen by the specialization
// constant FORMAT, which the includer declares (`layout(constant_id = N) const uint FORMAT = 3;`) before the include.
//
// A weight is read by units: what one 16-byte load of the codes plane holds. A unit is W_QUADS quads (vectors of 4
// consecutive weights): F32 1, F16 and BF16 2, Q8_0 4, all others 8, which is a group of 32. Unit u of a row holds its
// quads W_QUADS * u .. W_QUADS * u + W_QUADS - 1; a row has n_pad / (4 * W_QUADS) units.
//
//   w_planes p = w_planes(codes, high, scales, extra);    starts of the planes in words, by push constant
//   w_raw   r = w_fetch(i, p, n_pad, row, unit);          loads only; binding i: 0 .. W_BINDINGS - 1
//   w_unit  u = w_open(r, unit);                          unpacks the scales
//   vec4    v = w_quad(u, q);                             quad q of the unit, 0 <= q < W_QUADS, as floats
//   int     c = w_pack(u, q);                             the same as four signed bytes for an integer dot product:
//                                                         value = w_scale(u, q) * byte + w_min(u); w_min is 0 where
//                                                         W_AFFINE does not hold. Only where W_PACKS.
//   vec4    v = w_element4(i, p, n_pad, row, quad);       all of it, quad of the row: for kernels that read few
//
// In a loop over a row's units: w_row_of once, w_fetch_at for each; the next row lies w_rows(n_pad, 1) behind.
//
// Bring q as a constant (unrolled loops): then nothing is selected at run time. Scales are exact in float, and for the
// formats without minimum so is every value.
//
// Before the include: W_BINDINGS (1 if not defined; 2: gate and up), W_BINDING (the first's number, 0 if not defined).

#include "common.glsl"

#ifndef W_BINDING
#define W_BINDING 0
#endif
#ifndef W_BINDINGS
#define W_BINDINGS 1
#endif

const uint W_F32 = 0, W_F16 = 1, W_BF16 = 2, W_Q4_0 = 3, W_Q4_1 = 4, W_Q5_0 = 5, W_Q5_1 = 6, W_Q8_0 = 7, W_Q4_K = 8,
           W_Q5_K = 9, W_Q6_K = 10;

const uint W_QUADS  = FORMAT == W_F32 ? 1 : FORMAT <= W_BF16 ? 2 : FORMAT == W_Q8_0 ? 4 : 8;
const bool W_PACKS  = FORMAT >= W_Q4_0;
const bool W_AFFINE = FORMAT == W_Q4_1 || FORMAT == W_Q5_1 || FORMAT == W_Q4_K || FORMAT == W_Q5_K;
const bool W_HIGH5  = FORMAT == W_Q5_0 || FORMAT == W_Q5_1 || FORMAT == W_Q5_K;
const bool W_SUPER  = FORMAT >= W_Q4_K;   // scales of 256
const bool W_DEFERS = W_PACKS && !W_AFFINE;
const bool W_HALF   = FORMAT == W_Q4_0 || FORMAT == W_Q5_0 || FORMAT == W_Q8_0;   // one half a group

layout(set = 0, binding = W_BINDING) readonly buffer w_words_0 { uint w_word_0[]; };
layout(set = 0, binding = W_BINDING) readonly buffer w_vec4s_0 { uvec4 w_vec4_0[]; };
#if W_BINDINGS > 1
layout(set = 0, binding = W_BINDING + 1) readonly buffer w_words_1 { uint w_word_1[]; };
layout(set = 0, binding = W_BINDING + 1) readonly buffer w_vec4s_1 { uvec4 w_vec4_1[]; };
#endif

struct w_planes { uint codes, high, scales, extra; };
struct w_row { uint codes, high, scales, extra; };   // in vec4s: codes, and scales of 256

struct w_raw {
    uvec4 codes;
    uvec4 scales;        // K formats: the 16 bytes; else x: the word with the half, or with both
    uint  high0, high1;
    uint  extra;         // Q6_K: the word with d
};

struct w_unit {
    uvec4 codes;
    uint  high0, high1;
    float d0, d1;        // of quads 0..3 and 4..7
    float m;
};

uint w_load(uint i, uint at) {
#if W_BINDINGS > 1
    if (i == 1) return w_word_1[at];
#endif
    return w_word_0[at];
}

uvec4 w_load4(uint i, uint at) {
#if W_BINDINGS > 1
    if (i == 1) return w_vec4_1[at];
#endif
    return w_vec4_0[at];
}

// Strides from row to row, and where a row begins.
w_row w_rows(uint n_pad, uint rows) {
    uint  groups = n_pad / 32, supers = n_pad / 256;
    w_row s = w_row(rows * (n_pad / (4 * W_QUADS)), 0, 0, 0);
    if (W_HIGH5) s.high = rows * groups;
    if (W_HALF) s.scales = rows * ((groups + 1) / 2);
    if (FORMAT == W_Q4_1 || FORMAT == W_Q5_1) s.scales = rows * groups;
    if (W_SUPER) s.scales = rows * supers;
    if (FORMAT == W_Q6_K) {
        s.high  = rows * 2 * groups;
        s.extra = rows * ((supers + 1) / 2);
    }
    return s;
}

w_row w_row_add(w_row a, w_row b) {
    return w_row(a.codes + b.codes, a.high + b.high, a.scales + b.scales, a.extra + b.extra);
}

w_row w_row_times(w_row a, uint n) { return w_row(n * a.codes, n * a.high, n * a.scales, n * a.extra); }

w_row w_row_of(w_planes p, uint n_pad, uint row) {
    return w_row_add(w_row(p.codes / 4, p.high, W_SUPER ? p.scales / 4 : p.scales, p.extra), w_rows(n_pad, row));
}

w_raw w_fetch_at(uint i, w_row at, uint unit) {
    w_raw r;
    uint  group = unit * W_QUADS / 8;
    r.codes  = w_load4(i, at.codes + unit);
    r.scales = uvec4(0);
    r.high0  = r.high1 = r.extra = 0;
    if (W_HIGH5) r.high0 = w_load(i, at.high + group);
    if (W_HALF) r.scales.x = w_load(i, at.scales + group / 2);
    if (FORMAT == W_Q4_1 || FORMAT == W_Q5_1) r.scales.x = w_load(i, at.scales + group);
    if (W_SUPER) r.scales = w_load4(i, at.scales + group / 8);
    if (FORMAT == W_Q6_K) {
        r.high0 = w_load(i, at.high + 2 * group);
        r.high1 = w_load(i, at.high + 2 * group + 1);
        r.extra = w_load(i, at.extra + group / 16);
    }
    return r;
}

w_raw w_fetch(uint i, w_planes p, uint n_pad, uint row, uint unit) {
    return w_fetch_at(i, w_row_of(p, n_pad, row), unit);
}

float w_signed_byte(uint w, uint b) { return float(bitfieldExtract(int(w), int(8 * b), 8)); }

w_unit w_open(w_raw r, uint unit) {
    w_unit u;
    uint group = unit * W_QUADS / 8;
    u.codes = r.codes;
    u.high0 = r.high0;
    u.high1 = r.high1;
    u.d0 = u.d1 = 1;
    u.m = 0;
    if (W_HALF) u.d0 = half_of(r.scales.x >> 16 * (group & 1) & 0xffffu);
    if (FORMAT == W_Q4_1 || FORMAT == W_Q5_1) {
        u.d0 = half_low(r.scales.x);
        u.m  = half_high(r.scales.x);
    }
    if (FORMAT == W_Q4_K || FORMAT == W_Q5_K) {
        // field j of 12 bits at bit 12 j of y z w: two fields cross a word's end
        uint bit = 12 * (group & 7), word = bit >> 5, shift = bit & 31;
        uint low  = word == 0 ? r.scales.y : word == 1 ? r.scales.z : r.scales.w;
        uint next = word == 0 ? r.scales.z : r.scales.w;
        uint field = low >> shift;
        if (shift > 20) field |= next << 32 - shift;
        u.d0 = half_low(r.scales.x) * float(field & 63);
        u.m  = -half_high(r.scales.x) * float(field >> 6 & 63);
    }
    u.d1 = u.d0;
    if (FORMAT == W_Q6_K) {
        float d = half_of(r.extra >> 16 * (group >> 3 & 1) & 0xffffu);
        uint  at = group >> 1 & 3;
        uint  s = at == 0 ? r.scales.x : at == 1 ? r.scales.y : at == 2 ? r.scales.z : r.scales.w;
        s >>= 16 * (group & 1);
        u.d0 = d * w_signed_byte(s, 0);
        u.d1 = d * w_signed_byte(s, 1);
    }
    return u;
}

float w_scale(w_unit u, uint q) { return q < 4 ? u.d0 : u.d1; }
float w_min(w_unit u) { return u.m; }

// Four codes as they are stored, a byte each.
uint w_bytes(w_unit u, uint q) {
    uint w = u.codes[q & 3];
    if (FORMAT == W_Q8_0) return w;
    w = (q < 4 ? w : w >> 4) & 0x0f0f0f0fu;
    if (W_HIGH5) w |= (u.high0 >> q & 0x01010101u) << 4;
    if (FORMAT == W_Q6_K) w |= ((q < 4 ? u.high0 : u.high1) >> 2 * (q & 3) & 0x03030303u) << 4;
    return w;
}

// Minus 8, 16, 32 in each byte: the addition carries nothing into the next, the flip of the top bit does the rest.
int w_pack(w_unit u, uint q) {
    uint w = w_bytes(u, q);
    if (FORMAT == W_Q4_0) w = w + 0x78787878u ^ 0x80808080u;
    if (FORMAT == W_Q5_0) w = w + 0x70707070u ^ 0x80808080u;
    if (FORMAT == W_Q6_K) w = w + 0x60606060u ^ 0x80808080u;
    return int(w);
}

// A quad without its factor, for sums that are multiplied at their end: of formats with W_DEFERS the codes with their
// offset taken off, whose factor is w_scale; of the others the values.
vec4 w_codes(w_unit u, uint q) {
    if (FORMAT == W_F32) return uintBitsToFloat(u.codes);
    if (FORMAT == W_F16)
        return q == 0 ? vec4(unpackHalf2x16(u.codes.x), unpackHalf2x16(u.codes.y))
                      : vec4(unpackHalf2x16(u.codes.z), unpackHalf2x16(u.codes.w));
    if (FORMAT == W_BF16) {
        uvec2 w = q == 0 ? u.codes.xy : u.codes.zw;
        return uintBitsToFloat(uvec4(w.x << 16, w.x & 0xffff0000u, w.y << 16, w.y & 0xffff0000u));
    }
    uint w = w_bytes(u, q);
    if (FORMAT == W_Q8_0)
        return vec4(w_signed_byte(w, 0), w_signed_byte(w, 1), w_signed_byte(w, 2), w_signed_byte(w, 3));
    vec4 c = vec4(w & 0xffu, w >> 8 & 0xffu, w >> 16 & 0xffu, w >> 24);
    if (W_AFFINE) return fma(c, vec4(u.d0), vec4(u.m));
    return c - (FORMAT == W_Q4_0 ? 8.0 : FORMAT == W_Q5_0 ? 16.0 : 32.0);
}

vec4 w_quad(w_unit u, uint q) {
    vec4 v = w_codes(u, q);
    if (W_DEFERS) v *= w_scale(u, q);
    return v;
}

vec4 w_element4(uint i, w_planes p, uint n_pad, uint row, uint quad) {
    uint unit = quad / W_QUADS;
    return w_quad(w_open(w_fetch(i, p, n_pad, row, unit), unit), quad % W_QUADS);
}
