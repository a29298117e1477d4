/* tk_step.h - the CUDA operations at both ends of a step: tokens in, the next token out.
 *
 * What: launchers as in tk_cuda.h (explicit stream, no allocation, capturable; everything that
 * changes from step to step is read from device buffers). Sampling state of a slot - its last token,
 * how often each id occurred, bias and stop ids - lives on the device, so that a sampled token feeds
 * the next step without the host.
 * Rules of the choice, in this order: logit bias, penalties, ban of stop ids; then the largest
 * (temperature 0), or temperature, min_p, top_k, top_p (a share of what top_k leaves) and one draw.
 * A draw is keyed by (seed, position, choice) alone: Gumbel noise per id from Philox4x32-10.
 * Owner, thread, failure: as in tk_cuda.h. Bounds: TK_MAX_VOCAB ids, TK_SLOT_BIAS biases and
 * TK_SLOT_STOPS stop ids of a slot.
 */
#ifndef TK_STEP_H
#define TK_STEP_H

#include "kernels/tk_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TK_MAX_VOCAB  (1u << 20)
#define TK_SLOT_BIAS  300
#define TK_SLOT_STOPS 64
#define TK_NO_SLOT    UINT32_MAX
#define TK_IN_PROMPT  0x80000000u /* of a count: the id occurs in the prompt */
#define TK_FAILED     (-1)        /* as a sampled token: the row's logits are not finite */

enum tk_sample_flags {
    TK_SAMPLE_PENALTIES = 1, /* counts of the slot are kept and used */
    TK_SAMPLE_BIAS = 2,      /* n_bias of the slot's */
    TK_SAMPLE_BAN = 4,       /* n_stops of the slot's cannot be chosen */
    TK_SAMPLE_LOGPROB = 8,
    TK_SAMPLE_CHAINED = 16, /* its input was the slot's last token: failed if that failed */
};
/* What the choice of one row's token depends on. 64 bytes. */
struct tk_sample_row {
    float temperature; /* <= 0: the largest */
    float top_p, min_p;
    int32_t top_k; /* 0: off */
    uint64_t seed;
    uint32_t position, choice;             /* with seed: the counter of the generator */
    float repetition, frequency, presence; /* penalties; 1, 0, 0: off */
    uint32_t slot;                         /* TK_NO_SLOT: an empty row, or no state */
    uint32_t flags;                        /* enum tk_sample_flags */
    uint16_t n_bias, n_stops;
    uint32_t live; /* 0: an empty row: nothing is written */
    uint32_t pad;
};
struct tk_sample_bias {
    int32_t id;
    float bias;
};
struct tk_sampled {
    int32_t token; /* or TK_FAILED */
    float logprob; /* natural log, of the logits as they came; 0 where not asked for */
};
/* State of all slots, on the device. Rows without flags may leave everything but last NULL. */
struct tk_slots {
    int32_t *last;               /* [slots] TK_FAILED: none */
    uint32_t *counts;            /* [slots][vocab] in the output, | TK_IN_PROMPT */
    struct tk_sample_bias *bias; /* [slots][TK_SLOT_BIAS] */
    int32_t *stops;              /* [slots][TK_SLOT_STOPS] */
};
struct tk_sample {
    const float *logits; /* [rows][stride] */
    float *adjusted; /* [rows][stride] scratch; NULL where no row has a flag that changes logits */
    const struct tk_sample_row *rows; /* device */
    struct tk_slots slots;
    struct tk_sampled *out; /* [rows] device */
    uint32_t n_rows, vocab, stride;
    bool pdl;
};
td_err tk_sample(tk_stream s, const struct tk_sample *a);

/* Ends a TK_FLAT_ARGMAX for rows that are all greedy, without flags but CHAINED: out and last as tk_sample. */
struct tk_greedy {
    const float *best_val; /* [parts][TK_MAX_ROWS] */
    const int32_t *best_idx;
    const struct tk_sample_row *rows; /* device */
    struct tk_slots slots;
    struct tk_sampled *out;
    uint32_t n_rows, parts;
    bool pdl;
};
td_err tk_greedy(tk_stream s, const struct tk_greedy *a);

/* tokens[i] = last[slot[i]] where slot[i] >= 0 (0 where that failed): device arrays. */
td_err tk_take_tokens(tk_stream s, int32_t *tokens, const int32_t *slot, const int32_t *last,
                      uint32_t n);
/* out[i] = h[at[i]], rows of dim bf16; at is a device array. */
td_err tk_gather_rows(tk_stream s, const tk_bf16 *h, const int32_t *at, tk_bf16 *out, uint32_t n,
                      uint32_t dim);
/* Adds a history to counts[vocab]: the first n_prompt ids as TK_IN_PROMPT, the others counted. */
td_err tk_count_tokens(tk_stream s, const int32_t *ids, uint32_t n, uint32_t n_prompt,
                       uint32_t *counts);

#ifdef __cplusplus
}
#endif
#endif
