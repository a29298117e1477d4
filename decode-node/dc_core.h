/* dc_core.h - the decode role: KV that a prefill node pushes (or that this node computes) becomes a
 * stream of tokens.
 *
 * What: a pure state machine (common/node/core.h). Life of a request, one state each:
 *   queued   waits for room (bounded line, priority then arrival); deadline: budget, ticket
 *   landing  blocks reserved, table sent, slices arrive; deadline: budget until the record says that
 *            all are posted, then T_stall since the last one
 *   ready    taken over (record verified, every slice landed), waits for a place in the batch
 *   prefill  local: this node computes the prompt; deadline: budget
 *   running  one token a step; deadline: budget
 *   ending   over for everybody else; blocks quarantined until its step ends and its land is fenced
 * One account covers reserved, running and expected blocks (dc_room.c). When the pool runs out, the
 * request of the lowest priority, the youngest of those, ends with no_capacity; the router replays
 * it. With nd_core_params.local_prefill this is the role `both`.
 * Not: sockets, UCX, the engine. Owner and thread: whoever drives it. Bounds: nd_core_params.
 * Failure: refuses or ends work by messages.
 */
#ifndef TD_DECODE_NODE_DC_CORE_H
#define TD_DECODE_NODE_DC_CORE_H

#include "common/node/core.h"

extern const struct nd_role_ops dc_role_ops;

#endif
