/* Design: the router shell (router/rt_shell.c) without HTTP, and the clients. A client knows the one
 * right answer and looks at every token; it leaves, or sees its stop string, when the seed says so. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "tests/sim/sim.h"

#define CLIENT_SLACK_US (2 * SIM_SECOND)

struct sim_req *sim_req_of(struct sim *s, const struct td_work_id *id)
{
    for (uint32_t i = 0; i < s->n_reqs; i++) {
        if (s->reqs[i].counter == id->counter && s->reqs[i].router_epoch == id->router_epoch) {
            return &s->reqs[i];
        }
    }
    return sim_outside_req(s, id);
}

/* ---- clients ---- */

static void client_token(struct sim *s, struct sim_proc *p, const struct rt_action *a)
{
    struct sim_req *r = a->user;
    sim_trace(s, "%s: request %u token %u = %x", p->name, r->index, a->index, (unsigned)a->token);
    if (r->ended || r->router != p->index || r->router_life != p->life || r->reset) {
        sim_fail(s, "request %u gets a token after its end", r->index);
    } else if (a->index != r->n_got || r->n_got >= r->n_expect) {
        sim_fail(s, "request %u gets token %u, expected %u of %u", r->index, a->index, r->n_got,
                 r->n_expect);
    } else if (a->token != r->tokens[r->n_prompt + r->n_got]) {
        sim_fail(s, "request %u: token %u is %x, not %x", r->index, a->index, (unsigned)a->token,
                 (unsigned)r->tokens[r->n_prompt + r->n_got]);
    } else if ((a->finish != TD_FINISH_NONE) != (r->n_got + 1 == r->n_expect)) {
        sim_fail(s, "request %u: token %u of %u has finish %d", r->index, a->index, r->n_expect,
                 (int)a->finish);
    } else {
        r->n_got++;
        if (r->n_got == r->stop_after && !r->stopped) {
            r->stopped = true;
            p->stops[p->n_stops++] = r;
        }
    }
}

static void over(struct sim *s, struct sim_req *r)
{
    r->ended = true;
    r->ended_us = s->now;
    s->n_ended++;
    s->quiet_us = s->now;
}

/* Which ends are legal. */
static void end_check(struct sim *s, const struct sim_req *r, const struct rt_action *a)
{
    bool whole = r->n_got == r->n_expect;
    if (a->err == TD_OK && a->counter != 0) {
        bool stop = r->stopped && a->finish == TD_FINISH_STOP;
        if (!stop && (!whole || a->finish != r->expect_finish)) {
            sim_fail(s, "request %u is complete with %u of %u tokens, finish %d", r->index,
                     r->n_got, r->n_expect, (int)a->finish);
        }
    } else if (a->err == TD_ERR_CANCELLED) {
        if (!r->cancelled) {
            sim_fail(s, "request %u ends as cancelled, but its client is there", r->index);
        }
    } else if (a->err == TD_OK || td_err_class_of(a->err) == TD_CLASS_CONFIG ||
               a->err == TD_ERR_INTERNAL || a->err == TD_ERR_BAD_REQUEST ||
               a->err == TD_ERR_PROTOCOL || a->err == TD_ERR_CONTEXT_LENGTH) {
        sim_fail(s, "request %u ends with %s", r->index, td_err_code(a->err));
    }
    if (a->counter != 0 && a->n_output != r->n_got) {
        sim_fail(s, "request %u ends with %u tokens, its client has %u", r->index, a->n_output,
                 r->n_got);
    }
    int64_t limit = r->submit_us + r->budget_us;
    int64_t cont = s->procs[r->router].cont_us; /* a stopped router is late for all */
    limit = (limit > cont ? limit : cont) + CLIENT_SLACK_US;
    if (s->now > limit) {
        sim_fail(s, "request %u ends %.3f s after its time", r->index,
                 (double)(s->now - limit + CLIENT_SLACK_US) / 1e6);
    }
    /* Without faults and with time enough only a full house is a reason. */
    bool full = a->err == TD_ERR_OVERLOADED || a->err == TD_ERR_NO_CAPACITY ||
                (a->err == TD_ERR_BUDGET && r->budget_us < 10 * SIM_SECOND);
    if (s->calm && a->err != TD_OK && a->err != TD_ERR_CANCELLED && !full) {
        sim_fail(s, "request %u ends with %s although nothing is wrong", r->index,
                 td_err_code(a->err));
    }
}

static void client_end(struct sim *s, struct sim_proc *p, const struct rt_action *a)
{
    struct sim_req *r = a->user;
    if (r == NULL) {
        sim_fail(s, "%s: an end without a client", p->name);
        return;
    }
    sim_trace(s, "%s: request %u counter %" PRIu64 " ends: %s tokens=%u attempts=%u", p->name,
              r->index, a->counter, td_err_code(a->err), a->n_output, a->attempts);
    if (r->n_ends++ > 0 || r->ended) {
        sim_fail(s, "request %u ends twice", r->index);
        return;
    }
    r->err = a->err;
    r->finish = a->finish;
    end_check(s, r, a);
    if (s->calm && r->counter != 0) { /* T_cancel, or the router's patience with a lost hand-over */
        sim_post(s,
                 (struct sim_ev){.at = s->now + 1500 * SIM_MS + (a->err == TD_OK ? SIM_SECOND : 0),
                                 .type = SIM_EV_TIDY,
                                 .proc = SIM_NOBODY,
                                 .a = r->index});
    }
    s->n_replays += a->attempts > 1 ? a->attempts - 1 : 0;
    s->n_complete += a->err == TD_OK;
    s->n_cancelled += a->err == TD_ERR_CANCELLED;
    s->n_error += a->err != TD_OK && a->err != TD_ERR_CANCELLED;
    over(s, r);
}

static void submit(struct sim *s, struct sim_req *r)
{
    struct sim_proc *p = &s->procs[r->router];
    if (!p->up || p->stalled) { /* another address of the service */
        p = &s->procs[(r->router + 1) % SIM_ROUTERS];
    }
    if (!p->up || p->stalled) {
        sim_post(s, (struct sim_ev){.at = s->now + 300 * SIM_MS,
                                    .type = SIM_EV_SUBMIT,
                                    .proc = SIM_NOBODY,
                                    .a = r->index});
        return;
    }
    r->router = p->index;
    r->router_life = p->life;
    r->router_epoch = p->epoch;
    r->submit_us = s->now;
    r->submitted = true;
    struct rt_submit sub = {.prompt = r->tokens,
                            .n_prompt = r->n_prompt,
                            .sampling = r->sampling,
                            .priority = r->priority,
                            .budget_us = r->budget_us,
                            .tenant = "sim",
                            .traceparent = "",
                            .request_id = "",
                            .user = r};
    for (size_t i = 0; i < sizeof sub.nonce; i += 8) {
        uint64_t rnd = td_rng_next(&s->rng);
        memcpy(sub.nonce + i, &rnd, 8);
    }
    struct rt_event ev = {.type = RT_EV_SUBMIT, .submit = &sub};
    sim_router_event(s, p, &ev);
    if (r->cancel_us != TD_NEVER) {
        sim_post(s, (struct sim_ev){.at = s->now + r->cancel_us,
                                    .type = SIM_EV_CANCEL,
                                    .proc = SIM_NOBODY,
                                    .a = r->index});
    }
}

static void cancel(struct sim *s, struct sim_req *r)
{
    struct sim_proc *p = &s->procs[r->router];
    if (r->reset || r->counter == 0 || !p->up || p->life != r->router_life) {
        return;
    }
    if (p->stalled) {
        sim_post(s, (struct sim_ev){.at = s->now + 100 * SIM_MS,
                                    .type = SIM_EV_CANCEL,
                                    .proc = SIM_NOBODY,
                                    .a = r->index});
        return;
    }
    r->cancelled = true;
    struct rt_event ev = {.type = RT_EV_CANCEL, .counter = r->counter, .reason = TD_ERR_CANCELLED};
    sim_router_event(s, p, &ev);
    if (!r->ended) {
        sim_fail(s, "request %u is cancelled, but does not end", r->index);
    }
    if (sim_chance(s, 4)) { /* and once more */
        sim_router_event(s, p, &ev);
    }
}

static void tidy_check(struct sim *s, const struct sim_req *r)
{
    for (uint32_t i = SIM_ROUTERS; i < s->n_procs; i++) {
        if (sim_node_knows(&s->procs[i], r->router_epoch, r->counter)) {
            sim_fail(s, "%s still knows request %u, which ended with %s %.3f s ago",
                     s->procs[i].name, r->index, td_err_code(r->err),
                     (double)(s->now - r->ended_us) / 1e6);
        }
    }
}

void sim_client_event(struct sim *s, const struct sim_ev *ev)
{
    struct sim_req *r = &s->reqs[ev->a];
    if (ev->type == SIM_EV_SUBMIT) {
        submit(s, r);
    } else if (ev->type == SIM_EV_CANCEL) {
        cancel(s, r);
    } else {
        tidy_check(s, r);
    }
}

void sim_client_check_end(struct sim *s)
{
    for (uint32_t i = 0; i < s->n_reqs; i++) {
        const struct sim_req *r = &s->reqs[i];
        if (!r->ended || (r->n_ends != 1 && !r->reset)) {
            sim_fail(s, "request %u has %u ends", i, r->n_ends);
        }
    }
}

/* ---- the shell ---- */

static void send_to_node(struct sim *s, struct sim_proc *p, const struct rt_action *a)
{
    const struct td_work_id *id = td_wire_id(a->msg);
    uint64_t key = id != NULL ? td_link_key_of_work(id->router_epoch, id->counter) : 0;
    if (!sim_net_send(s, p, a->node_epoch, key, a->msg)) {
        sim_net_drop(s, p, a->node_epoch, TD_ERR_FULL);
        TD_INSIST(p->n_lost < SIM_MAX_PROCS);
        p->lost[p->n_lost++] = a->node_epoch;
    }
}

static void carry_out(struct sim *s, struct sim_proc *p)
{
    for (uint32_t i = 0; i < p->rt_acts.n && !s->failed; i++) {
        const struct rt_action *a = &p->rt_acts.list[i];
        switch (a->type) {
        case RT_DO_SEND:
            send_to_node(s, p, a);
            break;
        case RT_DO_TOKEN:
            client_token(s, p, a);
            break;
        case RT_DO_END:
            client_end(s, p, a);
            break;
        case RT_DO_OBSERVE:
            break;
        }
    }
    if (p->rt_acts.overflow) {
        sim_fail(s, "%s: action list overflow", p->name);
    }
}

static void step(struct sim *s, struct sim_proc *p, const struct rt_event *ev)
{
    uint64_t counter = 0;
    rt_actions_reset(&p->rt_acts);
    p->stepping = true;
    rt_core_step(p->rt, s->now, ev, &p->rt_acts, &counter);
    if (ev->type == RT_EV_SUBMIT) {
        ((struct sim_req *)ev->submit->user)->counter = counter;
    }
    carry_out(s, p);
    p->stepping = false;
}

void sim_router_event(struct sim *s, struct sim_proc *p, const struct rt_event *ev)
{
    TD_INSIST(!p->stepping);
    step(s, p, ev);
    while (!s->failed && (p->n_lost > 0 || p->n_stops > 0)) {
        struct rt_event next = {.type = RT_EV_CANCEL, .reason = TD_OK};
        if (p->n_lost > 0) {
            next = (struct rt_event){.type = RT_EV_NODE_LOST, .node_epoch = p->lost[--p->n_lost]};
        } else {
            next.counter = p->stops[--p->n_stops]->counter;
        }
        step(s, p, &next);
    }
    sim_router_arm(s, p);
}

void sim_router_arm(struct sim *s, struct sim_proc *p)
{
    int64_t at = rt_core_next_deadline(p->rt);
    if (at < p->core_armed) {
        p->core_armed = at;
        sim_post(s, (struct sim_ev){
                        .at = at, .type = SIM_EV_CORE_TICK, .proc = p->index, .life = p->life});
    }
}

void sim_router_up(struct sim *s, struct sim_proc *p, const uint8_t *info, size_t len)
{
    struct td_wire_node_info i;
    td_arena_reset(p->arena);
    if (td_wire_node_info_decode(info, len, p->arena, &i) != TD_OK) {
        sim_fail(s, "%s cannot decode a node's info", p->name);
        return;
    }
    struct rt_event ev = {.type = RT_EV_NODE_UP, .node_info = &i};
    sim_router_event(s, p, &ev);
}

void sim_router_lost(struct sim *s, struct sim_proc *p, uint64_t epoch)
{
    struct rt_event ev = {.type = RT_EV_NODE_LOST, .node_epoch = epoch};
    sim_router_event(s, p, &ev);
}

void sim_router_link(struct sim *s, struct sim_proc *p, uint64_t epoch, bool attached)
{
    struct rt_event ev = {.type = RT_EV_NODE_LINK, .node_epoch = epoch, .attached = attached};
    sim_router_event(s, p, &ev);
}

void sim_router_message(struct sim *s, struct sim_proc *p, uint64_t epoch,
                        const struct td_wire_msg *m, td_err err)
{
    struct rt_event ev = {.type = RT_EV_NODE_MSG, .node_epoch = epoch, .msg = m};
    sim_router_event(s, p, &ev);
}

/* ---- life ---- */

void sim_router_start(struct sim *s, struct sim_proc *p)
{
    struct rt_core_params rp = s->rt;
    rp.epoch = p->epoch;
    TD_INSIST(rt_core_create(&rp, &p->rt) == TD_OK);
    p->n_lost = p->n_stops = 0;
}

/* Its clients see a reset connection. */
void sim_router_stop(struct sim *s, struct sim_proc *p)
{
    p->rt = rt_core_destroy(p->rt);
    for (uint32_t i = 0; s != NULL && i < s->n_reqs; i++) {
        struct sim_req *r = &s->reqs[i];
        if (r->submitted && !r->ended && r->router == p->index && r->router_life == p->life) {
            r->reset = true;
            s->n_resets++;
            over(s, r);
        }
    }
}

/* ---- invariants ---- */

void sim_router_check(struct sim *s, struct sim_proc *p)
{
    struct rt_request_view v[SIM_MAX_REQS + 4];
    if (rt_core_check(p->rt) != TD_OK) {
        sim_fail(s, "%s: the core's own check fails", p->name);
        return;
    }
    uint32_t n = rt_core_requests(p->rt, v, SIM_MAX_REQS + 4);
    for (uint32_t i = 0; i < n; i++) {
        bool late = v[i].deadline_us <= s->now && p->core_armed > s->now; /* no tick to come now */
        if (v[i].deadline_us == TD_NEVER || late) {
            sim_fail(s, "%s: request counter %" PRIu64 " in phase %d waits until %.6f", p->name,
                     v[i].id.counter, (int)v[i].phase, (double)v[i].deadline_us / 1e6);
            return;
        }
    }
}

void sim_router_audit(struct sim *s, struct sim_proc *p)
{
    const struct rt_nodes *ns = rt_core_nodes(p->rt);
    for (uint32_t i = 0, seen = 0; i < RT_MAX_NODES && seen < ns->count; i++) {
        bool quick = false;
        int64_t dead = sim_dead_for(s, p, ns->list[i].epoch, &quick);
        seen += ns->list[i].epoch != 0;
        if (dead > (quick ? SIM_T_EXIT : SIM_T_DEAD)) {
            sim_fail(s, "%s still counts on %s, dead for %.3f s", p->name, ns->list[i].name,
                     (double)dead / 1e6);
        }
    }
}

void sim_router_check_idle(struct sim *s, struct sim_proc *p)
{
    struct rt_request_view v;
    const struct rt_nodes *ns = rt_core_nodes(p->rt);
    if (rt_core_requests(p->rt, &v, 1) != 0 || rt_core_queued_bytes(p->rt) != 0) {
        sim_fail(s, "%s: request counter %" PRIu64 " is still in the ledger, phase %d", p->name,
                 v.id.counter, (int)v.phase);
        return;
    }
    if (ns->count != s->n_procs - SIM_ROUTERS) {
        sim_fail(s, "%s knows %u nodes", p->name, ns->count);
    }
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        const struct rt_node *n = &ns->list[i];
        if (n->epoch != 0 && (n->inflight != 0 || n->pending_tok != 0)) {
            sim_fail(s, "%s: its book of %s has %u requests and %" PRIu64 " tokens", p->name,
                     n->name, n->inflight, n->pending_tok);
        }
    }
}
