#include "common/base/assert.h"
#include "common/base/clock.h"
#include "router/rt_core_int.h"

uint32_t rt_core_requests(const struct rt_core *c, struct rt_request_view *out, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ledger.max && n < cap; i++) {
        const struct rt_entry *e = &c->ledger.entries[i];
        if (e->phase == RT_FREE) {
            continue;
        }
        out[n++] = (struct rt_request_view){
            .id = {.router_epoch = c->p.epoch, .counter = e->counter, .attempt = e->attempt},
            .phase = e->phase,
            .request_id = e->request_id,
            .tenant = e->tenant,
            .p_epoch = e->p_epoch,
            .d_epoch = e->d_epoch,
            .n_prompt = e->n_prompt,
            .n_output = e->n_output,
            .replays = e->replays,
            .since_us = e->submit_us,
            .deadline_us = e->timer.slot != 0 ? e->timer.at_us : TD_NEVER,
        };
    }
    return n;
}

uint32_t rt_core_count(const struct rt_core *c, enum rt_phase phase)
{
    return phase < RT_PHASES ? c->ledger.by_phase[phase] : 0;
}

uint64_t rt_core_queued_bytes(const struct rt_core *c)
{
    return c->queued_bytes;
}

const struct rt_nodes *rt_core_nodes(const struct rt_core *c)
{
    return &c->nodes;
}

const struct rt_decision_record *rt_core_decision(const struct rt_core *c, uint64_t counter)
{
    for (uint64_t back = 1; back <= RT_DECISIONS && back <= c->n_decisions; back++) {
        const struct rt_decision_record *r = &c->decisions[(c->n_decisions - back) % RT_DECISIONS];
        if (r->counter == counter) {
            return r;
        }
    }
    return NULL;
}

static bool entry_is_sound(const struct rt_core *c, const struct rt_entry *e)
{
    struct rt_nodes *nodes = (struct rt_nodes *)(uintptr_t)&c->nodes; /* looked up, not changed */
    if (e->phase == RT_FREE) {
        return e->timer.slot == 0 && e->order.slot == 0;
    }
    if (e->timer.slot == 0 || (e->order.slot != 0) != (e->phase == RT_QUEUED)) {
        return false;
    }
    bool p_known = e->p_epoch == 0 || rt_nodes_find(nodes, e->p_epoch) != NULL;
    bool d_known = e->d_epoch == 0 || rt_nodes_find(nodes, e->d_epoch) != NULL;
    return p_known && d_known && e->n_output <= e->sampling.max_tokens;
}

td_err rt_core_check(const struct rt_core *c)
{
    uint32_t seen[RT_PHASES] = {0};
    for (uint32_t i = 0; i < c->ledger.max; i++) {
        const struct rt_entry *e = &c->ledger.entries[i];
        seen[e->phase]++;
        if (!entry_is_sound(c, e)) {
            return TD_ERR_INTERNAL;
        }
    }
    for (uint32_t p = 0; p < RT_PHASES; p++) {
        if (seen[p] != c->ledger.by_phase[p]) {
            return TD_ERR_INTERNAL;
        }
    }
    return td_heap_count(c->queue) == seen[RT_QUEUED] ? TD_OK : TD_ERR_INTERNAL;
}
