/* New keys, normalised and rotated, and values of all layers of a drafter to their rings. */
#include "op/cuda/append.cuh"
#include "op/cuda/rotation.cuh"

enum {
    WARPS = 8,
    MOST_LAYERS = 8,
    MOST_DIM = 32 * PACK,
};

struct layer_rows {
    bf16 *k;
    const bf16 *v;
    const float *norm;
    bf16 *plane[2]; /* keys, values */
    int64_t k_stride, v_stride, plane_stride[2];
    int32_t size;
};

struct all_rows {
    struct layer_rows layer[MOST_LAYERS];
    int32_t heads, dim;
    float eps;
    const int32_t (*pos)[3];
    const struct batch_seq *seq;
    const int32_t *seq_of;
};

/* All in BF16, 16-byte aligned; heads of up to MOST_DIM dims, a multiple of PACK. A warp a head as in norm_rope, with its
 * bits. blockIdx.x: rows, y: WARPS heads, those of values behind those of keys, z: layers. Bound by the latency of its
 * reads. */
static __global__ void __launch_bounds__(WARPS * 32)
    append_rows(const __grid_constant__ struct all_rows a,
                const __grid_constant__ struct rotation rope)
{
    begin_kernel();
    __shared__ float cosine[MOST_DIM / 2], sine[MOST_DIM / 2], rotary[WARPS][MOST_DIM];
    const struct layer_rows &l = a.layer[blockIdx.z];
    int64_t t = blockIdx.x;
    int warp = threadIdx.x / 32, c = threadIdx.x % 32 * PACK, half = rope.half;
    int at = (int)blockIdx.y * WARPS + warp;
    bool is_k = at < a.heads, is_v = !is_k && at < 2 * a.heads;
    int64_t head = (int64_t)(is_k ? at : at - a.heads) * a.dim + c;
    bf16 *k = l.k + t * l.k_stride + head;
    struct batch_seq s = a.seq[a.seq_of[t]];
    int64_t i = t - s.first_row;
    bool is_kept = i < s.n_rows && s.n_rows - i <= l.size; /* no later row takes its place */
    bool has = c < a.dim;
    bf16 *to = l.plane[is_v] + s.slot * l.plane_stride[is_v] +
               (s.pos + i) % l.size * (int64_t)a.heads * a.dim + head;
    pack<bf16, PACK> v[1] = {};
    pack<float, PACK> weight = {};
    if (has && (is_k || is_v))
        load_words<PACK * 2>(v[0].w, is_k ? k : l.v + t * l.v_stride + head);
    if (has && is_k)
        load_words<PACK * 4>(weight.w, l.norm + c);
    for (int p = threadIdx.x; p < half; p += WARPS * 32) {
        float2 turn = rotation_at(rope, a.pos[t], p);
        cosine[p] = turn.x;
        sine[p] = turn.y;
    }
    float x[PACK];
    if (is_k) {
        float scale = rms_scale_of<false>(v, a.dim, a.eps);
#pragma unroll
        for (int j = 0; j < PACK; j++) {
            x[j] = v[0][j] * scale * weight[j];
            rotary[warp][c + j] = x[j];
        }
    }
    __syncthreads();
    if (!has)
        return;
    if (is_v && is_kept)
        append_pack(to, v[0], PACK, true);
    if (!is_k)
        return;
#pragma unroll
    for (int j = 0; j < PACK; j++) {
        int d = c + j;
        if (d < half)
            x[j] = fmaf(x[j], cosine[d], -(rotary[warp][d + half] * sine[d]));
        else if (d < 2 * half)
            x[j] = fmaf(x[j], cosine[d - half], rotary[warp][d - half] * sine[d - half]);
    }
    float rounded[PACK];
#pragma unroll
    for (int j = 0; j < PACK; j++)
        rounded[j] = to_float(from_float<bf16>(x[j]));
    store_pack<PACK>(k, x, PACK, true);
    if (is_kept)
        append_pack(to, rounded, PACK, true);
}

extern "C" bool cuda_ring_rows(void *stream, const struct ring_rows_args *a)
{
    struct gpu *c = cuda_of(stream);
    const struct kv_ring *ring = a->rows[0].ring;
    int64_t heads = ring->k.dim[2], dim = ring->k.dim[3];
    struct cuda_batch b;
    lathe_error err;
    if (a->n > MOST_LAYERS || dim > MOST_DIM || dim % PACK || a->rope->dims > dim)
        return false;
    struct all_rows p = {};
    for (int32_t i = 0; i < a->n; i++) {
        const struct ring_rows *r = &a->rows[i];
        ring = r->ring;
        if (r->k.dtype != DT_BF16 || ring->k.dtype != DT_BF16 || ring->k.dim[2] != heads ||
            ring->k.dim[3] != dim || !rows_aligned(r->k.data, r->k.stride, 2) ||
            !rows_aligned(r->v.data, r->v.stride, 2) || !is_wide(r->k_norm.data) ||
            !rows_aligned(ring->k.data, ring->k.stride, 2) ||
            !rows_aligned(ring->v.data, ring->v.stride, 2))
            return false;
        p.layer[i] = {
            .k = (bf16 *)r->k.data,
            .v = (const bf16 *)r->v.data,
            .norm = (const float *)r->k_norm.data,
            .plane = {(bf16 *)ring->k.data, (bf16 *)ring->v.data},
            .k_stride = r->k.stride,
            .v_stride = r->v.stride,
            .plane_stride = {ring->k.stride, ring->v.stride},
            .size = (int32_t)ring->k.dim[1],
        };
    }
    if (cuda_batch(c, a->b, &b, &err))
        return false; /* the parts report it */
    p.heads = (int32_t)heads;
    p.dim = (int32_t)dim;
    p.eps = a->eps;
    p.pos = b.rope_pos;
    p.seq = b.seq;
    p.seq_of = b.seq_of;
    launch_next(c, append_rows,
                dim3((unsigned)b.n_rows, (unsigned)cuda_blocks(2 * heads, WARPS), (unsigned)a->n),
                WARPS * 32, 0, p, rotation_of(a->rope));
    return true;
}
