/* Tokens to a tree: the grammar of Jinja 3.1 with the extensions of chat templates (break, continue, generation).
 * Blocks, inheritance, includes and imports have no meaning in a single template and are refused. */
#ifndef NOVA_JINJA_PARSE_H
#define NOVA_JINJA_PARSE_H

#include "jinja_lex.h"
#include "jinja_operate.h"

typedef enum jnode_kind {
    /* Expressions. A list is a chain by `next`. */
    JN_CONST,         /* value */
    JN_NAME,          /* value: the name; up, slot */
    JN_TUPLE,         /* a: items; also a target */
    JN_LIST,          /* a: items */
    JN_DICT,          /* a: key, value, key, value, ... */
    JN_ATTRIBUTE,     /* a.value */
    JN_ELEMENT,       /* a[b] */
    JN_SLICE,         /* as b of an element: a, b, c, each perhaps NULL */
    JN_CALL,          /* a(b: arguments) */
    JN_FILTER,        /* a | native(b: arguments); a NULL: the text of a block */
    JN_TEST,          /* a is native(b: arguments) */
    JN_NOT,           /* a */
    JN_NEGATE,        /* a */
    JN_PLUS,          /* a */
    JN_CHAIN,         /* a, then b: links of arithmetic, from left to right */
    JN_COMPARE,       /* a, then b: links of relations, all of which must hold */
    JN_AND,           /* a: operands */
    JN_OR,            /* a: operands */
    JN_CONDITION,     /* b if a else c (perhaps NULL) */
    JN_LINK,          /* op, a: an operand of a chain */
    JN_ARGUMENT,      /* a; op: a jargument; value: its name */
    JN_MEMBER_TARGET, /* value.b's value: what `set` may assign besides names; b: a constant */
    /* Statements */
    JN_DATA,          /* value: text */
    JN_OUTPUT,        /* a */
    JN_IF,            /* a: branches */
    JN_BRANCH,        /* a: condition, NULL for else; b: body */
    JN_FOR,           /* a: target, b: iterable, c: body, d: else, e: condition (perhaps NULL); op: recursive */
    JN_SET,           /* a: target, b: value */
    JN_SET_BLOCK,     /* a: target, b: filter or NULL, c: body */
    JN_MACRO,         /* value: name, a: parameters, c: body; up, slot of the name */
    JN_CALL_BLOCK,    /* a: parameters, b: call, c: body */
    JN_GENERATION,    /* c: body */
    JN_FILTER_BLOCK,  /* b: filter, c: body */
    JN_WITH,          /* a: targets, b: values, c: body */
    JN_BREAK,
    JN_CONTINUE,
    JN_PARAMETER      /* value: name, a: default or NULL; slot */
} jnode_kind;

typedef enum jargument { JA_PLAIN, JA_NAMED, JA_MANY, JA_MANY_NAMED } jargument;   /* x, name=x, *x, **x */

typedef struct jnode  jnode;
typedef struct jscope jscope;

struct jnode {
    uint8_t        kind, op, height;   /* height: 1 for a leaf, at most JINJA_MAX_NEST */
    uint32_t       line;
    jnode         *next, *a, *b, *c, *d, *e;
    jvalue         value;
    /* Filled in by jinja_bind. */
    uint32_t       up, slot;           /* of a name: so many functions out, and where in its frame */
    uint32_t       test_slot;          /* of a loop's target, for the loop's condition */
    const jnative *native;             /* of a filter or test; NULL: there is none of this name */
    jscope        *scope;              /* of the body */
    jscope        *other_scope;        /* of a loop's else */
    jscope        *test_scope;         /* of a loop's condition */
};

/* The statements of a template; NULL for an empty one, or after a failure. */
static bool jinja_parse(jinja *j, str text, jnode **out);

#endif
