/* Design: routers attach to us. Load is published as whole snapshots with a sequence per router: at most every 50 ms while
 * it changes, at least every second; a router that sees a gap asks for a full one.
 */
#define TD_LOG_ROOM "node"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/node/node_int.h"

static struct nd_router *find_router(struct td_node *n, uint64_t epoch)
{
    for (uint32_t i = 0; i < n->n_routers; i++) {
        if (n->routers[i].epoch == epoch) {
            return &n->routers[i];
        }
    }
    return NULL;
}

static void forget_router(struct td_node *n, uint64_t epoch)
{
    struct nd_router *r = find_router(n, epoch);
    if (r != NULL) {
        *r = n->routers[--n->n_routers];
    }
}

static void lose_router(struct td_node *n, uint64_t epoch)
{
    struct nd_event ev = {.type = ND_EV_ROUTER_LOST, .router_epoch = epoch};
    forget_router(n, epoch);
    nd__event(n, &ev);
}

/* Not now: nd__send runs inside of steps of the core. */
static void drop_router(struct td_node *n, const struct nd_router *r, td_err reason)
{
    uint64_t epoch = r->epoch;
    td_link_nng_drop(n->links, r->session, reason);
    forget_router(n, epoch);
    if (n->n_lost < ND_MAX_ROUTERS) {
        n->lost[n->n_lost++] = epoch;
    }
    td_timer_set(n->core_timer, td_now_us());
}

void nd__send(struct td_node *n, uint64_t router_epoch, const struct td_wire_msg *m)
{
    if (n->local != NULL && router_epoch == nd_local_epoch(n->local)) {
        nd_local_take(n->local, m);
        return;
    }
    struct nd_router *r = find_router(n, router_epoch);
    const struct td_work_id *id = td_wire_id(m);
    if (r == NULL) {
        return; /* the router is gone and so is its interest */
    }
    td_buf_clear(&n->out);
    td_err err = td_wire_encode(m, &n->out);
    /* Everything that concerns a router's works keeps one order: tokens, then their end. */
    uint64_t key = m->type == TD_WIRE_STATE ? 0 : (id != NULL ? id->router_epoch : router_epoch);
    err = err == TD_OK ? td_link_nng_send(n->links, r->session, key, n->out.data, n->out.len) : err;
    if (err != TD_OK) {
        TD_LOG(ERROR, "message to a router not sent",
               "type=%s router=%016" PRIx64 " err=%s, dropping the router",
               td_wire_type_name(m->type), router_epoch, td_err_code(err));
        nd_metrics_send_failed(n->metrics);
        drop_router(n, r, err);
        return;
    }
    nd_metrics_response_bytes(n->metrics, n->out.len);
}

/* ---- load ---- */

static void send_state(struct td_node *n, struct nd_router *r, const struct td_wire_state *s)
{
    struct td_wire_msg m = {.type = TD_WIRE_STATE, .state = *s};
    m.state.seq = ++r->state_seq;
    m.state.full = r->full_wanted;
    r->full_wanted = false;
    nd__send(n, r->epoch, &m);
}

void nd__state_publish(struct td_node *n)
{
    struct td_wire_state s;
    int64_t now = td_now_us();
    nd__state(n, &s);
    /* Both were zeroed before they were filled; should padding differ, a report goes out too soon.
     * NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    bool changed = memcmp(&s, &n->last_state, sizeof s) != 0;
    bool wanted = false;
    for (uint32_t i = 0; i < n->n_routers; i++) {
        wanted = wanted || n->routers[i].full_wanted;
    }
    bool due = now - n->state_sent_us >= (changed ? ND_STATE_MIN_US : ND_STATE_IDLE_US);
    bool turned = s.draining != n->last_state.draining;
    if (!wanted && !turned && !due) {
        if (changed) {
            td_timer_set(n->state_timer, n->state_sent_us + ND_STATE_MIN_US);
        }
        return;
    }
    n->last_state = s;
    n->state_sent_us = now;
    for (uint32_t i = 0; i < n->n_routers; i++) {
        send_state(n, &n->routers[i], &s);
    }
    td_timer_set(n->state_timer, now + ND_STATE_IDLE_US);
}

void nd__state_timer(void *arg)
{
    struct td_node *n = arg;
    td_timer_set(n->state_timer, td_now_us() + ND_STATE_IDLE_US);
    nd__state_publish(n);
}

/* ---- routers ---- */

static void on_up(void *arg, const struct td_link_peer *peer)
{
    struct td_node *n = arg;
    if (n->n_routers == ND_MAX_ROUTERS) {
        TD_LOG(ERROR, "too many routers", "max=%d, dropping %s", ND_MAX_ROUTERS, peer->name);
        td_link_nng_drop(n->links, peer->session, TD_ERR_FULL);
        return;
    }
    TD_LOG(INFO, "router attached", "router=%s epoch=%016" PRIx64, peer->name, peer->epoch);
    n->routers[n->n_routers++] =
        (struct nd_router){.epoch = peer->epoch, .session = peer->session, .full_wanted = true};
    struct nd_event ev = {.type = ND_EV_ROUTER_UP, .router_epoch = peer->epoch};
    nd__event(n, &ev);
}

/* An operator's word, by a router. A process that ends stays drained. */
static void take_drain(struct td_node *n, uint64_t router, const struct td_wire_drain *d)
{
    char quoted[2 * TD_WIRE_MAX_TEXT];
    TD_LOG(INFO, "drain asked for", "router=%016" PRIx64 " undo=%d limit_ms=%u why=%s", router,
           d->undo, d->limit_ms, td_log_quote(d->why, strlen(d->why), quoted, sizeof quoted));
    struct nd_event ev = {.type = d->undo ? ND_EV_UNDRAIN : ND_EV_DRAIN,
                          .deadline_us = d->limit_ms > 0 ? td_now_us() + d->limit_ms * INT64_C(1000)
                                                         : TD_NEVER};
    if (!n->draining) {
        n->held = !d->undo;
        nd__event(n, &ev);
    }
}

static void on_message(void *arg, uint64_t session, uint64_t peer_epoch, const uint8_t *data,
                       size_t len)
{
    struct td_node *n = arg;
    struct td_wire_msg msg;
    td_arena_reset(n->arena);
    td_err err = td_wire_decode(data, len, n->arena, &msg);
    if (err != TD_OK && err != TD_ERR_UNKNOWN_REQUIRES) {
        TD_LOG(ERROR, "router sent an unreadable message",
               "router=%016" PRIx64 " err=%s, dropping the session", peer_epoch, td_err_code(err));
        td_link_nng_drop(n->links, session, TD_ERR_PROTOCOL);
        lose_router(n, peer_epoch);
        return;
    }
    if (err == TD_OK && msg.type == TD_WIRE_STATE_REQUEST) {
        struct nd_router *r = find_router(n, peer_epoch);
        if (r != NULL) {
            r->full_wanted = true;
            nd__state_publish(n);
        }
        return;
    }
    if (err == TD_OK && msg.type == TD_WIRE_DRAIN) {
        take_drain(n, peer_epoch, &msg.drain);
        return;
    }
    nd_metrics_request_bytes(n->metrics, len);
    struct nd_event ev = {
        .type = ND_EV_MSG, .router_epoch = peer_epoch, .msg = &msg, .decode_err = err};
    nd__event(n, &ev);
}

static void on_lost(void *arg, uint64_t session, uint64_t peer_epoch, td_err reason,
                    const char *text)
{
    (void)session;
    if (reason != TD_ERR_DRAINING) { /* else it has parted, which the link has logged */
        TD_LOG(WARN, "router lost",
               "router=%016" PRIx64 " reason=%s text=\"%s\", ending its requests", peer_epoch,
               td_err_code(reason), text);
    }
    lose_router(arg, peer_epoch);
}

static void on_refused(void *arg, const char *url, td_err reason, const char *text, bool remote)
{
    (void)arg;
    (void)url;
    TD_LOG(WARN, "router does not fit", "reason=%s by=%s text=\"%s\"", td_err_code(reason),
           remote ? "router" : "node", text);
}

static const struct td_link_ops link_ops = {
    .on_up = on_up, .on_message = on_message, .on_lost = on_lost, .on_refused = on_refused};

static void fill_layout(const struct td_kv_layout *l, struct td_wire_layout *out)
{
    *out = (struct td_wire_layout){.id = td_kv_layout_id(l),
                                   .version = l->version,
                                   .group = l->group,
                                   .n_layers = l->n_layers,
                                   .n_kv_heads = l->n_kv_heads,
                                   .head_dim = l->head_dim,
                                   .block_tok = l->block_tok,
                                   .dtype = l->dtype,
                                   .order = l->order,
                                   .slice_bytes = l->slice_bytes,
                                   .window = l->window};
}

static td_err encode_info(struct td_node *n)
{
    const struct td_engine_info *e = n->p.engine->ops->info(n->p.engine);
    const struct td_model_tokenizer *tok = td_model_tokenizer(n->p.model);
    (void)snprintf(n->admin_url, sizeof n->admin_url, "%s://%s:%u",
                   nd_admin_tls(n->admin) != NULL ? "https" : "http", n->p.admin_host,
                   (unsigned)td_node_admin_port(n));
    n->rank = (struct td_wire_rank){.rank = 0,
                                    .tp = n->p.group.ranks != NULL ? n->p.group.ranks->n : 1,
                                    .pp = 1,
                                    .n_layers = e->layout.n_layers,
                                    .n_heads = e->layout.n_kv_heads};
    size_t address_len = 0;
    if (n->xfer != NULL) {
        td_xfer_address(n->xfer, &n->rank.address, &address_len);
        n->rank.address_len = (uint32_t)address_len;
    }
    n->info = (struct td_wire_node_info){.epoch = n->epoch,
                                         .name = n->name,
                                         .version = TD_VERSION,
                                         .model_name = n->p.model_name,
                                         .numerics = e->numerics,
                                         .admin_address = n->admin_url,
                                         .role = n->p.role_told,
                                         .version_min = TD_WIRE_VERSION_MIN,
                                         .version_max = TD_WIRE_VERSION_MAX,
                                         .numerics_id = e->numerics_id,
                                         .max_model_len = e->max_model_len,
                                         .n_blocks = e->n_blocks,
                                         .max_seqs = n->p.max_seqs,
                                         .max_batched_tokens = n->p.max_batched_tokens,
                                         .n_ranks = 1,
                                         .ranks = &n->rank};
    fill_layout(&e->layout, &n->info.layout);
    memcpy(n->info.model_id, n->p.model->id, 32);
    memcpy(n->info.tokenizer_hash, tok->tokenizer_hash, 32);
    memcpy(n->info.template_hash, tok->template_hash, 32);
    td_buf_clear(&n->out);
    return td_wire_node_info_encode(&n->info, &n->out);
}

td_err nd__links_create(struct td_node *n)
{
    TD_TRY(encode_info(n));
    n->fit = (struct td_link_fit_at_node){.us = &n->info, .arena = n->arena};
    struct td_link_nng_params p = {.loop = n->p.loop,
                                   .link = {.role = TD_LINK_NODE,
                                            .epoch = n->epoch,
                                            .name = n->name,
                                            .info = n->out.data,
                                            .info_len = n->out.len,
                                            .keys = n->p.keys,
                                            .n_keys = n->p.n_keys,
                                            .check = td_link_check_router,
                                            .check_arg = &n->fit,
                                            .max_sessions = ND_MAX_ROUTERS,
                                            .time_scale = n->p.time_scale},
                                   .ops = &link_ops,
                                   .arg = n};
    TD_TRY(td_link_nng_create(&p, &n->links));
    return td_link_nng_listen(n->links, n->p.control_url);
}
