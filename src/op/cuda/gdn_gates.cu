/* The two small products of the gates and what is made of them, in one kernel.
 *
 * All forms of it add in the same order, so a row's bits never depend on how many rows there are: thread i of a
 * block takes packs i, i + THREADS ... of the columns, in order; then the lanes of a warp are added, then the
 * warps in order. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum { THREADS = 128, ROWS = 8 };

struct gates {
    struct device_weight w[2]; /* in_proj_a, in_proj_b */
    float *y[2];               /* g, beta */
    int64_t y_stride[2];
    const void *u;
    int64_t u_stride, n_heads;
    int32_t T;
    bool u_wide;
    const float *A_log, *dt_bias;
};

__device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

/* A block computes HEADS outputs of up to R rows, blockIdx.z + `first` being the product. R = 1 and R = 8 with
 * one head: bound by the latency of its reads, which are all under way at once at 5120 columns. R = 8 with
 * more heads: for many rows, bound by F32 arithmetic. */
template <weight_format_id F, bool WIDE, typename T, int R, int HEADS>
static __global__ void __launch_bounds__(THREADS)
    gate_heads(const __grid_constant__ struct gates a, int first, unsigned head_blocks)
{
    __shared__ float part[THREADS / 32][R * HEADS];
    int which = first + blockIdx.z, warp = threadIdx.x / 32;
    int64_t head = (int64_t)(blockIdx.x % head_blocks) * HEADS, cols = a.w[which].cols;
    int32_t row = (int32_t)(blockIdx.x / head_blocks) * R;
    int32_t n_rows = a.T - row < R ? a.T - row : R;
    const T *u = (const T *)a.u + row * a.u_stride;
    float acc[R][HEADS];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            acc[r][h] = 0;
#pragma unroll(R == 1 ? 5 : 1)
    for (int64_t c = (int64_t)threadIdx.x * PACK; c < cols; c += THREADS * PACK) {
        pack<T, PACK> x[R];
        float w[HEADS][PACK];
#pragma unroll
        for (int r = 0; r < R; r++)
            x[r] = load_pack<PACK>(u + (r < n_rows ? r : 0) * a.u_stride + c,
                                   WIDE ? PACK : cols - c, WIDE || a.u_wide);
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            weight_pack<F, WIDE>(w[h], a.w[which], head + h < a.n_heads ? head + h : a.n_heads - 1,
                                 c);
#pragma unroll
        for (int r = 0; r < R; r++)
            if (r < n_rows)
#pragma unroll
                for (int h = 0; h < HEADS; h++)
#pragma unroll
                    for (int i = 0; i < PACK; i++)
                        acc[r][h] = fmaf(w[h][i], x[r][i], acc[r][h]);
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float sum = warp_sum(acc[r][h]);
            if (threadIdx.x % 32 == 0)
                part[warp][r * HEADS + h] = sum;
        }
    __syncthreads();
    int r = threadIdx.x / HEADS;
    head += threadIdx.x % HEADS;
    if (threadIdx.x >= R * HEADS || r >= n_rows || head >= a.n_heads)
        return;
    float x = part[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++)
        x += part[i][threadIdx.x];
    float *y = a.y[which] + (row + r) * a.y_stride[which] + head;
    *y = which == 0 ? -expf(a.A_log[head]) * softplus(x + a.dt_bias[head]) : sigmoid(x);
}

template <weight_format_id F, bool WIDE, typename T, int R, int HEADS>
static void launch_form(struct cuda *c, const struct gates *a, int first, int n)
{
    int head_blocks = cuda_blocks(a->n_heads, HEADS);
    dim3 blocks((unsigned)(head_blocks * cuda_blocks(a->T, R)), 1, (unsigned)n);
    gate_heads<F, WIDE, T, R, HEADS>
        <<<blocks, THREADS, 0, c->stream>>>(*a, first, (unsigned)head_blocks);
}

/* Products first .. first + n - 1, of one format. */
template <weight_format_id F, typename T>
static void launch(struct cuda *c, const struct gates *a, int first, int n)
{
    bool wide = a->u_wide;
    for (int i = first; i < first + n; i++)
        wide = wide && weight_is_wide(&a->w[i], F);
    if (!wide)
        launch_form<F, false, T, ROWS, 1>(c, a, first, n);
    else if (a->T == 1)
        launch_form<F, true, T, 1, 1>(c, a, first, n);
    else if (a->T <= ROWS)
        launch_form<F, true, T, ROWS, 1>(c, a, first, n);
    else
        launch_form<F, true, T, ROWS, 4>(c, a, first, n);
}

extern "C" lathe_status cuda_gdn_gates(void *stream, const struct gdn_gates_args *a,
                                       lathe_error *err)
{
    struct cuda *c = cuda_of(stream);
    const struct tensor *u = &a->u;
    struct gates g = {
        .w = {device_weight_of(a->in_proj_a), device_weight_of(a->in_proj_b)},
        .y = {(float *)a->g.data, (float *)a->beta.data},
        .y_stride = {a->g.stride, a->beta.stride},
        .u = u->data,
        .u_stride = u->stride,
        .n_heads = a->in_proj_a->rows,
        .T = (int32_t)u->dim[0],
        .u_wide = is_wide(u->data) && (u->dim[0] == 1 || u->stride % PACK == 0),
        .A_log = (const float *)a->A_log.data,
        .dt_bias = (const float *)a->dt_bias.data,
    };
    enum weight_format_id of_a = a->in_proj_a->format, of_b = a->in_proj_b->format;
    WITH_ACT(u->dtype, T, WITH_FORMAT(of_a, F, launch<F, T>(c, &g, 0, of_a == of_b ? 2 : 1)));
    if (of_a != of_b)
        WITH_ACT(u->dtype, T, WITH_FORMAT(of_b, F, launch<F, T>(c, &g, 1, 1)));
    return cuda_launched(c, err);
}

extern "C" size_t cuda_gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a)
{
    (void)stream, (void)a;
    return 0;
}
