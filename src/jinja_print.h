/* Values to text and back: Python's str(), repr(), json.dumps(), int() and float(), whatever the locale is. */
#ifndef NOVA_JINJA_PRINT_H
#define NOVA_JINJA_PRINT_H

#include "jinja_value.h"

#define JFLOAT_TEXT 32

/* repr() of a float: the shortest digits that read back as the same number. Terminated; its length. */
static size_t jfloat_text(char out[JFLOAT_TEXT], double x);
/* printf's `format` ("%.*e", "%.*f" or "%.*g", perhaps with '#') with a point whatever the locale says. */
static size_t jfloat_format(char *out, size_t size, const char *format, int precision, double x);
/* digits[.digits][e[+-]digits], correctly rounded. The caller has checked the form. */
static double jfloat_parse(str digits);
/* float(text) and int(text, base) of Python. False when the text is no number; also for integers beyond 64 bits,
 * then *beyond is set. */
static bool jv_parse_float(str text, double *out);
static bool jv_parse_int(str text, int base, int64_t *out, bool *beyond);

static bool jtext_add_str(jtext *t, const jvalue *v);     /* str(v) */
static bool jtext_add_repr(jtext *t, const jvalue *v);    /* repr(v) */
static bool jv_to_string(jinja *j, const jvalue *v, jvalue *out);   /* str(v), never J_SAFE */
static bool jv_soft_string(jinja *j, const jvalue *v, jvalue *out); /* the same, but a string stays what it is */

typedef struct json_style {
    bool   ascii, sort_keys, lines;
    jvalue indent;           /* with `lines`: a string */
    jvalue comma, colon;     /* strings */
} json_style;

static bool jtext_add_json(jtext *t, const jvalue *v, const json_style *style);

#endif
