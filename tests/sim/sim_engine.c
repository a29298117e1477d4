/* Design: a fake engine whose KV proves itself. A cell stands for the KV of one token in one layer; it
 * holds a chain over the request's tokens up to there, so the next token, a function of the last cell
 * and the seed, is right only if every block read is the request's own, whole and unharmed. Layers are
 * written one after the other while the step runs; the table's blocks are checked when it ends. */
#include <inttypes.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim.h"

uint64_t sim_chain(uint64_t prev, int32_t token, uint32_t pos)
{
    return td_mix64(prev ^ td_mix64((uint64_t)(uint32_t)token << 24 ^ pos)) | 1;
}

uint64_t sim_cell_hash(uint64_t chain, uint32_t layer)
{
    return chain * (2 * layer + 3);
}

int32_t sim_token(uint64_t chain, uint64_t seed, uint32_t req)
{
    return (int32_t)((req + 1) << 16 | (td_mix64(chain + seed) & 0xffff));
}

struct sim_cell *sim_cells(struct sim_node *n, uint32_t block, uint32_t layer)
{
    TD_INSIST(block < n->info.n_blocks);
    return n->eng.cells + ((size_t)block * SIM_LAYERS + layer) * SIM_BLOCK;
}

const struct sim_row *sim_engine_row_of(const struct sim_engine *e, uint32_t block)
{
    for (uint32_t k = 0; k < e->n_steps; k++) {
        const struct sim_step *t = &e->steps[k];
        for (uint32_t i = 0; i < t->n_rows; i++) {
            for (uint32_t b = 0; b < t->rows[i].n_blocks; b++) {
                if (t->table[t->rows[i].table + b] == block) {
                    return &t->rows[i];
                }
            }
        }
    }
    return NULL;
}

static bool slot_is_used(const struct sim_engine *e, uint32_t slot)
{
    for (uint32_t k = 0; k < e->n_steps; k++) {
        for (uint32_t i = 0; i < e->steps[k].n_rows; i++) {
            if (e->steps[k].rows[i].sampling == slot) {
                return true;
            }
        }
    }
    return false;
}

void sim_engine_seq_set(struct sim *s, struct sim_proc *p, const struct nd_action *a)
{
    const struct td_sampling_state *st = a->sampling;
    TD_INSIST(a->slot < SIM_MAX_ROWS);
    uint32_t req = st->n_prompt > 0 ? ((uint32_t)st->prompt[0] >> 16) - 1 : UINT32_MAX;
    if (req >= s->n_reqs + s->n_outs || st->n_prompt != s->reqs[req].n_prompt ||
        memcmp(st->prompt, s->reqs[req].tokens, st->n_prompt * sizeof st->prompt[0]) != 0 ||
        st->n_output > s->reqs[req].n_expect ||
        memcmp(st->output, s->reqs[req].tokens + st->n_prompt,
               st->n_output * sizeof st->output[0]) != 0) {
        sim_fail(s, "%s: sampling state of slot %u has a wrong history", p->name, a->slot);
    }
    if (slot_is_used(&p->node->eng, a->slot)) {
        sim_fail(s, "%s: sampling slot %u is set while a step uses it", p->name, a->slot);
    }
    p->node->eng.seeds[a->slot] = st->p.seed;
    p->node->eng.last[a->slot] = SIM_NO_TOKEN;
}

/* ---- submitting ---- */

/* No block of a row may be written by anybody else while the step runs. */
static void row_check(struct sim *s, struct sim_proc *p, const struct sim_step *t,
                      const struct sim_row *row)
{
    struct sim_node *n = p->node;
    const struct sim_work *w = sim_node_by_handle(p, row->handle);
    if (w != NULL && w->cancelled) {
        sim_fail(s, "%s: a step has a row of a cancelled request", p->name);
    }
    for (uint32_t i = 0; i < row->n_blocks; i++) {
        uint32_t b = t->table[row->table + i];
        if (b >= n->info.n_blocks) {
            sim_fail(s, "%s: a row names block %u of %u", p->name, b, n->info.n_blocks);
            return;
        }
        const struct sim_row *other = sim_engine_row_of(&n->eng, b);
        uint32_t land = n->land_of[b];
        if (other != NULL && other != row && other->handle != row->handle) {
            sim_fail(s, "%s: two rows share block %u", p->name, b);
        }
        if (land != 0 && n->lands[land - 1].handle != row->handle) {
            sim_fail(s, "%s: a row uses block %u into which a transfer may write", p->name, b);
        }
    }
}

/* A source block is not written again before its push has ended. */
static void source_check(struct sim *s, struct sim_proc *p, const struct sim_step *t,
                         const struct sim_row *row)
{
    struct sim_node *n = p->node;
    for (uint32_t b = row->pos / SIM_BLOCK; b < row->n_blocks; b++) {
        uint32_t block = t->table[row->table + b];
        for (uint32_t i = 0; i < n->n_push_order; i++) {
            const struct sim_push *u = &n->pushes[n->push_order[i]];
            for (uint32_t k = 0; k < u->cmd.n_blocks && u->owner != row->handle; k++) {
                if (u->cmd.src[k] == block) {
                    sim_fail(s, "%s: source block %u is written before its push has ended", p->name,
                             block);
                }
            }
        }
    }
}

static void add_row(struct sim *s, struct sim_proc *p, struct sim_step *t, const struct td_row *r)
{
    uint32_t cap = (uint32_t)(sizeof t->table / sizeof t->table[0]);
    if (r->n == 0 || t->n_rows == SIM_MAX_ROWS || t->n_tokens + r->n > SIM_MAX_TOKENS ||
        t->n_table + r->n_blocks > cap || r->pos + r->n > r->n_blocks * SIM_BLOCK ||
        (r->sampling != TD_NO_SAMPLE && r->sampling >= SIM_MAX_ROWS)) {
        sim_fail(s, "%s: a step does not fit the engine", p->name);
        return;
    }
    if (r->tokens == NULL &&
        (r->n != 1 || r->sampling == TD_NO_SAMPLE || p->node->eng.n_steps < 2)) {
        sim_fail(s, "%s: a row wants a token that no step samples", p->name);
        return;
    }
    struct sim_row *row = &t->rows[t->n_rows++];
    *row = (struct sim_row){.handle = (uint64_t)r->seq.generation << 32 | (r->seq.index + 1),
                            .seq = r->seq,
                            .pos = r->pos,
                            .n = r->n,
                            .n_blocks = r->n_blocks,
                            .sampling = r->sampling,
                            .tokens = t->n_tokens,
                            .table = t->n_table};
    t->tokens[t->n_tokens] = SIM_NO_TOKEN;
    if (r->tokens != NULL) {
        memcpy(t->tokens + t->n_tokens, r->tokens, r->n * sizeof *r->tokens);
    }
    memcpy(t->table + t->n_table, r->table, r->n_blocks * sizeof *r->table);
    t->n_tokens += r->n;
    t->n_table += r->n_blocks;
    row_check(s, p, t, row);
    source_check(s, p, t, row);
}

/* The first step starts: tokens that the one before it sampled are known now. */
static void start(struct sim *s, struct sim_proc *p)
{
    struct sim_engine *e = &p->node->eng;
    struct sim_step *t = &e->steps[0];
    e->layers = 0;
    t->started_us = s->now;
    for (uint32_t i = 0; i < t->n_rows; i++) {
        struct sim_row *row = &t->rows[i];
        if (t->tokens[row->tokens] == SIM_NO_TOKEN) {
            t->tokens[row->tokens] = e->last[row->sampling];
            row->failed = e->last[row->sampling] == SIM_NO_TOKEN;
        }
    }
    int64_t us = (3 * SIM_MS + (int64_t)t->n_tokens * 250) * (e->slow > 0 ? e->slow : 1);
    us += sim_between(s, 0, us / 4);
    for (uint32_t l = 0; l < SIM_LAYERS; l++) {
        sim_post(s, (struct sim_ev){.at = s->now + us * (l + 1) / SIM_LAYERS,
                                    .type = SIM_EV_LAYER,
                                    .proc = p->index,
                                    .life = p->life,
                                    .a = t->ticket,
                                    .b = l});
    }
    sim_post(s, (struct sim_ev){.at = s->now + us + 50,
                                .type = SIM_EV_STEP,
                                .proc = p->index,
                                .life = p->life,
                                .a = t->ticket});
}

void sim_engine_step(struct sim *s, struct sim_proc *p, const struct nd_action *a)
{
    struct sim_engine *e = &p->node->eng;
    if (e->n_steps == s->steps_in_flight || a->n_rows == 0) {
        sim_fail(s, "%s: a step is submitted while %u run, or without rows", p->name, e->n_steps);
        return;
    }
    struct sim_step *t = &e->steps[e->n_steps++];
    t->n_rows = t->n_tokens = t->n_table = 0;
    t->ticket = ++e->ticket;
    for (uint32_t i = 0; i < a->n_rows && !s->failed; i++) {
        add_row(s, p, t, &a->rows[i]);
    }
    if (e->n_steps == 1) {
        start(s, p);
    }
}

/* ---- running ---- */

/* Of a row of the running step. */
static struct sim_cell *cell_at(struct sim_node *n, const struct sim_row *row, uint32_t pos,
                                uint32_t layer)
{
    uint32_t block = n->eng.steps[0].table[row->table + pos / SIM_BLOCK];
    return &sim_cells(n, block, layer)[pos % SIM_BLOCK];
}

static void write_layer(struct sim_proc *p, const struct sim_row *row, uint32_t layer)
{
    struct sim_node *n = p->node;
    const struct sim_work *w = sim_node_by_handle(p, row->handle);
    uint64_t h = row->pos > 0 ? cell_at(n, row, row->pos - 1, layer)->h : 0;
    /* The chain is what the layer's own cell holds, divided back out: odd factors have inverses. */
    uint64_t inv = 1;
    for (int i = 0; i < 6; i++) {
        inv *= 2 - (2 * layer + 3) * inv;
    }
    h *= inv;
    for (uint32_t i = 0; i < row->n; i++) {
        uint32_t pos = row->pos + i;
        h = sim_chain(h, n->eng.steps[0].tokens[row->tokens + i], pos);
        *cell_at(n, row, pos, layer) = (struct sim_cell){sim_cell_hash(h, layer), row->handle,
                                                         w != NULL ? w->id.attempt : UINT32_MAX};
    }
}

static uint32_t first_seen(const struct sim *s, uint32_t pos)
{
    return s->window > 0 && pos >= s->window ? pos - s->window + 1 : 0;
}

/* Everything the row has read is its request's, of this try. */
static bool read_check(struct sim *s, struct sim_proc *p, const struct sim_row *row)
{
    struct sim_node *n = p->node;
    uint32_t req = ((uint32_t)n->eng.steps[0].tokens[row->tokens] >> 16) - 1;
    const struct sim_work *w = sim_node_by_handle(p, row->handle);
    if (req >= s->n_reqs + s->n_outs) {
        sim_fail(s, "%s: a row has tokens of no request", p->name);
        return false;
    }
    const struct sim_req *r = &s->reqs[req];
    for (uint32_t l = 0; l < SIM_LAYERS; l++) {
        for (uint32_t pos = first_seen(s, row->pos); pos < row->pos + row->n; pos++) {
            const struct sim_cell *c = cell_at(n, row, pos, l);
            if (c->h != sim_cell_hash(r->chain[pos], l) ||
                (w != NULL && c->attempt != w->id.attempt) || c->writer != row->handle) {
                sim_fail(s,
                         "%s: request %u reads KV that is not its own: position %u layer %u "
                         "(row at %u+%u), written by attempt %u",
                         p->name, req, pos, l, row->pos, row->n, c->attempt);
                return false;
            }
        }
    }
    return true;
}

static void result(struct sim *s, struct sim_proc *p, const struct sim_row *row,
                   struct td_row_result *out)
{
    struct sim_engine *e = &p->node->eng;
    *out = (struct td_row_result){.seq = row->seq};
    if (row->failed) {
        out->err = TD_ERR_SEQ_FAILED;
        return;
    }
    if (!read_check(s, p, row)) {
        return;
    }
    if (e->fail_rows > 0) {
        e->fail_rows--;
        out->err = sim_chance(s, 2) ? TD_ERR_SEQ_FAILED : TD_ERR_DEVICE;
        if (row->sampling != TD_NO_SAMPLE) {
            e->last[row->sampling] = SIM_NO_TOKEN;
        }
        return;
    }
    if (row->sampling != TD_NO_SAMPLE) {
        uint32_t req = ((uint32_t)e->steps[0].tokens[row->tokens] >> 16) - 1;
        out->n_ids = 1;
        out->ids[0] =
            sim_token(s->reqs[req].chain[row->pos + row->n - 1], e->seeds[row->sampling], req);
        out->logprobs[0] = -1.0f;
        e->last[row->sampling] = out->ids[0];
    }
}

void sim_engine_event(struct sim *s, struct sim_proc *p, const struct sim_ev *ev)
{
    struct sim_engine *e = &p->node->eng;
    const struct sim_step *t = &e->steps[0];
    struct td_row_result rows[SIM_MAX_ROWS];
    if (ev->type == SIM_EV_LAYER) {
        e->layers = (uint32_t)ev->b + 1;
        for (uint32_t i = 0; i < t->n_rows; i++) {
            if (!t->rows[i].failed) {
                write_layer(p, &t->rows[i], (uint32_t)ev->b);
            }
        }
        sim_xfer_pump_all(s, p);
        return;
    }
    struct td_step_result res = {
        .ticket = t->ticket, .n_rows = t->n_rows, .rows = rows, .exec_us = s->now - t->started_us};
    for (uint32_t i = 0; i < t->n_rows; i++) {
        result(s, p, &t->rows[i], &rows[i]);
    }
    e->n_steps--;
    memmove(&e->steps[0], &e->steps[1], e->n_steps * sizeof e->steps[0]);
    if (e->n_steps > 0) {
        start(s, p);
    }
    sim_xfer_pump_all(s, p);
    struct nd_event in = {.type = ND_EV_STEP, .step = &res};
    sim_node_feed(s, p, &in);
}
