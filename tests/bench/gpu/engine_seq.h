/* engine_seq.h - sequences for the engine's checks and timings: tables of shuffled blocks, prefill by
 * chunks, steps that are waited for.
 * Thread: one plays the loop. Failure: exits the process.
 */
#ifndef GPU_BENCH_ENGINE_SEQ_H
#define GPU_BENCH_ENGINE_SEQ_H

#include "common/model/cuda_engine.h"

#define ES_MAX_SEQS 96

struct es_seq {
    uint32_t slot, pos;
    td_block_id *table; /* borrowed from the set */
};

struct es_set {
    struct td_engine *e; /* borrowed */
    uint32_t n, blocks_each;
    td_block_id *blocks; /* owned */
    struct es_seq seq[ES_MAX_SEQS];
};

/* n sequences of at most max_tok tokens each, over shuffled blocks; slot i belongs to sequence i. */
struct es_set es_make(struct td_engine *e, uint32_t n, uint32_t max_tok, uint64_t seed);
void es_drop(struct es_set *s);

/* The next part of a sequence; moves its position on. tokens NULL: the slot's last. */
struct td_row es_row(struct es_set *s, uint32_t i, const int32_t *tokens, uint32_t n, bool sample);
void es_slot(struct es_set *s, uint32_t i, struct td_sampling_params p, const int32_t *prompt,
             uint32_t n_prompt, const int32_t *output, uint32_t n_output);
struct td_sampling_params es_greedy(void);
struct td_sampling_params es_sampled(uint64_t seed); /* 0.8, top_k 50, top_p 0.95 */

/* Submits and waits; exits when a row fails. */
struct td_step_result es_step(struct td_engine *e, const struct td_row *rows, uint32_t n);
struct td_step_result es_wait(struct td_engine *e);
/* Feeds n tokens of a sequence by chunks; the id sampled at the end where `sample`, else -1. */
int32_t es_prefill(struct es_set *s, uint32_t i, const int32_t *tokens, uint32_t n, uint32_t chunk,
                   bool sample);
void es_tokens(uint32_t vocab, uint64_t seed, int32_t *out, uint32_t n);
/* Exits with what and the error unless it is TD_OK. */
void es_need(td_err err, const char *what);

#endif
