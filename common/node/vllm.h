/* vllm.h - the service vllm.grpc.engine.VllmEngine of a node, by which routers of the field may drive it (docs/grpc.md).
 *
 * What: a gRPC port of its own with a key file or mutual TLS of its own; GenerateRequests become works of the node's own role
 * (node.h, td_node_submit), tokens become chunks; tells of model, load and tokenizer; gRPC health and reflection.
 * Not: replays, placement, text out: the outside router's part. It needs no cluster secret and never sees one.
 * Owner: main(), beside the td_node, which it outlives. Thread: loop; the tokenizer's archive is made at creation.
 * Bounds: ND_LOCAL_MAX_WORKS, those of grpc_server.h, ND_VLLM_MAX_TEXT bytes of text input. Failure: creation fails with an error,
 * logged; a call ends with a status.
 */
#ifndef TD_NODE_VLLM_H
#define TD_NODE_VLLM_H

#include "common/node/node.h"

#define ND_VLLM_MAX_TEXT 16384u /* tokenised on the loop, so short; longer prompts come as ids */

struct nd_vllm_params {
    struct td_loop *loop; /* borrowed, like everything here */
    struct td_node *node;
    const char *host;
    uint16_t port;        /* 0: a free one */
    const char *key_file; /* NULL or "": none */
    const char *tls_cert, *tls_key, *tls_client_ca;
    double budget_s; /* of a request without deadline */
};

struct nd_vllm;

/* TD_ERR_CONFIG when anybody beyond this host could call: neither key nor client CA, and not on loopback. */
td_err nd_vllm_create(const struct nd_vllm_params *p, struct nd_vllm **out_service) TD_MUST_CHECK;
/* Before the node is destroyed. */
struct nd_vllm *nd_vllm_destroy(struct nd_vllm *v);
uint16_t nd_vllm_port(const struct nd_vllm *v);
/* No new connections; what runs goes on. */
void nd_vllm_drain(struct nd_vllm *v);
/* No call is open but those that stay open for ever. */
bool nd_vllm_idle(const struct nd_vllm *v);
void nd_vllm_reload_tls(struct nd_vllm *v);

#endif
