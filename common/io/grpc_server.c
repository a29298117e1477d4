/* Design: a call lives from the head of its stream until the stream is gone; finishing it only detaches its owner. A handler
 * of a method with one request runs when the client has ended, so that a second message is noticed. Deadlines are few
 * compared to messages: one timer sweeps the calls that have one.
 */
#define TD_LOG_ROOM "io"
#include "common/io/grpc_server.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define CALL_MAGIC 0x47525043u
#define SWEEP_US   20000

struct td_grpc_call {
    uint32_t magic;
    struct td_grpc_server *server; /* borrowed */
    struct td_h2_stream *stream;   /* borrowed */
    struct td_grpc_call *prev, *next;
    const struct td_grpc_service *service; /* NULL: unknown; of the server's table */
    const struct td_grpc_method *method;   /* NULL: unknown */
    struct td_grpc_reader reader;
    size_t buffered; /* counted in the server's */
    bool complete;   /* the one message is there */
    bool started;    /* the head is out */
    bool finished;   /* the owner has let go */
    int64_t deadline_us;
    char request_id[128];
    void *tag;
    void (*gone)(void *arg);
    void *gone_arg;
};

struct td_grpc_server {
    struct td_grpc_server_params p;
    struct td_h2_server *h2; /* owned */
    struct td_timer *sweeper;
    struct td_grpc_service services[TD_GRPC_MAX_SERVICES];
    uint32_t n_services;
    struct td_grpc_call *calls;
    uint32_t n_deadlines;
    size_t buffered[2]; /* of methods that need a key, and of open ones */
    bool sweeping;
    void (*on_end)(void *arg, const struct td_grpc_call *c, enum td_grpc_status status);
    void *on_end_arg;
};

/* ---- answers ---- */

#define CONTENT_TYPE                                                                               \
    {                                                                                              \
        "content-type", "application/grpc"                                                         \
    }

static uint32_t head_of(const struct td_grpc_call *c, struct td_http_header out[3])
{
    uint32_t n = 0;
    out[n++] = (struct td_http_header)CONTENT_TYPE;
    out[n++] = (struct td_http_header){"grpc-accept-encoding", "identity"};
    if (c->request_id[0] != 0) {
        out[n++] = (struct td_http_header){"x-request-id", c->request_id};
    }
    return n;
}

void td_grpc_start(struct td_grpc_call *c)
{
    TD_REQUIRE(c->magic == CALL_MAGIC && !c->finished);
    struct td_http_header head[3];
    if (!c->started) {
        c->started = true;
        uint32_t n = head_of(c, head);
        td_h2_respond(c->stream, 200, head, n, false);
    }
}

td_err td_grpc_send(struct td_grpc_call *c, const void *message, size_t len)
{
    uint8_t prefix[TD_GRPC_PREFIX];
    td_grpc_start(c);
    td_grpc_prefix(len, prefix);
    TD_TRY(td_h2_write(c->stream, prefix, sizeof prefix));
    return len > 0 ? td_h2_write(c->stream, message, len) : TD_OK;
}

static size_t *pool_of(const struct td_grpc_call *c)
{
    return &c->server->buffered[c->method != NULL && c->method->open ? 1 : 0];
}

/* The bytes of its message have been handled. */
static void uncount(struct td_grpc_call *c)
{
    *pool_of(c) -= c->buffered;
    c->buffered = 0;
}

/* The request's bytes are of no use any more. */
static void release(struct td_grpc_call *c)
{
    uncount(c);
    td_grpc_reader_fini(&c->reader);
    td_grpc_reader_init(&c->reader, 0);
}

/* The owner is out of it. */
static void let_go(struct td_grpc_call *c, enum td_grpc_status status)
{
    if (c->server->on_end != NULL) {
        c->server->on_end(c->server->on_end_arg, c, status);
    }
    c->finished = true;
    c->gone = NULL;
    release(c);
    if (c->deadline_us != TD_NEVER) {
        c->deadline_us = TD_NEVER;
        c->server->n_deadlines--;
    }
}

void td_grpc_finish(struct td_grpc_call *c, enum td_grpc_status status, const char *text,
                    const struct td_http_header *trailers, uint32_t n)
{
    TD_REQUIRE(c->magic == CALL_MAGIC && !c->finished && n <= TD_GRPC_MAX_TRAILERS);
    char code[8], encoded[TD_GRPC_MAX_TEXT * 3 + 1];
    struct td_http_header h[5 + TD_GRPC_MAX_TRAILERS];
    uint32_t n_h = c->started ? 0 : head_of(c, h);
    let_go(c, status);
    (void)snprintf(code, sizeof code, "%d", (int)status);
    h[n_h++] = (struct td_http_header){"grpc-status", code};
    if (text != NULL && text[0] != 0) {
        td_grpc_text_encode(text, encoded);
        h[n_h++] = (struct td_http_header){"grpc-message", encoded};
    }
    for (uint32_t i = 0; i < n; i++) {
        h[n_h++] = trailers[i];
    }
    if (c->started) {
        td_h2_end(c->stream, h, n_h);
    } else {
        td_h2_respond(c->stream, 200, h, n_h, true);
    }
}

void td_grpc_fail(struct td_grpc_call *c, td_err err, const char *text, double retry_s)
{
    char wait[24];
    double ms = fmin(fmax(retry_s, 0), 86400) * 1000;
    (void)snprintf(wait, sizeof wait, "%.0f", td_err_retryable(err) ? ceil(ms) : -1.0);
    struct td_http_header t[] = {{"tandem-code", td_err_code(err)},
                                 {"grpc-retry-pushback-ms", wait}};
    td_grpc_finish(c, td_grpc_status_of(err),
                   text != NULL && text[0] != 0 ? text : td_err_text(err), t, TD_COUNT(t));
}

/* Ends the call and tells its owner. */
static void end_call(struct td_grpc_call *c, td_err err, const char *text)
{
    void (*gone)(void *arg) = c->gone;
    void *arg = c->gone_arg;
    td_grpc_fail(c, err, text, 0);
    if (gone != NULL) {
        gone(arg);
    }
}

/* ---- requests ---- */

/* Sets service and method of the call; both stay NULL when nobody serves the path. */
static void find_method(const struct td_grpc_server *s, const char *path, struct td_grpc_call *c)
{
    const char *name = path[0] == '/' ? strchr(path + 1, '/') : NULL;
    size_t n = name != NULL ? (size_t)(name - path) - 1 : 0;
    for (uint32_t i = 0; n > 0 && i < s->n_services; i++) {
        const struct td_grpc_service *v = &s->services[i];
        for (uint32_t m = 0; m < v->n_methods; m++) {
            if (strlen(v->name) == n && memcmp(v->name, path + 1, n) == 0 &&
                strcmp(v->methods[m].name, name + 1) == 0) {
                c->service = v;
                c->method = &v->methods[m];
                return;
            }
        }
    }
}

static struct td_grpc_call *call_new(struct td_grpc_server *s, struct td_h2_stream *stream)
{
    struct td_grpc_call *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        td_h2_reset(stream, false);
        return NULL;
    }
    c->magic = CALL_MAGIC;
    c->server = s;
    c->stream = stream;
    c->deadline_us = TD_NEVER;
    td_grpc_reader_init(&c->reader, s->p.max_message);
    td_h2_stream_set_user(stream, c);
    c->next = s->calls;
    if (s->calls != NULL) {
        s->calls->prev = c;
    }
    s->calls = c;
    return c;
}

/* What is no gRPC at all gets an HTTP status, as gRPC's rules want. */
static int http_refusal(const struct td_http_request *r)
{
    if (strcmp(r->method, "POST") != 0) {
        return 405;
    }
    return td_grpc_is_content_type(td_http_header_get(r, "content-type")) ? 0 : 415;
}

static bool set_deadline(struct td_grpc_call *c, const struct td_http_request *r)
{
    const char *text = td_http_header_get(r, "grpc-timeout");
    int64_t wait_us = 0;
    if (text == NULL) {
        return true;
    }
    if (!td_grpc_timeout_parse(text, &wait_us)) {
        return false;
    }
    c->deadline_us = td_now_us() + wait_us;
    c->server->n_deadlines++;
    if (!c->server->sweeping) {
        c->server->sweeping = true;
        td_timer_set(c->server->sweeper, td_now_us() + SWEEP_US);
    }
    return true;
}

static void on_request(void *arg, struct td_h2_stream *stream)
{
    struct td_grpc_server *s = arg;
    const struct td_http_request *r = td_h2_stream_request(stream);
    int status = http_refusal(r);
    if (status != 0) {
        td_h2_respond(stream, status, NULL, 0, true);
        return;
    }
    struct td_grpc_call *c = call_new(s, stream);
    if (c == NULL) {
        return;
    }
    find_method(s, r->path, c);
    bool asked = s->p.admit != NULL && (c->method == NULL || !c->method->open);
    td_err err = asked ? s->p.admit(s->p.arg, c) : TD_OK;
    if (err != TD_OK) {
        td_grpc_fail(c, err, s->p.admit_text, 1);
    } else if (c->method == NULL) {
        td_grpc_fail(c, TD_ERR_METHOD, "unknown method", 0);
    } else if (!set_deadline(c, r)) {
        td_grpc_fail(c, TD_ERR_BAD_REQUEST, "malformed grpc-timeout", 0);
    } else if (c->method->open) {
        td_grpc_reader_init(&c->reader, s->p.max_open_message);
    }
}

static void refuse_bytes(struct td_grpc_call *c, td_err err)
{
    if (err == TD_ERR_TOO_LARGE) {
        end_call(c, err, "the message is larger than this server takes");
    } else if (err == TD_ERR_UNSUPPORTED) {
        end_call(c, err, "compressed messages are not supported");
    } else if (err == TD_ERR_PROTOCOL) {
        end_call(c, TD_ERR_INTERNAL, "the message has an unknown flag");
    } else {
        end_call(c, err, NULL);
    }
}

/* A whole message is in the reader. */
static void message_complete(struct td_grpc_call *c)
{
    const struct td_grpc_method *m = c->method;
    if (!m->client_streams) {
        if (c->complete) {
            end_call(c, TD_ERR_BAD_REQUEST, "this method takes one message");
        }
        c->complete = true;
        return;
    }
    uncount(c);
    td_h2_stream_set_deadline(c->stream, td_now_us() + c->server->p.h2.body_us);
    m->handle(c->service->arg, c, c->reader.message.data, c->reader.message.len);
}

/* The call with the most bytes pays when all of its kind have too many, so that small requests pass whoever hoards. Walks
 * all calls, and only then. */
static void bound_buffers(struct td_grpc_call *c)
{
    const struct td_grpc_server *s = c->server;
    const size_t *pool = pool_of(c);
    size_t max = pool == s->buffered ? s->p.max_buffered : s->p.max_open_buffered;
    while (*pool > max) {
        struct td_grpc_call *most = c;
        for (struct td_grpc_call *k = s->calls; k != NULL; k = k->next) {
            most = pool_of(k) == pool && k->buffered > most->buffered ? k : most;
        }
        end_call(most, TD_ERR_OVERLOADED, "too many bytes of requests at once");
    }
}

static void on_data(void *arg, struct td_h2_stream *stream, const uint8_t *data, size_t len)
{
    (void)arg;
    struct td_grpc_call *c = td_h2_stream_user(stream);
    if (c == NULL) {
        return;
    }
    while (len > 0 && !c->finished) {
        size_t used = 0;
        bool complete = false;
        if (c->complete) { /* the bytes of the first message are still needed; a second one is an error */
            end_call(c, TD_ERR_BAD_REQUEST, "this method takes one message");
            return;
        }
        td_err err = td_grpc_reader_feed(&c->reader, data, len, &used, &complete);
        if (err != TD_OK) {
            refuse_bytes(c, err);
            return;
        }
        data += used;
        len -= used;
        c->buffered += used;
        *pool_of(c) += used;
        bound_buffers(c);
        if (complete && !c->finished) {
            message_complete(c);
        }
    }
}

static void on_end(void *arg, struct td_h2_stream *stream)
{
    (void)arg;
    struct td_grpc_call *c = td_h2_stream_user(stream);
    if (c == NULL || c->finished || c->method == NULL) {
        return;
    }
    if (!td_grpc_reader_between(&c->reader)) {
        end_call(c, TD_ERR_BAD_REQUEST, "the last message is cut off");
    } else if (c->method->client_streams) {
        c->method->handle(c->service->arg, c, NULL, 0);
    } else if (!c->complete) {
        end_call(c, TD_ERR_BAD_REQUEST, "this method takes one message");
    } else {
        c->method->handle(c->service->arg, c, c->reader.message.data, c->reader.message.len);
        release(c); /* the call itself outlives its finish */
    }
}

static void on_gone(void *arg, struct td_h2_stream *stream)
{
    struct td_grpc_server *s = arg;
    struct td_grpc_call *c = td_h2_stream_user(stream);
    if (c == NULL) {
        return;
    }
    void (*gone)(void *a) = c->gone;
    void *gone_arg = c->gone_arg;
    if (!c->finished) {
        let_go(c, td_h2_stream_was_slow(stream) ? TD_GRPC_RESOURCE_EXHAUSTED : TD_GRPC_CANCELLED);
    } else {
        gone = NULL;
    }
    td_grpc_reader_fini(&c->reader);
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        s->calls = c->next;
    }
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    c->magic = 0;
    free(c);
    if (gone != NULL) {
        gone(gone_arg);
    }
}

static const struct td_h2_ops ops = {
    .request = on_request, .data = on_data, .end = on_end, .gone = on_gone};

/* ---- time ---- */

static void on_sweep(void *arg)
{
    struct td_grpc_server *s = arg;
    int64_t now = td_now_us();
    for (struct td_grpc_call *c = s->calls; c != NULL; c = c->next) {
        if (now >= c->deadline_us) {
            end_call(c, TD_ERR_BUDGET,
                     "the deadline has passed"); /* frees nothing: that comes with on_gone */
        }
    }
    s->sweeping = s->n_deadlines > 0;
    td_timer_set(s->sweeper, s->sweeping ? now + SWEEP_US : TD_NEVER);
}

/* ---- life ---- */

void td_grpc_server_defaults(struct td_grpc_server_params *p)
{
    memset(p, 0, sizeof *p);
    td_h2_server_defaults(&p->h2);
    p->max_message = TD_GRPC_MAX_MESSAGE;
    p->max_buffered = 256u << 20;
    p->max_open_message = 64u << 10;
    p->max_open_buffered = 4u << 20;
}

td_err td_grpc_server_create(const struct td_grpc_server_params *p,
                             struct td_grpc_server **out_server)
{
    struct td_grpc_server *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->p = *p;
    struct td_h2_server_params h2 = p->h2;
    h2.ops = &ops;
    h2.arg = s;
    td_err err = td_timer_create(h2.loop, "grpc sweep", on_sweep, s, &s->sweeper);
    err = err == TD_OK ? td_h2_server_create(&h2, &s->h2) : err;
    s->p.h2.host = NULL;
    if (err != TD_OK) {
        td_grpc_server_destroy(s);
        return err;
    }
    *out_server = s;
    return TD_OK;
}

struct td_grpc_server *td_grpc_server_destroy(struct td_grpc_server *s)
{
    if (s != NULL) {
        td_h2_server_destroy(s->h2);
        td_timer_destroy(s->sweeper);
        free(s);
    }
    return NULL;
}

void td_grpc_server_on_end(struct td_grpc_server *s,
                           void (*fn)(void *arg, const struct td_grpc_call *c,
                                      enum td_grpc_status status),
                           void *arg)
{
    s->on_end = fn;
    s->on_end_arg = arg;
}

void td_grpc_server_add(struct td_grpc_server *s, const struct td_grpc_service *service)
{
    TD_REQUIRE(s->n_services < TD_GRPC_MAX_SERVICES);
    s->services[s->n_services++] = *service;
}

struct td_h2_server *td_grpc_server_h2(struct td_grpc_server *s)
{
    return s->h2;
}

const char *td_grpc_server_service(const struct td_grpc_server *s, uint32_t i)
{
    return i < s->n_services ? s->services[i].name : NULL;
}

const struct td_http_request *td_grpc_call_request(const struct td_grpc_call *c)
{
    return td_h2_stream_request(c->stream);
}

const char *td_grpc_call_peer(const struct td_grpc_call *c)
{
    return td_h2_stream_peer(c->stream);
}

const char *td_grpc_call_service(const struct td_grpc_call *c)
{
    return c->service != NULL ? c->service->name : "unknown";
}

const char *td_grpc_call_method(const struct td_grpc_call *c)
{
    return c->method != NULL ? c->method->name : "unknown";
}

bool td_grpc_call_verified(const struct td_grpc_call *c)
{
    return td_h2_stream_verified(c->stream);
}

int64_t td_grpc_call_deadline(const struct td_grpc_call *c)
{
    return c->deadline_us;
}

void td_grpc_call_set_tag(struct td_grpc_call *c, void *tag)
{
    c->tag = tag;
}

void *td_grpc_call_tag(const struct td_grpc_call *c)
{
    return c->tag;
}

void td_grpc_call_on_gone(struct td_grpc_call *c, void (*fn)(void *arg), void *arg)
{
    TD_REQUIRE(c->magic == CALL_MAGIC && !c->finished);
    c->gone = fn;
    c->gone_arg = arg;
}

void td_grpc_call_on_empty(struct td_grpc_call *c, void (*fn)(void *arg), void *arg)
{
    TD_REQUIRE(c->magic == CALL_MAGIC && !c->finished);
    td_h2_stream_on_empty(c->stream, fn, arg);
}

void td_grpc_call_set_request_id(struct td_grpc_call *c, const char *id)
{
    (void)snprintf(c->request_id, sizeof c->request_id, "%s", id);
}

const char *td_grpc_call_request_id(const struct td_grpc_call *c)
{
    return c->request_id;
}

void td_grpc_call_set_background(struct td_grpc_call *c)
{
    td_h2_stream_set_background(c->stream);
}
