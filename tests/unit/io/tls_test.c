/* Certificates made on the spot, handshakes over BIO pairs: no socket, no clock but the certificates'. */
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/io/tls.h"
#include "tests/unit/check.h"
#include "tests/unit/io/cert_rig.h"

static struct td_loop *loop;
static struct td_tls *tls;

static td_err create(const char *client_ca)
{
    struct td_tls_params p = {.loop = loop,
                              .cert = cert_path("cert"),
                              .key = cert_path("key"),
                              .client_ca = client_ca,
                              .poll_us = 1000};
    return td_tls_create(&p, &tls);
}

static void write_identity(const struct identity *id)
{
    cert_write("cert", NULL, id->cert);
    cert_write("key", id->key, NULL);
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    cert_folder_make();
    tls = NULL;
    return td_loop_create(&loop) == TD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    tls = td_tls_destroy(tls);
    loop = td_loop_destroy(loop);
    cert_folder_remove();
    return 0;
}

struct client {
    const struct identity *id; /* shown; NULL: none */
    const char *alpn;          /* offered; NULL: none */
    int max_version;
};

/* One handshake; true when both sides are through. *out_cn: what the server showed. */
static bool handshake(const struct client *want, char *out_cn, size_t cap)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *c = SSL_new(ctx), *s = td_tls_session(tls, TD_ALPN_H2);
    BIO *a = NULL, *b = NULL;
    char byte = 0;
    assert_int_equal(BIO_new_bio_pair(&a, 0, &b, 0), 1);
    SSL_set_bio(c, a, a);
    SSL_set_bio(s, b, b);
    SSL_set_connect_state(c);
    SSL_set_accept_state(s);
    if (want->id != NULL) {
        assert_int_equal(SSL_use_certificate(c, want->id->cert), 1);
        assert_int_equal(SSL_use_PrivateKey(c, want->id->key), 1);
    }
    if (want->alpn != NULL) {
        SSL_set_alpn_protos(c, (const unsigned char *)want->alpn, (unsigned)strlen(want->alpn));
    }
    if (want->max_version != 0) {
        SSL_set_security_level(c, 0);
        SSL_set_max_proto_version(c, want->max_version);
    }
    for (int i = 0; i < 20; i++) {
        (void)SSL_do_handshake(c);
        (void)SSL_do_handshake(s);
        (void)SSL_read(c, &byte, 1); /* TLS 1.3: a refused client certificate shows only here */
    }
    bool ok = SSL_is_init_finished(c) == 1 && SSL_is_init_finished(s) == 1 &&
              SSL_write(s, "x", 1) == 1 && SSL_read(c, &byte, 1) == 1;
    X509 *shown = SSL_get0_peer_certificate(c);
    out_cn[0] = 0;
    if (shown != NULL) {
        X509_NAME_get_text_by_NID(X509_get_subject_name(shown), NID_commonName, out_cn, (int)cap);
    }
    SSL_free(c);
    SSL_free(s);
    SSL_CTX_free(ctx);
    ERR_clear_error();
    return ok;
}

static bool lets_in(struct client want)
{
    char cn[64];
    return handshake(&want, cn, sizeof cn);
}

static void a_pair_of_files_serves(void **state)
{
    (void)state;
    char cn[64];
    struct identity id = cert_make("one", NULL, -10, 3600);
    write_identity(&id);
    assert_int_equal(create(NULL), TD_OK);
    int64_t left = td_tls_expires(tls) - td_wall_us() / 1000000;
    assert_true(left > 3500 && left <= 3601);
    struct client c = {.alpn = TD_ALPN_H2};
    assert_true(handshake(&c, cn, sizeof cn));
    assert_string_equal(cn, "one");
    cert_drop(&id);
}

static void old_versions_and_other_protocols_are_refused(void **state)
{
    (void)state;
    struct identity id = cert_make("one", NULL, -10, 3600);
    write_identity(&id);
    assert_int_equal(create(NULL), TD_OK);
    assert_true(lets_in((struct client){.max_version = TLS1_2_VERSION}));
    assert_false(lets_in((struct client){.max_version = TLS1_1_VERSION}));
    assert_false(lets_in((struct client){.alpn = TD_ALPN_HTTP}));
    assert_true(lets_in((struct client){.alpn = TD_ALPN_HTTP TD_ALPN_H2}));
    assert_true(lets_in((struct client){0}));
    cert_drop(&id);
}

static void files_that_cannot_serve_are_refused(void **state)
{
    (void)state;
    struct identity id = cert_make("one", NULL, -10, 3600),
                    other = cert_make("other", NULL, -10, 3600);
    struct identity old = cert_make("old", NULL, -100, -10),
                    early = cert_make("early", NULL, 1000, 2000);
    assert_int_equal(create(NULL), TD_ERR_NO_FILE);
    cert_write("cert", NULL, id.cert);
    assert_int_equal(create(NULL), TD_ERR_NO_FILE); /* no key */
    cert_write("key", other.key, NULL);
    assert_int_equal(create(NULL), TD_ERR_CONFIG); /* another's */
    cert_write("key", NULL, other.cert);
    assert_int_equal(create(NULL), TD_ERR_CONFIG); /* no key in it */
    write_identity(&old);
    assert_int_equal(create(NULL), TD_ERR_CONFIG);
    write_identity(&early);
    assert_int_equal(create(NULL), TD_ERR_CONFIG);
    write_identity(&id);
    assert_int_equal(create(cert_path("ca")), TD_ERR_NO_FILE);
    cert_write("ca", id.key, NULL);
    assert_int_equal(create(cert_path("ca")), TD_ERR_CONFIG); /* no certificate in it */
    assert_null(tls);
    assert_int_equal(create(NULL), TD_OK);
    cert_drop(&id);
    cert_drop(&other);
    cert_drop(&old);
    cert_drop(&early);
}

static bool loaded_twice(void *arg)
{
    (void)arg;
    return td_tls_loads(tls) == 2;
}

static void a_renewed_pair_is_noticed_and_a_broken_one_is_not_used(void **state)
{
    (void)state;
    char cn[64];
    struct client c = {.alpn = TD_ALPN_H2};
    struct identity one = cert_make("one", NULL, -10, 3600),
                    two = cert_make("two", NULL, -10, 7200);
    write_identity(&one);
    assert_int_equal(create(NULL), TD_OK);
    cert_write("cert", NULL, two.cert); /* the key is still the old one's */
    td_log_set_level(TD_LOG_ERROR);
    for (int i = 0; i < 20; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(td_tls_loads(tls), 1);
    assert_true(handshake(&c, cn, sizeof cn));
    assert_string_equal(cn, "one");
    cert_write("key", two.key, NULL);
    for (int i = 0; i < 5000 && !loaded_twice(NULL); i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_true(loaded_twice(NULL));
    assert_true(handshake(&c, cn, sizeof cn));
    assert_string_equal(cn, "two");
    assert_int_equal(td_tls_reload(tls), TD_OK);
    cert_drop(&one);
    cert_drop(&two);
}

static void mutual_tls_lets_in_whom_the_ca_signed(void **state)
{
    (void)state;
    struct identity server = cert_make("server", NULL, -10, 3600),
                    ca = cert_make("ca", NULL, -10, 3600);
    struct identity friend = cert_make("friend", &ca, -10, 3600),
                    late = cert_make("late", &ca, -100, -10);
    struct identity stranger = cert_make("stranger", NULL, -10, 3600);
    write_identity(&server);
    cert_write("ca", NULL, ca.cert);
    assert_int_equal(create(cert_path("ca")), TD_OK);
    assert_true(lets_in((struct client){.id = &friend}));
    assert_false(lets_in((struct client){.id = NULL}));
    assert_false(lets_in((struct client){.id = &stranger}));
    assert_false(lets_in((struct client){.id = &late}));
    cert_drop(&server);
    cert_drop(&ca);
    cert_drop(&friend);
    cert_drop(&late);
    cert_drop(&stranger);
}

static void a_renewed_client_ca_lets_in_whom_the_new_one_signed(void **state)
{
    (void)state;
    struct identity server = cert_make("server", NULL, -10, 3600),
                    old = cert_make("old", NULL, -10, 3600),
                    new = cert_make("new", NULL, -10, 3600);
    struct identity of_old = cert_make("friend", &old, -10, 3600),
                    of_new = cert_make("friend", &new, -10, 3600);
    write_identity(&server);
    cert_write("ca", NULL, old.cert);
    assert_int_equal(create(cert_path("ca")), TD_OK);
    assert_true(lets_in((struct client){.id = &of_old}));
    assert_false(lets_in((struct client){.id = &of_new}));
    cert_write("ca", NULL, new.cert);
    for (int i = 0; i < 5000 && !loaded_twice(NULL); i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_true(lets_in((struct client){.id = &of_new}));
    assert_false(lets_in((struct client){.id = &of_old}));
    cert_drop(&server);
    cert_drop(&old);
    cert_drop(&new);
    cert_drop(&of_old);
    cert_drop(&of_new);
}

static void figures_are_those_of_the_certificate_that_ends_first(void **state)
{
    (void)state;
    int64_t expires = 1;
    uint64_t loads = 1;
    struct identity id = cert_make("one", NULL, -10, 3600),
                    long_lived = cert_make("two", NULL, -10, 7200);
    const struct td_tls *none[] = {NULL, NULL};
    td_tls_figures(none, 2, &expires, &loads);
    assert_true(expires == 0 && loads == 0);
    write_identity(&long_lived);
    assert_int_equal(create(NULL), TD_OK);
    struct td_tls *later = tls;
    write_identity(&id);
    assert_int_equal(create(NULL), TD_OK);
    const struct td_tls *all[] = {later, NULL, tls};
    td_tls_figures(all, 3, &expires, &loads);
    assert_true(expires == td_tls_expires(tls) && expires < td_tls_expires(later));
    assert_int_equal(loads, 2);
    td_tls_destroy(later);
    cert_drop(&id);
    cert_drop(&long_lived);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_pair_of_files_serves),
        T(old_versions_and_other_protocols_are_refused),
        T(files_that_cannot_serve_are_refused),
        T(a_renewed_pair_is_noticed_and_a_broken_one_is_not_used),
        T(mutual_tls_lets_in_whom_the_ca_signed),
        T(a_renewed_client_ca_lets_in_whom_the_new_one_signed),
        T(figures_are_those_of_the_certificate_that_ends_first),
    };
    return cmocka_run_group_tests_name("tls", tests, NULL, NULL);
}
