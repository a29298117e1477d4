/* link_nng.h - the control links of a process over NNG byte streams: the shell around
 * link_session.h.
 *
 * What: a node listens, a router dials (fixed addresses, or all addresses of a DNS name, resolved
 * again and again); all protocol lives in the pure session. NNG runs its callbacks on its own
 * threads: they only ring a doorbell of the loop.
 * Not: a protocol; message contents.
 * Owner: main() of router or node. Thread: everything is the loop thread's; callbacks run there.
 * Bounds: TD_LINK_NNG_MAX_*; connections at max_sessions + max_pending of the link parameters.
 * Failure: listening fails with an error; a dial that fails is retried for ever with backoff.
 * Fault points: ctl.drop (a received piece closes its connection unread), ctl.delay (a write
 * waits).
 */
#ifndef TD_IO_LINK_NNG_H
#define TD_IO_LINK_NNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/link_session.h"
#include "common/io/loop.h"

#define TD_LINK_NNG_MAX_LISTEN 4
#define TD_LINK_NNG_MAX_NAMES  16  /* td_link_nng_dial() calls */
#define TD_LINK_NNG_URL        256 /* bytes of an address, with the zero */

struct td_link_nng;

struct td_link_peer {
    uint64_t session, epoch;
    const char *name;
    const char *url;     /* where we dialed it; "" for an accepted one */
    const uint8_t *info; /* td_wire_node_info or td_wire_router_info, encoded */
    size_t info_len;
};

/* All optional. Pointers are valid during the call. Any function of this module but destroy may be
 * called inside. */
struct td_link_ops {
    void (*on_up)(void *arg, const struct td_link_peer *peer);
    void (*on_message)(void *arg, uint64_t session, uint64_t peer_epoch, const uint8_t *data,
                       size_t len);
    void (*on_lost)(void *arg, uint64_t session, uint64_t peer_epoch, td_err reason,
                    const char *text);
    /* `url` "" for a peer that dialed us; remote: the peer refused us. */
    void (*on_refused)(void *arg, const char *url, td_err reason, const char *text, bool remote);
    /* The session has lost its connection and may resume; or it has resumed. */
    void (*on_attached)(void *arg, uint64_t session, uint64_t peer_epoch, bool attached);
};

struct td_link_nng_params {
    struct td_loop *loop;          /* borrowed */
    struct td_link_params link;    /* jitter_seed 0: drawn */
    const struct td_link_ops *ops; /* borrowed */
    void *arg;
    int64_t resolve_every_us; /* DNS names; 0: 5 s */
};

td_err td_link_nng_create(const struct td_link_nng_params *p,
                          struct td_link_nng **out_links) TD_MUST_CHECK;
/* Drops everything at once, without a word to the peers; waits only for NNG's callbacks. NULL is
 * fine. */
struct td_link_nng *td_link_nng_destroy(struct td_link_nng *n);
/* Says good-bye to all peers (their sessions end at once), stops listening and dialing.
 * td_link_nng_idle() becomes true when the words have left, or after TD_LINK_T_LINGER_US. */
void td_link_nng_close(struct td_link_nng *n, td_err reason);
bool td_link_nng_idle(const struct td_link_nng *n);

/* "tcp://127.0.0.1:8101", "tcp://[::1]:0", "ipc:///run/tandem/p0.sock". Port 0 picks a free one. */
td_err td_link_nng_listen(struct td_link_nng *n, const char *url) TD_MUST_CHECK;
/* The address of the i-th listener with its real port; "" when there is none. */
const char *td_link_nng_listen_url(const struct td_link_nng *n, unsigned i);
/* A fixed address (numeric host or ipc), or "tcp://name:port": then one connection to each address
 * of the name, which is looked up every resolve_every_us; an address that disappears is kept while
 * its session lives. */
td_err td_link_nng_dial(struct td_link_nng *n, const char *url) TD_MUST_CHECK;

/* See td_link_send(). Bytes leave at the end of this pass of the loop, together. */
td_err td_link_nng_send(struct td_link_nng *n, uint64_t session, uint64_t key, const uint8_t *data,
                        size_t len) TD_MUST_CHECK;
/* Ends a session here and at the peer; no on_lost here. A router dials again after the backoff. */
void td_link_nng_drop(struct td_link_nng *n, uint64_t session, td_err reason);
/* The session machine, for td_link_stats(), td_link_session_by_epoch(), td_link_set_info(),
 * td_link_set_keys(). */
struct td_link *td_link_nng_core(struct td_link_nng *n);

#endif
