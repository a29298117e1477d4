/* Design: a connection is a bufferevent, an nghttp2 session and a list of streams. Bytes in go through
 * nghttp2_session_mem_recv, bytes out come from nghttp2_session_mem_send, both only in passes of our own (on_read,
 * on_written, flush, sweep), never below a call of the owner: so the owner's writes only fill a stream's buffer and mark
 * the connection, and nothing that it holds dies under it. Unsent bytes wait in the stream, not in the connection, because
 * there HTTP/2's windows apply to each; the connection's own output is kept short. One timer sweeps all deadlines.
 */
#define TD_LOG_ROOM "io"
#include "common/io/h2_server.h"

#include <stdio.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <nghttp2/nghttp2.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/acceptor.h"
#include "common/io/h2_guard.h"
#include "common/io/tls.h"

#define HS_MAGIC       0x48325331u
#define INPUT_HIGH     (64u << 10)
#define OUTPUT_HIGH    (256u << 10) /* of a connection: above it, nothing is read from it */
#define LINGER_US      2000000
#define SWEEP_MIN_US   10000
#define SWEEP_MAX_US   500000
#define TRAILERS_MAX   16384u
#define MAX_NV         24
#define MAX_OUT_ACKS   256  /* SETTINGS and PING answers waiting, inside nghttp2 */
#define RESETS_AT_ONCE 4096 /* nghttp2's own bucket; ours (h2_guard) is smaller */
#define RESETS_A_S     512

struct conn;

struct td_h2_stream {
    uint32_t magic;
    int32_t id;
    struct conn *conn; /* borrowed */
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

struct conn {
    struct td_h2_server *server; /* borrowed */
    struct conn *prev, *next, *next_dirty;
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
    struct conn *conns, *dead, *dirty;
    struct event *flusher, *reaper, *emptier; /* owned: deferred steps */
    struct td_timer *sweeper;                 /* owned */
    int64_t sweep_us;
    bool draining;
    struct td_h2_server_stats stats;
};

void td_h2_server_defaults(struct td_h2_server_params *p)
{
    memset(p, 0, sizeof *p);
    p->max_connections = 1024;
    p->max_per_address = 1024;
    p->max_streams = 1024;
    p->max_header_list = 16u << 10;
    p->preface_us = 10000000;
    p->body_us = 30000000;
    p->idle_us = 300000000;
    p->write_stall_us = 30000000;
    p->high_water = 1u << 20;
    p->max_unsent = 256u << 20;
}

/* ---- life of a stream ---- */

static struct td_h2_stream *stream_new(struct conn *c, int32_t id)
{
    struct td_h2_stream *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->magic = HS_MAGIC;
    s->id = id;
    s->conn = c;
    s->request.method = s->request.path = s->request.query = "";
    s->progress_us = td_now_us();
    s->deadline_us = s->progress_us + c->server->p.body_us;
    td_buf_init(&s->head, c->server->p.max_header_list * 2);
    td_buf_init(&s->trailers, TRAILERS_MAX);
    s->next = c->streams;
    if (c->streams != NULL) {
        c->streams->prev = s;
    }
    c->streams = s;
    c->n_streams++;
    c->server->stats.streams++;
    return s;
}

static size_t unsent(const struct td_h2_stream *s)
{
    return s->out != NULL ? evbuffer_get_length(s->out) : 0;
}

/* So many bytes wait no longer. */
static void taken(struct td_h2_stream *s, size_t n)
{
    s->conn->unsent -= n;
    s->conn->server->stats.unsent_bytes -= n;
}

static void stream_free(struct td_h2_stream *s)
{
    struct conn *c = s->conn;
    if (s->prev != NULL) {
        s->prev->next = s->next;
    } else {
        c->streams = s->next;
    }
    if (s->next != NULL) {
        s->next->prev = s->prev;
    }
    c->n_streams--;
    c->since_us = td_now_us();
    c->server->stats.streams--;
    taken(s, unsent(s));
    if (s->out != NULL) {
        evbuffer_free(s->out);
    }
    td_buf_fini(&s->head);
    td_buf_fini(&s->trailers);
    s->magic = 0;
    free(s);
}

static void stream_over(struct td_h2_stream *s)
{
    const struct td_h2_server *server = s->conn->server;
    s->over = true;
    if (s->announced) {
        server->p.ops->gone(server->p.arg, s);
    }
    stream_free(s);
}

/* ---- life of a connection ---- */

static void conn_free(struct conn *c)
{
    if (c->session != NULL) {
        nghttp2_session_del(c->session);
    }
    if (c->bev != NULL) {
        bufferevent_free(c->bev);
    }
    free(c);
}

static void reap(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct td_h2_server *s = arg;
    while (s->dead != NULL) {
        struct conn *c = s->dead;
        s->dead = c->next;
        conn_free(c);
    }
}

static void undirty(struct conn *c)
{
    struct conn **at = &c->server->dirty;
    while (c->dirty && *at != NULL && *at != c) {
        at = &(*at)->next_dirty;
    }
    if (c->dirty && *at == c) {
        *at = c->next_dirty;
    }
    c->dirty = false;
}

static void drop_streams(struct conn *c)
{
    while (c->streams != NULL) {
        struct td_h2_stream *s = c->streams;
        c->server->stats.resets += s->announced && !s->over ? 1 : 0;
        (void)nghttp2_session_set_stream_user_data(c->session, s->id, NULL);
        stream_over(s);
    }
}

static void kill_conn(struct conn *c)
{
    struct td_h2_server *s = c->server;
    if (c->dead) {
        return;
    }
    TD_INSIST(!c->busy);
    c->dead = true;
    undirty(c);
    td_acceptor_left(c->acceptor, &c->peer);
    s->stats.open--;
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        s->conns = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    bufferevent_setcb(c->bev, NULL, NULL, NULL, NULL);
    (void)bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    c->next = s->dead;
    s->dead = c;
    event_active(s->reaper, EV_TIMEOUT, 0);
    drop_streams(c);
}

static struct evbuffer *output(const struct conn *c)
{
    return bufferevent_get_output(c->bev);
}

/* Everything is said: the other end may still read it, so the socket is not simply closed. */
static void linger(struct conn *c)
{
    c->lingering = true;
    drop_streams(c);
    c->since_us = td_now_us();
    td_acceptor_say_end(c->bev);
    struct evbuffer *in = bufferevent_get_input(c->bev);
    (void)evbuffer_drain(in, evbuffer_get_length(in));
}

/* ---- out ---- */

/* Takes what nghttp2 wants to send, until the connection has enough of it. */
static bool pull(struct conn *c)
{
    const uint8_t *data = NULL;
    ssize_t n = 0;
    c->busy = true;
    while (evbuffer_get_length(output(c)) < OUTPUT_HIGH &&
           (n = nghttp2_session_mem_send(c->session, &data)) > 0) {
        c->server->stats.response_bytes += (uint64_t)n;
        c->put_bytes += (uint64_t)n;
        if (evbuffer_add(output(c), data, (size_t)n) != 0) {
            n = NGHTTP2_ERR_NOMEM;
            break;
        }
    }
    c->busy = false;
    return n >= 0;
}

static void flush_conn(struct conn *c)
{
    if (c->dead || c->lingering) {
        return;
    }
    if (!pull(c)) {
        TD_LOG(WARN, "out of memory for an answer", "peer=%s, closing", c->peer.name);
        kill_conn(c);
        return;
    }
    bool over =
        nghttp2_session_want_read(c->session) == 0 && nghttp2_session_want_write(c->session) == 0;
    if (over && evbuffer_get_length(output(c)) == 0) {
        linger(c);
    }
}

static void on_flush(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct td_h2_server *s = arg;
    while (s->dirty != NULL) {
        struct conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        flush_conn(c);
    }
}

static void flush_later(struct conn *c)
{
    if (!c->dirty && !c->dead) {
        c->dirty = true;
        c->next_dirty = c->server->dirty;
        c->server->dirty = c;
        event_active(c->server->flusher, EV_TIMEOUT, 0);
    }
}

/* Owners that waited may write again: such writes free nothing, so the lists stay what they are. */
static void on_emptied(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    const struct td_h2_server *server = arg;
    for (struct conn *c = server->conns; c != NULL; c = c->next) {
        for (struct td_h2_stream *s = c->emptied ? c->streams : NULL; s != NULL; s = s->next) {
            void (*fn)(void *) = s->emptied && !s->over && !s->ended ? s->empty : NULL;
            s->emptied = false;
            if (fn != NULL) {
                s->empty = NULL;
                fn(s->empty_arg);
            }
        }
        c->emptied = false;
    }
}

void td_h2_stream_on_empty(struct td_h2_stream *s, void (*fn)(void *arg), void *arg)
{
    TD_REQUIRE(s->magic == HS_MAGIC && unsent(s) > 0);
    s->empty = fn;
    s->empty_arg = arg;
}

static nghttp2_nv nv_of(const char *name, const char *value)
{
    return (nghttp2_nv){.name = (uint8_t *)(uintptr_t)name,
                        .namelen = strlen(name),
                        .value = (uint8_t *)(uintptr_t)value,
                        .valuelen = strlen(value)};
}

static void submit_trailers(struct td_h2_stream *s)
{
    nghttp2_nv nv[MAX_NV];
    const char *at = (const char *)s->trailers.data;
    for (uint32_t i = 0; i < s->n_trailers; i++) {
        const char *value = at + strlen(at) + 1;
        nv[i] = nv_of(at, value);
        at = value + strlen(value) + 1;
    }
    (void)nghttp2_submit_trailer(s->conn->session, s->id, nv, s->n_trailers);
}

/* nghttp2 asks for bytes of a stream. */
static ssize_t on_want_bytes(nghttp2_session *session, int32_t id, uint8_t *buf, size_t length,
                             uint32_t *flags, nghttp2_data_source *source, void *arg)
{
    (void)session;
    (void)id;
    (void)arg;
    struct td_h2_stream *s = source->ptr;
    if (s->over) {
        return NGHTTP2_ERR_DEFERRED; /* what it had is dropped; its RST_STREAM is on the way */
    }
    int n = s->out != NULL ? evbuffer_remove(s->out, buf, length) : 0;
    if (n > 0) {
        taken(s, (size_t)n);
        s->progress_us = td_now_us();
    }
    if (unsent(s) > 0) {
        return n;
    }
    if (s->empty != NULL && !s->ended) {
        s->emptied = s->conn->emptied = true;
        event_active(s->conn->server->emptier, EV_TIMEOUT, 0);
    }
    if (s->ended) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (s->n_trailers > 0) {
            *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
            submit_trailers(s);
        }
        return n > 0 ? n : 0;
    }
    return n > 0 ? n : NGHTTP2_ERR_DEFERRED;
}

void td_h2_respond(struct td_h2_stream *s, int status, const struct td_http_header *headers,
                   uint32_t n, bool end)
{
    TD_REQUIRE(s->magic == HS_MAGIC && !s->responded && n < MAX_NV);
    nghttp2_nv nv[MAX_NV];
    char text[16];
    (void)snprintf(text, sizeof text, "%d", status);
    nv[0] = nv_of(":status", text);
    for (uint32_t i = 0; i < n; i++) {
        nv[1 + i] = nv_of(headers[i].name, headers[i].value);
    }
    s->responded = true;
    s->ended = end;
    nghttp2_data_provider more = {.source.ptr = s, .read_callback = on_want_bytes};
    if (!s->over) {
        (void)nghttp2_submit_response(s->conn->session, s->id, nv, n + 1, end ? NULL : &more);
        flush_later(s->conn);
    }
}

/* The stream with the most unsent bytes of the connection with the most: when all together have too many, those who read must
 * not pay for those who do not. Walks all connections, and only then. */
static struct td_h2_stream *greediest(struct td_h2_stream *writer)
{
    struct conn *most = writer->conn;
    for (struct conn *c = most->server->conns; c != NULL; c = c->next) {
        most = c->unsent > most->unsent ? c : most;
    }
    struct td_h2_stream *found = most == writer->conn ? writer : most->streams;
    for (struct td_h2_stream *s = most->streams; s != NULL; s = s->next) {
        found = unsent(s) > unsent(found) ? s : found;
    }
    return found;
}

static void cut_slow_reader(struct td_h2_stream *s)
{
    TD_LOG(INFO, "client does not read", "peer=%s stream=%d unsent=%zu, resetting",
           s->conn->peer.name, s->id, unsent(s));
    s->conn->server->stats.slow_readers++;
    s->slow = true;
    td_h2_reset(s, true);
}

td_err td_h2_write(struct td_h2_stream *s, const void *data, size_t len)
{
    TD_REQUIRE(s->magic == HS_MAGIC && s->responded && !s->ended);
    struct td_h2_server *server = s->conn->server;
    if (s->over) {
        return TD_ERR_CLOSED;
    }
    if (s->out == NULL) {
        s->out = evbuffer_new();
    }
    if (unsent(s) == 0) {
        s->progress_us = td_now_us();
    }
    if (s->out == NULL || evbuffer_add(s->out, data, len) != 0) {
        td_h2_reset(s, false);
        return TD_ERR_NO_MEMORY;
    }
    s->conn->unsent += len;
    server->stats.unsent_bytes += len;
    if (unsent(s) > server->p.high_water) {
        cut_slow_reader(s);
    }
    while (server->stats.unsent_bytes > server->p.max_unsent) {
        cut_slow_reader(greediest(s));
    }
    if (s->over) {
        return TD_ERR_FULL;
    }
    (void)nghttp2_session_resume_data(s->conn->session, s->id); /* when it waits for bytes */
    flush_later(s->conn);
    return TD_OK;
}

static td_err keep_trailers(struct td_h2_stream *s, const struct td_http_header *t, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(td_buf_append(&s->trailers, t[i].name, strlen(t[i].name) + 1));
        TD_TRY(td_buf_append(&s->trailers, t[i].value, strlen(t[i].value) + 1));
        s->n_trailers++;
    }
    return TD_OK;
}

void td_h2_end(struct td_h2_stream *s, const struct td_http_header *trailers, uint32_t n)
{
    TD_REQUIRE(s->magic == HS_MAGIC && s->responded && n < MAX_NV);
    if (s->over || s->ended) {
        return;
    }
    if (keep_trailers(s, trailers, n) != TD_OK) {
        td_h2_reset(s, false);
        return;
    }
    s->ended = true;
    (void)nghttp2_session_resume_data(s->conn->session, s->id);
    flush_later(s->conn);
}

void td_h2_reset(struct td_h2_stream *s, bool calm)
{
    TD_REQUIRE(s->magic == HS_MAGIC);
    if (s->over) {
        return;
    }
    s->over = true; /* nothing more is taken; `gone` comes when nghttp2 closes it */
    if (s->out != NULL) {
        taken(s, unsent(s));
        (void)evbuffer_drain(s->out, evbuffer_get_length(s->out));
    }
    s->conn->server->stats.resets++;
    (void)nghttp2_submit_rst_stream(s->conn->session, NGHTTP2_FLAG_NONE, s->id,
                                    calm ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_CANCEL);
    flush_later(s->conn);
}

/* ---- in: what nghttp2 says ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct conn *c = arg;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    struct td_h2_stream *s = stream_new(c, frame->hd.stream_id);
    if (s == NULL) {
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    }
    (void)nghttp2_session_set_stream_user_data(session, s->id, s);
    return 0;
}

static void take_header(struct td_h2_stream *s, nghttp2_vec name, nghttp2_vec value)
{
    const struct td_h2_server_params *p = &s->conn->server->p;
    static const uint8_t zero = 0;
    uint32_t at = (uint32_t)s->head.len;
    s->header_list += name.len + value.len + 32;
    bool fits = s->header_list <= p->max_header_list && s->n_at < TD_HTTP_MAX_HEADERS &&
                td_buf_append(&s->head, name.base, name.len) == TD_OK &&
                td_buf_append(&s->head, &zero, 1) == TD_OK &&
                td_buf_append(&s->head, value.base, value.len) == TD_OK &&
                td_buf_append(&s->head, &zero, 1) == TD_OK;
    if (!fits) {
        TD_LOG(INFO, "request refused by the guard", "peer=%s stream=%d text=\"headers too large\"",
               s->conn->peer.name, s->id);
        s->refused = true;
        s->conn->server->stats.malformed++;
        td_h2_reset(s, true);
        return;
    }
    s->at[s->n_at++] = at;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, nghttp2_rcbuf *name,
                     nghttp2_rcbuf *value, uint8_t flags, void *arg)
{
    (void)flags;
    (void)arg;
    struct td_h2_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    bool request = frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST;
    if (s != NULL && request && !s->refused) { /* a client's trailers tell us nothing */
        take_header(s, nghttp2_rcbuf_get_buf(name), nghttp2_rcbuf_get_buf(value));
    }
    return 0;
}

/* Buffers grow, so the strings are found only now. */
static void resolve_head(struct td_h2_stream *s)
{
    struct td_http_request *r = &s->request;
    for (uint32_t i = 0; i < s->n_at; i++) {
        const char *name = (const char *)s->head.data + s->at[i];
        const char *value = name + strlen(name) + 1;
        if (strcmp(name, ":method") == 0) {
            r->method = value;
        } else if (strcmp(name, ":path") == 0) {
            r->path = value;
        } else if (name[0] != ':') {
            r->headers[r->n_headers++] = (struct td_http_header){.name = name, .value = value};
        }
    }
}

static void announce(struct td_h2_stream *s)
{
    struct td_h2_server *server = s->conn->server;
    if (!s->refused && !s->over) {
        resolve_head(s);
        s->announced = true;
        server->stats.requests++;
        server->p.ops->request(server->p.arg, s);
    }
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct conn *c = arg;
    struct td_h2_stream *s = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    if (frame->hd.type == NGHTTP2_SETTINGS && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
        c->settled = true;
    }
    if (s == NULL || (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA)) {
        return 0;
    }
    if (frame->hd.type == NGHTTP2_HEADERS && frame->headers.cat == NGHTTP2_HCAT_REQUEST) {
        announce(s);
    }
    if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
        s->heard = true;
        if (s->announced && !s->over) {
            c->server->p.ops->end(c->server->p.arg, s);
        }
    }
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
                   size_t len, void *arg)
{
    (void)flags;
    struct conn *c = arg;
    struct td_h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (s != NULL && s->announced && !s->over && !s->ended) {
        c->server->p.ops->data(c->server->p.arg, s, data, len);
    }
    return 0;
}

/* Every frame's header, before its payload: CONTINUATION too. */
static int on_frame_begin(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
    struct conn *c = arg;
    enum td_h2_class class_of = td_h2_class_of(hd->type, hd->flags, hd->length);
    if (c->calmed || td_h2_guard_take(&c->guard, td_now_us(), class_of)) {
        return 0;
    }
    TD_LOG(WARN, "flood of frames", "peer=%s class=%s, closing the connection", c->peer.name,
           td_h2_class_name(class_of));
    c->calmed = true;
    c->server->stats.floods++;
    (void)nghttp2_session_terminate_session(session, NGHTTP2_ENHANCE_YOUR_CALM);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
    (void)code;
    (void)arg;
    struct td_h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (s != NULL) {
        s->conn->server->stats.resets += s->announced && !s->ended && !s->over ? 1 : 0;
        stream_over(s);
    }
    return 0;
}

/* The answer is out and the client still talks: it need not. And grpc-go, for one, measures the path with a PING for each DATA
 * that it gets: those are no flood. */
static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct conn *c = arg;
    if (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) {
        td_h2_guard_give(&c->guard, TD_H2_PING);
        td_h2_guard_give(&c->guard, TD_H2_WINDOW); /* as many may open the window again */
    }
    const struct td_h2_stream *s =
        nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
    bool last = (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
                (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (s != NULL && last && !s->heard) {
        (void)nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_NO_ERROR);
    }
    return 0;
}

/* ---- in: bytes ---- */

static bool may_read(const struct conn *c)
{
    return !c->dead && !c->lingering && !c->calmed && evbuffer_get_length(output(c)) < OUTPUT_HIGH;
}

static bool feed(struct conn *c, const uint8_t *data, size_t len)
{
    c->busy = true;
    ssize_t n = nghttp2_session_mem_recv(c->session, data, len);
    c->busy = false;
    if (n == (ssize_t)len) {
        return true;
    }
    c->server->stats.malformed++;
    TD_LOG(INFO, "bytes that are not HTTP/2", "peer=%s text=\"%s\", closing", c->peer.name,
           nghttp2_strerror((int)n));
    return false;
}

static void process_input(struct conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    while (may_read(c) && evbuffer_get_length(in) > 0) {
        struct evbuffer_iovec v;
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1) {
            break;
        }
        size_t n = v.iov_len < INPUT_HIGH ? v.iov_len : INPUT_HIGH;
        c->server->stats.request_bytes += n;
        if (!feed(c, v.iov_base, n)) {
            kill_conn(c);
            return;
        }
        (void)evbuffer_drain(in, n);
        flush_conn(c);
    }
    if (c->calmed && !c->dead && !c->lingering) {
        (void)evbuffer_drain(in, evbuffer_get_length(in));
        flush_conn(c);
    }
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct conn *c = arg;
    if (c->lingering) {
        struct evbuffer *in = bufferevent_get_input(bev);
        (void)evbuffer_drain(in, evbuffer_get_length(in));
        return;
    }
    process_input(c);
}

static void on_written(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct conn *c = arg;
    flush_conn(c);
    process_input(c); /* it may have waited for this */
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct conn *c = arg;
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) != 0) {
        td_acceptor_log_error(bev, &c->peer);
        kill_conn(c);
    }
}

/* ---- time ---- */

static void sweep_streams(struct conn *c, int64_t now)
{
    struct td_h2_server *server = c->server;
    for (struct td_h2_stream *s = c->streams; s != NULL; s = s->next) {
        bool late = !s->heard && now >= s->deadline_us;
        bool stalled = unsent(s) > 0 && now - s->progress_us >= server->p.write_stall_us;
        if (s->over || (!late && !stalled)) {
            continue;
        }
        server->stats.timeouts++;
        TD_LOG(INFO, "stream made no progress", "peer=%s stream=%d what=%s, resetting",
               c->peer.name, s->id, stalled ? "answer" : "request");
        s->slow = stalled;
        td_h2_reset(s, stalled);
    }
}

/* The connection as a whole: false when it was ended. */
static bool sweep_conn(struct conn *c, int64_t now)
{
    const struct td_h2_server_params *p = &c->server->p;
    size_t waiting = evbuffer_get_length(output(c));
    uint64_t sent = c->put_bytes - waiting;
    if (waiting == 0 || sent != c->sent_seen) {
        c->sent_us = now;
        c->sent_seen = sent;
    }
    bool idle = c->n_streams == 0;
    bool dead = (c->lingering && now - c->since_us >= LINGER_US) ||
                (!c->settled && now - c->since_us >= p->preface_us) ||
                now - c->sent_us >= p->write_stall_us;
    if (dead) {
        c->server->stats.timeouts += c->lingering ? 0 : 1;
        kill_conn(c);
        return false;
    }
    if (c->settled && idle && !c->lingering && !c->calmed && now - c->since_us >= p->idle_us) {
        c->calmed = true;
        (void)nghttp2_session_terminate_session(c->session, NGHTTP2_NO_ERROR);
        flush_later(c);
    }
    return true;
}

/* The second word of a drain: from here on new streams are refused. */
static void say_goaway(struct conn *c)
{
    if (c->server->draining && c->notified && !c->calmed && !c->lingering) {
        int32_t last = nghttp2_session_get_last_proc_stream_id(c->session);
        (void)nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR, NULL, 0);
        c->notified = false;
        flush_later(c);
    }
}

static void on_sweep(void *arg)
{
    struct td_h2_server *s = arg;
    int64_t now = td_now_us();
    struct conn *next = NULL;
    for (struct conn *c = s->conns; c != NULL; c = next) {
        next = c->next;
        if (sweep_conn(c, now)) {
            sweep_streams(c, now);
            say_goaway(c);
        }
    }
    td_timer_set(s->sweeper, now + s->sweep_us);
}

/* ---- listening ---- */

static bool start_session(struct conn *c)
{
    const struct td_h2_server_params *p = &c->server->p;
    nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, p->max_streams},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, (uint32_t)p->max_header_list},
        {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1},
    };
    return nghttp2_session_server_new2(&c->session, c->server->callbacks, c, c->server->option) ==
               0 &&
           nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, TD_COUNT(settings)) ==
               0;
}

static struct conn *conn_new(struct td_h2_server *s, struct bufferevent *bev,
                             const struct td_peer *who, struct td_acceptor *acceptor)
{
    struct conn *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return NULL;
    }
    c->server = s;
    if (!start_session(c)) {
        conn_free(c);
        return NULL;
    }
    c->bev = bev;
    c->peer = *who;
    c->acceptor = acceptor;
    c->since_us = c->sent_us = td_now_us();
    td_h2_guard_init(&c->guard, c->since_us);
    c->next = s->conns;
    if (s->conns != NULL) {
        s->conns->prev = c;
    }
    s->conns = c;
    s->stats.connections++;
    s->stats.open++;
    bufferevent_setwatermark(bev, EV_READ, 0, INPUT_HIGH);
    bufferevent_setcb(bev, on_read, on_written, on_event, c);
    (void)bufferevent_enable(bev, EV_READ | EV_WRITE);
    flush_later(c);
    return c;
}

static struct td_peer *take(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    struct td_h2_server *s = arg;
    struct conn *c = conn_new(s, bev, who, s->acceptor);
    return c != NULL ? &c->peer : NULL;
}

bool td_h2_server_adopt(struct td_h2_server *s, struct bufferevent *bev, struct td_peer *who,
                        struct td_acceptor *acceptor)
{
    struct conn *c = s->draining ? NULL : conn_new(s, bev, who, acceptor);
    if (c == NULL) {
        return false;
    }
    td_acceptor_left(acceptor, who);
    td_acceptor_join(acceptor, &c->peer);
    bufferevent_trigger(bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
    return true;
}

static td_err make_nghttp2(struct td_h2_server *s)
{
    if (nghttp2_session_callbacks_new(&s->callbacks) != 0 || nghttp2_option_new(&s->option) != 0) {
        return TD_ERR_NO_MEMORY;
    }
    nghttp2_session_callbacks *cb = s->callbacks;
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback2(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_begin_frame_callback(cb, on_frame_begin);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_sent);
    nghttp2_option_set_max_outbound_ack(s->option, MAX_OUT_ACKS);
    nghttp2_option_set_no_closed_streams(s->option, 1);
    nghttp2_option_set_stream_reset_rate_limit(s->option, RESETS_AT_ONCE, RESETS_A_S);
    return TD_OK;
}

static int64_t sweep_interval(const struct td_h2_server_params *p)
{
    int64_t least = p->preface_us < p->body_us ? p->preface_us : p->body_us;
    least = least < p->write_stall_us ? least : p->write_stall_us;
    least = (least < p->idle_us ? least : p->idle_us) / 4;
    least = least < SWEEP_MAX_US ? least : SWEEP_MAX_US;
    return least > SWEEP_MIN_US ? least : SWEEP_MIN_US;
}

static td_err make_server(struct td_h2_server *s)
{
    struct event_base *base = td_loop_event_base(s->p.loop);
    struct td_acceptor_params ap = {.loop = s->p.loop,
                                    .host = s->p.host,
                                    .port = s->p.port,
                                    .option = s->p.option,
                                    .tls = s->p.tls,
                                    .alpn = TD_ALPN_H2,
                                    .max_connections = s->p.max_connections,
                                    .max_per_address = s->p.max_per_address,
                                    .take = take,
                                    .arg = s};
    TD_TRY(make_nghttp2(s));
    s->flusher = event_new(base, -1, 0, on_flush, s);
    s->reaper = event_new(base, -1, 0, reap, s);
    s->emptier = event_new(base, -1, 0, on_emptied, s);
    if (s->flusher == NULL || s->reaper == NULL || s->emptier == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(td_timer_create(s->p.loop, "h2 sweep", on_sweep, s, &s->sweeper));
    TD_TRY(s->p.host != NULL ? td_acceptor_create(&ap, &s->acceptor) : TD_OK);
    s->sweep_us = sweep_interval(&s->p);
    td_timer_set(s->sweeper, td_now_us() + s->sweep_us);
    return TD_OK;
}

td_err td_h2_server_create(const struct td_h2_server_params *p, struct td_h2_server **out_server)
{
    struct td_h2_server *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->p = *p;
    td_err err = make_server(s);
    s->p.host = NULL; /* the acceptor's matter */
    if (err != TD_OK) {
        td_h2_server_destroy(s);
        return err;
    }
    *out_server = s;
    return TD_OK;
}

struct td_h2_server *td_h2_server_destroy(struct td_h2_server *s)
{
    if (s == NULL) {
        return NULL;
    }
    while (s->conns != NULL) {
        kill_conn(s->conns);
    }
    if (s->reaper != NULL) {
        reap(-1, 0, s);
        event_free(s->reaper);
    }
    if (s->flusher != NULL) {
        event_free(s->flusher);
    }
    if (s->emptier != NULL) {
        event_free(s->emptier);
    }
    td_timer_destroy(s->sweeper);
    td_acceptor_destroy(s->acceptor);
    nghttp2_session_callbacks_del(s->callbacks);
    nghttp2_option_del(s->option);
    free(s);
    return NULL;
}

uint16_t td_h2_server_port(const struct td_h2_server *s)
{
    return s->acceptor != NULL ? td_acceptor_port(s->acceptor) : 0;
}

void td_h2_server_drain(struct td_h2_server *s)
{
    if (s->draining) {
        return;
    }
    s->draining = true;
    if (s->acceptor != NULL) {
        td_acceptor_stop(s->acceptor);
    }
    for (struct conn *c = s->conns; c != NULL; c = c->next) {
        c->notified = true;
        (void)nghttp2_submit_shutdown_notice(c->session);
        flush_later(c);
    }
}

uint32_t td_h2_server_busy(const struct td_h2_server *s)
{
    uint32_t n = 0;
    for (const struct conn *c = s->conns; c != NULL; c = c->next) {
        n += evbuffer_get_length(output(c)) > 0 ? 1 : 0; /* the end of an answer may be in it */
        for (const struct td_h2_stream *st = c->streams; st != NULL; st = st->next) {
            n += st->background ? 0 : 1;
        }
    }
    return n;
}

void td_h2_server_stats(const struct td_h2_server *s, struct td_h2_server_stats *out)
{
    *out = s->stats;
    out->refused_connections = s->acceptor != NULL ? td_acceptor_refused(s->acceptor) : 0;
}

const struct td_http_request *td_h2_stream_request(const struct td_h2_stream *s)
{
    return &s->request;
}

const char *td_h2_stream_peer(const struct td_h2_stream *s)
{
    return s->conn->peer.name;
}

bool td_h2_stream_verified(const struct td_h2_stream *s)
{
    return td_acceptor_verified(s->conn->bev);
}

void td_h2_stream_set_user(struct td_h2_stream *s, void *user)
{
    s->user = user;
}

void *td_h2_stream_user(const struct td_h2_stream *s)
{
    return s->user;
}

bool td_h2_stream_was_slow(const struct td_h2_stream *s)
{
    return s->slow;
}

void td_h2_stream_set_background(struct td_h2_stream *s)
{
    s->background = true;
}

void td_h2_stream_set_deadline(struct td_h2_stream *s, int64_t at_us)
{
    s->deadline_us = at_us;
}
