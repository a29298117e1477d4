/* handoff.h - what a decode node must be told to take over a prompt that a prefill node holds for an outside router.
 *
 * What: the hand-off as a plain struct, and as text that an outside router may carry (a field of kv_transfer_params): hexadecimal
 * digits of a packed, versioned form with a tag of the cluster key, so that a decode node dials no address that no node of its own cluster
 * named. Whoever has the text may take the KV, once, while it is held: it is a secret between nodes and that router.
 * Not: JSON, gRPC (the service's); when a hold ends (prefill-node).
 * Owner: the caller. Thread: any. Bounds: TD_HANDOFF_MAX_TEXT. Failure: decoding refuses with TD_ERR_BAD_REQUEST what is malformed,
 * truncated or out of range, TD_ERR_FORBIDDEN what no key of the list has signed.
 */
#ifndef TD_NODE_HANDOFF_H
#define TD_NODE_HANDOFF_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"
#include "proto/wire.h"

#define TD_HANDOFF_MAX_TEXT 8448 /* with its end; a few hundred is usual */

struct td_handoff {
    uint64_t p_epoch;     /* the prefill node's process */
    struct td_work_id id; /* of the prefill node's work */
    uint8_t nonce[16];    /* who knows it may take the KV */
    uint32_t hold_ms;     /* how long it is kept from the first token on */
    uint32_t n_prompt;
    uint64_t prompt_hash; /* nd_local_prompt_hash() of its tokens */
    uint64_t layout_id, numerics_id, seed;
    uint32_t address_len;
    uint8_t address[TD_WIRE_MAX_ADDR]; /* of the prefill node's data plane */
};

/* Signs with keys[0]. Writes lower-case digits and the text's end; TD_ERR_TOO_LARGE when it does not fit. */
td_err td_handoff_encode(const struct td_handoff *h, const struct td_link_key *keys,
                         uint32_t n_keys, char *out_text, size_t cap) TD_MUST_CHECK;
/* Any key of the list may have signed. `text` needs no end. */
td_err td_handoff_decode(const char *text, size_t len, const struct td_link_key *keys,
                         uint32_t n_keys, struct td_handoff *out) TD_MUST_CHECK;

#endif
