/* link_queue.h - the sending half of a session: messages wait in two lanes, are cut into numbered
 * frames, and stay until the peer has acknowledged them, so that they can be sent again on another
 * connection.
 *
 * Lane SMALL carries messages of one frame, lane BIG those that must be cut. SMALL goes first, but
 * BIG gets at least one frame in TD_LINK_BIG_EVERY, and may fill three quarters of the window only.
 * Order within a key: a small message whose key equals that of a message still waiting in BIG goes
 * to BIG as well; and a message in BIG waits for the small ones that were accepted before it.
 * Not: bytes on the wire, time.
 * Owner: link_session.c. Bounds: queue_bytes, queue_msgs, window_*.
 * Failure: TD_ERR_FULL, TD_ERR_NO_MEMORY from push only. */
#ifndef TD_IO_LINK_QUEUE_H
#define TD_IO_LINK_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_LINK_LANES     2
#define TD_LINK_LANE_BIG  1u
#define TD_LINK_BIG_EVERY 8
#define TD_LINK_KEEP      ((size_t)1 << 20) /* an empty lane keeps at most this much */

struct link_msg {
    uint64_t key;
    uint64_t after;     /* in BIG: goes when SMALL has been cut up to here */
    uint32_t len, done; /* done: bytes already cut */
};

struct link_lane {
    uint8_t *ring;            /* owned [cap] */
    size_t cap;               /* power of two, or 0 */
    uint64_t head, cut, tail; /* acknowledged <= cut into frames <= accepted */
    struct link_msg *msgs;    /* owned [max_msgs]: not yet cut to the end */
    uint32_t msg_head, msg_count;
};

/* A frame that was cut and is not acknowledged. */
struct link_slice {
    uint64_t at; /* in the lane */
    uint32_t len;
    uint32_t total; /* of the message */
    uint8_t lane;
    bool first, last;
};

struct link_queue_limits {
    size_t queue_bytes, window_bytes;
    uint32_t queue_msgs, window_frames; /* powers of two */
    uint32_t frame_payload;
};

struct link_queue {
    struct link_queue_limits lim;
    struct link_lane lanes[TD_LINK_LANES];
    struct link_slice *slices; /* owned [window_frames], slot = seq & mask */
    uint64_t base;             /* number of the first unacknowledged frame; frames count from 1 */
    uint64_t next_cut;         /* number that the next frame will get */
    uint64_t next_emit;        /* next frame to put on the connection */
    size_t unacked[TD_LINK_LANES];
    uint32_t small_run; /* frames of SMALL since the last of BIG */
};

td_err link_queue_init(struct link_queue *q, const struct link_queue_limits *lim) TD_MUST_CHECK;
void link_queue_fini(struct link_queue *q);
/* Forgets everything, keeps memory. */
void link_queue_reset(struct link_queue *q);
td_err link_queue_push(struct link_queue *q, uint64_t key, const uint8_t *data,
                       size_t len) TD_MUST_CHECK;
/* The frame to put on the connection next, cutting one when the window allows; NULL when there is
 * none. */
const struct link_slice *link_queue_peek(struct link_queue *q, uint64_t *out_seq);
/* The peeked frame went out. */
void link_queue_emitted(struct link_queue *q);
/* Copies a frame's bytes. */
void link_queue_copy(const struct link_queue *q, const struct link_slice *s, uint8_t *out);
/* The peer has everything up to `seq`. False when that was never sent. */
bool link_queue_ack(struct link_queue *q, uint64_t seq);
/* Everything not acknowledged goes out again, from the start. */
void link_queue_rewind(struct link_queue *q);
/* Accepted and not acknowledged. */
size_t link_queue_bytes(const struct link_queue *q);
size_t link_queue_unacked(const struct link_queue *q);

#endif
