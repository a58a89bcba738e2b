/* The gated delta rule, row after row, with S in registers. One form for all that is decoded, the fold, and prompts that
 * gated_delta_chunks.cu does not take, so that all of them, and any cut of a sequence into batches, give the same bits.
 *
 * Columns of S do not meet. A block has COLS of them of one v head of one sequence: each of its WARPS
 * consumer warps holds 8, as 16 groups of lanes along dk times 2 lanes of 4 columns. Some more warps, the producers,
 * prepare the next rows meanwhile, all their loads at once: they normalise q and k, and take exp(g).
 *
 * One reduction a row serves both products, since o = S'^T q^ with S' = decay S + k^ d^T is
 * decay S^T q^ + (k^ . q^) d. */
#include "op/cuda/gated_delta_rule.cuh"

enum {
    WARPS = 4,
    COLS = WARPS * 8,
};

struct delta {
    const void *qkv;
    const float *g, *beta;
    float *S, *o;                                                  /* o NULL: none is wanted */
    int64_t qkv_stride, g_stride, beta_stride, S_stride, o_stride; /* elements */
    size_t S_step, record_step; /* bytes from layer to layer; record: qkv, g and beta */
    int32_t n_k, n_v, dk, dv, slices;
    const struct batch_seq *seq;
    const int32_t *before; /* as in struct fold_layers */
    bool store;            /* S is advanced */
    bool wide_S;           /* four columns of S in one access */
};

/* `n` rows from row t of the batch, by the producers together. WIDE: four of q and k in one access. */
template <typename T, int PER_LANE, int ROWS, int PRODUCERS, bool WIDE>
__device__ __forceinline__ void prepare(const struct delta &a,
                                        struct delta_rows<PER_LANE, ROWS, COLS> *to, int64_t t,
                                        int n, int head, int col)
{
    enum { FOURS = (16 * PER_LANE + 127) / 128, EACH = ROWS / PRODUCERS };
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 - WARPS, k_head = head / (a.n_v / a.n_k);
    int64_t q_at = (int64_t)k_head * a.dk, k_at = (int64_t)(a.n_k + k_head) * a.dk;
    int64_t v_at = 2 * (int64_t)a.n_k * a.dk + (int64_t)head * a.dv + col;
    float4 q[EACH][FOURS], k[EACH][FOURS];
    float v[EACH], g[EACH], beta[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int64_t at = t + min(first + j * PRODUCERS, n - 1);
        const T *row = (const T *)a.qkv + at * a.qkv_stride;
#pragma unroll
        for (int i = 0; i < FOURS; i++) {
            q[j][i] = four(row + q_at, i * 128 + lane * 4, a.dk, WIDE);
            k[j][i] = four(row + k_at, i * 128 + lane * 4, a.dk, WIDE);
        }
        v[j] = col + lane < a.dv ? to_float(row[v_at + lane]) : 0;
        g[j] = a.g[at * a.g_stride + head];
        beta[j] = a.beta[at * a.beta_stride + head];
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int r = first + j * PRODUCERS;
        put_row(to, r, r < n, q[j], k[j], a.dk, g[j], beta[j]);
        if (r < n)
            to->v[r][lane] = v[j];
    }
}

/* `bytes` further on. */
template <typename P> __device__ __forceinline__ P *step(P *p, size_t bytes)
{
    return (P *)((uintptr_t)p + bytes);
}

/* dk <= 16 * PER_LANE. Any number of rows, ROWS at a time. blockIdx.x: sequences, heads, slices of columns; y: layers. A
 * decoded row is bound by reading and writing S; long sequences by the chain of additions from row to row. */
template <typename T, int PER_LANE, int ROWS, int PRODUCERS, bool WIDE, int BLOCKS = 2>
__global__ void __launch_bounds__((WARPS + PRODUCERS) * 32, BLOCKS) delta_rule(struct delta a)
{
    begin_kernel();
    __shared__ struct delta_rows<PER_LANE, ROWS, COLS> buffer[2];
    a.qkv = step(a.qkv, blockIdx.y * a.record_step);
    a.g = step(a.g, blockIdx.y * a.record_step);
    a.beta = step(a.beta, blockIdx.y * a.record_step);
    a.S = step(a.S, blockIdx.y * a.S_step);
    int slice = blockIdx.x % a.slices, head = blockIdx.x / a.slices % a.n_v;
    struct batch_seq s = a.seq[blockIdx.x / a.slices / a.n_v];
    if (s.n_rows == 0)
        return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, col = slice * COLS;
    int at = col + warp * 8 + lane % 2 * 4; /* first of the lane's columns */
    float *S = a.S + s.slot * a.S_stride + (int64_t)head * a.dk * a.dv + at;
    float x[PER_LANE][4];
    if (warp >= WARPS) {
        prepare<T, PER_LANE, ROWS, PRODUCERS, WIDE>(a, &buffer[0], s.first_row, min(ROWS, s.n_rows),
                                                    head, col);
    } else {
        load_S(x, S, a.dk, a.dv, a.dv - at, a.wide_S);
        int32_t before = a.before ? *a.before : -1;
        if (before >= 0)
            store_S(x, S + (before - s.slot) * a.S_stride, a.dk, a.dv, a.dv - at, a.wide_S);
    }
    for (int32_t first = 0; first < s.n_rows; first += ROWS) {
        int now = first / ROWS % 2;
        __syncthreads();
        if (warp >= WARPS) {
            int32_t next = first + ROWS;
            if (next < s.n_rows)
                prepare<T, PER_LANE, ROWS, PRODUCERS, WIDE>(a, &buffer[!now],
                                                            s.first_row + (int64_t)next,
                                                            min(ROWS, s.n_rows - next), head, col);
        } else {
            float *o =
                a.o + (s.first_row + (int64_t)first) * a.o_stride + (int64_t)head * a.dv + col;
            step_rows(&buffer[now], x, min(ROWS, s.n_rows - first), warp, a.o ? o : NULL,
                      a.o_stride, a.dv - col);
        }
    }
    if (!a.store || warp >= WARPS)
        return;
    store_S(x, S, a.dk, a.dv, a.dv - at, a.wide_S);
}

static bool aligned(const void *p, int64_t stride, size_t size, size_t to)
{
    return ((uintptr_t)p | (uintptr_t)(stride * (int64_t)size)) % to == 0;
}

/* qkv, g, beta, S and the shapes are set. */
static void launch(struct gpu *c, struct delta *a, const struct tensor *qkv, int32_t n_seqs,
                   int32_t n_layers)
{
    size_t size = qkv->dtype == DT_F32 ? 4 : 2;
    a->slices = (a->dv + COLS - 1) / COLS;
    a->wide_S = a->dv % 4 == 0 && aligned(a->S, a->S_stride, 4, 16);
    bool wide = a->dk % 4 == 0 && aligned(a->qkv, a->qkv_stride, size, 4 * size);
    dim3 blocks((unsigned)(n_seqs * a->n_v * a->slices), (unsigned)n_layers);
    auto go = [&](int producers, void (*kernel)(struct delta)) {
        launch_next(c, kernel, blocks, (WARPS + producers) * 32, 0, *a);
    };
    /* A fold has few rows and many layers: it is bound by how many blocks read and write S at once. */
    WITH_ACT(qkv->dtype, T, {
        if (a->dk > 128)
            go(4, delta_rule<T, 32, 4, 4, false, 1>);
        else if (wide && !a->o)
            go(1, delta_rule<T, 8, 2, 1, true, 4>);
        else if (wide)
            go(4, delta_rule<T, 8, 16, 4, true>);
        else
            go(4, delta_rule<T, 8, 16, 4, false>);
    });
}

static struct delta delta_of(const struct tensor *qkv, const struct tensor *g,
                             const struct tensor *beta, const struct tensor *S,
                             const struct gdn_heads *heads)
{
    struct delta d = {};
    d.qkv = qkv->data;
    d.g = (const float *)g->data;
    d.beta = (const float *)beta->data;
    d.S = (float *)S->data;
    d.qkv_stride = qkv->stride;
    d.g_stride = g->stride;
    d.beta_stride = beta->stride;
    d.S_stride = S->stride;
    d.n_k = heads->n_k_heads;
    d.n_v = heads->n_v_heads;
    d.dk = heads->dk;
    d.dv = heads->dv;
    return d;
}

extern "C" lathe_status cuda_gated_delta_rule(void *stream, const struct gated_delta_rule_args *a,
                                              lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    if (cuda_gated_delta_chunks_takes(c, a))
        return cuda_gated_delta_chunks(c, a, CHUNKS_ALL, err);
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct delta d = delta_of(&a->qkv, &a->g, &a->beta, &a->S, &a->heads);
    d.o = (float *)a->o.data;
    d.o_stride = a->o.stride;
    d.seq = b.seq;
    d.store = b.phase != PHASE_VERIFY;
    launch(c, &d, &a->qkv, b.n_seqs, 1);
    return cuda_launched(c, err);
}

extern "C" lathe_status cuda_gated_delta_fold(void *stream, const struct gated_delta_fold_args *a,
                                              lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    if (a->n_seqs == 0)
        return LATHE_OK;
    struct delta d = delta_of(&a->qkv, &a->g, &a->beta, &a->S, &a->heads);
    d.seq = (const struct batch_seq *)cuda_upload(c, a->seq, (size_t)a->n_seqs * sizeof *a->seq);
    if (a->layers.before)
        d.before = (const int32_t *)cuda_upload(c, a->layers.before, sizeof *d.before);
    d.store = true;
    d.S_step = a->layers.state_step;
    d.record_step = a->layers.record_step;
    if (d.seq)
        launch(c, &d, &a->qkv, a->n_seqs, a->layers.n);
    return cuda_launched(c, err);
}
