/* node_metrics.h - a node's figures: tandem_node_* (interfaces.md 2.3, 2.4) and the vllm:* names of 2.1 that other tools
 * read.
 *
 * Owner: node shell. Thread: loop; scraping happens there too.
 */
#ifndef TD_NODE_NODE_METRICS_H
#define TD_NODE_NODE_METRICS_H

#include "common/base/err.h"
#include "common/base/metrics.h"
#include "common/io/grpc_frame.h"
#include "common/node/core.h"

struct td_node;
struct nd_metrics;

td_err nd_metrics_create(struct td_node *n, struct nd_metrics **out_metrics) TD_MUST_CHECK;
struct nd_metrics *nd_metrics_destroy(struct nd_metrics *m);
void nd_metrics_observe(struct nd_metrics *m, enum nd_metric what, double value);
/* A work has ended. */
void nd_metrics_done(struct nd_metrics *m, const struct nd_done *d);
void nd_metrics_step(struct nd_metrics *m, int64_t exec_us);
void nd_metrics_xfer(struct nd_metrics *m, const struct td_xfer_event *ev);
void nd_metrics_send_failed(struct nd_metrics *m);
void nd_metrics_request_bytes(struct nd_metrics *m, size_t bytes);
void nd_metrics_response_bytes(struct nd_metrics *m, size_t bytes);
/* A call of gRPC has ended, on whichever port. */
void nd_metrics_call(struct nd_metrics *m, const char *service, const char *method,
                     enum td_grpc_status status);
td_err nd_metrics_write(struct nd_metrics *m, struct td_buf *out) TD_MUST_CHECK;

#endif
