/* y[t, p * k + c] = u[t,c] + sum_r A[prev[t,p],r] * g[t,r] * B[id[t,c],r]. A block four candidates behind one token, a
 * warp each; they share the product of A and g. A token that a table does not have gives NaN. Bound by the latency
 * of its reads. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum { WARPS = 4 };

struct scores {
    struct device_weight A, B;
    enum weight_format_id A_format;
    float *y;
    const float *u, *g;
    const int32_t *prev, *id;
    int64_t y_stride, u_stride, g_stride, prev_stride, id_stride, k, rank;
};

__device__ __forceinline__ float weight_any(enum weight_format_id format, const device_weight &w,
                                            int64_t row, int64_t col)
{
    WITH_FORMAT(format, F, return weight_at<F>(w, row, col));
    return 0;
}

template <weight_format_id F, bool WIDE>
static __global__ void __launch_bounds__(WARPS * 32)
    score_candidates(const __grid_constant__ struct scores a)
{
    begin_kernel();
    __shared__ __align__(16) float Ag[OP_MAX_RANK];
    int64_t t = blockIdx.x, p = blockIdx.z, c = (int64_t)blockIdx.y * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    const float *g = a.g + t * a.g_stride;
    int64_t before = a.prev[t * a.prev_stride + p];
    bool is_before = before >= 0 && before < a.A.rows;
    for (int r = threadIdx.x; r < OP_MAX_RANK; r += WARPS * 32)
        Ag[r] = r < a.rank && is_before ? weight_any(a.A_format, a.A, before, r) * g[r] : 0.0f;
    __syncthreads();
    if (c >= a.k)
        return;
    int64_t id = a.id[t * a.id_stride + c];
    bool is_row = id >= 0 && id < a.B.rows && is_before;
    float sum = id < a.B.rows && before < a.A.rows ? 0 : __int_as_float(0x7FC00000);
    for (int r = lane * PACK; r < a.rank && is_row; r += 32 * PACK) {
        float b[PACK];
        weight_pack<F, WIDE>(b, a.B, id, r);
        pack<float, PACK> left = load_pack<PACK>(Ag + r, PACK, true);
#pragma unroll
        for (int i = 0; i < PACK; i++)
            sum = fmaf(left[i], b[i], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0)
        a.y[t * a.y_stride + p * a.k + c] =
            id < 0 || before < 0 ? __int_as_float(0xFF800000) : a.u[t * a.u_stride + c] + sum;
}

template <weight_format_id F>
static void launch(struct gpu *c, const struct scores *s, int64_t T, unsigned m)
{
    dim3 blocks((unsigned)T, (unsigned)cuda_blocks(s->k, WARPS), m);
    if (weight_is_wide(&s->B, F))
        launch_next(c, score_candidates<F, true>, blocks, WARPS * 32, 0, *s);
    else
        launch_next(c, score_candidates<F, false>, blocks, WARPS * 32, 0, *s);
}

extern "C" lathe_status cuda_pair_scores(void *stream, const struct pair_scores_args *a,
                                         lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t T = a->u.dim[0];
    struct scores s = {
        .A = device_weight_of(a->A),
        .B = device_weight_of(a->B),
        .A_format = a->A->format,
        .y = (float *)a->y.data,
        .u = (const float *)a->u.data,
        .g = (const float *)a->g.data,
        .prev = (const int32_t *)a->prev.data,
        .id = (const int32_t *)a->id.data,
        .y_stride = a->y.stride,
        .u_stride = a->u.stride,
        .g_stride = a->g.stride,
        .prev_stride = a->prev.stride,
        .id_stride = a->id.stride,
        .k = a->u.dim[1],
        .rank = a->A->cols,
    };
    WITH_FORMAT(a->B->format, F, launch<F>(c, &s, T, (unsigned)a->prev.dim[1]));
    return cuda_launched(c, err);
}
