#include "custom_input.h"

#include <string.h>

#include "base/utf8.h"

enum state { OPEN, BEFORE_KEY, KEY, BEFORE_COLON, BEFORE_VALUE, INPUT, OTHER, AFTER_VALUE, CLOSED };

static const char name[] = "input";
enum { NOT_INPUT = sizeof name };

static void put(struct buf *out, uint32_t cp)
{
    char s[4];
    int32_t n = utf8_encode(cp, s);
    buf_append(out, s, (size_t)n);
}

/* A first half of a pair without its second. */
static void put_lone(struct custom_input *c, struct buf *out)
{
    if (c->high)
        put(out, 0xFFFD);
    c->high = 0;
}

static void put_unit(struct custom_input *c, uint32_t unit, struct buf *out)
{
    bool is_low = unit >= 0xDC00 && unit < 0xE000;
    if (is_low && c->high) {
        put(out, 0x10000 + ((c->high - 0xD800) << 10) + (unit - 0xDC00));
        c->high = 0;
        return;
    }
    put_lone(c, out);
    if (unit >= 0xD800 && unit < 0xDC00)
        c->high = unit;
    else
        put(out, is_low ? 0xFFFD : unit);
}

static uint32_t digit(char ch)
{
    return (uint32_t)(ch <= '9' ? ch - '0' : (ch | 0x20) - 'a' + 10);
}

static void take_text(struct custom_input *c, char ch, struct buf *out)
{
    static const char letter[] = "bfnrt", means[] = "\b\f\n\r\t";
    if (c->n_hex) {
        c->hex = c->hex << 4 | (digit(ch) & 15);
        if (--c->n_hex == 0)
            put_unit(c, c->hex, out);
    } else if (c->is_escaped) {
        const char *at = strchr(letter, ch);
        c->is_escaped = false;
        c->hex = 0;
        c->n_hex = ch == 'u' ? 4 : 0;
        if (ch != 'u') {
            put_lone(c, out);
            buf_putc(out, at && ch ? means[at - letter] : ch);
        }
    } else if (ch == '\\') {
        c->is_escaped = true;
    } else {
        put_lone(c, out);
        if (ch == '"')
            c->state = AFTER_VALUE;
        else
            buf_putc(out, ch);
    }
}

static void take_key(struct custom_input *c, char ch)
{
    if (c->is_escaped)
        c->is_escaped = false;
    else if (ch == '"')
        c->state = BEFORE_COLON;
    else if (ch == '\\')
        c->is_escaped = true;
    if (c->state == KEY)
        c->n_key = c->n_key < strlen(name) && ch == name[c->n_key] ? c->n_key + 1 : NOT_INPUT;
}

static void take_other(struct custom_input *c, char ch)
{
    if (c->is_escaped) {
        c->is_escaped = false;
    } else if (c->in_string) {
        c->is_escaped = ch == '\\';
        c->in_string = ch != '"';
    } else if (ch == '"') {
        c->in_string = true;
    } else if (ch == '{' || ch == '[') {
        c->depth++;
    } else if (c->depth == 0 && (ch == ',' || ch == '}')) {
        c->state = ch == ',' ? BEFORE_KEY : CLOSED;
    } else if (ch == '}' || ch == ']') {
        c->depth--;
    }
}

static void take(struct custom_input *c, char ch, struct buf *out)
{
    bool is_blank = ch == ' ' || ch == '\n' || ch == '\t' || ch == '\r';
    switch ((enum state)c->state) {
    case OPEN:
        c->state = ch == '{' ? BEFORE_KEY : OPEN;
        break;
    case BEFORE_KEY:
        c->n_key = 0;
        c->state = ch == '"' ? KEY : ch == '}' ? CLOSED : BEFORE_KEY;
        break;
    case KEY:
        take_key(c, ch);
        break;
    case BEFORE_COLON:
        c->state = ch == ':' ? BEFORE_VALUE : BEFORE_COLON;
        break;
    case BEFORE_VALUE:
        if (is_blank)
            break;
        if (ch == '"' && c->n_key == strlen(name) && !c->is_found) {
            c->is_found = true;
            c->state = INPUT;
            break;
        }
        c->state = OTHER;
        take_other(c, ch);
        break;
    case INPUT:
        take_text(c, ch, out);
        break;
    case OTHER:
        take_other(c, ch);
        break;
    case AFTER_VALUE:
        c->state = ch == ',' ? BEFORE_KEY : ch == '}' ? CLOSED : AFTER_VALUE;
        break;
    case CLOSED:
        break;
    }
}

void custom_input_feed(struct custom_input *c, const char *s, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++)
        take(c, s[i], out);
}
