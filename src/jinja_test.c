/* What stands behind `is`: see jinja_test.h. Source: Jinja's "List of Builtin Tests". */
#include "jinja_test.h"

static const jnative *jinja_filter(str name);   /* for "is filter"; from further down */

static int jinja_call_test(jinja *j, const jnative *test, const jvalue *v, const jargs *a) {
    jvalue result = jv_bool(false);
    if (!jnative_call(j, test, v, a, &result)) return -1;
    return jv_true(&result);
}

static bool test_is(jvalue *out, bool is) {
    *out = jv_bool(is);
    return true;
}

#define JINJA_KIND_TEST(name, condition)                                                       \
    static bool test_##name(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {        \
        (void)j, (void)a;                                                                      \
        return test_is(out, condition);                                                        \
    }

JINJA_KIND_TEST(defined, self->kind != J_UNDEFINED)
JINJA_KIND_TEST(undefined, self->kind == J_UNDEFINED)
JINJA_KIND_TEST(none, self->kind == J_NONE)
JINJA_KIND_TEST(boolean, self->kind == J_BOOL)
JINJA_KIND_TEST(true, self->kind == J_BOOL && self->u.i)
JINJA_KIND_TEST(false, self->kind == J_BOOL && !self->u.i)
JINJA_KIND_TEST(integer, self->kind == J_INT || self->kind == J_BIG)
JINJA_KIND_TEST(float, self->kind == J_FLOAT)
JINJA_KIND_TEST(number, jv_is_number(self) || self->kind == J_BIG)
JINJA_KIND_TEST(string, self->kind == J_STRING)
JINJA_KIND_TEST(mapping, self->kind == J_DICT)
JINJA_KIND_TEST(sequence, jv_is_array(self) || self->kind == J_DICT || self->kind == J_STRING ||
                self->kind == J_RANGE || self->kind == J_UNDEFINED)
JINJA_KIND_TEST(iterable, jv_is_iterable(self) || self->kind == J_LOOP)
JINJA_KIND_TEST(callable, self->kind == J_MACRO || self->kind == J_METHOD || self->kind == J_FUNCTION ||
                self->kind == J_LOOP || self->kind == J_JOINER || self->kind == J_UNDEFINED)
JINJA_KIND_TEST(escaped, self->kind == J_STRING && (self->flags & J_SAFE))

static bool test_case(jinja *j, const jvalue *self, bool upper, jvalue *out) {
    jvalue s;
    return jv_to_string(j, self, &s) && jstr_is_case(j, &s, upper, out);
}

static bool test_lower(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return test_case(j, self, false, out);
}

static bool test_upper(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)a;
    return test_case(j, self, true, out);
}

static bool test_divides(jinja *j, const jvalue *self, const jvalue *by, int64_t rest, jvalue *out) {
    jvalue modulo, expected = jv_int(rest);
    if (!jinja_operate(j, JO_MOD, self, by, &modulo)) return false;
    int equal = jv_equal(j, &modulo, &expected);
    return equal >= 0 && test_is(out, equal == 1);
}

static bool test_divisibleby(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    return test_divides(j, self, &a->given[0], 0, out);
}

static bool test_even(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue two = jv_int(2);
    (void)a;
    return test_divides(j, self, &two, 0, out);
}

static bool test_odd(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    jvalue two = jv_int(2);
    (void)a;
    return test_divides(j, self, &two, 1, out);
}

static bool test_filter(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    return test_is(out, jv_is_string(self) && jinja_filter(jv_str(self)) != NULL);
}

static bool test_test(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    (void)j, (void)a;
    return test_is(out, jv_is_string(self) && jinja_test(jv_str(self)) != NULL);
}

/* The same object; for what has no identity here, the same kind and value. */
static bool test_sameas(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {
    const jvalue *b = &a->given[0];
    (void)j;
    if (self->kind != b->kind || self->n != b->n) return test_is(out, false);
    if (jv_is_string(self)) return test_is(out, jstring_equal(self, b));
    if (self->kind == J_NONE || self->kind == J_UNDEFINED) return test_is(out, true);
    if (self->kind == J_FLOAT) return test_is(out, self->u.f == b->u.f);
    if (jv_is_integer(self)) return test_is(out, self->u.i == b->u.i);
    return test_is(out, self->u.object == b->u.object);
}

#define JINJA_RELATION_TEST(name, op)                                                          \
    static bool test_##name(jinja *j, const jvalue *self, const jargs *a, jvalue *out) {        \
        int is = jinja_relate(j, op, self, &a->given[0]);                                      \
        return is >= 0 && test_is(out, is == 1);                                               \
    }

JINJA_RELATION_TEST(eq, JO_EQ)
JINJA_RELATION_TEST(ne, JO_NE)
JINJA_RELATION_TEST(lt, JO_LT)
JINJA_RELATION_TEST(le, JO_LE)
JINJA_RELATION_TEST(gt, JO_GT)
JINJA_RELATION_TEST(ge, JO_GE)
JINJA_RELATION_TEST(in, JO_IN)

static const jnative jinja_tests[] = {
    {"odd", "", 0, test_odd},
    {"even", "", 0, test_even},
    {"divisibleby", "num", 1, test_divisibleby},
    {"defined", "", 0, test_defined},
    {"undefined", "", 0, test_undefined},
    {"filter", "", 0, test_filter},
    {"test", "", 0, test_test},
    {"none", "", 0, test_none},
    {"boolean", "", 0, test_boolean},
    {"false", "", 0, test_false},
    {"true", "", 0, test_true},
    {"integer", "", 0, test_integer},
    {"float", "", 0, test_float},
    {"lower", "", 0, test_lower},
    {"upper", "", 0, test_upper},
    {"string", "", 0, test_string},
    {"mapping", "", 0, test_mapping},
    {"number", "", 0, test_number},
    {"sequence", "", 0, test_sequence},
    {"iterable", "", 0, test_iterable},
    {"callable", "", 0, test_callable},
    {"sameas", "other", 1, test_sameas},
    {"escaped", "", 0, test_escaped},
    {"in", "seq", 1, test_in},
    {"==", "other", 1, test_eq},
    {"eq", "other", 1, test_eq},
    {"equalto", "other", 1, test_eq},
    {"!=", "other", 1, test_ne},
    {"ne", "other", 1, test_ne},
    {">", "other", 1, test_gt},
    {"gt", "other", 1, test_gt},
    {"greaterthan", "other", 1, test_gt},
    {"ge", "other", 1, test_ge},
    {">=", "other", 1, test_ge},
    {"<", "other", 1, test_lt},
    {"lt", "other", 1, test_lt},
    {"lessthan", "other", 1, test_lt},
    {"<=", "other", 1, test_le},
    {"le", "other", 1, test_le},
};

static const jnative *jinja_test(str name) { return jnative_find(jinja_tests, COUNT_OF(jinja_tests), name); }
