#include <string.h>

#include "common/io/xfer_measure.h"
#include "tests/unit/check.h"

static void figures_come_from_the_transport_that_was_asked_for(void **state)
{
    const char *list = *state;
    const char *name = strcmp(list, "tcp") == 0 ? "tcp" : strcmp(list, "sm") == 0 ? "shm" : "cma";
    static const uint32_t blocks[] = {1, 8};
    for (size_t i = 0; i < 2; i++) {
        struct td_xfer_measure_result r;
        struct td_xfer_measure_params p = {.device = "lo",
                                           .transports = *state,
                                           .slice_bytes = 12288,
                                           .n_blocks = blocks[i],
                                           .n_messages = 100};
        assert_int_equal(td_xfer_measure(&p, &r), TD_OK);
        assert_string_equal(r.transport, name);
        assert_true(r.bytes >= 100ull * 12288 * blocks[i]);
        assert_true(r.us_per_message > 0 && r.gb_per_s > 0 && r.one_way_us > 0);
        assert_true(r.cpu_us_per_message > 0);
    }
}

static void impossible_measurements_are_refused(void **state)
{
    struct td_xfer_measure_result r;
    struct td_xfer_measure_params p = {
        .device = "lo", .transports = "sm", .slice_bytes = 4096, .n_blocks = 0, .n_messages = 1};
    (void)state;
    assert_int_equal(td_xfer_measure(&p, &r), TD_ERR_BAD_REQUEST);
    p.n_blocks = UINT32_MAX;
    assert_int_equal(td_xfer_measure(&p, &r), TD_ERR_BAD_REQUEST);
    p.n_blocks = 1;
    p.device = "nosuchdevice";
    assert_int_equal(td_xfer_measure(&p, &r), TD_ERR_TRANSPORT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        {"figures_come_from_shm", figures_come_from_the_transport_that_was_asked_for, NULL, NULL,
         (void *)(uintptr_t) "sm"},
        {"figures_come_from_cma", figures_come_from_the_transport_that_was_asked_for, NULL, NULL,
         (void *)(uintptr_t) "sm,cma"},
        {"figures_come_from_tcp", figures_come_from_the_transport_that_was_asked_for, NULL, NULL,
         (void *)(uintptr_t) "tcp"},
        cmocka_unit_test(impossible_measurements_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
