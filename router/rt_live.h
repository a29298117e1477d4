/* rt_live.h - the last minutes of a router, second by second, and what moved between each pair of nodes: what the live
 * page and `tandemctl top` draw.
 *
 * What: counts what the core observes into the running second; a tick closes it. One row for each pair of names that KV
 * moved between. Not: metrics for a scraper (rt_metrics.h), single requests (rt_history.h).
 * Pure: time and figures come from the caller. Owner and thread: router shell, loop. Bounds: RT_LIVE_SAMPLES seconds,
 * RT_LIVE_PAIRS pairs, the one that was quiet longest gives way. Failure: of creation only.
 */
#ifndef ROUTER_RT_LIVE_H
#define ROUTER_RT_LIVE_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "router/rt_core.h"

#define RT_LIVE_SAMPLES 300
#define RT_LIVE_PAIRS   256

struct rt_live_gauges {
    uint32_t queued, running;     /* requests in the router; on nodes */
    double kv_prefill, kv_decode; /* share of the role's blocks that requests hold, 0 to 1 */
};

struct rt_live;
struct rt_live *rt_live_create(void);
struct rt_live *rt_live_destroy(struct rt_live *l);
void rt_live_observe(struct rt_live *l, enum rt_metric what, double value);
/* A request's end; its KV counts for the pair that it ran on. */
void rt_live_end(struct rt_live *l, int64_t now_us, const struct rt_action *end);
/* At least once a second: closes the second when it is over. */
void rt_live_tick(struct rt_live *l, int64_t now_us, const struct rt_live_gauges *g);
/* Number of the next sample. */
uint64_t rt_live_next(const struct rt_live *l);
/* Appends "sample_fields":[...],"next":N,"samples":[[...],...],"transfers":[...] with the samples from number `since` on. */
td_err rt_live_json(const struct rt_live *l, int64_t now_us, uint64_t since,
                    struct td_buf *out) TD_MUST_CHECK;

#endif
