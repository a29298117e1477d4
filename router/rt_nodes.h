/* rt_nodes.h - the router's picture of the nodes it is attached to: what they are, what they
 * reported last, and what this router has sent them since.
 *
 * Not: sessions (common/io/link_session.h). Pure: driven by rt_core. Owner and thread: rt_core's.
 * Bounds: RT_MAX_NODES. Failure: a node that does not fit is TD_ERR_FULL.
 */
#ifndef ROUTER_RT_NODES_H
#define ROUTER_RT_NODES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "proto/wire.h"

#define RT_MAX_NODES 256

struct rt_node {
    uint64_t epoch; /* 0: free slot */
    char name[TD_WIRE_MAX_NAME];
    enum td_role role;
    uint8_t address[TD_WIRE_MAX_ADDR]; /* data plane address of rank 0 */
    uint32_t address_len;
    uint64_t layout_id, numerics_id;
    uint32_t block_tok, n_layers, max_model_len, n_blocks, max_seqs;
    uint32_t n_ranks;      /* processes that compute its model together, to be shown; 0: not said */
    uint32_t transport_ok; /* 1: usable on the data plane */
    char version[32], numerics[64], admin_address[128]; /* as told, cut */

    bool held; /* drained through this router: no new work from here until it reports so itself */
    bool detached; /* its session has no connection: it may resume, or the node has died unseen */
    bool have_state;
    struct td_wire_state state; /* as reported last */
    int64_t reported_us;        /* when that came; the core's clock */
    uint64_t state_seq;

    /* what this router knows beyond the report */
    uint32_t inflight;       /* works sent and not ended */
    uint64_t pending_tok;    /* prompt tokens of works without a first token */
    uint64_t unreported_tok; /* prompt tokens sent since the last report */
    uint32_t unreported_blk; /* KV blocks those works will need */
    uint64_t dispatched, lost_works;
    uint64_t order; /* of its coming */
};

struct rt_nodes {
    struct rt_node list[RT_MAX_NODES];
    uint32_t count;
    struct rt_gone { /* the last nodes that went, for `explain` */
        uint64_t epoch;
        char name[64];
    } gone[RT_MAX_NODES];
    uint32_t n_gone; /* ever */
    uint64_t n_ups;  /* ever */
};

/* Adds the node or renews what is known of it. */
td_err rt_nodes_up(struct rt_nodes *ns, const struct td_wire_node_info *info,
                   struct rt_node **out_node) TD_MUST_CHECK;
void rt_nodes_down(struct rt_nodes *ns, uint64_t epoch);
struct rt_node *rt_nodes_find(struct rt_nodes *ns, uint64_t epoch);
/* By name; when a restarted node and its predecessor are both attached, the younger one. NULL: none. */
struct rt_node *rt_nodes_named(struct rt_nodes *ns, const char *name);
/* Also of a node that has gone lately; "" when forgotten. */
const char *rt_nodes_name(const struct rt_nodes *ns, uint64_t epoch);
/* Takes a report; returns false when its sequence shows a gap (ask for a full one; the report is
 * used all the same). */
bool rt_node_report(struct rt_node *n, const struct td_wire_state *s);
/* True when it would take new work for this role, as far as it has said. */
bool rt_node_willing(const struct rt_node *n, enum td_role role);
/* Willing, and its link stands. */
bool rt_node_usable(const struct rt_node *n, enum td_role role);
/* Why it is not usable for any role: "" when it is. */
const char *rt_node_why_not(const struct rt_node *n);
/* Nothing runs or waits there, by its own report, made after it knew of its drain. */
bool rt_node_drained(const struct rt_node *n);
/* Usable nodes of a role: READY counts. */
uint32_t rt_nodes_ready(const struct rt_nodes *ns, enum td_role role);

#endif
