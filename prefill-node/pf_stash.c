#define TD_LOG_ROOM "prefill"
#include "common/base/log.h"
#include "prefill-node/pf_internal.h"

#include <inttypes.h>

#include "common/base/clock.h"

/* A table may overtake its request: router -> P and router -> D -> P race. It waits here, for no
 * longer than its ticket lives. */

void pf_refuse_table(struct pf_core *c, uint64_t peer, const struct td_work_id *id, uint64_t land,
                     td_err err)
{
    nd_actions_observe(c->r.out, ND_M_STALE, 1);
    struct td_wire_msg *m = nd_actions_peer_send(c->r.out, peer, TD_WIRE_ABORT);
    m->abort = (struct td_wire_abort){.id = *id, .land = land, .err = err};
}

static struct pf_stash *find(struct pf_core *c, const struct td_work_id *id)
{
    for (uint32_t i = 0; i < PF_MAX_STASH; i++) {
        if (c->stash[i].used && td_work_id_eq(&c->stash[i].head.id, id)) {
            return &c->stash[i];
        }
    }
    return NULL;
}

static void drop(struct pf_core *c, struct pf_stash *x)
{
    nd_spans_drop(c->tables, &x->blocks);
    *x = (struct pf_stash){0};
}

void pf_stash_put(struct pf_core *c, uint64_t peer, const struct td_wire_table *m)
{
    struct pf_stash *x = find(c, &m->id);
    for (uint32_t i = 0; i < PF_MAX_STASH && x == NULL; i++) {
        x = c->stash[i].used ? NULL : &c->stash[i];
    }
    struct nd_span blocks = {0};
    if (x == NULL || x->used ||
        nd_spans_put(c->tables, m->blocks, (size_t)m->n_blocks * sizeof *m->blocks, &blocks) !=
            TD_OK) {
        pf_refuse_table(c, peer, &m->id, m->land,
                        x != NULL && x->used ? TD_ERR_STALE : TD_ERR_OVERLOADED);
        return;
    }
    int64_t life_us = (int64_t)m->ticket.life_ms * 1000;
    life_us = life_us < c->r.p.t_lease_us ? life_us : c->r.p.t_lease_us;
    *x = (struct pf_stash){.used = true,
                           .head = *m,
                           .blocks = blocks,
                           .peer = peer,
                           .since_us = c->r.now,
                           .deadline_us = c->r.now + life_us};
    x->head.blocks = NULL;
}

void pf_stash_take(struct pf_core *c, struct pf_seq *s)
{
    struct pf_stash *x = find(c, &s->w.id);
    if (x == NULL) {
        return;
    }
    struct pf_stash taken = *x;
    *x = (struct pf_stash){0};
    td_err e = pf_keep_table(c, s, taken.peer, &taken.head, taken.blocks);
    if (e != TD_OK) {
        pf_refuse_table(c, taken.peer, &taken.head.id, taken.head.land, e);
    }
}

void pf_stash_drop_peer(struct pf_core *c, uint64_t peer)
{
    for (uint32_t i = 0; i < PF_MAX_STASH; i++) {
        if (c->stash[i].used && c->stash[i].peer == peer) {
            drop(c, &c->stash[i]);
        }
    }
}

void pf_stash_drop_id(struct pf_core *c, const struct td_work_id *id)
{
    struct pf_stash *x = find(c, id);
    if (x != NULL) {
        pf_refuse_table(c, x->peer, &x->head.id, x->head.land, TD_ERR_CANCELLED);
        drop(c, x);
    }
}

void pf_stash_expire(struct pf_core *c)
{
    for (uint32_t i = 0; i < PF_MAX_STASH; i++) {
        struct pf_stash *x = &c->stash[i];
        if (x->used && x->deadline_us <= c->r.now) {
            TD_LOG(WARN, "table without a request, refusing",
                   "peer=%016" PRIx64 " counter=%" PRIu64, x->peer, x->head.id.counter);
            pf_refuse_table(c, x->peer, &x->head.id, x->head.land, TD_ERR_STALE);
            drop(c, x);
        }
    }
}

int64_t pf_stash_deadline(const struct pf_core *c)
{
    int64_t first = TD_NEVER;
    for (uint32_t i = 0; i < PF_MAX_STASH; i++) {
        if (c->stash[i].used && c->stash[i].deadline_us < first) {
            first = c->stash[i].deadline_us;
        }
    }
    return first;
}

/* In time that does not depend on where they differ. */
static bool nonce_equal(const uint8_t a[16], const uint8_t b[16])
{
    unsigned diff = 0;
    for (unsigned i = 0; i < 16; i++) {
        diff |= (unsigned)a[i] ^ b[i];
    }
    return diff == 0;
}

/* The ticket binds the table to this pair and this try, or, of a held prompt, to whoever knows the nonce as long as it
 * is held; what it says of blocks is checked after. */
static td_err ticket_check(const struct pf_core *c, const struct pf_seq *s, uint64_t peer,
                           const struct td_wire_ticket *t)
{
#ifdef TD_BUG_DROPPED_EPOCH_CHECK
    return TD_OK;
#endif
    bool pair =
        t->p_epoch == s->ticket.p_epoch && (s->hold_us > 0 || t->d_epoch == s->ticket.d_epoch);
    bool same = nonce_equal(t->nonce, s->ticket.nonce) && pair;
    bool fresh = s->hold_us > 0 || c->r.now <= s->ticket_until_us;
    return same && fresh && peer == t->d_epoch && t->p_epoch == c->r.p.epoch ? TD_OK : TD_ERR_STALE;
}

td_err pf_keep_table(struct pf_core *c, struct pf_seq *s, uint64_t peer,
                     const struct td_wire_table *head, struct nd_span blocks)
{
    uint32_t bt = c->r.p.engine->layout.block_tok;
    td_err e = s->has_table ? TD_ERR_STALE : ticket_check(c, s, peer, &head->ticket);
    if (e == TD_OK &&
        (head->layout_id != c->r.p.layout_id || head->land == 0 || head->first_tok % bt != 0 ||
         head->first_tok >= s->w.n_prompt || head->n_tok != s->w.n_prompt - head->first_tok ||
         head->n_blocks != (head->n_tok + bt - 1) / bt)) {
        e = TD_ERR_KV_MISMATCH;
    }
    if (e != TD_OK) {
        nd_spans_drop(c->tables, &blocks);
        return e;
    }
    s->has_table = true;
    s->table_us = c->r.now;
    s->peer = peer;
    s->land = head->land;
    s->first_tok = s->pushed_tok = head->first_tok;
    s->table = blocks;
    return TD_OK;
}
