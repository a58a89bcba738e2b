/* lathe chat: a conversation. On a terminal lines are edited by libedit; else they are read as they
 * come, so that a conversation can be piped in. */
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "answer.h"
#include "args.h"
#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli.h"
#include "messages.h"

static const char help[] =
    "lathe chat -m DIR [options]: a conversation\n"
    "\n"
    "start     --system TEXT  --messages FILE (JSON, as /save writes it)\n"
    "          --no-think  --think  --effort xhigh|high|max|medium|low|minimal|none\n"
    "          --think-budget N  --budget-message TEXT  --eos-in-think close|stop\n"
    "sampling  --greedy  --seed N  --temp X  --top-k N  --top-p X  --min-p X\n"
    "          --presence-penalty X  --frequency-penalty X  --repetition-penalty X\n"
    "          --logit-bias ID=X[,ID=X...] (-100 bans, 100 forces)\n"
    "length    -n, --max-tokens N  --stop TEXT (may be repeated)  --ignore-eos\n"
    "engine    -m, --model DIR  -c, --ctx N|auto  --memory GB  --threads N  --pin\n"
    "          --plan  --activations bf16|f32  --kv bf16|fp8|f32 (as activations)\n"
    "          --prefill-math bf16|fp8|nvfp4 (on a GPU: prompts faster, less exact)\n"
    "          --device auto|cpu|cuda  --isa generic|avx2|avx512|avx512bf16|neon|best\n"
    "drafts    --spec auto|none|ngram|mtp|mtp+ngram|dflash2|dflash2+ngram\n"
    "          --draft-model DIR  --draft-k N  --fixed-k (always N)  --rejection\n"
    "\n"
    "Type a message, or /help for the commands. Ctrl-C stops the answer, Ctrl-D ends.\n"
    "Lines are also read from a pipe: one message each. Then the exit code tells if\n"
    "one of them, or a command, failed.\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line.\n";

static const char commands_help[] =
    "  /reset          forget the conversation (the system message stays)\n"
    "  /system TEXT    set the system message and start again; without TEXT: none\n"
    "  /think WORD     on, off, default\n"
    "  /save FILE      write the conversation as JSON\n"
    "  /load FILE      continue one that was saved\n"
    "  /stats          tokens and speed of the last answer\n"
    "  /quit           end (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next. Ctrl-C stops an answer.\n";

enum { LINE_LIMIT = 16 << 20 };

struct talk {
    struct buf system; /* "": none */
    struct buf turns;  /* messages after the system message */
    struct buf tools;  /* a JSON array, of a file; "": none */
};

struct chat {
    struct options options;
    struct engine_args engine_args;
    struct sampling_args sampling;
    struct think_args think;
    struct budget_args budget;
    const char *first_system, *messages;

    lathe_engine *engine;
    struct talk talk;
    struct answer last;
    bool has_last;

    bool is_terminal;
    int code; /* of the worst failure so far */
    EditLine *edit;
    History *history;
    int typed_ahead; /* bytes that came before the editor had the terminal and are not read yet */
};

/* ---- Lines --------------------------------------------------------------------------------- */

static const char *prompt_text(EditLine *edit)
{
    (void)edit;
    return "> ";
}

/* A signal that ends the program, held back until the terminal is as it was. 0: none. */
static volatile sig_atomic_t ended_by;
static const int ending[] = {SIGTERM, SIGHUP, SIGQUIT};
enum { N_ENDING = sizeof ending / sizeof *ending };

static void on_ending(int sig)
{
    ended_by = sig;
}

static void hold_ending(struct sigaction before[N_ENDING])
{
    struct sigaction a = {.sa_handler = on_ending};
    for (int i = 0; i < N_ENDING; i++) {
        (void)sigaction(ending[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN)
            (void)sigaction(ending[i], &a, NULL);
    }
}

static void let_end(const struct sigaction before[N_ENDING])
{
    for (int i = 0; i < N_ENDING; i++)
        (void)sigaction(ending[i], &before[i], NULL);
    if (ended_by)
        (void)raise(ended_by);
}

/* Waits for a byte of standard input. False, with errno EINTR, after Ctrl-C or a signal that ends the program:
 * it may have gone to another thread or come just before the wait, so the flags are looked at from time to time. */
static bool wait_for_input(void)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    while (!interrupt_pending() && !ended_by) {
        int n = poll(&p, 1, 50);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
    errno = EINTR;
    return false;
}

/* One character for libedit. Ctrl-D that was typed before the editor had the terminal has become a NUL. */
static int read_character(EditLine *edit, wchar_t *out)
{
    enum { CTRL_D = 4 };
    char s[4];
    struct chat *c = NULL;
    (void)el_get(edit, EL_CLIENTDATA, &c);
    for (size_t n = 0; n < sizeof s;) {
        if (!wait_for_input())
            return -1;
        ssize_t got = read(STDIN_FILENO, s + n, 1);
        if (got == 0)
            return 0;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (c->typed_ahead > 0) {
            c->typed_ahead--;
            if (s[n] == 0)
                s[n] = CTRL_D;
        }
        n++;
        uint32_t cp;
        if (utf8_decode(s, n, &cp)) {
            *out = (wchar_t)cp;
            return 1;
        }
        if (utf8_incomplete_tail(s, n) != n)
            break;
    }
    *out = 0xFFFD;
    return 1;
}

static void open_editor(struct chat *c)
{
    HistEvent ev;
    /* libedit shows characters beyond ASCII only in a UTF-8 locale. */
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        (void)setlocale(LC_CTYPE, "C.UTF-8");
    c->edit = el_init("lathe", stdin, stdout, stderr);
    c->history = history_init();
    if (!c->edit || !c->history)
        return;
    (void)history(c->history, &ev, H_SETSIZE, 1000);
    (void)history(c->history, &ev, H_SETUNIQUE, 1);
    (void)el_set(c->edit, EL_PROMPT, prompt_text);
    (void)el_set(c->edit, EL_EDITOR, "emacs");
    (void)el_set(c->edit, EL_HIST, history, c->history);
    (void)el_set(c->edit, EL_CLIENTDATA, c);
    (void)el_set(c->edit, EL_GETCFN, read_character);
    (void)el_source(c->edit, NULL);
}

/* Appends one line without its end. False at the end of input; *stopped after Ctrl-C. */
static bool read_part(struct chat *c, struct buf *line, bool *stopped)
{
    *stopped = false;
    if (c->edit && c->history) {
        int n = 0;
        HistEvent ev;
        struct sigaction before[N_ENDING];
        hold_ending(before);
        interrupt_arm(false);
        el_resize(c->edit);
        /* Before the prompt is shown: what is typed right behind it, Ctrl-D above all, is the editor's. */
        (void)el_set(c->edit, EL_PREP_TERM, 1);
        if (ioctl(STDIN_FILENO, FIONREAD, &c->typed_ahead) != 0)
            c->typed_ahead = 0;
        const char *s = el_gets(c->edit, &n);
        (void)el_set(c->edit, EL_PREP_TERM, 0);
        let_end(before);
        *stopped = interrupt_pending();
        interrupt_disarm();
        if (*stopped) {
            (void)putchar('\n');
            return true;
        }
        if (!s || n <= 0) {
            (void)putchar('\n');
            return false;
        }
        if (n > 1)
            (void)history(c->history, &ev, H_ENTER, s);
        buf_append(line, s, (size_t)n);
    } else {
        char *s = NULL;
        size_t cap = 0;
        ssize_t n = getline(&s, &cap, stdin);
        if (n > 0)
            buf_append(line, s, (size_t)n);
        free(s);
        if (n <= 0)
            return false;
    }
    while (line->len && strchr("\r\n", line->data[line->len - 1]))
        line->data[--line->len] = 0;
    return true;
}

/* One message: lines that end in a backslash go on. False at the end of input. */
static bool read_message(struct chat *c, struct buf *line)
{
    buf_clear(line);
    for (;;) {
        bool stopped;
        bool more = read_part(c, line, &stopped);
        if (stopped)
            buf_clear(line);
        if (!more)
            return line->len > 0;
        if (stopped || line->len == 0 || line->data[line->len - 1] != '\\')
            return true;
        line->data[line->len - 1] = '\n';
    }
}

/* ---- Conversation -------------------------------------------------------------------------- */

static void talk_init(struct talk *t)
{
    buf_init(&t->system, MESSAGES_LIMIT);
    buf_init(&t->turns, MESSAGES_LIMIT);
    buf_init(&t->tools, MESSAGES_LIMIT);
}

static void talk_release(struct talk *t)
{
    buf_release(&t->system);
    buf_release(&t->turns);
    buf_release(&t->tools);
}

/* Its messages as a JSON array; with `question`, a user's turn is the last of them. */
static lathe_status conversation(const struct talk *t, const char *question, struct buf *out,
                                 lathe_error *err)
{
    struct buf all;
    lathe_status st = LATHE_OK;
    buf_init(&all, MESSAGES_LIMIT);
    if (t->system.len)
        st = messages_add(&all, "system", "the system message", buf_str(&t->system), t->system.len,
                          err);
    if (t->system.len && t->turns.len)
        buf_puts(&all, ", ");
    buf_append(&all, buf_str(&t->turns), t->turns.len);
    if (!st && question)
        st = messages_add(&all, "user", "the question", question, strlen(question), err);
    if (!st)
        st = buf_check(&all, "the conversation", err);
    if (!st)
        st = messages_array(out, &all, err);
    buf_release(&all);
    return st;
}

static void set_system(struct chat *c, const char *text)
{
    buf_clear(&c->talk.system);
    buf_puts(&c->talk.system, text);
    buf_clear(&c->talk.turns);
}

static void note(struct chat *c, int code)
{
    if (code > c->code)
        c->code = code;
}

static void cut(struct buf *b, size_t len)
{
    b->len = len;
    if (b->data)
        b->data[len] = 0;
}

/* A user's turn and its answer; without an answer the turn is taken back. */
static void take_turn(struct chat *c, const struct buf *line)
{
    lathe_conversation conv = {0};
    lathe_request_options o;
    lathe_error err;
    struct buf array;
    size_t before = c->talk.turns.len;
    buf_init(&array, MESSAGES_LIMIT);
    think_args_apply(&c->think, &conv);
    lathe_status st =
        messages_add(&c->talk.turns, "user", "the message", buf_str(line), line->len, &err);
    if (!st)
        st = conversation(&c->talk, NULL, &array, &err);
    if (!st) {
        conv.messages = buf_str(&array);
        conv.tools = c->talk.tools.len ? buf_str(&c->talk.tools) : NULL;
        lathe_request_options_init(lathe_engine_text(c->engine), conversation_thinks(&conv), &o);
        sampling_args_apply(&c->options, &c->sampling, &o);
        budget_args_apply(&c->budget, &o);
        o.conversation = &conv;
        if (c->has_last)
            answer_release(&c->last);
        answer_init(&c->last);
        c->has_last = true;
        st = answer_run(&c->last, c->engine, &o, &err);
    }
    if (st)
        note(c, answer_fail(lathe_engine_text(c->engine), conv.messages ? &conv : NULL, &err));
    buf_release(&array);
    if (!st) {
        const struct answer *a = &c->last;
        if (a->text.len || a->calls.len || a->reasoning.len)
            messages_add_answer(&c->talk.turns, &a->text, &a->reasoning, &a->calls);
        else
            cut(&c->talk.turns, before);
        if (buf_check(&c->talk.turns, "the conversation", &err)) {
            note(c, cli_fail_input(&err));
            st = err.status;
        }
        if (a->is_interrupted)
            fprintf(stderr, "[stopped]\n");
        else if (a->finish == LATHE_FINISH_LENGTH)
            fprintf(stderr, "[stopped at %d token%s]\n", (int)a->usage.completion_tokens,
                    cli_plural(a->usage.completion_tokens));
        else if (a->finish == LATHE_FINISH_CONTEXT)
            fprintf(stderr, "[the context is full; /reset starts again]\n");
    }
    if (st)
        cut(&c->talk.turns, before);
}

/* ---- Commands ------------------------------------------------------------------------------ */

/* An array of messages; where there are tools, an object with both. */
static lathe_status save(struct chat *c, const char *path, lathe_error *err)
{
    struct buf array, text;
    buf_init(&array, MESSAGES_LIMIT);
    buf_init(&text, 2 * (size_t)MESSAGES_LIMIT);
    lathe_status st = conversation(&c->talk, NULL, &array, err);
    if (c->talk.tools.len)
        buf_puts(&text, "{\"messages\": ");
    buf_append(&text, buf_str(&array), array.len);
    if (c->talk.tools.len) {
        buf_puts(&text, ", \"tools\": ");
        buf_append(&text, buf_str(&c->talk.tools), c->talk.tools.len);
        buf_putc(&text, '}');
    }
    buf_putc(&text, '\n');
    if (!st)
        st = buf_check(&text, "the conversation", err);
    if (!st)
        st = file_write(path, text.data, text.len, err);
    buf_release(&array);
    buf_release(&text);
    return st;
}

/* A leading system message becomes the talk's. */
static lathe_status read_talk(struct talk *t, const char *path, lathe_error *err)
{
    struct buf all, array;
    struct json_doc d = {0};
    buf_init(&all, MESSAGES_LIMIT);
    buf_init(&array, MESSAGES_LIMIT);
    lathe_status st = messages_read(&all, &t->tools, path, err);
    if (!st)
        st = messages_array(&array, &all, err);
    if (!st)
        st = json_read(&d, buf_str(&array), array.len, &json_limits_request, err);
    if (!st) {
        const json_t *first = json_array_get(d.root, 0);
        const char *role = json_string_value(json_object_get(first, "role"));
        size_t n, from = 0;
        const char *text = json_text(&d, json_object_get(first, "content"), &n);
        if (role && strcmp(role, "system") == 0 && text) {
            buf_append(&t->system, text, n);
            from = 1;
        }
        for (size_t i = from; i < json_array_size(d.root); i++) {
            if (i > from)
                buf_puts(&t->turns, ", ");
            json_print(&t->turns, &d, json_array_get(d.root, i));
        }
        st = buf_check(&t->turns, path, err);
    }
    json_release(&d);
    buf_release(&all);
    buf_release(&array);
    return st;
}

/* Can the model's template go on from here with a question? */
static lathe_status check_talk(const struct chat *c, const struct talk *t, const char *path,
                               lathe_error *err)
{
    lathe_conversation conv = {0};
    lathe_prompt prompt = {0};
    struct buf array;
    buf_init(&array, MESSAGES_LIMIT);
    lathe_status st = conversation(t, "?", &array, err);
    if (!st) {
        think_args_apply(&c->think, &conv);
        conv.messages = buf_str(&array);
        conv.tools = t->tools.len ? buf_str(&t->tools) : NULL;
        st = lathe_render(lathe_engine_text(c->engine), &conv, &prompt, err);
        if (st)
            error_context(err, "%s", path);
    }
    lathe_prompt_release(&prompt);
    buf_release(&array);
    return st;
}

/* Replaces the conversation. Nothing changes if the file is bad. */
static lathe_status load(struct chat *c, const char *path, lathe_error *err)
{
    struct talk t;
    talk_init(&t);
    lathe_status st = read_talk(&t, path, err);
    if (!st)
        st = check_talk(c, &t, path, err);
    struct talk *drop = st ? &t : &c->talk;
    talk_release(drop);
    if (!st)
        c->talk = t;
    return st;
}

static lathe_status set_thinking(struct chat *c, const char *word, lathe_error *err)
{
    bool on = strcmp(word, "on") == 0, off = strcmp(word, "off") == 0;
    if (!on && !off && strcmp(word, "default") != 0)
        return fail(err, LATHE_E_ARGUMENT, "/think takes on, off or default");
    c->think.think = on;
    c->think.no_think = off;
    if (on && c->think.effort && strcmp(c->think.effort, "none") == 0)
        c->think.effort = NULL; /* it is another word for off */
    return LATHE_OK;
}

/* False: the chat ends. */
static bool run_command(struct chat *c, const char *line)
{
    static const char *const names[] = {"/help", "/reset", "/system", "/think", "/save",
                                        "/load", "/stats", "/quit",   "/exit"};
    char word[16];
    lathe_error err;
    size_t n = strcspn(line, " \t");
    const char *rest = line + n + strspn(line + n, " \t");
    lathe_status st = LATHE_OK;
    (void)snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), line);
    if (strcmp(word, "/quit") == 0 || strcmp(word, "/exit") == 0)
        return false;
    if (strcmp(word, "/help") == 0) {
        (void)fputs(commands_help, stdout);
    } else if (strcmp(word, "/reset") == 0) {
        buf_clear(&c->talk.turns);
    } else if (strcmp(word, "/system") == 0) {
        set_system(c, rest);
    } else if (strcmp(word, "/think") == 0) {
        st = set_thinking(c, rest, &err);
    } else if (strcmp(word, "/stats") == 0) {
        if (c->has_last)
            answer_stats_text(&c->last, stdout);
        else
            (void)puts("nothing was answered yet");
    } else if (strcmp(word, "/save") == 0 || strcmp(word, "/load") == 0) {
        if (!*rest)
            st = fail(&err, LATHE_E_ARGUMENT, "%s needs a file name", word);
        else
            st = word[1] == 's' ? save(c, rest, &err) : load(c, rest, &err);
    } else {
        const char *near = nearest_name(word, names, sizeof names / sizeof *names);
        st = near ? fail(&err, LATHE_E_ARGUMENT, "there is no command %s; the nearest is %s", word,
                         near)
                  : fail(&err, LATHE_E_ARGUMENT, "there is no command %s; /help lists them", word);
    }
    if (st)
        note(c, cli_fail_input(&err));
    (void)fflush(stdout);
    return true;
}

static int converse(struct chat *c)
{
    struct buf line;
    lathe_error err;
    lathe_status st = LATHE_OK;
    if (c->first_system)
        set_system(c, c->first_system);
    if (c->messages)
        st = read_talk(&c->talk, c->messages, &err);
    if (!st)
        st = engine_args_open(&c->engine_args, &c->engine, &err);
    if (st)
        return cli_fail(&err);
    if (c->messages && check_talk(c, &c->talk, c->messages, &err))
        return cli_fail_input(&err);
    buf_init(&line, LINE_LIMIT);
    c->is_terminal = isatty(STDIN_FILENO) == 1 && stdout_is_terminal();
    if (c->is_terminal) {
        open_editor(c);
        (void)printf("%s. /help lists the commands, Ctrl-D ends.\n", c->engine_args.model);
    }
    while (!ferror(stdout) && read_message(c, &line)) {
        if (buf_check(&line, "the line", &err)) {
            note(c, cli_fail_input(&err));
            continue;
        }
        if (line.len == 0)
            continue;
        if (line.data[0] == '/' && !run_command(c, line.data))
            break;
        if (line.data[0] != '/')
            take_turn(c, &line);
    }
    if (c->edit)
        el_end(c->edit);
    if (c->history)
        history_end(c->history);
    buf_release(&line);
    int code = cli_flush();
    return isatty(STDIN_FILENO) == 1 || code ? code : c->code;
}

int chat_main(int argc, char **argv)
{
    static struct chat c;
    struct options *o = &c.options;
    int code;
    o->command = "chat";
    o->help = help;
    engine_args_add(o, &c.engine_args);
    spec_args_add(o, &c.engine_args);
    round_args_add(o, &c.engine_args);
    option_flag(o, "--plan", NULL, &c.engine_args.plan);
    sampling_args_add(o, &c.sampling);
    think_args_add(o, &c.think);
    budget_args_add(o, &c.budget);
    option_text(o, "--system", NULL, &c.first_system);
    option_path(o, "--messages", NULL, &c.messages);
    if (!options_parse(o, argc, argv, &code) || !engine_args_check(o, &c.engine_args, &code) ||
        !sampling_args_check(o, &c.sampling, &code) || !think_args_check(o, &c.think, &code) ||
        !budget_args_check(o, &c.budget, &code))
        return code;
    if (c.messages && c.first_system)
        return options_usage(o, "--messages brings its own system message; give one of the two");
    talk_init(&c.talk);
    code = converse(&c);
    if (c.has_last)
        answer_release(&c.last);
    talk_release(&c.talk);
    if (c.engine)
        lathe_engine_close(c.engine);
    return code;
}
