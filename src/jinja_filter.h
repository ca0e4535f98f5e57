/* The filters of Jinja 3.1 with those of chat templates (tojson), as far as chat templates may want them. */
#ifndef NOVA_JINJA_FILTER_H
#define NOVA_JINJA_FILTER_H

#include "jinja_test.h"

/* NULL: there is none of this name. Without `fn`: Jinja has it, this interpreter not. */
static const jnative *jinja_filter(str name);

#endif
