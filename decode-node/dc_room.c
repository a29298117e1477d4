#define TD_LOG_ROOM "decode"
#include "common/base/log.h"
#include "decode-node/dc_internal.h"

#include "common/base/assert.h"

/* One account for what is reserved, what runs and what is expected to grow. Admission keeps the
 * expected peak inside the pool; a wrong guess is paid here, by ending the request that matters
 * least, so that nobody waits for a block that cannot come. */

/* Who sits at seat i and holds blocks for a request that goes on; or NULL. */
static struct dc_seq *holder_at(const struct dc_core *c, uint32_t i)
{
    struct dc_seq *s = dc_of(nd_works_at(c->r.works, c->seated[i]));
    return s != NULL && s->state != DC_ENDING ? s : NULL;
}

#define ROOM_MARGIN 32 /* one block in so many is kept out of the account */

static uint32_t most_output(const struct dc_core *c, const struct dc_seq *s)
{
    return nd_work_max_output(&s->w, c->r.p.engine->max_model_len);
}

uint32_t dc_blocks_behind(const struct dc_core *c, uint32_t pos)
{
    uint32_t window = c->r.p.engine->layout.window;
    uint32_t bt = c->r.p.engine->layout.block_tok;
    if (window == 0 || pos < window || pos == 0) {
        return 0;
    }
    return nd_min_u32((pos - window + 1) / bt, (pos - 1) / bt); /* the last token's block stays */
}

/* Of a prompt that lands: blocks that its first token here does not see. */
static uint32_t hidden_blocks(const struct dc_core *c, const struct dc_seq *s)
{
    return s->local ? 0 : dc_blocks_behind(c, s->w.n_prompt);
}

static struct td_growth_seq expected(const struct dc_core *c, const struct dc_seq *s)
{
    uint32_t bt = c->r.p.engine->layout.block_tok;
    uint32_t window = c->r.p.engine->layout.window;
    uint32_t gone = (s->n_blocks > 0 ? s->n_gone : hidden_blocks(c, s)) * bt;
    uint32_t to = s->len > s->w.n_prompt ? s->len : s->w.n_prompt;
    uint32_t out = td_growth_expect(&c->growth, s->n_out, most_output(c, s));
    uint32_t last =
        s->w.n_prompt - s->w.n_replayed + out - 1; /* the last token's KV is not written */
    uint32_t held = to - gone;
    uint32_t remain = last > to ? last - to : 0;
    if (window > 0) {
        uint32_t most = ((window - 1) / bt + 2) * bt; /* both ends in the middle of a block */
        remain = nd_min_u32(remain, most > held ? most - held : 0);
    }
    return (struct td_growth_seq){held, remain};
}

/* Whether the pool is expected to carry `newcomer` beside what it holds. */
static bool fits(struct dc_core *c, const struct dc_seq *newcomer)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < nd_slots_size(c->r.seats); i++) {
        const struct dc_seq *s = holder_at(c, i);
        if (s != NULL) {
            c->account[n++] = expected(c, s);
        }
    }
    if (n == 0) {
        return true; /* alone: it runs as far as the pool goes */
    }
    c->account[n++] = expected(c, newcomer);
    /* The rest pays for what the account cannot see: when a landing request starts to grow. */
    uint32_t usable = td_kv_pool_size(c->r.pool) - td_kv_pool_count(c->r.pool, TD_BLK_QUARANTINED);
    usable -= usable / ROOM_MARGIN;
    return td_growth_peak(c->account, n, c->r.p.engine->layout.block_tok) <= usable;
}

/* The head of the line gets its blocks, or the line waits: nobody small overtakes it for ever. */
static bool admit_head(struct dc_core *c)
{
    struct td_queue_item *it = td_queue_head(c->r.queue);
    if (it == NULL || nd_slots_free(c->r.seats) == 0 || c->n_held > 0 || c->owed_blk > 0) {
        return false;
    }
    struct dc_seq *s = td_heap_entry(it, struct dc_seq, line);
    uint32_t bt = c->r.p.engine->layout.block_tok;
    uint32_t hidden = hidden_blocks(c, s);
    uint32_t need = (s->w.n_prompt + bt - 1) / bt - hidden;
    if (need > td_kv_pool_count(c->r.pool, TD_BLK_FREE) ||
        (s->local && nd_slots_free(c->r.slots) <= c->n_ready) || !fits(c, s)) {
        return false;
    }
    int64_t key = it->key;
    td_queue_remove(c->r.queue, it);
    s->seat = nd_slots_take(c->r.seats);
    c->seated[s->seat - 1] = s->w.ref;
    td_err e = td_kv_pool_take(c->r.pool, nd_work_handle(&s->w), TD_BLK_RESERVED, s->w.budget_us,
                               need, dc_blocks(c, s) + hidden);
    TD_INSIST(e == TD_OK);
    s->n_blocks = hidden + need;
    s->n_gone = hidden;
    if (s->local) {
        c->r.queued_tok -= s->w.n_prompt;
        s->slot = nd_slots_take(c->r.slots);
        dc_set_state(c, s, DC_PREFILL);
        td_batch_join_prefill(&c->r.batch, &s->batch, key, s->w.number, s->w.n_prompt);
    } else {
        dc_set_state(c, s, DC_LANDING);
        dc_land(c, s);
    }
    return true;
}

void dc_admit(struct dc_core *c)
{
    while (admit_head(c)) {
    }
}

/* ---- shortage ---- */

/* Lowest priority first, the youngest of those: it has the least to lose. */
static bool matters_less(const struct dc_seq *a, const struct dc_seq *b)
{
    return a->w.priority != b->w.priority ? a->w.priority > b->w.priority
                                          : a->w.number > b->w.number;
}

static struct dc_seq *choose_victim(const struct dc_core *c)
{
    struct dc_seq *worst = NULL;
    for (uint32_t i = 0; i < nd_slots_size(c->r.seats); i++) {
        struct dc_seq *s = holder_at(c, i);
        if (s != NULL && (worst == NULL || matters_less(s, worst))) {
            worst = s;
        }
    }
    return worst;
}

static bool take_block(struct dc_core *c, struct dc_seq *s)
{
    if (s->n_blocks == c->r.seat_len ||
        td_kv_pool_take(c->r.pool, nd_work_handle(&s->w), TD_BLK_RUNNING, s->w.budget_us, 1,
                        dc_blocks(c, s) + s->n_blocks) != TD_OK) {
        return false;
    }
    s->n_blocks++;
    return true;
}

static void end_for_room(struct dc_core *c, struct dc_seq *victim)
{
    TD_LOG(INFO, "pool exhausted, ending one request",
           "req=%s attempt=%u priority=%d blocks=%u output_tok=%u", victim->w.req,
           victim->w.id.attempt, victim->w.priority, dc_held(victim), victim->n_out);
    victim->victim = true;
    dc_end(c, victim, TD_ERR_NO_CAPACITY, "the block pool is exhausted");
}

/* False when `s` is over. Otherwise it has its block, or sits this step out until a victim's blocks
 * are fenced. */
static bool find_room(struct dc_core *c, struct dc_seq *s)
{
    while (!take_block(c, s)) {
        if (c->owed_blk > 0 || s->n_ahead > 0) { /* its token to come may be its last */
            s->batch.held = true;
            c->n_held++;
            return true;
        }
        struct dc_seq *victim = s->n_blocks == c->r.seat_len ? s : choose_victim(c);
        end_for_room(c, victim);
        if (victim == s) {
            return false;
        }
    }
    return true;
}

void dc_shed(struct dc_core *c, struct dc_seq *s)
{
    uint32_t gone = dc_blocks_behind(c, s->len);
    if (gone > s->n_gone && !s->land_open) { /* late slices may still be written there */
        dc_ledger(c, s,
                  td_kv_pool_release(c->r.pool, nd_work_handle(&s->w), dc_held_blocks(c, s),
                                     gone - s->n_gone));
        s->n_gone = gone;
    }
}

void dc_grow(struct dc_core *c)
{
    uint32_t bt = c->r.p.engine->layout.block_tok;
    uint32_t n = 0;
    for (struct td_batch_item *it = c->r.batch.decode.first; it != NULL; it = it->next) {
        it->held = false;
        c->scratch[n++] = td_heap_entry(it, struct dc_seq, batch)->w.ref;
    }
    c->n_held = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct dc_seq *s = dc_of(nd_works_at(c->r.works, c->scratch[i]));
        if (s == NULL || s->state != DC_RUNNING) {
            continue;
        }
        if (s->n_ahead > 0 && s->n_out + s->n_ahead >= most_output(c, s)) {
            s->batch.held = true; /* the token to come is its last */
        } else if ((s->len + s->n_ahead) / bt >= s->n_blocks) {
            (void)find_room(c, s);
        }
    }
}
