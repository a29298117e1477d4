/* h2_server_int.h - what the parts of the HTTP/2 server share: h2_server.c (connections: bytes, passes, time) and
 * h2_server_stream.c (streams: what their owner says and asks).
 *
 * Not for other modules. Owner: the server owns connections, a connection its streams. Thread: loop. Bounds and failure: those
 * of h2_server.h.
 */
#ifndef TD_IO_H2_SERVER_INT_H
#define TD_IO_H2_SERVER_INT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <event2/util.h>
#include <nghttp2/nghttp2.h>

#include "common/base/buf.h"
#include "common/io/acceptor.h"
#include "common/io/h2_guard.h"
#include "common/io/h2_server.h"

struct bufferevent;
struct evbuffer;
struct event;
struct td_timer;

#define TD__H2_STREAM_MAGIC 0x48325331u

struct td__h2_conn;

struct td_h2_stream {
    uint32_t magic;
    int32_t id;
    struct td__h2_conn *conn; /* borrowed */
    struct td_h2_stream *prev, *next;
    struct td_http_request request;
    struct td_buf head; /* owned: name, 0, value, 0 of each header */
    uint32_t at[TD_HTTP_MAX_HEADERS], n_at;
    size_t header_list;
    bool refused;   /* the head broke a limit: the owner never hears of it */
    bool announced; /* the owner has */
    bool heard;     /* the client has ended */
    bool responded, ended, over, background;
    bool slow;              /* cut because the client does not read */
    struct evbuffer *out;   /* owned: what the client has not taken; NULL before the first write */
    struct td_buf trailers; /* owned: like head */
    uint32_t n_trailers;
    int64_t deadline_us;      /* of the client's bytes */
    int64_t progress_us;      /* the client took bytes, or there were none to take */
    void (*empty)(void *arg); /* NULL: nobody waits for it */
    void *empty_arg;
    bool emptied; /* it is to be told */
    void *user;
};

struct td__h2_conn {
    struct td_h2_server *server; /* borrowed */
    struct td__h2_conn *prev, *next, *next_dirty;
    struct td_peer peer;
    struct td_acceptor *acceptor; /* borrowed: who counts it */
    struct bufferevent *bev;      /* owned */
    nghttp2_session *session;     /* owned */
    struct td_h2_stream *streams;
    uint32_t n_streams;
    size_t unsent; /* bytes of its streams */
    struct td_h2_guard guard;
    bool busy;      /* inside nghttp2 */
    bool dirty;     /* in the list of those to flush */
    bool settled;   /* the client's first SETTINGS came */
    bool calmed;    /* told to go: floods */
    bool notified;  /* of the drain */
    bool lingering; /* shut down; what still comes is dropped */
    bool dead;
    bool emptied;     /* one of its streams is */
    int64_t since_us; /* accepted; later: last time there was a stream; lingering: since */
    uint64_t put_bytes, sent_seen;
    int64_t sent_us; /* output was empty or moved */
};

struct td_h2_server {
    struct td_h2_server_params p;
    struct td_acceptor *acceptor; /* owned */
    nghttp2_session_callbacks *callbacks;
    nghttp2_option *option;
    struct td__h2_conn *conns, *dead, *dirty;
    struct event *flusher, *reaper, *emptier; /* owned: deferred steps */
    struct td_timer *sweeper;                 /* owned */
    int64_t sweep_us;
    bool draining;
    struct td_h2_server_stats stats;
};

/* h2_server_stream.c */
/* Into the connection's list; NULL when out of memory. */
struct td_h2_stream *td__h2_stream_new(struct td__h2_conn *c, int32_t id);
/* Tells the owner that knew it, and frees it. */
void td__h2_stream_over(struct td_h2_stream *s);
/* Bytes that the client has not taken. */
size_t td__h2_unsent(const struct td_h2_stream *s);
/* The server's deferred step: tells owners whose streams are empty. */
void td__h2_on_emptied(evutil_socket_t fd, short what, void *arg);

/* h2_server.c: nghttp2 is asked for the connection's bytes in a pass of its own. */
void td__h2_flush_later(struct td__h2_conn *c);

#endif
