/* Requests of gRPC become what the same requests over HTTP are. Messages are written as bytes of the wire. */
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_api.h"
#include "tests/unit/check.h"

static struct rt_api_request req, twin; /* large: many prompts */
static struct rt_api_error error;
static struct td_arena *arena;

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    arena = td_arena_create(64u << 20);
    return arena != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    rt_api_request_fini(&req);
    rt_api_request_fini(&twin);
    memset(&req, 0, sizeof req);
    memset(&twin, 0, sizeof twin);
    arena = td_arena_destroy(arena);
    return 0;
}

#define BYTES(text) (const uint8_t *)(text), sizeof(text) - 1
#define ASK_HI      "\x12\2hi"

static td_err generate(const uint8_t *data, size_t len)
{
    rt_api_request_fini(&req);
    return rt_api_parse_generate(data, len, arena, &req, &error);
}

static void a_message_is_what_its_twin_in_json_is(void **state)
{
    (void)state;
    static const char json[] = "{\"model\":\"m\",\"prompt\":\"hi\",\"temperature\":0.5,\"top_p\":0."
                               "25,\"top_k\":7,\"seed\":300,"
                               "\"max_tokens\":5,\"min_tokens\":2,\"stop\":[\"x\"],\"stop_token_"
                               "ids\":[9],\"logit_bias\":{\"7\":1},"
                               "\"ignore_eos\":true,\"n\":2,\"request_id\":\"r\",\"priority\":-3,"
                               "\"cache_salt\":\"s\",\"stream\":true}";
    assert_int_equal(rt_api_parse(false, json, sizeof json - 1, &twin, &error), TD_OK);
    assert_int_equal(generate(BYTES("\x0a\1m" ASK_HI "\x2a\x24"
                                    "\x0d\0\0\0\x3f"
                                    "\x15\0\0\x80\x3e"
                                    "\x18\7"
                                    "\x40\xac\2"
                                    "\x48\5"
                                    "\x50\2"
                                    "\x62\1x"
                                    "\x6a\1\x09"
                                    "\x72\7\x08\7\x15\0\0\x80\x3f"
                                    "\x78\1"
                                    "\x30\2"
                                    "\x3a\1r"
                                    "\x40\5"
                                    "\x52\1s")),
                     TD_OK);
    assert_string_equal(req.model, twin.model);
    assert_int_equal(req.n_prompts, 1);
    assert_string_equal(req.prompts[0].text, twin.prompts[0].text);
    assert_true(req.sampling.temperature == twin.sampling.temperature);
    assert_true(req.sampling.top_p == twin.sampling.top_p);
    assert_int_equal(req.sampling.top_k, twin.sampling.top_k);
    assert_true(req.has_seed && req.sampling.seed == twin.sampling.seed);
    assert_int_equal(req.sampling.max_tokens, twin.sampling.max_tokens);
    assert_int_equal(req.sampling.min_tokens, twin.sampling.min_tokens);
    assert_int_equal(req.n_stops, 1);
    assert_string_equal(req.stops[0], twin.stops[0]);
    assert_int_equal(req.sampling.stop_ids[0], twin.sampling.stop_ids[0]);
    assert_int_equal(req.sampling.bias[0].id, twin.sampling.bias[0].id);
    assert_true(req.sampling.bias[0].bias == twin.sampling.bias[0].bias);
    assert_int_equal(req.ignore_eos, twin.ignore_eos);
    assert_int_equal(req.n_choices, twin.n_choices);
    assert_string_equal(req.request_id, twin.request_id);
    assert_int_equal(req.priority, twin.priority);
    assert_string_equal(req.cache_salt, twin.cache_salt);
    assert_true(req.stream);
}

static void absent_fields_have_the_defaults_of_http(void **state)
{
    (void)state;
    assert_int_equal(rt_api_parse(false, "{\"prompt\":\"hi\"}", 15, &twin, &error), TD_OK);
    assert_int_equal(generate(BYTES(ASK_HI)), TD_OK);
    assert_memory_equal(&req.sampling, &twin.sampling, sizeof req.sampling);
    assert_int_equal(req.n_choices, 1);
    assert_int_equal(req.skip_special, twin.skip_special);
    assert_int_equal(req.add_special, twin.add_special);
    assert_int_equal(req.budget_us, 0);
}

static void a_chat_and_ids_and_a_budget_arrive(void **state)
{
    (void)state;
    assert_int_equal(generate(BYTES("\x22\x0b\x0a\x09\x0a\4user\x12\1q"
                                    "\x48\x0a")),
                     TD_OK);
    assert_true(req.chat);
    assert_int_equal(json_array_size(req.messages), 1);
    assert_int_equal(req.budget_us, 10000);
    assert_int_equal(generate(BYTES("\x1a\5\x0a\3\1\2\3")), TD_OK);
    assert_int_equal(req.prompts[0].n_ids, 3);
    assert_int_equal(req.prompts[0].ids[2], 3);
}

static void what_http_refuses_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        td_err err;
        const char *param;
    } rows[] = {
#define ROW(text, err, param) {text, sizeof(text) - 1, err, param}
        ROW(ASK_HI "\x2a\5\x0d\0\0\x80\xbf", TD_ERR_BAD_REQUEST, "temperature"), /* -1 */
        ROW(ASK_HI "\x2a\5\x0d\0\0\xc0\x7f", TD_ERR_BAD_REQUEST, "temperature"), /* NaN */
        ROW(ASK_HI "\x2a\5\x15\0\0\x80\x7f", TD_ERR_BAD_REQUEST, "top_p"),       /* infinite */
        ROW(ASK_HI "\x2a\2\x58\1", TD_ERR_UNSUPPORTED, "logprobs"),
        ROW(ASK_HI "\x2a\3\x62\1"
                   "x"
                   "\x30\x64",
            TD_ERR_BAD_REQUEST, "n"),
        ROW(ASK_HI "\x5a\1"
                   "a",
            TD_ERR_UNSUPPORTED, "adapter"),
        ROW("", TD_ERR_BAD_REQUEST, "input"),
        ROW("\x1a\0", TD_ERR_BAD_REQUEST, "token_ids"),
        ROW("\x22\0", TD_ERR_BAD_REQUEST, "messages"),
        ROW("\xff", TD_ERR_BAD_REQUEST, ""),
#undef ROW
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(generate((const uint8_t *)rows[i].bytes, rows[i].len), rows[i].err);
        assert_int_equal(error.err, rows[i].err);
        assert_string_equal(error.param, rows[i].param);
        assert_true(error.text[0] != 0);
    }
}

static void a_text_to_tokenize_says_whether_special_tokens_come_along(void **state)
{
    (void)state;
    assert_int_equal(rt_api_parse_tokenize(BYTES(ASK_HI), arena, &req, &error), TD_OK);
    assert_false(req.add_special);
    rt_api_request_fini(&req);
    assert_int_equal(rt_api_parse_tokenize(BYTES(ASK_HI "\x20\1"), arena, &req, &error), TD_OK);
    assert_true(req.add_special);
    rt_api_request_fini(&req);
    assert_int_equal(rt_api_parse_tokenize(BYTES("\x0a\1m"), arena, &req, &error),
                     TD_ERR_BAD_REQUEST);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_message_is_what_its_twin_in_json_is),
        T(absent_fields_have_the_defaults_of_http),
        T(a_chat_and_ids_and_a_budget_arrive),
        T(what_http_refuses_is_refused_by_name),
        T(a_text_to_tokenize_says_whether_special_tokens_come_along),
    };
    return cmocka_run_group_tests_name("rt_api_grpc", tests, NULL, NULL);
}
