#include "tests/unit/node/role_cases.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"

#define MAX_TESTS 32

struct nd_core_params role_params(const struct td_engine_info *e)
{
    return (struct nd_core_params){.epoch = 1,
                                   .layout_id = 2,
                                   .engine = e,
                                   .max_seqs = 4,
                                   .max_queue = 4,
                                   .max_batched_tokens = 32,
                                   .chunk_tokens = 16,
                                   .steps_in_flight = 1,
                                   .t_stall_us = 1000,
                                   .t_lease_us = 1000};
}

struct td_engine_info role_engine(void)
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

struct rig *role_case_rig(const struct role_case *c, uint32_t n_blocks)
{
    struct rig_params p = {.n_blocks = n_blocks, .local_prefill = c->local_prefill};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, c->ops, &p), ROLE_NODE);
    return r;
}

struct td_wire_request role_case_put(const struct role_case *c, struct rig *r, uint64_t counter,
                                     uint64_t router, uint32_t prompt)
{
    struct td_wire_request q = rig_request(counter, prompt, 6);
    q.id.router_epoch = router;
    struct td_wire_msg m = c->ask(r, &q);
    rig_msg(r, ROLE_NODE, &m, TD_OK);
    rig_deliver(r);
    return q;
}

static void creation_refuses_a_chunk_that_is_not_whole_blocks(void **state)
{
    const struct role_case *c = *state;
    struct td_engine_info e = role_engine();
    struct nd_core_params p = role_params(&e);
    void *core = NULL;
    td_log_set_fd(-1);
    p.chunk_tokens = 17;
    assert_int_equal(c->ops->create(&p, &core), TD_ERR_CONFIG);
    assert_null(core);
    td_log_set_fd(STDERR_FILENO);
    c->ops->destroy(NULL);
}

#if TD_WITH_FAULTS
static void creation_survives_every_failed_allocation(void **state)
{
    const struct role_case *c = *state;
    struct td_engine_info e = role_engine();
    struct nd_core_params p = role_params(&e);
    td_err err = TD_ERR_NO_MEMORY;
    for (unsigned nth = 1; err != TD_OK; nth++) {
        void *core = NULL;
        td_mem_fail_nth(nth);
        err = c->ops->create(&p, &core);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
        c->ops->destroy(core);
    }
    td_mem_fail_nth(0);
}
#endif

static void an_idle_core_waits_for_nothing(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 64);
    rig_plain(r, ROLE_NODE, ND_EV_ROUTER_UP, 0);
    rig_plain(r, ROLE_NODE, ND_EV_TICK, 0);
    rig_deliver(r);
    rig_assert_idle(r, ROLE_NODE);
    struct td_wire_state s = rig_state(r, ROLE_NODE);
    assert_int_equal(s.role, c->shown);
    assert_int_equal(s.blocks[TD_BLK_FREE], 64);
    assert_false(s.draining);
    (void)rig_destroy(r);
}

static void the_state_counts_what_waits_and_what_runs(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 16);
    for (uint64_t i = 0; i < 3; i++) {
        (void)role_case_put(c, r, i, RIG_ROUTER, 100); /* 7 blocks each */
    }
    struct td_wire_state s = rig_state(r, ROLE_NODE);
    assert_int_equal(s.queued_requests, 1);
    assert_int_equal(s.running_requests, 2);
    assert_true(s.queued_prompt_tok >= 100 && s.queued_prompt_tok <= 300);
    uint32_t sum = 0;
    for (unsigned b = 0; b < TD_BLK_STATES; b++) {
        sum += s.blocks[b];
    }
    assert_int_equal(sum, 16);
    (void)rig_finish(r, ROLE_NODE);
    (void)rig_finish(r, ROLE_NODE);
    assert_true(rig_state(r, ROLE_NODE).prefill_us_per_ktok > 0);
    (void)rig_destroy(r);
}

static void a_lost_router_takes_its_own_work_only(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 64);
    struct td_wire_request mine = role_case_put(c, r, 1, RIG_ROUTER, 100);
    struct td_wire_request other = role_case_put(c, r, 2, 777, 100);
    rig_plain(r, ROLE_NODE, ND_EV_ROUTER_LOST, 0);
    rig_settle(r);
    assert_null(rig_end(r, ROLE_NODE, &mine.id));
    assert_int_equal(rig_count(r, ROLE_NODE, TD_WIRE_TOKENS, &mine.id), 0);
    assert_int_equal(rig_tokens(r, &mine), 0);
    assert_int_equal(rig_tokens(r, &other), c->n_tokens);
    (void)rig_destroy(r);
}

static void the_shorter_of_two_drain_limits_holds(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 64);
    struct td_wire_request q = role_case_put(c, r, 1, RIG_ROUTER, 100);
    rig_plain(r, ROLE_NODE, ND_EV_DRAIN, r->now + 20 * RIG_SECOND);
    rig_plain(r, ROLE_NODE, ND_EV_DRAIN, r->now + 3 * RIG_SECOND);
    rig_plain(r, ROLE_NODE, ND_EV_DRAIN, r->now + 30 * RIG_SECOND);
    rig_deliver(r);
    rig_pass(r, 2 * RIG_SECOND);
    assert_null(rig_end(r, ROLE_NODE, &q.id));
    rig_pass(r, 2 * RIG_SECOND);
    assert_int_equal(rig_end(r, ROLE_NODE, &q.id)->err, TD_ERR_DRAINING);
    rig_settle(r);
    rig_assert_idle(r, ROLE_NODE);
    (void)rig_destroy(r);
}

static void a_message_for_the_other_role_is_refused(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 64);
    struct td_wire_request q = rig_request(1, 10, 5);
    struct td_wire_msg m = c->other(r, &q);
    rig_msg(r, ROLE_NODE, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, ROLE_NODE, &q.id)->err, TD_ERR_UNSUPPORTED);
    rig_assert_idle(r, ROLE_NODE);
    (void)rig_destroy(r);
}

static void a_result_of_a_step_that_does_not_run_is_dropped(void **state)
{
    const struct role_case *c = *state;
    struct td_step_result result = {.ticket = 99};
    struct nd_event ev = {.type = ND_EV_STEP, .step = &result};
    struct rig *r = role_case_rig(c, 64);
    (void)role_case_put(c, r, 1, RIG_ROUTER, 100);
    td_log_set_fd(-1);
    nd_actions_reset(&r->node[ROLE_NODE].actions);
    c->ops->step(r->node[ROLE_NODE].core, r->now, &ev, &r->node[ROLE_NODE].actions);
    td_log_set_fd(STDERR_FILENO);
    assert_int_equal(r->node[ROLE_NODE].actions.n, 0);
    assert_int_equal(c->ops->check(r->node[ROLE_NODE].core), TD_OK);
    (void)rig_destroy(r);
}

static void an_undrained_node_admits_again_and_forgets_the_limit(void **state)
{
    const struct role_case *c = *state;
    struct rig *r = role_case_rig(c, 16);
    rig_plain(r, ROLE_NODE, ND_EV_DRAIN, r->now + 3 * RIG_SECOND);
    rig_deliver(r);
    assert_true(rig_state(r, ROLE_NODE).draining);
    rig_plain(r, ROLE_NODE, ND_EV_UNDRAIN, 0);
    rig_deliver(r);
    assert_false(rig_state(r, ROLE_NODE).draining);
    struct td_wire_request q = role_case_put(c, r, 1, RIG_ROUTER, 100);
    rig_settle(r);
    rig_pass(r, 4 * RIG_SECOND);
    assert_int_equal(rig_tokens(r, &q), c->n_tokens); /* neither refused nor cut */
    (void)rig_destroy(r);
}

int role_cases_run(const char *name, const struct role_case *c, const struct CMUnitTest *own,
                   size_t n_own)
{
    const struct CMUnitTest shared[] = {
        cmocka_unit_test(creation_refuses_a_chunk_that_is_not_whole_blocks),
#if TD_WITH_FAULTS
        cmocka_unit_test(creation_survives_every_failed_allocation),
#endif
        cmocka_unit_test(an_idle_core_waits_for_nothing),
        cmocka_unit_test(the_state_counts_what_waits_and_what_runs),
        cmocka_unit_test(a_lost_router_takes_its_own_work_only),
        cmocka_unit_test(the_shorter_of_two_drain_limits_holds),
        cmocka_unit_test(a_message_for_the_other_role_is_refused),
        cmocka_unit_test(a_result_of_a_step_that_does_not_run_is_dropped),
        cmocka_unit_test(an_undrained_node_admits_again_and_forgets_the_limit),
    };
    struct CMUnitTest all[MAX_TESTS];
    size_t n = sizeof shared / sizeof shared[0];
    assert_true(n + n_own <= MAX_TESTS);
    memcpy(all, shared, sizeof shared);
    memcpy(all + n, own, n_own * sizeof *own);
    for (size_t i = 0; i < n + n_own; i++) {
        all[i].initial_state = (void *)(uintptr_t)c; /* only read */
    }
    td_log_set_level(TD_LOG_ERROR);
    return _cmocka_run_group_tests(name, all, n + n_own, NULL, NULL);
}
