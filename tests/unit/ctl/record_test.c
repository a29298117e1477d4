/* A request over gRPC is the document that the router's /debug/request has of it. */
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/record.h"

static const struct td_api_pair pair = {.prefill = "p",
                                        .decode = "d",
                                        .excluded = "",
                                        .why_not = "",
                                        .chosen = true,
                                        .score_us = 9,
                                        .waiting_tok = 3};
static const struct td_api_skipped skipped = {"x", "draining"};
static const struct td_api_try tries[] = {{.number = 0,
                                           .placed_us = 2,
                                           .failed_us = -1,
                                           .error = "",
                                           .prefill = "p",
                                           .decode = "d",
                                           .pairs_seen = 1,
                                           .n_pairs = 1,
                                           .pairs = &pair,
                                           .nodes_skipped = 1,
                                           .n_skipped = 1,
                                           .skipped = &skipped}};
#define TRIES                                                                                      \
    "\"tries\":[{\"attempt\":0,\"submitted_us\":0,\"placed_us\":2,\"failed_us\":-1,\"error\":"     \
    "\"\","                                                                                        \
    "\"prefill\":\"p\",\"decode\":\"d\",\"predicted_ttft_us\":0,\"predicted_us\":0,\"pairs_"       \
    "seen\":1,"                                                                                    \
    "\"candidates\":[{\"prefill\":\"p\",\"decode\":\"d\",\"chosen\":true,\"excluded\":\"\","       \
    "\"avoided\":false,\"score_us\":9,\"prefill_us\":0,\"wait_us\":0,\"decode_us\":0,"             \
    "\"waiting_tokens\":3,\"free_blocks\":0,\"needed_blocks\":0,\"running\":0,\"why_not\":\"\"}]," \
    "\"nodes_skipped\":1,\"skipped\":[{\"node\":\"x\",\"why\":\"draining\"}]}]}"

static void check(const struct td_api_explain *e, const char *want)
{
    json_t *j = ctl_record_json(e, tries, 1);
    char *text = json_dumps(j, JSON_COMPACT);
    assert_string_equal(text, want);
    free(text);
    json_decref(j);
}

static void a_finished_request_is_the_routers_document(void **state)
{
    (void)state;
    const struct td_api_stage stages[] = {{.name = "router_queue", .took_us = 1},
                                          {.name = "prefill", .took_us = 2},
                                          {.name = "decode", .took_us = 3}};
    const struct td_api_explain e = {.id = "i",
                                     .transport = "shm",
                                     .attempts = 1,
                                     .n_stages = 3,
                                     .stages = stages,
                                     .kv_bytes = 4,
                                     .code = "",
                                     .phase = "",
                                     .prefill = "p",
                                     .decode = "d",
                                     .finish = TD_FINISH_LENGTH,
                                     .n_prompt = 5,
                                     .n_output = 6,
                                     .total_us = 7};
    check(&e,
          "{\"request_id\":\"i\",\"prefill\":\"p\",\"decode\":\"d\",\"code\":\"ok\",\"finish\":"
          "\"length\",\"attempts\":1,\"prompt_tokens\":5,\"output_tokens\":6,\"router_queue_us\":1,"
          "\"ttft_us\":0,\"tpot_us\":0,\"total_us\":7,\"ended_unix_us\":0,\"prefill_queue_us\":0,"
          "\"prefill_us\":2,\"transfer_us\":0,\"transfer_exposed_us\":0,\"decode_queue_us\":0,"
          "\"decode_us\":3,\"kv_bytes\":4,\"cached_tokens\":0,\"transport\":\"shm\"," TRIES);
}

static void a_running_request_has_its_phase(void **state)
{
    (void)state;
    const struct td_api_explain e = {.id = "i",
                                     .transport = "",
                                     .attempts = 1,
                                     .code = "",
                                     .phase = "decode",
                                     .prefill = "p",
                                     .decode = "d",
                                     .age_us = 8,
                                     .deadline_in_us = 9};
    check(
        &e,
        "{\"request_id\":\"i\",\"phase\":\"decode\",\"attempt\":0,\"prompt_tokens\":0,"
        "\"output_tokens\":0,\"age_us\":8,\"deadline_in_us\":9,\"prefill\":\"p\",\"decode\":\"d\","
        "\"attempts\":1," TRIES);
}

static void a_text_that_is_no_utf8_is_no_record(void **state)
{
    (void)state;
    const struct td_api_explain e = {
        .id = "\xff", .transport = "", .code = "", .phase = "", .prefill = "", .decode = ""};
    assert_null(ctl_record_json(&e, tries, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_finished_request_is_the_routers_document),
        cmocka_unit_test(a_running_request_has_its_phase),
        cmocka_unit_test(a_text_that_is_no_utf8_is_no_record),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
