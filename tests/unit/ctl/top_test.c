/* The program of top: its options. What it draws: top_draw_test; the terminal: term_test; the command itself against live
 * clusters, on a pipe and on a pseudo terminal: tests/integration/ctl_test.py. */
#include "ctl/top.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/unit/check.h"

/* Status of one call with these words; nobody listens on port 1. */
static enum ctl_exit run(const char *word, const char *value)
{
    static const struct ctl_command commands[] = {{"top", "", 0, &ctl_top_program, ctl_top}};
    const char *argv[] = {"tandemctl", "top", "--router", "http://127.0.0.1:1", word, value};
    int n = word == NULL ? 4 : value == NULL ? 5 : 6;
    return ctl_command_run(commands, 1, n, (char **)(uintptr_t)argv);
}

static void without_a_router_it_fails_before_it_takes_the_terminal(void **state)
{
    (void)state;
    assert_int_equal(run(NULL, NULL), CTL_UNREACHABLE);
    assert_int_equal(run("--once", NULL), CTL_UNREACHABLE);
}

static void what_makes_no_sense_is_refused(void **state)
{
    (void)state;
    assert_int_equal(run("--every", "0"), CTL_USAGE);
    assert_int_equal(run("--sort", "colour"), CTL_USAGE);
    assert_int_equal(run("node", NULL), CTL_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_router_it_fails_before_it_takes_the_terminal),
        cmocka_unit_test(what_makes_no_sense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
