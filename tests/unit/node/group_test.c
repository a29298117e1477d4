/* A process's place in a group: which options make one, and what it hears of the others. */
#include "common/node/group.h"

#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

#define GIVE_UP_US 30000000

static void every_refusal_names_its_remedy(void **state)
{
    static const struct {
        struct nd_group_options o;
        const char *want; /* NULL: fits */
    } rows[] = {
        {{.size = 1, .leader = ""}, NULL},
        {{.size = 1, .leader = "", .cuda = true}, NULL},
        {{.size = 2, .leader = "", .has_keys = true, .numerics_id = 1}, NULL},
        {{.size = 3, .rank = 2, .leader = "h:1", .has_keys = true, .numerics_id = 1}, NULL},
        {{.size = 2, .leader = "", .has_keys = true, .numerics_id = 1, .n_ports = 1}, NULL},
        {{.size = 2,
          .leader = "",
          .has_keys = true,
          .numerics_id = 1,
          .data_plane = true,
          .n_ports = 2},
         NULL},
        {{.size = 2,
          .leader = "",
          .has_keys = true,
          .numerics_id = 1,
          .data_plane = true,
          .n_ports = 1},
         "two ports"},
        {{.size = 1, .rank = 1, .leader = "h:1"}, "--tensor-parallel-size"},
        {{.size = 1, .leader = "h:1"}, "--tensor-parallel-size"},
        {{.size = 2, .rank = 2, .leader = "h:1", .has_keys = true, .numerics_id = 1}, "below"},
        {{.size = 2, .leader = "", .cuda = true, .has_keys = true, .numerics_id = 1},
         "--backend cpu"},
        {{.size = 2, .leader = "", .numerics_id = 1}, "--cluster-key-file"},
        {{.size = 2, .rank = 1, .leader = "", .has_keys = true, .numerics_id = 1},
         "--rank-leader HOST:PORT"},
        {{.size = 2, .leader = "h:1", .has_keys = true, .numerics_id = 1}, "dials nobody"},
        {{.size = 2, .leader = "", .has_keys = true}, "int8 or f32"},
    };
    (void)state;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        char text[2048];
        FILE *log = tmpfile();
        assert_non_null(log);
        int saved = dup(STDERR_FILENO);
        (void)dup2(fileno(log), STDERR_FILENO);
        td_err err = nd_group_check(&rows[i].o);
        (void)dup2(saved, STDERR_FILENO);
        (void)close(saved);
        rewind(log);
        text[fread(text, 1, sizeof text - 1, log)] = 0;
        (void)fclose(log);
        assert_int_equal(err, rows[i].want == NULL ? TD_OK : TD_ERR_CONFIG);
        if (rows[i].want != NULL &&
            (strstr(text, rows[i].want) == NULL || strstr(text, "remedy=") == NULL)) {
            fail_msg("row %zu: no '%s' in: %s", i, rows[i].want, text);
        }
    }
}

/* ---- two processes ---- */

static const struct td_link_key key = {.id = "k", .secret_len = 32};

static struct td_rank_params params(uint32_t rank, const char *leader)
{
    return (struct td_rank_params){.rank = rank,
                                   .n = 2,
                                   .listen = "127.0.0.1:0",
                                   .leader = leader,
                                   .name = rank == 0 ? "leader" : "other",
                                   .keys = &key,
                                   .n_keys = 1,
                                   .terms = {.n_blocks = 1, .max_rows = 1},
                                   .kv_device = "lo",
                                   .kv_transports = "",
                                   .join_us = GIVE_UP_US,
                                   .wait_us = GIVE_UP_US};
}

/* The port that rank 0 has published. */
static unsigned port_in(const char *path)
{
    unsigned port = 0;
    for (int64_t until = td_now_us() + GIVE_UP_US; port == 0 && td_now_us() < until;) {
        FILE *f = fopen(path, "r");
        if (f != NULL) {
            port = fscanf(f, "ranks %u", &port) == 1 ? port : 0;
            (void)fclose(f);
        }
        (void)usleep(2000);
    }
    return port;
}

/* Joins as rank 1, lives until the pipe is closed, then goes without a word. */
static _Noreturn void be_rank_1(const char *port_file, int pipe_end)
{
    char leader[32], byte;
    struct nd_group *g = NULL;
    (void)snprintf(leader, sizeof leader, "127.0.0.1:%u", port_in(port_file));
    struct td_rank_params p = params(1, leader);
    if (nd_group_join(&p, &g) != TD_OK) {
        _exit(1);
    }
    _exit(read(pipe_end, &byte, 1) == 0 ? 0 : 1);
}

struct heard {
    uint32_t n;
    td_err why;
};

static void on_over(void *arg, td_err why)
{
    struct heard *h = arg;
    h->n++;
    h->why = why;
}

static void a_process_that_goes_is_heard_of_once_and_stops_the_exchanges(void **state)
{
    char file[] = "/tmp/group-test-XXXXXX";
    int fd = mkstemp(file), ends[2] = {-1, -1}, status = 0;
    struct nd_group *g = NULL;
    struct td_loop *loop = NULL;
    struct heard heard = {0};
    (void)state;
    assert_true(fd >= 0 && pipe(ends) == 0);
    pid_t pid = fork(); /* before UCX, which does not like it later */
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(ends[1]);
        be_rank_1(file, ends[0]);
    }
    struct td_rank_params p = params(0, "");
    p.port_file = file;
    assert_int_equal(nd_group_join(&p, &g), TD_OK);
    assert_int_equal(nd_group_ranks(g)->n, 2);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(nd_group_watch(g, loop, on_over, &heard), TD_OK);
    td_loop_run_once(loop, 1000);
    assert_int_equal(heard.n, 0);
    (void)close(ends[1]);
    for (int64_t until = td_now_us() + GIVE_UP_US; heard.n == 0 && td_now_us() < until;) {
        td_loop_run_once(loop, 2000);
    }
    assert_int_equal(heard.n, 1);
    assert_int_equal(heard.why, TD_ERR_PEER_LOST);
    td_loop_run_once(loop, 1000);
    assert_int_equal(heard.n, 1);
    assert_int_not_equal(nd_group_ranks(g)->ops->tell(nd_group_ranks(g), "x", 1), TD_OK);
    nd_group_leave(g, true);
    td_loop_destroy(loop);
    assert_null(nd_group_destroy(g));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    (void)close(ends[0]);
    (void)close(fd);
    (void)unlink(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_refusal_names_its_remedy),
        cmocka_unit_test(a_process_that_goes_is_heard_of_once_and_stops_the_exchanges),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/group", tests, NULL, NULL);
}
