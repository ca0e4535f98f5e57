/* The cache's pages: see kv.h. */
#include "kv.h"

static uint32_t kv_pages_for(uint32_t n_ctx) { return n_ctx / KV_PAGE + (n_ctx % KV_PAGE != 0) + 2; }

static uint8_t *kv_k_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head) {
    const kv_layer *l = &p->layers[layer];
    return l->pages + (size_t)page * l->page_bytes + head * l->k_bytes;
}

static uint8_t *kv_v_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head) {
    const kv_layer *l = &p->layers[layer];
    return l->pages + (size_t)page * l->page_bytes + l->n_head_kv * l->k_bytes + head * l->v_bytes;
}

static uint32_t kv_page_of(const kv_seq *s, int64_t text_page) {
    if (text_page < (int64_t)s->n_sink_pages) return s->table[text_page];
    return s->table[s->n_sink_pages + (text_page - (int64_t)s->window_page)];
}

static int64_t kv_held(const kv_seq *s) { return s->n_tokens - s->n_dropped; }

static int64_t kv_window_start(const kv_seq *s) { return s->n_dropped ? s->n_sinks + s->n_dropped : 0; }

/* Text pages that the table covers: it ends behind the last token's page. */
static int64_t covered_pages(const kv_seq *s) {
    return s->n_dropped ? (int64_t)s->window_page + (s->n_pages - s->n_sink_pages) : (int64_t)s->n_pages;
}

static uint32_t take_page(kv_pool *p) {
    uint32_t page = p->free_pages[--p->n_free];
    p->n_users[page] = 1;
    kv_clear_page(p, page);
    return page;
}

static bool kv_reserve(kv_pool *p, kv_seq *s, uint32_t n) {
    int64_t want = (s->n_tokens + n + KV_PAGE - 1) / KV_PAGE - covered_pages(s);
    if (want <= 0) return true;
    if (want > (int64_t)p->n_free || want > (int64_t)(s->capacity - s->n_pages)) return false;
    while (want-- > 0) s->table[s->n_pages++] = take_page(p);
    return true;
}

static void kv_share(kv_pool *p, kv_seq *to, const kv_seq *from) {
    uint32_t *table = to->table, capacity = to->capacity;
    *to = *from;
    to->table    = table;
    to->capacity = capacity;
    to->n_pages  = kv_used_pages(from);
    memcpy(to->table, from->table, to->n_pages * sizeof *to->table);
    for (uint32_t i = 0; i < to->n_pages; i++) p->n_users[to->table[i]]++;
}

static bool kv_shares_last(const kv_pool *p, const kv_seq *s, uint32_t *page) {
    if (s->n_tokens % KV_PAGE == 0) return false;   /* a page of its own comes next */
    *page = s->table[kv_used_pages(s) - 1];
    return p->n_users[*page] > 1;
}

static bool kv_page_take(kv_pool *p, uint32_t *page) {
    if (p->n_free == 0) return false;
    *page = take_page(p);
    return true;
}

static void kv_page_place(kv_pool *p, kv_seq *s, uint32_t page) {
    uint32_t *last = &s->table[kv_used_pages(s) - 1];
    p->n_users[*last]--;
    *last = page;
}

static void kv_page_return(kv_pool *p, uint32_t page) {
    p->n_users[page] = 0;
    p->free_pages[p->n_free++] = page;
}

static uint32_t kv_used_pages(const kv_seq *s) {
    int64_t pages = (s->n_tokens + KV_PAGE - 1) / KV_PAGE;
    return (uint32_t)(s->n_dropped ? s->n_sink_pages + (pages - (int64_t)s->window_page) : pages);
}

static bool kv_take(kv_pool *p, kv_seq *s, uint32_t n) {
    s->n_pages = 0;
    if (n > p->n_free || n > s->capacity) {
        kv_truncate(p, s, 0);
        return false;
    }
    while (s->n_pages < n) s->table[s->n_pages++] = take_page(p);
    return true;
}

static void kv_clear_page(const kv_pool *p, uint32_t page) {
    for (uint32_t il = 0; il < p->n_layer; il++)
        if (p->layers[il].pages) memset(p->layers[il].pages + page * p->layers[il].page_bytes, 0, p->layers[il].page_bytes);
}

static void give_back(kv_pool *p, kv_seq *s, uint32_t first, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (--p->n_users[s->table[first + i]] == 0) p->free_pages[p->n_free++] = s->table[first + i];
    memmove(s->table + first, s->table + first + n, (s->n_pages - first - n) * sizeof *s->table);
    s->n_pages -= n;
}

static void kv_drop(kv_pool *p, kv_seq *s, uint32_t n) {
    if (s->n_dropped == 0) {
        s->n_sink_pages = (s->n_sinks + KV_PAGE - 1) / KV_PAGE;
        s->window_page  = s->n_sink_pages;
    }
    s->n_dropped += n;
    int64_t first = kv_window_start(s) / KV_PAGE;   /* inside the last sink page while little was dropped */
    if (first > (int64_t)s->window_page) {
        give_back(p, s, s->n_sink_pages, (uint32_t)(first - (int64_t)s->window_page));
        s->window_page = (uint32_t)first;
    }
}

static void kv_truncate(kv_pool *p, kv_seq *s, int64_t n_tokens) {
    if (n_tokens == 0) s->n_dropped = 0, s->n_sink_pages = 0, s->window_page = 0;
    uint32_t keep = (uint32_t)((n_tokens + KV_PAGE - 1) / KV_PAGE);
    if (keep < s->n_pages) give_back(p, s, keep, s->n_pages - keep);
    s->n_tokens = n_tokens;
}
