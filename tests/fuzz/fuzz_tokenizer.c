/* tokenizer.json, and with a tokenizer from the input or a fixed one, encoding: 'J' and a file's
 * bytes; or a byte of flags and a text, each byte of which is trusted or not by the flags' turns. */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "small_tokenizer.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct tokenizer *open_tokenizer(const char *s, size_t n)
{
    static const struct json_limits limits = {
        .bytes = 1 << 20, .string = 1 << 16, .values = 100000, .depth = 32};
    struct json_doc d = {0}, none = {0};
    struct tokenizer *t = NULL;
    lathe_error e;
    if (!json_read(&d, s, n, &limits, &e) && !tokenizer_open_json(&t, &d, &none, &e))
        assert(t);
    json_release(&d);
    return t;
}

/* What holds for every text. */
static void check(const struct tokenizer *t, const char *s, size_t n, uint8_t flags)
{
    lathe_tokens k;
    lathe_error e;
    unsigned char *trusted = calloc(n + 1, 1);
    if (!trusted)
        return;
    for (size_t i = 0; i < n; i++)
        trusted[i] = flags >> (i / 4 % 8) & 1;
    lathe_status st = tokenizer_encode_marked(t, s, n, trusted, &k, &e);
    if (utf8_valid_prefix(s, n) < n)
        assert(st == LATHE_E_FORMAT);
    for (size_t i = 0; !st && i < k.n; i++) {
        assert(tokenizer_has(t, k.id[i]));
        assert(k.offset[i] < n && k.offset[i] >= (i ? k.offset[i - 1] : 0));
        if (tokenizer_is_control(t, k.id[i])) {
            size_t len;
            const char *c = tokenizer_bytes(t, k.id[i], &len);
            assert(len <= n - k.offset[i] && memcmp(s + k.offset[i], c, len) == 0);
            for (size_t b = 0; b < len; b++)
                assert(trusted[k.offset[i] + b]);
        }
    }
    if (!st) {
        struct buf b;
        buf_init(&b, INT_MAX);
        st = tokenizer_decode(t, k.id, k.n, &b, &e);
        assert(st || utf8_valid_prefix(buf_str(&b), b.len) == b.len);
        buf_release(&b);
    }
    lathe_tokens_release(&k);
    free(trusted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char sample[] = "don't <x>12 e\xCC\x81\r\n  abc\xE4\xB8\xAD<x";
    static struct tokenizer *fixed;
    if (size == 0)
        return 0;
    const char *s = (const char *)data + 1;
    if (data[0] == 'J') {
        struct tokenizer *t = open_tokenizer(s, size - 1);
        if (t)
            check(t, sample, sizeof sample - 1, 0xF7);
        tokenizer_close(t);
        return 0;
    }
    if (!fixed) {
        struct buf b;
        buf_init(&b, 1 << 20);
        small_tokenizer_write(&b, &(struct small_tokenizer){0});
        fixed = open_tokenizer(buf_str(&b), b.len);
        buf_release(&b);
        assert(fixed);
    }
    check(fixed, s, size - 1, data[0]);
    return 0;
}
