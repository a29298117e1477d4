#include "common/io/loop.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

struct fixture {
    struct td_loop *loop;
    struct td_timer *timer, *other;
    struct td_watch *watch;
    struct td_wake *wake;
    int fd;
    int fired, order[16];
    int64_t fired_at;
    unsigned ready;
};

static int setup(void **state)
{
    struct fixture *f = td_zalloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(td_loop_create(&f->loop), TD_OK);
    f->fd = eventfd(0, EFD_NONBLOCK);
    assert_true(f->fd >= 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    f->timer = td_timer_destroy(f->timer);
    f->other = td_timer_destroy(f->other);
    f->watch = td_watch_destroy(f->watch);
    f->wake = td_wake_destroy(f->wake);
    f->loop = td_loop_destroy(f->loop);
    (void)close(f->fd);
    free(f);
    return 0;
}

static void count(void *arg)
{
    struct fixture *f = arg;
    f->fired++;
    f->fired_at = td_now_us();
}

static void count_and_stop(void *arg)
{
    struct fixture *f = arg;
    f->fired++;
    f->fired_at = td_now_us();
    td_loop_stop(f->loop);
}

static void a_timer_fires_once_and_never_early(void **state)
{
    struct fixture *f = *state;
    int64_t at = td_now_us() + 3000;
    assert_int_equal(td_timer_create(f->loop, "t", count_and_stop, f, &f->timer), TD_OK);
    assert_true(td_timer_at(f->timer) == TD_NEVER);
    td_timer_set(f->timer, at);
    assert_true(td_timer_at(f->timer) == at);
    td_loop_run(f->loop);
    assert_int_equal(f->fired, 1);
    assert_true(f->fired_at >= at);
    assert_true(td_timer_at(f->timer) == TD_NEVER);
}

static void a_disarmed_timer_does_not_fire(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(td_timer_create(f->loop, "t", count, f, &f->timer), TD_OK);
    assert_int_equal(td_timer_create(f->loop, "stop", count_and_stop, f, &f->other), TD_OK);
    td_timer_set(f->timer, td_now_us());
    td_timer_set(f->timer, TD_NEVER);
    td_timer_set(f->other, td_now_us() + 1000);
    td_loop_run(f->loop);
    assert_int_equal(f->fired, 1); /* the other one */
}

static void rearm_in_the_past(void *arg)
{
    struct fixture *f = arg;
    f->fired++;
    if (f->fired < 5) {
        td_timer_set(f->timer, 0);
    } else {
        td_loop_stop(f->loop);
    }
}

static void a_timer_set_in_the_past_by_itself_does_not_starve_the_loop(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(td_timer_create(f->loop, "t", rearm_in_the_past, f, &f->timer), TD_OK);
    td_timer_set(f->timer, 0);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 1);
    td_loop_run(f->loop);
    assert_int_equal(f->fired, 5);
}

static void destroy_both(void *arg)
{
    struct fixture *f = arg;
    f->fired++;
    f->timer = td_timer_destroy(f->timer);
    f->other = td_timer_destroy(f->other);
}

static void a_callback_may_destroy_itself_and_a_due_neighbour(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(td_timer_create(f->loop, "a", destroy_both, f, &f->timer), TD_OK);
    assert_int_equal(td_timer_create(f->loop, "b", destroy_both, f, &f->other), TD_OK);
    td_timer_set(f->timer, 1);
    td_timer_set(f->other, 1);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 1);
}

static void on_ready(void *arg, unsigned ready)
{
    struct fixture *f = arg;
    f->ready |= ready;
    f->fired++;
}

static void a_watch_reports_readable_and_writable(void **state)
{
    struct fixture *f = *state;
    uint64_t one = 1;
    assert_int_equal(td_watch_create(f->loop, "w", f->fd, TD_WATCH_WRITE, on_ready, f, &f->watch),
                     TD_OK);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->ready, TD_WATCH_WRITE);
    f->ready = 0;
    assert_int_equal(td_watch_set(f->watch, TD_WATCH_READ), TD_OK);
    assert_int_equal(write(f->fd, &one, sizeof one), sizeof one);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->ready, TD_WATCH_READ);
}

static void a_paused_watch_is_silent(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(td_watch_create(f->loop, "w", f->fd, TD_WATCH_WRITE, on_ready, f, &f->watch),
                     TD_OK);
    assert_int_equal(td_watch_set(f->watch, 0), TD_OK);
    td_loop_run_once(f->loop, 1000);
    assert_int_equal(f->fired, 0);
}

static void a_signal_reaches_its_callback(void **state)
{
    struct fixture *f = *state;
    struct td_signal *s = NULL;
    assert_int_equal(td_signal_create(f->loop, SIGUSR1, count_and_stop, f, &s), TD_OK);
    assert_int_equal(raise(SIGUSR1), 0);
    td_loop_run(f->loop);
    s = td_signal_destroy(s);
    assert_int_equal(f->fired, 1);
}

static void rings_before_the_callback_ran_merge(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(td_wake_create(f->loop, "w", count, f, &f->wake), TD_OK);
    td_wake_ring(f->wake);
    td_wake_ring(f->wake);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 1);
    td_wake_ring(f->wake);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 2);
}

static void a_destroyed_wake_that_was_rung_does_not_run(void **state)
{
    struct fixture *f = *state;
    struct td_wake *gone = NULL;
    assert_int_equal(td_wake_create(f->loop, "gone", count, f, &gone), TD_OK);
    assert_int_equal(td_wake_create(f->loop, "w", count, f, &f->wake), TD_OK);
    td_wake_ring(gone);
    gone = td_wake_destroy(gone);
    td_wake_ring(f->wake);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 1);
}

struct ordered {
    struct fixture *f;
    int number;
};

static void note_order(void *arg)
{
    struct ordered *o = arg;
    o->f->order[o->f->fired++] = o->number;
}

static void posts_run_in_their_order(void **state)
{
    struct fixture *f = *state;
    struct ordered o[4];
    for (int i = 0; i < 4; i++) {
        o[i] = (struct ordered){f, i};
        assert_int_equal(td_loop_post(f->loop, note_order, &o[i]), TD_OK);
    }
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(f->order[i], i);
    }
}

static void a_post_beyond_the_bound_is_refused(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < TD_LOOP_MAX_POSTS; i++) {
        assert_int_equal(td_loop_post(f->loop, count, f), TD_OK);
    }
    assert_int_equal(td_loop_post(f->loop, count, f), TD_ERR_FULL);
    td_loop_run_once(f->loop, 1000000);
    assert_int_equal(f->fired, TD_LOOP_MAX_POSTS);
}

#define THREADS 4
#define RINGS   20000

struct ringer {
    struct fixture *f;
    uint64_t *total;
};

static void *ring_often(void *arg)
{
    struct ringer *r = arg;
    for (int i = 0; i < RINGS; i++) {
        (void)__atomic_fetch_add(r->total, 1, __ATOMIC_RELAXED);
        td_wake_ring(r->f->wake);
    }
    return NULL;
}

static void no_ring_of_any_thread_is_lost(void **state)
{
    struct fixture *f = *state;
    uint64_t total = 0;
    struct ringer r = {f, &total};
    pthread_t threads[THREADS];
    assert_int_equal(td_wake_create(f->loop, "w", count, f, &f->wake), TD_OK);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ring_often, &r), 0);
    }
    while (__atomic_load_n(&total, __ATOMIC_RELAXED) < THREADS * RINGS) {
        td_loop_run_once(f->loop, 1000);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    f->fired = 0;
    td_wake_ring(f->wake); /* merges with one that is still due, or not: it must run after this */
    td_loop_run_once(f->loop, 1000000);
    assert_true(f->fired >= 1);
}

static void creation_survives_any_failed_allocation(void **state)
{
    (void)state;
    for (unsigned n = 1; n < 64; n++) {
        struct td_loop *l = NULL;
        td_mem_fail_nth(n);
        td_err e = td_loop_create(&l);
        td_mem_fail_nth(0);
        l = td_loop_destroy(l);
        if (e == TD_OK) {
            return;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
    }
    fail_msg("creation never succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_timer_fires_once_and_never_early, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disarmed_timer_does_not_fire, setup, teardown),
        cmocka_unit_test_setup_teardown(a_timer_set_in_the_past_by_itself_does_not_starve_the_loop,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_callback_may_destroy_itself_and_a_due_neighbour, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_watch_reports_readable_and_writable, setup, teardown),
        cmocka_unit_test_setup_teardown(a_paused_watch_is_silent, setup, teardown),
        cmocka_unit_test_setup_teardown(a_signal_reaches_its_callback, setup, teardown),
        cmocka_unit_test_setup_teardown(rings_before_the_callback_ran_merge, setup, teardown),
        cmocka_unit_test_setup_teardown(a_destroyed_wake_that_was_rung_does_not_run, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(posts_run_in_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_post_beyond_the_bound_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(no_ring_of_any_thread_is_lost, setup, teardown),
        cmocka_unit_test(creation_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
