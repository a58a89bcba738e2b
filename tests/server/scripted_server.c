/* A server over the fake engine, for clients that are programs of their own:
 *
 *     scripted_server MODEL_DIR SCRIPTS PROMPTS
 *
 * It listens on a free port of 127.0.0.1, says so in the words of `lathe serve`, logs as that does with --log json, and
 * runs until SIGTERM. SCRIPTS is a
 * file of scripts (fake_engine.h), each behind a line "== tools" or "== plain": the n-th request with tools gets the
 * n-th script of the first kind, one without tools likewise, and requests beyond the last script get the last one. The
 * prompt of every request, as the model would see it, goes to the file PROMPTS/N.txt, N from 0 in order of arrival. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "fake_engine.h"
#include "server/server.h"

enum { MAX_SCRIPTS = 64, N_CTX = 131072, SLOTS = 4 };

struct kind {
    const char *mark;
    char *script[MAX_SCRIPTS];
    int n, n_asked;
};

struct scripted {
    struct kind kind[2];
    const char *prompts;
    lathe_engine *engine;
    pthread_mutex_t lock;
    int n_requests;
};

_Noreturn static void die(const char *what)
{
    fprintf(stderr, "scripted_server: %s\n", what);
    exit(1);
}

/* Cuts the text at its marks, in place. */
static void read_scripts(struct scripted *s, char *text)
{
    struct kind *k = NULL;
    char *to = text;
    for (char *line = text, *next; *line; line = next) {
        size_t n = strcspn(line, "\n");
        next = line + n + (line[n] == '\n');
        if (strncmp(line, "== ", 3) != 0) {
            if (!k)
                die("the scripts do not begin with a mark");
            memmove(to, line, (size_t)(next - line));
            to += next - line;
            continue;
        }
        k = NULL;
        for (int i = 0; i < 2; i++)
            if (n == 3 + strlen(s->kind[i].mark) && memcmp(line + 3, s->kind[i].mark, n - 3) == 0)
                k = &s->kind[i];
        if (!k || k->n == MAX_SCRIPTS)
            die("a mark is unknown, or there are too many");
        /* The mark's own bytes make room for the end of the script before it. */
        *to++ = 0;
        k->script[k->n++] = to;
    }
    *to = 0;
}

static void write_prompt(const struct scripted *s, int number, const lathe_request_options *o)
{
    char path[4096];
    lathe_prompt prompt = {0};
    lathe_error err;
    if (!o->conversation)
        return;
    (void)snprintf(path, sizeof path, "%s/%d.txt", s->prompts, number);
    FILE *f = fopen(path, "wb");
    if (!f)
        die("cannot write a prompt");
    if (lathe_render(lathe_engine_text(s->engine), o->conversation, &prompt, &err))
        fprintf(f, "not rendered: %s\n", err.message);
    else
        (void)fwrite(prompt.text, 1, prompt.n_text, f);
    (void)fclose(f);
    lathe_prompt_release(&prompt);
}

static const char *choose(void *ctx, const lathe_request_options *o)
{
    struct scripted *s = ctx;
    bool has_tools = o->conversation && o->conversation->tools;
    struct kind *k = &s->kind[!has_tools];
    pthread_mutex_lock(&s->lock);
    int number = s->n_requests++;
    int i = k->n_asked < k->n ? k->n_asked : k->n - 1;
    k->n_asked++;
    pthread_mutex_unlock(&s->lock);
    write_prompt(s, number, o);
    return i < 0 ? "refuse 1 there is no script for this request\n" : k->script[i];
}

static void print_line(void *ctx, const char *line)
{
    (void)ctx;
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    struct scripted s = {.kind = {{.mark = "tools"}, {.mark = "plain"}}};
    struct server_options o;
    struct server *server;
    struct buf text;
    lathe_error err;
    sigset_t set;
    int which;
    if (argc != 4)
        die("usage: scripted_server MODEL_DIR SCRIPTS PROMPTS");
    s.prompts = argv[3];
    (void)pthread_mutex_init(&s.lock, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
    buf_init(&text, 1 << 20);
    server_options_init(&o);
    o.port = 0;
    o.model_dir = argv[1];
    o.n_ctx = N_CTX;
    o.n_slots = SLOTS;
    o.n_queue = SLOTS;
    o.log = print_line;
    o.log_json = true;
    if (file_read(&text, argv[2], &err) || buf_check(&text, "scripts", &err) ||
        fake_engine_open(&s.engine, o.model_dir, &err) || server_open(&server, &o, &err))
        die(err.message);
    read_scripts(&s, text.data);
    fake_engine_ask(s.engine, choose, &s);
    server_ready(server, s.engine);
    fprintf(stderr, "lathe: serving %s on http://127.0.0.1:%d\n", argv[1],
            (int)server_port(server));
    (void)sigwait(&set, &which);
    server_drain(server, 0, 1000);
    server_close(server);
    lathe_engine_close(s.engine);
    buf_release(&text);
    return 0;
}
