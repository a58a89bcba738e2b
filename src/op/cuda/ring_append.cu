/* Keys and values to a ring. A block a row and plane; rows that later ones of their sequence would overwrite
 * are left out, so that no two blocks meet. Bound by the latency of a launch. */
#include "op/cuda/append.cuh"
#include "op/cuda/cuda.cuh"

template <typename K, typename T>
static __global__ void __launch_bounds__(APPEND_THREADS)
    ring_append(struct append a, const struct batch_seq *seq, const int32_t *seq_of)
{
    begin_kernel();
    int64_t t = blockIdx.x;
    int which = blockIdx.y;
    struct batch_seq s = seq[seq_of[t]];
    int64_t i = t - s.first_row;
    if (s.n_rows - i > a.rows || i >= s.n_rows)
        return;
    append_row((K *)a.plane[which] + s.slot * a.plane_stride[which] +
                   (s.pos + i) % a.rows * a.width,
               (const T *)a.in[which] + t * a.in_stride[which], a.width);
}

extern "C" lathe_status cuda_ring_append(void *stream, const struct ring_append_args *a,
                                         lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct append to = append_of(&a->k, &a->v, &a->ring->k, &a->ring->v);
    dim3 blocks((unsigned)a->k.dim[0], 2);
    WITH_ACT(a->k.dtype, T,
             WITH_ACT(a->ring->k.dtype, K,
                      launch_next(c, ring_append<K, T>, blocks, APPEND_THREADS, 0, to, b.seq,
                                  b.seq_of)));
    return cuda_launched(c, err);
}
