/* rt_ledger.h - the request ledger: one entry for each request from submit until both its nodes
 * have let go.
 *
 * It holds what a replay needs: prompt, sampling settings, seed, the tokens already sent. Owner and
 * thread: rt_core's. Bounds: max_requests entries. Failure: TD_ERR_OVERLOADED when full,
 * TD_ERR_NO_MEMORY for a prompt.
 */
#ifndef ROUTER_RT_LEDGER_H
#define ROUTER_RT_LEDGER_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/base/heap.h"
#include "router/rt_core.h"

struct rt_entry {
    enum rt_phase phase;
    uint32_t slot;
    uint64_t counter;
    uint32_t attempt, replays, deaths; /* deaths: nodes lost while this request ran on them */
    int32_t priority;
    int32_t *tokens; /* owned: prompt, then output; room for n_prompt + max_tokens */
    uint32_t n_prompt, n_output;
    struct td_sampling_params sampling;
    struct td_logit_bias *bias; /* owned copy, or NULL */
    char tenant[64], traceparent[64], request_id[TD_WIRE_MAX_NAME];
    char *tracestate; /* owned; NULL: none */
    uint8_t cache_salt[32], nonce[16];
    void *user;
    uint64_t p_epoch, d_epoch; /* of this attempt; 0: none or already let go */
    uint32_t p_tok, d_blk;     /* charged to the nodes' books */
    uint64_t avoid[4];
    uint64_t only_p, only_d; /* 0: any */
    td_err last_err;         /* of the last failed attempt */
    enum td_finish finish;   /* of the last token, while closing */
    bool user_ended;         /* RT_DO_END was given out */
    bool d_spoke;    /* a token of this attempt came from D: it has taken the request over */
    bool told;       /* closing: its nodes have been told to stop */
    bool park;       /* rt_submit */
    bool unreserved; /* this attempt's Reserve waits for its first token */
    int64_t submit_us, queued_us, placed_us, first_us, last_us, deadline_us;
    int64_t wait_pair_until_us; /* a replay gives up waiting for a pair then */
    int64_t predicted_ttft_us;
    uint64_t decision; /* of the last attempt, rt_core_decision(); 0: none */
    struct td_wire_stages stages;
    struct td_heap_node timer; /* deadline of the phase */
    struct td_heap_node order; /* place in the admission queue: key = priority, then arrival */
};

struct rt_ledger {
    struct rt_entry *entries; /* owned, [max] */
    uint32_t max;
    uint32_t *free_slots; /* owned */
    uint32_t n_free;
    uint64_t next_counter;
    uint32_t by_phase[RT_PHASES];
    struct td_map *by_counter; /* owned */
};

td_err rt_ledger_init(struct rt_ledger *l, uint32_t max) TD_MUST_CHECK;
void rt_ledger_fini(struct rt_ledger *l);
/* A new entry in phase QUEUED with a copy of everything in `s`. */
td_err rt_ledger_open(struct rt_ledger *l, const struct rt_submit *s,
                      struct rt_entry **out_entry) TD_MUST_CHECK;
/* Frees the entry; its timer and order nodes must not be queued. */
void rt_ledger_close(struct rt_ledger *l, struct rt_entry *e);
struct rt_entry *rt_ledger_find(const struct rt_ledger *l, uint64_t counter);
/* The only way to change a phase: checks the edge, keeps the counts. */
void rt_ledger_set_phase(struct rt_ledger *l, struct rt_entry *e, enum rt_phase to);
const char *rt_phase_name(enum rt_phase p);

#endif
