/* Sessions: feeding, choosing, scoring, batches. The public interface over an engine.
 *
 * A chosen token is not evaluated at once but by the call that needs what follows it: it is `pending` until then, so that
 * several sessions' tokens can go in one pass, and the last token of an answer costs nothing. */
#include "session.h"

#define DEFAULT_SINKS  4

/* ---- Opening ---- */

/* The session and everything it owns, in one block; with base NULL only how much it is. */
static size_t session_layout(nova_session *s, uint8_t *base, const nova_engine *e) {
    size_t at = 0, n_ctx = e->plan.n_ctx, n_vocab = e->model->n_vocab;
    carve(base, &at, sizeof *s);
    uint32_t *table  = (uint32_t *)(void *)carve(base, &at, kv_pages_for(e->plan.n_ctx) * sizeof(uint32_t));
    int32_t  *ids    = (int32_t *)(void *)carve(base, &at, n_ctx * sizeof(int32_t));
    float    *logits = (float *)(void *)carve(base, &at, n_vocab * sizeof(float));
    uint8_t  *scratch = carve(base, &at, sampler_bytes((uint32_t)n_vocab));
    size_t    text_size = tokenizer_max_piece(e->model->tok) + 8;   /* and what is held back, and an end */
    char     *text   = (char *)carve(base, &at, text_size);
    if (!base) return at;
    s->seq.table    = table;
    s->seq.capacity = kv_pages_for(e->plan.n_ctx);
    s->ids          = ids;
    s->logits       = logits;
    s->text         = text;
    s->text_size    = text_size;
    sampler_place(&s->sample, scratch, (uint32_t)n_vocab);
    return at;
}

static nova_result session_check(const nova_engine *e, const nova_session_desc *d, uint32_t *n_sinks, nova_error *error) {
    if (e->n_open >= e->plan.n_sessions)
        return fail(error, NOVA_ERROR_ARGUMENT, "the engine was opened for %u sessions, all of which are open", e->plan.n_sessions);
    *n_sinks = d->n_sinks == NOVA_NO_SINKS ? 0 : d->n_sinks ? d->n_sinks : DEFAULT_SINKS;
    if (d->limit != NOVA_LIMIT_SLIDE) return NOVA_OK;
    if (d->n_sinks == 0) *n_sinks = (uint32_t)size_min(*n_sinks, e->plan.n_ctx / 4);   /* the default yields to a tiny context */
    if (*n_sinks > e->plan.n_ctx - 2)
        return fail(error, NOVA_ERROR_ARGUMENT, "%u sinks leave no window in a context of %u tokens", *n_sinks, e->plan.n_ctx);
    return NOVA_OK;
}

NOVA_API nova_session *nova_session_open(nova_engine *engine, const nova_session_desc *desc, nova_error *error) {
    nova_session_desc none;
    memset(&none, 0, sizeof none);
    if (!engine) return NULL;   /* the error of the failed open stands */
    if (!desc) desc = &none;
    error_clear(error);
    uint32_t n_sinks = 0;
    if (session_check(engine, desc, &n_sinks, error) != NOVA_OK) return NULL;
    size_t   bytes = session_layout(NULL, NULL, engine) + CACHE_LINE;
    uint8_t *block = (uint8_t *)mem_zalloc(&engine->h, bytes);
    if (!block) {
        fail_memory(error, bytes, "a session");
        return NULL;
    }
    nova_session *s = (nova_session *)(void *)block;
    session_layout(s, block, engine);
    s->engine  = engine;
    s->desc    = *desc;
    s->bytes   = bytes;
    s->n_sinks = n_sinks;
    s->seq.n_sinks = n_sinks;
    if (sampler_set(&s->sample, &desc->sampler, error) != NOVA_OK) {
        mem_free(&engine->h, block, bytes);
        return NULL;
    }
    engine->n_open++;
    nova_session_reset(s);
    return s;
}

NOVA_API nova_session *nova_session_fork(const nova_session *session, nova_error *error) {
    if (!session) {
        no_session(error);
        return NULL;
    }
    nova_session *s = nova_session_open(session->engine, &session->desc, error);
    if (!s) return NULL;
    size_t n_vocab = session->engine->model->n_vocab;
    kv_share(&s->engine->kv, &s->seq, &session->seq);
    memcpy(s->ids, session->ids, (size_t)kv_held(&s->seq) * sizeof *s->ids);
    memcpy(s->logits, session->logits, n_vocab * sizeof *s->logits);
    memcpy(s->choices, session->choices, sizeof s->choices);
    memcpy(s->held_back, session->held_back, sizeof s->held_back);
    s->n_sinks     = session->n_sinks;
    s->hash        = session->hash;
    s->pending     = session->pending;
    s->has_logits  = session->has_logits;
    s->sparse      = session->sparse;
    s->n_choices   = session->n_choices;
    s->only_choice = session->only_choice;
    s->n_held_back = session->n_held_back;
    s->sample.set    = session->sample.set;
    s->sample.random = session->sample.random;
    return s;
}

NOVA_API void nova_session_close(nova_session *session) {
    if (!session) return;
    nova_engine *e = session->engine;
    kv_truncate(&e->kv, &session->seq, 0);
    e->n_open--;
    mem_free(&e->h, session, session->bytes);
}

NOVA_API void nova_session_reset(nova_session *session) {
    if (!session) return;
    kv_truncate(&session->engine->kv, &session->seq, 0);
    session->pending     = NO_TOKEN;
    session->has_logits  = false;
    session->only_choice = NO_TOKEN;
    session->hash        = 0;
    session->n_held_back = 0;
    sampler_restart(&session->sample);
}

NOVA_API nova_result nova_session_set_sampler(nova_session *session, const nova_sampler *settings, nova_error *error) {
    if (!session || !settings) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_set_sampler: an argument is NULL");
    error_clear(error);
    TRY(sampler_set(&session->sample, settings, error));
    sampler_restart(&session->sample);
    return NOVA_OK;
}

static nova_result no_session(nova_error *error) {
    if (error && error->code < 0) return error->code;
    return fail(error, NOVA_ERROR_ARGUMENT, "there is no session");
}

/* ---- Evaluating ---- */

static uint64_t hash_ids(uint64_t hash, const int32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u;
    return hash;
}

static bool pass_cancelled(void *user) {
    const nova_engine *e = (const nova_engine *)user;
    for (uint32_t i = 0; i < e->now.n_run; i++)
        if (atomic_load_relaxed(&e->run_sessions[i]->cancel)) return true;
    return false;
}

/* Consumes a session's wish to be cancelled. */
static bool take_cancel(nova_session *s) { return atomic_exchange(&s->cancel, 0) != 0; }

static void pass_begin(nova_engine *e) {
    memset(&e->now, 0, sizeof e->now);
    e->now.ids  = e->ids;
    e->now.runs = e->runs;
    e->cpu.cancelled      = pass_cancelled;
    e->cpu.cancelled_user = e;
}

/* Adds a session's tokens to the pass: the pending one, if there is one, and n others. The last n_out of them get logits.
 * Their pages are reserved. */
static void pass_add(nova_engine *e, nova_session *s, const int32_t *ids, uint32_t n, uint32_t n_out) {
    pass_run *run = &e->runs[e->now.n_run];
    run->seq       = &s->seq;
    run->first_col = e->now.n_col;
    run->first_out = e->now.n_out;
    run->n_out     = n_out;
    if (s->pending != NO_TOKEN) e->ids[e->now.n_col++] = s->pending;
    if (n) memcpy(e->ids + e->now.n_col, ids, n * sizeof *ids);
    e->now.n_col += n;
    e->now.n_out += n_out;
    run->n_col = e->now.n_col - run->first_col;
    e->run_sessions[e->now.n_run++] = s;
}

/* The body of the pass has run: its tokens are now part of their sessions. */
static void pass_commit(nova_engine *e) {
    for (uint32_t i = 0; i < e->now.n_run; i++) {
        nova_session   *s   = e->run_sessions[i];
        const pass_run *run = &e->runs[i];
        const int32_t  *ids = e->ids + run->first_col;
        memcpy(s->ids + kv_held(&s->seq), ids, run->n_col * sizeof *ids);
        s->hash = hash_ids(s->hash, ids, run->n_col);
        s->seq.n_tokens += run->n_col;
        s->pending    = NO_TOKEN;
        s->has_logits = false;
    }
}

/* Runs the body of the pass, on the CPU as far as it goes, then on GPUs. */
static nova_result run_body(nova_engine *e, uint32_t n_choices, nova_error *error) {
    uint32_t split = gpu_first_op(e->gpu, &e->prog);
    if (split > 0 && cpu_body(&e->cpu, &e->now, (uint32_t)size_min(split, e->prog.n_body)) != NOVA_OK)
        return fail(error, NOVA_CANCELLED, "cancelled");
    if (!e->gpu) return NOVA_OK;
    return gpu_body(e->gpu, &e->now, n_choices, e->cpu.buf[BUF_X], e->prog.width[BUF_X], e->cpu.cancelled, e->cpu.cancelled_user, error);
}

static nova_result run_head(nova_engine *e, uint32_t first, uint32_t n, const float **logits, size_t *ld, nova_error *error) {
    if (e->gpu) return gpu_head(e->gpu, first, n, logits, ld, e->cpu.cancelled, e->cpu.cancelled_user, error);
    *logits = e->cpu.buf[BUF_LOGITS];
    *ld     = e->prog.width[BUF_LOGITS];
    return cpu_head(&e->cpu, first, n) == NOVA_OK ? NOVA_OK : fail(error, NOVA_CANCELLED, "cancelled");
}

/* The logits of every gathered column, window by window. `fn` NULL: into the sessions. */
static nova_result pass_logits(nova_engine *e, nova_logits_fn fn, void *user, size_t first_index, nova_error *error) {
    size_t n_vocab = e->model->n_vocab;
    for (uint32_t r = 0, at = 0; at < e->now.n_out;) {
        uint32_t n = (uint32_t)size_min(e->plan.n_logits, e->now.n_out - at);
        const float *window = NULL;
        size_t       ld     = 0;
        TRY(run_head(e, at, n, &window, &ld, error));
        for (uint32_t i = 0; i < n; i++) {
            const float *logits = window + i * ld;
            while (at + i >= e->runs[r].first_out + e->runs[r].n_out) r++;
            nova_session *s = e->run_sessions[r];
            if (at + i + 1 == e->runs[r].first_out + e->runs[r].n_out) {
                memcpy(s->logits, logits, n_vocab * sizeof *logits);
                s->has_logits = true;
                s->sparse     = false;
            }
            if (fn && !fn(user, first_index + at + i, logits)) return fail(error, NOVA_CANCELLED, "cancelled");
        }
        at += n;
    }
    return NOVA_OK;
}

/* ---- Room ---- */

/* Drops so many of a sliding session's tokens that n further ones fit. */
static void slide(nova_session *s, uint32_t n) {
    int64_t  n_ctx = s->engine->plan.n_ctx, held = kv_held(&s->seq), window = held - s->n_sinks;
    int64_t  over  = held + n - n_ctx;
    if (over <= 0) return;
    /* In blocks of a page, so that the prompt's start is not dropped a token at a time; a tiny window goes by quarters. */
    int64_t block = (int64_t)size_min(KV_PAGE, (size_t)(n_ctx - s->n_sinks + 3) / 4);
    int64_t drop  = (over + block - 1) / block * block;
    if (drop >= window) drop = over;
    kv_drop(&s->engine->kv, &s->seq, (uint32_t)drop);
    memmove(s->ids + s->n_sinks, s->ids + s->n_sinks + drop, (size_t)(window - drop) * sizeof *s->ids);
}

/* Most tokens that room is made for at once: a sliding session must keep part of its window in front of them. Neither the batch nor
 * a device's pace decides it, since what was dropped shows in the logits. */
#define MOST_AT_ONCE 512
static size_t most_at_once(const nova_session *s) {
    return s->desc.limit == NOVA_LIMIT_SLIDE ? size_max(1, size_min(MOST_AT_ONCE, (s->engine->plan.n_ctx - s->n_sinks) / 2)) : SIZE_MAX;
}

/* Most tokens of a session that go into one pass. */
static size_t most_in_pass(const nova_session *s) { return size_min(s->engine->plan.n_batch, gpu_columns(s->engine->gpu)); }

static nova_result check_room(const nova_session *s, int64_t held, size_t n, nova_error *error) {
    uint32_t n_ctx = s->engine->plan.n_ctx;
    if (s->desc.limit == NOVA_LIMIT_SLIDE || (uint64_t)held + n <= n_ctx) return NOVA_OK;
    if (held == 0)
        return fail(error, NOVA_ERROR_CONTEXT_FULL, "%zu tokens do not fit the context of %u", n, n_ctx);
    return fail(error, NOVA_ERROR_CONTEXT_FULL, "%zu more tokens behind %lld do not fit the context of %u", n, (long long)held,
                n_ctx);
}

static nova_result check_ids(const nova_session *s, const int32_t *ids, size_t n, nova_error *error) {
    uint32_t n_vocab = s->engine->model->n_vocab;
    if (!ids || n == 0) return fail(error, NOVA_ERROR_ARGUMENT, "there are no tokens to evaluate");
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= n_vocab)
            return fail(error, NOVA_ERROR_ARGUMENT, "token %zu is %d, not 0 to %u", i, ids[i], n_vocab - 1);
    return NOVA_OK;
}

/* Copies a page on both sides. */
static nova_result copy_page(nova_engine *e, uint32_t from, uint32_t to, nova_error *error) {
    for (uint32_t il = 0; il < e->kv.n_layer; il++) {
        const kv_layer *l = &e->kv.layers[il];
        if (l->pages) memcpy(l->pages + to * l->page_bytes, l->pages + from * l->page_bytes, l->page_bytes);
    }
    return gpu_copy_page(e->gpu, from, to, error);
}

static nova_result no_page(uint32_t n, nova_error *error) {
    return fail(error, NOVA_ERROR_CONTEXT_FULL, "no cache page is left for %u tokens", n);
}

/* A page that others have too is copied before this session writes to it; where that fails, nothing has changed. */
static nova_result own_last_page(nova_session *s, uint32_t n, nova_error *error) {
    kv_pool *kv = &s->engine->kv;
    uint32_t from, to;
    if (!kv_shares_last(kv, &s->seq, &from)) return NOVA_OK;
    if (!kv_page_take(kv, &to)) return no_page(n, error);
    nova_result result = copy_page(s->engine, from, to, error);
    if (result == NOVA_OK) kv_page_place(kv, &s->seq, to);
    else kv_page_return(kv, to);
    return result;
}

static nova_result session_reserve(nova_session *s, uint32_t n, nova_error *error) {
    TRY(check_room(s, kv_held(&s->seq), n, error));
    slide(s, n);
    TRY(own_last_page(s, n, error));
    return kv_reserve(&s->engine->kv, &s->seq, n) ? NOVA_OK : no_page(n, error);
}

/* ---- Feeding ---- */

typedef struct feed {
    const int32_t *ids;
    size_t         n;
    nova_logits_fn fn;      /* NULL: logits of the last token only, into the session */
    void          *user;
} feed;

static nova_result not_a_number(const nova_session *s, nova_error *error) {
    return fail(error, NOVA_ERROR_NUMBER, "the logits behind token %lld are no finite numbers", (long long)s->seq.n_tokens - 1);
}

/* One pass: the pending token, if there is one, and some of up to `most` ids. *taken is how many of these. */
static nova_result feed_pass(nova_session *s, const feed *f, size_t at, size_t most, size_t *taken, nova_error *error) {
    nova_engine *e = s->engine;
    uint32_t     n = (uint32_t)size_min(most, most_in_pass(s) - (s->pending != NO_TOKEN));
    pass_begin(e);
    pass_add(e, s, f->ids + at, n, f->fn ? n : at + n == f->n);
    TRY(run_body(e, 0, error));
    pass_commit(e);
    *taken = n;
    TRY(pass_logits(e, f->fn, f->user, at, error));
    if (s->has_logits && !vector_finite(e->cpu.level, s->logits, e->model->n_vocab)) {
        s->has_logits = false;
        return not_a_number(s, error);
    }
    return NOVA_OK;
}

static nova_result feed_all(nova_session *s, const feed *f, nova_error *error) {
    for (size_t at = 0, taken = 0, end = 0; at < f->n; at += taken) {
        if (take_cancel(s)) return fail(error, NOVA_CANCELLED, "cancelled");
        if (at == end) {
            size_t pending = s->pending != NO_TOKEN;   /* of the first pass, alone where there is room for one */
            end = at + size_min(f->n - at, most_at_once(s) - pending);
            TRY(session_reserve(s, (uint32_t)(end - at + pending), error));
        }
        nova_result result = feed_pass(s, f, at, end - at, &taken, error);
        if (result == NOVA_CANCELLED) take_cancel(s);
        if (result != NOVA_OK) return result;
        if (s->desc.progress && !s->desc.progress(s->desc.progress_user, "prompt", at + taken, f->n))
            return fail(error, NOVA_CANCELLED, "cancelled");
    }
    return NOVA_OK;
}

static nova_result feed_checked(nova_session *s, const int32_t *ids, size_t n, nova_logits_fn fn, void *user, nova_error *error) {
    if (!s) return no_session(error);
    error_clear(error);
    TRY(check_ids(s, ids, n, error));
    TRY(check_room(s, kv_held(&s->seq), n + (s->pending != NO_TOKEN), error));
    feed f;
    f.ids  = ids;
    f.n    = n;
    f.fn   = fn;
    f.user = user;
    s->n_held_back = 0;   /* what comes now is another text than the token that was cut */
    return feed_all(s, &f, error);
}

NOVA_API nova_result nova_session_feed(nova_session *session, const int32_t *ids, size_t n, nova_error *error) {
    return feed_checked(session, ids, n, NULL, NULL, error);
}

NOVA_API nova_result nova_session_score(nova_session *session, const int32_t *ids, size_t n, nova_logits_fn fn, void *user,
                                        nova_error *error) {
    if (!fn) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_score: no function for the logits");
    return feed_checked(session, ids, n, fn, user, error);
}

/* ---- Setting ---- */

/* How many of the ids the cache holds already as their start, and must keep. */
static size_t common_start(const nova_session *s, const int32_t *ids, size_t n) {
    size_t held = (size_t)kv_held(&s->seq), total = (size_t)s->seq.n_tokens, common = 0;
    if (s->seq.n_dropped) return n > total && hash_ids(0, ids, total) == s->hash ? total : 0;
    while (common < held && common < n && s->ids[common] == ids[common]) common++;
    return common;
}

NOVA_API nova_result nova_session_set(nova_session *session, const int32_t *ids, size_t n, nova_error *error) {
    nova_session *s = session;
    if (!s) return no_session(error);
    error_clear(error);
    TRY(check_ids(s, ids, n, error));
    TRY(check_room(s, 0, n, error));
    size_t common = common_start(s, ids, n);
    s->pending = NO_TOKEN;
    if (common == n && (int64_t)n == s->seq.n_tokens && s->has_logits) return NOVA_OK;
    if (common == n) common--;   /* the last token's logits are wanted */
    if ((int64_t)common < s->seq.n_tokens) {
        kv_truncate(&s->engine->kv, &s->seq, (int64_t)common);
        s->hash       = hash_ids(0, ids, common);
        s->has_logits = false;
    }
    return feed_checked(s, ids + common, n - common, NULL, NULL, error);
}

NOVA_API nova_result nova_session_chat(nova_session *session, const nova_chat *chat, nova_error *error) {
    nova_session *s = session;
    if (!s) return no_session(error);
    const nova_model *m = s->engine->model;
    size_t            n = 0;
    nova_error        ignored;
    nova_result result = nova_chat_tokenize(m, chat, NULL, 0, &n, error ? error : &ignored);
    if (result != NOVA_ERROR_TOO_SMALL) return result == NOVA_OK ? check_ids(s, NULL, 0, error) : result;
    int32_t *ids = (int32_t *)mem_alloc(&s->engine->h, n * sizeof *ids);
    if (!ids) return fail_memory(error, n * sizeof *ids, "the conversation's tokens");
    size_t capacity = n;
    result = nova_chat_tokenize(m, chat, ids, capacity, &n, error);
    if (result == NOVA_OK) result = nova_session_set(s, ids, n, error);
    mem_free(&s->engine->h, ids, capacity * sizeof *ids);
    return result;
}

/* ---- Choices instead of logits: what a GPU has sorted out ---- */

/* How many of the greatest logits choosing depends on; 0: all of them. A penalty moves recent tokens down, so as many more may
 * come up from below. */
static uint32_t wanted_choices(const nova_session *s) {
    const nova_sampler *set = &s->sample.set;
    uint32_t k = set->temperature == 0 ? 1 : set->top_k;
    if (k == 0 || k > GPU_MOST_CHOICES) return 0;
    if (set->repeat_penalty == 0 || set->repeat_penalty == 1) return k;
    uint32_t recent = set->repeat_last ? set->repeat_last : SAMPLE_RECENT;
    return set->repeat_penalty > 1 && recent <= GPU_MOST_CHOICES - k ? k + recent : 0;
}

static void take_choices_of(nova_session *s, const gpu_choices *c) {
    const gpu_choice *at = (const gpu_choice *)(const void *)(c + 1);
    if (wanted_choices(s) == 1) {   /* nothing is left to choose: the row of logits is not even made */
        s->only_choice = at->id < s->engine->model->n_vocab ? (int32_t)at->id : NO_TOKEN;
        s->has_logits  = s->only_choice != NO_TOKEN;
        return;
    }
    for (size_t i = 0; !s->sparse && i < s->engine->model->n_vocab; i++) s->logits[i] = -INFINITY;
    for (uint32_t i = 0; s->sparse && i < s->n_choices; i++) s->logits[s->choices[i]] = -INFINITY;
    s->n_choices = 0;
    for (uint32_t i = 0; i < c->n && i < GPU_MOST_CHOICES; i++) {
        if (at[i].id >= s->engine->model->n_vocab) continue;
        s->logits[at[i].id]           = at[i].logit;
        s->choices[s->n_choices++] = at[i].id;
    }
    s->sparse     = true;
    s->has_logits = s->n_choices > 0;
}

/* Gives every session of the pass what was chosen for it. */
static void spread_choices(nova_engine *e, nova_session *const *sessions, size_t n, nova_result *results) {
    for (uint32_t r = 0; r < e->now.n_run; r++) {
        const gpu_choices *c = gpu_get_choices(e->gpu, e->runs[r].first_out);
        nova_session      *s = e->run_sessions[r];
        if (!c->odd) take_choices_of(s, c);
        if (s->has_logits) continue;
        for (size_t i = 0; i < n; i++)
            if (sessions[i] == e->run_sessions[r]) results[i] = NOVA_ERROR_NUMBER;
    }
}

/* ---- Choosing ---- */

/* Appends a token's bytes to what was held back, and lets whole characters out. */
static void next_text(nova_session *s, int32_t id, bool end, nova_token *token) {
    size_t n = s->n_held_back;
    memcpy(s->text, s->held_back, n);
    n += tokenizer_piece(s->engine->model->tok, id, false, false, s->text + n, s->text_size - n - 1);
    s->n_held_back = end ? 0 : utf8_incomplete_tail(s->text, n);
    n -= s->n_held_back;
    memcpy(s->held_back, s->text + n, s->n_held_back);
    s->text[n]    = 0;
    token->id     = id;
    token->n_text = n;
    token->text   = s->text;
}

static nova_result choose(nova_session *s, nova_token *token, nova_error *error) {
    size_t  held   = (size_t)kv_held(&s->seq);
    size_t  wanted = s->sample.set.repeat_last ? s->sample.set.repeat_last : SAMPLE_RECENT;
    size_t  recent = size_min(held, wanted);
    int32_t id     = NO_TOKEN;
    float_mode mode = float_mode_enter();
    nova_result result = NOVA_OK;
    if (s->only_choice != NO_TOKEN) id = s->only_choice;
    else result = sampler_pick(&s->sample, s->logits, s->ids + held - recent, recent, &id, error);
    if (s->sparse || s->only_choice != NO_TOKEN) s->has_logits = false;   /* they are not all, and served their purpose */
    s->only_choice = NO_TOKEN;
    float_mode_leave(mode);
    if (result != NOVA_OK) return result;
    s->pending = id;
    bool end = !s->desc.ignore_end && tokenizer_is_end(s->engine->model->tok, id);
    next_text(s, id, end, token);
    return end ? NOVA_END : NOVA_OK;
}

/* Is the session ready to choose once its pending token is evaluated? Reserves the room for that. */
static nova_result prepare_next(nova_session *s, nova_error *error) {
    if (take_cancel(s)) return fail(error, NOVA_CANCELLED, "cancelled");
    if (s->pending == NO_TOKEN)
        return s->has_logits ? NOVA_OK : fail(error, NOVA_ERROR_ARGUMENT, "nothing was fed yet that a token could follow");
    return session_reserve(s, 1, error);
}

/* Logits of a pass, which cannot be cancelled any more. Where they fail, the pass's tokens stay pending: no session is left
 * between. */
static void finish_pass(nova_engine *e, nova_session *const *sessions, size_t n, nova_result *results) {
    if (e->gpu && gpu_get_choices(e->gpu, 0)) {
        pass_commit(e);
        spread_choices(e, sessions, n, results);
        return;
    }
    e->cpu.cancelled = NULL;
    nova_result logits = pass_logits(e, NULL, NULL, 0, &e->pass_error);
    if (logits == NOVA_OK) pass_commit(e);
    for (uint32_t r = 0; r < e->now.n_run; r++) e->run_sessions[r]->has_logits = logits == NOVA_OK;
    for (size_t i = 0; i < n; i++)
        if (results[i] == NOVA_OK && logits != NOVA_OK) results[i] = logits;
        else if (results[i] == NOVA_OK && !vector_finite(e->cpu.level, sessions[i]->logits, e->model->n_vocab)) {
            sessions[i]->has_logits = false;
            results[i] = NOVA_ERROR_NUMBER;
        }
}

/* Evaluates the pending tokens of all sessions whose result is OK, in one pass. A cancelled session leaves the pass, which
 * is then run again for the others. */
static void evaluate_pending(nova_session *const *sessions, size_t n, bool to_choose, nova_result *results) {
    nova_engine *e = sessions[0]->engine;
    uint32_t     k = 0;
    for (size_t i = 0; to_choose && i < n; i++) {
        uint32_t wanted = wanted_choices(sessions[i]);
        k         = (uint32_t)size_max(k, wanted);
        to_choose = wanted != 0;
    }
    if (!to_choose) k = 0;
    for (;;) {
        pass_begin(e);
        for (size_t i = 0; i < n; i++)
            if (results[i] == NOVA_OK && sessions[i]->pending != NO_TOKEN) pass_add(e, sessions[i], NULL, 0, 1);
        if (e->now.n_run == 0) return;
        nova_result body = run_body(e, k, &e->pass_error);
        if (body == NOVA_OK) break;
        for (size_t i = 0; i < n; i++)
            if (results[i] == NOVA_OK && (body != NOVA_CANCELLED || take_cancel(sessions[i]))) results[i] = body;
    }
    finish_pass(e, sessions, n, results);
}

/* The error of a result that came out of a pass. */
static nova_result pass_error(const nova_session *s, nova_result result, nova_error *error) {
    if (result == NOVA_ERROR_NUMBER) return not_a_number(s, error);
    return fail(error, result, "%s", result < 0 ? s->engine->pass_error.message : nova_result_text(result));
}

static nova_result next_checked(nova_session *const *sessions, size_t n, nova_token *tokens, nova_result *results,
                                nova_error *error) {
    nova_result first = NOVA_OK;   /* the first session's that failed, whose error is told */
    error_clear(error);
    for (size_t i = 0; i < n; i++) {
        memset(&tokens[i], 0, sizeof tokens[i]);
        tokens[i].id   = NO_TOKEN;
        tokens[i].text = "";
        results[i] = prepare_next(sessions[i], first == NOVA_OK ? error : NULL);
        if (first == NOVA_OK) first = results[i];
    }
    evaluate_pending(sessions, n, true, results);
    for (size_t i = 0; i < n; i++) {
        nova_error *where = first == NOVA_OK ? error : NULL;
        if (results[i] == NOVA_OK) results[i] = choose(sessions[i], &tokens[i], where);
        else if (first == NOVA_OK) pass_error(sessions[i], results[i], where);
        if (first == NOVA_OK && results[i] != NOVA_END) first = results[i];
    }
    return first;
}

NOVA_API nova_result nova_session_next_batch(nova_session *const *sessions, size_t n, nova_token *tokens,
                                             nova_result *results, nova_error *error) {
    if (!sessions || !n || !tokens || !results) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_next_batch: an argument is NULL");
    for (size_t i = 0; i < n; i++) {
        if (!sessions[i] || sessions[i]->engine != sessions[0]->engine)
            return fail(error, NOVA_ERROR_ARGUMENT, "session %zu is NULL or of another engine", i);
        for (size_t j = 0; j < i; j++)
            if (sessions[j] == sessions[i]) return fail(error, NOVA_ERROR_ARGUMENT, "sessions %zu and %zu are the same", j, i);
    }
    return next_checked(sessions, n, tokens, results, error);
}

NOVA_API nova_result nova_session_next(nova_session *session, nova_token *token, nova_error *error) {
    if (!session) return no_session(error);
    if (!token) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_next: no place for the token");
    nova_result result;
    nova_result first = next_checked(&session, 1, token, &result, error);
    return first == NOVA_OK ? result : first;
}

NOVA_API const float *nova_session_logits(nova_session *session, nova_error *error) {
    if (!session) return NULL;
    error_clear(error);
    nova_result result = prepare_next(session, error);
    if (result == NOVA_OK && session->pending != NO_TOKEN) {
        evaluate_pending(&session, 1, false, &result);
        if (result != NOVA_OK) pass_error(session, result, error);
    }
    return result == NOVA_OK ? session->logits : NULL;
}

NOVA_API void nova_session_cancel(nova_session *session) {
    if (session) atomic_store_release(&session->cancel, 1);
}

NOVA_API void nova_session_get_info(const nova_session *session, nova_session_info *info) {
    info->n_tokens  = (uint64_t)session->seq.n_tokens + (session->pending != NO_TOKEN);
    info->n_dropped = (uint64_t)session->seq.n_dropped;
    info->n_ctx     = session->engine->plan.n_ctx;
}
