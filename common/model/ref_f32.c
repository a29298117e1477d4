#include "common/model/ref_f32.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/model/dequant.h"
#include "common/model/rope.h"

/* Tokens that share one pass over a weight row; each has its own accumulator, so its sum never
 * depends on the others. */
#define TILE 16
/* One number of each token of a tile: every lane is a sum of its own. */
typedef float tile_row __attribute__((vector_size(TILE * sizeof(float)), aligned(4), may_alias));

struct pass {
    const struct td_model *m;
    struct td_ref_kv *kv;
    uint32_t pos, n;
    uint32_t q_dim, kv_dim;
    float *h;       /* owned [n][n_embd], the residual stream */
    float *x;       /* owned [n][max(n_embd, q_dim)], normalised rows, then attention output */
    float *q;       /* owned [n][q_dim] */
    float *k, *v;   /* owned [n][kv_dim] */
    float *gate;    /* owned [n][n_ffn] */
    float *up;      /* owned [n][n_ffn] */
    float *out;     /* owned [n][n_embd] */
    float *w_row;   /* owned [widest], one dequantised row */
    float *x_tiles; /* owned [n tiles][widest][TILE], activations with the tokens of a tile side by
                       side */
    double *score;  /* owned [pos + n] */
};

td_err td_ref_kv_init(struct td_ref_kv *kv, const struct td_model *m, uint32_t n_pos)
{
    size_t n = (size_t)m->hp.n_layers * m->hp.n_kv_heads * m->hp.head_dim;

    kv->n_pos = n_pos;
    kv->k = td_zalloc(n_pos, n * sizeof(float));
    kv->v = td_zalloc(n_pos, n * sizeof(float));
    if (kv->k == NULL || kv->v == NULL) {
        td_ref_kv_fini(kv);
        return TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

void td_ref_kv_fini(struct td_ref_kv *kv)
{
    free(kv->k);
    free(kv->v);
    memset(kv, 0, sizeof *kv);
}

/* ---- pieces ---- */

static float *row_of(float *a, uint32_t width, uint32_t t)
{
    return a + (size_t)t * width;
}

/* y[n][rows] = x[n][cols] W^T */
static void matmul(struct pass *p, const struct td_weight *w, const float *x, uint32_t n, float *y)
{
    uint32_t n_tiles = (n + TILE - 1) / TILE;

    memset(p->x_tiles, 0, (size_t)n_tiles * w->cols * TILE * sizeof(float));
    for (uint32_t t = 0; t < n; t++) {
        float *tile = p->x_tiles + (size_t)(t / TILE) * w->cols * TILE;

        for (uint32_t c = 0; c < w->cols; c++) {
            tile[(size_t)c * TILE + t % TILE] = x[(size_t)t * w->cols + c];
        }
    }
    for (uint32_t r = 0; r < w->rows; r++) {
        td_dequant_row(w->dtype, (const char *)w->data + r * w->row_bytes, w->cols, p->w_row);
        for (uint32_t i = 0; i < n_tiles; i++) {
            const tile_row *tile = (const tile_row *)p->x_tiles + (size_t)i * w->cols;
            uint32_t n_here = n - i * TILE < TILE ? n - i * TILE : TILE;
            tile_row acc = {0};

            for (uint32_t c = 0; c < w->cols; c++) {
                acc += p->w_row[c] * tile[c];
            }
            for (uint32_t t = 0; t < n_here; t++) {
                y[(size_t)(i * TILE + t) * w->rows + r] = acc[t];
            }
        }
    }
}

/* y may be x. */
static void rms_norm(const struct td_model *m, const struct td_weight *w, const float *x, float *y)
{
    const float *scale = w->data;
    double sum = 0;
    float r;

    for (uint32_t i = 0; i < w->cols; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    r = (float)(1 / sqrt(sum / w->cols + (double)m->hp.rms_eps));
    for (uint32_t i = 0; i < w->cols; i++) {
        y[i] = x[i] * r * scale[i];
    }
}

static void norm_rows(struct pass *p, const struct td_weight *w, uint32_t first)
{
    for (uint32_t t = first; t < p->n; t++) {
        rms_norm(p->m, w, row_of(p->h, w->cols, t), row_of(p->x, w->cols, t));
    }
}

/* Turns every head of one row of queries or keys. */
static void rope_row(const struct td_hparams *hp, const float *cosine, const float *sine,
                     uint32_t n_heads, float *x)
{
    uint32_t half = hp->rope_dim / 2;

    for (uint32_t head = 0; head < n_heads; head++, x += hp->head_dim) {
        for (uint32_t i = 0; i < half; i++) {
            uint32_t a = hp->rope_style == TD_ROPE_PAIRS ? 2 * i : i;
            uint32_t b = hp->rope_style == TD_ROPE_PAIRS ? 2 * i + 1 : i + half;
            float xa = x[a];
            float xb = x[b];

            x[a] = xa * cosine[i] - xb * sine[i];
            x[b] = xa * sine[i] + xb * cosine[i];
        }
    }
}

static void bias_rows(const struct pass *p, const struct td_weight *bias, float *y)
{
    const float *b = bias->data;

    for (uint32_t t = 0; b != NULL && t < p->n; t++) {
        for (uint32_t i = 0; i < bias->cols; i++) {
            y[(size_t)t * bias->cols + i] += b[i];
        }
    }
}

/* Every head of every row by itself. */
static void norm_heads(const struct pass *p, const struct td_weight *w, uint32_t n_heads, float *x)
{
    for (size_t i = 0; w->data != NULL && i < (size_t)p->n * n_heads; i++) {
        rms_norm(p->m, w, x + i * w->cols, x + i * w->cols);
    }
}

static void rope_rows(struct pass *p)
{
    const struct td_hparams *hp = &p->m->hp;
    float cosine[TD_MODEL_MAX_HEAD_DIM / 2];
    float sine[TD_MODEL_MAX_HEAD_DIM / 2];

    for (uint32_t t = 0; t < p->n; t++) {
        td_rope_angles(p->m->rope_freq, hp->rope_dim / 2, p->pos + t, cosine, sine);
        rope_row(hp, cosine, sine, hp->n_heads, row_of(p->q, p->q_dim, t));
        rope_row(hp, cosine, sine, hp->n_kv_heads, row_of(p->k, p->kv_dim, t));
    }
}

static double dot(const float *a, const float *b, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double)a[i] * (double)b[i];
    }
    return sum;
}

/* One query head over the positions that `last` sees; k and v are this head's columns of position 0.
 */
static void attend(struct pass *p, const float *q, const float *k, const float *v, uint32_t last,
                   float *out)
{
    uint32_t d = p->m->hp.head_dim;
    double scale = 1 / sqrt((double)d);
    double max = -INFINITY;
    double sum = 0;
    uint32_t window = p->m->hp.window;
    uint32_t first = window > 0 && last >= window ? last - window + 1 : 0;

    for (uint32_t s = first; s <= last; s++) {
        p->score[s] = dot(q, k + (size_t)s * p->kv_dim, d) * scale;
        max = p->score[s] > max ? p->score[s] : max;
    }
    for (uint32_t s = first; s <= last; s++) {
        p->score[s] = exp(p->score[s] - max);
        sum += p->score[s];
    }
    for (uint32_t i = 0; i < d; i++) {
        double acc = 0;

        for (uint32_t s = first; s <= last; s++) {
            acc += p->score[s] * (double)v[(size_t)s * p->kv_dim + i];
        }
        out[i] = (float)(acc / sum);
    }
}

static void attention(struct pass *p, uint32_t l)
{
    const struct td_hparams *hp = &p->m->hp;
    size_t base = (size_t)l * p->kv->n_pos * p->kv_dim;
    uint32_t group = hp->n_heads / hp->n_kv_heads;

    memcpy(p->kv->k + base + (size_t)p->pos * p->kv_dim, p->k,
           (size_t)p->n * p->kv_dim * sizeof(float));
    memcpy(p->kv->v + base + (size_t)p->pos * p->kv_dim, p->v,
           (size_t)p->n * p->kv_dim * sizeof(float));
    for (uint32_t t = 0; t < p->n; t++) {
        for (uint32_t head = 0; head < hp->n_heads; head++) {
            size_t column = base + (size_t)(head / group) * hp->head_dim;
            size_t at = (size_t)t * p->q_dim + (size_t)head * hp->head_dim;

            attend(p, p->q + at, p->kv->k + column, p->kv->v + column, p->pos + t, p->x + at);
        }
    }
}

static void add_rows(struct pass *p)
{
    for (size_t i = 0; i < (size_t)p->n * p->m->hp.n_embd; i++) {
        p->h[i] += p->out[i];
    }
}

static void layer(struct pass *p, uint32_t l)
{
    const struct td_layer *w = &p->m->layers[l];

    norm_rows(p, &w->attn_norm, 0);
    matmul(p, &w->wq, p->x, p->n, p->q);
    matmul(p, &w->wk, p->x, p->n, p->k);
    matmul(p, &w->wv, p->x, p->n, p->v);
    bias_rows(p, &w->q_bias, p->q);
    bias_rows(p, &w->k_bias, p->k);
    bias_rows(p, &w->v_bias, p->v);
    norm_heads(p, &w->q_norm, p->m->hp.n_heads, p->q);
    norm_heads(p, &w->k_norm, p->m->hp.n_kv_heads, p->k);
    rope_rows(p);
    attention(p, l);
    matmul(p, &w->wo, p->x, p->n, p->out);
    add_rows(p);
    norm_rows(p, &w->ffn_norm, 0);
    matmul(p, &w->gate, p->x, p->n, p->gate);
    matmul(p, &w->up, p->x, p->n, p->up);
    for (size_t i = 0; i < (size_t)p->n * p->m->hp.n_ffn; i++) {
        p->gate[i] = (float)((double)p->gate[i] / (1 + exp(-(double)p->gate[i]))) * p->up[i];
    }
    matmul(p, &w->down, p->gate, p->n, p->out);
    add_rows(p);
}

/* ---- the pass ---- */

static td_err pass_init(struct pass *p)
{
    const struct td_hparams *hp = &p->m->hp;
    size_t n = p->n;
    size_t widest = hp->n_ffn;

    p->q_dim = hp->n_heads * hp->head_dim;
    p->kv_dim = hp->n_kv_heads * hp->head_dim;
    widest = widest > hp->n_embd ? widest : hp->n_embd;
    widest = widest > p->q_dim ? widest : p->q_dim;
    p->h = td_zalloc(n, hp->n_embd * sizeof(float));
    p->x = td_zalloc(n, widest * sizeof(float));
    p->q = td_zalloc(n, p->q_dim * sizeof(float));
    p->k = td_zalloc(n, p->kv_dim * sizeof(float));
    p->v = td_zalloc(n, p->kv_dim * sizeof(float));
    p->gate = td_zalloc(n, hp->n_ffn * sizeof(float));
    p->up = td_zalloc(n, hp->n_ffn * sizeof(float));
    p->out = td_zalloc(n, hp->n_embd * sizeof(float));
    p->w_row = td_zalloc(widest, sizeof(float));
    p->x_tiles = td_zalloc((n + TILE - 1) / TILE, widest * TILE * sizeof(float));
    p->score = td_zalloc(p->pos + n, sizeof(double));
    return p->h != NULL && p->x != NULL && p->q != NULL && p->k != NULL && p->v != NULL &&
                   p->gate != NULL && p->up != NULL && p->out != NULL && p->w_row != NULL &&
                   p->x_tiles != NULL && p->score != NULL
               ? TD_OK
               : TD_ERR_NO_MEMORY;
}

static void pass_fini(struct pass *p)
{
    float *const owned[] = {p->h,    p->x,  p->q,   p->k,     p->v,
                            p->gate, p->up, p->out, p->w_row, p->x_tiles};

    for (size_t i = 0; i < TD_COUNT(owned); i++) {
        free(owned[i]);
    }
    free(p->score);
}

static void run(struct pass *p, const int32_t *tokens, bool last_only, float *out_logits)
{
    const struct td_model *m = p->m;
    uint32_t first = last_only ? p->n - 1 : 0;

    for (uint32_t t = 0; t < p->n; t++) {
        td_dequant_row(m->token_embd.dtype,
                       (const char *)m->token_embd.data +
                           (uint64_t)(uint32_t)tokens[t] * m->token_embd.row_bytes,
                       m->hp.n_embd, row_of(p->h, m->hp.n_embd, t));
    }
    for (uint32_t l = 0; l < m->hp.n_layers; l++) {
        layer(p, l);
    }
    norm_rows(p, &m->output_norm, first);
    matmul(p, &m->output, row_of(p->x, m->hp.n_embd, first), p->n - first, out_logits);
}

td_err td_ref_f32_forward(const struct td_model *m, struct td_ref_kv *kv, uint32_t pos,
                          const int32_t *tokens, uint32_t n, bool last_only, float *out_logits)
{
    struct pass p = {.m = m, .kv = kv, .pos = pos, .n = n};
    td_err e;

    if (n < 1 || n > TD_REF_MAX_TOKENS || pos > kv->n_pos || n > kv->n_pos - pos ||
        kv->n_pos > TD_ROPE_MAX_POS) {
        return TD_ERR_BAD_REQUEST;
    }
    for (uint32_t t = 0; t < n; t++) {
        if (tokens[t] < 0 || (uint32_t)tokens[t] >= m->hp.n_vocab) {
            return TD_ERR_BAD_REQUEST;
        }
    }
    e = pass_init(&p);
    if (e == TD_OK) {
        run(&p, tokens, last_only, out_logits);
    }
    pass_fini(&p);
    return e;
}
