/* Design: a connection is a bufferevent, an nghttp2 session and a list of streams. Bytes in go through
 * nghttp2_session_mem_recv, bytes out come from nghttp2_session_mem_send, both only in passes of our own (on_read,
 * on_written, flush, sweep), never below a call of the owner: so the owner's writes only fill a stream's buffer and mark
 * the connection, and nothing that it holds dies under it. Unsent bytes wait in the stream, not in the connection, because
 * there HTTP/2's windows apply to each; the connection's own output is kept short. One timer sweeps all deadlines.
 */
#define TD_LOG_ROOM "io"
#include "common/io/h2_server_int.h"

#include <stdio.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/tls.h"

#define INPUT_HIGH     (64u << 10)
#define OUTPUT_HIGH    (256u << 10) /* of a connection: above it, nothing is read from it */
#define LINGER_US      2000000
#define SWEEP_MIN_US   10000
#define SWEEP_MAX_US   500000
#define MAX_OUT_ACKS   256  /* SETTINGS and PING answers waiting, inside nghttp2 */
#define RESETS_AT_ONCE 4096 /* nghttp2's own bucket; ours (h2_guard) is smaller */
#define RESETS_A_S     512

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

/* ---- life of a connection ---- */

static void conn_free(struct td__h2_conn *c)
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
        struct td__h2_conn *c = s->dead;
        s->dead = c->next;
        conn_free(c);
    }
}

static void undirty(struct td__h2_conn *c)
{
    struct td__h2_conn **at = &c->server->dirty;
    while (c->dirty && *at != NULL && *at != c) {
        at = &(*at)->next_dirty;
    }
    if (c->dirty && *at == c) {
        *at = c->next_dirty;
    }
    c->dirty = false;
}

static void drop_streams(struct td__h2_conn *c)
{
    while (c->streams != NULL) {
        struct td_h2_stream *s = c->streams;
        c->server->stats.resets += s->announced && !s->over ? 1 : 0;
        (void)nghttp2_session_set_stream_user_data(c->session, s->id, NULL);
        td__h2_stream_over(s);
    }
}

static void kill_conn(struct td__h2_conn *c)
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

static struct evbuffer *output(const struct td__h2_conn *c)
{
    return bufferevent_get_output(c->bev);
}

/* Everything is said: the other end may still read it, so the socket is not simply closed. */
static void linger(struct td__h2_conn *c)
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
static bool pull(struct td__h2_conn *c)
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

static void flush_conn(struct td__h2_conn *c)
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
        struct td__h2_conn *c = s->dirty;
        s->dirty = c->next_dirty;
        c->dirty = false;
        flush_conn(c);
    }
}

void td__h2_flush_later(struct td__h2_conn *c)
{
    if (!c->dirty && !c->dead) {
        c->dirty = true;
        c->next_dirty = c->server->dirty;
        c->server->dirty = c;
        event_active(c->server->flusher, EV_TIMEOUT, 0);
    }
}

/* ---- in: what nghttp2 says ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct td__h2_conn *c = arg;
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
        return 0;
    }
    struct td_h2_stream *s = td__h2_stream_new(c, frame->hd.stream_id);
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
    struct td__h2_conn *c = arg;
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
    struct td__h2_conn *c = arg;
    struct td_h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (s != NULL && s->announced && !s->over && !s->ended) {
        c->server->p.ops->data(c->server->p.arg, s, data, len);
    }
    return 0;
}

/* Every frame's header, before its payload: CONTINUATION too. */
static int on_frame_begin(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
    struct td__h2_conn *c = arg;
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
        td__h2_stream_over(s);
    }
    return 0;
}

/* The answer is out and the client still talks: it need not. And grpc-go, for one, measures the path with a PING for each DATA
 * that it gets: those are no flood. */
static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
    struct td__h2_conn *c = arg;
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

static bool may_read(const struct td__h2_conn *c)
{
    return !c->dead && !c->lingering && !c->calmed && evbuffer_get_length(output(c)) < OUTPUT_HIGH;
}

static bool feed(struct td__h2_conn *c, const uint8_t *data, size_t len)
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

static void process_input(struct td__h2_conn *c)
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
    struct td__h2_conn *c = arg;
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
    struct td__h2_conn *c = arg;
    flush_conn(c);
    process_input(c); /* it may have waited for this */
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct td__h2_conn *c = arg;
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) != 0) {
        td_acceptor_log_error(bev, &c->peer);
        kill_conn(c);
    }
}

/* ---- time ---- */

static void sweep_streams(struct td__h2_conn *c, int64_t now)
{
    struct td_h2_server *server = c->server;
    for (struct td_h2_stream *s = c->streams; s != NULL; s = s->next) {
        bool late = !s->heard && now >= s->deadline_us;
        bool stalled = td__h2_unsent(s) > 0 && now - s->progress_us >= server->p.write_stall_us;
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
static bool sweep_conn(struct td__h2_conn *c, int64_t now)
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
        td__h2_flush_later(c);
    }
    return true;
}

/* The second word of a drain: from here on new streams are refused. */
static void say_goaway(struct td__h2_conn *c)
{
    if (c->server->draining && c->notified && !c->calmed && !c->lingering) {
        int32_t last = nghttp2_session_get_last_proc_stream_id(c->session);
        (void)nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE, last, NGHTTP2_NO_ERROR, NULL, 0);
        c->notified = false;
        td__h2_flush_later(c);
    }
}

static void on_sweep(void *arg)
{
    struct td_h2_server *s = arg;
    int64_t now = td_now_us();
    struct td__h2_conn *next = NULL;
    for (struct td__h2_conn *c = s->conns; c != NULL; c = next) {
        next = c->next;
        if (sweep_conn(c, now)) {
            sweep_streams(c, now);
            say_goaway(c);
        }
    }
    td_timer_set(s->sweeper, now + s->sweep_us);
}

/* ---- listening ---- */

static bool start_session(struct td__h2_conn *c)
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

static struct td__h2_conn *conn_new(struct td_h2_server *s, struct bufferevent *bev,
                                    const struct td_peer *who, struct td_acceptor *acceptor)
{
    struct td__h2_conn *c = td_zalloc(1, sizeof *c);
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
    td__h2_flush_later(c);
    return c;
}

static struct td_peer *take(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    struct td_h2_server *s = arg;
    struct td__h2_conn *c = conn_new(s, bev, who, s->acceptor);
    return c != NULL ? &c->peer : NULL;
}

bool td_h2_server_adopt(struct td_h2_server *s, struct bufferevent *bev, struct td_peer *who,
                        struct td_acceptor *acceptor)
{
    struct td__h2_conn *c = s->draining ? NULL : conn_new(s, bev, who, acceptor);
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
    s->emptier = event_new(base, -1, 0, td__h2_on_emptied, s);
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
    for (struct td__h2_conn *c = s->conns; c != NULL; c = c->next) {
        c->notified = true;
        (void)nghttp2_submit_shutdown_notice(c->session);
        td__h2_flush_later(c);
    }
}

uint32_t td_h2_server_busy(const struct td_h2_server *s)
{
    uint32_t n = 0;
    for (const struct td__h2_conn *c = s->conns; c != NULL; c = c->next) {
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
