#define TD_LOG_ROOM "io"
#include "common/io/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define PATH_MAX_ 4096
#define N_FILES   3

struct stamp { /* of a file, as far as a change shows */
    int64_t mtime_ns, size;
    uint64_t inode;
};

struct td_tls {
    char paths[N_FILES][PATH_MAX_]; /* certificate, key, client CA; "": none */
    struct stamp tried[N_FILES];    /* when last loaded, or tried */
    SSL_CTX *ctx;                   /* owned; sessions hold their own reference */
    struct td_timer *timer;         /* owned */
    bool client_may_hide;
    const char *prefix; /* static */
    int64_t poll_us, expires;
    uint64_t loads;
};

enum { CERT, KEY, CLIENT_CA };
static const char *const options[N_FILES] = {"cert", "key", "client-ca"};

static void look(const struct td_tls *t, struct stamp out[N_FILES])
{
    for (int i = 0; i < N_FILES; i++) {
        struct stat st;
        memset(&out[i], 0, sizeof out[i]);
        if (t->paths[i][0] != 0 && stat(t->paths[i], &st) == 0) {
            out[i] = (struct stamp){.mtime_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 +
                                                (int64_t)st.st_mtim.tv_nsec,
                                    .size = (int64_t)st.st_size,
                                    .inode = (uint64_t)st.st_ino};
        }
    }
}

/* ---- loading ---- */

static td_err complain(const struct td_tls *t, int file, const char *what)
{
    unsigned long code = ERR_peek_last_error();
    const char *reason = code != 0 ? ERR_reason_error_string(code) : NULL;
    TD_LOG(ERROR, "cannot use the TLS files", "option=%s%s path=%s what=\"%s\" openssl=\"%s\"",
           t->prefix, options[file], t->paths[file], what, reason != NULL ? reason : "");
    ERR_clear_error();
    return TD_ERR_CONFIG;
}

/* OpenSSL's own message for a file that cannot be opened names no reason that helps. */
static td_err check_readable(const struct td_tls *t, int file)
{
    FILE *f = t->paths[file][0] != 0 ? fopen(t->paths[file], "re") : NULL;
    if (f != NULL) {
        (void)fclose(f);
        return TD_OK;
    }
    TD_LOG(ERROR, "cannot read a TLS file", "option=%s%s path=%s errno=%d (%s)", t->prefix,
           options[file], t->paths[file], errno, strerrordesc_np(errno));
    return TD_ERR_NO_FILE;
}

int td_tls_no_password(char *buf, int size, int writing, void *arg)
{
    (void)buf;
    (void)size;
    (void)writing;
    (void)arg;
    return 0;
}

static td_err check_dates(const struct td_tls *t, SSL_CTX *ctx, int64_t *out_expires)
{
    X509 *leaf = SSL_CTX_get0_certificate(ctx);
    int days = 0, seconds = 0;
    if (leaf == NULL || X509_cmp_current_time(X509_get0_notBefore(leaf)) > 0) {
        return complain(t, CERT, "the certificate is not valid yet: check the clock");
    }
    if (X509_cmp_current_time(X509_get0_notAfter(leaf)) < 0) {
        return complain(t, CERT, "the certificate has expired: renew it");
    }
    if (ASN1_TIME_diff(&days, &seconds, NULL, X509_get0_notAfter(leaf)) != 1) {
        return complain(t, CERT, "the certificate has a malformed date");
    }
    *out_expires = td_wall_us() / 1000000 + (int64_t)days * 86400 + seconds;
    return TD_OK;
}

static td_err load_client_ca(const struct td_tls *t, SSL_CTX *ctx)
{
    if (t->paths[CLIENT_CA][0] == 0) {
        return TD_OK;
    }
    TD_TRY(check_readable(t, CLIENT_CA));
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(t->paths[CLIENT_CA]);
    if (names == NULL || SSL_CTX_load_verify_file(ctx, t->paths[CLIENT_CA]) != 1) {
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return complain(t, CLIENT_CA, "not PEM certificates");
    }
    SSL_CTX_set_client_CA_list(ctx, names);
    SSL_CTX_set_verify(
        ctx, SSL_VERIFY_PEER | (t->client_may_hide ? 0 : SSL_VERIFY_FAIL_IF_NO_PEER_CERT), NULL);
    return TD_OK;
}

static td_err load_files(const struct td_tls *t, SSL_CTX *ctx, int64_t *out_expires)
{
    TD_TRY(check_readable(t, CERT));
    TD_TRY(check_readable(t, KEY));
    SSL_CTX_set_default_passwd_cb(ctx, td_tls_no_password);
    if (SSL_CTX_use_certificate_chain_file(ctx, t->paths[CERT]) != 1) {
        return complain(t, CERT, "not a PEM certificate");
    }
    if (SSL_CTX_use_PrivateKey_file(ctx, t->paths[KEY], SSL_FILETYPE_PEM) != 1) {
        bool mismatch = ERR_GET_REASON(ERR_peek_last_error()) == X509_R_KEY_VALUES_MISMATCH;
        return complain(t, KEY,
                        mismatch ? "the key is not the certificate's"
                                 : "not a PEM key without a password");
    }
    if (SSL_CTX_check_private_key(ctx) != 1) {
        return complain(t, KEY, "the key is not the certificate's");
    }
    TD_TRY(check_dates(t, ctx, out_expires));
    return load_client_ca(t, ctx);
}

/* Picks a protocol of this server, by its order; a client that offers none may stay. */
static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                       const unsigned char *in, unsigned in_len, void *arg)
{
    (void)arg;
    const unsigned char *ours = SSL_get_app_data(ssl);
    unsigned char *chosen = NULL;
    if (SSL_select_next_proto(&chosen, out_len, ours, (unsigned)strlen((const char *)ours), in,
                              in_len) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

td_err td_tls_reload(struct td_tls *t)
{
    int64_t expires = 0;
    look(t, t->tried);
    SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
    if (ctx == NULL || SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION) != 1) {
        SSL_CTX_free(ctx);
        return TD_ERR_NO_MEMORY;
    }
    (void)SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                       SSL_OP_NO_TICKET | SSL_OP_CIPHER_SERVER_PREFERENCE);
    (void)SSL_CTX_set_mode(ctx, SSL_MODE_RELEASE_BUFFERS);
    (void)SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(ctx, choose_alpn, NULL);
    td_err err = load_files(t, ctx, &expires);
    if (err != TD_OK) {
        SSL_CTX_free(ctx);
        return err;
    }
    SSL_CTX_free(t->ctx);
    t->ctx = ctx;
    t->expires = expires;
    t->loads++;
    TD_LOG(INFO, "certificate loaded", "path=%s expires_in_s=%lld", t->paths[CERT],
           (long long)(expires - td_wall_us() / 1000000));
    return TD_OK;
}

static void on_timer(void *arg)
{
    struct td_tls *t = arg;
    struct stamp now[N_FILES];
    look(t, now);
    if (memcmp(now, t->tried, sizeof now) != 0 && td_tls_reload(t) != TD_OK) {
        TD_LOG(WARN, "renewed certificate not usable, keeping the old one", "path=%s",
               t->paths[CERT]);
    }
    td_timer_set(t->timer, td_now_us() + t->poll_us);
}

/* ---- life ---- */

td_err td_tls_create(const struct td_tls_params *p, struct td_tls **out_tls)
{
    const char *const paths[N_FILES] = {p->cert, p->key, p->client_ca};
    struct td_tls *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (int i = 0; i < N_FILES; i++) {
        (void)snprintf(t->paths[i], sizeof t->paths[i], "%s", paths[i] != NULL ? paths[i] : "");
    }
    t->poll_us = p->poll_us;
    t->client_may_hide = p->client_may_hide;
    t->prefix = p->prefix != NULL ? p->prefix : "--tls-";
    td_err err = td_timer_create(p->loop, "tls files", on_timer, t, &t->timer);
    err = err == TD_OK ? td_tls_reload(t) : err;
    if (err != TD_OK) {
        td_tls_destroy(t);
        return err;
    }
    td_timer_set(t->timer, td_now_us() + t->poll_us);
    *out_tls = t;
    return TD_OK;
}

static bool is_named(const char *path)
{
    return path != NULL && path[0] != 0;
}

td_err td_tls_create_named(const struct td_tls_params *p, struct td_tls **out_tls)
{
    const char *prefix = p->prefix != NULL ? p->prefix : "--tls-";
    if (is_named(p->cert) != is_named(p->key) || (is_named(p->client_ca) && !is_named(p->cert))) {
        TD_LOG(ERROR, "TLS needs both files",
               "need=\"%scert and %skey; %sclient-ca only with them\"", prefix, prefix, prefix);
        return TD_ERR_CONFIG;
    }
    if (!is_named(p->cert)) {
        *out_tls = NULL;
        return TD_OK;
    }
    return td_tls_create(p, out_tls);
}

struct td_tls *td_tls_destroy(struct td_tls *t)
{
    if (t != NULL) {
        td_timer_destroy(t->timer);
        SSL_CTX_free(t->ctx);
        free(t);
    }
    return NULL;
}

struct ssl_st *td_tls_session(struct td_tls *t, const char *alpn)
{
    SSL *ssl = SSL_new(t->ctx);
    if (ssl != NULL) {
        (void)SSL_set_app_data(ssl, (void *)(uintptr_t)alpn);
    }
    return ssl;
}

td_err td_tls_create_admin(struct td_loop *loop, const struct td_tls_files *files,
                           struct td_tls **out_tls)
{
    const struct td_tls_params p = {.loop = loop,
                                    .cert = files->cert,
                                    .key = files->key,
                                    .client_ca = files->client_ca,
                                    .client_may_hide = true,
                                    .prefix = "--admin-tls-",
                                    .poll_us = TD_TLS_POLL_US};
    return td_tls_create_named(&p, out_tls);
}

bool td_tls_lets_in(const struct td_tls *t, bool verified)
{
    return t == NULL || t->paths[CLIENT_CA][0] == 0 || verified;
}

int64_t td_tls_expires(const struct td_tls *t)
{
    return t->expires;
}

uint64_t td_tls_loads(const struct td_tls *t)
{
    return t->loads;
}

void td_tls_figures(const struct td_tls *const *all, size_t n, int64_t *out_expires,
                    uint64_t *out_loads)
{
    *out_expires = 0;
    *out_loads = 0;
    for (size_t i = 0; i < n; i++) {
        if (all[i] != NULL) {
            bool first = *out_loads == 0 || all[i]->expires < *out_expires;
            *out_expires = first ? all[i]->expires : *out_expires;
            *out_loads += all[i]->loads;
        }
    }
}
