#include "common/base/buf.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

static void check_text(const struct td_buf *b, const char *want)
{
    assert_int_equal(b->len, strlen(want));
    assert_memory_equal(b->data, want, b->len);
}

static void appended_parts_stand_in_order(void **state)
{
    struct td_buf b;
    (void)state;
    td_buf_init(&b, 1000);
    assert_int_equal(td_buf_append(&b, NULL, 0), TD_OK);
    assert_int_equal(td_buf_puts(&b, "one "), TD_OK);
    assert_int_equal(td_buf_append(&b, "two ", 4), TD_OK);
    assert_int_equal(td_buf_printf(&b, "%d%s", 3, ""), TD_OK);
    check_text(&b, "one two 3");
    td_buf_consume(&b, 4);
    check_text(&b, "two 3");
    td_buf_consume(&b, 5);
    assert_int_equal(b.len, 0);
    td_buf_fini(&b);
    assert_null(b.data);
}

static void the_maximum_is_met_and_keeps_the_contents(void **state)
{
    struct td_buf b;
    (void)state;
    td_buf_init(&b, 10);
    assert_int_equal(td_buf_printf(&b, "%s", "0123456789"), TD_OK); /* exactly full */
    assert_int_equal(td_buf_append(&b, "x", 1), TD_ERR_FULL);
    assert_int_equal(td_buf_printf(&b, "x"), TD_ERR_FULL);
    assert_int_equal(td_buf_append(&b, "x", SIZE_MAX), TD_ERR_FULL);
    check_text(&b, "0123456789");
    td_buf_consume(&b, 3);
    assert_int_equal(td_buf_puts(&b, "abc"), TD_OK);
    check_text(&b, "3456789abc");
    td_buf_fini(&b);
}

static void reserved_room_is_written_by_the_caller(void **state)
{
    struct td_buf b;
    uint8_t *p;
    (void)state;
    td_buf_init(&b, 100000);
    assert_int_equal(td_buf_puts(&b, "head"), TD_OK);
    assert_int_equal(td_buf_reserve(&b, 5000, &p), TD_OK);
    memset(p, 'r', 5000);
    b.len += 5000;
    assert_memory_equal(b.data, "headr", 5);
    assert_int_equal(b.data[5003], 'r');
    td_buf_clear(&b);
    assert_int_equal(b.len, 0);
    assert_true(b.cap >= 5004);
    td_buf_fini(&b);
}

static void growth_in_small_steps_keeps_every_byte(void **state)
{
    struct td_buf b;
    struct td_rng r = {5};
    (void)state;
    td_buf_init(&b, (size_t)1 << 20);
    for (int i = 0; i < 50000; i++) {
        uint8_t byte = (uint8_t)td_rng_next(&r);
        assert_int_equal(td_buf_append(&b, &byte, 1), TD_OK);
    }
    r.state = 5;
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(b.data[i], (uint8_t)td_rng_next(&r));
    }
    td_buf_fini(&b);
}

static void json_strings_are_escaped(void **state)
{
    struct td_buf b;
    (void)state;
    td_buf_init(&b, 1000);
    assert_int_equal(td_buf_json_string(&b, "a\"b\\c\n\r\t\x01\x1f\x7f \xc3\xa9/", 15), TD_OK);
    check_text(&b, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u001f\x7f \xc3\xa9/\"");
    td_buf_fini(&b);
}

/* The oracle is jansson: what we wrote, it reads back. */
static void json_strings_read_back_as_written(void **state)
{
    struct td_rng r = {11};
    (void)state;
    for (int round = 0; round < 300; round++) {
        struct td_buf b;
        char text[64];
        json_t *json;
        size_t len = (size_t)td_rng_below(&r, sizeof text);
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)(1 + td_rng_below(&r, 127));
        }
        td_buf_init(&b, 10000);
        assert_int_equal(td_buf_puts(&b, "["), TD_OK);
        assert_int_equal(td_buf_json_string(&b, text, len), TD_OK);
        assert_int_equal(td_buf_puts(&b, "]"), TD_OK);
        assert_int_equal(td_json_parse((char *)b.data, b.len, &json, NULL, 0), TD_OK);
        const json_t *s = json_array_get(json, 0);
        assert_int_equal(json_string_length(s), len);
        assert_memory_equal(json_string_value(s), text, len);
        json_decref(json);
        td_buf_fini(&b);
    }
}

static void a_json_string_that_does_not_fit_leaves_nothing_behind(void **state)
{
    (void)state;
    for (size_t max = 0; max < 14; max++) {
        struct td_buf b;
        td_buf_init(&b, max);
        td_err e = td_buf_json_string(&b,
                                      "ab\n\x02"
                                      "cd",
                                      6);
        assert_int_equal(e, TD_ERR_FULL);
        assert_int_equal(b.len, 0);
        td_buf_fini(&b);
    }
}

static void every_failing_allocation_keeps_the_contents(void **state)
{
    bool done = false;
    (void)state;
    for (unsigned n = 1; !done; n++) {
        struct td_buf b;
        char text[1000];
        memset(text, 'y', sizeof text);
        td_buf_init(&b, 100000);
        td_mem_fail_nth(n);
        td_err first = td_buf_puts(&b, "first");
        td_err second = td_buf_append(&b, text, sizeof text);
        td_mem_fail_nth(0);
        assert_true(first == TD_OK || first == TD_ERR_NO_MEMORY);
        if (first == TD_OK) {
            assert_memory_equal(b.data, "first", 5);
        }
        done = first == TD_OK && second == TD_OK;
        assert_true(done == (n == 3));
        td_buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appended_parts_stand_in_order),
        cmocka_unit_test(the_maximum_is_met_and_keeps_the_contents),
        cmocka_unit_test(reserved_room_is_written_by_the_caller),
        cmocka_unit_test(growth_in_small_steps_keeps_every_byte),
        cmocka_unit_test(json_strings_are_escaped),
        cmocka_unit_test(json_strings_read_back_as_written),
        cmocka_unit_test(a_json_string_that_does_not_fit_leaves_nothing_behind),
        cmocka_unit_test(every_failing_allocation_keeps_the_contents),
    };
    return cmocka_run_group_tests_name("base/buf", tests, NULL, NULL);
}
