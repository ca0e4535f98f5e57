/* The patterns of the pre-tokenizers, matched by hand: see pretokenize.h. Above each stands the regular expression that
 * its tokenizer.json (or tiktoken's source) has; where a file's pattern is known from llama.cpp alone, that.
 * None goes back over more than one run of characters, and no run is passed more than a fixed number of times. */
#include "pretokenize.h"

/* ---- Characters ---- */

/* The class at `at` and where the next character starts; 0 at the end. */
NOVA_INLINE uint32_t pre_class(const char *p, size_t at, size_t end, size_t *next) {
    if (at >= end) return 0;
    size_t   length;
    uint32_t cp = utf8_get(p + at, end - at, &length);
    *next = at + length;
    return unicode_class(cp);
}

/* The end of the run of characters of these classes from `at`. */
static size_t pre_run(const char *p, size_t at, size_t end, uint32_t classes) {
    size_t next = at;
    while (pre_class(p, at, end, &next) & classes) at = next;
    return at;
}

/* The same for ASCII characters out of a list. */
static size_t pre_run_of(const char *p, size_t at, size_t end, const char *list) {
    while (at < end && p[at] && strchr(list, p[at])) at++;
    return at;
}

NOVA_INLINE bool is_newline(char c) { return c == '\r' || c == '\n'; }

/* ---- Parts that patterns share ---- */

/* \s+(?!\S)|\s+     white space; the last character of a run is left to the word that follows. */
static size_t pre_white(const char *p, size_t at, size_t end) {
    size_t last = at, next = at, i = at;
    while (pre_class(p, i, end, &next) & UNICODE_WHITE) {
        last = i;
        i    = next;
    }
    return i == end || last == at ? i : last;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+     white space up to the last line end in it. */
static size_t pre_white_lines(const char *p, size_t at, size_t end) {
    size_t last = at, next = at, i = at, line = at;
    while (pre_class(p, i, end, &next) & UNICODE_WHITE) {
        last = i;
        i    = next;
        if (is_newline(p[last])) line = i;
    }
    if (line > at) return line;
    return i == end || last == at ? i : last;
}

/* \p{N}{1,most} */
static size_t pre_digits(const char *p, size_t at, size_t end, size_t most) {
    size_t next = at;
    for (size_t n = 0; n < most && (pre_class(p, at, end, &next) & UNICODE_NUMBER); n++) at = next;
    return at;
}

/* 's|'t|'re|'ve|'m|'ll|'d     and with `fold` in any case, where U+017F (long s) counts as an s. */
static size_t pre_contraction(const char *p, size_t at, size_t end, bool fold) {
    static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (end - at < 2 || p[at] != '\'') return at;
    if (fold && end - at >= 3 && memcmp(p + at + 1, "\xC5\xBF", 2) == 0) return at + 3;
    for (size_t i = 0; i < COUNT_OF(tails); i++) {
        size_t n = strlen(tails[i]), k = 0;
        if (n > end - at - 1) continue;
        while (k < n && (p[at + 1 + k] == tails[i][k] || (fold && p[at + 1 + k] == tails[i][k] - 'a' + 'A'))) k++;
        if (k == n) return at + 1 + n;
    }
    return at;
}

/* ---- Whole patterns ---- */

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t pre_gpt2(const char *p, size_t at, size_t end) {
    size_t to = pre_contraction(p, at, end, false);
    if (to > at) return to;
    size_t   from = at + (p[at] == ' '), next = from;
    uint32_t c = pre_class(p, from, end, &next);
    if (c == 0 || (c & UNICODE_WHITE)) return pre_white(p, at, end);
    if (c & UNICODE_LETTER) return pre_run(p, next, end, UNICODE_LETTER);
    if (c & UNICODE_NUMBER) return pre_run(p, next, end, UNICODE_NUMBER);
    return pre_run(p, next, end, ~(uint32_t)(UNICODE_WHITE | UNICODE_LETTER | UNICODE_NUMBER));
}

/* What llama 3's pattern and its descendants differ in. */
typedef struct pre_style {
    bool        contractions;
    uint32_t    letters;   /* what words are made of */
    size_t      digits;    /* most in one word */
    const char *tail;      /* characters that go with punctuation before them */
} pre_style;

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s\p{N}LETTERS]+[TAIL]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t pre_words_of(const pre_style *style, const char *p, size_t at, size_t end) {
    size_t to = style->contractions ? pre_contraction(p, at, end, true) : at;
    if (to > at) return to;
    size_t   next = at, behind = at;
    uint32_t c = pre_class(p, at, end, &next);
    if (c & style->letters) return pre_run(p, next, end, style->letters);
    if (c & UNICODE_NUMBER) return pre_digits(p, at, end, style->digits);
    uint32_t second = pre_class(p, next, end, &behind);
    if ((second & style->letters) && !is_newline(p[at])) return pre_run(p, behind, end, style->letters);
    uint32_t other = ~(UNICODE_WHITE | UNICODE_NUMBER | style->letters);
    if (p[at] == ' ' && (second & other)) return pre_run_of(p, pre_run(p, behind, end, other), end, style->tail);
    if (c & UNICODE_WHITE) return pre_white_lines(p, at, end);
    return pre_run_of(p, pre_run(p, next, end, other), end, style->tail);
}

static size_t pre_llama3(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER, 3, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

static size_t pre_qwen2(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER, 1, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

static size_t pre_qwen35(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, UNICODE_LETTER | UNICODE_MARK, 1, "\r\n"};
    return pre_words_of(&style, p, at, end);
}

/* UPPER*LOWER+ or, unless `first`, UPPER+LOWER*, where UPPER is [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] and LOWER is
 * [\p{Ll}\p{Lm}\p{Lo}\p{M}]. In the first, a run of UPPER gives back what is behind its last character that is both.
 * The second is tried where the first failed, so that behind its run comes no LOWER. */
static size_t pre_cased(const char *p, size_t at, size_t end, bool first) {
    const uint32_t both = UNICODE_OTHER | UNICODE_MARK;
    size_t   i = at, next = at, shared = at;
    uint32_t c;
    while ((c = pre_class(p, i, end, &next)) & (UNICODE_UPPER | both)) {
        i = next;
        if (c & both) shared = i;
    }
    if (c & UNICODE_LOWER) return pre_run(p, next, end, UNICODE_LOWER | both);
    return first ? shared : i;
}

/* [^\r\n\p{L}\p{N}]?UPPER*LOWER+|[^\r\n\p{L}\p{N}]?UPPER+LOWER*     A mark may be the prefix or part of the word. */
static size_t pre_cased_word(const char *p, size_t at, size_t end) {
    size_t   next = at, to;
    uint32_t c      = pre_class(p, at, end, &next);
    bool     prefix = !is_newline(p[at]) && !(c & (UNICODE_LETTER | UNICODE_NUMBER));
    bool     part   = (c & (UNICODE_LETTER | UNICODE_MARK)) != 0;
    for (int first = 1; first >= 0; first--) {
        if (prefix && (to = pre_cased(p, next, end, first != 0)) > next) return to;
        if (part && (to = pre_cased(p, at, end, first != 0)) > at) return to;
    }
    return at;
}

/* WORD(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[TAIL]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where WORD is pre_cased_word's pattern. */
static size_t pre_cased_words(const pre_style *style, const char *p, size_t at, size_t end) {
    size_t to = pre_cased_word(p, at, end);
    if (to > at) return style->contractions && to < end ? pre_contraction(p, to, end, true) : to;
    size_t   from = at + (p[at] == ' '), next = from;
    uint32_t c = pre_class(p, from, end, &next);
    if (from == at && (c & UNICODE_NUMBER)) return pre_digits(p, at, end, style->digits);
    const uint32_t other = ~(uint32_t)(UNICODE_WHITE | UNICODE_LETTER | UNICODE_NUMBER);
    if (c & other) return pre_run_of(p, pre_run(p, next, end, other), end, style->tail);
    return pre_white_lines(p, at, end);
}

static size_t pre_gpt4o(const char *p, size_t at, size_t end) {
    static const pre_style style = {true, 0, 3, "\r\n/"};
    return pre_cased_words(&style, p, at, end);
}

static size_t pre_tekken(const char *p, size_t at, size_t end) {
    static const pre_style style = {false, 0, 1, "\r\n/"};
    return pre_cased_words(&style, p, at, end);
}

static bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* [!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
 * \s*[\r\n]+|\s+(?!\S)|\s+     which leaves controls and the like unmatched */
static size_t pre_deepseek3(const char *p, size_t at, size_t end) {
    const uint32_t letters = UNICODE_LETTER | UNICODE_MARK, signs = UNICODE_PUNCT | UNICODE_SYMBOL;
    size_t   next = at, behind = at, i = at + 1;
    uint32_t c      = pre_class(p, at, end, &next);
    uint32_t second = pre_class(p, next, end, &behind);
    if ((c & signs) && (unsigned char)p[at] < 0x80) {
        while (i < end && is_ascii_letter(p[i])) i++;
        if (i > at + 1) return i;
    }
    if (c & letters) return pre_run(p, next, end, letters);
    if (!(c & signs) && !is_newline(p[at]) && (second & letters)) return pre_run(p, behind, end, letters);
    if (p[at] == ' ' && (second & signs)) return pre_run_of(p, pre_run(p, behind, end, signs), end, "\r\n");
    if (c & signs) return pre_run_of(p, pre_run(p, next, end, signs), end, "\r\n");
    return c & UNICODE_WHITE ? pre_white_lines(p, at, end) : at;
}

/* [\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+ */
static size_t pre_cjk(const char *p, size_t at, size_t end) {
    for (size_t length; at < end; at += length) {
        uint32_t cp = utf8_get(p + at, end - at, &length);
        if (!((cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF))) break;
    }
    return at;
}

/* [\p{P}MORE]+ */
static size_t pre_punctuation(const char *p, size_t at, size_t end, const char *more) {
    for (size_t next = at; at < end; at = next)
        if (!(pre_class(p, at, end, &next) & UNICODE_PUNCT) && !(p[at] && strchr(more, p[at]))) break;
    return at;
}

static size_t pre_signs(const char *p, size_t at, size_t end) { return pre_punctuation(p, at, end, "$+<=>^~|"); }
static size_t pre_falcon(const char *p, size_t at, size_t end) { return pre_punctuation(p, at, end, "$+<=>^~|`"); }

static size_t pre_digit(const char *p, size_t at, size_t end) { return pre_digits(p, at, end, 1); }
static size_t pre_digits_3(const char *p, size_t at, size_t end) { return pre_digits(p, at, end, 3); }
static size_t pre_number(const char *p, size_t at, size_t end) { return pre_run(p, at, end, UNICODE_NUMBER); }

/* [0-9][0-9][0-9] */
static size_t pre_ascii_digits_3(const char *p, size_t at, size_t end) {
    size_t to = pre_run_of(p, at, size_min(at + 3, end), "0123456789");
    return to == at + 3 ? to : at;
}

/* ---- The rules ---- */

/* Which names share a pattern, which of them take whole words and which want BOS is as in llama.cpp's llama-vocab.cpp.
 * Who normalises is not, for there nobody does: see transformers' tokenization_qwen2, _qwen3_5 and _cohere. */
static const pre_rule pre_rules[] = {
#define WORDS_DIGIT    {pre_digit, pre_gpt2, NULL, NULL}
#define WORDS_DEEPSEEK {pre_digits_3, pre_cjk, pre_deepseek3, NULL}
#define WORDS_ONE(fn)  {fn, NULL, NULL, NULL}
    /* name             stages                nfc    whole  bos */
    {"default",         {pre_signs, pre_gpt2, pre_number, pre_ascii_digits_3}, false, false, false},
    {"falcon",          {pre_falcon, pre_gpt2, pre_ascii_digits_3, NULL}, false, false, false},
    {"gpt-2",           WORDS_ONE(pre_gpt2),   false, false, false},
    {"phi-2",           WORDS_ONE(pre_gpt2),   false, false, false},
    {"exaone4",         WORDS_ONE(pre_gpt2),   false, false, false},
    {"smollm",          WORDS_DIGIT,           false, false, false},
    {"starcoder",       WORDS_DIGIT,           false, false, false},
    {"refact",          WORDS_DIGIT,           false, false, false},
    {"codeshell",       WORDS_DIGIT,           false, false, false},
    {"command-r",       WORDS_DIGIT,           true,  false, false},
    {"llama-bpe",       WORDS_ONE(pre_llama3), false, true,  true},
    {"llama3",          WORDS_ONE(pre_llama3), false, true,  true},
    {"llama-v3",        WORDS_ONE(pre_llama3), false, true,  true},
    {"falcon3",         WORDS_ONE(pre_llama3), false, true,  true},
    {"falcon-h1",       WORDS_ONE(pre_llama3), false, true,  true},
    {"pixtral",         WORDS_ONE(pre_llama3), false, true,  true},
    {"lfm2",            WORDS_ONE(pre_llama3), false, true,  true},
    {"smaug-bpe",       WORDS_ONE(pre_llama3), false, false, false},
    {"dbrx",            WORDS_ONE(pre_llama3), false, false, false},
    {"glm4",            WORDS_ONE(pre_llama3), false, false, false},
    {"chatglm-bpe",     WORDS_ONE(pre_llama3), false, false, false},
    {"qwen2",           WORDS_ONE(pre_qwen2),  true,  false, false},
    {"deepseek-r1-qwen", WORDS_ONE(pre_qwen2), true,  false, false},
    {"stablelm2",       WORDS_ONE(pre_qwen2),  false, false, false},
    {"hunyuan",         WORDS_ONE(pre_qwen2),  false, false, false},
    {"qwen35",          WORDS_ONE(pre_qwen35), true,  false, false},
    {"gpt-4o",          WORDS_ONE(pre_gpt4o),  false, false, false},
    {"llama4",          WORDS_ONE(pre_gpt4o),  false, false, false},
    {"minimax-m2",      WORDS_ONE(pre_gpt4o),  false, false, false},
    {"tekken",          WORDS_ONE(pre_tekken), false, true,  true},
    {"deepseek-v3",     WORDS_DEEPSEEK,        false, false, false},
    {"hunyuan-dense",   WORDS_DEEPSEEK,        false, false, false},
#undef WORDS_DIGIT
#undef WORDS_DEEPSEEK
#undef WORDS_ONE
};

static const pre_rule *pre_find(str name) {
    for (size_t i = 0; i < COUNT_OF(pre_rules); i++)
        if (str_is(name, pre_rules[i].name)) return &pre_rules[i];
    return NULL;
}

/* ---- Cutting ---- */

static void pre_begin(pre_words *w, const pre_rule *rule, str text) {
    memset(w, 0, sizeof *w);
    w->rule     = rule;
    w->p        = text.p;
    w->limit[0] = text.n;
}

/* Where the piece ends that starts at `at`: a match, or what lies before the next one. */
static size_t pre_piece(pre_match_fn match, const char *p, size_t at, size_t end) {
    size_t length, to = match(p, at, end);
    if (to > at) return to;
    for (to = at; to < end; to += length) {
        if (to > at && match(p, to, end) > to) break;
        utf8_get(p + to, end - to, &length);
    }
    return to;
}

static bool pre_next(pre_words *w, str *word) {
    size_t from = w->at, end = w->limit[0];
    if (from >= end) return false;
    for (int i = 0; i < PRE_STAGES && w->rule->stages[i]; i++) {
        if (w->limit[i + 1] <= from) w->limit[i + 1] = pre_piece(w->rule->stages[i], w->p, from, end);
        end = w->limit[i + 1];
    }
    *word = str_of(w->p + from, end - from);
    w->at = end;
    return true;
}
