#include "answers.h"

#include <openssl/evp.h>
#include <openssl/sha.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUCKETS = 4096, TEXT_LIMIT = 32 << 20, MAX_CALLS = 4096 };

/* ---- An answer as it comes ------------------------------------------------------------------ */

void recording_init(struct recording *a)
{
    *a = (struct recording){0};
    buf_init(&a->reasoning, TEXT_LIMIT);
    buf_init(&a->text, TEXT_LIMIT);
}

static void begin_call(struct recording *a, const lathe_event *ev)
{
    if (a->n_calls == a->cap) {
        size_t cap = a->cap ? 2 * a->cap : 4;
        struct recorded_call *more = cap <= MAX_CALLS ? realloc(a->call, cap * sizeof *more) : NULL;
        if (!more) {
            a->is_lost = true;
            return;
        }
        a->call = more;
        a->cap = cap;
    }
    struct recorded_call *c = &a->call[a->n_calls++];
    (void)snprintf(c->id, sizeof c->id, "%s", ev->call_id);
    buf_init(&c->name, TEXT_LIMIT);
    buf_init(&c->arguments, TEXT_LIMIT);
    buf_puts(&c->name, ev->name);
}

void recording_take(struct recording *a, const lathe_event *ev)
{
    if (ev->type == LATHE_EVENT_REASONING)
        buf_append(&a->reasoning, ev->text, ev->n_text);
    else if (ev->type == LATHE_EVENT_TEXT)
        buf_append(&a->text, ev->text, ev->n_text);
    else if (ev->type == LATHE_EVENT_CALL_BEGIN)
        begin_call(a, ev);
    else if (ev->type == LATHE_EVENT_CALL_ARGS && a->n_calls)
        buf_append(&a->call[a->n_calls - 1].arguments, ev->text, ev->n_text);
}

void recording_release(struct recording *a)
{
    for (size_t i = 0; i < a->n_calls; i++) {
        buf_release(&a->call[i].name);
        buf_release(&a->call[i].arguments);
    }
    free(a->call);
    buf_release(&a->reasoning);
    buf_release(&a->text);
    *a = (struct recording){0};
}

static bool is_whole(const struct recording *a)
{
    bool ok = !a->is_lost && !a->reasoning.over && !a->reasoning.no_memory && !a->text.over &&
              !a->text.no_memory;
    for (size_t i = 0; i < a->n_calls; i++) {
        const struct buf *b = &a->call[i].arguments;
        ok = ok && !b->over && !b->no_memory && !a->call[i].name.no_memory;
    }
    return ok;
}

/* ---- Kept answers --------------------------------------------------------------------------- */

/* A key of an answer: that of a call, or of the whole. */
struct entry {
    unsigned char key[ANSWERS_KEY];
    struct entry *next; /* in its bucket */
    struct kept *kept;
    const char *name, *arguments; /* of a call, else NULL; in the answer's memory */
    size_t n_arguments;
};

struct kept {
    struct kept *newer, *older; /* by use */
    size_t bytes;               /* of all of it */
    const char *reasoning;
    size_t n_reasoning, n_entries;
    struct entry entry[]; /* then the texts */
};

struct answers {
    pthread_mutex_t lock;
    struct entry *bucket[N_BUCKETS];
    struct kept *newest, *oldest;
    _Atomic(size_t) bytes; /* written with the lock */
    size_t limit;
};

lathe_status answers_open(struct answers **out, size_t bytes, lathe_error *err)
{
    struct answers *m = calloc(1, sizeof *m);
    *out = NULL;
    if (!m)
        return fail_memory(err, sizeof *m);
    if (pthread_mutex_init(&m->lock, NULL) != 0) {
        free(m);
        return fail_memory(err, sizeof *m);
    }
    m->limit = bytes;
    *out = m;
    return LATHE_OK;
}

size_t answers_bytes(const struct answers *m)
{
    return m ? m->bytes : 0;
}

static struct entry **bucket_of(struct answers *m, const unsigned char *key)
{
    return &m->bucket[(key[0] | (unsigned)key[1] << 8) % N_BUCKETS];
}

static void unlink_use(struct answers *m, struct kept *k)
{
    *(k->newer ? &k->newer->older : &m->newest) = k->older;
    *(k->older ? &k->older->newer : &m->oldest) = k->newer;
}

static void link_newest(struct answers *m, struct kept *k)
{
    k->newer = NULL;
    k->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = k;
    m->newest = k;
}

static void forget(struct answers *m, struct kept *k)
{
    for (size_t i = 0; i < k->n_entries; i++) {
        struct entry **at = bucket_of(m, k->entry[i].key);
        while (*at != &k->entry[i])
            at = &(*at)->next;
        *at = k->entry[i].next;
    }
    unlink_use(m, k);
    m->bytes -= k->bytes;
    free(k);
}

void answers_close(struct answers *m)
{
    if (!m)
        return;
    while (m->oldest)
        forget(m, m->oldest);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

/* The newest of a key, which is then the one used last. */
static struct entry *find(struct answers *m, const unsigned char *key)
{
    struct entry *e = *bucket_of(m, key);
    while (e && memcmp(e->key, key, ANSWERS_KEY) != 0)
        e = e->next;
    if (e) {
        unlink_use(m, e->kept);
        link_newest(m, e->kept);
    }
    return e;
}

/* ---- Keys ----------------------------------------------------------------------------------- */

/* What follows the prefix, which each dialect has its own of. */
static void key_of_call(unsigned char key[ANSWERS_KEY], const char *id)
{
    const char *bar = strchr(id, '_');
    const char *own = bar ? bar + 1 : id;
    SHA256((const unsigned char *)own, strlen(own), key);
}

bool answers_key(struct answers_prefix *p, const char *messages, size_t n_messages,
                 const char *text, size_t n_text, unsigned char key[ANSWERS_KEY])
{
    if (!p->hash) {
        p->hash = EVP_MD_CTX_new();
        p->n = 0;
        if (!p->hash || EVP_DigestInit_ex(p->hash, EVP_sha256(), NULL) != 1)
            return false;
    }
    EVP_MD_CTX *whole = EVP_MD_CTX_new();
    bool ok = whole && EVP_DigestUpdate(p->hash, messages + p->n, n_messages - p->n) == 1;
    p->n = n_messages;
    ok = ok && EVP_MD_CTX_copy_ex(whole, p->hash) == 1 && EVP_DigestUpdate(whole, "", 1) == 1 &&
         EVP_DigestUpdate(whole, text, n_text) == 1 && EVP_DigestFinal_ex(whole, key, NULL) == 1;
    EVP_MD_CTX_free(whole);
    return ok;
}

void answers_prefix_release(struct answers_prefix *p)
{
    EVP_MD_CTX_free(p->hash);
    *p = (struct answers_prefix){0};
}

/* ---- Keeping and finding -------------------------------------------------------------------- */

static char *put_text(char **at, const struct buf *b)
{
    char *s = *at;
    memcpy(s, buf_str(b), b->len + 1);
    *at += b->len + 1;
    return s;
}

static struct kept *make(const struct recording *a, const unsigned char *key)
{
    size_t n = a->n_calls + (key != NULL);
    size_t bytes = sizeof(struct kept) + n * sizeof(struct entry) + a->reasoning.len + 1;
    for (size_t i = 0; i < a->n_calls; i++)
        bytes += a->call[i].name.len + a->call[i].arguments.len + 2;
    struct kept *k = calloc(1, bytes);
    if (!k)
        return NULL;
    char *at = (char *)&k->entry[n];
    k->bytes = bytes;
    k->n_entries = n;
    k->n_reasoning = a->reasoning.len;
    k->reasoning = put_text(&at, &a->reasoning);
    for (size_t i = 0; i < a->n_calls; i++) {
        struct entry *e = &k->entry[i];
        key_of_call(e->key, a->call[i].id);
        e->name = put_text(&at, &a->call[i].name);
        e->n_arguments = a->call[i].arguments.len;
        e->arguments = put_text(&at, &a->call[i].arguments);
    }
    if (key)
        memcpy(k->entry[a->n_calls].key, key, ANSWERS_KEY);
    return k;
}

void answers_keep(struct answers *m, const struct recording *a, const unsigned char *key)
{
    struct kept *k = m && is_whole(a) && (a->n_calls || key) ? make(a, key) : NULL;
    if (!k)
        return;
    if (k->bytes > m->limit) {
        free(k);
        return;
    }
    pthread_mutex_lock(&m->lock);
    while (m->bytes + k->bytes > m->limit)
        forget(m, m->oldest);
    for (size_t i = 0; i < k->n_entries; i++) {
        struct entry *e = &k->entry[i], **bucket = bucket_of(m, e->key);
        e->kept = k;
        e->next = *bucket;
        *bucket = e;
    }
    link_newest(m, k);
    m->bytes += k->bytes;
    pthread_mutex_unlock(&m->lock);
}

bool answers_call(struct answers *m, const char *id, const char *name, struct buf *arguments,
                  struct buf *reasoning)
{
    unsigned char key[ANSWERS_KEY];
    if (!m)
        return false;
    key_of_call(key, id);
    pthread_mutex_lock(&m->lock);
    const struct entry *e = find(m, key);
    bool found = e && e->name && strcmp(e->name, name) == 0;
    if (found && arguments)
        buf_append(arguments, e->arguments, e->n_arguments);
    if (found && reasoning)
        buf_append(reasoning, e->kept->reasoning, e->kept->n_reasoning);
    pthread_mutex_unlock(&m->lock);
    return found;
}

bool answers_reasoning(struct answers *m, const unsigned char *key, struct buf *reasoning)
{
    if (!m)
        return false;
    pthread_mutex_lock(&m->lock);
    const struct entry *e = find(m, key);
    if (e)
        buf_append(reasoning, e->kept->reasoning, e->kept->n_reasoning);
    pthread_mutex_unlock(&m->lock);
    return e != NULL;
}
