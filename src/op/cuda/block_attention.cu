/* Attention of blocks over a ring and themselves. What a row sees of the ring is cut into splits at
 * multiples of SPLIT positions, what it sees of its block into splits at multiples of SPLIT rows. The sums of those of a
 * row are added in ascending order: where they are few, by a cluster of the blocks that made them, else by another launch,
 * from scratch. */
#include "op/cuda/attention.cuh"
#include "op/cuda/cluster.cuh"
#include "op/cuda/pack.cuh"

enum {
    BLOCKS = 2, /* of a multiprocessor */
    SPLIT = 128,
    SCRATCH_BYTES =
        32 << 20,    /* rows are worked on in groups whose splits fit, but at least one row */
    FEW_QUERIES = 8, /* of a block of a cluster */
};

struct block_attention {
    const void *q, *k, *v, *ring_k, *ring_v;
    void *o;
    int64_t q_stride, o_stride, k_stride, v_stride; /* elements */
    int64_t ring_k_stride, ring_v_stride;           /* from slot to slot */
    const int32_t *first_of, *slot, *pos, *seq_of;  /* first_of: ring->first */
    const struct batch_seq *seq;
    int32_t n_seqs, window, size, n_kv, group, split; /* split: positions of one */
    float scale;
    struct split_parts parts;
    int32_t ring_splits;       /* parts of a row that are the ring's; the others are the block's */
    int32_t first_row, n_rows; /* the group of rows that is worked on */
    int32_t chunk_rows;        /* rows of a block */
    bool wide_q, wide_kv;      /* accesses of 16 bytes */
};

/* What row t sees: positions [lo, pos0) of the ring and rows [own_lo, own_hi) of its block. */
struct sight {
    int32_t lo, end, own_lo, own_hi;
    int32_t base; /* the split that is first of the sequence's */
};

/* Position of the oldest key that a row at pos sees. */
__device__ __forceinline__ int32_t oldest(const struct block_attention &a,
                                          const struct batch_seq &s, int32_t pos)
{
    int64_t at = (int64_t)pos - a.window + 1;
    return max(a.first_of[s.slot], at > 0 ? (int32_t)at : 0);
}

__device__ __forceinline__ struct sight sight_of(const struct block_attention &a,
                                                 const struct batch_seq &s, int64_t t)
{
    struct sight w;
    int32_t row = (int32_t)(t - s.first_row);
    w.base = oldest(a, s, s.pos) / a.split;
    w.lo = min(oldest(a, s, s.pos + row), s.pos);
    w.end = s.pos;
    w.own_lo =
        max(0, (int32_t)max((int64_t)row - a.window + 1, (int64_t)a.first_of[s.slot] - s.pos));
    w.own_hi = (int32_t)min((int64_t)s.n_rows, (int64_t)row + a.window);
    return w;
}

/* Keys of the ring, one slot and kv head. */
template <typename K> struct ring_keys {
    const K *keys, *values;
    int64_t k_step, v_step;
    int32_t size;
    static constexpr bool wide = true;
    __device__ __forceinline__ bool has_run(int32_t s) const
    {
        return s % size + SPLIT_TILE <= size;
    }
    __device__ __forceinline__ const K *k(int32_t s) const
    {
        return keys + s % size * k_step;
    }
    __device__ __forceinline__ const K *v(int32_t s) const
    {
        return values + s % size * v_step;
    }
};
template <typename K>
__device__ __forceinline__ struct ring_keys<K> ring_of(const struct block_attention &a,
                                                       int32_t slot, int kv_head) {
    struct ring_keys<K> keys;
    keys.keys = (const K *)a.ring_k + slot * a.ring_k_stride + (int64_t)kv_head * a.parts.hd;
    keys.values = (const K *)a.ring_v + slot * a.ring_v_stride + (int64_t)kv_head * a.parts.hd;
    keys.k_step = keys.v_step = (int64_t)a.n_kv * a.parts.hd;
    keys.size = a.size;
    return keys;
}

/* Keys of a block, one kv head; its first row is 0. */
template <typename K>
struct own_keys {
    const K *keys, *values;
    int64_t k_step, v_step;
    bool wide;
    __device__ __forceinline__ bool has_run(int32_t) const
    {
        return true;
    }
    __device__ __forceinline__ const K *k(int32_t s) const
    {
        return keys + s * k_step;
    }
    __device__ __forceinline__ const K *v(int32_t s) const
    {
        return values + s * v_step;
    }
};
template <typename K>
__device__ __forceinline__ struct own_keys<K> own_of(const struct block_attention &a,
                                                     int32_t first_row, int kv_head) {
    struct own_keys<K> keys;
    keys.keys = (const K *)a.k + first_row * a.k_stride + (int64_t)kv_head * a.parts.hd;
    keys.values = (const K *)a.v + first_row * a.v_stride + (int64_t)kv_head * a.parts.hd;
    keys.k_step = a.k_stride;
    keys.v_step = a.v_stride;
    keys.wide = a.wide_kv;
    return keys;
}

/* Any dtypes and sizes. blockIdx.x: rows, kv heads, pieces of LOOP_HEADS heads; y: splits. */
template <typename Q, typename K>
__global__ void __launch_bounds__(SPLIT_THREADS) block_attention_loop(struct block_attention a)
{
    begin_kernel();
    int pieces = (a.group + LOOP_HEADS - 1) / LOOP_HEADS;
    int first = blockIdx.x % pieces * LOOP_HEADS, kv_head = blockIdx.x / pieces % a.n_kv;
    int64_t r = blockIdx.x / pieces / a.n_kv, t = a.first_row + r;
    int head = kv_head * a.group + first, n_heads = min((int)LOOP_HEADS, a.group - first);
    int32_t split = blockIdx.y;
    struct batch_seq s = a.seq[a.seq_of[t]];
    struct sight w = sight_of(a, s, t);
    const Q *q = (const Q *)a.q + t * a.q_stride + (int64_t)head * a.parts.hd;
    if (split < a.ring_splits) {
        int64_t begin = (int64_t)(w.base + split) * a.split;
        int32_t from = (int32_t)max(begin, (int64_t)w.lo);
        int32_t end = (int32_t)min(begin + a.split, (int64_t)w.end);
        if (from < end)
            split_loop<Q, K>(a.parts, ring_of<K>(a, s.slot, kv_head), q, r, head, n_heads, split,
                             from, end, a.scale);
    } else {
        int32_t begin = (split - a.ring_splits) * SPLIT;
        int32_t from = max(begin, w.own_lo), end = min(begin + SPLIT, w.own_hi);
        if (from < end)
            split_loop<Q, Q>(a.parts, own_of<Q>(a, s.first_row, kv_head), q, r, head, n_heads,
                             split, from, end, a.scale);
    }
}

/* Split `split` of a chunk of rows, from row t on; their sums go to `out` as split_mma puts them for row `row` and head `head`. */
template <int HD, int NT>
__device__ __forceinline__ void
split_of(struct split_shared<HD, NT> *sh, const struct block_attention &a,
         const struct batch_seq &s, int32_t t, int32_t n_rows, int kv_head, int32_t split,
         const struct split_parts &out, int64_t row, int head, int32_t place)
{
    int n = n_rows * a.group;
    bool own = split >= a.ring_splits;
    struct sight first = sight_of(a, s, t), last = sight_of(a, s, t + n_rows - 1);
    int64_t begin =
        own ? (int64_t)(split - a.ring_splits) * SPLIT : (int64_t)(first.base + split) * a.split;
    int32_t from = (int32_t)max(begin, (int64_t)(own ? first.own_lo : first.lo));
    int32_t end =
        (int32_t)min(begin + (own ? (int)SPLIT : a.split), (int64_t)(own ? last.own_hi : last.end));
    if (from >= end)
        return;
    const bf16 *q = (const bf16 *)a.q + t * a.q_stride + (int64_t)kv_head * a.group * HD;
    for (int i = threadIdx.x; i < NT * 8; i += SPLIT_THREADS) {
        struct sight w = sight_of(a, s, t + (i < n ? i / a.group : 0));
        sh->lo[i] = i < n ? (own ? w.own_lo : w.lo) : 0;
        sh->hi[i] = i < n ? (own ? w.own_hi : w.end) : 0;
    }
    __syncthreads();
    fetch_queries<HD, NT * 8>(sh->q, q, a.q_stride, 0, n, a.group, a.wide_q);
    if (own)
        split_mma<HD, NT>(sh, own_of<bf16>(a, s.first_row, kv_head), n, from, end, a.scale, out,
                          row, head, a.group, place);
    else
        split_mma<HD, NT>(sh, ring_of<bf16>(a, s.slot, kv_head), n, from, end, a.scale, out, row,
                          head, a.group, place);
}

/* Splits [begin[0], end[0]) and then [begin[1], end[1]) are those that a row sees. */
__device__ __forceinline__ void splits_seen(const struct block_attention &a, const struct sight &w,
                                            int32_t begin[2], int32_t end[2])
{
    begin[0] = begin[1] = end[0] = end[1] = 0;
    if (w.lo < w.end) {
        begin[0] = w.lo / a.split - w.base;
        end[0] = (w.end - 1) / a.split - w.base + 1;
    }
    if (w.own_lo < w.own_hi) {
        begin[1] = a.ring_splits + w.own_lo / SPLIT;
        end[1] = a.ring_splits + (w.own_hi - 1) / SPLIT + 1;
    }
}

/* All in BF16, the ring 16-byte aligned, head_dim 64 or 128. blockIdx.x: chunks of rows, y: splits,
 * z: kv heads. Reads each key once for a chunk; bound by latency. */
template <int HD, int NT>
__global__ void __launch_bounds__(SPLIT_THREADS, BLOCKS)
    block_attention_mma(struct block_attention a)
{
    begin_kernel();
    extern __shared__ uint4 memory[];
    struct batch_seq s;
    int32_t n_rows, t = chunk_at(a, blockIdx.x, &n_rows, &s), split = blockIdx.y;
    int kv_head = blockIdx.z;
    if (n_rows > 0)
        split_of<HD, NT>((struct split_shared<HD, NT> *)memory, a, s, t, n_rows, kv_head, split,
                         a.parts, t - a.first_row, kv_head * a.group, split);
}

/* In the end the sums of queries lie over keys and values. */
template <int HD, int NT> struct cluster_shared {
    struct split_shared<HD, NT> split;
    float2 part[NT * 8];
};

/* The same where a row has CLUSTER_SPLITS splits at most and clusters exist: those of a chunk are one, and merge their sums
 * themselves, with the bits of block_attention_merge. blockIdx.x: splits, a cluster, y: chunks of rows, z: kv heads. */
template <int HD, int NT>
__global__ void __launch_bounds__(SPLIT_THREADS, BLOCKS)
    block_attention_cluster(struct block_attention a)
{
    begin_kernel();
#if __CUDA_ARCH__ >= 900
    enum { LANES = HD / 4, AT_ONCE = SPLIT_THREADS / LANES };
    extern __shared__ uint4 memory[];
    struct cluster_shared<HD, NT> *sh = (struct cluster_shared<HD, NT> *)memory;
    float *sums = (float *)(void *)sh->split.k; /* [queries, HD] */
    static_assert(sizeof sh->split.k + sizeof sh->split.v >= NT * 8 * HD * sizeof(float),
                  "sums lie over keys and values");
    struct batch_seq s;
    int32_t n_rows, t = chunk_at(a, blockIdx.y, &n_rows, &s), rank = blockIdx.x;
    int kv_head = blockIdx.z, n = n_rows * a.group, lane = threadIdx.x % LANES;
    struct split_parts mine = {
        .part = sh->part, .part_o = sums, .n_splits = 1, .heads = a.group, .hd = HD};
    if (n_rows == 0)
        return; /* and so do the others */
    split_of<HD, NT>(&sh->split, a, s, t, n_rows, kv_head, rank, mine, 0, 0, 0);
    arrive_cluster<true>();
    wait_cluster();
#pragma unroll 1
    for (int query = rank * AT_ONCE + (int)threadIdx.x / LANES; query < n;
         query += (int)gridDim.x * AT_ONCE) {
        int32_t begin[2], end[2], row = query / a.group;
        splits_seen(a, sight_of(a, s, t + row), begin, end);
        int32_t n0 = end[0] - begin[0];
        float4 x =
            merge_cluster(&sh->part[query], sums + query * HD + lane * 4, n0 + end[1] - begin[1],
                          [&](int i) { return i < n0 ? begin[0] + i : begin[1] + i - n0; });
        bf16 *o = (bf16 *)a.o + (int64_t)(t + row) * a.o_stride +
                  (int64_t)(kv_head * a.group + query - row * a.group) * HD + lane * 4;
        float y[4] = {x.x, x.y, x.z, x.w};
        store_pack<4>(o, y, 4, true);
    }
    arrive_cluster<true>();
    wait_cluster(); /* all have read the sums */
#endif
}

/* blockIdx.x: rows and heads, y: pieces of MERGE_DIMS. */
template <typename Q>
__global__ void __launch_bounds__(SPLIT_THREADS) block_attention_merge(struct block_attention a)
{
    begin_kernel();
    int64_t i = blockIdx.x, t = a.first_row + i / a.parts.heads;
    int first_dim = (int)blockIdx.y * MERGE_DIMS, d = first_dim + (int)threadIdx.x;
    struct sight w = sight_of(a, a.seq[a.seq_of[t]], t);
    int32_t begin[2], end[2];
    splits_seen(a, w, begin, end);
    float x = split_merge(a.parts, i, first_dim, begin, end);
    if (threadIdx.x < MERGE_DIMS && d < a.parts.hd)
        ((Q *)a.o + t * a.o_stride + i % a.parts.heads * a.parts.hd)[d] = from_float<Q>(x);
}

/* ---- Host ---------------------------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

struct plan {
    int64_t rows;                         /* of a group */
    int32_t split, ring_splits, n_splits; /* n_splits: of a row */
    size_t bytes;
};

/* A larger ring has longer splits, so that there are at most some 66 of them. */
static struct plan plan_of(const struct block_attention_args *a)
{
    struct plan p;
    int64_t hd = a->ring->k.dim[3], heads = a->q.dim[1] / hd, T = a->q.dim[0];
    int64_t size = a->ring->k.dim[1];
    p.split = (int32_t)((size + 64 * SPLIT - 1) / (64 * SPLIT) * SPLIT);
    p.ring_splits = (int32_t)(size / p.split + 2);
    p.n_splits = p.ring_splits + (int32_t)((T + SPLIT - 1) / SPLIT);
    int64_t parts = heads * p.n_splits; /* of a row */
    p.rows = SCRATCH_BYTES / (parts * (hd * 4 + 8));
    p.rows = p.rows < 1 ? 1 : p.rows > T ? T : p.rows;
    p.bytes = whole_lines((size_t)(p.rows * parts * 8)) + (size_t)(p.rows * parts * hd * 4);
    return p;
}

extern "C" size_t cuda_block_attention_scratch(const void *stream,
                                               const struct block_attention_args *a)
{
    (void)stream;
    return plan_of(a).bytes;
}

template <typename Q, typename K>
static void launch_loop(struct gpu *c, const struct block_attention *a)
{
    size_t shared = split_loop_shared(a->parts.hd);
    int64_t pieces = (a->group + LOOP_HEADS - 1) / LOOP_HEADS;
    (void)cudaFuncSetAttribute(block_attention_loop<Q, K>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch_next(c, block_attention_loop<Q, K>,
                dim3((unsigned)(a->n_rows * a->n_kv * pieces), (unsigned)a->parts.n_splits),
                SPLIT_THREADS, shared, *a);
}

template <int HD, int NT>
static void launch_mma(struct gpu *c, const struct block_attention *a, int32_t chunks)
{
    size_t shared = sizeof(struct split_shared<HD, NT>);
    prefer_shared(c, block_attention_mma<HD, NT>, shared, 0, BLOCKS);
    launch_next(c, block_attention_mma<HD, NT>,
                dim3((unsigned)chunks, (unsigned)a->parts.n_splits, (unsigned)a->n_kv),
                SPLIT_THREADS, shared, *a);
}

template <int HD, int NT>
static void launch_cluster(struct gpu *c, const struct block_attention *a, int32_t chunks)
{
    size_t shared = sizeof(struct cluster_shared<HD, NT>);
    prefer_shared(c, block_attention_cluster<HD, NT>, shared, 0, BLOCKS);
    launch_clusters(c, (unsigned)a->parts.n_splits, block_attention_cluster<HD, NT>,
                    dim3((unsigned)a->parts.n_splits, (unsigned)chunks, (unsigned)a->n_kv),
                    SPLIT_THREADS, shared, *a);
}

static bool has_mma(const struct block_attention_args *a)
{
    const struct tensor *rk = &a->ring->k, *rv = &a->ring->v;
    int64_t hd = rk->dim[3];
    return a->q.dtype == DT_BF16 && rk->dtype == DT_BF16 && (hd == 64 || hd == 128) &&
           a->q.dim[1] / hd / rk->dim[2] <= SPLIT_QUERIES &&
           ((uintptr_t)rk->data | (uintptr_t)rv->data) % 16 == 0 &&
           (rk->stride | rv->stride) % 8 == 0;
}

/* The sums of all splits of a group of rows; true: merged, too. */
static bool launch_splits(struct gpu *c, const struct block_attention_args *a,
                          struct block_attention *v)
{
    if (!has_mma(a)) {
        WITH_ACT(a->q.dtype, Q, WITH_ACT(a->ring->k.dtype, K, launch_loop<Q, K>(c, v)));
        return false;
    }
    bool merged =
        c->sm >= 90 && v->parts.n_splits <= CLUSTER_SPLITS && rows_aligned(v->o, v->o_stride, 2);
    /* Clusters are bound by latency: few rows are sooner done. */
    v->chunk_rows =
        (merged && v->group <= FEW_QUERIES ? (int)FEW_QUERIES : (int)SPLIT_QUERIES) / v->group;
    int32_t longest, chunks = chunks_of(a->b, *v, &longest);
    int32_t queries = (longest < v->chunk_rows ? longest : v->chunk_rows) * v->group;
    if (merged && queries <= FEW_QUERIES)
        v->parts.hd == 64 ? launch_cluster<64, 1>(c, v, chunks)
                          : launch_cluster<128, 1>(c, v, chunks);
    else if (v->parts.hd == 64)
        merged ? launch_cluster<64, 6>(c, v, chunks) : launch_mma<64, 6>(c, v, chunks);
    else if (queries <= 32)
        merged ? launch_cluster<128, 4>(c, v, chunks) : launch_mma<128, 4>(c, v, chunks);
    else
        merged ? launch_cluster<128, 6>(c, v, chunks) : launch_mma<128, 6>(c, v, chunks);
    return merged;
}

extern "C" lathe_status cuda_block_attention(void *stream, const struct block_attention_args *a,
                                             lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    struct block_attention v = {};
    struct plan p = plan_of(a);
    int64_t T = a->q.dim[0];
    if ((size_t)tensor_elements(&a->scratch) < p.bytes)
        return fail(err, LATHE_E_ARGUMENT, "scratch of %lld bytes, expected %zu",
                    (long long)tensor_elements(&a->scratch), p.bytes);
    /* Before the batch, whose place an upload may take. */
    v.first_of = (const int32_t *)cuda_upload(c, a->ring->first,
                                              (size_t)a->ring->k.dim[0] * sizeof *a->ring->first);
    if (!v.first_of)
        return cuda_launched(c, err);
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    v.q = a->q.data;
    v.k = a->k.data;
    v.v = a->v.data;
    v.ring_k = a->ring->k.data;
    v.ring_v = a->ring->v.data;
    v.o = a->o.data;
    v.q_stride = a->q.stride;
    v.o_stride = a->o.stride;
    v.k_stride = a->k.stride;
    v.v_stride = a->v.stride;
    v.ring_k_stride = a->ring->k.stride;
    v.ring_v_stride = a->ring->v.stride;
    v.slot = b.slot;
    v.pos = b.pos;
    v.seq_of = b.seq_of;
    v.seq = b.seq;
    v.n_seqs = b.n_seqs;
    v.window = a->window;
    v.size = (int32_t)a->ring->k.dim[1];
    v.n_kv = (int32_t)a->ring->k.dim[2];
    v.split = p.split;
    v.scale = a->scale;
    v.parts.hd = (int32_t)a->ring->k.dim[3];
    v.parts.heads = (int32_t)(a->q.dim[1] / v.parts.hd);
    v.group = v.parts.heads / v.n_kv;
    v.parts.n_splits = p.n_splits;
    v.ring_splits = p.ring_splits;
    v.wide_q = ((uintptr_t)v.q | (uintptr_t)(v.q_stride * 2)) % 16 == 0;
    v.wide_kv = ((uintptr_t)v.k | (uintptr_t)v.v | (uintptr_t)(v.k_stride * 2) |
                 (uintptr_t)(v.v_stride * 2)) %
                    16 ==
                0;
    v.parts.part = (float2 *)a->scratch.data;
    size_t n_parts = (size_t)(p.rows * v.parts.heads * p.n_splits);
    v.parts.part_o = (float *)(void *)((unsigned char *)a->scratch.data + whole_lines(n_parts * 8));
    for (int64_t first = 0; first < T; first += p.rows) {
        v.first_row = (int32_t)first;
        v.n_rows = (int32_t)(T - first < p.rows ? T - first : p.rows);
        if (launch_splits(c, a, &v))
            continue;
        dim3 blocks((unsigned)(v.n_rows * v.parts.heads), (unsigned)merge_blocks(v.parts.hd));
        WITH_ACT(a->q.dtype, Q,
                 launch_next(c, block_attention_merge<Q>, blocks, SPLIT_THREADS, 0, v));
    }
    return cuda_launched(c, err);
}
