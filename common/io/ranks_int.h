/* ranks_int.h - what the parts of a group of ranks share. Not for other modules.
 *
 * Parts: ranks.c (the group's life, who is gone), ranks_ucx.c (exchanges), ranks_join.c (waiting, the dialer's side),
 * ranks_lead.c (rank 0's side), ranks_conn.c (frames on a socket), ranks_frame.h (their bytes).
 * Owner and thread: while joining all of it is the main thread's. Afterwards UCX and `op` belong to whoever calls the
 * vtable, one at a time; `links` to whoever holds `lock`; `err` and `stats` are atomic.
 */
#ifndef TD_IO_RANKS_INT_H
#define TD_IO_RANKS_INT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ucp/api/ucp.h>

#include "common/base/buf.h"
#include "common/io/ranks_frame.h"
#include "common/io/ucx.h"

_Static_assert(RANK_MAX_ADDRESS == TD_UCX_MAX_ADDRESS, "every address fits into a frame");

#define RK_MAGIC  0x534b4e52u
#define RK_NONE   UINT32_MAX /* no rank */
#define RK_LOG_US 10000000   /* between two lines about who is missing */

/* ---- a connection (ranks_conn.c) ---- */

enum rk_state {
    RK_FREE,
    RK_DIALING,   /* dialer: connect() is under way */
    RK_CHALLENGE, /* dialer: said HELLO */
    RK_WELCOME,   /* dialer: said PROVE */
    RK_WAITING,   /* dialer: has its place; the others' addresses come */
    RK_HELLO,     /* rank 0: a stranger */
    RK_PROVE,     /* rank 0: said CHALLENGE */
    RK_JOINED,    /* rank 0: has its place */
    RK_READY,     /* both: endpoints are made */
    RK_LINGER,    /* both: was refused; reads the rest so that the refusal arrives */
    RK_UP,        /* the group stands */
    RK_LEFT       /* rank 0 has ended the group */
};

struct rk_conn {
    int fd; /* -1: free */
    enum rk_state state;
    uint32_t rank; /* of the other end; RK_NONE until it has proved it */
    int64_t deadline_us;
    char peer[64]; /* "127.0.0.1:5123" */
    char name[TD_LINK_MAX_NAME + 1];

    struct rank_hello hello; /* rank 0: the dialer's */
    const struct td_link_key *key;
    uint8_t hello_bytes[RANK_MAX_HELLO]; /* as sent: the keys cover them */
    size_t hello_len;
    struct td_mac *mac_in, *mac_out; /* owned */
    uint64_t count_in, count_out;
    bool keyed;
    bool loaded; /* rank 0: it has said so */

    uint8_t *address; /* owned; of its UCX worker */
    size_t address_bytes;

    uint8_t in[RANK_MAX_BYTES];
    size_t in_len;
    struct td_buf out;
};

enum rk_read { RK_READ_NOTHING, RK_READ_FRAME, RK_READ_CLOSED, RK_READ_BAD };

/* `fd` becomes the connection's: non-blocking, kept alive by TCP. */
void td__rk_conn_open(struct rk_conn *c, int fd, enum rk_state state);
void td__rk_conn_close(struct rk_conn *c);
/* One frame at most; its payload lies in the connection until the next call. Never more than that frame is taken from
 * the socket. The tag is not looked at. */
enum rk_read td__rk_conn_read(struct rk_conn *c, struct rank_frame *out);
/* Is its tag right? Counts. */
bool td__rk_conn_verify(struct rk_conn *c, const struct rank_frame *f);
/* Queues a frame, tagged if there are keys. False: out of memory. */
bool td__rk_conn_put(struct rk_conn *c, uint8_t type, const void *payload, size_t len);
/* Writes what the socket takes. False: the connection is broken. */
bool td__rk_conn_flush(struct rk_conn *c);
/* Keys from c->key, HELLO and CHALLENGE. */
bool td__rk_conn_set_keys(struct rk_conn *c, const uint8_t *challenge, size_t len, bool dialer);
/* Says why, and lingers. */
void td__rk_conn_refuse(struct rk_conn *c, td_err e, const char *why, int64_t now_us);

/* ---- the group ---- */

struct rk_op {
    struct rk_group *g;
    void *request; /* UCX's, while it is under way */
    bool busy;
    bool posting; /* its call into UCX has not returned */
    size_t bytes; /* of a receive: what must arrive */
    ucs_status_t status;
};

struct rk_peer {
    ucp_ep_h ep; /* NULL: closed, or ourselves */
    bool failed; /* UCX said so */
    char name[TD_LINK_MAX_NAME + 1];
};

struct rk_group {
    struct td_ranks base; /* first */
    uint32_t magic;
    int64_t wait_us;
    uint64_t id;          /* of this group, drawn by rank 0 */
    atomic_int err;       /* why the group is over; TD_OK: it is not */
    int stop_fd;          /* eventfd, readable once err is set */
    int watch_fd;         /* epoll over the links */
    pthread_mutex_t lock; /* leaf lock: links; a few system calls that do not block */
    bool has_lock;
    struct rk_conn
        *links[TD_RANKS_MAX]; /* owned; by rank: rank 0 has all others, they have rank 0 */
    atomic_bool ended;        /* rank 0 has said LEAVE */

    /* the caller's of the vtable */
    struct td_ucx ucx;
    bool open;  /* ucx is */
    bool spins; /* every rank of this host has a core */
    struct rk_peer peers[TD_RANKS_MAX];
    uint64_t seq[2]; /* by kind of message */
    struct rk_op sends[TD_RANKS_MAX], recvs[TD_RANKS_MAX], flush;
    uint32_t busy;        /* operations under way */
    uint32_t bad, failed; /* that failed; connections that did */
    uint32_t n_here;      /* of the peers: on this host */
    uint32_t busy_arms;

    _Atomic uint64_t exchanges, bytes_out, bytes_in, waited_us;
    const char *transport;
};

static inline struct rk_group *td__rk_of(struct td_ranks *r)
{
    return (struct rk_group *)(void *)r;
}

/* ranks.c */
/* Ends the group for good: logged once, told to the others, wakes whoever waits. `rank`: whose fault; RK_NONE: nobody's. */
void td__rk_fail(struct rk_group *g, td_err e, uint32_t rank, const char *why);
/* Reads what the links say, from any thread; the group may be over afterwards. */
void td__rk_listen(struct rk_group *g);

/* ranks_ucx.c */
extern const struct td_ranks_ops td__rk_ops;
td_err td__rk_connect(struct rk_group *g, uint32_t rank, const uint8_t *address, size_t n);
/* All endpoints are made: a first exchange, which shows that the data plane carries. */
td_err td__rk_first_exchange(struct rk_group *g);
/* Closes the endpoints, by force or after what was sent has left. */
void td__rk_close_endpoints(struct rk_group *g, bool force);
/* By force, and UCX too, which need not be open. */
void td__rk_disconnect(struct rk_group *g);

/* ranks_join.c */
struct rk_join {
    const struct td_rank_params *p;
    struct rk_group *g;
    int64_t start_us, deadline_us, log_us;
    int signal_fd;
};
/* Readable when SIGTERM or SIGINT, which td_signals_hold holds back, has come; -1 on failure. */
int td__rk_signal_fd(void);
/* Time, signals and the ten-seconds line: TD_OK, or why the joining is over. */
td_err td__rk_join_check(struct rk_join *j, int64_t now_us, const char *waits_for);
/* Milliseconds until then or the joining's next deadline. */
int td__rk_join_ms(const struct rk_join *j, int64_t now_us, int64_t until_us);
/* "host:port" and "[host]:port". */
td_err td__rk_split(const char *option, const char *address, char host[256], char port[8]);
/* On success the group's links and endpoints are made. */
td_err td__rk_dial(struct rk_join *j);
td_err td__rk_lead(struct rk_join *j); /* ranks_lead.c */

#endif
