#include "common/node/tokens.h"

#include "tests/unit/check.h"

static void add(struct nd_tokens *t, uint64_t router, uint64_t counter)
{
    struct td_wire_token x = {.id = {router, counter, 0, 0}, .token = (int32_t)counter};
    nd_tokens_add(t, &x);
}

static void each_router_gets_one_message_with_its_own_in_order(void **state)
{
    struct nd_actions a;
    (void)state;
    assert_int_equal(nd_actions_init(&a, ND_MIN_ACTIONS), TD_OK);
    struct nd_tokens *t = nd_tokens_create(16);
    for (uint64_t i = 0; i < 9; i++) {
        add(t, 7 + i % 3, i);
    }
    nd_tokens_flush(t, 42, &a);
    assert_int_equal(a.n, 3);
    for (uint32_t i = 0; i < 3; i++) {
        const struct td_wire_tokens *m = &a.list[i].msg->tokens;
        assert_int_equal(a.list[i].router_epoch, 7 + i);
        assert_int_equal(m->step, 42);
        assert_int_equal(m->n, 3);
        for (uint32_t k = 0; k < 3; k++) {
            assert_int_equal(m->tokens[k].token, i + 3 * k);
        }
    }
    nd_actions_reset(&a);
    nd_tokens_flush(t, 43, &a);
    assert_int_equal(a.n, 0);
    assert_null(nd_tokens_destroy(t));
    nd_actions_fini(&a);
}

static void a_message_is_cut_at_its_bound(void **state)
{
    struct nd_actions a;
    (void)state;
    assert_int_equal(nd_actions_init(&a, ND_MIN_ACTIONS), TD_OK);
    struct nd_tokens *t = nd_tokens_create(TD_WIRE_MAX_TOKENS_MSG + 10);
    for (uint64_t i = 0; i < TD_WIRE_MAX_TOKENS_MSG + 10; i++) {
        add(t, 1, i);
    }
    CHECK_ABORTS(add(t, 1, 0));
    nd_tokens_flush(t, 1, &a);
    assert_int_equal(a.n, 2);
    assert_int_equal(a.list[0].msg->tokens.n, TD_WIRE_MAX_TOKENS_MSG);
    assert_int_equal(a.list[1].msg->tokens.n, 10);
    assert_int_equal(a.list[1].msg->tokens.tokens[0].token, TD_WIRE_MAX_TOKENS_MSG);
    assert_null(nd_tokens_destroy(t));
    nd_actions_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_router_gets_one_message_with_its_own_in_order),
        cmocka_unit_test(a_message_is_cut_at_its_bound),
    };
    return cmocka_run_group_tests_name("node/tokens", tests, NULL, NULL);
}
