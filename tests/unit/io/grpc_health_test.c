/* Health checking against a client of raw frames. Bytes of messages are written out: field 1 of each. */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/io/grpc_health.h"
#include "tests/unit/io/h2_rig.h"

static struct td_loop *loop;
static struct td_grpc_server *server;
static struct td_grpc_health *health;
static struct h2_conn *conn;
static struct h2_frame frame;
static enum td_health of_a;

static enum td_health status(void *arg, const char *service)
{
    (void)arg;
    return strcmp(service, "a") == 0 ? of_a : TD_HEALTH_SERVICE_UNKNOWN;
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    p.h2.loop = loop;
    p.h2.host = "127.0.0.1";
    of_a = TD_HEALTH_SERVING;
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    assert_int_equal(td_grpc_health_create(loop, status, NULL, &health), TD_OK);
    td_grpc_health_add(health, server);
    conn = h2_dial(loop, td_h2_server_port(td_grpc_server_h2(server)));
    h2_hello(conn);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    h2_hang_up(conn);
    server = td_grpc_server_destroy(server);
    health = td_grpc_health_destroy(health);
    loop = td_loop_destroy(loop);
    return 0;
}

static void ask(uint32_t stream, const char *method, const char *service)
{
    char path[128], message[64];
    (void)snprintf(path, sizeof path, "/grpc.health.v1.Health/%s", method);
    int n = snprintf(message, sizeof message, "\x0a%c%s", (char)strlen(service), service);
    h2_request(conn, stream, path, NULL, 0);
    h2_message(conn, stream, message, (size_t)n, H2_END_STREAM);
}

static bool is_idle(void *arg)
{
    (void)arg;
    return td_h2_server_busy(td_grpc_server_h2(server)) == 0;
}

static void a_check_tells_the_status_now(void **state)
{
    (void)state;
    uint8_t body[64];
    ask(1, "Check", "a");
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 7);
    assert_memory_equal(body, "\0\0\0\0\2\x08\1", 7);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
    of_a = TD_HEALTH_NOT_SERVING;
    ask(3, "Check", "a");
    assert_int_equal(h2_answer(conn, 3, body, sizeof body), 7);
    assert_int_equal(body[6], TD_HEALTH_NOT_SERVING);
}

static void a_check_of_an_unknown_service_is_not_found(void **state)
{
    (void)state;
    uint8_t body[64];
    ask(1, "Check", "b");
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 0);
    assert_string_equal(h2_header(conn, "grpc-status"), "5");
}

static void a_watch_tells_the_status_and_each_change(void **state)
{
    (void)state;
    ask(1, "Watch", "a");
    assert_true(h2_wait(conn, H2_DATA, &frame));
    assert_int_equal(frame.payload[6], TD_HEALTH_SERVING);
    of_a = TD_HEALTH_NOT_SERVING;
    assert_true(h2_wait(conn, H2_DATA, &frame));
    assert_int_equal(frame.payload[6], TD_HEALTH_NOT_SERVING);
}

static void a_watch_of_an_unknown_service_stays_open(void **state)
{
    (void)state;
    ask(1, "Watch", "b");
    assert_true(h2_wait(conn, H2_DATA, &frame));
    assert_int_equal(frame.payload[6], TD_HEALTH_SERVICE_UNKNOWN);
    assert_int_equal(frame.flags & H2_END_STREAM, 0);
    h2_until(loop, is_idle, NULL); /* a drain does not wait for it */
}

static void new_watches_do_not_keep_the_old_ones_waiting(void **state)
{
    (void)state;
    ask(1, "Watch", "a");
    assert_true(h2_wait(conn, H2_DATA, &frame));
    of_a = TD_HEALTH_NOT_SERVING;
    for (uint32_t stream = 3; stream < 2000;
         stream += 2) { /* each well before the next poll is due */
        ask(stream, "Watch", "a");
        while (h2_next(conn, &frame) && frame.stream != stream) {
            if (frame.type == H2_DATA && frame.stream == 1) {
                assert_int_equal(frame.payload[6], TD_HEALTH_NOT_SERVING);
                return;
            }
        }
        td_loop_run_once(loop, 2000);
    }
    fail_msg("the first watch was never told");
}

static void bytes_that_are_no_request_are_refused(void **state)
{
    (void)state;
    uint8_t body[64];
    h2_request(conn, 1, "/grpc.health.v1.Health/Check", NULL, 0);
    h2_message(conn, 1, "\x0a\x7f", 2, H2_END_STREAM);
    (void)h2_answer(conn, 1, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "3");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_check_tells_the_status_now),
        T(a_check_of_an_unknown_service_is_not_found),
        T(a_watch_tells_the_status_and_each_change),
        T(a_watch_of_an_unknown_service_stays_open),
        T(new_watches_do_not_keep_the_old_ones_waiting),
        T(bytes_that_are_no_request_are_refused),
    };
    return cmocka_run_group_tests_name("grpc_health", tests, NULL, NULL);
}
