/* Attention over pages of keys and values. A row's keys are cut into splits, whose sums lie in scratch; another launch
 * adds the splits of a row in ascending order, and gates the result. Prompts in BF16 or E4M3 need no splits: their rows
 * are work enough. */
#include "op/cuda/attention_tiles.cuh"
#include "op/cuda/attention_wgmma.cuh"
#include "op/cuda/split_wgmma.cuh"

enum {
    SCRATCH_BYTES =
        48 << 20,    /* rows are worked on in groups whose splits fit, but at least one row */
    BLOCKS = 2,      /* of a multiprocessor; while there is room for more, blocks have fewer rows */
    FEWEST_ROWS = 2, /* of such a block */
};

struct attention {
    const void *q, *k, *v;
    int64_t q_stride, k_stride, v_stride; /* elements; of k and v: from page to page */
    const int32_t *page_table, *slot, *pos;
    const struct batch_seq *seq;
    int32_t n_seqs, pages_per_slot, page, page_shift, n_kv, group;
    float scale;
    struct split_parts parts;
    int32_t most_splits;       /* of a row */
    uint32_t by_group;         /* 2^16 / group, rounded up */
    int32_t first_row, n_rows; /* the group of rows that is worked on */
    int32_t chunk_rows;        /* rows of a block */
    bool wide_q;               /* q in accesses of 16 bytes */
};

/* ---- Splits --------------------------------------------------------------------------------------
 *
 * Those of a row are of one length, so that they end together, and as many as the device works on at once, or one for
 * each tile of keys. They depend on the row's position alone. */

enum { MOST_SPLITS = 128 }; /* of any row */

/* Positions of a split of a row that sees n. */
static __host__ __device__ __forceinline__ int32_t split_length(int32_t n, int32_t most)
{
    int32_t tiles = (n + SPLIT_TILE - 1) / SPLIT_TILE;
    return (tiles + most - 1) / most * SPLIT_TILE;
}
static __host__ __device__ __forceinline__ int32_t splits_of(int32_t n, int32_t most)
{
    int32_t length = split_length(n, most);
    return (n + length - 1) / length;
}

/* Of n_rows rows from position pos on the first whose splits are as long as those of the first of all, and what split i
 * of those is. */
struct piece {
    int32_t n_rows, from, end;
};
static __device__ __forceinline__ struct piece piece_of(const struct attention &a, int32_t pos,
                                                        int32_t n_rows, int32_t i)
{
    int32_t length = split_length(pos + 1, a.most_splits);
    int32_t rows = (int32_t)min((int64_t)n_rows, (int64_t)length * a.most_splits - pos);
    return {rows, i * length, min((i + 1) * length, pos + rows)};
}

/* ---- Where results go --------------------------------------------------------------------------- */

/* As they are. */
struct plain {
    float *o;
    int64_t stride;
    struct place {
        float *o;
        __device__ __forceinline__ float gate(int) const
        {
            return 0;
        }
        __device__ __forceinline__ void put(int d, float, float x) const
        {
            o[d] = x;
        }
    };
    __device__ __forceinline__ struct place at(int64_t t, int64_t head, int hd) const
    {
        return {o + t * stride + head * hd};
    }
};

/* Times the sigmoid of their gates, rounded. */
template <typename Y> struct gated {
    Y *y;
    const Y *qg; /* per head: query, then gate */
    int64_t y_stride, qg_stride;
    struct place {
        Y *y;
        const Y *gates;
        __device__ __forceinline__ float gate(int d) const
        {
            return to_float(gates[d]);
        }
        __device__ __forceinline__ void put(int d, float gate, float x) const
        {
            y[d] = from_float<Y>(x * sigmoid(gate));
        }
    };
    __device__ __forceinline__ struct place at(int64_t t, int64_t head, int hd) const
    {
        return {y + t * y_stride + head * hd, qg + t * qg_stride + (2 * head + 1) * hd};
    }
};

/* ---- Kernels ------------------------------------------------------------------------------------- */

/* Keys of a slot, one kv head. */
template <typename K> struct page_keys {
    const K *keys, *values;
    const int32_t *table;
    int64_t k_stride, v_stride; /* from page to page */
    int64_t k_step, v_step;     /* from position to position */
    int32_t page, shift;        /* positions of a page; their logarithm, or -1 */
    static constexpr bool wide = true;
    __device__ __forceinline__ int64_t at(int32_t s, int64_t stride) const
    {
        int32_t i = shift >= 0 ? s >> shift : s / page;
        return table[i] * stride + (s - i * page) * k_step;
    }
    __device__ __forceinline__ bool has_run(int32_t) const
    {
        return page % SPLIT_TILE == 0;
    }
    __device__ __forceinline__ const K *k(int32_t s) const
    {
        return keys + at(s, k_stride);
    }
    __device__ __forceinline__ const K *v(int32_t s) const
    {
        return values + at(s, v_stride);
    }
};

template <typename K>
__device__ __forceinline__ struct page_keys<K> keys_of(const struct attention &a, int32_t slot,
                                                       int kv_head) {
    struct page_keys<K> keys;
    keys.keys = (const K *)a.k + (int64_t)kv_head * a.parts.hd;
    keys.values = (const K *)a.v + (int64_t)kv_head * a.parts.hd;
    keys.table = a.page_table + (int64_t)slot * a.pages_per_slot;
    keys.k_stride = a.k_stride;
    keys.v_stride = a.v_stride;
    keys.k_step = keys.v_step = (int64_t)a.n_kv * a.parts.hd;
    keys.page = a.page;
    keys.shift = a.page_shift;
    return keys;
}

/* Any dtypes and sizes. blockIdx.x: rows, kv heads, pieces of LOOP_HEADS heads; y: splits. */
template <typename Q, typename K>
__global__ void __launch_bounds__(SPLIT_THREADS) attention_loop(struct attention a)
{
    begin_kernel();
    int pieces = (a.group + LOOP_HEADS - 1) / LOOP_HEADS;
    int first = blockIdx.x % pieces * LOOP_HEADS, kv_head = blockIdx.x / pieces % a.n_kv;
    int64_t r = blockIdx.x / pieces / a.n_kv, t = a.first_row + r;
    int head = kv_head * a.group + first;
    struct piece piece = piece_of(a, a.pos[t], 1, blockIdx.y);
    if (piece.from < piece.end)
        split_loop<Q, K>(a.parts, keys_of<K>(a, a.slot[t], kv_head),
                         (const Q *)a.q + t * a.q_stride + (int64_t)head * a.parts.hd, r, head,
                         min((int)LOOP_HEADS, a.group - first), blockIdx.y, piece.from, piece.end,
                         a.scale);
}

/* q in BF16, keys and values too and head_dim 64, 128 or 256, or in E4M3 and 256; keys and values 16-byte
 * aligned. blockIdx.x: chunks of rows and kv heads, y: splits. Reads each key once for a chunk; bound by
 * memory. */
template <int HD, int NT, typename K>
__global__ void __launch_bounds__(SPLIT_THREADS) attention_mma(struct attention a)
{
    begin_kernel();
    extern __shared__ uint4 memory[];
    struct split_shared<HD, NT, K> *sh = (struct split_shared<HD, NT, K> *)memory;
    struct batch_seq seq;
    struct piece piece;
    int32_t n_rows, t = chunk_at(a, blockIdx.x / a.n_kv, &n_rows, &seq);
    int kv_head = blockIdx.x % a.n_kv, head = kv_head * a.group;
    for (; n_rows > 0; t += piece.n_rows, n_rows -= piece.n_rows) {
        int32_t pos = seq.pos + t - seq.first_row;
        piece = piece_of(a, pos, n_rows, blockIdx.y);
        if (piece.from >= piece.end)
            continue;
        int n = piece.n_rows * a.group;
        const bf16 *q = (const bf16 *)a.q + t * a.q_stride + (int64_t)head * HD;
        __syncthreads();
        for (int i = threadIdx.x; i < NT * 8; i += SPLIT_THREADS) {
            sh->lo[i] = 0;
            sh->hi[i] = i < n ? pos + i / a.group + 1 : 0;
        }
        __syncthreads();
        if constexpr (kv_tile<K>::has_factors)
            fetch_queries<HD, NT * 8>(sh->q, sh->factor, q, a.q_stride, 0, n, a.group, a.wide_q,
                                      a.scale);
        else
            fetch_queries<HD, NT * 8>(sh->q, q, a.q_stride, 0, n, a.group, a.wide_q);
        split_mma<HD, NT>(sh, keys_of<K>(a, seq.slot, kv_head), n, piece.from, piece.end, a.scale,
                          a.parts, t - a.first_row, head, a.group, blockIdx.y);
    }
}

/* The same on compute capability 9.0: head_dim 256, pages of a power of two positions, SPLIT_TILE or more, q 16-byte
 * aligned, a scale above zero. blockIdx.x: kv heads, y: splits, z: chunks of rows. One row is bound by memory; with
 * eight, 48 queries, a tile takes the instructions of its two blocks about as long as its bytes take in BF16, and twice
 * as long in E4M3. */
template <int NT, typename K>
__global__ void __launch_bounds__(SPLIT_THREADS, BLOCKS) attention_few(struct attention a)
{
    begin_kernel();
#if HAS_WGMMA
    extern __shared__ uint4 memory[];
    struct split_panels<NT, K> *sh =
        (struct split_panels<NT, K> *)((unsigned char *)memory + (-shared_address(memory) & 1023));
    struct batch_seq seq;
    struct piece piece;
    int32_t n_rows, t = chunk_at(a, blockIdx.z, &n_rows, &seq);
    int kv_head = blockIdx.x, head = kv_head * a.group;
    struct split_pages<K> pages;
    pages.step = (int32_t)(a.n_kv * PANELS_DIMS * sizeof(K));
    pages.shift = a.page_shift;
    pages.table = a.page_table + (int64_t)seq.slot * a.pages_per_slot;
    int64_t place = kv_head * (int64_t)(PANELS_DIMS * sizeof(K)) + pages.place(pages.step);
    pages.k.from = (const unsigned char *)a.k + place;
    pages.v.from = (const unsigned char *)a.v + place;
    pages.k.stride = a.k_stride * (int64_t)sizeof(K);
    pages.v.stride = a.v_stride * (int64_t)sizeof(K);
    for (; n_rows > 0; t += piece.n_rows, n_rows -= piece.n_rows) {
        int32_t pos = seq.pos + t - seq.first_row;
        piece = piece_of(a, pos, n_rows, blockIdx.y);
        if (piece.from >= piece.end)
            continue;
        int n = piece.n_rows * a.group;
        __syncthreads();
        for (int i = threadIdx.x; i < NT * 8; i += SPLIT_THREADS)
            sh->hi[i] = i < n ? pos + (int32_t)(i * a.by_group >> 16) + 1 : 0;
        fetch_queries(sh, (const bf16 *)a.q + t * a.q_stride + (int64_t)head * PANELS_DIMS,
                      a.q_stride, n, a.group, a.by_group);
        split_wgmma(sh, pages, n, piece.from, piece.end, pos + 1, a.scale, a.parts, t - a.first_row,
                    head, a.group, blockIdx.y);
    }
#endif
}

/* Tile i of `size` queries at most, counted through sequence after sequence: its sequence, its first query in that,
 * and how many the sequence has, all told; false where there are no more. */
static __device__ __forceinline__ bool queries_at(const struct attention &a, int32_t i, int size,
                                                  struct batch_seq *seq, int *first, int *n)
{
    for (int32_t s = 0; s < a.n_seqs; s++) {
        *n = a.seq[s].n_rows * a.group;
        int32_t tiles = (*n + size - 1) / size;
        if (i < tiles) {
            *seq = a.seq[s];
            *first = i * size;
            return true;
        }
        i -= tiles;
    }
    return false;
}

/* The same of prompts: rows of PREFILL, the last ones, which see most, first. blockIdx.x: tiles of queries,
 * y: kv heads. Bound by tensor cores. */
template <int HD, typename K, typename OUT>
__global__ void __launch_bounds__(SPLIT_THREADS, BLOCKS)
    attention_prompt(struct attention a, OUT out)
{
    begin_kernel();
    extern __shared__ uint4 memory[];
    struct tile_shared<HD, K> *sh = (struct tile_shared<HD, K> *)memory;
    struct batch_seq seq;
    int first, n, kv_head = blockIdx.y;
    if (!queries_at(a, (int32_t)(gridDim.x - 1 - blockIdx.x), TILE_QUERIES, &seq, &first, &n))
        return;
    n = min((int)TILE_QUERIES, n - first);
    int head = kv_head * a.group;
    for (int k = threadIdx.x; k < TILE_QUERIES; k += SPLIT_THREADS)
        sh->hi[k] = k < n ? seq.pos + (first + k) / a.group + 1 : 0;
    __syncthreads();
    const bf16 *q = (const bf16 *)a.q + seq.first_row * a.q_stride + (int64_t)head * HD;
    if constexpr (kv_tile<K>::has_factors)
        fetch_queries<HD, TILE_QUERIES>(sh->q, sh->factor, q, a.q_stride, first, n, a.group,
                                        a.wide_q, a.scale);
    else
        fetch_queries<HD, TILE_QUERIES>(sh->q, q, a.q_stride, first, n, a.group, a.wide_q);
    attention_tiles<HD>(sh, keys_of<K>(a, seq.slot, kv_head), n, seq.pos + first / a.group + 1,
                        seq.pos + (first + n - 1) / a.group + 1, a.scale, out, seq.first_row, head,
                        first, a.group);
}

/* The same on compute capability 9.0: head_dim 256, pages of a power of two positions, 64 or more. Bound by
 * tensor cores and by the softmax between their products: useful work is 58 % of their peak over E4M3, 43 % over BF16,
 * where weights have two parts.
 *
 * A value that is not finite would reach queries that do not see it, as 0 times NaN: where a sum is not finite the
 * tile writes nothing but its flag in is_bad [tiles, n_kv], and the next launch, AGAIN, does it over. */
template <typename K, typename OUT, bool AGAIN>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attention_hopper(struct attention a, OUT out, int32_t *is_bad)
{
    begin_kernel();
#if HAS_WGMMA
    extern __shared__ uint4 memory[];
    uint32_t shared = (shared_address(memory) + 1023) & ~1023u;
    uint32_t full = shared + hopper_tile<K>::END, empty = full + HOPPER_BUFFERS * 8;
    uint8_t *bad_keys = (uint8_t *)memory + (empty + HOPPER_BUFFERS * 8 - shared_address(memory));
    struct batch_seq seq;
    int first, n, kv_head = blockIdx.y;
    is_bad += blockIdx.x * gridDim.y + blockIdx.y;
    if ((AGAIN && !*is_bad) ||
        !queries_at(a, (int32_t)(gridDim.x - 1 - blockIdx.x), HOPPER_QUERIES, &seq, &first, &n))
        return;
    int32_t end = seq.pos + (min(first + HOPPER_QUERIES, n) - 1) / a.group + 1;
    if (threadIdx.x == 0) {
        for (int k = 0; k < HOPPER_BUFFERS; k++) {
            barrier_init(full + k * 8, 4);
            barrier_init(empty + k * 8, 8);
        }
        wgmma_publish();
    }
    __syncthreads();
    int64_t dim = (int64_t)kv_head * HOPPER_DIMS;
    struct hopper_pages pages = {(const unsigned char *)((const K *)a.k + dim),
                                 (const unsigned char *)((const K *)a.v + dim),
                                 a.page_table + (int64_t)seq.slot * a.pages_per_slot,
                                 a.k_stride * (int64_t)sizeof(K),
                                 a.v_stride * (int64_t)sizeof(K),
                                 (int32_t)(a.n_kv * HOPPER_DIMS * sizeof(K)),
                                 a.page_shift};
    if (threadIdx.x < 128) {
        leave_registers<HOPPER_LOAD_REGISTERS>();
        hopper_load<K, AGAIN>(shared, full, empty, bad_keys, threadIdx.x, pages, end);
        return;
    }
    take_registers<HOPPER_REGISTERS>();
    int t = threadIdx.x % 128, of = (int)threadIdx.x / 128 - 1, head = kv_head * a.group;
    int mine = first + of * 64; /* of the warpgroup, the first; this thread's: */
    int query[2] = {mine + t / 32 * 16 + t % 32 / 4, mine + t / 32 * 16 + t % 32 / 4 + 8};
    int32_t hi[2], all_hi = seq.pos + mine / a.group + 1;
    uint32_t queries = shared + HOPPER_Q + of * PANELS_BYTES;
    float factor[2], o[4][32], l[2];
    hopper_queries<K>(queries, factor, t,
                      (const bf16 *)a.q + seq.first_row * a.q_stride + (int64_t)head * HOPPER_DIMS,
                      a.q_stride, mine, n, a.group, a.wide_q, a.scale);
    wgmma_publish();
    named_sync(BARRIER_QUERIES + of, 128);
#pragma unroll
    for (int h = 0; h < 2; h++)
        hi[h] = query[h] < n ? seq.pos + query[h] / a.group + 1 : 0;
    hopper_sums<K, AGAIN>(queries, shared + HOPPER_KV, full, empty, of, t, o, l, factor, hi, all_hi,
                          end, bad_keys, pages);
    if (!AGAIN) {
        bool bad = false;
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int i = 0; i < 32; i++)
                bad |= !(fabsf(o[k][i]) < INFINITY);
        bad = named_any(BARRIER_SUMS, 256, bad);
        if (t == 0 && of == 0)
            *is_bad = bad;
        if (bad)
            return; /* the result may lie over the queries, which are read again */
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = l[h];
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        float by = __frcp_rn(sum);
        if (query[h] >= n)
            continue;
        typename OUT::place to =
            out.at(seq.first_row + query[h] / a.group, head + query[h] % a.group, HOPPER_DIMS);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float gate[8][2]; /* loaded together: a load behind a store would wait for it */
#pragma unroll
            for (int i = 0; i < 16; i++)
                gate[i / 2][i % 2] = to.gate(k * 64 + i / 2 * 8 + t % 4 * 2 + i % 2);
#pragma unroll
            for (int i = 0; i < 16; i++)
                to.put(k * 64 + i / 2 * 8 + t % 4 * 2 + i % 2, gate[i / 2][i % 2],
                       __fmul_rn(o[k][i / 2 * 4 + h * 2 + i % 2], by));
        }
    }
#endif
}

/* blockIdx.x: rows and heads, y: pieces of MERGE_DIMS. */
template <typename OUT>
__global__ void __launch_bounds__(SPLIT_THREADS) attention_merge(struct attention a, OUT out)
{
    begin_kernel();
    int64_t i = blockIdx.x, t = a.first_row + i / a.parts.heads;
    int first_dim = (int)blockIdx.y * MERGE_DIMS, d = first_dim + (int)threadIdx.x;
    bool is_mine = threadIdx.x < MERGE_DIMS && d < a.parts.hd;
    int32_t begin[2] = {0, 0}, end[2] = {splits_of(a.pos[t] + 1, a.most_splits), 0};
    typename OUT::place to = out.at(t, i % a.parts.heads, a.parts.hd);
    float gate = is_mine ? to.gate(d) : 0; /* on its way while splits are read */
    float x = split_merge(a.parts, i, first_dim, begin, end);
    if (is_mine)
        to.put(d, gate, x);
}

/* ---- Host ---------------------------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + 255) & ~(size_t)255;
}

/* BLOCKS for each multiprocessor, over all kv heads. */
static int32_t most_splits(const struct gpu *c, const struct attention_args *a)
{
    int64_t n = BLOCKS * c->n_sms / a->kv->k.dim[2];
    return n < 1 ? 1 : n > MOST_SPLITS ? MOST_SPLITS : (int32_t)n;
}

/* Rows of a group, the splits there is room for, and the scratch that takes. */
static int64_t plan(const struct gpu *c, const struct attention_args *a, int32_t *n_splits,
                    size_t *bytes)
{
    int64_t hd = a->kv->k.dim[3], heads = a->q.dim[1] / hd, T = a->q.dim[0];
    int64_t tiles = (a->kv->pages_per_slot * a->kv->k.dim[1] + SPLIT_TILE - 1) / SPLIT_TILE;
    int32_t most = most_splits(c, a);
    *n_splits = tiles < most ? (int32_t)tiles : most;
    int64_t parts = heads * *n_splits; /* of a row */
    int64_t rows = SCRATCH_BYTES / (parts * (hd * 4 + 8));
    rows = rows < 1 ? 1 : rows > T ? T : rows;
    *bytes = whole_lines((size_t)(rows * parts * 8)) + (size_t)(rows * parts * hd * 4);
    return rows;
}

extern "C" size_t cuda_attention_scratch(const void *stream, const struct attention_args *a)
{
    int32_t n_splits;
    size_t bytes;
    plan((const struct gpu *)stream, a, &n_splits, &bytes);
    return bytes;
}

template <typename Q, typename K>
static void launch_loop(struct gpu *c, const struct attention *a, int32_t splits)
{
    size_t shared = split_loop_shared(a->parts.hd);
    int64_t pieces = (a->group + LOOP_HEADS - 1) / LOOP_HEADS;
    (void)cudaFuncSetAttribute(attention_loop<Q, K>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               (int)shared);
    launch_next(c, attention_loop<Q, K>,
                dim3((unsigned)(a->n_rows * a->n_kv * pieces), (unsigned)splits), SPLIT_THREADS,
                shared, *a);
}

template <int HD, int NT, typename K>
static void launch_mma(struct gpu *c, const struct attention *a, int32_t chunks, int32_t splits)
{
    size_t shared = sizeof(struct split_shared<HD, NT, K>);
    (void)cudaFuncSetAttribute(attention_mma<HD, NT, K>,
                               cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    launch_next(c, attention_mma<HD, NT, K>, dim3((unsigned)(chunks * a->n_kv), (unsigned)splits),
                SPLIT_THREADS, shared, *a);
}

/* As few tiles of queries as will do, where that is worth a kernel. */
template <typename K>
static void launch_mma_256(struct gpu *c, const struct attention *a, int32_t queries,
                           int32_t chunks, int32_t splits)
{
    if (queries <= 8)
        launch_mma<256, 1, K>(c, a, chunks, splits);
    else if (queries <= 16)
        launch_mma<256, 2, K>(c, a, chunks, splits);
    else if (queries <= 24)
        launch_mma<256, 3, K>(c, a, chunks, splits);
    else if (queries <= 32)
        launch_mma<256, 4, K>(c, a, chunks, splits);
    else
        launch_mma<256, 6, K>(c, a, chunks, splits);
}

template <int NT, typename K>
static void launch_few(struct gpu *c, const struct attention *a, int32_t chunks, int32_t splits)
{
    size_t shared = sizeof(struct split_panels<NT, K>) + 1024;
    struct attention v = *a;
    v.scale *= 1.44269504f; /* log2 e */
    prefer_shared(c, attention_few<NT, K>, shared, 0, BLOCKS);
    launch_next(c, attention_few<NT, K>,
                dim3((unsigned)a->n_kv, (unsigned)splits, (unsigned)chunks), SPLIT_THREADS, shared,
                v);
}

template <typename K>
static void launch_few_queries(struct gpu *c, const struct attention *a, int32_t queries,
                               int32_t chunks, int32_t splits)
{
    if (queries <= 8)
        launch_few<1, K>(c, a, chunks, splits);
    else if (queries <= 16)
        launch_few<2, K>(c, a, chunks, splits);
    else if (queries <= 24)
        launch_few<3, K>(c, a, chunks, splits);
    else
        launch_few<6, K>(c, a, chunks, splits);
}

static void launch_mma_queries(struct gpu *c, const struct attention *a, enum dtype kv,
                               int32_t queries, int32_t chunks, int32_t splits)
{
    if (a->parts.log2) {
        if (kv == DT_F8_E4M3)
            launch_few_queries<e4m3>(c, a, queries, chunks, splits);
        else
            launch_few_queries<bf16>(c, a, queries, chunks, splits);
    } else if (kv == DT_F8_E4M3)
        launch_mma_256<e4m3>(c, a, queries, chunks, splits);
    else if (a->parts.hd == 64)
        launch_mma<64, 6, bf16>(c, a, chunks, splits);
    else if (a->parts.hd == 128)
        launch_mma<128, 6, bf16>(c, a, chunks, splits);
    else
        launch_mma_256<bf16>(c, a, queries, chunks, splits);
}

/* Queries that a block of attention_mma may have on this device; 0: it cannot be used. */
static int32_t mma_queries(const struct attention_args *a, int32_t device)
{
    const struct tensor *k = &a->kv->k, *v = &a->kv->v;
    int64_t hd = k->dim[3], piece = 16 / (int64_t)dtype_size(k->dtype);
    bool is_e4m3 = k->dtype == DT_F8_E4M3;
    int room = 0;
    if (a->q.dtype != DT_BF16 || (k->dtype != DT_BF16 && !is_e4m3) ||
        (hd != 256 && (is_e4m3 || (hd != 64 && hd != 128))) ||
        ((uintptr_t)k->data | (uintptr_t)v->data) % 16 != 0 || (k->stride | v->stride) % piece != 0)
        return 0;
    if (cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
        return 0;
    bool has_room = is_e4m3 || hd < 256 || (size_t)room >= sizeof(struct split_shared<256, 6>);
    int32_t queries = has_room ? 48 : 32;
    return a->q.dim[1] / hd / k->dim[2] <= queries ? queries : 0;
}

template <int HD, typename K, typename OUT>
static void launch_prompt(struct gpu *c, const struct attention *a, int32_t tiles, OUT out)
{
    size_t shared = sizeof(struct tile_shared<HD, K>);
    prefer_shared(c, attention_prompt<HD, K, OUT>, shared, 0, BLOCKS);
    launch_next(c, attention_prompt<HD, K, OUT>, dim3((unsigned)tiles, (unsigned)a->n_kv),
                SPLIT_THREADS, shared, *a, out);
}

/* Tiles of `size` queries at most. */
static int32_t query_tiles(const struct batch *b, const struct attention *a, int32_t size)
{
    int32_t tiles = 0;
    for (int32_t s = 0; s < b->n_seqs; s++)
        tiles += (b->seq[s].n_rows * a->group + size - 1) / size;
    return tiles;
}

/* is_bad is in scratch, where rows have room for more: their splits. */
template <typename K, typename OUT>
static void launch_hopper(struct gpu *c, const struct batch *b, const struct attention *a, OUT out)
{
    void (*kernel[])(struct attention, OUT, int32_t *) = {attention_hopper<K, OUT, false>,
                                                          attention_hopper<K, OUT, true>};
    struct attention v = *a;
    v.scale *= 1.44269504f; /* log2 e */
    for (int i = 0; i < 2; i++) {
        (void)cudaFuncSetAttribute(kernel[i], cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   (int)hopper_shared<K>());
        launch_next(c, kernel[i],
                    dim3((unsigned)query_tiles(b, a, HOPPER_QUERIES), (unsigned)a->n_kv),
                    HOPPER_THREADS, hopper_shared<K>(), v, out, (int32_t *)(void *)a->parts.part);
    }
}

template <typename OUT>
static void launch_prompts(struct gpu *c, const struct batch *b, const struct attention *a,
                           enum dtype kv, OUT out)
{
    int32_t tiles = query_tiles(b, a, TILE_QUERIES);
    if (c->sm == 90 && a->parts.hd == HOPPER_DIMS && a->page_shift >= 6 && a->scale > 0) {
        if (kv == DT_F8_E4M3)
            launch_hopper<e4m3>(c, b, a, out);
        else
            launch_hopper<bf16>(c, b, a, out);
    } else if (kv == DT_F8_E4M3)
        launch_prompt<256, e4m3>(c, a, tiles, out);
    else if (a->parts.hd == 64)
        launch_prompt<64, bf16>(c, a, tiles, out);
    else if (a->parts.hd == 128)
        launch_prompt<128, bf16>(c, a, tiles, out);
    else
        launch_prompt<256, bf16>(c, a, tiles, out);
}

/* The sums of all splits of a group of rows. */
static void launch_splits(struct gpu *c, const struct attention_args *a, struct attention *v,
                          int32_t splits)
{
    int32_t queries = mma_queries(a, c->device), longest;
    v->parts.log2 = queries > 0 && c->sm == 90 && v->parts.hd == PANELS_DIMS &&
                    v->page_shift >= 6 && v->wide_q && v->scale > 0;
    if (queries == 0) {
        WITH_ACT(a->q.dtype, Q, WITH_KV(a->kv->k.dtype, K, launch_loop<Q, K>(c, v, splits)));
        return;
    }
    v->chunk_rows = queries / v->group;
    int32_t chunks = chunks_of(a->b, *v, &longest);
    if (longest < v->chunk_rows)
        v->chunk_rows = longest;
    /* A block with few keys is bound by latency, which is shorter with fewer rows. */
    while (v->parts.log2 && v->chunk_rows >= 2 * FEWEST_ROWS) {
        struct attention half = *v;
        half.chunk_rows /= 2;
        int32_t n = chunks_of(a->b, half, &longest);
        if ((int64_t)n * v->n_kv * splits > BLOCKS * c->n_sms)
            break;
        *v = half;
        chunks = n;
    }
    queries = v->chunk_rows * v->group;
    launch_mma_queries(c, v, a->kv->k.dtype, queries, chunks, splits);
}

template <typename OUT> static void launch_merge(struct gpu *c, const struct attention *a, OUT out)
{
    launch_next(c, attention_merge<OUT>,
                dim3((unsigned)(a->n_rows * a->parts.heads), (unsigned)merge_blocks(a->parts.hd)),
                SPLIT_THREADS, 0, *a, out);
}

static struct plain plain_of(const struct attention_args *a)
{
    return {(float *)a->o.data, a->o.stride};
}

template <typename Y> static gated<Y> gated_of(const struct attention_gate_args *a)
{
    return {(Y *)a->y.data, (const Y *)a->qg.data, a->y.stride, a->qg.stride};
}

/* `gate` NULL: results as they are. */
static lathe_status run(struct gpu *c, const struct attention_args *a,
                        const struct attention_gate_args *gate, lathe_error *err)
{
    struct cuda_batch b;
    struct attention v = {};
    size_t need;
    int64_t rows = plan(c, a, &v.parts.n_splits, &need), T = a->q.dim[0];
    if ((size_t)tensor_elements(&a->scratch) < need)
        return fail(err, LATHE_E_ARGUMENT, "scratch of %lld bytes, expected %zu",
                    (long long)tensor_elements(&a->scratch), need);
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    v.q = a->q.data;
    v.k = a->kv->k.data;
    v.v = a->kv->v.data;
    v.q_stride = a->q.stride;
    v.k_stride = a->kv->k.stride;
    v.v_stride = a->kv->v.stride;
    v.page_table = a->kv->device_table;
    v.slot = b.slot;
    v.pos = b.pos;
    v.seq = b.seq;
    v.n_seqs = b.n_seqs;
    v.pages_per_slot = a->kv->pages_per_slot;
    v.page = (int32_t)a->kv->k.dim[1];
    v.page_shift = -1;
    for (int i = 0; i < 31; i++)
        if (v.page == (int32_t)1 << i)
            v.page_shift = i;
    v.n_kv = (int32_t)a->kv->k.dim[2];
    v.parts.hd = (int32_t)a->kv->k.dim[3];
    v.parts.heads = (int32_t)(a->q.dim[1] / v.parts.hd);
    v.group = v.parts.heads / v.n_kv;
    v.scale = a->scale;
    v.most_splits = most_splits(c, a);
    v.by_group = 65535u / (uint32_t)v.group + 1;
    v.wide_q = ((uintptr_t)v.q | (uintptr_t)(v.q_stride * 2)) % 16 == 0;
    v.parts.part = (float2 *)a->scratch.data;
    size_t n_parts = (size_t)(rows * v.parts.heads * v.parts.n_splits);
    v.parts.part_o = (float *)(void *)((unsigned char *)a->scratch.data + whole_lines(n_parts * 8));
    if (b.phase == PHASE_PREFILL && mma_queries(a, c->device) > 0) {
        if (gate)
            launch_prompts(c, a->b, &v, a->kv->k.dtype, gated_of<bf16>(gate));
        else
            launch_prompts(c, a->b, &v, a->kv->k.dtype, plain_of(a));
        return cuda_launched(c, err);
    }
    for (int64_t first = 0; first < T; first += rows) {
        int32_t splits = 1;
        v.first_row = (int32_t)first;
        v.n_rows = (int32_t)(T - first < rows ? T - first : rows);
        for (int64_t t = first; t < first + v.n_rows; t++) {
            int32_t n = splits_of(a->b->pos[t] + 1, v.most_splits);
            splits = n > splits ? n : splits;
        }
        if (a->b->end_pos > 0) { /* of any position below; splits beyond a row's do nothing */
            int32_t tiles = (a->b->end_pos + SPLIT_TILE - 1) / SPLIT_TILE;
            splits = tiles < v.most_splits ? tiles : v.most_splits;
        }
        launch_splits(c, a, &v, splits);
        if (gate)
            WITH_ACT(gate->y.dtype, Y, launch_merge(c, &v, gated_of<Y>(gate)));
        else
            launch_merge(c, &v, plain_of(a));
    }
    return cuda_launched(c, err);
}

extern "C" lathe_status cuda_attention(void *stream, const struct attention_args *a,
                                       lathe_error *err)
{
    return run(cuda_of(stream), a, NULL, err);
}

extern "C" lathe_status cuda_gated_attention(void *stream, const struct gated_attention_args *a,
                                             lathe_error *err)
{
    return run(cuda_of(stream), &a->attention, &a->gate, err);
}
