#define TD_LOG_ROOM "decode"
#include "common/base/log.h"
#include "decode-node/dc_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

static void send_table(struct dc_core *c, struct dc_seq *s, const struct td_block_ref *refs)
{
    struct td_wire_msg *m = nd_actions_peer_send(c->r.out, s->peer, TD_WIRE_TABLE);
    uint32_t first = s->n_gone * c->r.p.engine->layout.block_tok;
    m->table =
        (struct td_wire_table){.id = s->source,
                               .ticket = s->ticket,
                               .land = nd_work_handle(&s->w),
                               .layout_id = c->r.p.layout_id,
                               .first_tok = first, /* no prefix cache yet: what a window hides */
                               .n_tok = s->w.n_prompt - first,
                               .n_blocks = dc_held(s),
                               .blocks = refs};
}

/* The record says that everything has been posted: from then on silence is a stalled path. Before it, silence may be a
 * layer that takes its time; prefill's lease, its endpoint and the router's heartbeats judge that. Where no router of
 * ours does, prefill's lease is waited for. */
static void expect_slices(struct dc_core *c, struct dc_seq *s)
{
    int64_t at = s->w.budget_us;
    if (s->has_record) {
        at = c->r.now + c->r.p.t_stall_us;
    } else if (dc_is_take(s)) {
        at = c->r.now + c->r.p.t_lease_us;
    }
    nd_works_arm(c->r.works, &s->w, at < s->w.budget_us ? at : s->w.budget_us, false);
}

/* Prefill may be busy with those before us: it is silent when nobody hears of it. */
void dc_land_late(struct dc_core *c, struct dc_seq *s)
{
    int64_t until = *dc_heard(c, s->peer) + c->r.p.t_lease_us;
    if (s->has_record) {
        dc_end(c, s, TD_ERR_STALLED, "transfer made no progress");
    } else if (until <= c->r.now) {
        dc_end(c, s, TD_ERR_STALLED, "the prefill node is silent");
    } else {
        nd_works_arm(c->r.works, &s->w, until < s->w.budget_us ? until : s->w.budget_us, false);
    }
}

/* The order matters: the endpoint, then the land, then the table that lets P push into it. */
void dc_land(struct dc_core *c, struct dc_seq *s)
{
    struct td_block_ref *refs = nd_actions_copy(c->r.out, NULL, dc_held(s) * sizeof *refs);
    uint8_t *address = nd_actions_copy(c->r.out, NULL, s->address.bytes);
    if (refs == NULL || address == NULL) {
        s->peer_told = true;
        dc_end(c, s, TD_ERR_NO_MEMORY, "no memory to send the block table");
        return;
    }
    for (uint32_t i = 0; i < dc_held(s); i++) {
        refs[i] = td_kv_pool_ref(c->r.pool, dc_held_blocks(c, s)[i]);
    }
    nd_spans_read(c->addresses, &s->address, 0, s->address.bytes, address);
    struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
    a->cmd.type = TD_XFER_CONNECT;
    a->cmd.epoch = s->peer;
    a->cmd.bytes = address;
    a->cmd.n_bytes = s->address.bytes;
    nd_spans_drop(c->addresses, &s->address);
    a = nd_actions_add(c->r.out, ND_DO_XFER);
    a->cmd = (struct td_xfer_cmd){.type = TD_XFER_LAND,
                                  .epoch = s->peer,
                                  .land = nd_work_handle(&s->w),
                                  .id = s->source,
                                  .layout_id = c->r.p.layout_id,
                                  .blocks = refs,
                                  .n_blocks = dc_held(s),
                                  .n_layers = c->r.p.engine->n_layers};
    s->land_open = true;
    s->table_us = c->r.now;
    send_table(c, s, refs);
    expect_slices(c, s);
}

/* ---- take-over ---- */

/* The record has verified and all its slices are here: P may free its copy. Slices past the last
 * one are not accepted any more; until that is fenced, the land counts as open. */
static void take_over(struct dc_core *c, struct dc_seq *s)
{
    struct td_wire_msg *m = nd_actions_peer_send(c->r.out, s->peer, TD_WIRE_TAKEN);
    m->taken = (struct td_wire_taken){.id = s->source, .err = TD_OK};
    dc_unland(c, s);
    s->taken_us = c->r.now;
    s->landed = true;
    s->len = s->w.n_prompt;
    s->n_out = s->w.n_replayed + 1;
    s->last_token = s->first_token;
    s->last_us = c->r.now;
    TD_LOG(INFO, "dc_land",
           "req=%s attempt=%u prompt_tok=%u slices=%u kv_bytes=%" PRIu64 " transfer_us=%" PRId64
           " transport=%s",
           s->w.req, s->w.id.attempt, s->w.n_prompt, s->n_landed, s->kv_bytes,
           s->last_land_us - s->first_land_us, s->transport != NULL ? s->transport : "");
    if (s->finish == TD_FINISH_NONE) {
        s->finish =
            nd_work_finish(&s->w, c->r.p.engine->max_model_len, s->w.n_replayed, s->first_token);
    }
    if (s->finish != TD_FINISH_NONE) {
        td_growth_seen(&c->growth, 1, s->finish == TD_FINISH_LENGTH);
        dc_say_token(c, s, s->w.n_replayed, s->first_token, s->first_logprob, s->finish);
        nd_tokens_flush(c->r.tokens, 0, c->r.out);
        dc_end(c, s, TD_OK, "answered by its first token");
        return;
    }
    nd_actions_observe(c->r.out, ND_M_TRANSFER_US, (double)(s->last_land_us - s->first_land_us));
    nd_actions_observe(c->r.out, ND_M_TRANSFER_BYTES, (double)s->kv_bytes);
    s->first_owed = true;
    dc_set_state(c, s, DC_READY);
    dc_move_blocks(c, s, TD_BLK_RUNNING);
}

static void mismatch(struct dc_core *c, struct dc_seq *s, const char *why)
{
    TD_LOG(WARN, "KV does not verify, throwing it away",
           "req=%s attempt=%u peer=%016" PRIx64 " why=\"%s\"", s->w.req, s->w.id.attempt, s->peer,
           why);
    struct td_wire_msg *m = nd_actions_peer_send(c->r.out, s->peer, TD_WIRE_TAKEN);
    m->taken = (struct td_wire_taken){.id = s->source, .err = TD_ERR_KV_MISMATCH};
    s->peer_told = true;
    dc_end(c, s, TD_ERR_KV_MISMATCH, why);
}

static void advance(struct dc_core *c, struct dc_seq *s)
{
    if (!s->has_record) {
        return;
    }
    if (s->finish == TD_FINISH_NONE && s->n_landed > s->n_slices) {
        mismatch(c, s, "more slices than the record names");
    } else if (s->finish != TD_FINISH_NONE || s->n_landed == s->n_slices) {
        take_over(c, s);
    }
}

/* ---- from the transfer thread ---- */

static struct dc_seq *of_land(struct dc_core *c, uint64_t land)
{
    struct dc_seq *s = dc_of(nd_works_by_handle(c->r.works, land));
    return s != NULL && s->land_open ? s : NULL;
}

void dc_on_landed(struct dc_core *c, const struct td_xfer_event *ev)
{
    struct dc_seq *s = of_land(c, ev->land);
    if (s == NULL || s->state != DC_LANDING) {
        return; /* the land is being closed: what still arrived is nobody's */
    }
    if (ev->n_slices <= s->n_landed) {
        return;
    }
    bool first = s->n_landed == 0;
    *dc_heard(c, s->peer) = c->r.now;
    s->n_landed = ev->n_slices;
    s->kv_bytes = ev->n_bytes;
    s->transport = ev->transport != NULL ? ev->transport : s->transport;
    s->last_land_us = c->r.now;
    if (first) {
        s->first_land_us = c->r.now;
    }
    expect_slices(c, s);
    dc_move_blocks(c, s, TD_BLK_FILLING);
    advance(c, s);
}

void dc_on_land_bad(struct dc_core *c, const struct td_xfer_event *ev)
{
    struct dc_seq *s = of_land(c, ev->land);
    if (s == NULL || s->state != DC_LANDING) {
        nd_actions_observe(c->r.out, ND_M_STALE, 1);
        return;
    }
    mismatch(c, s, "a slice did not verify");
}

void dc_on_unlanded(struct dc_core *c, const struct td_xfer_event *ev)
{
    struct dc_seq *s = of_land(c, ev->land);
    if (s != NULL) {
        s->land_open = false;
        if (s->state == DC_ENDING) {
            dc_finish_ending(c, s);
        } else {
            dc_shed(c, s);
        }
    }
}

/* ---- from prefill ---- */

/* The sequence this record is for: same tenancy, same try, same pair of processes. */
static struct dc_seq *of_record(struct dc_core *c, uint64_t peer, const struct td_wire_record *m)
{
#ifdef TD_BUG_DROPPED_EPOCH_CHECK
    uint32_t index = (uint32_t)m->land - 1;
    return index < nd_works_capacity(c->r.works) ? dc_of(nd_works_slot(c->r.works, index)) : NULL;
#endif
    struct dc_seq *s = of_land(c, m->land);
    return s != NULL && td_work_id_eq(&s->source, &m->id) && s->peer == peer &&
                   m->p_epoch == peer && m->d_epoch == c->r.p.epoch
               ? s
               : NULL;
}

static const char *record_fault(const struct dc_core *c, const struct dc_seq *s,
                                const struct td_wire_record *m)
{
    uint32_t layers = c->r.p.engine->n_layers;
    if (m->layout_id != c->r.p.layout_id) {
        return "record names another layout";
    }
    if (m->numerics_id != c->r.p.engine->numerics_id) {
        return "record names another numerics id";
    }
    if (m->n_tok != s->w.n_prompt) {
        return "record counts other tokens than the prompt's";
    }
    if (m->first_token < 0 || (uint32_t)m->first_token >= c->r.p.engine->n_vocab) {
        return "record's first token is not in the vocabulary";
    }
    if (m->seed != s->w.sampling.seed) {
        return "record names another seed";
    }
    if (m->finish == TD_FINISH_NONE &&
        (m->n_slices == 0 || m->n_slices % layers != 0 || m->n_slices / layers > dc_held(s))) {
        return "record names an impossible number of slices";
    }
    return NULL;
}

void dc_on_record(struct dc_core *c, uint64_t peer, const struct td_wire_record *m)
{
    struct dc_seq *s = of_record(c, peer, m);
    if (s == NULL) {
        dc_stale(c, "record", &m->id);
        struct td_wire_msg *t = nd_actions_peer_send(c->r.out, peer, TD_WIRE_TAKEN);
        t->taken = (struct td_wire_taken){.id = m->id, .err = TD_ERR_STALE};
        return;
    }
    if (s->state != DC_LANDING || s->has_record) {
        dc_stale(c, "record", &m->id);
        return;
    }
    const char *why = record_fault(c, s, m);
#ifdef TD_BUG_DROPPED_EPOCH_CHECK
    why = NULL;
#endif
    if (why != NULL) {
        mismatch(c, s, why);
        return;
    }
    *dc_heard(c, peer) = c->r.now;
    s->has_record = true;
    s->n_slices = m->n_slices;
    s->finish = m->finish;
    s->first_token = m->first_token;
    s->first_logprob = m->first_logprob;
    s->p_stages = m->stages;
    s->p_stages.transport = "";
    expect_slices(c, s);
    advance(c, s);
}

void dc_on_abort(struct dc_core *c, uint64_t peer, const struct td_wire_abort *m)
{
    struct dc_seq *s = of_land(c, m->land);
    if (s == NULL || s->state != DC_LANDING || s->peer != peer ||
        !td_work_id_eq(&s->source, &m->id)) {
        dc_stale(c, "abort", &m->id);
        return;
    }
    s->peer_told = true;
    dc_end(c, s, m->err != TD_OK ? m->err : TD_ERR_SEQ_FAILED, "prefill gave up");
}

void dc_on_peer_lost(struct dc_core *c, uint64_t peer, bool fenced)
{
    for (uint32_t i = 0; i < nd_works_capacity(c->r.works); i++) {
        struct dc_seq *s = dc_of(nd_works_slot(c->r.works, i));
        if (s == NULL || s->local || s->peer != peer) {
            continue;
        }
        /* A land that was not to end yet is still open for the peer's next connection. */
        s->land_open = s->land_open && !(fenced && s->close_fences);
        if (s->state == DC_LANDING && (s->closing || !fenced)) {
            s->peer_told = true;
            dc_end(c, s, TD_ERR_PEER_LOST, "prefill node lost");
        } else {
            dc_finish_ending(c, s);
        }
    }
}
