#define TD_LOG_ROOM "model"
#include "common/model/model.h"

#include <string.h>

#include "common/base/log.h"
#include "common/model/model_priv.h"

#define MODEL_MAGIC 0x6c64646du

/* ---- identity ---- */

void td__model_digest_samples(struct td_digest *d, const struct td_gguf_tensor *t)
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

td_err td_model_full_hash(const struct td_model *m, uint8_t out_hash[32])
{
    struct td_digest d;
    uint64_t len = 0;
    const void *bytes;

    if (m->priv->dir != NULL) {
        return td__model_full_hash_hf(m, out_hash);
    }
    bytes = td_gguf_bytes(m->priv->g, &len);
    td_digest_begin(&d);
    td_digest_bytes(&d, bytes, (size_t)len);
    return td_digest_end(&d, out_hash);
}

/* ---- opening ---- */

static td_err open_take(struct td_gguf **g, struct td_hf_dir **dir, struct td__open *o,
                        struct td_model **out_model)
{
    TD_CLEANUP(td_model_closep) struct td_model *m = td_zalloc(1, sizeof *m);
    struct td_model_priv *priv = td_zalloc(1, sizeof *priv);

    if (m == NULL || priv == NULL) {
        free(priv);
        return td_why(&o->why, TD_ERR_NO_MEMORY, "out of memory");
    }
    m->priv = priv;
    priv->g = TD_STEAL(*g);
    priv->dir = TD_STEAL(*dir);
    o->m = m;
    o->g = priv->g;
    o->dir = priv->dir;
    TD_TRY(o->g != NULL ? td__model_build_gguf(o) : td__model_build_hf(o));
    priv->magic = MODEL_MAGIC;
    *out_model = TD_STEAL(m);
    return TD_OK;
}

static void open_init(struct td__open *o)
{
    memset(o, 0, sizeof *o);
    o->why = (struct td_why){o->err_text, sizeof o->err_text};
}

static td_err refused(const struct td__open *o, td_err e, const char *name)
{
    char file[256];
    char reason[4 * TD_GGUF_ERR_TEXT];

    TD_LOG(ERROR, "model refused", "file=%s err=%s reason=%s",
           td_log_quote(name, strlen(name), file, sizeof file), td_err_code(e),
           td_log_quote(o->err_text, strlen(o->err_text), reason, sizeof reason));
    return e;
}

td_err td_model_open(const char *path, struct td_model **out_model)
{
    TD_CLEANUP(td_gguf_closep) struct td_gguf *g = NULL;
    TD_CLEANUP(td_hf_dir_closep) struct td_hf_dir *dir = NULL;
    struct td__open o;
    td_err e;

    open_init(&o);
    e = td_hf_is_dir(path) ? td_hf_dir_open(path, &dir, &o.why)
                           : td_gguf_open(path, &g, o.err_text, sizeof o.err_text);
    e = e == TD_OK ? open_take(&g, &dir, &o, out_model) : e;
    return e == TD_OK ? TD_OK : refused(&o, e, path);
}

td_err td_model_open_memory(const void *data, size_t len, const char *name,
                            struct td_model **out_model)
{
    TD_CLEANUP(td_gguf_closep) struct td_gguf *g = NULL;
    struct td_hf_dir *none = NULL;
    struct td__open o;
    td_err e;

    open_init(&o);
    e = td_gguf_open_memory(data, len, &g, o.err_text, sizeof o.err_text);
    e = e == TD_OK ? open_take(&g, &none, &o, out_model) : e;
    return e == TD_OK ? TD_OK : refused(&o, e, name);
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
        (void)td_gguf_close(m->priv->g);     /* always NULL */
        (void)td_hf_dir_close(m->priv->dir); /* always NULL */
        for (size_t i = 0; i < m->priv->n_vectors; i++) {
            free(m->priv->vectors[i]);
        }
        free(m->priv->vectors);
        free(m->priv);
    }
    free(m);
    return NULL;
}
