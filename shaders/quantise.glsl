// Activations as int8 by groups of 32, in README.md's layout, at binding QUANTISE_BINDING. Rounding: src/cpu_input.h.

layout(set = 0, binding = QUANTISE_BINDING) writeonly buffer q_codes { uvec4 q_code[]; };
layout(set = 0, binding = QUANTISE_BINDING) writeonly buffer q_pairs { vec2 q_pair[]; };

// Group `at` ([column][group]) from its 8 quads; pairs begin at q_scales.
void quantise(vec4 v[8], uint at, uint q_scales) {
    uvec4 top4 = uvec4(0);   // of the numbers without sign, which as integers have the same order, NaN above all
    [[unroll]] for (uint i = 0; i < 8; i++) top4 = max(top4, floatBitsToUint(v[i]) & 0x7fffffffu);
    uint  top = max(max(top4.x, top4.y), max(top4.z, top4.w));
    float most = uintBitsToFloat(top), d = most / 127.0, inverse = 127.0 / most;
    if (most < 1.4928829e-36) d = inverse = 0;                  // 127 * FLT_MIN
    bool bad = top >= 0x7f800000u;
    int  sum = 0;
    uvec4 words[2];
    [[unroll]] for (uint i = 0; i < 8; i++) {
        ivec4 q = ivec4(roundEven(v[i] * inverse));
        if (bad) q = ivec4(0);
        sum += q.x + q.y + q.z + q.w;
        uvec4 b = uvec4(q) & 0xffu;
        words[i / 4][i % 4] = b.x | b.y << 8 | b.z << 16 | b.w << 24;
    }
    q_code[2 * at]     = words[0];
    q_code[2 * at + 1] = words[1];
    if (bad) d = uintBitsToFloat(0x7fc00000u);
    q_pair[q_scales + at] = vec2(d, bad ? d : d * float(sum));
}
