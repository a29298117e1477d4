/* The key's file, and what of an answer may reach a terminal. */
#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

#include "ctl/generate.h"

static int silence(void **state)
{
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static enum ctl_exit key_of(const char *text, size_t len, char *out, size_t cap)
{
    char path[] = "/tmp/generate-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, len), len);
    (void)close(fd);
    enum ctl_exit status = ctl_generate_key(path, out, cap);
    (void)unlink(path);
    return status;
}

static void the_first_line_is_the_key(void **state)
{
    (void)state;
    char key[10];
    static const char *const texts[] = {"secret", "secret\n", "secret\r\nmore\n"};
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(key_of(texts[i], strlen(texts[i]), key, sizeof key), CTL_OK);
        assert_string_equal(key, "secret");
    }
    assert_int_equal(key_of("12345678\n", 9, key, sizeof key), CTL_OK);
    assert_int_equal(key_of("123456789\n", 10, key, sizeof key), CTL_USAGE); /* one too many */
    assert_int_equal(key_of("", 0, key, sizeof key), CTL_USAGE);
    assert_int_equal(key_of("\nsecret\n", 8, key, sizeof key), CTL_USAGE);
    assert_int_equal(ctl_generate_key("/no/such/file", key, sizeof key), CTL_USAGE);
}

static void what_steers_a_terminal_does_not_reach_one(void **state)
{
    (void)state;
    static const char text[] = "a\n\tb\x1b[31m\0\x7f\xc2\x9b\xc2\xb5";
    CAPTURE(clean, out, ctl_generate_put(text, sizeof text - 1, true, out));
    assert_string_equal(clean, "a\n\tb?[31m???\xc2\xb5");
    CAPTURE(raw, out, ctl_generate_put(text, sizeof text - 1, false, out));
    assert_memory_equal(raw, text, sizeof text - 1); /* a pipe gets what was said */
    free(clean);
    free(raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_line_is_the_key),
        cmocka_unit_test(what_steers_a_terminal_does_not_reach_one),
    };
    return cmocka_run_group_tests_name("generate", tests, silence, NULL);
}
