/* Design: mirrors common/io/xfer_land.c without UCX. A land is the only way into a pool; it is fenced
 * when it is off the books and no payload is on its way into it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "tests/sim/sim.h"

#define SLICE_BYTES 512u

/* ---- lands ---- */

struct sim_land *sim_land_find(struct sim_node *n, uint64_t handle)
{
    for (uint32_t i = 0; i < SIM_MAX_LANDS; i++) {
        if (n->lands[i].used && n->lands[i].handle == handle) {
            return &n->lands[i];
        }
    }
    return NULL;
}

static void free_land(struct sim_node *n, struct sim_land *l)
{
    for (uint32_t i = 0; i < l->n_blocks; i++) {
        n->land_of[l->blocks[i].index] = 0;
    }
    free(l->blocks);
    *l = (struct sim_land){0};
}

void sim_land_ready(struct sim *s, struct sim_proc *p, struct sim_land *l)
{
    if (l->ending && l->n_recvs == 0) {
        struct td_xfer_event ev = {.type = TD_XFER_UNLANDED, .epoch = l->epoch, .land = l->handle};
        free_land(p->node, l);
        sim_xfer_tell(s, p, &ev);
    }
}

/* A block in which slices of one land may be written belongs to no other, and to no row of another. */
static void fenced_check(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c)
{
    struct sim_node *n = p->node;
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        uint32_t b = c->blocks[i].index;
        if (b >= n->info.n_blocks || n->land_of[b] != 0) {
            sim_fail(s, "%s: block %u of a new land may still be written by another", p->name, b);
            return;
        }
        const struct sim_row *row = sim_engine_row_of(&n->eng, b);
        if (row != NULL && row->handle != c->land) {
            sim_fail(s, "%s: block %u of a new land is in a running step", p->name, b);
            return;
        }
    }
}

void sim_land_open(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c)
{
    struct sim_node *n = p->node;
    struct sim_work *w = sim_node_work(p, &c->id);
    fenced_check(s, p, c);
    if (c->land == 0 || sim_land_find(n, c->land) != NULL || w->cancelled || s->failed) {
        sim_fail(s, "%s: land %" PRIx64 " is wrong: zero, known, or of a cancelled request",
                 p->name, c->land);
        return;
    }
    w->handle = c->land;
    for (uint32_t i = 0; i < SIM_MAX_LANDS; i++) {
        if (!n->lands[i].used) {
            n->lands[i] =
                (struct sim_land){.used = true,
                                  .handle = c->land,
                                  .epoch = c->epoch,
                                  .id = c->id,
                                  .blocks = sim_copy(c->blocks, c->n_blocks * sizeof *c->blocks),
                                  .n_blocks = c->n_blocks};
            for (uint32_t b = 0; b < c->n_blocks; b++) {
                n->land_of[c->blocks[b].index] = i + 1;
            }
            return;
        }
    }
    sim_fail(s, "%s: too many lands", p->name);
}

void sim_land_close(struct sim *s, struct sim_proc *p, const struct td_xfer_cmd *c)
{
    struct sim_land *l = sim_land_find(p->node, c->land);
    if (l == NULL) {
        struct td_xfer_event ev = {.type = TD_XFER_UNLANDED, .land = c->land};
        sim_xfer_tell(s, p, &ev);
        return;
    }
    l->ending = true;
    if (l->n_recvs > 0) {
        sim_post(s, (struct sim_ev){.at = s->now + 3 * SIM_SECOND,
                                    .type = SIM_EV_FENCE,
                                    .proc = p->index,
                                    .life = p->life,
                                    .a = l->handle});
    }
    sim_land_ready(s, p, l);
}

void sim_land_fence(struct sim *s, struct sim_proc *p, uint64_t handle)
{
    const struct sim_land *l = sim_land_find(p->node, handle);
    if (l == NULL || !l->ending) {
        return;
    }
    for (uint32_t i = 0; i < SIM_MAX_RECVS; i++) {
        struct sim_recv *r = &p->node->recvs[i];
        struct sim_peer *e = r->used && r->land == handle ? sim_peer_of(p->node, r->xconn) : NULL;
        if (e != NULL) {
            sim_peer_fail(s, p, e, TD_ERR_PEER_LOST);
        }
    }
}

/* ---- slices in ---- */

/* The sender may let go of its blocks. */
static void acknowledge(struct sim *s, uint32_t xconn, uint32_t side, const struct sim_packet *k)
{
    const struct sim_xconn *x = &s->xconns[xconn];
    if (k->late_read) {
        sim_post(s, (struct sim_ev){.at = s->now + sim_between(s, 20, 500),
                                    .type = SIM_EV_POSTED,
                                    .proc = x->proc[!side],
                                    .life = x->life[!side],
                                    .a = xconn,
                                    .b = k->post_no});
    }
}

static struct sim_land *land_for(struct sim *s, struct sim_proc *p, const struct sim_peer *e,
                                 const struct sim_packet *k)
{
    struct sim_land *l = sim_land_find(p->node, k->land);
    if (l == NULL || l->ending || l->epoch != e->epoch) {
        return NULL;
    }
    td_err err = TD_OK;
    if (!td_work_id_eq(&l->id, &k->id) || k->first_block + k->n_blocks > l->n_blocks ||
        l->blocks[k->first_block].generation != k->generation) {
        err = TD_ERR_STALE;
    } else if (k->bad) {
        err = TD_ERR_KV_MISMATCH;
    }
    if (err != TD_OK) {
        struct td_xfer_event ev = {.type = TD_XFER_LAND_BAD, .land = k->land, .err = err};
        sim_xfer_tell(s, p, &ev);
        return NULL;
    }
    return l;
}

void sim_slice_in(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    struct sim_packet *k = ev->data;
    struct sim_peer *e = sim_peer_of(p->node, (uint32_t)ev->a);
    struct sim_land *l = e != NULL && !e->dying && k->to == p->epoch ? land_for(s, p, e, k) : NULL;
    if (l == NULL) {
        acknowledge(s, (uint32_t)ev->a, s->xconns[ev->a].proc[0] == p->index ? 0 : 1, k);
        return;
    }
    uint32_t i = 0;
    while (i < SIM_MAX_RECVS && p->node->recvs[i].used) {
        i++;
    }
    TD_INSIST(i < SIM_MAX_RECVS);
    p->node->recvs[i] = (struct sim_recv){true, ++p->node->next_seq, k->land, (uint32_t)ev->a};
    l->n_recvs++;
    int64_t rx = sim_chance(s, 40) ? sim_between(s, SIM_MS, 300 * SIM_MS) : sim_between(s, 5, 500);
    if (p->node->stuck_slices > 0) {
        p->node->stuck_slices--;
        rx = 60 * SIM_SECOND;
    }
    int64_t at = s->now + rx;
    e->in_us = at > e->in_us ? at : e->in_us;
    ev->data = NULL; /* goes on as PLACED */
    sim_post(s, (struct sim_ev){.at = at,
                                .type = SIM_EV_PLACED,
                                .proc = p->index,
                                .life = p->life,
                                .a = ev->a,
                                .b = p->node->recvs[i].id,
                                .data = k});
}

static void write_cells(struct sim *s, struct sim_proc *p, struct sim_land *l,
                        const struct sim_packet *k, const struct sim_cell *from)
{
    struct sim_node *n = p->node;
    for (uint32_t i = 0; i < k->n_blocks; i++) {
        uint32_t b = l->blocks[k->first_block + i].index;
        const struct sim_row *row = sim_engine_row_of(&n->eng, b);
        if (n->land_of[b] != (uint32_t)(l - n->lands) + 1 ||
            (row != NULL && row->handle != l->handle)) {
            sim_fail(s, "%s: a slice is written into block %u of somebody else", p->name, b);
            return;
        }
        struct sim_cell *to = sim_cells(n, b, k->layer);
        for (uint32_t t = 0; t < SIM_BLOCK; t++) {
            to[t] = (struct sim_cell){from[i * SIM_BLOCK + t].h, l->handle, k->id.attempt};
        }
    }
    l->n_slices++;
    l->n_bytes += k->n_blocks * SLICE_BYTES;
}

/* The payload is here, or cannot be read yet (false). */
static bool fetch(struct sim *s, struct sim_proc *p, struct sim_ev *ev, struct sim_land *l)
{
    struct sim_packet *k = ev->data;
    if (k->late_read) {
        const struct sim_xconn *x = &s->xconns[ev->a];
        uint32_t side = x->proc[0] == p->index ? 1 : 0;
        struct sim_proc *from = &s->procs[x->proc[side]];
        struct sim_cell cells[SIM_MAX_MODEL];
        if (!from->up || from->life != x->life[side] || from->stalled) {
            return false;
        }
        if (sim_peer_of(from->node, (uint32_t)ev->a) != NULL) {
            sim_xfer_read_source(s, from, k, cells);
        } else { /* P has closed: what is read is nobody's, and nobody may use it */
            memset(cells, 0xa5, sizeof cells);
        }
        write_cells(s, p, l, k, cells);
        acknowledge(s, (uint32_t)ev->a, !side, k);
    } else {
        write_cells(s, p, l, k, k->cells);
    }
    return true;
}

void sim_slice_placed(struct sim *s, struct sim_proc *p, struct sim_ev *ev)
{
    struct sim_recv *r = NULL;
    for (uint32_t i = 0; i < SIM_MAX_RECVS && r == NULL; i++) {
        bool it = p->node->recvs[i].used && p->node->recvs[i].id == ev->b;
        r = it ? &p->node->recvs[i] : NULL;
    }
    if (r == NULL) {
        return; /* its connection is closed */
    }
    struct sim_land *l = sim_land_find(p->node, r->land);
    TD_INSIST(l != NULL);
    if (!fetch(s, p, ev, l)) {
        struct sim_peer *e = sim_peer_of(p->node, r->xconn);
        struct sim_ev again = *ev;
        again.at = s->now + 100 * SIM_MS;
        if (e != NULL && again.at > e->in_us) {
            e->in_us = again.at;
        }
        ev->data = NULL;
        sim_post(s, again);
        return;
    }
    r->used = false;
    l->n_recvs--;
    if (!l->ending) {
        struct td_xfer_event x = {.type = TD_XFER_LANDED,
                                  .epoch = l->epoch,
                                  .land = l->handle,
                                  .n_slices = l->n_slices,
                                  .n_bytes = l->n_bytes,
                                  .transport = "shm"};
        sim_xfer_tell(s, p, &x);
    }
    sim_land_ready(s, p, l);
}
