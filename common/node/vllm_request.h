/* vllm_request.h - a GenerateRequest of VllmEngine to what a node's role is asked: mode, prompt, sampling, stop strings.
 *
 * What: ranges, the model's defaults for what is not said, the mode from the node's role and the hand-off parameters. A field that
 * would change the answer and is not served is refused by name, never ignored. Pure. Not: bytes (proto/vllm.h), the hand-off itself
 * (handoff.h), text input, which the caller has tokenised.
 * Owner and thread: the caller's. Bounds: ND_VLLM_MAX_CHOICES, TD_TEXT_STOPS_MAX, those of td_sampling_params. Failure: a typed
 * error with a sentence for the client.
 */
#ifndef TD_NODE_VLLM_REQUEST_H
#define TD_NODE_VLLM_REQUEST_H

#include "common/model/model.h"
#include "common/node/local.h"
#include "common/text/vocab.h"
#include "proto/vllm.h"

#define ND_VLLM_MAX_CHOICES 16u
#define ND_VLLM_WHY         256

/* What this node serves; borrowed. */
struct nd_vllm_limits {
    enum td_role role; /* told */
    uint32_t n_vocab, max_model_len;
    uint64_t pool_tok; /* the whole KV pool */
    const int32_t *end_ids;
    uint32_t n_end_ids;
    struct td_model_defaults defaults;
};

struct nd_vllm_request {
    enum nd_local_mode mode;
    struct td_sampling_params
        sampling; /* but for the seed of a request that has none; the bias is borrowed */
    bool has_seed;
    uint32_t n_choices, n_stop, n_asked_ids; /* sampling.stop_ids begin with the client's own */
    const char *const *stop;                 /* borrowed */
    char handoff[TD_HANDOFF_MAX_TEXT];       /* TAKE: its text */
};

/* n_prompt: tokens, of text too. */
td_err nd_vllm_request_read(const struct nd_vllm_limits *l, const struct td_vllm_generate *g,
                            uint32_t n_prompt, struct nd_vllm_request *out,
                            char why[ND_VLLM_WHY]) TD_MUST_CHECK;
/* Every id is in the vocabulary. */
td_err nd_vllm_ids_check(const struct nd_vllm_limits *l, const uint32_t *ids, uint32_t n,
                         char why[ND_VLLM_WHY]) TD_MUST_CHECK;
/* What a prefill node answers, to be passed on as it is; `engine` names it. False: it does not fit. */
bool nd_vllm_handoff_json(const char *handoff, const char *engine, char *out, size_t cap);

#endif
