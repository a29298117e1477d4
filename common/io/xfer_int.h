/* xfer_int.h - what the parts of the transfer object share: peers, lands, pushes, and who may touch
 * them.
 *
 * Parts: xfer.c (object, rings, thread), xfer_event.c (events out), xfer_peer.c (connections,
 * messages), xfer_push.c (slices out), xfer_land.c (slices in), xfer_ref.c (slices by reference). Not for other modules. Owner: all
 * of it belongs to the transfer thread once td_xfer_create returned, but for the rings,
 * `transports` and the counters. Thread: td__xf_* are td_xfer's. Bounds: XF_*. Failure: see each.
 */
#ifndef TD_IO_XFER_INT_H
#define TD_IO_XFER_INT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

#include "common/base/map.h"
#include "common/base/ring.h"
#include "common/base/thread.h"
#include "common/io/ucx.h"
#include "common/io/xfer.h"
#include "common/model/engine.h"

#define XF_RING_COMMANDS 8192
#define XF_RING_EVENTS   1024
#define XF_MAX_BACKLOG   8192 /* events beyond the ring: above it nothing is received */
#define XF_MAX_MSG_BYTES                                                                           \
    (64u << 20) /* of received messages the loop has not taken: likewise; twice that is the end */
#define XF_MAX_SENDS                                                                               \
    4 /* messages in flight to one peer: a long one ends when the receiver has fetched it */
#define XF_WINDOW        4       /* slice messages in flight to one peer */
#define XF_MAX_RECVS     1024    /* slices on their way into blocks */
#define XF_FENCE_US      3000000 /* receives of a land that ends: then their connection is closed */
#define XF_BYE_US        200000  /* a goodbye may take this long before the connection is closed */
#define XF_MAX_STRANGERS 64      /* being told goodbye; more of them are not answered */
#define XF_MAX_CONNECT   16      /* connections of one peer that died before their HELLO was seen */

/* Active message ids and the header of all but slices; little endian. */
enum xf_am {
    XF_AM_HELLO = 1,
    XF_AM_WELCOME,
    XF_AM_MSG,
    XF_AM_BYE,
    XF_AM_SLICE,
    XF_AM_READS,
    XF_AM_SLICE_AT,
    XF_AM_TAKEN,
    XF_AM_IDS
};
#define XF_AM_TABLE    16          /* ids with a handler; even; the unknown ones are refused */
#define XF_FRAME_MAGIC 0x4d464b54u /* "TKFM" */
struct xf_frame {
    uint32_t magic, version;
    uint64_t from, to; /* epochs */
    uint64_t n_bytes;  /* of the payload */
};
_Static_assert(sizeof(struct xf_frame) == 32, "frame header is part of the wire");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "headers are copied to the wire as they lie in memory");

/* What a peer that may read our memory finds at our place's probe. */
#define XF_PROBE_MAGIC 0x45424f5250464b54u /* "TKFPROBE" */
struct xf_probe {
    uint64_t magic, epoch;
};

/* An event on its way to the loop; lives in the object it is about, so that it cannot fail. */
struct xf_node {
    struct xf_node *next;
    struct td_xfer_event ev;
    void *give; /* memory that becomes the loop's with the event */
    void *drop; /* memory freed once the event is delivered */
    bool queued;
};

/* Record of the event ring. */
struct xf_record {
    struct td_xfer_event ev;
    void *owned; /* freed at the poll after */
};

/* A command; its copied arrays lie behind it in the same allocation. */
struct xf_cmd {
    struct td_xfer_cmd c;
    struct xf_cmd *next;
    struct xf_node node; /* its last event */
    uint64_t seq;        /* in the order of submission */
};

enum xf_send_stage { XF_SEND_NEW, XF_SEND_SLICES, XF_SEND_FLUSH };

struct xf_send {
    struct xf_cmd cmd;
    struct xf_peer *peer;
    struct xf_frame frame;
    enum xf_send_stage stage;
    uint64_t barrier; /* posts before this number must have ended */
    int64_t due_us;   /* fault point xfer.done.delay */
};

struct xf_push {
    struct xf_cmd cmd;
    struct xf_peer *peer;   /* NULL: none when it was submitted */
    uint32_t generation;    /* of the first block */
    uint32_t avail, posted; /* layers that may be, that have been posted */
    uint32_t inflight;
    uint64_t bytes_done;
    int64_t first_post_us, last_done_us;
    int64_t due_us; /* fault point xfer.slice.delay: the next post not before; 0: not drawn yet */
    td_err err;     /* post nothing more */
};

struct xf_land {
    struct xf_cmd cmd;
    struct xf_land *all_prev, *all_next;
    struct xf_node landed, bad;
    uint32_t n_recvs;
    bool ending;         /* UNLAND came */
    int64_t fence_at_us; /* ending: close the connection of what still receives */
    uint32_t n_slices;
    uint64_t n_bytes;
    int64_t first_us, last_us;
};

/* Something of a peer that must reach the loop in order of arrival. */
struct xf_in {
    struct xf_in *next;
    bool done, is_msg;
};

struct xf_msg {
    struct xf_in in;
    struct xf_peer *peer;
    struct xf_node node;
    size_t n_bytes;
    bool bad; /* receiving it failed: never delivered */
    uint8_t bytes[];
};

struct xf_recv {
    struct xf_in in;
    struct xf_recv *free_next;
    struct xf_peer *peer;
    struct xf_land *land;
    struct td_slice_header h;
    ucp_dt_iov_t *iov; /* owned; grows, is kept */
    uint32_t iov_cap;
};

/* One slice message in flight. */
struct xf_slot {
    struct xf_push *push; /* NULL: free */
    struct xf_peer *peer;
    uint64_t post_no;
    struct td_slice_header h;
    ucp_dt_iov_t *iov; /* owned; grows, is kept */
    uint32_t iov_cap;
    uint8_t *flip; /* owned; fault point kv.byte.flip: the altered copy of one slice */
    uint64_t *at;  /* owned; by reference: token, then the addresses of the pieces */
    uint32_t at_cap;
    uint64_t token;
    bool offered; /* by reference: ends when it is neither sending nor untaken */
    bool sending, taken;
};

/* The answer to offers: the last one that was dealt with. */
struct xf_taken {
    struct xf_frame frame;
    uint64_t sent;  /* in the message under way */
    uint64_t token; /* so far */
};

struct xf_peer {
    struct xf_peer *next;
    struct td_xfer *x;
    uint64_t epoch;
    ucp_ep_h ep; /* NULL: closed */
    bool known;  /* in the map; a stranger only gets its goodbye */
    bool dialed; /* by us */
    bool failed; /* ep reported an error: to be closed outside UCX's callback */
    bool dying, say_lost, say_closed;
    td_err why;          /* of the end */
    int64_t close_at_us; /* dying: when the connection is closed at the latest */
    bool stuck_logged;
    uint32_t n_requests; /* UCX operations of ours that have not ended */
    uint32_t n_recvs;
    struct xf_push *pushes; /* in order of submission */
    struct xf_send *sends, **sends_tail;
    uint32_t n_sends; /* in flight */
    struct xf_in *in, **in_tail;
    struct xf_slot slots[XF_WINDOW];
    uint64_t next_post_no;
    bool unflushed, flushing;
    int64_t link_free_us; /* xfer.slice.delay: the slow link is busy until */
    const char *transport;
    struct xf_node lost, closed;
    struct xf_frame hello; /* outgoing HELLO, WELCOME or BYE */
    struct xf_frame bye;

    /* xfer_ref.c */
    struct xf_frame reads; /* outgoing READS */
    int32_t pid;           /* of the peer whose memory we read; 0: we do not */
    bool by_ref;           /* it reads ours */
    uint64_t offers;       /* tokens given out */
    struct xf_taken taken;
    uint64_t answered;
    bool answering; /* an answer is under way */
};

struct xf_transport {
    uint64_t epoch; /* 0: free */
    const char *name;
};

struct td_xfer {
    uint32_t magic;
    uint64_t epoch;
    struct td_engine *engine; /* borrowed */
    const struct td_engine_info *info;
    uint8_t *pool;
    bool checksum;
    bool refs; /* slices by reference are allowed */
    struct xf_probe probe;
    int64_t fence_us;
    struct td_ucx ucx;
    struct td_ring *commands; /* loop -> xfer: struct xf_cmd * */
    struct td_ring *events;   /* xfer -> loop: struct xf_record */
    pthread_t thread;
    bool started;
    bool stop; /* atomic */

    /* loop's */
    void *held; /* memory of the last polled message */
    size_t held_msg_bytes;
    uint64_t next_seq;

    /* both */
    pthread_mutex_t transports_lock;                   /* leaf lock; a few instructions */
    struct xf_transport transports[TD_XFER_MAX_PEERS]; /* under it */
    struct td_xfer_stats stats;                        /* relaxed atomics; written by xfer only */
    uint64_t msg_bytes; /* atomic: received messages that the loop has not let go */

    /* xfer's */
    int epoll_fd;
    struct td_map *peers;      /* epoch -> live peer */
    struct td_map *lands;      /* handle -> land */
    struct td_map *pushes;     /* handle -> push */
    struct xf_peer *peer_list; /* live and dying */
    struct xf_land *land_list; /* all of them */
    struct xf_land *ending;    /* lands being fenced; linked by cmd.next */
    struct xf_node *backlog, **backlog_tail;
    uint32_t backlog_len;
    struct xf_recv *recvs, *recv_free; /* owned [XF_MAX_RECVS] */
    uint32_t strangers;                /* in peer_list */
    uint32_t inflight;                 /* requests and receives: a reason to spin */
    uint32_t gated;     /* pushes that wait for the engine, counted by the last pump */
    int64_t wake_us;    /* earliest deadline seen by the last pump */
    uint32_t busy_arms; /* turns in a row without work in which UCX did not arm */
};

static inline struct td_key td__xf_key(uint64_t a)
{
    return (struct td_key){a, 0};
}

/* Relaxed: a counter orders nothing, and only this thread writes it. */
static inline void td__xf_count(uint64_t *counter, uint64_t n)
{
    __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

static inline void td__xf_wake_at(struct td_xfer *x, int64_t at_us)
{
    if (at_us < x->wake_us) {
        x->wake_us = at_us;
    }
}

static inline uint8_t *td__xf_slice(const struct td_xfer *x, uint32_t block, uint32_t layer)
{
    return x->pool + (size_t)block * x->info->layout.block_bytes +
           (size_t)layer * x->info->layout.slice_bytes;
}

/* xfer_event.c: queues a node (once; a queued one is left where it is), delivers what fits into the
 * ring. */
void td__xf_event(struct td_xfer *x, struct xf_node *n) TD_ON(td_xfer);
void td__xf_events_flush(struct td_xfer *x) TD_ON(td_xfer);
bool td__xf_backlogged(const struct td_xfer *x) TD_ON(td_xfer);
void td__xf_events_discard(struct td_xfer *x); /* also when the thread has ended */

/* xfer_peer.c */
td_err td__xf_peer_handlers(struct td_xfer *x);
td_err td__xf_handle(struct td_xfer *x, unsigned id, ucp_am_recv_callback_t cb);
struct xf_peer *td__xf_peer_find(struct td_xfer *x, uint64_t epoch) TD_ON(td_xfer);
struct xf_peer *td__xf_peer_by_ep(struct td_xfer *x, ucp_ep_h ep) TD_ON(td_xfer);
/* Names what moves the slices of this peer from now on; static text. */
void td__xf_peer_transport(struct xf_peer *p, const char *name) TD_ON(td_xfer);
/* A frame without worries about its life: `frame` and `data` stay valid as long as the peer and the worker. */
void td__xf_send_frame(struct xf_peer *p, enum xf_am id, struct xf_frame *frame, const void *data,
                       size_t n) TD_ON(td_xfer);
/* The live peer at this epoch and connection; counts a stale one. */
struct xf_peer *td__xf_peer_check(struct td_xfer *x, uint64_t epoch, uint64_t to,
                                  const ucp_am_recv_param_t *param) TD_ON(td_xfer);
/* The live peer that sent this frame; NULL: the frame is malformed or of no live connection, it was counted. */
struct xf_peer *td__xf_frame_peer(struct td_xfer *x, const void *header, size_t header_len,
                                  size_t len, const ucp_am_recv_param_t *param) TD_ON(td_xfer);
void td__xf_peer_connect(struct td_xfer *x, struct xf_cmd *cmd) TD_ON(td_xfer);
void td__xf_peer_close(struct td_xfer *x, struct xf_cmd *cmd) TD_ON(td_xfer);
/* Ends the connection; events follow from td__xf_peers_reap() once all of its operations have
 * ended. */
void td__xf_peer_end(struct xf_peer *p, td_err why, bool say_lost) TD_ON(td_xfer);
/* Closes what is to be closed and forgets whom nothing refers to any more. */
void td__xf_peers_reap(struct td_xfer *x, int64_t now_us) TD_ON(td_xfer);
void td__xf_peer_in_add(struct xf_peer *p, struct xf_in *in) TD_ON(td_xfer);
void td__xf_peer_in_advance(struct xf_peer *p) TD_ON(td_xfer);
/* Frees one that nothing refers to any more. */
void td__xf_peer_free(struct xf_peer *p);

/* xfer_push.c */
void td__xf_push_start(struct td_xfer *x, struct xf_push *push) TD_ON(td_xfer);
void td__xf_push_cancel(struct td_xfer *x, struct xf_cmd *cmd) TD_ON(td_xfer);
void td__xf_push_end(struct td_xfer *x, struct xf_push *push)
    TD_ON(td_xfer); /* nothing in flight: emits PUSHED */
void td__xf_posted(struct xf_slot *s, ucs_status_t status)
    TD_ON(td_xfer); /* the slot's slice has ended */
void td__xf_send_start(struct td_xfer *x, struct xf_send *send) TD_ON(td_xfer);
/* Posts what may be posted; true when it did something. */
bool td__xf_peer_pump(struct xf_peer *p, int64_t now_us) TD_ON(td_xfer);

/* xfer_land.c */
td_err td__xf_land_handlers(struct td_xfer *x);
void td__xf_land_start(struct td_xfer *x, struct xf_land *land) TD_ON(td_xfer);
void td__xf_land_end(struct td_xfer *x, struct xf_cmd *cmd) TD_ON(td_xfer);
void td__xf_lands_reap(struct td_xfer *x, int64_t now_us) TD_ON(td_xfer);
/* The land (and the live peer) that a slice of so many bytes is for, checked; NULL: there is none, it was counted and
 * told. */
struct xf_land *td__xf_land_for(struct td_xfer *x, const struct td_slice_header *h, size_t len,
                                const ucp_am_recv_param_t *param, struct xf_peer **out_peer)
    TD_ON(td_xfer);
uint8_t *td__xf_land_target(const struct td_xfer *x, const struct xf_land *l,
                            const struct td_slice_header *h, uint32_t i);
/* The bytes lie in the land's blocks: verifies and counts them. */
void td__xf_land_arrived(struct td_xfer *x, struct xf_land *l, const struct xf_peer *p,
                         const struct td_slice_header *h) TD_ON(td_xfer);
void td__xf_land_bad(struct td_xfer *x, struct xf_land *l, td_err e) TD_ON(td_xfer);
/* Pure: does this header belong to this land? Ranges, identity, generation, byte count. */
td_err td__xf_land_verify(const struct xf_land *land, const struct td_slice_header *h, size_t len,
                          uint32_t slice_bytes);

/* xfer_ref.c */
td_err td__xf_ref_handlers(struct td_xfer *x);
/* Tells a peer at this address that we can read its memory, if we can. */
void td__xf_ref_greet(struct xf_peer *p, const uint8_t *address, size_t n) TD_ON(td_xfer);
/* A filled slot's addresses; then its offer. */
td_err td__xf_ref_fill(struct xf_slot *s);
void td__xf_ref_post(struct xf_slot *s) TD_ON(td_xfer);
/* The connection is closed: offers end untaken. */
void td__xf_ref_lost(struct xf_peer *p) TD_ON(td_xfer);

/* destroy: after the worker is gone, frees every land, peer and push that is left. */
void td__xf_objects_free(struct td_xfer *x);

/* Grows a scatter list; TD_ERR_NO_MEMORY leaves it as it was. */
td_err td__xf_iov_reserve(ucp_dt_iov_t **iov, uint32_t *cap, uint32_t n);

#endif
