/* link_net.h - test harness: several td_link ends on a seeded network of byte pipes in virtual
 * time. Pipes cut the bytes anywhere, delay them, and may be reset, so that everything in flight is
 * gone. Only for the link tests. */
#ifndef TEST_LINK_NET_H
#define TEST_LINK_NET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rng.h"
#include "common/io/link_session.h"

#define NET_ENDS  4
#define NET_PIPES 64
#define NET_LOG   64

struct net_end {
    struct td_link *link;
    bool listens;
    uint32_t dials[8]; /* target -> end */
    /* what happened */
    unsigned ups, losts, resumes, detaches, refusals, messages;
    uint64_t session;            /* of the last UP */
    uint64_t sessions[NET_ENDS]; /* by peer: end whose epoch is 1000 + end */
    td_err lost_err, refused_err;
    bool refused_remote;
    char text[TD_LINK_TEXT], peer_name[TD_LINK_MAX_NAME + 1], info[256];
    void (*on_message)(void *arg, struct net_end *e, const struct td_link_action *a);
    void *arg;
};

struct net_pipe {
    bool used;
    int end[2];
    uint64_t conn[2];   /* 0: that side is closed */
    struct td_buf q[2]; /* bytes towards side i */
    int64_t at[2];      /* when they may be delivered */
    bool owes_wrote[2]; /* a WRITE of side i is being written */
};

struct net {
    struct td_rng rng;
    int64_t now;
    struct net_end ends[NET_ENDS];
    struct net_pipe pipes[NET_PIPES];
    bool cut;     /* nobody can connect, nothing arrives */
    bool refused; /* connecting is refused at once */
    int64_t delay_us;
    uint64_t bytes;                                                /* carried */
    void (*tap)(struct net *n, int to, uint8_t *data, size_t len); /* may change bytes in flight */
};

#define NET_SECRET "a cluster secret of some length"

/* Traffic: numbered messages whose content can be checked. */
#define NET_KEYS 5

struct traffic {
    struct td_rng rng;
    uint64_t sent[NET_KEYS], got[NET_KEYS]; /* next number, by order key */
    uint64_t n_sent, n_got, bytes;
    size_t max_len;
    unsigned bad;
};

void net_nonce(struct net *n, uint8_t out[TD_LINK_NONCE]);
/* Every pipe breaks; what was in flight is gone. */
void net_reset_all(struct net *n);
/* Writes an action down in its end. */
void net_note(struct net *n, int end, const struct td_link_action *a);
/* Carries out what this end wants now. */
void net_drain(struct net *n, int end);
/* Time moves to the next thing that happens (at most to `until`), and it happens. False: nothing
 * before. */
bool net_step(struct net *n, int64_t until);
void net_run(struct net *n, int64_t us);
struct td_link_key net_key(const char *id, const char *secret);
struct td_link_params net_params(enum td_link_role role, uint64_t epoch, const char *name,
                                 const char *info);
void net_init(struct net *n, uint64_t seed);
void net_fini(struct net *n);
void net_start(struct net *n, int end, const struct td_link_params *p);
/* The process of this end dies: its pipes are closed, its link is gone. */
void net_kill(struct net *n, int end);
/* End `from` (a router) dials end `to`. */
void net_target(struct net *n, int from, int to);
/* Router 0 and node 1, connected. */
void net_pair(struct net *n, uint64_t seed);
/* An on_message of struct net_end; arg is a struct traffic. */
void net_check_message(void *arg, struct net_end *e, const struct td_link_action *a);
/* Sends the next message of a random key. */
void net_send_one(struct net *n, int from, uint64_t session, struct traffic *t);

#endif
