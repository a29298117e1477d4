#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/drain.h"

static int begun, asked, idle_after;

static void begin(void *arg)
{
    (void)arg;
    begun++;
}

static bool idle(void *arg)
{
    (void)arg;
    return ++asked > idle_after;
}

static const struct td_drain_ops ops = {.begin = begin, .idle = idle};

/* Runs a loop with a drain and `signals` signals raised before it starts. */
static void run(int64_t limit_us, int signals, int needs)
{
    struct td_loop *loop = NULL;
    struct td_drain *drain = NULL;
    begun = asked = 0;
    idle_after = needs;
    td_log_set_level(TD_LOG_ERROR);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(td_drain_create(loop, "t", limit_us, &ops, NULL, &drain), TD_OK);
    for (int i = 0; i < signals; i++) {
        assert_int_equal(raise(i == 0 ? SIGTERM : SIGINT), 0);
    }
    td_loop_run(loop);
    td_drain_destroy(drain);
    td_loop_destroy(loop);
}

static void the_loop_stops_when_nothing_runs_any_more(void **state)
{
    (void)state;
    run(60000000, 1, 3);
    assert_int_equal(begun, 1);
    assert_int_equal(asked, 4);
}

static void the_limit_ends_a_drain_that_does_not(void **state)
{
    (void)state;
    run(1, 1, 1000000);
    assert_int_equal(begun, 1);
    assert_in_range(asked, 1, 100);
}

static void a_second_signal_stops_at_once(void **state)
{
    (void)state;
    run(60000000, 2, 1000000);
    assert_int_equal(begun, 1);
}

static int byes, gone_asked;

static void bye(void *arg)
{
    (void)arg;
    byes++;
}

static bool gone(void *arg)
{
    (void)arg;
    return ++gone_asked > 2;
}

static void parting_words_come_after_the_work_and_are_waited_for(void **state)
{
    (void)state;
    static const struct td_drain_ops all = {begin, idle, bye, gone};
    struct td_loop *loop = NULL;
    struct td_drain *drain = NULL;
    begun = asked = byes = gone_asked = 0;
    idle_after = 1;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(td_drain_create(loop, "t", 60000000, &all, NULL, &drain), TD_OK);
    assert_int_equal(raise(SIGTERM), 0);
    td_loop_run(loop);
    assert_int_equal(asked, 2);
    assert_int_equal(byes, 1);
    assert_int_equal(gone_asked, 3);
    td_drain_destroy(drain);
    td_loop_destroy(loop);
}

static void creation_survives_failing_allocations(void **state)
{
    struct td_loop *loop = NULL;
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    for (unsigned n = 1; n < 32; n++) {
        struct td_drain *drain = NULL;
        td_mem_fail_nth(n);
        td_err err = td_drain_create(loop, "t", 1, &ops, NULL, &drain);
        td_mem_fail_nth(0);
        td_drain_destroy(drain);
        if (err == TD_OK) {
            break;
        }
        assert_int_equal(err, TD_ERR_NO_MEMORY);
    }
    td_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_loop_stops_when_nothing_runs_any_more),
        cmocka_unit_test(the_limit_ends_a_drain_that_does_not),
        cmocka_unit_test(a_second_signal_stops_at_once),
        cmocka_unit_test(parting_words_come_after_the_work_and_are_waited_for),
        cmocka_unit_test(creation_survives_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
