#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_escape(struct buf *out, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        buf_append(out, s + from, i - from);
        from = i + 1;
        static const char name[] = "\b\f\n\r\t\"\\", letter[] = "bfnrt\"\\";
        const char *p = c ? strchr(name, c) : NULL;
        if (p) {
            char escape[2] = {'\\', letter[p - name]};
            buf_append(out, escape, 2);
        } else {
            buf_printf(out, "\\u%04x", (unsigned)c);
        }
    }
    buf_append(out, s + from, n - from);
}

void json_print_string(struct buf *out, const char *s, size_t n)
{
    buf_putc(out, '"');
    json_escape(out, s, n);
    buf_putc(out, '"');
}

/* x > 0 rounded to p significant digits: the digits, and the exponent of the first one. The point,
 * which depends on the locale, is dropped. */
static int round_to(double x, int p, char digit[20])
{
    char text[48];
    int n = 0;
    (void)snprintf(text, sizeof text, "%.*e", p - 1, x);
    const char *e = strchr(text, 'e');
    for (const char *c = text; c < e; c++)
        if (*c >= '0' && *c <= '9')
            digit[n++] = *c;
    digit[n] = 0;
    return (int)strtol(e + 1, NULL, 10);
}

static bool reads_back(double x, const char *digit, int exponent)
{
    char text[48];
    (void)snprintf(text, sizeof text, "%se%d", digit, exponent - (int)strlen(digit) + 1);
    return strtod(text, NULL) == x;
}

/* The next number of as many digits. */
static int step_up(char *digit, int exponent)
{
    int i = (int)strlen(digit) - 1;
    for (; i >= 0 && digit[i] == '9'; i--)
        digit[i] = '0';
    if (i >= 0) {
        digit[i]++;
        return exponent;
    }
    digit[0] = '1';
    return exponent + 1;
}

/* The fewest digits that read back as x > 0, and of these the nearest to it. */
static int shortest(double x, char digit[20])
{
    /* 15 digits survive the way into a normal double and back, so a shorter form is those 15 with
     * its trailing zeros dropped. A subnormal one has less precision. */
    int p = x < DBL_MIN ? 1 : 15, exponent;
    for (;; p++) {
        exponent = round_to(x, p, digit);
        if (p == 17 || reads_back(x, digit, exponent))
            break;
        /* Below a power of two doubles lie closer than above it: the nearest number may miss on
         * that side where the next one up does not. */
        exponent = step_up(digit, exponent);
        if (reads_back(x, digit, exponent))
            break;
    }
    for (int n = (int)strlen(digit); n > 1 && digit[n - 1] == '0'; n--)
        digit[n - 1] = 0;
    return exponent;
}

/* Python's float.__repr__. */
void json_print_real(struct buf *out, double x)
{
    if (isnan(x)) {
        buf_puts(out, "NaN");
        return;
    }
    if (signbit(x))
        buf_putc(out, '-');
    x = fabs(x);
    if (isinf(x)) {
        buf_puts(out, "Infinity");
        return;
    }
    char digit[20] = "0";
    int exponent = x > 0 ? shortest(x, digit) : 0, n = (int)strlen(digit);
    if (exponent < -4 || exponent >= 16) {
        buf_putc(out, digit[0]);
        if (n > 1)
            buf_printf(out, ".%s", digit + 1);
        buf_printf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        buf_printf(out, "0.%.*s%s", -exponent - 1, "000", digit);
    } else if (n <= exponent + 1) {
        buf_printf(out, "%s%.*s.0", digit, exponent + 1 - n, "000000000000000");
    } else {
        buf_printf(out, "%.*s.%s", exponent + 1, digit, digit + exponent + 1);
    }
}

/* The depth of a tree that json_read made is bounded. */
static void print(struct buf *out, const struct json_doc *d, json_t *v)
{
    const char *s, *key;
    size_t n, i;
    json_t *member;
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        buf_putc(out, '{');
        i = 0;
        json_object_foreach(v, key, member)
        {
            if (i++)
                buf_puts(out, ", ");
            json_print_string(out, key, strlen(key));
            buf_puts(out, ": ");
            print(out, d, member);
        }
        buf_putc(out, '}');
        break;
    case JSON_ARRAY:
        buf_putc(out, '[');
        json_array_foreach(v, i, member)
        {
            if (i)
                buf_puts(out, ", ");
            print(out, d, member);
        }
        buf_putc(out, ']');
        break;
    case JSON_STRING:
        s = json_text(d, v, &n);
        if (s)
            json_print_string(out, s, n);
        else
            buf_puts(out, json_big_integer(d, v));
        break;
    case JSON_INTEGER:
        buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        break;
    case JSON_REAL:
        json_print_real(out, json_real_value(v));
        break;
    case JSON_TRUE:
        buf_puts(out, "true");
        break;
    case JSON_FALSE:
        buf_puts(out, "false");
        break;
    case JSON_NULL:
        buf_puts(out, "null");
        break;
    }
}

void json_print(struct buf *out, const struct json_doc *d, const json_t *v)
{
    /* jansson's iteration takes its objects without const, and changes nothing. */
    json_t *tree = json_members(v);
    print(out, d, tree);
}
