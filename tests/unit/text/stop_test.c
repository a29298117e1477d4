#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/text/stop.h"

static struct td_text_stop *make(const char *const *stops, size_t n, bool include)
{
    struct td_text_str s[TD_TEXT_STOPS_MAX] = {{0}};
    for (size_t i = 0; i < n; i++) {
        s[i] = (struct td_text_str){stops[i], strlen(stops[i])};
    }
    struct td_text_stop *m = NULL;
    assert_int_equal(td_text_stop_create(s, n, include, &m), TD_OK);
    return m;
}

static void push(struct td_text_stop *m, const char *text, struct td_buf *out)
{
    assert_int_equal(td_text_stop_push(m, text, strlen(text), out), TD_OK);
}

static void expect(struct td_buf *b, const char *text)
{
    assert_int_equal(b->len, strlen(text));
    if (b->len > 0) {
        assert_memory_equal(b->data, text, b->len);
    }
    td_buf_clear(b);
}

static void text_that_may_begin_a_stop_string_is_held_back(void **state)
{
    const char *const stops[] = {"END"};
    struct td_text_stop *m = make(stops, 1, false);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "abcE", &b);
    expect(&b, "abc");
    assert_int_equal(td_text_stop_held(m), 1);
    push(m, "N", &b);
    expect(&b, "");
    push(m, "X", &b);
    expect(&b, "ENX");
    push(m, "EN", &b);
    push(m, "D tail", &b);
    expect(&b, "");
    assert_int_equal(td_text_stop_matched(m), 0);
    push(m, "more", &b);
    expect(&b, "");
    assert_int_equal(td_text_stop_flush(m, &b), TD_OK);
    expect(&b, "");
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void the_stop_string_is_part_of_the_output_when_asked_for(void **state)
{
    const char *const stops[] = {"\n\n"};
    struct td_text_stop *m = make(stops, 1, true);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "one\n", &b);
    expect(&b, "one");
    push(m, "\ntwo", &b);
    expect(&b, "\n\n");
    assert_int_equal(td_text_stop_matched(m), 0);
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void the_match_that_completes_first_wins_and_then_the_longest(void **state)
{
    const char *const stops[] = {"d", "bcd", "abcde"};
    struct td_text_stop *m = make(stops, 3, false);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "xabcde", &b);
    expect(&b, "xa");
    assert_int_equal(td_text_stop_matched(m), 1);
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void a_prefix_that_overlaps_itself_is_followed(void **state)
{
    const char *const stops[] = {"aabaa#"};
    struct td_text_stop *m = make(stops, 1, false);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "aabaabaa", &b);
    expect(&b, "aab");
    assert_int_equal(td_text_stop_held(m), 5);
    push(m, "#", &b);
    expect(&b, "");
    assert_int_equal(td_text_stop_matched(m), 0);
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void flush_gives_the_held_text_when_the_stream_ends(void **state)
{
    const char *const stops[] = {"stop", "top of"};
    struct td_text_stop *m = make(stops, 2, false);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "a sto", &b);
    expect(&b, "a ");
    assert_int_equal(td_text_stop_flush(m, &b), TD_OK);
    expect(&b, "sto");
    assert_int_equal(td_text_stop_matched(m), -1);
    assert_int_equal(td_text_stop_held(m), 0);
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void no_stop_strings_pass_everything_at_once(void **state)
{
    struct td_text_stop *m = make(NULL, 0, false);
    struct td_buf b;
    td_buf_init(&b, 1024);
    push(m, "anything", &b);
    expect(&b, "anything");
    assert_int_equal(td_text_stop_flush(m, &b), TD_OK);
    expect(&b, "");
    td_text_stop_destroy(m);
    td_buf_fini(&b);
}

static void a_full_output_changes_nothing(void **state)
{
    const char *const stops[] = {"zz"};
    struct td_text_stop *m = make(stops, 1, false);
    struct td_buf small;
    struct td_buf b;
    td_buf_init(&small, 2);
    td_buf_init(&b, 1024);
    push(m, "z", &b);
    assert_int_equal(td_text_stop_push(m, "abcz", 4, &small), TD_ERR_FULL);
    push(m, "abcz", &b);
    expect(&b, "zabc");
    assert_int_equal(td_text_stop_held(m), 1);
    td_text_stop_destroy(m);
    td_buf_fini(&b);
    td_buf_fini(&small);
}

static void empty_long_and_too_many_stop_strings_are_refused(void **state)
{
    static char big[TD_TEXT_STOP_BYTES_MAX + 1];
    memset(big, 'x', sizeof big);
    struct td_text_str s[TD_TEXT_STOPS_MAX + 1];
    struct td_text_stop *m = NULL;
    for (size_t i = 0; i <= TD_TEXT_STOPS_MAX; i++) {
        s[i] = (struct td_text_str){"x", 1};
    }
    assert_int_equal(td_text_stop_create(s, TD_TEXT_STOPS_MAX + 1, false, &m), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_text_stop_create(s, TD_TEXT_STOPS_MAX, false, &m), TD_OK);
    m = td_text_stop_destroy(m);
    s[1].len = 0;
    assert_int_equal(td_text_stop_create(s, 2, false, &m), TD_ERR_BAD_REQUEST);
    s[1] = (struct td_text_str){big, sizeof big};
    assert_int_equal(td_text_stop_create(s, 2, false, &m), TD_ERR_BAD_REQUEST);
    s[1].len--;
    assert_int_equal(td_text_stop_create(s, 2, false, &m), TD_OK);
    td_text_stop_destroy(m);
}

/* The definition, slowly: the earliest end, then the longest. Returns the length that goes out. */
static size_t slow(const char *text, size_t len, const char *const *stops, size_t n, int *which)
{
    for (size_t end = 1; end <= len; end++) {
        *which = -1;
        for (size_t k = 0; k < n; k++) {
            const size_t l = strlen(stops[k]);
            if (l <= end && memcmp(text + end - l, stops[k], l) == 0 &&
                (*which < 0 || l > strlen(stops[*which]))) {
                *which = (int)k;
            }
        }
        if (*which >= 0) {
            return end - strlen(stops[*which]);
        }
    }
    return len;
}

static void the_cut_does_not_depend_on_the_chunks(void **state)
{
    const char *const stops[] = {"abab", "bba", "aab", "bbbb"};
    struct td_rng r = {42};
    for (int round = 0; round < 2000; round++) {
        char text[24];
        int which = -1;
        const size_t len = 1 + (size_t)td_rng_below(&r, sizeof text - 1);
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('a' + td_rng_below(&r, 2));
        }
        const size_t n = slow(text, len, stops, 4, &which);
        struct td_text_stop *m = make(stops, 4, false);
        struct td_buf b;
        td_buf_init(&b, 1024);
        for (size_t i = 0; i < len;) {
            size_t part = 1 + (size_t)td_rng_below(&r, 5);
            part = part < len - i ? part : len - i;
            assert_int_equal(td_text_stop_push(m, text + i, part, &b), TD_OK);
            i += part;
        }
        assert_int_equal(td_text_stop_flush(m, &b), TD_OK);
        assert_int_equal(td_text_stop_matched(m), which);
        assert_int_equal(b.len, n);
        assert_true(n == 0 || memcmp(b.data, text, n) == 0);
        td_text_stop_destroy(m);
        td_buf_fini(&b);
    }
}

static void creation_survives_any_failing_allocation(void **state)
{
#if TD_WITH_FAULTS
    const struct td_text_str s[2] = {{"ab", 2}, {"cd", 2}};
    for (unsigned nth = 1;; nth++) {
        struct td_text_stop *m = NULL;
        td_mem_fail_nth(nth);
        const td_err e = td_text_stop_create(s, 2, false, &m);
        td_mem_fail_nth(0);
        if (e == TD_OK) {
            td_text_stop_destroy(m);
            assert_true(nth > 4);
            break;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
        assert_null(m);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_that_may_begin_a_stop_string_is_held_back),
        cmocka_unit_test(the_stop_string_is_part_of_the_output_when_asked_for),
        cmocka_unit_test(the_match_that_completes_first_wins_and_then_the_longest),
        cmocka_unit_test(a_prefix_that_overlaps_itself_is_followed),
        cmocka_unit_test(flush_gives_the_held_text_when_the_stream_ends),
        cmocka_unit_test(no_stop_strings_pass_everything_at_once),
        cmocka_unit_test(a_full_output_changes_nothing),
        cmocka_unit_test(empty_long_and_too_many_stop_strings_are_refused),
        cmocka_unit_test(the_cut_does_not_depend_on_the_chunks),
        cmocka_unit_test(creation_survives_any_failing_allocation),
    };
    return cmocka_run_group_tests_name("text/stop", tests, NULL, NULL);
}
