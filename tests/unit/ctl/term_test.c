/* A child on a pseudo terminal takes it and ends in every way there is: the terminal comes back each time. */
#include "ctl/term.h"

#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "tests/unit/check.h"

#define LEFT "\033[0m\033[?25h\033[?1049l"

struct child {
    pid_t pid;
    int master, slave; /* slave: ours, so that the settings can be read after its end */
    char out[8192];
    size_t n;
};

/* Reads what the child's terminal got until `want` is there. */
static void read_until(struct child *c, const char *want)
{
    while (memmem(c->out, c->n, want, strlen(want)) == NULL) {
        assert_true(c->n < sizeof c->out);
        ssize_t got = read(c->master, c->out + c->n, sizeof c->out - c->n);
        assert_true(got > 0);
        c->n += (size_t)got;
    }
}

/* What the child does once it has the terminal: waits for keys and acts on them. */
static void child_main(int fd, bool own_session)
{
    if (own_session) {
        (void)setsid();
        (void)ioctl(fd, TIOCSCTTY, 0);
    } else {
        (void)setpgid(0, 0); /* a group alone in its session cannot be stopped */
    }
    if (ctl_term_open(fd, fd) != TD_OK) {
        _exit(99);
    }
    for (;;) {
        int key = ctl_term_key(60000000);
        if (key == 'x') {
            exit(7); /* NOLINT(concurrency-mt-unsafe): one thread */
        } else if (key == 'c') {
            ctl_term_close();
            ctl_term_close();
            _exit(8);
        } else if (key == 'a') {
            abort();
        } else if (key > 0) {
            (void)dprintf(fd, "<%c>", key);
        }
    }
}

static void start_in(struct child *c, bool own_session)
{
    memset(c, 0, sizeof *c);
    assert_int_equal(openpty(&c->master, &c->slave, NULL, NULL, NULL), 0);
    c->pid = fork();
    if (c->pid == 0) {
        (void)close(c->master);
        child_main(c->slave, own_session);
    }
    assert_true(c->pid > 0);
    read_until(c, "\033[?1049h");
    assert_int_equal(write(c->master, "k", 1), 1);
    read_until(c, "<k>"); /* a key without Enter and without echo */
    assert_null(memmem(c->out, c->n, "k<k>", 4));
}

static void start(struct child *c)
{
    start_in(c, true);
}

/* The child's wait status; the terminal is as it was before. */
static int end(struct child *c)
{
    int status = 0;
    struct termios t;
    read_until(c, LEFT);
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    assert_int_equal(tcgetattr(c->slave, &t), 0);
    assert_true((t.c_lflag & (ICANON | ECHO)) == (ICANON | ECHO));
    (void)close(c->master);
    (void)close(c->slave);
    return status;
}

static void it_comes_back_when_the_process_ends_by_itself(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int status;
    } ways[] = {{"x", 7}, {"c", 8}};
    for (size_t i = 0; i < 2; i++) {
        struct child c;
        start(&c);
        assert_int_equal(write(c.master, ways[i].key, 1), 1);
        int status = end(&c);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == ways[i].status);
    }
}

static void it_comes_back_when_a_signal_ends_the_process(void **state)
{
    (void)state;
    static const int signals[] = {SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGSEGV};
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct child c;
        start(&c);
        assert_int_equal(kill(c.pid, signals[i]), 0);
        int status = end(&c);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == signals[i]);
    }
    struct child c;
    start(&c);
    assert_int_equal(write(c.master, "a", 1), 1);
    int status = end(&c);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void control_c_leaves_without_a_failure(void **state)
{
    (void)state;
    struct child c;
    start(&c);
    assert_int_equal(write(c.master, "\003", 1), 1);
    int status = end(&c);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void a_stop_gives_it_back_and_going_on_takes_it_again(void **state)
{
    (void)state;
    struct child c;
    int status = 0;
    start_in(&c, false);
    assert_int_equal(kill(c.pid, SIGTSTP), 0);
    read_until(&c, LEFT);
    assert_int_equal(waitpid(c.pid, &status, WUNTRACED), c.pid);
    assert_true(WIFSTOPPED(status));
    c.n = 0;
    assert_int_equal(kill(c.pid, SIGCONT), 0);
    read_until(&c, "\033[?1049h");
    c.n = 0;
    assert_int_equal(write(c.master, "x", 1), 1);
    status = end(&c);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void a_pipe_is_no_terminal(void **state)
{
    (void)state;
    int fds[2];
    unsigned columns = 1, rows = 1;
    assert_int_equal(pipe(fds), 0);
    assert_int_equal(ctl_term_open(fds[0], fds[1]), TD_ERR_UNSUPPORTED);
    ctl_term_close(); /* nothing taken: nothing written */
    ctl_term_size(fds[1], &columns, &rows);
    assert_int_equal(columns + rows, 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void the_size_is_the_terminals(void **state)
{
    (void)state;
    int master = -1, slave = -1;
    unsigned columns = 0, rows = 0;
    struct winsize w = {.ws_row = 30, .ws_col = 90};
    assert_int_equal(openpty(&master, &slave, NULL, NULL, &w), 0);
    ctl_term_size(slave, &columns, &rows);
    assert_int_equal(columns, 90);
    assert_int_equal(rows, 30);
    (void)close(master);
    (void)close(slave);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_when_the_process_ends_by_itself),
        cmocka_unit_test(it_comes_back_when_a_signal_ends_the_process),
        cmocka_unit_test(control_c_leaves_without_a_failure),
        cmocka_unit_test(a_stop_gives_it_back_and_going_on_takes_it_again),
        cmocka_unit_test(a_pipe_is_no_terminal),
        cmocka_unit_test(the_size_is_the_terminals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
