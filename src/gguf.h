/* The GGUF container, versions 2 and 3, little-endian, read as hostile input.
 * Source: the GGUF specification (ggml docs/gguf.md). Nothing is copied: keys, values, tensors point into the file. */
#ifndef NOVA_GGUF_H
#define NOVA_GGUF_H

#include "base.h"
#include "quant.h"

typedef enum gguf_type {
    GGUF_U8 = 0, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY,
    GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPE_COUNT
} gguf_type;

typedef struct gguf_value {
    gguf_type      type;
    gguf_type      item;     /* of an array */
    uint64_t       n;        /* items of an array, 1 otherwise */
    const uint8_t *data;     /* the value, an array's first item, or a string's length */
    const uint8_t *end;      /* behind its last byte */
    uint64_t       offset;   /* of `data` in the file */
} gguf_value;

typedef struct gguf_meta {
    str        key;
    gguf_value value;
} gguf_meta;

typedef struct gguf_tensor {
    str            name;
    uint32_t       type;      /* tensor_type; checked to be one that type_of knows */
    uint32_t       n_dims;
    uint64_t       ne[4];     /* ne[0]: length of a row; unused ones are 1; each >= 1; ne[0] % block == 0 */
    uint64_t       n_bytes;
    const uint8_t *data;      /* aligned as the file says, seen from the file's start */
} gguf_tensor;

typedef struct gguf {
    const uint8_t *data;
    size_t         size;
    uint32_t       version;
    uint32_t       alignment;
    uint64_t       data_offset;
    uint32_t       n_meta, n_tensors;
    gguf_meta     *meta;
    gguf_tensor   *tensors;
    /* Positions in the order of the names, for binary search: no hash that a hostile file could make collide. */
    uint32_t      *meta_index, *tensor_index;
} gguf;

/* Reads everything but the weights, checks all of it; tables go into the arena, and take at most six times the bytes
 * that the file itself spends on them (a file of holes that promises much gets nothing). Time is that of sorting the
 * names. Every rejection names the place: the offset, and the key or tensor. With `vocab_only`, tensors are not read at
 * all: n_tensors is 0. Refused beyond the specification: duplicate or empty names, names with a NUL or
 * over 65535 bytes, tensors that share bytes (so weights are never more than the file), arrays nested deeper than 8.
 * Errors: FORMAT, UNSUPPORTED (version 1, big-endian, a tensor type that type_of does not know), MEMORY. */
static nova_result gguf_read(gguf *g, arena *a, const uint8_t *data, size_t size, bool vocab_only, nova_error *error);

/* Adds the tensors of another file, which stays where it is, to those of `g`. Errors: FORMAT (a name that both have), MEMORY. */
static nova_result gguf_join(gguf *g, arena *a, const gguf *other, nova_error *error);

static const gguf_value  *gguf_find(const gguf *g, str key);           /* NULL: not there */
static const gguf_tensor *gguf_find_tensor(const gguf *g, str name);   /* NULL: not there */

/* Typed access. A missing key: OK, and *out untouched. Wrong type or out of range: FORMAT, naming the key, *out as it
 * was. Any integer type is taken for an integer that fits, any number type for a float that stays finite. */
static nova_result gguf_get_u32(const gguf *g, const char *key, uint32_t *out, nova_error *error);
static nova_result gguf_get_f32(const gguf *g, const char *key, float *out, nova_error *error);
static nova_result gguf_get_bool(const gguf *g, const char *key, bool *out, nova_error *error);
static nova_result gguf_get_str(const gguf *g, const char *key, str *out, nova_error *error);

/* Items of arrays; the caller has checked type, item type and index. */
static bool    gguf_array_is(const gguf_value *v, gguf_type item);   /* false for NULL */
static float   gguf_item_f32(const gguf_value *v, uint64_t i);       /* any number type */
static int64_t gguf_item_int(const gguf_value *v, uint64_t i);       /* integers, bools; U64 stops at INT64_MAX */

/* Walks an array of strings, which has no random access. */
typedef struct gguf_strings { const uint8_t *at; uint64_t left; } gguf_strings;
static gguf_strings gguf_strings_of(const gguf_value *v);
static bool         gguf_strings_next(gguf_strings *s, str *out);

/* A value printed for people, cut to whole characters and terminated: arrays as their count and first elements, control
 * characters replaced. A `size` of 0 does nothing. */
static void gguf_print(const gguf_value *v, char *text, size_t size);

#endif
