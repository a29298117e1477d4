/* Design: see h2_server.c. What an owner writes waits here, in the stream, until a pass of the connection takes it; nothing here
 * frees a stream below a call of its owner.
 */
#define TD_LOG_ROOM "io"
#include "common/io/h2_server_int.h"

#include <string.h>

#include <event2/buffer.h>
#include <event2/event.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define TRAILERS_MAX 16384u
#define MAX_NV       24

/* ---- life ---- */

struct td_h2_stream *td__h2_stream_new(struct td__h2_conn *c, int32_t id)
{
    struct td_h2_stream *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return NULL;
    }
    s->magic = TD__H2_STREAM_MAGIC;
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

size_t td__h2_unsent(const struct td_h2_stream *s)
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
    struct td__h2_conn *c = s->conn;
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
    taken(s, td__h2_unsent(s));
    if (s->out != NULL) {
        evbuffer_free(s->out);
    }
    td_buf_fini(&s->head);
    td_buf_fini(&s->trailers);
    s->magic = 0;
    free(s);
}

void td__h2_stream_over(struct td_h2_stream *s)
{
    const struct td_h2_server *server = s->conn->server;
    s->over = true;
    if (s->announced) {
        server->p.ops->gone(server->p.arg, s);
    }
    stream_free(s);
}

/* ---- out ---- */

/* Owners that waited may write again: such writes free nothing, so the lists stay what they are. */
void td__h2_on_emptied(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    const struct td_h2_server *server = arg;
    for (struct td__h2_conn *c = server->conns; c != NULL; c = c->next) {
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
    TD_REQUIRE(s->magic == TD__H2_STREAM_MAGIC && td__h2_unsent(s) > 0);
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
    if (td__h2_unsent(s) > 0) {
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
    TD_REQUIRE(s->magic == TD__H2_STREAM_MAGIC && !s->responded && n < MAX_NV);
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
        td__h2_flush_later(s->conn);
    }
}

/* The stream with the most unsent bytes of the connection with the most: when all together have too many, those who read must
 * not pay for those who do not. Walks all connections, and only then. */
static struct td_h2_stream *greediest(struct td_h2_stream *writer)
{
    struct td__h2_conn *most = writer->conn;
    for (struct td__h2_conn *c = most->server->conns; c != NULL; c = c->next) {
        most = c->unsent > most->unsent ? c : most;
    }
    struct td_h2_stream *found = most == writer->conn ? writer : most->streams;
    for (struct td_h2_stream *s = most->streams; s != NULL; s = s->next) {
        found = td__h2_unsent(s) > td__h2_unsent(found) ? s : found;
    }
    return found;
}

static void cut_slow_reader(struct td_h2_stream *s)
{
    TD_LOG(INFO, "client does not read", "peer=%s stream=%d unsent=%zu, resetting",
           s->conn->peer.name, s->id, td__h2_unsent(s));
    s->conn->server->stats.slow_readers++;
    s->slow = true;
    td_h2_reset(s, true);
}

td_err td_h2_write(struct td_h2_stream *s, const void *data, size_t len)
{
    TD_REQUIRE(s->magic == TD__H2_STREAM_MAGIC && s->responded && !s->ended);
    struct td_h2_server *server = s->conn->server;
    if (s->over) {
        return TD_ERR_CLOSED;
    }
    if (s->out == NULL) {
        s->out = evbuffer_new();
    }
    if (td__h2_unsent(s) == 0) {
        s->progress_us = td_now_us();
    }
    if (s->out == NULL || evbuffer_add(s->out, data, len) != 0) {
        td_h2_reset(s, false);
        return TD_ERR_NO_MEMORY;
    }
    s->conn->unsent += len;
    server->stats.unsent_bytes += len;
    if (td__h2_unsent(s) > server->p.high_water) {
        cut_slow_reader(s);
    }
    while (server->stats.unsent_bytes > server->p.max_unsent) {
        cut_slow_reader(greediest(s));
    }
    if (s->over) {
        return TD_ERR_FULL;
    }
    (void)nghttp2_session_resume_data(s->conn->session, s->id); /* when it waits for bytes */
    td__h2_flush_later(s->conn);
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
    TD_REQUIRE(s->magic == TD__H2_STREAM_MAGIC && s->responded && n < MAX_NV);
    if (s->over || s->ended) {
        return;
    }
    if (keep_trailers(s, trailers, n) != TD_OK) {
        td_h2_reset(s, false);
        return;
    }
    s->ended = true;
    (void)nghttp2_session_resume_data(s->conn->session, s->id);
    td__h2_flush_later(s->conn);
}

void td_h2_reset(struct td_h2_stream *s, bool calm)
{
    TD_REQUIRE(s->magic == TD__H2_STREAM_MAGIC);
    if (s->over) {
        return;
    }
    s->over = true; /* nothing more is taken; `gone` comes when nghttp2 closes it */
    if (s->out != NULL) {
        taken(s, td__h2_unsent(s));
        (void)evbuffer_drain(s->out, evbuffer_get_length(s->out));
    }
    s->conn->server->stats.resets++;
    (void)nghttp2_submit_rst_stream(s->conn->session, NGHTTP2_FLAG_NONE, s->id,
                                    calm ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_CANCEL);
    td__h2_flush_later(s->conn);
}

/* ---- what the owner may know ---- */

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
