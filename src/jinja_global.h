/* The functions that every chat template has: Jinja's own, raise_exception and strftime_now. */
#ifndef NOVA_JINJA_GLOBAL_H
#define NOVA_JINJA_GLOBAL_H

#include "jinja_filter.h"

static const jnative *jinja_global(str name);   /* NULL: there is none of this name */

#endif
