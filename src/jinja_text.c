/* Strings in templates: see jinja_text.h. */
#include "jinja_text.h"

static jvalue text_part(const jvalue *s, size_t from, size_t to) {
    return jv_string(s->u.s + from, to - from, s->flags & (J_SAFE | J_MARKED));
}

static size_t text_offset(const jvalue *s, size_t characters) {
    size_t at = 0;
    for (; at < s->n; at++) {
        unsigned char b = (unsigned char)s->u.s[at];
        if ((b & 0xC0) == 0x80 || b == LETTER_MARK) continue;   /* within a character */
        if (characters-- == 0) break;
    }
    return at;
}

/* ---- Finding ---- */

/* The bytes from `at` on that are `what` when marks are left out on both sides; SIZE_MAX when they are not. */
static size_t text_match(const jvalue *in, size_t at, size_t to, const jvalue *what) {
    if (!((in->flags | what->flags) & J_MARKED)) {
        if (to - at < what->n) return SIZE_MAX;
        return what->n == 0 || memcmp(in->u.s + at, what->u.s, what->n) == 0 ? what->n : SIZE_MAX;
    }
    size_t i = at;
    for (size_t k = 0; k < what->n; k++) {
        if ((unsigned char)what->u.s[k] == LETTER_MARK) continue;
        while (i < to && (unsigned char)in->u.s[i] == LETTER_MARK) i++;
        if (i == to || in->u.s[i] != what->u.s[k]) return SIZE_MAX;
        i++;
    }
    while (i < to && what->n && (unsigned char)in->u.s[i] == LETTER_MARK) i++;   /* a mark stays with its character */
    return i - at;
}

/* What one try costs, in steps. */
static size_t text_try_cost(const jvalue *in, const jvalue *what) {
    return (what->n >> ((in->flags | what->flags) & J_MARKED ? 3 : 6)) + 1;
}

static int text_find(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at, size_t *n) {
    size_t cost = text_try_cost(in, what), i = from;
    while (i <= to) {
        if (what->n) {   /* marks never come first */
            const char *next = i < to ? (const char *)memchr(in->u.s + i, what->u.s[0], to - i) : NULL;
            size_t      skip = next ? (size_t)(next - in->u.s) - i : to - i;
            if (!jinja_step(j, skip >> 6)) return -1;
            if (!next) return 0;
            i += skip;
        }
        if (!jinja_step(j, cost)) return -1;
        *n  = text_match(in, i, to, what);
        *at = i;
        if (*n != SIZE_MAX) return 1;
        i++;
    }
    return 0;
}

static int text_find_last(jinja *j, const jvalue *in, size_t from, size_t to, const jvalue *what, size_t *at,
                          size_t *n) {
    size_t cost = text_try_cost(in, what);
    if (from > to) return 0;
    for (size_t i = to + 1; i-- > from;) {
        if (what->n && (i == to || in->u.s[i] != what->u.s[0])) {
            if ((i & 15) == 0 && !jinja_step(j, 1)) return -1;
            continue;
        }
        if (!jinja_step(j, cost)) return -1;
        *n  = text_match(in, i, to, what);
        *at = i;
        if (*n != SIZE_MAX) return 1;
    }
    return 0;
}

static size_t text_starts(const jvalue *s, const jvalue *what) { return text_match(s, 0, s->n, what); }

static size_t text_ends(const jvalue *s, const jvalue *what) {
    if (!((s->flags | what->flags) & J_MARKED)) {
        return s->n >= what->n && text_match(s, s->n - what->n, s->n, what) != SIZE_MAX ? what->n : SIZE_MAX;
    }
    size_t i = s->n, k = what->n;
    while (k > 0) {
        k--;
        if ((unsigned char)what->u.s[k] == LETTER_MARK) continue;
        while (i > 0 && (unsigned char)s->u.s[i - 1] == LETTER_MARK) i--;
        if (i == 0 || s->u.s[i - 1] != what->u.s[k]) return SIZE_MAX;
        i--;
    }
    return s->n - i;
}

/* ---- Stripping ---- */

static bool text_is_stripped(uint32_t c, const jvalue *characters) {
    if (!characters) return letter_is_space(c);
    for (size_t i = 0; i < characters->n;) {
        uint32_t other;
        i += letter_next(characters->u.s + i, characters->u.s + characters->n, &other);
        if (c == other) return true;
    }
    return false;
}

static bool text_strip(jinja *j, const jvalue *s, const jvalue *characters, int sides, jvalue *out) {
    const char *p = s->u.s, *end = p + s->n;
    size_t      cost = characters ? 1 + (characters->n >> 3) : 1, tries = 0;
    uint32_t    c;
    while ((sides & TEXT_LEFT) && p < end) {
        size_t n = letter_next(p, end, &c);
        if (!text_is_stripped(c, characters)) break;
        p += n;
        if ((++tries & 1) == 0 && !jinja_step(j, cost)) return false;
    }
    while ((sides & TEXT_RIGHT) && p < end) {
        size_t n = letter_last(p, end, &c);
        if (!text_is_stripped(c, characters)) break;
        end -= n;
        if ((++tries & 1) == 0 && !jinja_step(j, cost)) return false;
    }
    *out = text_part(s, (size_t)(p - s->u.s), (size_t)(end - s->u.s));
    return true;
}

/* ---- Splitting ---- */

static bool text_split_blanks(jinja *j, const jvalue *s, int64_t most, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    jvalue rest;
    if (!text_strip(j, s, NULL, TEXT_LEFT, &rest) || !jinja_step(j, s->n >> 4)) return false;
    while (rest.n) {
        size_t   end = 0;
        uint32_t c;
        if (most >= 0 && list.n >= (uint64_t)most) {   /* the rest, with its blanks behind */
            if (!jlist_add(&list, rest)) return false;
            break;
        }
        while (end < rest.n) {
            size_t n = letter_next(rest.u.s + end, rest.u.s + rest.n, &c);
            if (letter_is_space(c)) break;
            end += n;
        }
        if (!jlist_add(&list, text_part(&rest, 0, end))) return false;
        jvalue behind = text_part(&rest, end, rest.n);
        if (!text_strip(j, &behind, NULL, TEXT_LEFT, &rest)) return false;
    }
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool text_split(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out) {
    if (!by) return text_split_blanks(j, s, most, out);
    if (!by->n) return jinja_fail(j, "split: the separator is empty");
    jlist  list;
    size_t from = 0, at, n;
    int    found = 0;
    jlist_open(&list, j);
    while ((most < 0 || list.n < (uint64_t)most) && (found = text_find(j, s, from, s->n, by, &at, &n)) == 1) {
        if (!jlist_add(&list, text_part(s, from, at))) return false;
        from = at + n;
    }
    if (found < 0 || !jlist_add(&list, text_part(s, from, s->n))) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

static void jlist_reverse(jlist *list) {
    for (uint32_t i = 0; i + 1 < list->n - i; i++) {
        jvalue swap                 = list->items[i];
        list->items[i]              = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = swap;
    }
}

static bool text_split_right_blanks(jinja *j, const jvalue *s, int64_t most, jvalue *out) {
    jlist list;
    jlist_open(&list, j);
    jvalue rest;
    if (!text_strip(j, s, NULL, TEXT_RIGHT, &rest) || !jinja_step(j, s->n >> 4)) return false;
    while (rest.n) {
        size_t   start = rest.n;
        uint32_t c;
        if (list.n >= (uint64_t)most) {   /* the rest, with its blanks in front */
            if (!jlist_add(&list, rest)) return false;
            break;
        }
        while (start > 0) {
            size_t n = letter_last(rest.u.s, rest.u.s + start, &c);
            if (letter_is_space(c)) break;
            start -= n;
        }
        if (!jlist_add(&list, text_part(&rest, start, rest.n))) return false;
        jvalue before = text_part(&rest, 0, start);
        if (!text_strip(j, &before, NULL, TEXT_RIGHT, &rest)) return false;
    }
    jlist_reverse(&list);
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool text_split_right(jinja *j, const jvalue *s, const jvalue *by, int64_t most, jvalue *out) {
    if (most < 0) return text_split(j, s, by, most, out);
    if (!by) return text_split_right_blanks(j, s, most, out);
    if (!by->n) return jinja_fail(j, "rsplit: the separator is empty");
    jlist  list;
    size_t to = s->n, at, n;
    int    found = 0;
    jlist_open(&list, j);
    while (list.n < (uint64_t)most && (found = text_find_last(j, s, 0, to, by, &at, &n)) == 1) {
        if (!jlist_add(&list, text_part(s, at + n, to))) return false;
        to = at;
    }
    if (found < 0 || !jlist_add(&list, text_part(s, 0, to))) return false;
    jlist_reverse(&list);
    *out = jlist_close(&list, J_LIST);
    return true;
}

static bool letter_is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static bool text_lines(jinja *j, const jvalue *s, bool keep_ends, jvalue *out) {
    jlist  list;
    size_t start = 0;
    jlist_open(&list, j);
    if (!jinja_step(j, s->n >> 3)) return false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        size_t   n = letter_next(s->u.s + i, s->u.s + s->n, &c);
        i += n;
        if (!letter_is_line_end(c)) continue;
        size_t end = i - n;
        if (c == '\r' && i < s->n && s->u.s[i] == '\n') i++;
        if (!jlist_add(&list, text_part(s, start, keep_ends ? i : end))) return false;
        start = i;
    }
    if (start < s->n && !jlist_add(&list, text_part(s, start, s->n))) return false;
    *out = jlist_close(&list, J_LIST);
    return true;
}

/* ---- Making new strings ---- */

static bool text_close(jtext *t, const jvalue *like, jvalue *out) {
    if (!jtext_close(t, out)) return false;
    out->flags |= like->flags & J_SAFE;
    return true;
}

/* What a template puts into the conversation's text must not make a control token with what follows ("&lt;" to "<"): a
 * mark at its end. A whole token stays one. */
static bool text_ends_with_mark(const jinja *j, const jvalue *s, const jvalue *to) {
    for (size_t i = 0; (s->flags & J_MARKED) && i < to->n; i++)
        if ((unsigned char)to->u.s[i] < sizeof j->begins && j->begins[(unsigned char)to->u.s[i]]) return true;
    return false;
}

static bool text_replace(jinja *j, const jvalue *s, const jvalue *from, const jvalue *to, int64_t most, jvalue *out) {
    jtext  t;
    size_t start = 0, search = 0, at = 0, n = 0;
    int    found = 0;
    bool   mark  = text_ends_with_mark(j, s, to);
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    for (int64_t count = 0; most < 0 || count < most; count++) {
        found = text_find(j, s, search, s->n, from, &at, &n);
        if (found != 1) break;
        jtext_add(&t, s->u.s + start, at - start);
        if (!jtext_add_string(&t, to) || (mark && !jtext_add(&t, "\xFF", 1))) return false;
        start = at + n;
        if (from->n) {
            search = start;
        } else {   /* an empty string is found between all characters */
            uint32_t c;
            if (at >= s->n) break;
            search = at + letter_next(s->u.s + at, s->u.s + s->n, &c);
        }
    }
    if (found < 0) return false;
    if (!t.n && start == 0) {   /* nothing was found: the string itself */
        *out = text_part(s, 0, s->n);
        return true;
    }
    jtext_add(&t, s->u.s + start, s->n - start);
    return text_close(&t, s, out);
}

/* Appends the character of `n` bytes at p in another case, its marks behind it. */
static void jtext_add_converted(jtext *t, const char *p, size_t n, letter_case to, uint32_t c) {
    uint32_t other[3], count = letter_convert(to, c, other);
    if (count == 1 && other[0] == c) {
        jtext_add(t, p, n);
        return;
    }
    for (uint32_t i = 0; i < count; i++) jtext_add_char(t, other[i]);
    if (memchr(p, (int)LETTER_MARK, n)) jtext_add(t, "\xFF", 1);
}

static bool letter_has_case_at(const char *p, size_t n) {
    uint32_t c;
    letter_next(p, p + n, &c);
    return letter_is_lower(c) || letter_is_upper(c) || letter_is_mixed(c);
}

/* A capital sigma behind a letter and before none is a final one. Source: SpecialCasing.txt */
static bool text_is_final_sigma(const jvalue *s, size_t at, size_t n) {
    uint32_t before = 0, behind = 0;
    if (at > 0) letter_last(s->u.s, s->u.s + at, &before);
    if (at + n < s->n) letter_next(s->u.s + at + n, s->u.s + s->n, &behind);
    return (letter_is_lower(before) || letter_is_upper(before)) && !letter_is_lower(behind) && !letter_is_upper(behind);
}

/* The character at byte `at` in another case; the bytes it takes. */
static size_t jtext_add_cased(jtext *t, const jvalue *s, size_t at, letter_case to) {
    uint32_t c;
    size_t   n = letter_next(s->u.s + at, s->u.s + s->n, &c);
    if (c == 0x3A3 && to == LETTER_LOWER && text_is_final_sigma(s, at, n)) jtext_add_char(t, 0x3C2);
    else jtext_add_converted(t, s->u.s + at, n, to, c);
    return n;
}

static bool text_convert(jinja *j, const jvalue *s, letter_case to, jvalue *out) {
    jtext t;
    bool  inside = false;   /* of a word: behind a character with case */
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (!jinja_step(j, s->n)) return false;
    for (size_t i = 0; i < s->n;) {
        size_t n = jtext_add_cased(&t, s, i, to == LETTER_TITLE && inside ? LETTER_LOWER : to);
        inside   = to == LETTER_TITLE && letter_has_case_at(s->u.s + i, n);
        i += n;
    }
    return text_close(&t, s, out);
}

static bool text_swap_case(jinja *j, const jvalue *s, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (!jinja_step(j, s->n)) return false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c;
        letter_next(s->u.s + i, s->u.s + s->n, &c);
        letter_case to = letter_is_lower(c) ? LETTER_UPPER : letter_is_upper(c) ? LETTER_LOWER : LETTER_TITLE;
        i += jtext_add_cased(&t, s, i, to);   /* a title case is its own, and the rest has no case */
    }
    return text_close(&t, s, out);
}

static bool text_capitalize(jinja *j, const jvalue *s, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    if (s->n && jinja_step(j, s->n)) {
        size_t i = jtext_add_cased(&t, s, 0, LETTER_TITLE);
        while (i < s->n) i += jtext_add_cased(&t, s, i, LETTER_LOWER);
    }
    return text_close(&t, s, out);
}

/* As many as anybody can have: what is beyond the memory's end fails all the same. */
static size_t text_times(int64_t n) {
    return n > (int64_t)JINJA_MAX_BYTES ? JINJA_MAX_BYTES + 1 : n > 0 ? (size_t)n : 0;
}

static bool text_pad(jinja *j, const jvalue *s, int64_t left, int64_t right, uint32_t fill, jvalue *out) {
    jtext t;
    char  utf8[4];
    jtext_open(&t, j);
    size_t n = letter_put(utf8, fill);
    jtext_repeat(&t, utf8, n, text_times(left));
    jtext_add_string(&t, s);
    jtext_repeat(&t, utf8, n, text_times(right));
    return text_close(&t, s, out);
}

static bool text_repeat(jinja *j, const jvalue *s, int64_t times, jvalue *out) {
    jtext t;
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    jtext_repeat(&t, s->u.s, s->n, text_times(times));
    return text_close(&t, s, out);
}

static bool text_escape(jinja *j, const jvalue *v, jvalue *out) {
    static const char *const entities[] = {"&&amp;", "<&lt;", ">&gt;", "'&#39;", "\"&#34;"};
    jvalue s;
    if (!jv_soft_string(j, v, &s)) return false;
    *out = s;
    if (s.flags & J_SAFE) return true;
    jtext  t;
    size_t start = 0;
    jtext_open(&t, j);
    t.flags = s.flags & J_MARKED;
    if (!jinja_step(j, s.n >> 4)) return false;
    for (size_t i = 0; i < s.n; i++) {
        size_t k = 0;
        while (k < COUNT_OF(entities) && entities[k][0] != s.u.s[i]) k++;
        if (k == COUNT_OF(entities)) continue;
        jtext_add(&t, s.u.s + start, i - start);
        jtext_add_c(&t, entities[k] + 1);
        start = i + 1;
    }
    jtext_add(&t, s.u.s + start, s.n - start);
    if (!jtext_close(&t, out)) return false;
    out->flags |= J_SAFE;
    return true;
}

/* ---- Slices ---- */

/* An end of a slice: counted from the end when negative, then held within [low, high]. */
static bool jslice_bound(jinja *j, const jvalue *v, int64_t fallback, int64_t length, int64_t low, int64_t high,
                         int64_t *out) {
    *out = fallback;
    if (!jv_given(v) || v->kind == J_NONE) return true;
    if (!jv_is_integer(v)) return jinja_fail_type(j, "a slice's end", v);
    int64_t i = v->u.i;
    if (i < 0) i = i < -length ? low : i + length;
    *out = i < low ? low : i > high ? high : i;
    return true;
}

static bool jslice_range(jinja *j, const jvalue bounds[3], int64_t length, int64_t *start, int64_t *step,
                         int64_t *count) {
    int64_t stop;
    *step = 1;
    if (jv_given(&bounds[2]) && bounds[2].kind != J_NONE) {
        if (!jv_is_integer(&bounds[2])) return jinja_fail_type(j, "a slice's step", &bounds[2]);
        *step = bounds[2].u.i;
    }
    if (*step == 0) return jinja_fail(j, "a slice's step is 0");
    if (*step > INT32_MAX) *step = INT32_MAX;   /* as good as endless, and nothing overflows */
    if (*step < -INT32_MAX) *step = -INT32_MAX;
    bool    back = *step < 0;
    int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
    if (!jslice_bound(j, &bounds[0], back ? high : low, length, low, high, start)) return false;
    if (!jslice_bound(j, &bounds[1], back ? low : high, length, low, high, &stop)) return false;
    int64_t way = back ? *start - stop : stop - *start, size = back ? -*step : *step;
    *count      = way > 0 ? (way - 1) / size + 1 : 0;
    return true;
}

static bool text_slice(jinja *j, const jvalue *s, int64_t start, int64_t step, int64_t count, jvalue *out) {
    *out = text_part(s, 0, 0);
    if (count <= 0) return true;
    if (!jinja_step(j, s->n >> 3)) return false;
    if (step == 1) {
        size_t from = text_offset(s, (size_t)start);
        jvalue rest = text_part(s, from, s->n);
        *out        = text_part(&rest, 0, text_offset(&rest, (size_t)count));
        return true;
    }
    jtext  t;
    size_t at = step < 0 ? text_offset(s, (size_t)start + 1) : text_offset(s, (size_t)start);
    jtext_open(&t, j);
    t.flags = s->flags & J_MARKED;
    for (int64_t i = 0; i < count && jinja_step(j, 1); i++) {
        uint32_t c;
        if (step > 0) {
            jtext_add(&t, s->u.s + at, letter_next(s->u.s + at, s->u.s + s->n, &c));
            for (int64_t k = 0; k < step && at < s->n; k++) at += letter_next(s->u.s + at, s->u.s + s->n, &c);
        } else {
            size_t n = letter_last(s->u.s, s->u.s + at, &c);
            jtext_add(&t, s->u.s + at - n, n);
            for (int64_t k = 0; k < -step && at > 0; k++) at -= letter_last(s->u.s, s->u.s + at, &c);
        }
    }
    return text_close(&t, s, out);
}
