/* Bodies byte for byte, and as JSON. */
#include "router/rt_reply.h"

#include <string.h>

#include <jansson.h>

#include "common/base/mem.h"
#include "tests/unit/check.h"

static const struct rt_reply_head chat = {
    .chat = true, .id = "chatcmpl-1", .model = "m\"1", .created_s = 17};
static const struct rt_reply_head comp = {.id = "cmpl-1", .model = "m", .created_s = 17};
static const struct rt_reply_usage usage = {
    .prompt_tokens = 3, .completion_tokens = 2, .cached_tokens = 1};

#define USAGE                                                                                      \
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"                   \
    "\"prompt_tokens_details\":{\"cached_tokens\":1}}"
#define CHUNK                                                                                      \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":17,"                  \
    "\"model\":\"m\\\"1\","

static struct td_buf out;

static int setup(void **state)
{
    (void)state;
    td_buf_init(&out, 1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    td_buf_fini(&out);
    return 0;
}

static void body_is(const char *want)
{
    assert_int_equal(td_buf_append(&out, "", 1), TD_OK);
    assert_string_equal((const char *)out.data, want);
    json_t *j = json_loads(want, 0, NULL);
    assert_non_null(j);
    json_decref(j);
    td_buf_clear(&out);
}

/* One line `data: <JSON>` and a blank line, nothing else. */
static void event_is(const char *want)
{
    assert_true(out.len > 8);
    assert_memory_equal(out.data, "data: ", 6);
    assert_memory_equal(out.data + out.len - 2, "\n\n", 2);
    assert_ptr_equal(memchr(out.data, '\n', out.len), out.data + out.len - 2);
    out.len -= 2;
    td_buf_consume(&out, 6);
    body_is(want);
}

static void a_whole_chat_answer_has_the_documented_shape(void **state)
{
    (void)state;
    struct rt_reply_choice c[2] = {
        {.index = 0, .text = "a\n\"b", .len = 4, .finish = TD_FINISH_STOP, .stop_reason = "END"},
        {.index = 1, .text = "", .len = 0, .finish = TD_FINISH_LENGTH}};
    assert_int_equal(rt_reply_whole(&out, &chat, c, 2, &usage), TD_OK);
    body_is("{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":17,"
            "\"model\":\"m\\\"1\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
            "\"content\":\"a\\n\\\"b\",\"refusal\":null},\"logprobs\":null,"
            "\"finish_reason\":\"stop\",\"stop_reason\":\"END\"},{\"index\":1,\"message\":{"
            "\"role\":\"assistant\",\"content\":\"\",\"refusal\":null},\"logprobs\":null,"
            "\"finish_reason\":\"length\"}]," USAGE "}");
}

static void a_whole_completion_has_text_and_ids_when_asked_for(void **state)
{
    (void)state;
    static const int32_t ids[] = {7, -1, 2000000000};
    struct rt_reply_choice c = {.text = "x",
                                .len = 1,
                                .finish = TD_FINISH_ABORT,
                                .token_ids = ids,
                                .n_token_ids = 3,
                                .with_token_ids = true};
    assert_int_equal(rt_reply_whole(&out, &comp, &c, 1, &usage), TD_OK);
    body_is("{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":17,\"model\":\"m\","
            "\"choices\":[{\"index\":0,\"text\":\"x\",\"logprobs\":null,\"finish_reason\":"
            "\"abort\",\"token_ids\":[7,-1,2000000000]}]," USAGE "}");
}

static void the_role_comes_in_an_event_of_its_own(void **state)
{
    (void)state;
    assert_int_equal(rt_reply_role(&out, &chat, 3, NULL), TD_OK);
    event_is(CHUNK "\"choices\":[{\"index\":3,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]}");
    assert_int_equal(rt_reply_role(&out, &chat, 0, &usage), TD_OK);
    event_is(CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]," USAGE "}");
}

static void a_chunk_carries_text_or_the_end(void **state)
{
    (void)state;
    struct rt_reply_choice c = {.text = "\xc3\xa9\n", .len = 3};
    assert_int_equal(rt_reply_chunk(&out, &chat, &c, NULL), TD_OK);
    event_is(CHUNK "\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xc3\xa9\\n\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]}");
    c = (struct rt_reply_choice){.finish = TD_FINISH_STOP};
    assert_int_equal(rt_reply_chunk(&out, &chat, &c, &usage), TD_OK);
    event_is(CHUNK "\"choices\":[{\"index\":0,\"delta\":{},\"logprobs\":null,"
                   "\"finish_reason\":\"stop\"}]," USAGE "}");
    c = (struct rt_reply_choice){.text = "t", .len = 1, .with_token_ids = true};
    assert_int_equal(rt_reply_chunk(&out, &comp, &c, NULL), TD_OK);
    event_is("{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":17,\"model\":\"m\","
             "\"choices\":[{\"index\":0,\"text\":\"t\",\"logprobs\":null,\"finish_reason\":null,"
             "\"token_ids\":[]}]}");
}

static void usage_comes_last_with_no_choices(void **state)
{
    (void)state;
    assert_int_equal(rt_reply_usage_chunk(&out, &chat, &usage), TD_OK);
    event_is(CHUNK "\"choices\":[]," USAGE "}");
}

static void an_error_event_is_the_error_object_and_the_stream_ends_with_done(void **state)
{
    (void)state;
    assert_int_equal(rt_reply_error_event(&out, TD_ERR_PEER_LOST, "node \"p\" died"), TD_OK);
    event_is("{\"error\":{\"message\":\"node \\\"p\\\" died\",\"type\":\"server_error\","
             "\"param\":null,\"code\":\"node_lost\"}}");
    assert_int_equal(rt_reply_done(&out), TD_OK);
    assert_int_equal(out.len, 14);
    assert_memory_equal(out.data, "data: [DONE]\n\n", 14);
}

static void finish_reasons_have_the_names_clients_know(void **state)
{
    (void)state;
    assert_string_equal(rt_finish_name(TD_FINISH_STOP), "stop");
    assert_string_equal(rt_finish_name(TD_FINISH_LENGTH), "length");
    assert_string_equal(rt_finish_name(TD_FINISH_ABORT), "abort");
    assert_string_equal(rt_finish_name(TD_FINISH_ERROR), "error");
    assert_string_equal(rt_finish_name(TD_FINISH_NONE), "");
}

static void a_full_buffer_is_an_error(void **state)
{
    (void)state;
    struct rt_reply_choice c = {.text = "some text", .len = 9, .finish = TD_FINISH_STOP};
    struct td_buf small;
    for (size_t max = 1; max < 150; max += 7) {
        td_buf_init(&small, max);
        assert_int_not_equal(rt_reply_whole(&small, &chat, &c, 1, &usage), TD_OK);
        td_buf_clear(&small);
        assert_int_not_equal(rt_reply_chunk(&small, &chat, &c, &usage), TD_OK);
        td_buf_fini(&small);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_whole_chat_answer_has_the_documented_shape),
        TEST(a_whole_completion_has_text_and_ids_when_asked_for),
        TEST(the_role_comes_in_an_event_of_its_own),
        TEST(a_chunk_carries_text_or_the_end),
        TEST(usage_comes_last_with_no_choices),
        TEST(an_error_event_is_the_error_object_and_the_stream_ends_with_done),
        TEST(finish_reasons_have_the_names_clients_know),
        TEST(a_full_buffer_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
