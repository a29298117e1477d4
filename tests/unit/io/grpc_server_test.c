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
static struct rig_conn *conn;
static struct rig_frame frame;
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
    p.admit = admit;
    n_gone = 0;
    held = NULL;
    seen[0] = 0;
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    const struct td_grpc_service service = {
        .name = "a.B", .methods = methods, .n_methods = TD_COUNT(methods)};
    td_grpc_server_add(server, &service);
    conn = rig_dial(loop, td_h2_server_port(td_grpc_server_h2(server)));
    rig_hello(conn);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rig_hang_up(conn);
    server = td_grpc_server_destroy(server);
    loop = td_loop_destroy(loop);
    return 0;
}

static uint8_t body[4096];

/* One call with one message; the status of its end. */
static const char *call(uint32_t stream, const char *path, const char *const *more,
                        const char *text)
{
    rig_request(conn, stream, path, more, 0);
    rig_message(conn, stream, text, strlen(text), RIG_END_STREAM);
    (void)rig_answer(conn, stream, body, sizeof body);
    return rig_header(conn, "grpc-status");
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
    rig_request(conn, 1, "/a.B/Echo", NULL, 0);
    rig_message(conn, 1, "hello", 5, RIG_END_STREAM);
    assert_true(rig_wait(conn, RIG_HEADERS, &frame));
    assert_string_equal(rig_header(conn, "content-type"), "application/grpc");
    assert_string_equal(rig_header(conn, "x-request-id"), "id-1");
    assert_int_equal(rig_answer(conn, 1, body, sizeof body), 10);
    assert_memory_equal(body, "\0\0\0\0\5hello", 10);
    assert_string_equal(rig_header(conn, "grpc-status"), "0");
}

static void an_error_carries_its_code_its_text_and_when_to_come_again(void **state)
{
    (void)state;
    assert_string_equal(call(1, "/a.B/Fail", NULL, ""), "8");
    assert_string_equal(rig_header(conn, "grpc-message"), "100%25 full");
    assert_string_equal(rig_header(conn, "tandem-code"), "overloaded");
    assert_string_equal(rig_header(conn, "grpc-retry-pushback-ms"), "1500");
    assert_string_equal(rig_header(conn, ":status"), "200");
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
    rig_request(conn, 1, "/a.B/Hold", wrong, 0);
    rig_message(conn, 1, "", 0, RIG_END_STREAM);
    rig_until(loop, is_held, NULL);
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
    size_t n = rig_block(block, sizeof block, get);
    rig_frame_out(conn, RIG_HEADERS, RIG_END_HEAD | RIG_END_STREAM, 1, block, n);
    (void)rig_answer(conn, 1, body, sizeof body);
    assert_string_equal(rig_header(conn, ":status"), "405");
    n = rig_block(block, sizeof block, json);
    rig_frame_out(conn, RIG_HEADERS, RIG_END_HEAD | RIG_END_STREAM, 3, block, n);
    (void)rig_answer(conn, 3, body, sizeof body);
    assert_string_equal(rig_header(conn, ":status"), "415");
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
        rig_request(conn, 2 * i + 1, "/a.B/Echo", NULL, 0);
        rig_frame_out(conn, RIG_DATA, RIG_END_STREAM, 2 * i + 1, rows[i].bytes, rows[i].len);
        (void)rig_answer(conn, 2 * i + 1, body, sizeof body);
        assert_string_equal(rig_header(conn, "grpc-status"), rows[i].status);
    }
    assert_string_equal(seen, "");
}

static void the_bytes_of_unhandled_requests_are_bounded_together(void **state)
{
    (void)state;
    static const char some[900];
    rig_request(conn, 1, "/a.B/Echo", NULL, 0);
    rig_message(conn, 1, some, sizeof some, 0); /* complete, but the client has not ended */
    rig_request(conn, 3, "/a.B/Echo", NULL, 0);
    rig_message(conn, 3, some, sizeof some, RIG_END_STREAM);
    (void)rig_answer(conn, 3, body, sizeof body);
    assert_string_equal(rig_header(conn, "grpc-status"), "8");
    rig_frame_out(conn, RIG_DATA, RIG_END_STREAM, 1, NULL, 0);
    (void)rig_answer(conn, 1, body, sizeof body);
    assert_string_equal(rig_header(conn, "grpc-status"), "0");
    assert_string_equal(call(5, "/a.B/Echo", NULL, "again"), "0"); /* all is given back */
}

static void a_stream_of_messages_is_handled_one_by_one(void **state)
{
    (void)state;
    rig_request(conn, 1, "/a.B/Chat", NULL, 0);
    rig_message(conn, 1, "a", 1, 0);
    rig_message(conn, 1, "b", 1, RIG_END_STREAM);
    assert_int_equal(rig_answer(conn, 1, body, sizeof body), 12);
    assert_string_equal(rig_header(conn, "grpc-status"), "0");
    assert_string_equal(seen, "a|b|.");
}

static void a_passed_deadline_ends_the_call_and_tells_its_owner(void **state)
{
    (void)state;
    static const char *const soon[] = {"grpc-timeout", "30m", NULL};
    rig_request(conn, 1, "/a.B/Hold", soon, 0);
    rig_message(conn, 1, "", 0, RIG_END_STREAM);
    (void)rig_answer(conn, 1, body, sizeof body);
    assert_string_equal(rig_header(conn, "grpc-status"), "4");
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
    rig_request(conn, 1, "/a.B/Hold", NULL, 0);
    rig_message(conn, 1, "", 0, RIG_END_STREAM);
    rig_until(loop, is_held, NULL);
    rig_frame_out(conn, RIG_RST, 0, 1, cancel, sizeof cancel);
    rig_until(loop, is_gone, NULL);
    assert_int_equal(n_gone, 1);
}

static void the_end_of_the_server_tells_the_owners_of_open_calls(void **state)
{
    (void)state;
    rig_request(conn, 1, "/a.B/Hold", NULL, 0);
    rig_message(conn, 1, "", 0, RIG_END_STREAM);
    rig_until(loop, is_held, NULL);
    server = td_grpc_server_destroy(server);
    assert_int_equal(n_gone, 1);
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
        T(a_stream_of_messages_is_handled_one_by_one),
        T(a_passed_deadline_ends_the_call_and_tells_its_owner),
        T(a_malformed_deadline_is_refused),
        T(a_cancelled_call_is_told_once),
        T(the_end_of_the_server_tells_the_owners_of_open_calls),
    };
    return cmocka_run_group_tests_name("grpc_server", tests, NULL, NULL);
}
