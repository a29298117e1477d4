/* The messages of VllmEngine: what is decoded is what was sent, what cannot be served is named. Bytes are written by hand, so that
 * the test does not share the code it tests; that names and numbers are the public ones: tests/smg. */
#include "proto/vllm.h"

#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/proto/memory.h"

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1

static void a_request_of_ids_arrives_with_its_sampling(void **state)
{
    (void)state;
    struct td_vllm_generate g;
    /* request_id "r", ids 1 300, sampling {temperature 0, top_p 1, max_tokens 5, stop "x", stop id 7, ignore_eos, n 2, seed -1,
     * bias {7: 1.0}}, stream, hand-off "{}" */
    assert_int_equal(td_vllm_generate_decode(BYTES("\x0a\1r"
                                                   "\x12\5\x12\3\1\xac\2"
                                                   "\x22\x2c"
                                                   "\x0d\0\0\0\0"
                                                   "\x15\0\0\x80\x3f"
                                                   "\x40\5"
                                                   "\x52\1x"
                                                   "\x5a\1\7"
                                                   "\x70\1"
                                                   "\x78\2"
                                                   "\xc0\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\1"
                                                   "\xd2\1\7\x08\7\x15\0\0\x80\x3f"
                                                   "\x28\1"
                                                   "\x42\2{}"),
                                             arena, &g),
                     TD_OK);
    assert_string_equal(g.request_id, "r");
    assert_int_equal(g.input, TD_VLLM_IDS);
    assert_int_equal(g.n_ids, 2);
    assert_int_equal(g.ids[1], 300);
    assert_true(g.stream);
    assert_string_equal(g.kv_json, "{}");
    assert_null(g.refused);
    const struct td_vllm_sampling *s = &g.sampling;
    assert_true(s->has_temperature && s->has_max_tokens && s->has_seed && s->ignore_eos);
    assert_true(s->temperature <= 0 && s->top_p >= 1);
    assert_int_equal(s->max_tokens, 5);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->seed, -1);
    assert_string_equal(s->stop[0], "x");
    assert_int_equal(s->stop_ids[0], 7);
    assert_int_equal(s->bias[0].id, 7);
    assert_true(s->bias[0].bias >= 1);
}

static void an_empty_request_says_nothing(void **state)
{
    (void)state;
    struct td_vllm_generate g;
    assert_int_equal(td_vllm_generate_decode(NULL, 0, arena, &g), TD_OK);
    assert_int_equal(g.input, TD_VLLM_NO_INPUT);
    assert_null(g.kv_json);
    assert_null(g.refused);
    assert_false(g.sampling.has_temperature || g.sampling.has_max_tokens || g.sampling.has_seed);
}

static void what_cannot_be_served_is_named(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
        const char *field;
    } rows[] = {
        {"\x3a\0", 2, "mm_inputs"},
        {"\x5a\0", 2, "mm_inputs"},
        {"\x52\0", 2, "media_refs"},
        {"\x32\0", 2, "kv_transfer_params"},
        {"\x48\1", 2, "data_parallel_rank"},
        {"\x48\0", 2, NULL},
        {"\x22\4\x82\1\1x", 6, "json_schema"},
        {"\x22\4\x8a\1\1x", 6, "regex"},
        {"\x22\4\x92\1\1x", 6, "grammar"},
        {"\x22\4\x9a\1\1x", 6, "structural_tag"},
        {"\x22\3\xa0\1\1", 5, "json_object"},
        {"\x22\3\xaa\1\0", 5, "choice"},
        {"\x22\3\xb0\1\0", 5, "logprobs"},
        {"\x22\3\xb8\1\1", 5, "prompt_logprobs"},
        {"\x22\3\xd8\1\5", 5, "truncate_prompt_tokens"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct td_vllm_generate g;
        td_arena_reset(arena);
        assert_int_equal(
            td_vllm_generate_decode((const uint8_t *)rows[i].bytes, rows[i].len, arena, &g), TD_OK);
        if (rows[i].field == NULL) {
            assert_null(g.refused);
        } else {
            assert_non_null(g.refused);
            assert_string_equal(g.refused, rows[i].field);
        }
    }
}

static void bytes_that_are_no_message_are_refused(void **state)
{
    (void)state;
    struct td_vllm_generate g;
    struct td_vllm_abort a;
    int32_t rank = 0;
    assert_int_equal(td_vllm_generate_decode(BYTES("\x0a\5r"), arena, &g), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_vllm_generate_decode(BYTES("\x0a\1\xff"), arena, &g), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_vllm_abort_decode(BYTES("\x0a"), arena, &a), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_vllm_loads_decode(BYTES("\x08"), arena, &rank), TD_ERR_BAD_REQUEST);
    assert_int_equal(td_vllm_loads_decode(BYTES("\x08\2"), arena, &rank), TD_OK);
    assert_int_equal(rank, 2);
}

#define assert_out(text)                                                                           \
    do {                                                                                           \
        assert_int_equal(out.len, sizeof(text) - 1);                                               \
        assert_memory_equal(out.data, text, sizeof(text) - 1);                                     \
    } while (0)

static void answers_have_the_public_numbers(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1, 300};
    const struct td_vllm_chunk chunk = {
        .ids = ids, .n = 2, .index = 1, .prompt_tokens = 9, .completion_tokens = 4};
    assert_int_equal(td_vllm_chunk_encode(&out, &chunk), TD_OK);
    assert_out("\x0a\x0b\x0a\3\1\xac\2\x10\x09\x18\4\x38\1");
    td_buf_clear(&out);
    struct td_vllm_complete whole = {
        .ids = ids, .n = 2, .prompt_tokens = 9, .finish = "stop", .stop_id = 300, .kv_json = "{}"};
    assert_int_equal(td_vllm_complete_encode(&out, &whole), TD_OK);
    assert_out("\x12\x16\x0a\3\1\xac\2\x12\4stop\x18\x09\x20\2\x50\xac\2\x62\2{}");
    td_buf_clear(&out);
    whole.stop_text = "x";
    whole.kv_json = NULL;
    assert_int_equal(td_vllm_complete_encode(&out, &whole), TD_OK);
    assert_out("\x12\x12\x0a\3\1\xac\2\x12\4stop\x18\x09\x20\2\x5a\1x");
    td_buf_clear(&out);
    assert_int_equal(td_vllm_health_encode(&out, true, "ok"), TD_OK);
    assert_out("\x08\1\x12\2ok");
    td_buf_clear(&out);
    assert_int_equal(td_vllm_tokenizer_encode(&out, "zip", 3, NULL), TD_OK);
    assert_out("\x0a\3zip");
    td_buf_clear(&out);
    assert_int_equal(td_vllm_tokenizer_encode(&out, "zip", 3, "ab"), TD_OK);
    assert_out("\x0a\3zip\x12\2"
               "ab");
}

static void figures_beyond_their_fields_are_cut(void **state)
{
    (void)state;
    const struct td_vllm_load l = {.timestamp = "t", .waiting_tokens = UINT64_MAX};
    assert_int_equal(td_vllm_load_encode(&out, &l), TD_OK);
    assert_memory_equal(out.data + out.len - 6, "\x60\xff\xff\xff\xff\7", 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_request_of_ids_arrives_with_its_sampling, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(an_empty_request_says_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_served_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_are_no_message_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(answers_have_the_public_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(figures_beyond_their_fields_are_cut, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
