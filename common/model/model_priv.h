/* model_priv.h - a model while it opens, as model.c (life, identity), model_arch.c (the architecture
 * table), model_gguf.c and model_hf.c (the two kinds of sources) share it. Included by no one else.
 */
#ifndef TD_MODEL_MODEL_PRIV_H
#define TD_MODEL_MODEL_PRIV_H

#include "common/model/digest.h"
#include "common/model/file.h"
#include "common/model/hf_dir.h"
#include "common/model/model.h"

struct td_model_priv {
    uint32_t magic;
    struct td_gguf *g;     /* owned; NULL for a directory */
    struct td_hf_dir *dir; /* owned; NULL for a GGUF file */
    float **vectors;       /* owned [n_vectors]: those that the file holds in half precision */
    size_t n_vectors, cap_vectors;
};

/* Sizes that a shape is made of. */
enum td__dim { DIM_ONE, DIM_EMBD, DIM_FFN, DIM_Q, DIM_KV, DIM_HEAD, DIM_VOCAB };

struct td__slot {
    const char *gguf, *hf;   /* of the tensor; of a layer's: behind "blk.N." or "model.layers.N." */
    size_t offset;           /* of its struct td_weight in struct td_layer or struct td_model */
    enum td__dim rows, cols; /* rows DIM_ONE: a vector */
};

struct td__arch {
    const char *name, *gguf; /* gguf NULL: such files do not exist */
    enum td_arch arch;
    enum td_rope_style gguf_rope; /* llama files hold Q and K rows permuted for pairs */
    const struct td__slot *extra; /* of a layer, beside what all have */
    size_t n_extra;
};

struct td__open {
    struct td_model *m;
    const struct td_gguf *g; /* one of the two is NULL */
    struct td_hf_dir *dir;
    const struct td__arch *arch;
    size_t n_used; /* tensors that have found their place */
    struct td_why why;
    char err_text[2 * TD_GGUF_ERR_TEXT];
};

/* NULL when there is none. */
const struct td__arch *td__model_arch_gguf(struct td_str name);
const struct td__arch *td__model_arch_of(enum td_arch arch);

const struct td_gguf_tensor *td__model_tensor(const struct td__open *o, const char *name);
td_err td__model_check_shape(struct td__open *o, const struct td_gguf_tensor *t, uint32_t rows,
                             uint32_t cols) TD_MUST_CHECK;
/* Every tensor of the architecture; hp must be complete, tied_embedding included. */
td_err td__model_take_weights(struct td__open *o) TD_MUST_CHECK;

/* The samples: all of a small tensor, else four pieces spread evenly from its first byte to its
 * last. */
void td__model_digest_samples(struct td_digest *d, const struct td_gguf_tensor *t);

/* Fill o->m from o->g or o->dir. */
td_err td__model_build_gguf(struct td__open *o) TD_MUST_CHECK;
td_err td__model_build_hf(struct td__open *o) TD_MUST_CHECK;
/* Of every byte of every tensor, in the order of the identity. */
td_err td__model_full_hash_hf(const struct td_model *m, uint8_t out_hash[32]) TD_MUST_CHECK;

#endif
