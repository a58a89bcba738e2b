/* GET and DELETE of stored responses. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "dialects.h"
#include "openai.h"
#include "state.h"
#include "store.h"

static const char items[] = "/input_items";

/* The id of the path, and whether its items are asked for. */
static bool read_id(const struct exchange *x, char id[STORED_ID], bool *wants_items)
{
    size_t n = strcspn(x->rest, "/");
    *wants_items = strcmp(x->rest + n, items) == 0;
    if (n >= STORED_ID || (x->rest[n] && !*wants_items))
        return false;
    memcpy(id, x->rest, n);
    id[n] = 0;
    return true;
}

static void not_found(struct exchange *x)
{
    (void)refuse(&x->failure, NOT_FOUND, "no response '%.100s' is stored", x->rest);
}

static bool asks_for_stream(const char *query)
{
    for (const char *at = query; *at;) {
        size_t n = strcspn(at, "&");
        if (strncmp(at, "stream=", 7) == 0 && !(n == 12 && strncmp(at + 7, "false", 5) == 0))
            return true;
        at += n + (at[n] == '&');
    }
    return false;
}

/* An item's id, or null. */
static void put_id(struct buf *out, const struct json_doc *d, const json_t *item)
{
    const json_t *id = json_object_get(item, "id");
    if (id)
        json_print(out, d, id);
    else
        buf_puts(out, "null");
}

static void put_items(struct exchange *x, const struct stored *r)
{
    struct json_doc d;
    lathe_error err;
    if (json_read(&d, r->input, r->n_input, &json_limits_request, &err)) {
        (void)refuse_status(&x->failure, &err);
        return;
    }
    size_t n = json_array_size(d.root);
    buf_puts(&x->reply, "{\"object\":\"list\",\"data\":[");
    for (size_t i = n; i-- > 0;) {
        json_print(&x->reply, &d, json_array_get(d.root, i));
        buf_puts(&x->reply, i ? "," : "");
    }
    buf_puts(&x->reply, "],\"first_id\":");
    put_id(&x->reply, &d, json_array_get(d.root, n - 1));
    buf_puts(&x->reply, ",\"last_id\":");
    put_id(&x->reply, &d, json_array_get(d.root, 0));
    buf_puts(&x->reply, ",\"has_more\":false}");
    json_release(&d);
}

void responses_get(struct exchange *x)
{
    char id[STORED_ID];
    bool wants_items;
    if (asks_for_stream(x->query)) {
        (void)refuse_field(&x->failure, UNSUPPORTED_FIELD, "stream",
                           "stream: a stored response is sent in one piece");
        return;
    }
    bool is_path = read_id(x, id, &wants_items);
    struct stored *r = is_path ? store_find(x->server->store, &x->owner, id) : NULL;
    if (!r)
        not_found(x);
    else if (wants_items)
        put_items(x, r);
    else
        buf_append(&x->reply, r->object, r->n_object);
    store_drop(x->server->store, r);
}

void responses_delete(struct exchange *x)
{
    char id[STORED_ID];
    bool wants_items;
    if (!read_id(x, id, &wants_items) || wants_items ||
        !store_delete(x->server->store, &x->owner, id)) {
        not_found(x);
        return;
    }
    buf_puts(&x->reply, "{\"id\":");
    openai_string(&x->reply, id);
    buf_puts(&x->reply, ",\"object\":\"response\",\"deleted\":true}");
}
