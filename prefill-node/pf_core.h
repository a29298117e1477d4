/* pf_core.h - the prefill role: a request's prompt becomes KV on a decode node and a first token.
 *
 * What: a pure state machine (common/node/core.h). Life of a request, one state each:
 *   queued   waits for blocks (bounded line, priority then arrival); deadline: its budget
 *   exec     its chunks are computed; each chunk's slices are pushed as soon as D's table is known
 *   parked   computed, D's table is not there yet; deadline: lease, or the hold time of a prompt that is held for
 *            whichever decode node presents its nonce
 *   pushing  computed, the push window delays the last pushes; deadline: lease since the last push
 *   handing  record sent, waits for D's TAKEN; deadline: lease since the last push
 *   ending   over for everybody else; waits for its step and its posts to end; blocks quarantined
 * P keeps the blocks until TAKEN, an abort, or the lease's end, and never reuses a source block
 * before PUSHED has ended its push.
 * Not: sockets, UCX, the engine. Owner and thread: whoever drives it. Bounds: nd_core_params,
 * PF_MAX_STASH tables that came before their request. Failure: refuses or ends work by messages.
 */
#ifndef TD_PREFILL_NODE_PF_CORE_H
#define TD_PREFILL_NODE_PF_CORE_H

#include "common/node/core.h"

extern const struct nd_role_ops pf_role_ops;

#endif
