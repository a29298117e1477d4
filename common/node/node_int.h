/* node_int.h - what the parts of the node shell share: node.c (life, core, engine), node_link.c (routers, load),
 * node_admin.c (what the admin port shows), node_local.c (requests of this process), node_metrics.c (figures). Not for others.
 */
#ifndef TD_NODE_NODE_INT_H
#define TD_NODE_NODE_INT_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/io/link_fit.h"
#include "common/io/link_nng.h"
#include "common/node/admin.h"
#include "common/node/node.h"
#include "common/node/node_metrics.h"

#define ND_STATE_MIN_US  50000   /* between two reports of load */
#define ND_STATE_IDLE_US 1000000 /* a report at least so often */

struct nd_router { /* an attached router */
    uint64_t epoch, session;
    uint64_t state_seq;
    bool full_wanted;
};

struct td_node {
    struct td_node_params p;
    char name[TD_WIRE_MAX_NAME];
    uint64_t epoch;
    void *core; /* owned, like all below */
    struct nd_actions acts;
    struct td_arena *arena; /* of decoded messages */
    struct td_buf out;      /* encoded message in the making */
    struct td_link_nng *links;
    struct td_wire_node_info info; /* what routers are told of us */
    struct td_wire_rank rank;
    char admin_url[128];
    struct td_link_fit_at_node fit;
    struct td_xfer *xfer;             /* NULL without a data plane */
    const struct td_tls *service_tls; /* borrowed of the service beside the node; NULL: none */
    struct nd_admin *admin;
    struct td_timer *core_timer, *state_timer;
    struct nd_local *local;       /* NULL without */
    uint64_t local_epoch;         /* its router epoch; 0 without */
    struct td_timer *local_timer; /* words wait that may not be said inside of a service's call */
    bool local_mute; /* words wait: a service's call is under way, or they are being said */
    struct td_watch *engine_watch, *xfer_watch;
    struct nd_metrics *metrics;
    struct nd_router routers[ND_MAX_ROUTERS];
    uint32_t n_routers;
    uint64_t lost[ND_MAX_ROUTERS]; /* epochs of routers that we dropped: the core is told next */
    uint32_t n_lost;
    struct td_wire_state last_state;
    int64_t state_sent_us, started_us;
    td_ticket last_ticket;
    bool draining; /* the process ends */
    bool held;     /* drained at an operator's word, which can be taken back */
};

/* node.c */
void nd__event(struct td_node *n, const struct nd_event *ev);
/* Fills everything but seq and full. */
void nd__state(struct td_node *n, struct td_wire_state *out);

/* node_link.c */
td_err nd__links_create(struct td_node *n) TD_MUST_CHECK;
/* A router that cannot be told everything is dropped: its session ends, and its works here. */
void nd__send(struct td_node *n, uint64_t router_epoch, const struct td_wire_msg *m);
/* Reports load to the routers when it changed or is due. */
void nd__state_publish(struct td_node *n);
void nd__state_timer(void *arg);

/* node_local.c */
td_err nd__local_create(struct td_node *n) TD_MUST_CHECK;
void nd__local_destroy(struct td_node *n);
/* Says what the role has said of the service's works. */
void nd__local_speak(struct td_node *n);

/* node_admin.c */
enum td_health nd__health(void *arg, const char *service);
/* The ends of this server's calls count in the node's figures; it is destroyed before the node. */
void nd__count_calls(struct td_node *n, struct td_grpc_server *server);
td_err nd__admin_create(struct td_node *n) TD_MUST_CHECK;

#endif
