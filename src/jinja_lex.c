/* Template text to tokens: see jinja_lex.h. */
#include "jinja_lex.h"

/* Line ends become "\n", and one at the very end is dropped. */
static bool jlexer_open(jlexer *x, jinja *j, str text) {
    jvalue source;
    memset(x, 0, sizeof *x);
    if (!jinja_import(j, text.p, text.n, &source)) return false;
    if (source.n && memchr(source.u.s, '\r', source.n)) {
        char  *to = (char *)jinja_alloc(j, source.n);
        size_t n  = 0;
        if (!to || !jinja_step(j, source.n >> 3)) return false;
        for (size_t i = 0; i < source.n; i++) {
            bool end = source.u.s[i] == '\r';
            to[n++]  = end ? '\n' : source.u.s[i];
            if (end && i + 1 < source.n && source.u.s[i + 1] == '\n') i++;
        }
        source = jv_string(to, n, 0);
    }
    x->j             = j;
    x->start         = source.u.s;
    x->p             = source.u.s;
    x->end           = source.u.s + source.n - (source.n && source.u.s[source.n - 1] == '\n');
    x->line          = 1;
    x->line_starting = true;
    return true;
}

static char lex_at(const jlexer *x, size_t i) { return (size_t)(x->end - x->p) > i ? x->p[i] : 0; }

static bool lex_has(const jlexer *x, const char *p, const char *what) {
    size_t n = strlen(what);
    return (size_t)(x->end - p) >= n && memcmp(p, what, n) == 0;
}

static const char *lex_skip_blanks(const jlexer *x, const char *p) {
    while (p < x->end) {
        uint32_t c;
        size_t   n = letter_next(p, x->end, &c);
        if (!letter_is_space(c)) break;
        p += n;
    }
    return p;
}

static bool lex_move(jlexer *x, const char *to) {
    for (const char *p = x->p; p < to; p++) x->line += *p == '\n';
    bool ok   = jinja_step(x->j, 1 + ((size_t)(to - x->p) >> 4));
    x->p      = to;
    x->j->line = x->line;
    return ok;
}

/* ---- Between tags ---- */

/* A tag's end at p, `close` being "%}" or the like: where the text goes on, or NULL when there is none. With '-' all
 * blanks behind go too; without sign, and where blocks are trimmed, one line end. */
static const char *lex_tag_end(const jlexer *x, const char *p, const char *close, bool plus, bool trim) {
    char sign = p < x->end && (*p == '-' || (*p == '+' && plus)) ? *p : 0;
    p += sign != 0;
    if (!lex_has(x, p, close)) return NULL;
    p += 2;
    if (sign == '-') return lex_skip_blanks(x, p);
    return p + (trim && !sign && p < x->end && *p == '\n');
}

/* Goes behind a tag's end. */
static bool lex_leave_tag(jlexer *x, const char *behind) {
    x->line_starting = behind[-1] == '\n';
    return lex_move(x, behind);
}

/* "{%", perhaps a sign, and the word alone: where it ends, or NULL. */
static const char *lex_word_tag(const jlexer *x, const char *p, const char *word, bool trim, bool plus) {
    p += 2;
    p += p < x->end && (*p == '-' || *p == '+');
    p = lex_skip_blanks(x, p);
    if (!lex_has(x, p, word)) return NULL;
    return lex_tag_end(x, lex_skip_blanks(x, p + strlen(word)), "%}", plus, trim);
}

/* What stays of the text [from, tag) before a tag: "-" takes all blanks, and a block tag that begins its line takes
 * those of the line, unless "+" keeps them. */
static const char *lex_strip(const jlexer *x, const char *from, const char *tag, bool variable) {
    char        sign = (size_t)(x->end - tag) > 2 ? tag[2] : 0;
    const char *end  = tag;
    uint32_t    c;
    while (sign != '+' && end > from) {
        size_t n = letter_last(from, end, &c);
        if (!letter_is_space(c)) break;
        if (sign != '-' && (variable || c == '\n')) break;
        end -= n;
    }
    if (sign == '-' || sign == '+' || variable) return end;
    bool begins_line = end > from ? end[-1] == '\n' : x->line_starting;
    return begins_line ? end : tag;
}

static bool lex_comment(jlexer *x) {
    const char *p = x->p + 2;
    p += p < x->end && (*p == '-' || *p == '+');
    if (p == x->end) return lex_move(x, p);   /* Jinja, too, takes no offence where nothing follows */
    for (; p < x->end; p++) {
        const char *behind = lex_tag_end(x, p, "#}", true, true);
        if (behind) return lex_leave_tag(x, behind);
    }
    return jinja_fail(x->j, "a comment does not end");
}

/* Gives the text of a raw block. */
static bool lex_raw(jlexer *x, const char *body, jtoken *out) {
    if (!lex_leave_tag(x, body)) return false;
    if (body == x->end) return true;
    for (const char *p = body; p < x->end; p++) {
        const char *behind = lex_has(x, p, "{%") ? lex_word_tag(x, p, "endraw", true, true) : NULL;
        if (!behind) continue;
        out->kind  = JT_DATA;
        out->line  = x->line;
        out->value = jv_string(body, (size_t)(lex_strip(x, body, p, false) - body), 0);
        return lex_leave_tag(x, behind);
    }
    return jinja_fail(x->j, "a raw block does not end");
}

/* Text up to the next tag, or that tag. Sets out->kind to JT_END for comments, which are no tokens. */
static bool lex_between(jlexer *x, jtoken *out) {
    const char *tag = x->p;
    if (!x->pending) {
        while (tag < x->end && !(tag[0] == '{' && x->end - tag > 1 && memchr("%{#", tag[1], 3))) tag++;
        const char *end = tag < x->end ? lex_strip(x, x->p, tag, tag[1] == '{') : tag;
        out->kind       = JT_DATA;
        out->line       = x->line;
        out->value      = jv_string(x->p, (size_t)(end - x->p), 0);
        x->pending      = tag < x->end ? tag[1] : 0;
        return lex_move(x, tag);
    }
    char kind  = x->pending;
    x->pending = 0;
    if (kind == '#') return lex_comment(x);
    const char *raw = kind == '%' ? lex_word_tag(x, tag, "raw", false, false) : NULL;
    if (raw) return lex_raw(x, raw, out);
    x->state  = kind;
    out->kind = kind == '%' ? JT_BLOCK_BEGIN : JT_VARIABLE_BEGIN;
    tag += 2;
    return lex_move(x, tag + (tag < x->end && (*tag == '-' || *tag == '+')));
}

/* ---- Inside tags ---- */

static bool lex_is_digit(char c) { return c >= '0' && c <= '9'; }

static bool lex_is_name(char c) {
    return lex_is_digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || (unsigned char)c >= 0x80;
}

/* Digits with single underscores between them: where they end. */
static const char *lex_digits(const jlexer *x, const char *p) {
    while (p < x->end && lex_is_digit(*p)) {
        p++;
        if (x->end - p > 1 && *p == '_' && lex_is_digit(p[1])) p++;
    }
    return p;
}

/* Where a float ends, or `p` when there is none. It needs digits on both sides of its point. */
static const char *lex_float(const jlexer *x, const char *p) {
    const char *whole = lex_digits(x, p), *end = p, *part = whole;
    if (whole == p || (p > x->start && p[-1] == '.')) return p;
    if (x->end - whole > 1 && *whole == '.' && lex_is_digit(whole[1])) part = end = lex_digits(x, whole + 1);
    if (part < x->end && (*part | 0x20) == 'e') {
        const char *power = part + 1;
        power += power < x->end && (*power == '-' || *power == '+');
        if (power < x->end && lex_is_digit(*power)) end = lex_digits(x, power);
    }
    return end;
}

/* Is there a digit of this base at p, or an underscore and one? */
static bool lex_has_digit(const jlexer *x, const char *p, int base) {
    p += p < x->end && *p == '_';
    return p < x->end && digit_value(*p) < base;
}

/* Where an integer ends: 0x1F, 0o17, 0b11, 17, or zeros alone. */
static const char *lex_integer(const jlexer *x, const char *p) {
    int base = prefix_base(str_of(p, (size_t)(x->end - p)));
    if (base && lex_has_digit(x, p + 2, base)) p += 2;
    else base = *p == '0' ? 1 : 10;
    while (lex_has_digit(x, p, base)) p += *p == '_' ? 2 : 1;
    return p;
}

static bool lex_number(jlexer *x, jtoken *out) {
    const char *end  = lex_float(x, x->p);
    bool        real = end > x->p, beyond;
    if (!real) end = lex_integer(x, x->p);
    str text  = str_of(x->p, (size_t)(end - x->p));
    out->kind = real ? JT_FLOAT : JT_INTEGER;
    out->value = real ? jv_float(0) : jv_int(0);
    if (real ? !jv_parse_float(text, &out->value.u.f) : !jv_parse_int(text, 0, &out->value.u.i, &beyond))
        return jinja_fail(x->j, "the number %.*s is too large", STR_ARG(text));
    return lex_move(x, end);
}

/* The number of hexadecimal digits that an escape takes. */
static size_t lex_escape_width(char letter) { return letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0; }

/* An escape, behind its backslash, as Python's codec "unicode-escape" reads it: where it ends, or NULL. */
static const char *lex_escape(jlexer *x, jtext *t, const char *p, const char *end) {
    static const char plain[] = "\\\\\'\'\"\"a\ab\bf\fn\nr\rt\tv\v";
    uint32_t c = 0;
    size_t   n = 0, width = lex_escape_width(*p);
    if (*p == '\n') return p + 1;
    for (size_t i = 0; i + 1 < sizeof plain; i += 2)
        if (plain[i] == *p) return jtext_add(t, plain + i + 1, 1) ? p + 1 : NULL;
    if (width) {
        for (n = 1; n <= width && p + n < end; n++) {
            int digit = digit_value(p[n]);
            if (digit >= 16) break;
            c = c << 4 | (uint32_t)digit;
        }
        if (n <= width || c > 0x10FFFF) {
            jinja_fail(x->j, "an escape \\%c in a string is cut off", *p);
            return NULL;
        }
        return jtext_add_char(t, c) ? p + n : NULL;
    }
    for (; n < 3 && p + n < end && p[n] >= '0' && p[n] <= '7'; n++) c = c * 8 + (uint32_t)(p[n] - '0');
    if (n) return jtext_add_char(t, c) ? p + n : NULL;
    if (*p == 'N') {
        jinja_fail(x->j, "characters by name (\\N) are not supported");
        return NULL;
    }
    jtext_add(t, "\\", 1);
    if ((unsigned char)*p < 0x80) return jtext_add(t, p, 1) ? p + 1 : NULL;
    char code[16];   /* the codec sees other characters as escapes already, so that the backslash escapes a backslash */
    n = letter_next(p, end, &c);
    snprintf(code, sizeof code, c < 0x100 ? "x%02x" : c < 0x10000 ? "u%04x" : "U%08x", c);
    return jtext_add_c(t, code) ? p + n : NULL;
}

static bool lex_string(jlexer *x, jtoken *out) {
    char        quote = *x->p;
    const char *start = x->p + 1, *p = start;
    bool        escaped = false;
    while (p < x->end && *p != quote) {
        escaped = escaped || *p == '\\';
        p += *p == '\\' && x->end - p > 1 ? 2 : 1;
    }
    if (p >= x->end) return jinja_fail(x->j, "a string does not end");
    out->kind  = JT_STRING;
    out->value = jv_string(start, (size_t)(p - start), 0);
    if (escaped) {
        jtext t;
        jtext_open(&t, x->j);
        for (const char *q = start; q < p;) {
            const char *back = (const char *)memchr(q, '\\', (size_t)(p - q)), *until = back ? back : p;
            if (!jtext_add(&t, q, (size_t)(until - q)) || !jinja_step(x->j, 1)) return false;
            q = until;
            if (back && !(q = lex_escape(x, &t, back + 1, p))) return false;
        }
        if (!jtext_close(&t, &out->value)) return false;
    }
    return lex_move(x, p + 1);
}

typedef struct lex_operator {
    const char *text;
    jtoken_kind kind;
} lex_operator;

/* Longer ones first. */
static const lex_operator lex_operators[] = {
    {"//", JT_FLOORDIV}, {"**", JT_POW}, {"==", JT_EQ}, {"!=", JT_NE}, {">=", JT_GE}, {"<=", JT_LE}, {"+", JT_ADD},
    {"-", JT_SUB}, {"/", JT_DIV}, {"*", JT_MUL}, {"%", JT_MOD}, {"~", JT_TILDE}, {"[", JT_LBRACKET},
    {"]", JT_RBRACKET}, {"(", JT_LPAREN}, {")", JT_RPAREN}, {"{", JT_LBRACE}, {"}", JT_RBRACE}, {">", JT_GT},
    {"<", JT_LT}, {"=", JT_ASSIGN}, {".", JT_DOT}, {":", JT_COLON}, {"|", JT_PIPE}, {",", JT_COMMA},
    {";", JT_SEMICOLON},
};

static bool lex_bracket(jlexer *x, jtoken_kind kind) {
    const char *close = kind == JT_LPAREN ? ")" : kind == JT_LBRACKET ? "]" : kind == JT_LBRACE ? "}" : NULL;
    if (close) {
        if (x->n_open == COUNT_OF(x->open)) return jinja_fail(x->j, "brackets are nested too deeply");
        x->open[x->n_open++] = *close;
    } else if (kind == JT_RPAREN || kind == JT_RBRACKET || kind == JT_RBRACE) {
        if (!x->n_open) return jinja_fail(x->j, "unexpected '%c'", *x->p);
        char expected = x->open[--x->n_open];
        if (expected != *x->p) return jinja_fail(x->j, "unexpected '%c', expected '%c'", *x->p, expected);
    }
    return true;
}

static bool lex_inside(jlexer *x, jtoken *out) {
    bool        block  = x->state == '%';
    const char *behind = x->n_open ? NULL : lex_tag_end(x, x->p, block ? "%}" : "}}", block, block);
    if (behind) {
        out->kind = block ? JT_BLOCK_END : JT_VARIABLE_END;
        x->state  = 0;
        return lex_leave_tag(x, behind);
    }
    char c = lex_at(x, 0);
    if (lex_is_digit(c)) return lex_number(x, out);
    if (c == '"' || c == '\'') return lex_string(x, out);
    if (lex_is_name(c)) {
        const char *end = x->p;
        while (end < x->end && lex_is_name(*end)) end++;
        out->kind  = JT_NAME;
        out->value = jv_string(x->p, (size_t)(end - x->p), 0);
        return lex_move(x, end);
    }
    for (size_t i = 0; i < COUNT_OF(lex_operators); i++) {
        if (!lex_has(x, x->p, lex_operators[i].text)) continue;
        out->kind = lex_operators[i].kind;
        return lex_bracket(x, out->kind) && lex_move(x, x->p + strlen(lex_operators[i].text));
    }
    return jinja_fail(x->j, "unexpected character '%c'", c);
}

static bool jlexer_next(jlexer *x, jtoken *out) {
    for (;;) {
        out->kind  = JT_END;
        out->value = jv_none();
        if (x->state && !lex_move(x, lex_skip_blanks(x, x->p))) return false;
        out->line = x->line;
        if (x->p >= x->end) return true;
        if (!(x->state ? lex_inside(x, out) : lex_between(x, out))) return false;
        if (out->kind == JT_DATA && out->value.n == 0) continue;   /* nothing between two tags */
        if (out->kind != JT_END) return true;
    }
}

static str jtoken_text(const jtoken *t) {
    static const char *const names[] = {"the end of the template", "text", "{{", "}}", "{%", "%}"};
    if (t->kind <= JT_BLOCK_END) return str_c(names[t->kind]);
    if (t->kind == JT_NAME) return jv_str(&t->value);
    if (t->kind <= JT_FLOAT) return str_c(t->kind == JT_STRING ? "a string" : "a number");
    for (size_t i = 0; i < COUNT_OF(lex_operators); i++)
        if (lex_operators[i].kind == t->kind) return str_c(lex_operators[i].text);
    return str_c("?");
}
