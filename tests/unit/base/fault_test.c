#include "common/base/fault.h"

#include <string.h>

#include "common/base/log.h"
#include "tests/unit/check.h"

static int reset(void **state)
{
    (void)state;
    td_fault_reset();
    return 0;
}

static void an_unarmed_point_counts_and_does_not_fire(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 5; i++) {
        assert_true(td_fault_hits(TD_FAULT_CTL_DROP_ID) == i);
        assert_false(TD_FAULT(CTL_DROP));
    }
}

static void after_and_times_choose_the_hits_that_fire(void **state)
{
    (void)state;
    assert_int_equal(td_fault_configure("ctl.drop=drop:after=2:times=3"), TD_OK);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(TD_FAULT(CTL_DROP), i >= 2 && i < 5);
    }
    assert_true(td_fault_hits(TD_FAULT_CTL_DROP_ID) == 10);
}

static void several_points_are_armed_by_one_specification(void **state)
{
    (void)state;
    assert_int_equal(td_fault_configure("ctl.drop=fail,kv.byte.flip=flip:times=1"), TD_OK);
    assert_true(TD_FAULT(CTL_DROP));
    assert_true(TD_FAULT(KV_BYTE_FLIP));
    assert_false(TD_FAULT(KV_BYTE_FLIP));
    assert_false(TD_FAULT(KV_HEADER_FLIP));
}

static void a_delay_waits_and_never_fails(void **state)
{
    (void)state;
    assert_int_equal(td_fault_configure("xfer.slice.delay=delay:us=250:times=1"), TD_OK);
    assert_true(td_fault_delay_us(TD_FAULT_XFER_SLICE_DELAY_ID) == 250);
    assert_true(td_fault_delay_us(TD_FAULT_XFER_SLICE_DELAY_ID) == 0);
    assert_int_equal(td_fault_configure("xfer.slice.delay=delay:us=1"), TD_OK);
    assert_false(TD_FAULT(XFER_SLICE_DELAY));
    TD_FAULT_DELAY(XFER_SLICE_DELAY);
    assert_true(td_fault_hits(TD_FAULT_XFER_SLICE_DELAY_ID) == 2);
}

static void probability_repeats_itself_from_run_to_run(void **state)
{
    char first[200];
    int fired = 0;
    (void)state;
    for (int run = 0; run < 2; run++) {
        td_fault_reset();
        assert_int_equal(td_fault_configure("step.fail=fail:prob=0.5"), TD_OK);
        for (int i = 0; i < 200; i++) {
            char hit = (char)TD_FAULT(STEP_FAIL);
            fired += hit;
            if (run == 1) {
                assert_int_equal(hit, first[i]);
            }
            first[i] = hit;
        }
    }
    assert_in_range(fired, 120, 280);
}

static void a_bad_specification_is_refused_and_logged(void **state)
{
    static const char *const bad[] = {
        "nonsense",
        "no.such.point=fail",
        "ctl.drop",
        "ctl.drop=",
        "ctl.drop=explode",
        "ctl.drop=fail:after",
        "ctl.drop=fail:after=x",
        "ctl.drop=fail:after=-1",
        "ctl.drop=fail:after=99999999999999999999",
        "ctl.drop=fail:prob=2",
        "ctl.drop=fail:prob=",
        "ctl.drop=delay",
        "ctl.drop=fail,x=fail",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t errors = td_log_count(TD_LOG_ERROR);
        assert_int_equal(td_fault_configure(bad[i]), TD_ERR_CONFIG);
        assert_true(td_log_count(TD_LOG_ERROR) == errors + 1);
    }
    char longest[400];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_int_equal(td_fault_configure(longest), TD_ERR_CONFIG);
}

static void empty_parts_are_ignored(void **state)
{
    (void)state;
    assert_int_equal(td_fault_configure(""), TD_OK);
    assert_int_equal(td_fault_configure(",ctl.drop=on,"), TD_OK);
    assert_true(TD_FAULT(CTL_DROP));
}

static void names_are_unique_and_described(void **state)
{
    (void)state;
    for (int i = 0; i < TD_FAULT_COUNT; i++) {
        assert_true(td_fault_help((enum td_fault_id)i)[0] != '\0');
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(td_fault_name((enum td_fault_id)i),
                                    td_fault_name((enum td_fault_id)j));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(an_unarmed_point_counts_and_does_not_fire, reset),
        cmocka_unit_test_setup(after_and_times_choose_the_hits_that_fire, reset),
        cmocka_unit_test_setup(several_points_are_armed_by_one_specification, reset),
        cmocka_unit_test_setup(a_delay_waits_and_never_fails, reset),
        cmocka_unit_test_setup(probability_repeats_itself_from_run_to_run, reset),
        cmocka_unit_test_setup(a_bad_specification_is_refused_and_logged, reset),
        cmocka_unit_test_setup(empty_parts_are_ignored, reset),
        cmocka_unit_test_setup(names_are_unique_and_described, reset),
    };
    return cmocka_run_group_tests_name("base/fault", tests, NULL, NULL);
}
