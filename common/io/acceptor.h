/* acceptor.h - listens, and hands each accepted connection over as a bufferevent.
 *
 * What: the front door that HTTP and gRPC share: address, caps on connections (in all and per address), a pause
 * when descriptors run out, the peer's name, TCP's own keepalive.
 * Not: a protocol; what is said on the connection is its taker's. Owner: a server of common/io. Thread: loop.
 * Bounds: max_connections, max_per_address. Failure: creation fails with an error, logged; a refused connection is closed
 * and counted.
 */
#ifndef TD_IO_ACCEPTOR_H
#define TD_IO_ACCEPTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/io/loop.h"

struct bufferevent;
struct td_acceptor;
struct td_tls;

/* Who is at the other end; lives in the connection object of the taker. */
struct td_peer {
    uint8_t address[16];
    char name[64]; /* "127.0.0.1:5123" */
    struct td_peer *prev, *next;
};

struct td_acceptor_params {
    struct td_loop *loop;
    const char *host;   /* numeric address or "localhost"; never empty */
    uint16_t port;      /* 0: a free one */
    const char *option; /* that chose host and port, for the log; NULL: none */
    struct td_tls *tls; /* borrowed; NULL: cleartext */
    const char *alpn;   /* with tls: the protocol spoken here (tls.h) */
    uint32_t max_connections, max_per_address;
    /* Takes the connection: owns `bev` (not enabled yet), copies *who into its own object and returns the copy, which the
     * acceptor counts until td_acceptor_left. NULL: it could not, and has not taken bev. */
    struct td_peer *(*take)(void *arg, struct bufferevent *bev, const struct td_peer *who);
    void *arg;
};

td_err td_acceptor_create(const struct td_acceptor_params *p,
                          struct td_acceptor **out_acceptor) TD_MUST_CHECK;
struct td_acceptor *td_acceptor_destroy(struct td_acceptor *a);
uint16_t td_acceptor_port(const struct td_acceptor *a);
/* Accepts no more. */
void td_acceptor_stop(struct td_acceptor *a);
/* The connection has moved to another object: that one is counted from now on. */
void td_acceptor_join(struct td_acceptor *a, struct td_peer *who);
/* The connection is gone, or moves. */
void td_acceptor_left(struct td_acceptor *a, struct td_peer *who);
/* Everything is said: tells the other end (TLS, then TCP), which may still read. */
void td_acceptor_say_end(struct bufferevent *bev);
/* The other end has shown a certificate, and the CA of clients has signed it. */
bool td_acceptor_verified(struct bufferevent *bev);
/* Logs why TLS failed, when that is why a connection ended. */
void td_acceptor_log_error(struct bufferevent *bev, const struct td_peer *who);
uint32_t td_acceptor_open(const struct td_acceptor *a);
uint64_t td_acceptor_refused(const struct td_acceptor *a);

#endif
