/* local.h - a router inside of the node's own process: requests of a service on this node (VllmEngine) for this node's role.
 *
 * What: keeps the works of the service, says what the role is to be fed for them, and turns what the role says about them into words
 * for the service. Three modes:
 *   WHOLE  role both: the whole request here.
 *   HOLD   role prefill: computes the prompt, says the first token (on_token, index 0, finish NONE whatever max_tokens is), then the
 *          hand-off (on_held). The KV is kept for the node's hold time, which nobody renews, for whoever presents the hand-off; then
 *          on_end: TD_OK when a decode node has taken it, TD_ERR_LEASE when nobody came in time, TD_ERR_CANCELLED after a cancel.
 *   TAKE   role decode: fetches the KV that the hand-off names and says all output tokens, from index 0 (the one that the prefill
 *          node has said already). The request is the same as the hold's: same prompt ids, same sampling, but for max_tokens; the
 *          seed is the hand-off's. One TAKE wins; on_end tells the others why: TD_ERR_STALE taken already, another nonce, or a prefill
 *          process that is gone; TD_ERR_LEASE the hold is over; TD_ERR_PEER_LOST, TD_ERR_TRANSPORT no way to that process.
 * A work ends once. Nothing is replayed: that is the outside router's part (td_err_retryable says whether it may help).
 *
 * A service uses td_node_submit, td_node_cancel, td_node_detach (common/node/node.h), which drive this. What follows from
 * nd_local_create on is for drivers: the node shell and the simulator.
 * Not: sockets, clocks, randomness; deadlines: the role ends every work within its budget or hold time, and is in this process.
 * Owner and thread: the driver (the node's loop). Bounds: ND_LOCAL_MAX_WORKS; all memory at creation. Failure: submit refuses.
 */
#ifndef TD_NODE_LOCAL_H
#define TD_NODE_LOCAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/node/core.h"
#include "common/node/handoff.h"

#define ND_LOCAL_MAX_WORKS 4096u /* a held prompt counts until its hold ends */
#define ND_LOCAL_HOLD_MS   30000u

enum nd_local_mode { ND_LOCAL_WHOLE, ND_LOCAL_HOLD, ND_LOCAL_TAKE };

/* Everything is borrowed for the call. */
struct nd_local_request {
    enum nd_local_mode mode;
    const char *request_id;  /* for logs; NULL or "": the work's number */
    const char *traceparent; /* W3C; NULL or "": none */
    const char *tracestate;
    uint32_t budget_ms; /* at least 1; of a HOLD: until its first token */
    int32_t priority;   /* lower runs first */
    const int32_t *prompt;
    uint32_t n_prompt;
    struct td_sampling_params
        sampling; /* as the engine wants it: td_sampling_params' neutral values, not zeros */
    const struct td_handoff *handoff; /* TAKE */
};

struct nd_local_token {
    uint32_t index; /* of the output, from 0 without gap or repeat */
    int32_t token;
    float logprob;         /* 0 unless asked for */
    enum td_finish finish; /* NONE but for the last */
};

struct nd_local_end {
    td_err err;
    const char *text;      /* why, for people */
    enum td_finish finish; /* err TD_OK: of the last token; NONE for a HOLD */
    struct td_wire_stages stages;
};

/* Called on the loop thread, never from inside td_node_submit, td_node_cancel or td_node_detach; they may call these. What they
 * point at lives for the call. on_end is a work's last word, exactly one for each accepted submit, unless it is detached before. */
struct nd_local_ops {
    void (*on_token)(void *arg, const struct nd_local_token *t);
    void (*on_held)(void *arg, const struct td_handoff *h); /* HOLD; else it may be NULL */
    void (*on_end)(void *arg, const struct nd_local_end *e);
};

/* ---- for drivers ---- */

struct nd_local_params {
    uint64_t epoch;      /* of this local router, drawn by the driver; no other router's */
    uint64_t node_epoch; /* of the role's process */
    enum td_role role;   /* told: TD_ROLE_BOTH for decode with local prefill */
    uint64_t layout_id, numerics_id;
    uint32_t kv_group;
    uint32_t hold_ms;       /* of every HOLD */
    const uint8_t *address; /* of the data plane; copied */
    uint32_t address_len;   /* 0: none */
    uint32_t max_tokens;    /* tokens that the role may say in one event */
};

/* A word for the service. */
struct nd_local_word {
    enum { ND_LOCAL_TOKEN, ND_LOCAL_HELD, ND_LOCAL_END } type;
    const struct nd_local_ops *ops;
    void *arg;
    uint64_t ref;
    union {
        struct nd_local_token token;
        struct nd_local_end end;
    };
    const struct td_handoff *handoff; /* HELD; this and end.text live until the next word */
};

struct nd_local;

/* Guards against a mixed-up prompt, not against malice. */
uint64_t nd_local_prompt_hash(const int32_t *prompt, uint32_t n);
td_err nd_local_create(const struct nd_local_params *p, struct nd_local **out_local) TD_MUST_CHECK;
struct nd_local *nd_local_destroy(struct nd_local *l);
/* Opens a work and fills the message that the role must be fed at once, from router `epoch`; it borrows from `r`. `nonce`: 16 random
 * bytes, of a HOLD. `ops` and `arg` are kept until the work's end. TD_ERR_UNSUPPORTED for a mode that this role does not serve,
 * TD_ERR_BAD_REQUEST, TD_ERR_PEER_MODEL for a hand-off of another layout or numerics, TD_ERR_OVERLOADED. The role's own refusals
 * come by on_end. */
td_err nd_local_submit(struct nd_local *l, const struct nd_local_request *r,
                       const uint8_t nonce[16], const struct nd_local_ops *ops, void *arg,
                       uint64_t *out_ref, struct td_wire_msg *out_msg) TD_MUST_CHECK;
/* True: out_msg must be fed to the role. False: there is nothing to cancel any more. */
bool nd_local_cancel(const struct nd_local *l, uint64_t ref, struct td_wire_msg *out_msg);
/* Nothing more is said about this work, which goes on. */
void nd_local_detach(struct nd_local *l, uint64_t ref);
/* What the role sends to router `epoch`. */
void nd_local_take(struct nd_local *l, const struct td_wire_msg *m);
/* The next word to say, in order; false: none. A work is over when its END is fetched. */
bool nd_local_next(struct nd_local *l, struct nd_local_word *out);
uint64_t nd_local_epoch(const struct nd_local *l);
uint32_t nd_local_count(const struct nd_local *l);
/* Invariants, for tests and the simulator. */
td_err nd_local_check(const struct nd_local *l) TD_MUST_CHECK;

#endif
