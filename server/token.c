#include "token.h"

#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

static const char *bytes_of(const lathe_text *text, int32_t id, size_t *n)
{
    const char *s = lathe_token_bytes(text, id, n);
    if (!s)
        *n = 0;
    return s ? s : "";
}

void token_string(struct buf *out, const lathe_text *text, int32_t id)
{
    size_t n;
    const char *s = bytes_of(text, id, &n);
    buf_putc(out, '"');
    for (size_t i = 0; i < n;) {
        size_t len = utf8_valid_prefix(s + i, n - i);
        json_escape(out, s + i, len);
        i += len;
        if (i < n) {
            buf_puts(out, "\xEF\xBF\xBD");
            i += utf8_maximal_subpart(s + i, n - i);
        }
    }
    buf_putc(out, '"');
}

void token_bytes(struct buf *out, const lathe_text *text, int32_t id)
{
    size_t n;
    const char *s = bytes_of(text, id, &n);
    buf_putc(out, '[');
    for (size_t i = 0; i < n; i++)
        buf_printf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)s[i]);
    buf_putc(out, ']');
}

void token_logprob(struct buf *out, float logprob)
{
    if (logprob > -9999.0F)
        buf_printf(out, "%.7g", (double)logprob);
    else
        buf_puts(out, "-9999.0");
}

void token_id(struct buf *out, int32_t id)
{
    bool is_first = out->len == 0 || out->data[out->len - 1] == '[';
    buf_printf(out, "%s%d", is_first ? "" : ",", (int)id);
}
