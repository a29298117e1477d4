/* A client's messages: what it encodes is what a server decodes, what a server encodes is what it decodes, and bytes that are
 * neither are refused. */
#include <string.h>

#include "proto/api_client.h"
#include "tests/unit/check.h"
#include "tests/unit/proto/memory.h"

static void a_request_arrives_as_it_was_meant(void **state)
{
    (void)state;
    const char *const stop[] = {"\n\n", "end"};
    const int32_t ids[] = {7, -1, 300000}, stop_ids[] = {2};
    const struct td_api_chat_message chat[] = {{"system", "be brief"}, {"user", "hello"}};
    const struct td_api_generate asked[] = {
        {.model = "m",
         .input = TD_API_TEXT,
         .text = "hi",
         .n = 1,
         .budget_ms = 5,
         .priority = -2,
         .request_id = "r",
         .cache_salt = "s",
         .adapter = "a"},
        {.input = TD_API_IDS, .ids = ids, .n_ids = 3},
        {.input = TD_API_CHAT, .messages = chat, .n_messages = 2}};
    for (size_t i = 0; i < 3; i++) {
        struct td_api_generate g = asked[i], got;
        g.has_sampling = true;
        g.sampling = (struct td_api_sampling){.has_temperature = true,
                                              .has_seed = true,
                                              .seed = 1ull << 60,
                                              .has_max_tokens = true,
                                              .max_tokens = 9,
                                              .stop = stop,
                                              .n_stop = 2,
                                              .stop_ids = stop_ids,
                                              .n_stop_ids = 1,
                                              .ignore_eos = true};
        td_buf_clear(&out);
        assert_int_equal(td_api_generate_encode(&out, &g), TD_OK);
        assert_int_equal(td_api_generate_decode(out.data, out.len, arena, &got), TD_OK);
        assert_true(got.input == g.input && got.n == g.n && got.budget_ms == g.budget_ms &&
                    got.priority == g.priority);
        assert_true(got.has_sampling && got.sampling.has_temperature &&
                    got.sampling.temperature == 0 && !got.sampling.has_top_p);
        assert_true(got.sampling.seed == 1ull << 60 && got.sampling.max_tokens == 9);
        assert_true(got.sampling.n_stop == 2 && strcmp(got.sampling.stop[1], "end") == 0);
        assert_true(got.sampling.n_stop_ids == 1 && got.sampling.stop_ids[0] == 2);
        assert_true(got.sampling.ignore_eos);
        if (i == 0) {
            assert_string_equal(got.text, "hi");
            assert_string_equal(got.request_id, "r");
        } else if (i == 1) {
            assert_int_equal(got.n_ids, 3);
            assert_memory_equal(got.ids, ids, sizeof ids);
        } else {
            assert_int_equal(got.n_messages, 2);
            assert_string_equal(got.messages[0].role, "system");
            assert_string_equal(got.messages[1].content, "hello");
        }
    }
}

static void a_delta_keeps_zero_bytes_and_a_usage_its_counts(void **state)
{
    (void)state;
    struct td_api_generated g;
    const int32_t ids[] = {5, 6};
    const struct td_api_delta d = {.choice = 1,
                                   .text = "a\0b",
                                   .len = 3,
                                   .ids = ids,
                                   .n_ids = 2,
                                   .finish = TD_FINISH_LENGTH,
                                   .stop_text = "x"};
    const struct td_api_usage u = {.prompt_tokens = 3, .completion_tokens = 4, .cached_tokens = 1};
    assert_int_equal(td_api_delta_encode(&out, "id", &d), TD_OK);
    assert_int_equal(td_api_generated_decode(out.data, out.len, arena, &g), TD_OK);
    assert_int_equal(g.said, TD_API_SAID_DELTA);
    assert_string_equal(g.id, "id");
    assert_true(g.delta.len == 3 && memcmp(g.delta.text, "a\0b", 3) == 0);
    assert_true(g.delta.n_ids == 2 && g.delta.ids[1] == 6 && g.delta.choice == 1);
    assert_true(g.delta.finish == TD_FINISH_LENGTH && strcmp(g.delta.stop_text, "x") == 0);
    td_buf_clear(&out);
    assert_int_equal(td_api_usage_encode(&out, "id", &u), TD_OK);
    assert_int_equal(td_api_generated_decode(out.data, out.len, arena, &g), TD_OK);
    assert_true(g.said == TD_API_SAID_USAGE && g.usage.prompt_tokens == 3 &&
                g.usage.completion_tokens == 4 && g.usage.cached_tokens == 1);
    assert_int_equal(td_api_generated_decode((const uint8_t *)"", 0, arena, &g), TD_OK);
    assert_int_equal(g.said, TD_API_SAID_NOTHING);
}

static void bytes_that_are_no_answer_are_refused(void **state)
{
    (void)state;
    struct td_api_generated g;
    struct td_api_event e;
    struct td_api_node node;
    const struct td_api_node *nodes = NULL;
    uint32_t n = 0;
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {{"\x12\5\x12\3\xff\xff\xff", 7}, /* text that is no UTF-8 */
                {"\x12\x7f\x12", 3},             /* longer than it is */
                {"\x0a", 1},
                {"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11},
                {"\x13\1\2\3", 4}}; /* a group */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const uint8_t *data = (const uint8_t *)rows[i].bytes;
        assert_int_equal(td_api_generated_decode(data, rows[i].len, arena, &g), TD_ERR_BAD_REQUEST);
        td_err err = td_api_event_decode(data, rows[i].len, arena, &e);
        assert_true(err == TD_ERR_BAD_REQUEST || i == 0); /* whose field 2 is a number: unknown */
        err = td_api_drained_decode(data, rows[i].len, arena, &node);
        assert_true(err == TD_ERR_BAD_REQUEST || i == 0);
        err = td_api_nodes_decode(data, rows[i].len, arena, &nodes, &n);
        assert_true(err == TD_ERR_BAD_REQUEST || i == 0);
    }
    /* A reason that this version does not know. */
    assert_int_equal(td_api_generated_decode((const uint8_t *)"\x12\2\x28\x63", 4, arena, &g),
                     TD_OK);
    assert_int_equal(g.delta.finish, TD_FINISH_NONE);
}

static void nodes_and_events_arrive_with_all_that_is_known(void **state)
{
    (void)state;
    const struct td_api_node one = {.name = "p",
                                    .epoch = "00ab",
                                    .address = "http://a:1",
                                    .version = "1",
                                    .numerics = "int8",
                                    .role = TD_ROLE_PREFILL,
                                    .state = TD_API_NODE_DRAINING,
                                    .ready = true,
                                    .drained = true,
                                    .queued = 1,
                                    .running = 2,
                                    .blocks = {1, 2, 3, 4, 5, 6, 7},
                                    .queued_prompt_tok = 1ull << 40,
                                    .dispatched = 8,
                                    .inflight = 9,
                                    .n_blocks = 28,
                                    .block_tok = 16,
                                    .max_model_len = 2048,
                                    .max_seqs = 64,
                                    .n_ranks = 3,
                                    .prefill_us_per_ktok = 11,
                                    .decode_step_us = 12,
                                    .report_age_us = -1,
                                    .layout_id = 0xfeull << 56,
                                    .numerics_id = 13};
    const struct td_api_node two = {.name = "d", .role = TD_ROLE_DECODE};
    const struct td_api_node *nodes = NULL;
    struct td_api_node node;
    uint32_t n = 0;
    assert_int_equal(td_api_node_encode(&out, &one), TD_OK);
    assert_int_equal(td_api_node_encode(&out, &two), TD_OK);
    assert_int_equal(td_api_nodes_decode(out.data, out.len, arena, &nodes, &n), TD_OK);
    assert_int_equal(n, 2);
    assert_string_equal(nodes[1].name, "d");
    td_buf_clear(&out);
    assert_int_equal(td_api_drain_encode(&out, &one), TD_OK);
    assert_int_equal(td_api_drained_decode(out.data, out.len, arena, &node), TD_OK);
    for (int i = 0; i < 2; i++) {
        const struct td_api_node *g = i == 0 ? &nodes[0] : &node;
        assert_true(strcmp(g->name, "p") == 0 && strcmp(g->epoch, "00ab") == 0 &&
                    strcmp(g->address, "http://a:1") == 0 && strcmp(g->numerics, "int8") == 0);
        assert_true(g->role == TD_ROLE_PREFILL && g->state == TD_API_NODE_DRAINING && g->ready &&
                    g->drained);
        assert_memory_equal(g->blocks, one.blocks, sizeof one.blocks);
        assert_true(g->queued == 1 && g->running == 2 && g->queued_prompt_tok == 1ull << 40 &&
                    g->dispatched == 8 && g->inflight == 9 && g->n_blocks == 28);
        assert_true(g->block_tok == 16 && g->max_model_len == 2048 && g->max_seqs == 64 &&
                    g->n_ranks == 3 && g->prefill_us_per_ktok == 11 && g->decode_step_us == 12 &&
                    g->report_age_us == -1);
        assert_true(g->layout_id == 0xfeull << 56 && g->numerics_id == 13);
    }
    assert_int_equal(td_api_drained_decode((const uint8_t *)"\x08\3", 2, arena, &node), TD_OK);
    assert_string_equal(node.name, ""); /* an older router's answer */
    const struct td_api_event ev = {
        .seq = 9, .unix_us = -5, .kind = "node.up", .node = "p", .id = "i", .text = "t"};
    struct td_api_event got;
    td_buf_clear(&out);
    assert_int_equal(td_api_event_encode(&out, &ev), TD_OK);
    assert_int_equal(td_api_event_decode(out.data, out.len, arena, &got), TD_OK);
    assert_true(got.seq == 9 && got.unix_us == -5 && strcmp(got.kind, "node.up") == 0 &&
                strcmp(got.node, "p") == 0 && strcmp(got.id, "i") == 0 &&
                strcmp(got.text, "t") == 0);
}

static const struct td_api_stage told_stage = {
    .name = "prefill", .node = "p", .began_us = 5, .took_us = 7};
static const struct td_api_pair told_pairs[] = {{.prefill = "p",
                                                 .decode = "d",
                                                 .chosen = true,
                                                 .score_us = 9,
                                                 .waiting_tok = 3,
                                                 .free_blk = 4,
                                                 .need_blk = 5,
                                                 .running = 6},
                                                {.prefill = "p",
                                                 .decode = "e",
                                                 .excluded = "no_capacity",
                                                 .why_not = "full",
                                                 .avoided = true,
                                                 .score_us = -1}};
static const struct td_api_skipped told_skipped = {"x", "draining"};
static const struct td_api_try told_tries[] = {
    {.number = 0,
     .submitted_us = 1,
     .placed_us = 2,
     .failed_us = 0,
     .error = "node_lost",
     .prefill = "p",
     .decode = "d",
     .pairs_seen = 40,
     .n_pairs = 2,
     .pairs = told_pairs,
     .nodes_skipped = 9,
     .n_skipped = 1,
     .skipped = &told_skipped},
    {.number = 1, .failed_us = -1, .prefill = "p", .decode = "e"}};
static const struct td_api_explain told = {.id = "i",
                                           .transport = "shm",
                                           .attempts = 2,
                                           .n_stages = 1,
                                           .stages = &told_stage,
                                           .kv_bytes = 1ull << 40,
                                           .err = TD_ERR_BUDGET,
                                           .phase = "decode",
                                           .prefill = "p",
                                           .decode = "d",
                                           .finish = TD_FINISH_STOP,
                                           .n_prompt = 11,
                                           .n_output = 12,
                                           .cached_tok = 13,
                                           .transfer_us = 14,
                                           .ttft_us = 15,
                                           .tpot_us = 16,
                                           .total_us = 17,
                                           .ended_unix_us = 18,
                                           .age_us = 19,
                                           .deadline_in_us = -20};

static void an_explanation_arrives_with_its_attempts(void **state)
{
    (void)state;
    struct td_api_explain g;
    const struct td_api_try *t = NULL;
    uint32_t n = 0;
    assert_int_equal(td_api_id_encode(&out, "i"), TD_OK);
    const char *id = NULL;
    assert_int_equal(td_api_id_decode(out.data, out.len, arena, &id), TD_OK);
    assert_string_equal(id, "i");
    td_buf_clear(&out);
    assert_int_equal(td_api_explain_encode(&out, &told), TD_OK);
    assert_int_equal(td_api_try_encode(&out, &told_tries[0]), TD_OK);
    assert_int_equal(td_api_try_encode(&out, &told_tries[1]), TD_OK);
    assert_int_equal(td_api_explained_decode(out.data, out.len, arena, &g, &t, &n), TD_OK);
    assert_true(strcmp(g.id, "i") == 0 && strcmp(g.code, "budget_spent") == 0 &&
                strcmp(g.phase, "decode") == 0 && strcmp(g.transport, "shm") == 0);
    assert_true(g.attempts == 2 && g.kv_bytes == 1ull << 40 && g.finish == TD_FINISH_STOP &&
                g.n_prompt == 11 && g.n_output == 12 && g.cached_tok == 13 && g.transfer_us == 14);
    assert_true(g.ttft_us == 15 && g.tpot_us == 16 && g.total_us == 17 && g.ended_unix_us == 18 &&
                g.age_us == 19 && g.deadline_in_us == -20);
    assert_true(g.n_stages == 1 && strcmp(g.stages[0].node, "p") == 0 && g.stages[0].took_us == 7);
    assert_int_equal(n, 2);
    assert_true(t[0].failed_us == 0 && t[1].failed_us == -1 && t[1].number == 1);
    assert_true(t[0].n_pairs == 2 && t[0].pairs[0].chosen && t[0].pairs[0].need_blk == 5);
    assert_true(t[0].pairs[1].avoided && t[0].pairs[1].score_us == -1 &&
                strcmp(t[0].pairs[1].why_not, "full") == 0 &&
                strcmp(t[0].pairs[1].excluded, "no_capacity") == 0);
    assert_true(t[0].pairs_seen == 40 && t[0].nodes_skipped == 9 && t[0].n_skipped == 1 &&
                strcmp(t[0].skipped[0].why, "draining") == 0);
    assert_int_equal(td_api_explained_decode((const uint8_t *)"\x0a", 1, arena, &g, &t, &n),
                     TD_ERR_BAD_REQUEST);
}

static void what_an_operator_asks_arrives(void **state)
{
    (void)state;
    const char *const kinds[] = {"node.up", "node.lost"};
    const struct td_api_watch w = {.kinds = kinds, .n_kinds = 2};
    const struct td_api_drain d = {.node = "p", .why = "y", .limit_ms = 1500};
    struct td_api_watch got_w;
    struct td_api_drain got_d;
    assert_int_equal(td_api_watch_encode(&out, &w), TD_OK);
    assert_int_equal(td_api_watch_decode(out.data, out.len, arena, &got_w), TD_OK);
    assert_true(got_w.n_kinds == 2 && strcmp(got_w.kinds[1], "node.lost") == 0);
    td_buf_clear(&out);
    assert_int_equal(td_api_drain_ask_encode(&out, &d, false), TD_OK);
    assert_int_equal(td_api_drain_decode(out.data, out.len, arena, &got_d), TD_OK);
    assert_true(strcmp(got_d.node, "p") == 0 && strcmp(got_d.why, "y") == 0 &&
                got_d.limit_ms == 1500);
    td_buf_clear(&out);
    assert_int_equal(td_api_drain_ask_encode(&out, &d, true), TD_OK);
    assert_int_equal(td_api_undrain_decode(out.data, out.len, arena, &got_d), TD_OK);
    assert_true(strcmp(got_d.node, "p") == 0 && strcmp(got_d.why, "y") == 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_request_arrives_as_it_was_meant),
        T(a_delta_keeps_zero_bytes_and_a_usage_its_counts),
        T(bytes_that_are_no_answer_are_refused),
        T(nodes_and_events_arrive_with_all_that_is_known),
        T(an_explanation_arrives_with_its_attempts),
        T(what_an_operator_asks_arrives),
    };
    return cmocka_run_group_tests_name("api_client", tests, NULL, NULL);
}
