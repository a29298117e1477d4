#include <stdio.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/io/link_int.h"

/* Targets: whom a router dials, and when again. */

#define SLOW_ATTEMPTS 4u /* where the backoff of a refused target starts */
#define HELD_ATTEMPTS 2u /* the backoff grows no further while a session waits to be resumed */

void link_target_due(struct td_link *l, uint32_t slot)
{
    struct link_target *t = &l->targets[slot];
    t->due = true;
    if (!t->dirty) {
        t->dirty = true;
        t->next_dirty = l->dirty_targets;
        l->dirty_targets = slot;
    }
}

void link_target_slow(struct link_target *t)
{
    if (t->attempts < SLOW_ATTEMPTS) {
        t->attempts = SLOW_ATTEMPTS;
    }
}

/* The next dial: at once after a connection that had worked, else after a backoff that doubles,
 * spread by +-25 %. */
void link_target_retry(struct td_link *l, struct link_target *t, bool at_once)
{
    uint32_t slot = t->timer.slot;
    if (!t->used || t->removed) {
        t->used = false;
        return;
    }
    if (at_once && t->attempts == 0) {
        link_target_due(l, slot);
        return;
    }
    uint32_t steps = t->attempts;
    if (t->session != LINK_NONE && steps > HELD_ATTEMPTS) {
        steps = HELD_ATTEMPTS;
    }
    int64_t wait = l->backoff_min << (steps < 16 ? steps : 16);
    wait = wait < l->backoff_max ? wait : l->backoff_max;
    uint64_t draw = td_mix64(l->jitter_seed + ++l->draws * 0x9e3779b97f4a7c15ull + slot);
    wait = wait * 3 / 4 + (int64_t)(draw % (uint64_t)(wait / 2 + 1));
    t->attempts++;
    link_arm(l, &t->timer, l->now + wait);
}

td_err td_link_target_add(struct td_link *l, int64_t now_us, uint32_t *out_target)
{
    l->now = now_us;
    for (uint32_t i = 0; i < l->max_targets; i++) {
        struct link_target *t = &l->targets[i];
        if (!t->used) {
            t->used = true;
            t->removed = t->dialing = false;
            t->conn = t->session = LINK_NONE;
            t->attempts = t->refusals = 0;
            link_target_due(l, i);
            *out_target = i;
            return TD_OK;
        }
    }
    return TD_ERR_FULL;
}

void td_link_target_remove(struct td_link *l, int64_t now_us, uint32_t target)
{
    TD_REQUIRE(target < l->max_targets && l->targets[target].used);
    struct link_target *t = &l->targets[target];
    l->now = now_us;
    t->removed = true;
    t->due = false;
    link_arm(l, &t->timer, TD_NEVER);
    if (t->session != LINK_NONE) {
        struct link_session *s = &l->sessions[t->session];
        uint32_t conn = s->conn;
        if (conn != LINK_NONE) {
            link_conn_put_reason(l, &l->conns[conn], LINK_BYE, TD_ERR_CLOSED,
                                 "the router no longer wants this node");
            s->conn = LINK_NONE;
            l->conns[conn].session = LINK_NONE;
            link_conn_flush(l, &l->conns[conn]);
        }
        link_session_lost(l, s, TD_ERR_CLOSED, "target removed");
    } else if (t->conn != LINK_NONE) {
        link_conn_kill(l, &l->conns[t->conn]);
    }
    if (t->conn == LINK_NONE && !t->dialing) {
        t->used = false;
    }
}

static void dial_answered(struct td_link *l, int64_t now_us, uint32_t target)
{
    TD_REQUIRE(target < l->max_targets);
    l->now = now_us;
    l->targets[target].dialing = false;
}

void td_link_dial_failed(struct td_link *l, int64_t now_us, uint32_t target)
{
    dial_answered(l, now_us, target);
    link_target_retry(l, &l->targets[target], false);
}

void td_link_dial_refused(struct td_link *l, int64_t now_us, uint32_t target)
{
    dial_answered(l, now_us, target);
    struct link_target *t = &l->targets[target];
    t->refusals++;
    if (t->refusals >= TD_LINK_REFUSALS && t->session != LINK_NONE) {
        link_session_lost(l, &l->sessions[t->session], TD_ERR_PEER_LOST,
                          "nobody listens at its address any more: the process has ended");
    }
    link_target_retry(l, t, false);
}
