#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "router/rt_core_int.h"

static struct rt_request_view view_of(const struct rt_core *c, const struct rt_entry *e)
{
    return (struct rt_request_view){
        .id = {.router_epoch = c->p.epoch, .counter = e->counter, .attempt = e->attempt},
        .phase = e->phase,
        .request_id = e->request_id,
        .tenant = e->tenant,
        .p_epoch = e->p_epoch,
        .d_epoch = e->d_epoch,
        .n_prompt = e->n_prompt,
        .n_output = e->n_output,
        .replays = e->replays,
        .decision = e->decision,
        .since_us = e->submit_us,
        .deadline_us = e->timer.slot != 0 ? e->timer.at_us : TD_NEVER,
    };
}

uint32_t rt_core_requests(const struct rt_core *c, struct rt_request_view *out, uint32_t cap)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->ledger.max && n < cap; i++) {
        if (c->ledger.entries[i].phase != RT_FREE) {
            out[n++] = view_of(c, &c->ledger.entries[i]);
        }
    }
    return n;
}

bool rt_core_request(const struct rt_core *c, uint64_t counter, struct rt_request_view *out)
{
    const struct rt_entry *e = rt_ledger_find(&c->ledger, counter);
    if (e != NULL) {
        *out = view_of(c, e);
    }
    return e != NULL;
}

bool rt_core_request_named(const struct rt_core *c, const char *request_id,
                           struct rt_request_view *out)
{
    for (uint32_t i = 0; i < c->ledger.max; i++) {
        const struct rt_entry *e = &c->ledger.entries[i];
        if (e->phase != RT_FREE && strcmp(e->request_id, request_id) == 0) {
            *out = view_of(c, e);
            return true;
        }
    }
    return false;
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

/* ---- decisions ---- */

static struct rt_decision_record *record_of(const struct rt_core *c, uint64_t number)
{
    bool kept = number > 0 && number <= c->n_decisions && c->n_decisions - number < RT_DECISIONS;
    return kept ? (struct rt_decision_record *)(uintptr_t)&c->decisions[number % RT_DECISIONS]
                : NULL;
}

const struct rt_decision_record *rt_core_decision(const struct rt_core *c, uint64_t number)
{
    return record_of(c, number);
}

static bool is_chosen(const struct rt_decision *d, const struct rt_candidate *a)
{
    return a->p_epoch == d->p->epoch && a->d_epoch == d->d->epoch;
}

/* The chosen one first, then by score: an insertion into a short sorted list. */
static void keep_best(const struct rt_decision *d, struct rt_decision_record *r)
{
    uint32_t n = d->n_candidates < RT_MAX_CANDIDATES ? d->n_candidates : RT_MAX_CANDIDATES;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct rt_candidate *a = &d->candidates[i];
        uint32_t at = kept;
        while (at > 0 && !is_chosen(d, &r->candidates[at - 1]) &&
               (is_chosen(d, a) || rt_candidate_better(a, &r->candidates[at - 1]))) {
            at--;
        }
        if (at < RT_DECISION_PAIRS) {
            uint32_t tail = (kept < RT_DECISION_PAIRS ? kept : RT_DECISION_PAIRS - 1) - at;
            memmove(&r->candidates[at + 1], &r->candidates[at], tail * sizeof *a);
            r->candidates[at] = *a;
            kept += kept < RT_DECISION_PAIRS ? 1 : 0;
        }
    }
    r->n_candidates = d->n_candidates;
}

static void note_skipped(const struct rt_nodes *ns, struct rt_decision_record *r)
{
    for (uint32_t i = 0, seen = 0; i < RT_MAX_NODES && seen < ns->count; i++) {
        const struct rt_node *n = &ns->list[i];
        const char *why = n->epoch != 0 ? rt_node_why_not(n) : "";
        seen += n->epoch != 0 ? 1 : 0;
        if (why[0] == 0) {
            continue;
        }
        if (r->n_skipped < RT_DECISION_SKIPPED) {
            struct rt_skipped *s = &r->skipped[r->n_skipped];
            (void)snprintf(s->name, sizeof s->name, "%.63s", n->name);
            s->why = why;
        }
        r->n_skipped++;
    }
}

void rt__record_decision(struct rt_core *c, struct rt_entry *e)
{
    const struct rt_decision *dec = &c->decision;
    uint64_t number = ++c->n_decisions;
    struct rt_decision_record *r = &c->decisions[number % RT_DECISIONS];
    memset(r, 0, sizeof *r);
    r->number = number;
    r->previous = e->decision;
    r->counter = e->counter;
    r->attempt = e->attempt;
    r->submit_us = e->submit_us;
    r->at_us = c->now_us;
    r->predicted_ttft_us = dec->predicted_ttft_us;
    r->predicted_us = dec->predicted_us;
    (void)snprintf(r->p_name, sizeof r->p_name, "%.63s", dec->p->name);
    (void)snprintf(r->d_name, sizeof r->d_name, "%.63s", dec->d->name);
    keep_best(dec, r);
    note_skipped(&c->nodes, r);
    e->decision = number;
}

void rt__record_failure(struct rt_core *c, const struct rt_entry *e, td_err err)
{
    struct rt_decision_record *r = record_of(c, e->decision);
    if (r != NULL && r->attempt == e->attempt) {
        r->failed_us = c->now_us;
        r->failure = err;
    }
}

/* ---- invariants ---- */

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
