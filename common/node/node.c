/* Design: one function, nd__event, feeds the core and carries out what it wants, in order. Everything that happens to a
 * node (a message, a finished step, a slice, a deadline) comes through it, and nothing else calls the core.
 */
#define TD_LOG_ROOM "node"
#include "common/node/node.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/node/node_int.h"
#include "common/node/node_trace.h"

#define ARENA_BYTES (256u << 20)

/* bounds of docs/architecture.md, unscaled. */
#define T_STALL_US 5000000
#define T_LEASE_US 30000000
#define T_FENCE_US 5000000

/* ---- actions ---- */

static void do_step(struct td_node *n, const struct nd_action *a)
{
    td_ticket ticket = 0;
    td_err err = n->p.engine->ops->submit(n->p.engine, a->rows, a->n_rows, &ticket);
    if (err == TD_ERR_CLOSED) {
        return; /* it has ended by itself, as its next poll says */
    }
    if (err != TD_OK || ticket != n->last_ticket + 1) {
        TD_LOG(ERROR, "engine did not take a step", "err=%s ticket=%" PRIu64 " expected=%" PRIu64,
               td_err_code(err), ticket, n->last_ticket + 1);
    }
    n->last_ticket = ticket != 0 ? ticket : n->last_ticket;
}

/* The messages of the hand-over that a test may lose. */
static bool lost_by_fault(const struct td_wire_msg *m)
{
    return m != NULL && ((m->type == TD_WIRE_TABLE && TD_FAULT(XFER_TABLE_DROP)) ||
                         (m->type == TD_WIRE_RECORD && TD_FAULT(XFER_RECORD_DROP)) ||
                         (m->type == TD_WIRE_TAKEN && TD_FAULT(XFER_ACK_DROP)));
}

static void do_xfer(struct td_node *n, const struct nd_action *a)
{
    struct td_xfer_cmd cmd = a->cmd;
    td_err err = TD_OK;
    if (n->xfer == NULL) {
        TD_LOG(ERROR, "no data plane in this process", "cmd=%d", (int)cmd.type);
        return;
    }
    if (lost_by_fault(a->msg)) {
        TD_LOG(INFO, "fault point drops a message", "type=%s", td_wire_type_name(a->msg->type));
        return;
    }
    if (a->msg != NULL) {
        td_buf_clear(&n->out);
        err = td_wire_encode(a->msg, &n->out);
        cmd.bytes = n->out.data;
        cmd.n_bytes = n->out.len;
    }
    err = err == TD_OK ? td_xfer_submit(n->xfer, &cmd) : err;
    if (err != TD_OK) { /* the deadline of the work that wanted it ends that work */
        TD_LOG(ERROR, "data plane did not take a command", "cmd=%d err=%s", (int)cmd.type,
               td_err_code(err));
    }
}

static void do_seq_set(struct td_node *n, const struct nd_action *a)
{
    td_err err = n->p.engine->ops->seq_set(n->p.engine, a->slot, a->sampling);
    if (err != TD_OK) {
        TD_LOG(ERROR, "engine did not take sampling settings", "slot=%u err=%s", a->slot,
               td_err_code(err));
    }
}

/* The engine and the data plane first, so that they work while messages are encoded; each kind keeps its order. */
static void carry_out(struct td_node *n)
{
    for (uint32_t i = 0; i < n->acts.n; i++) {
        const struct nd_action *a = &n->acts.list[i];
        if (a->type == ND_DO_SEQ_SET) {
            do_seq_set(n, a);
        } else if (a->type == ND_DO_STEP) {
            do_step(n, a);
        } else if (a->type == ND_DO_XFER) {
            do_xfer(n, a);
        }
    }
    for (uint32_t i = 0; i < n->acts.n; i++) {
        const struct nd_action *a = &n->acts.list[i];
        if (a->type == ND_DO_SEND) {
            nd__send(n, a->router_epoch, a->msg);
        } else if (a->type == ND_DO_OBSERVE) {
            nd_metrics_observe(n->metrics, a->metric, a->value);
        } else if (a->type == ND_DO_DONE) {
            nd_metrics_done(n->metrics, a->done);
            if (n->p.otlp != NULL) {
                nd_trace_done(n->p.otlp, n->p.model_name, a->done);
            }
        }
    }
    if (n->acts.overflow) {
        TD_LOG(ERROR, "action list overflow", "max=%u", n->acts.max);
    }
}

static void step(struct td_node *n, const struct nd_event *ev)
{
    nd_actions_reset(&n->acts);
    n->p.role->step(n->core, td_now_us(), ev, &n->acts);
    carry_out(n);
}

/* Routers that were dropped on the way. */
static void settle(struct td_node *n)
{
    while (n->n_lost > 0) {
        struct nd_event ev = {.type = ND_EV_ROUTER_LOST, .router_epoch = n->lost[--n->n_lost]};
        step(n, &ev);
    }
}

void nd__event(struct td_node *n, const struct nd_event *ev)
{
    settle(n); /* before the same router may come again */
    step(n, ev);
    settle(n);
    td_timer_set(n->core_timer, n->p.role->next_deadline(n->core));
    nd__state_publish(n);
    nd__local_speak(n);
}

void nd__state(struct td_node *n, struct td_wire_state *out)
{
    memset(out, 0, sizeof *out);
    n->p.role->state(n->core, out);
    out->role = n->p.role_told;
    out->ready = true;
    out->draining = out->draining || n->draining || n->held;
}

/* ---- sources of events ---- */

static void on_core_timer(void *arg)
{
    struct nd_event ev = {.type = ND_EV_TICK};
    nd__event(arg, &ev);
}

static void on_engine(void *arg, unsigned ready)
{
    (void)ready;
    struct td_node *n = arg;
    struct td_step_result r;
    td_err err;
    while ((err = n->p.engine->ops->poll(n->p.engine, &r)) == TD_OK) {
        nd_metrics_step(n->metrics, r.exec_us);
        struct nd_event ev = {.type = ND_EV_STEP, .step = &r};
        nd__event(n, &ev);
    }
    if (err == TD_ERR_CLOSED && n->engine_watch != NULL) {
        n->engine_watch = td_watch_destroy(n->engine_watch);
        if (n->p.ended != NULL) {
            n->p.ended(n->p.ended_arg);
        }
    }
}

static void xfer_message(struct td_node *n, struct nd_event *ev)
{
    static struct td_wire_msg msg; /* loop thread only; lives for one event */
    td_arena_reset(n->arena);
    td_err err = td_wire_decode(ev->xfer->bytes, ev->xfer->n_bytes, n->arena, &msg);
    if (err != TD_OK) {
        TD_LOG(ERROR, "peer sent an unreadable message", "peer=%016" PRIx64 " err=%s, dropping it",
               ev->xfer->epoch, td_err_code(err));
        nd_metrics_observe(n->metrics, ND_M_STALE, 1);
        return;
    }
    ev->msg = &msg;
    nd__event(n, ev);
}

/* Times of a transfer on this host's monotonic clock: tests lay them beside the engine's layers. */
static void log_progress(const struct td_xfer_event *x)
{
    if (x->type == TD_XFER_PUSHED) {
        TD_LOG(DEBUG, "chunk pushed",
               "land=%016" PRIx64 " bytes=%zu first_us=%" PRId64 " last_us=%" PRId64 " err=%s",
               x->land, x->n_bytes, x->first_post_us, x->last_done_us, td_err_code(x->err));
    } else if (x->type == TD_XFER_LANDED) {
        TD_LOG(DEBUG, "slices landed", "land=%016" PRIx64 " slices=%u bytes=%zu last_us=%" PRId64,
               x->land, x->n_slices, x->n_bytes, x->last_done_us);
    }
}

static void on_xfer(void *arg, unsigned ready)
{
    (void)ready;
    struct td_node *n = arg;
    struct td_xfer_event x;
    while (td_xfer_poll(n->xfer, &x)) {
        struct nd_event ev = {.type = ND_EV_XFER, .xfer = &x};
        log_progress(&x);
        nd_metrics_xfer(n->metrics, &x);
        if (x.type == TD_XFER_MSG) {
            xfer_message(n, &ev);
        } else {
            nd__event(n, &ev);
        }
    }
}

/* ---- life ---- */

static td_err make_core(struct td_node *n)
{
    const struct td_engine_info *info = n->p.engine->ops->info(n->p.engine);
    struct nd_core_params p = {.epoch = n->epoch,
                               .name = n->name,
                               .engine = info,
                               .layout_id = td_kv_layout_id(&info->layout),
                               .max_seqs = n->p.max_seqs,
                               .max_queue = n->p.max_queue,
                               .max_batched_tokens = n->p.max_batched_tokens,
                               .chunk_tokens = n->p.chunk_tokens,
                               .steps_in_flight = n->p.steps_in_flight,
                               .t_stall_us = (int64_t)(T_STALL_US * n->p.time_scale),
                               .t_lease_us = (int64_t)(T_LEASE_US * n->p.time_scale),
                               .local_prefill = n->p.role_told == TD_ROLE_BOTH,
                               .local_epoch = n->local_epoch};
    TD_TRY(nd_core_params_check(&p));
    TD_TRY(n->p.role->create(&p, &n->core));
    TD_TRY(nd_actions_init(&n->acts, nd_actions_needed(&p)));
    n->arena = td_arena_create(ARENA_BYTES);
    return n->arena != NULL ? TD_OK : TD_ERR_NO_MEMORY;
}

static td_err make_xfer(struct td_node *n)
{
    struct td_xfer_params p = {.epoch = n->epoch,
                               .engine = n->p.engine,
                               .device = n->p.kv_device,
                               .transports = n->p.kv_transports,
                               .port_first = n->p.kv_port_first,
                               .port_last = n->p.kv_port_last,
                               .trust_network = n->p.kv_trust_network,
                               .checksum = n->p.kv_checksum,
                               .fence_us = (int64_t)(T_FENCE_US * n->p.time_scale)};
    if (!n->p.data_plane) {
        return TD_OK;
    }
    TD_TRY(td_xfer_create(&p, &n->xfer));
    return td_watch_create(n->p.loop, "nd-xfer", td_xfer_event_fd(n->xfer), TD_WATCH_READ, on_xfer,
                           n, &n->xfer_watch);
}

static td_err make_all(struct td_node *n)
{
    TD_TRY(make_core(n));
    TD_TRY(nd_metrics_create(n, &n->metrics));
    TD_TRY(td_timer_create(n->p.loop, "nd-core", on_core_timer, n, &n->core_timer));
    TD_TRY(td_timer_create(n->p.loop, "nd-state", nd__state_timer, n, &n->state_timer));
    TD_TRY(td_watch_create(n->p.loop, "nd-engine", n->p.engine->ops->event_fd(n->p.engine),
                           TD_WATCH_READ, on_engine, n, &n->engine_watch));
    TD_TRY(make_xfer(n));
    TD_TRY(nd__local_create(n));
    TD_TRY(nd__admin_create(n));
    TD_TRY(nd__links_create(n)); /* tells routers the admin port */
    td_timer_set(n->state_timer, td_now_us() + ND_STATE_IDLE_US);
    return TD_OK;
}

/* What a peer takes for a name: anything else would end every handshake without a word. */
static bool name_fits(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++) {
        if (name[i] <= ' ' || name[i] >= 0x7f || name[i] == '"') {
            return false;
        }
    }
    return n > 0 && n < TD_WIRE_MAX_NAME;
}

td_err td_node_create(const struct td_node_params *p, struct td_node **out_node)
{
    if (!name_fits(p->name)) {
        TD_LOG(ERROR, "the name does not fit",
               "option=name remedy=\"no blanks, no quotes, ASCII\"");
        return TD_ERR_CONFIG;
    }
    struct td_node *n = td_zalloc(1, sizeof *n);
    if (n == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    n->p = *p;
    (void)snprintf(n->name, sizeof n->name, "%s", p->name);
    n->epoch = td_rng_u64_secure() | 1;
    n->local_epoch = p->local ? td_rng_u64_secure() | 1 : 0;
    n->started_us = td_now_us();
    td_buf_init(&n->out, TD_WIRE_MAX_BYTES);
    td_err err = make_all(n);
    if (err != TD_OK) {
        td_node_destroy(n);
        return err;
    }
    TD_LOG(INFO, "node listening", "node=%s epoch=%016" PRIx64 " role=%s control=%s admin=%s:%u",
           n->name, n->epoch, p->role_told == TD_ROLE_BOTH ? "both" : p->role->name,
           td_node_control_url(n), p->admin_host, td_node_admin_port(n));
    *out_node = n;
    return TD_OK;
}

struct td_node *td_node_destroy(struct td_node *n)
{
    if (n == NULL) {
        return NULL;
    }
    nd_admin_destroy(n->admin);
    td_link_nng_destroy(n->links);
    td_watch_destroy(n->xfer_watch);
    td_watch_destroy(n->engine_watch);
    td_xfer_destroy(n->xfer);
    td_timer_destroy(n->core_timer);
    td_timer_destroy(n->state_timer);
    nd__local_destroy(n);
    if (n->core != NULL) {
        n->p.role->destroy(n->core);
    }
    nd_actions_fini(&n->acts);
    nd_metrics_destroy(n->metrics);
    td_arena_destroy(n->arena);
    td_buf_fini(&n->out);
    free(n);
    return NULL;
}

const char *td_node_control_url(const struct td_node *n)
{
    return td_link_nng_listen_url(n->links, 0);
}

void td_node_reload_tls(struct td_node *n)
{
    nd_admin_reload_tls(n->admin);
}

uint16_t td_node_admin_port(const struct td_node *n)
{
    return nd_admin_port(n->admin);
}

void td_node_drain(struct td_node *n, int64_t limit_us)
{
    struct nd_event ev = {.type = ND_EV_DRAIN, .deadline_us = td_now_us() + limit_us};
    n->draining = true;
    nd__event(n, &ev);
}

bool td_node_idle(const struct td_node *n)
{
    for (uint32_t i = 0; i < n->n_routers; i++) {
        struct td_link_session_stats s;
        if (td_link_session_stats(td_link_nng_core(n->links), n->routers[i].session, &s) &&
            s.queued_bytes + s.unacked_bytes > 0) {
            return false;
        }
    }
    return n->p.role->work_count(n->core) == 0 && td_node_local_count(n) == 0;
}

void td_node_bye(struct td_node *n)
{
    struct nd_event ev = {.type = ND_EV_TICK};
    td_link_nng_close(n->links, TD_ERR_DRAINING);
    while (n->n_routers > 0) {
        n->lost[n->n_lost++] = n->routers[--n->n_routers].epoch;
    }
    nd__event(n, &ev);
}

bool td_node_gone(const struct td_node *n)
{
    return td_link_nng_idle(n->links);
}
