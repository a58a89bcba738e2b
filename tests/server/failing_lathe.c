/* `lathe serve` over a device that fails, with the real engine and model:
 *
 *     FAULTS=DIR failing_lathe serve -m MODEL ...
 *
 * A linear that finds a file DIR/fail takes it away and says that the device failed; on a GPU it makes it fail. While there is a file DIR/slow, each takes a
 * millisecond, and while there is DIR/hold, a model that is being loaded stays at the half; while there is DIR/hang, an engine does not close. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli.h"
#include "engine/engine.h"
#include "lose_device.h"

static const struct timespec millisecond = {.tv_nsec = 1000000};
static const struct backend *whole;

static const char *fault(const char *name)
{
    static char path[4096];
    const char *folder = getenv("FAULTS");
    if (!folder)
        exit(EXIT_USAGE);
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static lathe_status linear(void *stream, const struct linear_args *a, lathe_error *err)
{
    if (access(fault("slow"), F_OK) == 0)
        (void)nanosleep(&millisecond, NULL);
    if (unlink(fault("fail")) == 0) {
#ifdef LATHE_CUDA
        if (whole->linear == backend_cuda.linear) {
            lose_device(whole, stream);
            return whole->linear(stream, a, err);
        }
#endif
        return fail(err, LATHE_E_DEVICE, "the rod is bent");
    }
    return whole->linear(stream, a, err);
}

lathe_status __real_lathe_engine_open(lathe_engine **e, const lathe_engine_options *o,
                                      lathe_error *err);
lathe_status __wrap_lathe_engine_open(lathe_engine **e, const lathe_engine_options *o,
                                      lathe_error *err);
lathe_status __wrap_lathe_engine_open(lathe_engine **e, const lathe_engine_options *o,
                                      lathe_error *err)
{
    static struct backend failing;
    while (access(fault("hold"), F_OK) == 0) {
        if (!o->progress(o->progress_ctx, "weights", 1, 2))
            return fail(err, LATHE_E_CANCELLED, "cancelled");
        (void)nanosleep(&millisecond, NULL);
    }
    lathe_status st = __real_lathe_engine_open(e, o, err);
    if (st)
        return st;
    whole = (*e)->step.x.backend;
    failing = *whole;
    failing.linear = linear;
    (*e)->step.x.backend = &failing; /* nothing runs yet */
    return LATHE_OK;
}

void __real_lathe_engine_close(lathe_engine *e);
void __wrap_lathe_engine_close(lathe_engine *e);
void __wrap_lathe_engine_close(lathe_engine *e)
{
    while (access(fault("hang"), F_OK) == 0)
        (void)nanosleep(&millisecond, NULL);
    __real_lathe_engine_close(e);
}

int main(int argc, char **argv)
{
    return argc < 2 ? EXIT_USAGE : serve_main(argc - 1, argv + 1);
}
