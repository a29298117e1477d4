/* The admin port: what is served of an owner's table, and to whom. TLS and certificates: tests/unit/io/tls_test.c and
 * tests/integration. */
#include "common/node/admin.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/node/shell_rig.h"

struct owner {
    bool draining, failing;
    uint32_t n_metrics;
};

static bool is_draining(void *arg)
{
    return ((struct owner *)arg)->draining;
}

static td_err metrics(void *arg, struct td_buf *out)
{
    struct owner *o = arg;
    o->n_metrics++;
    TD_TRY(td_buf_puts(out, "some_figure 7\n"));
    return o->failing ? TD_ERR_NO_MEMORY : TD_OK;
}

static td_err waits(void *arg, struct td_buf *out)
{
    (void)arg;
    return td_buf_puts(out, "{\"waits\":[]}");
}

static enum td_health health(void *arg, const char *service)
{
    (void)arg;
    (void)service;
    return TD_HEALTH_SERVING;
}

static const struct nd_admin_ops all = {is_draining, metrics, waits, health};
static const struct nd_admin_ops no_waits = {is_draining, metrics, NULL, health};

static struct nd_admin *start(struct td_loop **out_loop, const struct nd_admin_ops *ops,
                              struct owner *o)
{
    struct nd_admin *a = NULL;
    assert_int_equal(td_loop_create(out_loop), TD_OK);
    struct nd_admin_params p = {.loop = *out_loop, .host = "127.0.0.1", .ops = ops, .arg = o};
    assert_int_equal(nd_admin_create(&p, &a), TD_OK);
    assert_true(nd_admin_port(a) != 0);
    assert_null(nd_admin_tls(a));
    nd_admin_reload_tls(a); /* nothing to read */
    return a;
}

static void stop(struct nd_admin *a, struct td_loop *loop)
{
    assert_null(nd_admin_destroy(a));
    td_loop_destroy(loop);
}

static void every_path_answers_and_others_do_not(void **state)
{
    static const char *const paths[] = {"/health",  "/readyz",   "/readiness",
                                        "/livez",   "/liveness", "/startupz",
                                        "/version", "/metrics",  "/debug/waits"};
    struct td_loop *loop;
    struct owner o = {0};
    char out[4096];
    (void)state;
    struct nd_admin *a = start(&loop, &all, &o);
    for (size_t i = 0; i < TD_COUNT(paths); i++) {
        assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", paths[i], out, sizeof out), 200);
    }
    assert_non_null(strstr(out, "\r\n\r\n{\"waits\":[]}"));
    assert_int_equal(o.n_metrics, 1);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/", out, sizeof out), 404);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "PUT", "/metrics", out, sizeof out), 405);
    stop(a, loop);
}

static void readiness_is_the_owners_and_life_is_not(void **state)
{
    struct td_loop *loop;
    struct owner o = {.draining = true};
    char out[4096];
    (void)state;
    struct nd_admin *a = start(&loop, &all, &o);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/readyz", out, sizeof out), 503);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/livez", out, sizeof out), 200);
    o.draining = false;
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/readyz", out, sizeof out), 200);
    stop(a, loop);
}

static void an_answer_that_cannot_be_written_is_an_error_and_not_half_an_answer(void **state)
{
    struct td_loop *loop;
    struct owner o = {.failing = true};
    char out[4096];
    (void)state;
    struct nd_admin *a = start(&loop, &all, &o);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/metrics", out, sizeof out), 503);
    assert_null(strstr(out, "some_figure"));
    stop(a, loop);
}

static void a_process_without_waits_does_not_know_the_path(void **state)
{
    struct td_loop *loop;
    struct owner o = {0};
    char out[4096];
    (void)state;
    struct nd_admin *a = start(&loop, &no_waits, &o);
    assert_int_equal(shell_ask(loop, nd_admin_port(a), "GET", "/debug/waits", out, sizeof out),
                     404);
    stop(a, loop);
}

static void an_address_that_is_none_is_refused(void **state)
{
    struct td_loop *loop;
    struct owner o = {0};
    struct nd_admin *a = NULL;
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    struct nd_admin_params p = {.loop = loop, .host = "not an address", .ops = &all, .arg = &o};
    assert_int_not_equal(nd_admin_create(&p, &a), TD_OK);
    assert_null(a);
    td_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_path_answers_and_others_do_not),
        cmocka_unit_test(readiness_is_the_owners_and_life_is_not),
        cmocka_unit_test(an_answer_that_cannot_be_written_is_an_error_and_not_half_an_answer),
        cmocka_unit_test(a_process_without_waits_does_not_know_the_path),
        cmocka_unit_test(an_address_that_is_none_is_refused),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/admin", tests, NULL, NULL);
}
