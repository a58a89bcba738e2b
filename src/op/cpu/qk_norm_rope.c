#include <math.h>

#include "op/cpu/cpu.h"

struct job {
    const struct cpu *cpu;
    const struct qk_norm_rope_args *a;
};

/* Sines and cosines of a row are computed once for all its heads. */
static void rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct qk_norm_rope_args *a = j->a;
    const struct rope *rope = a->rope;
    const struct cpu_kernels *kernels = &j->cpu->kernels;
    enum dtype act = a->q.dtype;
    int64_t d = a->head_dim, half = rope->dims / 2, begin, end;
    size_t head = (size_t)d * dtype_size(act); /* bytes */
    int64_t n_q = a->q.dim[1] / d, apart = n_q ? a->qg.dim[1] / a->q.dim[1] : 0;
    float cosine[OP_MAX_HEAD / 2], sine[OP_MAX_HEAD / 2];
    pool_share(a->q.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)a->b->rope_pos[t][rope->axis[i]] * rope->inv_freq[i];
            cosine[i] = cosf(angle) * rope->scale;
            sine[i] = sinf(angle) * rope->scale;
        }
        unsigned char *q = tensor_at(&a->q, t), *k = tensor_at(&a->k, t);
        const unsigned char *qg = tensor_at(&a->qg, t);
        for (int64_t h = 0; h < n_q; h++)
            kernels->norm_rope(q + (size_t)h * head, qg + (size_t)(apart * h) * head,
                               a->q_norm.data, d, a->eps, cosine, sine, half, act);
        for (int64_t h = 0; h < a->k.dim[1] / d; h++)
            kernels->norm_rope(k + (size_t)h * head, k + (size_t)h * head, a->k_norm.data, d,
                               a->eps, cosine, sine, half, act);
    }
}

lathe_status cpu_qk_norm_rope(void *stream, const struct qk_norm_rope_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    int64_t n = a->q.dim[0] > 1 ? tensor_elements(&a->q) + tensor_elements(&a->k) : 0;
    cpu_run(j.cpu, n, rows, &j);
    return LATHE_OK;
}
