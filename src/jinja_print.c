/* Values to text and back: see jinja_print.h. */
#include "jinja_print.h"

/* ---- Floats ---- */

/* The decimal point of printf is the locale's, up to several bytes: whatever stands between the digits. */
static size_t jfloat_format(char *out, size_t size, const char *format, int precision, double x) {
    int n = snprintf(out, size, format, precision, x);
    if (n < 0 || (size_t)n >= size) return 0;
    char *from = out, *to = out;
    while (*from) {
        bool plain = (*from >= '0' && *from <= '9') || *from == '-' || *from == '+' || (*from | 0x20) == 'e' ||
                     (*from | 0x20) == 'n' || (*from | 0x20) == 'a' || (*from | 0x20) == 'i' || (*from | 0x20) == 'f';
        if (plain) {
            *to++ = *from++;
            continue;
        }
        *to++ = '.';
        while (*from && !(*from >= '0' && *from <= '9') && (*from | 0x20) != 'e') from++;
    }
    *to = 0;
    return (size_t)(to - out);
}

/* strtod's decimal point is the locale's too, so the digits go in as one integer with an exponent. Digits beyond what
 * decides the rounding (767, Steele and White) count only as "not zero". */
static double jfloat_parse(str s) {
    char   buffer[800];
    size_t n = 0, i = 0;
    long   exponent = 0, given = 0;
    bool   point = false, rest = false;
    for (; i < s.n && s.p[i] != 'e' && s.p[i] != 'E'; i++) {
        if (s.p[i] == '.') {
            point = true;
            continue;
        }
        if (n == 0 && s.p[i] == '0') {
            exponent -= point;
        } else if (n < 770) {
            buffer[n++] = s.p[i];
            exponent -= point;
        } else {
            rest |= s.p[i] != '0';
            exponent += !point;
        }
    }
    if (i < s.n) {
        bool negative = s.p[++i] == '-';
        i += s.p[i] == '-' || s.p[i] == '+';
        for (; i < s.n; i++)
            if (given < 1000000) given = given * 10 + (s.p[i] - '0');
        if (negative) given = -given;
    }
    if (!n) return 0;
    if (rest) {
        buffer[n++] = '1';
        exponent--;
    }
    snprintf(buffer + n, sizeof buffer - n, "e%ld", exponent + given);
    return strtod(buffer, NULL);
}

/* Writes digits (without point, no zeros at the end) and the decimal exponent as repr() does. */
static size_t jfloat_layout(char *out, bool negative, const char *digits, size_t n, int exponent) {
    char *p = out;
    if (negative) *p++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *p++ = digits[0];
        if (n > 1) *p++ = '.';
        memcpy(p, digits + 1, n - 1);
        p += n - 1;
        return (size_t)(p - out) + (size_t)snprintf(p, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        memcpy(p, "0.0000", 6);
        p += 1 - exponent;
        memcpy(p, digits, n);
        p += n;
    } else {
        for (size_t i = 0; i <= (size_t)exponent || i < n; i++) {
            *p++ = i < n ? digits[i] : '0';
            if (i == (size_t)exponent) *p++ = '.';
        }
        if (p[-1] == '.') *p++ = '0';
    }
    *p = 0;
    return (size_t)(p - out);
}

static size_t jfloat_text(char out[JFLOAT_TEXT], double x) {
    if (x != x || x - x != 0) {
        const char *name = x != x ? "nan" : x < 0 ? "-inf" : "inf";
        memcpy(out, name, strlen(name) + 1);
        return strlen(name);
    }
    if (x == 0) return jfloat_layout(out, f64_is_negative(x), "0", 1, 0);
    char   digits[24], text[JFLOAT_TEXT];
    size_t n        = 0;
    int    exponent = 0;
    /* Up to 15 digits of a normal number survive the way there and back, so 15 with the zeros dropped are the shortest;
     * 17 always do. */
    for (int precision = fabs(x) < DBL_MIN ? 0 : 14; precision < 17; precision++) {
        jfloat_format(text, sizeof text, "%.*e", precision, fabs(x));
        n = 0;
        const char *p = text;
        for (; *p != 'e'; p++)
            if (*p != '.') digits[n++] = *p;
        exponent = (int)strtol(p + 1, NULL, 10);
        if (jfloat_parse(str_c(text)) == fabs(x)) break;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    return jfloat_layout(out, x < 0, digits, n, exponent);
}

/* ---- Numbers from text ---- */

static str str_strip(str s) {
    uint32_t c;
    while (s.n) {
        size_t n = letter_next(s.p, s.p + s.n, &c);
        if (!letter_is_space(c)) break;
        s = str_of(s.p + n, s.n - n);
    }
    while (s.n) {
        size_t n = letter_last(s.p, s.p + s.n, &c);
        if (!letter_is_space(c)) break;
        s.n -= n;
    }
    return s;
}

/* Digits with single underscores between them: their number, 0 when there are none or an underscore stands wrong.
 * Copies them to `out` when it is given. */
static size_t digits_length(str s, size_t at, char *out, size_t *n_out) {
    size_t i = at;
    while (i < s.n) {
        if (s.p[i] == '_' && i > at && s.p[i - 1] != '_' && i + 1 < s.n && s.p[i + 1] >= '0' && s.p[i + 1] <= '9') {
            i++;
            continue;
        }
        if (s.p[i] < '0' || s.p[i] > '9') break;
        if (out) out[(*n_out)++] = s.p[i];
        i++;
    }
    return i - at;
}

static bool str_is_word(str s, const char *word) {
    size_t n = strlen(word);
    if (s.n != n) return false;
    for (size_t i = 0; i < n; i++)
        if ((s.p[i] | 0x20) != word[i]) return false;
    return true;
}

static bool jv_parse_float(str text, double *out) {
    str  s        = str_strip(text);
    bool negative = s.n && s.p[0] == '-';
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) s = str_of(s.p + 1, s.n - 1);
    double x = 0;
    if (str_is_word(s, "inf") || str_is_word(s, "infinity")) {
        x = HUGE_VAL;
    } else if (str_is_word(s, "nan")) {
        x = NAN;
    } else {
        char   clean[1024];   /* nobody's number is longer */
        size_t n = 0, whole, part = 0;
        if (s.n + 1 > sizeof clean) return false;
        whole    = digits_length(s, 0, clean, &n);
        size_t i = whole;
        if (i < s.n && s.p[i] == '.') {
            clean[n++] = '.';
            part       = digits_length(s, ++i, clean, &n);
            i += part;
        }
        if (whole + part == 0) return false;
        if (i < s.n && (s.p[i] == 'e' || s.p[i] == 'E')) {
            clean[n++] = 'e';
            i++;
            if (i < s.n && (s.p[i] == '-' || s.p[i] == '+')) clean[n++] = s.p[i++];
            size_t power = digits_length(s, i, clean, &n);
            if (!power) return false;
            i += power;
        }
        if (i != s.n) return false;
        x = jfloat_parse(str_of(clean, n));
    }
    *out = negative ? -x : x;
    return true;
}

static int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'z') return c - 'a' + 10;
    if (c >= 'A' && c <= 'Z') return c - 'A' + 10;
    return 99;
}

/* The base that a prefix like "0x" names, or 0. */
static int prefix_base(str s) {
    if (s.n < 2 || s.p[0] != '0') return 0;
    switch (s.p[1] | 0x20) {
    case 'x': return 16;
    case 'o': return 8;
    case 'b': return 2;
    default: return 0;
    }
}

static bool jv_parse_int(str text, int base, int64_t *out, bool *beyond) {
    str  s        = str_strip(text);
    bool negative = s.n && s.p[0] == '-', zeros = true;
    *beyond       = false;
    if (s.n && (s.p[0] == '-' || s.p[0] == '+')) s = str_of(s.p + 1, s.n - 1);
    int  prefix = prefix_base(s);
    bool any    = base == 0;
    if (any) base = prefix ? prefix : 10;
    bool after_prefix = prefix && prefix == base;
    if (after_prefix) s = str_of(s.p + 2, s.n - 2);
    uint64_t x = 0, most = negative ? (uint64_t)1 << 63 : INT64_MAX;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] == '_' && (i > 0 || after_prefix) && i + 1 < s.n && s.p[i + 1] != '_') continue;
        int d = digit_value(s.p[i]);
        if (d >= base) return false;
        if (x > (most - (uint64_t)d) / (uint64_t)base) *beyond = true;
        else x = x * (uint64_t)base + (uint64_t)d;
        zeros = zeros && d == 0;
    }
    if (!s.n || (any && !prefix && s.p[0] == '0' && !zeros)) return false;
    *out = negative ? (int64_t)(0 - x) : (int64_t)x;
    return !*beyond;
}

/* ---- str() and repr() ---- */

static bool jtext_add_quoted(jtext *t, const jvalue *v) {
    bool        single = v->n && memchr(v->u.s, '\'', v->n), both = single && memchr(v->u.s, '"', v->n);
    char        quote  = single && !both ? '"' : '\'', escape[12];
    const char *end    = v->u.s + v->n;
    if (!jinja_step(t->j, v->n >> 3)) return false;
    t->flags |= v->flags & J_MARKED;
    jtext_add(t, &quote, 1);
    for (const char *p = v->u.s; p < end;) {
        uint32_t c;
        size_t   n = letter_next(p, end, &c);
        escape[0]  = '\\';
        escape[2]  = 0;
        if (c == '\n') escape[1] = 'n';
        else if (c == '\r') escape[1] = 'r';
        else if (c == '\t') escape[1] = 't';
        else if (c == '\\' || c == (uint32_t)(unsigned char)quote) escape[1] = (char)c;
        else if (letter_is_printable(c)) escape[0] = 0;
        else if (c < 0x100) snprintf(escape, sizeof escape, "\\x%02x", c);
        else snprintf(escape, sizeof escape, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (!escape[0]) jtext_add(t, p, n);
        else jtext_add_c(t, escape);
        p += n;
    }
    return jtext_add(t, &quote, 1);
}

static bool jtext_add_integer(jtext *t, int64_t i) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)i);
    return jtext_add_c(t, text);
}

static bool jtext_add_items(jtext *t, const char *open, const jvalue *items, uint32_t n, const char *close) {
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, open);
    for (uint32_t i = 0; i < n; i++) {
        if (i) jtext_add_c(t, ", ");
        if (!jtext_add_repr(t, &items[i])) break;
    }
    jinja_leave(t->j);
    return jtext_add_c(t, close);
}

static bool jtext_add_dict(jtext *t, const jdict *d) {
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, "{");
    for (uint32_t i = 0; i < d->n; i++) {
        if (i) jtext_add_c(t, ", ");
        jtext_add_repr(t, &d->pairs[i].key);
        jtext_add_c(t, ": ");
        if (!jtext_add_repr(t, &d->pairs[i].value)) break;
    }
    jinja_leave(t->j);
    return jtext_add_c(t, "}");
}

static bool jtext_add_view(jtext *t, const jvalue *v) {
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    jvalue list;
    return jv_to_list(t->j, v, &list) && jtext_add_items(t, names[v->sub], list.u.items, list.n, "])");
}

static bool jtext_add_range(jtext *t, const jrange *r) {
    jtext_add_c(t, "range(");
    jtext_add_integer(t, r->start);
    jtext_add_c(t, ", ");
    jtext_add_integer(t, r->stop);
    if (r->step != 1) {
        jtext_add_c(t, ", ");
        jtext_add_integer(t, r->step);
    }
    return jtext_add_c(t, ")");
}

static bool jtext_add_repr(jtext *t, const jvalue *v) {
    char number[JFLOAT_TEXT];
    if (!jinja_step(t->j, 4)) return false;
    switch (v->kind) {
    case J_UNDEFINED: return jtext_add_c(t, "Undefined");
    case J_NONE: return jtext_add_c(t, "None");
    case J_BOOL: return jtext_add_c(t, v->u.i ? "True" : "False");
    case J_INT: return jtext_add_integer(t, v->u.i);
    case J_BIG: return jtext_add(t, v->u.s, v->n);
    case J_FLOAT: return jinja_step(t->j, 40) && jtext_add(t, number, jfloat_text(number, v->u.f));
    case J_STRING:
        if (!(v->flags & J_SAFE)) return jtext_add_quoted(t, v);
        return jtext_add_c(t, "Markup(") && jtext_add_quoted(t, v) && jtext_add_c(t, ")");
    case J_LIST: return jtext_add_items(t, "[", v->u.items, v->n, "]");
    case J_TUPLE: return jtext_add_items(t, "(", v->u.items, v->n, v->n == 1 ? ",)" : ")");
    case J_DICT: return jtext_add_dict(t, v->u.dict);
    case J_VIEW: return jtext_add_view(t, v);
    case J_RANGE: return jtext_add_range(t, v->u.range);
    case J_NAMESPACE:
        return jtext_add_c(t, "<Namespace ") && jtext_add_dict(t, v->u.space->attributes) && jtext_add_c(t, ">");
    case J_METHOD:
        return jtext_add_c(t, "<built-in method ") && jtext_add_c(t, v->u.method->native->name) && jtext_add_c(t, ">");
    case J_FUNCTION:
        return jtext_add_c(t, "<function ") && jtext_add_c(t, v->u.native->name) && jtext_add_c(t, ">");
    case J_MACRO:
        if (!jv_is_string(&v->u.macro->name)) return jtext_add_c(t, "<Macro anonymous>");
        return jtext_add_c(t, "<Macro ") && jtext_add_quoted(t, &v->u.macro->name) && jtext_add_c(t, ">");
    default: return jtext_add_c(t, "<") && jtext_add_c(t, jv_type(v)) && jtext_add_c(t, " object>");
    }
}

static bool jtext_add_str(jtext *t, const jvalue *v) {
    if (v->kind == J_STRING) return jtext_add_string(t, v);
    if (v->kind == J_UNDEFINED) return t->j->failed == NOVA_OK;
    return jtext_add_repr(t, v);
}

static bool jv_to_string(jinja *j, const jvalue *v, jvalue *out) {
    if (v->kind == J_STRING) {
        *out       = *v;
        out->flags = v->flags & J_MARKED;
        return true;
    }
    jtext t;
    jtext_open(&t, j);
    return jtext_add_str(&t, v) && jtext_close(&t, out);
}

static bool jv_soft_string(jinja *j, const jvalue *v, jvalue *out) {
    if (v->kind != J_STRING) return jv_to_string(j, v, out);
    *out = *v;
    return true;
}

/* ---- JSON, as json.dumps writes it ---- */

static bool jtext_add_json_string(jtext *t, const jvalue *v, bool ascii) {
    const char *end = v->u.s + v->n, *plain = v->u.s;
    char        escape[16];
    if (!jinja_step(t->j, v->n >> (ascii ? 3 : 4))) return false;
    t->flags |= v->flags & J_MARKED;
    jtext_add(t, "\"", 1);
    for (const char *p = v->u.s; p < end;) {
        unsigned char b = (unsigned char)*p;
        uint32_t      c = b;
        size_t        n = 1;
        if (b != '"' && b != '\\' && b >= 0x20 && (b < 0x80 || b == LETTER_MARK || !ascii)) {
            p++;
            continue;
        }
        if (b >= 0x80) n = letter_next(p, end, &c);
        jtext_add(t, plain, (size_t)(p - plain));
        const char *letters = "\"\"\\\\\bb\ff\nn\rr\tt";
        while (*letters && (unsigned char)letters[0] != c) letters += 2;
        if (*letters) snprintf(escape, sizeof escape, "\\%c", letters[1]);
        else if (c < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", c);
        else snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD7C0 + (c >> 10), 0xDC00 + (c & 0x3FF));
        jtext_add_c(t, escape);
        p += n;
        plain = p;
    }
    jtext_add(t, plain, (size_t)(end - plain));
    return jtext_add(t, "\"", 1);
}

static bool jtext_add_json_float(jtext *t, double f) {
    char text[JFLOAT_TEXT];
    if (f != f) return jtext_add_c(t, "NaN");
    if (f - f != 0) return jtext_add_c(t, f < 0 ? "-Infinity" : "Infinity");
    return jinja_step(t->j, 40) && jtext_add(t, text, jfloat_text(text, f));
}

static bool jtext_add_json_scalar(jtext *t, const jvalue *v, bool ascii) {
    switch (v->kind) {
    case J_NONE: return jtext_add_c(t, "null");
    case J_BOOL: return jtext_add_c(t, v->u.i ? "true" : "false");
    case J_INT: return jtext_add_integer(t, v->u.i);
    case J_BIG: return jtext_add(t, v->u.s, v->n);
    case J_FLOAT: return jtext_add_json_float(t, v->u.f);
    case J_STRING: return jtext_add_json_string(t, v, ascii);
    default: return jinja_fail_type(t->j, "JSON", v);
    }
}

static bool jtext_add_json_key(jtext *t, const jvalue *key, bool ascii) {
    if (key->kind == J_STRING) return jtext_add_json_string(t, key, ascii);
    jtext_add(t, "\"", 1);
    return jtext_add_json_scalar(t, key, ascii) && jtext_add(t, "\"", 1);
}

static void jtext_add_json_line(jtext *t, const json_style *style, uint32_t level) {
    if (!style->lines) return;
    jtext_add(t, "\n", 1);
    for (uint32_t i = 0; i < level; i++) jtext_add_string(t, &style->indent);
}

/* `level` of nesting; a list's items are pairs without keys. */
static bool jtext_add_json_at(jtext *t, const jvalue *v, const json_style *style, uint32_t level) {
    bool dict = v->kind == J_DICT;
    if (!dict && !jv_is_array(v)) return jtext_add_json_scalar(t, v, style->ascii);
    uint32_t     n     = dict ? v->u.dict->n : v->n;
    const jpair *pairs = dict ? v->u.dict->pairs : NULL;
    if (n == 0) return jtext_add_c(t, dict ? "{}" : "[]");
    if (dict && style->sort_keys) {
        jpair *sorted = (jpair *)jinja_alloc(t->j, n * sizeof *sorted);
        if (!sorted) return false;
        memcpy(sorted, pairs, n * sizeof *sorted);
        if (!jpair_sort(t->j, sorted, n, false)) return false;
        pairs = sorted;
    }
    if (!jinja_enter(t->j)) return false;
    jtext_add_c(t, dict ? "{" : "[");
    for (uint32_t i = 0; i < n && jinja_step(t->j, 2); i++) {
        if (i) jtext_add_string(t, &style->comma);
        jtext_add_json_line(t, style, level + 1);
        if (dict) {
            jtext_add_json_key(t, &pairs[i].key, style->ascii);
            jtext_add_string(t, &style->colon);
        }
        jtext_add_json_at(t, dict ? &pairs[i].value : &v->u.items[i], style, level + 1);
    }
    jtext_add_json_line(t, style, level);
    jinja_leave(t->j);
    return jtext_add_c(t, dict ? "}" : "]");
}

static bool jtext_add_json(jtext *t, const jvalue *v, const json_style *style) {
    return jtext_add_json_at(t, v, style, 0);
}
