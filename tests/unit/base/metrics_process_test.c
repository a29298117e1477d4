#include "common/base/metrics_process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/check.h"

struct rig {
    struct td_metrics *m;
    struct td_metrics_process *p;
    struct td_buf page;
};

static int setup(void **state)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->m = td_metrics_create();
    assert_non_null(r->m);
    assert_int_equal(td_metrics_process_create(r->m, "1.2.3", &r->p), TD_OK);
    td_buf_init(&r->page, 1u << 20);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    td_metrics_destroy(r->m);
    td_metrics_process_destroy(r->p);
    td_buf_fini(&r->page);
    free(r);
    return 0;
}

static const char *page_of(struct rig *r)
{
    td_buf_clear(&r->page);
    assert_int_equal(td_metrics_write(r->m, &r->page), TD_OK);
    assert_int_equal(td_buf_append(&r->page, "", 1), TD_OK);
    return (const char *)r->page.data;
}

static double value(struct rig *r, const char *name)
{
    char start[100];
    (void)snprintf(start, sizeof start, "\n%s ", name);
    const char *at = strstr(page_of(r), start);
    assert_non_null(at);
    return strtod(at + strlen(start), NULL);
}

static void the_process_is_told_under_the_usual_names(void **state)
{
    struct rig *r = *state;
    double now = (double)td_wall_us() * 1e-6;
    assert_true(value(r, "process_resident_memory_bytes") > 100000);
    assert_true(value(r, "process_virtual_memory_bytes") >=
                value(r, "process_resident_memory_bytes"));
    assert_true(value(r, "process_max_fds") >= value(r, "process_open_fds"));
    assert_true(value(r, "process_threads") >= 1);
    /* Ticks are a hundredth of a second, and the clocks are two. */
    assert_true(value(r, "process_start_time_seconds") <= now + 1);
    assert_true(value(r, "process_start_time_seconds") > now - 86400);
    assert_non_null(strstr(page_of(r), "tandem_build_info{version=\"1.2.3\"} 1\n"));
}

static void processor_time_is_a_counter_with_a_fraction(void **state)
{
    struct rig *r = *state;
    double before = value(r, "process_cpu_seconds_total");
    double after = before;
    volatile uint64_t sum = 0;
    while (after == before) {
        for (int i = 0; i < 1000000; i++) {
            sum += (uint64_t)i;
        }
        (void)sum; /* only the time it takes counts */
        after = value(r, "process_cpu_seconds_total");
    }
    assert_true(after > before);
    assert_non_null(strstr(page_of(r), "# TYPE process_cpu_seconds_total counter\n"));
}

static void an_open_descriptor_shows(void **state)
{
    struct rig *r = *state;
    double before = value(r, "process_open_fds");
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(value(r, "process_open_fds") == before + 1);
    (void)close(fd);
    assert_true(value(r, "process_open_fds") == before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_process_is_told_under_the_usual_names, setup, teardown),
        cmocka_unit_test_setup_teardown(processor_time_is_a_counter_with_a_fraction, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_open_descriptor_shows, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
