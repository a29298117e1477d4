/* link_int.h - the inside of struct td_link, shared by link_session.c (sessions, targets, actions),
 * link_conn.c (connections and frames) and link_handshake.c. Private to these files.
 *
 * A connection carries at most one session at a time; a session outlives its connections. Objects
 * are slots in fixed arrays; handles are {generation, slot + 1}. Every object has one timer in the
 * heap, whose time is a lower bound: when it fires, the real deadline is computed again, so that
 * traffic moves no timers. */
#ifndef TD_IO_LINK_INT_H
#define TD_IO_LINK_INT_H

#include "common/base/buf.h"
#include "common/base/heap.h"
#include "common/io/link_frame.h"
#include "common/io/link_queue.h"
#include "common/io/link_session.h"

#define LINK_NONE UINT32_MAX

struct link_timer {
    struct td_heap_node node;
    enum { LINK_T_CONN, LINK_T_SESSION, LINK_T_TARGET } kind;
    uint32_t slot;
};

enum conn_state {
    CONN_FREE,
    CONN_HELLO,     /* listener: nothing heard yet */
    CONN_CHALLENGE, /* dialer: HELLO sent */
    CONN_PROVE,     /* listener: CHALLENGE sent */
    CONN_ACCEPT,    /* dialer: PROVE sent */
    CONN_READY,     /* listener: ACCEPT sent; the dialer may still refuse */
    CONN_OPEN,
    CONN_FLUSH,   /* last words under way, input ignored */
    CONN_CLOSING, /* CLOSE was or will be given; waits for td_link_conn_closed() */
    CONN_STATES
};

struct link_conn {
    enum conn_state state;
    uint32_t generation, slot;
    uint32_t target;  /* slot or LINK_NONE */
    uint32_t session; /* slot or LINK_NONE */
    bool writing;     /* a WRITE is out */
    bool close_told;
    bool dirty; /* in the list of connections to look at */
    uint32_t next_dirty;
    int64_t opened_us, deadline_us;
    struct link_timer timer;
    struct td_buf rx; /* a frame that has not arrived whole, or one whose message is being read */
    bool rx_used;     /* rx holds a frame that was handled: clear before the next byte */
    uint8_t *out;     /* owned [link.out_cap]; NULL before the slot's first connection */
    size_t out_len;   /* bytes made */
    size_t out_told;  /* of them given to WRITE */
    struct td_mac *mac_out, *mac_in; /* owned, made at the first handshake of the slot */
    uint64_t count_out, count_in;    /* frames under the key so far: part of what the MAC covers */
    bool keyed;
    /* of the handshake */
    const struct td_link_key *key; /* in link.keys; valid until CHALLENGE is over */
    uint8_t nonce[TD_LINK_NONCE];
    uint8_t hello[LINK_MAX_HELLO];
    size_t hello_len;
    uint64_t peer_epoch, session_id, peer_received;
    uint64_t resume; /* handle of the session to resume, 0: a new one */
};

enum session_state {
    SESSION_FREE,
    SESSION_WAIT, /* listener: made, the dialer has not confirmed; the owner does not know of it */
    SESSION_UP,   /* has an open connection */
    SESSION_DETACHED,
};

struct link_session {
    enum session_state state;
    uint32_t generation, slot;
    uint32_t conn, target;          /* slots or LINK_NONE */
    uint64_t id, peer_epoch, order; /* order: sessions count up */
    char peer_name[TD_LINK_MAX_NAME + 1];
    struct td_buf info;
    void *user; /* the owner's */
    struct link_timer timer;
    int64_t heard_us, sent_us, ack_due_us, lost_at_us;
    /* receiving */
    uint64_t received; /* number of the last data frame taken */
    uint32_t owed_frames, owed_bytes;
    bool ack_now;
    struct td_buf big;  /* a cut message being put together */
    uint32_t big_total; /* 0: none */
    /* sending */
    struct link_queue queue;
    uint64_t emitted; /* highest frame ever put on a connection */
    struct td_link_session_stats stats;
};

struct link_target {
    bool used, removed, dialing, due, dirty;
    uint32_t next_dirty;
    uint32_t conn, session; /* slots or LINK_NONE */
    uint32_t attempts, refusals;
    struct link_timer timer;
};

/* A lasting action waiting to be fetched, with the memory of its texts. */
struct link_event {
    struct td_link_action action;
    char text[TD_LINK_TEXT];
    char name[TD_LINK_MAX_NAME + 1];
    uint32_t info_session; /* UP: whose info to point at */
};

struct td_link {
    enum td_link_role role;
    uint64_t epoch, features, jitter_seed, draws;
    char name[TD_LINK_MAX_NAME + 1];
    struct td_buf info;
    struct td_link_key keys[TD_LINK_MAX_KEYS];
    uint32_t n_keys;
    td_link_check_fn check;
    void *check_arg;
    int64_t t_beat, t_dead, t_handshake, t_linger, t_ack, backoff_min, backoff_max;
    struct link_queue_limits limits;
    uint32_t max_sessions, max_pending, max_targets, max_conns;
    size_t out_cap, info_cap;
    int64_t now; /* of the current call */
    struct link_conn *conns;
    struct link_session *sessions;
    struct link_target *targets;
    struct td_heap *timers;
    struct link_event *events; /* ring [max_events] */
    uint32_t max_events, event_head, event_count;
    uint32_t dirty_conns, dirty_targets; /* lists */
    uint64_t orders;
    struct {
        uint64_t conn; /* handle; 0: no input */
        const uint8_t *data;
        size_t len;
    } in;
    struct {
        uint64_t session; /* handle; 0: none */
        const uint8_t *data;
        size_t len;
    } message;        /* found, not fetched yet */
    uint8_t *scratch; /* owned [TD_LINK_MAX_FRAME] for handshake bodies */
    struct td_link_stats stats;
};

static inline uint64_t link_handle(uint32_t generation, uint32_t slot)
{
    return (uint64_t)generation << 32 | (slot + 1);
}
struct link_conn *link_conn_of(struct td_link *l, uint64_t handle);
struct link_session *link_session_of(const struct td_link *l, uint64_t handle);

/* link_conn.c */
void link_conn_dirty(struct td_link *l, struct link_conn *c);
void link_conn_deadline(struct td_link *l, struct link_conn *c, int64_t at_us);
/* Appends a frame; under the session key when there is one. False when it does not fit (never in a
 * handshake). */
bool link_conn_put(struct td_link *l, struct link_conn *c, const struct link_frame *f);
void link_conn_put_reason(struct td_link *l, struct link_conn *c, uint8_t type, td_err e,
                          const char *text);
/* True when the frame carries the next tag of this direction. */
bool link_conn_verify(struct link_conn *c, const struct link_frame *f);
/* Takes its session away (DETACHED or gone) and gives CLOSE. */
void link_conn_kill(struct td_link *l, struct link_conn *c);
/* Lets what was put leave, then CLOSE. */
void link_conn_flush(struct td_link *l, struct link_conn *c);
void link_conn_timer(struct td_link *l, struct link_conn *c);
/* Next action of a connection that is dirty. */
bool link_conn_action(struct td_link *l, struct link_conn *c, struct td_link_action *out);
/* Handles input until a message or an event appears, or input ends. */
void link_conn_parse(struct td_link *l);
void link_conn_release_rx(struct td_link *l);

/* link_handshake.c */
void link_handshake_start(struct td_link *l, struct link_conn *c); /* dialer: HELLO */
void link_handshake_frame(struct td_link *l, struct link_conn *c, const struct link_frame *f);

/* link_session*.c */
struct link_event *link_event_add(struct td_link *l, enum td_link_action_type type);
void link_refused(struct td_link *l, const struct link_conn *c, td_err e, const char *text,
                  bool remote);
struct link_session *link_session_new(struct td_link *l);
void link_session_free(struct td_link *l, struct link_session *s);
void link_session_attach(struct td_link *l, struct link_session *s, struct link_conn *c);
void link_session_detach(struct td_link *l, struct link_session *s);
void link_session_lost(struct td_link *l, struct link_session *s, td_err e, const char *text);
/* Both ends agree: UP for a new session, RESUMED for an old one. */
void link_session_opened(struct td_link *l, struct link_session *s, bool resumed);
/* A frame left: it acknowledged everything, and counts as a heartbeat. */
void link_session_sent(struct td_link *l, struct link_session *s);
void link_session_frame(struct td_link *l, struct link_session *s, const struct link_frame *f);
struct link_session *link_session_find(struct td_link *l, uint64_t peer_epoch);
/* True when the peer can have received frames up to `seq`. */
bool link_session_can_resume(const struct link_session *s, uint64_t received);
/* Time for a DIAL action. */
void link_target_due(struct td_link *l, uint32_t slot);
/* Sets an object's timer; TD_NEVER stops it. */
void link_arm(struct td_link *l, struct link_timer *t, int64_t at_us);
void link_target_retry(struct td_link *l, struct link_target *t, bool at_once);
/* After a refusal: not before a second. */
void link_target_slow(struct link_target *t);

#endif
