#define TD_LOG_ROOM "io"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/ranks_int.h"

/* Design: the connections of the joining form a star around rank 0 and stay open. Any thread may read them, under
 * `lock`: the main thread when its watch fires (td_ranks_check), the engine's while it waits in a call. What they say
 * is little: LOADED (a rank's engine is made: an exchange's deadline is a layer's, not a loading's), LOST (who has gone, or
 * failed; rank 0 passes it on), LEAVE (rank 0 ends the group), and their end, which is the death of the process behind them
 * unless LEAVE came first.
 *
 * The first reason wins `err` by compare-and-swap; whoever won logs it, tells the others and rings `stop_fd`.
 *
 * The end in peace: rank 0's engine tells its goodbye, then td_ranks_destroy flushes the endpoints, says LEAVE and waits
 * for the others to close; they close when their engines have ended. Each keeps UCX, whose shared memory may still
 * hold what others have not read, until that is over. */

#define END_US  2000000 /* for the others' ends */
#define LOOK_US 1000000 /* another thread may have read what we wait for */

/* ---- the end ---- */

static void tell_lost(struct rk_group *g, td_err e, uint32_t rank, const char *why)
{
    uint8_t lost[8 + TD_LINK_TEXT];
    size_t n = rank_lost_write(rank == RK_NONE ? g->base.rank : rank, e, why, lost);
    (void)pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->base.n; i++) {
        struct rk_conn *c = g->links[i];
        if (c == NULL || c->state != RK_UP) {
            continue;
        }
        if (i != rank && td__rk_conn_put(c, RANK_LOST, lost, n)) {
            (void)td__rk_conn_flush(c); /* else the end of the connection says it */
        }
        (void)shutdown(c->fd, SHUT_WR);
    }
    (void)pthread_mutex_unlock(&g->lock);
}

void td__rk_fail(struct rk_group *g, td_err e, uint32_t rank, const char *why)
{
    int none = TD_OK;
    uint64_t one = 1;
    /* release: whoever sees the end sees what was written before it */
    if (!atomic_compare_exchange_strong_explicit(&g->err, &none, (int)e, memory_order_acq_rel,
                                                 memory_order_acquire)) {
        return;
    }
    if (e != TD_ERR_CLOSED) {
        char quoted[2 * TD_LINK_TEXT]; /* the reason may be another rank's */
        const char *name = rank == RK_NONE ? "" : g->peers[rank].name;
        TD_LOG(ERROR, "rank lost, the group is over", "rank=%d name=%s err=%s why=%s",
               rank == RK_NONE ? -1 : (int)rank, name, td_err_code(e),
               td_log_quote(why, strlen(why), quoted, sizeof quoted));
        tell_lost(g, e, rank, why);
    }
    ssize_t n = write(g->stop_fd, &one, sizeof one);
    TD_INSIST(n == sizeof one);
}

/* What one link said, for td__rk_fail outside the lock. */
struct verdict {
    td_err e;
    uint32_t rank;
    char why[TD_LINK_TEXT];
};

static void unwatch(const struct rk_group *g, const struct rk_conn *c)
{
    (void)epoll_ctl(g->watch_fd, EPOLL_CTL_DEL, c->fd, NULL);
}

/* True when the link is over, with the reason. */
static bool on_frame(struct rk_group *g, struct rk_conn *c, const struct rank_frame *f,
                     struct verdict *out)
{
    if (!td__rk_conn_verify(c, f)) {
        *out = (struct verdict){TD_ERR_PROTOCOL, c->rank, "a frame does not verify"};
    } else if (f->type == RANK_LEAVE && c->rank == 0) {
        c->state = RK_LEFT;
        atomic_store_explicit(&g->ended, true,
                              memory_order_relaxed); /* a hint to look at the clock */
        unwatch(g, c);
        return false;
    } else if (f->type == RANK_LOADED && g->base.rank == 0 && !c->loaded) {
        c->loaded = true;
        return false;
    } else if (f->type == RANK_LOST &&
               rank_lost_parse(f->payload, f->len, &out->rank, &out->e, out->why)) {
        out->e = TD_ERR_PEER_LOST;
        out->rank = out->rank < g->base.n ? out->rank : c->rank;
    } else {
        *out = (struct verdict){TD_ERR_PROTOCOL, c->rank, "a frame out of turn"};
    }
    return true;
}

static bool listen_to(struct rk_group *g, struct rk_conn *c, struct verdict *out)
{
    struct rank_frame f;
    while (c->state == RK_UP) {
        switch (td__rk_conn_read(c, &f)) {
        case RK_READ_NOTHING:
            return false;
        case RK_READ_FRAME:
            if (!on_frame(g, c, &f, out)) {
                continue;
            }
            break;
        case RK_READ_CLOSED:
            *out = (struct verdict){TD_ERR_PEER_LOST, c->rank, "its process is gone"};
            break;
        case RK_READ_BAD:
            *out = (struct verdict){TD_ERR_PROTOCOL, c->rank, "not a frame"};
            break;
        }
        c->state = RK_LEFT; /* it has nothing more to say */
        unwatch(g, c);
        return true;
    }
    return false;
}

void td__rk_listen(struct rk_group *g)
{
    struct verdict v;
    bool bad = false;
    (void)pthread_mutex_lock(&g->lock);
    for (uint32_t i = 0; i < g->base.n && !bad; i++) {
        bad = g->links[i] != NULL && listen_to(g, g->links[i], &v);
    }
    (void)pthread_mutex_unlock(&g->lock);
    if (bad) {
        td__rk_fail(g, v.e, v.rank, v.why);
    }
}

int td_ranks_watch_fd(const struct td_ranks *r)
{
    return ((const struct rk_group *)(const void *)r)->watch_fd;
}

td_err td_ranks_check(struct td_ranks *r)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC);
    td__rk_listen(g);
    return (td_err)atomic_load_explicit(&g->err, memory_order_acquire); /* see td__rk_fail */
}

void td_ranks_stats_get(const struct td_ranks *r, struct td_ranks_stats *out)
{
    const struct rk_group *g = (const struct rk_group *)(const void *)r;
    /* relaxed: counters order nothing */
    *out = (struct td_ranks_stats){
        .exchanges = atomic_load_explicit(&g->exchanges, memory_order_relaxed),
        .bytes_out = atomic_load_explicit(&g->bytes_out, memory_order_relaxed),
        .bytes_in = atomic_load_explicit(&g->bytes_in, memory_order_relaxed),
        .wait_us = atomic_load_explicit(&g->waited_us, memory_order_relaxed),
        .transport = g->transport,
    };
}

/* ---- death ---- */

static bool any_open(struct rk_group *g, struct pollfd *fds, nfds_t *out_n)
{
    *out_n = 0;
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (g->links[i] != NULL) {
            fds[(*out_n)++] = (struct pollfd){.fd = g->links[i]->fd, .events = POLLIN};
        }
    }
    return *out_n > 0;
}

/* Nobody reads frames any more: only the end of each link counts. */
static void close_ended(struct rk_group *g)
{
    uint8_t rest[256];
    for (uint32_t i = 0; i < g->base.n; i++) {
        struct rk_conn *c = g->links[i];
        if (c == NULL) {
            continue;
        }
        ssize_t n = recv(c->fd, rest, sizeof rest, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
            td__rk_conn_close(c);
            free(c);
            g->links[i] = NULL;
        }
    }
}

/* Says that we end, and waits until everybody does. */
static void part_in_peace(struct rk_group *g)
{
    struct pollfd fds[TD_RANKS_MAX];
    nfds_t n;
    int64_t now = td_now_us(), until = now + END_US;
    for (uint32_t i = 0; i < g->base.n; i++) {
        struct rk_conn *c = g->links[i];
        if (c != NULL) {
            if (g->base.rank == 0 && td__rk_conn_put(c, RANK_LEAVE, NULL, 0)) {
                (void)td__rk_conn_flush(c); /* else the end of the connection says it */
            }
            (void)shutdown(c->fd, SHUT_WR);
        }
    }
    while (any_open(g, fds, &n) && now < until) {
        (void)poll(fds, n, (int)((until - now) / 1000) + 1);
        close_ended(g);
        now = td_now_us();
    }
    if (any_open(g, fds, &n)) {
        TD_LOG(WARN, "ranks did not end in time, leaving them", "ranks=%u", (unsigned)n);
    }
}

struct td_ranks *td_ranks_destroy(struct td_ranks *r)
{
    struct rk_group *g = r != NULL ? td__rk_of(r) : NULL;
    if (g == NULL) {
        return NULL;
    }
    int e = atomic_load_explicit(&g->err, memory_order_acquire); /* see td__rk_fail */
    bool peace = g->magic == RK_MAGIC && g->open && (e == TD_OK || e == TD_ERR_CLOSED);
    g->magic = 0;
    if (peace) {
        td__rk_close_endpoints(g, false);
        part_in_peace(g);
    }
    td__rk_disconnect(g);
    for (uint32_t i = 0; i < TD_RANKS_MAX; i++) {
        if (g->links[i] != NULL) {
            td__rk_conn_close(g->links[i]);
            free(g->links[i]);
        }
    }
    if (g->watch_fd >= 0) {
        (void)close(g->watch_fd);
    }
    if (g->stop_fd >= 0) {
        (void)close(g->stop_fd);
    }
    if (g->has_lock) {
        (void)pthread_mutex_destroy(&g->lock);
    }
    free(g);
    return NULL;
}

/* ---- birth ---- */

static bool name_ok(const char *name)
{
    size_t n = name != NULL ? strlen(name) : 0;
    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] > '~' || name[i] == '"') {
            return false;
        }
    }
    return n > 0 && n <= TD_LINK_MAX_NAME;
}

static td_err check_params(const struct td_rank_params *p)
{
    const char *bad = NULL;
    if (p->n < 2 || p->n > TD_RANKS_MAX) {
        bad = "the size of the group is out of range";
    } else if (p->rank >= p->n) {
        bad = "the rank is not below the size of the group";
    } else if (p->n_keys == 0) {
        bad = "ranks need a cluster secret, see --cluster-key-file";
    } else if (!name_ok(p->name)) {
        bad = "the name cannot travel";
    } else if (p->join_us <= 0 || p->wait_us <= 0) {
        bad = "a time limit is not positive";
    }
    if (bad != NULL) {
        TD_LOG(ERROR, "group of ranks cannot be joined", "rank=%u n=%u why=\"%s\"", p->rank, p->n,
               bad);
        return TD_ERR_CONFIG;
    }
    return TD_OK;
}

static td_err create(const struct td_rank_params *p, struct rk_group **out)
{
    struct rk_group *g = td_zalloc(1, sizeof *g);
    if (g == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    g->base = (struct td_ranks){.ops = &td__rk_ops, .rank = p->rank, .n = p->n};
    g->wait_us = p->wait_us;
    g->transport = "";
    g->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    g->watch_fd = epoll_create1(EPOLL_CLOEXEC);
    g->has_lock = pthread_mutex_init(&g->lock, NULL) == 0;
    g->ucx.event_fd = -1;
    (void)snprintf(g->peers[p->rank].name, sizeof g->peers[0].name, "%s", p->name);
    *out = g;
    if (g->stop_fd < 0 || g->watch_fd < 0 || !g->has_lock) {
        TD_LOG(ERROR, "no descriptors for the group of ranks", "errno=%d", errno);
        return TD_ERR_IO;
    }
    struct td_ucx_params up = {.device = p->kv_device,
                               .transports = p->kv_transports,
                               .port_first = p->port_first,
                               .port_last = p->port_last,
                               .trust_network = p->trust_network,
                               .tags = true};
    TD_TRY(td_ucx_open(&up, &g->ucx));
    g->open = true;
    return TD_OK;
}

static td_err watch_links(struct rk_group *g)
{
    for (uint32_t i = 0; i < g->base.n; i++) {
        struct rk_conn *c = g->links[i];
        struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP};
        if (c == NULL) {
            continue;
        }
        c->state = RK_UP;
        if (epoll_ctl(g->watch_fd, EPOLL_CTL_ADD, c->fd, &ev) != 0) {
            TD_LOG(ERROR, "epoll_ctl failed", "fd=%d errno=%d", c->fd, errno);
            return TD_ERR_IO;
        }
    }
    return TD_OK;
}

static uint32_t cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
}

static td_err join(struct rk_join *j)
{
    struct rk_group *g = j->g;
    TD_TRY(j->p->rank == 0 ? td__rk_lead(j) : td__rk_dial(j));
    TD_TRY(watch_links(g));
    g->magic = RK_MAGIC;
    g->spins = g->n_here + 1 <= cores();
    TD_TRY(td__rk_first_exchange(g));
    TD_LOG(INFO, "group of ranks stands", "rank=%u n=%u transport=%s ms=%ld", g->base.rank,
           g->base.n, g->transport, (long)((td_now_us() - j->start_us) / 1000));
    return TD_OK;
}

td_err td_ranks_join(const struct td_rank_params *p, struct td_ranks **out_ranks)
{
    TD_TRY(check_params(p));
    int64_t now = td_now_us();
    struct rk_join j = {.p = p,
                        .start_us = now,
                        .deadline_us = now + p->join_us,
                        .log_us = now + RK_LOG_US,
                        .signal_fd = td__rk_signal_fd()};
    td_err e = create(p, &j.g);
    if (e == TD_OK) {
        e = join(&j);
    }
    if (j.signal_fd >= 0) {
        (void)close(j.signal_fd);
    }
    if (e != TD_OK) {
        (void)td_ranks_destroy(j.g != NULL ? &j.g->base : NULL);
        return e;
    }
    *out_ranks = &j.g->base;
    return TD_OK;
}

/* ---- ready for steps ---- */

/* Once rank 0 has left, it has said goodbye: not a loss, and nobody to speak to. */
static td_err say_loaded(struct rk_group *g)
{
    struct rk_conn *c = g->links[0];
    (void)pthread_mutex_lock(&g->lock);
    bool ok = c->state != RK_UP ||
              (td__rk_conn_put(c, RANK_LOADED, NULL, 0) && td__rk_conn_flush(c) && c->out.len == 0);
    (void)pthread_mutex_unlock(&g->lock);
    if (!ok) {
        td__rk_fail(g, TD_ERR_PEER_LOST, 0, "its connection takes nothing");
    }
    return td_ranks_check(&g->base);
}

/* "1,2: ..." in words for the log; false: all are there. */
static bool list_loading(struct rk_group *g, char *out, size_t cap)
{
    size_t at = 0;
    (void)pthread_mutex_lock(&g->lock);
    for (uint32_t i = 1; i < g->base.n && at + 8 < cap; i++) {
        if (!g->links[i]->loaded) {
            at += (size_t)snprintf(out + at, cap - at, at > 0 ? ",%u" : "%u", i);
        }
    }
    (void)pthread_mutex_unlock(&g->lock);
    return at > 0;
}

static td_err hear_loaded(struct rk_join *j)
{
    struct rk_group *g = j->g;
    char missing[256];
    for (;;) {
        int64_t now = td_now_us();
        struct pollfd fds[] = {{.fd = j->signal_fd, .events = POLLIN},
                               {.fd = g->stop_fd, .events = POLLIN},
                               {.fd = g->watch_fd, .events = POLLIN}};
        TD_TRY(td_ranks_check(&g->base));
        if (!list_loading(g, missing, sizeof missing)) {
            return TD_OK;
        }
        TD_TRY(td__rk_join_check(j, now, missing));
        (void)poll(fds, TD_COUNT(fds), td__rk_join_ms(j, now, now + LOOK_US));
    }
}

td_err td_ranks_loaded(struct td_ranks *r, int64_t wait_us)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC);
    if (r->rank != 0) {
        return say_loaded(g);
    }
    int64_t now = td_now_us();
    const struct td_rank_params p = {.rank = 0, .n = r->n};
    struct rk_join j = {.p = &p,
                        .g = g,
                        .start_us = now,
                        .deadline_us = now + wait_us,
                        .log_us = now + RK_LOG_US,
                        .signal_fd = td__rk_signal_fd()};
    td_err e = hear_loaded(&j);
    if (j.signal_fd >= 0) {
        (void)close(j.signal_fd);
    }
    if (e == TD_OK) {
        TD_LOG(INFO, "all ranks have loaded", "n=%u ms=%ld", r->n,
               (long)((td_now_us() - now) / 1000));
    }
    return e;
}
