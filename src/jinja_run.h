/* Runs a template: the tree of jinja_parse, bound by jinja_scope, over given variables. */
#ifndef NOVA_JINJA_RUN_H
#define NOVA_JINJA_RUN_H

#include "jinja_global.h"
#include "jinja_scope.h"

/* Appends what the template prints to `out`, whose memory counts against JINJA_MAX_BYTES. */
static bool jinja_run(jinja *j, str text, const jdict *variables, text_buffer *out);

#endif
