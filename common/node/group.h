/* group.h - a node's process in a tensor-parallel group: what its options ask for, joining, and watching the others.
 *
 * What: checks the options of a group, each refusal with its remedy; joins (common/io/ranks.h); watches the connections of the
 * joining on the loop, so that a process that is gone is noticed while nothing is computed.
 * Not: the engine that spans the group (common/model/cpu_engine.h), nor what rank 0 (node.h) and the others (rank_node.h) do.
 * Owner: the node program; the engine goes before it. Thread: main, loop. Failure: TD_ERR_CONFIG for options, logged here;
 * else as of td_ranks_join.
 */
#ifndef TD_NODE_GROUP_H
#define TD_NODE_GROUP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"
#include "common/io/ranks.h"

struct nd_group_options { /* borrowed for the call */
    int64_t size, rank;   /* --tensor-parallel-size, --rank */
    const char *leader;   /* --rank-leader; "": not given */
    bool cuda;            /* --backend cuda */
    bool has_keys;        /* --cluster-key-file was given */
    uint64_t numerics_id; /* of the engine to be; 0: there is none of that name */
    uint32_t n_ports;     /* of --kv-port-range; 0: any */
    bool data_plane;      /* rank 0 has one beside the group's: it needs two ports */
};

/* TD_OK too for a process that computes alone. */
td_err nd_group_check(const struct nd_group_options *o) TD_MUST_CHECK;

struct nd_group;

/* Blocks until the group stands: td_ranks_join says how it ends. */
td_err nd_group_join(const struct td_rank_params *p, struct nd_group **out_group) TD_MUST_CHECK;
/* The engine is made: as of td_ranks_loaded. */
td_err nd_group_loaded(struct nd_group *g, int64_t wait_us) TD_MUST_CHECK;
/* For the engine and for figures; lives as long as the group. */
struct td_ranks *nd_group_ranks(const struct nd_group *g);
/* From now on `over` is called, once, when the group has lost a rank; its exchanges have been stopped by then. */
td_err nd_group_watch(struct nd_group *g, struct td_loop *loop, void (*over)(void *arg, td_err why),
                      void *arg) TD_MUST_CHECK;
/* Before the loop and the engine are destroyed: watches no more. `broken`: stops the exchanges too, so that the engine ends
 * without a goodbye and the others know that something is wrong. NULL is fine. */
void nd_group_leave(struct nd_group *g, bool broken);
/* The engine must be gone. NULL is fine. */
struct nd_group *nd_group_destroy(struct nd_group *g);

#endif
