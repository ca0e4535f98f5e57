/* Runs a template: see jinja_run.h. A walk over the tree, whose depth jinja_enter bounds; so frames of C are kept
 * small: every kind of node has a function of its own, and nothing large lies on the stack. */
#include "jinja_run.h"

typedef struct jframe {
    struct jframe *outer;   /* of the function around */
    jvalue        *slots;
} jframe;

typedef struct jrun {
    jinja       *j;
    const jdict *variables;
    text_buffer *out;
    text_buffer  captured;    /* what macros and blocks print, the innermost at the end */
    uint32_t     n_captures;  /* open now; none: printing goes to `out` */
    jvalue       block_text;  /* what the innermost filter of a block takes */
} jrun;

struct jloop {
    jrun        *run;
    const jnode *node;
    jframe      *frame;             /* in which the loop runs */
    jframe      *outer;             /* in which it is written: for recursive ones */
    jvalue       iterable;
    jiter        it;
    jvalue       before, current, after;
    bool         tested;            /* what `it` gives has passed the condition already */
    bool         peeked;            /* `after` is the next item, or missing at the end */
    int64_t      index0, depth0;
    int64_t      length;            /* once it was asked for and had to be counted, else -1 */
    jvalue       changed;           /* the arguments of the last call of loop.changed */
    uint64_t     serial;
};

typedef enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE, JFLOW_FAIL } jflow;

static bool  run_eval(jrun *r, jframe *f, const jnode *n, jvalue *out);
static jflow run_statements(jrun *r, jframe *f, const jnode *n);
static bool  run_call(jrun *r, const jvalue *callee, const jargs *a, jvalue *out);

/* ---- Frames and scopes ---- */

static jframe *frame_open(jrun *r, const jfunction *function, jframe *outer) {
    jframe *f = (jframe *)jinja_alloc(r->j, sizeof *f);
    if (!f || !jinja_step(r->j, 1 + (function->n_slots >> 3))) return NULL;
    f->outer = outer;
    f->slots = (jvalue *)jinja_alloc(r->j, function->n_slots * sizeof *f->slots);
    if (!f->slots) return NULL;
    memset(f->slots, 0, function->n_slots * sizeof *f->slots);   /* J_MISSING */
    return f;
}

static jframe *frame_out(jframe *f, uint32_t up) {
    while (up--) f = f->outer;
    return f;
}

static bool scope_resolve(jrun *r, str name, jvalue *out) {
    jvalue        key   = jv_string(name.p, name.n, 0);
    const jvalue *given = jdict_get(r->j, r->variables, &key);
    if (r->j->failed != NOVA_OK) return false;
    const jnative *global = given ? NULL : jinja_global(name);
    *out                  = given ? *given : jv_make(global ? J_FUNCTION : J_MISSING);
    if (global) out->u.native = global;
    return true;
}

static bool scope_enter(jrun *r, jframe *f, const jscope *s) {
    if (!jinja_step(r->j, s->n >> 1)) return false;
    for (uint32_t i = 0; i < s->n; i++) {
        const jsymbol *sym = &s->symbols[i];
        jvalue        *slot   = &f->slots[sym->slot];
        switch (sym->load) {
        case JLOAD_PARAMETER: break;
        case JLOAD_GIVEN:
            if (!scope_resolve(r, sym->name, slot)) return false;
            break;
        case JLOAD_OUTER: *slot = frame_out(f, sym->outer_up)->slots[sym->outer_slot]; break;
        case JLOAD_NOTHING: *slot = jv_make(J_MISSING); break;
        }
    }
    return true;
}

static void scope_leave(jframe *f, const jscope *s) {
    for (uint32_t i = 0; i < s->n; i++) f->slots[s->symbols[i].slot] = jv_make(J_MISSING);
}

/* ---- Printing ---- */

/* As text_reserve grows the buffer, so is it counted. */
static bool run_reserve(jrun *r, size_t n) {
    text_buffer *b = r->out;
    size_t       need = 0, cap = size_max(64, b->cap + b->cap / 2);
    bool         fits = size_add(b->n, n, &need) && (!b->limit || need <= b->limit);
    if (fits && need > b->cap) fits = size_max(need, cap) <= JINJA_MAX_BYTES - r->j->bytes;
    if (fits) return true;
    r->j->over = true;
    return jinja_fail_memory(r->j);
}

static bool run_print_bytes(jrun *r, const char *p, size_t n) {
    text_buffer *b = r->n_captures ? &r->captured : r->out;
    if (n == 0) return true;
    if (!jinja_step(r->j, 1 + (n >> 6)) || (b == r->out && !run_reserve(r, n))) return false;
    return text_append(b, p, n) || jinja_fail_memory(r->j);
}

static bool run_print(jrun *r, const jvalue *v) {
    jvalue text;
    return jv_to_string(r->j, v, &text) && run_print_bytes(r, text.u.s, text.n);
}

static size_t capture_open(jrun *r) {
    r->n_captures++;
    return r->captured.n;
}

/* The text that was printed since `start`. */
static bool capture_close(jrun *r, size_t start, jvalue *out) {
    size_t      n = r->captured.n - start;
    const char *copy;
    r->n_captures--;
    *out = jv_c("");
    if (n == 0) return true;
    if (!jinja_copy(r->j, r->captured.p + start, n, &copy)) return false;
    *out          = jv_string(copy, n, memchr(copy, (int)LETTER_MARK, n) ? J_MARKED : 0);
    r->captured.n = start;
    return true;
}

/* ---- Assignment ---- */

static bool run_assign(jrun *r, jframe *f, const jnode *target, bool test, const jvalue *v);

static bool run_unpack(jrun *r, jframe *f, const jnode *tuple, bool test, const jvalue *v) {
    jiter  it;
    jvalue item;
    if (!jiter_open(r->j, &it, v)) return false;
    for (const jnode *target = tuple->a; target; target = target->next) {
        int got = jiter_next(r->j, &it, &item);
        if (got == 0) return jinja_fail(r->j, "too few values to unpack");
        if (got < 0 || !run_assign(r, f, target, test, &item)) return false;
    }
    int got = jiter_next(r->j, &it, &item);
    return got == 0 || (got > 0 && jinja_fail(r->j, "too many values to unpack"));
}

/* `test`: the places that a loop's condition sees. */
static bool run_assign(jrun *r, jframe *f, const jnode *target, bool test, const jvalue *v) {
    if (target->kind == JN_TUPLE) return run_unpack(r, f, target, test, v);
    if (target->kind == JN_NAME) {
        if (test) f->slots[target->test_slot] = *v;
        else frame_out(f, target->up)->slots[target->slot] = *v;
        return true;
    }
    const jvalue *space = &frame_out(f, target->up)->slots[target->slot];
    if (space->kind != J_NAMESPACE)
        return jinja_fail(r->j, "'%.*s' is no namespace, whose members alone can be assigned",
                          STR_ARG(jv_str(&target->value)));
    jinja_touch(r->j, space->u.space->serial);
    jinja_keep(r->j, v);
    return jdict_set(r->j, space->u.space->attributes, &target->b->value, v);
}

/* ---- Calls ---- */

/* Adds the items of *x or the pairs of **x. */
static bool run_argument_many(jrun *r, const jvalue *v, bool named, jlist *given, jdict *names) {
    jiter  it;
    jvalue item;
    int    got;
    if (named) {
        if (v->kind != J_DICT) return jinja_fail_type(r->j, "**", v);
        for (uint32_t i = 0; i < v->u.dict->n; i++) {
            const jpair *pair = &v->u.dict->pairs[i];
            if (!jv_is_string(&pair->key)) return jinja_fail_type(r->j, "an argument's name", &pair->key);
            if (!jdict_set(r->j, names, &pair->key, &pair->value)) return false;
        }
        return true;
    }
    if (!jiter_open(r->j, &it, v)) return false;
    while ((got = jiter_next(r->j, &it, &item)) == 1)
        if (!jlist_add(given, item)) return false;
    return got == 0;
}

static bool run_arguments(jrun *r, jframe *f, const jnode *n, jargs *a) {
    jlist  given;
    jdict *names = NULL;
    jvalue v;
    memset(a, 0, sizeof *a);
    jlist_open(&given, r->j);
    for (; n; n = n->next) {
        if (n->op != JA_PLAIN && n->op != JA_MANY && !names && !(names = jdict_open(r->j))) return false;
        if (!run_eval(r, f, n->a, &v)) return false;
        bool ok = n->op == JA_PLAIN   ? jlist_add(&given, v)
                  : n->op == JA_NAMED ? jdict_set(r->j, names, &n->value, &v)
                                      : run_argument_many(r, &v, n->op == JA_MANY_NAMED, &given, names);
        if (!ok) return false;
    }
    a->given   = given.items;
    a->n       = given.n;
    a->named   = names ? names->pairs : NULL;
    a->n_named = names ? names->n : 0;
    return true;
}

/* The argument of that name; counts it into *used. */
static const jvalue *args_named(const jargs *a, str name, uint32_t *used) {
    for (uint32_t i = 0; i < a->n_named; i++) {
        if (!str_eq(jv_str(&a->named[i].key), name)) continue;
        ++*used;
        return &a->named[i].value;
    }
    return NULL;
}

/* What a macro makes of arguments that no parameter has: kwargs and varargs where it reads them. */
static bool macro_bind_rest(jrun *r, jframe *f, const jmacro *m, const jargs *a, uint32_t n_parameters, uint32_t used) {
    const jscope *s = m->node->scope;
    if (s->named != JSLOT_NONE) {
        jdict *rest = jdict_open(r->j);
        if (!rest) return false;
        for (uint32_t i = 0; i < a->n_named; i++) {
            bool taken = str_is(jv_str(&a->named[i].key), "caller") && s->caller != JSLOT_NONE;
            for (const jnode *p = m->node->a; p && !taken; p = p->next)
                taken = jstring_equal(&p->value, &a->named[i].key);
            if (!taken && !jdict_set(r->j, rest, &a->named[i].key, &a->named[i].value)) return false;
        }
        f->slots[s->named] = jv_dict(rest);
    } else if (used < a->n_named) {
        return jinja_fail(r->j, "macro '%.*s' does not take an argument that it is given by name",
                          STR_ARG(jv_str(&m->node->value)));
    }
    uint32_t many = a->n > n_parameters ? a->n - n_parameters : 0;
    if (s->positional != JSLOT_NONE) f->slots[s->positional] = jv_items(J_TUPLE, many ? a->given + (a->n - many) : NULL, many);
    return s->positional != JSLOT_NONE || !many ||
           jinja_fail(r->j, "macro '%.*s' takes at most %u arguments", STR_ARG(jv_str(&m->node->value)), n_parameters);
}

static bool macro_bind(jrun *r, jframe *f, const jmacro *m, const jargs *a) {
    const jscope *s    = m->node->scope;
    uint32_t      i    = 0, used = 0;
    for (const jnode *p = m->node->a; p; p = p->next, i++) {
        if (!jinja_step(r->j, 1 + (a->n_named >> 1))) return false;
        if (i < a->n) {
            f->slots[p->slot] = a->given[i];
            continue;
        }
        const jvalue *named = args_named(a, jv_str(&p->value), &used);
        if (named) f->slots[p->slot] = *named;
    }
    if (s->caller != JSLOT_NONE) {
        const jvalue *caller = args_named(a, str_c("caller"), &used);
        f->slots[s->caller]  = caller ? *caller : jv_undefined(JU_SENTENCE, str_c("there is no caller"));
    }
    return macro_bind_rest(r, f, m, a, i, used);
}

/* Defaults see the parameters before them. */
static bool macro_defaults(jrun *r, jframe *f, const jmacro *m) {
    for (const jnode *p = m->node->a; p; p = p->next) {
        jvalue v = jv_undefined(JU_NAME, jv_str(&p->value));
        if (f->slots[p->slot].kind != J_MISSING) continue;
        if (p->a && !run_eval(r, f, p->a, &v)) return false;
        f->slots[p->slot] = v;
    }
    return true;
}

/* What the body leaves behind is dropped before its text is copied out. */
static bool run_macro(jrun *r, const jmacro *m, const jargs *a, jvalue *out) {
    jinja_region region;
    if (!jinja_enter(r->j) || !jinja_step(r->j, 6)) return false;
    jinja_region_open(r->j, &region);
    size_t  start = capture_open(r);
    jframe *f     = frame_open(r, m->node->scope->function, m->outer);
    bool    ok    = f && macro_bind(r, f, m, a) && scope_enter(r, f, m->node->scope) && macro_defaults(r, f, m) &&
              run_statements(r, f, m->node->c) == JFLOW_NEXT;
    if (!ok) return false;
    jinja_region_close(r->j, &region);
    jinja_leave(r->j);
    return capture_close(r, start, out);
}

/* ---- Loops ---- */

/* The next item that the loop's condition lets pass: 1, 0 at the end, -1 after a failure. */
static int loop_pull(jloop *loop, jvalue *out) {
    jrun        *r = loop->run;
    const jnode *n = loop->node;
    for (;;) {
        jvalue pass;
        int    got = jiter_next(r->j, &loop->it, out);
        if (got != 1 || !n->e || loop->tested) return got;
        if (!run_assign(r, loop->frame, n->a, true, out) || !run_eval(r, loop->frame, n->e, &pass)) return -1;
        if (jv_true(&pass)) return 1;
    }
}

static bool loop_peek(jloop *loop) {
    if (loop->peeked) return true;
    int got = loop_pull(loop, &loop->after);
    if (got < 0) return false;
    if (got == 0) loop->after = jv_make(J_MISSING);
    loop->peeked = true;
    if (loop->it.of.kind == J_GENERATOR) jinja_touch(loop->run->j, loop->serial);
    return true;
}

static int loop_advance(jloop *loop) {
    jvalue item;
    int    got = 1;
    if (loop->peeked) {
        item         = loop->after;
        loop->peeked = false;
        got          = item.kind != J_MISSING;
    } else {
        got = loop_pull(loop, &item);
    }
    if (got != 1) return got;
    loop->index0++;
    loop->before  = loop->current;
    loop->current = item;
    return 1;
}

/* How many items there are; what has no length is read to its end and kept. */
static bool loop_length(jloop *loop, int64_t *out) {
    uint32_t n;
    jinja   *j = loop->run->j;
    if (loop->length >= 0) {
        *out = loop->length;
        return true;
    }
    if (!loop->node->e && jv_length(&loop->iterable, &n)) {
        *out = loop->length = n;
        return jinja_step(j, jv_is_string(&loop->iterable) ? loop->iterable.n >> 4 : 1);
    }
    jlist  rest;
    jvalue item;
    int    got;
    jlist_open(&rest, j);
    if (loop->peeked && loop->after.kind != J_MISSING && !jlist_add(&rest, loop->after)) return false;
    while (!(loop->peeked && loop->after.kind == J_MISSING) && (got = loop_pull(loop, &item)) != 0)
        if (got < 0 || !jlist_add(&rest, item)) return false;
    /* From now on the loop goes over that list. */
    loop->peeked = false;
    loop->tested = true;
    loop->it.of  = jlist_close(&rest, J_LIST);
    loop->it.at  = 0;
    jinja_touch(j, loop->serial);
    *out = loop->length = loop->index0 + 1 + rest.n;
    return true;
}

static bool loop_cycle(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jloop *loop = self->u.loop;
    if (!a->n || a->n_named) return jinja_fail(j, "loop.cycle needs items");
    *out = a->given[loop->index0 % a->n];
    return true;
}

static bool loop_changed(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jloop  *loop = self->u.loop;
    jvalue  now  = jv_items(J_TUPLE, a->given, a->n);
    int     same = loop->changed.kind == J_MISSING ? 0 : jv_equal(j, &loop->changed, &now);
    if (same < 0) return false;
    if (!same) loop->changed = now;
    jinja_touch(j, loop->serial);
    *out = jv_bool(!same);
    return true;
}

static const jnative loop_methods[] = {
    {"cycle", NULL, 0, loop_cycle},
    {"changed", NULL, 0, loop_changed},
};

static bool loop_neighbour(jloop *loop, bool after, jvalue *out) {
    if (after && !loop_peek(loop)) return false;
    *out = after ? loop->after : loop->before;
    if (out->kind == J_MISSING) *out = jv_undefined(JU_SENTENCE, str_c("the loop has no such item"));
    return true;
}

static bool loop_attribute(jloop *loop, const jvalue *self, const jvalue *key, jvalue *out) {
    str     name = jv_str(key);
    int64_t length = 0;
    bool    back = str_is(name, "revindex"), back0 = str_is(name, "revindex0");
    if (back || back0 || str_is(name, "length")) {
        if (!loop_length(loop, &length)) return false;
        *out = jv_int(back ? length - loop->index0 : back0 ? length - loop->index0 - 1 : length);
    } else if (str_is(name, "last")) {
        if (!loop_peek(loop)) return false;
        *out = jv_bool(loop->after.kind == J_MISSING);
    } else if (str_is(name, "previtem") || str_is(name, "nextitem")) {
        return loop_neighbour(loop, name.p[0] == 'n', out);
    } else if (str_is(name, "first")) {
        *out = jv_bool(loop->index0 == 0);
    } else if (str_is(name, "index0")) {
        *out = jv_int(loop->index0);
    } else if (str_is(name, "index")) {
        *out = jv_int(loop->index0 + 1);
    } else if (str_is(name, "depth0")) {
        *out = jv_int(loop->depth0);
    } else if (str_is(name, "depth")) {
        *out = jv_int(loop->depth0 + 1);
    } else {
        const jnative *native = jnative_find(loop_methods, COUNT_OF(loop_methods), name);
        jmethod       *method = native ? (jmethod *)jinja_alloc(loop->run->j, sizeof *method) : NULL;
        *out                  = jv_lacking(self, key);
        if (!native) return true;
        if (!method) return false;
        method->native = native;
        method->self   = *self;
        *out           = jv_make(J_METHOD);
        out->u.method  = method;
    }
    return true;
}

static jloop *loop_open(jrun *r, jframe *f, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0) {
    jloop *loop = (jloop *)jinja_alloc(r->j, sizeof *loop);
    if (!loop) return NULL;
    memset(loop, 0, sizeof *loop);
    loop->run      = r;
    loop->node     = n;
    loop->frame    = f;
    loop->outer    = outer;
    loop->iterable = *iterable;
    loop->index0   = -1;
    loop->length   = -1;
    loop->depth0   = depth0;
    loop->serial   = jinja_serial(r->j);
    if (!jiter_open(r->j, &loop->it, iterable)) return NULL;
    return !n->test_scope || scope_enter(r, f, n->test_scope) ? loop : NULL;
}

/* One turn. *whole: the body was run to its end. */
static jflow loop_turn(jrun *r, jframe *f, jloop *loop, bool *whole) {
    const jnode *n = loop->node;
    jvalue       v = jv_make(J_LOOP);
    v.u.loop     = loop;
    f->slots[n->scope->loop] = v;
    if (!run_assign(r, f, n->a, false, &loop->current) || !scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    jflow flow = run_statements(r, f, n->c);
    if (flow == JFLOW_NEXT) *whole = true;
    return flow;
}

/* Memory that a turn took is free again behind it; only what a generator computes must outlive its turn. As in Jinja,
 * `else` runs when no turn came to the end of the body. */
static jflow run_loop(jrun *r, jframe *f, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0) {
    jloop *loop  = loop_open(r, f, outer, n, iterable, depth0);
    bool   whole = false;
    jflow  flow  = loop ? JFLOW_NEXT : JFLOW_FAIL;
    while (flow == JFLOW_NEXT || flow == JFLOW_CONTINUE) {
        jinja_region region;
        bool         lasting = loop->it.of.kind != J_GENERATOR;
        int          got     = loop_advance(loop);
        if (got < 0 || !jinja_step(r->j, 2)) return JFLOW_FAIL;
        if (got == 0) break;
        jinja_region_open(r->j, &region);
        if (!lasting) jinja_touch(r->j, loop->serial);
        flow = loop_turn(r, f, loop, &whole);
        if (flow != JFLOW_FAIL) jinja_region_close(r->j, &region);
    }
    if (flow == JFLOW_FAIL) return flow;
    scope_leave(f, n->scope);
    if (n->test_scope) scope_leave(f, n->test_scope);
    if (whole || !n->d) return JFLOW_NEXT;
    if (!scope_enter(r, f, n->other_scope)) return JFLOW_FAIL;
    flow = run_statements(r, f, n->d);
    if (flow != JFLOW_FAIL) scope_leave(f, n->other_scope);
    return flow;
}

/* A recursive loop runs like a macro, for the outermost round too. */
static bool run_loop_recursive(jrun *r, jframe *outer, const jnode *n, const jvalue *iterable, int64_t depth0,
                               jvalue *out) {
    if (!jinja_enter(r->j)) return false;
    size_t  start = capture_open(r);
    jframe *f     = frame_open(r, n->scope->function, outer);
    if (!f || run_loop(r, f, outer, n, iterable, depth0) != JFLOW_NEXT) return false;
    jinja_leave(r->j);
    return capture_close(r, start, out);
}

static jflow run_for(jrun *r, jframe *f, const jnode *n) {
    jvalue iterable, text;
    if (!run_eval(r, f, n->b, &iterable)) return JFLOW_FAIL;
    r->j->line = n->line;
    if (!n->op) return run_loop(r, f, f, n, &iterable, 0);
    return run_loop_recursive(r, f, n, &iterable, 0, &text) && run_print(r, &text) ? JFLOW_NEXT : JFLOW_FAIL;
}

/* loop(items) in a recursive loop. */
static bool run_call_loop(jrun *r, const jloop *loop, const jargs *a, jvalue *out) {
    if (!loop->node->op) return jinja_fail(r->j, "only a recursive loop can be called");
    if (a->n != 1 || a->n_named) return jinja_fail(r->j, "loop() takes one argument");
    return run_loop_recursive(r, loop->outer, loop->node, &a->given[0], loop->depth0 + 1, out);
}

/* ---- What can be called ---- */

static bool run_call_joiner(jrun *r, jjoiner *joiner, jvalue *out) {
    (void)r;
    *out         = joiner->used ? joiner->between : jv_c("");
    joiner->used = true;
    return true;
}

static bool run_call(jrun *r, const jvalue *callee, const jargs *a, jvalue *out) {
    switch (callee->kind) {
    case J_FUNCTION: return jnative_call(r->j, callee->u.native, callee, a, out);
    case J_METHOD: return jnative_call(r->j, callee->u.method->native, &callee->u.method->self, a, out);
    case J_MACRO: return run_macro(r, callee->u.macro, a, out);
    case J_LOOP: return run_call_loop(r, callee->u.loop, a, out);
    case J_JOINER: return run_call_joiner(r, callee->u.joiner, out);
    default: return jinja_fail_type(r->j, "a call", callee);
    }
}

static bool eval_call(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue callee;
    jargs  a;
    if (!run_eval(r, f, n->a, &callee) || !run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    return run_call(r, &callee, &a, out);
}

/* ---- Expressions ---- */

static bool eval_name(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    (void)r;
    *out = frame_out(f, n->up)->slots[n->slot];
    if (out->kind == J_MISSING) *out = jv_undefined(JU_NAME, jv_str(&n->value));
    return true;
}

static bool eval_items(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jlist  list;
    jvalue item;
    jlist_open(&list, r->j);
    for (const jnode *x = n->a; x; x = x->next)
        if (!run_eval(r, f, x, &item) || !jlist_add(&list, item)) return false;
    *out = jlist_close(&list, n->kind == JN_TUPLE ? J_TUPLE : J_LIST);
    return true;
}

static bool eval_dict(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jdict *d = jdict_open(r->j);
    if (!d) return false;
    for (const jnode *x = n->a; x; x = x->next->next) {
        jvalue key, value;
        if (!run_eval(r, f, x, &key) || !run_eval(r, f, x->next, &value)) return false;
        if (!jv_hashable(&key)) return jinja_fail(r->j, "a '%s' cannot be a key", jv_type(&key));
        if (!jdict_set(r->j, d, &key, &value)) return false;
    }
    *out = jv_dict(d);
    return true;
}

static bool eval_attribute(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue object;
    if (!run_eval(r, f, n->a, &object)) return false;
    r->j->line = n->line;
    if (object.kind == J_LOOP) return loop_attribute(object.u.loop, &object, &n->value, out);
    if (object.kind == J_MACRO && str_is(jv_str(&n->value), "name")) {
        *out = object.u.macro->name;
        return true;
    }
    return jinja_attribute(r->j, &object, &n->value, out);
}

static bool eval_slice(jrun *r, jframe *f, const jnode *n, const jvalue *object, jvalue *out) {
    jvalue bounds[3] = {jv_none(), jv_none(), jv_none()};
    if (n->a && !run_eval(r, f, n->a, &bounds[0])) return false;
    if (n->b && !run_eval(r, f, n->b, &bounds[1])) return false;
    if (n->c && !run_eval(r, f, n->c, &bounds[2])) return false;
    return jinja_slice(r->j, object, bounds, out);
}

static bool eval_element(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue object, key;
    if (!run_eval(r, f, n->a, &object)) return false;
    r->j->line = n->line;
    if (n->b->kind == JN_SLICE) return eval_slice(r, f, n->b, &object, out);
    if (!run_eval(r, f, n->b, &key)) return false;
    r->j->line = n->line;
    if (object.kind == J_LOOP && jv_is_string(&key))
        return loop_attribute(object.u.loop, &object, &key, out);
    return jinja_element(r->j, &object, &key, out);
}

static bool eval_filter(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue subject = r->block_text;
    jargs  a;
    if (n->a && !run_eval(r, f, n->a, &subject)) return false;
    if (!run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    if (!n->native) return jinja_fail(r->j, "no filter of this name: '%.*s'", STR_ARG(jv_str(&n->value)));
    return jnative_call(r->j, n->native, &subject, &a, out);
}

static bool eval_test(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue subject;
    jargs  a;
    if (!run_eval(r, f, n->a, &subject) || !run_arguments(r, f, n->b, &a)) return false;
    r->j->line = n->line;
    if (!n->native) return jinja_fail(r->j, "no test of this name: '%.*s'", STR_ARG(jv_str(&n->value)));
    return jnative_call(r->j, n->native, &subject, &a, out);
}

static bool eval_unary(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue v;
    if (!run_eval(r, f, n->a, &v)) return false;
    r->j->line = n->line;
    if (n->kind == JN_NEGATE) return jinja_negate(r->j, &v, out);
    if (n->kind == JN_NOT) *out = jv_bool(!jv_true(&v));
    else if (!jv_is_number(&v)) return jinja_fail_type(r->j, "'+'", &v);
    else *out = v.kind == J_BOOL ? jv_int(v.u.i) : v;
    return true;
}

static bool eval_chain(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue left, right;
    if (!run_eval(r, f, n->a, &left)) return false;
    for (const jnode *link = n->b; link; link = link->next) {
        if (!run_eval(r, f, link->a, &right)) return false;
        r->j->line = link->line;
        if (!jinja_operate(r->j, (joperator)link->op, &left, &right, out)) return false;
        left = *out;
    }
    return true;
}

static bool eval_compare(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue left, right;
    int    is = 1;
    if (!run_eval(r, f, n->a, &left)) return false;
    for (const jnode *link = n->b; link && is; link = link->next) {
        if (!run_eval(r, f, link->a, &right)) return false;
        r->j->line = link->line;
        is         = jinja_relate(r->j, (joperator)link->op, &left, &right);
        if (is < 0) return false;
        left = right;
    }
    *out = jv_bool(is == 1);
    return true;
}

/* `and` and `or` give the operand that decides. */
static bool eval_logic(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    for (const jnode *operand = n->a; operand; operand = operand->next) {
        if (!run_eval(r, f, operand, out)) return false;
        if (jv_true(out) == (n->kind == JN_OR)) return true;
    }
    return true;
}

static bool eval_condition(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jvalue condition;
    if (!run_eval(r, f, n->a, &condition)) return false;
    if (jv_true(&condition)) return run_eval(r, f, n->b, out);
    if (n->c) return run_eval(r, f, n->c, out);
    *out = jv_undefined(JU_SENTENCE, str_c("an inline if without else was false"));
    return true;
}

static bool eval_by_kind(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    switch (n->kind) {
    case JN_TUPLE:
    case JN_LIST: return eval_items(r, f, n, out);
    case JN_DICT: return eval_dict(r, f, n, out);
    case JN_ATTRIBUTE: return eval_attribute(r, f, n, out);
    case JN_ELEMENT: return eval_element(r, f, n, out);
    case JN_CALL: return eval_call(r, f, n, out);
    case JN_FILTER: return eval_filter(r, f, n, out);
    case JN_TEST: return eval_test(r, f, n, out);
    case JN_NOT:
    case JN_NEGATE:
    case JN_PLUS: return eval_unary(r, f, n, out);
    case JN_CHAIN: return eval_chain(r, f, n, out);
    case JN_COMPARE: return eval_compare(r, f, n, out);
    case JN_AND:
    case JN_OR: return eval_logic(r, f, n, out);
    case JN_CONDITION: return eval_condition(r, f, n, out);
    default: return jinja_fail(r->j, "no expression");
    }
}

static bool run_eval(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    if (!jinja_step(r->j, 1)) return false;
    if (n->kind == JN_CONST) {
        *out = n->value;
        return true;
    }
    if (n->kind == JN_NAME) return eval_name(r, f, n, out);
    if (!jinja_enter(r->j)) return false;
    bool ok = eval_by_kind(r, f, n, out);
    jinja_leave(r->j);
    return ok;
}

/* ---- Statements ---- */

static jflow flow_of(bool ok) { return ok ? JFLOW_NEXT : JFLOW_FAIL; }

static jflow exec_output(jrun *r, jframe *f, const jnode *n) {
    jinja_region region;
    jvalue       v;
    if (n->a->kind == JN_CONST || n->a->kind == JN_NAME) return flow_of(run_eval(r, f, n->a, &v) && run_print(r, &v));
    jinja_region_open(r->j, &region);
    if (!jinja_step(r->j, 1) || !run_eval(r, f, n->a, &v) || !run_print(r, &v)) return JFLOW_FAIL;
    jinja_region_close(r->j, &region);
    return JFLOW_NEXT;
}

static jflow exec_if(jrun *r, jframe *f, const jnode *n) {
    for (const jnode *branch = n->a; branch; branch = branch->next) {
        jvalue v = jv_bool(true);
        if (branch->a && !run_eval(r, f, branch->a, &v)) return JFLOW_FAIL;
        if (jv_true(&v)) return run_statements(r, f, branch->b);
    }
    return JFLOW_NEXT;
}

static jflow exec_set(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    if (!run_eval(r, f, n->b, &v)) return JFLOW_FAIL;
    r->j->line = n->line;
    return flow_of(run_assign(r, f, n->a, false, &v));
}

/* Runs a body in a scope of its own and gives what it printed, through the filter that may follow. */
static jflow exec_captured(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    size_t start = capture_open(r);
    if (!scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    jflow flow = run_statements(r, f, n->c);
    if (flow == JFLOW_FAIL || !capture_close(r, start, out)) return JFLOW_FAIL;
    if (flow == JFLOW_NEXT && n->b) {
        r->block_text = *out;
        if (!run_eval(r, f, n->b, out)) return JFLOW_FAIL;
    }
    scope_leave(f, n->scope);
    return flow;
}

static jflow exec_set_block(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    jflow  flow = exec_captured(r, f, n, &v);
    return flow == JFLOW_NEXT ? flow_of(run_assign(r, f, n->a, false, &v)) : flow;
}

static jflow exec_filter_block(jrun *r, jframe *f, const jnode *n) {
    jvalue v;
    jflow  flow = exec_captured(r, f, n, &v);
    return flow == JFLOW_NEXT ? flow_of(run_print(r, &v)) : flow;
}

static bool run_make_macro(jrun *r, jframe *f, const jnode *n, jvalue *out) {
    jmacro *m = (jmacro *)jinja_alloc(r->j, sizeof *m);
    if (!m) return false;
    m->name      = n->kind == JN_MACRO ? n->value : jv_none();
    m->node      = n;
    m->outer     = f;
    *out         = jv_make(J_MACRO);
    out->u.macro = m;
    return true;
}

static jflow exec_macro(jrun *r, jframe *f, const jnode *n) {
    jvalue macro;
    if (!run_make_macro(r, f, n, &macro)) return JFLOW_FAIL;
    frame_out(f, n->up)->slots[n->slot] = macro;
    return JFLOW_NEXT;
}

/* The call gets the block's body as the argument `caller`. */
static jflow exec_call_block(jrun *r, jframe *f, const jnode *n) {
    jvalue callee, caller, v;
    jargs  a;
    if (!run_eval(r, f, n->b->a, &callee) || !run_arguments(r, f, n->b->b, &a)) return JFLOW_FAIL;
    jdict *names = jdict_open(r->j);
    if (!names || !run_make_macro(r, f, n, &caller)) return JFLOW_FAIL;
    for (uint32_t i = 0; i < a.n_named; i++)
        if (!jdict_set(r->j, names, &a.named[i].key, &a.named[i].value)) return JFLOW_FAIL;
    if (!jdict_set_c(r->j, names, "caller", caller)) return JFLOW_FAIL;
    a.named    = names->pairs;
    a.n_named  = names->n;
    r->j->line = n->line;
    return flow_of(run_call(r, &callee, &a, &v) && run_print(r, &v));
}

/* What a model has generated: printed like the rest, in a function of its own. */
static jflow exec_generation(jrun *r, jframe *f, const jnode *n) {
    jmacro m;
    jargs  none;
    jvalue text;
    memset(&none, 0, sizeof none);
    m.name  = jv_none();
    m.node  = n;
    m.outer = f;
    return flow_of(run_macro(r, &m, &none, &text) && run_print(r, &text));
}

static jflow exec_with(jrun *r, jframe *f, const jnode *n) {
    if (!scope_enter(r, f, n->scope)) return JFLOW_FAIL;
    const jnode *value = n->b;
    for (const jnode *target = n->a; target; target = target->next, value = value->next) {
        jvalue v;
        if (!run_eval(r, f, value, &v) || !run_assign(r, f, target, false, &v)) return JFLOW_FAIL;
    }
    jflow flow = run_statements(r, f, n->c);
    if (flow != JFLOW_FAIL) scope_leave(f, n->scope);
    return flow;
}

static jflow exec_by_kind(jrun *r, jframe *f, const jnode *n) {
    switch (n->kind) {
    case JN_DATA: return flow_of(run_print_bytes(r, n->value.u.s, n->value.n));
    case JN_OUTPUT: return exec_output(r, f, n);
    case JN_IF: return exec_if(r, f, n);
    case JN_FOR: return run_for(r, f, n);
    case JN_SET: return exec_set(r, f, n);
    case JN_SET_BLOCK: return exec_set_block(r, f, n);
    case JN_MACRO: return exec_macro(r, f, n);
    case JN_CALL_BLOCK: return exec_call_block(r, f, n);
    case JN_GENERATION: return exec_generation(r, f, n);
    case JN_FILTER_BLOCK: return exec_filter_block(r, f, n);
    case JN_WITH: return exec_with(r, f, n);
    case JN_BREAK: return JFLOW_BREAK;
    default: return JFLOW_CONTINUE;
    }
}

static jflow run_statements(jrun *r, jframe *f, const jnode *n) {
    jflow flow = JFLOW_NEXT;
    if (!n) return flow;
    if (!jinja_enter(r->j)) return JFLOW_FAIL;
    for (; n && flow == JFLOW_NEXT; n = n->next) {
        r->j->line = n->line;
        flow       = jinja_step(r->j, 1) ? exec_by_kind(r, f, n) : JFLOW_FAIL;
    }
    jinja_leave(r->j);
    return flow;
}

static bool jinja_run(jinja *j, str text, const jdict *variables, text_buffer *out) {
    jrun    r;
    jnode  *statements;
    jscope *root;
    memset(&r, 0, sizeof r);
    r.j          = j;
    r.variables  = variables;
    r.out        = out;
    r.block_text = jv_c("");
    text_init(&r.captured, &j->counted, 0);
    bool ok = jinja_parse(j, text, &statements) && jinja_bind(j, statements, &root);
    if (ok) {
        jframe *f = frame_open(&r, root->function, NULL);
        ok        = f && scope_enter(&r, f, root) && run_statements(&r, f, statements) == JFLOW_NEXT;
    }
    text_free(&r.captured);
    return ok;
}
