/* A device that fails under an engine: its requests end with one sentence, no more are taken, and it can be
 * opened again. On the CPU by an operator that says so; on a GPU by one that reads where nothing is. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/engine.h"
#include "lose_device.h"
#include "test.h"

#ifdef LATHE_CUDA
#include <cuda_runtime_api.h>
#endif

#define AGAIN "; the engine must be closed and opened again"

static lathe_engine *open_nano(const char *device)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = test_path("models/nano");
    o.n_ctx = 256;
    o.n_threads = 2;
    o.device = device;
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    return e;
}

static lathe_status submit(lathe_engine *e, lathe_request **r, lathe_error *err)
{
    lathe_request_options o;
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = "A kiln is a";
    o.n_text = strlen(o.text);
    o.max_tokens = 32;
    o.sampling.temperature = 0;
    return lathe_request_submit(e, &o, r, err);
}

/* To the end; text gets what came. */
static lathe_event finish(lathe_request *r, char *text, size_t room)
{
    lathe_event ev;
    size_t n = 0;
    text[0] = 0;
    do {
        lathe_request_next(r, -1, &ev);
        if (ev.type == LATHE_EVENT_TEXT && n + ev.n_text < room) {
            memcpy(text + n, ev.text, ev.n_text);
            text[n += ev.n_text] = 0;
        }
    } while (ev.type != LATHE_EVENT_FINISH);
    lathe_request_close(r);
    return ev;
}

static void answer(lathe_engine *e, char *text, size_t room)
{
    lathe_request *r;
    lathe_error err;
    CHECK_OK(submit(e, &r, &err), &err);
    lathe_event ev = finish(r, text, room);
    if (ev.finish == LATHE_FINISH_ERROR)
        FAIL("%s", ev.error.message);
    CHECK(text[0] != 0);
}

/* The requests end with the sentence; so is everything refused that comes later, and the activity has it. */
static void check_failed(lathe_engine *e, lathe_request *const *r, int n, const char *says)
{
    char text[1024], sentence[1024] = "";
    lathe_request *later;
    lathe_error err;
    for (int i = 0; i < n; i++) {
        lathe_event ev = finish(r[i], text, sizeof text);
        CHECK_INT(ev.finish, LATHE_FINISH_ERROR);
        CHECK_INT(ev.error.status, LATHE_E_DEVICE);
        if (i == 0)
            snprintf(sentence, sizeof sentence, "%s", ev.error.message);
        CHECK_STR(ev.error.message, sentence);
    }
    if (!strstr(sentence, says) || !strstr(sentence, AGAIN))
        FAIL("\"%s\" does not say \"%s\" and \"%s\"", sentence, says, AGAIN);
    for (int i = 0; i < 2; i++) {
        CHECK_ERR(submit(e, &later, &err), &err, LATHE_E_DEVICE, sentence);
        CHECK(later == NULL);
    }
    double logprob[3];
    int32_t token[3] = {1, 2, 3};
    CHECK_ERR(lathe_score(e, token, 3, 0, logprob, NULL, NULL, &err), &err, LATHE_E_DEVICE,
              sentence);
    lathe_activity a;
    const struct timespec pause = {.tv_nsec = 1000000};
    for (int i = 0; i < 20000; i++, (void)nanosleep(&pause, NULL)) {
        lathe_engine_activity(e, &a, NULL, 0);
        if (a.failure)
            break;
    }
    CHECK(a.failure != NULL);
    CHECK_STR(a.failure, sentence);
}

static lathe_status broken_linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    (void)stream, (void)a;
    return fail(err, LATHE_E_DEVICE, "the rod is bent");
}

TEST(requests_end_and_the_engine_opens_again)
{
    char first[1024], second[1024];
    lathe_engine *e = open_nano("cpu");
    answer(e, first, sizeof first);
    struct backend broken = *e->backend;
    broken.linear = broken_linear;
    const struct backend *whole = e->step.x.backend;
    lathe_request *r[3];
    lathe_error err;
    e->step.x.backend = &broken; /* nothing runs now */
    int n = 0;
    for (; n < 3; n++)
        if (submit(e, &r[n], &err)) { /* the first has failed already */
            CHECK_INT(err.status, LATHE_E_DEVICE);
            break;
        }
    CHECK(n > 0);
    check_failed(e, r, n, "linear: the rod is bent");
    e->step.x.backend = whole;
    CHECK_ERR(submit(e, &r[0], &err), &err, LATHE_E_DEVICE, "bent" AGAIN);
    lathe_engine_close(e);
    e = open_nano("cpu");
    answer(e, second, sizeof second);
    CHECK_STR(second, first);
    lathe_engine_close(e);
}

#ifdef LATHE_CUDA
/* Does the driver give the device back? If not, the engine says what helps. */
static bool comes_back(void)
{
    void *stream;
    lathe_error err;
    if (!backend_cuda.open(&stream, NULL, NULL, &err)) {
        backend_cuda.close(stream);
        return true;
    }
    CHECK_INT(err.status, LATHE_E_DEVICE);
    CHECK(strstr(err.message, "start the program again") != NULL);
    printf("     %s\n", err.message);
    return false;
}

/* Where the driver keeps the device from the process, its program gets it back by being executed anew, as often as that is done:
 * with LATHE_LOSE_DEVICE=N the engine opened for the N-th time. The device is lost while the engine is open, as `lathe serve` leaves
 * it. */
_Noreturn static void execute_again(void)
{
    char name[] = "test", only[] = "a_lost_device_comes_back", count[12],
         *argv[] = {name, only, NULL};
    (void)snprintf(count, sizeof count, "%d", atoi(getenv("LATHE_LOSE_DEVICE")) + 1);
    (void)setenv("LATHE_LOSE_DEVICE", count, 1);
    fflush(stdout);
    (void)execv("/proc/self/exe", argv);
    _exit(127);
}

static void lose_and_execute(void)
{
    char text[1024];
    lathe_error err;
    lathe_request *r;
    size_t room = 0, total = 0;
    CHECK(cudaMemGetInfo(&room, &total) == cudaSuccess);
    lathe_engine *e = open_nano("cuda");
    answer(e, text, sizeof text);
    printf("     executed %s times, %zu of %zu MB were free: %s\n", getenv("LATHE_LOSE_DEVICE"),
           room >> 20, total >> 20, text);
    if (atoi(getenv("LATHE_LOSE_DEVICE")) < 4) {
        lose_device(e->backend, e->stream);
        CHECK_OK(submit(e, &r, &err), &err);
        check_failed(e, &r, 1, "CUDA: ");
        execute_again();
    }
    lathe_engine_close(e);
}

static void lose_and_reopen(void)
{
    char first[1024], again[1024];
    lathe_error err;
    void *stream;
    lathe_engine *e = open_nano("cuda");
    answer(e, first, sizeof first);
    for (int round = 0; round < 3; round++) {
        lathe_request *r;
        lose_device(e->backend, e->stream);
        CHECK_OK(submit(e, &r, &err), &err);
        check_failed(e, &r, 1, "CUDA: ");
        lathe_engine_close(e);
        if (!comes_back())
            execute_again();
        e = open_nano("cuda");
        answer(e, again, sizeof again);
        CHECK_STR(again, first);
    }
    /* Two engines: the device is gone for both, and comes back when both are closed. */
    lathe_engine *other = open_nano("cuda");
    lathe_request *r, *s;
    answer(other, again, sizeof again);
    lose_device(e->backend, e->stream);
    CHECK_OK(submit(e, &r, &err), &err);
    check_failed(e, &r, 1, "CUDA: ");
    CHECK_OK(submit(other, &s, &err), &err);
    check_failed(other, &s, 1, "CUDA: ");
    CHECK_ERR(backend_cuda.open(&stream, NULL, NULL, &err), &err, LATHE_E_DEVICE, "reset");
    lathe_engine_close(e);
    CHECK_ERR(backend_cuda.open(&stream, NULL, NULL, &err), &err, LATHE_E_DEVICE, "reset");
    lathe_engine_close(other);
    e = open_nano("cuda");
    answer(e, again, sizeof again);
    CHECK_STR(again, first);
    lathe_engine_close(e);
}

/* In a process of its own: in this one, other tests keep streams open, and with them a device that is lost. */
TEST(a_lost_device_comes_back)
{
    void *stream;
    lathe_error err;
    int status = 0;
    if (getenv("LATHE_LOSE_DEVICE")) {
        if (atoi(getenv("LATHE_LOSE_DEVICE")) == 1)
            lose_and_reopen();
        else
            lose_and_execute();
        return;
    }
    if (backend_cuda.open(&stream, NULL, NULL, &err))
        SKIP("%s", err.message);
    backend_cuda.close(stream);
    fflush(stdout);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char name[] = "test", only[] = "a_lost_device_comes_back", *argv[] = {name, only, NULL};
        (void)setenv("LATHE_LOSE_DEVICE", "1", 1);
        (void)execv("/proc/self/exe", argv);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
}
#endif
