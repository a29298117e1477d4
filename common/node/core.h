/* core.h - what a role is to the node that runs it: a state machine, step(state, now, event) -> actions.
 *
 * What: the events a node shell feeds (messages of routers, finished engine steps, transfer events, time) and the
 * actions it carries out. The simulator feeds and carries out the same.
 * Not: sockets, threads, clocks, allocation: a core allocates at creation only; what an action points at lives in the
 * action list's arena until nd_actions_reset().
 * Owner: node shell (loop thread) or simulator. Bounds: nd_actions_needed() an event. Failure: a core cannot fail; it refuses
 * or ends work by messages.
 */
#ifndef TD_NODE_CORE_H
#define TD_NODE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/io/xfer.h"
#include "common/model/engine.h"
#include "proto/wire.h"

/* Of one event: what each work may need when all of them end at once (its pushes cancelled, its end told to three, its
 * figures), and the rest. */
#define ND_WORK_ACTIONS 16
#define ND_MIN_ACTIONS  8192
#define ND_MAX_ROUTERS  64
#define ND_MAX_SEQS     4096
#define ND_MAX_QUEUE    65536
#define ND_STATE_LEN    513
#define ND_TRACE_LEN    64 /* of a traceparent, with its end */

enum nd_event_type {
    ND_EV_ROUTER_UP,   /* router_epoch attached (a new session, not a resumed one) */
    ND_EV_ROUTER_LOST, /* router_epoch's session is lost: end all its work */
    ND_EV_MSG,         /* msg from router_epoch; decode_err != OK: refuse it (unknown `requires`) */
    ND_EV_STEP,        /* an engine step finished */
    ND_EV_XFER,        /* the data plane says; MSG events carry the decoded message in msg */
    ND_EV_TICK,        /* now has reached next_deadline, or later */
    ND_EV_DRAIN,       /* admit nothing new; finish what runs until deadline_us, then end it */
    ND_EV_UNDRAIN,     /* admit again */
};

struct nd_event {
    enum nd_event_type type;
    uint64_t router_epoch;
    const struct td_wire_msg *msg; /* MSG; XFER of type TD_XFER_MSG */
    td_err decode_err;
    const struct td_step_result *step;
    const struct td_xfer_event *xfer;
    int64_t deadline_us;
};

/* Observations for histograms and counters; the shell maps them to metric names (common/node/node_metrics.c). */
enum nd_metric {
    ND_M_PREFILL_QUEUE_US,
    ND_M_PREFILL_US,
    ND_M_TRANSFER_US,
    ND_M_TRANSFER_EXPOSED_US,
    ND_M_TRANSFER_BYTES,
    ND_M_TRANSFER_FAILED, /* value: td_err */
    ND_M_DECODE_QUEUE_US,
    ND_M_DECODE_US,
    ND_M_TTFT_US,
    ND_M_ITL_US,
    ND_M_PROMPT_TOKENS,
    ND_M_OUTPUT_TOKENS,
    ND_M_BATCH_TOKENS,
    ND_M_CANCELLED, /* value: phase, 0 queued 1 prefill 2 transfer 3 decode */
    ND_M_FINISHED,  /* value: enum td_finish */
    ND_M_REFUSED,   /* value: td_err */
    ND_M_STALE, /* a message, slice or record of another epoch, attempt or generation was dropped */
    ND_METRICS
};

/* A work's last word to figures and traces: what it was and when. Times are on the core's clock; 0: it did not come that
 * far. */
struct nd_done {
    struct td_work_id id;
    char req[TD_WIRE_MAX_NAME], trace[ND_TRACE_LEN]; /* request id; W3C traceparent, "" for none */
    char state[ND_STATE_LEN];                        /* W3C tracestate, "" for none */
    bool decode, local; /* the decode role's; it computed the prompt itself */
    bool preempted;     /* ended for lack of blocks while it ran */
    unsigned phase;     /* it ended in, of ND_M_CANCELLED */
    td_err err;
    enum td_finish finish;
    int64_t arrived_us, table_us, exec_us,
        token_us; /* table: sent by D, got by P; token: the first */
    int64_t xfer_first_us, xfer_last_us;
    int64_t record_us;                    /* P: the hand-over record was sent; D: it was taken */
    int64_t decode_us, last_us, ended_us; /* decode: the first step */
    uint32_t n_prompt, n_output, max_tokens, n_slices;
    uint64_t kv_bytes;
    const char *transport; /* static */
};

/* How many works wait for what, for gauges. */
struct nd_counts {
    uint32_t blocks;      /* no blocks yet */
    uint32_t table;       /* P: decode has not sent its block table */
    uint32_t held;        /* P: computed, for whoever an outside router names; not in `table` */
    uint32_t transfer;    /* P: computed, KV not taken yet; D: KV has not all arrived */
    uint64_t pending_tok; /* prompt tokens of those without blocks */
};

/* Carried out in order. SEND, OBSERVE and DONE may come after all others of the list (in order among themselves), so that the
 * engine's next step does not wait for the encoding of the last one's tokens. */
enum nd_action_type {
    ND_DO_SEND,    /* msg to router_epoch's session */
    ND_DO_SEQ_SET, /* set a sampling slot, before the STEP that follows */
    ND_DO_STEP, /* submit rows; its ticket must be the one the core predicted (tickets count from 1 without gap) */
    ND_DO_XFER,    /* submit cmd; cmd.bytes may be NULL with msg set: the shell encodes msg */
    ND_DO_OBSERVE, /* metric, value */
    ND_DO_DONE,    /* done: a work has ended, for figures and traces */
};

struct nd_action {
    enum nd_action_type type;
    uint64_t router_epoch;
    const struct td_wire_msg *msg; /* SEND; XFER of type TD_XFER_SEND */
    uint32_t slot;
    const struct td_sampling_state *sampling;
    const struct td_row *rows;
    uint32_t n_rows;
    struct td_xfer_cmd cmd;
    enum nd_metric metric;
    double value;
    const struct nd_done *done;
};

struct nd_actions {
    struct nd_action *list; /* owned, [max] */
    uint32_t n, max;
    struct td_arena *arena; /* what actions point at */
    bool overflow; /* set when an action did not fit: the shell treats it as a bug of the core */
};

/* max: at least ND_MIN_ACTIONS. Memory that no event has needed is not touched. */
td_err nd_actions_init(struct nd_actions *a, uint32_t max) TD_MUST_CHECK;
void nd_actions_fini(struct nd_actions *a);
void nd_actions_reset(struct nd_actions *a);
/* Room for `bytes` that an action may point at, filled from `src` (NULL: zeroed). NULL and `overflow` when the arena is
 * full. */
void *nd_actions_copy(struct nd_actions *a, const void *src, size_t bytes);
/* The next free action, zeroed. Never NULL (the last one is reused on overflow). */
struct nd_action *nd_actions_add(struct nd_actions *a, enum nd_action_type type);
/* Adds a SEND of a new message of this type; fill the body in. */
struct td_wire_msg *nd_actions_send(struct nd_actions *a, uint64_t router_epoch,
                                    enum td_wire_type type);
/* Adds an XFER SEND of a new message to peer `epoch`. */
struct td_wire_msg *nd_actions_peer_send(struct nd_actions *a, uint64_t epoch,
                                         enum td_wire_type type);
void nd_actions_observe(struct nd_actions *a, enum nd_metric metric, double value);
/* Adds a DONE; fill it in. */
struct nd_done *nd_actions_done(struct nd_actions *a);

struct nd_core_params {
    uint64_t epoch; /* of this process */
    const char *name;
    const struct td_engine_info *engine; /* outlives the core */
    uint64_t layout_id;                  /* td_kv_layout_id(&engine->layout) */
    uint32_t max_seqs;                   /* --max-num-seqs */
    uint32_t max_queue;                  /* waiting requests */
    uint32_t max_batched_tokens;         /* per step */
    uint32_t chunk_tokens;               /* --prefill-chunk; a multiple of the block */
    uint32_t steps_in_flight;            /* of decode; 1 to TD_ENGINE_MAX_INFLIGHT */
    int64_t t_stall_us, t_lease_us;      /* failures.md part 1, already scaled */
    bool local_prefill;                  /* decode role: accept TD_RESERVE_LOCAL (role both) */
    uint64_t
        local_epoch; /* of the router in this process, whose works are known before any peer asks for them; 0: none */
};

/* TD_ERR_CONFIG, logged, when the parameters do not fit each other or the engine. */
td_err nd_core_params_check(const struct nd_core_params *p) TD_MUST_CHECK;
/* How many actions one event of such a core may take. */
uint32_t nd_actions_needed(const struct nd_core_params *p);
/* Bytes a core keeps for the prompts of the requests it knows. */
size_t nd_prompt_bytes(const struct nd_core_params *p);
/* The work id a router's message is about, or NULL. */
const struct td_work_id *nd_msg_work(const struct td_wire_msg *m);

/* A wait, for /debug/waits: who waits for what until when. */
struct nd_wait {
    struct td_work_id id;
    const char *what;
    int64_t since_us, deadline_us;
};

struct nd_role_ops {
    const char *name; /* "prefill", "decode" */
    enum td_role role;
    td_err (*create)(const struct nd_core_params *p, void **out_core);
    void (*destroy)(void *core);
    void (*step)(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out);
    int64_t (*next_deadline)(const void *core);                 /* TD_NEVER: none */
    void (*state)(const void *core, struct td_wire_state *out); /* fills all but seq, full, ready */
    uint32_t (*work_count)(const void *core); /* requests it still knows; 0 = drained */
    uint32_t (*waits)(const void *core, struct nd_wait *out, uint32_t cap);
    void (*count)(const void *core, struct nd_counts *out); /* out is zeroed */
    td_err (*check)(
        const void *
            core); /* invariants (the ledger adds up, no block with two owners): tests and simulator */
};

#endif
