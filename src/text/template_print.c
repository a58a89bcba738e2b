/* str() and repr() of Python. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "text/template_string.h"
#include "text/template_tree.h"

bool real_text(struct run *r, double x, char text[40])
{
    if (isnan(x) || isinf(x)) {
        (void)snprintf(text, 40, "%s", isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return true;
    }
    struct buf b;
    buf_init(&b, 39);
    json_print_real(&b, x);
    bool ok = !b.no_memory && !b.over;
    if (ok)
        memcpy(text, b.data, b.len + 1);
    buf_release(&b);
    return ok || run_fail(r, LATHE_E_MEMORY, "out of memory (40 bytes)");
}

bool print_quoted(struct builder *b, const struct string *s, unsigned char origin)
{
    char quote = memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    if (!builder_put(b, &quote, 1, origin))
        return false;
    size_t from = 0, i = 0;
    while (i < s->n) {
        uint32_t c = 0;
        int32_t len = utf8_decode(s->s + i, s->n - i, &c);
        if (len <= 0)
            len = 1;
        char text[16] = "";
        if (c == '\\' || c == (unsigned char)quote)
            (void)snprintf(text, sizeof text, "\\%c", (int)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            (void)snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!character_is(c, CLASS_PRINTABLE))
            (void)snprintf(text, sizeof text,
                           c < 0x100     ? "\\x%02" PRIx32
                           : c < 0x10000 ? "\\u%04" PRIx32
                                         : "\\U%08" PRIx32,
                           c);
        if (*text) {
            if (!builder_put_part(b, s, from, i) ||
                !builder_puts(b, text, s->map ? s->map[i] : s->origin))
                return false;
            from = i + (size_t)len;
        }
        i += (size_t)len;
    }
    return builder_put_part(b, s, from, s->n) && builder_put(b, &quote, 1, origin);
}

static bool print_items(struct builder *b, const char *open, const struct value *item, size_t n,
                        const char *close, unsigned char origin)
{
    if (!builder_puts(b, open, origin))
        return false;
    for (size_t i = 0; i < n; i++)
        if ((i && !builder_puts(b, ", ", origin)) || !print_repr(b, item[i]))
            return false;
    return builder_puts(b, close, origin);
}

static bool print_dict(struct builder *b, const struct dict *d, unsigned char origin)
{
    if (!builder_puts(b, "{", origin))
        return false;
    for (size_t i = 0; i < d->n; i++)
        if ((i && !builder_puts(b, ", ", origin)) || !print_repr(b, d->entry[i].key) ||
            !builder_puts(b, ": ", origin) || !print_repr(b, d->entry[i].value))
            return false;
    return builder_puts(b, "}", origin);
}

static bool print_view(struct builder *b, struct value v)
{
    static const char *const open[] = {"dict_keys([", "dict_values([", "dict_items(["};
    const struct value *item;
    size_t n;
    return value_items(b->r, v, &item, &n) &&
           print_items(b, open[v.u.view->of], item, n, "])", v.origin);
}

static bool print_object(struct builder *b, struct value v)
{
    char text[64];
    const char *name = NULL;
    if (v.type == V_MACRO && v.u.macro->name)
        return builder_puts(b, "<Macro ", 0) && print_quoted(b, v.u.macro->name, 0) &&
               builder_puts(b, ">", 0);
    if (v.type == V_MACRO)
        name = "anonymous";
    if (v.type == V_FUNCTION)
        name = v.u.function->name;
    if (v.type == V_METHOD)
        name = v.u.method->builtin->name;
    (void)snprintf(text, sizeof text, "<%s%s%s>", value_type_name(v), name ? " " : "",
                   name ? name : "");
    return builder_puts(b, text, 0);
}

static bool repr_inner(struct builder *b, struct value v)
{
    char text[100];
    size_t n;
    switch ((enum value_type)v.type) {
    case V_MISSING:
        return true;
    case V_UNDEFINED:
        return builder_puts(b, "Undefined", 0);
    case V_NONE:
        return builder_puts(b, "None", v.origin);
    case V_BOOL:
        return builder_puts(b, v.u.b ? "True" : "False", v.origin);
    case V_INT:
        (void)snprintf(text, sizeof text, "%" PRId64, v.u.i);
        return builder_puts(b, text, v.origin);
    case V_BIG:
        return builder_puts(b, v.u.digits, v.origin);
    case V_FLOAT:
        return real_text(b->r, v.u.f, text) && builder_puts(b, text, v.origin);
    case V_STRING: {
        unsigned char origin = v.u.string->map ? 0 : v.u.string->origin;
        if (v.u.string->is_markup)
            return builder_puts(b, "Markup(", origin) && print_quoted(b, v.u.string, origin) &&
                   builder_puts(b, ")", origin);
        return print_quoted(b, v.u.string, origin);
    }
    case V_LIST:
        return print_items(b, "[", v.u.list->item, v.u.list->n, "]", v.origin);
    case V_TUPLE:
        return print_items(b, "(", v.u.list->item, v.u.list->n, v.u.list->n == 1 ? ",)" : ")",
                           v.origin);
    case V_DICT:
        return print_dict(b, v.u.dict, v.origin);
    case V_NAMESPACE:
        return builder_puts(b, "<Namespace ", v.origin) && print_dict(b, v.u.dict, v.origin) &&
               builder_puts(b, ">", v.origin);
    case V_VIEW:
        return print_view(b, v);
    case V_RANGE:
        (void)snprintf(text, sizeof text,
                       v.u.range->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
                       (long long)v.u.range->start, (long long)v.u.range->stop,
                       (long long)v.u.range->step);
        return builder_puts(b, text, v.origin);
    case V_LOOP:
        if (!loop_length(b->r, v.u.loop, &n))
            return false;
        (void)snprintf(text, sizeof text, "<LoopContext %zu/%zu>", loop_index(v.u.loop), n);
        return builder_puts(b, text, 0);
    case V_GENERATOR:
    case V_MACRO:
    case V_FUNCTION:
    case V_METHOD:
    case V_CYCLER:
    case V_JOINER:
        return print_object(b, v);
    }
    return true;
}

bool print_repr(struct builder *b, struct value v)
{
    bool ok = run_enter(b->r) && run_steps(b->r, 1) && repr_inner(b, v);
    run_leave(b->r);
    return ok;
}

bool print_value(struct builder *b, struct value v)
{
    if (v.type == V_STRING)
        return builder_put_string(b, v.u.string);
    if (v.type == V_UNDEFINED)
        return true;
    return print_repr(b, v);
}
