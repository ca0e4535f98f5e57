/* Operators on values: see jinja_operate.h. */
#include "jinja_operate.h"

static bool jinja_fail_operands(jinja *j, const char *op, const jvalue *a, const jvalue *b) {
    if (a->kind == J_UNDEFINED) return jinja_fail_undefined(j, a);
    if (b->kind == J_UNDEFINED) return jinja_fail_undefined(j, b);
    return jinja_fail(j, "'%s' is not for a '%s' and a '%s'", op, jv_type(a), jv_type(b));
}

static bool jinja_fail_beyond(jinja *j) { return jinja_fail(j, "an integer beyond 64 bits"); }

static double jv_double(const jvalue *v) { return v->kind == J_FLOAT ? v->u.f : (double)v->u.i; }

/* ---- Integers, which end at 64 bits ---- */

static bool integer_multiply(int64_t a, int64_t b, int64_t *out) {
    if (a == 0 || b == 0) {
        *out = 0;
        return true;
    }
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    bool     negative = (a < 0) != (b < 0);
    if (x > (negative ? (uint64_t)1 << 63 : INT64_MAX) / y) return false;
    *out = (int64_t)(negative ? 0 - x * y : x * y);
    return true;
}

/* Rounded down; the rest has the divisor's sign. b is not 0; false beyond 64 bits. */
static bool integer_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *rest) {
    if (a == INT64_MIN && b == -1) return false;
    *quotient = a / b;
    *rest     = a % b;
    if (*rest != 0 && (*rest < 0) != (b < 0)) {
        *quotient -= 1;
        *rest += b;
    }
    return true;
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *out) {
    *out = 1;
    while (exponent > 0) {
        if ((exponent & 1) && !integer_multiply(*out, base, out)) return false;
        exponent >>= 1;
        if (exponent && !integer_multiply(base, base, &base)) return false;
    }
    return true;
}

static bool operate_integers(jinja *j, joperator op, int64_t a, int64_t b, jvalue *out) {
    int64_t x = 0, rest = 0;
    bool    fits = true;
    switch (op) {
    case JO_ADD:
        fits = b > 0 ? a <= INT64_MAX - b : a >= INT64_MIN - b;
        x    = fits ? a + b : 0;
        break;
    case JO_SUB:
        fits = b < 0 ? a <= INT64_MAX + b : a >= INT64_MIN + b;
        x    = fits ? a - b : 0;
        break;
    case JO_MUL: fits = integer_multiply(a, b, &x); break;
    case JO_FLOORDIV:
    case JO_MOD:
        if (b == 0) return jinja_fail(j, "division by zero");
        fits = integer_divide(a, b, &x, &rest);
        if (op == JO_MOD) x = fits ? rest : 0;
        fits = fits || op == JO_MOD;
        break;
    default: fits = integer_power(a, b, &x); break;
    }
    if (!fits) return jinja_fail_beyond(j);
    *out = jv_int(x);
    return true;
}

/* ---- Floats ---- */

static double float_modulo(double a, double b) {
    double m = fmod(a, b);
    if (m == 0) return copysign(0, b);
    return (m < 0) != (b < 0) ? m + b : m;
}

static double float_floor_divide(double a, double b) {
    double m = fmod(a, b), whole = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0)) whole -= 1;
    if (whole == 0) return copysign(0, a / b);
    double down = floor(whole);
    return whole - down > 0.5 ? down + 1 : down;
}

static bool operate_floats(jinja *j, joperator op, double a, double b, jvalue *out) {
    if ((op == JO_DIV || op == JO_FLOORDIV || op == JO_MOD) && b == 0) return jinja_fail(j, "division by zero");
    double x = 0;
    switch (op) {
    case JO_ADD: x = a + b; break;
    case JO_SUB: x = a - b; break;
    case JO_MUL: x = a * b; break;
    case JO_DIV: x = a / b; break;
    case JO_FLOORDIV: x = float_floor_divide(a, b); break;
    case JO_MOD: x = float_modulo(a, b); break;
    default:
        if (a == 0 && b < 0) return jinja_fail(j, "zero to a negative power");
        if (a < 0 && a - a == 0 && b - b == 0 && floor(b) != b) return jinja_fail(j, "a complex number");
        x = pow(a, b);
        if (x - x != 0 && a - a == 0 && b - b == 0) return jinja_fail(j, "a power is too large");
        break;
    }
    *out = jv_float(x);
    return true;
}

static bool operate_numbers(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out) {
    bool integers = jv_is_integer(a) && jv_is_integer(b);
    if (!integers || op == JO_DIV || (op == JO_POW && b->u.i < 0))
        return operate_floats(j, op, jv_double(a), jv_double(b), out);
    return operate_integers(j, op, a->u.i, b->u.i, out);
}

/* ---- Strings and lists ---- */

/* Markup escapes what it is added to. */
static bool operate_add_strings(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    jvalue x = *a, y = *b;
    bool   safe = ((a->flags | b->flags) & J_SAFE) != 0;
    if (safe && (!text_escape(j, a, &x) || !text_escape(j, b, &y))) return false;
    if (!jinja_concat(j, &x, &y, out)) return false;
    if (safe) out->flags |= J_SAFE;
    return true;
}

static bool operate_repeat_items(jinja *j, const jvalue *a, int64_t times, jvalue *out) {
    size_t n = 0, size = 0;
    if (times < 0) times = 0;
    if ((uint64_t)times > JINJA_MAX_BYTES || !size_mul(a->n, (size_t)times, &n) || n > JINJA_MAX_BYTES / sizeof *a)
        n = JINJA_MAX_BYTES;   /* fails just below */
    if (a->n == 0) n = 0;
    if (!size_mul(n, sizeof *a, &size) || !jinja_step(j, n >> 2)) return false;
    jvalue *items = (jvalue *)jinja_alloc(j, size);
    if (!items) return false;
    for (size_t i = 0; i < n; i++) items[i] = a->u.items[i % a->n];
    *out = jv_items((jkind)a->kind, items, n);
    return true;
}

static bool operate_add_items(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    size_t n = (size_t)a->n + b->n;
    if (!jinja_step(j, n >> 2)) return false;
    jvalue *items = (jvalue *)jinja_alloc(j, n * sizeof *items);   /* both fit, so their sum cannot overflow */
    if (!items) return false;
    if (a->n) memcpy(items, a->u.items, a->n * sizeof *items);
    if (b->n) memcpy(items + a->n, b->u.items, b->n * sizeof *items);
    *out = jv_items((jkind)a->kind, items, n);
    return true;
}

static bool operate_concat(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    jvalue x, y;
    return jv_to_string(j, a, &x) && jv_to_string(j, b, &y) && jinja_concat(j, &x, &y, out);
}

static bool operate_multiply(jinja *j, const jvalue *a, const jvalue *b, jvalue *out) {
    if (jv_is_integer(a)) {
        const jvalue *swap = a;
        a                  = b;
        b                  = swap;
    }
    if (jv_is_string(a) && jv_is_integer(b)) return text_repeat(j, a, b->u.i, out);
    if (jv_is_array(a) && jv_is_integer(b)) return operate_repeat_items(j, a, b->u.i, out);
    return jinja_fail_operands(j, "*", a, b);
}

static bool jinja_operate(jinja *j, joperator op, const jvalue *a, const jvalue *b, jvalue *out) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "**"};
    if (op == JO_CONCAT) return operate_concat(j, a, b, out);
    if (jv_is_number(a) && jv_is_number(b)) return operate_numbers(j, op, a, b, out);
    if (op == JO_ADD && jv_is_string(a) && jv_is_string(b)) return operate_add_strings(j, a, b, out);
    if (op == JO_ADD && jv_is_array(a) && a->kind == b->kind) return operate_add_items(j, a, b, out);
    if (op == JO_MUL) return operate_multiply(j, a, b, out);
    if (op == JO_MOD && jv_is_string(a)) return format_percent(j, a, b, out);
    return jinja_fail_operands(j, names[op], a, b);
}

static bool jinja_negate(jinja *j, const jvalue *a, jvalue *out) {
    if (a->kind == J_FLOAT) *out = jv_float(-a->u.f);
    else if (!jv_is_integer(a)) return jinja_fail_type(j, "'-'", a);
    else if (a->u.i == INT64_MIN) return jinja_fail_beyond(j);
    else *out = jv_int(-a->u.i);
    return true;
}

/* ---- Relations ---- */

/* item in container, with Python's rule for strings. */
static int relate_in(jinja *j, const jvalue *container, const jvalue *item) {
    size_t at, n;
    if (!jv_is_string(container)) return jv_contains(j, container, item);
    if (!jarg_string(j, item)) return -1;
    return text_find(j, container, 0, container->n, item, &at, &n);
}

static int jinja_relate(jinja *j, joperator op, const jvalue *a, const jvalue *b) {
    int result, sign = 0;
    switch (op) {
    case JO_EQ: return jv_equal(j, a, b);
    case JO_NE: result = jv_equal(j, a, b); return result < 0 ? -1 : !result;
    case JO_IN: return relate_in(j, b, a);
    case JO_NOT_IN: result = relate_in(j, b, a); return result < 0 ? -1 : !result;
    default: break;
    }
    if (!jv_compare(j, a, b, &sign)) return -1;
    switch (op) {
    case JO_LT: return sign == -1;
    case JO_LE: return sign == -1 || sign == 0;
    case JO_GT: return sign == 1;
    default: return sign == 1 || sign == 0;
    }
}
