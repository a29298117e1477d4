/* check.h - what every unit test includes: cmocka with its prerequisites, and a check that a
 * statement aborts. */
#ifndef TD_TESTS_UNIT_CHECK_H
#define TD_TESTS_UNIT_CHECK_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* The statement must end the process by an assertion; it runs in a child whose stderr is closed. */
#define CHECK_ABORTS(statement)                                                                    \
    do {                                                                                           \
        int check_status_ = 0;                                                                     \
        pid_t check_pid_ = fork();                                                                 \
        assert_true(check_pid_ >= 0);                                                              \
        if (check_pid_ == 0) {                                                                     \
            (void)close(STDERR_FILENO);                                                            \
            (void)signal(SIGABRT, SIG_DFL);                                                        \
            statement;                                                                             \
            _exit(0);                                                                              \
        }                                                                                          \
        assert_int_equal(waitpid(check_pid_, &check_status_, 0), check_pid_);                      \
        assert_true(WIFSIGNALED(check_status_) && WTERMSIG(check_status_) == SIGABRT);             \
    } while (0)

#endif
