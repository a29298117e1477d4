/* What an outside router asks becomes what a role is asked, or is refused by name. */
#include "common/node/vllm_request.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/text/stop.h"
#include "tests/unit/check.h"

static const int32_t end_ids[] = {2, 3};
static char why[ND_VLLM_WHY];

static struct nd_vllm_limits limits(enum td_role role)
{
    return (struct nd_vllm_limits){
        .role = role,
        .n_vocab = 100,
        .max_model_len = 64,
        .pool_tok = 1024,
        .end_ids = end_ids,
        .n_end_ids = 2,
        .defaults = {.temperature = 0.5F, .top_p = 0.25F, .repetition_penalty = 2}};
}

static td_err read_as(enum td_role role, const struct td_vllm_generate *g, uint32_t n_prompt,
                      struct nd_vllm_request *out)
{
    struct nd_vllm_limits l = limits(role);
    why[0] = 0;
    return nd_vllm_request_read(&l, g, n_prompt, out, why);
}

static void what_is_not_said_is_the_models(void **state)
{
    (void)state;
    struct td_vllm_generate g = {0};
    struct nd_vllm_request r;
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 10, &r), TD_OK);
    assert_int_equal(r.mode, ND_LOCAL_WHOLE);
    assert_float_equal(r.sampling.temperature, 0.5, 0);
    assert_float_equal(r.sampling.top_p, 0.25, 0);
    assert_float_equal(r.sampling.repetition_penalty, 2, 0);
    assert_int_equal(r.sampling.max_tokens, 54); /* up to the end of the context */
    assert_int_equal(r.n_choices, 1);
    assert_false(r.has_seed);
    assert_int_equal(r.sampling.n_stop_ids, 2);
    assert_int_equal(r.sampling.stop_ids[0], 2);
    g.sampling.ignore_eos = true;
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 10, &r), TD_OK);
    assert_int_equal(r.sampling.n_stop_ids, 0);
}

static void what_is_said_arrives(void **state)
{
    (void)state;
    static const uint32_t ids[] = {7};
    static const struct td_logit_bias bias[] = {{.id = 99, .bias = -100}};
    static const char *const stop[] = {"x"};
    struct td_vllm_generate g = {.sampling = {.has_temperature = true,
                                              .has_max_tokens = true,
                                              .has_seed = true,
                                              .top_p = 1,
                                              .min_p = 0.5F,
                                              .frequency_penalty = -2,
                                              .presence_penalty = 2,
                                              .repetition_penalty = 1,
                                              .top_k = 5,
                                              .max_tokens = 54,
                                              .min_tokens = 3,
                                              .n = 2,
                                              .seed = -1,
                                              .stop = stop,
                                              .n_stop = 1,
                                              .stop_ids = ids,
                                              .n_stop_ids = 1,
                                              .bias = bias,
                                              .n_bias = 1}};
    struct nd_vllm_request r;
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 10, &r), TD_OK);
    const struct td_sampling_params *s = &r.sampling;
    assert_float_equal(s->temperature, 0, 0);
    assert_float_equal(s->top_p, 1, 0);
    assert_float_equal(s->min_p, 0.5, 0);
    assert_float_equal(s->frequency_penalty, -2, 0);
    assert_float_equal(s->presence_penalty, 2, 0);
    assert_float_equal(s->repetition_penalty, 1, 0);
    assert_int_equal(s->top_k, 5);
    assert_int_equal(s->max_tokens, 54);
    assert_int_equal(s->min_tokens, 3);
    assert_true(r.has_seed && s->seed == UINT64_MAX);
    assert_int_equal(s->n_stop_ids, 3);
    assert_int_equal(s->stop_ids[0], 7); /* the client's own come first */
    assert_int_equal(r.n_asked_ids, 1);
    assert_ptr_equal(s->bias, bias);
    assert_int_equal(r.n_choices, 2);
    assert_string_equal(r.stop[0], "x");
    g.sampling.top_k = UINT32_MAX; /* a router's -1 */
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 10, &r), TD_OK);
    assert_int_equal(r.sampling.top_k, 0);
}

/* Expects a refusal that names the field. */
static void refused(const struct td_vllm_generate *g, const char *field)
{
    struct nd_vllm_request r;
    td_err err = read_as(TD_ROLE_BOTH, g, 10, &r);
    assert_true(err == TD_ERR_BAD_REQUEST || err == TD_ERR_CONTEXT_LENGTH);
    if (strstr(why, field) == NULL) {
        fail_msg("\"%s\" does not name %s", why, field);
    }
}

static void numbers_beyond_their_range_are_refused_by_name(void **state)
{
    (void)state;
    struct td_vllm_generate g = {.sampling = {.has_temperature = true}};
    const struct {
        const char *name;
        float *field, values[3];
    } rows[] = {
        {"temperature", &g.sampling.temperature, {-0.1F, 101, NAN}},
        {"top_p", &g.sampling.top_p, {-1, 1.5F, NAN}},
        {"min_p", &g.sampling.min_p, {-1, 1.5F, INFINITY}},
        {"repetition_penalty", &g.sampling.repetition_penalty, {-1, 101, NAN}},
        {"frequency_penalty", &g.sampling.frequency_penalty, {-3, 3, NAN}},
        {"presence_penalty", &g.sampling.presence_penalty, {-3, 3, NAN}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (size_t k = 0; k < 3; k++) {
            *rows[i].field = rows[i].values[k];
            refused(&g, rows[i].name);
        }
        *rows[i].field = 0;
    }
}

static void lengths_are_held_to_the_context(void **state)
{
    (void)state;
    struct td_vllm_generate g = {.sampling = {.has_max_tokens = true}};
    struct nd_vllm_request r;
    refused(&g, "max_tokens");
    g.sampling.max_tokens = 55;
    refused(&g, "max_tokens");
    g.sampling.max_tokens = 54;
    g.sampling.min_tokens = 55;
    refused(&g, "min_tokens");
    g.sampling.max_tokens = 1; /* as routers ask a prefill node, whatever else the request says */
    g.kv_json = "{\"do_remote_decode\":true}";
    assert_int_equal(read_as(TD_ROLE_PREFILL, &g, 10, &r), TD_OK);
    assert_int_equal(r.sampling.min_tokens, 1);
    g.kv_json = NULL;
    g.sampling.max_tokens = 54;
    g.sampling.min_tokens = 0;
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 64, &r), TD_ERR_CONTEXT_LENGTH);
    assert_int_equal(read_as(TD_ROLE_BOTH, &g, 0, &r), TD_ERR_BAD_REQUEST);
    struct nd_vllm_limits small = limits(TD_ROLE_BOTH);
    small.pool_tok = 32;
    assert_int_equal(nd_vllm_request_read(&small, &g, 32, &r, why), TD_ERR_CONTEXT_LENGTH);
    assert_non_null(strstr(why, "KV pool holds 32 tokens"));
    g.sampling.n = ND_VLLM_MAX_CHOICES + 1;
    refused(&g, "n must");
}

static void lists_are_bounded_and_their_ids_checked(void **state)
{
    (void)state;
    static uint32_t ids[TD_SAMPLING_MAX_STOP_IDS];
    static struct td_logit_bias bias[TD_SAMPLING_MAX_BIAS + 1];
    static const char *stops[TD_TEXT_STOPS_MAX + 1];
    static char text[TD_TEXT_STOP_BYTES_MAX + 2];
    struct td_vllm_generate g = {
        .sampling = {.stop_ids = ids, .bias = bias, .stop = stops, .n_stop_ids = 1}};
    ids[0] = 100;
    refused(&g, "token id 100");
    ids[0] = 0;
    g.sampling.n_stop_ids = TD_SAMPLING_MAX_STOP_IDS;
    refused(&g, "stop_token_ids");
    g.sampling.n_stop_ids = 0;
    g.sampling.n_bias = 1;
    bias[0] = (struct td_logit_bias){.id = -1};
    refused(&g, "logit_bias");
    bias[0] = (struct td_logit_bias){.id = 1, .bias = NAN};
    refused(&g, "logit_bias");
    g.sampling.n_bias = TD_SAMPLING_MAX_BIAS + 1;
    refused(&g, "logit_bias");
    g.sampling.n_bias = 0;
    g.sampling.n_stop = TD_TEXT_STOPS_MAX + 1;
    refused(&g, "stop");
    g.sampling.n_stop = 1;
    stops[0] = "";
    refused(&g, "stop");
    memset(text, 'x', sizeof text - 1);
    stops[0] = text;
    refused(&g, "stop");
    g.sampling.n_stop = 0;
    g.refused = "logprobs";
    refused(&g, "logprobs");
}

static void the_role_and_the_hand_off_say_who_computes_what(void **state)
{
    static const char hold[] = "{\"do_remote_decode\":true,\"do_remote_prefill\":false}";
    static const char take[] = "{\"do_remote_prefill\":true,\"handoff\":\"0a1b\"}";
    static const char neither[] = "{\"do_remote_decode\":false}";
    static const struct {
        enum td_role role;
        const char *json;
        td_err err;
        enum nd_local_mode mode;
    } rows[] = {
        {TD_ROLE_PREFILL, hold, TD_OK, ND_LOCAL_HOLD},
        {TD_ROLE_PREFILL, take, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_PREFILL, neither, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_PREFILL, NULL, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_DECODE, take, TD_OK, ND_LOCAL_TAKE},
        {TD_ROLE_DECODE, hold, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_DECODE, NULL, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_DECODE, "{\"do_remote_prefill\":true}", TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_DECODE, "{\"do_remote_prefill\":true,\"handoff\":7}", TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_BOTH, NULL, TD_OK, ND_LOCAL_WHOLE},
        {TD_ROLE_BOTH, "", TD_OK, ND_LOCAL_WHOLE},
        {TD_ROLE_BOTH, neither, TD_OK, ND_LOCAL_WHOLE},
        {TD_ROLE_BOTH, hold, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_BOTH, take, TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_BOTH, "[]", TD_ERR_BAD_REQUEST, 0},
        {TD_ROLE_BOTH, "{", TD_ERR_BAD_REQUEST, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct td_vllm_generate g = {.kv_json = rows[i].json};
        struct nd_vllm_request r;
        assert_int_equal(read_as(rows[i].role, &g, 10, &r), rows[i].err);
        if (rows[i].err == TD_OK) {
            assert_int_equal(r.mode, rows[i].mode);
        } else {
            assert_non_null(strstr(why, "kv_transfer_params_json"));
        }
        g.sampling.n = 2;
        assert_true(rows[i].err != TD_OK ||
                    (read_as(rows[i].role, &g, 10, &r) == TD_OK) == (rows[i].role == TD_ROLE_BOTH));
    }
}

static void a_hand_off_comes_back_as_it_was(void **state)
{
    (void)state;
    char json[256], small[16];
    struct td_vllm_generate g = {.kv_json = json};
    struct nd_vllm_request r;
    assert_true(nd_vllm_handoff_json("0a1b", "77", json, sizeof json));
    assert_false(nd_vllm_handoff_json("0a1b", "77", small, sizeof small));
    assert_int_equal(read_as(TD_ROLE_DECODE, &g, 10, &r), TD_OK);
    assert_string_equal(r.handoff, "0a1b");
    /* longer than any hand-off */
    static char text[TD_HANDOFF_MAX_TEXT + 64];
    size_t n = (size_t)snprintf(text, sizeof text, "{\"do_remote_prefill\":true,\"handoff\":\"");
    memset(text + n, 'a', TD_HANDOFF_MAX_TEXT);
    (void)snprintf(text + n + TD_HANDOFF_MAX_TEXT, sizeof text - n - TD_HANDOFF_MAX_TEXT, "\"}");
    g.kv_json = text;
    assert_int_equal(read_as(TD_ROLE_DECODE, &g, 10, &r), TD_ERR_BAD_REQUEST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_said_is_the_models),
        cmocka_unit_test(what_is_said_arrives),
        cmocka_unit_test(numbers_beyond_their_range_are_refused_by_name),
        cmocka_unit_test(lengths_are_held_to_the_context),
        cmocka_unit_test(lists_are_bounded_and_their_ids_checked),
        cmocka_unit_test(the_role_and_the_hand_off_say_who_computes_what),
        cmocka_unit_test(a_hand_off_comes_back_as_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
