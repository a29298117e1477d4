/* model.h - a model file, opened and believed: hyper-parameters, weights as views, tokenizer data,
 * identity.
 *
 * What: reads a GGUF file (gguf.h) or a Hugging Face directory (hf_dir.h) and checks every number and
 * shape against the architecture table. Weights stay in the mapping in their own format; engines repack them.
 * td_model is a plain value after open: read it, never write it. Not: a tokenizer (common/text
 * builds one from struct td_model_tokenizer) and not an engine (engine.h). Owner: the shell that
 * opened it; engines and tokenizers borrow it and must be destroyed first. Thread: open and close
 * on one; everything else is read-only: any. Bounds: TD_MODEL_MAX_*; the vocabulary's bounds are
 * those of gguf.h. Failure: a code of gguf.h, logged once here with the path and the reason.
 */
#ifndef TD_MODEL_MODEL_H
#define TD_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/mem.h"
#include "common/model/gguf.h"
#include "common/model/tok_data.h"

#define TD_MODEL_MAX_LAYERS   256
#define TD_MODEL_MAX_EMBD     65536
#define TD_MODEL_MAX_FFN      (1024u * 1024)
#define TD_MODEL_MAX_HEADS    1024
#define TD_MODEL_MAX_HEAD_DIM 1024
#define TD_MODEL_MAX_VOCAB    TD_TOK_MAX_TOKENS
#define TD_MODEL_MAX_CTX      (16u * 1024 * 1024)
#define TD_MODEL_SAMPLE       4096 /* bytes of each tensor that enter the identity */

/* What sets them apart: QWEN2 has biases on q, k and v; QWEN3 normalises each head of q and k;
 * MISTRAL may have a window. An engine that goes by the fields of td_layer and td_hparams needs no
 * case for any of them. */
enum td_arch { TD_ARCH_LLAMA, TD_ARCH_QWEN2, TD_ARCH_QWEN3, TD_ARCH_MISTRAL };
/* Which dimensions of a head turn together: (2i, 2i+1) or (i, i + rope_dim/2). */
enum td_rope_style { TD_ROPE_PAIRS, TD_ROPE_HALVES };

/* A matrix, row major: y[rows] = W[rows][cols] x[cols]; a vector has rows == 1. Row r starts at
 * data + r * row_bytes. */
struct td_weight {
    enum td_dtype dtype;
    uint32_t rows, cols;
    uint64_t row_bytes;
    const void *data; /* borrowed from the mapping; NULL: the architecture has none */
    struct td_str name;
};

/* Vectors are F32 whatever the file holds. Those that an architecture lacks have data == NULL. */
struct td_layer {
    struct td_weight attn_norm; /* [n_embd], F32 */
    struct td_weight wq;        /* [n_heads * head_dim][n_embd] */
    struct td_weight wk, wv;    /* [n_kv_heads * head_dim][n_embd] */
    struct td_weight q_bias;    /* [n_heads * head_dim], F32: added to the product, before rope */
    struct td_weight k_bias, v_bias; /* [n_kv_heads * head_dim], F32; all three or none */
    struct td_weight q_norm, k_norm; /* [head_dim], F32: RMSNorm (rms_eps) of every head after the
                                        bias and before rope; both or none */
    struct td_weight wo;             /* [n_embd][n_heads * head_dim] */
    struct td_weight ffn_norm;       /* [n_embd], F32 */
    struct td_weight gate, up;       /* [n_ffn][n_embd] */
    struct td_weight down;           /* [n_embd][n_ffn] */
};

struct td_hparams {
    enum td_arch arch;
    uint32_t n_layers, n_embd, n_ffn;
    uint32_t n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    uint32_t head_dim;
    uint32_t n_vocab; /* rows of the embedding */
    uint32_t n_ctx;   /* trained context */
    float rms_eps;
    enum td_rope_style rope_style;
    uint32_t rope_dim; /* leading dimensions of a head that turn; even, <= head_dim */
    float rope_theta;
    bool tied_embedding; /* output is token_embd */
    uint32_t window;     /* a token sees itself and the window - 1 before it; 0: all of them */
    enum td_dtype weight_dtype; /* of layer 0's wq; mixed_dtypes: some matrix has another */
    bool mixed_dtypes;
};

/* What a request that does not say otherwise samples with (generation_config.json). */
struct td_model_defaults {
    float temperature, top_p, min_p, repetition_penalty;
    uint32_t top_k; /* 0: off */
};
#define TD_MODEL_DEFAULTS_NONE                                                                     \
    ((struct td_model_defaults){.temperature = 1, .top_p = 1, .repetition_penalty = 1})

struct td_model {
    struct td_hparams hp;
    struct td_weight token_embd;  /* [n_vocab][n_embd] */
    struct td_weight output_norm; /* [n_embd], F32 */
    struct td_weight output;      /* [n_vocab][n_embd]; a copy of token_embd when tied */
    struct td_layer *layers;      /* [n_layers], owned */
    float
        *rope_freq; /* [rope_dim / 2] radians per position, every kind of scaling applied; owned */
    struct td_model_tokenizer tok;
    struct td_model_defaults defaults;
    struct td_str name;         /* general.name or the directory's name, may be empty */
    uint64_t file_bytes;        /* of all files with weights */
    uint64_t weight_bytes;      /* of all tensors used */
    uint8_t id[32];             /* SHA-256 over header, tensor table and samples of every tensor; of
                                   a directory over its configuration, tokenizer and tensors by name,
                                   the same for any shards */
    struct td_model_priv *priv; /* owned: the mapping and its arrays */
};

/* "llama", "qwen2", ... */
const char *td_arch_name(enum td_arch arch);

/* A GGUF file, or a Hugging Face directory. */
td_err td_model_open(const char *path, struct td_model **out_model) TD_MUST_CHECK;
/* A GGUF file as bytes the caller keeps; `name` stands in log lines. */
td_err td_model_open_memory(const void *data, size_t len, const char *name,
                            struct td_model **out_model) TD_MUST_CHECK;
struct td_model *td_model_close(struct td_model *m);
TD_DEFINE_CLEANUP(struct td_model, td_model_close)

/* Tokens of a sequence at most: the model's context, or a limit that is smaller; 0: no limit. */
static inline uint32_t td_model_context(const struct td_hparams *hp, uint32_t limit)
{
    return limit == 0 || limit > hp->n_ctx ? hp->n_ctx : limit;
}

/* Plain pointers into the model, valid until close. */
static inline const struct td_model_tokenizer *td_model_tokenizer(const struct td_model *m)
{
    return &m->tok;
}

/* SHA-256 of the whole GGUF file; of a directory that of the configuration and every tensor by name,
 * however they are spread over shards. Reads all of it: never on a loop thread. */
td_err td_model_full_hash(const struct td_model *m, uint8_t out_hash[32]) TD_MUST_CHECK;

#endif
