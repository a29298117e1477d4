/* cuda_engine_weights.c - from the model's mapped tensors to bf16 in device memory.
 *
 * Design: one pass over the file through a ring of pinned buffers; while one is on its way to the
 * device the next is filled. A destination row names its source row, which is how q, k and v are
 * joined, gate and up interleaved, and pairs turned into halves on the way.
 */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#define TD_LOG_ROOM "model"
#include "common/base/log.h"
#include "common/model/cuda_engine_priv.h"
#include "common/model/dequant.h"
#include "common/model/rope.h"

#define STAGE_BYTES ((size_t)16 << 20)
#define ROPE_ROWS   1024 /* positions that are brought over at once */

/* --- what is refused --- */

static td_err refuse(const char *what, uint32_t value, const char *need)
{
    TD_LOG(ERROR, "model cannot be computed on the accelerator", "what=%s value=%u need=\"%s\"",
           what, value, need);
    return TD_ERR_FILE_UNSUPPORTED;
}

static td_err check_type(const struct td_weight *w)
{
    if (w->dtype == TD_DTYPE_F32 || w->dtype == TD_DTYPE_F16 || w->dtype == TD_DTYPE_BF16) {
        return TD_OK;
    }
    TD_LOG(ERROR, "quantised weights cannot be computed on the accelerator",
           "tensor=%.*s type=%d remedy=\"a BF16, F16 or F32 model\"", (int)w->name.len,
           w->name.data, (int)w->dtype);
    return TD_ERR_FILE_UNSUPPORTED;
}

static td_err check_types(const struct td_model *m)
{
    TD_TRY(check_type(&m->token_embd));
    TD_TRY(check_type(&m->output));
    for (uint32_t i = 0; i < m->hp.n_layers; i++) {
        const struct td_layer *l = &m->layers[i];
        const struct td_weight *all[] = {&l->wq,   &l->wk, &l->wv,  &l->wo,
                                         &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < TD_COUNT(all); k++) {
            TD_TRY(check_type(all[k]));
        }
    }
    return TD_OK;
}

td_err td__cu_check_model(const struct td_model *m)
{
    const struct td_hparams *hp = &m->hp;
    if (hp->head_dim != 64 && hp->head_dim != 128) {
        return refuse("head_dim", hp->head_dim, "64 or 128");
    }
    if (hp->rope_dim != hp->head_dim) {
        return refuse("rope_dim", hp->rope_dim, "head_dim");
    }
    if (hp->n_heads / hp->n_kv_heads > TK_MAX_GROUP) {
        return refuse("query heads per KV head", hp->n_heads / hp->n_kv_heads, "at most 8");
    }
    if (hp->n_embd % 8 != 0 || hp->n_embd > 8192) {
        return refuse("n_embd", hp->n_embd, "a multiple of 8, at most 8192");
    }
    if (hp->n_ffn % 64 != 0) {
        return refuse("n_ffn", hp->n_ffn, "a multiple of 64");
    }
    if (hp->n_vocab > TK_MAX_VOCAB) {
        return refuse("n_vocab", hp->n_vocab, "at most 1048576");
    }
    return check_types(m);
}

/* --- a matrix on its way --- */

enum order { IN_ORDER, JOINED, INTERLEAVED };

struct load {
    struct td__cu *e;
    struct td__cu_staging ring;
    float *row; /* [widest] for conversions */
};

/* Destination rows: JOINED: part 0, part 1, part 2; INTERLEAVED: 8 of part 0, 8 of part 1. The first `turned` parts hold
 * heads whose pairs become halves. */
struct matrix {
    const struct td_weight *part[3];
    uint32_t n_parts, turned;
    enum order order;
    uint32_t cols; /* with zeros behind; 0: as they are */
};

static uint32_t rows_of(const struct matrix *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        n += m->part[i]->rows;
    }
    return n;
}

/* Row of the file that becomes row r of a head with pairs: 0 2 4 .. 1 3 5 .. */
static uint32_t turned_row(uint32_t r, uint32_t dim)
{
    uint32_t i = r % dim;
    return r - i + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
}

static const struct td_weight *source(const struct td__cu *e, const struct matrix *m, uint32_t r,
                                      uint32_t *out_row)
{
    uint32_t part = 0;
    if (m->order == INTERLEAVED) {
        part = r / 8 % 2;
        r = r / 16 * 8 + r % 8;
    } else {
        while (part + 1 < m->n_parts && r >= m->part[part]->rows) {
            r -= m->part[part++]->rows;
        }
    }
    *out_row = part < m->turned ? turned_row(r, e->dim) : r;
    return m->part[part];
}

/* A row, and zeros up to cols. */
static void put_row(const struct load *l, const struct td_weight *w, uint32_t row, tk_bf16 *dst,
                    uint32_t cols)
{
    const uint8_t *src = (const uint8_t *)w->data + row * w->row_bytes;
    memset(dst + w->cols, 0, (cols - w->cols) * sizeof *dst);
    if (w->dtype == TD_DTYPE_BF16) {
        memcpy(dst, src, w->cols * sizeof *dst);
        return;
    }
    td_dequant_row(w->dtype, src, w->cols, l->row);
    for (uint32_t i = 0; i < w->cols; i++) {
        dst[i] = td_f32_to_bf16(l->row[i]);
    }
}

static td_err next_stage(struct load *l, void **out)
{
    uint32_t i = l->ring.next;
    TD_TRY(tk_event_wait(l->ring.stage[i].sent));
    *out = l->ring.stage[i].p;
    return TD_OK;
}

static td_err send_stage(struct load *l, void *dst, size_t bytes)
{
    uint32_t i = l->ring.next;
    TD_TRY(tk_copy(l->e->stream, dst, l->ring.stage[i].p, bytes));
    TD_TRY(tk_event_record(l->ring.stage[i].sent, l->e->stream));
    l->ring.next = (i + 1) % TD__CU_STAGES;
    return TD_OK;
}

/* Rows are padded with zeros to a multiple of TK_FLAT_ROWS, as flat products want. */
static td_err load_matrix(struct load *l, const struct matrix *m, tk_bf16 **out)
{
    const uint32_t rows = rows_of(m), cols = m->cols > 0 ? m->cols : m->part[0]->cols;
    const uint32_t padded = (rows + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS * TK_FLAT_ROWS;
    const size_t row_bytes = cols * sizeof **out;
    const uint32_t at_once = (uint32_t)(STAGE_BYTES / row_bytes);
    void *dev, *stage;
    TD_TRY(td__cu_alloc(l->e, padded, row_bytes, &dev));
    for (uint32_t first = 0; first < rows; first += at_once) {
        uint32_t n = rows - first < at_once ? rows - first : at_once;
        TD_TRY(next_stage(l, &stage));
        for (uint32_t i = 0; i < n; i++) {
            uint32_t row;
            const struct td_weight *w = source(l->e, m, first + i, &row);
            put_row(l, w, row, (tk_bf16 *)stage + (size_t)i * cols, cols);
        }
        TD_TRY(send_stage(l, (char *)dev + first * row_bytes, n * row_bytes));
    }
    *out = dev;
    return padded == rows ? TD_OK
                          : tk_fill(l->e->stream, (char *)dev + rows * row_bytes, 0,
                                    (padded - rows) * row_bytes);
}

static td_err load_one(struct load *l, const struct td_weight *w, uint32_t cols, tk_bf16 **out)
{
    const struct matrix m = {.part = {w}, .n_parts = 1, .cols = cols};
    return load_matrix(l, &m, out);
}

/* F32 vectors one behind the other, and zeros up to cols. */
static td_err load_vectors(struct load *l, const struct matrix *m, tk_bf16 **out)
{
    size_t n = 0, at = 0;
    void *dev, *stage;
    for (uint32_t i = 0; i < m->n_parts; i++) {
        n += m->part[i]->cols;
    }
    n = m->cols > n ? m->cols : n;
    TD_TRY(td__cu_alloc(l->e, n, sizeof **out, &dev));
    TD_TRY(next_stage(l, &stage));
    for (uint32_t i = 0; i < m->n_parts; i++) {
        const float *v = m->part[i]->data;
        for (uint32_t k = 0; k < m->part[i]->cols; k++) {
            uint32_t from = i < m->turned ? turned_row(k, l->e->dim) : k;
            ((tk_bf16 *)stage)[at++] = td_f32_to_bf16(v[from]);
        }
    }
    for (; at < n; at++) {
        ((tk_bf16 *)stage)[at] = 0;
    }
    *out = dev;
    return send_stage(l, dev, n * sizeof **out);
}

static td_err load_layer(struct load *l, const struct td_layer *in, struct td__cu_layer *out)
{
    struct td__cu *e = l->e;
    const uint32_t turned = e->model->hp.rope_style == TD_ROPE_PAIRS ? 2 : 0;
    const struct matrix qkv = {{&in->wq, &in->wk, &in->wv}, 3, turned, JOINED, e->embd};
    const struct matrix gu = {{&in->gate, &in->up}, 2, 0, INTERLEAVED, e->embd};
    const struct matrix n1 = {.part = {&in->attn_norm}, .n_parts = 1, .cols = e->embd};
    const struct matrix n2 = {.part = {&in->ffn_norm}, .n_parts = 1, .cols = e->embd};
    TD_TRY(load_vectors(l, &n1, &out->attn_norm));
    TD_TRY(load_vectors(l, &n2, &out->ffn_norm));
    TD_TRY(load_matrix(l, &qkv, &out->qkv));
    TD_TRY(load_one(l, &in->wo, 0, &out->o));
    TD_TRY(load_matrix(l, &gu, &out->gu));
    TD_TRY(load_one(l, &in->down, 0, &out->down));
    if (in->q_bias.data != NULL) {
        const struct matrix b = {{&in->q_bias, &in->k_bias, &in->v_bias}, 3, turned, JOINED, 0};
        TD_TRY(load_vectors(l, &b, &out->bias));
    }
    if (in->q_norm.data != NULL) {
        const struct matrix q = {.part = {&in->q_norm}, .n_parts = 1, .turned = turned > 0};
        const struct matrix k = {.part = {&in->k_norm}, .n_parts = 1, .turned = turned > 0};
        TD_TRY(load_vectors(l, &q, &out->q_norm));
        TD_TRY(load_vectors(l, &k, &out->k_norm));
    }
    TD_TRY(tk_flat_w_map(out->qkv, e->qkv_width, e->embd, false, &out->m_qkv));
    TD_TRY(tk_flat_w_map(out->o, e->embd, e->q_width, false, &out->m_o));
    TD_TRY(tk_flat_w_map(out->gu, 2 * e->ffn, e->embd, false, &out->m_gu));
    return tk_flat_w_map(out->down, e->embd, e->ffn, false, &out->m_down);
}

static td_err load_rope(struct load *l)
{
    struct td__cu *e = l->e;
    const uint32_t len = e->info.max_model_len, dim = e->dim;
    void *stage, *dev;
    TD_TRY(td__cu_alloc(e, (size_t)len * dim, sizeof(float), &dev));
    e->cos_sin = dev;
    for (uint32_t first = 0; first < len; first += ROPE_ROWS) {
        uint32_t n = len - first < ROPE_ROWS ? len - first : ROPE_ROWS;
        TD_TRY(next_stage(l, &stage));
        for (uint32_t i = 0; i < n; i++) {
            float *row = (float *)stage + (size_t)i * dim;
            td_rope_angles(e->model->rope_freq, dim / 2, first + i, row, row + dim / 2);
        }
        TD_TRY(send_stage(l, e->cos_sin + (size_t)first * dim, (size_t)n * dim * sizeof(float)));
    }
    return TD_OK;
}

static td_err load_all(struct load *l)
{
    struct td__cu *e = l->e;
    const struct td_model *m = e->model;
    const struct matrix norm = {.part = {&m->output_norm}, .n_parts = 1, .cols = e->embd};
    for (uint32_t i = 0; i < e->info.n_layers; i++) {
        TD_TRY(load_layer(l, &m->layers[i], &e->layers[i]));
    }
    TD_TRY(load_one(l, &m->token_embd, e->embd, &e->embedding));
    TD_TRY(load_vectors(l, &norm, &e->output_norm));
    if (m->hp.tied_embedding) {
        e->output = e->embedding;
    } else {
        TD_TRY(load_one(l, &m->output, e->embd, &e->output));
    }
    TD_TRY(tk_flat_w_map(e->output, e->info.n_vocab, e->embd, false, &e->m_output));
    TD_TRY(load_rope(l));
    return tk_stream_wait(e->stream);
}

static td_err open_ring(struct load *l)
{
    uint32_t widest = l->e->embd;
    widest = l->e->ffn > widest ? l->e->ffn : widest;
    widest = l->e->q_width > widest ? l->e->q_width : widest;
    l->row = td_zalloc(widest, sizeof *l->row);
    if (l->row == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < TD__CU_STAGES; i++) {
        TD_TRY(tk_host_alloc(STAGE_BYTES, &l->ring.stage[i].p));
        TD_TRY(tk_event_create(&l->ring.stage[i].sent));
    }
    return TD_OK;
}

static void close_ring(struct load *l)
{
    for (uint32_t i = 0; i < TD__CU_STAGES; i++) {
        tk_event_destroy(l->ring.stage[i].sent);
        tk_host_free(l->ring.stage[i].p);
    }
    free(l->row);
}

td_err td__cu_load(struct td__cu *e)
{
    struct load l = {.e = e};
    int64_t start = td_now_us();
    td_err err = open_ring(&l);
    err = err == TD_OK ? load_all(&l) : err;
    (void)tk_stream_wait(e->stream); /* a copy may still read the ring; its failure is in err */
    close_ring(&l);
    if (err != TD_OK) {
        return td__cu_said(err, "load the weights");
    }
    TD_LOG(INFO, "weights on the accelerator", "bytes=%llu ms=%lld",
           (unsigned long long)e->model->weight_bytes, (long long)(td_now_us() - start) / 1000);
    return TD_OK;
}
