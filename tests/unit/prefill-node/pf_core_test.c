/* The doors of the prefill core: creation, events of the node, what is shown to the outside. */
#include "prefill-node/pf_core.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/node/role_cases.h"

static struct td_wire_msg ask(const struct rig *r, const struct td_wire_request *q)
{
    return rig_prefill(r, ROLE_NODE, 1, q);
}

static struct td_wire_msg other(const struct rig *r, const struct td_wire_request *q)
{
    return rig_reserve(r, 1, ROLE_NODE, q);
}

static const struct role_case prefill = {
    .ops = &pf_role_ops, .shown = TD_ROLE_PREFILL, .n_tokens = 1, .ask = ask, .other = other};

static void a_slice_longer_than_a_message_is_refused(void **state)
{
    struct td_engine_info e = role_engine();
    struct nd_core_params p = role_params(&e);
    void *core = NULL;
    (void)state;
    e.layout.slice_bytes = TD_XFER_MAX_MSG;
    assert_int_equal(pf_role_ops.create(&p, &core), TD_ERR_CONFIG);
    assert_null(core);
}

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
    assert_int_equal(rig_tokens(r, &running), 1);
    assert_string_equal(rig_wait(r, ROLE_NODE, &running.id), "decode's block table");
    rig_pass(r, 31 * RIG_SECOND); /* the lease ends, the other one gets its blocks */
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &queued), 1);
    assert_null(rig_end(r, ROLE_NODE, &queued.id));
    rig_pass(r, 10 * RIG_SECOND);
    assert_int_equal(rig_end(r, ROLE_NODE, &queued.id)->err, TD_ERR_DRAINING);
    rig_assert_idle(r, ROLE_NODE);
    (void)queued;
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(a_slice_longer_than_a_message_is_refused),
        cmocka_unit_test(a_drain_admits_nothing_and_lets_the_rest_finish),
    };
    return role_cases_run("prefill-node/pf_core", &prefill, own, TD_COUNT(own));
}
