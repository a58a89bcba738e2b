/* The k best of each row, in two steps: the k best of every chunk of columns, and of those the k best. Both
 * find a bound first: the k-th largest of one value a thread, below which nothing can be among the k best;
 * what reaches the bound is listed, at most k times what a thread holds, and sorted.
 *
 * A value and its column are one number, which no other pair shares and which orders them as the contract
 * does; 0 is none. So the order in which a list was filled does not show. */
#include "op/cuda/cuda.cuh"
#include "op/cuda/pack.cuh"

typedef unsigned long long key; /* the type that shuffles know */

enum {
    THREADS = 256,
    HELD = 16, /* columns of a thread */
    CHUNK = THREADS * HELD,
    MERGE_THREADS = 1024, /* for many candidates; else THREADS */
    LIST = 4096,
    MOST = THREADS, /* k beyond which columns are searched k times */
};

struct top_k {
    const float *logits;
    float *value;
    int32_t *id;
    int64_t logits_stride, value_stride, id_stride, n;
    struct few range; /* begin and end of each */
    int32_t n_ranges;
    int32_t k;
    int64_t first_chunk, n_chunks;
    key *best; /* [T, n_chunks, k] */
};

__device__ __forceinline__ key key_of(float x, int64_t column)
{
    uint32_t u = x != x ? 0x7FC00000u : __float_as_uint(x == 0 ? 0.0f : x); /* -0 equals 0 */
    u ^= u >> 31 ? 0xFFFFFFFFu : 0x80000000u;
    return (key)u << 32 | ~(uint32_t)column;
}
__device__ __forceinline__ bool is_candidate(float x)
{
    return x != __int_as_float(0xFF800000);
}
/* Larger, NaN being larger than all numbers. */
__device__ __forceinline__ bool is_above(float x, float y)
{
    return !(x <= y) && y == y;
}

/* The largest of all threads' keys. */
static __device__ key block_max(key x)
{
    __shared__ key part[32];
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        key y = __shfl_xor_sync(0xffffffffu, x, i);
        x = y > x ? y : x;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned i = 0; i < blockDim.x / 32; i++)
        x = part[i] > x ? part[i] : x;
    return x;
}

/* Sorts n keys, a power of two, largest first. Up to a step of 32 the pairs of a warp stay among its own 64
 * keys. */
static __device__ void sort_keys(key *a, int n)
{
    int before = 1;
    __syncthreads();
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            if (step > 32 || before > 32)
                __syncthreads();
            else
                __syncwarp();
            before = step;
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                int lo = 2 * i - (i & (step - 1)), hi = lo + step;
                key x = a[lo], y = a[hi];
                if ((x < y) == ((lo & size) == 0)) {
                    a[lo] = y;
                    a[hi] = x;
                }
            }
        }
    __syncthreads();
}

/* The k-th largest of all threads' keys; 1 if that is none. Uses blockDim.x of list. */
static __device__ key bound_of(key mine, int k, key *list)
{
    if (k == 1)
        mine = block_max(mine);
    else {
        list[threadIdx.x] = mine;
        sort_keys(list, blockDim.x);
        mine = list[k - 1];
        __syncthreads();
    }
    return mine ? mine : 1;
}

/* Sorts the n keys of a list; what is behind them up to a power of two becomes none. */
static __device__ void sort_list(key *list, int n)
{
    int whole = 1;
    while (whole < n)
        whole *= 2;
    for (int i = n + threadIdx.x; i < whole; i += blockDim.x)
        list[i] = 0;
    sort_keys(list, whole);
}

/* Column i of HELD of a thread whose first is `first`: four by four, a block's threads side by side. */
__device__ __forceinline__ int64_t held(int64_t first, int i)
{
    return first + i / 4 * (THREADS * 4) + i % 4;
}

/* Bit i: is the thread's column i in a range? */
__device__ __forceinline__ uint32_t in_ranges(const struct top_k &a, int64_t chunk, int64_t first)
{
    uint32_t in = 0;
    for (int32_t r = 0; r < a.n_ranges; r++) {
        int64_t begin = few_at(a.range, 2 * r), end = few_at(a.range, 2 * r + 1);
        if (end <= chunk || begin >= chunk + CHUNK)
            continue;
        if (begin <= chunk && end >= chunk + CHUNK)
            return ~0u;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            int64_t c = held(first, i);
            in |= (uint32_t)(c >= begin && c < end) << i;
        }
    }
    return in;
}

/* A block a row and chunk: 16 KB read once. */
static __global__ void __launch_bounds__(THREADS)
    best_of_chunk(const __grid_constant__ struct top_k a)
{
    begin_kernel();
    __shared__ key list[LIST];
    __shared__ int n_listed;
    int64_t t = blockIdx.x / a.n_chunks, i_chunk = blockIdx.x % a.n_chunks;
    int64_t chunk = (a.first_chunk + i_chunk) * CHUNK, first = chunk + threadIdx.x * 4;
    const float *row = a.logits + t * a.logits_stride;
    bool wide = is_wide(row);
    pack<float, 4> x[HELD / 4];
#pragma unroll
    for (int j = 0; j < HELD / 4; j++) {
        int64_t c = held(first, 4 * j);
        x[j] = load_pack<4>(row + c, a.n - c, wide);
    }
    if (threadIdx.x == 0)
        n_listed = 0;
    uint32_t in = in_ranges(a, chunk, first);
    float top = __int_as_float(0xFF800000);
    int at = -1;
#pragma unroll
    for (int i = 0; i < HELD; i++)
        if (in >> i & 1 && is_above(x[i / 4][i % 4], top)) {
            top = x[i / 4][i % 4];
            at = i;
        }
    key mine = at < 0 ? 0 : key_of(top, held(first, at));
    key bound = bound_of(mine, a.k, list);
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        float v = x[i / 4][i % 4];
        key y = key_of(v, held(first, i));
        if (in >> i & 1 && is_candidate(v) && y >= bound)
            list[atomicAdd(&n_listed, 1)] = y;
    }
    __syncthreads();
    int n = n_listed;
    if (n > a.k)
        sort_list(list, n);
    key *best = a.best + blockIdx.x * (int64_t)a.k;
    for (int i = threadIdx.x; i < a.k; i += THREADS)
        best[i] = i < n ? list[i] : 0;
}

__device__ __forceinline__ void put_best(const struct top_k &a, int64_t t, int64_t i, key x)
{
    int32_t column = x ? (int32_t) ~(uint32_t)x : -1;
    a.id[t * a.id_stride + i] = column;
    a.value[t * a.value_stride + i] =
        x ? a.logits[t * a.logits_stride + column] : __int_as_float(0xFF800000);
}

/* A block a row. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    best_of_chunks(const __grid_constant__ struct top_k a)
{
    begin_kernel();
    __shared__ key list[LIST];
    __shared__ int n_listed;
    int64_t t = blockIdx.x, m = a.n_chunks * a.k;
    const key *best = a.best + t * m;
    key mine = 0;
    if (threadIdx.x == 0)
        n_listed = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < m; i += blockDim.x)
        mine = best[i] > mine ? best[i] : mine;
    key bound = bound_of(mine, a.k, list);
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < m; i += blockDim.x)
        if (best[i] >= bound)
            list[atomicAdd(&n_listed, 1)] = best[i];
    __syncthreads();
    int n = n_listed;
    sort_list(list, n);
    for (int i = threadIdx.x; i < a.k; i += blockDim.x)
        put_best(a, t, i, i < n ? list[i] : 0);
}

/* Larger k than the lists hold: a block a row reads it k times. */
static __global__ void __launch_bounds__(MERGE_THREADS)
    best_one_by_one(const __grid_constant__ struct top_k a)
{
    begin_kernel();
    int64_t t = blockIdx.x;
    const float *row = a.logits + t * a.logits_stride;
    key last = ~(key)0;
    for (int32_t k = 0; k < a.k; k++) {
        key mine = 0;
        for (int32_t r = 0; r < a.n_ranges && last; r++)
            for (int64_t c = few_at(a.range, 2 * r) + (int64_t)threadIdx.x,
                         end = few_at(a.range, 2 * r + 1);
                 c < end; c += MERGE_THREADS) {
                key x = is_candidate(row[c]) ? key_of(row[c], c) : 0;
                mine = x < last && x > mine ? x : mine;
            }
        last = block_max(mine);
        if (threadIdx.x == 0)
            put_best(a, t, k, last);
    }
}

static int64_t chunks_of(int64_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

static int merge_threads(int64_t n_chunks, int64_t k)
{
    return n_chunks * k > LIST ? MERGE_THREADS : THREADS;
}

/* Do the lists hold k times what a thread may have? */
static bool fits(int64_t n_chunks, int64_t k)
{
    int64_t threads = merge_threads(n_chunks, k);
    return k <= MOST && (n_chunks * k + threads - 1) / threads * k <= LIST;
}

extern "C" lathe_status cuda_top_k(void *stream, const struct top_k_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    int64_t T = a->value.dim[0];
    struct top_k p = {
        .logits = (const float *)a->logits.data,
        .value = (float *)a->value.data,
        .id = (int32_t *)a->id.data,
        .logits_stride = a->logits.stride,
        .value_stride = a->value.stride,
        .id_stride = a->id.stride,
        .n = a->logits.dim[1],
        .n_ranges = a->n_ranges,
        .k = (int32_t)a->value.dim[1],
        .best = (key *)a->scratch.data,
    };
    if (a->n_ranges > 0) {
        if (!few_of(c, &p.range, a->range[0], 2 * (int64_t)a->n_ranges))
            return cuda_launched(c, err);
        p.first_chunk = a->range[0][0] / CHUNK;
        p.n_chunks = chunks_of(a->range[a->n_ranges - 1][1]) - p.first_chunk;
    }
    if (!fits(chunks_of(p.n), p.k)) {
        launch_next(c, best_one_by_one, (int)T, MERGE_THREADS, 0, p);
        return cuda_launched(c, err);
    }
    if (p.n_chunks > 0)
        launch_next(c, best_of_chunk, (int)(T * p.n_chunks), THREADS, 0, p);
    launch_next(c, best_of_chunks, (int)T, merge_threads(p.n_chunks, p.k), 0, p);
    return cuda_launched(c, err);
}

extern "C" size_t cuda_top_k_scratch(const void *stream, const struct top_k_args *a)
{
    (void)stream;
    int64_t n_chunks = chunks_of(a->logits.dim[1]), k = a->value.dim[1];
    return fits(n_chunks, k) ? (size_t)(a->value.dim[0] * n_chunks * k) * sizeof(key) : 0;
}
