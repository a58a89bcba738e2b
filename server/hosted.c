#include "hosted.h"

#include <string.h>

static bool begins_with_any(const char *s, const char *const *prefix, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strncmp(s, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

bool tool_is_hosted(const char *type)
{
    static const char *const prefix[] = {
        "web_search",  "file_search", "image_generation", "code_interpreter", "computer", "mcp",
        "local_shell", "shell",       "apply_patch",      "tool_search"};
    return begins_with_any(type, prefix, sizeof prefix / sizeof *prefix);
}

bool tool_is_anthropic_hosted(const char *type)
{
    static const char *const prefix[] = {"web_search_", "web_fetch_", "code_execution_",
                                         "tool_search_tool_", "mcp_toolset"};
    return begins_with_any(type, prefix, sizeof prefix / sizeof *prefix);
}

void tool_ignore(struct exchange *x, const char *type)
{
    struct buf *list = &x->ignored;
    size_t n = strlen(type);
    for (const char *at = buf_str(list); *at; at += strspn(at, ", ")) {
        size_t len = strcspn(at, ",");
        if (len == n && memcmp(at, type, n) == 0)
            return;
        at += len;
    }
    if (list->len + n + 2 <= MAX_LISTED_BYTES &&
        type[strspn(type, "abcdefghijklmnopqrstuvwxyz0123456789_")] == 0)
        buf_printf(list, "%s%s", list->len ? ", " : "", type);
}

void tools_ignore_hosted(struct exchange *x, const struct fields *f)
{
    const json_t *tools = field_value(f, "tools");
    for (size_t i = 0; i < json_array_size(tools); i++) {
        size_t n;
        const char *type =
            json_text(&f->doc, json_object_get(json_array_get(tools, i), "type"), &n);
        if (type && tool_is_hosted(type))
            tool_ignore(x, type);
    }
}
