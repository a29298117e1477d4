/* node_trace.h - what a node tells a trace of a work that has ended: one span for each stage it went through here.
 *
 * What: prefill_queue, prefill, kv_transfer; reserve, decode_queue, decode; all children of the router's span, whose
 * context came with the request. Not: sampling, which is the router's or its caller's.
 * Owner: node shell. Thread: loop. Bounds: ND_SPANS a work. Failure: none here; the exporter counts what it drops.
 */
#ifndef TD_NODE_NODE_TRACE_H
#define TD_NODE_NODE_TRACE_H

#include "common/io/otlp.h"
#include "common/node/core.h"

#define ND_SPANS 5

/* A stage of this work on this node. */
struct nd_stage {
    const char *name;
    int64_t start_us, end_us;
};

/* The stages it went through, in order; pure. Returns how many. */
uint32_t nd_trace_stages(const struct nd_done *d, struct nd_stage out[ND_SPANS]);
/* Does nothing when the work's trace is not sampled. */
void nd_trace_done(struct td_otlp *o, const char *model, const struct nd_done *d);

#endif
