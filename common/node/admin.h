/* admin.h - the admin port of a node's process: probes, version, metrics, waits, and gRPC's health and reflection.
 *
 * What: one HTTP server with TLS of its own, the same for a node and for a process that follows one (rank_node.h); what is
 * shown comes from its owner by a table. Not: figures, states.
 * Owner: a shell. Thread: loop; so are the table's calls. Bounds: 256 connections, answers of ND_ADMIN_BODY_MAX bytes.
 * Failure: of creation only, logged.
 */
#ifndef TD_NODE_ADMIN_H
#define TD_NODE_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/io/grpc_admin.h"
#include "common/io/loop.h"
#include "common/io/tls.h"

#define ND_ADMIN_BODY_MAX (8u << 20)

struct nd_admin_ops {
    bool (*draining)(void *arg); /* then it is not ready */
    td_err (*metrics)(void *arg, struct td_buf *out);
    td_err (*waits)(void *arg, struct td_buf *out); /* JSON; NULL: the path is unknown */
    td_grpc_health_fn health;
};

struct nd_admin_params { /* borrowed for the call; ops and arg: until destroy */
    struct td_loop *loop;
    const char *host;
    uint16_t port; /* 0: a free one */
    struct td_tls_files tls;
    const struct nd_admin_ops *ops;
    void *arg;
};

struct nd_admin;

td_err nd_admin_create(const struct nd_admin_params *p, struct nd_admin **out_admin) TD_MUST_CHECK;
struct nd_admin *nd_admin_destroy(struct nd_admin *a);
uint16_t nd_admin_port(const struct nd_admin *a);
/* Of this port; NULL: cleartext. */
const struct td_tls *nd_admin_tls(const struct nd_admin *a);
/* Reads the TLS files again, for connections from now on; nothing without TLS. */
void nd_admin_reload_tls(struct nd_admin *a);
struct td_grpc_server *nd_admin_grpc(const struct nd_admin *a);

#endif
