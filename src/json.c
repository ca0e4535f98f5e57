/* JSON text to template values: see json.h. */
#include "json.h"

#include "jinja_print.h"

typedef struct json_reader {
    jinja           *j;
    const char      *what;
    str              text;
    size_t           at;
    const tokenizer *marks;
} json_reader;

static bool json_fail(json_reader *r, const char *why) {
    jinja *j = r->j;
    if (j->failed == NOVA_OK)
        j->failed = fail(j->error, NOVA_ERROR_ARGUMENT, "%s, byte %zu: %s", r->what, r->at, why);
    return false;
}

static char json_peek(const json_reader *r) { return r->at < r->text.n ? r->text.p[r->at] : 0; }

static char json_skip_blanks(json_reader *r) {
    while (r->at < r->text.n && memchr(" \t\n\r", r->text.p[r->at], 4)) r->at++;
    return json_peek(r);
}

static bool json_string(jinja *j, str bytes, const tokenizer *marks, jvalue *out) {
    if (!jinja_import(j, bytes.p, bytes.n, out)) return false;
    if (!marks || !out->n) return true;
    text_buffer marked;
    text_init(&marked, &j->counted, 0);
    bool ok = jinja_step(j, out->n >> 3);
    if (ok && !tokenizer_mark(marks, jv_str(out), &marked)) ok = jinja_fail_memory(j);
    if (ok && marked.n != out->n) {
        const char *copy;
        ok   = jinja_copy(j, marked.p, marked.n, &copy);
        *out = ok ? jv_string(copy, marked.n, 0) : jv_none();
    }
    out->flags = J_MARKED;   /* also without a mark, so that it is known for the conversation's own */
    text_free(&marked);
    return ok;
}

/* ---- Strings ---- */

static bool json_hex4(json_reader *r, uint32_t *out) {
    uint32_t c = 0;
    for (int i = 0; i < 4; i++) {
        char     b = json_peek(r);
        uint32_t d = b >= '0' && b <= '9' ? (uint32_t)(b - '0') : (b | 0x20) >= 'a' && (b | 0x20) <= 'f'
                         ? (uint32_t)((b | 0x20) - 'a' + 10) : 16;
        if (d == 16) return json_fail(r, "\\u needs four hexadecimal digits");
        c = c << 4 | d;
        r->at++;
    }
    *out = c;
    return true;
}

/* Behind "\u". Two surrogates are one character; a lone one is none. */
static bool json_unicode(json_reader *r, jtext *t) {
    uint32_t c, low;
    if (!json_hex4(r, &c)) return false;
    size_t after = r->at;
    bool two = c >= 0xD800 && c <= 0xDBFF && r->text.n - r->at >= 6;
    if (two && r->text.p[r->at] == '\\' && r->text.p[r->at + 1] == 'u') {
        r->at += 2;
        if (!json_hex4(r, &low)) return false;
        if (low >= 0xDC00 && low <= 0xDFFF) c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
        else r->at = after;
    }
    return jtext_add_char(t, c);
}

static bool json_escape(json_reader *r, jtext *t) {
    char        b    = json_peek(r);
    const char *pair = "\"\"\\\\//b\bf\fn\nr\rt\t";
    r->at++;
    if (b == 'u') return json_unicode(r, t);
    while (*pair && *pair != b) pair += 2;
    if (!*pair || !b) return json_fail(r, "an unknown escape in a string");
    return jtext_add(t, pair + 1, 1);
}

static bool json_read_string(json_reader *r, jvalue *out) {
    size_t start = ++r->at;
    jtext  t;
    bool   escaped = false;
    jtext_open(&t, r->j);
    while (r->at < r->text.n && r->text.p[r->at] != '"') {
        if ((unsigned char)r->text.p[r->at] < 0x20) return json_fail(r, "a control character in a string");
        if (r->text.p[r->at] != '\\') {
            r->at++;
            continue;
        }
        escaped = true;
        if (!jtext_add(&t, r->text.p + start, r->at - start)) return false;
        r->at++;
        if (!json_escape(r, &t)) return false;
        start = r->at;
    }
    if (r->at >= r->text.n) return json_fail(r, "a string does not end");
    str bytes = str_of(r->text.p + start, r->at - start);
    r->at++;
    if (escaped) {
        jvalue text;
        if (!jtext_add(&t, bytes.p, bytes.n) || !jtext_close(&t, &text)) return false;
        bytes = jv_str(&text);
    }
    return json_string(r->j, bytes, r->marks, out);
}

/* ---- Numbers ---- */

static size_t json_digits(json_reader *r) {
    size_t start = r->at;
    while (json_peek(r) >= '0' && json_peek(r) <= '9') r->at++;
    return r->at - start;
}

static bool json_read_number(json_reader *r, jvalue *out) {
    size_t start = r->at, whole;
    bool   real = false, beyond;
    r->at += json_peek(r) == '-';
    size_t first = r->at;
    whole        = json_digits(r);
    if (!whole || (whole > 1 && r->text.p[first] == '0')) return json_fail(r, "no value, or a number starts wrongly");
    if (json_peek(r) == '.') {
        real = true;
        r->at++;
        if (!json_digits(r)) return json_fail(r, "a number has no digits behind its point");
    }
    if ((json_peek(r) | 0x20) == 'e') {
        real = true;
        r->at++;
        r->at += json_peek(r) == '-' || json_peek(r) == '+';
        if (!json_digits(r)) return json_fail(r, "a number has no digits in its exponent");
    }
    str text = str_of(r->text.p + start, r->at - start), digits = str_of(r->text.p + first, r->at - first);
    if (!jinja_step(r->j, 4 + (text.n >> 4))) return false;
    if (real) {
        double x = jfloat_parse(digits);
        *out     = jv_float(first > start ? -x : x);
        return true;
    }
    *out = jv_int(0);
    if (!jv_parse_int(text, 10, &out->u.i, &beyond)) {
        *out      = jv_string(text.p, text.n, 0);
        out->kind = J_BIG;
    }
    return true;
}

/* ---- Arrays and objects ---- */

static bool json_read_value(json_reader *r, uint32_t depth, jvalue *out);

static bool json_read_array(json_reader *r, uint32_t depth, jvalue *out) {
    jlist  list;
    jvalue item;
    jlist_open(&list, r->j);
    r->at++;
    if (json_skip_blanks(r) != ']') {
        for (;;) {
            if (!json_read_value(r, depth, &item) || !jlist_add(&list, item)) return false;
            if (json_skip_blanks(r) != ',') break;
            r->at++;
        }
    }
    if (json_peek(r) != ']') return json_fail(r, "expected ',' or ']'");
    r->at++;
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool json_read_object(json_reader *r, uint32_t depth, jvalue *out) {
    jdict *dict = jdict_open(r->j);
    jvalue key, value;
    if (!dict) return false;
    r->at++;
    if (json_skip_blanks(r) != '}') {
        for (;;) {
            if (json_skip_blanks(r) != '"') return json_fail(r, "expected '\"' before a key");
            if (!json_read_string(r, &key)) return false;
            if (json_skip_blanks(r) != ':') return json_fail(r, "expected ':' behind a key");
            r->at++;
            if (!json_read_value(r, depth, &value) || !jdict_set(r->j, dict, &key, &value)) return false;
            if (json_skip_blanks(r) != ',') break;
            r->at++;
        }
    }
    if (json_peek(r) != '}') return json_fail(r, "expected ',' or '}'");
    r->at++;
    *out = jv_dict(dict);
    return true;
}

static bool json_read_word(json_reader *r, jvalue *out) {
    static const char *const words[] = {"null", "true", "false"};
    for (size_t i = 0; i < COUNT_OF(words); i++) {
        size_t n = strlen(words[i]);
        if (r->text.n - r->at < n || memcmp(r->text.p + r->at, words[i], n) != 0) continue;
        r->at += n;
        *out = i == 0 ? jv_none() : jv_bool(i == 1);
        return true;
    }
    return json_fail(r, "no such word");
}

static bool json_read_value(json_reader *r, uint32_t depth, jvalue *out) {
    if (!jinja_step(r->j, 1)) return false;
    if (depth >= JINJA_MAX_NEST) return json_fail(r, "nested too deeply");
    char c = json_skip_blanks(r);
    if (c == '"') return json_read_string(r, out);
    if (c == '[') return json_read_array(r, depth + 1, out);
    if (c == '{') return json_read_object(r, depth + 1, out);
    if (c >= 'a' && c <= 'z') return json_read_word(r, out);
    return json_read_number(r, out);
}

static bool json_read(jinja *j, const char *what, str text, const tokenizer *marks, jvalue *out) {
    json_reader r;
    r.j     = j;
    r.what  = what;
    r.text  = text;
    r.at    = 0;
    r.marks = marks;
    if (text.n > JINJA_MAX_BYTES) return json_fail(&r, "too long");
    if (!jinja_step(j, text.n >> 5) || !json_read_value(&r, 0, out)) return false;
    json_skip_blanks(&r);
    return r.at == text.n || json_fail(&r, "something stands behind the value");
}
