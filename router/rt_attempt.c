/* Design: an attempt is one try of a request on one pair. Its id carries the attempt number, so
 * whatever an old attempt still says is recognised and dropped. Prefill and Reserve leave in the
 * same step; both carry the prompt and the ticket (a parked probe's Reserve waits for the first token). A request waits in one admission queue ordered
 * by (priority, arrival); only the head is placed, so that a big request is not starved by small
 * ones behind it. A replay keeps its arrival and therefore goes first.
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "router/rt_core_int.h"

#define MAX_BUDGET_MS 86400000 /* a day: the wire's bound */

static int64_t order_key(const struct rt_entry *e)
{
    int64_t prio = e->priority;
    prio = prio > RT_PRIORITY_LIMIT ? RT_PRIORITY_LIMIT : prio;
    prio = prio < -RT_PRIORITY_LIMIT ? -RT_PRIORITY_LIMIT : prio;
    return prio * (INT64_C(1) << RT_ORDER_BITS) +
           (int64_t)(e->counter & ((UINT64_C(1) << RT_ORDER_BITS) - 1));
}

static uint64_t prompt_bytes(const struct rt_entry *e)
{
    return (uint64_t)(e->n_prompt + e->n_output) * sizeof(int32_t);
}

void rt__enqueue(struct rt_core *c, struct rt_entry *e)
{
    TD_INSIST(e->phase == RT_QUEUED);
    e->queued_us = c->now_us;
    td_err err = td_heap_set(c->queue, &e->order, order_key(e));
    TD_INSIST(err == TD_OK); /* the heap holds max_requests */
    c->queued_bytes += prompt_bytes(e);
    rt__set_timer(c, e, e->deadline_us);
}

void rt__dequeue(struct rt_core *c, struct rt_entry *e)
{
    TD_INSIST(c->queued_bytes >= prompt_bytes(e));
    td_heap_remove(c->queue, &e->order);
    c->queued_bytes -= prompt_bytes(e);
}

td_err rt__try_place(struct rt_core *c, const struct rt_entry *e)
{
    struct rt_place_request r = {.n_prompt = e->n_prompt + e->n_output,
                                 .max_output = e->sampling.max_tokens - e->n_output};
    memcpy(r.avoid, e->avoid, sizeof r.avoid);
    r.only_p = e->only_p;
    r.only_d = e->only_d;
    return rt_place(&c->placer, &c->nodes, &r, &c->decision);
}

static struct td_work_id work_id(const struct rt_core *c, const struct rt_entry *e)
{
    return (struct td_work_id){.router_epoch = c->p.epoch,
                               .counter = e->counter,
                               .attempt = e->attempt,
                               .choice = e->sampling.choice};
}

/* What is left of the request's time, for a peer that shares no clock with us. */
static uint32_t left_ms(const struct rt_core *c, const struct rt_entry *e)
{
    int64_t ms = (e->deadline_us - c->now_us) / 1000;
    return ms < 1 ? 1 : (ms > MAX_BUDGET_MS ? MAX_BUDGET_MS : (uint32_t)ms);
}

static void fill_request(const struct rt_core *c, const struct rt_entry *e, const struct rt_node *d,
                         struct td_wire_request *r)
{
    *r = (struct td_wire_request){
        .id = work_id(c, e),
        .budget_ms = left_ms(c, e),
        .priority = e->priority,
        .tenant = e->tenant,
        .traceparent = e->traceparent,
        .tracestate = e->tracestate != NULL ? e->tracestate : "",
        .request_id = e->request_id,
        .adapter = "",
        .numerics_id = d->numerics_id,
        .layout_id = d->layout_id,
        .prompt = e->tokens,
        .n_prompt = e->n_prompt + e->n_output,
        .n_replayed = e->n_output,
        .sampling = e->sampling,
    };
    memcpy(r->cache_salt, e->cache_salt, sizeof r->cache_salt);
}

static void fill_ticket(const struct rt_core *c, const struct rt_entry *e, struct td_wire_ticket *t)
{
    t->p_epoch = e->p_epoch;
    t->d_epoch = e->d_epoch;
    memcpy(t->nonce, e->nonce, sizeof t->nonce);
    t->nonce[0] = (uint8_t)(t->nonce[0] ^ e->attempt); /* each attempt has its own */
    t->life_ms = left_ms(c, e);
}

static struct td_wire_msg *send_msg(struct rt_core *c, uint64_t node_epoch, enum td_wire_type type)
{
    struct td_wire_msg *m = TD_ARENA_NEW(c->out->arena, struct td_wire_msg);
    struct rt_action *a = rt__action(c, RT_DO_SEND);
    a->node_epoch = node_epoch;
    a->msg = m;
    if (m == NULL) {
        c->out->overflow = true;
        static struct td_wire_msg nowhere; /* the shell drops the action list after an overflow */
        return &nowhere;
    }
    m->type = type;
    return m;
}

static void charge(struct rt_entry *e, const struct rt_decision *dec)
{
    uint32_t tok = e->n_prompt + e->n_output, blk = rt_blocks_needed(dec->d, tok);
    dec->p->inflight++;
    dec->p->pending_tok += tok;
    dec->p->unreported_tok += tok;
    dec->p->dispatched++;
    if (dec->p != dec->d) {
        dec->d->inflight++;
        dec->d->dispatched++;
    }
    dec->d->unreported_blk += blk;
    e->p_tok = tok;
    e->d_blk = blk;
}

void rt__prefill_done(struct rt_core *c, struct rt_entry *e)
{
    struct rt_node *p = rt_nodes_find(&c->nodes, e->p_epoch);
    if (p != NULL) {
        p->pending_tok -= p->pending_tok < e->p_tok ? p->pending_tok : e->p_tok;
    }
    e->p_tok = 0;
}

static void send_prefill(struct rt_core *c, const struct rt_entry *e, const struct rt_node *d)
{
    struct td_wire_prefill *p = &send_msg(c, e->p_epoch, TD_WIRE_PREFILL)->prefill;
    fill_request(c, e, d, &p->r);
    fill_ticket(c, e, &p->ticket);
    p->decode_node = d->name;
}

static void send_reserve(struct rt_core *c, const struct rt_entry *e, const struct rt_node *p,
                         const struct rt_node *d)
{
    struct td_wire_reserve *r = &send_msg(c, e->d_epoch, TD_WIRE_RESERVE)->reserve;
    fill_request(c, e, d, &r->r);
    r->mode = p == d ? TD_RESERVE_LOCAL : TD_RESERVE_REMOTE;
    fill_ticket(c, e, &r->ticket);
    r->prefill_node = p->name;
    r->p_address = p->address;
    r->p_address_len = p == d ? 0 : p->address_len;
}

void rt__reserve_parked(struct rt_core *c, struct rt_entry *e, bool last)
{
    const struct rt_node *p = rt_nodes_find(&c->nodes, e->p_epoch);
    const struct rt_node *d = rt_nodes_find(&c->nodes, e->d_epoch);
    if (!e->unreserved) {
        return;
    }
    e->unreserved = false;
    if (last || p == NULL || d == NULL) { /* without P its loss ends the attempt, too */
        rt__released(c, e, e->d_epoch);
    } else {
        send_reserve(c, e, p, d);
    }
}

static void send_attempt(struct rt_core *c, struct rt_entry *e)
{
    struct rt_decision *dec = &c->decision;
    bool local = dec->p == dec->d;
    rt_ledger_set_phase(&c->ledger, e, RT_PREFILL);
    e->p_epoch = dec->p->epoch;
    e->d_epoch = dec->d->epoch;
    e->placed_us = c->now_us;
    e->d_spoke = false;
    e->predicted_ttft_us = dec->predicted_ttft_us;
    charge(e, dec);
    rt__record_decision(c, e);
    if (!local) {
        send_prefill(c, e, dec->d);
    }
    e->unreserved = e->park && !local;
    if (!e->unreserved) {
        send_reserve(c, e, dec->p, dec->d);
    }
    rt__set_timer(c, e, e->deadline_us);
    rt__observe(c, RT_M_QUEUE_US, (double)(c->now_us - e->queued_us));
    rt__observe(c, RT_M_DECISION, local ? 0 : 1);
    TD_LOG(INFO, "rt_sched",
           "req=%s counter=%" PRIu64 " attempt=%u p=%s d=%s predicted_ttft_us=%" PRId64,
           e->request_id, e->counter, e->attempt, dec->p->name, dec->d->name,
           dec->predicted_ttft_us);
}

const char *rt__refusal_text(td_err err)
{
    switch ((int)err) {
    case TD_ERR_CONTEXT_LENGTH:
        return "the prompt exceeds the context or the whole KV pool of every node: a shorter one "
               "may fit";
    case TD_ERR_NO_NODE:
        return "no ready prefill and decode node; start one, or look at `tandemctl get nodes`";
    case TD_ERR_NO_PAIR:
        return "no prefill and decode node share one KV layout and numerics id";
    default:
        return td_err_text(err);
    }
}

/* The head cannot be placed: wait, or end it. Returns true when the next one may be tried. */
static bool head_refused(struct rt_core *c, struct rt_entry *e, td_err err)
{
    if (err == TD_ERR_OVERLOADED) {
        e->wait_pair_until_us = c->now_us + c->p.pair_wait_us;
        return false;
    }
    bool may_appear = err == TD_ERR_NO_NODE || err == TD_ERR_NO_PAIR;
    if (may_appear && c->now_us < e->wait_pair_until_us) {
        int64_t until =
            e->wait_pair_until_us < e->deadline_us ? e->wait_pair_until_us : e->deadline_us;
        rt__set_timer(c, e, until);
        return false;
    }
    td_err say = e->n_output > 0 && e->last_err != TD_OK ? e->last_err : err;
    rt__dequeue(c, e);
    rt__finish(c, e, say, TD_FINISH_ERROR,
               say == err
                   ? rt__refusal_text(say)
                   : "the request's nodes failed and no other pair took it within --pair-wait; "
                     "start a node, or look at `tandemctl get nodes`");
    return true;
}

void rt__dispatch(struct rt_core *c)
{
    struct td_heap_node *n;
    while ((n = td_heap_peek(c->queue)) != NULL && c->out->n + 16 < RT_MAX_ACTIONS) {
        struct rt_entry *e = td_heap_entry(n, struct rt_entry, order);
        td_err err = rt__try_place(c, e);
        if (err == TD_OK) {
            rt__dequeue(c, e);
            send_attempt(c, e);
        } else if (!head_refused(c, e, err)) {
            return;
        }
    }
}

static void uncharge(struct rt_core *c, struct rt_entry *e, uint64_t epoch)
{
    struct rt_node *n = rt_nodes_find(&c->nodes, epoch);
    if (n != NULL && n->inflight > 0) {
        n->inflight--;
    }
}

void rt__released(struct rt_core *c, struct rt_entry *e, uint64_t node_epoch)
{
    bool local = e->p_epoch == e->d_epoch;
    if (node_epoch == 0) {
        return;
    }
    if (e->p_epoch == node_epoch) {
        rt__prefill_done(c, e);
        uncharge(c, e, node_epoch);
        e->p_epoch = 0;
    }
    if (e->d_epoch == node_epoch) {
        if (!local) {
            uncharge(c, e, node_epoch);
        }
        e->d_epoch = 0;
    }
}

static void send_cancel(struct rt_core *c, const struct rt_entry *e, uint64_t epoch, td_err reason)
{
    struct td_wire_cancel *m = &send_msg(c, epoch, TD_WIRE_CANCEL)->cancel;
    m->id = work_id(c, e);
    m->reason = reason;
}

void rt__let_go(struct rt_core *c, struct rt_entry *e, td_err reason)
{
    uint64_t p = e->p_epoch, d = e->d_epoch;
    if (p != 0) {
        send_cancel(c, e, p, reason);
    }
    if (d != 0 && d != p) {
        send_cancel(c, e, d, reason);
    }
}

static void avoid_node(struct rt_entry *e, uint64_t epoch)
{
    for (size_t i = 0; epoch != 0 && i < sizeof e->avoid / sizeof e->avoid[0]; i++) {
        if (e->avoid[i] == epoch) {
            return;
        }
        if (e->avoid[i] == 0) {
            e->avoid[i] = epoch;
            return;
        }
    }
}

/* What the client is told when no further try is made. */
static td_err verdict(const struct rt_core *c, const struct rt_entry *e, td_err err)
{
    if (!td_err_retryable(err) || err == TD_ERR_BUDGET || e->only_p != 0) {
        return err;
    }
    if (e->n_output > 0 && !c->p.resume) {
        return err;
    }
    if (e->deaths >= 2) {
        return TD_ERR_POISON;
    }
    if (e->replays >= c->p.max_replays) {
        bool says_enough =
            err == TD_ERR_NO_CAPACITY || err == TD_ERR_OVERLOADED || err == TD_ERR_DRAINING;
        return says_enough ? err : TD_ERR_REPLAYS;
    }
    return TD_OK;
}

void rt__attempt_failed(struct rt_core *c, struct rt_entry *e, td_err err, uint64_t failed_epoch,
                        const char *text)
{
    TD_LOG(WARN, "attempt failed", "req=%s counter=%" PRIu64 " attempt=%u err=%s sent=%u",
           e->request_id, e->counter, e->attempt, td_err_code(err), e->n_output);
    td_err say = verdict(c, e, err);
    e->last_err = err;
    rt__record_failure(c, e, err);
    if (say != TD_OK) {
        rt__finish(c, e, say, TD_FINISH_ERROR,
                   say == err && text != NULL && text[0] ? text : td_err_text(say));
        return;
    }
    rt__observe(c, RT_M_RETRY, (double)err);
    rt__let_go(c, e, err);
    rt__released(c, e, e->p_epoch);
    rt__released(c, e, e->d_epoch);
    avoid_node(e, failed_epoch);
    e->replays++;
    e->attempt++;
    e->wait_pair_until_us = c->now_us + c->p.pair_wait_us;
    rt_ledger_set_phase(&c->ledger, e, RT_QUEUED);
    rt__enqueue(c, e);
}
