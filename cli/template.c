/* lathe template: a conversation as the model sees it. */
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "args.h"
#include "base/json.h"
#include "cli.h"
#include "messages.h"

static const char help[] =
    "lathe template -m DIR (-p TEXT | --messages FILE) [options]: what the model sees\n"
    "\n"
    "  -m, --model DIR        the model's directory (its weights are not read)\n"
    "  --messages FILE        a JSON array of messages, or an object with \"messages\"\n"
    "                         and \"tools\"; - reads standard input\n"
    "  -p, --prompt TEXT      a user's message, the last one; - reads standard input\n"
    "  --system TEXT          a system message, the first one\n"
    "  --tools FILE           a JSON array of tools\n"
    "  --kwargs JSON          an object of further template variables\n"
    "  --no-think  --think  --effort xhigh|high|max|medium|low|minimal|none\n"
    "  --preserve-thinking    keep the reasoning of earlier turns\n"
    "  --no-generation-prompt end after the last message\n"
    "  --late-system merge|inline|error\n"
    "                         a system message after the first user turn joins the\n"
    "                         leading one, stays in place, or is left to the template\n"
    "  --ids                  the token ids, on one line, instead of the text\n"
    "\n"
    "Exit codes: 0 done, 1 failed, 2 wrong command line.\n";

struct template_command {
    struct options options;
    struct think_args think;
    const char *model, *messages, *prompt, *system, *tools, *kwargs;
    bool no_generation_prompt, preserve_thinking, ids;
    const char *late_system;
};

static bool check_kwargs(const struct options *o, const char *kwargs, int *code)
{
    struct json_doc d = {0};
    lathe_error err;
    *code = EXIT_DONE;
    if (kwargs && json_read(&d, kwargs, strlen(kwargs), &json_limits_request, &err))
        *code = options_usage(o, "--kwargs: %s", err.message);
    else if (kwargs && !json_is_object(d.root))
        *code = options_usage(o, "--kwargs is \"%.60s\", expected a JSON object", kwargs);
    json_release(&d);
    return *code == EXIT_DONE;
}

static lathe_status render(struct template_command *t, const lathe_conversation *c,
                           lathe_error *err)
{
    lathe_text *text;
    lathe_prompt prompt = {0};
    lathe_status st = lathe_text_open(&text, t->model, err);
    if (st)
        return st;
    st = lathe_render(text, c, &prompt, err);
    lathe_conversation without = *c;
    without.kwargs = NULL;
    if (st == LATHE_E_ARGUMENT && render_fails_so(text, &without, err))
        err->status = st = LATHE_E_FORMAT; /* of the messages or tools, which are from files */
    if (!st && t->ids) {
        for (size_t i = 0; i < prompt.tokens.n; i++)
            (void)printf(i ? " %d" : "%d", (int)prompt.tokens.id[i]);
        (void)putchar('\n');
    } else if (!st) {
        cli_write(prompt.text, prompt.n_text);
    }
    lathe_prompt_release(&prompt);
    lathe_text_close(text);
    return st;
}

static lathe_status build_and_render(struct template_command *t, lathe_error *err)
{
    struct buf turns, array, tools, prompt;
    lathe_conversation c = {.kwargs = t->kwargs, .no_generation_prompt = t->no_generation_prompt};
    lathe_status st = LATHE_OK;
    buf_init(&turns, MESSAGES_LIMIT);
    buf_init(&array, MESSAGES_LIMIT);
    buf_init(&tools, MESSAGES_LIMIT);
    buf_init(&prompt, MESSAGES_LIMIT);
    if (t->system)
        st = messages_add(&turns, "system", "--system", t->system, strlen(t->system), err);
    if (!st && t->tools)
        st = tools_read(&tools, t->tools, err);
    if (!st && t->messages)
        st = messages_read(&turns, &tools, t->messages, err);
    if (!st && t->prompt)
        st = cli_text(&prompt, t->prompt, err);
    if (!st && t->prompt)
        st = messages_add(&turns, "user", "the prompt", buf_str(&prompt), prompt.len, err);
    if (!st)
        st = messages_array(&array, &turns, err);
    if (!st) {
        c.messages = buf_str(&array);
        c.tools = tools.len ? buf_str(&tools) : NULL;
        c.preserve_thinking = t->preserve_thinking ? LATHE_ON : LATHE_DEFAULT;
        if (t->late_system)
            c.late_system = t->late_system[0] == 'm'   ? LATHE_LATE_SYSTEM_MERGE
                            : t->late_system[0] == 'i' ? LATHE_LATE_SYSTEM_INLINE
                                                       : LATHE_LATE_SYSTEM_ERROR;
        think_args_apply(&t->think, &c);
        st = render(t, &c, err);
    }
    buf_release(&turns);
    buf_release(&array);
    buf_release(&tools);
    buf_release(&prompt);
    return st;
}

int template_main(int argc, char **argv)
{
    static struct template_command t;
    struct options *o = &t.options;
    int code;
    o->command = "template";
    o->help = help;
    option_path(o, "--model", "-m", &t.model);
    option_path(o, "--messages", NULL, &t.messages);
    option_text(o, "--prompt", "-p", &t.prompt);
    option_text(o, "--system", NULL, &t.system);
    option_path(o, "--tools", NULL, &t.tools);
    option_text(o, "--kwargs", NULL, &t.kwargs);
    think_args_add(o, &t.think);
    option_flag(o, "--preserve-thinking", NULL, &t.preserve_thinking);
    option_flag(o, "--no-generation-prompt", NULL, &t.no_generation_prompt);
    option_word(o, "--late-system", NULL, &t.late_system, "merge|inline|error");
    option_flag(o, "--ids", NULL, &t.ids);
    if (!options_parse(o, argc, argv, &code) || !think_args_check(o, &t.think, &code))
        return code;
    if (!t.model)
        return options_usage(o, "a model is needed: -m DIR, for example -m models/nano");
    if (!t.prompt && !t.messages)
        return options_usage(o, "a conversation is needed: -p TEXT or --messages FILE");
    if (t.prompt && t.messages && strcmp(t.prompt, "-") == 0 && strcmp(t.messages, "-") == 0)
        return options_usage(o, "-p and --messages cannot both read standard input");
    if (!check_kwargs(o, t.kwargs, &code))
        return code;
    lathe_error err;
    return build_and_render(&t, &err) ? cli_fail(&err) : cli_flush();
}
