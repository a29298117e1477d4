/* Design: the service's requests go the way of a router's messages, without a link. Words are said when an event is over, since the
 * service may submit again at once; never inside of the service's own call, hence the timer. */
#define TD_LOG_ROOM "node"
#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/node/node_int.h"

static void on_local_timer(void *arg)
{
    nd__local_speak(arg);
}

td_err nd__local_create(struct td_node *n)
{
    const struct td_engine_info *e = n->p.engine->ops->info(n->p.engine);
    const uint8_t *address = NULL;
    size_t address_len = 0;
    if (!n->p.local) {
        return TD_OK;
    }
    if (n->xfer != NULL) {
        td_xfer_address(n->xfer, &address, &address_len);
    }
    struct nd_local_params p = {.epoch = n->local_epoch,
                                .node_epoch = n->epoch,
                                .role = n->p.role_told,
                                .layout_id = td_kv_layout_id(&e->layout),
                                .numerics_id = e->numerics_id,
                                .kv_group = e->layout.group,
                                .hold_ms = n->p.hold_s > 0 ? (uint32_t)(n->p.hold_s * 1e3)
                                                           : ND_LOCAL_HOLD_MS,
                                .address = address,
                                .address_len = (uint32_t)address_len,
                                .max_tokens = 2 * e->max_rows};
    TD_TRY(td_timer_create(n->p.loop, "nd-local", on_local_timer, n, &n->local_timer));
    return nd_local_create(&p, &n->local);
}

void nd__local_destroy(struct td_node *n)
{
    td_timer_destroy(n->local_timer);
    n->local = nd_local_destroy(n->local);
}

static void say(const struct nd_local_word *w)
{
    switch (w->type) {
    case ND_LOCAL_TOKEN:
        w->ops->on_token(w->arg, &w->token);
        break;
    case ND_LOCAL_HELD:
        w->ops->on_held(w->arg, w->handoff);
        break;
    case ND_LOCAL_END:
        w->ops->on_end(w->arg, &w->end);
        break;
    }
}

void nd__local_speak(struct td_node *n)
{
    struct nd_local_word w;
    if (n->local == NULL || n->local_mute) {
        return;
    }
    n->local_mute = true;
    while (nd_local_next(n->local, &w)) {
        say(&w);
    }
    n->local_mute = false;
}

/* What comes of it is said when the service's call has returned: by whoever is speaking, or by the timer. */
static void feed(struct td_node *n, const struct td_wire_msg *m)
{
    struct nd_event ev = {
        .type = ND_EV_MSG, .router_epoch = nd_local_epoch(n->local), .msg = m, .decode_err = TD_OK};
    bool mute = n->local_mute;
    n->local_mute = true;
    nd__event(n, &ev);
    n->local_mute = mute;
    if (!mute) {
        td_timer_set(n->local_timer, td_now_us());
    }
}

td_err td_node_submit(struct td_node *n, const struct nd_local_request *r,
                      const struct nd_local_ops *ops, void *arg, uint64_t *out_ref)
{
    struct td_wire_msg m;
    uint8_t nonce[16];
    TD_REQUIRE(n->local != NULL && ops->on_token != NULL && ops->on_end != NULL &&
               (r->mode != ND_LOCAL_HOLD || ops->on_held != NULL));
    td_rng_fill(nonce, sizeof nonce);
    TD_TRY(nd_local_submit(n->local, r, nonce, ops, arg, out_ref, &m));
    feed(n, &m);
    return TD_OK;
}

void td_node_cancel(struct td_node *n, uint64_t ref)
{
    struct td_wire_msg m;
    TD_REQUIRE(n->local != NULL);
    if (nd_local_cancel(n->local, ref, &m)) {
        feed(n, &m);
    }
}

void td_node_detach(struct td_node *n, uint64_t ref)
{
    TD_REQUIRE(n->local != NULL);
    nd_local_detach(n->local, ref);
}

uint32_t td_node_local_count(const struct td_node *n)
{
    return n->local != NULL ? nd_local_count(n->local) : 0;
}
