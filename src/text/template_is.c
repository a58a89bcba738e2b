/* Tests: x is t. */
#include <string.h>

#include "text/template_string.h"

#define UNUSED(x) (void)(x)

/* Tests that ask only for the type. */
#define TYPE_TEST(name, condition)                                                                 \
    static bool is_##name(struct run *r, struct value self, const struct value *a,                 \
                          const struct args *raw, struct value *out)                               \
    {                                                                                              \
        UNUSED(r), UNUSED(a), UNUSED(raw);                                                         \
        *out = value_bool(condition, 0);                                                           \
        return true;                                                                               \
    }

TYPE_TEST(defined, self.type != V_UNDEFINED)
TYPE_TEST(undefined, self.type == V_UNDEFINED)
TYPE_TEST(none, self.type == V_NONE)
TYPE_TEST(boolean, self.type == V_BOOL)
TYPE_TEST(true, self.type == V_BOOL && self.u.b)
TYPE_TEST(false, self.type == V_BOOL && !self.u.b)
TYPE_TEST(integer, self.type == V_INT || self.type == V_BIG)
TYPE_TEST(float, self.type == V_FLOAT)
TYPE_TEST(number, value_is_number(self))
TYPE_TEST(string, self.type == V_STRING)
TYPE_TEST(mapping, self.type == V_DICT)
TYPE_TEST(iterable, value_is_iterable(self) || self.type == V_LOOP)
TYPE_TEST(sequence, value_has_length(self) && self.type != V_VIEW && self.type != V_LOOP)
TYPE_TEST(escaped, self.type == V_STRING && self.u.string->is_markup)
/* The class of undefined values has __call__. */
TYPE_TEST(callable, self.type == V_UNDEFINED || self.type == V_MACRO || self.type == V_FUNCTION ||
                        self.type == V_METHOD || self.type == V_LOOP || self.type == V_JOINER)

static bool remainder_is(struct run *r, struct value v, struct value by, int64_t wanted,
                         struct value *out)
{
    struct value rest;
    bool equal;
    if (!value_arithmetic(r, '%', v, by, &rest) ||
        !value_equal(r, rest, value_int(wanted, 0), &equal))
        return false;
    *out = value_bool(equal, 0);
    return true;
}

static bool is_odd(struct run *r, struct value self, const struct value *a, const struct args *raw,
                   struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return remainder_is(r, self, value_int(2, 0), 1, out);
}

static bool is_even(struct run *r, struct value self, const struct value *a, const struct args *raw,
                    struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return remainder_is(r, self, value_int(2, 0), 0, out);
}

static bool is_divisibleby(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    UNUSED(raw);
    return remainder_is(r, self, a[0], 0, out);
}

static bool is_cased(struct run *r, struct value self, enum letter_case as, struct value *out)
{
    const struct string *s;
    if (!value_to_string(r, self, &s) || !run_bytes(r, s->n))
        return false;
    *out = value_bool(string_is_cased(s, as), 0);
    return true;
}

static bool is_lower(struct run *r, struct value self, const struct value *a,
                     const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return is_cased(r, self, CASE_LOWER, out);
}

static bool is_upper(struct run *r, struct value self, const struct value *a,
                     const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    return is_cased(r, self, CASE_UPPER, out);
}

static bool is_in(struct run *r, struct value self, const struct value *a, const struct args *raw,
                  struct value *out)
{
    UNUSED(raw);
    bool found;
    if (!value_contains(r, a[0], self, &found))
        return false;
    *out = value_bool(found, 0);
    return true;
}

/* The same object: for scalars, the same value of the same type. */
static bool is_sameas(struct run *r, struct value self, const struct value *a,
                      const struct args *raw, struct value *out)
{
    UNUSED(raw);
    bool same = self.type == a[0].type;
    if (same && (self.type == V_INT || self.type == V_BOOL))
        same = value_integer(self) == value_integer(a[0]);
    else if (same && self.type == V_STRING)
        same = self.u.string->s == a[0].u.string->s && self.u.string->n == a[0].u.string->n;
    else if (same && self.type == V_FLOAT)
        same = self.u.f == a[0].u.f;
    else if (same && self.type > V_FLOAT)
        same = self.u.list == a[0].u.list;
    *out = value_bool(same, 0);
    return r->status == LATHE_OK;
}

static bool is_unhashable(struct value v)
{
    return v.type == V_LIST || v.type == V_DICT ||
           (v.type == V_VIEW && v.u.view->of != VIEW_VALUES);
}

static bool is_filter(struct run *r, struct value self, const struct value *a,
                      const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    if (is_unhashable(self))
        return run_error(r, "unhashable type: '%s'", value_type_name(self));
    *out = value_bool(self.type == V_STRING && filter_find(self.u.string->s, self.u.string->n), 0);
    return true;
}

static bool is_test(struct run *r, struct value self, const struct value *a, const struct args *raw,
                    struct value *out)
{
    UNUSED(a), UNUSED(raw);
    if (is_unhashable(self))
        return run_error(r, "unhashable type: '%s'", value_type_name(self));
    *out = value_bool(self.type == V_STRING && test_find(self.u.string->s, self.u.string->n), 0);
    return true;
}

static bool equality(struct run *r, struct value x, struct value y, bool wanted, struct value *out)
{
    bool equal;
    if (!value_equal(r, x, y, &equal))
        return false;
    *out = value_bool(equal == wanted, 0);
    return true;
}

static bool is_eq(struct run *r, struct value self, const struct value *a, const struct args *raw,
                  struct value *out)
{
    UNUSED(raw);
    return equality(r, self, a[0], true, out);
}

static bool is_ne(struct run *r, struct value self, const struct value *a, const struct args *raw,
                  struct value *out)
{
    UNUSED(raw);
    return equality(r, self, a[0], false, out);
}

#define ORDER_TEST(name, op, condition)                                                            \
    static bool is_##name(struct run *r, struct value self, const struct value *a,                 \
                          const struct args *raw, struct value *out)                               \
    {                                                                                              \
        UNUSED(raw);                                                                               \
        int order;                                                                                 \
        if (!value_compare(r, op, self, a[0], &order))                                             \
            return false;                                                                          \
        *out = value_bool(order != 2 && (condition), 0);                                           \
        return true;                                                                               \
    }

ORDER_TEST(lt, "<", order < 0)
ORDER_TEST(le, "<=", order <= 0)
ORDER_TEST(gt, ">", order > 0)
ORDER_TEST(ge, ">=", order >= 0)

static const struct builtin tests[] = {
    {"odd", "", is_odd, false},
    {"even", "", is_even, false},
    {"divisibleby", "num", is_divisibleby, false},
    {"defined", "", is_defined, false},
    {"undefined", "", is_undefined, false},
    {"filter", "", is_filter, false},
    {"test", "", is_test, false},
    {"none", "", is_none, false},
    {"boolean", "", is_boolean, false},
    {"false", "", is_false, false},
    {"true", "", is_true, false},
    {"integer", "", is_integer, false},
    {"float", "", is_float, false},
    {"lower", "", is_lower, false},
    {"upper", "", is_upper, false},
    {"string", "", is_string, false},
    {"mapping", "", is_mapping, false},
    {"number", "", is_number, false},
    {"sequence", "", is_sequence, false},
    {"iterable", "", is_iterable, false},
    {"callable", "", is_callable, false},
    {"sameas", "other", is_sameas, false},
    {"escaped", "", is_escaped, false},
    {"in", "seq", is_in, false},
    {"==", "other", is_eq, false},
    {"eq", "other", is_eq, false},
    {"equalto", "other", is_eq, false},
    {"!=", "other", is_ne, false},
    {"ne", "other", is_ne, false},
    {">", "other", is_gt, false},
    {"gt", "other", is_gt, false},
    {"greaterthan", "other", is_gt, false},
    {"ge", "other", is_ge, false},
    {">=", "other", is_ge, false},
    {"<", "other", is_lt, false},
    {"lt", "other", is_lt, false},
    {"lessthan", "other", is_lt, false},
    {"<=", "other", is_le, false},
    {"le", "other", is_le, false},
    {0},
};

const struct builtin *test_find(const char *name, size_t n)
{
    for (const struct builtin *b = tests; b->name; b++)
        if (strlen(b->name) == n && memcmp(b->name, name, n) == 0)
            return b;
    return NULL;
}
