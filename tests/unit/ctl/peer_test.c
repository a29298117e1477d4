/* What a given address and the TLS options come to. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/peer.h"

static int silence(void **state)
{
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static char *fixed(const char *text)
{
    return (char *)(uintptr_t)text;
}

static void the_scheme_decides_and_without_one_the_options(void **state)
{
    (void)state;
    static const struct {
        const char *given, *server_name, *url, *address;
        bool tls, path;
    } rows[] = {
        {"127.0.0.1:8001", "", "http://127.0.0.1:8001", "127.0.0.1:8001", false, false},
        {"127.0.0.1:8001", NULL, "http://127.0.0.1:8001", "127.0.0.1:8001", false, false},
        {"127.0.0.1:8001", "node", "https://127.0.0.1:8001", "127.0.0.1:8001", true, false},
        {"http://a:1/", "node", "http://a:1", "a:1", false, false},
        {"https://a", "", "https://a", "a:443", true, false},
        {"http://a//", "", "http://a", "a:80", false, false},
        {"https://[::1]:5", "", "https://[::1]:5", "[::1]:5", true, false},
        {"https://[::1]", "", "https://[::1]", "[::1]:443", true, false},
        {"http://a:1/tandem/", "", "http://a:1/tandem", "a:1", false, true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ctl_tls t = {.server_name = fixed(rows[i].server_name)};
        struct ctl_peer p;
        assert_int_equal(ctl_peer_open("--router", rows[i].given, &t, false, &p), CTL_OK);
        assert_string_equal(p.url, rows[i].url);
        assert_string_equal(p.address, rows[i].address);
        assert_true((p.tls != NULL) == rows[i].tls && p.has_path == rows[i].path);
        ctl_peer_close(&p);
        assert_null(p.tls);
    }
}

static void what_is_no_address_and_files_that_cannot_be_read_are_wrong_usage(void **state)
{
    (void)state;
    char endless[CTL_PEER_MAX + 1];
    memset(endless, 'a', sizeof endless);
    endless[CTL_PEER_MAX] = 0;
    const char *const bad[] = {"",      "/",     "http://", "https:///x", "ftp://a", "a",
                               "[::1]", "a/x:1", "a b:1",   "a:1\n",      endless};
    const struct ctl_tls none = {0};
    struct ctl_peer p;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ctl_peer_open("--router", bad[i], &none, i % 2 == 0, &p), CTL_USAGE);
    }
    const struct ctl_tls missing = {.ca = fixed("/no/such/file")};
    assert_int_equal(ctl_peer_open("--router", "a:1", &missing, false, &p), CTL_USAGE);
    assert_int_equal(ctl_peer_open("--router", "http://a:1", &missing, false, &p), CTL_OK);
    ctl_peer_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scheme_decides_and_without_one_the_options),
        cmocka_unit_test(what_is_no_address_and_files_that_cannot_be_read_are_wrong_usage),
    };
    return cmocka_run_group_tests_name("peer", tests, silence, NULL);
}
