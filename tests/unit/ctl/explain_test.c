/* The waterfall of a request from a record as a router sends it, and as it should not. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "ctl/explain.h"
#include "tests/unit/ctl/capture.h"

static char *explain(const char *json, td_err want)
{
    json_t *r = json_loads(json, 0, NULL);
    assert_non_null(r);
    CAPTURE(text, out, assert_int_equal(ctl_explain_print(r, false, out), want));
    json_decref(r);
    return text;
}

static void stages_follow_each_other_and_the_transfer_ends_with_its_exposed_part(void **state)
{
    (void)state;
    char *text = explain(
        "{\"request_id\":\"a\",\"prefill\":\"p0\",\"decode\":\"d0\",\"code\":\"ok\",\"finish\":"
        "\"stop\",\"attempts\":1,\"prompt_tokens\":7,\"output_tokens\":8,\"router_queue_us\":4000,"
        "\"ttft_us\":20000,\"tpot_us\":2000,\"total_us\":48000,\"prefill_queue_us\":4000,"
        "\"prefill_us\":12000,\"transfer_us\":8000,\"transfer_exposed_us\":2000,"
        "\"decode_queue_us\":0,\"decode_us\":26000,\"kv_bytes\":2048,\"cached_tokens\":3,"
        "\"transport\":\"shm\"}",
        TD_OK);
    assert_string_equal(
        text, "REQUEST  END   PROMPT  OUTPUT  CACHED  ATTEMPTS  PREFILL  DECODE        KV  BY\n"
              "a        stop       7       8       3         1  p0       d0      2.00 KiB  shm\n"
              "\n"
              "router queue      4.0 ms  |....                                            |\n"
              "prefill queue     4.0 ms  |    ....                                        |\n"
              "prefill          12.0 ms  |        ############                            |\n"
              "transfer          8.0 ms  |              ========                          |\n"
              "  exposed         2.0 ms  |                    ==                          |\n"
              "decode queue        0 us  |                                                |\n"
              "decode           26.0 ms  |                      ##########################|\n"
              "\n"
              ". waits  # computes  = moves KV  x lost\n"
              "first token after 20.0 ms, then one each 2.0 ms (500.0 tokens/s); total 48.0 ms\n");
    free(text);
}

static void a_failed_request_shows_its_code_and_no_made_up_times(void **state)
{
    (void)state;
    char *text =
        explain("{\"request_id\":\"a\",\"code\":\"node_lost\",\"finish\":\"error\"}", TD_OK);
    assert_non_null(strstr(text, "node_lost"));
    assert_null(strstr(text, "##"));
    assert_non_null(strstr(text, "(0.0 tokens/s); total 0 us"));
    free(text);
}

static void a_wait_for_the_first_byte_is_no_part_of_the_transfer(void **state)
{
    (void)state;
    char *text =
        explain("{\"request_id\":\"a\",\"prefill\":\"p\",\"decode\":\"d\",\"prefill_us\":10000,"
                "\"transfer_us\":4000,\"transfer_exposed_us\":10000,\"decode_us\":20000,"
                "\"total_us\":40000}",
                TD_OK);
    assert_non_null(strstr(text, "KV wait           6.0 ms"));
    assert_non_null(strstr(text, "transfer          4.0 ms"));
    assert_non_null(strstr(text, "  exposed         4.0 ms"));
    free(text);
}

static void absurd_numbers_stay_inside_the_frame(void **state)
{
    (void)state;
    static const char *const records[] = {
        "{\"request_id\":\"a\",\"prefill_us\":9223372036854775807,\"decode_us\":-5,"
        "\"transfer_us\":9000000000000,\"total_us\":1,\"attempts\":\"x\"}",
        "{\"request_id\":\"a\",\"prefill_us\":1,\"decode_us\":80000000000000,\"transfer_us\":1,"
        "\"transfer_exposed_us\":1,\"router_queue_us\":80000000000000}",
        "{\"request_id\":\"\\u001b[2J\",\"transport\":\"\\u001b[2J\",\"decode_us\":1}"};
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        char *text = explain(records[i], TD_OK);
        int lines = 0;
        for (char *p = strchr(text, '|'); p != NULL; p = strchr(p + 50, '|')) {
            assert_true(p[49] == '|'); /* every bar has its width */
            lines++;
        }
        assert_int_equal(lines, 7);
        assert_null(strchr(text, 0x1b));
        free(text);
    }
}

static void what_is_no_record_is_refused(void **state)
{
    (void)state;
    free(explain("{}", TD_ERR_PROTOCOL));
    free(explain("[]", TD_ERR_PROTOCOL));
    free(explain("{\"request_id\":5}", TD_ERR_PROTOCOL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_follow_each_other_and_the_transfer_ends_with_its_exposed_part),
        cmocka_unit_test(a_failed_request_shows_its_code_and_no_made_up_times),
        cmocka_unit_test(a_wait_for_the_first_byte_is_no_part_of_the_transfer),
        cmocka_unit_test(absurd_numbers_stay_inside_the_frame),
        cmocka_unit_test(what_is_no_record_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
