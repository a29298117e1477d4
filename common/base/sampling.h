/* sampling.h - what the choice of the next token depends on; travels in requests and in the
 * hand-over record.
 *
 * A draw is keyed by (seed, position, choice) only, so a replay needs no generator state. Value
 * type; arrays borrowed.
 */
#ifndef TD_BASE_SAMPLING_H
#define TD_BASE_SAMPLING_H

#include <stdint.h>

#define TD_SAMPLING_MAX_STOP_IDS 64
#define TD_SAMPLING_MAX_BIAS     300

struct td_logit_bias {
    int32_t id;
    float bias;
};

struct td_sampling_params {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* 1: off */
    float min_p;                               /* 0: off */
    float repetition_penalty;                  /* 1: off; over prompt and output */
    float frequency_penalty, presence_penalty; /* 0: off; over output */
    int32_t top_k;                             /* 0: off */
    uint32_t logprobs;                         /* 0: none, else 1 + number of alternatives */
    uint64_t seed;
    uint32_t choice;
    uint32_t max_tokens; /* of output, at least 1 */
    uint32_t min_tokens; /* stop ids are banned before */
    uint32_t
        n_stop_ids; /* ids that end the output, the model's end tokens included unless ignored */
    int32_t stop_ids[TD_SAMPLING_MAX_STOP_IDS];
    uint32_t n_bias;
    const struct td_logit_bias *bias; /* borrowed */
};

/* Params plus history: enough to set up a slot on any node. */
struct td_sampling_state {
    struct td_sampling_params p;
    const int32_t *prompt; /* borrowed for the call */
    uint32_t n_prompt;
    const int32_t *output; /* tokens produced so far, borrowed for the call */
    uint32_t n_output;
};

#endif
