#include "tests/unit/io/cert_rig.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "tests/unit/check.h"

static char folder[64];

static void extend(X509 *cert, int nid, const char *value)
{
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, NULL, nid, value);
    assert_non_null(e);
    X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
}

struct identity cert_make(const char *name, const struct identity *ca, long from, long to)
{
    struct identity id = {.key = EVP_EC_gen("P-256"), .cert = X509_new()};
    char alias[128];
    assert_non_null(id.key);
    X509_set_version(id.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(id.cert), (long)name[0] * 1000 + to % 1000);
    X509_gmtime_adj(X509_getm_notBefore(id.cert), from);
    X509_gmtime_adj(X509_getm_notAfter(id.cert), to);
    X509_set_pubkey(id.cert, id.key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(id.cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)name, -1, -1, 0);
    X509_set_issuer_name(id.cert, X509_get_subject_name(ca != NULL ? ca->cert : id.cert));
    (void)snprintf(alias, sizeof alias, "%s:%s",
                   name[strspn(name, "0123456789.")] == 0 ? "IP" : "DNS", name);
    if (ca == NULL) {
        extend(id.cert, NID_basic_constraints, "critical,CA:TRUE");
    } else {
        extend(id.cert, NID_subject_alt_name, alias);
    }
    assert_true(X509_sign(id.cert, ca != NULL ? ca->key : id.key, EVP_sha256()) > 0);
    return id;
}

void cert_drop(struct identity *id)
{
    EVP_PKEY_free(id->key);
    X509_free(id->cert);
}

void cert_folder_make(void)
{
    (void)snprintf(folder, sizeof folder, "/tmp/cert-rig-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

void cert_folder_remove(void)
{
    DIR *d = opendir(folder);
    const struct dirent *e = NULL;
    while (d != NULL && (e = readdir(d)) != NULL) {
        (void)unlink(cert_path(e->d_name)); /* "." and "..": refused */
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    (void)rmdir(folder);
    ERR_clear_error();
}

const char *cert_path(const char *name)
{
    static char out[4][384];
    static unsigned turn;
    char *p = out[turn++ % 4];
    (void)snprintf(p, sizeof out[0], "%s/%s", folder, name);
    return p;
}

void cert_write(const char *name, const EVP_PKEY *key, X509 *cert)
{
    FILE *f = fopen(cert_path("tmp"), "w");
    assert_non_null(f);
    if (key != NULL) {
        assert_int_equal(PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL), 1);
    } else {
        assert_int_equal(PEM_write_X509(f, cert), 1);
    }
    assert_int_equal(fclose(f), 0);
    assert_int_equal(rename(cert_path("tmp"), cert_path(name)), 0);
}
