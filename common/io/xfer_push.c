#define TD_LOG_ROOM "io"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/xfer_int.h"

/* Design: a push is one chunk. The engine says how many of its layers are final; each of them
 * leaves as one active message (header, scatter list over the blocks), at most XF_WINDOW of them in
 * flight per peer, oldest push first, a push that waits for the engine never in the way of one that
 * does not.
 *
 * A message (SEND) leaves when the slices before it have ended: those posted before it was
 * submitted, and those of earlier pushes whose layers are all final (a hand-over record follows the
 * last step of its own work, so that covers it), then a flush. The receiver holds it back until the
 * slices that arrived before it are in place. */

td_err td__xf_iov_reserve(ucp_dt_iov_t **iov, uint32_t *cap, uint32_t n)
{
    if (n <= *cap) {
        return TD_OK;
    }
    ucp_dt_iov_t *grown = td_realloc(*iov, n * sizeof *grown);
    if (grown == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    *iov = grown;
    *cap = n;
    return TD_OK;
}

/* ---- pushes ---- */

static bool all_posted(const struct xf_push *u)
{
    return u->posted == u->cmd.c.n_layers;
}

void td__xf_push_end(struct td_xfer *x, struct xf_push *u)
{
    struct xf_peer *p = u->peer;
    if (p != NULL) {
        struct xf_push **at = &p->pushes;
        while (*at != u) {
            at = (struct xf_push **)&(*at)->cmd.next;
        }
        *at = (struct xf_push *)u->cmd.next;
        (void)td_map_del(x->pushes, td__xf_key(u->cmd.c.push));
        td__xf_count(&x->stats.pushes, UINT64_MAX); /* one less */
    }
    u->cmd.node.ev = (struct td_xfer_event){
        .type = TD_XFER_PUSHED,
        .epoch = u->cmd.c.epoch,
        .land = u->cmd.c.land,
        .push = u->cmd.c.push,
        .err = u->err,
        .n_bytes = u->bytes_done,
        .first_post_us = u->first_post_us,
        .last_done_us = u->last_done_us,
        .transport = p != NULL ? p->transport : "",
    };
    u->cmd.node.drop = u;
    td__xf_event(x, &u->cmd.node);
}

void td__xf_push_start(struct td_xfer *x, struct xf_push *u)
{
    struct xf_peer *p = td__xf_peer_find(x, u->cmd.c.epoch);
    if (p == NULL || td_map_get(x->pushes, td__xf_key(u->cmd.c.push)) != NULL) {
        u->err = p == NULL ? TD_ERR_PEER_LOST : TD_ERR_BAD_REQUEST;
        td__xf_push_end(x, u);
        return;
    }
    if (td_map_put(x->pushes, td__xf_key(u->cmd.c.push), u) != TD_OK) {
        u->err = TD_ERR_FULL;
        td__xf_push_end(x, u);
        return;
    }
    td__xf_count(&x->stats.pushes, 1);
    u->peer = p;
    struct xf_push **at = &p->pushes;
    while (*at != NULL) {
        at = (struct xf_push **)&(*at)->cmd.next;
    }
    *at = u;
}

void td__xf_push_cancel(struct td_xfer *x, struct xf_cmd *cmd)
{
    struct xf_push *u = td_map_get(x->pushes, td__xf_key(cmd->c.push));
    if (u != NULL && !(all_posted(u) && u->inflight == 0) && u->err == TD_OK) {
        u->err = TD_ERR_CANCELLED; /* the next pump ends it */
    }
    free(cmd);
}

static struct xf_slot *free_slot(struct xf_peer *p)
{
    for (size_t i = 0; i < XF_WINDOW; i++) {
        if (p->slots[i].push == NULL) {
            return &p->slots[i];
        }
    }
    return NULL;
}

void td__xf_posted(struct xf_slot *s, ucs_status_t status)
{
    struct xf_push *u = s->push;
    struct td_xfer *x = s->peer->x;
    s->push = NULL;
    u->inflight--;
    if (status != UCS_OK) {
        td__xf_count(&x->stats.post_failed, 1);
        if (u->err == TD_OK) {
            u->err = status == UCS_ERR_NO_MEMORY ? TD_ERR_TRANSPORT : TD_ERR_PEER_LOST;
        }
        return;
    }
    u->bytes_done += s->h.bytes;
    u->last_done_us = td_now_us();
    td__xf_count(&x->stats.posts, 1);
    td__xf_count(&x->stats.post_bytes, s->h.bytes);
}

static void on_posted(void *request, ucs_status_t status, void *arg)
{
    struct xf_slot *s = arg;
    td_assert_on(td_xfer);
    s->peer->n_requests--;
    s->peer->x->inflight--;
    td__xf_posted(s, status);
    ucp_request_free(request);
}

/* Fault point kv.byte.flip: sends a copy of one slice with one bit turned; the pool stays right. */
static td_err flip_byte(struct xf_slot *s, uint32_t slice_bytes)
{
    uint32_t n = s->h.n_blocks / 2;
    free(s->flip);
    s->flip = malloc(slice_bytes);
    if (s->flip == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    memcpy(s->flip, s->iov[n].buffer, slice_bytes);
    s->flip[slice_bytes / 2] ^= 0x10;
    s->iov[n].buffer = s->flip;
    return TD_OK;
}

static void fill_header(const struct td_xfer *x, const struct xf_push *u, struct xf_slot *s)
{
    const struct td_xfer_cmd *c = &u->cmd.c;
    s->h = (struct td_slice_header){
        .magic = TD_SLICE_MAGIC,
        .version = TD_SLICE_VERSION,
        .land = c->land,
        .p_epoch = x->epoch,
        .d_epoch = c->epoch,
        .layout_id = c->layout_id,
        .id = c->id,
        .layer = u->posted,
        .generation = u->generation,
        .first_block = c->first_block,
        .n_blocks = c->n_blocks,
        .chunk = c->chunk,
        .flags = x->checksum ? TD_SLICE_CHECKSUM : 0,
        .bytes = (uint64_t)c->n_blocks * x->info->layout.slice_bytes,
    };
    for (uint32_t i = 0; x->checksum && i < c->n_blocks; i++) {
        s->h.checksum =
            td_slice_checksum(s->h.checksum, s->iov[i].buffer, x->info->layout.slice_bytes);
    }
    s->h.header_sum = td_slice_header_sum(&s->h);
}

/* Header and scatter list of the push's next layer. */
static td_err fill_slot(const struct td_xfer *x, const struct xf_push *u, struct xf_slot *s)
{
    const struct td_xfer_cmd *c = &u->cmd.c;
    TD_TRY(td__xf_iov_reserve(&s->iov, &s->iov_cap, c->n_blocks));
    for (uint32_t i = 0; i < c->n_blocks; i++) {
        s->iov[i].buffer = td__xf_slice(x, c->src[i], u->posted);
        s->iov[i].length = x->info->layout.slice_bytes;
    }
    fill_header(x, u, s);
    if (TD_FAULT(KV_HEADER_FLIP)) {
        s->h.generation ^= 1;
    }
    if (TD_FAULT(KV_BYTE_FLIP)) {
        TD_TRY(flip_byte(s, x->info->layout.slice_bytes));
    }
    if (u->peer->by_ref) {
        TD_TRY(td__xf_ref_fill(s));
    }
    return TD_FAULT(XFER_POST_FAIL) ? TD_ERR_TRANSPORT : TD_OK;
}

TD_ON(td_xfer) static void post_message(struct xf_slot *s)
{
    struct xf_peer *p = s->peer;
    bool one = s->h.n_blocks == 1;
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE,
        .flags = UCP_AM_SEND_FLAG_REPLY,
        .datatype = one ? ucp_dt_make_contig(1) : ucp_dt_make_iov(),
        .cb = {.send = on_posted},
        .user_data = s,
    };
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XF_AM_SLICE, &s->h, sizeof s->h,
                                         one ? s->iov[0].buffer : (void *)s->iov,
                                         one ? s->iov[0].length : s->h.n_blocks, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->n_requests++;
        p->x->inflight++;
    } else {
        td__xf_posted(s, UCS_PTR_STATUS(r));
    }
}

TD_ON(td_xfer) static void post(struct xf_peer *p, struct xf_push *u, struct xf_slot *s)
{
    struct td_xfer *x = p->x;
    td_err e = fill_slot(x, u, s);
    if (e != TD_OK) {
        td__xf_count(&x->stats.post_failed, 1);
        TD_LOG(WARN, "a slice cannot be posted", "land=%016" PRIx64 " layer=%u err=%s",
               u->cmd.c.land, u->posted, td_err_code(e));
        u->err = e;
        return;
    }
    s->push = u;
    s->peer = p;
    s->post_no = p->next_post_no++;
    u->inflight++;
    u->posted++;
    u->due_us = 0;
    if (u->first_post_us == 0) {
        u->first_post_us = td_now_us();
    }
    p->unflushed = true;
    if (p->by_ref) {
        td__xf_ref_post(s);
    } else {
        post_message(s);
    }
}

static void ask_engine(struct td_xfer *x, struct xf_push *u)
{
    uint32_t n = u->cmd.c.n_layers;
    if (u->avail < n) {
        uint32_t done =
            u->cmd.c.ticket == 0 ? n : x->engine->ops->layers_done(x->engine, u->cmd.c.ticket);
        u->avail = done < n ? done : n;
    }
}

/* Fault point xfer.slice.delay: a link on which each slice takes that long, one after the other. */
static bool is_due(struct xf_peer *p, struct xf_push *u, int64_t now)
{
    if (TD_WITH_FAULTS && u->due_us == 0) {
        int64_t delay = td_fault_delay_us(TD_FAULT_XFER_SLICE_DELAY_ID);
        int64_t start = p->link_free_us > now ? p->link_free_us : now;
        u->due_us = start + delay;
        p->link_free_us = u->due_us;
    }
    if (now < u->due_us) {
        td__xf_wake_at(p->x, u->due_us);
        return false;
    }
    return true;
}

TD_ON(td_xfer) static bool push_pump(struct xf_peer *p, struct xf_push *u, int64_t now)
{
    bool busy = false;
    ask_engine(p->x, u);
    if (u->avail < u->cmd.c.n_layers) {
        p->x->gated++;
        if (TD_FAULT(XFER_AT_END)) {
            return false;
        }
    }
    while (u->err == TD_OK && u->posted < u->avail && !p->failed) {
        struct xf_slot *s = free_slot(p);
        if (s == NULL || !is_due(p, u, now)) {
            break;
        }
        post(p, u, s);
        busy = true;
    }
    return busy;
}

/* ---- messages ---- */

void td__xf_send_start(struct td_xfer *x, struct xf_send *s)
{
    struct xf_peer *p = td__xf_peer_find(x, s->cmd.c.epoch);
    if (p == NULL) {
        td__xf_count(&x->stats.dropped, 1);
        s->cmd.node.ev = (struct td_xfer_event){
            .type = TD_XFER_PEER_LOST, .epoch = s->cmd.c.epoch, .err = TD_ERR_PEER_LOST};
        s->cmd.node.drop = s;
        td__xf_event(x, &s->cmd.node);
        return;
    }
    s->peer = p;
    *p->sends_tail = s;
    p->sends_tail = (struct xf_send **)&s->cmd.next;
}

/* An earlier push that concerns this message and has everything it needs. */
static bool push_before(const struct xf_send *s, const struct xf_push *u)
{
    bool concerns = s->cmd.c.land == 0 || s->cmd.c.land == u->cmd.c.land;
    return u->cmd.seq < s->cmd.seq && concerns && u->err == TD_OK && !all_posted(u) &&
           u->avail == u->cmd.c.n_layers;
}

static bool slices_wait(const struct xf_peer *p, const struct xf_send *s)
{
    for (const struct xf_push *u = p->pushes; u != NULL; u = (const struct xf_push *)u->cmd.next) {
        if (push_before(s, u)) {
            return true;
        }
    }
    return false;
}

static bool slices_fly(const struct xf_peer *p, const struct xf_send *s)
{
    for (size_t i = 0; i < XF_WINDOW; i++) {
        const struct xf_slot *slot = &p->slots[i];
        if (slot->push != NULL && slot->post_no < s->barrier &&
            (s->cmd.c.land == 0 || s->cmd.c.land == slot->push->cmd.c.land)) {
            return true;
        }
    }
    return false;
}

static void on_flushed(void *request, ucs_status_t status, void *arg)
{
    struct xf_peer *p = arg;
    td_assert_on(td_xfer);
    p->n_requests--;
    p->x->inflight--;
    p->flushing = false;
    p->failed |= status != UCS_OK;
    ucp_request_free(request);
}

static void flush(struct xf_peer *p)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.send = on_flushed},
        .user_data = p,
    };
    p->unflushed = false;
    ucs_status_ptr_t r = ucp_ep_flush_nbx(p->ep, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->flushing = true;
        p->n_requests++;
        p->x->inflight++;
    } else if (UCS_PTR_IS_ERR(r)) {
        p->failed = true;
    }
}

static void send_done(struct xf_send *s, ucs_status_t status)
{
    struct td_xfer *x = s->peer->x;
    td__xf_count(status == UCS_OK ? &x->stats.msgs_out : &x->stats.dropped, 1);
    free(s);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct xf_send *s = arg;
    td_assert_on(td_xfer);
    s->peer->n_requests--;
    s->peer->n_sends--;
    s->peer->x->inflight--;
    send_done(s, status);
    ucp_request_free(request);
}

static void send_now(struct xf_peer *p, struct xf_send *s)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY,
        .cb = {.send = on_sent},
        .user_data = s,
    };
    s->frame = (struct xf_frame){XF_FRAME_MAGIC, TD_SLICE_VERSION, p->x->epoch, p->epoch,
                                 s->cmd.c.n_bytes};
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XF_AM_MSG, &s->frame, sizeof s->frame,
                                         s->cmd.c.bytes, s->cmd.c.n_bytes, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->n_requests++;
        p->n_sends++;
        p->x->inflight++;
    } else {
        send_done(s, UCS_PTR_STATUS(r));
    }
}

/* Fault point xfer.done.delay: what follows slices (the hand-over record) waits. */
static int64_t done_due(int64_t now)
{
    int64_t delay = TD_WITH_FAULTS ? td_fault_delay_us(TD_FAULT_XFER_DONE_DELAY_ID) : 0;
    return delay > 0 ? now + delay : 0;
}

/* Advances the oldest message; true when it left. */
static bool send_pump(struct xf_peer *p, int64_t now)
{
    struct xf_send *s = p->sends;
    if (s->stage == XF_SEND_NEW) {
        if (slices_wait(p, s)) {
            return false;
        }
        s->barrier = p->next_post_no;
        s->stage = XF_SEND_SLICES;
    }
    if (s->stage == XF_SEND_SLICES) {
        if (slices_fly(p, s)) {
            return false;
        }
        if (p->unflushed) {
            s->due_us = done_due(now);
            flush(p);
        }
        s->stage = XF_SEND_FLUSH;
    }
    if (p->flushing || p->failed || p->n_sends == XF_MAX_SENDS) {
        return false;
    }
    if (now < s->due_us) {
        td__xf_wake_at(p->x, s->due_us);
        return false;
    }
    p->sends = (struct xf_send *)s->cmd.next;
    if (p->sends == NULL) {
        p->sends_tail = &p->sends;
    }
    send_now(p, s);
    return true;
}

bool td__xf_peer_pump(struct xf_peer *p, int64_t now)
{
    bool busy = false;
    struct xf_push *next;
    for (struct xf_push *u = p->pushes; u != NULL; u = next) {
        next = (struct xf_push *)u->cmd.next;
        if (!p->dying && p->ep != NULL) {
            busy |= push_pump(p, u, now);
        }
        if (u->inflight == 0 && (u->err != TD_OK || all_posted(u))) {
            td__xf_push_end(p->x, u);
            busy = true;
        }
    }
    while (!p->dying && !p->failed && p->sends != NULL && send_pump(p, now)) {
        busy = true;
    }
    return busy;
}
