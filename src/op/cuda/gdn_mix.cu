/* Convolution, gated delta rule and gated norm of few rows in one kernel: a block COLS columns of a head's S, of one
 * sequence.
 *
 * S is in registers, and what lies between the operators in shared memory. Rows after the convolution are rounded as
 * activations are, and the rule's steps are those of gated_delta_rule.cu: a fold of recorded rows gives the same
 * bits. The blocks of one k head are a cluster: those of a head exchange parts of a norm, and all of them read the same
 * tail of q and k, which is written when they have. Bound by latency, and by instructions: a row's step of all heads
 * takes a fifth of a microsecond. */
#include "op/cuda/cluster.cuh"
#include "op/cuda/gated_delta_rule.cuh"
#include "op/cuda/pack.cuh"

enum {
    MOST = 128, /* dk and dv */
    COLS = 64,
    STEP_WARPS = COLS / 8,
    THREADS = 2 * MOST + COLS, /* a channel of q, k and v each */
    WARPS = THREADS / 32,
    ROWS = 16,               /* at a time */
    EACH = ROWS / WARPS + 1, /* rows that a warp normalises */
    AT_ONCE = 8,             /* rows that a thread convolves at once */
    TAPS = 4,
    MOST_CLUSTER = 8,
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
    delta_rows<MOST / 16, ROWS, COLS> in; /* q and k first as they are, then normalised */
    float o[ROWS][COLS];
    float2 sums[2][ROWS]; /* of the head's other half, by turn */
    uint64_t arrived;     /* a barrier: they have */
};

/* ---- Clusters -------------------------------------------------------------------------------------- */

/* *p of the cluster's block `rank` becomes x, and its barrier hears of it. */
__device__ __forceinline__ void send(float2 *p, uint64_t *barrier, uint32_t rank, float2 x)
{
#if __CUDA_ARCH__ >= 900
    const uint32_t at = address_in(p, rank), to = address_in(barrier, rank);
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
                 "[%3];" ::"r"(at),
                 "f"(x.x), "f"(x.y), "r"(to)
                 : "memory");
#endif
}
__device__ __forceinline__ void init(uint64_t *barrier)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
#endif
}
/* Of the next phase. */
__device__ __forceinline__ void expect(uint64_t *barrier, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
#endif
}
__device__ __forceinline__ void wait(uint64_t *barrier, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n\t.reg .pred done;\n"
                 "again:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], "
                 "%1;\n\t"
                 "@!done bra again;\n}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
#endif
}

/* ---- Parts ----------------------------------------------------------------------------------------- */

/* For results that are rounded to BF16. */
__device__ __forceinline__ float near_silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

struct inputs {
    bf16 x[AT_ONCE + TAPS - 1];
};

/* A channel's n rows, n cut at AT_ONCE, and the TAPS - 1 before, which are at `before`. */
__device__ __forceinline__ void load_inputs(struct inputs &in, const bf16 *before,
                                            int64_t before_stride, const bf16 *p, int64_t stride,
                                            int32_t n)
{
#pragma unroll
    for (int j = 0; j < TAPS - 1; j++, before += before_stride)
        in.x[j] = *before;
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++, p += stride)
        if (j < n)
            in.x[j + TAPS - 1] = *p;
}

/* The same rows, `stride` apart in `to` and, if not NULL, in `record`. */
__device__ __forceinline__ void convolve(const struct inputs &in, float *to, int32_t stride,
                                         bf16 *record, int64_t record_stride, int32_t n, float4 w)
{
#pragma unroll
    for (int j = 0; j < AT_ONCE; j++) {
        if (j >= n)
            break;
        float sum = w.x * to_float(in.x[j]);
        sum = fmaf(w.y, to_float(in.x[j + 1]), sum);
        sum = fmaf(w.z, to_float(in.x[j + 2]), sum);
        sum = fmaf(w.w, to_float(in.x[j + 3]), sum);
        bf16 y = from_float<bf16>(near_silu(sum));
        if (record) {
            *record = y;
            record += record_stride;
        }
        to[j * stride] = to_float(y);
    }
}

/* 1 / sqrt(mean + eps) of n values from two sums of their squares; y of values times 2^-64, for what F32 does not hold. */
__device__ __forceinline__ float scale_of(float2 sum, int32_t n, float eps)
{
    return is_held(sum.x) ? rms_scale(sum.x, n, eps) : 0x1p-64f / sqrtf(sum.y / (float)n);
}

/* dk and dv are multiples of 4, at most MOST; FULL: both are MOST. blockIdx.x: halves of dv, heads of a k head, y: k heads,
 * z: sequences. */
template <bool FULL> __global__ void __launch_bounds__(THREADS) gdn_mix(mix a)
{
    __shared__ places p;
    int32_t dk = FULL ? MOST : a.dk, dv = FULL ? MOST : a.dv, halves = dv > COLS ? 2 : 1;
    int32_t rank = blockIdx.x, half = rank % halves, k_head = blockIdx.y;
    int32_t head = k_head * (int32_t)(gridDim.x / halves) + rank / halves;
    int32_t i = (int32_t)threadIdx.x, warp = i / 32, lane = i % 32, col = half * COLS;
    int32_t cols = FULL ? (int32_t)COLS : min((int32_t)COLS, dv - col), v = i - 2 * dk;
    int32_t c4 = lane * 4, c2 = lane * 2;
    int32_t channel = v >= 0   ? 2 * a.n_k * dk + head * dv + col + v
                      : i < dk ? k_head * dk + i
                               : (a.n_k + k_head) * dk + i - dk;
    bool has_channel = FULL || v < cols, is_first = v >= 0 || rank == 0;
    float *to = v >= 0 ? &p.in.v[0][v] : i < dk ? &p.in.q[0][i] : &p.in.k[0][i - dk];
    int32_t to_stride = v >= 0 ? COLS : MOST;
    float4 conv = {0, 0, 0, 0};
    float norm[2] = {0, 0};
    if (has_channel)
        conv = *(const float4 *)(a.conv + (int64_t)channel * TAPS);
#pragma unroll
    for (int e = 0; e < 2; e++)
        if (c2 + e < cols)
            norm[e] = a.norm[col + c2 + e];
    if (i == 0)
        init(&p.arrived);
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    arrive_cluster<true>();
    begin_kernel();

    struct batch_seq s = a.seq[blockIdx.z];
    bf16 *tail = a.tail + s.slot * a.tail_stride + channel;
    const bf16 *mixed = a.mixed + s.first_row * a.mixed_stride + channel;
    bf16 *record = a.qkv && is_first ? a.qkv + s.first_row * a.qkv_stride + channel : NULL;
    int32_t at = col + warp * 8 + lane % 2 * 4; /* of the lane's columns of S */
    float *S = a.S + s.slot * a.S_stride + (int64_t)head * dk * dv + at;
    float x[MOST / 16][4];
    bf16 last[TAPS - 1];
    uint32_t turn = 0;
    for (int32_t first = 0; first < s.n_rows; first += ROWS, turn ^= 1) {
        int32_t n = min((int32_t)ROWS, s.n_rows - first);
        const bf16 *in_rows = mixed + first * a.mixed_stride;
        struct inputs in;
        bf16 z[EACH][2];
        float g[EACH], beta[EACH];
        if (has_channel && first == 0)
            load_inputs(in, tail, a.channels, in_rows, a.mixed_stride, n);
        else if (has_channel)
            load_inputs(in, in_rows - (TAPS - 1) * a.mixed_stride, a.mixed_stride, in_rows,
                        a.mixed_stride, n);
        if (a.store && has_channel && is_first && first == 0)
#pragma unroll
            for (int j = 0; j < TAPS - 1; j++) {
                int32_t r = s.n_rows - (TAPS - 1) + j;
                last[j] = r < 0 ? tail[(TAPS - 1 + r) * a.channels] : mixed[r * a.mixed_stride];
            }
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int64_t t = s.first_row + (int64_t)(first + warp + j * WARPS);
            if (warp + j * WARPS >= n)
                continue;
            g[j] = a.g[t * a.g_stride + head];
            beta[j] = a.beta[t * a.beta_stride + head];
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (c2 + e < cols)
                    z[j][e] = a.z[t * a.z_stride + head * dv + col + c2 + e];
        }
        if (first == 0 && warp < STEP_WARPS)
            load_S(x, S, dk, dv, dv - at, true);
        if (has_channel) {
            convolve(in, to, to_stride, record, a.qkv_stride, n, conv);
            if (n > AT_ONCE) {
                in_rows += AT_ONCE * a.mixed_stride;
                load_inputs(in, in_rows - (TAPS - 1) * a.mixed_stride, a.mixed_stride, in_rows,
                            a.mixed_stride, n - AT_ONCE);
                convolve(in, to + AT_ONCE * to_stride, to_stride,
                         record ? record + AT_ONCE * a.qkv_stride : NULL, a.qkv_stride, n - AT_ONCE,
                         conv);
            }
            if (record)
                record += ROWS * a.qkv_stride;
        }
        __syncthreads();
        if (first > 0) { /* all have received the last sums */
            wait_cluster();
            arrive_cluster<false>();
        }
        wait_cluster(); /* at first: the barriers of all are initialised */
        arrive_cluster<false>();
        if (halves > 1 && i == 0)
            expect(&p.arrived, (uint32_t)(n * sizeof p.sums[0][0]));
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int r = warp + j * WARPS;
            float4 none = {0, 0, 0, 0}, q[1] = {none}, k[1] = {none};
            if (r >= n)
                continue;
            if (c4 < dk) {
                q[0] = *(const float4 *)&p.in.q[r][c4];
                k[0] = *(const float4 *)&p.in.k[r][c4];
            }
            put_row(&p.in, r, true, q, k, dk, g[j], beta[j]);
        }
        __syncthreads();
        if (warp < STEP_WARPS)
            step_rows(&p.in, x, n, warp, &p.o[0][0], COLS, cols);
        __syncthreads();
        float2 o[EACH], sum[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int r = warp + j * WARPS;
            if (r >= n)
                continue;
            o[j] = c2 < cols ? *(const float2 *)&p.o[r][c2] : make_float2(0, 0);
            float2 low = {o[j].x * 0x1p-64f, o[j].y * 0x1p-64f};
            sum[j].x = warp_sum(fmaf(o[j].x, o[j].x, o[j].y * o[j].y));
            sum[j].y = warp_sum(fmaf(low.x, low.x, low.y * low.y));
            if (halves > 1 && lane == 0)
                send(&p.sums[turn][r], &p.arrived, (uint32_t)(rank ^ 1), sum[j]);
        }
        if (first + ROWS >= s.n_rows && a.store && warp < STEP_WARPS)
            store_S(x, S, dk, dv, dv - at, true);
        if (halves > 1)
            wait(&p.arrived, turn);
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int r = warp + j * WARPS;
            if (r >= n)
                continue;
            if (halves > 1) {
                float2 other = p.sums[turn][r];
                sum[j].x += other.x;
                sum[j].y += other.y;
            }
            float scale = scale_of(sum[j], dv, a.eps);
            int64_t t = s.first_row + (int64_t)(first + r);
            bf16 *y = a.y + t * a.y_stride + head * dv + col + c2;
            if (c2 < cols)
                y[0] = from_float<bf16>(o[j].x * scale * norm[0] * near_silu(to_float(z[j][0])));
            if (c2 + 1 < cols)
                y[1] = from_float<bf16>(o[j].y * scale * norm[1] * near_silu(to_float(z[j][1])));
        }
    }
    wait_cluster(); /* all have read the tail */
    if (a.store && has_channel && is_first)
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            tail[j * a.channels] = last[j];
}

extern "C" bool cuda_gdn_mix(void *stream, const struct gdn_mix_args *a)
{
    struct gpu *c = cuda_of(stream);
    const struct gdn_heads *h = &a->heads;
    const struct gdn_projected *in = a->in;
    int32_t cluster = h->n_v_heads / h->n_k_heads * ((h->dv + COLS - 1) / COLS);
    struct cuda_batch b;
    lathe_error err;
    if (c->sm < 90 || a->b->phase == PHASE_PREFILL || in->mixed.dtype != DT_BF16 || h->dk > MOST ||
        h->dv > MOST || h->dk % 4 || h->dv % 4 || cluster > MOST_CLUSTER ||
        a->conv.dim[1] != TAPS || a->conv.stride != TAPS || !is_wide(a->conv.data) ||
        !is_wide(a->norm.data) || !is_wide(a->S.data) || a->S.stride % 4)
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
    launch_clusters(
        c, (unsigned)cluster, h->dk == MOST && h->dv == MOST ? gdn_mix<true> : gdn_mix<false>,
        dim3((unsigned)cluster, (unsigned)h->n_k_heads, (unsigned)b.n_seqs), THREADS, 0, m);
    return true;
}
