/* Calls against a client of raw frames: routing, keys, messages, statuses, deadlines. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/grpc_server.h"
#include "tests/unit/io/h2_rig.h"

static struct td_loop *loop;
static struct td_grpc_server *server;
static struct h2_conn *conn;
static struct h2_frame frame;
static struct td_grpc_call *held;
static uint32_t n_gone;
static char seen[256]; /* messages, each with a '|'; '.' for the end */

static void note(const uint8_t *message, size_t len)
{
    size_t n = strlen(seen);
    (void)snprintf(seen + n, sizeof seen - n, "%.*s%s", (int)len,
                   message != NULL ? (const char *)message : "", message != NULL ? "|" : ".");
}

static void h_echo(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    note(message, len);
    if (td_grpc_send(c, message, len) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static void h_chat(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    note(message, len);
    if (message == NULL) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
        return;
    }
    TD_IGNORE(td_grpc_send(c, message, len)); /* the test reads it */
}

static void on_gone(void *arg)
{
    (void)arg;
    n_gone++;
    held = NULL;
}

static void h_hold(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    held = c;
    td_grpc_call_on_gone(c, on_gone, NULL);
}

static void h_fail(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    td_grpc_fail(c, TD_ERR_OVERLOADED, "100% full", 1.5);
}

static char ends[512]; /* "method status|" of each call */

static void on_end(void *arg, const struct td_grpc_call *c, enum td_grpc_status status)
{
    (void)arg;
    size_t n = strlen(ends);
    (void)snprintf(ends + n, sizeof ends - n, "%s/%s %s|", td_grpc_call_service(c),
                   td_grpc_call_method(c), td_grpc_status_name(status));
}

static const struct td_grpc_method methods[] = {
    {.name = "Echo", .handle = h_echo},
    {.name = "Chat", .client_streams = true, .handle = h_chat},
    {.name = "Hold", .open = true, .handle = h_hold},
    {.name = "Fail", .handle = h_fail},
};

static td_err admit(void *arg, struct td_grpc_call *c)
{
    (void)arg;
    const char *key = td_http_header_get(td_grpc_call_request(c), "authorization");
    td_grpc_call_set_request_id(c, "id-1");
    return key != NULL && strcmp(key, "wrong") == 0 ? TD_ERR_UNAUTHORIZED : TD_OK;
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
    p.max_message = 1000;
    p.max_buffered = 1500;
    p.max_open_message = 200;
    p.max_open_buffered = 300;
    p.admit = admit;
    n_gone = 0;
    held = NULL;
    seen[0] = ends[0] = 0;
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    const struct td_grpc_service service = {
        .name = "a.B", .methods = methods, .n_methods = TD_COUNT(methods)};
    td_grpc_server_add(server, &service);
    td_grpc_server_on_end(server, on_end, NULL);
    conn = h2_dial(loop, td_h2_server_port(td_grpc_server_h2(server)));
    h2_hello(conn);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    h2_hang_up(conn);
    server = td_grpc_server_destroy(server);
    loop = td_loop_destroy(loop);
    return 0;
}

static uint8_t body[4096];

/* One call with one message; the status of its end. */
static const char *call(uint32_t stream, const char *path, const char *const *more,
                        const char *text)
{
    h2_request(conn, stream, path, more, 0);
    h2_message(conn, stream, text, strlen(text), H2_END_STREAM);
    (void)h2_answer(conn, stream, body, sizeof body);
    return h2_header(conn, "grpc-status");
}

static bool is_held(void *arg)
{
    (void)arg;
    return held != NULL;
}

static bool is_gone(void *arg)
{
    (void)arg;
    return n_gone > 0;
}

static void a_call_is_a_message_each_way_and_a_status(void **state)
{
    (void)state;
    h2_request(conn, 1, "/a.B/Echo", NULL, 0);
    h2_message(conn, 1, "hello", 5, H2_END_STREAM);
    assert_true(h2_wait(conn, H2_HEADERS, &frame));
    assert_string_equal(h2_header(conn, "content-type"), "application/grpc");
    assert_string_equal(h2_header(conn, "x-request-id"), "id-1");
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 10);
    assert_memory_equal(body, "\0\0\0\0\5hello", 10);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
}

static void an_error_carries_its_code_its_text_and_when_to_come_again(void **state)
{
    (void)state;
    assert_string_equal(call(1, "/a.B/Fail", NULL, ""), "8");
    assert_string_equal(h2_header(conn, "grpc-message"), "100%25 full");
    assert_string_equal(h2_header(conn, "tandem-code"), "overloaded");
    assert_string_equal(h2_header(conn, "grpc-retry-pushback-ms"), "1500");
    assert_string_equal(h2_header(conn, ":status"), "200");
}

static void the_key_is_asked_for_before_the_method_is_known(void **state)
{
    (void)state;
    static const char *const wrong[] = {"authorization", "wrong", NULL};
    assert_string_equal(call(1, "/a.B/Echo", wrong, "x"), "16");
    assert_string_equal(call(3, "/no.Such/Method", wrong, "x"), "16");
    assert_string_equal(call(5, "/no.Such/Method", NULL, "x"), "12");
    assert_string_equal(call(7, "/a.B/Echo/More", NULL, "x"), "12");
    assert_string_equal(call(9, "/a.B/", NULL, "x"), "12");
    assert_string_equal(call(11, "a.B/Echo", NULL, "x"), "12");
    assert_string_equal(seen, "");
}

static void an_open_method_needs_no_key(void **state)
{
    (void)state;
    static const char *const wrong[] = {"authorization", "wrong", NULL};
    h2_request(conn, 1, "/a.B/Hold", wrong, 0);
    h2_message(conn, 1, "", 0, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
}

static void what_is_no_grpc_gets_an_http_status(void **state)
{
    (void)state;
    static uint8_t block[1024];
    static const char *const get[] = {":authority", "a",     ":method",   "GET", ":scheme",
                                      "http",       ":path", "/a.B/Echo", NULL};
    static const char *const json[] = {
        ":authority", "a",     ":method",   "POST",         ":scheme",
        "http",       ":path", "/a.B/Echo", "content-type", "application/json",
        NULL};
    size_t n = h2_block(block, sizeof block, get);
    h2_frame_out(conn, H2_HEADERS, H2_END_HEAD | H2_END_STREAM, 1, block, n);
    (void)h2_answer(conn, 1, body, sizeof body);
    assert_string_equal(h2_header(conn, ":status"), "405");
    n = h2_block(block, sizeof block, json);
    h2_frame_out(conn, H2_HEADERS, H2_END_HEAD | H2_END_STREAM, 3, block, n);
    (void)h2_answer(conn, 3, body, sizeof body);
    assert_string_equal(h2_header(conn, ":status"), "415");
}

static void bad_messages_end_with_a_status_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *status;
    } rows[] = {{"\1\0\0\0\1x", 6, "12"},             /* compressed */
                {"\0\0\0\x10\0", 5, "8"},             /* 4096 bytes announced */
                {"\7\0\0\0\0", 5, "13"},              /* an unknown flag */
                {"\0\0\0\0\5abc", 8, "3"},            /* cut off */
                {"", 0, "3"},                         /* none */
                {"\0\0\0\0\1a\0\0\0\0\1b", 12, "3"}}; /* two */
    for (uint32_t i = 0; i < TD_COUNT(rows); i++) {
        h2_request(conn, 2 * i + 1, "/a.B/Echo", NULL, 0);
        h2_frame_out(conn, H2_DATA, H2_END_STREAM, 2 * i + 1, rows[i].bytes, rows[i].len);
        (void)h2_answer(conn, 2 * i + 1, body, sizeof body);
        assert_string_equal(h2_header(conn, "grpc-status"), rows[i].status);
    }
    assert_string_equal(seen, "");
}

static void the_bytes_of_unhandled_requests_are_bounded_together(void **state)
{
    (void)state;
    static const char some[900];
    h2_request(conn, 1, "/a.B/Echo", NULL, 0);
    h2_message(conn, 1, some, sizeof some, 0); /* complete, but the client has not ended */
    h2_request(conn, 3, "/a.B/Echo", NULL, 0);
    h2_message(conn, 3, some, sizeof some, H2_END_STREAM);
    (void)h2_answer(conn, 3, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "8");
    h2_frame_out(conn, H2_DATA, H2_END_STREAM, 1, NULL, 0);
    (void)h2_answer(conn, 1, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
    assert_string_equal(call(5, "/a.B/Echo", NULL, "again"), "0"); /* all is given back */
}

static void a_small_request_passes_whoever_hoards(void **state)
{
    (void)state;
    static const char some[900];
    struct h2_conn *hoarder = h2_dial(loop, td_h2_server_port(td_grpc_server_h2(server)));
    h2_hello(hoarder);
    h2_request(hoarder, 1, "/a.B/Echo", NULL, 0);
    h2_message(hoarder, 1, some, sizeof some, 0);
    h2_request(hoarder, 3, "/a.B/Echo", NULL, 0);
    h2_message(hoarder, 3, some, 580, 0);
    assert_string_equal(call(1, "/a.B/Echo", NULL, "x"), "0");
    assert_string_equal(call(3, "/a.B/Echo", NULL, "these are too many"), "0");
    (void)h2_answer(hoarder, 1, body, sizeof body);
    assert_string_equal(h2_header(hoarder, "grpc-status"), "8");
    h2_frame_out(hoarder, H2_DATA, H2_END_STREAM, 3, NULL, 0);
    (void)h2_answer(hoarder, 3, body, sizeof body);
    assert_string_equal(h2_header(hoarder, "grpc-status"), "0");
    h2_hang_up(hoarder);
}

static void what_strangers_hold_is_bounded_apart(void **state)
{
    (void)state;
    static const char some[201];
    h2_request(conn, 1, "/a.B/Hold", NULL, 0);
    h2_message(conn, 1, some, 190, 0);
    h2_request(conn, 3, "/a.B/Hold", NULL, 0);
    h2_message(conn, 3, some, 150, 0); /* 350 bytes and their prefixes: the first has the most */
    (void)h2_answer(conn, 1, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "8");
    assert_string_equal(call(5, "/a.B/Echo", NULL, "with a key"), "0");
    h2_request(conn, 7, "/a.B/Hold", NULL, 0);
    h2_message(conn, 7, some, sizeof some, H2_END_STREAM);
    (void)h2_answer(conn, 7, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "8");
    assert_null(held);
}

static void a_stream_of_messages_is_handled_one_by_one(void **state)
{
    (void)state;
    h2_request(conn, 1, "/a.B/Chat", NULL, 0);
    h2_message(conn, 1, "a", 1, 0);
    h2_message(conn, 1, "b", 1, H2_END_STREAM);
    assert_int_equal(h2_answer(conn, 1, body, sizeof body), 12);
    assert_string_equal(h2_header(conn, "grpc-status"), "0");
    assert_string_equal(seen, "a|b|.");
}

static void a_passed_deadline_ends_the_call_and_tells_its_owner(void **state)
{
    (void)state;
    static const char *const soon[] = {"grpc-timeout", "30m", NULL};
    h2_request(conn, 1, "/a.B/Hold", soon, 0);
    h2_message(conn, 1, "", 0, H2_END_STREAM);
    (void)h2_answer(conn, 1, body, sizeof body);
    assert_string_equal(h2_header(conn, "grpc-status"), "4");
    assert_int_equal(n_gone, 1);
}

static void a_malformed_deadline_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"grpc-timeout", "soon", NULL};
    assert_string_equal(call(1, "/a.B/Echo", bad, "x"), "3");
}

static void a_cancelled_call_is_told_once(void **state)
{
    (void)state;
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    h2_request(conn, 1, "/a.B/Hold", NULL, 0);
    h2_message(conn, 1, "", 0, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
    h2_frame_out(conn, H2_RST, 0, 1, cancel, sizeof cancel);
    h2_until(loop, is_gone, NULL);
    assert_int_equal(n_gone, 1);
}

static void the_end_of_the_server_tells_the_owners_of_open_calls(void **state)
{
    (void)state;
    h2_request(conn, 1, "/a.B/Hold", NULL, 0);
    h2_message(conn, 1, "", 0, H2_END_STREAM);
    h2_until(loop, is_held, NULL);
    server = td_grpc_server_destroy(server);
    assert_int_equal(n_gone, 1);
}

static void each_call_ends_once_with_a_status(void **state)
{
    (void)state;
    static const uint8_t cancel[4] = {0, 0, 0, 8};
    static const char *const wrong[] = {"authorization", "wrong", NULL};
    static const char *const soon[] = {"grpc-timeout", "20m", NULL};
    (void)call(1, "/a.B/Echo", NULL, "x");
    (void)call(3, "/a.B/Echo", wrong, "x");
    (void)call(5, "/a.B/Nothing", NULL, "x");
    (void)call(7, "/a.B/Fail", NULL, "x");
    (void)call(9, "/a.B/Hold", soon, "x");
    h2_request(conn, 11, "/a.B/Hold", NULL, 0);
    h2_frame_out(conn, H2_RST, 0, 11, cancel, sizeof cancel);
    h2_request(conn, 13, "/a.B/Hold", NULL, 0);
    h2_message(conn, 13, "", 0, H2_END_STREAM);
    held = NULL;
    h2_until(loop, is_held, NULL);
    server = td_grpc_server_destroy(server);
    assert_string_equal(ends, "a.B/Echo OK|a.B/Echo UNAUTHENTICATED|unknown/unknown UNIMPLEMENTED|"
                              "a.B/Fail RESOURCE_EXHAUSTED|a.B/Hold DEADLINE_EXCEEDED|"
                              "a.B/Hold CANCELLED|a.B/Hold CANCELLED|");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_call_is_a_message_each_way_and_a_status),
        T(an_error_carries_its_code_its_text_and_when_to_come_again),
        T(the_key_is_asked_for_before_the_method_is_known),
        T(an_open_method_needs_no_key),
        T(what_is_no_grpc_gets_an_http_status),
        T(bad_messages_end_with_a_status_of_their_own),
        T(the_bytes_of_unhandled_requests_are_bounded_together),
        T(a_small_request_passes_whoever_hoards),
        T(what_strangers_hold_is_bounded_apart),
        T(a_stream_of_messages_is_handled_one_by_one),
        T(a_passed_deadline_ends_the_call_and_tells_its_owner),
        T(a_malformed_deadline_is_refused),
        T(a_cancelled_call_is_told_once),
        T(each_call_ends_once_with_a_status),
        T(the_end_of_the_server_tells_the_owners_of_open_calls),
    };
    return cmocka_run_group_tests_name("grpc_server", tests, NULL, NULL);
}
