/* model_hf.c - a model from a Hugging Face directory: its config, tokenizer and tensors put together.
 */
#include <string.h>

#include "common/model/hf_config.h"
#include "common/model/hf_tok.h"
#include "common/model/model_priv.h"

/* ---- identity ---- */

/* The configuration and then all tensors by name, so that a model has one identity however its
 * tensors are spread over shards and its JSON is laid out. */
static td_err identify(const struct td_hf_dir *dir, const uint8_t tokenizer_hash[32], bool whole,
                       uint8_t out_hash[32])
{
    struct td_digest d;
    char *config = json_dumps(td_hf_dir_config(dir), JSON_COMPACT | JSON_SORT_KEYS);

    td_digest_begin(&d);
    td_digest_str(&d, (struct td_str){"tandem hf 1", 11});
    td_digest_str(&d, (struct td_str){config, config != NULL ? strlen(config) : 0});
    td_digest_bytes(&d, tokenizer_hash, 32);
    for (size_t i = 0; i < td_hf_dir_n_tensors(dir); i++) {
        const struct td_gguf_tensor *t = td_hf_dir_tensor_at(dir, i);

        td_digest_str(&d, t->name);
        td_digest_u64(&d, (uint64_t)t->dtype);
        for (size_t k = 0; k < TD_GGUF_MAX_DIMS; k++) {
            td_digest_u64(&d, t->dims[k]);
        }
        if (whole) {
            td_digest_bytes(&d, t->data, (size_t)t->bytes);
        } else {
            td__model_digest_samples(&d, t);
        }
    }
    free(config);
    TD_TRY(td_digest_end(&d, out_hash));
    return config != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

td_err td__model_full_hash_hf(const struct td_model *m, uint8_t out_hash[32])
{
    return identify(m->priv->dir, m->tok.tokenizer_hash, true, out_hash);
}

/* ---- the parts ---- */

static td_err in_file(struct td__open *o, td_err e, const char *name)
{
    char inner[TD_GGUF_ERR_TEXT];

    memcpy(inner, o->err_text, sizeof inner);
    inner[sizeof inner - 1] = '\0';
    return td_why(&o->why, e, "%s: %s", name, inner);
}

static td_err read_config(struct td__open *o)
{
    struct td_hf_config c;
    struct td_model *m = o->m;
    td_err e = td_hf_config_read(td_hf_dir_config(o->dir), &c, &o->why);

    if (e != TD_OK) {
        return in_file(o, e, "config.json");
    }
    m->hp = c.hp;
    o->arch = td__model_arch_of(c.hp.arch);
    m->rope_freq = td_zalloc(m->hp.rope_dim / 2, sizeof *m->rope_freq);
    if (m->rope_freq == NULL) {
        return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for rope frequencies");
    }
    td_hf_rope_freqs(&c, m->rope_freq);
    e = td_hf_defaults_read(td_hf_dir_generation(o->dir), &m->defaults, &o->why);
    return e == TD_OK ? TD_OK : in_file(o, e, "generation_config.json");
}

static td_err read_tokenizer(struct td__open *o)
{
    struct td_hf_tok_src src = {.tokenizer = td_hf_dir_tokenizer(o->dir),
                                .tokenizer_config = td_hf_dir_tokenizer_config(o->dir),
                                .config = td_hf_dir_config(o->dir),
                                .generation = td_hf_dir_generation(o->dir),
                                .jinja = td_hf_dir_template(o->dir),
                                .n_vocab = o->m->hp.n_vocab};
    td_err e;

    if (src.tokenizer == NULL) {
        return td_why(&o->why, TD_ERR_NO_FILE,
                      "the directory has no tokenizer.json (tokenizer.model is not read)");
    }
    e = td_hf_tok_load(&src, &o->m->tok, &o->why);
    td_hf_dir_drop_tokenizer(o->dir);
    return e == TD_OK ? TD_OK : in_file(o, e, "tokenizer.json");
}

td_err td__model_build_hf(struct td__open *o)
{
    TD_TRY(read_config(o));
    TD_TRY(read_tokenizer(o));
    TD_TRY(td__model_take_weights(o));
    o->m->name = td_hf_dir_name(o->dir);
    o->m->file_bytes = td_hf_dir_bytes(o->dir);
    return identify(o->dir, o->m->tok.tokenizer_hash, false, o->m->id) == TD_OK
               ? TD_OK
               : td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory for the model's identity");
}
