#define TD_LOG_ROOM "node"
#include "common/node/core.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"

/* Of what the actions of one event may point at; grown on demand, kept across resets. */
#define ACTIONS_ARENA_BYTES ((size_t)512 << 20)

td_err nd_actions_init(struct nd_actions *a, uint32_t max)
{
    TD_REQUIRE(a != NULL && max >= ND_MIN_ACTIONS);
    struct td_arena *arena = td_arena_create(ACTIONS_ARENA_BYTES);
    struct nd_action *list = td_zalloc(max, sizeof *list);
    if (arena == NULL || list == NULL) {
        (void)td_arena_destroy(arena);
        free(list);
        return TD_ERR_NO_MEMORY;
    }
    *a = (struct nd_actions){.list = list, .max = max, .arena = arena};
    return TD_OK;
}

void nd_actions_fini(struct nd_actions *a)
{
    if (a != NULL) {
        free(a->list);
        a->arena = td_arena_destroy(a->arena);
        *a = (struct nd_actions){0};
    }
}

void nd_actions_reset(struct nd_actions *a)
{
    a->n = 0;
    a->overflow = false;
    td_arena_reset(a->arena);
}

struct nd_action *nd_actions_add(struct nd_actions *a, enum nd_action_type type)
{
    if (a->n == a->max) {
        a->overflow = true;
        a->n--;
    }
    struct nd_action *x = &a->list[a->n++];
    *x = (struct nd_action){.type = type};
    return x;
}

void *nd_actions_copy(struct nd_actions *a, const void *src, size_t bytes)
{
    void *p = src != NULL ? td_arena_copy(a->arena, src, bytes) : td_arena_alloc(a->arena, bytes);
    if (p == NULL) {
        a->overflow = true;
    }
    return p;
}

/* A message nobody sends: what a caller fills when the arena is full, so that it needs no check of
 * its own; `overflow` tells the shell. */
static struct td_wire_msg *new_msg(struct nd_actions *a, enum td_wire_type type)
{
    static _Thread_local struct td_wire_msg nowhere;
    struct td_wire_msg *m = nd_actions_copy(a, NULL, sizeof *m);
    if (m == NULL) {
        m = &nowhere;
        *m = (struct td_wire_msg){0};
    }
    m->type = type;
    return m;
}

struct td_wire_msg *nd_actions_send(struct nd_actions *a, uint64_t router_epoch,
                                    enum td_wire_type type)
{
    struct td_wire_msg *m = new_msg(a, type);
    struct nd_action *x = nd_actions_add(a, ND_DO_SEND);
    x->router_epoch = router_epoch;
    x->msg = m;
    return m;
}

struct td_wire_msg *nd_actions_peer_send(struct nd_actions *a, uint64_t epoch,
                                         enum td_wire_type type)
{
    struct td_wire_msg *m = new_msg(a, type);
    struct nd_action *x = nd_actions_add(a, ND_DO_XFER);
    x->cmd.type = TD_XFER_SEND;
    x->cmd.epoch = epoch;
    x->msg = m;
    return m;
}

void nd_actions_observe(struct nd_actions *a, enum nd_metric metric, double value)
{
    struct nd_action *x = nd_actions_add(a, ND_DO_OBSERVE);
    x->metric = metric;
    x->value = value;
}

struct nd_done *nd_actions_done(struct nd_actions *a)
{
    static _Thread_local struct nd_done nowhere;
    struct nd_done *d = nd_actions_copy(a, NULL, sizeof *d);
    if (d == NULL) {
        return &nowhere;
    }
    memset(d, 0, sizeof *d);
    nd_actions_add(a, ND_DO_DONE)->done = d;
    return d;
}

td_err nd_core_params_check(const struct nd_core_params *p)
{
    const struct td_engine_info *e = p->engine;
    uint32_t bt = e->layout.block_tok;
    const char *why = NULL;
    if (bt == 0 || e->n_blocks == 0 || e->n_layers == 0 || e->n_vocab == 0 || e->max_rows == 0 ||
        e->max_slots == 0 || e->max_model_len == 0) {
        why = "the engine lacks a capacity";
    } else if (p->epoch == 0 || p->layout_id == 0) {
        why = "epoch or layout id is missing";
    } else if (p->chunk_tokens == 0 || p->chunk_tokens % bt != 0) {
        why = "the prefill chunk is not a multiple of the block";
    } else if (p->max_batched_tokens < bt || e->max_tokens < bt) {
        why = "a step holds less than one block of tokens";
    } else if (p->max_seqs == 0 || p->max_queue == 0 || p->max_seqs > ND_MAX_SEQS ||
               p->max_queue > ND_MAX_QUEUE) {
        why = "max_seqs or max_queue is out of range";
    } else if (p->steps_in_flight == 0 || p->steps_in_flight > TD_ENGINE_MAX_INFLIGHT) {
        why = "steps_in_flight is out of range";
    } else if (p->t_stall_us <= 0 || p->t_lease_us <= 0) {
        why = "a time bound is not positive";
    }
    if (why != NULL) {
        TD_LOG(ERROR, "node parameters do not fit", "why=\"%s\"", why);
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

uint32_t nd_actions_needed(const struct nd_core_params *p)
{
    return ND_MIN_ACTIONS + ND_WORK_ACTIONS * (p->max_queue + 2 * p->max_seqs);
}

/* Twice what the pool holds may wait, and one prompt of any legal length. */
size_t nd_prompt_bytes(const struct nd_core_params *p)
{
    const struct td_engine_info *e = p->engine;
    size_t pool_tok = (size_t)e->n_blocks * e->layout.block_tok;
    return (2 * pool_tok + e->max_model_len) * sizeof(int32_t) +
           ((size_t)p->max_queue + 2 * (size_t)p->max_seqs) * 1024; /* last pages, trace states */
}

const struct td_work_id *nd_msg_work(const struct td_wire_msg *m)
{
    if (m->type == TD_WIRE_PREFILL) {
        return &m->prefill.r.id;
    }
    if (m->type == TD_WIRE_RESERVE) {
        return &m->reserve.r.id;
    }
    return m->type == TD_WIRE_CANCEL ? &m->cancel.id : NULL;
}
