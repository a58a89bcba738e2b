#include "thinking.h"

#include <stdio.h>
#include <string.h>

#include "state.h"
#include "unsupported.h"

static const struct thinking_options no_options;

static const struct thinking_options *options_of(const struct fields *f)
{
    return f->server ? &f->server->options.thinking : &no_options;
}

/* ---- Fields --------------------------------------------------------------------------------- */

bool thinking_effort(const struct fields *f, const char *name, struct chat *c)
{
    static const char *const word[] = {"xhigh",   "high", "max",     "medium", "low",
                                       "minimal", "none", "default", "auto"};
    enum { N_WORDS = sizeof word / sizeof *word, N_LEVELS = N_WORDS - 2 };
    char param[64];
    const char *s = NULL;
    size_t n, i = 0;
    if (!field_text(f, name, &s, &n))
        return false;
    while (s && i < N_WORDS && strcmp(s, word[i]) != 0)
        i++;
    (void)snprintf(param, sizeof param, "%s%s", f->path, name);
    if (i == N_WORDS)
        return refuse_field(f->failure, BAD_VALUE, param,
                            "%s: '%.40s' is none of xhigh, high, max, medium, low, minimal, none",
                            param, s);
    /* The last two ask for nothing. */
    if (s && i < N_LEVELS && !c->conversation.effort)
        c->conversation.effort = word[i];
    return true;
}

static void set_thinking(struct chat *c, bool is_on)
{
    if (c->conversation.thinking == LATHE_DEFAULT)
        c->conversation.thinking = is_on ? LATHE_ON : LATHE_OFF;
}

bool thinking_switch(const struct fields *f, const char *name, struct chat *c)
{
    bool is_on = false;
    if (!field_bool(f, name, &is_on))
        return false;
    if (field_value(f, name))
        set_thinking(c, is_on);
    return true;
}

bool thinking_budget(const struct fields *f, const char *name, struct chat *c)
{
    int64_t budget = -1;
    if (!field_int(f, name, &budget, -1, INT32_MAX))
        return false;
    if (field_value(f, name) && !c->has_budget) {
        c->budget = (int32_t)budget;
        c->has_budget = true;
    }
    return true;
}

bool thinking_object(const struct fields *f, struct chat *c)
{
    struct fields in;
    const char *type = NULL;
    size_t n;
    if (!fields_inner(f, "thinking", "thinking.", &in) || !field_text(&in, "type", &type, &n) ||
        !thinking_budget(&in, "budget_tokens", c))
        return false;
    if (!type)
        return true;
    bool is_on = strcmp(type, "enabled") == 0 || strcmp(type, "adaptive") == 0 ||
                 strcmp(type, "between_tools") == 0;
    if (!is_on && strcmp(type, "disabled") != 0)
        return refuse_field(f->failure, BAD_VALUE, "thinking.type",
                            "thinking.type: '%.40s' is none of enabled, disabled, adaptive", type);
    set_thinking(c, is_on);
    return true;
}

bool thinking_unknown(const struct fields *f, struct exchange *x, bool has_display)
{
    static const char *const known[] = {"type", "budget_tokens", "display"};
    return inner_unknown(f, x, "thinking", "thinking.", known, has_display ? 3 : 2);
}

bool reasoning_unknown(const struct fields *f, struct exchange *x, bool has_summary)
{
    static const char *const known[] = {"enabled", "effort",  "max_tokens",
                                        "exclude", "summary", "generate_summary"};
    return inner_unknown(f, x, "reasoning", "reasoning.", known, has_summary ? 6 : 4);
}

/* ---- What it comes to ----------------------------------------------------------------------- */

/* The template's variables that are switches here go no further: they are in the conversation. */
static bool take_kwargs(const struct fields *f, struct chat *c)
{
    static const char *const taken[] = {"enable_thinking", "reasoning_effort", "preserve_thinking"};
    struct fields in;
    bool preserve = false;
    if (!fields_inner(f, "chat_template_kwargs", "chat_template_kwargs.", &in) ||
        !thinking_switch(&in, taken[0], c) || !thinking_effort(&in, taken[1], c) ||
        !field_bool(&in, taken[2], &preserve))
        return false;
    if (field_value(&in, taken[2]))
        c->conversation.preserve_thinking = preserve ? LATHE_ON : LATHE_OFF;
    json_t *object = json_object_get(f->object, "chat_template_kwargs");
    for (size_t i = 0; i < 3; i++)
        (void)json_object_del(object, taken[i]); /* absent ones, too */
    if (in.object)
        json_print(&c->kwargs, &f->doc, in.object);
    return true;
}

bool thinking_begin(const struct fields *f, struct chat *c)
{
    static const char *const budget[] = {"thinking_budget", "thinking_token_budget",
                                         "reasoning_budget", "thinking_budget_tokens"};
    bool preserve = false;
    c->budget = -1;
    if (!take_kwargs(f, c) || !field_bool(f, "preserve_thinking", &preserve))
        return false;
    if (field_value(f, "preserve_thinking") && c->conversation.preserve_thinking == LATHE_DEFAULT)
        c->conversation.preserve_thinking = preserve ? LATHE_ON : LATHE_OFF;
    for (size_t i = 0; i < sizeof budget / sizeof *budget; i++)
        if (!thinking_budget(f, budget[i], c))
            return false;
    return true;
}

void thinking_end(const struct fields *f, struct chat *c)
{
    const struct thinking_options *o = options_of(f);
    lathe_conversation *v = &c->conversation;
    bool is_none = v->effort && strcmp(v->effort, "none") == 0;
    /* An explicit switch beats an effort, and any effort but none asks to think. */
    if (v->thinking == LATHE_DEFAULT && v->effort)
        v->thinking = is_none ? LATHE_OFF : LATHE_ON;
    if (is_none)
        v->effort = NULL;
    c->asks_to_think = v->thinking == LATHE_ON;
    if (v->thinking == LATHE_DEFAULT)
        v->thinking = o->thinking;
    c->thinks = v->thinking != LATHE_OFF;
    if (!v->effort)
        v->effort = o->effort;
    if (o->pinned_effort)
        v->effort = o->pinned_effort;
    if (!c->thinks)
        v->effort = NULL;
}

bool chat_thinking(const struct fields *f, struct chat *c)
{
    struct fields reasoning;
    bool think_is_switch = json_is_boolean(field_value(f, "think"));
    if (!thinking_begin(f, c) || !thinking_switch(f, "enable_thinking", c) ||
        !thinking_object(f, c) ||
        !(think_is_switch ? thinking_switch(f, "think", c) : thinking_effort(f, "think", c)) ||
        !fields_inner(f, "reasoning", "reasoning.", &reasoning) ||
        !thinking_switch(&reasoning, "enabled", c) || !thinking_effort(&reasoning, "effort", c) ||
        !thinking_budget(&reasoning, "max_tokens", c) || !thinking_effort(f, "reasoning_effort", c))
        return false;
    thinking_end(f, c);
    return true;
}
