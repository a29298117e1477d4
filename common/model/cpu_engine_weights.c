/* cpu_engine_weights.c - from the model's mapped tensors to packed tiles. */
#include <string.h>

#include "common/base/assert.h"
#define TD_LOG_ROOM "model"
#include "common/base/log.h"
#include "common/model/cpu_engine_ranks.h"
#include "common/model/rope.h"

_Static_assert((int)TK_W_Q4_1 == (int)TD_DTYPE_Q4_1 && (int)TK_W_Q6_K == (int)TD_DTYPE_Q6_K &&
                   (int)TK_W_BF16 == (int)TD_DTYPE_BF16 && (int)TK_W_F16 == (int)TD_DTYPE_F16,
               "tk_wtype has the file's numbers");

static struct tk_weight weight_of(const struct td_weight *w)
{
    return (struct tk_weight){(enum tk_wtype)w->dtype, w->rows, w->cols, w->data,
                              (size_t)w->row_bytes};
}

/* Which outputs of a matrix this engine computes: all of them alone, a range as a rank. */
struct share {
    uint32_t from, n;
};
struct shares {
    struct share kv_heads, embd, ffn, vocab;
};

static struct share share_of(const struct td__ce_ranks *r, const struct td__ce_cut *cut,
                             uint32_t unit)
{
    uint32_t from = cut->from[r->rank], to = cut->from[r->rank + 1];
    return (struct share){from * unit, (to - from) * unit};
}

static struct shares shares_of(const struct td__ce *e)
{
    const struct td_hparams *hp = &e->model->hp;
    const struct td__ce_ranks *r = e->ranks;
    if (r == NULL) {
        return (struct shares){
            {0, hp->n_kv_heads}, {0, hp->n_embd}, {0, hp->n_ffn}, {0, hp->n_vocab}};
    }
    return (struct shares){share_of(r, &r->heads, 1), share_of(r, &r->embd, 1),
                           share_of(r, &r->ffn, TK_QK), share_of(r, &r->vocab, 1)};
}

/* Where packed matrices go: first without a base, to plan and add up, then with one, to pack. */
struct arena {
    uint8_t *base;
    size_t at;
};

static td_err refuse(const struct td_weight *w, td_err err)
{
    char name[TD_GGUF_MAX_NAME + 1];
    size_t len = w->name.len < sizeof name - 1 ? w->name.len : sizeof name - 1;
    memcpy(name, w->name.data != NULL ? w->name.data : "", len);
    name[len] = '\0';
    TD_LOG(ERROR, "tensor cannot be computed on the cpu", "tensor=%s type=%d rows=%u cols=%u", name,
           (int)w->dtype, w->rows, w->cols);
    return err;
}

static td_err pack(const struct td__ce *e, const struct td_weight *w, struct share share,
                   struct arena *a, struct tk_packed *out)
{
    struct tk_weight src = weight_of(w);
    TD_INSIST(share.from <= src.n && share.n <= src.n - share.from);
    if (w->data != NULL) {
        src.data = (const uint8_t *)w->data + share.from * src.row_bytes;
        src.n = share.n;
    }
    if (a->base == NULL) {
        td_err err = w->data == NULL ? TD_ERR_FILE_UNSUPPORTED : tk_pack_plan(&src, e->f32, out);
        if (err != TD_OK) {
            return refuse(w, err);
        }
    } else {
        out->data = a->base + a->at;
        tk_pack(&src, out, 0, out->n_tiles);
    }
    a->at += (tk_packed_bytes(out) + 63) / 64 * 64;
    return TD_OK;
}

static const float *from_element(const float *v, uint32_t from)
{
    return v != NULL ? v + from : NULL;
}

static td_err pack_all(struct td__ce *e, const struct shares *s, struct arena *a)
{
    struct share kv = {s->kv_heads.from * e->dim, e->kv_width};
    struct share q = {kv.from * e->group, e->q_width};
    for (uint32_t i = 0; i < e->info.n_layers; i++) {
        const struct td_layer *in = &e->model->layers[i];
        struct td__ce_layer *out = &e->layers[i];
        out->attn_norm = in->attn_norm.data;
        out->ffn_norm = in->ffn_norm.data;
        out->q_bias = from_element(in->q_bias.data, q.from);
        out->k_bias = from_element(in->k_bias.data, kv.from);
        out->v_bias = from_element(in->v_bias.data, kv.from);
        out->q_norm = in->q_norm.data;
        out->k_norm = in->k_norm.data;
        TD_TRY(pack(e, &in->wq, q, a, &out->q));
        TD_TRY(pack(e, &in->wk, kv, a, &out->k));
        TD_TRY(pack(e, &in->wv, kv, a, &out->v));
        TD_TRY(pack(e, &in->wo, s->embd, a, &out->o));
        TD_TRY(pack(e, &in->gate, s->ffn, a, &out->gate));
        TD_TRY(pack(e, &in->up, s->ffn, a, &out->up));
        TD_TRY(pack(e, &in->down, s->embd, a, &out->down));
    }
    return pack(e, &e->model->output, s->vocab, a, &e->output);
}

td_err td__ce_check_shape(const struct td_hparams *hp)
{
    uint32_t group = hp->n_kv_heads == 0 ? 0 : hp->n_heads / hp->n_kv_heads;
    if (hp->head_dim % TK_LANES != 0 || hp->head_dim > TK_MAX_HEAD_DIM || group == 0 ||
        group > TD__CE_TILE_QUERIES || hp->n_ffn % TK_QK != 0 || hp->n_embd % TK_QK != 0 ||
        hp->n_heads * hp->head_dim % TK_QK != 0 || hp->n_layers >= 1u << 16) {
        TD_LOG(ERROR, "model shape cannot be computed on the cpu",
               "head_dim=%u heads=%u kv_heads=%u embd=%u ffn=%u", hp->head_dim, hp->n_heads,
               hp->n_kv_heads, hp->n_embd, hp->n_ffn);
        return TD_ERR_FILE_UNSUPPORTED;
    }
    return TD_OK;
}

static td_err make_rope(struct td__ce *e)
{
    uint32_t half = e->rope_dim / 2, len = e->info.max_model_len;
    float c[TK_MAX_HEAD_DIM / 2], s[TK_MAX_HEAD_DIM / 2];
    e->rope = td__ce_alloc(e, ((size_t)len * half + 1) * 2 * sizeof(float));
    if (e->rope == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t pos = 0; pos < len; pos++) {
        td_rope_angles(e->model->rope_freq, half, pos, c, s);
        for (uint32_t i = 0; i < half; i++) {
            e->rope[((size_t)pos * half + i) * 2] = c[i];
            e->rope[((size_t)pos * half + i) * 2 + 1] = s[i];
        }
    }
    return TD_OK;
}

static void set_dimensions(struct td__ce *e, const struct shares *s)
{
    const struct td_hparams *hp = &e->model->hp;
    e->embd = hp->n_embd;
    e->dim = hp->head_dim;
    e->group = hp->n_heads / hp->n_kv_heads;
    e->rope_dim = hp->rope_dim;
    e->window = hp->window;
    e->ffn = s->ffn.n;
    e->n_kv = s->kv_heads.n;
    e->n_heads = e->n_kv * e->group;
    e->n_out = s->vocab.n;
    e->q_width = e->n_heads * e->dim;
    e->kv_width = e->n_kv * e->dim;
    e->qkv_width = e->q_width + 2 * e->kv_width;
    e->pool_heads = td__ce_helps(e) ? e->n_kv : hp->n_kv_heads;
    e->head_bytes = (size_t)e->dim * TK_BLOCK_TOK * (e->f32 ? 4 : 2);
}

td_err td__ce_load(struct td__ce *e, struct td_ranks *group)
{
    const struct td_model *m = e->model;
    const struct td_hparams *hp = &m->hp;
    TD_TRY(td__ce_check_shape(hp));
    if (group != NULL) {
        TD_TRY(td__ce_ranks_make(e, group));
    }
    struct shares s = shares_of(e);
    set_dimensions(e, &s);
    e->output_norm = m->output_norm.data;
    e->embedding = weight_of(&m->token_embd);
    e->layers = td__ce_alloc(e, hp->n_layers * sizeof *e->layers);
    if (e->layers == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    struct arena a = {NULL, 0};
    TD_TRY(pack_all(e, &s, &a));
    a = (struct arena){td__ce_alloc(e, a.at), 0};
    if (a.base == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    TD_TRY(pack_all(e, &s, &a));
    struct tk_packed unused;
    TD_TRY(tk_pack_plan(&e->embedding, true, &unused));
    return make_rope(e);
}
