/* Any bytes as the body of a request, in OpenAI's form or in Anthropic's, as the first byte chooses: a refusal with its condition and message, or a conversation whose parts are
 * JSON again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "server/dialect/anthropic.h"
#include "server/state.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void require_json(const char *s, bool is_array)
{
    struct json_doc d;
    lathe_error err;
    if (!s)
        return;
    lathe_status st = json_read(&d, s, strlen(s), &json_limits_request, &err);
    require(st == LATHE_E_LIMIT || (!st && json_is_array(d.root) == is_array));
    json_release(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct server server;
    struct exchange x = {.server = &server};
    struct fields f;
    struct generation g = {0};
    bool is_anthropic = size && data[0] == '\t';
    struct buf out;
    buf_init(&out, 1 << 20);
    buf_init(&x.body, size + 1);
    buf_append(&x.body, data, size);
    limits_init(&server.options.limits);
    bool ok = fields_open(&f, &x);
    if (ok) {
        ok = is_anthropic ? anthropic_conversation(&x, &f, &g) : chat_read(&f, &g.chat);
        if (ok) {
            require_json(g.chat.conversation.messages, true);
            require_json(g.chat.conversation.tools, true);
            require_json(g.chat.conversation.kwargs, false);
        }
        chat_release(&g.chat);
    }
    require(ok == (x.failure.condition == FINE));
    require(ok || x.failure.message[0]);
    failure_print(&out, &x.failure, size & 1 ? SHAPE_OPENAI : SHAPE_ANTHROPIC, "id");
    fields_close(&f);
    require(!json_read(&f.doc, buf_str(&out), out.len, &json_limits_request, NULL));
    json_release(&f.doc);
    buf_release(&out);
    buf_release(&x.body);
    return 0;
}
