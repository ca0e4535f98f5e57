/* Templates' ground: the memory and the bounds of one rendering, the values it computes with, lists, dictionaries,
 * equality, order, iteration. Semantics: Python's, as far as templates can see them.
 *
 * Lists and dictionaries never change once they are built: the sandbox of chat templates forbids the methods that would
 * change them. So they are shared freely, and a slice is a view. What does change (namespaces, cyclers, generators) has
 * a serial number, by which regions know whether their memory is still in use. */
#ifndef NOVA_JINJA_VALUE_H
#define NOVA_JINJA_VALUE_H

#include "letters.h"

/* ---- One rendering ---- */

/* Bounds: a hostile template ends in an error within these. */
#define JINJA_MAX_BYTES ((size_t)8 << 20)  /* of memory in all */
#define JINJA_MAX_STEPS 2500000            /* a step is about 10 ns of work */
#define JINJA_MAX_NEST  64                 /* of expressions and statements in the text, of values in each other */
#define JINJA_MAX_DEPTH 400                /* of the interpreter in itself; a level takes about 250 bytes of stack */

typedef struct jinja_block jinja_block;

typedef struct jinja {
    const host  *h;
    host         counted;    /* the same memory, counted against JINJA_MAX_BYTES */
    nova_error  *error;
    nova_result  failed;     /* NOVA_OK until the first failure, which is the one that is told */
    uint32_t     line;       /* of the template, at work now */
    uint32_t     steps;      /* that are left */
    uint32_t     depth;
    size_t       bytes;      /* taken from the host */
    bool         over;       /* a request was refused because of JINJA_MAX_BYTES */
    jinja_block *blocks;     /* newest first */
    char        *next, *end; /* free bytes in the newest */
    uint64_t     serial;     /* counts regions and what can change */
    uint64_t     touched;    /* the oldest serial number of what was changed since the innermost region began */
    const char  *kept;       /* where the long string ends that a namespace was given last */
    char        *room, *room_end;   /* free bytes behind a string that is being built up piece by piece */
    uint64_t     room_serial;
    int64_t      now;        /* Unix time */
    bool         begins[128]; /* characters that control tokens begin with, where strings are marked */
} jinja;

static void jinja_open(jinja *j, const host *h, nova_error *error);
static void jinja_close(jinja *j);

/* Fails with a sentence about the template; its line comes in front. Returns false, for `return jinja_fail(...)`. */
static bool jinja_fail(jinja *j, const char *format, ...) NOVA_PRINTF(2, 3);
static bool jinja_fail_memory(jinja *j);
/* Counts work; false when there was too much of it. */
NOVA_INLINE bool jinja_step(jinja *j, size_t n);
static bool jinja_fail_steps(jinja *j);
/* One level deeper; false (and no level) at the bound. */
static bool jinja_enter(jinja *j);
NOVA_INLINE void jinja_leave(jinja *j) { j->depth--; }

/* Memory until the end, or until its region ends; aligned to 8. NULL has failed already. */
static void *jinja_alloc(jinja *j, size_t size);
/* An array of n elements; growing one at the end of the memory costs nothing. */
static void *jinja_grow(jinja *j, void *array, uint32_t n, uint32_t *cap, size_t element);

/* A region: what is allocated in it is dead at its end, unless something older was changed meanwhile. */
typedef struct jinja_region {
    jinja_block *blocks;
    char        *next, *end;
    uint64_t     serial, touched;
} jinja_region;

static void     jinja_region_open(jinja *j, jinja_region *r);
static void     jinja_region_close(jinja *j, const jinja_region *r);
static uint64_t jinja_serial(jinja *j);                       /* for what can change */
NOVA_INLINE void jinja_touch(jinja *j, uint64_t serial) { if (serial < j->touched) j->touched = serial; }

/* ---- Values ---- */

typedef enum jkind {
    J_MISSING,    /* not assigned: never seen by a template */
    J_UNDEFINED,  /* s: the name, or the sentence; sub: a jundefined; of: the kind of object that lacks it */
    J_NONE,
    J_BOOL,       /* i */
    J_INT,        /* i */
    J_BIG,        /* s: the digits of an integer beyond 64 bits, which can be printed and nothing else */
    J_FLOAT,      /* f */
    J_STRING,     /* s, n bytes; flags */
    J_LIST,       /* items, n */
    J_TUPLE,      /* items, n */
    J_DICT,       /* dict */
    J_RANGE,      /* range */
    J_VIEW,       /* dict; sub: a jview */
    J_GENERATOR,  /* generator */
    J_NAMESPACE,  /* space */
    J_MACRO,      /* macro */
    J_METHOD,     /* method */
    J_FUNCTION,   /* native */
    J_LOOP,       /* loop */
    J_CYCLER,     /* cycler */
    J_JOINER,     /* joiner */
    J_KINDS
} jkind;

enum { J_SAFE = 1, J_MARKED = 2, J_GROUP = 4 };   /* flags: Markup; may hold marks; a tuple of groupby's */

typedef enum jundefined { JU_NAME, JU_ATTRIBUTE, JU_ELEMENT, JU_SENTENCE } jundefined;
typedef enum jview { JV_KEYS, JV_VALUES, JV_ITEMS } jview;

typedef struct jdict      jdict;
typedef struct jrange     jrange;
typedef struct jgenerator jgenerator;
typedef struct jspace     jspace;
typedef struct jmethod    jmethod;
typedef struct jnative    jnative;
typedef struct jcycler    jcycler;
typedef struct jjoiner    jjoiner;
typedef struct jmacro     jmacro;
typedef struct jloop      jloop;   /* the interpreter's */

typedef struct jvalue {
    uint8_t  kind, flags, sub, of;
    uint32_t n;
    union {
        int64_t              i;
        double               f;
        const char          *s;
        const struct jvalue *items;
        const jdict         *dict;
        const jrange        *range;
        jgenerator          *generator;
        jspace              *space;
        const jmethod       *method;
        const jnative       *native;
        jcycler             *cycler;
        jjoiner             *joiner;
        const jmacro        *macro;
        jloop               *loop;
        const void          *object;   /* any of these, to be compared */
    } u;
} jvalue;

struct jrange  { int64_t start, stop, step; uint32_t n; };
struct jspace  { jdict *attributes; uint64_t serial; };
struct jcycler { jvalue items; uint32_t at; };
struct jjoiner { jvalue between; bool used; };
struct jmacro  { jvalue name; const struct jnode *node; struct jframe *outer; };   /* name: none for a call block's */

NOVA_INLINE jvalue jv_make(jkind kind) { jvalue v; memset(&v, 0, sizeof v); v.kind = (uint8_t)kind; return v; }
NOVA_INLINE jvalue jv_none(void) { return jv_make(J_NONE); }
NOVA_INLINE jvalue jv_bool(bool b) { jvalue v = jv_make(J_BOOL); v.u.i = b; return v; }
NOVA_INLINE jvalue jv_int(int64_t i) { jvalue v = jv_make(J_INT); v.u.i = i; return v; }
NOVA_INLINE jvalue jv_float(double f) { jvalue v = jv_make(J_FLOAT); v.u.f = f; return v; }
static jvalue jv_string(const char *s, size_t n, uint32_t flags);
static jvalue jv_c(const char *z);   /* of a literal */
static jvalue jv_items(jkind kind, const jvalue *items, size_t n);
static jvalue jv_undefined(jundefined why, str name);
static jvalue jv_lacking(const jvalue *object, const jvalue *name);   /* an attribute or element that is not there */

NOVA_INLINE str  jv_str(const jvalue *v) { return str_of(v->u.s, v->n); }
NOVA_INLINE bool jv_is_string(const jvalue *v) { return v->kind == J_STRING; }
NOVA_INLINE bool jv_is_array(const jvalue *v) { return v->kind == J_LIST || v->kind == J_TUPLE; }
NOVA_INLINE bool jv_is_integer(const jvalue *v) { return v->kind == J_INT || v->kind == J_BOOL; }
NOVA_INLINE bool jv_is_number(const jvalue *v) { return jv_is_integer(v) || v->kind == J_FLOAT; }
NOVA_INLINE bool jv_given(const jvalue *v) { return v->kind != J_MISSING; }   /* an argument */

static const char *jv_type(const jvalue *v);                   /* Python's name of the type */
static bool jinja_fail_undefined(jinja *j, const jvalue *v);   /* "'x' is undefined" */
static bool jinja_fail_type(jinja *j, const char *what, const jvalue *v);   /* "WHAT: not for a 'int'" */
static bool jv_true(const jvalue *v);                          /* bool(v) */
/* len(v); false and no failure when it has none. */
static bool jv_length(const jvalue *v, uint32_t *n);

/* a == b, or -1 after a failure. */
static int jv_equal(jinja *j, const jvalue *a, const jvalue *b);
/* The sign of a - b (-1, 0, 1) into *sign; 2 for numbers that have no order. Fails for kinds that cannot be ordered. */
static bool jv_compare(jinja *j, const jvalue *a, const jvalue *b, int *sign);
/* item in container, or -1 after a failure. */
static int jv_contains(jinja *j, const jvalue *container, const jvalue *item);
static bool jv_hashable(const jvalue *v);

/* ---- Strings ---- */

/* A string that grows at the end of the memory. After a failure it ignores what comes. */
typedef struct jtext {
    jinja   *j;
    char    *p;
    size_t   n, cap;
    uint32_t flags;
} jtext;

static void   jtext_open(jtext *t, jinja *j);
static bool   jtext_add(jtext *t, const char *p, size_t n);
static bool   jtext_add_c(jtext *t, const char *z);
static bool   jtext_add_char(jtext *t, uint32_t c);
static bool   jtext_add_string(jtext *t, const jvalue *v);   /* with its marks */
static bool   jtext_repeat(jtext *t, const char *p, size_t n, size_t times);
static bool   jtext_close(jtext *t, jvalue *out);

static bool jinja_copy(jinja *j, const char *p, size_t n, const char **out);
/* Any bytes as a string: what is no UTF-8 becomes U+FFFD. Copies only where it must. */
static bool jinja_import(jinja *j, const char *p, size_t n, jvalue *out);
static bool jinja_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out);
/* A namespace keeps this: if it is a long string, more is likely to be appended to it. */
static void jinja_keep(jinja *j, const jvalue *v);
static bool jstring_equal(const jvalue *a, const jvalue *b);
static int  jstring_compare(const jvalue *a, const jvalue *b);

/* ---- Lists ---- */

typedef struct jlist {
    jinja   *j;
    jvalue  *items;
    uint32_t n, cap;
} jlist;

static void   jlist_open(jlist *l, jinja *j);
static bool   jlist_add(jlist *l, jvalue v);
static jvalue jlist_close(const jlist *l, jkind kind);

/* ---- Dictionaries, in the order of insertion ---- */

typedef struct jpair { jvalue key, value; } jpair;   /* also the two items of a tuple */

struct jdict {
    jpair    *pairs;
    uint32_t  n, cap;
    uint32_t *slots;      /* index + 1 into pairs, 0: free; only for more than JDICT_SMALL pairs */
    uint32_t  n_slots;
};

#define JDICT_SMALL 8

static jdict *jdict_open(jinja *j);
/* Sets or replaces. The key must be hashable. */
static bool   jdict_set(jinja *j, jdict *d, const jvalue *key, const jvalue *value);
static bool   jdict_set_c(jinja *j, jdict *d, const char *key, jvalue value);
/* The value, or NULL: not there, or j failed. */
static const jvalue *jdict_get(jinja *j, const jdict *d, const jvalue *key);
/* Orders pairs by their keys, stable. */
static bool jpair_sort(jinja *j, jpair *pairs, uint32_t n, bool reverse);
static jvalue jv_dict(const jdict *d);
static jvalue jv_view(const jdict *d, jview which);

/* ---- Iteration ---- */

typedef struct jiter {
    jvalue   of;
    uint32_t at;     /* items passed; for strings bytes */
} jiter;

/* What map, select and their like give: computed one by one, gone once passed. */
typedef int (*jgenerator_fn)(jinja *j, jgenerator *g, jvalue *out);   /* as jiter_next */

struct jgenerator {
    jgenerator_fn next;
    jiter         from;
    jvalue        a, b;      /* what `next` needs */
    const void   *data;
    uint64_t      serial;
};

/* Fails for what cannot be iterated; so does jiter_next, for who opened without asking. */
static bool jiter_open(jinja *j, jiter *it, const jvalue *v);
/* 1 and an item, 0 at the end, -1 after a failure. */
static int  jiter_next(jinja *j, jiter *it, jvalue *out);
static bool jv_is_iterable(const jvalue *v);
static bool jv_to_list(jinja *j, const jvalue *v, jvalue *out);   /* list(v) */

/* ---- What is written in C ---- */

typedef struct jargs {
    jvalue      *given;      /* after binding: one for every parameter, J_MISSING where none was given */
    uint32_t     n;
    const jpair *named;
    uint32_t     n_named;
} jargs;

/* `self` is the object of a method, the subject of a filter or test; nothing for functions. */
typedef bool (*jnative_fn)(jinja *j, const jvalue *self, const jargs *a, jvalue *out);

struct jnative {
    const char *name;
    const char *parameters;   /* their names with blanks between; NULL: takes what comes, unbound */
    uint32_t    n_required;
    jnative_fn  fn;           /* NULL: Python has it, this interpreter not */
};

struct jmethod { const jnative *native; jvalue self; };

#define JINJA_MAX_PARAMETERS 6

static const jnative *jnative_find(const jnative *table, size_t n, str name);
static bool jnative_call(jinja *j, const jnative *native, const jvalue *self, const jargs *a, jvalue *out);

#endif
