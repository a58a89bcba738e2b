#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "engine/engine.h"

lathe_status spec_open(struct lathe_engine *e, lathe_error *err)
{
    (void)e, (void)err;
    return LATHE_OK;
}

void spec_close(struct lathe_engine *e)
{
    struct spec *s = &e->spec;
    if (s->law)
        for (int32_t i = 0; i < e->options.n_slots * s->draft_k; i++)
            free(s->law[i].q);
    free(s->law);
    free(s->request);
    if (s->ops)
        s->ops->close(s->drafter);
    *s = (struct spec){0};
}

/* How many drafts the slot may use: no row beyond the context, no token beyond the request's limit. */
static int32_t room(const struct lathe_engine *e, const struct slot *s)
{
    const lathe_request *r = s->request;
    int32_t k = e->spec.draft_k;
    int32_t positions = e->options.n_ctx - s->n_committed - 1;
    int32_t tokens = r->max_tokens - r->usage.completion_tokens - 1;
    if (r->draft_k >= 0 && r->draft_k < k)
        k = r->draft_k;
    if (k > positions)
        k = positions;
    return k > tokens ? tokens : k;
}

int32_t spec_propose(struct lathe_engine *e)
{
    struct spec *sp = &e->spec;
    int32_t n = 0;
    if (!sp->ops)
        return 0;
    for (int32_t i = 0; i < e->options.n_slots; i++) {
        struct slot *s = &e->slots[i];
        if (s->phase != SLOT_DECODE || events_full(&s->request->events))
            continue;
        int32_t most = room(e, s);
        if (most < 1)
            continue;
        s->token[s->n_committed] = s->next;
        sp->request[n++] = (struct draft_request){
            .slot = i,
            .pos = s->n_committed,
            .anchor = s->next,
            .most = most,
            .sampler = s->request->sampler,
            .history = s->token,
            .law = sp->law ? sp->law + (size_t)i * (size_t)sp->draft_k : NULL,
        };
    }
    lathe_error err;
    if (n && sp->ops->propose(sp->drafter, sp->request, n, &err)) {
        /* A drafter that fails costs speed, not answers. */
        log_warn("drafter %s: %s; this round goes without", sp->ops->name, err.message);
        return 0;
    }
    return n;
}

lathe_status spec_committed(struct lathe_engine *e, int32_t slot, int32_t pos, int32_t first_row,
                            int32_t n, lathe_error *err)
{
    const struct spec *sp = &e->spec;
    const struct step *step = &e->step;
    if (!sp->ops)
        return LATHE_OK;
    struct committed c = {
        .slot = slot,
        .pos = pos,
        .n = n,
        .token = step->token + first_row,
        .hidden = tensor_rows(step->hidden, first_row, n),
        .feature = tensor_rows(step->feature, first_row, n),
    };
    return sp->ops->committed(sp->drafter, &c, err);
}
