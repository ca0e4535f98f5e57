/* Text to token ids and back: see tokenizer.h.
 *
 * Both kinds merge neighbouring symbols of a word, the best pair first, of equals the leftmost. They differ in where
 * words end, in what the symbols are at first, and in what a pair is worth:
 *   llama  characters; a pair is worth the score of the token that it spells (SentencePiece's bpe_model)
 *   gpt2   bytes; a pair is worth its place in the list of merges (GPT-2's encoder.py) */
#include "tokenizer.h"

static nova_result tokenizer_open(tokenizer **out, arena *a, const host *h, const gguf *g, nova_error *error) {
    return vocab_open(out, a, h, g, error);
}

static uint32_t tokenizer_n_vocab(const tokenizer *t) { return t->n_vocab; }
static size_t   tokenizer_max_piece(const tokenizer *t) { return t->max_piece; }
static bool     tokenizer_adds_bos(const tokenizer *t) { return t->add_bos && t->bos >= 0; }
static int32_t  tokenizer_bos(const tokenizer *t) { return t->bos; }
static int32_t  tokenizer_eos(const tokenizer *t) { return t->eos; }
static bool     tokenizer_is_end(const tokenizer *t, int32_t id) { return vocab_is_end(t, id); }

static size_t tokenizer_piece(const tokenizer *t, int32_t id, bool first, bool want_special, char *out,
                              size_t capacity) {
    return vocab_piece(t, id, first, want_special, out, capacity);
}

/* ---- Merging a word's symbols ---- */

typedef struct encoder {
    const vocab *v;
    const host  *h;
    int32_t     *ids;
    size_t       capacity, n;
    bool         unknown;    /* the last id says that text is unknown */
    text_buffer  plain;      /* the text with a space in front */
    text_buffer  section;    /* the text between two special tokens, where it cannot be read as it lies */
    text_buffer  composed;   /* the same in NFC */
    char        *name;       /* max_text bytes for a word in GPT-2's characters, where words are looked up */
} encoder;

static void emit_id(encoder *e, int32_t id) {
    if (e->n < e->capacity) e->ids[e->n] = id;
    e->n++;
    e->unknown = false;
}

/* Text that no token spells: its bytes where all have one; else the unknown token, once in a row. */
static void emit_unknown(encoder *e, const char *p, size_t n) {
    const vocab *v = e->v;
    bool bytes = true;
    for (size_t i = 0; i < n; i++) bytes = bytes && v->byte_id[(unsigned char)p[i]] >= 0;
    if (bytes) {
        for (size_t i = 0; i < n; i++) emit_id(e, v->byte_id[(unsigned char)p[i]]);
    } else if (v->unk >= 0 && !e->unknown) {
        emit_id(e, v->unk);
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
    memcpy(&bits, &score, sizeof bits);
    if (bits == 0x80000000u) bits = 0;   /* -0 */
    return ~(bits & 0x80000000u ? ~bits : bits | 0x80000000u);
}

/* Values the pair of `s` and `next`, which ends at `end`. */
static void symbol_rank(const vocab *v, const char *word, symbol *s, const symbol *next, uint32_t end) {
    if (!v->is_spm) {
        s->rank = merge_find(v, (uint64_t)(uint32_t)s->id << ID_BITS | (uint32_t)next->id, &s->whole);
    } else {
        s->whole = vocab_find(v, str_of(word + s->from, end - s->from));
        s->rank  = s->whole < 0 ? NO_RANK : score_rank(gguf_item_f32(v->scores, (uint64_t)s->whole));
    }
}

static int32_t symbol_id(const vocab *v, const char *p, size_t n) {
    unsigned char c = (unsigned char)p[0];
    return !v->is_spm ? v->byte_id[c] : c < 128 ? v->ascii_id[c] : vocab_find(v, str_of(p, n));
}

/* The symbols that a word starts as, at most one a byte. Bytes that a "gpt2" vocabulary lacks are left out, as its
 * original does. */
static size_t symbols_of(const vocab *v, str word, symbol *s) {
    size_t n = 0, length = 1;
    for (size_t at = 0; at < word.n; at += length) {
        if (v->is_spm) utf8_get(word.p + at, word.n - at, &length);
        s[n].from = (uint32_t)at;
        s[n].id   = symbol_id(v, word.p + at, length);
        s[n].rank = NO_RANK;
        n += v->is_spm || s[n].id >= 0;
    }
    return n;
}

static void emit_symbol(encoder *e, str word, const symbol *s, uint32_t end) {
    if (s->id >= 0) emit_id(e, s->id);
    else emit_unknown(e, word.p + s->from, end - s->from);
}

#define WORD_SHORT 32   /* bytes */

/* Merges by looking through all pairs each time. s[n] is room for the end. */
static void merge_short(encoder *e, str word, symbol *s, size_t n) {
    s[n].from = (uint32_t)word.n;
    for (size_t i = 0; i + 1 < n; i++) symbol_rank(e->v, word.p, &s[i], &s[i + 1], s[i + 2].from);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s[i].rank < s[best].rank) best = i;
        if (n < 2 || s[best].rank == NO_RANK) break;
        s[best].id = s[best].whole;
        memmove(&s[best + 1], &s[best + 2], (n - best - 1) * sizeof *s);   /* and the end */
        n--;
        if (best > 0) symbol_rank(e->v, word.p, &s[best - 1], &s[best], s[best + 1].from);
        if (best + 1 < n) symbol_rank(e->v, word.p, &s[best], &s[best + 1], s[best + 2].from);
        else s[best].rank = NO_RANK;
    }
    for (size_t i = 0; i < n; i++) emit_symbol(e, word, &s[i], s[i + 1].from);
}

/* The same for words of any length: the symbols as a list, and above it a tournament whose winner has the best pair.
 * Node i stands above nodes 2i and 2i + 1; symbol i is node leaves + i. */
typedef struct long_word {
    symbol   *s;
    uint32_t *next, *prev;   /* next of the last is n */
    uint32_t *winner;        /* the best of the symbols below a node */
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
        symbol_rank(e->v, word.p, &w->s[i], &w->s[next], behind == w->n ? (uint32_t)word.n : w->s[behind].from);
    }
    winner_update(w, i);
}

static void merge_long(encoder *e, str word, const long_word *w) {
    for (uint32_t i = 0; i < w->n; i++) {
        w->next[i] = i + 1;
        w->prev[i] = i - 1;
    }
    for (uint32_t i = 0; i + 1 < w->n; i++)
        symbol_rank(e->v, word.p, &w->s[i], &w->s[i + 1], i + 2 == w->n ? (uint32_t)word.n : w->s[i + 2].from);
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
    w.n      = (uint32_t)symbols_of(e->v, word, w.s);
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
        if (n + length > e->v->max_text) return -1;
        memcpy(e->name + n, name, length);
        n += length;
    }
    return vocab_find(e->v, str_of(e->name, n));
}

static bool encode_word(encoder *e, str word) {
    symbol  s[WORD_SHORT + 1];
    int32_t whole = e->name ? find_whole(e, word) : -1;
    if (whole >= 0) {
        emit_id(e, whole);
        return true;
    }
    if (word.n > WORD_SHORT) return encode_long(e, word);
    merge_short(e, word, s, symbols_of(e->v, word, s));
    return true;
}

/* ---- Encoding ---- */

/* Copies a section without its marks, with spaces as SentencePiece writes them, and one in front where `lead`. */
static bool section_copy(encoder *e, str text, bool marked, bool lead) {
    text_buffer *b    = &e->section;
    size_t       from = 0;
    b->n = 0;
    if (lead) text_append(b, SPM_SPACE, SPM_SPACE_BYTES);
    for (size_t at = 0; at < text.n; at++) {
        bool space = e->v->is_spm && text.p[at] == ' ';
        if (!space && !(marked && text.p[at] == TOKEN_MARK)) continue;
        text_append(b, text.p + from, at - from);
        if (space) text_append(b, SPM_SPACE, SPM_SPACE_BYTES);
        from = at + 1;
    }
    return text_append(b, text.p + from, text.n - from);
}

/* A "llama" section is cut before a space behind something else, where no token can lie across: words apart. */
static bool encode_spm(encoder *e, str text) {
    size_t from = 0;
    bool   open = false;   /* what comes before is no space and joins none */
    for (size_t at = 0; at < text.n;) {
        if (text.n - at < SPM_SPACE_BYTES || memcmp(text.p + at, SPM_SPACE, SPM_SPACE_BYTES) != 0) {
            open = !e->v->joins[(unsigned char)text.p[at++]];
            continue;
        }
        if (open) {
            if (!encode_word(e, str_of(text.p + from, at - from))) return false;
            from = at;
        }
        open = false;
        at += SPM_SPACE_BYTES;
    }
    return encode_word(e, str_of(text.p + from, text.n - from));
}

static bool encode_bpe(encoder *e, str text) {
    const pre_rule *rule = e->v->rule;
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

/* Text between special tokens, with a space in front where `lead`. */
static bool encode_section(encoder *e, str text, bool marked, bool lead) {
    e->unknown = false;
    if (e->v->is_spm || (marked && memchr(text.p, TOKEN_MARK, text.n))) {
        if (!section_copy(e, text, marked, lead)) return false;
        text = str_of(e->section.p, e->section.n);
    }
    if (text.n == 0) return true;
    return e->v->is_spm ? encode_spm(e, text) : encode_bpe(e, text);
}

static bool encode_sections(encoder *e, str text, uint32_t want, bool lead) {
    const vocab *v      = e->v;
    bool         marked = (want & FIND_MARKED) != 0;
    size_t       from   = 0;
    for (size_t at = 0, end = 0; at < text.n;) {
        bool    maybe = v->starts[(unsigned char)text.p[at]] && !(marked && text.p[at] == TOKEN_MARK);
        int32_t id    = maybe ? special_find(v, text, at, want, &end) : -1;
        if (id < 0) {
            at++;
            continue;
        }
        if (at > from && !encode_section(e, str_of(text.p + from, at - from), marked, lead)) return false;
        emit_id(e, id);
        at = from = end;
    }
    return from == text.n || encode_section(e, str_of(text.p + from, text.n - from), marked, lead);
}

/* Where SentencePiece's space goes in front. A plain text is normalised as a whole, user-defined tokens being a part of
 * it: once, at its start. A text with control tokens is the sections between its special tokens, and each starts so
 * (Hugging Face's LlamaTokenizer, legacy, and mistral-common); fine-tunes add their turn marks as either type. */
static bool encode_text(encoder *e, str text, uint32_t want) {
    if (!e->v->space_prefix || text.n == 0) return encode_sections(e, text, want, false);
    if (want & FIND_CONTROL) return encode_sections(e, text, want, true);
    if (!text_append(&e->plain, " ", 1) || !text_append(&e->plain, text.p, text.n)) return false;
    return encode_sections(e, str_of(e->plain.p, e->plain.n), want, false);
}

static nova_result tokenizer_encode(const vocab *v, const host *h, str text, uint32_t flags,
                                    int32_t *ids, size_t capacity, size_t *n_ids, nova_error *error) {
    encoder e;
    memset(&e, 0, sizeof e);
    e.v        = v;
    e.h        = h;
    e.ids      = ids;
    e.capacity = capacity;
    *n_ids     = 0;
    if (text.n > INT32_MAX / 4) return fail(error, NOVA_ERROR_ARGUMENT, "a text of %zu bytes is too long", text.n);
    text_init(&e.plain, h, 0);
    text_init(&e.section, h, 0);
    text_init(&e.composed, h, 0);
    bool ok = true;
    if (!v->is_spm && v->rule->whole) ok = (e.name = (char *)mem_alloc(h, v->max_text + 1)) != NULL;
    if ((flags & NOVA_ADD_SPECIAL) && tokenizer_adds_bos(v)) emit_id(&e, v->bos);
    uint32_t want = FIND_USER;
    if (flags & NOVA_PARSE_SPECIAL) want |= FIND_CONTROL;
    if (flags & TOKENIZER_MARKED) want |= FIND_MARKED;
    ok = ok && encode_text(&e, text, want);
    if ((flags & NOVA_ADD_SPECIAL) && v->add_eos && v->eos >= 0) emit_id(&e, v->eos);
    mem_free(h, e.name, v->max_text + 1);
    text_free(&e.plain);
    text_free(&e.section);
    text_free(&e.composed);
    if (!ok) return fail(error, NOVA_ERROR_MEMORY, "out of memory: a text of %zu bytes cannot be encoded", text.n);
    *n_ids = e.n;
    if (e.n > capacity) return fail(error, NOVA_ERROR_TOO_SMALL, "the text takes %zu ids, not %zu", e.n, capacity);
    return NOVA_OK;
}

static bool tokenizer_begins_control(const vocab *v, char c) {
    return (unsigned char)c < sizeof v->begins && v->begins[(unsigned char)c];
}

static bool tokenizer_mark(const vocab *v, str text, text_buffer *out) {
    /* The mark inside U+FFFD keeps a token that holds this character from forming. */
    static const char replacement[] = {'\xEF', TOKEN_MARK, '\xBF', '\xBD'}, mark[] = {TOKEN_MARK};
    size_t from = 0, end = 0;
    for (size_t at = 0; at < text.n; at++) {
        bool lost = text.p[at] == TOKEN_MARK;
        bool maybe = v->starts[(unsigned char)text.p[at]];
        bool own   = tokenizer_begins_control(v, text.p[at]) ||
                   (maybe && special_find(v, text, at, FIND_CONTROL, &end) >= 0);
        if (!lost && !own) continue;
        text_append(out, text.p + from, at + !lost - from);
        text_append(out, lost ? replacement : mark, lost ? sizeof replacement : sizeof mark);
        from = at + 1;
    }
    return text_append(out, text.p + from, text.n - from);
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
