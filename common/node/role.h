/* role.h - what both role cores are made of: the requests they know, their ledger, seats, batch and step, and how they
 * drain.
 *
 * What: struct nd_role is the first member of a role's core; it is built, drained, looked into and checked here.
 * Not: states, hand-over, admission (prefill-node, decode-node).
 * Owner: one core, which reads and writes its fields. Thread: the loop's. Bounds: those of nd_core_params and of the
 * engine. Failure: at creation only; everything is allocated there.
 */
#ifndef TD_NODE_ROLE_H
#define TD_NODE_ROLE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/kv/pool.h"
#include "common/node/core.h"
#include "common/node/slots.h"
#include "common/node/tokens.h"
#include "common/node/work.h"
#include "common/sched/batch.h"
#include "common/sched/queue.h"

/* A step that the engine has; rows in the engine's order. */
struct nd_flight_row {
    struct td_seq_ref seq;
    uint32_t end; /* a chunk: prompt tokens computed with it; 0: a decode row */
};

struct nd_flight {
    td_ticket ticket;
    uint32_t n_rows, prompt_tok;
    struct nd_flight_row *rows; /* owned [max_rows] */
};

struct nd_role {
    struct nd_core_params p;
    struct nd_works *works;         /* owned */
    struct td_queue *queue;         /* owned */
    struct td_kv_pool *pool;        /* owned */
    struct nd_slots *seats, *slots; /* owned: block tables, sampling slots */
    struct nd_tokens *tokens;       /* owned */
    struct td_batch batch;
    struct td_batch_row *plan; /* owned [max_rows] */
    uint32_t *seat_blocks;     /* owned [seats][seat_len] */
    uint32_t seat_len;
    struct nd_flight flights[TD_ENGINE_MAX_INFLIGHT]; /* the oldest first */
    uint32_t n_flights;
    td_ticket next_ticket;
    uint64_t queued_tok;  /* prompt tokens in the queue that this node will compute */
    uint32_t us_per_ktok; /* recent */
    bool draining;
    int64_t drain_until_us; /* TD_NEVER */
    bool broken;            /* the ledger refused a move: our bug, shown by check() */
    /* Of the event being handled. */
    int64_t now;
    struct nd_actions *out;
};

struct nd_role_shape {
    uint32_t n_seats;  /* requests that may hold blocks at once */
    size_t work_bytes; /* of the role's sequence, which starts with struct nd_work */
    uint32_t n_tokens; /* output tokens of one step at most */
};

/* Requests that may hold blocks: twice those that run, since others land or wait for decode; at most `most`. */
uint32_t nd_role_seats(const struct nd_core_params *p, uint32_t most);
/* TD_ERR_CONFIG, TD_ERR_NO_MEMORY; nd_role_fini takes what was built so far. A zeroed struct is fine for fini. */
td_err nd_role_init(struct nd_role *r, const struct nd_core_params *p,
                    const struct nd_role_shape *shape) TD_MUST_CHECK;
void nd_role_fini(struct nd_role *r);

static inline uint32_t nd_min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The next record at or after *at (which moves behind it) whose router is this one, 0: any; NULL at the end. */
struct nd_work *nd_role_next(const struct nd_role *r, uint32_t *at, uint64_t router);
/* DRAIN and UNDRAIN; true when it was one of them. */
bool nd_role_drain(struct nd_role *r, const struct nd_event *ev);
/* The drain's limit has come: said once, logged; the role ends what is left. */
bool nd_role_drain_over(struct nd_role *r);
/* The next flight, empty; it counts once nd_role_launch has it. */
struct nd_flight *nd_role_flight(struct nd_role *r);
/* Adds a row to a flight: a chunk that ends at prompt token `end` with `n` tokens, or with end 0 a decode row. */
void nd_flight_add(struct nd_flight *f, struct td_seq_ref seq, uint32_t end, uint32_t n);
/* Gives the flight's rows, of which there is at least one, to the engine. */
void nd_role_launch(struct nd_role *r, struct nd_flight *f, const struct td_row *rows);
/* The flight whose result this is, the oldest; NULL, logged, when there is none. */
const struct nd_flight *nd_role_landed(const struct nd_role *r,
                                       const struct td_step_result *result);
/* What the engine says of the flight's row i; a row it does not name has failed. */
td_err nd_flight_result(const struct nd_flight *f, const struct td_step_result *r, uint32_t i,
                        const struct td_row_result **out_row);
/* The oldest flight is over. */
void nd_role_drop_flight(struct nd_role *r);
/* A message about another router's work: counted, to be ignored. */
bool nd_role_is_foreign(struct nd_role *r, const struct nd_event *ev);
/* Ends a request that this role does not serve. */
void nd_role_refuse(struct nd_role *r, uint64_t router, const struct td_work_id *id,
                    const char *text);

/* The fields of the state that both roles have. */
void nd_role_state(const struct nd_role *r, struct td_wire_state *out);
int64_t nd_role_next_deadline(const struct nd_role *r);

/* What a role's records believe to hold; nd_role_check compares it with pool and slots. */
struct nd_role_sums {
    uint32_t blocks, seats, slots;
};
td_err nd_role_check(const struct nd_role *r, const struct nd_role_sums *sums) TD_MUST_CHECK;

#endif
