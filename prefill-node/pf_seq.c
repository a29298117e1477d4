#define TD_LOG_ROOM "prefill"
#include "common/base/log.h"
#include "prefill-node/pf_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

#define BIT(s) (1u << (unsigned)(s))

/* What each state is called, what it waits for, where it may go, and what it does with the events
 * that mean something different from state to state. NULL: stale, dropped and counted. */
struct state_row {
    const char *name, *wait;
    unsigned next;
    unsigned phase; /* of ND_M_CANCELLED */
    void (*on_table)(struct pf_core *c, struct pf_seq *s);
    void (*on_taken)(struct pf_core *c, struct pf_seq *s);
    void (*on_pushed)(struct pf_core *c, struct pf_seq *s);
    void (*on_row)(struct pf_core *c, struct pf_seq *s, td_err err);
    void (*on_timeout)(struct pf_core *c, struct pf_seq *s);
};

static void table_early(struct pf_core *c, struct pf_seq *s);
static void table_late(struct pf_core *c, struct pf_seq *s);
static void taken(struct pf_core *c, struct pf_seq *s);
static void pushed_some(struct pf_core *c, struct pf_seq *s);
static void pushed_last(struct pf_core *c, struct pf_seq *s);
static void row_exec(struct pf_core *c, struct pf_seq *s, td_err err);
static void row_ending(struct pf_core *c, struct pf_seq *s, td_err err);
static void budget_spent(struct pf_core *c, struct pf_seq *s);
static void lease_spent(struct pf_core *c, struct pf_seq *s);

static const struct state_row rows[PF_STATES] = {
    [PF_FREE] = {"free", "", BIT(PF_QUEUED), 0, NULL, NULL, NULL, NULL, NULL},
    [PF_QUEUED] = {"queued", "blocks for its prompt", BIT(PF_EXEC) | BIT(PF_ENDING), 0, table_early,
                   NULL, NULL, NULL, budget_spent},
    [PF_EXEC] = {"exec", "its chunks to be computed",
                 BIT(PF_PARKED) | BIT(PF_PUSHING) | BIT(PF_HANDING) | BIT(PF_ENDING), 1,
                 table_early, NULL, pushed_some, row_exec, budget_spent},
    [PF_PARKED] = {"parked", "decode's block table",
                   BIT(PF_PUSHING) | BIT(PF_HANDING) | BIT(PF_ENDING), 2, table_late, NULL, NULL,
                   NULL, lease_spent},
    [PF_PUSHING] = {"pushing", "earlier pushes to end", BIT(PF_HANDING) | BIT(PF_ENDING), 2, NULL,
                    NULL, pushed_some, NULL, lease_spent},
    [PF_HANDING] = {"handing", "decode to take over", BIT(PF_ENDING), 2, NULL, taken, pushed_last,
                    NULL, lease_spent},
    [PF_ENDING] = {"ending", "its step and posts to end", BIT(PF_FREE), 3, NULL, NULL,
                   pf_finish_ending, row_ending, pf_ending_overdue},
};

const char *pf_state_name(enum pf_state s)
{
    return rows[s].name;
}

unsigned pf_state_phase(enum pf_state s)
{
    return rows[s].phase;
}

const char *pf_state_wait(enum pf_state s)
{
    return rows[s].wait;
}

/* Who takes a held prompt has a budget of its own, and gives up by itself. */
void pf_arm_lease(struct pf_core *c, struct pf_seq *s)
{
    nd_works_arm(c->r.works, &s->w, c->r.now + c->r.p.t_lease_us, s->hold_us > 0);
}

/* The one place where a request changes its state; arms the deadline of the new one. */
void pf_set_state(struct pf_core *c, struct pf_seq *s, enum pf_state to)
{
    TD_INSIST((rows[s->state].next & BIT(to)) != 0);
    TD_LOG(DEBUG, "pf state", "req=%s attempt=%u from=%s to=%s", s->w.req, s->w.id.attempt,
           rows[s->state].name, rows[to].name);
    s->state = to;
    s->w.since_us = c->r.now;
    switch (to) {
    case PF_FREE:
    case PF_QUEUED: /* the line keeps its deadline */
        nd_works_disarm(c->r.works, &s->w);
        break;
    case PF_EXEC:
        nd_works_arm(c->r.works, &s->w, s->w.budget_us, false);
        break;
    case PF_PARKED:
        if (s->hold_us > 0) { /* nobody renews it; the budget was for the first token */
            nd_works_arm(c->r.works, &s->w, c->r.now + s->hold_us, true);
            break;
        }
        pf_arm_lease(c, s);
        break;
    case PF_PUSHING:
    case PF_HANDING:
        pf_arm_lease(c, s);
        break;
    case PF_ENDING:
        nd_works_arm(c->r.works, &s->w, c->r.now + c->r.p.t_stall_us, true);
        break;
    case PF_STATES:
        break;
    }
}

/* ---- deadlines ---- */

static void budget_spent(struct pf_core *c, struct pf_seq *s)
{
    pf_end(c, s, TD_ERR_BUDGET, "time budget spent in prefill");
}

static void hold_spent(struct pf_core *c, struct pf_seq *s)
{
    nd_works_bury(c->r.works, &s->w.id, ND_GRAVE_EXPIRED);
    pf_end(c, s, TD_ERR_LEASE, "nobody took the KV in its hold time");
}

static void lease_spent(struct pf_core *c, struct pf_seq *s)
{
    if (s->hold_us > 0 && s->state == PF_PARKED) {
        hold_spent(c, s);
    } else if (s->finish != TD_FINISH_NONE) {
        pf_end(c, s, TD_OK, "answered by its first token");
    } else if (s->hold_us == 0 && c->r.now >= s->w.budget_us) {
        budget_spent(c, s);
    } else {
        pf_end(c, s, TD_ERR_LEASE, "decode did not take the KV in time");
    }
}

void pf_on_timeout(struct pf_core *c, struct pf_seq *s)
{
    TD_INSIST(rows[s->state].on_timeout != NULL);
    rows[s->state].on_timeout(c, s);
}

/* ---- from the router ---- */

static void refuse(struct pf_core *c, const struct td_work_id *id, td_err err, const char *text)
{
    nd_actions_observe(c->r.out, ND_M_REFUSED, err);
    TD_LOG(INFO, "pf_queue", "counter=%" PRIu64 " attempt=%u refused=%s", id->counter, id->attempt,
           td_err_code(err));
    struct td_wire_msg *m = nd_actions_send(c->r.out, id->router_epoch, TD_WIRE_END);
    m->end = (struct td_wire_end){.id = *id, .err = err, .text = text, .stages.transport = ""};
    nd_works_bury(c->r.works, id, ND_GRAVE_ENDED);
    pf_stash_drop_id(c, id);
}

/* Why this request cannot be taken, before anything is held. */
static td_err admit_check(const struct pf_core *c, const struct td_wire_prefill *m)
{
    if (c->r.draining) {
        return TD_ERR_DRAINING;
    }
    if (m->ticket.p_epoch != c->r.p.epoch) {
        return TD_ERR_STALE;
    }
    if (m->hold_ms > 0 && m->ticket.d_epoch != 0) {
        return TD_ERR_BAD_REQUEST;
    }
    if (m->r.budget_ms == 0) {
        return TD_ERR_BUDGET;
    }
    return nd_request_check(&c->r.p, &m->r);
}

/* Holds whose turn comes late get half of the line, too. */
static bool line_is_full(const struct pf_core *c, const struct td_wire_prefill *m)
{
    size_t holds = td_queue_count(c->holds);
    return td_queue_count(c->r.queue) + holds >= c->r.p.max_queue ||
           (m->hold_ms > 0 && holds >= (c->r.p.max_queue + 1) / 2);
}

void pf_on_prefill(struct pf_core *c, const struct td_wire_prefill *m, td_err decode_err)
{
    enum nd_grave grave = nd_works_buried(c->r.works, &m->r.id);
    if (nd_works_find(c->r.works, &m->r.id) != NULL || grave == ND_GRAVE_ENDED ||
        grave == ND_GRAVE_EXPIRED) {
        nd_actions_observe(c->r.out, ND_M_STALE, 1);
        return;
    }
    td_err e = grave == ND_GRAVE_CANCELLED ? TD_ERR_CANCELLED : decode_err;
    e = e == TD_OK ? admit_check(c, m) : e;
    struct nd_work *w = NULL;
    if (e == TD_OK && line_is_full(c, m)) {
        e = TD_ERR_OVERLOADED;
    }
    if (e == TD_OK) {
        e = nd_works_open(c->r.works, &m->r, c->r.now, &w);
    }
    if (e != TD_OK) {
        refuse(c, &m->r.id, e, td_err_text(e));
        return;
    }
    struct pf_seq *s = pf_of(w);
    s->ticket = m->ticket;
    s->ticket_until_us = c->r.now + (int64_t)m->ticket.life_ms * 1000;
    s->hold_us = (int64_t)m->hold_ms * 1000;
    pf_set_state(c, s, PF_QUEUED);
    TD_INSIST(td_queue_push(pf_line_of(c, s), &s->line, w->priority, c->r.now, w->budget_us) ==
              TD_OK);
    c->r.queued_tok += w->n_prompt;
    TD_LOG(INFO, "pf_queue", "req=%s trace=%.32s attempt=%u prompt_tok=%u budget_ms=%u waiting=%zu",
           w->req, nd_work_trace(w), w->id.attempt, w->n_prompt, m->r.budget_ms,
           td_queue_count(pf_line_of(c, s)));
    pf_stash_take(c, s);
}

/* Legal in every state, idempotent; a cancel that comes before its request stops it there. */
void pf_on_cancel(struct pf_core *c, uint64_t router, const struct td_wire_cancel *m)
{
    struct pf_seq *s = pf_of(nd_works_find(c->r.works, &m->id));
    bool known = s != NULL;
    bool ends = known && s->state != PF_ENDING;
#ifdef TD_BUG_LOST_CANCEL
    ends = ends && s->state != PF_PUSHING && s->state != PF_HANDING && s->n_open == 0;
#endif
    if (ends) {
        pf_end(c, s, TD_ERR_CANCELLED, "cancelled by the router");
    } else if (!known) {
        if (nd_works_buried(c->r.works, &m->id) == ND_GRAVE_NONE) {
            nd_works_bury(c->r.works, &m->id, ND_GRAVE_CANCELLED);
        }
        pf_stash_drop_id(c, &m->id);
    }
    struct td_wire_msg *a = nd_actions_send(c->r.out, router, TD_WIRE_CANCEL_ACK);
    a->cancel_ack = (struct td_wire_cancel_ack){.id = m->id, .known = known};
}

/* ---- from decode ---- */

static void stale(struct pf_core *c, const char *what, const struct td_work_id *id)
{
    nd_actions_observe(c->r.out, ND_M_STALE, 1);
    TD_LOG(DEBUG, "stale message dropped", "what=%s counter=%" PRIu64 " attempt=%u", what,
           id->counter, id->attempt);
}

/* The request this peer may speak about: known, alive, and its table came from that very peer. */
static struct pf_seq *of_peer(struct pf_core *c, const struct td_work_id *id, uint64_t peer)
{
    struct pf_seq *s = pf_of(nd_works_find(c->r.works, id));
    return s != NULL && s->has_table && s->peer == peer ? s : NULL;
}

void pf_on_table(struct pf_core *c, uint64_t peer, const struct td_wire_table *m)
{
    struct pf_seq *s = pf_of(nd_works_find(c->r.works, &m->id));
    enum nd_grave grave = s == NULL ? nd_works_buried(c->r.works, &m->id) : ND_GRAVE_NONE;
    bool held_here = c->r.p.local_epoch != 0 && m->id.router_epoch == c->r.p.local_epoch;
    if (s == NULL && grave == ND_GRAVE_NONE && !held_here) {
        pf_stash_put(c, peer, m);
        return;
    }
    if (s == NULL || rows[s->state].on_table == NULL) {
        pf_refuse_table(c, peer, &m->id, m->land,
                        grave == ND_GRAVE_EXPIRED ? TD_ERR_LEASE : TD_ERR_STALE);
        return;
    }
    struct nd_span blocks = {0};
    td_err e = nd_spans_put(c->tables, m->blocks, (size_t)m->n_blocks * sizeof *m->blocks, &blocks);
    if (e == TD_OK) {
        e = pf_keep_table(c, s, peer, m, blocks);
    }
    if (e != TD_OK) {
        pf_refuse_table(c, peer, &m->id, m->land, e);
        return;
    }
    rows[s->state].on_table(c, s);
}

static void table_early(struct pf_core *c, struct pf_seq *s)
{
    if (s->state == PF_EXEC) {
        pf_push_more(c, s);
    }
}

static void table_late(struct pf_core *c, struct pf_seq *s)
{
    if (s->finish == TD_FINISH_NONE) {
        pf_set_state(c, s, PF_PUSHING);
        pf_move_blocks(c, s, TD_BLK_PARKED);
        pf_push_more(c, s);
    }
    pf_advance(c, s);
}

void pf_on_taken(struct pf_core *c, uint64_t peer, const struct td_wire_taken *m)
{
    struct pf_seq *s = of_peer(c, &m->id, peer);
    if (s == NULL || s->state == PF_ENDING) {
        stale(c, "taken", &m->id);
        return;
    }
    if (m->err != TD_OK) {
        s->peer_gone = true; /* it knows: no abort */
        pf_end(c, s, m->err, "decode threw the KV away");
        return;
    }
    if (rows[s->state].on_taken == NULL) {
        stale(c, "taken", &m->id);
        return;
    }
    rows[s->state].on_taken(c, s);
}

static void taken(struct pf_core *c, struct pf_seq *s)
{
    s->taken = true;
    if (s->n_open == 0) {
        pf_end(c, s, TD_OK, "handed over");
    }
}

void pf_on_abort(struct pf_core *c, uint64_t peer, const struct td_wire_abort *m)
{
    struct pf_seq *s = of_peer(c, &m->id, peer);
    if (s == NULL || s->state == PF_ENDING || s->land != m->land) {
        struct pf_seq *other = pf_of(nd_works_find(c->r.works, &m->id));
        if (other == NULL) {
            pf_stash_drop_id(c, &m->id);
        }
        stale(c, "abort", &m->id);
        return;
    }
    s->peer_gone = true;
    pf_end(c, s, m->err != TD_OK ? m->err : TD_ERR_CANCELLED, "decode gave up");
}

void pf_on_peer_lost(struct pf_core *c, uint64_t peer, bool fenced)
{
    pf_stash_drop_peer(c, peer);
    for (uint32_t i = 0; i < nd_works_capacity(c->r.works); i++) {
        struct pf_seq *s = pf_of(nd_works_slot(c->r.works, i));
        if (s == NULL || !s->has_table || s->peer != peer) {
            continue;
        }
        if (fenced && s->closing) {
            s->n_open = 0;
        }
        s->peer_gone = true;
        if (s->state == PF_ENDING) {
            pf_finish_ending(c, s);
        } else if (s->finish != TD_FINISH_NONE) {
            pf_end(c, s, TD_OK, "answered by its first token");
        } else {
            pf_end(c, s, TD_ERR_PEER_LOST, "decode node lost");
        }
    }
}

/* ---- from the transfer thread ---- */

static bool forget_push(struct pf_seq *s, uint64_t handle)
{
    for (uint32_t i = 0; i < s->n_open; i++) {
        if (pf_push_handle(s, s->open[i]) == handle) {
            s->open[i] = s->open[--s->n_open];
            return true;
        }
    }
    return false;
}

static struct pf_seq *of_push(struct pf_core *c, uint64_t handle)
{
    uint64_t index = handle >> (64 - 20);
    if (index >= nd_works_capacity(c->r.works)) {
        return NULL;
    }
    struct pf_seq *s = pf_of(nd_works_slot(c->r.works, (uint32_t)index));
    return s != NULL && forget_push(s, handle) ? s : NULL;
}

void pf_on_pushed(struct pf_core *c, const struct td_xfer_event *ev)
{
    struct pf_seq *s = of_push(c, ev->push);
    if (s == NULL) {
        nd_actions_observe(c->r.out, ND_M_STALE, 1);
        return;
    }
    s->kv_bytes += ev->n_bytes;
    s->transport = ev->transport != NULL ? ev->transport : s->transport;
    if (ev->first_post_us != 0 && (s->first_post_us == 0 || ev->first_post_us < s->first_post_us)) {
        s->first_post_us = ev->first_post_us;
    }
    s->last_done_us = ev->last_done_us > s->last_done_us ? ev->last_done_us : s->last_done_us;
    if (ev->err != TD_OK && s->state != PF_ENDING && s->finish == TD_FINISH_NONE) {
        pf_end(c, s, td_err_retryable(ev->err) ? ev->err : TD_ERR_TRANSPORT, "push failed");
        return;
    }
    if (rows[s->state].on_pushed != NULL) {
        rows[s->state].on_pushed(c, s);
    }
}

/* Progress: the lease starts anew. */
static void pushed_some(struct pf_core *c, struct pf_seq *s)
{
    if (s->state == PF_PUSHING) {
        pf_arm_lease(c, s);
        pf_move_blocks(c, s, TD_BLK_PARKED);
    }
    pf_push_more(c, s);
    pf_advance(c, s);
}

static void pushed_last(struct pf_core *c, struct pf_seq *s)
{
    if (s->taken && s->n_open == 0) {
        pf_end(c, s, TD_OK, "handed over");
        return;
    }
    if (s->finish != TD_FINISH_NONE && s->n_open == 0) {
        pf_release_blocks(c, s); /* nobody wants this KV */
        return;
    }
    pf_arm_lease(c, s);
    pf_move_blocks(c, s, TD_BLK_PARKED);
}

/* ---- from the engine ---- */

static void row_ending(struct pf_core *c, struct pf_seq *s, td_err err)
{
    (void)err; /* of a request that is over */
    pf_finish_ending(c, s);
}

/* The prompt is computed and the first token is out. */
static void computed(struct pf_core *c, struct pf_seq *s)
{
    nd_slots_give(c->r.slots, s->slot);
    s->slot = 0;
    nd_work_drop_prompt(c->r.works, &s->w);
    uint64_t prefill_us = (uint64_t)(s->token_us - s->exec_us);
    nd_actions_observe(c->r.out, ND_M_PREFILL_US, (double)prefill_us);
    nd_actions_observe(c->r.out, ND_M_TTFT_US, (double)(s->token_us - s->w.arrived_us));
    nd_actions_observe(c->r.out, ND_M_PROMPT_TOKENS, s->w.n_prompt);
    nd_actions_observe(c->r.out, ND_M_OUTPUT_TOKENS, 1);
    TD_LOG(INFO, "pf_exec",
           "req=%s attempt=%u prompt_tok=%u queue_us=%" PRId64 " prefill_us=%" PRIu64 " table=%s",
           s->w.req, s->w.id.attempt, s->w.n_prompt, s->exec_us - s->w.arrived_us, prefill_us,
           s->has_table ? "known" : "awaited");
    if (s->finish != TD_FINISH_NONE) {
        pf_cancel_pushes(c, s);
    } else if (s->has_table) {
        pf_push_more(c, s);
    }
    if (s->has_table && s->finish == TD_FINISH_NONE && s->pushed_tok < s->w.n_prompt) {
        pf_set_state(c, s, PF_PUSHING);
    } else if (!s->has_table) {
        pf_set_state(c, s, PF_PARKED);
    }
    pf_advance(c, s);
    pf_move_blocks(c, s, TD_BLK_PARKED);
    if (s->finish != TD_FINISH_NONE && s->n_open == 0) {
        pf_release_blocks(c, s);
    }
}

static void row_exec(struct pf_core *c, struct pf_seq *s, td_err err)
{
    if (err != TD_OK) {
        pf_end(c, s, td_err_retryable(err) ? err : TD_ERR_SEQ_FAILED, "engine failed the prompt");
        return;
    }
    s->computed_tok = s->submitted_tok;
    if (s->computed_tok == s->w.n_prompt) {
        computed(c, s);
    } else {
        pf_push_more(c, s);
    }
}

void pf_on_row(struct pf_core *c, struct pf_seq *s, td_err err)
{
    s->step = 0;
    if (rows[s->state].on_row != NULL) {
        rows[s->state].on_row(c, s, err);
    }
}

/* ---- the hand-over ---- */

/* Posted after the pushes on the same endpoint, so it cannot overtake them; D also counts slices.
 */
static void send_record(struct pf_core *c, struct pf_seq *s)
{
    struct td_wire_msg *m = pf_to_decode(c, s, TD_WIRE_RECORD);
    m->record = (struct td_wire_record){.id = s->w.id,
                                        .land = s->land,
                                        .p_epoch = c->r.p.epoch,
                                        .d_epoch = s->peer,
                                        .layout_id = c->r.p.layout_id,
                                        .numerics_id = c->r.p.engine->numerics_id,
                                        .n_tok = s->w.n_prompt,
                                        .n_slices = s->n_pushes * c->r.p.engine->n_layers,
                                        .first_token = s->first_token,
                                        .first_logprob = s->first_logprob,
                                        .finish = s->finish,
                                        .seed = s->w.sampling.seed,
                                        .stages = pf_stages(c, s)};
}

void pf_advance(struct pf_core *c, struct pf_seq *s)
{
    bool open = s->state == PF_EXEC || s->state == PF_PARKED || s->state == PF_PUSHING;
    if (!open || !s->has_token || !s->has_table ||
        (s->finish == TD_FINISH_NONE && s->pushed_tok < s->w.n_prompt)) {
        return;
    }
    pf_set_state(c, s, PF_HANDING);
    pf_move_blocks(c, s, TD_BLK_PARKED);
    s->record_us = c->r.now;
    send_record(c, s);
}
