/* Finding the reason of a failure among log lines. */
#include <string.h>

#include "tests/unit/check.h"

#define TD_LOG_ROOM "ctl"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "ctl/log_reason.h"

static char text[64];

static const char *pick(const char *log)
{
    ctl_log_reason_pick(log, strlen(log), text, sizeof text);
    return text;
}

static void the_first_complaint_wins_and_info_is_no_complaint(void **state)
{
    (void)state;
    assert_string_equal(pick("ts=1 level=info room=io msg=\"hello\"\n"
                             "ts=1 level=warn room=io msg=\"ucx says\" text=\"no device\" at=x\n"
                             "ts=1 level=error room=io msg=\"cannot measure\" device=lo\n"),
                        "no device");
}

static void reason_beats_text_beats_message(void **state)
{
    (void)state;
    assert_string_equal(pick("ts=1 level=error room=m msg=\"refused\" reason=\"not a file\"\n"),
                        "not a file");
    assert_string_equal(pick("ts=1 level=error room=m msg=\"refused\" text=\"t\"\n"), "t");
    assert_string_equal(pick("ts=1 level=error room=m msg=\"refused\" path=/x"), "refused");
}

static void quotes_inside_are_undone_and_long_reasons_cut(void **state)
{
    (void)state;
    assert_string_equal(pick("ts=1 level=warn room=m msg=\"a \\\"b\\\" c\\\\d\"\n"),
                        "a \"b\" c\\d");
    char longest[300] = "ts=1 level=warn room=m msg=\"";
    size_t n = strlen(longest);
    memset(longest + n, 'x', 200);
    assert_int_equal(strlen(pick(longest)), sizeof text - 1);
    assert_string_equal(pick("ts=1 level=warn room=m msg=\"ends in \\"), "ends in \\");
}

static void without_a_complaint_there_is_no_reason(void **state)
{
    (void)state;
    assert_string_equal(pick(""), "");
    assert_string_equal(pick("\n\n\n"), "");
    assert_string_equal(pick("level=error msg=bare\nts=1 level=error room=m msg=\"\"\n"), "");
}

static void between_begin_and_end_lines_go_to_the_reason_and_not_to_stderr(void **state)
{
    (void)state;
    struct ctl_log_reason r;
    char why[64];
    ctl_log_reason_begin(&r);
    TD_LOG(ERROR, "it broke", "why=1");
    ctl_log_reason_end(&r, why, sizeof why);
    assert_string_equal(why, "it broke");
    ctl_log_reason_begin(&r);
    ctl_log_reason_end(&r, why, sizeof why);
    assert_string_equal(why, "");
    assert_int_equal(r.fd, -1);
}

static void without_memory_the_text_is_empty(void **state)
{
    (void)state;
    struct ctl_log_reason r;
    char why[64];
    ctl_log_reason_begin(&r);
    TD_LOG(ERROR, "it broke", "why=1");
    td_mem_fail_nth(1);
    ctl_log_reason_end(&r, why, sizeof why);
    td_mem_fail_nth(0);
    assert_string_equal(why, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_complaint_wins_and_info_is_no_complaint),
        cmocka_unit_test(reason_beats_text_beats_message),
        cmocka_unit_test(quotes_inside_are_undone_and_long_reasons_cut),
        cmocka_unit_test(without_a_complaint_there_is_no_reason),
        cmocka_unit_test(between_begin_and_end_lines_go_to_the_reason_and_not_to_stderr),
        cmocka_unit_test(without_memory_the_text_is_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
