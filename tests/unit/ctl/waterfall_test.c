/* Stages on one axis, from records as a router sends them. */
#include "ctl/waterfall.h"

#include <string.h>

#include "tests/unit/check.h"

static struct ctl_waterfall make(const char *json)
{
    struct ctl_waterfall w;
    json_t *r = json_loads(json, 0, NULL);
    assert_non_null(r);
    ctl_waterfall_make(r, &w);
    json_decref(r);
    return w;
}

static const struct ctl_bar *bar(const struct ctl_waterfall *w, const char *name)
{
    for (uint32_t i = 0; i < w->n; i++) {
        if (strcmp(w->bars[i].name, name) == 0) {
            return &w->bars[i];
        }
    }
    fail_msg("no bar %s", name);
    return NULL;
}

static void assert_bar(const struct ctl_waterfall *w, const char *name, int64_t from, int64_t us)
{
    assert_int_equal(bar(w, name)->from_us, from);
    assert_int_equal(bar(w, name)->us, us);
}

#define STAGES                                                                                     \
    "\"request_id\":\"a\",\"prefill\":\"p1\",\"decode\":\"d1\",\"router_queue_us\":50,"            \
    "\"prefill_queue_us\":10,\"prefill_us\":100,\"transfer_us\":80,\"transfer_exposed_us\":5,"     \
    "\"decode_queue_us\":1,\"decode_us\":200,\"ttft_us\":900,\"total_us\":1400"

static void a_failed_attempt_stands_before_the_one_that_answered(void **state)
{
    (void)state;
    struct ctl_waterfall w =
        make("{" STAGES ",\"tries\":[{\"attempt\":0,\"submitted_us\":30,\"placed_us\":40,"
             "\"failed_us\":700,\"error\":\"node_lost\",\"prefill\":\"p0\",\"decode\":\"d1\"},"
             "{\"attempt\":1,\"submitted_us\":30,\"placed_us\":750,\"failed_us\":-1}]}");
    assert_bar(&w, "tokenise", 0, 30);
    assert_bar(&w, "queue, try 1", 30, 10);
    assert_bar(&w, "try 1, lost", 40, 660);
    assert_string_equal(bar(&w, "try 1, lost")->where, "p0 to d1: node_lost");
    assert_int_equal(bar(&w, "try 1, lost")->kind, CTL_BAR_LOST);
    assert_bar(&w, "router queue", 700, 50);
    assert_bar(&w, "prefill queue", 750, 10);
    assert_bar(&w, "prefill", 760, 100);
    assert_bar(&w, "transfer", 785, 80); /* ends with its exposed part */
    assert_bar(&w, "  exposed", 860, 5);
    assert_bar(&w, "decode queue", 865, 1);
    assert_bar(&w, "decode", 866, 200);
    assert_string_equal(bar(&w, "decode")->where, "d1");
    assert_int_equal(w.axis_us, 1400);
    assert_int_equal(w.first_us, 900);
}

static void without_attempts_the_stages_begin_at_once(void **state)
{
    (void)state;
    struct ctl_waterfall w = make("{" STAGES "}");
    assert_int_equal(w.n, 7);
    assert_bar(&w, "router queue", 0, 50);
    assert_bar(&w, "decode", 166, 200);
}

static void a_request_that_found_no_second_pair_shows_its_wait(void **state)
{
    (void)state;
    struct ctl_waterfall w =
        make("{" STAGES ",\"attempts\":2,\"tries\":[{\"attempt\":0,\"submitted_us\":30,"
             "\"placed_us\":40,\"failed_us\":700,\"error\":\"node_lost\",\"prefill\":\"p0\","
             "\"decode\":\"d1\"}]}");
    assert_bar(&w, "try 1, lost", 40, 660);
    assert_string_equal(bar(&w, "try 1, lost")->where, "p0 to d1: node_lost");
    assert_bar(&w, "no pair to retry", 700, 700);
    w = make("{" STAGES ",\"attempts\":1,\"tries\":[{\"attempt\":0,\"submitted_us\":30,"
             "\"placed_us\":40,\"failed_us\":1400}]}"); /* ended with its only attempt */
    assert_int_equal(w.n, 9);
    assert_bar(&w, "try 1, lost", 40, 1360);
}

static void absurd_times_count_as_none_and_many_attempts_are_cut(void **state)
{
    (void)state;
    char json[16384] = "{\"decode_us\":9223372036854775807,\"prefill_us\":-4,\"tries\":[";
    for (int i = 0; i < 60; i++) {
        (void)strcat(json, "{\"attempt\":3,\"submitted_us\":5,\"placed_us\":9,\"failed_us\":7},");
    }
    (void)strcat(json, "{}]}");
    struct ctl_waterfall w = make(json);
    assert_true(w.n <= CTL_BARS);
    assert_int_equal(bar(&w, "decode")->us, 0);
    for (uint32_t i = 0; i < w.n; i++) {
        assert_true(w.bars[i].us >= 0 && w.bars[i].from_us >= 0);
    }
}

static void marks_are_round_numbers_and_few(void **state)
{
    (void)state;
    static const int64_t cases[][2] = {{0, 1},   {8, 1},         {9, 2},      {17, 2},
                                       {45, 10}, {91800, 20000}, {1400, 200}, {5000000, 1000000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ctl_waterfall_step(cases[i][0], 8), cases[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_attempt_stands_before_the_one_that_answered),
        cmocka_unit_test(without_attempts_the_stages_begin_at_once),
        cmocka_unit_test(a_request_that_found_no_second_pair_shows_its_wait),
        cmocka_unit_test(absurd_times_count_as_none_and_many_attempts_are_cut),
        cmocka_unit_test(marks_are_round_numbers_and_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
