/* A tokenizer's vocabulary: see vocab.h. */
#include "vocab.h"

#define PROBES_MOST 1024   /* steps in a hash table, which only a file made for it comes near */
#define MERGE_BATCH 32     /* merges read at once, so that their memory comes in while others are looked at */

static str text_at(const vocab *v, uint32_t place) {
    const uint8_t *p = v->tokens->data + place;
    return str_of((const char *)p + 8, (size_t)load_u64(p));
}

static str token_text(const vocab *v, uint32_t id) { return text_at(v, v->place[id]); }

static token_type token_type_of(const vocab *v, uint32_t id) {
    if (!v->types) return VOCAB_NORMAL;
    if (v->types->item == GGUF_I32)
        return (token_type)load_u32(v->types->data + id * sizeof(uint32_t)); /* as most are */
    return (token_type)gguf_item_int(v->types, id);
}

/* ---- Hash tables ---- */

#if defined(__GNUC__) || defined(__clang__)
#define VOCAB_PREFETCH(p) __builtin_prefetch(p)
#else
#define VOCAB_PREFETCH(p) ((void)(p))
#endif

#define HASH_ODD 0x9e3779b97f4a7c15u   /* 2^64 over the golden ratio */

static uint64_t hash_mix(uint64_t h) {
    h = (h ^ h >> 32) * HASH_ODD;
    return h ^ h >> 29;
}

/* Eight bytes a step: texts are hashed by the hundred thousand when a file opens. */
static uint64_t hash_text(str s) {
    uint64_t h = s.n * HASH_ODD, last = 0;
    for (; s.n > 8; s.p += 8, s.n -= 8) h = hash_mix(h ^ load_u64(s.p)) * HASH_ODD;
    if (s.n >= 4) last = load_u32(s.p) | (uint64_t)load_u32(s.p + s.n - 4) << 32;
    else for (size_t i = 0; i < s.n; i++) last = last << 8 | (unsigned char)s.p[i];
    return hash_mix((h ^ last) * HASH_ODD);
}

static uint64_t hash_pair(uint64_t pair) { return hash_mix(pair * HASH_ODD); }

static bool table_init(number_table *x, arena *a, uint32_t n) {
    x->n    = n + n / 2 + 8;
    x->bits = 1;
    while (n >> x->bits) x->bits++;
    x->slots = (uint32_t *)arena_zalloc(a, (size_t)x->n * sizeof(uint32_t));
    return x->slots != NULL;
}

NOVA_INLINE uint32_t table_home(const number_table *x, uint64_t hash) { return (uint32_t)((hash >> 32) * x->n >> 32); }
NOVA_INLINE uint32_t table_next(const number_table *x, uint32_t i) { return i + 1 == x->n ? 0 : i + 1; }
NOVA_INLINE uint32_t table_number(const number_table *x, uint32_t slot) { return (slot & ((1u << x->bits) - 1)) - 1; }
NOVA_INLINE bool     table_like(const number_table *x, uint32_t slot, uint64_t hash) {
    return (slot ^ (uint32_t)hash) >> x->bits == 0;
}

/* Puts a number into the first free slot and says which; false when that is too far. */
static bool table_put(number_table *x, uint64_t hash, uint32_t number, uint32_t *slot) {
    uint32_t i = table_home(x, hash);
    for (int probes = 0; probes < PROBES_MOST; probes++, i = table_next(x, i)) {
        if (x->slots[i]) continue;
        x->slots[i] = (uint32_t)hash >> x->bits << x->bits | (number + 1);
        *slot = i;
        return true;
    }
    return false;
}

static int32_t vocab_find_hashed(const vocab *v, str text, uint64_t hash) {
    const number_table *x = &v->by_text;
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i)) {
        bool like = table_like(x, slot, hash);
        if (like && str_eq(text_at(v, v->slot_place[i]), text)) return (int32_t)table_number(x, slot);
    }
    return -1;
}

static int32_t vocab_find(const vocab *v, str text) {
    return text.n == 0 || text.n > v->max_text ? -1 : vocab_find_hashed(v, text, hash_text(text));
}

static uint32_t merge_find(const vocab *v, uint64_t pair, int32_t *whole) {
    const number_table *x = &v->by_pair;
    uint64_t hash = hash_pair(pair);
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i)) {
        uint32_t rank = table_number(x, slot);
        if (!table_like(x, slot, hash) || v->merges[rank] >> ID_BITS != pair) continue;
        *whole = (int32_t)(v->merges[rank] & VOCAB_MOST);
        return rank;
    }
    return NO_RANK;
}

/* ---- GPT-2's names of bytes ---- */

/* Printable bytes stand for themselves, the others for U+0100 onwards in their order. */
static uint32_t byte_char(uint32_t b) {
    if (b <= 32) return 256 + b;
    if (b >= 127 && b <= 160) return 256 + 33 + (b - 127);
    return b == 173 ? 256 + 67 : b;
}

/* The byte that a character names, or -1. */
static int char_byte(uint32_t c) {
    if (c < 256) return byte_char(c) == c ? (int)c : -1;
    c -= 256;
    return c <= 32 ? (int)c : c <= 66 ? (int)(c - 33 + 127) : c == 67 ? 173 : -1;
}

/* ---- Opening ---- */

typedef struct vocab_opening {
    vocab      *v;
    arena      *a;
    const host *h;
    const gguf *g;
    nova_error *error;
} vocab_opening;

#define TRY_VOCAB(call)                                \
    do {                                               \
        nova_result try_result = (call);               \
        if (try_result != NOVA_OK) return try_result;  \
    } while (0)

/* `at`: the place in the file, or NULL. */
static nova_result open_fail(const vocab_opening *o, nova_result code, const void *at, const char *format, ...)
    NOVA_PRINTF(4, 5);
static nova_result open_fail(const vocab_opening *o, nova_result code, const void *at, const char *format, ...) {
    char    what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return fail_at(o->error, code, at ? (uint64_t)((const uint8_t *)at - o->g->data) : NOVA_NOWHERE, "%s", what);
}

static nova_result open_kind(vocab_opening *o) {
    str model = {NULL, 0}, pre = str_c("default");
    TRY_VOCAB(gguf_get_str(o->g, "tokenizer.ggml.model", &model, o->error));
    if (!model.p) return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"tokenizer.ggml.model\"");
    o->v->is_spm = str_is(model, "llama");
    if (o->v->is_spm) return NOVA_OK;
    if (!str_is(model, "gpt2"))
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, model.p, "tokenizer \"%.*s\" is not supported", STR_ARG(model));
    TRY_VOCAB(gguf_get_str(o->g, "tokenizer.ggml.pre", &pre, o->error));
    o->v->rule = pre_find(pre);
    if (!o->v->rule)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, pre.p, "pre-tokenizer \"%.*s\" is not supported", STR_ARG(pre));
    return NOVA_OK;
}

/* An array with an item a token, NULL where the file has none. */
static nova_result open_array(vocab_opening *o, const char *key, bool real, const gguf_value **out) {
    const gguf_value *array = gguf_find(o->g, str_c(key));
    *out = array;
    if (!array) return NOVA_OK;
    gguf_type item = array->type == GGUF_ARRAY ? array->item : GGUF_STRING;
    bool      none = item == GGUF_STRING || item == GGUF_ARRAY || item == GGUF_BOOL;
    if (none || (!real && (item == GGUF_F32 || item == GGUF_F64)))
        return open_fail(o, NOVA_ERROR_FORMAT, array->data, "key \"%s\" is no array of %s", key,
                         real ? "numbers" : "integers");
    if (array->n != o->v->n_vocab)
        return open_fail(o, NOVA_ERROR_FORMAT, array->data, "key \"%s\" has %llu items for %u tokens", key,
                         (unsigned long long)array->n, o->v->n_vocab);
    return NOVA_OK;
}

/* The array of strings that a key must hold. */
static nova_result open_texts(vocab_opening *o, const char *key, const gguf_value **out) {
    *out = gguf_find(o->g, str_c(key));
    if (!*out) return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"%s\"", key);
    if (gguf_array_is(*out, GGUF_STRING)) return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, (*out)->data, "key \"%s\" is no array of strings", key);
}

/* By its bits: a host may have been compiled for numbers that are all finite. */
/* Types and scores, which from here on can be trusted; counts the special tokens. */
static nova_result open_numbers(vocab_opening *o) {
    vocab *v = o->v;
    TRY_VOCAB(open_array(o, "tokenizer.ggml.token_type", false, &v->types));
    TRY_VOCAB(open_array(o, "tokenizer.ggml.scores", true, &v->scores));
    if (v->is_spm && !v->scores)
        return open_fail(o, NOVA_ERROR_FORMAT, NULL, "the file has no key \"tokenizer.ggml.scores\"");
    for (uint32_t i = 0; i < v->n_vocab; i++) {
        int64_t type = v->types ? gguf_item_int(v->types, i) : (int64_t)VOCAB_NORMAL;
        if (type < 0 || type >= TOKEN_TYPE_COUNT)
            return open_fail(o, NOVA_ERROR_FORMAT, v->types->data, "token %u has type %lld", i, (long long)type);
        if (v->is_spm && !f32_is_finite(gguf_item_f32(v->scores, i)))
            return open_fail(o, NOVA_ERROR_FORMAT, v->scores->data, "the score of token %u is no finite number", i);
        v->n_special += type == VOCAB_CONTROL || type == VOCAB_UNKNOWN || type == VOCAB_USER;
    }
    return NOVA_OK;
}

static nova_result open_arrays(vocab_opening *o) {
    vocab *v = o->v;
    TRY_VOCAB(open_texts(o, "tokenizer.ggml.tokens", &v->tokens));
    const gguf_value *tokens = v->tokens;
    if (tokens->n == 0) return open_fail(o, NOVA_ERROR_FORMAT, tokens->data, "key \"tokenizer.ggml.tokens\" is empty");
    if (tokens->n > VOCAB_MOST || (uint64_t)(tokens->end - tokens->data) > UINT32_MAX)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, tokens->data, "a vocabulary of %llu tokens is too large",
                         (unsigned long long)tokens->n);
    v->n_vocab = (uint32_t)tokens->n;
    return open_numbers(o);
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0x0A>" names, or -1. */
static int byte_named(str s) {
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    int high = hex_digit(s.p[3]), low = hex_digit(s.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Notes what stands before a space that has something else before it. */
static void note_joins(vocab *v, str s) {
    size_t at = 0;
    while (s.n - at >= SPM_SPACE_BYTES && memcmp(s.p + at, SPM_SPACE, SPM_SPACE_BYTES) == 0) at += SPM_SPACE_BYTES;
    for (const char *end = s.p + s.n, *p = s.p + at; (size_t)(end - p) >= SPM_SPACE_BYTES; p++) {
        p = (const char *)memchr(p, SPM_SPACE[0], (size_t)(end - p) - (SPM_SPACE_BYTES - 1));
        if (!p) return;
        if (p > s.p && memcmp(p, SPM_SPACE, SPM_SPACE_BYTES) == 0) v->joins[(unsigned char)p[-1]] = true;
    }
}

/* As the text of a special token stands in a text that special_find reads: with SentencePiece's spaces. */
static nova_result open_special(vocab_opening *o, uint32_t id, str text, token_type type) {
    vocab *v = o->v;
    size_t     spaces = 0;
    for (size_t i = 0; v->is_spm && i < text.n; i++) spaces += text.p[i] == ' ';
    if (spaces) {
        size_t size = text.n + spaces * (SPM_SPACE_BYTES - 1), n = 0;
        char  *p    = (char *)arena_alloc(o->a, size);
        if (!p) return fail_memory(o->error, size, "a special token");
        for (size_t i = 0; i < text.n; i++) {
            size_t part = text.p[i] == ' ' ? SPM_SPACE_BYTES : 1;
            memcpy(p + n, part == 1 ? text.p + i : SPM_SPACE, part);
            n += part;
        }
        text = str_of(p, size);
    }
    special *s = &v->specials[v->n_special++];
    s->text    = text;
    s->id      = (int32_t)id;
    s->control = type != VOCAB_USER;
    return NOVA_OK;
}

/* What text can become this token. Of equal texts the first stands. */
static nova_result open_plain(vocab_opening *o, uint32_t id, str text) {
    vocab *v    = o->v;
    uint64_t   hash = hash_text(text);
    uint32_t   slot = 0;
    v->max_text = size_max(v->max_text, text.n);
    if (v->is_spm) note_joins(v, text);
    if (vocab_find_hashed(v, text, hash) >= 0) return NOVA_OK;
    if (!table_put(&v->by_text, hash, id, &slot))
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "token %u: the texts of too many tokens hash alike", id);
    v->slot_place[slot] = v->place[id];
    return NOVA_OK;
}

static nova_result open_token(vocab_opening *o, uint32_t id, str text) {
    vocab     *v    = o->v;
    token_type type = token_type_of(v, id);
    int        byte = byte_named(text);
    bool       hidden = type == VOCAB_CONTROL || type == VOCAB_UNKNOWN;
    v->place[id] = (uint32_t)((const uint8_t *)text.p - 8 - v->tokens->data);
    if (type == VOCAB_BYTE && byte < 0)
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "token %u is a byte but reads \"%.*s\"", id, STR_ARG(text));
    if (text.n > v->max_piece) v->max_piece = size_max(v->max_piece, vocab_piece(v, (int32_t)id, false, true, NULL, 0));
    if (type == VOCAB_BYTE || (!v->types && v->is_spm && byte >= 0)) {
        if (v->is_spm && v->byte_id[byte] < 0) v->byte_id[byte] = (int32_t)id;
        return NOVA_OK;
    }
    if (text.n == 0) return NOVA_OK;
    if (hidden || type == VOCAB_USER) TRY_VOCAB(open_special(o, id, text, type));
    return hidden ? NOVA_OK : open_plain(o, id, text);
}

/* ---- Special tokens ---- */

static bool special_less(const special *a, const special *b) {
    int order = memcmp(a->text.p, b->text.p, size_min(a->text.n, b->text.n));
    return order ? order < 0 : a->text.n != b->text.n ? a->text.n < b->text.n : a->id < b->id;
}

static void special_sift(special *s, size_t i, size_t n) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && special_less(&s[child], &s[child + 1])) child++;
        if (!special_less(&s[i], &s[child])) return;
        special top = s[i];
        s[i]     = s[child];
        s[child] = top;
    }
}

static void special_sort(special *s, size_t n) {
    for (size_t i = n / 2; i-- > 0;) special_sift(s, i, n);
    for (size_t i = n; i-- > 1;) {
        special top = s[0];
        s[0] = s[i];
        s[i] = top;
        special_sift(s, 0, i);
    }
}

/* Of the specials lo ... hi - 1, which agree in `depth` bytes and have more: those whose next byte is `c`. */
static void special_narrow(const special *s, size_t depth, unsigned char c, uint32_t *lo, uint32_t *hi) {
    uint32_t a = *lo, b = *hi;
    while (a < b) {
        uint32_t mid = a + (b - a) / 2;
        if ((unsigned char)s[mid].text.p[depth] < c) a = mid + 1;
        else b = mid;
    }
    *lo = a;
    for (b = *hi; a < b;) {
        uint32_t mid = a + (b - a) / 2;
        if ((unsigned char)s[mid].text.p[depth] <= c) a = mid + 1;
        else b = mid;
    }
    *hi = a;
}

static int32_t special_find(const vocab *v, str text, size_t at, uint32_t want, size_t *end) {
    uint32_t lo = 0, hi = v->n_special, part = 0;   /* part: bytes of a space's three that were read */
    int32_t  found = -1;
    bool     marked = false;                        /* behind the first byte */
    for (size_t i = at, depth = 0; i < text.n && lo < hi; depth++) {
        if ((want & FIND_MARKED) && text.p[i] == TOKEN_MARK) {
            marked = true;
            for (i++; i < text.n && text.p[i] == TOKEN_MARK; i++) {}
            if (i == text.n) break;
        }
        char c = text.p[i];
        if (c == ' ' && v->is_spm) {
            c    = SPM_SPACE[part];
            part = (part + 1) % SPM_SPACE_BYTES;
        }
        i += part == 0;
        special_narrow(v->specials, depth, (unsigned char)c, &lo, &hi);
        for (; lo < hi && v->specials[lo].text.n == depth + 1; lo++) {
            const special *s = &v->specials[lo];
            bool hidden = marked || (depth == 0 && (want & FIND_MARKED) && i < text.n && text.p[i] == TOKEN_MARK);
            if (part || !(want & (s->control ? FIND_CONTROL : FIND_USER)) || (s->control && hidden)) continue;
            if (found >= 0 && *end == i) continue;   /* of equal texts the first */
            found = s->id;
            *end  = i;
        }
    }
    return found;
}

/* Is there a special token of just this text? */
static bool special_is(const vocab *v, str text) {
    uint32_t lo = 0, hi = v->n_special;
    for (size_t depth = 0; depth < text.n && lo < hi; depth++) {
        special_narrow(v->specials, depth, (unsigned char)text.p[depth], &lo, &hi);
        if (depth + 1 == text.n) return lo < hi && v->specials[lo].text.n == text.n;
        while (lo < hi && v->specials[lo].text.n == depth + 1) lo++;
    }
    return false;
}

/* Single characters, which words are first taken apart into. */
static void open_characters(vocab *v) {
    char name[4];
    for (uint32_t b = 0; b < 256 && !v->is_spm; b++)
        v->byte_id[b] = vocab_find(v, str_of(name, utf8_put(byte_char(b), name)));
    for (uint32_t c = 0; c < 128 && v->is_spm; c++) v->ascii_id[c] = vocab_find(v, str_of(name, utf8_put(c, name)));
}

static nova_result open_vocab(vocab_opening *o) {
    vocab *v = o->v;
    size_t     special_bytes = v->n_special * sizeof(special), place_bytes = v->n_vocab * sizeof(uint32_t);
    v->place    = (uint32_t *)arena_alloc(o->a, place_bytes);
    v->specials = (special *)arena_alloc(o->a, special_bytes);
    if (table_init(&v->by_text, o->a, v->n_vocab))
        v->slot_place = (uint32_t *)arena_alloc(o->a, v->by_text.n * sizeof(uint32_t));
    if (!v->place || !v->specials || !v->slot_place)
        return fail_memory(o->error, place_bytes * 4 + special_bytes, "the vocabulary");
    memset(v->byte_id, 0xFF, sizeof v->byte_id);
    v->n_special = 0;
    gguf_strings strings = gguf_strings_of(v->tokens);
    str          text;
    for (uint32_t id = 0; gguf_strings_next(&strings, &text); id++) TRY_VOCAB(open_token(o, id, text));
    special_sort(v->specials, v->n_special);
    for (uint32_t i = 0; i < v->n_special; i++) {
        unsigned char c = (unsigned char)v->specials[i].text.p[0], lower = c | 0x20;
        v->starts[c] = true;
        if (!v->specials[i].control || c >= sizeof v->begins) continue;
        v->begins[c] = true;
        if (lower >= 'a' && lower <= 'z') v->begins[lower] = v->begins[lower ^ 0x20] = true;
    }
    if (v->is_spm) v->starts[(unsigned char)' '] = v->starts[(unsigned char)SPM_SPACE[0]];
    open_characters(v);
    return NOVA_OK;
}

/* ---- Merges ---- */

/* A merge as it is read: "left right". */
typedef struct merge_text {
    str      text, left, right;
    uint64_t left_hash, right_hash;
    uint64_t pair;     /* NO_PAIR: it is left out */
    int32_t  whole;
} merge_text;

#define NO_PAIR UINT64_MAX

typedef struct merge_reader {
    int32_t whole;     /* what the last merge makes */
    char   *scratch;   /* max_text bytes */
} merge_reader;

/* The token that the parts spell together; -1: none. Lists of merges go by what they make, so the last one's token and
 * the next are tried first. */
static int32_t merge_whole(const vocab *v, const merge_text *m, const merge_reader *r) {
    str    left = m->left, right = m->right;
    size_t n    = left.n + right.n;
    if (n > v->max_text) return -1;
    for (int32_t id = r->whole; id >= 0 && id < r->whole + 2 && (uint32_t)id < v->n_vocab; id++) {
        str s = token_text(v, (uint32_t)id);
        if (s.n == n && memcmp(s.p, left.p, left.n) == 0 && memcmp(s.p + left.n, right.p, right.n) == 0 &&
            token_type_of(v, (uint32_t)id) == VOCAB_NORMAL)
            return id;
    }
    memcpy(r->scratch, left.p, left.n);
    memcpy(r->scratch + left.n, right.p, right.n);
    return vocab_find(v, str_of(r->scratch, n));
}

/* The four steps of reading a merge. Each asks for the memory that the next one needs. */

static nova_result merge_cut(vocab_opening *o, uint32_t rank, str text, merge_text *m) {
    const number_table *x     = &o->v->by_text;
    const char         *space = text.n > 1 ? (const char *)memchr(text.p + 1, ' ', text.n - 1) : NULL;
    if (!space || space + 1 == text.p + text.n)
        return open_fail(o, NOVA_ERROR_FORMAT, text.p, "merge %u is \"%.*s\", not two tokens", rank, STR_ARG(text));
    m->text       = text;
    m->left       = str_of(text.p, (size_t)(space - text.p));
    m->right      = str_of(space + 1, text.n - m->left.n - 1);
    m->left_hash  = hash_text(m->left);
    m->right_hash = hash_text(m->right);
    VOCAB_PREFETCH(&x->slots[table_home(x, m->left_hash)]);
    VOCAB_PREFETCH(&x->slots[table_home(x, m->right_hash)]);
    VOCAB_PREFETCH(&o->v->slot_place[table_home(x, m->left_hash)]);
    VOCAB_PREFETCH(&o->v->slot_place[table_home(x, m->right_hash)]);
    return NOVA_OK;
}

static void merge_fetch(const vocab *v, const merge_text *m) {
    uint32_t left = table_home(&v->by_text, m->left_hash), right = table_home(&v->by_text, m->right_hash);
    if (v->by_text.slots[left]) VOCAB_PREFETCH(v->tokens->data + v->slot_place[left]);
    if (v->by_text.slots[right]) VOCAB_PREFETCH(v->tokens->data + v->slot_place[right]);
}

/* A merge with a control token in it, or that makes one, is left out: text must not become one. */
static nova_result merge_resolve(vocab_opening *o, uint32_t rank, merge_text *m, merge_reader *r) {
    const vocab *v     = o->v;
    int32_t      left  = vocab_find_hashed(v, m->left, m->left_hash);
    int32_t      right = vocab_find_hashed(v, m->right, m->right_hash);
    m->whole = merge_whole(v, m, r);
    if (left >= 0 && right >= 0 && m->whole >= 0) {
        r->whole = m->whole;
        m->pair  = (uint64_t)left << ID_BITS | (uint64_t)right;
        VOCAB_PREFETCH(&v->by_pair.slots[table_home(&v->by_pair, hash_pair(m->pair))]);
        return NOVA_OK;
    }
    size_t n = m->left.n + m->right.n;
    m->pair = NO_PAIR;
    if ((left >= 0 || special_is(v, m->left)) && (right >= 0 || special_is(v, m->right)) &&
        (m->whole >= 0 || (n <= v->max_text && special_is(v, str_of(r->scratch, n)))))
        return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, m->text.p, "merge %u, \"%.*s\", is of or makes an unknown token", rank,
                     STR_ARG(m->text));
}

/* Of twins the first will be found: it comes earlier on the way from the same slot. */
static nova_result merge_put(vocab_opening *o, uint32_t rank, const merge_text *m) {
    vocab   *v = o->v;
    uint32_t slot;
    v->merges[rank] = UINT64_MAX;
    if (m->pair == NO_PAIR) return NOVA_OK;
    v->merges[rank] = m->pair << ID_BITS | (uint64_t)m->whole;
    if (table_put(&v->by_pair, hash_pair(m->pair), rank, &slot)) return NOVA_OK;
    return open_fail(o, NOVA_ERROR_FORMAT, m->text.p, "merge %u: too many merges hash alike", rank);
}

static nova_result merges_read(vocab_opening *o, const gguf_value *array, merge_reader *r) {
    merge_text   batch[MERGE_BATCH];
    gguf_strings strings = gguf_strings_of(array);
    str          text;
    for (uint32_t rank = 0, n; rank < o->v->n_merges; rank += n) {
        for (n = 0; n < MERGE_BATCH && gguf_strings_next(&strings, &text); n++)
            TRY_VOCAB(merge_cut(o, rank + n, text, &batch[n]));
        for (uint32_t i = 0; i < n; i++) merge_fetch(o->v, &batch[i]);
        for (uint32_t i = 0; i < n; i++) TRY_VOCAB(merge_resolve(o, rank + i, &batch[i], r));
        for (uint32_t i = 0; i < n; i++) TRY_VOCAB(merge_put(o, rank + i, &batch[i]));
    }
    return NOVA_OK;
}

static nova_result open_merges(vocab_opening *o) {
    vocab            *v = o->v;
    const gguf_value *array;
    TRY_VOCAB(open_texts(o, "tokenizer.ggml.merges", &array));
    if (array->n > UINT32_MAX / 16)
        return open_fail(o, NOVA_ERROR_UNSUPPORTED, array->data, "%llu merges are too many",
                         (unsigned long long)array->n);
    v->n_merges = (uint32_t)array->n;
    v->merges   = (uint64_t *)arena_alloc(o->a, v->n_merges * sizeof(uint64_t));
    if (!v->merges || !table_init(&v->by_pair, o->a, v->n_merges))
        return fail_memory(o->error, v->n_merges * (size_t)14, "the merges");
    merge_reader r;
    size_t       size = v->max_text + 1;
    r.whole   = -1;
    r.scratch = (char *)mem_alloc(o->h, size);
    if (!r.scratch) return fail_memory(o->error, size, "reading the merges");
    nova_result result = merges_read(o, array, &r);
    mem_free(o->h, r.scratch, size);
    return result;
}

/* ---- Tokens with a job ---- */

static nova_result open_id(vocab_opening *o, const char *key, int32_t *id) {
    const gguf_value *value  = gguf_find(o->g, str_c(key));
    uint32_t          number = 0;
    if (!value) return NOVA_OK;
    TRY_VOCAB(gguf_get_u32(o->g, key, &number, o->error));
    if (number >= o->v->n_vocab)
        return open_fail(o, NOVA_ERROR_FORMAT, value->data, "key \"%s\": %u is none of %u tokens", key, number,
                         o->v->n_vocab);
    *id = (int32_t)number;
    return NOVA_OK;
}

static bool vocab_is_end(const vocab *v, int32_t id) {
    for (uint32_t i = 0; i < v->n_ends; i++)
        if (v->ends[i] == id) return true;
    return false;
}

static void add_end(vocab *v, int32_t id) {
    if (id >= 0 && v->n_ends < ENDS_MOST && !vocab_is_end(v, id)) v->ends[v->n_ends++] = id;
}

/* Special tokens that end a text by what they are called, for files name only one of several. */
static void open_ends(vocab *v) {
    static const char *const names[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>",
        "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<turn|>",
        "[e~[", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
        "<\xEF\xBD\x9C" "end" SPM_SPACE "of" SPM_SPACE "sentence\xEF\xBD\x9C>",
    };
    /* Where there are others for the end of a turn, "<|end|>" ends no more than a message (gpt-oss). */
    bool turns = special_is(v, str_c("<|return|>")) || special_is(v, str_c("<|flush|>"));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        size_t  end = 0;
        str     name = str_c(names[i]);
        int32_t id = special_find(v, name, 0, FIND_USER | FIND_CONTROL, &end);
        if (id >= 0 && end == name.n && !(turns && str_is(name, "<|end|>"))) add_end(v, id);
    }
}

static nova_result open_jobs(vocab_opening *o) {
    vocab *v   = o->v;
    int32_t    eot = -1, eom = -1;
    v->add_bos = v->is_spm || v->rule->bos;
    v->space_prefix = v->is_spm;
    v->unk = v->bos = v->eos = -1;
    if (v->is_spm && v->n_vocab > 2) {   /* SentencePiece's own */
        v->bos = 1;
        v->eos = 2;
    }
    TRY_VOCAB(open_id(o, "tokenizer.ggml.bos_token_id", &v->bos));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eos_token_id", &v->eos));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eot_token_id", &eot));
    TRY_VOCAB(open_id(o, "tokenizer.ggml.eom_token_id", &eom));
    if (v->is_spm) {
        v->unk = 0;
        TRY_VOCAB(open_id(o, "tokenizer.ggml.unknown_token_id", &v->unk));
        TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_space_prefix", &v->space_prefix, o->error));
    }
    TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_bos_token", &v->add_bos, o->error));
    TRY_VOCAB(gguf_get_bool(o->g, "tokenizer.ggml.add_eos_token", &v->add_eos, o->error));
    add_end(v, v->eos);
    add_end(v, eot);
    add_end(v, eom);
    open_ends(v);
    return NOVA_OK;
}

static nova_result vocab_open(vocab **out, arena *a, const host *h, const gguf *g, nova_error *error) {
    vocab_opening o;
    o.v     = (vocab *)arena_zalloc(a, sizeof(vocab));
    o.a     = a;
    o.h     = h;
    o.g     = g;
    o.error = error;
    if (!o.v) return fail_memory(error, sizeof(vocab), "the tokenizer");
    TRY_VOCAB(open_kind(&o));
    TRY_VOCAB(open_arrays(&o));
    TRY_VOCAB(open_vocab(&o));
    if (!o.v->is_spm) TRY_VOCAB(open_merges(&o));
    TRY_VOCAB(open_jobs(&o));
    *out = o.v;
    return NOVA_OK;
}

/* ---- Decoding ---- */

typedef struct piece_writer { char *out; size_t n, capacity; } piece_writer;

static void piece_put(piece_writer *o, char c) {
    if (o->n < o->capacity) o->out[o->n] = c;
    o->n++;
}

static void piece_all(piece_writer *o, str text) {
    for (size_t i = 0; i < text.n; i++) piece_put(o, text.p[i]);
}

static void piece_spm(piece_writer *o, str text, bool first) {
    for (size_t at = 0, length; at < text.n; at += length) {
        bool space = text.n - at >= SPM_SPACE_BYTES && memcmp(text.p + at, SPM_SPACE, SPM_SPACE_BYTES) == 0;
        length = space ? SPM_SPACE_BYTES : 1;
        if (!(space && first && at == 0)) piece_put(o, space ? ' ' : text.p[at]);
    }
}

/* A token with a character that names no byte is no word of bytes: it stands for itself. */
static void piece_bpe(piece_writer *o, str text) {
    for (size_t at = 0, length; at < text.n; at += length) {
        int byte = char_byte(utf8_get(text.p + at, text.n - at, &length));
        if (byte < 0) {
            o->n = 0;
            piece_all(o, text);
            return;
        }
        piece_put(o, (char)byte);
    }
}

static size_t vocab_piece(const vocab *v, int32_t id, bool first, bool want_special, char *out, size_t capacity) {
    if (id < 0 || (uint32_t)id >= v->n_vocab) return 0;
    str          text = token_text(v, (uint32_t)id);
    token_type   type = token_type_of(v, (uint32_t)id);
    int          byte = type == VOCAB_BYTE || (!v->types && v->is_spm) ? byte_named(text) : -1;
    piece_writer o;
    o.out      = out;
    o.n        = 0;
    o.capacity = capacity;
    if (byte >= 0) piece_put(&o, (char)byte);
    else if (type == VOCAB_CONTROL || type == VOCAB_UNKNOWN) piece_all(&o, want_special ? text : str_of(NULL, 0));
    else if (v->is_spm) piece_spm(&o, text, first && v->space_prefix);
    else if (type == VOCAB_USER) piece_all(&o, text);
    else piece_bpe(&o, text);
    return o.n;
}

