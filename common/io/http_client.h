/* http_client.h - one HTTP request, blocking: what tandemctl and the span exporter are built on.
 *
 * What: GET a URL, or POST a text to it, wait for the whole answer, give it back. Any status is an answer. https:// where the
 * caller brings the trust for it.
 * Not: a client for a loop thread (it blocks), no redirects, no kept connections.
 * Owner and thread: the caller; it makes an event base of its own for each call.
 * Bounds: TD_HTTP_CLIENT_MAX_HEAD bytes of headers, max_body bytes of body, timeout_us in all (looking the name up is the
 * C library's and not counted).
 * Failure: TD_ERR_BAD_REQUEST not a URL that we speak, TD_ERR_ADDRESS its host is unknown, TD_ERR_PEER_LOST nobody
 * listens or it closed early, TD_ERR_PEER_AUTH TLS failed, TD_ERR_BUDGET the time is over, TD_ERR_PROTOCOL the answer is not HTTP, TD_ERR_TOO_LARGE
 * the body does not fit; each with a sentence for the operator. Nothing is logged.
 */
#ifndef TD_IO_HTTP_CLIENT_H
#define TD_IO_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"

#define TD_HTTP_CLIENT_MAX_HEAD 16384
#define TD_HTTP_CLIENT_MAX_URL  2048

struct td_http_client_answer {
    int status;
    struct td_buf body; /* owned: td_http_client_answer_fini() */
};

struct td_http_client_body {
    const char *type, *text; /* Content-Type and what it is of */
};

struct td_tls_client;

struct td_http_client_header {
    const char *name, *value;
};

struct td_http_client_request {
    const char *url;
    const struct td_http_client_body *body;      /* NULL: a GET */
    const struct td_http_client_header *headers; /* beside our own */
    uint32_t n_headers;
    int64_t timeout_us;
    size_t max_body;
    const struct td_tls_client *tls; /* for https://; NULL: only http:// is spoken */
};

/* On failure *out is untouched and err_text (err_cap bytes) says why. */
td_err td_http_client_run(const struct td_http_client_request *r, struct td_http_client_answer *out,
                          char *err_text, size_t err_cap) TD_MUST_CHECK;
/* The same without TLS. */
td_err td_http_client_get(const char *url, int64_t timeout_us, size_t max_body,
                          struct td_http_client_answer *out, char *err_text,
                          size_t err_cap) TD_MUST_CHECK;
/* body NULL: a GET. */
td_err td_http_client_post(const char *url, const struct td_http_client_body *body,
                           int64_t timeout_us, size_t max_body, struct td_http_client_answer *out,
                           char *err_text, size_t err_cap) TD_MUST_CHECK;
/* Whether the URL is one that we speak, with `tls` (NULL: none): no request is made. */
td_err td_http_client_check(const char *url, const struct td_tls_client *tls, char *err_text,
                            size_t err_cap) TD_MUST_CHECK;
void td_http_client_answer_fini(struct td_http_client_answer *a);

#endif
