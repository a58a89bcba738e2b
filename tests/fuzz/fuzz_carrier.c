/* Carriers: any bytes are read, or refused; what is read says what a carrier made of it says. The first byte chooses: the
 * rest is a carrier, or the payload of one with a hash that fits. */
#include <stdlib.h>
#include <string.h>

#include "server/carrier.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct carried c, again;
    struct buf b;
    if (size == 0)
        return 0;
    bool is_text = data[0] & 1;
    const char *s = (const char *)data + 1;
    size_t n = size - 1;
    buf_init(&b, 2 * CARRIER_MAX);
    if (is_text) {
        size_t n_id = n / 8;
        int32_t *id = malloc((n_id + 1) * sizeof *id);
        require(id != NULL);
        for (size_t i = 0; i < n_id; i++)
            id[i] = data[1 + i];
        carrier_put(&b, s, n, id, n_id);
        require(b.len > 0 && b.len <= CARRIER_MAX);
        if (carrier_read(b.data, b.len, &c)) { /* text that is no UTF-8 is refused */
            require(c.n == n && memcmp(c.text, s, n) == 0 && c.n_id == n_id);
            require(n_id == 0 || memcmp(c.id, id, n_id * sizeof *id) == 0);
        }
        free(id);
    } else if (carrier_read(s, n, &c)) {
        carrier_put(&b, c.text, c.n, c.id, c.n_id);
        require(carrier_read(b.data, b.len, &again) && again.n == c.n && again.n_id == c.n_id);
        require(memcmp(again.text, c.text, c.n) == 0);
        carried_release(&again);
    }
    carried_release(&c);
    buf_release(&b);
    return 0;
}
