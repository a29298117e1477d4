#include "common/io/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>

#include "common/base/mem.h"

/* One request on its way. */
struct call {
    struct event_base *base;        /* owned */
    struct evhttp_uri *uri;         /* owned */
    struct evhttp_connection *conn; /* owned */
    char host[256], target[TD_HTTP_CLIENT_MAX_URL];
    uint16_t port;
    const struct td_http_client_body *post; /* borrowed; NULL: GET */
    size_t max_body;
    struct td_http_client_answer answer;
    bool finished;
    td_err err; /* TD_OK: the answer is complete */
    char text[160];
};

static td_err fail(struct call *c, td_err err, const char *why)
{
    (void)snprintf(c->text, sizeof c->text, "%s", why);
    c->err = err;
    return err;
}

static void call_fini(struct call *c)
{
    if (c->conn != NULL) {
        evhttp_connection_free(c->conn);
    }
    if (c->uri != NULL) {
        evhttp_uri_free(c->uri);
    }
    if (c->base != NULL) {
        event_base_free(c->base);
    }
    td_buf_fini(&c->answer.body);
}

/* ---- what libevent tells us ---- */

static void on_error(enum evhttp_request_error error, void *arg)
{
    struct call *c = arg;
    switch (error) {
    case EVREQ_HTTP_TIMEOUT:
        (void)fail(c, TD_ERR_BUDGET, "no answer in time");
        break;
    case EVREQ_HTTP_EOF:
        (void)fail(c, TD_ERR_PEER_LOST, "the connection was closed before the answer was complete");
        break;
    case EVREQ_HTTP_INVALID_HEADER:
        (void)fail(c, TD_ERR_PROTOCOL, "the answer is not HTTP");
        break;
    case EVREQ_HTTP_DATA_TOO_LONG:
        (void)fail(c, TD_ERR_TOO_LARGE, "the answer is too large");
        break;
    case EVREQ_HTTP_BUFFER_ERROR:
    case EVREQ_HTTP_REQUEST_CANCEL:
    default:
        (void)fail(c, TD_ERR_IO, "the request failed");
        break;
    }
}

static td_err take_body(struct call *c, struct evhttp_request *req)
{
    struct evbuffer *in = evhttp_request_get_input_buffer(req);
    size_t n = evbuffer_get_length(in);
    uint8_t *to = NULL;
    td_buf_init(&c->answer.body, c->max_body + 1);
    if (n > c->max_body) {
        return fail(c, TD_ERR_TOO_LARGE, "the answer is too large");
    }
    /* A byte more, so that an empty body has an address too. */
    if (td_buf_reserve(&c->answer.body, n + 1, &to) != TD_OK) {
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    c->answer.body.len = n > 0 ? (size_t)evbuffer_remove(in, to, n) : 0;
    to[c->answer.body.len] = 0;
    return TD_OK;
}

static void on_done(struct evhttp_request *req, void *arg)
{
    struct call *c = arg;
    /* libevent gives no reason. Its way out shuts the socket down first, which fails on one that never connected. */
    bool never = errno == ENOTCONN;
    c->finished = true;
    if (c->err == TD_OK && (req == NULL || evhttp_request_get_response_code(req) == 0)) {
        (void)fail(c, TD_ERR_PEER_LOST,
                   never ? "connection refused, or no route leads there"
                         : "the connection was closed at once");
    }
    if (c->err == TD_OK) {
        c->answer.status = evhttp_request_get_response_code(req);
        TD_IGNORE(take_body(c, req)); /* kept in c->err */
    }
    (void)event_base_loopbreak(c->base);
}

/* ---- the way out ---- */

/* Printable ASCII only: nothing that could end the request line. */
static bool url_is_plain(const char *url)
{
    size_t n = strnlen(url, TD_HTTP_CLIENT_MAX_URL);
    for (size_t i = 0; i < n; i++) {
        if (url[i] <= ' ' || url[i] >= 0x7f) {
            return false;
        }
    }
    return n > 0 && n < TD_HTTP_CLIENT_MAX_URL;
}

static td_err parse(struct call *c, const char *url)
{
    c->uri = url_is_plain(url) ? evhttp_uri_parse(url) : NULL;
    const char *scheme = c->uri != NULL ? evhttp_uri_get_scheme(c->uri) : NULL;
    const char *host = c->uri != NULL ? evhttp_uri_get_host(c->uri) : NULL;
    if (host == NULL || host[0] == 0 || scheme == NULL) {
        return fail(c, TD_ERR_BAD_REQUEST, "not a URL of the form http://host:port");
    }
    if (strcmp(scheme, "http") != 0) {
        return fail(c, TD_ERR_BAD_REQUEST, "only http:// is spoken here");
    }
    int port = evhttp_uri_get_port(c->uri);
    if (port == 0 || port > 65535 || strlen(host) >= sizeof c->host) {
        return fail(c, TD_ERR_BAD_REQUEST, "host or port out of range");
    }
    bool v6 = host[0] == '[';
    (void)snprintf(c->host, sizeof c->host, "%.*s", (int)(strlen(host) - (v6 ? 2 : 0)), host + v6);
    c->port = (uint16_t)(port < 0 ? 80 : port);
    const char *path = evhttp_uri_get_path(c->uri), *query = evhttp_uri_get_query(c->uri);
    (void)snprintf(c->target, sizeof c->target, "%s%s%s", path[0] != 0 ? path : "/",
                   query != NULL ? "?" : "", query != NULL ? query : "");
    return TD_OK;
}

static td_err connect_to(struct call *c, const struct timeval *limit)
{
    c->base = event_base_new();
    c->conn = c->base != NULL ? evhttp_connection_base_new(c->base, NULL, c->host, c->port) : NULL;
    if (c->conn == NULL) {
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    evhttp_connection_set_max_headers_size(c->conn, TD_HTTP_CLIENT_MAX_HEAD);
    evhttp_connection_set_max_body_size(c->conn, (ev_ssize_t)c->max_body);
    evhttp_connection_set_timeout_tv(c->conn, limit);
    return TD_OK;
}

static td_err send_request(struct call *c)
{
    char authority[300];
    bool v6 = strchr(c->host, ':') != NULL;
    (void)snprintf(authority, sizeof authority, "%s%s%s:%u", v6 ? "[" : "", c->host, v6 ? "]" : "",
                   c->port);
    struct evhttp_request *req = evhttp_request_new(on_done, c);
    if (req == NULL) {
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    evhttp_request_set_error_cb(req, on_error);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    struct evbuffer *body = evhttp_request_get_output_buffer(req);
    if (evhttp_add_header(headers, "Host", authority) != 0 ||
        evhttp_add_header(headers, "Connection", "close") != 0 ||
        (c->post != NULL && (evhttp_add_header(headers, "Content-Type", c->post->type) != 0 ||
                             evbuffer_add(body, c->post->text, strlen(c->post->text)) != 0))) {
        evhttp_request_free(req);
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    errno = 0;
    /* The request is libevent's from here, also on failure. */
    int rc = evhttp_make_request(c->conn, req, c->post != NULL ? EVHTTP_REQ_POST : EVHTTP_REQ_GET,
                                 c->target);
    int dns = bufferevent_socket_get_dns_error(evhttp_connection_get_bufferevent(c->conn));
    if (dns != 0) {
        return fail(c, TD_ERR_ADDRESS, gai_strerror(dns));
    }
    return rc == 0 ? TD_OK : fail(c, TD_ERR_IO, "the request cannot be sent");
}

static td_err run(struct call *c, const char *url, int64_t timeout_us)
{
    struct timeval limit = {.tv_sec = timeout_us / 1000000, .tv_usec = timeout_us % 1000000};
    TD_TRY(parse(c, url));
    TD_TRY(connect_to(c, &limit));
    TD_TRY(send_request(c));
    /* The connection's own time limit is for silence; this one is for the whole. */
    if (!c->finished && event_base_loopexit(c->base, &limit) != 0) {
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    while (!c->finished && event_base_dispatch(c->base) == 0 && !event_base_got_exit(c->base)) {
    }
    return c->finished ? c->err : fail(c, TD_ERR_BUDGET, "no answer in time");
}

td_err td_http_client_check(const char *url, char *err_text, size_t err_cap)
{
    struct call *c = td_zalloc(1, sizeof *c);
    td_err err = c != NULL ? parse(c, url) : TD_ERR_NO_MEMORY;
    if (err != TD_OK) {
        (void)snprintf(err_text, err_cap, "%s", c != NULL ? c->text : "out of memory");
    }
    if (c != NULL) {
        call_fini(c);
        free(c);
    }
    return err;
}

td_err td_http_client_get(const char *url, int64_t timeout_us, size_t max_body,
                          struct td_http_client_answer *out, char *err_text, size_t err_cap)
{
    return td_http_client_post(url, NULL, timeout_us, max_body, out, err_text, err_cap);
}

td_err td_http_client_post(const char *url, const struct td_http_client_body *body,
                           int64_t timeout_us, size_t max_body, struct td_http_client_answer *out,
                           char *err_text, size_t err_cap)
{
    struct call *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        (void)snprintf(err_text, err_cap, "out of memory");
        return TD_ERR_NO_MEMORY;
    }
    c->max_body = max_body;
    c->post = body;
    td_err err = run(c, url, timeout_us);
    if (err == TD_OK) {
        *out = c->answer;
        c->answer.body = (struct td_buf){0};
    } else {
        (void)snprintf(err_text, err_cap, "%s", c->text);
    }
    call_fini(c);
    free(c);
    return err;
}

void td_http_client_answer_fini(struct td_http_client_answer *a)
{
    td_buf_fini(&a->body);
}
