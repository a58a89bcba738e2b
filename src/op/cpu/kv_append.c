#include "op/cpu/cpu.h"

struct job {
    const struct cpu *cpu;
    const struct kv_append_args *a;
};

static void rows(void *ctx, int32_t thread, int32_t n_threads)
{
    const struct job *j = ctx;
    const struct kv_append_args *a = j->a;
    const struct kv_pages *kv = a->kv;
    int64_t page = kv->k.dim[1], width = a->k.dim[1], begin, end;
    size_t size = dtype_size(kv->k.dtype);
    pool_share(a->k.dim[0], 1, thread, n_threads, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        int64_t pos = a->b->pos[t];
        int64_t at = kv->page_table[a->b->slot[t] * (int64_t)kv->pages_per_slot + pos / page];
        size_t in_page = (size_t)(pos % page * width) * size;
        unsigned char *key = (unsigned char *)tensor_at(&kv->k, at) + in_page;
        unsigned char *value = (unsigned char *)tensor_at(&kv->v, at) + in_page;
        j->cpu->kernels.convert(key, kv->k.dtype, tensor_at(&a->k, t), a->k.dtype, width);
        j->cpu->kernels.convert(value, kv->v.dtype, tensor_at(&a->v, t), a->v.dtype, width);
    }
}

lathe_status cpu_kv_append(void *stream, const struct kv_append_args *a, lathe_error *err)
{
    (void)err;
    struct job j = {cpu_of(stream), a};
    cpu_run(j.cpu, tensor_elements(&a->k), rows, &j);
    return LATHE_OK;
}
