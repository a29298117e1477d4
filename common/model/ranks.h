/* ranks.h - what an engine that spans several processes needs of them: lock-step exchanges within a group of ranks.
 *
 * What: a vtable that common/io/ranks.h (UCX) and the tests' threads fill. Rank 0 leads: it decides on each step and
 * tells the others, then all ranks exchange pieces of activations in the same order.
 * Not: arithmetic: nothing is added up here. The CPU engine cuts every product by its output columns and gathers them,
 * so that a group's results have the bits of one process (common/model/README.md).
 * Owner: the node program makes the group before its engine and frees it after. Thread: tell, hear and exchange belong
 * to the engine's threads, one call at a time, with a barrier between callers; stop: any thread.
 * Failure: an error ends the group for good: every later call returns TD_ERR_CLOSED or the same error. One rank's
 * death is the group's, and the group's is the node's.
 */
#ifndef TD_MODEL_RANKS_H
#define TD_MODEL_RANKS_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_RANKS_MAX 64

struct td_rank_out {
    const void *data;
    size_t bytes; /* 0: nothing travels to this rank */
};

struct td_rank_in {
    void *data;
    size_t bytes; /* exactly so many arrive; 0: nothing */
};

struct td_ranks;

struct td_ranks_ops {
    /* Sends out[p] to rank p and fills in[p] from rank p, for every p but the own rank. All ranks make their calls in
     * the same order with sizes that fit. Returns when everything has arrived and out may be reused. TD_ERR_PEER_LOST,
     * TD_ERR_STALLED (the deadline passed), TD_ERR_TRANSPORT, TD_ERR_CLOSED (stopped). */
    td_err (*exchange)(struct td_ranks *r, const struct td_rank_out *out,
                       const struct td_rank_in *in);
    /* Rank 0: one message to every other rank. Errors as of exchange. */
    td_err (*tell)(struct td_ranks *r, const void *data, size_t n);
    /* The others: waits for rank 0's next message, without a deadline while rank 0 lives. TD_ERR_PROTOCOL: longer than
     * cap. TD_ERR_CLOSED: stopped. */
    td_err (*hear)(struct td_ranks *r, void *out, size_t cap, size_t *out_n);
    /* Whoever waits in a call returns TD_ERR_CLOSED soon. Any thread, idempotent. */
    void (*stop)(struct td_ranks *r);
};

struct td_ranks {
    const struct td_ranks_ops *ops;
    uint32_t rank, n; /* n 2..TD_RANKS_MAX */
};

/* Rank r's share of `units`: [*out_from, *out_to), in order of ranks, sizes differing by one at most. */
static inline void td_rank_share(uint32_t units, uint32_t rank, uint32_t n, uint32_t *out_from,
                                 uint32_t *out_to)
{
    *out_from = (uint32_t)((uint64_t)units * rank / n);
    *out_to = (uint32_t)((uint64_t)units * (rank + 1) / n);
}

#endif
