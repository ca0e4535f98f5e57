/* Filters: see jinja_filter.h. Source: Jinja's "List of Builtin Filters". */
#include "jinja_filter.h"

/* NULL for what is missing or none. */
static const jvalue *jarg_or_null(const jvalue *v) { return jv_given(v) && v->kind != J_NONE ? v : NULL; }

static jargs jargs_none(void) {
    jargs a;
    memset(&a, 0, sizeof a);
    return a;
}

/* ---- Attributes by path: "a.b.0" ---- */

/* The next part of a path at *at; digits alone are an index. */
static jvalue path_part(const jvalue *path, size_t *at) {
    const char *start = path->u.s + *at, *dot = (const char *)memchr(start, '.', path->n - *at);
    size_t      n     = dot ? (size_t)(dot - start) : path->n - *at;
    bool        digits = n > 0, beyond;
    int64_t     index;
    for (size_t i = 0; i < n; i++) digits = digits && start[i] >= '0' && start[i] <= '9';
    *at += n + 1;
    if (digits && jv_parse_int(str_of(start, n), 10, &index, &beyond)) return jv_int(index);
    return jv_string(start, n, path->flags & J_MARKED);
}

/* The item itself when there is no path. `fallback` (or NULL) takes the place of what is undefined on the way. */
static bool path_get(jinja *j, const jvalue *item, const jvalue *path, const jvalue *fallback, jvalue *out) {
    *out = *item;
    if (!path || !jv_given(path) || path->kind == J_NONE) return true;
    size_t at = 0;
    do {   /* a number is a path of one part */
        jvalue of = *out, part = jv_is_string(path) ? path_part(path, &at) : *path;
        if (!jinja_element(j, &of, &part, out)) return false;
        if (fallback && out->kind == J_UNDEFINED) *out = *fallback;
    } while (jv_is_string(path) && at <= path->n);
    return true;
}

/* The same, in lower case when it is a string and case shall not count. */
static bool path_key(jinja *j, const jvalue *item, const jvalue *path, bool cased, const jvalue *fallback,
                     jvalue *out) {
    if (!path_get(j, item, path, fallback, out)) return false;
    if (cased || !jv_is_string(out)) return true;
    jvalue s = *out;
    return text_convert(j, &s, LETTER_LOWER, out);
}

/* ---- Strings ---- */

static bool filter_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_convert(j, &s, LETTER_UPPER, out);
}

static bool filter_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_convert(j, &s, LETTER_LOWER, out);
}

static bool filter_capitalize(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_soft_string(j, self, &s) && text_capitalize(j, &s, out);
}

/* Words begin behind blanks and - ( { [ < only. */
static bool filter_title(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    jtext  t;
    bool   first = true;
    (void)a;
    if (!jv_soft_string(j, self, &s) || !jinja_step(j, s.n >> 1)) return false;
    jtext_open(&t, j);
    for (size_t i = 0; i < s.n && j->failed == NOVA_OK;) {
        uint32_t c;
        size_t   n    = letter_next(s.u.s + i, s.u.s + s.n, &c);
        jvalue   part = text_part(&s, i, i + n), other;
        bool     gap  = letter_is_space(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
        if (gap) other = part;
        else if (!text_convert(j, &part, first ? LETTER_UPPER : LETTER_LOWER, &other)) return false;
        jtext_add_string(&t, &other);
        first = gap;
        i += n;
    }
    return jtext_close(&t, out);
}

static bool filter_trim(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue        s;
    const jvalue *characters = jarg_or_null(&a->given[0]);
    if (characters && !jarg_string(j, characters)) return false;
    return jv_soft_string(j, self, &s) && text_strip(j, &s, characters, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool filter_replace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s, from, to;
    int64_t most;
    return jv_to_string(j, self, &s) && jv_to_string(j, &a->given[0], &from) && jv_to_string(j, &a->given[1], &to) &&
           jarg_int(j, &a->given[2], -1, &most) && text_replace(j, &s, &from, &to, most, out);
}

static bool filter_center(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s, width[2] = {jv_int(80), jv_make(J_MISSING)};
    int64_t given;
    if (!jv_soft_string(j, self, &s) || !jarg_int(j, &a->given[0], 80, &given)) return false;
    width[0]   = jv_int(given);
    jargs call = jargs_none();
    call.given = width;
    call.n     = 2;
    return jstr_center(j, &s, &call, out);
}

static bool filter_string(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jv_soft_string(j, self, out);
}

static bool filter_safe(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jv_to_string(j, self, out)) return false;
    out->flags |= J_SAFE;
    return true;
}

static bool filter_escape(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_escape(j, self, out);
}

static bool filter_forceescape(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    (void)a;
    return jv_to_string(j, self, &s) && text_escape(j, &s, out);
}

static bool filter_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s, argument = jv_items(J_TUPLE, a->given, a->n);
    if (a->n && a->n_named) return jinja_fail(j, "format takes arguments with or without names, not both");
    if (a->n_named) {
        jdict *names = jdict_open(j);
        if (!names) return false;
        for (uint32_t i = 0; i < a->n_named; i++)
            if (!jdict_set(j, names, &a->named[i].key, &a->named[i].value)) return false;
        argument = jv_dict(names);
    }
    return jv_soft_string(j, self, &s) && format_percent(j, &s, &argument, out);
}

static bool filter_indent(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  by = a->given[0], blank = jv_c(" "), newline = jv_c("\n"), text, lines;
    int64_t width;
    bool    first = jarg_true(&a->given[1], false), empty = jarg_true(&a->given[2], false);
    if (!jv_is_string(&by) && (!jarg_int(j, &by, 4, &width) || !text_repeat(j, &blank, width, &by))) return false;
    if (!jv_is_string(self)) return jinja_fail_type(j, "indent", self);
    if (!jinja_concat(j, self, &newline, &text) || !text_lines(j, &text, false, &lines)) return false;
    jtext t;
    jtext_open(&t, j);
    for (uint32_t i = 0; i < lines.n && jinja_step(j, 1); i++) {
        const jvalue *line = &lines.u.items[i];
        if (i) jtext_add_c(&t, "\n");
        if (i ? line->n || empty : first) jtext_add_string(&t, &by);
        jtext_add_string(&t, line);
    }
    if (!jtext_close(&t, out)) return false;
    out->flags |= self->flags & J_SAFE;
    return true;
}

static bool filter_truncate(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t length, leeway;
    jvalue  end = jv_given(&a->given[2]) ? a->given[2] : jv_c("..."), cut, blank = jv_c(" ");
    uint32_t size;
    if (!jv_length(self, &size)) return jinja_fail_type(j, "truncate", self);
    if (!jarg_int(j, &a->given[0], 255, &length) || !jarg_int(j, &a->given[3], 5, &leeway) || !jarg_string(j, &end))
        return false;
    int64_t n_end = (int64_t)letter_count(end.u.s, end.n);
    if (length < n_end || leeway < 0) return jinja_fail(j, "truncate: the length is below that of the end");
    *out = *self;
    if ((int64_t)size - leeway <= length) return true;
    if (!jv_is_string(self)) return jinja_fail_type(j, "truncate", self);
    if (!jinja_step(j, self->n >> 4)) return false;
    if (!text_slice(j, self, 0, 1, length - n_end, &cut)) return false;
    size_t at, n;
    int    found = jarg_true(&a->given[1], false) ? 0 : text_find_last(j, &cut, 0, cut.n, &blank, &at, &n);
    if (found < 0) return false;
    if (found) cut = text_part(&cut, 0, at);
    return jinja_concat(j, &cut, &end, out);
}

static bool filter_wordcount(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  s;
    int64_t count  = 0;
    bool    inside = false;
    (void)a;
    if (!jv_soft_string(j, self, &s) || !jinja_step(j, s.n >> 2)) return false;
    for (size_t i = 0; i < s.n;) {
        uint32_t c;
        i += letter_next(s.u.s + i, s.u.s + s.n, &c);
        bool word = letter_is_alnum(c) || c == '_';
        count += word && !inside;
        inside = word;
    }
    *out = jv_int(count);
    return true;
}

static bool filter_urlencode(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue s;
    jtext  t;
    (void)a;
    if (jv_is_iterable(self) && !jv_is_string(self)) return jinja_fail(j, "urlencode is supported for strings alone");
    if (!jv_to_string(j, self, &s) || !jinja_step(j, s.n >> 2)) return false;
    jtext_open(&t, j);
    for (size_t i = 0; i < s.n; i++) {
        unsigned char b = (unsigned char)s.u.s[i];
        char          hex[8];
        if (b == LETTER_MARK) continue;
        if (b && (digit_value((char)b) < 36 || strchr("_.-~/", b))) jtext_add(&t, s.u.s + i, 1);
        else if (snprintf(hex, sizeof hex, "%%%02X", b) > 0) jtext_add_c(&t, hex);
    }
    return jtext_close(&t, out);
}

/* tojson as chat templates have it: no HTML escapes, other defaults. */
static bool filter_tojson(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *indent = &a->given[1], *parts = &a->given[2];
    json_style    style;
    jvalue        blank = jv_c(" ");
    jtext         t;
    memset(&style, 0, sizeof style);
    style.ascii     = jarg_true(&a->given[0], false);
    style.sort_keys = jarg_true(&a->given[3], false);
    style.lines     = jv_given(indent) && indent->kind != J_NONE;
    style.comma     = style.lines ? jv_c(",") : jv_c(", ");
    style.colon     = jv_c(": ");
    if (style.lines) {
        style.indent = *indent;
        if (jv_is_integer(indent) && !text_repeat(j, &blank, indent->u.i, &style.indent)) return false;
        if (!jarg_string(j, &style.indent)) return false;
    }
    if (jv_given(parts) && parts->kind != J_NONE) {
        const jvalue *two = parts->u.items;
        if (!jv_is_array(parts) || parts->n != 2 || !jv_is_string(&two[0]) || !jv_is_string(&two[1]))
            return jinja_fail(j, "tojson: separators must be two strings");
        style.comma = parts->u.items[0];
        style.colon = parts->u.items[1];
    }
    jtext_open(&t, j);
    return jtext_add_json(&t, self, &style) && jtext_close(&t, out);
}

/* ---- Numbers ---- */

static bool filter_int(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t base, i = 0;
    double  f = 0;
    bool    beyond = false, real = self->kind == J_FLOAT;
    *out           = jv_given(&a->given[0]) ? a->given[0] : jv_int(0);
    if (!jarg_int(j, &a->given[1], 10, &base)) return false;
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    if (jv_is_integer(self)) {
        *out = jv_int(self->u.i);
        return true;
    }
    if (jv_is_string(self)) {
        bool usable = base == 0 || (base >= 2 && base <= 36);
        if (!jinja_step(j, self->n >> 3)) return false;
        if (usable && jv_parse_int(jv_str(self), (int)base, &i, &beyond)) {
            *out = jv_int(i);
            return true;
        }
        real = !beyond && jv_parse_float(jv_str(self), &f);
    } else if (real) {
        f = self->u.f;
    }
    if (beyond || self->kind == J_BIG) return jinja_fail(j, "int: an integer beyond 64 bits");
    if (!real || f != f || (f - f != 0 && jv_is_string(self))) return true;   /* no number: the default */
    if (!(fabs(f) < 9223372036854775808.0)) return jinja_fail(j, "int: an integer beyond 64 bits");
    *out = jv_int((int64_t)f);
    return true;
}

static bool filter_float(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    double f = 0;
    *out     = jv_given(&a->given[0]) ? a->given[0] : jv_float(0);
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    if (jv_is_integer(self)) *out = jv_float((double)self->u.i);
    if (self->kind == J_FLOAT) *out = *self;
    if (jv_is_string(self) && jv_parse_float(jv_str(self), &f)) *out = jv_float(f);
    return true;
}

static bool filter_abs(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jv_is_number(self)) return jinja_fail_type(j, "abs", self);
    if (self->kind == J_FLOAT) *out = jv_float(fabs(self->u.f));
    else if (self->u.i == INT64_MIN) return jinja_fail(j, "abs: an integer beyond 64 bits");
    else *out = jv_int(self->u.i < 0 ? -self->u.i : self->u.i);
    return true;
}

/* x rounded to `digits` behind the point, half to even, exactly. */
static double round_digits(double x, int64_t digits) {
    char text[FORMAT_MAX_NUMBER];
    if (x - x != 0 || digits > 350) return x;
    if (digits >= 0) {
        jfloat_format(text, sizeof text, "%.*f", (int)digits, x);
        double magnitude = jfloat_parse(str_c(text + (text[0] == '-')));
        return text[0] == '-' ? -magnitude : magnitude;
    }
    double unit = digits < -308 ? HUGE_VAL : pow(10, (double)-digits), n = x / unit, down = floor(n);
    bool   up   = n - down > 0.5 || (n - down == 0.5 && fmod(down, 2) != 0);
    return digits < -308 ? 0 * x : (down + up) * unit;
}

/* The same for whole tens, hundreds, ...: `digits` is below 0. */
static bool round_integer(jinja *j, int64_t i, int64_t digits, jvalue *out) {
    int64_t unit = 1, rest, down;
    for (; digits < 0 && unit <= INT64_MAX / 10; digits++) unit *= 10;
    if (digits < 0) {   /* a unit beyond 64 bits */
        *out = jv_int(0);
        return digits < -1 || (i <= INT64_MAX / 2 && i >= INT64_MIN / 2) || jinja_fail(j, "an integer beyond 64 bits");
    }
    rest     = i % unit;
    down     = i - rest;
    bool beyond = rest > unit / 2 || rest < -(unit / 2), half = unit > 1 && (rest == unit / 2 || rest == -(unit / 2));
    jvalue   whole = jv_int(down), more = jv_int(i < 0 ? -unit : unit);
    if (beyond || (half && (down / unit) % 2 != 0)) return jinja_operate(j, JO_ADD, &whole, &more, out);
    *out = whole;
    return true;
}

static bool filter_round(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t digits;
    jvalue  how = jv_given(&a->given[1]) ? a->given[1] : jv_c("common");
    if (!jarg_int(j, &a->given[0], 0, &digits) || !jarg_string(j, &how) || !jinja_step(j, 100)) return false;
    bool up = str_is(jv_str(&how), "ceil"), down = str_is(jv_str(&how), "floor");
    if (!up && !down && !str_is(jv_str(&how), "common"))
        return jinja_fail(j, "round: the method must be common, ceil or floor");
    if (!jv_is_number(self)) return jinja_fail_type(j, "round", self);
    double x = self->kind == J_FLOAT ? self->u.f : (double)self->u.i, unit = pow(10, (double)digits);
    if (!up && !down && self->kind == J_FLOAT) *out = jv_float(round_digits(x, digits));
    else if (!up && !down && digits < 0) return round_integer(j, self->u.i, digits, out);
    else if (!up && !down) *out = jv_int(self->u.i);
    else if (x - x != 0) return jinja_fail(j, "round: no finite number");
    else *out = jv_float((up ? ceil(x * unit) : floor(x * unit)) / unit);
    return true;
}

/* ---- Sequences ---- */

static bool filter_length(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    uint32_t n;
    (void)a;
    if (!jv_length(self, &n)) return jinja_fail_type(j, "length", self);
    *out = jv_int(n);
    return jinja_step(j, jv_is_string(self) ? self->n >> 4 : 1);
}

static bool filter_first(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter it;
    (void)a;
    if (!jiter_open(j, &it, self)) return false;
    int got = jiter_next(j, &it, out);
    if (!got) *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no first item"));
    return got >= 0;
}

static bool filter_last(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    uint32_t n;
    jvalue   list, at;
    (void)a;
    if (!jv_length(self, &n)) return jinja_fail_type(j, "last", self);
    *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no last item"));
    if (n == 0) return true;
    if (jv_is_string(self)) {
        at = jv_int(-1);
        return jinja_element(j, self, &at, out);
    }
    if (!jv_to_list(j, self, &list)) return false;
    *out = list.u.items[list.n - 1];
    return true;
}

static bool filter_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jv_to_list(j, self, out);
}

static bool filter_default(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool use = self->kind == J_UNDEFINED || (jarg_true(&a->given[1], false) && !jv_true(self));
    *out     = !use ? *self : jv_given(&a->given[0]) ? a->given[0] : jv_c("");
    return j->failed == NOVA_OK;
}

static bool filter_join(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue between = jv_c(""), items = *self;
    if (jv_given(&a->given[0]) && !jv_to_string(j, &a->given[0], &between)) return false;
    if (jv_given(&a->given[1]) && a->given[1].kind != J_NONE) {
        jlist  list;
        jiter  it;
        jvalue item;
        int    got;
        jlist_open(&list, j);
        if (!jiter_open(j, &it, self)) return false;
        while ((got = jiter_next(j, &it, &item)) == 1) {
            jvalue part;
            if (!path_get(j, &item, &a->given[1], NULL, &part) || !jlist_add(&list, part)) return false;
        }
        if (got < 0) return false;
        items = jlist_close(&list, J_LIST);
    }
    return jinja_join(j, &between, &items, true, out);
}

/* Pairs of key and item, for all that sorts. */
static bool sort_pairs(jinja *j, const jvalue *items, const jvalue *path, bool cased, const jvalue *fallback,
                       jpair **pairs, uint32_t *n) {
    jvalue list;
    if (!jv_to_list(j, items, &list)) return false;
    *n     = list.n;
    *pairs = (jpair *)jinja_alloc(j, (list.n + 1) * sizeof **pairs);
    if (!*pairs) return false;
    for (uint32_t i = 0; i < list.n; i++) {
        (*pairs)[i].value = list.u.items[i];
        if (!path_key(j, &list.u.items[i], path, cased, fallback, &(*pairs)[i].key)) return false;
    }
    return true;
}

static bool sort_values(jinja *j, const jpair *pairs, uint32_t n, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    for (uint32_t i = 0; i < n; i++)
        if (!jlist_add(&list, pairs[i].value)) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* Several attributes, with commas between them, make keys that are lists. */
static bool sort_by_many(jinja *j, jpair *pairs, uint32_t n, const jvalue *paths, bool cased) {
    jvalue comma = jv_c(","), parts;
    if (!text_split(j, paths, &comma, -1, &parts)) return false;
    for (uint32_t i = 0; i < n; i++) {
        jlist key;
        jlist_open(&key, j);
        for (uint32_t k = 0; k < parts.n; k++) {
            jvalue part;
            if (!path_key(j, &pairs[i].value, &parts.u.items[k], cased, NULL, &part)) return false;
            if (!jlist_add(&key, part)) return false;
        }
        pairs[i].key = jlist_close(&key, J_LIST);
    }
    return true;
}

static bool filter_sort(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool          reverse = jarg_true(&a->given[0], false), cased = jarg_true(&a->given[1], false);
    const jvalue *path = &a->given[2];
    bool          many = jv_is_string(path) && memchr(path->u.s, ',', path->n);
    jpair        *pairs;
    uint32_t      n;
    return sort_pairs(j, self, many ? NULL : path, cased, NULL, &pairs, &n) &&
           (!many || sort_by_many(j, pairs, n, path, cased)) && jpair_sort(j, pairs, n, reverse) &&
           sort_values(j, pairs, n, out);
}

static bool filter_dictsort(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool   cased = jarg_true(&a->given[0], false), reverse = jarg_true(&a->given[2], false);
    jvalue by = jv_given(&a->given[1]) ? a->given[1] : jv_c("key"), items, at = jv_int(0);
    jpair *pairs;
    uint32_t n;
    if (!jarg_string(j, &by)) return false;
    if (str_is(jv_str(&by), "value")) at = jv_int(1);
    else if (!str_is(jv_str(&by), "key")) return jinja_fail(j, "dictsort: only by key or by value");
    if (self->kind != J_DICT) return jinja_fail_type(j, "dictsort", self);
    items = jv_view(self->u.dict, JV_ITEMS);
    return sort_pairs(j, &items, &at, cased, NULL, &pairs, &n) && jpair_sort(j, pairs, n, reverse) &&
           sort_values(j, pairs, n, out);
}

static bool filter_extreme(jinja *j, const jvalue *self, const jargs *a, int wanted, jvalue *out) {
    jpair   *pairs;
    uint32_t n, best = 0;
    if (!sort_pairs(j, self, &a->given[1], jarg_true(&a->given[0], false), NULL, &pairs, &n)) return false;
    *out = jv_undefined(JU_SENTENCE, str_c("the sequence has no items to compare"));
    for (uint32_t i = 1; i < n; i++) {
        int sign;
        if (!jv_compare(j, &pairs[i].key, &pairs[best].key, &sign)) return false;
        if (sign == wanted) best = i;
    }
    if (n) *out = pairs[best].value;
    return true;
}

static bool filter_min(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_extreme(j, self, a, -1, out);
}

static bool filter_max(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_extreme(j, self, a, 1, out);
}

/* The first key of every group, as it was written, and the group's items. */
static bool filter_groupby(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *path = &a->given[0], *fallback = jarg_or_null(&a->given[1]);
    bool          cased = jarg_true(&a->given[2], false);
    jpair        *pairs;
    uint32_t      n;
    jlist         groups, list;
    if (!sort_pairs(j, self, path, cased, fallback, &pairs, &n) || !jpair_sort(j, pairs, n, false)) return false;
    jlist_open(&groups, j);
    for (uint32_t i = 0, from = 0; i < n; i++) {
        int same = i + 1 < n ? jv_equal(j, &pairs[i].key, &pairs[i + 1].key) : 0;
        if (same < 0) return false;
        if (same) continue;
        jvalue *pair = (jvalue *)jinja_alloc(j, 2 * sizeof *pair);
        if (!pair || !path_get(j, &pairs[from].value, path, fallback, &pair[0])) return false;
        jlist_open(&list, j);
        for (; from <= i; from++)
            if (!jlist_add(&list, pairs[from].value)) return false;
        pair[1]      = jlist_close(&list, J_LIST);
        jvalue group = jv_items(J_TUPLE, pair, 2);
        group.flags  = J_GROUP;
        if (!jlist_add(&groups, group)) return false;
    }
    *out = jlist_close(&groups, J_LIST);
    return true;
}

static bool filter_sum(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter  it;
    jvalue item, part, sum = jv_given(&a->given[1]) ? a->given[1] : jv_int(0);
    int    got;
    if (jv_is_string(&sum)) return jinja_fail(j, "sum: not for strings");
    if (!jiter_open(j, &it, self)) return false;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        jvalue before = sum;
        if (!path_get(j, &item, &a->given[0], NULL, &part)) return false;
        if (!jinja_operate(j, JO_ADD, &before, &part, &sum)) return false;
    }
    *out = sum;
    return got == 0;
}

/* ---- Generators: nothing is computed, and nothing fails, before an item is asked for ---- */

static jgenerator *generator_open(jinja *j, jgenerator_fn next, const jvalue *items, const void *data, jvalue *out) {
    jgenerator *g = (jgenerator *)jinja_alloc(j, sizeof *g);
    if (!g) return NULL;
    memset(g, 0, sizeof *g);
    g->next    = next;
    g->from.of = *items;
    g->a       = jv_none();
    g->b       = jv_none();
    g->data    = data;
    g->serial  = jinja_serial(j);
    *out       = jv_make(J_GENERATOR);
    out->u.generator = g;
    return g;
}

static int generator_pass(jinja *j, jgenerator *g, jvalue *out) { return jiter_next(j, &g->from, out); }

/* What makes a list of its subject, when it is asked for. */
typedef struct generator_list {
    jnative_fn make;
    jargs      args;
} generator_list;

static int generator_make_list(jinja *j, jgenerator *g, jvalue *out) {
    const generator_list *list = (const generator_list *)g->data;
    jvalue items;
    if (!jinja_enter(j) || !list->make(j, &g->from.of, &list->args, &items)) return -1;
    jinja_leave(j);
    g->next    = generator_pass;
    g->from.of = items;
    jinja_touch(j, g->serial);
    return generator_pass(j, g, out);
}

static bool args_copy(jinja *j, const jargs *a, uint32_t skip, jargs *out) {
    uint32_t n     = a->n - skip;
    jvalue  *given = (jvalue *)jinja_alloc(j, n * sizeof *given);
    jpair   *named = (jpair *)jinja_alloc(j, a->n_named * sizeof *named);
    if (!given || !named) return false;
    if (n) memcpy(given, a->given + skip, n * sizeof *given);
    if (a->n_named) memcpy(named, a->named, a->n_named * sizeof *named);
    out->given   = given;
    out->n       = n;
    out->named   = named;
    out->n_named = a->n_named;
    return true;
}

static bool generator_later(jinja *j, jnative_fn make, const jvalue *self, const jargs *a, jvalue *out) {
    generator_list *list = (generator_list *)jinja_alloc(j, sizeof *list);
    if (!list || !args_copy(j, a, 0, &list->args)) return false;
    list->make = make;
    return generator_open(j, generator_make_list, self, list, out) != NULL;
}

static bool items_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (self->kind != J_DICT && self->kind != J_UNDEFINED) return jinja_fail_type(j, "items", self);
    *out = self->kind == J_DICT ? jv_view(self->u.dict, JV_ITEMS) : *self;
    return true;
}

static bool filter_items(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, items_list, self, a, out);
}

static bool filter_reverse(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue bounds[3] = {jv_none(), jv_none(), jv_int(-1)}, list, back;
    (void)a;
    if (jv_is_string(self)) return jinja_slice(j, self, bounds, out);
    if (!jv_is_iterable(self)) return jinja_fail_type(j, "reverse", self);
    if (!jv_to_list(j, self, &list) || !jinja_slice(j, &list, bounds, &back)) return false;
    if (self->kind != J_GENERATOR)
        return generator_open(j, generator_pass, &back, NULL, out) != NULL;
    *out = back;   /* what Python cannot walk backwards it makes a list of */
    return true;
}

static bool unique_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    bool     cased = jarg_true(&a->given[0], false);
    jdict   *seen  = jdict_open(j);
    jpair   *pairs;
    uint32_t n;
    jlist    list;
    if (!seen || !sort_pairs(j, self, &a->given[1], cased, NULL, &pairs, &n)) return false;
    jlist_open(&list, j);
    for (uint32_t i = 0; i < n; i++) {
        if (!jv_hashable(&pairs[i].key)) return jinja_fail_type(j, "unique", &pairs[i].key);
        uint32_t before = seen->n;
        if (!jdict_set(j, seen, &pairs[i].key, &pairs[i].value)) return false;
        if (seen->n > before && !jlist_add(&list, pairs[i].value)) return false;
    }
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool filter_unique(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, unique_list, self, a, out);
}

static bool batch_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t size;
    jvalue  list;
    jlist   rows, row;
    bool    fill = jarg_or_null(&a->given[1]) != NULL;
    if (!jarg_int(j, &a->given[0], 0, &size) || !jv_to_list(j, self, &list)) return false;
    jlist_open(&rows, j);
    for (uint32_t i = 0; i < list.n;) {
        jlist_open(&row, j);
        do {
            if (!jlist_add(&row, list.u.items[i++])) return false;
        } while (i < list.n && (int64_t)row.n != size);
        while (fill && (int64_t)row.n < size)
            if (!jlist_add(&row, a->given[1])) return false;
        if (!jlist_add(&rows, jlist_close(&row, J_LIST))) return false;
    }
    *out = jlist_close(&rows, J_LIST);
    return true;
}

static bool filter_batch(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, batch_list, self, a, out);
}

static bool slice_list(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t  slices;
    uint32_t at = 0;
    jvalue   list;
    jlist    rows, row;
    bool     fill = jarg_or_null(&a->given[1]) != NULL;
    if (!jarg_int(j, &a->given[0], 0, &slices) || !jv_to_list(j, self, &list)) return false;
    if (slices == 0) return jinja_fail(j, "slice: no slices");
    jlist_open(&rows, j);
    for (int64_t i = 0; i < slices; i++) {
        int64_t n = list.n / slices + (i < list.n % slices);
        jlist_open(&row, j);
        for (int64_t k = 0; k < n; k++)
            if (!jlist_add(&row, list.u.items[at++])) return false;
        if (fill && i >= list.n % slices && !jlist_add(&row, a->given[1])) return false;
        if (!jlist_add(&rows, jlist_close(&row, J_LIST))) return false;
    }
    *out = jlist_close(&rows, J_LIST);
    return true;
}

static bool filter_slice(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return generator_later(j, slice_list, self, a, out);
}

/* What map and select call: a filter or test with the rest of their arguments. */
typedef struct generator_call {
    const jnative *native;
    jargs          args;
    bool           negate;
    const char    *problem;   /* why it cannot be called, to be told when it is */
} generator_call;

static generator_call *generator_call_open(jinja *j, const jargs *a, uint32_t skip, bool filter) {
    generator_call *call = (generator_call *)jinja_alloc(j, sizeof *call);
    if (!call) return NULL;
    memset(call, 0, sizeof *call);
    if (a->n < skip) return call;   /* select without a test: what is true */
    const jvalue *given = &a->given[skip - 1];
    str           name  = jv_is_string(given) ? jv_str(given) : str_of("", 0);
    call->native        = filter ? jinja_filter(name) : jinja_test(name);
    if (!call->native) call->problem = filter ? "no filter of this name" : "no test of this name";
    return args_copy(j, a, skip, &call->args) ? call : NULL;
}

static int generator_map_path(jinja *j, jgenerator *g, jvalue *out) {
    jvalue item;
    int    got = jiter_next(j, &g->from, &item);
    if (got != 1) return got;
    return path_get(j, &item, &g->a, g->b.kind == J_NONE ? NULL : &g->b, out) ? 1 : -1;
}

/* Generators of generators call each other, so a chain of them counts as depth. */
static int generator_map_filter(jinja *j, jgenerator *g, jvalue *out) {
    const generator_call *call = (const generator_call *)g->data;
    jvalue item;
    if (call->problem) return jinja_fail(j, "map: %s", call->problem) ? 1 : -1;
    if (!jinja_enter(j)) return -1;
    int got = jiter_next(j, &g->from, &item);
    if (got == 1 && !jnative_call(j, call->native, &item, &call->args, out)) got = -1;
    jinja_leave(j);
    return got;
}

static int generator_select(jinja *j, jgenerator *g, jvalue *out) {
    const generator_call *call = (const generator_call *)g->data;
    jvalue tested;
    int    got;
    if (call->problem) return jinja_fail(j, "select: %s", call->problem) ? 1 : -1;
    if (!jinja_enter(j)) return -1;
    while ((got = jiter_next(j, &g->from, out)) == 1) {
        int pass = -1;
        if (path_get(j, out, &g->a, NULL, &tested))
            pass = call->native ? jinja_call_test(j, call->native, &tested, &call->args) : jv_true(&tested);
        if (pass < 0) got = -1;
        if (pass < 0 || (pass == 1) != call->negate) break;
    }
    jinja_leave(j);
    return got;
}

/* Nothing, for what is false: none, too. */
static bool generator_empty(jinja *j, jvalue *out) {
    jvalue nothing = jv_items(J_LIST, NULL, 0);
    return generator_open(j, generator_pass, &nothing, NULL, out) != NULL;
}

static bool filter_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jgenerator     *g;
    generator_call *call;
    if (!jv_true(self)) return generator_empty(j, out);
    for (uint32_t i = 0; i < a->n_named && a->n == 0; i++) {
        if (!str_is(jv_str(&a->named[i].key), "attribute")) continue;
        g = generator_open(j, generator_map_path, self, NULL, out);
        if (!g) return false;
        for (uint32_t k = 0; k < a->n_named; k++) {
            str name = jv_str(&a->named[k].key);
            if (str_is(name, "attribute")) g->a = a->named[k].value;
            else if (str_is(name, "default")) g->b = a->named[k].value;
            else return jinja_fail(j, "map: argument '%.*s' is unknown", STR_ARG(name));
        }
        return true;
    }
    call = generator_call_open(j, a, 1, true);
    if (call && !call->native) call->problem = call->problem ? call->problem : "it needs a filter or an attribute";
    return call && generator_open(j, generator_map_filter, self, call, out);
}

static bool filter_choose(jinja *j, const jvalue *self, const jargs *a, bool attribute, bool negate, jvalue *out) {
    if (!jv_true(self)) return generator_empty(j, out);
    generator_call *call = generator_call_open(j, a, attribute ? 2 : 1, false);
    if (!call) return false;
    call->negate = negate;
    if (attribute && !a->n) call->problem = "it needs an attribute";
    jgenerator *g = generator_open(j, generator_select, self, call, out);
    if (g && attribute && a->n) g->a = a->given[0];
    return g != NULL;
}

static bool filter_select(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, false, false, out);
}

static bool filter_reject(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, false, true, out);
}

static bool filter_selectattr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, true, false, out);
}

static bool filter_rejectattr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return filter_choose(j, self, a, true, true, out);
}

/* The attribute, never the element. */
static bool filter_attr(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    if (self->kind == J_UNDEFINED) return jinja_fail_undefined(j, self);
    int found = jinja_own_attribute(j, self, &a->given[0], out);
    if (!found) *out = jv_lacking(self, &a->given[0]);
    return found >= 0;
}

static const jnative jinja_filters[] = {
    {"abs", "", 0, filter_abs},
    {"attr", "name", 1, filter_attr},
    {"batch", "linecount fill_with", 1, filter_batch},
    {"capitalize", "", 0, filter_capitalize},
    {"center", "width", 0, filter_center},
    {"count", "", 0, filter_length},
    {"d", "default_value boolean", 0, filter_default},
    {"default", "default_value boolean", 0, filter_default},
    {"dictsort", "case_sensitive by reverse", 0, filter_dictsort},
    {"e", "", 0, filter_escape},
    {"escape", "", 0, filter_escape},
    {"filesizeformat", NULL, 0, NULL},
    {"first", "", 0, filter_first},
    {"float", "default", 0, filter_float},
    {"forceescape", "", 0, filter_forceescape},
    {"format", NULL, 0, filter_format},
    {"groupby", "attribute default case_sensitive", 1, filter_groupby},
    {"indent", "width first blank", 0, filter_indent},
    {"int", "default base", 0, filter_int},
    {"items", "", 0, filter_items},
    {"join", "d attribute", 0, filter_join},
    {"last", "", 0, filter_last},
    {"length", "", 0, filter_length},
    {"list", "", 0, filter_list},
    {"lower", "", 0, filter_lower},
    {"map", NULL, 0, filter_map},
    {"max", "case_sensitive attribute", 0, filter_max},
    {"min", "case_sensitive attribute", 0, filter_min},
    {"pprint", NULL, 0, NULL},
    {"random", NULL, 0, NULL},
    {"reject", NULL, 0, filter_reject},
    {"rejectattr", NULL, 0, filter_rejectattr},
    {"replace", "old new count", 2, filter_replace},
    {"reverse", "", 0, filter_reverse},
    {"round", "precision method", 0, filter_round},
    {"safe", "", 0, filter_safe},
    {"select", NULL, 0, filter_select},
    {"selectattr", NULL, 0, filter_selectattr},
    {"slice", "slices fill_with", 1, filter_slice},
    {"sort", "reverse case_sensitive attribute", 0, filter_sort},
    {"string", "", 0, filter_string},
    {"striptags", NULL, 0, NULL},
    {"sum", "attribute start", 0, filter_sum},
    {"title", "", 0, filter_title},
    {"tojson", "ensure_ascii indent separators sort_keys", 0, filter_tojson},
    {"trim", "chars", 0, filter_trim},
    {"truncate", "length killwords end leeway", 0, filter_truncate},
    {"unique", "case_sensitive attribute", 0, filter_unique},
    {"upper", "", 0, filter_upper},
    {"urlencode", "", 0, filter_urlencode},
    {"urlize", NULL, 0, NULL},
    {"wordcount", "", 0, filter_wordcount},
    {"wordwrap", NULL, 0, NULL},
    {"xmlattr", NULL, 0, NULL},
};

static const jnative *jinja_filter(str name) { return jnative_find(jinja_filters, COUNT_OF(jinja_filters), name); }
