/* dc_internal.h - what the files of the decode core share; nobody else includes it.
 *
 * dc_core.c: doors (events in, state out), creation, checks. dc_seq.c: the state table, ends,
 * messages of routers. dc_land.c: reservation, landing, record, take-over. dc_room.c: admission and
 * shortage. dc_batch.c: steps and tokens.
 * Owner, thread, bounds: dc_core.h.
 */
#ifndef TD_DECODE_NODE_DC_INTERNAL_H
#define TD_DECODE_NODE_DC_INTERNAL_H

#include "common/base/rng.h"
#include "common/node/role.h"
#include "common/node/span.h"
#include "common/sched/growth.h"

enum dc_state {
    DC_FREE,
    DC_QUEUED,
    DC_LANDING,
    DC_READY,
    DC_PREFILL,
    DC_RUNNING,
    DC_ENDING,
    DC_STATES
};

struct dc_seq {
    _Alignas(16) struct nd_work w; /* first */
    enum dc_state state;
    bool local; /* TD_RESERVE_LOCAL */
    struct td_queue_item line;
    struct td_batch_item batch;
    struct td_wire_ticket ticket;
    int64_t ticket_until_us;
    uint64_t peer;            /* P's epoch */
    struct td_work_id source; /* P's work: w.id, or one that P holds for another router */
    struct nd_span address;   /* P's, until the reservation is made */
    uint32_t seat;            /* block table + 1 while it holds blocks */
    uint32_t slot;            /* sampling slot + 1 */
    uint32_t n_blocks;        /* of its table; those behind n_gone are held */
    uint32_t n_gone;          /* blocks at the front that no token sees any more: not held */
    uint32_t n_steps;         /* steps under way that it has a row in */
    uint32_t n_ahead;         /* of those, decode rows: tokens that only the engine knows yet */
    /* The land: open from LAND until UNLANDED. */
    bool land_open, unlanding, peer_told;
    bool closing;      /* its peer's endpoint is being closed */
    bool close_fences; /* its land was ending by then: CLOSED fences it */
    uint32_t n_landed; /* slices */
    uint64_t kv_bytes;
    int64_t first_land_us, last_land_us;
    const char *transport; /* static */
    bool landed;           /* its KV came from P, which no row has told the engine yet */
    /* P's hand-over. */
    bool has_record;
    uint32_t n_slices; /* owed by P */
    enum td_finish finish;
    struct td_wire_stages p_stages;
    /* The stream. */
    uint32_t submitted_tok; /* local prefill: planned prompt tokens */
    uint32_t len;           /* tokens whose KV is there, of steps that have ended */
    uint32_t n_out;         /* index of the next output token, over all attempts */
    int32_t first_token, last_token;
    float first_logprob;
    bool first_owed; /* the first token goes out with the first step's */
    bool victim;     /* ended for lack of room; its blocks are owed to the batch */
    int64_t table_us, exec_us, token_us, taken_us, decode_us, last_us;
};

/* The sequence whose record this is; NULL stays NULL. */
static inline struct dc_seq *dc_of(struct nd_work *w)
{
    return (struct dc_seq *)(void *)w;
}

#define DC_HEARD 64u

struct dc_core {
    struct nd_role r;           /* first */
    struct nd_spans *addresses; /* owned */
    struct td_growth growth;
    struct td_growth_seq *account; /* owned [seats + 1]: scratch of admission */
    struct td_seq_ref *scratch;    /* owned [seats] */
    struct td_seq_ref *seated;     /* owned [seats]: who sits there; generation 0: nobody */
    uint32_t n_ready;              /* requests in that state */
    uint32_t n_held;               /* batch rows that sit out for lack of a block */
    uint32_t owed_blk;             /* blocks of victims that are not fenced yet */
    uint32_t step_us;              /* recent */
    int64_t heard_us[DC_HEARD];    /* last word or slice of prefill nodes, by peer */
};

/* Peers that share a place: a silent one is noticed late then, a speaking one is never taken for silent. */
static inline int64_t *dc_heard(struct dc_core *c, uint64_t peer)
{
    return &c->heard_us[td_mix64(peer) % DC_HEARD];
}

/* P keeps this prompt for another router: no heartbeat of ours watches over it. */
static inline bool dc_is_take(const struct dc_seq *s)
{
    return !td_work_id_eq(&s->source, &s->w.id);
}

/* ---- dc_seq.c: states, ends, routers ---- */
void dc_set_state(struct dc_core *c, struct dc_seq *s, enum dc_state to);
const char *dc_state_name(enum dc_state s);
const char *dc_state_wait(enum dc_state s);
/* Ends the request from any state: tells P and the router, gives the blocks back now or when the
 * last reader and writer are gone. */
void dc_end(struct dc_core *c, struct dc_seq *s, td_err err, const char *text);
/* An ending request may be able to let its blocks go. */
void dc_finish_ending(struct dc_core *c, struct dc_seq *s);
void dc_on_reserve(struct dc_core *c, const struct td_wire_reserve *m, td_err decode_err);
void dc_on_cancel(struct dc_core *c, uint64_t router, const struct td_wire_cancel *m);
void dc_on_timeout(struct dc_core *c, struct dc_seq *s);
/* Blocks follow: state and deadline of the ledger are those of the sequence. */
void dc_move_blocks(struct dc_core *c, struct dc_seq *s, enum td_blk_state to);
uint32_t *dc_blocks(const struct dc_core *c, const struct dc_seq *s);
static inline uint32_t dc_held(const struct dc_seq *s)
{
    return s->n_blocks - s->n_gone;
}
/* Where the held blocks begin. */
static inline uint32_t *dc_held_blocks(const struct dc_core *c, const struct dc_seq *s)
{
    return dc_blocks(c, s) + s->n_gone;
}
/* Calls the ledger; a refusal is our bug and shows in check(). */
void dc_ledger(struct dc_core *c, const struct dc_seq *s, td_err e);
void dc_stale(struct dc_core *c, const char *what, const struct td_work_id *id);
/* Stops accepting slices; once. */
void dc_unland(struct dc_core *c, struct dc_seq *s);

/* ---- dc_land.c: from reservation to take-over ---- */
/* Blocks are reserved: dial P, accept slices, send the table. */
void dc_land(struct dc_core *c, struct dc_seq *s);
/* Its deadline has passed, but not its budget. */
void dc_land_late(struct dc_core *c, struct dc_seq *s);
void dc_on_landed(struct dc_core *c, const struct td_xfer_event *ev);
void dc_on_land_bad(struct dc_core *c, const struct td_xfer_event *ev);
void dc_on_unlanded(struct dc_core *c, const struct td_xfer_event *ev);
void dc_on_record(struct dc_core *c, uint64_t peer, const struct td_wire_record *m);
void dc_on_abort(struct dc_core *c, uint64_t peer, const struct td_wire_abort *m);
/* The peer is gone; its lands are to be fenced by UNLAND, unless `fenced`: then it is the answer to a
 * CLOSE, and lands opened before that are fenced. */
void dc_on_peer_lost(struct dc_core *c, uint64_t peer, bool fenced);

/* ---- dc_room.c: one account ---- */
/* Admits from the line what fits. */
void dc_admit(struct dc_core *c);
/* Gives every batch row the block its next token needs; who gets none sits the step out or ends. */
void dc_grow(struct dc_core *c);
/* Blocks that lie wholly before what the token at this position sees: the layout's retention. */
uint32_t dc_blocks_behind(const struct dc_core *c, uint32_t pos);
/* Gives back what no step under way or to come reads. */
void dc_shed(struct dc_core *c, struct dc_seq *s);

/* ---- dc_batch.c: steps ---- */
/* Joins what is ready and starts as many steps as may be under way. */
void dc_run(struct dc_core *c);
void dc_on_step(struct dc_core *c, const struct td_step_result *r);
/* Adds an output token to what goes out with the next flush. */
void dc_say_token(struct dc_core *c, const struct dc_seq *s, uint32_t index, int32_t token,
                  float logprob, enum td_finish finish);

#endif
