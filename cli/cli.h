/* What every command shares: exit codes, messages, input, standard output. */
#ifndef LATHE_CLI_CLI_H
#define LATHE_CLI_CLI_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/error.h"

enum exit_code {
    EXIT_DONE = 0,
    /* A file or standard input and what is in them, the model, memory, an answer that ended in an error. */
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,         /* the command line: options, values, and what they ask for together */
    EXIT_INTERRUPTED = 130, /* Ctrl-C */
};

/* The commit of the source that the program was built from, with -dirty behind it where files differ; "unknown" outside of git. */
extern const char cli_revision[];

/* "lathe: message" on standard error. An argument is refused for what the command line says: EXIT_USAGE;
 * EXIT_FAILED for the rest. */
int cli_fail(const lathe_error *err);
/* The same where the arguments were read from files or standard input: EXIT_FAILED. */
int cli_fail_input(const lathe_error *err);

/* Reads all of a file, or of standard input where path is "-". */
lathe_status cli_read(struct buf *out, const char *path, lathe_error *err);
/* A prompt given as an option: the text itself, or all of standard input, less one newline at its
 * end, where it is "-". */
lathe_status cli_text(struct buf *out, const char *text, lathe_error *err);

/* Flushes standard output. EXIT_DONE, or EXIT_FAILED after one message; a reader that went away gets
 * none. */
int cli_flush(void);

/* Text for a person: where standard output is a terminal, control characters that the model wrote
 * are shown as '?', so that they cannot drive it. */
void cli_write(const char *s, size_t n);

/* "s" but for one: "%d token%s". */
const char *cli_plural(int64_t n);

bool stdout_is_terminal(void);
bool stderr_is_terminal(void);
/* Escape sequences may be used on a terminal: NO_COLOR is unset and TERM is not "dumb". */
bool cli_has_colour(void);

/* ---- Ctrl-C: while armed it sets a flag instead of ending the program ----------------------- */

/* With `once` a second one ends the program. */
void interrupt_arm(bool once);
void interrupt_disarm(void);
bool interrupt_pending(void);

/* ---- Commands: argv[0] is the command's name. They return an exit code ---------------------- */

int run_main(int argc, char **argv);
int chat_main(int argc, char **argv);
int perplexity_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int template_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int serve_main(int argc, char **argv);

#endif
