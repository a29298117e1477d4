/* The doors of the decode core: creation, events of the node, what is shown to the outside. */
#include "decode-node/dc_core.h"

#include "common/base/mem.h"
#include "tests/unit/node/role_cases.h"

static struct td_wire_msg ask(const struct rig *r, const struct td_wire_request *q)
{
    (void)r;
    return rig_reserve_local(q);
}

static struct td_wire_msg other(const struct rig *r, const struct td_wire_request *q)
{
    return rig_prefill(r, ROLE_NODE, 1, q);
}

static const struct role_case decode = {.ops = &dc_role_ops,
                                        .shown = TD_ROLE_BOTH,
                                        .local_prefill = true,
                                        .n_tokens = 6,
                                        .ask = ask,
                                        .other = other};

static void a_drain_admits_nothing_and_lets_the_rest_finish(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 16);
    struct td_wire_request running = role_case_put(c, r, 1, RIG_ROUTER, 100);
    struct td_wire_request queued = role_case_put(c, r, 2, RIG_ROUTER, 150);
    rig_plain(r, ROLE_NODE, ND_EV_DRAIN, r->now + 40 * RIG_SECOND);
    rig_deliver(r);
    struct td_wire_request late = role_case_put(c, r, 3, RIG_ROUTER, 10);
    assert_true(rig_state(r, ROLE_NODE).draining);
    assert_int_equal(rig_end(r, ROLE_NODE, &late.id)->err, TD_ERR_DRAINING);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &running), 6);
    assert_int_equal(rig_tokens(r, &queued), 6);
    rig_pass(r, 41 * RIG_SECOND);
    rig_assert_idle(r, ROLE_NODE);
    (void)queued;
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(a_drain_admits_nothing_and_lets_the_rest_finish),
    };
    return role_cases_run("decode-node/dc_core", &decode, own, TD_COUNT(own));
}
