/* Arithmetic of Python: + - * / // % ** of numbers, + and * and % of sequences and strings. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"

static bool overflow(struct run *r, const char *op)
{
    return run_error(r, "the result of %s is beyond 64 bits", op);
}

/* floor(a / b) and the remainder that has b's sign. */
static void floor_divide(int64_t a, int64_t b, int64_t *quotient, int64_t *remainder)
{
    if (b == -1) { /* INT64_MIN / -1 traps; the caller refuses that quotient */
        *quotient = a == INT64_MIN ? a : -a;
        *remainder = 0;
        return;
    }
    *quotient = a / b;
    *remainder = a % b;
    if (*remainder && (*remainder < 0) != (b < 0)) {
        *quotient -= 1;
        *remainder += b;
    }
}

static bool power(struct run *r, int64_t base, int64_t exponent, int64_t *out)
{
    int64_t result = 1;
    while (exponent > 0) {
        if (exponent & 1 && __builtin_mul_overflow(result, base, &result))
            return overflow(r, "**");
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base))
            return overflow(r, "**");
    }
    *out = result;
    return true;
}

static bool integers(struct run *r, char op, int64_t a, int64_t b, unsigned char origin,
                     struct value *out)
{
    int64_t x = 0, y;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &x);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &x);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &x);
        break;
    case '/':
        if (b == 0)
            return run_error(r, "division by zero");
        *out = value_float((double)a / (double)b, origin);
        return true;
    case 'f':
    case '%':
        if (b == 0)
            return run_error(r, "integer division or modulo by zero");
        floor_divide(a, b, &x, &y);
        over = op == 'f' && a == INT64_MIN && b == -1;
        x = op == 'f' ? x : y;
        break;
    case 'p':
        if (b < 0 && a == 0)
            return run_error(r, "0.0 cannot be raised to a negative power");
        if (b < 0) {
            *out = value_float(pow((double)a, (double)b), origin);
            return true;
        }
        if (!power(r, a, b, &x))
            return false;
        break;
    default:
        break;
    }
    if (over)
        return overflow(r, op == 'f' ? "//" : op == '+' ? "+" : op == '-' ? "-" : "*");
    *out = value_int(x, origin);
    return true;
}

/* float_divmod of CPython. */
static void real_divide(double a, double b, double *quotient, double *remainder)
{
    double mod = fmod(a, b), div = (a - mod) / b;
    if (mod != 0) {
        if ((b < 0) != (mod < 0)) {
            mod += b;
            div -= 1;
        }
    } else {
        mod = copysign(0, b);
    }
    double whole = div != 0 ? floor(div) : copysign(0, a / b);
    if (div != 0 && div - whole > 0.5)
        whole += 1;
    *quotient = whole;
    *remainder = mod;
}

static bool reals(struct run *r, char op, double a, double b, unsigned char origin,
                  struct value *out)
{
    double x = 0, y;
    switch (op) {
    case '+':
        x = a + b;
        break;
    case '-':
        x = a - b;
        break;
    case '*':
        x = a * b;
        break;
    case '/':
    case 'f':
    case '%':
        if (b == 0)
            return run_error(r, op == '/' ? "float division by zero" : "float modulo");
        if (op == '/') {
            x = a / b;
        } else {
            real_divide(a, b, &x, &y);
            x = op == 'f' ? x : y;
        }
        break;
    case 'p':
        if (a == 0 && b < 0)
            return run_error(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
            return run_error(r, "a negative number cannot be raised to a fractional power");
        x = pow(a, b);
        if (isinf(x) && isfinite(a) && isfinite(b))
            return run_error(r, "(34, 'Numerical result out of range')");
        break;
    default:
        break;
    }
    *out = value_float(x, origin);
    return true;
}

static bool repeat(struct run *r, struct value v, struct value times, struct value *out)
{
    int64_t n;
    if (!value_expect_integer(r, times, "*", &n))
        return false;
    if (v.type == V_STRING)
        return string_repeat(r, v.u.string, n, out);
    const struct list *l = v.u.list;
    size_t count = n > 0 ? (size_t)n : 0;
    if (l->n && count > SIZE_MAX / 64 / l->n)
        return run_error(r, "a list of more than %zu items", SIZE_MAX / 64);
    if (!run_steps(r, count * l->n / 4 + (l->n ? count / 4 : 0)))
        return false;
    struct value *item = run_array(r, count * l->n, sizeof *item);
    if (!item)
        return false;
    for (size_t i = 0; l->n && i < count; i++)
        memcpy(item + i * l->n, l->item, l->n * sizeof *item);
    return value_list(r, (enum value_type)v.type, item, count * l->n, v.origin, out);
}

static bool is_repeatable(struct value v)
{
    return v.type == V_STRING || v.type == V_LIST || v.type == V_TUPLE;
}

bool value_arithmetic(struct run *r, char op, struct value a, struct value b, struct value *out)
{
    if (op == '%' && a.type == V_STRING)
        return string_percent(r, a.u.string, b, out);
    if (a.type == V_UNDEFINED)
        return value_use_undefined(r, a);
    if (b.type == V_UNDEFINED)
        return value_use_undefined(r, b);
    unsigned char origin = a.origin > b.origin ? a.origin : b.origin;
    if (value_is_integer(a) && value_is_integer(b))
        return integers(r, op, value_integer(a), value_integer(b), origin, out);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != V_FLOAT && b.type != V_FLOAT)
            return run_error(r, "arithmetic with the integer %.40s, which is beyond 64 bits",
                             a.type == V_BIG ? a.u.digits : b.u.digits);
        return reals(r, op, value_real(a), value_real(b), origin, out);
    }
    if (op == '+' && a.type == V_STRING && b.type == V_STRING)
        return string_add(r, a.u.string, b.u.string, out);
    if (op == '+' && a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE))
        return list_concat(r, a, b, out);
    if (op == '*' && is_repeatable(a) && value_is_integer(b))
        return repeat(r, a, b, out);
    if (op == '*' && is_repeatable(b) && value_is_integer(a))
        return repeat(r, b, a, out);
    const char *name = op == 'f' ? "//" : op == 'p' ? "** or pow()" : NULL;
    char one[2] = {op, 0};
    return run_error(r, "unsupported operand type(s) for %s: '%s' and '%s'", name ? name : one,
                     value_type_name(a), value_type_name(b));
}

static bool sign(struct run *r, struct value v, bool negate, struct value *out)
{
    if (v.type == V_UNDEFINED)
        return value_use_undefined(r, v);
    if (value_is_integer(v)) {
        int64_t i = value_integer(v);
        if (negate && i == INT64_MIN)
            return overflow(r, "-");
        *out = value_int(negate ? -i : i, v.origin);
        return true;
    }
    if (v.type == V_FLOAT) {
        *out = value_float(negate ? -v.u.f : v.u.f, v.origin);
        return true;
    }
    if (v.type == V_BIG) {
        *out = v;
        if (!negate)
            return true;
        if (v.u.digits[0] == '-') {
            out->u.digits = v.u.digits + 1;
            return true;
        }
        size_t n = strlen(v.u.digits);
        char *s = run_alloc(r, n + 2);
        if (!s)
            return false;
        s[0] = '-';
        memcpy(s + 1, v.u.digits, n + 1);
        out->u.digits = s;
        return true;
    }
    return run_error(r, "bad operand type for unary %c: '%s'", negate ? '-' : '+',
                     value_type_name(v));
}

bool value_negate(struct run *r, struct value v, struct value *out)
{
    return sign(r, v, true, out);
}

bool value_plus(struct run *r, struct value v, struct value *out)
{
    return sign(r, v, false, out);
}
