/* Attention on a Vulkan device: storing into the cache, and every path of attention, against double loops. */
#include "vk_guard.h"

#ifndef NOVA_NO_VULKAN

static vk_device *device;

/* ---- Buffers with guard words around them, out of one slice that is used anew by each problem ---- */

#define GUARD       0x7fc5a5a5u   /* a NaN */
#define GUARD_WORDS 256
#define AREAS       16

typedef struct area {
    vk_slice  slice;
    uint32_t *words;              /* the host's copy, guards around it */
    uint32_t  n;
} area;

static vk_slice all;
static uint64_t all_used;
static area     areas[AREAS];
static uint32_t n_areas;

static nova_error problem;
#define OK(call) CHECK((call) == NOVA_OK, "%s", problem.message)

static area *area_take(uint32_t n) {
    area *a = &areas[n_areas++];
    a->n     = n;
    a->words = (uint32_t *)malloc((n + 2 * (size_t)GUARD_WORDS) * sizeof *a->words);
    a->slice = all;
    a->slice.offset += all_used + GUARD_WORDS * sizeof(uint32_t);
    a->slice.size = n * sizeof(uint32_t);
    if (a->slice.map) a->slice.map += all_used + GUARD_WORDS * sizeof(uint32_t);
    all_used = (all_used + (n + 2 * GUARD_WORDS) * sizeof(uint32_t) + 255) / 256 * 256;
    if (!a->words || all_used > all.size) exit(2);
    for (uint32_t i = 0; i < n + 2 * GUARD_WORDS; i++) a->words[i] = GUARD;
    return a;
}

static uint32_t *words_of(area *a) { return a->words + GUARD_WORDS; }
static float    *floats_of(area *a) { return (float *)(void *)words_of(a); }

static vk_slice with_guards(const area *a) {
    vk_slice s = a->slice;
    s.offset -= GUARD_WORDS * sizeof(uint32_t);
    s.size += 2 * GUARD_WORDS * sizeof(uint32_t);
    if (s.map) s.map -= GUARD_WORDS * sizeof(uint32_t);
    return s;
}

static void area_write(area *a) {
    vk_slice s = with_guards(a);
    OK(vk_write(device, &s, 0, a->words, s.size, &problem));
}

static void area_read(area *a) {
    vk_slice s = with_guards(a);
    uint32_t wrong = 0;
    OK(vk_read(device, &s, 0, a->words, s.size, &problem));
    for (uint32_t i = 0; i < GUARD_WORDS; i++) wrong += a->words[i] != GUARD || a->words[GUARD_WORDS + a->n + i] != GUARD;
    CHECK(wrong == 0, "%u guard words were overwritten", wrong);
}

static void areas_free(void) {
    for (uint32_t i = 0; i < n_areas; i++) free(areas[i].words);
    n_areas  = 0;
    all_used = 0;
}

/* ---- A pass: some texts, each with a cache of its own pages ---- */

#define MOST_RUNS 4

typedef struct text_case {
    uint32_t position, n_col, first_col;       /* of the pass's columns */
    uint32_t n_sinks, n_dropped, window_start, n_sink_pages, window_page;
    uint32_t table[256];
    uint32_t n_pages;
    float   *k, *v;                            /* [token][kv head][dim], as the cache rounds them; NULL where forgotten */
} text_case;

typedef struct attend_case {
    uint32_t  n_head_kv, n_rep, dk, dv, n_rot, n_run, n_col, window, n_pages;
    bool      k_f32, v_f32, neox, learned;
    float     scale, cap;
    text_case run[MOST_RUNS];
    vk_now    now;
    vk_cache  cache;
    area     *now_area, *cache_area, *q, *out, *sinks, *partial;
    uint32_t  ld_q, ld_out;
} attend_case;

static uint32_t pad32(uint32_t n) { return (n + 31) / 32 * 32; }

static uint16_t half_from_float(float x) {
    uint16_t h;
    vector_half_from_float(CPU_PLAIN, &h, &x, 1);
    return h;
}

static float rounded(bool f32, float x) { return f32 ? x : half_to_float(half_from_float(x)); }

/* The word and the shift of an element of the cache. */
static uint32_t k_word(const attend_case *c, uint32_t page, uint32_t head, uint32_t d, uint32_t t) {
    uint32_t kr = c->k_f32 ? c->dk : (c->dk + 1) / 2, vr = c->v_f32 ? c->dv : (c->dv + 1) / 2;
    return (page * c->n_head_kv + head) * 64 * (kr + vr) + (c->k_f32 ? d : d / 2) * 64 + t;
}
static uint32_t v_word(const attend_case *c, uint32_t page, uint32_t head, uint32_t d, uint32_t t) {
    uint32_t kr = c->k_f32 ? c->dk : (c->dk + 1) / 2, vr = c->v_f32 ? c->dv : (c->dv + 1) / 2;
    return (page * c->n_head_kv + head) * 64 * (kr + vr) + 64 * kr + t * vr + (c->v_f32 ? d : d / 2);
}
static void put_element(uint32_t *word, bool f32, uint32_t d, float x) {
    if (f32) memcpy(word, &x, sizeof x);
    else if (d & 1) *word = (*word & 0xffff) | (uint32_t)half_from_float(x) << 16;
    else *word = half_from_float(x);           /* the next one fills the high half; behind an odd head stays a zero */
}

static uint32_t page_at(const text_case *r, uint32_t text_page) {
    return r->table[text_page < r->n_sink_pages ? text_page : r->n_sink_pages + text_page - r->window_page];
}

/* Is this token held? */
static bool held(const text_case *r, uint32_t t) { return t >= r->window_start || (r->n_dropped && t < r->n_sinks); }

static void put_text(attend_case *c, text_case *r, float size) {
    uint32_t *cache = words_of(c->cache_area), end = r->position + r->n_col;
    r->k = (float *)malloc((size_t)end * c->n_head_kv * c->dk * sizeof(float));
    r->v = (float *)malloc((size_t)end * c->n_head_kv * c->dv * sizeof(float));
    if (!r->k || !r->v) exit(2);
    for (uint32_t t = 0; t < end; t++) {
        if (!held(r, t)) continue;
        uint32_t page = page_at(r, t / 64);
        for (uint32_t h = 0; h < c->n_head_kv; h++) {
            float *k = r->k + ((size_t)t * c->n_head_kv + h) * c->dk, *v = r->v + ((size_t)t * c->n_head_kv + h) * c->dv;
            for (uint32_t d = 0; d < c->dk; d++) {
                k[d] = rounded(c->k_f32, test_uniform() * size);
                put_element(cache + k_word(c, page, h, d, t % 64), c->k_f32, d, k[d]);
            }
            for (uint32_t d = 0; d < c->dv; d++) {
                v[d] = rounded(c->v_f32, test_uniform() * 2);
                put_element(cache + v_word(c, page, h, d, t % 64), c->v_f32, d, v[d]);
            }
        }
    }
}

/* Page tables out of a shuffled pool. */
static void put_tables(attend_case *c) {
    uint32_t pool[1024], used = 0;
    for (uint32_t i = 0; i < c->n_pages; i++) pool[i] = i;
    for (uint32_t i = c->n_pages; i > 1; i--) {
        uint32_t j = test_below(i), x = pool[i - 1];
        pool[i - 1] = pool[j], pool[j] = x;
    }
    for (uint32_t i = 0; i < c->n_run; i++)
        for (uint32_t j = 0; j < c->run[i].n_pages; j++) c->run[i].table[j] = pool[used++];
}

static void run_shape(text_case *r) {
    uint32_t last = (r->position + r->n_col - 1) / 64;
    r->window_start = r->n_sink_pages = r->window_page = 0;
    if (r->n_dropped) {
        r->window_start = r->n_sinks + r->n_dropped;
        r->n_sink_pages = (r->n_sinks + 63) / 64;
        r->window_page  = r->window_start / 64 > r->n_sink_pages ? r->window_start / 64 : r->n_sink_pages;
    }
    r->n_pages = r->n_sink_pages + (last >= r->window_page ? last + 1 - r->window_page : 0);
}

static void put_now(attend_case *c) {
    uint32_t at = 64, table;
    c->now.col       = at, at += 4 * c->n_col;
    c->now.run       = at, at += 12 * c->n_run;
    c->now.turn      = (at + 3) / 4 * 4, at = c->now.turn + c->n_col * c->n_rot;
    c->now.sink_turn = (at + 3) / 4 * 4, at = c->now.sink_turn + c->n_run * c->n_rot;
    table            = at;
    for (uint32_t i = 0; i < c->n_run; i++) at += c->run[i].n_pages;
    c->now_area  = area_take(at);
    c->now.bytes = c->now_area->slice;
    uint32_t *w = words_of(c->now_area);
    w[0] = c->n_col, w[1] = c->n_run, w[2] = 0, w[3] = 0;
    for (uint32_t i = 0; i < c->n_run; i++) {
        text_case *r = &c->run[i];
        uint32_t  *x = w + c->now.run + 12 * i;
        x[0] = r->first_col, x[1] = r->n_col, x[2] = table, x[3] = r->n_dropped != 0;
        x[4] = r->n_sinks, x[5] = r->n_sink_pages, x[6] = r->window_page, x[7] = r->window_start;
        x[8] = x[9] = x[10] = x[11] = 0;
        for (uint32_t j = 0; j < r->n_pages; j++) w[table++] = r->table[j];
        for (uint32_t j = 0; j < r->n_col; j++) {
            uint32_t *col = w + c->now.col + 4 * (r->first_col + j);
            col[0] = 1, col[1] = i, col[2] = r->position + j, col[3] = 0;
        }
    }
    for (uint32_t i = 0; i < (c->n_col + c->n_run) * c->n_rot / 2; i++) {
        float *to = (float *)(void *)w + (i < c->n_col * c->n_rot / 2 ? c->now.turn + 2 * i : c->now.sink_turn + 2 * i - c->n_col * c->n_rot);
        float  angle = test_uniform() * 3;
        to[0] = cosf(angle), to[1] = sinf(angle);
    }
}

/* The runs' positions and lengths, the flags and sizes are set: makes the rest. */
static void case_open(attend_case *c, float q_size, float k_size) {
    c->n_col = 0, c->n_pages = 1 + test_below(3);
    for (uint32_t i = 0; i < c->n_run; i++) {
        c->run[i].first_col = c->n_col;
        run_shape(&c->run[i]);
        c->n_col += c->run[i].n_col;
        c->n_pages += c->run[i].n_pages;
    }
    put_tables(c);
    put_now(c);
    c->cache.n_head_kv = c->n_head_kv, c->cache.head_dim_k = c->dk, c->cache.head_dim_v = c->dv;
    c->cache.k_f32 = c->k_f32, c->cache.v_f32 = c->v_f32;
    c->cache_area  = area_take((uint32_t)(vk_cache_page_bytes(&c->cache) / 4) * c->n_pages);
    c->cache.bytes = c->cache_area->slice;
    for (uint32_t i = 0; i < c->n_run; i++) put_text(c, &c->run[i], k_size);
    uint32_t n_head = c->n_head_kv * c->n_rep;
    c->ld_q   = pad32(n_head * c->dk) + 32 * test_below(2);
    c->ld_out = pad32(n_head * c->dv);
    c->q      = area_take(c->n_col * c->ld_q);
    c->out    = area_take(c->n_col * c->ld_out);
    c->sinks  = area_take(n_head);
    for (uint32_t i = 0; i < c->n_col * c->ld_q; i++) floats_of(c->q)[i] = test_uniform() * q_size;
    for (uint32_t i = 0; i < n_head; i++) floats_of(c->sinks)[i] = test_uniform() * 3;
}

static void case_close(attend_case *c) {
    for (uint32_t i = 0; i < c->n_run; i++) free(c->run[i].k), free(c->run[i].v);
    areas_free();
}

/* ---- The expected result ---- */

static double turned_element(const attend_case *c, const float *x, const float *turn, uint32_t d) {
    uint32_t n = c->n_rot / 2;
    if (d >= c->n_rot) return (double)x[d];
    uint32_t pair = c->neox ? d % n : d / 2, a = c->neox ? pair : 2 * pair, b = c->neox ? pair + n : a + 1;
    double   cs = (double)turn[2 * pair], sn = (double)turn[2 * pair + 1];
    return d == a ? (double)x[a] * cs - (double)x[b] * sn : (double)x[b] * cs + (double)x[a] * sn;
}

/* The result of a head of a column, and how far floats (or halves, by `unit`) may be from it. */
static void attend_exact(const attend_case *c, uint32_t run, uint32_t i, uint32_t head, double unit, double *out, double *allowed) {
    const text_case *r     = &c->run[run];
    const float     *words = (const float *)(const void *)words_of(c->now_area);
    const float     *q     = floats_of(c->q) + (size_t)(r->first_col + i) * c->ld_q + head * c->dk;
    uint32_t         at = r->position + i, kv = head / c->n_rep;
    double          *score = (double *)malloc((at + 1) * sizeof *score);
    double           query[2][1024], top = -1e300, sum = 0, off = 0;
    if (!score) exit(2);
    for (uint32_t d = 0; d < c->dk; d++) {
        query[0][d] = (double)q[d];
        query[1][d] = turned_element(c, q, words + c->now.sink_turn + run * c->n_rot, d);
    }
    for (uint32_t t = 0; t <= at; t++) {
        bool     sink     = r->n_dropped && t < r->n_sinks;
        uint32_t distance = sink ? at - r->n_dropped - t : at - t;
        score[t] = -INFINITY;
        if (!held(r, t) || (c->window && distance >= c->window)) continue;
        const float *k = r->k + ((size_t)t * c->n_head_kv + kv) * c->dk;
        double       s = 0, size = 0;
        for (uint32_t d = 0; d < c->dk; d++) {
            double x = query[sink][d] * (double)k[d];
            s += x, size += x * x;
        }
        s *= (double)c->scale, size = (sqrt(size) * 4 + fabs(s)) * (double)c->scale;
        score[t] = c->cap != 0 ? (double)c->cap * tanh(s / (double)c->cap) : s;
        if (score[t] > top) top = score[t];
        if (size > off) off = size;
    }
    if (c->learned && (double)floats_of(c->sinks)[head] > top) top = (double)floats_of(c->sinks)[head];
    if (c->learned) sum += exp((double)floats_of(c->sinks)[head] - top);
    for (uint32_t d = 0; d < c->dv; d++) out[d] = 0;
    for (uint32_t t = 0; t <= at; t++) {
        if (score[t] == -INFINITY) continue;
        const float *v = r->v + ((size_t)t * c->n_head_kv + kv) * c->dv;
        double       w = exp(score[t] - top);
        sum += w;
        for (uint32_t d = 0; d < c->dv; d++) out[d] += w * (double)v[d];
    }
    for (uint32_t d = 0; d < c->dv; d++) out[d] /= sum;
    *allowed = 16 * unit + 4 * unit * (off + fabs(top));
    free(score);
}

/* ---- Running it ---- */

static vk_attend case_attend(const attend_case *c, attend_path path, uint32_t n_splits) {
    vk_attend a;
    memset(&a, 0, sizeof a);
    a.now = &c->now, a.cache = &c->cache;
    a.q = c->q->slice, a.out = c->out->slice;
    if (c->learned) a.sinks = c->sinks->slice;
    a.ld_q = c->ld_q, a.ld_out = c->ld_out;
    a.n_col = c->n_col + test_below(3), a.n_run = MOST_RUNS;
    a.n_ctx = 64 * 200;
    a.n_head = c->n_head_kv * c->n_rep, a.n_rot = c->n_rot, a.neox = c->neox;
    a.scale = c->scale, a.soft_cap = c->cap, a.window = c->window;
    a.path = path, a.n_splits = n_splits, a.barrier = true;
    return a;
}

static const char *path_names[] = { "best", "few", "many f32", "many matrix" };

static void check_attend(attend_case *c, attend_path path, uint32_t n_splits, uint32_t every) {
    vk_attend a = case_attend(c, path, n_splits);
    vk_list   list;
    uint64_t  bytes = vk_attend_partial(device, &a);
    if (bytes) a.partial = area_take((uint32_t)(bytes / 4))->slice;
    vk_list_init(&list, &device->h);
    vk_attend_add(device, &list, &a);
    for (uint32_t i = 0; i < c->out->n; i++) words_of(c->out)[i] = GUARD;
    for (uint32_t i = 0; i < n_areas; i++) area_write(&areas[i]);
    OK(vk_run_list(device, list.at, list.n, &problem));
    vk_list_free(&list);
    for (uint32_t i = 0; i < n_areas; i++)
        if (&areas[i] != c->cache_area) area_read(&areas[i]);
    double   worst = 0, unit = vk_attend_path(device, &a) == ATTEND_MANY_MATRIX ? 5e-4 : 1.2e-7;
    uint32_t wrong = 0, n_head = a.n_head, touched = 0;
    for (uint32_t run = 0; run < c->n_run; run++)
        for (uint32_t i = 0; i < c->run[run].n_col; i++)
            for (uint32_t h = 0; h < n_head; h++) {
                uint32_t     col = c->run[run].first_col + i;
                const float *got = floats_of(c->out) + (size_t)col * c->ld_out + h * c->dv;
                double       want[1024], allowed;
                if ((col * n_head + h) % every) continue;
                attend_exact(c, run, i, h, unit, want, &allowed);
                for (uint32_t d = 0; d < c->dv; d++) {
                    double off = fabs((double)got[d] - want[d]) / allowed;
                    if (!(off <= worst)) worst = off == off ? off : 1e9;
                    wrong += !(off <= 1);
                    if (!(off <= 1) && getenv("NOVA_TELL") && wrong < 12) printf("run %u col %u of %u at %u head %u dim %u: %g not %g\n", run, i, c->run[run].n_col, c->run[run].position + i, h, d, got[d], want[d]);
                }
            }
    for (uint32_t col = 0; col < c->n_col; col++)
        for (uint32_t i = n_head * c->dv; i < c->ld_out; i++) touched += words_of(c->out)[col * c->ld_out + i] != GUARD;
    CHECK(wrong == 0 && touched == 0,
          "%s: heads %u x %u of %u/%u, types %d %d, %u runs, %u columns from %u, %u dropped, %u sinks, window %u, cap %g, learned %d, splits %u: "
          "%u wrong, worst by %g; %u of the pad", path_names[path], c->n_head_kv, c->n_rep, c->dk, c->dv, c->k_f32, c->v_f32, c->n_run,
          c->n_col, c->run[0].position, c->run[0].n_dropped, c->run[0].n_sinks, c->window, (double)c->cap, c->learned, n_splits, wrong,
          worst, touched);
    if (getenv("NOVA_TELL")) printf("%s %u/%u: worst %g\n", path_names[path], c->dk, c->dv, worst);
    if (bytes) free(areas[--n_areas].words);
}

/* ---- Cases ---- */

/* Each shape is another pipeline, which takes a driver on a CPU a second: few of them, and many problems of each. */
typedef struct attend_form {
    uint32_t n_head_kv, n_rep, dk, dv;
    bool     k_f32, v_f32;
} attend_form;

static const attend_form forms[] = {
    { 2, 4, 64, 64, false, false }, { 1, 1, 128, 128, false, false }, { 2, 3, 80, 80, false, false }, { 1, 8, 96, 96, false, true },
    { 1, 2, 256, 256, false, false }, { 3, 3, 20, 20, false, false }, { 1, 5, 40, 24, true, false }, { 2, 1, 16, 33, false, false },
    { 1, 7, 7, 3, false, false }, { 1, 32, 32, 16, true, true }, { 2, 2, 100, 192, false, false }, { 1, 12, 1, 1, false, true },
};
/* What a driver on a CPU compiles in time. */
static const attend_form matrix_forms[] = {
    { 2, 3, 20, 20, false, false }, { 2, 4, 64, 64, false, false }, { 1, 5, 40, 24, true, false }, { 1, 2, 136, 80, false, false },
    { 1, 7, 7, 33, false, true },
};

static void random_case(attend_case *c, const attend_form *form) {
    memset(c, 0, sizeof *c);
    c->n_head_kv = form->n_head_kv, c->n_rep = form->n_rep, c->dk = form->dk, c->dv = form->dv;
    c->k_f32 = form->k_f32, c->v_f32 = form->v_f32;
    c->neox    = test_below(2) != 0;
    c->n_rot   = test_below(2) ? c->dk / 2 * 2 : 2 * test_below(c->dk / 2 + 1);
    c->scale   = 1 / sqrtf((float)c->dk);
    c->window  = test_below(3) ? 0 : 1 + test_below(300);
}

/* A text of `position` tokens, to which n_col come; one in three has dropped some. */
static void random_run(text_case *r, uint32_t position, uint32_t n_col) {
    r->position = position, r->n_col = n_col;
    r->n_sinks = test_below(4) ? test_below(8) : test_below(150);
    if (r->n_sinks + 2 < position && test_below(3) == 0) r->n_dropped = 1 + test_below(position - r->n_sinks - 1);
}

/* A form's problems; soft caps, learned sinks and the number of splits choose among pipelines, too. */
static void test_form(attend_path path, const attend_form *form, int rounds, uint32_t most_cols, uint32_t most_position) {
    bool     capped = test_below(3) == 0, learned = test_below(3) == 0;
    uint32_t splits = test_below(2) ? 0 : 1 + test_below(9);
    for (int round = 0; round < rounds; round++) {
        attend_case c;
        random_case(&c, form);
        c.n_run   = 1 + test_below(MOST_RUNS);
        c.cap     = capped ? 1 + 49 * fabsf(test_uniform()) : 0;
        c.learned = learned;
        for (uint32_t i = 0; i < c.n_run; i++)
            random_run(&c.run[i], test_below(3) ? test_below(200) : test_below(most_position), 1 + test_below(most_cols));
        case_open(&c, 2, 2);
        check_attend(&c, path, splits, c.n_col > 8 ? 13 : 1);
        case_close(&c);
    }
}

/* Scores of 1e4, and their negatives. */
static void test_large(attend_path path) {
    for (int round = 0; round < 3; round++) {
        attend_case c;
        random_case(&c, &forms[0]);
        c.scale = 1, c.cap = round == 2 ? 30.0f : 0, c.window = 0, c.n_run = 1;
        random_run(&c.run[0], 150, 5);
        case_open(&c, 100, 20);
        check_attend(&c, path, 1, 1);
        case_close(&c);
    }
}

/* ---- Storing ---- */

static void check_store(attend_case *c) {
    uint32_t  n_head = c->n_head_kv * c->n_rep, ld_k = pad32(c->n_head_kv * c->dk), ld_v = pad32(c->n_head_kv * c->dv);
    area     *k = area_take(c->n_col * ld_k), *v = area_take(c->n_col * ld_v);
    uint32_t  n = c->cache_area->n, wrong = 0;
    float    *before = (float *)malloc(c->q->n * sizeof *before);
    uint32_t *expect = (uint32_t *)malloc(n * sizeof *expect);
    vk_store  s;
    vk_list   list;
    if (!before || !expect) exit(2);
    memset(&s, 0, sizeof s);
    for (uint32_t i = 0; i < k->n; i++) floats_of(k)[i] = test_uniform() * (test_below(9) ? 10 : 1e-6f);
    for (uint32_t i = 0; i < v->n; i++) floats_of(v)[i] = test_below(9) ? test_uniform() * 10 : ldexpf(test_uniform(), -(int)test_below(30));
    if (v->n > 4) floats_of(v)[1] = 65519.9f, floats_of(v)[2] = -65520.0f, floats_of(v)[3] = 1e30f, floats_of(v)[0] = -0.0f;
    memcpy(before, floats_of(c->q), c->q->n * sizeof *before);
    memcpy(expect, words_of(c->cache_area), n * sizeof *expect);
    s.now = &c->now, s.cache = &c->cache, s.q = c->q->slice, s.k = k->slice, s.v = v->slice;
    s.ld_q = c->ld_q, s.ld_k = ld_k, s.ld_v = ld_v, s.n_col = c->n_col + test_below(10);
    s.n_head = n_head, s.n_rot = c->n_rot, s.neox = c->neox, s.barrier = true;
    vk_list_init(&list, &device->h);
    vk_store_add(device, &list, &s);
    for (uint32_t i = 0; i < n_areas; i++) area_write(&areas[i]);
    OK(vk_run_list(device, list.at, list.n, &problem));
    vk_list_free(&list);
    for (uint32_t i = 0; i < n_areas; i++) area_read(&areas[i]);

    const float *words = (const float *)(const void *)words_of(c->now_area);
    for (uint32_t col = 0; col < c->n_col; col++)
        for (uint32_t i = 0; i < c->ld_q; i++) {
            uint32_t h = i / c->dk;
            double   want = (double)before[(size_t)col * c->ld_q + i], got = (double)floats_of(c->q)[(size_t)col * c->ld_q + i];
            if (h < n_head) want = turned_element(c, before + (size_t)col * c->ld_q + h * c->dk, words + c->now.turn + col * c->n_rot, i % c->dk);
            wrong += !(fabs(got - want) <= 1e-6);
        }
    CHECK(wrong == 0, "%u of the queries are wrong", wrong);

    uint32_t *cache = words_of(c->cache_area), bad_k = 0, bad_v = 0;
    for (uint32_t run = 0; run < c->n_run; run++)
        for (uint32_t i = 0; i < c->run[run].n_col; i++)
            for (uint32_t h = 0; h < c->n_head_kv; h++) {
                uint32_t col = c->run[run].first_col + i, at = c->run[run].position + i, page = page_at(&c->run[run], at / 64);
                for (uint32_t d = 0; d < c->dk; d++) {
                    uint32_t w    = k_word(c, page, h, d, at % 64);
                    double   want = turned_element(c, floats_of(k) + (size_t)col * ld_k + h * c->dk, words + c->now.turn + col * c->n_rot, d);
                    float    got  = c->k_f32 ? load_f32(&cache[w]) : half_to_float((uint16_t)(d & 1 ? cache[w] >> 16 : cache[w]));
                    bad_k += !(fabs((double)got - want) <= (c->k_f32 ? 2e-6 : fabs(want) * 4.9e-4 + 2e-6));
                    expect[w] = cache[w];
                }
                for (uint32_t d = 0; d < c->dv; d++)
                    put_element(&expect[v_word(c, page, h, d, at % 64)], c->v_f32, d, floats_of(v)[(size_t)col * ld_v + h * c->dv + d]);
                if (!c->k_f32 && c->dk % 2) bad_k += cache[k_word(c, page, h, c->dk - 1, at % 64)] >> 16 != 0;
            }
    for (uint32_t i = 0; i < n; i++) bad_v += cache[i] != expect[i];
    CHECK(bad_k == 0 && bad_v == 0, "store %u x %u/%u, types %d %d, %u columns, n_rot %u, neox %d: %u keys wrong, %u words elsewhere", c->n_head_kv,
          c->dk, c->dv, c->k_f32, c->v_f32, c->n_col, c->n_rot, c->neox, bad_k, bad_v);
    free(before);
    free(expect);
}

static void test_store(int rounds) {
    for (int round = 0; round < rounds; round++) {
        attend_case c;
        random_case(&c, &forms[round % (int)COUNT_OF(forms)]);
        c.n_run = 1 + test_below(MOST_RUNS);
        for (uint32_t i = 0; i < c.n_run; i++) random_run(&c.run[i], test_below(300), 1 + test_below(test_below(3) ? 3 : 80));
        case_open(&c, 2, 2);
        check_store(&c);
        case_close(&c);
    }
}

/* ---- Times ---- */

static void bench_one(attend_path path, uint32_t dim, uint32_t n_col, uint32_t position, uint32_t times) {
    attend_case c;
    memset(&c, 0, sizeof c);
    c.n_head_kv = 4, c.n_rep = 4, c.dk = c.dv = dim, c.n_rot = dim, c.neox = true, c.n_run = 1;
    c.scale = 1 / sqrtf((float)dim);
    c.run[0].position = position, c.run[0].n_col = n_col;
    case_open(&c, 2, 2);
    vk_attend a = case_attend(&c, path, 0);
    vk_list   list;
    a.n_col = n_col;
    uint64_t bytes = vk_attend_partial(device, &a);
    if (bytes) a.partial = area_take((uint32_t)(bytes / 4))->slice;
    vk_list_init(&list, &device->h);
    vk_attend_add(device, &list, &a);
    for (uint32_t i = 0; i < n_areas; i++) area_write(&areas[i]);
    OK(vk_run_list(device, list.at, list.n, &problem));
    uint32_t n = list.n;
    for (uint32_t i = 1; i < times; i++)
        for (uint32_t j = 0; j < n; j++) vk_list_add(&list, &list.at[j]);
    double best = 1e30, cpu = 1e30;
    for (int i = 0; i < 5; i++) {
        double  start = (double)clock_ns();
        clock_t start_cpu = clock();
        OK(vk_run_list(device, list.at, list.n, &problem));
        best = fmin(best, ((double)clock_ns() - start) / times);
        cpu  = fmin(cpu, (double)(clock() - start_cpu) * 1e9 / CLOCKS_PER_SEC / times);
    }
    double pairs = 16.0 * n_col * (position + n_col / 2.0);
    printf("%-12s dim %3u, %3u columns at %4u: %9.1f us, %6.2f GFLOP/s; on all processors %9.1f us\n", path_names[path], dim, n_col,
           position, best * 1e-3, pairs * 4 * dim / best, cpu * 1e-3);
    vk_list_free(&list);
    case_close(&c);
}

static void bench(void) {
    if (getenv("NOVA_MATRIX")) {
        for (uint32_t dim = 64; dim <= 256; dim *= 2) {
            double start = (double)clock_ns();
            bench_one(ATTEND_MANY_MATRIX, dim, 128, 0, 1);
            printf("all %.1f s\n", ((double)clock_ns() - start) * 1e-9);
        }
        return;
    }
    for (uint32_t dim = 64; dim <= 128; dim += 64) {
        bench_one(ATTEND_FEW, dim, 1, 100, 20);
        bench_one(ATTEND_FEW, dim, 1, 2000, 20);
        for (int path = ATTEND_FEW; path <= ATTEND_MANY_MATRIX; path++) bench_one((attend_path)path, dim, 128, 0, 2);
        for (int path = ATTEND_FEW; path <= ATTEND_MANY_MATRIX; path++) bench_one((attend_path)path, dim, 128, 1000, 1);
    }
}

/* Unrolled as for a GPU, it takes a CPU's driver many seconds to compile. */
static void test_matrix(bool slow, bool as_cpu) {
    vk_matrix m;
    if (!attend_matrix(device, &m)) {
        SKIP("no cooperative matrix of halves");
        return;
    }
    size_t n = slow ? COUNT_OF(matrix_forms) : COUNT_OF(forms);
    for (size_t i = 0; i < n; i += slow && !as_cpu ? 3 : 1) test_form(ATTEND_MANY_MATRIX, slow ? &matrix_forms[i] : &forms[i], 3, 40, 600);
    if (as_cpu || !slow) test_large(ATTEND_MANY_MATRIX);
}

/* The shapes of workgroups differ between GPUs and CPUs: each device runs both. */
static void run_all(void) {
    VkPhysicalDeviceType own = device->caps.type;
    bool                 slow = own == VK_PHYSICAL_DEVICE_TYPE_CPU;
    for (int as_cpu = 0; as_cpu < 2; as_cpu++) {
        device->caps.type = as_cpu ? VK_PHYSICAL_DEVICE_TYPE_CPU : VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU;
        test_store(as_cpu ? 20 : 40);
        for (int path = ATTEND_FEW; path <= ATTEND_MANY_F32; path++) {
            for (size_t i = 0; i < COUNT_OF(forms); i += slow && as_cpu ? 2 : 1) test_form((attend_path)path, &forms[i], 3, path == ATTEND_FEW ? 3 : 40, 3000);
            test_large((attend_path)path);
        }
        test_matrix(slow, as_cpu != 0);
    }
    device->caps.type = own;
}

int main(int argc, char **argv) {
    host h = host_init(NULL, NULL, NULL, NULL);
    test_begin(1);
    device = guarded_device(&h, 0, 0, false);
    if (!device) return test_end();
    printf("%s\n", device->caps.name);
    OK(vk_take(device, VK_USE_DEVICE, 64u << 20, &all, &problem));
    if (argc > 1 && !strcmp(argv[1], "bench")) bench();
    else run_all();
    vk_device_close(device);
    return test_end();
}

#endif
