/* The doors of the decode core: creation, events of the node, what is shown to the outside. */
#include "decode-node/dc_core.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define NODE 0u

static struct td_wire_msg ask(const struct rig *r, const struct td_wire_request *q)
{
    (void)r;
    return rig_reserve_local(q);
}

static struct rig *one(uint32_t n_blocks)
{
    struct rig_params p = {.n_blocks = n_blocks, .local_prefill = true};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &p), NODE);
    return r;
}

static struct td_wire_request put(struct rig *r, uint64_t counter, uint64_t router, uint32_t prompt)
{
    struct td_wire_request q = rig_request(counter, prompt, 6);
    q.id.router_epoch = router;
    struct td_wire_msg m = ask(r, &q);
    rig_msg(r, NODE, &m, TD_OK);
    rig_deliver(r);
    return q;
}

static struct nd_core_params params(const struct td_engine_info *e)
{
    return (struct nd_core_params){.epoch = 1,
                                   .layout_id = 2,
                                   .engine = e,
                                   .max_seqs = 4,
                                   .max_queue = 4,
                                   .max_batched_tokens = 32,
                                   .chunk_tokens = 16,
                                   .t_stall_us = 1000,
                                   .t_lease_us = 1000};
}

static struct td_engine_info engine(void)
{
    return (struct td_engine_info){.layout = {.block_tok = 16, .slice_bytes = 64},
                                   .n_layers = 2,
                                   .n_vocab = 10,
                                   .max_model_len = 64,
                                   .n_blocks = 8,
                                   .max_rows = 4,
                                   .max_tokens = 64,
                                   .max_slots = 4};
}

static void creation_refuses_parameters_that_do_not_fit(void **state)
{
    struct td_engine_info e = engine();
    struct nd_core_params p = params(&e);
    void *core = NULL;
    (void)state;
    td_log_set_fd(-1);
    p.chunk_tokens = 17;
    assert_int_equal(dc_role_ops.create(&p, &core), TD_ERR_CONFIG);
    assert_null(core);
    td_log_set_fd(STDERR_FILENO);
    dc_role_ops.destroy(NULL);
}

#if TD_WITH_FAULTS
static void creation_survives_every_failed_allocation(void **state)
{
    struct td_engine_info e = engine();
    struct nd_core_params p = params(&e);
    (void)state;
    td_err err = TD_ERR_NO_MEMORY;
    for (unsigned nth = 1; err != TD_OK; nth++) {
        void *core = NULL;
        td_mem_fail_nth(nth);
        err = dc_role_ops.create(&p, &core);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
        dc_role_ops.destroy(core);
    }
    td_mem_fail_nth(0);
}
#endif

static void an_idle_core_waits_for_nothing(void **state)
{
    (void)state;
    struct rig *r = one(64);
    rig_plain(r, NODE, ND_EV_ROUTER_UP, 0);
    rig_plain(r, NODE, ND_EV_TICK, 0);
    rig_deliver(r);
    rig_assert_idle(r, NODE);
    struct td_wire_state s = rig_state(r, NODE);
    assert_int_equal(s.role, TD_ROLE_BOTH);
    assert_int_equal(s.blocks[TD_BLK_FREE], 64);
    assert_false(s.draining);
    (void)rig_destroy(r);
}

static void the_state_counts_what_waits_and_what_runs(void **state)
{
    (void)state;
    struct rig *r = one(16);
    for (uint64_t i = 0; i < 3; i++) {
        (void)put(r, i, RIG_ROUTER, 100); /* 7 blocks each */
    }
    struct td_wire_state s = rig_state(r, NODE);
    assert_int_equal(s.queued_requests, 1);
    assert_int_equal(s.running_requests, 2);
    assert_true(s.queued_prompt_tok >= 100 && s.queued_prompt_tok <= 300);
    uint32_t sum = 0;
    for (unsigned b = 0; b < TD_BLK_STATES; b++) {
        sum += s.blocks[b];
    }
    assert_int_equal(sum, 16);
    (void)rig_finish(r, NODE);
    (void)rig_finish(r, NODE);
    assert_true(rig_state(r, NODE).prefill_us_per_ktok > 0);
    (void)rig_destroy(r);
}

static void a_lost_router_takes_its_own_work_only(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request mine = put(r, 1, RIG_ROUTER, 100);
    struct td_wire_request other = put(r, 2, 777, 100);
    rig_plain(r, NODE, ND_EV_ROUTER_LOST, 0);
    rig_settle(r);
    assert_null(rig_end(r, NODE, &mine.id));
    assert_int_equal(rig_count(r, NODE, TD_WIRE_TOKENS, &mine.id), 0);
    assert_int_equal(rig_tokens(r, &mine), 0);
    assert_int_equal(rig_tokens(r, &other), 6);
    (void)rig_destroy(r);
}

static void a_drain_admits_nothing_and_lets_the_rest_finish(void **state)
{
    (void)state;
    struct rig *r = one(16);
    struct td_wire_request running = put(r, 1, RIG_ROUTER, 100);
    struct td_wire_request queued = put(r, 2, RIG_ROUTER, 150);
    rig_plain(r, NODE, ND_EV_DRAIN, r->now + 40 * RIG_SECOND);
    rig_deliver(r);
    struct td_wire_request late = put(r, 3, RIG_ROUTER, 10);
    assert_true(rig_state(r, NODE).draining);
    assert_int_equal(rig_end(r, NODE, &late.id)->err, TD_ERR_DRAINING);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &running), 6);
    assert_int_equal(rig_tokens(r, &queued), 6);
    rig_pass(r, 41 * RIG_SECOND);
    rig_assert_idle(r, NODE);
    (void)queued;
    (void)rig_destroy(r);
}

static void an_undrained_node_admits_again_and_forgets_the_limit(void **state)
{
    (void)state;
    struct rig *r = one(16);
    rig_plain(r, NODE, ND_EV_DRAIN, r->now + 3 * RIG_SECOND);
    rig_deliver(r);
    assert_true(rig_state(r, NODE).draining);
    rig_plain(r, NODE, ND_EV_UNDRAIN, 0);
    rig_deliver(r);
    assert_false(rig_state(r, NODE).draining);
    struct td_wire_request q = put(r, 1, RIG_ROUTER, 100);
    rig_pass(r, 4 * RIG_SECOND);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 6);
    (void)rig_destroy(r);
}

static void the_shorter_of_two_drain_limits_holds(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = put(r, 1, RIG_ROUTER, 100);
    rig_plain(r, NODE, ND_EV_DRAIN, r->now + 20 * RIG_SECOND);
    rig_plain(r, NODE, ND_EV_DRAIN, r->now + 3 * RIG_SECOND);
    rig_plain(r, NODE, ND_EV_DRAIN, r->now + 30 * RIG_SECOND);
    rig_deliver(r);
    rig_pass(r, 2 * RIG_SECOND);
    assert_null(rig_end(r, NODE, &q.id));
    rig_pass(r, 2 * RIG_SECOND);
    assert_int_equal(rig_end(r, NODE, &q.id)->err, TD_ERR_DRAINING);
    rig_settle(r);
    rig_assert_idle(r, NODE);
    (void)rig_destroy(r);
}

static void a_message_for_the_other_role_is_refused(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 10, 5);
    struct td_wire_msg m = rig_prefill(r, NODE, 1, &q);
    rig_msg(r, NODE, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, NODE, &q.id)->err, TD_ERR_UNSUPPORTED);
    rig_assert_idle(r, NODE);
    (void)rig_destroy(r);
}

static void a_result_of_a_step_that_does_not_run_is_dropped(void **state)
{
    struct td_step_result result = {.ticket = 99};
    struct nd_event ev = {.type = ND_EV_STEP, .step = &result};
    (void)state;
    struct rig *r = one(64);
    (void)put(r, 1, RIG_ROUTER, 100);
    td_log_set_fd(-1);
    nd_actions_reset(&r->node[NODE].actions);
    dc_role_ops.step(r->node[NODE].core, r->now, &ev, &r->node[NODE].actions);
    td_log_set_fd(STDERR_FILENO);
    assert_int_equal(r->node[NODE].actions.n, 0);
    assert_int_equal(dc_role_ops.check(r->node[NODE].core), TD_OK);
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_refuses_parameters_that_do_not_fit),
#if TD_WITH_FAULTS
        cmocka_unit_test(creation_survives_every_failed_allocation),
#endif
        cmocka_unit_test(an_idle_core_waits_for_nothing),
        cmocka_unit_test(the_state_counts_what_waits_and_what_runs),
        cmocka_unit_test(a_lost_router_takes_its_own_work_only),
        cmocka_unit_test(a_drain_admits_nothing_and_lets_the_rest_finish),
        cmocka_unit_test(an_undrained_node_admits_again_and_forgets_the_limit),
        cmocka_unit_test(the_shorter_of_two_drain_limits_holds),
        cmocka_unit_test(a_message_for_the_other_role_is_refused),
        cmocka_unit_test(a_result_of_a_step_that_does_not_run_is_dropped),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("decode-node/dc_core", tests, NULL, NULL);
}
