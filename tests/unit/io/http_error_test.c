#include "common/io/http_error.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include <jansson.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "tests/unit/check.h"

static json_t *object(td_err err, const char *text, const char *param)
{
    struct td_buf b;
    td_buf_init(&b, 65536);
    assert_int_equal(td_http_error_json(&b, err, text, param), TD_OK);
    json_t *j = json_loadb((const char *)b.data, b.len, 0, NULL);
    td_buf_fini(&b);
    assert_non_null(j);
    assert_int_equal(json_object_size(j), 1);
    assert_int_equal(json_object_size(json_object_get(j, "error")), 4);
    return j;
}

static const char *field(json_t *j, const char *name)
{
    return json_string_value(json_object_get(json_object_get(j, "error"), name));
}

static void every_error_has_message_type_param_and_code(void **state)
{
    (void)state;
    static const struct {
        td_err err;
        const char *type, *code;
    } rows[] = {
        {TD_ERR_BAD_REQUEST, "invalid_request_error", "bad_request"},
        {TD_ERR_UNAUTHORIZED, "authentication_error", "invalid_api_key"},
        {TD_ERR_FORBIDDEN, "permission_error", "forbidden"},
        {TD_ERR_MODEL_NOT_FOUND, "not_found_error", "model_not_found"},
        {TD_ERR_TOO_LARGE, "invalid_request_error", "payload_too_large"},
        {TD_ERR_RATE_LIMITED, "rate_limit_error", "rate_limited"},
        {TD_ERR_INTERNAL, "server_error", "internal_error"},
        {TD_ERR_DRAINING, "server_error", "draining"},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        json_t *j = object(rows[i].err, NULL, NULL);
        assert_string_equal(field(j, "type"), rows[i].type);
        assert_string_equal(field(j, "code"), rows[i].code);
        assert_string_equal(field(j, "message"), td_err_text(rows[i].err));
        assert_true(json_is_null(json_object_get(json_object_get(j, "error"), "param")));
        json_decref(j);
    }
}

static void texts_are_escaped_and_empty_ones_replaced(void **state)
{
    (void)state;
    json_t *j = object(TD_ERR_BAD_REQUEST, "say \"no\"\n", "a\\b");
    assert_string_equal(field(j, "message"), "say \"no\"\n");
    assert_string_equal(field(j, "param"), "a\\b");
    json_decref(j);
    j = object(TD_ERR_BAD_REQUEST, "", "");
    assert_string_equal(field(j, "message"), "bad request");
    assert_null(field(j, "param"));
    json_decref(j);
}

static void a_text_cut_inside_a_character_stays_json(void **state)
{
    (void)state;
    json_t *j = object(TD_ERR_BAD_REQUEST, "caf\xc3` is \xff", "\xe2\x82");
    assert_string_equal(field(j, "message"), "caf?` is ?");
    assert_string_equal(field(j, "param"), "??");
    json_decref(j);
}

static void a_body_that_does_not_fit_is_cut(void **state)
{
    (void)state;
    struct td_buf b;
    td_buf_init(&b, 20);
    td_http_error_body(TD_ERR_BAD_REQUEST, "text", &b);
    assert_true(b.len <= 20);
    td_buf_clear(&b);
    assert_int_not_equal(td_http_error_json(&b, TD_ERR_BAD_REQUEST, "text", NULL), TD_OK);
    td_buf_fini(&b);
}

/* ---- over a socket ---- */

static td_err refuse_with;
static double retry_after;

static void handler(void *arg, struct td_http_exchange *x)
{
    (void)arg;
    td_http_refuse(x, refuse_with, NULL, "p", retry_after);
}

static void fetch(struct td_loop *loop, uint16_t port, char *out, size_t cap)
{
    static const char get[] = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = 0;
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    assert_int_equal(send(fd, get, sizeof get - 1, MSG_NOSIGNAL), sizeof get - 1);
    for (int pass = 0; pass < 5000; pass++) {
        td_loop_run_once(loop, 2000);
        ssize_t r = recv(fd, out + n, cap - 1 - n, 0);
        n += r > 0 ? (size_t)r : 0;
        if (r == 0) {
            break;
        }
    }
    out[n] = 0;
    (void)close(fd);
}

static void refusals_carry_the_headers_of_their_status(void **state)
{
    (void)state;
    static const struct {
        td_err err;
        double retry_s;
        const char *status, *want, *not_want;
    } rows[] = {
        {TD_ERR_UNAUTHORIZED, 1, "401 ", "WWW-Authenticate: Bearer\r\n", "Retry-After"},
        {TD_ERR_METHOD, 1, "405 ", "Allow: ", "Retry-After"},
        {TD_ERR_OVERLOADED, 2.1, "429 ", "Retry-After: 3\r\n", "x-should-retry"},
        {TD_ERR_RATE_LIMITED, 1e30, "429 ", "Retry-After: 86400\r\n", "x-should-retry"},
        {TD_ERR_NO_NODE, 0, "503 ", "Retry-After: 1\r\n", "x-should-retry"},
        {TD_ERR_DRAINING, 5, "503 ", "x-tandem-dropped-reason: draining\r\n", "x-should-retry"},
        {TD_ERR_BAD_REQUEST, 1, "400 ", "x-should-retry: false\r\n", "Retry-After"},
    };
    struct td_loop *loop = NULL;
    struct td_http_server *server = NULL;
    struct td_http_server_params p;
    char got[4096];
    assert_int_equal(td_loop_create(&loop), TD_OK);
    td_http_server_defaults(&p);
    p.loop = loop;
    p.host = "127.0.0.1";
    p.handler = handler;
    p.error_body = td_http_error_body;
    assert_int_equal(td_http_server_create(&p, &server), TD_OK);
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        refuse_with = rows[i].err;
        retry_after = rows[i].retry_s;
        fetch(loop, td_http_server_port(server), got, sizeof got);
        if (strstr(got, rows[i].status) == NULL || strstr(got, rows[i].want) == NULL ||
            strstr(got, rows[i].not_want) != NULL || strstr(got, "{\"error\":{") == NULL) {
            fail_msg("row %zu: %s", i, got);
        }
    }
    td_http_server_destroy(server);
    td_loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_message_type_param_and_code),
        cmocka_unit_test(texts_are_escaped_and_empty_ones_replaced),
        cmocka_unit_test(a_text_cut_inside_a_character_stays_json),
        cmocka_unit_test(a_body_that_does_not_fit_is_cut),
        cmocka_unit_test(refusals_carry_the_headers_of_their_status),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
