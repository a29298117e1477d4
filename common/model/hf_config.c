#include "common/model/hf_config.h"

#include "common/model/rope.h"

struct read {
    const json_t *j;
    const struct td_why *why;
};

/* ---- values ---- */

/* Absent: *out keeps its value. */
static td_err get_u32(const struct read *r, const char *key, uint32_t lo, uint32_t hi,
                      uint32_t *out)
{
    const json_t *v = td_json_get(r->j, key);
    json_int_t n = json_integer_value(v);

    if (v == NULL) {
        return TD_OK;
    }
    if (!json_is_integer(v) || n < (json_int_t)lo || n > (json_int_t)hi) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "%s is not a whole number from %u to %u", key, lo,
                      hi);
    }
    *out = (uint32_t)n;
    return TD_OK;
}

static td_err need_u32(const struct read *r, const char *key, uint32_t hi, uint32_t *out)
{
    if (td_json_get(r->j, key) == NULL) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "%s is missing", key);
    }
    return get_u32(r, key, 1, hi, out);
}

static td_err get_number(const struct read *r, const char *key, double lo, double hi, double *out)
{
    const json_t *v = td_json_get(r->j, key);
    double d = json_number_value(v);

    if (v == NULL) {
        return TD_OK;
    }
    /* Negated, so that a NaN fails too. */
    if (!json_is_number(v) || !(d >= lo && d <= hi)) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "%s is not a number from %g to %g", key, lo, hi);
    }
    *out = d;
    return TD_OK;
}

static td_err get_bool(const struct read *r, const char *key, bool *out)
{
    const json_t *v = td_json_get(r->j, key);

    if (v != NULL && !json_is_boolean(v)) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "%s is not true or false", key);
    }
    *out = v != NULL ? json_is_true(v) : *out;
    return TD_OK;
}

static struct td_shown shown(const json_t *v)
{
    return td_show(td_json_str(v));
}

/* ---- architecture ---- */

static const struct {
    const char *model_type, *class;
    enum td_arch arch;
    bool head_dim_128; /* transformers' own default, whatever the width */
} archs[] = {
    {"llama", "LlamaForCausalLM", TD_ARCH_LLAMA, false},
    {"qwen2", "Qwen2ForCausalLM", TD_ARCH_QWEN2, false},
    {"qwen3", "Qwen3ForCausalLM", TD_ARCH_QWEN3, true},
    {"mistral", "MistralForCausalLM", TD_ARCH_MISTRAL, false},
};

static td_err read_arch(const struct read *r, struct td_hparams *hp, bool *out_head_dim_128)
{
    const json_t *type = td_json_get(r->j, "model_type");
    const json_t *class = json_array_get(td_json_get(r->j, "architectures"), 0);

    if (!json_is_string(type)) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "model_type is missing");
    }
    for (size_t i = 0; i < TD_COUNT(archs); i++) {
        if (!td_json_is(type, archs[i].model_type)) {
            continue;
        }
        if (class != NULL && !td_json_is(class, archs[i].class)) {
            break;
        }
        hp->arch = archs[i].arch;
        *out_head_dim_128 = archs[i].head_dim_128;
        return TD_OK;
    }
    return td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "model_type %s (%s) is not supported",
                  shown(type).text, shown(class).text);
}

/* Features that change the arithmetic and that this build lacks: never silently ignored. */
static td_err check_features(const struct read *r)
{
    static const char *const must_be_false[] = {"attention_bias", "mlp_bias"};
    static const char *const must_be_absent[] = {"quantization_config", "num_local_experts",
                                                 "num_experts", "logits_soft_cap",
                                                 "final_logit_softcapping"};
    const json_t *act = td_json_get(r->j, "hidden_act");
    double rotary = 1;
    bool on = false;

    if (act != NULL && !td_json_is(act, "silu") && !td_json_is(act, "swish")) {
        return td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "hidden_act %s is not supported",
                      shown(act).text);
    }
    for (size_t i = 0; i < TD_COUNT(must_be_false); i++) {
        TD_TRY(get_bool(r, must_be_false[i], &on));
        if (on) {
            return td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "%s is not supported", must_be_false[i]);
        }
    }
    for (size_t i = 0; i < TD_COUNT(must_be_absent); i++) {
        if (td_json_get(r->j, must_be_absent[i]) != NULL) {
            return td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "%s is not supported",
                          must_be_absent[i]);
        }
    }
    TD_TRY(get_number(r, "partial_rotary_factor", 0, 1, &rotary));
    return rotary == 1
               ? TD_OK
               : td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "partial_rotary_factor is not supported");
}

/* ---- the window ---- */

/* transformers says of every layer what it sees; all must see the same. */
static td_err check_layer_types(const struct read *r, bool windowed)
{
    const json_t *types = td_json_get(r->j, "layer_types");
    const char *want = windowed ? "sliding_attention" : "full_attention";

    for (size_t i = 0; i < json_array_size(types); i++) {
        if (!td_json_is(json_array_get(types, i), want)) {
            return td_why(r->why, TD_ERR_FILE_UNSUPPORTED,
                          "layer_types: layer %zu is %s where %s is expected", i,
                          shown(json_array_get(types, i)).text, want);
        }
    }
    return TD_OK;
}

/* Older qwen2 and qwen3 files: the first max_window_layers layers see everything. */
static td_err read_window_layers(const struct read *r, const struct td_hparams *hp, bool *use)
{
    uint32_t full = 0;

    TD_TRY(get_bool(r, "use_sliding_window", use));
    TD_TRY(get_u32(r, "max_window_layers", 0, UINT32_MAX, &full));
    if (json_array_size(td_json_get(r->j, "layer_types")) > 0) {
        return TD_OK; /* says it better */
    }
    if (*use && full > 0 && full < hp->n_layers) {
        return td_why(r->why, TD_ERR_FILE_UNSUPPORTED,
                      "a window in some layers only is not supported");
    }
    *use = *use && full < hp->n_layers;
    return TD_OK;
}

static td_err read_window(const struct read *r, struct td_hparams *hp)
{
    const json_t *first = json_array_get(td_json_get(r->j, "layer_types"), 0);
    bool use = hp->arch == TD_ARCH_MISTRAL; /* others have a window only if they say so */
    /* transformers' default where the key is absent; null means none. */
    uint32_t window = use && json_object_get(r->j, "sliding_window") == NULL ? 4096 : 0;

    if (!use) {
        TD_TRY(read_window_layers(r, hp, &use));
    }
    TD_TRY(get_u32(r, "sliding_window", 1, UINT32_MAX, &window));
    use = use && window > 0 && (first == NULL || !td_json_is(first, "full_attention"));
    TD_TRY(check_layer_types(r, use));
    hp->window = use && window < hp->n_ctx ? window : 0; /* else the context ends first */
    return TD_OK;
}

/* ---- rope ---- */

/* transformers 5 has rope_parameters with the base inside, 4 has rope_theta beside rope_scaling. */
static td_err read_rope_theta(const struct read *r, const struct read *inner, struct td_hparams *hp)
{
    double theta = 10000;

    TD_TRY(get_number(r, "rope_theta", 1, 1e12, &theta));
    if (inner->j != NULL) {
        TD_TRY(get_number(inner, "rope_theta", 1, 1e12, &theta));
    }
    hp->rope_theta = (float)theta;
    return TD_OK;
}

static td_err need_number(const struct read *r, const char *key, double lo, double hi, double *out)
{
    if (td_json_get(r->j, key) == NULL) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "rope scaling: %s is missing", key);
    }
    return get_number(r, key, lo, hi, out);
}

static td_err read_llama3(const struct read *r, struct td_hf_config *c)
{
    c->rope = TD_ROPE_LLAMA3;
    TD_TRY(need_number(r, "factor", 1, 1e6, &c->rope_factor));
    TD_TRY(need_number(r, "low_freq_factor", 1e-3, 1e6, &c->low_freq));
    TD_TRY(need_number(r, "high_freq_factor", 1e-3, 1e6, &c->high_freq));
    TD_TRY(need_number(r, "original_max_position_embeddings", 1, TD_MODEL_MAX_CTX, &c->old_ctx));
    return c->high_freq > c->low_freq
               ? TD_OK
               : td_why(r->why, TD_ERR_FILE_FORMAT,
                        "rope scaling: high_freq_factor is not above low_freq_factor");
}

static td_err read_rope(const struct read *r, struct td_hf_config *c)
{
    struct read inner = {td_json_get(r->j, "rope_parameters"), r->why};
    const json_t *kind;

    if (inner.j == NULL) {
        inner.j = td_json_get(r->j, "rope_scaling");
    }
    if (inner.j != NULL && !json_is_object(inner.j)) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "rope scaling is not an object");
    }
    TD_TRY(read_rope_theta(r, &inner, &c->hp));
    kind = td_json_get(inner.j, "rope_type");
    kind = kind != NULL ? kind : td_json_get(inner.j, "type");
    if (kind == NULL || td_json_is(kind, "default")) {
        return TD_OK;
    }
    if (td_json_is(kind, "linear")) {
        c->rope = TD_ROPE_LINEAR;
        return need_number(&inner, "factor", 1, 1e6, &c->rope_factor);
    }
    if (td_json_is(kind, "llama3")) {
        return read_llama3(&inner, c);
    }
    return td_why(r->why, TD_ERR_FILE_UNSUPPORTED, "rope type %s is not supported",
                  shown(kind).text);
}

/* How much of a frequency stays: those that turn often within the old context stay as they are, the
 * slow ones are divided, between the two it goes over linearly. */
static double kept(const struct td_hf_config *c, double freq)
{
    double turns = freq * c->old_ctx / (2 * 3.14159265358979323846);
    double span = c->high_freq - c->low_freq;
    double keep = c->rope == TD_ROPE_LLAMA3 && span > 0 ? (turns - c->low_freq) / span : 0;

    return keep < 0 ? 0 : keep > 1 ? 1 : keep;
}

void td_hf_rope_freqs(const struct td_hf_config *c, float *out_freq)
{
    uint32_t n = c->hp.rope_dim / 2;

    td_rope_freqs(c->hp.rope_theta, c->hp.rope_dim, out_freq);
    for (uint32_t i = 0; i < n && c->rope != TD_ROPE_PLAIN; i++) {
        double f = (double)out_freq[i];
        double keep = kept(c, f);

        out_freq[i] = (float)((1 - keep) * (f / c->rope_factor) + keep * f);
    }
}

/* ---- all of it ---- */

static td_err read_sizes(const struct read *r, struct td_hparams *hp, bool head_dim_128)
{
    double eps = 1e-6;

    TD_TRY(need_u32(r, "num_hidden_layers", TD_MODEL_MAX_LAYERS, &hp->n_layers));
    TD_TRY(need_u32(r, "hidden_size", TD_MODEL_MAX_EMBD, &hp->n_embd));
    TD_TRY(need_u32(r, "intermediate_size", TD_MODEL_MAX_FFN, &hp->n_ffn));
    TD_TRY(need_u32(r, "num_attention_heads", TD_MODEL_MAX_HEADS, &hp->n_heads));
    hp->n_kv_heads = hp->n_heads;
    TD_TRY(get_u32(r, "num_key_value_heads", 1, hp->n_heads, &hp->n_kv_heads));
    hp->head_dim = head_dim_128 ? 128 : hp->n_embd / hp->n_heads;
    TD_TRY(get_u32(r, "head_dim", 1, TD_MODEL_MAX_HEAD_DIM, &hp->head_dim));
    TD_TRY(need_u32(r, "vocab_size", TD_MODEL_MAX_VOCAB, &hp->n_vocab));
    TD_TRY(need_u32(r, "max_position_embeddings", TD_MODEL_MAX_CTX, &hp->n_ctx));
    TD_TRY(get_number(r, "rms_norm_eps", 0, 0.999, &eps));
    hp->rms_eps = (float)eps;
    if (hp->n_heads % hp->n_kv_heads != 0) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "%u heads are not a multiple of %u KV heads",
                      hp->n_heads, hp->n_kv_heads);
    }
    if (hp->head_dim < 2 || hp->head_dim > TD_MODEL_MAX_HEAD_DIM || hp->head_dim % 2 != 0) {
        return td_why(r->why, TD_ERR_FILE_FORMAT, "head_dim %u is not an even number from 2 to %d",
                      hp->head_dim, TD_MODEL_MAX_HEAD_DIM);
    }
    hp->rope_dim = hp->head_dim;
    hp->rope_style = TD_ROPE_HALVES;
    return TD_OK;
}

td_err td_hf_config_read(const json_t *config, struct td_hf_config *out, const struct td_why *w)
{
    struct read r = {config, w};
    struct td_hf_config c = {
        .hp = {.n_heads = 1, .n_kv_heads = 1}, .rope_factor = 1, .old_ctx = 1, .high_freq = 1};
    bool head_dim_128 = false;

    TD_TRY(read_arch(&r, &c.hp, &head_dim_128));
    TD_TRY(read_sizes(&r, &c.hp, head_dim_128));
    TD_TRY(check_features(&r));
    TD_TRY(read_window(&r, &c.hp));
    TD_TRY(read_rope(&r, &c));
    TD_TRY(get_bool(&r, "tie_word_embeddings", &c.hp.tied_embedding));
    *out = c;
    return TD_OK;
}

/* A number that may stand for itself and one that may be absent. */
static td_err default_of(const struct read *r, const char *key, double lo, double hi, float *out)
{
    double v = (double)*out;

    TD_TRY(get_number(r, key, lo, hi, &v));
    *out = (float)v;
    return TD_OK;
}

td_err td_hf_defaults_read(const json_t *generation, struct td_model_defaults *out,
                           const struct td_why *w)
{
    struct read r = {generation, w};
    struct td_model_defaults d = TD_MODEL_DEFAULTS_NONE;

    if (generation != NULL) {
        TD_TRY(default_of(&r, "temperature", 0, 100, &d.temperature));
        TD_TRY(default_of(&r, "top_p", 1e-6, 1, &d.top_p));
        TD_TRY(default_of(&r, "min_p", 0, 1, &d.min_p));
        TD_TRY(default_of(&r, "repetition_penalty", 1e-3, 1000, &d.repetition_penalty));
        TD_TRY(get_u32(&r, "top_k", 0, TD_MODEL_MAX_VOCAB, &d.top_k));
    }
    *out = d;
    return TD_OK;
}
