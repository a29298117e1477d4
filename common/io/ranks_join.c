#define TD_LOG_ROOM "io"
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/ranks_int.h"

/* Design. The dialer's side of the joining; ranks_lead.c is the other.
 *
 *   -> HELLO      rank, group size, versions, key id, nonce.
 *   <- CHALLENGE  version, nonce. Tagged: rank 0 knows the secret.
 *   -> PROVE      terms, name, UCX address. Tagged: so do we, and it is no replay.
 *   <- WELCOME    the place is ours. Now the others may take their time.
 *   <- PEER ...   everybody is there: the others' UCX addresses.
 *   -> READY      endpoints are made.
 *   <- GO         so are everybody's.
 *
 * What breaks before the first PEER is tried again; a REFUSE is final; what breaks later ends the group. */

#define BACKOFF_MIN_US 100000
#define BACKOFF_MAX_US 1000000

int td__rk_signal_fd(void)
{
    sigset_t ends;
    (void)sigemptyset(&ends);
    (void)sigaddset(&ends, SIGTERM);
    (void)sigaddset(&ends, SIGINT);
    return signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
}

td_err td__rk_join_check(struct rk_join *j, int64_t now_us, const char *waits_for)
{
    sigset_t pending;
    if (sigpending(&pending) == 0 &&
        (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGINT) == 1)) {
        TD_LOG(INFO, "joining of ranks ended by a signal", "rank=%u", j->p->rank);
        return TD_ERR_CANCELLED;
    }
    if (now_us >= j->deadline_us) {
        TD_LOG(ERROR, "the group of ranks does not stand in time, see --rank-join-timeout",
               "rank=%u missing=\"%s\"", j->p->rank, waits_for);
        return TD_ERR_STALLED;
    }
    if (now_us >= j->log_us) {
        j->log_us = now_us + RK_LOG_US;
        TD_LOG(INFO, "waiting for ranks", "rank=%u missing=\"%s\" left_s=%ld", j->p->rank,
               waits_for, (long)((j->deadline_us - now_us) / 1000000));
    }
    return TD_OK;
}

int td__rk_join_ms(const struct rk_join *j, int64_t now_us, int64_t until_us)
{
    until_us = until_us < j->deadline_us ? until_us : j->deadline_us;
    until_us = until_us < j->log_us ? until_us : j->log_us;
    return until_us <= now_us ? 0 : (int)((until_us - now_us + 999) / 1000);
}

td_err td__rk_split(const char *option, const char *address, char host[256], char port[8])
{
    const char *colon = address != NULL ? strrchr(address, ':') : NULL;
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    bool ok = n > 0 && n < 256 && strlen(colon + 1) <= 5 && colon[1] != '\0' &&
              strspn(colon + 1, "0123456789") == strlen(colon + 1) &&
              strtoul(colon + 1, NULL, 10) <= 65535;
    if (ok) {
        bool braces = address[0] == '[' && address[n - 1] == ']';
        (void)snprintf(host, 256, "%.*s", (int)(braces ? n - 2 : n), address + (braces ? 1 : 0));
        (void)snprintf(port, 8, "%s", colon + 1);
        ok = host[0] != '\0';
    }
    if (!ok) {
        char quoted[256];
        const char *text = address != NULL ? address : "";
        TD_LOG(ERROR, "not an address of the form HOST:PORT", "option=%s value=%s", option,
               td_log_quote(text, strlen(text), quoted, sizeof quoted));
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

struct dialer {
    struct rk_join *j;
    struct rk_conn *c;      /* owned */
    char why[TD_LINK_TEXT]; /* the last try has ended */
    uint32_t n_known;       /* PEER frames */
};

static td_err again(struct dialer *d, const char *why)
{
    (void)snprintf(d->why, sizeof d->why, "%s", why);
    return TD_ERR_AGAIN;
}

/* ---- frames ---- */

static td_err say_hello(struct dialer *d)
{
    struct rk_conn *c = d->c;
    const struct td_rank_params *p = d->j->p;
    struct rank_hello h = {.version_min = RANK_VERSION_MIN,
                           .version_max = RANK_VERSION_MAX,
                           .rank = p->rank,
                           .n = p->n};
    c->key = &p->keys[0];
    memcpy(h.key_id, c->key->id, sizeof h.key_id);
    td_rng_fill(h.nonce, sizeof h.nonce);
    c->hello_len = rank_hello_write(&h, c->hello_bytes);
    c->state = RK_CHALLENGE;
    c->deadline_us = td_now_us() + TD_RANK_HELLO_US;
    return td__rk_conn_put(c, RANK_HELLO, c->hello_bytes, c->hello_len) ? TD_OK : TD_ERR_NO_MEMORY;
}

static td_err on_refuse(struct dialer *d, const struct rank_frame *f)
{
    td_err e;
    char why[TD_LINK_TEXT], quoted[2 * TD_LINK_TEXT];
    if (!link_reason_parse(f->payload, f->len, &e, why)) {
        return again(d, "a refusal that cannot be read");
    }
    TD_LOG(ERROR, "rank 0 refused this rank", "rank=%u at=%s err=%s why=%s", d->j->p->rank,
           d->c->peer, td_err_code(e), td_log_quote(why, strlen(why), quoted, sizeof quoted));
    return e == TD_ERR_CANCELLED ? TD_ERR_PROTOCOL : e; /* only our own signal is an end in peace */
}

static td_err on_challenge(struct dialer *d, const struct rank_frame *f)
{
    struct rk_conn *c = d->c;
    const struct td_rank_params *p = d->j->p;
    struct rank_challenge ch;
    uint8_t prove[RANK_MAX_PAYLOAD];
    char why[TD_LINK_TEXT];
    if (f->type != RANK_CHALLENGE || !rank_challenge_parse(f->payload, f->len, &ch) ||
        ch.version < RANK_VERSION_MIN || ch.version > RANK_VERSION_MAX) {
        return again(d, "what answers there is not a rank 0");
    }
    if (!td__rk_conn_set_keys(c, f->payload, f->len, true)) {
        return TD_ERR_NO_MEMORY;
    }
    if (!td__rk_conn_verify(c, f)) {
        c->keyed = false; /* rank 0 cannot read our tags either */
        (void)snprintf(why, sizeof why,
                       "rank 0 does not know the secret that rank %u calls key '%s'", p->rank,
                       c->key->id);
        td__rk_conn_refuse(c, TD_ERR_PEER_AUTH, why, td_now_us());
        TD_LOG(ERROR, "this rank refused rank 0", "rank=%u at=%s err=%s why=\"%s\"", p->rank,
               c->peer, td_err_code(TD_ERR_PEER_AUTH), why);
        return TD_ERR_PEER_AUTH;
    }
    struct rank_who w = {.terms = p->terms,
                         .address = d->j->g->ucx.address,
                         .address_bytes = d->j->g->ucx.address_bytes};
    (void)snprintf(w.name, sizeof w.name, "%s", p->name);
    c->state = RK_WELCOME;
    c->deadline_us = td_now_us() + TD_RANK_HELLO_US;
    size_t n = rank_prove_write(&w, prove);
    return td__rk_conn_put(c, RANK_PROVE, prove, n) ? TD_OK : TD_ERR_NO_MEMORY;
}

static td_err on_welcome(struct dialer *d, const struct rank_frame *f)
{
    struct rk_conn *c = d->c;
    if (f->type != RANK_WELCOME) {
        return again(d, "a frame out of turn");
    }
    c->rank = 0;
    c->state = RK_WAITING;
    c->deadline_us = TD_NEVER; /* the joining's own is there */
    TD_LOG(INFO, "joined rank 0", "rank=%u at=%s", d->j->p->rank, c->peer);
    return TD_OK;
}

static td_err lost(struct dialer *d, const char *why)
{
    TD_LOG(ERROR, "the group of ranks broke while it was made", "rank=%u why=\"%s\"", d->j->p->rank,
           why);
    return TD_ERR_PEER_LOST;
}

static td_err on_peer(struct dialer *d, const struct rank_frame *f)
{
    struct rk_group *g = d->j->g;
    struct rank_who w;
    if (f->type != RANK_PEER || !rank_peer_parse(f->payload, f->len, &w) || w.rank >= g->base.n ||
        w.rank == g->base.rank || g->peers[w.rank].ep != NULL) {
        return lost(d, "rank 0 sent a list that does not fit");
    }
    (void)snprintf(g->peers[w.rank].name, sizeof g->peers[0].name, "%s", w.name);
    TD_TRY(td__rk_connect(g, w.rank, w.address, w.address_bytes));
    if (++d->n_known == g->base.n - 1) {
        d->c->state = RK_READY;
        return td__rk_conn_put(d->c, RANK_READY, NULL, 0) ? TD_OK : TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

static td_err on_go(struct dialer *d, const struct rank_frame *f)
{
    if (f->type != RANK_GO || !rank_go_parse(f->payload, f->len, &d->j->g->id)) {
        return lost(d, "a frame out of turn");
    }
    d->c->state = RK_UP;
    return TD_OK;
}

/* TD_ERR_AGAIN: dial anew. */
static td_err on_frame(struct dialer *d, const struct rank_frame *f)
{
    struct rk_conn *c = d->c;
    if (c->keyed && !td__rk_conn_verify(c, f)) {
        return c->state == RK_WELCOME ? again(d, "a frame does not verify")
                                      : lost(d, "a frame does not verify");
    }
    if (f->type == RANK_REFUSE) {
        return on_refuse(d, f);
    }
    if (c->state == RK_CHALLENGE) {
        return on_challenge(d, f);
    }
    if (c->state == RK_WELCOME) {
        return on_welcome(d, f);
    }
    return c->state == RK_WAITING ? on_peer(d, f) : on_go(d, f);
}

/* ---- one try ---- */

static td_err read_frames(struct dialer *d)
{
    struct rank_frame f;
    while (d->c->state != RK_UP) {
        switch (td__rk_conn_read(d->c, &f)) {
        case RK_READ_NOTHING:
            return TD_OK;
        case RK_READ_FRAME:
            TD_TRY(on_frame(d, &f));
            break;
        case RK_READ_CLOSED:
            return d->n_known > 0 ? lost(d, "rank 0 has closed the connection")
                                  : again(d, "rank 0 closed the connection");
        case RK_READ_BAD:
            return d->n_known > 0 ? lost(d, "not a frame") : again(d, "what answers is not a rank");
        }
    }
    return TD_OK;
}

static td_err connected(struct dialer *d)
{
    int err = 0;
    socklen_t len = sizeof err;
    if (getsockopt(d->c->fd, SOL_SOCKET, SO_ERROR, &err, &len) != 0 || err != 0) {
        return again(d, "nobody listens there, or no route leads there");
    }
    return say_hello(d);
}

/* Drives the connection until the group stands. */
static td_err converse(struct dialer *d)
{
    struct rk_conn *c = d->c;
    while (c->state != RK_UP) {
        int64_t now = td_now_us();
        TD_TRY(td__rk_join_check(d->j, now, c->rank == 0 ? "others, rank 0 waits" : "0"));
        if (now >= c->deadline_us) {
            return again(d, "no answer in time");
        }
        bool writes = c->state == RK_DIALING || c->out.len > 0;
        struct pollfd fds[] = {{.fd = c->fd, .events = writes ? POLLIN | POLLOUT : POLLIN},
                               {.fd = d->j->signal_fd, .events = POLLIN}};
        (void)poll(fds, TD_COUNT(fds), td__rk_join_ms(d->j, now, c->deadline_us));
        if (c->state == RK_DIALING) {
            if (fds[0].revents != 0) {
                TD_TRY(connected(d));
            }
        } else {
            TD_TRY(read_frames(d));
        }
        if (c->state != RK_DIALING && !td__rk_conn_flush(c)) {
            TD_TRY(read_frames(d)); /* a refusal may lie there */
            return again(d, "the connection broke");
        }
    }
    return TD_OK;
}

static td_err try_address(struct dialer *d, const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return again(d, "no socket");
    }
    td__rk_conn_open(d->c, fd, RK_DIALING);
    d->c->deadline_us = td_now_us() + TD_RANK_HELLO_US;
    (void)snprintf(d->c->peer, sizeof d->c->peer, "%.63s", d->j->p->leader);
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
        return again(d, "nobody listens there, or no route leads there");
    }
    return converse(d);
}

/* Each address of the name once. */
static td_err try_all(struct dialer *d, const char *host, const char *port)
{
    struct addrinfo *list = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, port, &hints, &list) != 0 || list == NULL) {
        return again(d, "the host is unknown");
    }
    td_err e = TD_ERR_AGAIN;
    for (const struct addrinfo *a = list; a != NULL && e == TD_ERR_AGAIN; a = a->ai_next) {
        td__rk_conn_close(d->c);
        e = try_address(d, a);
    }
    freeaddrinfo(list);
    return e;
}

static td_err rest(struct dialer *d, int64_t backoff_us)
{
    int64_t until = td_now_us() + backoff_us, now;
    struct pollfd fd = {.fd = d->j->signal_fd, .events = POLLIN};
    while ((now = td_now_us()) < until) {
        TD_TRY(td__rk_join_check(d->j, now, "0"));
        (void)poll(&fd, 1, td__rk_join_ms(d->j, now, until));
    }
    return TD_OK;
}

static td_err dial(struct dialer *d)
{
    char host[256], port[8], said[TD_LINK_TEXT] = "";
    int64_t backoff = BACKOFF_MIN_US;
    TD_TRY(td__rk_split("--rank-leader", d->j->p->leader, host, port));
    if (strtoul(port, NULL, 10) == 0) { /* good for listening only */
        TD_LOG(ERROR, "nobody listens on port 0, see --rank-leader", "address=%s", d->j->p->leader);
        return TD_ERR_CONFIG;
    }
    for (;;) {
        bool joined = false;
        td_err e = try_all(d, host, port);
        if (e != TD_ERR_AGAIN) {
            return e;
        }
        joined = d->c->rank == 0; /* it was there: begin anew */
        if (strcmp(said, d->why) != 0) {
            TD_LOG(INFO, "rank 0 is not there yet, dialing again", "rank=%u at=%s why=\"%s\"",
                   d->j->p->rank, d->j->p->leader, d->why);
            (void)snprintf(said, sizeof said, "%s", d->why);
        }
        td__rk_conn_close(d->c);
        backoff = joined ? BACKOFF_MIN_US : backoff;
        TD_TRY(rest(d, backoff));
        backoff = backoff * 2 < BACKOFF_MAX_US ? backoff * 2 : BACKOFF_MAX_US;
    }
}

td_err td__rk_dial(struct rk_join *j)
{
    struct dialer d = {.j = j, .c = td_zalloc(1, sizeof *d.c)};
    if (d.c == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    td_err e = dial(&d);
    if (e == TD_OK) {
        j->g->links[0] = d.c;
        return TD_OK;
    }
    td__rk_conn_close(d.c);
    free(d.c);
    return e;
}
