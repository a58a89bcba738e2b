/* The request side of OpenAI's Responses. */
#ifndef LATHE_SERVER_DIALECT_OPENAI_RESPONSES_H
#define LATHE_SERVER_DIALECT_OPENAI_RESPONSES_H

#include "generate.h"
#include "store.h"

/* ---- Tools ---------------------------------------------------------------------------------- */

enum tool_kind {
    TOOL_FUNCTION,
    TOOL_CUSTOM, /* a function with the one parameter "input" in the prompt */
    TOOL_SEARCH, /* of deferred tools, which the client does */
};

struct named_tool {
    enum tool_kind kind;
    const char *rendered; /* its name in the prompt */
    const char *space;    /* the namespace that it is in; NULL: none */
    const char *name;     /* in that */
};

/* All tools that a request brings: those of the prompt, deferred ones, and those that searches found. */
struct toolbox {
    struct arena *arena; /* of the names */
    struct named_tool *tool;
    size_t n, room;
    json_t *by_rendered, *by_origin; /* to the index */
    struct buf listed,
        callable; /* JSON arrays in chat form, still open: those of the prompt, and all */
    size_t n_listed;
    bool strict_custom; /* grammars that are only shown to the model are refused */
    bool any_strict;
};

bool toolbox_init(struct toolbox *b, struct arena *arena, struct failure *f);
void toolbox_release(struct toolbox *b); /* no-op on a zeroed one */
/* The body's tools. Types of those that are not offered go to x->ignored. */
bool toolbox_read(struct toolbox *b, struct exchange *x, const struct fields *f);
/* The tools that a search found, `found` of document d: their definitions, one a line, into `lines`. */
bool toolbox_load(struct toolbox *b, struct exchange *x, const struct json_doc *d,
                  const json_t *found, const char *path, struct buf *lines);
/* By the name in the prompt; NULL: not declared. */
const struct named_tool *toolbox_find(const struct toolbox *b, const char *rendered);
/* The name in the prompt of a tool as the client names it, space NULL or "" for none; NULL without memory. */
const char *toolbox_rendered(const struct toolbox *b, const char *space, const char *name);

/* ---- The request ---------------------------------------------------------------------------- */

/* Members of the response that repeat the request, as JSON, in their order. */
enum {
    ECHO_INSTRUCTIONS,  /* a value */
    ECHO_BEFORE_OUTPUT, /* the rest but tools: members, each with a comma before it */
    ECHO_BEFORE_TOOLS,
    ECHO_TOOLS, /* a value */
    ECHO_BEFORE_USAGE,
    ECHO_END,
    N_ECHOES
};

struct responses_request {
    struct toolbox tools;
    struct stored *previous; /* held */
    struct buf input;        /* JSON array: this turn's items as they are stored */
    const char *model;       /* as the client named it */
    bool store;
    bool show_summary, show_content; /* what of the reasoning is sent */
    bool carries;                    /* encrypted_content is sent */
    int32_t
        n_top; /* alternatives beside the log-probabilities of a message; -1: those are not sent */
    struct buf echo[N_ECHOES];
};

/* Fills g and *q, which is zeroed and released after a refusal too. */
bool responses_read(struct exchange *x, const struct fields *f, struct generation *g,
                    struct responses_request *q);
void responses_request_release(struct responses_request *q, struct store *store);

/* Of it: g->chat and g->options.max_calls, from instructions, previous_response_id, input, tools, tool_choice and the
 * fields of thinking. */
bool responses_conversation(struct exchange *x, const struct fields *f, struct generation *g,
                            struct responses_request *q);

/* The items of input, and before them those of q->previous, as messages in chat form, an open JSON array, into `out`. */
bool responses_input(struct exchange *x, const struct fields *f, struct responses_request *q,
                     struct buf *out);

#endif
