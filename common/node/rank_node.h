/* rank_node.h - a process that follows rank 0 of its node: an engine that computes its share, and an admin port.
 *
 * What: says when the engine has ended (rank 0's goodbye, or a lost rank), and serves probes, version and figures on a port of
 * its own. Not: a node: no router knows it, it has no pool of its own to give away, and requests never reach it.
 * Owner: node program. Thread: loop. Failure: of creation only, logged.
 */
#ifndef TD_NODE_RANK_NODE_H
#define TD_NODE_RANK_NODE_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"
#include "common/io/tls.h"
#include "common/model/engine.h"
#include "common/node/core.h"
#include "common/node/rank_metrics.h"

struct td_rank_node_params {
    struct td_loop *loop; /* borrowed, like everything here */
    const char *name, *model_name;
    enum td_role role; /* of the node, for the figures' labels */
    struct td_engine *engine;
    struct nd_rank_source group;
    const char *admin_host;
    uint16_t admin_port; /* 0: a free one */
    struct td_tls_files admin_tls;
    double model_load_s;
    void (*ended)(void *arg); /* once: the engine has ended by itself */
    void *arg;
};

struct td_rank_node;

td_err td_rank_node_create(const struct td_rank_node_params *p,
                           struct td_rank_node **out_node) TD_MUST_CHECK;
struct td_rank_node *td_rank_node_destroy(struct td_rank_node *n);
uint16_t td_rank_node_admin_port(const struct td_rank_node *n);
void td_rank_node_reload_tls(struct td_rank_node *n);
/* Not ready any more; the engine goes on until rank 0's goodbye. */
void td_rank_node_drain(struct td_rank_node *n);

#endif
