#define TD_LOG_ROOM "io"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/xfer_int.h"

/* Design: a peer is one UCX endpoint in error mode peer. The dialing side (D) makes it from P's
 * address and sends HELLO with its own address; P makes an endpoint from that, which UCX matches to
 * the same connection (checked: it must be the endpoint that the HELLO names for replies, for
 * UCX 1.13 destroys reply endpoints that nobody created). Every message carries its sender's
 * endpoint, so what an old connection of the same peer sent is told from what the live one sends.
 *
 * The end is the same for all reasons: the peer leaves the map at once (nothing finds it any more),
 * its endpoint is closed by force, and when every UCX operation on it has called back, its pushes
 * end, then it is said to be lost or closed. A local close says BYE first, because shared memory
 * would not tell the other side. */

/* name NULL: forgets it. */
static void set_transport(struct td_xfer *x, uint64_t epoch, const char *name)
{
    uint64_t old = name != NULL ? 0 : epoch;
    (void)pthread_mutex_lock(&x->transports_lock);
    for (size_t i = 0; i < TD_XFER_MAX_PEERS; i++) {
        if (x->transports[i].epoch == old) {
            x->transports[i] = (struct xf_transport){name != NULL ? epoch : 0, name};
            break;
        }
    }
    (void)pthread_mutex_unlock(&x->transports_lock);
}

struct xf_peer *td__xf_peer_find(struct td_xfer *x, uint64_t epoch)
{
    return td_map_get(x->peers, td__xf_key(epoch));
}

struct xf_peer *td__xf_peer_by_ep(struct td_xfer *x, ucp_ep_h ep)
{
    struct xf_peer *p = x->peer_list;
    while (p != NULL && p->ep != ep) {
        p = p->next;
    }
    return p;
}

/* Called from within UCX: only takes a note. */
static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    struct td_xfer *x = arg;
    td_assert_on(td_xfer);
    struct xf_peer *p = td__xf_peer_by_ep(x, ep);
    if (p != NULL && !p->failed) {
        p->failed = true;
        TD_LOG(INFO, "data plane connection failed", "peer=%016" PRIx64 " text=\"%s\"", p->epoch,
               ucs_status_string(status));
    }
}

/* ---- birth ---- */

/* known: messages find it by its epoch. A stranger only gets its goodbye. */
static struct xf_peer *peer_add(struct td_xfer *x, uint64_t epoch, bool known)
{
    struct xf_peer *p = td_zalloc(1, sizeof *p);
    if (p == NULL || (!known && x->strangers == XF_MAX_STRANGERS) ||
        (known && td_map_put(x->peers, td__xf_key(epoch), p) != TD_OK)) {
        free(p);
        TD_LOG(WARN, "no room for another peer", "peer=%016" PRIx64 " max=%d", epoch,
               TD_XFER_MAX_PEERS);
        return NULL;
    }
    p->x = x;
    p->epoch = epoch;
    p->known = known;
    x->strangers += !known;
    p->sends_tail = &p->sends;
    p->in_tail = &p->in;
    p->transport = "";
    p->lost.ev = (struct td_xfer_event){.type = TD_XFER_PEER_LOST, .epoch = epoch};
    p->closed.ev = (struct td_xfer_event){.type = TD_XFER_CLOSED, .epoch = epoch};
    p->next = x->peer_list;
    x->peer_list = p;
    td__xf_count(&x->stats.peers, 1);
    return p;
}

void td__xf_peer_transport(struct xf_peer *p, const char *name)
{
    p->transport = name;
    if (p->known) {
        set_transport(p->x, p->epoch, NULL);
        set_transport(p->x, p->epoch, name);
    }
}

TD_ON(td_xfer) static void peer_open(struct xf_peer *p, ucp_ep_h ep, bool dialed)
{
    p->ep = ep;
    p->dialed = dialed;
    td__xf_peer_transport(p, td_ucx_transport(ep));
    td__xf_count(&p->x->stats.connects, 1);
    TD_LOG(INFO, "data plane peer", "peer=%016" PRIx64 " transport=%s dialed=%d", p->epoch,
           p->transport, dialed);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    struct xf_peer *p = arg;
    (void)status; /* a failed endpoint says so itself */
    p->n_requests--;
    p->x->inflight--;
    ucp_request_free(request);
}

/* HELLO, WELCOME, BYE: `frame` and `data` stay valid as long as the peer and the worker. */
void td__xf_send_frame(struct xf_peer *p, enum xf_am id, struct xf_frame *frame, const void *data,
                       size_t n)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_sent},
        .user_data = p,
    };
    *frame = (struct xf_frame){XF_FRAME_MAGIC, TD_SLICE_VERSION, p->x->epoch, p->epoch, n};
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, id, frame, sizeof *frame, data, n, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->n_requests++;
        p->x->inflight++;
    } else if (UCS_PTR_IS_ERR(r)) {
        p->failed = true;
    }
}

TD_ON(td_xfer)
static void emit(struct td_xfer *x, struct xf_cmd *cmd, enum td_xfer_event_type type, td_err err)
{
    cmd->node.ev = (struct td_xfer_event){.type = type, .epoch = cmd->c.epoch, .err = err};
    cmd->node.drop = cmd;
    td__xf_event(x, &cmd->node);
}

void td__xf_peer_connect(struct td_xfer *x, struct xf_cmd *cmd)
{
    ucp_ep_h ep = NULL;
    ucp_err_handler_t on_error = {on_ep_error, x};
    if (td__xf_peer_find(x, cmd->c.epoch) != NULL) {
        free(cmd); /* idempotent */
        return;
    }
    struct xf_peer *p = peer_add(x, cmd->c.epoch, true);
    if (p == NULL) {
        emit(x, cmd, TD_XFER_PEER_LOST, TD_ERR_FULL);
        return;
    }
    td_err e = td_ucx_connect(&x->ucx, cmd->c.bytes, cmd->c.n_bytes, on_error, &ep);
    if (e != TD_OK) {
        td__xf_peer_end(p, e, true);
    } else {
        peer_open(p, ep, true);
        td__xf_send_frame(p, XF_AM_HELLO, &p->hello, x->ucx.address, x->ucx.address_bytes);
        td__xf_ref_greet(p, cmd->c.bytes, cmd->c.n_bytes);
    }
    free(cmd);
}

/* ---- messages in ---- */

static bool frame_ok(struct td_xfer *x, const void *header, size_t header_len, size_t len,
                     struct xf_frame *out)
{
    if (header_len == sizeof *out) {
        memcpy(out, header, sizeof *out);
        if (out->magic == XF_FRAME_MAGIC && out->version == TD_SLICE_VERSION && out->from != 0 &&
            out->n_bytes == len) {
            return true;
        }
    }
    td__xf_count(&x->stats.refused, 1);
    TD_LOG(WARN, "malformed data plane frame, ignoring", "header=%zu bytes=%zu", header_len, len);
    return false;
}

struct xf_peer *td__xf_peer_check(struct td_xfer *x, uint64_t epoch, uint64_t to,
                                  const ucp_am_recv_param_t *param)
{
    struct xf_peer *p = td__xf_peer_find(x, epoch);
    bool reply = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    if (p != NULL && to == x->epoch && reply && p->ep == param->reply_ep) {
        return p;
    }
    td__xf_count(&x->stats.stale, 1);
    TD_LOG(DEBUG, "message of an unknown peer or connection, ignoring", "peer=%016" PRIx64, epoch);
    return NULL;
}

struct xf_peer *td__xf_frame_peer(struct td_xfer *x, const void *header, size_t header_len,
                                  size_t len, const ucp_am_recv_param_t *param)
{
    struct xf_frame f;
    return frame_ok(x, header, header_len, len, &f) ? td__xf_peer_check(x, f.from, f.to, param)
                                                    : NULL;
}

/* Makes the endpoint that belongs to the connection a HELLO came by. UCX pairs endpoints of two
 * workers by the order in which they were made; connections that died before their HELLO arrived
 * are skipped. */
static td_err accept_ep(struct td_xfer *x, const uint8_t *address, size_t n, ucp_ep_h reply,
                        ucp_ep_h *out)
{
    ucp_err_handler_t on_error = {on_ep_error, x};
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    for (int i = 0; i < XF_MAX_CONNECT; i++) {
        ucp_ep_h ep = NULL;
        TD_TRY(td_ucx_connect(&x->ucx, address, n, on_error, &ep));
        if (ep == reply) {
            *out = ep;
            return TD_OK;
        }
        ucs_status_ptr_t r = ucp_ep_close_nbx(ep, &force);
        if (UCS_PTR_IS_PTR(r)) {
            ucp_request_free(r);
        }
    }
    return TD_ERR_PROTOCOL;
}

/* Room for a HELLO of this epoch? An older connection of the same peer gives way; when both sides
 * dialed at once, the smaller epoch's connection stays. */
TD_ON(td_xfer) static bool hello_wins(struct td_xfer *x, uint64_t epoch, ucp_ep_h ep)
{
    struct xf_peer *old = td__xf_peer_find(x, epoch);
    if (old == NULL) {
        return true;
    }
    if (old->ep == ep || (old->dialed && x->epoch < epoch)) {
        return false;
    }
    td__xf_peer_end(old, TD_ERR_PEER_LOST, true);
    return true;
}

static ucs_status_t on_hello(void *arg, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    struct xf_frame f;
    ucp_ep_h ep = NULL;
    td_assert_on(td_xfer);
    if (!frame_ok(x, header, header_len, len, &f) ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || f.from == x->epoch) {
        return UCS_OK;
    }
    bool ours = f.to == x->epoch;
    if (!ours) {
        td__xf_count(&x->stats.stale, 1);
        TD_LOG(INFO, "HELLO for another epoch, refusing", "peer=%016" PRIx64 " for=%016" PRIx64,
               f.from, f.to);
    }
    if ((ours && !hello_wins(x, f.from, param->reply_ep)) ||
        accept_ep(x, data, len, param->reply_ep, &ep) != TD_OK) {
        return UCS_OK;
    }
    /* A refused one becomes a peer too, for as long as its goodbye takes. */
    struct xf_peer *p = ours ? peer_add(x, f.from, true) : NULL;
    if (p == NULL) {
        p = peer_add(x, f.from, false);
    }
    if (p == NULL) {
        return UCS_OK; /* out of memory: the endpoint stays with UCX until its peer is gone */
    }
    peer_open(p, ep, false);
    if (p->known) {
        td__xf_send_frame(p, XF_AM_WELCOME, &p->hello, NULL, 0);
        td__xf_ref_greet(p, data, len);
    } else {
        td__xf_peer_end(p, TD_ERR_STALE, false);
    }
    return UCS_OK;
}

static ucs_status_t on_welcome(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    (void)data;
    td_assert_on(td_xfer);
    struct xf_peer *p = td__xf_frame_peer(x, header, header_len, len, param);
    if (p != NULL) {
        TD_LOG(DEBUG, "data plane peer answered", "peer=%016" PRIx64, p->epoch);
    }
    return UCS_OK;
}

/* By connection, not by epoch: a stranger says goodbye under its own. */
static ucs_status_t on_bye(void *arg, const void *header, size_t header_len, void *data, size_t len,
                           const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    struct xf_frame f;
    (void)data;
    td_assert_on(td_xfer);
    struct xf_peer *p = NULL;
    if (frame_ok(x, header, header_len, len, &f) &&
        (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0) {
        p = td__xf_peer_by_ep(x, param->reply_ep);
    }
    if (p != NULL && !p->failed) {
        TD_LOG(INFO, "data plane peer said goodbye", "peer=%016" PRIx64, p->epoch);
        p->failed = true;
    }
    return UCS_OK;
}

static void msg_free(struct td_xfer *x, struct xf_msg *m)
{
    (void)__atomic_sub_fetch(&x->msg_bytes, m->n_bytes, __ATOMIC_RELAXED);
    free(m);
}

static void on_msg_received(void *request, ucs_status_t status, size_t len, void *arg)
{
    struct xf_msg *m = arg;
    struct xf_peer *p = m->peer;
    td_assert_on(td_xfer);
    m->bad = status != UCS_OK || len != m->n_bytes;
    m->in.done = true;
    p->n_recvs--;
    p->x->inflight--;
    td__xf_peer_in_advance(p);
    if (request != NULL) {
        ucp_request_free(request);
    }
}

/* A long message waits in its sender until we fetch it into memory of ours. */
static void fetch_msg(struct xf_peer *p, struct xf_msg *m, void *data)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb = {.recv_am = on_msg_received},
        .user_data = m,
    };
    p->n_recvs++;
    p->x->inflight++;
    ucs_status_ptr_t r = ucp_am_recv_data_nbx(p->x->ucx.worker, data, m->bytes, m->n_bytes, &param);
    if (!UCS_PTR_IS_PTR(r)) {
        on_msg_received(NULL, UCS_PTR_STATUS(r), m->n_bytes, m);
    }
}

/* A peer of ours has few messages in flight; one that sends more than we can hold is cut off. */
static void flooded(struct xf_peer *p, struct xf_msg *m, size_t len)
{
    TD_LOG(WARN, "too many messages wait, closing the connection", "peer=%016" PRIx64 " max=%u",
           p->epoch, 2 * XF_MAX_MSG_BYTES);
    td__xf_count(&p->x->stats.refused, 1);
    m->n_bytes = len;
    msg_free(p->x, m);
    p->failed = true;
}

static ucs_status_t on_msg(void *arg, const void *header, size_t header_len, void *data, size_t len,
                           const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    struct xf_frame f;
    td_assert_on(td_xfer);
    if (!frame_ok(x, header, header_len, len, &f)) {
        return UCS_OK;
    }
    struct xf_peer *p = td__xf_peer_check(x, f.from, f.to, param);
    struct xf_msg *m = NULL;
    if (p != NULL && len > 0 && len <= TD_XFER_MAX_MSG) {
        m = malloc(sizeof *m + len);
    }
    if (m == NULL) {
        td__xf_count(p == NULL ? &x->stats.dropped : &x->stats.refused, 1);
        return UCS_OK;
    }
    if (__atomic_add_fetch(&x->msg_bytes, len, __ATOMIC_RELAXED) > 2ull * XF_MAX_MSG_BYTES) {
        flooded(p, m, len);
        return UCS_OK;
    }
    memset(m, 0, sizeof *m);
    m->in.is_msg = true;
    m->peer = p;
    m->n_bytes = len;
    td__xf_peer_in_add(p, &m->in);
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        fetch_msg(p, m, data);
    } else {
        memcpy(m->bytes, data, len);
        m->in.done = true;
        td__xf_peer_in_advance(p);
    }
    return UCS_OK;
}

void td__xf_peer_in_add(struct xf_peer *p, struct xf_in *in)
{
    in->next = NULL;
    *p->in_tail = in;
    p->in_tail = &in->next;
}

TD_ON(td_xfer) static void deliver(struct xf_peer *p, struct xf_msg *m)
{
    if (m->bad || p->dying) {
        msg_free(p->x, m);
        return;
    }
    m->node.ev = (struct td_xfer_event){
        .type = TD_XFER_MSG,
        .epoch = p->epoch,
        .bytes = m->bytes,
        .n_bytes = m->n_bytes,
        .transport = p->transport,
    };
    m->node.give = m;
    td__xf_count(&p->x->stats.msgs_in, 1);
    td__xf_event(p->x, &m->node);
}

void td__xf_peer_in_advance(struct xf_peer *p)
{
    while (p->in != NULL && p->in->done) {
        struct xf_in *in = p->in;
        p->in = in->next;
        if (p->in == NULL) {
            p->in_tail = &p->in;
        }
        if (in->is_msg) {
            deliver(p, (struct xf_msg *)in);
        } else {
            struct xf_recv *r = (struct xf_recv *)in;
            r->free_next = p->x->recv_free;
            p->x->recv_free = r;
        }
    }
}

static ucs_status_t on_unknown(void *arg, const void *header, size_t header_len, void *data,
                               size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    (void)header;
    (void)data;
    (void)param;
    td_assert_on(td_xfer);
    td__xf_count(&x->stats.refused, 1);
    TD_LOG(WARN, "message of an unknown kind, ignoring", "header=%zu bytes=%zu", header_len, len);
    return UCS_OK;
}

td_err td__xf_handle(struct td_xfer *x, unsigned id, ucp_am_recv_callback_t cb)
{
    ucp_am_handler_param_t param = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = id,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = cb,
        .arg = x,
    };
    TD_UCX("ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(x->ucx.worker, &param));
    return TD_OK;
}

td_err td__xf_peer_handlers(struct td_xfer *x)
{
    /* Highest first: UCX 1.13 leaves the handlers of ids below the first registered one uninitialised, and a message
     * with such an id would jump there. The table's length is the highest id rounded up to even (tests: a_stranger_...).
     */
    for (unsigned id = XF_AM_TABLE; id-- > 0;) {
        TD_TRY(td__xf_handle(x, id, on_unknown));
    }
    TD_TRY(td__xf_handle(x, XF_AM_HELLO, on_hello));
    TD_TRY(td__xf_handle(x, XF_AM_WELCOME, on_welcome));
    TD_TRY(td__xf_handle(x, XF_AM_MSG, on_msg));
    return td__xf_handle(x, XF_AM_BYE, on_bye);
}

/* ---- the end ---- */

void td__xf_peer_end(struct xf_peer *p, td_err why, bool say_lost)
{
    struct td_xfer *x = p->x;
    if (p->dying) {
        return;
    }
    p->dying = true;
    p->why = why;
    p->say_lost = say_lost;
    if (p->known) {
        (void)td_map_del(x->peers, td__xf_key(p->epoch));
        set_transport(x, p->epoch, NULL);
    }
    while (p->sends != NULL) {
        struct xf_send *s = p->sends;
        p->sends = (struct xf_send *)s->cmd.next;
        td__xf_count(&x->stats.dropped, 1);
        free(s);
    }
    p->sends_tail = &p->sends;
    for (struct xf_push *u = p->pushes; u != NULL; u = (struct xf_push *)u->cmd.next) {
        u->err = u->err == TD_OK ? TD_ERR_PEER_LOST : u->err;
    }
    if (p->ep != NULL && !p->failed) {
        td__xf_send_frame(p, XF_AM_BYE, &p->bye, NULL, 0);
        p->close_at_us = td_now_us() + XF_BYE_US;
    }
}

void td__xf_peer_close(struct td_xfer *x, struct xf_cmd *cmd)
{
    struct xf_peer *p = x->peer_list;
    while (p != NULL && !(p->epoch == cmd->c.epoch && p->known)) {
        p = p->next;
    }
    if (cmd->c.epoch == 0) {
        free(cmd); /* only a wake-up */
    } else if (p == NULL) {
        emit(x, cmd, TD_XFER_CLOSED, TD_OK);
    } else {
        p->say_closed = true;
        td__xf_peer_end(p, TD_ERR_CLOSED, false);
        free(cmd);
    }
}

static void close_ep(struct xf_peer *p)
{
    ucp_request_param_t force = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb = {.send = on_sent},
        .user_data = p,
    };
    ucp_ep_h ep = p->ep;
    p->ep = NULL;
    ucs_status_ptr_t r = ucp_ep_close_nbx(ep, &force);
    if (UCS_PTR_IS_PTR(r)) {
        p->n_requests++;
        p->x->inflight++;
    }
}

static void slots_free(struct xf_peer *p)
{
    for (size_t i = 0; i < XF_WINDOW; i++) {
        free(p->slots[i].iov);
        free(p->slots[i].flip);
        free(p->slots[i].at);
        p->slots[i] = (struct xf_slot){0};
    }
}

void td__xf_peer_free(struct xf_peer *p)
{
    slots_free(p);
    free(p);
}

/* Another connection to the same process that still has operations under way. */
static struct xf_peer *other_dying(const struct xf_peer *p)
{
    struct xf_peer *o = p->x->peer_list;
    while (o != NULL && !(o != p && o->known && o->dying && o->epoch == p->epoch)) {
        o = o->next;
    }
    return o;
}

/* Every operation has called back: nothing of this peer moves any more. */
TD_ON(td_xfer) static void finish(struct xf_peer *p)
{
    struct td_xfer *x = p->x;
    struct xf_peer *other = p->say_closed ? other_dying(p) : NULL;
    if (other != NULL) { /* CLOSED is a fence for all of them: the last one says it */
        other->say_closed = true;
        p->say_closed = false;
    }
    td__xf_ref_lost(p);
    while (p->pushes != NULL) {
        td__xf_push_end(x, p->pushes);
    }
    td__xf_peer_in_advance(p);
    TD_INSIST(p->in == NULL);
    slots_free(p);
    td__xf_count(&x->stats.peers, UINT64_MAX); /* one less */
    x->strangers -= !p->known;
    p->lost.ev.err = p->why;
    if (p->say_lost) {
        td__xf_event(x, &p->lost);
    }
    if (p->say_closed) {
        td__xf_event(x, &p->closed);
    }
    if (p->say_closed) {
        p->closed.drop = p;
    } else if (p->say_lost) {
        p->lost.drop = p;
    } else {
        free(p);
    }
}

TD_ON(td_xfer) static void reap(struct xf_peer *p, int64_t now)
{
    bool quiet = p->n_requests == 0 && p->n_recvs == 0;
    if (p->failed && !p->dying) {
        td__xf_count(&p->x->stats.lost, 1);
        td__xf_peer_end(p, TD_ERR_PEER_LOST, true);
    }
    if (!p->dying || p->ep == NULL) {
        return;
    }
    if (quiet || p->failed || now >= p->close_at_us) {
        close_ep(p);
        p->close_at_us = now + p->x->fence_us;
    } else {
        td__xf_wake_at(p->x, p->close_at_us);
    }
}

void td__xf_peers_reap(struct td_xfer *x, int64_t now)
{
    struct xf_peer **at = &x->peer_list;
    while (*at != NULL) {
        struct xf_peer *p = *at;
        reap(p, now);
        if (p->dying && p->ep == NULL && p->n_requests == 0 && p->n_recvs == 0) {
            *at = p->next;
            finish(p);
            continue;
        }
        if (p->dying && p->ep == NULL && now >= p->close_at_us && !p->stuck_logged) {
            p->stuck_logged = true;
            TD_LOG(ERROR, "a closed connection does not let go, its blocks stay quarantined",
                   "peer=%016" PRIx64 " requests=%u receives=%u "
                   "remedy=\"if that process stands still, let it go on\"",
                   p->epoch, p->n_requests, p->n_recvs);
        }
        at = &p->next;
    }
}

void td__xf_objects_free(struct td_xfer *x)
{
    td__xf_events_discard(x);
    while (x->peer_list != NULL) {
        struct xf_peer *p = x->peer_list;
        x->peer_list = p->next;
        while (p->pushes != NULL) {
            struct xf_push *u = p->pushes;
            p->pushes = (struct xf_push *)u->cmd.next;
            free(u);
        }
        td__xf_peer_free(p);
    }
    while (x->land_list != NULL) {
        struct xf_land *l = x->land_list;
        x->land_list = l->all_next;
        free(l);
    }
    for (size_t i = 0; x->recvs != NULL && i < XF_MAX_RECVS; i++) {
        free(x->recvs[i].iov);
    }
    free(x->recvs);
    x->recvs = NULL;
}
