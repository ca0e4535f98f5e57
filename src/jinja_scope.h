/* Which variable a name means. Jinja compiles a template to Python functions, and what a name sees follows from that:
 * `if` opens no scope; a loop's body opens one that begins anew with every turn; a macro sees what surrounds it as it
 * is when it is called; and what a scope assigns only further down is undefined above, even if the template was given a
 * variable of that name. This module decides all that before the template runs: every name becomes a place in the
 * frame of a function, so many functions out. */
#ifndef NOVA_JINJA_SCOPE_H
#define NOVA_JINJA_SCOPE_H

#include "jinja_filter.h"
#include "jinja_parse.h"

/* What a variable holds when its scope begins. */
typedef enum jload {
    JLOAD_PARAMETER,  /* what the caller put there */
    JLOAD_GIVEN,      /* the template's variable of that name, or nothing */
    JLOAD_OUTER,      /* what the variable of that name around holds now */
    JLOAD_NOTHING
} jload;

typedef struct jsymbol {
    str      name;
    jload    load;
    uint32_t slot;
    uint32_t outer_up, outer_slot;
} jsymbol;

/* What runs in a frame of its own: the template, a macro, a recursive loop. */
typedef struct jfunction {
    uint32_t n_slots;
} jfunction;

#define JSLOT_NONE UINT32_MAX

struct jscope {
    jscope    *parent;
    jfunction *function;
    jsymbol   *symbols;
    uint32_t   n, cap;
    uint32_t   loop;                        /* of a loop's body: the slot of `loop` */
    uint32_t   caller, named, positional;   /* of a macro: the slots of caller, kwargs, varargs, or JSLOT_NONE */
};

/* Binds all names, and all filters and tests, which must be known unless they stand in the branch of a condition. */
static bool jinja_bind(jinja *j, jnode *statements, jscope **out);

#endif
