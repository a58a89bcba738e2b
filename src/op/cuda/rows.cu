/* The operators that work on each row alone. All are bound by memory at many rows, by the latency of a launch
 * and two loads at few. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

template <typename T> struct view {
    T *p;
    int64_t stride;
    __device__ __forceinline__ T *row(int64_t r) const
    {
        return p + r * stride;
    }
};
template <typename T> static view<T> view_of(const struct tensor *t)
{
    view<T> v = {(T *)t->data, t->stride};
    return v;
}

/* ---- rmsnorm ------------------------------------------------------------------------------------- */

enum { NORM_THREADS = 512 }; /* at most */

/* A block a row, N packs a thread, which stay in registers with their weights between the sum and the
 * product. The order of the sum depends on n alone. */
template <typename T, int N>
static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_row(view<T> y, view<T> in, const float *w, int64_t n, float eps)
{
    begin_kernel();
    const T *x = in.row(blockIdx.x);
    T *to = y.row(blockIdx.x);
    bool wide = is_wide(x), w_wide = is_wide(w), y_wide = is_wide(to);
    pack<T, PACK> v[N];
    pack<float, PACK> weight[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        v[j] = load_pack<PACK>(x + c, n - c, wide);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        weight[j] = load_pack<PACK>(w + c, n - c, w_wide);
    }
    float scale = rms_scale_of<true>(v, n, eps);
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (threadIdx.x + (int64_t)j * blockDim.x) * PACK;
        float out[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++)
            out[i] = v[j][i] * scale * weight[j][i];
        store_pack<PACK>(to + c, out, n - c, y_wide);
    }
}

/* Rows too long for registers: read twice. */
template <typename T>
static __global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_long_row(view<T> y, view<T> in, const float *w, int64_t n, float eps)
{
    begin_kernel();
    const T *x = in.row(blockIdx.x);
    T *to = y.row(blockIdx.x);
    float sum = 0;
    for (int64_t c = threadIdx.x; c < n; c += NORM_THREADS)
        sum = fmaf(to_float(x[c]), to_float(x[c]), sum);
    sum = block_sum(sum);
    float scale = rms_scale(sum, n, eps);
    if (!is_held(sum)) {
        double all = 0;
        for (int64_t c = threadIdx.x; c < n; c += NORM_THREADS)
            all += (double)to_float(x[c]) * (double)to_float(x[c]);
        scale = rms_scale(block_sum(all), n, eps);
    }
    for (int64_t c = threadIdx.x; c < n; c += NORM_THREADS)
        to[c] = from_float<T>(to_float(x[c]) * scale * w[c]);
}

template <typename T> static void launch_rmsnorm(struct gpu *c, const struct rmsnorm_args *a)
{
    int64_t n = a->y.dim[1];
    int rows = (int)a->y.dim[0], packs = cuda_blocks(n, PACK);
    const float *w = (const float *)a->w.data;
    view<T> y = view_of<T>(&a->y), in = view_of<T>(&a->in);
    if (packs <= NORM_THREADS / 2)
        launch_next(c, rmsnorm_row<T, 1>, rows, cuda_blocks(packs, 32) * 32, 0, y, in, w, n,
                    a->eps);
    else if (packs <= NORM_THREADS * 2)
        launch_next(c, rmsnorm_row<T, 2>, rows, cuda_blocks(packs, 64) * 32, 0, y, in, w, n,
                    a->eps);
    else if (packs <= NORM_THREADS * 4)
        launch_next(c, rmsnorm_row<T, 4>, rows, cuda_blocks(packs, 128) * 32, 0, y, in, w, n,
                    a->eps);
    else
        launch_next(c, rmsnorm_long_row<T>, rows, NORM_THREADS, 0, y, in, w, n, a->eps);
}

extern "C" lathe_status cuda_rmsnorm(void *stream, const struct rmsnorm_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    WITH_ACT(a->y.dtype, T, launch_rmsnorm<T>(c, a));
    return cuda_launched(c, err);
}

/* ---- rmsnorm_gated -------------------------------------------------------------------------------- */

enum {
    GATED_WARPS = 8,
    GATED_PACK = 4,
    GATED_PACKS = OP_MAX_HEAD / GATED_PACK / 32, /* of a lane, at most */
};

/* A warp a head. */
template <typename T, int N>
static __global__ void __launch_bounds__(GATED_WARPS * 32)
    rmsnorm_gated_head(view<T> y, view<const float> o, view<const T> z, const float *w, int64_t n,
                       int64_t heads, int64_t all, float eps)
{
    begin_kernel();
    int64_t i = (int64_t)blockIdx.x * GATED_WARPS + threadIdx.x / 32;
    if (i >= all)
        return;
    int lane = threadIdx.x % 32;
    int64_t first = i % heads * n;
    const float *x = o.row(i / heads) + first;
    const T *gate = z.row(i / heads) + first;
    T *to = y.row(i / heads) + first;
    bool x_wide = is_wide(x), gate_wide = is_wide(gate), y_wide = is_wide(to), w_wide = is_wide(w);
    pack<float, GATED_PACK> v[N], weight[N];
    pack<T, GATED_PACK> g[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (lane + 32 * j) * GATED_PACK;
        v[j] = load_pack<GATED_PACK>(x + c, n - c, x_wide);
        g[j] = load_pack<GATED_PACK>(gate + c, n - c, gate_wide);
        weight[j] = load_pack<GATED_PACK>(w + c, n - c, w_wide);
    }
    float scale = rms_scale_of<false>(v, n, eps);
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (lane + 32 * j) * GATED_PACK;
        float out[GATED_PACK];
#pragma unroll
        for (int k = 0; k < GATED_PACK; k++)
            out[k] = v[j][k] * scale * weight[j][k] * silu(g[j][k]);
        store_pack<GATED_PACK>(to + c, out, n - c, y_wide);
    }
}

extern "C" lathe_status cuda_rmsnorm_gated(void *stream, const struct rmsnorm_gated_args *a,
                                           lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t n = a->w.dim[0], heads = a->y.dim[1] / n, all = a->y.dim[0] * heads;
    const float *w = (const float *)a->w.data;
    WITH_ACT(a->y.dtype, T, {
        view<T> y = view_of<T>(&a->y);
        view<const T> z = view_of<const T>(&a->z);
        view<const float> o = view_of<const float>(&a->o);
        int blocks = cuda_blocks(all, GATED_WARPS);
        if (n <= 32 * GATED_PACK)
            launch_next(c, rmsnorm_gated_head<T, 1>, blocks, GATED_WARPS * 32, 0, y, o, z, w, n,
                        heads, all, a->eps);
        else
            launch_next(c, rmsnorm_gated_head<T, GATED_PACKS>, blocks, GATED_WARPS * 32, 0, y, o, z,
                        w, n, heads, all, a->eps);
    });
    return cuda_launched(c, err);
}

/* ---- Value by value -------------------------------------------------------------------------------- */

enum { VALUE_THREADS = 128 };

/* A block's place: a row, and columns from c for this thread. */
struct place {
    int64_t row, c;
};
__device__ __forceinline__ place place_of(unsigned blocks_per_row)
{
    place p = {(int64_t)(blockIdx.x / blocks_per_row),
               ((int64_t)(blockIdx.x % blocks_per_row) * VALUE_THREADS + threadIdx.x) * PACK};
    return p;
}

template <typename T>
static __global__ void __launch_bounds__(VALUE_THREADS)
    silu_mul(view<T> y, view<const T> gate, view<const T> up, int64_t n, unsigned blocks_per_row)
{
    begin_kernel();
    place at = place_of(blocks_per_row);
    if (at.c >= n)
        return;
    const T *g = gate.row(at.row), *u = up.row(at.row);
    T *to = y.row(at.row);
    pack<T, PACK> x = load_pack<PACK>(g + at.c, n - at.c, is_wide(g));
    pack<T, PACK> v = load_pack<PACK>(u + at.c, n - at.c, is_wide(u));
    float out[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++)
        out[i] = silu(x[i]) * v[i];
    store_pack<PACK>(to + at.c, out, n - at.c, is_wide(to));
}

extern "C" lathe_status cuda_silu_mul(void *stream, const struct silu_mul_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t n = a->y.dim[1];
    int per_row = cuda_blocks(n, VALUE_THREADS * PACK), blocks = (int)a->y.dim[0] * per_row;
    if (blocks == 0)
        return cuda_launched(c, err);
    WITH_ACT(a->y.dtype, T,
             launch_next(c, silu_mul<T>, blocks, VALUE_THREADS, 0, view_of<T>(&a->y),
                         view_of<const T>(&a->gate), view_of<const T>(&a->up), n,
                         (unsigned)per_row));
    return cuda_launched(c, err);
}

/* With head_dim a multiple of 8 a pack lies in one head; else values go one by one. */
template <typename T>
static __global__ void __launch_bounds__(VALUE_THREADS)
    attention_gate(view<T> y, view<const float> o, view<const T> qg, int64_t n, int32_t head_dim,
                   unsigned blocks_per_row)
{
    begin_kernel();
    place at = place_of(blocks_per_row);
    if (at.c >= n)
        return;
    int64_t left = n - at.c;
    T *to = y.row(at.row) + at.c;
    const float *x = o.row(at.row) + at.c;
    const T *gates = qg.row(at.row);
    if (head_dim % PACK == 0) {
        int head = (int)at.c / head_dim;
        const T *g = gates + at.c + (head + (int64_t)1) * head_dim;
        pack<float, PACK> v = load_pack<PACK>(x, left, is_wide(x));
        pack<T, PACK> gate = load_pack<PACK>(g, left, is_wide(g));
        float out[PACK];
#pragma unroll
        for (int i = 0; i < PACK; i++)
            out[i] = v[i] * sigmoid(gate[i]);
        store_pack<PACK>(to, out, left, is_wide(to));
        return;
    }
    for (int i = 0; i < PACK && i < left; i++) {
        int64_t head = (at.c + i) / head_dim;
        float gate = to_float(gates[at.c + i + (head + 1) * head_dim]);
        to[i] = from_float<T>(x[i] * sigmoid(gate));
    }
}

extern "C" lathe_status cuda_attention_gate(void *stream, const struct attention_gate_args *a,
                                            lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t n = a->y.dim[1];
    int per_row = cuda_blocks(n, VALUE_THREADS * PACK), blocks = (int)a->y.dim[0] * per_row;
    WITH_ACT(a->y.dtype, T,
             launch_next(c, attention_gate<T>, blocks, VALUE_THREADS, 0, view_of<T>(&a->y),
                         view_of<const float>(&a->o), view_of<const T>(&a->qg), n, a->head_dim,
                         (unsigned)per_row));
    return cuda_launched(c, err);
}

/* ---- gather_rows ------------------------------------------------------------------------------------ */

/* In units of a size that divides everything: 16 bytes, or one value. */
template <typename U>
static __global__ void __launch_bounds__(VALUE_THREADS)
    gather(view<U> y, view<const U> in, const __grid_constant__ struct few row, bool all, int64_t n,
           unsigned blocks_per_row)
{
    begin_kernel();
    int64_t to = blockIdx.x / blocks_per_row, from = all ? to : few_at(row, to);
    int64_t i = (int64_t)(blockIdx.x % blocks_per_row) * VALUE_THREADS + threadIdx.x;
    if (i < n)
        y.row(to)[i] = in.row(from)[i];
}

template <typename U>
static void gather_units(struct gpu *c, const struct gather_rows_args *a, const struct few &row)
{
    int64_t size = (int64_t)dtype_size(a->y.dtype), unit = (int64_t)sizeof(U);
    view<U> y = {(U *)a->y.data, a->y.stride * size / unit};
    view<const U> in = {(const U *)a->in.data, a->in.stride * size / unit};
    int64_t n = a->y.dim[1] * size / unit;
    int per_row = cuda_blocks(n, VALUE_THREADS), blocks = (int)a->y.dim[0] * per_row;
    if (blocks > 0)
        launch_next(c, gather<U>, blocks, VALUE_THREADS, 0, y, in, row, a->row == NULL, n,
                    (unsigned)per_row);
}

extern "C" lathe_status cuda_gather_rows(void *stream, const struct gather_rows_args *a,
                                         lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t size = (int64_t)dtype_size(a->y.dtype);
    struct few row = {};
    if (a->row && !few_of(c, &row, a->row, a->y.dim[0]))
        return cuda_launched(c, err);
    if (is_wide(a->y.data) && is_wide(a->in.data) && a->y.stride * size % 16 == 0 &&
        a->in.stride * size % 16 == 0 && a->y.dim[1] * size % 16 == 0)
        gather_units<uint4>(c, a, row);
    else if (size == 1)
        gather_units<uint8_t>(c, a, row);
    else if (size == 2)
        gather_units<uint16_t>(c, a, row);
    else
        gather_units<uint32_t>(c, a, row);
    return cuda_launched(c, err);
}
