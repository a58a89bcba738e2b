#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/model_info.h"
#include "engine/plan.h"

enum { DEFAULT_CTX = 32768, MAX_SLOTS = 256, MAX_CHUNK = 65536 };

void lathe_engine_options_init(lathe_engine_options *o)
{
    *o = (lathe_engine_options){
        .n_slots = 1,
        .n_queue = 64,
        .turn_memory = 64 << 20,
        .kv = LATHE_BF16,
        .activations = LATHE_BF16,
    };
}

enum dtype engine_dtype(lathe_dtype d)
{
    return d == LATHE_F32 ? DT_F32 : d == LATHE_F8_E4M3 ? DT_F8_E4M3 : DT_BF16;
}

static lathe_status check_range(const char *name, int64_t value, int64_t low, int64_t high,
                                lathe_error *err)
{
    if (value < low || value > high)
        return fail(err, LATHE_E_ARGUMENT, "%s is %lld, expected %lld to %lld", name,
                    (long long)value, (long long)low, (long long)high);
    return LATHE_OK;
}

/* Checks the options and fills in what they leave to the model. */
static lathe_status settle(lathe_engine_options *o, const struct dims *d, lathe_error *err)
{
    if (o->n_ctx == 0)
        o->n_ctx = d->max_position < DEFAULT_CTX ? d->max_position : DEFAULT_CTX;
    lathe_status st = LATHE_OK;
    if (o->n_ctx != LATHE_CTX_AUTO)
        st = check_range("the context (n_ctx)", o->n_ctx, 1, d->max_position, err);
    if (!st)
        st = check_range("n_slots", o->n_slots, 1, MAX_SLOTS, err);
    if (!st)
        st = check_range("n_queue", o->n_queue, 0, INT32_MAX, err);
    if (!st)
        st = check_range("n_threads", o->n_threads, 0, POOL_MAX_THREADS, err);
    if (!st && o->prefill_chunk != 0)
        st = check_range("prefill_chunk", o->prefill_chunk, 1, MAX_CHUNK, err);
    if (!st)
        st = check_range("draft_k", o->draft_k, 0, INT32_MAX, err);
    if (!st && o->kv != LATHE_BF16 && o->kv != LATHE_F32 && o->kv != LATHE_F8_E4M3)
        st = fail(err, LATHE_E_ARGUMENT, "the KV cache is BF16, F32 or E4M3");
    if (!st && o->activations != LATHE_BF16 && o->activations != LATHE_F32)
        st = fail(err, LATHE_E_ARGUMENT, "activations are BF16 or F32");
    if (!st && (unsigned)o->prefill_math > LATHE_PREFILL_NVFP4)
        st = fail(err, LATHE_E_ARGUMENT, "prompts are multiplied in BF16, FP8 or NVFP4");
    if (!st && o->prefill_math != LATHE_PREFILL_BF16 && o->activations != LATHE_BF16)
        st = fail(err, LATHE_E_ARGUMENT, "prompts in FP8 or NVFP4 need BF16 activations");
    return st;
}

/* Which ids the tokenizer has: the rows of the vocabulary matrices beyond are padding. */
static lathe_status open_ids(struct lathe_engine *e, lathe_error *err)
{
    const struct tokenizer *t = e->text->tokenizer;
    int32_t vocab = e->model.dims.vocab;
    if (tokenizer_n_ids(t) > vocab)
        return fail(err, LATHE_E_FORMAT,
                    "%s: the tokenizer has ids up to %d, the vocabulary matrices %d rows",
                    e->text->model_dir, tokenizer_n_ids(t) - 1, vocab);
    size_t n_words = ((size_t)vocab + 63) / 64;
    uint64_t *bits = calloc(n_words, sizeof *bits);
    if (!bits)
        return fail_memory(err, n_words * sizeof *bits);
    for (int32_t id = 0; id < vocab; id++)
        if (tokenizer_has(t, id))
            bits[id / 64] |= (uint64_t)1 << id % 64;
    lathe_status st = id_set_init(&e->ids, vocab, bits, err);
    free(bits);
    return st ? st : sample_scratch_init(&e->scratch, vocab, err);
}

/* The device asked for; the GPU where nothing is asked and there is one. One that is there and cannot be used is
 * warned of. An instruction set is the CPU's. */
static lathe_status open_backend(struct lathe_engine *e, const lathe_engine_options *o,
                                 lathe_error *err)
{
    bool any = !o->device || strcmp(o->device, "auto") == 0;
    bool cuda = o->device && strcmp(o->device, "cuda") == 0;
    if (!any && !cuda && strcmp(o->device, "cpu") != 0)
        return fail(err, LATHE_E_ARGUMENT, "device \"%s\": there are auto, cpu, cuda", o->device);
    if (cuda && o->isa)
        return fail(err, LATHE_E_ARGUMENT, "an instruction set (\"%s\") is for the device cpu",
                    o->isa);
#ifdef LATHE_CUDA
    if (cuda || (any && !o->isa)) {
        lathe_error why;
        e->backend = &backend_cuda;
        lathe_status st = e->backend->open(&e->stream, e->pool, NULL, &why);
        bool is_absent = st == LATHE_E_UNSUPPORTED; /* no driver, or no GPU */
        if (st && cuda)
            return fail(err, is_absent ? LATHE_E_DEVICE : st, "%s", why.message);
        if (!st)
            return LATHE_OK;
        log_line(is_absent ? LATHE_LOG_INFO : LATHE_LOG_WARN, "%s; the CPU is used", why.message);
    }
#else
    if (cuda)
        return fail(err, LATHE_E_UNSUPPORTED,
                    "device cuda: this program was built without it (make CUDA=1)");
#endif
    e->backend = &backend_cpu;
    return e->backend->open(&e->stream, e->pool, o->isa, err);
}

static lathe_status set_prefill_math(struct lathe_engine *e, lathe_error *err)
{
    if (e->options.prefill_math == LATHE_PREFILL_BF16)
        return LATHE_OK;
    if (!e->backend->set_prompt_math)
        return fail(err, LATHE_E_UNSUPPORTED, "prompts in FP8 or NVFP4 need a GPU; this is the %s",
                    e->backend->name);
    bool fp8 = e->options.prefill_math == LATHE_PREFILL_FP8;
    return e->backend->set_prompt_math(e->stream, fp8 ? PROMPT_FP8 : PROMPT_NVFP4, err);
}

/* Everything that takes none of the memory that is planned: options, model, text, backend, drafter; then the
 * plan. */
static lathe_status prepare(struct lathe_engine *e, const lathe_engine_options *o,
                            struct memory *measured, lathe_error *err)
{
    e->options = *o;
    if (!o->model_dir || !*o->model_dir)
        return fail(err, LATHE_E_ARGUMENT, "no model directory is given");
    lathe_status st = model_open(&e->model, o->model_dir, err);
    if (!st)
        st = settle(&e->options, &e->model.dims, err);
    if (!st)
        st = pool_open(&e->pool, o->n_threads, o->pin_threads, err);
    if (!st)
        st = open_backend(e, o, err);
    if (!st)
        st = set_prefill_math(e, err);
    if (!st && e->options.prefill_chunk == 0)
        e->options.prefill_chunk = e->backend->prompt_rows;
    if (!st)
        st = lathe_text_open(&e->text, o->model_dir, err);
    if (!st)
        st = turns_open(&e->turns, o->turn_memory, err);
    if (!st)
        st = open_ids(e, err);
    if (!st)
        st = spec_open(e, err);
    return st ? st : plan_make(e, measured, err);
}

static void unprepare(struct lathe_engine *e)
{
    spec_close(e);
    state_close(&e->state);
    memory_close(&e->memory);
    id_set_release(&e->ids);
    sample_scratch_release(&e->scratch);
    turns_close(&e->turns);
    lathe_text_close(e->text);
    if (e->stream)
        e->backend->close(e->stream);
    pool_close(e->pool);
    model_close(&e->model);
}

lathe_status lathe_plan(const lathe_engine_options *o, lathe_memory_plan *out, lathe_error *err)
{
    struct lathe_engine *e = calloc(1, sizeof *e);
    *out = (lathe_memory_plan){0};
    if (!e)
        return fail_memory(err, sizeof *e);
    struct memory measured;
    lathe_status st = prepare(e, o, &measured, err);
    *out = e->plan;
    unprepare(e);
    free(e);
    return st;
}

static lathe_status open_slots(struct lathe_engine *e, lathe_error *err)
{
    size_t n = (size_t)e->options.n_slots, bytes = (size_t)e->options.n_ctx * sizeof(int32_t);
    e->slots = calloc(n, sizeof *e->slots);
    if (!e->slots)
        return fail_memory(err, n * sizeof *e->slots);
    for (size_t i = 0; i < n; i++) {
        e->slots[i].token = malloc(bytes);
        if (!e->slots[i].token)
            return fail_memory(err, bytes);
    }
    return LATHE_OK;
}

/* Takes what was planned and fills it. */
static lathe_status open_memory(struct lathe_engine *e, const lathe_engine_options *o,
                                lathe_error *err)
{
    struct memory measured;
    lathe_status st = prepare(e, o, &measured, err);
    if (!st)
        st = memory_carve(&e->memory, &measured, err);
    if (st)
        return st;
    struct state_options so = plan_state_options(e);
    struct step_options step = plan_step_options(e);
    model_place(&e->memory, &e->model);
    state_close(&e->state); /* what was measured */
    st = state_open(&e->state, &e->model.dims, &so, &e->memory.cache, err);
    if (!st)
        st = step_open(&e->step, &step, &e->memory.workspace, err);
    if (!st && e->spec.ops)
        st = e->spec.ops->place(e->spec.drafter, e->options.n_ctx, &e->memory, err);
    if (!st)
        st = open_slots(e, err);
    if (!st)
        st = activity_open(&e->activity, e->options.n_slots, err);
    if (!st)
        st = memory_load(&e->memory, e->pool, o->progress, o->progress_ctx, err);
    return st ? st : warm_up(e, err);
}

lathe_status lathe_engine_open(lathe_engine **engine, const lathe_engine_options *o,
                               lathe_error *err)
{
    *engine = NULL;
    struct lathe_engine *e = calloc(1, sizeof *e);
    if (!e)
        return fail_memory(err, sizeof *e);
    bool has_lock = pthread_mutex_init(&e->lock, NULL) == 0;
    if (!has_lock || pthread_cond_init(&e->wake, NULL) != 0) {
        if (has_lock)
            pthread_mutex_destroy(&e->lock);
        free(e);
        return fail_memory(err, sizeof *e);
    }
    e->n_holders = 1;
    lathe_status st = open_memory(e, o, err);
    if (!st) {
        activity_publish(e);
        if (pthread_create(&e->thread, NULL, scheduler_main, e) != 0)
            st = fail(err, LATHE_E_MEMORY, "cannot start the engine's thread");
        else
            e->has_thread = true;
    }
    if (st)
        lathe_engine_close(e);
    else
        *engine = e;
    return st;
}

void engine_hold(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    e->n_holders++;
    pthread_mutex_unlock(&e->lock);
}

void engine_drop(struct lathe_engine *e)
{
    pthread_mutex_lock(&e->lock);
    bool last = --e->n_holders == 0;
    pthread_mutex_unlock(&e->lock);
    if (!last)
        return;
    pthread_mutex_destroy(&e->lock);
    pthread_cond_destroy(&e->wake);
    free(e);
}

void lathe_engine_close(lathe_engine *e)
{
    if (!e)
        return;
    if (e->has_thread) {
        pthread_mutex_lock(&e->lock);
        e->stopping = true;
        pthread_mutex_unlock(&e->lock);
        scheduler_cancel(e);
        pthread_join(e->thread, NULL);
    }
    if (e->slots)
        for (int32_t i = 0; i < e->options.n_slots; i++)
            free(e->slots[i].token);
    free(e->slots);
    activity_close(&e->activity);
    ahead_close(e);
    step_close(&e->step);
    unprepare(e);
    engine_drop(e);
}

const lathe_text *lathe_engine_text(const lathe_engine *e)
{
    return e->text;
}

void lathe_engine_info(const lathe_engine *e, lathe_model_info *out)
{
    model_info(&e->model, out);
}

void lathe_engine_plan(const lathe_engine *e, lathe_memory_plan *out)
{
    *out = e->plan;
}

lathe_status lathe_engine_schedule(lathe_engine *e, char **out, lathe_error *err)
{
    struct buf listing;
    struct step_options o = plan_step_options(e);
    size_t bytes;
    *out = NULL;
    buf_init(&listing, 16 << 20);
    lathe_status st = step_plan(&o, &bytes, &listing, err);
    if (!st)
        st = buf_check(&listing, "schedule", err);
    if (st) {
        buf_release(&listing);
        return st;
    }
    buf_append(&listing, "", 0);
    *out = listing.data;
    return LATHE_OK;
}
