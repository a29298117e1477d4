/* rt_explain.h - a request's attempts as JSON: where each went, which pairs it was weighed against, why they lost.
 *
 * What: the chain of decisions that the core keeps (rt_core_decision), the first attempt first. Shared by /debug/request
 * and whoever else answers "why there". Not: stage times (rt_history.h).
 * Thread: loop. Bounds: RT_EXPLAIN_TRIES attempts, RT_DECISION_PAIRS pairs each. Failure: TD_ERR_FULL of the buffer.
 */
#ifndef ROUTER_RT_EXPLAIN_H
#define ROUTER_RT_EXPLAIN_H

#include "common/base/buf.h"
#include "router/rt_core.h"

#define RT_EXPLAIN_TRIES 8

/* The decisions of a request, first attempt first, from its last one; forgotten ones are missing. Returns how many. */
uint32_t rt_explain_tries(const struct rt_core *c, uint64_t last,
                          const struct rt_decision_record *out[RT_EXPLAIN_TRIES]);
/* Why a pair was not taken, in words: "" for the chosen one (index 0 of a record). Returns buf. */
const char *rt_explain_why_not(const struct rt_decision_record *r, uint32_t i, char *buf,
                               size_t cap);
/* Appends "tries":[...]; times count from origin_us. */
td_err rt_explain_json(const struct rt_core *c, uint64_t last, int64_t origin_us,
                       struct td_buf *out) TD_MUST_CHECK;

#endif
