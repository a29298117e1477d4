/* Why a pair lost, from records made by hand; the whole chain as JSON from a core. */
#include "router/rt_explain.h"

#include <string.h>

#include <jansson.h>

#include "common/base/log.h"
#include "tests/unit/check.h"

static const char *why(struct rt_candidate won, struct rt_candidate other)
{
    static struct rt_decision_record r;
    static char buf[160];
    r.candidates[0] = won;
    r.candidates[1] = other;
    r.n_candidates = 2;
    assert_string_equal(rt_explain_why_not(&r, 0, buf, sizeof buf), "");
    return rt_explain_why_not(&r, 1, buf, sizeof buf);
}

static void the_reason_names_what_cost_the_pair_most(void **state)
{
    (void)state;
    const struct rt_candidate won = {.prefill_us = 1000, .decode_us = 5000, .score_us = 6000};
    struct rt_candidate c = won;
    assert_string_equal(why(won, c), "as good: the first one found is taken");
    c = (struct rt_candidate){
        .prefill_us = 3500, .decode_us = 5000, .score_us = 8500, .waiting_tok = 77};
    assert_string_equal(why(won, c), "2.5 ms later: 77 prompt tokens wait there already");
    c.waiting_tok = 0;
    assert_string_equal(why(won, c), "2.5 ms later: slower prefill");
    c = (struct rt_candidate){
        .prefill_us = 1000, .decode_us = 9000, .score_us = 10000, .d_run = 12};
    assert_string_equal(why(won, c), "4.0 ms later: slower decode steps (12 requests there)");
    c = (struct rt_candidate){.prefill_us = 1000,
                              .wait_us = 20000,
                              .decode_us = 5000,
                              .score_us = 25000,
                              .free_blk = 2,
                              .need_blk = 9};
    assert_string_equal(why(won, c), "19.0 ms later: waits for KV blocks (2 free, 9 needed)");
    c = won;
    c.avoided = true;
    c.score_us += 3600000000;
    assert_string_equal(why(won, c), "an earlier attempt of this request failed there");
    c = won;
    c.score_us = 5000;
    assert_string_equal(why(won, c), "better by 1.0 ms, but the policy takes turns");
    static const td_err refusals[] = {TD_ERR_NO_PAIR, TD_ERR_CONTEXT_LENGTH, TD_ERR_NO_CAPACITY,
                                      TD_ERR_OVERLOADED, TD_ERR_INTERNAL};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        c.excluded = refusals[i];
        assert_true(strlen(why(won, c)) > 5);
    }
}

struct bench {
    struct rt_core *core;
    struct rt_actions acts;
    int64_t now;
};

static void step(struct bench *b, const struct rt_event *ev, uint64_t *out)
{
    rt_actions_reset(&b->acts);
    rt_core_step(b->core, b->now, ev, &b->acts, out);
}

static void up(struct bench *b, uint64_t epoch, const char *name, enum td_role role)
{
    static const uint8_t addr[1] = {1};
    struct td_wire_rank rank = {.address = addr, .address_len = 1};
    struct td_wire_node_info i = {.epoch = epoch,
                                  .name = name,
                                  .role = role,
                                  .layout = {.id = 1, .block_tok = 16},
                                  .max_model_len = 512,
                                  .n_blocks = 100,
                                  .max_seqs = 8,
                                  .n_ranks = 1,
                                  .ranks = &rank};
    step(b, &(struct rt_event){.type = RT_EV_NODE_UP, .node_info = &i}, NULL);
    struct td_wire_msg m = {.type = TD_WIRE_STATE};
    m.state = (struct td_wire_state){.seq = 1, .full = true, .ready = true, .role = role};
    m.state.blocks[TD_BLK_FREE] = 100;
    step(b, &(struct rt_event){.type = RT_EV_NODE_MSG, .node_epoch = epoch, .msg = &m}, NULL);
}

static const char *str(const json_t *j, const char *key)
{
    return json_string_value(json_object_get(j, key));
}

static json_t *explained(const struct bench *b, uint64_t last, int64_t origin, json_t **doc)
{
    struct td_buf out;
    td_buf_init(&out, 1 << 16);
    assert_int_equal(td_buf_puts(&out, "{"), TD_OK);
    assert_int_equal(rt_explain_json(b->core, last, origin, &out), TD_OK);
    assert_int_equal(td_buf_puts(&out, "}"), TD_OK);
    *doc = json_loadb((const char *)out.data, out.len, 0, NULL);
    td_buf_fini(&out);
    assert_non_null(*doc);
    return json_object_get(*doc, "tries");
}

static void a_replayed_request_shows_both_attempts_with_their_pairs(void **state)
{
    (void)state;
    struct bench b = {.now = 50000};
    struct rt_core_params p = {.epoch = 7,
                               .max_requests = 4,
                               .max_queue = 4,
                               .max_queue_bytes = 1 << 20,
                               .max_node_queue = 8,
                               .max_replays = 2,
                               .pair_wait_us = 1000,
                               .model_name = "m"};
    td_log_set_level(TD_LOG_ERROR);
    assert_int_equal(rt_core_create(&p, &b.core), TD_OK);
    assert_int_equal(rt_actions_init(&b.acts), TD_OK);
    up(&b, 1, "p\"0", TD_ROLE_PREFILL);
    up(&b, 2, "p1", TD_ROLE_PREFILL);
    up(&b, 3, "d0", TD_ROLE_DECODE);
    up(&b, 4, "d1", TD_ROLE_DECODE);
    struct td_wire_drain d = {.why = ""};
    step(&b, &(struct rt_event){.type = RT_EV_NODE_DRAIN, .node_epoch = 4, .drain = &d}, NULL);
    const int32_t prompt[3] = {1, 2, 3};
    struct rt_submit s = {.prompt = prompt,
                          .n_prompt = 3,
                          .sampling = {.max_tokens = 2},
                          .budget_us = 1000000,
                          .request_id = "r",
                          .user = &b};
    uint64_t counter = 0;
    step(&b, &(struct rt_event){.type = RT_EV_SUBMIT, .submit = &s}, &counter);
    b.now += 400;
    step(&b, &(struct rt_event){.type = RT_EV_NODE_LOST, .node_epoch = 1}, NULL);
    struct rt_request_view v;
    assert_true(rt_core_request_named(b.core, "r", &v));
    assert_false(rt_core_request_named(b.core, "s", &v));
    json_t *doc = NULL, *tries = explained(&b, v.decision, 49000, &doc);
    assert_int_equal(json_array_size(tries), 2);
    const json_t *first = json_array_get(tries, 0), *second = json_array_get(tries, 1);
    assert_string_equal(str(first, "prefill"), "p\"0");
    assert_string_equal(str(first, "error"), "node_lost");
    assert_int_equal(json_integer_value(json_object_get(first, "placed_us")), 1000);
    assert_int_equal(json_integer_value(json_object_get(first, "failed_us")), 1400);
    assert_string_equal(str(second, "prefill"), "p1");
    assert_string_equal(str(second, "error"), "");
    assert_int_equal(json_integer_value(json_object_get(second, "failed_us")), -1);
    const json_t *pairs = json_object_get(first, "candidates");
    assert_int_equal(json_array_size(pairs), 2);
    assert_true(json_is_true(json_object_get(json_array_get(pairs, 0), "chosen")));
    assert_string_equal(str(json_array_get(pairs, 0), "prefill"), "p\"0"); /* gone, still named */
    assert_string_equal(str(json_array_get(pairs, 1), "prefill"), "p1");
    assert_true(strlen(str(json_array_get(pairs, 1), "why_not")) > 0);
    const json_t *skipped = json_array_get(json_object_get(first, "skipped"), 0);
    assert_string_equal(str(skipped, "node"), "d1");
    assert_string_equal(str(skipped, "why"), "draining");
    json_decref(doc);
    tries = explained(&b, 0, 0, &doc);
    assert_int_equal(json_array_size(tries), 0);
    json_decref(doc);
    rt_core_destroy(b.core);
    rt_actions_fini(&b.acts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reason_names_what_cost_the_pair_most),
        cmocka_unit_test(a_replayed_request_shows_both_attempts_with_their_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
