#include "common/node/core.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/node/role_cases.h"

static void actions_are_zeroed_and_kept_in_order(void **state)
{
    struct nd_actions a;
    (void)state;
    assert_int_equal(nd_actions_init(&a, ND_MIN_ACTIONS), TD_OK);
    nd_actions_observe(&a, ND_M_ITL_US, 7);
    struct td_wire_msg *m = nd_actions_send(&a, 5, TD_WIRE_END);
    m->end.err = TD_ERR_STALE;
    struct td_wire_msg *p = nd_actions_peer_send(&a, 6, TD_WIRE_TAKEN);
    assert_int_equal(a.n, 3);
    assert_int_equal(a.list[0].type, ND_DO_OBSERVE);
    assert_int_equal(a.list[1].type, ND_DO_SEND);
    assert_int_equal(a.list[1].router_epoch, 5);
    assert_ptr_equal(a.list[1].msg, m);
    assert_int_equal(a.list[2].cmd.type, TD_XFER_SEND);
    assert_int_equal(a.list[2].cmd.epoch, 6);
    assert_ptr_equal(a.list[2].msg, p);
    nd_actions_reset(&a);
    assert_int_equal(a.n, 0);
    const struct nd_action *fresh = nd_actions_add(&a, ND_DO_STEP);
    assert_null(fresh->msg);
    assert_int_equal(fresh->router_epoch, 0);
    nd_actions_fini(&a);
}

static void the_list_is_bounded_and_says_when_it_overflows(void **state)
{
    struct nd_actions a;
    (void)state;
    assert_int_equal(nd_actions_init(&a, ND_MIN_ACTIONS), TD_OK);
    for (uint32_t i = 0; i < ND_MIN_ACTIONS; i++) {
        (void)nd_actions_add(&a, ND_DO_OBSERVE);
    }
    assert_false(a.overflow);
    assert_non_null(nd_actions_add(&a, ND_DO_STEP));
    assert_true(a.overflow);
    assert_int_equal(a.n, ND_MIN_ACTIONS);
    nd_actions_reset(&a);
    assert_false(a.overflow);
    nd_actions_fini(&a);
}

static void copies_live_until_the_reset(void **state)
{
    struct nd_actions a;
    uint32_t data[3] = {1, 2, 3};
    (void)state;
    assert_int_equal(nd_actions_init(&a, ND_MIN_ACTIONS), TD_OK);
    const uint32_t *c = nd_actions_copy(&a, data, sizeof data);
    const uint32_t *z = nd_actions_copy(&a, NULL, sizeof data);
    data[0] = 9;
    assert_int_equal(c[0], 1);
    assert_int_equal(z[2], 0);
    assert_null(nd_actions_copy(&a, NULL, (size_t)1 << 40));
    assert_true(a.overflow);
    nd_actions_fini(&a);
}

static void parameters_that_do_not_fit_are_refused(void **state)
{
    struct td_engine_info e = role_engine();
    struct nd_core_params good = role_params(&e);
    (void)state;
    td_log_set_fd(-1);
    assert_int_equal(nd_core_params_check(&good), TD_OK);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        struct nd_core_params p = good;                                                            \
        p.field = (value);                                                                         \
        assert_int_equal(nd_core_params_check(&p), TD_ERR_CONFIG);                                 \
    } while (0)
    REFUSED(epoch, 0);
    REFUSED(layout_id, 0);
    REFUSED(chunk_tokens, 24);
    REFUSED(chunk_tokens, 0);
    REFUSED(steps_in_flight, 0);
    REFUSED(steps_in_flight, 3);
    REFUSED(max_batched_tokens, 8);
    REFUSED(max_seqs, 0);
    REFUSED(max_queue, ND_MAX_QUEUE + 1);
    REFUSED(t_stall_us, 0);
    REFUSED(t_lease_us, -1);
#undef REFUSED
    e.max_slots = 0;
    assert_int_equal(nd_core_params_check(&good), TD_ERR_CONFIG);
    td_log_set_fd(STDERR_FILENO);
}

static void the_work_of_a_message_is_found(void **state)
{
    struct td_wire_msg m = {.type = TD_WIRE_CANCEL};
    (void)state;
    assert_ptr_equal(nd_msg_work(&m), &m.cancel.id);
    m.type = TD_WIRE_PREFILL;
    assert_ptr_equal(nd_msg_work(&m), &m.prefill.r.id);
    m.type = TD_WIRE_RESERVE;
    assert_ptr_equal(nd_msg_work(&m), &m.reserve.r.id);
    m.type = TD_WIRE_STATE_REQUEST;
    assert_null(nd_msg_work(&m));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(actions_are_zeroed_and_kept_in_order),
        cmocka_unit_test(the_list_is_bounded_and_says_when_it_overflows),
        cmocka_unit_test(copies_live_until_the_reset),
        cmocka_unit_test(parameters_that_do_not_fit_are_refused),
        cmocka_unit_test(the_work_of_a_message_is_found),
    };
    return cmocka_run_group_tests_name("node/core", tests, NULL, NULL);
}
