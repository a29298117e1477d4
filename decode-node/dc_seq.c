#define TD_LOG_ROOM "decode"
#include "common/base/log.h"
#include "decode-node/dc_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

#define BIT(s) (1u << (unsigned)(s))

/* What each state is called, what it waits for, where it may go, and what its deadline means.
 * Messages and transfer events are for `landing` alone and are handled in dc_land.c. */
struct state_row {
    const char *name, *wait;
    unsigned next;
    unsigned phase; /* of ND_M_CANCELLED */
    void (*on_timeout)(struct dc_core *c, struct dc_seq *s);
};

static void queue_spent(struct dc_core *c, struct dc_seq *s);
static void land_spent(struct dc_core *c, struct dc_seq *s);
static void budget_spent(struct dc_core *c, struct dc_seq *s);
static void ending_overdue(struct dc_core *c, struct dc_seq *s);

static const struct state_row rows[DC_STATES] = {
    [DC_FREE] = {"free", "", BIT(DC_QUEUED), 0, NULL},
    [DC_QUEUED] = {"queued", "room in the pool", BIT(DC_LANDING) | BIT(DC_PREFILL) | BIT(DC_ENDING),
                   0, queue_spent},
    [DC_LANDING] = {"landing", "slices and record from prefill", BIT(DC_READY) | BIT(DC_ENDING), 2,
                    land_spent},
    [DC_READY] = {"ready", "a place in the batch", BIT(DC_RUNNING) | BIT(DC_ENDING), 3,
                  budget_spent},
    [DC_PREFILL] = {"prefill", "its chunks to be computed", BIT(DC_RUNNING) | BIT(DC_ENDING), 1,
                    budget_spent},
    [DC_RUNNING] = {"running", "its next token", BIT(DC_ENDING), 3, budget_spent},
    [DC_ENDING] = {"ending", "its step to end and its land to be fenced", BIT(DC_FREE), 3,
                   ending_overdue},
};

const char *dc_state_name(enum dc_state s)
{
    return rows[s].name;
}

const char *dc_state_wait(enum dc_state s)
{
    return rows[s].wait;
}

/* The one place where a request changes its state; arms the deadline of the new one. */
void dc_set_state(struct dc_core *c, struct dc_seq *s, enum dc_state to)
{
    TD_INSIST((rows[s->state].next & BIT(to)) != 0);
    TD_LOG(DEBUG, "dc state", "req=%s attempt=%u from=%s to=%s", s->w.req, s->w.id.attempt,
           rows[s->state].name, rows[to].name);
    c->n_ready -= s->state == DC_READY;
    c->n_ready += to == DC_READY;
    s->state = to;
    s->w.since_us = c->r.now;
    switch (to) {
    case DC_FREE:
    case DC_QUEUED: /* the line keeps its deadline */
        nd_works_disarm(c->r.works, &s->w);
        break;
    case DC_LANDING: /* the stall clock starts with the first byte: dc_on_landed */
    case DC_READY:
    case DC_PREFILL:
    case DC_RUNNING:
        nd_works_arm(c->r.works, &s->w, s->w.budget_us, false);
        break;
    case DC_ENDING:
        nd_works_arm(c->r.works, &s->w, c->r.now + c->r.p.t_stall_us, true);
        break;
    case DC_STATES:
        break;
    }
}

uint32_t *dc_blocks(const struct dc_core *c, const struct dc_seq *s)
{
    TD_REQUIRE(s->seat != 0);
    return c->r.seat_blocks + (size_t)(s->seat - 1) * c->r.seat_len;
}

void dc_ledger(struct dc_core *c, const struct dc_seq *s, td_err e)
{
    if (e != TD_OK) {
        TD_LOG(ERROR, "ledger refused, our bug", "req=%s state=%s err=%s", s->w.req,
               rows[s->state].name, td_err_code(e));
        c->r.broken = true;
    }
}

void dc_move_blocks(struct dc_core *c, struct dc_seq *s, enum td_blk_state to)
{
    if (s->n_blocks > 0) {
        dc_ledger(c, s,
                  td_kv_pool_move(c->r.pool, nd_work_handle(&s->w), dc_held_blocks(c, s),
                                  dc_held(s), to, s->w.timer.at_us));
    }
}

void dc_stale(struct dc_core *c, const char *what, const struct td_work_id *id)
{
    nd_actions_observe(c->r.out, ND_M_STALE, 1);
    TD_LOG(DEBUG, "stale message dropped", "what=%s counter=%" PRIu64 " attempt=%u", what,
           id->counter, id->attempt);
}

/* ---- ends ---- */

static struct td_wire_stages stages_of(const struct dc_core *c, const struct dc_seq *s)
{
    struct td_wire_stages g = s->p_stages;
    g.transport = s->transport != NULL ? s->transport : "";
    g.prompt_tokens = s->w.n_prompt;
    g.output_tokens = s->n_out - s->w.n_replayed;
    g.kv_bytes = s->kv_bytes;
    if (s->local) {
        g.prefill_queue_us =
            (uint64_t)((s->exec_us != 0 ? s->exec_us : c->r.now) - s->w.arrived_us);
        g.prefill_us = s->token_us != 0 ? (uint64_t)(s->token_us - s->exec_us) : 0;
    }
    if (s->last_land_us > s->first_land_us) {
        g.transfer_us = (uint64_t)(s->last_land_us - s->first_land_us);
    }
    if (s->taken_us != 0) {
        int64_t started = s->decode_us != 0 ? s->decode_us : c->r.now;
        g.decode_queue_us = (uint64_t)(started - s->taken_us);
    }
    if (s->decode_us != 0 && s->last_us > s->decode_us) {
        g.decode_us = (uint64_t)(s->last_us - s->decode_us);
    }
    return g;
}

static void observe_end(struct dc_core *c, const struct dc_seq *s, td_err err,
                        const struct td_wire_stages *g)
{
    if (err == TD_ERR_CANCELLED) {
        nd_actions_observe(c->r.out, ND_M_CANCELLED, rows[s->state].phase);
        return;
    }
    if (s->state == DC_LANDING && err != TD_OK) {
        nd_actions_observe(c->r.out, ND_M_TRANSFER_FAILED, err);
    }
    nd_actions_observe(c->r.out, ND_M_FINISHED, err == TD_OK ? s->finish : TD_FINISH_ERROR);
    if (g->decode_us > 0) {
        nd_actions_observe(c->r.out, ND_M_DECODE_US, (double)g->decode_us);
    }
}

static void tell_done(struct dc_core *c, const struct dc_seq *s, td_err err)
{
    struct nd_done *d = nd_actions_done(c->r.out);
    nd_work_done(c->r.works, &s->w, d);
    d->decode = true;
    d->local = s->local;
    d->preempted = s->victim;
    d->phase = rows[s->state].phase;
    d->err = err;
    d->finish = s->finish;
    d->table_us = s->table_us;
    d->exec_us = s->exec_us;
    d->token_us = s->token_us;
    d->xfer_first_us = s->first_land_us;
    d->xfer_last_us = s->last_land_us;
    d->record_us = s->taken_us;
    d->decode_us = s->decode_us;
    d->last_us = s->last_us;
    d->ended_us = c->r.now;
    d->n_output = s->n_out - s->w.n_replayed;
    d->n_slices = s->n_landed;
    d->kv_bytes = s->kv_bytes;
    d->transport = s->transport != NULL ? s->transport : "";
}

static void tell_router(struct dc_core *c, struct dc_seq *s, td_err err, const char *text)
{
    struct td_wire_stages g = stages_of(c, s);
    observe_end(c, s, err, &g);
    tell_done(c, s, err);
    TD_LOG(INFO, "dc_stream",
           "req=%s attempt=%u err=%s state=%s output_tok=%" PRIu64 " decode_queue_us=%" PRIu64
           " decode_us=%" PRIu64 " why=\"%s\"",
           s->w.req, s->w.id.attempt, td_err_code(err), rows[s->state].name, g.output_tokens,
           g.decode_queue_us, g.decode_us, text);
    if (!s->w.mute) {
        struct td_wire_msg *m = nd_actions_send(c->r.out, s->w.id.router_epoch, TD_WIRE_END);
        m->end = (struct td_wire_end){.id = s->w.id, .err = err, .text = text, .stages = g};
    }
}

/* P still pushes, or holds the KV for us: it may stop. */
static void tell_prefill(struct dc_core *c, struct dc_seq *s, td_err err)
{
    if (s->state == DC_LANDING && err != TD_OK && !s->peer_told) {
        struct td_wire_msg *m = nd_actions_peer_send(c->r.out, s->peer, TD_WIRE_ABORT);
        m->abort =
            (struct td_wire_abort){.id = s->source, .land = nd_work_handle(&s->w), .err = err};
    }
}

void dc_unland(struct dc_core *c, struct dc_seq *s)
{
    if (s->land_open && !s->unlanding) {
        s->unlanding = true;
        struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
        a->cmd.type = TD_XFER_UNLAND;
        a->cmd.land = nd_work_handle(&s->w);
    }
}

static void leave_lines(struct dc_core *c, struct dc_seq *s)
{
    if (td_queue_holds(&s->line)) {
        td_queue_remove(c->r.queue, &s->line);
        c->r.queued_tok -= s->local ? s->w.n_prompt : 0;
    }
    td_batch_leave(&c->r.batch, &s->batch);
}

/* Nobody reads or writes the blocks any more. */
static void close_seq(struct dc_core *c, struct dc_seq *s)
{
    if (s->n_blocks > 0) {
        dc_ledger(
            c, s,
            td_kv_pool_release(c->r.pool, nd_work_handle(&s->w), dc_held_blocks(c, s), dc_held(s)));
        c->owed_blk -= s->victim ? dc_held(s) : 0;
        s->n_blocks = s->n_gone = 0;
    }
    if (s->seat != 0) {
        c->seated[s->seat - 1] = (struct td_seq_ref){0};
    }
    nd_slots_give(c->r.seats, s->seat);
    nd_slots_give(c->r.slots, s->slot);
    nd_spans_drop(c->addresses, &s->address);
    if (s->state != DC_ENDING) {
        dc_set_state(c, s, DC_ENDING);
    }
    dc_set_state(c, s, DC_FREE);
    nd_works_close(c->r.works, &s->w);
}

void dc_end(struct dc_core *c, struct dc_seq *s, td_err err, const char *text)
{
    TD_REQUIRE(s->state != DC_FREE && s->state != DC_ENDING);
    leave_lines(c, s);
    tell_prefill(c, s, err);
    tell_router(c, s, err, text);
    dc_unland(c, s);
#ifdef TD_BUG_FORGOTTEN_QUARANTINE
    s->land_open = false;
#endif
    if (s->n_steps == 0 && !s->land_open) {
        s->victim = false;
        close_seq(c, s);
        return;
    }
    dc_set_state(c, s, DC_ENDING);
    dc_move_blocks(c, s, TD_BLK_QUARANTINED);
    c->owed_blk += s->victim ? dc_held(s) : 0;
}

void dc_finish_ending(struct dc_core *c, struct dc_seq *s)
{
    if (s->state == DC_ENDING && s->n_steps == 0 && !s->land_open) {
        close_seq(c, s);
    }
}

/* ---- deadlines ---- */

void dc_on_timeout(struct dc_core *c, struct dc_seq *s)
{
    TD_INSIST(rows[s->state].on_timeout != NULL);
    rows[s->state].on_timeout(c, s);
}

static void budget_spent(struct dc_core *c, struct dc_seq *s)
{
    dc_end(c, s, TD_ERR_BUDGET, "time budget spent in decode");
}

static void queue_spent(struct dc_core *c, struct dc_seq *s)
{
    if (c->r.now >= s->w.budget_us) {
        budget_spent(c, s);
    } else {
        dc_end(c, s, dc_is_take(s) ? TD_ERR_LEASE : TD_ERR_STALE,
               "ticket expired before there was room");
    }
}

static void land_spent(struct dc_core *c, struct dc_seq *s)
{
    if (c->r.now >= s->w.budget_us) {
        budget_spent(c, s);
    } else {
        dc_land_late(c, s);
    }
}

/* CLOSED fences the lands that are ending by now. Others of this connection end with it; those of a
 * later one live on. */
static void close_peer(struct dc_core *c, uint64_t peer)
{
    struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
    a->cmd.type = TD_XFER_CLOSE;
    a->cmd.epoch = peer;
    for (uint32_t i = 0; i < nd_works_capacity(c->r.works); i++) {
        struct dc_seq *s = dc_of(nd_works_slot(c->r.works, i));
        if (s != NULL && s->land_open && s->peer == peer) {
            s->closing = true;
            s->close_fences = s->unlanding;
        }
    }
}

/* A land that is not fenced in time: closing the endpoint is the fence. A step can only be waited
 * for; nobody outside waits with it. */
static void ending_overdue(struct dc_core *c, struct dc_seq *s)
{
    TD_LOG(WARN, "request cannot let its blocks go yet, waiting",
           "req=%s steps=%u land=%d peer=%016" PRIx64, s->w.req, s->n_steps, s->land_open, s->peer);
    if (s->land_open) {
        close_peer(c, s->peer);
    }
    nd_works_arm(c->r.works, &s->w, c->r.now + c->r.p.t_stall_us, true);
    dc_move_blocks(c, s, TD_BLK_QUARANTINED);
}

/* ---- from the router ---- */

static void refuse(struct dc_core *c, const struct td_work_id *id, td_err err)
{
    nd_actions_observe(c->r.out, ND_M_REFUSED, err);
    TD_LOG(INFO, "dc_land", "counter=%" PRIu64 " attempt=%u refused=%s", id->counter, id->attempt,
           td_err_code(err));
    struct td_wire_msg *m = nd_actions_send(c->r.out, id->router_epoch, TD_WIRE_END);
    m->end = (struct td_wire_end){
        .id = *id, .err = err, .text = td_err_text(err), .stages.transport = ""};
    nd_works_bury(c->r.works, id, ND_GRAVE_ENDED);
}

/* Why this request cannot be taken, before anything is held. */
static td_err admit_check(const struct dc_core *c, const struct td_wire_reserve *m)
{
    if (c->r.draining) {
        return TD_ERR_DRAINING;
    }
    if (m->mode == TD_RESERVE_LOCAL) {
        if (!c->r.p.local_prefill) {
            return TD_ERR_UNSUPPORTED;
        }
    } else if (m->mode != TD_RESERVE_REMOTE || m->p_address_len == 0 ||
               m->p_address_len > TD_WIRE_MAX_ADDR || m->ticket.p_epoch == 0) {
        return TD_ERR_BAD_REQUEST;
    } else if (m->ticket.d_epoch != c->r.p.epoch) {
        return TD_ERR_STALE;
    }
    if (m->r.budget_ms == 0) {
        return TD_ERR_BUDGET;
    }
    if (td_queue_count(c->r.queue) >= c->r.p.max_queue) {
        return TD_ERR_OVERLOADED;
    }
    return nd_request_check(&c->r.p, &m->r);
}

static td_err open_seq(struct dc_core *c, const struct td_wire_reserve *m, struct dc_seq **out_seq)
{
    struct nd_work *w = NULL;
    TD_TRY(nd_works_open(c->r.works, &m->r, c->r.now, &w));
    struct dc_seq *s = dc_of(w);
    s->local = m->mode == TD_RESERVE_LOCAL;
    s->n_out = w->n_replayed;
    if (!s->local) {
        td_err e = nd_spans_put(c->addresses, m->p_address, m->p_address_len, &s->address);
        if (e != TD_OK) {
            nd_works_close(c->r.works, w);
            return e;
        }
        s->ticket = m->ticket;
        s->ticket_until_us = c->r.now + (int64_t)m->ticket.life_ms * 1000;
        s->peer = m->ticket.p_epoch;
        s->source = m->held.router_epoch != 0 ? m->held : w->id;
    }
    *out_seq = s;
    return TD_OK;
}

void dc_on_reserve(struct dc_core *c, const struct td_wire_reserve *m, td_err decode_err)
{
    enum nd_grave grave = nd_works_buried(c->r.works, &m->r.id);
    if (nd_works_find(c->r.works, &m->r.id) != NULL || grave == ND_GRAVE_ENDED) {
        dc_stale(c, "reserve", &m->r.id);
        return;
    }
    struct dc_seq *s = NULL;
    td_err e = grave == ND_GRAVE_CANCELLED ? TD_ERR_CANCELLED : decode_err;
    e = e == TD_OK ? admit_check(c, m) : e;
    e = e == TD_OK ? open_seq(c, m, &s) : e;
    if (e != TD_OK) {
        refuse(c, &m->r.id, e);
        return;
    }
    int64_t until = s->w.budget_us;
    if (!s->local && s->ticket_until_us < until) {
        until = s->ticket_until_us;
    }
    dc_set_state(c, s, DC_QUEUED);
    TD_INSIST(td_queue_push(c->r.queue, &s->line, s->w.priority, c->r.now, until) == TD_OK);
    c->r.queued_tok += s->local ? s->w.n_prompt : 0;
}

/* Legal in every state, idempotent; a cancel that comes before its request stops it there. */
void dc_on_cancel(struct dc_core *c, uint64_t router, const struct td_wire_cancel *m)
{
    struct dc_seq *s = dc_of(nd_works_find(c->r.works, &m->id));
    bool known = s != NULL;
    bool ends = known && s->state != DC_ENDING;
#ifdef TD_BUG_LOST_CANCEL
    ends = ends && s->state != DC_LANDING && s->state != DC_READY;
#endif
    if (ends) {
        dc_end(c, s, TD_ERR_CANCELLED, "cancelled by the router");
    } else if (!known && nd_works_buried(c->r.works, &m->id) == ND_GRAVE_NONE) {
        nd_works_bury(c->r.works, &m->id, ND_GRAVE_CANCELLED);
    }
    struct td_wire_msg *a = nd_actions_send(c->r.out, router, TD_WIRE_CANCEL_ACK);
    a->cancel_ack = (struct td_wire_cancel_ack){.id = m->id, .known = known};
}
