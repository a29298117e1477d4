#include "common/io/link_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

static struct td_link_key keys[TD_LINK_MAX_KEYS];
static uint32_t n;

static td_err load(const char *text, char *log, size_t cap)
{
    char path[] = "/tmp/link-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    (void)close(fd);
    FILE *f = tmpfile();
    assert_non_null(f);
    td_log_set_fd(fileno(f));
    memset(keys, 0, sizeof keys);
    n = 77;
    td_err err = td_link_keys_load(path, keys, &n);
    td_log_set_fd(2);
    rewind(f);
    log[fread(log, 1, cap - 1, f)] = 0;
    (void)fclose(f);
    (void)unlink(path);
    return err;
}

#define SECRET "0123456789abcdef"

static void keys_come_in_the_order_of_the_file(void **state)
{
    (void)state;
    char log[4096];
    assert_int_equal(load("# head\n\n  new " SECRET "1\r\nold\t" SECRET, log, sizeof log), TD_OK);
    assert_int_equal(n, 2);
    assert_string_equal(keys[0].id, "new");
    assert_int_equal(keys[0].secret_len, 17);
    assert_memory_equal(keys[0].secret, SECRET "1", 17);
    assert_string_equal(keys[1].id, "old");
    assert_int_equal(keys[1].secret_len, 16);
}

static void a_wrong_file_is_refused_with_its_line_and_without_the_secret(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "#\nk\n",
        "#\nk " SECRET " more\n",
        "#\nk short-secret\n",
        "#\nk " SECRET SECRET SECRET SECRET "x\n",
        "#\na-key-id-that-is-longer-than-its-field " SECRET "\n",
    };
    char log[4096];
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(load(rows[i], log, sizeof log), TD_ERR_CONFIG);
        assert_int_equal(n, 77); /* untouched */
        assert_non_null(strstr(log, "line=2"));
        assert_null(strstr(log, SECRET));
        assert_null(strstr(log, "short-secret"));
    }
    assert_int_equal(load("# nothing\n\n", log, sizeof log), TD_ERR_CONFIG);
    assert_non_null(strstr(log, "no key"));
}

static void a_long_comment_is_one_line(void **state)
{
    (void)state;
    char log[4096], text[2048];
    (void)snprintf(text, sizeof text, "# %0300d stray " SECRET "\nk " SECRET "\n", 0);
    assert_int_equal(load(text, log, sizeof log), TD_OK);
    assert_int_equal(n, 1);
    assert_string_equal(keys[0].id, "k");
    (void)snprintf(text, sizeof text, "k " SECRET "%300s\nlast " SECRET "\n", "");
    assert_int_equal(load(text, log, sizeof log), TD_ERR_CONFIG);
    assert_non_null(strstr(log, "line=1"));
}

static void at_most_the_maximum_of_keys(void **state)
{
    (void)state;
    char log[4096], text[2048] = "";
    for (int i = 0; i < TD_LINK_MAX_KEYS; i++) {
        (void)snprintf(text + strlen(text), sizeof text - strlen(text), "k%d " SECRET "\n", i);
    }
    assert_int_equal(load(text, log, sizeof log), TD_OK);
    assert_int_equal(n, TD_LINK_MAX_KEYS);
    (void)strcat(text, "one-more " SECRET "\n");
    assert_int_equal(load(text, log, sizeof log), TD_ERR_CONFIG);
}

static void a_missing_file_is_no_file(void **state)
{
    (void)state;
    td_log_set_fd(-1);
    assert_int_equal(td_link_keys_load("/nonexistent", keys, &n), TD_ERR_NO_FILE);
    td_log_set_fd(2);
}

static void random_keys_differ(void **state)
{
    (void)state;
    struct td_link_key a, b;
    td_link_keys_random(&a);
    td_link_keys_random(&b);
    assert_string_equal(a.id, "local");
    assert_int_equal(a.secret_len, 32);
    assert_memory_not_equal(a.secret, b.secret, 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_come_in_the_order_of_the_file),
        cmocka_unit_test(a_wrong_file_is_refused_with_its_line_and_without_the_secret),
        cmocka_unit_test(a_long_comment_is_one_line),
        cmocka_unit_test(at_most_the_maximum_of_keys),
        cmocka_unit_test(a_missing_file_is_no_file),
        cmocka_unit_test(random_keys_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
