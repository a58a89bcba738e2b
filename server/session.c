#include "session.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* The last two name a conversation and a part of it together. */
static const char *const header_name[SESSION_HEADERS] = {
    "x-session-affinity",    "session-id", "thread-id", "x-session-id", "x-claude-code-session-id",
    "x-claude-code-agent-id"};
enum { WHOLE = 4, PART = 5 };

/* Of a, and of a and b where there is a b. "" without memory. */
static void hash(const char *a, size_t n_a, const char *b, char out[SESSION_SIZE])
{
    unsigned char digest[SHA256_DIGEST_LENGTH];
    struct buf all;
    buf_init(&all, SIZE_MAX / 2);
    buf_append(&all, a, n_a);
    if (b) {
        buf_putc(&all, '\0');
        buf_puts(&all, b);
    }
    out[0] = 0;
    if (!all.no_memory) {
        SHA256((const unsigned char *)buf_str(&all), all.len, digest);
        for (size_t i = 0; i < (SESSION_SIZE - 1) / 2; i++)
            (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
    }
    buf_release(&all);
}

/* Requests that clients make beside a conversation. */
static bool is_of_background(const char *name, const char *value)
{
    static const char *const word[] = {"auxiliary", "compaction", "subagent"};
    if (strcasecmp(name, "x-openai-subagent") == 0)
        return *value;
    if (strcasecmp(name, "x-claude-code-request-class") != 0)
        return false;
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        if (strcasecmp(value, word[i]) == 0)
            return true;
    return false;
}

void session_header(struct session_hint *h, const char *name, const char *value)
{
    h->is_background |= is_of_background(name, value);
    for (int i = 0; i < SESSION_HEADERS; i++)
        if (!h->header[i] && *value && strcasecmp(name, header_name[i]) == 0)
            h->header[i] = value;
}

void session_of_headers(const struct session_hint *h, char out[SESSION_SIZE])
{
    out[0] = 0;
    for (int i = 0; i <= WHOLE; i++)
        if (h->header[i]) {
            hash(h->header[i], strlen(h->header[i]), i == WHOLE ? h->header[PART] : NULL, out);
            return;
        }
}

static bool of_member(const struct fields *f, const json_t *v, char session[SESSION_SIZE])
{
    size_t n;
    const char *s = json_text(&f->doc, v, &n);
    if (s && n)
        hash(s, n, NULL, session);
    return s && n;
}

void session_of_body(const struct fields *f, char session[SESSION_SIZE])
{
    if (of_member(f, json_object_get(f->object, "prompt_cache_key"), session) || session[0])
        return;
    const json_t *metadata = json_object_get(f->object, "metadata");
    if (!of_member(f, json_object_get(metadata, "user_id"), session))
        (void)of_member(f, json_object_get(f->object, "user"), session);
}

void priority_of_body(const struct fields *f, struct record *r)
{
    int64_t n;
    const json_t *v = json_object_get(f->object, "priority");
    if (!v || !json_whole(v, &n))
        return;
    r->priority = (int32_t)(n < INT32_MIN ? INT32_MIN : n > INT32_MAX ? INT32_MAX : n);
    r->is_background |= n > 0;
}

uint64_t session_number(const char session[SESSION_SIZE])
{
    return strtoull(session, NULL, 16);
}
