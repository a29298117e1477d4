#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "tests/unit/check.h"
#include "tests/unit/io/xfer_rig.h"

/* The other end is a process of its own: this program again, with "--peer", so that nothing is
 * forked after UCX has started. Its standard output carries its address; every message it gets is
 * an order. */

#define OUR_EPOCH   0x1111u
#define CHILD_EPOCH 0x2222u
#define N_BLOCKS    24

static const struct rig_shape shape = {
    .n_blocks = 64, .n_layers = 8, .slice_bytes = 1u << 16, .checksum = true};

extern char **environ;

struct order {
    char verb; /* 'p': push job `seed` to us. 'l': make a land for it and say so. */
    uint8_t pad[7];
    uint64_t handle, seed;
};

/* ---- the child ---- */

/* *pushing: the push that may be under way, 0 for none; its blocks are not ours to fill. */
static void obey(struct rig_node *n, struct order o, uint64_t *pushing)
{
    struct rig_job j;
    if (*pushing != 0) {
        assert_non_null(rig_wait(n, TD_XFER_PUSHED, *pushing, 0));
        *pushing = 0;
    }
    rig_job_make(&j, o.handle, N_BLOCKS, n, n, o.seed);
    if (o.verb == 'p') {
        *pushing = j.push;
        rig_push(n, &j, OUR_EPOCH, 0, N_BLOCKS, 0, 0);
        rig_send(n, OUR_EPOCH, "record", 6);
    } else {
        rig_land(n, &j, OUR_EPOCH);
        rig_send(n, OUR_EPOCH, "table", 5);
    }
}

static int child_main(const char *transports, const char *fault)
{
    struct rig_node n;
    struct rig_shape s = shape;
    const uint8_t *addr;
    size_t len;
    uint32_t seen = 0;
    uint64_t pushing = 0;
    s.transports = transports;
    if (td_fault_configure(fault) != TD_OK) {
        return 1;
    }
    rig_up(&n, CHILD_EPOCH, &s);
    td_xfer_address(n.x, &addr, &len);
    if (write(STDOUT_FILENO, addr, len) != (ssize_t)len || close(STDOUT_FILENO) != 0) {
        return 1;
    }
    for (;;) {
        rig_take(&n);
        for (; seen < n.n; seen++) {
            if (n.log[seen].ev.type == TD_XFER_MSG) {
                struct order o;
                memcpy(&o, n.log[seen].head, sizeof o);
                obey(&n, o, &pushing);
            }
        }
        struct pollfd p[2] = {{.fd = td_xfer_event_fd(n.x), .events = POLLIN},
                              {.fd = STDIN_FILENO, .events = POLLIN}};
        (void)poll(p, 2, -1);
        if (p[1].revents != 0) { /* the parent has gone, or says enough */
            rig_down(&n);
            return 0;
        }
    }
}

/* ---- the parent ---- */

struct duo {
    struct rig_node n;
    uint8_t addr[4096]; /* the child's */
    size_t addr_len;
    pid_t child;
    int stop; /* its standard input */
};

static void spawn_child(struct duo *t, const char *transports, const char *fault)
{
    int in[2];
    int out[2];
    posix_spawn_file_actions_t fa;
    char *argv[] = {(char *)(uintptr_t) "xfer_proc_test", (char *)(uintptr_t) "--peer",
                    (char *)(uintptr_t)transports, (char *)(uintptr_t)fault, NULL};
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&fa, out[1], STDOUT_FILENO);
    assert_int_equal(posix_spawn(&t->child, "/proc/self/exe", &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    (void)close(in[0]);
    (void)close(out[1]);
    t->stop = in[1];
    ssize_t n;
    t->addr_len = 0;
    while ((n = read(out[0], t->addr + t->addr_len, sizeof t->addr - t->addr_len)) > 0) {
        t->addr_len += (size_t)n;
    }
    (void)close(out[0]);
    assert_true(t->addr_len > 0);
}

static void dial(struct duo *t)
{
    struct td_xfer_cmd c = {
        .type = TD_XFER_CONNECT, .epoch = CHILD_EPOCH, .bytes = t->addr, .n_bytes = t->addr_len};
    rig_submit(&t->n, &c);
}

static void duo_up(struct duo *t, const char *transports, const char *fault)
{
    struct rig_shape s = shape;
    s.transports = transports;
    spawn_child(t, transports, fault);
    rig_up(&t->n, OUR_EPOCH, &s);
    dial(t);
}

static void duo_down(struct duo *t)
{
    int status;
    (void)close(t->stop);
    if (t->child > 0) {
        assert_int_equal(waitpid(t->child, &status, 0), t->child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    rig_down(&t->n);
}

static void end_child(struct duo *t)
{
    int status;
    assert_int_equal(kill(t->child, SIGKILL), 0);
    assert_int_equal(waitpid(t->child, &status, 0), t->child); /* UCX takes a zombie for alive */
    t->child = 0;
}

static void give(struct duo *t, char verb, uint64_t handle, uint64_t seed)
{
    struct order o = {.verb = verb, .handle = handle, .seed = seed};
    rig_send(&t->n, CHILD_EPOCH, &o, sizeof o);
}

/* Offers a land and has the child push into it. */
static void have_pushed(struct duo *t, struct rig_job *j, uint64_t handle)
{
    rig_job_make(j, handle, N_BLOCKS, &t->n, &t->n, handle);
    fake_engine_poison(&t->n.engine, 0); /* what lands is the child's */
    rig_land(&t->n, j, CHILD_EPOCH);
    give(t, 'p', handle, handle);
}

static void another_process_pushes_and_it_lands_exact(void **state)
{
    struct duo t;
    duo_up(&t, *state, "");
    for (uint64_t i = 1; i <= 20; i++) {
        struct rig_job j;
        uint32_t from = t.n.n;
        have_pushed(&t, &j, i);
        assert_non_null(rig_wait(&t.n, TD_XFER_MSG, CHILD_EPOCH, from));
        assert_true(rig_wait_landed(&t.n, i, 8));
        assert_true(rig_landed_exact(&t.n, &j));
        assert_int_equal(rig_count(&t.n, TD_XFER_LAND_BAD, 0), 0);
    }
    duo_down(&t);
}

static void a_pusher_killed_in_mid_push_is_noticed_and_fenced(void **state)
{
    struct duo t;
    struct rig_job j;
    duo_up(&t, *state, "xfer.slice.delay=delay:us=20000");
    have_pushed(&t, &j, 7);
    assert_non_null(rig_wait(&t.n, TD_XFER_LANDED, 7, 0));
    end_child(&t);
    int64_t start = td_now_us();
    assert_non_null(rig_wait(&t.n, TD_XFER_PEER_LOST, CHILD_EPOCH, 0));
    int64_t lost = td_now_us();
    struct td_xfer_cmd c = {.type = TD_XFER_UNLAND, .land = 7};
    rig_submit(&t.n, &c);
    assert_non_null(rig_wait(&t.n, TD_XFER_UNLANDED, 7, 0));
    print_message("# %s: pusher's death noticed after %ld ms, fenced %ld us later\n",
                  (const char *)*state, (lost - start) / 1000, td_now_us() - lost);
    duo_down(&t);
}

static void a_receiver_killed_in_mid_push_ends_the_push(void **state)
{
    struct duo t;
    struct rig_job j;
    duo_up(&t, *state, "");
    give(&t, 'l', 9, 9);
    assert_non_null(rig_wait(&t.n, TD_XFER_MSG, CHILD_EPOCH, 0));
    rig_job_make(&j, 9, N_BLOCKS, &t.n, &t.n, 9);
    fake_engine_set_layers(&t.n.engine, 4);
    rig_push(&t.n, &j, CHILD_EPOCH, 0, N_BLOCKS, 0, 1); /* half of it leaves */
    struct td_xfer_stats s;
    do {
        td_xfer_stats_get(t.n.x, &s);
    } while (s.posts < 2);
    end_child(&t);
    int64_t start = td_now_us();
    fake_engine_set_layers(&t.n.engine, 8);
    const struct rig_event *e = rig_wait(&t.n, TD_XFER_PEER_LOST, CHILD_EPOCH, 0);
    assert_non_null(e);
    print_message("# %s: receiver's death noticed after %ld ms\n", (const char *)*state,
                  (td_now_us() - start) / 1000);
    assert_int_equal(rig_count(&t.n, TD_XFER_PUSHED, j.push), 1); /* before the loss was told */
    duo_down(&t);
}

/* A push to a process that stands still, and the order to close that connection. */
static void close_on_stopped(struct duo *t, const char *transports, struct rig_job *j)
{
    duo_up(t, transports, "");
    give(t, 'l', 9, 9);
    assert_non_null(rig_wait(&t->n, TD_XFER_MSG, CHILD_EPOCH, 0));
    assert_int_equal(kill(t->child, SIGSTOP), 0);
    rig_job_make(j, 9, N_BLOCKS, &t->n, &t->n, 9);
    rig_push(&t->n, j, CHILD_EPOCH, 0, N_BLOCKS, 0, 0);
    struct td_xfer_cmd c = {.type = TD_XFER_CLOSE, .epoch = CHILD_EPOCH};
    rig_submit(&t->n, &c);
}

/* Over shared memory alone the stopped process may have to go on first: see td_xfer's head. */
static void a_push_to_a_stopped_receiver_ends_by_close(void **state)
{
    struct duo t;
    struct rig_job j;
    close_on_stopped(&t, *state, &j);
    if (strcmp(*state, "sm") == 0) {
        assert_int_equal(kill(t.child, SIGCONT), 0);
    }
    assert_non_null(rig_wait(&t.n, TD_XFER_CLOSED, CHILD_EPOCH, 0));
    assert_int_equal(rig_count(&t.n, TD_XFER_PUSHED, j.push), 1);
    assert_int_equal(kill(t.child, SIGCONT), 0);
    end_child(&t);
    duo_down(&t);
}

static void a_closed_connection_lets_go_when_its_stopped_process_is_killed(void **state)
{
    struct duo t;
    struct rig_job j;
    close_on_stopped(&t, *state, &j);
    (void)usleep(
        500000); /* past the time that a goodbye has: the close is forced, where it may be */
    end_child(&t);
    assert_non_null(rig_wait(&t.n, TD_XFER_CLOSED, CHILD_EPOCH, 0));
    assert_int_equal(rig_count(&t.n, TD_XFER_PUSHED, j.push), 1);
    duo_down(&t);
}

static void a_stopped_pusher_is_fenced_and_writes_nothing_when_it_wakes(void **state)
{
    struct duo t;
    struct rig_job j;
    duo_up(&t, *state, "xfer.slice.delay=delay:us=2000");
    for (uint64_t i = 1; i <= 3; i++) {
        have_pushed(&t, &j, i);
        assert_non_null(rig_wait(&t.n, TD_XFER_LANDED, i, 0));
        assert_int_equal(kill(t.child, SIGSTOP), 0);
        struct td_xfer_cmd c = {.type = TD_XFER_UNLAND, .land = i};
        rig_submit(&t.n, &c);
        assert_non_null(rig_wait(&t.n, TD_XFER_UNLANDED, i, 0));
        fake_engine_poison(&t.n.engine, 0xC3);
        assert_int_equal(kill(t.child, SIGCONT), 0);
        dial(&t); /* in case a slice was under way, so that its connection had to go */
        uint32_t from = t.n.n;
        give(&t, 'l', 100 + i, i);
        assert_non_null(rig_wait(&t.n, TD_XFER_MSG, CHILD_EPOCH, from));
        for (uint32_t b = 0; b < shape.n_blocks; b++) {
            assert_true(fake_engine_is_poison(&t.n.engine, b, 0xC3));
        }
    }
    end_child(&t);
    duo_down(&t);
}

#define OVER(test)                                                                                 \
    {#test "_over_shm", test, NULL, NULL, (void *)(uintptr_t) "sm"},                               \
        {#test "_over_cma", test, NULL, NULL, (void *)(uintptr_t) "sm,cma"},                       \
    {                                                                                              \
#test "_over_tcp", test, NULL, NULL, (void *)(uintptr_t) "tcp"                             \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        OVER(another_process_pushes_and_it_lands_exact),
        OVER(a_pusher_killed_in_mid_push_is_noticed_and_fenced),
        OVER(a_receiver_killed_in_mid_push_ends_the_push),
        OVER(a_push_to_a_stopped_receiver_ends_by_close),
        {"a_closed_connection_lets_go_when_its_stopped_process_is_killed_over_cma",
         a_closed_connection_lets_go_when_its_stopped_process_is_killed, NULL, NULL,
         (void *)(uintptr_t) "sm,cma"},
        {"a_closed_connection_lets_go_when_its_stopped_process_is_killed_over_tcp",
         a_closed_connection_lets_go_when_its_stopped_process_is_killed, NULL, NULL,
         (void *)(uintptr_t) "tcp"},
        OVER(a_stopped_pusher_is_fenced_and_writes_nothing_when_it_wakes),
    };
    if (argc == 4 && strcmp(argv[1], "--peer") == 0) {
        return child_main(argv[2], argv[3]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
