/* Design: each event touches the entries it concerns; then due timers run; then the admission queue
 * is served. Dispatch comes last because its messages borrow the entry's tokens until the shell has
 * encoded them.
 */
#define TD_LOG_ROOM "router"
#include "router/rt_core.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/rt_core_int.h"

#define RT_MAGIC       0x52544331u /* "RTC1" */
#define RT_ARENA_BYTES (64u << 20)

td_err rt_actions_init(struct rt_actions *a)
{
    memset(a, 0, sizeof *a);
    a->list = td_zalloc(RT_MAX_ACTIONS, sizeof *a->list);
    a->arena = td_arena_create(RT_ARENA_BYTES);
    if (a->list == NULL || a->arena == NULL) {
        rt_actions_fini(a);
        return TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

void rt_actions_fini(struct rt_actions *a)
{
    free(a->list);
    a->list = NULL;
    a->arena = td_arena_destroy(a->arena);
}

void rt_actions_reset(struct rt_actions *a)
{
    a->n = 0;
    a->overflow = false;
    td_arena_reset(a->arena);
}

struct rt_action *rt__action(struct rt_core *c, enum rt_action_type type)
{
    struct rt_actions *out = c->out;
    if (out->n == RT_MAX_ACTIONS) {
        out->overflow = true;
        out->n--;
    }
    struct rt_action *a = &out->list[out->n++];
    memset(a, 0, sizeof *a);
    a->type = type;
    return a;
}

void rt__observe(struct rt_core *c, enum rt_metric m, double value)
{
    struct rt_action *a = rt__action(c, RT_DO_OBSERVE);
    a->metric = m;
    a->value = value;
}

void rt__set_timer(struct rt_core *c, struct rt_entry *e, int64_t at_us)
{
    td_err err = td_heap_set(c->timers, &e->timer, at_us);
    TD_INSIST(err == TD_OK); /* the heap holds max_requests */
}

td_err rt_core_create(const struct rt_core_params *p, struct rt_core **out_core)
{
    TD_REQUIRE(p->max_requests > 0 && p->epoch != 0);
    struct rt_core *c = td_zalloc(1, sizeof *c);
    if (c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    c->p = *p;
    c->placer.policy = p->policy;
    c->placer.max_node_queue = p->max_node_queue;
    c->timers = td_heap_create(p->max_requests);
    c->queue = td_heap_create(p->max_requests);
    if (c->timers == NULL || c->queue == NULL ||
        rt_ledger_init(&c->ledger, p->max_requests) != TD_OK) {
        rt_core_destroy(c);
        return TD_ERR_NO_MEMORY;
    }
    c->magic = RT_MAGIC;
    *out_core = c;
    return TD_OK;
}

struct rt_core *rt_core_destroy(struct rt_core *c)
{
    if (c != NULL) {
        c->magic = 0;
        rt_ledger_fini(&c->ledger);
        td_heap_destroy(c->timers);
        td_heap_destroy(c->queue);
        free(c);
    }
    return NULL;
}

/* ---- ends ---- */

static void emit_end(struct rt_core *c, struct rt_entry *e, td_err err, enum td_finish finish,
                     const char *text)
{
    struct rt_action *a = rt__action(c, RT_DO_END);
    a->counter = e->counter;
    a->user = e->user;
    a->err = err;
    a->finish = finish;
    a->text = text != NULL ? td_arena_copy(c->out->arena, text, strlen(text) + 1) : "";
    a->text = a->text != NULL ? a->text : td_err_text(err);
    a->n_output = e->n_output;
    a->stages = e->stages;
    a->stages.prompt_tokens = e->n_prompt;
    a->stages.output_tokens = e->n_output;
    a->attempts = e->attempt + 1;
    a->queue_us = e->placed_us > e->queued_us ? e->placed_us - e->queued_us : 0;
    a->decision = e->decision;
    const struct rt_decision_record *dec = rt_core_decision(c, e->decision);
    if (dec != NULL) {
        memcpy(a->p_name, dec->p_name, sizeof a->p_name);
        memcpy(a->d_name, dec->d_name, sizeof a->d_name);
    }
    e->user = NULL;
    rt__observe(c, RT_M_REQUEST_US, (double)(c->now_us - e->submit_us));
    rt__observe(c, RT_M_OUTPUT_TOKENS, e->n_output);
    TD_LOG(INFO, "rt_end", "req=%s counter=%" PRIu64 " attempt=%u err=%s tokens=%u us=%" PRId64,
           e->request_id, e->counter, e->attempt, td_err_code(err), e->n_output,
           c->now_us - e->submit_us);
}

static void close_if_free(struct rt_core *c, struct rt_entry *e)
{
    if (e->p_epoch == 0 && e->d_epoch == 0 && e->user_ended) {
        rt__set_timer(c, e, TD_NEVER);
        rt_ledger_close(&c->ledger, e);
    }
}

static void end_user(struct rt_core *c, struct rt_entry *e, td_err err, enum td_finish finish,
                     const char *text)
{
    if (!e->user_ended) {
        e->user_ended = true;
        emit_end(c, e, err, finish, text);
    }
}

void rt__finish(struct rt_core *c, struct rt_entry *e, td_err err, enum td_finish finish,
                const char *text)
{
    end_user(c, e, err, finish, text);
    rt__let_go(c, e, err == TD_OK ? TD_ERR_CANCELLED : err);
    e->told = true;
    rt_ledger_set_phase(&c->ledger, e, RT_CLOSING);
    rt__set_timer(c, e, c->now_us + c->p.close_wait_us);
    close_if_free(c, e);
}

/* The last token is here: the nodes let go by themselves; D's last word brings its stage times. */
static void finish_naturally(struct rt_core *c, struct rt_entry *e, enum td_finish finish,
                             bool from_p)
{
    e->finish = finish;
    rt_ledger_set_phase(&c->ledger, e, RT_CLOSING);
    rt__set_timer(c, e, c->now_us + RT_END_GRACE_US);
    if (from_p) {
        end_user(c, e, TD_OK, finish, "");
    }
}

/* ---- requests ---- */

static void refuse(struct rt_core *c, const struct rt_submit *s, td_err err, const char *text)
{
    struct rt_action *a = rt__action(c, RT_DO_END);
    a->user = s->user;
    a->err = err;
    a->finish = TD_FINISH_ERROR;
    a->text = text;
    rt__observe(c, RT_M_REFUSED, (double)err);
    TD_LOG(INFO, "rt_admit refused", "req=%s err=%s", s->request_id != NULL ? s->request_id : "",
           td_err_code(err));
}

static td_err admissible(struct rt_core *c, const struct rt_submit *s)
{
    if (c->draining) {
        return TD_ERR_DRAINING;
    }
    if (s->n_prompt == 0 || s->n_prompt > TD_WIRE_MAX_PROMPT || s->sampling.max_tokens == 0) {
        return TD_ERR_BAD_REQUEST;
    }
    uint64_t bytes = (uint64_t)s->n_prompt * sizeof(int32_t);
    bool must_wait = c->ledger.by_phase[RT_QUEUED] > 0;
    if (must_wait && (c->ledger.by_phase[RT_QUEUED] >= c->p.max_queue ||
                      c->queued_bytes + bytes > c->p.max_queue_bytes)) {
        return TD_ERR_OVERLOADED;
    }
    struct rt_place_request r = {.n_prompt = s->n_prompt,
                                 .max_output = s->sampling.max_tokens,
                                 .only_p = s->only_p,
                                 .only_d = s->only_d};
    td_err err = rt_place(&c->placer, &c->nodes, &r, &c->decision);
    if (err == TD_ERR_OVERLOADED) {
        return c->p.max_queue == 0 ? TD_ERR_OVERLOADED : TD_OK;
    }
    return err;
}

static uint64_t on_submit(struct rt_core *c, const struct rt_submit *s)
{
    td_err err = admissible(c, s);
    struct rt_entry *e = NULL;
    if (err == TD_OK) {
        err = rt_ledger_open(&c->ledger, s, &e);
    }
    if (err != TD_OK) {
        refuse(c, s, err, rt__refusal_text(err));
        return 0;
    }
    e->submit_us = c->now_us;
    e->deadline_us = c->now_us + s->budget_us;
    e->wait_pair_until_us = c->now_us;
    rt__observe(c, RT_M_ADMITTED, 1);
    rt__observe(c, RT_M_PROMPT_TOKENS, s->n_prompt);
    rt__enqueue(c, e);
    TD_LOG(INFO, "rt_admit", "req=%s counter=%" PRIu64 " tenant=%s prompt=%u max_tokens=%u",
           e->request_id, e->counter, e->tenant, e->n_prompt, e->sampling.max_tokens);
    return e->counter;
}

static void on_cancel(struct rt_core *c, uint64_t counter, td_err reason)
{
    struct rt_entry *e = rt_ledger_find(&c->ledger, counter);
    if (e == NULL) {
        return;
    }
    if (e->phase == RT_CLOSING) {
        end_user(c, e, reason, reason == TD_OK ? TD_FINISH_STOP : TD_FINISH_ABORT,
                 td_err_text(reason));
        close_if_free(c, e);
        return;
    }
    if (e->phase == RT_QUEUED) {
        rt__dequeue(c, e);
    }
    rt__finish(c, e, reason, reason == TD_OK ? TD_FINISH_STOP : TD_FINISH_ABORT,
               td_err_text(reason));
}

/* ---- what nodes say ---- */

static void first_token(struct rt_core *c, struct rt_entry *e)
{
    rt__prefill_done(c, e);
    rt_ledger_set_phase(&c->ledger, e, RT_DECODE);
    int64_t took = c->now_us - e->placed_us;
    int64_t off =
        took > e->predicted_ttft_us ? took - e->predicted_ttft_us : e->predicted_ttft_us - took;
    rt__observe(c, RT_M_TTFT_ERROR_US, (double)off);
}

static void emit_token(struct rt_core *c, struct rt_entry *e, const struct td_wire_token *t,
                       enum td_finish finish)
{
    e->tokens[e->n_prompt + e->n_output] = t->token;
    struct rt_action *a = rt__action(c, RT_DO_TOKEN);
    a->counter = e->counter;
    a->user = e->user;
    a->index = e->n_output;
    a->token = t->token;
    a->logprob = t->logprob;
    a->finish = finish;
    if (e->n_output == 0) {
        e->first_us = c->now_us;
        rt__observe(c, RT_M_TTFT_US, (double)(c->now_us - e->submit_us));
    } else {
        rt__observe(c, RT_M_ITL_US, (double)(c->now_us - e->last_us));
    }
    e->last_us = c->now_us;
    e->n_output++;
}

static void on_token(struct rt_core *c, uint64_t node, const struct td_wire_token *t)
{
    struct rt_entry *e =
        t->id.router_epoch == c->p.epoch ? rt_ledger_find(&c->ledger, t->id.counter) : NULL;
    bool running = e != NULL && (e->phase == RT_PREFILL || e->phase == RT_DECODE) &&
                   t->id.attempt == e->attempt && (node == e->p_epoch || node == e->d_epoch);
    if (running && node == e->d_epoch) {
        e->d_spoke = true;
    }
    if (!running || t->index < e->n_output) {
        rt__observe(c, RT_M_STALE_TOKEN, 1);
        return;
    }
    if (t->index > e->n_output || e->n_output >= e->sampling.max_tokens) {
        TD_LOG(ERROR, "token out of order", "req=%s index=%u expected=%u", e->request_id, t->index,
               e->n_output);
        rt__attempt_failed(c, e, TD_ERR_STALE, node, "a node skipped a token");
        return;
    }
    enum td_finish finish = t->finish;
    if (finish == TD_FINISH_NONE && e->n_output + 1 == e->sampling.max_tokens) {
        finish = TD_FINISH_LENGTH;
    }
    if (e->phase == RT_PREFILL) {
        first_token(c, e);
        rt__reserve_parked(c, e, finish != TD_FINISH_NONE);
    }
    bool from_p = node == e->p_epoch && e->p_epoch != e->d_epoch;
    emit_token(c, e, t, finish);
    if (finish != TD_FINISH_NONE) {
        finish_naturally(c, e, finish, from_p);
    }
}

static uint64_t max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void merge_stages(struct td_wire_stages *to, const struct td_wire_stages *s)
{
    to->prefill_queue_us = max64(to->prefill_queue_us, s->prefill_queue_us);
    to->prefill_us = max64(to->prefill_us, s->prefill_us);
    to->transfer_us = max64(to->transfer_us, s->transfer_us);
    to->transfer_exposed_us = max64(to->transfer_exposed_us, s->transfer_exposed_us);
    to->decode_queue_us = max64(to->decode_queue_us, s->decode_queue_us);
    to->decode_us = max64(to->decode_us, s->decode_us);
    to->kv_bytes = max64(to->kv_bytes, s->kv_bytes);
    to->cached_tokens = max64(to->cached_tokens, s->cached_tokens);
}

/* The transport's name is kept as one of a few static strings: the message's memory ends with the
 * step. */
static const char *known_transport(const char *name)
{
    static const char *const known[] = {"shm", "cma", "tcp", "self", "rdma", "cuda_ipc", "local"};
    for (size_t i = 0; i < TD_COUNT(known); i++) {
        if (name != NULL && strcmp(name, known[i]) == 0) {
            return known[i];
        }
    }
    return name != NULL && name[0] != 0 ? "other" : NULL;
}

static void on_end(struct rt_core *c, uint64_t node, const struct td_wire_end *m)
{
    struct rt_entry *e =
        m->id.router_epoch == c->p.epoch ? rt_ledger_find(&c->ledger, m->id.counter) : NULL;
    if (e == NULL || m->id.attempt != e->attempt || (node != e->p_epoch && node != e->d_epoch)) {
        return; /* an old attempt's: already off the books */
    }
    merge_stages(&e->stages, &m->stages);
    const char *transport = known_transport(m->stages.transport);
    e->stages.transport = transport != NULL ? transport : e->stages.transport;
    bool from_d = node == e->d_epoch;
    uint64_t p_epoch = e->p_epoch;
    rt__released(c, e, node);
    if (e->phase == RT_CLOSING) {
        /* Of a parked one P's times are what is asked for: both must have spoken. */
        if (e->park ? e->p_epoch == 0 && e->d_epoch == 0 : from_d) {
            end_user(c, e, TD_OK, e->finish, "");
        }
        close_if_free(c, e);
        return;
    }
    if (m->err != TD_OK) {
        /* Decode tells, prefill or the way from it is to blame: do not try that one again first. */
        bool blames_p = from_d && (td_err_is_peer(m->err) || m->err == TD_ERR_STALLED ||
                                   m->err == TD_ERR_LEASE || m->err == TD_ERR_KV_MISMATCH);
        /* Cancelled, but not at our wish: the pair's other node has given up, say because it lost
         * us. The client is still there. */
        td_err err = m->err == TD_ERR_CANCELLED ? TD_ERR_SEQ_FAILED : m->err;
        rt__attempt_failed(c, e, err, blames_p ? p_epoch : node, m->text);
    } else if (from_d) {
        TD_LOG(ERROR, "decode node ended early", "req=%s tokens=%u", e->request_id, e->n_output);
        rt__attempt_failed(c, e, TD_ERR_SEQ_FAILED, node,
                           "the decode node ended without a last token");
    }
}

static void on_cancel_ack(struct rt_core *c, uint64_t node, const struct td_wire_cancel_ack *m)
{
    struct rt_entry *e =
        m->id.router_epoch == c->p.epoch ? rt_ledger_find(&c->ledger, m->id.counter) : NULL;
    if (e == NULL || e->phase != RT_CLOSING || m->id.attempt != e->attempt) {
        return;
    }
    rt__released(c, e, node);
    close_if_free(c, e);
}

static void on_state(struct rt_core *c, struct rt_node *n, const struct td_wire_state *s)
{
    n->reported_us = c->now_us;
    if (!rt_node_report(n, s)) {
        struct td_wire_msg *m = TD_ARENA_NEW(c->out->arena, struct td_wire_msg);
        if (m != NULL) {
            m->type = TD_WIRE_STATE_REQUEST;
            struct rt_action *a = rt__action(c, RT_DO_SEND);
            a->node_epoch = n->epoch;
            a->msg = m;
        }
    }
}

static void on_node_msg(struct rt_core *c, uint64_t node, const struct td_wire_msg *m)
{
    struct rt_node *n = rt_nodes_find(&c->nodes, node);
    if (n == NULL) {
        return;
    }
    switch ((int)m->type) {
    case TD_WIRE_TOKENS:
        for (uint32_t i = 0; i < m->tokens.n; i++) {
            on_token(c, node, &m->tokens.tokens[i]);
        }
        break;
    case TD_WIRE_END:
        on_end(c, node, &m->end);
        break;
    case TD_WIRE_CANCEL_ACK:
        on_cancel_ack(c, node, &m->cancel_ack);
        break;
    case TD_WIRE_STATE:
        on_state(c, n, &m->state);
        break;
    case TD_WIRE_DRAIN:
    case TD_WIRE_GO_AWAY:
        n->state.draining = true;
        break;
    default:
        TD_LOG(DEBUG, "message not for a router", "node=%s type=%s", n->name,
               td_wire_type_name(m->type));
        break;
    }
}

/* ---- nodes come and go ---- */

static void on_node_up(struct rt_core *c, const struct td_wire_node_info *info)
{
    struct rt_node *n = NULL;
    if (rt_nodes_up(&c->nodes, info, &n) != TD_OK) {
        TD_LOG(ERROR, "too many nodes", "node=%s max=%d", info->name, RT_MAX_NODES);
        return;
    }
    TD_LOG(INFO, "node attached", "node=%s epoch=%016" PRIx64 " role=%d", n->name, n->epoch,
           (int)n->role);
}

/* Here at once; by the node's own word other routers hear of it. */
static void on_node_drain(struct rt_core *c, uint64_t epoch, const struct td_wire_drain *d)
{
    struct rt_node *n = rt_nodes_find(&c->nodes, epoch);
    struct td_wire_msg *m = TD_ARENA_NEW(c->out->arena, struct td_wire_msg);
    const char *why = td_arena_copy(c->out->arena, d->why, strlen(d->why) + 1);
    if (n == NULL || m == NULL || why == NULL) {
        return;
    }
    TD_LOG(INFO, d->undo ? "node taken back" : "node drained", "node=%s epoch=%016" PRIx64, n->name,
           epoch);
    n->held = !d->undo;
    m->type = TD_WIRE_DRAIN;
    m->drain = (struct td_wire_drain){.limit_ms = d->limit_ms, .why = why, .undo = d->undo};
    struct rt_action *a = rt__action(c, RT_DO_SEND);
    a->node_epoch = epoch;
    a->msg = m;
}

static void entry_lost_node(struct rt_core *c, struct rt_entry *e, uint64_t epoch)
{
    bool was_p = e->p_epoch == epoch, was_d = e->d_epoch == epoch;
    rt__released(c, e, epoch);
    if (e->phase == RT_CLOSING) {
        if (was_d) {
            end_user(c, e, TD_OK, e->finish, "");
        }
        close_if_free(c, e);
    } else if (was_d || (was_p && !e->d_spoke)) {
        /* P counts until D has spoken: before that nobody knows whether D has all of the KV, and if P is frozen rather
         * than dead D would not notice. */
        e->deaths++;
        rt__attempt_failed(c, e, TD_ERR_PEER_LOST, epoch, "the node that ran the request was lost");
    }
}

bool rt_core_node_may_leave(const struct rt_core *c, uint64_t epoch)
{
    const struct rt_node *n = rt_nodes_find((struct rt_nodes *)(uintptr_t)&c->nodes, epoch);
    return n != NULL && n->inflight == 0 && (c->draining || n->held || n->state.draining);
}

static void log_node_gone(const struct rt_core *c, const struct rt_node *n)
{
    if (rt_core_node_may_leave(c, n->epoch)) {
        TD_LOG(INFO, "node left", "node=%s epoch=%016" PRIx64, n->name, n->epoch);
    } else {
        TD_LOG(WARN, "node lost",
               "node=%s epoch=%016" PRIx64 " inflight=%u, its requests are replayed elsewhere",
               n->name, n->epoch, n->inflight);
    }
}

static void on_node_lost(struct rt_core *c, uint64_t epoch)
{
    struct rt_node *n = rt_nodes_find(&c->nodes, epoch);
    if (n == NULL) {
        return;
    }
    log_node_gone(c, n);
    rt_nodes_down(&c->nodes, epoch);
    for (uint32_t i = 0; i < c->ledger.max; i++) {
        struct rt_entry *e = &c->ledger.entries[i];
        if (e->phase != RT_FREE && (e->p_epoch == epoch || e->d_epoch == epoch)) {
            entry_lost_node(c, e, epoch);
        }
    }
}

static void on_node_link(struct rt_core *c, uint64_t epoch, bool attached)
{
    struct rt_node *n = rt_nodes_find(&c->nodes, epoch);
    if (n != NULL) {
        n->detached = !attached;
    }
}

/* ---- time ---- */

/* A node that has not let go by itself is told to: the hand-over that would have ended it may be
 * lost, and its own deadline is the request's whole budget. */
static void closing_due(struct rt_core *c, struct rt_entry *e)
{
    end_user(c, e, TD_OK, e->finish, "");
    if (!e->told) {
        e->told = true;
        rt__let_go(c, e, TD_ERR_CANCELLED);
        rt__set_timer(c, e, c->now_us + c->p.close_wait_us);
        close_if_free(c, e);
        return;
    }
    TD_LOG(WARN, "nodes did not acknowledge the end",
           "req=%s counter=%" PRIu64 ", taking it off the books", e->request_id, e->counter);
    rt__released(c, e, e->p_epoch);
    rt__released(c, e, e->d_epoch);
    close_if_free(c, e);
}

static void timer_due(struct rt_core *c, struct rt_entry *e)
{
    switch (e->phase) {
    case RT_CLOSING:
        closing_due(c, e);
        break;
    case RT_QUEUED:
        if (c->now_us >= e->deadline_us) {
            rt__dequeue(c, e);
            rt__finish(c, e, TD_ERR_BUDGET, TD_FINISH_ERROR,
                       "the time budget was spent in the router's queue");
        } else {
            rt__set_timer(c, e,
                          e->deadline_us); /* dispatch decides whether waiting for a pair is over */
        }
        break;
    case RT_PREFILL:
    case RT_DECODE:
        rt__finish(c, e, TD_ERR_BUDGET, TD_FINISH_ERROR, "the time budget was spent");
        break;
    case RT_FREE:
    case RT_PHASES:
        TD_INSIST(e->phase != RT_FREE && e->phase != RT_PHASES);
    }
}

static void run_timers(struct rt_core *c)
{
    struct td_heap_node *n;
    while (c->out->n + 16 < RT_MAX_ACTIONS && (n = td_heap_pop_due(c->timers, c->now_us)) != NULL) {
        timer_due(c, td_heap_entry(n, struct rt_entry, timer));
    }
}

void rt_core_step(struct rt_core *c, int64_t now_us, const struct rt_event *ev,
                  struct rt_actions *out, uint64_t *out_counter)
{
    TD_REQUIRE(c->magic == RT_MAGIC);
    uint64_t counter = 0;
    c->now_us = now_us;
    c->out = out;
    switch (ev->type) {
    case RT_EV_SUBMIT:
        counter = on_submit(c, ev->submit);
        break;
    case RT_EV_CANCEL:
        on_cancel(c, ev->counter, ev->reason);
        break;
    case RT_EV_NODE_UP:
        on_node_up(c, ev->node_info);
        break;
    case RT_EV_NODE_LOST:
        on_node_lost(c, ev->node_epoch);
        break;
    case RT_EV_NODE_LINK:
        on_node_link(c, ev->node_epoch, ev->attached);
        break;
    case RT_EV_NODE_MSG:
        on_node_msg(c, ev->node_epoch, ev->msg);
        break;
    case RT_EV_DRAIN:
        c->draining = true;
        break;
    case RT_EV_NODE_DRAIN:
        on_node_drain(c, ev->node_epoch, ev->drain);
        break;
    case RT_EV_TICK:
        break;
    }
    run_timers(c);
    rt__dispatch(c);
    if (out_counter != NULL) {
        *out_counter = counter;
    }
}

int64_t rt_core_next_deadline(const struct rt_core *c)
{
    const struct td_heap_node *n = td_heap_peek(c->timers);
    return n != NULL ? n->at_us : TD_NEVER;
}
