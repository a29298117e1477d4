#define TD_LOG_ROOM "router"
#include "router/rt_shell.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/http_error.h"
#include "common/io/tls.h"
#include "router/rt_shell_int.h"

#define SWEEP_US      1000000
#define ARENA_BYTES   (64u << 20)
#define CLOSE_WAIT_US 10000000

/* ---- the core ---- */

static void send_to_node(struct rt_shell *s, const struct rt_action *a)
{
    uint64_t session = td_link_session_by_epoch(td_link_nng_core(s->links), a->node_epoch);
    const struct td_work_id *id = a->msg != NULL ? td_wire_id(a->msg) : NULL;
    uint64_t key = id != NULL ? td_link_key_of_work(id->router_epoch, id->counter) : 0;
    td_buf_clear(&s->out);
    td_err err = a->msg != NULL ? TD_OK : TD_ERR_NO_MEMORY; /* the step's arena was full */
    err = err == TD_OK && session == 0 ? TD_ERR_CLOSED : err;
    err = err == TD_OK ? td_wire_encode(a->msg, &s->out) : err;
    err = err == TD_OK ? td_link_nng_send(s->links, session, key, s->out.data, s->out.len) : err;
    if (err != TD_OK) {
        /* The session is on its way out: its loss will replay or end what ran there. A full queue
         * means the same. */
        TD_LOG(WARN, "message not sent", "type=%s node=%016" PRIx64 " err=%s, dropping the session",
               a->msg != NULL ? td_wire_type_name(a->msg->type) : "?", a->node_epoch,
               td_err_code(err));
        if (session != 0) {
            td_link_nng_drop(s->links, session, err);
            s->lost[s->n_lost < RT_MAX_NODES ? s->n_lost++ : RT_MAX_NODES - 1] = a->node_epoch;
        }
    }
}

static void tell_end(struct rt_shell *s, const struct rt_action *a)
{
    struct rt_request_view v;
    if ((a->err != TD_OK || a->attempts > 1) && rt_core_request(s->core, a->counter, &v)) {
        rt__event(s->grpc_admin, a->err != TD_OK ? "request.failed" : "request.replayed", a->d_name,
                  v.request_id, td_err_code(a->err));
    }
}

static void give_token(struct rt_shell *s, const struct rt_action *a)
{
    struct rt_probe *p = rt__probe_of(s, a);
    if (p != NULL) {
        rt__probe_token(p);
    } else {
        rt__client_token(a);
    }
}

static void give_end(struct rt_shell *s, const struct rt_action *a)
{
    struct rt_probe *p = rt__probe_of(s, a);
    if (p != NULL) {
        rt__probe_end(p, a);
    } else {
        tell_end(s, a);
        rt__client_end(a);
    }
}

static void carry_out(struct rt_shell *s)
{
    for (uint32_t i = 0; i < s->acts.n; i++) {
        const struct rt_action *a = &s->acts.list[i];
        switch (a->type) {
        case RT_DO_SEND:
            send_to_node(s, a);
            break;
        case RT_DO_TOKEN:
            give_token(s, a);
            break;
        case RT_DO_END:
            rt_live_end(s->live, td_now_us(), a);
            give_end(s, a);
            break;
        case RT_DO_OBSERVE:
            rt_live_observe(s->live, a->metric, a->value);
            rt_metrics_observe(s->metrics, a->metric, a->value);
            break;
        }
    }
    if (s->acts.overflow) {
        TD_LOG(ERROR, "action list overflow", "max=%d", RT_MAX_ACTIONS);
    }
}

/* What placement took, which the core cannot see: it has no clock. */
static void note_placements(struct rt_shell *s, int64_t began_us)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->acts.n; i++) {
        n += s->acts.list[i].type == RT_DO_OBSERVE && s->acts.list[i].metric == RT_M_DECISION;
    }
    double each = n > 0 ? (double)(td_now_us() - began_us) * 1e-6 / n : 0;
    for (uint32_t i = 0; i < n; i++) {
        rt_metrics_scheduler(s->metrics, each);
    }
}

static void step(struct rt_shell *s, const struct rt_event *ev, uint64_t *out_counter)
{
    rt_actions_reset(&s->acts);
    s->stepping = true;
    int64_t began_us = td_now_us();
    rt_core_step(s->core, began_us, ev, &s->acts, out_counter);
    note_placements(s, began_us);
    carry_out(s);
    s->stepping = false;
}

/* The first node sets what the others must share, until the last one has gone: nodes that cannot pair are refused when they
 * attach, with both sides' values, instead of being found out by a request. */
static void set_expectation(struct rt_shell *s, const struct td_wire_node_info *first)
{
    bool wanted = s->p.strict_pairs && first != NULL;
    s->fit.expect.layout_id = wanted ? first->layout.id : 0;
    s->fit.expect.numerics_id = wanted ? first->numerics_id : 0;
}

/* What was wanted while a step was being carried out: lost sessions and cancels. */
static void settle(struct rt_shell *s)
{
    while (s->n_cancels > 0 || s->n_lost > 0) {
        struct rt_event ev = {0};
        if (s->n_lost > 0) {
            ev = (struct rt_event){.type = RT_EV_NODE_LOST, .node_epoch = s->lost[--s->n_lost]};
        } else {
            s->n_cancels--;
            ev = (struct rt_event){.type = RT_EV_CANCEL,
                                   .counter = s->cancels[s->n_cancels].counter,
                                   .reason = s->cancels[s->n_cancels].reason};
        }
        step(s, &ev, NULL);
    }
    if (s->fit.expect.layout_id != 0 && rt_core_nodes(s->core)->count == 0) {
        set_expectation(s, NULL);
    }
    td_timer_set(s->core_timer, rt_core_next_deadline(s->core));
}

void rt__shell_event(struct rt_shell *s, const struct rt_event *ev, uint64_t *out_counter)
{
    TD_INSIST(!s->stepping);
    step(s, ev, out_counter);
    settle(s);
}

void rt__shell_cancel(struct rt_shell *s, uint64_t counter, td_err reason)
{
    if (s->stepping) {
        TD_INSIST(s->n_cancels < RT_MAX_CANCELS); /* at most one a live choice */
        s->cancels[s->n_cancels].counter = counter;
        s->cancels[s->n_cancels++].reason = reason;
        return;
    }
    struct rt_event ev = {.type = RT_EV_CANCEL, .counter = counter, .reason = reason};
    rt__shell_event(s, &ev, NULL);
}

static void on_core_timer(void *arg)
{
    struct rt_event ev = {.type = RT_EV_TICK};
    rt__shell_event(arg, &ev, NULL);
}

/* Share of the role's blocks that requests hold. */
static double kv_use(const struct rt_nodes *ns, enum td_role role)
{
    double used = 0, all = 0;
    for (uint32_t i = 0; i < RT_MAX_NODES; i++) {
        const struct rt_node *n = &ns->list[i];
        if (n->epoch != 0 && n->have_state && ((unsigned)n->role & (unsigned)role) != 0) {
            used +=
                (double)n->n_blocks - n->state.blocks[TD_BLK_FREE] - n->state.blocks[TD_BLK_CACHED];
            all += n->n_blocks;
        }
    }
    return all > 0 && used > 0 ? used / all : 0;
}

void rt__live_gauges(const struct rt_shell *s, struct rt_live_gauges *out)
{
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    out->queued = rt_core_count(s->core, RT_QUEUED);
    out->running = rt_core_count(s->core, RT_PREFILL) + rt_core_count(s->core, RT_DECODE);
    out->kv_prefill = kv_use(ns, TD_ROLE_PREFILL);
    out->kv_decode = kv_use(ns, TD_ROLE_DECODE);
}

static void on_sweep(void *arg)
{
    struct rt_shell *s = arg;
    struct rt_live_gauges g;
    rt__clients_sweep(s, td_now_us());
    rt__live_gauges(s, &g);
    rt_live_tick(s->live, td_now_us(), &g);
    td_timer_set(s->sweep_timer, td_now_us() + SWEEP_US);
}

/* ---- links ---- */

static void on_up(void *arg, const struct td_link_peer *peer)
{
    struct rt_shell *s = arg;
    struct td_wire_node_info info;
    td_arena_reset(s->arena);
    if (td_wire_node_info_decode(peer->info, peer->info_len, s->arena, &info) != TD_OK) {
        td_link_nng_drop(s->links, peer->session, TD_ERR_PROTOCOL);
        return;
    }
    if (rt_core_nodes(s->core)->count == 0) {
        set_expectation(s, &info);
    }
    struct rt_event ev = {.type = RT_EV_NODE_UP, .node_info = &info};
    rt__event(s->grpc_admin, "node.up", info.name, "", "");
    rt__shell_event(s, &ev, NULL);
}

static void node_lost(struct rt_shell *s, uint64_t epoch)
{
    bool planned = rt_core_node_may_leave(s->core, epoch);
    rt__event(s->grpc_admin, planned ? "node.left" : "node.lost",
              rt_nodes_name(rt_core_nodes(s->core), epoch), "", planned ? "drained" : "");
    struct rt_event ev = {.type = RT_EV_NODE_LOST, .node_epoch = epoch};
    rt__shell_event(s, &ev, NULL);
}

static void on_message(void *arg, uint64_t session, uint64_t peer_epoch, const uint8_t *data,
                       size_t len)
{
    struct rt_shell *s = arg;
    struct td_wire_msg msg;
    td_arena_reset(s->arena);
    td_err err = td_wire_decode(data, len, s->arena, &msg);
    if (err != TD_OK) {
        TD_LOG(ERROR, "node sent an unreadable message",
               "node=%016" PRIx64 " err=%s, dropping the session", peer_epoch, td_err_code(err));
        td_link_nng_drop(s->links, session, TD_ERR_PROTOCOL);
        node_lost(s, peer_epoch);
        return;
    }
    struct rt_event ev = {.type = RT_EV_NODE_MSG, .node_epoch = peer_epoch, .msg = &msg};
    rt__shell_event(s, &ev, NULL);
}

static void on_lost(void *arg, uint64_t session, uint64_t peer_epoch, td_err reason,
                    const char *text)
{
    (void)session;
    struct rt_shell *s = arg;
    if (reason != TD_ERR_DRAINING) { /* else it has parted, which the link has logged */
        TD_LOG(WARN, "session lost", "node=%016" PRIx64 " reason=%s text=\"%s\"", peer_epoch,
               td_err_code(reason), text);
    }
    node_lost(s, peer_epoch);
}

static void on_attached(void *arg, uint64_t session, uint64_t peer_epoch, bool attached)
{
    (void)session;
    struct rt_event ev = {.type = RT_EV_NODE_LINK, .node_epoch = peer_epoch, .attached = attached};
    rt__shell_event(arg, &ev, NULL);
}

static void on_refused(void *arg, const char *url, td_err reason, const char *text, bool remote)
{
    (void)arg;
    TD_LOG(ERROR, "node does not fit", "url=%s reason=%s by=%s text=\"%s\"", url,
           td_err_code(reason), remote ? "node" : "router", text);
}

static const struct td_link_ops link_ops = {.on_up = on_up,
                                            .on_message = on_message,
                                            .on_lost = on_lost,
                                            .on_refused = on_refused,
                                            .on_attached = on_attached};

static td_err make_links(struct rt_shell *s)
{
    const struct td_model_tokenizer *tok = td_model_tokenizer(s->model->file);
    s->info = (struct td_wire_router_info){.epoch = s->epoch,
                                           .name = s->p.name,
                                           .version = TD_VERSION,
                                           .version_min = TD_WIRE_VERSION_MIN,
                                           .version_max = TD_WIRE_VERSION_MAX};
    memcpy(s->info.model_id, s->model->file->id, 32);
    memcpy(s->info.tokenizer_hash, tok->tokenizer_hash, 32);
    memcpy(s->info.template_hash, tok->template_hash, 32);
    s->fit = (struct td_link_fit_at_router){.us = &s->info, .arena = s->arena};
    td_buf_clear(&s->out);
    TD_TRY(td_wire_router_info_encode(&s->info, &s->out));
    struct td_link_nng_params p = {.loop = s->p.loop,
                                   .link = {.role = TD_LINK_ROUTER,
                                            .epoch = s->epoch,
                                            .name = s->p.name,
                                            .info = s->out.data,
                                            .info_len = s->out.len,
                                            .keys = s->p.keys,
                                            .n_keys = s->p.n_keys,
                                            .check = td_link_check_node,
                                            .check_arg = &s->fit,
                                            .max_sessions = RT_MAX_NODES,
                                            .max_targets = RT_MAX_NODES,
                                            .time_scale = s->p.time_scale},
                                   .ops = &link_ops,
                                   .arg = s};
    TD_TRY(td_link_nng_create(&p, &s->links));
    for (uint32_t i = 0; i < s->p.n_node_urls; i++) {
        TD_TRY(td_link_nng_dial(s->links, s->p.node_urls[i]));
    }
    return TD_OK;
}

/* ---- life ---- */

static td_err make_tls(struct rt_shell *s)
{
    struct td_tls_params p = {.loop = s->p.loop,
                              .cert = s->p.tls_cert,
                              .key = s->p.tls_key,
                              .client_ca = s->p.tls_client_ca,
                              .poll_us = TD_TLS_POLL_US};
    TD_TRY(td_tls_create_named(&p, &s->tls));
    return td_tls_create_admin(s->p.loop, &s->p.admin_tls, &s->admin_tls);
}

void rt_shell_reload_tls(struct rt_shell *s)
{
    struct td_tls *const all[] = {s->tls, s->admin_tls};
    for (size_t i = 0; i < TD_COUNT(all); i++) {
        if (all[i] != NULL) {
            TD_IGNORE(td_tls_reload(all[i])); /* logged there; the old ones stay */
        }
    }
}

static td_err make_http(struct rt_shell *s)
{
    struct td_http_server_params p;
    td_http_server_defaults(&p);
    p.loop = s->p.loop;
    p.host = s->p.host;
    p.port = s->p.port;
    p.option = "--port";
    p.tls = s->tls;
    p.limits.max_body = s->p.max_body;
    p.handler = rt__http_public;
    p.arg = s;
    p.error_body = td_http_error_body;
    TD_TRY(td_http_server_create(&p, &s->http));
    p.tls = s->admin_tls;
    p.alpn = TD_ALPN_BOTH;
    p.host = s->p.admin_host;
    p.port = s->p.admin_port;
    p.option = "--admin-port";
    p.handler = rt__http_admin;
    return td_http_server_create(&p, &s->admin);
}

static td_err make_core(struct rt_shell *s)
{
    struct rt_core_params p = {.epoch = s->epoch,
                               .max_requests = s->p.max_requests,
                               .max_queue = s->p.max_queue,
                               .max_queue_bytes = s->p.max_queue_bytes,
                               .max_node_queue = s->p.max_node_queue,
                               .max_replays = 2,
                               .resume = s->p.resume,
                               .pair_wait_us = s->p.pair_wait_us,
                               .close_wait_us = (int64_t)(CLOSE_WAIT_US * s->p.time_scale),
                               .policy = s->p.policy,
                               .model_name = s->model->names[0]};
    TD_TRY(rt_core_create(&p, &s->core));
    TD_TRY(rt_actions_init(&s->acts));
    s->arena = td_arena_create(ARENA_BYTES);
    s->history = rt_history_create();
    s->live = rt_live_create();
    s->cancels = td_zalloc(RT_MAX_CANCELS, sizeof *s->cancels);
    return s->arena != NULL && s->history != NULL && s->live != NULL && s->cancels != NULL
               ? TD_OK
               : TD_ERR_NO_MEMORY;
}

static td_err make_all(struct rt_shell *s)
{
    struct rt_model_params mp = {.path = s->p.model_path,
                                 .chat_template_file = s->p.chat_template,
                                 .names = s->p.served_names,
                                 .n_names = s->p.n_served_names,
                                 .max_model_len = s->p.max_model_len};
    TD_TRY(rt_model_open(&mp, &s->model));
    TD_TRY(td_api_keys_load(s->p.api_key_file, &s->keys));
    TD_TRY(make_core(s));
    TD_TRY(rt_worker_create(s->p.loop, s->model, rt__client_job_done, s, &s->worker));
    TD_TRY(td_timer_create(s->p.loop, "rt-core", on_core_timer, s, &s->core_timer));
    TD_TRY(td_timer_create(s->p.loop, "rt-sweep", on_sweep, s, &s->sweep_timer));
    TD_TRY(rt_metrics_create(s, &s->metrics));
    TD_TRY(rt_page_create(&s->page));
    TD_TRY(make_links(s));
    TD_TRY(make_tls(s));
    TD_TRY(make_http(s));
    TD_TRY(rt__grpc_create(s, &s->grpc));
    TD_TRY(rt__grpc_admin_create(s, &s->grpc_admin));
    td_timer_set(s->sweep_timer, td_now_us() + SWEEP_US);
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

td_err rt_shell_create(const struct rt_shell_params *p, struct rt_shell **out_shell)
{
    if (!name_fits(p->name)) {
        TD_LOG(ERROR, "the name does not fit",
               "option=name remedy=\"no blanks, no quotes, ASCII\"");
        return TD_ERR_CONFIG;
    }
    TD_REQUIRE(p->n_served_names > 0 && p->max_requests <= RT_MAX_REQUESTS);
    struct rt_shell *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->p = *p;
    s->epoch = td_rng_u64_secure() | 1;
    s->started_us = td_now_us();
    td_rng_fill(s->salt_secret, sizeof s->salt_secret);
    td_buf_init(&s->out, TD_WIRE_MAX_BYTES);
    td_err err = make_all(s);
    if (err != TD_OK) {
        rt_shell_destroy(s);
        return err;
    }
    TD_LOG(INFO, "router ready for clients",
           "name=%s epoch=%016" PRIx64 " http=%s:%u grpc=%u admin=%s:%u nodes=%u", p->name,
           s->epoch, p->host, rt_shell_port(s), rt_shell_grpc_port(s), p->admin_host,
           rt_shell_admin_port(s), p->n_node_urls);
    *out_shell = s;
    return TD_OK;
}

struct rt_shell *rt_shell_destroy(struct rt_shell *s)
{
    if (s == NULL) {
        return NULL;
    }
    s->grpc_admin = rt__grpc_admin_destroy(s->grpc_admin);
    rt__grpc_destroy(s->grpc); /* its clients let go while everything else is still there */
    td_http_server_destroy(s->http);
    td_http_server_destroy(s->admin);
    td_tls_destroy(s->tls);
    td_tls_destroy(s->admin_tls);
    td_link_nng_destroy(s->links);
    rt_worker_destroy(s->worker);
    rt__clients_destroy(s);
    td_timer_destroy(s->core_timer);
    td_timer_destroy(s->sweep_timer);
    rt_metrics_destroy(s->metrics);
    rt_history_destroy(s->history);
    rt_live_destroy(s->live);
    rt_page_destroy(s->page);
    rt_core_destroy(s->core);
    rt_actions_fini(&s->acts);
    td_arena_destroy(s->arena);
    td_buf_fini(&s->out);
    td_api_keys_destroy(s->keys);
    rt_model_close(s->model);
    free(s->cancels);
    free(s);
    return NULL;
}

uint16_t rt_shell_port(const struct rt_shell *s)
{
    return td_http_server_port(s->http);
}

uint16_t rt_shell_admin_port(const struct rt_shell *s)
{
    return td_http_server_port(s->admin);
}

uint16_t rt_shell_grpc_port(const struct rt_shell *s)
{
    return rt__grpc_port(s->grpc);
}

void rt_shell_drain(struct rt_shell *s)
{
    struct rt_event ev = {.type = RT_EV_DRAIN};
    s->draining = true;
    rt__shell_event(s, &ev, NULL);
    td_http_server_drain(s->http);
    rt__grpc_drain(s->grpc);
}

bool rt_shell_idle(const struct rt_shell *s)
{
    return s->n_clients == 0 && td_http_server_busy(s->http) == 0 && rt__grpc_busy(s->grpc) == 0 &&
           rt_core_count(s->core, RT_CLOSING) == 0; /* else nodes wait for a router that is gone */
}

void rt_shell_bye(struct rt_shell *s)
{
    rt__clients_fail(s, TD_ERR_DRAINING, "this router stops");
    td_link_nng_close(s->links, TD_ERR_DRAINING);
}

bool rt_shell_gone(const struct rt_shell *s)
{
    return td_link_nng_idle(s->links) && td_http_server_busy(s->http) == 0 &&
           rt__grpc_busy(s->grpc) == 0;
}

bool rt_shell_ready(const struct rt_shell *s)
{
    const struct rt_nodes *ns = rt_core_nodes(s->core);
    return rt_nodes_ready(ns, TD_ROLE_PREFILL) > 0 && rt_nodes_ready(ns, TD_ROLE_DECODE) > 0;
}
