#include "op/cpu/cpu.h"

lathe_status cpu_penalise(void *stream, const struct penalise_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    for (int32_t j = 0; j < (int32_t)a->logits.dim[0]; j++)
        resident_penalise(tensor_at(&a->logits, j), a->h, a->r->token + 1, a->first + j);
    return LATHE_OK;
}

lathe_status cpu_walk(void *stream, const struct walk_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    resident_walk(a->token, a->id, a->score, a->r, a->h);
    return LATHE_OK;
}

lathe_status cpu_choose(void *stream, const struct choose_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    resident_choose(a);
    return LATHE_OK;
}

lathe_status cpu_advance(void *stream, const struct advance_args *a, lathe_error *err)
{
    (void)stream, (void)err;
    resident_advance(a->r, a->n_rows, a->h, a->report);
    return LATHE_OK;
}
