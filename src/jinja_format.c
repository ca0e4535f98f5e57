/* Formatting in templates: see jinja_format.h. Source of the rules: Python's library reference, "printf-style String
 * Formatting" and "Format String Syntax". */
#include "jinja_format.h"

/* How one value is to be shown, from either syntax. */
typedef struct format_spec {
    uint32_t fill;
    char     align;      /* '<' '>' '^' '=', 0: the kind's own */
    char     sign;       /* '+' ' ' '-' */
    bool     alternate;  /* '#' */
    char     comma;      /* ',' '_' between thousands, 0 */
    char     type;       /* 0: the kind's own */
    int64_t  width, precision;   /* precision -1: not given */
} format_spec;

/* No number has more digits; more would be zeros only. */
#define FORMAT_MAX_PRECISION 400
#define FORMAT_MAX_NUMBER    1200

static format_spec format_default(void) {
    format_spec s;
    memset(&s, 0, sizeof s);
    s.fill      = ' ';
    s.sign      = '-';
    s.precision = -1;
    return s;
}

/* Appends `body`, filled up to the width: behind its first `n_sign` bytes (sign and prefix) for the alignment '='. */
static bool format_pad(jtext *t, str body, size_t n_sign, const format_spec *s, char align) {
    char    utf8[4];
    size_t  n_fill = letter_put(utf8, s->fill);
    int64_t gap    = s->width - (int64_t)letter_count(body.p, body.n), left = 0;
    if (s->align) align = s->align;
    if (gap < 0) gap = 0;
    if (gap > (int64_t)JINJA_MAX_BYTES) gap = (int64_t)JINJA_MAX_BYTES + 1;
    if (align == '>' || align == '=') left = gap;
    if (align == '^') left = gap / 2;
    if (align == '=') jtext_add(t, body.p, n_sign);
    jtext_repeat(t, utf8, n_fill, (size_t)left);
    if (align == '=') jtext_add(t, body.p + n_sign, body.n - n_sign);
    else jtext_add(t, body.p, body.n);
    return jtext_repeat(t, utf8, n_fill, (size_t)(gap - left));
}

static bool format_string(jtext *t, const jvalue *v, const format_spec *s) {
    str text = jv_str(v);
    if (s->precision >= 0) text.n = text_offset(v, s->precision > (int64_t)v->n ? v->n : (size_t)s->precision);
    t->flags |= v->flags & J_MARKED;
    return format_pad(t, text, 0, s, '<');
}

/* Sign, prefix, digits with separators, the rest (point and what is behind it). */
static bool format_number(jtext *t, bool negative, const char *prefix, str whole, str rest, const format_spec *s) {
    char   out[FORMAT_MAX_NUMBER + 16];
    size_t n = 0, group = s->comma == '_' && s->type && strchr("xXob", s->type) ? 4 : 3;
    if (whole.n + whole.n / 3 + rest.n > FORMAT_MAX_NUMBER) return jinja_fail(t->j, "a number is too long");
    if (negative) out[n++] = '-';
    else if (s->sign != '-') out[n++] = s->sign;
    for (; *prefix; prefix++) out[n++] = *prefix;
    size_t n_sign = n;
    for (size_t i = 0; i < whole.n; i++) {
        if (s->comma && i && (whole.n - i) % group == 0) out[n++] = s->comma;
        out[n++] = whole.p[i];
    }
    if (rest.n) memcpy(out + n, rest.p, rest.n);
    return format_pad(t, str_of(out, n + rest.n), n_sign, s, '>');
}

static bool format_integer(jtext *t, int64_t i, const format_spec *s) {
    char     digits[72], *p = digits + sizeof digits;
    char     type = s->type ? s->type : 'd';
    uint64_t x    = i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8
                                                                : type == 'b' ? 2 : 10;
    const char *letters = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef", *prefix = "";
    do {
        *--p = letters[x % base];
        x /= base;
    } while (x);
    if (s->alternate && base != 10) prefix = type == 'x' ? "0x" : type == 'X' ? "0X" : type == 'o' ? "0o" : "0b";
    return format_number(t, i < 0, prefix, str_of(p, (size_t)(digits + sizeof digits - p)), str_of("", 0), s);
}

/* Without type and precision repr's digits; with a precision as 'g', but with a digit behind the point. */
static bool format_float(jtext *t, double x, const format_spec *s) {
    char   digits[FORMAT_MAX_NUMBER], shape[8] = "%.*f";
    char   type = s->type == '%' ? 'f' : s->type == 'n' || !s->type ? 'g' : s->type == 'F' ? 'f' : s->type;
    size_t n;
    if (s->precision > FORMAT_MAX_PRECISION) return jinja_fail(t->j, "a precision over %d", FORMAT_MAX_PRECISION);
    if (!jinja_step(t->j, 60)) return false;
    if (s->type == '%') x *= 100;
    bool negative = f64_is_negative(x) && x == x;
    if (s->alternate) memcpy(shape, "%#.*f", 6);
    shape[strlen(shape) - 1] = type;
    if (!s->type && s->precision < 0) n = jfloat_text(digits, fabs(x));
    else n = jfloat_format(digits, sizeof digits, shape, s->precision < 0 ? 6 : (int)s->precision, fabs(x));
    if (s->type == 'F' || s->type == 'E' || s->type == 'G')
        for (size_t i = 0; i < n; i++)
            if (digits[i] >= 'a' && digits[i] <= 'z') digits[i] = (char)(digits[i] - 'a' + 'A');
    if (!s->type && s->precision >= 0 && x - x == 0 && !strpbrk(digits, ".e"))
        n += (size_t)snprintf(digits + n, 3, ".0");
    if (s->type == '%') digits[n++] = '%';
    size_t whole = 0;
    while (whole < n && digits[whole] >= '0' && digits[whole] <= '9') whole++;
    return format_number(t, negative, "", str_of(digits, whole), str_of(digits + whole, n - whole), s);
}

/* ---- "..." % arguments ---- */

typedef struct format_percents {
    jinja        *j;
    jtext         t;
    const char   *p, *end;
    const jvalue *argument;
    uint32_t      used;      /* of a tuple's items, or 1 for the argument itself */
    bool          safe;
} format_percents;

static bool format_take(format_percents *f, jvalue *out) {
    const jvalue *a = f->argument;
    uint32_t      n = a->kind == J_TUPLE ? a->n : 1;
    if (f->used >= n) return jinja_fail(f->j, "not enough arguments for a format");
    *out = a->kind == J_TUPLE ? a->u.items[f->used] : *a;
    f->used++;
    return true;
}

/* Digits or '*'. */
static bool format_amount(format_percents *f, int64_t *out) {
    *out = 0;
    if (f->p < f->end && *f->p == '*') {
        jvalue v;
        f->p++;
        if (!format_take(f, &v)) return false;
        if (!jv_is_integer(&v)) return jinja_fail_type(f->j, "'*' in a format", &v);
        *out = v.u.i;
        return true;
    }
    for (; f->p < f->end && *f->p >= '0' && *f->p <= '9'; f->p++)
        if (*out < INT32_MAX) *out = *out * 10 + (*f->p - '0');
    return true;
}

/* Flags, width, precision and a length that means nothing; left before the type. */
static bool format_percent_spec(format_percents *f, format_spec *s) {
    bool zero = false, left = false;
    for (; f->p < f->end && strchr("-+ #0", *f->p) && *f->p; f->p++) {
        if (*f->p == '-') left = true;
        else if (*f->p == '0') zero = true;
        else if (*f->p == '#') s->alternate = true;
        else if (*f->p == '+' || s->sign != '+') s->sign = *f->p;
    }
    if (!format_amount(f, &s->width)) return false;
    if (s->width < 0) {
        left     = true;
        s->width = s->width < -INT32_MAX ? INT32_MAX : -s->width;
    }
    if (f->p < f->end && *f->p == '.') {
        f->p++;
        if (!format_amount(f, &s->precision)) return false;
        if (s->precision < 0) s->precision = 0;
    }
    if (f->p < f->end && strchr("hlL", *f->p) && *f->p) f->p++;
    s->align = left ? '<' : '>';
    if (zero && !left) {
        s->fill  = '0';
        s->align = '=';
    }
    return true;
}

/* %(name) */
static bool format_percent_name(format_percents *f, jvalue *out) {
    const char *start = ++f->p;
    uint32_t    depth = 1;
    for (; f->p < f->end; f->p++) {
        depth += *f->p == '(';
        if (*f->p == ')' && --depth == 0) break;
    }
    if (f->p == f->end) return jinja_fail(f->j, "a format's '(' does not end");
    if (f->argument->kind != J_DICT) return jinja_fail(f->j, "a format with names needs a mapping");
    jvalue        key   = jv_string(start, (size_t)(f->p++ - start), J_MARKED);
    const jvalue *value = jdict_get(f->j, f->argument->u.dict, &key);
    if (!value) return jinja_fail(f->j, "a format's argument '%.*s' is missing", STR_ARG(jv_str(&key)));
    *out    = *value;
    f->used = 1;
    return true;
}

/* %d of at least `precision` digits. */
static bool format_percent_integer(format_percents *f, const jvalue *v, format_spec *s) {
    int64_t i = v->u.i;
    if (v->kind == J_FLOAT && strchr("diu", s->type)) {
        if (!(fabs(v->u.f) < 9e18)) return jinja_fail(f->j, "an integer beyond 64 bits");
        i = (int64_t)v->u.f;
    } else if (!jv_is_integer(v)) {
        return jinja_fail_type(f->j, "an integer's format", v);
    }
    if (strchr("iu", s->type)) s->type = 'd';
    if (s->precision >= 0) {
        /* Digits first, padded with zeros behind the sign; then the width. */
        format_spec digits = *s;
        jtext       inner;
        jvalue      body;
        digits.fill      = '0';
        digits.align     = '=';
        digits.width     = s->precision + (i < 0 || s->sign != '-');
        digits.precision = -1;
        jtext_open(&inner, f->j);
        if (!format_integer(&inner, i, &digits) || !jtext_close(&inner, &body)) return false;
        if (s->align == '=') s->align = '>', s->fill = ' ';
        return format_pad(&f->t, jv_str(&body), 0, s, '>');
    }
    return format_integer(&f->t, i, s);
}

static bool format_percent_text(format_percents *f, const jvalue *v, format_spec *s) {
    jvalue text;
    jtext  repr;
    if (s->align == '=') s->align = '>';
    if (s->fill == '0') s->fill = ' ';
    if (s->type == 'r' || s->type == 'a') {
        jtext_open(&repr, f->j);
        if (!jtext_add_repr(&repr, v) || !jtext_close(&repr, &text)) return false;
    } else if (s->type == 'c' && jv_is_integer(v)) {
        char utf8[4];
        if (v->u.i < 0 || v->u.i > 0x10FFFF) return jinja_fail(f->j, "%%c: no such character");
        const char *copy;
        size_t      n = letter_put(utf8, (uint32_t)v->u.i);
        if (!jinja_copy(f->j, utf8, n, &copy)) return false;
        text = jv_string(copy, n, 0);
    } else {
        if (s->type == 'c' && !(jv_is_string(v) && letter_count(v->u.s, v->n) == 1))
            return jinja_fail_type(f->j, "%c", v);
        if (f->safe ? !text_escape(f->j, v, &text) : !jv_to_string(f->j, v, &text)) return false;
    }
    return format_string(&f->t, &text, s);
}

static bool format_percent_one(format_percents *f) {
    format_spec s = format_default();
    jvalue      v = jv_none();
    bool        named = f->p < f->end && *f->p == '(';
    if (named && !format_percent_name(f, &v)) return false;
    if (!format_percent_spec(f, &s)) return false;
    if (f->p == f->end) return jinja_fail(f->j, "a format ends behind '%%'");
    s.type = *f->p++;
    if (s.type == '%') return jtext_add(&f->t, "%", 1);
    if (!s.type || !strchr("diuoxXeEfFgGcrsa", s.type)) return jinja_fail(f->j, "unknown format '%%%c'", s.type);
    if (!named && !format_take(f, &v)) return false;
    if (strchr("diuoxX", s.type)) return format_percent_integer(f, &v, &s);
    if (!strchr("eEfFgG", s.type)) return format_percent_text(f, &v, &s);
    if (!jv_is_number(&v)) return jinja_fail_type(f->j, "a float's format", &v);
    return format_float(&f->t, v.kind == J_FLOAT ? v.u.f : (double)v.u.i, &s);
}

static bool format_percent(jinja *j, const jvalue *format, const jvalue *argument, jvalue *out) {
    format_percents f;
    memset(&f, 0, sizeof f);
    f.j        = j;
    f.p        = format->u.s;
    f.end      = format->u.s + format->n;
    f.argument = argument;
    f.safe     = (format->flags & J_SAFE) != 0;
    jtext_open(&f.t, j);
    f.t.flags = format->flags & J_MARKED;
    while (f.p < f.end) {
        const char *percent = (const char *)memchr(f.p, '%', (size_t)(f.end - f.p));
        const char *until   = percent ? percent : f.end;
        if (!jtext_add(&f.t, f.p, (size_t)(until - f.p)) || !jinja_step(j, 2)) return false;
        f.p = until;
        if (percent && (f.p++, !format_percent_one(&f))) return false;
    }
    bool rest = argument->kind == J_TUPLE ? f.used < argument->n : !f.used;
    bool free_to_stay = argument->kind == J_DICT || argument->kind == J_LIST || argument->kind == J_UNDEFINED;
    if (rest && !free_to_stay) return jinja_fail(j, "not all arguments of a format are used");
    if (!jtext_close(&f.t, out)) return false;
    out->flags |= format->flags & J_SAFE;
    return true;
}

/* ---- "...".format(arguments) ---- */

typedef struct format_reader {
    jinja          *j;
    const jargs    *a;
    format_reach_fn reach;
    uint32_t        automatic;   /* fields without a number so far */
    bool            numbered, safe;
} format_reader;

static bool format_is_align(uint32_t c) { return c == '<' || c == '>' || c == '^' || c == '='; }

/* [[fill]align][sign][#][0][width][,_][.precision][type] */
static bool format_parse_spec(jinja *j, str text, format_spec *s) {
    const char *p = text.p, *end = p + text.n;
    uint32_t    c;
    size_t      n = p < end ? letter_next(p, end, &c) : 0;
    if (n && p + n < end && format_is_align((unsigned char)p[n])) {
        s->fill  = c;
        s->align = p[n];
        p += n + 1;
    } else if (n && format_is_align(c)) {
        s->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) s->sign = *p++;
    if (p < end && *p == '#') s->alternate = *p++ == '#';
    if (p < end && *p == '0') {
        if (!s->align) s->fill = '0', s->align = 'z';   /* '=' for numbers, the kind's own for the rest */
        p++;
    }
    for (; p < end && *p >= '0' && *p <= '9'; p++)
        if (s->width < INT32_MAX) s->width = s->width * 10 + (*p - '0');
    if (p < end && (*p == ',' || *p == '_')) s->comma = *p++;
    if (p < end && *p == '.') {
        s->precision = 0;
        if (++p == end || *p < '0' || *p > '9') return jinja_fail(j, "a format has no digits behind '.'");
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            if (s->precision < INT32_MAX) s->precision = s->precision * 10 + (*p - '0');
    }
    if (p < end) s->type = *p++;
    return p == end || jinja_fail(j, "a format like '%.*s' is unknown", STR_ARG(text));
}

static bool format_value(jtext *t, const jvalue *v, str text) {
    jinja      *j = t->j;
    format_spec s = format_default();
    if (!text.n) return jtext_add_str(t, v);
    if (!format_parse_spec(j, text, &s)) return false;
    bool zero = s.align == 'z';
    if (v->kind == J_STRING) {
        if (zero) s.align = 0;
        if ((s.type && s.type != 's') || s.align == '=' || s.sign != '-' || s.comma || s.alternate)
            return jinja_fail(j, "a format like '%.*s' is not for strings", STR_ARG(text));
        return format_string(t, v, &s);
    }
    if (zero) s.align = '=';
    if (jv_is_integer(v) && s.type == 'c') {
        char utf8[4];
        if (s.sign != '-' || s.comma || v->u.i < 0 || v->u.i > 0x10FFFF) return jinja_fail(j, "no such character");
        return format_pad(t, str_of(utf8, letter_put(utf8, (uint32_t)v->u.i)), 0, &s, '<');
    }
    if (jv_is_integer(v) && (!s.type || strchr("bdoxXn", s.type))) {
        if (s.precision >= 0) return jinja_fail(j, "an integer's format has a precision");
        if (s.type == 'n') s.type = 'd';
        return format_integer(t, v->u.i, &s);
    }
    if (jv_is_number(v) && (!s.type || strchr("eEfFgGn%", s.type)))
        return format_float(t, v->kind == J_FLOAT ? v->u.f : (double)v->u.i, &s);
    return jinja_fail_type(j, "a format", v);
}

/* The argument that a field's first part names. */
static bool format_argument(format_reader *r, str name, jvalue *out) {
    bool digits = true;
    for (size_t i = 0; i < name.n; i++) digits = digits && name.p[i] >= '0' && name.p[i] <= '9';
    if (digits) {
        uint32_t i = 0;
        if (name.n ? r->automatic != 0 : r->numbered)
            return jinja_fail(r->j, "a format mixes fields with and without numbers");
        for (size_t k = 0; k < name.n; k++) i = i < 100000 ? i * 10 + (uint32_t)(name.p[k] - '0') : i;
        if (name.n) r->numbered = true;
        else i = r->automatic++;
        if (i >= r->a->n) return jinja_fail(r->j, "a format's argument %u is missing", i);
        *out = r->a->given[i];
        return true;
    }
    for (uint32_t i = 0; i < r->a->n_named; i++) {
        const jvalue *key = &r->a->named[i].key;
        if (!jinja_step(r->j, 1)) return false;
        if (!jv_is_string(key) || !str_eq(jv_str(key), name)) continue;
        *out = r->a->named[i].value;
        return true;
    }
    return jinja_fail(r->j, "a format's argument '%.*s' is missing", STR_ARG(name));
}

/* name(.attribute | [element])* */
static bool format_field_value(format_reader *r, str field, jvalue *out) {
    size_t i = 0;
    while (i < field.n && field.p[i] != '.' && field.p[i] != '[') i++;
    if (!format_argument(r, str_of(field.p, i), out)) return false;
    while (i < field.n) {
        bool   element = field.p[i] == '[', number = true;
        size_t start = ++i;
        while (i < field.n && (element ? field.p[i] != ']' : field.p[i] != '.' && field.p[i] != '[')) i++;
        if (i == start || (element && i == field.n)) return jinja_fail(r->j, "a format's field ends too early");
        jvalue name = jv_string(field.p + start, i - start, J_MARKED), of = *out;
        for (size_t k = start; k < i; k++) number = number && field.p[k] >= '0' && field.p[k] <= '9';
        bool beyond;
        if (element && number) {
            name = jv_int(0);
            if (!jv_parse_int(str_of(field.p + start, i - start), 10, &name.u.i, &beyond))
                return jinja_fail(r->j, "a format's index is too large");
        }
        i += element;
        if (element && i < field.n && field.p[i] != '.' && field.p[i] != '[')
            return jinja_fail(r->j, "only '.' or '[' may follow ']' in a format");
        if (!r->reach(r->j, &of, &name, element, out)) return false;
    }
    return true;
}

static bool format_read(format_reader *r, jtext *t, str format, int depth);

/* Between the braces: field[!conversion][:spec], the spec perhaps with fields of its own. */
static bool format_field(format_reader *r, jtext *t, str field, int depth) {
    size_t name = 0;
    bool   inside = false;
    while (name < field.n && (inside || (field.p[name] != '!' && field.p[name] != ':'))) {
        inside = field.p[name] == '[' || (inside && field.p[name] != ']');
        name++;
    }
    jvalue v, spec = jv_c("");
    jtext  text;
    size_t i          = name;
    char   conversion = 0;
    if (!format_field_value(r, str_of(field.p, name), &v)) return false;
    if (i < field.n && field.p[i] == '!') {
        if (i + 1 == field.n || !memchr("rsa", field.p[i + 1], 3) || (i + 2 < field.n && field.p[i + 2] != ':'))
            return jinja_fail(r->j, "a format's conversion is unknown");
        conversion = field.p[i + 1];
        i += 2;
    }
    jtext_open(&text, r->j);
    if (i < field.n && (!format_read(r, &text, str_of(field.p + i + 1, field.n - i - 1), depth + 1) ||
                        !jtext_close(&text, &spec))) return false;
    if (conversion == 's' && !jv_to_string(r->j, &v, &v)) return false;
    if (conversion == 'r' || conversion == 'a') {
        jtext_open(&text, r->j);
        if (!jtext_add_repr(&text, &v) || !jtext_close(&text, &v)) return false;
    }
    if (!r->safe || depth > 0) return format_value(t, &v, jv_str(&spec));
    jtext_open(&text, r->j);   /* of Markup: what is not safe is escaped */
    bool   safe = jv_is_string(&v) && (v.flags & J_SAFE);
    jvalue shown;
    if (!format_value(&text, &v, jv_str(&spec)) || !jtext_close(&text, &shown)) return false;
    return (safe || text_escape(r->j, &shown, &shown)) && jtext_add_string(t, &shown);
}

static bool format_read(format_reader *r, jtext *t, str format, int depth) {
    if (depth > 2) return jinja_fail(r->j, "a format's fields are nested too deeply");
    for (size_t i = 0; i < format.n;) {
        size_t start = i;
        while (i < format.n && format.p[i] != '{' && format.p[i] != '}') i++;
        if (!jtext_add(t, format.p + start, i - start) || !jinja_step(r->j, 2)) return false;
        if (i == format.n) break;
        if (depth == 0 && i + 1 < format.n && format.p[i + 1] == format.p[i]) {
            jtext_add(t, format.p + i, 1);
            i += 2;
            continue;
        }
        if (format.p[i] == '}') return jinja_fail(r->j, "a format has a single '}'");
        start = ++i;
        for (uint32_t open = 1; i < format.n; i++) {
            open += format.p[i] == '{';
            if (format.p[i] == '}' && --open == 0) break;
        }
        if (i == format.n) return jinja_fail(r->j, "a format has a single '{'");
        if (!format_field(r, t, str_of(format.p + start, i - start), depth)) return false;
        i++;
    }
    return true;
}

static bool format_fields(jinja *j, const jvalue *format, const jargs *a, format_reach_fn reach, jvalue *out) {
    format_reader r;
    jtext         t;
    memset(&r, 0, sizeof r);
    r.j     = j;
    r.a     = a;
    r.reach = reach;
    r.safe  = (format->flags & J_SAFE) != 0;
    jtext_open(&t, j);
    t.flags = J_MARKED;   /* of the format or of what it shows */
    if (!format_read(&r, &t, jv_str(format), 0) || !jtext_close(&t, out)) return false;
    out->flags |= format->flags & J_SAFE;
    return true;
}
