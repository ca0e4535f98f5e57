/* Templates' ground: see jinja_value.h. */
#include "jinja_value.h"

/* A test may define this to see that nothing reads a region's memory behind its end. */
#ifndef JINJA_SCRUB
#define JINJA_SCRUB(p, n) (void)0
#endif

/* ---- One rendering ---- */

static void *jinja_counted_alloc(void *user, void *pointer, size_t old_size, size_t new_size) {
    jinja *j = (jinja *)user;
    if (new_size > old_size && new_size - old_size > JINJA_MAX_BYTES - j->bytes) {
        j->over = true;
        return NULL;
    }
    void *p = j->h->alloc(j->h->alloc_user, pointer, old_size, new_size);
    if (p || new_size == 0) j->bytes = j->bytes - old_size + new_size;
    return p;
}

static void jinja_open(jinja *j, const host *h, nova_error *error) {
    memset(j, 0, sizeof *j);
    j->h       = h;
    j->counted = host_init(jinja_counted_alloc, j, h->log, h->log_user);
    j->error   = error;
    j->steps   = JINJA_MAX_STEPS;
    j->touched = UINT64_MAX;
}

static bool jinja_fail(jinja *j, const char *format, ...) {
    if (j->failed != NOVA_OK) return false;
    char text[sizeof ((nova_error *)0)->message];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *to = text;
    for (const char *from = text; *from; from++)
        if ((unsigned char)*from != LETTER_MARK) *to++ = *from;
    *to = 0;
    if (j->line) j->failed = fail(j->error, NOVA_ERROR_TEMPLATE, "template line %u: %s", j->line, text);
    else j->failed = fail(j->error, NOVA_ERROR_TEMPLATE, "the conversation %s", text);
    return false;
}

static bool jinja_fail_memory(jinja *j) {
    if (j->over) return jinja_fail(j, "needs more than %zu MiB of memory", JINJA_MAX_BYTES >> 20);
    if (j->failed == NOVA_OK) j->failed = fail(j->error, NOVA_ERROR_MEMORY, "out of memory in a chat template");
    return false;
}

static bool jinja_fail_steps(jinja *j) {
    j->steps = 0;
    return jinja_fail(j, "takes more than %d steps: an endless loop?", JINJA_MAX_STEPS);
}

NOVA_INLINE bool jinja_step(jinja *j, size_t n) {
    if (n > j->steps) return jinja_fail_steps(j);
    j->steps -= (uint32_t)n;
    return true;
}

static bool jinja_enter(jinja *j) {
    if (j->depth >= JINJA_MAX_DEPTH) return jinja_fail(j, "recursion is too deep");
    j->depth++;
    return true;
}

/* ---- Memory ---- */

struct jinja_block {
    jinja_block *older;
    size_t       size;   /* of the whole block */
};

#define JINJA_BLOCK ((size_t)32 << 10)

static void jinja_drop_blocks(jinja *j, jinja_block *until) {
    while (j->blocks != until) {
        jinja_block *older = j->blocks->older;
        mem_free(&j->counted, j->blocks, j->blocks->size);
        j->blocks = older;
    }
}

static void jinja_close(jinja *j) {
    jinja_drop_blocks(j, NULL);
    j->next = j->end = NULL;
}

/* `size` bytes, not aligned, so that strings can grow where they end. */
static char *jinja_take(jinja *j, size_t size, size_t align) {
    size_t pad = (size_t)-(intptr_t)j->next & (align - 1);
    if (size > JINJA_MAX_BYTES) {
        j->over = true;
        jinja_fail_memory(j);
        return NULL;
    }
    if ((size_t)(j->end - j->next) < pad + size) {
        size_t       whole = size_max(JINJA_BLOCK, sizeof(jinja_block) + size);
        jinja_block *block = (jinja_block *)mem_alloc(&j->counted, whole);
        if (!block) {
            jinja_fail_memory(j);
            return NULL;
        }
        block->older = j->blocks;
        block->size  = whole;
        j->blocks    = block;
        j->next      = (char *)(block + 1);
        j->end       = (char *)block + whole;
        pad          = 0;
    }
    char *p = j->next + pad;
    j->next = p + size;
    return p;
}

static void *jinja_alloc(jinja *j, size_t size) { return jinja_take(j, size, 8); }

/* Can what ends at `end` grow by `size` in place? Then it has. */
static bool jinja_extend(jinja *j, const char *end, size_t size) {
    if (end != j->next || (size_t)(j->end - j->next) < size) return false;
    j->next += size;
    return true;
}

static void *jinja_grow(jinja *j, void *array, uint32_t n, uint32_t *cap, size_t element) {
    if (n < *cap) return array;
    uint32_t more = *cap ? *cap : 4;   /* cannot overflow: the memory ends long before */
    if (*cap && jinja_extend(j, (const char *)array + *cap * element, more * element)) {
        *cap += more;
        return array;
    }
    void *p = jinja_alloc(j, (*cap + more) * element);
    if (!p) return NULL;
    if (n) memcpy(p, array, n * element);
    *cap += more;
    return p;
}

static uint64_t jinja_serial(jinja *j) { return ++j->serial; }

static void jinja_region_open(jinja *j, jinja_region *r) {
    r->blocks  = j->blocks;
    r->next    = j->next;
    r->end     = j->end;
    r->serial  = jinja_serial(j);
    r->touched = j->touched;
    j->touched = UINT64_MAX;
}

static void jinja_region_close(jinja *j, const jinja_region *r) {
    bool alive = j->touched < r->serial;
    if (r->touched < j->touched) j->touched = r->touched;
    if (alive) return;
    if (r->blocks) JINJA_SCRUB(r->next, (size_t)((j->blocks == r->blocks ? j->next : r->end) - r->next));
    jinja_drop_blocks(j, r->blocks);
    j->next = r->next;
    j->end  = r->end;
    if (j->room_serial > r->serial) j->room = j->room_end = NULL;
}

/* ---- Values ---- */

static jvalue jv_string(const char *s, size_t n, uint32_t flags) {
    jvalue v = jv_make(J_STRING);
    v.u.s    = s;
    v.n      = (uint32_t)n;
    v.flags  = (uint8_t)flags;
    return v;
}

static jvalue jv_c(const char *z) { return jv_string(z, strlen(z), 0); }

static jvalue jv_items(jkind kind, const jvalue *items, size_t n) {
    jvalue v  = jv_make(kind);
    v.u.items = items;
    v.n       = (uint32_t)n;
    return v;
}

static jvalue jv_undefined(jundefined why, str name) {
    jvalue v = jv_make(J_UNDEFINED);
    v.sub    = (uint8_t)why;
    v.u.s    = name.p;
    v.n      = (uint32_t)name.n;
    return v;
}

static jvalue jv_lacking(const jvalue *object, const jvalue *name) {
    jvalue v = jv_undefined(JU_ELEMENT, str_c(""));
    if (jv_is_string(name)) v = jv_undefined(JU_ATTRIBUTE, jv_str(name));
    v.of = object->kind;
    return v;
}

static const char *const jkind_names[J_KINDS] = {
    "missing", "Undefined", "NoneType", "bool", "int", "int", "float", "str", "list", "tuple", "dict", "range",
    "dict view", "generator", "Namespace", "Macro", "method", "function", "LoopContext", "Cycler", "Joiner",
};

static const char *jv_type(const jvalue *v) { return jkind_names[v->kind]; }

static bool jinja_fail_undefined(jinja *j, const jvalue *v) {
    str name = jv_str(v);
    if (v->sub == JU_SENTENCE) return jinja_fail(j, "%.*s", STR_ARG(name));
    const char *of = jkind_names[v->of];
    if (v->sub == JU_ATTRIBUTE) return jinja_fail(j, "a '%s' has no attribute '%.*s'", of, STR_ARG(name));
    if (v->sub == JU_ELEMENT) return jinja_fail(j, "a '%s' has no such element", of);
    return jinja_fail(j, "'%.*s' is undefined", STR_ARG(name));
}

static bool jinja_fail_type(jinja *j, const char *what, const jvalue *v) {
    if (v->kind == J_UNDEFINED) return jinja_fail_undefined(j, v);
    return jinja_fail(j, "%s: not for a '%s'", what, jv_type(v));
}

static bool jv_length(const jvalue *v, uint32_t *n) {
    switch (v->kind) {
    case J_UNDEFINED: *n = 0; return true;
    case J_STRING: *n = (uint32_t)letter_count(v->u.s, v->n); return true;
    case J_LIST:
    case J_TUPLE: *n = v->n; return true;
    case J_DICT:
    case J_VIEW: *n = v->u.dict->n; return true;
    case J_RANGE: *n = v->u.range->n; return true;
    default: return false;
    }
}

static bool jv_true(const jvalue *v) {
    switch (v->kind) {
    case J_MISSING:
    case J_UNDEFINED:
    case J_NONE: return false;
    case J_BOOL:
    case J_INT: return v->u.i != 0;
    case J_FLOAT: return v->u.f != 0;
    case J_STRING: return v->n != 0;
    default: break;
    }
    uint32_t n;
    return !jv_length(v, &n) || n != 0;
}

/* ---- Equality ---- */

/* The sign of i - f, exactly; 2 for NaN. */
static int jv_compare_mixed(int64_t i, double f) {
    if (f != f) return 2;
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

static int jv_compare_numbers(const jvalue *a, const jvalue *b) {
    if (a->kind == J_FLOAT && b->kind == J_FLOAT) {
        if (a->u.f != a->u.f || b->u.f != b->u.f) return 2;
        return a->u.f < b->u.f ? -1 : a->u.f > b->u.f;
    }
    if (b->kind == J_FLOAT) return jv_compare_mixed(a->u.i, b->u.f);
    if (a->kind == J_FLOAT) {
        int sign = jv_compare_mixed(b->u.i, a->u.f);
        return sign == 2 ? 2 : -sign;
    }
    return a->u.i < b->u.i ? -1 : a->u.i > b->u.i;
}

static int jv_equal_arrays(jinja *j, const jvalue *a, const jvalue *b, uint32_t n) {
    if (!jinja_enter(j)) return -1;
    int equal = 1;
    for (uint32_t i = 0; i < n && equal == 1; i++) equal = jv_equal(j, &a[i], &b[i]);
    jinja_leave(j);
    return equal;
}

static int jv_equal_dicts(jinja *j, const jdict *a, const jdict *b, bool values) {
    if (a->n != b->n) return 0;
    if (!jinja_enter(j)) return -1;
    int equal = 1;
    for (uint32_t i = 0; i < a->n && equal == 1; i++) {
        const jvalue *other = jdict_get(j, b, &a->pairs[i].key);
        if (!other) equal = j->failed == NOVA_OK ? 0 : -1;
        else if (values) equal = jv_equal(j, &a->pairs[i].value, other);
    }
    jinja_leave(j);
    return equal;
}

static int jv_equal(jinja *j, const jvalue *a, const jvalue *b) {
    if (!jinja_step(j, 1)) return -1;
    if (jv_is_number(a) && jv_is_number(b)) return jv_compare_numbers(a, b) == 0;
    if (a->kind != b->kind) return 0;
    switch (a->kind) {
    case J_UNDEFINED:
    case J_NONE: return 1;
    case J_BIG:
    case J_STRING: return jinja_step(j, size_min(a->n, b->n) >> 6) ? jstring_equal(a, b) : -1;
    case J_LIST:
    case J_TUPLE: return a->n == b->n ? jv_equal_arrays(j, a->u.items, b->u.items, a->n) : 0;
    case J_DICT: return a->u.dict == b->u.dict ? 1 : jv_equal_dicts(j, a->u.dict, b->u.dict, true);
    case J_VIEW:
        if (a->sub != b->sub || a->sub == JV_VALUES) return 0;
        return jv_equal_dicts(j, a->u.dict, b->u.dict, a->sub == JV_ITEMS);
    case J_RANGE: {
        const jrange *x = a->u.range, *y = b->u.range;
        return x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
    }
    default: return a->u.object == b->u.object;
    }
}

/* ---- Order ---- */

static bool jv_compare_arrays(jinja *j, const jvalue *a, const jvalue *b, int *sign) {
    if (!jinja_enter(j)) return false;
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;
    int      equal = 1;
    while (i < n && (equal = jv_equal(j, &a->u.items[i], &b->u.items[i])) == 1) i++;
    bool ok = equal >= 0;
    if (ok && i < n) ok = jv_compare(j, &a->u.items[i], &b->u.items[i], sign);
    else if (ok) *sign = a->n < b->n ? -1 : a->n > b->n;
    jinja_leave(j);
    return ok;
}

static bool jv_compare(jinja *j, const jvalue *a, const jvalue *b, int *sign) {
    if (!jinja_step(j, 1)) return false;
    if (jv_is_number(a) && jv_is_number(b)) {
        *sign = jv_compare_numbers(a, b);
        return true;
    }
    if (jv_is_string(a) && jv_is_string(b)) {
        *sign = jstring_compare(a, b);
        return jinja_step(j, size_min(a->n, b->n) >> 6);
    }
    if (jv_is_array(a) && a->kind == b->kind) return jv_compare_arrays(j, a, b, sign);
    if (a->kind == J_UNDEFINED) return jinja_fail_undefined(j, a);
    if (b->kind == J_UNDEFINED) return jinja_fail_undefined(j, b);
    return jinja_fail(j, "a '%s' and a '%s' have no order", jv_type(a), jv_type(b));
}

/* Stable: the runs of 1, 2, 4, ... pairs are merged until one is left. */
static bool jpair_sort(jinja *j, jpair *pairs, uint32_t n, bool reverse) {
    jpair *from = pairs, *to = n > 1 ? (jpair *)jinja_alloc(j, n * sizeof *to) : pairs;
    if (n > 1 && !to) return false;
    for (uint32_t run = 1; run < n; run *= 2) {
        for (uint32_t start = 0; start < n; start += 2 * run) {
            uint32_t a = start, a_end = n - start < run ? n : start + run;
            uint32_t b = a_end, b_end = n - a_end < run ? n : a_end + run;
            for (uint32_t i = start; i < b_end; i++) {
                int sign = 0;
                if (a < a_end && b < b_end && !jv_compare(j, &from[b].key, &from[a].key, &sign)) return false;
                bool take_b = a == a_end || (b < b_end && sign == (reverse ? 1 : -1));
                to[i]       = from[take_b ? b++ : a++];
            }
        }
        jpair *swap = from;
        from        = to;
        to          = swap;
    }
    if (from != pairs) memcpy(pairs, from, n * sizeof *pairs);
    return true;
}

/* ---- Strings ---- */

static bool jstring_equal(const jvalue *a, const jvalue *b) {
    if (!((a->flags | b->flags) & J_MARKED)) return str_eq(jv_str(a), jv_str(b));
    return jstring_compare(a, b) == 0;
}

/* UTF-8 keeps the order of code points. */
static int jstring_compare(const jvalue *a, const jvalue *b) {
    size_t n = size_min(a->n, b->n);
    if (!((a->flags | b->flags) & J_MARKED)) {
        int sign = n ? memcmp(a->u.s, b->u.s, n) : 0;
        return sign ? (sign < 0 ? -1 : 1) : a->n < b->n ? -1 : a->n > b->n;
    }
    const unsigned char *p = (const unsigned char *)a->u.s, *p_end = p + a->n;
    const unsigned char *q = (const unsigned char *)b->u.s, *q_end = q + b->n;
    for (;; p++, q++) {
        while (p < p_end && *p == LETTER_MARK) p++;
        while (q < q_end && *q == LETTER_MARK) q++;
        if (p == p_end || q == q_end) return (p < p_end) - (q < q_end);
        if (*p != *q) return *p < *q ? -1 : 1;
    }
}

static void jtext_open(jtext *t, jinja *j) {
    memset(t, 0, sizeof *t);
    t->j = j;
}

static bool jtext_reserve(jtext *t, size_t n) {
    if (t->j->failed != NOVA_OK) return false;
    if (t->cap - t->n >= n) return true;
    if (t->p && jinja_extend(t->j, t->p + t->cap, n)) {
        t->cap += n;
        return true;
    }
    if (n > JINJA_MAX_BYTES) {   /* below it nothing here can overflow */
        t->j->over = true;
        return jinja_fail_memory(t->j);
    }
    size_t cap = size_max(t->n + n, t->cap + t->cap / 2);
    char  *p   = jinja_take(t->j, cap, 1);
    if (!p) return false;
    if (t->n) memcpy(p, t->p, t->n);
    t->p   = p;
    t->cap = cap;
    return true;
}

static bool jtext_add(jtext *t, const char *p, size_t n) {
    if (!jtext_reserve(t, n) || !jinja_step(t->j, n >> 6)) return false;
    if (n) memcpy(t->p + t->n, p, n);
    t->n += n;
    return true;
}

static bool jtext_add_c(jtext *t, const char *z) { return jtext_add(t, z, strlen(z)); }

static bool jtext_add_char(jtext *t, uint32_t c) {
    char utf8[4];
    return jtext_add(t, utf8, letter_put(utf8, c));
}

static bool jtext_add_string(jtext *t, const jvalue *v) {
    t->flags |= v->flags & J_MARKED;
    return jtext_add(t, v->u.s, v->n);
}

static bool jtext_repeat(jtext *t, const char *p, size_t n, size_t times) {
    size_t size;
    if (!size_mul(n, times, &size)) size = SIZE_MAX;
    if (!size || !jtext_reserve(t, size)) return !size && t->j->failed == NOVA_OK;
    if (n == 1) {
        memset(t->p + t->n, *p, times);
        t->n += times;
        return jinja_step(t->j, times >> 6);
    }
    for (size_t i = 0; i < times; i++)
        if (!jinja_step(t->j, 1) || !jtext_add(t, p, n)) return false;
    return true;
}

static bool jtext_close(jtext *t, jvalue *out) {
    if (t->j->failed != NOVA_OK) return false;
    if (t->p && t->p + t->cap == t->j->next) t->j->next = t->p + t->n;
    *out = jv_string(t->n ? t->p : "", t->n, t->flags);
    return true;
}

static bool jinja_copy(jinja *j, const char *p, size_t n, const char **out) {
    char *copy = jinja_take(j, n, 1);
    if (!copy || !jinja_step(j, n >> 6)) return false;
    if (n) memcpy(copy, p, n);
    *out = copy;
    return true;
}

static bool jinja_import(jinja *j, const char *p, size_t n, jvalue *out) {
    if (n > JINJA_MAX_BYTES) {
        j->over = true;
        return jinja_fail_memory(j);
    }
    size_t valid = letter_valid(p, n);
    *out         = jv_string(n ? p : "", n, 0);
    if (valid == n) return jinja_step(j, n >> 5);
    jtext t;
    jtext_open(&t, j);
    while (n) {
        if (!jtext_add(&t, p, valid) || !jinja_step(j, 1 + (valid >> 5))) return false;
        if (valid == n) break;
        jtext_add_char(&t, LETTER_UNKNOWN);
        p += valid + 1;
        n -= valid + 1;
        valid = letter_valid(p, n);
    }
    return jtext_close(&t, out);
}

#define JINJA_LONG 1024

static void jinja_keep(jinja *j, const jvalue *v) {
    if (jv_is_string(v) && v->n >= JINJA_LONG) j->kept = v->u.s + v->n;
}

/* Where `size` bytes behind `end`, the end of a string, can be appended to it: NULL when others lie there. */
static char *jinja_room(jinja *j, const char *end, size_t size) {
    if (jinja_extend(j, end, size)) return j->next - size;
    if (end != j->room || (size_t)(j->room_end - j->room) < size) return NULL;
    j->room += size;
    return j->room - size;
}

/* A chain of concatenations copies every part once: what ends where the memory ends grows in place, and so does what a
 * template builds up in a namespace. */
static bool jinja_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    uint32_t flags = (uint32_t)(a->flags | b->flags) & J_MARKED;
    size_t   n     = (size_t)a->n + b->n, spare;
    char    *p     = a->n ? jinja_room(j, a->u.s + a->n, b->n) : NULL;
    if (p) {
        if (b->n) memcpy(p, b->u.s, b->n);
        *out = jv_string(a->u.s, n, flags);
        return jinja_step(j, b->n >> 6);
    }
    spare = a->n >= JINJA_LONG && a->u.s + a->n == j->kept ? n / 2 : 0;
    p     = jinja_take(j, n + spare, 1);
    if (!p) return false;
    if (spare) {
        j->room        = p + n;
        j->room_end    = p + n + spare;
        j->room_serial = jinja_serial(j);
    }
    if (a->n) memcpy(p, a->u.s, a->n);
    if (b->n) memcpy(p + a->n, b->u.s, b->n);
    *out = jv_string(p, (size_t)a->n + b->n, flags);
    return jinja_step(j, out->n >> 6);
}

/* ---- Lists ---- */

static void jlist_open(jlist *l, jinja *j) {
    memset(l, 0, sizeof *l);
    l->j = j;
}

static bool jlist_add(jlist *l, jvalue v) {
    if (!jinja_step(l->j, 1)) return false;
    jvalue *items = (jvalue *)jinja_grow(l->j, l->items, l->n, &l->cap, sizeof *items);
    if (!items) return false;
    l->items         = items;
    l->items[l->n++] = v;
    return true;
}

static jvalue jlist_close(const jlist *l, jkind kind) { return jv_items(kind, l->items, l->n); }

/* ---- Dictionaries ---- */

static bool jv_hashable(const jvalue *v) {
    if (v->kind == J_LIST || v->kind == J_DICT || v->kind == J_VIEW) return false;
    if (v->kind == J_TUPLE)
        for (uint32_t i = 0; i < v->n; i++)   /* a tuple in a tuple is no key that anybody needs */
            if (v->u.items[i].kind == J_TUPLE || !jv_hashable(&v->u.items[i])) return false;
    return true;
}

static uint64_t jv_hash_number(const jvalue *v) {
    uint64_t bits;
    if (v->kind == J_FLOAT && !(fabs(v->u.f) < 9e18 && (double)(int64_t)v->u.f == v->u.f)) memcpy(&bits, &v->u.f, 8);
    else bits = (uint64_t)(v->kind == J_FLOAT ? (int64_t)v->u.f : v->u.i);
    return (bits ^ bits >> 32) * 0x9e3779b97f4a7c15u;
}

static uint64_t jv_hash(const jvalue *v) {
    if (jv_is_number(v)) return jv_hash_number(v);
    if (v->kind == J_STRING || v->kind == J_BIG) {
        if (!(v->flags & J_MARKED)) return hash_bytes(v->u.s, v->n, 0);
        uint64_t h = 0xcbf29ce484222325u;   /* hash_bytes of what is no mark */
        for (uint32_t i = 0; i < v->n; i++)
            if ((unsigned char)v->u.s[i] != LETTER_MARK) h = (h ^ (unsigned char)v->u.s[i]) * 0x100000001b3u;
        return h ^ (h >> 29);
    }
    uint64_t h = v->kind;
    if (v->kind == J_TUPLE)
        for (uint32_t i = 0; i < v->n; i++) h = h * 31 + (v->u.items[i].kind == J_TUPLE ? 0 : jv_hash(&v->u.items[i]));
    return h * 0x9e3779b97f4a7c15u;
}

static jdict *jdict_open(jinja *j) {
    jdict *d = (jdict *)jinja_alloc(j, sizeof *d);
    if (d) memset(d, 0, sizeof *d);
    return d;
}

/* The pair with this key; n when there is none, then *slot is where its number belongs. Probing is counted as work, so
 * keys that were chosen to collide end in an error. */
static uint32_t jdict_find(jinja *j, const jdict *d, const jvalue *key, uint32_t *slot) {
    if (!d->n_slots) {
        for (uint32_t i = 0; i < d->n; i++) {
            int equal = jv_equal(j, &d->pairs[i].key, key);
            if (equal) return equal == 1 ? i : d->n;
        }
        return d->n;
    }
    if (!jinja_step(j, key->kind == J_STRING ? key->n >> 4 : 1)) return d->n;
    uint32_t mask = d->n_slots - 1;
    for (uint32_t at = (uint32_t)jv_hash(key) & mask;; at = (at + 1) & mask) {
        *slot = at;
        if (!d->slots[at]) return d->n;
        int equal = jv_equal(j, &d->pairs[d->slots[at] - 1].key, key);
        if (equal) return equal == 1 ? d->slots[at] - 1 : d->n;
    }
}

static bool jdict_index(jinja *j, jdict *d) {
    uint32_t  n_slots = d->n_slots ? d->n_slots * 2 : 4 * JDICT_SMALL;
    uint32_t *slots   = (uint32_t *)jinja_alloc(j, n_slots * sizeof *slots);
    if (!slots) return false;
    memset(slots, 0, n_slots * sizeof *slots);
    for (uint32_t i = 0; i < d->n; i++) {
        uint32_t at = (uint32_t)jv_hash(&d->pairs[i].key) & (n_slots - 1);
        while (slots[at]) {
            if (!jinja_step(j, 1)) return false;
            at = (at + 1) & (n_slots - 1);
        }
        slots[at] = i + 1;
    }
    d->slots   = slots;
    d->n_slots = n_slots;
    return true;
}

static bool jdict_set(jinja *j, jdict *d, const jvalue *key, const jvalue *value) {
    uint32_t slot = 0, i = jdict_find(j, d, key, &slot);
    if (j->failed != NOVA_OK) return false;
    if (i < d->n) {
        d->pairs[i].value = *value;
        return true;
    }
    jpair *pairs = (jpair *)jinja_grow(j, d->pairs, d->n, &d->cap, sizeof *pairs);
    if (!pairs) return false;
    d->pairs         = pairs;
    pairs[i].key     = *key;
    pairs[i].value   = *value;
    d->n++;
    if (d->n_slots) d->slots[slot] = d->n;
    if (d->n > JDICT_SMALL && d->n * 2 > d->n_slots) return jdict_index(j, d);
    return true;
}

static bool jdict_set_c(jinja *j, jdict *d, const char *key, jvalue value) {
    jvalue k = jv_c(key);
    return jdict_set(j, d, &k, &value);
}

static const jvalue *jdict_get(jinja *j, const jdict *d, const jvalue *key) {
    uint32_t slot = 0, i = jdict_find(j, d, key, &slot);
    return i < d->n && j->failed == NOVA_OK ? &d->pairs[i].value : NULL;
}

static jvalue jv_dict(const jdict *d) {
    jvalue v = jv_make(J_DICT);
    v.u.dict = d;
    return v;
}

static jvalue jv_view(const jdict *d, jview which) {
    jvalue v = jv_make(J_VIEW);
    v.u.dict = d;
    v.sub    = (uint8_t)which;
    return v;
}

/* ---- Iteration ---- */

static bool jv_is_iterable(const jvalue *v) {
    uint32_t n;
    return v->kind == J_GENERATOR || jv_length(v, &n);
}

static bool jiter_open(jinja *j, jiter *it, const jvalue *v) {
    it->of = *v;
    it->at = 0;
    return jv_is_iterable(v) || jinja_fail_type(j, "iteration", v);
}

/* The i-th item of a dictionary or of a view of it. A pair is a tuple of two where it lies. */
static jvalue jdict_item(const jvalue *of, uint32_t i) {
    const jpair *pair = &of->u.dict->pairs[i];
    if (of->kind == J_VIEW && of->sub == JV_ITEMS) return jv_items(J_TUPLE, &pair->key, 2);
    return of->kind == J_VIEW && of->sub == JV_VALUES ? pair->value : pair->key;
}

static int jiter_next(jinja *j, jiter *it, jvalue *out) {
    if (!jinja_step(j, 1)) return -1;
    const jvalue *of = &it->of;
    switch (of->kind) {
    case J_STRING: {
        if (it->at >= of->n) return 0;
        uint32_t c;
        size_t   n = letter_next(of->u.s + it->at, of->u.s + of->n, &c);
        *out       = jv_string(of->u.s + it->at, n, of->flags & J_MARKED);
        it->at += (uint32_t)n;
        return 1;
    }
    case J_LIST:
    case J_TUPLE:
        if (it->at >= of->n) return 0;
        *out = of->u.items[it->at++];
        return 1;
    case J_DICT:
    case J_VIEW:
        if (it->at >= of->u.dict->n) return 0;
        *out = jdict_item(of, it->at++);
        return 1;
    case J_RANGE:
        if (it->at >= of->u.range->n) return 0;
        *out = jv_int(of->u.range->start + of->u.range->step * it->at++);
        return 1;
    case J_GENERATOR: return of->u.generator->next(j, of->u.generator, out);
    case J_UNDEFINED: return 0;
    default: jinja_fail_type(j, "iteration", of); return -1;
    }
}

static bool jv_to_list(jinja *j, const jvalue *v, jvalue *out) {
    jiter it;
    jlist list;
    if (!jiter_open(j, &it, v)) return false;
    if (v->kind == J_LIST || v->kind == J_TUPLE) {
        *out = jv_items(J_LIST, v->u.items, v->n);
        return true;
    }
    jlist_open(&list, j);
    jvalue item;
    int    got;
    while ((got = jiter_next(j, &it, &item)) == 1)
        if (!jlist_add(&list, item)) return false;
    *out = jlist_close(&list, J_LIST);
    return got == 0;
}

static int jv_contains(jinja *j, const jvalue *container, const jvalue *item) {
    if (container->kind == J_DICT || (container->kind == J_VIEW && container->sub == JV_KEYS)) {
        if (!jv_hashable(item)) return jinja_fail_type(j, "a key", item) ? 1 : -1;
        return jdict_get(j, container->u.dict, item) ? 1 : j->failed == NOVA_OK ? 0 : -1;
    }
    jiter it;
    if (!jiter_open(j, &it, container)) return -1;
    jvalue candidate;
    int    got;
    while ((got = jiter_next(j, &it, &candidate)) == 1) {
        int equal = jv_equal(j, &candidate, item);
        if (equal) return equal;
    }
    return got;
}

/* ---- What is written in C ---- */

static const jnative *jnative_find(const jnative *table, size_t n, str name) {
    for (size_t i = 0; i < n && name.n; i++)
        if (table[i].name[0] == name.p[0] && str_is(name, table[i].name)) return &table[i];
    return NULL;
}

/* The place of a parameter in a list like "a b c"; the number of all of them when it is not there (or for NULL). */
static uint32_t jnative_parameter(const char *list, const jvalue *name) {
    uint32_t i = 0;
    for (const char *p = list; *p; i++) {
        size_t n = strcspn(p, " ");
        if (name && str_eq(jv_str(name), str_of(p, n))) return i;
        p += n;
        p += *p == ' ';
    }
    return i;
}

static bool jnative_call(jinja *j, const jnative *native, const jvalue *self, const jargs *a, jvalue *out) {
    if (!jinja_step(j, 2)) return false;
    if (!native->fn) return jinja_fail(j, "%s is not supported", native->name);
    if (!native->parameters) return native->fn(j, self, a, out);
    jvalue   bound[JINJA_MAX_PARAMETERS];
    uint32_t n = jnative_parameter(native->parameters, NULL);
    if (a->n > n) return jinja_fail(j, "%s takes at most %u arguments, not %u", native->name, n, a->n);
    for (uint32_t i = 0; i < n; i++) bound[i] = i < a->n ? a->given[i] : jv_make(J_MISSING);
    for (uint32_t i = 0; i < a->n_named; i++) {
        uint32_t at = jnative_parameter(native->parameters, &a->named[i].key);
        if (at == n || jv_given(&bound[at]))
            return jinja_fail(j, "%s: argument '%.*s' is %s", native->name, STR_ARG(jv_str(&a->named[i].key)),
                              at == n ? "unknown" : "given twice");
        bound[at] = a->named[i].value;
    }
    for (uint32_t i = 0; i < native->n_required; i++)
        if (!jv_given(&bound[i])) return jinja_fail(j, "%s: argument %u is missing", native->name, i + 1);
    jargs call;
    call.given   = bound;
    call.n       = n;
    call.named   = NULL;
    call.n_named = 0;
    return native->fn(j, self, &call, out);
}
