/* A node over gRPC is the document that the router's /nodes has of it. */
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/nodes.h"

static void a_node_is_the_routers_document(void **state)
{
    (void)state;
    const struct td_api_node n = {.name = "p0",
                                  .why = "draining",
                                  .epoch = "00ab",
                                  .numerics = "int8",
                                  .address = "http://a:1",
                                  .version = "1",
                                  .role = TD_ROLE_PREFILL,
                                  .state = TD_API_NODE_DRAINING,
                                  .queued = 1,
                                  .running = 2,
                                  .blocks = {1, 2, 3, 4, 5, 6, 7},
                                  .ready = true,
                                  .queued_prompt_tok = 5000000000,
                                  .n_blocks = 28,
                                  .n_layers = 3,
                                  .n_ranks = 2,
                                  .layout_id = 0xabc};
    json_t *j = ctl_nodes_json(&n);
    char *text = json_dumps(j, JSON_COMPACT);
    assert_string_equal(
        text,
        "{\"name\":\"p0\",\"role\":\"prefill\",\"epoch\":\"00ab\",\"ready\":true,\"draining\":true,"
        "\"drained\":false,\"why_not\":\"draining\",\"version\":\"1\",\"numerics\":\"int8\","
        "\"admin\":\"http://a:1\",\"layout_id\":\"0000000000000abc\","
        "\"numerics_id\":\"0000000000000000\",\"block_tokens\":0,\"layers\":3,\"max_model_len\":0,"
        "\"max_seqs\":0,\"ranks\":2,\"running\":2,\"queued\":1,\"queued_prompt_tokens\":5000000000,"
        "\"inflight\":0,\"dispatched\":0,\"n_blocks\":28,\"blocks\":{\"free\":1,\"cached\":2,"
        "\"reserved\":3,\"filling\":4,\"running\":5,\"parked\":6,\"quarantined\":7},"
        "\"prefill_us_per_ktok\":0,\"decode_step_us\":0,\"report_age_us\":0}");
    free(text);
    json_decref(j);
}

static void a_text_that_is_no_utf8_is_no_node(void **state)
{
    (void)state;
    const struct td_api_node n = {
        .name = "\xff", .why = "", .epoch = "", .numerics = "", .address = "", .version = ""};
    assert_null(ctl_nodes_json(&n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_the_routers_document),
        cmocka_unit_test(a_text_that_is_no_utf8_is_no_node),
    };
    return cmocka_run_group_tests_name("nodes", tests, NULL, NULL);
}
