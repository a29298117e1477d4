/* rt_place.h - placement: which pair (P, D) runs a request, by least predicted completion.
 *
 * The predictor is named "queue-linear": completion = (prompt tokens waiting on P + own prompt) *
 * P's measured cost per token + transfer tail + wait for D's blocks + expected output * D's
 * measured step time, grown with its batch. A node that serves both roles is a candidate pair of
 * its own (it prefills locally: decision "decode-only"). A node whose link is down gets
 * nothing; while no other pair is there, requests wait for it. "round-robin" exists to be beaten
 * (tests/unit/router/rt_place_test.c) and as a fallback by configuration. Pure function of the node
 * table. Failure: TD_ERR_NO_NODE (a role has no usable node), TD_ERR_NO_PAIR (none fit together),
 * TD_ERR_OVERLOADED (all fitting pairs are full, or links are down: keep the request queued), TD_ERR_CONTEXT_LENGTH (no
 * node's context or whole pool could ever hold it; a candidate that its pool excludes says TD_ERR_NO_CAPACITY).
 */
#ifndef ROUTER_RT_PLACE_H
#define ROUTER_RT_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "router/rt_nodes.h"

enum rt_policy { RT_POLICY_PREDICT, RT_POLICY_ROUND_ROBIN };

struct rt_place_request {
    uint32_t n_prompt, max_output;
    uint64_t only_p, only_d; /* this pair and no other: a probe; 0: any */
    uint64_t avoid[4];       /* node epochs that failed this request; 0-terminated or full */
};

struct rt_candidate { /* for `explain` */
    uint64_t p_epoch, d_epoch;
    td_err excluded;                        /* TD_OK: scored */
    bool avoided;                           /* failed this request before: last choice */
    int64_t prefill_us, wait_us, decode_us; /* predicted parts */
    int64_t score_us;
    uint64_t waiting_tok;               /* prompt tokens ahead on P */
    uint32_t free_blk, need_blk, d_run; /* blocks of D, and works on it */
};

#define RT_MAX_CANDIDATES 64
struct rt_decision {
    struct rt_node *p, *d; /* equal: local prefill */
    int64_t predicted_ttft_us, predicted_us;
    uint32_t
        n_candidates; /* seen; when there are more than fit, the chosen and the best are kept */
    struct rt_candidate candidates[RT_MAX_CANDIDATES];
};

struct rt_placer {
    enum rt_policy policy;
    uint32_t next; /* round robin */
    uint32_t
        max_node_queue; /* works waiting on one prefill node before the router keeps them itself */
};

td_err rt_place(struct rt_placer *pl, struct rt_nodes *ns, const struct rt_place_request *r,
                struct rt_decision *out) TD_MUST_CHECK;
/* Lower is better; what cannot run the request comes after everything that can. */
bool rt_candidate_better(const struct rt_candidate *a, const struct rt_candidate *b);
/* KV blocks a request needs at D when it joins. */
uint32_t rt_blocks_needed(const struct rt_node *d, uint32_t n_prompt);

#endif
