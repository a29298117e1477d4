/* model_gguf.c - a model from a GGUF file: metadata to hyper-parameters and rotary frequencies. */
#include <stdio.h>
#include <string.h>

#include "common/model/model_priv.h"
#include "common/model/rope.h"

/* ---- hyper-parameters ---- */

/* Absent and required, or of another kind: an error; absent and optional: *out keeps its value. */
static td_err number_result(struct td__open *o, td_err e, const char *key, bool required)
{
    if (e == TD_ERR_NOT_FOUND) {
        return required ? td_why(&o->why, TD_ERR_FILE_FORMAT, "metadata %s is missing", key)
                        : TD_OK;
    }
    return e == TD_OK ? TD_OK : td_why(&o->why, e, "metadata %s is not a number in range", key);
}

static td_err get_u32(struct td__open *o, const char *name, bool required, uint32_t *out)
{
    char key[96];

    (void)snprintf(key, sizeof key, "%s.%s", o->arch->name, name);
    return number_result(o, td_gguf_get_u32(o->g, key, out), key, required);
}

static td_err get_f32(struct td__open *o, const char *name, bool required, float *out)
{
    char key[96];

    (void)snprintf(key, sizeof key, "%s.%s", o->arch->name, name);
    return number_result(o, td_gguf_get_f32(o->g, key, out), key, required);
}

static td_err in_range(struct td__open *o, const char *what, uint32_t v, uint32_t max)
{
    if (v < 1 || v > max) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "%s is %u, not 1 to %u", what, v, max);
    }
    return TD_OK;
}

/* Sizes that every later product relies on: each at most a million, so products of two fit in 64
 * bits. */
static td_err check_sizes(struct td__open *o)
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
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "%u heads are not a multiple of %u KV heads",
                      hp->n_heads, hp->n_kv_heads);
    }
    if (hp->rope_dim % 2 != 0) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "rope.dimension_count %u is odd", hp->rope_dim);
    }
    /* Negated, so that a NaN fails too. */
    if (!(hp->rms_eps >= 0 && hp->rms_eps < 1)) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT,
                      "attention.layer_norm_rms_epsilon is not in [0, 1)");
    }
    if (!(hp->rope_theta >= 1 && hp->rope_theta <= 1e12f)) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "rope.freq_base is not in [1, 1e12]");
    }
    return TD_OK;
}

/* Features that change the arithmetic and that this build lacks: never silently ignored. */
static td_err check_features(struct td__open *o)
{
    uint32_t experts = 0;
    uint32_t value_dim = o->m->hp.head_dim;

    TD_TRY(get_u32(o, "expert_count", false, &experts));
    if (experts > 0) {
        return td_why(&o->why, TD_ERR_FILE_UNSUPPORTED, "mixtures of experts are not supported");
    }
    TD_TRY(get_u32(o, "attention.sliding_window", false, &o->m->hp.window));
    if (o->m->hp.window >= o->m->hp.n_ctx) {
        o->m->hp.window = 0; /* the context ends first */
    }
    TD_TRY(get_u32(o, "attention.value_length", false, &value_dim));
    if (value_dim != o->m->hp.head_dim) {
        return td_why(&o->why, TD_ERR_FILE_UNSUPPORTED,
                      "keys of %u and values of %u are not supported", o->m->hp.head_dim,
                      value_dim);
    }
    return TD_OK;
}

static td_err read_hparams(struct td__open *o)
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

/* ---- rotary scaling ---- */

static td_err rope_linear(struct td__open *o, float *out_factor)
{
    struct td_str type = {"none", 4};
    char key[96];

    *out_factor = 1;
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", o->arch->name);
    if (td_gguf_has(o->g, key) && td_gguf_get_str(o->g, key, &type) != TD_OK) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "metadata %s is not a string", key);
    }
    if (td_str_eq(type, "none")) {
        return TD_OK;
    }
    if (!td_str_eq(type, "linear")) {
        return td_why(&o->why, TD_ERR_FILE_UNSUPPORTED, "rope scaling %.*s is not supported",
                      (int)(type.len < 40 ? type.len : 40), type.data);
    }
    TD_TRY(get_f32(o, "rope.scaling.factor", true, out_factor));
    if (!(*out_factor >= 1 && *out_factor <= 1e6f)) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "rope.scaling.factor is not in [1, 1e6]");
    }
    return TD_OK;
}

/* Llama 3.1 and later store one divisor for each pair as a tensor. */
static td_err rope_divisors(struct td__open *o)
{
    static const char name[] = "rope_freqs.weight";
    const struct td_gguf_tensor *t = td__model_tensor(o, name);
    const float *divisor;

    if (t == NULL) {
        return TD_OK;
    }
    TD_TRY(td__model_check_shape(o, t, 1, o->m->hp.rope_dim / 2));
    if (t->dtype != TD_DTYPE_F32) {
        return td_why(&o->why, TD_ERR_FILE_UNSUPPORTED, "tensor %s is not F32", name);
    }
    divisor = t->data;
    for (uint32_t i = 0; i < o->m->hp.rope_dim / 2; i++) {
        if (!(divisor[i] >= 1 && divisor[i] <= 1e6f)) {
            return td_why(&o->why, TD_ERR_FILE_FORMAT, "tensor %s: value %u is not in [1, 1e6]",
                          name, i);
        }
        o->m->rope_freq[i] /= divisor[i];
    }
    o->n_used++;
    return TD_OK;
}

static td_err read_rope(struct td__open *o)
{
    struct td_hparams *hp = &o->m->hp;
    float linear = 1;

    o->m->rope_freq = td_zalloc(hp->rope_dim / 2, sizeof *o->m->rope_freq);
    if (o->m->rope_freq == NULL) {
        return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for rope frequencies");
    }
    td_rope_freqs(hp->rope_theta, hp->rope_dim, o->m->rope_freq);
    TD_TRY(rope_linear(o, &linear));
    for (uint32_t i = 0; i < hp->rope_dim / 2; i++) {
        o->m->rope_freq[i] /= linear;
    }
    return rope_divisors(o);
}

/* ---- identity ---- */

static td_err identify(struct td__open *o)
{
    struct td_digest d;
    uint64_t len = 0;
    const void *bytes = td_gguf_bytes(o->g, &len);

    td_digest_begin(&d);
    td_digest_u64(&d, len);
    td_digest_bytes(&d, bytes, (size_t)td_gguf_head_bytes(o->g));
    for (size_t i = 0; i < td_gguf_n_tensors(o->g); i++) {
        td__model_digest_samples(&d, td_gguf_tensor_at(o->g, i));
    }
    o->m->file_bytes = len;
    return td_digest_end(&d, o->m->id);
}

/* ---- all of it ---- */

static td_err find_arch(struct td__open *o)
{
    struct td_str name = {NULL, 0};

    if (td_gguf_get_str(o->g, "general.architecture", &name) != TD_OK) {
        return td_why(&o->why, TD_ERR_FILE_FORMAT, "metadata general.architecture is missing");
    }
    o->arch = td__model_arch_gguf(name);
    return o->arch != NULL
               ? TD_OK
               : td_why(&o->why, TD_ERR_FILE_UNSUPPORTED, "architecture %.*s is not supported",
                        (int)(name.len < 40 ? name.len : 40), name.data);
}

td_err td__model_build_gguf(struct td__open *o)
{
    struct td_model *m = o->m;

    TD_TRY(find_arch(o));
    m->hp.arch = o->arch->arch;
    m->hp.rope_style = o->arch->gguf_rope;
    TD_TRY(td_tok_data_load(o->g, &m->tok, o->err_text, sizeof o->err_text));
    m->hp.n_vocab = m->tok.n_tokens;
    m->defaults = TD_MODEL_DEFAULTS_NONE;
    TD_TRY(read_hparams(o));
    TD_TRY(read_rope(o));
    m->hp.tied_embedding = td__model_tensor(o, "output.weight") == NULL;
    TD_TRY(td__model_take_weights(o));
    if (td_gguf_get_str(o->g, "general.name", &m->name) != TD_OK) {
        m->name = (struct td_str){"", 0};
    }
    return identify(o) == TD_OK
               ? TD_OK
               : td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for the model's identity");
}
