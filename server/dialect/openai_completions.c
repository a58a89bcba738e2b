/* POST /v1/completions: text in, text out. No template, no thinking, no tools. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dialects.h"
#include "openai.h"
#include "state.h"
#include "token.h"

enum { TEXT_LIMIT = 256 << 20, MAX_CHOICES = 1024 };

/* Lists that run beside each other, without their brackets. */
struct token_lists {
    struct buf tokens, logprobs, top, offsets;
    size_t n_characters; /* before the next token */
};

struct completion_choice {
    const char *prompt; /* its text, if it is shown, [n_prompt] */
    size_t n_prompt;
    int32_t n_prompt_tokens;
    lathe_usage usage; /* as far as it is */
    bool is_begun;
    /* Of what is not in a chunk yet, or all in a reply in one piece. */
    struct buf text;
    struct token_lists lists;
    struct buf ids, prompt_ids, prompt_logprobs;
    struct buf finish;
};

struct completion_state {
    const struct server *server;
    char id[40];
    struct buf head; /* what every object begins with */
    bool stream, echo;
    struct openai_wish wish;
    int32_t n_prompt_top;             /* alternatives beside the prompt's tokens; -1: not shown */
    struct completion_choice *choice; /* [n] */
    int32_t n, n_per_prompt, at;      /* at: the one that events are about */
};

/* ---- Prompts -------------------------------------------------------------------------------- */

struct prompts {
    struct exchange *x;
    const struct fields *f;
    struct generation *g;
    struct completion_state *s;
    struct token_ids *ids; /* [n] */
    const char **text;     /* [n], with echo */
    size_t *n_text;        /* [n] */
    size_t n;
    bool special;
};

static bool no_memory(struct exchange *x)
{
    return refuse(&x->failure, INTERNAL, "out of memory");
}

static bool take_ids(struct prompts *p, const int32_t *id, size_t n)
{
    int32_t n_ctx = p->x->server->options.n_ctx;
    int32_t *copy = arena_alloc(&p->g->arena, (n + 1) * sizeof *copy);
    lathe_error err;
    if (!copy)
        return no_memory(p->x);
    if (n == 0)
        return refuse_field(&p->x->failure, BAD_VALUE, "prompt",
                            "prompt is empty: there is no token to begin with");
    if (n >= (size_t)n_ctx) {
        (void)fail(&err, LATHE_E_CONTEXT, "the prompt has %zu tokens, the context holds %d", n,
                   (int)n_ctx);
        return refuse_status(&p->x->failure, &err);
    }
    memcpy(copy, id, n * sizeof *id);
    p->ids[p->n] = (struct token_ids){copy, n};
    return true;
}

/* The text of the prompt's ids, for the echo. */
static bool take_text_of_ids(struct prompts *p)
{
    const struct token_ids *ids = &p->ids[p->n];
    lathe_error err;
    char *text;
    if (!p->s->echo)
        return true;
    if (lathe_detokenize(lathe_engine_text(p->x->server->engine), ids->id, ids->n, &text,
                         &p->n_text[p->n], &err))
        return refuse_status(&p->x->failure, &err);
    p->text[p->n] = arena_strndup(&p->g->arena, text, p->n_text[p->n]);
    lathe_free(text);
    return p->text[p->n] || no_memory(p->x);
}

static bool add_ids(struct prompts *p, const json_t *array, const char *path)
{
    size_t n = json_array_size(array), n_bytes;
    int32_t *id = malloc((n + 1) * sizeof *id);
    bool ok = id || no_memory(p->x);
    for (size_t i = 0; i < n && ok; i++) {
        const json_t *v = json_array_get(array, i);
        char param[80];
        int64_t value;
        (void)snprintf(param, sizeof param, "%s[%zu]", path, i);
        if (!json_whole(v, &value))
            ok = refuse_field(&p->x->failure, BAD_TYPE, param,
                              "%s: expected a token's id, found %s", param, json_kind(v));
        else if (value < 0 || value > INT32_MAX ||
                 !lathe_token_bytes(lathe_engine_text(p->x->server->engine), (int32_t)value,
                                    &n_bytes))
            ok = refuse_field(&p->x->failure, BAD_VALUE, param, "%s: no token has this id", param);
        else
            id[i] = (int32_t)value;
    }
    ok = ok && take_ids(p, id, n) && take_text_of_ids(p);
    free(id);
    p->n += ok;
    return ok;
}

static bool add_text(struct prompts *p, const char *s, size_t n)
{
    lathe_tokens t = {0};
    lathe_error err;
    if (lathe_tokenize_while(lathe_engine_text(p->x->server->engine), s, n, p->special,
                             p->x->watch.leave, p->x->watch.ctx, &t, &err))
        return refuse_status(&p->x->failure, &err);
    bool ok = take_ids(p, t.id, t.n);
    lathe_tokens_release(&t);
    if (ok && p->s->echo) {
        p->text[p->n] = arena_strndup(&p->g->arena, s, n);
        p->n_text[p->n] = n;
        ok = p->text[p->n] || no_memory(p->x);
    }
    p->n += ok;
    return ok;
}

/* One of several. */
static bool add_prompt(struct prompts *p, const json_t *v, size_t i)
{
    char path[40];
    size_t n;
    const char *s = json_text(&p->f->doc, v, &n);
    (void)snprintf(path, sizeof path, "prompt[%zu]", i);
    if (s)
        return add_text(p, s, n);
    return json_is_array(v) ? add_ids(p, v, path)
                            : refuse_field(&p->x->failure, BAD_TYPE, path,
                                           "%s: expected a string or an array of ids, found %s",
                                           path, json_kind(v));
}

static bool make_room(struct prompts *p, size_t n)
{
    if (n * (size_t)p->g->n > MAX_CHOICES)
        return refuse_field(&p->x->failure, BAD_VALUE, "prompt",
                            "prompt has %zu prompts with %d answers each, at most %d answers", n,
                            (int)p->g->n, MAX_CHOICES);
    p->ids = arena_calloc(&p->g->arena, n, sizeof *p->ids);
    p->text = arena_calloc(&p->g->arena, n, sizeof *p->text);
    p->n_text = arena_calloc(&p->g->arena, n, sizeof *p->n_text);
    return (p->ids && p->text && p->n_text) || no_memory(p->x);
}

/* A text, the ids of one, or an array of such. */
static bool read_prompts(struct prompts *p)
{
    const json_t *v = field_value(p->f, "prompt"), *first = json_array_get(v, 0);
    size_t n = 0;
    p->special = true;
    if (!v)
        return refuse_field(&p->x->failure, MISSING_FIELD, "prompt", "prompt is missing");
    if (!field_bool(p->f, "parse_special", &p->special))
        return false;
    const char *s = json_text(&p->f->doc, v, &n);
    if (!s && !json_is_array(v))
        return field_is_no(p->f, "prompt", "a string or an array", v);
    bool are_several = json_text(&p->f->doc, first, &n) || json_is_array(first);
    if (s)
        (void)json_text(&p->f->doc, v, &n);
    if (!make_room(p, are_several ? json_array_size(v) : 1))
        return false;
    if (s)
        return add_text(p, s, n);
    if (!are_several)
        return add_ids(p, v, "prompt");
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!add_prompt(p, json_array_get(v, i), i))
            return false;
    return true;
}

/* ---- The request ---------------------------------------------------------------------------- */

static bool make_choices(struct prompts *p)
{
    struct completion_state *s = p->s;
    s->n_per_prompt = p->g->n;
    struct completion_choice *choice =
        arena_calloc(&p->g->arena, p->n * (size_t)p->g->n, sizeof *choice);
    if (!choice)
        return no_memory(p->x);
    s->choice = choice;
    for (s->n = 0; s->n < (int32_t)p->n * p->g->n; s->n++) {
        struct completion_choice *c = &choice[s->n];
        struct buf *all[] = {&c->text,       &c->lists.tokens,    &c->lists.logprobs,
                             &c->lists.top,  &c->lists.offsets,   &c->ids,
                             &c->prompt_ids, &c->prompt_logprobs, &c->finish};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            buf_init(all[i], TEXT_LIMIT);
        c->prompt = p->text[s->n / p->g->n];
        c->n_prompt = p->n_text[s->n / p->g->n];
    }
    p->g->prompt = p->ids;
    p->g->n_prompts = p->n;
    return true;
}

/* How many alternatives, 0 to 20; false says that none are wanted, as its absence does. */
static bool read_count(const struct fields *f, const char *name, int32_t *out)
{
    int64_t n = -1;
    *out = -1;
    if (json_is_false(field_value(f, name)))
        return true;
    if (!field_int(f, name, &n, 0, 20))
        return false;
    *out = (int32_t)n;
    return true;
}

static bool read_request(struct exchange *x, const struct fields *f, struct generation *g,
                         struct completion_state *s)
{
    static const char *const own[] = {"prompt", "parse_special", "suffix", "prompt_logprobs"};
    struct known_fields known = {.n = 0};
    const char *model = x->server->model;
    size_t n = strlen(model);
    struct prompts p = {.x = x, .f = f, .g = g, .s = s};
    lathe_request_options_init(lathe_engine_text(x->server->engine), false, &g->options);
    g->options.no_parse = true;
    known_add(&known, own, sizeof own / sizeof *own);
    known_add(&known, openai_wish_fields, N_WISH_FIELDS);
    if (!openai_fields(x, f, &known) || !field_text(f, "model", &model, &n) ||
        !field_bool(f, "echo", &s->echo) || !openai_wishes(x, f, g, &s->wish) ||
        !read_count(f, "logprobs", &s->wish.n_top) ||
        !read_count(f, "prompt_logprobs", &s->n_prompt_top) || !read_prompts(&p) ||
        !sampling_read(f, g))
        return false;
    if (field_value(f, "suffix"))
        return refuse_field(&x->failure, UNSUPPORTED_FIELD, "suffix",
                            "suffix is not supported: the prompt is what stands before the text");
    openai_ask_tokens(&s->wish, g);
    g->options.n_prompt_logprobs = s->n_prompt_top;
    if (s->echo && s->wish.n_top > s->n_prompt_top)
        g->options.n_prompt_logprobs = s->wish.n_top;
    (void)snprintf(x->record.model, sizeof x->record.model, "%.*s", (int)(n < 120 ? n : 120),
                   model);
    openai_head(&s->head, x->server, s->id, "text_completion", model, n);
    buf_puts(&s->head, ",\"choices\":[");
    return make_choices(&p);
}

static bool parse(struct exchange *x, const struct fields *f, struct generation *g, void **state)
{
    struct completion_state *s = arena_calloc(&g->arena, 1, sizeof *s);
    if (!s)
        return no_memory(x);
    *state = s;
    s->server = x->server;
    memcpy(s->id, "cmpl-", 5);
    server_id(x->server, s->id + 5);
    if (!read_request(x, f, g, s))
        return false;
    s->stream = g->stream;
    return true;
}

/* ---- Tokens --------------------------------------------------------------------------------- */

static void put_comma(struct buf *out)
{
    if (out->len)
        buf_putc(out, ',');
}

static void put_member(struct buf *out, const lathe_text *text, int32_t id, float logprob)
{
    token_string(out, text, id);
    buf_putc(out, ':');
    token_logprob(out, logprob);
}

/* The alternatives, and the token itself where it is none of them. */
static void put_top(struct buf *out, const lathe_text *text, const lathe_token_info *t,
                    int32_t n_top)
{
    bool is_in = false;
    int32_t n = t->n_top < n_top ? t->n_top : n_top;
    buf_putc(out, '{');
    for (int32_t i = 0; i < n; i++) {
        if (i)
            buf_putc(out, ',');
        put_member(out, text, t->top[i].id, t->top[i].logprob);
        is_in |= t->top[i].id == t->id;
    }
    if (!is_in) {
        if (n > 0)
            buf_putc(out, ',');
        put_member(out, text, t->id, t->logprob);
    }
    buf_putc(out, '}');
}

/* t NULL: the prompt's first token, which nothing was before. */
static void list_token(struct token_lists *l, const lathe_text *text, int32_t id,
                       const lathe_token_info *t, int32_t n_top)
{
    size_t n;
    const char *bytes = lathe_token_bytes(text, id, &n);
    put_comma(&l->tokens);
    put_comma(&l->logprobs);
    put_comma(&l->top);
    put_comma(&l->offsets);
    token_string(&l->tokens, text, id);
    buf_printf(&l->offsets, "%zu", l->n_characters);
    if (t) {
        token_logprob(&l->logprobs, t->logprob);
        put_top(&l->top, text, t, n_top);
    } else {
        buf_puts(&l->logprobs, "null");
        buf_puts(&l->top, "null");
    }
    for (size_t i = 0; bytes && i < n; i++)
        l->n_characters += ((unsigned char)bytes[i] & 0xC0) != 0x80;
}

/* {"ID":{"logprob":X,"rank":N,"decoded_token":"..."}, ...}; a rank beyond the alternatives is not known. */
static void put_ranked(struct buf *out, const lathe_text *text, int32_t id, float logprob,
                       int32_t rank)
{
    buf_printf(out, "\"%d\":{\"logprob\":", (int)id);
    token_logprob(out, logprob);
    if (rank)
        buf_printf(out, ",\"rank\":%d,\"decoded_token\":", (int)rank);
    else
        buf_puts(out, ",\"rank\":null,\"decoded_token\":");
    token_string(out, text, id);
    buf_putc(out, '}');
}

static void put_prompt_token(struct buf *out, const lathe_text *text, const lathe_token_info *t,
                             int32_t n_top)
{
    int32_t rank = 0;
    for (int32_t i = 0; i < t->n_top; i++)
        if (t->top[i].id == t->id)
            rank = i + 1;
    put_comma(out);
    buf_putc(out, '{');
    put_ranked(out, text, t->id, t->logprob, rank);
    for (int32_t i = 0; i < t->n_top && i < n_top; i++) {
        if (t->top[i].id == t->id)
            continue;
        buf_putc(out, ',');
        put_ranked(out, text, t->top[i].id, t->top[i].logprob, i + 1);
    }
    buf_putc(out, '}');
}

static void note_token(struct completion_state *s, const lathe_event *ev)
{
    struct completion_choice *c = &s->choice[s->at];
    const lathe_text *text = lathe_engine_text(s->server->engine);
    const lathe_token_info *t = &ev->token;
    bool is_prompt = t->position < c->n_prompt_tokens;
    if (is_prompt && s->n_prompt_top >= 0)
        put_prompt_token(&c->prompt_logprobs, text, t, s->n_prompt_top);
    if (!is_prompt) {
        c->usage.completion_tokens = ev->usage.completion_tokens;
        c->usage.prefill_ms = ev->usage.prefill_ms;
        c->usage.decode_ms = ev->usage.decode_ms;
        c->usage.spec = ev->usage.spec;
    }
    if (t->is_end)
        return;
    if (!is_prompt && s->wish.ids)
        token_id(&c->ids, t->id);
    if (s->wish.n_top >= 0 && (s->echo || !is_prompt))
        list_token(&c->lists, text, t->id, t, s->wish.n_top);
}

/* What is known of the prompt when the request begins. */
static void begin_choice(struct completion_state *s, struct completion_choice *c,
                         const lathe_request *request)
{
    const int32_t *id = lathe_request_prompt(request);
    c->is_begun = true;
    c->n_prompt_tokens = lathe_request_prompt_tokens(request);
    for (int32_t i = 0; s->wish.ids && i < c->n_prompt_tokens; i++)
        token_id(&c->prompt_ids, id[i]);
    if (s->n_prompt_top >= 0)
        buf_puts(&c->prompt_logprobs, "null");
    if (!s->echo)
        return;
    buf_append(&c->text, c->prompt, c->n_prompt);
    if (s->wish.n_top >= 0)
        list_token(&c->lists, lathe_engine_text(s->server->engine), id[0], NULL, 0);
}

static void choose(void *state, int32_t choice, const lathe_request *request)
{
    struct completion_state *s = state;
    s->at = choice;
    if (!s->choice[choice].is_begun)
        begin_choice(s, &s->choice[choice], request);
}

/* ---- The reply ------------------------------------------------------------------------------ */

static void put_list(struct buf *out, const char *name, const struct buf *list)
{
    buf_puts(out, name);
    buf_puts(out, "\":[");
    buf_append(out, buf_str(list), list->len);
    buf_putc(out, ']');
    out->over |= list->over;
    out->no_memory |= list->no_memory;
}

/* What a choice has, which is then sent; its finish is written if it is over. */
static void put_choice(struct buf *out, const struct completion_state *s, int32_t i)
{
    struct completion_choice *c = &s->choice[i];
    struct token_lists *l = &c->lists;
    buf_puts(out, "{\"index\":");
    buf_put_int(out, i);
    buf_puts(out, ",\"text\":");
    json_print_string(out, buf_str(&c->text), c->text.len);
    if (l->tokens.len || (s->wish.n_top >= 0 && !s->stream)) {
        put_list(out, ",\"logprobs\":{\"tokens", &l->tokens);
        put_list(out, ",\"token_logprobs", &l->logprobs);
        put_list(out, ",\"top_logprobs", &l->top);
        put_list(out, ",\"text_offset", &l->offsets);
        buf_putc(out, '}');
    } else {
        buf_puts(out, ",\"logprobs\":null");
    }
    if (s->wish.ids)
        put_list(out, ",\"token_ids", &c->ids);
    if (c->prompt_ids.len)
        put_list(out, ",\"prompt_token_ids", &c->prompt_ids);
    if (c->prompt_logprobs.len)
        put_list(out, ",\"prompt_logprobs", &c->prompt_logprobs);
    if (c->finish.len)
        buf_append(out, buf_str(&c->finish), c->finish.len);
    else
        buf_puts(out, ",\"finish_reason\":null");
    buf_putc(out, '}');
    out->over |= c->text.over | c->finish.over;
    out->no_memory |= c->text.no_memory | c->finish.no_memory;
    struct buf *sent[] = {&c->text,    &l->tokens, &l->logprobs,   &l->top,
                          &l->offsets, &c->ids,    &c->prompt_ids, &c->prompt_logprobs};
    for (size_t k = 0; k < sizeof sent / sizeof *sent; k++)
        buf_clear(sent[k]);
}

/* Of all choices so far; a prompt counts once. */
static lathe_usage usage_so_far(const struct completion_state *s)
{
    lathe_usage u = {0};
    for (int32_t i = 0; i < s->n; i++) {
        const lathe_usage *c = &s->choice[i].usage;
        u.completion_tokens += c->completion_tokens;
        if (i % s->n_per_prompt == 0) {
            u.prompt_tokens += c->prompt_tokens;
            u.cached_tokens += c->cached_tokens;
        }
    }
    return u;
}

static void end_chunk(struct buf *out, const struct completion_state *s)
{
    lathe_usage u;
    if (s->wish.usage_per_chunk)
        u = usage_so_far(s);
    openai_end_chunk(out, &s->wish, s->wish.usage_per_chunk ? &u : NULL);
}

static void put_chunk(struct buf *out, const struct completion_state *s, bool with_timings)
{
    buf_puts(out, "data: ");
    buf_append_all(out, &s->head);
    put_choice(out, s, s->at);
    buf_putc(out, ']');
    if (with_timings)
        openai_timings(out, s->server, &s->choice[s->at].usage);
    end_chunk(out, s);
}

static void head(struct buf *out, void *state, const lathe_usage *known)
{
    (void)known;
    (void)out;
    (void)state;
}

static void event(struct buf *out, void *state, const lathe_event *ev)
{
    struct completion_state *s = state;
    struct completion_choice *c = &s->choice[s->at];
    if (ev->type == LATHE_EVENT_ACCEPTED || ev->type == LATHE_EVENT_FINISH)
        c->usage = ev->usage;
    if (ev->type == LATHE_EVENT_TOKEN)
        note_token(s, ev);
    if (ev->type == LATHE_EVENT_TEXT)
        buf_append(&c->text, ev->text, ev->n_text);
    if (ev->type == LATHE_EVENT_TEXT && s->stream)
        put_chunk(out, s, s->wish.timings_per_chunk);
    if (ev->type == LATHE_EVENT_FINISH) {
        buf_printf(&c->finish,
                   ",\"finish_reason\":\"%s\",\"stop_reason\":", openai_finish(ev->finish));
        openai_stop_reason(&c->finish, ev, &s->wish);
        if (s->stream)
            put_chunk(out, s, true);
    }
    if (ev->type == LATHE_EVENT_PROGRESS && s->stream) {
        buf_puts(out, "data: ");
        buf_append_all(out, &s->head);
        buf_printf(out,
                   "],\"prompt_progress\":{\"total\":%d,\"cache\":%d,\"processed\":%d,"
                   "\"time_ms\":%.0f}",
                   (int)ev->total, (int)c->usage.cached_tokens, (int)ev->done,
                   ev->usage.prefill_ms);
        end_chunk(out, s);
    }
}

static void finish(struct buf *out, void *state, const lathe_event *last)
{
    const struct completion_state *s = state;
    if (!s->stream || s->wish.include_usage) {
        buf_puts(out, s->stream ? "data: " : "");
        buf_append_all(out, &s->head);
        for (int32_t i = 0; i < s->n && !s->stream; i++) {
            if (i)
                buf_putc(out, ',');
            put_choice(out, s, i);
        }
        buf_putc(out, ']');
        if (!s->stream)
            openai_timings(out, s->server, &last->usage);
        buf_puts(out, ",\"usage\":");
        openai_usage(out, &last->usage);
        buf_puts(out, s->stream ? "}\n\n" : "}");
    }
    if (s->stream)
        buf_puts(out, "data: [DONE]\n\n");
}

static void release(void *state)
{
    struct completion_state *s = state;
    for (int32_t i = 0; s && i < s->n; i++) {
        struct completion_choice *c = &s->choice[i];
        struct buf *all[] = {&c->text,       &c->lists.tokens,    &c->lists.logprobs,
                             &c->lists.top,  &c->lists.offsets,   &c->ids,
                             &c->prompt_ids, &c->prompt_logprobs, &c->finish};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            buf_release(all[k]);
    }
    if (s)
        buf_release(&s->head);
}

void completions(struct exchange *x)
{
    static const struct dialect dialect = {"completions", parse,  head,    event,  openai_keepalive,
                                           openai_error,  finish, release, choose, "prompt"};
    generate(x, &dialect);
}
