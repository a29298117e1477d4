/* The scripts for shells, from a table of commands. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/check.h"

#include "common/base/mem.h"
#include "ctl/completion.h"
#include "tests/unit/ctl/capture.h"

struct options {
    int output;
    char *model, *name;
    bool json;
};

static const struct td_opt opts[] = {
    CTL_OPT("output", ENUM, "table", "", 0, 0, "table|json", "it's", output),
    CTL_OPT("model", STRING, "", "path", 0, 0, NULL, "", model),
    CTL_OPT("name", STRING, "", "", 0, 0, NULL, "", name),
    CTL_OPT("json", BOOL, "false", "", 0, 0, NULL, "", json),
};
static const struct td_program program = {
    .name = "x", .summary = "s's", .opts = opts, .n_opts = TD_COUNT(opts)};
static const struct ctl_command commands[] = {
    {"get nodes", "", 0, &program, NULL},
    {"get requests", "", 0, &program, NULL},
    {"doctor", "", 0, &program, NULL},
    {"drain", "NODE", 1, &program, NULL},
};

static void assert_holds(const char *text, const char *const *want, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (strstr(text, want[i]) == NULL) {
            fail_msg("missing: %s in\n%s", want[i], text);
        }
    }
}

static void bash_and_zsh_share_one_list(void **state)
{
    (void)state;
    static const char *const want[] = {
        "\" \") list=\"get doctor drain completion help\"",
        "\"get \") list=\"nodes requests \"",
        "--output|-o) list=\"table json\"",
        "--model) list=@file ;;",
        "--name) list= ;;",
        "*) list=\"--output --model --name --json --config --help\"",
        "case \"$cur\" in -*) ;; *) list=$(_tandemctl_nodes) ;; esac",
        "\"completion \") list=\"bash zsh fish\""};
    CAPTURE(bash, b, assert_int_equal(ctl_completion_print(commands, 4, "bash", b), TD_OK));
    CAPTURE(zsh, z, assert_int_equal(ctl_completion_print(commands, 4, "zsh", z), TD_OK));
    assert_holds(bash, want, TD_COUNT(want));
    assert_holds(zsh, want, TD_COUNT(want));
    assert_null(strstr(bash, "--json) list"));
    assert_non_null(strstr(bash, "complete -o bashdefault"));
    assert_int_equal(strncmp(zsh, "#compdef tandemctl\n", 19), 0);
    const char *from_b = strstr(bash, "    case \"$line\""),
               *from_z = strstr(zsh, "    case \"$line\"");
    size_t n = (size_t)(strstr(from_b, "\n    esac\n") - from_b);
    assert_memory_equal(from_b, from_z, n);
    free(bash);
    free(zsh);
}

static void fish_has_a_line_for_each_word_with_its_help(void **state)
{
    (void)state;
    static const char *const want[] = {
        "-n '__tandemctl_at \"\"' -a get\n",
        "-n '__tandemctl_at \"\"' -a doctor -d 's\\'s'\n",
        "-n '__tandemctl_at \"get\"' -a requests -d 's\\'s'\n",
        "-n '__tandemctl_in \"doctor\"' -l output -s o -x -a 'table json' -d 'it\\'s'\n",
        "-n '__tandemctl_in \"doctor\"' -l model -r -F -d ''\n",
        "-n '__tandemctl_in \"doctor\"' -l json -d ''\n",
        "-n '__tandemctl_in \"drain\"' -a '(tandemctl get nodes"};
    CAPTURE(text, out, assert_int_equal(ctl_completion_print(commands, 4, "fish", out), TD_OK));
    assert_holds(text, want, TD_COUNT(want));
    free(text);
}

static void another_shell_is_refused_and_prints_nothing(void **state)
{
    (void)state;
    CAPTURE(text, out, {
        assert_int_equal(ctl_completion_print(commands, 4, "tcsh", out), TD_ERR_UNSUPPORTED);
    });
    assert_string_equal(text, "");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bash_and_zsh_share_one_list),
        cmocka_unit_test(fish_has_a_line_for_each_word_with_its_help),
        cmocka_unit_test(another_shell_is_refused_and_prints_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
