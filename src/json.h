/* JSON text (RFC 8259) to template values: objects become dictionaries in their order, numbers as Python reads them. */
#ifndef NOVA_JSON_H
#define NOVA_JSON_H

#include "jinja_value.h"
#include "tokenizer.h"

/* Reads one value from `text`, which `what` names in errors (ARGUMENT: what, where, why). With `marks`, everything that
 * would be parsed as a control token is marked in all strings, keys included. */
static bool json_read(jinja *j, const char *what, str text, const tokenizer *marks, jvalue *out);
/* Any bytes as a string, marked likewise. */
static bool json_string(jinja *j, str bytes, const tokenizer *marks, jvalue *out);

#endif
