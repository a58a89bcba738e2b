/* The TLS certificate and its key, which may be replaced while connections are open. */
#ifndef LATHE_SERVER_CERTIFICATE_H
#define LATHE_SERVER_CERTIFICATE_H

#include <gnutls/abstract.h>

#include "base/error.h"

/* Reads both from PEM files, checks that they belong together, and shows them to handshakes from now on; what was
 * there stays after a failure. The chain begins with the server's own certificate. */
lathe_status certificate_load(const char *cert_path, const char *key_path, lathe_error *err);
/* No handshake may run any more. */
void certificates_release(void);

/* What was replaced is freed once no connection is left that may have been shown it. So each connection holds the certificate that
 * is shown when it opens, which keeps that one and all later ones, until it lets go of it. NULL: there is none; it may be let go. */
struct certificate;
struct certificate *certificate_hold(void);
void certificate_let_go(struct certificate *c);

/* For MHD_OPTION_HTTPS_CERT_CALLBACK, a gnutls_certificate_retrieve_function2. Of a connection that holds one. */
int certificate_show(gnutls_session_t session, const gnutls_datum_t *ca, int n_ca,
                     const gnutls_pk_algorithm_t *algorithm, int n_algorithms,
                     gnutls_pcert_st **chain, unsigned int *n_chain, gnutls_privkey_t *key);

#endif
