/* A sliding window is retention: blocks that no token sees any more go back to the pool, and are not
 * asked of prefill. */
#include "decode-node/dc_core.h"

#include "common/base/log.h"
#include "prefill-node/pf_core.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define D 0u
#define P 1u

static struct rig *rig_of(uint32_t n_blocks, uint32_t window, bool local, uint32_t steps)
{
    struct rig_params p = {.n_blocks = n_blocks,
                           .window = window,
                           .local_prefill = local,
                           .steps_in_flight = steps,
                           .max_model_len = 1024};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &p), D);
    if (!local) {
        p.n_blocks = 64;
        assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    }
    return r;
}

static uint32_t held(const struct rig *r)
{
    return r->node[D].info.n_blocks - rig_blocks(r, D, TD_BLK_FREE);
}

static struct td_wire_request asked(struct rig *r, uint64_t counter, uint32_t prompt, uint32_t out)
{
    struct td_wire_request q = rig_request(counter, prompt, out);
    q.budget_ms = 3600000;
    struct td_wire_msg m = rig_reserve_local(&q);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    return q;
}

static void a_stream_longer_than_the_pool_goes_on_in_a_window_of_blocks(void **state)
{
    static const uint32_t windows[] = {1, 15, 16, 17, 33, 64};
    (void)state;
    for (uint32_t steps = 1; steps <= 2; steps++) {
        for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
            struct rig *r = rig_of(8, windows[i], true, steps);
            struct td_wire_request q = asked(r, 1, 20, 300);
            uint32_t most = 0;
            while (rig_finish(r, D)) {
                most = held(r) > most ? held(r) : most;
            }
            assert_int_equal(rig_end(r, D, &q.id)->err, TD_OK);
            assert_int_equal(rig_tokens(r, &q), 300);
            assert_true(most <= (windows[i] - 1) / RIG_BLOCK + 3); /* and the one planned ahead */
            rig_assert_idle(r, D);
            (void)rig_destroy(r);
        }
    }
}

static void a_prompt_gives_its_hidden_blocks_back_chunk_by_chunk(void **state)
{
    (void)state;
    struct rig *r = rig_of(64, 32, true, 1);
    struct td_wire_request q = asked(r, 1, 320, 40); /* 20 blocks, chunks of 64 */
    assert_int_equal(held(r), 20);
    (void)rig_finish(r, D);
    assert_int_equal(held(r), 18); /* the token at 64 sees from 33 on */
    (void)rig_finish(r, D);
    assert_int_equal(held(r), 14);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 40);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void only_what_the_window_shows_is_asked_of_prefill(void **state)
{
    static const uint32_t prompts[] = {10, 40, 41, 47, 48, 64, 100, 333};
    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        struct rig *r = rig_of(24, 40, false, 2);
        struct td_wire_request q = rig_request(1 + i, prompts[i], 120);
        rig_ask(r, P, D, &q);
        rig_deliver(r);
        const struct td_wire_table *t = &rig_last(r, D, TD_WIRE_TABLE, &q.id)->table;
        uint32_t first = prompts[i] >= 40 ? (prompts[i] - 39) / RIG_BLOCK * RIG_BLOCK : 0;
        assert_int_equal(t->first_tok, first);
        assert_int_equal(t->first_tok + t->n_tok, prompts[i]);
        assert_int_equal(t->n_blocks, (prompts[i] + RIG_BLOCK - 1) / RIG_BLOCK - first / RIG_BLOCK);
        rig_settle(r);
        assert_int_equal(rig_end(r, D, &q.id)->err, TD_OK);
        assert_int_equal(rig_tokens(r, &q), 120);
        rig_assert_idle(r, D);
        rig_assert_idle(r, P);
        (void)rig_destroy(r);
    }
}

static void blocks_of_an_open_land_wait_for_its_fence(void **state)
{
    (void)state;
    struct rig *r = rig_of(24, 16, false, 1);
    struct td_wire_request q = rig_request(1, 64, 90);
    r->node[D].hold_unlanded = true;
    rig_ask(r, P, D, &q);
    for (int i = 0; i < 40; i++) {
        rig_deliver(r);
        (void)rig_finish(r, P);
        (void)rig_finish(r, D);
    }
    uint32_t landed = rig_last(r, D, TD_WIRE_TABLE, &q.id)->table.n_blocks;
    assert_true(rig_tokens(r, &q) > 20);
    /* nothing was given back while slices might still come */
    assert_true(held(r) >= landed + (rig_tokens(r, &q) - 1) / RIG_BLOCK);
    rig_fence(r, D);
    rig_deliver(r);
    assert_true(held(r) <= 2);
    r->node[D].hold_unlanded = false;
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 90);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_last_block_of_a_prompt_is_always_asked_for(void **state)
{
    (void)state;
    struct rig *r = rig_of(24, 1, false, 1); /* the token at 64 sees nothing but itself */
    struct td_wire_request q = rig_request(1, 64, 40);
    rig_ask(r, P, D, &q);
    rig_settle(r);
    assert_int_equal(rig_last(r, D, TD_WIRE_TABLE, &q.id)->table.n_blocks, 1);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_OK);
    assert_int_equal(rig_tokens(r, &q), 40);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void learn_short_outputs(struct rig *r)
{
    for (uint64_t i = 0; i < 20; i++) {
        struct td_wire_request q = rig_request(100 + i, 10, 400);
        q.sampling.n_stop_ids = 1;
        q.sampling.stop_ids[0] = rig_expect(&q, 2);
        struct td_wire_msg m = rig_reserve_local(&q);
        rig_msg(r, D, &m, TD_OK);
        rig_settle(r);
    }
}

/* Blocks that a victim never had, or has given back, are not waited for. */
static void a_victim_owes_what_it_holds(void **state)
{
    (void)state;
    struct rig *r = rig_of(8, 32, true, 1);
    struct rig_params p = {.n_blocks = 64, .window = 32, .max_model_len = 1024};
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    learn_short_outputs(r);
    struct td_wire_request a = asked(r, 1, 20, 100), b = asked(r, 2, 20, 100);
    struct td_wire_request young = rig_request(3, 100, 50); /* 3 of its 7 blocks */
    young.priority = 3;
    struct td_wire_msg m = rig_reserve(r, P, D, &young);
    r->node[D].hold_unlanded = true;
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    assert_string_equal(rig_wait(r, D, &young.id), "slices and record from prefill");
    while (rig_finish(r, D)) {
    }
    assert_int_equal(rig_end(r, D, &young.id)->err, TD_ERR_NO_CAPACITY);
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 3);
    r->node[D].hold_unlanded = false;
    rig_fence(r, D);
    struct td_wire_request next = asked(r, 4, 20, 5); /* nothing is owed any more */
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &a), 100);
    assert_int_equal(rig_tokens(r, &b), 100);
    assert_int_equal(rig_tokens(r, &next), 5);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_account_admits_what_a_window_lets_fit(void **state)
{
    (void)state;
    struct rig *r = rig_of(16, 32, true, 1); /* each grows to 4 blocks, not to 20 */
    struct td_wire_request q[3];
    for (uint32_t i = 0; i < 3; i++) {
        q[i] = asked(r, 1 + i, 20, 300);
    }
    for (uint32_t i = 0; i < 3; i++) {
        assert_string_not_equal(rig_wait(r, D, &q[i].id), "room in the pool");
    }
    rig_settle(r);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rig_tokens(r, &q[i]), 300);
    }
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_longer_than_the_pool_goes_on_in_a_window_of_blocks),
        cmocka_unit_test(a_prompt_gives_its_hidden_blocks_back_chunk_by_chunk),
        cmocka_unit_test(only_what_the_window_shows_is_asked_of_prefill),
        cmocka_unit_test(blocks_of_an_open_land_wait_for_its_fence),
        cmocka_unit_test(the_last_block_of_a_prompt_is_always_asked_for),
        cmocka_unit_test(a_victim_owes_what_it_holds),
        cmocka_unit_test(the_account_admits_what_a_window_lets_fit),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/window", tests, NULL, NULL);
}
