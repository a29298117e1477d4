#define TD_LOG_ROOM "io"
#include "common/io/xfer.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/xfer_int.h"

/* Design: the loop allocates what a command needs when it submits (once per request or chunk), so
 * the transfer thread allocates nothing on its way. The thread runs: events out, commands in, UCX
 * progress, pump (post what the engine has finished), reap (close, fence). When a turn did nothing
 * it spins for a moment while operations are in flight, then arms the worker and sleeps on the
 * worker's, the command ring's and the engine's descriptor. */

#define XF_MAGIC     0x58464552u
#define XF_BATCH     256 /* commands of one turn */
#define XF_PROGRESS  32  /* UCX progress calls of one turn */
#define XF_BUSY_ARMS 64  /* refusals to arm in a row before sleeping all the same */
#define XF_SPIN_US   20  /* two cores may serve five processes: yielding, not burning */
#define XF_IDLE_MS   1000
#define XF_BUSY_MS   1       /* backlog full, or an engine without a descriptor */
#define XF_STOP_US   1000000 /* goodbyes at destroy */
#define XF_EPOLL_N   4

/* ---- checksums ---- */

uint64_t td_slice_header_sum(const struct td_slice_header *h)
{
    struct td_slice_header c = *h;
    c.header_sum = 0;
    return td_slice_checksum(TD_SLICE_MAGIC, &c, sizeof c);
}

uint64_t td_slice_checksum(uint64_t sum, const void *piece, size_t n)
{
    const uint8_t *p = piece;
    uint64_t word;
    for (; n >= sizeof word; n -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    word = n;
    memcpy(&word, p, n);
    return td_mix64(sum ^ word ^ ((uint64_t)n << 56));
}

/* ---- the loop's side ---- */

static bool cmd_blocks_ok(const struct td_xfer *x, const struct td_xfer_cmd *c)
{
    if (c->land == 0 || c->n_blocks == 0 || c->n_blocks > TD_WIRE_MAX_BLOCKS || c->n_layers == 0 ||
        c->n_layers > x->info->layout.n_layers || c->blocks == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        uint32_t b = c->type == TD_XFER_LAND ? c->blocks[i].index : c->src[i];
        if (b >= x->info->n_blocks) {
            return false;
        }
    }
    return true;
}

static bool cmd_ok(const struct td_xfer *x, const struct td_xfer_cmd *c)
{
    switch (c->type) {
    case TD_XFER_CONNECT:
        return c->epoch != 0 && c->epoch != x->epoch && c->bytes != NULL && c->n_bytes > 0 &&
               c->n_bytes <= TD_UCX_MAX_ADDRESS;
    case TD_XFER_SEND:
        return c->bytes != NULL && c->n_bytes > 0 && c->n_bytes <= TD_XFER_MAX_MSG;
    case TD_XFER_LAND:
        return cmd_blocks_ok(x, c);
    case TD_XFER_PUSH:
        return c->push != 0 && c->src != NULL && cmd_blocks_ok(x, c);
    case TD_XFER_UNLAND:
        return c->land != 0;
    case TD_XFER_PUSH_CANCEL:
        return c->push != 0;
    case TD_XFER_CLOSE:
        return true;
    }
    return false;
}

static size_t cmd_struct_bytes(enum td_xfer_cmd_type type)
{
    switch (type) {
    case TD_XFER_SEND:
        return sizeof(struct xf_send);
    case TD_XFER_LAND:
        return sizeof(struct xf_land);
    case TD_XFER_PUSH:
        return sizeof(struct xf_push);
    case TD_XFER_CONNECT:
    case TD_XFER_UNLAND:
    case TD_XFER_PUSH_CANCEL:
    case TD_XFER_CLOSE:
        break;
    }
    return sizeof(struct xf_cmd);
}

/* The command and copies of what it points at, in one allocation. */
static struct xf_cmd *cmd_copy(const struct td_xfer_cmd *c)
{
    size_t head = cmd_struct_bytes(c->type);
    size_t tail = c->type == TD_XFER_LAND   ? c->n_blocks * sizeof *c->blocks
                  : c->type == TD_XFER_PUSH ? c->n_blocks * sizeof *c->src
                                            : c->n_bytes;
    struct xf_cmd *cmd = td_zalloc(1, head + tail);
    if (cmd == NULL) {
        return NULL;
    }
    uint8_t *copy = (uint8_t *)cmd + head;
    cmd->c = *c;
    if (c->type == TD_XFER_LAND) {
        memcpy(copy, c->blocks, tail);
        cmd->c.blocks = (const struct td_block_ref *)(const void *)copy;
    } else if (c->type == TD_XFER_PUSH) {
        ((struct xf_push *)cmd)->generation = c->blocks[0].generation;
        memcpy(copy, c->src, tail);
        cmd->c.src = (const uint32_t *)(const void *)copy;
        cmd->c.blocks = NULL;
    } else if (tail > 0) {
        memcpy(copy, c->bytes, tail);
        cmd->c.bytes = copy;
    }
    return cmd;
}

td_err td_xfer_submit(struct td_xfer *x, const struct td_xfer_cmd *c)
{
    TD_REQUIRE(x->magic == XF_MAGIC);
    if (!cmd_ok(x, c)) {
        TD_LOG(WARN, "transfer command out of range, ignoring", "type=%d land=%016lx", (int)c->type,
               (unsigned long)c->land);
        return TD_ERR_BAD_REQUEST;
    }
    struct xf_cmd *cmd = cmd_copy(c);
    if (cmd == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    cmd->seq = ++x->next_seq;
    td_err e = td_ring_push(x->commands, &cmd);
    if (e != TD_OK) {
        free(cmd);
    }
    return e;
}

static void release_held(struct td_xfer *x)
{
    if (x->held != NULL) {
        free(x->held);
        x->held = NULL;
        /* Relaxed: the transfer thread only compares it with a limit. */
        (void)__atomic_sub_fetch(&x->msg_bytes, x->held_msg_bytes, __ATOMIC_RELAXED);
    }
}

bool td_xfer_poll(struct td_xfer *x, struct td_xfer_event *out)
{
    struct xf_record r;
    release_held(x);
    if (!td_ring_pop(x->events, &r)) {
        td_ring_ack(x->events);
        if (!td_ring_pop(x->events, &r)) { /* what came between is not announced again */
            return false;
        }
    }
    x->held = r.owned;
    x->held_msg_bytes = r.ev.n_bytes;
    *out = r.ev;
    return true;
}

int td_xfer_event_fd(const struct td_xfer *x)
{
    return td_ring_fd(x->events);
}

void td_xfer_address(const struct td_xfer *x, const uint8_t **out_addr, size_t *out_len)
{
    *out_addr = x->ucx.address;
    *out_len = x->ucx.address_bytes;
}

const char *td_xfer_transport(const struct td_xfer *x, uint64_t epoch)
{
    struct td_xfer *m = (struct td_xfer *)(uintptr_t)x; /* the lock is not part of the value */
    const char *name = "";
    (void)pthread_mutex_lock(&m->transports_lock);
    for (size_t i = 0; i < TD_XFER_MAX_PEERS; i++) {
        if (x->transports[i].epoch == epoch && epoch != 0) {
            name = x->transports[i].name;
        }
    }
    (void)pthread_mutex_unlock(&m->transports_lock);
    return name;
}

void td_xfer_stats_get(const struct td_xfer *x, struct td_xfer_stats *out)
{
    const uint64_t *from = (const uint64_t *)(const void *)&x->stats;
    uint64_t *to = (uint64_t *)(void *)out;
    _Static_assert(sizeof *out % sizeof(uint64_t) == 0, "all counters");
    for (size_t i = 0; i < sizeof *out / sizeof *to; i++) {
        to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
    }
}

/* ---- the transfer thread ---- */

TD_ON(td_xfer) static void run_command(struct td_xfer *x, struct xf_cmd *cmd)
{
    switch (cmd->c.type) {
    case TD_XFER_CONNECT:
        td__xf_peer_connect(x, cmd);
        break;
    case TD_XFER_SEND:
        td__xf_send_start(x, (struct xf_send *)cmd);
        break;
    case TD_XFER_LAND:
        td__xf_land_start(x, (struct xf_land *)cmd);
        break;
    case TD_XFER_UNLAND:
        td__xf_land_end(x, cmd);
        break;
    case TD_XFER_PUSH:
        td__xf_push_start(x, (struct xf_push *)cmd);
        break;
    case TD_XFER_PUSH_CANCEL:
        td__xf_push_cancel(x, cmd);
        break;
    case TD_XFER_CLOSE:
        td__xf_peer_close(x, cmd);
        break;
    }
}

TD_ON(td_xfer) static bool run_commands(struct td_xfer *x)
{
    struct xf_cmd *cmd;
    uint32_t n = 0;
    while (n < XF_BATCH && td_ring_pop(x->commands, &cmd)) {
        run_command(x, cmd);
        n++;
    }
    return n > 0;
}

static bool progress(struct td_xfer *x)
{
    bool busy = false;
    for (int i = 0; i < XF_PROGRESS && ucp_worker_progress(x->ucx.worker) != 0; i++) {
        busy = true;
    }
    return busy;
}

TD_ON(td_xfer) static bool pump(struct td_xfer *x, int64_t now)
{
    bool busy = false;
    x->gated = 0;
    x->wake_us = TD_NEVER;
    for (struct xf_peer *p = x->peer_list; p != NULL; p = p->next) {
        busy |= td__xf_peer_pump(p, now);
    }
    td__xf_peers_reap(x, now);
    td__xf_lands_reap(x, now);
    return busy;
}

TD_ON(td_xfer) static int sleep_ms(const struct td_xfer *x, int64_t now)
{
    int64_t ms = XF_IDLE_MS;
    if (x->backlog != NULL || td__xf_backlogged(x) ||
        (x->gated > 0 && x->engine->ops->layer_fd(x->engine) < 0)) {
        return XF_BUSY_MS;
    }
    if (x->wake_us != TD_NEVER) {
        int64_t left = (x->wake_us - now + 999) / 1000;
        ms = left < 0 ? 0 : left < ms ? left : ms;
    }
    return (int)ms;
}

static void drain_fd(int fd)
{
    uint64_t n;
    while (read(fd, &n, sizeof n) > 0) {
    }
}

/* Sleeps until UCX, the loop or the engine has something. */
TD_ON(td_xfer) static void wait_for_work(struct td_xfer *x, int64_t now)
{
    struct epoll_event ev[XF_EPOLL_N];
    bool full = td__xf_backlogged(x);
    bool armed = full || ucp_worker_arm(x->ucx.worker) == UCS_OK;
    if (!armed && ++x->busy_arms < XF_BUSY_ARMS) {
        return; /* something arrived meanwhile */
    }
    /* UCX stays busy for as long as a message to a frozen process cannot leave: then look once a millisecond. */
    if (!full && td_ring_count(x->commands) > 0) {
        return;
    }
    if (__atomic_load_n(&x->stop, __ATOMIC_RELAXED)) {
        return;
    }
    int n = epoll_wait(x->epoll_fd, ev, XF_EPOLL_N, armed ? sleep_ms(x, now) : XF_BUSY_MS);
    for (int i = 0; i < n; i++) {
        if (ev[i].data.fd == td_ring_fd(x->commands)) {
            td_ring_ack(x->commands);
        } else if (ev[i].data.fd != x->ucx.event_fd) {
            drain_fd(ev[i].data.fd);
        }
    }
}

/* One turn; true when it did something. */
TD_ON(td_xfer) static bool turn(struct td_xfer *x)
{
    bool busy = false;
    td__xf_events_flush(x);
    if (!td__xf_backlogged(x)) {
        busy |= run_commands(x);
        busy |= progress(x);
    }
    busy |= pump(x, td_now_us());
    td__xf_events_flush(x);
    return busy;
}

TD_ON(td_xfer) static void say_goodbye(struct td_xfer *x)
{
    int64_t until = td_now_us() + XF_STOP_US;
    for (struct xf_peer *p = x->peer_list; p != NULL; p = p->next) {
        td__xf_peer_end(p, TD_ERR_CLOSED, false);
    }
    while (x->peer_list != NULL && td_now_us() < until) {
        (void)progress(x);
        td__xf_peers_reap(x, td_now_us());
        td__xf_events_discard(x);
        (void)sched_yield();
    }
    if (x->peer_list != NULL) {
        TD_LOG(WARN, "connections did not end, leaving them to UCX", "inflight=%u", x->inflight);
    }
}

static void *thread_main(void *arg)
{
    struct td_xfer *x = arg;
    int64_t idle_since = 0;
    td_thread_enter(&td_xfer, "td-xfer");
    td_assert_on(td_xfer);
    /* Relaxed: destroy() wakes us through the ring's descriptor. */
    while (!__atomic_load_n(&x->stop, __ATOMIC_RELAXED)) {
        if (turn(x)) {
            idle_since = 0;
            x->busy_arms = 0;
            continue;
        }
        int64_t now = td_now_us();
        if (idle_since == 0) {
            idle_since = now;
        }
        if (x->inflight > 0 && now - idle_since < XF_SPIN_US) {
            (void)sched_yield();
        } else {
            wait_for_work(x, now);
            idle_since = 0;
        }
    }
    say_goodbye(x);
    return NULL;
}

/* ---- birth and death ---- */

static td_err watch(struct td_xfer *x, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(x->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0) {
        TD_LOG(ERROR, "epoll_ctl failed", "fd=%d errno=%d", fd, errno);
        return TD_ERR_IO;
    }
    return TD_OK;
}

static td_err create_tables(struct td_xfer *x)
{
    uint64_t seed = x->epoch;
    x->peers = td_map_create(TD_XFER_MAX_PEERS, seed);
    x->lands = td_map_create(TD_XFER_MAX_LANDS, seed);
    x->pushes = td_map_create(TD_XFER_MAX_PUSHES, seed);
    x->recvs = td_zalloc(XF_MAX_RECVS, sizeof *x->recvs);
    if (x->peers == NULL || x->lands == NULL || x->pushes == NULL || x->recvs == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    for (size_t i = XF_MAX_RECVS; i-- > 0;) {
        x->recvs[i].free_next = x->recv_free;
        x->recv_free = &x->recvs[i];
    }
    TD_TRY(td_ring_create(XF_RING_COMMANDS, sizeof(struct xf_cmd *), true, &x->commands));
    TD_TRY(td_ring_create(XF_RING_EVENTS, sizeof(struct xf_record), true, &x->events));
    x->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (x->epoll_fd < 0) {
        TD_LOG(ERROR, "epoll_create1 failed", "errno=%d", errno);
        return TD_ERR_IO;
    }
    return TD_OK;
}

static td_err open_ucx(struct td_xfer *x, const struct td_xfer_params *p)
{
    struct td_ucx_params u = {
        .device = p->device,
        .transports = p->transports,
        .port_first = p->port_first,
        .port_last = p->port_last,
        .trust_network = p->trust_network,
        .pool = x->pool,
        .pool_bytes = (size_t)x->info->n_blocks * x->info->layout.block_bytes,
        .probe = &x->probe,
    };
    TD_TRY(td_ucx_open(&u, &x->ucx));
    x->stats.registrations = x->ucx.registrations;
    TD_TRY(td__xf_peer_handlers(x));
    TD_TRY(td__xf_land_handlers(x));
    TD_TRY(td__xf_ref_handlers(x));
    TD_TRY(watch(x, x->ucx.event_fd));
    TD_TRY(watch(x, td_ring_fd(x->commands)));
    int layers = x->engine->ops->layer_fd(x->engine);
    return layers >= 0 ? watch(x, layers) : TD_OK;
}

static td_err start_thread(struct td_xfer *x)
{
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all); /* signals are the main thread's */
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&x->thread, NULL, thread_main, x);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        TD_LOG(ERROR, "the transfer thread cannot be started", "errno=%d", rc);
        return TD_ERR_NO_MEMORY;
    }
    x->started = true;
    return TD_OK;
}

static td_err create_all(struct td_xfer *x, const struct td_xfer_params *p)
{
    if (p->port_first > p->port_last || p->port_last > UINT16_MAX) {
        TD_LOG(ERROR, "bad port range, see --kv-port-range", "first=%u last=%u", p->port_first,
               p->port_last);
        return TD_ERR_CONFIG;
    }
    if (x->pool == NULL) {
        TD_LOG(ERROR, "the message path needs an engine with a host pool", "engine=%s",
               x->info->numerics != NULL ? x->info->numerics : "");
        return TD_ERR_CONFIG;
    }
    TD_TRY(create_tables(x));
    TD_TRY(open_ucx(x, p));
    return start_thread(x);
}

td_err td_xfer_create(const struct td_xfer_params *p, struct td_xfer **out_xfer)
{
    TD_REQUIRE(p->epoch != 0 && p->engine != NULL);
    struct td_xfer *x = td_zalloc(1, sizeof *x);
    if (x == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    x->epoch = p->epoch;
    x->engine = p->engine;
    x->info = p->engine->ops->info(p->engine);
    x->pool = p->engine->ops->pool_base(p->engine);
    x->checksum = p->checksum;
    x->refs = td_ucx_names(p->transports, "cma");
    x->probe = (struct xf_probe){XF_PROBE_MAGIC, p->epoch};
    x->fence_us = p->fence_us > 0 ? p->fence_us : XF_FENCE_US;
    x->epoll_fd = -1;
    x->backlog_tail = &x->backlog;
    (void)pthread_mutex_init(&x->transports_lock, NULL);
    x->magic = XF_MAGIC;
    td_err e = create_all(x, p);
    if (e != TD_OK) {
        (void)td_xfer_destroy(x);
        return e;
    }
    *out_xfer = x;
    return TD_OK;
}

static void free_rings(struct td_xfer *x)
{
    struct xf_cmd *cmd;
    struct xf_record r;
    while (x->commands != NULL && td_ring_pop(x->commands, &cmd)) {
        free(cmd);
    }
    while (x->events != NULL && td_ring_pop(x->events, &r)) {
        free(r.owned);
    }
    x->commands = td_ring_destroy(x->commands);
    x->events = td_ring_destroy(x->events);
}

struct td_xfer *td_xfer_destroy(struct td_xfer *x)
{
    if (x == NULL) {
        return NULL;
    }
    TD_REQUIRE(x->magic == XF_MAGIC);
    if (x->started) {
        struct td_xfer_cmd wake = {.type = TD_XFER_CLOSE}; /* of nobody */
        __atomic_store_n(&x->stop, true, __ATOMIC_RELAXED);
        td_err e = td_xfer_submit(x, &wake);
        (void)e; /* full: then it is awake anyway */
        (void)pthread_join(x->thread, NULL);
    }
    x->magic = 0;
    td_ucx_close(&x->ucx);
    td__xf_objects_free(x);
    release_held(x);
    free_rings(x);
    if (x->epoll_fd >= 0) {
        (void)close(x->epoll_fd);
    }
    x->peers = td_map_destroy(x->peers);
    x->lands = td_map_destroy(x->lands);
    x->pushes = td_map_destroy(x->pushes);
    (void)pthread_mutex_destroy(&x->transports_lock);
    free(x);
    return NULL;
}
