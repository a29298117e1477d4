/* rt_shell.h - the router as a part of a process: HTTP in front, control links behind, the pure
 * core between.
 *
 * What: owns the HTTP servers (public and admin), gRPC, the links to the nodes, the tokenising thread,
 * the core and its timer, metrics and the ring of finished requests. tandem-router is this and a
 * main(); a node with --role both has one inside. Owner: main(). Thread: loop. Failure: creation
 * fails with an error, logged; afterwards only single requests fail.
 */
#ifndef ROUTER_RT_SHELL_H
#define ROUTER_RT_SHELL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/metrics.h"
#include "common/io/link_session.h"
#include "common/io/loop.h"
#include "common/io/otlp.h"
#include "common/io/tls.h"
#include "router/rt_place.h"

struct rt_shell_params {
    struct td_loop *loop; /* borrowed */
    const char *name;     /* of this router, in logs and at the nodes */
    const char *model_path, *chat_template;
    const char *const *served_names; /* borrowed */
    uint32_t n_served_names;
    uint32_t max_model_len; /* 0: the model's */
    const char *host, *admin_host;
    uint16_t port, admin_port, grpc_port;
    const char *tls_cert, *tls_key, *tls_client_ca; /* NULL or "": cleartext; of the public ports */
    struct td_tls_files admin_tls;                  /* of the admin port */
    bool grpc;                                      /* listen for gRPC on host:grpc_port */
    const char *api_key_file;
    const char *const *node_urls; /* tcp://host:port of nodes' control ports */
    uint32_t n_node_urls;
    const struct td_link_key *keys;
    uint32_t n_keys;
    double time_scale; /* of every bound of failures.md part 1 */
    uint32_t max_requests, max_queue, max_node_queue;
    uint64_t max_queue_bytes;
    int64_t budget_us;    /* of a request */
    int64_t pair_wait_us; /* a replay waits so long for a pair */
    int64_t ping_us;      /* SSE comment after so much silence; 0: none */
    size_t max_body;
    enum rt_policy policy;
    uint32_t planned_prefill,
        planned_decode; /* nodes there should be, for the figures; 0: not told */
    bool resume;
    struct td_otlp *otlp;    /* borrowed; NULL: no traces */
    double trace_ratio;      /* of traces that begin here */
    bool trace_ratio_always; /* of all others too */
    bool strict_pairs; /* refuse nodes whose KV layout or numerics differ from the first one's */
};

struct rt_shell;

td_err rt_shell_create(const struct rt_shell_params *p, struct rt_shell **out_shell) TD_MUST_CHECK;
struct rt_shell *rt_shell_destroy(struct rt_shell *s);
uint16_t rt_shell_port(const struct rt_shell *s);
uint16_t rt_shell_admin_port(const struct rt_shell *s);
/* Reads the TLS files again, for connections from now on; nothing without TLS. A failure is logged, the old ones stay. */
void rt_shell_reload_tls(struct rt_shell *s);
/* 0: gRPC is off. */
uint16_t rt_shell_grpc_port(const struct rt_shell *s);
/* No new requests; what runs goes on. */
void rt_shell_drain(struct rt_shell *s);
/* True when nothing runs and nothing is left to be written. */
bool rt_shell_idle(const struct rt_shell *s);
/* Ends what still runs with an error, then parts from the nodes; rt_shell_gone: all are told. */
void rt_shell_bye(struct rt_shell *s);
bool rt_shell_gone(const struct rt_shell *s);
/* At least one usable pair. */
bool rt_shell_ready(const struct rt_shell *s);

#endif
