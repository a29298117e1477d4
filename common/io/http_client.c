#include "common/io/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/keyvalq_struct.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "common/base/mem.h"
#include "common/io/tls.h"
#include "common/io/tls_client.h"

/* One request on its way. */
struct call {
    struct event_base *base;        /* owned */
    struct evhttp_uri *uri;         /* owned */
    struct evhttp_connection *conn; /* owned */
    char host[256], target[TD_HTTP_CLIENT_MAX_URL];
    uint16_t port;
    const struct td_http_client_request *r; /* borrowed */
    bool tls;
    struct td_http_client_answer answer;
    char alert[160]; /* of TLS; "": none */
    bool shaken;     /* the handshake of TLS is done */
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

/* Alerts are heard as they pass: libevent has wiped the session by the time that it tells of the end. */
static void on_tls(const SSL *ssl, int where, int code)
{
    struct call *c = SSL_get_app_data(ssl);
    c->shaken = c->shaken || where == SSL_CB_HANDSHAKE_DONE;
    if ((where & SSL_CB_ALERT) == 0 || SSL_alert_type_string(code)[0] != 'F' || c->alert[0] != 0) {
        return;
    }
    if ((where & SSL_CB_READ) != 0) {
        (void)snprintf(c->alert, sizeof c->alert, "TLS failed: the server refuses us: %s",
                       SSL_alert_desc_string_long(code));
    } else {
        td_tls_client_why(ssl, ERR_peek_error(), c->alert, sizeof c->alert);
    }
}

/* True when TLS is why: the connection object still is. */
static bool tls_failed(struct call *c)
{
    struct bufferevent *bev = c->tls ? evhttp_connection_get_bufferevent(c->conn) : NULL;
    const SSL *ssl = bev != NULL ? bufferevent_openssl_get_ssl(bev) : NULL;
    unsigned long code = ssl != NULL ? bufferevent_get_openssl_error(bev) : 0;
    if (ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        code = 0;
    }
    if (c->alert[0] != 0) {
        (void)snprintf(c->text, sizeof c->text, "%s", c->alert);
    } else if (code != 0) {
        td_tls_client_why(ssl, code, c->text, sizeof c->text);
    } else {
        return false;
    }
    c->err = TD_ERR_PEER_AUTH;
    return true;
}

static void on_error(enum evhttp_request_error error, void *arg)
{
    struct call *c = arg;
    if (error != EVREQ_HTTP_TIMEOUT && tls_failed(c)) {
        return;
    }
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
    td_buf_init(&c->answer.body, c->r->max_body + 1);
    if (n > c->r->max_body) {
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
    if (c->err == TD_OK && (req == NULL || evhttp_request_get_response_code(req) == 0) &&
        !tls_failed(c)) {
        (void)fail(c, TD_ERR_PEER_LOST,
                   c->shaken ? "the server closed the connection: does it want another client "
                               "certificate?"
                   : never   ? "connection refused, or no route leads there"
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
    c->tls = c->r->tls != NULL && strcmp(scheme, "https") == 0;
    if (!c->tls && strcmp(scheme, "http") != 0) {
        return fail(c, TD_ERR_BAD_REQUEST,
                    c->r->tls != NULL ? "only http:// and https:// are spoken here"
                                      : "only http:// is spoken here");
    }
    int port = evhttp_uri_get_port(c->uri);
    if (port == 0 || port > 65535 || strlen(host) >= sizeof c->host) {
        return fail(c, TD_ERR_BAD_REQUEST, "host or port out of range");
    }
    bool v6 = host[0] == '[';
    (void)snprintf(c->host, sizeof c->host, "%.*s", (int)(strlen(host) - (v6 ? 2 : 0)), host + v6);
    c->port = (uint16_t)(port >= 0 ? port : c->tls ? 443 : 80);
    const char *path = evhttp_uri_get_path(c->uri), *query = evhttp_uri_get_query(c->uri);
    (void)snprintf(c->target, sizeof c->target, "%s%s%s", path[0] != 0 ? path : "/",
                   query != NULL ? "?" : "", query != NULL ? query : "");
    return TD_OK;
}

/* NULL: libevent makes one for cleartext; with TLS, out of memory. */
static struct bufferevent *make_bev(struct call *c)
{
    SSL *ssl = c->tls ? td_tls_client_session(c->r->tls, c->host, TD_ALPN_HTTP) : NULL;
    if (ssl == NULL) {
        return NULL;
    }
    (void)SSL_set_app_data(ssl, c);
    SSL_set_info_callback(ssl, on_tls);
    struct bufferevent *bev = bufferevent_openssl_socket_new(
        c->base, -1, ssl, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE);
    if (bev == NULL) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* a length says what is whole */
    return bev;
}

static td_err connect_to(struct call *c, const struct timeval *limit)
{
    c->base = event_base_new();
    struct bufferevent *bev = c->base != NULL ? make_bev(c) : NULL;
    c->conn = bev != NULL || (c->base != NULL && !c->tls)
                  ? evhttp_connection_base_bufferevent_new(c->base, NULL, bev, c->host, c->port)
                  : NULL;
    if (c->conn == NULL) {
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    evhttp_connection_set_max_headers_size(c->conn, TD_HTTP_CLIENT_MAX_HEAD);
    evhttp_connection_set_max_body_size(c->conn, (ev_ssize_t)c->r->max_body);
    evhttp_connection_set_timeout_tv(c->conn, limit);
    return TD_OK;
}

static bool add_headers(const struct call *c, struct evkeyvalq *headers, const char *authority)
{
    bool ok =
        evhttp_add_header(headers, "Host", authority) == 0 &&
        evhttp_add_header(headers, "Connection", "close") == 0 &&
        (c->r->body == NULL || evhttp_add_header(headers, "Content-Type", c->r->body->type) == 0);
    for (uint32_t i = 0; ok && i < c->r->n_headers; i++) {
        ok = evhttp_add_header(headers, c->r->headers[i].name, c->r->headers[i].value) == 0;
    }
    return ok;
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
    if (!add_headers(c, headers, authority) ||
        (c->r->body != NULL &&
         evbuffer_add(body, c->r->body->text, strlen(c->r->body->text)) != 0)) {
        evhttp_request_free(req);
        return fail(c, TD_ERR_NO_MEMORY, "out of memory");
    }
    errno = 0;
    /* The request is libevent's from here, also on failure. */
    int rc = evhttp_make_request(c->conn, req,
                                 c->r->body != NULL ? EVHTTP_REQ_POST : EVHTTP_REQ_GET, c->target);
    int dns = bufferevent_socket_get_dns_error(evhttp_connection_get_bufferevent(c->conn));
    if (dns != 0) {
        return fail(c, TD_ERR_ADDRESS, gai_strerror(dns));
    }
    return rc == 0 ? TD_OK : fail(c, TD_ERR_IO, "the request cannot be sent");
}

static td_err run(struct call *c)
{
    struct timeval limit = {.tv_sec = c->r->timeout_us / 1000000,
                            .tv_usec = c->r->timeout_us % 1000000};
    TD_TRY(parse(c, c->r->url));
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

td_err td_http_client_check(const char *url, const struct td_tls_client *tls, char *err_text,
                            size_t err_cap)
{
    const struct td_http_client_request r = {.url = url, .tls = tls};
    struct call *c = td_zalloc(1, sizeof *c);
    td_err err = TD_ERR_NO_MEMORY;
    if (c != NULL) {
        c->r = &r;
        err = parse(c, url);
    }
    if (err != TD_OK) {
        (void)snprintf(err_text, err_cap, "%s", c != NULL ? c->text : "out of memory");
    }
    if (c != NULL) {
        call_fini(c);
        free(c);
    }
    return err;
}

td_err td_http_client_run(const struct td_http_client_request *r, struct td_http_client_answer *out,
                          char *err_text, size_t err_cap)
{
    struct call *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        (void)snprintf(err_text, err_cap, "out of memory");
        return TD_ERR_NO_MEMORY;
    }
    c->r = r;
    td_err err = run(c);
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

td_err td_http_client_get(const char *url, int64_t timeout_us, size_t max_body,
                          struct td_http_client_answer *out, char *err_text, size_t err_cap)
{
    return td_http_client_post(url, NULL, timeout_us, max_body, out, err_text, err_cap);
}

td_err td_http_client_post(const char *url, const struct td_http_client_body *body,
                           int64_t timeout_us, size_t max_body, struct td_http_client_answer *out,
                           char *err_text, size_t err_cap)
{
    const struct td_http_client_request r = {
        .url = url, .body = body, .timeout_us = timeout_us, .max_body = max_body};
    return td_http_client_run(&r, out, err_text, err_cap);
}

void td_http_client_answer_fini(struct td_http_client_answer *a)
{
    td_buf_fini(&a->body);
}
