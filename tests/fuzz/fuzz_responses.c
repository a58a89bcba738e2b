/* Any bytes as the body of a request for a response: a refusal with its condition and message, or a conversation whose
 * parts are JSON again; the items as they are stored are a conversation, too, of the same messages. The bytes as a custom
 * tool's input come out of its call's arguments as they went in. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "server/dialect/custom_input.h"
#include "server/dialect/openai_responses.h"
#include "server/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* In server.c, which is not linked. */
void server_id(const struct server *s, char out[25])
{
    (void)s;
    memcpy(out, "AAAAAAAAAAAAAAAAAAAAAAAA", 25);
}

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_array(const char *s)
{
    struct json_doc d;
    if (!s)
        return;
    lathe_status st = json_read(&d, s, strlen(s), &json_limits_request, NULL);
    require(st == LATHE_E_LIMIT || (!st && json_is_array(d.root)));
    json_release(&d);
}

struct reading {
    struct exchange x;
    struct fields f;
    struct generation g;
    struct responses_request q;
};

static bool read_body(struct reading *r, struct server *server, const char *s, size_t n)
{
    *r = (struct reading){.x.server = server};
    buf_init(&r->x.body, n + 1);
    buf_init(&r->x.ignored, MAX_LISTED_BYTES);
    buf_append(&r->x.body, s, n);
    arena_init(&r->g.arena, 1 << 24);
    bool ok = fields_open(&r->f, &r->x) && responses_conversation(&r->x, &r->f, &r->g, &r->q);
    require(ok == (r->x.failure.condition == FINE));
    require(ok || r->x.failure.message[0]);
    return ok;
}

static void release(struct reading *r)
{
    responses_request_release(&r->q, r->x.server->store);
    chat_release(&r->g.chat);
    arena_release(&r->g.arena);
    fields_close(&r->f);
    buf_release(&r->x.body);
    buf_release(&r->x.ignored);
}

/* Names of a namespace's tools may have been made unique among the body's own. */
static void check_stored(struct server *server, const struct reading *r)
{
    struct reading again;
    struct buf body;
    buf_init(&body, 1 << 24);
    buf_printf(&body, "{\"input\": %s}", buf_str(&r->q.input));
    bool ok = read_body(&again, server, buf_str(&body), body.len);
    require(ok || again.x.failure.condition == BAD_JSON || r->q.previous ||
            json_object_get(r->f.object, "instructions"));
    if (ok && !r->q.previous && !json_object_get(r->f.object, "instructions") &&
        !json_object_get(r->f.object, "tools"))
        require(strcmp(again.g.chat.conversation.messages, r->g.chat.conversation.messages) == 0);
    release(&again);
    buf_release(&body);
}

static void check_custom_input(const char *s, size_t n)
{
    struct custom_input whole = {0}, pieces = {0}, any = {0};
    struct buf json, a, b;
    buf_init(&json, 1 << 20);
    buf_init(&a, 1 << 20);
    buf_init(&b, 1 << 20);
    custom_input_feed(&any, s, n, &a);
    buf_clear(&a);
    if (utf8_valid_prefix(s, n) == n) {
        buf_puts(&json, "{\"x\": [\"{\\\"input\\\": 1\"], \"input\": ");
        json_print_string(&json, s, n);
        buf_putc(&json, '}');
        custom_input_feed(&whole, json.data, json.len, &a);
        for (size_t i = 0; i < json.len; i++)
            custom_input_feed(&pieces, json.data + i, 1, &b);
        require(whole.is_found && a.len == n && memcmp(buf_str(&a), s, n) == 0);
        require(pieces.is_found && b.len == n && memcmp(buf_str(&b), s, n) == 0);
    }
    buf_release(&json);
    buf_release(&a);
    buf_release(&b);
}

static void open_store(struct server *server)
{
    static const char input[] = "[{\"role\": \"user\", \"content\": \"q\", \"id\": \"i1\"}]";
    static const char object[] = "[{\"type\": \"reasoning\", \"id\": \"i2\", \"summary\": []}]";
    struct stored r = {.id = "r1",
                       .input = input,
                       .n_input = strlen(input),
                       .object = object,
                       .n_object = strlen(object),
                       .n_output = strlen(object)};
    require(!store_open(&server->store, 4, 1 << 20, NULL) && !store_put(server->store, &r, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct server server;
    struct reading r;
    if (!server.store)
        open_store(&server);
    limits_init(&server.options.limits);
    if (read_body(&r, &server, (const char *)data, size)) {
        require_array(r.g.chat.conversation.messages);
        require_array(r.g.chat.conversation.tools);
        require_array(r.g.chat.conversation.callable_tools);
        require_array(buf_str(&r.q.input));
        check_stored(&server, &r);
    }
    release(&r);
    check_custom_input((const char *)data, size);
    return 0;
}
