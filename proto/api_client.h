/* api_client.h - the public gRPC API (tandem.v1) from a client's side: requests to bytes, answers from bytes.
 *
 * What: the structs of api.h the other way round. An answer is checked like a request before protobuf-c sees it; fields that a
 * newer server sends are ignored, numbers that this version does not know read as unspecified.
 * Not: sending them (common/io/grpc_client.h). Owner and thread: the caller's; no state. Bounds: as in api.h.
 * Failure: TD_ERR_BAD_REQUEST for bytes that are not the message,
 * TD_ERR_NO_MEMORY, TD_ERR_FULL.
 */
#ifndef TD_PROTO_API_CLIENT_H
#define TD_PROTO_API_CLIENT_H

#include "proto/api.h"

/* Input, model, request_id, n, budget_ms, priority, cache_salt; of sampling what is set. */
td_err td_api_generate_encode(struct td_buf *out, const struct td_api_generate *g) TD_MUST_CHECK;

enum td_api_said { TD_API_SAID_NOTHING, TD_API_SAID_DELTA, TD_API_SAID_USAGE };
/* One message of Generate's stream; everything points into the arena or into `data`. */
struct td_api_generated {
    enum td_api_said said;
    const char *id;
    struct td_api_delta delta; /* its text is not ended by a zero byte */
    struct td_api_usage usage;
};
td_err td_api_generated_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_api_generated *out) TD_MUST_CHECK;

td_err td_api_watch_encode(struct td_buf *out, const struct td_api_watch *w) TD_MUST_CHECK;
td_err td_api_event_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           struct td_api_event *out) TD_MUST_CHECK;

td_err td_api_nodes_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                           const struct td_api_node **out_nodes, uint32_t *out_n) TD_MUST_CHECK;
/* An ExplainRequest. */
td_err td_api_id_encode(struct td_buf *out, const char *id) TD_MUST_CHECK;
/* Everything but candidates, which are the last attempt's pairs. */
td_err td_api_explained_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                               struct td_api_explain *out, const struct td_api_try **out_tries,
                               uint32_t *out_n) TD_MUST_CHECK;
/* With undo: an UndrainRequest. */
td_err td_api_drain_ask_encode(struct td_buf *out, const struct td_api_drain *d,
                               bool undo) TD_MUST_CHECK;
/* What the router knows of the node now; its name is "" when the answer holds none. */
td_err td_api_drained_decode(const uint8_t *data, size_t len, struct td_arena *arena,
                             struct td_api_node *out_node) TD_MUST_CHECK;

#endif
