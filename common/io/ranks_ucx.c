#define TD_LOG_ROOM "io"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/ranks_int.h"

/* Design: tag messages of known sizes. A tag is {kind, source rank, number of the call}, so that a fast rank's next
 * message never meets a slow rank's last receive. Whoever calls drives the worker until its own operations have ended;
 * between calls nobody does, so a call flushes what it sent before it returns: bytes left in a socket's queue would
 * wait for our next step while the receiver waits for them.
 *
 * Waiting: spins for a moment if every rank of this host has a core, then arms the worker and sleeps on its descriptor,
 * the group's stop descriptor and the links.
 *
 * Trouble in mid call: buffers are the caller's again when the call returns, so the endpoints are closed by force, and
 * when UCX still holds an operation then, UCX itself is closed on the spot. The group is over anyway. */

#define RK_PROGRESS  32
#define RK_SPIN_US   50 /* yielding, not burning: ranks may share cores with others */
#define RK_BUSY_ARMS 64 /* refusals to arm in a row before sleeping all the same, see xfer.c */
#define RK_BUSY_MS   1
#define RK_CLOSE_US  1000000
#define RK_LEAVE_US  1000000 /* for the last message, once rank 0 has said that it ends the group */
#define RK_FIRST_US  10000000

enum kind { KIND_EXCHANGE, KIND_TELL };

static ucp_tag_t tag_of(enum kind kind, uint32_t source, uint64_t seq)
{
    return (ucp_tag_t)(kind + 1u) << 56 | (ucp_tag_t)source << 48 | (seq & ((1ull << 48) - 1));
}

/* ---- operations ---- */

static void op_end(struct rk_op *op, ucs_status_t status)
{
    op->busy = false;
    op->request = NULL;
    op->status = status;
    op->g->busy--;
    op->g->bad += status != UCS_OK;
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    op_end(arg, status);
    ucp_request_free(request);
}

static void on_received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info,
                        void *arg)
{
    struct rk_op *op = arg;
    op->bytes = info->length;
    op_end(op, status);
    if (!op->posting) { /* else UCX returns it yet */
        ucp_request_free(request);
    }
}

static void op_begin(struct rk_group *g, struct rk_op *op)
{
    *op = (struct rk_op){.g = g, .busy = true};
    g->busy++;
}

/* What UCX returned: the operation has ended already, failed at once, or will call back. */
static void op_posted(struct rk_op *op, ucs_status_ptr_t r)
{
    if (UCS_PTR_IS_PTR(r)) {
        op->request = r;
    } else {
        op_end(op, UCS_PTR_STATUS(r));
    }
}

static void post_send(struct rk_group *g, uint32_t rank, ucp_tag_t tag, const void *data, size_t n)
{
    struct rk_op *op = &g->sends[rank];
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb = {.send = on_sent},
        .user_data = op,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    op_begin(g, op);
    op_posted(op, ucp_tag_send_nbx(g->peers[rank].ep, data, n, tag, &param));
    atomic_fetch_add_explicit(&g->bytes_out, n, memory_order_relaxed); /* counts only */
}

static void post_recv(struct rk_group *g, uint32_t rank, ucp_tag_t tag, void *data, size_t n)
{
    struct rk_op *op = &g->recvs[rank];
    /* UCX 1.13 does not tell the length of a message that is there already, unless by the callback. */
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
        .cb = {.recv = on_received},
        .user_data = op,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
    op_begin(g, op);
    op->posting = true;
    ucs_status_ptr_t r = ucp_tag_recv_nbx(g->ucx.worker, data, n, tag, UINT64_MAX, &param);
    op->posting = false;
    if (op->busy) {
        op_posted(op, r);
    } else {
        ucp_request_free(r);
    }
}

/* ---- trouble ---- */

static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct rk_group *g = arg;
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (g->peers[i].ep == ep && !g->peers[i].failed) {
            g->peers[i].failed = true;
            g->failed++;
            TD_LOG(DEBUG, "connection to a rank failed", "rank=%u text=\"%s\"", i,
                   ucs_status_string(status));
        }
    }
}

static td_err op_error(const struct rk_op *op)
{
    switch ((int)op->status) {
    case UCS_ERR_MESSAGE_TRUNCATED:
        return TD_ERR_PROTOCOL;
    case UCS_ERR_NO_MEMORY:
        return TD_ERR_NO_MEMORY;
    default:
        return TD_ERR_PEER_LOST;
    }
}

/* Operations that failed, and those that never end because their rank's connection has. */
static void check_ops(struct rk_group *g)
{
    for (uint32_t i = 0; i < g->base.n; i++) {
        const struct rk_op *ops[] = {&g->sends[i], &g->recvs[i]};
        for (size_t k = 0; k < TD_COUNT(ops); k++) {
            if (!ops[k]->busy && ops[k]->status != UCS_OK) {
                td_err e = op_error(ops[k]);
                td__rk_fail(g, e, i,
                            e == TD_ERR_PROTOCOL ? "its message is longer than the room for it"
                                                 : ucs_status_string(ops[k]->status));
            } else if (ops[k]->busy && g->peers[i].failed) {
                td__rk_fail(g, TD_ERR_PEER_LOST, i, "its connection broke");
            }
        }
    }
}

/* The deadline has passed: names one of those that we wait for. */
static void fail_stalled(struct rk_group *g)
{
    uint32_t rank = RK_NONE;
    char why[64];
    for (uint32_t i = g->base.n; i-- > 0;) {
        if (g->recvs[i].busy || g->sends[i].busy) {
            rank = i;
        }
    }
    (void)snprintf(why, sizeof why, "no answer for %" PRId64 " ms", g->wait_us / 1000);
    td__rk_fail(g, TD_ERR_STALLED, rank, why);
}

static td_err over(struct rk_group *g)
{
    /* acquire: whoever sees the end sees what was written before it */
    return (td_err)atomic_load_explicit(&g->err, memory_order_acquire);
}

/* ---- waiting ---- */

static bool progress(struct rk_group *g)
{
    bool did = false;
    for (int i = 0; i < RK_PROGRESS && ucp_worker_progress(g->ucx.worker) != 0; i++) {
        did = true;
    }
    return did;
}

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int sleep_ms(bool armed, int64_t now_us, int64_t until_us)
{
    if (!armed) {
        return RK_BUSY_MS;
    }
    if (until_us == TD_NEVER) {
        return -1;
    }
    int64_t ms = (until_us - now_us + 999) / 1000;
    return ms < 0 ? 0 : ms < INT32_MAX ? (int)ms : INT32_MAX;
}

static void sleep_until(struct rk_group *g, int64_t now_us, int64_t until_us)
{
    struct pollfd fds[] = {
        {.fd = g->stop_fd, .events = POLLIN},
        {.fd = g->watch_fd, .events = POLLIN},
        {.fd = g->ucx.event_fd, .events = POLLIN},
    };
    bool armed = ucp_worker_arm(g->ucx.worker) == UCS_OK;
    if (!armed && ++g->busy_arms < RK_BUSY_ARMS) {
        return;
    }
    if (poll(fds, TD_COUNT(fds), sleep_ms(armed, now_us, until_us)) > 0 && fds[1].revents != 0) {
        td__rk_listen(g);
    }
}

/* Until all operations have ended (true) or the group has. `deadline_us` TD_NEVER: for as long as rank 0 lives. */
static bool drive(struct rk_group *g, int64_t deadline_us)
{
    int64_t idle_since = 0, leave_at = TD_NEVER;
    for (;;) {
        bool did = progress(g);
        if (g->bad > 0 || (g->failed > 0 && g->busy > 0)) {
            check_ops(g);
        }
        if (over(g) != TD_OK) {
            return false;
        }
        if (g->busy == 0) {
            return true;
        }
        int64_t now = td_now_us();
        if (now >= deadline_us) {
            fail_stalled(g);
            return false;
        }
        if (leave_at == TD_NEVER) {
            /* relaxed: seen a moment later is as good */
            leave_at = atomic_load_explicit(&g->ended, memory_order_relaxed) ? now + RK_LEAVE_US
                                                                             : TD_NEVER;
        } else if (now >= leave_at) {
            td__rk_fail(g, TD_ERR_PEER_LOST, 0, "it ended the group in mid call");
            return false;
        }
        idle_since = did || idle_since == 0 ? now : idle_since;
        if (did) {
            g->busy_arms = 0;
        } else if (g->spins && now - idle_since < RK_SPIN_US) {
            (void)sched_yield();
        } else {
            sleep_until(g, now, deadline_us < leave_at ? deadline_us : leave_at);
        }
    }
}

static void on_flushed(void *request, ucs_status_t status, void *arg)
{
    /* A connection that broke meanwhile is the next call's affair: what this one sent is there. */
    (void)status;
    op_end(arg, UCS_OK);
    ucp_request_free(request);
}

static void post_flush(struct rk_group *g)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = on_flushed},
        .user_data = &g->flush,
    };
    op_begin(g, &g->flush);
    ucs_status_ptr_t r = ucp_worker_flush_nbx(g->ucx.worker, &param);
    op_posted(&g->flush, UCS_PTR_IS_ERR(r) ? NULL : r);
}

/* Drives a call to its end. On failure nothing of it is under way any more. */
static td_err finish(struct rk_group *g, int64_t deadline_us, bool sent)
{
    bool ok = drive(g, deadline_us);
    if (ok && sent) {
        post_flush(g);
        ok = drive(g, deadline_us);
    }
    if (!ok && g->busy > 0) {
        td__rk_disconnect(g);
    }
    return over(g);
}

static td_err enter(struct rk_group *g)
{
    TD_TRY(over(g));
    if (TD_FAULT(RANK_EXCHANGE)) {
        td__rk_fail(g, TD_ERR_TRANSPORT, RK_NONE, "fault point rank.exchange");
    }
    g->bad = 0;
    return over(g);
}

/* Adds up the call's time. */
static void leave(struct rk_group *g, int64_t start_us)
{
    atomic_fetch_add_explicit(&g->waited_us, (uint64_t)(td_now_us() - start_us),
                              memory_order_relaxed); /* counts only */
}

/* ---- the vtable ---- */

static td_err check_sizes(struct rk_group *g, const struct td_rank_in *in)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (i == g->base.rank || in[i].bytes == 0) {
            continue;
        }
        sum += in[i].bytes;
        if (g->recvs[i].bytes != in[i].bytes) {
            td__rk_fail(g, TD_ERR_PROTOCOL, i, "its message has another size than was agreed on");
        }
    }
    atomic_fetch_add_explicit(&g->bytes_in, sum, memory_order_relaxed); /* counts only */
    return over(g);
}

static td_err exchange(struct td_ranks *r, const struct td_rank_out *out,
                       const struct td_rank_in *in)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC);
    int64_t start = td_now_us();
    bool sent = false;
    TD_TRY(enter(g));
    uint64_t seq = g->seq[KIND_EXCHANGE]++;
    for (uint32_t k = 1; k < r->n; k++) {
        uint32_t p = (r->rank + r->n - k) % r->n;
        if (in[p].bytes > 0) {
            post_recv(g, p, tag_of(KIND_EXCHANGE, p, seq), in[p].data, in[p].bytes);
        }
    }
    for (uint32_t k = 1; k < r->n; k++) { /* everybody begins with another one */
        uint32_t p = (r->rank + k) % r->n;
        if (out[p].bytes > 0) {
            post_send(g, p, tag_of(KIND_EXCHANGE, r->rank, seq), out[p].data, out[p].bytes);
            sent = true;
        }
    }
    td_err e = finish(g, start + g->wait_us, sent);
    if (e == TD_OK) {
        e = check_sizes(g, in);
    }
    atomic_fetch_add_explicit(&g->exchanges, 1, memory_order_relaxed); /* counts only */
    leave(g, start);
    return e;
}

static td_err tell(struct td_ranks *r, const void *data, size_t n)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC && r->rank == 0);
    int64_t start = td_now_us();
    TD_TRY(enter(g));
    uint64_t seq = g->seq[KIND_TELL]++;
    for (uint32_t p = 1; p < r->n; p++) {
        post_send(g, p, tag_of(KIND_TELL, 0, seq), data, n);
    }
    td_err e = finish(g, start + g->wait_us, true);
    leave(g, start);
    return e;
}

static td_err hear(struct td_ranks *r, void *out, size_t cap, size_t *out_n)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC && r->rank != 0);
    TD_TRY(enter(g));
    post_recv(g, 0, tag_of(KIND_TELL, 0, g->seq[KIND_TELL]++), out, cap);
    TD_TRY(finish(g, TD_NEVER, false));
    *out_n = g->recvs[0].bytes;
    atomic_fetch_add_explicit(&g->bytes_in, *out_n, memory_order_relaxed); /* counts only */
    return TD_OK;
}

static void stop(struct td_ranks *r)
{
    struct rk_group *g = td__rk_of(r);
    TD_REQUIRE(g->magic == RK_MAGIC);
    td__rk_fail(g, TD_ERR_CLOSED, RK_NONE, "stopped");
}

const struct td_ranks_ops td__rk_ops = {
    .exchange = exchange, .tell = tell, .hear = hear, .stop = stop};

/* ---- endpoints ---- */

td_err td__rk_connect(struct rk_group *g, uint32_t rank, const uint8_t *address, size_t n)
{
    struct td_ucx_place place;
    ucp_err_handler_t on_error = {on_ep_error, g};
    td_err e = td_ucx_connect(&g->ucx, address, n, on_error, &g->peers[rank].ep);
    if (e != TD_OK) {
        TD_LOG(ERROR, "no data plane to a rank, give all the same --kv-transports and --kv-device",
               "rank=%u name=%s err=%s", rank, g->peers[rank].name, td_err_code(e));
        return e;
    }
    g->n_here += td_ucx_place_here(&g->ucx, address, n, &place);
    if (rank == (g->base.rank + 1) % g->base.n) {
        g->transport = td_ucx_transport(g->peers[rank].ep);
    }
    return TD_OK;
}

td_err td__rk_first_exchange(struct rk_group *g)
{
    struct {
        uint64_t group, rank;
    } mine = {g->id, g->base.rank}, theirs[TD_RANKS_MAX] = {0};
    struct td_rank_out out[TD_RANKS_MAX] = {0};
    struct td_rank_in in[TD_RANKS_MAX] = {0};
    int64_t wait_us = g->wait_us;
    for (uint32_t i = 0; i < g->base.n; i++) {
        out[i] = (struct td_rank_out){&mine, sizeof mine};
        in[i] = (struct td_rank_in){&theirs[i], sizeof theirs[i]};
    }
    g->wait_us = RK_FIRST_US;
    td_err e = exchange(&g->base, out, in);
    g->wait_us = wait_us;
    TD_TRY(e);
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (i != g->base.rank && (theirs[i].group != g->id || theirs[i].rank != i)) {
            td__rk_fail(g, TD_ERR_PROTOCOL, i, "its first message is of another group");
        }
    }
    return over(g);
}

/* Receives that nothing has matched yet end here. */
static void cancel_receives(struct rk_group *g)
{
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (g->recvs[i].busy && g->recvs[i].request != NULL) {
            ucp_request_cancel(g->ucx.worker, g->recvs[i].request);
        }
    }
}

void td__rk_close_endpoints(struct rk_group *g, bool force)
{
    ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
    void *closing[TD_RANKS_MAX];
    uint32_t n = 0;
    int64_t until = td_now_us() + RK_CLOSE_US;
    for (uint32_t i = 0; i < g->base.n; i++) {
        if (g->peers[i].ep != NULL) {
            ucs_status_ptr_t r = ucp_ep_close_nbx(g->peers[i].ep, &param);
            g->peers[i].ep = NULL;
            if (UCS_PTR_IS_PTR(r)) {
                closing[n++] = r;
            }
        }
    }
    while ((n > 0 || (force && g->busy > 0)) && td_now_us() < until) {
        if (!progress(g)) {
            cpu_pause();
        }
        while (n > 0 && ucp_request_check_status(closing[n - 1]) != UCS_INPROGRESS) {
            ucp_request_free(closing[--n]);
        }
    }
    while (n > 0) {
        ucp_request_free(closing[--n]); /* UCX's from now on */
    }
}

void td__rk_disconnect(struct rk_group *g)
{
    if (!g->open) {
        return;
    }
    cancel_receives(g);
    td__rk_close_endpoints(g, true);
    if (g->busy > 0) {
        TD_LOG(DEBUG, "UCX is closed with operations under way", "operations=%u", g->busy);
    }
    td_ucx_close(&g->ucx);
    g->open = false;
}
