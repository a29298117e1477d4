/* rt_trace.h - a client's request as spans: one of kind SERVER for the whole, children for the waits and placements.
 *
 * What: takes the caller's W3C context or begins a trace, decides sampling, says what context the nodes get (their spans
 * are children of ours), and puts the spans when the request is over. Without an exporter the caller's context is handed
 * on to the nodes as it came.
 * Not: an exporter (common/io/otlp.h), the nodes' stages (common/node/node_trace.h). Prompts never enter a span.
 * Owner: rt_client. Thread: loop. Failure: none; the exporter counts what it drops.
 */
#ifndef ROUTER_RT_TRACE_H
#define ROUTER_RT_TRACE_H

#include "common/base/trace.h"
#include "common/io/http_server.h"
#include "router/rt_api.h"
#include "router/rt_shell.h"

struct rt_trace {
    bool known, recorded; /* an identity exists; spans are put */
    struct td_trace own;
    uint8_t parent[8]; /* the caller's span; zero: none */
    char state[TD_TRACESTATE_MAX];
    char traceparent[TD_TRACEPARENT_LEN]; /* for the nodes; "" for none */
};

/* What the whole request was. */
struct rt_trace_request {
    bool chat;
    const char *model, *path, *response_id, *request_id;
    const struct rt_api_request *api;          /* NULL: not parsed */
    const struct td_sampling_params *sampling; /* of the first prompt; NULL: none */
    int64_t start_us, end_us, ttft_us;         /* the last 0: no token */
    int status;
    td_err err;
    const char *const *finish; /* of each choice */
    uint32_t n_choices;
    uint64_t input_tokens, output_tokens;
};

struct rt_core;

void rt_trace_begin(const struct rt_shell_params *p, const struct td_http_request *r,
                    struct rt_trace *out);
/* The digits of the trace's id, "" when there is none. */
const char *rt_trace_id(const struct rt_trace *t, char out[33]);
/* The attempts of one choice that ended: waits in the queue and placements with what they were weighed against. */
void rt_trace_choice(struct td_otlp *o, const struct rt_trace *t, const struct rt_core *core,
                     uint64_t last_decision, uint32_t choice);
void rt_trace_end(const struct rt_shell_params *p, uint16_t port, const struct rt_trace *t,
                  const struct rt_trace_request *r);

#endif
