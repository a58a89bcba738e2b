/* lathe_text: opening a model directory, end tokens, sampling defaults, decoding. */
#include "test.h"

#include <sys/stat.h>

#include "base/json.h"
#include "fail_alloc.h"
#include "small_tokenizer.h"
#include "text/text.h"

/* Texts of a model directory's files; NULL: the file is absent. */
struct files {
    const char *config, *generation, *tokenizer_config, *template;
};

static const char big_ids[] = "[{\"id\":248044,\"content\":\"<|endoftext|>\"},"
                              "{\"id\":248046,\"content\":\"<|im_end|>\"}]";

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    remove(path);
    if (text)
        test_write(path, text, strlen(text));
}

/* A directory with these files and a small tokenizer that has 248044 and 248046. */
static const char *model_dir(const struct files *f)
{
    const char *dir = test_tmp("model");
    mkdir(dir, 0777);
    struct buf b;
    buf_init(&b, 1 << 20);
    small_tokenizer_write(&b, &(struct small_tokenizer){.added = big_ids});
    write_file(dir, "tokenizer.json", buf_str(&b));
    write_file(dir, "config.json", f->config);
    write_file(dir, "generation_config.json", f->generation);
    write_file(dir, "tokenizer_config.json", f->tokenizer_config);
    write_file(dir, "chat_template.jinja", f->template);
    buf_release(&b);
    return dir;
}

static lathe_text *open_files(const struct files *f)
{
    lathe_text *text;
    lathe_error e;
    CHECK_OK(lathe_text_open(&text, model_dir(f), &e), &e);
    return text;
}

TEST(B07_eos_union)
{
    lathe_error e;
    struct json_doc d = {0};
    CHECK_OK(json_read_file(&d, test_path("tests/cases/tokenizer/B07_eos_union.json"),
                            &json_limits_model, &e),
             &e);
    const json_t *input = json_object_get(d.root, "input");
    size_t n_rows = 0;
    for (size_t i = 0; i < json_array_size(input); i++) {
        const json_t *row = json_array_get(input, i), *want = json_object_get(row, "stop_ids");
        if (json_object_get(row, "gguf"))
            continue;
        struct buf b[3];
        static const char *const member[] = {"config", "generation_config", "tokenizer_config"};
        for (int k = 0; k < 3; k++) {
            buf_init(&b[k], 4096);
            json_print(&b[k], &d, json_object_get(row, member[k]));
        }
        lathe_text *text =
            open_files(&(struct files){buf_str(&b[0]), buf_str(&b[1]), buf_str(&b[2]), NULL});
        CHECK_INT(text->n_stop_id, json_array_size(want));
        for (size_t k = 0; k < text->n_stop_id; k++)
            CHECK_INT(text->stop_id[k], json_integer_value(json_array_get(want, k)));
        lathe_text_close(text);
        for (int k = 0; k < 3; k++)
            buf_release(&b[k]);
        n_rows++;
    }
    CHECK_INT(n_rows, 3);
    json_release(&d);
}

TEST(B07_gguf)
{
    SKIP("case B07, the row of GGUF keys: GGUF files are not read");
}

static char warnings[2048];
static void keep_warning(void *ctx, lathe_log_level level, const char *line)
{
    (void)ctx, (void)level;
    strncat(warnings, line, sizeof warnings - strlen(warnings) - 2);
    strcat(warnings, "\n");
}

TEST(end_tokens)
{
    static const struct {
        struct files f;
        const char *ids, *warning;
    } cases[] = {
        {{NULL, NULL, NULL, NULL}, "", "no end token"},
        {{"{\"text_config\":{\"eos_token_id\":248044}}", NULL, NULL, NULL}, "248044 ", ""},
        {{"{\"eos_token_id\":null}", "{\"eos_token_id\":[248046,248046,97]}", NULL, NULL},
         "97 248046 ",
         ""},
        {{NULL, NULL, "{\"eos_token\":{\"content\":\"<|endoftext|>\",\"lstrip\":false}}", NULL},
         "248044 ",
         ""},
        {{NULL, "{\"eos_token_id\":[248046,248045,-1,99999999999]}", NULL, NULL},
         "248046 ",
         "generation_config.json: eos_token_id 248045 is no token"},
        {{NULL, "{\"eos_token_id\":248046}", "{\"eos_token\":\"</s>\"}", NULL},
         "248046 ",
         "eos_token \"</s>\" is no added token"},
    };
    lathe_log_set(keep_warning, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char ids[256] = "";
        warnings[0] = 0;
        lathe_text *text = open_files(&cases[i].f);
        for (size_t k = 0; k < text->n_stop_id; k++)
            snprintf(ids + strlen(ids), sizeof ids - strlen(ids), "%d ", text->stop_id[k]);
        lathe_text_close(text);
        CHECK_STR(ids, cases[i].ids);
        CHECK(*cases[i].warning ? strstr(warnings, cases[i].warning) != NULL : !*warnings);
    }
    lathe_log_set(NULL, NULL);
}

TEST(sampling_defaults)
{
    static const struct {
        struct files f;
        bool thinking;
        float temperature, top_p, presence;
        int32_t top_k;
    } cases[] = {
        {{NULL, NULL, NULL, NULL}, true, 1, 0.95f, 0, 20},
        {{NULL, NULL, NULL, NULL}, false, 0.7f, 0.8f, 1.5f, 20},
        {{NULL, NULL, NULL, "x"}, true, 1, 0.95f, 1.5f, 20}, /* 3.5 */
        {{NULL, NULL, NULL, "{# preserve_thinking #}"}, true, 1, 0.95f, 0, 20},
        {{NULL, NULL, NULL, "{# reasoning_effort #}"}, true, 1, 0.95f, 0, 20},
        {{NULL, "{\"temperature\":0.6,\"top_k\":5,\"presence_penalty\":0.5}", NULL, NULL},
         false,
         0.6f,
         0.8f,
         0.5f,
         5},
        {{NULL, "{\"temperature\":1,\"top_p\":null,\"top_k\":-1}", NULL, NULL},
         true,
         1,
         0.95f,
         0,
         -1},
        {{NULL, "{\"temperature\":0.6,\"do_sample\":false}", NULL, NULL}, true, 0, 0.95f, 0, 20},
        {{NULL, "{\"do_sample\":true}", NULL, NULL}, true, 1, 0.95f, 0, 20},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lathe_text *text = open_files(&cases[i].f);
        lathe_request_options o;
        memset(&o, 0xAA, sizeof o);
        lathe_request_options_init(text, cases[i].thinking, &o);
        if (o.sampling.temperature != cases[i].temperature || o.sampling.top_p != cases[i].top_p ||
            o.sampling.presence_penalty != cases[i].presence || o.sampling.top_k != cases[i].top_k)
            FAIL("case %zu: %g %g %g %d", i, (double)o.sampling.temperature,
                 (double)o.sampling.top_p, (double)o.sampling.presence_penalty, o.sampling.top_k);
        CHECK(o.sampling.min_p == 0 && o.sampling.repetition_penalty == 1 && o.sampling.seed == -1);
        CHECK(o.sampling.frequency_penalty == 0 && o.sampling.n_bias == 0);
        CHECK(!o.conversation && !o.text && !o.token && o.max_tokens == -1 && o.min_tokens == 0);
        CHECK(o.n_logprobs == -1 && !o.stop && !o.stop_id && !o.ignore_eos && !o.notify);
        lathe_text_close(text);
    }
}

TEST(refused_directories)
{
    static const struct {
        struct files f;
        lathe_status status;
        const char *message;
    } cases[] = {
        {{.config = "{"}, LATHE_E_FORMAT, "config.json"},
        {{.config = "[]"}, LATHE_E_FORMAT, "config.json: expected an object"},
        {{.config = "{\"eos_token_id\":\"x\"}"}, LATHE_E_FORMAT, "config.json: eos_token_id"},
        {{.config = "{\"text_config\":{\"eos_token_id\":[1.5]}}"},
         LATHE_E_FORMAT,
         "config.json: text_config: eos_token_id: expected an id or a list of ids"},
        {{.generation = "{\"eos_token_id\":123456789012345678901234567890}"},
         LATHE_E_FORMAT,
         "generation_config.json: eos_token_id"},
        {{.generation = "{\"temperature\":-0.5}"},
         LATHE_E_FORMAT,
         "generation_config.json: temperature: expected a number in 0"},
        {{.generation = "{\"top_p\":\"1\"}"}, LATHE_E_FORMAT, "generation_config.json: top_p"},
        {{.generation = "{\"top_k\":1.5}"},
         LATHE_E_FORMAT,
         "generation_config.json: top_k: expected an integer in -1"},
        {{.generation = "{\"repetition_penalty\":0}"}, LATHE_E_FORMAT, "repetition_penalty"},
        {{.tokenizer_config = "{\"eos_token\":5}"}, LATHE_E_FORMAT, "eos_token: expected"},
        {{.template = "a\xFF"}, LATHE_E_FORMAT, "chat_template.jinja: byte 1 is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lathe_text *text;
        lathe_error e;
        const char *dir = model_dir(&cases[i].f);
        CHECK_ERR(lathe_text_open(&text, dir, &e), &e, cases[i].status, cases[i].message);
        CHECK(!text && strstr(e.message, dir));
    }
    lathe_text *text;
    lathe_error e;
    const char *nowhere = test_tmp("nowhere");
    CHECK_ERR(lathe_text_open(&text, nowhere, &e), &e, LATHE_E_IO, "tokenizer.json");
    CHECK(!text);
    CHECK(strncmp(e.message, nowhere, strlen(nowhere)) == 0 && !strstr(e.message + 1, nowhere));
}

TEST(where_the_template_is_found)
{
    static const struct {
        const char *jinja, *config, *source, *file;
    } cases[] = {
        {NULL, NULL, NULL, NULL},
        {"one", "{\"chat_template\":\"two\"}", "one", "chat_template.jinja"},
        {NULL, "{\"chat_template\":\"two\"}", "two", "chat_template of tokenizer_config.json"},
        {NULL,
         "{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"t\"},{\"name\":\"default\","
         "\"template\":\"three\"}]}",
         "three", "chat_template of tokenizer_config.json"},
        {"", NULL, "", "chat_template.jinja"},
        {NULL, "{\"chat_template\":null}", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lathe_text *text = open_files(
            &(struct files){.template = cases[i].jinja, .tokenizer_config = cases[i].config});
        if (cases[i].source) {
            CHECK_STR(text->template_source, cases[i].source);
            CHECK_INT(text->n_template_source, strlen(cases[i].source));
            CHECK_STR(text->template_file, cases[i].file);
        } else {
            CHECK(!text->template_source);
        }
        lathe_text_close(text);
    }
}

TEST(tokens_of_the_shipped_model)
{
    lathe_text *text;
    lathe_error e;
    CHECK_OK(lathe_text_open(&text, test_path("models/nano"), &e), &e);
    CHECK(text->n_stop_id == 2 && text->stop_id[0] == 8160 && text->stop_id[1] == 8162);
    CHECK(text->think_begin == 8184 && text->think_end == 8185);
    CHECK(text->tool_call_begin == 8174 && text->tool_call_end == 8175);
    CHECK(text->im_start == 8161 && text->im_end == 8162 && text->template_source);

    static const char s[] = "<|im_start|>caf\xC3\xA9 \xF0\x9F\x99\x82";
    lathe_tokens k;
    CHECK_OK(lathe_tokenize(text, s, sizeof s - 1, true, &k, &e), &e);
    CHECK(k.n > 2 && k.id[0] == 8161 && lathe_token_is_control(text, k.id[0]));
    CHECK(!lathe_token_is_control(text, k.id[1]) && !lathe_token_is_control(text, -1));
    char *out;
    size_t n;
    CHECK_OK(lathe_detokenize(text, k.id, k.n, &out, &n, &e), &e);
    CHECK_STR(out, s);
    CHECK_INT(n, sizeof s - 1);
    lathe_free(out);
    lathe_tokens_release(&k);

    /* The four bytes of a character, each a token: cut ones become one U+FFFD. */
    int32_t byte[256], ids[8];
    for (int32_t id = 0; id < 8160; id++) {
        const char *b = lathe_token_bytes(text, id, &n);
        if (n == 1)
            byte[(unsigned char)*b] = id;
    }
    const unsigned char cut[] = {'a', 0xF0, 0x9F, 0x99, 'b', 0xFF, 0x80};
    for (size_t i = 0; i < sizeof cut; i++)
        ids[i] = byte[cut[i]];
    CHECK_OK(lathe_detokenize(text, ids, sizeof cut, &out, &n, &e), &e);
    CHECK_STR(out, "a\xEF\xBF\xBD"
                   "b\xEF\xBF\xBD\xEF\xBF\xBD");
    lathe_free(out);
    CHECK_OK(lathe_detokenize(text, NULL, 0, &out, &n, &e), &e);
    CHECK(n == 0 && *out == 0);
    lathe_free(out);
    ids[0] = 8190;
    CHECK_ERR(lathe_detokenize(text, ids, 1, &out, &n, &e), &e, LATHE_E_ARGUMENT,
              "no token has the id 8190");
    CHECK(!out);
    lathe_text_close(text);
}

TEST(failing_allocations)
{
    lathe_error e;
    const char *dir = model_dir(&(struct files){
        .config = "{\"eos_token_id\":248044}",
        .generation = "{\"eos_token_id\":[248046],\"temperature\":0.5}",
        .tokenizer_config = "{\"eos_token\":\"<|im_end|>\"}",
        .template = "{{ messages[0].content }}",
    });
    for (size_t nth = 1;; nth++) {
        lathe_text *text;
        fail_alloc_arm(nth);
        lathe_status st = lathe_text_open(&text, dir, &e);
        if (!fail_alloc_disarm()) {
            CHECK_OK(st, &e);
            CHECK(text->n_stop_id == 2);
            lathe_text_close(text);
            break;
        }
        CHECK_INT(st, LATHE_E_MEMORY);
        CHECK(!text);
    }
    lathe_text *text;
    int32_t ids[] = {'a', 'b', 255};
    CHECK_OK(lathe_text_open(&text, dir, &e), &e);
    for (size_t nth = 1;; nth++) {
        char *out;
        size_t n;
        fail_alloc_arm(nth);
        lathe_status st = lathe_detokenize(text, ids, 3, &out, &n, &e);
        if (!fail_alloc_disarm()) {
            lathe_free(out);
            break;
        }
        CHECK(st == LATHE_E_MEMORY && !out);
    }
    lathe_text_close(text);
}
