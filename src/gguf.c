/* The GGUF container: see gguf.h. One walk over the file by a cursor that never leaves it. */
#include "gguf.h"

#define GGUF_NAME_MOST  65535   /* the specification's limit for keys */
#define GGUF_DEPTH_MOST 8       /* arrays in arrays; nobody is known to write two */
#define GGUF_META_LEAST 14      /* bytes: length 8, a name of 1, type 4, a value of 1 */
#define GGUF_INFO_LEAST 33      /* bytes: length 8, a name of 1, dimensions 4 + 8, type 4, offset 8 */
#define GGUF_MANY       65536   /* entries that are gone over once before memory is taken for them */

typedef struct gguf_type_info { const char *name; uint32_t size; /* 0: varies */ } gguf_type_info;

static const gguf_type_info gguf_types[GGUF_TYPE_COUNT] = {
    {"u8", 1}, {"i8", 1}, {"u16", 2}, {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4}, {"bool", 1},
    {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};

/* Bytes that one value takes at least: a string's length, an array's item type and count. */
static uint64_t gguf_least(uint32_t type) {
    return type == GGUF_STRING ? 8 : type == GGUF_ARRAY ? 12 : gguf_types[type].size;
}

/* ---- The cursor ---- */

typedef struct gguf_reader {
    const uint8_t *data;
    size_t         size, at;
    const char    *kind;    /* of what is being read, for messages: "key", "tensor" */
    uint64_t       number;  /* its number in the file */
    str            name;    /* its name, once that is known */
    nova_error    *error;
} gguf_reader;

static size_t gguf_left(const gguf_reader *r) { return r->size - r->at; }

NOVA_PRINTF(4, 5)
static nova_result gguf_fail(const gguf_reader *r, nova_result code, uint64_t at, const char *format, ...) {
    char    what[192];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (!r->kind) return fail_at(r->error, code, at, "%s", what);
    if (!r->name.p) return fail_at(r->error, code, at, "%s %llu: %s", r->kind, (unsigned long long)r->number, what);
    return fail_at(r->error, code, at, "%s \"%.*s\": %s", r->kind, STR_ARG(r->name), what);
}

static nova_result gguf_u32(gguf_reader *r, uint32_t *out, const char *what) {
    if (gguf_left(r) < 4) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "the file ends inside its %s", what);
    *out = load_u32(r->data + r->at);
    r->at += 4;
    return NOVA_OK;
}

static nova_result gguf_u64(gguf_reader *r, uint64_t *out, const char *what) {
    if (gguf_left(r) < 8) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "the file ends inside its %s", what);
    *out = load_u64(r->data + r->at);
    r->at += 8;
    return NOVA_OK;
}

static nova_result gguf_string(gguf_reader *r, str *out, const char *what) {
    uint64_t    n = 0;
    size_t      at = r->at;
    nova_result result = gguf_u64(r, &n, what);
    if (result != NOVA_OK) return result;
    if (n > gguf_left(r))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s of %llu bytes runs over the file's end", what,
                         (unsigned long long)n);
    *out = str_of((const char *)r->data + r->at, (size_t)n);
    r->at += (size_t)n;
    return NOVA_OK;
}

/* The name of a key or tensor, which from here on stands in every message. */
static nova_result gguf_name(gguf_reader *r, str *out) {
    size_t      at = r->at;
    nova_result result = gguf_string(r, out, "name");
    if (result != NOVA_OK) return result;
    if (out->n == 0) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name is empty");
    if (out->n > GGUF_NAME_MOST) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name has %zu bytes", out->n);
    if (memchr(out->p, 0, out->n)) return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its name holds a NUL");
    r->name = *out;
    return NOVA_OK;
}

/* ---- Order by name or place, for finding and for telling duplicates ---- */

typedef bool (*gguf_less_fn)(const gguf *g, uint32_t a, uint32_t b);

static int name_order(str a, str b) {
    size_t n     = size_min(a.n, b.n);
    int    order = n ? memcmp(a.p, b.p, n) : 0;
    return order ? order : a.n < b.n ? -1 : a.n > b.n;
}

static bool gguf_less_meta(const gguf *g, uint32_t a, uint32_t b) {
    return name_order(g->meta[a].key, g->meta[b].key) < 0;
}
static bool gguf_less_tensor(const gguf *g, uint32_t a, uint32_t b) {
    return name_order(g->tensors[a].name, g->tensors[b].name) < 0;
}
static bool gguf_less_place(const gguf *g, uint32_t a, uint32_t b) { return g->tensors[a].data < g->tensors[b].data; }

/* Merges the sorted runs [lo, mid) and [mid, hi) of `from` into `to`. Of equal names the earlier comes first. */
static void gguf_merge(const gguf *g, gguf_less_fn less, const uint32_t *from, uint32_t *to,
                       size_t lo, size_t mid, size_t hi) {
    size_t a = lo, b = mid;
    for (size_t i = lo; i < hi; i++) {
        bool first = a < mid && (b >= hi || !less(g, from[b], from[a]));
        to[i] = first ? from[a++] : from[b++];
    }
}

/* 0 .. n-1 sorted, in time n log n whatever the file holds; NULL when memory ends. */
static uint32_t *gguf_sort(const gguf *g, arena *a, uint32_t n, gguf_less_fn less) {
    uint32_t *from = (uint32_t *)arena_alloc(a, (size_t)n * sizeof(uint32_t));
    uint32_t *to   = (uint32_t *)arena_alloc(a, (size_t)n * sizeof(uint32_t));
    bool      sorted = true;
    if (!from || !to) return NULL;
    for (uint32_t i = 0; i < n; i++) {
        from[i] = i;
        sorted  = sorted && (i == 0 || !less(g, i, i - 1));
    }
    for (size_t run = 1; run < n && !sorted; run *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * run)
            gguf_merge(g, less, from, to, lo, size_min(lo + run, n), size_min(lo + 2 * run, n));
        uint32_t *t = from;
        from = to;
        to   = t;
    }
    return from;
}

/* ---- Values ---- */

static nova_result gguf_check_bools(gguf_reader *r, const uint8_t *p, uint64_t n) {
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at + i, "a bool is %u", p[i]);
    return NOVA_OK;
}

/* Passes over n strings: a vocabulary has half a million of them. */
static nova_result gguf_skip_strings(gguf_reader *r, uint64_t n) {
    size_t at = r->at;
    for (; n; n--) {
        if (r->size - at < 8) break;
        uint64_t length = load_u64(r->data + at);
        if (length > r->size - at - 8) break;
        at += 8 + (size_t)length;
    }
    r->at = at;
    str s;
    return n ? gguf_string(r, &s, "string") : NOVA_OK;   /* which says what is wrong with the next */
}

/* Passes over n values of a type that is no array. */
static nova_result gguf_skip(gguf_reader *r, uint32_t type, uint64_t n) {
    nova_result result = NOVA_OK;
    if (type == GGUF_STRING) return gguf_skip_strings(r, n);
    uint64_t size = gguf_types[type].size;
    if (n > gguf_left(r) / size)
        return gguf_fail(r, NOVA_ERROR_FORMAT, r->at, "its value runs over the file's end");
    if (type == GGUF_BOOL) result = gguf_check_bools(r, r->data + r->at, n);
    if (result == NOVA_OK) r->at += (size_t)(n * size);
    return result;
}

/* Reads a type's number, of a value or of an array's items. */
static nova_result gguf_type_of(gguf_reader *r, uint32_t *type, const char *what) {
    size_t      at = r->at;
    nova_result result = gguf_u32(r, type, what);
    if (result == NOVA_OK && *type >= GGUF_TYPE_COUNT)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s is %u, which is no type", what, *type);
    return result;
}

/* An array's head: what it holds and how many, as far as the file has room for them. */
static nova_result gguf_array_head(gguf_reader *r, uint32_t *item, uint64_t *n) {
    nova_result result = gguf_type_of(r, item, "item type");
    size_t      at = r->at;
    if (result == NOVA_OK) result = gguf_u64(r, n, "count");
    if (result == NOVA_OK && *n > gguf_left(r) / gguf_least(*item))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %llu items of type %s run over the file's end",
                         (unsigned long long)*n, gguf_types[*item].name);
    return result;
}

/* Passes over an array's items; `left` counts, per depth, the arrays that are still to come. */
static nova_result gguf_skip_items(gguf_reader *r, uint32_t item, uint64_t n) {
    uint64_t left[GGUF_DEPTH_MOST - 1];   /* the innermost array holds values */
    uint32_t depth = 0;
    if (item != GGUF_ARRAY) return gguf_skip(r, item, n);
    left[0] = n;
    for (;;) {
        while (left[depth] == 0) {
            if (depth == 0) return NOVA_OK;
            depth--;
        }
        left[depth]--;
        size_t      at = r->at;
        nova_result result = gguf_array_head(r, &item, &n);
        if (result != NOVA_OK) return result;
        if (item != GGUF_ARRAY) {
            result = gguf_skip(r, item, n);
            if (result != NOVA_OK) return result;
        } else if (depth + 1 < COUNT_OF(left)) {
            left[++depth] = n;
        } else {
            return gguf_fail(r, NOVA_ERROR_FORMAT, at, "arrays are nested deeper than %d", GGUF_DEPTH_MOST);
        }
    }
}

static nova_result gguf_value_read(gguf_reader *r, gguf_value *v) {
    uint32_t    type = 0, item = 0;
    nova_result result = gguf_type_of(r, &type, "type");
    if (result != NOVA_OK) return result;
    v->n = 1;
    if (type == GGUF_ARRAY) result = gguf_array_head(r, &item, &v->n);
    if (result != NOVA_OK) return result;
    v->type   = (gguf_type)type;
    v->item   = (gguf_type)item;
    v->data   = r->data + r->at;
    v->offset = r->at;
    result    = type == GGUF_ARRAY ? gguf_skip_items(r, item, v->n) : gguf_skip(r, type, 1);
    v->end    = r->data + r->at;
    return result;
}

/* ---- The parts of the file ---- */

/* A count from the file's head, which must not promise more than the rest can hold. */
static nova_result gguf_count(gguf_reader *r, uint64_t *n, size_t least, size_t behind, const char *what) {
    size_t      at = r->at;
    nova_result result = gguf_u64(r, n, what);
    if (result != NOVA_OK) return result;
    uint64_t most = gguf_left(r) < behind ? 0 : (gguf_left(r) - behind) / least;
    if (*n > most || *n > UINT32_MAX)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %s is %llu, for which the file is too short", what,
                         (unsigned long long)*n);
    return NOVA_OK;
}

static nova_result gguf_head(gguf_reader *r, gguf *g, bool vocab_only) {
    uint32_t    magic = 0;
    uint64_t    n_tensors = 0, n_meta = 0;
    nova_result result = gguf_u32(r, &magic, "first word");
    if (result != NOVA_OK) return result;
    if (memcmp(r->data, "GGUF", 4) != 0) return gguf_fail(r, NOVA_ERROR_FORMAT, 0, "this is not a GGUF file");
    if ((result = gguf_u32(r, &g->version, "version")) != NOVA_OK) return result;
    if (g->version != 0 && (g->version & 0xFFFF) == 0)
        return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, 4, "this GGUF file is big-endian");
    if (g->version != 2 && g->version != 3)
        return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, 4, "this GGUF file has version %u; 2 and 3 can be read",
                         g->version);
    result = vocab_only ? gguf_u64(r, &n_tensors, "tensor count")
                        : gguf_count(r, &n_tensors, GGUF_INFO_LEAST, 8, "tensor count");
    if (result == NOVA_OK) result = gguf_count(r, &n_meta, GGUF_META_LEAST, 0, "key count");
    if (result != NOVA_OK) return result;
    g->n_tensors = vocab_only ? 0 : (uint32_t)n_tensors;
    g->n_meta    = (uint32_t)n_meta;
    return NOVA_OK;
}

static void *gguf_table(arena *a, uint32_t n, size_t size) {
    size_t bytes;
    return size_mul(n, size, &bytes) ? arena_alloc(a, bytes) : NULL;
}

/* Starts on the i-th entry of a table. */
static void gguf_begin(gguf_reader *r, const char *kind, uint64_t i) {
    r->kind   = kind;
    r->number = i;
    r->name   = str_of(NULL, 0);
}

/* Reads the keys into `table`, or (NULL) only checks them. A copy of the reader: the caller's goes on from *end. */
static nova_result gguf_keys(gguf_reader r, gguf_meta *table, uint32_t n, size_t *end) {
    nova_result result = NOVA_OK;
    gguf_meta   one;
    for (uint32_t i = 0; i < n && result == NOVA_OK; i++) {
        gguf_meta *m = table ? &table[i] : &one;
        gguf_begin(&r, "key", i);
        result = gguf_name(&r, &m->key);
        if (result == NOVA_OK) result = gguf_value_read(&r, &m->value);
    }
    *end = r.at;
    return result;
}

static nova_result gguf_meta_read(gguf_reader *r, gguf *g, arena *a) {
    size_t      end;
    nova_result result = g->n_meta > GGUF_MANY ? gguf_keys(*r, NULL, g->n_meta, &end) : NOVA_OK;
    if (result != NOVA_OK) return result;
    g->meta = (gguf_meta *)gguf_table(a, g->n_meta, sizeof(gguf_meta));
    if (!g->meta) return fail_memory(r->error, g->n_meta * sizeof(gguf_meta), "the table of keys");
    result = gguf_keys(*r, g->meta, g->n_meta, &end);
    if (result != NOVA_OK) return result;
    r->at         = end;
    g->meta_index = gguf_sort(g, a, g->n_meta, gguf_less_meta);
    if (!g->meta_index) return fail_memory(r->error, g->n_meta * sizeof(uint32_t), "the index of keys");
    for (uint32_t i = 1; i < g->n_meta; i++) {
        str key = g->meta[g->meta_index[i]].key;
        if (str_eq(g->meta[g->meta_index[i - 1]].key, key))
            return fail_at(r->error, NOVA_ERROR_FORMAT, (uint64_t)((const uint8_t *)key.p - g->data),
                           "key \"%.*s\" is there twice", STR_ARG(key));
    }
    return NOVA_OK;
}

static nova_result gguf_alignment(gguf_reader *r, gguf *g) {
    g->alignment = 32;
    nova_result result = gguf_get_u32(g, "general.alignment", &g->alignment, r->error);
    if (result != NOVA_OK) return result;
    if (g->alignment < 8 || (g->alignment & (g->alignment - 1)) != 0)
        return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_find(g, str_c("general.alignment"))->offset,
                       "key \"general.alignment\": %u is not a power of two from 8 up", g->alignment);
    return NOVA_OK;
}

static bool u64_mul(uint64_t a, uint64_t b, uint64_t *out) {
    if (b != 0 && a > UINT64_MAX / b) return false;
    *out = a * b;
    return true;
}

/* Sets n_bytes. Weights are counted in int64_t by everybody, so that is their limit. */
static nova_result gguf_tensor_size(gguf_reader *r, gguf_tensor *t, size_t at) {
    const type_layout *type = type_of(t->type);
    uint64_t weights = 1;
    if (!type->name) return gguf_fail(r, NOVA_ERROR_UNSUPPORTED, at, "its type number %u is not supported", t->type);
    for (uint32_t i = 0; i < 4; i++)
        if (!u64_mul(weights, t->ne[i], &weights) || weights > INT64_MAX)
            return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its dimensions multiply to more than 2^63 weights");
    if (t->ne[0] % type->block_weights != 0)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its rows of %llu weights are no whole blocks of %s (%u weights)",
                         (unsigned long long)t->ne[0], type->name, type->block_weights);
    if (!u64_mul(weights / type->block_weights, type->block_bytes, &t->n_bytes))
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its size overflows");
    return NOVA_OK;
}

/* A tensor's entry. Its place comes relative to the weights, whose start is not known yet: *offset. */
static nova_result gguf_info_read(gguf_reader *r, gguf_tensor *t, uint64_t *offset) {
    size_t      at = r->at;
    nova_result result = gguf_name(r, &t->name);
    if (result != NOVA_OK || (result = gguf_u32(r, &t->n_dims, "number of dimensions")) != NOVA_OK) return result;
    if (t->n_dims < 1 || t->n_dims > 4)
        return gguf_fail(r, NOVA_ERROR_FORMAT, r->at - 4, "it has %u dimensions", t->n_dims);
    for (uint32_t i = 0; i < 4; i++) {
        t->ne[i] = 1;
        if (i < t->n_dims && (result = gguf_u64(r, &t->ne[i], "dimensions")) != NOVA_OK) return result;
        if (t->ne[i] == 0) return gguf_fail(r, NOVA_ERROR_FORMAT, r->at - 8, "dimension %u is 0", i);
    }
    if ((result = gguf_u32(r, &t->type, "type")) != NOVA_OK) return result;
    if ((result = gguf_u64(r, offset, "offset")) != NOVA_OK) return result;
    return gguf_tensor_size(r, t, at);
}

/* Checks where a tensor lies and sets `data`, now that the start of the weights is known. */
static nova_result gguf_place(gguf_reader *r, gguf *g, gguf_tensor *t, uint64_t offset, uint64_t at) {
    uint64_t room = g->size - g->data_offset;
    r->kind = "tensor";
    r->name = t->name;
    if (offset % g->alignment != 0)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its offset %llu is not aligned to %u", (unsigned long long)offset,
                         g->alignment);
    if (offset > room || t->n_bytes > room - offset)
        return gguf_fail(r, NOVA_ERROR_FORMAT, at, "its %llu bytes at %llu of the weights run over the file's end",
                         (unsigned long long)t->n_bytes, (unsigned long long)offset);
    t->data = g->data + g->data_offset + offset;
    return NOVA_OK;
}

/* Where a tensor's entry starts in the file, for messages. */
static uint64_t gguf_info_at(const gguf *g, const gguf_tensor *t) {
    return (uint64_t)((const uint8_t *)t->name.p - g->data) - 8;
}

/* Names must differ, and places too. */
static nova_result gguf_tensors_check(gguf_reader *r, gguf *g, arena *a) {
    uint32_t *place = gguf_sort(g, a, g->n_tensors, gguf_less_place);
    g->tensor_index = gguf_sort(g, a, g->n_tensors, gguf_less_tensor);
    if (!place || !g->tensor_index)
        return fail_memory(r->error, g->n_tensors * sizeof(uint32_t), "the index of tensors");
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        const gguf_tensor *t = &g->tensors[g->tensor_index[i]], *before = &g->tensors[g->tensor_index[i - 1]];
        if (str_eq(before->name, t->name))
            return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_info_at(g, t), "tensor \"%.*s\" is there twice",
                           STR_ARG(t->name));
        t      = &g->tensors[place[i]];
        before = &g->tensors[place[i - 1]];
        if (before->n_bytes > (uint64_t)(t->data - before->data))
            return fail_at(r->error, NOVA_ERROR_FORMAT, gguf_info_at(g, t), "tensors \"%.*s\" and \"%.*s\" overlap",
                           STR_ARG(before->name), STR_ARG(t->name));
    }
    return NOVA_OK;
}

/* Reads the tensors' entries into the tables, or (NULL) only checks them, as gguf_keys does. */
static nova_result gguf_infos(gguf_reader r, gguf_tensor *table, uint64_t *offsets, uint32_t n, size_t *end) {
    nova_result result = NOVA_OK;
    gguf_tensor one;
    uint64_t    offset;
    for (uint32_t i = 0; i < n && result == NOVA_OK; i++) {
        gguf_begin(&r, "tensor", i);
        result = gguf_info_read(&r, table ? &table[i] : &one, table ? &offsets[i] : &offset);
    }
    *end = r.at;
    return result;
}

static nova_result gguf_tensors_read(gguf_reader *r, gguf *g, arena *a) {
    size_t      end;
    nova_result result = g->n_tensors > GGUF_MANY ? gguf_infos(*r, NULL, NULL, g->n_tensors, &end) : NOVA_OK;
    if (result != NOVA_OK) return result;
    g->tensors        = (gguf_tensor *)gguf_table(a, g->n_tensors, sizeof(gguf_tensor));
    uint64_t *offsets = (uint64_t *)gguf_table(a, g->n_tensors, sizeof(uint64_t));
    if (!g->tensors || !offsets)
        return fail_memory(r->error, g->n_tensors * sizeof(gguf_tensor), "the table of tensors");
    result = gguf_infos(*r, g->tensors, offsets, g->n_tensors, &end);
    if (result != NOVA_OK || g->n_tensors == 0) return result;
    uint64_t padding = (g->alignment - end % g->alignment) % g->alignment;
    if (padding > g->size - end) return fail_at(r->error, NOVA_ERROR_FORMAT, end, "the file ends before its weights");
    g->data_offset = end + padding;
    for (uint32_t i = 0; i < g->n_tensors && result == NOVA_OK; i++)
        result = gguf_place(r, g, &g->tensors[i], offsets[i], gguf_info_at(g, &g->tensors[i]));
    return result == NOVA_OK ? gguf_tensors_check(r, g, a) : result;
}

static nova_result gguf_read(gguf *g, arena *a, const uint8_t *data, size_t size, bool vocab_only, nova_error *error) {
    gguf_reader r;
    memset(&r, 0, sizeof r);
    r.data  = data;
    r.size  = size;
    r.error = error;
    memset(g, 0, sizeof *g);
    g->data = data;
    g->size = size;
    nova_result result = gguf_head(&r, g, vocab_only);
    if (result == NOVA_OK) result = gguf_meta_read(&r, g, a);
    if (result == NOVA_OK) result = gguf_alignment(&r, g);
    if (result == NOVA_OK) result = gguf_tensors_read(&r, g, a);
    return result;
}

/* ---- Finding ---- */

static const gguf_value *gguf_find(const gguf *g, str key) {
    for (uint32_t lo = 0, hi = g->n_meta; lo < hi;) {
        uint32_t         mid   = lo + (hi - lo) / 2;
        const gguf_meta *m     = &g->meta[g->meta_index[mid]];
        int              order = name_order(key, m->key);
        if (order == 0) return &m->value;
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

static nova_result gguf_join(gguf *g, arena *a, const gguf *other, nova_error *error) {
    uint64_t     n   = (uint64_t)g->n_tensors + other->n_tensors;
    gguf_tensor *all = n < UINT32_MAX ? (gguf_tensor *)arena_alloc(a, (size_t)n * sizeof *all) : NULL;
    if (!all) return fail_memory(error, (size_t)n * sizeof *all, "the tensors of several files");
    if (g->n_tensors) memcpy(all, g->tensors, g->n_tensors * sizeof *all);
    if (other->n_tensors) memcpy(all + g->n_tensors, other->tensors, other->n_tensors * sizeof *all);
    g->tensors      = all;
    g->n_tensors    = (uint32_t)n;
    g->tensor_index = gguf_sort(g, a, g->n_tensors, gguf_less_tensor);
    if (!g->tensor_index) return fail_memory(error, (size_t)n * sizeof(uint32_t), "the index of tensors");
    for (uint32_t i = 1; i < g->n_tensors; i++) {
        str name = all[g->tensor_index[i]].name;
        if (str_eq(name, all[g->tensor_index[i - 1]].name))
            return fail(error, NOVA_ERROR_FORMAT, "the tensor '%.*s' is in two of the files", STR_ARG(name));
    }
    return NOVA_OK;
}

static const gguf_tensor *gguf_find_tensor(const gguf *g, str name) {
    for (uint32_t lo = 0, hi = g->n_tensors; lo < hi;) {
        uint32_t           mid   = lo + (hi - lo) / 2;
        const gguf_tensor *t     = &g->tensors[g->tensor_index[mid]];
        int                order = name_order(name, t->name);
        if (order == 0) return t;
        if (order < 0) hi = mid;
        else lo = mid + 1;
    }
    return NULL;
}

/* ---- Numbers ---- */

/* What a number's type can hold: an integer with its sign apart, or a double. */
typedef struct gguf_number { bool is_int, negative; uint64_t magnitude; double real; } gguf_number;

static gguf_number number_unsigned(uint64_t u) {
    gguf_number n;
    n.is_int    = true;
    n.negative  = false;
    n.magnitude = u;
    n.real      = (double)u;
    return n;
}

static gguf_number number_signed(int64_t i) {
    gguf_number n = number_unsigned(i < 0 ? 0 - (uint64_t)i : (uint64_t)i);
    n.negative = i < 0;
    n.real     = (double)i;
    return n;
}

static gguf_number number_real(double d) {
    gguf_number n = number_unsigned(0);
    n.is_int = false;
    n.real   = d;
    return n;
}

/* Of a type that has a fixed size. */
static gguf_number gguf_number_at(gguf_type type, const uint8_t *p) {
    double d;
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: return number_unsigned(p[0]);
    case GGUF_I8:   return number_signed((int8_t)p[0]);
    case GGUF_U16:  return number_unsigned(load_u16(p));
    case GGUF_I16:  return number_signed((int16_t)load_u16(p));
    case GGUF_U32:  return number_unsigned(load_u32(p));
    case GGUF_I32:  return number_signed((int32_t)load_u32(p));
    case GGUF_U64:  return number_unsigned(load_u64(p));
    case GGUF_I64:  return number_signed((int64_t)load_u64(p));
    case GGUF_F32:  return number_real((double)load_f32(p));
    case GGUF_F64:  memcpy(&d, p, sizeof d); return number_real(d);
    default:        return number_real(0.0);
    }
}

static bool type_is_number(gguf_type type) { return type != GGUF_STRING && type != GGUF_ARRAY && type != GGUF_BOOL; }

static nova_result fail_type(const gguf_value *v, const char *key, const char *want, nova_error *error) {
    return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": its type is %s, not %s", key,
                   gguf_types[v->type].name, want);
}

static nova_result gguf_get_u32(const gguf *g, const char *key, uint32_t *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (!type_is_number(v->type)) return fail_type(v, key, "an integer", error);
    gguf_number n = gguf_number_at(v->type, v->data);
    if (!n.is_int) return fail_type(v, key, "an integer", error);
    if (n.negative || n.magnitude > UINT32_MAX)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": %s%llu is out of range", key,
                       n.negative ? "-" : "", (unsigned long long)n.magnitude);
    *out = (uint32_t)n.magnitude;
    return NOVA_OK;
}

static nova_result gguf_get_f32(const gguf *g, const char *key, float *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (!type_is_number(v->type)) return fail_type(v, key, "a number", error);
    double d = gguf_number_at(v->type, v->data).real;
    if (!f64_is_finite(d) || fabs(d) > (double)FLT_MAX)
        return fail_at(error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\": %g is no finite float", key, d);
    *out = (float)d;
    return NOVA_OK;
}

static nova_result gguf_get_bool(const gguf *g, const char *key, bool *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (v->type != GGUF_BOOL) return fail_type(v, key, "a bool", error);
    *out = v->data[0] != 0;
    return NOVA_OK;
}

static nova_result gguf_get_str(const gguf *g, const char *key, str *out, nova_error *error) {
    const gguf_value *v = gguf_find(g, str_c(key));
    if (!v) return NOVA_OK;
    if (v->type != GGUF_STRING) return fail_type(v, key, "a string", error);
    *out = str_of((const char *)v->data + 8, (size_t)load_u64(v->data));
    return NOVA_OK;
}

/* ---- Arrays ---- */

static bool gguf_array_is(const gguf_value *v, gguf_type item) { return v && v->type == GGUF_ARRAY && v->item == item; }

static float gguf_item_f32(const gguf_value *v, uint64_t i) {
    return (float)gguf_number_at(v->item, v->data + i * gguf_types[v->item].size).real;
}

static int64_t gguf_item_int(const gguf_value *v, uint64_t i) {
    gguf_number n = gguf_number_at(v->item, v->data + i * gguf_types[v->item].size);
    if (n.negative) return -(int64_t)(n.magnitude - 1) - 1;   /* INT64_MIN has no positive twin */
    return n.magnitude > INT64_MAX ? INT64_MAX : (int64_t)n.magnitude;
}

static gguf_strings gguf_strings_of(const gguf_value *v) {
    gguf_strings s;
    s.at   = v->data;
    s.left = v->n;
    return s;
}

static bool gguf_strings_next(gguf_strings *s, str *out) {
    if (s->left == 0) return false;
    *out = str_of((const char *)s->at + 8, (size_t)load_u64(s->at));
    s->at += 8 + out->n;
    s->left--;
    return true;
}

/* ---- Printing ---- */

typedef struct printer { char *p; size_t n, size; } printer;

/* How many of the n bytes are whole characters: a character of UTF-8 that was cut at the end is left out. */
static size_t whole_characters(const char *p, size_t n) {
    size_t start = n, back = 0;
    while (start > 0 && back < 3 && ((unsigned char)p[start - 1] & 0xC0) == 0x80) start--, back++;
    if (start == 0) return n;
    unsigned char lead = (unsigned char)p[start - 1];
    size_t        need = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
    return back + 1 < need ? start - 1 : n;
}

static void print_bytes(printer *o, const char *p, size_t n) {
    n = size_min(n, o->size - 1 - o->n);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        o->p[o->n++] = (char)(c < 32 || c == 127 ? ' ' : c);
    }
}

/* The shortest text that reads back as the same number; with a point in every language the host may have chosen. */
static void print_real(double d, bool single, char text[40]) {
    int digits = single ? 6 : 15, most = single ? 9 : 17;
    for (; digits <= most; digits++) {
        snprintf(text, 40, "%.*g", digits, d);
        double back = strtod(text, NULL);
        if (single ? (float)back == (float)d : back == d) break;
    }
    for (char *c = text; *c; c++)
        if (*c == ',') *c = '.';
}

static void print_number(printer *o, gguf_type type, const uint8_t *p) {
    char        text[40];
    gguf_number n = gguf_number_at(type, p);
    if (!n.is_int) print_real(n.real, type == GGUF_F32, text);
    else snprintf(text, sizeof text, "%s%llu", n.negative ? "-" : "", (unsigned long long)n.magnitude);
    print_bytes(o, text, strlen(text));
}

/* A value that is no array. */
static void print_scalar(printer *o, gguf_type type, const uint8_t *p) {
    if (type == GGUF_STRING) print_bytes(o, (const char *)p + 8, (size_t)load_u64(p));
    else if (type == GGUF_BOOL) print_bytes(o, p[0] ? "true" : "false", p[0] ? 4 : 5);
    else print_number(o, type, p);
}

/* A string among others: its start is enough. */
static void print_quoted(printer *o, const char *p, size_t n) {
    size_t cut = size_min(n, 48);
    if (cut < n) cut = whole_characters(p, cut);
    print_bytes(o, "\"", 1);
    print_bytes(o, p, cut);
    print_bytes(o, cut < n ? "...\"" : "\"", cut < n ? 4 : 1);
}

static void print_array(printer *o, const gguf_value *v) {
    char           head[64];
    uint64_t       n = v->item == GGUF_ARRAY ? 0 : v->n < 8 ? v->n : 8;   /* items that are shown */
    const uint8_t *p = v->data;
    snprintf(head, sizeof head, "%llu x %s", (unsigned long long)v->n, gguf_types[v->item].name);
    print_bytes(o, head, strlen(head));
    for (uint64_t i = 0; i < n; i++) {
        size_t length = v->item == GGUF_STRING ? (size_t)load_u64(p) : 0;
        print_bytes(o, i ? ", " : ": ", 2);
        if (v->item == GGUF_STRING) print_quoted(o, (const char *)p + 8, length);
        else print_scalar(o, v->item, p);
        p += gguf_least(v->item) + length;
    }
    if (n && n < v->n) print_bytes(o, ", ...", 5);
}

static void gguf_print(const gguf_value *v, char *text, size_t size) {
    printer o;
    if (size == 0) return;
    o.p    = text;
    o.n    = 0;
    o.size = size;
    if (v->type == GGUF_ARRAY) print_array(&o, v);
    else print_scalar(&o, v->type, v->data);
    if (o.n == size - 1) o.n = whole_characters(text, o.n);
    text[o.n] = 0;
}
