/* Ground: see base.h. */
#include "base.h"

/* ---- Host ---- */

static void *libc_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    (void)user, (void)old_size;
    if (new_size == 0) {
        free(pointer);
        return NULL;
    }
    return realloc(pointer, new_size);
}

static host host_init(nova_alloc_fn alloc, void *alloc_user, nova_log_fn log, void *log_user) {
    host h;
    h.alloc      = alloc ? alloc : libc_alloc;
    h.alloc_user = alloc_user;
    h.log        = log;
    h.log_user   = log_user;
    return h;
}

static void *mem_alloc(const host *h, size_t size) {
    return size ? h->alloc(h->alloc_user, NULL, 0, size) : NULL;
}

static void *mem_zalloc(const host *h, size_t size) {
    void *p = mem_alloc(h, size);
    if (p) memset(p, 0, size);
    return p;
}

static void *mem_resize(const host *h, void *pointer, size_t old_size, size_t new_size) {
    return h->alloc(h->alloc_user, pointer, old_size, new_size);
}

static void mem_free(const host *h, void *pointer, size_t size) {
    if (pointer) h->alloc(h->alloc_user, pointer, size, 0);
}

static void log_text(const host *h, nova_log_level level, const char *format, ...) {
    if (!h->log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    h->log(h->log_user, level, line);
}

/* ---- Errors ---- */

static void error_clear(nova_error *error) {
    if (!error) return;
    error->code       = NOVA_OK;
    error->offset     = NOVA_NOWHERE;
    error->message[0] = 0;
}

/* Names from files end up in messages: what is no printable text or UTF-8 must not reach a terminal. */
static void message_clean(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 32 || *p == 127) *p = '?';
}

static void error_fill(nova_error *error, nova_result code, uint64_t offset, const char *format, va_list args) {
    error->code   = code;
    error->offset = offset;
    vsnprintf(error->message, sizeof error->message, format, args);
    message_clean(error->message);
}

static nova_result fail(nova_error *error, nova_result code, const char *format, ...) {
    if (!error) return code;
    va_list args;
    va_start(args, format);
    error_fill(error, code, NOVA_NOWHERE, format, args);
    va_end(args);
    return code;
}

static nova_result fail_at(nova_error *error, nova_result code, uint64_t offset, const char *format, ...) {
    if (!error) return code;
    va_list args;
    va_start(args, format);
    error_fill(error, code, offset, format, args);
    va_end(args);
    return code;
}

static nova_result fail_memory(nova_error *error, size_t size, const char *what) {
    return fail(error, NOVA_ERROR_MEMORY, "out of memory: %zu bytes for %s", size, what);
}

NOVA_API const char *nova_result_text(nova_result result) {
#define RESULT_CASE(name, number, text) case name: return text;
    switch (result) { NOVA_RESULTS(RESULT_CASE) }
#undef RESULT_CASE
    return "unknown result";
}

NOVA_API const char *nova_version(void) { return NOVA_VERSION; }

/* ---- Text ---- */

static str str_c(const char *z) { return str_of(z, strlen(z)); }

static bool str_is(str s, const char *z) { return str_eq(s, str_c(z)); }

static void text_init(text_buffer *b, const host *h, size_t limit) {
    memset(b, 0, sizeof *b);
    b->h     = h;
    b->limit = limit;
}

static bool text_reserve(text_buffer *b, size_t extra) {
    size_t need;
    if (b->failed || !size_add(b->n, extra, &need) || need > SIZE_MAX / 2 || (b->limit && need > b->limit)) {
        b->failed = true;
        return false;
    }
    if (need <= b->cap) return true;
    size_t cap = size_max(need, size_max(64, b->cap + b->cap / 2));
    char  *p   = (char *)mem_resize(b->h, b->p, b->cap, cap);
    if (!p) {
        b->failed = true;
        return false;
    }
    b->p   = p;
    b->cap = cap;
    return true;
}

static bool text_append(text_buffer *b, const char *p, size_t n) {
    if (n == 0) return !b->failed;
    if (!text_reserve(b, n)) return false;
    memcpy(b->p + b->n, p, n);
    b->n += n;
    return true;
}

static void text_free(text_buffer *b) {
    mem_free(b->h, b->p, b->cap);
    b->p = NULL;
    b->n = b->cap = 0;
}

/* ---- Arena ---- */

struct arena_block {
    arena_block *older;
    size_t       size;   /* of the whole block, this head included */
};

#define ARENA_HEAD  size_align(sizeof(arena_block), 16)
#define ARENA_BLOCK ((size_t)64 << 10)

static void arena_init(arena *a, const host *h) {
    memset(a, 0, sizeof *a);
    a->h = h;
}

static void *arena_alloc(arena *a, size_t size) {
    if (size >= SIZE_MAX / 2) return NULL;
    size = size_align(size ? size : 1, 16);
    if ((size_t)(a->end - a->next) < size) {
        size_t       whole = size_max(ARENA_BLOCK, size + ARENA_HEAD);
        arena_block *block = (arena_block *)mem_alloc(a->h, whole);
        if (!block) return NULL;
        block->older = a->blocks;
        block->size  = whole;
        a->blocks    = block;
        a->next      = (char *)block + ARENA_HEAD;
        a->end       = (char *)block + whole;
    }
    void *p = a->next;
    a->next += size;
    return p;
}

static void *arena_zalloc(arena *a, size_t size) {
    void *p = arena_alloc(a, size);
    if (p) memset(p, 0, size);
    return p;
}

static void arena_free(arena *a) {
    while (a->blocks) {
        arena_block *older = a->blocks->older;
        mem_free(a->h, a->blocks, a->blocks->size);
        a->blocks = older;
    }
    a->next = a->end = NULL;
}
