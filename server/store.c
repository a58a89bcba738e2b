#include "store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

struct entry {
    struct stored stored; /* first, so that one is the other */
    int32_t n_holders;    /* the list, those after it, and what store_find gave */
    size_t bytes;
    struct entry *older, *newer; /* of those that are found */
    bool is_listed;
};

struct store {
    pthread_mutex_t lock;
    struct entry *oldest, *newest;
    int32_t n, n_most;
    size_t bytes, bytes_most; /* bytes: of all that is alive */
};

lathe_status store_open(struct store **out, int32_t n_most, size_t bytes_most, lathe_error *err)
{
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return fail_memory(err, sizeof *s);
    (void)pthread_mutex_init(&s->lock, NULL);
    s->n_most = n_most;
    s->bytes_most = bytes_most;
    *out = s;
    return LATHE_OK;
}

static struct entry *entry_of(struct stored *r)
{
    union {
        struct stored *in;
        struct entry *out;
    } p = {r};
    return p.out;
}

/* ---- With the lock held --------------------------------------------------------------------- */

static void let_go(struct store *s, struct entry *e)
{
    while (e && --e->n_holders == 0) {
        struct entry *before = e->stored.previous ? entry_of(e->stored.previous) : NULL;
        s->bytes -= e->bytes;
        free(e);
        e = before;
    }
}

static void unlink_entry(struct store *s, struct entry *e)
{
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    e->older = e->newer = NULL;
}

static void link_newest(struct store *s, struct entry *e)
{
    e->older = s->newest;
    *(e->older ? &e->older->newer : &s->oldest) = e;
    s->newest = e;
}

static void forget(struct store *s, struct entry *e)
{
    unlink_entry(s, e);
    e->is_listed = false;
    s->n--;
    let_go(s, e);
}

static struct entry *find(struct store *s, const struct owner *owner, const char *id)
{
    struct entry *e = s->newest;
    while (e &&
           (strcmp(e->stored.id, id) != 0 || memcmp(&e->stored.owner, owner, sizeof *owner) != 0))
        e = e->older;
    return e;
}

/* ---- Calls ---------------------------------------------------------------------------------- */

void store_close(struct store *s)
{
    if (!s)
        return;
    while (s->oldest)
        forget(s, s->oldest);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

lathe_status store_put(struct store *s, const struct stored *r, lathe_error *err)
{
    size_t bytes = sizeof(struct entry) + r->n_input + r->n_object + 2;
    if (s->n_most == 0)
        return LATHE_OK;
    struct entry *e = calloc(1, bytes);
    if (!e)
        return fail_memory(err, bytes);
    char *text = (char *)(e + 1);
    e->stored = *r;
    e->bytes = bytes;
    e->stored.input = memcpy(text, r->input, r->n_input);
    e->stored.object = memcpy(text + r->n_input + 1, r->object, r->n_object);
    e->n_holders = 1;
    e->is_listed = true;
    pthread_mutex_lock(&s->lock);
    if (r->previous)
        entry_of(r->previous)->n_holders++;
    s->bytes += bytes;
    s->n++;
    link_newest(s, e);
    while (s->oldest && (s->n > s->n_most || s->bytes > s->bytes_most))
        forget(s, s->oldest);
    pthread_mutex_unlock(&s->lock);
    return LATHE_OK;
}

struct stored *store_find(struct store *s, const struct owner *owner, const char *id)
{
    if (!s)
        return NULL;
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, owner, id);
    if (e) {
        e->n_holders++;
        unlink_entry(s, e);
        link_newest(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return e ? &e->stored : NULL;
}

void store_drop(struct store *s, struct stored *r)
{
    if (!r)
        return;
    pthread_mutex_lock(&s->lock);
    let_go(s, entry_of(r));
    pthread_mutex_unlock(&s->lock);
}

bool store_delete(struct store *s, const struct owner *owner, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry *e = find(s, owner, id);
    if (e)
        forget(s, e);
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

static bool find_in(const char *s, size_t n, const char *id, struct buf *out)
{
    struct json_doc d;
    bool found = false;
    if (json_read(&d, s, n, &json_limits_request, NULL))
        return false;
    for (size_t i = 0; i < json_array_size(d.root) && !found; i++) {
        const json_t *item = json_array_get(d.root, i);
        size_t n_id;
        const char *own = json_text(&d, json_object_get(item, "id"), &n_id);
        found = own && strcmp(own, id) == 0;
        if (found)
            json_print(out, &d, item);
    }
    json_release(&d);
    return found;
}

bool store_item(struct store *s, const struct owner *owner, const char *id, struct buf *out)
{
    bool found = false;
    if (!s || !*id)
        return false;
    pthread_mutex_lock(&s->lock);
    for (struct entry *e = s->newest; e && !found; e = e->older) {
        const struct stored *r = &e->stored;
        if (memcmp(&r->owner, owner, sizeof *owner) != 0)
            continue;
        /* Only texts that have the id somewhere are read. */
        if (strstr(r->object + r->output_at, id))
            found = find_in(r->object + r->output_at, r->n_output, id, out);
        if (!found && strstr(r->input, id))
            found = find_in(r->input, r->n_input, id, out);
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}
