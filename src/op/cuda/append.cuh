/* The writing of keys and values to a cache: values change their dtype or are copied bit by bit. */
#ifndef LATHE_OP_CUDA_APPEND_CUH
#define LATHE_OP_CUDA_APPEND_CUH

#include "op/cuda/pack.cuh"

enum { APPEND_THREADS = 256 };

/* Unlike from_float, keeps the sign of a NaN and what is left of its payload. */
__device__ __forceinline__ void put_value(float *p, float x)
{
    *p = x;
}
__device__ __forceinline__ void put_value(bf16 *p, float x)
{
    *(uint16_t *)p = x == x ? __bfloat16_as_ushort(__float2bfloat16_rn(x))
                            : (uint16_t)(__float_as_uint(x) >> 16 | 0x40);
}

__device__ __forceinline__ void put_value(e4m3 *p, float x)
{
    *p = from_float<e4m3>(x);
}

/* The first `left` of PACK values x[i]. */
template <typename K, typename X>
__device__ __forceinline__ void append_pack(K *to, const X &x, int64_t left, bool wide)
{
    K out[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++)
        put_value(&out[i], x[i]);
    if (!wide || left < PACK) {
#pragma unroll
        for (int i = 0; i < PACK; i++)
            if (i < left)
                to[i] = out[i];
    } else if constexpr (sizeof out == 8) {
        uint2 w;
        memcpy(&w, out, sizeof out);
        *(uint2 *)to = w;
    } else {
        uint4 w[sizeof out / 16];
        memcpy(w, out, sizeof out);
#pragma unroll
        for (int i = 0; i < (int)(sizeof out / 16); i++)
            ((uint4 *)to)[i] = w[i];
    }
}

/* One row of n values, by the whole block. */
template <typename K, typename T>
__device__ __forceinline__ void append_row(K *to, const T *from, int64_t n)
{
    bool from_wide = is_wide(from), to_wide = is_wide(to);
    for (int64_t c = (int64_t)threadIdx.x * PACK; c < n; c += APPEND_THREADS * PACK)
        append_pack(to + c, load_pack<PACK>(from + c, n - c, from_wide), n - c, to_wide);
}

/* What a block writes to: blockIdx.y is 0 for keys, 1 for values. */
struct append {
    const void *in[2];
    int64_t in_stride[2]; /* elements */
    void *plane[2];
    int64_t plane_stride[2]; /* elements from one page, or slot, to the next */
    int64_t rows;            /* positions of a page or slot */
    int64_t width;
};

static inline struct append append_of(const struct tensor *k, const struct tensor *v,
                                      const struct tensor *k_plane, const struct tensor *v_plane)
{
    struct append a = {
        .in = {k->data, v->data},
        .in_stride = {k->stride, v->stride},
        .plane = {k_plane->data, v_plane->data},
        .plane_stride = {k_plane->stride, v_plane->stride},
        .rows = k_plane->dim[1],
        .width = k->dim[1],
    };
    return a;
}

#endif
