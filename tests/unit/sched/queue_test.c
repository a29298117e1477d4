#include "common/sched/queue.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define MANY 300

static void equals_are_served_in_order_of_arrival(void **state)
{
    struct td_queue_item items[MANY] = {0};
    (void)state;
    struct td_queue *q = td_queue_create(MANY);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(td_queue_push(q, &items[i], 0, 1000, 5000), TD_OK);
    }
    for (int i = 0; i < MANY; i++) {
        assert_ptr_equal(td_queue_head(q), &items[i]);
        td_queue_remove(q, &items[i]);
    }
    assert_null(td_queue_head(q));
    assert_null(td_queue_destroy(q));
}

static void a_lower_priority_number_goes_first(void **state)
{
    struct td_queue_item low = {0};
    struct td_queue_item high = {0};
    (void)state;
    struct td_queue *q = td_queue_create(4);
    assert_int_equal(td_queue_push(q, &low, 1, 1000, 5000), TD_OK);
    assert_int_equal(td_queue_push(q, &high, 0, 2000, 5000), TD_OK);
    assert_ptr_equal(td_queue_head(q), &high);
    (void)td_queue_destroy(q);
}

/* One second of waiting is worth one level: an endless stream of better entries cannot hold the
 * waiting one back for longer than the difference. */
static void nobody_starves_behind_a_stream_of_higher_priority(void **state)
{
    struct td_queue_item old = {0};
    struct td_queue_item fresh[MANY] = {0};
    int64_t served_at = -1;
    (void)state;
    struct td_queue *q = td_queue_create(MANY + 1);
    assert_int_equal(td_queue_push(q, &old, 3, 0, 100 * TD_SCHED_AGE_US), TD_OK);
    for (int i = 0; i < MANY && served_at < 0; i++) {
        int64_t now = (int64_t)i * 100000; /* ten a second, one served for each that comes */
        assert_int_equal(td_queue_push(q, &fresh[i], 0, now, now + 100 * TD_SCHED_AGE_US), TD_OK);
        struct td_queue_item *head = td_queue_head(q);
        td_queue_remove(q, head);
        served_at = head == &old ? now : -1;
    }
    assert_int_equal(served_at, 3 * TD_SCHED_AGE_US);
    (void)td_queue_destroy(q);
}

static void absurd_priorities_are_clamped(void **state)
{
    (void)state;
    assert_int_equal(td_sched_key(INT32_MAX, 0), TD_SCHED_MAX_PRIORITY * (int64_t)TD_SCHED_AGE_US);
    assert_int_equal(td_sched_key(INT32_MIN, 0), -TD_SCHED_MAX_PRIORITY * (int64_t)TD_SCHED_AGE_US);
}

static void a_full_line_refuses_and_keeps_what_it_has(void **state)
{
    struct td_queue_item items[3] = {0};
    (void)state;
    struct td_queue *q = td_queue_create(2);
    assert_int_equal(td_queue_push(q, &items[0], 0, 1, 9), TD_OK);
    assert_int_equal(td_queue_push(q, &items[1], 0, 2, 9), TD_OK);
    assert_int_equal(td_queue_push(q, &items[2], -9, 3, 9), TD_ERR_OVERLOADED);
    assert_false(td_queue_holds(&items[2]));
    assert_int_equal(td_queue_count(q), 2);
    td_queue_remove(q, &items[0]);
    assert_int_equal(td_queue_push(q, &items[2], -9, 3, 9), TD_OK);
    (void)td_queue_destroy(q);
}

static void due_entries_come_out_wherever_they_stand(void **state)
{
    struct td_queue_item items[MANY] = {0};
    struct td_rng r = {9};
    (void)state;
    struct td_queue *q = td_queue_create(MANY);
    for (int i = 0; i < MANY; i++) {
        int64_t deadline = (int64_t)td_rng_below(&r, 1000);
        assert_int_equal(td_queue_push(q, &items[i], (int32_t)td_rng_below(&r, 5), i, deadline),
                         TD_OK);
    }
    size_t left = MANY;
    for (int64_t now = 0; now <= 1000; now += 50) {
        struct td_queue_item *it;
        while ((it = td_queue_pop_due(q, now)) != NULL) {
            assert_false(td_queue_holds(it));
            left--;
        }
        assert_int_equal(td_queue_count(q), left);
        assert_true(td_queue_next_deadline(q) > now);
    }
    assert_int_equal(left, 0);
    assert_true(td_queue_next_deadline(q) == TD_NEVER);
    (void)td_queue_destroy(q);
}

/* Random pushes and removals: the head is always the smallest by (key, arrival). */
static void the_head_is_the_best_after_random_changes(void **state)
{
    struct td_queue_item items[MANY] = {0};
    struct td_rng r = {5};
    (void)state;
    struct td_queue *q = td_queue_create(MANY);
    for (int i = 0; i < 5000; i++) {
        struct td_queue_item *it = &items[td_rng_below(&r, MANY)];
        if (td_queue_holds(it)) {
            td_queue_remove(q, it);
        } else {
            assert_int_equal(td_queue_push(q, it, (int32_t)td_rng_below(&r, 4), i, i + 100), TD_OK);
        }
        const struct td_queue_item *head = td_queue_head(q);
        for (int k = 0; k < MANY; k++) {
            if (td_queue_holds(&items[k]) && &items[k] != head) {
                assert_true(head->key < items[k].key ||
                            (head->key == items[k].key && head->number < items[k].number));
            }
        }
    }
    (void)td_queue_destroy(q);
}

#if TD_WITH_FAULTS
static void creation_survives_every_failed_allocation(void **state)
{
    (void)state;
    struct td_queue *q = NULL;
    for (unsigned nth = 1; q == NULL && nth < 20; nth++) {
        td_mem_fail_nth(nth);
        q = td_queue_create(4);
    }
    td_mem_fail_nth(0);
    assert_non_null(q);
    (void)td_queue_destroy(q);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_are_served_in_order_of_arrival),
        cmocka_unit_test(a_lower_priority_number_goes_first),
        cmocka_unit_test(nobody_starves_behind_a_stream_of_higher_priority),
        cmocka_unit_test(absurd_priorities_are_clamped),
        cmocka_unit_test(a_full_line_refuses_and_keeps_what_it_has),
        cmocka_unit_test(due_entries_come_out_wherever_they_stand),
        cmocka_unit_test(the_head_is_the_best_after_random_changes),
#if TD_WITH_FAULTS
        cmocka_unit_test(creation_survives_every_failed_allocation),
#endif
    };
    return cmocka_run_group_tests_name("sched/queue", tests, NULL, NULL);
}
