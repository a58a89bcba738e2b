/* Convolution, gated delta rule and gated norm of few rows in one kernel: a block a head of a sequence.
 *
 * S is in registers, and what lies between the operators in shared memory. Rows after the convolution are rounded as
 * activations are, and the rule's steps are those of gated_delta_rule.cu: a fold of recorded rows gives the same
 * bits. The v heads of one k head are a cluster, since they read the same tail of q and k, which is written when all have
 * read it. Bound by latency: of two loads, and of the rows' chain. */
#include "op/cuda/gated_delta_rule.cuh"
#include "op/cuda/pack.cuh"

enum {
    WARPS = 16, /* of eight columns of S */
    THREADS = 32 * WARPS,
    MOST = 8 * WARPS, /* dk and dv */
    ROWS = 16,        /* at a time */
    AT_ONCE = 8,      /* of which a thread convolves */
    TAPS = 4,
    MOST_GROUP = 8, /* v heads of a k head */
};

struct mix {
    const bf16 *mixed, *z;
    bf16 *qkv, *y, *tail; /* qkv NULL: not recorded */
    const float *g, *beta, *conv, *norm;
    float *S;
    int64_t mixed_stride, z_stride, qkv_stride, y_stride, g_stride, beta_stride, tail_stride,
        S_stride;
    const struct batch_seq *seq;
    int32_t n_k, n_v, dk, dv, channels;
    float eps;
    bool store; /* S and the tail are advanced */
};

struct places {
    delta_rows<MOST / 16, ROWS, MOST> in;
    float qk[ROWS][2 * MOST], o[ROWS][MOST];
};

__device__ __forceinline__ void sync_cluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#endif
}

/* Input r of a sequence at channel c, of its tail where r is negative. */
__device__ __forceinline__ const bf16 *input_at(const mix &a, const struct batch_seq &s, int32_t r,
                                                int32_t c)
{
    return r < 0 ? a.tail + s.slot * a.tail_stride + (int64_t)(TAPS - 1 + r) * a.channels + c
                 : a.mixed + (s.first_row + (int64_t)r) * a.mixed_stride + c;
}

/* Rows [first, first + n) of channel c, which is number i of the head's q, k and v. */
__device__ __forceinline__ void convolve(const mix &a, const struct batch_seq &s, places *to,
                                         int32_t i, int32_t c, int32_t first, int32_t n, float4 w,
                                         bool record)
{
    const float tap[TAPS] = {w.x, w.y, w.z, w.w};
    for (int32_t r0 = 0; r0 < n; r0 += AT_ONCE) {
        float x[AT_ONCE + TAPS - 1];
#pragma unroll
        for (int j = 0; j < AT_ONCE + TAPS - 1; j++)
            x[j] = j < n - r0 + TAPS - 1 ? to_float(*input_at(a, s, first + r0 + j - (TAPS - 1), c))
                                         : 0.0f;
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (r0 + j >= n)
                break;
            float sum = tap[0] * x[j];
#pragma unroll
            for (int k = 1; k < TAPS; k++)
                sum = fmaf(tap[k], x[j + k], sum);
            bf16 y = from_float<bf16>(silu(sum));
            if (record)
                a.qkv[(s.first_row + (int64_t)(first + r0 + j)) * a.qkv_stride + c] = y;
            if (i < 2 * a.dk)
                to->qk[r0 + j][i] = to_float(y);
            else
                to->in.v[r0 + j][i - 2 * a.dk] = to_float(y);
        }
    }
}

/* By a warp: a row of the head. */
__device__ __forceinline__ void put_gated(const mix &a, const float *o, int64_t t, int32_t head,
                                          const float (&z)[4], float4 w)
{
    int c = threadIdx.x % 32 * 4;
    pack<float, 4> v[1] = {load_pack<4>(o + c, a.dv - c, true)};
    float scale = rms_scale_of<false>(v, a.dv, a.eps);
    if (c >= a.dv)
        return;
    bf16 *y = a.y + t * a.y_stride + (int64_t)head * a.dv + c;
    y[0] = from_float<bf16>(v[0][0] * scale * w.x * silu(z[0]));
    y[1] = from_float<bf16>(v[0][1] * scale * w.y * silu(z[1]));
    y[2] = from_float<bf16>(v[0][2] * scale * w.z * silu(z[2]));
    y[3] = from_float<bf16>(v[0][3] * scale * w.w * silu(z[3]));
}

/* dk and dv are multiples of 4, at most MOST. */
__global__ void __launch_bounds__(THREADS, 1) gdn_mix(mix a)
{
    extern __shared__ __align__(16) unsigned char room[];
    places *p = (places *)room;
    int32_t head = blockIdx.x % a.n_v, group = a.n_v / a.n_k, k_head = head / group;
    int32_t i = (int32_t)threadIdx.x, warp = i / 32, lane = i % 32, c4 = lane * 4;
    int32_t channel = i < a.dk       ? k_head * a.dk + i
                      : i < 2 * a.dk ? (a.n_k + k_head) * a.dk + i - a.dk
                                     : 2 * a.n_k * a.dk + head * a.dv + i - 2 * a.dk;
    bool has_channel = i < 2 * a.dk + a.dv, is_first = i >= 2 * a.dk || head % group == 0;
    float4 conv = {0, 0, 0, 0}, norm = {0, 0, 0, 0};
    if (has_channel)
        conv = *(const float4 *)(a.conv + (int64_t)channel * TAPS);
    if (c4 < a.dv)
        norm = *(const float4 *)(a.norm + c4);
    begin_kernel();

    struct batch_seq s = a.seq[blockIdx.x / a.n_v];
    int32_t at = warp * 8 + lane % 2 * 4; /* of the lane's columns of S */
    float *S = a.S + s.slot * a.S_stride + (int64_t)head * a.dk * a.dv + at;
    float x[MOST / 16][4];
    load_S(x, S, a.dk, a.dv, a.dv - at, true);
    for (int32_t first = 0; first < s.n_rows; first += ROWS) {
        int32_t n = min((int32_t)ROWS, s.n_rows - first);
        int64_t t = s.first_row + (int64_t)(first + warp);
        float z[4] = {0, 0, 0, 0}, g = 0, beta = 0;
        if (warp < n) {
            g = a.g[t * a.g_stride + head];
            beta = a.beta[t * a.beta_stride + head];
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (c4 < a.dv)
                    z[j] = to_float(a.z[t * a.z_stride + (int64_t)head * a.dv + c4 + j]);
        }
        if (has_channel)
            convolve(a, s, p, i, channel, first, n, conv, a.qkv && is_first);
        __syncthreads();
        if (warp < n) {
            float4 none = {0, 0, 0, 0}, q[1] = {none}, k[1] = {none};
            if (c4 < a.dk) {
                q[0] = *(const float4 *)&p->qk[warp][c4];
                k[0] = *(const float4 *)&p->qk[warp][a.dk + c4];
            }
            put_row(&p->in, warp, true, q, k, a.dk, g, beta);
        }
        __syncthreads();
        step_rows(&p->in, x, n, warp, &p->o[0][0], MOST, a.dv);
        __syncthreads();
        if (warp < n)
            put_gated(a, p->o[warp], t, head, z, norm);
    }
    if (!a.store)
        return;
    float last[TAPS - 1];
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        last[j] = has_channel && is_first
                      ? to_float(*input_at(a, s, s.n_rows - (TAPS - 1) + j, channel))
                      : 0.0f;
    sync_cluster();
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++)
        if (has_channel && is_first)
            a.tail[s.slot * a.tail_stride + (int64_t)j * a.channels + channel] =
                from_float<bf16>(last[j]);
    store_S(x, S, a.dk, a.dv, a.dv - at, true);
}

extern "C" bool cuda_gdn_mix(void *stream, const struct gdn_mix_args *a)
{
    struct gpu *c = cuda_of(stream);
    const struct gdn_heads *h = &a->heads;
    const struct gdn_projected *in = a->in;
    int32_t group = h->n_v_heads / h->n_k_heads;
    struct cuda_batch b;
    lathe_error err;
    if (c->sm < 90 || a->b->phase == PHASE_PREFILL || in->mixed.dtype != DT_BF16 || h->dk > MOST ||
        h->dv > MOST || h->dk % 4 || h->dv % 4 || 2 * h->dk + h->dv > THREADS ||
        group > MOST_GROUP || a->conv.dim[1] != TAPS || a->conv.stride != TAPS ||
        !is_wide(a->conv.data) || !is_wide(a->norm.data) || !is_wide(a->S.data) || a->S.stride % 4)
        return false;
    if (cuda_batch(c, a->b, &b, &err))
        return false; /* the parts report it */
    bool store = b.phase == PHASE_DECODE;
    mix m = {
        .mixed = (const bf16 *)in->mixed.data,
        .z = (const bf16 *)in->z.data,
        .qkv = store ? NULL : (bf16 *)a->qkv.data,
        .y = (bf16 *)a->y.data,
        .tail = (bf16 *)a->tail.data,
        .g = (const float *)in->g.data,
        .beta = (const float *)in->beta.data,
        .conv = (const float *)a->conv.data,
        .norm = (const float *)a->norm.data,
        .S = (float *)a->S.data,
        .mixed_stride = in->mixed.stride,
        .z_stride = in->z.stride,
        .qkv_stride = a->qkv.stride,
        .y_stride = a->y.stride,
        .g_stride = in->g.stride,
        .beta_stride = in->beta.stride,
        .tail_stride = a->tail.stride,
        .S_stride = a->S.stride,
        .seq = b.seq,
        .n_k = h->n_k_heads,
        .n_v = h->n_v_heads,
        .dk = h->dk,
        .dv = h->dv,
        .channels = (int32_t)in->mixed.dim[1],
        .eps = a->eps,
        .store = store,
    };
    (void)cudaFuncSetAttribute(gdn_mix, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)sizeof(places));
    launch_clusters(c, (unsigned)group, gdn_mix, (unsigned)(b.n_seqs * h->n_v_heads), THREADS,
                    sizeof(places), m);
    return true;
}
