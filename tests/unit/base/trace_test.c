#include "common/base/trace.h"

#include <string.h>

#include "tests/unit/check.h"

#define ID   "0af7651916cd43dd8448eb211c80319c"
#define SPAN "b7ad6b7169203331"

static void a_header_comes_back_as_it_was(void **state)
{
    static const char *const good[] = {"00-" ID "-" SPAN "-01", "00-" ID "-" SPAN "-00"};
    char out[TD_TRACEPARENT_LEN];
    struct td_trace t;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(td_trace_parse(good[i], &t));
        assert_int_equal(t.sampled, i == 0);
        assert_int_equal(t.trace_id[0], 0x0a);
        assert_int_equal(t.span_id[7], 0x31);
        td_trace_format(&t, out);
        assert_string_equal(out, good[i]);
    }
    /* Flags that we do not know are not handed on; a later version is read by its first four fields. */
    assert_true(td_trace_parse("00-" ID "-" SPAN "-03", &t) && t.sampled);
    assert_true(td_trace_parse("cc-" ID "-" SPAN "-01-what-the-future-holds", &t));
}

static void what_is_not_a_header_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "00",
        "00-" ID "-" SPAN,
        "00-" ID "-" SPAN "-0",
        "00-" ID "-" SPAN "-01-more",
        "00-" ID "-" SPAN "-01 ",
        "ff-" ID "-" SPAN "-01",
        "cc-" ID "-" SPAN "-01.more",
        "00-00000000000000000000000000000000-" SPAN "-01",
        "00-" ID "-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-" SPAN "-01",
        "00-0af7651916cd43dd8448eb211c80319g-" SPAN "-01",
        "00_" ID "-" SPAN "-01",
        "zz-" ID "-" SPAN "-01",
    };
    struct td_trace t;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (td_trace_parse(bad[i], &t)) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

static void new_identities_differ_and_are_valid(void **state)
{
    struct td_trace a = {.sampled = true}, b = a, back;
    char text[TD_TRACEPARENT_LEN];
    (void)state;
    td_trace_new(&a);
    td_trace_new(&b);
    assert_memory_not_equal(a.trace_id, b.trace_id, 16);
    b = a;
    td_trace_new_span(&b);
    assert_memory_equal(a.trace_id, b.trace_id, 16);
    assert_memory_not_equal(a.span_id, b.span_id, 8);
    td_trace_format(&b, text);
    assert_true(td_trace_parse(text, &back));
    assert_memory_equal(&back, &b, sizeof b);
}

static void a_ratio_takes_its_share_and_always_the_same_traces(void **state)
{
    struct td_trace t;
    uint32_t taken = 0;
    (void)state;
    for (int i = 0; i < 4000; i++) {
        td_trace_new(&t);
        bool in = td_trace_in_ratio(&t, 0.25);
        assert_int_equal(td_trace_in_ratio(&t, 0.25), in);
        assert_true(!in || td_trace_in_ratio(&t, 0.5));
        assert_true(td_trace_in_ratio(&t, 1) && !td_trace_in_ratio(&t, 0));
        taken += in;
    }
    assert_in_range(taken, 700, 1300); /* 10 standard deviations */
}

static void a_trace_state_is_a_short_list_of_printable_members(void **state)
{
    char longest[TD_TRACESTATE_MAX + 1];
    (void)state;
    assert_true(td_tracestate_ok("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"));
    assert_false(td_tracestate_ok(""));
    assert_false(td_tracestate_ok("nothing"));
    assert_false(td_tracestate_ok("a=b\r\nc: d"));
    memset(longest, 'x', sizeof longest - 1);
    longest[1] = '=';
    longest[sizeof longest - 1] = '\0';
    assert_false(td_tracestate_ok(longest));
    longest[TD_TRACESTATE_MAX - 1] = '\0';
    assert_true(td_tracestate_ok(longest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_back_as_it_was),
        cmocka_unit_test(what_is_not_a_header_is_refused),
        cmocka_unit_test(new_identities_differ_and_are_valid),
        cmocka_unit_test(a_ratio_takes_its_share_and_always_the_same_traces),
        cmocka_unit_test(a_trace_state_is_a_short_list_of_printable_members),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
