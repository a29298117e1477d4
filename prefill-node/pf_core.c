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
    (void)nd_works_destroy(c->works);
    (void)td_queue_destroy(c->queue);
    (void)td_kv_pool_destroy(c->pool);
    (void)nd_slots_destroy(c->seats);
    (void)nd_slots_destroy(c->slots);
    (void)nd_spans_destroy(c->tables);
    (void)nd_tokens_destroy(c->tokens);
    free(c->plan);
    free(c->flight);
    free(c->seat_blocks);
    free(c);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Header and framing of a slice message, generously. */
#define PUSH_OVERHEAD 4096u

static uint32_t push_limit(const struct nd_core_params *p)
{
    const struct td_kv_layout *l = &p->engine->layout;
    uint32_t blocks = l->slice_bytes > 0 ? (TD_XFER_MAX_MSG - PUSH_OVERHEAD) / l->slice_bytes
                                         : p->chunk_tokens / l->block_tok;
    return min_u32(blocks * l->block_tok, p->chunk_tokens);
}

static td_err build(struct pf_core *c)
{
    const struct td_engine_info *e = c->p.engine;
    uint32_t bt = e->layout.block_tok;
    /* Half may be computed already and wait for decode. */
    uint32_t n_seats = min_u32(c->p.max_seqs * 2, TD_XFER_MAX_PUSHES);
    struct nd_works_params wp = {.capacity = c->p.max_queue + n_seats,
                                 .work_bytes = sizeof(struct pf_seq),
                                 .prompt_bytes = nd_prompt_bytes(&c->p)};
    TD_TRY(nd_works_create(&wp, &c->works));
    TD_TRY(td_kv_pool_create(e->n_blocks, &c->pool));
    c->push_tok = push_limit(&c->p);
    c->push_window = min_u32(TD_XFER_MAX_PUSHES / n_seats, PF_PUSH_WINDOW);
    if (c->push_tok == 0) {
        return TD_ERR_CONFIG; /* one slice is longer than a message */
    }
    c->queue = td_queue_create(c->p.max_queue);
    c->seats = nd_slots_create(n_seats);
    c->slots = nd_slots_create(min_u32(c->p.max_seqs, e->max_slots));
    c->tables = nd_spans_create((size_t)e->n_blocks * 4 * sizeof(struct td_block_ref) +
                                (size_t)wp.capacity * ND_SPAN_PAGE_BYTES);
    c->tokens = nd_tokens_create(e->max_rows);
    c->plan = td_zalloc(e->max_rows, sizeof *c->plan);
    c->flight = td_zalloc(e->max_rows, sizeof *c->flight);
    c->seat_len = min_u32((e->max_model_len + bt - 1) / bt, e->n_blocks);
    c->seat_blocks = td_zalloc((size_t)n_seats * c->seat_len, sizeof *c->seat_blocks);
    if (c->queue == NULL || c->seats == NULL || c->slots == NULL || c->tables == NULL ||
        c->tokens == NULL || c->plan == NULL || c->flight == NULL || c->seat_blocks == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    struct td_batch_params bp = {.max_rows = e->max_rows,
                                 .max_tokens = min_u32(c->p.max_batched_tokens, e->max_tokens),
                                 .chunk_tok = c->p.chunk_tokens,
                                 .unit_tok = bt};
    return td_batch_init(&c->batch, &bp) ? TD_OK : TD_ERR_CONFIG;
}

static td_err pf_create(const struct nd_core_params *p, void **out_core)
{
    TD_TRY(nd_core_params_check(p));
    struct pf_core *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    c->p = *p;
    c->next_ticket = 1;
    c->drain_until_us = TD_NEVER;
    td_err e = build(c);
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
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        struct pf_seq *s = pf_of(nd_works_slot(c->works, i));
        if (s == NULL || (router != 0 && s->w.id.router_epoch != router)) {
            continue;
        }
        s->w.mute = s->w.mute || router != 0;
        if (s->state != PF_ENDING) {
            pf_end(c, s, err, text);
        }
    }
}

static void on_msg(struct pf_core *c, const struct nd_event *ev)
{
    const struct td_work_id *id = nd_msg_work(ev->msg);
    if (id != NULL && id->router_epoch != ev->router_epoch) {
        nd_actions_observe(c->out, ND_M_STALE, 1);
        return;
    }
    if (ev->msg->type == TD_WIRE_PREFILL) {
        pf_on_prefill(c, &ev->msg->prefill, ev->decode_err);
    } else if (ev->msg->type == TD_WIRE_CANCEL) {
        pf_on_cancel(c, ev->router_epoch, &ev->msg->cancel);
    } else if (ev->msg->type == TD_WIRE_RESERVE) {
        struct td_wire_msg *m = nd_actions_send(c->out, ev->router_epoch, TD_WIRE_END);
        m->end = (struct td_wire_end){.id = ev->msg->reserve.r.id,
                                      .err = TD_ERR_UNSUPPORTED,
                                      .text = "this node has the prefill role",
                                      .stages.transport = ""};
    }
}

static void on_xfer(struct pf_core *c, const struct nd_event *ev)
{
    const struct td_xfer_event *x = ev->xfer;
    switch (x->type) {
    case TD_XFER_MSG:
        if (ev->msg == NULL || ev->decode_err != TD_OK) {
            nd_actions_observe(c->out, ND_M_STALE, 1);
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

/* Runs at every event: a wait may not depend on the kind of event that comes. */
static void expire(struct pf_core *c)
{
    struct td_queue_item *it;
    while ((it = td_queue_pop_due(c->queue, c->now)) != NULL) {
        struct pf_seq *s = td_heap_entry(it, struct pf_seq, line);
        c->queued_tok -= s->w.n_prompt;
        pf_on_timeout(c, s);
    }
    struct nd_work *w;
    while ((w = nd_works_due(c->works, c->now)) != NULL) {
        pf_on_timeout(c, pf_of(w));
    }
    pf_stash_expire(c);
    if (c->drain_until_us <= c->now) {
        c->drain_until_us = TD_NEVER;
        TD_LOG(WARN, "drain limit reached, ending what is left", "works=%u",
               nd_works_count(c->works));
        end_all(c, 0, TD_ERR_DRAINING, "drain limit reached");
    }
}

static void pf_step(void *core, int64_t now_us, const struct nd_event *ev, struct nd_actions *out)
{
    struct pf_core *c = core;
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
        pf_on_step(c, ev->step);
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
    pf_run(c);
    c->out = NULL;
}

/* ---- looking in ---- */

static int64_t pf_next_deadline(const void *core)
{
    const struct pf_core *c = core;
    int64_t at = nd_works_next_deadline(c->works);
    int64_t other[] = {td_queue_next_deadline(c->queue), pf_stash_deadline(c), c->drain_until_us};
    for (unsigned i = 0; i < TD_COUNT(other); i++) {
        at = other[i] < at ? other[i] : at;
    }
    return at;
}

static void pf_state(const void *core, struct td_wire_state *out)
{
    const struct pf_core *c = core;
    out->draining = c->draining;
    out->role = TD_ROLE_PREFILL;
    out->queued_requests = (uint32_t)td_queue_count(c->queue);
    out->running_requests = nd_works_count(c->works) - out->queued_requests;
    out->queued_prompt_tok = c->queued_tok + c->batch.todo_tok;
    for (unsigned s = 0; s < TD_BLK_STATES; s++) {
        out->blocks[s] = td_kv_pool_count(c->pool, (enum td_blk_state)s);
    }
    out->prefill_us_per_ktok = c->us_per_ktok;
    out->decode_step_us = 0;
}

static uint32_t pf_work_count(const void *core)
{
    return nd_works_count(((const struct pf_core *)core)->works);
}

static uint32_t pf_waits(const void *core, struct nd_wait *out, uint32_t cap)
{
    const struct pf_core *c = core;
    uint32_t n = 0;
    for (uint32_t i = 0; i < nd_works_capacity(c->works) && n < cap; i++) {
        const struct pf_seq *s = pf_of(nd_works_slot(c->works, i));
        if (s != NULL) {
            int64_t at = s->state == PF_QUEUED ? s->line.wait.at_us : s->w.timer.at_us;
            out[n++] = (struct nd_wait){s->w.id, pf_state_wait(s->state), s->w.since_us, at};
        }
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
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        const struct pf_seq *s = pf_of(nd_works_slot(c->works, i));
        if (s == NULL || s->state == PF_ENDING) {
            continue;
        }
        out->blocks += s->state == PF_QUEUED;
        out->pending_tok += s->state == PF_QUEUED ? s->w.n_prompt : 0;
        out->table += !s->has_table;
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
    return s->n_blocks == 0 || td_kv_pool_owns(c->pool, nd_work_handle(&s->w), pf_blocks(c, s),
                                               s->n_blocks, allowed[s->state]);
}

static td_err pf_check(const void *core)
{
    const struct pf_core *c = core;
    TD_TRY(td_kv_pool_check(c->pool));
    TD_TRY(nd_works_check(c->works));
    uint32_t blocks = 0;
    uint32_t seats = 0;
    uint32_t slots = 0;
    for (uint32_t i = 0; i < nd_works_capacity(c->works); i++) {
        const struct pf_seq *s = pf_of(nd_works_slot(c->works, i));
        if (s == NULL) {
            continue;
        }
        blocks += s->n_blocks;
        seats += s->seat != 0;
        slots += s->slot != 0;
        if (!timer_ok(s) || !blocks_ok(c, s)) {
            TD_LOG(ERROR, "prefill request breaks an invariant", "req=%s state=%s timer=%d",
                   s->w.req, pf_state_name(s->state), timer_ok(s));
            return TD_ERR_INTERNAL;
        }
    }
    uint32_t held = td_kv_pool_held(c->pool);
    if (c->broken || held != blocks || seats != nd_slots_size(c->seats) - nd_slots_free(c->seats) ||
        slots != nd_slots_size(c->slots) - nd_slots_free(c->slots)) {
        TD_LOG(ERROR, "prefill blocks do not add up", "held=%u owned=%u seats=%u slots=%u", held,
               blocks, seats, slots);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
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
