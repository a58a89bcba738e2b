/* Certificates that are replaced: kept while a connection may use them, and no longer. */
#include <malloc.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "server/certificate.h"
#include "test.h"

enum { TIMES = 100, LEAST = 1000 /* bytes of a certificate and its key */ };

static void make_pair(char cert[300], char key[300])
{
    (void)snprintf(cert, 300, "%s", test_tmp("cert.pem"));
    (void)snprintf(key, 300, "%s", test_tmp("key.pem"));
    EVP_PKEY *k = EVP_EC_gen("P-256");
    X509 *x = X509_new();
    FILE *c = fopen(cert, "w"), *f = fopen(key, "w");
    CHECK(k && x && c && f);
    CHECK(X509_gmtime_adj(X509_getm_notBefore(x), 0) != NULL);
    CHECK(X509_gmtime_adj(X509_getm_notAfter(x), 3600) != NULL);
    X509_NAME *name = X509_get_subject_name(x);
    CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"localhost",
                                     -1, -1, 0) == 1);
    CHECK(X509_set_issuer_name(x, name) == 1 && X509_set_pubkey(x, k) == 1);
    CHECK(X509_sign(x, k, EVP_sha256()) > 0);
    CHECK(PEM_write_X509(c, x) == 1 && PEM_write_PrivateKey(f, k, NULL, NULL, 0, NULL, NULL) == 1);
    CHECK(fclose(c) == 0 && fclose(f) == 0);
    X509_free(x);
    EVP_PKEY_free(k);
}

/* Bytes on the heap; a sanitizer's allocator says 0. */
static size_t in_use(void)
{
    return mallinfo2().uordblks;
}

static void load(const char *cert, const char *key, int times)
{
    lathe_error err;
    for (int i = 0; i < times; i++)
        CHECK_OK(certificate_load(cert, key, &err), &err);
}

static void show(gnutls_pcert_st **chain, gnutls_privkey_t *key)
{
    unsigned n;
    CHECK_INT(certificate_show(NULL, NULL, 0, NULL, 0, chain, &n, key), 0);
    CHECK_INT((int)n, 1);
}

TEST(replaced_certificates)
{
    char cert[300], key[300];
    gnutls_pcert_st *chain;
    gnutls_privkey_t shown, later;
    make_pair(cert, key);
    CHECK(certificate_hold() == NULL);
    certificate_let_go(NULL);
    load(cert, key, 2 * TIMES); /* what the library keeps for itself it has then */
    size_t before = in_use();
    load(cert, key, TIMES);
    CHECK(in_use() < before + TIMES * LEAST / 2);

    /* One connection opens, and shakes hands after the certificate was replaced; then it is replaced again. */
    struct certificate *first = certificate_hold(), *second;
    load(cert, key, 1);
    show(&chain, &shown);
    load(cert, key, TIMES);
    show(&chain, &later);
    CHECK(later != shown);
    CHECK(before == 0 || in_use() > before + TIMES * LEAST);
    CHECK(gnutls_privkey_get_pk_algorithm(shown, NULL) == GNUTLS_PK_ECDSA);
    second = certificate_hold();
    certificate_let_go(first);
    CHECK(in_use() < before + TIMES * LEAST / 2);
    load(cert, key, 1);
    CHECK(gnutls_privkey_get_pk_algorithm(later, NULL) == GNUTLS_PK_ECDSA);
    certificate_let_go(second);
    certificates_release();
    CHECK(certificate_hold() == NULL);
}
