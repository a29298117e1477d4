#include "common/base/clock.h"

#include <time.h>

#include "tests/unit/check.h"

static void monotonic_time_never_goes_back(void **state)
{
    (void)state;
    int64_t last = td_now_us();
    assert_true(last > 0);
    for (int i = 0; i < 10000; i++) {
        int64_t now = td_now_us();
        assert_true(now >= last);
        last = now;
    }
    assert_true(last < TD_NEVER);
}

static void wall_time_is_microseconds_of_the_epoch(void **state)
{
    (void)state;
    int64_t before = (int64_t)time(NULL) - 1;
    int64_t wall = td_wall_us() / 1000000;
    assert_true(wall >= before && wall <= before + 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(monotonic_time_never_goes_back),
        cmocka_unit_test(wall_time_is_microseconds_of_the_epoch),
    };
    return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
