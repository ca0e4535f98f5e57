/* Growing text, UTF-8, and as much JSON as a command line needs: written to a text, read from one line.
 * Numbers and strings follow RFC 8259; ill-formed UTF-8 is replaced as the Unicode Standard recommends (section 3.9:
 * one U+FFFD for each maximal subpart). */
#ifndef NOVA_EXAMPLES_JSON_H
#define NOVA_EXAMPLES_JSON_H

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) || defined(__clang__)
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#else
#define PRINTF_LIKE(f, a)
#endif

/* ---- Growing text. A program with no memory left can only say so. ---- */

typedef struct text {
    char  *p;   /* NULL while it has never held anything */
    size_t n, cap;
} text;

static void *resize_or_exit(void *p, size_t count, size_t size) {
    void *grown = count <= SIZE_MAX / 2 / size ? realloc(p, count ? count * size : 1) : NULL;
    if (!grown) {
        fprintf(stderr, "nova: out of memory\n");
        exit(1);
    }
    return grown;
}

/* Room for `extra` more bytes and a terminating zero. */
static void text_reserve(text *t, size_t extra) {
    if (extra < t->cap - t->n) return;
    t->cap = t->n + extra + t->cap / 2 + 64;
    t->p   = (char *)resize_or_exit(t->p, t->cap, 1);
}

static void text_add(text *t, const char *p, size_t n) {
    text_reserve(t, n);
    if (n) memcpy(t->p + t->n, p, n);
    t->n += n;
    t->p[t->n] = 0;
}

static void text_put(text *t, const char *z) { text_add(t, z, strlen(z)); }

static void text_char(text *t, char c) {
    text_reserve(t, 1);
    t->p[t->n++] = c;
    t->p[t->n]   = 0;
}

static PRINTF_LIKE(2, 3) void text_printf(text *t, const char *format, ...) {
    char    line[512];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (n > 0) text_add(t, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1);
}

static void text_clear(text *t) { t->n = 0; }

static void text_free(text *t) {
    free(t->p);
    memset(t, 0, sizeof *t);
}

/* ---- UTF-8 ---- */

/* Length of the character at p, or, with *valid false, of the maximal ill-formed part there. n > 0.
 * The ranges of the second byte are those of the Unicode Standard's table 3-7. */
static size_t utf8_next(const char *p, size_t n, bool *valid) {
    const unsigned char *b = (const unsigned char *)p;
    size_t        length = b[0] < 0x80 ? 1 : b[0] < 0xc2 ? 0 : b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : b[0] < 0xf5 ? 4 : 0;
    unsigned char low    = b[0] == 0xe0 ? 0xa0 : b[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high   = b[0] == 0xed ? 0x9f : b[0] == 0xf4 ? 0x8f : 0xbf;
    *valid = length > 0;
    for (size_t i = 1; i < length; i++) {
        if (i >= n || b[i] < low || b[i] > high) {
            *valid = false;
            return i;
        }
        low  = 0x80;
        high = 0xbf;
    }
    return length ? length : 1;
}

#define UTF8_REPLACEMENT "\xef\xbf\xbd"

static void utf8_add(text *t, uint32_t code) {
    if (code < 0x80) {
        text_char(t, (char)code);
        return;
    }
    static const unsigned char HEAD[5] = {0, 0, 0xc0, 0xe0, 0xf0};
    unsigned n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    char     bytes[4];
    for (unsigned i = n; i-- > 1; code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(HEAD[n] | code);
    text_add(t, bytes, n);
}

/* ---- Writing ---- */

/* Characters that stand in a string as they are. 0x7f may too, but a terminal takes it for a control. */
static bool json_is_plain(char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; }

/* One character that is not plain; returns its length. C1 controls are escaped for terminals, what Unicode takes for a
 * line's end for readers of lines. */
static size_t text_add_escaped(text *t, const char *p, size_t n, bool quotes) {
    static const char FROM[] = "\n\t\r", TO[] = "ntr";
    unsigned char     c      = (unsigned char)*p;
    const char       *brief  = (const char *)memchr(FROM, c, sizeof FROM - 1);
    bool              valid;
    size_t            length = utf8_next(p, n, &valid);
    if (!valid) text_put(t, UTF8_REPLACEMENT);
    else if (c == '"' || c == '\\') text_printf(t, quotes ? "\\%c" : "%c", c);
    else if (brief) text_printf(t, "\\%c", TO[brief - FROM]);
    else if (c < 0x20 || c == 0x7f) text_printf(t, "\\u%04x", c);
    else if (c == 0xc2 && (unsigned char)p[1] < 0xa0) text_printf(t, "\\u00%02x", p[1] & 0xff);
    else if (length == 3 && memcmp(p, "\xe2\x80\xa8", 3) == 0) text_put(t, "\\u2028");
    else if (length == 3 && memcmp(p, "\xe2\x80\xa9", 3) == 0) text_put(t, "\\u2029");
    else text_add(t, p, length);
    return length;
}

/* Bytes as a JSON string has them between its quotes; without `quotes` for people, '"' and '\\' as they are. */
static void text_add_clean(text *t, const char *p, size_t n, bool quotes) {
    for (size_t i = 0; i < n;) {
        size_t from = i;
        while (i < n && json_is_plain(p[i])) i++;
        text_add(t, p + from, i - from);
        if (i < n) i += text_add_escaped(t, p + i, n - i, quotes);
    }
}

static void json_string(text *t, const char *p, size_t n) {
    text_char(t, '"');
    text_add_clean(t, p, n, true);
    text_char(t, '"');
}

/* Below, `key` is NULL inside arrays and at the top. */

/* What comes before a value: the comma that the last character calls for, and the key. */
static void json_key(text *t, const char *key, size_t n_key) {
    char last = t->n ? t->p[t->n - 1] : '{';
    if (last != '{' && last != '[' && last != ':') text_char(t, ',');
    if (!key) return;
    json_string(t, key, n_key);
    text_char(t, ':');
}

static void json_open(text *t, const char *key, char bracket) {
    json_key(t, key, key ? strlen(key) : 0);
    text_char(t, bracket);
}

static void json_close(text *t, char bracket) { text_char(t, bracket); }

static void json_text_n(text *t, const char *key, const char *p, size_t n) {
    json_key(t, key, key ? strlen(key) : 0);
    json_string(t, p, n);
}

static void json_text(text *t, const char *key, const char *z) { json_text_n(t, key, z, strlen(z)); }

static void json_int(text *t, const char *key, uint64_t value) {
    json_key(t, key, key ? strlen(key) : 0);
    text_printf(t, "%llu", (unsigned long long)value);
}

static void json_real(text *t, const char *key, double value) {
    json_key(t, key, key ? strlen(key) : 0);
    if (fabs(value) <= DBL_MAX) text_printf(t, "%.9g", value);   /* infinities and NaN have no JSON */
    else text_put(t, "null");
}

static void json_bool(text *t, const char *key, bool value) {
    json_key(t, key, key ? strlen(key) : 0);
    text_put(t, value ? "true" : "false");
}

static void json_ids(text *t, const char *key, const int32_t *ids, size_t n) {
    json_open(t, key, '[');
    for (size_t i = 0; i < n; i++) {
        char  digits[12], *p = digits + sizeof digits;   /* printf would take most of the time of long lists */
        int64_t rest = ids[i] < 0 ? -(int64_t)ids[i] : ids[i];
        do *--p = (char)('0' + rest % 10);
        while ((rest /= 10) != 0);
        if (ids[i] < 0) *--p = '-';
        if (i) text_char(t, ',');
        text_add(t, p, (size_t)(digits + sizeof digits - p));
    }
    json_close(t, ']');
}

/* ---- Reading one value after another from memory ---- */

typedef struct json_in {
    const char *start, *p, *end;
    const char *wrong;   /* what is wrong at p; NULL: nothing so far */
} json_in;

#define JSON_MAX_DEPTH 64

static bool json_wrong(json_in *in, const char *what) {
    if (!in->wrong) in->wrong = what;
    return false;
}

static void json_space(json_in *in) {
    while (in->p < in->end && (*in->p == ' ' || *in->p == '\t' || *in->p == '\r' || *in->p == '\n')) in->p++;
}

/* Takes the character behind white space if it is c. */
static bool json_take(json_in *in, char c) {
    json_space(in);
    if (in->p == in->end || *in->p != c) return false;
    in->p++;
    return true;
}

static bool json_hex4(json_in *in, uint32_t *value) {
    if (in->end - in->p < 4) return json_wrong(in, "\\u needs four hexadecimal digits");
    *value = 0;
    for (int i = 0; i < 4; i++) {
        static const char DIGITS[] = "0123456789abcdefABCDEF";
        const char *found = (const char *)memchr(DIGITS, in->p[i], sizeof DIGITS - 1);
        if (!found) return json_wrong(in, "\\u needs four hexadecimal digits");
        uint32_t digit = (uint32_t)(found - DIGITS);
        *value = *value << 4 | (digit < 16 ? digit : digit - 6);
    }
    in->p += 4;
    return true;
}

/* Behind "\u": one character; a surrogate without its other half becomes U+FFFD. */
static bool json_unicode(json_in *in, text *out) {
    uint32_t code, second;
    if (!json_hex4(in, &code)) return false;
    if (code >= 0xd800 && code < 0xdc00 && in->end - in->p >= 2 && in->p[0] == '\\' && in->p[1] == 'u') {
        const char *behind_first = in->p;
        in->p += 2;
        if (!json_hex4(in, &second)) return false;
        if (second >= 0xdc00 && second < 0xe000) code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00);
        else in->p = behind_first;
    }
    utf8_add(out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
    return true;
}

static bool json_escape(json_in *in, text *out) {
    static const char FROM[] = "\"\\/bfnrt", TO[] = "\"\\/\b\f\n\r\t";
    if (in->p == in->end) return json_wrong(in, "the string has no end");
    if (*in->p == 'u') return in->p++, json_unicode(in, out);
    const char *found = (const char *)memchr(FROM, *in->p, sizeof FROM - 1);
    if (!found) return json_wrong(in, "no such escape");
    in->p++;
    text_char(out, TO[found - FROM]);
    return true;
}

/* A string, appended to `out`. */
static bool json_read_string(json_in *in, text *out) {
    if (!json_take(in, '"')) return json_wrong(in, "a string is expected");
    for (;;) {
        const char *from = in->p;
        while (in->p < in->end && json_is_plain(*in->p)) in->p++;
        text_add(out, from, (size_t)(in->p - from));
        if (in->p == in->end) return json_wrong(in, "the string has no end");
        if (*in->p == '"') return in->p++, true;
        if (*in->p == '\\') {
            in->p++;
            if (!json_escape(in, out)) return false;
        } else if ((unsigned char)*in->p < 0x20) {
            return json_wrong(in, "a control character inside a string");
        } else {
            bool   valid;   /* 0x7f is, of length 1 */
            size_t length = utf8_next(in->p, (size_t)(in->end - in->p), &valid);
            if (!valid) return json_wrong(in, "the string is not UTF-8");
            text_add(out, in->p, length);
            in->p += length;
        }
    }
}

static size_t json_digits(json_in *in) {
    const char *from = in->p;
    while (in->p < in->end && *in->p >= '0' && *in->p <= '9') in->p++;
    return (size_t)(in->p - from);
}

static bool json_skip_number(json_in *in) {
    if (in->p < in->end && *in->p == '-') in->p++;
    bool zero = in->p < in->end && *in->p == '0';
    size_t n  = json_digits(in);
    if (n == 0 || (zero && n > 1)) return json_wrong(in, "a value is expected");
    if (in->p < in->end && *in->p == '.') {
        in->p++;
        if (!json_digits(in)) return json_wrong(in, "digits are expected behind the point");
    }
    if (in->p < in->end && (*in->p == 'e' || *in->p == 'E')) {
        in->p++;
        if (in->p < in->end && (*in->p == '+' || *in->p == '-')) in->p++;
        if (!json_digits(in)) return json_wrong(in, "digits are expected in the exponent");
    }
    return true;
}

/* A whole number that fits a token id. */
static bool json_read_id(json_in *in, int32_t *id) {
    json_space(in);
    const char *from = in->p;
    if (!json_skip_number(in)) return false;
    int64_t value = 0;
    bool    minus = *from == '-';
    for (const char *p = from + minus; p < in->p; p++) {
        value = *p >= '0' && *p <= '9' ? value * 10 + (*p - '0') : INT64_MAX / 16;
        if (value > INT32_MAX) {
            in->p = from;
            return json_wrong(in, "an id is a whole number of 32 bits");
        }
    }
    *id = (int32_t)(minus ? -value : value);
    return true;
}

static bool json_skip_string(json_in *in) {
    text scratch = {NULL, 0, 0};
    bool good    = json_read_string(in, &scratch);
    text_free(&scratch);
    return good;
}

static bool json_skip_value(json_in *in, int depth);

/* Behind the opening bracket of an array or object. */
static bool json_skip_members(json_in *in, bool object, int depth) {
    char close = object ? '}' : ']';
    if (depth >= JSON_MAX_DEPTH) return json_wrong(in, "nested too deeply");
    if (json_take(in, close)) return true;
    do {
        if (object && !(json_skip_string(in) && json_take(in, ':'))) return json_wrong(in, "':' is expected");
        if (!json_skip_value(in, depth + 1)) return false;
    } while (json_take(in, ','));
    return json_take(in, close) || json_wrong(in, object ? "',' or '}' is expected" : "',' or ']' is expected");
}

/* Any value; depth 0 at the top. */
static bool json_skip_value(json_in *in, int depth) {
    static const char *const WORDS[] = {"true", "false", "null"};
    json_space(in);
    if (in->p < in->end && *in->p == '"') return json_skip_string(in);
    if (json_take(in, '{')) return json_skip_members(in, true, depth);
    if (json_take(in, '[')) return json_skip_members(in, false, depth);
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++) {
        size_t n = strlen(WORDS[i]);
        if ((size_t)(in->end - in->p) >= n && memcmp(in->p, WORDS[i], n) == 0) return in->p += n, true;
    }
    return json_skip_number(in);
}

#endif
