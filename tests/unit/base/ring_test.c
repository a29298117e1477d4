#include "common/base/ring.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

struct record {
    uint64_t sequence;
    uint64_t check;
};

static bool readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

static void records_come_out_in_order(void **state)
{
    struct td_ring *r;
    uint32_t out;
    (void)state;
    assert_int_equal(td_ring_create(8, sizeof out, false, &r), TD_OK);
    for (uint32_t round = 0; round < 100; round++) {
        for (uint32_t i = 0; i < 5; i++) {
            uint32_t v = round * 5 + i;
            assert_int_equal(td_ring_push(r, &v), TD_OK);
        }
        assert_int_equal(td_ring_count(r), 5);
        for (uint32_t i = 0; i < 5; i++) {
            assert_true(td_ring_pop(r, &out));
            assert_int_equal(out, round * 5 + i);
        }
        assert_false(td_ring_pop(r, &out));
    }
    assert_int_equal(td_ring_fd(r), -1);
    td_ring_ack(r); /* harmless without a descriptor */
    assert_null(td_ring_destroy(r));
}

static void a_full_ring_refuses_and_loses_nothing(void **state)
{
    struct td_ring *r;
    uint32_t v;
    (void)state;
    assert_int_equal(td_ring_create(4, sizeof v, false, &r), TD_OK);
    for (v = 0; v < 4; v++) {
        assert_int_equal(td_ring_push(r, &v), TD_OK);
    }
    assert_int_equal(td_ring_push(r, &v), TD_ERR_FULL);
    assert_int_equal(td_ring_count(r), 4);
    for (uint32_t i = 0; i < 4; i++) {
        assert_true(td_ring_pop(r, &v));
        assert_int_equal(v, i);
    }
    (void)td_ring_destroy(r);
}

static void a_push_wakes_the_consumer_and_ack_clears_it(void **state)
{
    struct td_ring *r;
    uint32_t v = 1;
    (void)state;
    assert_int_equal(td_ring_create(4, sizeof v, true, &r), TD_OK);
    assert_false(readable(td_ring_fd(r)));
    assert_int_equal(td_ring_push(r, &v), TD_OK);
    assert_int_equal(td_ring_push(r, &v), TD_OK);
    assert_true(readable(td_ring_fd(r)));
    td_ring_ack(r);
    assert_false(readable(td_ring_fd(r)));
    td_ring_ack(r); /* does not block */
    assert_int_equal(td_ring_push(r, &v), TD_OK);
    assert_true(readable(td_ring_fd(r)));
    (void)td_ring_destroy(r);
}

#define CROSSING 200000u

static void *produce(void *arg)
{
    struct td_ring *r = arg;
    for (uint64_t i = 0; i < CROSSING; i++) {
        struct record rec = {i, td_mix64(i)};
        while (td_ring_push(r, &rec) != TD_OK) {
            (void)sched_yield();
        }
    }
    return NULL;
}

/* The consumer sleeps in poll() whenever the ring is empty: a lost wake-up would hang the test. */
static void two_threads_pass_every_record_once_and_whole(void **state)
{
    struct td_ring *r;
    struct record rec;
    pthread_t producer;
    uint64_t next = 0;
    (void)state;
    assert_int_equal(td_ring_create(64, sizeof rec, true, &r), TD_OK);
    assert_int_equal(pthread_create(&producer, NULL, produce, r), 0);
    while (next < CROSSING) {
        struct pollfd p = {.fd = td_ring_fd(r), .events = POLLIN};
        assert_int_equal(poll(&p, 1, 60000), 1);
        td_ring_ack(r);
        while (td_ring_pop(r, &rec)) {
            assert_true(rec.sequence == next && rec.check == td_mix64(next));
            next++;
        }
    }
    assert_int_equal(pthread_join(producer, NULL), 0);
    assert_int_equal(td_ring_count(r), 0);
    (void)td_ring_destroy(r);
}

static void every_failing_allocation_is_reported(void **state)
{
    struct td_ring *r = NULL;
    (void)state;
    for (unsigned n = 1; r == NULL; n++) {
        td_mem_fail_nth(n);
        td_err e = td_ring_create(4, 8, true, &r);
        td_mem_fail_nth(0);
        assert_int_equal(e, n == 3 ? TD_OK : TD_ERR_NO_MEMORY);
    }
    (void)td_ring_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_out_in_order),
        cmocka_unit_test(a_full_ring_refuses_and_loses_nothing),
        cmocka_unit_test(a_push_wakes_the_consumer_and_ack_clears_it),
        cmocka_unit_test(two_threads_pass_every_record_once_and_whole),
        cmocka_unit_test(every_failing_allocation_is_reported),
    };
    return cmocka_run_group_tests_name("base/ring", tests, NULL, NULL);
}
