#include "metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "base/histogram.h"
#include "state.h"
#include "store.h"

/* ---- What is counted ------------------------------------------------------------------------ */

static const char *const dialect_name[] = {"chat", "completions", "messages", "responses", "other"};
static const char *const finish_name[] = {"stop", "length", "abort", "error"};
static const char *const phase_name[] = {"prompt", "queued", "prefill", "decode"};
enum {
    N_DIALECTS = sizeof dialect_name / sizeof *dialect_name,
    N_STATUSES = 600, /* of HTTP; 0: the client went away before */
    N_FINISHES = sizeof finish_name / sizeof *finish_name,
    N_PHASES = sizeof phase_name / sizeof *phase_name,
    N_MISSES = LATHE_MISS_OCCUPIED + 1,
};
enum { FINISH_STOP, FINISH_LENGTH, FINISH_ABORT, FINISH_ERROR };

typedef _Atomic(uint64_t) counter;

/* Whose sum is kept in units of 1 / scale. */
struct hist {
    const double *bound;
    int32_t n_bounds;
    double scale;
    counter count[LATHE_MAX_BUCKETS + 1], sum;
};

struct metrics {
    counter requests[N_DIALECTS][N_STATUSES];
    counter finished[N_FINISHES];
    counter calls, repaired_calls, unparsed_calls;
    counter misses[N_MISSES];
    counter rejected_full, rejected_timeout;
    counter disconnects[N_PHASES];
    counter unknown_fields;
    struct hist first, next, whole, queue, prefill, decode, inference, prompt, generation;
};

static void hist_init(struct hist *h, bool is_time)
{
    h->bound = is_time ? histogram_seconds : histogram_tokens;
    h->n_bounds = is_time ? HISTOGRAM_SECONDS : HISTOGRAM_TOKENS;
    h->scale = is_time ? 1e6 : 1;
}

static void add(counter *c, uint64_t n)
{
    (void)atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}

static uint64_t get(const counter *c)
{
    return atomic_load_explicit(c, memory_order_relaxed);
}

static void observe(struct hist *h, double value)
{
    value = value > 0 ? value : 0;
    add(&h->count[histogram_bucket(h->bound, h->n_bounds, value)], 1);
    add(&h->sum, (uint64_t)(value * h->scale + 0.5));
}

lathe_status metrics_open(struct metrics **out, lathe_error *err)
{
    struct metrics *m = *out = calloc(1, sizeof *m);
    if (!m)
        return fail_memory(err, sizeof *m);
    struct hist *const time[] = {&m->first,   &m->next,   &m->whole,    &m->queue,
                                 &m->prefill, &m->decode, &m->inference};
    for (size_t i = 0; i < sizeof time / sizeof *time; i++)
        hist_init(time[i], true);
    hist_init(&m->prompt, false);
    hist_init(&m->generation, false);
    return LATHE_OK;
}

void metrics_close(struct metrics *m)
{
    free(m);
}

void metrics_first(struct metrics *m, double seconds)
{
    observe(&m->first, seconds);
}

void metrics_next(struct metrics *m, double seconds)
{
    observe(&m->next, seconds);
}

static size_t dialect_of(const struct exchange *x)
{
    const char *path = x->path ? x->path : "", *name = x->record.dialect;
    if (!name) /* refused before it was begun */
        name = strstr(path, "/chat/completions") ? "chat"
               : strstr(path, "/completions")    ? "completions"
               : strstr(path, "/messages")       ? "messages"
               : strstr(path, "/responses")      ? "responses"
                                                 : "other";
    size_t i = 0;
    while (i + 1 < N_DIALECTS && strcmp(dialect_name[i], name) != 0)
        i++;
    return i;
}

static void count_generation(struct metrics *m, const struct record *r)
{
    const lathe_usage *u = &r->usage;
    size_t finish = r->is_gone || r->finish == LATHE_FINISH_CANCELLED ? FINISH_ABORT
                    : r->finish == LATHE_FINISH_ERROR                 ? FINISH_ERROR
                    : r->finish == LATHE_FINISH_LENGTH || r->finish == LATHE_FINISH_CONTEXT
                        ? FINISH_LENGTH
                        : FINISH_STOP;
    add(&m->finished[finish], 1);
    add(&m->repaired_calls, (uint64_t)u->repaired_calls);
    add(&m->unparsed_calls, (uint64_t)u->unparsed_calls);
    if (r->n_calls > u->repaired_calls)
        add(&m->calls, (uint64_t)(r->n_calls - u->repaired_calls));
    if (r->phase <= RUN_QUEUED)
        return;
    observe(&m->queue, u->queue_ms * 1e-3);
    if ((unsigned)u->miss < N_MISSES && u->miss != LATHE_MISS_NONE)
        add(&m->misses[u->miss], 1);
    observe(&m->prefill, u->prefill_ms * 1e-3);
    observe(&m->decode, u->decode_ms * 1e-3);
    observe(&m->inference, (u->prefill_ms + u->decode_ms) * 1e-3);
    observe(&m->prompt, u->prompt_tokens);
    observe(&m->generation, u->completion_tokens);
}

void metrics_request(struct metrics *m, const struct exchange *x, int status, double seconds)
{
    add(&m->requests[dialect_of(x)][status > 0 && status < N_STATUSES ? status : 0], 1);
    add(&m->unknown_fields, (uint64_t)x->n_unknown);
    if (x->failure.condition == QUEUE_FULL)
        add(&m->rejected_full, 1);
    if (x->failure.condition == QUEUE_TIMEOUT)
        add(&m->rejected_timeout, 1);
    if (x->failure.condition == CLIENT_GONE)
        add(&m->disconnects[x->record.phase], 1);
    if (!x->record.dialect)
        return;
    observe(&m->whole, seconds);
    count_generation(m, &x->record);
}

/* ---- The text: 0.0.4 ------------------------------------------------------------------------ */

struct page {
    struct buf *out;
    struct buf model; /* its label: model_name="..." */
};

static void put_label_value(struct buf *out, const char *s)
{
    for (; *s; s++)
        if (*s == '\\' || *s == '"')
            buf_printf(out, "\\%c", *s);
        else if (*s == '\n')
            buf_puts(out, "\\n");
        else
            buf_putc(out, *s);
}

static void family(struct page *p, const char *name, const char *type, const char *help)
{
    buf_printf(p->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* labels: "a=\"b\",", with a comma behind each, or "". */
static void sample(struct page *p, const char *name, const char *labels, double value)
{
    buf_printf(p->out, "%s{%s%s} %.17g\n", name, labels, buf_str(&p->model), value);
}

/* The same with one label that has a value. */
static void labelled(struct page *p, const char *name, const char *label, const char *value,
                     double number)
{
    char text[128];
    (void)snprintf(text, sizeof text, "%s=\"%s\",", label, value);
    sample(p, name, text, number);
}

static void single(struct page *p, const char *name, const char *type, const char *help,
                   double value)
{
    family(p, name, type, help);
    sample(p, name, "", value);
}

static void buckets(struct page *p, const char *name, const char *labels, const lathe_histogram *h)
{
    char series[128], with[256];
    uint64_t n = 0;
    (void)snprintf(series, sizeof series, "%s_bucket", name);
    for (int32_t i = 0; i <= h->n_bounds; i++) {
        n += h->count[i];
        if (i < h->n_bounds)
            (void)snprintf(with, sizeof with, "%sle=\"%g\",", labels, h->bound[i]);
        else
            (void)snprintf(with, sizeof with, "%sle=\"+Inf\",", labels);
        sample(p, series, with, (double)n);
    }
    (void)snprintf(series, sizeof series, "%s_sum", name);
    sample(p, series, labels, h->sum);
    (void)snprintf(series, sizeof series, "%s_count", name);
    sample(p, series, labels, (double)n);
}

static lathe_histogram read_hist(const struct hist *h)
{
    lathe_histogram out = {
        .bound = h->bound, .n_bounds = h->n_bounds, .sum = (double)get(&h->sum) / h->scale};
    for (int32_t i = 0; i <= h->n_bounds; i++)
        out.count[i] = get(&h->count[i]);
    return out;
}

static void histogram(struct page *p, const char *name, const char *help, const struct hist *h)
{
    lathe_histogram copy = read_hist(h);
    family(p, name, "histogram", help);
    buckets(p, name, "", &copy);
}

/* ---- Names of vLLM, which the Kubernetes Gateway API inference extension reads --------------- */

static void put_load(struct page *p, const lathe_activity *a)
{
    char labels[80];
    int32_t running = a->n_prefill + a->n_decode;
    single(p, "vllm:num_requests_waiting", "gauge", "Requests that wait for a slot", a->n_queued);
    single(p, "vllm:num_requests_running", "gauge", "Requests in prefill or decode", running);
    single(p, "vllm:kv_cache_usage_perc", "gauge",
           "Share of the KV pages that running requests hold, 0 to 1",
           a->n_pages ? (double)a->n_pages_running / a->n_pages : 0);
    family(p, "vllm:cache_config_info", "gauge", "Positions of a KV page, and pages");
    (void)snprintf(labels, sizeof labels, "block_size=\"%d\",num_gpu_blocks=\"%d\",",
                   (int)a->kv_page, (int)a->n_pages);
    sample(p, "vllm:cache_config_info", labels, 1);
}

static void by_class(struct page *p, const char *name, int32_t all, int32_t background)
{
    labelled(p, name, "class", "interactive", all - background);
    labelled(p, name, "class", "background", background);
}

static void put_tokens(struct page *p, const struct metrics *m, const lathe_activity *a)
{
    single(p, "vllm:prompt_tokens_total", "counter", "Tokens of prompts", (double)a->prompt_tokens);
    single(p, "vllm:generation_tokens_total", "counter", "Tokens that were generated",
           (double)a->completion_tokens);
    single(p, "vllm:prefix_cache_queries_total", "counter",
           "Tokens of prompts that were looked for in slots", (double)a->prompt_tokens);
    single(p, "vllm:prefix_cache_hits_total", "counter", "And found there",
           (double)a->cached_tokens);
    single(p, "vllm:num_preemptions_total", "counter", "Requests put back: none ever is", 0);
    family(p, "vllm:request_success_total", "counter", "Requests by how they ended");
    for (size_t i = 0; i < N_FINISHES; i++)
        labelled(p, "vllm:request_success_total", "finished_reason", finish_name[i],
                 (double)get(&m->finished[i]));
}

static void put_position(struct page *p, const char *name, int32_t i, uint64_t value)
{
    char position[12];
    (void)snprintf(position, sizeof position, "%d", (int)i);
    labelled(p, name, "position", position, (double)value);
}

static void put_speculation(struct page *p, const lathe_activity *a)
{
    single(p, "vllm:spec_decode_num_drafts_total", "counter", "Rounds with drafts",
           (double)a->drafted_at[0]);
    single(p, "vllm:spec_decode_num_draft_tokens_total", "counter", "Drafts", (double)a->drafted);
    single(p, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Drafts that were accepted",
           (double)a->accepted);
    family(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "counter",
           "Drafts that were accepted, by their place in the round");
    for (int32_t i = 0; i < LATHE_MAX_DRAFT; i++)
        put_position(p, "vllm:spec_decode_num_accepted_tokens_per_pos_total", i, a->accepted_at[i]);
}

static void put_latencies(struct page *p, const struct metrics *m, const lathe_activity *a)
{
    histogram(p, "vllm:time_to_first_token_seconds",
              "From a request's arrival to the first piece of its answer", &m->first);
    histogram(p, "vllm:inter_token_latency_seconds", "Between steps whose pieces were sent",
              &m->next);
    histogram(p, "vllm:time_per_output_token_seconds", "The same under its former name", &m->next);
    histogram(p, "vllm:e2e_request_latency_seconds", "Requests from arrival to end", &m->whole);
    histogram(p, "vllm:request_queue_time_seconds", "Waiting for a slot", &m->queue);
    histogram(p, "vllm:request_prefill_time_seconds", "Reading the prompt", &m->prefill);
    histogram(p, "vllm:request_decode_time_seconds", "Generating behind the first token",
              &m->decode);
    histogram(p, "vllm:request_inference_time_seconds", "Both", &m->inference);
    histogram(p, "vllm:request_prompt_tokens", "Tokens of a prompt", &m->prompt);
    histogram(p, "vllm:request_generation_tokens", "Tokens of an answer", &m->generation);
    family(p, "vllm:iteration_tokens_total", "histogram", "Tokens of a step, drafts included");
    buckets(p, "vllm:iteration_tokens_total", "", &a->step_rows);
}

/* ---- Our own -------------------------------------------------------------------------------- */

static void put_build(struct page *p, const struct server *s, const lathe_activity *a)
{
    int phase = atomic_load(&s->phase);
    char labels[128];
    family(p, "lathe_build_info", "gauge", "The version that runs");
    (void)snprintf(labels, sizeof labels, "version=\"%s\",revision=\"%.64s\",", lathe_version(),
                   server_revision(s));
    sample(p, "lathe_build_info", labels, 1);
    single(p, "lathe_ready", "gauge", "1 where /ready is 200",
           phase == PHASE_READY && !atomic_load(&s->has_failed));
    single(
        p, "lathe_device_losses_total", "counter",
        "Failures of the device in this process, those before its program started again included",
        (double)s->options.n_device_losses + atomic_load(&s->has_failed));
    family(p, "lathe_slots", "gauge", "Slots by what they do");
    int32_t n = s->options.n_slots;
    labelled(p, "lathe_slots", "state", "free", n - a->n_prefill - a->n_decode);
    labelled(p, "lathe_slots", "state", "prefill", a->n_prefill);
    labelled(p, "lathe_slots", "state", "decode", a->n_decode);
    family(p, "lathe_requests_waiting", "gauge", "Requests that wait for a slot, by class");
    by_class(p, "lathe_requests_waiting", a->n_queued, a->n_queued_background);
    family(p, "lathe_requests_running", "gauge", "Requests in prefill or decode, by class");
    by_class(p, "lathe_requests_running", a->n_prefill + a->n_decode, a->n_running_background);
    family(p, "lathe_kv_pages", "gauge", "Pages of the KV cache by who holds them");
    labelled(p, "lathe_kv_pages", "state", "running", a->n_pages_running);
    labelled(p, "lathe_kv_pages", "state", "idle", a->n_pages_idle);
    labelled(p, "lathe_kv_pages", "state", "free",
             a->n_pages - a->n_pages_running - a->n_pages_idle);
}

struct region {
    const char *purpose;
    uint64_t bytes;
};

static void put_regions(struct page *p, const char *where, const struct region *region, size_t n)
{
    char labels[128];
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(labels, sizeof labels, "where=\"%s\",purpose=\"%s\",", where,
                       region[i].purpose);
        sample(p, "lathe_memory_bytes", labels, (double)region[i].bytes);
    }
}

static void put_memory(struct page *p, const struct server *s)
{
    const struct region own[] = {{"bodies", atomic_load(&s->bodies)},
                                 {"responses", store_bytes(s->store)},
                                 {"answers", answers_bytes(s->answers)}};
    lathe_memory_plan plan;
    family(p, "lathe_memory_bytes", "gauge", "Memory of the engine and of the server by purpose");
    put_regions(p, "host", own, sizeof own / sizeof *own);
    if (!s->engine)
        return;
    lathe_engine_plan(s->engine, &plan);
    const struct region engine[] = {{"weights", plan.weights},     {"kv", plan.kv},
                                    {"recurrent", plan.recurrent}, {"drafter", plan.drafter},
                                    {"workspace", plan.workspace}, {"driver", plan.driver}};
    put_regions(p, strncmp(plan.device, "cpu", 3) == 0 ? "host" : "gpu", engine,
                sizeof engine / sizeof *engine);
}

static void put_requests(struct page *p, const struct metrics *m)
{
    char labels[80];
    family(p, "lathe_requests_total", "counter", "Requests by dialect and status; 0: no answer");
    for (size_t d = 0; d < N_DIALECTS; d++)
        for (size_t i = 0; i < N_STATUSES; i++) {
            if (!get(&m->requests[d][i]))
                continue;
            (void)snprintf(labels, sizeof labels, "dialect=\"%s\",status=\"%d\",", dialect_name[d],
                           (int)i);
            sample(p, "lathe_requests_total", labels, (double)get(&m->requests[d][i]));
        }
    family(p, "lathe_tool_calls_total", "counter", "Tool calls of answers");
    labelled(p, "lathe_tool_calls_total", "result", "ok", (double)get(&m->calls));
    labelled(p, "lathe_tool_calls_total", "result", "repaired", (double)get(&m->repaired_calls));
    labelled(p, "lathe_tool_calls_total", "result", "unparsed", (double)get(&m->unparsed_calls));
    family(p, "lathe_cache_miss_total", "counter", "Prompts not reused as far as they might be");
    for (int i = 0; i < N_MISSES; i++)
        if (i != LATHE_MISS_NONE)
            labelled(p, "lathe_cache_miss_total", "reason", lathe_miss_name((lathe_miss)i),
                     (double)get(&m->misses[i]));
    family(p, "lathe_queue_rejected_total", "counter", "Requests that got no slot");
    labelled(p, "lathe_queue_rejected_total", "reason", "full", (double)get(&m->rejected_full));
    labelled(p, "lathe_queue_rejected_total", "reason", "timeout",
             (double)get(&m->rejected_timeout));
    family(p, "lathe_disconnect_total", "counter", "Clients that went away, by what was done");
    for (size_t i = 0; i < N_PHASES; i++)
        labelled(p, "lathe_disconnect_total", "phase", phase_name[i],
                 (double)get(&m->disconnects[i]));
    single(p, "lathe_unknown_field_total", "counter", "Fields of bodies that are not known",
           (double)get(&m->unknown_fields));
}

static void put_engine(struct page *p, const lathe_activity *a)
{
    static const char *const kind[LATHE_STEP_KINDS] = {"prefill", "decode", "verify"};
    double round_bound[LATHE_MAX_DRAFT + 1];
    lathe_histogram rounds = {.bound = round_bound,
                              .n_bounds = LATHE_MAX_DRAFT + 1,
                              .sum = (double)(a->rounds + a->accepted)};
    single(p, "lathe_reasoning_tokens_total", "counter", "Tokens of think blocks",
           (double)a->reasoning_tokens);
    single(p, "lathe_eos_in_think_total", "counter", "End tokens inside a think block",
           (double)(a->ended_in_reasoning + a->closed_for_end));
    family(p, "lathe_forced_think_close_total", "counter", "Think blocks that were closed");
    labelled(p, "lathe_forced_think_close_total", "why", "budget", (double)a->closed_for_budget);
    labelled(p, "lathe_forced_think_close_total", "why", "end_token", (double)a->closed_for_end);
    family(p, "lathe_step_seconds", "histogram", "Steps of the model");
    for (int i = 0; i < LATHE_STEP_KINDS; i++) {
        char labels[40];
        (void)snprintf(labels, sizeof labels, "kind=\"%s\",", kind[i]);
        buckets(p, "lathe_step_seconds", labels, &a->step_seconds[i]);
    }
    family(p, "lathe_round_tokens", "histogram", "Tokens that a round of a request gave");
    for (int i = 0; i <= LATHE_MAX_DRAFT; i++) {
        round_bound[i] = i + 1;
        rounds.count[i] = a->histogram[i];
    }
    buckets(p, "lathe_round_tokens", "", &rounds);
    family(p, "lathe_drafts_total", "counter", "Drafts by their place in the round");
    for (int32_t i = 0; i < LATHE_MAX_DRAFT; i++)
        put_position(p, "lathe_drafts_total", i, a->drafted_at[i]);
}

void metrics_show(struct exchange *x)
{
    struct server *s = x->server;
    struct page p = {.out = &x->reply};
    lathe_activity a = {.failure = NULL};
    if (s->options.no_metrics) {
        (void)refuse(&x->failure, NOT_FOUND, "metrics are off (--metrics on)");
        return;
    }
    if (server_engine(s))
        lathe_engine_activity(s->engine, &a, NULL, 0);
    buf_init(&p.model, 2048);
    buf_puts(&p.model, "model_name=\"");
    put_label_value(&p.model, s->model);
    buf_puts(&p.model, "\"");
    x->type = "text/plain; version=0.0.4; charset=utf-8";
    put_load(&p, &a);
    put_tokens(&p, s->metrics, &a);
    put_speculation(&p, &a);
    put_latencies(&p, s->metrics, &a);
    put_build(&p, s, &a);
    put_memory(&p, s);
    put_requests(&p, s->metrics);
    put_engine(&p, &a);
    buf_release(&p.model);
}
