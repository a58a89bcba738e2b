#include "spec/verify.h"

lathe_status verify_choose(struct sampler *s, struct sample_scratch *w, enum acceptance how,
                           const struct verify_row *row, int32_t *id, lathe_error *err)
{
    (void)how;
    return sampler_pick(s, w, row->logits, NULL, 0, id, err);
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
