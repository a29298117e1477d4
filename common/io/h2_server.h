/* h2_server.h - HTTP/2 for gRPC: connections, streams, deadlines, limits, back-pressure.
 *
 * What: nghttp2 behind the acceptor that HTTP uses, in the same loop. Requests come as events of a stream; an answer is a
 * head, bytes and trailers. Cleartext with prior knowledge, or TLS with ALPN h2.
 * Not: gRPC (grpc_server.h), server push, priorities.
 * Guard: caps on connections, streams, header lists and unsent bytes; a bucket for each kind of useless frame
 * (h2_guard.h); deadlines for the preface, for a request's bytes, for a stream and for a connection that take no bytes, for
 * an idle connection. Reading stops while a connection's own output waits.
 * Writes never call back: a stream that is lost is told by `gone` in a later pass. Owner: the creator. Thread: loop.
 * Failure: creation fails with an error; a bad client loses its stream or its connection.
 */
#ifndef TD_IO_H2_SERVER_H
#define TD_IO_H2_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/http_parse.h"
#include "common/io/loop.h"

struct bufferevent;
struct td_acceptor;
struct td_peer;
struct td_tls;
struct td_h2_server;
struct td_h2_stream; /* one request and its answer */

struct td_h2_server_stats {
    uint64_t connections, refused_connections, requests, malformed, floods, timeouts, slow_readers,
        resets; /* streams that ended before their answer was complete */
    uint64_t request_bytes, response_bytes;
    uint32_t open, streams;
    size_t unsent_bytes;
};

struct td_h2_ops {
    /* The head is complete: td_h2_stream_request is valid until `gone`. */
    void (*request)(void *arg, struct td_h2_stream *s);
    void (*data)(void *arg, struct td_h2_stream *s, const uint8_t *data, size_t len);
    /* The client has said everything. */
    void (*end)(void *arg, struct td_h2_stream *s);
    /* Once for each `request`: the stream is over, answered or not; it is dead afterwards. */
    void (*gone)(void *arg, struct td_h2_stream *s);
};

struct td_h2_server_params {
    struct td_loop *loop;
    /* Numeric address or "localhost"; NULL: no door of its own, connections are adopted. */
    const char *host;
    uint16_t port;      /* 0: a free one */
    const char *option; /* that chose host and port, for the log; NULL: none */
    struct td_tls *tls; /* borrowed; NULL: cleartext */
    uint32_t max_connections, max_per_address;
    uint32_t max_streams;   /* at once on a connection */
    size_t max_header_list; /* bytes of a request's headers, counted as HTTP/2 does */
    int64_t preface_us, body_us, idle_us, write_stall_us;
    size_t high_water; /* unsent bytes of a stream */
    size_t max_unsent; /* of all streams together: above it, the one with the most is cut */
    const struct td_h2_ops *ops;
    void *arg;
};

/* Limits of interfaces.md 9.2 for everything but loop, host, port and ops. */
void td_h2_server_defaults(struct td_h2_server_params *p);
td_err td_h2_server_create(const struct td_h2_server_params *p,
                           struct td_h2_server **out_server) TD_MUST_CHECK;
/* Closes every connection; each stream's `gone` is called. */
struct td_h2_server *td_h2_server_destroy(struct td_h2_server *s);
/* Takes a connection that another server of common/io has accepted and that turned out to speak HTTP/2 (its first bytes are
 * still in bev's input); `who` stays counted by `acceptor`, which must outlive this server. False: not taken. */
bool td_h2_server_adopt(struct td_h2_server *s, struct bufferevent *bev, struct td_peer *who,
                        struct td_acceptor *acceptor);
/* 0 without a door of its own. */
uint16_t td_h2_server_port(const struct td_h2_server *s);
/* No more connections; clients are told to go elsewhere (GOAWAY, twice, so that no request is lost on the way); what runs
 * goes on, then the connection closes. */
void td_h2_server_drain(struct td_h2_server *s);
/* Streams not over, without those in the background, and connections with bytes still to be written. */
uint32_t td_h2_server_busy(const struct td_h2_server *s);
void td_h2_server_stats(const struct td_h2_server *s, struct td_h2_server_stats *out);

/* Only method, path and headers are set. */
const struct td_http_request *td_h2_stream_request(const struct td_h2_stream *s);
/* Its client has shown a certificate that the CA of clients signed. */
bool td_h2_stream_verified(const struct td_h2_stream *s);
const char *td_h2_stream_peer(const struct td_h2_stream *s);
void td_h2_stream_set_user(struct td_h2_stream *s, void *user);
void *td_h2_stream_user(const struct td_h2_stream *s);
/* It was cut because the client did not read: known when it is gone. */
bool td_h2_stream_was_slow(const struct td_h2_stream *s);
/* A stream that may stay open for ever (a watch): a drain does not wait for it. */
void td_h2_stream_set_background(struct td_h2_stream *s);
/* The client's next bytes must have come by then, unless it has ended; the default is body_us after the head. */
void td_h2_stream_set_deadline(struct td_h2_stream *s, int64_t at_us);

/* The head of the answer, once; names in lower case. `end`: nothing follows (no bytes, no trailers). */
void td_h2_respond(struct td_h2_stream *s, int status, const struct td_http_header *headers,
                   uint32_t n, bool end);
/* TD_ERR_FULL: the client takes too little; the stream is reset. TD_ERR_CLOSED: it is over. */
td_err td_h2_write(struct td_h2_stream *s, const void *data, size_t len) TD_MUST_CHECK;
/* Calls fn once, in a later pass, when the connection has taken all that was written: for an answer larger than high_water, which
 * is written piece by piece. Requires that something is unsent. Never called for a stream that is over. */
void td_h2_stream_on_empty(struct td_h2_stream *s, void (*fn)(void *arg), void *arg);
/* The answer is complete. A client that has not said everything is told to stop. */
void td_h2_end(struct td_h2_stream *s, const struct td_http_header *trailers, uint32_t n);
/* Cuts the stream: `calm` says that the client asked too much of us, else it is a plain cancel. */
void td_h2_reset(struct td_h2_stream *s, bool calm);

#endif
