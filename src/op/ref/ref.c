#include "op/ref/ref.h"
#include "op/host.h"

#include <stdlib.h>
#include <string.h>

static lathe_status open_stream(void **stream, struct pool *pool, const char *isa, lathe_error *err)
{
    (void)pool;
    *stream = NULL;
    if (isa && strcmp(isa, "generic") != 0)
        return fail(err, LATHE_E_ARGUMENT,
                    "backend ref has no instruction set \"%s\", only generic", isa);
    *stream = calloc(1, sizeof(struct ref));
    return *stream ? LATHE_OK : fail_memory(err, sizeof(struct ref));
}

static void close_stream(void *stream)
{
    free(stream);
}

static lathe_status set_prompt_math(void *stream, enum prompt_math math, lathe_error *err)
{
    (void)err;
    ((struct ref *)stream)->prompt_math = math;
    return LATHE_OK;
}

static const char *isa(const void *stream)
{
    (void)stream;
    return "generic";
}

static bool has_linear(enum weight_format_id format, enum dtype act)
{
    return (unsigned)format < WF_COUNT && (act == DT_BF16 || act == DT_F32);
}

static size_t linear_scratch(const void *stream, const struct linear_args *a)
{
    (void)stream, (void)a;
    return 0;
}

static size_t gdn_gates_scratch(const void *stream, const struct gdn_gates_args *a)
{
    (void)stream, (void)a;
    return 0;
}

static size_t attention_scratch(const void *stream, const struct attention_args *a)
{
    (void)stream, (void)a;
    return 0;
}

static size_t block_attention_scratch(const void *stream, const struct block_attention_args *a)
{
    (void)stream, (void)a;
    return 0;
}

static size_t top_k_scratch(const void *stream, const struct top_k_args *a)
{
    (void)stream, (void)a;
    return 0;
}

const struct backend backend_ref = {.name = "ref",
                                    .open = open_stream,
                                    .close = close_stream,
                                    .isa = isa,
                                    HOST_MEMORY,
                                    .set_prompt_math = set_prompt_math,
                                    .prompt_rows = 512,
                                    .has_linear = has_linear,
                                    .linear_scratch = linear_scratch,
                                    .gdn_gates_scratch = gdn_gates_scratch,
                                    .attention_scratch = attention_scratch,
                                    .block_attention_scratch = block_attention_scratch,
                                    .top_k_scratch = top_k_scratch,
#define X(name) .name = ref_##name,
                                    OPERATORS(X)
#undef X
};
