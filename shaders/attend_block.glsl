// Blocks of queries: for the kernels that take many columns at once. A row is a column and one of `heads` heads of a KV
// head; a block's columns are neighbours of one run.

struct block {
    uint run, first, n_col;    // first: its first column
    uint n_row;                // n_col * heads
    uint position;             // of its first column
};

// The gl_WorkGroupID.y-th block of the pass, the last blocks of the texts, which see most, first; n_row 0: there are
// not so many.
block block_of(uint cols, uint n_head) {
    uint n = now_[1], total = 0, run = 0;
    block b = block(0, 0, 0, 0, 0);
    for (uint i = 0; i < n; i++) total += (now4_[p.run_table / 4 + 3 * i].y + cols - 1) / cols;
    if (gl_WorkGroupID.y >= total) return b;
    uint at = total - 1 - gl_WorkGroupID.y;
    for (;;) {
        uint here = (now4_[p.run_table / 4 + 3 * run].y + cols - 1) / cols;
        if (at < here || run + 1 >= n) break;
        at -= here;
        run++;
    }
    uvec4 r = now4_[p.run_table / 4 + 3 * run];
    b.run = run;
    b.first = r.x + at * cols;
    b.n_col = min(cols, r.y - at * cols);
    b.n_row = b.n_col * n_head;
    b.position = now4_[p.col_table / 4 + b.first].z;
    return b;
}
