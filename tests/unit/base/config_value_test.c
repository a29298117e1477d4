#include "common/base/config_value.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

struct values {
    bool flag;
    int64_t number;
    double ratio;
    char *text;
    int choice;
    struct td_str_list list;
};

#define OPT(t, member)                                                                             \
    .name = #member, .type = (t), .unit = "", .help = "", .offset = offsetof(struct values, member)
static const struct td_opt flag = {OPT(TD_OPT_BOOL, flag)};
static const struct td_opt number = {OPT(TD_OPT_INT, number), .min = -5, .max = 100};
static const struct td_opt bytes = {.name = "bytes",
                                    .type = TD_OPT_INT,
                                    .unit = "bytes",
                                    .offset = offsetof(struct values, number)};
static const struct td_opt ratio = {OPT(TD_OPT_DOUBLE, ratio), .min = 0, .max = 1};
static const struct td_opt text = {OPT(TD_OPT_STRING, text)};
static const struct td_opt choice = {OPT(TD_OPT_ENUM, choice), .choices = "red|green|blue"};
static const struct td_opt list = {OPT(TD_OPT_LIST, list)};

static struct values v;
static const char *reason;

static int reset(void **state)
{
    (void)state;
    td__opt_clear(&text, &v);
    td__opt_clear(&list, &v);
    memset(&v, 0, sizeof v);
    return 0;
}

static void accept(const struct td_opt *o, const char *value)
{
    assert_int_equal(td__opt_set(o, value, &v, &reason), TD_OK);
}

static void refuse(const struct td_opt *o, const char *value, const char *why)
{
    reason = NULL;
    assert_int_equal(td__opt_set(o, value, &v, &reason), TD_ERR_CONFIG);
    assert_string_equal(reason, why);
}

static void booleans_have_four_spellings(void **state)
{
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        accept(&flag, yes[i]);
        assert_true(v.flag);
        accept(&flag, no[i]);
        assert_false(v.flag);
    }
    refuse(&flag, "", "not true or false");
    refuse(&flag, "TRUE", "not true or false");
}

static void numbers_are_whole_and_in_range(void **state)
{
    (void)state;
    accept(&number, "100");
    accept(&number, "-5");
    refuse(&number, "101", "out of range");
    refuse(&number, "-6", "out of range");
    refuse(&number, "", "not a whole number");
    refuse(&number, "12x", "not a whole number");
    refuse(&number, "1.5", "not a whole number");
    refuse(&number, "1K", "not a whole number");
    refuse(&number, "99999999999999999999", "not a whole number");
    assert_int_equal(v.number, -5);
}

static void byte_counts_take_binary_suffixes(void **state)
{
    (void)state;
    accept(&bytes, "3K");
    assert_int_equal(v.number, 3072);
    accept(&bytes, "2MiB");
    assert_int_equal(v.number, 2 << 20);
    accept(&bytes, "1GB");
    assert_int_equal(v.number, 1 << 30);
    accept(&bytes, "77");
    assert_int_equal(v.number, 77);
    refuse(&bytes, "1X", "not a whole number");
    refuse(&bytes, "9999999999G", "out of range");
}

static void fractions_are_finite_and_in_range(void **state)
{
    (void)state;
    accept(&ratio, "0.25");
    assert_true(v.ratio == 0.25);
    refuse(&ratio, "1.01", "out of range");
    refuse(&ratio, "nan", "not a number");
    refuse(&ratio, "inf", "not a number");
    refuse(&ratio, "0.5x", "not a number");
    refuse(&ratio, "", "not a number");
}

static void choices_are_exact(void **state)
{
    (void)state;
    accept(&choice, "blue");
    assert_int_equal(v.choice, 2);
    accept(&choice, "red");
    assert_int_equal(v.choice, 0);
    refuse(&choice, "re", "not one of the choices");
    refuse(&choice, "red|green", "not one of the choices");
    refuse(&choice, "", "not one of the choices");
}

static void an_empty_text_is_a_text(void **state)
{
    (void)state;
    accept(&text, "first");
    accept(&text, "second");
    assert_string_equal(v.text, "second");
    accept(&text, "");
    assert_string_equal(v.text, "");
}

static void lists_grow_by_comma_lists_up_to_their_maximum(void **state)
{
    (void)state;
    accept(&list, "a,b");
    accept(&list, ",c,");
    assert_int_equal(v.list.count, 3);
    assert_string_equal(v.list.items[2], "c");
    for (int i = 3; i < TD_CONFIG_LIST_MAX; i++) {
        accept(&list, "x");
    }
    refuse(&list, "y", "more than 64 items");
    td__opt_clear(&list, &v);
    assert_int_equal(v.list.count, 0);
}

static void printed_values_read_back(void **state)
{
    char out[400] = "";
    (void)state;
    accept(&text, "a\"b\\c\n");
    accept(&list, "one,two");
    accept(&choice, "green");
    FILE *f = fmemopen(out, sizeof out, "w");
    td__opt_print(&text, &v, f);
    (void)fputc(' ', f);
    td__opt_print(&list, &v, f);
    (void)fputc(' ', f);
    td__opt_print(&choice, &v, f);
    (void)fputc(' ', f);
    td__opt_print(&flag, &v, f);
    (void)fclose(f);
    assert_string_equal(out, "\"a\\\"b\\\\c\\x0a\" [\"one\", \"two\"] green false");
    assert_string_equal(td__opt_kind(&choice), "red|green|blue");
    assert_string_equal(td__opt_kind(&number), "INT");
}

static void the_nearest_name_is_a_hint_not_a_guess(void **state)
{
    static const char *const names[] = {"port", "prefill", "kv-device", "log-level"};
    (void)state;
    assert_string_equal(td__nearest_name("prot", names, 4), "port");
    assert_string_equal(td__nearest_name("kv_device", names, 4), "kv-device");
    assert_string_equal(td__nearest_name("loglevel", names, 4), "log-level");
    assert_null(td__nearest_name("completely-different", names, 4));
    char longest[200];
    memset(longest, 'p', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_null(td__nearest_name(longest, names, 4));
}

static void a_failing_allocation_changes_nothing(void **state)
{
    (void)state;
    accept(&text, "kept");
    td_mem_fail_nth(1);
    assert_int_equal(td__opt_set(&text, "lost", &v, &reason), TD_ERR_NO_MEMORY);
    assert_string_equal(v.text, "kept");
    td_mem_fail_nth(1);
    assert_int_equal(td__opt_set(&list, "a", &v, &reason), TD_ERR_NO_MEMORY);
    assert_int_equal(v.list.count, 0);
    td_mem_fail_nth(0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reset, reset)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(booleans_have_four_spellings),
        TEST(numbers_are_whole_and_in_range),
        TEST(byte_counts_take_binary_suffixes),
        TEST(fractions_are_finite_and_in_range),
        TEST(choices_are_exact),
        TEST(an_empty_text_is_a_text),
        TEST(lists_grow_by_comma_lists_up_to_their_maximum),
        TEST(printed_values_read_back),
        TEST(the_nearest_name_is_a_hint_not_a_guess),
        TEST(a_failing_allocation_changes_nothing),
    };
    return cmocka_run_group_tests_name("base/config_value", tests, NULL, NULL);
}
