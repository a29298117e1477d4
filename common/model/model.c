#define TD_LOG_ROOM "model"
#include "common/model/model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/model/dequant.h"
#include "common/model/digest.h"
#include "common/model/rope.h"

#define MODEL_MAGIC 0x6c64646du

struct td_model_priv {
    uint32_t magic;
    struct td_gguf *g; /* owned */
};

struct open {
    struct td_model *m;
    const struct td_gguf *g;
    const char *arch; /* prefix of this architecture's keys */
    size_t n_used;    /* tensors that have found their place */
    char err_text[TD_GGUF_ERR_TEXT];
};

static td_err fail(struct open *o, td_err e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static td_err fail(struct open *o, td_err e, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(o->err_text, sizeof o->err_text, fmt, ap); /* cut to fit is fine */
    va_end(ap);
    return e;
}

/* ---- hyper-parameters ---- */

/* Absent and required, or of another kind: an error; absent and optional: *out keeps its value. */
static td_err number_result(struct open *o, td_err e, const char *key, bool required)
{
    if (e == TD_ERR_NOT_FOUND) {
        return required ? fail(o, TD_ERR_FILE_FORMAT, "metadata %s is missing", key) : TD_OK;
    }
    return e == TD_OK ? TD_OK : fail(o, e, "metadata %s is not a number in range", key);
}

static td_err get_u32(struct open *o, const char *name, bool required, uint32_t *out)
{
    char key[96];

    (void)snprintf(key, sizeof key, "%s.%s", o->arch, name);
    return number_result(o, td_gguf_get_u32(o->g, key, out), key, required);
}

static td_err get_f32(struct open *o, const char *name, bool required, float *out)
{
    char key[96];

    (void)snprintf(key, sizeof key, "%s.%s", o->arch, name);
    return number_result(o, td_gguf_get_f32(o->g, key, out), key, required);
}

static td_err in_range(struct open *o, const char *what, uint32_t v, uint32_t max)
{
    if (v < 1 || v > max) {
        return fail(o, TD_ERR_FILE_FORMAT, "%s is %u, not 1 to %u", what, v, max);
    }
    return TD_OK;
}

/* Sizes that every later product relies on: each at most a million, so products of two fit in 64
 * bits. */
static td_err check_sizes(struct open *o)
{
    const struct td_hparams *hp = &o->m->hp;

    TD_TRY(in_range(o, "block_count", hp->n_layers, TD_MODEL_MAX_LAYERS));
    TD_TRY(in_range(o, "embedding_length", hp->n_embd, TD_MODEL_MAX_EMBD));
    TD_TRY(in_range(o, "feed_forward_length", hp->n_ffn, TD_MODEL_MAX_FFN));
    TD_TRY(in_range(o, "attention.head_count", hp->n_heads, TD_MODEL_MAX_HEADS));
    TD_TRY(in_range(o, "attention.head_count_kv", hp->n_kv_heads, hp->n_heads));
    TD_TRY(in_range(o, "attention.key_length", hp->head_dim, TD_MODEL_MAX_HEAD_DIM));
    TD_TRY(in_range(o, "context_length", hp->n_ctx, TD_MODEL_MAX_CTX));
    TD_TRY(in_range(o, "rope.dimension_count", hp->rope_dim, hp->head_dim));
    if (hp->n_heads % hp->n_kv_heads != 0) {
        return fail(o, TD_ERR_FILE_FORMAT, "%u heads are not a multiple of %u KV heads",
                    hp->n_heads, hp->n_kv_heads);
    }
    if (hp->rope_dim % 2 != 0) {
        return fail(o, TD_ERR_FILE_FORMAT, "rope.dimension_count %u is odd", hp->rope_dim);
    }
    /* Negated, so that a NaN fails too. */
    if (!(hp->rms_eps >= 0 && hp->rms_eps < 1)) {
        return fail(o, TD_ERR_FILE_FORMAT, "attention.layer_norm_rms_epsilon is not in [0, 1)");
    }
    if (!(hp->rope_theta >= 1 && hp->rope_theta <= 1e12f)) {
        return fail(o, TD_ERR_FILE_FORMAT, "rope.freq_base is not in [1, 1e12]");
    }
    return TD_OK;
}

/* Features that change the arithmetic and that this build lacks: never silently ignored. */
static td_err check_features(struct open *o)
{
    uint32_t experts = 0;
    uint32_t value_dim = o->m->hp.head_dim;

    TD_TRY(get_u32(o, "expert_count", false, &experts));
    if (experts > 0) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED, "mixtures of experts are not supported");
    }
    TD_TRY(get_u32(o, "attention.sliding_window", false, &o->m->hp.window));
    if (o->m->hp.window >= o->m->hp.n_ctx) {
        o->m->hp.window = 0; /* the context ends first */
    }
    if (o->m->hp.window > 0) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED, "sliding-window attention is not supported");
    }
    TD_TRY(get_u32(o, "attention.value_length", false, &value_dim));
    if (value_dim != o->m->hp.head_dim) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED, "keys of %u and values of %u are not supported",
                    o->m->hp.head_dim, value_dim);
    }
    return TD_OK;
}

static td_err read_hparams(struct open *o)
{
    struct td_hparams *hp = &o->m->hp;

    TD_TRY(get_u32(o, "block_count", true, &hp->n_layers));
    TD_TRY(get_u32(o, "context_length", true, &hp->n_ctx));
    TD_TRY(get_u32(o, "embedding_length", true, &hp->n_embd));
    TD_TRY(get_u32(o, "feed_forward_length", true, &hp->n_ffn));
    TD_TRY(get_u32(o, "attention.head_count", true, &hp->n_heads));
    hp->n_kv_heads = hp->n_heads;
    TD_TRY(get_u32(o, "attention.head_count_kv", false, &hp->n_kv_heads));
    hp->head_dim = hp->n_heads > 0 ? hp->n_embd / hp->n_heads : 0;
    TD_TRY(get_u32(o, "attention.key_length", false, &hp->head_dim));
    hp->rope_dim = hp->head_dim;
    TD_TRY(get_u32(o, "rope.dimension_count", false, &hp->rope_dim));
    TD_TRY(get_f32(o, "attention.layer_norm_rms_epsilon", true, &hp->rms_eps));
    hp->rope_theta = 10000;
    TD_TRY(get_f32(o, "rope.freq_base", false, &hp->rope_theta));
    TD_TRY(check_sizes(o));
    return check_features(o);
}

/* ---- architectures ---- */

/* Sizes that a shape is made of. */
enum dim { DIM_ONE, DIM_EMBD, DIM_FFN, DIM_Q, DIM_KV, DIM_VOCAB };

struct slot {
    const char *name; /* of the tensor; of a layer's: behind "blk.N." */
    size_t offset;    /* of its struct td_weight in struct td_layer or struct td_model */
    enum dim rows, cols;
};

struct arch {
    const char *name;
    enum td_arch arch;
    enum td_rope_style rope_style; /* llama files hold Q and K rows permuted for pairs */
    const struct slot *layer;
    size_t n_layer_slots;
};

static const struct slot llama_layer[] = {
    {"attn_norm.weight", offsetof(struct td_layer, attn_norm), DIM_ONE, DIM_EMBD},
    {"attn_q.weight", offsetof(struct td_layer, wq), DIM_Q, DIM_EMBD},
    {"attn_k.weight", offsetof(struct td_layer, wk), DIM_KV, DIM_EMBD},
    {"attn_v.weight", offsetof(struct td_layer, wv), DIM_KV, DIM_EMBD},
    {"attn_output.weight", offsetof(struct td_layer, wo), DIM_EMBD, DIM_Q},
    {"ffn_norm.weight", offsetof(struct td_layer, ffn_norm), DIM_ONE, DIM_EMBD},
    {"ffn_gate.weight", offsetof(struct td_layer, gate), DIM_FFN, DIM_EMBD},
    {"ffn_up.weight", offsetof(struct td_layer, up), DIM_FFN, DIM_EMBD},
    {"ffn_down.weight", offsetof(struct td_layer, down), DIM_EMBD, DIM_FFN},
};

static const struct slot model_slots[] = {
    {"token_embd.weight", offsetof(struct td_model, token_embd), DIM_VOCAB, DIM_EMBD},
    {"output_norm.weight", offsetof(struct td_model, output_norm), DIM_ONE, DIM_EMBD},
    {"output.weight", offsetof(struct td_model, output), DIM_VOCAB, DIM_EMBD},
};

static const struct arch archs[] = {
    {"llama", TD_ARCH_LLAMA, TD_ROPE_PAIRS, llama_layer, TD_COUNT(llama_layer)},
};

static const struct arch *find_arch(struct open *o)
{
    struct td_str name = {NULL, 0};

    if (td_gguf_get_str(o->g, "general.architecture", &name) != TD_OK) {
        (void)fail(o, TD_ERR_FILE_FORMAT, "metadata general.architecture is missing");
        return NULL;
    }
    for (size_t i = 0; i < TD_COUNT(archs); i++) {
        if (td_str_eq(name, archs[i].name)) {
            return &archs[i];
        }
    }
    (void)fail(o, TD_ERR_FILE_UNSUPPORTED, "architecture %.*s is not supported",
               (int)(name.len < 40 ? name.len : 40), name.data);
    return NULL;
}

static uint32_t dim_size(const struct td_hparams *hp, enum dim d)
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
    case DIM_VOCAB:
        return hp->n_vocab;
    case DIM_ONE:
    default:
        return 1;
    }
}

/* ---- weights ---- */

static td_err check_shape(struct open *o, const struct td_gguf_tensor *t, uint32_t rows,
                          uint32_t cols)
{
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1) {
        return fail(o, TD_ERR_FILE_FORMAT, "tensor %.*s is [%llu][%llu], not [%u][%u]",
                    (int)t->name.len, t->name.data, (unsigned long long)t->dims[1],
                    (unsigned long long)t->dims[0], rows, cols);
    }
    if (rows == 1 ? t->dtype != TD_DTYPE_F32 : !td_dequant_supported(t->dtype)) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED, "tensor %.*s has type %s, which is not supported%s",
                    (int)t->name.len, t->name.data, td_dtype_info((uint32_t)t->dtype)->name,
                    rows == 1 ? " for a vector" : "");
    }
    return TD_OK;
}

static td_err take_weight(struct open *o, const char *name, const struct slot *s,
                          struct td_weight *out)
{
    const struct td_gguf_tensor *t = td_gguf_tensor(o->g, name);
    uint32_t rows = dim_size(&o->m->hp, s->rows);
    uint32_t cols = dim_size(&o->m->hp, s->cols);

    if (t == NULL) {
        return fail(o, TD_ERR_FILE_FORMAT, "tensor %s is missing", name);
    }
    TD_TRY(check_shape(o, t, rows, cols));
    *out = (struct td_weight){t->dtype, rows, cols, t->bytes / rows, t->data, t->name};
    o->m->weight_bytes += t->bytes;
    o->n_used++;
    return TD_OK;
}

static td_err take_layers(struct open *o, const struct arch *a)
{
    struct td_model *m = o->m;

    m->layers = td_zalloc(m->hp.n_layers, sizeof *m->layers);
    if (m->layers == NULL) {
        return fail(o, TD_ERR_NO_MEMORY, "out of memory for %u layers", m->hp.n_layers);
    }
    for (uint32_t l = 0; l < m->hp.n_layers; l++) {
        for (size_t i = 0; i < a->n_layer_slots; i++) {
            char name[96];
            char *layer = (char *)&m->layers[l];

            (void)snprintf(name, sizeof name, "blk.%u.%s", l, a->layer[i].name);
            TD_TRY(take_weight(o, name, &a->layer[i],
                               (struct td_weight *)(void *)(layer + a->layer[i].offset)));
        }
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

static td_err take_weights(struct open *o, const struct arch *a)
{
    struct td_model *m = o->m;

    m->hp.tied_embedding = td_gguf_tensor(o->g, "output.weight") == NULL;
    for (size_t i = 0; i < TD_COUNT(model_slots); i++) {
        struct td_weight *w = (struct td_weight *)(void *)((char *)m + model_slots[i].offset);

        if (w == &m->output && m->hp.tied_embedding) {
            m->output = m->token_embd;
            continue;
        }
        TD_TRY(take_weight(o, model_slots[i].name, &model_slots[i], w));
    }
    TD_TRY(take_layers(o, a));
    note_dtypes(m);
    /* A tensor that the graph does not use (a bias, say) means other arithmetic than ours. */
    if (o->n_used != td_gguf_n_tensors(o->g)) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED,
                    "%zu of %zu tensors have no place in architecture %s",
                    td_gguf_n_tensors(o->g) - o->n_used, td_gguf_n_tensors(o->g), a->name);
    }
    return TD_OK;
}

/* ---- rotary scaling ---- */

static td_err rope_linear(struct open *o, float *out_factor)
{
    struct td_str type = {"none", 4};
    char key[96];

    *out_factor = 1;
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", o->arch);
    if (td_gguf_has(o->g, key) && td_gguf_get_str(o->g, key, &type) != TD_OK) {
        return fail(o, TD_ERR_FILE_FORMAT, "metadata %s is not a string", key);
    }
    if (td_str_eq(type, "none")) {
        return TD_OK;
    }
    if (!td_str_eq(type, "linear")) {
        return fail(o, TD_ERR_FILE_UNSUPPORTED, "rope scaling %.*s is not supported",
                    (int)(type.len < 40 ? type.len : 40), type.data);
    }
    TD_TRY(get_f32(o, "rope.scaling.factor", true, out_factor));
    if (!(*out_factor >= 1 && *out_factor <= 1e6f)) {
        return fail(o, TD_ERR_FILE_FORMAT, "rope.scaling.factor is not in [1, 1e6]");
    }
    return TD_OK;
}

/* Llama 3.1 and later store one divisor for each pair as a tensor. */
static td_err rope_divisors(struct open *o)
{
    static const struct slot slot = {"rope_freqs.weight", 0, DIM_ONE, DIM_ONE};
    const struct td_gguf_tensor *t = td_gguf_tensor(o->g, slot.name);
    const float *divisor;

    if (t == NULL) {
        return TD_OK;
    }
    TD_TRY(check_shape(o, t, 1, o->m->hp.rope_dim / 2));
    divisor = t->data;
    for (uint32_t i = 0; i < o->m->hp.rope_dim / 2; i++) {
        if (!(divisor[i] >= 1 && divisor[i] <= 1e6f)) {
            return fail(o, TD_ERR_FILE_FORMAT, "tensor %s: value %u is not in [1, 1e6]", slot.name,
                        i);
        }
        o->m->rope_freq[i] /= divisor[i];
    }
    o->n_used++;
    return TD_OK;
}

static td_err read_rope(struct open *o)
{
    struct td_hparams *hp = &o->m->hp;
    float linear = 1;

    o->m->rope_freq = td_zalloc(hp->rope_dim / 2, sizeof *o->m->rope_freq);
    if (o->m->rope_freq == NULL) {
        return fail(o, TD_ERR_NO_MEMORY, "out of memory for rope frequencies");
    }
    td_rope_freqs(hp->rope_theta, hp->rope_dim, o->m->rope_freq);
    TD_TRY(rope_linear(o, &linear));
    for (uint32_t i = 0; i < hp->rope_dim / 2; i++) {
        o->m->rope_freq[i] /= linear;
    }
    return rope_divisors(o);
}

/* ---- identity ---- */

/* The samples: all of a small tensor, else four pieces spread evenly from its first byte to its
 * last. */
static void digest_samples(struct td_digest *d, const struct td_gguf_tensor *t)
{
    const uint8_t *bytes = t->data;
    uint64_t piece = TD_MODEL_SAMPLE / 4;

    if (t->bytes <= TD_MODEL_SAMPLE) {
        td_digest_bytes(d, bytes, (size_t)t->bytes);
        return;
    }
    for (uint64_t i = 0; i < 4; i++) {
        td_digest_bytes(d, bytes + (t->bytes - piece) / 3 * i, (size_t)piece);
    }
}

static td_err identify(struct open *o)
{
    struct td_digest d;
    uint64_t len = 0;
    const void *bytes = td_gguf_bytes(o->g, &len);

    td_digest_begin(&d);
    td_digest_u64(&d, len);
    td_digest_bytes(&d, bytes, (size_t)td_gguf_head_bytes(o->g));
    for (size_t i = 0; i < td_gguf_n_tensors(o->g); i++) {
        digest_samples(&d, td_gguf_tensor_at(o->g, i));
    }
    o->m->file_bytes = len;
    if (td_digest_end(&d, o->m->id) != TD_OK) {
        return fail(o, TD_ERR_NO_MEMORY, "out of memory for the model's identity");
    }
    return TD_OK;
}

td_err td_model_full_hash(const struct td_model *m, uint8_t out_hash[32])
{
    struct td_digest d;
    uint64_t len = 0;
    const void *bytes = td_gguf_bytes(m->priv->g, &len);

    td_digest_begin(&d);
    td_digest_bytes(&d, bytes, (size_t)len);
    return td_digest_end(&d, out_hash);
}

/* ---- opening ---- */

static td_err build(struct open *o)
{
    struct td_model *m = o->m;
    const struct arch *a = find_arch(o);

    if (a == NULL) {
        return td_gguf_has(o->g, "general.architecture") ? TD_ERR_FILE_UNSUPPORTED
                                                         : TD_ERR_FILE_FORMAT;
    }
    o->arch = a->name;
    m->hp.arch = a->arch;
    m->hp.rope_style = a->rope_style;
    TD_TRY(td_tok_data_load(o->g, &m->tok, o->err_text, sizeof o->err_text));
    m->hp.n_vocab = m->tok.n_tokens;
    TD_TRY(read_hparams(o));
    TD_TRY(read_rope(o));
    TD_TRY(take_weights(o, a));
    if (td_gguf_get_str(o->g, "general.name", &m->name) != TD_OK) {
        m->name = (struct td_str){"", 0};
    }
    return identify(o);
}

/* Takes g in every case. */
static td_err open_take(struct td_gguf **g, struct open *o, struct td_model **out_model)
{
    TD_CLEANUP(td_model_closep) struct td_model *m = td_zalloc(1, sizeof *m);
    struct td_model_priv *priv = td_zalloc(1, sizeof *priv);

    if (m == NULL || priv == NULL) {
        free(priv);
        *g = td_gguf_close(*g);
        return fail(o, TD_ERR_NO_MEMORY, "out of memory");
    }
    m->priv = priv;
    priv->g = TD_STEAL(*g);
    o->m = m;
    o->g = priv->g;
    TD_TRY(build(o));
    priv->magic = MODEL_MAGIC;
    *out_model = TD_STEAL(m);
    return TD_OK;
}

static td_err finish(struct td_gguf *g, td_err e, const char *name, struct open *o,
                     struct td_model **out_model)
{
    if (e == TD_OK) {
        e = open_take(&g, o, out_model);
    }
    if (e != TD_OK) {
        char file[256];
        char reason[2 * TD_GGUF_ERR_TEXT];

        TD_LOG(ERROR, "model refused", "file=%s err=%s reason=%s",
               td_log_quote(name, strlen(name), file, sizeof file), td_err_code(e),
               td_log_quote(o->err_text, strlen(o->err_text), reason, sizeof reason));
    }
    return e;
}

td_err td_model_open(const char *path, struct td_model **out_model)
{
    struct open o = {0};
    struct td_gguf *g = NULL;
    td_err e = td_gguf_open(path, &g, o.err_text, sizeof o.err_text);

    return finish(g, e, path, &o, out_model);
}

td_err td_model_open_memory(const void *data, size_t len, const char *name,
                            struct td_model **out_model)
{
    struct open o = {0};
    struct td_gguf *g = NULL;
    td_err e = td_gguf_open_memory(data, len, &g, o.err_text, sizeof o.err_text);

    return finish(g, e, name, &o, out_model);
}

struct td_model *td_model_close(struct td_model *m)
{
    if (m == NULL) {
        return NULL;
    }
    td_tok_data_fini(&m->tok);
    free(m->layers);
    free(m->rope_freq);
    if (m->priv != NULL) {
        m->priv->magic = 0;
        (void)td_gguf_close(m->priv->g); /* always NULL */
        free(m->priv);
    }
    free(m);
    return NULL;
}
