#include "lathe/lathe.h"

const char *lathe_status_name(lathe_status status)
{
    static const char *const name[] = {"ok",        "argument",    "format",  "io",       "memory",
                                       "limit",     "unsupported", "context", "template", "numeric",
                                       "cancelled", "busy",        "device",  "image"};
    return (size_t)status < sizeof name / sizeof *name ? name[status] : "unknown";
}

const char *lathe_miss_name(lathe_miss miss)
{
    static const char *const name[] = {"none", "off", "cold", "differs", "occupied"};
    return (size_t)miss < sizeof name / sizeof *name ? name[miss] : "unknown";
}

const char *lathe_finish_name(lathe_finish finish)
{
    static const char *const name[] = {"stop",  "stop_string", "length", "context",
                                       "calls", "cancelled",   "error"};
    return (size_t)finish < sizeof name / sizeof *name ? name[finish] : "unknown";
}
