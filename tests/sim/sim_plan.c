/* Design: everything that is drawn is drawn from the seed's generator, the cluster and its requests
 * first, so that -v shows the same run. Requests come within a few seconds, so that a fault always
 * meets some of each state. Every fault ends by itself, and a crashed process comes back: in the end
 * the cluster is whole and must be clean. */
#include <inttypes.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "tests/sim/sim.h"

#define CALM_ONE_IN 12 /* seeds without a fault */

static const char *const names[SIM_FAULTS] = {
    "delay",      "reset",        "cut",        "long cut",     "data loss",   "data cut",
    "slice lost", "slice bad",    "slice late", "message lost", "old message", "stall",
    "long stall", "crash",        "host lost",  "router crash", "row fails",   "slow engine",
    "drain",      "router drain", "stuck"};

const char *sim_fault_name(enum sim_fault_kind k)
{
    return names[k];
}

/* ---- cluster ---- */

static void plan_sizes(struct sim *s)
{
    static const uint32_t chunks[] = {32, 64, 128};
    s->n_prefill = 2 + (uint32_t)sim_below(s, 3);
    s->n_decode = 2 + (uint32_t)sim_below(s, 3);
    s->n_procs = SIM_ROUTERS + s->n_prefill + s->n_decode;
    s->n_both = sim_chance(s, 3) ? 1 + (uint32_t)sim_below(s, s->n_decode) : 0;
    s->link_queue = sim_chance(s, 6) ? 6000 : 1u << 20;
    s->p_blocks = 24 + (uint32_t)sim_below(s, 41);
    s->d_blocks = 22 + (uint32_t)sim_below(s, 43);
    s->max_seqs = 3 + (uint32_t)sim_below(s, 6);
    s->max_queue = 4 + (uint32_t)sim_below(s, 29);
    s->chunk = chunks[sim_below(s, 3)];
    s->max_batched = 64 + 32 * (uint32_t)sim_below(s, 7);
    s->steps_in_flight = 1 + (uint32_t)(s->seed % TD_ENGINE_MAX_INFLIGHT);
    s->window = s->seed % 3 == 0 ? 2 + (uint32_t)(s->seed * 37 % 120) : 0;
    s->rt = (struct rt_core_params){.max_requests = SIM_MAX_REQS + 4,
                                    .max_queue = sim_chance(s, 4) ? 4 : SIM_MAX_REQS,
                                    .max_queue_bytes = 1u << 20,
                                    .max_node_queue = 2 + (uint32_t)sim_below(s, 12),
                                    .max_replays = 2,
                                    .resume = !sim_chance(s, 5),
                                    .pair_wait_us = 5 * SIM_SECOND,
                                    .close_wait_us = 10 * SIM_SECOND,
                                    .policy = sim_chance(s, 4) ? RT_POLICY_ROUND_ROBIN
                                                               : RT_POLICY_PREDICT,
                                    .model_name = "sim"};
}

static void name_proc(struct sim_proc *p, enum sim_kind kind, uint32_t number)
{
    static const char letter[] = {'r', 'p', 'd'};
    p->kind = kind;
    p->name[0] = letter[kind];
    p->name[1] = (char)('0' + number);
    p->name[2] = '\0';
}

static void plan_procs(struct sim *s)
{
    int64_t far = sim_chance(s, 5) ? 60 : 1; /* tens of milliseconds */
    for (uint32_t i = 0; i < s->n_procs; i++) {
        struct sim_proc *p = &s->procs[i];
        p->index = i;
        if (i < SIM_ROUTERS) {
            name_proc(p, SIM_ROUTER, i);
        } else if (i < SIM_ROUTERS + s->n_prefill) {
            name_proc(p, SIM_PREFILL, i - SIM_ROUTERS);
        } else {
            name_proc(p, SIM_DECODE, i - SIM_ROUTERS - s->n_prefill);
            p->both = s->n_procs - i <= s->n_both;
        }
        for (uint32_t k = 0; k < s->n_procs; k++) {
            s->ctl[i][k] =
                (struct sim_path){.delay_us = far * sim_between(s, 50, 600), .jitter_us = 200};
            s->data[i][k] =
                (struct sim_path){.delay_us = far * sim_between(s, 10, 200), .jitter_us = 50};
        }
    }
}

/* ---- requests ---- */

static void fill_tokens(struct sim *s, struct sim_req *r)
{
    uint64_t h = 0;
    for (uint32_t pos = 0; pos < r->n_prompt; pos++) {
        r->tokens[pos] = (int32_t)((r->index + 1) << 16 | sim_below(s, 65536));
        h = r->chain[pos] = sim_chain(h, r->tokens[pos], pos);
    }
    for (uint32_t i = 0; i < r->sampling.max_tokens; i++) {
        uint32_t pos = r->n_prompt + i;
        r->tokens[pos] = sim_token(h, r->sampling.seed, r->index);
        h = r->chain[pos] = sim_chain(h, r->tokens[pos], pos);
    }
}

/* Some end with a token of their stop list: its first place in the output that counts. */
static void plan_end(struct sim *s, struct sim_req *r)
{
    r->n_expect = r->sampling.max_tokens;
    r->expect_finish = TD_FINISH_LENGTH;
    if (!sim_chance(s, 4)) {
        return;
    }
    uint32_t at = (uint32_t)sim_below(s, r->sampling.max_tokens);
    r->sampling.n_stop_ids = 1;
    r->sampling.stop_ids[0] = r->tokens[r->n_prompt + at];
    r->sampling.min_tokens = sim_chance(s, 3) ? at : 0;
    for (uint32_t i = r->sampling.min_tokens; i < r->sampling.max_tokens; i++) {
        if (r->tokens[r->n_prompt + i] == r->sampling.stop_ids[0]) {
            r->n_expect = i + 1;
            r->expect_finish = TD_FINISH_STOP;
            return;
        }
    }
}

static uint32_t length(struct sim *s, uint32_t max)
{
    static const uint32_t part[] = {16, 4, 2, 1};
    return 1 + (uint32_t)sim_below(s, max / part[sim_below(s, 4)]);
}

static void plan_request(struct sim *s, struct sim_req *r, uint32_t index, int64_t window)
{
    uint32_t fits = (s->d_blocks < s->p_blocks ? s->d_blocks : s->p_blocks) * SIM_BLOCK;
    *r = (struct sim_req){.index = index, .cancel_us = TD_NEVER};
    r->router = (uint32_t)sim_below(s, SIM_ROUTERS);
    r->n_prompt = length(s, SIM_MAX_PROMPT < fits / 2 ? SIM_MAX_PROMPT : fits / 2);
    r->sampling.max_tokens = length(s, SIM_MAX_OUTPUT);
    r->sampling.seed = td_rng_next(&s->rng);
    r->sampling.top_p = r->sampling.repetition_penalty = 1;
    r->priority = (int32_t)sim_below(s, 3) - 1;
    r->budget_us = sim_chance(s, 8) ? sim_between(s, 200 * SIM_MS, 5 * SIM_SECOND)
                                    : sim_between(s, 20 * SIM_SECOND, 60 * SIM_SECOND);
    if (sim_chance(s, 6)) {
        r->cancel_us = sim_chance(s, 3) ? 0 : sim_between(s, 0, 2 * SIM_SECOND);
    } else if (sim_chance(s, 6)) {
        r->stop_after = 1 + (uint32_t)sim_below(s, r->sampling.max_tokens);
    }
    fill_tokens(s, r);
    plan_end(s, r);
    sim_post(s, (struct sim_ev){.at = sim_between(s, 500 * SIM_MS, window),
                                .type = SIM_EV_SUBMIT,
                                .proc = SIM_NOBODY,
                                .a = index});
}

/* Every third seed has an outside router beside its own; what is drawn for it changes nothing else that is drawn. */
static void plan_outside(struct sim *s, int64_t window)
{
    s->hold_ms = (int64_t)(500 + td_rng_below(&s->out_rng, 3500));
    s->n_outs = s->seed % 3 == 0 ? 1 + (uint32_t)td_rng_below(&s->out_rng, SIM_MAX_OUTS) : 0;
    struct td_rng own = s->rng;
    s->rng = s->out_rng;
    for (uint32_t i = 0; i < s->n_outs; i++) {
        plan_request(s, &s->reqs[s->n_reqs + i], s->n_reqs + i, window);
    }
    s->out_rng = s->rng;
    s->rng = own;
}

/* ---- faults ---- */

static uint32_t pick(struct sim *s, enum sim_kind kind)
{
    switch (kind) {
    case SIM_ROUTER:
        return (uint32_t)sim_below(s, SIM_ROUTERS);
    case SIM_PREFILL:
        return SIM_ROUTERS + (uint32_t)sim_below(s, s->n_prefill);
    case SIM_DECODE:
        break;
    }
    return SIM_ROUTERS + s->n_prefill + (uint32_t)sim_below(s, s->n_decode);
}

static uint32_t pick_node(struct sim *s)
{
    return pick(s, sim_chance(s, 2) ? SIM_PREFILL : SIM_DECODE);
}

/* Half of the seeds know a few kinds of fault only: those meet each other more often. */
static uint32_t plan_kinds(struct sim *s, enum sim_fault_kind out[SIM_FAULTS])
{
    if (sim_chance(s, 2)) {
        for (uint32_t i = 0; i < SIM_FAULTS; i++) {
            out[i] = (enum sim_fault_kind)i;
        }
        return SIM_FAULTS;
    }
    uint32_t n = 1 + (uint32_t)sim_below(s, 4);
    for (uint32_t i = 0; i < n; i++) {
        out[i] = (enum sim_fault_kind)sim_below(s, SIM_FAULTS);
    }
    return n;
}

static void plan_fault(struct sim *s, struct sim_fault *f, enum sim_fault_kind kind, int64_t window)
{
    *f = (struct sim_fault){.kind = kind};
    f->at_us = sim_between(s, 300 * SIM_MS, window);
    if (sim_chance(s, 3)) { /* close to a moment that matters, at the latest at the end */
        static const enum td_wire_type moments[] = {
            TD_WIRE_TABLE,  TD_WIRE_RECORD, TD_WIRE_TAKEN,     TD_WIRE_ABORT,
            TD_WIRE_TOKENS, TD_WIRE_END,    TD_WIRE_CANCEL_ACK};
        f->on = moments[sim_below(s, sizeof moments / sizeof moments[0])];
        f->nth = 1 + (uint32_t)sim_below(s, 30);
        f->at_us = window;
    }
    f->for_us = sim_between(s, 100 * SIM_MS, 6 * SIM_SECOND);
    f->a = pick_node(s);
    f->b = pick(s, SIM_ROUTER);
    switch (f->kind) {
    case SIM_F_XLOSS:
    case SIM_F_XCUT:
        f->a = pick(s, SIM_DECODE);
        f->b = pick(s, SIM_PREFILL);
        break;
    case SIM_F_SLICE_DROP:
    case SIM_F_SLICE_BAD:
    case SIM_F_SLICE_LATE:
        f->a = pick(s, SIM_PREFILL);
        break;
    case SIM_F_CUT_LONG:
    case SIM_F_STALL_LONG:
        f->for_us = sim_between(s, 10 * SIM_SECOND, 16 * SIM_SECOND);
        break;
    case SIM_F_CRASH:
    case SIM_F_CRASH_SILENT:
        f->for_us = sim_chance(s, 2) ? sim_between(s, 20 * SIM_MS, SIM_SECOND) : f->for_us * 2;
        break;
    case SIM_F_FENCE:
        f->a = pick(s, SIM_DECODE);
        break;
    case SIM_F_ROUTER_CRASH:
    case SIM_F_ROUTER_DRAIN:
        f->a = pick(s, SIM_ROUTER);
        break;
    case SIM_F_STALL:
        f->a = sim_chance(s, 5) ? f->b : f->a;
        break;
    case SIM_F_DELAY:
    case SIM_F_RESET:
    case SIM_F_CUT:
    case SIM_F_MSG_DROP:
    case SIM_F_MSG_OLD:
    case SIM_F_ROW_FAIL:
    case SIM_F_SLOW:
    case SIM_F_DRAIN:
    case SIM_FAULTS:
        break;
    }
}

static void heal_later(struct sim *s, const struct sim_fault *f)
{
    sim_post(s, (struct sim_ev){.at = s->now + f->for_us,
                                .type = SIM_EV_HEAL,
                                .proc = SIM_NOBODY,
                                .a = (uint64_t)(f - s->faults)});
}

static void is_over(struct sim *s, struct sim_fault *f)
{
    f->over = true;
    s->n_over++;
    s->quiet_us = s->now;
}

static struct sim_path *data_path(struct sim *s, const struct sim_fault *f)
{
    return &s->data[f->a < f->b ? f->a : f->b][f->a < f->b ? f->b : f->a];
}

static struct sim_path *ctl_path(struct sim *s, const struct sim_fault *f)
{
    return &s->ctl[f->a < f->b ? f->a : f->b][f->a < f->b ? f->b : f->a];
}

static void old_message(struct sim *s)
{
    uint32_t n = s->n_old < SIM_MAX_OLD ? s->n_old : SIM_MAX_OLD;
    if (n == 0) {
        return;
    }
    const struct sim_old *o = &s->old[sim_below(s, n)];
    struct sim_proc *p = &s->procs[o->proc];
    if (p->up && !p->stalled && sim_peer_find(p->node, o->epoch) != NULL) {
        struct td_xfer_event x = {
            .type = TD_XFER_MSG, .epoch = o->epoch, .bytes = o->bytes, .n_bytes = o->len};
        sim_xfer_tell(s, p, &x);
    }
}

/* Faults of a live process. False: it lasts until HEAL. */
static bool strike_node(struct sim *s, struct sim_fault *f, struct sim_proc *p)
{
    struct nd_event drain = {.type = ND_EV_DRAIN, .deadline_us = s->now + f->for_us};
    switch ((int)f->kind) {
    case SIM_F_SLICE_DROP:
        p->node->drop_slices += 1 + (uint32_t)sim_below(s, 4);
        return true;
    case SIM_F_SLICE_BAD:
        p->node->bad_slices += 1 + (uint32_t)sim_below(s, 2);
        return true;
    case SIM_F_SLICE_LATE:
        p->node->late_us = f->for_us * 2;
        return true;
    case SIM_F_MSG_DROP:
        p->node->drop_msgs += 1 + (uint32_t)sim_below(s, 3);
        return true;
    case SIM_F_ROW_FAIL:
        p->node->eng.fail_rows += 1 + (uint32_t)sim_below(s, 8);
        return true;
    case SIM_F_SLOW:
        p->node->eng.slow = 4 + (uint32_t)sim_below(s, 40);
        return false;
    case SIM_F_STALL:
    case SIM_F_STALL_LONG:
        sim_proc_stall(s, p);
        return false;
    case SIM_F_FENCE:
        p->node->stuck_slices += 1 + (uint32_t)sim_below(s, 3);
        p->node->fence_us = f->for_us * 2;
        return false;
    case SIM_F_ROUTER_DRAIN:
        sim_router_event(s, p, &(struct rt_event){.type = RT_EV_DRAIN});
        return false;
    case SIM_F_DRAIN:
        p->node->draining = true;
        sim_node_feed(s, p, &drain);
        return false;
    default: /* crashes */
        sim_proc_crash(s, p, f->kind == SIM_F_CRASH_SILENT);
        return false;
    }
}

static bool strike(struct sim *s, struct sim_fault *f)
{
    switch ((int)f->kind) {
    case SIM_F_DELAY:
        ctl_path(s, f)->jitter_us = sim_between(s, SIM_MS, 800 * SIM_MS);
        return false;
    case SIM_F_RESET:
        sim_net_reset(s, f->a, f->b);
        return true;
    case SIM_F_CUT:
    case SIM_F_CUT_LONG:
        ctl_path(s, f)->cut = true;
        return false;
    case SIM_F_XLOSS:
        sim_peer_lose(s, f->a, f->b);
        return true;
    case SIM_F_XCUT:
        data_path(s, f)->cut = true;
        if (sim_chance(s, 2)) {
            sim_peer_lose(s, f->a, f->b);
        }
        return false;
    case SIM_F_MSG_OLD:
        for (int i = 0; i < 4; i++) {
            old_message(s);
        }
        return true;
    default:
        return !s->procs[f->a].up || s->procs[f->a].stalled || strike_node(s, f, &s->procs[f->a]);
    }
}

static void heal(struct sim *s, struct sim_fault *f)
{
    struct sim_proc *p = &s->procs[f->a];
    bool same = p->up && p->life == f->life;
    switch ((int)f->kind) {
    case SIM_F_DELAY:
        ctl_path(s, f)->jitter_us = 200;
        break;
    case SIM_F_CUT:
    case SIM_F_CUT_LONG:
        ctl_path(s, f)->cut = false;
        sim_net_healed(s, f->a, f->b);
        break;
    case SIM_F_XCUT:
        data_path(s, f)->cut = false;
        sim_peer_healed(s, f->a, f->b);
        break;
    case SIM_F_SLOW:
        if (same) {
            p->node->eng.slow = 1;
        }
        break;
    case SIM_F_STALL:
    case SIM_F_STALL_LONG:
        if (same && p->stalled) {
            sim_proc_cont(s, p);
        }
        break;
    case SIM_F_FENCE:
        if (same) {
            p->node->stuck_slices = 0;
            p->node->fence_us = 0;
        }
        break;
    case SIM_F_ROUTER_DRAIN:
    case SIM_F_DRAIN: /* it has left; a new process takes its place */
        if (same && !p->stalled) {
            sim_proc_crash(s, p, false);
            sim_proc_start(s, p);
        }
        break;
    default:
        if (!p->up) {
            sim_proc_start(s, p);
        }
        break;
    }
}

/* Whom the moment belongs to, if the fault can strike it. */
static void aim(struct sim_fault *f, const struct sim_proc *p)
{
    bool of_node = f->kind == SIM_F_CRASH || f->kind == SIM_F_CRASH_SILENT ||
                   f->kind == SIM_F_STALL || f->kind == SIM_F_STALL_LONG ||
                   f->kind == SIM_F_RESET || f->kind == SIM_F_CUT || f->kind == SIM_F_CUT_LONG ||
                   f->kind == SIM_F_DRAIN || f->kind == SIM_F_MSG_DROP;
    if (of_node) {
        f->a = p->index;
    }
}

void sim_fault_moment(struct sim *s, const struct sim_proc *p, enum td_wire_type said)
{
    for (uint32_t i = 0; i < s->n_faults; i++) {
        struct sim_fault *f = &s->faults[i];
        if (f->begun || f->on != said || f->nth == 0 || --f->nth > 0) {
            continue;
        }
        aim(f, p);
        sim_post(s, (struct sim_ev){.at = s->now + sim_between(s, 0, 2 * SIM_MS),
                                    .type = SIM_EV_FAULT,
                                    .proc = SIM_NOBODY,
                                    .a = i});
    }
}

void sim_fault_event(struct sim *s, const struct sim_ev *ev)
{
    struct sim_fault *f = &s->faults[ev->a];
    if (ev->type == SIM_EV_FAULT && f->begun) {
        return;
    }
    f->begun = true;
    sim_trace(s, "fault %u %s: %s a=%s b=%s for %.3f s", (unsigned)ev->a,
              ev->type == SIM_EV_HEAL ? "ends" : "begins", names[f->kind], s->procs[f->a].name,
              s->procs[f->b].name, (double)f->for_us / 1e6);
    if (ev->type == SIM_EV_HEAL) {
        heal(s, f);
        is_over(s, f);
        return;
    }
    f->life = s->procs[f->a].life;
    if (strike(s, f)) {
        is_over(s, f);
    } else {
        heal_later(s, f);
    }
}

void sim_plan(struct sim *s)
{
    plan_sizes(s);
    plan_procs(s);
    int64_t window = sim_between(s, 800 * SIM_MS, 6 * SIM_SECOND);
    s->n_reqs = 20 + (uint32_t)sim_below(s, 41);
    for (uint32_t i = 0; i < s->n_reqs; i++) {
        plan_request(s, &s->reqs[i], i, window);
    }
    plan_outside(s, window);
    s->calm = sim_chance(s, CALM_ONE_IN);
    s->n_faults = s->calm ? 0 : 5 + (uint32_t)sim_below(s, SIM_MAX_FAULTS - 4);
    enum sim_fault_kind kinds[SIM_FAULTS];
    uint32_t n_kinds = plan_kinds(s, kinds);
    s->smooth = true;
    for (uint32_t i = 0; i < s->n_faults; i++) {
        plan_fault(s, &s->faults[i], kinds[sim_below(s, n_kinds)], window + SIM_SECOND);
        enum sim_fault_kind k = s->faults[i].kind;
        s->smooth = s->smooth && k != SIM_F_DELAY && k != SIM_F_CUT && k != SIM_F_CUT_LONG;
        sim_post(s,
                 (struct sim_ev){
                     .at = s->faults[i].at_us, .type = SIM_EV_FAULT, .proc = SIM_NOBODY, .a = i});
    }
}
