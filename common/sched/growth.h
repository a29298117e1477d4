/* growth.h - what the running set will still need: the adaptive headroom of a decode node.
 *
 * One account: a newcomer is admitted when the peak of blocks that the sequences held now, and the
 * newcomer, are expected to reach fits the pool. How long an output gets is learned: the mean of
 * the lengths seen lately that are longer than what the sequence already has, never beyond its
 * max_tokens. The peak is exact for exact lengths: when the i-th shortest remainder has ended, its
 * blocks are back.
 * Not: a guarantee. A wrong guess is paid by ending one sequence (decode-node/dc_room.c).
 * Value type, embedded. Owner and thread: its embedder's. Bounds: the last TD_GROWTH_WINDOW
 * lengths. Failure: none. No floating point: the same inputs give the same plan everywhere.
 */
#ifndef TD_SCHED_GROWTH_H
#define TD_SCHED_GROWTH_H

#include <stdint.h>

#define TD_GROWTH_WINDOW 128
#define TD_GROWTH_PRIOR  256 /* output tokens expected before anything was seen */

struct td_growth {
    uint32_t len[TD_GROWTH_WINDOW];
    uint32_t n, at;
};

struct td_growth_seq {
    uint32_t held_tok;   /* tokens whose KV it holds or has reserved */
    uint32_t remain_tok; /* tokens it is expected to add */
};

/* A sequence ended by itself after n_out output tokens. */
void td_growth_seen(struct td_growth *g, uint32_t n_out);
/* Expected output in total of a sequence that has n_out tokens and may have max_out; at least
 * n_out + 1 while it may grow. */
uint32_t td_growth_expect(const struct td_growth *g, uint32_t n_out, uint32_t max_out);
/* Blocks the set is expected to need at its worst moment. Sorts `seqs`. */
uint32_t td_growth_peak(struct td_growth_seq *seqs, uint32_t n, uint32_t block_tok);

#endif
