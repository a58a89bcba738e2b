/* Filters over sequences and mappings. Those that jinja2 writes as generators are lazy: their values
 * can be walked once and have no length; all items are computed when the first one is asked for. */
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"

#define UNUSED(x) (void)(x)

/* An argument that may be left out or none. */
static bool is_given(struct value v)
{
    return v.type != V_MISSING && v.type != V_NONE;
}

/* ---- Attributes by path -------------------------------------------------------------------- */

/* "a.b.0" of an item; an integer or none too. */
struct path {
    struct value part[8];
    size_t n;
    struct value fallback; /* V_MISSING: none */
    bool fold;             /* strings to lower case */
};

static bool add_path_part(struct run *r, struct path *p, const struct string *s, size_t from,
                          size_t to)
{
    if (p->n == sizeof p->part / sizeof p->part[0])
        return run_error(r, "an attribute of more than %zu parts",
                         sizeof p->part / sizeof p->part[0]);
    struct value *v = &p->part[p->n++];
    bool valid = false;
    if (!string_part(r, s, from, to, v))
        return false;
    if (!string_is_all(v->u.string, CLASS_DIGIT))
        return true;
    struct value number;
    if (!parse_integer(r, v->u.string, 10, &valid, &number))
        return false;
    if (valid)
        *v = number;
    return true;
}

static bool path_open(struct run *r, struct path *p, struct value attribute, bool fold)
{
    *p = (struct path){.fold = fold};
    if (attribute.type == V_MISSING || attribute.type == V_NONE)
        return true;
    if (attribute.type != V_STRING) {
        p->part[p->n++] = attribute;
        return true;
    }
    const struct string *s = attribute.u.string;
    size_t from = 0;
    for (size_t i = 0; i <= s->n; i++) {
        if (i < s->n && s->s[i] != '.')
            continue;
        if (!add_path_part(r, p, s, from, i))
            return false;
        from = i + 1;
    }
    return true;
}

static bool path_get(struct run *r, const struct path *p, struct value item, struct value *out)
{
    for (size_t i = 0; i < p->n; i++) {
        if (!value_element(r, item, p->part[i], &item))
            return false;
        if (item.type == V_UNDEFINED && p->fallback.type > V_NONE)
            item = p->fallback;
    }
    *out = item;
    if (p->fold && item.type == V_STRING)
        return string_case(r, item.u.string, CASE_LOWER, out);
    return true;
}

/* ---- Sorting ------------------------------------------------------------------------------- */

struct sortable {
    struct value key, item;
};

/* Stable merge sort; scratch is as long as v. */
static bool merge_sort(struct run *r, struct sortable *v, struct sortable *scratch, size_t n,
                       bool reverse)
{
    if (n < 2)
        return true;
    size_t half = n / 2;
    if (!merge_sort(r, v, scratch, half, reverse) ||
        !merge_sort(r, v + half, scratch, n - half, reverse))
        return false;
    memcpy(scratch, v, half * sizeof *v);
    size_t i = 0, k = half, to = 0;
    while (i < half && k < n) {
        int order;
        struct value a = reverse ? scratch[i].key : v[k].key;
        struct value b = reverse ? v[k].key : scratch[i].key;
        if (!value_compare(r, "<", a, b, &order))
            return false;
        v[to++] = order < 0 ? v[k++] : scratch[i++];
    }
    while (i < half)
        v[to++] = scratch[i++];
    return true;
}

static bool sort_items(struct run *r, struct sortable *v, size_t n, bool reverse, struct value *out)
{
    struct sortable *scratch = run_array(r, n, sizeof *scratch);
    struct value *item = run_array(r, n, sizeof *item);
    if (!scratch || !item || !merge_sort(r, v, scratch, n, reverse))
        return false;
    for (size_t i = 0; i < n; i++)
        item[i] = v[i].item;
    return value_list(r, V_LIST, item, n, 0, out);
}

/* The key of an item under several attributes "a,b": a list. */
static bool sort_key(struct run *r, const struct path *path, size_t n, struct value item,
                     struct value *key)
{
    if (n == 1)
        return path_get(r, &path[0], item, key);
    struct value *part = run_array(r, n, sizeof *part);
    if (!part)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!path_get(r, &path[i], item, &part[i]))
            return false;
    return value_list(r, V_LIST, part, n, 0, key);
}

static bool filter_sort(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(raw);
    struct path path[4];
    size_t n_paths = 0, n;
    const struct value *item;
    bool fold = !value_truth(a[1]);
    if (a[2].type == V_STRING) {
        static const struct string comma = {.s = ",", .n = 1};
        struct value parts;
        if (!string_split(r, a[2].u.string, &comma, -1, false, &parts))
            return false;
        if (parts.u.list->n > sizeof path / sizeof path[0])
            return run_error(r, "sort by more than %zu attributes", sizeof path / sizeof path[0]);
        for (; n_paths < parts.u.list->n; n_paths++)
            if (!path_open(r, &path[n_paths], parts.u.list->item[n_paths], fold))
                return false;
    } else if (!path_open(r, &path[n_paths++], a[2], fold)) {
        return false;
    }
    if (!value_items(r, self, &item, &n))
        return false;
    struct sortable *v = run_array(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        v[i].item = item[i];
        if (!sort_key(r, path, n_paths, item[i], &v[i].key))
            return false;
    }
    return sort_items(r, v, n, value_truth(a[0]), out);
}

static bool filter_dictsort(struct run *r, struct value self, const struct value *a,
                            const struct args *raw, struct value *out)
{
    UNUSED(raw);
    bool by_value = false;
    if (a[1].type != V_MISSING) {
        by_value = a[1].type == V_STRING && string_is(a[1].u.string, "value");
        if (!by_value && !(a[1].type == V_STRING && string_is(a[1].u.string, "key")))
            return run_error(r, "You can only sort by either \"key\" or \"value\"");
    }
    if (self.type == V_UNDEFINED)
        return value_use_undefined(r, self);
    if (self.type != V_DICT)
        return run_error(r, "'%s' object has no attribute 'items'", value_type_name(self));
    const struct dict *d = self.u.dict;
    struct sortable *v = run_array(r, d->n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        v[i].key = by_value ? d->entry[i].value : d->entry[i].key;
        if (!value_truth(a[0]) && v[i].key.type == V_STRING &&
            !string_case(r, v[i].key.u.string, CASE_LOWER, &v[i].key))
            return false;
        if (!value_pair(r, d->entry[i].key, d->entry[i].value, &v[i].item))
            return false;
    }
    return sort_items(r, v, d->n, value_truth(a[2]), out);
}

static bool filter_groupby(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    UNUSED(raw);
    struct path by, real;
    const struct value *item;
    size_t n;
    struct value sorted;
    if (!path_open(r, &by, a[0], !value_truth(a[2])) || !path_open(r, &real, a[0], false) ||
        !value_items(r, self, &item, &n))
        return false;
    by.fallback = real.fallback = a[1];
    struct sortable *v = run_array(r, n, sizeof *v);
    struct value *group = run_array(r, n, sizeof *group);
    if (!v || !group)
        return false;
    for (size_t i = 0; i < n; i++) {
        v[i].item = item[i];
        if (!path_get(r, &by, item[i], &v[i].key))
            return false;
    }
    if (!sort_items(r, v, n, false, &sorted))
        return false;
    size_t n_groups = 0;
    for (size_t i = 0; i < n;) {
        size_t to = i + 1;
        bool same = true;
        struct value key, members;
        for (; to < n; to++) {
            if (!value_equal(r, v[i].key, v[to].key, &same))
                return false;
            if (!same)
                break;
        }
        if (!path_get(r, &real, v[i].item, &key) ||
            !value_list(r, V_LIST, sorted.u.list->item + i, to - i, 0, &members) ||
            !value_pair(r, key, members, &group[n_groups]))
            return false;
        struct list *l = run_alloc(r, sizeof *l);
        if (!l)
            return false;
        *l = *group[n_groups].u.list;
        l->is_group = true;
        group[n_groups++].u.list = l;
        i = to;
    }
    return value_list(r, V_LIST, group, n_groups, 0, out);
}

static bool filter_unique(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(raw);
    struct path path;
    const struct value *item;
    size_t n, kept = 0;
    struct value seen;
    if (!path_open(r, &path, a[1], !value_truth(a[0])) || !value_items(r, self, &item, &n) ||
        !value_dict(r, 0, 0, &seen))
        return false;
    struct value *v = run_array(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct value key;
        const struct value *found;
        if (!path_get(r, &path, item[i], &key) || !dict_find(r, seen.u.dict, key, &found))
            return false;
        if (found)
            continue;
        if (!dict_set(r, seen.u.dict, key, value_none()))
            return false;
        v[kept++] = item[i];
    }
    return value_generator(r, v, kept, out);
}

static bool extreme(struct run *r, struct value self, const struct value *a, bool max,
                    struct value *out)
{
    struct path path;
    const struct value *item;
    size_t n, best = 0;
    struct value best_key;
    if (!path_open(r, &path, a[1], !value_truth(a[0])) || !value_items(r, self, &item, &n))
        return false;
    if (n == 0) {
        *out = value_undefined_hint(r, "No aggregated item, sequence was empty.");
        return r->status == LATHE_OK;
    }
    if (!path_get(r, &path, item[0], &best_key))
        return false;
    for (size_t i = 1; i < n; i++) {
        struct value key;
        int order;
        if (!path_get(r, &path, item[i], &key) ||
            !value_compare(r, max ? ">" : "<", key, best_key, &order))
            return false;
        if (order != 2 && (max ? order > 0 : order < 0)) {
            best = i;
            best_key = key;
        }
    }
    *out = item[best];
    return true;
}

static bool filter_min(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(raw);
    return extreme(r, self, a, false, out);
}

static bool filter_max(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(raw);
    return extreme(r, self, a, true, out);
}

static bool filter_sum(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(raw);
    struct path path;
    const struct value *item;
    size_t n;
    if (!path_open(r, &path, a[0], false) || !value_items(r, self, &item, &n))
        return false;
    *out = a[1].type == V_MISSING ? value_int(0, 0) : a[1];
    if (out->type == V_STRING)
        return run_error(r, "sum() can't sum strings [use ''.join(seq) instead]");
    for (size_t i = 0; i < n; i++) {
        struct value v, sum = *out;
        if (!path_get(r, &path, item[i], &v) || !value_arithmetic(r, '+', sum, v, out))
            return false;
    }
    return true;
}

/* ---- One item, all items ------------------------------------------------------------------- */

static bool filter_length(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    size_t n;
    if (!value_length(r, self, &n))
        return false;
    unsigned char origin = self.type == V_STRING ? self.u.string->origin : self.origin;
    *out = value_int((int64_t)n, origin);
    return true;
}

static bool filter_first(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    if (self.type == V_GENERATOR && !generator_start(r, self.u.generator))
        return false;
    if (self.type == V_GENERATOR && self.u.generator->at < self.u.generator->n) {
        *out = self.u.generator->item[self.u.generator->at++];
        return true;
    }
    if (self.type == V_STRING && self.u.string->n)
        return value_element(r, self, value_int(0, 0), out);
    const struct value *item;
    size_t n;
    if (!value_items(r, self, &item, &n))
        return false;
    *out = n ? item[0] : value_undefined_hint(r, "No first item, sequence was empty.");
    return r->status == LATHE_OK;
}

static bool filter_last(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct value *item;
    size_t n;
    if (self.type == V_GENERATOR || !value_is_iterable(self))
        return run_error(r, "'%s' object is not reversible", value_type_name(self));
    if (self.type == V_STRING && self.u.string->n)
        return value_element(r, self, value_int(-1, 0), out);
    if (!value_items(r, self, &item, &n))
        return false;
    *out = n ? item[n - 1] : value_undefined_hint(r, "No last item, sequence was empty.");
    return r->status == LATHE_OK;
}

static bool filter_list(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct value *item;
    size_t n;
    return value_items(r, self, &item, &n) && value_list(r, V_LIST, item, n, self.origin, out);
}

static bool filter_reverse(struct run *r, struct value self, const struct value *a,
                           const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    const struct value *item;
    size_t n;
    if (self.type == V_STRING) {
        struct value none = {0};
        return value_slice(r, self, none, none, value_int(-1, 0), out);
    }
    if (!value_is_iterable(self))
        return run_error(r, "argument must be iterable");
    if (!value_items(r, self, &item, &n))
        return false;
    struct value *v = run_array(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++)
        v[i] = item[n - 1 - i];
    if (self.type == V_GENERATOR)
        return value_list(r, V_LIST, v, n, self.origin, out);
    return value_generator(r, v, n, out);
}

static bool filter_items(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(a), UNUSED(raw);
    if (self.type == V_UNDEFINED)
        return value_generator(r, NULL, 0, out);
    if (self.type != V_DICT)
        return run_error(r, "Can only get item pairs from a mapping.");
    struct value *v = run_array(r, self.u.dict->n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < self.u.dict->n; i++)
        if (!value_pair(r, self.u.dict->entry[i].key, self.u.dict->entry[i].value, &v[i]))
            return false;
    return value_generator(r, v, self.u.dict->n, out);
}

static bool filter_join(struct run *r, struct value self, const struct value *a,
                        const struct args *raw, struct value *out)
{
    UNUSED(raw);
    static const struct string nothing = {.s = "", .n = 0};
    const struct string *separator = &nothing;
    const struct value *item;
    struct path path;
    size_t n;
    if (a[0].type != V_MISSING && !value_to_string(r, a[0], &separator))
        return false;
    if (!path_open(r, &path, a[1], false) || !value_items(r, self, &item, &n))
        return false;
    if (path.n) {
        struct value *v = run_array(r, n, sizeof *v);
        if (!v)
            return false;
        for (size_t i = 0; i < n; i++)
            if (!path_get(r, &path, item[i], &v[i]))
                return false;
        item = v;
    }
    return string_join(r, separator, item, n, false, out);
}

static bool filter_batch(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct value *item;
    size_t n;
    int64_t count;
    if (!value_expect_integer(r, a[0], "batch", &count) || !value_items(r, self, &item, &n))
        return false;
    if (count < 1 || (uint64_t)count > 1000000)
        return run_error(r, "batch: a count of 1 to 1000000 is needed");
    size_t size = (size_t)count, n_rows = (n + size - 1) / size;
    struct value *row = run_array(r, n_rows, sizeof *row);
    if (!row)
        return false;
    for (size_t i = 0; i < n_rows; i++) {
        size_t from = i * size, have = n - from < size ? n - from : size;
        const struct value *v = item + from;
        if (have < size && is_given(a[1])) {
            struct value *filled = run_array(r, size, sizeof *filled);
            if (!filled)
                return false;
            memcpy(filled, v, have * sizeof *v);
            for (size_t k = have; k < size; k++)
                filled[k] = a[1];
            v = filled;
            have = size;
        }
        if (!value_list(r, V_LIST, v, have, 0, &row[i]))
            return false;
    }
    return value_generator(r, row, n_rows, out);
}

static bool filter_slice(struct run *r, struct value self, const struct value *a,
                         const struct args *raw, struct value *out)
{
    UNUSED(raw);
    const struct value *item;
    size_t n;
    int64_t count;
    if (!value_expect_integer(r, a[0], "slice", &count) || !value_items(r, self, &item, &n))
        return false;
    if (count < 1 || count > 1000000)
        return run_error(r, "slice: a count of 1 to 1000000 is needed");
    size_t slices = (size_t)count, each = n / slices, longer = n % slices, from = 0;
    struct value *row = run_array(r, slices, sizeof *row);
    if (!row)
        return false;
    for (size_t i = 0; i < slices; i++) {
        size_t have = each + (i < longer);
        const struct value *v = n ? item + from : NULL;
        from += have;
        if (i >= longer && is_given(a[1])) {
            struct value *filled = run_array(r, have + 1, sizeof *filled);
            if (!filled)
                return false;
            if (have)
                memcpy(filled, v, have * sizeof *v);
            filled[have++] = a[1];
            v = filled;
        }
        if (!value_list(r, V_LIST, v, have, 0, &row[i]))
            return false;
    }
    return value_generator(r, row, slices, out);
}

/* ---- A filter or test for every item ------------------------------------------------------- */

static bool filter_map(struct run *r, struct value self, const struct value *a,
                       const struct args *raw, struct value *out)
{
    UNUSED(a);
    if (!value_truth(self))
        return value_generator(r, NULL, 0, out);
    struct path path = {0};
    const struct builtin *filter = NULL;
    struct args rest = *raw;
    if (raw->n == 0) {
        struct value attribute = {0}, fallback = {0};
        for (size_t i = 0; i < raw->n_keyword; i++) {
            if (string_is(raw->keyword[i].name, "attribute"))
                attribute = raw->keyword[i].value;
            else if (string_is(raw->keyword[i].name, "default"))
                fallback = raw->keyword[i].value;
            else
                return run_error(r, "Unexpected keyword argument of map");
        }
        if (attribute.type == V_MISSING)
            return run_error(r, "map requires a filter argument");
        if (!path_open(r, &path, attribute, false))
            return false;
        path.fallback = fallback;
    } else {
        const struct string *name;
        if (!value_expect_string(r, raw->pos[0], "map", &name))
            return false;
        filter = filter_find(name->s, name->n);
        if (!filter)
            return run_error(r, "No filter named '%.*s'.", (int)(name->n < 60 ? name->n : 60),
                             name->s);
        rest.pos++;
        rest.n--;
    }
    const struct value *item;
    size_t n;
    if (!value_items(r, self, &item, &n))
        return false;
    struct value *v = run_array(r, n, sizeof *v);
    if (!v)
        return false;
    bool ok = run_enter(r);
    for (size_t i = 0; i < n && ok; i++)
        ok = run_steps(r, 1) && (filter ? builtin_call(r, "filter", filter, item[i], &rest, &v[i])
                                        : path_get(r, &path, item[i], &v[i]));
    run_leave(r);
    return ok && value_generator(r, v, n, out);
}

/* Keeps the items for which the test, or the truth, of the item or of its attribute is `wanted`. */
static bool select(struct run *r, struct value self, const struct args *raw, bool by_attribute,
                   bool wanted, struct value *out)
{
    if (!value_truth(self))
        return value_generator(r, NULL, 0, out);
    struct path path = {0};
    const struct builtin *test = NULL;
    struct args rest = *raw;
    if (by_attribute) {
        if (rest.n == 0)
            return run_error(r, "Missing parameter for attribute name");
        if (!path_open(r, &path, rest.pos[0], false))
            return false;
        rest.pos++;
        rest.n--;
    }
    if (rest.n) {
        const struct string *name;
        if (!value_expect_string(r, rest.pos[0], "select", &name))
            return false;
        test = test_find(name->s, name->n);
        if (!test)
            return run_error(r, "No test named '%.*s'.", (int)(name->n < 60 ? name->n : 60),
                             name->s);
        rest.pos++;
        rest.n--;
    }
    const struct value *item;
    size_t n, kept = 0;
    if (!value_items(r, self, &item, &n))
        return false;
    struct value *v = run_array(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        struct value x, holds;
        if (!run_steps(r, 1) || !path_get(r, &path, item[i], &x))
            return false;
        holds = x;
        if (test && !builtin_call(r, "test", test, x, &rest, &holds))
            return false;
        if (value_truth(holds) == wanted)
            v[kept++] = item[i];
    }
    return value_generator(r, v, kept, out);
}

static bool filter_select(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a);
    return select(r, self, raw, false, true, out);
}

static bool filter_reject(struct run *r, struct value self, const struct value *a,
                          const struct args *raw, struct value *out)
{
    UNUSED(a);
    return select(r, self, raw, false, false, out);
}

static bool filter_selectattr(struct run *r, struct value self, const struct value *a,
                              const struct args *raw, struct value *out)
{
    UNUSED(a);
    return select(r, self, raw, true, true, out);
}

static bool filter_rejectattr(struct run *r, struct value self, const struct value *a,
                              const struct args *raw, struct value *out)
{
    UNUSED(a);
    return select(r, self, raw, true, false, out);
}

const struct builtin filters_sequence[] = {
    {"batch", "linecount fill_with?", filter_batch, true},
    {"count", "", filter_length, false},
    {"dictsort", "case_sensitive? by? reverse?", filter_dictsort, false},
    {"first", "", filter_first, false},
    {"groupby", "attribute default? case_sensitive?", filter_groupby, false},
    {"items", "", filter_items, true},
    {"join", "d? attribute?", filter_join, false},
    {"last", "", filter_last, false},
    {"length", "", filter_length, false},
    {"list", "", filter_list, false},
    {"map", "*", filter_map, true},
    {"max", "case_sensitive? attribute?", filter_max, false},
    {"min", "case_sensitive? attribute?", filter_min, false},
    {"reject", "*", filter_reject, true},
    {"rejectattr", "*", filter_rejectattr, true},
    {"reverse", "", filter_reverse, false},
    {"select", "*", filter_select, true},
    {"selectattr", "*", filter_selectattr, true},
    {"slice", "slices fill_with?", filter_slice, true},
    {"sort", "reverse? case_sensitive? attribute?", filter_sort, false},
    {"sum", "attribute? start?", filter_sum, false},
    {"unique", "case_sensitive? attribute?", filter_unique, true},
    {0},
};
