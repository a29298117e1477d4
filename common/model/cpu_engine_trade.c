/* cpu_engine_trade.c - what ranks exchange between the phases of a pass, and where it lies.
 *
 * Design: in the wire buffer, rank p's piece of a trade of m tokens begins at m times the width of the ranks before it,
 * so a piece is contiguous whatever m is, and all ranks compute the same places from the shares alone. An ATT piece is
 * [m][blocks] followed by [m][own heads][K, V][dim] for rank 0; FFN is [m][blocks]; COLUMNS and LOGITS are [m][columns]
 * of floats; LANDED is [m] slices of the rank's heads. A block is what the next product's quantisation made of 32
 * values, less what follows from it. */
#include <string.h>

#include "common/model/cpu_engine_ranks.h"

/* A struct tk_qblk and its integers: `s` is d * sum (NUMERICS.md), the sums fit 16 bits. */
struct wire_block {
    int8_t q[TK_QK];
    float d;
    int16_t sum, sum_low;
};
_Static_assert(sizeof(struct wire_block) == 40, "a block of 32 values travels in 40 bytes");

static size_t block_bytes(const struct td__ce *e)
{
    return e->f32 ? TK_QK * sizeof(float) : sizeof(struct wire_block);
}

static size_t element_bytes(const struct td__ce *e)
{
    return e->f32 ? 4 : 2;
}

static const struct td__ce_cut *cut_of(const struct td__ce_ranks *r, enum td__ce_trade_kind kind)
{
    switch (kind) {
    case TD__CE_TRADE_COLUMNS:
        return &r->embd;
    case TD__CE_TRADE_FFN:
        return &r->ffn;
    case TD__CE_TRADE_LOGITS:
        return &r->vocab;
    case TD__CE_NO_TRADE:
    case TD__CE_TRADE_ATT:
    case TD__CE_TRADE_LANDED:
        break;
    }
    return &r->heads;
}

/* Blocks of attention outputs of n KV heads. */
static uint32_t att_blocks(const struct td__ce *e, uint32_t n)
{
    return n * e->group * e->dim / TK_QK;
}

/* Bytes of one token (row, slice) for `units` units of the cut. */
static size_t width(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t units)
{
    switch (kind) {
    case TD__CE_TRADE_ATT:
        return att_blocks(e, units) * block_bytes(e) +
               (size_t)units * 2 * e->dim * element_bytes(e);
    case TD__CE_TRADE_FFN:
        return units * block_bytes(e);
    case TD__CE_TRADE_COLUMNS:
    case TD__CE_TRADE_LOGITS:
        return units * sizeof(float);
    case TD__CE_TRADE_LANDED:
        return (size_t)units * 2 * e->head_bytes;
    case TD__CE_NO_TRADE:
        break;
    }
    return 0;
}

static uint32_t units_of(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t rank)
{
    const struct td__ce_cut *c = cut_of(e->ranks, kind);
    return c->from[rank + 1] - c->from[rank];
}

/* Rank p's piece. Where only rank 0 meets the others' pieces, a helping rank has its own alone. */
static uint8_t *piece(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m, uint32_t p)
{
    bool alone = kind == TD__CE_TRADE_LOGITS || kind == TD__CE_TRADE_LANDED;
    uint32_t before = alone && td__ce_helps(e) ? 0 : cut_of(e->ranks, kind)->from[p];
    return e->ranks->wire + m * width(e, kind, before);
}

size_t td__ce_wire_bytes(const struct td__ce *e)
{
    const struct td__ce_ranks *r = e->ranks;
    const struct {
        enum td__ce_trade_kind kind;
        uint32_t m;
    } all[] = {{TD__CE_TRADE_ATT, e->info.max_tokens},
               {TD__CE_TRADE_COLUMNS, e->info.max_tokens},
               {TD__CE_TRADE_FFN, e->info.max_tokens},
               {TD__CE_TRADE_LOGITS, e->info.max_rows},
               {TD__CE_TRADE_LANDED, r->slices_per_trade}};
    size_t most = 0;
    for (size_t i = 0; i < TD_COUNT(all); i++) {
        for (uint32_t p = 0; p < r->n; p++) {
            size_t begin = (size_t)(piece(e, all[i].kind, all[i].m, p) - r->wire);
            size_t end = begin + all[i].m * width(e, all[i].kind, units_of(e, all[i].kind, p));
            most = end > most ? end : most;
        }
    }
    return most;
}

/* What travels from one rank to another. */
static size_t bytes_between(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m,
                            uint32_t from, uint32_t to)
{
    uint32_t units = units_of(e, kind, kind == TD__CE_TRADE_LANDED ? to : from);
    if (from == to || (kind == TD__CE_TRADE_LOGITS && to != 0) ||
        (kind == TD__CE_TRADE_LANDED && from != 0)) {
        return 0;
    }
    if (kind == TD__CE_TRADE_ATT && to != 0) {
        return m * att_blocks(e, units) * block_bytes(e);
    }
    return m * width(e, kind, units);
}

void td__ce_trade(struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m)
{
    struct td__ce_ranks *r = e->ranks;
    if (td__ce_over(e)) {
        return;
    }
    for (uint32_t p = 0; p < r->n; p++) {
        bool hands_on = kind == TD__CE_TRADE_LANDED;
        r->out[p].data = piece(e, kind, m, hands_on ? p : r->rank);
        r->out[p].bytes = bytes_between(e, kind, m, r->rank, p);
        r->in[p].data = piece(e, kind, m, hands_on ? r->rank : p);
        r->in[p].bytes = bytes_between(e, kind, m, p, r->rank);
    }
    td__ce_set_over(e, r->group->ops->exchange(r->group, r->out, r->in));
}

float *td__ce_own_columns(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m)
{
    return (float *)(void *)piece(e, kind, m, e->ranks->rank);
}

/* --- blocks --- */

void td__ce_lay_blocks(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m, uint32_t t,
                       uint32_t b0, const float *src, uint32_t n)
{
    uint32_t own = units_of(e, kind, e->ranks->rank);
    uint32_t per_token = kind == TD__CE_TRADE_ATT ? att_blocks(e, own) : own;
    uint8_t *to = piece(e, kind, m, e->ranks->rank) + ((size_t)t * per_token + b0) * block_bytes(e);
    if (e->f32) {
        memcpy(to, src, n * sizeof *src);
        return;
    }
    _Alignas(64) int8_t q[TK_PANEL * TK_QK];
    _Alignas(64) struct tk_qblk b[TK_PANEL];
    struct tk_act one = {.k = TK_QK, .q = q, .b = b};
    for (uint32_t i = 0; i < n; i += TK_QK, to += sizeof(struct wire_block)) {
        struct wire_block *w = (struct wire_block *)(void *)to;
        e->ops->quant(src + i, TK_QK, &one, 0, 0);
        memcpy(w->q, q, TK_QK);
        w->d = b[0].d;
        w->sum = (int16_t)b[0].sum;
        w->sum_low = (int16_t)b[0].sum_low;
    }
}

static void take_row(const struct td__ce *e, const struct tk_act *a, uint32_t t, uint32_t b0,
                     const uint8_t *from, uint32_t n)
{
    if (e->f32) {
        memcpy(a->x + (size_t)t * a->k + (size_t)b0 * TK_QK, from, n * TK_QK * sizeof(float));
        return;
    }
    const struct wire_block *w = (const struct wire_block *)(const void *)from;
    size_t panel = (size_t)(t / TK_PANEL) * TK_PANEL * (a->k / TK_QK);
    for (uint32_t i = 0; i < n; i++, w++) {
        size_t at = panel + (size_t)(b0 + i) * TK_PANEL + t % TK_PANEL;
        memcpy(a->q + at * TK_QK, w->q, TK_QK);
        a->b[at] = (struct tk_qblk){
            .d = w->d, .s = w->d * (float)w->sum, .sum = w->sum, .sum_low = w->sum_low};
    }
}

void td__ce_take_blocks(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m, uint32_t t)
{
    const struct td__ce_cut *cut = cut_of(e->ranks, kind);
    bool att = kind == TD__CE_TRADE_ATT;
    for (uint32_t p = 0; p < e->ranks->n; p++) {
        uint32_t b0 = cut->from[p], n = cut->from[p + 1] - b0;
        if (att) {
            b0 = att_blocks(e, b0);
            n = att_blocks(e, n);
        }
        take_row(e, att ? &e->act_att : &e->act_ffn, t, b0,
                 piece(e, kind, m, p) + (size_t)t * n * block_bytes(e), n);
    }
}

/* --- K and V --- */

/* Where the pool has a token's K (which 0, elements TK_BLOCK_TOK apart) or V of a head. */
static uint8_t *token_kv(const struct td__ce *e, uint32_t layer, uint32_t t, uint32_t head,
                         uint32_t which)
{
    const struct td_step_row *row = &e->running->rows[e->tok_row[t]];
    uint32_t pos = row->pos + (t - row->token0), slot = pos % TK_BLOCK_TOK;
    uint8_t *at = td__ce_kv(e, row->table[pos / TK_BLOCK_TOK], layer, head, which);
    return at + (size_t)slot * (which == 0 ? 1 : e->dim) * element_bytes(e);
}

/* Rank p's [own heads][K, V][dim] of token t. */
static uint8_t *kv_piece(const struct td__ce *e, uint32_t m, uint32_t t, uint32_t p)
{
    uint32_t heads = units_of(e, TD__CE_TRADE_ATT, p);
    return piece(e, TD__CE_TRADE_ATT, m, p) + m * att_blocks(e, heads) * block_bytes(e) +
           (size_t)t * heads * 2 * e->dim * element_bytes(e);
}

void td__ce_lay_kv(const struct td__ce *e, uint32_t layer, uint32_t m, uint32_t t)
{
    size_t one = element_bytes(e), row = e->dim * one;
    uint8_t *to = kv_piece(e, m, t, e->ranks->rank);
    for (uint32_t h = 0; h < e->n_kv; h++, to += 2 * row) {
        const uint8_t *k = token_kv(e, layer, t, h, 0);
        for (uint32_t d = 0; d < e->dim; d++) {
            memcpy(to + d * one, k + d * TK_BLOCK_TOK * one, one);
        }
        memcpy(to + row, token_kv(e, layer, t, h, 1), row);
    }
}

void td__ce_take_kv(const struct td__ce *e, uint32_t layer, uint32_t m, uint32_t t)
{
    const struct td__ce_cut *cut = &e->ranks->heads;
    size_t one = element_bytes(e), row = e->dim * one;
    for (uint32_t p = 1; p < e->ranks->n; p++) {
        const uint8_t *from = kv_piece(e, m, t, p);
        for (uint32_t h = cut->from[p]; h < cut->from[p + 1]; h++, from += 2 * row) {
            uint8_t *k = token_kv(e, layer, t, h, 0);
            for (uint32_t d = 0; d < e->dim; d++) {
                memcpy(k + d * TK_BLOCK_TOK * one, from + d * one, one);
            }
            memcpy(token_kv(e, layer, t, h, 1), from + row, row);
        }
    }
}

/* The block and layer of a landed slice, K or V of a head. */
static uint8_t *slice_kv(const struct td__ce *e, uint32_t slice, uint32_t head, uint32_t which)
{
    return td__ce_kv(e, e->ranks->landed[slice / e->info.n_layers], slice % e->info.n_layers, head,
                     which);
}

void td__ce_lay_slice(const struct td__ce *e, uint32_t m, uint32_t at, uint32_t i)
{
    for (uint32_t p = 1; p < e->ranks->n; p++) {
        uint32_t from = e->ranks->heads.from[p], heads = units_of(e, TD__CE_TRADE_LANDED, p);
        uint8_t *to =
            piece(e, TD__CE_TRADE_LANDED, m, p) + i * width(e, TD__CE_TRADE_LANDED, heads);
        memcpy(to, slice_kv(e, at + i, from, 0), heads * e->head_bytes);
        memcpy(to + heads * e->head_bytes, slice_kv(e, at + i, from, 1), heads * e->head_bytes);
    }
}

void td__ce_take_slice(const struct td__ce *e, uint32_t m, uint32_t at, uint32_t i)
{
    const uint8_t *from = piece(e, TD__CE_TRADE_LANDED, m, e->ranks->rank) +
                          i * width(e, TD__CE_TRADE_LANDED, e->n_kv);
    /* K of all heads, then V: a helping rank's slice as it is */
    memcpy(slice_kv(e, at + i, 0, 0), from, 2 * e->n_kv * e->head_bytes);
}

/* --- floats --- */

void td__ce_add_columns(const struct td__ce *e, uint32_t m, uint32_t t)
{
    const struct td__ce_cut *cut = &e->ranks->embd;
    float *x = e->x + (size_t)t * e->embd;
    for (uint32_t p = 0; p < e->ranks->n; p++) {
        uint32_t n = cut->from[p + 1] - cut->from[p];
        const float *y =
            (const float *)(const void *)piece(e, TD__CE_TRADE_COLUMNS, m, p) + (size_t)t * n;
        for (uint32_t i = 0; i < n; i++) {
            x[i] += y[i];
        }
        x += n;
    }
}

void td__ce_take_logits(const struct td__ce *e, uint32_t m, uint32_t i, float *logits)
{
    const struct td__ce_cut *cut = &e->ranks->vocab;
    for (uint32_t p = 1; p < e->ranks->n; p++) {
        uint32_t n = cut->from[p + 1] - cut->from[p];
        const float *y = (const float *)(const void *)piece(e, TD__CE_TRADE_LOGITS, m, p);
        memcpy(logits + (size_t)i * e->info.n_vocab + cut->from[p], y + (size_t)i * n,
               n * sizeof *y);
    }
}
