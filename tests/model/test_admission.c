/* B106: what a prompt takes beside its pages depends on the chunk alone, one of its rows gets logits, and a prompt that
 * fails half-way leaves nothing behind. That a step takes no memory is in test_no_alloc. */
#include <stdio.h>

#include "engine/engine.h"
#include "make_model.h"
#include "test.h"

/* The products of the engine's schedule, counted. */
static struct {
    struct backend backend;
    lathe_status (*product)(void *stream, const struct linear_args *a, lathe_error *err);
    int32_t n_vocab;
    int64_t n_prompt,
        fails;           /* products with a prompt's rows; the one of these that fails, 0: none */
    int64_t most_logits; /* rows */
} counted;

static lathe_status count_product(void *stream, const struct linear_args *a, lathe_error *err)
{
    if (a->y.dim[1] == counted.n_vocab) {
        if (a->y.dim[0] > counted.most_logits)
            counted.most_logits = a->y.dim[0];
    } else if (a->phase == PHASE_PREFILL && ++counted.n_prompt == counted.fails) {
        return fail(err, LATHE_E_MEMORY, "there is no room");
    }
    return counted.product(stream, a, err);
}

static lathe_engine *open_counted(const char *dir, int32_t n_ctx, int32_t chunk)
{
    lathe_engine_options o;
    lathe_engine *e;
    lathe_error err;
    lathe_engine_options_init(&o);
    o.model_dir = dir;
    o.n_ctx = n_ctx;
    o.prefill_chunk = chunk;
    o.n_threads = 2;
    o.spec = "none";
    o.device = "cpu";
    CHECK_OK(lathe_engine_open(&e, &o, &err), &err);
    counted.backend = *e->backend;
    counted.product = e->backend->linear;
    counted.backend.linear = count_product;
    counted.n_vocab = e->model.dims.vocab;
    counted.most_logits = counted.n_prompt = counted.fails = 0;
    e->step.x.backend = &counted.backend; /* nothing runs now */
    return e;
}

/* A prompt of n tokens to its end; what was said, a heap string. */
static char *answer(lathe_engine *e, int32_t n, lathe_event *end, int32_t *done)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    struct buf text, said;
    buf_init(&text, 1 << 20);
    buf_init(&said, 1 << 20);
    buf_puts(&text, "a");
    for (int32_t i = 1; i < n; i++)
        buf_puts(&text, i % 3 ? " the" : " a");
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.text = text.data;
    o.n_text = text.len;
    o.max_tokens = 8;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    *done = 0;
    do {
        lathe_request_next(r, -1, end);
        if (end->type == LATHE_EVENT_TEXT)
            buf_append(&said, end->text, end->n_text);
        else if (end->type == LATHE_EVENT_PROGRESS)
            *done = end->done;
    } while (end->type != LATHE_EVENT_FINISH);
    lathe_request_close(r);
    buf_release(&text);
    (void)buf_str(&said);
    return said.data;
}

TEST(one_row_of_a_prompt_gets_logits)
{
    lathe_event end;
    int32_t n = 2047, done;
    if (test_quick())
        n = 511;
    lathe_engine *e = open_counted(test_path("models/nano"), 2176, 2048);
    free(answer(e, n, &end, &done));
    CHECK_INT(end.finish, LATHE_FINISH_LENGTH);
    CHECK_INT(done, n); /* in one piece */
    CHECK_INT(counted.most_logits, 1);
    lathe_engine_close(e);
}

TEST(a_prompt_that_fails_leaves_nothing)
{
    enum { CHUNK = 32, PROMPT = 4 * CHUNK + 20 };
    lathe_engine *e = open_counted(test_path("models/nano"), 512, CHUNK);
    lathe_error err;
    lathe_event end;
    int32_t done;
    char *want = answer(e, PROMPT, &end, &done);
    CHECK_INT(end.finish, LATHE_FINISH_LENGTH);
    CHECK_INT(done, PROMPT);
    CHECK_INT(counted.n_prompt % 5, 0);
    int64_t of_a_chunk = counted.n_prompt / 5;
    CHECK(of_a_chunk >= 4);
    for (int64_t at = 1; at <= of_a_chunk; at += of_a_chunk / 4) {
        CHECK_OK(lathe_engine_forget(e, -1, &err), &err);
        counted.n_prompt = 0;
        counted.fails = 2 * of_a_chunk + at;
        free(answer(e, PROMPT, &end, &done));
        CHECK_INT(end.finish, LATHE_FINISH_ERROR);
        CHECK_INT(end.error.status, LATHE_E_MEMORY);
        CHECK(strstr(end.error.message, "there is no room") != NULL);
        CHECK_INT(done, 2 * CHUNK);
        counted.fails = 0;
        char *got = answer(e, PROMPT, &end, &done);
        CHECK_INT(end.finish, LATHE_FINISH_LENGTH);
        CHECK_INT(end.usage.cached_tokens, 0);
        CHECK_STR(got, want);
        free(got);
    }
    free(want);
    lathe_engine_close(e);
}

/* Operators that do nothing: with them a prompt of a long context takes a moment, and its memory is what it is. */
#define X(name)                                                                                    \
    static lathe_status no_##name(void *stream, const struct name##_args *a, lathe_error *err)     \
    {                                                                                              \
        (void)stream, (void)a, (void)err;                                                          \
        return LATHE_OK;                                                                           \
    }
OPERATORS(X)
#undef X

static size_t resident_bytes(void)
{
    char line[256];
    unsigned long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmRSS: %lu kB", &kb) == 1)
            break;
    (void)fclose(f);
    CHECK(kb > 0);
    return (size_t)kb << 10;
}

/* A prompt of n tokens; how many chunks it was read in. */
static int32_t read_prompt(lathe_engine *e, int32_t n)
{
    lathe_request_options o;
    lathe_request *r;
    lathe_error err;
    lathe_event ev;
    int32_t n_chunks = 0;
    int32_t *id = calloc((size_t)n, sizeof *id);
    CHECK(id != NULL);
    lathe_request_options_init(lathe_engine_text(e), false, &o);
    o.token = id;
    o.n_token = (size_t)n;
    o.max_tokens = 1;
    o.sampling.temperature = 0;
    o.no_prefix_reuse = true;
    CHECK_OK(lathe_request_submit(e, &o, &r, &err), &err);
    free(id);
    do {
        lathe_request_next(r, -1, &ev);
        n_chunks += ev.type == LATHE_EVENT_PROGRESS;
    } while (ev.type != LATHE_EVENT_FINISH);
    CHECK_INT(ev.finish, LATHE_FINISH_LENGTH);
    CHECK_INT(ev.usage.prompt_tokens, n);
    lathe_request_close(r);
    return n_chunks;
}

TEST(a_long_prompt_takes_what_a_short_one_takes)
{
    enum { LONG = 262000, NOISE = 8 << 20 };
    static const int32_t chunk[] = {2048, 256};
    struct model_spec s;
    const char *dir = test_tmp("long");
    model_spec_init(&s);
    s.vocab = 8192;
    s.tokenizer = true;
    make_model(dir, &s);
    for (int i = 0; i < 2; i++) {
        lathe_engine *e = open_counted(dir, 262144, chunk[i]);
        struct exec *x = &e->step.x;
#define X(name) counted.backend.name = no_##name;
        OPERATORS(X)
#undef X
        counted.product = no_linear;
        counted.backend.linear = count_product;
        CHECK_INT(read_prompt(e, 3 * chunk[i]), 3);
        size_t peak = x->peak, before = resident_bytes();
        CHECK_INT(read_prompt(e, LONG), (LONG + chunk[i] - 1) / chunk[i]);
        size_t after = resident_bytes();
        CHECK_INT((int64_t)x->peak, (int64_t)peak);
        CHECK(peak > 0 && peak <= e->step.workspace_bytes);
        CHECK_INT(e->state.kv.n_used[0], (LONG + KV_PAGE - 1) / KV_PAGE);
        if (after > before + NOISE)
            FAIL("chunks of %d: %zu bytes more", chunk[i], after - before);
        CHECK_INT(counted.most_logits, 1);
        lathe_engine_close(e);
    }
}
