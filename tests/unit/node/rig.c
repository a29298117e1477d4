#include "tests/unit/node/rig.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define EPOCH(node) (0xe000u + (uint64_t)(node))

/* ---- memory ---- */

static void *copy_of(const void *src, size_t bytes)
{
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    if (bytes > 0) {
        memcpy(p, src, bytes);
    }
    return p;
}

static struct rig_event *new_event(struct rig *r, uint32_t node, enum nd_event_type type)
{
    if (r->n_line == r->cap_line) {
        r->cap_line = r->cap_line * 2 + 64;
        r->line = realloc(r->line, r->cap_line * sizeof *r->line);
        assert_non_null(r->line);
    }
    struct rig_event *e = &r->line[r->n_line++];
    *e = (struct rig_event){.node = node, .type = type};
    return e;
}

static struct td_wire_msg keep_msg(const struct td_wire_msg *m)
{
    struct td_wire_msg k = *m;
    if (m->type == TD_WIRE_TABLE) {
        k.table.blocks = copy_of(m->table.blocks, m->table.n_blocks * sizeof *m->table.blocks);
    } else if (m->type == TD_WIRE_TOKENS) {
        k.tokens.tokens = copy_of(m->tokens.tokens, m->tokens.n * sizeof *m->tokens.tokens);
    }
    return k;
}

static void drop_msg(struct td_wire_msg *m)
{
    if (m->type == TD_WIRE_TABLE) {
        free((void *)(uintptr_t)m->table.blocks);
    } else if (m->type == TD_WIRE_TOKENS) {
        free((void *)(uintptr_t)m->tokens.tokens);
    }
}

struct rig *rig_create(void)
{
    struct rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->now = RIG_SECOND;
    return r;
}

/* The oldest step. */
static void drop_step(struct rig_node *n)
{
    for (uint32_t i = 0; i < n->steps[0].n_rows; i++) {
        free(n->steps[0].rows[i].tokens);
        free(n->steps[0].rows[i].table);
    }
    n->n_steps--;
    memmove(n->steps, n->steps + 1, n->n_steps * sizeof n->steps[0]);
}

static void drop_push(struct rig_node *n, uint32_t i)
{
    free((void *)(uintptr_t)n->pushes[i].cmd.blocks);
    free((void *)(uintptr_t)n->pushes[i].cmd.src);
    memmove(&n->pushes[i], &n->pushes[i + 1], (--n->n_pushes - i) * sizeof n->pushes[0]);
}

static void drop_land(struct rig_node *n, uint32_t i)
{
    free(n->lands[i].blocks);
    n->lands[i] = n->lands[--n->n_lands];
}

struct rig *rig_destroy(struct rig *r)
{
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        struct rig_node *n = &r->node[i];
        n->ops->destroy(n->core);
        nd_actions_fini(&n->actions);
        while (n->n_steps > 0) {
            drop_step(n);
        }
        while (n->n_pushes > 0) {
            drop_push(n, 0);
        }
        while (n->n_lands > 0) {
            drop_land(n, 0);
        }
        free(n->kv);
        free(n->handed);
        free(n->seeds);
        free(n->last);
    }
    for (uint32_t i = 0; i < r->n_mail; i++) {
        drop_msg(&r->mail[i].msg);
    }
    for (uint32_t i = r->at_line; i < r->n_line; i++) {
        drop_msg(&r->line[i].msg);
    }
    free(r->mail);
    free(r->line);
    free(r);
    return NULL;
}

static uint32_t or_default(uint32_t value, uint32_t fallback)
{
    return value != 0 ? value : fallback;
}

uint32_t rig_add(struct rig *r, const struct nd_role_ops *ops, const struct rig_params *p)
{
    assert_true(r->n_nodes < RIG_NODES);
    uint32_t i = r->n_nodes++;
    struct rig_node *n = &r->node[i];
    n->ops = ops;
    n->epoch = EPOCH(i);
    n->info = (struct td_engine_info){
        .layout = {.version = 1,
                   .n_layers = RIG_LAYERS,
                   .n_kv_heads = 1,
                   .head_dim = 4,
                   .block_tok = RIG_BLOCK,
                   .window = p->window,
                   .slice_bytes = RIG_BLOCK * 8,
                   .block_bytes = (uint64_t)RIG_BLOCK * 8 * RIG_LAYERS},
        .n_layers = RIG_LAYERS,
        .n_vocab = RIG_VOCAB,
        .max_model_len = or_default(p->max_model_len, 1024),
        .n_blocks = or_default(p->n_blocks, 128),
        .max_rows = RIG_MAX_ROWS,
        .max_tokens = 512,
        .max_slots = or_default(p->max_slots, 32),
        .numerics_id = RIG_NUMERICS,
        .numerics = "fake",
    };
    n->kv = calloc((size_t)n->info.n_blocks * RIG_LAYERS * RIG_BLOCK, sizeof *n->kv);
    n->handed = calloc((size_t)n->info.n_blocks * RIG_LAYERS * RIG_BLOCK, sizeof *n->handed);
    n->seeds = calloc(n->info.max_slots, sizeof *n->seeds);
    n->last = calloc(n->info.max_slots, sizeof *n->last);
    n->max_steps = or_default(p->steps_in_flight, 1);
    assert_true(n->kv != NULL && n->handed != NULL && n->seeds != NULL && n->last != NULL);
    struct nd_core_params cp = {.epoch = n->epoch,
                                .name = "rig",
                                .engine = &n->info,
                                .layout_id = RIG_LAYOUT_ID,
                                .max_seqs = or_default(p->max_seqs, 16),
                                .max_queue = or_default(p->max_queue, 64),
                                .max_batched_tokens = or_default(p->max_batched, 128),
                                .chunk_tokens = or_default(p->chunk, 64),
                                .steps_in_flight = or_default(p->steps_in_flight, 1),
                                .t_stall_us = 5 * RIG_SECOND,
                                .t_lease_us = 30 * RIG_SECOND,
                                .local_prefill = p->local_prefill,
                                .local_epoch = p->local_epoch};
    assert_int_equal(nd_actions_init(&n->actions, nd_actions_needed(&cp)), TD_OK);
    assert_int_equal(ops->create(&cp, &n->core), TD_OK);
    return i;
}

static struct rig_node *by_epoch(struct rig *r, uint64_t epoch, uint32_t *out_index)
{
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        if (r->node[i].epoch == epoch && !r->node[i].dead) {
            *out_index = i;
            return &r->node[i];
        }
    }
    return NULL;
}

/* ---- the fake engine ---- */

static uint64_t cell(int32_t token, uint32_t pos, uint32_t layer)
{
    return td_mix64(((uint64_t)(uint32_t)token << 32 | pos) * 31 + layer + 1);
}

static size_t kv_index(const struct rig_node *n, uint32_t block, uint32_t layer)
{
    assert_true(block < n->info.n_blocks);
    return ((size_t)block * RIG_LAYERS + layer) * RIG_BLOCK;
}

static uint64_t *kv_at(const struct rig_node *n, uint32_t block, uint32_t layer)
{
    return n->kv + kv_index(n, block, layer);
}

static int32_t token_of(uint64_t hash, uint64_t seed)
{
    return (int32_t)(td_mix64(hash + seed) % RIG_VOCAB);
}

/* Of the positions below `len`, the first one that the last one sees. */
static uint32_t first_seen(uint32_t len, uint32_t window)
{
    return window > 0 && len > window ? len - window : 0;
}

/* A cell of the pool as the engine's other ranks have it. */
static uint64_t *handed_at(const struct rig_node *n, const struct rig_row *row, uint32_t pos,
                           uint32_t layer)
{
    return n->handed + kv_index(n, row->table[pos / RIG_BLOCK], layer) + pos % RIG_BLOCK;
}

/* What has landed reaches the other ranks with the row that says so, what a step computes by itself. */
static void hand_on(struct rig_node *n, const struct rig_row *row)
{
    uint32_t from = (row->want & TD_KV_LANDED) != 0
                        ? first_seen(row->pos + row->n, n->info.layout.window)
                        : row->pos;
    for (uint32_t pos = from; pos < row->pos + row->n; pos++) {
        for (uint32_t l = 0; l < RIG_LAYERS; l++) {
            *handed_at(n, row, pos, l) = kv_at(n, row->table[pos / RIG_BLOCK], l)[pos % RIG_BLOCK];
        }
    }
}

static void run_row(struct rig_node *n, const struct rig_row *row, struct td_row_result *out)
{
    for (uint32_t i = 0; i < row->n; i++) {
        uint32_t pos = row->pos + i;
        for (uint32_t l = 0; l < RIG_LAYERS; l++) {
            kv_at(n, row->table[pos / RIG_BLOCK], l)[pos % RIG_BLOCK] =
                cell(row->tokens != NULL ? row->tokens[i] : n->last[row->sampling], pos, l);
        }
    }
    hand_on(n, row);
    *out = (struct td_row_result){.seq = row->seq};
    if (n->fail_rows) {
        out->err = TD_ERR_DEVICE;
    } else if (row->sampling != TD_NO_SAMPLE) {
        uint64_t hash = 0;
        for (uint32_t pos = first_seen(row->pos + row->n, n->info.layout.window);
             pos < row->pos + row->n; pos++) {
            for (uint32_t l = 0; l < RIG_LAYERS; l++) {
                hash = td_mix64(hash ^ *handed_at(n, row, pos, l));
            }
        }
        out->n_ids = 1;
        out->ids[0] = token_of(hash, n->seeds[row->sampling]);
        out->logprobs[0] = -1.0f;
        n->last[row->sampling] = out->ids[0];
    }
}

/* The token after the `len` of text, through a window. */
static int32_t next_token(const int32_t *text, uint32_t len, uint64_t seed, uint32_t window)
{
    uint64_t hash = 0;
    for (uint32_t pos = first_seen(len, window); pos < len; pos++) {
        for (uint32_t l = 0; l < RIG_LAYERS; l++) {
            hash = td_mix64(hash ^ cell(text[pos], pos, l));
        }
    }
    return token_of(hash, seed);
}

static int32_t expect_windowed(const struct td_wire_request *q, uint32_t index, uint32_t window)
{
    static int32_t text[4096];
    uint32_t n = q->n_prompt - q->n_replayed;
    assert_true(n + index < 4096);
    memcpy(text, q->prompt, n * sizeof *text);
    for (uint32_t len = n; len <= n + index; len++) {
        text[len] = next_token(text, len, q->sampling.seed, window);
    }
    return text[n + index];
}

int32_t rig_expect(const struct td_wire_request *q, uint32_t index)
{
    uint32_t n = q->n_prompt - q->n_replayed;
    int32_t token = 0;
    uint64_t hash = 0;
    for (uint32_t pos = 0; pos < n + index; pos++) {
        token = pos < n ? q->prompt[pos] : token_of(hash, q->sampling.seed);
        for (uint32_t l = 0; l < RIG_LAYERS; l++) {
            hash = td_mix64(hash ^ cell(token, pos, l));
        }
    }
    return token_of(hash, q->sampling.seed);
}

/* ---- the fake data plane ---- */

static struct rig_land *find_land(struct rig_node *n, uint64_t land)
{
    for (uint32_t i = 0; i < n->n_lands; i++) {
        if (n->lands[i].land == land) {
            return &n->lands[i];
        }
    }
    return NULL;
}

static void say_pushed(struct rig *r, uint32_t node, uint64_t push, td_err err, uint64_t bytes)
{
    struct td_xfer_event ev = {.type = TD_XFER_PUSHED,
                               .push = push,
                               .err = err,
                               .n_bytes = bytes,
                               .first_post_us = r->now,
                               .last_done_us = r->now + 10,
                               .transport = "rig"};
    rig_xfer(r, node, &ev);
}

/* Copies one push's slices into the peer's land, if it still accepts them. */
static void post_push(struct rig *r, uint32_t node, const struct td_xfer_cmd *cmd)
{
    struct rig_node *p = &r->node[node];
    uint32_t peer = 0;
    struct rig_node *d = by_epoch(r, cmd->epoch, &peer);
    uint64_t bytes = (uint64_t)cmd->n_blocks * RIG_LAYERS * RIG_BLOCK * 8;
    if (d == NULL) {
        say_pushed(r, node, cmd->push, TD_ERR_PEER_LOST, 0);
        return;
    }
    struct rig_land *land = find_land(d, cmd->land);
    if (land != NULL && land->peer == p->epoch) {
        assert_true(cmd->first_block + cmd->n_blocks <= land->n_blocks);
        for (uint32_t b = 0; b < cmd->n_blocks; b++) {
            struct td_block_ref to = land->blocks[cmd->first_block + b];
            assert_int_equal(to.index, cmd->blocks[b].index);
            assert_int_equal(to.generation, cmd->blocks[b].generation);
            for (uint32_t l = 0; l < RIG_LAYERS; l++) {
                memcpy(kv_at(d, to.index, l), kv_at(p, cmd->src[b], l), RIG_BLOCK * 8);
            }
        }
        land->n_slices += RIG_LAYERS;
        land->n_bytes += bytes;
        struct td_xfer_event ev = {.type = d->bad_slices ? TD_XFER_LAND_BAD : TD_XFER_LANDED,
                                   .land = cmd->land,
                                   .err = d->bad_slices ? TD_ERR_KV_MISMATCH : TD_OK,
                                   .n_slices = land->n_slices,
                                   .n_bytes = land->n_bytes,
                                   .transport = "rig"};
        rig_xfer(r, peer, &ev);
    }
    say_pushed(r, node, cmd->push, TD_OK, bytes);
}

static void post_ready(struct rig *r, uint32_t node, td_ticket done)
{
    struct rig_node *n = &r->node[node];
    for (uint32_t i = 0; i < n->n_pushes && !n->hold_pushes;) {
        if (n->pushes[i].cmd.ticket <= done) {
            post_push(r, node, &n->pushes[i].cmd);
            drop_push(n, i);
        } else {
            i++;
        }
    }
}

void rig_post(struct rig *r, uint32_t node)
{
    post_ready(r, node, r->node[node].ticket - r->node[node].n_steps);
}

static void cancel_push(struct rig *r, uint32_t node, uint64_t push)
{
    struct rig_node *n = &r->node[node];
    for (uint32_t i = 0; i < n->n_pushes; i++) {
        if (n->pushes[i].cmd.push == push) {
            drop_push(n, i);
            say_pushed(r, node, push, TD_ERR_CANCELLED, 0);
            return;
        }
    }
}

static void unland(struct rig *r, uint32_t node, uint64_t land)
{
    struct rig_node *n = &r->node[node];
    struct rig_land *l = find_land(n, land);
    assert_non_null(l);
    l->closing = true;
    if (!n->hold_unlanded) {
        rig_fence(r, node);
    }
}

void rig_end_push(struct rig *r, uint32_t node, td_err err)
{
    struct rig_node *n = &r->node[node];
    assert_true(n->n_pushes > 0);
    say_pushed(r, node, n->pushes[0].cmd.push, err, err == TD_OK ? 128 : 0);
    drop_push(n, 0);
}

void rig_fence(struct rig *r, uint32_t node)
{
    struct rig_node *n = &r->node[node];
    for (uint32_t i = 0; i < n->n_lands;) {
        if (n->lands[i].closing) {
            struct td_xfer_event ev = {.type = TD_XFER_UNLANDED, .land = n->lands[i].land};
            drop_land(n, i);
            rig_xfer(r, node, &ev);
        } else {
            i++;
        }
    }
}

/* A block in which slices of one land may still be written belongs to no other. */
static void assert_fenced(const struct rig_node *n, const struct td_xfer_cmd *cmd)
{
    for (uint32_t i = 0; i < n->n_lands; i++) {
        for (uint32_t a = 0; a < n->lands[i].n_blocks; a++) {
            for (uint32_t b = 0; b < cmd->n_blocks; b++) {
                assert_int_not_equal(n->lands[i].blocks[a].index, cmd->blocks[b].index);
            }
        }
    }
}

/* Every push has its PUSHED, come what may. */
static void end_pushes(struct rig *r, uint32_t node, uint64_t epoch)
{
    struct rig_node *n = &r->node[node];
    for (uint32_t i = 0; i < n->n_pushes;) {
        if (n->pushes[i].cmd.epoch == epoch) {
            say_pushed(r, node, n->pushes[i].cmd.push, TD_ERR_PEER_LOST, 0);
            drop_push(n, i);
        } else {
            i++;
        }
    }
}

void rig_lose(struct rig *r, uint32_t node, uint64_t epoch)
{
    struct td_xfer_event ev = {.type = TD_XFER_PEER_LOST, .epoch = epoch};
    end_pushes(r, node, epoch);
    rig_xfer(r, node, &ev);
}

static void close_peer(struct rig *r, uint32_t node, uint64_t epoch)
{
    struct rig_node *n = &r->node[node];
    for (uint32_t i = 0; i < n->n_lands;) {
        if (n->lands[i].peer == epoch && n->lands[i].closing) { /* others wait for UNLAND */
            drop_land(n, i);
        } else {
            i++;
        }
    }
    end_pushes(r, node, epoch);
    struct td_xfer_event ev = {.type = TD_XFER_CLOSED, .epoch = epoch};
    rig_xfer(r, node, &ev);
}

static void keep_mail(struct rig *r, uint32_t node, uint64_t to, const struct td_wire_msg *m)
{
    if (r->n_mail == r->cap_mail) {
        r->cap_mail = r->cap_mail * 2 + 64;
        r->mail = realloc(r->mail, r->cap_mail * sizeof *r->mail);
        assert_non_null(r->mail);
    }
    r->mail[r->n_mail++] = (struct rig_mail){to, node, keep_msg(m)};
}

static void send_peer(struct rig *r, uint32_t node, uint64_t epoch, const struct td_wire_msg *m)
{
    uint32_t peer = 0;
    keep_mail(r, node, epoch, m);
    if ((r->drop & 1u << m->type) != 0 || by_epoch(r, epoch, &peer) == NULL) {
        return;
    }
    rig_peer_msg(r, peer, r->node[node].epoch, m);
}

static void do_xfer(struct rig *r, uint32_t node, const struct nd_action *a)
{
    struct rig_node *n = &r->node[node];
    const struct td_xfer_cmd *cmd = &a->cmd;
    switch (cmd->type) {
    case TD_XFER_CONNECT:
        break;
    case TD_XFER_SEND:
        send_peer(r, node, cmd->epoch, a->msg);
        break;
    case TD_XFER_LAND:
        assert_true(cmd->land != 0 && n->n_lands < RIG_MAX_LANDS &&
                    find_land(n, cmd->land) == NULL);
        assert_fenced(n, cmd);
        n->lands[n->n_lands++] =
            (struct rig_land){.land = cmd->land,
                              .peer = cmd->epoch,
                              .blocks = copy_of(cmd->blocks, cmd->n_blocks * sizeof *cmd->blocks),
                              .n_blocks = cmd->n_blocks};
        break;
    case TD_XFER_UNLAND:
        unland(r, node, cmd->land);
        break;
    case TD_XFER_PUSH: {
        assert_true(cmd->push != 0 && n->n_pushes < RIG_MAX_PUSH);
        struct rig_push *p = &n->pushes[n->n_pushes++];
        p->cmd = *cmd;
        p->cmd.blocks = copy_of(cmd->blocks, cmd->n_blocks * sizeof *cmd->blocks);
        p->cmd.src = copy_of(cmd->src, cmd->n_blocks * sizeof *cmd->src);
        rig_post(r, node);
        break;
    }
    case TD_XFER_PUSH_CANCEL:
        cancel_push(r, node, cmd->push);
        break;
    case TD_XFER_CLOSE:
        close_peer(r, node, cmd->epoch);
        break;
    }
}

/* ---- actions ---- */

static void do_step(struct rig_node *n, const struct nd_action *a)
{
    assert_true(n->n_steps < n->max_steps);
    assert_true(a->n_rows > 0 && a->n_rows <= n->info.max_rows);
    struct rig_step *step = &n->steps[n->n_steps++];
    step->n_rows = 0;
    n->ticket++;
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < a->n_rows; i++) {
        const struct td_row *row = &a->rows[i];
        assert_true(row->n > 0 && row->pos + row->n <= row->n_blocks * RIG_BLOCK);
        assert_true(row->sampling == TD_NO_SAMPLE || row->sampling < n->info.max_slots);
        assert_true(row->tokens != NULL || (n->n_steps > 1 && row->n == 1));
        step->rows[step->n_rows++] = (struct rig_row){
            .seq = row->seq,
            .pos = row->pos,
            .n = row->n,
            .want = row->want,
            .n_blocks = row->n_blocks,
            .sampling = row->sampling,
            .tokens =
                row->tokens != NULL ? copy_of(row->tokens, row->n * sizeof *row->tokens) : NULL,
            .table = copy_of(row->table, row->n_blocks * sizeof *row->table)};
        tokens += row->n;
        n->output_pos = row->n > 1 ? row->output_pos : n->output_pos;
    }
    assert_true(tokens <= n->info.max_tokens);
}

static void assert_slot_idle(const struct rig_node *n, uint32_t slot)
{
    for (uint32_t i = 0; i < n->n_steps; i++) {
        for (uint32_t k = 0; k < n->steps[i].n_rows; k++) {
            assert_int_not_equal(n->steps[i].rows[k].sampling, slot);
        }
    }
}

static void carry_out(struct rig *r, uint32_t node)
{
    struct rig_node *n = &r->node[node];
    assert_false(n->actions.overflow);
    for (uint32_t i = 0; i < n->actions.n; i++) {
        const struct nd_action *a = &n->actions.list[i];
        switch (a->type) {
        case ND_DO_SEND:
            keep_mail(r, node, a->router_epoch, a->msg);
            break;
        case ND_DO_SEQ_SET:
            assert_true(a->slot < n->info.max_slots);
            assert_slot_idle(n, a->slot);
            n->seeds[a->slot] = a->sampling->p.seed;
            break;
        case ND_DO_STEP:
            do_step(n, a);
            break;
        case ND_DO_XFER:
            do_xfer(r, node, a);
            break;
        case ND_DO_OBSERVE:
            n->n_observed[a->metric]++;
            break;
        case ND_DO_DONE:
            n->n_done++;
            n->done = *a->done;
            break;
        }
    }
}

/* ---- events ---- */

static void assert_waits(const struct rig *r, uint32_t node)
{
    struct nd_wait w[1024];
    const struct rig_node *n = &r->node[node];
    uint32_t count = n->ops->waits(n->core, w, 1024);
    assert_true(count >= n->ops->work_count(n->core) || count == 1024);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(w[i].deadline_us != TD_NEVER && w[i].deadline_us > r->now);
        assert_true(w[i].deadline_us >= n->ops->next_deadline(n->core));
        assert_true(w[i].what[0] != '\0');
    }
}

static void feed(struct rig *r, uint32_t node, const struct nd_event *ev)
{
    struct rig_node *n = &r->node[node];
    nd_actions_reset(&n->actions);
    n->ops->step(n->core, r->now, ev, &n->actions);
    carry_out(r, node);
    assert_int_equal(n->ops->check(n->core), TD_OK);
    assert_waits(r, node);
}

void rig_msg(struct rig *r, uint32_t node, const struct td_wire_msg *m, td_err decode_err)
{
    struct rig_event *e = new_event(r, node, ND_EV_MSG);
    const struct td_work_id *id = nd_msg_work(m);
    e->router = id != NULL ? id->router_epoch : RIG_ROUTER;
    e->msg = keep_msg(m);
    e->has_msg = true;
    e->decode_err = decode_err;
}

void rig_peer_msg(struct rig *r, uint32_t node, uint64_t from, const struct td_wire_msg *m)
{
    struct rig_event *e = new_event(r, node, ND_EV_XFER);
    e->xfer = (struct td_xfer_event){.type = TD_XFER_MSG, .epoch = from};
    e->msg = keep_msg(m);
    e->has_msg = true;
}

void rig_xfer(struct rig *r, uint32_t node, const struct td_xfer_event *ev)
{
    new_event(r, node, ND_EV_XFER)->xfer = *ev;
}

void rig_plain(struct rig *r, uint32_t node, enum nd_event_type type, int64_t deadline_us)
{
    struct rig_event *e = new_event(r, node, type);
    e->router = RIG_ROUTER;
    e->deadline_us = deadline_us;
}

void rig_deliver(struct rig *r)
{
    while (r->at_line < r->n_line) {
        struct rig_event e = r->line[r->at_line++];
        struct nd_event ev = {.type = e.type,
                              .router_epoch = e.router,
                              .msg = e.has_msg ? &e.msg : NULL,
                              .decode_err = e.decode_err,
                              .xfer = &e.xfer,
                              .deadline_us = e.deadline_us};
        if (!r->node[e.node].dead) {
            feed(r, e.node, &ev);
        }
        drop_msg(&e.msg);
    }
    r->n_line = r->at_line = 0;
}

bool rig_finish(struct rig *r, uint32_t node)
{
    struct rig_node *n = &r->node[node];
    if (n->n_steps == 0 || n->dead) {
        return false;
    }
    struct td_row_result results[RIG_MAX_ROWS];
    uint32_t n_rows = n->steps[0].n_rows;
    for (uint32_t i = 0; i < n_rows; i++) {
        run_row(n, &n->steps[0].rows[i], &results[i]);
    }
    drop_step(n);
    td_ticket done = n->ticket - n->n_steps;
    post_ready(r, node, done);
    struct td_step_result res = {
        .ticket = done, .n_rows = n_rows, .rows = results, .exec_us = 1000};
    struct nd_event ev = {.type = ND_EV_STEP, .step = &res};
    r->now += 1000;
    feed(r, node, &ev);
    rig_deliver(r);
    return true;
}

void rig_settle(struct rig *r)
{
    bool moved = true;
    rig_deliver(r);
    for (int rounds = 0; moved; rounds++) {
        assert_true(rounds < 100000);
        moved = false;
        for (uint32_t i = 0; i < r->n_nodes; i++) {
            moved = rig_finish(r, i) || moved;
        }
    }
}

void rig_pass(struct rig *r, int64_t us)
{
    int64_t until = r->now + us;
    for (;;) {
        int64_t first = TD_NEVER;
        uint32_t who = 0;
        for (uint32_t i = 0; i < r->n_nodes; i++) {
            int64_t at = r->node[i].ops->next_deadline(r->node[i].core);
            if (!r->node[i].dead && at < first) {
                first = at;
                who = i;
            }
        }
        if (first > until) {
            break;
        }
        r->now = first > r->now ? first : r->now;
        struct nd_event ev = {.type = ND_EV_TICK};
        feed(r, who, &ev);
        rig_deliver(r);
    }
    r->now = until;
}

void rig_kill(struct rig *r, uint32_t node)
{
    r->node[node].dead = true;
    for (uint32_t i = 0; i < r->n_nodes; i++) {
        rig_lose(r, i, r->node[node].epoch);
    }
}

/* ---- requests ---- */

struct td_wire_request rig_request(uint64_t counter, uint32_t n_prompt, uint32_t max_tokens)
{
    enum { KEPT = 64, LONGEST = 2048 };
    static int32_t prompts[KEPT][LONGEST];
    assert_true(n_prompt <= LONGEST);
    int32_t *ids = prompts[counter % KEPT];
    for (uint32_t i = 0; i < n_prompt; i++) {
        ids[i] = (int32_t)(td_mix64(counter * 1000003 + i) % RIG_VOCAB);
    }
    return (struct td_wire_request){
        .id = {RIG_ROUTER, counter, 0, 0},
        .budget_ms = 60000,
        .tenant = "",
        .traceparent = "",
        .request_id = "",
        .adapter = "",
        .numerics_id = RIG_NUMERICS,
        .layout_id = RIG_LAYOUT_ID,
        .prompt = ids,
        .n_prompt = n_prompt,
        .sampling = {
            .top_p = 1, .repetition_penalty = 1, .seed = counter + 5, .max_tokens = max_tokens}};
}

static struct td_wire_ticket ticket(uint32_t p, uint32_t d, const struct td_wire_request *q)
{
    struct td_wire_ticket t = {.p_epoch = EPOCH(p), .d_epoch = EPOCH(d), .life_ms = 60000};
    t.nonce[0] = (uint8_t)q->id.counter;
    t.nonce[1] = (uint8_t)q->id.attempt;
    return t;
}

struct td_wire_msg rig_prefill(const struct rig *r, uint32_t p, uint32_t d,
                               const struct td_wire_request *q)
{
    (void)r;
    return (struct td_wire_msg){
        .type = TD_WIRE_PREFILL,
        .prefill = {.r = *q, .ticket = ticket(p, d, q), .decode_node = "d"}};
}

struct td_wire_msg rig_reserve(const struct rig *r, uint32_t p, uint32_t d,
                               const struct td_wire_request *q)
{
    static const uint8_t address[] = "address of p";
    (void)r;
    return (struct td_wire_msg){.type = TD_WIRE_RESERVE,
                                .reserve = {.r = *q,
                                            .mode = TD_RESERVE_REMOTE,
                                            .ticket = ticket(p, d, q),
                                            .prefill_node = "p",
                                            .p_address = address,
                                            .p_address_len = sizeof address}};
}

struct td_wire_msg rig_reserve_local(const struct td_wire_request *q)
{
    return (struct td_wire_msg){.type = TD_WIRE_RESERVE,
                                .reserve = {.r = *q, .mode = TD_RESERVE_LOCAL, .prefill_node = ""}};
}

struct td_wire_msg rig_cancel(const struct td_work_id *id)
{
    return (struct td_wire_msg){.type = TD_WIRE_CANCEL,
                                .cancel = {.id = *id, .reason = TD_ERR_CANCELLED}};
}

void rig_ask(struct rig *r, uint32_t p, uint32_t d, const struct td_wire_request *q)
{
    struct td_wire_msg prefill = rig_prefill(r, p, d, q);
    struct td_wire_msg reserve = rig_reserve(r, p, d, q);
    rig_msg(r, p, &prefill, TD_OK);
    rig_msg(r, d, &reserve, TD_OK);
}

/* ---- what routers got ---- */

static const struct td_work_id *mail_id(const struct td_wire_msg *m)
{
    return m->type == TD_WIRE_END          ? &m->end.id
           : m->type == TD_WIRE_CANCEL_ACK ? &m->cancel_ack.id
           : m->type == TD_WIRE_TABLE      ? &m->table.id
           : m->type == TD_WIRE_RECORD     ? &m->record.id
           : m->type == TD_WIRE_TAKEN      ? &m->taken.id
           : m->type == TD_WIRE_ABORT      ? &m->abort.id
                                           : NULL;
}

const struct td_wire_msg *rig_last(const struct rig *r, uint32_t node, enum td_wire_type type,
                                   const struct td_work_id *id)
{
    for (uint32_t i = r->n_mail; i-- > 0;) {
        const struct td_wire_msg *m = &r->mail[i].msg;
        if (r->mail[i].node == node && m->type == type && mail_id(m) != NULL &&
            td_work_id_eq(mail_id(m), id)) {
            return m;
        }
    }
    return NULL;
}

uint32_t rig_count(const struct rig *r, uint32_t node, enum td_wire_type type,
                   const struct td_work_id *id)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_mail; i++) {
        const struct td_wire_msg *m = &r->mail[i].msg;
        if (r->mail[i].node == node && m->type == type && mail_id(m) != NULL) {
            n += td_work_id_eq(mail_id(m), id);
        }
    }
    return n;
}

const struct td_wire_end *rig_end(const struct rig *r, uint32_t node, const struct td_work_id *id)
{
    assert_true(rig_count(r, node, TD_WIRE_END, id) <= 1);
    for (uint32_t i = 0; i < r->n_mail; i++) {
        const struct td_wire_msg *m = &r->mail[i].msg;
        if (r->mail[i].node == node && m->type == TD_WIRE_END && td_work_id_eq(&m->end.id, id)) {
            return &m->end;
        }
    }
    return NULL;
}

uint32_t rig_tokens(const struct rig *r, const struct td_wire_request *q)
{
    uint32_t next = q->n_replayed;
    uint32_t window = r->node[0].info.layout.window; /* every node's */
    for (uint32_t i = 0; i < r->n_mail; i++) {
        const struct td_wire_msg *m = &r->mail[i].msg;
        for (uint32_t k = 0; m->type == TD_WIRE_TOKENS && k < m->tokens.n; k++) {
            const struct td_wire_token *t = &m->tokens.tokens[k];
            if (!td_work_id_eq(&t->id, &q->id)) {
                continue;
            }
            assert_true(t->index <= next);
            assert_int_equal(t->token, window == 0 ? rig_expect(q, t->index)
                                                   : expect_windowed(q, t->index, window));
            next += t->index == next;
        }
    }
    return next - q->n_replayed;
}

enum td_finish rig_finish_of(const struct rig *r, const struct td_work_id *id)
{
    enum td_finish f = TD_FINISH_NONE;
    for (uint32_t i = 0; i < r->n_mail; i++) {
        const struct td_wire_msg *m = &r->mail[i].msg;
        for (uint32_t k = 0; m->type == TD_WIRE_TOKENS && k < m->tokens.n; k++) {
            if (td_work_id_eq(&m->tokens.tokens[k].id, id)) {
                f = m->tokens.tokens[k].finish;
            }
        }
    }
    return f;
}

struct td_wire_state rig_state(const struct rig *r, uint32_t node)
{
    struct td_wire_state s = {0};
    r->node[node].ops->state(r->node[node].core, &s);
    return s;
}

uint32_t rig_blocks(const struct rig *r, uint32_t node, enum td_blk_state s)
{
    return rig_state(r, node).blocks[s];
}

void rig_assert_idle(const struct rig *r, uint32_t node)
{
    const struct rig_node *n = &r->node[node];
    assert_int_equal(n->ops->work_count(n->core), 0);
    assert_int_equal(rig_blocks(r, node, TD_BLK_FREE), n->info.n_blocks);
    assert_int_equal(n->n_lands, 0);
    assert_int_equal(n->n_pushes, 0);
    assert_true(n->ops->next_deadline(n->core) == TD_NEVER);
}

const char *rig_wait(const struct rig *r, uint32_t node, const struct td_work_id *id)
{
    struct nd_wait w[1024];
    const struct rig_node *n = &r->node[node];
    uint32_t count = n->ops->waits(n->core, w, 1024);
    for (uint32_t i = 0; i < count; i++) {
        if (td_work_id_eq(&w[i].id, id)) {
            return w[i].what;
        }
    }
    return "";
}
