/* lathe tokenize: from text to tokens and back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli.h"

enum { TEXT_LIMIT = 1 << 30 };

static const char help[] =
    "lathe tokenize -m DIR (-p TEXT | -f FILE) [options]: what a text is in tokens\n"
    "\n"
    "  -m, --model DIR        the model's directory (its weights are not read)\n"
    "  -p, --prompt TEXT      the text; - reads standard input\n"
    "  -f, --file FILE        a file with the text; - reads standard input\n"
    "  --control              spelled-out markers such as <|im_end|> are tokens\n"
    "  --ids                  the ids alone, on one line\n"
    "  --count                how many tokens, alone\n"
    "  --decode               the other way: the text is ids, separated by blanks or\n"
    "                         commas, and what they spell is printed\n"
    "\n"
    "Prints a line a token: its id, the byte of the text where it begins, and its\n"
    "text in quotes, or its bytes in hexadecimal where they are no whole characters.\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line.\n";

struct tokenize {
    struct options options;
    const char *model, *prompt, *file;
    bool control, ids, count, decode;
};

static void print_token(const lathe_text *text, int32_t id, size_t offset)
{
    size_t n = 0;
    const char *s = lathe_token_bytes(text, id, &n);
    struct buf line;
    buf_init(&line, 1 << 20);
    buf_printf(&line, "%7d %9zu  ", (int)id, offset);
    if (s && utf8_valid_prefix(s, n) == n) {
        json_print_string(&line, s, n);
    } else {
        for (size_t i = 0; s && i < n; i++)
            buf_printf(&line, "%s%02X", i ? " " : "", (unsigned)(unsigned char)s[i]);
    }
    buf_putc(&line, '\n');
    (void)fputs(buf_str(&line), stdout);
    buf_release(&line);
}

static lathe_status encode(const struct tokenize *t, const lathe_text *text, const struct buf *s,
                           lathe_error *err)
{
    lathe_tokens tokens = {0};
    lathe_status st = lathe_tokenize(text, buf_str(s), s->len, t->control, &tokens, err);
    if (st)
        return st;
    if (t->count) {
        (void)printf("%zu\n", tokens.n);
    } else if (t->ids) {
        for (size_t i = 0; i < tokens.n; i++)
            (void)printf(i ? " %d" : "%d", (int)tokens.id[i]);
        (void)putchar('\n');
    } else {
        for (size_t i = 0; i < tokens.n; i++)
            print_token(text, tokens.id[i], tokens.offset[i]);
    }
    lathe_tokens_release(&tokens);
    return LATHE_OK;
}

/* The ids spelled in s; *id is a heap array. */
static lathe_status read_ids(const char *s, int32_t **id, size_t *n, lathe_error *err)
{
    *id = malloc((strlen(s) / 2 + 1) * sizeof **id);
    *n = 0;
    if (!*id)
        return fail_memory(err, strlen(s));
    for (;;) {
        s += strspn(s, " \t\r\n,");
        if (!*s)
            return LATHE_OK;
        char *end;
        errno = 0;
        long x = strtol(s, &end, 10);
        if (end == s || (*end && !strchr(" \t\r\n,", *end)) || errno || x < 0 || x > INT32_MAX)
            return fail(err, LATHE_E_ARGUMENT, "\"%.20s\" is no token id", s);
        (*id)[(*n)++] = (int32_t)x;
        s = end;
    }
}

static lathe_status decode(const lathe_text *text, const struct buf *s, lathe_error *err)
{
    int32_t *id;
    char *out = NULL;
    size_t n, n_out;
    lathe_status st = read_ids(buf_str(s), &id, &n, err);
    if (!st)
        st = lathe_detokenize(text, id, n, &out, &n_out, err);
    if (!st) {
        cli_write(out, n_out);
        if (stdout_is_terminal())
            (void)putchar('\n');
    }
    lathe_free(out);
    free(id);
    return st;
}

int tokenize_main(int argc, char **argv)
{
    static struct tokenize t;
    struct options *o = &t.options;
    int code;
    o->command = "tokenize";
    o->help = help;
    option_path(o, "--model", "-m", &t.model);
    option_text(o, "--prompt", "-p", &t.prompt);
    option_path(o, "--file", "-f", &t.file);
    option_flag(o, "--control", NULL, &t.control);
    option_flag(o, "--ids", NULL, &t.ids);
    option_flag(o, "--count", NULL, &t.count);
    option_flag(o, "--decode", NULL, &t.decode);
    if (!options_parse(o, argc, argv, &code))
        return code;
    if (!t.model)
        return options_usage(o, "a model is needed: -m DIR, for example -m models/nano");
    if (!t.prompt == !t.file)
        return options_usage(o, "one text is needed: -p TEXT or -f FILE");
    if (t.ids + t.count + t.decode > 1)
        return options_usage(o, "--ids, --count and --decode exclude each other");
    if (t.control && t.decode)
        return options_usage(o, "--decode knows every id: --control cannot go with it");
    struct buf s;
    lathe_text *text = NULL;
    lathe_error err;
    buf_init(&s, TEXT_LIMIT);
    lathe_status st = t.file ? cli_read(&s, t.file, &err) : cli_text(&s, t.prompt, &err);
    if (!st)
        st = lathe_text_open(&text, t.model, &err);
    if (!st)
        st = t.decode ? decode(text, &s, &err) : encode(&t, text, &s, &err);
    lathe_text_close(text);
    buf_release(&s);
    if (st)
        return t.prompt && strcmp(t.prompt, "-") != 0 ? cli_fail(&err) : cli_fail_input(&err);
    return cli_flush();
}
