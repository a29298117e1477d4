#include "common/base/heap.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define MANY 500

static void nodes_come_out_in_order_of_their_deadlines(void **state)
{
    struct td_heap_node nodes[MANY] = {0};
    struct td_rng r = {1};
    (void)state;
    struct td_heap *h = td_heap_create(MANY);
    for (size_t i = 0; i < MANY; i++) {
        assert_int_equal(td_heap_set(h, &nodes[i], (int64_t)td_rng_below(&r, 100)), TD_OK);
    }
    int64_t last = -1;
    for (size_t i = 0; i < MANY; i++) {
        struct td_heap_node *n = td_heap_pop_due(h, 1000);
        assert_non_null(n);
        assert_true(n->at_us >= last);
        assert_int_equal(n->slot, 0);
        last = n->at_us;
    }
    assert_null(td_heap_pop_due(h, 1000));
    assert_null(td_heap_destroy(h));
}

static void nothing_is_due_before_its_deadline(void **state)
{
    struct td_heap_node n = {0};
    (void)state;
    struct td_heap *h = td_heap_create(1);
    assert_null(td_heap_peek(h));
    assert_int_equal(td_heap_set(h, &n, 100), TD_OK);
    assert_null(td_heap_pop_due(h, 99));
    assert_ptr_equal(td_heap_peek(h), &n);
    assert_ptr_equal(td_heap_pop_due(h, 100), &n);
    (void)td_heap_destroy(h);
}

static void a_full_heap_refuses_but_still_moves_its_nodes(void **state)
{
    struct td_heap_node nodes[3] = {0};
    (void)state;
    struct td_heap *h = td_heap_create(2);
    assert_int_equal(td_heap_set(h, &nodes[0], 10), TD_OK);
    assert_int_equal(td_heap_set(h, &nodes[1], 20), TD_OK);
    assert_int_equal(td_heap_set(h, &nodes[2], 5), TD_ERR_FULL);
    assert_int_equal(nodes[2].slot, 0);
    assert_int_equal(td_heap_set(h, &nodes[1], 1), TD_OK);
    assert_ptr_equal(td_heap_peek(h), &nodes[1]);
    assert_int_equal(td_heap_count(h), 2);
    (void)td_heap_destroy(h);
}

static void never_takes_a_node_out(void **state)
{
    struct td_heap_node n = {0};
    (void)state;
    struct td_heap *h = td_heap_create(1);
    assert_int_equal(td_heap_set(h, &n, TD_NEVER), TD_OK);
    assert_int_equal(td_heap_count(h), 0);
    assert_int_equal(td_heap_set(h, &n, 1), TD_OK);
    assert_int_equal(td_heap_set(h, &n, TD_NEVER), TD_OK);
    assert_int_equal(td_heap_count(h), 0);
    td_heap_remove(h, &n); /* twice is harmless */
    (void)td_heap_destroy(h);
}

/* Against an array searched from end to end. */
static void random_operations_agree_with_a_plain_search(void **state)
{
    struct td_heap_node nodes[MANY] = {0};
    int64_t want[MANY];
    struct td_rng r = {17};
    (void)state;
    struct td_heap *h = td_heap_create(MANY);
    for (size_t i = 0; i < MANY; i++) {
        want[i] = TD_NEVER;
    }
    for (int step = 0; step < 20000; step++) {
        size_t i = (size_t)td_rng_below(&r, MANY);
        want[i] = td_rng_below(&r, 3) == 0 ? TD_NEVER : (int64_t)td_rng_below(&r, 1000);
        assert_int_equal(td_heap_set(h, &nodes[i], want[i]), TD_OK);
        int64_t least = TD_NEVER;
        size_t count = 0;
        for (size_t j = 0; j < MANY; j++) {
            least = want[j] < least ? want[j] : least;
            count += want[j] != TD_NEVER;
        }
        const struct td_heap_node *first = td_heap_peek(h);
        assert_true(first == NULL ? least == TD_NEVER : first->at_us == least);
        assert_int_equal(td_heap_count(h), count);
    }
    (void)td_heap_destroy(h);
}

struct waiter {
    int id;
    struct td_heap_node timer;
};

static void the_waiter_is_found_from_its_node(void **state)
{
    struct waiter w = {.id = 7};
    (void)state;
    assert_int_equal(td_heap_entry(&w.timer, struct waiter, timer)->id, 7);
}

static void every_failing_allocation_yields_null(void **state)
{
    struct td_heap *h = NULL;
    (void)state;
    for (unsigned n = 1; h == NULL; n++) {
        td_mem_fail_nth(n);
        h = td_heap_create(4);
        td_mem_fail_nth(0);
        assert_true((h != NULL) == (n == 3));
    }
    (void)td_heap_destroy(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_come_out_in_order_of_their_deadlines),
        cmocka_unit_test(nothing_is_due_before_its_deadline),
        cmocka_unit_test(a_full_heap_refuses_but_still_moves_its_nodes),
        cmocka_unit_test(never_takes_a_node_out),
        cmocka_unit_test(random_operations_agree_with_a_plain_search),
        cmocka_unit_test(the_waiter_is_found_from_its_node),
        cmocka_unit_test(every_failing_allocation_yields_null),
    };
    return cmocka_run_group_tests_name("base/heap", tests, NULL, NULL);
}
