#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "dialects.h"
#include "generate.h"
#include "state.h"
#include "token.h"

enum { TOKENS_OFTEN = 4096 }; /* between two looks at the client: below a millisecond */

/* ---- Conversations -------------------------------------------------------------------------- */

static bool find_dialect(const struct fields *f, const struct dialect **out)
{
    static const struct dialect *const all[] = {&chat_dialect, &responses_dialect,
                                                &messages_dialect};
    const char *name = "chat";
    size_t n;
    if (!field_text(f, "dialect", &name, &n))
        return false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i]->name, name) == 0) {
            *out = all[i];
            return true;
        }
    return refuse_field(f->failure, BAD_VALUE, "dialect",
                        "dialect: '%.40s' is none of chat, responses, messages", name);
}

/* The conversation of the body as a prompt: own[0..n_own) are the route's fields, the rest is the dialect's. */
static bool render(struct exchange *x, struct fields *f, const char *const *own, size_t n_own,
                   lathe_prompt *prompt)
{
    const struct dialect *d = NULL;
    bool generation_prompt = true;
    if (!find_dialect(f, &d) || !field_bool(f, "add_generation_prompt", &generation_prompt))
        return false;
    for (size_t i = 0; i < n_own; i++)
        (void)json_object_del(f->doc.root, own[i]);
    return generate_render(x, d, f, !generation_prompt, prompt);
}

/* ---- /tokenize ------------------------------------------------------------------------------ */

/* Characters as a string, other bytes as their numbers. */
static void put_piece(struct buf *out, const lathe_text *text, int32_t id, bool as_string)
{
    size_t n = 0;
    const char *s = lathe_token_bytes(text, id, &n);
    if (as_string || !s || utf8_valid_prefix(s, n) == n)
        token_string(out, text, id);
    else
        token_bytes(out, text, id);
}

/* Of a reply of many tokens: does somebody wait for the next one? */
static bool is_wanted(struct exchange *x)
{
    lathe_error err;
    return !watch_work(&x->watch, 1, TOKENS_OFTEN, &err) || refuse_status(&x->failure, &err);
}

static void put_tokens(struct exchange *x, const int32_t *id, size_t n, bool with_pieces,
                       bool with_strings)
{
    const lathe_text *text = lathe_engine_text(x->server->engine);
    buf_puts(&x->reply, "{\"tokens\":[");
    for (size_t i = 0; i < n && is_wanted(x); i++) {
        if (i)
            buf_putc(&x->reply, ',');
        if (with_pieces) {
            buf_printf(&x->reply, "{\"id\":%d,\"piece\":", (int)id[i]);
            put_piece(&x->reply, text, id[i], false);
            buf_putc(&x->reply, '}');
        } else {
            buf_printf(&x->reply, "%d", (int)id[i]);
        }
    }
    buf_printf(&x->reply, "],\"count\":%zu,\"max_model_len\":%d", n, (int)x->server->options.n_ctx);
    if (with_strings) {
        buf_puts(&x->reply, ",\"token_strs\":[");
        for (size_t i = 0; i < n && is_wanted(x); i++) {
            if (i)
                buf_putc(&x->reply, ',');
            put_piece(&x->reply, text, id[i], true);
        }
        buf_putc(&x->reply, ']');
    }
    buf_putc(&x->reply, '}');
}

static void tokenize_body(struct exchange *x, struct fields *f)
{
    static const char *const own[] = {
        "content",     "prompt",        "dialect",     "add_generation_prompt",
        "add_special", "parse_special", "with_pieces", "return_token_strs"};
    enum { N_OWN = sizeof own / sizeof *own };
    bool special = false, pieces = false, strings = false, is_ignored = false;
    const char *content = NULL, *prompt = NULL;
    size_t n = 0;
    lathe_error err;
    if (!field_text(f, "prompt", &prompt, &n) || !field_text(f, "content", &content, &n) ||
        !field_bool(f, "parse_special", &special) || !field_bool(f, "with_pieces", &pieces) ||
        !field_bool(f, "add_special", &is_ignored) || !field_bool(f, "return_token_strs", &strings))
        return;
    bool is_conversation = field_value(f, "messages") || field_value(f, "input");
    if ((content != NULL) + (prompt != NULL) + is_conversation != 1) {
        (void)refuse(&x->failure, BAD_VALUE,
                     "the body needs one of content, prompt, messages and input");
        return;
    }
    if (is_conversation) {
        lathe_prompt p = {0};
        if (field_value(f, "parse_special") && !special)
            (void)refuse_field(&x->failure, UNSUPPORTED_VALUE, "parse_special",
                               "parse_special is false: a conversation is rendered with its "
                               "control tokens");
        else if (render(x, f, own, N_OWN, &p))
            put_tokens(x, p.tokens.id, p.tokens.n, pieces, strings);
        lathe_prompt_release(&p);
        return;
    }
    const char *known[N_OWN + 1] = {"model"};
    for (size_t i = 0; i < N_OWN; i++)
        known[i + 1] = own[i];
    lathe_tokens t = {0};
    if (!fields_unknown(f, x, known, N_OWN + 1))
        return;
    if (lathe_tokenize_while(lathe_engine_text(x->server->engine), content ? content : prompt, n,
                             special, x->watch.leave, x->watch.ctx, &t, &err))
        (void)refuse_status(&x->failure, &err);
    else
        put_tokens(x, t.id, t.n, pieces, strings);
    lathe_tokens_release(&t);
}

void tokenize(struct exchange *x)
{
    struct fields f;
    if (fields_open(&f, x))
        tokenize_body(x, &f);
    fields_close(&f);
}

/* ---- /detokenize ---------------------------------------------------------------------------- */

static bool read_ids(struct exchange *x, const struct fields *f, const json_t *array, int32_t *id)
{
    const lathe_text *text = lathe_engine_text(x->server->engine);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *v = json_array_get(array, i);
        int64_t value = -1;
        size_t n;
        char param[40];
        (void)snprintf(param, sizeof param, "tokens[%zu]", i);
        if (!json_whole(v, &value) && !json_big_integer(&f->doc, v))
            return refuse_field(&x->failure, BAD_TYPE, param,
                                "%s: expected a whole number, found %s", param, json_kind(v));
        if (value < 0 || value > INT32_MAX || !lathe_token_bytes(text, (int32_t)value, &n))
            return refuse_field(&x->failure, BAD_VALUE, param, "%s: no token has this id", param);
        id[i] = (int32_t)value;
    }
    return true;
}

static void detokenize_body(struct exchange *x, const struct fields *f)
{
    static const char *const known[] = {"tokens", "model"};
    const json_t *array = NULL;
    if (!fields_unknown(f, x, known, 2) || !field_array(f, "tokens", &array, SIZE_MAX))
        return;
    if (!array) {
        (void)refuse_field(&x->failure, MISSING_FIELD, "tokens", "tokens is missing");
        return;
    }
    size_t n = json_array_size(array), len = 0;
    int32_t *id = malloc((n + 1) * sizeof *id);
    char *s = NULL;
    lathe_error err;
    if (!id)
        (void)refuse(&x->failure, INTERNAL, "out of memory");
    else if (read_ids(x, f, array, id) &&
             lathe_detokenize(lathe_engine_text(x->server->engine), id, n, &s, &len, &err))
        (void)refuse_status(&x->failure, &err);
    if (s) {
        buf_puts(&x->reply, "{\"content\":");
        json_print_string(&x->reply, s, len);
        buf_puts(&x->reply, ",\"prompt\":");
        json_print_string(&x->reply, s, len);
        buf_putc(&x->reply, '}');
    }
    lathe_free(s);
    free(id);
}

void detokenize(struct exchange *x)
{
    struct fields f;
    if (fields_open(&f, x))
        detokenize_body(x, &f);
    fields_close(&f);
}

/* ---- /apply-template ------------------------------------------------------------------------ */

static void apply_template_body(struct exchange *x, struct fields *f)
{
    static const char *const own[] = {"add_generation_prompt", "dialect"};
    lathe_prompt p = {0};
    if (render(x, f, own, 2, &p)) {
        buf_puts(&x->reply, "{\"prompt\":");
        json_print_string(&x->reply, p.text, p.n_text);
        buf_printf(&x->reply, ",\"tokens\":%zu}", p.tokens.n);
    }
    lathe_prompt_release(&p);
}

void apply_template(struct exchange *x)
{
    struct fields f;
    if (fields_open(&f, x))
        apply_template_body(x, &f);
    fields_close(&f);
}
