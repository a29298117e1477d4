#include "common/io/api_keys.h"

/* 64 digits, the last of them none. */
#define ALMOST_HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeg"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/sha.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

#define SECOND 1000000

static struct td_api_keys *keys;

static const char *hex_of(const char *secret)
{
    static char hex[65];
    uint8_t hash[32];
    (void)SHA256((const uint8_t *)secret, strlen(secret), hash);
    for (int i = 0; i < 32; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    }
    return hex;
}

static struct td_api_key *one_key(const char *limits)
{
    char line[256];
    struct td_api_key *key = NULL;
    (void)snprintf(line, sizeof line, "k1 %s acme %s\n", hex_of("s3cret"), limits);
    assert_int_equal(td_api_keys_parse(line, strlen(line), &keys), TD_OK);
    assert_int_equal(td_api_keys_check(keys, "Bearer s3cret", &key), TD_OK);
    return key;
}

static int quiet(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    td_log_set_fd(2);
    keys = td_api_keys_destroy(keys);
    return 0;
}

static void without_a_file_everyone_is_the_default_tenant(void **state)
{
    (void)state;
    struct td_api_key *key = NULL;
    double retry = 0;
    assert_int_equal(td_api_keys_load("", &keys), TD_OK);
    assert_true(td_api_keys_open(keys));
    assert_int_equal(td_api_keys_check(keys, NULL, &key), TD_OK);
    assert_string_equal(key->tenant, "default");
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(td_api_key_admit(key, 5, &retry), TD_OK);
    }
}

static void a_file_has_one_key_a_line_comments_and_blank_lines(void **state)
{
    (void)state;
    char text[1024], a[65];
    struct td_api_key *key = NULL;
    (void)snprintf(a, sizeof a, "%s", hex_of("one"));
    (void)snprintf(text, sizeof text,
                   "# head\n\n  k1 %s acme -5 2.5 3 1000 # tail\r\n\tk2\t%s\tother 10 0 0 0", a,
                   hex_of("two"));
    assert_int_equal(td_api_keys_parse(text, strlen(text), &keys), TD_OK);
    assert_false(td_api_keys_open(keys));
    assert_int_equal(td_api_keys_check(keys, "Bearer one", &key), TD_OK);
    assert_string_equal(key->id, "k1");
    assert_string_equal(key->tenant, "acme");
    assert_int_equal(key->priority_ceiling, -5);
    assert_int_equal(key->max_concurrent, 3);
    assert_true(key->requests_per_s == 2.5 && key->tokens_per_min == 1000);
    assert_int_equal(td_api_keys_check(keys, "bearer two", &key), TD_OK);
    assert_string_equal(key->tenant, "other");
}

static void wrong_or_missing_keys_are_unauthorized(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        NULL, "", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3cret ", "Basic s3cret", "s3cret"};
    struct td_api_key *key = NULL;
    (void)one_key("0 0 0 0");
    for (size_t i = 0; i < TD_COUNT(wrong); i++) {
        assert_int_equal(td_api_keys_check(keys, wrong[i], &key), TD_ERR_UNAUTHORIZED);
        assert_null(key);
    }
    td_api_keys_destroy(keys);
    assert_int_equal(td_api_keys_parse("", 0, &keys), TD_OK); /* a file without keys: nobody */
    assert_int_equal(td_api_keys_check(keys, "Bearer s3cret", &key), TD_ERR_UNAUTHORIZED);
}

static void a_wrong_line_is_refused_with_its_number(void **state)
{
    (void)state;
    static const char *const tails[] = {
        "",
        "acme",
        "acme 0 0 0",
        "acme 0 0 0 0 0",
        "acme x 0 0 0",
        "acme 1001 0 0 0",
        "acme 0.5 0 0 0",
        "acme 0 -1 0 0",
        "acme 0 nan 0 0",
        "acme 0 0 1e9 0",
        "acme 0 0 0.5 0",
        "acme 0 0 0 1e13",
        "acme 0 0 0 1x",
        "a-tenant-name-of-more-than-sixty-three-bytes-which-does-not-fit-in-its-field 0 0 0 0",
    };
    for (size_t i = 0; i < TD_COUNT(tails); i++) {
        char text[512], log[2048];
        (void)snprintf(text, sizeof text, "# comment\n\nk1 %s %s\n", hex_of("a"), tails[i]);
        FILE *f = tmpfile();
        assert_non_null(f);
        td_log_set_fd(fileno(f));
        td_err err = td_api_keys_parse(text, strlen(text), &keys);
        td_log_set_fd(2);
        rewind(f);
        log[fread(log, 1, sizeof log - 1, f)] = 0;
        (void)fclose(f);
        if (err != TD_ERR_CONFIG || strstr(log, "line=3") == NULL) {
            fail_msg("'%s': %s, log: %s", tails[i], td_err_code(err), log);
        }
        assert_null(strstr(log, hex_of("a")));
    }
    static const char *const hashes[] = {"abc", "zz", ALMOST_HEX};
    td_log_set_fd(-1);
    for (size_t i = 0; i < TD_COUNT(hashes); i++) {
        char text[256];
        (void)snprintf(text, sizeof text, "k1 %s acme 0 0 0 0", hashes[i]);
        assert_int_equal(td_api_keys_parse(text, strlen(text), &keys), TD_ERR_CONFIG);
    }
}

static void exactly_the_maximum_of_keys_fits(void **state)
{
    (void)state;
    size_t cap = (TD_API_KEYS_MAX + 1) * 128, n = 0;
    char *text = calloc(1, cap);
    assert_non_null(text);
    for (int i = 0; i < TD_API_KEYS_MAX; i++) {
        n += (size_t)snprintf(text + n, cap - n, "k%d %064x t 0 0 0 0\n", i, (unsigned)i);
    }
    (void)snprintf(text + n, cap - n, "# the end\n");
    assert_int_equal(td_api_keys_parse(text, strlen(text), &keys), TD_OK);
    keys = td_api_keys_destroy(keys);
    td_log_set_fd(-1);
    (void)snprintf(text + n, cap - n, "more %064x t 0 0 0 0\n", TD_API_KEYS_MAX);
    assert_int_equal(td_api_keys_parse(text, strlen(text), &keys), TD_ERR_CONFIG);
    free(text);
}

static void requests_per_second_fill_a_bucket(void **state)
{
    (void)state;
    struct td_api_key *key = one_key("0 2 0 0");
    int64_t now = 100 * SECOND;
    double retry = 0;
    assert_int_equal(td_api_key_admit(key, now, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, now, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, now, &retry), TD_ERR_RATE_LIMITED);
    assert_true(retry > 0.49 && retry < 0.51);
    assert_int_equal(td_api_key_admit(key, now + SECOND / 2, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, now + SECOND / 2, &retry), TD_ERR_RATE_LIMITED);
    for (int i = 0; i < 2; i++) { /* a long rest gives one second's worth, not more */
        assert_int_equal(td_api_key_admit(key, now + 1000 * SECOND, &retry), TD_OK);
    }
    assert_int_equal(td_api_key_admit(key, now + 1000 * SECOND, &retry), TD_ERR_RATE_LIMITED);
}

static void less_than_one_request_per_second_still_admits_the_first(void **state)
{
    (void)state;
    struct td_api_key *key = one_key("0 0.5 0 0");
    double retry = 0;
    assert_int_equal(td_api_key_admit(key, 7, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, 7 + SECOND, &retry), TD_ERR_RATE_LIMITED);
    assert_true(retry > 0.9 && retry < 1.1);
    assert_int_equal(td_api_key_admit(key, 8 + 2 * SECOND, &retry), TD_OK);
}

static void concurrent_requests_are_counted_and_given_back(void **state)
{
    (void)state;
    struct td_api_key *key = one_key("0 0 2 0");
    double retry = 0;
    assert_int_equal(td_api_key_admit(key, 1, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, 1, &retry), TD_OK);
    assert_int_equal(td_api_key_admit(key, 1, &retry), TD_ERR_RATE_LIMITED);
    td_api_key_done(key, 0);
    assert_int_equal(td_api_key_admit(key, 1, &retry), TD_OK);
    for (int i = 0; i < 5; i++) {
        td_api_key_done(key, 0); /* too often: stays at zero */
    }
    assert_int_equal(key->concurrent, 0);
}

static void tokens_per_minute_are_paid_after_the_fact(void **state)
{
    (void)state;
    struct td_api_key *key = one_key("0 0 0 60");
    int64_t now = SECOND;
    double retry = 0;
    assert_int_equal(td_api_key_admit(key, now, &retry), TD_OK);
    td_api_key_done(key, 70);
    struct td_api_key_limit limits[TD_API_KEY_LIMITS];
    assert_int_equal(td_api_key_limits(key, limits), 1);
    assert_string_equal(limits[0].what, "tokens");
    assert_true(limits[0].remaining >= 0 && limits[0].limit == key->tokens_per_min);
    assert_true(limits[0].reset_s > 59 && limits[0].reset_s < 61);
    assert_int_equal(td_api_key_admit(key, now, &retry), TD_ERR_RATE_LIMITED);
    assert_true(retry > 10 && retry < 12);
    assert_int_equal(td_api_key_admit(key, now + 12 * SECOND, &retry), TD_OK);
}

static void a_file_is_read_and_a_missing_one_refused(void **state)
{
    (void)state;
    char path[] = "/tmp/rt-keys-XXXXXX";
    struct td_api_key *key = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "k %s t 0 0 0 0\n", hex_of("x")) > 0);
    (void)close(fd);
    assert_int_equal(td_api_keys_load(path, &keys), TD_OK);
    assert_int_equal(td_api_keys_check(keys, "Bearer x", &key), TD_OK);
    (void)unlink(path);
    struct td_api_keys *none = NULL;
    td_log_set_fd(-1);
    assert_int_equal(td_api_keys_load(path, &none), TD_ERR_NO_FILE);
    assert_null(none);
}

static void out_of_memory_is_an_error_without_a_leak(void **state)
{
    (void)state;
    char line[256];
    (void)snprintf(line, sizeof line, "k %s t 0 0 0 0", hex_of("x"));
    td_err err = TD_ERR_NO_MEMORY;
    for (unsigned n = 1; err != TD_OK && n < 10; n++) {
        td_mem_fail_nth(n);
        err = td_api_keys_parse(line, strlen(line), &keys);
        td_mem_fail_nth(0);
    }
    assert_int_equal(err, TD_OK);
    struct td_api_keys *open = NULL;
    td_mem_fail_nth(1);
    assert_int_equal(td_api_keys_load(NULL, &open), TD_ERR_NO_MEMORY);
    td_mem_fail_nth(0);
}

#define TEST(f) cmocka_unit_test_teardown(f, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(without_a_file_everyone_is_the_default_tenant),
        TEST(a_file_has_one_key_a_line_comments_and_blank_lines),
        TEST(wrong_or_missing_keys_are_unauthorized),
        TEST(a_wrong_line_is_refused_with_its_number),
        TEST(exactly_the_maximum_of_keys_fits),
        TEST(requests_per_second_fill_a_bucket),
        TEST(less_than_one_request_per_second_still_admits_the_first),
        TEST(concurrent_requests_are_counted_and_given_back),
        TEST(tokens_per_minute_are_paid_after_the_fact),
        TEST(a_file_is_read_and_a_missing_one_refused),
        TEST(out_of_memory_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
