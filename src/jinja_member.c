/* What a value has: see jinja_member.h. */
#include "jinja_member.h"

static bool jarg_int(jinja *j, const jvalue *v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (!jv_given(v) || v->kind == J_NONE) return true;
    if (!jv_is_integer(v)) return jinja_fail_type(j, "an integer argument", v);
    *out = v->u.i;
    return true;
}

static bool jarg_string(jinja *j, const jvalue *v) {
    return jv_is_string(v) || jinja_fail_type(j, "a string argument", v);
}

/* A separator or a set of characters: NULL for the default. */
static bool jarg_characters(jinja *j, const jvalue *v, const jvalue **out) {
    *out = jv_given(v) && v->kind != J_NONE ? v : NULL;
    return !*out || jarg_string(j, v);
}

/* ---- Methods of strings ---- */

static bool jstr_capitalize(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_capitalize(j, self, out);
}

static bool jstr_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_LOWER, out);
}

static bool jstr_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_UPPER, out);
}

static bool jstr_title(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_convert(j, self, LETTER_TITLE, out);
}

static bool jstr_swapcase(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return text_swap_case(j, self, out);
}

static bool jstr_strip_sides(jinja *j, const jvalue *self, const jargs *a, int sides, jvalue *out) {
    const jvalue *characters;
    return jarg_characters(j, &a->given[0], &characters) && text_strip(j, self, characters, sides, out);
}

static bool jstr_strip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool jstr_lstrip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_LEFT, out);
}

static bool jstr_rstrip(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_strip_sides(j, self, a, TEXT_RIGHT, out);
}

static bool jstr_split(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *by;
    int64_t       most;
    return jarg_characters(j, &a->given[0], &by) && jarg_int(j, &a->given[1], -1, &most) &&
           text_split(j, self, by, most, out);
}

static bool jstr_rsplit(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *by;
    int64_t       most;
    return jarg_characters(j, &a->given[0], &by) && jarg_int(j, &a->given[1], -1, &most) &&
           text_split_right(j, self, by, most, out);
}

static bool jstr_splitlines(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return text_lines(j, self, jarg_true(&a->given[0], false), out);
}

/* The three parts around a separator; all of the string on one side when there is none. */
static bool jstr_parts(jinja *j, const jvalue *self, const jargs *a, bool last, jvalue *out) {
    size_t at, n;
    if (!jarg_string(j, &a->given[0])) return false;
    if (!a->given[0].n) return jinja_fail(j, "partition: the separator is empty");
    int found = last ? text_find_last(j, self, 0, self->n, &a->given[0], &at, &n)
                     : text_find(j, self, 0, self->n, &a->given[0], &at, &n);
    jvalue *parts = found < 0 ? NULL : (jvalue *)jinja_alloc(j, 3 * sizeof *parts);
    if (!parts) return false;
    if (!found) {
        at = last ? 0 : self->n;
        n  = 0;
    }
    parts[0] = text_part(self, 0, at);
    parts[1] = text_part(self, at, at + n);
    parts[2] = text_part(self, at + n, self->n);
    *out     = jv_items(J_TUPLE, parts, 3);
    return true;
}

static bool jstr_partition(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_parts(j, self, a, false, out);
}

static bool jstr_rpartition(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_parts(j, self, a, true, out);
}

static bool jstr_removeprefix(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    size_t n = text_starts(self, &a->given[0]);
    *out     = text_part(self, n == SIZE_MAX ? 0 : n, self->n);
    return true;
}

static bool jstr_removesuffix(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jarg_string(j, &a->given[0])) return false;
    size_t n = text_ends(self, &a->given[0]);
    *out     = text_part(self, 0, self->n - (n == SIZE_MAX ? 0 : n));
    return true;
}

static bool jstr_replace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t most;
    jvalue  to = a->given[1];
    if (!jarg_string(j, &a->given[0]) || !jarg_string(j, &to) || !jarg_int(j, &a->given[2], -1, &most)) return false;
    if ((self->flags & J_SAFE) && !text_escape(j, &to, &to)) return false;
    return text_replace(j, self, &a->given[0], &to, most, out);
}

/* The part that find's arguments `start` and `end` leave, in bytes; false when it is impossible or after a failure. */
static bool jstr_range(jinja *j, const jvalue *self, const jargs *a, size_t *from, size_t *to) {
    jvalue bounds[3] = {a->given[1], a->given[2], jv_make(J_MISSING)};
    *from            = 0;
    *to              = self->n;
    if (!jv_given(&bounds[0]) && !jv_given(&bounds[1])) return true;
    int64_t length = (int64_t)letter_count(self->u.s, self->n), start, step, count;
    if (!jinja_step(j, self->n >> 4) || !jslice_range(j, bounds, length, &start, &step, &count)) return false;
    if (count == 0 && jv_is_integer(&bounds[0]) && bounds[0].u.i > length) return false;
    *from = text_offset(self, (size_t)start);
    *to   = text_offset(self, (size_t)(start + count));
    return true;
}

static bool jstr_tells(jinja *j, const jvalue *self, const jargs *a, bool at_end, jvalue *out) {
    const jvalue *what = &a->given[0];
    uint32_t      n    = what->kind == J_TUPLE ? what->n : 1;
    size_t        from, to;
    bool          any  = false;
    if (what->kind == J_TUPLE) what = what->u.items;
    bool   range = jstr_range(j, self, a, &from, &to);
    jvalue part  = range ? text_part(self, from, to) : jv_none();
    for (uint32_t i = 0; i < n && !any; i++) {
        if (!jarg_string(j, &what[i]) || !jinja_step(j, 1 + (what[i].n >> 6))) return false;
        any = range && (at_end ? text_ends(&part, &what[i]) : text_starts(&part, &what[i])) != SIZE_MAX;
    }
    *out = jv_bool(any);
    return j->failed == NOVA_OK;
}

static bool jstr_startswith(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_tells(j, self, a, false, out);
}

static bool jstr_endswith(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_tells(j, self, a, true, out);
}

/* The place of an occurrence in characters, or -1; `must`: a failure instead. */
static bool jstr_find_any(jinja *j, const jvalue *self, const jargs *a, bool last, bool must, jvalue *out) {
    size_t from, to, at, n;
    int    found = 0;
    if (!jarg_string(j, &a->given[0])) return false;
    if (jstr_range(j, self, a, &from, &to))
        found = last ? text_find_last(j, self, from, to, &a->given[0], &at, &n)
                     : text_find(j, self, from, to, &a->given[0], &at, &n);
    if (j->failed != NOVA_OK) return false;
    if (!found && must) return jinja_fail(j, "index: '%.*s' is not found", STR_ARG(jv_str(&a->given[0])));
    *out = jv_int(found ? (int64_t)letter_count(self->u.s, at) : -1);
    return jinja_step(j, self->n >> 5);
}

static bool jstr_find(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, false, false, out);
}

static bool jstr_rfind(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, true, false, out);
}

static bool jstr_index(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, false, true, out);
}

static bool jstr_rindex(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_find_any(j, self, a, true, true, out);
}

static bool jstr_count(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    size_t  from, to, at, n;
    int     found = 0;
    int64_t count = 0;
    if (!jarg_string(j, &a->given[0])) return false;
    if (jstr_range(j, self, a, &from, &to)) {
        if (!a->given[0].n) count = (int64_t)letter_count(self->u.s + from, to - from) + 1;
        else
            for (; (found = text_find(j, self, from, to, &a->given[0], &at, &n)) == 1; from = at + n) count++;
    }
    *out = jv_int(count);
    return j->failed == NOVA_OK;
}

static bool jinja_join(jinja *j, const jvalue *between, const jvalue *items, bool any, jvalue *out) {
    jtext  t;
    jiter  it;
    jvalue item, shown;
    bool   safe = between->flags & J_SAFE;
    int    got;
    jtext_open(&t, j);
    if (!jiter_open(j, &it, items)) return false;
    for (uint32_t i = 0; (got = jiter_next(j, &it, &item)) == 1; i++) {
        if (!any && !jv_is_string(&item) && !safe) return jinja_fail_type(j, "join", &item);
        if (i) jtext_add_string(&t, between);
        if (safe && !text_escape(j, &item, &shown)) return false;
        if (!(safe ? jtext_add_string(&t, &shown) : jtext_add_str(&t, &item))) return false;
    }
    if (got < 0 || !jtext_close(&t, out)) return false;
    if (safe) out->flags |= J_SAFE;
    return true;
}

static bool jstr_join(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jinja_join(j, self, &a->given[0], false, out);
}

static bool jstr_pad_sides(jinja *j, const jvalue *self, const jargs *a, int sides, jvalue *out) {
    int64_t  width;
    uint32_t fill = ' ';
    if (!jarg_int(j, &a->given[0], 0, &width)) return false;
    if (jv_given(&a->given[1])) {
        const jvalue *f = &a->given[1];
        if (!jarg_string(j, f)) return false;
        if (!f->n || letter_next(f->u.s, f->u.s + f->n, &fill) != f->n)
            return jinja_fail(j, "the fill character must be one");
    }
    int64_t n = (int64_t)letter_count(self->u.s, self->n), gap = width > n ? width - n : 0;
    int64_t left = sides == TEXT_LEFT ? gap : sides == TEXT_RIGHT ? 0 : gap / 2 + (gap & width & 1);   /* as CPython */
    return jinja_step(j, self->n >> 5) && text_pad(j, self, left, gap - left, fill, out);
}

static bool jstr_center(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_LEFT | TEXT_RIGHT, out);
}

static bool jstr_ljust(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_RIGHT, out);
}

static bool jstr_rjust(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return jstr_pad_sides(j, self, a, TEXT_LEFT, out);
}

static bool jstr_zfill(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t width, n = (int64_t)letter_count(self->u.s, self->n);
    if (!jarg_int(j, &a->given[0], 0, &width)) return false;
    size_t sign = self->n && (self->u.s[0] == '-' || self->u.s[0] == '+');
    jvalue head = text_part(self, 0, sign), rest = text_part(self, sign, self->n);
    return text_pad(j, &rest, width > n ? width - n : 0, 0, '0', &rest) && jinja_concat(j, &head, &rest, out);
}

static bool jstr_expandtabs(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t size, column = 0;
    jtext   t;
    if (!jarg_int(j, &a->given[0], 8, &size) || !jinja_step(j, self->n >> 2)) return false;
    jtext_open(&t, j);
    t.flags = self->flags & J_MARKED;
    for (size_t i = 0; i < self->n && j->failed == NOVA_OK;) {
        uint32_t c;
        size_t   n = letter_next(self->u.s + i, self->u.s + self->n, &c);
        if (c == '\t') {
            int64_t gap = size > 0 ? size - column % size : 0;
            jtext_repeat(&t, " ", 1, gap > (int64_t)JINJA_MAX_BYTES ? JINJA_MAX_BYTES + 1 : (size_t)gap);
            column += gap;
        } else {
            jtext_add(&t, self->u.s + i, n);
            column = c == '\n' || c == '\r' ? 0 : column + 1;
        }
        i += n;
    }
    if (!jtext_close(&t, out)) return false;
    out->flags |= self->flags & J_SAFE;
    return true;
}

static bool jstr_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out);
static bool jstr_format_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out);

/* ---- Tests of strings ---- */

typedef bool (*letter_test)(uint32_t c);

/* Does every character pass, and is there one? */
static bool jstr_all(jinja *j, const jvalue *self, letter_test test, jvalue *out) {
    bool all = self->n != 0;
    for (size_t i = 0; i < self->n && all;) {
        uint32_t c;
        i += letter_next(self->u.s + i, self->u.s + self->n, &c);
        all = test(c);
    }
    *out = jv_bool(all);
    return jinja_step(j, self->n >> 2);
}

static bool letter_is_ascii(uint32_t c) { return c < 0x80; }

static bool jstr_isspace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_space, out);
}

static bool jstr_isprintable(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jstr_all(j, self, letter_is_printable, out)) return false;
    if (!self->n) *out = jv_bool(true);
    return true;
}

static bool jstr_isascii(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    if (!jstr_all(j, self, letter_is_ascii, out)) return false;
    if (!self->n) *out = jv_bool(true);
    return true;
}

static bool jstr_isalpha(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_alpha, out);
}

static bool jstr_isdigit(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_digit, out);
}

static bool jstr_isalnum(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_all(j, self, letter_is_alnum, out);
}

static bool jstr_is_case(jinja *j, const jvalue *self, bool upper, jvalue *out) {
    bool any = false, other = false;
    for (size_t i = 0; i < self->n;) {
        uint32_t c;
        i += letter_next(self->u.s + i, self->u.s + self->n, &c);
        any   = any || (upper ? letter_is_upper(c) : letter_is_lower(c));
        other = other || (upper ? letter_is_lower(c) : letter_is_upper(c));
    }
    *out = jv_bool(any && !other);
    return jinja_step(j, self->n >> 1);
}

static bool jstr_isupper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_is_case(j, self, true, out);
}

static bool jstr_islower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return jstr_is_case(j, self, false, out);
}

static const jnative str_methods[] = {
    {"capitalize", "", 0, jstr_capitalize},
    {"casefold", "", 0, NULL},
    {"center", "width fillchar", 1, jstr_center},
    {"count", "sub start end", 1, jstr_count},
    {"encode", "encoding errors", 0, NULL},
    {"endswith", "suffix start end", 1, jstr_endswith},
    {"expandtabs", "tabsize", 0, jstr_expandtabs},
    {"find", "sub start end", 1, jstr_find},
    {"format", NULL, 0, jstr_format},
    {"format_map", "mapping", 1, jstr_format_map},
    {"index", "sub start end", 1, jstr_index},
    {"isalnum", "", 0, jstr_isalnum},
    {"isalpha", "", 0, jstr_isalpha},
    {"isascii", "", 0, jstr_isascii},
    {"isdecimal", "", 0, jstr_isdigit},
    {"isdigit", "", 0, jstr_isdigit},
    {"isidentifier", "", 0, NULL},
    {"islower", "", 0, jstr_islower},
    {"isnumeric", "", 0, jstr_isdigit},
    {"isprintable", "", 0, jstr_isprintable},
    {"isspace", "", 0, jstr_isspace},
    {"istitle", "", 0, NULL},
    {"isupper", "", 0, jstr_isupper},
    {"join", "iterable", 1, jstr_join},
    {"ljust", "width fillchar", 1, jstr_ljust},
    {"lower", "", 0, jstr_lower},
    {"lstrip", "chars", 0, jstr_lstrip},
    {"maketrans", NULL, 0, NULL},
    {"partition", "sep", 1, jstr_partition},
    {"removeprefix", "prefix", 1, jstr_removeprefix},
    {"removesuffix", "suffix", 1, jstr_removesuffix},
    {"replace", "old new count", 2, jstr_replace},
    {"rfind", "sub start end", 1, jstr_rfind},
    {"rindex", "sub start end", 1, jstr_rindex},
    {"rjust", "width fillchar", 1, jstr_rjust},
    {"rpartition", "sep", 1, jstr_rpartition},
    {"rsplit", "sep maxsplit", 0, jstr_rsplit},
    {"rstrip", "chars", 0, jstr_rstrip},
    {"split", "sep maxsplit", 0, jstr_split},
    {"splitlines", "keepends", 0, jstr_splitlines},
    {"startswith", "prefix start end", 1, jstr_startswith},
    {"strip", "chars", 0, jstr_strip},
    {"swapcase", "", 0, jstr_swapcase},
    {"title", "", 0, jstr_title},
    {"translate", "table", 1, NULL},
    {"upper", "", 0, jstr_upper},
    {"zfill", "width", 1, jstr_zfill},
};

/* ---- Methods of the other types ---- */

static bool dict_get(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jv_hashable(&a->given[0])) return jinja_fail_type(j, "a key", &a->given[0]);
    const jvalue *value = jdict_get(j, self->u.dict, &a->given[0]);
    *out                = value ? *value : jv_given(&a->given[1]) ? a->given[1] : jv_none();
    return j->failed == NOVA_OK;
}

static bool dict_items(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_ITEMS);
    return true;
}

static bool dict_keys(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_KEYS);
    return true;
}

static bool dict_values(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = jv_view(self->u.dict, JV_VALUES);
    return true;
}

/* Nothing can tell a copy of what never changes. */
static bool any_copy(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    *out = *self;
    return true;
}

static bool array_count(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jiter   it;
    jvalue  item;
    int     got;
    int64_t count = 0;
    if (!jiter_open(j, &it, self)) return false;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        int equal = jv_equal(j, &item, &a->given[0]);
        if (equal < 0) return false;
        count += equal;
    }
    *out = jv_int(count);
    return got == 0;
}

static bool array_index(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue  bounds[3] = {a->given[1], a->given[2], jv_make(J_MISSING)}, item;
    int64_t start, step, count;
    int     got;
    jiter   it;
    uint32_t n;
    if (!jv_length(self, &n) || !jslice_range(j, bounds, n, &start, &step, &count)) return false;
    if (!jiter_open(j, &it, self)) return false;
    for (int64_t i = 0; i < start + count && (got = jiter_next(j, &it, &item)) == 1; i++) {
        int equal = i < start ? 0 : jv_equal(j, &item, &a->given[0]);
        if (equal < 0) return false;
        *out = jv_int(i);
        if (equal) return true;
    }
    return jinja_fail(j, "index: the value is not in the %s", jv_type(self));
}

static const jnative dict_methods[] = {
    {"copy", "", 0, any_copy},          {"fromkeys", NULL, 0, NULL},
    {"get", "key default", 1, dict_get}, {"items", "", 0, dict_items},
    {"keys", "", 0, dict_keys},         {"values", "", 0, dict_values},
};

static const jnative list_methods[] = {
    {"copy", "", 0, any_copy},
    {"count", "value", 1, array_count},
    {"index", "value start stop", 1, array_index},
};

static const jnative tuple_methods[] = {
    {"count", "value", 1, array_count},
    {"index", "value start stop", 1, array_index},
};

static bool cycler_next(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jcycler *c = self->u.cycler;
    (void)j, (void)a;
    *out  = c->items.u.items[c->at];
    c->at = (c->at + 1) % c->items.n;
    return true;
}

static bool cycler_reset(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    self->u.cycler->at = 0;
    *out               = jv_none();
    return true;
}

static const jnative cycler_methods[] = {
    {"next", "", 0, cycler_next},
    {"reset", "", 0, cycler_reset},
};

/* ---- Access ---- */

/* What the sandbox refuses, because it would change a value that others see. */
static bool jinja_is_refused(jkind kind, str name) {
    static const char *const of_list[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const       *names     = kind == J_LIST ? of_list : of_dict;
    size_t n = kind == J_LIST ? COUNT_OF(of_list) : kind == J_DICT ? COUNT_OF(of_dict) : 0;
    for (size_t i = 0; i < n && name.n; i++)
        if (names[i][0] == name.p[0] && str_is(name, names[i])) return true;
    return false;
}

static const jnative *jinja_find_method(jkind kind, str name) {
    switch (kind) {
    case J_STRING: return jnative_find(str_methods, COUNT_OF(str_methods), name);
    case J_DICT: return jnative_find(dict_methods, COUNT_OF(dict_methods), name);
    case J_LIST: return jnative_find(list_methods, COUNT_OF(list_methods), name);
    case J_TUPLE:
    case J_RANGE: return jnative_find(tuple_methods, COUNT_OF(tuple_methods), name);
    case J_CYCLER: return jnative_find(cycler_methods, COUNT_OF(cycler_methods), name);
    default: return NULL;
    }
}

/* Attributes that are no methods. */
static bool jinja_find_field(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    str name = jv_str(key);
    if (object->kind == J_NAMESPACE) {
        const jvalue *value = jdict_get(j, object->u.space->attributes, key);
        if (value) *out = *value;
        return value != NULL;
    }
    if (object->kind == J_TUPLE && (object->flags & J_GROUP)) {
        bool grouper = str_is(name, "grouper");
        if (grouper || str_is(name, "list")) *out = object->u.items[grouper ? 0 : 1];
        return grouper || str_is(name, "list");
    }
    if (object->kind == J_RANGE) {
        const jrange *r = object->u.range;
        bool          start = str_is(name, "start"), stop = str_is(name, "stop");
        *out = jv_int(start ? r->start : stop ? r->stop : r->step);
        return start || stop || str_is(name, "step");
    }
    if (object->kind == J_CYCLER && str_is(name, "current")) {
        *out = object->u.cycler->items.u.items[object->u.cycler->at];
        return true;
    }
    return false;
}

/* The attribute alone: 1 found, 0 not, -1 failed. What the sandbox refuses is found, and undefined. */
static int jinja_own_attribute(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    str name = jv_str(key);
    if (!jinja_step(j, 2)) return -1;
    if (jinja_is_refused((jkind)object->kind, name)) {
        *out = jv_undefined(JU_SENTENCE, str_c("the sandbox forbids methods that change a list or dictionary"));
        return 1;
    }
    const jnative *native = jinja_find_method((jkind)object->kind, name);
    if (native) {
        jmethod *method = (jmethod *)jinja_alloc(j, sizeof *method);
        if (!method) return -1;
        method->native = native;
        method->self   = *object;
        *out           = jv_make(J_METHOD);
        out->u.method  = method;
        return 1;
    }
    return jinja_find_field(j, object, key, out) ? 1 : j->failed == NOVA_OK ? 0 : -1;
}

/* The element alone, likewise. */
static int jinja_own_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    if (object->kind == J_DICT) {
        const jvalue *value = jv_hashable(key) ? jdict_get(j, object->u.dict, key) : NULL;
        if (value) *out = *value;
        return value ? 1 : j->failed == NOVA_OK ? 0 : -1;
    }
    uint32_t n;
    bool     indexed = jv_is_array(object) || object->kind == J_STRING || object->kind == J_RANGE;
    if (!indexed || !jv_is_integer(key) || !jv_length(object, &n)) return 0;
    int64_t i = key->u.i < 0 ? key->u.i + n : key->u.i;
    if (i < 0 || i >= n) return 0;
    if (jv_is_array(object)) *out = object->u.items[i];
    else if (object->kind == J_RANGE) *out = jv_int(object->u.range->start + object->u.range->step * i);
    else if (!text_slice(j, object, i, 1, 1, out)) return -1;
    return 1;
}

static bool jinja_attribute(jinja *j, const jvalue *object, const jvalue *name, jvalue *out) {
    if (object->kind == J_UNDEFINED) return jinja_fail_undefined(j, object);
    int found = jinja_own_attribute(j, object, name, out);
    if (!found) found = jinja_own_element(j, object, name, out);
    if (!found) *out = jv_lacking(object, name);
    return found >= 0;
}

static bool jinja_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out) {
    if (object->kind == J_UNDEFINED) return jinja_fail_undefined(j, object);
    int found = jinja_own_element(j, object, key, out);
    if (!found && jv_is_string(key)) found = jinja_own_attribute(j, object, key, out);
    if (!found) *out = jv_lacking(object, key);
    return found >= 0;
}

static bool jinja_slice(jinja *j, const jvalue *object, const jvalue bounds[3], jvalue *out) {
    int64_t  start, step, count;
    uint32_t n;
    if (!jv_is_array(object) && object->kind != J_STRING && object->kind != J_RANGE)
        return jinja_fail_type(j, "a slice", object);
    if (!jv_length(object, &n) || !jslice_range(j, bounds, n, &start, &step, &count)) return false;
    if (object->kind == J_STRING) return text_slice(j, object, start, step, count, out);
    if (object->kind == J_RANGE) {
        const jrange *r     = object->u.range;
        jrange       *slice = (jrange *)jinja_alloc(j, sizeof *slice);
        if (!slice) return false;
        slice->start = count > 0 ? r->start + start * r->step : r->start;
        slice->step  = count > 1 ? r->step * step : 1;   /* or else it might overflow, and says nothing */
        slice->stop  = (int64_t)((uint64_t)slice->start + (uint64_t)slice->step * (uint64_t)count);
        slice->n     = (uint32_t)count;
        *out         = jv_make(J_RANGE);
        out->u.range = slice;
        return true;
    }
    if (step == 1) {   /* a view */
        *out = jv_items((jkind)object->kind, count ? object->u.items + start : NULL, (size_t)count);
        return true;
    }
    jlist list;
    jlist_open(&list, j);
    for (int64_t i = 0; i < count; i++)
        if (!jlist_add(&list, object->u.items[start + i * step])) return false;
    *out = jlist_close(&list, (jkind)object->kind);
    return true;
}

/* ---- Formatting ---- */

static bool jstr_format_reach(jinja *j, const jvalue *object, const jvalue *name, bool element, jvalue *out) {
    return element ? jinja_element(j, object, name, out) : jinja_attribute(j, object, name, out);
}

static bool jstr_format(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return format_fields(j, self, a, jstr_format_reach, out);
}

static bool jstr_format_map(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jargs named;
    if (a->given[0].kind != J_DICT) return jinja_fail_type(j, "format_map", &a->given[0]);
    memset(&named, 0, sizeof named);
    named.named   = a->given[0].u.dict->pairs;
    named.n_named = a->given[0].u.dict->n;
    return format_fields(j, self, &named, jstr_format_reach, out);
}
