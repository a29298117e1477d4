#define TD_LOG_ROOM "node"
#include "common/node/role.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

uint32_t nd_role_seats(const struct nd_core_params *p, uint32_t most)
{
    return nd_min_u32(p->max_seqs * 2, most);
}

static bool allocate(struct nd_role *r, const struct nd_role_shape *shape)
{
    const struct td_engine_info *e = r->p.engine;
    uint32_t bt = e->layout.block_tok;
    r->queue = td_queue_create(r->p.max_queue);
    r->seats = nd_slots_create(shape->n_seats);
    r->slots = nd_slots_create(nd_min_u32(r->p.max_seqs, e->max_slots));
    r->tokens = nd_tokens_create(shape->n_tokens);
    r->plan = td_zalloc(e->max_rows, sizeof *r->plan);
    bool rows = true;
    for (uint32_t i = 0; i < TD_ENGINE_MAX_INFLIGHT; i++) {
        r->flights[i].rows = td_zalloc(e->max_rows, sizeof *r->flights[i].rows);
        rows = rows && r->flights[i].rows != NULL;
    }
    r->seat_len = (e->max_model_len + bt - 1) / bt;
    if (e->layout.window == 0) { /* else blocks behind it come back: a table may outgrow the pool */
        r->seat_len = nd_min_u32(r->seat_len, e->n_blocks);
    }
    r->seat_blocks = td_zalloc((size_t)shape->n_seats * r->seat_len, sizeof *r->seat_blocks);
    return r->queue != NULL && r->seats != NULL && r->slots != NULL && r->tokens != NULL &&
           r->plan != NULL && rows && r->seat_blocks != NULL;
}

td_err nd_role_init(struct nd_role *r, const struct nd_core_params *p,
                    const struct nd_role_shape *shape)
{
    struct nd_works_params wp = {.capacity = p->max_queue + shape->n_seats,
                                 .work_bytes = shape->work_bytes,
                                 .prompt_bytes = nd_prompt_bytes(p)};
    struct td_batch_params bp = {.max_rows = p->engine->max_rows,
                                 .max_tokens =
                                     nd_min_u32(p->max_batched_tokens, p->engine->max_tokens),
                                 .chunk_tok = p->chunk_tokens,
                                 .unit_tok = p->engine->layout.block_tok};
    *r = (struct nd_role){.p = *p, .next_ticket = 1, .drain_until_us = TD_NEVER};
    TD_TRY(nd_works_create(&wp, &r->works));
    TD_TRY(td_kv_pool_create(p->engine->n_blocks, &r->pool));
    if (!allocate(r, shape)) {
        return TD_ERR_NO_MEMORY;
    }
    return td_batch_init(&r->batch, &bp) ? TD_OK : TD_ERR_CONFIG;
}

void nd_role_fini(struct nd_role *r)
{
    r->works = nd_works_destroy(r->works);
    r->queue = td_queue_destroy(r->queue);
    r->pool = td_kv_pool_destroy(r->pool);
    r->seats = nd_slots_destroy(r->seats);
    r->slots = nd_slots_destroy(r->slots);
    r->tokens = nd_tokens_destroy(r->tokens);
    free(r->plan);
    for (uint32_t i = 0; i < TD_ENGINE_MAX_INFLIGHT; i++) {
        free(r->flights[i].rows);
    }
    free(r->seat_blocks);
}

struct nd_work *nd_role_next(const struct nd_role *r, uint32_t *at, uint64_t router)
{
    while (*at < nd_works_capacity(r->works)) {
        struct nd_work *w = nd_works_slot(r->works, (*at)++);
        if (w != NULL && (router == 0 || w->id.router_epoch == router)) {
            return w;
        }
    }
    return NULL;
}

bool nd_role_drain(struct nd_role *r, const struct nd_event *ev)
{
    if (ev->type == ND_EV_DRAIN) {
        r->draining = true;
        r->drain_until_us =
            ev->deadline_us < r->drain_until_us ? ev->deadline_us : r->drain_until_us;
    } else if (ev->type == ND_EV_UNDRAIN) {
        r->draining = false;
        r->drain_until_us = TD_NEVER;
    }
    return ev->type == ND_EV_DRAIN || ev->type == ND_EV_UNDRAIN;
}

bool nd_role_drain_over(struct nd_role *r)
{
    if (r->drain_until_us > r->now) {
        return false;
    }
    r->drain_until_us = TD_NEVER;
    TD_LOG(WARN, "drain limit reached, ending what is left", "works=%u", nd_works_count(r->works));
    return true;
}

struct nd_flight *nd_role_flight(struct nd_role *r)
{
    TD_REQUIRE(r->n_flights < TD_ENGINE_MAX_INFLIGHT);
    struct nd_flight *f = &r->flights[r->n_flights];
    *f = (struct nd_flight){.ticket = r->next_ticket, .rows = f->rows};
    return f;
}

void nd_flight_add(struct nd_flight *f, struct td_seq_ref seq, uint32_t end, uint32_t n)
{
    f->rows[f->n_rows++] = (struct nd_flight_row){seq, end};
    f->prompt_tok += end != 0 ? n : 0;
}

void nd_role_launch(struct nd_role *r, struct nd_flight *f, const struct td_row *rows)
{
    struct nd_action *a = nd_actions_add(r->out, ND_DO_STEP);
    uint32_t tokens = 0;
    a->rows = rows;
    a->n_rows = f->n_rows;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        tokens += rows[i].n;
    }
    r->next_ticket++;
    r->n_flights++;
    nd_actions_observe(r->out, ND_M_BATCH_TOKENS, tokens);
}

const struct nd_flight *nd_role_landed(const struct nd_role *r, const struct td_step_result *result)
{
    if (r->n_flights == 0 || result->ticket != r->flights[0].ticket) {
        TD_LOG(ERROR, "result of a step that does not run, dropped", "ticket=%" PRIu64,
               result->ticket);
        return NULL;
    }
    return &r->flights[0];
}

td_err nd_flight_result(const struct nd_flight *f, const struct td_step_result *r, uint32_t i,
                        const struct td_row_result **out_row)
{
    if (i >= r->n_rows || r->rows[i].seq.index != f->rows[i].seq.index ||
        r->rows[i].seq.generation != f->rows[i].seq.generation) {
        return TD_ERR_SEQ_FAILED;
    }
    *out_row = &r->rows[i];
    return r->rows[i].err;
}

/* Its rows' memory goes to the end of the line. */
void nd_role_drop_flight(struct nd_role *r)
{
    struct nd_flight_row *rows = r->flights[0].rows;
    for (uint32_t i = 1; i < TD_ENGINE_MAX_INFLIGHT; i++) {
        r->flights[i - 1] = r->flights[i];
    }
    r->flights[TD_ENGINE_MAX_INFLIGHT - 1] = (struct nd_flight){.rows = rows};
    r->n_flights--;
}

bool nd_role_is_foreign(struct nd_role *r, const struct nd_event *ev)
{
    const struct td_work_id *id = nd_msg_work(ev->msg);
    bool foreign = id != NULL && id->router_epoch != ev->router_epoch;
    if (foreign) {
        nd_actions_observe(r->out, ND_M_STALE, 1);
    }
    return foreign;
}

void nd_role_refuse(struct nd_role *r, uint64_t router, const struct td_work_id *id,
                    const char *text)
{
    struct td_wire_msg *m = nd_actions_send(r->out, router, TD_WIRE_END);
    m->end = (struct td_wire_end){
        .id = *id, .err = TD_ERR_UNSUPPORTED, .text = text, .stages.transport = ""};
}

void nd_role_state(const struct nd_role *r, struct td_wire_state *out)
{
    out->draining = r->draining;
    out->queued_requests = (uint32_t)td_queue_count(r->queue);
    out->running_requests = nd_works_count(r->works) - out->queued_requests;
    out->queued_prompt_tok = r->queued_tok + r->batch.todo_tok;
    for (unsigned s = 0; s < TD_BLK_STATES; s++) {
        out->blocks[s] = td_kv_pool_count(r->pool, (enum td_blk_state)s);
    }
    out->prefill_us_per_ktok = r->us_per_ktok;
}

int64_t nd_role_next_deadline(const struct nd_role *r)
{
    int64_t at = nd_works_next_deadline(r->works);
    int64_t line = td_queue_next_deadline(r->queue);
    at = line < at ? line : at;
    return r->drain_until_us < at ? r->drain_until_us : at;
}

td_err nd_role_check(const struct nd_role *r, const struct nd_role_sums *sums)
{
    TD_TRY(td_kv_pool_check(r->pool));
    TD_TRY(nd_works_check(r->works));
    uint32_t held = td_kv_pool_held(r->pool);
    if (r->broken || held != sums->blocks ||
        sums->seats != nd_slots_size(r->seats) - nd_slots_free(r->seats) ||
        sums->slots != nd_slots_size(r->slots) - nd_slots_free(r->slots)) {
        TD_LOG(ERROR, "blocks do not add up", "held=%u owned=%u seats=%u slots=%u broken=%d", held,
               sums->blocks, sums->seats, sums->slots, r->broken);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
}
