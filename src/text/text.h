/* The text side of a model directory: tokenizer, chat template and what its configuration files say
 * about ending and sampling. text_api.c opens and closes it and implements the token functions of
 * lathe.h; render.c owns `template` and implements lathe_render. */
#ifndef LATHE_TEXT_TEXT_H
#define LATHE_TEXT_TEXT_H

#include "text/tokenizer.h"

struct template;

struct lathe_text {
    char *model_dir;
    struct tokenizer *tokenizer;

    /* chat_template.jinja or else chat_template of tokenizer_config.json; NULL: there is none, and
     * rendering fails. template_file says where it was found, for messages. */
    char *template_source;
    size_t n_template_source;
    const char *template_file;
    struct template *template; /* compiled; NULL without a source */

    int32_t *stop_id; /* [n_stop_id], ascending: every end token that a file names */
    size_t n_stop_id;

    /* Ids of the added tokens that shape the output; -1 where the tokenizer has none. */
    int32_t think_begin, think_end;         /* <think>, </think> */
    int32_t tool_call_begin, tool_call_end; /* <tool_call>, </tool_call> */
    int32_t im_start, im_end;               /* <|im_start|>, <|im_end|> */

    lathe_sampling sampling[2]; /* defaults of a request that does not think, that thinks */
};

/* In render.c. Compiles text->template_source into text->template; called once by lathe_text_open,
 * also without a source. */
lathe_status text_template_open(struct lathe_text *text, lathe_error *err);
void text_template_close(struct lathe_text *text); /* also after a failed or a missing open */
/* lathe_render for an answer: parts other than text, of which the prompt would hold a placeholder only,
 * are LATHE_E_UNSUPPORTED. */
lathe_status text_render_request(const lathe_text *text, const lathe_conversation *conversation,
                                 lathe_prompt *out, lathe_error *err);
/* The same, and lathe_render, with what is known of turns: replay.h. */
struct replay_memory;
lathe_status text_render_known(const lathe_text *text, const lathe_conversation *conversation,
                               const struct replay_memory *memory, bool is_request,
                               lathe_prompt *out, lathe_error *err);

/* In text_config.c. `config` is config.json, `generation` generation_config.json, `tokenizer`
 * tokenizer_config.json; the root of any may be NULL. */
struct text_configs {
    struct json_doc config, generation, tokenizer;
};
/* The union of the end tokens they name. One that the tokenizer lacks is left out with a warning. */
lathe_status text_read_stop_ids(struct lathe_text *text, const struct text_configs *c,
                                lathe_error *err);
/* What generation_config.json says; the family's defaults for the rest. */
lathe_status text_read_sampling(struct lathe_text *text, const struct text_configs *c,
                                lathe_error *err);

#endif
