/* rt_core.h - the router's heart: admission, the request ledger with its replays, placement. A pure
 * state machine.
 *
 * What: rt_core_step(state, now, event) -> actions. Events: a request is submitted or cancelled, a
 * node comes, goes or says something, time passes. Actions: send a message to a node, give a token
 * to the client, end the request, note a figure. Not: HTTP, tokenising, sockets, clocks, random
 * numbers (seeds and nonces come with the submit event). Memory: one allocation for a request's
 * prompt, taken at submit and given back at its end; nothing per token. Promises: each request ends
 * exactly once (RT_DO_END); tokens come in order, without gap or repeat, whatever attempt they stem
 * from; every entry has a deadline; a node's death replays its requests elsewhere (at most
 * max_replays times, never a third time after two deaths under it). Owner and thread: router shell
 * (loop) or simulator. Bounds: rt_core_params. Failure: of creation only.
 */
#ifndef ROUTER_RT_CORE_H
#define ROUTER_RT_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/sampling.h"
#include "proto/wire.h"
#include "router/rt_nodes.h"
#include "router/rt_place.h"

/* Of one step. A lost node ends or replays all its requests at once, four actions each; a message
 * of TD_WIRE_MAX_TOKENS_MSG tokens is seven each at worst. */
#define RT_MAX_ACTIONS  131072
#define RT_MAX_REQUESTS 16384 /* --max-concurrent-requests */

struct rt_core_params {
    uint64_t epoch;           /* of this router process */
    uint32_t max_requests;    /* ledger entries: running, queued and closing */
    uint32_t max_queue;       /* --queue-size: waiting in the router */
    uint64_t max_queue_bytes; /* prompt bytes waiting in the router */
    uint32_t max_node_queue;  /* works waiting on one node before the router keeps them itself */
    uint32_t max_replays;     /* 2 */
    bool resume;              /* replay also after the first token */
    int64_t pair_wait_us; /* how long a replay, or a request whose node is lost, waits for a pair */
    int64_t close_wait_us; /* how long an ended request waits for its nodes' acknowledgement */
    enum rt_policy policy;
    const char *model_name;
};

struct rt_submit {
    const int32_t *prompt; /* copied */
    uint32_t n_prompt;
    struct td_sampling_params sampling; /* seed set; max_tokens already limited by the context */
    int32_t priority;
    int64_t budget_us;                             /* from now */
    const char *tenant, *traceparent, *request_id; /* copied, cut to their bounds */
    const char *tracestate;                        /* copied; NULL or "": none */
    uint8_t cache_salt[32];
    uint64_t only_p, only_d; /* run on this pair and no other, and once: a probe; 0: any */
    /* Decode hears of it after the first token: all KV waits on prefill, then moves at once. */
    bool park;
    uint8_t nonce[16]; /* random; tickets of this request derive from it */
    void *user;        /* comes back in TOKEN and END */
};

enum rt_event_type {
    RT_EV_SUBMIT,  /* answered at once by `out_counter`; refusals are an END action with counter 0
                      and user set */
    RT_EV_CANCEL,  /* counter; reason: CANCELLED (client gone), or OK: the answer is complete (stop
                      string) */
    RT_EV_NODE_UP, /* node_info of a new session */
    RT_EV_NODE_LOST, /* node_epoch */
    RT_EV_NODE_LINK, /* node_epoch, attached: its session has lost its connection, or has one again */
    RT_EV_NODE_MSG, /* node_epoch, msg */
    RT_EV_TICK,
    RT_EV_DRAIN,      /* refuse new requests */
    RT_EV_NODE_DRAIN, /* node_epoch, drain: an operator drains a node, or takes it back */
};

struct rt_event {
    enum rt_event_type type;
    const struct rt_submit *submit;
    uint64_t counter;
    td_err reason;
    uint64_t node_epoch;
    bool attached;
    const struct td_wire_node_info *node_info;
    const struct td_wire_msg *msg;
    const struct td_wire_drain *drain;
};

enum rt_metric {
    RT_M_ADMITTED, /* value: 1 */
    RT_M_REFUSED,  /* value: td_err */
    RT_M_DECISION, /* value: 0 decode-only, 1 prefill-decode */
    RT_M_QUEUE_US, /* time in the router's queue */
    RT_M_TTFT_US,
    RT_M_ITL_US,
    RT_M_REQUEST_US,
    RT_M_TTFT_ERROR_US, /* |predicted - measured| of the placement's predictor */
    RT_M_RETRY,         /* value: td_err that caused a replay */
    RT_M_STALE_TOKEN,   /* a token of an old attempt or position was dropped */
    RT_M_PROMPT_TOKENS,
    RT_M_OUTPUT_TOKENS,
    RT_METRICS
};

enum rt_action_type { RT_DO_SEND, RT_DO_TOKEN, RT_DO_END, RT_DO_OBSERVE };

struct rt_action {
    enum rt_action_type type;
    uint64_t node_epoch;           /* SEND */
    const struct td_wire_msg *msg; /* SEND; in the arena */
    uint64_t counter;              /* TOKEN, END */
    void *user;
    uint32_t index; /* TOKEN: of the output, from 0 */
    int32_t token;
    float logprob;
    enum td_finish finish; /* TOKEN: last one; END */
    td_err err;            /* END */
    const char *text;      /* END: for people */
    uint32_t n_output;     /* END */
    uint32_t attempts;     /* END */
    uint64_t decision;     /* END: of the last attempt, for rt_core_decision(); 0: never placed */
    int64_t queue_us;      /* END: in the router's queue, last attempt */
    char p_name[64], d_name[64];  /* END: where the last attempt ran; "" when nowhere */
    struct td_wire_stages stages; /* END: both nodes' */
    enum rt_metric metric;
    double value;
};

struct rt_actions {
    struct rt_action *list;
    uint32_t n;
    struct td_arena *arena;
    bool overflow;
};

td_err rt_actions_init(struct rt_actions *a) TD_MUST_CHECK;
void rt_actions_fini(struct rt_actions *a);
void rt_actions_reset(struct rt_actions *a);

struct rt_core;

td_err rt_core_create(const struct rt_core_params *p, struct rt_core **out_core) TD_MUST_CHECK;
struct rt_core *rt_core_destroy(struct rt_core *c);
/* out_counter (SUBMIT only, may be NULL): the request's counter, 0 when refused. */
void rt_core_step(struct rt_core *c, int64_t now_us, const struct rt_event *ev,
                  struct rt_actions *out, uint64_t *out_counter);
/* Earliest deadline, TD_NEVER when none. */
int64_t rt_core_next_deadline(const struct rt_core *c);

/* ---- looking in ---- */
enum rt_phase { RT_FREE, RT_QUEUED, RT_PREFILL, RT_DECODE, RT_CLOSING, RT_PHASES };
struct rt_request_view {
    struct td_work_id id;
    enum rt_phase phase;
    const char *request_id, *tenant;
    uint64_t p_epoch, d_epoch;
    uint32_t n_prompt, n_output, replays;
    uint64_t decision; /* of the running or last attempt; 0: not placed yet */
    int64_t since_us, deadline_us;
};
uint32_t rt_core_requests(const struct rt_core *c, struct rt_request_view *out, uint32_t cap);
uint32_t rt_core_count(const struct rt_core *c, enum rt_phase phase);
uint64_t rt_core_queued_bytes(const struct rt_core *c);
const struct rt_nodes *rt_core_nodes(const struct rt_core *c);
/* Where one attempt went and why. The last RT_DECISIONS are kept. */
#define RT_DECISIONS        1024
#define RT_DECISION_PAIRS   12
#define RT_DECISION_SKIPPED 8
struct rt_decision_record {
    uint64_t number, previous; /* of this one; of the request's attempt before, 0 for none */
    uint64_t counter;
    uint32_t attempt;
    int64_t submit_us, at_us; /* arrival of the request, placement of this attempt */
    int64_t failed_us;        /* when this attempt failed; 0: it did not */
    td_err failure;
    int64_t predicted_ttft_us, predicted_us;
    char p_name[64], d_name[64];
    uint32_t
        n_candidates; /* seen; the chosen first, then the best RT_DECISION_PAIRS - 1 in order */
    struct rt_candidate candidates[RT_DECISION_PAIRS];
    uint32_t n_skipped; /* nodes that take no work now; the first RT_DECISION_SKIPPED are named */
    struct rt_skipped {
        char name[64];
        const char *why; /* static */
    } skipped[RT_DECISION_SKIPPED];
};
/* NULL when there is none or it has been forgotten. */
const struct rt_decision_record *rt_core_decision(const struct rt_core *c, uint64_t number);
/* The request of this counter, while the ledger has it. */
bool rt_core_request(const struct rt_core *c, uint64_t counter, struct rt_request_view *out);
/* The same by the client's id; of several choices the first. */
bool rt_core_request_named(const struct rt_core *c, const char *request_id,
                           struct rt_request_view *out);
/* Its end, were it now, would be planned: it has drained to the end, or this router ends. */
bool rt_core_node_may_leave(const struct rt_core *c, uint64_t epoch);
/* Invariants: phases sum up, every live entry has a deadline, nobody waits on a node that is gone.
 */
td_err rt_core_check(const struct rt_core *c) TD_MUST_CHECK;

#endif
