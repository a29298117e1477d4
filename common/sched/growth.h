/* growth.h - what the running set will still need: the adaptive headroom of a decode node.
 *
 * One account: a newcomer is admitted when the peak of blocks that the sequences held now, and the
 * newcomer, are expected to reach fits the pool. How long an output gets is learned from the last
 * TD_GROWTH_WINDOW ends: when most of them ran into their own limit (max_tokens), the limit is
 * expected; else the mean of those longer than what the sequence already has, and a quarter more,
 * because ending a request for lack of room costs its whole prompt. Before TD_GROWTH_TRUST ends
 * were seen (the first to end are the short ones) a prior is expected. Never beyond max_tokens.
 * The peak is exact for exact lengths: when the i-th shortest remainder has ended, its blocks are
 * back.
 * Not: a guarantee. A wrong guess is paid by ending one sequence (decode-node/dc_room.c).
 * Value type, embedded. Owner and thread: its embedder's. Failure: none. No floating point: the same
 * inputs give the same plan everywhere.
 */
#ifndef TD_SCHED_GROWTH_H
#define TD_SCHED_GROWTH_H

#include <stdbool.h>
#include <stdint.h>

#define TD_GROWTH_WINDOW 128
#define TD_GROWTH_TRUST  16  /* ends seen before they are trusted */
#define TD_GROWTH_PRIOR  256 /* output tokens expected until then */
#define TD_GROWTH_EXACT  64  /* up to so many sequences the peak is summed exactly */

struct td_growth {
    uint32_t len[TD_GROWTH_WINDOW];
    bool limited[TD_GROWTH_WINDOW]; /* it ended at its own limit */
    uint32_t n, at, n_limited;
};

struct td_growth_seq {
    uint32_t held_tok;   /* tokens whose KV it holds or has reserved */
    uint32_t remain_tok; /* tokens it is expected to add */
};

/* A sequence ended by itself after n_out output tokens; `limited`: by its limit. */
void td_growth_seen(struct td_growth *g, uint32_t n_out, bool limited);
/* Expected output in total of a sequence that has n_out tokens and may have max_out; at least
 * n_out + 1 while it may grow. */
uint32_t td_growth_expect(const struct td_growth *g, uint32_t n_out, uint32_t max_out);
/* Blocks the set is expected to need at its worst moment. Sorts `seqs`. */
uint32_t td_growth_peak(struct td_growth_seq *seqs, uint32_t n, uint32_t block_tok);

#endif
