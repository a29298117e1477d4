/* What is refused before anything is dialled; handshakes are stream_test.c's. */
#include <string.h>

#include <openssl/ssl.h>

#include "common/base/mem.h"
#include "common/io/tls.h"
#include "common/io/tls_client.h"
#include "tests/unit/check.h"
#include "tests/unit/io/cert_rig.h"

static char why[256];

static int setup(void **state)
{
    (void)state;
    cert_folder_make();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    cert_folder_remove();
    return 0;
}

static td_err create(const struct td_tls_client_params *p)
{
    struct td_tls_client *c = NULL;
    why[0] = 0;
    td_err err = td_tls_client_create(p, &c, why, sizeof why);
    assert_true((err == TD_OK) == (c != NULL));
    assert_true((err == TD_OK) == (why[0] == 0));
    td_tls_client_destroy(c);
    return err;
}

static void files_that_cannot_be_used_are_refused_by_name(void **state)
{
    (void)state;
    struct identity id = cert_make("one", NULL, -10, 3600),
                    other = cert_make("two", NULL, -10, 3600);
    cert_write("cert", NULL, id.cert);
    cert_write("key", id.key, NULL);
    cert_write("other", other.key, NULL);
    assert_int_equal(create(&(struct td_tls_client_params){0}), TD_OK);
    assert_int_equal(create(&(struct td_tls_client_params){.ca = "/no/such"}), TD_ERR_NO_FILE);
    assert_non_null(strstr(why, "/no/such"));
    assert_int_equal(create(&(struct td_tls_client_params){.ca = cert_path("key")}), TD_ERR_CONFIG);
    assert_int_equal(create(&(struct td_tls_client_params){.ca = cert_path("cert")}), TD_OK);
    assert_int_equal(create(&(struct td_tls_client_params){.cert = cert_path("cert")}),
                     TD_ERR_CONFIG);
    assert_int_equal(create(&(struct td_tls_client_params){.key = cert_path("key")}),
                     TD_ERR_CONFIG);
    assert_int_equal(
        create(&(struct td_tls_client_params){.cert = cert_path("cert"), .key = cert_path("key")}),
        TD_OK);
    assert_int_equal(create(&(struct td_tls_client_params){.cert = cert_path("cert"),
                                                           .key = cert_path("other")}),
                     TD_ERR_CONFIG);
    assert_int_equal(
        create(&(struct td_tls_client_params){.cert = cert_path("key"), .key = cert_path("key")}),
        TD_ERR_CONFIG);
    cert_drop(&id);
    cert_drop(&other);
}

static void a_name_has_a_longest_length(void **state)
{
    (void)state;
    char name[TD_TLS_CLIENT_NAME + 1];
    memset(name, 'a', sizeof name);
    name[TD_TLS_CLIENT_NAME] = 0;
    assert_int_equal(create(&(struct td_tls_client_params){.server_name = name}), TD_ERR_CONFIG);
    name[TD_TLS_CLIENT_NAME - 1] = 0;
    assert_int_equal(create(&(struct td_tls_client_params){.server_name = name}), TD_OK);
}

static void only_names_are_sent_to_the_server(void **state)
{
    (void)state;
    struct td_tls_client *c = NULL;
    const struct td_tls_client_params p = {0};
    assert_int_equal(td_tls_client_create(&p, &c, why, sizeof why), TD_OK);
    static const char *const hosts[] = {"127.0.0.1", "::1", "node.example"};
    for (size_t i = 0; i < TD_COUNT(hosts); i++) {
        SSL *ssl = td_tls_client_session(c, hosts[i], TD_ALPN_H2);
        assert_non_null(ssl);
        const char *sent = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
        assert_true((sent != NULL) == (i == 2));
        SSL_free(ssl);
    }
    td_tls_client_destroy(c);
}

/* Another program's option would be no remedy. */
static void a_wrong_name_is_told_with_the_programs_own_option(void **state)
{
    (void)state;
    static const char *const options[] = {NULL, "--their-name"};
    for (size_t i = 0; i < TD_COUNT(options); i++) {
        struct td_tls_client *c = NULL;
        const struct td_tls_client_params p = {.name_option = options[i]};
        assert_int_equal(td_tls_client_create(&p, &c, why, sizeof why), TD_OK);
        SSL *ssl = td_tls_client_session(c, "node.example", TD_ALPN_H2);
        assert_non_null(ssl);
        SSL_set_verify_result(ssl, X509_V_ERR_HOSTNAME_MISMATCH);
        td_tls_client_why(ssl, 0, why, sizeof why);
        assert_non_null(strstr(why, "another name"));
        assert_true((strstr(why, "--") != NULL) == (options[i] != NULL));
        assert_true(options[i] == NULL || strstr(why, options[i]) != NULL);
        SSL_free(ssl);
        td_tls_client_destroy(c);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(files_that_cannot_be_used_are_refused_by_name),
        T(a_name_has_a_longest_length),
        T(only_names_are_sent_to_the_server),
        T(a_wrong_name_is_told_with_the_programs_own_option),
    };
    return cmocka_run_group_tests_name("tls_client", tests, NULL, NULL);
}
