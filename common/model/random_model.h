/* random_model.h - writes Hugging Face directories of real shapes with random bfloat16 weights.
 *
 * What: config.json, generation_config.json, tokenizer.json (the small vocabulary of tiny_vocab.h),
 * tokenizer_config.json, chat template and safetensors, in shards above a size. Every value is a
 * function of seed, tensor name and index, so the same seed gives the same bytes with any number of
 * threads and shards. Weights are scaled so that logits spread a few units and greedy answers depend
 * on the prompt; ids that are no printable text get small rows, so that answers are mostly ASCII.
 * Not: a model that knows anything. Owner and thread: the caller; threads of its own while it
 * writes. Bounds: TD_RANDOM_MAX_*. Failure: TD_ERR_IO, TD_ERR_NO_MEMORY with a sentence; what was
 * written stays.
 */
#ifndef TD_MODEL_RANDOM_MODEL_H
#define TD_MODEL_RANDOM_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/file.h"
#include "common/model/model.h"

#define TD_RANDOM_MAX_TENSORS 1024
#define TD_RANDOM_MAX_THREADS 64
#define TD_RANDOM_SHARD_BYTES 5000000000ull /* as transformers cuts */

struct td_random_shape {
    const char *name; /* "tiny-llama" */
    enum td_arch arch;
    uint32_t n_layers, n_embd, n_ffn, n_heads, n_kv_heads, head_dim, n_vocab, n_ctx;
    uint32_t window; /* 0: none */
    double rope_theta, rms_eps;
    bool tied, llama3_rope;
};

/* NULL after the last. */
const struct td_random_shape *td_random_shape_at(size_t i);
/* NULL when there is none. */
const struct td_random_shape *td_random_shape_find(const char *name);
/* Bytes of all weights. */
uint64_t td_random_model_bytes(const struct td_random_shape *s);

struct td_random_params {
    const struct td_random_shape *shape;
    uint64_t seed;
    uint32_t n_threads;                         /* 1 to TD_RANDOM_MAX_THREADS */
    uint64_t shard_bytes;                       /* 0: TD_RANDOM_SHARD_BYTES */
    void (*progress)(void *arg, uint64_t done); /* bytes so far, from any of its threads; or NULL */
    void *arg;
};

/* Into an existing directory; files of the same names are replaced. */
td_err td_random_model_write(const struct td_random_params *p, const char *dir,
                             const struct td_why *w) TD_MUST_CHECK;

#endif
