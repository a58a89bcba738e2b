#include "carrier.h"

#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/utf8.h"

enum { MAX_PAYLOAD = 8 * CARRIER_MAX, N_HASH = 16, HEAD = 5, LEVEL = 3 };
static const char mark[] = "l1.";

/* ---- Base 64 in the alphabet of URLs, without padding --------------------------------------- */

static void put_base64(struct buf *out, const unsigned char *s, size_t n)
{
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (size_t i = 0; i < n; i += 3) {
        uint32_t x = (uint32_t)s[i] << 16;
        x |= i + 1 < n ? (uint32_t)s[i + 1] << 8 : 0;
        x |= i + 2 < n ? s[i + 2] : 0;
        for (size_t k = 0; k < 4 && i + k <= n; k++)
            buf_putc(out, digit[x >> (18 - 6 * k) & 63]);
    }
}

static int digit_of(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '-'             ? 62
           : c == '_'             ? 63
                                  : -1;
}

static bool read_base64(struct buf *out, const char *s, size_t n)
{
    uint32_t x = 0;
    if (n % 4 == 1)
        return false;
    for (size_t i = 0; i < n; i++) {
        int d = digit_of(s[i]);
        if (d < 0)
            return false;
        x = x << 6 | (uint32_t)d;
        if (i % 4 > 0)
            buf_putc(out, (char)(x >> (6 - 2 * (i % 4)) & 255));
    }
    return !out->over && !out->no_memory;
}

/* ---- Writing -------------------------------------------------------------------------------- */

static void put_number(struct buf *out, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        buf_putc(out, (char)(x >> 8 * i & 255));
}

/* False if it does not fit, or memory ran out. */
static bool pack(struct buf *out, const char *text, size_t n, const int32_t *id, size_t n_id)
{
    struct buf payload;
    unsigned char hash[SHA256_DIGEST_LENGTH];
    if (n > MAX_PAYLOAD - HEAD || n_id > (MAX_PAYLOAD - HEAD - n) / 4)
        return false;
    buf_init(&payload, MAX_PAYLOAD);
    buf_putc(&payload, 0);
    put_number(&payload, (uint32_t)n);
    buf_append(&payload, text, n);
    for (size_t i = 0; i < n_id; i++)
        put_number(&payload, (uint32_t)id[i]);
    size_t room = ZSTD_compressBound(payload.len);
    unsigned char *packed = malloc(room);
    size_t len = packed && !payload.no_memory
                     ? ZSTD_compress(packed, room, payload.data, payload.len, LEVEL)
                     : 0;
    bool fits = len && !ZSTD_isError(len) && len <= (CARRIER_MAX - 64) / 4 * 3;
    if (fits) {
        buf_puts(out, mark);
        put_base64(out, packed, len);
        buf_putc(out, '.');
        SHA256(packed, len, hash);
        put_base64(out, hash, N_HASH);
    }
    free(packed);
    buf_release(&payload);
    return fits;
}

void carrier_put(struct buf *out, const char *text, size_t n, const int32_t *id, size_t n_id)
{
    if (!pack(out, text, n, id, n_id) && !pack(out, text, n, NULL, 0) && !pack(out, "", 0, NULL, 0))
        buf_puts(out, mark); /* which is none, but says whose it is */
}

/* ---- Reading -------------------------------------------------------------------------------- */

static uint32_t number_at(const unsigned char *s)
{
    return s[0] | (uint32_t)s[1] << 8 | (uint32_t)s[2] << 16 | (uint32_t)s[3] << 24;
}

static bool read_payload(const unsigned char *s, size_t len, struct carried *out)
{
    if (len < HEAD || s[0] != 0)
        return false;
    size_t n = number_at(s + 1);
    if (n > len - HEAD || (len - HEAD - n) % 4 != 0 ||
        utf8_valid_prefix((const char *)s + HEAD, n) != n)
        return false;
    size_t n_id = (len - HEAD - n) / 4;
    out->text = malloc(n + 1);
    out->id = malloc((n_id + 1) * sizeof *out->id);
    if (!out->text || !out->id)
        return false;
    memcpy(out->text, s + HEAD, n);
    out->text[n] = 0;
    out->n = n;
    for (size_t i = 0; i < n_id; i++) {
        uint32_t id = number_at(s + HEAD + n + 4 * i);
        if (id > INT32_MAX)
            return false;
        out->id[i] = (int32_t)id;
    }
    out->n_id = n_id;
    return true;
}

/* Packed bytes that the hash belongs to. */
static bool unpack(const struct buf *packed, const struct buf *hash, size_t *used,
                   struct carried *out)
{
    unsigned char own[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)packed->data, packed->len, own);
    if (hash->len != N_HASH || memcmp(own, hash->data, N_HASH) != 0)
        return false;
    unsigned long long size = ZSTD_getFrameContentSize(packed->data, packed->len);
    if (size == ZSTD_CONTENTSIZE_UNKNOWN || size == ZSTD_CONTENTSIZE_ERROR || size > MAX_PAYLOAD ||
        size > CARRIED_MAX - *used)
        return false;
    *used += (size_t)size;
    unsigned char *payload = malloc((size_t)size + 1);
    if (!payload)
        return false;
    size_t len = ZSTD_decompress(payload, (size_t)size, packed->data, packed->len);
    bool ok = !ZSTD_isError(len) && len == size && read_payload(payload, len, out);
    free(payload);
    return ok;
}

bool carrier_read(const char *s, size_t n, size_t *used, struct carried *out)
{
    size_t head = strlen(mark);
    *out = (struct carried){0};
    if (n <= head || n > CARRIER_MAX || memcmp(s, mark, head) != 0)
        return false;
    const char *from = s + head, *dot = memchr(from, '.', n - head);
    if (!dot || dot == from)
        return false;
    struct buf packed, hash;
    buf_init(&packed, CARRIER_MAX);
    buf_init(&hash, N_HASH + 1);
    bool ok = read_base64(&packed, from, (size_t)(dot - from)) &&
              read_base64(&hash, dot + 1, (size_t)(s + n - dot - 1)) && packed.len && hash.len &&
              unpack(&packed, &hash, used, out);
    if (!ok)
        carried_release(out);
    buf_release(&packed);
    buf_release(&hash);
    return ok;
}

void carried_release(struct carried *c)
{
    free(c->text);
    free(c->id);
    *c = (struct carried){0};
}
