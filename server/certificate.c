#include "certificate.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/buf.h"
#include "base/file.h"

enum { MAX_CHAIN = 16, MAX_PEM = 1 << 20 };

struct certificate {
    struct certificate *newer;
    int n_holders;
    gnutls_pcert_st chain[MAX_CHAIN];
    unsigned n;
    gnutls_privkey_t key;
};

/* Of the process: GnuTLS tells its callback nothing of ours. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct certificate *oldest, *newest; /* both and what is linked: under the lock */

static void release(struct certificate *c)
{
    for (unsigned i = 0; i < c->n; i++)
        gnutls_pcert_deinit(&c->chain[i]);
    if (c->key)
        gnutls_privkey_deinit(c->key);
    free(c);
}

/* Those that were replaced and that neither a holder of theirs nor of an earlier one needs. With the lock held. */
static void release_unheld(void)
{
    while (oldest != newest && oldest->n_holders == 0) {
        struct certificate *c = oldest;
        oldest = c->newer;
        release(c);
    }
}

static gnutls_datum_t datum(const struct buf *b)
{
    return (gnutls_datum_t){(unsigned char *)b->data, (unsigned)b->len};
}

/* Do the certificate and the key belong together? */
static int check_pair(const gnutls_datum_t *cert, const gnutls_datum_t *key)
{
    gnutls_certificate_credentials_t pair;
    int rc = gnutls_certificate_allocate_credentials(&pair);
    if (rc < 0)
        return rc;
    rc = gnutls_certificate_set_x509_key_mem2(pair, cert, key, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_certificate_free_credentials(pair);
    return rc;
}

static lathe_status import(struct certificate *c, const struct buf *cert, const struct buf *key,
                           const char *cert_path, const char *key_path, lathe_error *err)
{
    gnutls_datum_t cert_pem = datum(cert), key_pem = datum(key);
    unsigned n = MAX_CHAIN;
    int rc = gnutls_pcert_list_import_x509_raw(c->chain, &n, &cert_pem, GNUTLS_X509_FMT_PEM, 0);
    if (rc < 0)
        return fail(err, LATHE_E_FORMAT, "%s: no certificates in PEM form: %s", cert_path,
                    gnutls_strerror(rc));
    c->n = n;
    rc = gnutls_privkey_init(&c->key);
    if (rc >= 0)
        rc = gnutls_privkey_import_x509_raw(c->key, &key_pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    if (rc < 0)
        return fail(err, LATHE_E_FORMAT, "%s: no key in PEM form: %s", key_path,
                    gnutls_strerror(rc));
    rc = check_pair(&cert_pem, &key_pem);
    if (rc < 0)
        return fail(err, LATHE_E_FORMAT, "%s and %s: %s", cert_path, key_path, gnutls_strerror(rc));
    return LATHE_OK;
}

lathe_status certificate_load(const char *cert_path, const char *key_path, lathe_error *err)
{
    struct buf cert, key;
    struct certificate *c = calloc(1, sizeof *c);
    if (!c)
        return fail_memory(err, sizeof *c);
    buf_init(&cert, MAX_PEM);
    buf_init(&key, MAX_PEM);
    lathe_status st = file_read(&cert, cert_path, err);
    if (!st)
        st = file_read(&key, key_path, err);
    if (!st)
        st = import(c, &cert, &key, cert_path, key_path, err);
    if (key.data)
        gnutls_memset(key.data, 0, key.len);
    buf_release(&cert);
    buf_release(&key);
    if (st) {
        release(c);
        return st;
    }
    pthread_mutex_lock(&lock);
    *(newest ? &newest->newer : &oldest) = c;
    newest = c;
    release_unheld();
    pthread_mutex_unlock(&lock);
    return LATHE_OK;
}

void certificates_release(void)
{
    pthread_mutex_lock(&lock);
    while (oldest) {
        struct certificate *c = oldest;
        oldest = c->newer;
        release(c);
    }
    newest = NULL;
    pthread_mutex_unlock(&lock);
}

struct certificate *certificate_hold(void)
{
    pthread_mutex_lock(&lock);
    struct certificate *c = newest;
    if (c)
        c->n_holders++;
    pthread_mutex_unlock(&lock);
    return c;
}

void certificate_let_go(struct certificate *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&lock);
    c->n_holders--;
    release_unheld();
    pthread_mutex_unlock(&lock);
}

int certificate_show(gnutls_session_t session, const gnutls_datum_t *ca, int n_ca,
                     const gnutls_pk_algorithm_t *algorithm, int n_algorithms,
                     gnutls_pcert_st **chain, unsigned int *n_chain, gnutls_privkey_t *key)
{
    pthread_mutex_lock(&lock);
    struct certificate *c = newest;
    pthread_mutex_unlock(&lock);
    (void)session;
    (void)ca;
    (void)n_ca;
    (void)algorithm;
    (void)n_algorithms;
    *chain = c->chain;
    *n_chain = c->n;
    *key = c->key;
    return 0;
}
