/* y[t,:] = table[token[t],:]. A thread unpacks eight neighbouring values; bound by the latency of a read. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum { THREADS = 128 };

/* WIDE: see weight_is_wide. */
template <weight_format_id F, bool WIDE, typename T>
static __global__ void __launch_bounds__(THREADS)
    embed(T *y, int64_t stride, device_weight table, const __grid_constant__ struct few token,
          unsigned blocks_per_row)
{
    begin_kernel();
    int64_t t = blockIdx.x / blocks_per_row;
    int64_t c = ((int64_t)(blockIdx.x % blocks_per_row) * THREADS + threadIdx.x) * PACK;
    if (c >= table.cols)
        return;
    float x[PACK];
    weight_pack<F, WIDE>(x, table, few_at(token, t), c);
    T *to = y + t * stride;
    store_pack<PACK>(to + c, x, table.cols - c, is_wide(to));
}

template <weight_format_id F, typename T>
static void launch(struct gpu *c, const struct embed_args *a, const struct few &token)
{
    struct device_weight w = device_weight_of(a->table);
    int per_row = cuda_blocks(w.cols, THREADS * PACK), blocks = (int)a->y.dim[0] * per_row;
    T *y = (T *)a->y.data;
    if (weight_is_wide(&w, F))
        launch_next(c, embed<F, true, T>, blocks, THREADS, 0, y, a->y.stride, w, token,
                    (unsigned)per_row);
    else
        launch_next(c, embed<F, false, T>, blocks, THREADS, 0, y, a->y.stride, w, token,
                    (unsigned)per_row);
}

extern "C" lathe_status cuda_embed(void *stream, const struct embed_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct few token;
    if (few_of(c, &token, a->token, a->y.dim[0]))
        WITH_ACT(a->y.dtype, T, WITH_FORMAT(a->table->format, F, launch<F, T>(c, a, token)));
    return cuda_launched(c, err);
}
