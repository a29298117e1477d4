/* tk_cuda_ref.c - the operations of tk_cuda.h on the host, written to be read. See tk_device_ref.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/ref/tk_device_ref.h"
#include "kernels/tk_cuda.h"

static float up(tk_bf16 v)
{
    uint32_t u = (uint32_t)v << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static tk_bf16 down(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
        return (tk_bf16)(u >> 16 | 0x40); /* NaN stays one */
    }
    return (tk_bf16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* ---- maps: what the opaque bytes hold here ---- */

struct ref_map {
    const void *base;
    struct tk_kv_pool pool;
    uint32_t layer, cols, stride;
};
_Static_assert(sizeof(struct ref_map) <= sizeof(((struct tk_map *)0)->bytes), "fits a map");

static struct ref_map map_of(const struct tk_map *m)
{
    struct ref_map r;
    memcpy(&r, m->bytes, sizeof r);
    return r;
}

/* The plain numbers are what the device's kernels without TMA read: tests run those on the CPU. */
static td_err make_map(struct ref_map r, struct tk_map *out)
{
    const struct tk_kv_pool *p = &r.pool;
    memset(out, 0, sizeof *out);
    memcpy(out->bytes, &r, sizeof r);
    out->base = r.base;
    out->row_step = r.stride;
    if (p->base != NULL) {
        out->base = (const char *)p->base + r.layer * p->slice_bytes + p->header_bytes;
        out->layer_step = p->slice_bytes;
        out->block_step = p->slice_bytes * p->n_layers;
    }
    return TD_OK;
}

td_err tk_kv_map(const struct tk_kv_pool *pool, struct tk_map *out)
{
    return make_map((struct ref_map){.pool = *pool}, out);
}

td_err tk_kv_decode_map(const struct tk_kv_pool *pool, uint32_t layer, struct tk_map *out)
{
    return make_map((struct ref_map){.pool = *pool, .layer = layer}, out);
}

td_err tk_rows_map(const tk_bf16 *q, uint32_t rows, uint32_t n_heads, uint32_t head_dim,
                   uint32_t row_stride, struct tk_map *out)
{
    (void)rows, (void)n_heads, (void)head_dim;
    return make_map((struct ref_map){.base = q, .stride = row_stride}, out);
}

td_err tk_flat_w_map(const tk_bf16 *w, uint32_t n, uint32_t k, bool tiled, struct tk_map *out)
{
    (void)n;
    return tiled ? TD_ERR_UNSUPPORTED
                 : make_map((struct ref_map){.base = w, .cols = k, .stride = k}, out);
}

td_err tk_flat_x_map(const tk_bf16 *x, uint32_t rows, uint32_t k, uint32_t row_stride,
                     struct tk_map *out)
{
    (void)rows;
    return make_map((struct ref_map){.base = x, .cols = k, .stride = row_stride}, out);
}

/* K (which 0) or V (1) of a position. */
static tk_bf16 *kv_at(const struct tk_kv_pool *p, uint32_t layer, int32_t block, uint32_t head,
                      uint32_t which, uint32_t pos)
{
    char *slice = (char *)p->base + (size_t)block * p->slice_bytes * p->n_layers +
                  layer * p->slice_bytes + p->header_bytes;
    return (tk_bf16 *)(void *)slice +
           ((size_t)(which * p->n_kv_heads + head) * TK_BLOCK_TOK + pos % TK_BLOCK_TOK) *
               p->head_dim;
}

#define LANES 16
typedef tk_bf16 halves __attribute__((vector_size(LANES * 2), aligned(2), may_alias));
typedef uint32_t wides __attribute__((vector_size(LANES * 4)));
typedef float floats __attribute__((vector_size(LANES * 4)));

/* LANES interleaved sums, added in order. */
static float dot(const tk_bf16 *a, const tk_bf16 *b, uint32_t n)
{
    floats sums = {0};
    float s = 0;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const wides x = __builtin_convertvector(*(const halves *)(a + i), wides) << 16;
        const wides y = __builtin_convertvector(*(const halves *)(b + i), wides) << 16;
        sums += (floats)x * (floats)y;
    }
    for (int k = 0; k < LANES; k++) {
        s += sums[k];
    }
    for (; i < n; i++) {
        s += up(a[i]) * up(b[i]);
    }
    return s;
}

/* ---- attention ---- */

/* What one query head sees: positions from .. visible - 1 of a KV head. */
struct view {
    const struct tk_kv_pool *pool;
    uint32_t layer, head;
    const int32_t *table;
    uint32_t visible, from;
    float scale;
};

static void attend(const struct view *w, const tk_bf16 *q, tk_bf16 *out)
{
    const uint32_t dim = w->pool->head_dim;
    float *o = calloc(dim, sizeof *o);
    float m = -INFINITY, l = 0;
    for (uint32_t t = w->from; o != NULL && t < w->visible; t++) {
        const int32_t block = w->table[t / TK_BLOCK_TOK];
        const float s = dot(q, kv_at(w->pool, w->layer, block, w->head, 0, t), dim) * w->scale;
        const tk_bf16 *v = kv_at(w->pool, w->layer, block, w->head, 1, t);
        const float top = s > m ? s : m, f = expf(m - top), weight = expf(s - top);
        for (uint32_t i = 0; i < dim; i++) {
            o[i] = o[i] * f + weight * up(v[i]);
        }
        l = l * f + weight;
        m = top;
    }
    for (uint32_t i = 0; o != NULL && i < dim; i++) {
        out[i] = down(o[i] / l);
    }
    free(o);
}

static void rotate(tk_bf16 *x, const float *cs, uint32_t dim)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        const float a = up(x[i]), b = up(x[dim / 2 + i]);
        x[i] = down(a * cs[i] - b * cs[dim / 2 + i]);
        x[dim / 2 + i] = down(b * cs[i] + a * cs[dim / 2 + i]);
    }
}

struct decode_args {
    struct tk_attn_decode a;
    struct ref_map kv;
};

/* Rotates a row's q and k in place and puts K and V of its newest token into the pool. */
static void append(const struct decode_args *d, uint32_t r, tk_bf16 *row)
{
    const struct tk_attn_decode *a = &d->a;
    const uint32_t pos = (uint32_t)a->lens[r] - 1, dim = a->head_dim;
    const float *cs = a->cos_sin + (size_t)pos * dim;
    const int32_t block = a->tables[(size_t)r * a->table_stride + pos / TK_BLOCK_TOK];
    for (uint32_t h = 0; h < a->n_heads + a->n_kv_heads; h++) {
        rotate(row + (size_t)h * dim, cs, dim);
    }
    const uint32_t n = a->n_kv_heads;
    for (uint32_t h = 0; h < 2 * n; h++) {
        memcpy(kv_at(&d->kv.pool, d->kv.layer, block, h < n ? h : h - n, h >= n, pos),
               row + (size_t)(a->n_heads + h) * dim, dim * sizeof *row);
    }
}

static void do_decode(const void *args)
{
    const struct decode_args *d = args;
    const struct tk_attn_decode *a = &d->a;
    const uint32_t width = (a->n_heads + 2 * a->n_kv_heads) * a->head_dim;
    tk_bf16 *row = malloc(width * sizeof *row);
    if (a->plan[0] == 0 || row == NULL) {
        free(row);
        return;
    }
    for (uint32_t r = 0; r < a->n_seqs; r++) {
        if (a->lens[r] <= 0) {
            continue;
        }
        const uint32_t used = a->cos_sin != NULL ? width : a->n_heads * a->head_dim;
        memcpy(row, a->q + (size_t)r * a->q_stride, used * sizeof *row);
        if (a->cos_sin != NULL) {
            append(d, r, row);
        }
        for (uint32_t h = 0; h < a->n_heads; h++) {
            const struct view w = {&d->kv.pool,
                                   d->kv.layer,
                                   h * a->n_kv_heads / a->n_heads,
                                   a->tables + (a->one_table ? 0 : (size_t)r * a->table_stride),
                                   (uint32_t)a->lens[r],
                                   (uint32_t)tk_window_start(a->lens[r], (int32_t)a->window),
                                   a->scale};
            attend(&w, row + (size_t)h * a->head_dim,
                   a->out + (size_t)r * a->out_stride + (size_t)h * a->head_dim);
        }
    }
    free(row);
}

size_t tk_attn_decode_counters(uint32_t n_kv_heads)
{
    return (size_t)2 * TK_MAX_SEQS * n_kv_heads * 4;
}

size_t tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                              uint32_t max_entries)
{
    (void)group, (void)head_dim, (void)max_entries;
    return tk_attn_decode_counters(n_kv_heads);
}

td_err tk_attn_decode(tk_stream s, const struct tk_attn_decode *a)
{
    const struct decode_args d = {*a, map_of(a->kv)};
    if (a->n_seqs == 0 || a->n_seqs > TK_MAX_SEQS || a->n_heads % a->n_kv_heads != 0 ||
        a->n_heads / a->n_kv_heads > TK_MAX_GROUP || (a->head_dim != 64 && a->head_dim != 128)) {
        return TD_ERR_UNSUPPORTED;
    }
    return tk_ref_enqueue(s, do_decode, &d, sizeof d);
}

struct plan_args {
    const int32_t *lens;
    uint32_t n, window;
    uint32_t *words;
    size_t cap;
};

static void do_plan(const void *args)
{
    const struct plan_args *p = args;
    uint32_t entries = 0;
    if (tk_plan_window_host(p->lens, p->n, p->window, p->words, p->cap, &entries) != TD_OK) {
        p->words[0] = 0;
    }
}

td_err tk_plan_window_device(tk_stream s, const int32_t *lens, uint32_t n_seqs, uint32_t window,
                             uint32_t *out_words, size_t words)
{
    const struct plan_args p = {lens, n_seqs, window, out_words, words};
    return tk_ref_enqueue(s, do_plan, &p, sizeof p);
}

td_err tk_plan_device(tk_stream s, const int32_t *lens, uint32_t n_seqs, uint32_t *out_words,
                      size_t words)
{
    return tk_plan_window_device(s, lens, n_seqs, 0, out_words, words);
}

struct prefill_args {
    struct tk_attn_prefill a;
    struct ref_map kv, q;
};

static void do_prefill(const void *args)
{
    const struct prefill_args *p = args;
    const struct tk_attn_prefill *a = &p->a;
    for (uint32_t i = 0; i < a->n_tiles; i++) {
        const struct tk_chunk *c = &a->chunks[a->tiles[i] >> 16];
        const uint32_t first = (a->tiles[i] & 0xffff) * TK_TILE_ROWS;
        for (uint32_t j = first; j < first + TK_TILE_ROWS && j < (uint32_t)c->n; j++) {
            const size_t row = (size_t)c->row0 + j;
            for (uint32_t h = 0; h < a->n_heads; h++) {
                const struct view w = {
                    &p->kv.pool,
                    a->layer,
                    h * a->n_kv_heads / a->n_heads,
                    a->tables + (size_t)c->table * a->table_stride,
                    (uint32_t)c->pos0 + j + 1,
                    (uint32_t)tk_window_start(c->pos0 + (int32_t)j + 1, (int32_t)a->window),
                    a->scale};
                attend(&w, (const tk_bf16 *)p->q.base + row * p->q.stride + (size_t)h * a->head_dim,
                       a->out + row * a->out_stride + (size_t)h * a->head_dim);
            }
        }
    }
}

td_err tk_attn_prefill(tk_stream s, const struct tk_attn_prefill *a)
{
    const struct prefill_args p = {*a, map_of(a->kv), map_of(a->q)};
    if ((a->head_dim != 128 && a->head_dim != 64) || a->n_tiles == 0) {
        return TD_ERR_UNSUPPORTED;
    }
    return tk_ref_enqueue(s, do_prefill, &p, sizeof p);
}

/* ---- flat products ---- */

enum { PART_ROWS = 32 };

uint32_t tk_flat_norm_parts(uint32_t n)
{
    return n / PART_ROWS;
}

uint32_t tk_flat_argmax_parts(uint32_t n)
{
    (void)n;
    return 1;
}

struct flat_args {
    struct tk_flat a;
    struct ref_map w, x;
};

static float row_scale(const struct tk_norm_state *n, uint32_t r)
{
    float s = 0;
    for (uint32_t p = 0; p < n->parts; p++) {
        s += n->sumsq[(size_t)p * TK_MAX_ROWS + r];
    }
    return n->parts == 0 ? 1.f : 1.f / sqrtf(s / (float)n->dim + n->eps);
}

static float silu(float g)
{
    return g / (1.f + expf(-g));
}

/* Row r of y goes where the mode says. */
static void finish_flat(const struct tk_flat *a, uint32_t r, const float *y)
{
    float best = -INFINITY;
    int32_t at = 0x7fffffff;
    for (uint32_t n = 0; n < a->n; n++) {
        const size_t i = (size_t)r * a->n + n;
        switch (a->mode) {
        case TK_FLAT_STORE:
            a->out[(size_t)r * a->out_stride + n] = down(y[n]);
            break;
        case TK_FLAT_RESIDUAL:
            a->h[i] = down(up(a->h[i]) + y[n]);
            a->hg[i] = down(up(a->h[i]) * up(a->gain[n]));
            if (n % PART_ROWS == 0) {
                a->sumsq[(size_t)(n / PART_ROWS) * TK_MAX_ROWS + r] = 0;
            }
            a->sumsq[(size_t)(n / PART_ROWS) * TK_MAX_ROWS + r] += up(a->h[i]) * up(a->h[i]);
            break;
        case TK_FLAT_SWIGLU:
            if (n % 16 < 8 && n + 8 < a->n) {
                a->out[(size_t)r * a->out_stride + n / 16 * 8 + n % 8] =
                    down(silu(y[n]) * y[n + 8]);
            }
            break;
        case TK_FLAT_ARGMAX:
            if (a->out_f32 != NULL) {
                a->out_f32[(size_t)r * a->out_stride + n] = y[n];
            }
            if (y[n] > best) {
                best = y[n];
                at = (int32_t)n;
            }
            break;
        }
    }
    if (a->mode == TK_FLAT_ARGMAX) {
        a->best_val[r] = best;
        a->best_idx[r] = at;
    }
}

static void do_flat(const void *args)
{
    const struct flat_args *f = args;
    float *y = calloc(f->a.n, sizeof *y);
    for (uint32_t r = 0; y != NULL && r < f->a.rows; r++) {
        const float s = row_scale(&f->a.norm, r);
        const tk_bf16 *x = (const tk_bf16 *)f->x.base + (size_t)r * f->x.stride;
        for (uint32_t n = 0; n < f->a.n; n++) {
            y[n] = s * dot(x, (const tk_bf16 *)f->w.base + (size_t)n * f->w.stride, f->a.k);
        }
        finish_flat(&f->a, r, y);
    }
    free(y);
}

td_err tk_flat(tk_stream s, const struct tk_flat *a)
{
    const struct flat_args f = {*a, map_of(a->w), map_of(a->x)};
    if (a->rows == 0 || a->rows > TK_MAX_ROWS || a->k % 64 != 0 || a->norm.parts > TK_NORM_PARTS ||
        (a->mode == TK_FLAT_RESIDUAL && (a->n % TK_FLAT_ROWS != 0 || a->n > 8192)) ||
        (a->mode == TK_FLAT_SWIGLU && a->n % 16 != 0)) {
        return TD_ERR_UNSUPPORTED;
    }
    return tk_ref_enqueue(s, do_flat, &f, sizeof f);
}

size_t tk_chain_work_bytes(void)
{
    return sizeof(uint32_t);
}

bool tk_chain_fits(const struct tk_flat *products, uint32_t n)
{
    bool fits = tk_ref_uses_hopper() && n >= 1 && n <= TK_CHAIN_MAX;
    for (uint32_t i = 0; fits && i < n; i++) {
        const struct tk_flat *p = &products[i];
        fits = p->mode != TK_FLAT_ARGMAX && p->rows <= TK_CHAIN_ROWS &&
               p->rows == products[0].rows && (p->norm.parts == 0) == (p->mode == TK_FLAT_RESIDUAL);
    }
    return fits;
}

td_err tk_chain(tk_stream s, const struct tk_chain *c)
{
    if (!tk_chain_fits(c->products, c->n)) {
        return TD_ERR_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < c->n; i++) {
        TD_TRY(tk_flat(s, &c->products[i]));
    }
    return TD_OK;
}

size_t tk_layers_work_bytes(void)
{
    return sizeof(uint32_t);
}

static bool layer_fits(const struct tk_layer *l, const struct tk_attn_decode *first, uint32_t i,
                       bool last)
{
    static const enum tk_flat_mode modes[TK_CHAIN_MAX] = {TK_FLAT_RESIDUAL, TK_FLAT_SWIGLU,
                                                          TK_FLAT_RESIDUAL, TK_FLAT_STORE};
    const struct tk_attn_decode *a = &l->attention;
    bool fits = a->cos_sin != NULL && a->head_dim == 128 && !a->one_table &&
                a->n_seqs <= TK_LAYERS_ROWS && a->n_seqs == first->n_seqs &&
                (uint64_t)a->max_entries * a->n_kv_heads <= TK_LAYERS_ITEMS &&
                a->layer == first->layer + i && a->q == first->q && a->out == first->out &&
                l->n_products <= TK_CHAIN_MAX && l->n_products + (last ? 1 : 0) >= TK_CHAIN_MAX &&
                tk_chain_fits(l->products, l->n_products);
    for (uint32_t p = 0; fits && p < l->n_products; p++) {
        fits = l->products[p].mode == modes[p] && l->products[p].rows == a->n_seqs;
    }
    return fits && (l->n_products < TK_CHAIN_MAX || l->products[TK_CHAIN_MAX - 1].out == a->q);
}

bool tk_layers_fits(const struct tk_layer *layers, uint32_t n)
{
    bool fits = n >= 1 && n <= TK_LAYERS_MAX;
    for (uint32_t i = 0; fits && i < n; i++) {
        fits = layer_fits(&layers[i], &layers[0].attention, i, i + 1 == n);
    }
    return fits;
}

td_err tk_layers_run(tk_stream s, const struct tk_layers *l)
{
    if (!tk_layers_fits(l->layers, l->n)) {
        return TD_ERR_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tk_layer *y = &l->layers[i];
        TD_TRY(tk_attn_decode(s, &y->attention));
        for (uint32_t p = 0; p < y->n_products; p++) {
            TD_TRY(tk_flat(s, &y->products[p]));
        }
    }
    return TD_OK;
}

/* ---- pointwise ---- */

struct embed_args {
    const tk_bf16 *table, *gain;
    const int32_t *tokens;
    tk_bf16 *h, *hg;
    float *sumsq;
    uint32_t rows, dim;
};

static void do_embed(const void *args)
{
    const struct embed_args *e = args;
    for (uint32_t r = 0; r < e->rows; r++) {
        float q = 0;
        for (uint32_t i = 0; i < e->dim; i++) {
            const tk_bf16 v = e->table[(size_t)e->tokens[r] * e->dim + i];
            e->h[(size_t)r * e->dim + i] = v;
            if (e->hg != NULL) {
                e->hg[(size_t)r * e->dim + i] = down(up(v) * up(e->gain[i]));
                q += up(v) * up(v);
            }
        }
        if (e->hg != NULL) {
            e->sumsq[r] = q;
        }
    }
}

/* NOLINTNEXTLINE(readability-function-size): the header's */
td_err tk_embed(tk_stream s, const tk_bf16 *table, const int32_t *tokens, uint32_t rows,
                uint32_t dim, const tk_bf16 *gain, tk_bf16 *h, tk_bf16 *hg, float *sumsq, bool pdl)
{
    const struct embed_args e = {table, gain, tokens, h, hg, sumsq, rows, dim};
    (void)pdl;
    if (rows == 0 || dim % 8 != 0 || (hg != NULL && rows > TK_MAX_ROWS)) {
        return TD_ERR_UNSUPPORTED;
    }
    return tk_ref_enqueue(s, do_embed, &e, sizeof e);
}

struct norm_args {
    tk_bf16 *h, *out;
    const tk_bf16 *add, *gain;
    uint32_t rows, dim, mean_dim;
    float eps;
};

static void do_norm(const void *args)
{
    const struct norm_args *n = args;
    for (uint32_t r = 0; r < n->rows; r++) {
        tk_bf16 *h = n->h + (size_t)r * n->dim;
        float q = 0;
        for (uint32_t i = 0; i < n->dim; i++) {
            h[i] = n->add != NULL ? down(up(h[i]) + up(n->add[(size_t)r * n->dim + i])) : h[i];
            q += up(h[i]) * up(h[i]);
        }
        const float s = 1.f / sqrtf(q / (float)n->mean_dim + n->eps);
        for (uint32_t i = 0; i < n->dim; i++) {
            n->out[(size_t)r * n->dim + i] = down(up(h[i]) * s * up(n->gain[i]));
        }
    }
}

/* NOLINTNEXTLINE(readability-function-size): the header's */
td_err tk_rmsnorm(tk_stream s, tk_bf16 *h, const tk_bf16 *add, const tk_bf16 *gain, tk_bf16 *out,
                  uint32_t rows, uint32_t dim, uint32_t mean_dim, float eps)
{
    const struct norm_args n = {h, out, add, gain, rows, dim, mean_dim, eps};
    return rows == 0 || dim % 8 != 0 || dim > 16384 ? TD_ERR_UNSUPPORTED
                                                    : tk_ref_enqueue(s, do_norm, &n, sizeof n);
}

struct rope_args {
    struct tk_rope_kv a;
    struct tk_kv_pool pool;
};

/* Bias, then the head's own norm (not of V), then the rotation (not of V). */
static void shape_head(const struct tk_rope_kv *a, uint32_t head, const float *cs, tk_bf16 *x)
{
    const uint32_t dim = a->head_dim;
    const tk_bf16 *gain = head < a->n_heads                   ? a->q_norm
                          : head < a->n_heads + a->n_kv_heads ? a->k_norm
                                                              : NULL;
    float v[256], q = 0;
    for (uint32_t i = 0; i < dim; i++) {
        v[i] = up(x[i]) + (a->bias != NULL ? up(a->bias[(size_t)head * dim + i]) : 0.f);
        q += v[i] * v[i];
    }
    const float s = gain != NULL ? 1.f / sqrtf(q / (float)dim + a->eps) : 1.f;
    for (uint32_t i = 0; i < dim; i++) {
        v[i] = gain != NULL ? v[i] * s * up(gain[i]) : v[i];
    }
    for (uint32_t i = 0; i < dim / 2; i++) {
        const bool turns = head < a->n_heads + a->n_kv_heads;
        const float c = turns ? cs[i] : 1.f, n = turns ? cs[dim / 2 + i] : 0.f;
        x[i] = down(v[i] * c - v[dim / 2 + i] * n);
        x[dim / 2 + i] = down(v[dim / 2 + i] * c + v[i] * n);
    }
}

static void do_rope(const void *args)
{
    const struct rope_args *d = args;
    const struct tk_rope_kv *a = &d->a;
    for (uint32_t r = 0; r < a->rows; r++) {
        const int32_t pos = a->pos[r];
        const uint32_t t = a->table_of != NULL ? (uint32_t)a->table_of[r] : r;
        for (uint32_t h = 0; pos >= 0 && h < a->n_heads + 2 * a->n_kv_heads; h++) {
            tk_bf16 *x = a->qkv + (size_t)r * a->row_stride + (size_t)h * a->head_dim;
            shape_head(a, h, a->cos_sin + (size_t)pos * a->head_dim, x);
            if (h >= a->n_heads) {
                const int32_t block =
                    a->tables[(size_t)t * a->table_stride + (uint32_t)pos / TK_BLOCK_TOK];
                const uint32_t kv = h - a->n_heads, n = a->n_kv_heads;
                memcpy(
                    kv_at(&d->pool, a->layer, block, kv < n ? kv : kv - n, kv >= n, (uint32_t)pos),
                    x, a->head_dim * sizeof *x);
            }
        }
    }
}

td_err tk_rope_kv(tk_stream s, const struct tk_rope_kv *a)
{
    const struct rope_args r = {*a, *a->pool};
    return a->rows == 0 || a->head_dim % 16 != 0 || a->head_dim > 256
               ? TD_ERR_UNSUPPORTED
               : tk_ref_enqueue(s, do_rope, &r, sizeof r);
}

struct swiglu_args {
    const tk_bf16 *gu;
    tk_bf16 *out;
    uint32_t rows, ffn;
    bool interleaved;
};

static void do_swiglu(const void *args)
{
    const struct swiglu_args *s = args;
    for (size_t r = 0; r < s->rows; r++) {
        for (uint32_t i = 0; i < s->ffn; i++) {
            const tk_bf16 *row = s->gu + r * 2 * s->ffn;
            const uint32_t g = s->interleaved ? i / 8 * 16 + i % 8 : i;
            s->out[r * s->ffn + i] =
                down(silu(up(row[g])) * up(row[g + (s->interleaved ? 8 : s->ffn)]));
        }
    }
}

td_err tk_swiglu(tk_stream s, const tk_bf16 *gate_up, tk_bf16 *out, uint32_t rows, uint32_t ffn,
                 bool interleaved)
{
    const struct swiglu_args a = {gate_up, out, rows, ffn, interleaved};
    return rows == 0 || ffn % 8 != 0 ? TD_ERR_UNSUPPORTED
                                     : tk_ref_enqueue(s, do_swiglu, &a, sizeof a);
}

/* ---- large products ---- */

struct tk_lt {
    struct tk_lt_product plans[128];
    uint32_t n;
};

td_err tk_lt_create(size_t workspace_bytes, struct tk_lt **out)
{
    (void)workspace_bytes;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

struct tk_lt *tk_lt_destroy(struct tk_lt *lt)
{
    free(lt);
    return NULL;
}

td_err tk_lt_plan(struct tk_lt *lt, tk_stream s, const struct tk_lt_product *p, bool tune)
{
    (void)s, (void)tune;
    if (lt->n == 128) {
        return TD_ERR_FULL;
    }
    lt->plans[lt->n++] = *p;
    return TD_OK;
}

static void do_lt(const void *args)
{
    const struct tk_lt_product *p = args;
    for (size_t m = 0; m < p->m; m++) {
        for (uint32_t n = 0; n < p->n; n++) {
            const float y = dot(p->x + m * p->ldx, p->w + (size_t)n * p->k, p->k);
            p->y[m * p->ldy + n] = down(y + (p->c != NULL ? up(p->c[m * p->ldy + n]) : 0.f));
        }
    }
}

td_err tk_lt_run(struct tk_lt *lt, tk_stream s, const struct tk_lt_product *p)
{
    for (uint32_t i = 0; i < lt->n; i++) {
        const struct tk_lt_product *q = &lt->plans[i];
        if (q->m >= p->m && q->n == p->n && q->k == p->k && q->ldx == p->ldx && q->ldy == p->ldy &&
            (q->c != NULL) == (p->c != NULL)) {
            return tk_ref_enqueue(s, do_lt, p, sizeof *p);
        }
    }
    return TD_ERR_UNSUPPORTED; /* not planned */
}
