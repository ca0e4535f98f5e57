/* The CPU executor: see cpu.h. Every thread walks through the same rows; a barrier stands behind each. */
#include "cpu.h"

/* ---- Memory ---- */

static uint8_t *carve(uint8_t *base, size_t *at, size_t bytes) {
    uint8_t *p = base ? base + *at : NULL;
    *at += size_align(bytes, CACHE_LINE);
    return p;
}

/* The distinct forms that an operation's weights read their input in. */
typedef struct form_set {
    uint32_t form[OP_WEIGHTS];
    size_t   offset[OP_WEIGHTS];   /* of the form's area */
    uint32_t n;
    size_t   bytes;                /* of all areas */
} form_set;

static void add_form(form_set *s, uint32_t form, size_t bytes) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->form[i] == form) return;
    s->form[s->n]   = form;
    s->offset[s->n] = s->bytes;
    s->n++;
    s->bytes += bytes;
}

static size_t form_offset(const form_set *s, uint32_t form) {
    uint32_t i = 0;
    while (i + 1 < s->n && s->form[i] != form) i++;
    return s->offset[i];
}

static form_set narrow_forms(const op *o) {
    form_set s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < o->n_w; i++) {
        uint32_t form = narrow_form(o->w[i]->type);
        add_form(&s, form, narrow_input_bytes(form, o->w[i]->n_in));
    }
    return s;
}

static form_set wide_forms(const cpu_machine *c, const op *o, size_t n_col) {
    form_set s;
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < o->n_w; i++) {
        uint32_t form = wide_form(o->w[i]->type);
        add_form(&s, form, wide_input_bytes(c->level, form, o->w[i]->n_in, n_col));
    }
    return s;
}

/* Attention takes up to so many queries of one KV head at once. */
#define ATTEND_QUERIES 64

static uint32_t attend_columns(uint32_t n_rep) { return n_rep < ATTEND_QUERIES ? ATTEND_QUERIES / n_rep : 1; }

/* What one thread of OP_ATTEND needs for a block of queries. */
typedef struct attend_work {
    const float **q;
    float        *turned;   /* the queries as the sinks see them */
    attend_state *states;
    float        *acc;
    uint32_t     *first, *last;
    int64_t      *position, *from;   /* from: the first token that a query sees, of what is attended */
    uint8_t      *scratch;
} attend_work;

static size_t attend_layout(attend_work *w, const attend_shape *shape, uint32_t n_q, uint8_t *base) {
    size_t at = 0;
    w->q        = (const float **)(void *)carve(base, &at, n_q * sizeof *w->q);
    w->turned   = (float *)(void *)carve(base, &at, (size_t)n_q * shape->head_dim_k * sizeof(float));
    w->states   = (attend_state *)(void *)carve(base, &at, n_q * sizeof *w->states);
    w->acc      = (float *)(void *)carve(base, &at, (size_t)n_q * shape->head_dim_v * sizeof(float));
    w->first    = (uint32_t *)(void *)carve(base, &at, n_q * sizeof *w->first);
    w->last     = (uint32_t *)(void *)carve(base, &at, n_q * sizeof *w->last);
    w->position = (int64_t *)(void *)carve(base, &at, n_q * sizeof *w->position);
    w->from     = (int64_t *)(void *)carve(base, &at, n_q * sizeof *w->from);
    w->scratch  = carve(base, &at, attend_scratch_bytes(shape, n_q));
    return at;
}

/* Experts read each column once (up), or what each chosen expert made of it (down). */
static uint32_t expert_inputs(const cpu_machine *c, const op *o) { return o->kind == OP_EXPERTS_UP ? 1 : c->model->n_expert_used; }
static size_t   expert_stride(const op *o) { return narrow_forms(o).bytes; }

#define EXPERT_ROWS 64   /* that a thread takes at once */

/* The largest needs of any operation. */
static void size_scratch(cpu_machine *c) {
    c->narrow_stride = c->wide_bytes = c->own_stride = c->expert_bytes = 0;
    for (uint32_t i = 0; i < c->prog->n_ops; i++) {
        const op *o = &c->prog->ops[i];
        if (o->kind == OP_ATTEND) {
            const model_layer *l     = &c->model->layers[o->layer];
            uint32_t           n_rep = l->n_head / l->n_head_kv;
            attend_work        unused;
            c->own_stride = size_max(c->own_stride, attend_layout(&unused, &c->kv->layers[o->layer].shape,
                                                                  n_rep * attend_columns(n_rep), NULL));
        }
        if (o->kind == OP_LATENT || o->kind == OP_HEADS)
            c->own_stride = size_max(c->own_stride, narrow_input_bytes(narrow_form(o->w[0]->type), o->w[0]->n_in));
        if (o->kind == OP_EXPERTS_UP || o->kind == OP_EXPERTS_DOWN) {
            c->expert_bytes = size_max(c->expert_bytes, (size_t)c->n_batch * expert_inputs(c, o) * expert_stride(o));
            c->own_stride   = size_max(c->own_stride, 2 * NARROW_MAX * EXPERT_ROWS * sizeof(float));
        }
        if (o->kind != OP_MATMUL) continue;
        c->narrow_stride = size_max(c->narrow_stride, narrow_forms(o).bytes);
        c->wide_bytes    = size_max(c->wide_bytes, wide_forms(c, o, c->n_batch).bytes);
        for (uint32_t k = 0; k < o->n_w; k++)
            c->own_stride = size_max(c->own_stride, wide_scratch_bytes(c->level, o->w[k]->type, o->w[k]->n_in));
    }
    c->own_stride = size_align(c->own_stride, CACHE_LINE);
}

static void carve_split(column_split *s, uint8_t *base, size_t *at, uint32_t n) {
    s->narrow = (uint32_t *)(void *)carve(base, at, n * sizeof(uint32_t));
    s->wide   = (uint32_t *)(void *)carve(base, at, n * sizeof(uint32_t));
}

static size_t cpu_layout(cpu_machine *c, uint8_t *base) {
    size_t at = 0, n = c->n_batch;
    size_scratch(c);
    for (int b = 0; b < BUF_COUNT; b++) {
        size_t columns = b == BUF_LOGITS ? c->n_logits : n;
        c->buf[b] = (float *)(void *)carve(base, &at, columns * c->prog->width[b] * sizeof(float));
    }
    for (uint32_t k = 0; k < ROPE_KINDS; k++) {
        size_t turn = 2 * (size_t)c->prog->ropes[k].n_pairs * sizeof(float);
        c->cos_sin[k]   = (float *)(void *)carve(base, &at, n * turn);
        c->sink_turn[k] = (float *)(void *)carve(base, &at, c->n_seqs * turn);
    }
    c->col_run   = (uint32_t *)(void *)carve(base, &at, n * sizeof(uint32_t));
    c->out_col   = (uint32_t *)(void *)carve(base, &at, n * sizeof(uint32_t));
    carve_split(&c->all, base, &at, c->n_batch);
    carve_split(&c->out, base, &at, c->n_batch);
    carve_split(&c->window, base, &at, c->n_batch);
    c->narrow_in = carve(base, &at, size_min(n, (size_t)c->n_seqs * NARROW_MAX) * c->narrow_stride);
    c->wide_in   = carve(base, &at, c->wide_bytes);
    c->expert_in = carve(base, &at, c->expert_bytes);
    c->own       = carve(base, &at, c->n_threads * c->own_stride);
    c->counters  = (atomic_int32 *)(void *)carve(base, &at, c->prog->n_ops * sizeof *c->counters);
    return at;
}

/* ---- Columns ---- */

static float *column(const cpu_machine *c, buffer_id b, uint32_t col) {
    if (b == BUF_X) col += c->x_first;
    return c->buf[b] + (size_t)col * c->prog->width[b];
}

static const column_split *columns_of(const cpu_machine *c, const op *o) {
    if (c->op_first >= c->prog->n_body) return &c->window;
    return o->gathered ? &c->out : &c->all;
}

static uint32_t n_columns(const column_split *s) { return s->n_narrow + s->n_wide; }

static uint32_t column_at(const column_split *s, uint32_t i) {
    return i < s->n_narrow ? s->narrow[i] : s->wide[i - s->n_narrow];
}

static void split_add(column_split *s, uint32_t col, bool narrow) {
    if (narrow) s->narrow[s->n_narrow++] = col;
    else s->wide[s->n_wide++] = col;
}

static void split_columns(cpu_machine *c, const pass *p) {
    c->all.n_narrow = c->all.n_wide = c->out.n_narrow = c->out.n_wide = 0;
    for (uint32_t r = 0; r < p->n_run; r++) {
        const pass_run *run = &p->runs[r];
        for (uint32_t i = 0; i < run->n_col; i++) {
            c->col_run[run->first_col + i] = r;
            split_add(&c->all, run->first_col + i, run->n_col <= NARROW_MAX);
        }
        for (uint32_t i = 0; i < run->n_out; i++) {
            c->out_col[run->first_out + i] = run->first_col + run->n_col - run->n_out + i;
            split_add(&c->out, run->first_out + i, run->n_out <= NARROW_MAX);
        }
    }
}

static int64_t column_position(const cpu_machine *c, uint32_t col) {
    const pass_run *run = &c->now->runs[c->col_run[col]];
    return run->seq->n_tokens + (col - run->first_col);
}

/* ---- The operations ---- */

typedef void (*op_fn)(cpu_machine *c, const op *o, uint32_t index, uint32_t n);

/* Adds the row of a learned position; behind the last one there is no other. */
static void add_position(cpu_machine *c, const weight *w, float *x, int64_t position, float *row) {
    size_t at = (size_t)(position < (int64_t)w->n_out ? position : (int64_t)w->n_out - 1);
    type_of(w->type)->to_float(w->data + at * w->row_bytes, row, w->n_in);
    vector_add(c->level, x, row, w->n_in);
}

/* Ids to rows, and the angles of this pass. */
static void op_embed(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const weight *w = o->w[0];
    for (uint32_t col = index; col < c->now->n_col; col += n) {
        size_t row = (size_t)c->now->ids[col];
        float *x   = column(c, BUF_X, col);
        type_of(w->type)->to_float(w->data + row * w->row_bytes, x, w->n_in);
        if (o->scale != 1.0f) vector_scale(c->level, x, o->scale, w->n_in);
        if (o->n_w > 1) add_position(c, o->w[1], x, column_position(c, col), column(c, BUF_NORMED, col));
        for (uint32_t k = 0; k < ROPE_KINDS; k++) {
            const rope_table *rope = &c->prog->ropes[k];
            rope_fill(rope, column_position(c, col), rope->magnitude, c->cos_sin[k] + 2 * (size_t)rope->n_pairs * col);
        }
    }
    for (uint32_t r = index; r < c->now->n_run; r += n) {
        int64_t dropped = c->now->runs[r].seq->n_dropped;
        for (uint32_t k = 0; dropped && k < ROPE_KINDS; k++)
            rope_fill(&c->prog->ropes[k], -dropped, 1.0, c->sink_turn[k] + 2 * (size_t)c->prog->ropes[k].n_pairs * r);
    }
}

static void op_norm(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const column_split *cols = columns_of(c, o);
    for (uint32_t t = index; t < n_columns(cols) * o->n_groups; t += n) {
        uint32_t col = column_at(cols, t / o->n_groups), at = t % o->n_groups * o->n, w = o->n_vec > o->n ? at : 0;
        vector_norm(c->level, o->norm, column(c, o->dst[0], col) + at, column(c, o->src, col) + at, o->vec + w,
                    o->bias[0] ? o->bias[0] + w : NULL, o->n, c->model->norm_eps);
    }
}

static void op_add(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const column_split *cols = columns_of(c, o);
    for (uint32_t i = index; i < n_columns(cols); i += n) {
        uint32_t col   = column_at(cols, i);
        float    scale = o->gated ? o->scale / (1.0f + exp_plain(-*column(c, BUF_GATE, col))) : o->scale;
        vector_add_scaled(column(c, o->dst[0], col), column(c, o->src, col), scale, c->model->n_embd);
    }
}

/* -- Matmul -- */

/* Elements of one column that a thread prepares at once. */
#define PREPARE_SHARE 2048

static void prepare_narrow(cpu_machine *c, const op *o, const column_split *cols, const form_set *forms, uint32_t index, uint32_t n) {
    uint32_t n_in   = o->w[0]->n_in;
    uint32_t shares = (n_in + PREPARE_SHARE - 1) / PREPARE_SHARE;
    uint32_t tasks  = forms->n * cols->n_narrow * shares;
    for (uint32_t t = index; t < tasks; t += n) {
        uint32_t share = t % shares, i = t / shares % cols->n_narrow, f = t / shares / cols->n_narrow;
        size_t   begin = (size_t)share * PREPARE_SHARE;
        narrow_prepare(c->level, forms->form[f], column(c, o->src, cols->narrow[i]), n_in, begin,
                       size_min(n_in, begin + PREPARE_SHARE), c->narrow_in + i * c->narrow_stride + forms->offset[f]);
    }
}

static void prepare_wide(cpu_machine *c, const op *o, const column_split *cols, const form_set *forms, uint32_t index, uint32_t n) {
    for (uint32_t f = 0; f < forms->n; f++) {
        uint32_t tiles = wide_tiles(c->level, forms->form[f], cols->n_wide);
        uint32_t begin = (uint32_t)((uint64_t)tiles * index / n), end = (uint32_t)((uint64_t)tiles * (index + 1) / n);
        if (begin < end)
            wide_prepare(c->level, forms->form[f], column(c, o->src, 0), c->prog->width[o->src], cols->wide, o->w[0]->n_in,
                         cols->n_wide, begin, end, c->wide_in + forms->offset[f]);
    }
}

typedef struct matmul_inputs {
    const column_split *cols;
    form_set            narrow, wide;
    uint8_t            *own;
} matmul_inputs;

/* Rows begin..end of weight k for all columns, bias added. */
static void matmul_rows(cpu_machine *c, const op *o, const matmul_inputs *in, uint32_t k, buffer_id dst, uint32_t begin, uint32_t end) {
    const weight       *w    = o->w[k];
    const column_split *cols = in->cols;
    size_t              ld   = c->prog->width[dst];
    for (uint32_t first = 0; first < cols->n_narrow; first += NARROW_MAX) {
        uint32_t    n      = (uint32_t)size_min(NARROW_MAX, cols->n_narrow - first);
        size_t      offset = form_offset(&in->narrow, narrow_form(w->type));
        const void *x[NARROW_MAX];
        for (uint32_t i = 0; i < n; i++) x[i] = c->narrow_in + (first + i) * c->narrow_stride + offset;
        for (uint32_t i = 0; i < n;) {   /* columns that lie side by side go together */
            uint32_t m = 1;
            while (i + m < n && cols->narrow[first + i + m] == cols->narrow[first + i] + m) m++;
            narrow_matmul(c->level, w, x + i, m, begin, end, column(c, dst, cols->narrow[first + i]), ld);
            i += m;
        }
    }
    if (cols->n_wide)
        wide_matmul(c->level, w, c->wide_in + form_offset(&in->wide, wide_form(w->type)), cols->n_wide, cols->wide, begin,
                    end, column(c, dst, 0), ld, in->own);
    if (!o->bias[k]) return;
    for (uint32_t i = 0; i < n_columns(cols); i++)
        vector_add(c->level, column(c, dst, column_at(cols, i)) + begin, o->bias[k] + begin, end - begin);
}

static void matmul_epilogue(cpu_machine *c, const op *o, const column_split *cols, uint32_t begin, uint32_t end) {
    if (o->epilogue == EPILOGUE_NONE && o->scale == 1.0f && o->cap == 0) return;
    for (uint32_t i = 0; i < n_columns(cols); i++) {
        uint32_t col = column_at(cols, i);
        float   *y   = column(c, o->dst[0], col) + begin;
        if (o->scale != 1.0f) vector_scale(c->level, y, o->scale, end - begin);
        if (o->cap != 0) vector_cap(y, o->cap, end - begin);
        if (o->epilogue == EPILOGUE_ADD) vector_add(c->level, y, column(c, BUF_T, col) + begin, end - begin);
        if (o->epilogue == EPILOGUE_ACT) vector_act(c->level, o->act, y, y, end - begin);
        if (o->epilogue == EPILOGUE_GLU)
            vector_glu(c->level, o->act, y, y, column(c, o->dst[1], col) + begin, end - begin);
    }
}

/* Rows that a thread takes at once: small enough to share evenly, large enough to stream. */
static uint32_t rows_at_once(const cpu_machine *c, const op *o, const column_split *cols, uint32_t rows, uint32_t n) {
    uint32_t unit = 16;
    if (cols->n_wide) unit = wide_panel_rows(c->level, o->w[0]->type, o->w[0]->n_in);
    if (n == 1 && !cols->n_wide) return rows;
    uint32_t share = (rows / (n * 4) + unit - 1) / unit * unit;
    return (uint32_t)size_max(share, unit);
}

static void op_matmul(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    matmul_inputs in;
    in.cols   = columns_of(c, o);
    in.narrow = narrow_forms(o);
    in.wide   = wide_forms(c, o, in.cols->n_wide);
    in.own    = c->own + index * c->own_stride;
    if (in.cols->n_narrow) prepare_narrow(c, o, in.cols, &in.narrow, index, n);
    if (in.cols->n_wide) prepare_wide(c, o, in.cols, &in.wide, index, n);
    pool_barrier(c->threads);

    /* The weights of a GLU go through the same rows together; other weights one behind the other. */
    bool     together = o->epilogue == EPILOGUE_GLU;
    uint32_t rows = 0;
    for (uint32_t k = 0; k < (together ? 1 : o->n_w); k++) rows += o->w[k]->n_out;
    uint32_t chunk = rows_at_once(c, o, in.cols, rows, n);
    atomic_int32 *counter = &c->counters[o - c->prog->ops];
    uint32_t taken = pool_take(counter), before = 0;
    for (uint32_t k = 0; k < (together ? 1 : o->n_w); k++) {
        uint32_t n_out = o->w[k]->n_out, chunks = (n_out + chunk - 1) / chunk;
        while (taken < before + chunks) {
            uint32_t  begin = (taken - before) * chunk, end = (uint32_t)size_min(n_out, begin + chunk);
            buffer_id dst   = o->epilogue == EPILOGUE_ADD ? BUF_T : o->dst[k];
            matmul_rows(c, o, &in, k, dst, begin, end);
            if (together) matmul_rows(c, o, &in, 1, o->dst[1], begin, end);
            matmul_epilogue(c, o, in.cols, begin, end);
            taken = pool_take(counter);
        }
        before += chunks;
    }
}

/* -- Attention -- */

/* The turn of a layer's rotary positions for something (a column, a run); NULL where it has none. */
static const float *turn_of(const cpu_machine *c, uint32_t layer, float *const table[ROPE_KINDS], uint32_t of, uint32_t *n_rot) {
    uint32_t rope = c->model->layers[layer].rope;
    *n_rot = rope == ROPE_NOT ? 0 : 2 * c->prog->ropes[rope].n_pairs;
    return *n_rot ? table[rope] + (size_t)*n_rot * of : NULL;
}

static bool is_neox(const cpu_machine *c) { return c->model->kind->flags & ARCH_NEOX; }

static void op_store(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const kv_layer    *kv    = &c->kv->layers[o->layer];
    const model_layer *l     = &c->model->layers[o->layer];
    uint32_t           n_rep = l->n_head / l->n_head_kv, dk = kv->shape.head_dim_k, dv = kv->shape.head_dim_v;
    for (uint32_t task = index; task < c->now->n_col * l->n_head_kv; task += n) {
        uint32_t     col = task / l->n_head_kv, head = task % l->n_head_kv, n_rot;
        const float *turn = turn_of(c, o->layer, c->cos_sin, col, &n_rot);
        float       *k = column(c, BUF_K, col) + (size_t)head * dk;
        float       *q = column(c, o->src, col) + (size_t)head * n_rep * dk;
        float       *v = column(c, BUF_V, col) + (size_t)head * dv;
        if (n_rot) vector_rope(c->level, k, turn, n_rot, is_neox(c));
        for (uint32_t i = 0; i < n_rep; i++) {
            if (n_rot) vector_rope(c->level, q + (size_t)i * dk, turn, n_rot, is_neox(c));
            page_spread(kv->shape.type_k, q + (size_t)i * dk, dk);
        }
        page_spread(kv->shape.type_k, k, dk);
        page_spread(kv->shape.type_v, v, dv);
        int64_t  at   = column_position(c, col);
        uint32_t page = kv_page_of(c->now->runs[c->col_run[col]].seq, at / KV_PAGE);
        attend_store(c->level, &kv->shape, kv_k_page(c->kv, o->layer, page, head), kv_v_page(c->kv, o->layer, page, head),
                     (uint32_t)(at % KV_PAGE), k, v);
    }
}

/* A block of queries: columns of one run times heads that share a KV head. */
typedef struct query_block {
    const pass_run *run;
    uint32_t        first_col, n_col;
    uint32_t        head_kv, first_head, n_head;
    uint32_t        layer;
} query_block;

/* Tokens from w->from[i] on and before `to`; causal: up to each query's own. */
static void attend_range(cpu_machine *c, const query_block *b, const attend_work *w, int64_t to, bool causal) {
    uint32_t n_q  = b->n_col * b->n_head;
    int64_t  from = w->from[0];   /* of the first column, which sees farthest back */
    for (int64_t page = from / KV_PAGE; page * KV_PAGE < to; page++) {
        int64_t base = page * KV_PAGE;
        for (uint32_t i = 0; i < n_q; i++) {
            int64_t end = causal && w->position[i] + 1 < to ? w->position[i] + 1 : to;
            w->first[i] = w->from[i] <= base ? 0 : w->from[i] - base < KV_PAGE ? (uint32_t)(w->from[i] - base) : KV_PAGE;
            w->last[i]  = end <= base ? 0 : end - base < KV_PAGE ? (uint32_t)(end - base) : KV_PAGE;
        }
        uint32_t at = kv_page_of(b->run->seq, page);
        attend_page(c->level, &c->kv->layers[b->layer].shape, n_q, w->q, w->states, w->first, w->last,
                    kv_k_page(c->kv, b->layer, at, b->head_kv), kv_v_page(c->kv, b->layer, at, b->head_kv), w->scratch);
    }
}

/* The sinks as the queries see them from n_dropped positions earlier: turning a turned query back is one more turn. A layer's own
 * window counts as the query does: as if nothing lay between the sinks and the text's window. */
static void attend_sinks(cpu_machine *c, const query_block *b, attend_work *w, uint32_t run_index) {
    const attend_shape *shape  = &c->kv->layers[b->layer].shape;
    const kv_seq       *seq    = b->run->seq;
    uint32_t            n_q    = b->n_col * b->n_head, n_rot;
    int64_t             window = c->model->layers[b->layer].window, start = kv_window_start(seq);
    const float        *turn   = turn_of(c, b->layer, c->sink_turn, run_index, &n_rot);
    for (uint32_t i = 0; i < n_q; i++) {
        float  *turned = w->turned + (size_t)i * shape->head_dim_k;
        int64_t beyond = window ? w->position[i] - start + seq->n_sinks + 1 - window : 0;
        w->from[i] = beyond <= 0 ? 0 : beyond < (int64_t)seq->n_sinks ? beyond : (int64_t)seq->n_sinks;
        memcpy(turned, w->q[i], shape->head_dim_k * sizeof(float));
        page_spread(shape->type_k, turned, shape->head_dim_k);   /* back ... */
        if (n_rot) vector_rope(c->level, turned, turn, n_rot, is_neox(c));
        page_spread(shape->type_k, turned, shape->head_dim_k);   /* ... and forth */
        w->q[i] = turned;
    }
    attend_range(c, b, w, seq->n_sinks, false);
}

static void attend_block(cpu_machine *c, const op *o, const query_block *b, attend_work *w) {
    const kv_seq       *seq    = b->run->seq;
    const attend_shape *shape  = &c->kv->layers[b->layer].shape;
    int64_t             window = c->model->layers[b->layer].window, start = kv_window_start(seq);
    uint32_t            dk = shape->head_dim_k, dv = shape->head_dim_v, n_q = 0;
    for (uint32_t i = 0; i < b->n_col; i++)
        for (uint32_t h = 0; h < b->n_head; h++, n_q++) {
            int64_t position = column_position(c, b->first_col + i);
            w->q[n_q]        = column(c, o->src, b->first_col + i) + (size_t)(b->first_head + h) * dk;
            w->position[n_q] = position;
            w->from[n_q]     = window && position + 1 - window > start ? position + 1 - window : start;
            attend_begin(&w->states[n_q], w->acc + (size_t)n_q * dv, dv);
        }
    attend_range(c, b, w, w->position[n_q - 1] + 1, true);
    if (seq->n_dropped) attend_sinks(c, b, w, (uint32_t)(b->run - c->now->runs));
    for (uint32_t i = 0; i < n_q; i++) {
        uint32_t head = b->first_head + i % b->n_head;
        float   *out  = column(c, o->dst[0], b->first_col + i / b->n_head) + (size_t)head * dv;
        if (o->vec) attend_sink(&w->states[i], o->vec[head], dv);
        attend_end(&w->states[i], out, dv);
        page_spread(shape->type_v, out, dv);
    }
}

static void op_attend(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const model_layer *l     = &c->model->layers[o->layer];
    uint32_t           n_rep = l->n_head / l->n_head_kv, cols = attend_columns(n_rep);
    attend_work        w;
    attend_layout(&w, &c->kv->layers[o->layer].shape, n_rep * cols, c->own + index * c->own_stride);
    atomic_int32 *counter = &c->counters[o - c->prog->ops];
    uint32_t      taken   = pool_take(counter), before = 0;
    for (uint32_t r = 0; r < c->now->n_run; r++) {
        const pass_run *run    = &c->now->runs[r];
        uint32_t        blocks = (run->n_col + cols - 1) / cols;
        /* Few columns: the heads of a group part, so that every thread has some. */
        uint32_t parts = blocks * l->n_head_kv >= 2 * n ? 1 : (uint32_t)size_min(n_rep, 2 * n);
        uint32_t tasks = blocks * l->n_head_kv * parts;
        while (taken < before + tasks) {
            uint32_t    t = taken - before, part = t % parts, block = blocks - 1 - t / parts / l->n_head_kv;  /* the longest first */
            query_block b;
            b.run        = run;
            b.layer      = o->layer;
            b.head_kv    = t / parts % l->n_head_kv;
            b.first_col  = run->first_col + block * cols;
            b.n_col      = (uint32_t)size_min(cols, run->n_col - block * cols);
            b.first_head = b.head_kv * n_rep + n_rep * part / parts;
            b.n_head     = b.head_kv * n_rep + n_rep * (part + 1) / parts - b.first_head;
            attend_block(c, o, &b, &w);
            taken = pool_take(counter);
        }
        before += tasks;
    }
}

/* -- Matrices of heads -- */

/* One head of one column: y = w x, by the narrow way. Own scratch holds the prepared input. */
static void head_matmul(cpu_machine *c, const op *o, uint32_t head, const float *x, float *y, uint8_t *own) {
    weight      w = *o->w[0];
    const void *in = own;
    w.data += (size_t)head * w.n_out * w.row_bytes;
    narrow_prepare(c->level, narrow_form(w.type), x, w.n_in, 0, w.n_in, own);
    narrow_matmul(c->level, &w, &in, 1, 0, w.n_out, y, 0);
}

/* Where the parts of a row lie: queries (not turned, turned), latent rows (latent, turned); in Q and K what is turned comes first. */
static void op_latent(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const nova_model *m      = c->model;
    uint32_t          n_head = m->layers[o->layer].n_head, n_rot = m->rope.n_rot, nope = m->n_nope, latent = m->head_dim_v;
    for (uint32_t task = index; task < c->now->n_col * n_head; task += n) {
        uint32_t     col = task / n_head, head = task % n_head;
        const float *x   = column(c, o->src, col) + (size_t)head * (nope + n_rot);
        float       *q   = column(c, o->dst[0], col) + (size_t)head * (n_rot + latent);
        memcpy(q, x + nope, n_rot * sizeof *q);
        head_matmul(c, o, head, x, q + n_rot, c->own + index * c->own_stride);
        if (head) continue;
        memcpy(column(c, BUF_K, col), column(c, BUF_LATENT, col) + latent, n_rot * sizeof *q);
        memcpy(column(c, BUF_K, col) + n_rot, column(c, BUF_V, col), latent * sizeof *q);
    }
}

static void op_heads(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    uint32_t n_head = c->model->layers[o->layer].n_head, n_in = o->w[0]->n_in, n_out = o->w[0]->n_out;
    for (uint32_t task = index; task < c->now->n_col * n_head; task += n) {
        uint32_t col = task / n_head, head = task % n_head;
        head_matmul(c, o, head, column(c, o->src, col) + (size_t)head * n_in, column(c, o->dst[0], col) + (size_t)head * n_out,
                    c->own + index * c->own_stride);
    }
}

/* -- Experts -- */

typedef struct expert_choice { uint32_t expert; float weight; } expert_choice;

static expert_choice chosen_at(const cpu_machine *c, uint32_t col, uint32_t slot) {
    expert_choice x;
    memcpy(&x, column(c, BUF_CHOSEN, col) + 2 * (size_t)slot, sizeof x);
    return x;
}

/* The greatest score that was not taken yet; the first of equals. NaN is never chosen but where nothing else is left. */
static uint32_t best_expert(const float *scores, const bool *taken, uint32_t n) {
    uint32_t best = n;
    for (uint32_t e = 0; e < n; e++)
        if (!taken[e] && (best == n || scores[e] > scores[best] || scores[best] != scores[best])) best = e;
    return best;
}

static void softmax_few(float *x, uint32_t n) {
    float top = x[0], sum = 0;
    for (uint32_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (uint32_t i = 0; i < n; i++) sum += x[i] = exp_plain(x[i] - top);
    for (uint32_t i = 0; i < n; i++) x[i] /= sum;
}

static void route_column(const nova_model *m, float *scores, float *out) {
    bool     taken[MAX_EXPERTS];
    float    weights[MAX_EXPERTS], sum = 0;
    uint32_t n = m->n_expert, used = m->n_expert_used;
    if (m->route == GATING_SOFTMAX) softmax_few(scores, n);
    for (uint32_t e = 0; e < n; e++) {
        taken[e] = false;
        if (m->route == GATING_SIGMOID) scores[e] = 1.0f / (1.0f + exp_plain(-scores[e]));
    }
    for (uint32_t i = 0; i < used; i++) {
        expert_choice x;
        x.expert = best_expert(scores, taken, n);
        taken[x.expert] = true;
        sum += weights[i] = x.weight = scores[x.expert];
        memcpy(out + 2 * i, &x, sizeof x);
    }
    if (m->route == GATING_SOFTMAX_CHOSEN) softmax_few(weights, used);
    for (uint32_t i = 0; i < used; i++)
        out[2 * i + 1] = weights[i] / (m->norm_weights ? sum : 1.0f) * m->expert_scale;
}

static void op_route(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const column_split *cols = columns_of(c, o);
    for (uint32_t i = index; i < n_columns(cols); i += n)
        route_column(c->model, column(c, o->src, column_at(cols, i)), column(c, o->dst[0], column_at(cols, i)));
}

/* A few columns that chose the same expert. */
typedef struct expert_group {
    uint32_t    n, col[NARROW_MAX], slot[NARROW_MAX];
    const void *x[NARROW_MAX];
} expert_group;

static uint8_t *expert_input(const cpu_machine *c, const op *o, uint32_t col, uint32_t slot) {
    uint32_t inputs = expert_inputs(c, o);
    return c->expert_in + ((size_t)col * inputs + (inputs > 1 ? slot : 0)) * expert_stride(o);
}

static void prepare_experts(cpu_machine *c, const op *o, const column_split *cols, uint32_t index, uint32_t n) {
    uint32_t inputs = expert_inputs(c, o), n_in = o->w[0]->n_in;
    form_set forms  = narrow_forms(o);
    for (uint32_t t = index; t < n_columns(cols) * inputs * forms.n; t += n) {
        uint32_t f = t % forms.n, slot = t / forms.n % inputs, col = column_at(cols, t / forms.n / inputs);
        narrow_prepare(c->level, forms.form[f], column(c, o->src, col) + (size_t)slot * n_in, n_in, 0, n_in,
                       expert_input(c, o, col, slot) + forms.offset[f]);
    }
}

/* An expert's rows of weight k for the group, with its bias: out[i][row - begin]. */
static void expert_rows(cpu_machine *c, const op *o, uint32_t k, uint32_t expert, const expert_group *g, uint32_t begin, uint32_t end, float *out) {
    weight      w = *o->w[k];
    form_set    forms = narrow_forms(o);
    const void *x[NARROW_MAX];
    w.data += (size_t)expert * w.n_out * w.row_bytes;
    for (uint32_t i = 0; i < g->n; i++) x[i] = (const uint8_t *)g->x[i] + form_offset(&forms, narrow_form(w.type));
    w.data += (size_t)begin * w.row_bytes;
    w.n_out = end - begin;
    narrow_matmul(c->level, &w, x, g->n, 0, end - begin, out, EXPERT_ROWS);
    for (uint32_t i = 0; o->bias[k] && i < g->n; i++)
        vector_add(c->level, out + (size_t)i * EXPERT_ROWS, o->bias[k] + (size_t)expert * o->w[k]->n_out + begin, end - begin);
}

static void expert_group_rows(cpu_machine *c, const op *o, uint32_t expert, const expert_group *g, uint32_t begin, uint32_t end, float *own) {
    float *second = own + NARROW_MAX * EXPERT_ROWS;
    expert_rows(c, o, 0, expert, g, begin, end, own);
    if (o->kind == OP_EXPERTS_UP) expert_rows(c, o, 1, expert, g, begin, end, second);
    for (uint32_t i = 0; i < g->n; i++) {
        const float *y = own + (size_t)i * EXPERT_ROWS;
        if (o->kind == OP_EXPERTS_UP)
            vector_glu(c->level, o->act, column(c, o->dst[0], g->col[i]) + (size_t)g->slot[i] * c->model->n_ff_expert + begin, y,
                       second + (size_t)i * EXPERT_ROWS, end - begin);
        else vector_add_scaled(column(c, o->dst[0], g->col[i]) + begin, y, chosen_at(c, g->col[i], g->slot[i]).weight, end - begin);
    }
}

/* Rows of every expert that some column chose, the experts in order: so that a column's sum has one order, whoever its neighbours are. */
static void experts_rows(cpu_machine *c, const op *o, const column_split *cols, uint32_t begin, uint32_t end, float *own) {
    for (uint32_t e = 0; e < c->model->n_expert; e++) {
        expert_group g;
        g.n = 0;
        for (uint32_t i = 0; i < n_columns(cols); i++)
            for (uint32_t slot = 0; slot < c->model->n_expert_used; slot++) {
                uint32_t col = column_at(cols, i);
                if (chosen_at(c, col, slot).expert != e) continue;
                g.col[g.n] = col, g.slot[g.n] = slot, g.x[g.n++] = expert_input(c, o, col, slot);
                if (g.n < NARROW_MAX) continue;
                expert_group_rows(c, o, e, &g, begin, end, own);
                g.n = 0;
            }
        if (g.n) expert_group_rows(c, o, e, &g, begin, end, own);
    }
}

static void op_experts(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    const column_split *cols = columns_of(c, o);
    uint32_t            rows = o->w[0]->n_out;
    atomic_int32       *counter = &c->counters[o - c->prog->ops];
    prepare_experts(c, o, cols, index, n);
    pool_barrier(c->threads);
    for (uint32_t at = pool_take(counter); at * EXPERT_ROWS < rows; at = pool_take(counter)) {
        uint32_t begin = at * EXPERT_ROWS, end = (uint32_t)size_min(rows, begin + EXPERT_ROWS);
        for (uint32_t i = 0; o->kind == OP_EXPERTS_DOWN && i < n_columns(cols); i++)
            memset(column(c, o->dst[0], column_at(cols, i)) + begin, 0, (end - begin) * sizeof(float));
        experts_rows(c, o, cols, begin, end, (float *)(void *)(c->own + index * c->own_stride));
    }
}

/* Gathered columns lie at or behind their place, so that copying in order overwrites none that is still wanted. */
static void op_gather(cpu_machine *c, const op *o, uint32_t index, uint32_t n) {
    buffer_id both[2];
    both[0] = o->src;
    both[1] = o->dst[0];
    for (uint32_t b = index; b < 2; b += n)
        for (uint32_t i = 0; i < c->now->n_out; i++)
            if (c->out_col[i] != i)
                memcpy(column(c, both[b], i), column(c, both[b], c->out_col[i]), c->prog->width[both[b]] * sizeof(float));
}

static const op_fn op_fns[OP_KIND_COUNT] = {op_embed, op_norm, op_matmul, op_store, op_attend, op_gather,
                                              op_add, op_route, op_experts, op_latent, op_heads, op_experts};

/* ---- Running ---- */

static void cpu_task(void *arg, uint32_t index, uint32_t n) {
    cpu_machine *c = (cpu_machine *)arg;
    for (uint32_t i = c->op_first; i < c->op_last; i++) {
        const op *o = &c->prog->ops[i];
        if (o->gathered && n_columns(columns_of(c, o)) == 0) return;   /* no logits are wanted; the same for all threads */
        op_fns[o->kind](c, o, index, n);
        /* All threads must stop at the same row, so the row's number is what is published in front of the barrier: one
         * thread may be a row ahead when another reads it. */
        if (index == 0 && c->cancelled && c->cancelled(c->cancelled_user)) atomic_store_relaxed(&c->stop_at, (int32_t)i);
        pool_barrier(c->threads);
        if (atomic_load_relaxed(&c->stop_at) <= (int32_t)i) return;
    }
}

static nova_result cpu_run(cpu_machine *c, uint32_t first, uint32_t last) {
    c->op_first = first;
    c->op_last  = last;
    for (uint32_t i = first; i < last; i++) atomic_store_relaxed(&c->counters[i], 0);
    atomic_store_relaxed(&c->stop_at, INT32_MAX);
    pool_run(c->threads, cpu_task, c);
    return atomic_load_relaxed(&c->stop_at) == INT32_MAX ? NOVA_OK : NOVA_CANCELLED;
}

static nova_result cpu_body(cpu_machine *c, const pass *p, uint32_t last) {
    c->now     = p;
    c->x_first = 0;
    split_columns(c, p);
    return cpu_run(c, 0, last);
}

static nova_result cpu_head(cpu_machine *c, uint32_t first, uint32_t n) {
    const column_split *out = &c->out;
    c->x_first = first;
    c->window.n_narrow = c->window.n_wide = 0;
    for (uint32_t i = 0; i < n_columns(out); i++) {
        uint32_t col = column_at(out, i);
        if (col >= first && col < first + n) split_add(&c->window, col - first, i < out->n_narrow);
    }
    return cpu_run(c, c->prog->n_body, c->prog->n_ops);
}
