/* otlp.h - spans to a collector: OpenTelemetry's OTLP over HTTP, in its JSON encoding.
 *
 * What: td_otlp_put() encodes one finished span and leaves it in a bounded ring; a thread of its own gathers what lies
 * there and posts it to <endpoint>/v1/traces, at most once in interval_us. Times are td_now_us()'s.
 * https:// checks the collector's certificate against the system's CAs or a file's; a renewed file is read after a failed post.
 * Not: sampling (the caller's), metrics, OTLP over gRPC or in protobuf's binary form.
 * Owner: the shell that makes it. Thread: put and stats are the creator's; the network is the other thread's alone, so a
 * slow or dead collector never holds the loop.
 * Bounds: TD_OTLP_MAX_HEADERS headers, TD_OTLP_QUEUE spans, TD_OTLP_BATCH a post, TD_OTLP_MAX_SPAN bytes a span.
 * Failure: a span that does not fit, or whose post fails (it is tried once), is dropped and counted; the log says so
 * when a collector goes and when it is back.
 */
#ifndef TD_IO_OTLP_H
#define TD_IO_OTLP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/trace.h"

#define TD_OTLP_QUEUE       4096
#define TD_OTLP_BATCH       512
#define TD_OTLP_MAX_SPAN    16384
#define TD_OTLP_PATH        "/v1/traces"
#define TD_OTLP_MAX_HEADERS 16

struct td_otlp;

/* Sent with every post: keys of a hosted collector, say. */
struct td_otlp_headers {
    char text[8192]; /* names and values, each ended by 0 */
    uint32_t n;
    struct {
        uint16_t name, value; /* where in text */
    } at[TD_OTLP_MAX_HEADERS];
};

struct td_otlp_params {
    const char *url;                       /* http://host:port/v1/traces, or https:// */
    const char *ca;                        /* of https: a PEM file; NULL or "": the system's CAs */
    const char *cert, *key;                /* PEM files; NULL or "": no certificate to show */
    const struct td_otlp_headers *headers; /* copied; NULL: none */
    const char *service;                   /* service.name */
    const char *instance;                  /* service.instance.id */
    const char *version;                   /* service.version */
    int64_t interval_us, timeout_us;       /* between posts; of one post. 0: 1 s, 5 s */
};

enum td_attr_type { TD_ATTR_TEXT, TD_ATTR_INT, TD_ATTR_REAL, TD_ATTR_TEXTS };
struct td_attr {
    const char *key;
    enum td_attr_type type;
    const char *text;
    int64_t integer; /* TEXTS: how many */
    double real;
    const char *const *texts;
};
/* Rows of an attribute list. */
#define TD_TEXT(k, v) ((struct td_attr){.key = (k), .type = TD_ATTR_TEXT, .text = (v)})
#define TD_INT(k, v)  ((struct td_attr){.key = (k), .type = TD_ATTR_INT, .integer = (int64_t)(v)})
#define TD_TEXTS(k, v, n)                                                                          \
    ((struct td_attr){.key = (k), .type = TD_ATTR_TEXTS, .texts = (v), .integer = (int64_t)(n)})
#define TD_REAL(k, v) ((struct td_attr){.key = (k), .type = TD_ATTR_REAL, .real = (v)})

enum td_span_kind { TD_SPAN_INTERNAL = 1, TD_SPAN_SERVER = 2 };
struct td_span {
    struct td_trace trace;
    uint8_t parent[8];        /* zero: none */
    const char *name, *state; /* state: W3C tracestate, "" for none */
    enum td_span_kind kind;
    int64_t start_us, end_us;
    const struct td_attr *attrs;
    uint32_t n_attrs;
    const char *error; /* NULL: fine; else what went wrong */
};

/* TD_ERR_CONFIG or TD_ERR_NO_FILE, logged, when the endpoint is not a URL that we speak, or its TLS files cannot be used. */
td_err td_otlp_create(const struct td_otlp_params *p, struct td_otlp **out_otlp) TD_MUST_CHECK;
/* Posts what is left, within two seconds after the post that is under way. NULL is fine. */
struct td_otlp *td_otlp_destroy(struct td_otlp *o);
void td_otlp_put(struct td_otlp *o, const struct td_span *s);

struct td_otlp_stats {
    uint64_t sent, dropped, failed; /* spans: taken by the collector; no room; post failed */
};
void td_otlp_stats(const struct td_otlp *o, struct td_otlp_stats *out);

/* What flags and OpenTelemetry's environment say together. */
struct td_otlp_setting {
    char url[2048]; /* "": no traces */
    char service[128];
    double ratio;                   /* of traces that begin here; a caller's decision is kept */
    bool ratio_always;              /* the ratio decides for traces that began elsewhere too */
    char ca[1024];                  /* OTEL_EXPORTER_OTLP_CERTIFICATE */
    char cert[1024], key[1024];     /* OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE, _CLIENT_KEY */
    struct td_otlp_headers headers; /* OTEL_EXPORTER_OTLP_HEADERS */
};
/* An `endpoint` of "" and a `ratio` < 0 are not given: then OTEL_EXPORTER_OTLP_TRACES_ENDPOINT (a whole URL) or
 * OTEL_EXPORTER_OTLP_ENDPOINT, and OTEL_TRACES_SAMPLER with its _ARG, decide, and OTEL_EXPORTER_OTLP_PROTOCOL must be
 * http/json. Headers and TLS files are the environment's; of each OTEL_EXPORTER_OTLP_* the form with TRACES_ goes first.
 * OTEL_SERVICE_NAME goes before `service`;
 * OTEL_SDK_DISABLED=true switches all off. TD_ERR_CONFIG, logged, for what we do not know or cannot reach. */
td_err td_otlp_setting(const char *endpoint, double ratio, const char *service,
                       struct td_otlp_setting *out) TD_MUST_CHECK;

#endif
