#include "sample/best.h"

#include "op/backend.h"
#include "op/op.h"

lathe_status best_rows_open(struct best_rows *b, const struct backend *backend, void *stream,
                            int32_t max_rows, lathe_error *err)
{
    size_t bytes = (size_t)max_rows * 2 * SAMPLE_MAX_BEST * sizeof(int32_t);
    *b = (struct best_rows){0};
    return backend->alloc_host(stream, &b->memory, bytes, err);
}

void best_rows_close(struct best_rows *b, const struct backend *backend, void *stream)
{
    if (b->memory)
        backend->free_host(stream, b->memory);
    *b = (struct best_rows){0};
}

void best_rows_find(struct exec *x, struct best_rows *b, struct tensor logits,
                    const struct id_set *ids, int32_t n)
{
    int64_t T = logits.dim[0];
    int32_t *at = b->memory;
    struct tensor value = tensor_2d(at, DT_F32, T, n);
    struct tensor id = tensor_2d(at ? at + T * n : NULL, DT_I32, T, n);
    op_top_k(x, value, id, logits, id_set_pairs(ids), ids->n_ranges);
    exec_wait(x);
    b->n = n;
    b->n_rows = (int32_t)T;
}

struct logits_best best_rows_at(const struct best_rows *b, int32_t i)
{
    struct logits_best best = {.n = b->n};
    if (best.n > 0) {
        best.value = (const float *)b->memory + (ptrdiff_t)i * best.n;
        best.id = (const int32_t *)b->memory + ((ptrdiff_t)b->n_rows + i) * best.n;
    }
    return best;
}
