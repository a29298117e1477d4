/* node.h - a node process around one role: engine, control link, data plane, admin port.
 *
 * What: feeds the role's core (common/node/core.h) and carries out its actions; publishes load to the routers; serves
 * probes, metrics and the list of waits. The role comes in as a table of operations, so this room knows no role.
 * Owner: main(). Thread: loop; the engine and the data plane bring their own threads behind their interfaces.
 * Bounds: ND_MAX_ROUTERS sessions. Failure: creation fails with an error, logged; afterwards a bug of the core (an action
 * that does not fit) is logged and counted, and its deadlines end the work concerned.
 */
#ifndef TD_NODE_NODE_H
#define TD_NODE_NODE_H

#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"
#include "common/io/loop.h"
#include "common/io/otlp.h"
#include "common/io/tls.h"
#include "common/model/engine.h"
#include "common/model/model.h"
#include "common/node/core.h"
#include "common/node/local.h"
#include "common/node/rank_metrics.h"

struct td_node_params {
    struct td_loop *loop; /* borrowed, like everything here */
    const struct nd_role_ops *role;
    enum td_role role_told; /* what routers are told: TD_ROLE_BOTH for decode with local prefill */
    const char *name, *model_name;
    struct td_engine *engine;
    struct nd_rank_source group; /* the ranks that the engine spans; zero: it computes alone */
    void (*ended)(
        void *arg); /* once: the engine has ended by itself, no step will finish; or NULL */
    void *ended_arg;
    const struct td_model *model;
    const struct td_link_key *keys;
    uint32_t n_keys;
    const char *control_url; /* tcp://host:port, port 0: a free one */
    const char *admin_host;
    uint16_t admin_port;
    struct td_tls_files admin_tls;
    bool data_plane; /* false: no UCX (role both serving alone) */
    const char *kv_device, *kv_transports;
    uint32_t kv_port_first, kv_port_last;
    bool kv_trust_network, kv_checksum;
    uint32_t max_seqs, max_queue, max_batched_tokens, chunk_tokens, steps_in_flight;
    double time_scale;
    double model_load_s;  /* what loading the model took, for the figures */
    struct td_otlp *otlp; /* NULL: no traces */
    bool metrics_vllm;    /* also the names of interfaces.md 2.1 */
    bool local;           /* a service of this process submits requests: td_node_submit */
    double hold_s;        /* how long a prompt is held for an outside router; 0: ND_LOCAL_HOLD_MS */
};

struct td_node;

td_err td_node_create(const struct td_node_params *p, struct td_node **out_node) TD_MUST_CHECK;
struct td_node *td_node_destroy(struct td_node *n);
/* Real addresses. */
const char *td_node_control_url(const struct td_node *n);
uint16_t td_node_admin_port(const struct td_node *n);
/* Reads the admin port's TLS files again, for connections from now on; nothing without TLS. */
void td_node_reload_tls(struct td_node *n);
/* Admits nothing new; what runs goes on until the limit. */
void td_node_drain(struct td_node *n, int64_t limit_us);
/* True when no work is known any more and the routers have taken every word about it. */
bool td_node_idle(const struct td_node *n);
/* Parts from the routers, so that they need not find out; td_node_gone: they have been told. */
void td_node_bye(struct td_node *n);
bool td_node_gone(const struct td_node *n);

/* ---- a service of this process as the router of its own requests (common/node/local.h says what comes of them) ----
 * For a node created with `local`. Call them on the loop thread, outside of the node's own events: from other callbacks of the loop,
 * or from the ops. */

/* Takes a request; everything in `r` is borrowed for the call, `ops` and `arg` until the work's end. Errors: nd_local_submit. */
td_err td_node_submit(struct td_node *n, const struct nd_local_request *r,
                      const struct nd_local_ops *ops, void *arg, uint64_t *out_ref) TD_MUST_CHECK;
/* Ends a work, in whatever state; also gives back what a HOLD keeps. on_end follows (TD_ERR_CANCELLED, unless it has ended). A ref
 * that is over is ignored. */
void td_node_cancel(struct td_node *n, uint64_t ref);
/* No callback about this work any more; it goes on unless it is cancelled too. */
void td_node_detach(struct td_node *n, uint64_t ref);
/* Works that the service has submitted and that are not over, holds included. */
uint32_t td_node_local_count(const struct td_node *n);

#endif
