/* pf_internal.h - what the files of the prefill core share; nobody else includes it.
 *
 * pf_core.c: doors (events in, state out), creation, checks. pf_seq.c: the state table and the
 * hand-over. pf_end.c: the one path out. pf_exec.c: admission, steps, pushes. pf_stash.c: tables that came early.
 * Owner, thread, bounds: pf_core.h.
 */
#ifndef TD_PREFILL_NODE_PF_INTERNAL_H
#define TD_PREFILL_NODE_PF_INTERNAL_H

#include "common/node/role.h"
#include "common/node/span.h"

#define PF_PUSH_WINDOW 16 /* pushes of one request that may be under way, at most */
#define PF_MAX_STASH   64 /* tables that arrived before their request */
#define PF_PUSH_BITS   24 /* of a push handle: the push's number within its request */

enum pf_state {
    PF_FREE,
    PF_QUEUED,
    PF_EXEC,
    PF_PARKED,
    PF_PUSHING,
    PF_HANDING,
    PF_ENDING,
    PF_STATES
};

struct pf_seq {
    _Alignas(16) struct nd_work w; /* first */
    enum pf_state state;
    struct td_queue_item line;
    struct td_batch_item batch;
    struct td_wire_ticket ticket;
    int64_t ticket_until_us;
    int64_t hold_us;   /* nonzero: held so long for whoever knows the nonce */
    uint32_t seat;     /* block table + 1 while it holds blocks */
    uint32_t slot;     /* sampling slot + 1 while it computes */
    uint32_t n_blocks; /* held */
    td_ticket step;    /* the running step it has a row in, or 0 */
    uint32_t submitted_tok, computed_tok, pushed_tok; /* from position 0 */
    /* Where it goes: D's table. */
    bool has_table, peer_gone;
    bool closing; /* its peer's endpoint is being closed: CLOSED ends its pushes */
    uint64_t peer, land;
    uint32_t first_tok;
    struct nd_span table; /* struct td_block_ref[] */
    /* Pushes: number of the next, and those under way. */
    uint32_t n_pushes, n_open;
    uint32_t open[PF_PUSH_WINDOW];
    /* The result. */
    bool has_token, taken;
    int32_t first_token;
    float first_logprob;
    enum td_finish finish;
    /* Times and sizes for the stages. */
    int64_t table_us, record_us, exec_us, token_us, first_post_us, last_done_us;
    uint64_t kv_bytes;
    const char *transport; /* static */
};

/* The sequence whose record this is; NULL stays NULL. */
static inline struct pf_seq *pf_of(struct nd_work *w)
{
    return (struct pf_seq *)(void *)w;
}

struct pf_stash {
    bool used;
    struct td_wire_table head; /* blocks is NULL; they are in `blocks` */
    struct nd_span blocks;
    uint64_t peer;
    int64_t since_us, deadline_us;
};

struct pf_core {
    struct nd_role r;        /* first */
    struct nd_spans *tables; /* owned: D's block tables */
    uint32_t push_window;    /* so that all seats together stay within TD_XFER_MAX_PUSHES */
    uint32_t
        push_tok; /* of one push at most: a chunk, or less when its message would be too long */
    /* Prompts for outside routers wait in a line of their own and get half of the seats and blocks at most: who never takes
     * what is held keeps nobody else out. */
    struct td_queue *holds; /* owned */
    uint32_t hold_seats, hold_blk;
    struct pf_stash stash[PF_MAX_STASH];
};

static inline struct td_queue *pf_line_of(const struct pf_core *c, const struct pf_seq *s)
{
    return s->hold_us > 0 ? c->holds : c->r.queue;
}

/* ---- pf_seq.c: states ---- */
void pf_set_state(struct pf_core *c, struct pf_seq *s, enum pf_state to);
const char *pf_state_name(enum pf_state s);
const char *pf_state_wait(enum pf_state s);
unsigned pf_state_phase(enum pf_state s); /* of ND_M_CANCELLED */
void pf_on_prefill(struct pf_core *c, const struct td_wire_prefill *m, td_err decode_err);
void pf_on_cancel(struct pf_core *c, uint64_t router, const struct td_wire_cancel *m);
void pf_on_table(struct pf_core *c, uint64_t peer, const struct td_wire_table *m);
void pf_on_taken(struct pf_core *c, uint64_t peer, const struct td_wire_taken *m);
void pf_on_abort(struct pf_core *c, uint64_t peer, const struct td_wire_abort *m);
void pf_on_pushed(struct pf_core *c, const struct td_xfer_event *ev);
/* The peer is gone; PUSHED still comes for each of its pushes, unless it is fenced: then it is the
 * answer to a CLOSE, and pushes posted before that have ended. */
void pf_on_peer_lost(struct pf_core *c, uint64_t peer, bool fenced);
void pf_on_timeout(struct pf_core *c, struct pf_seq *s);
/* The lease of a decode node that does something starts anew. */
void pf_arm_lease(struct pf_core *c, struct pf_seq *s);
/* A row of the step has ended; the token, if any, has been sent already. */
void pf_on_row(struct pf_core *c, struct pf_seq *s, td_err err);
/* Sends the record when everything is pushed and the token is known. */
void pf_advance(struct pf_core *c, struct pf_seq *s);

/* ---- pf_end.c: the one path out ---- */
/* Ends the request from any state: tells D (unless it is done with it) and the router, gives the
 * blocks back now or when the last reader is gone. */
void pf_end(struct pf_core *c, struct pf_seq *s, td_err err, const char *text);
/* An ending request may be able to let its blocks go. */
void pf_finish_ending(struct pf_core *c, struct pf_seq *s);
void pf_ending_overdue(struct pf_core *c, struct pf_seq *s);
/* Blocks follow: state and deadline of the ledger are those of the sequence. */
void pf_move_blocks(struct pf_core *c, struct pf_seq *s, enum td_blk_state to);
void pf_release_blocks(struct pf_core *c, struct pf_seq *s);
void pf_cancel_pushes(struct pf_core *c, struct pf_seq *s);
struct td_wire_stages pf_stages(const struct pf_core *c, const struct pf_seq *s);
/* A message to D that waits for this request's slices only. */
struct td_wire_msg *pf_to_decode(struct pf_core *c, const struct pf_seq *s, enum td_wire_type type);

/* ---- pf_exec.c: admission, steps, pushes ---- */
/* Fills the node with what the queue holds and starts a step when none runs. */
void pf_run(struct pf_core *c);
void pf_on_step(struct pf_core *c, const struct td_step_result *r);
/* Posts what is computed (or being computed) and not yet pushed, as far as the window allows. */
void pf_push_more(struct pf_core *c, struct pf_seq *s);
uint32_t *pf_blocks(const struct pf_core *c, const struct pf_seq *s);
/* Calls the ledger; a refusal is our bug and shows in check(). */
void pf_ledger(struct pf_core *c, const struct pf_seq *s, td_err e);
uint64_t pf_push_handle(const struct pf_seq *s, uint32_t number);

/* ---- pf_stash.c: tables before their request ---- */
void pf_stash_put(struct pf_core *c, uint64_t peer, const struct td_wire_table *m);
/* Hands a stashed table of this request over, if there is one. */
void pf_stash_take(struct pf_core *c, struct pf_seq *s);
void pf_stash_drop_peer(struct pf_core *c, uint64_t peer);
void pf_stash_drop_id(struct pf_core *c, const struct td_work_id *id);
void pf_stash_expire(struct pf_core *c);
int64_t pf_stash_deadline(const struct pf_core *c);
void pf_refuse_table(struct pf_core *c, uint64_t peer, const struct td_work_id *id, uint64_t land,
                     td_err err);
/* Keeps the table for the request when it may push there (checked by the caller). */
td_err pf_keep_table(struct pf_core *c, struct pf_seq *s, uint64_t peer,
                     const struct td_wire_table *head, struct nd_span blocks);

#endif
