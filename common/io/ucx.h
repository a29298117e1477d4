/* ucx.h - the one place that sets UCX up: context, worker, our own address format, and what its
 * errors mean.
 *
 * What: opens a context and one worker with the settings that design.md 3 and performance.md 4.2
 * ask for, wraps the worker's address so that garbage is refused before UCX parses it, names the
 * transport of an endpoint. Not: peers, messages, threads (xfer.c, ranks_ucx.c). Owner: these.
 * Thread: td_ucx_open on the creating thread; afterwards the worker belongs to the transfer thread alone, or, with
 * `tags`, to whoever makes a group's call.
 * Bounds: an address is at most TD_UCX_MAX_ADDRESS bytes. Failure: logged here with UCX's own text,
 * then returned.
 */
#ifndef TD_IO_UCX_H
#define TD_IO_UCX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

#include "common/base/err.h"

#define TD_UCX_MAX_ADDRESS 4096 /* TD_WIRE_MAX_ADDR: it travels in Attach */
#define TD_UCX_AM_HEADER   128  /* the largest active message header we send */

struct td_ucx_params {
    const char *device;             /* UCX_NET_DEVICES */
    const char *transports;         /* UCX_TLS; "" or NULL: UCX's default */
    uint32_t port_first, port_last; /* of TCP; 0: any */
    bool trust_network;
    void *pool; /* registered once; NULL: nothing to register */
    size_t pool_bytes;
    const void *probe; /* told to peers in our address: what td_ucx_place names */
    /* For ranks.h: tag messages instead of active ones, and a worker that may pass from thread to thread. */
    bool tags;
};

/* Where the process behind an address is: what a peer needs to read its memory (cma). */
struct td_ucx_place {
    uint8_t host[16]; /* boot and PID namespace: equal means that `pid` means the same process */
    uint64_t pid;
    uint64_t probe; /* address in that process */
};
_Static_assert(sizeof(struct td_ucx_place) == 32, "place is part of the wire");

struct td_ucx {
    ucp_context_h context; /* owned */
    ucp_worker_h worker;   /* owned */
    ucp_mem_h pool;        /* owned; NULL without */
    int event_fd;          /* the worker's, readable when it wants progress */
    uint8_t *address;      /* owned; wrapped: what peers give to td_ucx_connect */
    size_t address_bytes;
    struct td_ucx_place place; /* ours */
    uint32_t registrations;
};

td_err td_ucx_open(const struct td_ucx_params *p, struct td_ucx *out) TD_MUST_CHECK;
/* Every endpoint must have been closed. Idempotent; a zeroed struct is fine. */
void td_ucx_close(struct td_ucx *u);

/* Refuses a device that does not exist, and TCP beyond loopback without trust. */
td_err td_ucx_check_device(const char *device, const char *transports, bool trust) TD_MUST_CHECK;

/* An endpoint to a wrapped address in error mode peer. TD_ERR_ADDRESS: not an address of ours. */
td_err td_ucx_connect(struct td_ucx *u, const uint8_t *address, size_t n,
                      ucp_err_handler_t on_error, ucp_ep_h *out_ep) TD_MUST_CHECK;

/* Is it an address that a process of ours has wrapped? Says nothing about whether it can be reached. */
bool td_ucx_address_ok(const uint8_t *address, size_t n);
/* The place in a wrapped address; false: not an address of ours, or not of this host and PID namespace. */
bool td_ucx_place_here(const struct td_ucx *u, const uint8_t *address, size_t n,
                       struct td_ucx_place *out);
/* Is it in this list of transports? The default names nothing. */
bool td_ucx_names(const char *transports, const char *name);

/* What carries active messages of this endpoint: "tcp", "shm", "self", "rdma" or UCX's own name;
 * static. */
const char *td_ucx_transport(ucp_ep_h ep);

/* Translates and logs a failure ("what: UCX's text"). */
td_err td_ucx_error(const char *what, ucs_status_t status);
#define TD_UCX(what, call)                                                                         \
    do {                                                                                           \
        ucs_status_t td_ucx_status_ = (call);                                                      \
        if (td_ucx_status_ != UCS_OK) {                                                            \
            return td_ucx_error(what, td_ucx_status_);                                             \
        }                                                                                          \
    } while (0)

#endif
