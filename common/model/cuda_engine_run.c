/* cuda_engine_run.c - the operations of a step on the stream.
 *
 * Flat passes (kernels/cuda/README.md, "a decode step") are captured once per batch size, kind of choice
 * and class of context, then only fed: every buffer they name stays where it is. Wide passes are
 * enqueued operation by operation; they are long enough to hide that.
 */
#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/model/cuda_engine_priv.h"

static td_err copy_in(struct td__cu *e, void *dst, const void *src, size_t count, size_t size)
{
    return count > 0 ? tk_copy(e->stream, dst, src, count * size) : TD_OK;
}
#define COPY_IN(e, dst, src, count) copy_in((e), (dst), (src), (count), sizeof *(src))

/* ---- flat passes ---- */

struct flat {
    struct td__cu *e;
    tk_stream s;
    uint32_t rows, entries;
    bool greedy, ordered;
};

static struct tk_norm_state norm_of(const struct td__cu *e, const float *sumsq, uint32_t parts)
{
    return (struct tk_norm_state){sumsq, parts, e->model->hp.n_embd, e->model->hp.rms_eps};
}

/* Rotation and K and V of all rows, ahead of attention. */
static td_err rope_rows(const struct flat *f, const struct td__cu_layer *l, uint32_t layer)
{
    struct td__cu *e = f->e;
    const struct tk_rope_kv r = {.qkv = e->f_q,
                                 .cos_sin = e->cos_sin,
                                 .pos = e->d_flat->pos,
                                 .tables = e->d_flat_tables,
                                 .pool = &e->pool,
                                 .rows = f->rows,
                                 .n_heads = e->n_heads,
                                 .n_kv_heads = e->n_kv,
                                 .head_dim = e->dim,
                                 .layer = layer,
                                 .table_stride = f->ordered ? 0 : e->shape.blocks_per_seq,
                                 .row_stride = e->qkv_width,
                                 .pdl = true,
                                 .bias = l->bias,
                                 .q_norm = l->q_norm,
                                 .k_norm = l->k_norm,
                                 .eps = e->model->hp.rms_eps};
    return tk_rope_kv(f->s, &r);
}

static struct tk_attn_decode flat_attention(const struct flat *f, const struct td__cu_layer *l,
                                            uint32_t layer)
{
    struct td__cu *e = f->e;
    return (struct tk_attn_decode){
        .kv = &l->m_kv,
        .q = e->f_q,
        .out = e->f_att,
        .lens = e->d_flat->lens,
        .tables = e->d_flat_tables,
        .plan = e->plan,
        .cos_sin = e->fused && !f->ordered ? e->cos_sin : NULL, /* else rope_rows comes before it */
        .pool = &e->pool,
        .layer = layer,
        .scratch = e->attn_scratch,
        .n_seqs = f->rows,
        .n_heads = e->n_heads,
        .n_kv_heads = e->n_kv,
        .head_dim = e->dim,
        .table_stride = e->shape.blocks_per_seq,
        .one_table = f->ordered,
        .q_stride = e->qkv_width,
        .out_stride = e->q_width,
        .max_entries = f->entries,
        .scale = e->scale,
        /* several newest tokens of one sequence: reading early is not safe */
        .pdl = !f->ordered,
        .window = e->model->hp.window};
}

struct flat_maps {
    struct tk_map hg, att, act;
};

static struct tk_flat flat_qkv(const struct flat *f, const struct flat_maps *m, uint32_t i)
{
    struct td__cu *e = f->e;
    return (struct tk_flat){.w = &e->layers[i].m_qkv,
                            .x = &m->hg,
                            .rows = f->rows,
                            .n = e->qkv_width,
                            .k = e->embd,
                            .mode = TK_FLAT_STORE,
                            .norm = norm_of(e, e->ss1, i == 0 ? 1 : tk_flat_norm_parts(e->embd)),
                            .out = e->f_q,
                            .out_stride = e->qkv_width,
                            .pdl = true};
}

static struct tk_flat flat_residual(const struct flat *f, const struct tk_map *w,
                                    const struct tk_map *x, uint32_t k, const tk_bf16 *gain,
                                    float *sumsq)
{
    struct td__cu *e = f->e;
    return (struct tk_flat){.w = w,
                            .x = x,
                            .rows = f->rows,
                            .n = e->embd,
                            .k = k,
                            .mode = TK_FLAT_RESIDUAL,
                            .h = e->f_h,
                            .hg = e->f_hg,
                            .gain = gain,
                            .sumsq = sumsq,
                            .pdl = true};
}

/* A layer's attention and the products behind it, the next layer's qkv included where there is one. */
static struct tk_layer whole_layer(const struct flat *f, const struct flat_maps *m, uint32_t i)
{
    struct td__cu *e = f->e;
    const struct td__cu_layer *l = &e->layers[i];
    const bool last = i + 1 == e->info.n_layers;
    struct tk_layer w = {.attention = flat_attention(f, l, i), .n_products = last ? 3 : 4};
    w.products[0] = flat_residual(f, &l->m_o, &m->att, e->q_width, l->ffn_norm, e->ss2);
    w.products[1] = (struct tk_flat){.w = &l->m_gu,
                                     .x = &m->hg,
                                     .rows = f->rows,
                                     .n = 2 * e->ffn,
                                     .k = e->embd,
                                     .mode = TK_FLAT_SWIGLU,
                                     .norm = norm_of(e, e->ss2, tk_flat_norm_parts(e->embd)),
                                     .out = e->f_act,
                                     .out_stride = e->ffn,
                                     .pdl = true};
    w.products[2] = flat_residual(f, &l->m_down, &m->act, e->ffn,
                                  last ? e->output_norm : e->layers[i + 1].attn_norm, e->ss1);
    if (!last) {
        w.products[3] = flat_qkv(f, m, i + 1);
    }
    return w;
}

/* A launch for attention, two where it does not rotate, and one for all products or for each. */
static td_err run_layer(const struct flat *f, uint32_t i, const struct tk_layer *l)
{
    struct td__cu *e = f->e;
    struct tk_chain c = {
        .n = l->n_products, .work = e->chain_work, .late = f->entries * e->n_kv, .pdl = true};
    memcpy(c.products, l->products, sizeof c.products);
    if (l->attention.cos_sin == NULL) {
        TD_TRY(rope_rows(f, &e->layers[i], i));
    }
    TD_TRY(tk_attn_decode(f->s, &l->attention));
    if (tk_chain_fits(c.products, c.n)) {
        return tk_chain(f->s, &c);
    }
    for (uint32_t p = 0; p < c.n; p++) {
        TD_TRY(tk_flat(f->s, &c.products[p]));
    }
    return TD_OK;
}

/* As many layers a launch as it takes, where it computes them: its last product is the first qkv of the next launch. */
static td_err run_layers(const struct flat *f, const struct flat_maps *m)
{
    struct td__cu *e = f->e;
    for (uint32_t first = 0, n = 0; first < e->info.n_layers; first += n) {
        for (n = 0; n < TK_LAYERS_MAX && first + n < e->info.n_layers; n++) {
            e->flat_layers[n] = whole_layer(f, m, first + n);
        }
        const struct tk_layers run = {
            .layers = e->flat_layers, .n = n, .work = e->layers_work, .pdl = true};
        if (tk_layers_fits(run.layers, n)) {
            TD_TRY(tk_layers_run(f->s, &run));
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            TD_TRY(run_layer(f, first + i, &e->flat_layers[i]));
        }
    }
    return TD_OK;
}

/* The LM head over rows of x, and the choice. */
struct head {
    tk_stream s;
    const struct tk_map *x;
    struct tk_norm_state norm;
    const struct tk_sample_row *rows; /* device */
    struct tk_sampled *out;           /* device */
    uint32_t n;
    bool greedy, pdl;
};

static td_err run_head(struct td__cu *e, const struct head *h)
{
    const uint32_t vocab = e->info.n_vocab;
    const struct tk_flat p = {.w = &e->m_output,
                              .x = h->x,
                              .rows = h->n,
                              .n = vocab,
                              .k = e->embd,
                              .mode = TK_FLAT_ARGMAX,
                              .norm = h->norm,
                              .best_val = e->best_val,
                              .best_idx = e->best_idx,
                              .out_f32 = h->greedy ? NULL : e->logits,
                              .out_stride = e->logits_stride,
                              .pdl = h->pdl};
    TD_TRY(tk_flat(h->s, &p));
    if (h->greedy) {
        const struct tk_greedy g = {.best_val = e->best_val,
                                    .best_idx = e->best_idx,
                                    .rows = h->rows,
                                    .slots = e->slots,
                                    .out = h->out,
                                    .n_rows = h->n,
                                    .parts = tk_flat_argmax_parts(vocab),
                                    .pdl = h->pdl};
        return tk_greedy(h->s, &g);
    }
    const struct tk_sample a = {.logits = e->logits,
                                .adjusted = e->adjusted,
                                .rows = h->rows,
                                .slots = e->slots,
                                .out = h->out,
                                .n_rows = h->n,
                                .vocab = vocab,
                                .stride = e->logits_stride,
                                .pdl = h->pdl};
    return tk_sample(h->s, &a);
}

static td_err flat_body(const struct flat *f)
{
    struct td__cu *e = f->e;
    struct flat_maps m;
    TD_TRY(tk_flat_x_map(e->f_hg, f->rows, e->embd, e->embd, &m.hg));
    TD_TRY(tk_flat_x_map(e->f_att, f->rows, e->q_width, e->q_width, &m.att));
    TD_TRY(tk_flat_x_map(e->f_act, f->rows, e->ffn, e->ffn, &m.act));
    TD_TRY(tk_take_tokens(f->s, e->d_flat->tokens, e->d_flat->slot_of, e->slots.last, f->rows));
    TD_TRY(tk_plan_window_device(f->s, e->d_flat->lens, f->rows, e->model->hp.window, e->plan,
                                 (size_t)1 + TK_MAX_SEQS + f->entries));
    TD_TRY(tk_embed(f->s, e->embedding, e->d_flat->tokens, f->rows, e->embd, e->layers[0].attn_norm,
                    e->f_h, e->f_hg, e->ss1, true));
    const struct tk_flat qkv = flat_qkv(f, &m, 0);
    TD_TRY(tk_flat(f->s, &qkv));
    TD_TRY(run_layers(f, &m));
    const struct head h = {.s = f->s,
                           .x = &m.hg,
                           .norm = norm_of(e, e->ss1, tk_flat_norm_parts(e->embd)),
                           .rows = e->d_flat->rows,
                           .out = e->d_results,
                           .n = f->rows,
                           .greedy = f->greedy,
                           .pdl = true};
    return run_head(e, &h);
}

static td_err capture(struct td__cu *e, uint32_t bucket, bool greedy, uint32_t cls,
                      struct tk_graph **out)
{
    const struct flat f = {.e = e,
                           .s = e->stream,
                           .rows = 1u << bucket,
                           .entries = td__cu_class_entries(&e->shape, bucket, cls),
                           .greedy = greedy};
    TD_TRY(tk_graph_begin(e->stream));
    td_err err = flat_body(&f);
    struct tk_graph *g = NULL;
    td_err ended = tk_graph_end(e->stream, &g); /* always: the stream must leave capture */
    if (err != TD_OK || ended != TD_OK) {
        (void)tk_graph_destroy(g);
        return err != TD_OK ? err : ended;
    }
    *out = g;
    return TD_OK;
}

static td_err run_flat(struct td__cu *e, const struct td__cu_host *h, const struct td__cu_pass *p)
{
    const uint32_t bucket = td__cu_bucket(p->n_tok);
    const size_t pitch = e->shape.blocks_per_seq * sizeof *e->d_flat_tables;
    TD_TRY(COPY_IN(e, e->d_flat, &h->flat[p->in], 1));
    TD_TRY(tk_copy_rows(e->stream, e->d_flat_tables, pitch,
                        h->tables + (size_t)p->table0 * e->shape.blocks_per_seq, pitch,
                        p->n_blocks * sizeof *h->tables, p->n_tables));
    if (p->ordered) {
        const struct flat f = {.e = e,
                               .s = e->stream,
                               .rows = p->n_tok,
                               .entries = p->entries,
                               .greedy = p->greedy,
                               .ordered = true};
        TD_TRY(flat_body(&f));
    } else {
        uint32_t cls = td__cu_class(&e->shape, bucket, p->entries);
        struct tk_graph **g = &e->graphs[bucket][p->greedy][cls];
        if (*g == NULL) {
            TD_TRY(capture(e, bucket, p->greedy, cls, g));
        }
        TD_TRY(tk_graph_run(*g, e->stream));
    }
    return tk_copy(e->stream, h->results + p->result0, e->d_results,
                   p->n_samples * sizeof *h->results);
}

/* ---- the wide pass ---- */

static td_err product(struct td__cu *e, struct tk_lt_product p)
{
    p.ldx = p.k;
    p.ldy = p.n;
    return tk_lt_run(e->lt, e->stream, &p);
}

static td_err wide_group(struct td__cu *e, const struct td__cu_layer *l, uint32_t layer,
                         const struct td__cu_group *g, bool plan)
{
    const size_t words = (size_t)1 + TK_MAX_SEQS + g->entries;
    const uint32_t stride = e->shape.blocks_per_seq;
    const struct tk_attn_decode a = {.kv = &l->m_kv,
                                     .q = e->w_q + (size_t)g->tok0 * e->qkv_width,
                                     .out = e->w_att + (size_t)g->tok0 * e->q_width,
                                     .lens = e->d_lens + g->tok0,
                                     .tables = e->d_tables + (size_t)g->table0 * stride,
                                     .plan = e->plan,
                                     .pool = &e->pool,
                                     .layer = layer,
                                     .scratch = e->attn_scratch,
                                     .n_seqs = g->n,
                                     .n_heads = e->n_heads,
                                     .n_kv_heads = e->n_kv,
                                     .head_dim = e->dim,
                                     .table_stride = stride,
                                     .q_stride = e->qkv_width,
                                     .out_stride = e->q_width,
                                     .max_entries = g->entries,
                                     .scale = e->scale,
                                     .window = e->model->hp.window};
    if (plan) {
        TD_TRY(tk_plan_window_device(e->stream, e->d_lens + g->tok0, g->n, e->model->hp.window,
                                     e->plan, words));
    }
    return tk_attn_decode(e->stream, &a);
}

static td_err wide_attention(struct td__cu *e, const struct td__cu_host *h,
                             const struct td__cu_pass *p, uint32_t layer)
{
    const struct td__cu_layer *l = &e->layers[layer];
    const struct tk_rope_kv r = {.qkv = e->w_q,
                                 .cos_sin = e->cos_sin,
                                 .pos = e->d_pos,
                                 .table_of = e->d_table_of,
                                 .tables = e->d_tables,
                                 .pool = &e->pool,
                                 .rows = p->n_tok,
                                 .n_heads = e->n_heads,
                                 .n_kv_heads = e->n_kv,
                                 .head_dim = e->dim,
                                 .layer = layer,
                                 .table_stride = e->shape.blocks_per_seq,
                                 .row_stride = e->qkv_width,
                                 .bias = l->bias,
                                 .q_norm = l->q_norm,
                                 .k_norm = l->k_norm,
                                 .eps = e->model->hp.rms_eps};
    TD_TRY(tk_rope_kv(e->stream, &r));
    if (p->n_tiles > 0) {
        const struct tk_attn_prefill a = {.kv = &e->m_pool,
                                          .q = &e->m_wq,
                                          .out = e->w_att,
                                          .chunks = e->d_chunks,
                                          .tiles = e->d_tiles,
                                          .tables = e->d_tables,
                                          .n_tiles = p->n_tiles,
                                          .n_heads = e->n_heads,
                                          .n_kv_heads = e->n_kv,
                                          .head_dim = e->dim,
                                          .layer = layer,
                                          .table_stride = e->shape.blocks_per_seq,
                                          .out_stride = e->q_width,
                                          .scale = e->scale,
                                          .window = e->model->hp.window};
        TD_TRY(tk_attn_prefill(e->stream, &a));
    }
    for (uint32_t i = 0; i < p->n_groups; i++) {
        TD_TRY(wide_group(e, l, layer, &h->groups[i], layer == 0 || p->n_groups > 1));
    }
    return TD_OK;
}

static td_err wide_layer(struct td__cu *e, const struct td__cu_host *h, const struct td__cu_pass *p,
                         uint32_t i)
{
    const struct td__cu_layer *l = &e->layers[i];
    const uint32_t m = p->n_tok, embd = e->embd;
    const float eps = e->model->hp.rms_eps;
    TD_TRY(tk_rmsnorm(e->stream, e->w_h, NULL, l->attn_norm, e->w_n, m, embd, e->model->hp.n_embd,
                      eps));
    TD_TRY(product(
        e, (struct tk_lt_product){
               .x = e->w_n, .w = l->qkv, .y = e->w_q, .m = m, .n = e->qkv_width, .k = embd}));
    TD_TRY(wide_attention(e, h, p, i));
    TD_TRY(product(e, (struct tk_lt_product){.x = e->w_att,
                                             .w = l->o,
                                             .c = e->w_h,
                                             .y = e->w_h,
                                             .m = m,
                                             .n = embd,
                                             .k = e->q_width}));
    TD_TRY(tk_rmsnorm(e->stream, e->w_h, NULL, l->ffn_norm, e->w_n, m, embd, e->model->hp.n_embd,
                      eps));
    TD_TRY(
        product(e, (struct tk_lt_product){
                       .x = e->w_n, .w = l->gu, .y = e->w_gu, .m = m, .n = 2 * e->ffn, .k = embd}));
    TD_TRY(tk_swiglu(e->stream, e->w_gu, e->w_act, m, e->ffn, true));
    return product(
        e,
        (struct tk_lt_product){
            .x = e->w_act, .w = l->down, .c = e->w_h, .y = e->w_h, .m = m, .n = embd, .k = e->ffn});
}

/* Logits and choice of the picked tokens, TK_MAX_ROWS at a time. */
static td_err wide_head(struct td__cu *e, const struct td_step *s, const struct td__cu_pass *p)
{
    const uint32_t vocab = e->info.n_vocab;
    for (uint32_t at = 0; at < p->n_samples; at += TK_MAX_ROWS) {
        uint32_t n = p->n_samples - at < TK_MAX_ROWS ? p->n_samples - at : TK_MAX_ROWS;
        struct tk_map x;
        TD_TRY(tk_gather_rows(e->stream, e->w_h, e->d_pick + at, e->w_last, n, e->embd));
        TD_TRY(tk_rmsnorm(e->stream, e->w_last, NULL, e->output_norm, e->w_last_n, n, e->embd,
                          e->model->hp.n_embd, e->model->hp.rms_eps));
        TD_TRY(tk_flat_x_map(e->w_last_n, n, e->embd, e->embd, &x));
        const struct head h = {.s = e->stream,
                               .x = &x,
                               .rows = e->d_rows + at,
                               .out = e->d_results + at,
                               .n = n,
                               .greedy = p->greedy && s->all_logits == NULL};
        TD_TRY(run_head(e, &h));
        if (s->all_logits != NULL) {
            const size_t row = vocab * sizeof *e->logits;
            TD_TRY(tk_copy_rows(e->stream, s->all_logits + (size_t)at * vocab, row, e->logits,
                                e->logits_stride * sizeof *e->logits, row, n));
        }
    }
    return TD_OK;
}

static td_err copy_wide(struct td__cu *e, const struct td__cu_host *h, const struct td__cu_pass *p)
{
    const size_t pitch = e->shape.blocks_per_seq * sizeof *e->d_tables;
    TD_TRY(COPY_IN(e, e->d_tokens, h->tokens, p->n_tok));
    TD_TRY(COPY_IN(e, e->d_slot_of, h->slot_of, p->n_tok));
    TD_TRY(COPY_IN(e, e->d_pos, h->pos, p->n_tok));
    TD_TRY(COPY_IN(e, e->d_table_of, h->table_of, p->n_tok));
    TD_TRY(COPY_IN(e, e->d_lens, h->lens, p->n_groups > 0 ? p->n_tok : 0));
    TD_TRY(COPY_IN(e, e->d_pick, h->pick, p->n_samples));
    TD_TRY(COPY_IN(e, e->d_rows, h->rows, p->n_samples));
    TD_TRY(COPY_IN(e, e->d_chunks, h->chunks, p->n_chunks));
    TD_TRY(COPY_IN(e, e->d_tiles, h->tiles, p->n_tiles));
    return tk_copy_rows(e->stream, e->d_tables, pitch,
                        h->tables + (size_t)p->table0 * e->shape.blocks_per_seq, pitch,
                        p->n_blocks * sizeof *h->tables, p->n_tables);
}

static td_err run_wide(struct td__cu *e, const struct td_step *s, uint32_t slot,
                       const struct td__cu_pass *p)
{
    const struct td__cu_host *h = &e->host[slot];
    TD_TRY(copy_wide(e, h, p));
    TD_TRY(tk_take_tokens(e->stream, e->d_tokens, e->d_slot_of, e->slots.last, p->n_tok));
    TD_TRY(tk_embed(e->stream, e->embedding, e->d_tokens, p->n_tok, e->embd, NULL, e->w_h, NULL,
                    NULL, false));
    for (uint32_t i = 0; i < e->info.n_layers; i++) {
        TD_TRY(wide_layer(e, h, p, i));
        if (s->push_layers) {
            TD_TRY(tk_event_record(e->layer_done[slot].ev[i], e->stream));
        }
    }
    if (p->n_samples == 0) {
        return TD_OK;
    }
    TD_TRY(wide_head(e, s, p));
    return tk_copy(e->stream, h->results + p->result0, e->d_results,
                   p->n_samples * sizeof *h->results);
}

/* ---- slots ---- */

static td_err upload_slot(struct td__cu *e, uint32_t slot)
{
    const struct td_sample_slot *s = &e->q.slots[slot];
    const struct td_sampling_params *p = &s->p;
    uint32_t *counts = e->slots.counts + (size_t)slot * e->info.n_vocab;
    const int32_t last = s->has_last ? s->last : TK_FAILED;
    TD_TRY(COPY_IN(e, e->slots.last + slot, &last, 1));
    TD_TRY(COPY_IN(e, e->slots.bias + (size_t)slot * TK_SLOT_BIAS,
                   (const struct tk_sample_bias *)(const void *)s->bias, p->n_bias));
    TD_TRY(COPY_IN(e, e->slots.stops + (size_t)slot * TK_SLOT_STOPS, p->stop_ids, p->n_stop_ids));
    TD_TRY(tk_fill(e->stream, counts, 0, e->info.n_vocab * sizeof *counts));
    TD_TRY(COPY_IN(e, e->d_history, s->history, s->n_history));
    return tk_count_tokens(e->stream, e->d_history, s->n_history, s->n_prompt, counts);
}

_Static_assert(sizeof(struct tk_sample_bias) == sizeof(struct td_logit_bias) &&
                   TK_SLOT_BIAS == TD_SAMPLING_MAX_BIAS &&
                   TK_SLOT_STOPS == TD_SAMPLING_MAX_STOP_IDS,
               "slots are copied as they are");

static td_err upload_slots(struct td__cu *e, const struct td_step *s)
{
    for (uint32_t r = 0; r < s->n_rows; r++) {
        const struct td_step_row *row = &s->rows[r];
        if (row->live && row->sampling != TD_NO_SAMPLE &&
            e->slot_version[row->sampling] != e->q.slots[row->sampling].version) {
            TD_TRY(upload_slot(e, row->sampling));
            e->slot_version[row->sampling] = e->q.slots[row->sampling].version;
        }
    }
    return TD_OK;
}

td_err td__cu_enqueue(struct td__cu *e, const struct td_step *s, uint32_t slot)
{
    const struct td__cu_host *h = &e->host[slot];
    TD_TRY(upload_slots(e, s));
    for (uint32_t i = 0; i < h->n_passes; i++) {
        const struct td__cu_pass *p = &h->passes[i];
        TD_TRY(p->wide ? run_wide(e, s, slot, p) : run_flat(e, h, p));
    }
    return tk_event_record(e->done[slot], e->stream);
}

/* ---- before the first step ---- */

static td_err plan_product(struct td__cu *e, struct tk_lt_product p)
{
    p.ldx = p.k;
    p.ldy = p.n;
    return tk_lt_plan(e->lt, e->stream, &p, !e->shape.deterministic);
}

/* Deterministic: one algorithm for all row counts. Else the fastest of each. */
static td_err plan_products(struct td__cu *e)
{
    const struct td__cu_layer *l = &e->layers[0];
    uint32_t counts[TD__CU_MAX_M], n = td__cu_product_rows(e->info.max_tokens, counts);
    TD_TRY(tk_fill(e->stream, e->w_h, 0x3c, (size_t)e->info.max_tokens * e->embd * 2));
    TD_TRY(tk_fill(e->stream, e->w_n, 0x3c, (size_t)e->info.max_tokens * e->embd * 2));
    TD_TRY(tk_fill(e->stream, e->w_att, 0x3c, (size_t)e->info.max_tokens * e->q_width * 2));
    TD_TRY(tk_fill(e->stream, e->w_act, 0x3c, (size_t)e->info.max_tokens * e->ffn * 2));
    for (uint32_t i = e->shape.deterministic ? n - 1 : 0; i < n; i++) {
        const uint32_t m = counts[i], embd = e->embd;
        TD_TRY(plan_product(
            e, (struct tk_lt_product){e->w_n, l->qkv, NULL, e->w_q, m, e->qkv_width, embd, 0, 0}));
        TD_TRY(plan_product(
            e, (struct tk_lt_product){e->w_att, l->o, e->w_h, e->w_h, m, embd, e->q_width, 0, 0}));
        TD_TRY(plan_product(
            e, (struct tk_lt_product){e->w_n, l->gu, NULL, e->w_gu, m, 2 * e->ffn, embd, 0, 0}));
        TD_TRY(plan_product(
            e, (struct tk_lt_product){e->w_act, l->down, e->w_h, e->w_h, m, embd, e->ffn, 0, 0}));
    }
    return TD_OK;
}

td_err td__cu_prepare(struct td__cu *e)
{
    TD_TRY(plan_products(e));
    uint32_t most = td__cu_bucket(e->info.max_rows < TK_MAX_ROWS ? e->info.max_rows : TK_MAX_ROWS);
    for (uint32_t b = 0; b <= most; b++) {
        for (int greedy = 0; greedy < 2; greedy++) {
            TD_TRY(capture(e, b, greedy != 0, 0, &e->graphs[b][greedy][0]));
        }
    }
    return tk_stream_wait(e->stream);
}
