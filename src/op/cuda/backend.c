/* The CUDA backend: one device, one stream, memory, and the table of entries. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "op/cuda/cuda.h"
#include "op/cuda/gemm.h"

/* The compute capabilities that kernels were built for, from the Makefile: "80 86 89 90a 120a". */
#ifndef LATHE_CUDA_SMS
#define LATHE_CUDA_SMS "90"
#endif

/* ---- Failures -----------------------------------------------------------------------------------
 *
 * Some errors, an illegal address or a trap, end the device's context: every call of the process returns them from
 * then on. Only a reset of the device brings it back, if the driver agrees, and takes with it whatever other streams
 * have there; so it is reset by the last stream that is closed. Driver 580 does not agree: the reset succeeds, and then
 * the device is unavailable to this process. Contexts made through the driver's own interface, before the error or
 * after it, return the error too; neither waiting nor giving everything back first changes that. */

static struct {
    pthread_mutex_t lock;
    int n_streams;
    bool is_lost, was_reset;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Resets a lost device that no stream has any more. Called with the lock. The first call may still return what
 * the device was lost to. */
static void revive(void)
{
    for (int i = 0; i < 2 && process.is_lost && process.n_streams == 0; i++) {
        process.is_lost = cudaDeviceReset() != cudaSuccess;
        process.was_reset = true;
    }
    (void)cudaGetLastError();
}

lathe_status cuda_error(struct gpu *c, cudaError_t e, const char *what, lathe_error *err)
{
    if (e == cudaErrorMemoryAllocation)
        return fail(err, LATHE_E_MEMORY, "%s: %s", what, cudaGetErrorString(e));
    if (c && e == cudaErrorNoKernelImageForDevice)
        return fail(err, LATHE_E_DEVICE,
                    "%s: no code for this GPU, which is %s; this program was built for %s", what,
                    c->name, LATHE_CUDA_SMS);
    return fail(err, LATHE_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

/* Notes it if the device is lost: then the error does not go away by having been read. */
static void look(struct gpu *c, cudaError_t e)
{
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation || c->lost ||
        c->n_homes > 0) /* what is captured does not run */
        return;
    cudaError_t again = cudaStreamSynchronize(c->stream);
    if (!again)
        again = cudaDeviceSynchronize();
    if (!again)
        return;
    c->lost = e;
    pthread_mutex_lock(&process.lock);
    process.is_lost = true;
    pthread_mutex_unlock(&process.lock);
}

/* ---- Streams ------------------------------------------------------------------------------------ */

/* Does the build hold code for this device? Code of one major version runs on later minor ones, but not that for
 * one architecture alone, which has an a behind it. */
static bool is_built_for(int sm)
{
    const char *p = LATHE_CUDA_SMS;
    while (*p) {
        char *end;
        long built = strtol(p, &end, 10);
        if (end == p)
            break;
        bool alone = *end == 'a';
        if (built == sm || (!alone && built / 10 == sm / 10 && built % 10 <= sm % 10))
            return true;
        p = end + alone;
    }
    return false;
}

static bool was_reset(void)
{
    pthread_mutex_lock(&process.lock);
    bool was = process.was_reset;
    pthread_mutex_unlock(&process.lock);
    return was;
}

static lathe_status find_device(struct gpu *c, lathe_error *err)
{
    int n = 0, driver = 0;
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e == cudaErrorInsufficientDriver) {
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0)
            return fail(err, LATHE_E_UNSUPPORTED, "CUDA: there is no NVIDIA driver");
        return fail(err, LATHE_E_DEVICE,
                    "CUDA: the driver is of CUDA %d.%d, this program needs %d.%d or later",
                    driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                    CUDART_VERSION % 1000 / 10);
    }
    if (e == cudaErrorNoDevice || (!e && n == 0))
        return fail(err, LATHE_E_UNSUPPORTED, "CUDA: no NVIDIA GPU is visible");
    if (!e)
        e = cudaSetDevice(c->device); /* the first that is visible, which is every thread's own */
    if (!e)
        e = cudaGetDeviceProperties(&p, c->device);
    if (e == cudaErrorDevicesUnavailable && was_reset())
        return fail(err, LATHE_E_DEVICE,
                    "CUDA: the driver does not give a lost device back to this process; start the "
                    "program again");
    if (e)
        return cuda_error(c, e, "CUDA", err);
    c->sm = p.major * 10 + p.minor;
    c->n_sms = p.multiProcessorCount;
    c->shared_per_sm = (int)p.sharedMemPerMultiprocessor;
    (void)snprintf(c->name, sizeof c->name, "sm_%d", c->sm);
    if (!is_built_for(c->sm))
        return fail(err, LATHE_E_DEVICE,
                    "CUDA: %s has compute capability %d.%d; this program was built for %s", p.name,
                    p.major, p.minor, LATHE_CUDA_SMS);
    return LATHE_OK;
}

static void close_stream(void *stream)
{
    struct gpu *c = stream;
    bool was_open = c->is_open;
    if (c->failed)
        look(c, c->failed);
    gemm_close(c->gemm);
    for (int i = 0; i < ROUND_REPORTS; i++)
        if (c->mark[i])
            (void)cudaEventDestroy(c->mark[i]);
    if (c->stream)
        (void)cudaStreamDestroy(c->stream);
    (void)cudaFree(c->ring);
    free(c->batch_host);
    free(c);
    pthread_mutex_lock(&process.lock);
    process.n_streams -= was_open;
    if (process.is_lost)
        revive();
    pthread_mutex_unlock(&process.lock);
}

/* Counts the stream, whose device must not be lost. */
static lathe_status enter(struct gpu *c, lathe_error *err)
{
    pthread_mutex_lock(&process.lock);
    if (process.is_lost)
        revive();
    bool is_lost = process.is_lost, in_use = process.n_streams > 0;
    c->is_open = !is_lost;
    process.n_streams += !is_lost;
    pthread_mutex_unlock(&process.lock);
    if (!is_lost)
        return LATHE_OK;
    return fail(err, LATHE_E_DEVICE,
                in_use
                    ? "CUDA: the device failed under another engine of this process; it is reset "
                      "when all that were open then are closed"
                    : "CUDA: the device failed and cannot be reset in this process");
}

static lathe_status open_stream(void **stream, struct pool *pool, const char *isa, lathe_error *err)
{
    (void)pool;
    *stream = NULL;
    struct gpu *c = calloc(1, sizeof *c);
    if (!c)
        return fail_memory(err, sizeof *c);
    lathe_status st = enter(c, err);
    if (!st)
        st = find_device(c, err);
    if (!st && isa && strcmp(isa, c->name) != 0)
        st = fail(err, LATHE_E_ARGUMENT, "instruction set \"%s\": this GPU has %s", isa, c->name);
    if (!st) {
        cudaError_t e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
        for (int i = 0; !e && i < ROUND_REPORTS; i++) /* here, so that a round creates nothing */
            e = cudaEventCreateWithFlags(&c->mark[i], cudaEventDisableTiming);
        if (e)
            st = cuda_error(c, e, "CUDA", err);
    }
    c->batch_host = malloc(CUDA_MAX_UPLOAD);
    if (!st && !c->batch_host)
        st = fail_memory(err, CUDA_MAX_UPLOAD);
    if (st) {
        close_stream(c);
        (void)cudaGetLastError(); /* else the thread's next launch would be told of it */
        return st;
    }
    c->gemm = gemm_open();
    *stream = c;
    return LATHE_OK;
}

static const char *isa_of(const void *stream)
{
    const struct gpu *c = stream;
    return c->name;
}

static void note(struct gpu *c, cudaError_t e)
{
    if (e && !c->failed)
        c->failed = e;
}

lathe_status cuda_launched(struct gpu *c, lathe_error *err)
{
    cudaError_t e = c->failed ? c->failed : cudaGetLastError();
    c->failed = cudaSuccess;
    if (e)
        look(c, e);
    if (c->lost)
        e = c->lost;
    return e ? cuda_error(c, e, "CUDA", err) : LATHE_OK;
}

/* ---- Memory -------------------------------------------------------------------------------------- */

enum {
    ZEROS = 256, /* bytes behind the ring that stay zero */
    /* At the 27B's size, with rounds of one number of rows captured, an H200 has 14 MB beside what was taken. A graph is 400
     * launches of a KB, and where the number of rows is chosen round by round there are 90 for 262144 positions, 108 for a
     * million. */
    DRIVER = 64 << 20,
};

/* The ring comes with the first memory: who only asks what there is takes nothing. */
static cudaError_t ring_open(struct gpu *c)
{
    void *ring = NULL;
    cudaError_t e = c->ring ? cudaSuccess : cudaMalloc(&ring, CUDA_RING + ZEROS);
    if (!ring)
        return e;
    c->ring = ring;
    return cudaMemsetAsync(c->ring + CUDA_RING, 0, ZEROS, c->stream);
}

static lathe_status cuda_alloc(void *stream, void **p, size_t bytes, lathe_error *err)
{
    struct gpu *c = stream;
    *p = NULL;
    cudaError_t e = ring_open(c);
    if (!e)
        e = cudaMalloc(p, bytes ? bytes : 1);
    if (e) {
        size_t room = 0, total = 0;
        look(c, e);
        (void)cudaMemGetInfo(&room, &total);
        *p = NULL;
        return fail(err, e == cudaErrorMemoryAllocation ? LATHE_E_MEMORY : LATHE_E_DEVICE,
                    "GPU memory: %zu bytes wanted, %zu of %zu free: %s", bytes, room, total,
                    cudaGetErrorString(e));
    }
    note(c, cudaMemsetAsync(*p, 0, bytes, c->stream));
    return LATHE_OK;
}

static void cuda_free(void *stream, void *p)
{
    (void)stream;
    (void)cudaFree(p);
}

static void cuda_room(void *stream, size_t *total, size_t *room)
{
    (void)stream;
    *total = *room = 0;
    cudaError_t e = cudaMemGetInfo(room, total);
    if (e) {
        log_warn("CUDA: the free memory is not known: %s; what is planned is not held against it",
                 cudaGetErrorString(e));
        (void)cudaGetLastError();
        *total = *room = 0;
    }
}

static lathe_status cuda_alloc_host(void *stream, void **p, size_t bytes, lathe_error *err)
{
    *p = NULL;
    cudaError_t e = cudaHostAlloc(p, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e) {
        (void)cudaGetLastError();
        *p = NULL;
        return cuda_error(stream, e, "pinned host memory", err);
    }
    memset(*p, 0, bytes);
    return LATHE_OK;
}

static void cuda_free_host(void *stream, void *p)
{
    (void)stream;
    (void)cudaFreeHost(p);
}

static void cuda_zero(void *stream, void *p, size_t bytes)
{
    struct gpu *c = stream;
    note(c, cudaMemsetAsync(p, 0, bytes, c->stream));
}

static void cuda_copy(void *stream, void *dst, const void *src, size_t bytes)
{
    struct gpu *c = stream;
    note(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, c->stream));
}

static void cuda_copy_in(void *stream, void *dst, const void *src, size_t bytes)
{
    struct gpu *c = stream;
    struct cudaPointerAttributes from;
    note(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, c->stream));
    /* Pageable memory has been read by now; a copy from pinned memory reads it later. */
    if (cudaPointerGetAttributes(&from, src) || from.type != cudaMemoryTypeUnregistered)
        note(c, cudaStreamSynchronize(c->stream));
}

static lathe_status cuda_wait(void *stream, lathe_error *err)
{
    struct gpu *c = stream;
    note(c, cudaStreamSynchronize(c->stream));
    return cuda_launched(c, err);
}

static lathe_status cuda_copy_out(void *stream, void *dst, const void *src, size_t bytes,
                                  lathe_error *err)
{
    struct gpu *c = stream;
    note(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, c->stream));
    return cuda_wait(stream, err);
}

const void *cuda_home(const struct gpu *c, const void *p)
{
    for (int i = 0; i < c->n_homes; i++) {
        uintptr_t at = (uintptr_t)p - (uintptr_t)c->home[i].host;
        if (at < c->home[i].bytes)
            return (const unsigned char *)c->home[i].device + at;
    }
    return NULL;
}

const void *cuda_upload(struct gpu *c, const void *p, size_t bytes)
{
    const void *home = cuda_home(c, p);
    if (home)
        return home;
    if (c->n_homes > 0) { /* it would be gone when the schedule runs */
        note(c, cudaErrorStreamCaptureUnsupported);
        return NULL;
    }
    size_t whole = (bytes + 255) & ~(size_t)255;
    bool small = bytes <= sizeof c->sent;
    /* A schedule names the same few sequences layer after layer. */
    if (small && c->sent_device && bytes == c->sent_bytes && memcmp(p, c->sent, bytes) == 0)
        return c->sent_device;
    cudaError_t e = bytes > CUDA_MAX_UPLOAD ? cudaErrorInvalidValue : ring_open(c);
    if (e) {
        note(c, e);
        return NULL;
    }
    if (c->ring_at + whole > CUDA_RING) {
        c->ring_at = 0;
        c->batch_device = c->sent_device = NULL; /* they may be written over from now on */
    }
    unsigned char *at = c->ring + c->ring_at;
    c->ring_at += whole;
    e = cudaMemcpyAsync(at, p, bytes, cudaMemcpyHostToDevice, c->stream);
    if (e) {
        note(c, e);
        return NULL;
    }
    if (small) {
        memcpy(c->sent, p, bytes);
        c->sent_bytes = bytes;
        c->sent_device = at;
    }
    return at;
}

/* ---- Batches -------------------------------------------------------------------------------------- */

/* Packs `bytes` behind what is there, 16-byte aligned; returns where. SIZE_MAX if they do not fit. */
static size_t pack(unsigned char *to, size_t *used, const void *p, size_t bytes)
{
    size_t at = (*used + 15) & ~(size_t)15;
    if (at > CUDA_MAX_UPLOAD || bytes > CUDA_MAX_UPLOAD - at)
        return SIZE_MAX;
    memset(to + *used, 0, at - *used);
    if (p)
        memcpy(to + at, p, bytes);
    *used = at + bytes;
    return at;
}

/* Of one sequence whose arrays have a home; that of seq_of is behind the ring. */
static lathe_status resident(struct gpu *c, const struct batch *b, struct cuda_batch *out,
                             lathe_error *err)
{
    *out = (struct cuda_batch){
        .phase = b->phase,
        .n_rows = b->n_rows,
        .n_seqs = b->n_seqs,
        .token = cuda_home(c, b->token),
        .slot = cuda_home(c, b->slot),
        .pos = cuda_home(c, b->pos),
        .rope_pos = cuda_home(c, b->rope_pos),
        .seq = cuda_home(c, b->seq),
        .seq_of = (const int32_t *)(const void *)(c->ring + CUDA_RING),
    };
    if (b->n_seqs != 1 || b->n_rows * sizeof *b->pos > ZEROS || !out->token || !out->slot ||
        !out->pos || !out->rope_pos || !out->seq)
        return fail(err, LATHE_E_UNSUPPORTED, "a batch whose arrays the device does not have");
    return LATHE_OK;
}

/* The arrays are packed and, if they are not what the device has, sent. */
lathe_status cuda_batch(struct gpu *c, const struct batch *b, struct cuda_batch *out,
                        lathe_error *err)
{
    static const size_t none = SIZE_MAX;
    if (c->n_homes > 0)
        return resident(c, b, out, err);
    unsigned char now[4096], *host = now;
    size_t n = (size_t)b->n_rows, used = 0, row = n * sizeof(int32_t);
    unsigned char *big = NULL;
    size_t most = 8 * 16 + row * 7 + (size_t)b->n_seqs * sizeof *b->seq;
    if (most > CUDA_MAX_UPLOAD)
        return fail(err, LATHE_E_LIMIT, "a batch of %d rows; at most %d bytes of them", b->n_rows,
                    CUDA_MAX_UPLOAD);
    if (most > sizeof now) {
        big = c->batch_host + CUDA_MAX_UPLOAD / 2; /* beside what is kept */
        host = big;
        if (most > CUDA_MAX_UPLOAD / 2)
            return fail(err, LATHE_E_LIMIT, "a batch of %d rows does not fit in %d bytes",
                        b->n_rows, CUDA_MAX_UPLOAD / 2);
    }
    size_t token = b->token ? pack(host, &used, b->token, row) : none;
    size_t slot = b->slot ? pack(host, &used, b->slot, row) : none;
    size_t pos = b->pos ? pack(host, &used, b->pos, row) : none;
    size_t rope = b->rope_pos ? pack(host, &used, b->rope_pos, 3 * row) : none;
    size_t seq = pack(host, &used, b->seq, (size_t)b->n_seqs * sizeof *b->seq);
    size_t seq_of = pack(host, &used, NULL, row);
    for (int32_t i = 0; i < b->n_seqs; i++)
        for (int32_t k = 0; k < b->seq[i].n_rows && b->seq[i].first_row + k < b->n_rows; k++)
            memcpy(host + seq_of + (size_t)(b->seq[i].first_row + k) * sizeof i, &i, sizeof i);
    if (!c->batch_device || used != c->batch_bytes || memcmp(host, c->batch_host, used) != 0) {
        memcpy(c->batch_host, host, used);
        c->batch_bytes = used;
        c->batch_device = NULL; /* until it is sent */
        const unsigned char *at = cuda_upload(c, c->batch_host, used);
        if (!at)
            return cuda_launched(c, err);
        c->batch_device = at;
    }
    const unsigned char *d = c->batch_device;
#define AT(x) ((x) == none ? NULL : (const void *)(d + (x)))
    *out = (struct cuda_batch){
        .phase = b->phase,
        .n_rows = b->n_rows,
        .n_seqs = b->n_seqs,
        .token = AT(token),
        .slot = AT(slot),
        .pos = AT(pos),
        .rope_pos = AT(rope),
        .seq = AT(seq),
        .seq_of = AT(seq_of),
    };
#undef AT
    return LATHE_OK;
}

unsigned char *cuda_scratch(struct gpu *c)
{
    note(c, ring_open(c));
    c->ring_at = 0;
    c->batch_device = c->sent_device = NULL; /* they are written over */
    return c->ring;
}

static lathe_status joined(void *stream, lathe_error *err)
{
    return cuda_launched(cuda_of(stream), err);
}

/* ---- Schedules that run again and again ------------------------------------------------------------ */

static lathe_status cuda_capture(void *stream, const struct home *home, int n, lathe_error *err)
{
    struct gpu *c = stream;
    note(c, ring_open(c));
    if (!c->failed)
        note(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed));
    lathe_status st = cuda_launched(c, err);
    if (st)
        return st;
    for (c->n_homes = 0; c->n_homes < n; c->n_homes++)
        c->home[c->n_homes] = home[c->n_homes];
    return LATHE_OK;
}

static lathe_status cuda_captured(void *stream, void **graph, lathe_error *err)
{
    struct gpu *c = stream;
    cudaGraph_t notes = NULL;
    cudaGraphExec_t exec = NULL;
    c->n_homes = 0;
    note(c, cudaStreamEndCapture(c->stream, &notes));
    if (notes && !c->failed)
        note(c, cudaGraphInstantiate(&exec, notes, 0));
    if (exec)
        note(c, cudaGraphUpload(exec, c->stream));
    if (notes)
        (void)cudaGraphDestroy(notes);
    lathe_status st = cuda_launched(c, err);
    if (st && exec) {
        (void)cudaGraphExecDestroy(exec);
        exec = NULL;
    }
    *graph = exec;
    return st;
}

static lathe_status cuda_replay(void *stream, void *graph, lathe_error *err)
{
    struct gpu *c = stream;
    note(c, cudaGraphLaunch(graph, c->stream));
    return cuda_launched(c, err);
}

static void cuda_release(void *stream, void *graph)
{
    (void)stream;
    if (graph)
        (void)cudaGraphExecDestroy(graph);
}

static void cuda_mark(void *stream, int i)
{
    struct gpu *c = stream;
    note(c, cudaEventRecord(c->mark[i], c->stream));
}

static lathe_status cuda_await(void *stream, int i, lathe_error *err)
{
    struct gpu *c = stream;
    note(c, cudaEventSynchronize(c->mark[i]));
    return cuda_launched(c, err);
}

static void *native(void *stream)
{
    return cuda_of(stream)->stream;
}

static lathe_status set_prompt_math(void *stream, enum prompt_math math, lathe_error *err)
{
    static const struct {
        const char *name;
        int sm;
    } need[] = {[PROMPT_FP8] = {"FP8", 89}, [PROMPT_NVFP4] = {"NVFP4", 120}};
    struct gpu *c = cuda_of(stream);
    if (math != PROMPT_ACT && c->sm < need[math].sm)
        return fail(err, LATHE_E_UNSUPPORTED,
                    "prompts in %s need compute capability %d.%d or later; this GPU is %s",
                    need[math].name, need[math].sm / 10, need[math].sm % 10, c->name);
    if (math != PROMPT_ACT && !c->gemm)
        return fail(err, LATHE_E_UNSUPPORTED, "prompts in %s need cuBLASLt, which is not there",
                    need[math].name);
    c->prompt_math = math;
    return LATHE_OK;
}

static bool has_linear(enum weight_format_id format, enum dtype act)
{
    return (unsigned)format < WF_COUNT && (act == DT_BF16 || act == DT_F32);
}

const struct backend backend_cuda = {.name = "cuda",
                                     .open = open_stream,
                                     .close = close_stream,
                                     .isa = isa_of,
                                     .alloc = cuda_alloc,
                                     .free = cuda_free,
                                     .own_bytes = CUDA_RING + ZEROS,
                                     .driver_bytes = DRIVER,
                                     .room = cuda_room,
                                     .load = cuda_load,
                                     .alloc_host = cuda_alloc_host,
                                     .free_host = cuda_free_host,
                                     .is_host = false,
                                     .zero = cuda_zero,
                                     .copy = cuda_copy,
                                     .copy_in = cuda_copy_in,
                                     .copy_out = cuda_copy_out,
                                     .wait = cuda_wait,
                                     .capture = cuda_capture,
                                     .captured = cuda_captured,
                                     .replay = cuda_replay,
                                     .release = cuda_release,
                                     .mark = cuda_mark,
                                     .await = cuda_await,
                                     .native = native,
                                     .set_prompt_math = set_prompt_math,
                                     .prompt_rows = 2048,
                                     .delta_room = cuda_delta_room,
                                     .has_linear = has_linear,
                                     .arrange = cuda_arrange,
                                     .linears = cuda_linears,
                                     .linear_silu_mul = cuda_linear_silu_mul,
                                     .linear_add_norm = cuda_linear_add_norm,
                                     .linears_gates = cuda_linears_gates,
                                     .gdn_mix = cuda_gdn_mix,
                                     .block_conv_add_norm = cuda_block_conv_add_norm,
                                     .block_conv_made = cuda_block_conv_made,
                                     .ring_rows = cuda_ring_rows,
                                     .joined = joined,
                                     .qk_norm_rope_append = cuda_qk_norm_rope_append,
                                     .gated_attention = cuda_gated_attention,
                                     .linear_scratch = cuda_linear_scratch,
                                     .gdn_gates_scratch = cuda_gdn_gates_scratch,
                                     .gated_delta_rule_scratch = cuda_gated_delta_rule_scratch,
                                     .attention_scratch = cuda_attention_scratch,
                                     .block_attention_scratch = cuda_block_attention_scratch,
                                     .top_k_scratch = cuda_top_k_scratch,
#define X(name) .name = cuda_##name,
                                     OPERATORS(X)
#undef X
};
