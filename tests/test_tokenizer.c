/* The tokenizers: classes and NFC, the pre-tokenizers against their regular expressions, merging against a plain twin,
 * special tokens and marks, decoding, hostile files, faults of every allocation, long texts, and the vectors of real
 * vocabularies. */
#include "faults.h"
#ifndef NOVA_C
#define NOVA_C "../nova.c"
#endif
#include NOVA_C

#include "test.h"
#include "toy_vocab.h"

static faults memory;
static host   mem_host;

/* ---- An open vocabulary ---- */

typedef struct opened {
    toy_file   file;
    arena      a;
    gguf       g;
    tokenizer *t;
    nova_result result;
    nova_error  error;
} opened;

static void open_file(opened *o) {
    arena_init(&o->a, &mem_host);
    o->t = NULL;
    error_clear(&o->error);
    o->result = gguf_read(&o->g, &o->a, o->file.p, o->file.n, true, &o->error);
    if (o->result == NOVA_OK) o->result = tokenizer_open(&o->t, &o->a, &mem_host, &o->g, &o->error);
}

static void open_toy(opened *o, const toy *t) {
    o->file = toy_write(t);
    open_file(o);
}

static void close_toy(opened *o) {
    arena_free(&o->a);
    free(o->file.p);
}

/* ---- Ids as text: "7 12 3" ---- */

typedef struct ids { int32_t *p; size_t n; nova_result result; } ids;

static ids encode(const tokenizer *t, const char *text, size_t n, uint32_t flags) {
    ids        r;
    nova_error error;
    size_t     capacity = 3 * n + 8;
    r.p      = (int32_t *)malloc(capacity * sizeof *r.p);
    r.result = tokenizer_encode(t, &mem_host, str_of(text, n), flags, r.p, capacity, &r.n, &error);
    return r;
}

static bool ids_are(const ids *a, const int32_t *p, size_t n) {
    return a->result == NOVA_OK && a->n == n && (n == 0 || memcmp(a->p, p, n * sizeof *p) == 0);
}

/* Encodes and compares with ids that stand for token texts, parted by '|'; prints what came on failure. */
static bool encodes_to(const tokenizer *t, const char *text, size_t n, uint32_t flags, const char *want) {
    ids         got = encode(t, text, n, flags);
    text_buffer b;
    text_init(&b, &mem_host, 0);
    for (size_t i = 0; i < got.n; i++) {
        str s = token_text(t, (uint32_t)got.p[i]);
        if (i) text_append(&b, "|", 1);
        text_append(&b, s.p, s.n);
    }
    bool same = got.result == NOVA_OK && str_is(str_of(b.p, b.n), want);
    if (!same) printf("  \"%.*s\" gave %.*s\n", (int)n, text, (int)b.n, b.p);
    text_free(&b);
    free(got.p);
    return same;
}

/* The text of ids, as nova_detokenize puts it together. */
static text_buffer decode(const tokenizer *t, const int32_t *p, size_t n) {
    text_buffer b;
    bool        first = true;
    text_init(&b, &mem_host, 0);
    for (size_t i = 0; i < n; i++) {
        size_t size = tokenizer_piece(t, p[i], first, false, NULL, 0);
        if (tokenizer_piece(t, p[i], false, false, NULL, 0)) first = false;
        if (!text_reserve(&b, size)) break;
        b.n += tokenizer_piece(t, p[i], b.n == 0 && size < tokenizer_piece(t, p[i], false, false, NULL, 0), false,
                               b.p + b.n, size);
    }
    return b;
}

/* ---- UTF-8 ---- */

static void test_utf8(void) {
    uint32_t wrong = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        char   p[4];
        size_t length = 0, n = utf8_put(cp, p);
        uint32_t got = utf8_get(p, n, &length);
        bool   surrogate = cp >= 0xD800 && cp < 0xE000;
        wrong += surrogate ? got != UTF8_INVALID || length != 1 : got != cp || length != n;
        for (size_t cut = 1; cut < n; cut++) {
            wrong += utf8_get(p, cut, &length) != UTF8_INVALID || length != 1;
            wrong += utf8_incomplete_tail(p, cut) != (surrogate && cut == 2 ? 0 : cut);
        }
        wrong += utf8_incomplete_tail(p, n) != 0;
    }
    CHECK(wrong == 0, "%u code points", wrong);
    static const struct { const char *p; size_t n, tail; } tails[] = {
        {"", 0, 0},
        {"a", 1, 0},
        {"a\xC3", 2, 1},
        {"\xE2\x96", 2, 2},
        {"\xF0\x9F\x98", 3, 3},
        {"\xC0", 1, 0},
        {"\xC1", 1, 0},
        {"\xE0\x80", 2, 0},
        {"\xE0\xA0", 2, 2},
        {"\xED\xA0", 2, 0},
        {"\xED\x9F", 2, 2},
        {"\xF0\x80", 2, 0},
        {"\xF0\x90", 2, 2},
        {"\xF4\x90", 2, 0},
        {"\xF4\x8F", 2, 2},
        {"\xF5", 1, 0},
        {"\xFF", 1, 0},
        {"\x80", 1, 0},
        {"\x80\x80\x80\x80", 4, 0},
        {"\xE2\x96\x81\xE2", 4, 1},
        {"\xE2" "a", 2, 0},
        {"\xF0\x9F\x80\x80\x80", 5, 0},
        {"\xF0\x9F" "a", 3, 0},
    };
    for (size_t i = 0; i < COUNT_OF(tails); i++)
        CHECK(utf8_incomplete_tail(tails[i].p, tails[i].n) == tails[i].tail, "tail %zu", i);
}

/* ---- Classes and NFC ---- */

static void test_classes(void) {
    static const struct { uint32_t cp, bit; } some[] = {
        {'A', UNICODE_UPPER},     {'z', UNICODE_LOWER},     {'5', UNICODE_NUMBER},    {'_', UNICODE_PUNCT},
        {'$', UNICODE_SYMBOL},    {' ', UNICODE_WHITE},     {'\n', UNICODE_WHITE},    {0x1C, UNICODE_REST},
        {0x85, UNICODE_WHITE},    {0xA0, UNICODE_WHITE},    {0x1C5, UNICODE_UPPER},   {0x2B0, UNICODE_OTHER},
        {0x301, UNICODE_MARK},    {0x4E00, UNICODE_OTHER},  {0xBD, UNICODE_NUMBER},   {0x200B, UNICODE_REST},
        {0x2028, UNICODE_WHITE},  {0xE000, UNICODE_REST},   {0xFFFD, UNICODE_SYMBOL}, {0x1F600, UNICODE_SYMBOL},
        {0x1FFFF, UNICODE_REST},  {0x20000, UNICODE_OTHER}, {0x2A6DF, UNICODE_OTHER}, {0x2A6E0, UNICODE_REST},
        {0x2F800, UNICODE_OTHER}, {0xE0100, UNICODE_MARK},  {0x10FFFF, UNICODE_REST}, {UTF8_INVALID, UNICODE_SYMBOL},
    };
    for (size_t i = 0; i < COUNT_OF(some); i++) CHECK(unicode_class(some[i].cp) == some[i].bit, "U+%04X", some[i].cp);
    for (uint32_t b = 0; b < 256; b++) CHECK(char_byte(byte_char(b)) == (int)b, "byte %u", b);
    for (uint32_t c = 0, n = 0; c < 0x400; c++) {
        n += char_byte(c) >= 0;
        if (c == 0x3FF) CHECK(n == 256, "%u characters name bytes", n);
    }
}

/* "0041 030A" to UTF-8; returns what stands behind. */
static const char *hex_text(const char *p, char *out, size_t *n) {
    *n = 0;
    for (char *end; *p && *p != ';' && *p != '\n'; p = *end == ' ' ? end + 1 : end) {
        unsigned long cp = strtoul(p, &end, 16);
        if (end == p) break;
        *n += utf8_put((uint32_t)cp, out + *n);
    }
    return p;
}

static FILE *open_beside(const char *name) {
    char        path[1024];
    const char *slash = strrchr(__FILE__, '/');
    snprintf(path, sizeof path, "%.*s%s", slash ? (int)(slash - __FILE__) + 1 : 0, __FILE__, name);
    return fopen(path, "rb");
}

static bool nfc_is(const char *p, size_t n, const char *want, size_t n_want) {
    text_buffer b;
    text_init(&b, &mem_host, 0);
    bool same = unicode_nfc(str_of(p, n), &b) && b.n == n_want && (n_want == 0 || memcmp(b.p, want, n_want) == 0);
    /* What is called NFC beyond doubt must come out as it was. */
    if (unicode_nfc_span(str_of(p, n)) == n) same = same && b.n == n && (n == 0 || memcmp(b.p, p, n) == 0);
    text_free(&b);
    return same;
}

static void test_nfc(void) {
    FILE *f = open_beside("nfc_vectors.txt");
    char  line[512], from[256], to[256];
    CHECK(f != NULL, "nfc_vectors.txt");
    for (int number = 1; f && fgets(line, sizeof line, f); number++) {
        size_t n, n_to;
        if (line[0] == '#') continue;
        const char *p = hex_text(line, from, &n);
        if (*p == ';') p++;
        hex_text(p, to, &n_to);
        CHECK(n > 0 && nfc_is(from, n, to, n_to) && nfc_is(to, n_to, to, n_to), "line %d", number);
    }
    if (f) fclose(f);
    CHECK(nfc_is("", 0, "", 0), "empty");
    CHECK(nfc_is("plain \xFF\xC3 text\xCC", 14, "plain \xFF\xC3 text\xCC", 14), "bytes that are no UTF-8 stay");
    CHECK(nfc_is("e\xCC\x81\xFF\xCC\x81", 6, "\xC3\xA9\xFF\xCC\x81", 5), "nothing composes over such a byte");
    /* A long run of marks of two classes comes out sorted, and soon. */
    size_t n = 400000;
    char  *marks = (char *)malloc(2 * n), *sorted = (char *)malloc(2 * n);
    for (size_t i = 0; i < n; i++) {
        memcpy(marks + 2 * i, i % 2 ? "\xCC\xA3" : "\xCC\x81", 2);
        memcpy(sorted + 2 * i, i < n / 2 ? "\xCC\xA3" : "\xCC\x81", 2);
    }
    CHECK(nfc_is(marks, 2 * n, sorted, 2 * n), "%zu marks", n);
    free(marks);
    free(sorted);
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

/* ---- The patterns, interpreted plainly: backtracking, on short texts alone ---- */

/* One class of a pattern at *re: an escape, a set in brackets, or a character. Moves *re behind it. */
static bool class_has(const char **re, uint32_t cp);

static bool escape_has(const char **re, uint32_t cp) {
    char c = *(*re)++;
    if (c == 'r') return cp == '\r';
    if (c == 'n') return cp == '\n';
    if (c == 's') return (unicode_class(cp) & UNICODE_WHITE) != 0;
    if (c == 'S') return (unicode_class(cp) & UNICODE_WHITE) == 0;
    if (c != 'p') return cp == (unsigned char)c;
    /* Which of \p{Lm} and \p{Lo} it is does not matter to any pattern. */
    static const struct { const char *name; uint32_t bits; } names[] = {
        {"{L}", UNICODE_LETTER}, {"{N}", UNICODE_NUMBER}, {"{M}", UNICODE_MARK},   {"{P}", UNICODE_PUNCT},
        {"{S}", UNICODE_SYMBOL}, {"{Lu}", UNICODE_UPPER}, {"{Lt}", UNICODE_UPPER}, {"{Ll}", UNICODE_LOWER},
        {"{Lm}", UNICODE_OTHER}, {"{Lo}", UNICODE_OTHER},
    };
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        size_t n = strlen(names[i].name);
        if (strncmp(*re, names[i].name, n) != 0) continue;
        *re += n;
        return (unicode_class(cp) & names[i].bits) != 0;
    }
    printf("pattern at \"%s\"\n", *re);
    exit(2);
}

static uint32_t pattern_char(const char **re) {
    size_t   length;
    uint32_t cp = utf8_get(*re, strlen(*re), &length);
    *re += length;
    return cp;
}

static bool class_has(const char **re, uint32_t cp) {
    if (**re == '\\') {
        ++*re;
        return escape_has(re, cp);
    }
    if (**re != '[') return pattern_char(re) == cp;
    bool negated = *++*re == '^', has = false;
    if (negated) ++*re;
    while (**re != ']') {
        if (**re == '\\') {
            has |= class_has(re, cp);
            continue;
        }
        uint32_t low = pattern_char(re), high = low;
        if (**re == '-' && (*re)[1] != ']') {
            ++*re;
            high = pattern_char(re);
        }
        has |= cp >= low && cp <= high;
    }
    ++*re;
    return has != negated;
}

static uint32_t folded(uint32_t cp) { return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp == 0x17F ? 's' : cp; }

/* Where the alternative at `re`, which ends with a '|' or the pattern, ends its match at `at`; SIZE_MAX: none. */
static size_t re_match(const char *re, const uint32_t *cp, size_t n, size_t at) {
    if (*re == 0 || *re == '|') return at;
    if (strncmp(re, "(?!\\S)", 6) == 0) {
        const char *set = "\\S";
        return at < n && class_has(&set, cp[at]) ? SIZE_MAX : re_match(re + 6, cp, n, at);
    }
    if (strncmp(re, "(?i:", 4) == 0) {   /* literals; at the end of it a '?' perhaps */
        const char *close = strchr(re, ')'), *rest = close + 1 + (close[1] == '?');
        for (const char *p = re + 4; p < close; p++) {
            size_t k = 0;
            while (p[k] != '|' && p[k] != ')' && at + k < n && folded(cp[at + k]) == (unsigned char)p[k]) k++;
            size_t end = p[k] == '|' || p[k] == ')' ? re_match(rest, cp, n, at + k) : SIZE_MAX;
            if (end != SIZE_MAX) return end;
            while (*p != '|' && *p != ')') p++;
        }
        return close[1] == '?' ? re_match(rest, cp, n, at) : SIZE_MAX;
    }
    const char *behind = re;
    class_has(&behind, 0);
    size_t least = 1, most = 1, count = 0;
    if (*behind == '?') least = 0, behind++;
    else if (*behind == '*') least = 0, most = SIZE_MAX, behind++;
    else if (*behind == '+') most = SIZE_MAX, behind++;
    else if (*behind == '{') most = (size_t)(behind[3] - '0'), behind += 5;
    for (const char *set = re; count < most && at + count < n && class_has(&set, cp[at + count]); set = re) count++;
    for (;; count--) {
        size_t end = count >= least ? re_match(behind, cp, n, at + count) : SIZE_MAX;
        if (end != SIZE_MAX || count == 0) return end;
    }
}

/* Where the pattern's match at `at` ends; `at` where there is none. */
static size_t re_first(const char *re, const uint32_t *cp, size_t n, size_t at) {
    int depth = 0;
    for (const char *p = re;;) {
        size_t end = re_match(p, cp, n, at);
        if (end != SIZE_MAX && end > at) return end;
        for (; *p && (depth || *p != '|'); p++) {   /* the next alternative */
            if (*p == '\\') p++;
            else if (*p == '[' || *p == '(') depth++;
            else if (*p == ']' || *p == ')') depth--;
        }
        if (!*p++) return at;
    }
}

#define RE_CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define RE_WHITE "\\s+(?!\\S)|\\s+"
#define RE_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" RE_WHITE
#define RE_LLAMA(digits) RE_CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" RE_WHITE
#define RE_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define RE_CASED(suffix, digits) "[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER "*" RE_LOWER "+" suffix \
    "|[^\\r\\n\\p{L}\\p{N}]?" RE_UPPER "+" RE_LOWER "*" suffix "|" digits \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" RE_WHITE

typedef struct twin { const char *name, *stages[PRE_STAGES]; } twin;

/* As in the tokenizers' own files; llama.cpp's for "default" and "falcon". */
static const twin twins[] = {
    {"gpt-2", {RE_GPT2, NULL, NULL, NULL}},
    {"smollm", {"\\p{N}", RE_GPT2, NULL, NULL}},
    {"llama-bpe", {RE_LLAMA("\\p{N}{1,3}"), NULL, NULL, NULL}},
    {"qwen2", {RE_LLAMA("\\p{N}"), NULL, NULL, NULL}},
    {"qwen35",
     {RE_CONTRACTIONS
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" RE_WHITE,
      NULL, NULL, NULL}},
    {"gpt-4o", {RE_CASED(RE_CONTRACTIONS "?", "\\p{N}{1,3}"), NULL, NULL, NULL}},
    {"tekken", {RE_CASED("", "\\p{N}"), NULL, NULL, NULL}},
    {"deepseek-v3",
     {"\\p{N}{1,3}", "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
      " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|" RE_WHITE,
      NULL}},
    {"default", {"[\\p{P}$+<=>\\^~|]+", RE_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {"falcon", {"[\\p{P}$+<=>\\^~|`]+", RE_GPT2, "[0-9][0-9][0-9]", NULL}},
};

/* Marks where words end: cut[i] before character i. */
static void twin_cut(const twin *w, const uint32_t *cp, size_t n, bool *cut) {
    memset(cut, 0, (n + 1) * sizeof *cut);
    cut[0] = cut[n] = true;
    for (int s = 0; s < PRE_STAGES && w->stages[s]; s++) {
        bool before[64];
        memcpy(before, cut, (n + 1) * sizeof *cut);
        for (size_t from = 0, to; from < n; from = to) {
            for (to = from + 1; !before[to]; to++) {}
            for (size_t at = from; at < to;) {
                size_t end = from + re_first(w->stages[s], cp + from, to - from, at - from);
                if (end > at) cut[at] = cut[end] = true;
                at = end > at ? end : at + 1;
            }
        }
    }
}

static uint32_t random_char(void) {
    static const uint32_t some[] = {
        ' ',    ' ',     ' ',    '\n',  '\r',   '\t',    0xA0,    0x2028,  'a',    's',    't',    'S',
        'T',    'R',     'e',    'l',   'L',    'v',     'm',     'd',     '\'',   '\'',   '1',    '2',
        0x662,  0xBD,    '/',    '.',   '(',    '$',     '`',     '<',     '_',    '-',    0x2014, 0xC9,
        0xE9,   0x17F,   0x1C5,  0x2B0, 0x5D0,  0x301,   0x93E,   0x4E00,  0x9FA5, 0x9FA6, 0x3042, 0x30FF,
        0x3099, 0x1F600, 0x200B, 0x1,   0xE000, 0x10400, 0x1F1E6, 0xE0101,
    };
    return some[test_below((uint32_t)COUNT_OF(some))];
}

static void test_patterns(void) {
    for (size_t k = 0; k < COUNT_OF(twins); k++) {
        const pre_rule *rule = pre_find(str_c(twins[k].name));
        uint32_t wrong = 0;
        CHECK(rule != NULL, "%s", twins[k].name);
        for (int round = 0; rule && round < 6000; round++) {
            uint32_t cp[24];
            bool     want[64];
            char     text[128];
            size_t   n = test_below(24), bytes = 0, place[32];
            for (size_t i = 0; i < n; i++) {
                cp[i]    = round % 3 ? random_char() : (unsigned char)"aA '\n1s.l"[test_below(9)];
                place[i] = bytes;
                bytes += utf8_put(cp[i], text + bytes);
            }
            place[n] = bytes;
            twin_cut(&twins[k], cp, n, want);
            pre_words words;
            str       word;
            size_t    at = 0;
            bool      same = true;
            pre_begin(&words, rule, str_of(text, bytes));
            while (same && pre_next(&words, &word)) {
                size_t end = (size_t)(word.p + word.n - text);
                same = word.n > 0 && word.p == text + at;
                for (size_t i = 0; i <= n && same; i++)
                    if (place[i] > at && place[i] <= end) same = want[i] == (place[i] == end);
                at = end;
            }
            if (!same || at != bytes) {
                if (wrong++ == 0) printf("  %s: \"%.*s\"\n", twins[k].name, (int)bytes, text);
            }
        }
        CHECK(wrong == 0, "%s: %u texts are cut otherwise than by its pattern", twins[k].name, wrong);
    }
}

/* Any bytes: every rule covers all of them with words that are not empty. */
static void test_cover(void) {
    for (size_t k = 0; k < COUNT_OF(pre_rules); k++) {
        bool good = pre_find(str_c(pre_rules[k].name)) == &pre_rules[k];
        for (int round = 0; round < 200; round++) {
            char   text[64];
            size_t n = test_below(sizeof text), at = 0;
            for (size_t i = 0; i < n; i++) text[i] = (char)(round % 2 ? test_below(256) : 0xC0 + test_below(64));
            pre_words words;
            str       word;
            pre_begin(&words, &pre_rules[k], str_of(text, n));
            while (pre_next(&words, &word)) {
                good = good && word.n > 0 && word.p == text + at;
                at += word.n;
            }
            good = good && at == n;
        }
        CHECK(good, "%s", pre_rules[k].name);
    }
    CHECK(pre_find(str_c("gpt-3")) == NULL && pre_find(str_of("gpt-2\0", 6)) == NULL && pre_find(str_of("", 0)) == NULL,
          "unknown names");
}

/* ---- Merging against a plain twin ---- */

/* Merges symbols, given as texts in `parts`, by looking for the best pair over and over. */
static void twin_merge(const toy *t, char parts[][64], size_t *n) {
    for (;;) {
        size_t best = SIZE_MAX, best_at = 0;
        float  best_score = 0;
        for (size_t i = 0; i + 1 < *n; i++) {
            char pair[160];
            if (strcmp(t->model, "llama") == 0) {
                snprintf(pair, sizeof pair, "%.63s%.63s", parts[i], parts[i + 1]);
                int32_t id = toy_find(t, pair);
                if (id < 0 || t->tokens[id].type != 1 || (best != SIZE_MAX && t->tokens[id].score <= best_score))
                    continue;
                best       = 0;
                best_score = t->tokens[id].score;
                best_at    = i;
                continue;
            }
            snprintf(pair, sizeof pair, "%.63s %.63s", parts[i], parts[i + 1]);
            for (size_t r = 0; r < t->n_merges && r < best; r++) {
                if (strcmp(t->merges[r].text, pair) != 0) continue;
                best    = r;
                best_at = i;
            }
        }
        if (best == SIZE_MAX) return;
        memcpy(parts[best_at] + strlen(parts[best_at]), parts[best_at + 1], strlen(parts[best_at + 1]) + 1);
        memmove(parts[best_at + 1], parts[best_at + 2], (*n - best_at - 2) * sizeof parts[0]);
        --*n;
    }
}

/* Small numbers, so that ties are common; both zeros among them. */
static float random_score(uint32_t n) {
    uint32_t k = test_below(n);
    return k || test_below(2) ? -(float)k : 0.0f;
}

/* A random vocabulary over few letters, so that ties and overlaps are common. */
static void random_toy(toy *t, bool spm) {
    static const char *const letters[] = {"a", "b", "c", "d"};
    toy_init(t, spm ? "llama" : "gpt2", "gpt-2");
    if (spm) toy_add(t, "<unk>", 2, 0.0f);
    for (size_t i = 0; i < COUNT_OF(letters); i++) toy_add(t, letters[i], 1, random_score(4));
    for (int i = 0; i < 60; i++) {
        uint32_t base = spm ? 1 : 0;
        const toy_token *a = &t->tokens[base + test_below(t->n_tokens - base)],
                        *b = &t->tokens[base + test_below(t->n_tokens - base)];
        char left[64], right[64], whole[64];
        if (a->n + b->n > 12) continue;
        snprintf(left, sizeof left, "%.*s", (int)a->n, a->text);
        snprintf(right, sizeof right, "%.*s", (int)b->n, b->text);
        snprintf(whole, sizeof whole, "%.*s%.*s", (int)a->n, a->text, (int)b->n, b->text);
        if (!spm) toy_join(t, left, right);   /* now and then one that is there already */
        else if (toy_find(t, whole) < 0) toy_add(t, whole, 1, random_score(6));
    }
    t->add_space_prefix = spm ? 0 : -1;
}

static void test_merging(void) {
    static char parts[512][64];
    static toy  t;
    uint32_t    wrong = 0;
    for (int round = 0; round < 80; round++) {
        opened o;
        random_toy(&t, round % 2 == 0);
        open_toy(&o, &t);
        CHECK(o.result == NOVA_OK, "%s", o.error.message);
        for (int word = 0; o.result == NOVA_OK && word < 60; word++) {
            char   text[512];
            size_t n = 1 + test_below(word < 40 ? 12 : 300), k = n;   /* the short and the long way */
            for (size_t i = 0; i < n; i++) {
                text[i]     = "abcd"[test_below(word % 3 ? 4 : 2)];
                parts[i][0] = text[i];
                parts[i][1] = 0;
            }
            twin_merge(&t, parts, &k);
            ids  got  = encode(o.t, text, n, 0);
            bool same = got.result == NOVA_OK && got.n == k;
            for (size_t i = 0; i < k && same; i++) same = got.p[i] == toy_find(&t, parts[i]);
            if (!same && wrong++ == 0) printf("  round %d: %.*s\n", round, (int)n, text);
            free(got.p);
        }
        close_toy(&o);
    }
    CHECK(wrong == 0, "%u words", wrong);
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

/* ---- Whole vocabularies ---- */

#define ENCODES(o, text, flags, want) CHECK(encodes_to((o).t, text, sizeof text - 1, flags, want), "%s", want)

static void test_bpe(void) {
    static toy t;
    opened     o;
    toy_bpe(&t, "llama-bpe");
    open_toy(&o, &t);
    CHECK(o.result == NOVA_OK, "%s", o.error.message);
    if (o.result != NOVA_OK) return;
    CHECK(tokenizer_n_vocab(o.t) == t.n_tokens && tokenizer_bos(o.t) == (int32_t)t.bos &&
              tokenizer_eos(o.t) == (int32_t)t.eos,
          "ids");
    CHECK(tokenizer_adds_bos(o.t), "llama 3's rule adds BOS");
    CHECK(tokenizer_is_end(o.t, (int32_t)t.eos) && !tokenizer_is_end(o.t, (int32_t)t.bos) && !tokenizer_is_end(o.t, -1),
          "ends");
    CHECK(tokenizer_max_piece(o.t) == 12, "%zu", tokenizer_max_piece(o.t));   /* "<|im_start|>" */
    ENCODES(o, "", 0, "");
    ENCODES(o, "the the", 0, "the|\xC4\xA0the");
    ENCODES(o, "hello", 0, "hello");
    ENCODES(o, "hellow", 0, "hello|w");
    ENCODES(o, "they're 1234", 0, "the|y|'|r|e|\xC4\xA0|123|4");
    ENCODES(o, "    x", 0, "\xC4\xA0\xC4\xA0|\xC4\xA0|\xC4\xA0|x");
    ENCODES(o, "\xC3\xA9\xFF", 0, "\xC3\x83\xC2\xA9|\xC3\xBF");
    ENCODES(o, "the", NOVA_ADD_SPECIAL, "<|bos|>|the");
    /* Special tokens. */
    ENCODES(o, "<|bos|>", 0, "<|||b|o|s|||>");
    ENCODES(o, "a<|bos|>the", NOVA_PARSE_SPECIAL, "a|<|bos|>|the");
    ENCODES(o, "a<tool>a", 0, "a|<tool>|a");
    ENCODES(o, "a<tool>sa<tool", 0, "a|<tool>s|a|<|t|o|o|l");
    ENCODES(o, "<|im_end|><|im<|im_user", NOVA_PARSE_SPECIAL, "<|im_end|>|<|im|<|im_user");
    ENCODES(o, "<|im_user<|im_start|>", 0, "<|im_user|<|||i|m|_|s|t|a|r|t|||>");
    size_t  n = 0;
    int32_t id = -7;
    CHECK(tokenizer_encode(o.t, &mem_host, str_c("hello the"), 0, NULL, 0, &n, &o.error) == NOVA_ERROR_TOO_SMALL &&
              n == 2,
          "%zu", n);
    CHECK(tokenizer_encode(o.t, &mem_host, str_c("hello the"), 0, &id, 1, &n, NULL) == NOVA_ERROR_TOO_SMALL && n == 2,
          "%zu", n);
    CHECK(id == toy_find(&t, "hello"), "what fits is written");
    close_toy(&o);
    toy_bpe(&t, "gpt-2");
    t.add_bos = 0;
    t.add_eos = 1;
    open_toy(&o, &t);
    ENCODES(o, "the they're", NOVA_ADD_SPECIAL, "the|\xC4\xA0the|y|'|r|e|<|im_end|>");
    ENCODES(o, "aaaaaaaaaaa\n\n", 0, "aaaaaaaa|aa|a|\xC4\x8A\xC4\x8A");
    close_toy(&o);
    /* Of equal texts the first token is meant. */
    toy_bpe(&t, "gpt-2");
    toy_add(&t, "hello", 1, 0.0f);
    toy_add(&t, "<tool>", 4, 0.0f);
    open_toy(&o, &t);
    ids           got    = encode(o.t, "hello<tool>", 11, 0);
    const int32_t want[] = {toy_find(&t, "hello"), toy_find(&t, "<tool>")};
    CHECK(ids_are(&got, want, 2), "%zu ids", got.n);
    free(got.p);
    close_toy(&o);
}

static void test_spm(void) {
    static toy t;
    opened     o;
    toy_spm(&t);
    open_toy(&o, &t);
    CHECK(o.result == NOVA_OK, "%s", o.error.message);
    if (o.result != NOVA_OK) return;
#define S "\xE2\x96\x81"
    CHECK(tokenizer_adds_bos(o.t) && tokenizer_bos(o.t) == 1 && tokenizer_eos(o.t) == 2, "ids");
    CHECK(tokenizer_is_end(o.t, 2) && !tokenizer_is_end(o.t, 0), "ends");
    ENCODES(o, "", 0, "");
    ENCODES(o, "", NOVA_ADD_SPECIAL, "<s>");
    ENCODES(o, "hello", 0, S "hello");
    ENCODES(o, "the hello", NOVA_ADD_SPECIAL, "<s>|" S "the|" S "hello");
    ENCODES(o, "\n\xF0\x9F\x98\x80" "e", 0, S "|<0x0A>|<0xF0>|<0x9F>|<0x98>|<0x80>|e");
    ENCODES(o, "\xFF\xE2\x96", 0, S "|<0xFF>|<0xE2>|<0x96>");
    /* Text never becomes a control token by merging, not even from pieces that spell one. */
    ENCODES(o, "</s>", 0, S "|</s|>");
    ENCODES(o, "</s>", NOVA_PARSE_SPECIAL, "</s>");
    ENCODES(o, "the</s>the", NOVA_PARSE_SPECIAL, S "the|</s>|" S "the");
    /* In plain text a user-defined token is part of the text; where special tokens are parsed, it parts it. */
    ENCODES(o, "the<tool>the", 0, S "the|<tool>|the");
    ENCODES(o, "<tool>the", 0, S "|<tool>|the");
    ENCODES(o, "<tool>", 0, S "|<tool>");
    ENCODES(o, "the<tool>the", NOVA_PARSE_SPECIAL, S "the|<tool>|" S "the");
    ENCODES(o, "<tool>the", NOVA_PARSE_SPECIAL, "<tool>|" S "the");
    ENCODES(o, "<s></s>", NOVA_PARSE_SPECIAL, "<s>|</s>");
    /* Special tokens with spaces in them, written either way. */
    ENCODES(o, "a<end of turn>", NOVA_PARSE_SPECIAL, S "|a|<end of turn>");
    ENCODES(o, "a<end of turn>", 0, S "|a|<|e|n|<0x64>|" S "|o|<0x66>|" S "t|<0x75>|r|n|>");
    ENCODES(o, "a <PRE>", 0, S "|a|" S "<PRE>");
    ENCODES(o, "a" S "<PRE>", 0, S "|a|" S "<PRE>");
    close_toy(&o);
    /* Words are encoded apart unless some token holds a space behind something else. */
    toy_spm(&t);
    toy_add(&t, "a" S "t", 1, 50.0f);
    toy_add(&t, "a" S, 1, 40.0f);
    t.add_space_prefix = 0;
    t.add_bos = 0;
    open_toy(&o, &t);
    ENCODES(o, "a the", 0, "a" S "t|he");
    ENCODES(o, "e the", 0, "e|" S "the");
    ENCODES(o, "the", NOVA_ADD_SPECIAL, "the");
    close_toy(&o);
    /* Without byte tokens, what is unknown is one token in a row. */
    toy_init(&t, "llama", NULL);
    toy_add(&t, "<unk>", 2, 0.0f);
    toy_add(&t, S, 1, -1.0f);
    toy_add(&t, "a", 1, -2.0f);
    t.unk = 0;
    open_toy(&o, &t);
    CHECK(o.result == NOVA_OK, "%s", o.error.message);
    ENCODES(o, "xyza\xFF", 0, S "|<unk>|a|<unk>");
    close_toy(&o);
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

/* ---- Marks ---- */

static bool marked_is(const tokenizer *t, const char *text, size_t n, const char *want, size_t n_want) {
    text_buffer b;
    text_init(&b, &mem_host, 0);
    bool same = tokenizer_mark(t, str_of(text, n), &b) && b.n == n_want && memcmp(b.p, want, n_want) == 0;
    text_free(&b);
    return same;
}

#define MARKS(o, text, want) CHECK(marked_is((o).t, text, sizeof text - 1, want, sizeof want - 1), "%s", text)

static void test_marks(void) {
    static toy     t;
    static const uint32_t parse = NOVA_PARSE_SPECIAL | TOKENIZER_MARKED;
    opened         o;
    toy_bpe(&t, "gpt-2");
    toy_add(&t, "\x01", 3, 0.0f);
    open_toy(&o, &t);
    MARKS(o, "a<b", "a<\xFF" "b");   /* what a control token begins with, whatever follows */
    MARKS(o, "a|b>", "a|b>");
    MARKS(o, "a<|im_start|>b", "a<\xFF|im_start|>b");
    MARKS(o, "<<|bos|><|im", "<\xFF<\xFF|bos|><\xFF|im");
    MARKS(o, "x\x01y", "x\x01\xFFy");
    MARKS(o, "x\xFF", "x\xEF\xFF\xBF\xBD");
    ENCODES(o, "<\xFF|im_start|>", parse, "<|||i|m|_|s|t|a|r|t|||>");
    ENCODES(o, "a\x01\xFF\x01", parse, "a|\xC4\x81|\x01");
    ENCODES(o, "the\xFF", parse, "the");
    ENCODES(o, "<tool>\xFF" "a", parse, "<tool>|a");
    ENCODES(o, "<\xFFtool>s<|im\xFF_user", parse, "<tool>s|<|im_user");   /* user-defined tokens do not see marks */
    ENCODES(o, "a\xFF", NOVA_PARSE_SPECIAL, "a|\xC3\xBF");                  /* without the flag it is a byte */
    /* Whatever the text: marked, it encodes to what it does without special tokens. */
    static const char *const parts[] = {"<|im_start|>", "<|im",   "_user", "<|bos|>", "<",   "|", "a",
                                        " the",         "<tool>", "s",     "\n",      "\x01"};
    uint32_t wrong = 0;
    for (int round = 0; round < 3000; round++) {
        char   text[256];
        size_t n = 0;
        for (uint32_t k = test_below(10); k > 0; k--)
            n += (size_t)sprintf(text + n, "%s", parts[test_below((uint32_t)COUNT_OF(parts))]);
        text_buffer b;
        text_init(&b, &mem_host, 0);
        ids want = encode(o.t, text, n, 0), got;
        CHECK(tokenizer_mark(o.t, str_of(text, n), &b), "memory");
        got = encode(o.t, b.p, b.n, parse);
        if (!ids_are(&got, want.p, want.n) && wrong++ == 0) printf("  \"%.*s\"\n", (int)n, text);
        text_free(&b);
        free(want.p);
        free(got.p);
    }
    CHECK(wrong == 0, "%u texts", wrong);
    close_toy(&o);
    toy_spm(&t);
    open_toy(&o, &t);
    MARKS(o, "a<end of turn> </s>", "a<\xFF" "end of turn> <\xFF/s>");
    ENCODES(o, "<\xFF" "end of turn>", parse, S "|<|e|n|<0x64>|" S "|o|<0x66>|" S "t|<0x75>|r|n|>");
    close_toy(&o);
}

/* ---- Decoding ---- */

static void test_pieces(void) {
    static toy t;
    opened     o;
    char       p[64];
    toy_bpe(&t, "gpt-2");
    int32_t odd = toy_add(&t, "\xE4\xB8\x80\xC4\xA0", 1, 0.0f), empty = toy_add(&t, "", 1, 0.0f);
    open_toy(&o, &t);
    CHECK(tokenizer_piece(o.t, toy_find(&t, "\xC4\xA0hello"), false, false, p, sizeof p) == 6 &&
              memcmp(p, " hello", 6) == 0,
          "bytes");
    CHECK(tokenizer_piece(o.t, (int32_t)t.bos, false, false, p, sizeof p) == 0, "control tokens have no text");
    CHECK(tokenizer_piece(o.t, (int32_t)t.bos, false, true, p, sizeof p) == 7 && memcmp(p, "<|bos|>", 7) == 0,
          "unless wanted");
    CHECK(tokenizer_piece(o.t, odd, false, false, p, sizeof p) == 5 && memcmp(p, "\xE4\xB8\x80\xC4\xA0", 5) == 0,
          "no bytes' names");
    CHECK(tokenizer_piece(o.t, empty, false, false, p, sizeof p) == 0, "an empty token");
    memset(p, '-', sizeof p);
    CHECK(tokenizer_piece(o.t, toy_find(&t, "hello"), false, false, p, 2) == 5 && memcmp(p, "he-", 3) == 0,
          "what fits");
    CHECK(tokenizer_piece(o.t, -1, false, true, p, 9) == 0 &&
              tokenizer_piece(o.t, (int32_t)t.n_tokens, false, true, p, 9) == 0,
          "no such id");
    /* Every byte string comes back. */
    uint32_t wrong = 0;
    for (int round = 0; round < 2000; round++) {
        char   text[80];
        size_t n = test_below(sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(round % 2 ? test_below(256) : (uint32_t)"ahelo t\n"[test_below(8)]);
        ids         got  = encode(o.t, text, n, 0);
        text_buffer back = decode(o.t, got.p, got.n);
        wrong += back.n != n || (n && memcmp(back.p, text, n) != 0);
        text_free(&back);
        free(got.p);
    }
    close_toy(&o);
    CHECK(wrong == 0, "%u byte strings", wrong);
    toy_spm(&t);
    open_toy(&o, &t);
    CHECK(tokenizer_piece(o.t, toy_find(&t, S "hello"), false, false, p, 64) == 6 && memcmp(p, " hello", 6) == 0,
          "a space");
    CHECK(tokenizer_piece(o.t, toy_find(&t, S "hello"), true, false, p, 64) == 5 && memcmp(p, "hello", 5) == 0,
          "not the first");
    CHECK(tokenizer_piece(o.t, toy_find(&t, S S), true, false, p, 64) == 1 && p[0] == ' ', "one of two");
    CHECK(tokenizer_piece(o.t, toy_find(&t, "<0xC3>"), true, false, p, 64) == 1 && p[0] == '\xC3', "a byte");
    CHECK(tokenizer_piece(o.t, 0, true, false, p, 64) == 0, "the unknown token");
    for (int round = 0; round < 2000; round++) {
        char   text[80];
        size_t n = test_below(sizeof text);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)(round % 2 ? test_below(256) : (uint32_t)"ahelo t\n"[test_below(8)]);
        ids         got  = encode(o.t, text, n, NOVA_ADD_SPECIAL);
        text_buffer back = decode(o.t, got.p, got.n);
        bool has_space = false;   /* U+2581 itself comes back as a space */
        for (size_t i = 0; i + 2 < n; i++) has_space = has_space || memcmp(text + i, S, 3) == 0;
        wrong += !has_space && (back.n != n || (n && memcmp(back.p, text, n) != 0));
        text_free(&back);
        free(got.p);
    }
    CHECK(wrong == 0, "%u byte strings", wrong);
    close_toy(&o);
}

/* ---- Hostile files ---- */

typedef void (*spoil_fn)(toy *t);

static void no_model(toy *t) { t->model = NULL; }
static void other_model(toy *t) { t->model = "wordpiece\n\x1b[31m"; }
static void other_pre(toy *t) { t->pre = "gpt-5"; }
static void no_tokens(toy *t) { t->no_tokens = 1; }
static void tokens_are_numbers(toy *t) { t->tokens_item = GW_U32; }
static void zero_tokens(toy *t) { t->n_tokens = t->n_types = t->n_scores = 0; }
static void few_types(toy *t) { t->n_types--; }
static void many_types(toy *t) { t->n_types++; }
static void real_types(toy *t) { t->type_item = GW_F32; }
static void text_types(toy *t) { t->type_item = GW_STRING; }
static void bool_types(toy *t) { t->type_item = GW_BOOL; }
static void wrong_type(toy *t) { t->tokens[5].type = 7; }
static void negative_type(toy *t) { t->tokens[5].type = -1; }
static void few_scores(toy *t) { t->n_scores--; }
static void no_scores(toy *t) { t->n_scores = UINT32_MAX; }
static void text_scores(toy *t) { t->score_item = GW_STRING; }
static void nan_score(toy *t) { memset(&t->tokens[5].score, 0xFF, 4); }
static void infinite_score(toy *t) { uint32_t inf = 0x7f800000; memcpy(&t->tokens[5].score, &inf, 4); }
static void bad_bos(toy *t) { t->bos = t->n_tokens; }
static void bad_eos(toy *t) { t->eos = UINT32_MAX; }
static void bad_unk(toy *t) { t->unk = t->n_tokens; }
static void negative_byte(toy *t) { memcpy(t->tokens[3].text, "<0x-1>", 6); }
static void long_byte(toy *t) { toy_add(t, "<0x1234>", 6, 0.0f); }
static void no_byte(toy *t) { toy_add(t, "", 6, 0.0f); }
static void no_merges(toy *t) { t->no_merges = 1; }
static void unknown_left(toy *t) { strcpy(t->merges[t->n_merges++].text, "zq t"); }
static void unknown_right(toy *t) { strcpy(t->merges[t->n_merges++].text, "t zq"); }
static void unknown_whole(toy *t) { strcpy(t->merges[t->n_merges++].text, "z q"); }
static void one_part(toy *t) { strcpy(t->merges[t->n_merges++].text, "the"); }
static void no_right(toy *t) { strcpy(t->merges[t->n_merges++].text, "t "); }
static void no_left(toy *t) { strcpy(t->merges[t->n_merges++].text, " t"); }
static void only_space(toy *t) { strcpy(t->merges[t->n_merges++].text, " "); }
static void empty_merge(toy *t) { strcpy(t->merges[t->n_merges++].text, ""); }
static void nothing(toy *t) { (void)t; }
static void empty_tokens(toy *t) {
    toy_add(t, "", 1, 0.0f);
    toy_add(t, "", 3, 0.0f);
    toy_add(t, "", 4, 0.0f);
    toy_add(t, "", 2, 0.0f);
}
static void twin_tokens(toy *t) {
    toy_add(t, "the", 1, 9.0f);
    toy_add(t, "<tool>", 4, 0.0f);
    toy_add(t, "<tool>", 3, 0.0f);
}
static void twin_merges(toy *t) { strcpy(t->merges[t->n_merges++].text, "t h"); }
static void control_merge(toy *t) { t->tokens[toy_find(t, "hello")].type = 3; }   /* left out, as is what needs it */
static void mark_tokens(toy *t) {
    toy_add(t, "\xFF", 3, 0.0f);
    toy_add(t, "a\xFF" "b", 4, 0.0f);
    toy_add(t, "\xE2", 4, 0.0f);
}
static void types_missing(toy *t) { t->n_types = UINT32_MAX; }

static const struct hostile {
    const char *model;
    const char *name;
    spoil_fn    spoil;
    nova_result want;
} hostiles[] = {
#define HOSTILE(model, fn, want) {model, #fn, fn, want}
    HOSTILE("gpt2", no_model, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", other_model, NOVA_ERROR_UNSUPPORTED),
    HOSTILE("gpt2", other_pre, NOVA_ERROR_UNSUPPORTED),
    HOSTILE("gpt2", no_tokens, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", tokens_are_numbers, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", zero_tokens, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", few_types, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", many_types, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", real_types, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", text_types, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", bool_types, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", wrong_type, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", negative_type, NOVA_ERROR_FORMAT),
    HOSTILE("llama", few_scores, NOVA_ERROR_FORMAT),
    HOSTILE("llama", no_scores, NOVA_ERROR_FORMAT),
    HOSTILE("llama", text_scores, NOVA_ERROR_FORMAT),
    HOSTILE("llama", nan_score, NOVA_ERROR_FORMAT),
    HOSTILE("llama", infinite_score, NOVA_ERROR_FORMAT),
    HOSTILE("llama", bad_bos, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", bad_eos, NOVA_ERROR_FORMAT),
    HOSTILE("llama", bad_unk, NOVA_ERROR_FORMAT),
    HOSTILE("llama", negative_byte, NOVA_ERROR_FORMAT),
    HOSTILE("llama", long_byte, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", no_byte, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", no_merges, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", unknown_left, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", unknown_right, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", unknown_whole, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", one_part, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", no_right, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", no_left, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", only_space, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", empty_merge, NOVA_ERROR_FORMAT),
    HOSTILE("gpt2", nothing, NOVA_OK),
    HOSTILE("llama", nothing, NOVA_OK),
    HOSTILE("gpt2", empty_tokens, NOVA_OK),
    HOSTILE("llama", empty_tokens, NOVA_OK),
    HOSTILE("gpt2", twin_tokens, NOVA_OK),
    HOSTILE("llama", twin_tokens, NOVA_OK),
    HOSTILE("gpt2", twin_merges, NOVA_OK),
    HOSTILE("gpt2", control_merge, NOVA_OK),
    HOSTILE("gpt2", mark_tokens, NOVA_OK),
    HOSTILE("llama", mark_tokens, NOVA_OK),
    HOSTILE("gpt2", types_missing, NOVA_OK),
    HOSTILE("llama", types_missing, NOVA_OK),
#undef HOSTILE
};

/* Uses everything of an open tokenizer; what comes out matters less than that it comes. */
static void exercise(const tokenizer *t) {
    static const char text[] =
        "hello the  </s><tool>s\xFF<|im_start|>\xE2\x96\x81 <end of turn>aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n\n";
    for (uint32_t flags = 0; flags < 4; flags++) {
        ids got = encode(t, text, sizeof text - 1, flags | (flags & 1 ? TOKENIZER_MARKED : 0));
        CHECK(got.result == NOVA_OK, "result %d", got.result);
        for (size_t i = 0; i < got.n; i++)
            CHECK(got.p[i] >= 0 && (uint32_t)got.p[i] < tokenizer_n_vocab(t), "id %d", got.p[i]);
        free(got.p);
    }
    size_t longest = 0;
    char  *piece = (char *)malloc(tokenizer_max_piece(t) + 1);
    for (int32_t id = 0; id < (int32_t)tokenizer_n_vocab(t); id++)
        longest = size_max(longest, tokenizer_piece(t, id, false, true, piece, tokenizer_max_piece(t)));
    CHECK(longest == tokenizer_max_piece(t), "%zu, not %zu", longest, tokenizer_max_piece(t));
    free(piece);
}

static void test_hostile(void) {
    static toy t;
    for (size_t i = 0; i < COUNT_OF(hostiles); i++) {
        opened o;
        if (strcmp(hostiles[i].model, "llama") == 0) toy_spm(&t);
        else toy_bpe(&t, "gpt-2");
        hostiles[i].spoil(&t);
        open_toy(&o, &t);
        CHECK(o.result == hostiles[i].want && o.error.code == o.result, "%s %s: %d %s", hostiles[i].model,
              hostiles[i].name, o.result, o.error.message);
        if (o.result == NOVA_OK) exercise(o.t);
        else CHECK(strlen(o.error.message) > 10 && !strpbrk(o.error.message, "\n\x1b"), "%s", o.error.message);
        close_toy(&o);
        CHECK(memory.bytes_live == 0, "%s: %zu bytes left", hostiles[i].name, memory.bytes_live);
    }
}

/* What hashes alike too often ends in an error instead of in endless searching. */
static void test_alike(void) {
    static toy   t;
    opened       o;
    number_table x;
    uint32_t     n = 3000, slot, put = 0;
    arena        a;
    arena_init(&a, &mem_host);
    CHECK(table_init(&x, &a, n), "memory");
    while (put < n && table_put(&x, 42, put, &slot)) put++;
    CHECK(put == PROBES_MOST, "%u", put);
    arena_free(&a);
    toy_bpe(&t, "gpt-2");
    while (t.n_merges < PROBES_MOST / 2) strcpy(t.merges[t.n_merges++].text, "t h");
    open_toy(&o, &t);
    CHECK(o.result == NOVA_OK, "%s", o.error.message);
    ENCODES(o, "the", 0, "the");
    close_toy(&o);
    while (t.n_merges < TOY_MERGES) strcpy(t.merges[t.n_merges++].text, "t h");
    open_toy(&o, &t);
    CHECK(o.result == NOVA_ERROR_FORMAT, "%d", o.result);
    close_toy(&o);
    /* And each bit of a text moves its hash. */
    toy_bpe(&t, "gpt-2");
    open_toy(&o, &t);
    char text[40] = "0123456789abcdefghijklmnopqrstuvwxyz";
    for (size_t len = 1; len < 37; len++) {
        uint64_t h = hash_text(str_of(text, len));
        for (size_t bit = 0; bit < 8 * len; bit++) {
            text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
            CHECK(hash_text(str_of(text, len)) != h, "length %zu, bit %zu", len, bit);
            text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
        }
    }
    close_toy(&o);
}

/* Cut and changed files: an error or a tokenizer, never anything else. */
static void test_damaged(void) {
    static toy t;
    for (int kind = 0; kind < 2; kind++) {
        if (kind) toy_spm(&t);
        else toy_bpe(&t, "qwen2");
        toy_file whole = toy_write(&t);
        for (int round = 0; round < 400; round++) {
            opened o;
            size_t n = round % 4 ? whole.n : test_below((uint32_t)whole.n);
            o.file.p = (uint8_t *)malloc(n + 1);
            o.file.n = n;
            memcpy(o.file.p, whole.p, n);
            for (uint32_t k = round % 4 ? 1 + test_below(3) : 0; k > 0; k--)
                o.file.p[test_below((uint32_t)n)] = (uint8_t)test_random();
            open_file(&o);
            if (o.result == NOVA_OK && o.t) exercise(o.t);
            close_toy(&o);
        }
        free(whole.p);
    }
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

/* ---- Faults: the Nth allocation fails, for every N ---- */

static void test_faults(void) {
    static toy  t;
    static char text[600];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = i < 200 ? "the hello "[i % 10] : i < 400 ? 'a' : "e\xCC\x81 "[i % 4];
    for (int kind = 0; kind < 3; kind++) {
        int opens = 0, encodes = 0, marks = 0;
        if (kind == 2) toy_spm(&t);
        else toy_bpe(&t, kind ? "llama-bpe" : "qwen2");
        for (long fail = 1;; fail++) {
            opened o;
            memory.calls   = 0;
            memory.fail_at = fail;
            open_toy(&o, &t);
            memory.fail_at = 0;
            opens++;
            CHECK(o.result == NOVA_OK || o.result == NOVA_ERROR_MEMORY, "%d: %s", o.result, o.error.message);
            bool done = o.result == NOVA_OK;
            close_toy(&o);
            CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
            if (done) break;
        }
        opened o;
        open_toy(&o, &t);
        size_t before = memory.bytes_live;
        ids    want = encode(o.t, text, sizeof text, NOVA_PARSE_SPECIAL);
        for (long fail = 1;; fail++) {
            memory.calls   = 0;
            memory.fail_at = fail;
            ids got = encode(o.t, text, sizeof text, NOVA_PARSE_SPECIAL);
            memory.fail_at = 0;
            encodes++;
            CHECK(memory.bytes_live == before, "%zu bytes more", memory.bytes_live - before);
            CHECK(got.result == NOVA_ERROR_MEMORY || ids_are(&got, want.p, want.n), "result %d", got.result);
            free(got.p);
            if (got.result == NOVA_OK) break;
        }
        for (bool done = false; !done; marks++) {
            text_buffer b;
            text_init(&b, &mem_host, 0);
            memory.calls   = 0;
            memory.fail_at = marks + 1;
            done = tokenizer_mark(o.t, str_c("<|im_start|>hello<|bos|>"), &b);
            memory.fail_at = 0;
            text_free(&b);
            CHECK(memory.bytes_live == before, "%zu bytes more", memory.bytes_live - before);
        }
        free(want.p);
        close_toy(&o);
        CHECK(opens > 1 && encodes > 2 && marks > 1, "%d %d %d faults", opens, encodes, marks);
    }
}

/* ---- Long texts end soon ---- */

static void test_long(void) {
    static toy t;
    static const struct { const char *pre, *unit; } kinds[] = {
        {"llama-bpe", "a"},
        {"llama-bpe", " "},
        {"llama-bpe", "\n"},
        {"llama-bpe", "1"},
        {"llama-bpe", "\xF0\x9F\x98\x80"},
        {"qwen2", "e\xCC\x81\xCC\xA3"},
        {"qwen2", "\xCC\x81"},
        {"gpt-4o", "A"},
        {"gpt-4o", "Aa"},
        {"gpt-4o", "\xD7\x90" "A"},
        {"gpt-4o", "'s"},
        {"deepseek-v3", "\x01"},
        {"deepseek-v3", "\xE4\xB8\x80"},
        {"default", "!"},
        {"default", "1"},
        {"gpt-2", " \t"},
        {"gpt-2", "<"},
        {"gpt-2", "<|im_"},
        {"gpt-2", "\xFF"},
        {NULL, "a"},
        {NULL, " "},
        {NULL, "\n"},
        {NULL, "the "},
        {NULL, "\xF0\x9F\x98\x80"},
        {NULL, "<"},
    };
    size_t n    = 1000000;
    char  *text = (char *)malloc(n);
    for (size_t k = 0; k < COUNT_OF(kinds); k++) {
        opened o;
        size_t unit = strlen(kinds[k].unit);
        for (size_t i = 0; i < n; i++) text[i] = kinds[k].unit[i % unit];
        if (kinds[k].pre) toy_bpe(&t, kinds[k].pre);
        else toy_spm(&t);
        open_toy(&o, &t);
        ids got = encode(o.t, text, n, 0);
        CHECK(got.result == NOVA_OK && got.n >= n / 16 && got.n <= n + 8, "%s \"%s\": %zu", kinds[k].pre, kinds[k].unit,
              got.n);
        free(got.p);
        close_toy(&o);
    }
    free(text);
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

/* ---- The vectors of real vocabularies ---- */

/* A file of the test data, or NULL. */
static char *read_data(const char *name, size_t *n) {
    const char *folder = getenv("NOVA_TEST_DATA");
    char        path[1024];
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "../shared", name);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *p = (char *)malloc(*n + 1);
    if (fread(p, 1, *n, f) != *n) *n = 0;
    p[*n] = 0;
    fclose(f);
    return p;
}

/* A JSON string at `p`, behind its quote, to UTF-8; returns what is behind it. */
static const char *json_text(const char *p, char *out, size_t *n) {
    for (*n = 0; *p != '"'; p++) {
        if (*p != '\\') {
            out[(*n)++] = *p;
            continue;
        }
        static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
        const char *known = strchr(names, *++p);
        if (known && *known) {
            out[(*n)++] = values[known - names];
            continue;
        }
        char     hex[5] = {p[1], p[2], p[3], p[4], 0};
        uint32_t cp = (uint32_t)strtoul(hex, NULL, 16);
        p += 4;
        if (cp >= 0xD800 && cp < 0xDC00) {
            memcpy(hex, p + 3, 4);
            cp = 0x10000 + ((cp - 0xD800) << 10) + ((uint32_t)strtoul(hex, NULL, 16) - 0xDC00);
            p += 6;
        }
        *n += utf8_put(cp, out + *n);
    }
    return p + 1;
}

static void test_vectors_of(const char *name) {
    static char text[65536];
    char        path[64];
    size_t      n_lines = 0, n_file;
    opened      o;
    snprintf(path, sizeof path, "tokenizers/%s.jsonl", name);
    char *lines = read_data(path, &n_lines);
    snprintf(path, sizeof path, "tokenizers/%s.gguf", name);
    o.file.p = (uint8_t *)read_data(path, &n_file);
    o.file.n = n_file;
    if (!lines || !o.file.p) {
        SKIP("no tokenizers/%s.* in NOVA_TEST_DATA", name);
        free(lines);
        free(o.file.p);
        return;
    }
    open_file(&o);
    CHECK(o.result == NOVA_OK, "%s: %s", name, o.error.message);
    for (const char *p = lines; o.result == NOVA_OK && (p = strstr(p, "{\"text\":\"")) != NULL;) {
        int32_t want[8192];
        size_t  n, n_want = 0;
        p = json_text(p + 9, text, &n);
        for (p = strchr(p, '[') + 1; *p != ']';) {
            char *end;
            want[n_want++] = (int32_t)strtol(p, &end, 10);
            p = *end == ',' ? end + 1 : end;
        }
        ids         got  = encode(o.t, text, n, 0);
        text_buffer back = decode(o.t, got.p, got.n);
        bool        same = back.n == n && (n == 0 || memcmp(back.p, text, n) == 0);
        /* Where normalised text comes back, it is the text's NFC. */
        if (!same && !o.t->is_spm && o.t->rule->nfc) same = nfc_is(text, n, back.p, back.n);
        CHECK(ids_are(&got, want, n_want), "%s: \"%.*s\" gives %zu ids, not %zu", name, (int)n, text, got.n, n_want);
        CHECK(same, "%s: \"%.*s\" comes back as \"%.*s\"", name, (int)n, text, (int)back.n, back.p);
        text_free(&back);
        free(got.p);
    }
    free(lines);
    close_toy(&o);
    CHECK(memory.bytes_live == 0, "%zu bytes left", memory.bytes_live);
}

int main(void) {
    test_begin(20);
    faults_init(&memory, 0);
    mem_host = host_init(faults_alloc, &memory, NULL, NULL);
    test_utf8();
    test_classes();
    test_nfc();
    test_patterns();
    test_cover();
    test_merging();
    test_bpe();
    test_spm();
    test_marks();
    test_pieces();
    test_hostile();
    test_alike();
    test_damaged();
    test_faults();
    test_long();
    static const char *const names[] = {"llama3_1", "qwen3", "gptoss", "deepseek_v3", "mistral", "gemma3"};
    for (size_t i = 0; i < COUNT_OF(names); i++) test_vectors_of(names[i]);
    CHECK(faults_end(&memory) == 0, "%s", memory.first_error);
    return test_end();
}
