/* The rotation of a row's leading dims, as kernels take it. */
#ifndef LATHE_OP_CUDA_ROTATION_CUH
#define LATHE_OP_CUDA_ROTATION_CUH

#include "op/cuda/cuda.cuh"

/* struct rope, whose arrays are the host's. */
struct rotation {
    float inv_freq[OP_MAX_HEAD / 2];
    uint8_t axis[OP_MAX_HEAD / 2];
    float scale;
    int32_t half;
};

static inline struct rotation rotation_of(const struct rope *rope)
{
    struct rotation r;
    memset(&r, 0, sizeof r);
    r.half = rope->dims / 2;
    r.scale = rope->scale;
    for (int32_t i = 0; i < r.half; i++) {
        r.inv_freq[i] = rope->inv_freq[i];
        r.axis[i] = rope->axis[i];
    }
    return r;
}

/* Cosine and sine of pair i of a row at these positions, scaled. Angles beyond 10^5 take sincosf's long way. */
__device__ __forceinline__ float2 rotation_at(const struct rotation &rope, const int32_t pos[3],
                                              int i)
{
    float s, c, angle = (float)pos[rope.axis[i]] * rope.inv_freq[i];
    sincosf(angle, &s, &c);
    return make_float2(c * rope.scale, s * rope.scale);
}

#endif
