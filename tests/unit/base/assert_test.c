#include "common/base/assert.h"

#include <stdio.h>
#include <string.h>

#include "tests/unit/check.h"

static void a_true_expression_passes(void **state)
{
    int evaluated = 0;
    (void)state;
    TD_REQUIRE(++evaluated == 1);
    TD_INSIST(++evaluated == 2);
    assert_int_equal(evaluated, 2);
}

static void a_false_expression_aborts(void **state)
{
    (void)state;
    CHECK_ABORTS(TD_REQUIRE(1 + 1 == 3));
    CHECK_ABORTS(TD_INSIST(sizeof(int) == 1));
}

static void the_last_words_name_kind_and_expression(void **state)
{
    int fds[2];
    int status;
    char text[1024] = "";
    (void)state;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(fds[1], STDERR_FILENO);
        (void)signal(SIGABRT, SIG_DFL);
        TD_REQUIRE(strcmp("left", "right") == 0);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(read(fds[0], text, sizeof text - 1) > 0);
    assert_non_null(
        strstr(text, "level=error room=base msg=\"assertion failed\" kind=require at="));
    assert_non_null(strstr(text, "assert_test.c:"));
    assert_non_null(strstr(text, "expr=\"strcmp(\\\"left\\\", \\\"right\\\") == 0\""));
    (void)close(fds[0]);
    (void)close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_expression_passes),
        cmocka_unit_test(a_false_expression_aborts),
        cmocka_unit_test(the_last_words_name_kind_and_expression),
    };
    return cmocka_run_group_tests_name("base/assert", tests, NULL, NULL);
}
