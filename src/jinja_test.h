/* The tests of Jinja 3.1: what stands behind `is`. */
#ifndef NOVA_JINJA_TEST_H
#define NOVA_JINJA_TEST_H

#include "jinja_operate.h"

static const jnative *jinja_test(str name);   /* NULL: there is none of this name */
/* 1, 0, or -1 after a failure. */
static int jinja_call_test(jinja *j, const jnative *test, const jvalue *v, const jargs *a);

#endif
