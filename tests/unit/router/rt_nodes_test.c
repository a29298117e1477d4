#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "router/rt_nodes.h"

static struct rt_nodes *ns;

static int setup(void **state)
{
    (void)state;
    ns = td_zalloc(1, sizeof *ns);
    return ns != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(ns);
    return 0;
}

static struct rt_node *up(uint64_t epoch, enum td_role role)
{
    struct td_wire_node_info i = {.epoch = epoch, .name = "x", .role = role};
    struct rt_node *n = NULL;
    assert_int_equal(rt_nodes_up(ns, &i, &n), TD_OK);
    return n;
}

static void a_node_is_usable_only_after_it_reported_ready(void **state)
{
    (void)state;
    struct rt_node *n = up(5, TD_ROLE_PREFILL);
    assert_false(rt_node_usable(n, TD_ROLE_PREFILL));
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 1, .full = true, .ready = true});
    assert_true(rt_node_usable(n, TD_ROLE_PREFILL));
    assert_false(rt_node_usable(n, TD_ROLE_DECODE));
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 2, .ready = true, .draining = true});
    assert_false(rt_node_usable(n, TD_ROLE_PREFILL));
    assert_int_equal(rt_nodes_ready(ns, TD_ROLE_PREFILL), 0);
}

static void a_drained_node_is_not_usable_whatever_it_reports(void **state)
{
    (void)state;
    struct rt_node *n = up(5, TD_ROLE_PREFILL);
    assert_string_equal(rt_node_why_not(n), "has not reported yet");
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 1, .full = true, .ready = true});
    assert_string_equal(rt_node_why_not(n), "");
    n->held = true;
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 2, .ready = true});
    assert_false(rt_node_usable(n, TD_ROLE_PREFILL));
    assert_string_equal(rt_node_why_not(n), "draining");
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 3});
    assert_string_equal(rt_node_why_not(n), "not ready");
}

static void a_node_without_link_is_willing_and_not_usable(void **state)
{
    (void)state;
    struct rt_node *n = up(5, TD_ROLE_DECODE);
    n->detached = true;
    assert_false(rt_node_willing(n, TD_ROLE_DECODE));
    (void)rt_node_report(n, &(struct td_wire_state){.seq = 1, .full = true, .ready = true});
    assert_true(rt_node_willing(n, TD_ROLE_DECODE));
    assert_false(rt_node_usable(n, TD_ROLE_DECODE));
    assert_int_equal(rt_nodes_ready(ns, TD_ROLE_DECODE), 0);
    assert_string_equal(rt_node_why_not(n), "its link is down");
    assert_ptr_equal(up(5, TD_ROLE_DECODE), n); /* a new session of the same process */
    assert_true(rt_node_usable(n, TD_ROLE_DECODE));
}

static void names_are_found_and_outlive_their_nodes(void **state)
{
    (void)state;
    (void)up(5, TD_ROLE_PREFILL);
    struct rt_node *young = up(6, TD_ROLE_PREFILL); /* the same name, restarted */
    assert_ptr_equal(rt_nodes_named(ns, "x"), young);
    assert_null(rt_nodes_named(ns, "y"));
    assert_string_equal(rt_nodes_name(ns, 5), "x");
    rt_nodes_down(ns, 5);
    assert_string_equal(rt_nodes_name(ns, 5), "x");
    for (uint64_t i = 0; i < RT_MAX_NODES; i++) {
        (void)up(1000 + i, TD_ROLE_DECODE);
        rt_nodes_down(ns, 1000 + i);
    }
    assert_string_equal(rt_nodes_name(ns, 5), ""); /* forgotten by now */
    assert_string_equal(rt_nodes_name(ns, 0), "");
}

static void a_gap_in_the_sequence_is_noticed(void **state)
{
    (void)state;
    struct rt_node *n = up(5, TD_ROLE_BOTH);
    assert_false(rt_node_report(n, &(struct td_wire_state){.seq = 4}));
    assert_true(rt_node_report(n, &(struct td_wire_state){.seq = 9, .full = true}));
    assert_true(rt_node_report(n, &(struct td_wire_state){.seq = 10}));
    assert_false(rt_node_report(n, &(struct td_wire_state){.seq = 12}));
}

static void the_table_is_bounded_and_slots_come_back(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= RT_MAX_NODES; i++) {
        (void)up(i, TD_ROLE_DECODE);
    }
    struct td_wire_node_info one_more = {.epoch = 10000, .name = "y", .role = TD_ROLE_DECODE};
    struct rt_node *n = NULL;
    assert_int_equal(rt_nodes_up(ns, &one_more, &n), TD_ERR_FULL);
    rt_nodes_down(ns, 7);
    assert_null(rt_nodes_find(ns, 7));
    assert_int_equal(rt_nodes_up(ns, &one_more, &n), TD_OK);
    assert_ptr_equal(rt_nodes_find(ns, 10000), n);
    assert_null(rt_nodes_find(ns, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_node_is_usable_only_after_it_reported_ready, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_drained_node_is_not_usable_whatever_it_reports, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_node_without_link_is_willing_and_not_usable, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(names_are_found_and_outlive_their_nodes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gap_in_the_sequence_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(the_table_is_bounded_and_slots_come_back, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
