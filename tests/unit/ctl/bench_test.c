/* The bench's document, and a run over nothing. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tests/unit/check.h"

#include "ctl/bench.h"
#include "tests/unit/ctl/capture.h"

static void the_document_names_cpu_model_and_every_case(void **state)
{
    (void)state;
    struct ctl_bench_setup setup = {
        .model = "/m.gguf", .threads = 2, .numerics = "int8", .isa = "auto"};
    setup.model_id[0] = 0xab;
    struct td_bench_result result = {.cpu = "Some CPU", .reps = 3};
    for (int i = 0; i < TD_BENCH_CASES; i++) {
        result.cases[i] = (struct td_bench_case){"case", 10.04, 11.06, 9};
    }
    CAPTURE(text, out, assert_int_equal(ctl_bench_json(&setup, &result, CTL_JSON, out), TD_OK));
    json_t *doc = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(doc, "cpu")), "Some CPU");
    assert_int_equal(strncmp(json_string_value(json_object_get(doc, "model_id")), "ab00", 4), 0);
    assert_int_equal(json_integer_value(json_object_get(doc, "threads")), 2);
    const json_t *cases = json_object_get(doc, "cases");
    assert_int_equal(json_array_size(cases), TD_BENCH_CASES);
    double median = json_number_value(json_object_get(json_array_get(cases, 0), "median"));
    assert_true(median == 10.0); /* tenths: more is noise */
    json_decref(doc);
    free(text);
}

static int silence(void **state)
{
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static void no_model_is_wrong_usage_and_a_missing_one_a_failure(void **state)
{
    (void)state;
    static const struct ctl_command commands[] = {
        {"bench engine", "", 0, &ctl_bench_engine_program, ctl_bench_engine}};
    char words[5][24] = {"tandemctl", "bench", "engine", "--model", "/nonexistent/m"};
    char *argv[] = {words[0], words[1], words[2], words[3], words[4]};
    assert_int_equal(ctl_command_run(commands, 1, 3, argv), CTL_USAGE);
    assert_int_equal(ctl_command_run(commands, 1, 5, argv), CTL_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_document_names_cpu_model_and_every_case),
        cmocka_unit_test(no_model_is_wrong_usage_and_a_missing_one_a_failure),
    };
    return cmocka_run_group_tests(tests, silence, NULL);
}
