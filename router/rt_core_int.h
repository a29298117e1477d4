/* rt_core_int.h - what the parts of the router core share: rt_core.c (events), rt_attempt.c
 * (sending, failing and replaying tries), rt_core_view.c (looking in). Not for others.
 */
#ifndef ROUTER_RT_CORE_INT_H
#define ROUTER_RT_CORE_INT_H

#include "router/rt_core.h"
#include "router/rt_ledger.h"

#define RT_END_GRACE_US                                                                            \
    1000000 /* a finished answer waits so long for D's last word about its stages */
#define RT_ORDER_BITS     40 /* of the arrival in an admission key */
#define RT_PRIORITY_LIMIT 1000000

struct rt_core {
    uint32_t magic;
    struct rt_core_params p; /* model_name borrowed from the creator */
    struct rt_ledger ledger;
    struct rt_nodes nodes;
    struct rt_placer placer;
    struct td_heap *timers; /* owned; entry->timer */
    struct td_heap *queue;  /* owned; entry->order */
    uint64_t queued_bytes;
    bool draining;
    struct rt_decision decision; /* scratch of the last placement */
    struct rt_decision_record decisions[RT_DECISIONS];
    uint64_t n_decisions;
    int64_t now_us;         /* of the step in progress */
    struct rt_actions *out; /* of the step in progress */
};

/* rt_core.c */
struct rt_action *rt__action(struct rt_core *c, enum rt_action_type type);
void rt__observe(struct rt_core *c, enum rt_metric m, double value);
/* Ends the request for the client (once) and lets go of its nodes. */
/* Why placement refuses, for the client. */
const char *rt__refusal_text(td_err err);
void rt__finish(struct rt_core *c, struct rt_entry *e, td_err err, enum td_finish finish,
                const char *text);
void rt__set_timer(struct rt_core *c, struct rt_entry *e, int64_t at_us);

/* rt_core_view.c */
/* Keeps the last placement for `explain`; e->decision names it. */
void rt__record_decision(struct rt_core *c, struct rt_entry *e);
void rt__record_failure(struct rt_core *c, const struct rt_entry *e, td_err err);

/* rt_attempt.c */
/* Puts the entry into the admission queue (phase QUEUED already set). */
void rt__enqueue(struct rt_core *c, struct rt_entry *e);
void rt__dequeue(struct rt_core *c, struct rt_entry *e);
/* Sends queued entries while placement finds pairs. */
void rt__dispatch(struct rt_core *c);
/* Placement for this entry, without sending. */
td_err rt__try_place(struct rt_core *c, const struct rt_entry *e);
/* Tells the nodes of this attempt that still hold it to stop, and takes it off their books. */
void rt__let_go(struct rt_core *c, struct rt_entry *e, td_err reason);
/* One node has let go of this attempt. */
void rt__released(struct rt_core *c, struct rt_entry *e, uint64_t node_epoch);
/* This attempt failed: replay it, or end the request. `failed_epoch`: avoided from now on, 0 for
 * none. */
void rt__attempt_failed(struct rt_core *c, struct rt_entry *e, td_err err, uint64_t failed_epoch,
                        const char *text);
/* The first token of a parked attempt is here: D hears of the request, or, when that was the `last` token, never. */
void rt__reserve_parked(struct rt_core *c, struct rt_entry *e, bool last);
/* The first token of an attempt is here: P's book. */
void rt__prefill_done(struct rt_core *c, struct rt_entry *e);

#endif
