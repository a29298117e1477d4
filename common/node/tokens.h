/* tokens.h - collects the tokens of one engine step and sends each router its own as one message.
 *
 * Owner: one core. Thread: the loop's. Bounds: `cap` tokens between two flushes, cut into messages
 * of at most TD_WIRE_MAX_TOKENS_MSG. Failure: none.
 */
#ifndef TD_NODE_TOKENS_H
#define TD_NODE_TOKENS_H

#include "common/node/core.h"

struct nd_tokens;

struct nd_tokens *nd_tokens_create(uint32_t cap);
struct nd_tokens *nd_tokens_destroy(struct nd_tokens *t);
void nd_tokens_add(struct nd_tokens *t, const struct td_wire_token *token);
/* One TOKENS message for each router, in order of first appearance; then it is empty again. */
void nd_tokens_flush(struct nd_tokens *t, uint64_t step, struct nd_actions *out);

#endif
