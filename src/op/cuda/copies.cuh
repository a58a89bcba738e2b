/* Groups of a thread's asynchronous copies into shared memory (cp.async). */
#ifndef LATHE_OP_CUDA_COPIES_CUH
#define LATHE_OP_CUDA_COPIES_CUH

/* The copies that were asked for since the last group are a group, which may be empty. */
__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until at most N groups of the thread's copies are on their way: all before them have arrived. */
template <int N> __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#endif
