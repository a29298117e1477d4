#include "common/io/link_dns.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"

#define GIVE_UP_US 60000000

struct seen {
    unsigned calls, failures, n;
    bool loopback;
};

static void note(void *arg, unsigned name, char addrs[][TD_DNS_ADDR], unsigned n, td_err err)
{
    struct seen *s = (struct seen *)arg + name;
    s->calls++;
    s->failures += err != TD_OK;
    s->n = n;
    for (unsigned i = 0; i < n; i++) {
        s->loopback = s->loopback || strcmp(addrs[i], "127.0.0.1") == 0;
        for (unsigned k = 0; k < i; k++) {
            assert_string_not_equal(addrs[i], addrs[k]);
        }
    }
}

static void a_name_is_looked_up_again_and_again(void **state)
{
    struct seen seen[2] = {{0}};
    struct td_loop *loop = NULL;
    struct td_dns *d = NULL;
    unsigned good, bad;
    int64_t give_up = td_now_us() + GIVE_UP_US;
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(td_dns_create(loop, 1000, note, seen, &d), TD_OK);
    assert_int_equal(td_dns_add(d, "localhost", &good), TD_OK);
    /* Not a legal host name, so no server is asked. */
    assert_int_equal(td_dns_add(d, "not..a..name", &bad), TD_OK);
    while ((seen[good].calls < 3 || seen[bad].calls < 1) && td_now_us() < give_up) {
        td_loop_run_once(loop, 20000);
    }
    assert_true(seen[good].calls >= 3);
    assert_true(seen[good].loopback);
    assert_int_equal(seen[good].failures, 0);
    assert_int_equal(seen[bad].failures, seen[bad].calls);
    d = td_dns_destroy(d);
    loop = td_loop_destroy(loop);
}

static void names_beyond_the_bounds_are_refused(void **state)
{
    struct seen seen[TD_DNS_MAX_NAMES] = {{0}};
    struct td_loop *loop = NULL;
    struct td_dns *d = NULL;
    char long_name[TD_DNS_HOST + 1];
    unsigned name;
    (void)state;
    memset(long_name, 'a', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(td_dns_create(loop, 1000000, note, seen, &d), TD_OK);
    assert_int_equal(td_dns_add(d, long_name, &name), TD_ERR_ADDRESS);
    for (unsigned i = 0; i < TD_DNS_MAX_NAMES; i++) {
        assert_int_equal(td_dns_add(d, "localhost", &name), TD_OK);
        assert_int_equal(name, i);
    }
    assert_int_equal(td_dns_add(d, "localhost", &name), TD_ERR_FULL);
    d = td_dns_destroy(d); /* a look-up is probably under way */
    loop = td_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_is_looked_up_again_and_again),
        cmocka_unit_test(names_beyond_the_bounds_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
