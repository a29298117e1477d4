/* rt_history.h - the last finished requests with their stage times: what /debug/request and
 * `tandemctl get requests` show.
 *
 * Owner and thread: router shell, loop. Bounds: RT_HISTORY records, the oldest gives way. Failure:
 * none.
 */
#ifndef ROUTER_RT_HISTORY_H
#define ROUTER_RT_HISTORY_H

#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "proto/wire.h"

#define RT_HISTORY 1024

struct rt_history_record {
    uint64_t counter;
    char request_id[TD_WIRE_MAX_NAME];
    char prefill[64], decode[64]; /* node names */
    td_err err;
    enum td_finish finish;
    uint32_t attempts, n_prompt, n_output;
    int64_t wall_us; /* of its end */
    int64_t started_us, queue_us, ttft_us, total_us, tpot_us;
    uint64_t decision; /* of the last attempt: rt_core_decision() */
    struct td_wire_stages stages;
};

struct rt_history;
struct rt_history *rt_history_create(void);
struct rt_history *rt_history_destroy(struct rt_history *h);
void rt_history_add(struct rt_history *h, const struct rt_history_record *r);
/* Newest first; NULL past the end. */
const struct rt_history_record *rt_history_get(const struct rt_history *h, uint32_t back);
const struct rt_history_record *rt_history_find(const struct rt_history *h, const char *request_id);
/* Of the requests that ended since then, by the wall clock. */
struct rt_history_recent {
    uint32_t finished, failed;
    int64_t ttft_p50_us, ttft_p95_us, tpot_p50_us, tpot_p95_us; /* 0: none measured */
};
void rt_history_recent(const struct rt_history *h, int64_t since_wall_us,
                       struct rt_history_recent *out);
/* Appends an object without its closing brace, so that the caller can add fields. */
td_err rt_history_fields(const struct rt_history_record *r, struct td_buf *out) TD_MUST_CHECK;
td_err rt_history_json(const struct rt_history_record *r, struct td_buf *out) TD_MUST_CHECK;

#endif
