/* Any bytes as JSON: a refusal with a message that names the place, or a tree that prints as valid
 * JSON, which reads and prints the same again. The first byte chooses the limits. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct json_limits small = {.bytes = 4096, .string = 16, .values = 50, .depth = 5};
    struct json_doc d;
    lathe_error err = {0};
    if (size == 0)
        return 0;
    bool is_small = data[0] & 1;
    lathe_status st = json_read(&d, (const char *)data + 1, size - 1,
                                is_small ? &small : &json_limits_request, &err);
    if (st) {
        require(st == LATHE_E_FORMAT || st == LATHE_E_LIMIT);
        require(strstr(err.message, "byte") && !d.root && !d.side);
        return 0;
    }
    struct buf a, b;
    buf_init(&a, size * 8 + 64);
    buf_init(&b, size * 8 + 64);
    json_print(&a, &d, d.root);
    json_release(&d);
    require(!buf_check(&a, "output", &err) && utf8_valid_prefix(a.data, a.len) == a.len);
    require(!json_read(&d, a.data, a.len, &json_limits_request, &err));
    json_print(&b, &d, d.root);
    json_release(&d);
    require(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    buf_release(&a);
    buf_release(&b);
    return 0;
}
