/* Which command runs, with which options and arguments; and what is refused. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/check.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "ctl/command.h"
#include "tests/unit/ctl/capture.h"

struct options {
    char *router;
    int output;
    bool loud;
    double watch_s;
    int64_t limit;
};

static const struct td_opt opts[] = {
    CTL_OPT("router", STRING, "http://default", "url", 0, 0, NULL, "", router),
    CTL_OPT("output", ENUM, "table", "", 0, 0, "table|json|yaml", "", output),
    CTL_OPT("loud", BOOL, "false", "", 0, 0, NULL, "", loud),
    CTL_OPT("watch", DOUBLE, "0", "s", 0, 3600, NULL, "", watch_s),
    CTL_OPT("limit", INT, "5", "", 1, 10, NULL, "", limit),
};

#define PROGRAM(n)                                                                                 \
    {                                                                                              \
        .name = n, .summary = "for tests", .opts = opts, .n_opts = TD_COUNT(opts),                 \
        .struct_bytes = sizeof(struct options)                                                     \
    }
static const struct td_program get_program = PROGRAM("tandemctl get things"),
                               explain_program = PROGRAM("tandemctl explain"),
                               plain_program = PROGRAM("tandemctl doctor");

/* What the last run saw. */
static struct {
    int runs;
    const char *which;
    char router[64], arg[64];
    struct options o;
    enum ctl_exit answer;
} seen;

static enum ctl_exit note(const char *which, const void *options, const char *arg)
{
    const struct options *o = options;
    seen.runs++;
    seen.which = which;
    seen.o = *o;
    (void)snprintf(seen.router, sizeof seen.router, "%s", o->router);
    (void)snprintf(seen.arg, sizeof seen.arg, "%s", arg);
    return seen.answer;
}

static enum ctl_exit run_get(const void *options, char *const *args)
{
    (void)args;
    return note("get", options, "");
}

static enum ctl_exit run_explain(const void *options, char *const *args)
{
    return note("explain", options, args[0]);
}

static enum ctl_exit run_plain(const void *options, char *const *args)
{
    (void)args;
    return note("doctor", options, "");
}

static const struct ctl_command commands[] = {
    {"get things", "", 0, &get_program, run_get},
    {"explain", "REQUEST", 1, &explain_program, run_explain},
    {"doctor", "", 0, &plain_program, run_plain},
};

/* RUN("explain", "-o", "json"): as if typed. */
#define RUN(...)                                                                                   \
    run((char *[]){(char *)(uintptr_t) "tandemctl", __VA_ARGS__},                                  \
        (int)TD_COUNT(((char *[]){(char *)(uintptr_t) "tandemctl", __VA_ARGS__})))
#define W(text) ((char *)(uintptr_t)(text))

static enum ctl_exit run(char **argv, int argc)
{
    memset(&seen, 0, sizeof seen);
    return ctl_command_run(commands, TD_COUNT(commands), argc, argv);
}

static int silence(void **state)
{
    /* Refusals are meant: TAP readers shall not see them. */
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static void words_choose_the_command_and_flags_fill_its_options(void **state)
{
    (void)state;
    assert_int_equal(RUN(W("get"), W("things"), W("--limit"), W("7"), W("--loud")), CTL_OK);
    assert_string_equal(seen.which, "get");
    assert_int_equal(seen.o.limit, 7);
    assert_true(seen.o.loud);
    assert_string_equal(seen.router, "http://default");
    assert_int_equal(RUN(W("doctor")), CTL_OK);
    assert_string_equal(seen.which, "doctor");
}

static void the_exit_status_is_the_commands_own(void **state)
{
    (void)state;
    char *argv[] = {W("tandemctl"), W("doctor")};
    memset(&seen, 0, sizeof seen);
    seen.answer = CTL_UNREACHABLE;
    assert_int_equal(ctl_command_run(commands, TD_COUNT(commands), 2, argv), 3);
}

static void an_argument_may_stand_before_between_and_after_flags(void **state)
{
    (void)state;
    assert_int_equal(RUN(W("explain"), W("req-1"), W("--limit"), W("7")), CTL_OK);
    assert_string_equal(seen.arg, "req-1");
    assert_int_equal(RUN(W("explain"), W("--loud"), W("req-2")), CTL_OK);
    assert_string_equal(seen.arg, "req-2");
    assert_true(seen.o.loud);
    assert_int_equal(RUN(W("explain"), W("--limit=3"), W("req-3"), W("--router"), W("x")), CTL_OK);
    assert_string_equal(seen.arg, "req-3");
    assert_string_equal(seen.router, "x");
}

static void short_flags_mean_long_ones(void **state)
{
    (void)state;
    assert_int_equal(RUN(W("get"), W("things"), W("-o"), W("yaml"), W("-w")), CTL_OK);
    assert_int_equal(seen.o.output, 2);
    assert_true(seen.o.watch_s > 1.9 && seen.o.watch_s < 2.1);
    assert_int_equal(RUN(W("get"), W("things"), W("-ojson")), CTL_OK);
    assert_int_equal(seen.o.output, 1);
}

static void the_environment_fills_options_and_the_command_line_wins(void **state)
{
    (void)state;
    assert_int_equal(setenv("TANDEM_ROUTER", "http://env", 1), 0);
    assert_int_equal(RUN(W("get"), W("things")), CTL_OK);
    assert_string_equal(seen.router, "http://env");
    assert_int_equal(RUN(W("get"), W("things"), W("--router"), W("http://line")), CTL_OK);
    assert_string_equal(seen.router, "http://line");
    assert_int_equal(unsetenv("TANDEM_ROUTER"), 0);
}

static void wrong_command_lines_are_refused_with_2_and_run_nothing(void **state)
{
    (void)state;
    assert_int_equal(RUN(W("get")), CTL_USAGE);
    assert_int_equal(RUN(W("get"), W("other")), CTL_USAGE);
    assert_int_equal(RUN(W("nonsense")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("extra")), CTL_USAGE);
    assert_int_equal(RUN(W("explain")), CTL_USAGE);
    assert_int_equal(RUN(W("explain"), W("a"), W("b")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("--unknown")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("--limit"), W("11")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("--limit")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("-o")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("-o"), W("xml")), CTL_USAGE);
    assert_int_equal(RUN(W("doctor"), W("-x")), CTL_USAGE);
    assert_int_equal(RUN(W("--unknown")), CTL_USAGE);
    char *only[] = {W("tandemctl")};
    assert_int_equal(run(only, 1), CTL_USAGE);
    assert_int_equal(seen.runs, 0);
}

static void more_arguments_than_the_bound_are_refused(void **state)
{
    (void)state;
    char *argv[CTL_MAX_ARGS + 1];
    for (size_t i = 0; i < TD_COUNT(argv); i++) {
        argv[i] = W("-o");
    }
    argv[1] = W("doctor");
    assert_int_equal(run(argv, CTL_MAX_ARGS + 1), CTL_USAGE);
    assert_int_equal(run(argv, CTL_MAX_ARGS), CTL_USAGE); /* fits, and is refused flag by flag */
    assert_int_equal(seen.runs, 0);
}

static void help_names_every_command_and_every_status(void **state)
{
    (void)state;
    CAPTURE(text, out, ctl_command_help(commands, TD_COUNT(commands), out));
    for (size_t i = 0; i < TD_COUNT(commands); i++) {
        assert_non_null(strstr(text, commands[i].words));
    }
    assert_non_null(strstr(text, "explain REQUEST"));
    assert_non_null(strstr(text, "3 the router does not answer"));
    free(text);
}

static void a_failed_allocation_is_a_failure_not_a_crash(void **state)
{
    (void)state;
    enum ctl_exit status = CTL_FAILED;
    for (unsigned n = 1; status != CTL_OK && n < 60; n++) {
        char *argv[] = {W("tandemctl"), W("explain"), W("r"), W("--router"), W("x")};
        memset(&seen, 0, sizeof seen);
        td_mem_fail_nth(n);
        status = ctl_command_run(commands, TD_COUNT(commands), TD_COUNT(argv), argv);
        td_mem_fail_nth(0);
    }
    assert_int_equal(status, CTL_OK);
}

static void who_is_quiet_says_nothing_and_control_bytes_are_not_passed_on(void **state)
{
    char got[64];
    (void)state;
    FILE *f = tmpfile();
    int saved = dup(fileno(stderr));
    assert_true(f != NULL && saved >= 0 && dup2(fileno(f), fileno(stderr)) >= 0);
    ctl_say_unless(true, "%s", "nothing");
    ctl_say_unless(false, "a%cb", 27);
    ctl_say("c");
    (void)fflush(stderr);
    assert_true(dup2(saved, fileno(stderr)) >= 0);
    (void)close(saved);
    rewind(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    (void)fclose(f);
    assert_string_equal(got, "tandemctl: a?b\ntandemctl: c\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_choose_the_command_and_flags_fill_its_options),
        cmocka_unit_test(the_exit_status_is_the_commands_own),
        cmocka_unit_test(an_argument_may_stand_before_between_and_after_flags),
        cmocka_unit_test(short_flags_mean_long_ones),
        cmocka_unit_test(who_is_quiet_says_nothing_and_control_bytes_are_not_passed_on),
        cmocka_unit_test(the_environment_fills_options_and_the_command_line_wins),
        cmocka_unit_test(wrong_command_lines_are_refused_with_2_and_run_nothing),
        cmocka_unit_test(more_arguments_than_the_bound_are_refused),
        cmocka_unit_test(help_names_every_command_and_every_status),
        cmocka_unit_test(a_failed_allocation_is_a_failure_not_a_crash),
    };
    return cmocka_run_group_tests(tests, silence, NULL);
}
