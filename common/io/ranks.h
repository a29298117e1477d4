/* ranks.h - a tensor-parallel group of processes: how its ranks find each other, and their exchanges over UCX.
 *
 * What: rank 0 listens, the others dial it and dial again until it is there, in any order of starting. Both ends prove
 * the cluster secret, compare what must be equal in a group (struct td_rank_terms), and learn each other's UCX worker
 * addresses; then the group stands and fills common/model/ranks.h. The connections of the joining stay open: one that
 * closes says that a process is gone, whatever UCX still believes.
 * Not: encryption (as on the data plane), elastic groups: a group that has lost a rank is over, its processes end and
 * whoever runs them starts the group anew.
 * Owner: node program. Thread: td_ranks_join, td_ranks_loaded, td_ranks_destroy and td_ranks_watch_fd's watcher: the main thread;
 * exchanges: the engine's, see common/model/ranks.h; td_ranks_stats_get: any.
 * Bounds: TD_RANKS_MAX ranks; a joining frame is at most TD_RANK_MAX_FRAME bytes, checked before it is kept; strangers on
 * the port hold TD_RANK_MAX_STRANGERS connections for TD_RANK_HELLO_US at most. Failure: see common/model/ranks.h.
 * The bytes on the wire: docs/wire.md.
 */
#ifndef TD_IO_RANKS_H
#define TD_IO_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"
#include "common/model/ranks.h"

#define TD_RANK_MAX_FRAME     8192
#define TD_RANK_MAX_STRANGERS 16
#define TD_RANK_HELLO_US      3000000

/* Equal in every rank of a group, or the joining is refused on both sides with the name of what differs. */
struct td_rank_terms {
    uint8_t model_id[32];
    uint64_t numerics_id;
    uint32_t n_blocks, max_rows, max_tokens, max_model_len;
};

struct td_rank_params {
    uint32_t rank, n;   /* n 2..TD_RANKS_MAX */
    const char *listen; /* rank 0: "host:port", "[v6]:port"; port 0 picks a free one */
    const char *leader; /* the others: rank 0's "host:port"; a name is resolved anew at each try */
    const char *name;   /* of this process, in logs and in the leader's */
    const char *
        port_file; /* rank 0, while it waits: a line "ranks PORT" is written there; "" or NULL: no */
    const struct td_link_key *keys; /* the first is used for dialing, all are accepted */
    uint32_t n_keys;
    struct td_rank_terms terms;
    const char *kv_device, *kv_transports; /* as of struct td_xfer_params */
    uint32_t port_first,
        port_last; /* of UCX over TCP; 0: any. Rank 0's data plane takes one of them, too */
    bool trust_network;
    int64_t join_us; /* for the whole group to stand */
    int64_t
        wait_us; /* for an exchange to finish: longer than a step's longest layer on the slowest rank */
};

/* Blocks until the group stands: progress is logged every 10 s (who is missing). SIGTERM or SIGINT, held back by
 * td_signals_hold, end the waiting (not a name server's): TD_ERR_CANCELLED. TD_ERR_STALLED after join_us; TD_ERR_CONFIG,
 * TD_ERR_ADDRESS for parameters; at a rank > 0 that rank 0 refused TD_ERR_PEER_AUTH, TD_ERR_PEER_VERSION,
 * TD_ERR_PEER_MODEL (model_id, numerics_id) or TD_ERR_CONFIG (group size, rank, a place that is taken, the other terms):
 * it ends, rank 0 goes on waiting for the right one. TD_ERR_PEER_LOST: a rank died once all were there. UCX runs
 * from here on: do not fork. */
td_err td_ranks_join(const struct td_rank_params *p, struct td_ranks **out_ranks) TD_MUST_CHECK;
/* This process can take steps. A rank above 0 says so and goes on; rank 0 waits until all have: one that still reads its
 * weights would miss the deadline of its first exchange. Main thread, once, after the engine is made. Progress is logged and
 * signals end the waiting as in td_ranks_join: TD_ERR_CANCELLED; TD_ERR_STALLED after wait_us; else as td_ranks_check. */
td_err td_ranks_loaded(struct td_ranks *r, int64_t wait_us) TD_MUST_CHECK;
/* The engine must be gone. Flushes what was told last and waits, 3 s at most, for the others to leave too, unless the
 * group has failed. NULL is fine. */
struct td_ranks *td_ranks_destroy(struct td_ranks *r);

/* Readable when a rank's connection has closed or said anything: then td_ranks_check says whether the group is over
 * (TD_ERR_PEER_LOST, logged once with the rank's name, told to the other ranks) and stops it, so that a waiting engine
 * returns. At a rank > 0 rank 0's leaving in peace is no loss: TD_OK, and the engine hears the goodbye that rank 0 told
 * before (or loses rank 0 a second later). */
int td_ranks_watch_fd(const struct td_ranks *r);
td_err td_ranks_check(struct td_ranks *r);

struct td_ranks_stats {
    uint64_t exchanges, bytes_out, bytes_in;
    uint64_t wait_us;      /* spent inside exchange, tell and not hear */
    const char *transport; /* towards the next rank: "shm", "tcp", "rdma", ...; static */
};
void td_ranks_stats_get(const struct td_ranks *r, struct td_ranks_stats *out);

#endif
