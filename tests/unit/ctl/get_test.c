/* The tables of nodes and requests from documents as a router sends them, and as it should not. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/get.h"
#include "tests/unit/ctl/capture.h"

static const char nodes_json[] =
    "{\"nodes\":[{\"name\":\"p0\",\"role\":\"prefill\",\"epoch\":\"00000000000000aa\",\"ready\":"
    "true,"
    "\"draining\":false,\"running\":1,\"queued\":2,\"queued_prompt_tokens\":300,\"inflight\":3,"
    "\"dispatched\":40,\"n_blocks\":200,\"blocks\":{\"free\":100,\"cached\":50,\"reserved\":10,"
    "\"filling\":10,\"running\":30,\"parked\":0,\"quarantined\":0},\"prefill_us_per_ktok\":1500,"
    "\"decode_step_us\":0},{\"name\":\"d0\",\"role\":\"decode\",\"epoch\":\"00000000000000bb\","
    "\"ready\":true,\"draining\":true}]}";

static const char requests_json[] =
    "{\"live\":[{\"request_id\":\"a\",\"phase\":\"decode\",\"attempt\":0,\"prompt_tokens\":5,"
    "\"output_tokens\":6,\"age_us\":1500,\"deadline_in_us\":9223372036854775000}],"
    "\"finished\":[{\"request_id\":\"b\",\"prefill\":\"p0\",\"decode\":\"d0\",\"code\":\"ok\","
    "\"finish\":\"stop\",\"attempts\":1,\"prompt_tokens\":7,\"output_tokens\":8,"
    "\"router_queue_us\":10,\"ttft_us\":2000,\"tpot_us\":300,\"total_us\":4000,"
    "\"prefill_queue_us\":20,\"prefill_us\":1000,\"transfer_us\":500,\"transfer_exposed_us\":50,"
    "\"decode_queue_us\":30,\"decode_us\":2100,\"kv_bytes\":2048,\"cached_tokens\":0,"
    "\"transport\":\"shm\"},{\"request_id\":\"c\",\"code\":\"node_lost\",\"finish\":\"error\"}]}";

static json_t *parse(const char *text)
{
    json_t *v = json_loads(text, 0, NULL);
    assert_non_null(v);
    return v;
}

static void nodes_show_role_readiness_load_and_kv_use(void **state)
{
    (void)state;
    json_t *doc = parse(nodes_json);
    CAPTURE(text, out, assert_int_equal(ctl_get_print_nodes(doc, CTL_TABLE, out), TD_OK));
    assert_string_equal(text,
                        "NAME  ROLE     READY     RUNNING  QUEUED  KV-USE  EPOCH\n"
                        "p0    prefill  yes             1       2   25.0%  00000000000000aa\n"
                        "d0    decode   draining        -       -       -  00000000000000bb\n");
    free(text);
    json_decref(doc);
}

static void wide_adds_columns_and_json_keeps_the_document(void **state)
{
    (void)state;
    json_t *doc = parse(nodes_json);
    CAPTURE(wide, out, assert_int_equal(ctl_get_print_nodes(doc, CTL_WIDE, out), TD_OK));
    assert_non_null(strstr(wide, "PREFILL/1K"));
    assert_non_null(strstr(wide, "1.5 ms"));
    CAPTURE(text, out, assert_int_equal(ctl_get_print_nodes(doc, CTL_JSON, out), TD_OK));
    json_t *again = parse(text);
    assert_true(json_equal(doc, again));
    CAPTURE(yaml, out, assert_int_equal(ctl_get_print_nodes(doc, CTL_YAML, out), TD_OK));
    assert_non_null(strstr(yaml, "\n  blocks:\n    free: 100\n"));
    free(wide);
    free(text);
    free(yaml);
    json_decref(again);
    json_decref(doc);
}

static void no_node_is_said_in_words(void **state)
{
    (void)state;
    json_t *doc = parse("{\"nodes\":[]}");
    CAPTURE(text, out, assert_int_equal(ctl_get_print_nodes(doc, CTL_TABLE, out), TD_OK));
    assert_string_equal(text, "no node is attached\n");
    free(text);
    json_decref(doc);
}

static void requests_show_phases_ends_and_stage_times(void **state)
{
    (void)state;
    json_t *doc = parse(requests_json);
    CAPTURE(text, out, assert_int_equal(ctl_get_print_requests(doc, 20, CTL_TABLE, out), TD_OK));
    assert_string_equal(
        text,
        "RUNNING  PHASE   ATTEMPT  PROMPT  OUTPUT     AGE  DEADLINE-IN\n"
        "a        decode        0       5       6  1.5 ms            -\n"
        "\n"
        "FINISHED  END        PROMPT  OUTPUT  QUEUE  PREFILL-Q  PREFILL  EXPOSED  DECODE-Q  DECODE"
        "    TTFT  PER-TOKEN   TOTAL\n"
        "b         stop            7       8  10 us      20 us   1.0 ms    50 us     30 us  2.1 ms"
        "  2.0 ms     300 us  4.0 ms\n"
        "c         node_lost       -       -      -          -        -        -         -       -"
        "       -          -       -\n");
    free(text);
    json_decref(doc);
}

static void the_limit_cuts_the_oldest_in_every_format(void **state)
{
    (void)state;
    json_t *doc = parse(requests_json);
    CAPTURE(text, out, assert_int_equal(ctl_get_print_requests(doc, 1, CTL_JSON, out), TD_OK));
    json_t *again = parse(text);
    json_t *finished = json_object_get(again, "finished");
    assert_int_equal(json_array_size(finished), 1);
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(finished, 0), "request_id")), "b");
    CAPTURE(none, out, assert_int_equal(ctl_get_print_requests(doc, 0, CTL_TABLE, out), TD_OK));
    assert_null(strstr(none, "FINISHED"));
    free(text);
    free(none);
    json_decref(again);
    json_decref(doc);
}

static void other_shapes_are_refused_and_odd_fields_show_as_missing(void **state)
{
    (void)state;
    static const char *const bad[] = {"{}", "[]", "{\"nodes\":5,\"live\":[],\"finished\":{}}"};
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        json_t *doc = parse(bad[i]);
        CAPTURE(text, out, {
            assert_int_equal(ctl_get_print_nodes(doc, CTL_YAML, out), TD_ERR_PROTOCOL);
            assert_int_equal(ctl_get_print_requests(doc, 1, CTL_TABLE, out), TD_ERR_PROTOCOL);
        });
        assert_string_equal(text, "");
        free(text);
        json_decref(doc);
    }
    json_t *odd = parse("{\"nodes\":[5,{\"name\":7,\"running\":\"x\",\"n_blocks\":0,\"blocks\":[]},"
                        "{\"name\":\"n\",\"n_blocks\":-1}]}");
    CAPTURE(text, out, assert_int_equal(ctl_get_print_nodes(odd, CTL_WIDE, out), TD_OK));
    assert_non_null(strstr(text, "\n-     -     no           -       -       -  -"));
    free(text);
    json_decref(odd);
}

static void transfers_are_a_row_for_each_pair(void **state)
{
    (void)state;
    json_t *doc =
        json_loads("{\"samples\":[],\"transfers\":[{\"prefill\":\"p0\",\"decode\":\"d1\","
                   "\"transport\":\"shm\",\"count\":4,\"bytes\":4194304,\"transfer_us\":8000,"
                   "\"exposed_us\":400,\"age_us\":1500000},{}]}",
                   0, NULL);
    CAPTURE(text, out, { assert_int_equal(ctl_get_print_transfers(doc, CTL_TABLE, out), TD_OK); });
    assert_string_equal(text,
                        "PREFILL-NODE  DECODE-NODE  BY   REQUESTS        KV  MEAN-TIME  EXPOSED"
                        "        LAST\n"
                        "p0            d1           shm         4  4.00 MiB     2.0 ms   100 us"
                        "  1.50 s ago\n"
                        "-             -            -           1       0 B       0 us     0 us"
                        "           -\n");
    free(text);
    CAPTURE(json, j, assert_int_equal(ctl_get_print_transfers(doc, CTL_JSON, j), TD_OK));
    assert_null(strstr(json, "samples"));
    free(json);
    json_decref(doc);
    CAPTURE(none, n,
            assert_int_equal(ctl_get_print_transfers(NULL, CTL_TABLE, n), TD_ERR_PROTOCOL));
    free(none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nodes_show_role_readiness_load_and_kv_use),
        cmocka_unit_test(wide_adds_columns_and_json_keeps_the_document),
        cmocka_unit_test(no_node_is_said_in_words),
        cmocka_unit_test(requests_show_phases_ends_and_stage_times),
        cmocka_unit_test(transfers_are_a_row_for_each_pair),
        cmocka_unit_test(the_limit_cuts_the_oldest_in_every_format),
        cmocka_unit_test(other_shapes_are_refused_and_odd_fields_show_as_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
