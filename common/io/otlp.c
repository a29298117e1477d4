/* Design: a span is text from the moment it is put, so that the other thread needs nothing of its maker's. The ring holds
 * pointers to such texts; a post joins up to TD_OTLP_BATCH of them between a head and a tail that never change.
 */
#define TD_LOG_ROOM "io"
#include "common/io/otlp.h"

#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/ring.h"
#include "common/io/http_client.h"
#include "common/io/tls_client.h"

#define BATCH_BYTES (TD_OTLP_BATCH * TD_OTLP_MAX_SPAN + 4096)
#define MAX_ANSWER  65536
#define FLUSH_US    2000000 /* for what is left when we are to stop */

struct td_otlp {
    char url[TD_HTTP_CLIENT_MAX_URL];
    char ca[1024], cert[1024], key[1024];
    struct td_otlp_headers header_text;
    struct td_http_client_header headers[TD_OTLP_MAX_HEADERS]; /* into header_text */
    int64_t interval_us, timeout_us;
    int64_t wall_offset_us; /* from the monotonic clock to unix time */
    struct td_buf head;     /* of every post, up to the list of spans */
    struct td_buf span;     /* scratch of td_otlp_put */
    struct td_ring *ring;   /* owned; of char *, owned */
    pthread_t thread;
    bool started;
    atomic_bool stop;
    /* The thread's. */
    struct td_buf body;
    struct td_tls_client *tls; /* owned; NULL: plain http */
    bool down;                 /* the last post failed */
    /* Relaxed: counts for figures. */
    atomic_uint_fast64_t sent, dropped, failed;
};

/* ---- encoding ---- */

static td_err put_text(struct td_buf *b, const char *key, const char *value)
{
    TD_TRY(td_buf_printf(b, "\"%s\":", key));
    return td_buf_json_string(b, value, strlen(value));
}

static td_err put_attr(struct td_buf *b, const struct td_attr *a, bool first)
{
    TD_TRY(td_buf_puts(b, first ? "{" : ",{"));
    TD_TRY(put_text(b, "key", a->key));
    TD_TRY(td_buf_puts(b, ",\"value\":{"));
    switch (a->type) {
    case TD_ATTR_TEXT:
        TD_TRY(put_text(b, "stringValue", a->text));
        break;
    case TD_ATTR_INT: /* 64-bit numbers are strings in protobuf's JSON */
        TD_TRY(td_buf_printf(b, "\"intValue\":\"%" PRId64 "\"", a->integer));
        break;
    case TD_ATTR_TEXTS:
        TD_TRY(td_buf_puts(b, "\"arrayValue\":{\"values\":["));
        for (int64_t i = 0; i < a->integer; i++) {
            TD_TRY(td_buf_puts(b, i > 0 ? ",{" : "{"));
            TD_TRY(put_text(b, "stringValue", a->texts[i]));
            TD_TRY(td_buf_puts(b, "}"));
        }
        TD_TRY(td_buf_puts(b, "]}"));
        break;
    case TD_ATTR_REAL:
        TD_TRY(td_buf_printf(b, "\"doubleValue\":%.9g", isfinite(a->real) ? a->real : 0.0));
        break;
    }
    return td_buf_puts(b, "}}");
}

static td_err put_attrs(struct td_buf *b, const struct td_attr *attrs, uint32_t n)
{
    TD_TRY(td_buf_puts(b, "\"attributes\":["));
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(put_attr(b, &attrs[i], i == 0));
    }
    return td_buf_puts(b, "]");
}

static td_err encode(const struct td_otlp *o, const struct td_span *s, struct td_buf *b)
{
    static const uint8_t none[8];
    char trace[33], span[17], parent[17];
    td_trace_hex(s->trace.trace_id, 16, trace);
    td_trace_hex(s->trace.span_id, 8, span);
    td_trace_hex(s->parent, 8, parent);
    TD_TRY(td_buf_printf(b, "{\"traceId\":\"%s\",\"spanId\":\"%s\"", trace, span));
    if (memcmp(s->parent, none, sizeof none) != 0) {
        TD_TRY(td_buf_printf(b, ",\"parentSpanId\":\"%s\"", parent));
    }
    if (s->state != NULL && s->state[0] != 0) {
        TD_TRY(td_buf_puts(b, ","));
        TD_TRY(put_text(b, "traceState", s->state));
    }
    TD_TRY(td_buf_puts(b, ","));
    TD_TRY(put_text(b, "name", s->name));
    TD_TRY(td_buf_printf(b,
                         ",\"kind\":%d,\"startTimeUnixNano\":\"%" PRId64
                         "000\",\"endTimeUnixNano\":\"%" PRId64 "000\",\"flags\":%d,",
                         (int)s->kind, s->start_us + o->wall_offset_us,
                         s->end_us + o->wall_offset_us, s->trace.sampled ? 1 : 0));
    TD_TRY(put_attrs(b, s->attrs, s->n_attrs));
    if (s->error != NULL) {
        TD_TRY(td_buf_puts(b, ",\"status\":{\"code\":2,"));
        TD_TRY(put_text(b, "message", s->error));
        TD_TRY(td_buf_puts(b, "}"));
    }
    return td_buf_puts(b, "}");
}

void td_otlp_put(struct td_otlp *o, const struct td_span *s)
{
    td_buf_clear(&o->span);
    td_err err = encode(o, s, &o->span);
    err = err == TD_OK ? td_buf_append(&o->span, "", 1) : err;
    char *text = err == TD_OK ? td_strdup((const char *)o->span.data) : NULL;
    if (text == NULL || td_ring_push(o->ring, &text) != TD_OK) {
        free(text);
        atomic_fetch_add_explicit(&o->dropped, 1, memory_order_relaxed);
    }
}

/* ---- the other thread ---- */

static td_err make_tls(const struct td_otlp *o, struct td_tls_client **out_tls, char *why,
                       size_t cap)
{
    const struct td_tls_client_params p = {.ca = o->ca, .cert = o->cert, .key = o->key};
    return strncmp(o->url, "https:", 6) == 0 ? td_tls_client_create(&p, out_tls, why, cap) : TD_OK;
}

/* The files may have been renewed; what cannot be read now leaves what was. */
static void renew_tls(struct td_otlp *o)
{
    char why[160];
    struct td_tls_client *tls = NULL;
    if (make_tls(o, &tls, why, sizeof why) == TD_OK && tls != NULL) {
        td_tls_client_destroy(o->tls);
        o->tls = tls;
    }
}

static td_err post(struct td_otlp *o)
{
    struct td_http_client_answer a;
    char why[160];
    if (o->down) {
        renew_tls(o);
    }
    struct td_http_client_body body = {.type = "application/json",
                                       .text = (const char *)o->body.data};
    const struct td_http_client_request r = {.url = o->url,
                                             .body = &body,
                                             .headers = o->headers,
                                             .n_headers = o->header_text.n,
                                             .timeout_us = o->timeout_us,
                                             .max_body = MAX_ANSWER,
                                             .tls = o->tls};
    td_err err = td_http_client_run(&r, &a, why, sizeof why);
    if (err == TD_OK) {
        if (a.status < 200 || a.status > 299) {
            (void)snprintf(why, sizeof why, "status %d", a.status);
            err = TD_ERR_IO;
        }
        td_http_client_answer_fini(&a);
    }
    if (err != TD_OK && !o->down) {
        TD_LOG(WARN, "trace collector does not take spans", "url=%s why=\"%s\", dropping them",
               o->url, why);
    } else if (err == TD_OK && o->down) {
        TD_LOG(INFO, "trace collector takes spans again", "url=%s", o->url);
    }
    o->down = err != TD_OK;
    return err;
}

/* Takes up to a batch off the ring into the body; returns how many. */
static uint32_t gather(struct td_otlp *o)
{
    char *text = NULL;
    uint32_t n = 0;
    td_buf_clear(&o->body);
    td_err err = td_buf_append(&o->body, o->head.data, o->head.len);
    while (n < TD_OTLP_BATCH && td_ring_pop(o->ring, &text)) {
        if (text == NULL) {
            continue; /* the doorbell of td_otlp_destroy */
        }
        err = err == TD_OK && n > 0 ? td_buf_puts(&o->body, ",") : err;
        err = err == TD_OK ? td_buf_puts(&o->body, text) : err;
        free(text);
        n++;
    }
    err = err == TD_OK ? td_buf_append(&o->body, "]}]}]}", 7) : err; /* with its end */
    if (err != TD_OK) {
        atomic_fetch_add_explicit(&o->dropped, n, memory_order_relaxed);
        return 0;
    }
    return n;
}

static bool stopping(const struct td_otlp *o)
{
    /* acquire: pairs with the release store of td_otlp_destroy */
    return atomic_load_explicit(&o->stop, memory_order_acquire);
}

/* A post that hangs holds us for its own limit; when we are to stop, the rest gets FLUSH_US in all. */
static void post_all(struct td_otlp *o)
{
    int64_t until = TD_NEVER;
    uint32_t n = gather(o);
    while (n > 0) {
        if (until == TD_NEVER && stopping(o)) {
            until = td_now_us() + FLUSH_US;
            o->timeout_us = o->timeout_us < FLUSH_US ? o->timeout_us : FLUSH_US;
        }
        bool ok = td_now_us() < until && post(o) == TD_OK;
        atomic_fetch_add_explicit(ok ? &o->sent : &o->failed, n, memory_order_relaxed);
        n = gather(o);
    }
}

/* Lets spans come together, unless we are to stop. */
static void wait_for_more(struct td_otlp *o)
{
    int64_t until = td_now_us() + o->interval_us;
    int64_t left = o->interval_us;
    while (left > 0 && !stopping(o) && td_ring_count(o->ring) < TD_OTLP_BATCH) {
        struct pollfd p = {.fd = td_ring_fd(o->ring), .events = POLLIN};
        (void)poll(&p, 1, (int)(left / 1000 + 1));
        td_ring_ack(o->ring);
        left = until - td_now_us();
    }
}

static void *otlp_main(void *arg)
{
    struct td_otlp *o = arg;
    (void)pthread_setname_np(pthread_self(), "otlp");
    while (!stopping(o)) {
        wait_for_more(o);
        post_all(o);
    }
    post_all(o);
    return NULL;
}

/* ---- life ---- */

static td_err make_head(struct td_otlp *o, const struct td_otlp_params *p)
{
    const struct td_attr about[] = {
        TD_TEXT("service.name", p->service), TD_TEXT("service.instance.id", p->instance),
        TD_TEXT("service.version", p->version), TD_TEXT("telemetry.sdk.name", "tandem"),
        TD_TEXT("telemetry.sdk.language", "c")};
    td_buf_init(&o->head, 65536);
    TD_TRY(td_buf_puts(&o->head, "{\"resourceSpans\":[{\"resource\":{"));
    TD_TRY(put_attrs(&o->head, about, TD_COUNT(about)));
    TD_TRY(td_buf_puts(&o->head, "},\"scopeSpans\":[{\"scope\":{\"name\":\"tandem\","));
    TD_TRY(put_text(&o->head, "version", p->version));
    return td_buf_puts(&o->head, "},\"spans\":[");
}

static void copy(char *to, size_t cap, const char *from)
{
    (void)snprintf(to, cap, "%s", from != NULL ? from : "");
}

/* Where the spans go and how; what of it cannot be used is said. */
static td_err take_target(struct td_otlp *o, const struct td_otlp_params *p)
{
    char why[160] = "";
    copy(o->url, sizeof o->url, p->url);
    copy(o->ca, sizeof o->ca, p->ca);
    copy(o->cert, sizeof o->cert, p->cert);
    copy(o->key, sizeof o->key, p->key);
    if (p->headers != NULL) {
        o->header_text = *p->headers;
    }
    for (uint32_t i = 0; i < o->header_text.n; i++) {
        const struct td_otlp_headers *h = &o->header_text;
        o->headers[i] =
            (struct td_http_client_header){h->text + h->at[i].name, h->text + h->at[i].value};
    }
    td_err err = make_tls(o, &o->tls, why, sizeof why);
    if (err == TD_OK && td_http_client_check(p->url, o->tls, why, sizeof why) != TD_OK) {
        err = TD_ERR_CONFIG;
    }
    if (err != TD_OK) {
        TD_LOG(ERROR, "bad trace endpoint", "url=%s why=\"%s\"", p->url, why);
    }
    return err;
}

td_err td_otlp_create(const struct td_otlp_params *p, struct td_otlp **out_otlp)
{
    struct td_otlp *o = td_zalloc(1, sizeof *o);
    if (o == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    o->interval_us = p->interval_us > 0 ? p->interval_us : 1000000;
    o->timeout_us = p->timeout_us > 0 ? p->timeout_us : 5000000;
    o->wall_offset_us = td_wall_us() - td_now_us();
    td_buf_init(&o->span, TD_OTLP_MAX_SPAN);
    td_buf_init(&o->body, BATCH_BYTES);
    td_err err = take_target(o, p);
    err = err == TD_OK ? make_head(o, p) : err;
    err = err == TD_OK ? td_ring_create(TD_OTLP_QUEUE, sizeof(char *), true, &o->ring) : err;
    if (err == TD_OK) {
        o->started = pthread_create(&o->thread, NULL, otlp_main, o) == 0;
        err = o->started ? TD_OK : TD_ERR_NO_MEMORY;
    }
    if (err != TD_OK) {
        td_otlp_destroy(o);
        return err;
    }
    TD_LOG(INFO, "traces go to a collector", "url=%s service=%s headers=%u", o->url, p->service,
           o->header_text.n); /* no values: they are keys */
    *out_otlp = o;
    return TD_OK;
}

struct td_otlp *td_otlp_destroy(struct td_otlp *o)
{
    char *text = NULL;
    if (o == NULL) {
        return NULL;
    }
    if (o->started) {
        /* release: the thread sees everything the loop put before */
        atomic_store_explicit(&o->stop, true, memory_order_release);
        TD_IGNORE(td_ring_push(o->ring, &text)); /* wakes it; when full it is awake anyway */
        (void)pthread_join(o->thread, NULL);
    }
    while (o->ring != NULL && td_ring_pop(o->ring, &text)) {
        free(text);
    }
    td_ring_destroy(o->ring);
    td_tls_client_destroy(o->tls);
    td_buf_fini(&o->head);
    td_buf_fini(&o->span);
    td_buf_fini(&o->body);
    free(o);
    return NULL;
}

void td_otlp_stats(const struct td_otlp *o, struct td_otlp_stats *out)
{
    out->sent = atomic_load_explicit(&o->sent, memory_order_relaxed);
    out->dropped = atomic_load_explicit(&o->dropped, memory_order_relaxed);
    out->failed = atomic_load_explicit(&o->failed, memory_order_relaxed);
}
