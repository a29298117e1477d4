#include "common/io/h2_guard.h"
#include "tests/unit/check.h"

static void a_burst_passes_and_what_is_over_it_does_not(void **state)
{
    (void)state;
    static const int bursts[TD_H2_CLASSES] = {
#define BURST(name, burst, rate) burst,
        TD_H2_CLASS_TABLE(BURST)
#undef BURST
    };
    for (int c = 0; c < TD_H2_CLASSES; c++) {
        struct td_h2_guard g;
        td_h2_guard_init(&g, 1000);
        for (int i = 0; i < bursts[c]; i++) {
            assert_true(td_h2_guard_take(&g, 1000, (enum td_h2_class)c));
        }
        assert_false(td_h2_guard_take(&g, 1000, (enum td_h2_class)c));
    }
}

static void time_fills_the_bucket_up_to_its_burst(void **state)
{
    (void)state;
    struct td_h2_guard g;
    td_h2_guard_init(&g, 0);
    while (td_h2_guard_take(&g, 0, TD_H2_SETTINGS)) {
    }
    assert_true(td_h2_guard_take(&g, 300000, TD_H2_SETTINGS)); /* 4 a second */
    assert_false(td_h2_guard_take(&g, 300000, TD_H2_SETTINGS));
    int n = 0;
    while (td_h2_guard_take(&g, INT64_C(3600000000), TD_H2_SETTINGS)) {
        n++;
    }
    assert_int_equal(n, 32);
}

static void classes_do_not_share_a_bucket(void **state)
{
    (void)state;
    struct td_h2_guard g;
    td_h2_guard_init(&g, 0);
    while (td_h2_guard_take(&g, 0, TD_H2_PING)) {
    }
    assert_true(td_h2_guard_take(&g, 0, TD_H2_RESET));
}

static void what_is_given_back_never_exceeds_the_burst(void **state)
{
    (void)state;
    struct td_h2_guard g;
    int n = 0;
    td_h2_guard_init(&g, 0);
    td_h2_guard_give(&g, TD_H2_PING); /* it is full */
    td_h2_guard_give(&g, TD_H2_FREE); /* has no bucket */
    while (td_h2_guard_take(&g, 0, TD_H2_PING)) {
        n++;
    }
    assert_int_equal(n, 128);
    td_h2_guard_give(&g, TD_H2_PING);
    assert_true(td_h2_guard_take(&g, 0, TD_H2_PING));
    assert_false(td_h2_guard_take(&g, 0, TD_H2_PING));
}

static void frames_with_a_use_are_free(void **state)
{
    (void)state;
    struct td_h2_guard g;
    td_h2_guard_init(&g, 0);
    assert_int_equal(td_h2_class_of(1, 0, 10), TD_H2_FREE); /* HEADERS */
    assert_int_equal(td_h2_class_of(0, 0, 10), TD_H2_FREE); /* DATA */
    assert_int_equal(td_h2_class_of(0, 1, 0), TD_H2_FREE);  /* the end of a stream */
    assert_int_equal(td_h2_class_of(0, 0, 0), TD_H2_EMPTY_DATA);
    assert_int_equal(td_h2_class_of(200, 0, 1), TD_H2_OTHER);
    for (int i = 0; i < 100000; i++) {
        assert_true(td_h2_guard_take(&g, 0, TD_H2_FREE));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_passes_and_what_is_over_it_does_not),
        cmocka_unit_test(time_fills_the_bucket_up_to_its_burst),
        cmocka_unit_test(classes_do_not_share_a_bucket),
        cmocka_unit_test(what_is_given_back_never_exceeds_the_burst),
        cmocka_unit_test(frames_with_a_use_are_free),
    };
    return cmocka_run_group_tests_name("h2_guard", tests, NULL, NULL);
}
