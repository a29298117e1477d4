#include "common/base/json.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/utf8.h"
#include "tests/unit/check.h"

static td_err parse(const char *text, char *err, size_t cap)
{
    json_t *json = NULL;
    td_err e = td_json_parse(text, strlen(text), &json, err, cap);
    assert_true((json != NULL) == (e == TD_OK));
    json_decref(json);
    return e;
}

static void a_good_document_is_returned(void **state)
{
    static const char text[] = "{\"a\":[1,2.5,\"x,[{\\\"\"],\"b\":{\"c\":null}}";
    json_t *json;
    (void)state;
    assert_int_equal(td_json_parse(text, sizeof text - 1, &json, NULL, 0), TD_OK);
    assert_int_equal(json_array_size(json_object_get(json, "a")), 3);
    assert_true(json_is_null(json_object_get(json_object_get(json, "b"), "c")));
    json_decref(json);
}

static void malformed_documents_are_refused_with_a_place(void **state)
{
    static const char *const bad[] = {
        "",
        "   ",
        "{",
        "[1,]",
        "{\"a\":1,}",
        "{\"a\" 1}",
        "nul",
        "[1] 2",
        "[01]",
        "{\"a\":1,\"a\":2}",
        "[\"\\u0000\"]",
        "[\"\\ud800\"]",
        "[\"\xff\"]",
        "[1e999]",
        "[99999999999999999999]",
        "42",
        "\"text\"",
        "]",
        "[}",
        "{'a':1}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char err[200] = "";
        assert_int_equal(parse(bad[i], err, sizeof err), TD_ERR_BAD_REQUEST);
        assert_int_equal(strncmp(err, "invalid JSON at line ", 21), 0);
        assert_true(td_utf8_valid(err, strlen(err)));
    }
}

static void the_message_names_line_and_column(void **state)
{
    char err[200];
    (void)state;
    assert_int_equal(parse("{\n  \"a\": oops\n}", err, sizeof err), TD_ERR_BAD_REQUEST);
    assert_non_null(strstr(err, "line 2, column"));
    assert_non_null(strstr(err, "oops"));
}

static void a_small_message_buffer_is_respected(void **state)
{
    char err[12];
    memset(err, 'x', sizeof err);
    (void)state;
    assert_int_equal(parse("[", err, 10), TD_ERR_BAD_REQUEST);
    assert_int_equal(strlen(err), 9);
    assert_int_equal(err[10], 'x');
    assert_int_equal(parse("[", err, 0), TD_ERR_BAD_REQUEST);
    assert_int_equal(parse("[", NULL, 0), TD_ERR_BAD_REQUEST);
}

static td_err nested(size_t depth, const char *open, const char *close, char *err, size_t cap)
{
    struct td_buf b;
    td_buf_init(&b, 100000);
    for (size_t i = 0; i < depth; i++) {
        assert_int_equal(td_buf_puts(&b, open), TD_OK);
    }
    assert_int_equal(td_buf_puts(&b, open[0] == '{' ? "0" : ""), TD_OK);
    for (size_t i = 0; i < depth; i++) {
        assert_int_equal(td_buf_puts(&b, close), TD_OK);
    }
    assert_int_equal(td_buf_append(&b, "", 1), TD_OK);
    td_err e = parse((char *)b.data, err, cap);
    td_buf_fini(&b);
    return e;
}

static void the_depth_limit_is_met_and_not_passed(void **state)
{
    char err[200] = "";
    (void)state;
    assert_int_equal(nested(TD_JSON_MAX_DEPTH, "[", "]", err, sizeof err), TD_OK);
    assert_int_equal(nested(TD_JSON_MAX_DEPTH + 1, "[", "]", err, sizeof err), TD_ERR_BAD_REQUEST);
    assert_non_null(strstr(err, "nested deeper than 64 levels"));
    assert_int_equal(nested(TD_JSON_MAX_DEPTH, "{\"k\":", "}", err, sizeof err), TD_OK);
    assert_int_equal(nested(20000, "[", "", err, sizeof err), TD_ERR_BAD_REQUEST);
}

static td_err array_of(size_t n, char *err, size_t cap)
{
    struct td_buf b;
    td_buf_init(&b, 1000000);
    assert_int_equal(td_buf_puts(&b, "[0"), TD_OK);
    for (size_t i = 1; i < n; i++) {
        assert_int_equal(td_buf_puts(&b, ",0"), TD_OK);
    }
    assert_int_equal(td_buf_append(&b, "]", 2), TD_OK);
    td_err e = parse((char *)b.data, err, cap);
    td_buf_fini(&b);
    return e;
}

static void the_value_limit_is_met_and_not_passed(void **state)
{
    char err[200] = "";
    (void)state;
    assert_int_equal(array_of(TD_JSON_MAX_VALUES - 1, err, sizeof err), TD_OK);
    assert_int_equal(array_of(TD_JSON_MAX_VALUES + 1, err, sizeof err), TD_ERR_BAD_REQUEST);
    assert_non_null(strstr(err, "more than 100000 values"));
}

static void brackets_and_commas_in_strings_do_not_count(void **state)
{
    char text[400];
    (void)state;
    memset(text, '[', sizeof text);
    text[1] = '"';
    text[sizeof text - 5] = '\\';
    text[sizeof text - 4] = '"';
    text[sizeof text - 3] = '"';
    text[sizeof text - 2] = ']';
    text[sizeof text - 1] = '\0';
    assert_int_equal(parse(text, NULL, 0), TD_OK);
}

static unsigned allocations_left;

static void *failing_malloc(size_t bytes)
{
    return allocations_left > 0 && --allocations_left == 0 ? NULL : malloc(bytes);
}

static void out_of_memory_is_not_the_clients_fault(void **state)
{
    bool done = false;
    (void)state;
    json_set_alloc_funcs(failing_malloc, free);
    for (unsigned n = 1; !done; n++) {
        allocations_left = n;
        td_err e = parse("{\"key\":[1,\"text\",{\"deep\":true}]}", NULL, 0);
        done = allocations_left > 0;
        assert_true(done ? e == TD_OK : e != TD_OK);
    }
    allocations_left = 0;
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_document_is_returned),
        cmocka_unit_test(malformed_documents_are_refused_with_a_place),
        cmocka_unit_test(the_message_names_line_and_column),
        cmocka_unit_test(a_small_message_buffer_is_respected),
        cmocka_unit_test(the_depth_limit_is_met_and_not_passed),
        cmocka_unit_test(the_value_limit_is_met_and_not_passed),
        cmocka_unit_test(brackets_and_commas_in_strings_do_not_count),
        cmocka_unit_test(out_of_memory_is_not_the_clients_fault),
    };
    return cmocka_run_group_tests_name("base/json", tests, NULL, NULL);
}
