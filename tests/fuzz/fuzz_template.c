/* Any bytes as a chat template, rendered with a fixed conversation under small limits. Whatever the
 * template: it ends within them, its text is UTF-8, and bytes that it did not write keep their origin.
 * A byte 0 ends the template; behind it stands JSON for one more variable, `x`. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/template_value.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* U+0002 stands in the conversation's strings; a template can spell it too, see spells_mark. */
static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"be "
    "\\u0002\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\" \\u0002<think>\\u00e9 "
    "\"}]},{\"role\":\"assistant\",\"content\":"
    "\"a,b</"
    "think>c\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"k\":[1,2.5,null,"
    "true,123456789012345678901234567890]}}}]}],\"tools\":[{\"name\":\"f\",\"parameters\":{\"a\":{}"
    "}}],"
    "\"add_generation_prompt\":true,\"s\":\"Hello "
    "\\u0002\",\"l\":[3,1,2],\"d\":{\"a\":1,\"b\":\"x\"}}";

static bool spells_mark(const char *s, size_t n)
{
    return memchr(s, 2, n) || memchr(s, '\\', n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct json_doc fixed;
    lathe_error err;
    if (!fixed.root)
        require(
            !json_read(&fixed, conversation, sizeof conversation - 1, &json_limits_request, &err));
    const char *source = (const char *)data, *extra = memchr(source, 0, size ? size : 1);
    size_t n = size && extra ? (size_t)(extra - source) : size;
    struct template *t;
    if (template_open(&t, source, n, &err))
        return 0;

    const struct template_limits limits = {
        .memory_bytes = 8 << 20, .output_bytes = 1 << 18, .steps = 300000, .depth = 300};
    struct run r;
    struct template_var var[16];
    struct value value[16];
    struct json_doc x = {0};
    struct rendering out = {0};
    size_t k = 0;
    run_open(&r, &limits, &err);
    for (void *it = json_object_iter(fixed.root); it; it = json_object_iter_next(fixed.root, it)) {
        require(value_from_json(&r, &fixed, json_object_iter_value(it), 1, &value[k]));
        var[k] = (struct template_var){json_object_iter_key(it), &value[k]};
        k++;
    }
    if (n < size && !json_read(&x, extra + 1, size - n - 1, &json_limits_request, &err) &&
        value_from_json(&r, &x, x.root, 1, &value[k])) {
        var[k] = (struct template_var){"x", &value[k]};
        k++;
    }
    if (!r.status && !template_render(t, &r, var, k, &out, &err)) {
        require(utf8_valid_prefix(out.text, out.n) == out.n && out.text[out.n] == 0);
        require(out.n <= limits.output_bytes && r.steps <= limits.steps && r.depth == 0);
        bool spelled = spells_mark(source, n);
        for (size_t i = 0; i < out.n; i++)
            require(out.origin[i] <= 1 && (spelled || out.text[i] != 2 || out.origin[i] == 1));
    }
    rendering_release(&out);
    run_close(&r);
    json_release(&x);
    template_close(t);
    return 0;
}
