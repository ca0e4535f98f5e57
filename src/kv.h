/* The cache of keys and values: a pool of pages of KV_PAGE tokens, and the page table of a sequence.
 *
 * A sequence that slides keeps its first n_sinks tokens and a window of the latest; what lies between is dropped in
 * blocks (StreamingLLM, arXiv 2309.17453). Positions count inside the cache. No key is ever turned again for it: all keys
 * stay as they were stored, at the position they had in the whole text, and a query looks at the sinks as if it stood
 * n_dropped positions earlier. So sliding costs nothing and works for quantised keys. */
#ifndef NOVA_KV_H
#define NOVA_KV_H

#include "cpu_attend.h"

typedef struct kv_layer {
    attend_shape shape;
    uint32_t     n_head_kv;
    size_t       k_bytes, v_bytes;   /* of one head's page */
    uint8_t     *pages;              /* of this layer: [page][head] K, then [head] V */
    size_t       page_bytes;
} kv_layer;

typedef struct kv_pool {
    uint32_t  n_layer, n_pages;
    kv_layer *layers;
    uint32_t *free_pages;            /* a stack of page numbers */
    uint32_t  n_free;
    uint32_t *n_users;               /* of each page: the sequences that have it in their tables */
} kv_pool;

/* One text's place in the pool. */
typedef struct kv_seq {
    uint32_t *table;                 /* page numbers: of the sinks, then of the window */
    uint32_t  capacity;              /* of the table */
    uint32_t  n_pages;
    uint32_t  n_sink_pages;          /* 0 while nothing was dropped */
    uint32_t  window_page;           /* the text's page that follows the sink pages in the table */
    uint32_t  n_sinks;               /* tokens; in use from the first drop on */
    int64_t   n_tokens;              /* stored since the start */
    int64_t   n_dropped;
} kv_seq;

/* Pages that a sequence of at most n_ctx tokens needs, with the slack of a sliding window that ends inside two pages. */
static uint32_t kv_pages_for(uint32_t n_ctx);

static uint8_t *kv_k_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head);
static uint8_t *kv_v_page(const kv_pool *p, uint32_t layer, uint32_t page, uint32_t head);

/* The page that holds text page `text_page` (a token's position / KV_PAGE), which must be held. */
static uint32_t kv_page_of(const kv_seq *s, int64_t text_page);

/* Tokens that are held: sinks and window. */
static int64_t kv_held(const kv_seq *s);
/* First token of the window; all from here to n_tokens are held. */
static int64_t kv_window_start(const kv_seq *s);

/* Makes room in the table for n further tokens. False when the pool has no more pages; then nothing changed. */
static bool kv_reserve(kv_pool *p, kv_seq *s, uint32_t n);
/* Makes `to`, which holds nothing, hold what `from` holds, in the same pages. */
static void kv_share(kv_pool *p, kv_seq *to, const kv_seq *from);
/* The page that the next token goes to, where others have it too: before it is written the sequence needs a copy of its own. */
static bool kv_shares_last(const kv_pool *p, const kv_seq *s, uint32_t *page);
/* A page outside of any table, which becomes a sequence's last one, or goes back. False where none is left. */
static bool kv_page_take(kv_pool *p, uint32_t *page);
static void kv_page_place(kv_pool *p, kv_seq *s, uint32_t page);
static void kv_page_return(kv_pool *p, uint32_t page);
/* Pages that hold tokens, in the table's order; further ones may be reserved behind them. */
static uint32_t kv_used_pages(const kv_seq *s);
/* Takes n pages for a sequence that has none. False, and it holds nothing, where there are not so many. */
static bool kv_take(kv_pool *p, kv_seq *s, uint32_t n);
/* Clears a page's slots on the CPU, so that what is saved of it has no bytes from before. */
static void kv_clear_page(const kv_pool *p, uint32_t page);

/* Drops the n oldest tokens behind the sinks; n is less than the window. */
static void kv_drop(kv_pool *p, kv_seq *s, uint32_t n);
/* Forgets all tokens from position n_tokens on; only for a sequence that dropped none, or for n_tokens 0. */
static void kv_truncate(kv_pool *p, kv_seq *s, int64_t n_tokens);

#endif
