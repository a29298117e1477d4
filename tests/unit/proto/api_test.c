/* The public messages: what is decoded is what was sent, and what must be refused is, before protobuf-c sees it. Requests
 * are written as bytes of the wire, so that the test does not share the code it tests. */
#include <string.h>

#include "proto/api.h"
#include "tests/unit/check.h"
#include "tests/unit/proto/memory.h"

static td_err generate(const char *bytes, size_t len, struct td_api_generate *g)
{
    return td_api_generate_decode((const uint8_t *)bytes, len, arena, g);
}

#define BYTES(text) text, sizeof(text) - 1

static void an_empty_request_has_no_input(void **state)
{
    (void)state;
    struct td_api_generate g;
    assert_int_equal(generate(BYTES(""), &g), TD_OK);
    assert_int_equal(g.input, TD_API_NO_INPUT);
    assert_string_equal(g.model, "");
    assert_false(g.has_sampling);
}

static void text_and_sampling_arrive_with_their_presence(void **state)
{
    (void)state;
    struct td_api_generate g;
    /* model "m", text "hi", sampling {temperature 0, seed 300, max_tokens 5, stop "x", bias {7: 1.0}}, n 2, priority -1 */
    assert_int_equal(generate(BYTES("\x0a\1m"
                                    "\x12\2hi"
                                    "\x2a\x18"
                                    "\x0d\0\0\0\0"
                                    "\x40\xac\2"
                                    "\x48\5"
                                    "\x62\1x"
                                    "\x72\7\x08\7\x15\0\0\x80\x3f"
                                    "\x78\1"
                                    "\x30\2"
                                    "\x40\1"),
                              &g),
                     TD_OK);
    assert_string_equal(g.model, "m");
    assert_int_equal(g.input, TD_API_TEXT);
    assert_string_equal(g.text, "hi");
    assert_true(g.has_sampling && g.sampling.has_temperature);
    assert_true(g.sampling.temperature == 0);
    assert_false(g.sampling.has_top_p);
    assert_true(g.sampling.has_seed);
    assert_int_equal(g.sampling.seed, 300);
    assert_int_equal(g.sampling.max_tokens, 5);
    assert_int_equal(g.sampling.n_stop, 1);
    assert_string_equal(g.sampling.stop[0], "x");
    assert_int_equal(g.sampling.n_bias, 1);
    assert_int_equal(g.sampling.bias[0].id, 7);
    assert_true(g.sampling.bias[0].bias == 1.0f);
    assert_true(g.sampling.ignore_eos);
    assert_int_equal(g.n, 2);
    assert_int_equal(g.priority, -1);
}

static void ids_and_chats_are_inputs_of_their_own(void **state)
{
    (void)state;
    struct td_api_generate g;
    assert_int_equal(generate(BYTES("\x1a\5\x0a\3\1\2\3"), &g), TD_OK);
    assert_int_equal(g.input, TD_API_IDS);
    assert_int_equal(g.n_ids, 3);
    assert_int_equal(g.ids[2], 3);
    assert_int_equal(generate(BYTES("\x22\x0b\x0a\x09\x0a\4user\x12\1q"), &g), TD_OK);
    assert_int_equal(g.input, TD_API_CHAT);
    assert_int_equal(g.n_messages, 1);
    assert_string_equal(g.messages[0].role, "user");
    assert_string_equal(g.messages[0].content, "q");
}

static void bytes_that_are_not_the_message_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
    } rows[] = {
        {BYTES("\x12\5hi")},                 /* longer than what is there */
        {BYTES("\x12\3h\0i")},               /* a zero byte in text */
        {BYTES("\x12\2\xc3\x28")},           /* no UTF-8 */
        {BYTES("\x22\5\x0a\3\x12\1\xff")},   /* no UTF-8, deeper down */
        {BYTES("\xff\xff\xff\xff\xff\xff")}, /* a tag that never ends */
        {BYTES("\2\0")},                     /* field 0 */
        {BYTES("\x13\1")},                   /* a group */
        {BYTES("\x0a")},                     /* no length */
        {BYTES("\x0d\0\0")},                 /* cut in a number */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct td_api_generate g = {.n = 77};
        assert_int_equal(generate(rows[i].bytes, rows[i].len, &g), TD_ERR_BAD_REQUEST);
        assert_int_equal(g.n, 77); /* untouched */
    }
}

static void unknown_fields_are_skipped(void **state)
{
    (void)state;
    struct td_api_generate g;
    assert_int_equal(generate(BYTES("\xf8\7\5"
                                    "\xf2\7\2\0\xff"
                                    "\x12\2hi"),
                              &g),
                     TD_OK);
    assert_string_equal(g.text, "hi");
}

static void many_small_messages_cost_memory_in_proportion_or_are_refused(void **state)
{
    (void)state;
    enum { N = 500000 };
    static uint8_t chat[2 * N + 6];
    struct td_api_generate g;
    size_t len = 2 * N; /* N empty ChatMessages */
    chat[0] = 0x22;
    chat[1] = (uint8_t)(len | 0x80);
    chat[2] = (uint8_t)(len >> 7 | 0x80);
    chat[3] = (uint8_t)(len >> 14);
    for (size_t i = 0; i < N; i++) {
        chat[4 + 2 * i] = 0x0a;
    }
    assert_int_equal(td_api_generate_decode(chat, len + 4, arena, &g), TD_ERR_BAD_REQUEST);
    assert_true(td_arena_used(arena) <= 16u << 20);
}

static void a_delta_keeps_zero_bytes_of_its_text(void **state)
{
    (void)state;
    static const int32_t ids[] = {5, 6};
    const struct td_api_delta d = {
        .choice = 1, .text = "a\0b", .len = 3, .ids = ids, .n_ids = 2, .finish = TD_FINISH_STOP};
    assert_int_equal(td_api_delta_encode(&out, "id", &d), TD_OK);
    assert_int_equal(out.len, 19);
    assert_memory_equal(out.data, "\x0a\2id\x12\x0d\x08\1\x1a\2\5\6\x28\1\x12\3a\0b", 19);
}

static void small_answers_have_the_bytes_of_their_fields(void **state)
{
    (void)state;
    static const int32_t ids[] = {300};
    const struct td_api_usage u = {.prompt_tokens = 1, .completion_tokens = 2, .cached_tokens = 3};
    const struct td_api_model m = {.id = "m", .max_model_len = 4, .created_unix = 5};
    assert_int_equal(td_api_usage_encode(&out, "i", &u), TD_OK);
    assert_memory_equal(out.data, "\x0a\1i\x1a\6\x08\1\x10\2\x18\3", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_api_cancel_encode(&out, true), TD_OK);
    assert_memory_equal(out.data, "\x08\1", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_api_tokenize_encode(&out, ids, 1, 9), TD_OK);
    assert_memory_equal(out.data, "\x0a\2\xac\2\x10\x09", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_api_detokenize_encode(&out, "x\0", 2), TD_OK);
    assert_memory_equal(out.data, "\x0a\2x\0", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_api_models_encode(&out, &m, 1), TD_OK);
    assert_memory_equal(out.data, "\x0a\7\x0a\1m\x10\4\x18\5", out.len);
}

static void admin_messages_go_both_ways(void **state)
{
    (void)state;
    struct td_api_drain d;
    struct td_api_watch w;
    const char *id = NULL;
    const struct td_api_node n = {.name = "p", .role = TD_ROLE_PREFILL, .state = TD_API_NODE_READY};
    const struct td_api_stage stage = {.name = "prefill", .node = "p", .took_us = 7};
    const struct td_api_explain e = {.id = "i",
                                     .transport = "shm",
                                     .attempts = 1,
                                     .n_stages = 1,
                                     .stages = &stage,
                                     .err = TD_ERR_BUDGET};
    const struct td_api_event ev = {.seq = 1, .kind = "node.up", .node = "p"};
    assert_int_equal(td_api_drain_decode((const uint8_t *)"\x0a\1p\x10\5", 5, arena, &d), TD_OK);
    assert_string_equal(d.node, "p");
    assert_int_equal(d.limit_ms, 5);
    assert_int_equal(td_api_watch_decode((const uint8_t *)"\x0a\1a\x0a\1b", 6, arena, &w), TD_OK);
    assert_int_equal(w.n_kinds, 2);
    assert_int_equal(td_api_id_decode((const uint8_t *)"\x0a\1i", 3, arena, &id), TD_OK);
    assert_string_equal(id, "i");
    assert_int_equal(td_api_node_encode(&out, &n), TD_OK);
    assert_memory_equal(out.data, "\x0a\x09\x0a\1p\x18\1\x20\2\x5a\0", out.len);
    td_buf_clear(&out);
    assert_int_equal(td_api_explain_encode(&out, &e), TD_OK);
    assert_non_null(memmem(out.data, out.len, "budget_spent", 12));
    td_buf_clear(&out);
    assert_int_equal(td_api_event_encode(&out, &ev), TD_OK);
    assert_memory_equal(out.data, "\x08\1\x1a\7node.up\x22\1p", out.len);
    td_buf_clear(&out);
    const struct td_api_node busy = {.name = "p", .running = 3};
    assert_int_equal(td_api_drain_encode(&out, &busy), TD_OK);
    assert_memory_equal(out.data, "\x08\3\x12\x07\x0a\1p\x50\3\x5a\0", out.len);
    assert_int_equal(td_api_undrain_decode((const uint8_t *)"\x0a\1p\x12\1y", 6, arena, &d), TD_OK);
    assert_true(strcmp(d.node, "p") == 0 && strcmp(d.why, "y") == 0 && d.limit_ms == 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_empty_request_has_no_input),
        T(text_and_sampling_arrive_with_their_presence),
        T(ids_and_chats_are_inputs_of_their_own),
        T(bytes_that_are_not_the_message_are_refused),
        T(unknown_fields_are_skipped),
        T(many_small_messages_cost_memory_in_proportion_or_are_refused),
        T(a_delta_keeps_zero_bytes_of_its_text),
        T(small_answers_have_the_bytes_of_their_fields),
        T(admin_messages_go_both_ways),
    };
    return cmocka_run_group_tests_name("api", tests, NULL, NULL);
}
