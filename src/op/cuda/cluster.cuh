/* Clusters of blocks, which read each other's shared memory; compute capability 9.0 and later. */
#ifndef LATHE_OP_CUDA_CLUSTER_CUH
#define LATHE_OP_CUDA_CLUSTER_CUH

#include "op/cuda/kv_tile.cuh"

/* A barrier of the cluster, in two parts so that work can stand between; nothing where there are no clusters. PUBLISH: what
 * was written to shared memory before is there for the others behind it. */
template <bool PUBLISH> __device__ __forceinline__ void arrive_cluster()
{
#if __CUDA_ARCH__ >= 900
    if (PUBLISH)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_cluster()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Splits that blocks of a cluster merge, at most. */
enum { CLUSTER_SPLITS = 8 };

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

/* The address of *p in the cluster's block `rank`. */
__device__ __forceinline__ uint32_t address_in(const void *p, uint32_t rank)
{
    uint32_t at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(p)), "r"(rank));
    return at;
}
__device__ __forceinline__ float4 cluster_float4(uint32_t at)
{
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(at)
                 : "memory");
    return x;
}
__device__ __forceinline__ float2 cluster_float2(uint32_t at)
{
    float2 x;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y)
                 : "r"(at)
                 : "memory");
    return x;
}

/* Four dims of a query from n splits, of which split i is in block rank_of(i), at the same place in each: as split_merge
 * adds them, bit for bit. */
template <typename RANK>
__device__ __forceinline__ float4 merge_cluster(const float2 *its_part, const float *its_sums,
                                                int n, RANK rank_of)
{
    float top = -INFINITY, sum[CLUSTER_SPLITS];
    float2 part[CLUSTER_SPLITS];
    float4 x[CLUSTER_SPLITS], acc[4] = {};
#pragma unroll
    for (int i = 0; i < CLUSTER_SPLITS; i++)
        if (i < n) {
            part[i] = cluster_float2(address_in(its_part, (uint32_t)rank_of(i)));
            x[i] = cluster_float4(address_in(its_sums, (uint32_t)rank_of(i)));
        }
#pragma unroll
    for (int i = 0; i < CLUSTER_SPLITS; i++)
        if (i < n)
            top = fmaxf(top, part[i].x);
#pragma unroll
    for (int i = 0; i < CLUSTER_SPLITS; i++) {
        sum[i] = 0;
        if (i >= n)
            continue;
        float y = part[i].x - (top == -INFINITY ? 0.0f : top), w = expf(y);
        sum[i] = fmaf(part[i].y, w, 0.0f);
        float4 *to = &acc[i % 4];
        to->x = fmaf(x[i].x, w, to->x);
        to->y = fmaf(x[i].y, w, to->y);
        to->z = fmaf(x[i].z, w, to->z);
        to->w = fmaf(x[i].w, w, to->w);
    }
    float all = ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
    return make_float4(((acc[0].x + acc[1].x) + (acc[2].x + acc[3].x)) / all,
                       ((acc[0].y + acc[1].y) + (acc[2].y + acc[3].y)) / all,
                       ((acc[0].z + acc[1].z) + (acc[2].z + acc[3].z)) / all,
                       ((acc[0].w + acc[1].w) + (acc[2].w + acc[3].w)) / all);
}

#endif

#endif
