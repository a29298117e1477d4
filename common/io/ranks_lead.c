#define TD_LOG_ROOM "io"
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/port_file.h"
#include "common/io/port_owner.h"
#include "common/io/ranks_int.h"

/* Design: rank 0's side of the joining (the frames: ranks_join.c). One poll() over the listening socket and all
 * connections. A stranger has TD_RANK_HELLO_US to prove itself; while TD_RANK_MAX_STRANGERS of them are open nobody
 * is accepted, newcomers wait in the kernel. What is wrong with a connection closes that connection only. Once all
 * places are taken the list goes out, and from then on a lost rank ends the joining: the others have endpoints to it. */

#define MAX_CONNS (TD_RANK_MAX_STRANGERS + TD_RANKS_MAX)
#define BACKLOG   64
#define PAUSE_US  100000

struct lead {
    struct rk_join *j;
    int listen_fd;
    struct rk_conn *conns[MAX_CONNS]; /* owned */
    uint32_t n_conns;
    struct rk_conn *by_rank[TD_RANKS_MAX]; /* borrowed of conns: they have proved themselves */
    uint32_t n_joined, n_ready;
    bool listed;       /* the list has gone out */
    int64_t accept_us; /* not before: the process has no descriptors left */
    char missing[256];
};

/* ---- listening ---- */

/* The first of the addresses that takes a listener. */
static td_err open_listener(struct lead *l, const struct addrinfo *a)
{
    int on = 1;
    for (; a != NULL; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            continue;
        }
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) {
            l->listen_fd = fd;
            return TD_OK;
        }
        int err = errno;
        (void)close(fd);
        errno = err; /* for the log */
    }
    return TD_ERR_ADDRESS;
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in6 a = {0}; /* the port lies at the same place in both families */
    socklen_t len = sizeof a;
    return getsockname(fd, (struct sockaddr *)&a, &len) == 0 ? ntohs(a.sin6_port) : 0;
}

static bool print_port(const void *arg, FILE *f)
{
    const struct lead *l = arg;
    return fprintf(f, "ranks %u\n", port_of(l->listen_fd)) > 0;
}

static void log_cannot_listen(const char *address, const char *port, int rc, int err)
{
    char owner[64] = "";
    if (rc == 0 && err == EADDRINUSE) {
        td_port_owner((uint16_t)strtoul(port, NULL, 10), owner, sizeof owner);
    }
    TD_LOG(ERROR, "cannot listen for ranks, see --rank-listen",
           "address=%s why=\"%s\" held_by=\"%s\"", address,
           rc != 0 ? gai_strerror(rc) : strerrordesc_np(err), owner);
}

static td_err start_listening(struct lead *l)
{
    const struct td_rank_params *p = l->j->p;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    char host[256], port[8];
    TD_TRY(td__rk_split("--rank-listen", p->listen, host, port));
    int rc = getaddrinfo(host, port, &hints, &list);
    td_err e = rc == 0 && list != NULL ? open_listener(l, list) : TD_ERR_ADDRESS;
    int err = errno;
    if (list != NULL) {
        freeaddrinfo(list);
    }
    if (e != TD_OK) {
        log_cannot_listen(p->listen, port, rc, err);
        return e;
    }
    TD_LOG(INFO, "listening for ranks", "address=%s port=%u n=%u", p->listen, port_of(l->listen_fd),
           p->n);
    return td_port_file_write(p->port_file, print_port, l);
}

/* ---- connections ---- */

static uint32_t strangers(const struct lead *l)
{
    return l->n_conns - l->n_joined;
}

static void name_peer(struct rk_conn *c, const struct sockaddr_storage *a, socklen_t len)
{
    char host[48] = "?", port[8] = "0";
    (void)getnameinfo((const struct sockaddr *)a, len, host, sizeof host, port, sizeof port,
                      NI_NUMERICHOST | NI_NUMERICSERV);
    (void)snprintf(c->peer, sizeof c->peer, strchr(host, ':') != NULL ? "[%s]:%s" : "%s:%s", host,
                   port);
}

static bool accept_one(struct lead *l, int64_t now)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    if (strangers(l) == TD_RANK_MAX_STRANGERS || now < l->accept_us) {
        return false;
    }
    int fd = accept4(l->listen_fd, (struct sockaddr *)&a, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ECONNABORTED) {
        TD_LOG(WARN, "cannot accept a rank, trying again in 100 ms", "errno=%d", errno);
        l->accept_us = now + PAUSE_US;
    }
    struct rk_conn *c = fd >= 0 ? td_zalloc(1, sizeof *c) : NULL;
    if (c == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return false;
    }
    td__rk_conn_open(c, fd, RK_HELLO);
    c->deadline_us = now + TD_RANK_HELLO_US;
    name_peer(c, &a, len);
    l->conns[l->n_conns++] = c;
    return true;
}

/* Frees its place, too. The connection itself goes when the loop comes to it. */
static void drop(struct lead *l, struct rk_conn *c, const char *why)
{
    if (c->rank != RK_NONE) {
        TD_LOG(WARN, "a rank has gone while joining", "rank=%u name=%s from=%s why=\"%s\"", c->rank,
               c->name, c->peer, why);
        l->by_rank[c->rank] = NULL;
        l->n_joined--;
    } else if (c->state != RK_LINGER) {
        TD_LOG(DEBUG, "a stranger on the port of ranks, closing", "from=%s why=\"%s\"", c->peer,
               why);
    }
    td__rk_conn_close(c);
}

static void refuse(struct rk_conn *c, td_err e, const char *why, int64_t now)
{
    TD_LOG(WARN, "rank refused", "rank=%u name=%s from=%s err=%s why=\"%s\"", c->hello.rank,
           c->name, c->peer, td_err_code(e), why);
    td__rk_conn_refuse(c, e, why, now);
}

/* ---- HELLO, PROVE ---- */

static const struct td_link_key *find_key(const struct td_rank_params *p, const char *id)
{
    for (uint32_t i = 0; i < p->n_keys; i++) {
        if (strcmp(p->keys[i].id, id) == 0) {
            return &p->keys[i];
        }
    }
    return NULL;
}

static bool on_hello(struct lead *l, struct rk_conn *c, const struct rank_frame *f, int64_t now)
{
    struct rank_challenge ch;
    uint8_t bytes[RANK_CHALLENGE_BYTES];
    char why[TD_LINK_TEXT];
    if (f->type != RANK_HELLO || !rank_hello_parse(f->payload, f->len, &c->hello)) {
        return false;
    }
    if (c->hello.version_min > RANK_VERSION_MAX || c->hello.version_max < RANK_VERSION_MIN) {
        (void)snprintf(why, sizeof why, "no common version: rank 0 %d to %d, rank %u %u to %u",
                       RANK_VERSION_MIN, RANK_VERSION_MAX, c->hello.rank, c->hello.version_min,
                       c->hello.version_max);
        refuse(c, TD_ERR_PEER_VERSION, why, now);
        return true;
    }
    c->key = find_key(l->j->p, c->hello.key_id);
    if (c->key == NULL) {
        (void)snprintf(why, sizeof why, "the cluster secret named '%s' is not known to rank 0",
                       c->hello.key_id);
        refuse(c, TD_ERR_PEER_AUTH, why, now);
        return true;
    }
    memcpy(c->hello_bytes, f->payload, f->len);
    c->hello_len = f->len;
    ch.version = c->hello.version_max < RANK_VERSION_MAX ? c->hello.version_max : RANK_VERSION_MAX;
    td_rng_fill(ch.nonce, sizeof ch.nonce);
    size_t n = rank_challenge_write(&ch, bytes);
    c->state = RK_PROVE;
    return td__rk_conn_set_keys(c, bytes, n, false) && td__rk_conn_put(c, RANK_CHALLENGE, bytes, n);
}

/* Is the place still taken? A connection that has just ended may not have been looked at yet. */
static bool lives(struct lead *l, struct rk_conn *c)
{
    uint8_t byte;
    ssize_t n = c != NULL ? recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : 0;
    if (c != NULL && (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK))) {
        drop(l, c, "its process is gone");
        return false;
    }
    return c != NULL;
}

/* Does it fit? Else the reason. */
static td_err check_who(struct lead *l, const struct rk_conn *c, const struct rank_who *w,
                        char *why, size_t cap)
{
    const struct td_rank_params *p = l->j->p;
    uint32_t rank = c->hello.rank;
    if (c->hello.n != p->n) {
        (void)snprintf(why, cap, "group size differs: rank 0 %u, rank %u %u", p->n, rank,
                       c->hello.n);
        return TD_ERR_CONFIG;
    }
    if (rank == 0 || rank >= p->n) {
        (void)snprintf(why, cap, "rank %u dials, but ranks 1 to %u do", rank, p->n - 1);
        return TD_ERR_CONFIG;
    }
    if (lives(l, l->by_rank[rank])) {
        (void)snprintf(why, cap, "rank %u is there already: %s at %s", rank, l->by_rank[rank]->name,
                       l->by_rank[rank]->peer);
        return TD_ERR_CONFIG;
    }
    if (!td_ucx_address_ok(w->address, w->address_bytes)) {
        (void)snprintf(why, cap, "what rank %u calls its UCX address is none", rank);
        return TD_ERR_ADDRESS;
    }
    return rank_terms_compare(&p->terms, &w->terms, rank, why, cap);
}

static bool on_prove(struct lead *l, struct rk_conn *c, const struct rank_frame *f, int64_t now)
{
    struct rank_who w;
    char why[TD_LINK_TEXT];
    td_err e;
    if (f->type == RANK_REFUSE && link_reason_parse(f->payload, f->len, &e, why)) {
        char quoted[2 * TD_LINK_TEXT];
        TD_LOG(WARN, "a rank refused us", "rank=%u from=%s err=%s why=%s", c->hello.rank, c->peer,
               td_err_code(e), td_log_quote(why, strlen(why), quoted, sizeof quoted));
        /* without a tag: its word, and no more */
        return false;
    }
    if (f->type != RANK_PROVE) {
        return false;
    }
    if (!td__rk_conn_verify(c, f)) {
        refuse(c, TD_ERR_PEER_AUTH, "the proof of the cluster secret does not verify", now);
        return true;
    }
    if (!rank_prove_parse(f->payload, f->len, &w)) {
        return false;
    }
    (void)snprintf(c->name, sizeof c->name, "%s", w.name);
    e = check_who(l, c, &w, why, sizeof why);
    if (e != TD_OK) {
        refuse(c, e, why, now);
        return true;
    }
    c->address = td_zalloc(1, w.address_bytes);
    if (c->address == NULL || TD_FAULT(RANK_JOIN)) {
        return false;
    }
    memcpy(c->address, w.address, w.address_bytes);
    c->address_bytes = w.address_bytes;
    c->rank = c->hello.rank;
    c->state = RK_JOINED;
    c->deadline_us = TD_NEVER;
    l->by_rank[c->rank] = c;
    l->n_joined++;
    TD_LOG(INFO, "rank joined", "rank=%u name=%s from=%s joined=%u of=%u", c->rank, c->name,
           c->peer, l->n_joined, l->j->p->n - 1);
    return td__rk_conn_put(c, RANK_WELCOME, NULL, 0);
}

static bool on_ready(struct lead *l, struct rk_conn *c, const struct rank_frame *f)
{
    if (!l->listed || f->type != RANK_READY || !td__rk_conn_verify(c, f)) {
        return false;
    }
    c->state = RK_READY;
    l->n_ready++;
    return true;
}

/* False: the connection is to be closed. */
static bool on_frame(struct lead *l, struct rk_conn *c, const struct rank_frame *f, int64_t now)
{
    if (c->state == RK_HELLO) {
        return on_hello(l, c, f, now);
    }
    if (c->state == RK_PROVE) {
        return on_prove(l, c, f, now);
    }
    return c->state == RK_JOINED && on_ready(l, c, f);
}

/* Takes what lies there until the refused one has closed. */
static bool drain(struct rk_conn *c)
{
    uint8_t rest[512];
    ssize_t n = recv(c->fd, rest, sizeof rest, MSG_DONTWAIT);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

/* NULL, or why the connection ends. */
static const char *serve(struct lead *l, struct rk_conn *c, int64_t now)
{
    struct rank_frame f;
    while (c->state != RK_LINGER) {
        enum rk_read r = td__rk_conn_read(c, &f);
        if (r == RK_READ_NOTHING) {
            break;
        }
        if (r != RK_READ_FRAME) {
            return r == RK_READ_CLOSED ? "its process is gone" : "not a frame";
        }
        if (!on_frame(l, c, &f, now)) {
            return "a frame that does not fit";
        }
    }
    if (c->state == RK_LINGER && !drain(c)) {
        return "refused";
    }
    if (!td__rk_conn_flush(c)) {
        return "the connection broke";
    }
    return now >= c->deadline_us ? "it was too slow" : NULL;
}

/* ---- the group is complete ---- */

static bool put_peer(struct lead *l, struct rk_conn *to, uint32_t rank)
{
    const struct rk_group *g = l->j->g;
    const struct rk_conn *c = l->by_rank[rank];
    uint8_t peer[RANK_MAX_PAYLOAD];
    struct rank_who w = {.rank = rank,
                         .address = rank == 0 ? g->ucx.address : c->address,
                         .address_bytes = rank == 0 ? g->ucx.address_bytes : c->address_bytes};
    (void)snprintf(w.name, sizeof w.name, "%s", rank == 0 ? l->j->p->name : c->name);
    return td__rk_conn_put(to, RANK_PEER, peer, rank_peer_write(&w, peer));
}

static td_err send_list(struct lead *l)
{
    struct rk_group *g = l->j->g;
    l->listed = true;
    for (uint32_t i = 1; i < g->base.n; i++) {
        struct rk_conn *c = l->by_rank[i];
        TD_INSIST(c != NULL); /* all are there */
        (void)snprintf(g->peers[i].name, sizeof g->peers[0].name, "%s", c->name);
        TD_TRY(td__rk_connect(g, i, c->address, c->address_bytes));
        for (uint32_t k = 0; k < g->base.n; k++) {
            if (k != i && !put_peer(l, c, k)) {
                return TD_ERR_NO_MEMORY;
            }
        }
        (void)td__rk_conn_flush(c); /* the loop goes on, and sees when it is broken */
    }
    return TD_OK;
}

static td_err send_go(struct lead *l)
{
    struct rk_group *g = l->j->g;
    uint8_t group[8];
    g->id = td_rng_u64_secure();
    link_put64(group, g->id);
    for (uint32_t i = 1; i < g->base.n; i++) {
        struct rk_conn *c = l->by_rank[i];
        TD_INSIST(c != NULL); /* all are there */
        c->state = RK_UP;
        if (!td__rk_conn_put(c, RANK_GO, group, sizeof group) || !td__rk_conn_flush(c) ||
            c->out.len > 0) {
            TD_LOG(ERROR, "a rank does not take its start", "rank=%u name=%s", i, c->name);
            return TD_ERR_PEER_LOST;
        }
    }
    return TD_OK;
}

/* ---- the loop ---- */

static void list_missing(struct lead *l)
{
    size_t at = 0;
    l->missing[0] = '\0';
    for (uint32_t i = 1; i < l->j->p->n && at + 8 < sizeof l->missing; i++) {
        const struct rk_conn *c = l->by_rank[i];
        if (c == NULL || (l->listed && c->state != RK_READY)) {
            at +=
                (size_t)snprintf(l->missing + at, sizeof l->missing - at, at > 0 ? ",%u" : "%u", i);
        }
    }
}

static td_err wait_for_some(struct lead *l, int64_t now)
{
    struct pollfd fds[MAX_CONNS + 2];
    int64_t until;
    nfds_t n = 0;
    fds[n++] = (struct pollfd){.fd = l->j->signal_fd, .events = POLLIN};
    bool room = !l->listed && strangers(l) < TD_RANK_MAX_STRANGERS && now >= l->accept_us;
    until = now < l->accept_us ? l->accept_us : TD_NEVER;
    fds[n++] = (struct pollfd){.fd = room ? l->listen_fd : -1, .events = POLLIN};
    for (uint32_t i = 0; i < l->n_conns; i++) {
        const struct rk_conn *c = l->conns[i];
        short events = c->out.len > 0 ? POLLIN | POLLOUT : POLLIN;
        fds[n++] = (struct pollfd){.fd = c->fd, .events = events};
        until = c->deadline_us < until ? c->deadline_us : until;
    }
    list_missing(l);
    TD_TRY(td__rk_join_check(l->j, now, l->missing));
    (void)poll(fds, n, td__rk_join_ms(l->j, now, until));
    return TD_OK;
}

/* TD_ERR_PEER_LOST: one that the others have endpoints to has gone. */
static td_err serve_all(struct lead *l)
{
    int64_t now = td_now_us();
    while (!l->listed && accept_one(l, now)) {
    }
    for (uint32_t i = 0; i < l->n_conns; i++) {
        struct rk_conn *c = l->conns[i];
        const char *why = c->state == RK_FREE ? NULL : serve(l, c, now);
        if (why != NULL) {
            bool member = c->rank != RK_NONE;
            drop(l, c, why);
            if (member && l->listed) {
                return TD_ERR_PEER_LOST;
            }
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n_conns; i++) {
        if (l->conns[i]->state == RK_FREE) {
            free(l->conns[i]);
        } else {
            l->conns[kept++] = l->conns[i];
        }
    }
    l->n_conns = kept;
    return TD_OK;
}

static td_err gather(struct lead *l)
{
    uint32_t all = l->j->p->n - 1;
    TD_TRY(start_listening(l));
    while (l->n_ready < all) {
        TD_TRY(wait_for_some(l, td_now_us()));
        TD_TRY(serve_all(l));
        if (!l->listed && l->n_joined == all) {
            TD_TRY(send_list(l));
        }
    }
    return send_go(l);
}

td_err td__rk_lead(struct rk_join *j)
{
    struct lead l = {.j = j, .listen_fd = -1};
    td_err e = gather(&l);
    if (l.listen_fd >= 0) {
        (void)close(l.listen_fd);
    }
    for (uint32_t i = 0; i < l.n_conns; i++) {
        struct rk_conn *c = l.conns[i];
        if (e == TD_OK && c->state == RK_UP) {
            j->g->links[c->rank] = c;
        } else {
            td__rk_conn_close(c);
            free(c);
        }
    }
    return e;
}
