/* Load on a server: streamed chat completions from many clients, and when the pieces of the answers come.
 *
 *   load --port N [--host ADDRESS] [--key KEY] [--clients N] [--rate R] [--seconds S] [--prompt-words N]
 *        [--max-tokens N] [--sessions N]
 *
 * Closed loop: each of the clients asks again when it has its answer. With --rate requests come at random moments, R a
 * second on average, whatever the answers do (open loop); what all clients are too busy for waits, and that counts. Every
 * prompt begins with words of its own; with --sessions the beginnings are those of N conversations. Prints one JSON object:
 * times in milliseconds, from the moment at which a request was due. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "client.h"

struct options {
    struct client_target target;
    int clients, prompt_words, max_tokens, sessions;
    double rate, seconds;
};

/* A growing list of numbers. */
struct list {
    double *x;
    size_t n, room;
};

struct results {
    pthread_mutex_t lock;
    struct list first, gap, whole;
    long requests, refused, failed, prompt_tokens, completion_tokens;
};

struct load {
    struct options o;
    struct results results;
    double start;
    pthread_mutex_t lock; /* of what follows: the arrivals of the open loop */
    double next_due;      /* seconds after the start */
    uint64_t random, n_asked;
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "load: %s\n", what);
    exit(1);
}

static void add(struct list *l, double x)
{
    if (l->n == l->room) {
        l->room = l->room ? 2 * l->room : 1024;
        l->x = realloc(l->x, l->room * sizeof *l->x);
        if (!l->x)
            die("out of memory");
    }
    l->x[l->n++] = x;
}

/* ---- Requests ------------------------------------------------------------------------------- */

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

/* The next request: its number, and when it is due; false: none is any more. */
static bool next_request(struct load *l, uint64_t *number, double *due)
{
    pthread_mutex_lock(&l->lock);
    *number = l->n_asked++;
    *due = client_now() - l->start;
    if (l->o.rate > 0) {
        double u = ((double)next_random(&l->random) + 1) / 2147483649.0;
        *due = l->next_due;
        l->next_due -= log(u) / l->o.rate;
    }
    pthread_mutex_unlock(&l->lock);
    return *due < l->o.seconds;
}

static void make_body(const struct options *o, uint64_t number, struct buf *b)
{
    static const char *const word[] = {"kiln",  "lamp",  "spoon", "river",
                                       "stone", "glass", "bread", "wind"};
    uint64_t state = 1 + (o->sessions ? number % (uint64_t)o->sessions : number);
    buf_clear(b);
    buf_puts(b, "{\"stream\":true,\"stream_options\":{\"include_usage\":true},\"ignore_eos\":true,"
                "\"enable_thinking\":false,\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < o->prompt_words; i++)
        buf_printf(b, "%s ", word[next_random(&state) % 8]);
    buf_printf(b, "\"}],\"max_tokens\":%d}", o->max_tokens);
}

static void wait_until(const struct load *l, double due)
{
    double left = due - (client_now() - l->start);
    if (left <= 0)
        return;
    const struct timespec t = {.tv_sec = (time_t)left,
                               .tv_nsec = (long)((left - floor(left)) * 1e9)};
    (void)nanosleep(&t, NULL);
}

static void note(struct results *r, const struct client_answer *a, double late)
{
    pthread_mutex_lock(&r->lock);
    r->requests++;
    if (a->status == 429 || a->status == 503)
        r->refused++;
    else if (a->status != 200 || !a->ended)
        r->failed++;
    if (a->status == 200 && a->ended && a->n_at) {
        add(&r->first, (late + a->first) * 1e3);
        add(&r->whole, (late + a->last) * 1e3);
        for (size_t i = 1; i < a->n_at; i++)
            add(&r->gap, (a->at[i] - a->at[i - 1]) * 1e3);
    }
    r->prompt_tokens += a->prompt_tokens;
    r->completion_tokens += a->completion_tokens;
    pthread_mutex_unlock(&r->lock);
}

static void *run_client(void *arg)
{
    struct load *l = arg;
    struct client *c = client_open(&l->o.target);
    struct client_answer a;
    struct buf body;
    uint64_t number;
    double due;
    if (!c)
        die("out of memory");
    buf_init(&body, 64 << 20);
    while (next_request(l, &number, &due)) {
        make_body(&l->o, number, &body);
        wait_until(l, due);
        double late = client_now() - l->start - due;
        client_ask(c, body.data, body.len, &a);
        note(&l->results, &a, late > 0 ? late : 0);
    }
    buf_release(&body);
    client_close(c);
    return NULL;
}

/* ---- The result ----------------------------------------------------------------------------- */

static void print_times(const char *name, struct list *l)
{
    printf(",\"%s\":{\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f,\"max\":%.3f}", name,
           percentile(l->x, l->n, 0.5), percentile(l->x, l->n, 0.9), percentile(l->x, l->n, 0.99),
           percentile(l->x, l->n, 1));
}

static void print(struct load *l, double seconds)
{
    struct results *r = &l->results;
    printf("{\"loop\":\"%s\",\"clients\":%d,\"rate\":%g,\"seconds\":%.3f,\"requests\":%ld,"
           "\"refused\":%ld,\"failed\":%ld,\"prompt_tokens\":%ld,\"completion_tokens\":%ld,"
           "\"requests_per_second\":%.3f,\"tokens_per_second\":%.3f",
           l->o.rate > 0 ? "open" : "closed", l->o.clients, l->o.rate, seconds, r->requests,
           r->refused, r->failed, r->prompt_tokens, r->completion_tokens,
           (double)r->requests / seconds, (double)r->completion_tokens / seconds);
    print_times("ttft_ms", &r->first);
    print_times("inter_token_ms", &r->gap);
    print_times("request_ms", &r->whole);
    printf("}\n");
    free(r->first.x);
    free(r->gap.x);
    free(r->whole.x);
}

static int read_int(const char *name, const char *value, long low, long high)
{
    char *end, message[80];
    long n = strtol(value, &end, 10);
    if (end != value && !*end && n >= low && n <= high)
        return (int)n;
    (void)snprintf(message, sizeof message, "%s: expected %ld to %ld", name, low, high);
    die(message);
}

static double read_real(const char *name, const char *value)
{
    char *end, message[80];
    double x = strtod(value, &end);
    if (end != value && !*end && x > 0 && x < 1e9)
        return x;
    (void)snprintf(message, sizeof message, "%s: expected a number above 0", name);
    die(message);
}

static void parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){.target = {.host = "127.0.0.1"},
                          .clients = 4,
                          .prompt_words = 32,
                          .max_tokens = 64,
                          .seconds = 10};
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (!value)
            die("every option takes a value");
        if (strcmp(name, "--host") == 0)
            o->target.host = value;
        else if (strcmp(name, "--port") == 0)
            o->target.port = read_int(name, value, 1, 65535);
        else if (strcmp(name, "--key") == 0)
            o->target.key = value;
        else if (strcmp(name, "--clients") == 0)
            o->clients = read_int(name, value, 1, 4096);
        else if (strcmp(name, "--rate") == 0)
            o->rate = read_real(name, value);
        else if (strcmp(name, "--seconds") == 0)
            o->seconds = read_real(name, value);
        else if (strcmp(name, "--prompt-words") == 0)
            o->prompt_words = read_int(name, value, 1, 1000000);
        else if (strcmp(name, "--max-tokens") == 0)
            o->max_tokens = read_int(name, value, 1, 1000000);
        else if (strcmp(name, "--sessions") == 0)
            o->sessions = read_int(name, value, 1, 1000000);
        else
            die("unknown option; the file's head lists them");
    }
    if (!o->target.port)
        die("usage: load --port N [--clients N] [--rate R] [--seconds S] ...");
}

int main(int argc, char **argv)
{
    static struct load l = {.random = 1};
    parse(&l.o, argc, argv);
    pthread_t *thread = calloc((size_t)l.o.clients, sizeof *thread);
    if (!thread || pthread_mutex_init(&l.lock, NULL) != 0 ||
        pthread_mutex_init(&l.results.lock, NULL) != 0)
        die("out of memory");
    l.start = client_now();
    for (int i = 0; i < l.o.clients; i++)
        if (pthread_create(&thread[i], NULL, run_client, &l) != 0)
            die("no thread can be started");
    for (int i = 0; i < l.o.clients; i++)
        pthread_join(thread[i], NULL);
    print(&l, client_now() - l.start);
    free(thread);
    return l.results.failed ? 1 : 0;
}
