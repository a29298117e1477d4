/* Design: a connection is a bufferevent, a parser and at most one exchange. Reading goes on while
 * an exchange is open, because that is how a closed connection is noticed; bytes of a next request
 * stay in the (bounded) input buffer until the answer is complete and most of it has left. One
 * timer per connection serves whatever phase it is in. A connection is freed only from the loop's own callbacks or a deferred
 * step, never inside a call of the handler.
 */
#define TD_LOG_ROOM "io"
#include "common/io/http_server.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/acceptor.h"
#include "common/io/h2_server.h"
#include "common/io/tls.h"

#define HC_MAGIC          0x48545031u
#define INPUT_HIGH        (64u << 10)
#define OUTPUT_HIGH       (256u << 10) /* unsent answers: the next request waits for them */
#define REQUESTS_PER_PASS 16           /* pipelined ones of one connection */
#define LINGER_US         2000000

enum conn_state {
    HC_READING,   /* a request, or the wait for one */
    HC_ANSWERING, /* the handler owes an answer */
    HC_STREAMING, /* headers of a stream are out */
    HC_FLUSHING,  /* answer complete; the connection closes when it is written */
    HC_LINGERING, /* written and shut down; what the client still sends is dropped, so that it can
                     read the answer */
    HC_DEAD,      /* to be freed by the deferred step */
};

struct td_http_exchange {
    uint32_t magic;
    enum conn_state state;
    struct td_http_server *server; /* borrowed */
    struct bufferevent *bev;       /* owned */
    struct td_timer *timer;        /* owned */
    struct td_http_parser parser;
    struct td_http_exchange *prev, *next;
    int64_t phase_since_us; /* of the head or body, or of the last write progress */
    uint64_t put_bytes;     /* ever written into the output buffer */
    uint64_t sent_seen;     /* of them gone out, when last looked at */
    size_t body_bytes;      /* counted in the server's */
    bool unsent_seen;       /* something was waiting then */
    bool heard, half;       /* something that is not HTTP/2; the beginning of its preface */
    bool keep_alive, head_only, sent_continue, processing;
    void (*gone)(void *arg);
    void *gone_arg;
    struct td_peer peer;
};

struct td_http_server {
    struct td_http_server_params p;
    struct td_acceptor *acceptor; /* owned */
    struct td_h2_server *h2;      /* borrowed; may be NULL */
    size_t body_bytes;            /* of requests not answered yet */
    struct td_http_exchange *conns, *dead;
    struct event *reaper; /* owned: frees dead connections outside of their callbacks */
    bool draining;
    struct td_http_server_stats stats;
};

void td_http_server_defaults(struct td_http_server_params *p)
{
    memset(p, 0, sizeof *p);
    p->alpn = TD_ALPN_HTTP;
    p->limits = (struct td_http_limits){.max_head = 16u << 10, .max_body = 16u << 20};
    p->max_connections = 4096;
    p->max_per_address = 4096;
    p->head_deadline_us = 10000000;
    p->body_deadline_us = 30000000;
    p->idle_us = 75000000;
    p->write_stall_us = 30000000;
    p->min_body_rate = 1024;
    p->high_water = 1u << 20;
    p->max_body_bytes = 512u << 20;
}

const char *td_http_status_text(int status)
{
    static const struct {
        int status;
        const char *text;
    } texts[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {502, "Bad Gateway"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
    };
    for (size_t i = 0; i < TD_COUNT(texts); i++) {
        if (texts[i].status == status) {
            return texts[i].text;
        }
    }
    return "Status";
}

/* ---- life of a connection ---- */

static void unlink_conn(struct td_http_exchange *x)
{
    struct td_http_server *s = x->server;
    if (x->prev != NULL) {
        x->prev->next = x->next;
    } else {
        s->conns = x->next;
    }
    if (x->next != NULL) {
        x->next->prev = x->prev;
    }
}

/* To be freed outside of its own callbacks. */
static void bury(struct td_http_exchange *x)
{
    td_timer_set(x->timer, TD_NEVER);
    x->next = x->server->dead;
    x->server->dead = x;
    event_active(x->server->reaper, EV_TIMEOUT, 0);
}

/* The body grew, or is gone. */
static void count_body(struct td_http_exchange *x, size_t now)
{
    x->server->body_bytes += now - x->body_bytes; /* wraps where it shrinks, and back */
    x->body_bytes = now;
}

static void free_conn(struct td_http_exchange *x)
{
    x->magic = 0;
    count_body(x, 0);
    td_timer_destroy(x->timer);
    if (x->bev != NULL) {
        bufferevent_free(x->bev);
    }
    td_http_parser_fini(&x->parser);
    free(x);
}

static void reap(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct td_http_server *s = arg;
    while (s->dead != NULL) {
        struct td_http_exchange *x = s->dead;
        s->dead = x->next;
        free_conn(x);
    }
}

static void kill_conn(struct td_http_exchange *x)
{
    if (x->state == HC_DEAD) {
        return;
    }
    bool owed = x->state == HC_ANSWERING || x->state == HC_STREAMING;
    x->state = HC_DEAD;
    unlink_conn(x);
    td_acceptor_left(x->server->acceptor, &x->peer);
    bufferevent_setcb(x->bev, NULL, NULL, NULL, NULL);
    (void)bufferevent_disable(x->bev, EV_READ | EV_WRITE);
    bury(x);
    if (owed) {
        x->server->stats.gone++;
        if (x->gone != NULL) {
            x->gone(x->gone_arg);
        }
    }
}

/* ---- writing ---- */

static struct evbuffer *output(const struct td_http_exchange *x)
{
    return bufferevent_get_output(x->bev);
}

/* Out of memory inside libevent: this client is lost, nobody else. */
static bool put(struct td_http_exchange *x, const void *data, size_t len)
{
    x->server->stats.response_bytes += len;
    x->put_bytes += len;
    if (len > 0 && evbuffer_add(output(x), data, len) != 0) {
        TD_LOG(WARN, "out of memory for an answer", "peer=%s, closing", x->peer.name);
        kill_conn(x);
        return false;
    }
    return true;
}

static void head(struct td_http_exchange *x, int status, const struct td_http_header *extra,
                 uint32_t n_extra, const char *content_type)
{
    char line[512];
    x->keep_alive = x->keep_alive && !x->server->draining;
    int n = snprintf(line, sizeof line, "HTTP/1.1 %d %s\r\nServer: tandem\r\n", status,
                     td_http_status_text(status));
    (void)put(x, line, (size_t)n);
    if (content_type != NULL) {
        n = snprintf(line, sizeof line, "Content-Type: %.200s\r\n", content_type);
        (void)put(x, line, (size_t)n);
    }
    for (uint32_t i = 0; i < n_extra; i++) {
        n = snprintf(line, sizeof line, "%.100s: %.380s\r\n", extra[i].name, extra[i].value);
        (void)put(x, line, (size_t)n);
    }
    if (!x->keep_alive) {
        (void)put(x, "Connection: close\r\n", 19);
    }
}

static void drop_input(struct td_http_exchange *x)
{
    struct evbuffer *in = bufferevent_get_input(x->bev);
    (void)evbuffer_drain(in, evbuffer_get_length(in));
}

/* From now on the client must take bytes whenever there are some. */
static void watch_writes(struct td_http_exchange *x)
{
    x->phase_since_us = td_now_us();
    x->unsent_seen = false;
    td_timer_set(x->timer, x->phase_since_us + x->server->p.write_stall_us / 4);
}

static void linger(struct td_http_exchange *x)
{
    x->state = HC_LINGERING;
    td_acceptor_say_end(x->bev);
    td_timer_set(x->timer, td_now_us() + LINGER_US);
    drop_input(x);
}

static void flush_and_close(struct td_http_exchange *x)
{
    if (evbuffer_get_length(output(x)) == 0) {
        linger(x);
        return;
    }
    x->state = HC_FLUSHING;
    watch_writes(x);
}

/* What is left of the input is looked at in a pass of its own. */
static void read_on_later(struct td_http_exchange *x)
{
    if (evbuffer_get_length(bufferevent_get_input(x->bev)) > 0) {
        bufferevent_trigger(x->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
    }
}

/* The answer is complete: next request, or close. */
static void answered(struct td_http_exchange *x)
{
    x->gone = NULL;
    if (!x->keep_alive || x->server->draining) {
        flush_and_close(x);
        return;
    }
    td_http_parser_next(&x->parser);
    count_body(x, 0);
    x->state = HC_READING;
    x->sent_continue = false;
    td_timer_set(x->timer, td_now_us() + x->server->p.idle_us);
    if (!x->processing) {
        read_on_later(x);
    }
}

void td_http_respond(struct td_http_exchange *x, int status, const struct td_http_header *extra,
                     uint32_t n_extra, const char *content_type, const void *body, size_t len)
{
    TD_REQUIRE(x->magic == HC_MAGIC && x->state == HC_ANSWERING);
    char line[64];
    head(x, status, extra, n_extra, content_type);
    if (x->state == HC_DEAD) {
        return;
    }
    int n = snprintf(line, sizeof line, "Content-Length: %zu\r\n\r\n", len);
    if (put(x, line, (size_t)n) && (x->head_only || put(x, body, len))) {
        answered(x);
    }
}

void td_http_stream_start(struct td_http_exchange *x, int status,
                          const struct td_http_header *extra, uint32_t n_extra,
                          const char *content_type)
{
    TD_REQUIRE(x->magic == HC_MAGIC && x->state == HC_ANSWERING);
    bool raw = x->parser.http10; /* it knows no chunks: the end of the connection ends the stream */
    x->keep_alive = x->keep_alive && !raw;
    head(x, status, extra, n_extra, content_type);
    if (x->state != HC_DEAD &&
        (raw ? put(x, "\r\n", 2) : put(x, "Transfer-Encoding: chunked\r\n\r\n", 30))) {
        x->state = HC_STREAMING;
        watch_writes(x);
    }
}

td_err td_http_stream_write(struct td_http_exchange *x, const void *data, size_t len)
{
    TD_REQUIRE(x->magic == HC_MAGIC && (x->state == HC_STREAMING || x->state == HC_DEAD));
    if (x->state == HC_DEAD) {
        return TD_ERR_CLOSED;
    }
    if (len == 0) {
        return TD_OK; /* an empty chunk would end the stream */
    }
    char line[24];
    int n = x->parser.http10 ? 0 : snprintf(line, sizeof line, "%zx\r\n", len);
    if (!put(x, line, (size_t)n) || !put(x, data, len) || !put(x, "\r\n", n > 0 ? 2 : 0)) {
        return TD_ERR_NO_MEMORY;
    }
    if (evbuffer_get_length(output(x)) > x->server->p.high_water) {
        x->server->stats.slow_readers++;
        td_timer_set(x->timer,
                     td_now_us()); /* lost in the next pass, outside of the caller's frame */
        return TD_ERR_FULL;
    }
    return TD_OK;
}

void td_http_stream_end(struct td_http_exchange *x)
{
    TD_REQUIRE(x->magic == HC_MAGIC && (x->state == HC_STREAMING || x->state == HC_DEAD));
    if (x->state == HC_STREAMING && (x->parser.http10 || put(x, "0\r\n\r\n", 5))) {
        answered(x);
    }
}

void td_http_stream_abort(struct td_http_exchange *x)
{
    TD_REQUIRE(x->magic == HC_MAGIC && (x->state == HC_STREAMING || x->state == HC_DEAD));
    x->gone = NULL;
    kill_conn(x);
}

/* ---- reading ---- */

static void answer_error(struct td_http_exchange *x, td_err err, const char *text)
{
    struct td_buf body;
    int status = td_err_http(err);
    td_buf_init(&body, 4096);
    if (x->server->p.error_body != NULL) {
        x->server->p.error_body(err, text, &body);
    }
    TD_LOG(INFO, "request refused by the guard", "peer=%s status=%d text=\"%s\"", x->peer.name,
           status, text);
    x->keep_alive = x->head_only = false;
    x->state = HC_ANSWERING;
    x->gone = NULL;
    td_http_respond(x, status, NULL, 0, "application/json", body.data, body.len);
    td_buf_fini(&body);
}

static void set_read_deadline(struct td_http_exchange *x, enum td_http_phase before)
{
    const struct td_http_server_params *p = &x->server->p;
    if (x->parser.phase == before) {
        return; /* more bytes never renew a deadline: a dripping client runs into it */
    }
    x->phase_since_us = td_now_us();
    int64_t wait = x->parser.phase == TD_HTTP_BODY ? p->body_deadline_us / 4 : p->head_deadline_us;
    td_timer_set(x->timer, x->phase_since_us + wait);
}

static void request_complete(struct td_http_exchange *x)
{
    x->state = HC_ANSWERING;
    x->keep_alive = x->parser.request.keep_alive && !x->server->draining;
    x->head_only = strcmp(x->parser.request.method, "HEAD") == 0;
    x->server->stats.requests++;
    td_timer_set(x->timer, TD_NEVER);
    x->server->p.handler(x->server->p.arg, x);
}

/* A client that sends requests without reading the answers is not served further: else its answers
 * would pile up here. */
static bool may_read(const struct td_http_exchange *x)
{
    return x->state == HC_READING && evbuffer_get_length(output(x)) <= OUTPUT_HIGH;
}

static void process_input(struct td_http_exchange *x)
{
    struct evbuffer *in = bufferevent_get_input(x->bev);
    uint32_t served = 0;
    x->processing = true;
    while (may_read(x) && served < REQUESTS_PER_PASS && evbuffer_get_length(in) > 0) {
        struct evbuffer_iovec v;
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1) {
            break;
        }
        enum td_http_phase before = x->parser.phase;
        size_t used = td_http_parser_feed(&x->parser, v.iov_base, v.iov_len);
        x->server->stats.request_bytes += used;
        (void)evbuffer_drain(in, used);
        count_body(x, x->parser.body.len);
        if (x->parser.phase == TD_HTTP_BROKEN) {
            x->server->stats.malformed++;
            answer_error(x, x->parser.err, x->parser.text);
        } else if (x->parser.phase == TD_HTTP_DONE) {
            served++;
            request_complete(x);
        } else if (x->server->body_bytes > x->server->p.max_body_bytes) {
            x->server->stats.malformed++;
            answer_error(x, TD_ERR_OVERLOADED, "too many bytes of requests at once");
        } else {
            set_read_deadline(x, before);
            if (td_http_parser_wants_continue(&x->parser) && !x->sent_continue) {
                x->sent_continue = true;
                (void)put(x, "HTTP/1.1 100 Continue\r\n\r\n", 25);
            }
        }
    }
    x->processing = false;
    if (served == REQUESTS_PER_PASS && x->state == HC_READING) {
        read_on_later(x);
    }
}

/* The connection lives on elsewhere; the object goes like any other. */
static void hand_to_h2(struct td_http_exchange *x)
{
    struct td_http_server *s = x->server;
    if (!td_h2_server_adopt(s->h2, x->bev, &x->peer, s->acceptor)) {
        kill_conn(x);
        return;
    }
    x->state = HC_DEAD;
    x->bev = NULL;
    unlink_conn(x);
    bury(x);
}

/* True when these first bytes are HTTP/2's, or may yet be: no method that we know begins like them. */
static bool speaks_h2(struct td_http_exchange *x)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n";
    char first[sizeof preface - 1];
    ev_ssize_t n = x->server->h2 != NULL && !x->heard
                       ? evbuffer_copyout(bufferevent_get_input(x->bev), first, sizeof first)
                       : 0;
    if (n <= 0 || memcmp(first, preface, (size_t)n) != 0) {
        x->heard = true;
        return false;
    }
    if ((size_t)n == sizeof first) {
        hand_to_h2(x);
    } else if (!x->half) { /* once: a dripping client runs into it */
        x->half = true;
        td_timer_set(x->timer, td_now_us() + x->server->p.head_deadline_us);
    }
    return true;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct td_http_exchange *x = arg;
    if (x->state == HC_READING && speaks_h2(x)) {
        return;
    }
    if (x->state == HC_READING) {
        process_input(x);
    } else if (x->state == HC_FLUSHING || x->state == HC_LINGERING) {
        drop_input(x);
    }
}

static void on_written(struct bufferevent *bev, void *arg)
{
    (void)bev;
    struct td_http_exchange *x = arg;
    if (x->state == HC_FLUSHING) {
        linger(x);
    } else if (x->state == HC_READING) { /* requests may have waited for this */
        if (x->parser.phase == TD_HTTP_IDLE) {
            td_timer_set(x->timer, td_now_us() + x->server->p.idle_us);
        }
        read_on_later(x);
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct td_http_exchange *x = arg;
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) != 0) {
        td_acceptor_log_error(bev, &x->peer);
        kill_conn(x);
    }
}

/* ---- time ---- */

static void body_due(struct td_http_exchange *x)
{
    const struct td_http_server_params *p = &x->server->p;
    int64_t took = td_now_us() - x->phase_since_us;
    bool slow =
        p->min_body_rate > 0 && x->parser.body.len < p->min_body_rate * (uint64_t)took / 1000000u;
    if (slow || took >= p->body_deadline_us) {
        x->server->stats.timeouts++;
        answer_error(x, TD_ERR_TIMEOUT_READ, "the request body came too slowly");
        return;
    }
    td_timer_set(x->timer, td_now_us() + p->body_deadline_us / 4);
}

static void write_due(struct td_http_exchange *x)
{
    size_t unsent = evbuffer_get_length(output(x));
    uint64_t sent = x->put_bytes - unsent;
    int64_t now = td_now_us();
    if (unsent == 0 || !x->unsent_seen || sent != x->sent_seen) {
        x->phase_since_us = now;
    }
    x->unsent_seen = unsent > 0;
    x->sent_seen = sent;
    bool stalled = now - x->phase_since_us >= x->server->p.write_stall_us;
    if (stalled || (x->state == HC_STREAMING && unsent > x->server->p.high_water)) {
        TD_LOG(INFO, "client does not read", "peer=%s unsent=%zu, closing", x->peer.name, unsent);
        kill_conn(x);
        return;
    }
    td_timer_set(x->timer, now + x->server->p.write_stall_us / 4);
}

static void on_timer(void *arg)
{
    struct td_http_exchange *x = arg;
    switch (x->state) {
    case HC_READING:
        if (x->parser.phase == TD_HTTP_BODY) {
            body_due(x);
        } else if (x->parser.phase == TD_HTTP_HEAD) {
            x->server->stats.timeouts++;
            answer_error(x, TD_ERR_TIMEOUT_READ, "the request head came too slowly");
        } else if (evbuffer_get_length(output(x)) > 0) {
            write_due(x); /* an answer is still on its way */
        } else {
            kill_conn(x); /* idle */
        }
        break;
    case HC_STREAMING:
    case HC_FLUSHING:
        write_due(x);
        break;
    case HC_LINGERING:
        kill_conn(x);
        break;
    case HC_ANSWERING:
    case HC_DEAD:
        break;
    }
}

/* ---- listening ---- */

static struct td_peer *take(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    struct td_http_server *s = arg;
    struct td_http_exchange *x = td_zalloc(1, sizeof *x);
    if (x == NULL || td_timer_create(s->p.loop, "http", on_timer, x, &x->timer) != TD_OK) {
        free(x);
        return NULL;
    }
    x->magic = HC_MAGIC;
    x->peer = *who;
    x->server = s;
    x->bev = bev;
    td_http_parser_init(&x->parser, &s->p.limits);
    x->next = s->conns;
    if (s->conns != NULL) {
        s->conns->prev = x;
    }
    s->conns = x;
    s->stats.connections++;
    bufferevent_setwatermark(x->bev, EV_READ, 0, INPUT_HIGH);
    bufferevent_setcb(x->bev, on_read, on_written, on_event, x);
    (void)bufferevent_enable(x->bev, EV_READ | EV_WRITE);
    td_timer_set(x->timer, td_now_us() + s->p.head_deadline_us);
    return &x->peer;
}

td_err td_http_server_create(const struct td_http_server_params *p,
                             struct td_http_server **out_server)
{
    struct td_http_server *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->p = *p;
    s->p.host = NULL; /* the acceptor's matter */
    struct td_acceptor_params ap = {.loop = p->loop,
                                    .host = p->host,
                                    .port = p->port,
                                    .option = p->option,
                                    .tls = p->tls,
                                    .alpn = p->alpn,
                                    .max_connections = p->max_connections,
                                    .max_per_address = p->max_per_address,
                                    .take = take,
                                    .arg = s};
    s->reaper = event_new(td_loop_event_base(p->loop), -1, 0, reap, s);
    td_err err = s->reaper != NULL ? td_acceptor_create(&ap, &s->acceptor) : TD_ERR_NO_MEMORY;
    if (err != TD_OK) {
        td_http_server_destroy(s);
        return err;
    }
    *out_server = s;
    return TD_OK;
}

struct td_http_server *td_http_server_destroy(struct td_http_server *s)
{
    if (s == NULL) {
        return NULL;
    }
    while (s->conns != NULL) {
        s->conns->gone = NULL;
        kill_conn(s->conns);
    }
    if (s->reaper != NULL) {
        reap(-1, 0, s);
        event_free(s->reaper);
    }
    td_acceptor_destroy(s->acceptor);
    free(s);
    return NULL;
}

void td_http_server_set_h2(struct td_http_server *s, struct td_h2_server *h2)
{
    s->h2 = h2;
}

uint16_t td_http_server_port(const struct td_http_server *s)
{
    return td_acceptor_port(s->acceptor);
}

void td_http_server_drain(struct td_http_server *s)
{
    s->draining = true;
    td_acceptor_stop(s->acceptor);
    struct td_http_exchange *next = NULL;
    for (struct td_http_exchange *x = s->conns; x != NULL; x = next) {
        next = x->next;
        if (x->state == HC_READING && x->parser.phase == TD_HTTP_IDLE) {
            kill_conn(x);
        }
    }
}

uint32_t td_http_server_busy(const struct td_http_server *s)
{
    uint32_t n = 0;
    for (const struct td_http_exchange *x = s->conns; x != NULL; x = x->next) {
        n +=
            x->state == HC_ANSWERING || x->state == HC_STREAMING || x->state == HC_FLUSHING ? 1 : 0;
    }
    return n;
}

void td_http_server_stats(const struct td_http_server *s, struct td_http_server_stats *out)
{
    *out = s->stats;
    out->open = td_acceptor_open(s->acceptor);
    out->refused_connections = td_acceptor_refused(s->acceptor);
}

const struct td_http_request *td_http_exchange_request(const struct td_http_exchange *x)
{
    return &x->parser.request;
}

const char *td_http_exchange_peer(const struct td_http_exchange *x)
{
    return x->peer.name;
}

bool td_http_exchange_verified(const struct td_http_exchange *x)
{
    return td_acceptor_verified(x->bev);
}

void td_http_exchange_on_gone(struct td_http_exchange *x, void (*fn)(void *arg), void *arg)
{
    TD_REQUIRE(x->magic == HC_MAGIC);
    x->gone = fn;
    x->gone_arg = arg;
}
