/* link_fit.h - does the process at the other end of a control link fit? Asked at both ends while
 * attaching, so that what does not fit is refused there with words for the operator, never
 * discovered by a request.
 *
 * What: compares wire versions, model, tokenizer and template; a router that was told what to
 * expect also the KV layout and the numerics. Whether a prefill and a decode node fit each other
 * is placement's question, not this one.
 * Thread: any; pure.
 * Failure: TD_ERR_PEER_VERSION, TD_ERR_PEER_MODEL, TD_ERR_PROTOCOL for unreadable info; `text`
 * names both sides' values.
 */
#ifndef TD_IO_LINK_FIT_H
#define TD_IO_LINK_FIT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "proto/wire.h"

/* What the router expects of every node; zero: nothing. */
struct td_link_expect {
    uint64_t layout_id, numerics_id;
};

/* At the router. */
td_err td_link_fit_node(const struct td_wire_router_info *us, const struct td_wire_node_info *node,
                        const struct td_link_expect *expect, char *text, size_t cap) TD_MUST_CHECK;
/* At the node. */
td_err td_link_fit_router(const struct td_wire_node_info *us,
                          const struct td_wire_router_info *router, char *text,
                          size_t cap) TD_MUST_CHECK;

/* Ready-made check functions for td_link_params.check; arg is one of these, which lives as long as
 * the link. Their own infos are borrowed. */
struct td_link_fit_at_router {
    const struct td_wire_router_info *us;
    struct td_link_expect expect;
    struct td_arena *arena; /* scratch, reset by each check */
};
struct td_link_fit_at_node {
    const struct td_wire_node_info *us;
    struct td_arena *arena;
};
td_err td_link_check_node(void *at_router, uint64_t peer_epoch, const uint8_t *info, size_t len,
                          char *text, size_t cap) TD_MUST_CHECK;
td_err td_link_check_router(void *at_node, uint64_t peer_epoch, const uint8_t *info, size_t len,
                            char *text, size_t cap) TD_MUST_CHECK;

#endif
