/* Sessions as bytes. A head, then the held ids, the logits where there are any, and the pages in the order of the table: of each layer by layer, as
 * cpu_page.h lays them out, whatever device they come from. Little-endian; bytes come from anywhere and are checked before anything changes. */
#include "session.h"

#define STATE_MAGIC   0x3153564eu   /* "NVS1" */
#define STATE_VERSION 1u

typedef struct state_head {
    uint32_t magic, version;
    uint64_t n_bytes, hash;          /* of all; over all behind this field */
    uint64_t model;                  /* model_hash */
    uint32_t type_k, type_v;
    int64_t  n_tokens, n_dropped;
    uint64_t ids_hash, random;
    uint32_t n_sinks, has_logits;
    int32_t  pending;
    uint32_t n_held_back;
    char     held_back[4];
    uint32_t repeat_last;            /* the sampler's settings */
    uint32_t top_k;
    float    temperature, top_p, min_p, repeat_penalty;
    uint64_t seed;
} state_head;

#define STATE_HASHED offsetof(state_head, model)

/* Of what a model file is: its head, its sizes and a few of its weights. */
static uint64_t model_hash(const nova_model *m) {
    uint64_t hash = hash_bytes(m->g.data, (size_t)m->g.data_offset, STATE_MAGIC);
    for (uint32_t i = 0; i < m->g.n_tensors; i++) {
        const gguf_tensor *t = &m->g.tensors[i];
        size_t             n = size_min(64, (size_t)t->n_bytes);
        hash = hash_bytes(t->data, n, hash);
        hash = hash_bytes(t->data + (t->n_bytes - n) / 2, n, hash);
    }
    return hash;
}

static size_t bytes_of_page(const nova_engine *e) {
    size_t sum = 0;
    for (uint32_t il = 0; il < e->kv.n_layer; il++) sum += e->kv.layers[il].page_bytes;
    return sum;
}

/* ---- Saving ---- */

static state_head head_of(const nova_session *s) {
    const nova_engine  *e   = s->engine;
    const nova_sampler *set = &s->sample.set;
    state_head          h;
    memset(&h, 0, sizeof h);
    h.magic = STATE_MAGIC, h.version = STATE_VERSION;
    h.model    = model_hash(e->model);
    h.type_k   = e->plan.type_k, h.type_v = e->plan.type_v;
    h.n_tokens = s->seq.n_tokens, h.n_dropped = s->seq.n_dropped;
    h.ids_hash = s->hash, h.random = s->sample.random;
    h.n_sinks  = s->seq.n_sinks;
    h.has_logits  = s->has_logits && !s->sparse && s->only_choice == NO_TOKEN;
    h.pending     = s->pending;
    h.n_held_back = (uint32_t)s->n_held_back;
    memcpy(h.held_back, s->held_back, s->n_held_back);
    h.temperature = set->temperature, h.top_p = set->top_p, h.min_p = set->min_p, h.repeat_penalty = set->repeat_penalty;
    h.top_k = set->top_k, h.repeat_last = set->repeat_last, h.seed = set->seed;
    h.n_bytes = sizeof h + (uint64_t)kv_held(&s->seq) * sizeof(int32_t) + (h.has_logits ? e->model->n_vocab * sizeof(float) : 0) +
                (uint64_t)kv_used_pages(&s->seq) * bytes_of_page(e);
    return h;
}

static nova_result save_pages(nova_session *s, uint8_t *to, nova_error *error) {
    nova_engine *e = s->engine;
    uint32_t     n = kv_used_pages(&s->seq);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t il = 0; il < e->kv.n_layer; to += e->kv.layers[il++].page_bytes) {
            const kv_layer *l = &e->kv.layers[il];
            if (l->pages) memcpy(to, l->pages + s->seq.table[i] * l->page_bytes, l->page_bytes);
            else TRY(gpu_page_get(e->gpu, &e->prog, il, s->seq.table[i], to, error));
        }
    return NOVA_OK;
}

NOVA_API nova_result nova_session_save(nova_session *session, void *data, size_t capacity, size_t *n, nova_error *error) {
    nova_session *s = session;
    if (!s) return no_session(error);
    if (!n || (capacity && !data)) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_save: an argument is NULL");
    error_clear(error);
    state_head h  = head_of(s);
    uint8_t   *at = (uint8_t *)data + sizeof h;
    *n = (size_t)h.n_bytes;
    if (h.n_bytes > capacity)
        return fail(error, NOVA_ERROR_TOO_SMALL, "the session takes %llu bytes, not %zu", (unsigned long long)h.n_bytes, capacity);
    size_t ids = (size_t)kv_held(&s->seq) * sizeof *s->ids, logits = h.has_logits ? s->engine->model->n_vocab * sizeof(float) : 0;
    memcpy(at, s->ids, ids);
    at += ids;
    memcpy(at, s->logits, logits);
    TRY(save_pages(s, at + logits, error));
    memcpy(data, &h, sizeof h);
    h.hash = hash_bytes((uint8_t *)data + STATE_HASHED, (size_t)h.n_bytes - STATE_HASHED, STATE_MAGIC);
    memcpy(data, &h, sizeof h);
    return NOVA_OK;
}

/* ---- Loading ---- */

static nova_result state_damaged(nova_error *error, const char *what) { return fail(error, NOVA_ERROR_FORMAT, "a saved session: %s", what); }

/* The sequence as saved, without pages; false where no session could have come to it. */
static bool sequence_of_head(const state_head *h, uint32_t n_ctx, kv_seq *out) {
    memset(out, 0, sizeof *out);
    out->n_tokens = h->n_tokens, out->n_dropped = h->n_dropped, out->n_sinks = h->n_sinks;
    if (h->n_tokens < 0 || h->n_dropped < 0 || h->n_dropped > h->n_tokens || h->n_tokens > INT64_MAX / 4) return false;
    if (h->n_dropped == 0) return true;
    if (h->n_sinks > n_ctx || h->n_tokens - h->n_dropped < (int64_t)h->n_sinks) return false;
    out->n_sink_pages = (h->n_sinks + KV_PAGE - 1) / KV_PAGE;
    int64_t first = kv_window_start(out) / KV_PAGE;
    if (first > (int64_t)UINT32_MAX) return false;
    out->window_page = first > (int64_t)out->n_sink_pages ? (uint32_t)first : out->n_sink_pages;
    return (out->n_tokens + KV_PAGE - 1) / KV_PAGE >= (int64_t)out->window_page;
}

static nova_result check_head(const nova_session *s, const state_head *h, const uint8_t *data, size_t n, kv_seq *seq, nova_error *error) {
    const nova_engine *e = s->engine;
    if (h->magic != STATE_MAGIC) return state_damaged(error, "these bytes are none");
    if (h->version != STATE_VERSION) return state_damaged(error, "it is of another version");
    if (h->n_bytes != n) return state_damaged(error, "it is cut, or has bytes behind it");
    if (h->hash != hash_bytes(data + STATE_HASHED, n - STATE_HASHED, STATE_MAGIC)) return state_damaged(error, "its checksum is wrong");
    if (h->model != model_hash(e->model)) return state_damaged(error, "it is of another model");
    if (h->type_k != e->plan.type_k || h->type_v != e->plan.type_v) return state_damaged(error, "its cache has other types");
    if (!sequence_of_head(h, e->plan.n_ctx, seq) || h->n_held_back > sizeof h->held_back || h->has_logits > 1 || h->pending < NO_TOKEN ||
        (h->pending != NO_TOKEN && (uint32_t)h->pending >= e->model->n_vocab))
        return state_damaged(error, "its numbers contradict each other");
    if (kv_held(seq) > (int64_t)e->plan.n_ctx || kv_used_pages(seq) > s->seq.capacity)
        return fail(error, NOVA_ERROR_CONTEXT_FULL, "the saved session holds %lld tokens, the context %u", (long long)kv_held(seq), e->plan.n_ctx);
    uint64_t size = sizeof *h + (uint64_t)kv_held(seq) * sizeof(int32_t) + (h->has_logits ? e->model->n_vocab * sizeof(float) : 0) +
                    (uint64_t)kv_used_pages(seq) * bytes_of_page(e);
    return size == n ? NOVA_OK : state_damaged(error, "its parts do not come to its size");
}

static nova_result check_saved_ids(const nova_session *s, const uint8_t *at, int64_t n, nova_error *error) {
    for (int64_t i = 0; i < n; i++)
        if (load_u32(at + 4 * i) >= s->engine->model->n_vocab) return state_damaged(error, "a token is out of range");
    return NOVA_OK;
}

static nova_result load_pages(nova_session *s, const uint8_t *from, nova_error *error) {
    nova_engine *e = s->engine;
    for (uint32_t i = 0; i < s->seq.n_pages; i++)
        for (uint32_t il = 0; il < e->kv.n_layer; from += e->kv.layers[il++].page_bytes) {
            const kv_layer *l = &e->kv.layers[il];
            if (l->pages) memcpy(l->pages + s->seq.table[i] * l->page_bytes, from, l->page_bytes);
            else TRY(gpu_page_put(e->gpu, &e->prog, il, s->seq.table[i], from, error));
        }
    return NOVA_OK;
}

static void take_head(nova_session *s, const state_head *h) {
    nova_sampler *set = &s->sample.set;
    s->hash    = h->ids_hash;
    s->pending = h->pending;
    s->n_held_back = h->n_held_back;
    memcpy(s->held_back, h->held_back, sizeof s->held_back);
    set->temperature = h->temperature, set->top_p = h->top_p, set->min_p = h->min_p, set->repeat_penalty = h->repeat_penalty;
    set->top_k = h->top_k, set->repeat_last = h->repeat_last, set->seed = h->seed;
    s->sample.random = h->random;
}

NOVA_API nova_result nova_session_load(nova_session *session, const void *data, size_t n, nova_error *error) {
    nova_session  *s = session;
    const uint8_t *at = (const uint8_t *)data;
    state_head     h;
    kv_seq         seq;
    if (!s) return no_session(error);
    if (!data) return fail(error, NOVA_ERROR_ARGUMENT, "nova_session_load: an argument is NULL");
    error_clear(error);
    if (n < sizeof h) return state_damaged(error, "it is cut");
    memcpy(&h, at, sizeof h);
    TRY(check_head(s, &h, at, n, &seq, error));
    at += sizeof h;
    TRY(check_saved_ids(s, at, kv_held(&seq), error));
    sampler trial = s->sample;
    nova_sampler set = {h.temperature, h.top_k, h.top_p, h.min_p, h.repeat_penalty, h.repeat_last, h.seed};
    TRY(sampler_set(&trial, &set, error));
    uint32_t pages = kv_used_pages(&seq);
    if (pages > s->engine->kv.n_free + s->seq.n_pages)   /* its own come back; shared ones may not */
        return fail(error, NOVA_ERROR_CONTEXT_FULL, "%u cache pages are needed, %u are free", pages, s->engine->kv.n_free);
    nova_session_reset(s);
    seq.table    = s->seq.table;
    seq.capacity = s->seq.capacity;
    if (seq.n_dropped == 0) seq.n_sinks = s->n_sinks;
    else s->n_sinks = seq.n_sinks;
    s->seq = seq;
    if (!kv_take(&s->engine->kv, &s->seq, pages)) return fail(error, NOVA_ERROR_CONTEXT_FULL, "%u cache pages are needed", pages);
    memcpy(s->ids, at, (size_t)kv_held(&seq) * sizeof *s->ids);
    at += (size_t)kv_held(&seq) * sizeof *s->ids;
    size_t logits = h.has_logits ? s->engine->model->n_vocab * sizeof(float) : 0;
    nova_result result = load_pages(s, at + logits, error);
    if (result != NOVA_OK) {
        nova_session_reset(s);
        return result;
    }
    take_head(s, &h);
    if (logits) memcpy(s->logits, at, logits);
    s->has_logits = logits != 0;
    s->sparse     = false;
    return NOVA_OK;
}
