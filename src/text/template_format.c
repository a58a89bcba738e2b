/* Formatting as Python does it: "%s" % values and "{}".format(values); and numbers from text. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/template_string.h"

enum { MAX_WIDTH = 100000, MAX_PRECISION = 100 };

struct spec {
    char fill[4];
    size_t n_fill;
    char align; /* < > ^ = or 0 */
    char sign;  /* + - blank or 0 */
    bool is_alternate, is_zero;
    char group;           /* , _ or 0 */
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
    unsigned char origin; /* of padding */
};

static bool put_fill(struct builder *b, const struct spec *f, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!builder_put(b, f->fill, f->n_fill, f->origin))
            return false;
    return true;
}

/* Puts s padded to the width; n_head bytes of it (the sign) stay before '=' padding. */
static bool put_padded(struct builder *b, const struct spec *f, const struct string *s,
                       size_t n_head, char align)
{
    size_t length = string_length(s), pad = 0;
    if (f->width > 0 && (size_t)f->width > length)
        pad = (size_t)f->width - length;
    size_t left = align == '<' ? 0 : align == '^' ? pad / 2 : pad;
    if (align == '=')
        return builder_put_part(b, s, 0, n_head) && put_fill(b, f, pad) &&
               builder_put_part(b, s, n_head, s->n);
    return put_fill(b, f, left) && builder_put_string(b, s) && put_fill(b, f, pad - left);
}

/* Separators into the whole part of a number: text is [sign][prefix]digits[rest]. */
static size_t group_digits(char *out, const char *digits, size_t n, char separator, size_t every)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (i && (n - i) % every == 0)
            out[k++] = separator;
        out[k++] = digits[i];
    }
    return k;
}

/* A number in text form: sign, prefix, digits, rest. */
static bool put_number(struct builder *b, const struct spec *f, bool negative, const char *prefix,
                       const char *digits, size_t n_whole, const char *rest, unsigned char origin)
{
    struct run *r = b->r;
    size_t n_rest = strlen(rest), n_prefix = strlen(prefix);
    size_t room = 2 * n_whole + n_rest + n_prefix + 2;
    char *s = run_alloc(r, room);
    if (!s)
        return false;
    size_t k = 0;
    if (negative)
        s[k++] = '-';
    else if (f->sign == '+' || f->sign == ' ')
        s[k++] = f->sign;
    memcpy(s + k, prefix, n_prefix);
    k += n_prefix;
    size_t head = k;
    if (f->group)
        k += group_digits(s + k, digits, n_whole, f->group,
                          f->type == 'x' || f->type == 'b' ? 4 : 3);
    else {
        memcpy(s + k, digits, n_whole);
        k += n_whole;
    }
    memcpy(s + k, rest, n_rest);
    k += n_rest;
    struct string text = {.s = s, .n = k, .origin = origin};
    return put_padded(b, f, &text, head, f->align ? f->align : '>');
}

static bool put_integer(struct builder *b, const struct spec *f, struct value v)
{
    char text[80];
    const char *digits = text, *prefix = "";
    bool negative;
    if (v.type == V_BIG) {
        if (f->type && f->type != 'd')
            return run_error(b->r, "formatting the integer %.40s, which is beyond 64 bits, as '%c'",
                             v.u.digits, f->type);
        negative = v.u.digits[0] == '-';
        digits = v.u.digits + negative;
    } else {
        int64_t i = value_integer(v);
        negative = i < 0;
        uint64_t u = negative ? 0 - (uint64_t)i : (uint64_t)i;
        if (f->type == 'x')
            (void)snprintf(text, sizeof text, "%" PRIx64, u);
        else if (f->type == 'X')
            (void)snprintf(text, sizeof text, "%" PRIX64, u);
        else if (f->type == 'o')
            (void)snprintf(text, sizeof text, "%" PRIo64, u);
        else if (f->type == 'b') {
            int n = 0;
            for (int bit = 63; bit >= 0; bit--)
                if (n || u >> bit & 1 || bit == 0)
                    text[n++] = (char)('0' + (u >> bit & 1));
            text[n] = 0;
        } else
            (void)snprintf(text, sizeof text, "%" PRIu64, u);
        if (f->is_alternate)
            prefix = f->type == 'x'   ? "0x"
                     : f->type == 'X' ? "0X"
                     : f->type == 'o' ? "0o"
                     : f->type == 'b' ? "0b"
                                      : "";
    }
    char padded[MAX_PRECISION + 1];
    size_t n = strlen(digits);
    if (f->precision > (int)n) { /* %.5d */
        size_t zeros = (size_t)f->precision - n;
        memset(padded, '0', zeros);
        memcpy(padded + zeros, digits, n + 1);
        digits = padded;
        n += zeros;
    }
    return put_number(b, f, negative, prefix, digits, n, "", v.origin);
}

/* Python's e, f, g and % formats are C's, and NaN and infinity are spelled in three letters. */
static bool put_real(struct builder *b, const struct spec *f, double x, unsigned char origin)
{
    char text[MAX_PRECISION + 400], pattern[16];
    bool negative = signbit(x) && !isnan(x), upper = f->type && isupper((unsigned char)f->type);
    char type = f->type == '%' ? 'f' : f->type;
    if (isnan(x) || isinf(x)) {
        (void)snprintf(text, sizeof text, "%s%s",
                       isnan(x) ? (upper ? "NAN" : "nan")
                       : upper  ? "INF"
                                : "inf",
                       f->type == '%' ? "%" : "");
        return put_number(b, f, negative, "", text, 0, text, origin);
    }
    x = fabs(x);
    if (f->type == '%')
        x *= 100;
    (void)snprintf(pattern, sizeof pattern, "%%%s.*%c", f->is_alternate ? "#" : "", type);
    int precision = f->precision < 0 ? 6 : f->precision;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)snprintf(text, sizeof text - 1, pattern, precision, x);
#pragma GCC diagnostic pop
    if (f->type == '%')
        strcat(text, "%");
    size_t whole = strspn(text, "0123456789");
    return put_number(b, f, negative, "", text, whole, text + whole, origin);
}

static bool put_text(struct builder *b, const struct spec *f, const struct string *s)
{
    struct value cut = value_string(s);
    if (f->precision >= 0 && !string_part(b->r, s, 0, string_offset(s, (size_t)f->precision), &cut))
        return false;
    return put_padded(b, f, cut.u.string, 0, f->align ? f->align : '<');
}

static bool put_character(struct builder *b, const struct spec *f, struct value v)
{
    if (v.type == V_STRING && string_length(v.u.string) == 1)
        return put_text(b, f, v.u.string);
    return run_error(b->r, "%%c needs a single character");
}

/* A float, or an integer as one. */
static bool put_as_real(struct builder *b, const struct spec *f, struct value v)
{
    return put_real(b, f, value_real(v), v.origin);
}

/* ---- % ------------------------------------------------------------------------------------- */

struct percent {
    struct run *r;
    const struct string *format;
    size_t at;
    struct value values;
    size_t next; /* of the values */
};

static bool next_value(struct percent *p, struct value *v)
{
    size_t n = p->values.type == V_TUPLE ? p->values.u.list->n : 1;
    if (p->next >= n)
        return run_error(p->r, "not enough arguments for format string");
    *v = p->values.type == V_TUPLE ? p->values.u.list->item[p->next] : p->values;
    p->next++;
    return true;
}

static char peek(const struct percent *p)
{
    return p->at < p->format->n ? p->format->s[p->at] : 0;
}

/* A number or `*` of the format; *n keeps its value if there is neither. */
static bool read_size(struct percent *p, int most, int *n)
{
    int64_t x = 0;
    if (peek(p) == '*') {
        struct value v;
        p->at++;
        if (!next_value(p, &v) || !value_expect_integer(p->r, v, "* in a format", &x))
            return false;
    } else if (!isdigit((unsigned char)peek(p))) {
        return true;
    } else {
        while (isdigit((unsigned char)peek(p)) && x <= most)
            x = x * 10 + (p->format->s[p->at++] - '0');
    }
    if (x > most || x < -most)
        return run_error(p->r, "a width or precision of more than %d in a format", most);
    *n = (int)x;
    return true;
}

/* %(name)s: *v is the member. */
static bool read_name(struct percent *p, struct value *v, bool *named)
{
    *named = peek(p) == '(';
    if (!*named)
        return true;
    size_t from = ++p->at;
    for (int level = 1; level; p->at++) {
        if (p->at >= p->format->n)
            return run_error(p->r, "incomplete format key");
        level += peek(p) == '(' ? 1 : peek(p) == ')' ? -1 : 0;
    }
    if (p->values.type != V_DICT)
        return run_error(p->r, "format requires a mapping");
    struct value key;
    const struct value *found;
    if (!string_part(p->r, p->format, from, p->at - 1, &key))
        return false;
    found = dict_get(p->values.u.dict, key.u.string);
    if (!found)
        return run_error(p->r, "KeyError: a format names a key that is not there");
    *v = *found;
    return true;
}

static bool put_percent(struct percent *p, struct builder *b, const struct spec *spec,
                        struct value v)
{
    struct spec f = *spec;
    struct value text;
    const struct string *s;
    struct builder quoted;
    switch (f.type) {
    case 's':
        return value_to_string(p->r, v, &s) && put_text(b, &f, s);
    case 'r':
        builder_init(&quoted, p->r);
        return print_repr(&quoted, v) && builder_string(&quoted, &text) &&
               put_text(b, &f, text.u.string);
    case 'c':
        return put_character(b, &f, v);
    default:
        break;
    }
    if (v.type == V_UNDEFINED)
        return value_use_undefined(p->r, v);
    if (!value_is_number(v))
        return run_error(p->r, "%%%c format: a real number is required, not %s", f.type,
                         value_type_name(v));
    if (strchr("eEfFgG", f.type)) {
        if (f.is_zero && f.align != '<')
            f.align = '=';
        return put_as_real(b, &f, v);
    }
    if (f.type == 'i' || f.type == 'u')
        f.type = 'd';
    if (!strchr("dxXo", f.type))
        return run_error(p->r, "unsupported format character '%c'", f.type);
    if (v.type == V_FLOAT) {
        if (f.type != 'd')
            return run_error(p->r, "%%%c format: an integer is required, not float", f.type);
        if (!(fabs(v.u.f) < 0x1p63))
            return run_error(p->r, "%%d of a float beyond 64 bits");
        v = value_int((int64_t)v.u.f, v.origin);
    }
    if (f.is_zero && f.align != '<')
        f.align = '=';
    return put_integer(b, &f, v);
}

bool string_percent(struct run *r, const struct string *format, struct value values,
                    struct value *out)
{
    struct percent p = {.r = r, .format = format, .values = values};
    struct builder b;
    builder_init(&b, r);
    while (p.at < format->n) {
        const char *mark = memchr(format->s + p.at, '%', format->n - p.at);
        size_t to = mark ? (size_t)(mark - format->s) : format->n;
        if (!builder_put_part(&b, format, p.at, to) || !run_steps(r, 1))
            return false;
        if (!mark)
            break;
        p.at = to + 1;
        struct spec f = {.fill = " ",
                         .n_fill = 1,
                         .precision = -1,
                         .origin = format->map ? format->map[to] : format->origin};
        struct value v = {0};
        bool named;
        if (!read_name(&p, &v, &named))
            return false;
        for (; peek(&p) && strchr("#0- +", peek(&p)); p.at++) {
            switch (peek(&p)) {
            case '#':
                f.is_alternate = true;
                break;
            case '0':
                f.is_zero = true;
                break;
            case '-':
                f.align = '<';
                break;
            default:
                f.sign = f.sign == '+' ? '+' : peek(&p);
            }
        }
        if (!read_size(&p, MAX_WIDTH, &f.width))
            return false;
        if (f.width < 0) {
            f.width = -f.width;
            f.align = '<';
        }
        if (peek(&p) == '.') {
            p.at++;
            f.precision = 0;
            if (!read_size(&p, MAX_PRECISION, &f.precision))
                return false;
            f.precision = f.precision < 0 ? 0 : f.precision;
        }
        while (peek(&p) && strchr("hlL", peek(&p)))
            p.at++;
        if (p.at >= format->n)
            return run_error(r, "incomplete format");
        f.type = format->s[p.at++];
        if (f.type == '%') {
            if (!builder_put_part(&b, format, p.at - 1, p.at))
                return false;
            continue;
        }
        if (!named && !next_value(&p, &v))
            return false;
        if (!f.align)
            f.align = '>';
        if (f.is_zero && !strchr("src", f.type) && f.align != '<')
            f.fill[0] = '0';
        if (!put_percent(&p, &b, &f, v))
            return false;
    }
    /* What can be subscripted counts as a mapping, of which not every member must be named. */
    bool is_mapping = values.type == V_DICT || values.type == V_LIST || values.type == V_RANGE ||
                      values.type == V_UNDEFINED;
    if (values.type == V_TUPLE ? p.next < values.u.list->n : p.next == 0 && !is_mapping)
        return run_error(r, "not all arguments converted during string formatting");
    return builder_string(&b, out);
}

/* ---- format() ------------------------------------------------------------------------------ */

static bool is_align(char c)
{
    return c == '<' || c == '>' || c == '^' || c == '=';
}

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
static bool read_spec(struct run *r, const char *s, size_t n, struct spec *f)
{
    size_t i = 0, first = 1;
    while (first < n && ((unsigned char)s[first] & 0xC0) == 0x80)
        first++;
    f->fill[0] = ' ';
    f->n_fill = 1;
    f->precision = -1;
    if (first < n && is_align(s[first])) {
        memcpy(f->fill, s, first);
        f->n_fill = first;
        f->align = s[first];
        i = first + 1;
    } else if (n && is_align(s[0])) {
        f->align = s[0];
        i = 1;
    }
    if (i < n && strchr("+- ", s[i]) && s[i])
        f->sign = s[i++];
    if (i < n && s[i] == '#') {
        f->is_alternate = true;
        i++;
    }
    if (i < n && s[i] == '0') {
        f->is_zero = true;
        if (!f->align) {
            f->align = '=';
            f->fill[0] = '0';
        }
        i++;
    }
    for (; i < n && isdigit((unsigned char)s[i]); i++)
        if ((f->width = f->width * 10 + (s[i] - '0')) > MAX_WIDTH)
            return run_error(r, "a width of more than %d in a format", MAX_WIDTH);
    if (i < n && (s[i] == ',' || s[i] == '_'))
        f->group = s[i++];
    if (i < n && s[i] == '.') {
        f->precision = 0;
        if (++i >= n || !isdigit((unsigned char)s[i]))
            return run_error(r, "Format specifier missing precision");
        for (; i < n && isdigit((unsigned char)s[i]); i++)
            if ((f->precision = f->precision * 10 + (s[i] - '0')) > MAX_PRECISION)
                return run_error(r, "a precision of more than %d in a format", MAX_PRECISION);
    }
    if (i < n)
        f->type = s[i++];
    return i == n || run_error(r, "Invalid format specifier '%.*s'", (int)(n < 60 ? n : 60), s);
}

static bool bad_type(struct run *r, const struct spec *f, struct value v)
{
    return run_error(r, "Unknown format code '%c' for object of type '%s'", f->type,
                     value_type_name(v));
}

static bool put_formatted(struct builder *b, struct value v, const char *spec, size_t n,
                          unsigned char origin)
{
    struct run *r = b->r;
    struct spec f = {.origin = origin};
    if (n == 0)
        return print_value(b, v);
    if (!read_spec(r, spec, n, &f))
        return false;
    if (v.type == V_STRING) {
        if ((f.type && f.type != 's') || f.sign || f.group || f.align == '=')
            return run_error(r, "a format for numbers, and a str");
        return put_text(b, &f, v.u.string);
    }
    if (!value_is_number(v))
        return run_error(r, "unsupported format string passed to %s.__format__",
                         value_type_name(v));
    if (v.type == V_FLOAT && !f.type && f.precision < 0) {
        char text[40];
        if (!real_text(r, fabs(v.u.f), text))
            return false;
        size_t whole = strspn(text, "0123456789");
        return put_number(b, &f, signbit(v.u.f) && !isnan(v.u.f), "", text, whole, text + whole,
                          v.origin);
    }
    if (v.type == V_FLOAT && !f.type)
        return run_error(r, "a precision without a type in a format");
    if (f.type && strchr("eEfFgG%", f.type))
        return put_as_real(b, &f, v);
    if (v.type == V_FLOAT || (f.type && !strchr("dxXob", f.type)))
        return bad_type(r, &f, v);
    if (f.precision >= 0)
        return run_error(r, "Precision not allowed in integer format specifier");
    return put_integer(b, &f, v);
}

struct fields {
    struct run *r;
    const struct args *args;
    size_t next; /* of the automatic numbers */
    bool is_automatic, is_manual;
};

/* The argument that s[0..n) names: a number, a name, or nothing; then .name and [key]. */
static bool find_field(struct fields *p, const struct string *s, size_t from, size_t to,
                       struct value *v)
{
    struct run *r = p->r;
    size_t i = from;
    while (i < to && s->s[i] != '.' && s->s[i] != '[')
        i++;
    bool number = true;
    size_t index = 0;
    for (size_t k = from; k < i; k++) {
        number = number && isdigit((unsigned char)s->s[k]);
        index = number && index < 1000000 ? index * 10 + (size_t)(s->s[k] - '0') : index;
    }
    if (number) {
        p->is_automatic |= i == from;
        p->is_manual |= i > from;
        if (p->is_automatic && p->is_manual)
            return run_error(r, "cannot switch between automatic field numbering and manual field "
                                "specification");
        if (i == from)
            index = p->next++;
        if (index >= p->args->n)
            return run_error(r, "Replacement index %zu out of range for positional args tuple",
                             index);
        *v = p->args->pos[index];
    } else {
        size_t k = 0;
        while (k < p->args->n_keyword &&
               !(p->args->keyword[k].name->n == i - from &&
                 !memcmp(p->args->keyword[k].name->s, s->s + from, i - from)))
            k++;
        if (k == p->args->n_keyword)
            return run_error(r, "KeyError: a format names a key that is not there");
        *v = p->args->keyword[k].value;
    }
    while (i < to) {
        struct value name, next;
        size_t end = i + 1;
        if (s->s[i] == '.') {
            while (end < to && s->s[end] != '.' && s->s[end] != '[')
                end++;
            if (!string_part(r, s, i + 1, end, &name) ||
                !value_attribute(r, *v, name.u.string, &next))
                return false;
        } else {
            while (end < to && s->s[end] != ']')
                end++;
            if (end == to)
                return run_error(r, "Missing ']' in format string");
            bool valid = false;
            if (!string_part(r, s, i + 1, end, &name))
                return false;
            if (isdigit((unsigned char)s->s[i + 1]) &&
                !parse_integer(r, name.u.string, 10, &valid, &next))
                return false;
            if (!value_element(r, *v, valid ? next : name, &next))
                return false;
            end++;
        }
        *v = next;
        i = end;
    }
    return true;
}

/* The field [from, to) between its braces: what!conversion:spec. */
static bool put_field(struct fields *p, struct builder *b, const struct string *s, size_t from,
                      size_t to)
{
    struct run *r = p->r;
    size_t end = from, spec = to;
    char conversion = 0;
    while (end < to && s->s[end] != '!' && s->s[end] != ':') {
        if (s->s[end] == '[')
            while (end < to && s->s[end] != ']')
                end++;
        end += end < to;
    }
    if (end < to && s->s[end] == '!') {
        if (end + 1 >= to || (end + 2 < to && s->s[end + 2] != ':'))
            return run_error(r, "expected ':' after conversion specifier");
        conversion = s->s[end + 1];
        spec = end + 2 < to ? end + 3 : to;
    } else if (end < to) {
        spec = end + 1;
    }
    struct value v;
    if (!find_field(p, s, from, end, &v))
        return false;
    if (conversion == 'r' || conversion == 's') {
        struct builder text;
        builder_init(&text, r);
        bool ok = conversion == 'r' ? print_repr(&text, v) : print_value(&text, v);
        if (!ok || !builder_string(&text, &v))
            return false;
    } else if (conversion) {
        return run_error(r, "Unknown conversion specifier '%c'", conversion);
    }
    if (memchr(s->s + spec, '{', to - spec))
        return run_error(r, "a replacement field inside a format specifier is not supported");
    unsigned char origin = s->map ? s->map[from ? from - 1 : 0] : s->origin;
    return put_formatted(b, v, s->s + spec, to - spec, origin);
}

bool string_format(struct run *r, const struct string *s, const struct args *args,
                   struct value *out)
{
    struct fields p = {.r = r, .args = args};
    struct builder b;
    builder_init(&b, r);
    size_t at = 0;
    while (at < s->n) {
        size_t i = at;
        while (i < s->n && s->s[i] != '{' && s->s[i] != '}')
            i++;
        if (!builder_put_part(&b, s, at, i) || !run_steps(r, 1))
            return false;
        if (i == s->n)
            break;
        if (i + 1 < s->n && s->s[i + 1] == s->s[i]) {
            if (!builder_put_part(&b, s, i, i + 1))
                return false;
            at = i + 2;
            continue;
        }
        if (s->s[i] == '}')
            return run_error(r, "Single '}' encountered in format string");
        size_t end = i + 1;
        for (int level = 1; level; end++) {
            if (end >= s->n)
                return run_error(r, "expected '}' before end of string");
            level += s->s[end] == '{' ? 1 : s->s[end] == '}' ? -1 : 0;
        }
        if (!put_field(&p, &b, s, i + 1, end - 1))
            return false;
        at = end;
    }
    return builder_string(&b, out);
}

/* ---- Numbers from text --------------------------------------------------------------------- */

/* The text without blanks around it and without underscores between digits; false if one stands
 * elsewhere or it is longer than any number. */
static bool plain_number(const struct string *s, char text[400])
{
    size_t from = 0, to = s->n, len, k = 0;
    while (from < to && (len = blank_at(s->s + from, to - from)))
        from += len;
    while (to > from && (len = blank_before(s->s + from, to - from)))
        to -= len;
    if (to == from || to - from >= 400)
        return false;
    for (size_t i = from; i < to; i++) {
        if (s->s[i] == '_') {
            if (i == from || i + 1 == to || !isalnum((unsigned char)s->s[i - 1]) ||
                !isalnum((unsigned char)s->s[i + 1]))
                return false;
            continue;
        }
        if (s->s[i] == 0)
            return false;
        text[k++] = s->s[i];
    }
    text[k] = 0;
    return true;
}

bool parse_integer(struct run *r, const struct string *s, int64_t base, bool *valid,
                   struct value *out)
{
    char text[400];
    unsigned char origin = s->map ? s->map[0] : s->origin;
    *valid = false;
    if (base != 0 && (base < 2 || base > 36))
        return run_error(r, "int() base must be >= 2 and <= 36, or 0");
    if (!plain_number(s, text))
        return true;
    const char *p = text;
    bool negative = *p == '-';
    p += *p == '-' || *p == '+';
    char mark = p[0] == '0' ? (char)tolower((unsigned char)p[1]) : 0;
    int of_mark = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (of_mark && (base == 0 || base == of_mark)) {
        base = of_mark;
        p += 2;
    } else if (base == 0) {
        if (p[0] == '0' && strspn(p, "0") < strlen(p))
            return true;
        base = 10;
    }
    if (!isalnum((unsigned char)*p))
        return true;
    char *end;
    errno = 0;
    unsigned long long u = strtoull(p, &end, (int)base);
    if (*end)
        return true;
    *valid = true;
    if (errno != ERANGE && u <= INT64_MAX) {
        *out = value_int(negative ? -(int64_t)u : (int64_t)u, origin);
        return true;
    }
    if (negative && errno != ERANGE && u == (uint64_t)INT64_MAX + 1) {
        *out = value_int(INT64_MIN, origin);
        return true;
    }
    if (base != 10)
        return run_error(r, "an integer beyond 64 bits in base %d", (int)base);
    p += strspn(p, "0");
    size_t n = strlen(p);
    char *digits = run_alloc(r, n + 2);
    if (!digits)
        return false;
    digits[0] = '-';
    memcpy(digits + negative, p, n + 1);
    *out = (struct value){.type = V_BIG, .origin = origin, .u.digits = digits};
    return true;
}

bool parse_real(const struct string *s, double *x)
{
    char text[400], word[12] = "";
    if (!plain_number(s, text))
        return false;
    const char *p = text + (text[0] == '-' || text[0] == '+');
    for (size_t i = 0; i < sizeof word - 1 && p[i]; i++)
        word[i] = (char)tolower((unsigned char)p[i]);
    bool is_word = !strcmp(word, "inf") || !strcmp(word, "infinity") || !strcmp(word, "nan");
    /* strtod also reads hexadecimal and nan(...), which Python does not. */
    if (!is_word && (p[strspn(p, "0123456789.eE+-")] || !strpbrk(p, "0123456789")))
        return false;
    if (!is_word && !isdigit((unsigned char)*p) && *p != '.')
        return false;
    char *end;
    *x = strtod(text, &end);
    return *end == 0;
}
