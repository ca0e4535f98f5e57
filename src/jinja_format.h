/* Formatting in templates: "..." % arguments and "...".format(arguments). */
#ifndef NOVA_JINJA_FORMAT_H
#define NOVA_JINJA_FORMAT_H

#include "jinja_text.h"

/* format % argument */
static bool format_percent(jinja *j, const jvalue *format, const jvalue *argument, jvalue *out);

/* How a field reaches into an argument: object.name, or object[name] (`element`). */
typedef bool (*format_reach_fn)(jinja *j, const jvalue *object, const jvalue *name, bool element, jvalue *out);

/* format.format(arguments) */
static bool format_fields(jinja *j, const jvalue *format, const jargs *a, format_reach_fn reach, jvalue *out);

#endif
