#define TD_LOG_ROOM "node"
#include "common/node/work.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/map.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

struct grave {
    struct td_work_id id;
    enum nd_grave why;
};

struct nd_works {
    uint8_t *slots; /* owned [capacity * work_bytes] */
    size_t work_bytes;
    uint32_t capacity, n;
    uint32_t *free_slots; /* owned [capacity], a stack */
    struct td_map *by_id; /* owned: -> index + 1 */
    struct td_heap *timers;
    struct nd_spans *spans; /* prompts and biases */
    struct grave *graves;   /* owned [ND_TOMBSTONES], a ring */
    uint32_t n_graves, next_grave;
    uint64_t arrivals;
};

static struct nd_work *slot_at(const struct nd_works *w, uint32_t i)
{
    return (struct nd_work *)(void *)(w->slots + (size_t)i * w->work_bytes);
}

/* Attempt and choice are mixed into the epoch; what the map finds is compared with the whole id. */
static struct td_key key_of(const struct td_work_id *id)
{
    uint64_t tries = (uint64_t)id->attempt << 32 | id->choice;
    return (struct td_key){id->router_epoch ^ td_mix64(tries + 1), id->counter};
}

td_err nd_works_create(const struct nd_works_params *p, struct nd_works **out_works)
{
    TD_REQUIRE(p->work_bytes >= sizeof(struct nd_work) && p->work_bytes % 16 == 0);
    if (p->capacity == 0 || p->capacity >= ND_MAX_WORKS) {
        return TD_ERR_CONFIG;
    }
    struct nd_works *w = td_zalloc(1, sizeof *w);
    if (w == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    w->work_bytes = p->work_bytes;
    w->capacity = p->capacity;
    w->slots = td_zalloc(p->capacity, p->work_bytes);
    w->free_slots = td_zalloc(p->capacity, sizeof *w->free_slots);
    w->by_id = td_map_create(p->capacity, 0);
    w->timers = td_heap_create(p->capacity);
    w->spans = nd_spans_create(p->prompt_bytes);
    w->graves = td_zalloc(ND_TOMBSTONES, sizeof *w->graves);
    if (w->slots == NULL || w->free_slots == NULL || w->by_id == NULL || w->timers == NULL ||
        w->spans == NULL || w->graves == NULL) {
        (void)nd_works_destroy(w);
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < p->capacity; i++) {
        w->free_slots[i] = p->capacity - 1 - i;
        slot_at(w, i)->ref = (struct td_seq_ref){i, 1};
    }
    *out_works = w;
    return TD_OK;
}

struct nd_works *nd_works_destroy(struct nd_works *w)
{
    if (w != NULL) {
        free(w->slots);
        free(w->free_slots);
        (void)td_map_destroy(w->by_id);
        (void)td_heap_destroy(w->timers);
        (void)nd_spans_destroy(w->spans);
        free(w->graves);
        free(w);
    }
    return NULL;
}

static td_err tokens_check(const struct nd_core_params *p, const struct td_wire_request *r)
{
    for (uint32_t i = 0; i < r->n_prompt; i++) {
        if (r->prompt[i] < 0 || (uint32_t)r->prompt[i] >= p->engine->n_vocab) {
            return TD_ERR_BAD_REQUEST;
        }
    }
    return TD_OK;
}

td_err nd_request_check(const struct nd_core_params *p, const struct td_wire_request *r)
{
    const struct td_engine_info *e = p->engine;
    if (r->numerics_id != e->numerics_id || r->layout_id != p->layout_id) {
        return TD_ERR_NO_PAIR;
    }
    if (r->kv_group != e->layout.group || (r->adapter != NULL && r->adapter[0] != '\0')) {
        return TD_ERR_UNSUPPORTED;
    }
    if (r->prompt == NULL || r->n_prompt == 0 || r->n_replayed >= r->n_prompt ||
        r->sampling.max_tokens <= r->n_replayed ||
        r->sampling.n_stop_ids > TD_SAMPLING_MAX_STOP_IDS ||
        r->sampling.n_bias > TD_SAMPLING_MAX_BIAS) {
        return TD_ERR_BAD_REQUEST;
    }
    if (r->n_prompt >= e->max_model_len) {
        return TD_ERR_CONTEXT_LENGTH;
    }
    if (r->n_prompt / e->layout.block_tok >= e->n_blocks) {
        return TD_ERR_CONTEXT_LENGTH; /* not NO_CAPACITY: there never will be more room */
    }
    return tokens_check(p, r);
}

bool nd_name_is_plain(const char *request_id)
{
    size_t len = request_id != NULL ? strlen(request_id) : 0;
    bool plain = len > 0;
    for (size_t i = 0; plain && i < len; i++) {
        char ch = request_id[i];
        plain = (ch >= '0' && ch <= '9') || (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') ||
                ch == '-' || ch == '_' || ch == '.' || ch == ':';
    }
    return plain;
}

/* The name in log lines: the router's, if it is plain, else the work id. */
static void name_work(struct nd_work *work, const char *request_id)
{
    if (nd_name_is_plain(request_id) && strlen(request_id) < sizeof work->req) {
        (void)snprintf(work->req, sizeof work->req, "%s", request_id);
    } else {
        (void)snprintf(work->req, sizeof work->req, "%016" PRIx64 "-%" PRIu64,
                       work->id.router_epoch, work->id.counter);
    }
}

/* Anything but a traceparent's characters is not one. */
static void keep_trace(struct nd_work *work, const char *traceparent)
{
    size_t len = traceparent != NULL ? strlen(traceparent) : 0;
    if (len < sizeof work->trace &&
        strspn(len > 0 ? traceparent : "", "0123456789abcdef-") == len) {
        memcpy(work->trace, len > 0 ? traceparent : "", len + 1);
    }
}

/* Without room it is left out: a request is worth more than its trace's vendor data. */
static void keep_state(struct nd_works *w, struct nd_work *work, const char *tracestate)
{
    size_t len = tracestate != NULL ? strlen(tracestate) : 0;
    if (work->trace[0] != 0 && len > 0 && len < ND_STATE_LEN) {
        TD_IGNORE(nd_spans_put(w->spans, tracestate, len, &work->state));
    }
}

const char *nd_work_trace(const struct nd_work *work)
{
    return strlen(work->trace) >= 35 ? work->trace + 3 : "";
}

void nd_work_done(const struct nd_works *w, const struct nd_work *work, struct nd_done *out)
{
    out->id = work->id;
    memcpy(out->req, work->req, sizeof work->req);
    memcpy(out->trace, work->trace, sizeof work->trace);
    nd_spans_read(w->spans, &work->state, 0, work->state.bytes,
                  out->state); /* keep_state: it fits */
    out->arrived_us = work->arrived_us;
    out->n_prompt = work->n_prompt;
    out->max_tokens = work->sampling.max_tokens;
}

static td_err keep_request(struct nd_works *w, struct nd_work *work,
                           const struct td_wire_request *r)
{
    TD_TRY(
        nd_spans_put(w->spans, r->prompt, (size_t)r->n_prompt * sizeof *r->prompt, &work->prompt));
    if (r->sampling.n_bias > 0) {
        td_err e = nd_spans_put(w->spans, r->sampling.bias,
                                (size_t)r->sampling.n_bias * sizeof *r->sampling.bias, &work->bias);
        if (e != TD_OK) {
            nd_spans_drop(w->spans, &work->prompt);
            return e;
        }
    }
    return TD_OK;
}

td_err nd_works_open(struct nd_works *w, const struct td_wire_request *r, int64_t now_us,
                     struct nd_work **out_work)
{
    if (td_map_get(w->by_id, key_of(&r->id)) != NULL) {
        return TD_ERR_STALE;
    }
    if (w->n == w->capacity) {
        return TD_ERR_OVERLOADED;
    }
    uint32_t i = w->free_slots[w->capacity - w->n - 1];
    struct nd_work *work = slot_at(w, i);
    struct td_seq_ref ref = work->ref;
    memset((void *)work, 0, w->work_bytes);
    work->ref = ref;
    TD_TRY(keep_request(w, work, r));
    TD_INSIST(td_map_put(w->by_id, key_of(&r->id), (void *)(uintptr_t)(i + 1)) == TD_OK);
    w->n++;
    int64_t budget = (int64_t)r->budget_ms * 1000;
    work->used = true;
    work->id = r->id;
    work->arrived_us = work->since_us = now_us;
    work->budget_us = now_us + (budget < ND_MAX_BUDGET ? budget : ND_MAX_BUDGET);
    work->number = w->arrivals++;
    work->priority = r->priority;
    work->n_prompt = r->n_prompt;
    work->n_replayed = r->n_replayed;
    work->sampling = r->sampling;
    work->sampling.bias = NULL;
    name_work(work, r->request_id);
    keep_trace(work, r->traceparent);
    keep_state(w, work, r->tracestate);
    *out_work = work;
    return TD_OK;
}

void nd_works_close(struct nd_works *w, struct nd_work *work)
{
    TD_REQUIRE(work->used);
    td_heap_remove(w->timers, &work->timer);
    nd_spans_drop(w->spans, &work->prompt);
    nd_spans_drop(w->spans, &work->bias);
    nd_spans_drop(w->spans, &work->state);
    TD_INSIST(td_map_del(w->by_id, key_of(&work->id)) != NULL);
    if (nd_works_buried(w, &work->id) == ND_GRAVE_NONE) {
        nd_works_bury(w, &work->id, ND_GRAVE_ENDED);
    }
    work->used = false;
    work->ref.generation++;
    w->n--;
    w->free_slots[w->capacity - w->n - 1] = work->ref.index;
}

struct nd_work *nd_works_find(const struct nd_works *w, const struct td_work_id *id)
{
    uintptr_t i = (uintptr_t)td_map_get(w->by_id, key_of(id));
    if (i == 0) {
        return NULL;
    }
    struct nd_work *work = slot_at(w, (uint32_t)(i - 1));
    return td_work_id_eq(&work->id, id) ? work : NULL;
}

struct nd_work *nd_works_at(const struct nd_works *w, struct td_seq_ref ref)
{
    if (ref.index >= w->capacity) {
        return NULL;
    }
    struct nd_work *work = slot_at(w, ref.index);
    return work->used && work->ref.generation == ref.generation ? work : NULL;
}

uint64_t nd_work_handle(const struct nd_work *work)
{
    return (uint64_t)work->ref.generation << 32 | (work->ref.index + 1);
}

struct nd_work *nd_works_by_handle(const struct nd_works *w, uint64_t handle)
{
    uint32_t index = (uint32_t)handle - 1;
    return nd_works_at(w, (struct td_seq_ref){index, (uint32_t)(handle >> 32)});
}

struct nd_work *nd_works_slot(const struct nd_works *w, uint32_t i)
{
    TD_REQUIRE(i < w->capacity);
    return slot_at(w, i)->used ? slot_at(w, i) : NULL;
}

uint32_t nd_works_capacity(const struct nd_works *w)
{
    return w->capacity;
}

uint32_t nd_works_count(const struct nd_works *w)
{
    return w->n;
}

void nd_works_arm(struct nd_works *w, struct nd_work *work, int64_t deadline_us, bool past_budget)
{
    if (!past_budget && deadline_us > work->budget_us) {
        deadline_us = work->budget_us;
    }
    TD_INSIST(td_heap_set(w->timers, &work->timer, deadline_us) == TD_OK);
}

void nd_works_disarm(struct nd_works *w, struct nd_work *work)
{
    td_heap_remove(w->timers, &work->timer);
}

struct nd_work *nd_works_due(struct nd_works *w, int64_t now_us)
{
    struct td_heap_node *n = td_heap_pop_due(w->timers, now_us);
    return n != NULL ? td_heap_entry(n, struct nd_work, timer) : NULL;
}

int64_t nd_works_next_deadline(const struct nd_works *w)
{
    const struct td_heap_node *n = td_heap_peek(w->timers);
    return n != NULL ? n->at_us : TD_NEVER;
}

void nd_works_bury(struct nd_works *w, const struct td_work_id *id, enum nd_grave why)
{
    w->graves[w->next_grave] = (struct grave){*id, why};
    w->next_grave = (w->next_grave + 1) % ND_TOMBSTONES;
    if (w->n_graves < ND_TOMBSTONES) {
        w->n_graves++;
    }
}

enum nd_grave nd_works_buried(const struct nd_works *w, const struct td_work_id *id)
{
    for (uint32_t i = 1; i <= w->n_graves; i++) {
        const struct grave *g = &w->graves[(w->next_grave + ND_TOMBSTONES - i) % ND_TOMBSTONES];
        if (td_work_id_eq(&g->id, id)) {
            return g->why;
        }
    }
    return ND_GRAVE_NONE;
}

const int32_t *nd_work_tokens(const struct nd_works *w, const struct nd_work *work, uint32_t pos,
                              uint32_t n, struct nd_actions *out)
{
    int32_t *ids = nd_actions_copy(out, NULL, (size_t)n * sizeof *ids);
    if (ids != NULL) {
        nd_spans_read(w->spans, &work->prompt, pos * (uint32_t)sizeof *ids,
                      n * (uint32_t)sizeof *ids, ids);
    }
    return ids;
}

void nd_work_seq_set(const struct nd_works *w, const struct nd_work *work, uint32_t slot,
                     const int32_t *first_token, struct nd_actions *out)
{
    struct td_sampling_state *s = nd_actions_copy(out, NULL, sizeof *s);
    int32_t *ids = nd_actions_copy(out, NULL, ((size_t)work->n_prompt + 1) * sizeof *ids);
    struct td_logit_bias *bias = nd_actions_copy(out, NULL, work->bias.bytes);
    if (s == NULL || ids == NULL || bias == NULL) {
        return;
    }
    nd_spans_read(w->spans, &work->prompt, 0, work->prompt.bytes, ids);
    nd_spans_read(w->spans, &work->bias, 0, work->bias.bytes, bias);
    uint32_t n_own = work->n_prompt - work->n_replayed;
    s->p = work->sampling;
    s->p.bias = work->sampling.n_bias > 0 ? bias : NULL;
    s->prompt = ids;
    s->n_prompt = n_own;
    s->output = ids + n_own;
    s->n_output = work->n_replayed;
    if (first_token != NULL) {
        ids[work->n_prompt] = *first_token;
        s->n_output++;
    }
    struct nd_action *a = nd_actions_add(out, ND_DO_SEQ_SET);
    a->slot = slot;
    a->sampling = s;
}

void nd_work_drop_prompt(struct nd_works *w, struct nd_work *work)
{
    nd_spans_drop(w->spans, &work->prompt);
}

enum td_finish nd_work_finish(const struct nd_work *work, uint32_t max_model_len, uint32_t index,
                              int32_t token)
{
    const struct td_sampling_params *p = &work->sampling;
    for (uint32_t i = 0; i < p->n_stop_ids && index >= p->min_tokens; i++) {
        if (p->stop_ids[i] == token) {
            return TD_FINISH_STOP;
        }
    }
    uint64_t length = (uint64_t)(work->n_prompt - work->n_replayed) + index + 1;
    return index + 1 >= p->max_tokens || length >= max_model_len ? TD_FINISH_LENGTH
                                                                 : TD_FINISH_NONE;
}

uint32_t nd_work_max_output(const struct nd_work *work, uint32_t max_model_len)
{
    uint32_t room = max_model_len - (work->n_prompt - work->n_replayed);
    return room < work->sampling.max_tokens ? room : work->sampling.max_tokens;
}

td_err nd_works_check(const struct nd_works *w)
{
    uint32_t used = 0;
    size_t armed = 0;
    for (uint32_t i = 0; i < w->capacity; i++) {
        const struct nd_work *work = slot_at(w, i);
        used += work->used;
        armed += work->timer.slot != 0;
        if (work->ref.index != i || (work->used && nd_works_find(w, &work->id) != work) ||
            (!work->used && (work->timer.slot != 0 || work->prompt.first != 0))) {
            TD_LOG(ERROR, "work record is inconsistent", "index=%u req=%s", i, work->req);
            return TD_ERR_INTERNAL;
        }
    }
    bool pages = w->n > 0 || nd_spans_free_pages(w->spans) == nd_spans_pages(w->spans);
    if (used != w->n || used != td_map_count(w->by_id) || armed != td_heap_count(w->timers) ||
        !pages) {
        TD_LOG(ERROR, "works do not add up", "used=%u kept=%u armed=%zu", used, w->n, armed);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
}
