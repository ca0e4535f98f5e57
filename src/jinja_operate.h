/* Operators on values, as Python's types define them. */
#ifndef NOVA_JINJA_OPERATE_H
#define NOVA_JINJA_OPERATE_H

#include "jinja_member.h"

typedef enum joperator {
    JO_ADD, JO_SUB, JO_MUL, JO_DIV, JO_FLOORDIV, JO_MOD, JO_POW, JO_CONCAT,
    JO_EQ, JO_NE, JO_LT, JO_LE, JO_GT, JO_GE, JO_IN, JO_NOT_IN
} joperator;

/* JO_ADD to JO_CONCAT */
static bool jinja_operate(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out);
/* JO_EQ to JO_NOT_IN: 1, 0, or -1 after a failure. */
static int jinja_relate(jinja *j, joperator op, const jvalue *a, const jvalue *b);
static bool jinja_negate(jinja *j, const jvalue *a, jvalue *out);

#endif
