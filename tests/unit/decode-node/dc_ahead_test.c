/* Two steps in flight: the second one is planned while the first one runs, with tokens that only the
 * engine knows. The other tests of the decode core, dc_test.c, run with one step and with two. */
#include "decode-node/dc_core.h"

#include "common/base/log.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define D 0u

static struct rig *two_steps(uint32_t n_blocks)
{
    struct rig_params p = {.n_blocks = n_blocks, .local_prefill = true, .steps_in_flight = 2};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &p), D);
    return r;
}

static struct td_wire_request ask(struct rig *r, const struct td_wire_request *q)
{
    struct td_wire_msg m = rig_reserve_local(q);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    return *q;
}

static struct td_wire_request asked(struct rig *r, uint64_t counter, uint32_t prompt, uint32_t out)
{
    struct td_wire_request q = rig_request(counter, prompt, out);
    return ask(r, &q);
}

static const struct rig_step *step_at(const struct rig *r, uint32_t i)
{
    assert_true(i < r->node[D].n_steps);
    return &r->node[D].steps[i];
}

/* The prompt's step is over: from here on every step decodes. */
static void past_prompt(struct rig *r)
{
    (void)rig_finish(r, D);
}

static void the_second_step_takes_its_token_from_the_engine(void **state)
{
    (void)state;
    struct rig *r = two_steps(64);
    struct td_wire_request q = asked(r, 1, 20, 9);
    assert_int_equal(r->node[D].n_steps, 1); /* its first token is not planned ahead */
    past_prompt(r);
    assert_int_equal(r->node[D].n_steps, 2);
    assert_non_null(step_at(r, 0)->rows[0].tokens);
    assert_null(step_at(r, 1)->rows[0].tokens);
    assert_int_equal(step_at(r, 1)->rows[0].pos, step_at(r, 0)->rows[0].pos + 1);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 9);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_last_token_by_length_is_not_passed(void **state)
{
    (void)state;
    struct rig *r = two_steps(64);
    struct td_wire_request q = asked(r, 1, 20, 7);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 7);
    assert_int_equal(r->node[D].ticket, 7); /* one step for each token, none for nothing */
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_models_limit_is_not_passed(void **state)
{
    (void)state;
    struct rig_params p = {
        .n_blocks = 64, .local_prefill = true, .steps_in_flight = 2, .max_model_len = 24};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &p), D);
    struct td_wire_request q = asked(r, 1, 20, 50);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 4);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_LENGTH);
    assert_int_equal(r->node[D].ticket, 4);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_stop_found_late_ends_the_stream_at_once_and_the_blocks_after_the_step(void **state)
{
    (void)state;
    struct rig *r = two_steps(64);
    struct td_wire_request q = rig_request(1, 20, 50);
    q.sampling.n_stop_ids = 1;
    q.sampling.stop_ids[0] = rig_expect(&q, 4);
    (void)ask(r, &q);
    while (rig_end(r, D, &q.id) == NULL) {
        assert_true(rig_finish(r, D));
    }
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_OK);
    assert_int_equal(rig_tokens(r, &q), 5);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_STOP);
    assert_int_equal(r->node[D].n_steps, 1); /* with its row */
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 2);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 5);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_cancel_waits_for_both_steps_before_slot_and_blocks_go_to_another(void **state)
{
    (void)state;
    struct rig_params p = {
        .n_blocks = 64, .local_prefill = true, .steps_in_flight = 2, .max_slots = 1};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &p), D);
    struct td_wire_request q = asked(r, 1, 20, 50);
    past_prompt(r);
    (void)rig_finish(r, D);
    assert_int_equal(r->node[D].n_steps, 2);
    struct td_wire_msg m = rig_cancel(&q.id);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    struct td_wire_request next = asked(r, 2, 20, 5);
    assert_string_equal(rig_wait(r, D, &next.id), "room in the pool");
    (void)rig_finish(r, D);
    assert_string_equal(rig_wait(r, D, &next.id), "room in the pool");
    (void)rig_finish(r, D);
    assert_string_equal(rig_wait(r, D, &next.id), "its chunks to be computed");
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &next), 5);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void looking_ahead_ends_nobody(void **state)
{
    (void)state;
    struct rig *r = two_steps(4);
    struct td_wire_request a =
        rig_request(1, 20, 200); /* 2 blocks, as a matter of luck: it stops */
    struct td_wire_request b = rig_request(2, 20, 200);
    a.sampling.n_stop_ids = b.sampling.n_stop_ids = 1;
    a.sampling.stop_ids[0] = rig_expect(&a, 12); /* with the last cell of its second block filled */
    b.sampling.stop_ids[0] = rig_expect(&b, 12);
    for (uint64_t i = 0; i < 20; i++) { /* outputs are short here, it has learnt */
        struct td_wire_request q = rig_request(100 + i, 10, 400);
        q.sampling.n_stop_ids = 1;
        q.sampling.stop_ids[0] = rig_expect(&q, 2);
        (void)ask(r, &q);
        rig_settle(r);
    }
    (void)ask(r, &a);
    (void)ask(r, &b);
    rig_settle(r);
    assert_int_equal(rig_end(r, D, &a.id)->err, TD_OK);
    assert_int_equal(rig_end(r, D, &b.id)->err, TD_OK);
    assert_int_equal(rig_tokens(r, &a), 13);
    assert_int_equal(rig_tokens(r, &b), 13);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void chunks_of_a_prompt_follow_each_other_without_waiting(void **state)
{
    (void)state;
    struct rig *r = two_steps(128);
    struct td_wire_request q = asked(r, 1, 200, 6); /* chunks of 64 */
    assert_int_equal(r->node[D].n_steps, 2);
    assert_int_equal(step_at(r, 0)->rows[0].pos, 0);
    assert_int_equal(step_at(r, 1)->rows[0].pos, 64);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 6);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_row_that_fails_ends_with_the_step_planned_on_it(void **state)
{
    (void)state;
    struct rig *r = two_steps(64);
    struct td_wire_request q = asked(r, 1, 20, 50);
    past_prompt(r);
    r->node[D].fail_rows = true;
    (void)rig_finish(r, D);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_DEVICE);
    rig_settle(r);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_step_takes_its_token_from_the_engine),
        cmocka_unit_test(a_last_token_by_length_is_not_passed),
        cmocka_unit_test(the_models_limit_is_not_passed),
        cmocka_unit_test(a_stop_found_late_ends_the_stream_at_once_and_the_blocks_after_the_step),
        cmocka_unit_test(a_cancel_waits_for_both_steps_before_slot_and_blocks_go_to_another),
        cmocka_unit_test(looking_ahead_ends_nobody),
        cmocka_unit_test(chunks_of_a_prompt_follow_each_other_without_waiting),
        cmocka_unit_test(a_row_that_fails_ends_with_the_step_planned_on_it),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("decode-node/dc_ahead", tests, NULL, NULL);
}
