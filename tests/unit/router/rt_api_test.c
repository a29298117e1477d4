/* Every field of a request body: a good value, a wrong type, a value out of range. */
#include "router/rt_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

static struct rt_api_request req; /* large: many prompts */
static struct rt_api_error error;

static td_err parse(bool chat, const char *body)
{
    return rt_api_parse(chat, body, strlen(body), &req, &error);
}

/* Body with one field more than the least a request needs. */
static td_err with_field(bool chat, const char *field)
{
    char body[4096];
    (void)snprintf(body, sizeof body, "{%s%s%s}",
                   chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
                        : "\"prompt\":\"hi\"",
                   field[0] != 0 ? "," : "", field);
    return parse(chat, body);
}

static int quiet(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    return 0;
}

static void a_minimal_body_has_the_documented_defaults(void **state)
{
    (void)state;
    assert_int_equal(with_field(true, ""), TD_OK);
    assert_true(req.chat && !req.stream && !req.has_seed && !req.has_temperature);
    assert_null(req.model);
    assert_int_equal(req.n_choices, 1);
    assert_int_equal(req.sampling.max_tokens, 0); /* up to the context */
    assert_true(req.sampling.temperature == 1 && req.sampling.top_p == 1);
    assert_true(req.sampling.repetition_penalty == 1 && req.sampling.top_k == 0);
    assert_true(req.skip_special && req.add_special && req.add_generation_prompt);
    rt_api_request_fini(&req);
    assert_int_equal(with_field(false, ""), TD_OK);
    assert_int_equal(req.sampling.max_tokens, 0); /* rt_model_limit knows the context */
    assert_int_equal(req.n_prompts, 1);
    assert_string_equal(req.prompts[0].text, "hi");
    rt_api_request_fini(&req);
}

/* fields that both kinds of body have, and those of one kind */
enum kind { CHAT, COMP };

static void good_values_are_accepted(void **state)
{
    (void)state;
    static const struct {
        enum kind kind;
        const char *field;
    } rows[] = {
        {CHAT, "\"model\":\"m\""},
        {CHAT, "\"max_tokens\":1"},
        {CHAT, "\"max_completion_tokens\":1048576"},
        {CHAT, "\"temperature\":0"},
        {CHAT, "\"temperature\":1.5"},
        {CHAT, "\"top_p\":0.1"},
        {CHAT, "\"top_k\":-1"},
        {CHAT, "\"top_k\":40"},
        {CHAT, "\"min_p\":0.05"},
        {CHAT, "\"repetition_penalty\":1.1"},
        {CHAT, "\"frequency_penalty\":-2"},
        {CHAT, "\"presence_penalty\":2"},
        {CHAT, "\"seed\":-9223372036854775808"},
        {CHAT, "\"stop\":\"x\""},
        {CHAT, "\"stop\":[]"},
        {CHAT, "\"stop\":[\"a\",\"b\"]"},
        {CHAT, "\"stop_token_ids\":[1,2]"},
        {CHAT, "\"min_tokens\":0"},
        {CHAT, "\"ignore_eos\":true"},
        {CHAT, "\"include_stop_str_in_output\":true"},
        {CHAT, "\"skip_special_tokens\":false"},
        {CHAT, "\"return_token_ids\":true"},
        {CHAT, "\"add_special_tokens\":false"},
        {CHAT, "\"stream\":true"},
        {CHAT, "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true}"},
        {CHAT, "\"stream_options\":{\"include_usage\":null}"},
        {CHAT, "\"n\":16"},
        {COMP, "\"best_of\":1"},
        {COMP, "\"n\":3,\"best_of\":3"},
        {CHAT, "\"logit_bias\":{\"12\":-100,\"7\":1.5}"},
        {CHAT, "\"cache_salt\":\"s\""},
        {CHAT, "\"request_id\":\"r\""},
        {CHAT, "\"rid\":\"r\""},
        {CHAT, "\"priority\":-1000"},
        {CHAT, "\"add_generation_prompt\":false"},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":false,\"reasoning_effort\":\"low\"}"},
        {CHAT, "\"response_format\":{\"type\":\"text\"}"},
        {CHAT, "\"user\":\"u\",\"metadata\":{},\"store\":true,\"service_tier\":\"auto\""},
        {CHAT, "\"parallel_tool_calls\":true"},
        {CHAT, "\"tools\":[],\"tool_choice\":\"none\",\"logprobs\":false,\"top_logprobs\":0"},
        {COMP, "\"echo\":false"},
        {CHAT, "\"a_field_of_tomorrow\":{\"x\":[1,2]}"},
        {COMP, "\"messages\":7"}, /* not a field of completions: unknown, so ignored */
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        if (with_field(rows[i].kind == CHAT, rows[i].field) != TD_OK) {
            fail_msg("%s: %s", rows[i].field, error.text);
        }
        rt_api_request_fini(&req);
    }
}

struct bad {
    enum kind kind;
    const char *field, *param;
    td_err err;
};

static void check_refused(const struct bad *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        td_err err = with_field(rows[i].kind == CHAT, rows[i].field);
        if (err != rows[i].err || error.err != err || strcmp(error.param, rows[i].param) != 0 ||
            error.text[0] == 0) {
            fail_msg("%s: %s param=%s text=%s", rows[i].field, td_err_code(err), error.param,
                     error.text);
        }
        assert_null(req.root); /* zeroed: nothing to free */
        assert_int_equal(req.n_prompts, 0);
    }
}

#define BAD TD_ERR_BAD_REQUEST

static void a_wrong_type_is_refused_with_the_name_of_the_field(void **state)
{
    (void)state;
    static const struct bad rows[] = {
        {CHAT, "\"model\":7", "model", BAD},
        {CHAT, "\"max_tokens\":\"9\"", "max_tokens", BAD},
        {CHAT, "\"max_tokens\":1.0", "max_tokens", BAD},
        {CHAT, "\"max_completion_tokens\":[]", "max_completion_tokens", BAD},
        {CHAT, "\"temperature\":\"hot\"", "temperature", BAD},
        {CHAT, "\"top_p\":true", "top_p", BAD},
        {CHAT, "\"top_k\":0.5", "top_k", BAD},
        {CHAT, "\"min_p\":\"\"", "min_p", BAD},
        {CHAT, "\"repetition_penalty\":{}", "repetition_penalty", BAD},
        {CHAT, "\"frequency_penalty\":[]", "frequency_penalty", BAD},
        {CHAT, "\"presence_penalty\":\"0\"", "presence_penalty", BAD},
        {CHAT, "\"seed\":1.5", "seed", BAD},
        {CHAT, "\"stop\":7", "stop", BAD},
        {CHAT, "\"stop\":[7]", "stop", BAD},
        {CHAT, "\"stop_token_ids\":7", "stop_token_ids", BAD},
        {CHAT, "\"stop_token_ids\":[\"7\"]", "stop_token_ids", BAD},
        {CHAT, "\"min_tokens\":true", "min_tokens", BAD},
        {CHAT, "\"ignore_eos\":1", "ignore_eos", BAD},
        {CHAT, "\"include_stop_str_in_output\":\"yes\"", "include_stop_str_in_output", BAD},
        {CHAT, "\"skip_special_tokens\":0", "skip_special_tokens", BAD},
        {CHAT, "\"return_token_ids\":1", "return_token_ids", BAD},
        {CHAT, "\"add_special_tokens\":1", "add_special_tokens", BAD},
        {CHAT, "\"stream\":\"true\"", "stream", BAD},
        {CHAT, "\"stream_options\":true", "stream_options", BAD},
        {CHAT, "\"stream_options\":{\"include_usage\":1}", "stream_options.include_usage", BAD},
        {CHAT, "\"stream_options\":{\"continuous_usage_stats\":1}",
         "stream_options.continuous_usage_stats", BAD},
        {CHAT, "\"n\":\"2\"", "n", BAD},
        {COMP, "\"best_of\":\"2\"", "best_of", BAD},
        {CHAT, "\"logit_bias\":[]", "logit_bias", BAD},
        {CHAT, "\"logit_bias\":{\"x\":1}", "logit_bias", BAD},
        {CHAT, "\"logit_bias\":{\"1\":\"1\"}", "logit_bias", BAD},
        {CHAT, "\"cache_salt\":1", "cache_salt", BAD},
        {CHAT, "\"request_id\":1", "request_id", BAD},
        {CHAT, "\"priority\":\"high\"", "priority", BAD},
        {CHAT, "\"add_generation_prompt\":1", "add_generation_prompt", BAD},
        {CHAT, "\"chat_template_kwargs\":[]", "chat_template_kwargs", BAD},
        {CHAT, "\"chat_template_kwargs\":{\"enable_thinking\":1}", "chat_template_kwargs", BAD},
        {CHAT, "\"response_format\":\"text\"", "response_format", BAD},
    };
    check_refused(rows, TD_COUNT(rows));
}

static void a_value_out_of_range_is_refused_with_the_name_of_the_field(void **state)
{
    (void)state;
    static const struct bad rows[] = {
        {CHAT, "\"model\":\"\"", "model", BAD},
        {CHAT, "\"max_tokens\":0", "max_tokens", BAD},
        {CHAT, "\"max_tokens\":-1", "max_tokens", BAD},
        {CHAT, "\"max_completion_tokens\":1048577", "max_completion_tokens", BAD},
        {CHAT, "\"temperature\":-0.1", "temperature", BAD},
        {CHAT, "\"temperature\":1e300", "temperature", BAD},
        {CHAT, "\"top_p\":0", "top_p", BAD},
        {CHAT, "\"top_p\":1.1", "top_p", BAD},
        {CHAT, "\"top_k\":-2", "top_k", BAD},
        {CHAT, "\"min_p\":1.5", "min_p", BAD},
        {CHAT, "\"repetition_penalty\":0", "repetition_penalty", BAD},
        {CHAT, "\"frequency_penalty\":2.1", "frequency_penalty", BAD},
        {CHAT, "\"presence_penalty\":-2.1", "presence_penalty", BAD},
        {CHAT, "\"stop\":\"\"", "stop", BAD},
        {CHAT, "\"stop\":[\"\"]", "stop", BAD},
        {CHAT, "\"stop_token_ids\":[-1]", "stop_token_ids", BAD},
        {CHAT, "\"stop_token_ids\":[2147483648]", "stop_token_ids", BAD},
        {CHAT, "\"min_tokens\":-1", "min_tokens", BAD},
        {CHAT, "\"min_tokens\":5,\"max_tokens\":4", "min_tokens", BAD},
        {CHAT, "\"n\":0", "n", BAD},
        {CHAT, "\"n\":17", "n", BAD},
        {COMP, "\"n\":2,\"best_of\":3", "best_of", TD_ERR_UNSUPPORTED},
        {CHAT, "\"logit_bias\":{\"1\":101}", "logit_bias", BAD},
        {CHAT, "\"logit_bias\":{\"-1\":1}", "logit_bias", BAD},
        {CHAT, "\"logit_bias\":{\"2147483648\":1}", "logit_bias", BAD},
        {CHAT, "\"logit_bias\":{\"1x\":1}", "logit_bias", BAD},
        {CHAT, "\"cache_salt\":\"\"", "cache_salt", BAD},
        {CHAT, "\"priority\":1001", "priority", BAD},
        {CHAT, "\"chat_template_kwargs\":{\"bos_token\":\"x\"}", "chat_template_kwargs", BAD},
    };
    check_refused(rows, TD_COUNT(rows));
}

static void what_is_not_served_is_refused_by_name(void **state)
{
    (void)state;
#define NO TD_ERR_UNSUPPORTED
    static const struct bad rows[] = {
        {CHAT, "\"tools\":[{}]", "tools", NO},
        {CHAT, "\"tool_choice\":\"auto\"", "tool_choice", NO},
        {CHAT, "\"functions\":[{}]", "functions", NO},
        {CHAT, "\"logprobs\":true", "logprobs", NO},
        {CHAT, "\"top_logprobs\":3", "top_logprobs", NO},
        {COMP, "\"logprobs\":3", "logprobs", NO},
        {COMP, "\"prompt_logprobs\":1", "prompt_logprobs", NO},
        {COMP, "\"echo\":true", "echo", NO},
        {COMP, "\"suffix\":\"x\"", "suffix", NO},
        {CHAT, "\"guided_json\":{}", "guided_json", NO},
        {CHAT, "\"structured_outputs\":{}", "structured_outputs", NO},
        {CHAT, "\"kv_transfer_params\":{}", "kv_transfer_params", NO},
        {CHAT, "\"chat_template\":\"{{ x }}\"", "chat_template", NO},
        {CHAT, "\"response_format\":{\"type\":\"json_object\"}", "response_format", NO},
    };
    check_refused(rows, TD_COUNT(rows));
}

static void null_means_absent_for_every_field(void **state)
{
    (void)state;
    static const char *const names[] = {"model",
                                        "max_tokens",
                                        "max_completion_tokens",
                                        "temperature",
                                        "top_p",
                                        "top_k",
                                        "min_p",
                                        "repetition_penalty",
                                        "frequency_penalty",
                                        "presence_penalty",
                                        "seed",
                                        "stop",
                                        "stop_token_ids",
                                        "min_tokens",
                                        "ignore_eos",
                                        "include_stop_str_in_output",
                                        "skip_special_tokens",
                                        "return_token_ids",
                                        "add_special_tokens",
                                        "stream",
                                        "stream_options",
                                        "n",
                                        "logit_bias",
                                        "cache_salt",
                                        "request_id",
                                        "rid",
                                        "priority",
                                        "add_generation_prompt",
                                        "chat_template_kwargs",
                                        "chat_template",
                                        "response_format",
                                        "tools",
                                        "tool_choice",
                                        "functions",
                                        "logprobs",
                                        "top_logprobs",
                                        "prompt_logprobs",
                                        "guided_json",
                                        "structured_outputs",
                                        "kv_transfer_params",
                                        "user"};
    char field[128];
    for (size_t i = 0; i < TD_COUNT(names); i++) {
        (void)snprintf(field, sizeof field, "\"%s\":null", names[i]);
        assert_int_equal(with_field(true, field), TD_OK);
        assert_int_equal(req.n_choices, 1);
        rt_api_request_fini(&req);
    }
    assert_int_equal(parse(true, "{\"messages\":null}"), TD_ERR_BAD_REQUEST);
    assert_string_equal(error.param, "messages");
    assert_int_equal(parse(false, "{\"prompt\":null}"), TD_ERR_BAD_REQUEST);
    assert_string_equal(error.param, "prompt");
}

static void malformed_bodies_are_refused(void **state)
{
    (void)state;
    char deep[4096] = "{\"messages\":";
    size_t n = strlen(deep);
    memset(deep + n, '[', 100);
    deep[n + 100] = 0;
    static const char *const rows[] = {
        "",
        "{",
        "[]",
        "7",
        "\"x\"",
        "null",
        "{\"messages\":[{\"role\":\"user\"}]",
        "{\"model\":\"a\",\"model\":\"b\",\"messages\":[]}", /* duplicate key */
        "{\"model\":\"\xff\"}",
        "{\"model\":\"\\u0000\"}",
        "{\"seed\":1e999}",
        "{\"a\":NaN}"};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(parse(true, rows[i]), TD_ERR_BAD_REQUEST);
        assert_true(error.text[0] != 0);
    }
    assert_int_equal(parse(true, deep), TD_ERR_BAD_REQUEST);
    assert_non_null(strstr(error.text, "64 levels"));
    assert_int_equal(rt_api_parse(true, NULL, 0, &req, &error), TD_ERR_BAD_REQUEST);
}

static void the_second_of_two_limits_wins(void **state)
{
    (void)state;
    static const char *const rows[] = {"\"max_tokens\":5,\"max_completion_tokens\":7",
                                       "\"max_completion_tokens\":7,\"max_tokens\":5"};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        assert_int_equal(with_field(true, rows[i]), TD_OK);
        assert_int_equal(req.sampling.max_tokens, 7);
        rt_api_request_fini(&req);
    }
    assert_int_equal(with_field(true, "\"max_completion_tokens\":null,\"max_tokens\":5"), TD_OK);
    assert_int_equal(req.sampling.max_tokens, 5);
    rt_api_request_fini(&req);
}

static void prompts_come_as_text_ids_or_lists_of_them(void **state)
{
    (void)state;
    assert_int_equal(parse(false, "{\"prompt\":[1,2,3]}"), TD_OK);
    assert_int_equal(req.n_prompts, 1);
    assert_int_equal(req.prompts[0].n_ids, 3);
    assert_int_equal(req.prompts[0].ids[2], 3);
    assert_null(req.prompts[0].text);
    rt_api_request_fini(&req);
    assert_int_equal(parse(false, "{\"prompt\":[\"a\",[7],\"\"]}"), TD_OK);
    assert_int_equal(req.n_prompts, 3);
    assert_string_equal(req.prompts[0].text, "a");
    assert_int_equal(req.prompts[1].ids[0], 7);
    assert_int_equal(req.prompts[2].len, 0);
    rt_api_request_fini(&req);
    static const char *const bad[] = {"{\"prompt\":[]}",        "{\"prompt\":[[]]}",
                                      "{\"prompt\":[1,\"a\"]}", "{\"prompt\":[\"a\",1]}",
                                      "{\"prompt\":[-1]}",      "{\"prompt\":[4294967296]}",
                                      "{\"prompt\":{}}",        "{\"prompt\":[[1.5]]}"};
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        assert_int_equal(parse(false, bad[i]), TD_ERR_BAD_REQUEST);
        assert_string_equal(error.param, "prompt");
    }
}

static void prompts_times_choices_are_bounded(void **state)
{
    (void)state;
    char body[1024] = "{\"prompt\":[";
    for (int i = 0; i < RT_API_MAX_PROMPTS; i++) {
        (void)strcat(body, i > 0 ? ",\"a\"" : "\"a\"");
    }
    char whole[1200];
    (void)snprintf(whole, sizeof whole, "%s]}", body);
    assert_int_equal(parse(false, whole), TD_OK);
    assert_int_equal(req.n_prompts, RT_API_MAX_PROMPTS);
    rt_api_request_fini(&req);
    (void)snprintf(whole, sizeof whole, "%s,\"b\"]}", body);
    assert_int_equal(parse(false, whole), TD_ERR_BAD_REQUEST);
    (void)snprintf(whole, sizeof whole, "%s],\"n\":2}", body);
    assert_int_equal(parse(false, whole), TD_ERR_BAD_REQUEST);
    assert_string_equal(error.param, "n");
}

static void lists_are_bounded(void **state)
{
    (void)state;
    char field[8192] = "\"stop\":[\"a\"";
    for (int i = 0; i < RT_API_MAX_STOPS; i++) {
        (void)strcat(field, ",\"a\"");
    }
    (void)strcat(field, "]");
    assert_int_equal(with_field(true, field), TD_ERR_BAD_REQUEST);
    assert_string_equal(error.param, "stop");
    (void)strcpy(field, "\"stop_token_ids\":[0");
    for (int i = 0; i < TD_SAMPLING_MAX_STOP_IDS / 2; i++) {
        (void)strcat(field, ",1");
    }
    (void)strcat(field, "]");
    assert_int_equal(with_field(true, field), TD_ERR_BAD_REQUEST);
    char body[8192] = "{\"prompt\":\"a\",\"logit_bias\":{\"0\":1";
    for (int i = 1; i <= TD_SAMPLING_MAX_BIAS; i++) {
        char pair[24];
        (void)snprintf(pair, sizeof pair, ",\"%d\":1", i);
        (void)strcat(body, pair);
    }
    (void)strcat(body, "}}");
    assert_int_equal(parse(false, body), TD_ERR_BAD_REQUEST);
    assert_string_equal(error.param, "logit_bias");
}

static const char *content(size_t i)
{
    return json_string_value(json_object_get(json_array_get(req.messages, i), "content"));
}

static void messages_are_checked_and_their_parts_joined(void **state)
{
    (void)state;
    assert_int_equal(parse(true,
                           "{\"messages\":[{\"role\":\"system\",\"content\":\"s\"},"
                           "{\"role\":\"developer\",\"content\":\"d\"},"
                           "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
                           "{\"type\":\"text\",\"text\":\"b\"}]},"
                           "{\"role\":\"user\",\"content\":[]},"
                           "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
                           "{\"role\":\"tool\",\"content\":\"20\",\"tool_call_id\":\"c\"}]}"),
                     TD_OK);
    assert_int_equal(json_array_size(req.messages), 6);
    assert_string_equal(content(2), "a\nb");
    assert_string_equal(content(3), "");
    assert_string_equal(content(4), "");
    assert_non_null(json_object_get(json_array_get(req.messages, 5), "tool_call_id"));
    rt_api_request_fini(&req);
    static const struct {
        const char *messages;
        td_err err;
    } bad[] = {
        {"[]", BAD},
        {"{}", BAD},
        {"[7]", BAD},
        {"[{\"content\":\"x\"}]", BAD},
        {"[{\"role\":\"robot\",\"content\":\"x\"}]", BAD},
        {"[{\"role\":7,\"content\":\"x\"}]", BAD},
        {"[{\"role\":\"user\"}]", BAD},
        {"[{\"role\":\"user\",\"content\":null}]", BAD},
        {"[{\"role\":\"user\",\"content\":7}]", BAD},
        {"[{\"role\":\"user\",\"content\":[7]}]", NO},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", NO},
        {"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":7}]}]", NO},
    };
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        char body[512];
        (void)snprintf(body, sizeof body, "{\"messages\":%s}", bad[i].messages);
        assert_int_equal(parse(true, body), bad[i].err);
        assert_string_equal(error.param, "messages");
    }
}

static void values_reach_the_sampling_settings(void **state)
{
    (void)state;
    assert_int_equal(with_field(true,
                                "\"temperature\":0.5,\"top_k\":3,\"seed\":-1,\"min_tokens\":2,"
                                "\"max_tokens\":9,\"stop_token_ids\":[4,5],\"stop\":[\"x\",\"y\"],"
                                "\"logit_bias\":{\"6\":-1.5},\"priority\":7,\"stream\":true,"
                                "\"cache_salt\":\"abc\",\"n\":2"),
                     TD_OK);
    assert_true(req.sampling.temperature == 0.5F && req.has_temperature);
    assert_int_equal(req.sampling.top_k, 3);
    assert_true(req.has_seed && req.sampling.seed == UINT64_MAX);
    assert_int_equal(req.sampling.min_tokens, 2);
    assert_int_equal(req.sampling.n_stop_ids, 2);
    assert_int_equal(req.sampling.stop_ids[1], 5);
    assert_int_equal(req.n_stops, 2);
    assert_string_equal(req.stops[1], "y");
    assert_int_equal(req.sampling.n_bias, 1);
    assert_int_equal(req.sampling.bias[0].id, 6);
    assert_true(req.sampling.bias[0].bias == -1.5F);
    assert_int_equal(req.priority, 7);
    assert_true(req.stream);
    assert_string_equal(req.cache_salt, "abc");
    assert_int_equal(req.n_choices, 2);
    rt_api_request_fini(&req);
}

static void out_of_memory_is_a_typed_error_without_a_leak(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":[[1,2],[3]],\"logit_bias\":{\"1\":1}}";
    td_err err = TD_ERR_NO_MEMORY;
    unsigned n = 1;
    for (; err != TD_OK && n < 100; n++) {
        td_mem_fail_nth(n);
        err = parse(false, body);
        td_mem_fail_nth(0);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
    }
    assert_int_equal(err, TD_OK);
    assert_true(n > 3); /* at least the three arrays failed once each */
    rt_api_request_fini(&req);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_minimal_body_has_the_documented_defaults),
        cmocka_unit_test(good_values_are_accepted),
        cmocka_unit_test(a_wrong_type_is_refused_with_the_name_of_the_field),
        cmocka_unit_test(a_value_out_of_range_is_refused_with_the_name_of_the_field),
        cmocka_unit_test(what_is_not_served_is_refused_by_name),
        cmocka_unit_test(null_means_absent_for_every_field),
        cmocka_unit_test(malformed_bodies_are_refused),
        cmocka_unit_test(the_second_of_two_limits_wins),
        cmocka_unit_test(prompts_come_as_text_ids_or_lists_of_them),
        cmocka_unit_test(prompts_times_choices_are_bounded),
        cmocka_unit_test(lists_are_bounded),
        cmocka_unit_test(messages_are_checked_and_their_parts_joined),
        cmocka_unit_test(values_reach_the_sampling_settings),
        cmocka_unit_test(out_of_memory_is_a_typed_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, quiet, NULL);
}
