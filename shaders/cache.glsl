// The `now` buffer: runs and columns, and where a token lies in the cache. For store and attend.
// The including shader declares binding 0 as now_[] (uint) and now4_[] (uvec4).

#define PAGE 64u            // tokens of a page

struct sequence {           // a run, and how its text lies in the cache
    uint first_col, n_col, table, dropped;
    uint n_sinks, n_sink_pages, window_page, window_start;
};

sequence sequence_of(uint run_table, uint run) {
    uvec4 a = now4_[run_table / 4 + 3 * run], b = now4_[run_table / 4 + 3 * run + 1];
    return sequence(a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w);
}

// The page that holds a text's page.
uint page_of(sequence s, uint text_page) {
    uint at = text_page < s.n_sink_pages ? text_page : s.n_sink_pages + text_page - s.window_page;
    return now_[s.table + at];
}

// What a column at `position` sees: of the window the tokens from..position, of the sinks sink_from..n_sinks - 1. A
// layer's own window of some tokens counts as the query does: sinks as if nothing lay between them and the text's
// window.
void seen_from(sequence s, uint position, uint window, out uint from, out uint sink_from) {
    from = s.window_start;
    sink_from = s.dropped != 0 ? 0 : s.n_sinks;
    if (window == 0) return;
    if (position + 1 > window) from = max(from, position + 1 - window);
    uint held = position - s.window_start + s.n_sinks + 1;
    if (s.dropped != 0 && held > window) sink_from = min(s.n_sinks, held - window);
}

// Pages to visit, in order: those with visible sinks, then those of the window.
struct visits {
    uint n, n_sink, sink_page, page;
};

visits visits_of(sequence s, uint from, uint last, uint sink_from) {
    visits v;
    v.sink_page = sink_from / PAGE;
    v.n_sink = sink_from < s.n_sinks ? (s.n_sinks - 1) / PAGE + 1 - v.sink_page : 0;
    v.page = from / PAGE;
    v.n = v.n_sink + last / PAGE + 1 - v.page;
    return v;
}

// One element of a head turned by rotary positions: x itself, y its partner; `low` is the pair's first.
float turned(float x, float y, vec2 cos_sin, bool low) {
    return low ? x * cos_sin.x - y * cos_sin.y : x * cos_sin.x + y * cos_sin.y;
}
