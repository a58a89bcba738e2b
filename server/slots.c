#include "slots.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "log.h"
#include "served.h"
#include "state.h"
#include "url.h"

/* ---- What they do --------------------------------------------------------------------------- */

static void put(struct buf *out, const char *name, const char *value)
{
    buf_printf(out, ",\"%s\":", name);
    if (value[0])
        json_print_string(out, value, strlen(value));
    else
        buf_puts(out, "null");
}

static void put_slot(struct buf *out, struct server *s, int32_t i, const lathe_slot_info *slot)
{
    static const char *const phase[] = {"idle", "prefill", "decode"};
    bool busy = slot->phase != LATHE_SLOT_FREE;
    struct who who = {.dialect = ""};
    int32_t draft_k;
    if (busy)
        (void)served_find(s->served, slot->request, &who);
    else
        served_session(s->served, slot->request, who.session);
    buf_printf(out, "{\"id\":%d,\"is_processing\":%s,\"phase\":\"%s\"", (int)i,
               busy ? "true" : "false", phase[slot->phase]);
    put(out, "request_id", who.id);
    put(out, "dialect", who.dialect);
    put(out, "session", who.session);
    put(out, "class", !slot->request ? "" : slot->is_background ? "background" : "interactive");
    buf_printf(out,
               ",\"n_ctx\":%d,\"n_held\":%d,\"n_prompt\":%d,\"n_cached\":%d,\"n_decoded\":%d,"
               "\"n_reasoning\":%d,\"draft\":{\"type\":\"%s\",\"accepted\":%d,\"drafted\":%d}",
               (int)s->options.n_ctx, (int)slot->n_held, (int)slot->n_prompt, (int)slot->n_cached,
               (int)slot->n_decoded, (int)slot->n_reasoning,
               lathe_engine_drafter(s->engine, &draft_k), (int)slot->accepted, (int)slot->drafted);
    buf_printf(out, ",\"tokens_per_second\":%.3f,\"seconds\":%.3f}",
               decode_rate(slot->n_decoded, slot->decode_ms),
               (slot->prefill_ms + slot->decode_ms) * 1e-3);
}

/* The slots, a heap array of options.n_slots. */
static lathe_slot_info *look(struct exchange *x, lathe_activity *a)
{
    const struct server *s = x->server;
    int32_t n = s->options.n_slots;
    lathe_slot_info *slot = calloc((size_t)n, sizeof *slot);
    if (!slot)
        (void)refuse(&x->failure, INTERNAL, "out of memory");
    else
        lathe_engine_activity(s->engine, a, slot, n);
    return slot;
}

void slots_list(struct exchange *x)
{
    lathe_activity a;
    lathe_slot_info *slot = look(x, &a);
    int32_t n = x->server->options.n_slots;
    char value[8];
    if (!slot)
        return;
    if (query_get(x->query, "fail_on_no_slot", value, sizeof value) && strcmp(value, "1") == 0 &&
        a.n_prefill + a.n_decode >= n)
        (void)refuse(&x->failure, BUSY, "all slots are at work");
    buf_putc(&x->reply, '[');
    for (int32_t i = 0; i < n; i++) {
        buf_puts(&x->reply, i ? "," : "");
        put_slot(&x->reply, x->server, i, &slot[i]);
    }
    buf_putc(&x->reply, ']');
    free(slot);
}

/* ---- What they hold ------------------------------------------------------------------------- */

static bool read_slot(struct exchange *x, int32_t *out)
{
    char *end;
    long n = strtol(x->rest, &end, 10);
    if (end == x->rest || *end || n < 0 || n >= x->server->options.n_slots)
        return refuse(&x->failure, NOT_FOUND, "there is no slot %.40s, only 0 to %d", x->rest,
                      (int)x->server->options.n_slots - 1);
    *out = (int32_t)n;
    return true;
}

void slots_act(struct exchange *x)
{
    char action[16];
    int32_t slot = 0;
    lathe_error err;
    (void)query_get(x->query, "action", action, sizeof action);
    if (!read_slot(x, &slot))
        return;
    if (strcmp(action, "save") == 0 || strcmp(action, "restore") == 0)
        (void)refuse_field(&x->failure, NOT_BUILT, "action",
                           "action=%s: states are not kept on disk, only erase is supported",
                           action);
    else if (strcmp(action, "erase") != 0)
        (void)refuse_field(&x->failure, BAD_VALUE, "action", "action is '%s', expected erase",
                           action);
    else if (lathe_engine_forget(x->server->engine, slot, &err))
        (void)refuse(&x->failure, err.status == LATHE_E_BUSY ? SLOT_AT_WORK : INTERNAL, "%s",
                     err.message);
    else
        buf_printf(&x->reply, "{\"id_slot\":%d,\"status\":\"ok\"}", (int)slot);
}

void reset_prefix_cache(struct exchange *x)
{
    lathe_error err;
    if (lathe_engine_forget(x->server->engine, -1, &err))
        (void)refuse_status(&x->failure, &err);
    else
        buf_puts(&x->reply, "{\"status\":\"ok\"}");
}

/* ---- For finding faults --------------------------------------------------------------------- */

static bool is_enabled(struct exchange *x)
{
    return x->server->options.debug_routes ||
           refuse(&x->failure, NOT_FOUND, "debug routes are off (--debug-routes)");
}

void debug_requests(struct exchange *x)
{
    if (is_enabled(x))
        served_print(x->server->served, &x->reply);
}

/* Every slot holds one prefix, and its state is the one point that a prompt can go on from. Without a model there is
 * none. */
void debug_cache(struct exchange *x)
{
    lathe_activity a = {0};
    lathe_memory_plan plan = {0};
    bool any = false, is_loaded = server_engine(x->server) != NULL;
    int32_t n = is_loaded ? x->server->options.n_slots : 0;
    lathe_slot_info *slot = is_enabled(x) && is_loaded ? look(x, &a) : NULL;
    if (x->failure.condition != FINE)
        return;
    if (is_loaded)
        lathe_engine_plan(x->server->engine, &plan);
    buf_printf(&x->reply, "{\"pages\":%d,\"pages_running\":%d,\"pages_idle\":%d,\"prefixes\":[",
               (int)a.n_pages, (int)a.n_pages_running, (int)a.n_pages_idle);
    for (int32_t i = 0; i < n; i++) {
        char session[SESSION_SIZE];
        uint64_t bytes =
            plan.kv_per_token * (uint64_t)slot[i].n_held + plan.recurrent / (uint64_t)n;
        if (slot[i].n_held == 0)
            continue;
        served_session(x->server->served, slot[i].request, session);
        buf_printf(
            &x->reply,
            "%s{\"slot\":%d,\"tokens\":%d,\"in_use\":%s,\"idle_seconds\":%.3f,\"bytes\":%llu,"
            "\"checkpoints\":[%d]",
            any ? "," : "", (int)i, (int)slot[i].n_held,
            slot[i].phase == LATHE_SLOT_FREE ? "false" : "true", slot[i].idle_ms * 1e-3,
            (unsigned long long)bytes, (int)slot[i].n_held);
        put(&x->reply, "session", session);
        buf_putc(&x->reply, '}');
        any = true;
    }
    buf_puts(&x->reply, "]}");
    free(slot);
}
