/* Attention over pages of keys and values. A row's keys are cut into splits at fixed absolute positions;
 * each split gives a maximum, a sum of weights and a weighted sum of values, in scratch, and another
 * launch adds the splits of a row in ascending order. */
#include "op/cuda/cuda.cuh"

enum {
    SCRATCH_BYTES = 48 << 20, /* rows are worked on in groups whose splits fit, but at least one */
    THREADS = 128,
    TILE = 16, /* keys whose scores are taken together */
    HEADS = 8, /* query heads of a block */
};

struct attention {
    const void *q, *k, *v;
    float *o;
    int64_t q_stride, o_stride, k_stride, v_stride; /* elements; of k and v: from page to page */
    const int32_t *page_table, *slot, *pos;
    int32_t pages_per_slot, page, n_kv, group, hd;
    float scale;
    float2 *part;      /* [rows, heads, n_splits]: maximum and sum of weights */
    float *part_o;     /* [rows, heads, n_splits, hd] */
    int32_t n_splits;  /* room for so many */
    int32_t first_row; /* of the group that is worked on */
};

/* ---- Splits: short ones first, so that a short context has enough of them, then longer ones ----- */

struct split_range {
    int32_t from, to; /* positions */
};

static __host__ __device__ __forceinline__ struct split_range split_at(int32_t i)
{
    struct split_range r;
    if (i < 32)
        r.from = i * 128, r.to = r.from + 128;
    else if (i < 80)
        r.from = 4096 + (i - 32) * 256, r.to = r.from + 256;
    else if (i < 128)
        r.from = 16384 + (i - 80) * 1024, r.to = r.from + 1024;
    else
        r.from = 65536 + (i - 128) * 2048, r.to = r.from + 2048;
    return r;
}

/* Splits of n positions. */
static __host__ __device__ __forceinline__ int32_t splits_of(int64_t n)
{
    if (n <= 4096)
        return (int32_t)((n + 127) / 128);
    if (n <= 16384)
        return (int32_t)(32 + (n - 4096 + 255) / 256);
    if (n <= 65536)
        return (int32_t)(80 + (n - 16384 + 1023) / 1024);
    return (int32_t)(128 + (n - 65536 + 2047) / 2048);
}

/* e^(x - max), where a maximum of -infinity (nothing but such scores so far) counts as 0. */
__device__ __forceinline__ float weight(float x, float max)
{
    return expf(x - (max == -INFINITY ? 0.0f : max));
}

/* Elements from a plane's first to position s of a slot, kv head 0. */
__device__ __forceinline__ int64_t kv_at(const struct attention &a, const int32_t *table,
                                         int64_t stride, int32_t s)
{
    return table[s / a.page] * stride + (int64_t)(s % a.page) * a.n_kv * a.hd;
}

/* ---- Any dtypes, any sizes: a row and up to HEADS query heads of a kv head, one split ------------ */

template <typename Q, typename K>
__global__ void __launch_bounds__(THREADS) attention_split(struct attention a)
{
    extern __shared__ float shared[];
    __shared__ float p[TILE][HEADS], factor[HEADS];
    int chunks = (a.group + HEADS - 1) / HEADS, chunk = blockIdx.x % chunks;
    int kv_head = blockIdx.x / chunks % a.n_kv;
    int64_t r = blockIdx.x / chunks / a.n_kv, t = a.first_row + r;
    int n_heads = min(HEADS, a.group - chunk * HEADS), tid = threadIdx.x;
    int first_head = kv_head * a.group + chunk * HEADS;
    int32_t split = blockIdx.y, pos = a.pos[t];
    struct split_range range = split_at(split);
    if (range.from > pos)
        return;
    int32_t end = min(range.to, pos + 1);
    const int32_t *table = a.page_table + (int64_t)a.slot[t] * a.pages_per_slot;
    const K *keys = (const K *)a.k + (int64_t)kv_head * a.hd;
    const K *values = (const K *)a.v + (int64_t)kv_head * a.hd;
    float *q = shared, *key = shared + HEADS * a.hd; /* [HEADS, hd], [TILE, hd + 1] */

    for (int i = tid; i < n_heads * a.hd; i += THREADS)
        q[i] = to_float(((const Q *)a.q)[t * a.q_stride + (int64_t)first_head * a.hd + i]);

    int my_head = tid / TILE, my_key = tid % TILE;
    float max = -INFINITY, sum = 0; /* of my_head */
    float acc[OP_MAX_HEAD / THREADS][HEADS];
#pragma unroll
    for (int j = 0; j < OP_MAX_HEAD / THREADS; j++)
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            acc[j][h] = 0;

    for (int32_t s = range.from; s < end; s += TILE) {
        int n = min(TILE, end - s);
        __syncthreads(); /* key and p may be read still */
        for (int i = 0; i < n; i++) {
            const K *from = keys + kv_at(a, table, a.k_stride, s + i);
            for (int d = tid; d < a.hd; d += THREADS)
                key[i * (a.hd + 1) + d] = to_float(from[d]);
        }
        __syncthreads();
        float score = -INFINITY;
        if (my_head < n_heads && my_key < n) {
            const float *x = q + my_head * a.hd, *y = key + my_key * (a.hd + 1);
            float part[4] = {0, 0, 0, 0};
            int d = 0;
            for (; d + 4 <= a.hd; d += 4)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    part[i] = fmaf(x[d + i], y[d + i], part[i]);
            for (; d < a.hd; d++)
                part[0] = fmaf(x[d], y[d], part[0]);
            score = ((part[0] + part[1]) + (part[2] + part[3])) * a.scale;
        }
        float top = fmaxf(max, score);
#pragma unroll
        for (int i = TILE / 2; i > 0; i >>= 1)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
        float w = my_key < n ? weight(score, top) : 0.0f, old = weight(max, top), all = w;
#pragma unroll
        for (int i = TILE / 2; i > 0; i >>= 1)
            all += __shfl_xor_sync(0xffffffffu, all, i);
        max = top;
        sum = fmaf(sum, old, all);
        p[my_key][my_head] = w;
        if (my_key == 0)
            factor[my_head] = old;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < OP_MAX_HEAD / THREADS; j++) {
            int d = j * THREADS + tid;
            if (d >= a.hd)
                continue;
            float part[HEADS];
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                part[h] = 0;
            for (int i = 0; i < n; i++) {
                float v = to_float(values[kv_at(a, table, a.v_stride, s + i) + d]);
#pragma unroll
                for (int h = 0; h < HEADS; h++)
                    part[h] = fmaf(p[i][h], v, part[h]);
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++)
                acc[j][h] = fmaf(acc[j][h], factor[h], part[h]);
        }
    }
    int64_t heads = (int64_t)a.n_kv * a.group, at = (r * heads + first_head) * a.n_splits + split;
    if (my_key == 0 && my_head < n_heads)
        a.part[at + (int64_t)my_head * a.n_splits] = make_float2(max, sum);
#pragma unroll
    for (int j = 0; j < OP_MAX_HEAD / THREADS; j++)
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < n_heads && j * THREADS + tid < a.hd)
                a.part_o[(at + (int64_t)h * a.n_splits) * a.hd + j * THREADS + tid] = acc[j][h];
}

/* ---- All splits of a row and head, in ascending order -------------------------------------------- */

enum { WEIGHTS = 256 }; /* splits whose weights are taken together */

__global__ void __launch_bounds__(THREADS) attention_merge(struct attention a)
{
    __shared__ float w[WEIGHTS], warp_top[THREADS / 32];
    int64_t heads = (int64_t)a.n_kv * a.group, i = blockIdx.x, t = a.first_row + i / heads;
    int32_t n = splits_of((int64_t)a.pos[t] + 1);
    const float2 *part = a.part + i * a.n_splits;
    const float *part_o = a.part_o + i * a.n_splits * a.hd;
    int tid = threadIdx.x;
    float top = -INFINITY, sum = 0, acc[OP_MAX_HEAD / THREADS] = {0};
    for (int32_t s = tid; s < n; s += THREADS)
        top = fmaxf(top, part[s].x);
    top = warp_max(top);
    if (tid % 32 == 0)
        warp_top[tid / 32] = top;
    __syncthreads();
    for (int k = 0; k < THREADS / 32; k++)
        top = fmaxf(top, warp_top[k]);
    for (int32_t first = 0; first < n; first += WEIGHTS) {
        int m = min(WEIGHTS, n - first);
        __syncthreads();
        for (int s = tid; s < m; s += THREADS)
            w[s] = weight(part[first + s].x, top);
        __syncthreads();
        for (int s = 0; s < m; s++)
            sum = fmaf(part[first + s].y, w[s], sum);
#pragma unroll
        for (int j = 0; j < OP_MAX_HEAD / THREADS; j++) {
            int d = j * THREADS + tid;
            if (d < a.hd)
#pragma unroll 8
                for (int s = 0; s < m; s++)
                    acc[j] = fmaf(part_o[(int64_t)(first + s) * a.hd + d], w[s], acc[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < OP_MAX_HEAD / THREADS; j++)
        if (j * THREADS + tid < a.hd)
            a.o[t * a.o_stride + (i % heads) * a.hd + j * THREADS + tid] = acc[j] / sum;
}

/* ---- Host ---------------------------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* Rows of a group, the splits there is room for, and the scratch that takes. */
static int64_t plan(const struct attention_args *a, int32_t *n_splits, size_t *bytes)
{
    int64_t heads = a->q.dim[1] / a->kv->k.dim[3], T = a->q.dim[0];
    *n_splits = splits_of((int64_t)a->kv->pages_per_slot * a->kv->k.dim[1]);
    int64_t parts = heads * *n_splits; /* of a row */
    int64_t row = parts * (a->kv->k.dim[3] * 4 + 8), rows = SCRATCH_BYTES / row;
    rows = rows < 1 ? 1 : rows > T ? T : rows;
    *bytes = whole_lines((size_t)(rows * parts * 8)) + (size_t)(rows * parts * a->kv->k.dim[3] * 4);
    return rows;
}

extern "C" size_t cuda_attention_scratch(const void *stream, const struct attention_args *a)
{
    (void)stream;
    int32_t n_splits;
    size_t bytes;
    plan(a, &n_splits, &bytes);
    return bytes;
}

template <typename Q, typename K>
static void launch_split(cudaStream_t stream, const struct attention *a, int64_t rows,
                         int32_t splits)
{
    size_t shared = (size_t)(HEADS * a->hd + TILE * (a->hd + 1)) * sizeof(float);
    int64_t blocks = rows * a->n_kv * ((a->group + HEADS - 1) / HEADS);
    (void)cudaFuncSetAttribute(attention_split<Q, K>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared);
    attention_split<Q, K>
        <<<dim3((unsigned)blocks, (unsigned)splits), THREADS, shared, stream>>>(*a);
}

extern "C" lathe_status cuda_attention(void *stream, const struct attention_args *a,
                                       lathe_error *err)
{
    struct cuda *c = cuda_of(stream);
    struct cuda_batch b;
    struct attention v = {};
    size_t need;
    int64_t rows = plan(a, &v.n_splits, &need), T = a->q.dim[0];
    if ((size_t)tensor_elements(&a->scratch) < need)
        return fail(err, LATHE_E_ARGUMENT, "scratch of %lld bytes, expected %zu",
                    (long long)tensor_elements(&a->scratch), need);
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    v.q = a->q.data;
    v.k = a->kv->k.data;
    v.v = a->kv->v.data;
    v.o = (float *)a->o.data;
    v.q_stride = a->q.stride;
    v.o_stride = a->o.stride;
    v.k_stride = a->kv->k.stride;
    v.v_stride = a->kv->v.stride;
    v.page_table = a->kv->page_table;
    v.slot = b.slot;
    v.pos = b.pos;
    v.pages_per_slot = a->kv->pages_per_slot;
    v.page = (int32_t)a->kv->k.dim[1];
    v.n_kv = (int32_t)a->kv->k.dim[2];
    v.hd = (int32_t)a->kv->k.dim[3];
    v.group = (int32_t)(a->q.dim[1] / v.hd / v.n_kv);
    v.scale = a->scale;
    int64_t heads = (int64_t)v.n_kv * v.group;
    v.part = (float2 *)a->scratch.data;
    v.part_o = (float *)(void *)((unsigned char *)a->scratch.data +
                                 whole_lines((size_t)(rows * heads * v.n_splits * 8)));
    for (int64_t first = 0; first < T; first += rows) {
        int64_t n = T - first < rows ? T - first : rows;
        int32_t last = 0;
        for (int64_t t = first; t < first + n; t++)
            last = a->b->pos[t] > last ? a->b->pos[t] : last;
        int32_t splits = splits_of((int64_t)last + 1);
        v.first_row = (int32_t)first;
        WITH_ACT(a->q.dtype, Q,
                 WITH_ACT(a->kv->k.dtype, K, launch_split<Q, K>(c->stream, &v, n, splits)));
        attention_merge<<<(unsigned)(n * heads), THREADS, 0, c->stream>>>(v);
    }
    return cuda_launched(c, err);
}
