/* Writes GGUF files for tests, right ones and wrong ones. Knows nothing of nova: what it writes follows the
 * specification (ggml docs/gguf.md), and lies where it is told to.
 *
 *     gguf_writer w;
 *     gw_init(&w);
 *     gw_str(&w, "general.architecture", "llama");
 *     gw_u32(&w, "llama.block_count", 2);
 *     gw_tensor(&w, "output_norm.weight", 0, 1, ne, data, n_bytes);
 *     size_t n;
 *     const unsigned char *file = gw_finish(&w, &n);   // or gw_save(&w, path), or gw_exact(&w, &n)
 *     gw_free(&w);
 */
#ifndef NOVA_GGUF_WRITER_H
#define NOVA_GGUF_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GW_U8, GW_I8, GW_U16, GW_I16, GW_U32, GW_I32, GW_F32, GW_BOOL, GW_STRING, GW_ARRAY, GW_U64, GW_I64, GW_F64 };

typedef struct gw_bytes { unsigned char *p; size_t n, cap; } gw_bytes;

typedef struct gguf_writer {
    gw_bytes meta, infos, data, out;
    uint64_t n_meta, n_tensors;   /* what was written; change them to make the head lie */
    uint32_t magic, version;      /* "GGUF", 3 */
    uint32_t alignment;           /* 32; the key must be written as well */
    bool     padded;              /* false: no padding between the tensor table and the weights */
} gguf_writer;

/* ---- Bytes ---- */

static inline void gw_put(gw_bytes *b, const void *p, size_t n) {
    if (b->cap - b->n < n) {
        b->cap = b->n + n + b->n / 2 + 64;
        b->p   = (unsigned char *)realloc(b->p, b->cap);
        if (!b->p) abort();
    }
    if (n && p) memcpy(b->p + b->n, p, n);
    else if (n) memset(b->p + b->n, 0, n);
    b->n += n;
}

static inline void gw_put_u32(gw_bytes *b, uint32_t v) { gw_put(b, &v, 4); }
static inline void gw_put_u64(gw_bytes *b, uint64_t v) { gw_put(b, &v, 8); }
static inline void gw_put_str(gw_bytes *b, const void *p, size_t n) {
    gw_put_u64(b, n);
    gw_put(b, p, n);
}

static inline size_t gw_item_size(uint32_t type) {
    static const unsigned char size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < sizeof size ? size[type] : 0;
}

/* ---- The file ---- */

static inline void gw_init(gguf_writer *w) {
    memset(w, 0, sizeof *w);
    memcpy(&w->magic, "GGUF", 4);
    w->version   = 3;
    w->alignment = 32;
    w->padded    = true;
}

static inline void gw_free(gguf_writer *w) {
    free(w->meta.p);
    free(w->infos.p);
    free(w->data.p);
    free(w->out.p);
    memset(w, 0, sizeof *w);
}

/* The whole file, which the writer owns; until the next call. */
static inline const unsigned char *gw_finish(gguf_writer *w, size_t *n) {
    w->out.n = 0;
    gw_put_u32(&w->out, w->magic);
    gw_put_u32(&w->out, w->version);
    gw_put_u64(&w->out, w->n_tensors);
    gw_put_u64(&w->out, w->n_meta);
    gw_put(&w->out, w->meta.p, w->meta.n);
    gw_put(&w->out, w->infos.p, w->infos.n);
    if (w->padded && w->data.n && w->alignment) gw_put(&w->out, NULL,
                                                       (w->alignment - w->out.n % w->alignment) % w->alignment);
    gw_put(&w->out, w->data.p, w->data.n);
    *n = w->out.n;
    return w->out.p;
}

/* A copy in a block of exactly the file's size, so that a sanitizer sees the first byte too many; free() it. */
static inline unsigned char *gw_exact(gguf_writer *w, size_t *n) {
    const unsigned char *p = gw_finish(w, n);
    unsigned char *copy = (unsigned char *)malloc(*n ? *n : 1);
    if (!copy) abort();
    memcpy(copy, p, *n);
    return copy;
}

static inline bool gw_save(gguf_writer *w, const char *path) {
    size_t n;
    const unsigned char *p = gw_finish(w, &n);
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    bool ok = fwrite(p, 1, n, f) == n;
    return fclose(f) == 0 && ok;
}

/* ---- Keys ---- */

/* A key and its value's type; the value's bytes are to follow (gw_put... on w->meta). */
static inline void gw_key_n(gguf_writer *w, const void *key, size_t n, uint32_t type) {
    gw_put_str(&w->meta, key, n);
    gw_put_u32(&w->meta, type);
    w->n_meta++;
}

static inline void gw_key(gguf_writer *w, const char *key, uint32_t type) { gw_key_n(w, key, strlen(key), type); }

/* Any value of a fixed size. */
static inline void gw_value(gguf_writer *w, const char *key, uint32_t type, const void *p) {
    gw_key(w, key, type);
    gw_put(&w->meta, p, gw_item_size(type));
}

static inline void gw_u8(gguf_writer *w, const char *key, uint8_t v) { gw_value(w, key, GW_U8, &v); }
static inline void gw_i8(gguf_writer *w, const char *key, int8_t v) { gw_value(w, key, GW_I8, &v); }
static inline void gw_u16(gguf_writer *w, const char *key, uint16_t v) { gw_value(w, key, GW_U16, &v); }
static inline void gw_i16(gguf_writer *w, const char *key, int16_t v) { gw_value(w, key, GW_I16, &v); }
static inline void gw_u32(gguf_writer *w, const char *key, uint32_t v) { gw_value(w, key, GW_U32, &v); }
static inline void gw_i32(gguf_writer *w, const char *key, int32_t v) { gw_value(w, key, GW_I32, &v); }
static inline void gw_u64(gguf_writer *w, const char *key, uint64_t v) { gw_value(w, key, GW_U64, &v); }
static inline void gw_i64(gguf_writer *w, const char *key, int64_t v) { gw_value(w, key, GW_I64, &v); }
static inline void gw_f32(gguf_writer *w, const char *key, float v) { gw_value(w, key, GW_F32, &v); }
static inline void gw_f64(gguf_writer *w, const char *key, double v) { gw_value(w, key, GW_F64, &v); }
/* 0 and 1 are right, the others wrong on purpose. */
static inline void gw_bool(gguf_writer *w, const char *key, unsigned v) {
    uint8_t b = (uint8_t)v;
    gw_value(w, key, GW_BOOL, &b);
}

static inline void gw_str_n(gguf_writer *w, const char *key, const void *p, size_t n) {
    gw_key(w, key, GW_STRING);
    gw_put_str(&w->meta, p, n);
}

static inline void gw_str(gguf_writer *w, const char *key, const char *z) { gw_str_n(w, key, z, strlen(z)); }

/* The head of an array; its items are to follow. */
static inline void gw_array_head(gguf_writer *w, const char *key, uint32_t item, uint64_t n) {
    gw_key(w, key, GW_ARRAY);
    gw_put_u32(&w->meta, item);
    gw_put_u64(&w->meta, n);
}

/* An array of items of a fixed size. */
static inline void gw_array(gguf_writer *w, const char *key, uint32_t item, const void *items, size_t n) {
    gw_array_head(w, key, item, n);
    gw_put(&w->meta, items, n * gw_item_size(item));
}

/* `lengths` NULL: the strings end with a NUL. */
static inline void gw_array_str(gguf_writer *w, const char *key, const char *const *items, const size_t *lengths,
                                size_t n) {
    gw_array_head(w, key, GW_STRING, n);
    for (size_t i = 0; i < n; i++) gw_put_str(&w->meta, items[i], lengths ? lengths[i] : strlen(items[i]));
}

/* ---- Tensors ---- */

/* An entry of the table with anything in it; `ne` has n_dims numbers. */
static inline void gw_info(gguf_writer *w, const void *name, size_t n_name, uint32_t type, uint32_t n_dims,
                           const uint64_t *ne, uint64_t offset) {
    gw_put_str(&w->infos, name, n_name);
    gw_put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) gw_put_u64(&w->infos, ne[i]);
    gw_put_u32(&w->infos, type);
    gw_put_u64(&w->infos, offset);
    w->n_tensors++;
}

/* A tensor with its bytes (NULL: zeros) where it belongs. Returns where they lie in w->data.p. */
static inline size_t gw_tensor(gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims, const uint64_t *ne,
                               const void *data, size_t n_bytes) {
    size_t at = w->data.n;
    if (w->alignment) at = (at + w->alignment - 1) / w->alignment * w->alignment;
    gw_info(w, name, strlen(name), type, n_dims, ne, at);
    gw_put(&w->data, NULL, at - w->data.n);
    gw_put(&w->data, data, n_bytes);
    return at;
}

#endif
