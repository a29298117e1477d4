/* A process that follows rank 0: what it serves, and how it hears that its engine has ended. */
#include "common/node/rank_node.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/node/shell_rig.h"

struct follower {
    struct td_engine base;
    int fd;
    bool ended;
};

static struct follower *of(struct td_engine *e)
{
    return (struct follower *)(void *)e;
}

static td_err eng_poll(struct td_engine *e, struct td_step_result *out)
{
    (void)out;
    return of(e)->ended ? TD_ERR_CLOSED : TD_ERR_AGAIN;
}

static int eng_fd(const struct td_engine *e)
{
    return ((const struct follower *)(const void *)e)->fd;
}

static const struct td_engine_ops eng_ops = {.poll = eng_poll, .event_fd = eng_fd};

static void no_figures(const struct td_ranks *r, struct td_ranks_stats *out)
{
    *out = (struct td_ranks_stats){.exchanges = r->n, .transport = "tcp"};
}

struct rig {
    struct td_loop *loop;
    struct follower engine;
    struct td_ranks group;
    struct td_rank_node *node;
    uint32_t n_ended;
};

static void on_ended(void *arg)
{
    struct rig *r = arg;
    r->n_ended++;
}

static struct td_rank_node_params params(struct rig *r)
{
    return (struct td_rank_node_params){.loop = r->loop,
                                        .name = "p-rank2",
                                        .model_name = "tiny",
                                        .role = TD_ROLE_PREFILL,
                                        .engine = &r->engine.base,
                                        .group = {&r->group, no_figures},
                                        .admin_host = "127.0.0.1",
                                        .model_load_s = 1.5,
                                        .ended = on_ended,
                                        .arg = r};
}

static int setup(void **state)
{
    struct rig *r = td_zalloc(1, sizeof *r);
    assert_non_null(r);
    r->group = (struct td_ranks){.rank = 2, .n = 3};
    r->engine = (struct follower){.base = {&eng_ops}, .fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    assert_true(r->engine.fd >= 0);
    assert_int_equal(td_loop_create(&r->loop), TD_OK);
    struct td_rank_node_params p = params(r);
    assert_int_equal(td_rank_node_create(&p, &r->node), TD_OK);
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    assert_null(td_rank_node_destroy(r->node));
    td_loop_destroy(r->loop);
    (void)close(r->engine.fd);
    free(r);
    return 0;
}

static int get(struct rig *r, const char *path, char *out, size_t cap)
{
    return shell_ask(r->loop, td_rank_node_admin_port(r->node), "GET", path, out, cap);
}

static void probes_version_and_figures_are_served_and_waits_are_not(void **state)
{
    static const char place[] =
        "tandem_node_rank{model_name=\"tiny\",role=\"prefill\",node=\"p-rank2\","
        "rank=\"2\",size=\"3\",transport=\"tcp\"} 1";
    static const char *const wanted[] = {
        place,
        "tandem_node_rank_exchanges_total{model_name=\"tiny\",role=\"prefill\",node=\"p-rank2\"} 3",
        "tandem_node_model_load_seconds{model_name=\"tiny\",role=\"prefill\",node=\"p-rank2\"} 1.5",
        "tandem_build_info{",
        "process_resident_memory_bytes{",
        "tandem_node_uptime_seconds{"};
    static char out[1 << 16];
    struct rig *r = *state;
    static const char *const paths[] = {"/health", "/readyz", "/livez", "/startupz", "/version"};
    for (size_t i = 0; i < TD_COUNT(paths); i++) {
        assert_int_equal(get(r, paths[i], out, sizeof out), 200);
    }
    assert_int_equal(get(r, "/metrics", out, sizeof out), 200);
    for (size_t i = 0; i < TD_COUNT(wanted); i++) {
        if (strstr(out, wanted[i]) == NULL) {
            fail_msg("no %s in:\n%s", wanted[i], out);
        }
    }
    assert_int_equal(get(r, "/debug/waits", out, sizeof out), 404);
}

static void a_drain_shows_in_readiness_only(void **state)
{
    char out[4096];
    struct rig *r = *state;
    td_rank_node_drain(r->node);
    assert_int_equal(get(r, "/readyz", out, sizeof out), 503);
    assert_int_equal(get(r, "/livez", out, sizeof out), 200);
    assert_int_equal(r->n_ended, 0);
}

static void the_engines_end_is_told_once(void **state)
{
    struct rig *r = *state;
    uint64_t one = 1;
    assert_int_equal(write(r->engine.fd, &one, sizeof one), sizeof one);
    td_loop_run_once(r->loop, 1000); /* readable, but nothing has ended */
    assert_int_equal(r->n_ended, 0);
    r->engine.ended = true;
    for (int64_t until = td_now_us() + SHELL_GIVE_UP_US; r->n_ended == 0 && td_now_us() < until;) {
        td_loop_run_once(r->loop, 1000);
    }
    td_loop_run_once(r->loop, 1000);
    assert_int_equal(r->n_ended, 1);
}

static void an_admin_port_that_cannot_be_had_ends_the_start(void **state)
{
    struct rig *r = *state;
    struct td_rank_node *n = NULL;
    struct td_rank_node_params p = params(r);
    p.admin_host = "not an address";
    assert_int_not_equal(td_rank_node_create(&p, &n), TD_OK);
    assert_null(n);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(probes_version_and_figures_are_served_and_waits_are_not),
        TEST(a_drain_shows_in_readiness_only),
        TEST(the_engines_end_is_told_once),
        TEST(an_admin_port_that_cannot_be_had_ends_the_start),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/rank_node", tests, NULL, NULL);
}
