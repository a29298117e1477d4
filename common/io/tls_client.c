#include "common/io/tls_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include "common/base/mem.h"
#include "common/io/tls.h"

struct td_tls_client {
    SSL_CTX *ctx; /* owned */
    char server_name[TD_TLS_CLIENT_NAME];
};

/* Where a sentence goes. */
struct text {
    char *at;
    size_t cap;
};

static bool is_set(const char *s)
{
    return s != NULL && s[0] != 0;
}

static td_err refuse(const struct text *t, td_err err, const char *path, const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    (void)snprintf(t->at, t->cap, "%s: %s%s%s", path, what, reason != NULL ? ": " : "",
                   reason != NULL ? reason : "");
    ERR_clear_error();
    return err;
}

/* OpenSSL's own message for a file that cannot be opened names no reason that helps. */
static td_err check_readable(const struct text *t, const char *path)
{
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        (void)snprintf(t->at, t->cap, "cannot read %s: %s", path, strerrordesc_np(errno));
        return TD_ERR_NO_FILE;
    }
    (void)fclose(f);
    return TD_OK;
}

static td_err load_identity(const struct td_tls_client_params *p, SSL_CTX *ctx,
                            const struct text *t)
{
    if (is_set(p->cert) != is_set(p->key)) {
        (void)snprintf(t->at, t->cap, "a client certificate and its key belong together");
        return TD_ERR_CONFIG;
    }
    if (!is_set(p->cert)) {
        return TD_OK;
    }
    TD_TRY(check_readable(t, p->cert));
    TD_TRY(check_readable(t, p->key));
    SSL_CTX_set_default_passwd_cb(ctx, td_tls_no_password);
    if (SSL_CTX_use_certificate_chain_file(ctx, p->cert) != 1) {
        return refuse(t, TD_ERR_CONFIG, p->cert, "not a PEM certificate");
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, p->key, SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(ctx) != 1) {
        return refuse(t, TD_ERR_CONFIG, p->key, "not the certificate's PEM key without a password");
    }
    return TD_OK;
}

static td_err load_trust(const struct td_tls_client_params *p, SSL_CTX *ctx, const struct text *t)
{
    if (is_set(p->ca)) {
        TD_TRY(check_readable(t, p->ca));
        return SSL_CTX_load_verify_file(ctx, p->ca) == 1
                   ? TD_OK
                   : refuse(t, TD_ERR_CONFIG, p->ca, "not PEM certificates");
    }
    return SSL_CTX_set_default_verify_paths(ctx) == 1
               ? TD_OK
               : refuse(t, TD_ERR_CONFIG, "the system's certificates", "cannot be used");
}

static td_err load(const struct td_tls_client_params *p, SSL_CTX *ctx, const struct text *t)
{
    if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) {
        return refuse(t, TD_ERR_NO_MEMORY, "TLS", "out of memory");
    }
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
    TD_TRY(load_trust(p, ctx, t));
    return load_identity(p, ctx, t);
}

td_err td_tls_client_create(const struct td_tls_client_params *p, struct td_tls_client **out_tls,
                            char *err_text, size_t err_cap)
{
    const struct text t = {err_text, err_cap};
    const char *name = p->server_name != NULL ? p->server_name : "";
    if (strlen(name) >= TD_TLS_CLIENT_NAME) {
        (void)snprintf(err_text, err_cap, "the server's name is too long");
        return TD_ERR_CONFIG;
    }
    struct td_tls_client *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        (void)snprintf(err_text, err_cap, "out of memory");
        return TD_ERR_NO_MEMORY;
    }
    ERR_clear_error();
    c->ctx = SSL_CTX_new(TLS_client_method());
    if (c->ctx != NULL) {
        (void)SSL_CTX_set_app_data(c->ctx, (char *)(uintptr_t)p->name_option);
    }
    (void)snprintf(c->server_name, sizeof c->server_name, "%s", name);
    td_err err = load(p, c->ctx, &t);
    if (err != TD_OK) {
        td_tls_client_destroy(c);
        return err;
    }
    *out_tls = c;
    return TD_OK;
}

struct td_tls_client *td_tls_client_destroy(struct td_tls_client *t)
{
    if (t != NULL) {
        SSL_CTX_free(t->ctx);
        free(t);
    }
    return NULL;
}

/* Names are checked against the certificate's names, addresses against its addresses; only names are sent. */
static bool expect(SSL *ssl, const char *host)
{
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) == 1;
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, host) == 1 && SSL_set_tlsext_host_name(ssl, host) == 1;
}

struct ssl_st *td_tls_client_session(const struct td_tls_client *t, const char *host,
                                     const char *alpn)
{
    SSL *ssl = SSL_new(t->ctx);
    if (ssl == NULL || !expect(ssl, t->server_name[0] != 0 ? t->server_name : host) ||
        SSL_set_alpn_protos(ssl, (const unsigned char *)alpn, (unsigned)strlen(alpn)) != 0) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_connect_state(ssl);
    return ssl;
}

void td_tls_client_why(const struct ssl_st *session, unsigned long code, char *err_text,
                       size_t err_cap)
{
    long result = SSL_get_verify_result(session);
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    int what = code != 0 ? ERR_GET_REASON(code) : 0;
    if (result == X509_V_ERR_HOSTNAME_MISMATCH || result == X509_V_ERR_IP_ADDRESS_MISMATCH) {
        const char *option = SSL_CTX_get_app_data(SSL_get_SSL_CTX(session));
        (void)snprintf(err_text, err_cap, "the server's certificate is for another name%s%s%s",
                       option != NULL ? "; " : " than its address", option != NULL ? option : "",
                       option != NULL ? " tells which to expect" : "");
    } else if (result != X509_V_OK) {
        (void)snprintf(err_text, err_cap, "the server's certificate is not trusted: %s",
                       X509_verify_cert_error_string(result));
    } else if (what == SSL_R_WRONG_VERSION_NUMBER || what == SSL_R_PACKET_LENGTH_TOO_LONG) {
        (void)snprintf(err_text, err_cap, "the server speaks no TLS here");
    } else {
        (void)snprintf(err_text, err_cap, "TLS failed: %s",
                       reason != NULL ? reason : "the connection was closed");
    }
}
