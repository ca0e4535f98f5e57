/* What a value has: object.name and object[key] with all methods of Python's types that the sandbox allows. */
#ifndef NOVA_JINJA_MEMBER_H
#define NOVA_JINJA_MEMBER_H

#include "jinja_format.h"

/* object.name: the attribute, else the element, else undefined. Fails for a member of something undefined. */
static bool jinja_attribute(jinja *j, const jvalue *object, const jvalue *name, jvalue *out);
/* object[key]: the element, else the attribute, else undefined. */
static bool jinja_element(jinja *j, const jvalue *object, const jvalue *key, jvalue *out);
/* object[a:b:c] */
static bool jinja_slice(jinja *j, const jvalue *object, const jvalue bounds[3], jvalue *out);

/* Arguments of natives: a missing one, and none, is the fallback. */
static bool jarg_int(jinja *j, const jvalue *v, int64_t fallback, int64_t *out);
static bool jarg_string(jinja *j, const jvalue *v);   /* fails when it is no string */
NOVA_INLINE bool jarg_true(const jvalue *v, bool fallback) { return jv_given(v) ? jv_true(v) : fallback; }
/* sep.join(items): of strings alone, or of anything (`any`). */
static bool jinja_join(jinja *j, const jvalue *between, const jvalue *items, bool any, jvalue *out);

#endif
