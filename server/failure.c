#include "failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

static const char invalid[] = "invalid_request_error", server_error[] = "server_error";

static const struct words {
    int http;
    const char *type, *code; /* OpenAI's */
    const char *anthropic;
    int retry_after;
} table[N_CONDITIONS] = {
    [FINE] = {200, "", "", "", 0},
    [BAD_JSON] = {400, invalid, "invalid_json", invalid, 0},
    [BAD_TYPE] = {400, invalid, "invalid_type", invalid, 0},
    [BAD_VALUE] = {400, invalid, "invalid_value", invalid, 0},
    [MISSING_FIELD] = {400, invalid, "missing_required_parameter", invalid, 0},
    [UNSUPPORTED_FIELD] = {400, invalid, "unsupported_parameter", invalid, 0},
    [UNSUPPORTED_VALUE] = {400, invalid, "unsupported_value", invalid, 0},
    [BAD_IMAGE] = {400, invalid, "invalid_image", invalid, 0},
    [PROMPT_TOO_LONG] = {400, invalid, "context_length_exceeded", invalid, 0},
    [PREVIOUS_NOT_FOUND] = {400, invalid, "previous_response_not_found", invalid, 0},
    [THREAD_UNSUPPORTED] = {400, invalid, "unsupported_parameter", invalid, 0},
    [BAD_KEY] = {401, invalid, "invalid_api_key", "authentication_error", 0},
    [HOST_REFUSED] = {403, invalid, "host_not_allowed", "permission_error", 0},
    [ORIGIN_REFUSED] = {403, invalid, "origin_not_allowed", "permission_error", 0},
    [NOT_FOUND] = {404, invalid, "not_found", "not_found_error", 0},
    [MODEL_NOT_FOUND] = {404, invalid, "model_not_found", "not_found_error", 0},
    [BAD_METHOD] = {405, invalid, "method_not_allowed", invalid, 0},
    [BODY_TOO_LARGE] = {413, invalid, "request_too_large", "request_too_large", 0},
    [HEAD_TOO_LARGE] = {431, invalid, "request_too_large", "request_too_large", 0},
    [BAD_ENCODING] = {415, invalid, "unsupported_media_type", invalid, 0},
    [SLOT_AT_WORK] = {409, invalid, "slot_busy", invalid, 0},
    [NOT_BUILT] = {501, invalid, "not_implemented", invalid, 0},
    [QUEUE_FULL] = {429, "rate_limit_error", "queue_full", "rate_limit_error", 2},
    [QUEUE_TIMEOUT] = {429, "rate_limit_error", "queue_timeout", "rate_limit_error", 2},
    [DEADLINE] = {504, server_error, "deadline_exceeded", "timeout_error", 0},
    [CLIENT_GONE] = {499, invalid, "client_gone", invalid, 0},
    [INTERNAL] = {500, server_error, "internal_error", "api_error", 0},
    [LOADING] = {503, server_error, "loading_model", "overloaded_error", 5},
    [DRAINING] = {503, server_error, "shutting_down", "overloaded_error", 5},
    [BUSY] = {503, server_error, "server_busy", "overloaded_error", 2},
};

static void fill(struct failure *f, enum condition c, const char *param, const char *fmt,
                 va_list ap) PRINTF_LIKE(4, 0);
static void fill(struct failure *f, enum condition c, const char *param, const char *fmt,
                 va_list ap)
{
    if (f->condition != FINE)
        return;
    f->condition = c;
    (void)snprintf(f->param, sizeof f->param, "%s", param);
    (void)vsnprintf(f->message, sizeof f->message, fmt, ap);
}

bool refuse(struct failure *f, enum condition c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(f, c, "", fmt, ap);
    va_end(ap);
    return false;
}

bool refuse_field(struct failure *f, enum condition c, const char *param, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fill(f, c, param, fmt, ap);
    va_end(ap);
    return false;
}

static enum condition condition_of(lathe_status st)
{
    switch (st) {
    case LATHE_OK:
        return FINE;
    case LATHE_E_ARGUMENT:
    case LATHE_E_FORMAT:
    case LATHE_E_LIMIT:
    case LATHE_E_TEMPLATE:
        return BAD_VALUE;
    case LATHE_E_UNSUPPORTED:
        return UNSUPPORTED_VALUE;
    case LATHE_E_IMAGE:
        return BAD_IMAGE;
    case LATHE_E_CONTEXT:
        return PROMPT_TOO_LONG;
    case LATHE_E_BUSY:
        return QUEUE_FULL;
    case LATHE_E_CANCELLED:
        return DRAINING;
    case LATHE_E_IO:
    case LATHE_E_MEMORY:
    case LATHE_E_NUMERIC:
    case LATHE_E_DEVICE:
        break;
    }
    return INTERNAL;
}

/* The first two numbers of the library's message: the prompt's tokens and the context's. */
static bool refuse_prompt(struct failure *f, const char *message)
{
    static const char digits[] = "0123456789";
    char *end;
    f->n_prompt = strtol(message + strcspn(message, digits), &end, 10);
    f->n_ctx = strtol(end + strcspn(end, digits), NULL, 10);
    return refuse_field(f, PROMPT_TOO_LONG, "messages",
                        "This model's maximum context length is %ld tokens. However, the prompt "
                        "has %ld tokens. Reduce the length of the messages.",
                        f->n_ctx, f->n_prompt);
}

/* A message of the library's that begins with an option's name, as "stop_id[0] is ...", has the field's instead. */
static bool refuse_option(struct failure *f, const lathe_error *err)
{
    static const struct {
        const char *option, *field;
    } renamed[] = {
        {"stop_id", "stop_token_ids"}, {"logit_bias", "logit_bias"}, {"min_tokens", "min_tokens"}};
    const char *s = err->message;
    size_t n_name = strcspn(s, "[ :"), n_path = strcspn(s, " :"), i = 0;
    size_t n_rows = sizeof renamed / sizeof *renamed;
    while (i < n_rows &&
           !(strlen(renamed[i].option) == n_name && strncmp(s, renamed[i].option, n_name) == 0))
        i++;
    if (i == n_rows || condition_of(err->status) == INTERNAL)
        return refuse(f, condition_of(err->status), "%s", s);
    char param[sizeof f->param];
    (void)snprintf(param, sizeof param, "%s%.*s", renamed[i].field, (int)(n_path - n_name),
                   s + n_name);
    return refuse_field(f, condition_of(err->status), param, "%s%s", renamed[i].field, s + n_name);
}

bool refuse_status(struct failure *f, const lathe_error *err)
{
    if (err->status == LATHE_E_CONTEXT)
        return refuse_prompt(f, err->message);
    if (err->status == LATHE_E_CANCELLED) /* whatever it was that ended with the server */
        return refuse(f, DRAINING, "the server is shutting down");
    char param[sizeof f->param] = "";
    size_t n = strcspn(err->message, ": ");
    if (err->message[n] == ':' && n < sizeof param &&
        (strncmp(err->message, "messages", 8) == 0 || strncmp(err->message, "tools", 5) == 0 ||
         strncmp(err->message, "kwargs", 6) == 0))
        (void)snprintf(param, sizeof param, "%.*s", (int)n, err->message);
    const char *prefix = strncmp(err->message, "kwargs", 6) == 0 ? "chat_template_" : "";
    if (param[0] || *prefix)
        return refuse_field(f, condition_of(err->status), *prefix ? "chat_template_kwargs" : param,
                            "%s%s", prefix, err->message);
    return refuse_option(f, err);
}

int failure_http(enum condition c)
{
    return table[c].http;
}

const char *failure_code(enum condition c)
{
    return table[c].code;
}

int failure_retry_after(enum condition c)
{
    return table[c].retry_after;
}

void failure_print(struct buf *out, const struct failure *f, enum shape shape,
                   const char *request_id)
{
    const struct words *w = &table[f->condition];
    /* The library's sentences are UTF-8 already; a name cut at the array's end may not be. */
    lathe_error text;
    (void)fail(&text, LATHE_OK, "%s", f->message);
    const char *message = text.message;
    char overflow[80];
    if (shape == SHAPE_ANTHROPIC && f->condition == PROMPT_TOO_LONG) {
        (void)snprintf(overflow, sizeof overflow, "prompt is too long: %ld tokens > %ld maximum",
                       f->n_prompt, f->n_ctx);
        message = overflow;
    }
    if (shape == SHAPE_ANTHROPIC) {
        buf_printf(out,
                   "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", w->anthropic);
        json_print_string(out, message, strlen(message));
        if (f->condition == THREAD_UNSUPPORTED)
            buf_puts(out, ",\"details\":{\"error_code\":\"thread_unsupported_request\","
                          "\"unsupported\":[\"thread\"]}");
        buf_puts(out, "},\"request_id\":");
        json_print_string(out, request_id, strlen(request_id));
        buf_putc(out, '}');
        return;
    }
    buf_puts(out, "{\"error\":{\"message\":");
    json_print_string(out, message, strlen(message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", w->type);
    if (f->param[0]) {
        (void)fail(&text, LATHE_OK, "%s", f->param);
        json_print_string(out, text.message, strlen(text.message));
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"code\":\"%s\"", w->code);
    if (f->condition == PROMPT_TOO_LONG)
        buf_printf(out, ",\"n_prompt_tokens\":%ld,\"n_ctx\":%ld", f->n_prompt, f->n_ctx);
    buf_puts(out, "}}");
}
