/* The two small products of the gates and what is made of them, in one kernel.
 *
 * All forms of it add in the same order, so a row's bits never depend on how many rows there are: thread i of a
 * block takes packs i, i + THREADS ... of the columns, in order; then the lanes of a warp are added, then the
 * warps in order. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum { THREADS = 128, STEP = THREADS * PACK, ROWS = 8, HEADS = 4 };

struct gates {
    struct device_weight w[2]; /* in_proj_a, in_proj_b */
    float *y[2];               /* g, beta */
    int64_t y_stride[2];
    const void *u;
    int64_t u_stride, n_heads, cols;
    int32_t T;
    bool u_wide;
    const float *A_log, *dt_bias;
};

/* Adds the block's sums of rows from `row` and heads from `head` and stores what is made of them. */
template <int R, int H>
__device__ __forceinline__ void finish(const struct gates &a, int which, const float (&acc)[R][H],
                                       int64_t row, int64_t head)
{
    __shared__ float part[THREADS / 32][R * H];
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int h = 0; h < H; h++) {
            float sum = warp_sum(acc[r][h]);
            if (threadIdx.x % 32 == 0)
                part[threadIdx.x / 32][r * H + h] = sum;
        }
    __syncthreads();
    if (threadIdx.x >= R * H)
        return;
    row += threadIdx.x / H;
    head += threadIdx.x % H;
    if (row >= a.T || head >= a.n_heads)
        return;
    float x = part[0][threadIdx.x];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++)
        x += part[i][threadIdx.x];
    a.y[which][row * a.y_stride[which] + head] = gdn_gate(which, x, a.A_log, a.dt_bias, head);
}

/* Any format and shape: a block an output and row. */
template <weight_format_id F, typename T>
static __global__ void __launch_bounds__(THREADS)
    gate_any(const __grid_constant__ struct gates a, int first)
{
    begin_kernel();
    int which = first + blockIdx.z;
    int64_t row = blockIdx.x / a.n_heads, head = blockIdx.x % a.n_heads;
    const T *u = (const T *)a.u + row * a.u_stride;
    float acc[1][1] = {{0}};
    for (int64_t c = (int64_t)threadIdx.x * PACK; c < a.cols; c += STEP) {
        pack<T, PACK> x = load_pack<PACK>(u + c, a.cols - c, a.u_wide);
        float w[PACK];
        weight_pack<F, false>(w, a.w[which], head, c);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            acc[0][0] = fmaf(w[i], x[i], acc[0][0]);
    }
    finish(a, which, acc, row, head);
}

/* BF16 weights, which is what checkpoints have, in whole packs: R rows and H heads a block, DEPTH packs of each
 * under way at once. One row, or ROWS with one head, up to ROWS rows: bound by the latency of the reads; at
 * 5120 columns all of a thread's are under way at once. More rows take HEADS heads: bound by F32
 * arithmetic. */
template <typename T, int R, int H, int DEPTH>
static __global__ void __launch_bounds__(THREADS)
    gate_bf16(const __grid_constant__ struct gates a, int first, unsigned head_blocks)
{
    begin_kernel();
    int which = first + blockIdx.z;
    int64_t head = (int64_t)(blockIdx.x % head_blocks) * H;
    int64_t row = (int64_t)(blockIdx.x / head_blocks) * R;
    float acc[R][H] = {{0}};
    for (int64_t begin = (int64_t)threadIdx.x * PACK; begin < a.cols; begin += DEPTH * STEP) {
        pack<T, PACK> x[DEPTH][R] = {{{{0}}}};
        pack<bf16, PACK> w[DEPTH][H] = {{{{0}}}};
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            int64_t c = begin + d * STEP;
            if (c >= a.cols)
                continue;
#pragma unroll
            for (int h = 0; h < H; h++)
                if (head + h < a.n_heads)
                    load_words<PACK * 2>(w[d][h].w, (const bf16 *)a.w[which].codes +
                                                        (head + h) * a.w[which].stride + c);
#pragma unroll
            for (int r = 0; r < R; r++)
                if (row + r < a.T)
                    load_words<PACK * sizeof(T)>(x[d][r].w,
                                                 (const T *)a.u + (row + r) * a.u_stride + c);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++)
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int h = 0; h < H; h++)
#pragma unroll
                    for (int i = 0; i < PACK; i++)
                        acc[r][h] = fmaf(w[d][h][i], x[d][r][i], acc[r][h]);
    }
    finish(a, which, acc, row, head);
}

template <typename T, int R, int H, int DEPTH>
static void launch_bf16(struct gpu *c, const struct gates *a, int first, int n)
{
    int head_blocks = cuda_blocks(a->n_heads, H);
    dim3 blocks((unsigned)(head_blocks * cuda_blocks(a->T, R)), 1, (unsigned)n);
    launch_next(c, gate_bf16<T, R, H, DEPTH>, blocks, THREADS, 0, *a, first, (unsigned)head_blocks);
}

/* Products first .. first + n - 1, of one format. */
template <weight_format_id F, typename T>
static void launch(struct gpu *c, const struct gates *a, int first, int n)
{
    bool wide = F == WF_BF16 && a->u_wide;
    for (int i = first; i < first + n; i++)
        wide = wide && weight_is_wide(&a->w[i], F);
    if (!wide) {
        dim3 blocks((unsigned)(a->n_heads * a->T), 1, (unsigned)n);
        launch_next(c, gate_any<F, T>, blocks, THREADS, 0, *a, first);
    } else if (a->T == 1) {
        launch_bf16<T, 1, 1, 5>(c, a, first, n);
    } else if (a->T <= ROWS) {
        launch_bf16<T, ROWS, 1, sizeof(T) == 2 ? 5 : 2>(c, a, first, n);
    } else {
        launch_bf16<T, ROWS, HEADS, 1>(c, a, first, n);
    }
}

extern "C" lathe_status cuda_gdn_gates(void *stream, const struct gdn_gates_args *a,
                                       lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    const struct tensor *u = &a->u;
    struct gates g = {
        .w = {device_weight_of(a->in_proj_a), device_weight_of(a->in_proj_b)},
        .y = {(float *)a->g.data, (float *)a->beta.data},
        .y_stride = {a->g.stride, a->beta.stride},
        .u = u->data,
        .u_stride = u->stride,
        .n_heads = a->in_proj_a->rows,
        .cols = u->dim[1],
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
