/* The host's side of the CUDA backend: what is refused when it is opened, devices that fail, loading by threads. */
#include <cuda_runtime_api.h>

#include "engine/engine.c" /* for its choice of a device; the linker leaves the rest out */

#include "fake_runtime.h"
#include "op/cuda/cuda.h"
#include "op/memory.h"
#include "test.h"

static void reset(void)
{
    fake = (struct fake_device){.n_devices = 1, .driver = 14000, .sm = 90, .room = (size_t)1 << 30};
}

static void *opened(void)
{
    void *stream;
    lathe_error err;
    CHECK_OK(backend_cuda.open(&stream, NULL, NULL, &err), &err);
    return stream;
}

static void check_not_opened(lathe_status status, const char *says)
{
    void *stream;
    lathe_error err;
    CHECK_ERR(backend_cuda.open(&stream, NULL, NULL, &err), &err, status, says);
    CHECK(stream == NULL);
}

static void check_refused(const char *says)
{
    check_not_opened(LATHE_E_DEVICE, says);
}

TEST(a_machine_that_cannot_run_it_is_told_why)
{
    reset();
    fake.driver = 0;
    check_not_opened(LATHE_E_UNSUPPORTED, "there is no NVIDIA driver");
    fake.driver = 12040;
    check_refused("the driver is of CUDA 12.4, this program needs");
    reset();
    fake.n_devices = 0;
    check_not_opened(LATHE_E_UNSUPPORTED, "no NVIDIA GPU is visible");
    reset();
    fake.sm = 75;
    check_refused("Fake GPU has compute capability 7.5; this program was built for 80 90 120a");
    fake.sm = 121; /* code for 12.0 alone */
    check_refused("12.1");
    static const int good[] = {80, 86, 89, 90, 120};
    for (int i = 0; i < 5; i++) {
        fake.sm = good[i];
        backend_cuda.close(opened());
    }
}

static lathe_status cpu_open(void **stream, struct pool *pool, const char *isa, lathe_error *err)
{
    (void)pool, (void)isa, (void)err;
    *stream = NULL;
    return LATHE_OK;
}

const struct backend backend_cpu = {.name = "cpu", .open = cpu_open};

struct logged {
    int n;
    lathe_log_level level;
    char line[256];
};

static void keep_line(void *ctx, lathe_log_level level, const char *line)
{
    struct logged *l = ctx;
    l->n++;
    l->level = level;
    (void)snprintf(l->line, sizeof l->line, "%s", line);
}

/* With the device auto the CPU is taken, and one line says why; with cuda the same is an error. */
static void check_cpu(lathe_log_level level, lathe_status status, const char *says)
{
    struct logged l = {0};
    struct lathe_engine e = {0};
    lathe_engine_options o = {.device = "auto"};
    lathe_error err;
    lathe_log_set(keep_line, &l);
    CHECK_OK(open_backend(&e, &o, &err), &err);
    CHECK(e.backend == &backend_cpu);
    CHECK_INT(l.n, 1);
    CHECK_INT(l.level, level);
    CHECK(strstr(l.line, says) && strstr(l.line, "; the CPU is used"));
    o.device = "cuda";
    CHECK_ERR(open_backend(&e, &o, &err), &err, status, says);
    CHECK_INT(l.n, 1);
    lathe_log_set(NULL, NULL);
}

TEST(a_gpu_that_is_there_and_not_used_is_warned_of)
{
    reset();
    fake.driver = 0;
    check_cpu(LATHE_LOG_INFO, LATHE_E_DEVICE, "there is no NVIDIA driver");
    reset();
    fake.n_devices = 0;
    check_cpu(LATHE_LOG_INFO, LATHE_E_DEVICE, "no NVIDIA GPU is visible");
    reset();
    fake.driver = 12040;
    check_cpu(LATHE_LOG_WARN, LATHE_E_DEVICE, "the driver is of CUDA 12.4");
    reset();
    fake.sm = 75;
    check_cpu(LATHE_LOG_WARN, LATHE_E_DEVICE, "compute capability 7.5");
    reset();
    fake.event = cudaErrorMemoryAllocation;
    check_cpu(LATHE_LOG_WARN, LATHE_E_MEMORY, "error 2");
    reset();
    void *stream = opened();
    lathe_error err;
    fake.lost = cudaErrorIllegalAddress;
    CHECK_ERR(backend_cuda.wait(stream, &err), &err, LATHE_E_DEVICE, "error 700");
    check_cpu(LATHE_LOG_WARN, LATHE_E_DEVICE, "the device failed under another engine");
    backend_cuda.close(stream);
}

TEST(memory_that_is_not_there_is_told_with_numbers)
{
    reset();
    void *stream = opened(), *p;
    lathe_error err;
    CHECK_ERR(backend_cuda.alloc(stream, &p, (size_t)2 << 30, &err), &err, LATHE_E_MEMORY,
              "2147483648 bytes wanted, 1073741824 of 2147483648 free");
    CHECK(p == NULL);
    CHECK_OK(backend_cuda.wait(stream, &err), &err); /* the stream goes on */
    backend_cuda.close(stream);
    CHECK_INT(fake.n_resets, 0);
}

TEST(free_memory_that_is_not_known_is_warned_of)
{
    reset();
    void *stream = opened();
    struct logged l = {0};
    size_t total, room;
    lathe_error err;
    lathe_log_set(keep_line, &l);
    backend_cuda.room(stream, &total, &room);
    CHECK_INT(l.n, 0);
    CHECK(room == fake.room && total == 2 * fake.room);
    fake.info = cudaErrorInvalidValue;
    backend_cuda.room(stream, &total, &room);
    lathe_log_set(NULL, NULL);
    CHECK_INT(l.n, 1);
    CHECK_INT(l.level, LATHE_LOG_WARN);
    CHECK(strstr(l.line, "error 1; what is planned is not held against it") != NULL);
    CHECK(total == 0 && room == 0);
    CHECK_OK(backend_cuda.wait(stream, &err), &err); /* it was read */
    backend_cuda.close(stream);
}

TEST(prompts_in_fewer_bits_need_a_device_that_has_them)
{
    reset();
    fake.sm = 80;
    void *stream = opened();
    lathe_error err;
    CHECK_OK(backend_cuda.set_prompt_math(stream, PROMPT_ACT, &err), &err);
    CHECK_ERR(backend_cuda.set_prompt_math(stream, PROMPT_FP8, &err), &err, LATHE_E_UNSUPPORTED,
              "prompts in FP8 need compute capability 8.9 or later; this GPU is sm_80");
    CHECK_ERR(backend_cuda.set_prompt_math(stream, PROMPT_NVFP4, &err), &err, LATHE_E_UNSUPPORTED,
              "prompts in NVFP4 need compute capability 12.0 or later; this GPU is sm_80");
    backend_cuda.close(stream);
    fake.sm = 90;
    stream = opened(); /* there is no cuBLASLt here */
    CHECK_ERR(backend_cuda.set_prompt_math(stream, PROMPT_FP8, &err), &err, LATHE_E_UNSUPPORTED,
              "prompts in FP8 need cuBLASLt");
    backend_cuda.close(stream);
}

/* An error of one call: told once, and the device goes on. */
TEST(a_launch_that_fails_is_told_once)
{
    reset();
    void *stream = opened();
    struct rmsnorm_args a = {0};
    lathe_error err;
    fake.launch = cudaErrorInvalidConfiguration;
    CHECK_ERR(backend_cuda.rmsnorm(stream, &a, &err), &err, LATHE_E_DEVICE, "error 9");
    fake.launch = cudaErrorNoKernelImageForDevice;
    CHECK_ERR(backend_cuda.rmsnorm(stream, &a, &err), &err, LATHE_E_DEVICE,
              "no code for this GPU, which is sm_90; this program was built for 80 90 120a");
    fake.launch = 0;
    CHECK_OK(backend_cuda.rmsnorm(stream, &a, &err), &err);
    CHECK_OK(backend_cuda.wait(stream, &err), &err);
    backend_cuda.close(stream);
    CHECK_INT(fake.n_resets, 0);
}

/* Whoever asks next gets the batch that is meant, not the one before it. */
TEST(a_batch_that_did_not_arrive_is_sent_again)
{
    reset();
    void *stream = opened();
    struct batch_seq seq = {.slot = 0, .first_row = 0, .n_rows = 1, .pos = 5};
    struct batch b = {.phase = PHASE_DECODE, .n_rows = 1, .seq = &seq, .n_seqs = 1};
    struct cuda_batch there;
    lathe_error err;
    CHECK_OK(cuda_batch(stream, &b, &there, &err), &err);
    seq.pos = 6;
    fake.copy = cudaErrorInvalidValue;
    CHECK_ERR(cuda_batch(stream, &b, &there, &err), &err, LATHE_E_DEVICE, "error 1");
    fake.copy = 0;
    CHECK_OK(cuda_batch(stream, &b, &there, &err), &err);
    CHECK_INT(there.seq->pos, 6);
    backend_cuda.close(stream);
}

/* One row that verifies, whose arrays are r's. */
static struct batch round_of(const struct resident *r)
{
    return (struct batch){.phase = PHASE_VERIFY,
                          .n_rows = 1,
                          .token = r->token,
                          .slot = r->slot,
                          .pos = r->pos,
                          .rope_pos = r->rope_pos,
                          .seq = r->seq,
                          .n_seqs = 1};
}

/* While a schedule is captured, arrays are where they will lie when it runs, and those that will lie nowhere are
 * refused. */
TEST(a_captured_batch_is_that_of_the_device)
{
    reset();
    void *stream = opened(), *graph;
    const unsigned char *device;
    struct resident r = {.token = {3}, .seq = {{0, 0, 1, 5}}}, other = r;
    struct batch b = round_of(&r);
    struct cuda_batch there;
    lathe_error err;
    void *memory;
    CHECK_OK(backend_cuda.alloc(stream, &memory, sizeof r, &err), &err);
    device = memory;
    int32_t table[4] = {0};
    const struct home home[] = {{&r, device, sizeof r}, {table, table, sizeof table}};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(backend_cuda.capture(stream, home, 2, &err), &err);
        CHECK_OK(cuda_batch(stream, &b, &there, &err), &err);
        CHECK((const unsigned char *)there.token == device + offsetof(struct resident, token));
        CHECK((const unsigned char *)there.seq == device + offsetof(struct resident, seq));
        CHECK_INT(there.seq_of[0], 0);
        CHECK(cuda_upload(stream, &r.keep, sizeof r.keep) ==
              device + offsetof(struct resident, keep));
        CHECK(cuda_upload(stream, table + 2, 8) == table + 2);
        CHECK_OK(backend_cuda.captured(stream, &graph, &err), &err);
        CHECK(graph != NULL);
        CHECK_OK(backend_cuda.replay(stream, graph, &err), &err);
        backend_cuda.release(stream, graph);
        backend_cuda.mark(stream, i);
        CHECK_OK(backend_cuda.await(stream, i, &err), &err);
        CHECK_OK(cuda_batch(stream, &b, &there, &err), &err); /* as ever */
        CHECK((const unsigned char *)there.token < device ||
              (const unsigned char *)there.token >= device + sizeof r);
        CHECK_INT(there.token[0], 3);
    }
    CHECK_OK(backend_cuda.capture(stream, home, 2, &err), &err);
    b.pos = other.pos;
    CHECK_ERR(cuda_batch(stream, &b, &there, &err), &err, LATHE_E_UNSUPPORTED, "does not have");
    CHECK(cuda_upload(stream, &other, sizeof other) == NULL);
    CHECK_ERR(cuda_launched(stream, &err), &err, LATHE_E_DEVICE, "error 900");
    CHECK(cuda_upload(stream, &other, sizeof other) == NULL);
    CHECK_ERR(backend_cuda.captured(stream, &graph, &err), &err, LATHE_E_DEVICE, "error 900");
    CHECK(graph == NULL);
    fake.capture = cudaErrorStreamCaptureUnsupported;
    CHECK_ERR(backend_cuda.capture(stream, home, 2, &err), &err, LATHE_E_DEVICE, "error 900");
    CHECK(cuda_upload(stream, &other, sizeof other) != NULL);
    CHECK_OK(backend_cuda.wait(stream, &err), &err); /* the device is not lost */
    backend_cuda.free(stream, memory);
    backend_cuda.close(stream);
}

/* What a round of decoding needs is there when the stream is open and the first memory taken. */
TEST(a_round_takes_no_memory_and_creates_no_events)
{
    reset();
    void *stream = opened(), *memory, *graph;
    struct resident r = {.token = {3}, .seq = {{0, 0, 1, 5}}};
    struct batch b = round_of(&r);
    struct cuda_batch there;
    lathe_error err;
    CHECK_OK(backend_cuda.alloc(stream, &memory, sizeof r, &err), &err);
    const struct home home = {&r, memory, sizeof r};
    CHECK_OK(backend_cuda.capture(stream, &home, 1, &err), &err);
    CHECK_OK(backend_cuda.captured(stream, &graph, &err), &err);
    CHECK_INT(fake.n_allocs, 2); /* the ring, and what was asked for */
    CHECK_INT(fake.n_events, ROUND_REPORTS);
    for (int i = 0; i < 2 * ROUND_REPORTS; i++) {
        r.seq[0].pos = i;
        CHECK(cuda_upload(stream, &i, sizeof i) != NULL);
        CHECK_OK(cuda_batch(stream, &b, &there, &err), &err);
        CHECK_OK(backend_cuda.replay(stream, graph, &err), &err);
        backend_cuda.mark(stream, i % ROUND_REPORTS);
        CHECK_OK(backend_cuda.await(stream, i % ROUND_REPORTS, &err), &err);
    }
    CHECK_INT(fake.n_allocs, 2);
    CHECK_INT(fake.n_events, ROUND_REPORTS);
    CHECK_INT(fake.n_events_gone, 0);
    backend_cuda.release(stream, graph);
    backend_cuda.free(stream, memory);
    backend_cuda.close(stream);
    CHECK_INT(fake.n_events_gone, ROUND_REPORTS);
    fake.event = cudaErrorNotSupported;
    check_refused("error 801");
    fake.event = 0;
    stream = opened(); /* which hears nothing of it */
    CHECK_OK(backend_cuda.wait(stream, &err), &err);
    backend_cuda.close(stream);
}

/* One round is in flight; the device is lost when the next is launched, or when the first is awaited. */
TEST(a_device_lost_with_a_round_in_flight_is_told_and_reset)
{
    for (int at_await = 0; at_await < 2; at_await++) {
        reset();
        void *stream = opened(), *graph;
        struct resident r = {0};
        const struct home home = {&r, &r, sizeof r};
        lathe_error err;
        CHECK_OK(backend_cuda.capture(stream, &home, 1, &err), &err);
        CHECK_OK(backend_cuda.captured(stream, &graph, &err), &err);
        CHECK_OK(backend_cuda.replay(stream, graph, &err), &err);
        backend_cuda.mark(stream, 0);
        if (at_await) {
            CHECK_OK(backend_cuda.replay(stream, graph, &err), &err);
            fake.await_loses = cudaErrorIllegalAddress;
        } else {
            fake.replay_loses = cudaErrorIllegalAddress;
            CHECK_ERR(backend_cuda.replay(stream, graph, &err), &err, LATHE_E_DEVICE, "error 700");
        }
        backend_cuda.mark(stream, 1);
        for (int i = 0; i < 2; i++)
            CHECK_ERR(backend_cuda.await(stream, i, &err), &err, LATHE_E_DEVICE, "error 700");
        CHECK_ERR(backend_cuda.replay(stream, graph, &err), &err, LATHE_E_DEVICE, "error 700");
        backend_cuda.release(stream, graph);
        CHECK_INT(fake.n_resets, 0);
        backend_cuda.close(stream);
        CHECK_INT(fake.n_resets, 1);
        backend_cuda.close(opened());
    }
}

TEST(a_lost_device_is_reset_by_the_last_who_has_it)
{
    reset();
    void *a = opened(), *b = opened();
    lathe_error err;
    fake.lost = cudaErrorIllegalAddress;
    for (int i = 0; i < 2; i++)
        CHECK_ERR(backend_cuda.wait(a, &err), &err, LATHE_E_DEVICE, "error 700");
    check_refused("it is reset when all that were open then are closed");
    backend_cuda.close(a);
    check_refused("it is reset when all that were open then are closed");
    CHECK_ERR(backend_cuda.wait(b, &err), &err, LATHE_E_DEVICE, "error 700");
    CHECK_INT(fake.n_resets, 0);
    backend_cuda.close(b);
    CHECK_INT(fake.n_resets, 1);
    a = opened();
    CHECK_OK(backend_cuda.wait(a, &err), &err);
    backend_cuda.close(a);
    CHECK_INT(fake.n_resets, 1);
    /* Nobody asked after the call that lost it. */
    a = opened();
    fake.lost = cudaErrorLaunchFailure;
    backend_cuda.zero(a, NULL, 0);
    backend_cuda.close(a);
    CHECK_INT(fake.n_resets, 2);
    backend_cuda.close(opened());
    /* The driver need not give it back. */
    fake.away = 1;
    check_refused("start the program again");
    backend_cuda.close(opened());
    /* A reset that fails is tried again: at once, and when the next one comes. */
    a = opened();
    fake.lost = cudaErrorLaunchFailure;
    fake.refused = 5;
    CHECK_ERR(backend_cuda.wait(a, &err), &err, LATHE_E_DEVICE, "error 719");
    backend_cuda.close(a);
    CHECK_INT(fake.refused, 3);
    check_refused("cannot be reset in this process");
    backend_cuda.close(opened());
    CHECK_INT(fake.n_resets, 3);
}

TEST(loading_with_many_threads)
{
    enum { BYTES = (41 << 20) + 13 };
    reset();
    void *stream = opened();
    struct pool *pool;
    struct memory m;
    lathe_error err;
    unsigned char *file = malloc(BYTES);
    for (int i = 0; i < BYTES; i++)
        file[i] = (unsigned char)(i * 31 + i / 977);
    CHECK_OK(pool_open(&pool, 8, false, &err), &err);
    struct tensor t = tensor_1d(file, DT_U8, BYTES), u = tensor_1d(file, DT_U8, 7);
    memory_loose(&m, &backend_cuda, stream);
    memory_weight(&m, &t);
    memory_weight(&m, &u);
    CHECK_OK(memory_load(&m, pool, NULL, NULL, &err), &err);
    CHECK(t.data != file && memcmp(t.data, file, BYTES) == 0 && memcmp(u.data, file, 7) == 0);
    memory_close(&m);

    memory_loose(&m, &backend_cuda, stream);
    t = tensor_1d(file, DT_U8, BYTES);
    memory_weight(&m, &t);
    fake.lost = cudaErrorLaunchFailure;
    CHECK_ERR(memory_load(&m, pool, NULL, NULL, &err), &err, LATHE_E_DEVICE, "loading weights");
    memory_close(&m);
    backend_cuda.close(stream);
    CHECK_INT(fake.n_resets, 1);
    pool_close(pool);
    free(file);
}
