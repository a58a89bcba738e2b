/* lathe_text of lathe.h: opening, closing and the token functions. lathe_render is in render.c. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/utf8.h"
#include "text/text.h"

enum { MAX_TEMPLATE = 1 << 20 }; /* bytes; the published ones have 10 KB */

/* ---- Opening ------------------------------------------------------------------------------ */

static lathe_status path_of(struct buf *path, const char *dir, const char *name, lathe_error *err)
{
    buf_clear(path);
    buf_printf(path, "%s/%s", dir, name);
    return buf_check(path, "path", err);
}

/* A file that may be absent; *d is then left alone. */
static lathe_status read_json(struct json_doc *d, struct buf *path, const char *dir,
                              const char *name, bool optional, lathe_error *err)
{
    lathe_status st = path_of(path, dir, name, err);
    if (st || (optional && !file_exists(buf_str(path))))
        return st;
    st = json_read_file(d, buf_str(path), &json_limits_model, err);
    if (!st && !json_is_object(d->root))
        st = fail(err, LATHE_E_FORMAT, "%s: expected an object", buf_str(path));
    return st;
}

/* chat_template of tokenizer_config.json: a text, or a list of {name, template} with a default. */
static const char *configured_template(const struct json_doc *d, size_t *n)
{
    const json_t *v = json_object_get(d->root, "chat_template");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *entry = json_array_get(v, i);
        size_t len;
        const char *name = json_text(d, json_object_get(entry, "name"), &len);
        if (name && len == 7 && memcmp(name, "default", 7) == 0)
            return json_text(d, json_object_get(entry, "template"), n);
    }
    return json_text(d, v, n);
}

static lathe_status read_template(struct lathe_text *text, struct buf *path,
                                  const struct json_doc *config, lathe_error *err)
{
    lathe_status st = path_of(path, text->model_dir, "chat_template.jinja", err);
    if (st)
        return st;
    struct buf b;
    buf_init(&b, MAX_TEMPLATE);
    size_t n;
    const char *s;
    if (file_exists(buf_str(path))) {
        text->template_file = "chat_template.jinja";
        st = file_read(&b, buf_str(path), err);
    } else if ((s = configured_template(config, &n))) {
        text->template_file = "chat_template of tokenizer_config.json";
        buf_append(&b, s, n);
        st = buf_check(&b, text->template_file, err);
    }
    if (!st && text->template_file) {
        if (!b.data) /* an empty file */
            buf_append(&b, "", 0);
        text->template_source = b.data;
        text->n_template_source = b.len;
        if (b.data)
            return LATHE_OK;
        st = fail_memory(err, 1);
    }
    buf_release(&b);
    return st;
}

static void find_controls(struct lathe_text *text)
{
    const struct tokenizer *t = text->tokenizer;
    text->think_begin = tokenizer_control_id(t, "<think>");
    text->think_end = tokenizer_control_id(t, "</think>");
    text->tool_call_begin = tokenizer_control_id(t, "<tool_call>");
    text->tool_call_end = tokenizer_control_id(t, "</tool_call>");
    text->im_start = tokenizer_control_id(t, "<|im_start|>");
    text->im_end = tokenizer_control_id(t, "<|im_end|>");
}

/* The files' texts; a failure names the file's path. */
static lathe_status read_files(struct lathe_text *text, struct buf *path,
                               struct json_doc *tokenizer, struct text_configs *c, lathe_error *err)
{
    const char *dir = text->model_dir;
    lathe_status st = read_json(tokenizer, path, dir, "tokenizer.json", false, err);
    st = st ? st : read_json(&c->tokenizer, path, dir, "tokenizer_config.json", true, err);
    st = st ? st : read_json(&c->config, path, dir, "config.json", true, err);
    st = st ? st : read_json(&c->generation, path, dir, "generation_config.json", true, err);
    return st ? st : read_template(text, path, &c->tokenizer, err);
}

static lathe_status check_template(const struct lathe_text *text, lathe_error *err)
{
    size_t n = text->n_template_source;
    size_t valid = text->template_source ? utf8_valid_prefix(text->template_source, n) : n;
    if (valid < n)
        return fail(err, LATHE_E_FORMAT, "%s: byte %zu is not UTF-8", text->template_file, valid);
    return LATHE_OK;
}

/* What they mean; a failure names the file. */
static lathe_status open_parts(struct lathe_text *text, const struct json_doc *tokenizer,
                               const struct text_configs *c, lathe_error *err)
{
    lathe_status st = tokenizer_open_json(&text->tokenizer, tokenizer, &c->tokenizer, err);
    st = st ? st : text_read_stop_ids(text, c, err);
    st = st ? st : text_read_sampling(text, c, err);
    st = st ? st : check_template(text, err);
    if (st)
        return st;
    find_controls(text);
    return text_template_open(text, err);
}

lathe_status lathe_text_open(lathe_text **out, const char *model_dir, lathe_error *err)
{
    *out = NULL;
    struct lathe_text *text = calloc(1, sizeof *text);
    if (!text)
        return fail_memory(err, sizeof *text);
    struct text_configs c = {0};
    struct json_doc tokenizer = {0};
    struct buf path;
    buf_init(&path, 1 << 16);
    lathe_status st = LATHE_OK;
    text->model_dir = strdup(model_dir);
    if (!text->model_dir)
        st = fail_memory(err, strlen(model_dir) + 1);
    st = st ? st : read_files(text, &path, &tokenizer, &c, err);
    if (!st) {
        st = open_parts(text, &tokenizer, &c, err);
        if (st)
            error_context(err, "opening %s", model_dir);
    }
    buf_release(&path);
    json_release(&tokenizer);
    json_release(&c.config);
    json_release(&c.generation);
    json_release(&c.tokenizer);
    if (st) {
        lathe_text_close(text);
        return st;
    }
    *out = text;
    return LATHE_OK;
}

void lathe_text_close(lathe_text *text)
{
    if (!text)
        return;
    text_template_close(text);
    tokenizer_close(text->tokenizer);
    free(text->template_source);
    free(text->stop_id);
    free(text->model_dir);
    free(text);
}

/* ---- Tokens ------------------------------------------------------------------------------- */

lathe_status lathe_tokenize(const lathe_text *text, const char *s, size_t n, bool control,
                            lathe_tokens *out, lathe_error *err)
{
    return tokenizer_encode(text->tokenizer, s, n, control ? TOKENIZER_CONTROL : TOKENIZER_PLAIN,
                            out, err);
}

lathe_status lathe_tokenize_while(const lathe_text *text, const char *s, size_t n, bool control,
                                  bool (*leave)(void *ctx), void *leave_ctx, lathe_tokens *out,
                                  lathe_error *err)
{
    struct watch watch = {.leave = leave, .ctx = leave_ctx};
    return tokenizer_encode_watched(text->tokenizer, s, n, control, NULL, &watch, out, err);
}

const char *lathe_token_bytes(const lathe_text *text, int32_t id, size_t *n)
{
    return tokenizer_bytes(text->tokenizer, id, n);
}

bool lathe_token_is_control(const lathe_text *text, int32_t id)
{
    return tokenizer_is_control(text->tokenizer, id);
}

lathe_status lathe_detokenize(const lathe_text *text, const int32_t *id, size_t n, char **out,
                              size_t *n_out, lathe_error *err)
{
    *out = NULL;
    *n_out = 0;
    struct buf raw, clean;
    buf_init(&raw, INT_MAX);
    buf_init(&clean, INT_MAX);
    lathe_status st = tokenizer_decode(text->tokenizer, id, n, &raw, err);
    for (size_t at = 0; !st && at < raw.len;) {
        size_t valid = utf8_valid_prefix(raw.data + at, raw.len - at);
        buf_append(&clean, raw.data + at, valid);
        at += valid;
        if (at < raw.len) {
            buf_puts(&clean, "\xEF\xBF\xBD");
            at += utf8_maximal_subpart(raw.data + at, raw.len - at);
        }
    }
    buf_append(&clean, "", 0);
    st = st ? st : buf_check(&clean, "decoded text", err);
    buf_release(&raw);
    if (st) {
        buf_release(&clean);
        return st;
    }
    *out = clean.data;
    *n_out = clean.len;
    return LATHE_OK;
}

void lathe_free(void *p)
{
    free(p);
}

void lathe_request_options_init(const lathe_text *text, bool thinking, lathe_request_options *o)
{
    *o = (lathe_request_options){
        .sampling = text->sampling[thinking],
        .max_tokens = -1,
        .think_budget = -1,
        .n_logprobs = -1,
        .n_prompt_logprobs = -1,
        .draft_k = -1,
    };
}
