#include "engine/closing.h"

#include <string.h>

enum { LEAST_ROOM = 512 }; /* for the answer behind a block whose budget is the whole output */

static lathe_status add_text(struct closing *c, const struct lathe_text *text, const char *s,
                             lathe_error *err)
{
    lathe_tokens t;
    lathe_status st = lathe_tokenize(text, s, strlen(s), false, &t, err);
    if (st)
        return st;
    if (t.n) /* an empty text has no ids to point to */
        memcpy(c->id + c->n, t.id, t.n * sizeof *t.id);
    c->n += (int32_t)t.n;
    lathe_tokens_release(&t);
    return LATHE_OK;
}

lathe_status closing_open(struct closing *c, struct arena *arena, const struct lathe_text *text,
                          const lathe_request_options *o, int32_t max_tokens, bool thinking,
                          lathe_error *err)
{
    static const char end[] = "</think>";
    const char *message = o->budget_message ? o->budget_message : "";
    /* A token has a byte or more. */
    size_t room = strlen(message) + strlen("\n") + strlen(end) + strlen("\n\n");
    *c = (struct closing){.at = CLOSING_NOT_BEGUN, .budget = -1};
    if (!thinking)
        return LATHE_OK;
    c->id = arena_alloc(arena, room * sizeof *c->id);
    if (!c->id)
        return fail_memory(err, room * sizeof *c->id);
    lathe_status st = add_text(c, text, message, err);
    c->n_message = c->n;
    if (!st)
        st = add_text(c, text, "\n", err);
    if (!st && text->think_end >= 0)
        c->id[c->n++] = text->think_end;
    else if (!st)
        st = add_text(c, text, end, err);
    if (!st)
        st = add_text(c, text, "\n\n", err);
    c->replaces_end = !o->end_in_think;
    c->budget = o->think_budget;
    if (c->budget >= max_tokens)
        c->budget = max_tokens - (max_tokens / 4 < LEAST_ROOM ? max_tokens / 4 : LEAST_ROOM);
    if (c->budget == 0)
        closing_begin(c, true);
    return st;
}

void closing_begin(struct closing *c, bool with_message)
{
    if (c->at == CLOSING_NOT_BEGUN)
        c->at = with_message ? 0 : c->n_message;
}

int32_t closing_room(const struct closing *c, int32_t n_thought)
{
    return c->budget < 0 ? INT32_MAX : c->budget - n_thought;
}
