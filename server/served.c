#include "served.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

enum { KEPT = 256, SESSIONS_KEPT = 1024, RECORD_LIMIT = 16 << 10 };

struct served {
    pthread_mutex_t lock;
    struct work *first;
    char *record[KEPT]; /* JSON objects, the next to be replaced at `at` */
    size_t at;
    /* Of requests of the engine that are over, request n in place n % SESSIONS_KEPT. */
    struct {
        uint64_t number;
        char session[SESSION_SIZE];
    } over[SESSIONS_KEPT];
};

lathe_status served_open(struct served **h, lathe_error *err)
{
    *h = calloc(1, sizeof **h);
    if (!*h)
        return fail_memory(err, sizeof **h);
    (void)pthread_mutex_init(&(*h)->lock, NULL);
    return LATHE_OK;
}

void served_close(struct served *h)
{
    if (!h)
        return;
    for (size_t i = 0; i < KEPT; i++)
        free(h->record[i]);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void served_begin(struct served *h, struct work *w)
{
    pthread_mutex_lock(&h->lock);
    w->before = NULL;
    w->next = h->first;
    if (w->next)
        w->next->before = w;
    h->first = w;
    pthread_mutex_unlock(&h->lock);
}

void served_end(struct served *h, struct work *w)
{
    if (!w->number)
        return;
    size_t i = w->number % SESSIONS_KEPT;
    pthread_mutex_lock(&h->lock);
    *(w->before ? &w->before->next : &h->first) = w->next;
    if (w->next)
        w->next->before = w->before;
    h->over[i].number = w->number;
    memcpy(h->over[i].session, w->x->record.session, SESSION_SIZE);
    pthread_mutex_unlock(&h->lock);
}

bool served_find(struct served *h, uint64_t number, struct who *out)
{
    pthread_mutex_lock(&h->lock);
    const struct work *w = h->first;
    while (w && w->number != number)
        w = w->next;
    if (w) {
        (void)snprintf(out->id, sizeof out->id, "%s", w->x->id);
        out->dialect = w->dialect;
        memcpy(out->session, w->x->record.session, SESSION_SIZE);
    }
    pthread_mutex_unlock(&h->lock);
    return w != NULL;
}

void served_session(struct served *h, uint64_t number, char out[SESSION_SIZE])
{
    struct who who;
    size_t i = number % SESSIONS_KEPT;
    out[0] = 0;
    if (served_find(h, number, &who)) {
        memcpy(out, who.session, SESSION_SIZE);
        return;
    }
    pthread_mutex_lock(&h->lock);
    if (number && h->over[i].number == number)
        memcpy(out, h->over[i].session, SESSION_SIZE);
    pthread_mutex_unlock(&h->lock);
}

void served_add(struct served *h, const struct exchange *x, int status, int64_t ms)
{
    struct buf b;
    buf_init(&b, RECORD_LIMIT);
    buf_putc(&b, '{');
    log_members(&b, x, status, ms, true);
    buf_putc(&b, '}');
    if (b.over || b.no_memory)
        buf_release(&b);
    if (!b.data)
        return;
    pthread_mutex_lock(&h->lock);
    char *old = h->record[h->at];
    h->record[h->at] = b.data;
    h->at = (h->at + 1) % KEPT;
    pthread_mutex_unlock(&h->lock);
    free(old);
}

void served_print(struct served *h, struct buf *out)
{
    bool any = false;
    buf_putc(out, '[');
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < KEPT; i++) {
        const char *s = h->record[(h->at + i) % KEPT];
        if (!s)
            continue;
        buf_puts(out, any ? "," : "");
        buf_puts(out, s);
        any = true;
    }
    pthread_mutex_unlock(&h->lock);
    buf_putc(out, ']');
}
