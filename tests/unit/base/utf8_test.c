#include "common/base/utf8.h"

#include <string.h>

#include "tests/unit/check.h"

static void well_formed_characters_have_their_length(void **state)
{
    (void)state;
    assert_int_equal(td_utf8_char_len("a", 1), 1);
    assert_int_equal(td_utf8_char_len("\0", 1), 1);
    assert_int_equal(td_utf8_char_len("\xc3\xa9", 2), 2);
    assert_int_equal(td_utf8_char_len("\xe2\x82\xac", 3), 3);
    assert_int_equal(td_utf8_char_len("\xf0\x9f\x98\x80", 4), 4);
    assert_int_equal(td_utf8_char_len("\xf4\x8f\xbf\xbf", 4), 4);
    assert_true(td_utf8_valid("gr\xc3\xbc\xc3\x9f \xf0\x9f\x98\x80", 11));
    assert_true(td_utf8_valid("", 0));
}

static void malformed_characters_are_refused(void **state)
{
    static const char *const bad[] = {
        "\x80",             /* continuation alone */
        "\xc0\xaf",         /* overlong slash */
        "\xe0\x80\xaf",     /* overlong slash */
        "\xf0\x80\x80\xaf", /* overlong slash */
        "\xed\xa0\x80",     /* surrogate */
        "\xf4\x90\x80\x80", /* above U+10FFFF */
        "\xf5\x80\x80\x80",
        "\xff",
        "\xc3(",
        "\xe2\x82(",
        "\xf0\x9f\x98(",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(td_utf8_char_len(bad[i], strlen(bad[i])), 0);
        assert_false(td_utf8_valid(bad[i], strlen(bad[i])));
    }
}

static void a_character_cut_off_by_the_end_is_refused(void **state)
{
    static const char text[] = "\xf0\x9f\x98\x80";
    (void)state;
    for (size_t len = 1; len < 4; len++) {
        assert_int_equal(td_utf8_char_len(text, len), 0);
    }
}

/* Counts what two independent views of the standard agree on: 2048 - 128 two-byte characters, and
 * so on. */
static void exactly_the_code_points_of_the_standard_pass(void **state)
{
    size_t count[5] = {0};
    (void)state;
    for (uint32_t first = 0; first < 256; first++) {
        for (uint32_t second = 0; second < 256; second++) {
            char s[4] = {(char)first, (char)second, (char)0x80, (char)0x80};
            count[td_utf8_char_len(s, 4)]++;
        }
    }
    assert_int_equal(count[1], 128 * 256);
    assert_int_equal(count[2], 30 * 64);
    assert_int_equal(count[3], (0x10000 - 0x800 - 0x800) / 64);
    assert_int_equal(count[4], (0x110000 - 0x10000) / 64 / 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(well_formed_characters_have_their_length),
        cmocka_unit_test(malformed_characters_are_refused),
        cmocka_unit_test(a_character_cut_off_by_the_end_is_refused),
        cmocka_unit_test(exactly_the_code_points_of_the_standard_pass),
    };
    return cmocka_run_group_tests_name("base/utf8", tests, NULL, NULL);
}
