#define TD_LOG_ROOM "router"
#include "router/rt_ledger.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/map.h"
#include "common/base/mem.h"

static const struct {
    const char *name;
    unsigned to; /* bit set of phases that may follow */
} phases[RT_PHASES] = {
    [RT_FREE] = {"free", 1u << RT_QUEUED},
    [RT_QUEUED] = {"queued", 1u << RT_PREFILL | 1u << RT_CLOSING | 1u << RT_FREE},
    [RT_PREFILL] = {"prefill", 1u << RT_DECODE | 1u << RT_QUEUED | 1u << RT_CLOSING},
    [RT_DECODE] = {"decode", 1u << RT_QUEUED | 1u << RT_CLOSING},
    [RT_CLOSING] = {"closing", 1u << RT_FREE},
};

const char *rt_phase_name(enum rt_phase p)
{
    return p < RT_PHASES ? phases[p].name : "?";
}

static struct td_key key_of(uint64_t counter)
{
    return (struct td_key){.a = counter, .b = 0};
}

td_err rt_ledger_init(struct rt_ledger *l, uint32_t max)
{
    memset(l, 0, sizeof *l);
    l->entries = td_zalloc(max, sizeof *l->entries);
    l->free_slots = td_zalloc(max, sizeof *l->free_slots);
    l->by_counter = td_map_create(max, 1);
    if (l->entries == NULL || l->free_slots == NULL || l->by_counter == NULL) {
        rt_ledger_fini(l);
        return TD_ERR_NO_MEMORY;
    }
    l->max = max;
    l->next_counter = 1;
    for (uint32_t i = 0; i < max; i++) {
        l->entries[i].slot = i;
        l->free_slots[l->n_free++] = max - 1 - i;
    }
    l->by_phase[RT_FREE] = max;
    return TD_OK;
}

void rt_ledger_fini(struct rt_ledger *l)
{
    for (uint32_t i = 0; l->entries != NULL && i < l->max; i++) {
        free(l->entries[i].tokens);
        free(l->entries[i].bias);
        free(l->entries[i].tracestate);
    }
    free(l->entries);
    free(l->free_slots);
    l->by_counter = td_map_destroy(l->by_counter);
    memset(l, 0, sizeof *l);
}

static void copy_text(char *dst, size_t cap, const char *src)
{
    (void)snprintf(dst, cap, "%s", src != NULL ? src : "");
}

static td_err copy_arrays(struct rt_entry *e, const struct rt_submit *s)
{
    e->tokens = td_zalloc((size_t)s->n_prompt + s->sampling.max_tokens, sizeof *e->tokens);
    if (e->tokens == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    memcpy(e->tokens, s->prompt, s->n_prompt * sizeof *e->tokens);
    if (s->sampling.n_bias > 0) {
        e->bias = td_zalloc(s->sampling.n_bias, sizeof *e->bias);
        if (e->bias == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        memcpy(e->bias, s->sampling.bias, s->sampling.n_bias * sizeof *e->bias);
    }
    if (s->tracestate != NULL && s->tracestate[0] != '\0') {
        e->tracestate = td_strdup(s->tracestate);
        return e->tracestate != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

static void reset_entry(struct rt_entry *e)
{
    uint32_t slot = e->slot;
    free(e->tokens);
    free(e->bias);
    free(e->tracestate);
    memset(e, 0, sizeof *e);
    e->slot = slot;
}

td_err rt_ledger_open(struct rt_ledger *l, const struct rt_submit *s, struct rt_entry **out_entry)
{
    if (l->n_free == 0) {
        return TD_ERR_OVERLOADED;
    }
    struct rt_entry *e = &l->entries[l->free_slots[l->n_free - 1]];
    td_err err = copy_arrays(e, s);
    if (err == TD_OK) {
        err = td_map_put(l->by_counter, key_of(l->next_counter), e);
    }
    if (err != TD_OK) {
        reset_entry(e);
        return err;
    }
    l->n_free--;
    e->counter = l->next_counter++;
    e->n_prompt = s->n_prompt;
    e->sampling = s->sampling;
    e->sampling.bias = e->bias;
    e->priority = s->priority;
    e->only_p = s->only_p;
    e->only_d = s->only_d;
    e->park = s->park;
    e->user = s->user;
    copy_text(e->tenant, sizeof e->tenant, s->tenant);
    copy_text(e->traceparent, sizeof e->traceparent, s->traceparent);
    copy_text(e->request_id, sizeof e->request_id, s->request_id);
    memcpy(e->cache_salt, s->cache_salt, sizeof e->cache_salt);
    memcpy(e->nonce, s->nonce, sizeof e->nonce);
    rt_ledger_set_phase(l, e, RT_QUEUED);
    *out_entry = e;
    return TD_OK;
}

void rt_ledger_close(struct rt_ledger *l, struct rt_entry *e)
{
    TD_INSIST(e->timer.slot == 0 && e->order.slot == 0);
    rt_ledger_set_phase(l, e, RT_FREE);
    (void)td_map_del(l->by_counter, key_of(e->counter));
    reset_entry(e);
    l->free_slots[l->n_free++] = e->slot;
}

struct rt_entry *rt_ledger_find(const struct rt_ledger *l, uint64_t counter)
{
    return td_map_get(l->by_counter, key_of(counter));
}

void rt_ledger_set_phase(struct rt_ledger *l, struct rt_entry *e, enum rt_phase to)
{
    TD_INSIST(to < RT_PHASES && (phases[e->phase].to & 1u << to) != 0);
    TD_LOG(DEBUG, "request phase", "req=%s counter=%" PRIu64 " attempt=%u from=%s to=%s",
           e->request_id, e->counter, e->attempt, phases[e->phase].name, phases[to].name);
    l->by_phase[e->phase]--;
    l->by_phase[to]++;
    e->phase = to;
}
