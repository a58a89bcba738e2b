/* Per head: the norm, then the rotation of its leading dims; keys, and values as they are, also to their
 * pages. */
#include "op/cuda/append.cuh"
#include "op/cuda/cuda.cuh"
#include "op/cuda/rotation.cuh"

enum {
    WARPS = 8,
    PACKS = OP_MAX_HEAD / PACK / 32, /* of a lane, at most */
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

/* Where keys and values are appended to. */
struct pages {
    const void *v; /* the rows' values */
    int64_t v_stride;
    void *plane[2];          /* keys, values */
    int64_t plane_stride[2]; /* elements from page to page */
    int64_t width;           /* of a position */
    const int32_t *table, *slot, *pos;
    int32_t pages_per_slot, page;
};

/* The place of row t's kv head `at`, which is d wide, among keys or values. */
template <typename K>
__device__ __forceinline__ K *place_of(const struct pages &to, bool is_v, int64_t t, int64_t at,
                                       int64_t d)
{
    int32_t p = to.pos[t];
    int64_t page = to.table[(int64_t)to.slot[t] * to.pages_per_slot + p / to.page];
    K *plane = (K *)(is_v ? to.plane[1] : to.plane[0]);
    int64_t stride = is_v ? to.plane_stride[1] : to.plane_stride[0];
    return plane + page * stride + p % to.page * to.width + at * d;
}

/* A warp a head, a block up to WARPS heads of one row: sines and cosines are computed once for all of them.
 * N packs a lane. Where it APPENDs, the heads of values come behind those of keys, and the cache is of K.
 * Bound by the latency of its reads; angles beyond 10^5 take sincosf's long way. */
template <typename T, int N, bool APPEND, typename K>
static __global__ void __launch_bounds__(WARPS * 32)
    norm_rope(struct heads a, const __grid_constant__ struct rotation rope, struct pages pages)
{
    begin_kernel();
    __shared__ float cosine[OP_MAX_HEAD / 2], sine[OP_MAX_HEAD / 2];
    __shared__ float rotary[WARPS][OP_MAX_HEAD]; /* normalised */
    int64_t t = blockIdx.x, d = a.head_dim;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int head = blockIdx.y * WARPS + warp, half = rope.half;
    bool is_q = head < a.n_q, is_head = head < a.n_q + a.n_k;
    bool is_v = APPEND && !is_head && head < a.n_q + 2 * a.n_k;
    int64_t at = is_q ? head : is_v ? head - a.n_q - a.n_k : head - a.n_q;
    T *to = is_q ? (T *)a.q + t * a.q_stride + at * d : (T *)a.k + t * a.k_stride + at * d;
    const T *from = is_q   ? (const T *)a.qg + t * a.qg_stride + at * a.apart
                    : is_v ? (const T *)pages.v + t * pages.v_stride + at * d
                           : (const T *)to;
    K *cached = NULL;
    if (is_v || (APPEND && is_head && !is_q))
        cached = place_of<K>(pages, is_v, t, at, d);
    bool cached_wide = is_wide(cached);
    const float *w = is_q ? a.q_norm : a.k_norm;
    bool to_wide = is_wide(to), from_wide = is_wide(from), w_wide = is_wide(w);
    float x[N][PACK];
    pack<T, PACK> v[N];
    pack<float, PACK> weight[N];
#pragma unroll
    for (int j = 0; j < N; j++) {
        int64_t c = (lane + 32 * j) * PACK;
        v[j] = load_pack<PACK>(from + c, is_head || is_v ? d - c : 0, from_wide);
        weight[j] = load_pack<PACK>(w + c, is_head ? d - c : 0, w_wide);
    }
    for (int i = threadIdx.x; i < half; i += WARPS * 32) {
        float2 at = rotation_at(rope, a.pos[t], i);
        cosine[i] = at.x;
        sine[i] = at.y;
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
    if (is_v) {
#pragma unroll
        for (int j = 0; j < N; j++) {
            int c = (lane + 32 * j) * PACK;
            append_pack(cached + c, v[j], d - c, cached_wide);
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
                    x[j][i] = fmaf(x[j][i], cosine[c], -(rotary[warp][c + half] * sine[c]));
                else if (c < 2 * half)
                    x[j][i] =
                        fmaf(x[j][i], cosine[c - half], rotary[warp][c - half] * sine[c - half]);
            }
        }
        store_pack<PACK>(to + first, x[j], d - first, to_wide);
        if (APPEND && !is_q) {
            float rounded[PACK];
#pragma unroll
            for (int i = 0; i < PACK; i++)
                rounded[i] = to_float(from_float<T>(x[j][i]));
            append_pack(cached + first, rounded, d - first, cached_wide);
        }
    }
}

static struct heads heads_of(const struct qk_norm_rope_args *a, const struct cuda_batch *b)
{
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
        .pos = b->rope_pos,
    };
    return h;
}

template <typename T, bool APPEND, typename K>
static void launch(struct gpu *c, const struct qk_norm_rope_args *a, const struct heads *h,
                   const struct pages *to)
{
    struct rotation r = rotation_of(a->rope);
    int64_t heads = (int64_t)h->n_q + (APPEND ? 2 : 1) * h->n_k;
    dim3 blocks((unsigned)a->q.dim[0], (unsigned)cuda_blocks(heads, WARPS));
    if (h->head_dim <= 32 * PACK)
        launch_next(c, norm_rope<T, 1, APPEND, K>, blocks, WARPS * 32, 0, *h, r, *to);
    else
        launch_next(c, norm_rope<T, PACKS, APPEND, K>, blocks, WARPS * 32, 0, *h, r, *to);
}

extern "C" lathe_status cuda_qk_norm_rope(void *stream, const struct qk_norm_rope_args *a,
                                          lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->b, &b, err);
    if (st)
        return st;
    struct heads h = heads_of(a, &b);
    struct pages none = {};
    WITH_ACT(a->q.dtype, T, launch<T, false, T>(c, a, &h, &none));
    return cuda_launched(c, err);
}

extern "C" lathe_status
cuda_qk_norm_rope_append(void *stream, const struct qk_norm_rope_append_args *a, lathe_error *err)
{
    struct gpu *c = cuda_of(stream);
    const struct kv_pages *kv = a->append.kv;
    struct cuda_batch b;
    lathe_status st = cuda_batch(c, a->norm_rope.b, &b, err);
    if (st)
        return st;
    struct heads h = heads_of(&a->norm_rope, &b);
    struct pages to = {
        .v = a->append.v.data,
        .v_stride = a->append.v.stride,
        .plane = {kv->k.data, kv->v.data},
        .plane_stride = {kv->k.stride, kv->v.stride},
        .width = a->append.k.dim[1],
        .table = kv->device_table,
        .slot = b.slot,
        .pos = b.pos,
        .pages_per_slot = kv->pages_per_slot,
        .page = (int32_t)kv->k.dim[1],
    };
    WITH_ACT(a->norm_rope.q.dtype, T,
             WITH_KV(kv->k.dtype, K, launch<T, true, K>(c, &a->norm_rope, &h, &to)));
    return cuda_launched(c, err);
}
