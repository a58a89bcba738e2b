#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static struct {
    pthread_mutex_t lock;
    lathe_log_fn fn;
    void *ctx;
} sink = {.lock = PTHREAD_MUTEX_INITIALIZER};

void lathe_log_set(lathe_log_fn fn, void *ctx)
{
    pthread_mutex_lock(&sink.lock);
    sink.fn = fn;
    sink.ctx = ctx;
    pthread_mutex_unlock(&sink.lock);
}

void log_line(lathe_log_level level, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&sink.lock);
    if (sink.fn)
        sink.fn(sink.ctx, level, line);
    pthread_mutex_unlock(&sink.lock);
}
