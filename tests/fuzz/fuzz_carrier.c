/* Carriers: any bytes are read, or refused; what is read says what a carrier made of it says. The first byte chooses what
 * the rest is: a carrier; what one is to carry; or what zstd made, with a hash that fits. */
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

#include "server/carrier.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Read again from a carrier made of it, it is the same. */
static void check_read(const struct carried *c)
{
    struct carried again;
    size_t used = 0;
    struct buf b;
    buf_init(&b, 2 * CARRIER_MAX);
    carrier_put(&b, c->text, c->n, c->id, c->n_id);
    require(b.len > 0 && b.len <= CARRIER_MAX);
    require(carrier_read(b.data, b.len, &used, &again));
    if (again.n || again.n_id) /* it fitted */
        require(again.n == c->n && memcmp(again.text, c->text, c->n) == 0);
    if (again.n_id)
        require(again.n_id == c->n_id && memcmp(again.id, c->id, c->n_id * sizeof *c->id) == 0);
    carried_release(&again);
    buf_release(&b);
}

static void put_base64(struct buf *out, const uint8_t *s, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    uint32_t x = 0;
    int bits = 0;
    for (size_t i = 0; i < n; i++) {
        x = x << 8 | s[i];
        for (bits += 8; bits >= 6; bits -= 6)
            buf_putc(out, digit[x >> (bits - 6) & 63]);
    }
    if (bits)
        buf_putc(out, digit[x << (6 - bits) & 63]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct carried c;
    size_t used = 0;
    struct buf b;
    unsigned char hash[SHA256_DIGEST_LENGTH];
    if (size == 0)
        return 0;
    const uint8_t *s = data + 1;
    size_t n = size - 1;
    buf_init(&b, 2 * CARRIER_MAX);
    if (data[0] % 3 == 0) {
        buf_append(&b, s, n);
    } else if (data[0] % 3 == 1) {
        size_t n_id = n / 8;
        int32_t *id = malloc((n_id + 1) * sizeof *id);
        require(id != NULL);
        for (size_t i = 0; i < n_id; i++)
            id[i] = s[i];
        carrier_put(&b, (const char *)s, n, id, n_id);
        free(id);
    } else {
        buf_puts(&b, "l1.");
        put_base64(&b, s, n);
        buf_putc(&b, '.');
        SHA256(s, n, hash);
        put_base64(&b, hash, 16);
    }
    if (carrier_read(buf_str(&b), b.len, &used, &c))
        check_read(&c);
    else
        require(!c.text && !c.id);
    carried_release(&c);
    buf_release(&b);
    return 0;
}
