#include "tests/bench/gpu/gpu_model.h"
#include "tests/bench/gpu/gpu_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const struct gm_shape gm_llama3_8b = {32, 4096, 32, 8, 128, 14336, 128256};
const struct gm_shape gm_tiny = {3, 1024, 8, 2, 128, 2816, 4096};

#define EPS          1e-5f
#define LT_WORKSPACE ((size_t)64 << 20)

static tk_bf16 *weight(struct gm *m, size_t n, uint32_t k, uint64_t *seed)
{
    m->weight_bytes += (double)n * k * 2;
    return gpu_random_bf16(n * k, 1.f / sqrtf((float)k), gpu_rand(seed));
}

static tk_bf16 *gain(uint32_t n, uint64_t *seed) /* around one */
{
    tk_bf16 *h = calloc(n, sizeof *h);
    for (uint32_t i = 0; i < n; i++) {
        h[i] = (tk_bf16)(0x3f80 + gpu_rand(seed) % 16); /* 1 .. 1.12 */
    }
    tk_bf16 *d = gpu_upload(h, n * sizeof *h);
    free(h);
    return d;
}

static float *rope_table(uint32_t positions, uint32_t dim)
{
    float *t = malloc((size_t)positions * dim * sizeof *t);
    for (uint32_t p = 0; p < positions; p++) {
        for (uint32_t j = 0; j < dim / 2; j++) {
            const double a = p * pow(5e5, -2.0 * j / dim);
            t[(size_t)p * dim + j] = (float)cos(a);
            t[(size_t)p * dim + dim / 2 + j] = (float)sin(a);
        }
    }
    float *d = gpu_upload(t, (size_t)positions * dim * sizeof *t);
    free(t);
    return d;
}

struct gm *gm_create(const struct gm_shape *s, uint64_t seed)
{
    struct gm *m = calloc(1, sizeof *m);
    m->s = *s;
    m->qkv_w = (s->heads + 2 * s->kv_heads) * s->dim;
    m->embed = gpu_random_bf16((size_t)s->vocab * s->hid, 1.f, gpu_rand(&seed));
    for (uint32_t i = 0; i < s->layers; i++) {
        struct gm_layer *l = &m->l[i];
        l->n1 = gain(s->hid, &seed);
        l->n2 = gain(s->hid, &seed);
        l->qkv = weight(m, m->qkv_w, s->hid, &seed);
        l->o = weight(m, s->hid, s->heads * s->dim, &seed);
        l->gu = weight(m, (size_t)2 * s->ffn, s->hid, &seed);
        l->dn = weight(m, s->hid, s->ffn, &seed);
        TK(tk_flat_w_map(l->qkv, m->qkv_w, s->hid, false, &l->m_qkv));
        TK(tk_flat_w_map(l->o, s->hid, s->heads * s->dim, false, &l->m_o));
        TK(tk_flat_w_map(l->gu, 2 * s->ffn, s->hid, false, &l->m_gu));
        TK(tk_flat_w_map(l->dn, s->hid, s->ffn, false, &l->m_dn));
    }
    m->norm = gain(s->hid, &seed);
    m->head = weight(m, s->vocab, s->hid, &seed);
    TK(tk_flat_w_map(m->head, s->vocab, s->hid, false, &m->m_head));
    m->cos_sin = rope_table(33000, s->dim);
    TK(tk_lt_create(LT_WORKSPACE, &m->lt));
    m->chain_work = gpu_alloc(tk_chain_work_bytes());
    CU(cudaMemset(m->chain_work, 0, tk_chain_work_bytes()));
    m->layers_work = gpu_alloc(tk_layers_work_bytes());
    CU(cudaMemset(m->layers_work, 0, tk_layers_work_bytes()));
    gpu_layers_debug(&m->layers);
    return m;
}

void gm_destroy(struct gm *m)
{
    for (uint32_t i = 0; i < m->s.layers; i++) {
        struct gm_layer *l = &m->l[i];
        gpu_free(l->n1), gpu_free(l->n2), gpu_free(l->qkv), gpu_free(l->o), gpu_free(l->gu),
            gpu_free(l->dn);
    }
    gpu_free(m->embed), gpu_free(m->head), gpu_free(m->norm), gpu_free(m->cos_sin);
    gpu_free(m->chain_work), gpu_free(m->layers_work);
    m->lt = tk_lt_destroy(m->lt);
    free(m);
}

void gm_kv(struct gm *m, uint32_t seqs, uint32_t ctx_max)
{
    const struct gm_shape *s = &m->s;
    const uint32_t per = (ctx_max + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK, blocks = seqs * per;
    const size_t slice = tk_kv_slice_bytes(s->kv_heads, s->dim, 0);
    m->seqs = seqs;
    m->ctx_max = ctx_max;
    m->table_stride = per;
    m->pool = (struct tk_kv_pool){gpu_random_bf16(slice / 2 * s->layers * blocks, 1.f, 99),
                                  blocks,
                                  s->layers,
                                  s->kv_heads,
                                  s->dim,
                                  0,
                                  slice};
    TK(tk_kv_map(&m->pool, &m->m_kv));
    for (uint32_t i = 0; i < s->layers; i++) {
        TK(tk_kv_decode_map(&m->pool, i, &m->l[i].m_kv));
    }
    int32_t *t = malloc(blocks * sizeof *t);
    gpu_shuffle(t, (int32_t)blocks, 5);
    m->tables = gpu_upload(t, blocks * sizeof *t);
    free(t);
    m->plan_cap = seqs * tk_most_entries(ctx_max);
    m->plan_words = (size_t)1 + TK_MAX_SEQS + m->plan_cap;
    m->plan = gpu_alloc(m->plan_words * 4);
    const size_t sb =
        tk_attn_decode_scratch(s->kv_heads, s->heads / s->kv_heads, s->dim, m->plan_cap);
    m->scratch = gpu_alloc(sb);
    CU(cudaMemset(m->scratch, 0, sb));
}

void gm_kv_drop(struct gm *m)
{
    gpu_free(m->pool.base), gpu_free(m->tables), gpu_free(m->plan), gpu_free(m->scratch);
}

static int32_t *filled(uint32_t n, int32_t v)
{
    int32_t *h = calloc(n, sizeof *h);
    for (uint32_t i = 0; i < n; i++) {
        h[i] = v;
    }
    int32_t *d = gpu_upload(h, n * sizeof *h);
    free(h);
    return d;
}

void gm_decode_prepare(struct gm *m, uint32_t rows, uint32_t ctx)
{
    const struct gm_shape *s = &m->s;
    m->rows = rows;
    m->lens = filled(rows, (int32_t)ctx);
    m->pos = filled(rows, (int32_t)ctx - 1);
    m->tokens = filled(rows, 17);
    m->h = gpu_alloc((size_t)rows * s->hid * 2);
    m->hg = gpu_alloc((size_t)rows * s->hid * 2);
    m->q = gpu_alloc((size_t)rows * m->qkv_w * 2);
    m->att = gpu_alloc((size_t)rows * s->heads * s->dim * 2);
    m->act = gpu_alloc((size_t)rows * s->ffn * 2);
    m->ss1 = gpu_alloc((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4);
    m->ss2 = gpu_alloc((size_t)TK_NORM_PARTS * TK_MAX_ROWS * 4);
    m->best_val = gpu_alloc((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    m->best_idx = gpu_alloc((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    TK(tk_flat_x_map(m->hg, rows, s->hid, s->hid, &m->x_hg));
    TK(tk_flat_x_map(m->att, rows, s->heads * s->dim, s->heads * s->dim, &m->x_att));
    TK(tk_flat_x_map(m->act, rows, s->ffn, s->ffn, &m->x_act));
}

void gm_decode_drop(struct gm *m)
{
    gpu_free(m->lens), gpu_free(m->pos), gpu_free(m->tokens), gpu_free(m->h), gpu_free(m->hg),
        gpu_free(m->q);
    gpu_free(m->att), gpu_free(m->act), gpu_free(m->ss1), gpu_free(m->ss2), gpu_free(m->best_val),
        gpu_free(m->best_idx);
}

static struct tk_attn_decode step_attention(struct gm *m, const struct gm_layer *l, uint32_t layer)
{
    const struct gm_shape *g = &m->s;
    return (struct tk_attn_decode){.kv = &l->m_kv,
                                   .q = m->q,
                                   .out = m->att,
                                   .lens = m->lens,
                                   .tables = m->tables,
                                   .plan = m->plan,
                                   .cos_sin = m->cos_sin,
                                   .pool = &m->pool,
                                   .layer = layer,
                                   .scratch = m->scratch,
                                   .n_seqs = m->rows,
                                   .n_heads = g->heads,
                                   .n_kv_heads = g->kv_heads,
                                   .head_dim = g->dim,
                                   .table_stride = m->table_stride,
                                   .q_stride = m->qkv_w,
                                   .out_stride = g->heads * g->dim,
                                   .max_entries = m->plan_cap,
                                   .scale = 1.f / sqrtf((float)g->dim),
                                   .pdl = true,
                                   .window = m->window};
}

static struct tk_flat step_qkv(struct gm *m, uint32_t i)
{
    const struct gm_shape *g = &m->s;
    return (struct tk_flat){.w = &m->l[i].m_qkv,
                            .x = &m->x_hg,
                            .rows = m->rows,
                            .n = m->qkv_w,
                            .k = g->hid,
                            .mode = TK_FLAT_STORE,
                            .norm = {m->ss1, i == 0 ? 1 : tk_flat_norm_parts(g->hid), g->hid, EPS},
                            .out = m->q,
                            .out_stride = m->qkv_w,
                            .pdl = true};
}

static struct tk_flat step_residual(struct gm *m, const struct tk_map *w, const struct tk_map *x,
                                    uint32_t k, const tk_bf16 *gain, float *sumsq)
{
    return (struct tk_flat){.w = w,
                            .x = x,
                            .rows = m->rows,
                            .n = m->s.hid,
                            .k = k,
                            .mode = TK_FLAT_RESIDUAL,
                            .h = m->h,
                            .hg = m->hg,
                            .gain = gain,
                            .sumsq = sumsq,
                            .pdl = true};
}

/* The products between a layer's attention and the next one's. */
static uint32_t step_products(struct gm *m, uint32_t i, struct tk_flat *p)
{
    const struct gm_shape *g = &m->s;
    const struct gm_layer *l = &m->l[i];
    const bool last = i + 1 == g->layers;
    p[0] = step_residual(m, &l->m_o, &m->x_att, g->heads * g->dim, l->n2, m->ss2);
    p[1] = (struct tk_flat){.w = &l->m_gu,
                            .x = &m->x_hg,
                            .rows = m->rows,
                            .n = 2 * g->ffn,
                            .k = g->hid,
                            .mode = TK_FLAT_SWIGLU,
                            .norm = {m->ss2, tk_flat_norm_parts(g->hid), g->hid, EPS},
                            .out = m->act,
                            .out_stride = g->ffn,
                            .pdl = true};
    p[2] = step_residual(m, &l->m_dn, &m->x_act, g->ffn, last ? m->norm : m->l[i + 1].n1, m->ss1);
    if (last) {
        return 3;
    }
    p[3] = step_qkv(m, i + 1);
    return 4;
}

static void step_layer(struct gm *m, tk_stream s, uint32_t i)
{
    struct tk_chain c = {.work = m->chain_work, .late = m->plan_cap * m->s.kv_heads, .pdl = true};
    const struct tk_attn_decode a = step_attention(m, &m->l[i], i);
    TK(tk_attn_decode(s, &a));
    c.n = step_products(m, i, c.products);
    if (m->products != GM_LAUNCHES && tk_chain_fits(c.products, c.n)) {
        TK(tk_chain(s, &c));
        m->chains++;
        return;
    }
    for (uint32_t p = 0; p < c.n; p++) {
        TK(tk_flat(s, &c.products[p]));
    }
}

/* Layers [first, first + n) in one launch; false: it does not compute them. */
static bool step_layers(struct gm *m, tk_stream s, uint32_t first, uint32_t n)
{
    struct tk_layer *l = calloc(n, sizeof *l);
    struct tk_layers run = m->layers;
    for (uint32_t i = 0; i < n; i++) {
        l[i].attention = step_attention(m, &m->l[first + i], first + i);
        l[i].n_products = step_products(m, first + i, l[i].products);
    }
    run.layers = l;
    run.n = n;
    run.work = m->layers_work;
    run.pdl = true;
    const bool fits = tk_layers_fits(l, n);
    if (fits) {
        TK(tk_layers_run(s, &run));
        m->layer_runs++;
    }
    free(l);
    return fits;
}

static void step_all_layers(struct gm *m, tk_stream s)
{
    const uint32_t all = m->s.layers, most = m->group == 0 ? all : m->group;
    for (uint32_t first = 0, n = 0; first < all; first += n) {
        n = all - first < most ? all - first : most;
        const bool whole = m->products == GM_LAYERS && step_layers(m, s, first, n);
        for (uint32_t i = first; !whole && i < first + n; i++) {
            step_layer(m, s, i);
        }
    }
}

void gm_step(struct gm *m, tk_stream s, bool advance)
{
    const struct gm_shape *g = &m->s;
    const struct tk_norm_state n1 = {m->ss1, tk_flat_norm_parts(g->hid), g->hid, EPS};
    TK(tk_plan_window_device(s, m->lens, m->rows, m->window, m->plan, m->plan_words));
    TK(tk_embed(s, m->embed, m->tokens, m->rows, g->hid, m->l[0].n1, m->h, m->hg, m->ss1, true));
    const struct tk_flat qkv = step_qkv(m, 0);
    TK(tk_flat(s, &qkv));
    step_all_layers(m, s);
    const struct tk_flat f = {.w = &m->m_head,
                              .x = &m->x_hg,
                              .rows = m->rows,
                              .n = g->vocab,
                              .k = g->hid,
                              .mode = TK_FLAT_ARGMAX,
                              .norm = n1,
                              .best_val = m->best_val,
                              .best_idx = m->best_idx,
                              .out_f32 = m->logits,
                              .out_stride = g->vocab,
                              .pdl = true};
    TK(tk_flat(s, &f));
    TK(tk_argmax_end(s, m->best_val, m->best_idx, tk_flat_argmax_parts(g->vocab), m->rows,
                     m->tokens, advance ? m->pos : NULL, advance ? m->lens : NULL, true));
}

/* ---- prefill ---- */
/* Tuning runs the product, so its output goes to a buffer that nobody reads. */
static void plan_product(struct gm *m, const tk_bf16 *x, const tk_bf16 *w, bool add, uint32_t n,
                         uint32_t k)
{
    const struct tk_lt_product p = {x, w, add ? m->pgu : NULL, m->pgu, m->p_rows, n, k, k, n};
    TK(tk_lt_plan(m->lt, NULL, &p, true));
}

void gm_prefill_prepare(struct gm *m, const struct tk_chunk *chunks, uint32_t n_chunks,
                        const int32_t *tokens)
{
    const struct gm_shape *g = &m->s;
    uint32_t rows = 0, tiles_max = 0;
    for (uint32_t i = 0; i < n_chunks; i++) {
        rows += (uint32_t)chunks[i].n;
        tiles_max += (uint32_t)chunks[i].n / TK_TILE_ROWS + 1;
    }
    int32_t *pos = calloc((size_t)rows + 1, sizeof *pos);
    int32_t *tab = calloc((size_t)rows + 1, sizeof *tab);
    uint32_t *tiles = malloc(((size_t)tiles_max + 1) * sizeof *tiles);
    for (uint32_t i = 0; i < n_chunks; i++) {
        for (int32_t j = 0; j < chunks[i].n; j++) {
            pos[chunks[i].row0 + j] = chunks[i].pos0 + j;
            tab[chunks[i].row0 + j] = chunks[i].table;
        }
    }
    TK(tk_tiles_host(chunks, n_chunks, tiles, tiles_max, &m->n_tiles));
    m->p_rows = rows;
    m->chunks = gpu_upload(chunks, n_chunks * sizeof *chunks);
    m->tiles = gpu_upload(tiles, m->n_tiles * sizeof *tiles);
    m->p_pos = gpu_upload(pos, rows * sizeof *pos);
    m->p_table_of = gpu_upload(tab, rows * sizeof *tab);
    m->p_tokens = gpu_upload(tokens, rows * sizeof *tokens);
    free(pos), free(tab), free(tiles);
    m->ph = gpu_alloc((size_t)rows * g->hid * 2);
    m->pn = gpu_alloc((size_t)rows * g->hid * 2);
    m->pq = gpu_alloc((size_t)rows * m->qkv_w * 2);
    m->patt = gpu_alloc((size_t)rows * g->heads * g->dim * 2);
    m->pgu = gpu_alloc((size_t)rows * 2 * g->ffn * 2);
    m->pact = gpu_alloc((size_t)rows * g->ffn * 2);
    m->best_val = gpu_alloc((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    m->best_idx = gpu_alloc((size_t)TK_ARGMAX_PARTS * TK_MAX_ROWS * 4);
    TK(tk_rows_map(m->pq, rows, g->heads, g->dim, m->qkv_w, &m->m_pq));
    plan_product(m, m->pn, m->l[0].qkv, false, m->qkv_w, g->hid);
    plan_product(m, m->patt, m->l[0].o, true, g->hid, g->heads * g->dim);
    plan_product(m, m->pn, m->l[0].gu, false, 2 * g->ffn, g->hid);
    plan_product(m, m->pact, m->l[0].dn, true, g->hid, g->ffn);
}

void gm_prefill_drop(struct gm *m)
{
    gpu_free(m->chunks), gpu_free(m->tiles), gpu_free(m->p_pos), gpu_free(m->p_table_of),
        gpu_free(m->p_tokens);
    gpu_free(m->ph), gpu_free(m->pn), gpu_free(m->pq), gpu_free(m->patt), gpu_free(m->pgu),
        gpu_free(m->pact);
    gpu_free(m->best_val), gpu_free(m->best_idx);
}

/* NOLINTNEXTLINE(readability-function-size): a case has this many knobs */
static void product(struct gm *m, tk_stream s, const tk_bf16 *x, const tk_bf16 *w, const tk_bf16 *c,
                    tk_bf16 *y, uint32_t n, uint32_t k)
{
    const struct tk_lt_product p = {x, w, c, y, m->p_rows, n, k, k, n};
    TK(tk_lt_run(m->lt, s, &p));
}

void gm_prefill(struct gm *m, tk_stream s, float *logits, int32_t *token)
{
    const struct gm_shape *g = &m->s;
    const uint32_t rows = m->p_rows, att_w = g->heads * g->dim;
    TK(tk_embed(s, m->embed, m->p_tokens, rows, g->hid, NULL, m->ph, NULL, NULL, false));
    for (uint32_t i = 0; i < g->layers; i++) {
        const struct gm_layer *l = &m->l[i];
        TK(tk_rmsnorm(s, m->ph, NULL, l->n1, m->pn, rows, g->hid, g->hid, EPS));
        product(m, s, m->pn, l->qkv, NULL, m->pq, m->qkv_w, g->hid);
        const struct tk_rope_kv r = {
            m->pq,    m->cos_sin, m->p_pos,    m->p_table_of, m->tables, &m->pool,
            rows,     g->heads,   g->kv_heads, g->dim,        i,         m->table_stride,
            m->qkv_w, false,      NULL,        NULL,          NULL,      0};
        TK(tk_rope_kv(s, &r));
        const struct tk_attn_prefill a = {.kv = &m->m_kv,
                                          .q = &m->m_pq,
                                          .out = m->patt,
                                          .chunks = m->chunks,
                                          .tiles = m->tiles,
                                          .tables = m->tables,
                                          .n_tiles = m->n_tiles,
                                          .n_heads = g->heads,
                                          .n_kv_heads = g->kv_heads,
                                          .head_dim = g->dim,
                                          .layer = i,
                                          .table_stride = m->table_stride,
                                          .out_stride = att_w,
                                          .scale = 1.f / sqrtf((float)g->dim)};
        TK(tk_attn_prefill(s, &a));
        product(m, s, m->patt, l->o, m->ph, m->ph, g->hid, att_w);
        TK(tk_rmsnorm(s, m->ph, NULL, l->n2, m->pn, rows, g->hid, g->hid, EPS));
        product(m, s, m->pn, l->gu, NULL, m->pgu, 2 * g->ffn, g->hid);
        TK(tk_swiglu(s, m->pgu, m->pact, rows, g->ffn, true));
        product(m, s, m->pact, l->dn, m->ph, m->ph, g->hid, g->ffn);
    }
    struct tk_map x;
    const tk_bf16 *last = m->pn + (size_t)(rows - 1) * g->hid;
    TK(tk_rmsnorm(s, m->ph + (size_t)(rows - 1) * g->hid, NULL, m->norm,
                  m->pn + (size_t)(rows - 1) * g->hid, 1, g->hid, g->hid, EPS));
    TK(tk_flat_x_map(last, 1, g->hid, g->hid, &x));
    const struct tk_flat f = {.w = &m->m_head,
                              .x = &x,
                              .rows = 1,
                              .n = g->vocab,
                              .k = g->hid,
                              .mode = TK_FLAT_ARGMAX,
                              .best_val = m->best_val,
                              .best_idx = m->best_idx,
                              .out_f32 = logits,
                              .out_stride = g->vocab};
    TK(tk_flat(s, &f));
    TK(tk_argmax_end(s, m->best_val, m->best_idx, tk_flat_argmax_parts(g->vocab), 1, token, NULL,
                     NULL, false));
}
