#include "common/io/link_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static td_err load(const char *text, struct td_link_key keys[TD_LINK_MAX_KEYS], uint32_t *n)
{
    char path[] = "/tmp/td-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
    td_err e = td_link_keys_load(path, keys, n);
    (void)unlink(path);
    return e;
}

static void keys_are_read_in_their_order(void **state)
{
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n = 0;
    (void)state;
    assert_int_equal(
        load("# the cluster's secrets\n\nnew 0123456789abcdef0\n  old\tfedcba9876543210\n", keys,
             &n),
        TD_OK);
    assert_int_equal(n, 2);
    assert_string_equal(keys[0].id, "new");
    assert_int_equal(keys[0].secret_len, 17);
    assert_memory_equal(keys[0].secret, "0123456789abcdef0", 17);
    assert_string_equal(keys[1].id, "old");
}

static void a_wrong_file_is_refused(void **state)
{
    static const char *const wrong[] = {
        "",
        "# nothing\n",
        "k1\n",
        "k1 tooshort\n",
        "k1 0123456789abcdef more\n",
        "a-key-id-that-is-longer-than-its-field 0123456789abcdef\n",
        "k1 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0\n",
    };
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n = 77;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(load(wrong[i], keys, &n), TD_ERR_CONFIG);
    }
    assert_int_equal(n, 77);
    assert_int_equal(td_link_keys_load("/nonexistent/keys", keys, &n), TD_ERR_NO_FILE);
}

static void one_key_more_than_fits_is_refused(void **state)
{
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    char text[TD_LINK_MAX_KEYS * 32 + 64] = "";
    uint32_t n = 0;
    (void)state;
    for (unsigned i = 0; i < TD_LINK_MAX_KEYS; i++) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "k%u 0123456789abcdef\n",
                       i);
    }
    assert_int_equal(load(text, keys, &n), TD_OK);
    assert_int_equal(n, TD_LINK_MAX_KEYS);
    (void)snprintf(text + strlen(text), sizeof text - strlen(text), "more 0123456789abcdef\n");
    assert_int_equal(load(text, keys, &n), TD_ERR_CONFIG);
}

static void random_keys_differ_and_can_be_used(void **state)
{
    struct td_link_key a, b;
    (void)state;
    td_link_keys_random(&a);
    td_link_keys_random(&b);
    assert_in_range(a.secret_len, TD_LINK_SECRET_MIN, TD_LINK_SECRET_MAX);
    assert_memory_not_equal(a.secret, b.secret, a.secret_len);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_read_in_their_order),
        cmocka_unit_test(a_wrong_file_is_refused),
        cmocka_unit_test(one_key_more_than_fits_is_refused),
        cmocka_unit_test(random_keys_differ_and_can_be_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
