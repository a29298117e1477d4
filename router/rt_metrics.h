/* rt_metrics.h - the router's figures: the families of interfaces.md 2.4 that this version serves,
 * by name.
 *
 * Owner: router shell. Thread: updates on the loop; the registry allows any. The list of names is
 * what docs/metrics.md prints and tests/integration scrapes: each is non-zero after one request, or
 * documented as an error counter.
 */
#ifndef ROUTER_RT_METRICS_H
#define ROUTER_RT_METRICS_H

#include "common/base/err.h"
#include "common/base/metrics.h"
#include "common/io/grpc_frame.h"
#include "router/rt_core.h"

struct rt_shell;
struct rt_metrics;

td_err rt_metrics_create(struct rt_shell *s, struct rt_metrics **out_metrics) TD_MUST_CHECK;
struct rt_metrics *rt_metrics_destroy(struct rt_metrics *m);
/* An observation of the core. */
void rt_metrics_observe(struct rt_metrics *m, enum rt_metric what, double value);
/* A finished HTTP answer of the API: its status. */
void rt_metrics_answer(struct rt_metrics *m, int status, td_err err);
/* A call of gRPC is over. The names are those of tables, never a client's words. */
void rt_metrics_call(struct rt_metrics *m, const char *service, const char *method,
                     enum td_grpc_status status);
/* A step of the core that placed requests took so long for each. */
void rt_metrics_scheduler(struct rt_metrics *m, double seconds);
/* A request of the API is over: OpenTelemetry's figures. */
struct rt_metrics_done {
    bool chat;
    const char *model; /* one of the served names */
    td_err err;
    double seconds, ttft_s, tpot_s; /* the last 0: fewer than two tokens */
    uint64_t n_prompt, n_output;
};
void rt_metrics_request(struct rt_metrics *m, const struct rt_metrics_done *d);
void rt_metrics_streaming_ttft(struct rt_metrics *m, bool streaming, double seconds);
td_err rt_metrics_write(struct rt_metrics *m, struct td_buf *out) TD_MUST_CHECK;

#endif
