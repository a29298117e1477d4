/* Design: mirrors common/io/xfer_push.c without UCX. A push leaves layer by layer as the engine finishes
 * them, at most SIM_WINDOW slices in flight to one peer; a message waits for the slices before it that
 * it concerns. A slice's payload is copied when it is posted, or (as a rendezvous) read out of P's
 * blocks when D fetches it: then P's blocks must still be what they were. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim.h"

#define SLICE_BYTES 512u

/* ---- events for the core ---- */

void sim_xfer_tell(struct sim *s, struct sim_proc *p, const struct td_xfer_event *ev)
{
    struct sim_node *n = p->node;
    uint8_t *data = malloc(sizeof *ev + ev->n_bytes + 1);
    TD_INSIST(data != NULL);
    memcpy(data, ev, sizeof *ev);
    if (ev->type == TD_XFER_MSG) {
        memcpy(data + sizeof *ev, ev->bytes, ev->n_bytes);
    }
    int64_t at =
        s->now + (sim_chance(s, 50) ? sim_between(s, SIM_MS, 8 * SIM_MS) : sim_between(s, 10, 200));
    n->xfer_last_us = at > n->xfer_last_us ? at : n->xfer_last_us;
    sim_post(s, (struct sim_ev){.at = n->xfer_last_us,
                                .type = SIM_EV_XFER,
                                .proc = p->index,
                                .life = p->life,
                                .data = data});
}

/* ---- pushes ---- */

static struct sim_push *find_push(struct sim_node *n, uint64_t handle)
{
    for (uint32_t i = 0; i < n->n_push_order; i++) {
        if (n->pushes[n->push_order[i]].cmd.push == handle) {
            return &n->pushes[n->push_order[i]];
        }
    }
    return NULL;
}

void sim_xfer_push_end(struct sim *s, struct sim_proc *p, struct sim_push *u)
{
    struct sim_node *n = p->node;
    struct td_xfer_event ev = {.type = TD_XFER_PUSHED,
                               .epoch = u->cmd.epoch,
                               .land = u->cmd.land,
                               .push = u->cmd.push,
                               .err = u->err,
                               .n_bytes = u->bytes,
                               .first_post_us = u->first_us,
                               .last_done_us = u->last_us,
                               .transport = "shm"};
    uint32_t at = 0;
    while (&n->pushes[n->push_order[at]] != u) {
        at++;
    }
    memmove(&n->push_order[at], &n->push_order[at + 1],
            (--n->n_push_order - at) * sizeof n->push_order[0]);
    for (uint32_t i = 0; i < SIM_WINDOW; i++) {
        struct sim_slot *slot = &n->peers[u->peer].slots[i];
        slot->used = slot->used && &n->pushes[slot->push] != u;
    }
    free((void *)(uintptr_t)u->cmd.blocks);
    free((void *)(uintptr_t)u->cmd.src);
    *u = (struct sim_push){0};
    sim_xfer_tell(s, p, &ev);
}

/* Whose blocks these are: a running row's, or the writer's of what is there. */
static uint64_t owner_of(struct sim_node *n, uint32_t block)
{
    const struct sim_row *row = sim_engine_row_of(&n->eng, block);
    return row != NULL ? row->handle : sim_cells(n, block, 0)[0].writer;
}

static void push(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c)
{
    struct sim_node *n = p->node;
    struct sim_peer *e = sim_peer_find(n, c->epoch);
    uint32_t i = 0;
    if (sim_node_work(p, &c->id)->cancelled || c->push == 0 || find_push(n, c->push) != NULL) {
        sim_fail(s, "%s: push %" PRIx64 " is wrong: zero, known, or of a cancelled request",
                 p->name, c->push);
        return;
    }
    if (e == NULL) {
        struct td_xfer_event ev = {
            .type = TD_XFER_PUSHED, .epoch = c->epoch, .push = c->push, .err = TD_ERR_PEER_LOST};
        sim_xfer_tell(s, p, &ev);
        return;
    }
    while (i < SIM_MAX_PUSHES && n->pushes[i].used) {
        i++;
    }
    TD_INSIST(i < SIM_MAX_PUSHES && c->n_blocks > 0 && c->n_blocks <= SIM_MAX_MODEL / SIM_BLOCK);
    struct sim_push *u = &n->pushes[i];
    *u = (struct sim_push){.cmd = *c,
                           .used = true,
                           .peer = (uint32_t)(e - n->peers),
                           .seq = ++n->next_seq,
                           .owner = owner_of(n, c->src[0])};
    u->cmd.blocks = sim_copy(c->blocks, c->n_blocks * sizeof *c->blocks);
    u->cmd.src = sim_copy(c->src, c->n_blocks * sizeof *c->src);
    n->push_order[n->n_push_order++] = i;
    sim_xfer_pump(s, p, e);
}

/* The first block of a prompt that its first decode row sees. */
static uint32_t first_shown(const struct sim *s, uint32_t n_tok)
{
    return s->window > 0 && n_tok >= s->window ? (n_tok - s->window + 1) / SIM_BLOCK : 0;
}

/* What P's blocks hold must be this request's prompt. */
void sim_xfer_read_source(struct sim *s, struct sim_proc *p, const struct sim_packet *k,
                          struct sim_cell *out)
{
    const struct sim_req *r = sim_req_of(s, &k->id);
    const struct sim_work *w = sim_node_work(p, &k->id);
    uint32_t first = first_shown(s, w->n_tok);
    for (uint32_t i = 0; i < k->n_blocks; i++) {
        const struct sim_cell *from = sim_cells(p->node, k->src[i], k->layer);
        memcpy(out + i * SIM_BLOCK, from, SIM_BLOCK * sizeof *out);
        for (uint32_t t = 0; t < SIM_BLOCK && r != NULL; t++) {
            uint32_t pos = (first + k->first_block + i) * SIM_BLOCK + t;
            if (pos < w->n_tok && from[t].h != sim_cell_hash(r->chain[pos], k->layer)) {
                sim_fail(s, "%s pushes wrong KV: request %u position %u layer %u block %u", p->name,
                         r->index, pos, k->layer, k->src[i]);
                return;
            }
        }
    }
}

static void post(struct sim *s, struct sim_proc *p, struct sim_peer *e, struct sim_slot *slot,
                 struct sim_push *u)
{
    struct sim_node *n = p->node;
    struct sim_packet *k = calloc(1, sizeof *k);
    TD_INSIST(k != NULL);
    *k = (struct sim_packet){.kind = SIM_SLICE,
                             .from = p->epoch,
                             .to = e->epoch,
                             .land = u->cmd.land,
                             .post_no = ++e->next_post,
                             .id = u->cmd.id,
                             .layer = u->posted,
                             .first_block = u->cmd.first_block,
                             .n_blocks = u->cmd.n_blocks,
                             .generation = u->cmd.blocks[0].generation,
                             .late_read = sim_chance(s, 2)};
    memcpy(k->src, u->cmd.src, u->cmd.n_blocks * sizeof k->src[0]);
    *slot = (struct sim_slot){true, (uint32_t)(u - n->pushes), k->post_no, u->cmd.land};
    u->posted++;
    u->inflight++;
    u->first_us = u->first_us != 0 ? u->first_us : s->now;
    e->free_us = (e->free_us > s->now ? e->free_us : s->now) +
                 (int64_t)k->n_blocks * sim_between(s, 20, 400) + n->late_us;
    n->late_us = 0;
    if (!k->late_read) {
        k->cells = calloc((size_t)k->n_blocks * SIM_BLOCK, sizeof *k->cells);
        TD_INSIST(k->cells != NULL);
        sim_xfer_read_source(s, p, k, k->cells);
    }
    if (n->bad_slices > 0) {
        n->bad_slices--;
        k->bad = true;
    }
    bool lost = n->drop_slices > 0;
    if (lost || !k->late_read) {
        sim_post(s, (struct sim_ev){.at = e->free_us,
                                    .type = SIM_EV_POSTED,
                                    .proc = p->index,
                                    .life = p->life,
                                    .a = e->xconn,
                                    .b = k->post_no});
    }
    if (lost) {
        n->drop_slices--;
        sim_packet_free(k);
    } else {
        sim_peer_packet(s, e->xconn, e->side, k, e->free_us);
    }
}

static uint32_t layers_of(const struct sim_engine *g, const struct sim_push *u)
{
    if (u->cmd.ticket == 0 || g->n_steps == 0 || u->cmd.ticket < g->steps[0].ticket) {
        return SIM_LAYERS;
    }
    return u->cmd.ticket == g->steps[0].ticket ? g->layers : 0;
}

static struct sim_slot *free_slot(struct sim_peer *e)
{
    for (uint32_t i = 0; i < SIM_WINDOW; i++) {
        if (!e->slots[i].used) {
            return &e->slots[i];
        }
    }
    return NULL;
}

/* True when something can be said to wait for it: an earlier push with all it needs. */
static bool slices_wait(const struct sim_node *n, const struct sim_peer *e,
                        const struct sim_send *m)
{
    for (uint32_t i = 0; i < n->n_push_order; i++) {
        const struct sim_push *u = &n->pushes[n->push_order[i]];
        bool concerns = m->land == 0 || m->land == u->cmd.land;
        if (&n->peers[u->peer] == e && u->seq < m->seq && concerns && u->err == TD_OK &&
            u->posted < SIM_LAYERS && u->avail == SIM_LAYERS) {
            return true;
        }
    }
    return false;
}

static bool slices_fly(const struct sim_peer *e, const struct sim_send *m)
{
    for (uint32_t i = 0; i < SIM_WINDOW; i++) {
        const struct sim_slot *slot = &e->slots[i];
        if (slot->used && slot->post_no < m->barrier && (m->land == 0 || m->land == slot->land)) {
            return true;
        }
    }
    return false;
}

static void keep_old(struct sim *s, const struct sim_proc *p, const struct sim_peer *e,
                     const struct sim_send *m)
{
    struct sim_old *o = &s->old[s->n_old++ % SIM_MAX_OLD];
    free(o->bytes);
    *o = (struct sim_old){.proc = s->xconns[e->xconn].proc[!e->side],
                          .epoch = p->epoch,
                          .bytes = sim_copy(m->bytes, m->len),
                          .len = m->len};
}

static bool send_pump(struct sim *s, struct sim_proc *p, struct sim_peer *e)
{
    struct sim_send *m = &e->sends[0];
    if (m->barrier == 0) {
        if (slices_wait(p->node, e, m)) {
            return false;
        }
        m->barrier = e->next_post + 1;
    }
    if (slices_fly(e, m)) {
        return false;
    }
    struct sim_packet *k = calloc(1, sizeof *k);
    TD_INSIST(k != NULL);
    *k = (struct sim_packet){
        .kind = SIM_MSG, .from = p->epoch, .to = e->epoch, .bytes = m->bytes, .len = m->len};
    keep_old(s, p, e, m);
    memmove(&e->sends[0], &e->sends[1], --e->n_sends * sizeof e->sends[0]);
    if (p->node->drop_msgs > 0) {
        p->node->drop_msgs--;
        sim_trace(s, "%s: message to %" PRIx64 " lost", p->name, e->epoch);
        sim_packet_free(k);
    } else {
        sim_peer_packet(s, e->xconn, e->side, k, e->free_us);
    }
    return true;
}

void sim_xfer_pump(struct sim *s, struct sim_proc *p, struct sim_peer *e)
{
    struct sim_node *n = p->node;
    for (uint32_t i = 0; i < n->n_push_order;) {
        struct sim_push *u = &n->pushes[n->push_order[i]];
        if (&n->peers[u->peer] != e || e->dying) {
            i++;
            continue;
        }
        struct sim_slot *slot;
        u->avail = layers_of(&n->eng, u);
        while (u->err == TD_OK && u->posted < u->avail && (slot = free_slot(e)) != NULL) {
            post(s, p, e, slot, u);
        }
        if (u->inflight == 0 && (u->err != TD_OK || u->posted == SIM_LAYERS)) {
            sim_xfer_push_end(s, p, u);
        } else {
            i++;
        }
    }
    while (!e->dying && e->n_sends > 0 && send_pump(s, p, e)) {
    }
}

void sim_xfer_pump_all(struct sim *s, struct sim_proc *p)
{
    for (uint32_t i = 0; i < SIM_MAX_PEERS; i++) {
        if (p->node->peers[i].used) {
            sim_xfer_pump(s, p, &p->node->peers[i]);
        }
    }
}

static void on_posted(struct sim *s, struct sim_proc *p, const struct sim_ev *ev)
{
    struct sim_peer *e = sim_peer_of(p->node, (uint32_t)ev->a);
    for (uint32_t i = 0; e != NULL && i < SIM_WINDOW; i++) {
        struct sim_slot *slot = &e->slots[i];
        if (slot->used && slot->post_no == ev->b) {
            struct sim_push *u = &p->node->pushes[slot->push];
            slot->used = false;
            u->inflight--;
            u->bytes += u->cmd.n_blocks * SLICE_BYTES;
            u->last_us = s->now;
            sim_xfer_pump(s, p, e);
            return;
        }
    }
}

/* ---- messages in ---- */

static void message_in(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    struct sim_packet *k = ev->data;
    struct sim_peer *e = sim_peer_of(p->node, (uint32_t)ev->a);
    if (e == NULL || e->dying || k->to != p->epoch) {
        return;
    }
    if (e->in_us > s->now) { /* held back until the slices before it are in place */
        struct sim_ev again = *ev;
        again.at = e->in_us;
        ev->data = NULL;
        sim_post(s, again);
        return;
    }
    struct td_xfer_event x = {
        .type = TD_XFER_MSG, .epoch = k->from, .bytes = k->bytes, .n_bytes = k->len};
    sim_xfer_tell(s, p, &x);
}

static void packet_in(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    switch (((struct sim_packet *)ev->data)->kind) {
    case SIM_HELLO:
        sim_peer_hello(s, p, (uint32_t)ev->a, ev->data);
        break;
    case SIM_MSG:
        message_in(s, p, ev);
        break;
    case SIM_SLICE:
        sim_slice_in(s, p, ev);
        break;
    case SIM_BYE:
        sim_peer_bye(s, p, (uint32_t)ev->a);
        break;
    }
}

/* ---- doors ---- */

static void send(struct sim *s, struct sim_proc *p, const struct nd_action *a)
{
    struct sim_peer *e = sim_peer_find(p->node, a->cmd.epoch);
    if (e == NULL) {
        struct td_xfer_event ev = {
            .type = TD_XFER_PEER_LOST, .epoch = a->cmd.epoch, .err = TD_ERR_PEER_LOST};
        sim_xfer_tell(s, p, &ev);
        return;
    }
    td_buf_clear(&p->out);
    td_err err = td_wire_encode(a->msg, &p->out);
    if (err != TD_OK || e->n_sends == sizeof e->sends / sizeof e->sends[0]) {
        sim_fail(s, "%s cannot send %s to a peer: %s", p->name, td_wire_type_name(a->msg->type),
                 td_err_code(err));
        return;
    }
    e->sends[e->n_sends++] = (struct sim_send){.land = a->cmd.land,
                                               .seq = ++p->node->next_seq,
                                               .bytes = sim_copy(p->out.data, p->out.len),
                                               .len = p->out.len};
    sim_xfer_pump(s, p, e);
}

void sim_xfer_cmd(struct sim *s, struct sim_proc *p, const struct nd_action *a)
{
    const struct td_xfer_cmd *c = &a->cmd;
    struct sim_push *u;
    switch (c->type) {
    case TD_XFER_CONNECT:
        sim_peer_connect(s, p, c);
        break;
    case TD_XFER_SEND:
        send(s, p, a);
        break;
    case TD_XFER_LAND:
        sim_land_open(s, p, c);
        break;
    case TD_XFER_UNLAND:
        sim_land_close(s, p, c);
        break;
    case TD_XFER_PUSH:
        push(s, p, c);
        break;
    case TD_XFER_PUSH_CANCEL:
        u = find_push(p->node, c->push);
        if (u != NULL && u->err == TD_OK && (u->posted < SIM_LAYERS || u->inflight > 0)) {
            u->err = TD_ERR_CANCELLED;
            sim_xfer_pump(s, p, &p->node->peers[u->peer]);
        }
        break;
    case TD_XFER_CLOSE:
        sim_peer_close(s, p, c->epoch);
        break;
    }
}

void sim_xfer_event(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    struct sim_peer *e;
    switch ((int)ev->type) {
    case SIM_EV_PACKET:
        packet_in(s, p, ev);
        break;
    case SIM_EV_PLACED:
        sim_slice_placed(s, p, ev);
        break;
    case SIM_EV_POSTED:
        on_posted(s, p, ev);
        break;
    case SIM_EV_XFAIL:
        e = sim_peer_of(p->node, (uint32_t)ev->a);
        if (e != NULL) {
            sim_peer_fail(s, p, e, TD_ERR_PEER_LOST);
        }
        break;
    case SIM_EV_XEND:
        sim_peer_ended(s, p, (uint32_t)ev->a);
        break;
    case SIM_EV_FENCE:
        sim_land_fence(s, p, ev->a);
        break;
    default:
        break;
    }
}

void sim_xfer_fini(struct sim_node *n)
{
    while (n->n_push_order > 0) {
        struct sim_push *u = &n->pushes[n->push_order[--n->n_push_order]];
        free((void *)(uintptr_t)u->cmd.blocks);
        free((void *)(uintptr_t)u->cmd.src);
    }
    for (uint32_t i = 0; i < SIM_MAX_LANDS; i++) {
        free(n->lands[i].blocks);
    }
    for (uint32_t i = 0; i < SIM_MAX_PEERS; i++) {
        for (uint32_t k = 0; k < n->peers[i].n_sends; k++) {
            free(n->peers[i].sends[k].bytes);
        }
    }
}
