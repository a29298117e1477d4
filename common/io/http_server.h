/* http_server.h - HTTP/1.1 for clients, probes and admin pages: connections, deadlines, answers,
 * streams.
 *
 * What: listens, reads requests through the strict parser of http_parse.h, hands each to a handler,
 * writes its answer, whole or as a stream (chunked). Built on libevent's listener and bufferevents;
 * why not evhttp: docs/decisions/0002-own-http-head.md.
 * Guard: caps on connections (in all and per address), a deadline for the head and for the body
 * with a minimum rate, a write that makes no progress for write_stall_us is a lost client, a stream
 * whose unsent bytes pass high_water is a lost client. One request at a time per connection;
 * pipelined ones wait. Owner: the creator. Thread: loop. Failure: creation fails with an error; a
 * bad client loses only its own connection.
 */
#ifndef TD_IO_HTTP_SERVER_H
#define TD_IO_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/http_parse.h"
#include "common/io/loop.h"

struct td_http_server;
struct td_tls;
struct td_h2_server;
struct td_http_exchange; /* one request and its answer */

struct td_http_server_stats {
    uint64_t connections, refused_connections, requests, malformed, timeouts, gone, slow_readers;
    uint64_t request_bytes, response_bytes;
    uint32_t open;
};

/* Must answer (now or later) by exactly one of td_http_respond, td_http_stream_start..end or abort, unless
 * `gone` is called first. The request is valid until then. */
typedef void (*td_http_handler)(void *arg, struct td_http_exchange *x);

struct td_http_server_params {
    struct td_loop *loop;
    const char *host;   /* numeric address or "localhost"; never empty */
    uint16_t port;      /* 0: a free one */
    const char *option; /* that chose host and port, for the log; NULL: none */
    struct td_tls *tls; /* borrowed; NULL: cleartext */
    /* With tls: TD_ALPN_HTTP, or TD_ALPN_BOTH where HTTP/2 is handed on (td_http_server_set_h2). */
    const char *alpn;
    struct td_http_limits limits;
    uint32_t max_connections, max_per_address;
    int64_t head_deadline_us, body_deadline_us, idle_us, write_stall_us;
    uint64_t min_body_rate; /* bytes per second, once body_deadline_us / 4 has passed; 0: off */
    size_t high_water;      /* unsent bytes of a stream */
    size_t max_body_bytes;  /* of all unanswered requests together; beyond it: 429 */
    td_http_handler handler;
    void *arg;
    /* Body of an error the server itself answers with (malformed, too large, too slow): appends it.
     */
    void (*error_body)(td_err err, const char *text, struct td_buf *out);
};

/* Limits of interfaces.md 9.2 for everything but loop, host, port and the callbacks. */
void td_http_server_defaults(struct td_http_server_params *p);
td_err td_http_server_create(const struct td_http_server_params *p,
                             struct td_http_server **out_server) TD_MUST_CHECK;
/* Closes every connection without further callbacks. */
struct td_http_server *td_http_server_destroy(struct td_http_server *s);
/* Connections that begin with HTTP/2's preface go to `h2` from now on; NULL: they are malformed requests. */
void td_http_server_set_h2(struct td_http_server *s, struct td_h2_server *h2);
uint16_t td_http_server_port(const struct td_http_server *s);
/* Accepts no more connections and closes idle ones; answers in progress go on and then close. */
void td_http_server_drain(struct td_http_server *s);
/* Exchanges not finished. */
uint32_t td_http_server_busy(const struct td_http_server *s);
void td_http_server_stats(const struct td_http_server *s, struct td_http_server_stats *out);

const struct td_http_request *td_http_exchange_request(const struct td_http_exchange *x);
/* "127.0.0.1:5123"; valid with the exchange. */
const char *td_http_exchange_peer(const struct td_http_exchange *x);
/* The client has shown a certificate that the CA of clients signed. */
bool td_http_exchange_verified(const struct td_http_exchange *x);
/* Called once when the client is lost before the answer is complete; x is dead afterwards. */
void td_http_exchange_on_gone(struct td_http_exchange *x, void (*fn)(void *arg), void *arg);

/* Extra headers are "name: value" pairs; names and values are ours, not the client's. */
void td_http_respond(struct td_http_exchange *x, int status, const struct td_http_header *extra,
                     uint32_t n_extra, const char *content_type, const void *body, size_t len);
void td_http_stream_start(struct td_http_exchange *x, int status,
                          const struct td_http_header *extra, uint32_t n_extra,
                          const char *content_type);
/* TD_ERR_FULL: the client reads too slowly; `gone` is called in the next pass. */
td_err td_http_stream_write(struct td_http_exchange *x, const void *data, size_t len) TD_MUST_CHECK;
void td_http_stream_end(struct td_http_exchange *x);
/* Cuts the connection, so that the client cannot take what came for a whole answer. */
void td_http_stream_abort(struct td_http_exchange *x);
const char *td_http_status_text(int status);

#endif
