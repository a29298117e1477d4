/* link_session.h - the control links of one process as a pure state machine: sessions that survive
 * their connections.
 *
 * What: takes connections (opened, bytes, closed), messages to send and time; gives back actions:
 * dial, write these bytes, close, session up, message, session lost, refused. The production shell
 * (link_nng.h) and the simulator drive the same object, for routers (which dial targets) and for
 * nodes (which accept).
 * Promises: messages of one session arrive once, in the order of sending within a key, over any
 * number of connection resets shorter than T_dead; otherwise both ends see LOST. Both ends prove
 * the cluster secret; every later frame carries an HMAC over a per-connection counter, so nothing
 * can be forged, replayed, cut or reordered unseen.
 * Not: sockets, threads, clocks, randomness (nonces and the jitter seed are handed in), protobuf.
 *
 *     td_link_conn_bytes(l, now, conn, data, len);        // any input, then:
 *     while (td_link_next(l, now, &a)) { carry out a }    // `a` is valid until the next call
 *     arm a timer for td_link_next_deadline(l), which calls td_link_tick(l, now)
 *
 * Owner: shell or simulator. Thread: its owner's. Inputs may be called while carrying out an action
 * (td_link_send inside MESSAGE is normal); td_link_next and td_link_conn_bytes may not.
 * Bounds: TD_LINK_MAX_* and struct td_link_params. Memory is taken at creation, and by a slot's
 * first use; send queues and reassembly buffers grow up to queue_bytes and max_message.
 * Failure: a bad connection is closed, a session that breaks the protocol is lost; never an abort
 * on peer input. The bytes on the wire: docs/wire.md.
 */
#ifndef TD_IO_LINK_SESSION_H
#define TD_IO_LINK_SESSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

#define TD_LINK_VERSION_MIN   1
#define TD_LINK_VERSION_MAX   1
#define TD_LINK_FRAME_PAYLOAD 65536u /* bigger messages are cut, and interleaved with small ones */
/* After the length field; checked before a byte is kept. */
#define TD_LINK_MAX_FRAME   (66u * 1024)
#define TD_LINK_MAX_MESSAGE (16u << 20)
#define TD_LINK_MAX_INFO    60000u
#define TD_LINK_MAX_NAME    128
#define TD_LINK_MAX_KEYS    8
#define TD_LINK_KEY_ID      32 /* bytes with the terminating zero */
#define TD_LINK_SECRET_MIN  16
#define TD_LINK_SECRET_MAX  64
#define TD_LINK_NONCE       32
#define TD_LINK_TEXT        512

/* Unscaled times; params.time_scale multiplies all of them. */
#define TD_LINK_T_BEAT_US 5000000 /* send something at least this often */
/* Silence that kills, and how long a session waits for a new connection. */
#define TD_LINK_T_DEAD_US      10000000
#define TD_LINK_T_HANDSHAKE_US 3000000
#define TD_LINK_T_LINGER_US    1000000 /* for the last bytes of a refused connection */
#define TD_LINK_T_ACK_US       20000
#define TD_LINK_BACKOFF_MIN_US 100000
#define TD_LINK_BACKOFF_MAX_US 3000000

#define TD_LINK_REFUSALS  2
#define TD_LINK_NO_TARGET UINT32_MAX

enum td_link_role { TD_LINK_ROUTER = 1, TD_LINK_NODE = 2 };

struct td_link_key {
    char id[TD_LINK_KEY_ID]; /* names the secret on the wire, e.g. "2026-11" */
    uint8_t secret[TD_LINK_SECRET_MAX];
    uint32_t secret_len;
};

/* Says whether the peer fits, from its info bytes (the owner's format: td_wire_router_info or
 * td_wire_node_info). TD_OK, or a reason (TD_ERR_PEER_VERSION, TD_ERR_PEER_MODEL, ...) and `text`
 * that names both sides' values: both ends get them as REFUSED. */
typedef td_err (*td_link_check_fn)(void *arg, uint64_t peer_epoch, const uint8_t *info,
                                   size_t info_len, char *text, size_t text_cap);

struct td_link_params {
    enum td_link_role role;
    uint64_t epoch;      /* of this process, nonzero */
    const char *name;    /* copied; identifies the peer across restarts */
    const uint8_t *info; /* copied; what the other side's check sees; at most TD_LINK_MAX_INFO */
    size_t info_len;
    const struct td_link_key
        *keys; /* copied; the first one is used for dialing, all are accepted */
    uint32_t n_keys;
    td_link_check_fn check; /* NULL: everything fits */
    void *check_arg;
    uint64_t features;     /* feature bits of this build, told to the peer */
    uint64_t jitter_seed;  /* spreads redials; the simulator gives the run's */
    double time_scale;     /* 1.0; 0 means 1.0 */
    uint32_t max_sessions; /* 0: 64 */
    uint32_t
        max_pending; /* connections before they are authenticated; the oldest gives way. 0: 64 */
    uint32_t max_targets;   /* router; 0: 64 */
    uint32_t frame_payload; /* cut messages here; 0: TD_LINK_FRAME_PAYLOAD */
    uint32_t window_bytes;  /* sent and not acknowledged, per session: the credit. 0: 1 MiB */
    uint32_t window_frames; /* 0: 1024; rounded up to a power of two */
    uint32_t queue_bytes;   /* accepted by td_link_send and not acknowledged. 0: 32 MiB */
    uint32_t queue_msgs; /* waiting messages of one lane. 0: 16384; rounded up to a power of two */
};

struct td_link;

td_err td_link_create(const struct td_link_params *p, struct td_link **out_link) TD_MUST_CHECK;
struct td_link *td_link_destroy(struct td_link *l);
/* For sessions attached from now on. */
td_err td_link_set_info(struct td_link *l, const uint8_t *info, size_t len) TD_MUST_CHECK;
td_err td_link_set_keys(struct td_link *l, const struct td_link_key *keys,
                        uint32_t n) TD_MUST_CHECK;

/* ---- actions ---- */
enum td_link_action_type {
    TD_LINK_DIAL,  /* connect to `target`, then td_link_conn_open() or td_link_dial_failed() */
    TD_LINK_WRITE, /* write `bytes` to `conn`, then td_link_conn_wrote(); they stay valid until that
                      or conn_closed */
    TD_LINK_CLOSE, /* close `conn`, stop its I/O, then td_link_conn_closed() */
    TD_LINK_UP,    /* new session: peer_epoch, peer_name, target, bytes = the peer's info */
    TD_LINK_DETACHED, /* its connection is gone; it may resume within T_dead. Sending goes on into
                         the queue */
    TD_LINK_RESUMED,  /* it has a connection again; nothing lost, nothing doubled */
    TD_LINK_MESSAGE,  /* bytes */
    TD_LINK_LOST,     /* session is over: err, text. Its handle is dead */
    TD_LINK_REFUSED,  /* we refused a peer, or it refused us (remote): err, text; target or
                         TD_LINK_NO_TARGET */
};

struct td_link_action {
    enum td_link_action_type type;
    uint64_t session, conn;
    uint32_t target;
    uint64_t peer_epoch;
    const char *peer_name; /* UP, LOST, REFUSED: "" when not known */
    const uint8_t *bytes;
    size_t len;
    td_err err;
    const char *text;
    bool remote; /* REFUSED: the peer's decision */
    void *user;  /* of the session */
};

/* The next thing to do; false when there is nothing left for now. */
bool td_link_next(struct td_link *l, int64_t now_us, struct td_link_action *out);
/* When td_link_tick() must be called next; TD_NEVER: not at all. */
int64_t td_link_next_deadline(const struct td_link *l);
void td_link_tick(struct td_link *l, int64_t now_us);

/* ---- targets: whom a router dials ---- */
/* A DIAL action follows. TD_ERR_FULL at max_targets. */
td_err td_link_target_add(struct td_link *l, int64_t now_us, uint32_t *out_target) TD_MUST_CHECK;
/* Ends its session (LOST follows) and connection. The number is free for reuse after its CLOSE. */
void td_link_target_remove(struct td_link *l, int64_t now_us, uint32_t target);
void td_link_dial_failed(struct td_link *l, int64_t now_us, uint32_t target);
/* The host answered that nobody listens there. After TD_LINK_REFUSALS in a row the process is taken
 * for ended and its session is lost at once, without waiting for T_dead. */
void td_link_dial_refused(struct td_link *l, int64_t now_us, uint32_t target);

/* ---- connections ---- */
/* An established byte stream: dialed for `target`, or accepted (TD_LINK_NO_TARGET). `nonce` must be
 * fresh and unpredictable. TD_ERR_FULL: close the stream; TD_ERR_STALE: the target no longer wants
 * one. */
td_err td_link_conn_open(struct td_link *l, int64_t now_us, uint32_t target,
                         const uint8_t nonce[TD_LINK_NONCE], uint64_t *out_conn) TD_MUST_CHECK;
/* Bytes received, any cut. They are borrowed until td_link_next() has returned false. Dead handles
 * are ignored. */
void td_link_conn_bytes(struct td_link *l, int64_t now_us, uint64_t conn, const uint8_t *data,
                        size_t len);
/* All bytes of the last WRITE have been written. */
void td_link_conn_wrote(struct td_link *l, int64_t now_us, uint64_t conn);
/* The stream is gone (by itself, or after CLOSE): exactly once per connection; the handle is dead.
 */
void td_link_conn_closed(struct td_link *l, int64_t now_us, uint64_t conn);

/* ---- sessions ---- */
/* Queues one message (copied). `key`: messages with the same nonzero key keep their order even when
 * one of them is big; use td_link_key_of_work() for everything about one request. Small messages
 * overtake big ones of other keys. TD_ERR_FULL: the queue is at its bound (the peer does not
 * acknowledge); TD_ERR_TOO_LARGE; TD_ERR_CLOSED: dead handle. */
td_err td_link_send(struct td_link *l, int64_t now_us, uint64_t session, uint64_t key,
                    const uint8_t *data, size_t len) TD_MUST_CHECK;
/* Ends it here, tells the peer (its LOST says so). No LOST follows on this side. Dead handles are
 * ignored. */
void td_link_session_close(struct td_link *l, int64_t now_us, uint64_t session, td_err reason);
/* Session of this peer epoch, or 0. */
uint64_t td_link_session_by_epoch(const struct td_link *l, uint64_t peer_epoch);
/* The owner's pointer, given back in its actions. */
void td_link_session_set_user(struct td_link *l, uint64_t session, void *user);

struct td_link_session_stats {
    uint64_t frames_sent, frames_received, frames_resent, duplicates; /* data frames */
    uint64_t bytes_sent, bytes_received;                              /* of messages */
    uint64_t resumes;
    uint64_t queued_bytes, unacked_bytes;
    bool attached;
    int64_t heard_us; /* last frame from the peer */
};
/* False for a dead handle. */
bool td_link_session_stats(const struct td_link *l, uint64_t session,
                           struct td_link_session_stats *out);

struct td_link_stats {
    uint32_t sessions, pending; /* now */
    uint64_t refused, bad_frames, handshake_timeouts, evicted, silences, lost;
};
void td_link_stats(const struct td_link *l, struct td_link_stats *out);

/* An order key for everything about one request. */
static inline uint64_t td_link_key_of_work(uint64_t router_epoch, uint64_t counter)
{
    uint64_t k = (router_epoch * 0x9e3779b97f4a7c15ull) ^ counter;
    return k != 0 ? k : 1;
}

#endif
