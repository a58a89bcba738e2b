/* Keys and values to their pages. A block a row and plane; bound by the latency of a launch. */
#include "op/cuda/append.cuh"
#include "op/cuda/cuda.cuh"

template <typename K, typename T>
static __global__ void __launch_bounds__(APPEND_THREADS)
    kv_append(struct append a, const int32_t *table, int32_t pages_per_slot, const int32_t *slot,
              const int32_t *pos)
{
    begin_kernel();
    int64_t t = blockIdx.x, p = pos[t];
    int which = blockIdx.y;
    int64_t page = table[(int64_t)slot[t] * pages_per_slot + p / a.rows];
    append_row((K *)a.plane[which] + page * a.plane_stride[which] + p % a.rows * a.width,
               (const T *)a.in[which] + t * a.in_stride[which], a.width);
}

extern "C" lathe_status cuda_kv_append(void *stream, const struct kv_append_args *a,
                                       lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct append to = append_of(&a->k, &a->v, &a->kv->k, &a->kv->v);
    dim3 blocks((unsigned)a->k.dim[0], 2);
    WITH_ACT(a->k.dtype, T,
             WITH_KV(a->kv->k.dtype, K,
                     launch_next(c, kv_append<K, T>, blocks, APPEND_THREADS, 0, to,
                                 a->kv->device_table, a->kv->pages_per_slot, b.slot, b.pos)));
    return cuda_launched(c, err);
}
