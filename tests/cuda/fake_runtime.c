#include "fake_runtime.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "op/cuda/cuda.h"
#include "op/cuda/gemm.h"

struct fake_device fake;

static _Thread_local int last;

static cudaError_t result(int e)
{
    e = fake.lost ? fake.lost : e;
    last = e ? e : last;
    return (cudaError_t)e;
}

/* ---- The device -------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = fake.n_devices;
    if (fake.driver < CUDART_VERSION / 1000 * 1000)
        return result(cudaErrorInsufficientDriver);
    return result(fake.n_devices ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = fake.driver;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (fake.n_resets && fake.away) {
        fake.away--;
        return result(cudaErrorDevicesUnavailable);
    }
    return result(device < fake.n_devices ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    (void)device;
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "Fake GPU");
    p->major = fake.sm / 10;
    p->minor = fake.sm % 10;
    p->multiProcessorCount = 4;
    return result(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    return result(cudaSuccess);
}

cudaError_t cudaDeviceReset(void)
{
    if (fake.refused) {
        fake.refused--;
        return (cudaError_t)fake.lost;
    }
    fake.lost = 0;
    fake.n_resets++;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    int e = last;
    last = 0;
    return (cudaError_t)(fake.lost ? fake.lost : e);
}

const char *cudaGetErrorString(cudaError_t e)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "error %d", (int)e);
    return text;
}

/* ---- Streams and events ------------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    (void)flags;
    *s = malloc(1);
    return result(cudaSuccess);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    free(s);
    return result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    (void)s;
    return result(fake.is_capturing ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    (void)flags;
    if (fake.event) {
        *e = NULL;
        return result(fake.event);
    }
    *e = malloc(1);
    fake.n_events++;
    return result(cudaSuccess);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    fake.n_events_gone++;
    return result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    (void)e, (void)s;
    return result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    (void)e;
    if (fake.await_loses && !fake.lost)
        fake.lost = fake.await_loses;
    return result(cudaSuccess);
}

/* ---- Graphs: of nothing -------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void)s, (void)mode;
    fake.is_capturing = !fake.capture;
    return result(fake.capture);
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    (void)s;
    fake.is_capturing = false;
    *g = malloc(1);
    return result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long flags)
{
    (void)g, (void)flags;
    *x = malloc(1);
    return result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s)
{
    (void)x, (void)s;
    return result(cudaSuccess);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    (void)x, (void)s;
    if (fake.replay_loses && !fake.lost)
        fake.lost = fake.replay_loses;
    return result(fake.launch);
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    free(g);
    return result(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    free(x);
    return result(cudaSuccess);
}

/* ---- Memory ------------------------------------------------------------------------------------ */

static cudaError_t take(void **p, size_t n, size_t most)
{
    size_t whole = (n + 255) / 256 * 256;
    fake.n_allocs++;
    *p = n <= most ? aligned_alloc(256, whole) : NULL;
    if (*p)
        memset(*p, 0xCC, whole);
    return result(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    return take(p, n, fake.room);
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return result(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    (void)flags;
    return take(p, n, SIZE_MAX);
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return result(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *room, size_t *total)
{
    *room = fake.room;
    *total = 2 * fake.room;
    return result(fake.info);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    (void)kind, (void)s;
    if (!fake.lost && !fake.copy)
        memcpy(to, from, n);
    return result(fake.copy);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s)
{
    (void)s;
    if (!fake.lost)
        memset(p, value, n);
    return result(cudaSuccess);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    (void)p;
    memset(a, 0, sizeof *a);
    return result(cudaSuccess);
}

/* ---- Kernels: nothing is computed ---------------------------------------------------------------- */

struct gemm *gemm_open(void)
{
    return NULL;
}

void gemm_close(struct gemm *g)
{
    (void)g;
}

lathe_status cuda_arrange(void *stream, struct weight *const *w, size_t n, lathe_error *err)
{
    (void)w, (void)n;
    return cuda_launched(stream, err);
}

bool cuda_linear_silu_mul(void *stream, const struct linear_args a[2])
{
    (void)stream, (void)a;
    return false;
}

bool cuda_linear_add_norm(void *stream, const struct linear_args *a, const struct normed *n)
{
    (void)stream, (void)a, (void)n;
    return false;
}

bool cuda_linears_gates(void *stream, const struct linear_args *a, int n,
                        const struct gdn_gates_args *gates)
{
    (void)stream, (void)a, (void)n, (void)gates;
    return false;
}

bool cuda_gdn_mix(void *stream, const struct gdn_mix_args *a)
{
    (void)stream, (void)a;
    return false;
}

bool cuda_block_conv_add_norm(void *stream, const struct block_conv_add_norm_args *a)
{
    (void)stream, (void)a;
    return false;
}

bool cuda_block_conv_made(void *stream, const struct block_conv_made_args *a)
{
    (void)stream, (void)a;
    return false;
}

bool cuda_ring_rows(void *stream, const struct ring_rows_args *a)
{
    (void)stream, (void)a;
    return false;
}

bool cuda_linears(void *stream, const struct linear_args *a, int n)
{
    (void)stream, (void)a, (void)n;
    return false;
}

#define X(name)                                                                                    \
    lathe_status cuda_##name(void *stream, const struct name##_args *a, lathe_error *err)          \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)result(fake.launch);                                                                 \
        return cuda_launched(stream, err);                                                         \
    }
OPERATORS(X)
X(qk_norm_rope_append)
X(gated_attention)
#undef X

size_t cuda_delta_room(const void *stream, const struct gdn_heads *heads, enum dtype act)
{
    (void)stream, (void)heads, (void)act;
    return 0;
}

#define SCRATCH(name)                                                                              \
    size_t cuda_##name##_scratch(const void *stream, const struct name##_args *a)                  \
    {                                                                                              \
        (void)stream, (void)a;                                                                     \
        return 0;                                                                                  \
    }
SCRATCH(linear)
SCRATCH(gdn_gates)
SCRATCH(gated_delta_rule)
SCRATCH(attention)
SCRATCH(block_attention)
SCRATCH(top_k)
