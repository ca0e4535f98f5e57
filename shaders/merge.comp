#version 450
#extension GL_GOOGLE_include_directive : require
// Joins the results of splits. A workgroup takes a head of a column. Splits that saw nothing have a sum of 0, and no
// values.
//
// Bindings and specialization constants: attend.glsl. Groups: heads, columns.
layout(local_size_x_id = 0) in;
#include "attend.glsl"

const uint MOST_SPLITS = 128;

shared float tops[MOST_SPLITS], sums[MOST_SPLITS];

void main() {
    uint lane = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, col = gl_WorkGroupID.y, at = partial_at(col, head, 0);
    if (col >= now_[0]) return;
    for (uint i = lane; i < p.n_split; i += LANES) {
        uint from = p.n_col * p.n_head * p.n_split * DV + 2 * (at + i);
        tops[i] = partial_[from];
        sums[i] = partial_[from + 1];
    }
    barrier();
    float own = SINK != 0 ? sink_[head] * LOG2E : FLOOR, top = max(own, FLOOR), sum;
    for (uint i = 0; i < p.n_split; i++) top = max(top, tops[i]);
    sum = SINK != 0 ? exp2(own - top) : 0;
    for (uint i = 0; i < p.n_split; i++) sum = fma(sums[i], exp2(tops[i] - top), sum);
    for (uint d = lane; d < DV; d += LANES) {
        float x = 0;
        for (uint i = 0; i < p.n_split; i++)
            if (sums[i] != 0) x = fma(partial_[(at + i) * DV + d], exp2(tops[i] - top), x);
        out_[col * p.ld_out + head * DV + d] = sum == 0 ? 0 : x / sum;
    }
}
