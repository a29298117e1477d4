#define TD_LOG_ROOM "prefill"
#include "common/base/log.h"
#include "prefill-node/pf_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

/* One path out of every state: tell decode and the router, then give the blocks back, now or when
 * the last reader is gone. */

/* Blocks follow: state and deadline of the ledger are those of the sequence. */
void pf_move_blocks(struct pf_core *c, struct pf_seq *s, enum td_blk_state to)
{
    if (s->n_blocks > 0) {
        pf_ledger(c, s,
                  td_kv_pool_move(c->r.pool, nd_work_handle(&s->w), pf_blocks(c, s), s->n_blocks,
                                  to, s->w.timer.at_us));
    }
}

void pf_release_blocks(struct pf_core *c, struct pf_seq *s)
{
    if (s->seat != 0 && s->hold_us > 0) {
        c->hold_seats--;
        c->hold_blk -= s->n_blocks;
    }
    if (s->n_blocks > 0) {
#ifdef TD_BUG_SKIPPED_RELEASE
        if (s->state != PF_HANDING || s->taken || s->finish != TD_FINISH_NONE)
#endif
            pf_ledger(
                c, s,
                td_kv_pool_release(c->r.pool, nd_work_handle(&s->w), pf_blocks(c, s), s->n_blocks));
        s->n_blocks = 0;
    }
    nd_slots_give(c->r.seats, s->seat);
    s->seat = 0;
}

struct td_wire_stages pf_stages(const struct pf_core *c, const struct pf_seq *s)
{
    struct td_wire_stages g = {.prompt_tokens = s->w.n_prompt,
                               .transport = s->transport != NULL ? s->transport : "",
                               .kv_bytes = s->kv_bytes};
    int64_t started = s->exec_us != 0 ? s->exec_us : c->r.now;
    g.prefill_queue_us = (uint64_t)(started - s->w.arrived_us);
    if (s->has_token) {
        g.prefill_us = (uint64_t)(s->token_us - s->exec_us);
        g.output_tokens = 1;
    }
    if (s->first_post_us != 0 && s->last_done_us > s->first_post_us) {
        g.transfer_us = (uint64_t)(s->last_done_us - s->first_post_us);
    }
    if (s->has_token && s->first_post_us != 0 && s->last_done_us > s->token_us) {
        g.transfer_exposed_us = (uint64_t)(s->last_done_us - s->token_us);
    }
    return g;
}

static void observe_end(struct pf_core *c, const struct pf_seq *s, td_err err,
                        const struct td_wire_stages *g)
{
    if (err == TD_ERR_CANCELLED) {
        nd_actions_observe(c->r.out, ND_M_CANCELLED, pf_state_phase(s->state));
        return;
    }
    if (err != TD_OK) {
        nd_actions_observe(c->r.out, ND_M_FINISHED, TD_FINISH_ERROR);
        if (s->has_table) {
            nd_actions_observe(c->r.out, ND_M_TRANSFER_FAILED, err);
        }
        return;
    }
    nd_actions_observe(c->r.out, ND_M_FINISHED, s->finish);
    if (g->kv_bytes > 0) {
        nd_actions_observe(c->r.out, ND_M_TRANSFER_US, (double)g->transfer_us);
        nd_actions_observe(c->r.out, ND_M_TRANSFER_EXPOSED_US, (double)g->transfer_exposed_us);
        nd_actions_observe(c->r.out, ND_M_TRANSFER_BYTES, (double)g->kv_bytes);
    }
}

static void tell_done(struct pf_core *c, const struct pf_seq *s, td_err err)
{
    struct nd_done *d = nd_actions_done(c->r.out);
    nd_work_done(c->r.works, &s->w, d);
    d->phase = pf_state_phase(s->state);
    d->err = err;
    d->finish = s->finish;
    d->table_us = s->table_us;
    d->exec_us = s->exec_us;
    d->token_us = s->has_token ? s->token_us : 0;
    d->xfer_first_us = s->first_post_us;
    d->xfer_last_us = s->last_done_us;
    d->record_us = s->record_us;
    d->last_us = d->token_us;
    d->ended_us = c->r.now;
    d->n_output = s->has_token ? 1 : 0;
    d->n_slices = s->n_pushes * c->r.p.engine->n_layers;
    d->kv_bytes = s->kv_bytes;
    d->transport = s->transport != NULL ? s->transport : "";
}

static void tell_router(struct pf_core *c, struct pf_seq *s, td_err err, const char *text)
{
    struct td_wire_stages g = pf_stages(c, s);
    observe_end(c, s, err, &g);
    tell_done(c, s, err);
    TD_LOG(INFO, "pf_push",
           "req=%s attempt=%u err=%s state=%s pushes=%u kv_bytes=%" PRIu64 " transfer_us=%" PRIu64
           " exposed_us=%" PRIu64 " transport=%s why=\"%s\"",
           s->w.req, s->w.id.attempt, td_err_code(err), pf_state_name(s->state), s->n_pushes,
           g.kv_bytes, g.transfer_us, g.transfer_exposed_us, g.transport, text);
    if (!s->w.mute) {
        struct td_wire_msg *m = nd_actions_send(c->r.out, s->w.id.router_epoch, TD_WIRE_END);
        m->end = (struct td_wire_end){.id = s->w.id, .err = err, .text = text, .stages = g};
    }
}

/* A message to D that waits for this request's slices only. */
struct td_wire_msg *pf_to_decode(struct pf_core *c, const struct pf_seq *s, enum td_wire_type type)
{
    struct td_wire_msg *m = nd_actions_peer_send(c->r.out, s->peer, type);
    c->r.out->list[c->r.out->n - 1].cmd.land = s->land;
    return m;
}

/* D waits for bytes or a record that will not come: say so at once. */
static void tell_decode(struct pf_core *c, struct pf_seq *s, td_err err)
{
    if (err != TD_OK && s->has_table && !s->peer_gone) {
        struct td_wire_msg *m = pf_to_decode(c, s, TD_WIRE_ABORT);
        m->abort = (struct td_wire_abort){.id = s->w.id, .land = s->land, .err = err};
    }
}

void pf_cancel_pushes(struct pf_core *c, struct pf_seq *s)
{
    for (uint32_t i = 0; i < s->n_open; i++) {
        struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
        a->cmd.type = TD_XFER_PUSH_CANCEL;
        a->cmd.push = pf_push_handle(s, s->open[i]);
    }
}

/* Nobody reads or writes the blocks any more. */
static void close_seq(struct pf_core *c, struct pf_seq *s)
{
    pf_release_blocks(c, s);
    nd_slots_give(c->r.slots, s->slot);
    nd_spans_drop(c->tables, &s->table);
    if (s->state != PF_ENDING) {
        pf_set_state(c, s, PF_ENDING);
    }
    pf_set_state(c, s, PF_FREE);
    nd_works_close(c->r.works, &s->w);
}

void pf_end(struct pf_core *c, struct pf_seq *s, td_err err, const char *text)
{
    TD_REQUIRE(s->state != PF_FREE && s->state != PF_ENDING);
    if (td_queue_holds(&s->line)) {
        td_queue_remove(pf_line_of(c, s), &s->line);
        c->r.queued_tok -= s->w.n_prompt;
    }
    td_batch_leave(&c->r.batch, &s->batch);
    pf_cancel_pushes(c, s); /* before the message, which would wait for them */
    tell_decode(c, s, err);
    tell_router(c, s, err, text);
    if (s->step == 0 && s->n_open == 0) {
        close_seq(c, s);
        return;
    }
    pf_set_state(c, s, PF_ENDING);
    pf_move_blocks(c, s, TD_BLK_QUARANTINED);
}

void pf_finish_ending(struct pf_core *c, struct pf_seq *s)
{
    if (s->step == 0 && s->n_open == 0) {
        close_seq(c, s);
    }
}

/* What has been posted to the peer until now ends with CLOSED; what comes later does not. */
static void close_peer(struct pf_core *c, uint64_t peer)
{
    struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
    a->cmd.type = TD_XFER_CLOSE;
    a->cmd.epoch = peer;
    for (uint32_t i = 0; i < nd_works_capacity(c->r.works); i++) {
        struct pf_seq *s = pf_of(nd_works_slot(c->r.works, i));
        if (s != NULL && s->has_table && s->peer == peer && s->n_open > 0) {
            s->closing = true;
        }
    }
}

/* A post that does not end: closing the endpoint is the fence. A step that does not end can only be
 * waited for; nobody outside waits with it. */
void pf_ending_overdue(struct pf_core *c, struct pf_seq *s)
{
    TD_LOG(WARN, "request cannot let its blocks go yet, waiting",
           "req=%s step=%" PRIu64 " pushes=%u peer=%016" PRIx64, s->w.req, s->step, s->n_open,
           s->peer);
    if (s->n_open > 0) {
        close_peer(c, s->peer);
    }
    nd_works_arm(c->r.works, &s->w, c->r.now + c->r.p.t_stall_us, true);
    pf_move_blocks(c, s, TD_BLK_QUARANTINED);
}
