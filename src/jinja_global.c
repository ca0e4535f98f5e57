/* Functions that every template has: see jinja_global.h. Source: Jinja's "List of Global Functions". */
#include "jinja_global.h"

#include "platform.h"


#define JINJA_MAX_RANGE 100000   /* the sandbox's own bound */

static bool global_range(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    int64_t x[3] = {0, 0, 1};
    (void)self;
    if (a->n < 1 || a->n > 3 || a->n_named) return jinja_fail(j, "range takes 1 to 3 arguments");
    for (uint32_t i = 0; i < a->n; i++) {
        if (!jv_is_integer(&a->given[i])) return jinja_fail_type(j, "range", &a->given[i]);
        x[a->n == 1 ? 1 : i] = a->given[i].u.i;
    }
    if (x[2] == 0) return jinja_fail(j, "range: the step is 0");
    jrange *r = (jrange *)jinja_alloc(j, sizeof *r);
    if (!r) return false;
    uint64_t way  = x[2] > 0 ? (uint64_t)x[1] - (uint64_t)x[0] : (uint64_t)x[0] - (uint64_t)x[1];
    uint64_t size = x[2] > 0 ? (uint64_t)x[2] : 0 - (uint64_t)x[2];
    uint64_t n    = (x[2] > 0 ? x[1] > x[0] : x[0] > x[1]) ? (way - 1) / size + 1 : 0;
    if (n > JINJA_MAX_RANGE) return jinja_fail(j, "range: more than %d items", JINJA_MAX_RANGE);
    r->start     = x[0];
    r->stop      = x[1];
    r->step      = x[2];
    r->n         = (uint32_t)n;
    *out         = jv_make(J_RANGE);
    out->u.range = r;
    return true;
}

/* dict(mapping or pairs, name=value, ...) */
static jdict *global_make_dict(jinja *j, const jargs *a) {
    jdict *d = jdict_open(j);
    if (!d) return NULL;
    if (a->n > 1) {
        jinja_fail(j, "at most one argument without a name is expected");
        return NULL;
    }
    jiter  it;
    jvalue item, pairs = a->n ? a->given[0] : jv_items(J_LIST, NULL, 0), both;
    int    got;
    if (pairs.kind == J_DICT) pairs = jv_view(pairs.u.dict, JV_ITEMS);
    if (!jiter_open(j, &it, &pairs)) return NULL;
    while ((got = jiter_next(j, &it, &item)) == 1) {
        if (!jv_to_list(j, &item, &both)) return NULL;
        if (both.n != 2 || !jv_hashable(&both.u.items[0])) {
            jinja_fail(j, "a dictionary is made of pairs with keys that are no lists");
            return NULL;
        }
        if (!jdict_set(j, d, &both.u.items[0], &both.u.items[1])) return NULL;
    }
    for (uint32_t i = 0; i < a->n_named && got == 0; i++)
        if (!jdict_set(j, d, &a->named[i].key, &a->named[i].value)) return NULL;
    return got == 0 ? d : NULL;
}

static bool global_dict(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jdict *d = global_make_dict(j, a);
    (void)self;
    if (d) *out = jv_dict(d);
    return d != NULL;
}

static bool global_namespace(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jspace *space = (jspace *)jinja_alloc(j, sizeof *space);
    (void)self;
    if (!space) return false;
    space->serial     = jinja_serial(j);
    space->attributes = global_make_dict(j, a);
    *out              = jv_make(J_NAMESPACE);
    out->u.space      = space;
    return space->attributes != NULL;
}

static bool global_cycler(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jcycler *c     = (jcycler *)jinja_alloc(j, sizeof *c);
    jvalue  *items = c ? (jvalue *)jinja_alloc(j, (a->n + 1) * sizeof *items) : NULL;
    (void)self;
    if (!items) return false;
    if (!a->n || a->n_named) return jinja_fail(j, "cycler needs items");
    memcpy(items, a->given, a->n * sizeof *items);
    c->items      = jv_items(J_TUPLE, items, a->n);
    c->at         = 0;
    *out          = jv_make(J_CYCLER);
    out->u.cycler = c;
    return true;
}

static bool global_joiner(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jjoiner *joiner = (jjoiner *)jinja_alloc(j, sizeof *joiner);
    (void)self;
    if (!joiner) return false;
    joiner->between = jv_given(&a->given[0]) ? a->given[0] : jv_c(", ");
    joiner->used    = false;
    *out            = jv_make(J_JOINER);
    out->u.joiner   = joiner;
    return true;
}

static bool global_raise_exception(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue text;
    (void)self, (void)out;
    if (!jv_to_string(j, &a->given[0], &text)) return false;
    return jinja_fail(j, "%.*s", (int)text.n, text.u.s);
}

/* ---- The date, in English whatever the locale is. Source: C11 7.27.3.5, and glibc's flags ---- */

static int date_days(int year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0 ? 366 : 365; }

/* ISO 8601: a week belongs to the year that has its Thursday. */
static int date_iso_week(const struct tm *t, int *year) {
    int thursday = t->tm_yday - (t->tm_wday + 6) % 7 + 3;
    *year        = t->tm_year + 1900;
    if (thursday < 0) {
        thursday += date_days(--*year);
    } else if (thursday >= date_days(*year)) {
        thursday -= date_days(*year);
        ++*year;
    }
    return thursday / 7 + 1;
}

typedef struct date_number {
    char letter;
    int  width;
    char pad;
    int  value;
} date_number;

/* A directive that is a number: its text, or "" when it is none. `flag`: '-' no padding, '_' blanks, '0' zeros. */
static void date_number_text(const struct tm *t, char letter, char flag, char text[16]) {
    int year, week = date_iso_week(t, &year), hour = t->tm_hour % 12 ? t->tm_hour % 12 : 12, full = t->tm_year + 1900;
    const date_number all[] = {
        {'Y', 1, '0', full},         {'C', 2, '0', full / 100},      {'y', 2, '0', full % 100},
        {'m', 2, '0', t->tm_mon + 1}, {'d', 2, '0', t->tm_mday},     {'e', 2, ' ', t->tm_mday},
        {'H', 2, '0', t->tm_hour},   {'k', 2, ' ', t->tm_hour},      {'I', 2, '0', hour},
        {'l', 2, ' ', hour},         {'M', 2, '0', t->tm_min},       {'S', 2, '0', t->tm_sec},
        {'f', 6, '0', 0},            {'j', 3, '0', t->tm_yday + 1},  {'w', 1, '0', t->tm_wday},
        {'V', 2, '0', week},         {'G', 1, '0', year},            {'g', 2, '0', year % 100},
        {'u', 1, '0', t->tm_wday ? t->tm_wday : 7},
        {'U', 2, '0', (t->tm_yday + 7 - t->tm_wday) / 7},
        {'W', 2, '0', (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7},
    };
    text[0] = 0;
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        if (all[i].letter != letter) continue;
        char pad = flag == '_' ? ' ' : flag == '0' ? '0' : all[i].pad;
        if (flag == '-') snprintf(text, 16, "%d", all[i].value);
        else snprintf(text, 16, pad == ' ' ? "%*d" : "%0*d", all[i].width, all[i].value);
    }
}

/* A directive that is a name; NULL when it is none. Names of days and months are cut to `*cut` letters. */
static const char *date_name(const struct tm *t, char letter, int *cut) {
    static const char *const days[]   = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
    static const char *const months[] = {"January", "February", "March", "April", "May", "June", "July", "August",
                                         "September", "October", "November", "December"};
    *cut = letter == 'a' || letter == 'b' || letter == 'h' ? 3 : 16;
    switch (letter) {
    case 'a':
    case 'A': return days[t->tm_wday % 7];
    case 'b':
    case 'h':
    case 'B': return months[t->tm_mon % 12];
    case 'p': return t->tm_hour < 12 ? "AM" : "PM";
    case 'P': return t->tm_hour < 12 ? "am" : "pm";
    case 'n': return "\n";
    case 't': return "\t";
    case '%': return "%";
    case 'z':
    case 'Z': return "";   /* the time names no zone */
    default: return NULL;
    }
}

/* A directive that stands for several; NULL when it is none. */
static const char *date_compound(char letter) {
    switch (letter) {
    case 'D':
    case 'x': return "%m/%d/%y";
    case 'F': return "%Y-%m-%d";
    case 'R': return "%H:%M";
    case 'T':
    case 'X': return "%H:%M:%S";
    case 'c': return "%a %b %e %H:%M:%S %Y";
    case 'r': return "%I:%M:%S %p";
    default: return NULL;
    }
}

static void date_add(jtext *out, const struct tm *t, const char *format, size_t n);

static void date_add_directive(jtext *out, const struct tm *t, char flag, char letter) {
    char        number[16];
    int         cut;
    const char *name = date_name(t, letter, &cut), *compound = date_compound(letter);
    date_number_text(t, letter, flag, number);
    if (number[0]) {
        jtext_add_c(out, number);
    } else if (name) {
        for (; *name && cut > 0; name++, cut--)
            jtext_add_char(out, (uint32_t)(flag == '^' && *name >= 'a' && *name <= 'z' ? *name - 'a' + 'A' : *name));
    } else if (compound) {
        date_add(out, t, compound, strlen(compound));
    } else {
        jtext_add(out, "%", 1);
        if (flag) jtext_add(out, &flag, 1);
        jtext_add(out, &letter, 1);
    }
}

static void date_add(jtext *out, const struct tm *t, const char *format, size_t n) {
    for (size_t i = 0; i < n && jinja_step(out->j, 8); i++) {
        if (format[i] != '%' || i + 1 == n) {
            jtext_add(out, format + i, 1);
            continue;
        }
        bool flagged = i + 2 < n && memchr("-_0^", format[i + 1], 4);
        char flag    = flagged ? format[i + 1] : 0;
        i += flagged ? 2 : 1;
        date_add_directive(out, t, flag, format[i]);
    }
}

static bool global_strftime_now(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    struct tm t;
    jtext     text;
    (void)self;
    if (!jarg_string(j, &a->given[0])) return false;
    if (!clock_local(j->now, &t)) return jinja_fail(j, "strftime_now: the system does not tell the local time");
    jtext_open(&text, j);
    date_add(&text, &t, a->given[0].u.s, a->given[0].n);
    return jtext_close(&text, out);
}

static const jnative jinja_globals[] = {
    {"range", NULL, 0, global_range},
    {"dict", NULL, 0, global_dict},
    {"lipsum", NULL, 0, NULL},
    {"cycler", NULL, 0, global_cycler},
    {"joiner", "sep", 0, global_joiner},
    {"namespace", NULL, 0, global_namespace},
    {"raise_exception", "message", 1, global_raise_exception},
    {"strftime_now", "format", 1, global_strftime_now},
};

static const jnative *jinja_global(str name) { return jnative_find(jinja_globals, COUNT_OF(jinja_globals), name); }
