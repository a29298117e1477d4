#define TD_LOG_ROOM "decode"
#include "common/base/log.h"
#include "decode-node/dc_internal.h"

#include <inttypes.h>

#include "common/base/assert.h"

/* While a step runs, the next one may be planned: a row whose token is still to come takes it inside
 * the engine (tokens == NULL). An end that is found when that next step is already under way leaves a
 * row in it for nothing; its result is dropped, and slot and blocks come back when it has ended. */

void dc_say_token(struct dc_core *c, const struct dc_seq *s, uint32_t index, int32_t token,
                  float logprob, enum td_finish finish)
{
    if (!s->w.mute) {
        struct td_wire_token t = {
            .id = s->w.id, .index = index, .token = token, .logprob = logprob, .finish = finish};
        nd_tokens_add(c->r.tokens, &t);
    }
}

/* ---- planning ---- */

static void join(struct dc_core *c, struct dc_seq *s)
{
    s->slot = nd_slots_take(c->r.slots);
    nd_work_seq_set(c->r.works, &s->w, s->slot - 1, &s->first_token, c->r.out);
    nd_work_drop_prompt(c->r.works, &s->w);
    dc_set_state(c, s, DC_RUNNING);
    td_batch_join_decode(&c->r.batch, &s->batch);
    TD_LOG(INFO, "dc_batch", "req=%s trace=%.32s attempt=%u context_tok=%u rows=%u", s->w.req,
           nd_work_trace(&s->w), s->w.id.attempt, s->len, c->r.batch.decode.n);
}

/* Lower key, or the same and earlier: same order as every other line. */
static bool joins_before(const struct dc_seq *a, const struct dc_seq *b)
{
    return a->line.key != b->line.key ? a->line.key < b->line.key : a->w.number < b->w.number;
}

static void join_ready(struct dc_core *c)
{
    while (c->n_ready > 0 && nd_slots_free(c->r.slots) > 0) {
        struct dc_seq *first = NULL;
        for (uint32_t i = 0; i < nd_works_capacity(c->r.works); i++) {
            struct dc_seq *s = dc_of(nd_works_slot(c->r.works, i));
            if (s != NULL && s->state == DC_READY && (first == NULL || joins_before(s, first))) {
                first = s;
            }
        }
        TD_INSIST(first != NULL);
        join(c, first);
    }
}

static bool fill_prefill(struct dc_core *c, struct dc_seq *s, const struct td_batch_row *plan,
                         struct td_row *row)
{
    if (s->exec_us == 0) {
        s->exec_us = c->r.now;
        nd_actions_observe(c->r.out, ND_M_PREFILL_QUEUE_US, (double)(c->r.now - s->w.arrived_us));
        dc_move_blocks(c, s, TD_BLK_FILLING);
    }
    row->pos = s->submitted_tok;
    row->n = plan->n;
    row->tokens = nd_work_tokens(c->r.works, &s->w, s->submitted_tok, plan->n, c->r.out);
    row->output_pos = nd_work_output_pos(&s->w);
    row->sampling = TD_NO_SAMPLE;
    if (plan->last) {
        row->sampling = s->slot - 1;
        nd_work_seq_set(c->r.works, &s->w, s->slot - 1, NULL, c->r.out);
    }
    s->submitted_tok += plan->n;
    return row->tokens != NULL;
}

static bool fill_decode(struct dc_core *c, struct dc_seq *s, struct td_row *row)
{
    if (s->decode_us == 0) {
        s->decode_us = c->r.now;
        nd_actions_observe(c->r.out, ND_M_DECODE_QUEUE_US, (double)(c->r.now - s->taken_us));
    }
    row->pos = s->len + s->n_ahead;
    row->n = 1;
    row->sampling = s->slot - 1;
    row->want |= s->landed ? TD_KV_LANDED : 0;
    s->landed = false;
    if (s->n_ahead > 0) {
        return true;
    }
    row->tokens = nd_actions_copy(c->r.out, &s->last_token, sizeof s->last_token);
    return row->tokens != NULL;
}

/* Blocks that the row does not see are gone, or may be before its step is over; their places name one
 * that it sees. */
static const uint32_t *table_of(struct dc_core *c, const struct dc_seq *s, const struct td_row *row)
{
    uint32_t *table = nd_actions_copy(c->r.out, dc_blocks(c, s), row->n_blocks * sizeof *table);
    uint32_t behind = dc_blocks_behind(c, row->pos);
    for (uint32_t i = 0; table != NULL && i < behind; i++) {
        table[i] = table[behind];
    }
    return table;
}

static bool fill_row(struct dc_core *c, struct dc_seq *s, const struct td_batch_row *plan,
                     struct td_row *row)
{
    *row = (struct td_row){.seq = s->w.ref};
    bool ok =
        plan->kind == TD_BATCH_PREFILL ? fill_prefill(c, s, plan, row) : fill_decode(c, s, row);
    uint32_t bt = c->r.p.engine->layout.block_tok;
    row->n_blocks = (row->pos + row->n + bt - 1) / bt;
    TD_INSIST(row->n_blocks <= s->n_blocks);
    row->table = table_of(c, s, row);
    if (row->sampling != TD_NO_SAMPLE && s->w.sampling.logprobs > 0) {
        row->want |= TD_WANT_LOGPROBS;
    }
    return ok && row->table != NULL;
}

/* False when nothing runs. */
static bool start_step(struct dc_core *c)
{
    uint32_t n_plan = td_batch_plan(&c->r.batch, c->r.plan, c->r.batch.p.max_rows);
    if (n_plan == 0) {
        return false;
    }
    struct td_row *rows = nd_actions_copy(c->r.out, NULL, n_plan * sizeof *rows);
    struct nd_flight *f = nd_role_flight(&c->r);
    for (uint32_t i = 0; i < n_plan; i++) {
        struct dc_seq *s = td_heap_entry(c->r.plan[i].item, struct dc_seq, batch);
        struct td_row *row = rows != NULL ? &rows[f->n_rows] : NULL;
        if (row == NULL || !fill_row(c, s, &c->r.plan[i], row)) {
            dc_end(c, s, TD_ERR_NO_MEMORY, "no memory to plan a step");
            continue;
        }
        bool prompt = c->r.plan[i].kind == TD_BATCH_PREFILL;
        nd_flight_add(f, s->w.ref, prompt ? row->pos + row->n : 0, row->n);
        s->n_steps++;
        s->n_ahead += prompt ? 0 : 1;
    }
    if (f->n_rows == 0) {
        return false;
    }
    nd_role_launch(&c->r, f, rows);
    return true;
}

void dc_run(struct dc_core *c)
{
    bool started = true;
    while (started && c->r.n_flights < c->r.p.steps_in_flight) {
        join_ready(c);
        dc_grow(c); /* before the line: who runs comes before who wants to */
        dc_admit(c);
        started = start_step(c);
    }
    if (started) {
        dc_admit(c); /* blocks and seats need not wait for a step */
    }
}

/* ---- results ---- */

static bool in_vocab(const struct dc_core *c, const struct td_row_result *row)
{
    return row->n_ids > 0 && row->ids[0] >= 0 && (uint32_t)row->ids[0] < c->r.p.engine->n_vocab;
}

/* The token of one row joins the stream: position, finish, message. */
static void take_token(struct dc_core *c, struct dc_seq *s, const struct td_row_result *row)
{
    uint32_t index = s->n_out++;
    s->last_token = row->ids[0];
    s->finish = nd_work_finish(&s->w, c->r.p.engine->max_model_len, index, s->last_token);
    if (s->first_owed) {
        s->first_owed = false;
        dc_say_token(c, s, s->w.n_replayed, s->first_token, s->first_logprob, TD_FINISH_NONE);
    }
    dc_say_token(c, s, index, s->last_token, row->logprobs[0], s->finish);
    nd_actions_observe(c->r.out, ND_M_OUTPUT_TOKENS, 1);
    if (s->state == DC_RUNNING) {
        nd_actions_observe(c->r.out, ND_M_ITL_US, (double)(c->r.now - s->last_us));
    }
    s->last_us = c->r.now;
}

/* The prompt of a local request is computed: its first token has been taken. */
static void start_stream(struct dc_core *c, struct dc_seq *s)
{
    s->token_us = s->taken_us = c->r.now;
    nd_work_drop_prompt(c->r.works, &s->w);
    nd_actions_observe(c->r.out, ND_M_PREFILL_US, (double)(c->r.now - s->exec_us));
    nd_actions_observe(c->r.out, ND_M_TTFT_US, (double)(c->r.now - s->w.arrived_us));
    nd_actions_observe(c->r.out, ND_M_PROMPT_TOKENS, s->w.n_prompt);
    dc_set_state(c, s, DC_RUNNING);
    dc_move_blocks(c, s, TD_BLK_RUNNING);
    if (s->finish == TD_FINISH_NONE) {
        td_batch_join_decode(&c->r.batch, &s->batch);
        TD_LOG(INFO, "dc_batch", "req=%s trace=%.32s attempt=%u context_tok=%u rows=%u", s->w.req,
               nd_work_trace(&s->w), s->w.id.attempt, s->len, c->r.batch.decode.n);
    }
}

/* First pass over the rows: tokens only, so that all of a step go out together. */
static td_err hear_row(struct dc_core *c, struct dc_seq *s, uint32_t end,
                       const struct td_row_result *row)
{
    s->len = end != 0 ? end : s->len + 1;
    if (end != 0 && end < s->w.n_prompt) {
        return TD_OK;
    }
    if (!in_vocab(c, row)) {
        return TD_ERR_SEQ_FAILED;
    }
    take_token(c, s, row);
    return TD_OK;
}

/* Second pass: what follows from the row. */
static void settle_row(struct dc_core *c, struct dc_seq *s, td_err err)
{
    if (s->state == DC_ENDING) {
        dc_finish_ending(c, s);
        return;
    }
    if (err != TD_OK) {
        dc_end(c, s, td_err_retryable(err) ? err : TD_ERR_SEQ_FAILED, "engine failed the row");
        return;
    }
    if (s->state == DC_PREFILL && s->len == s->w.n_prompt) {
        start_stream(c, s);
    }
    if (s->finish != TD_FINISH_NONE) {
        td_growth_seen(&c->growth, s->n_out, s->finish == TD_FINISH_LENGTH);
        dc_end(c, s, TD_OK, s->finish == TD_FINISH_STOP ? "stop token" : "length");
        return;
    }
    dc_shed(c, s);
}

static uint32_t smooth(uint32_t old, uint64_t sample)
{
    sample = sample < UINT32_MAX / 8 ? sample : UINT32_MAX / 8;
    return old == 0 ? (uint32_t)sample : (uint32_t)(((uint64_t)old * 7 + sample) / 8);
}

static void learn_cost(struct dc_core *c, const struct td_step_result *r, uint32_t prompt_tok)
{
    uint64_t us = r->exec_us > 0 ? (uint64_t)r->exec_us : 0;
    if (prompt_tok == 0) {
        c->step_us = smooth(c->step_us, us);
        return;
    }
    uint64_t decode = c->r.batch.decode.n > 0 && us > c->step_us ? c->step_us : 0;
    c->r.us_per_ktok = smooth(c->r.us_per_ktok, (us - decode) * 1000 / prompt_tok);
}

/* The sequence of the flight's row, which the step has left; NULL: it is over. */
static struct dc_seq *leave_step(struct dc_core *c, const struct nd_flight_row *row)
{
    struct dc_seq *s = dc_of(nd_works_at(c->r.works, row->seq));
    if (s != NULL) {
        s->n_steps--;
        s->n_ahead -= row->end == 0 ? 1 : 0;
    }
    return s;
}

void dc_on_step(struct dc_core *c, const struct td_step_result *r)
{
    const struct nd_flight *f = nd_role_landed(&c->r, r);
    if (f == NULL) {
        return;
    }
    learn_cost(c, r, f->prompt_tok);
    td_err *errs = nd_actions_copy(c->r.out, NULL, f->n_rows * sizeof *errs);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct dc_seq *s = leave_step(c, &f->rows[i]);
        const struct td_row_result *row = NULL;
        td_err e = errs != NULL ? nd_flight_result(f, r, i, &row) : TD_ERR_NO_MEMORY;
        if (e == TD_OK && s != NULL && s->state != DC_ENDING) {
            e = hear_row(c, s, f->rows[i].end, row);
        }
        if (errs != NULL) {
            errs[i] = e;
        }
    }
    nd_tokens_flush(c->r.tokens, r->ticket, c->r.out);
    for (uint32_t i = 0; i < f->n_rows; i++) {
        struct dc_seq *s = dc_of(nd_works_at(c->r.works, f->rows[i].seq));
        if (s != NULL) {
            settle_row(c, s, errs != NULL ? errs[i] : TD_ERR_NO_MEMORY);
        }
    }
    nd_role_drop_flight(&c->r);
}
