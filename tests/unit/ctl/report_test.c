/* Findings: lines, JSON, verdict of the whole, bounds. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tests/unit/check.h"

#include "ctl/report.h"
#include "tests/unit/ctl/capture.h"

static struct ctl_report report;

static int fresh(void **state)
{
    (void)state;
    memset(&report, 0, sizeof report);
    return 0;
}

static void a_finding_is_a_line_at_once_with_its_remedy_below(void **state)
{
    (void)state;
    CAPTURE(text, out, {
        report.live = out;
        ctl_report_add(&report, CTL_V_OK, "cpu", "unused", "%s", "fast");
        ctl_report_add(&report, CTL_V_FAIL, "port 1:2", "choose another", "in use");
    });
    assert_string_equal(text, "OK    cpu                     fast\n"
                              "FAIL  port 1:2                in use\n"
                              "                              -> choose another\n");
    free(text);
}

static void warnings_do_not_fail_a_report_and_failures_do(void **state)
{
    (void)state;
    ctl_report_add(&report, CTL_V_WARN, "a", "r", "d");
    ctl_report_add(&report, CTL_V_SKIP, "b", NULL, "d");
    assert_false(ctl_report_failed(&report));
    ctl_report_add(&report, CTL_V_FAIL, "c", "r", "d");
    assert_true(ctl_report_failed(&report));
    assert_int_equal(ctl_report_count(&report, CTL_V_WARN), 1);
    assert_int_equal(ctl_report_count(&report, CTL_V_OK), 0);
}

static void json_has_every_finding_with_its_figures(void **state)
{
    (void)state;
    struct ctl_finding *f = ctl_report_add(&report, CTL_V_OK, "ucx sm", NULL, "shm");
    ctl_finding_value(f, "gb_per_s", 1.5);
    ctl_report_add(&report, CTL_V_WARN, "cores", "more", "1 \"online\"");
    CAPTURE(text, out, assert_int_equal(ctl_report_json(&report, CTL_JSON, out), TD_OK));
    json_t *doc = json_loads(text, 0, NULL);
    const json_t *checks = json_object_get(doc, "checks");
    assert_true(json_is_true(json_object_get(doc, "ok")));
    assert_int_equal(json_array_size(checks), 2);
    const json_t *first = json_array_get(checks, 0), *second = json_array_get(checks, 1);
    assert_string_equal(json_string_value(json_object_get(first, "verdict")), "ok");
    assert_true(json_real_value(json_object_get(first, "gb_per_s")) == 1.5);
    assert_string_equal(json_string_value(json_object_get(second, "remedy")), "more");
    assert_string_equal(json_string_value(json_object_get(second, "detail")), "1 \"online\"");
    json_decref(doc);
    free(text);
}

static void texts_are_cut_to_fit_and_cannot_steer_a_terminal(void **state)
{
    (void)state;
    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    ctl_report_add(&report, CTL_V_FAIL, longest, longest, "%s", longest);
    struct ctl_finding *f =
        ctl_report_add(&report, CTL_V_FAIL, "\x1b[2J", "\n", "\xff\xc2\x9b gr\xc3\xbc");
    assert_string_equal(f->check, "?[2J");
    assert_string_equal(f->remedy, "?");
    assert_string_equal(f->detail, "??? gr\xc3\xbc");
    CAPTURE(text, out, assert_int_equal(ctl_report_json(&report, CTL_JSON, out), TD_OK));
    free(text);
}

static void past_its_bound_a_report_fails_and_keeps_the_first(void **state)
{
    (void)state;
    for (int i = 0; i < CTL_REPORT_MAX; i++) {
        struct ctl_finding *f = ctl_report_add(&report, CTL_V_OK, "c", NULL, "%d", i);
        for (int v = 0; v <= CTL_REPORT_VALUES; v++) {
            ctl_finding_value(f, "v", v);
        }
    }
    assert_false(ctl_report_failed(&report));
    ctl_report_add(&report, CTL_V_OK, "c", NULL, "one more");
    assert_true(ctl_report_failed(&report));
    assert_int_equal(report.n, CTL_REPORT_MAX);
    assert_string_equal(report.findings[0].detail, "0");
    assert_true(report.findings[0].values[CTL_REPORT_VALUES - 1].value == CTL_REPORT_VALUES - 1);
}

static void a_word_is_a_value_too_cut_to_fit_and_clean(void **state)
{
    (void)state;
    struct ctl_finding *f = ctl_report_add(&report, CTL_V_OK, "c", NULL, "d");
    ctl_finding_text(f, "transport", "shm\x1b and a good deal more than there is room for");
    assert_string_equal(f->values[0].text, "shm? and a good deal mo");
    assert_string_equal(f->values[0].name, "transport");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_finding_is_a_line_at_once_with_its_remedy_below, fresh),
        cmocka_unit_test_setup(warnings_do_not_fail_a_report_and_failures_do, fresh),
        cmocka_unit_test_setup(json_has_every_finding_with_its_figures, fresh),
        cmocka_unit_test_setup(texts_are_cut_to_fit_and_cannot_steer_a_terminal, fresh),
        cmocka_unit_test_setup(past_its_bound_a_report_fails_and_keeps_the_first, fresh),
        cmocka_unit_test_setup(a_word_is_a_value_too_cut_to_fit_and_clean, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
