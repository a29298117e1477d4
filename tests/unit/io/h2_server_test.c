/* The HTTP/2 server against a client of raw frames, well-behaved and hostile, driven pass by pass on one thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/io/h2_server.h"
#include "tests/unit/io/h2_rig.h"

#define CALM 11 /* ENHANCE_YOUR_CALM */

static struct td_loop *loop;
static struct td_h2_server *server;
static struct h2_conn *conn;
static struct h2_frame frame;     /* big: not on the stack */
static struct td_h2_stream *held; /* the last request to /hold */
static uint32_t n_requests, n_ends, n_gone;
static size_t n_data;

static void on_request(void *arg, struct td_h2_stream *s)
{
    (void)arg;
    static const struct td_http_header head = {.name = "x-a", .value = "1"};
    static const struct td_http_header trailer = {.name = "x-b", .value = "2"};
    const struct td_http_request *r = td_h2_stream_request(s);
    n_requests++;
    if (strcmp(r->path, "/hold") == 0) {
        held = s;
        return;
    }
    td_h2_respond(s, 200, &head, 1, false);
    if (td_h2_write(s, r->path, strlen(r->path)) == TD_OK) {
        td_h2_end(s, &trailer, 1);
    }
}

static void on_data(void *arg, struct td_h2_stream *s, const uint8_t *data, size_t len)
{
    (void)arg;
    (void)s;
    (void)data;
    n_data += len;
}

static void on_end(void *arg, struct td_h2_stream *s)
{
    (void)arg;
    (void)s;
    n_ends++;
}

static void on_gone(void *arg, struct td_h2_stream *s)
{
    (void)arg;
    n_gone++;
    held = held == s ? NULL : held;
}

static const struct td_h2_ops ops = {
    .request = on_request, .data = on_data, .end = on_end, .gone = on_gone};

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    struct td_h2_server_params p;
    td_h2_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    p.loop = loop;
    p.host = "127.0.0.1";
    p.max_header_list = 2048;
    p.high_water = 200000;
    p.max_unsent = 300000;
    p.preface_us = 200000;
    p.body_us = 200000;
    p.write_stall_us = 200000;
    p.ops = &ops;
    n_requests = n_ends = n_gone = 0;
    n_data = 0;
    held = NULL;
    assert_int_equal(td_h2_server_create(&p, &server), TD_OK);
    conn = h2_dial(loop, td_h2_server_port(server));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    h2_hang_up(conn);
    conn = NULL;
    server = td_h2_server_destroy(server);
    assert_int_equal(n_gone, n_requests); /* each is told once */
    loop = td_loop_destroy(loop);
    return 0;
}

static bool is_held(void *arg)
{
    (void)arg;
    return held != NULL;
}

static bool no_streams(void *arg)
{
    (void)arg;
    struct td_h2_server_stats s;
    td_h2_server_stats(server, &s);
    return s.streams == 0 && s.unsent_bytes == 0;
}

static bool is_idle(void *arg)
{
    (void)arg;
    return td_h2_server_busy(server) == 0;
}

static void hold(void)
{
    h2_request(conn, 1, "/hold", NULL, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
}

static void an_answer_has_head_bytes_and_trailers(void **state)
{
    (void)state;
    uint8_t body[64];
    h2_hello(conn);
    h2_request(conn, 1, "/path", NULL, H2_END_STREAM);
    assert_true(h2_wait(conn, H2_HEADERS, &frame));
    assert_string_equal(h2_header(conn, ":status"), "200");
    assert_string_equal(h2_header(conn, "x-a"), "1");
    size_t n = h2_answer(conn, 1, body, sizeof body);
    assert_int_equal(n, 5);
    assert_memory_equal(body, "/path", 5);
    assert_string_equal(h2_header(conn, "x-b"), "2");
    assert_int_equal(n_ends, 1);
    h2_until(loop, no_streams, NULL);
}

static void an_answer_before_the_end_of_the_request_tells_the_client_to_stop(void **state)
{
    (void)state;
    h2_hello(conn);
    h2_request(conn, 1, "/path", NULL, 0);
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(h2_u32(frame.payload), 0);
    h2_until(loop, no_streams, NULL);
}

static void headers_over_the_limit_cost_the_stream_only(void **state)
{
    (void)state;
    static char big[3000];
    const char *const more[] = {"x-big", big, NULL};
    memset(big, 'a', sizeof big - 1);
    h2_hello(conn);
    h2_request(conn, 1, "/path", more, H2_END_STREAM);
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(frame.stream, 1);
    assert_int_equal(h2_u32(frame.payload), CALM);
    assert_int_equal(n_requests, 0);
    h2_request(conn, 3, "/path", NULL, H2_END_STREAM);
    assert_true(h2_wait(conn, H2_HEADERS, &frame));
    assert_int_equal(frame.stream, 3);
    h2_until(loop, no_streams, NULL);
}

static void floods_end_the_connection_calmly(void **state)
{
    (void)state;
    static const struct {
        uint8_t type, flags;
        uint32_t stream, len;
    } rows[] = {{H2_SETTINGS, 0, 0, 0}, {H2_PING, 0, 0, 8}, {H2_PRIORITY, 0, 101, 5}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct h2_conn *c = h2_dial(loop, td_h2_server_port(server));
        static const uint8_t payload[8];
        h2_hello(c);
        for (int k = 0; k < 3000; k++) {
            h2_frame_out(c, rows[i].type, rows[i].flags, rows[i].stream, payload, rows[i].len);
        }
        assert_int_equal(h2_until_closed(c), CALM);
        h2_hang_up(c);
    }
    struct td_h2_server_stats s;
    td_h2_server_stats(server, &s);
    assert_int_equal(s.floods, sizeof rows / sizeof rows[0]);
}

static void a_ping_for_each_data_that_the_client_gets_is_no_flood(void **state)
{
    (void)state;
    h2_hello(conn);
    hold();
    td_h2_respond(held, 200, NULL, 0, false);
    for (int i = 0; i < 600; i++) { /* over four times what may come at once */
        assert_int_equal(td_h2_write(held, "token", 5), TD_OK);
        assert_true(h2_wait(conn, H2_DATA, &frame));
        h2_frame_out(conn, H2_PING, 0, 0, "12345678", 8);
        assert_true(h2_wait(conn, H2_PING, &frame));
    }
    for (int i = 0; i < 2000; i++) { /* and nothing for these */
        h2_frame_out(conn, H2_PING, 0, 0, "12345678", 8);
    }
    assert_int_equal(h2_until_closed(conn), CALM);
}

static void a_flood_of_cancelled_streams_ends_the_connection(void **state)
{
    (void)state;
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    h2_hello(conn);
    for (uint32_t i = 0; i < 4000; i++) {
        h2_request(conn, 2 * i + 1, "/hold", NULL, 0);
        h2_frame_out(conn, H2_RST, 0, 2 * i + 1, cancel, sizeof cancel);
    }
    assert_int_equal(h2_until_closed(conn), CALM);
    assert_true(n_requests < 2200);
    h2_until(loop, no_streams, NULL);
}

static void a_flood_of_empty_data_ends_the_connection(void **state)
{
    (void)state;
    h2_hello(conn);
    h2_request(conn, 1, "/hold", NULL, 0);
    for (int i = 0; i < 3000; i++) {
        h2_frame_out(conn, H2_DATA, 0, 1, NULL, 0);
    }
    assert_int_equal(h2_until_closed(conn), CALM);
}

static void a_header_block_that_never_ends_is_cut(void **state)
{
    (void)state;
    static const uint8_t zeros[100];
    h2_hello(conn);
    h2_frame_out(conn, H2_HEADERS, 0, 1, zeros, 0);
    for (int i = 0; i < 400; i++) {
        h2_frame_out(conn, H2_CONTINUATION, 0, 1, zeros, 0);
    }
    (void)h2_until_closed(conn);
    assert_true(conn->closed);
    assert_int_equal(n_requests, 0);
}

static void bytes_of_another_protocol_are_cut(void **state)
{
    (void)state;
    h2_raw(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", 27);
    (void)h2_until_closed(conn);
    assert_true(conn->closed);
}

static void a_client_that_says_nothing_is_cut(void **state)
{
    (void)state;
    h2_raw(conn, "PRI * ", 6);
    (void)h2_until_closed(conn);
    assert_true(conn->closed);
}

static void a_request_that_never_ends_is_reset(void **state)
{
    (void)state;
    h2_hello(conn);
    h2_request(conn, 1, "/hold", NULL, 0);
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(frame.stream, 1);
    h2_until(loop, no_streams, NULL);
    assert_int_equal(n_gone, 1);
}

static void a_window_of_zero_stalls_and_then_loses_the_stream(void **state)
{
    (void)state;
    static const char some[1000];
    h2_hello(conn);
    h2_setting(conn, 4, 0); /* INITIAL_WINDOW_SIZE */
    hold();
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, some, sizeof some), TD_OK);
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(n_gone, 1);
    h2_until(loop, no_streams, NULL);
}

static void a_client_that_does_not_read_is_bounded_by_the_high_water_mark(void **state)
{
    (void)state;
    static const char some[1000];
    struct td_h2_server_stats s;
    td_err err = TD_OK;
    int n = 0;
    h2_hello(conn);
    hold();
    td_h2_respond(held, 200, NULL, 0, false);
    while (err == TD_OK && n < 1000) {
        err = td_h2_write(held, some, sizeof some);
        n++;
    }
    assert_int_equal(err, TD_ERR_FULL);
    assert_true(n <= 202);
    assert_int_equal(td_h2_write(held, some, 1), TD_ERR_CLOSED);
    assert_int_equal(n_gone, 0); /* never below our own call */
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(n_gone, 1);
    td_h2_server_stats(server, &s);
    assert_int_equal(s.slow_readers, 1);
}

static void the_unsent_bytes_of_all_streams_are_bounded(void **state)
{
    (void)state;
    static const char some[150000];
    h2_hello(conn);
    h2_setting(conn, 4, 0);
    hold();
    struct td_h2_stream *first = held;
    held = NULL;
    h2_request(conn, 3, "/hold", NULL, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
    td_h2_respond(first, 200, NULL, 0, false);
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(first, some, sizeof some), TD_OK);
    assert_int_equal(td_h2_write(held, some, sizeof some), TD_OK);
    assert_int_equal(td_h2_write(held, some, 1), TD_ERR_FULL); /* 300,001 in all */
    assert_true(h2_wait(conn, H2_RST, &frame));
    assert_int_equal(frame.stream, 3);
}

static void who_reads_does_not_pay_for_who_does_not(void **state)
{
    (void)state;
    static const char some[140000];
    struct td_h2_server_stats s;
    h2_hello(conn);
    h2_setting(conn, 4, 0); /* reads nothing */
    hold();
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, some, sizeof some), TD_OK);
    struct td_h2_stream *greedy = held;
    held = NULL;
    h2_request(conn, 3, "/hold", NULL, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, some, sizeof some - 1), TD_OK);
    held = NULL;
    struct h2_conn *other = h2_dial(loop, td_h2_server_port(server));
    h2_hello(other);
    h2_request(other, 1, "/hold", NULL, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, some, 15000), TD_OK);
    assert_int_equal(td_h2_write(held, some, 15000), TD_OK); /* 309,999 in all */
    td_h2_end(held, NULL, 0);
    td_h2_server_stats(server, &s);
    assert_int_equal(s.unsent_bytes, 169999); /* what the greediest had is gone at once */
    assert_int_equal(td_h2_write(greedy, some, 1), TD_ERR_CLOSED);
    assert_true(h2_wait(conn, H2_RST, &frame) && frame.stream == 1);
    static uint8_t body[40000];
    assert_int_equal(h2_answer(other, 1, body, sizeof body), 30000);
    h2_hang_up(other);
}

static void bytes_wait_for_the_window_and_then_arrive_whole(void **state)
{
    (void)state;
    static uint8_t out[100000], body[100000];
    static const uint8_t more[4] = {0, 1, 0, 0}; /* 65536 */
    for (size_t i = 0; i < sizeof out; i++) {
        out[i] = (uint8_t)(i * 7);
    }
    h2_hello(conn);
    hold();
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, out, sizeof out), TD_OK);
    td_h2_end(held, NULL, 0);
    size_t n = 0;
    bool widened = false;
    do {
        assert_true(h2_wait(conn, H2_DATA, &frame));
        memcpy(body + n, frame.payload, frame.len);
        n += frame.len;
        if (n == 65535 && !widened) {
            widened = true;
            h2_frame_out(conn, H2_WINDOW, 0, 0, more, sizeof more);
            h2_frame_out(conn, H2_WINDOW, 0, 1, more, sizeof more);
        }
    } while ((frame.flags & H2_END_STREAM) == 0);
    assert_int_equal(n, sizeof out);
    assert_memory_equal(body, out, sizeof out);
}

static void a_thousand_streams_at_once_are_served_and_leave_nothing(void **state)
{
    (void)state;
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    h2_hello(conn);
    for (uint32_t i = 0; i < 1000; i++) {
        h2_request(conn, 2 * i + 1, "/hold", NULL, H2_END_STREAM);
    }
    for (int i = 0; i < 1000 && n_requests < 1000; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_true(td_h2_server_busy(server) >= 1000);
    for (uint32_t i = 0; i < 1000; i++) {
        h2_frame_out(conn, H2_RST, 0, 2 * i + 1, cancel, sizeof cancel);
    }
    h2_until(loop, no_streams, NULL);
    assert_int_equal(n_gone, 1000);
    h2_request(conn, 3001, "/path", NULL, H2_END_STREAM); /* the connection is still good */
    assert_true(h2_wait(conn, H2_HEADERS, &frame));
}

static void a_lost_connection_ends_its_streams(void **state)
{
    (void)state;
    h2_hello(conn);
    hold();
    h2_hang_up(conn);
    conn = NULL;
    h2_until(loop, no_streams, NULL);
    assert_int_equal(n_gone, 1);
}

static void a_drain_warns_finishes_and_closes(void **state)
{
    (void)state;
    uint8_t body[64];
    h2_hello(conn);
    hold();
    td_h2_server_drain(server);
    assert_true(h2_wait(conn, H2_GOAWAY, &frame));
    assert_int_equal(h2_u32(frame.payload), 0x7fffffff); /* a warning: nothing is refused yet */
    assert_true(h2_wait(conn, H2_GOAWAY, &frame));
    assert_int_equal(h2_u32(frame.payload), 1);
    assert_true(td_h2_server_busy(server) >= 1);
    td_h2_respond(held, 200, NULL, 0, false);
    assert_int_equal(td_h2_write(held, "x", 1), TD_OK);
    td_h2_end(held, NULL, 0);
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 1);
    (void)h2_until_closed(conn);
    h2_until(loop, is_idle, NULL);
}

static void a_drain_does_not_wait_for_background_streams(void **state)
{
    (void)state;
    h2_hello(conn);
    hold();
    td_h2_stream_set_background(held);
    h2_until(loop, is_idle, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(an_answer_has_head_bytes_and_trailers),
        T(an_answer_before_the_end_of_the_request_tells_the_client_to_stop),
        T(headers_over_the_limit_cost_the_stream_only),
        T(floods_end_the_connection_calmly),
        T(a_ping_for_each_data_that_the_client_gets_is_no_flood),
        T(a_flood_of_cancelled_streams_ends_the_connection),
        T(a_flood_of_empty_data_ends_the_connection),
        T(a_header_block_that_never_ends_is_cut),
        T(bytes_of_another_protocol_are_cut),
        T(a_client_that_says_nothing_is_cut),
        T(a_request_that_never_ends_is_reset),
        T(a_window_of_zero_stalls_and_then_loses_the_stream),
        T(a_client_that_does_not_read_is_bounded_by_the_high_water_mark),
        T(the_unsent_bytes_of_all_streams_are_bounded),
        T(who_reads_does_not_pay_for_who_does_not),
        T(bytes_wait_for_the_window_and_then_arrive_whole),
        T(a_thousand_streams_at_once_are_served_and_leave_nothing),
        T(a_lost_connection_ends_its_streams),
        T(a_drain_warns_finishes_and_closes),
        T(a_drain_does_not_wait_for_background_streams),
    };
    return cmocka_run_group_tests_name("h2_server", tests, NULL, NULL);
}
