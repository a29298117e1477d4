/* Design: tandem.v1.Admin lives on the admin port, beside the same answers over HTTP (rt_admin.c): whoever reaches that port
 * may ask and drain, clients cannot. Events are not kept: a watcher hears of what happens from its beginning on, and one that
 * does not read is cut like any other client.
 */
#define TD_LOG_ROOM "router"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "proto/api.h"
#include "router/rt_shell_int.h"

#define ANSWER_MAX   (4u << 20)
#define ARENA_BYTES  (2u << 20)
#define MAX_WATCHERS 256
#define MAX_KINDS    8
#define KIND_MAX     32
#define MAX_LIMIT_MS 86400000u
#define MAX_WHY      256u

struct watcher {
    struct rt_grpc_admin *admin;
    struct td_grpc_call *call; /* borrowed */
    struct watcher *prev, *next;
    char kinds[MAX_KINDS][KIND_MAX];
    uint32_t n_kinds; /* 0: all */
};

struct rt_grpc_admin {
    struct rt_shell *shell;     /* borrowed */
    struct td_grpc_admin *grpc; /* owned */
    struct td_arena *arena;     /* owned */
    struct watcher *watchers;
    uint32_t n_watchers;
    uint64_t seq; /* of the last event */
};

static void answer(struct td_grpc_call *c, const struct td_buf *b, td_err err)
{
    if (err != TD_OK) {
        td_grpc_fail(c, err, "the answer does not fit into memory", 1);
    } else if (td_grpc_send(c, b->data, b->len) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

/* ---- nodes ---- */

static enum td_api_node_state state_of(const struct rt_node *n)
{
    if (!n->have_state) {
        return TD_API_NODE_CONNECTING;
    }
    if (n->state.draining || n->held) {
        return TD_API_NODE_DRAINING;
    }
    return rt_node_why_not(n)[0] == 0 ? TD_API_NODE_READY : TD_API_NODE_NOT_READY;
}

static td_err put_node(const struct rt_node *n, struct td_buf *b,
                       td_err (*encode)(struct td_buf *, const struct td_api_node *))
{
    char epoch[24];
    struct td_api_node node = {.name = n->name,
                               .why = rt_node_why_not(n),
                               .epoch = epoch,
                               .numerics = n->numerics,
                               .address = n->admin_address,
                               .version = n->version,
                               .role = n->role,
                               .state = state_of(n),
                               .queued = n->state.queued_requests,
                               .running = n->state.running_requests,
                               .ready = n->have_state && n->state.ready,
                               .drained = rt_node_drained(n),
                               .queued_prompt_tok = n->state.queued_prompt_tok,
                               .dispatched = n->dispatched,
                               .inflight = n->inflight,
                               .n_blocks = n->n_blocks,
                               .block_tok = n->block_tok,
                               .n_layers = n->n_layers,
                               .max_model_len = n->max_model_len,
                               .max_seqs = n->max_seqs,
                               .n_ranks = n->n_ranks,
                               .prefill_us_per_ktok = n->state.prefill_us_per_ktok,
                               .decode_step_us = n->state.decode_step_us,
                               .report_age_us = n->have_state ? td_now_us() - n->reported_us : -1,
                               .layout_id = n->layout_id,
                               .numerics_id = n->numerics_id};
    (void)snprintf(epoch, sizeof epoch, "%016" PRIx64, n->epoch);
    memcpy(node.blocks, n->state.blocks, sizeof node.blocks);
    return encode(b, &node);
}

static void h_list_nodes(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    const struct rt_grpc_admin *a = arg;
    const struct rt_nodes *ns = rt_core_nodes(a->shell->core);
    struct td_buf b;
    td_err err = td_api_empty_decode(message, len);
    if (err != TD_OK) {
        td_grpc_fail(c, err, "not a ListNodesRequest", 0);
        return;
    }
    td_buf_init(&b, ANSWER_MAX);
    for (uint32_t i = 0; err == TD_OK && i < RT_MAX_NODES; i++) {
        err = ns->list[i].epoch != 0 ? put_node(&ns->list[i], &b, td_api_node_encode) : TD_OK;
    }
    answer(c, &b, err);
    td_buf_fini(&b);
}

/* err: of reading what is asked. */
static void drain(struct rt_grpc_admin *a, struct td_grpc_call *c, td_err err,
                  const struct td_api_drain *asked, bool undo)
{
    struct rt_node *n = NULL;
    struct td_buf b;
    const struct td_api_drain ask = err == TD_OK ? *asked : (struct td_api_drain){0};
    if (err != TD_OK || ask.limit_ms > MAX_LIMIT_MS || strlen(ask.why) > MAX_WHY) {
        td_grpc_fail(c, TD_ERR_BAD_REQUEST,
                     "needs node; limit_ms is 0 to 86400000, why at most 256 bytes", 0);
        return;
    }
    const struct td_wire_drain d = {.limit_ms = ask.limit_ms, .why = ask.why, .undo = undo};
    err = rt__shell_drain_node(a->shell, ask.node, &d, &n);
    if (err != TD_OK) {
        td_grpc_fail(c, err, "no node of this name is attached", 0);
        return;
    }
    td_buf_init(&b, ANSWER_MAX);
    answer(c, &b, put_node(n, &b, td_api_drain_encode));
    td_buf_fini(&b);
}

static void h_drain(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc_admin *a = arg;
    struct td_api_drain ask;
    td_arena_reset(a->arena);
    drain(a, c, td_api_drain_decode(message, len, a->arena, &ask), &ask, false);
}

static void h_undrain(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc_admin *a = arg;
    struct td_api_drain ask;
    td_arena_reset(a->arena);
    drain(a, c, td_api_undrain_decode(message, len, a->arena, &ask), &ask, true);
}

/* ---- explain ---- */

static void h_explain(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc_admin *a = arg;
    const char *id = "";
    struct td_buf b;
    td_arena_reset(a->arena);
    td_err err = td_api_id_decode(message, len, a->arena, &id);
    if (err != TD_OK) {
        td_grpc_fail(c, err, "not an ExplainRequest", 0);
        return;
    }
    td_buf_init(&b, ANSWER_MAX);
    err = rt__grpc_explain(a->shell, id, &b);
    if (err == TD_ERR_NOT_FOUND) {
        td_grpc_fail(c, err, "no request of this id runs or is remembered", 0);
    } else {
        answer(c, &b, err);
    }
    td_buf_fini(&b);
}

/* ---- events ---- */

static void watcher_gone(void *arg)
{
    struct watcher *w = arg;
    struct rt_grpc_admin *a = w->admin;
    if (w->prev != NULL) {
        w->prev->next = w->next;
    } else {
        a->watchers = w->next;
    }
    if (w->next != NULL) {
        w->next->prev = w->prev;
    }
    a->n_watchers--;
    free(w);
}

/* Every kind that is told (docs/grpc.md). */
static bool is_kind(const char *name)
{
    static const char *const kinds[] = {"node.up",         "node.lost",    "node.left",
                                        "node.drain",      "node.undrain", "request.failed",
                                        "request.replayed"};
    for (size_t i = 0; i < TD_COUNT(kinds); i++) {
        if (strcmp(name, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* False: too many kinds, or one that is never told. */
static bool take_kinds(struct watcher *w, const struct td_api_watch *ask)
{
    if (ask->n_kinds > MAX_KINDS) {
        return false;
    }
    for (uint32_t i = 0; i < ask->n_kinds; i++) {
        if (!is_kind(ask->kinds[i])) {
            return false;
        }
        (void)snprintf(w->kinds[i], KIND_MAX, "%s", ask->kinds[i]);
    }
    w->n_kinds = ask->n_kinds;
    return true;
}

static void h_watch(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    struct rt_grpc_admin *a = arg;
    struct td_api_watch ask;
    td_arena_reset(a->arena);
    td_err err = td_api_watch_decode(message, len, a->arena, &ask);
    if (err == TD_OK && a->n_watchers == MAX_WATCHERS) {
        err = TD_ERR_OVERLOADED;
    }
    struct watcher *w = err == TD_OK ? td_zalloc(1, sizeof *w) : NULL;
    if (w == NULL || !take_kinds(w, &ask)) {
        err = err != TD_OK ? err : w == NULL ? TD_ERR_NO_MEMORY : TD_ERR_BAD_REQUEST;
        free(w);
        td_grpc_fail(c, err,
                     err == TD_ERR_BAD_REQUEST
                         ? "kinds are at most 8 of node.up, node.lost, node.left, node.drain, "
                           "node.undrain, request.failed, request.replayed"
                         : NULL,
                     1);
        return;
    }
    w->admin = a;
    w->call = c;
    w->next = a->watchers;
    if (a->watchers != NULL) {
        a->watchers->prev = w;
    }
    a->watchers = w;
    a->n_watchers++;
    td_grpc_call_set_background(c);
    td_grpc_call_on_gone(c, watcher_gone, w);
    td_grpc_start(c);
}

static bool wants(const struct watcher *w, const char *kind)
{
    for (uint32_t i = 0; i < w->n_kinds; i++) {
        if (strcmp(w->kinds[i], kind) == 0) {
            return true;
        }
    }
    return w->n_kinds == 0;
}

void rt__event(struct rt_grpc_admin *a, const char *kind, const char *node, const char *id,
               const char *text)
{
    if (a == NULL) {
        return;
    }
    struct td_api_event e = {.seq = ++a->seq,
                             .unix_us = td_wall_us(),
                             .kind = kind,
                             .node = node,
                             .id = id,
                             .text = text};
    struct td_buf b;
    td_buf_init(&b, ANSWER_MAX);
    if (a->watchers != NULL && td_api_event_encode(&b, &e) == TD_OK) {
        for (struct watcher *w = a->watchers; w != NULL; w = w->next) {
            if (wants(w, kind)) {
                TD_IGNORE(
                    td_grpc_send(w->call, b.data, b.len)); /* one that does not read is reset */
            }
        }
    }
    td_buf_fini(&b);
}

/* ---- life ---- */

static const struct td_grpc_method methods[] = {
    {.name = "ListNodes", .handle = h_list_nodes}, {.name = "Drain", .handle = h_drain},
    {.name = "Undrain", .handle = h_undrain},      {.name = "Explain", .handle = h_explain},
    {.name = "WatchEvents", .handle = h_watch},
};

td_err rt__grpc_admin_create(struct rt_shell *s, struct rt_grpc_admin **out_admin)
{
    struct rt_grpc_admin *a = td_zalloc(1, sizeof *a);
    if (a == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    a->shell = s;
    a->arena = td_arena_create(ARENA_BYTES);
    td_err err = a->arena != NULL ? td_grpc_admin_create(s->p.loop, s->admin, s->admin_tls,
                                                         rt__health, s, &a->grpc)
                                  : TD_ERR_NO_MEMORY;
    if (err != TD_OK) {
        rt__grpc_admin_destroy(a);
        return err;
    }
    const struct td_grpc_service service = {
        .name = "tandem.v1.Admin", .methods = methods, .n_methods = TD_COUNT(methods), .arg = a};
    td_grpc_server_add(td_grpc_admin_server(a->grpc), &service);
    rt__grpc_count(s, td_grpc_admin_server(a->grpc));
    *out_admin = a;
    return TD_OK;
}

struct rt_grpc_admin *rt__grpc_admin_destroy(struct rt_grpc_admin *a)
{
    if (a != NULL) {
        td_grpc_admin_destroy(a->grpc);
        td_arena_destroy(a->arena);
        free(a);
    }
    return NULL;
}
