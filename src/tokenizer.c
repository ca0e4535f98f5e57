/* Text to token ids and back: see tokenizer.h.
 *
 * Both kinds merge neighbouring symbols of a word, the best pair first, of equals the leftmost. They differ in where
 * words end, in what the symbols are at first, and in what a pair is worth:
 *   llama  characters; a pair is worth the score of the token that it spells (SentencePiece's bpe_model)
 *   gpt2   bytes, each named by a printable character; a pair is worth its place in the list of merges (GPT-2's encoder.py)
 *
 * Texts are never copied from the file: a hash table finds a token by its text, another a merge by its two ids. */
#include "tokenizer.h"
#include "pretokenize.h"

#define ID_BITS     21            /* a merge packs three ids into 64 bits */
#define VOCAB_MOST  ((1u << ID_BITS) - 1)
#define PROBES_MOST 1024          /* steps in a hash table, which only a file made for it comes near */
#define ENDS_MOST   32
#define MERGE_BATCH 32            /* merges read at once, so that their memory comes in while others are looked at */
#define MARK        ((char)0xFF)
#define SPACE       "\xE2\x96\x81" /* U+2581, what SentencePiece writes for a space */
#define SPACE_BYTES 3u
#define NO_RANK     UINT32_MAX

typedef enum token_type {
    TOKEN_UNDEFINED = 0, TOKEN_NORMAL, TOKEN_UNKNOWN, TOKEN_CONTROL, TOKEN_USER, TOKEN_UNUSED, TOKEN_BYTE, TOKEN_TYPE_COUNT
} token_type;

/* Numbers found by a hash, open addressing: in the low `bits` of a slot the number plus 1, above it bits of the hash. */
typedef struct number_table {
    uint32_t *slots;
    uint32_t  n, bits;
} number_table;

/* A token that text is searched for before it is cut into words. */
typedef struct special {
    str     text;
    int32_t id;
    bool    control;
} special;

struct tokenizer {
    const gguf_value *tokens, *types, *scores;   /* arrays of the file; types may be NULL */
    bool              is_spm;                    /* "llama" */
    bool              space_prefix, add_bos, add_eos;
    const pre_rule   *rule;                      /* of "gpt2" */
    uint32_t          n_vocab, n_merges, n_special, n_ends;
    uint32_t         *place;                     /* of each token's string in the file, from the first's */
    number_table      by_text;                   /* ids of all but control, unknown and byte tokens */
    uint32_t         *slot_place;                /* `place` of the id in each of its slots */
    uint64_t         *merges;                    /* by rank: left, right and whole, 21 bits each */
    number_table      by_pair;                   /* ranks */
    special          *specials;                  /* in the order of their texts */
    bool              starts[256];               /* first bytes that specials have, as they stand in a text */
    bool              joins[256];                /* of "llama": bytes that stand before a space inside a token */
    int32_t           byte_id[256];              /* -1: none */
    int32_t           ascii_id[128];             /* of "llama": the tokens of single characters; -1: none */
    int32_t           bos, eos, unk;             /* -1: none */
    int32_t           ends[ENDS_MOST];
    size_t            max_text, max_piece;       /* longest text in by_text; longest piece */
};

static str text_at(const tokenizer *t, uint32_t place) {
    const uint8_t *p = t->tokens->data + place;
    return str_of((const char *)p + 8, (size_t)load_u64(p));
}

static str token_text(const tokenizer *t, uint32_t id) { return text_at(t, t->place[id]); }

static token_type token_type_of(const tokenizer *t, uint32_t id) {
    return t->types ? (token_type)gguf_item_int(t->types, id) : TOKEN_NORMAL;
}

/* ---- Hash tables ---- */

#if defined(__GNUC__) || defined(__clang__)
#define PREFETCH(p) __builtin_prefetch(p)
#else
#define PREFETCH(p) ((void)(p))
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

static int32_t vocab_find_hashed(const tokenizer *t, str text, uint64_t hash) {
    const number_table *x = &t->by_text;
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i))
        if (table_like(x, slot, hash) && str_eq(text_at(t, t->slot_place[i]), text)) return (int32_t)table_number(x, slot);
    return -1;
}

/* The token that a text spells, among those that text can become; -1: none. */
static int32_t vocab_find(const tokenizer *t, str text) {
    return text.n == 0 || text.n > t->max_text ? -1 : vocab_find_hashed(t, text, hash_text(text));
}

/* The rank of a merge of two ids, left << ID_BITS | right, and what it makes; NO_RANK: there is none. */
static uint32_t merge_find(const tokenizer *t, uint64_t pair, int32_t *whole) {
    const number_table *x = &t->by_pair;
    uint64_t hash = hash_pair(pair);
    for (uint32_t i = table_home(x, hash), slot; (slot = x->slots[i]) != 0; i = table_next(x, i)) {
        uint32_t rank = table_number(x, slot);
        if (!table_like(x, slot, hash) || t->merges[rank] >> ID_BITS != pair) continue;
        *whole = (int32_t)(t->merges[rank] & VOCAB_MOST);
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

typedef struct opening {
    tokenizer  *t;
    arena      *a;
    const host *h;
    const gguf *g;
    nova_error *error;
} opening;

#define TRY_OPEN(call)                           \
    do {                                         \
        nova_result try_result = (call);         \
        if (try_result != NOVA_OK) return try_result; \
    } while (0)

static uint64_t offset_of(const opening *o, const char *p) { return (uint64_t)((const uint8_t *)p - o->g->data); }

static nova_result open_kind(opening *o) {
    str model = {NULL, 0}, pre = str_c("default");
    TRY_OPEN(gguf_get_str(o->g, "tokenizer.ggml.model", &model, o->error));
    TRY_OPEN(gguf_get_str(o->g, "tokenizer.ggml.pre", &pre, o->error));
    if (!model.p) return fail(o->error, NOVA_ERROR_FORMAT, "the file has no tokenizer (key \"tokenizer.ggml.model\")");
    o->t->is_spm = str_is(model, "llama");
    if (o->t->is_spm) return NOVA_OK;
    if (!str_is(model, "gpt2"))
        return fail_at(o->error, NOVA_ERROR_UNSUPPORTED, offset_of(o, model.p),
                       "tokenizer \"%.*s\" is not supported, only \"llama\" and \"gpt2\"", STR_ARG(model));
    o->t->rule = pre_find(pre);
    if (!o->t->rule)
        return fail_at(o->error, NOVA_ERROR_UNSUPPORTED, offset_of(o, pre.p), "pre-tokenizer \"%.*s\" is not supported",
                       STR_ARG(pre));
    return NOVA_OK;
}

/* An array with an item a token, NULL where the file has none. */
static nova_result open_array(opening *o, const char *key, bool real, const gguf_value **out) {
    const gguf_value *v = gguf_find(o->g, str_c(key));
    *out = v;
    if (!v) return NOVA_OK;
    bool number = v->type == GGUF_ARRAY && v->item != GGUF_STRING && v->item != GGUF_ARRAY && v->item != GGUF_BOOL;
    if (!number || (!real && (v->item == GGUF_F32 || v->item == GGUF_F64)))
        return fail_at(o->error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\" is no array of %s", key, real ? "numbers" : "integers");
    if (v->n != o->t->n_vocab)
        return fail_at(o->error, NOVA_ERROR_FORMAT, v->offset, "key \"%s\" has %llu items for %u tokens", key,
                       (unsigned long long)v->n, o->t->n_vocab);
    return NOVA_OK;
}

static nova_result open_arrays(opening *o) {
    tokenizer *t = o->t;
    t->tokens = gguf_find(o->g, str_c("tokenizer.ggml.tokens"));
    if (!t->tokens) return fail(o->error, NOVA_ERROR_FORMAT, "the file has no key \"tokenizer.ggml.tokens\"");
    if (!gguf_array_is(t->tokens, GGUF_STRING) || t->tokens->n == 0)
        return fail_at(o->error, NOVA_ERROR_FORMAT, t->tokens->offset, "key \"tokenizer.ggml.tokens\" holds no strings");
    if (t->tokens->n > VOCAB_MOST || (uint64_t)(t->tokens->end - t->tokens->data) > UINT32_MAX)
        return fail_at(o->error, NOVA_ERROR_UNSUPPORTED, t->tokens->offset, "a vocabulary of %llu tokens is too large",
                       (unsigned long long)t->tokens->n);
    t->n_vocab = (uint32_t)t->tokens->n;
    TRY_OPEN(open_array(o, "tokenizer.ggml.token_type", false, &t->types));
    TRY_OPEN(open_array(o, "tokenizer.ggml.scores", true, &t->scores));
    if (t->is_spm && !t->scores) return fail(o->error, NOVA_ERROR_FORMAT, "the file has no key \"tokenizer.ggml.scores\"");
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        int64_t type = t->types ? gguf_item_int(t->types, i) : TOKEN_NORMAL;
        if (type < 0 || type >= TOKEN_TYPE_COUNT)
            return fail_at(o->error, NOVA_ERROR_FORMAT, t->types->offset, "token %u has type %lld", i, (long long)type);
        if (t->is_spm && !(fabsf(gguf_item_f32(t->scores, i)) <= FLT_MAX))
            return fail_at(o->error, NOVA_ERROR_FORMAT, t->scores->offset, "the score of token %u is no finite number", i);
        t->n_special += type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER;
    }
    return NOVA_OK;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The byte that "<0x0A>" names, or -1. */
static int byte_named(str s) {
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return -1;
    int high = hex_digit(s.p[3]), low = hex_digit(s.p[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Notes what stands before a space that has something else before it. */
static void note_joins(tokenizer *t, str s) {
    size_t at = 0;
    while (s.n - at >= SPACE_BYTES && memcmp(s.p + at, SPACE, SPACE_BYTES) == 0) at += SPACE_BYTES;
    for (const char *end = s.p + s.n, *p = s.p + at; (size_t)(end - p) >= SPACE_BYTES; p++) {
        p = (const char *)memchr(p, SPACE[0], (size_t)(end - p) - (SPACE_BYTES - 1));
        if (!p) return;
        if (p > s.p && memcmp(p, SPACE, SPACE_BYTES) == 0) t->joins[(unsigned char)p[-1]] = true;
    }
}

/* As the text of a special token stands in a text that special_find reads: with SentencePiece's spaces. */
static nova_result open_special(opening *o, uint32_t id, str text, token_type type) {
    tokenizer *t = o->t;
    size_t     spaces = 0;
    for (size_t i = 0; t->is_spm && i < text.n; i++) spaces += text.p[i] == ' ';
    if (spaces) {
        size_t size = text.n + spaces * (SPACE_BYTES - 1), n = 0;
        char  *p    = (char *)arena_alloc(o->a, size);
        if (!p) return fail_memory(o->error, size, "a special token");
        for (size_t i = 0; i < text.n; i++) {
            size_t part = text.p[i] == ' ' ? SPACE_BYTES : 1;
            memcpy(p + n, part == 1 ? text.p + i : SPACE, part);
            n += part;
        }
        text = str_of(p, size);
    }
    special *s = &t->specials[t->n_special++];
    s->text    = text;
    s->id      = (int32_t)id;
    s->control = type != TOKEN_USER;
    return NOVA_OK;
}

/* What text can become this token. Of equal texts the first stands. */
static nova_result open_plain(opening *o, uint32_t id, str text) {
    tokenizer *t    = o->t;
    uint64_t   hash = hash_text(text);
    uint32_t   slot = 0;
    t->max_text = size_max(t->max_text, text.n);
    if (t->is_spm) note_joins(t, text);
    if (vocab_find_hashed(t, text, hash) >= 0) return NOVA_OK;
    if (!table_put(&t->by_text, hash, id, &slot))
        return fail_at(o->error, NOVA_ERROR_FORMAT, offset_of(o, text.p), "token %u: the texts of too many tokens hash alike",
                       id);
    t->slot_place[slot] = t->place[id];
    return NOVA_OK;
}

static nova_result open_token(opening *o, uint32_t id, str text) {
    tokenizer *t    = o->t;
    token_type type = token_type_of(t, id);
    int        byte = byte_named(text);
    t->place[id] = (uint32_t)((const uint8_t *)text.p - 8 - t->tokens->data);
    if (type == TOKEN_BYTE && byte < 0)
        return fail_at(o->error, NOVA_ERROR_FORMAT, offset_of(o, text.p), "token %u is a byte but reads \"%.*s\"", id, STR_ARG(text));
    if (text.n > t->max_piece) t->max_piece = size_max(t->max_piece, tokenizer_piece(t, (int32_t)id, false, true, NULL, 0));
    if (type == TOKEN_BYTE || (!t->types && t->is_spm && byte >= 0)) {
        if (t->is_spm && t->byte_id[byte] < 0) t->byte_id[byte] = (int32_t)id;
        return NOVA_OK;
    }
    if (text.n == 0) return NOVA_OK;
    if (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER) TRY_OPEN(open_special(o, id, text, type));
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN ? NOVA_OK : open_plain(o, id, text);
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

enum { FIND_USER = 1, FIND_CONTROL = 2, FIND_MARKED = 4 };

/* The longest special token of the wanted kinds that starts at `at`: its id, and where it ends. -1: none. */
static int32_t special_find(const tokenizer *t, str text, size_t at, uint32_t want, size_t *end) {
    uint32_t lo = 0, hi = t->n_special, part = 0;   /* part: bytes of a space's three that were read */
    int32_t  found = -1;
    bool     marked = false;                        /* behind the first byte */
    for (size_t i = at, depth = 0; i < text.n && lo < hi; depth++) {
        if ((want & FIND_MARKED) && text.p[i] == MARK) {
            marked = true;
            for (i++; i < text.n && text.p[i] == MARK; i++) {}
            if (i == text.n) break;
        }
        char c = text.p[i];
        if (c == ' ' && t->is_spm) {
            c    = SPACE[part];
            part = (part + 1) % SPACE_BYTES;
        }
        i += part == 0;
        special_narrow(t->specials, depth, (unsigned char)c, &lo, &hi);
        for (; lo < hi && t->specials[lo].text.n == depth + 1; lo++) {
            const special *s = &t->specials[lo];
            bool hidden = marked || (depth == 0 && (want & FIND_MARKED) && i < text.n && text.p[i] == MARK);
            if (part || !(want & (s->control ? FIND_CONTROL : FIND_USER)) || (s->control && hidden)) continue;
            found = s->id;
            *end  = i;
        }
    }
    return found;
}

/* Is there a special token of just this text? */
static bool special_is(const tokenizer *t, str text) {
    uint32_t lo = 0, hi = t->n_special;
    for (size_t depth = 0; depth < text.n && lo < hi; depth++) {
        special_narrow(t->specials, depth, (unsigned char)text.p[depth], &lo, &hi);
        if (depth + 1 == text.n) return lo < hi && t->specials[lo].text.n == text.n;
        while (lo < hi && t->specials[lo].text.n == depth + 1) lo++;
    }
    return false;
}

/* Single characters, which words are first taken apart into. */
static void open_characters(tokenizer *t) {
    char name[4];
    for (uint32_t b = 0; b < 256 && !t->is_spm; b++) t->byte_id[b] = vocab_find(t, str_of(name, utf8_put(byte_char(b), name)));
    for (uint32_t c = 0; c < 128 && t->is_spm; c++) t->ascii_id[c] = vocab_find(t, str_of(name, utf8_put(c, name)));
}

static nova_result open_vocab(opening *o) {
    tokenizer *t = o->t;
    size_t     special_bytes = t->n_special * sizeof(special), place_bytes = t->n_vocab * sizeof(uint32_t);
    t->place    = (uint32_t *)arena_alloc(o->a, place_bytes);
    t->specials = (special *)arena_alloc(o->a, special_bytes);
    if (table_init(&t->by_text, o->a, t->n_vocab))
        t->slot_place = (uint32_t *)arena_alloc(o->a, t->by_text.n * sizeof(uint32_t));
    if (!t->place || !t->specials || !t->slot_place)
        return fail_memory(o->error, place_bytes * 4 + special_bytes, "the vocabulary");
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    t->n_special = 0;
    gguf_strings strings = gguf_strings_of(t->tokens);
    str          text;
    for (uint32_t id = 0; gguf_strings_next(&strings, &text); id++) TRY_OPEN(open_token(o, id, text));
    special_sort(t->specials, t->n_special);
    for (uint32_t i = 0; i < t->n_special; i++) t->starts[(unsigned char)t->specials[i].text.p[0]] = true;
    if (t->is_spm && t->starts[(unsigned char)SPACE[0]]) t->starts[' '] = true;
    open_characters(t);
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
static int32_t merge_whole(const tokenizer *t, const merge_text *m, const merge_reader *r) {
    size_t n = m->left.n + m->right.n;
    if (n > t->max_text) return -1;
    for (int32_t id = r->whole; id >= 0 && id < r->whole + 2 && (uint32_t)id < t->n_vocab; id++) {
        str s = token_text(t, (uint32_t)id);
        if (s.n == n && memcmp(s.p, m->left.p, m->left.n) == 0 && memcmp(s.p + m->left.n, m->right.p, m->right.n) == 0 &&
            token_type_of(t, (uint32_t)id) == TOKEN_NORMAL)
            return id;
    }
    memcpy(r->scratch, m->left.p, m->left.n);
    memcpy(r->scratch + m->left.n, m->right.p, m->right.n);
    return vocab_find(t, str_of(r->scratch, n));
}

/* The four steps of reading a merge. Each asks for the memory that the next one needs. */

static nova_result merge_cut(opening *o, uint32_t rank, str text, merge_text *m) {
    const number_table *x     = &o->t->by_text;
    const char         *space = text.n > 1 ? (const char *)memchr(text.p + 1, ' ', text.n - 1) : NULL;
    if (!space || space + 1 == text.p + text.n)
        return fail_at(o->error, NOVA_ERROR_FORMAT, offset_of(o, text.p), "merge %u is \"%.*s\", not two tokens", rank,
                       STR_ARG(text));
    m->text       = text;
    m->left       = str_of(text.p, (size_t)(space - text.p));
    m->right      = str_of(space + 1, text.n - m->left.n - 1);
    m->left_hash  = hash_text(m->left);
    m->right_hash = hash_text(m->right);
    PREFETCH(&x->slots[table_home(x, m->left_hash)]);
    PREFETCH(&x->slots[table_home(x, m->right_hash)]);
    PREFETCH(&o->t->slot_place[table_home(x, m->left_hash)]);
    PREFETCH(&o->t->slot_place[table_home(x, m->right_hash)]);
    return NOVA_OK;
}

static void merge_fetch(const tokenizer *t, const merge_text *m) {
    uint32_t left = table_home(&t->by_text, m->left_hash), right = table_home(&t->by_text, m->right_hash);
    if (t->by_text.slots[left]) PREFETCH(t->tokens->data + t->slot_place[left]);
    if (t->by_text.slots[right]) PREFETCH(t->tokens->data + t->slot_place[right]);
}

/* A merge with a control token in it, or that makes one, is left out: text must not become one. */
static nova_result merge_resolve(opening *o, uint32_t rank, merge_text *m, merge_reader *r) {
    const tokenizer *t    = o->t;
    int32_t          left = vocab_find_hashed(t, m->left, m->left_hash), right = vocab_find_hashed(t, m->right, m->right_hash);
    m->whole = merge_whole(t, m, r);
    if (left >= 0 && right >= 0 && m->whole >= 0) {
        r->whole = m->whole;
        m->pair  = (uint64_t)left << ID_BITS | (uint64_t)right;
        PREFETCH(&t->by_pair.slots[table_home(&t->by_pair, hash_pair(m->pair))]);
        return NOVA_OK;
    }
    size_t n = m->left.n + m->right.n;
    m->pair = NO_PAIR;
    if ((left >= 0 || special_is(t, m->left)) && (right >= 0 || special_is(t, m->right)) &&
        (m->whole >= 0 || (n <= t->max_text && special_is(t, str_of(r->scratch, n)))))
        return NOVA_OK;
    return fail_at(o->error, NOVA_ERROR_FORMAT, offset_of(o, m->text.p), "merge %u, \"%.*s\", is of or makes an unknown token",
                   rank, STR_ARG(m->text));
}

/* Of twins the first counts. */
static nova_result merge_put(opening *o, uint32_t rank, const merge_text *m) {
    tokenizer *t = o->t;
    int32_t    twin;
    uint32_t   slot;
    t->merges[rank] = UINT64_MAX;
    if (m->pair == NO_PAIR || merge_find(t, m->pair, &twin) != NO_RANK) return NOVA_OK;
    t->merges[rank] = m->pair << ID_BITS | (uint64_t)m->whole;
    if (table_put(&t->by_pair, hash_pair(m->pair), rank, &slot)) return NOVA_OK;
    return fail_at(o->error, NOVA_ERROR_FORMAT, offset_of(o, m->text.p), "merge %u: too many merges hash alike", rank);
}

static nova_result merges_read(opening *o, const gguf_value *v, merge_reader *r) {
    merge_text   batch[MERGE_BATCH];
    gguf_strings strings = gguf_strings_of(v);
    str          text;
    for (uint32_t rank = 0, n; rank < o->t->n_merges; rank += n) {
        for (n = 0; n < MERGE_BATCH && gguf_strings_next(&strings, &text); n++)
            TRY_OPEN(merge_cut(o, rank + n, text, &batch[n]));
        for (uint32_t i = 0; i < n; i++) merge_fetch(o->t, &batch[i]);
        for (uint32_t i = 0; i < n; i++) TRY_OPEN(merge_resolve(o, rank + i, &batch[i], r));
        for (uint32_t i = 0; i < n; i++) TRY_OPEN(merge_put(o, rank + i, &batch[i]));
    }
    return NOVA_OK;
}

static nova_result open_merges(opening *o) {
    tokenizer        *t = o->t;
    const gguf_value *v = gguf_find(o->g, str_c("tokenizer.ggml.merges"));
    if (!v) return fail(o->error, NOVA_ERROR_FORMAT, "the file has no key \"tokenizer.ggml.merges\"");
    if (!gguf_array_is(v, GGUF_STRING))
        return fail_at(o->error, NOVA_ERROR_FORMAT, v->offset, "key \"tokenizer.ggml.merges\" is no array of strings");
    if (v->n > UINT32_MAX / 16)
        return fail_at(o->error, NOVA_ERROR_UNSUPPORTED, v->offset, "%llu merges are too many", (unsigned long long)v->n);
    t->n_merges = (uint32_t)v->n;
    t->merges   = (uint64_t *)arena_alloc(o->a, t->n_merges * sizeof(uint64_t));
    if (!t->merges || !table_init(&t->by_pair, o->a, t->n_merges))
        return fail_memory(o->error, t->n_merges * (size_t)14, "the merges");
    merge_reader r;
    size_t       size = t->max_text + 1;
    r.whole   = -1;
    r.scratch = (char *)mem_alloc(o->h, size);
    if (!r.scratch) return fail_memory(o->error, size, "reading the merges");
    nova_result result = merges_read(o, v, &r);
    mem_free(o->h, r.scratch, size);
    return result;
}

/* ---- Tokens with a job ---- */

static nova_result open_id(opening *o, const char *key, int32_t *id) {
    uint32_t value = UINT32_MAX;
    if (!gguf_find(o->g, str_c(key))) return NOVA_OK;
    TRY_OPEN(gguf_get_u32(o->g, key, &value, o->error));
    if (value >= o->t->n_vocab)
        return fail_at(o->error, NOVA_ERROR_FORMAT, gguf_find(o->g, str_c(key))->offset, "key \"%s\": %u is none of %u tokens", key,
                       value, o->t->n_vocab);
    *id = (int32_t)value;
    return NOVA_OK;
}

static void add_end(tokenizer *t, int32_t id) {
    if (id >= 0 && t->n_ends < ENDS_MOST && !tokenizer_is_end(t, id)) t->ends[t->n_ends++] = id;
}

/* Special tokens that end a text by what they are called, for files name only one of several. */
static void open_ends(tokenizer *t) {
    static const char *const names[] = {
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<|endoftext|>",
        "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "[e~[",
        "<\xEF\xBD\x9C" "end" SPACE "of" SPACE "sentence\xEF\xBD\x9C>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    };
    /* Where there are others for the end of a turn, "<|end|>" ends no more than a message (gpt-oss). */
    bool turns = special_is(t, str_c("<|return|>")) || special_is(t, str_c("<|flush|>"));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        size_t  end = 0;
        str     name = str_c(names[i]);
        int32_t id = special_find(t, name, 0, FIND_USER | FIND_CONTROL, &end);
        if (id >= 0 && end == name.n && !(turns && str_is(name, "<|end|>"))) add_end(t, id);
    }
}

static nova_result open_jobs(opening *o) {
    tokenizer *t   = o->t;
    int32_t    eot = -1, eom = -1;
    t->add_bos = t->is_spm || t->rule->bos;
    t->space_prefix = t->is_spm;
    t->unk = t->bos = t->eos = -1;
    if (t->is_spm && t->n_vocab > 2) {   /* SentencePiece's own */
        t->bos = 1;
        t->eos = 2;
    }
    TRY_OPEN(open_id(o, "tokenizer.ggml.bos_token_id", &t->bos));
    TRY_OPEN(open_id(o, "tokenizer.ggml.eos_token_id", &t->eos));
    TRY_OPEN(open_id(o, "tokenizer.ggml.eot_token_id", &eot));
    TRY_OPEN(open_id(o, "tokenizer.ggml.eom_token_id", &eom));
    if (t->is_spm) {
        t->unk = 0;
        TRY_OPEN(open_id(o, "tokenizer.ggml.unknown_token_id", &t->unk));
        TRY_OPEN(gguf_get_bool(o->g, "tokenizer.ggml.add_space_prefix", &t->space_prefix, o->error));
    }
    TRY_OPEN(gguf_get_bool(o->g, "tokenizer.ggml.add_bos_token", &t->add_bos, o->error));
    TRY_OPEN(gguf_get_bool(o->g, "tokenizer.ggml.add_eos_token", &t->add_eos, o->error));
    add_end(t, t->eos);
    add_end(t, eot);
    add_end(t, eom);
    open_ends(t);
    return NOVA_OK;
}

static nova_result tokenizer_open(tokenizer **out, arena *a, const host *h, const gguf *g, nova_error *error) {
    opening o;
    o.t     = (tokenizer *)arena_zalloc(a, sizeof(tokenizer));
    o.a     = a;
    o.h     = h;
    o.g     = g;
    o.error = error;
    if (!o.t) return fail_memory(error, sizeof(tokenizer), "the tokenizer");
    TRY_OPEN(open_kind(&o));
    TRY_OPEN(open_arrays(&o));
    TRY_OPEN(open_vocab(&o));
    if (!o.t->is_spm) TRY_OPEN(open_merges(&o));
    TRY_OPEN(open_jobs(&o));
    *out = o.t;
    return NOVA_OK;
}

static uint32_t tokenizer_n_vocab(const tokenizer *t) { return t->n_vocab; }
static size_t   tokenizer_max_piece(const tokenizer *t) { return t->max_piece; }
static bool     tokenizer_adds_bos(const tokenizer *t) { return t->add_bos && t->bos >= 0; }
static int32_t  tokenizer_bos(const tokenizer *t) { return t->bos; }
static int32_t  tokenizer_eos(const tokenizer *t) { return t->eos; }

static bool tokenizer_is_end(const tokenizer *t, int32_t id) {
    for (uint32_t i = 0; i < t->n_ends; i++)
        if (t->ends[i] == id) return true;
    return false;
}

/* ---- Merging a word's symbols ---- */

typedef struct encoder {
    const tokenizer *t;
    const host      *h;
    int32_t         *ids;
    size_t           capacity, n;
    bool             unknown;    /* the last id says that text is unknown */
    text_buffer      section;    /* the text between two special tokens, where it cannot be read as it lies */
    text_buffer      composed;   /* the same in NFC */
    char            *name;       /* max_text bytes for a word in GPT-2's characters, where words are looked up */
} encoder;

static void emit(encoder *e, int32_t id) {
    if (e->n < e->capacity) e->ids[e->n] = id;
    e->n++;
    e->unknown = false;
}

/* Text that no token spells: its bytes where all have one; else the unknown token, once in a row. */
static void emit_unknown(encoder *e, const char *p, size_t n) {
    const tokenizer *t = e->t;
    bool bytes = true;
    for (size_t i = 0; i < n; i++) bytes = bytes && t->byte_id[(unsigned char)p[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < n; i++) emit(e, t->byte_id[(unsigned char)p[i]]);
    } else if (t->unk >= 0 && !e->unknown) {
        emit(e, t->unk);
        e->unknown = true;
    }
}

/* A piece of the word. What merging it with the next one is worth stands in `rank`, the less the better. */
typedef struct symbol {
    uint32_t from;    /* in the word; the end is where the next one starts */
    int32_t  id;      /* -1: no token */
    uint32_t rank;    /* NO_RANK: they do not merge */
    int32_t  whole;   /* what they would make */
} symbol;

/* A score as a rank: floats in their order, turned around. */
static uint32_t score_rank(float score) {
    uint32_t bits;
    score += 0.0f;   /* no -0 */
    memcpy(&bits, &score, sizeof bits);
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* Values the pair of `s` and `next`, which ends at `end`. */
static void symbol_rank(const tokenizer *t, const char *word, symbol *s, const symbol *next, uint32_t end) {
    if (!t->is_spm) {
        s->rank = merge_find(t, (uint64_t)(uint32_t)s->id << ID_BITS | (uint32_t)next->id, &s->whole);
    } else {
        s->whole = vocab_find(t, str_of(word + s->from, end - s->from));
        s->rank  = s->whole < 0 ? NO_RANK : score_rank(gguf_item_f32(t->scores, (uint64_t)s->whole));
    }
}

static int32_t symbol_id(const tokenizer *t, const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0];
    return !t->is_spm ? t->byte_id[c] : c < 128 ? t->ascii_id[c] : vocab_find(t, str_of(p, n));
}

/* The symbols that a word starts as, at most one a byte. Bytes that a "gpt2" vocabulary lacks are left out, as its
 * original does. */
static size_t symbols_of(const tokenizer *t, str word, symbol *s) {
    size_t n = 0, length = 1;
    for (size_t at = 0; at < word.n; at += length) {
        if (t->is_spm) utf8_get(word.p + at, word.n - at, &length);
        s[n].from = (uint32_t)at;
        s[n].id   = symbol_id(t, word.p + at, length);
        s[n].rank = NO_RANK;
        n += t->is_spm || s[n].id >= 0;
    }
    return n;
}

static void emit_symbol(encoder *e, str word, const symbol *s, uint32_t end) {
    if (s->id >= 0) emit(e, s->id);
    else emit_unknown(e, word.p + s->from, end - s->from);
}

#define WORD_SHORT 32   /* bytes */

/* Merges by looking through all pairs each time. s[n] is room for the end. */
static void merge_short(encoder *e, str word, symbol *s, size_t n) {
    s[n].from = (uint32_t)word.n;
    for (size_t i = 0; i + 1 < n; i++) symbol_rank(e->t, word.p, &s[i], &s[i + 1], s[i + 2].from);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (n < 2 || s[best].rank == NO_RANK) break;
        s[best].id = s[best].whole;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof *s);   /* and the end */
        n--;
        if (best > 0) symbol_rank(e->t, word.p, &s[best - 1], &s[best], s[best + 1].from);
        if (best + 1 < n) symbol_rank(e->t, word.p, &s[best], &s[best + 1], s[best + 2].from);
        else s[best].rank = NO_RANK;
    }
    for (size_t i = 0; i < n; i++) emit_symbol(e, word, &s[i], s[i + 1].from);
}

/* The same for words of any length: the symbols as a list, and above them a tournament whose winner is the best pair. */
typedef struct long_word {
    symbol   *s;
    uint32_t *next, *prev;   /* next of the last is n */
    uint32_t *winner;        /* of the symbols below a node; node i has 2i and 2i + 1 below it, symbol i is node leaves + i */
    uint32_t  n, leaves;
} long_word;

/* Leaves that no symbol has are the last symbol, which never merges. */
NOVA_INLINE uint32_t winner_of(const long_word *w, uint32_t node) {
    if (node < w->leaves) return w->winner[node];
    return node - w->leaves < w->n ? node - w->leaves : w->n - 1;
}

static uint32_t winner_play(const long_word *w, uint32_t node) {
    uint32_t a = winner_of(w, 2 * node), b = winner_of(w, 2 * node + 1);
    return w->winner[node] = w->s[b].rank < w->s[a].rank ? b : a;
}

/* Symbol i's rank has changed. Above a node that somebody else won before and after, nothing has. */
static void winner_update(const long_word *w, uint32_t i) {
    for (uint32_t node = (w->leaves + i) / 2; node > 0; node /= 2) {
        uint32_t before = w->winner[node];
        if (winner_play(w, node) != i && before != i) return;
    }
}

static void long_rank(encoder *e, const long_word *w, str word, uint32_t i) {
    uint32_t next = w->next[i];
    if (next == w->n) {
        w->s[i].rank = NO_RANK;
    } else {
        uint32_t behind = w->next[next];
        symbol_rank(e->t, word.p, &w->s[i], &w->s[next], behind == w->n ? (uint32_t)word.n : w->s[behind].from);
    }
    winner_update(w, i);
}

static void merge_long(encoder *e, str word, const long_word *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        w->next[i] = i + 1;
        w->prev[i] = i - 1;
    }
    for (uint32_t i = 0; i + 1 < w->n; i++)
        symbol_rank(e->t, word.p, &w->s[i], &w->s[i + 1], i + 2 == w->n ? (uint32_t)word.n : w->s[i + 2].from);
    for (uint32_t node = w->leaves - 1; node > 0; node--) (void)winner_play(w, node);
    for (uint32_t best; best = w->winner[1], w->s[best].rank != NO_RANK;) {
        uint32_t gone = w->next[best];
        w->s[best].id   = w->s[best].whole;
        w->s[gone].rank = NO_RANK;
        w->next[best]   = w->next[gone];
        if (w->next[best] < w->n) w->prev[w->next[best]] = best;
        winner_update(w, gone);
        long_rank(e, w, word, best);
        if (best > 0) long_rank(e, w, word, w->prev[best]);
    }
    for (uint32_t i = 0; i < w->n; i = w->next[i])
        emit_symbol(e, word, &w->s[i], w->next[i] == w->n ? (uint32_t)word.n : w->s[w->next[i]].from);
}

static bool encode_long(encoder *e, str word) {
    long_word w;
    w.leaves = 1;
    while (w.leaves < word.n) w.leaves *= 2;
    size_t count = word.n + word.n + w.leaves, bytes;
    if (!size_mul(word.n, sizeof(symbol), &bytes) || !size_add(bytes, count * sizeof(uint32_t), &bytes)) return false;
    char *memory = (char *)mem_alloc(e->h, bytes);
    if (!memory) return false;
    w.s      = (symbol *)(void *)memory;
    w.next   = (uint32_t *)(void *)(memory + word.n * sizeof(symbol));
    w.prev   = w.next + word.n;
    w.winner = w.prev + word.n;
    w.n      = (uint32_t)symbols_of(e->t, word, w.s);
    if (w.n > 0) merge_long(e, word, &w);
    mem_free(e->h, memory, bytes);
    return true;
}

/* Is the word a token as it stands? */
static int32_t find_whole(const encoder *e, str word) {
    size_t n = 0;
    for (size_t i = 0; i < word.n; i++) {
        char   name[4];
        size_t length = utf8_put(byte_char((unsigned char)word.p[i]), name);
        if (n + length > e->t->max_text) return -1;
        memcpy(e->name + n, name, length);
        n += length;
    }
    return vocab_find(e->t, str_of(e->name, n));
}

static bool encode_word(encoder *e, str word) {
    symbol  s[WORD_SHORT + 1];
    int32_t whole = e->name ? find_whole(e, word) : -1;
    if (whole >= 0) {
        emit(e, whole);
        return true;
    }
    if (word.n > WORD_SHORT) return encode_long(e, word);
    merge_short(e, word, s, symbols_of(e->t, word, s));
    return true;
}

/* ---- Encoding ---- */

/* Copies a section without its marks, with spaces as SentencePiece writes them, and one in front where `lead`. */
static bool section_copy(encoder *e, str text, bool marked, bool lead) {
    text_buffer *b = &e->section;
    b->n = 0;
    if (lead && !text_append(b, SPACE, SPACE_BYTES)) return false;
    for (size_t at = 0, from = 0;; at++) {
        bool mark = at < text.n && marked && text.p[at] == MARK, space = at < text.n && e->t->is_spm && text.p[at] == ' ';
        if (at < text.n && !mark && !space) continue;
        if (!text_append(b, text.p + from, at - from) || (space && !text_append(b, SPACE, SPACE_BYTES))) return false;
        if (at == text.n) return true;
        from = at + 1;
    }
}

/* A "llama" section is cut before a space behind something else, where no token can lie across: words apart. */
static bool encode_spm(encoder *e, str text) {
    size_t from = 0;
    bool   open = false;   /* what comes before is no space and joins none */
    for (size_t at = 0; at < text.n;) {
        if (text.n - at < SPACE_BYTES || memcmp(text.p + at, SPACE, SPACE_BYTES) != 0) {
            open = !e->t->joins[(unsigned char)text.p[at++]];
            continue;
        }
        if (open) {
            if (!encode_word(e, str_of(text.p + from, at - from))) return false;
            from = at;
        }
        open = false;
        at += SPACE_BYTES;
    }
    return encode_word(e, str_of(text.p + from, text.n - from));
}

static bool encode_bpe(encoder *e, str text) {
    const pre_rule *rule = e->t->rule;
    if (rule->nfc && unicode_nfc_span(text) < text.n) {
        e->composed.n = 0;
        if (!unicode_nfc(text, &e->composed)) return false;
        text = str_of(e->composed.p, e->composed.n);
    }
    pre_words words;
    str       word;
    pre_begin(&words, rule, text);
    while (pre_next(&words, &word))
        if (!encode_word(e, word)) return false;
    return true;
}

/* Text between special tokens. A space goes in front at the start and behind each of them: so does the original's
 * normalisation, which sees these sections one by one (Hugging Face's LlamaTokenizer, legacy; mistral-common). */
static bool encode_section(encoder *e, str text, bool marked) {
    if (text.n == 0) return true;
    e->unknown = false;
    if (e->t->is_spm || (marked && memchr(text.p, MARK, text.n))) {
        if (!section_copy(e, text, marked, e->t->space_prefix)) return false;
        text = str_of(e->section.p, e->section.n);
        if (text.n == 0) return true;
    }
    return e->t->is_spm ? encode_spm(e, text) : encode_bpe(e, text);
}

static bool encode_text(encoder *e, str text, uint32_t want) {
    const tokenizer *t = e->t;
    bool   marked = (want & FIND_MARKED) != 0;
    size_t from = 0;
    for (size_t at = 0, end = 0; at < text.n;) {
        int32_t id = t->starts[(unsigned char)text.p[at]] && !(marked && text.p[at] == MARK)
                         ? special_find(t, text, at, want, &end) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (!encode_section(e, str_of(text.p + from, at - from), marked)) return false;
        emit(e, id);
        at = from = end;
    }
    return encode_section(e, str_of(text.p + from, text.n - from), marked);
}

static nova_result tokenizer_encode(const tokenizer *t, const host *h, str text, uint32_t flags,
                                    int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error) {
    encoder e;
    memset(&e, 0, sizeof e);
    e.t        = t;
    e.h        = h;
    e.ids      = ids;
    e.capacity = capacity;
    *n_ids     = 0;
    if (text.n > INT32_MAX / 4) return fail(error, NOVA_ERROR_ARGUMENT, "a text of %zu bytes is too long", text.n);
    text_init(&e.section, h, 0);
    text_init(&e.composed, h, 0);
    bool ok = true;
    if (!t->is_spm && t->rule->whole) ok = (e.name = (char *)mem_alloc(h, t->max_text + 1)) != NULL;
    if ((flags & NOVA_ADD_SPECIAL) && tokenizer_adds_bos(t)) emit(&e, t->bos);
    uint32_t want = FIND_USER | (flags & NOVA_PARSE_SPECIAL ? FIND_CONTROL : 0u) | (flags & TOKENIZER_MARKED ? FIND_MARKED : 0u);
    ok = ok && encode_text(&e, text, want);
    if ((flags & NOVA_ADD_SPECIAL) && t->add_eos && t->eos >= 0) emit(&e, t->eos);
    mem_free(h, e.name, t->max_text + 1);
    text_free(&e.section);
    text_free(&e.composed);
    if (!ok) return fail(error, NOVA_ERROR_MEMORY, "out of memory: a text of %zu bytes cannot be encoded", text.n);
    *n_ids = e.n;
    if (e.n > capacity) return fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu ids, not %zu", e.n, capacity);
    return NOVA_OK;
}

static bool tokenizer_mark(const tokenizer *t, str text, text_buffer *out) {
    /* The mark inside U+FFFD keeps a token that holds this character from forming. */
    static const char replacement[] = {'\xEF', MARK, '\xBF', '\xBD'}, mark[] = {MARK};
    size_t from = 0, end = 0;
    for (size_t at = 0; at < text.n; at++) {
        bool lost = text.p[at] == MARK;
        if (!lost && (!t->starts[(unsigned char)text.p[at]] || special_find(t, text, at, FIND_CONTROL, &end) < 0)) continue;
        text_append(out, text.p + from, at + !lost - from);
        text_append(out, lost ? replacement : mark, lost ? sizeof replacement : sizeof mark);
        from = at + 1;
    }
    return text_append(out, text.p + from, text.n - from);
}

/* ---- Decoding ---- */

typedef struct piece { char *out; size_t n, capacity; } piece;

static void piece_put(piece *o, char c) {
    if (o->n < o->capacity) o->out[o->n] = c;
    o->n++;
}

static void piece_all(piece *o, str text) {
    for (size_t i = 0; i < text.n; i++) piece_put(o, text.p[i]);
}

static void piece_spm(piece *o, str text, bool first) {
    for (size_t at = 0, length; at < text.n; at += length) {
        bool space = text.n - at >= SPACE_BYTES && memcmp(text.p + at, SPACE, SPACE_BYTES) == 0;
        length = space ? SPACE_BYTES : 1;
        if (!(space && first && at == 0)) piece_put(o, space ? ' ' : text.p[at]);
    }
}

/* A token with a character that names no byte is no word of bytes: it stands for itself. */
static void piece_bpe(piece *o, str text) {
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

static size_t tokenizer_piece(const tokenizer *t, int32_t id, bool first, bool want_special, char *out, size_t capacity) {
    if (id < 0 || (uint32_t)id >= t->n_vocab) return 0;
    str        text = token_text(t, (uint32_t)id);
    token_type type = token_type_of(t, (uint32_t)id);
    int        byte = type == TOKEN_BYTE || (!t->types && t->is_spm) ? byte_named(text) : -1;
    piece      o;
    o.out      = out;
    o.n        = 0;
    o.capacity = capacity;
    if (byte >= 0) piece_put(&o, (char)byte);
    else if (type == TOKEN_CONTROL || type == TOKEN_UNKNOWN) piece_all(&o, want_special ? text : str_of(NULL, 0));
    else if (t->is_spm) piece_spm(&o, text, first && t->space_prefix);
    else if (type == TOKEN_USER) piece_all(&o, text);
    else piece_bpe(&o, text);
    return o.n;
}

static size_t utf8_incomplete_tail(const char *p, size_t n) {
    for (size_t tail = 1; tail <= 3 && tail <= n; tail++) {
        const unsigned char *b = (const unsigned char *)p + n - tail;
        if ((b[0] & 0xC0) == 0x80) continue;
        /* The smallest and largest that may follow show whether the bytes so far are the start of anything. */
        size_t length, want = b[0] >= 0xF0 ? 4 : b[0] >= 0xE0 ? 3 : b[0] >= 0xC0 ? 2 : 1;
        char   low[4], high[4];
        if (want <= tail) return 0;
        memset(low, 0x80, sizeof low);
        memset(high, 0xBF, sizeof high);
        memcpy(low, b, tail);
        memcpy(high, b, tail);
        bool start = utf8_get(low, want, &length) != UTF8_INVALID || utf8_get(high, want, &length) != UTF8_INVALID;
        return start ? tail : 0;
    }
    return 0;
}
