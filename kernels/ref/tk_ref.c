/* The portable reference: the oracle of every other table, one column, row or token at a time in
 * the order of NUMERICS.md. */
#include <math.h>
#include <string.h>

#include "kernels/tk_internal.h"

/* Sums of one block: I0 of k 0..15, I1 of k 16..31, offset removed. */
struct ints {
    int32_t low, high;
};

static uint8_t stored_q(const struct tk__layout *l, const uint8_t *tile, uint32_t c, uint32_t i)
{
    uint32_t quad = i / 4, byte = 4 * c + i % 4;
    if (!l->nibbles) {
        return tile[64 * quad + byte];
    }
    uint8_t v = tile[64 * (quad / 2) + byte];
    return quad % 2 != 0 ? v >> 4 : v & 15;
}

static float scale_of(const struct tk__layout *l, const uint8_t *tile, uint32_t which, uint32_t c)
{
    const uint8_t *base = tile + (l->nibbles ? TK__NIBBLE_BYTES : TK__BYTE_BYTES);
    if (l->scale_f16) {
        uint16_t h;
        memcpy(&h, base + (which * TK_LANES + c) * sizeof h, sizeof h);
        return tk__f16(h);
    }
    float f;
    memcpy(&f, base + (which * TK_LANES + c) * sizeof f, sizeof f);
    return f;
}

static struct ints dot_block(const int32_t *w, const int8_t *q)
{
    struct ints s = {0, 0};
    for (int i = 0; i < TK_QK / 2; i++) {
        s.low += w[i] * q[i];
        s.high += w[i + 16] * q[i + 16];
    }
    return s;
}

/* The digit rows of a panel in one block. */
struct rows {
    const int8_t *q;
    const struct tk_qblk *b;
    uint32_t n;
    bool wide;
};

/* One block of one column for the rows of a panel. */
static void block_column(const struct tk__layout *l, const uint8_t *tile, uint32_t c,
                         const struct rows *in, float *acc)
{
    int32_t w[TK_QK];
    float d = scale_of(l, tile, 0, c);
    float second = l->has_min || l->has_halves ? scale_of(l, tile, 1, c) : 0;
    for (uint32_t i = 0; i < TK_QK; i++) {
        w[i] = stored_q(l, tile, c, i) - l->offset;
    }
    for (uint32_t r = 0; r < in->n; r += in->wide ? 2 : 1) {
        struct ints s = dot_block(w, in->q + r * TK_QK);
        float *a = &acc[(in->wide ? r / 2 : r) * TK_LANES];
        if (in->wide) {
            struct ints low = dot_block(w, in->q + (r + 1) * TK_QK);
            s.low = 256 * s.low + low.low;
            s.high = 256 * s.high + low.high;
        }
        if (l->has_halves) {
            *a = fmaf((float)s.low, d * in->b[r].d, *a);
            *a = fmaf((float)s.high, second * in->b[r].d, *a);
        } else {
            *a = fmaf((float)(s.low + s.high), d * in->b[r].d, *a);
            if (l->has_min) {
                *a = fmaf(second, in->b[r].s, *a);
            }
        }
    }
}

static void block_column_f32(const float *tile, uint32_t c, const float *x, size_t k, uint32_t rows,
                             float *acc)
{
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < TK_QK; i++) {
            acc[r * TK_LANES] = fmaf(tile[i * TK_LANES + c], x[r * k + i], acc[r * TK_LANES]);
        }
    }
}

/* Digit rows of one panel, columns of one tile. */
static void panel_tile(const struct tk_gemm *g, uint32_t t, uint32_t row, uint32_t rows, float *acc)
{
    const struct tk__layout *l = &tk__layouts[g->w->kind];
    uint32_t kb = g->w->k / TK_QK, panel = (g->row0 + row) / TK_PANEL;
    for (uint32_t b = 0; b < kb; b++) {
        const uint8_t *tile = g->w->data + ((size_t)t * kb + b) * g->w->tile_bytes;
        for (uint32_t c = 0; c < TK_LANES; c++) {
            if (g->w->kind == TK_F32) {
                block_column_f32((const float *)(const void *)tile, c,
                                 g->a->x + (size_t)(g->row0 + row) * g->w->k + b * TK_QK, g->w->k,
                                 rows, acc + c);
            } else {
                size_t at = ((size_t)panel * kb + b) * TK_PANEL;
                struct rows in = {g->a->q + at * TK_QK, g->a->b + at, rows, g->wide};
                block_column(l, tile, c, &in, acc + c);
            }
        }
    }
}

void tk__ref_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles)
{
    for (uint32_t t = tile0; t < tile0 + n_tiles; t++) {
        uint32_t cols = g->w->n - t * TK_LANES < TK_LANES ? g->w->n - t * TK_LANES : TK_LANES;
        uint32_t digits = g->wide ? 2 : 1, m = g->m * digits;
        for (uint32_t row = 0; row < m; row += TK_PANEL) {
            uint32_t rows = m - row < TK_PANEL ? m - row : TK_PANEL;
            float acc[TK_PANEL * TK_LANES] = {0};
            panel_tile(g, t, row, rows, acc);
            for (uint32_t r = 0; r < rows / digits; r++) {
                float *y =
                    g->y + (size_t)(row / digits + r) * g->y_stride + (t * TK_LANES - g->col0);
                for (uint32_t c = 0; c < cols; c++) {
                    y[c] = g->add ? y[c] + acc[r * TK_LANES + c] : acc[r * TK_LANES + c];
                }
            }
        }
    }
}

static void quant_block(const float *x, int8_t *q, struct tk_qblk *out)
{
    float amax = 0;
    int32_t sum = 0;
    for (int i = 0; i < TK_QK; i++) {
        float v = fabsf(x[i]);
        amax = v > amax ? v : amax;
    }
    bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
    float id = tiny ? 0 : 127.0f / amax;
    out->d = tiny ? 0 : amax / 127.0f;
    for (int i = 0; i < TK_QK; i++) {
        float v = x[i] * id;
        q[i] = tiny || !(fabsf(v) < 127.5f) ? 0 : (int8_t)rintf(v);
        sum += q[i];
        if (i == 15) {
            out->sum_low = sum;
        }
    }
    out->sum = sum;
    out->s = out->d * (float)sum;
}

static void ref_quant(const float *x, uint32_t n, const struct tk_act *a, uint32_t r, uint32_t b0)
{
    size_t kb = a->k / TK_QK;
    for (uint32_t b = 0; b < n / TK_QK; b++) {
        size_t at = ((size_t)(r / TK_PANEL) * kb + b0 + b) * TK_PANEL + r % TK_PANEL;
        quant_block(x + (size_t)b * TK_QK, a->q + at * TK_QK, a->b + at);
    }
}

static void sum_digits(const int8_t *q, struct tk_qblk *out)
{
    out->sum = 0;
    for (int i = 0; i < TK_QK; i++) {
        out->sum += q[i];
        if (i == 15) {
            out->sum_low = out->sum;
        }
    }
}

static void quant_wide_block(const float *x, int8_t *high, int8_t *low, struct tk_qblk *bh,
                             struct tk_qblk *bl)
{
    float amax = 0;
    for (int i = 0; i < TK_QK; i++) {
        float v = fabsf(x[i]);
        amax = v > amax ? v : amax;
    }
    bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
    float id = tiny ? 0 : 32512.0f / amax;
    for (int i = 0; i < TK_QK; i++) {
        float v = x[i] * id;
        int32_t q = tiny || !(fabsf(v) < 32513.0f) ? 0 : (int32_t)rintf(v);
        low[i] = (int8_t)(((q + 128) & 255) - 128);
        high[i] = (int8_t)((q - low[i]) / 256);
    }
    sum_digits(high, bh);
    sum_digits(low, bl);
    bh->d = bl->d = tiny ? 0 : amax / 32512.0f;
    bh->s = bl->s = bh->d * (float)(256 * bh->sum + bl->sum);
}

static void ref_quant_wide(const float *x, uint32_t n, const struct tk_act *a, uint32_t r)
{
    size_t kb = a->k / TK_QK, row = 2 * (size_t)r;
    for (uint32_t b = 0; b < n / TK_QK; b++) {
        size_t at = (row / TK_PANEL * kb + b) * TK_PANEL + row % TK_PANEL;
        quant_wide_block(x + (size_t)b * TK_QK, a->q + at * TK_QK, a->q + (at + 1) * TK_QK,
                         a->b + at, a->b + at + 1);
    }
}

static float fold16(float lane[TK_LANES])
{
    for (int s = TK_LANES / 2; s > 0; s /= 2) {
        for (int i = 0; i < s; i++) {
            lane[i] += lane[i + s];
        }
    }
    return lane[0];
}

static void ref_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    float lane[TK_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        lane[i % TK_LANES] = fmaf(x[i], x[i], lane[i % TK_LANES]);
    }
    float r = 1.0f / sqrtf(fold16(lane) / (float)n + eps);
    for (uint32_t i = 0; i < n; i++) {
        y[i] = x[i] * r * w[i];
    }
}

float tk_exp(float x)
{
    if (!(x > -87.0f)) {
        return 0;
    }
    x = x < 88.0f ? x : 88.0f;
    float n = rintf(x * 0x1.715476p+0f);
    float r = fmaf(n, -0x1.63p-1f, x);
    r = fmaf(n, 0x1.bd0106p-13f, r);
    float p = 1.0f / 5040;
    p = fmaf(p, r, 1.0f / 720);
    p = fmaf(p, r, 1.0f / 120);
    p = fmaf(p, r, 1.0f / 24);
    p = fmaf(p, r, 1.0f / 6);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float two_n;
    memcpy(&two_n, &bits, sizeof two_n);
    return p * two_n;
}

static void ref_swiglu(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i++) {
        y[i] = g[i] / (1.0f + tk_exp(-g[i])) * u[i];
    }
}

static float bf16_at(const void *p, size_t i)
{
    uint16_t h;
    memcpy(&h, (const uint8_t *)p + i * sizeof h, sizeof h);
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float kv_at(const void *p, size_t i, bool f32)
{
    if (!f32) {
        return bf16_at(p, i);
    }
    float f;
    memcpy(&f, (const uint8_t *)p + i * sizeof f, sizeof f);
    return f;
}

/* One query vector against one chunk. */
static void attn_one(const struct tk_attn *a, uint32_t v, bool f32)
{
    uint32_t dim = a->head_dim, n = a->limit[v], first = a->first != NULL ? a->first[v] : 0;
    float p[TK_CHUNK_TOK], lane[TK_LANES] = {0}, m = 0;
    for (uint32_t t = first; t < n; t++) {
        float s = 0;
        for (uint32_t d = 0; d < dim; d++) {
            size_t at = (size_t)d * TK_BLOCK_TOK + t % TK_BLOCK_TOK;
            s = fmaf(a->q[(size_t)v * dim + d], kv_at(a->k[t / TK_BLOCK_TOK], at, f32), s);
        }
        p[t] = s;
        m = t == first || s > m ? s : m;
    }
    float *o = a->o + (size_t)v * dim;
    memset(o, 0, dim * sizeof *o);
    for (uint32_t t = first; t < n; t++) {
        float e = tk_exp(p[t] - m);
        lane[t % TK_LANES] += e;
        for (uint32_t d = 0; d < dim; d++) {
            size_t at = (size_t)(t % TK_BLOCK_TOK) * dim + d;
            o[d] = fmaf(e, kv_at(a->v[t / TK_BLOCK_TOK], at, f32), o[d]);
        }
    }
    a->m[v] = m;
    a->l[v] = fold16(lane);
}

static void ref_attn(const struct tk_attn *a)
{
    for (uint32_t v = 0; v < a->nq; v++) {
        if (a->limit[v] > 0) {
            attn_one(a, v, false);
        }
    }
}

void tk__ref_attn_f32(const struct tk_attn *a)
{
    for (uint32_t v = 0; v < a->nq; v++) {
        if (a->limit[v] > 0) {
            attn_one(a, v, true);
        }
    }
}

void tk__ref_attn_merge(const struct tk_attn *part, float *sm, float *sl, float *so, bool first)
{
    uint32_t dim = part->head_dim;
    for (uint32_t v = 0; v < part->nq; v++) {
        const float *o = part->o + (size_t)v * dim;
        float *out = so + (size_t)v * dim;
        if (part->limit[v] == 0) {
            continue;
        }
        if (first) {
            sm[v] = part->m[v];
            sl[v] = part->l[v];
            memcpy(out, o, dim * sizeof *o);
            continue;
        }
        float m = part->m[v] > sm[v] ? part->m[v] : sm[v];
        float a = tk_exp(sm[v] - m), b = tk_exp(part->m[v] - m);
        sl[v] = fmaf(sl[v], a, part->l[v] * b);
        sm[v] = m;
        for (uint32_t d = 0; d < dim; d++) {
            out[d] = fmaf(out[d], a, o[d] * b);
        }
    }
}

static void ref_attn_finish(const float *so, float sl, uint32_t head_dim, float *out)
{
    float r = 1.0f / sl;
    for (uint32_t d = 0; d < head_dim; d++) {
        out[d] = so[d] * r;
    }
}

static uint32_t ref_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static float ref_exps(const float *x, uint32_t n, float max, float scale, float *out)
{
    float lane[TK_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        out[i] = tk_exp((x[i] - max) * scale);
        lane[i % TK_LANES] += out[i];
    }
    return fold16(lane);
}

static bool ref_all_finite(const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u) {
            return false;
        }
    }
    return true;
}

const struct tk_ops tk__ref_ops = {
    .name = "portable",
    .gemm = tk__ref_gemm,
    .quant = ref_quant,
    .quant_wide = ref_quant_wide,
    .rmsnorm = ref_rmsnorm,
    .swiglu = ref_swiglu,
    .attn = ref_attn,
    .attn_f32 = tk__ref_attn_f32,
    .attn_merge = tk__ref_attn_merge,
    .attn_finish = ref_attn_finish,
    .argmax = ref_argmax,
    .exps = ref_exps,
    .all_finite = ref_all_finite,
};
