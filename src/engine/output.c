#include "engine/output.h"

static lathe_status publish(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    const struct output *o = ctx;
    struct events *q = o->events;
    lathe_event out = {
        .type = ev->type,
        .text = ev->text,
        .n_text = ev->n,
        .index = ev->index,
        .call_id = ev->call_id,
        .name = ev->name,
    };
    if (ev->type == LATHE_EVENT_REASONING_END && o->is_separator) {
        out.id = o->before;
        out.n_id = (size_t)o->n_before;
    }
    events_push(q, &out);
    return events_check(q, err);
}

lathe_status output_open(struct output *o, const struct output_options *options, lathe_error *err)
{
    struct parse_options p = {
        .thinking_open = options->parse && options->thinking,
        .tools = options->parse ? options->tools : NULL,
        .stop = options->stop,
        .n_stop = options->n_stop,
        .max_calls = options->max_calls,
        .sink = publish,
        .sink_ctx = o,
    };
    o->ends_by_text = p.n_stop > 0 || p.tools;
    o->text = options->text;
    o->events = options->events;
    return parser_open(&o->parser, &p, err);
}

void output_close(struct output *o)
{
    parser_close(o->parser);
    *o = (struct output){0};
}

bool output_is_thinking(const struct output *o)
{
    return parser_thinking(o->parser);
}

lathe_status output_token(struct output *o, int32_t id, bool armed, int32_t *ended,
                          lathe_error *err)
{
    size_t n = 0;
    const char *bytes = tokenizer_bytes(o->text->tokenizer, id, &n);
    lathe_status st = LATHE_OK;
    parser_arm_stops(o->parser, armed);
    o->is_separator = id == o->text->think_end;
    /* Control tokens that decoded text leaves out (<|im_start|>) are not shown; <think> is. */
    if (bytes && !tokenizer_is_special(o->text->tokenizer, id))
        st = parser_feed(o->parser, bytes, n, err);
    *ended = parser_ended(o->parser);
    return st;
}

lathe_status output_finish(struct output *o, lathe_finish why, lathe_finish *finish,
                           lathe_error *err)
{
    *finish = why;
    o->is_separator = false;
    return parser_finish(o->parser, why, finish, err);
}

const char *output_stop_string(const struct output *o)
{
    return parser_stop_string(o->parser);
}
