#include "op/load.h"

#include "base/file.h"

lathe_status loading_init(struct loading *l, const struct load *load, size_t n,
                          lathe_progress_fn progress, void *progress_ctx, lathe_error *err)
{
    *l = (struct loading){.load = load, .n = n, .progress = progress, .progress_ctx = progress_ctx};
    for (size_t i = 0; i < n; i++)
        l->total += load[i].bytes;
    if (pthread_mutex_init(&l->lock, NULL) != 0)
        return fail_memory(err, sizeof l->lock);
    return LATHE_OK;
}

void loading_release(struct loading *l)
{
    pthread_mutex_destroy(&l->lock);
}

/* The part at a place, which moves behind it. */
static bool part_at(const struct loading *l, struct load_place *at, struct load *part)
{
    while (at->index < l->n && at->byte >= l->load[at->index].bytes)
        *at = (struct load_place){at->index + 1, 0};
    if (at->index == l->n)
        return false;
    const struct load *q = &l->load[at->index];
    size_t left = q->bytes - at->byte, n = left < LOAD_PART ? left : LOAD_PART;
    *part = (struct load){
        q->to ? (unsigned char *)q->to + at->byte : NULL,
        (const unsigned char *)q->from + at->byte,
        n,
    };
    at->byte += n;
    return true;
}

bool loading_next(struct loading *l, struct load *part)
{
    struct load ahead[8];
    int n_ahead = 0;
    pthread_mutex_lock(&l->lock);
    bool any = !l->status && part_at(l, &l->next, part);
    if (any)
        l->taken += part->bytes;
    while (any && n_ahead < 8 && l->advised < l->taken + LOAD_AHEAD &&
           part_at(l, &l->ahead, &ahead[n_ahead]))
        l->advised += ahead[n_ahead++].bytes;
    pthread_mutex_unlock(&l->lock);
    for (int i = 0; i < n_ahead; i++)
        file_will_need(ahead[i].from, ahead[i].bytes);
    return any;
}

void loading_fail(struct loading *l, const lathe_error *err)
{
    pthread_mutex_lock(&l->lock);
    if (!l->status) {
        l->status = err->status;
        l->err = *err;
    }
    pthread_mutex_unlock(&l->lock);
}

static void report(struct loading *l, uint64_t done)
{
    lathe_error err;
    if (!l->progress || l->progress(l->progress_ctx, "loading", done, l->total))
        return;
    (void)fail(&err, LATHE_E_CANCELLED, "it was stopped");
    loading_fail(l, &err);
}

void loading_done(struct loading *l, int32_t thread, size_t bytes)
{
    pthread_mutex_lock(&l->lock);
    uint64_t done = l->done += bytes;
    pthread_mutex_unlock(&l->lock);
    if (thread == 0)
        report(l, done);
}

lathe_status loading_end(struct loading *l, lathe_error *err)
{
    if (!l->status)
        report(l, l->total);
    if (l->status && err)
        *err = l->err;
    return l->status;
}
