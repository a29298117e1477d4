/* Tables, JSON, YAML, numbers: exact text. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/output.h"
#include "tests/unit/ctl/capture.h"

static const struct ctl_column columns[] = {
    {.head = "NAME"}, {.head = "N", .right = true}, {.head = "MORE", .wide = true}};

static void columns_align_and_wide_ones_hide(void **state)
{
    (void)state;
    struct ctl_table *t = NULL;
    assert_int_equal(ctl_table_create(columns, 3, &t), TD_OK);
    ctl_table_cell(t, "a");
    ctl_table_cell(t, "%d", 5);
    ctl_table_cell(t, "x");
    ctl_table_cell(t, "longer");
    ctl_table_cell(t, "%d", 1234);
    ctl_table_cell(t, "yy");
    CAPTURE(narrow, out, assert_int_equal(ctl_table_print(t, false, out), TD_OK));
    CAPTURE(wide, out, assert_int_equal(ctl_table_print(t, true, out), TD_OK));
    assert_string_equal(narrow, "NAME       N\n"
                                "a          5\n"
                                "longer  1234\n");
    assert_string_equal(wide, "NAME       N  MORE\n"
                              "a          5  x\n"
                              "longer  1234  yy\n");
    free(narrow);
    free(wide);
    ctl_table_destroy(t);
}

static void cells_cannot_steer_a_terminal(void **state)
{
    (void)state;
    static const struct ctl_column one[] = {{.head = "C"}};
    struct ctl_table *t = NULL;
    assert_int_equal(ctl_table_create(one, 1, &t), TD_OK);
    ctl_table_cell(t, "%s", "\x1b[31m\n\x7f\xc2\x9b\xff");
    ctl_table_cell(t, "%s", "gr\xc3\xbc\xc3\x9f");
    CAPTURE(text, out, assert_int_equal(ctl_table_print(t, false, out), TD_OK));
    assert_string_equal(text, "C\n?[31m?????\ngr\xc3\xbc\xc3\x9f\n");
    free(text);
    ctl_table_destroy(t);
}

static void a_long_cell_is_cut_between_characters(void **state)
{
    (void)state;
    static const struct ctl_column one[] = {{.head = "C"}};
    for (int lead = 0; lead < 4; lead++) {
        struct ctl_table *t = NULL;
        char in[4 * CTL_CELL + 8] = "";
        assert_int_equal(ctl_table_create(one, 1, &t), TD_OK);
        memset(in, 'a', (size_t)lead);
        for (int i = 0; i < CTL_CELL; i++) {
            strcat(in, "\xe2\x82\xac"); /* three bytes each */
        }
        ctl_table_cell(t, "%s", in);
        CAPTURE(text, out, assert_int_equal(ctl_table_print(t, false, out), TD_OK));
        size_t n = strlen(text);
        assert_true(n < CTL_CELL + 3);
        assert_string_equal(text + n - 3, "..\n");
        assert_true(strchr(text, '?') == NULL);
        json_t *whole = json_string(text); /* refuses what is not UTF-8 */
        assert_non_null(whole);
        json_decref(whole);
        free(text);
        ctl_table_destroy(t);
    }
}

static void a_table_ends_at_its_bound_and_says_so(void **state)
{
    (void)state;
    static const struct ctl_column one[] = {{.head = "C"}};
    struct ctl_table *t = NULL;
    assert_int_equal(ctl_table_create(one, 1, &t), TD_OK);
    for (int i = 0; i < CTL_TABLE_ROWS; i++) {
        ctl_table_cell(t, "%d", i);
    }
    CAPTURE(full, out, assert_int_equal(ctl_table_print(t, false, out), TD_OK));
    ctl_table_cell(t, "x");
    CAPTURE(more, out, assert_int_equal(ctl_table_print(t, false, out), TD_ERR_FULL));
    assert_string_equal(more, "");
    free(full);
    free(more);
    ctl_table_destroy(t);
}

static void a_table_without_memory_is_an_error(void **state)
{
    (void)state;
    struct ctl_table *t = NULL;
    td_mem_fail_nth(1);
    assert_int_equal(ctl_table_create(columns, 3, &t), TD_ERR_NO_MEMORY);
    assert_int_equal(ctl_table_create(columns, 3, &t), TD_OK);
    td_mem_fail_nth(1);
    ctl_table_cell(t, "a");
    td_mem_fail_nth(0);
    ctl_table_cell(t, "b");
    CAPTURE(text, out, assert_int_equal(ctl_table_print(t, false, out), TD_ERR_NO_MEMORY));
    free(text);
    ctl_table_destroy(t);
    assert_null(ctl_table_destroy(NULL));
}

static char *yaml_of(const char *json)
{
    json_t *v = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    CAPTURE(text, out, assert_int_equal(ctl_yaml_print(v, out), TD_OK));
    json_decref(v);
    return text;
}

static void yaml_keeps_structure_and_order(void **state)
{
    (void)state;
    char *text = yaml_of("{\"b\":1,\"a\":[{\"x\":true,\"y\":{\"z\":null}},[1,[2]],[],{}],\"e\":{},"
                         "\"r\":0.5}");
    assert_string_equal(text, "b: 1\n"
                              "a:\n"
                              "- x: true\n"
                              "  \"y\":\n"
                              "    z: null\n"
                              "- - 1\n"
                              "  - - 2\n"
                              "- []\n"
                              "- {}\n"
                              "e: {}\n"
                              "r: 0.5\n");
    free(text);
    text = yaml_of("[]");
    assert_string_equal(text, "[]\n");
    free(text);
}

static void yaml_strings_stay_strings(void **state)
{
    (void)state;
    char *text = yaml_of("{\"epoch\":\"1e5\",\"no\":\"no\",\"A b\":\"q\\\"\\\\\",\"c\":\"\\n\\u001b"
                         "\\u007f\\u0085\\u2028\\ufeff\\u00fc\"}");
    assert_string_equal(text, "epoch: \"1e5\"\n"
                              "\"no\": \"no\"\n"
                              "\"A b\": \"q\\\"\\\\\"\n"
                              "c: \"\\x0a\\x1b\\x7f\\x85\\L\\uFEFF\xc3\xbc\"\n");
    free(text);
}

static void json_is_indented_and_plain_ascii(void **state)
{
    (void)state;
    json_t *v = json_loads("{\"b\":\"\\u00fc\\u009b\",\"a\":1}", 0, NULL);
    CAPTURE(text, out, assert_int_equal(ctl_json_print(v, out), TD_OK));
    assert_string_equal(text, "{\n  \"b\": \"\\u00FC\\u009B\",\n  \"a\": 1\n}\n");
    free(text);
    json_decref(v);
}

static void times_get_a_fitting_unit(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } rows[] = {{-1, "-"},
                {0, "0 us"},
                {999, "999 us"},
                {1000, "1.0 ms"},
                {12345, "12.3 ms"},
                {99949, "99.9 ms"},
                {123456, "123 ms"},
                {1234567, "1.23 s"},
                {600000000, "10.0 min"},
                {INT64_MAX, "153722867280.9 min"}};
    char buf[32];
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_string_equal(ctl_format_us(rows[i].us, buf, sizeof buf), rows[i].text);
    }
}

static void sizes_get_a_fitting_unit(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(ctl_format_bytes(0, buf, sizeof buf), "0 B");
    assert_string_equal(ctl_format_bytes(1023, buf, sizeof buf), "1023 B");
    assert_string_equal(ctl_format_bytes(98304, buf, sizeof buf), "96.00 KiB");
    assert_string_equal(ctl_format_bytes(1572864, buf, sizeof buf), "1.50 MiB");
    assert_string_equal(ctl_format_bytes(UINT64_MAX, buf, sizeof buf), "16777216.00 TiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_align_and_wide_ones_hide),
        cmocka_unit_test(cells_cannot_steer_a_terminal),
        cmocka_unit_test(a_long_cell_is_cut_between_characters),
        cmocka_unit_test(a_table_ends_at_its_bound_and_says_so),
        cmocka_unit_test(a_table_without_memory_is_an_error),
        cmocka_unit_test(yaml_keeps_structure_and_order),
        cmocka_unit_test(yaml_strings_stay_strings),
        cmocka_unit_test(json_is_indented_and_plain_ascii),
        cmocka_unit_test(times_get_a_fitting_unit),
        cmocka_unit_test(sizes_get_a_fitting_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
