/* Design: a connection is two first-in-first-out byte streams with a delay; a cut path keeps what is
 * written until it heals, a reset loses what is under way. A process that is stopped stays connected:
 * its kernel accepts and buffers. Every message travels in an envelope {serial, order key}, so that a
 * lost, doubled or overtaken one is seen at the link, before any role could hide it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "tests/sim/sim.h"

#define ENVELOPE 16u

static struct sim_path *path(struct sim *s, uint32_t a, uint32_t b)
{
    return &s->ctl[a < b ? a : b][a < b ? b : a];
}

static int64_t delay(struct sim *s, const struct sim_path *w)
{
    return w->delay_us + sim_between(s, 0, w->jitter_us);
}

/* ---- streams ---- */

/* An event for the other end of `c`, behind everything that went there before. */
static void towards(struct sim *s, uint32_t id, uint32_t side, struct sim_ev ev)
{
    struct sim_conn *c = &s->conns[id];
    struct sim_path *w = path(s, c->proc[0], c->proc[1]);
    ev.proc = c->proc[side];
    ev.life = c->life[side];
    ev.a = id;
    if (w->cut) {
        sim_keep(&c->blocked[side], &ev);
        return;
    }
    int64_t at = s->now + delay(s, w);
    c->last_us[side] = at > c->last_us[side] ? at : c->last_us[side];
    ev.at = c->last_us[side];
    sim_post(s, ev);
}

static uint32_t new_conn(struct sim *s, uint32_t dialer, uint32_t listener)
{
    if (s->n_conns == s->cap_conns) {
        s->cap_conns = s->cap_conns * 2 + 32;
        s->conns = realloc(s->conns, s->cap_conns * sizeof *s->conns);
        TD_INSIST(s->conns != NULL);
    }
    s->conns[s->n_conns] = (struct sim_conn){
        .proc = {dialer, listener},
        .life = {s->procs[dialer].life, s->procs[listener].life},
    };
    return s->n_conns++;
}

static uint32_t conn_of(const struct sim *s, const struct sim_proc *p, uint64_t handle,
                        uint32_t *out_side)
{
    for (uint32_t i = s->n_conns; i-- > 0;) {
        const struct sim_conn *c = &s->conns[i];
        for (uint32_t side = 0; side < 2; side++) {
            if (c->open[side] && c->proc[side] == p->index && c->life[side] == p->life &&
                c->handle[side] == handle) {
                *out_side = side;
                return i;
            }
        }
    }
    return UINT32_MAX;
}

/* The target's number is the node's place behind the routers. */
static void dial(struct sim *s, struct sim_proc *p, uint32_t target)
{
    uint32_t to = SIM_ROUTERS + target;
    struct sim_proc *node = &s->procs[to];
    struct sim_path *w = path(s, p->index, to);
    struct sim_ev ev = {.type = SIM_EV_NO_DIAL, .proc = p->index, .life = p->life, .a = target};
    if (w->cut || (!node->up && node->silent)) {
        ev.at = s->now + 3 * SIM_SECOND;
        sim_post(s, ev);
    } else if (!node->up) {
        ev.at = s->now + 2 * delay(s, w);
        ev.b = 1;
        sim_post(s, ev);
    } else {
        uint32_t id = new_conn(s, p->index, to);
        towards(s, id, 1, (struct sim_ev){.type = SIM_EV_ACCEPT});
        towards(s, id, 0, (struct sim_ev){.type = SIM_EV_DIALED, .b = target});
    }
}

static void write_bytes(struct sim *s, struct sim_proc *p, const struct td_link_action *a)
{
    uint32_t side = 0;
    uint32_t id = conn_of(s, p, a->conn, &side);
    TD_INSIST(id != UINT32_MAX);
    size_t cut = a->len > 1 && sim_chance(s, 16) ? 1 + sim_below(s, a->len - 1) : a->len;
    for (size_t at = 0; at < a->len;) {
        size_t n = at == 0 ? cut : a->len - at;
        towards(s, id, !side,
                (struct sim_ev){
                    .type = SIM_EV_BYTES, .data = sim_copy(a->bytes + at, n), .len = n, .b = side});
        at += n;
    }
    sim_post(s, (struct sim_ev){.at = s->now + 20,
                                .type = SIM_EV_WROTE,
                                .proc = p->index,
                                .life = p->life,
                                .a = id,
                                .b = side});
}

static void close_conn(struct sim *s, struct sim_proc *p, uint64_t handle)
{
    uint32_t side = 0;
    uint32_t id = conn_of(s, p, handle, &side);
    TD_INSIST(id != UINT32_MAX);
    s->conns[id].open[side] = false;
    td_link_conn_closed(p->link, s->now, handle);
    towards(s, id, !side, (struct sim_ev){.type = SIM_EV_CLOSED});
}

/* ---- sessions ---- */

struct sim_session *sim_net_session(struct sim_proc *p, uint64_t peer_epoch)
{
    for (uint32_t i = 0; i < SIM_MAX_SESSIONS; i++) {
        if (p->sessions[i].used && p->sessions[i].peer_epoch == peer_epoch) {
            return &p->sessions[i];
        }
    }
    return NULL;
}

static void forget(struct sim_session *x)
{
    free(x->seen);
    *x = (struct sim_session){0};
}

bool sim_net_send(struct sim *s, struct sim_proc *p, uint64_t peer_epoch, uint64_t key,
                  const struct td_wire_msg *m)
{
    struct sim_session *x = sim_net_session(p, peer_epoch);
    uint8_t head[ENVELOPE] = {0};
    if (x == NULL) {
        return true;
    }
    uint64_t serial = x->sent + 1;
    memcpy(head, &serial, 8);
    memcpy(head + 8, &key, 8);
    td_buf_clear(&p->out);
    TD_INSIST(td_buf_append(&p->out, head, sizeof head) == TD_OK);
    td_err err = td_wire_encode(m, &p->out);
    if (err != TD_OK) {
        sim_fail(s, "%s cannot encode %s: %s", p->name, td_wire_type_name(m->type),
                 td_err_code(err));
        return false;
    }
    err = td_link_send(p->link, s->now, x->handle, key, p->out.data, p->out.len);
    if (err == TD_OK) {
        x->sent = serial;
    } else {
        sim_trace(s, "%s cannot send %s: %s", p->name, td_wire_type_name(m->type),
                  td_err_code(err));
    }
    return err == TD_OK || err == TD_ERR_CLOSED;
}

void sim_net_drop(struct sim *s, struct sim_proc *p, uint64_t peer_epoch, td_err err)
{
    struct sim_session *x = sim_net_session(p, peer_epoch);
    if (x != NULL) {
        td_link_session_close(p->link, s->now, x->handle, err);
        forget(x);
    }
}

/* Once, and in order within its key. */
static void envelope_check(struct sim *s, struct sim_proc *p, struct sim_session *x,
                           const uint8_t *head)
{
    uint64_t serial, key;
    memcpy(&serial, head, 8);
    memcpy(&key, head + 8, 8);
    uint32_t word = (uint32_t)(serial / 64);
    if (word >= x->cap_seen) {
        uint32_t cap = word * 2 + 8;
        x->seen = realloc(x->seen, cap * sizeof *x->seen);
        TD_INSIST(x->seen != NULL);
        memset(x->seen + x->cap_seen, 0, (cap - x->cap_seen) * sizeof *x->seen);
        x->cap_seen = cap;
    }
    uint64_t bit = UINT64_C(1) << serial % 64;
    if ((x->seen[word] & bit) != 0) {
        sim_fail(s, "%s: message %" PRIu64 " of a session came twice", p->name, serial);
    }
    x->seen[word] |= bit;
    x->got++;
    uint32_t slot = (uint32_t)(td_mix64(key) % 64);
    if (key != 0 && x->key[slot] == key && x->last[slot] >= serial) {
        sim_fail(s, "%s: message %" PRIu64 " of key %" PRIx64 " came after %" PRIu64, p->name,
                 serial, key, x->last[slot]);
    }
    x->key[slot] = key;
    x->last[slot] = serial;
}

static void on_message(struct sim *s, struct sim_proc *p, const struct td_link_action *a)
{
    struct sim_session *x = sim_net_session(p, a->peer_epoch);
    struct td_wire_msg msg;
    if (x == NULL || a->len <= ENVELOPE) {
        sim_fail(s, "%s: message of an unknown session", p->name);
        return;
    }
    envelope_check(s, p, x, a->bytes);
    td_arena_reset(p->arena);
    td_err err = td_wire_decode(a->bytes + ENVELOPE, a->len - ENVELOPE, p->arena, &msg);
    if (err != TD_OK) {
        sim_fail(s, "%s cannot decode a message: %s", p->name, td_err_code(err));
        return;
    }
    if (p->kind == SIM_ROUTER) {
        sim_router_message(s, p, a->peer_epoch, &msg, err);
    } else {
        sim_node_message(s, p, a->peer_epoch, &msg, err);
    }
}

static void on_up(struct sim *s, struct sim_proc *p, const struct td_link_action *a)
{
    struct sim_session *x = NULL;
    for (uint32_t i = 0; i < SIM_MAX_SESSIONS && x == NULL; i++) {
        x = p->sessions[i].used ? NULL : &p->sessions[i];
    }
    TD_INSIST(x != NULL);
    *x = (struct sim_session){
        .used = true, .handle = a->session, .peer_epoch = a->peer_epoch, .full_wanted = true};
    sim_trace(s, "%s: session with %s up", p->name, a->peer_name);
    if (p->kind == SIM_ROUTER) {
        sim_router_up(s, p, a->bytes, a->len);
    } else {
        struct nd_event ev = {.type = ND_EV_ROUTER_UP, .router_epoch = a->peer_epoch};
        sim_node_feed(s, p, &ev);
    }
}

static void on_lost(struct sim *s, struct sim_proc *p, const struct td_link_action *a)
{
    struct sim_session *x = sim_net_session(p, a->peer_epoch);
    sim_trace(s, "%s: session with %s lost: %s", p->name, a->peer_name, a->text);
    s->n_lost++;
    if (x == NULL || x->handle != a->session) {
        sim_fail(s, "%s: an unknown session is lost", p->name);
        return;
    }
    forget(x);
    if (p->kind == SIM_ROUTER) {
        sim_router_lost(s, p, a->peer_epoch);
    } else {
        struct nd_event ev = {.type = ND_EV_ROUTER_LOST, .router_epoch = a->peer_epoch};
        sim_node_feed(s, p, &ev);
    }
}

static void on_attached(struct sim *s, struct sim_proc *p, const struct td_link_action *a,
                        bool attached)
{
    sim_trace(s, "%s: session with %s %s", p->name, a->peer_name,
              attached ? "resumed" : "detached");
    if (p->kind == SIM_ROUTER) {
        sim_router_link(s, p, a->peer_epoch, attached);
    }
}

static void carry_out(struct sim *s, struct sim_proc *p, const struct td_link_action *a)
{
    switch (a->type) {
    case TD_LINK_DIAL:
        dial(s, p, a->target);
        break;
    case TD_LINK_WRITE:
        write_bytes(s, p, a);
        break;
    case TD_LINK_CLOSE:
        close_conn(s, p, a->conn);
        break;
    case TD_LINK_UP:
        on_up(s, p, a);
        break;
    case TD_LINK_MESSAGE:
        on_message(s, p, a);
        break;
    case TD_LINK_LOST:
        on_lost(s, p, a);
        break;
    case TD_LINK_RESUMED:
        s->n_resumes++;
        on_attached(s, p, a, true);
        break;
    case TD_LINK_DETACHED:
        on_attached(s, p, a, false);
        break;
    case TD_LINK_REFUSED:
        sim_fail(s, "%s: refused: %s", p->name, a->text);
        break;
    }
}

static void arm(struct sim *s, struct sim_proc *p)
{
    int64_t at = td_link_next_deadline(p->link);
    if (at < p->link_armed) {
        p->link_armed = at;
        sim_post(s, (struct sim_ev){
                        .at = at, .type = SIM_EV_LINK_TICK, .proc = p->index, .life = p->life});
    }
}

void sim_net_pump(struct sim *s, struct sim_proc *p)
{
    struct td_link_action a;
    for (uint32_t i = 0; !s->failed && td_link_next(p->link, s->now, &a); i++) {
        carry_out(s, p, &a);
        if (i > 200000) {
            sim_fail(s, "%s: the link never rests", p->name);
        }
    }
    arm(s, p);
}

/* ---- events ---- */

static void opened(struct sim *s, struct sim_proc *p, uint32_t id, uint32_t side, uint32_t target)
{
    uint8_t nonce[TD_LINK_NONCE];
    for (size_t i = 0; i < sizeof nonce; i += 8) {
        uint64_t r = td_rng_next(&s->rng);
        memcpy(nonce + i, &r, 8);
    }
    uint64_t handle = 0;
    if (td_link_conn_open(p->link, s->now, target, nonce, &handle) != TD_OK) {
        towards(s, id, !side, (struct sim_ev){.type = SIM_EV_CLOSED});
        return;
    }
    s->conns[id].handle[side] = handle;
    s->conns[id].open[side] = true;
}

static void on_bytes(struct sim *s, struct sim_proc *p, const struct sim_ev *ev)
{
    struct sim_conn *c = &s->conns[ev->a];
    uint32_t side = !ev->b;
    if (c->open[side] && !c->dead) {
        td_link_conn_bytes(p->link, s->now, c->handle[side], ev->data, ev->len);
    }
}

static void on_closed(struct sim *s, struct sim_proc *p, uint32_t id)
{
    struct sim_conn *c = &s->conns[id];
    uint32_t side = c->proc[0] == p->index ? 0 : 1;
    if (c->open[side]) {
        c->open[side] = false;
        td_link_conn_closed(p->link, s->now, c->handle[side]);
    }
}

void sim_net_event(struct sim *s, struct sim_proc *p, const struct sim_ev *ev)
{
    switch ((int)ev->type) {
    case SIM_EV_ACCEPT:
        opened(s, p, (uint32_t)ev->a, 1, TD_LINK_NO_TARGET);
        break;
    case SIM_EV_DIALED:
        opened(s, p, (uint32_t)ev->a, 0, (uint32_t)ev->b);
        break;
    case SIM_EV_NO_DIAL:
        if (ev->b != 0) {
            td_link_dial_refused(p->link, s->now, (uint32_t)ev->a);
        } else {
            td_link_dial_failed(p->link, s->now, (uint32_t)ev->a);
        }
        break;
    case SIM_EV_BYTES:
        on_bytes(s, p, ev);
        break;
    case SIM_EV_WROTE:
        if (s->conns[ev->a].open[ev->b]) {
            td_link_conn_wrote(p->link, s->now, s->conns[ev->a].handle[ev->b]);
        }
        break;
    case SIM_EV_CLOSED:
        on_closed(s, p, (uint32_t)ev->a);
        break;
    case SIM_EV_LINK_TICK:
        if (p->link_armed <= s->now) {
            p->link_armed = TD_NEVER;
            td_link_tick(p->link, s->now);
        }
        break;
    default:
        break;
    }
    sim_net_pump(s, p);
}

/* A host that has come back answers the bytes of a connection it no longer knows with a reset. */
void sim_net_stale(struct sim *s, const struct sim_ev *ev)
{
    if (ev->type == SIM_EV_BYTES && s->procs[ev->proc].up) {
        towards(s, (uint32_t)ev->a, (uint32_t)ev->b, (struct sim_ev){.type = SIM_EV_CLOSED});
    }
}

/* ---- faults ---- */

void sim_net_reset(struct sim *s, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < s->n_conns; i++) {
        struct sim_conn *c = &s->conns[i];
        bool between = (c->proc[0] == a && c->proc[1] == b) || (c->proc[0] == b && c->proc[1] == a);
        if (!between || c->dead || !c->open[0] || !c->open[1]) {
            continue;
        }
        c->dead = true;
        for (uint32_t side = 0; side < 2; side++) {
            int64_t at = s->now + sim_between(s, 0, 300 * SIM_MS);
            sim_post(s, (struct sim_ev){.at = at,
                                        .type = SIM_EV_CLOSED,
                                        .proc = c->proc[side],
                                        .life = c->life[side],
                                        .a = i});
        }
    }
}

void sim_net_healed(struct sim *s, uint32_t a, uint32_t b)
{
    struct sim_path *w = path(s, a, b);
    for (uint32_t i = 0; i < s->n_conns; i++) {
        struct sim_conn *c = &s->conns[i];
        for (uint32_t side = 0; side < 2; side++) {
            if (path(s, c->proc[0], c->proc[1]) == w && c->blocked[side].n > 0) {
                c->last_us[side] = sim_release(s, &c->blocked[side], s->now + delay(s, w));
            }
        }
    }
}

void sim_net_check(struct sim *s)
{
    for (uint32_t r = 0; r < SIM_ROUTERS; r++) {
        for (uint32_t n = SIM_ROUTERS; n < s->n_procs; n++) {
            struct sim_proc *pr = &s->procs[r], *pn = &s->procs[n];
            struct sim_session *xr = sim_net_session(pr, pn->epoch);
            struct sim_session *xn = sim_net_session(pn, pr->epoch);
            struct td_link_session_stats sr, sn;
            if (xr == NULL || xn == NULL) {
                sim_fail(s, "%s and %s have no session in the end", pr->name, pn->name);
                return;
            }
            if (td_link_session_stats(pr->link, xr->handle, &sr) && sr.queued_bytes == 0 &&
                xr->sent != xn->got) {
                sim_fail(s, "%s sent %" PRIu64 " messages, %s has %" PRIu64, pr->name, xr->sent,
                         pn->name, xn->got);
            }
            if (td_link_session_stats(pn->link, xn->handle, &sn) && sn.queued_bytes == 0 &&
                xn->sent != xr->got) {
                sim_fail(s, "%s sent %" PRIu64 " messages, %s has %" PRIu64, pn->name, xn->sent,
                         pr->name, xr->got);
            }
        }
    }
}

/* ---- life ---- */

static const struct td_link_key cluster_key = {
    .id = "sim", .secret = "a secret of the simulated cluster", .secret_len = 32};

void sim_net_start(struct sim *s, struct sim_proc *p)
{
    struct td_buf info;
    td_buf_init(&info, TD_LINK_MAX_INFO);
    if (p->kind == SIM_ROUTER) {
        struct td_wire_router_info i = {.epoch = p->epoch,
                                        .name = p->name,
                                        .version = "sim",
                                        .version_min = TD_WIRE_VERSION_MIN,
                                        .version_max = TD_WIRE_VERSION_MAX};
        TD_INSIST(td_wire_router_info_encode(&i, &info) == TD_OK);
    } else {
        sim_node_info(s, p, &info);
    }
    struct td_link_params lp = {.role = p->kind == SIM_ROUTER ? TD_LINK_ROUTER : TD_LINK_NODE,
                                .epoch = p->epoch,
                                .name = p->name,
                                .info = info.data,
                                .info_len = info.len,
                                .keys = &cluster_key,
                                .n_keys = 1,
                                .jitter_seed = td_rng_next(&s->rng),
                                .max_sessions = SIM_MAX_SESSIONS,
                                .max_pending = 8,
                                .max_targets = SIM_MAX_PROCS,
                                .frame_payload = 512,
                                .window_bytes = 16384,
                                .window_frames = 128,
                                .queue_bytes = s->link_queue,
                                .queue_msgs = 1024};
    TD_INSIST(td_link_create(&lp, &p->link) == TD_OK);
    td_buf_fini(&info);
    p->link_armed = TD_NEVER;
    if (p->kind == SIM_ROUTER) {
        for (uint32_t i = SIM_ROUTERS; i < s->n_procs; i++) {
            uint32_t target = 0;
            TD_INSIST(td_link_target_add(p->link, s->now, &target) == TD_OK);
            TD_INSIST(target == i - SIM_ROUTERS);
        }
    }
    sim_net_pump(s, p);
}

/* Its kernel closes its connections, unless the whole host is gone. */
void sim_net_stop(struct sim *s, struct sim_proc *p)
{
    for (uint32_t i = 0; i < s->n_conns; i++) {
        struct sim_conn *c = &s->conns[i];
        for (uint32_t side = 0; side < 2; side++) {
            if (c->proc[side] == p->index && c->life[side] == p->life) {
                c->open[side] = false;
                if (!p->silent) {
                    towards(s, i, !side, (struct sim_ev){.type = SIM_EV_CLOSED});
                }
            }
        }
    }
    p->link = td_link_destroy(p->link);
    for (uint32_t i = 0; i < SIM_MAX_SESSIONS; i++) {
        forget(&p->sessions[i]);
    }
}
