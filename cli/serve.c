/* lathe serve: the HTTP server. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "args.h"
#include "base/clock.h"
#include "cli.h"
#include "plan.h"
#include "server/restart.h"
#include "server/server.h"

#define LIMIT_OF_HELP(name, option, unit, bits, low, normal, high, what)                           \
    "  " option " " unit "   " what " (" #normal ")\n"
#define LIMITS_OF_HELP SERVER_LIMITS(LIMIT_OF_HELP)

static const char help[] =
    "lathe serve -m DIR [options]: an HTTP server (docs/server.md)\n"
    "\n"
    "  -m, --model DIR        the model's directory\n"
    "  --host NAME            where to listen (127.0.0.1)  --port N (8080; 0: any)\n"
    "  --host unix:PATH       a Unix socket, for this user\n"
    "  --tls-cert FILE  --tls-key FILE   HTTPS; PEM files\n"
    "  --api-key KEY          a key that clients must send; repeatable; also from\n"
    "                         the environment variable LATHE_API_KEY\n"
    "  --api-key-file FILE    a key a line, # begins a comment; repeatable\n"
    "  --allowed-host NAME    a name in Host headers, beside --host; repeatable\n"
    "  --cors-origin ORIGIN   a page that may use it; repeatable\n"
    "  --alias NAME           a name of the model, the first is its id\n"
    "  --slots N  --max-queue N   requests that run at once (1), that wait (64)\n"
    "  --unknown-fields warn|error  (warn)\n"
    "  --default-max-tokens N   of requests without\n"
    "  --restore-reasoning on|off   what a client left out of its history (on)\n"
    "  --repair-arguments on|off   of calls that were cut off (on)\n"
    "  --turn-memory MB       for the tokens of answers that come back (64; 0: none)\n"
    "  --responses-store N    responses that are kept (256)\n"
    "  --responses-reasoning summary|content|both|none  (as requests ask)\n"
    "  --thinking on|off|model  --effort WORD   of requests that say nothing (model)\n"
    "  --pin-effort xhigh|medium|low   of all requests that think\n"
    "  --budget-message TEXT  before a think block ends whose budget is spent\n"
    "  --eos-in-think close|stop   an end token in it ends the block (close), or all\n"
    "  --reasoning-field reasoning_content|reasoning|both   in chat completions\n"
    "  --split-think on|off   <think> in an assistant's text is reasoning (on)\n"
    "  --always-usage         also in streams that did not ask  --max-calls N   (64)\n"
    "  --prefill-assistant on|off  --late-system merge|inline|error\n"
    "  --tool-choice-none omit|keep  --billing-header strip|keep\n"
    "  --strict-model         no other names than the model's are taken\n"
    "  --timings on|off       in replies (on)\n"
    "  --metrics on|off       /metrics (on)  --metrics-auth   with a key only\n"
    "  --debug-routes         /debug/requests and /debug/cache\n"
    "  --trace FILE  a JSON object a line for each answer   --trace-size MB  (64)\n"
    "  --trace-text           with what was said, and the tokens\n"
    "  --drain-delay S        at the end, not ready but serving (0)\n"
    "  --drain-timeout S      then, for what still runs (30)\n"
    "  --on-device-loss restart|exit   what a device that failed leads to (restart)\n"
    "  --queue-timeout S  --request-timeout S   (0: none)  --write-timeout S  (60)\n"
    "  --json-keepalive S     (240; 0: none)\n"
    "  --log text|json|off\n"
    "  --log-level error|info|debug|@FILE  (info)  --log-bodies   what was asked, too\n"
    "  -c, --ctx N|auto  --memory GB  --threads N  --pin  --kv bf16|fp8|f32\n"
    "  --activations bf16|f32  --prefill-math bf16|fp8|nvfp4\n"
    "  --device auto|cpu|cuda  --isa NAME  --spec NAME  --draft-model DIR\n"
    "  --draft-k N  --fixed-k  --rejection   as in lathe run\n"
    "\n"
    "Limits (docs/server.md):\n" LIMITS_OF_HELP "\n"
    "SIGTERM and Ctrl-C end it, a second one at once. SIGHUP reads keys, certificate\n"
    "and log level again. Exit codes: 0 done, 1 failed, 2 wrong command line.\n";

struct serve {
    struct options options;
    struct engine_args engine;
    const char *metrics;
    const char *host, *unknown, *log, *timings, *tls_cert, *tls_key, *log_level;
    int64_t port, slots, queue, drain_timeout;
    int64_t limit[N_LIMITS]; /* in the units of limit_rows */
    const char *responses_reasoning;
    int64_t responses_store;
    int64_t queue_timeout, request_timeout, write_timeout, json_keepalive, drain_delay;
    int64_t default_max_tokens, max_calls;
    bool always_usage;
    const char *prefill, *late_system, *tool_choice_none, *billing_header, *on_device_loss;
    bool strict_model, log_bodies, metrics_auth, debug_routes, trace_text;
    int64_t trace_size;
    const char *trace;
    int64_t turn_memory;
    const char *thinking, *effort, *pin_effort, *budget_message, *eos_in_think, *reasoning_field,
        *split_think, *restore_reasoning, *repair_arguments;
    struct option_list key, key_file, allowed_host, cors_origin, alias;
    struct server *server;
    struct restart restart;
};

static void add_options(struct serve *v)
{
    struct options *o = &v->options;
    o->command = "serve";
    o->help = help;
    engine_args_add(o, &v->engine);
    spec_args_add(o, &v->engine);
    round_args_add(o, &v->engine);
    option_text(o, "--host", NULL, &v->host);
    option_int(o, "--port", NULL, &v->port, 0, 65535);
    option_list(o, "--api-key", NULL, &v->key);
    option_list(o, "--api-key-file", NULL, &v->key_file);
    option_list(o, "--allowed-host", NULL, &v->allowed_host);
    option_list(o, "--cors-origin", NULL, &v->cors_origin);
    option_list(o, "--alias", NULL, &v->alias);
    option_int(o, "--slots", NULL, &v->slots, 1, 1024);
    option_int(o, "--max-queue", NULL, &v->queue, 0, 100000);
    option_flag(o, "--always-usage", NULL, &v->always_usage);
    option_int(o, "--max-calls", NULL, &v->max_calls, 1, 1024);
    option_word(o, "--prefill-assistant", NULL, &v->prefill, "on|off");
    option_word(o, "--late-system", NULL, &v->late_system, "merge|inline|error");
    option_word(o, "--tool-choice-none", NULL, &v->tool_choice_none, "omit|keep");
    option_word(o, "--billing-header", NULL, &v->billing_header, "strip|keep");
    option_word(o, "--on-device-loss", NULL, &v->on_device_loss, "restart|exit");
    option_word(o, "--unknown-fields", NULL, &v->unknown, "warn|error");
    option_word(o, "--log", NULL, &v->log, "text|json|off");
    option_word(o, "--responses-reasoning", NULL, &v->responses_reasoning,
                "summary|content|both|none");
    option_word(o, "--thinking", NULL, &v->thinking, "on|off|model");
    option_word(o, "--effort", NULL, &v->effort, "xhigh|high|max|medium|low|minimal");
    option_word(o, "--pin-effort", NULL, &v->pin_effort, "xhigh|medium|low");
    option_text(o, "--budget-message", NULL, &v->budget_message);
    option_word(o, "--eos-in-think", NULL, &v->eos_in_think, "close|stop");
    option_word(o, "--reasoning-field", NULL, &v->reasoning_field,
                "reasoning_content|reasoning|both");
    option_word(o, "--split-think", NULL, &v->split_think, "on|off");
    option_word(o, "--restore-reasoning", NULL, &v->restore_reasoning, "on|off");
    option_word(o, "--repair-arguments", NULL, &v->repair_arguments, "on|off");
    option_int(o, "--turn-memory", NULL, &v->turn_memory, 0, 1 << 20);
    option_int(o, "--responses-store", NULL, &v->responses_store, 0, 65536);
    for (int i = 0; i < N_LIMITS; i++) {
        const struct limit_row *r = &limit_rows[i];
        v->limit[i] = r->normal;
        option_int(o, r->option, NULL, &v->limit[i], r->low, r->high);
    }
    option_int(o, "--queue-timeout", NULL, &v->queue_timeout, 0, 86400);
    option_int(o, "--request-timeout", NULL, &v->request_timeout, 0, 86400);
    option_int(o, "--drain-timeout", NULL, &v->drain_timeout, 0, 86400);
    option_int(o, "--drain-delay", NULL, &v->drain_delay, 0, 86400);
    option_int(o, "--write-timeout", NULL, &v->write_timeout, 1, 86400);
    option_int(o, "--json-keepalive", NULL, &v->json_keepalive, 0, 86400);
    option_int(o, "--default-max-tokens", NULL, &v->default_max_tokens, 1, INT32_MAX);
    option_path(o, "--tls-cert", NULL, &v->tls_cert);
    option_path(o, "--tls-key", NULL, &v->tls_key);
    option_text(o, "--log-level", NULL, &v->log_level);
    option_word(o, "--metrics", NULL, &v->metrics, "on|off");
    option_flag(o, "--metrics-auth", NULL, &v->metrics_auth);
    option_flag(o, "--debug-routes", NULL, &v->debug_routes);
    option_path(o, "--trace", NULL, &v->trace);
    option_int(o, "--trace-size", NULL, &v->trace_size, 1, 1 << 20);
    option_flag(o, "--trace-text", NULL, &v->trace_text);
    option_flag(o, "--log-bodies", NULL, &v->log_bodies);
    option_flag(o, "--strict-model", NULL, &v->strict_model);
    option_word(o, "--timings", NULL, &v->timings, "on|off");
    v->host = "127.0.0.1";
    v->write_timeout = 60;
    v->trace_size = 64;
    v->json_keepalive = 240;
    v->port = 8080;
    v->slots = 1;
    v->queue = 64;
    v->drain_timeout = 30;
    v->responses_store = 256;
    v->turn_memory = 64;
}

static struct names names_of(const struct option_list *l)
{
    return (struct names){l->value, l->n};
}

static bool is_word(const char *given, const char *word)
{
    return given && strcmp(given, word) == 0;
}

static void print_line(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "%s\n", line);
}

static enum responses_reasoning reasoning_of(const char *word)
{
    return !word                          ? RESPONSES_REASONING_ASKED
           : strcmp(word, "summary") == 0 ? RESPONSES_REASONING_SUMMARY
           : strcmp(word, "content") == 0 ? RESPONSES_REASONING_CONTENT
           : strcmp(word, "both") == 0    ? RESPONSES_REASONING_BOTH
                                          : RESPONSES_REASONING_NONE;
}

static void fill_thinking(const struct serve *v, struct server_options *o)
{
    o->thinking = (struct thinking_options){
        .thinking = is_word(v->thinking, "on")    ? LATHE_ON
                    : is_word(v->thinking, "off") ? LATHE_OFF
                                                  : LATHE_DEFAULT,
        .effort = v->effort,
        .pinned_effort = v->pin_effort,
        .budget_message = v->budget_message,
        .end_in_think = is_word(v->eos_in_think, "stop"),
    };
    if (is_word(v->reasoning_field, "reasoning"))
        o->reasoning_field = FIELD_REASONING;
    else if (is_word(v->reasoning_field, "both"))
        o->reasoning_field = FIELD_REASONING_CONTENT | FIELD_REASONING;
    o->keep_think_tags = is_word(v->split_think, "off");
    o->no_restore_reasoning = is_word(v->restore_reasoning, "off");
    o->no_repair_arguments = is_word(v->repair_arguments, "off");
}

static void fill(struct serve *v, struct server_options *o)
{
    const char *key = getenv("LATHE_API_KEY");
    if (key && *key && v->key.n < OPTION_MAX_LIST)
        v->key.value[v->key.n++] = key;
    server_options_init(o);
    fill_thinking(v, o);
    o->revision = cli_revision;
    o->host = v->host;
    o->port = (int32_t)v->port;
    o->model_dir = v->engine.model;
    o->n_slots = (int32_t)v->slots;
    o->n_queue = (int32_t)v->queue;
    o->queue_timeout_s = (int32_t)v->queue_timeout;
    o->request_timeout_s = (int32_t)v->request_timeout;
    o->write_timeout_s = (int32_t)v->write_timeout;
    o->json_keepalive_s = (int32_t)v->json_keepalive;
    o->default_max_tokens = (int32_t)v->default_max_tokens;
    o->strict_model = v->strict_model;
    o->always_usage = v->always_usage;
    o->max_calls = (int32_t)v->max_calls;
    o->no_prefill = is_word(v->prefill, "off");
    o->keep_unused_tools = is_word(v->tool_choice_none, "keep");
    o->keep_billing_header = is_word(v->billing_header, "keep");
    o->late_system = !v->late_system                     ? -1
                     : is_word(v->late_system, "merge")  ? LATHE_LATE_SYSTEM_MERGE
                     : is_word(v->late_system, "inline") ? LATHE_LATE_SYSTEM_INLINE
                                                         : LATHE_LATE_SYSTEM_ERROR;
    o->no_metrics = v->metrics && strcmp(v->metrics, "off") == 0;
    o->metrics_auth = v->metrics_auth;
    o->debug_routes = v->debug_routes;
    o->trace = v->trace;
    o->trace_bytes = (uint64_t)v->trace_size << 20;
    o->trace_text = v->trace_text;
    o->no_timings = v->timings && strcmp(v->timings, "off") == 0;
    o->alias = names_of(&v->alias);
    o->key = names_of(&v->key);
    o->key_file = names_of(&v->key_file);
    o->allowed_host = names_of(&v->allowed_host);
    o->cors_origin = names_of(&v->cors_origin);
    o->log = v->log && strcmp(v->log, "off") == 0 ? NULL : print_line;
    o->log_level = v->log_level;
    o->log_bodies = v->log_bodies;
    o->tls_cert = v->tls_cert;
    o->tls_key = v->tls_key;
    o->log_json = v->log && strcmp(v->log, "json") == 0;
    o->unknown_is_error = v->unknown && strcmp(v->unknown, "error") == 0;
    for (int i = 0; i < N_LIMITS; i++)
        o->limits.of[i] = v->limit[i] << limit_rows[i].bits;
    o->n_responses = (int32_t)v->responses_store;
    o->responses_reasoning = reasoning_of(v->responses_reasoning);
    v->restart.listener.path = listen_path(v->host);
    o->listener = v->restart.listener.fd >= 0 ? &v->restart.listener : NULL;
    o->n_device_losses = v->restart.n_losses;
}

/* ---- Signals: taken by one thread, which ends the process at the second that should end it -- */

enum { LOOK_MS = 250 }; /* how often the device is looked at */

struct signals {
    sigset_t set;
    pthread_t thread;
    int pipe[2]; /* 'h' at a SIGHUP, 'e' at the first that should end the process */
    _Atomic(bool) must_end;
};

static void *take_signals(void *arg)
{
    struct signals *s = arg;
    int which;
    for (bool ends = false; sigwait(&s->set, &which) == 0;) {
        if (which != SIGHUP && ends)
            _exit(EXIT_FAILED);
        ends |= which != SIGHUP;
        atomic_store(&s->must_end, ends);
        (void)!write(s->pipe[1], which == SIGHUP ? "h" : "e", 1);
    }
    return NULL;
}

/* First of all: what comes from here on waits for the thread that takes them, and every thread leaves them to it. */
static void signals_block(struct signals *s)
{
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&s->set);
    (void)sigaddset(&s->set, SIGTERM);
    (void)sigaddset(&s->set, SIGINT);
    (void)sigaddset(&s->set, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &s->set, NULL);
}

static lathe_status signals_begin(struct signals *s, lathe_error *err)
{
    if (pipe(s->pipe) != 0 || pthread_create(&s->thread, NULL, take_signals, s) != 0)
        return fail(err, LATHE_E_MEMORY, "cannot wait for signals");
    return LATHE_OK;
}

/* Until the process should end: true; false: the device has failed, *why says how. */
static bool signals_wait(const struct signals *s, struct server *server, lathe_error *why)
{
    struct pollfd p = {.fd = s->pipe[0], .events = POLLIN};
    char byte;
    while (!atomic_load(&s->must_end)) {
        if (poll(&p, 1, LOOK_MS) > 0 && read(s->pipe[0], &byte, 1) == 1 && byte == 'h')
            server_reload(server);
        if (!atomic_load(&s->must_end) && server_has_failed(server, why))
            return false;
    }
    return true;
}

/* Signals are taken no more, and wait for who takes them next. Was there one that should end the process? */
static bool signals_leave(struct signals *s)
{
    (void)pthread_cancel(s->thread);
    (void)pthread_join(s->thread, NULL);
    return atomic_load(&s->must_end);
}

/* ---- Serving -------------------------------------------------------------------------------- */

/* Of a model that is being loaded. */
struct loading {
    struct server *server;
    struct signals *signals;
};

static bool show_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct loading *l = ctx;
    (void)what;
    server_progress(l->server, total ? (double)done / (double)total : 0);
    return !atomic_load(&l->signals->must_end);
}

static bool is_loopback(const char *host)
{
    return strncmp(host, "unix:", 5) == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
}

static void tell_address(const struct serve *v)
{
    bool is_path = strncmp(v->host, "unix:", 5) == 0, is_v6 = !is_path && strchr(v->host, ':');
    fprintf(stderr, "lathe: serving %s on %s%s%s%s", v->engine.model,
            is_path       ? ""
            : v->tls_cert ? "https://"
                          : "http://",
            is_v6 ? "[" : "", v->host, is_v6 ? "]" : "");
    fprintf(stderr, is_path ? "\n" : ":%d\n", (int)server_port(v->server));
}

/* Every request has a thread. By default glibc gives threads heaps of their own, several for each processor, and none of
 * them gives back what one request once took: with one heap, resident memory stays where it is under load. */
static void keep_one_heap(void)
{
#ifdef M_ARENA_MAX
    (void)mallopt(M_ARENA_MAX, 1);
#endif
}

/* Files of the process beside connections: the model's, the log, libraries. */
enum { OTHER_FILES = 128 };

/* The limit of open files lets as many connections in as are allowed, so that one more hears so. */
static void allow_files(const struct serve *v)
{
    struct rlimit limit;
    rlim_t want = (rlim_t)v->limit[LIMIT_CONNECTIONS] + OTHER_FILES;
    if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
        return;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == want)
        return;
    fprintf(stderr,
            "lathe: warning: %llu open files are allowed (ulimit -n); --max-connections %lld needs "
            "%llu\n",
            (unsigned long long)limit.rlim_cur, (long long)v->limit[LIMIT_CONNECTIONS],
            (unsigned long long)want);
}

/* For the errors that end what ran on a device that failed, before server_drain ends what is left. */
enum { LAST_ANSWERS_MS = 2000 };

/* The device has failed, and may be lost to this process for good: with NVIDIA's driver 580 it is. A program that is executed
 * anew has it again. What the engine has is not given back call by call, of which each could hang: the execution ends the
 * engine's thread, and the driver then frees everything. Returns if the server is to end. */
static lathe_status start_again(struct serve *v, struct signals *signals, lathe_error *err)
{
    bool many = !restart_note_loss(&v->restart, clock_whole_ms() / 1000);
    bool ends = is_word(v->on_device_loss, "exit") || many;
    lathe_error lost = *err;
    fprintf(stderr, "lathe: %s\n", lost.message);
    if (!ends) {
        fprintf(stderr, "lathe: starting again\n");
        server_give_socket(v->server, &v->restart.listener);
    }
    server_drain(v->server, 0, LAST_ANSWERS_MS);
    server_close(v->server);
    v->server = NULL;
    if (ends)
        return fail(err, LATHE_E_DEVICE, "%s",
                    many ? "ending, since devices failed too often in the last hour"
                         : "ending, since the device failed (--on-device-loss)");
    lathe_status st = LATHE_OK;
    /* Where one has come they are taken on: a second one ends the process even if closing the engine hangs. */
    if (atomic_load(&signals->must_end) || signals_leave(signals))
        fprintf(stderr, "lathe: shutting down\n");
    else
        st = restart_execute(&v->restart, err);
    listen_remove(&v->restart.listener);
    (void)close(v->restart.listener.fd);
    return st;
}

static lathe_status serve(struct serve *v, struct signals *signals, lathe_error *err)
{
    struct server_options so;
    lathe_engine_options eo;
    lathe_memory_plan plan = {0};
    lathe_engine *engine = NULL;
    lathe_status st = restart_read(&v->restart, err);
    if (st)
        return st;
    fill(v, &so);
    engine_args_fill(&v->engine, &eo);
    eo.n_slots = (int32_t)v->slots;
    eo.n_queue = (int32_t)v->queue;
    eo.turn_memory = (uint64_t)v->turn_memory << 20;
    st = signals_begin(signals, err);
    if (!st)
        st = lathe_plan(&eo, &plan, err);
    if (plan.total && (!st || st == LATHE_E_MEMORY))
        plan_print(stderr, &plan, eo.kv);
    if (!st) {
        so.n_ctx = plan.n_ctx;
        allow_files(v);
        st = server_open(&v->server, &so, err);
    }
    if (st) {
        listen_remove(&v->restart.listener);
        return st;
    }
    if (!is_loopback(v->host) && !server_has_key(v->server) && v->debug_routes) {
        server_close(v->server);
        return fail(err, LATHE_E_ARGUMENT,
                    "--debug-routes where other machines can ask (%s) needs an API key", v->host);
    }
    if (!is_loopback(v->host) && !server_has_key(v->server))
        fprintf(stderr,
                "lathe: warning: %s can be reached from other machines, and no API key is "
                "set\n",
                v->host);
    eo.progress = show_progress;
    struct loading loading = {v->server, signals};
    eo.progress_ctx = &loading;
    st = lathe_engine_open(&engine, &eo, err);
    if (st == LATHE_E_CANCELLED) {
        fprintf(stderr, "lathe: shutting down\n");
        server_drain(v->server, 0, 0);
        st = LATHE_OK;
    } else if (!st) {
        server_ready(v->server, engine);
        tell_address(v);
        if (signals_wait(signals, v->server, err)) {
            fprintf(stderr, "lathe: shutting down\n");
            server_drain(v->server, v->drain_delay * 1000, v->drain_timeout * 1000);
        } else {
            st = start_again(v, signals, err);
        }
    }
    server_close(v->server);
    lathe_engine_close(engine);
    return st;
}

int serve_main(int argc, char **argv)
{
    static struct serve v; /* too large for a stack frame, and the program runs one command */
    static struct signals signals;
    int code;
    lathe_error err;
    signals_block(&signals);
    add_options(&v);
    if (!options_parse(&v.options, argc, argv, &code) ||
        !engine_args_check(&v.options, &v.engine, &code))
        return code;
    keep_one_heap();
    if (v.budget_message && strstr(v.budget_message, "</think>"))
        return options_usage(&v.options, "--budget-message: </think> follows it by itself");
    return serve(&v, &signals, &err) ? cli_fail(&err) : EXIT_DONE;
}
