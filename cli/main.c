/* lathe: the program. Each command is a file of its own. */
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "options.h"

static const struct command {
    const char *name;
    int (*main)(int argc, char **argv);
} commands[] = {
    {"run", run_main},           {"chat", chat_main},         {"perplexity", perplexity_main},
    {"tokenize", tokenize_main}, {"template", template_main}, {"inspect", inspect_main},
    {"serve", serve_main},
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static const char help[] =
    "lathe: runs models of the Qwen3.5 / 3.6 / 3.8 family\n"
    "\n"
    "  lathe run -m DIR -p TEXT      one answer\n"
    "  lathe chat -m DIR             a conversation\n"
    "  lathe serve -m DIR            an HTTP server\n"
    "  lathe perplexity -m DIR -f F  how well the model predicts a text\n"
    "  lathe tokenize -m DIR -p TEXT what a text is in tokens\n"
    "  lathe template -m DIR --messages F\n"
    "                                what the model sees of a conversation\n"
    "  lathe inspect DIR             what a model directory holds and needs\n"
    "\n"
    "  lathe COMMAND --help          the options of a command\n"
    "  lathe --version\n"
    "\n"
    "DIR is a model directory: config.json, safetensors files, tokenizer.json and\n"
    "chat_template.jinja. A small trained one is in models/nano.\n"
    "\n"
    "Exit codes: 0 done; 2 the command line is wrong: an option, its value, or what\n"
    "options ask for together; 130 interrupted by Ctrl-C; 1 everything else, such as\n"
    "files and what is in them. One sentence on standard error says what.\n";

static void print_log(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx;
    if (level == LATHE_LOG_WARN)
        fprintf(stderr, "lathe: warning: %s\n", line);
}

static int unknown_command(const char *word)
{
    const char *name[N_COMMANDS];
    lathe_error err;
    for (size_t i = 0; i < N_COMMANDS; i++)
        name[i] = commands[i].name;
    const char *near = nearest_name(word, name, N_COMMANDS);
    if (near)
        (void)fail(&err, LATHE_E_ARGUMENT, "there is no command %s; the nearest is %s", word, near);
    else
        (void)fail(&err, LATHE_E_ARGUMENT, "there is no command %s (lathe --help lists them)",
                   word);
    return cli_fail(&err);
}

int main(int argc, char **argv)
{
    (void)setlocale(LC_CTYPE, "");
    lathe_log_set(print_log, NULL);
    if (argc < 2) {
        (void)fputs(help, stderr);
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        (void)fputs(help, stdout);
        return cli_flush();
    }
    if (strcmp(argv[1], "--version") == 0) {
        (void)printf("lathe %s-%s\n", lathe_version(), cli_revision);
        return cli_flush();
    }
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].main(argc - 1, argv + 1);
    return unknown_command(argv[1]);
}
