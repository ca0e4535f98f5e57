/* Which variable a name means: see jinja_scope.h. Source of the rules: Jinja 3.1's idtracking and compiler. */
#include "jinja_scope.h"

/* ---- Scopes ---- */

static jscope *scope_open(jinja *j, jscope *parent, bool function) {
    jscope *s = (jscope *)jinja_alloc(j, sizeof *s);
    if (!s) return NULL;
    memset(s, 0, sizeof *s);
    s->parent     = parent;
    s->loop       = JSLOT_NONE;
    s->caller     = JSLOT_NONE;
    s->named      = JSLOT_NONE;
    s->positional = JSLOT_NONE;
    s->function   = parent ? parent->function : NULL;
    if (function || !parent) {
        s->function = (jfunction *)jinja_alloc(j, sizeof *s->function);
        if (!s->function) return NULL;
        s->function->n_slots = 0;
    }
    return s;
}

static jsymbol *scope_find(jinja *j, const jscope *s, str name) {
    jinja_step(j, s->n >> 3);
    for (uint32_t i = 0; i < s->n; i++)
        if (str_eq(s->symbols[i].name, name)) return &s->symbols[i];
    return NULL;
}

/* The sym of that name in `s` or around it; *up is how many functions out. */
static jsymbol *scope_find_around(jinja *j, const jscope *s, str name, uint32_t *up) {
    *up = 0;
    for (; s; s = s->parent) {
        jsymbol *found = scope_find(j, s, name);
        if (found) return found;
        if (s->parent && s->parent->function != s->function) ++*up;
    }
    return NULL;
}

static jsymbol *scope_define(jinja *j, jscope *s, str name, jload load) {
    jsymbol *sym = scope_find(j, s, name);
    if (!sym) {
        jsymbol *symbols = (jsymbol *)jinja_grow(j, s->symbols, s->n, &s->cap, sizeof *symbols);
        if (!symbols) return NULL;
        s->symbols   = symbols;
        sym       = &symbols[s->n++];
        sym->name = name;
        sym->slot = s->function->n_slots++;
    }
    sym->load       = load;
    sym->outer_up   = 0;
    sym->outer_slot = 0;
    return j->failed == NOVA_OK ? sym : NULL;
}

static bool scope_parameter(jinja *j, jscope *s, str name, uint32_t *slot) {
    jsymbol *sym = scope_define(j, s, name, JLOAD_PARAMETER);
    if (sym) *slot = sym->slot;
    return sym != NULL;
}

/* A name is read in `s`: when nothing around has it, the template's variable is meant. */
static bool scope_load(jinja *j, jscope *s, str name) {
    uint32_t up;
    if (scope_find_around(j, s, name, &up)) return j->failed == NOVA_OK;
    return scope_define(j, s, name, JLOAD_GIVEN) != NULL;
}

/* A name is assigned in `s`. `maybe`: in a branch of a condition, so that what was there before may stay. */
static bool scope_store(jinja *j, jscope *s, str name, bool maybe) {
    uint32_t up = 0;
    if (scope_find(j, s, name)) return j->failed == NOVA_OK;
    jsymbol *outer = s->parent ? scope_find_around(j, s->parent, name, &up) : NULL;
    if (outer && s->parent->function != s->function) up++;
    uint32_t outer_slot = outer ? outer->slot : 0;
    jsymbol *sym     = scope_define(j, s, name, outer ? JLOAD_OUTER : maybe ? JLOAD_GIVEN : JLOAD_NOTHING);
    if (!sym) return false;
    sym->outer_up   = up;
    sym->outer_slot = outer_slot;
    return true;
}

/* ---- First walk: what the statements of one scope read and assign, not those of the scopes inside ---- */

typedef struct binder {
    jinja   *j;
    uint32_t n_loops;   /* around, macros included */
} binder;

static bool collect_expression(binder *b, jscope *s, const jnode *n);

static bool collect_list(binder *b, jscope *s, const jnode *n) {
    for (; n; n = n->next)
        if (!collect_expression(b, s, n)) return false;
    return true;
}

static bool collect_expression(binder *b, jscope *s, const jnode *n) {
    if (!n) return true;
    if (!jinja_step(b->j, 1)) return false;
    if (n->kind == JN_NAME || n->kind == JN_MEMBER_TARGET) return scope_load(b->j, s, jv_str(&n->value));
    return collect_list(b, s, n->a) && collect_list(b, s, n->b) && collect_list(b, s, n->c);
}

/* A target of `set` (parameter false), or of a loop or `with`. */
static bool collect_target(binder *b, jscope *s, jnode *n, bool parameter, bool maybe) {
    uint32_t slot;
    if (n->kind == JN_TUPLE) {
        for (jnode *item = n->a; item; item = item->next)
            if (!collect_target(b, s, item, parameter, maybe)) return false;
        return true;
    }
    if (n->kind == JN_MEMBER_TARGET) return scope_load(b->j, s, jv_str(&n->value));
    if (parameter) return scope_parameter(b->j, s, jv_str(&n->value), &slot);
    return scope_store(b->j, s, jv_str(&n->value), maybe);
}

static bool collect_statements(binder *b, jscope *s, jnode *n, bool maybe) {
    for (; n; n = n->next) {
        bool ok = jinja_step(b->j, 1);
        switch (n->kind) {
        case JN_OUTPUT: ok = ok && collect_expression(b, s, n->a); break;
        case JN_IF:
            for (jnode *branch = n->a; branch && ok; branch = branch->next)
                ok = collect_expression(b, s, branch->a) && collect_statements(b, s, branch->b, true);
            break;
        case JN_FOR: ok = ok && collect_expression(b, s, n->b); break;
        case JN_SET: ok = ok && collect_expression(b, s, n->b) && collect_target(b, s, n->a, false, maybe); break;
        case JN_SET_BLOCK: ok = ok && collect_target(b, s, n->a, false, maybe); break;
        case JN_MACRO: ok = ok && scope_store(b->j, s, jv_str(&n->value), maybe); break;
        case JN_CALL_BLOCK: ok = ok && collect_expression(b, s, n->b); break;
        case JN_FILTER_BLOCK: ok = ok && collect_expression(b, s, n->b); break;
        case JN_WITH: ok = ok && collect_list(b, s, n->b); break;
        default: break;
        }
        if (!ok) return false;
    }
    return true;
}

/* ---- Second walk: places for names, and the scopes inside ---- */

static bool bind_statements(binder *b, jscope *s, jnode *n, bool soft);
static bool bind_expression(binder *b, jscope *s, jnode *n, bool soft);

static bool bind_list(binder *b, jscope *s, jnode *n, bool soft) {
    for (; n; n = n->next)
        if (!bind_expression(b, s, n, soft)) return false;
    return true;
}

static bool bind_name(binder *b, jscope *s, str name, jnode *n) {
    jsymbol *sym = scope_find_around(b->j, s, name, &n->up);
    b->j->line      = n->line;
    if (!sym) return jinja_fail(b->j, "'%.*s' is used where no scope knows it", STR_ARG(name));
    n->slot = sym->slot;
    return true;
}

/* A filter or test must be known; `soft`: only when it is used. */
static bool bind_native(binder *b, jnode *n, bool soft) {
    str name   = jv_str(&n->value);
    n->native  = n->kind == JN_FILTER ? jinja_filter(name) : jinja_test(name);
    b->j->line = n->line;
    if (n->native || soft) return true;
    return jinja_fail(b->j, "no %s of this name: '%.*s'", n->kind == JN_FILTER ? "filter" : "test", STR_ARG(name));
}

static bool bind_expression(binder *b, jscope *s, jnode *n, bool soft) {
    if (!n) return true;
    if (!jinja_step(b->j, 1)) return false;
    if (n->kind == JN_NAME || n->kind == JN_MEMBER_TARGET) return bind_name(b, s, jv_str(&n->value), n);
    if (n->kind == JN_CONDITION) soft = true;
    if ((n->kind == JN_FILTER || n->kind == JN_TEST) && !bind_native(b, n, soft)) return false;
    return bind_list(b, s, n->a, soft) && bind_list(b, s, n->b, soft) && bind_list(b, s, n->c, soft);
}

/* The places of a loop's target in the scope of its condition. */
static bool bind_test_target(binder *b, jscope *test, jnode *n) {
    for (jnode *item = n->kind == JN_TUPLE ? n->a : NULL; item; item = item->next)
        if (!bind_test_target(b, test, item)) return false;
    jsymbol *sym = n->kind == JN_NAME ? scope_find(b->j, test, jv_str(&n->value)) : NULL;
    if (sym) n->test_slot = sym->slot;
    return true;
}

static bool bind_refuse_loop(binder *b, const jnode *target) {
    for (const jnode *item = target->kind == JN_TUPLE ? target->a : NULL; item; item = item->next)
        if (!bind_refuse_loop(b, item)) return false;
    b->j->line = target->line;
    if (target->kind == JN_NAME && str_is(jv_str(&target->value), "loop"))
        return jinja_fail(b->j, "within a loop its variable 'loop' cannot be assigned");
    return true;
}

static bool bind_for(binder *b, jscope *s, jnode *n, bool soft) {
    if (!bind_expression(b, s, n->b, soft)) return false;
    jscope *body = scope_open(b->j, s, n->op != 0), *around = body;
    if (!body || !scope_parameter(b->j, body, str_c("loop"), &body->loop)) return false;
    b->n_loops++;
    if (!bind_refuse_loop(b, n->a) || !collect_target(b, body, n->a, true, false)) return false;
    if (!collect_statements(b, body, n->c, false) || !bind_expression(b, body, n->a, false)) return false;
    n->scope = body;
    if (n->op) {   /* what the condition and `else` see lies in the same frame, but is no part of the body */
        around = scope_open(b->j, s, false);
        if (!around) return false;
        around->function = body->function;
    }
    jscope *outside = n->op ? around : s;
    if (n->e) {
        jscope *test = scope_open(b->j, outside, false);
        if (!test || !collect_target(b, test, n->a, true, false) || !collect_expression(b, test, n->e)) return false;
        if (!bind_test_target(b, test, n->a) || !bind_expression(b, test, n->e, false)) return false;
        n->test_scope = test;
    }
    if (!bind_statements(b, body, n->c, false)) return false;
    b->n_loops--;
    if (n->d) {
        n->other_scope = scope_open(b->j, outside, false);
        if (!n->other_scope || !collect_statements(b, n->other_scope, n->d, false)) return false;
        if (!bind_statements(b, n->other_scope, n->d, false)) return false;
    }
    return true;
}

/* Is a name read anywhere in these statements? */
static bool bind_mentions(binder *b, const jnode *n, const char *name) {
    for (; n; n = n->next) {
        jinja_step(b->j, 1);
        if (n->kind == JN_NAME && str_is(jv_str(&n->value), name)) return true;
        if (bind_mentions(b, n->a, name) || bind_mentions(b, n->b, name) || bind_mentions(b, n->c, name) ||
            bind_mentions(b, n->d, name) || bind_mentions(b, n->e, name)) return true;
    }
    return false;
}

/* One of caller, kwargs, varargs: a parameter when the body reads it and no parameter has its name. */
static bool bind_special(binder *b, jscope *s, const jnode *n, const char *name, uint32_t *slot) {
    for (const jnode *p = n->a; p; p = p->next)
        if (str_is(jv_str(&p->value), name)) return true;
    if (!bind_mentions(b, n->c, name)) return true;
    return scope_parameter(b->j, s, str_c(name), slot);
}

/* A macro, call block or generation block: parameters and body in a function of their own. */
static bool bind_function(binder *b, jscope *s, jnode *n) {
    jscope *body = scope_open(b->j, s, true);
    if (!body) return false;
    for (jnode *p = n->a; p; p = p->next)
        if (!scope_parameter(b->j, body, jv_str(&p->value), &p->slot)) return false;
    if (!bind_special(b, body, n, "caller", &body->caller) || !bind_special(b, body, n, "kwargs", &body->named) ||
        !bind_special(b, body, n, "varargs", &body->positional)) return false;
    for (jnode *p = n->a; p; p = p->next) {
        if (!collect_expression(b, body, p->a)) return false;
        b->j->line = n->line;
        if (!p->a && str_is(jv_str(&p->value), "caller") && bind_mentions(b, n->c, "caller"))
            return jinja_fail(b->j, "a parameter 'caller' needs a default");
    }
    if (!collect_statements(b, body, n->c, false)) return false;
    for (jnode *p = n->a; p; p = p->next)
        if (!bind_expression(b, body, p->a, false)) return false;
    n->scope = body;
    return bind_statements(b, body, n->c, false);
}

/* A scope in the same function for a body, which a filter may follow. */
static bool bind_block(binder *b, jscope *s, jnode *n) {
    jscope *body = scope_open(b->j, s, false);
    if (!body) return false;
    n->scope = body;
    if (n->kind == JN_WITH)
        for (jnode *target = n->a; target; target = target->next)
            if (!collect_target(b, body, target, true, false)) return false;
    if (!collect_statements(b, body, n->c, false)) return false;
    if (n->kind == JN_WITH && !bind_list(b, body, n->a, false)) return false;
    if (n->kind != JN_WITH && !bind_expression(b, body, n->b, false)) return false;
    return bind_statements(b, body, n->c, false);
}

static bool bind_set(binder *b, jscope *s, jnode *n, bool soft) {
    if (b->n_loops && !bind_refuse_loop(b, n->a)) return false;
    if (!bind_expression(b, s, n->a, soft)) return false;
    return n->kind == JN_SET ? bind_expression(b, s, n->b, soft) : bind_block(b, s, n);
}

static bool bind_statements(binder *b, jscope *s, jnode *n, bool soft) {
    for (; n; n = n->next) {
        bool ok = jinja_step(b->j, 1);
        switch (n->kind) {
        case JN_OUTPUT: ok = ok && bind_expression(b, s, n->a, soft); break;
        case JN_IF:
            for (jnode *branch = n->a; branch && ok; branch = branch->next)
                ok = bind_expression(b, s, branch->a, true) && bind_statements(b, s, branch->b, true);
            break;
        case JN_FOR: ok = ok && bind_for(b, s, n, soft); break;
        case JN_SET:
        case JN_SET_BLOCK: ok = ok && bind_set(b, s, n, soft); break;
        case JN_MACRO: ok = ok && bind_name(b, s, jv_str(&n->value), n) && bind_function(b, s, n); break;
        case JN_CALL_BLOCK: ok = ok && bind_expression(b, s, n->b, soft) && bind_function(b, s, n); break;
        case JN_GENERATION: ok = ok && bind_function(b, s, n); break;
        case JN_FILTER_BLOCK: ok = ok && bind_block(b, s, n); break;
        case JN_WITH: ok = ok && bind_list(b, s, n->b, soft) && bind_block(b, s, n); break;
        default: break;
        }
        if (!ok) return false;
    }
    return true;
}

static bool jinja_bind(jinja *j, jnode *statements, jscope **out) {
    binder b;
    b.j       = j;
    b.n_loops = 0;
    *out      = scope_open(j, NULL, true);
    return *out && collect_statements(&b, *out, statements, false) && bind_statements(&b, *out, statements, false);
}
