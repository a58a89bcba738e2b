#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

int cli_fail_input(const lathe_error *err)
{
    fprintf(stderr, "lathe: %s\n", err->message);
    return EXIT_FAILED;
}

int cli_fail(const lathe_error *err)
{
    (void)cli_fail_input(err);
    return err->status == LATHE_E_ARGUMENT ? EXIT_USAGE : EXIT_FAILED;
}

static lathe_status read_stdin(struct buf *out, lathe_error *err)
{
    char chunk[16384];
    ssize_t n;
    while ((n = read(STDIN_FILENO, chunk, sizeof chunk)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return fail(err, LATHE_E_IO, "standard input: %s", strerror(errno));
        buf_append(out, chunk, (size_t)n);
        if (out->over || out->no_memory)
            break;
    }
    return buf_check(out, "standard input", err);
}

lathe_status cli_read(struct buf *out, const char *path, lathe_error *err)
{
    return strcmp(path, "-") == 0 ? read_stdin(out, err) : file_read(out, path, err);
}

lathe_status cli_text(struct buf *out, const char *text, lathe_error *err)
{
    if (strcmp(text, "-") != 0) {
        buf_puts(out, text);
        return buf_check(out, "the text", err);
    }
    lathe_status st = read_stdin(out, err);
    if (!st && out->len && out->data[out->len - 1] == '\n')
        out->data[--out->len] = 0;
    return st;
}

int cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return EXIT_DONE;
    if (errno != EPIPE)
        fprintf(stderr, "lathe: standard output: %s\n", strerror(errno));
    return EXIT_FAILED;
}

void cli_write(const char *s, size_t n)
{
    if (!stdout_is_terminal()) {
        (void)fwrite(s, 1, n, stdout);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        (void)putchar((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F ? '?' : c);
    }
}

const char *cli_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

bool stdout_is_terminal(void)
{
    return isatty(STDOUT_FILENO) == 1;
}

bool stderr_is_terminal(void)
{
    return isatty(STDERR_FILENO) == 1;
}

bool cli_has_colour(void)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    return !(no && *no) && term && strcmp(term, "dumb") != 0;
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

void interrupt_arm(bool once)
{
    struct sigaction a = {.sa_handler = on_interrupt};
    a.sa_flags = once ? (int)SA_RESETHAND : 0;
    interrupted = 0;
    (void)sigaction(SIGINT, &a, NULL);
}

void interrupt_disarm(void)
{
    struct sigaction a = {.sa_handler = SIG_DFL};
    (void)sigaction(SIGINT, &a, NULL);
}

bool interrupt_pending(void)
{
    return interrupted;
}
