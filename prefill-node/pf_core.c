#define TD_LOG_ROOM "prefill"
#include "prefill-node/pf_core.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "prefill-node/pf_internal.h"

static void pf_destroy(void *core)
{
    struct pf_core *c = core;
    if (c == NULL) {
        return;
    }
    nd_role_fini(&c->r);
    (void)td_queue_destroy(c->holds);
    (void)nd_spans_destroy(c->tables);
    free(c);
}

/* Header and framing of a slice message, generously. */
#define PUSH_OVERHEAD 4096u

static uint32_t push_limit(const struct nd_core_params *p)
{
    const struct td_kv_layout *l = &p->engine->layout;
    uint32_t blocks = l->slice_bytes > 0 ? (TD_XFER_MAX_MSG - PUSH_OVERHEAD) / l->slice_bytes
                                         : p->chunk_tokens / l->block_tok;
    return nd_min_u32(blocks * l->block_tok, p->chunk_tokens);
}

static td_err build(struct pf_core *c, const struct nd_core_params *p)
{
    /* Half may be computed already and wait for decode. */
    struct nd_role_shape shape = {.n_seats = nd_role_seats(p, TD_XFER_MAX_PUSHES),
                                  .work_bytes = sizeof(struct pf_seq),
                                  .n_tokens = p->engine->max_rows};
    TD_TRY(nd_role_init(&c->r, p, &shape));
    c->push_tok = push_limit(p);
    c->push_window = nd_min_u32(TD_XFER_MAX_PUSHES / shape.n_seats, PF_PUSH_WINDOW);
    if (c->push_tok == 0) {
        return TD_ERR_CONFIG; /* one slice is longer than a message */
    }
    c->tables = nd_spans_create((size_t)p->engine->n_blocks * 4 * sizeof(struct td_block_ref) +
                                (size_t)nd_works_capacity(c->r.works) * ND_SPAN_PAGE_BYTES);
    c->holds = td_queue_create(p->max_queue);
    return c->tables != NULL && c->holds != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

static td_err pf_create(const struct nd_core_params *p, void **out_core)
{
    TD_TRY(nd_core_params_check(p));
    struct pf_core *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err e = build(c, p);
    if (e != TD_OK) {
        pf_destroy(c);
        return e;
    }
    *out_core = c;
    return TD_OK;
}

/* ---- events ---- */

static void end_all(struct pf_core *c, uint64_t router, td_err err, const char *text)
{
    struct nd_work *w;
    for (uint32_t at = 0; (w = nd_role_next(&c->r, &at, router)) != NULL;) {
        struct pf_seq *s = pf_of(w);
        s->w.mute = s->w.mute || router != 0;
        if (s->state != PF_ENDING) {
            pf_end(c, s, err, text);
        }
    }
}

static void on_msg(struct pf_core *c, const struct nd_event *ev)
{
    if (nd_role_is_foreign(&c->r, ev)) {
        return;
    }
    if (ev->msg->type == TD_WIRE_PREFILL) {
        pf_on_prefill(c, &ev->msg->prefill, ev->decode_err);
    } else if (ev->msg->type == TD_WIRE_CANCEL) {
        pf_on_cancel(c, ev->router_epoch, &ev->msg->cancel);
    } else if (ev->msg->type == TD_WIRE_RESERVE) {
        nd_role_refuse(&c->r, ev->router_epoch, &ev->msg->reserve.r.id,
                       "this node has the prefill role");
    }
}

static void on_xfer(struct pf_core *c, const struct nd_event *ev)
{
    const struct td_xfer_event *x = ev->xfer;
    switch (x->type) {
    case TD_XFER_MSG:
        if (ev->msg == NULL || ev->decode_err != TD_OK) {
            nd_actions_observe(c->r.out, ND_M_STALE, 1);
        } else if (ev->msg->type == TD_WIRE_TABLE) {
            pf_on_table(c, x->epoch, &ev->msg->table);
        } else if (ev->msg->type == TD_WIRE_TAKEN) {
            pf_on_taken(c, x->epoch, &ev->msg->taken);
        } else if (ev->msg->type == TD_WIRE_ABORT) {
            pf_on_abort(c, x->epoch, &ev->msg->abort);
        }
        break;
    case TD_XFER_PUSHED:
        pf_on_pushed(c, x);
        break;
    case TD_XFER_PEER_LOST:
        pf_on_peer_lost(c, x->epoch, false);
        break;
    case TD_XFER_CLOSED:
        pf_on_peer_lost(c, x->epoch, true);
        break;
    case TD_XFER_LANDED:
    case TD_XFER_LAND_BAD:
    case TD_XFER_UNLANDED:
        break; /* this role lands nothing */
    }
}

static void expire_line(struct pf_core *c, struct td_queue *line)
{
    struct td_queue_item *it;
    while ((it = td_queue_pop_due(line, c->r.now)) != NULL) {
        struct pf_seq *s = td_heap_entry(it, struct pf_seq, line);
        c->r.queued_tok -= s->w.n_prompt;
        pf_on_timeout(c, s);
    }
}

/* Runs at every event: a wait may not depend on the kind of event that comes. */
static void expire(struct pf_core *c)
{
    expire_line(c, c->r.queue);
    expire_line(c, c->holds);
    struct nd_work *w;
    while ((w = nd_works_due(c->r.works, c->r.now)) != NULL) {
        pf_on_timeout(c, pf_of(w));
    }
    pf_stash_expire(c);
    if (nd_role_drain_over(&c->r)) {
        end_all(c, 0, TD_ERR_DRAINING, "drain limit reached");
    }
}

static void pf_step(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out)
{
    struct pf_core *c = core;
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
        pf_on_step(c, ev->step);
        break;
    case ND_EV_XFER:
        on_xfer(c, ev);
        break;
    case ND_EV_DRAIN:
    case ND_EV_UNDRAIN:
        (void)nd_role_drain(&c->r, ev);
        break;
    }
    pf_run(c);
    c->r.out = NULL;
}

/* ---- looking in ---- */

static int64_t pf_next_deadline(const void *core)
{
    const struct pf_core *c = core;
    int64_t at = nd_role_next_deadline(&c->r);
    int64_t stash = pf_stash_deadline(c), holds = td_queue_next_deadline(c->holds);
    at = holds < at ? holds : at;
    return stash < at ? stash : at;
}

static void pf_state(const void *core, struct td_wire_state *out)
{
    const struct pf_core *c = core;
    uint32_t holds = (uint32_t)td_queue_count(c->holds);
    nd_role_state(&c->r, out);
    out->queued_requests += holds;
    out->running_requests -= holds;
    out->role = TD_ROLE_PREFILL;
    out->decode_step_us = 0;
}

static uint32_t pf_work_count(const void *core)
{
    return nd_works_count(((const struct pf_core *)core)->r.works);
}

static uint32_t pf_waits(const void *core, struct nd_wait *out, uint32_t cap)
{
    const struct pf_core *c = core;
    uint32_t n = 0;
    struct nd_work *w;
    for (uint32_t i = 0; n < cap && (w = nd_role_next(&c->r, &i, 0)) != NULL;) {
        const struct pf_seq *s = pf_of(w);
        int64_t at = s->state == PF_QUEUED ? s->line.wait.at_us : s->w.timer.at_us;
        out[n++] = (struct nd_wait){s->w.id, pf_state_wait(s->state), s->w.since_us, at};
    }
    for (uint32_t i = 0; i < PF_MAX_STASH && n < cap; i++) {
        const struct pf_stash *x = &c->stash[i];
        if (x->used) {
            out[n++] = (struct nd_wait){x->head.id, "a table waits for its request", x->since_us,
                                        x->deadline_us};
        }
    }
    return n;
}

static void pf_count(const void *core, struct nd_counts *out)
{
    const struct pf_core *c = core;
    struct nd_work *w;
    for (uint32_t i = 0; (w = nd_role_next(&c->r, &i, 0)) != NULL;) {
        const struct pf_seq *s = pf_of(w);
        if (s->state == PF_ENDING) {
            continue;
        }
        out->blocks += s->state == PF_QUEUED;
        out->pending_tok += s->state == PF_QUEUED ? s->w.n_prompt : 0;
        bool held = s->hold_us > 0 && s->state == PF_PARKED;
        out->table += !s->has_table && !held;
        out->held += held;
        out->transfer += s->state == PF_PARKED || s->state == PF_PUSHING || s->state == PF_HANDING;
    }
}

/* ---- invariants ---- */

static bool timer_ok(const struct pf_seq *s)
{
    return s->state == PF_QUEUED ? td_queue_holds(&s->line) && s->w.timer.slot == 0
                                 : s->w.timer.slot != 0;
}

/* The blocks a sequence believes to hold are its own in the ledger, in one of the states its own
 * state allows. */
static bool blocks_ok(const struct pf_core *c, const struct pf_seq *s)
{
    static const unsigned allowed[PF_STATES] = {
        [PF_EXEC] = 1u << TD_BLK_RESERVED | 1u << TD_BLK_FILLING,
        [PF_PARKED] = 1u << TD_BLK_PARKED,
        [PF_PUSHING] = 1u << TD_BLK_PARKED,
        [PF_HANDING] = 1u << TD_BLK_PARKED,
        [PF_ENDING] = 1u << TD_BLK_QUARANTINED,
    };
    return s->n_blocks == 0 || td_kv_pool_owns(c->r.pool, nd_work_handle(&s->w), pf_blocks(c, s),
                                               s->n_blocks, allowed[s->state]);
}

static td_err pf_check(const void *core)
{
    const struct pf_core *c = core;
    struct nd_role_sums sums = {0}, holds = {0};
    struct nd_work *w;
    for (uint32_t at = 0; (w = nd_role_next(&c->r, &at, 0)) != NULL;) {
        const struct pf_seq *s = pf_of(w);
        holds.blocks += s->hold_us > 0 ? s->n_blocks : 0;
        holds.seats += s->hold_us > 0 && s->seat != 0;
        sums.blocks += s->n_blocks;
        sums.seats += s->seat != 0;
        sums.slots += s->slot != 0;
        if (!timer_ok(s) || !blocks_ok(c, s)) {
            TD_LOG(ERROR, "prefill request breaks an invariant", "req=%s state=%s timer=%d",
                   s->w.req, pf_state_name(s->state), timer_ok(s));
            return TD_ERR_INTERNAL;
        }
    }
    if (holds.blocks != c->hold_blk || holds.seats != c->hold_seats) {
        TD_LOG(ERROR, "held prompts do not add up", "blocks=%u counted=%u seats=%u counted=%u",
               holds.blocks, c->hold_blk, holds.seats, c->hold_seats);
        return TD_ERR_INTERNAL;
    }
    return nd_role_check(&c->r, &sums);
}

const struct nd_role_ops pf_role_ops = {
    .name = "prefill",
    .role = TD_ROLE_PREFILL,
    .create = pf_create,
    .destroy = pf_destroy,
    .step = pf_step,
    .next_deadline = pf_next_deadline,
    .state = pf_state,
    .work_count = pf_work_count,
    .waits = pf_waits,
    .count = pf_count,
    .check = pf_check,
};
