/* cpu_engine_run.c - the forward pass of one step, run by every member of the team side by side.
 *
 * Design: a phase is a list of items and ends in a barrier; what follows per token (norms, rope,
 * quantising) runs inside that barrier when the step has one or two tokens, else as a phase of its
 * own. Members keep the same order of phases, so a pass needs no other signal. In a group of ranks the barrier also
 * holds the trade with the others, and what a trade brought is unpacked per token behind it. */
#define TD_LOG_ROOM "model"
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/model/cpu_engine_ranks.h"

#define TOKENS_PER_ITEM 8
#define SHARES          UINT32_MAX   /* one item a member */
#define WARM_BYTES      (16u * 1024) /* of the next weights, asked for before a barrier */

struct pass;
typedef void (*token_fn)(struct pass *p, uint32_t t);

struct part {
    const struct tk_packed *w;
    float *y;
};

/* One member's view of the running step. */
struct pass {
    struct td__ce *e;
    struct td_step *s;
    struct td__ce_member *me;
    uint32_t member, layer, head0;
    /* current phase */
    struct part parts[3];
    uint32_t n_parts, tiles_per_item, rows;
    const struct tk_act *act;
    const struct tk_packed *next; /* weights of the phase after, or NULL */
    size_t y_stride;
    bool add;
    token_fn then;
    uint32_t n_then;
    bool opens;   /* this layer's attention begins after the phase */
    bool publish; /* this layer's K and V are complete after the phase */
    /* in a group: what is traded after the phase, and what is done with it per token or row */
    enum td__ce_trade_kind trade;
    token_fn after;
    float *logits;   /* rank 0: of the LM head's rows */
    uint32_t slice0; /* of the landed slices that are traded */
};

static void put_act(const struct td__ce *e, const struct tk_act *a, uint32_t row, const float *src,
                    uint32_t n, uint32_t b0)
{
    if (a->x != NULL) {
        memcpy(a->x + (size_t)row * a->k + (size_t)b0 * TK_QK, src, n * sizeof *src);
    } else {
        e->ops->quant(src, n, a, row, b0);
    }
}

static void publish_layer(struct pass *p)
{
    struct td__ce *e = p->e;
    if (td__ce_helps(e) || td__ce_over(e)) {
        return;
    }
    td_steps_layer(&e->q, p->s, p->layer + 1);
    if (p->s->push_layers) {
        TD_LOG(DEBUG, "layer final", "ticket=%" PRIu64 " layer=%u at_us=%" PRId64, p->s->ticket,
               p->layer, td_now_us());
    }
    TD_FAULT_DELAY(STEP_LAYER_PAUSE);
}

static void end_phase(void *arg)
{
    struct pass *p = arg;
    if (p->opens) {
        p->e->layer = p->layer;
    }
    if (p->publish) {
        publish_layer(p);
    }
}

/* The serial piece that ends a phase. What a trade brought for many tokens is left to a phase of its own. */
static void finish_phase(void *arg)
{
    struct pass *p = arg;
    if (p->trade != TD__CE_NO_TRADE) {
        td__ce_trade(p->e, p->trade, p->rows);
        if (p->after != NULL && p->rows > TD__CE_SERIAL_TOK) {
            return;
        }
        for (uint32_t t = 0; p->after != NULL && t < p->rows; t++) {
            p->after(p, t);
        }
    }
    end_phase(arg);
}

static void then_all(void *arg)
{
    struct pass *p = arg;
    for (uint32_t t = 0; t < p->n_then; t++) {
        p->then(p, t);
    }
    finish_phase(arg);
}

static void then_some(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    uint32_t t = item * TOKENS_PER_ITEM;
    uint32_t end = t + TOKENS_PER_ITEM < p->n_then ? t + TOKENS_PER_ITEM : p->n_then;
    for (; t < end; t++) {
        p->then(p, t);
    }
}

static uint32_t token_items(uint32_t n_tok)
{
    return (n_tok + TOKENS_PER_ITEM - 1) / TOKENS_PER_ITEM;
}

/* Items of a phase up to a barrier: taken one by one, or one share a member (n_items SHARES). */
static void run_items(struct pass *p, uint32_t n_items, td_team_item_fn item,
                      td_team_serial_fn serial)
{
    if (n_items == SHARES) {
        td_team_share(&p->e->team, p->member, item, serial, p);
    } else {
        td_team_run(&p->e->team, p->member, n_items, item, serial, p);
    }
}

/* Items of a phase, then `then` for tokens [0, n_then). */
static void run_phase(struct pass *p, uint32_t n_items, td_team_item_fn item, token_fn then,
                      uint32_t n_then)
{
    struct td_team *team = &p->e->team;
    p->then = then;
    p->n_then = n_then;
    if (then == NULL) {
        run_items(p, n_items, item, finish_phase);
    } else if (n_then <= TD__CE_SERIAL_TOK) {
        run_items(p, n_items, item, then_all);
    } else {
        if (n_items > 0) {
            run_items(p, n_items, item, NULL);
        }
        td_team_run(team, p->member, token_items(n_then), then_some, finish_phase, p);
    }
    if (p->trade != TD__CE_NO_TRADE && p->after != NULL && p->rows > TD__CE_SERIAL_TOK) {
        p->then = p->after;
        p->n_then = p->rows;
        td_team_run(team, p->member, token_items(p->rows), then_some, end_phase, p);
    }
    p->opens = p->publish = false;
    p->trade = TD__CE_NO_TRADE;
}

static void gemm_tiles(struct pass *p, const struct part *part, uint32_t tile, uint32_t n)
{
    struct tk_gemm g = {.w = part->w,
                        .a = p->act,
                        .m = p->rows,
                        .y = part->y,
                        .y_stride = p->y_stride,
                        .add = p->add,
                        .wide = p->act == &p->e->act_head && !p->e->f32};
    p->e->ops->gemm(&g, tile, n);
}

static void gemm_item(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        uint32_t tiles = p->parts[i].w->n_tiles;
        uint32_t items = (tiles + p->tiles_per_item - 1) / p->tiles_per_item;
        if (item >= items) {
            item -= items;
            continue;
        }
        uint32_t tile = item * p->tiles_per_item, n = tiles - tile;
        gemm_tiles(p, &p->parts[i], tile, n < p->tiles_per_item ? n : p->tiles_per_item);
        return;
    }
}

/* Where a member's share of n things begins. */
static uint32_t share_begin(const struct pass *p, uint32_t n, uint32_t member)
{
    return (uint32_t)((uint64_t)n * member / p->e->team.n);
}

/* Starts loading this member's share of w, so that the barrier's wait is not lost. */
static void warm(const struct pass *p, const struct tk_packed *w)
{
    const uint8_t *at =
        w->data + (size_t)share_begin(p, w->n_tiles, p->member) * (w->k / TK_QK) * w->tile_bytes;
    for (uint32_t i = 0; i < WARM_BYTES; i += 64) {
        __builtin_prefetch(at + i, 0, 2);
    }
}

/* One long stream of weights a member: few rows are bound by memory, and streams by their starts. */
static void gemm_share(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        uint32_t tiles = p->parts[i].w->n_tiles, from = share_begin(p, tiles, item);
        gemm_tiles(p, &p->parts[i], from, share_begin(p, tiles, item + 1) - from);
    }
    if (p->next != NULL) {
        warm(p, p->next);
    }
}

/* Runs p->parts: by shares for few rows, else about eight items a member, so that a disturbed core
 * sheds its part. */
static void run_gemm(struct pass *p, token_fn then, uint32_t n_then)
{
    uint32_t tiles = 0, items = 0;
    if (p->rows <= TD__CE_SHARE_TOK) {
        run_phase(p, SHARES, gemm_share, then, n_then);
        return;
    }
    for (uint32_t i = 0; i < p->n_parts; i++) {
        tiles += p->parts[i].w->n_tiles;
    }
    uint32_t per = p->e->team.n == 1 ? tiles : tiles / (p->e->team.n * 8);
    p->tiles_per_item = per < 1 ? 1 : per > 4 && p->e->team.n > 1 ? per / 4 * 4 : per;
    for (uint32_t i = 0; i < p->n_parts; i++) {
        items += (p->parts[i].w->n_tiles + p->tiles_per_item - 1) / p->tiles_per_item;
    }
    run_phase(p, items, gemm_item, then, n_then);
}

/* The LM head's rows: 16-bit activations in int8 numerics, which decide most near ties. */
static void put_head(const struct td__ce *e, uint32_t row, const float *src)
{
    if (e->f32) {
        memcpy(e->act_head.x + (size_t)row * e->embd, src, e->embd * sizeof *src);
    } else {
        e->ops->quant_wide(src, e->embd, &e->act_head, row);
    }
}

static void norm_into(struct pass *p, const struct tk_act *a, uint32_t row, uint32_t t,
                      const float *w)
{
    struct td__ce *e = p->e;
    e->ops->rmsnorm(e->x + (size_t)t * e->embd, w, e->embd, e->model->hp.rms_eps, p->me->norm);
    put_act(e, a, row, p->me->norm, e->embd, 0);
}

static void embed_token(struct pass *p, uint32_t t)
{
    struct td__ce *e = p->e;
    const uint8_t *row = (const uint8_t *)e->embedding.data +
                         (size_t)(uint32_t)p->s->tokens[t] * e->embedding.row_bytes;
    tk_dequant(e->embedding.type, row, e->embd, e->x + (size_t)t * e->embd);
    norm_into(p, &e->act_embd, t, t, e->layers[0].attn_norm);
}

/* What some architectures do to queries, keys and values before they turn. */
static void adjust_heads(const struct pass *p, float *q, float *k, float *v)
{
    const struct td__ce *e = p->e;
    const struct td__ce_layer *l = &e->layers[p->layer];
    if (l->q_bias != NULL) {
        tk_add_bias(q, l->q_bias, e->q_width);
        tk_add_bias(k, l->k_bias, e->kv_width);
        tk_add_bias(v, l->v_bias, e->kv_width);
    }
    if (l->q_norm == NULL) {
        return;
    }
    for (uint32_t h = 0; h < e->n_heads; h++, q += e->dim) {
        e->ops->rmsnorm(q, l->q_norm, e->dim, e->model->hp.rms_eps, q);
    }
    for (uint32_t h = 0; h < e->n_kv; h++, k += e->dim) {
        e->ops->rmsnorm(k, l->k_norm, e->dim, e->model->hp.rms_eps, k);
    }
}

static void rope_token(struct pass *p, uint32_t t)
{
    struct td__ce *e = p->e;
    const struct td_step_row *row = &p->s->rows[p->e->tok_row[t]];
    uint32_t pos = row->pos + (t - row->token0), slot = pos % TK_BLOCK_TOK;
    float *q = e->qkv + (size_t)t * e->qkv_width, *k = q + e->q_width, *v = k + e->kv_width;
    const float *cs = e->rope + (size_t)pos * e->rope_dim;
    enum tk_rope_style style =
        e->model->hp.rope_style == TD_ROPE_HALVES ? TK_ROPE_HALVES : TK_ROPE_PAIRS;
    adjust_heads(p, q, k, v);
    tk_rope(q, cs, e->n_heads, e->dim, e->rope_dim, style, e->q_scale);
    tk_rope(k, cs, e->n_kv, e->dim, e->rope_dim, style, 1);
    for (uint32_t h = 0; h < e->n_kv; h++) {
        td_block_id block = row->table[pos / TK_BLOCK_TOK];
        void *kb = td__ce_kv(e, block, p->layer, h, 0), *vb = td__ce_kv(e, block, p->layer, h, 1);
        if (e->f32) {
            tk_kv_write_f32(k + h * e->dim, v + h * e->dim, e->dim, slot, kb, vb);
        } else {
            tk_kv_write_bf16(k + h * e->dim, v + h * e->dim, e->dim, slot, kb, vb);
        }
    }
    if (td__ce_helps(e)) {
        td__ce_lay_kv(e, p->layer, p->rows, t);
    }
}

static void attn_item(void *arg, uint32_t member, uint32_t item)
{
    td__ce_attn_task(((struct pass *)arg)->e, member, item);
}

static void collect_token(struct pass *p, uint32_t t)
{
    struct td__ce *e = p->e;
    const float *att = e->att + (size_t)t * e->q_width;
    td__ce_attn_collect(e, p->member, t);
    if (e->ranks == NULL) {
        put_act(e, &e->act_att, t, att, e->q_width, 0);
    } else {
        td__ce_lay_blocks(e, TD__CE_TRADE_ATT, p->rows, t, 0, att, e->q_width);
    }
}

static void take_att_token(struct pass *p, uint32_t t)
{
    td__ce_take_blocks(p->e, TD__CE_TRADE_ATT, p->rows, t);
    if (!td__ce_helps(p->e)) {
        td__ce_take_kv(p->e, p->layer, p->rows, t);
    }
}

static void take_ffn_token(struct pass *p, uint32_t t)
{
    td__ce_take_blocks(p->e, TD__CE_TRADE_FFN, p->rows, t);
}

static void ffn_norm_token(struct pass *p, uint32_t t)
{
    norm_into(p, &p->e->act_embd, t, t, p->e->layers[p->layer].ffn_norm);
}

/* After the last layer only the sampling rows are normalised: head_norm_row(). */
static void next_norm_token(struct pass *p, uint32_t t)
{
    norm_into(p, &p->e->act_embd, t, t, p->e->layers[p->layer + 1].attn_norm);
}

static void add_columns_token(struct pass *p, uint32_t t)
{
    td__ce_add_columns(p->e, p->rows, t);
}

static void add_and_ffn_norm_token(struct pass *p, uint32_t t)
{
    add_columns_token(p, t);
    ffn_norm_token(p, t);
}

static void add_and_next_norm_token(struct pass *p, uint32_t t)
{
    add_columns_token(p, t);
    next_norm_token(p, t);
}

/* 32 columns of gate and up, and what they become, for all rows. */
static void gate_item(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    struct td__ce *e = p->e;
    const struct td__ce_layer *l = &e->layers[p->layer];
    for (uint32_t row = 0; row < p->rows; row += TD__CE_GATE_ROWS) {
        uint32_t n = p->rows - row < TD__CE_GATE_ROWS ? p->rows - row : TD__CE_GATE_ROWS;
        struct tk_gemm g = {.w = &l->gate,
                            .a = &e->act_embd,
                            .row0 = row,
                            .m = n,
                            .y = p->me->gate,
                            .y_stride = TK_QK,
                            .col0 = item * TK_QK};
        e->ops->gemm(&g, item * 2, 2);
        g.w = &l->up;
        g.y = p->me->up;
        e->ops->gemm(&g, item * 2, 2);
        e->ops->swiglu(p->me->gate, p->me->up, n * TK_QK, p->me->gate);
        for (uint32_t r = 0; r < n; r++) {
            const float *v = p->me->gate + (size_t)r * TK_QK;
            if (e->ranks == NULL) {
                put_act(e, &e->act_ffn, row + r, v, TK_QK, item);
            } else {
                td__ce_lay_blocks(e, TD__CE_TRADE_FFN, p->rows, row + r, item, v, TK_QK);
            }
        }
    }
}

static void gate_share(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    uint32_t n = p->e->ffn / TK_QK;
    for (uint32_t i = share_begin(p, n, item); i < share_begin(p, n, item + 1); i++) {
        gate_item(arg, member, i);
    }
    warm(p, p->next);
}

static void set_gemm(struct pass *p, const struct tk_act *a, const struct tk_packed *w, float *y,
                     size_t stride, bool add)
{
    p->parts[0] = (struct part){w, y};
    p->n_parts = 1;
    p->act = a;
    p->y_stride = stride;
    p->add = add;
}

/* Adds a product to the residual stream, then `then`; a rank computes its columns of it, and adds what all have when
 * they have been traded. */
static void run_residual(struct pass *p, const struct tk_act *a, const struct tk_packed *w,
                         token_fn then, token_fn add_and_then)
{
    struct td__ce *e = p->e;
    if (e->ranks == NULL) {
        set_gemm(p, a, w, e->x, e->embd, true);
        run_gemm(p, then, p->rows);
        return;
    }
    set_gemm(p, a, w, td__ce_own_columns(e, TD__CE_TRADE_COLUMNS, p->rows), w->n, false);
    p->trade = TD__CE_TRADE_COLUMNS;
    p->after = add_and_then;
    run_gemm(p, NULL, 0);
}

/* What the members made by `then` or the phase's items goes to the other ranks. */
static void trade_after(struct pass *p, enum td__ce_trade_kind kind, token_fn take)
{
    if (p->e->ranks != NULL) {
        p->trade = kind;
        p->after = take;
    }
}

static void run_layer(struct pass *p)
{
    struct td__ce *e = p->e;
    const struct td__ce_layer *l = &e->layers[p->layer];
    uint32_t n = p->s->n_tok;
    bool last = p->layer + 1 == e->info.n_layers;
    set_gemm(p, &e->act_embd, &l->q, e->qkv, e->qkv_width, false);
    p->parts[1] = (struct part){&l->k, e->qkv + e->q_width};
    p->parts[2] = (struct part){&l->v, e->qkv + e->q_width + e->kv_width};
    p->n_parts = 3;
    p->opens = true;
    p->publish = e->ranks == NULL;
    p->next = &l->o;
    run_gemm(p, rope_token, n);
    trade_after(p, TD__CE_TRADE_ATT, take_att_token);
    p->publish = e->ranks != NULL; /* only now rank 0's pool has all heads */
    run_phase(p, e->n_attn_tasks, attn_item, collect_token, n);
    p->next = &l->gate;
    run_residual(p, &e->act_att, &l->o, ffn_norm_token, add_and_ffn_norm_token);
    p->next = &l->down;
    trade_after(p, TD__CE_TRADE_FFN, take_ffn_token);
    if (n <= TD__CE_SHARE_TOK) {
        run_phase(p, SHARES, gate_share, NULL, 0);
    } else {
        run_phase(p, e->ffn / TK_QK, gate_item, NULL, 0);
    }
    p->next = last ? &e->output : &l[1].q;
    run_residual(p, &e->act_ffn, &l->down, last ? NULL : next_norm_token,
                 last ? add_columns_token : add_and_next_norm_token);
}

/* Row i of the LM head's input: a sampling row's last token, or token head0 + i. */
static void head_norm_row(struct pass *p, uint32_t i)
{
    struct td__ce *e = p->e;
    uint32_t t = p->head0 + i;
    if (!e->every_logit) {
        const struct td_step_row *row = &p->s->rows[p->e->sample_rows[i]];
        t = row->token0 + row->n - 1;
    }
    e->ops->rmsnorm(e->x + (size_t)t * e->embd, e->output_norm, e->embd, e->model->hp.rms_eps,
                    p->me->norm);
    put_head(e, i, p->me->norm);
}

static void sample_item(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    struct td__ce *e = p->e;
    uint32_t r = p->e->sample_rows[item];
    const struct td_step_row *row = &p->s->rows[r];
    td__ce_sample(e, member, &e->q.slots[row->sampling], e->logits + (size_t)item * e->info.n_vocab,
                  row->pos + row->n, row->want, &p->s->results[r]);
}

static void take_logits_row(struct pass *p, uint32_t i)
{
    td__ce_take_logits(p->e, p->rows, i, p->logits);
}

/* logits: [n][n_vocab], rank 0's and a single engine's; the others' columns travel to it. */
static void run_head(struct pass *p, uint32_t head0, uint32_t n, float *logits)
{
    struct td__ce *e = p->e;
    bool helps = td__ce_helps(e);
    p->head0 = head0;
    run_phase(p, 0, NULL, head_norm_row, n);
    p->rows = n;
    p->logits = logits;
    set_gemm(p, &e->act_head, &e->output,
             helps ? td__ce_own_columns(e, TD__CE_TRADE_LOGITS, n) : logits,
             helps ? e->n_out : e->info.n_vocab, false);
    p->next = NULL;
    trade_after(p, TD__CE_TRADE_LOGITS, helps ? NULL : take_logits_row);
    run_gemm(p, NULL, 0);
}

static void lay_slice_item(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    td__ce_lay_slice(p->e, p->rows, p->slice0, item);
}

static void take_slice_item(void *arg, uint32_t member, uint32_t item)
{
    struct pass *p = arg;
    td__ce_take_slice(p->e, p->rows, p->slice0, item);
}

/* KV that came into rank 0's pool from outside goes to the ranks, before anybody reads it. */
static void run_landed(struct pass *p)
{
    struct td__ce *e = p->e;
    bool helps = td__ce_helps(e);
    uint32_t total = e->ranks->n_landed * e->info.n_layers;
    for (p->slice0 = 0; p->slice0 < total && !td__ce_over(e); p->slice0 += p->rows) {
        uint32_t left = total - p->slice0, most = e->ranks->slices_per_trade;
        p->rows = left < most ? left : most;
        trade_after(p, TD__CE_TRADE_LANDED, NULL);
        run_phase(p, helps ? 0 : p->rows, lay_slice_item, NULL, 0);
        if (helps) {
            run_phase(p, p->rows, take_slice_item, NULL, 0);
        }
    }
    p->rows = p->s->n_tok;
}

static void run_layers(struct pass *p)
{
    for (p->layer = 0; p->layer < p->e->info.n_layers && !td__ce_over(p->e); p->layer++) {
        run_layer(p);
    }
}

void td__ce_run(struct td__ce *e, uint32_t member)
{
    struct td_step *s = e->running;
    /* Read here: after the last barrier of this step the leader may prepare the next one. */
    uint32_t n_sample = e->n_sample, n_tok = s->n_tok;
    bool every_logit = e->every_logit;
    struct pass p = {.e = e, .s = s, .me = &e->members[member], .member = member, .rows = s->n_tok};
    if (e->ranks != NULL) {
        run_landed(&p);
    }
    run_phase(&p, 0, NULL, embed_token, s->n_tok);
    run_layers(&p);
    if (td__ce_over(e)) {
        return;
    }
    if (every_logit) {
        for (uint32_t t = 0; t < n_tok; t += e->info.max_rows) {
            uint32_t n = n_tok - t < e->info.max_rows ? n_tok - t : e->info.max_rows;
            run_head(&p, t, n,
                     td__ce_helps(e) ? NULL : s->all_logits + (size_t)t * e->info.n_vocab);
        }
    } else if (n_sample > 0) {
        run_head(&p, 0, n_sample, e->logits);
        if (!td__ce_helps(e) && !td__ce_over(e)) {
            run_phase(&p, n_sample, sample_item, NULL, 0);
        }
    }
}
