/* One port, two protocols: what begins like HTTP/2 is gRPC, everything else is HTTP/1.1 as before. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/io/grpc_admin.h"
#include "tests/unit/io/h2_rig.h"

static struct td_loop *loop;
static struct td_http_server *http;
static struct td_grpc_admin *admin;
static struct h2_conn *conn;

static void handler(void *arg, struct td_http_exchange *x)
{
    (void)arg;
    td_http_respond(x, 200, NULL, 0, "text/plain", "plain", 5);
}

static enum td_health status(void *arg, const char *service)
{
    (void)arg;
    return service[0] == 0 ? TD_HEALTH_SERVING : TD_HEALTH_SERVICE_UNKNOWN;
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    struct td_http_server_params p;
    td_http_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    p.loop = loop;
    p.host = "127.0.0.1";
    p.max_connections = 2;
    p.head_deadline_us = 200000;
    p.handler = handler;
    assert_int_equal(td_http_server_create(&p, &http), TD_OK);
    assert_int_equal(td_grpc_admin_create(loop, http, NULL, status, NULL, &admin), TD_OK);
    conn = h2_dial(loop, td_http_server_port(http));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    h2_hang_up(conn);
    admin = td_grpc_admin_destroy(admin);
    http = td_http_server_destroy(http);
    loop = td_loop_destroy(loop);
    return 0;
}

static void check_health(void)
{
    uint8_t body[64];
    h2_frame_out(conn, H2_SETTINGS, 0, 0, NULL, 0);
    h2_request(conn, 1, "/grpc.health.v1.Health/Check", NULL, 0);
    h2_message(conn, 1, "", 0, H2_END_STREAM);
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 7);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
}

static const char *plain_answer(struct h2_conn *c)
{
    static char got[1024];
    size_t n = 0;
    h2_raw(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27);
    for (int i = 0; i < 2000 && strstr(got, "plain") == NULL; i++) {
        td_loop_run_once(loop, 1000);
        ssize_t r = recv(c->fd, got + n, sizeof got - 1 - n, 0);
        n += r > 0 ? (size_t)r : 0;
        got[n] = 0;
    }
    return got;
}

static void a_grpc_client_is_served_on_the_http_port(void **state)
{
    (void)state;
    h2_raw(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    check_health();
}

static void a_preface_may_come_in_pieces(void **state)
{
    (void)state;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (size_t i = 0; i < sizeof preface - 1; i++) {
        h2_raw(conn, preface + i, 1);
        td_loop_run_once(loop, 1000);
    }
    check_health();
}

static void an_http_client_is_served_as_before(void **state)
{
    (void)state;
    assert_non_null(strstr(plain_answer(conn), "HTTP/1.1 200 OK\r\n"));
}

static void a_moved_connection_still_counts_against_the_caps(void **state)
{
    (void)state;
    struct td_http_server_stats s;
    h2_raw(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    check_health();
    struct h2_conn *second = h2_dial(loop, td_http_server_port(http));
    assert_non_null(strstr(plain_answer(second), "plain"));
    struct h2_conn *third = h2_dial(loop, td_http_server_port(http));
    (void)h2_until_closed(third);
    assert_true(third->closed);
    td_http_server_stats(http, &s);
    assert_int_equal(s.open, 2);
    assert_int_equal(s.refused_connections, 1);
    h2_hang_up(second);
    h2_hang_up(third);
    h2_hang_up(conn);
    conn = NULL;
    for (int i = 0; i < 2000 && s.open > 0; i++) {
        td_loop_run_once(loop, 1000);
        td_http_server_stats(http, &s);
    }
    assert_int_equal(s.open, 0);
}

static void a_preface_that_stops_half_way_meets_the_deadline(void **state)
{
    (void)state;
    h2_raw(conn, "PRI * HT", 8);
    (void)h2_until_closed(conn);
    assert_true(conn->closed);
}

static void without_grpc_a_preface_is_a_malformed_request(void **state)
{
    (void)state;
    char first[13] = "";
    admin = td_grpc_admin_destroy(admin);
    h2_raw(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 24);
    ssize_t n = -1;
    for (int i = 0; i < 2000 && n <= 0; i++) {
        td_loop_run_once(loop, 1000);
        n = recv(conn->fd, first, sizeof first - 1, 0);
    }
    assert_string_equal(first, "HTTP/1.1 400");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_grpc_client_is_served_on_the_http_port),
        T(a_preface_may_come_in_pieces),
        T(an_http_client_is_served_as_before),
        T(a_moved_connection_still_counts_against_the_caps),
        T(a_preface_that_stops_half_way_meets_the_deadline),
        T(without_grpc_a_preface_is_a_malformed_request),
    };
    return cmocka_run_group_tests_name("grpc_admin", tests, NULL, NULL);
}
