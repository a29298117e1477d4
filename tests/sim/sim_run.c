/* Design: one world, used again for each seed; what is big (action lists, arenas) stays allocated. An
 * event goes to its process if that life of it still runs, is kept back while it is stopped, and after
 * each one the invariants of the process are checked. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "tests/sim/sim.h"

#define MAX_VIRTUAL_US (600 * SIM_SECOND)
#define ARENA_BYTES    ((size_t)64 << 20)

/* ---- processes ---- */

void sim_proc_start(struct sim *s, struct sim_proc *p)
{
    p->life++;
    p->epoch = td_rng_next(&s->rng) | 1;
    p->up = true;
    p->stalled = p->silent = p->stepping = false;
    p->core_armed = p->state_armed = TD_NEVER;
    sim_trace(s, "%s starts, epoch %016" PRIx64, p->name, p->epoch);
    if (p->kind == SIM_ROUTER) {
        sim_router_start(s, p);
    } else {
        sim_node_start(s, p);
    }
    sim_net_start(s, p);
}

static void stop(struct sim *s, struct sim_proc *p)
{
    sim_net_stop(s, p);
    if (p->kind == SIM_ROUTER) {
        sim_router_stop(s, p);
    } else {
        sim_node_stop(s, p);
    }
    sim_list_fini(&p->held);
    p->up = p->stalled = false;
}

void sim_proc_crash(struct sim *s, struct sim_proc *p, bool silent)
{
    sim_trace(s, "%s dies%s", p->name, silent ? ", its host too" : "");
    p->silent = silent;
    s->deaths[s->n_deaths++ % SIM_MAX_DEATHS] =
        (struct sim_death){p->epoch, s->now, p->index, !silent};
    stop(s, p);
}

/* Who dialed the address since then was refused, or answered by a later life: nobody had to wait. */
static bool answered(const struct sim *s, const struct sim_death *d, int64_t since)
{
    const struct sim_proc *heir = &s->procs[d->proc];
    bool now = heir->up ? !heir->stalled : !heir->silent;
    for (uint32_t i = 0; i < SIM_MAX_DEATHS; i++) {
        now = now && (s->deaths[i].epoch == 0 || s->deaths[i].proc != d->proc ||
                      s->deaths[i].at_us < d->at_us || s->deaths[i].quick);
    }
    return now && s->smooth && heir->cont_us <= since;
}

int64_t sim_dead_for(const struct sim *s, const struct sim_proc *p, uint64_t epoch, bool *out_quick)
{
    for (uint32_t i = 0; i < SIM_MAX_DEATHS; i++) {
        const struct sim_death *d = &s->deaths[i];
        if (d->epoch == epoch && epoch != 0) {
            int64_t since = d->at_us > p->cont_us ? d->at_us : p->cont_us;
            *out_quick = answered(s, d, since);
            return s->now - since;
        }
    }
    return 0;
}

/* Twice a second everybody is asked. */
static void audit(struct sim *s)
{
    for (uint32_t i = 0; i < s->n_procs && !s->failed; i++) {
        struct sim_proc *p = &s->procs[i];
        if (p->up && !p->stalled && p->kind == SIM_ROUTER) {
            sim_router_audit(s, p);
        } else if (p->up && !p->stalled) {
            sim_node_audit(s, p);
        }
    }
    sim_post(
        s, (struct sim_ev){.at = s->now + 500 * SIM_MS, .type = SIM_EV_AUDIT, .proc = SIM_NOBODY});
}

void sim_proc_stall(struct sim *s, struct sim_proc *p)
{
    sim_trace(s, "%s is stopped", p->name);
    p->stalled = true;
}

void sim_proc_cont(struct sim *s, struct sim_proc *p)
{
    sim_trace(s, "%s goes on, %u events waited", p->name, p->held.n);
    p->stalled = false;
    p->cont_us = s->now;
    (void)sim_release(s, &p->held, s->now);
}

/* ---- the loop ---- */

static void core_tick(struct sim *s, struct sim_proc *p)
{
    if (p->core_armed > s->now) {
        return;
    }
    p->core_armed = TD_NEVER;
    if (p->kind == SIM_ROUTER) {
        struct rt_event ev = {.type = RT_EV_TICK};
        if (rt_core_next_deadline(p->rt) <= s->now) {
            sim_router_event(s, p, &ev);
        }
        sim_router_arm(s, p);
    } else {
        struct nd_event ev = {.type = ND_EV_TICK};
        if (p->node->ops->next_deadline(p->node->core) <= s->now) {
            sim_node_feed(s, p, &ev);
        }
        sim_node_arm(s, p);
    }
}

static void dispatch(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    switch (ev->type) {
    case SIM_EV_ACCEPT:
    case SIM_EV_DIALED:
    case SIM_EV_NO_DIAL:
    case SIM_EV_BYTES:
    case SIM_EV_WROTE:
    case SIM_EV_CLOSED:
    case SIM_EV_LINK_TICK:
        sim_net_event(s, p, ev);
        break;
    case SIM_EV_CORE_TICK:
        core_tick(s, p);
        break;
    case SIM_EV_STATE_TICK:
        if (p->state_armed <= s->now) {
            p->state_armed = TD_NEVER;
            sim_node_publish(s, p);
        }
        break;
    case SIM_EV_LAYER:
    case SIM_EV_STEP:
        sim_engine_event(s, p, ev);
        break;
    case SIM_EV_XFER:
        sim_node_xfer(s, p, ev);
        break;
    case SIM_EV_PACKET:
    case SIM_EV_PLACED:
    case SIM_EV_POSTED:
    case SIM_EV_XFAIL:
    case SIM_EV_XEND:
    case SIM_EV_FENCE:
        sim_xfer_event(s, p, ev);
        break;
    case SIM_EV_SUBMIT:
    case SIM_EV_CANCEL:
    case SIM_EV_TAKE:
    case SIM_EV_FAULT:
    case SIM_EV_HEAL:
    case SIM_EV_TIDY:
    case SIM_EV_AUDIT:
    case SIM_EV_TYPES:
        sim_fail(s, "an event of the world came to %s", p->name);
        break;
    }
}

static void check(struct sim *s, struct sim_proc *p)
{
    if (p->kind == SIM_ROUTER) {
        sim_router_check(s, p);
    } else {
        sim_node_check(s, p);
    }
}

static void settle(struct sim *s, struct sim_proc *p)
{
    if (p->up && !p->stalled && !s->failed) {
        sim_net_pump(s, p);
        check(s, p);
    }
}

static void world_event(struct sim *s, const struct sim_ev *ev)
{
    if (ev->type == SIM_EV_FAULT || ev->type == SIM_EV_HEAL) {
        sim_fault_event(s, ev);
    } else if (ev->type == SIM_EV_AUDIT) {
        audit(s);
        return;
    } else if (ev->a >= s->n_reqs) {
        sim_outside_event(s, ev);
    } else {
        sim_client_event(s, ev);
    }
    for (uint32_t i = 0; i < s->n_procs; i++) {
        settle(s, &s->procs[i]);
    }
}

static void play(struct sim *s, struct sim_ev *ev)
{
    s->n_events++;
    sim_hash(s, (uint64_t)ev->at);
    sim_hash(s, (uint64_t)ev->type << 32 | ev->proc);
    if (ev->type == SIM_EV_BYTES) {
        sim_hash(s, sim_hash_bytes(ev->data, ev->len));
    }
    if (ev->proc == SIM_NOBODY) {
        world_event(s, ev);
        sim_drop_event(ev);
        return;
    }
    struct sim_proc *p = &s->procs[ev->proc];
    if (!p->up || p->life != ev->life) {
        sim_net_stale(s, ev);
    } else if (p->stalled) {
        sim_keep(&p->held, ev);
        return;
    } else {
        dispatch(s, p, ev);
        settle(s, p);
    }
    sim_drop_event(ev);
}

static bool all_over(const struct sim *s)
{
    return s->n_ended == s->n_reqs && s->n_outs_over == s->n_outs && s->n_over == s->n_faults;
}

static void loop(struct sim *s)
{
    struct sim_ev ev;
    while (!s->failed && sim_pop(s, &ev)) {
        if (all_over(s) && ev.at > s->quiet_us + SIM_T_CLEAN) {
            s->now = s->quiet_us + SIM_T_CLEAN;
            sim_drop_event(&ev);
            return;
        }
        s->now = ev.at;
        play(s, &ev);
        if (s->n_events > SIM_MAX_EVENTS || s->now > MAX_VIRTUAL_US) {
            sim_fail(s, "does not come to an end: %u of %u requests have ended", s->n_ended,
                     s->n_reqs);
        }
    }
}

static void check_end(struct sim *s)
{
    sim_client_check_end(s);
    sim_outside_check_end(s);
    for (uint32_t i = 0; i < s->n_procs && !s->failed; i++) {
        struct sim_proc *p = &s->procs[i];
        if (!p->up || p->stalled) {
            sim_fail(s, "%s is not back", p->name);
        } else if (p->kind == SIM_ROUTER) {
            sim_router_check_idle(s, p);
        } else {
            sim_node_check_idle(s, p);
        }
    }
    if (!s->failed) {
        sim_net_check(s);
    }
    if (!s->failed && td_log_count(TD_LOG_ERROR) != s->errors) {
        sim_fail(s, "%" PRIu64 " lines of level error were logged",
                 td_log_count(TD_LOG_ERROR) - s->errors);
    }
}

/* ---- one seed ---- */

static struct sim world;

static void world_reset(struct sim *s, uint64_t seed, bool verbose)
{
    struct sim_proc keep[SIM_MAX_PROCS];
    memcpy(keep, s->procs, sizeof keep);
    struct sim_ev *heap = s->heap;
    uint32_t cap = s->cap_heap;
    memset(s, 0, sizeof *s);
    s->heap = heap;
    s->cap_heap = cap;
    s->seed = seed;
    s->verbose = verbose;
    s->rng.state = td_mix64(seed + 1);
    s->out_rng.state = td_mix64(seed + 1) ^ 0x6f757473696465;
    s->errors = td_log_count(TD_LOG_ERROR);
    for (uint32_t i = 0; i < SIM_MAX_PROCS; i++) {
        struct sim_proc *p = &s->procs[i];
        p->arena = keep[i].arena != NULL ? keep[i].arena : td_arena_create(ARENA_BYTES);
        p->out = keep[i].out;
        p->rt_acts = keep[i].rt_acts;
        p->node = keep[i].node != NULL ? keep[i].node : calloc(1, sizeof *p->node);
        TD_INSIST(p->arena != NULL && p->node != NULL);
        if (keep[i].arena == NULL) {
            td_buf_init(&p->out, TD_WIRE_MAX_BYTES);
            TD_INSIST(nd_actions_init(&p->node->acts, ND_MIN_ACTIONS) == TD_OK);
            TD_INSIST(i >= SIM_ROUTERS || rt_actions_init(&p->rt_acts) == TD_OK);
        }
    }
}

static void world_fini(struct sim *s)
{
    struct sim_ev ev;
    for (uint32_t i = 0; i < s->n_procs; i++) {
        if (s->procs[i].up) {
            stop(s, &s->procs[i]);
        }
        sim_list_fini(&s->procs[i].held);
    }
    while (sim_pop(s, &ev)) {
        sim_drop_event(&ev);
    }
    for (uint32_t i = 0; i < s->n_conns; i++) {
        sim_list_fini(&s->conns[i].blocked[0]);
        sim_list_fini(&s->conns[i].blocked[1]);
    }
    for (uint32_t i = 0; i < s->n_xconns; i++) {
        sim_list_fini(&s->xconns[i].blocked[0]);
        sim_list_fini(&s->xconns[i].blocked[1]);
    }
    for (uint32_t i = 0; i < SIM_MAX_OLD; i++) {
        free(s->old[i].bytes);
        s->old[i].bytes = NULL;
    }
    free(s->conns);
    free(s->xconns);
    s->conns = NULL;
    s->xconns = NULL;
}

struct sim_result sim_run(uint64_t seed, bool verbose)
{
    struct sim *s = &world;
    world_reset(s, seed, verbose);
    sim_plan(s);
    for (uint32_t i = 0; i < s->n_procs; i++) {
        sim_proc_start(s, &s->procs[i]);
    }
    audit(s);
    loop(s);
    if (!s->failed) {
        check_end(s);
    }
    struct sim_result r = {.ok = !s->failed,
                           .hash = s->hash,
                           .n_events = s->n_events,
                           .n_reqs = s->n_reqs,
                           .n_faults = s->n_faults,
                           .n_complete = s->n_complete,
                           .n_error = s->n_error,
                           .n_cancelled = s->n_cancelled,
                           .n_resets = s->n_resets,
                           .n_replays = s->n_replays,
                           .n_resumes = s->n_resumes,
                           .n_lost = s->n_lost,
                           .n_outs = s->n_outs,
                           .n_taken = s->n_taken,
                           .n_expired = s->n_expired,
                           .virtual_us = s->now};
    memcpy(r.why, s->why, sizeof r.why);
    world_fini(s);
    return r;
}
