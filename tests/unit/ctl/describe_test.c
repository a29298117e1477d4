/* Everything of one node or request as lines. */
#include "ctl/describe.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

static char *node(const char *json, const char *live, td_err want)
{
    json_t *n = json_loads(json, 0, NULL), *l = live != NULL ? json_loads(live, 0, NULL) : NULL;
    assert_non_null(n);
    CAPTURE(text, out, assert_int_equal(ctl_describe_print_node(n, l, out), want));
    json_decref(n);
    json_decref(l);
    return text;
}

static void a_node_shows_identity_load_pool_and_transfers(void **state)
{
    (void)state;
    char *text = node(
        "{\"name\":\"p0\",\"role\":\"prefill\",\"epoch\":\"aa\",\"ready\":true,\"draining\":"
        "false,\"why_not\":\"\",\"version\":\"1.2\",\"numerics\":\"cpu\",\"running\":2,"
        "\"queued\":1,\"queued_prompt_tokens\":300,\"n_blocks\":200,\"block_tokens\":16,"
        "\"blocks\":{\"free\":150,\"running\":50},\"prefill_us_per_ktok\":81000,"
        "\"decode_step_us\":0,\"max_model_len\":2048,\"ranks\":3,\"report_age_us\":300000}",
        "{\"transfers\":[{\"prefill\":\"p0\",\"decode\":\"d1\",\"transport\":\"shm\",\"count\":"
        "4,\"bytes\":4194304,\"transfer_us\":8000,\"exposed_us\":400,\"age_us\":1500000},"
        "{\"prefill\":\"p9\",\"decode\":\"d1\"}]}",
        TD_OK);
    static const char *const want[] = {
        "Name:              p0\n",
        "State:             ready\n",
        "Reported:          300 ms ago\n",
        "Context:           2048 tokens\n",
        "Processes:         3\n",
        "  waiting:         1\n",
        "  prefill per 1k:  81.0 ms\n",
        "KV pool            200 blocks of 16 tokens, 3200 tokens in all\n",
        "  free                  150   75.0 %\n",
        "  running                50   25.0 %\n",
        "p0            d1           shm         4  4.00 MiB     2.0 ms   100 us  1.50 s ago\n"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        if (strstr(text, want[i]) == NULL) {
            fail_msg("missing: %s in\n%s", want[i], text);
        }
    }
    assert_null(strstr(text, "decode step")); /* not measured */
    assert_null(strstr(text, "p9"));
    free(text);
}

static void a_node_without_fields_or_with_hostile_ones_is_survived(void **state)
{
    (void)state;
    char *text =
        node("{\"name\":\"a\\u001b[2J\",\"n_blocks\":-5,\"why_not\":\"x\\ny\"}", NULL, TD_OK);
    assert_null(strchr(text, 0x1b));
    assert_non_null(strstr(text, "State:             not ready, x?y\n"));
    assert_null(strstr(text, "KV pool"));
    free(text);
    free(node("{}", NULL, TD_ERR_PROTOCOL));
    text = node("{\"name\":\"a\",\"ready\":true,\"draining\":true,\"drained\":true}", NULL, TD_OK);
    assert_non_null(strstr(text, "drained: nothing runs there"));
    free(text);
}

static char *request(const char *json, td_err want)
{
    json_t *r = json_loads(json, 0, NULL);
    assert_non_null(r);
    CAPTURE(text, out, assert_int_equal(ctl_describe_print_request(r, out), want));
    json_decref(r);
    return text;
}

static void a_request_shows_times_transfer_and_attempts(void **state)
{
    (void)state;
    char *text = request(
        "{\"request_id\":\"r1\",\"code\":\"ok\",\"finish\":\"stop\",\"prompt_tokens\":9,"
        "\"total_us\":5000,\"prefill_us\":1200,\"kv_bytes\":1048576,\"transport\":\"tcp\","
        "\"tries\":[{\"placed_us\":10,\"failed_us\":900,\"error\":\"node_lost\",\"prefill\":\"p0\","
        "\"decode\":\"d0\",\"pairs_seen\":4},{\"placed_us\":950,\"failed_us\":-1,\"prefill\":"
        "\"p1\","
        "\"decode\":\"d0\",\"pairs_seen\":2}]}",
        TD_OK);
    static const char *const want[] = {
        "Request:           r1\n",
        "Prompt:            9 tokens\n",
        "  prefill:         1.2 ms\n",
        "KV moved:          1.00 MiB\n",
        "  1. after 10 us on p0 and d0, one of 4 pairs; failed after 900 us: node_lost\n",
        "  2. after 950 us on p1 and d0, one of 2 pairs\n"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        if (strstr(text, want[i]) == NULL) {
            fail_msg("missing: %s in\n%s", want[i], text);
        }
    }
    free(text);
    text = request("{\"request_id\":\"r1\",\"phase\":\"decode\",\"age_us\":5000}", TD_OK);
    assert_non_null(strstr(text, "Phase:             decode\n"));
    assert_null(strstr(text, "Times"));
    free(text);
    free(request("[]", TD_ERR_PROTOCOL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_shows_identity_load_pool_and_transfers),
        cmocka_unit_test(a_node_without_fields_or_with_hostile_ones_is_survived),
        cmocka_unit_test(a_request_shows_times_transfer_and_attempts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
