/* model_arch.c - the architecture table, and tensors that find their place in it. */
#include <stdio.h>

#include "common/model/dequant.h"
#include "common/model/model_priv.h"

/* ---- architectures ---- */

#define LAYER(field) offsetof(struct td_layer, field)
#define MODEL(field) offsetof(struct td_model, field)

/* What all have. */
static const struct td__slot common_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight", LAYER(attn_norm), DIM_ONE, DIM_EMBD},
    {"attn_q.weight", "self_attn.q_proj.weight", LAYER(wq), DIM_Q, DIM_EMBD},
    {"attn_k.weight", "self_attn.k_proj.weight", LAYER(wk), DIM_KV, DIM_EMBD},
    {"attn_v.weight", "self_attn.v_proj.weight", LAYER(wv), DIM_KV, DIM_EMBD},
    {"attn_output.weight", "self_attn.o_proj.weight", LAYER(wo), DIM_EMBD, DIM_Q},
    {"ffn_norm.weight", "post_attention_layernorm.weight", LAYER(ffn_norm), DIM_ONE, DIM_EMBD},
    {"ffn_gate.weight", "mlp.gate_proj.weight", LAYER(gate), DIM_FFN, DIM_EMBD},
    {"ffn_up.weight", "mlp.up_proj.weight", LAYER(up), DIM_FFN, DIM_EMBD},
    {"ffn_down.weight", "mlp.down_proj.weight", LAYER(down), DIM_EMBD, DIM_FFN},
};

static const struct td__slot qkv_bias[] = {
    {"attn_q.bias", "self_attn.q_proj.bias", LAYER(q_bias), DIM_ONE, DIM_Q},
    {"attn_k.bias", "self_attn.k_proj.bias", LAYER(k_bias), DIM_ONE, DIM_KV},
    {"attn_v.bias", "self_attn.v_proj.bias", LAYER(v_bias), DIM_ONE, DIM_KV},
};

static const struct td__slot qk_norm[] = {
    {"attn_q_norm.weight", "self_attn.q_norm.weight", LAYER(q_norm), DIM_ONE, DIM_HEAD},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", LAYER(k_norm), DIM_ONE, DIM_HEAD},
};

static const struct td__slot model_slots[] = {
    {"token_embd.weight", "model.embed_tokens.weight", MODEL(token_embd), DIM_VOCAB, DIM_EMBD},
    {"output_norm.weight", "model.norm.weight", MODEL(output_norm), DIM_ONE, DIM_EMBD},
    {"output.weight", "lm_head.weight", MODEL(output), DIM_VOCAB, DIM_EMBD},
};

static const struct td__arch archs[] = {
    {"llama", "llama", TD_ARCH_LLAMA, TD_ROPE_PAIRS, NULL, 0},
    {"qwen2", "qwen2", TD_ARCH_QWEN2, TD_ROPE_HALVES, qkv_bias, TD_COUNT(qkv_bias)},
    {"qwen3", "qwen3", TD_ARCH_QWEN3, TD_ROPE_HALVES, qk_norm, TD_COUNT(qk_norm)},
    {"mistral", NULL, TD_ARCH_MISTRAL, TD_ROPE_PAIRS, NULL, 0},
};

const struct td__arch *td__model_arch_gguf(struct td_str name)
{
    for (size_t i = 0; i < TD_COUNT(archs); i++) {
        if (archs[i].gguf != NULL && td_str_eq(name, archs[i].gguf)) {
            return &archs[i];
        }
    }
    return NULL;
}

const struct td__arch *td__model_arch_of(enum td_arch arch)
{
    for (size_t i = 0; i < TD_COUNT(archs); i++) {
        if (archs[i].arch == arch) {
            return &archs[i];
        }
    }
    return NULL;
}

const char *td_arch_name(enum td_arch arch)
{
    const struct td__arch *a = td__model_arch_of(arch);

    return a != NULL ? a->name : "unknown";
}

static uint32_t dim_size(const struct td_hparams *hp, enum td__dim d)
{
    switch (d) {
    case DIM_EMBD:
        return hp->n_embd;
    case DIM_FFN:
        return hp->n_ffn;
    case DIM_Q:
        return hp->n_heads * hp->head_dim;
    case DIM_KV:
        return hp->n_kv_heads * hp->head_dim;
    case DIM_HEAD:
        return hp->head_dim;
    case DIM_VOCAB:
        return hp->n_vocab;
    case DIM_ONE:
    default:
        return 1;
    }
}

/* ---- tensors ---- */

const struct td_gguf_tensor *td__model_tensor(const struct td__open *o, const char *name)
{
    return o->g != NULL ? td_gguf_tensor(o->g, name) : td_hf_dir_tensor(o->dir, name);
}

static size_t n_tensors(const struct td__open *o)
{
    return o->g != NULL ? td_gguf_n_tensors(o->g) : td_hf_dir_n_tensors(o->dir);
}

/* ---- weights ---- */

td_err td__model_check_shape(struct td__open *o, const struct td_gguf_tensor *t, uint32_t rows,
                             uint32_t cols)
{
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "tensor %.*s is [%llu][%llu], not [%u][%u]",
                      (int)t->name.len, t->name.data, (unsigned long long)t->dims[1],
                      (unsigned long long)t->dims[0], rows, cols);
    }
    return TD_OK;
}

static td_err check_type(struct td__open *o, const struct td_gguf_tensor *t, bool vector)
{
    bool half = t->dtype == TD_DTYPE_F16 || t->dtype == TD_DTYPE_BF16;
    bool ok = vector ? t->dtype == TD_DTYPE_F32 || (half && o->dir != NULL)
                     : td_dequant_supported(t->dtype);

    return ok ? TD_OK
              : td_why(&o->why, TD_ERR_FILE_UNSUPPORTED,
                       "tensor %.*s has type %s, which is not supported%s", (int)t->name.len,
                       t->name.data, td_dtype_info((uint32_t)t->dtype)->name,
                       vector ? " for a vector" : "");
}

/* Vectors are float32 for whoever computes with them. */
static td_err widen(struct td__open *o, struct td_weight *w)
{
    struct td_model_priv *p = o->m->priv;
    float *v;

    if (p->n_vectors == p->cap_vectors) {
        size_t cap = p->cap_vectors == 0 ? 64 : 2 * p->cap_vectors;
        float **list = td_realloc(p->vectors, cap * sizeof *list);

        if (list == NULL) {
            return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for vectors");
        }
        p->vectors = list;
        p->cap_vectors = cap;
    }
    v = td_zalloc(w->cols, sizeof *v);
    if (v == NULL) {
        return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for vectors");
    }
    p->vectors[p->n_vectors++] = v;
    td_dequant_row(w->dtype, w->data, w->cols, v);
    w->dtype = TD_DTYPE_F32;
    w->row_bytes = (uint64_t)w->cols * sizeof *v;
    w->data = v;
    return TD_OK;
}

static td_err take_weight(struct td__open *o, const char *name, const struct td__slot *s,
                          struct td_weight *out)
{
    const struct td_gguf_tensor *t = td__model_tensor(o, name);
    uint32_t rows = dim_size(&o->m->hp, s->rows);
    uint32_t cols = dim_size(&o->m->hp, s->cols);

    if (t == NULL) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "tensor %s is missing", name);
    }
    TD_TRY(td__model_check_shape(o, t, rows, cols));
    TD_TRY(check_type(o, t, s->rows == DIM_ONE));
    *out = (struct td_weight){t->dtype, rows, cols, t->bytes / rows, t->data, t->name};
    o->m->weight_bytes += t->bytes;
    o->n_used++;
    return s->rows == DIM_ONE && t->dtype != TD_DTYPE_F32 ? widen(o, out) : TD_OK;
}

static td_err take_slots(struct td__open *o, uint32_t l, const struct td__slot *slots, size_t n)
{
    char *layer = (char *)&o->m->layers[l];

    for (size_t i = 0; i < n; i++) {
        char name[96];

        if (o->g != NULL) {
            (void)snprintf(name, sizeof name, "blk.%u.%s", l, slots[i].gguf);
        } else {
            (void)snprintf(name, sizeof name, "model.layers.%u.%s", l, slots[i].hf);
        }
        TD_TRY(
            take_weight(o, name, &slots[i], (struct td_weight *)(void *)(layer + slots[i].offset)));
    }
    return TD_OK;
}

static td_err take_layers(struct td__open *o)
{
    struct td_model *m = o->m;

    m->layers = td_zalloc(m->hp.n_layers, sizeof *m->layers);
    if (m->layers == NULL) {
        return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for %u layers", m->hp.n_layers);
    }
    for (uint32_t l = 0; l < m->hp.n_layers; l++) {
        TD_TRY(take_slots(o, l, common_layer, TD_COUNT(common_layer)));
        TD_TRY(take_slots(o, l, o->arch->extra, o->arch->n_extra));
    }
    return TD_OK;
}

static void note_dtypes(struct td_model *m)
{
    m->hp.weight_dtype = m->layers[0].wq.dtype;
    m->hp.mixed_dtypes =
        m->token_embd.dtype != m->hp.weight_dtype || m->output.dtype != m->hp.weight_dtype;
    for (uint32_t l = 0; l < m->hp.n_layers; l++) {
        const struct td_layer *w = &m->layers[l];
        const enum td_dtype all[] = {w->wq.dtype,   w->wk.dtype, w->wv.dtype,  w->wo.dtype,
                                     w->gate.dtype, w->up.dtype, w->down.dtype};

        for (size_t i = 0; i < TD_COUNT(all); i++) {
            m->hp.mixed_dtypes |= all[i] != m->hp.weight_dtype;
        }
    }
}

/* Old writers stored what everyone computes, and some store a tied output twice. */
static size_t n_known_extras(const struct td__open *o)
{
    static const char buffer[] = "self_attn.rotary_emb.inv_freq";
    size_t n = 0;

    for (uint32_t l = 0; o->dir != NULL && l < o->m->hp.n_layers; l++) {
        char name[96];

        (void)snprintf(name, sizeof name, "model.layers.%u.%s", l, buffer);
        n += td__model_tensor(o, name) != NULL;
    }
    return n + (o->dir != NULL && o->m->hp.tied_embedding &&
                td__model_tensor(o, "lm_head.weight") != NULL);
}

td_err td__model_take_weights(struct td__open *o)
{
    struct td_model *m = o->m;
    size_t n = n_tensors(o);
    size_t placed;

    for (size_t i = 0; i < TD_COUNT(model_slots); i++) {
        const struct td__slot *s = &model_slots[i];
        struct td_weight *w = (struct td_weight *)(void *)((char *)m + s->offset);

        if (w == &m->output && m->hp.tied_embedding) {
            m->output = m->token_embd;
            continue;
        }
        TD_TRY(take_weight(o, o->g != NULL ? s->gguf : s->hf, s, w));
    }
    TD_TRY(take_layers(o));
    note_dtypes(m);
    placed = o->n_used + n_known_extras(o);
    /* A tensor that the graph does not use (a bias, say) means other arithmetic than ours. */
    return placed == n ? TD_OK
                       : td_why(&o->why, TD_ERR_FILE_UNSUPPORTED,
                                "%zu of %zu tensors have no place in architecture %s", n - placed,
                                n, o->arch->name);
}
