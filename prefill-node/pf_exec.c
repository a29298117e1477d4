#define TD_LOG_ROOM "prefill"
#include "common/base/log.h"
#include "prefill-node/pf_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

uint32_t *pf_blocks(const struct pf_core *c, const struct pf_seq *s)
{
    TD_REQUIRE(s->seat != 0);
    return c->r.seat_blocks + (size_t)(s->seat - 1) * c->r.seat_len;
}

void pf_ledger(struct pf_core *c, const struct pf_seq *s, td_err e)
{
    if (e != TD_OK) {
        TD_LOG(ERROR, "ledger refused, our bug", "req=%s state=%s err=%s", s->w.req,
               pf_state_name(s->state), td_err_code(e));
        c->r.broken = true;
    }
}

/* index (20 bits), generation (20 bits), number (24 bits): a late PUSHED of an earlier tenant of
 * the record, or of this one, is told apart. Never 0: numbers start at 1. */
uint64_t pf_push_handle(const struct pf_seq *s, uint32_t number)
{
    uint64_t generation = s->w.ref.generation & ((1u << 20) - 1);
    return (uint64_t)s->w.ref.index << (64 - 20) | generation << PF_PUSH_BITS |
           (number & ((1u << PF_PUSH_BITS) - 1));
}

/* ---- admission ---- */

static uint32_t blocks_for(const struct pf_core *c, const struct td_queue_item *it)
{
    const struct pf_seq *s = td_heap_entry(it, struct pf_seq, line);
    uint32_t bt = c->r.p.engine->layout.block_tok;
    return (s->w.n_prompt + bt - 1) / bt;
}

/* One hold always fits, however long. */
static bool hold_fits(const struct pf_core *c, const struct td_queue_item *it)
{
    return c->hold_seats == 0 || (c->hold_seats < nd_slots_size(c->r.seats) / 2 &&
                                  c->hold_blk + blocks_for(c, it) <= c->r.p.engine->n_blocks / 2);
}

/* Of both lines the one whose turn it is; NULL: nobody's. */
static struct td_queue_item *next_in_line(const struct pf_core *c)
{
    struct td_queue_item *it = td_queue_head(c->r.queue), *hold = td_queue_head(c->holds);
    if (hold == NULL || !hold_fits(c, hold)) {
        return it;
    }
    return it == NULL || hold->key < it->key ? hold : it;
}

/* The head of the line gets its blocks, or the line waits: nobody small overtakes it for ever. */
static bool admit_head(struct pf_core *c)
{
    struct td_queue_item *it = next_in_line(c);
    if (it == NULL || nd_slots_free(c->r.slots) == 0 || nd_slots_free(c->r.seats) == 0) {
        return false;
    }
    struct pf_seq *s = td_heap_entry(it, struct pf_seq, line);
    uint32_t need = blocks_for(c, it);
    if (need > td_kv_pool_count(c->r.pool, TD_BLK_FREE)) {
        return false;
    }
    td_queue_remove(pf_line_of(c, s), it);
    c->r.queued_tok -= s->w.n_prompt;
    c->hold_seats += s->hold_us > 0;
    c->hold_blk += s->hold_us > 0 ? need : 0;
    s->seat = nd_slots_take(c->r.seats);
    s->slot = nd_slots_take(c->r.slots);
    td_err e = td_kv_pool_take(c->r.pool, nd_work_handle(&s->w), TD_BLK_RESERVED, s->w.budget_us,
                               need, pf_blocks(c, s));
    TD_INSIST(e == TD_OK);
    s->n_blocks = need;
    pf_set_state(c, s, PF_EXEC);
    td_batch_join_prefill(&c->r.batch, &s->batch, it->key, s->w.number, s->w.n_prompt);
    return true;
}

/* ---- steps ---- */

static void first_chunk(struct pf_core *c, struct pf_seq *s)
{
    s->exec_us = c->r.now;
    nd_actions_observe(c->r.out, ND_M_PREFILL_QUEUE_US, (double)(c->r.now - s->w.arrived_us));
    pf_ledger(c, s,
              td_kv_pool_move(c->r.pool, nd_work_handle(&s->w), pf_blocks(c, s), s->n_blocks,
                              TD_BLK_FILLING, s->w.budget_us));
}

/* Fills one engine row; false when the arena is full. */
static bool fill_row(struct pf_core *c, struct pf_seq *s, const struct td_batch_row *plan,
                     struct td_row *row)
{
    uint32_t bt = c->r.p.engine->layout.block_tok;
    uint32_t end = s->submitted_tok + plan->n;
    uint32_t n_blocks = (end + bt - 1) / bt;
    const int32_t *tokens = nd_work_tokens(c->r.works, &s->w, s->submitted_tok, plan->n, c->r.out);
    const td_block_id *table =
        nd_actions_copy(c->r.out, pf_blocks(c, s), (size_t)n_blocks * sizeof *table);
    if (tokens == NULL || table == NULL) {
        return false;
    }
    uint32_t want = TD_PUSH_LAYERS;
    if (plan->last) {
        nd_work_seq_set(c->r.works, &s->w, s->slot - 1, NULL, c->r.out);
        want |= s->w.sampling.logprobs > 0 ? TD_WANT_LOGPROBS : 0;
    }
    *row = (struct td_row){.seq = s->w.ref,
                           .pos = s->submitted_tok,
                           .n = plan->n,
                           .tokens = tokens,
                           .table = table,
                           .n_blocks = n_blocks,
                           .sampling = plan->last ? s->slot - 1 : TD_NO_SAMPLE,
                           .want = want,
                           .output_pos = nd_work_output_pos(&s->w)};
    return true;
}

static void fill_rows(struct pf_core *c, uint32_t n_plan, struct td_row *rows, struct nd_flight *f)
{
    for (uint32_t i = 0; i < n_plan; i++) {
        const struct td_batch_row *plan = &c->r.plan[i];
        struct pf_seq *s = td_heap_entry(plan->item, struct pf_seq, batch);
        if (s->exec_us == 0) {
            first_chunk(c, s);
        }
        if (rows == NULL || !fill_row(c, s, plan, &rows[f->n_rows])) {
            pf_end(c, s, TD_ERR_NO_MEMORY, "no memory to plan a step");
            continue;
        }
        s->submitted_tok += plan->n;
        s->step = f->ticket;
        nd_flight_add(f, s->w.ref, s->submitted_tok, plan->n);
    }
}

static void start_step(struct pf_core *c)
{
    uint32_t n_plan = td_batch_plan(&c->r.batch, c->r.plan, c->r.batch.p.max_rows);
    if (n_plan == 0) {
        return;
    }
    struct td_row *rows = nd_actions_copy(c->r.out, NULL, n_plan * sizeof *rows);
    struct nd_flight *f = nd_role_flight(&c->r);
    fill_rows(c, n_plan, rows, f);
    if (f->n_rows == 0) {
        return;
    }
    nd_role_launch(&c->r, f, rows);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct pf_seq *s = pf_of(nd_works_at(c->r.works, f->rows[i].seq));
        TD_INSIST(s != NULL);
        pf_push_more(c, s);
    }
}

void pf_run(struct pf_core *c)
{
    while (admit_head(c)) {
    }
    if (c->r.n_flights == 0) {
        start_step(c);
    }
}

/* The last chunk's sample becomes the first token: to the router at once. */
static td_err take_token(struct pf_core *c, struct pf_seq *s, const struct td_row_result *row)
{
    if (row->n_ids == 0 || row->ids[0] < 0 || (uint32_t)row->ids[0] >= c->r.p.engine->n_vocab) {
        return TD_ERR_SEQ_FAILED;
    }
    s->has_token = true;
    s->token_us = c->r.now;
    s->first_token = row->ids[0];
    s->first_logprob = row->logprobs[0];
    if (s->hold_us == 0) { /* else whoever takes the KV judges by its own limits */
        s->finish =
            nd_work_finish(&s->w, c->r.p.engine->max_model_len, s->w.n_replayed, s->first_token);
    }
    if (!s->w.mute) {
        struct td_wire_token t = {.id = s->w.id,
                                  .index = s->w.n_replayed,
                                  .token = s->first_token,
                                  .logprob = s->first_logprob,
                                  .finish = s->finish};
        nd_tokens_add(c->r.tokens, &t);
    }
    return TD_OK;
}

static void learn_cost(struct pf_core *c, const struct td_step_result *r, uint32_t tok)
{
    if (tok == 0 || r->exec_us <= 0) {
        return;
    }
    uint64_t cost = (uint64_t)r->exec_us * 1000 / tok;
    cost = cost < UINT32_MAX / 8 ? cost : UINT32_MAX / 8;
    c->r.us_per_ktok = c->r.us_per_ktok == 0
                           ? (uint32_t)cost
                           : (uint32_t)(((uint64_t)c->r.us_per_ktok * 7 + cost) / 8);
}

void pf_on_step(struct pf_core *c, const struct td_step_result *r)
{
    const struct nd_flight *f = nd_role_landed(&c->r, r);
    if (f == NULL) {
        return;
    }
    learn_cost(c, r, f->prompt_tok);
    /* All tokens of the step in one message before anything that follows from them. */
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct pf_seq *s = pf_of(nd_works_at(c->r.works, f->rows[i].seq));
        const struct td_row_result *row = NULL;
        if (s != NULL && s->state == PF_EXEC && s->submitted_tok == s->w.n_prompt &&
            nd_flight_result(f, r, i, &row) == TD_OK) {
            (void)take_token(c, s, row); /* without a token the row fails below */
        }
    }
    nd_tokens_flush(c->r.tokens, r->ticket, c->r.out);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct pf_seq *s = pf_of(nd_works_at(c->r.works, f->rows[i].seq));
        const struct td_row_result *row = NULL;
        if (s == NULL) {
            continue;
        }
        td_err e = nd_flight_result(f, r, i, &row);
        bool tokenless = s->submitted_tok == s->w.n_prompt && !s->has_token;
        pf_on_row(c, s, e == TD_OK && tokenless ? TD_ERR_SEQ_FAILED : e);
    }
    nd_role_drop_flight(&c->r);
}

/* ---- pushes ---- */

/* Posts source blocks [from, to) of the prompt, gated by `ticket`. */
static bool push_range(struct pf_core *c, struct pf_seq *s, uint32_t from, uint32_t to,
                       td_ticket ticket)
{
    uint32_t bt = c->r.p.engine->layout.block_tok;
    uint32_t first = from / bt;
    uint32_t n = (to + bt - 1) / bt - first;
    uint32_t first_block = (from - s->first_tok) / bt;
    struct td_block_ref *dst = nd_actions_copy(c->r.out, NULL, n * sizeof *dst);
    const uint32_t *src = nd_actions_copy(c->r.out, pf_blocks(c, s) + first, n * sizeof *src);
    if (dst == NULL || src == NULL) {
        return false;
    }
    nd_spans_read(c->tables, &s->table, first_block * (uint32_t)sizeof *dst,
                  n * (uint32_t)sizeof *dst, dst);
    uint32_t number = s->n_pushes + 1;
    struct nd_action *a = nd_actions_add(c->r.out, ND_DO_XFER);
    a->cmd = (struct td_xfer_cmd){.type = TD_XFER_PUSH,
                                  .epoch = s->peer,
                                  .land = s->land,
                                  .push = pf_push_handle(s, number),
                                  .id = s->w.id,
                                  .layout_id = c->r.p.layout_id,
                                  .blocks = dst,
                                  .src = src,
                                  .n_blocks = n,
                                  .first_block = first_block,
                                  .chunk = s->n_pushes,
                                  .ticket = ticket,
                                  .n_layers = c->r.p.engine->n_layers};
    s->n_pushes = number;
    s->open[s->n_open++] = number;
    s->pushed_tok = to;
    return true;
}

void pf_push_more(struct pf_core *c, struct pf_seq *s)
{
    if (!s->has_table || s->peer_gone || s->finish != TD_FINISH_NONE) {
        return;
    }
    while (s->n_open < c->push_window && s->pushed_tok < s->submitted_tok) {
        bool ready = s->pushed_tok < s->computed_tok;
        uint32_t limit = ready ? s->computed_tok : s->submitted_tok;
        uint32_t to = limit - s->pushed_tok > c->push_tok ? s->pushed_tok + c->push_tok : limit;
        if (!push_range(c, s, s->pushed_tok, to, ready ? 0 : s->step)) {
            return; /* `overflow` is set; the lease ends the request */
        }
    }
}
