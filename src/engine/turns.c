#include "engine/turns.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

enum { TURN_BUCKETS = 4096, MAX_TEXT = 64 << 20 };

struct kept_turn {
    unsigned char key[SHA256_DIGEST_LENGTH];
    struct kept_turn *next;          /* in its bucket */
    struct kept_turn *newer, *older; /* by use */
    size_t n;
    int32_t id[];
};

lathe_status turns_open(struct turn_memory *m, uint64_t bytes, lathe_error *err)
{
    *m = (struct turn_memory){.limit = bytes > SIZE_MAX ? SIZE_MAX : (size_t)bytes};
    if (m->limit == 0)
        return LATHE_OK;
    m->bucket = calloc(TURN_BUCKETS, sizeof(struct kept_turn *));
    if (!m->bucket || pthread_mutex_init(&m->lock, NULL) != 0)
        return fail_memory(err, TURN_BUCKETS * sizeof(struct kept_turn *));
    m->has_lock = true;
    return LATHE_OK;
}

static size_t bytes_of(const struct kept_turn *t)
{
    return sizeof *t + t->n * sizeof *t->id;
}

static struct kept_turn **bucket_of(struct turn_memory *m, const unsigned char *key)
{
    return &m->bucket[(key[0] | (unsigned)key[1] << 8) % TURN_BUCKETS];
}

static void unlink_use(struct turn_memory *m, struct kept_turn *t)
{
    *(t->newer ? &t->newer->older : &m->newest) = t->older;
    *(t->older ? &t->older->newer : &m->oldest) = t->newer;
}

static void link_newest(struct turn_memory *m, struct kept_turn *t)
{
    t->newer = NULL;
    t->older = m->newest;
    *(m->newest ? &m->newest->newer : &m->oldest) = t;
    m->newest = t;
}

static void forget(struct turn_memory *m, struct kept_turn *t)
{
    struct kept_turn **at = bucket_of(m, t->key);
    while (*at != t)
        at = &(*at)->next;
    *at = t->next;
    unlink_use(m, t);
    m->bytes -= bytes_of(t);
    free(t);
}

static struct kept_turn *find(struct turn_memory *m, const unsigned char *key)
{
    struct kept_turn *t = *bucket_of(m, key);
    while (t && memcmp(t->key, key, sizeof t->key) != 0)
        t = t->next;
    return t;
}

void turns_close(struct turn_memory *m)
{
    while (m->oldest)
        forget(m, m->oldest);
    free(m->bucket);
    if (m->has_lock)
        pthread_mutex_destroy(&m->lock);
    *m = (struct turn_memory){0};
}

void turns_keep(struct turn_memory *m, const struct lathe_text *text, const int32_t *id, size_t n)
{
    struct buf said;
    size_t bytes = sizeof(struct kept_turn) + n * sizeof *id;
    if (n == 0 || bytes > m->limit)
        return;
    struct kept_turn *t = malloc(bytes);
    buf_init(&said, MAX_TEXT);
    bool ok = t && !tokenizer_decode(text->tokenizer, id, n, &said, NULL);
    if (ok) {
        SHA256((const unsigned char *)buf_str(&said), said.len, t->key);
        t->n = n;
        memcpy(t->id, id, n * sizeof *id);
        pthread_mutex_lock(&m->lock);
        struct kept_turn *old = find(m, t->key);
        if (old)
            forget(m, old);
        while (m->bytes + bytes > m->limit)
            forget(m, m->oldest);
        t->next = *bucket_of(m, t->key);
        *bucket_of(m, t->key) = t;
        link_newest(m, t);
        m->bytes += bytes;
        pthread_mutex_unlock(&m->lock);
    } else {
        free(t);
    }
    buf_release(&said);
}

static bool recall(void *ctx, const char *s, size_t n, struct buf *out)
{
    struct turn_memory *m = ctx;
    unsigned char key[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)s, n, key);
    pthread_mutex_lock(&m->lock);
    struct kept_turn *t = find(m, key);
    if (t) {
        buf_append(out, t->id, t->n * sizeof *t->id);
        unlink_use(m, t);
        link_newest(m, t);
    }
    pthread_mutex_unlock(&m->lock);
    return t != NULL && !out->over && !out->no_memory;
}

struct replay_memory turns_replay(struct turn_memory *m)
{
    return (struct replay_memory){recall, m};
}
