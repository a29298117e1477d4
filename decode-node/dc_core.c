#define TD_LOG_ROOM "decode"
#include "decode-node/dc_core.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "decode-node/dc_internal.h"

/* Mean room for the data plane address of a queued request's prefill node. */
#define ADDRESS_BYTES 1024u

static void dc_destroy(void *core)
{
    struct dc_core *c = core;
    if (c == NULL) {
        return;
    }
    (void)nd_works_destroy(c->works);
    (void)td_queue_destroy(c->queue);
    (void)td_kv_pool_destroy(c->pool);
    (void)nd_slots_destroy(c->seats);
    (void)nd_slots_destroy(c->slots);
    (void)nd_spans_destroy(c->addresses);
    (void)nd_tokens_destroy(c->tokens);
    free(c->account);
    free(c->plan);
    free(c->flight);
    free(c->scratch);
    free(c->seated);
    free(c->seat_blocks);
    free(c);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static td_err build(struct dc_core *c)
{
    const struct td_engine_info *e = c->p.engine;
    uint32_t bt = e->layout.block_tok;
    uint32_t n_seats = min_u32(c->p.max_seqs * 2, TD_XFER_MAX_LANDS); /* as many may land as run */
    struct nd_works_params wp = {.capacity = c->p.max_queue + n_seats,
                                 .work_bytes = sizeof(struct dc_seq),
                                 .prompt_bytes = nd_prompt_bytes(&c->p)};
    TD_TRY(nd_works_create(&wp, &c->works));
    TD_TRY(td_kv_pool_create(e->n_blocks, &c->pool));
    c->queue = td_queue_create(c->p.max_queue);
    c->seats = nd_slots_create(n_seats);
    c->slots = nd_slots_create(min_u32(c->p.max_seqs, e->max_slots));
    c->addresses =
        nd_spans_create((size_t)c->p.max_queue * ADDRESS_BYTES + 2 * (size_t)TD_WIRE_MAX_ADDR);
    c->tokens = nd_tokens_create(e->max_rows * 2);
    c->account = td_zalloc(n_seats + 1, sizeof *c->account);
    c->plan = td_zalloc(e->max_rows, sizeof *c->plan);
    c->flight = td_zalloc(e->max_rows, sizeof *c->flight);
    c->scratch = td_zalloc(n_seats, sizeof *c->scratch);
    c->seated = td_zalloc(n_seats, sizeof *c->seated);
    c->seat_len = min_u32((e->max_model_len + bt - 1) / bt, e->n_blocks);
    c->seat_blocks = td_zalloc((size_t)n_seats * c->seat_len, sizeof *c->seat_blocks);
    if (c->queue == NULL || c->seats == NULL || c->slots == NULL || c->addresses == NULL ||
        c->tokens == NULL || c->account == NULL || c->plan == NULL || c->flight == NULL ||
        c->scratch == NULL || c->seated == NULL || c->seat_blocks == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    struct td_batch_params bp = {.max_rows = e->max_rows,
                                 .max_tokens = min_u32(c->p.max_batched_tokens, e->max_tokens),
                                 .chunk_tok = c->p.chunk_tokens,
                                 .unit_tok = bt};
    return td_batch_init(&c->batch, &bp) ? TD_OK : TD_ERR_CONFIG;
}

static td_err dc_create(const struct nd_core_params *p, void **out_core)
{
    TD_TRY(nd_core_params_check(p));
    struct dc_core *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    c->p = *p;
    c->next_ticket = 1;
    c->drain_until_us = TD_NEVER;
    td_err e = build(c);
    if (e != TD_OK) {
        dc_destroy(c);
        return e;
    }
    *out_core = c;
    return TD_OK;
}

/* ---- events ---- */

static void end_all(struct dc_core *c, uint64_t router, td_err err, const char *text)
{
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        struct dc_seq *s = dc_of(nd_works_slot(c->works, i));
        if (s == NULL || (router != 0 && s->w.id.router_epoch != router)) {
            continue;
        }
        s->w.mute = s->w.mute || router != 0;
        if (s->state != DC_ENDING) {
            dc_end(c, s, err, text);
        }
    }
}

static void on_msg(struct dc_core *c, const struct nd_event *ev)
{
    const struct td_work_id *id = nd_msg_work(ev->msg);
    if (id != NULL && id->router_epoch != ev->router_epoch) {
        nd_actions_observe(c->out, ND_M_STALE, 1);
        return;
    }
    if (ev->msg->type == TD_WIRE_RESERVE) {
        dc_on_reserve(c, &ev->msg->reserve, ev->decode_err);
    } else if (ev->msg->type == TD_WIRE_CANCEL) {
        dc_on_cancel(c, ev->router_epoch, &ev->msg->cancel);
    } else if (ev->msg->type == TD_WIRE_PREFILL) {
        struct td_wire_msg *m = nd_actions_send(c->out, ev->router_epoch, TD_WIRE_END);
        m->end = (struct td_wire_end){.id = ev->msg->prefill.r.id,
                                      .err = TD_ERR_UNSUPPORTED,
                                      .text = "this node has the decode role",
                                      .stages.transport = ""};
    }
}

static void on_xfer(struct dc_core *c, const struct nd_event *ev)
{
    const struct td_xfer_event *x = ev->xfer;
    switch (x->type) {
    case TD_XFER_MSG:
        if (ev->msg == NULL || ev->decode_err != TD_OK) {
            nd_actions_observe(c->out, ND_M_STALE, 1);
        } else if (ev->msg->type == TD_WIRE_RECORD) {
            dc_on_record(c, x->epoch, &ev->msg->record);
        } else if (ev->msg->type == TD_WIRE_ABORT) {
            dc_on_abort(c, x->epoch, &ev->msg->abort);
        }
        break;
    case TD_XFER_LANDED:
        dc_on_landed(c, x);
        break;
    case TD_XFER_LAND_BAD:
        dc_on_land_bad(c, x);
        break;
    case TD_XFER_UNLANDED:
        dc_on_unlanded(c, x);
        break;
    case TD_XFER_PEER_LOST:
        dc_on_peer_lost(c, x->epoch, false);
        break;
    case TD_XFER_CLOSED:
        dc_on_peer_lost(c, x->epoch, true);
        break;
    case TD_XFER_PUSHED:
        break; /* this role pushes nothing */
    }
}

/* Runs at every event: a wait may not depend on the kind of event that comes. */
static void expire(struct dc_core *c)
{
    struct td_queue_item *it;
    while ((it = td_queue_pop_due(c->queue, c->now)) != NULL) {
        struct dc_seq *s = td_heap_entry(it, struct dc_seq, line);
        c->queued_tok -= s->local ? s->w.n_prompt : 0;
        dc_on_timeout(c, s);
    }
    struct nd_work *w;
    while ((w = nd_works_due(c->works, c->now)) != NULL) {
        dc_on_timeout(c, dc_of(w));
    }
    if (c->drain_until_us <= c->now) {
        c->drain_until_us = TD_NEVER;
        TD_LOG(WARN, "drain limit reached, ending what is left", "works=%u",
               nd_works_count(c->works));
        end_all(c, 0, TD_ERR_DRAINING, "drain limit reached");
    }
}

static void dc_step(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out)
{
    struct dc_core *c = core;
    c->now = now_us;
    c->out = out;
    expire(c);
    switch (ev->type) {
    case ND_EV_ROUTER_UP:
    case ND_EV_TICK:
        break;
    case ND_EV_ROUTER_LOST:
        end_all(c, ev->router_epoch, TD_ERR_CANCELLED, "router lost");
        break;
    case ND_EV_MSG:
        on_msg(c, ev);
        break;
    case ND_EV_STEP:
        dc_on_step(c, ev->step);
        break;
    case ND_EV_XFER:
        on_xfer(c, ev);
        break;
    case ND_EV_DRAIN:
        c->draining = true;
        c->drain_until_us =
            ev->deadline_us < c->drain_until_us ? ev->deadline_us : c->drain_until_us;
        break;
    case ND_EV_UNDRAIN:
        c->draining = false;
        c->drain_until_us = TD_NEVER;
        break;
    }
    dc_run(c);
    c->out = NULL;
}

/* ---- looking in ---- */

static int64_t dc_next_deadline(const void *core)
{
    const struct dc_core *c = core;
    int64_t at = nd_works_next_deadline(c->works);
    int64_t line = td_queue_next_deadline(c->queue);
    at = line < at ? line : at;
    return c->drain_until_us < at ? c->drain_until_us : at;
}

static void dc_state(const void *core, struct td_wire_state *out)
{
    const struct dc_core *c = core;
    out->draining = c->draining;
    out->role = c->p.local_prefill ? TD_ROLE_BOTH : TD_ROLE_DECODE;
    out->queued_requests = (uint32_t)td_queue_count(c->queue);
    out->running_requests = nd_works_count(c->works) - out->queued_requests;
    out->queued_prompt_tok = c->queued_tok + c->batch.todo_tok;
    for (unsigned s = 0; s < TD_BLK_STATES; s++) {
        out->blocks[s] = td_kv_pool_count(c->pool, (enum td_blk_state)s);
    }
    out->prefill_us_per_ktok = c->us_per_ktok;
    out->decode_step_us = c->step_us;
}

static uint32_t dc_work_count(const void *core)
{
    return nd_works_count(((const struct dc_core *)core)->works);
}

static uint32_t dc_waits(const void *core, struct nd_wait *out, uint32_t cap)
{
    const struct dc_core *c = core;
    uint32_t n = 0;
    for (uint32_t i = 0; i < nd_works_capacity(c->works) && n < cap; i++) {
        const struct dc_seq *s = dc_of(nd_works_slot(c->works, i));
        if (s != NULL) {
            int64_t at = s->state == DC_QUEUED ? s->line.wait.at_us : s->w.timer.at_us;
            out[n++] = (struct nd_wait){s->w.id, dc_state_wait(s->state), s->w.since_us, at};
        }
    }
    return n;
}

static void dc_count(const void *core, struct nd_counts *out)
{
    const struct dc_core *c = core;
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        const struct dc_seq *s = dc_of(nd_works_slot(c->works, i));
        if (s != NULL) {
            out->blocks += s->state == DC_QUEUED;
            out->pending_tok += s->state == DC_QUEUED ? s->w.n_prompt : 0;
            out->transfer += s->state == DC_LANDING;
        }
    }
}

/* ---- invariants ---- */

static bool timer_ok(const struct dc_seq *s)
{
    return s->state == DC_QUEUED ? td_queue_holds(&s->line) && s->w.timer.slot == 0
                                 : s->w.timer.slot != 0;
}

/* The blocks a sequence believes to hold are its own in the ledger, in one of the states its own
 * state allows: no block has two owners. */
static bool blocks_ok(const struct dc_core *c, const struct dc_seq *s)
{
    static const unsigned allowed[DC_STATES] = {
        [DC_LANDING] = 1u << TD_BLK_RESERVED | 1u << TD_BLK_FILLING,
        [DC_READY] = 1u << TD_BLK_RUNNING,
        [DC_PREFILL] = 1u << TD_BLK_RESERVED | 1u << TD_BLK_FILLING,
        [DC_RUNNING] = 1u << TD_BLK_RUNNING,
        [DC_ENDING] = 1u << TD_BLK_QUARANTINED,
    };
    return s->n_blocks == 0 || td_kv_pool_owns(c->pool, nd_work_handle(&s->w), dc_blocks(c, s),
                                               s->n_blocks, allowed[s->state]);
}

struct sums {
    uint32_t blocks, seats, slots, owed, ready;
};

static td_err check_seqs(const struct dc_core *c, struct sums *sum)
{
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        const struct dc_seq *s = dc_of(nd_works_slot(c->works, i));
        if (s == NULL) {
            continue;
        }
        sum->blocks += s->n_blocks;
        sum->seats += s->seat != 0;
        sum->slots += s->slot != 0;
        sum->ready += s->state == DC_READY;
        sum->owed += s->victim && s->state == DC_ENDING ? s->n_blocks : 0;
        if (!timer_ok(s) || !blocks_ok(c, s)) {
            TD_LOG(ERROR, "decode request breaks an invariant", "req=%s state=%s timer=%d",
                   s->w.req, dc_state_name(s->state), timer_ok(s));
            return TD_ERR_INTERNAL;
        }
    }
    return TD_OK;
}

static td_err dc_check(const void *core)
{
    const struct dc_core *c = core;
    struct sums sum = {0};
    TD_TRY(td_kv_pool_check(c->pool));
    TD_TRY(nd_works_check(c->works));
    TD_TRY(check_seqs(c, &sum));
    uint32_t held = td_kv_pool_held(c->pool);
    if (c->broken || held != sum.blocks || sum.owed != c->owed_blk || sum.ready != c->n_ready ||
        sum.seats != nd_slots_size(c->seats) - nd_slots_free(c->seats) ||
        sum.slots != nd_slots_size(c->slots) - nd_slots_free(c->slots)) {
        TD_LOG(ERROR, "decode blocks do not add up", "held=%u owned=%u seats=%u slots=%u owed=%u",
               held, sum.blocks, sum.seats, sum.slots, c->owed_blk);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
}

const struct nd_role_ops dc_role_ops = {
    .name = "decode",
    .role = TD_ROLE_DECODE,
    .create = dc_create,
    .destroy = dc_destroy,
    .step = dc_step,
    .next_deadline = dc_next_deadline,
    .state = dc_state,
    .work_count = dc_work_count,
    .waits = dc_waits,
    .count = dc_count,
    .check = dc_check,
};
