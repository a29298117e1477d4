/* Design: mirrors common/io/xfer_peer.c. The dialing side's HELLO makes the peer known at the other
 * side; an end (failure, goodbye, close) takes the peer off the books at once, and a moment later
 * every operation on its connection has ended: pushes end, receives are dropped, LOST or CLOSED. */
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim.h"

static struct sim_path *path(struct sim *s, uint32_t a, uint32_t b)
{
    return &s->data[a < b ? a : b][a < b ? b : a];
}

struct sim_peer *sim_peer_find(struct sim_node *n, uint64_t epoch)
{
    for (uint32_t i = 0; i < SIM_MAX_PEERS; i++) {
        if (n->peers[i].used && !n->peers[i].dying && n->peers[i].epoch == epoch) {
            return &n->peers[i];
        }
    }
    return NULL;
}

struct sim_peer *sim_peer_of(struct sim_node *n, uint32_t xconn)
{
    for (uint32_t i = 0; i < SIM_MAX_PEERS; i++) {
        if (n->peers[i].used && n->peers[i].xconn == xconn) {
            return &n->peers[i];
        }
    }
    return NULL;
}

static struct sim_peer *add(struct sim_node *n, uint64_t epoch, uint32_t xconn, uint32_t side)
{
    uint32_t i = 0;
    while (i < SIM_MAX_PEERS && n->peers[i].used) {
        i++;
    }
    TD_INSIST(i < SIM_MAX_PEERS);
    n->peers[i] = (struct sim_peer){.used = true, .epoch = epoch, .xconn = xconn, .side = side};
    return &n->peers[i];
}

/* ---- packets ---- */

void sim_packet_free(struct sim_packet *k)
{
    if (k != NULL) {
        free(k->cells);
        free(k->bytes);
        free(k);
    }
}

void sim_peer_packet(struct sim *s, uint32_t xconn, uint32_t side, struct sim_packet *k, int64_t at)
{
    struct sim_xconn *x = &s->xconns[xconn];
    struct sim_path *w = path(s, x->proc[0], x->proc[1]);
    uint32_t to = !side;
    struct sim_ev ev = {
        .type = SIM_EV_PACKET, .proc = x->proc[to], .life = x->life[to], .a = xconn, .data = k};
    if (w->cut) {
        sim_keep(&x->blocked[to], &ev);
        return;
    }
    at = (at > s->now ? at : s->now) + w->delay_us + sim_between(s, 0, w->jitter_us);
    x->last_us[to] = at > x->last_us[to] ? at : x->last_us[to];
    ev.at = x->last_us[to];
    sim_post(s, ev);
}

static struct sim_packet *packet(enum sim_packet_kind kind, uint64_t from, uint64_t to)
{
    struct sim_packet *k = calloc(1, sizeof *k);
    TD_INSIST(k != NULL);
    k->kind = kind;
    k->from = from;
    k->to = to;
    return k;
}

static void fail_at(struct sim *s, uint32_t xconn, uint32_t side, int64_t at)
{
    const struct sim_xconn *x = &s->xconns[xconn];
    sim_post(s, (struct sim_ev){.at = at,
                                .type = SIM_EV_XFAIL,
                                .proc = x->proc[side],
                                .life = x->life[side],
                                .a = xconn});
}

/* ---- birth ---- */

void sim_peer_connect(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c)
{
    uint64_t address[2];
    if (sim_peer_find(p->node, c->epoch) != NULL) {
        return; /* idempotent */
    }
    if (c->n_bytes != sizeof address) {
        sim_fail(s, "%s connects to an address of %zu bytes", p->name, c->n_bytes);
        return;
    }
    memcpy(address, c->bytes, sizeof address);
    TD_INSIST(address[0] < s->n_procs);
    const struct sim_proc *to = &s->procs[address[0]];
    if (s->n_xconns == s->cap_xconns) {
        s->cap_xconns = s->cap_xconns * 2 + 16;
        s->xconns = realloc(s->xconns, s->cap_xconns * sizeof *s->xconns);
        TD_INSIST(s->xconns != NULL);
    }
    uint32_t id = s->n_xconns++;
    s->xconns[id] = (struct sim_xconn){
        .proc = {p->index, to->index}, .life = {p->life, to->life}, .epoch = {p->epoch, c->epoch}};
    (void)add(p->node, c->epoch, id, 0);
    if (!to->up) {
        int64_t wait = to->silent ? sim_between(s, 5 * SIM_SECOND, 15 * SIM_SECOND)
                                  : sim_between(s, SIM_MS, SIM_SECOND);
        fail_at(s, id, 0, s->now + wait);
        return;
    }
    sim_peer_packet(s, id, 0, packet(SIM_HELLO, p->epoch, c->epoch), s->now);
}

/* ---- the end ---- */

static void end(struct sim *s, struct sim_proc *p, struct sim_peer *e, td_err why, bool say_lost)
{
    if (e->dying) {
        return;
    }
    sim_trace(s, "%s: data connection %u to %llx ends: %s", p->name, e->xconn,
              (unsigned long long)e->epoch, td_err_code(why));
    e->dying = true;
    e->why = why;
    e->say_lost = say_lost;
    for (uint32_t i = 0; i < e->n_sends; i++) {
        free(e->sends[i].bytes);
    }
    e->n_sends = 0;
    for (uint32_t i = 0; i < p->node->n_push_order; i++) {
        struct sim_push *u = &p->node->pushes[p->node->push_order[i]];
        if (&p->node->peers[u->peer] == e && u->err == TD_OK) {
            u->err = TD_ERR_PEER_LOST;
        }
    }
    if (!e->failed) {
        sim_peer_packet(s, e->xconn, e->side, packet(SIM_BYE, p->epoch, e->epoch), s->now);
    }
    int64_t fence = sim_between(s, 100, 50 * SIM_MS) + p->node->fence_us;
    sim_post(s, (struct sim_ev){.at = s->now + fence,
                                .type = SIM_EV_XEND,
                                .proc = p->index,
                                .life = p->life,
                                .a = e->xconn});
}

static void drop_receives(struct sim *s, struct sim_proc *p, uint32_t xconn)
{
    for (uint32_t i = 0; i < SIM_MAX_RECVS; i++) {
        struct sim_recv *r = &p->node->recvs[i];
        if (r->used && r->xconn == xconn) {
            r->used = false;
            struct sim_land *l = sim_land_find(p->node, r->land);
            TD_INSIST(l != NULL && l->n_recvs > 0);
            l->n_recvs--;
            sim_land_ready(s, p, l);
        }
    }
}

/* Closed means that none of the peer's connections can write any more: the last one to end says so. */
static void say_closed_last(struct sim *s, struct sim_proc *p, uint64_t epoch)
{
    for (uint32_t i = 0; i < SIM_MAX_PEERS; i++) {
        struct sim_peer *o = &p->node->peers[i];
        if (o->used && o->dying && o->epoch == epoch) {
            o->say_closed = true;
            return;
        }
    }
    struct td_xfer_event ev = {.type = TD_XFER_CLOSED, .epoch = epoch};
    sim_xfer_tell(s, p, &ev);
}

void sim_peer_ended(struct sim *s, struct sim_proc *p, uint32_t xconn)
{
    struct sim_peer *e = sim_peer_of(p->node, xconn);
    if (e == NULL) {
        return;
    }
    drop_receives(s, p, xconn);
    for (uint32_t i = 0; i < p->node->n_push_order;) {
        struct sim_push *u = &p->node->pushes[p->node->push_order[i]];
        if (&p->node->peers[u->peer] == e) {
            sim_xfer_push_end(s, p, u);
        } else {
            i++;
        }
    }
    struct td_xfer_event ev = {.type = TD_XFER_PEER_LOST, .epoch = e->epoch, .err = e->why};
    if (e->say_lost) {
        sim_xfer_tell(s, p, &ev);
    }
    bool say_closed = e->say_closed;
    *e = (struct sim_peer){0};
    if (say_closed) {
        say_closed_last(s, p, ev.epoch);
    }
}

void sim_peer_fail(struct sim *s, struct sim_proc *p, struct sim_peer *e, td_err why)
{
    if (!e->dying) {
        e->failed = true;
        end(s, p, e, why, true);
    }
}

void sim_peer_close(struct sim *s, struct sim_proc *p, uint64_t epoch)
{
    struct sim_peer *e = sim_peer_find(p->node, epoch);
    if (e != NULL) {
        e->say_closed = true;
        end(s, p, e, TD_ERR_CLOSED, false);
    } else {
        say_closed_last(s, p, epoch);
    }
}

void sim_peer_hello(struct sim *s, struct sim_proc *p, uint32_t xconn, const struct sim_packet *k)
{
    if (k->to != p->epoch) { /* meant for a process that was here before */
        sim_peer_packet(s, xconn, 1, packet(SIM_BYE, p->epoch, k->from), s->now);
        return;
    }
    struct sim_peer *old = sim_peer_find(p->node, k->from);
    if (old != NULL) {
        end(s, p, old, TD_ERR_PEER_LOST, true);
    }
    (void)add(p->node, k->from, xconn, 1);
}

void sim_peer_bye(struct sim *s, struct sim_proc *p, uint32_t xconn)
{
    struct sim_peer *e = sim_peer_of(p->node, xconn);
    if (e != NULL) {
        sim_peer_fail(s, p, e, TD_ERR_PEER_LOST);
    }
}

/* ---- faults ---- */

void sim_peer_gone(struct sim *s, struct sim_proc *p)
{
    for (uint32_t i = 0; i < s->n_xconns; i++) {
        const struct sim_xconn *x = &s->xconns[i];
        for (uint32_t side = 0; side < 2; side++) {
            if (x->proc[side] == p->index && x->life[side] == p->life) {
                fail_at(s, i, !side,
                        s->now + (p->silent ? sim_between(s, 5 * SIM_SECOND, 15 * SIM_SECOND)
                                            : sim_between(s, SIM_MS, SIM_SECOND)));
            }
        }
    }
}

void sim_peer_lose(struct sim *s, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < s->n_xconns; i++) {
        const struct sim_xconn *x = &s->xconns[i];
        if ((x->proc[0] == a && x->proc[1] == b) || (x->proc[0] == b && x->proc[1] == a)) {
            fail_at(s, i, 0, s->now + sim_between(s, 0, 500 * SIM_MS));
            fail_at(s, i, 1, s->now + sim_between(s, 0, 500 * SIM_MS));
        }
    }
}

void sim_peer_healed(struct sim *s, uint32_t a, uint32_t b)
{
    struct sim_path *w = path(s, a, b);
    for (uint32_t i = 0; i < s->n_xconns; i++) {
        struct sim_xconn *x = &s->xconns[i];
        for (uint32_t to = 0; to < 2; to++) {
            if (path(s, x->proc[0], x->proc[1]) == w && x->blocked[to].n > 0) {
                x->last_us[to] = sim_release(s, &x->blocked[to], s->now + w->delay_us);
            }
        }
    }
}
