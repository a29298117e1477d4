/* The server over loopback sockets, driven pass by pass on one thread. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_server.h"

static struct td_loop *loop;
static struct td_http_server *server;
static struct td_http_exchange *held;
static int gone_count;
static char last_body[128];

static void on_gone(void *arg)
{
    (void)arg;
    gone_count++;
    held = NULL;
}

static void handler(void *arg, struct td_http_exchange *x)
{
    (void)arg;
    const struct td_http_request *r = td_http_exchange_request(x);
    (void)snprintf(last_body, sizeof last_body, "%.*s", (int)r->body_len, (const char *)r->body);
    if (strcmp(r->path, "/hold") == 0) {
        held = x;
        td_http_exchange_on_gone(x, on_gone, NULL);
        return;
    }
    if (strcmp(r->path, "/stream") == 0) {
        held = x;
        td_http_exchange_on_gone(x, on_gone, NULL);
        td_http_stream_start(x, 200, NULL, 0, "text/event-stream");
        return;
    }
    if (strcmp(r->path, "/big") == 0) {
        static const char big[65536];
        td_http_respond(x, 200, NULL, 0, "text/plain", big, sizeof big);
        return;
    }
    static const struct td_http_header extra = {.name = "x-request-id", .value = "7"};
    td_http_respond(x, 200, &extra, 1, "text/plain", r->path, strlen(r->path));
}

static void error_body(td_err err, const char *text, struct td_buf *out)
{
    TD_IGNORE(td_buf_printf(out, "{\"error\":{\"code\":\"%s\",\"message\":\"%s\"}}",
                            td_err_code(err), text));
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
    p.limits.max_body = 4096;
    p.high_water = 100000;
    p.head_deadline_us = 200000;
    p.max_body_bytes = 6000;
    p.max_connections = 8;
    p.handler = handler;
    p.error_body = error_body;
    held = NULL;
    gone_count = 0;
    return td_http_server_create(&p, &server) == TD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    server = td_http_server_destroy(server);
    loop = td_loop_destroy(loop);
    return 0;
}

static int dial(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(td_http_server_port(server))};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return fd;
}

/* Runs the loop until the client has read `want`, or the connection ended; returns what it read. */
static const char *talk(int fd, const char *send_text, const char *want)
{
    static char got[262144];
    size_t n = 0;
    if (send_text != NULL) {
        assert_int_equal(send(fd, send_text, strlen(send_text), MSG_NOSIGNAL), strlen(send_text));
    }
    for (int pass = 0; pass < 3000; pass++) {
        td_loop_run_once(loop, 2000);
        ssize_t r = recv(fd, got + n, sizeof got - 1 - n, 0);
        n += r > 0 ? (size_t)r : 0;
        got[n] = 0;
        if (r == 0 || (want != NULL && strstr(got, want) != NULL)) {
            break;
        }
    }
    return got;
}

#define GET(path) "GET " path " HTTP/1.1\r\nHost: a\r\n\r\n"

static void an_answer_carries_length_and_headers_and_the_connection_stays(void **state)
{
    (void)state;
    int fd = dial();
    const char *got = talk(fd, GET("/a"), "/a");
    assert_non_null(strstr(got, "HTTP/1.1 200 OK\r\n"));
    assert_non_null(strstr(got, "Content-Length: 2\r\n"));
    assert_non_null(strstr(got, "x-request-id: 7\r\n"));
    assert_non_null(strstr(talk(fd, GET("/bb"), "/bb"), "/bb"));
    close(fd);
}

static void pipelined_requests_are_answered_in_order(void **state)
{
    (void)state;
    int fd = dial();
    const char *got = talk(fd, GET("/one") GET("/two") GET("/three"), "/three");
    assert_true(strstr(got, "/one") < strstr(got, "/two"));
    assert_true(strstr(got, "/two") < strstr(got, "/three"));
    close(fd);
}

static void a_pipelined_request_waits_for_a_slow_answer(void **state)
{
    (void)state;
    int fd = dial();
    (void)send(fd, GET("/hold") GET("/after"), strlen(GET("/hold") GET("/after")), 0);
    for (int i = 0; i < 100 && held == NULL; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_non_null(held);
    td_http_respond(held, 200, NULL, 0, "text/plain", "held", 4);
    const char *got = talk(fd, NULL, "/after");
    assert_true(strstr(got, "held") != NULL && strstr(got, "held") < strstr(got, "/after"));
    close(fd);
}

static void a_client_that_reads_no_answer_gets_no_more_of_them(void **state)
{
    (void)state;
    static char sink[262144];
    struct td_http_server_stats s;
    uint64_t read_bytes = 0, wanted = 400;
    int fd = dial();
    for (uint64_t i = 0; i < wanted; i++) {
        assert_int_equal(send(fd, GET("/big"), strlen(GET("/big")), 0), strlen(GET("/big")));
    }
    for (int i = 0; i < 300; i++) {
        td_loop_run_once(loop, 100);
    }
    td_http_server_stats(server, &s);
    assert_true(s.requests > 0 && s.requests < wanted); /* what sockets hold, and a little */
    for (int i = 0; i < 100000 && (s.requests < wanted || read_bytes < s.response_bytes); i++) {
        td_loop_run_once(loop, 0);
        ssize_t n = recv(fd, sink, sizeof sink, 0);
        read_bytes += n > 0 ? (uint64_t)n : 0;
        td_http_server_stats(server, &s);
    }
    assert_int_equal(s.requests, wanted);
    assert_int_equal(read_bytes, s.response_bytes);
    close(fd);
}

static void errors_of_the_guard_are_json_and_close(void **state)
{
    (void)state;
    static const struct {
        const char *text, *status, *code;
    } rows[] = {
        {"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "bad_request"},
        {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\nabc", "HTTP/1.1 413 ",
         "payload_too_large"},
        {"GET / HTTP/1.1\r\nHost: a\r\nDrip: 1", "HTTP/1.1 408 ", "request_timeout"},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        int fd = dial();
        const char *got = talk(fd, rows[i].text, NULL);
        assert_non_null(strstr(got, rows[i].status));
        assert_non_null(strstr(got, rows[i].code));
        assert_non_null(strstr(got, "Connection: close"));
        close(fd);
    }
}

static void bodies_are_bounded_together(void **state)
{
    (void)state;
    static const char head[] = "POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 4000\r\n\r\n";
    char body[4001];
    memset(body, 'x', 4000);
    body[4000] = 0;
    int a = dial(), b = dial();
    assert_int_equal(send(a, head, strlen(head), 0), strlen(head));
    assert_int_equal(send(a, body, 3999, 0), 3999);
    for (int i = 0; i < 20; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(send(b, head, strlen(head), 0), strlen(head));
    assert_int_equal(send(b, body, 3999, 0), 3999);
    assert_non_null(strstr(talk(b, NULL, NULL), "HTTP/1.1 429 "));
    close(b);
    assert_non_null(strstr(talk(a, "x", "/b"), "200 OK"));
    assert_non_null(strstr(talk(a, GET("/again"), "/again"), "200 OK"));
    close(a);
    b = dial();
    (void)send(b, head, strlen(head), 0);
    assert_non_null(strstr(talk(b, body, "/b"), "200 OK"));
    close(b);
}

static void without_a_descriptor_accepting_pauses(void **state)
{
    (void)state;
    struct rlimit was, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int fd = dial();
    none = was;
    none.rlim_cur = (rlim_t)fd + 1; /* what is open stays open */
    td_log_set_level(TD_LOG_ERROR);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int i = 0; i < 20; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    assert_non_null(strstr(talk(fd, GET("/late"), "/late"), "200 OK"));
    close(fd);
}

static void continue_is_sent_before_the_body(void **state)
{
    (void)state;
    int fd = dial();
    assert_non_null(strstr(
        talk(fd, "POST /b HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n",
             "100 Continue"),
        "100 Continue"));
    assert_non_null(strstr(talk(fd, "hi", "/b"), "200 OK"));
    assert_string_equal(last_body, "hi");
    close(fd);
}

static void a_stream_is_chunked_and_ends(void **state)
{
    (void)state;
    int fd = dial();
    (void)talk(fd, GET("/stream"), "chunked");
    assert_int_equal(td_http_stream_write(held, "data: x\n\n", 9), TD_OK);
    assert_int_equal(td_http_stream_write(held, "", 0), TD_OK);
    td_http_stream_end(held);
    const char *got = talk(fd, NULL, "0\r\n\r\n");
    assert_non_null(strstr(got, "9\r\ndata: x\n\n\r\n0\r\n\r\n"));
    assert_non_null(strstr(talk(fd, GET("/again"), "/again"), "200 OK"));
    assert_int_equal(gone_count, 0);
    close(fd);
}

static void a_stream_for_http_1_0_is_raw_and_ends_with_the_connection(void **state)
{
    (void)state;
    int fd = dial();
    (void)talk(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "\r\n\r\n");
    assert_int_equal(td_http_stream_write(held, "data: x\n\n", 9), TD_OK);
    const char *got = talk(fd, NULL, "data");
    assert_string_equal(got, "data: x\n\n");
    td_http_stream_end(held); /* with nothing left to write */
    assert_string_equal(talk(fd, NULL, NULL), "");
    close(fd);
}

static void an_aborted_stream_has_no_end(void **state)
{
    (void)state;
    int fd = dial();
    (void)talk(fd, GET("/stream"), "chunked");
    assert_int_equal(td_http_stream_write(held, "data: x\n\n", 9), TD_OK);
    (void)talk(fd, NULL, "data");
    td_http_stream_abort(held);
    assert_string_equal(talk(fd, NULL, NULL), "");
    assert_int_equal(gone_count, 0);
    assert_int_equal(td_http_server_busy(server), 0);
    close(fd);
}

static void a_guards_error_after_a_head_request_has_a_body(void **state)
{
    (void)state;
    int fd = dial();
    assert_null(strstr(talk(fd, "HEAD /a HTTP/1.1\r\nHost: a\r\n\r\n", "\r\n\r\n"), "\r\n\r\n/a"));
    assert_non_null(strstr(talk(fd, "oops\r\n\r\n", NULL), "bad_request"));
    close(fd);
}

static void a_client_that_leaves_is_noticed_once(void **state)
{
    (void)state;
    int fd = dial();
    (void)talk(fd, GET("/stream"), "chunked");
    close(fd);
    for (int i = 0; i < 500 && gone_count == 0; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(gone_count, 1);
    assert_int_equal(td_http_server_busy(server), 0);
}

static void a_client_that_does_not_read_is_dropped(void **state)
{
    (void)state;
    static char block[8192];
    int fd = dial();
    (void)talk(fd, GET("/stream"), "chunked");
    memset(block, 'x', sizeof block);
    td_err err = TD_OK;
    for (int i = 0; i < 4000 && err == TD_OK && held != NULL; i++) {
        err = td_http_stream_write(held, block, sizeof block);
        td_loop_run_once(loop, 0);
    }
    for (int i = 0; i < 100 && gone_count == 0; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(gone_count, 1);
    close(fd);
}

static void connections_are_capped_and_come_back(void **state)
{
    (void)state;
    int fds[9];
    for (int i = 0; i < 9; i++) {
        fds[i] = dial();
        td_loop_run_once(loop, 1000);
    }
    assert_string_equal(talk(fds[8], NULL, "never"), "");
    close(fds[8]);
    close(fds[0]);
    for (int i = 0; i < 20; i++) {
        td_loop_run_once(loop, 1000);
    }
    int fd = dial();
    assert_non_null(strstr(talk(fd, GET("/x"), "/x"), "200 OK"));
    close(fd);
    for (int i = 1; i < 8; i++) {
        close(fds[i]);
    }
}

static void draining_finishes_what_runs(void **state)
{
    (void)state;
    int fd = dial();
    (void)talk(fd, GET("/stream"), "chunked");
    td_http_server_drain(server);
    assert_int_equal(td_http_server_busy(server), 1);
    assert_int_equal(td_http_stream_write(held, "last", 4), TD_OK);
    td_http_stream_end(held);
    assert_non_null(strstr(talk(fd, NULL, NULL), "last"));
    close(fd);
    for (int i = 0; i < 100 && td_http_server_busy(server) > 0; i++) {
        td_loop_run_once(loop, 1000);
    }
    assert_int_equal(td_http_server_busy(server), 0);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(an_answer_carries_length_and_headers_and_the_connection_stays),
        T(pipelined_requests_are_answered_in_order),
        T(a_pipelined_request_waits_for_a_slow_answer),
        T(a_client_that_reads_no_answer_gets_no_more_of_them),
        T(errors_of_the_guard_are_json_and_close),
        T(bodies_are_bounded_together),
        T(without_a_descriptor_accepting_pauses),
        T(continue_is_sent_before_the_body),
        T(a_stream_is_chunked_and_ends),
        T(a_stream_for_http_1_0_is_raw_and_ends_with_the_connection),
        T(an_aborted_stream_has_no_end),
        T(a_guards_error_after_a_head_request_has_a_body),
        T(a_client_that_leaves_is_noticed_once),
        T(a_client_that_does_not_read_is_dropped),
        T(connections_are_capped_and_come_back),
        T(draining_finishes_what_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
