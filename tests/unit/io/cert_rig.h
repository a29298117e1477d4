/* cert_rig.h - certificates made on the spot, for tests of TLS. */
#ifndef TD_TESTS_UNIT_IO_CERT_RIG_H
#define TD_TESTS_UNIT_IO_CERT_RIG_H

#include <openssl/evp.h>
#include <openssl/x509.h>

struct identity {
    EVP_PKEY *key;
    X509 *cert;
};

/* A certificate for `name` (a host, or an IPv4 address), signed by `ca` (NULL: a CA, by itself), valid from now + from to
 * now + to seconds. */
struct identity cert_make(const char *name, const struct identity *ca, long from, long to);
void cert_drop(struct identity *id);
/* A folder of its own for the files, made and removed. */
void cert_folder_make(void);
void cert_folder_remove(void);
/* Of a file in there; one of the last four is valid. */
const char *cert_path(const char *name);
/* PEM of the key, or of the certificate where key is NULL; written beside and moved, as renewals do. */
void cert_write(const char *name, const EVP_PKEY *key, X509 *cert);

#endif
