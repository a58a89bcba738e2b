#include "plan.h"

#include "base/size.h"
#include "cli.h"

static void line(FILE *f, const char *what, uint64_t bytes, const char *note)
{
    char size[32];
    size_text(size, bytes);
    (void)fprintf(f, "  %-16s %10s%s%s\n", what, size, *note ? "  " : "", note);
}

void plan_print(FILE *f, const lathe_memory_plan *p, lathe_dtype kv)
{
    char each[32], note[64];
    (void)fprintf(f, "memory at %d positions, %d slot%s, on %s\n", p->n_ctx, p->n_slots,
                  cli_plural(p->n_slots), p->device);
    line(f, "weights", p->weights, p->mapped ? "mapped from the files" : "");
    size_text(each, p->kv_per_token);
    (void)snprintf(note, sizeof note, "%s, %s a token and slot",
                   kv == LATHE_F32       ? "F32"
                   : kv == LATHE_F8_E4M3 ? "FP8"
                                         : "BF16",
                   each);
    line(f, "KV cache", p->kv, note);
    size_text(each, p->recurrent / (uint64_t)p->n_slots);
    (void)snprintf(note, sizeof note, "%s a slot", each);
    line(f, "recurrent state", p->recurrent, note);
    if (p->drafter)
        line(f, "drafter", p->drafter, "");
    line(f, "workspace", p->workspace, "");
    if (p->driver)
        line(f, "driver", p->driver, "kernels' code, graphs, libraries: an allowance");
    line(f, "total", p->total, "");
    line(f, "head-room", p->head_room, "");
    if (p->device_total) {
        size_text(each, p->device_total);
        (void)snprintf(note, sizeof note, "of %s", each);
        line(f, "free", p->device_free, note);
    }
}
