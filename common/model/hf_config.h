/* hf_config.h - config.json and generation_config.json, believed: hyper-parameters, rotary scaling,
 * defaults of sampling.
 *
 * What: reads the keys of llama, qwen2, qwen3 and mistral as transformers 4 and 5 write them, each
 * with a strict range; what changes the arithmetic and is not supported (experts, quantised weights,
 * other activations, windows in some layers only, unknown rope types) is refused, never ignored.
 * Not: a look at tensors (model.h). Thread: any; pure functions over parsed JSON. Bounds:
 * TD_MODEL_MAX_*. Failure: TD_ERR_FILE_FORMAT or TD_ERR_FILE_UNSUPPORTED with a sentence.
 */
#ifndef TD_MODEL_HF_CONFIG_H
#define TD_MODEL_HF_CONFIG_H

#include <jansson.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/model/file.h"
#include "common/model/model.h"

enum td_rope_kind { TD_ROPE_PLAIN, TD_ROPE_LINEAR, TD_ROPE_LLAMA3 };

struct td_hf_config {
    struct td_hparams hp; /* all but the weights' types; tied_embedding as the file says */
    enum td_rope_kind rope;
    double rope_factor;         /* linear and llama3 */
    double low_freq, high_freq; /* llama3 */
    double old_ctx;             /* llama3: the context before scaling */
};

/* `config` is config.json's object. */
td_err td_hf_config_read(const json_t *config, struct td_hf_config *out,
                         const struct td_why *w) TD_MUST_CHECK;
/* `generation` may be NULL: nothing is set. */
td_err td_hf_defaults_read(const json_t *generation, struct td_model_defaults *out,
                           const struct td_why *w) TD_MUST_CHECK;

/* Frequencies with the scaling applied: [hp.rope_dim / 2] radians per position, the same bits on
 * every machine. */
void td_hf_rope_freqs(const struct td_hf_config *c, float *out_freq);

#endif
