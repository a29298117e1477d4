/* The picture of a request: what stands in it, and that no text of a server's breaks out of it. */
#include "ctl/svg.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"
#include "tests/unit/ctl/capture.h"

static char *draw(const char *json, td_err want)
{
    json_t *r = json_loads(json, 0, NULL);
    assert_non_null(r);
    CAPTURE(text, out, assert_int_equal(ctl_svg_print(r, out), want));
    json_decref(r);
    return text;
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;
    for (const char *p = strstr(text, what); p != NULL; p = strstr(p + 1, what)) {
        n++;
    }
    return n;
}

static void stages_times_units_and_places_are_labelled(void **state)
{
    (void)state;
    char *text = draw(
        "{\"request_id\":\"a\",\"prefill\":\"p0\",\"decode\":\"d0\",\"code\":\"ok\",\"finish\":"
        "\"stop\",\"attempts\":1,\"prompt_tokens\":7,\"output_tokens\":8,\"router_queue_us\":4000,"
        "\"ttft_us\":20000,\"tpot_us\":2000,\"total_us\":48000,\"prefill_queue_us\":4000,"
        "\"prefill_us\":12000,\"transfer_us\":8000,\"transfer_exposed_us\":2000,"
        "\"decode_queue_us\":0,\"decode_us\":26000,\"kv_bytes\":2048,\"transport\":\"shm\"}",
        TD_OK);
    assert_int_equal(strncmp(text, "<svg xmlns=\"http://www.w3.org/2000/svg\"", 39), 0);
    assert_string_equal(text + strlen(text) - 7, "</svg>\n");
    static const char *const want[] = {">router queue<",
                                       ">prefill queue<",
                                       ">prefill<",
                                       ">transfer<",
                                       ">exposed<",
                                       ">decode queue<",
                                       ">decode<",
                                       ">12.0 ms, p0<",
                                       ">26.0 ms, d0<",
                                       ">0 ms<",
                                       ">10 ms<",
                                       ">40 ms<",
                                       ">first token 20.0 ms<",
                                       "<title id=\"t\">",
                                       "KV 2.00 KiB by shm",
                                       "7 prompt and 8 output tokens",
                                       ">computes<",
                                       ">moves KV<"};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        if (strstr(text, want[i]) == NULL) {
            fail_msg("%s is missing", want[i]);
        }
    }
    /* A panel, six stages that took time, four in the legend. */
    assert_int_equal(count(text, "<rect"), 1 + 6 + 4);
    /* The axis is 608 wide for 48 ms: prefill begins at 8 ms and takes 12. */
    assert_non_null(strstr(text, "<rect class=\"work\" x=\"233.3\" y=\"168.0\" width=\"152.0\""));
    free(text);
}

static void text_of_a_server_stays_text(void **state)
{
    (void)state;
    char *text = draw("{\"request_id\":\"<script>\\u0001&\\\"x\\u0085\\uffff\",\"total_us\":5,"
                      "\"prefill\":\"]]><b>\",\"transport\":\"</text>\",\"prefill_us\":1}",
                      TD_OK);
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "<b>"));
    assert_null(strchr(text, 1));
    assert_null(strstr(text, "\xc2\x85"));
    assert_null(strstr(text, "\xef\xbf\xbf"));
    assert_non_null(strstr(text, "&lt;script&gt;?&amp;&quot;x??"));
    assert_int_equal(count(text, "<text"), count(text, "</text>"));
    free(text);
}

static void what_is_no_finished_request_is_refused_without_a_word(void **state)
{
    (void)state;
    static const char *const records[] = {"{}", "[]",
                                          "{\"request_id\":\"a\",\"phase\":\"decode\"}"};
    for (size_t i = 0; i < sizeof records / sizeof records[0]; i++) {
        char *text = draw(records[i], TD_ERR_PROTOCOL);
        assert_string_equal(text, "");
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_times_units_and_places_are_labelled),
        cmocka_unit_test(text_of_a_server_stays_text),
        cmocka_unit_test(what_is_no_finished_request_is_refused_without_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
