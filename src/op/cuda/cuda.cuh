/* What every kernel file includes: the backend's inside, numbers, and reductions. */
#ifndef LATHE_OP_CUDA_CUDA_CUH
#define LATHE_OP_CUDA_CUDA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>
#include <string.h>

extern "C" {
#include "op/cuda/cuda.h"
}

typedef __nv_bfloat16 bf16;
/* An E4M3 code, where it is a dtype. */
struct e4m3 {
    uint8_t code;
};

/* ---- Numbers ----------------------------------------------------------------------------------- */

__device__ __forceinline__ float to_float(float x)
{
    return x;
}
__device__ __forceinline__ float to_float(bf16 x)
{
    return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}
/* An E4M3 code. */
__device__ __forceinline__ float e4m3_to_float(uint8_t code)
{
    __nv_fp8_e4m3 x;
    x.__x = code;
    return (float)x;
}

__device__ __forceinline__ float to_float(e4m3 x)
{
    return e4m3_to_float(x.code);
}

template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x)
{
    return x;
}
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
/* As e4m3_from_f32 of the host. */
template <> __device__ __forceinline__ e4m3 from_float<e4m3>(float x)
{
    uint32_t u = __float_as_uint(x), a = u & 0x7FFFFFFF, code;
    if (a >= 0x43E00000) /* 448 */
        code = a > 0x7F800000 ? 0x7F : 0x7E;
    else if (a < 0x3C800000) /* below 2^-6: units of 2^-9, rounded by the sum */
        code = __float_as_uint(__fadd_rn(__uint_as_float(a), 0x1p14f)) & 15;
    else
        code = (a - (120u << 23) + 0x7FFFF + (a >> 20 & 1)) >> 20;
    return e4m3{(uint8_t)(code | (u >> 24 & 0x80))};
}

__device__ __forceinline__ float silu(float x)
{
    return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}
/* Of x, a sum of in_proj_a (which 0) or in_proj_b (1): the log decay or beta. */
__device__ __forceinline__ float gdn_gate(int which, float x, const float *A_log,
                                          const float *dt_bias, int64_t head)
{
    return which == 0 ? -expf(A_log[head]) * softplus(x + dt_bias[head]) : sigmoid(x);
}

/* ---- Reductions: the order of the additions depends on the block's size only ---------------------- */

template <typename X> __device__ __forceinline__ X warp_sum(X x)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int i = 16; i > 0; i >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
    return x;
}
/* Of a whole block of at most 1024 threads, a multiple of 32; every thread gets the sum. */
template <typename X> __device__ __forceinline__ X block_sum(X x)
{
    __shared__ X part[32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0)
        part[warp] = x;
    __syncthreads();
    x = lane < n ? part[lane] : X(0);
    return warp_sum(x);
}

/* ---- Launching ------------------------------------------------------------------------------------
 *
 * A kernel that launch_next starts may begin when all blocks of the one before it have begun: what that one wrote is
 * there behind begin_kernel, and what kernels before it wrote as well, since it waited for them. Only weights may be
 * read earlier. */

__device__ __forceinline__ void begin_kernel()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;\n\tgriddepcontrol.wait;" ::: "memory");
#endif
}

/* The kernel calls begin_kernel before it reads or writes what others do. `cluster` blocks are a cluster, where the
 * device has them; 1: there are none. What fails is reported by cuda_launched. */
template <typename... P, typename... A>
static inline void launch_clusters(struct gpu *c, unsigned cluster, void (*kernel)(P...), dim3 grid,
                                   dim3 block, size_t shared, A... args)
{
    cudaLaunchAttribute attribute[2] = {};
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    attribute[1].id = cudaLaunchAttributeClusterDimension;
    attribute[1].val.clusterDim.x = cluster;
    attribute[1].val.clusterDim.y = attribute[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.stream = c->stream;
    config.attrs = attribute;
    config.numAttrs = c->sm < 90 ? 0 : cluster > 1 ? 2 : 1; /* from there on kernels can overlap */
    (void)cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
}

template <typename... P, typename... A>
static inline void launch_next(struct gpu *c, void (*kernel)(P...), dim3 grid, dim3 block,
                               size_t shared, A... args)
{
    launch_clusters(c, 1, kernel, grid, block, shared, args...);
}

/* A small array of the host that a kernel takes by value: it comes with the launch, where a copy would stand between
 * two kernels. A larger one is uploaded. To be read behind begin_kernel, and passed as __grid_constant__. */
enum { FEW = 64 };
struct few {
    const int32_t *there; /* NULL: in value */
    int32_t value[FEW];
};
__device__ __forceinline__ int32_t few_at(const struct few &f, int64_t i)
{
    return f.there ? f.there[i] : f.value[i];
}

/* ---- Host side --------------------------------------------------------------------------------- */

static inline bool is_aligned(const void *p, size_t to)
{
    return (uintptr_t)p % to == 0;
}
/* Does every row begin at a multiple of 16 bytes? The stride is in elements of `size` bytes. */
static inline bool rows_aligned(const void *p, int64_t stride, size_t size)
{
    return is_aligned(p, 16) && (size_t)stride * size % 16 == 0;
}

/* Runs its last argument with T the type of an activation dtype. */
#define WITH_ACT(dtype, T, ...)                                                                    \
    do {                                                                                           \
        if ((dtype) == DT_F32) {                                                                   \
            typedef float T;                                                                       \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            typedef bf16 T;                                                                        \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* The same for a dtype of keys and values. */
#define WITH_KV(dtype, K, ...)                                                                     \
    do {                                                                                           \
        if ((dtype) == DT_F8_E4M3) {                                                               \
            typedef e4m3 K;                                                                        \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            WITH_ACT(dtype, K, __VA_ARGS__);                                                       \
        }                                                                                          \
    } while (0)

/* False after a failure, which cuda_launched reports. */
static inline bool few_of(struct gpu *c, struct few *f, const int32_t *p, int64_t n)
{
    f->there = (const int32_t *)cuda_home(c, p);
    if (f->there)
        return true;
    if (n <= FEW)
        memcpy(f->value, p, (size_t)n * sizeof *p);
    else
        f->there = (const int32_t *)cuda_upload(c, p, (size_t)n * sizeof *p);
    return n <= FEW || f->there;
}

/* What the device takes of the shared memory that each block has, in bytes. */
enum { SHARED_OF_SYSTEM = 1024 };

/* Lets a kernel have `dynamic` bytes of shared memory a block, and asks that a multiprocessor divide its memory so that
 * `blocks` of its blocks, each with `fixed` bytes beside those, have room: the rest is L1. */
template <typename... P>
static inline void prefer_shared(const struct gpu *c, void (*kernel)(P...), size_t dynamic,
                                 size_t fixed, int blocks)
{
    size_t all = (size_t)c->shared_per_sm;
    size_t want = (size_t)blocks * (dynamic + fixed + SHARED_OF_SYSTEM);
    int percent = want < all ? (int)((100 * want + all - 1) / all) : 100;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dynamic);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent);
}

static inline int cuda_blocks(int64_t n, int64_t per_block)
{
    return (int)((n + per_block - 1) / per_block);
}

#endif
