/* xfer.h - the data plane: moves KV slices and small messages between nodes.
 *
 * What: the loop submits commands, one transfer thread (which owns the UCX worker) executes them,
 * events come back. The same commands and events are the simulator's and the tests' loopback's, so
 * the role cores never see UCX. Peers are named by their epoch. D dials P (CONNECT with P's worker
 * address, from the control link), P answers on the same connection; there is no listener. Message
 * path (TCP, shared memory, cma): one active message per layer and chunk (with cma it carries addresses and the receiver
 * reads the sender's memory), the receiving process places the bytes, so pool memory is never written by a peer and
 * UNLAND or CLOSE is a complete fence. The PUT path (RDMA, cuda_ipc) fills the same interface later: header, scatter list, done,
 * fence. Owner: node shell. Thread: td_xfer_* are the loop's, unless they say otherwise; never
 * block. Bounds: TD_XFER_MAX_*. Failure: a failed post or a lost peer is an event, never an exit.
 * Known limit: over shared memory without cma, UCX 1.13 cannot take back what waits for room in the queue of a process that
 * stands still (SIGSTOP, a frozen cgroup). A push to it may end only when that process goes on; when it is killed
 * instead, the push's blocks may stay quarantined as long as we live. The log says so.
 */
#ifndef TD_IO_XFER_H
#define TD_IO_XFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "proto/wire.h"

#define TD_XFER_MAX_PEERS  256
#define TD_XFER_MAX_LANDS  4096
#define TD_XFER_MAX_PUSHES 4096
#define TD_XFER_MAX_MSG    (8u << 20)

/* 128 bytes in front of every slice message; little endian; part of the wire and of the layout's
 * version. */
struct td_slice_header {
    uint32_t magic, version;
    uint64_t land; /* owner on D: TD_WIRE_TABLE.land */
    uint64_t p_epoch, d_epoch, layout_id;
    struct td_work_id id;
    uint32_t layer;
    uint32_t generation;            /* of the first block */
    uint32_t first_block, n_blocks; /* entries of the table */
    uint32_t chunk, flags;          /* flags 1: checksum is set */
    uint64_t bytes;
    uint64_t checksum;    /* of the payload, test mode only */
    uint64_t header_sum;  /* of these 128 bytes with this field 0: td_slice_header_sum() */
    uint8_t reserved[16]; /* zero */
};
_Static_assert(sizeof(struct td_slice_header) == 128, "slice header is part of the wire");
/* On the wire (UCX active messages, each naming its sender's endpoint for replies):
 *   1 HELLO    frame, the dialer's address      first on every connection; refused unless `to` is the receiver's epoch
 *   2 WELCOME  frame                            the answer
 *   3 MSG      frame, one message of tandem.wire.v1; delivered when the slices before it are in place
 *   4 BYE      frame                            the sender closes, or refuses a HELLO
 *   5 SLICE    struct td_slice_header, payload  one layer of n_blocks blocks, in the order of the table
 *   6 READS    frame                            the sender can read the receiver's memory: it takes slices by reference
 *   7 SLICE_AT struct td_slice_header, number of the offer (from 1), address of each piece: 8 bytes each   instead of SLICE
 *   8 TAKEN    frame, number: 8                 the receiver is done with every offer up to this one
 * A frame is {magic "TKFM": 4 bytes, version: 4, from, to: epochs, 8 each, payload bytes: 8}, little endian. An address is
 * {magic "TDKXADR2", hash of the rest: 8, length: 4, zero: 4, place} and UCX's worker address; a place is {boot and PID
 * namespace: 16, pid: 8, probe: 8}; at the probe lie the magic "TKFPROBE" and the process's epoch. */
#define TD_SLICE_MAGIC    0x4c534b54u /* "TKSL" */
#define TD_SLICE_VERSION  1u
#define TD_SLICE_CHECKSUM 1u /* flags: checksum is set */

enum td_xfer_cmd_type {
    TD_XFER_CONNECT,     /* dial peer `epoch` at `bytes` (its address); idempotent */
    TD_XFER_SEND,        /* one message, ordered after everything posted to that peer before */
    TD_XFER_LAND,        /* accept slices for `land` into `blocks`; before the table is sent */
    TD_XFER_UNLAND,      /* stop accepting; TD_XFER_UNLANDED when no byte can be written any more */
    TD_XFER_PUSH,        /* post one chunk's slices layer by layer as the engine finishes them */
    TD_XFER_PUSH_CANCEL, /* post nothing more of `push`; TD_XFER_PUSHED follows when posts have
                            ended */
    TD_XFER_CLOSE,       /* close the endpoint of peer `epoch`; TD_XFER_CLOSED when fenced */
};

struct td_xfer_cmd {
    enum td_xfer_cmd_type type;
    uint64_t epoch; /* the peer (all but UNLAND, PUSH_CANCEL) */
    uint64_t land;  /* LAND, UNLAND, PUSH: D's handle; nonzero. SEND: wait only for this land's
                       slices; 0: for all */
    uint64_t push;  /* PUSH, PUSH_CANCEL: P's handle, nonzero, new for each chunk */
    struct td_work_id id; /* LAND, PUSH */
    uint64_t layout_id;
    const uint8_t *bytes; /* CONNECT, SEND: copied by submit */
    size_t n_bytes;
    const struct td_block_ref
        *blocks; /* LAND: the table. PUSH: the destination's entries, for generations. Copied. */
    const uint32_t *src; /* PUSH: source block indices, n_blocks of them. Copied. */
    uint32_t n_blocks;
    uint32_t first_block; /* PUSH: table entry of blocks[0] */
    uint32_t chunk;       /* PUSH: number of the chunk, from 0 */
    uint64_t
        ticket; /* PUSH: engine step whose layers_done() gates the posts; 0: all layers are ready */
    uint32_t n_layers; /* LAND, PUSH */
};

enum td_xfer_event_type {
    TD_XFER_MSG,    /* a message from peer `epoch` */
    TD_XFER_LANDED, /* slices arrived for `land`: cumulative n_slices and n_bytes; at most one event
                       per poll and land */
    TD_XFER_LAND_BAD,  /* a slice for `land` did not verify: err */
    TD_XFER_UNLANDED,  /* fenced */
    TD_XFER_PUSHED,    /* push ended: err, n_bytes, first_post_us, last_done_us */
    TD_XFER_PEER_LOST, /* peer `epoch`: endpoint failed; its pushes have ended, its lands are still
                          to be fenced by UNLAND */
    TD_XFER_CLOSED,    /* peer `epoch`: fenced */
};

struct td_xfer_event {
    enum td_xfer_event_type type;
    uint64_t epoch, land, push;
    td_err err;
    const uint8_t *bytes;                /* MSG: borrowed until the next poll */
    size_t n_bytes;                      /* MSG: of bytes; LANDED, PUSHED: payload moved so far */
    uint32_t n_slices;                   /* LANDED */
    int64_t first_post_us, last_done_us; /* PUSHED, monotonic clock of this process */
    const char *transport;               /* PUSHED, LANDED: "tcp", "shm", "cma", ...; static */
};

struct td_xfer;
struct td_engine;

struct td_xfer_params {
    uint64_t epoch;                 /* ours */
    struct td_engine *engine;       /* slices are read from and written to its pool */
    const char *device;             /* --kv-device: UCX_NET_DEVICES, always set, e.g. "lo" */
    const char *transports;         /* --kv-transports: UCX_TLS, "" for the default list */
    uint32_t port_first, port_last; /* --kv-port-range; 0: any */
    bool trust_network;             /* --kv-trust-network: TCP beyond loopback */
    bool checksum;                  /* payload checksums (test mode) */
    int64_t
        fence_us; /* UNLAND waits so long for a slice under way, then closes its connection; 0: 3 s */
};

td_err td_xfer_create(const struct td_xfer_params *p, struct td_xfer **out_xfer) TD_MUST_CHECK;
/* Closes every endpoint, joins the thread. NULL is fine. */
struct td_xfer *td_xfer_destroy(struct td_xfer *x);
/* Our worker address, valid until destroy. */
void td_xfer_address(const struct td_xfer *x, const uint8_t **out_addr, size_t *out_len);
/* Queues a command; TD_ERR_FULL when the ring is full (retry after polling). */
td_err td_xfer_submit(struct td_xfer *x, const struct td_xfer_cmd *cmd) TD_MUST_CHECK;
/* False when nothing is waiting. */
bool td_xfer_poll(struct td_xfer *x, struct td_xfer_event *out);
/* Readable when td_xfer_poll has something. */
int td_xfer_event_fd(const struct td_xfer *x);
/* Transport in use towards a peer ("" when unknown). */
const char *td_xfer_transport(const struct td_xfer *x, uint64_t epoch);

/* Counters since creation, for metrics. Any thread; each is exact, together they are a snapshot. */
struct td_xfer_stats {
    uint64_t posts, post_bytes;         /* slice messages that ended well, and their payload */
    uint64_t post_failed;               /* slice messages that did not */
    uint64_t slices_in, slice_bytes_in; /* placed and verified */
    uint64_t msgs_out, msgs_in;
    uint64_t registrations;  /* of memory; 1 for the whole life, more is a defect */
    uint64_t connects, lost; /* endpoints made; endpoints that failed */
    uint64_t
        dropped; /* slices for a land nobody knows (any more), messages for a peer nobody knows */
    uint64_t refused;              /* malformed: short, wrong magic, lengths, ranges, sums */
    uint64_t stale;                /* another epoch, generation, attempt or connection */
    uint64_t peers, lands, pushes; /* alive now */
};
void td_xfer_stats_get(const struct td_xfer *x, struct td_xfer_stats *out);

/* What header_sum must be. */
uint64_t td_slice_header_sum(const struct td_slice_header *h);
/* The payload checksum over pieces in order: start with sum = 0. */
uint64_t td_slice_checksum(uint64_t sum, const void *piece, size_t n);

#endif
