#include "store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* An item that has an id. */
struct item {
    uint64_t hash; /* of the id */
    const char *text;
    size_t n;
};

struct entry {
    struct stored stored; /* first, so that one is the other */
    struct item *items;   /* [n_items]: the response's, then its input's */
    size_t n_items;
    int32_t n_holders; /* the list, those after it, and what store_find gave */
    size_t bytes;
    struct entry *older, *newer; /* of those that are found */
    bool is_listed;
};

struct store {
    pthread_mutex_t lock;
    struct entry *oldest, *newest;
    int32_t n, n_most;
    _Atomic(size_t) bytes; /* of all that is alive; written with the lock */
    size_t bytes_most;
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

size_t store_bytes(const struct store *s)
{
    return s ? s->bytes : 0;
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
        free(e->items);
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

/* ---- Items ---------------------------------------------------------------------------------- */

/* FNV-1a. */
static uint64_t hash_of(const char *id, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)id[i]) * 1099511628211u;
    return h;
}

static const struct item *item_of(const struct entry *e, uint64_t hash)
{
    for (size_t i = 0; i < e->n_items; i++)
        if (e->items[i].hash == hash)
            return &e->items[i];
    return NULL;
}

/* The end of the value of valid JSON that begins at *p. */
static const char *end_of_value(const char *p)
{
    int depth = 0;
    bool in_text = false;
    for (;; p++) {
        if (in_text) {
            if (*p == '\\')
                p++;
            else if (*p == '"')
                in_text = false;
        } else if (*p == '"') {
            in_text = true;
        } else if (*p == '{' || *p == '[') {
            depth++;
        } else if (depth > 0 && (*p == '}' || *p == ']')) {
            depth--;
        } else if (depth == 0 && (*p == ',' || *p == ']')) {
            return p;
        }
    }
}

/* Adds the items of an array that the server printed. */
static lathe_status index_items(struct entry *e, const char *array, size_t n, lathe_error *err)
{
    struct json_doc d;
    lathe_status st = json_read(&d, array, n, &json_limits_request, err);
    if (st)
        return st;
    size_t n_items = json_array_size(d.root), n_most = e->n_items + n_items;
    struct item *items = n_most ? realloc(e->items, n_most * sizeof *items) : NULL;
    if (!items && n_most) {
        json_release(&d);
        return fail_memory(err, n_most * sizeof *items);
    }
    e->items = items;
    const char *at = array + 1;
    for (size_t i = 0; i < n_items; i++) {
        const char *end = end_of_value(at);
        size_t n_id;
        const char *id = json_text(&d, json_object_get(json_array_get(d.root, i), "id"), &n_id);
        if (id)
            items[e->n_items++] = (struct item){hash_of(id, n_id), at, (size_t)(end - at)};
        at = end + 1;
    }
    json_release(&d);
    return LATHE_OK;
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
    lathe_status st = index_items(e, e->stored.object + r->output_at, r->n_output, err);
    if (!st)
        st = index_items(e, e->stored.input, r->n_input, err);
    if (st) {
        free(e->items);
        free(e);
        return st;
    }
    bytes = e->bytes += e->n_items * sizeof *e->items;
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

bool store_item(struct store *s, const struct owner *owner, const char *id, struct buf *out)
{
    const struct item *item = NULL;
    struct entry *e;
    bool found = false;
    struct json_doc d;
    if (!s || !*id)
        return false;
    uint64_t hash = hash_of(id, strlen(id));
    pthread_mutex_lock(&s->lock);
    for (e = s->newest; e; e = e->older) {
        if (memcmp(&e->stored.owner, owner, sizeof *owner) == 0 &&
            (item = item_of(e, hash)) != NULL)
            break;
    }
    if (e)
        e->n_holders++;
    pthread_mutex_unlock(&s->lock);
    if (!e)
        return false;
    if (json_read(&d, item->text, item->n, &json_limits_request, NULL) == LATHE_OK) {
        size_t n;
        const char *own = json_text(&d, json_object_get(d.root, "id"), &n);
        found = own && strcmp(own, id) == 0;
        if (found)
            json_print(out, &d, d.root);
        json_release(&d);
    }
    store_drop(s, &e->stored);
    return found;
}
