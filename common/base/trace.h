/* trace.h - W3C trace context: the identity of a request across processes.
 *
 * What: reads and writes `traceparent` (00-<trace>-<span>-<flags>) and checks `tracestate`. A later version's header is
 * read by its first four fields, as the standard asks. Not: spans (common/io/otlp.h).
 * Owner: plain values. Thread: any. Bounds: TD_TRACEPARENT_LEN, TD_TRACESTATE_MAX. Failure: false; nothing is written.
 */
#ifndef TD_BASE_TRACE_H
#define TD_BASE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#define TD_TRACEPARENT_LEN 56 /* with its end */
#define TD_TRACESTATE_MAX  513

struct td_trace {
    uint8_t trace_id[16], span_id[8];
    bool sampled;
};

bool td_trace_parse(const char *traceparent, struct td_trace *out_trace);
void td_trace_format(const struct td_trace *t, char out[TD_TRACEPARENT_LEN]);
/* Hexadecimal digits of n bytes and an end: out has 2 * n + 1. */
void td_trace_hex(const uint8_t *bytes, uint32_t n, char *out);
/* Whether a list of key=value members is fit to be handed on. */
bool td_tracestate_ok(const char *tracestate);
/* A new identity: of a trace (and its first span), or of a span in it. */
void td_trace_new(struct td_trace *t);
void td_trace_new_span(struct td_trace *t);
/* Whether this trace is among the share `ratio` of all: a function of its id, so that every process decides alike. */
bool td_trace_in_ratio(const struct td_trace *t, double ratio);

#endif
