/* What tells the weights of one model from another's. */
#include <errno.h>
#include <openssl/evp.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/file.h"
#include "server/weights.h"
#include "test.h"

/* Of files in this folder, as text. */
static void fingerprint_of(const char *dir, char out[65])
{
    unsigned char digest[32];
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    CHECK(md && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1);
    weights_sample(dir, md);
    CHECK(EVP_DigestFinal_ex(md, digest, NULL) == 1);
    EVP_MD_CTX_free(md);
    for (size_t i = 0; i < sizeof digest; i++)
        (void)snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

static void put_model(const char *dir, const char *config, const char *header, char value)
{
    enum { VALUES = 100000 };
    struct buf b;
    char path[600];
    lathe_error err;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 8; i++)
        buf_putc(&b, (char)(strlen(header) >> 8 * i & 255));
    buf_puts(&b, header);
    for (int i = 0; i < VALUES; i++)
        buf_putc(&b, value);
    CHECK(mkdir(dir, 0700) == 0 || errno == EEXIST);
    (void)snprintf(path, sizeof path, "%s/a.safetensors", dir);
    CHECK_OK(file_write(path, b.data, b.len, &err), &err);
    (void)snprintf(path, sizeof path, "%s/config.json", dir);
    CHECK_OK(file_write(path, config, strlen(config), &err), &err);
    buf_release(&b);
}

/* Other weights of the same shapes are told apart; the folder's name does not matter. */
TEST(samples_of_weights)
{
    char one[300], two[300], first[65], other[65];
    (void)snprintf(one, sizeof one, "%s", test_tmp("one"));
    (void)snprintf(two, sizeof two, "%s", test_tmp("two"));
    put_model(one, "{}", "{\"x\":1}", 7);
    fingerprint_of(one, first);
    put_model(two, "{}", "{\"x\":1}", 7);
    fingerprint_of(two, other);
    CHECK_STR(other, first);
    static const struct {
        const char *config, *header;
        char value;
    } row[] = {{"{} ", "{\"x\":1}", 7}, {"{}", "{\"x\":2}", 7}, {"{}", "{\"x\":1}", 8}};
    for (size_t i = 0; i < 3; i++) {
        put_model(two, row[i].config, row[i].header, row[i].value);
        fingerprint_of(two, other);
        CHECK(strcmp(other, first) != 0);
    }
    /* A header's length that is no length, and no weights at all. */
    put_model(two, "{}", "", 7);
    fingerprint_of(two, other);
    fingerprint_of(test_tmp("none"), other);
    CHECK(strcmp(other, first) != 0);
}
