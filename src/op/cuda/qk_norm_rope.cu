/* Per head: the norm, then the rotation of its leading dims. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

enum {
    WARPS = 8,
    PACKS = OP_MAX_HEAD / PACK / 32, /* of a lane, at most */
};

/* struct rope, whose arrays are the host's. */
struct rotation {
    float inv_freq[OP_MAX_HEAD / 2];
    uint8_t axis[OP_MAX_HEAD / 2];
    float scale;
    int32_t half;
};

struct heads {
    void *q, *k;
    const void *qg;
    int64_t q_stride, k_stride, qg_stride; /* elements */
    const float *q_norm, *k_norm;
    int32_t n_q, n_k, head_dim, apart; /* apart: from one query head to the next in qg */
    float eps;
    const int32_t (*pos)[3];
};

/* A warp a head, a block up to WARPS heads of one row: sines and cosines are computed once for all of them.
 * N packs a lane. Bound by the latency of its reads; angles beyond 10^5 take sincosf's long way. */
template <typename T, int N>
static __global__ void __launch_bounds__(WARPS * 32)
    norm_rope(struct heads a, const __grid_constant__ struct rotation rope)
{
    begin_kernel();
    __shared__ float cosine[OP_MAX_HEAD / 2], sine[OP_MAX_HEAD / 2];
    __shared__ float rotary[WARPS][OP_MAX_HEAD]; /* normalised */
    int64_t t = blockIdx.x, d = a.head_dim;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int head = blockIdx.y * WARPS + warp, half = rope.half;
    bool is_q = head < a.n_q, is_head = head < a.n_q + a.n_k;
    int64_t at = is_q ? head : head - a.n_q;
    T *to = is_q ? (T *)a.q + t * a.q_stride + at * d : (T *)a.k + t * a.k_stride + at * d;
    const T *from = is_q ? (const T *)a.qg + t * a.qg_stride + at * a.apart : (const T *)to;
    const float *w = is_q ? a.q_norm : a.k_norm;
    bool to_wide = is_wide(to), from_wide = is_wide(from), w_wide = is_wide(w);
    float x[N][PACK];
    pack<T, PACK> v[N];
    pack<float, PACK> weight[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (lane + 32 * j) * PACK, left = is_head ? d - c : 0;
        v[j] = load_pack<PACK>(from + c, left, from_wide);
        weight[j] = load_pack<PACK>(w + c, left, w_wide);
    }
    for (int i = threadIdx.x; i < half; i += WARPS * 32) {
        float s, c, angle = (float)a.pos[t][rope.axis[i]] * rope.inv_freq[i];
        sincosf(angle, &s, &c);
        cosine[i] = c * rope.scale;
        sine[i] = s * rope.scale;
    }
    if (is_head) {
        float scale = rms_scale_of<false>(v, d, a.eps);
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                int c = (lane + 32 * j) * PACK + i;
                x[j][i] = v[j][i] * scale * weight[j][i];
                if (c < 2 * half)
                    rotary[warp][c] = x[j][i];
            }
    }
    __syncthreads();
    if (!is_head)
        return;
#pragma unroll
    for (int j = 0; j < N; j++) {
        int first = (lane + 32 * j) * PACK;
        if (first < 2 * half) {
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                int c = first + i;
                if (c < half)
                    x[j][i] = x[j][i] * cosine[c] - rotary[warp][c + half] * sine[c];
                else if (c < 2 * half)
                    x[j][i] = x[j][i] * cosine[c - half] + rotary[warp][c - half] * sine[c - half];
            }
        }
        store_pack<PACK>(to + first, x[j], d - first, to_wide);
    }
}

extern "C" lathe_status cuda_qk_norm_rope(void *stream, const struct qk_norm_rope_args *a,
                                          lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    const struct rope *rope = a->rope;
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct rotation r;
    memset(&r, 0, sizeof r);
    r.half = rope->dims / 2;
    r.scale = rope->scale;
    for (int32_t i = 0; i < r.half; i++) {
        r.inv_freq[i] = rope->inv_freq[i];
        r.axis[i] = rope->axis[i];
    }
    int64_t d = a->head_dim, n_q = a->q.dim[1] / d, n_k = a->k.dim[1] / d;
    struct heads h = {
        .q = a->q.data,
        .k = a->k.data,
        .qg = a->qg.data,
        .q_stride = a->q.stride,
        .k_stride = a->k.stride,
        .qg_stride = a->qg.stride,
        .q_norm = (const float *)a->q_norm.data,
        .k_norm = (const float *)a->k_norm.data,
        .n_q = (int32_t)n_q,
        .n_k = (int32_t)n_k,
        .head_dim = a->head_dim,
        .apart = n_q ? (int32_t)(a->qg.dim[1] / n_q) : 0,
        .eps = a->eps,
        .pos = b.rope_pos,
    };
    dim3 blocks((unsigned)a->q.dim[0], (unsigned)cuda_blocks(n_q + n_k, WARPS));
    WITH_ACT(a->q.dtype, T, {
        if (d <= 32 * PACK)
            launch_next(c, norm_rope<T, 1>, blocks, WARPS * 32, 0, h, r);
        else
            launch_next(c, norm_rope<T, PACKS>, blocks, WARPS * 32, 0, h, r);
    });
    return cuda_launched(c, err);
}
