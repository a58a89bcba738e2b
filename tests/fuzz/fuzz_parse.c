/* Any bytes as a model's output. Byte 0: the options' bits; byte 1: how the text is cut. Whatever the
 * text, the events keep their order, a finished call's arguments are one JSON object, and the text cut
 * into pieces gives the same message as the whole. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "text/parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static const char tools[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},"
    "\"n\":{\"type\":\"integer\"},\"o\":{\"type\":[\"string\",\"null\"]},\"u\":{},"
    "\"b\":{\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"array\"}]}}}},{\"name\":\"g\"}]";

struct log {
    struct buf text, args;
    lathe_event_type last;
    int32_t n_begun, n_ended, n_reasoning_end;
};

static lathe_status record(void *ctx, const struct parse_event *ev, lathe_error *err)
{
    struct log *l = ctx;
    struct json_doc d;
    require(utf8_valid_prefix(ev->text, ev->n) == ev->n && ev->text[ev->n] == 0);
    if (ev->type != l->last || ev->type == LATHE_EVENT_CALL_BEGIN)
        buf_printf(&l->text, "<%d>", (int)ev->type);
    buf_append(&l->text, ev->text, ev->n);
    switch (ev->type) {
    case LATHE_EVENT_REASONING:
        require(ev->n && !l->n_reasoning_end && !l->n_begun && l->last != LATHE_EVENT_TEXT);
        break;
    case LATHE_EVENT_REASONING_END:
        require(!l->n_reasoning_end++ && !l->n_begun && l->last != LATHE_EVENT_TEXT);
        break;
    case LATHE_EVENT_TEXT:
        require(ev->n && !l->n_begun);
        break;
    case LATHE_EVENT_CALL_BEGIN:
        require(ev->index == l->n_begun++ && l->n_ended == ev->index);
        require(ev->name[0] && strlen(ev->call_id) == CALL_ID_SIZE - 1);
        buf_puts(&l->text, ev->name);
        buf_clear(&l->args);
        break;
    case LATHE_EVENT_CALL_ARGS:
        require(ev->n && l->n_begun == l->n_ended + 1 && ev->index == l->n_ended);
        buf_append(&l->args, ev->text, ev->n);
        break;
    case LATHE_EVENT_CALL_END:
        require(l->n_begun == ++l->n_ended && ev->index == l->n_ended - 1);
        require(!json_read(&d, buf_str(&l->args), l->args.len, &json_limits_request, err));
        require(json_is_object(d.root));
        json_release(&d);
        break;
    default:
        abort();
    }
    l->last = ev->type;
    return LATHE_OK;
}

/* Pieces of 1 to `longest` bytes; 0: the whole. */
static void parse(struct log *l, uint8_t flags, const char *s, size_t n, uint64_t seed,
                  size_t longest)
{
    static const char *const stop[] = {"STOP", "a\n\nb", "\xC3\xA9<"};
    struct parse_options o = {.thinking_open = flags & 1,
                              .tools = flags & 2 ? tools : NULL,
                              .stop = stop,
                              .n_stop = flags & 4 ? 3 : 0,
                              .max_calls = flags & 8 ? 1 : 3,
                              .sink = record,
                              .sink_ctx = l};
    struct parser *p;
    lathe_error err;
    lathe_finish why = flags & 16 ? LATHE_FINISH_LENGTH : LATHE_FINISH_STOP, finish;
    *l = (struct log){.last = LATHE_EVENT_NONE};
    buf_init(&l->text, 64 << 20);
    buf_init(&l->args, 64 << 20);
    require(!parser_open(&p, &o, &err));
    while (n) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        size_t k = longest ? 1 + (size_t)(seed >> 33) % longest : n;
        k = k < n ? k : n;
        require(!parser_feed(p, s, k, &err));
        require(parser_ended(p) >= 0 ||
                parser_thinking(p) == (o.thinking_open && !l->n_reasoning_end));
        s += k;
        n -= k;
    }
    require(!parser_finish(p, why, &finish, &err));
    require(l->n_reasoning_end == o.thinking_open);
    require(l->n_begun - l->n_ended <= (why == LATHE_FINISH_LENGTH));
    require(finish != LATHE_FINISH_CALLS || l->n_ended > 0);
    buf_printf(&l->text, "<%d %d %d>", (int)finish, (int)parser_repaired(p),
               (int)parser_unparsed(p));
    require(!buf_check(&l->text, "log", &err));
    parser_close(p);
    buf_release(&l->args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct log whole, pieces, bytes;
    if (size < 2)
        return 0;
    const char *s = (const char *)data + 2;
    size_t n = size - 2;
    parse(&whole, data[0], s, n, 0, 0);
    parse(&pieces, data[0], s, n, data[1], 2 + data[1] % 64);
    parse(&bytes, data[0], s, n, 0, 1);
    require(whole.text.len == pieces.text.len && whole.text.len == bytes.text.len);
    require(memcmp(whole.text.data, pieces.text.data, whole.text.len) == 0);
    require(memcmp(whole.text.data, bytes.text.data, whole.text.len) == 0);
    buf_release(&whole.text);
    buf_release(&pieces.text);
    buf_release(&bytes.text);
    return 0;
}
