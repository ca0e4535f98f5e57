#version 450
#extension GL_GOOGLE_include_directive : require
// Joins the splits of attend.comp. A workgroup takes a head of a column; a column that sees fewer pages than there are splits has
// fewer partial results.
//
// Bindings and specialization constants: attend.glsl. Groups: heads, columns.
layout(local_size_x_id = 0) in;
#include "attend.glsl"

const uint MOST_SPLITS = 128;

shared float weight[MOST_SPLITS];

void main() {
    uint lane = gl_LocalInvocationIndex, head = gl_WorkGroupID.x, col = gl_WorkGroupID.y;
    if (col >= now_[0]) return;
    uvec4 column = now4_[p.col_table / 4 + col];
    sequence s = sequence_of(p.run_table, column.y);
    uint from, sink_from;
    seen_from(s, column.z, p.window, from, sink_from);
    uint n = min(visits_of(s, from, column.z, sink_from).n, p.n_split), at = (col * p.n_head + head) * p.n_split;
    uint stats = p.n_head * gl_NumWorkGroups.y * p.n_split * DV + 2 * at;

    /* Every lane finds the greatest score and the sum for itself: broadcasts, and no barrier. */
    float top = SINK != 0 ? max(FLOOR, sink_[head] * LOG2E) : FLOOR, sum = 0;
    for (uint i = 0; i < n; i++) top = max(top, partial_[stats + 2 * i]);
    for (uint i = 0; i < n; i++) sum = fma(partial_[stats + 2 * i + 1], exp2(partial_[stats + 2 * i] - top), sum);
    if (SINK != 0) sum += exp2(sink_[head] * LOG2E - top);
    for (uint i = lane; i < n; i += LANES) weight[i] = exp2(partial_[stats + 2 * i] - top);
    barrier();
    for (uint d = lane; d < DV; d += LANES) {
        float x = 0;
        for (uint i = 0; i < n; i++) x = fma(partial_[(at + i) * DV + d], weight[i], x);
        out_[col * p.ld_out + head * DV + d] = sum == 0 ? 0 : x / sum;
    }
}
