/* Tokens of a template. Text between tags is cut as jinja2 does with trim_blocks and lstrip_blocks:
 * a block or comment takes the newline behind it and the blanks between it and the start of its
 * line; `-` beside a delimiter takes all blanks on that side, `+` none. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/template_string.h"
#include "text/template_tree.h"

lathe_status lexer_open(struct lexer *x, struct arena *arena, const char *source, size_t n,
                        lathe_error *err)
{
    *x = (struct lexer){.arena = arena, .line = 1, .line_starting = true, .err = err};
    if (n > TEMPLATE_MAX_SOURCE)
        return fail(err, LATHE_E_LIMIT, "the template has %zu bytes, the limit is %d", n,
                    TEMPLATE_MAX_SOURCE);
    size_t valid = utf8_valid_prefix(source, n);
    if (valid < n)
        return fail(err, LATHE_E_FORMAT, "the template is not UTF-8 at byte %zu", valid);
    char *s = arena_alloc(arena, n + 1);
    if (!s)
        return fail_memory(err, n + 1);
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            s[k++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n')
                i++;
        } else {
            s[k++] = source[i];
        }
    }
    if (k > 0 && s[k - 1] == '\n')
        k--;
    s[k] = 0;
    x->s = s;
    x->n = k;
    return LATHE_OK;
}

static bool at(const struct lexer *x, size_t i, const char *what)
{
    size_t n = strlen(what);
    return i <= x->n && x->n - i >= n && memcmp(x->s + i, what, n) == 0;
}

static size_t skip_blanks(const struct lexer *x, size_t i)
{
    size_t len;
    while (i < x->n && (len = blank_at(x->s + i, x->n - i)))
        i += len;
    return i;
}

static void advance(struct lexer *x, size_t to)
{
    for (size_t i = x->at; i < to; i++)
        x->line += x->s[i] == '\n';
    if (to > x->at)
        x->line_starting = x->s[to - 1] == '\n';
    x->at = to;
}

/* The end of a tag at i: "-%}" with blanks behind it, "+%}", or "%}" with a newline behind it. 0 if
 * there is none. */
static size_t tag_end(const struct lexer *x, size_t i, const char *close, bool trims)
{
    size_t n = strlen(close);
    if (at(x, i, "-") && at(x, i + 1, close))
        return skip_blanks(x, i + 1 + n);
    if (trims && at(x, i, "+") && at(x, i + 1, close))
        return i + 1 + n;
    if (!at(x, i, close))
        return 0;
    i += n;
    return trims && at(x, i, "\n") ? i + 1 : i;
}

/* Behind "{%" at i: the end of `{% raw %}` or 0. Its newline is kept. */
static size_t raw_begin(const struct lexer *x, size_t i)
{
    i += 2;
    if (at(x, i, "-") || at(x, i, "+"))
        i++;
    i = skip_blanks(x, i);
    if (!at(x, i, "raw"))
        return 0;
    i = skip_blanks(x, i + 3);
    if (at(x, i, "-%}"))
        return skip_blanks(x, i + 3);
    return at(x, i, "%}") ? i + 2 : 0;
}

/* The end of the `{% endraw %}` at i or 0. */
static size_t raw_end(const struct lexer *x, size_t i)
{
    i += 2;
    if (at(x, i, "-") || at(x, i, "+"))
        i++;
    i = skip_blanks(x, i);
    if (!at(x, i, "endraw"))
        return 0;
    return tag_end(x, skip_blanks(x, i + 6), "%}", true);
}

/* Where the text [from, to) before a tag ends once the tag has taken its blanks. */
static size_t text_end(const struct lexer *x, size_t from, size_t to, char sign, bool is_variable)
{
    size_t len;
    if (sign == '-') {
        while (to > from && (len = blank_before(x->s + from, to - from)))
            to -= len;
        return to;
    }
    if (sign == '+' || is_variable)
        return to;
    size_t line = to;
    while (line > from && x->s[line - 1] != '\n')
        line--;
    if (line == from && !x->line_starting)
        return to;
    return skip_blanks(x, line) >= to ? line : to;
}

static lathe_status give(struct lexer *x, struct token *t, enum token_type type, size_t from,
                         size_t to)
{
    *t = (struct token){.type = type, .line = x->line, .s = x->s + from, .n = to - from};
    return LATHE_OK;
}

static char sign_at(const struct lexer *x, size_t i)
{
    return at(x, i, "-") || at(x, i, "+") ? x->s[i] : 0;
}

/* Text up to the next tag, or the tag's beginning if there is no text before it. */
static lathe_status lex_text(struct lexer *x, struct token *t, bool *again)
{
    *again = false;
    size_t i = x->at;
    while (i < x->n && !at(x, i, "{{") && !at(x, i, "{%") && !at(x, i, "{#"))
        i++;
    if (i >= x->n) {
        lathe_status st = give(x, t, x->at < x->n ? TOKEN_DATA : TOKEN_EOF, x->at, x->n);
        advance(x, x->n);
        return st;
    }
    char kind = x->s[i + 1], sign = sign_at(x, i + 2);
    size_t end = text_end(x, x->at, i, sign, kind == '{');
    if (end > x->at) {
        /* The tag itself is read by the next call, which finds it at once. */
        lathe_status st = give(x, t, TOKEN_DATA, x->at, end);
        advance(x, i);
        return st;
    }
    advance(x, i);
    size_t raw = kind == '%' ? raw_begin(x, i) : 0;
    if (raw) {
        int32_t line = x->line;
        advance(x, raw);
        size_t from = x->at, k = from, stop = 0;
        for (; k < x->n; k++)
            if (at(x, k, "{%") && (stop = raw_end(x, k)))
                break;
        if (!stop)
            return fail(x->err, LATHE_E_FORMAT, "line %d: {%% raw %%} without {%% endraw %%}",
                        (int)line);
        size_t to = text_end(x, from, k, sign_at(x, k + 2), false);
        lathe_status st = give(x, t, TOKEN_DATA, from, to);
        advance(x, stop);
        *again = to == from;
        return st;
    }
    size_t inside = i + 2 + (sign ? 1 : 0);
    if (kind == '#') {
        size_t k = inside, stop = 0;
        for (; k < x->n; k++)
            if ((stop = tag_end(x, k, "#}", true)))
                break;
        if (!stop)
            return fail(x->err, LATHE_E_FORMAT, "line %d: a comment without its end #}",
                        (int)x->line);
        advance(x, stop);
        *again = true;
        return LATHE_OK;
    }
    (void)give(x, t, kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, i, inside);
    x->in = kind == '{' ? LEX_VARIABLE : LEX_BLOCK;
    advance(x, inside);
    return LATHE_OK;
}

/* ---- Inside a tag -------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits with single underscores between them, from i; the end. */
static size_t digits(const struct lexer *x, size_t i)
{
    while (i < x->n &&
           (is_digit(x->s[i]) || (x->s[i] == '_' && i + 1 < x->n && is_digit(x->s[i + 1]))))
        i++;
    return i;
}

/* The end of a float at x->at, 0 if it is none. */
static size_t float_end(const struct lexer *x)
{
    if (x->at > 0 && x->s[x->at - 1] == '.')
        return 0;
    size_t i = digits(x, x->at), whole = i;
    if (i + 1 < x->n && x->s[i] == '.' && is_digit(x->s[i + 1]))
        i = digits(x, i + 1);
    if (i < x->n && (x->s[i] == 'e' || x->s[i] == 'E')) {
        size_t k = i + 1;
        if (k < x->n && (x->s[k] == '+' || x->s[k] == '-'))
            k++;
        if (k < x->n && is_digit(x->s[k]))
            return digits(x, k);
    }
    return i > whole ? i : 0;
}

static char *without_underscores(struct lexer *x, size_t from, size_t to, size_t *n)
{
    char *s = arena_alloc(x->arena, to - from + 1);
    if (!s)
        return NULL;
    *n = 0;
    for (size_t i = from; i < to; i++)
        if (x->s[i] != '_')
            s[(*n)++] = x->s[i];
    s[*n] = 0;
    return s;
}

static bool is_base_digit(char c, int base)
{
    if (base == 16)
        return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
    return c >= '0' && c < '0' + base;
}

static lathe_status lex_number(struct lexer *x, struct token *t)
{
    size_t end = float_end(x), n;
    if (end) {
        char *s = without_underscores(x, x->at, end, &n);
        if (!s)
            return fail_memory(x->err, end - x->at);
        (void)give(x, t, TOKEN_FLOAT, x->at, end);
        t->f = strtod(s, NULL);
        advance(x, end);
        return LATHE_OK;
    }
    int base = 10;
    end = x->at;
    if (x->s[end] == '0' && end + 1 < x->n) {
        char c = x->s[end + 1];
        int b = c == 'x' || c == 'X' ? 16 : c == 'o' || c == 'O' ? 8 : c == 'b' || c == 'B' ? 2 : 0;
        size_t k = end + 2;
        if (b && k < x->n && x->s[k] == '_')
            k++;
        if (b && k < x->n && is_base_digit(x->s[k], b)) {
            base = b;
            end = k;
            while (end < x->n &&
                   (is_base_digit(x->s[end], b) ||
                    (x->s[end] == '_' && end + 1 < x->n && is_base_digit(x->s[end + 1], b))))
                end++;
        }
    }
    if (base == 10 && x->s[end] == '0')
        while (end < x->n && (x->s[end] == '0' || (x->s[end] == '_' && at(x, end + 1, "0"))))
            end++;
    else if (base == 10)
        end = digits(x, end);
    char *s = without_underscores(x, x->at, end, &n);
    if (!s)
        return fail_memory(x->err, end - x->at);
    if (base != 10) {
        /* As decimal digits, like the others. */
        uint64_t v = 0;
        for (const char *p = s + 2; *p; p++) {
            int d = is_digit(*p) ? *p - '0' : (*p | 32) - 'a' + 10;
            if (v > ((uint64_t)INT64_MAX - (uint64_t)d) / (uint64_t)base)
                return fail(x->err, LATHE_E_UNSUPPORTED,
                            "line %d: the integer %.40s is beyond 64 bits", (int)x->line, s);
            v = v * (uint64_t)base + (uint64_t)d;
        }
        char *p = arena_alloc(x->arena, 24);
        if (!p)
            return fail_memory(x->err, 24);
        char *q = p + 23;
        *q = 0;
        do {
            *--q = (char)('0' + v % 10);
        } while (v /= 10);
        s = q;
        n = (size_t)(p + 23 - q);
    }
    *t = (struct token){.type = TOKEN_INTEGER, .line = x->line, .s = s, .n = n};
    advance(x, end);
    return LATHE_OK;
}

static lathe_status bad_escape(struct lexer *x, const char *what)
{
    return fail(x->err, LATHE_E_FORMAT, "line %d: a string with %s", (int)x->line, what);
}

/* \xhh, \uhhhh, \Uhhhhhhhh. */
static lathe_status hex_escape(struct lexer *x, size_t *i, size_t end, int n_digits, uint32_t *c)
{
    *c = 0;
    for (int k = 0; k < n_digits; k++, (*i)++) {
        if (*i >= end || !is_base_digit(x->s[*i], 16))
            return bad_escape(x, "a truncated \\x, \\u or \\U escape");
        char d = x->s[*i];
        *c = *c << 4 | (uint32_t)(is_digit(d) ? d - '0' : (d | 32) - 'a' + 10);
    }
    if (*c > 0x10FFFF || (*c >= 0xD800 && *c < 0xE000))
        return bad_escape(x, "an escape that is no character, such as half a surrogate pair");
    return LATHE_OK;
}

static lathe_status unescape(struct lexer *x, size_t from, size_t to, struct token *t)
{
    char *s = arena_alloc(x->arena, to - from + 4); /* no escape is shorter than its character */
    if (!s)
        return fail_memory(x->err, to - from + 4);
    size_t k = 0, i = from;
    while (i < to) {
        if (x->s[i] != '\\' || i + 1 >= to) {
            s[k++] = x->s[i++];
            continue;
        }
        char e = x->s[i + 1];
        i += 2;
        static const char letter[] = "abfnrtv\\'\"", byte[] = "\a\b\f\n\r\t\v\\'\"";
        const char *p = e ? strchr(letter, e) : NULL;
        uint32_t c;
        lathe_status st = LATHE_OK;
        if (p) {
            s[k++] = byte[p - letter];
            continue;
        }
        if (e == '\n')
            continue;
        if (e == 'N')
            return fail(x->err, LATHE_E_UNSUPPORTED, "line %d: a string with a \\N{name} escape",
                        (int)x->line);
        if (e == 'x' || e == 'u' || e == 'U') {
            st = hex_escape(x, &i, to, e == 'x' ? 2 : e == 'u' ? 4 : 8, &c);
        } else if (e >= '0' && e <= '7') {
            c = (uint32_t)(e - '0');
            for (int d = 0; d < 2 && i < to && x->s[i] >= '0' && x->s[i] <= '7'; d++)
                c = c * 8 + (uint32_t)(x->s[i++] - '0');
        } else {
            s[k++] = '\\';
            s[k++] = e;
            continue;
        }
        if (st)
            return st;
        k += (size_t)utf8_encode(c, s + k);
    }
    *t = (struct token){.type = TOKEN_STRING, .line = x->line, .s = s, .n = k};
    return LATHE_OK;
}

static lathe_status lex_string(struct lexer *x, struct token *t)
{
    char quote = x->s[x->at];
    size_t i = x->at + 1;
    while (i < x->n && x->s[i] != quote)
        i += x->s[i] == '\\' ? 2 : 1;
    if (i >= x->n)
        return fail(x->err, LATHE_E_FORMAT, "line %d: a string without its closing %c",
                    (int)x->line, quote);
    lathe_status st = unescape(x, x->at + 1, i, t);
    if (!st)
        advance(x, i + 1);
    return st;
}

/* Length of the identifier character at i, 0 if it is none. */
static size_t identifier_at(const struct lexer *x, size_t i, bool is_first)
{
    if (i >= x->n)
        return 0;
    char c = x->s[i];
    if ((unsigned char)c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
               (!is_first && is_digit(c));
    uint32_t cp;
    int32_t n = utf8_decode(x->s + i, x->n - i, &cp);
    utf8proc_category_t g = utf8proc_category((utf8proc_int32_t)cp);
    bool start =
        (g >= UTF8PROC_CATEGORY_LU && g <= UTF8PROC_CATEGORY_LO) || g == UTF8PROC_CATEGORY_NL;
    bool more = g == UTF8PROC_CATEGORY_MN || g == UTF8PROC_CATEGORY_MC ||
                g == UTF8PROC_CATEGORY_ND || g == UTF8PROC_CATEGORY_PC;
    return start || (more && !is_first) ? (size_t)n : 0;
}

static lathe_status lex_operator(struct lexer *x, struct token *t)
{
    static const char *const two[] = {"**", "//", "==", "!=", ">=", "<="};
    char c = x->s[x->at];
    size_t n = 0;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (at(x, x->at, two[i]))
            n = 2;
    if (!n && c && strchr("+-/*%~[](){}><=.:|,;", c))
        n = 1;
    if (!n)
        return fail(x->err, LATHE_E_FORMAT, "line %d: unexpected character '%.*s'", (int)x->line,
                    (int)(x->n - x->at < 4 ? x->n - x->at : 4), x->s + x->at);
    if (n == 1 && strchr("([{", c)) {
        if (x->n_brackets == TEMPLATE_MAX_DEPTH)
            return fail(x->err, LATHE_E_LIMIT, "line %d: brackets nested deeper than %d",
                        (int)x->line, TEMPLATE_MAX_DEPTH);
        x->bracket[x->n_brackets++] = c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (n == 1 && strchr(")]}", c)) {
        if (!x->n_brackets || x->bracket[x->n_brackets - 1] != c)
            return fail(x->err, LATHE_E_FORMAT, "line %d: unexpected '%c'", (int)x->line, c);
        x->n_brackets--;
    }
    (void)give(x, t, TOKEN_OPERATOR, x->at, x->at + n);
    advance(x, x->at + n);
    return LATHE_OK;
}

static lathe_status lex_tag(struct lexer *x, struct token *t)
{
    bool is_block = x->in == LEX_BLOCK;
    /* "}}" also ends nested dicts, so a delimiter counts only outside brackets. Blanks before it
     * are skipped first: "-%}" may follow them. */
    advance(x, skip_blanks(x, x->at));
    if (x->at >= x->n)
        return fail(x->err, LATHE_E_FORMAT, "line %d: the template ends inside a tag",
                    (int)x->line);
    size_t end = x->n_brackets ? 0 : tag_end(x, x->at, is_block ? "%}" : "}}", is_block);
    if (end) {
        (void)give(x, t, is_block ? TOKEN_BLOCK_END : TOKEN_VARIABLE_END, x->at, end);
        advance(x, end);
        x->in = LEX_TEXT;
        return LATHE_OK;
    }
    char c = x->s[x->at];
    if (is_digit(c))
        return lex_number(x, t);
    if (c == '\'' || c == '"')
        return lex_string(x, t);
    size_t i = x->at, n = identifier_at(x, i, true);
    if (!n)
        return lex_operator(x, t);
    for (i += n; (n = identifier_at(x, i, false)); i += n)
        ;
    (void)give(x, t, TOKEN_NAME, x->at, i);
    advance(x, i);
    return LATHE_OK;
}

lathe_status lexer_next(struct lexer *x, struct token *t)
{
    if (x->in != LEX_TEXT)
        return lex_tag(x, t);
    bool again = true;
    lathe_status st = LATHE_OK;
    while (again && !st)
        st = lex_text(x, t, &again);
    return st;
}
