#include "route.h"

#include <stdio.h>
#include <string.h>

#include "dialects.h"
#include "info.h"
#include "metrics.h"
#include "page.h"
#include "slots.h"
#include "text.h"

const struct route routes[] = {
    {GET, "/health", .no_key = true, .handle = health},
    {GET, "/ready", .no_key = true, .handle = ready},
    {GET, "/livez", .no_key = true, .handle = livez},
    {GET, "/ping", .no_key = true, .handle = livez},
    {GET, "/version", .no_key = true, .handle = version},
    {GET, "/api/hello", .no_key = true, .handle = hello},
    {GET, "/help", .no_key = true, .handle = help},
    {GET, "/", .no_key = true, .handle = page},
    {GET, "/page", .prefix = true, .no_key = true, .handle = page_file},
    {GET, "/models", .v1 = true, .handle = models_list},
    {GET, "/models", .v1 = true, .prefix = true, .handle = models_one},
    {GET, "/props", .closed = CLOSED_LOADING, .handle = props},
    {GET, "/slots", .closed = CLOSED_LOADING, .handle = slots_list},
    {POST, "/slots", .prefix = true, .runs = RUNS_POOLED, .closed = CLOSED_LOADING,
     .handle = slots_act},
    {POST, "/reset_prefix_cache", .runs = RUNS_POOLED, .closed = CLOSED_LOADING,
     .handle = reset_prefix_cache},
    {GET, "/metrics", .no_key = true, .metrics = true, .handle = metrics_show},
    {GET, "/debug/requests", .handle = debug_requests},
    {GET, "/debug/cache", .handle = debug_cache},
    {POST, "/chat/completions", .v1 = true, .runs = RUNS_LONG, .closed = CLOSED_DRAINING,
     .handle = chat_completions},
    {POST, "/chat/completions/input_tokens", .v1 = true, .runs = RUNS_POOLED,
     .closed = CLOSED_LOADING, .handle = chat_input_tokens},
    {POST, "/completions", .v1 = true, .runs = RUNS_LONG, .closed = CLOSED_DRAINING,
     .handle = completions},
    {POST, "/responses", .v1 = true, .runs = RUNS_LONG, .closed = CLOSED_DRAINING,
     .handle = responses},
    {POST, "/responses/input_tokens", .v1 = true, .runs = RUNS_POOLED, .closed = CLOSED_LOADING,
     .handle = responses_input_tokens},
    {GET, "/responses", .v1 = true, .prefix = true, .runs = RUNS_POOLED, .handle = responses_get},
    {DELETE, "/responses", .v1 = true, .prefix = true, .handle = responses_delete},
    {POST, "/messages", .v1 = true, .runs = RUNS_LONG, .closed = CLOSED_DRAINING,
     .handle = messages},
    {POST, "/messages/count_tokens", .v1 = true, .runs = RUNS_POOLED, .closed = CLOSED_LOADING,
     .handle = messages_count_tokens},
    {POST, "/tokenize", .runs = RUNS_POOLED, .closed = CLOSED_LOADING, .handle = tokenize},
    {POST, "/detokenize", .runs = RUNS_POOLED, .closed = CLOSED_LOADING, .handle = detokenize},
    {POST, "/apply-template", .runs = RUNS_POOLED, .closed = CLOSED_LOADING,
     .handle = apply_template},
    {0},
};

/* Known elsewhere, and not offered here. */
static const struct refused {
    const char *path; /* without /v1; what lies below it too. A star is any one name */
    const char *why;
} refused[] = {
    {"/responses/compact",
     "histories are not compacted; ask for a summary with an ordinary request"},
    {"/responses/*/cancel", "there is no background mode; closing the connection ends a response"},
    {"/files", "files are not stored"},
    {"/batches", "there is no batch processing"},
    {"/messages/batches", "there is no batch processing"},
    {"/audio", "audio is not supported"},
    {"/images", "images are not generated"},
    {"/moderations", "there is no moderation"},
    {"/fine_tuning", "models are not trained here"},
    {"/conversations", "conversations are not stored; send the messages with each request"},
    {"/realtime", "there is no realtime interface"},
    {"/embeddings", "embeddings are not supported"},
};

static bool begins(const char *s, size_t n, const char *with)
{
    size_t m = strlen(with);
    return n >= m && memcmp(s, with, m) == 0;
}

/* The path or something below it. */
static bool is_at(const char *s, size_t n, const char *path)
{
    size_t i = 0;
    for (; *path && i < n; path++) {
        size_t from = i;
        while (*path == '*' && i < n && s[i] != '/')
            i++;
        if (*path == '*' ? i == from : s[i++] != *path)
            return false;
    }
    return !*path && (i == n || s[i] == '/');
}

void route_methods(int methods, char out[40])
{
    (void)snprintf(out, 40, "%s%s%sOPTIONS", methods & GET ? "GET, HEAD, " : "",
                   methods & POST ? "POST, " : "", methods & DELETE ? "DELETE, " : "");
}

static enum method method_of(const char *word)
{
    return strcmp(word, "GET") == 0 || strcmp(word, "HEAD") == 0 ? GET
           : strcmp(word, "POST") == 0                           ? POST
           : strcmp(word, "DELETE") == 0                         ? DELETE
                                                                 : (enum method)0;
}

static bool matches(const struct route *r, const char *s, size_t n, bool below_v1)
{
    size_t m = strlen(r->path);
    if (below_v1 && !r->v1)
        return false;
    return r->prefix ? begins(s, n, r->path) && n > m + 1 && s[m] == '/'
                     : n == m && memcmp(s, r->path, m) == 0;
}

enum shape route_shape(const char *path)
{
    size_t n = strlen(path);
    const char *s = begins(path, n, "/v1/") ? path + 3 : path;
    return is_at(s, strlen(s), "/messages") ? SHAPE_ANTHROPIC : SHAPE_OPENAI;
}

bool route_find(struct exchange *x, int *allow)
{
    char *path = x->path;
    size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '/')
        path[--n] = 0;
    const char *s = path;
    bool below_v1 = begins(s, n, "/v1/");
    enum method method = method_of(x->method);
    *allow = 0;
    x->rest = "";
    if (below_v1) {
        s += 3;
        n -= 3;
    }
    if (below_v1 && is_at(s, n, "/v1"))
        return refuse(&x->failure, NOT_FOUND,
                      "the path begins with /v1/v1: drop one /v1 from the base URL");
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_at(s, n, refused[i].path))
            return refuse(&x->failure, NOT_FOUND, "no such route: %.20s %.200s: %s", x->method,
                          x->path, refused[i].why);
    for (const struct route *r = routes; r->path; r++) {
        if (!matches(r, s, n, below_v1))
            continue;
        *allow = *allow | (int)r->method;
        if (r->method == method) {
            x->route = r;
            x->rest = r->prefix ? s + strlen(r->path) + 1 : "";
            return true;
        }
    }
    if (*allow)
        return refuse(&x->failure, BAD_METHOD, "%.20s is no method of %.200s%s", x->method, x->path,
                      is_at(s, n, "/responses") ? "; there is no WebSocket here" : "");
    return refuse(&x->failure, NOT_FOUND, "no such route: %.20s %.200s", x->method, x->path);
}
