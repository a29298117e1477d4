/* The script for bash, from a table of commands. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "common/base/mem.h"
#include "ctl/completion.h"
#include "tests/unit/ctl/capture.h"

struct options {
    int output;
    char *model;
    bool json;
};

static const struct td_opt opts[] = {
    CTL_OPT("output", ENUM, "table", "", 0, 0, "table|json", "", output),
    CTL_OPT("model", STRING, "", "path", 0, 0, NULL, "", model),
    CTL_OPT("json", BOOL, "false", "", 0, 0, NULL, "", json),
};
static const struct td_program program = {
    .name = "x", .summary = "s", .opts = opts, .n_opts = TD_COUNT(opts)};
static const struct ctl_command commands[] = {
    {"get nodes", "", 0, &program, NULL},
    {"get requests", "", 0, &program, NULL},
    {"doctor", "", 0, &program, NULL},
};

static void commands_flags_and_values_are_in_the_script(void **state)
{
    (void)state;
    CAPTURE(text, out, assert_int_equal(ctl_completion_print(commands, 3, "bash", out), TD_OK));
    assert_non_null(strstr(text, "\" \") words=\"get doctor completion help\""));
    assert_non_null(strstr(text, "\"get \") words=\"nodes requests \""));
    assert_non_null(strstr(text, "--output|-o) words=\"table json\""));
    assert_non_null(strstr(text, "--model) return ;;"));
    assert_null(strstr(text, "--json) return"));
    assert_non_null(strstr(text, "*) words=\"--output --model --json --config --help\""));
    free(text);
}

static void another_shell_is_refused_and_prints_nothing(void **state)
{
    (void)state;
    CAPTURE(text, out, {
        assert_int_equal(ctl_completion_print(commands, 3, "fish", out), TD_ERR_UNSUPPORTED);
    });
    assert_string_equal(text, "");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands_flags_and_values_are_in_the_script),
        cmocka_unit_test(another_shell_is_refused_and_prints_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
