/* Weights to the device. Copies from pageable memory go through the driver's one small buffer; here every thread
 * of the pool has two pinned ones of its own and fills one while the other is on its way. */
#include <string.h>

#include "op/cuda/cuda.h"
#include "op/load.h"

enum {
    MAX_THREADS = 16
}; /* eight saturate the bus; pinning more memory than these need takes time */

struct sender {
    cudaStream_t stream;
    void *buffer[2];
    cudaEvent_t sent[2];
};

static cudaError_t sender_open(struct sender *s, int device)
{
    *s = (struct sender){0};
    cudaError_t e = cudaSetDevice(device);
    if (!e)
        e = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
    for (int i = 0; i < 2 && !e; i++) {
        e = cudaHostAlloc(&s->buffer[i], LOAD_PART, cudaHostAllocDefault);
        if (!e)
            e = cudaEventCreateWithFlags(&s->sent[i], cudaEventDisableTiming);
    }
    return e;
}

static void sender_close(struct sender *s)
{
    for (int i = 0; i < 2; i++) {
        if (s->sent[i])
            (void)cudaEventDestroy(s->sent[i]);
        (void)cudaFreeHost(s->buffer[i]);
    }
    if (s->stream)
        (void)cudaStreamDestroy(s->stream);
}

/* Copies parts until there are none. */
static cudaError_t send(struct sender *s, struct loading *l, int32_t thread)
{
    struct load part;
    for (int i = 0; loading_next(l, &part); i ^= 1) {
        cudaError_t e = cudaEventSynchronize(s->sent[i]); /* of the part before the last */
        if (e)
            return e;
        memcpy(s->buffer[i], part.from, part.bytes);
        e = cudaMemcpyAsync(part.to, s->buffer[i], part.bytes, cudaMemcpyDefault, s->stream);
        if (!e)
            e = cudaEventRecord(s->sent[i], s->stream);
        if (e)
            return e;
        loading_done(l, thread, part.bytes);
    }
    return cudaStreamSynchronize(s->stream);
}

struct sending {
    struct loading loading;
    struct gpu *gpu;
};

static void send_all(void *ctx, int32_t thread, int32_t n_threads)
{
    (void)n_threads;
    struct sending *a = ctx;
    struct sender s;
    if (thread >= MAX_THREADS)
        return;
    cudaError_t e = sender_open(&s, a->gpu->device);
    if (!e)
        e = send(&s, &a->loading, thread);
    if (e) {
        lathe_error err;
        (void)cudaGetLastError();
        (void)cuda_error(a->gpu, e, "copying weights", &err);
        loading_fail(&a->loading, &err);
    }
    sender_close(&s);
}

lathe_status cuda_load(void *stream, struct pool *pool, const struct load *load, size_t n,
                       lathe_progress_fn progress, void *progress_ctx, lathe_error *err)
{
    struct sending a = {.gpu = cuda_of(stream)};
    lathe_status st = loading_init(&a.loading, load, n, progress, progress_ctx, err);
    if (st)
        return st;
    st = backend_cuda.wait(stream, err); /* zeroing comes before */
    if (!st) {
        pool_run(pool, send_all, &a);
        st = loading_end(&a.loading, err);
        if (st) {
            lathe_error lost;
            (void)backend_cuda.wait(stream, &lost); /* notes it, if that is why */
        }
    }
    loading_release(&a.loading);
    return st;
}
