/* Design: an outside router, as VllmEngine serves it: it asks a prefill node to hold a prompt, carries the hand-off to a decode
 * node by itself, and starts anew when something dies. It is no process of the simulator: nothing happens to it but what nodes
 * say, late. Its draws come from a generator of its own. In some rounds it is careless: it comes late or never, gives one hand-off
 * to two nodes, or gets the nonce wrong. */
#include <inttypes.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "tests/sim/sim.h"

#define MAX_ROUNDS 3u
#define SLACK_US   (2 * SIM_SECOND)

static uint64_t below(struct sim *s, uint64_t n)
{
    return td_rng_below(&s->out_rng, n);
}

static bool chance(struct sim *s, uint32_t one_in)
{
    return below(s, one_in) == 0;
}

static int64_t between(struct sim *s, int64_t lo, int64_t hi)
{
    return lo + (int64_t)below(s, (uint64_t)(hi - lo) + 1);
}

static struct sim_req *req_of(struct sim *s, const struct sim_out *o)
{
    return &s->reqs[s->n_reqs + (uint32_t)(o - s->outs)];
}

static void later(struct sim *s, const struct sim_out *o, enum sim_ev_type type, int64_t us,
                  uint32_t which)
{
    sim_post(s, (struct sim_ev){.at = s->now + us,
                                .type = type,
                                .proc = SIM_NOBODY,
                                .a = req_of(s, o)->index,
                                .b = (uint64_t)o->round << 32 | which});
}

struct sim_req *sim_outside_req(struct sim *s, const struct td_work_id *id)
{
    for (uint32_t i = 0; i < s->n_outs; i++) {
        const struct sim_try *t = &s->outs[i].tries[SIM_HOLD];
        if (t->ref == id->counter && t->epoch == id->router_epoch && t->ref != 0) {
            return req_of(s, &s->outs[i]);
        }
    }
    return NULL;
}

/* ---- a round ---- */

static void over(struct sim *s, struct sim_out *o, td_err err)
{
    struct sim_req *r = req_of(s, o);
    sim_trace(s, "outside: request %u is over: %s", r->index, td_err_code(err));
    r->ended = true;
    r->ended_us = s->quiet_us = s->now;
    s->n_outs_over++;
    s->n_taken += err == TD_OK;
}

/* Why a work may end so. */
static void end_check(struct sim *s, const struct sim_out *o, const struct sim_try *t,
                      const struct sim_req *r)
{
    bool taker = t != &o->tries[SIM_HOLD];
    bool whole = t->n_got == r->n_expect && t->finish == r->expect_finish;
    if (t->err == TD_OK && taker && !whole) {
        sim_fail(s, "outside request %u is complete with %u of %u tokens", r->index, t->n_got,
                 r->n_expect);
    } else if (t->err == TD_OK && !taker && !o->presented) {
        sim_fail(s, "outside request %u was handed over to nobody", r->index);
    } else if (td_err_class_of(t->err) == TD_CLASS_CONFIG || t->err == TD_ERR_INTERNAL ||
               t->err == TD_ERR_BAD_REQUEST || t->err == TD_ERR_PROTOCOL ||
               (t->err == TD_ERR_CANCELLED && !r->cancelled)) {
        sim_fail(s, "outside request %u ends with %s", r->index, td_err_code(t->err));
    }
    int64_t cont = s->procs[t->proc].cont_us;
    int64_t limit =
        t->since_us + r->budget_us + (taker ? 0 : s->hold_ms * SIM_MS + 30 * SIM_SECOND);
    limit = (limit > cont ? limit : cont) + SLACK_US;
    if (s->now > limit) {
        sim_fail(s, "outside request %u ends %.3f s after its time", r->index,
                 (double)(s->now - limit + SLACK_US) / 1e6);
    }
    bool full = t->err == TD_ERR_OVERLOADED || t->err == TD_ERR_NO_CAPACITY ||
                t->err == TD_ERR_BUDGET || t->err == TD_ERR_LEASE;
    bool plain = o->late_us == 0 && !o->rival && !o->wrong && !o->abandon && !r->cancelled;
    if (s->calm && plain && t->err != TD_OK && !full) {
        sim_fail(s, "outside request %u ends with %s although nothing is wrong", r->index,
                 td_err_code(t->err));
    }
    if (s->calm && !taker && t->err == TD_ERR_LEASE && s->now < o->held_us + s->hold_ms * SIM_MS) {
        sim_fail(s, "outside request %u is held for %.3f s only", r->index,
                 (double)(s->now - o->held_us) / 1e6);
    }
}

/* When nothing of the round is open any more: it is over, or another one begins. */
static void settle(struct sim *s, struct sim_out *o)
{
    struct sim_req *r = req_of(s, o);
    const struct sim_try *t = o->tries;
    if (r->ended || o->n_waiting > 0 || t[SIM_HOLD].open || t[SIM_TAKE].open || t[SIM_RIVAL].open) {
        return;
    }
    bool won = t[SIM_TAKE].n_got > 0 || t[SIM_RIVAL].n_got > 0;
    td_err err = t[SIM_TAKE].err == TD_OK || t[SIM_RIVAL].err == TD_OK ? TD_OK : t[SIM_HOLD].err;
    if (err == TD_OK && !won) {
        err = TD_ERR_STALE; /* handed over, then lost */
    }
    if (err == TD_OK || r->cancelled || o->abandon || o->round == MAX_ROUNDS) {
        over(s, o, err);
        return;
    }
    later(s, o, SIM_EV_SUBMIT, between(s, SIM_MS, 200 * SIM_MS), 0);
}

static void close_try(struct sim *s, struct sim_out *o, struct sim_try *t, td_err err)
{
    t->open = false;
    t->err = err;
    settle(s, o);
}

/* ---- what nodes say ---- */

static void hear_token(struct sim *s, struct sim_out *o, struct sim_try *t,
                       const struct nd_local_token *x)
{
    const struct sim_req *r = req_of(s, o);
    bool hold = t == &o->tries[SIM_HOLD];
    uint32_t most = hold ? 1 : r->n_expect;
    const struct sim_try *other =
        t == &o->tries[SIM_TAKE] ? &o->tries[SIM_RIVAL] : &o->tries[SIM_TAKE];
    if (x->index != t->n_got || t->n_got >= most || x->token != r->tokens[r->n_prompt + t->n_got]) {
        sim_fail(s, "outside request %u: token %u of %u is %x", r->index, x->index, most,
                 (unsigned)x->token);
    } else if ((x->finish != TD_FINISH_NONE) != (!hold && t->n_got + 1 == r->n_expect)) {
        sim_fail(s, "outside request %u: token %u of %u has finish %d", r->index, x->index, most,
                 (int)x->finish);
    } else if (!hold && (other->n_got > 0 || t->wrong)) {
        sim_fail(s, "outside request %u: %s gets tokens", r->index,
                 t->wrong ? "who does not know the nonce" : "a second taker");
    }
    t->n_got++;
    t->finish = x->finish;
}

static void hear_held(struct sim *s, struct sim_out *o, const struct td_handoff *h)
{
    o->handoff = *h;
    o->held_us = s->now;
    if (o->abandon) {
        return;
    }
    o->n_waiting = o->rival || o->wrong ? 2 : 1;
    later(s, o, SIM_EV_TAKE, between(s, 100, 20 * SIM_MS) + o->late_us, SIM_TAKE);
    if (o->n_waiting == 2) {
        later(s, o, SIM_EV_TAKE, between(s, 100, chance(s, 2) ? 20 * SIM_MS : SIM_SECOND),
              SIM_RIVAL);
    }
}

static struct sim_out *out_of(struct sim *s, const struct sim_try *t)
{
    return &s->outs[t->out];
}

void sim_outside_hear(struct sim *s, struct sim_proc *p)
{
    struct nd_local_word w;
    while (!s->failed && nd_local_next(p->node->local, &w)) {
        struct sim_try *t = w.arg;
        struct sim_out *o = out_of(s, t);
        if (!t->open || t->ref != w.ref || t->proc != p->index || t->life != p->life) {
            sim_fail(s, "%s speaks of a work of outside request %u that is over", p->name,
                     req_of(s, o)->index);
            return;
        }
        switch (w.type) {
        case ND_LOCAL_TOKEN:
            hear_token(s, o, t, &w.token);
            break;
        case ND_LOCAL_HELD:
            hear_held(s, o, w.handoff);
            break;
        case ND_LOCAL_END:
            sim_trace(s, "outside: request %u at %s ends: %s", req_of(s, o)->index, p->name,
                      td_err_code(w.end.err));
            s->n_expired += t == &o->tries[SIM_HOLD] && w.end.err == TD_ERR_LEASE;
            t->err = w.end.err;
            end_check(s, o, t, req_of(s, o));
            close_try(s, o, t, w.end.err);
            break;
        }
    }
}

/* Its connections break. */
void sim_outside_gone(struct sim *s, const struct sim_proc *p)
{
    for (uint32_t i = 0; i < s->n_outs; i++) {
        for (uint32_t k = 0; k < SIM_TRIES; k++) {
            struct sim_try *t = &s->outs[i].tries[k];
            if (t->open && t->proc == p->index && t->life == p->life) {
                close_try(s, &s->outs[i], t, TD_ERR_PEER_LOST);
            }
        }
    }
}

/* ---- what it asks for ---- */

static const struct nd_local_ops ops; /* words are fetched, nobody is called */

static struct sim_proc *pick_node(struct sim *s, enum sim_kind kind)
{
    struct sim_proc *fit[SIM_MAX_PROCS];
    uint32_t n = 0;
    for (uint32_t i = SIM_ROUTERS; i < s->n_procs; i++) {
        struct sim_proc *p = &s->procs[i];
        if (p->kind == kind && p->up && !p->stalled) {
            fit[n++] = p;
        }
    }
    return n > 0 ? fit[below(s, n)] : NULL;
}

static void ask(struct sim *s, struct sim_out *o, struct sim_try *t, struct sim_proc *p,
                const struct td_handoff *h)
{
    const struct sim_req *r = req_of(s, o);
    struct td_wire_msg m;
    uint8_t nonce[16];
    struct nd_local_request q = {.mode = h != NULL ? ND_LOCAL_TAKE : ND_LOCAL_HOLD,
                                 .budget_ms = (uint32_t)(r->budget_us / SIM_MS),
                                 .priority = r->priority,
                                 .prompt = r->tokens,
                                 .n_prompt = r->n_prompt,
                                 .sampling = r->sampling,
                                 .handoff = h};
    for (size_t i = 0; i < sizeof nonce; i++) {
        nonce[i] = (uint8_t)below(s, 256);
    }
    if (h != NULL) {
        q.sampling.seed = ~q.sampling.seed; /* the hand-off's counts */
    } else {
        q.sampling.max_tokens = 1;
    }
    bool wrong = t->wrong;
    *t = (struct sim_try){.out = (uint32_t)(o - s->outs),
                          .open = true,
                          .wrong = wrong,
                          .proc = p->index,
                          .life = p->life,
                          .epoch = nd_local_epoch(p->node->local),
                          .since_us = s->now};
    td_err e = nd_local_submit(p->node->local, &q, nonce, &ops, t, &t->ref, &m);
    if (e != TD_OK) {
        sim_fail(s, "%s: outside request %u is refused: %s", p->name, r->index, td_err_code(e));
        return;
    }
    sim_trace(s, "outside: request %u asks %s to %s", r->index, p->name,
              h != NULL ? "take" : "hold");
    sim_node_local(s, p, &m);
}

static void begin_round(struct sim *s, struct sim_out *o)
{
    struct sim_req *r = req_of(s, o);
    struct sim_proc *p = pick_node(s, SIM_PREFILL);
    if (r->cancelled) { /* before it began */
        over(s, o, TD_ERR_CANCELLED);
        return;
    }
    if (p == NULL) {
        later(s, o, SIM_EV_SUBMIT, 300 * SIM_MS, 0);
        return;
    }
    if (!r->submitted && r->cancel_us != TD_NEVER) {
        later(s, o, SIM_EV_CANCEL, r->cancel_us, 0);
    }
    r->submitted = true;
    o->round++;
    o->abandon = chance(s, 6);
    o->rival = chance(s, 3);
    o->wrong = !o->rival && chance(s, 4);
    o->late_us = chance(s, 4) ? between(s, SIM_MS, 2 * s->hold_ms * SIM_MS) : 0;
    o->presented = false;
    for (uint32_t k = 0; k < SIM_TRIES; k++) {
        o->tries[k] = (struct sim_try){.err = TD_ERR_NO_NODE};
    }
    ask(s, o, &o->tries[SIM_HOLD], p, NULL);
}

static void take(struct sim *s, struct sim_out *o, uint32_t which)
{
    struct sim_req *r = req_of(s, o);
    struct sim_proc *p = pick_node(s, SIM_DECODE);
    struct sim_try *t = &o->tries[which];
    o->n_waiting--;
    if (p == NULL || r->cancelled) {
        settle(s, o);
        return;
    }
    static struct td_handoff h;
    h = o->handoff;
    t->wrong = which == SIM_RIVAL && o->wrong;
    if (t->wrong) {
        h.nonce[below(s, sizeof h.nonce)] ^= (uint8_t)(1u << below(s, 8));
    }
    o->presented = o->presented || !t->wrong;
    ask(s, o, t, p, &h);
}

static void cancel(struct sim *s, struct sim_out *o)
{
    struct sim_req *r = req_of(s, o);
    r->cancelled = true;
    for (uint32_t k = 0; k < SIM_TRIES && !s->failed; k++) {
        const struct sim_try *t = &o->tries[k];
        struct sim_proc *p = &s->procs[t->proc];
        struct td_wire_msg m;
        if (t->open && p->up && !p->stalled && nd_local_cancel(p->node->local, t->ref, &m)) {
            sim_node_local(s, p, &m);
        }
    }
}

void sim_outside_event(struct sim *s, const struct sim_ev *ev)
{
    struct sim_out *o = &s->outs[ev->a - s->n_reqs];
    uint32_t round = (uint32_t)(ev->b >> 32);
    if (req_of(s, o)->ended) {
        return;
    }
    if (ev->type == SIM_EV_SUBMIT) {
        begin_round(s, o);
    } else if (ev->type == SIM_EV_CANCEL) {
        cancel(s, o);
    } else if (round == o->round) {
        take(s, o, (uint32_t)ev->b);
    }
}

void sim_outside_check_end(struct sim *s)
{
    for (uint32_t i = 0; i < s->n_outs; i++) {
        if (!req_of(s, &s->outs[i])->ended) {
            sim_fail(s, "outside request %u has not ended", req_of(s, &s->outs[i])->index);
        }
    }
}
