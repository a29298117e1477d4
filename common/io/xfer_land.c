#define TD_LOG_ROOM "io"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/xfer_int.h"

/* Design: a land is the only way into the pool. A slice message names its land; its header is
 * checked against the land before a byte is placed: short messages are copied here, long ones are
 * fetched by UCX straight into the blocks through a scatter list. Our own process writes in both
 * cases, so a land that left the map and has no fetch under way is fenced: nothing can write its
 * blocks. A payload checksum is checked before a copy, but after a fetch (then the bytes already
 * lie in blocks that only this land owns, and the event says that they are bad). */

td_err td__xf_land_verify(const struct xf_land *land, const struct td_slice_header *h, size_t len,
                          uint32_t slice_bytes)
{
    const struct td_xfer_cmd *c = &land->cmd.c;
    if (h->layout_id != c->layout_id || h->layer >= c->n_layers) {
        return TD_ERR_KV_MISMATCH;
    }
    if (!td_work_id_eq(&h->id, &c->id)) {
        return TD_ERR_STALE;
    }
    if (h->n_blocks == 0 || h->n_blocks > c->n_blocks ||
        h->first_block > c->n_blocks - h->n_blocks) {
        return TD_ERR_KV_MISMATCH;
    }
    if (h->generation != c->blocks[h->first_block].generation) {
        return TD_ERR_STALE;
    }
    if (h->bytes != (uint64_t)h->n_blocks * slice_bytes || h->bytes != len) {
        return TD_ERR_KV_MISMATCH;
    }
    return TD_OK;
}

static bool header_ok(const struct td_slice_header *h)
{
    static const uint8_t zero[sizeof h->reserved];
    return h->magic == TD_SLICE_MAGIC && h->version == TD_SLICE_VERSION &&
           (h->flags & ~TD_SLICE_CHECKSUM) == 0 && memcmp(h->reserved, zero, sizeof zero) == 0 &&
           h->header_sum == td_slice_header_sum(h);
}

/* ---- lands ---- */

void td__xf_land_start(struct td_xfer *x, struct xf_land *l)
{
    struct td_xfer_cmd *c = &l->cmd.c;
    l->landed.ev = (struct td_xfer_event){
        .type = TD_XFER_LANDED, .epoch = c->epoch, .land = c->land, .transport = ""};
    l->bad.ev =
        (struct td_xfer_event){.type = TD_XFER_LAND_BAD, .epoch = c->epoch, .land = c->land};
    bool twice = td_map_get(x->lands, td__xf_key(c->land)) != NULL;
    if (twice || td_map_put(x->lands, td__xf_key(c->land), l) != TD_OK) {
        /* Not accepted: said at once, so that nobody waits. */
        l->bad.ev.err = twice ? TD_ERR_BAD_REQUEST : TD_ERR_FULL;
        l->bad.drop = l;
        td__xf_event(x, &l->bad);
        return;
    }
    td__xf_count(&x->stats.lands, 1);
    l->all_next = x->land_list;
    if (l->all_next != NULL) {
        l->all_next->all_prev = l;
    }
    x->land_list = l;
}

TD_ON(td_xfer) static void land_free(struct td_xfer *x, struct xf_land *l)
{
    if (l->all_prev != NULL) {
        l->all_prev->all_next = l->all_next;
    } else {
        x->land_list = l->all_next;
    }
    if (l->all_next != NULL) {
        l->all_next->all_prev = l->all_prev;
    }
    td__xf_count(&x->stats.lands, UINT64_MAX); /* one less */
    l->cmd.node.ev = (struct td_xfer_event){
        .type = TD_XFER_UNLANDED,
        .epoch = l->cmd.c.epoch,
        .land = l->cmd.c.land,
        .n_bytes = l->n_bytes,
        .n_slices = l->n_slices,
    };
    l->cmd.node.drop = l;
    td__xf_event(x, &l->cmd.node); /* behind its other events, so freeing it there is safe */
}

void td__xf_land_end(struct td_xfer *x, struct xf_cmd *cmd)
{
    struct xf_land *l = td_map_del(x->lands, td__xf_key(cmd->c.land));
    if (l == NULL) {
        /* Unknown or already ending. An ending one will say UNLANDED itself. */
        for (l = x->ending; l != NULL && l->cmd.c.land != cmd->c.land;) {
            l = (struct xf_land *)l->cmd.next;
        }
        if (l != NULL) {
            free(cmd);
            return;
        }
        cmd->node.ev = (struct td_xfer_event){
            .type = TD_XFER_UNLANDED, .epoch = cmd->c.epoch, .land = cmd->c.land};
        cmd->node.drop = cmd;
        td__xf_event(x, &cmd->node);
        return;
    }
    free(cmd);
    l->ending = true;
    l->fence_at_us = td_now_us() + x->fence_us;
    l->cmd.next = (struct xf_cmd *)x->ending;
    x->ending = l;
}

/* The receives that hold a land back belong to connections: those are closed. */
static void fence_by_force(struct td_xfer *x, const struct xf_land *l)
{
    for (size_t i = 0; i < XF_MAX_RECVS; i++) {
        struct xf_recv *r = &x->recvs[i];
        if (r->land == l && r->peer != NULL && !r->peer->failed) {
            TD_LOG(WARN, "a slice does not arrive, closing its connection",
                   "peer=%016" PRIx64 " land=%016" PRIx64, r->peer->epoch, l->cmd.c.land);
            r->peer->failed = true;
        }
    }
}

void td__xf_lands_reap(struct td_xfer *x, int64_t now)
{
    struct xf_land **at = &x->ending;
    while (*at != NULL) {
        struct xf_land *l = *at;
        if (l->n_recvs == 0) {
            *at = (struct xf_land *)l->cmd.next;
            land_free(x, l);
            continue;
        }
        if (now >= l->fence_at_us) {
            fence_by_force(x, l);
        } else {
            td__xf_wake_at(x, l->fence_at_us);
        }
        at = (struct xf_land **)&l->cmd.next;
    }
}

/* ---- slices ---- */

void td__xf_land_bad(struct td_xfer *x, struct xf_land *l, td_err e)
{
    td__xf_count(e == TD_ERR_STALE ? &x->stats.stale : &x->stats.refused, 1);
    if (l->ending) {
        return;
    }
    if (!l->bad.queued) {
        l->bad.ev.err = e; /* the first reason is the one that is told */
    }
    td__xf_event(x, &l->bad);
}

TD_ON(td_xfer)
static void landed(struct td_xfer *x, struct xf_land *l, const struct xf_peer *p, uint64_t bytes)
{
    int64_t now = td_now_us();
    td__xf_count(&x->stats.slices_in, 1);
    td__xf_count(&x->stats.slice_bytes_in, bytes);
    l->n_slices++;
    l->n_bytes += bytes;
    l->first_us = l->first_us == 0 ? now : l->first_us;
    l->last_us = now;
    if (l->ending) {
        return;
    }
    l->landed.ev.n_slices = l->n_slices;
    l->landed.ev.n_bytes = l->n_bytes;
    l->landed.ev.first_post_us = l->first_us;
    l->landed.ev.last_done_us = l->last_us;
    l->landed.ev.transport = p->transport;
    td__xf_event(x, &l->landed);
}

uint8_t *td__xf_land_target(const struct td_xfer *x, const struct xf_land *l,
                            const struct td_slice_header *h, uint32_t i)
{
    return td__xf_slice(x, l->cmd.c.blocks[h->first_block + i].index, h->layer);
}

static uint64_t sum_pieces(const struct td_xfer *x, const struct xf_land *l,
                           const struct td_slice_header *h, const uint8_t *from)
{
    uint32_t n = x->info->layout.slice_bytes;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < h->n_blocks; i++) {
        const uint8_t *piece = from != NULL ? from + (size_t)i * n : td__xf_land_target(x, l, h, i);
        sum = td_slice_checksum(sum, piece, n);
    }
    return sum;
}

/* The whole payload is here: check, then copy. */
TD_ON(td_xfer)
static void place(struct td_xfer *x, struct xf_land *l, const struct xf_peer *p,
                  const struct td_slice_header *h, const uint8_t *data)
{
    uint32_t n = x->info->layout.slice_bytes;
    if ((h->flags & TD_SLICE_CHECKSUM) != 0 && sum_pieces(x, l, h, data) != h->checksum) {
        td__xf_land_bad(x, l, TD_ERR_KV_MISMATCH);
        return;
    }
    for (uint32_t i = 0; i < h->n_blocks; i++) {
        memcpy(td__xf_land_target(x, l, h, i), data + (size_t)i * n, n);
    }
    landed(x, l, p, h->bytes);
}

void td__xf_land_arrived(struct td_xfer *x, struct xf_land *l, const struct xf_peer *p,
                         const struct td_slice_header *h)
{
    if ((h->flags & TD_SLICE_CHECKSUM) != 0 && sum_pieces(x, l, h, NULL) != h->checksum) {
        td__xf_land_bad(x, l, TD_ERR_KV_MISMATCH);
        return;
    }
    landed(x, l, p, h->bytes);
}

TD_ON(td_xfer) static void received(struct xf_recv *r, ucs_status_t status, size_t len)
{
    struct xf_land *l = r->land;
    struct xf_peer *p = r->peer;
    struct td_xfer *x = p->x;
    if (status != UCS_OK || len != r->h.bytes) {
        if (!p->failed && !p->dying) { /* else the peer's loss says it */
            td__xf_land_bad(x, l, TD_ERR_TRANSPORT);
        }
    } else {
        td__xf_land_arrived(x, l, p, &r->h);
    }
    l->n_recvs--;
    p->n_recvs--;
    x->inflight--;
    r->land = NULL;
    r->peer = NULL;
    r->in.done = true;
    td__xf_peer_in_advance(p); /* r may be free from here */
}

static void on_received(void *request, ucs_status_t status, size_t len, void *arg)
{
    td_assert_on(td_xfer);
    received(arg, status, len);
    if (request != NULL) {
        ucp_request_free(request);
    }
}

static struct xf_recv *recv_get(struct td_xfer *x, uint32_t n_blocks)
{
    struct xf_recv *r = x->recv_free;
    if (r == NULL || td__xf_iov_reserve(&r->iov, &r->iov_cap, n_blocks) != TD_OK) {
        return NULL;
    }
    x->recv_free = r->free_next;
    return r;
}

/* The payload waits in its sender: UCX fetches it into the blocks. */
TD_ON(td_xfer)
static void fetch(struct td_xfer *x, struct xf_land *l, struct xf_peer *p,
                  const struct td_slice_header *h, void *data)
{
    struct xf_recv *r = recv_get(x, h->n_blocks);
    bool one = h->n_blocks == 1;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_DATATYPE,
        .datatype = one ? ucp_dt_make_contig(1) : ucp_dt_make_iov(),
        .cb = {.recv_am = on_received},
        .user_data = r,
    };
    if (r == NULL) {
        td__xf_land_bad(x, l, TD_ERR_FULL);
        return;
    }
    for (uint32_t i = 0; i < h->n_blocks; i++) {
        r->iov[i].buffer = td__xf_land_target(x, l, h, i);
        r->iov[i].length = x->info->layout.slice_bytes;
    }
    r->h = *h;
    r->land = l;
    r->peer = p;
    r->in = (struct xf_in){0};
    l->n_recvs++;
    p->n_recvs++;
    x->inflight++;
    td__xf_peer_in_add(p, &r->in);
    ucs_status_ptr_t s =
        ucp_am_recv_data_nbx(x->ucx.worker, data, one ? r->iov[0].buffer : (void *)r->iov,
                             one ? r->iov[0].length : h->n_blocks, &param);
    if (!UCS_PTR_IS_PTR(s)) {
        received(r, UCS_PTR_STATUS(s), h->bytes);
    }
}

/* The land of a header that is in itself sound; counts and NULL otherwise. */
TD_ON(td_xfer)
static struct xf_land *land_of(struct td_xfer *x, const struct td_slice_header *h, size_t len,
                               struct xf_peer *p)
{
    struct xf_land *l = td_map_get(x->lands, td__xf_key(h->land));
    if (l == NULL) {
        td__xf_count(&x->stats.dropped, 1);
        TD_LOG(DEBUG, "slice for an unknown land, ignoring", "land=%016" PRIx64 " layer=%u",
               h->land, h->layer);
        return NULL;
    }
    if (l->cmd.c.epoch != p->epoch) {
        td__xf_count(&x->stats.stale, 1); /* somebody else's handle: not that land's fault */
        return NULL;
    }
    td_err e = td__xf_land_verify(l, h, len, x->info->layout.slice_bytes);
    if (e != TD_OK) {
        TD_LOG(WARN, "a slice does not fit its land, ignoring",
               "land=%016" PRIx64 " layer=%u blocks=%u+%u bytes=%zu err=%s", h->land, h->layer,
               h->first_block, h->n_blocks, len, td_err_code(e));
        td__xf_land_bad(x, l, e);
        return NULL;
    }
    return l;
}

/* A header that was damaged on its way, or made up. If it names a land of this very connection,
 * that land misses a slice and is told so. */
TD_ON(td_xfer)
static void malformed(struct td_xfer *x, const struct td_slice_header *h,
                      const ucp_am_recv_param_t *param)
{
    struct xf_land *l = td_map_get(x->lands, td__xf_key(h->land));
    struct xf_peer *p = l != NULL ? td__xf_peer_find(x, l->cmd.c.epoch) : NULL;
    bool reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    if (p != NULL && reply && p->ep == param->reply_ep) {
        td__xf_land_bad(x, l, TD_ERR_KV_MISMATCH);
    } else {
        td__xf_count(&x->stats.refused, 1);
    }
}

struct xf_land *td__xf_land_for(struct td_xfer *x, const struct td_slice_header *h, size_t len,
                                const ucp_am_recv_param_t *param, struct xf_peer **out_peer)
{
    if (!header_ok(h)) {
        TD_LOG(WARN, "malformed slice header, ignoring", "bytes=%zu", len);
        malformed(x, h, param);
        return NULL;
    }
    struct xf_peer *p = td__xf_peer_check(x, h->p_epoch, h->d_epoch, param);
    struct xf_land *l = p != NULL ? land_of(x, h, len, p) : NULL;
    if (l != NULL) {
        *out_peer = p;
    }
    return l;
}

static ucs_status_t on_slice(void *arg, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    struct td_slice_header h;
    struct xf_peer *p = NULL;
    td_assert_on(td_xfer);
    if (header_len != sizeof h) {
        td__xf_count(&x->stats.refused, 1);
        TD_LOG(WARN, "slice without a header, ignoring", "header=%zu bytes=%zu", header_len, len);
        return UCS_OK;
    }
    memcpy(&h, header, sizeof h);
    struct xf_land *l = td__xf_land_for(x, &h, len, param, &p);
    if (l == NULL) {
        return UCS_OK;
    }
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        fetch(x, l, p, &h, data);
    } else {
        place(x, l, p, &h, data);
    }
    return UCS_OK;
}

td_err td__xf_land_handlers(struct td_xfer *x)
{
    return td__xf_handle(x, XF_AM_SLICE, on_slice);
}
