#include "spec/verify.h"

#include "sample/reject.h"

lathe_status verify_choose(struct sampler *s, struct sample_scratch *w, enum acceptance how,
                           const struct verify_row *row, int32_t *id, lathe_error *err)
{
    if (how == ACCEPT_STRICT || row->draft < 0 || sampler_is_greedy(s))
        return sampler_pick(s, w, row->logits, NULL, 0, id, err);
    int32_t n;
    lathe_status st = sampler_law(s, w, row->logits, NULL, 0, w->cand, &n, err);
    if (!st)
        reject_draft(w->cand, n, row->law ? row->law->q : NULL, row->law ? row->law->n : 0,
                     row->draft, (uint64_t)sampler_seed(s), sampler_position(s), id);
    return st;
}

void verify_count(lathe_spec_stats *s, int32_t n_draft, int32_t n_accepted)
{
    s->rounds++;
    s->drafted += n_draft;
    s->accepted += n_accepted;
    s->histogram[n_accepted]++;
    for (int32_t i = 0; i < n_draft; i++) {
        s->drafted_at[i]++;
        s->accepted_at[i] += i < n_accepted;
    }
}
