/* `tandemctl doctor` as a whole, without measuring: exit status and JSON. */
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "tests/unit/check.h"

#include "ctl/doctor.h"

static char printed[65536];

#define W(text) ((char *)(uintptr_t)(text))

/* Runs with stdout in a file, as TAP has the real one. */
static enum ctl_exit run(int argc, char **argv)
{
    static const struct ctl_command commands[] = {
        {"doctor", "", 0, &ctl_doctor_program, ctl_doctor}};
    FILE *file = tmpfile();
    assert_non_null(file);
    (void)fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_true(saved >= 0 && dup2(fileno(file), STDOUT_FILENO) >= 0);
    enum ctl_exit status = ctl_command_run(commands, 1, argc, argv);
    (void)fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    (void)close(saved);
    rewind(file);
    printed[fread(printed, 1, sizeof printed - 1, file)] = 0;
    (void)fclose(file);
    return status;
}

static const char *verdict_of(const json_t *doc, const char *check)
{
    const json_t *checks = json_object_get(doc, "checks");
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const json_t *c = json_array_get(checks, i);
        if (strcmp(json_string_value(json_object_get(c, "check")), check) == 0) {
            return json_string_value(json_object_get(c, "verdict"));
        }
    }
    return "none";
}

static void without_a_model_its_checks_are_skipped(void **state)
{
    (void)state;
    char *argv[] = {W("tandemctl"), W("doctor"),      W("--no-measure"),
                    W("--listen"),  W("127.0.0.1:0"), W("--json")};
    assert_int_equal(run(6, argv), CTL_OK);
    json_t *doc = json_loads(printed, 0, NULL);
    assert_true(json_is_true(json_object_get(doc, "ok")));
    assert_string_equal(verdict_of(doc, "model file"), "skip");
    assert_string_equal(verdict_of(doc, "ucx"), "skip");
    assert_string_equal(verdict_of(doc, "port 127.0.0.1:0"), "ok");
    json_decref(doc);
}

static void one_failure_is_exit_status_1(void **state)
{
    (void)state;
    char *argv[] = {W("tandemctl"), W("doctor"),  W("--no-measure"),      W("--listen"),
                    W("0"),         W("--model"), W("/nonexistent/model")};
    assert_int_equal(run(7, argv), CTL_FAILED);
    assert_non_null(strstr(printed, "FAIL  model file"));
    assert_non_null(strstr(printed, " failed\n"));
}

static void an_option_of_the_other_examination_is_refused(void **state)
{
    (void)state;
    (void)setenv("TANDEM_ROUTER", "http://127.0.0.1:1",
                 1); /* for all commands: no reason to refuse */
    char *machine[] = {W("tandemctl"), W("doctor"), W("--no-measure"), W("--listen"),
                       W("127.0.0.1:0")};
    assert_int_equal(run(5, machine), CTL_OK);
    char *router[] = {W("tandemctl"), W("doctor"), W("--no-measure"), W("--router"),
                      W("http://127.0.0.1:1")};
    assert_int_equal(run(5, router), CTL_USAGE);
    char *model[] = {W("tandemctl"), W("doctor"), W("--cluster"), W("--model"), W("m.gguf")};
    assert_int_equal(run(5, model), CTL_USAGE);
    char *cluster[] = {W("tandemctl"), W("doctor"), W("--cluster"), W("--timeout"), W("1")};
    assert_int_equal(run(5, cluster), CTL_UNREACHABLE);
    (void)unsetenv("TANDEM_ROUTER");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_model_its_checks_are_skipped),
        cmocka_unit_test(one_failure_is_exit_status_1),
        cmocka_unit_test(an_option_of_the_other_examination_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
