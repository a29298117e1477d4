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
    nd_role_fini(&c->r);
    (void)nd_spans_destroy(c->addresses);
    free(c->account);
    free(c->scratch);
    free(c->seated);
    free(c);
}

static td_err build(struct dc_core *c, const struct nd_core_params *p)
{
    /* As many may land as run. */
    struct nd_role_shape shape = {.n_seats = nd_role_seats(p, TD_XFER_MAX_LANDS),
                                  .work_bytes = sizeof(struct dc_seq),
                                  .n_tokens = p->engine->max_rows * 2};
    TD_TRY(nd_role_init(&c->r, p, &shape));
    c->addresses =
        nd_spans_create((size_t)p->max_queue * ADDRESS_BYTES + 2 * (size_t)TD_WIRE_MAX_ADDR);
    c->account = td_zalloc(shape.n_seats + 1, sizeof *c->account);
    c->scratch = td_zalloc(shape.n_seats, sizeof *c->scratch);
    c->seated = td_zalloc(shape.n_seats, sizeof *c->seated);
    return c->addresses != NULL && c->account != NULL && c->scratch != NULL && c->seated != NULL
               ? TD_OK
               : TD_ERR_NO_MEMORY;
}

static td_err dc_create(const struct nd_core_params *p, void **out_core)
{
    TD_TRY(nd_core_params_check(p));
    struct dc_core *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err e = build(c, p);
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
    struct nd_work *w;
    for (uint32_t at = 0; (w = nd_role_next(&c->r, &at, router)) != NULL;) {
        struct dc_seq *s = dc_of(w);
        s->w.mute = s->w.mute || router != 0;
        if (s->state != DC_ENDING) {
            dc_end(c, s, err, text);
        }
    }
}

static void on_msg(struct dc_core *c, const struct nd_event *ev)
{
    if (nd_role_is_foreign(&c->r, ev)) {
        return;
    }
    if (ev->msg->type == TD_WIRE_RESERVE) {
        dc_on_reserve(c, &ev->msg->reserve, ev->decode_err);
    } else if (ev->msg->type == TD_WIRE_CANCEL) {
        dc_on_cancel(c, ev->router_epoch, &ev->msg->cancel);
    } else if (ev->msg->type == TD_WIRE_PREFILL) {
        nd_role_refuse(&c->r, ev->router_epoch, &ev->msg->prefill.r.id,
                       "this node has the decode role");
    }
}

static void on_xfer(struct dc_core *c, const struct nd_event *ev)
{
    const struct td_xfer_event *x = ev->xfer;
    switch (x->type) {
    case TD_XFER_MSG:
        if (ev->msg == NULL || ev->decode_err != TD_OK) {
            nd_actions_observe(c->r.out, ND_M_STALE, 1);
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
    while ((it = td_queue_pop_due(c->r.queue, c->r.now)) != NULL) {
        struct dc_seq *s = td_heap_entry(it, struct dc_seq, line);
        c->r.queued_tok -= s->local ? s->w.n_prompt : 0;
        dc_on_timeout(c, s);
    }
    struct nd_work *w;
    while ((w = nd_works_due(c->r.works, c->r.now)) != NULL) {
        dc_on_timeout(c, dc_of(w));
    }
    if (nd_role_drain_over(&c->r)) {
        end_all(c, 0, TD_ERR_DRAINING, "drain limit reached");
    }
}

static void dc_step(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out)
{
    struct dc_core *c = core;
    c->r.now = now_us;
    c->r.out = out;
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
    case ND_EV_UNDRAIN:
        (void)nd_role_drain(&c->r, ev);
        break;
    }
    dc_run(c);
    c->r.out = NULL;
}

/* ---- looking in ---- */

static int64_t dc_next_deadline(const void *core)
{
    return nd_role_next_deadline(&((const struct dc_core *)core)->r);
}

static void dc_state(const void *core, struct td_wire_state *out)
{
    const struct dc_core *c = core;
    nd_role_state(&c->r, out);
    out->role = c->r.p.local_prefill ? TD_ROLE_BOTH : TD_ROLE_DECODE;
    out->decode_step_us = c->step_us;
}

static uint32_t dc_work_count(const void *core)
{
    return nd_works_count(((const struct dc_core *)core)->r.works);
}

static uint32_t dc_waits(const void *core, struct nd_wait *out, uint32_t cap)
{
    const struct dc_core *c = core;
    uint32_t n = 0;
    struct nd_work *w;
    for (uint32_t i = 0; n < cap && (w = nd_role_next(&c->r, &i, 0)) != NULL;) {
        const struct dc_seq *s = dc_of(w);
        int64_t at = s->state == DC_QUEUED ? s->line.wait.at_us : s->w.timer.at_us;
        out[n++] = (struct nd_wait){s->w.id, dc_state_wait(s->state), s->w.since_us, at};
    }
    return n;
}

static void dc_count(const void *core, struct nd_counts *out)
{
    const struct dc_core *c = core;
    struct nd_work *w;
    for (uint32_t i = 0; (w = nd_role_next(&c->r, &i, 0)) != NULL;) {
        const struct dc_seq *s = dc_of(w);
        out->blocks += s->state == DC_QUEUED;
        out->pending_tok += s->state == DC_QUEUED ? s->w.n_prompt : 0;
        out->transfer += s->state == DC_LANDING;
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
    return s->n_blocks == 0 || td_kv_pool_owns(c->r.pool, nd_work_handle(&s->w),
                                               dc_held_blocks(c, s), dc_held(s), allowed[s->state]);
}

struct sums {
    struct nd_role_sums held;
    uint32_t owed, ready;
};

static td_err check_seqs(const struct dc_core *c, struct sums *sum)
{
    struct nd_work *w;
    for (uint32_t at = 0; (w = nd_role_next(&c->r, &at, 0)) != NULL;) {
        const struct dc_seq *s = dc_of(w);
        sum->held.blocks += dc_held(s);
        sum->held.seats += s->seat != 0;
        sum->held.slots += s->slot != 0;
        sum->ready += s->state == DC_READY;
        sum->owed += s->victim && s->state == DC_ENDING ? dc_held(s) : 0;
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
    TD_TRY(check_seqs(c, &sum));
    if (sum.owed != c->owed_blk || sum.ready != c->n_ready) {
        TD_LOG(ERROR, "decode's counts do not add up", "owed=%u of=%u ready=%u of=%u", c->owed_blk,
               sum.owed, c->n_ready, sum.ready);
        return TD_ERR_INTERNAL;
    }
    return nd_role_check(&c->r, &sum.held);
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
