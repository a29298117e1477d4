#define TD_LOG_ROOM "io"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/xfer_int.h"

/* Design: slices by reference, for two processes of one host (cma: one copy, made by the receiver's CPU). UCX has that
 * copy too, but never on an endpoint that reports errors (docs/decisions/0003), so the messages stay UCX's and the copy
 * is ours. Whoever may read a peer's memory says so once (READS): it found the peer's probe, which holds the peer's
 * epoch, so a process number that was given away is not mistaken for the peer. From then on that peer's slices arrive
 * as addresses (SLICE_AT); the receiver copies them into the land's blocks and answers with the number of the last one
 * it is done with (TAKEN), whatever became of it, and only then does the sender's slot end.
 *
 * The receiver writes its own blocks, as with messages, so a land that left the map is fenced. A sender that dies, or
 * closes and fills its blocks anew, spoils only what no hand-over record will follow. */

#define BATCH 64 /* pieces of one system call */

/* In front of the addresses of a SLICE_AT. */
struct xf_offer {
    uint64_t token; /* counts the slices offered on this connection, from 1 */
};

static bool words_from(uint64_t pid, uint64_t at, void *out, size_t n)
{
    struct iovec local = {out, n};
    struct iovec remote = {(void *)(uintptr_t)at, n}; /* its address, never followed here */
    return process_vm_readv((pid_t)pid, &local, 1, &remote, 1, 0) == (ssize_t)n;
}

/* ---- may we? ---- */

void td__xf_ref_greet(struct xf_peer *p, const uint8_t *address, size_t n)
{
    struct td_xfer *x = p->x;
    struct td_ucx_place place;
    struct xf_probe probe = {0};
    if (!x->refs || !p->known || !td_ucx_place_here(&x->ucx, address, n, &place) ||
        place.pid > INT32_MAX) {
        return;
    }
    if (!words_from(place.pid, place.probe, &probe, sizeof probe)) {
        TD_LOG(INFO, "cannot read the peer's memory, slices arrive as messages",
               "peer=%016" PRIx64 " pid=%" PRIu64 " errno=%d", p->epoch, place.pid, errno);
        return;
    }
    if (probe.magic != XF_PROBE_MAGIC || probe.epoch != p->epoch) {
        return; /* another process by now */
    }
    p->pid = (int32_t)place.pid;
    td__xf_send_frame(p, XF_AM_READS, &p->reads, NULL, 0);
    td__xf_peer_transport(p, "cma");
}

static ucs_status_t on_reads(void *arg, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    (void)data;
    td_assert_on(td_xfer);
    struct xf_peer *p = td__xf_frame_peer(x, header, header_len, len, param);
    if (p != NULL && x->refs && len == 0) {
        p->by_ref = true;
        td__xf_peer_transport(p, "cma");
    }
    return UCS_OK;
}

/* ---- out ---- */

/* Both must have come: the offer has left, and the receiver has taken it. */
TD_ON(td_xfer) static void end_if_done(struct xf_slot *s)
{
    if (!s->sending && s->taken) {
        s->offered = false;
        s->peer->x->inflight--;
        td__xf_posted(s, UCS_OK);
    }
}

TD_ON(td_xfer) static void lose(struct xf_slot *s)
{
    s->offered = false;
    s->peer->x->inflight--;
    td__xf_posted(s, UCS_ERR_CONNECTION_RESET);
}

static void on_offered(void *request, ucs_status_t status, void *arg)
{
    struct xf_slot *s = arg;
    td_assert_on(td_xfer);
    s->peer->n_requests--;
    s->sending = false;
    if (status != UCS_OK) {
        lose(s);
    } else {
        end_if_done(s);
    }
    ucp_request_free(request);
}

td_err td__xf_ref_fill(struct xf_slot *s)
{
    uint32_t n = s->h.n_blocks;
    if (n > s->at_cap) {
        uint64_t *grown = td_realloc(s->at, (n + 1u) * sizeof *grown);
        if (grown == NULL) {
            return TD_ERR_NO_MEMORY;
        }
        s->at = grown;
        s->at_cap = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->at[i + 1] = (uintptr_t)s->iov[i].buffer;
    }
    return TD_OK;
}

void td__xf_ref_post(struct xf_slot *s)
{
    struct xf_peer *p = s->peer;
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_offered},
        .user_data = s,
    };
    s->token = ++p->offers;
    s->at[0] = s->token;
    s->offered = true;
    s->sending = true;
    s->taken = false;
    p->x->inflight++;
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XF_AM_SLICE_AT, &s->h, sizeof s->h, s->at,
                                         (s->h.n_blocks + 1u) * sizeof *s->at, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->n_requests++;
        return;
    }
    s->sending = false;
    if (UCS_PTR_IS_ERR(r)) {
        lose(s);
    }
}

static ucs_status_t on_taken(void *arg, const void *header, size_t header_len, void *data,
                             size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    uint64_t token;
    td_assert_on(td_xfer);
    struct xf_peer *p = td__xf_frame_peer(x, header, header_len, len, param);
    if (p == NULL || len != sizeof token || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        return UCS_OK;
    }
    memcpy(&token, data, sizeof token);
    if (token > p->offers) {
        td__xf_count(&x->stats.refused, 1);
        p->failed = true;
        return UCS_OK;
    }
    for (size_t i = 0; i < XF_WINDOW; i++) {
        struct xf_slot *s = &p->slots[i];
        if (s->offered && s->token <= token) {
            s->taken = true;
            end_if_done(s);
        }
    }
    return UCS_OK;
}

void td__xf_ref_lost(struct xf_peer *p)
{
    for (size_t i = 0; i < XF_WINDOW; i++) {
        if (p->slots[i].offered) {
            lose(&p->slots[i]);
        }
    }
}

/* ---- in ---- */

TD_ON(td_xfer) static void answer(struct xf_peer *p);

static void on_answered(void *request, ucs_status_t status, void *arg)
{
    struct xf_peer *p = arg;
    (void)status; /* a failed endpoint says so itself */
    td_assert_on(td_xfer);
    p->n_requests--;
    p->x->inflight--;
    p->answering = false;
    if (p->taken.token != p->answered && p->ep != NULL && !p->failed) {
        answer(p);
    }
    ucp_request_free(request);
}

/* One answer at a time: the next one covers what was taken meanwhile. */
TD_ON(td_xfer) static void answer(struct xf_peer *p)
{
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = UCP_AM_SEND_FLAG_REPLY | UCP_AM_SEND_FLAG_EAGER,
        .cb = {.send = on_answered},
        .user_data = p,
    };
    if (p->answering) {
        return;
    }
    p->answered = p->taken.token;
    p->taken.sent = p->taken.token;
    p->taken.frame = (struct xf_frame){XF_FRAME_MAGIC, TD_SLICE_VERSION, p->x->epoch, p->epoch,
                                       sizeof p->taken.sent};
    ucs_status_ptr_t r = ucp_am_send_nbx(p->ep, XF_AM_TAKEN, &p->taken.frame, sizeof p->taken.frame,
                                         &p->taken.sent, sizeof p->taken.sent, &param);
    if (UCS_PTR_IS_PTR(r)) {
        p->answering = true;
        p->n_requests++;
        p->x->inflight++;
    } else if (UCS_PTR_IS_ERR(r)) {
        p->failed = true;
    }
}

/* Copies n pieces of `bytes` each from the peer's memory. */
static bool copy_pieces(const struct xf_peer *p, struct iovec *to, const uint64_t *from, size_t n,
                        size_t bytes)
{
    struct iovec remote[BATCH];
    for (size_t i = 0; i < n; i++) {
        remote[i] = (struct iovec){(void *)(uintptr_t)from[i], bytes};
    }
    errno = 0; /* a read that ends early sets none */
    return process_vm_readv(p->pid, to, n, remote, n, 0) == (ssize_t)(n * bytes);
}

/* The addresses lie unaligned in UCX's buffer. */
TD_ON(td_xfer)
static bool copy_slice(struct td_xfer *x, const struct xf_land *l, const struct xf_peer *p,
                       const struct td_slice_header *h, const uint8_t *addresses)
{
    uint32_t bytes = x->info->layout.slice_bytes;
    for (uint32_t i = 0; i < h->n_blocks; i += BATCH) {
        uint32_t n = h->n_blocks - i < BATCH ? h->n_blocks - i : BATCH;
        struct iovec to[BATCH];
        uint64_t from[BATCH];
        memcpy(from, addresses + (size_t)i * sizeof from[0], n * sizeof from[0]);
        for (uint32_t k = 0; k < n; k++) {
            to[k] = (struct iovec){td__xf_land_target(x, l, h, i + k), bytes};
        }
        if (!copy_pieces(p, to, from, n, bytes)) {
            return false;
        }
    }
    return true;
}

TD_ON(td_xfer)
static void take(struct td_xfer *x, struct xf_land *l, struct xf_peer *p,
                 const struct td_slice_header *h, const uint8_t *addresses)
{
    if (p->pid == 0) { /* we never said that we read it */
        td__xf_land_bad(x, l, TD_ERR_PROTOCOL);
    } else if (copy_slice(x, l, p, h, addresses)) {
        td__xf_land_arrived(x, l, p, h);
    } else if (errno == ESRCH) {
        p->failed = true; /* its loss says the rest */
    } else {
        TD_LOG(WARN, "a slice cannot be read", "peer=%016" PRIx64 " errno=%d", p->epoch, errno);
        td__xf_land_bad(x, l, TD_ERR_TRANSPORT);
    }
}

static ucs_status_t on_slice_at(void *arg, const void *header, size_t header_len, void *data,
                                size_t len, const ucp_am_recv_param_t *param)
{
    struct td_xfer *x = arg;
    struct td_slice_header h;
    struct xf_offer offer;
    td_assert_on(td_xfer);
    struct xf_peer *p = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0
                            ? td__xf_peer_by_ep(x, param->reply_ep)
                            : NULL;
    if (p == NULL || !p->known || header_len != sizeof h || len < sizeof offer ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        td__xf_count(&x->stats.refused, 1);
        return UCS_OK;
    }
    memcpy(&h, header, sizeof h);
    memcpy(&offer, data, sizeof offer);
    struct xf_land *l = td__xf_land_for(x, &h, h.bytes, param, &p);
    if (l != NULL && len != sizeof offer + (uint64_t)h.n_blocks * sizeof(uint64_t)) {
        td__xf_land_bad(x, l, TD_ERR_PROTOCOL);
    } else if (l != NULL) {
        take(x, l, p, &h, (const uint8_t *)data + sizeof offer);
    }
    if (offer.token != p->taken.token + 1) {
        td__xf_count(&x->stats.refused, 1);
        p->failed = true; /* offers are counted: one was lost or made up */
    } else if (!p->failed && p->ep != NULL) {
        p->taken.token = offer.token;
        answer(p);
    }
    return UCS_OK;
}

td_err td__xf_ref_handlers(struct td_xfer *x)
{
    TD_TRY(td__xf_handle(x, XF_AM_READS, on_reads));
    TD_TRY(td__xf_handle(x, XF_AM_SLICE_AT, on_slice_at));
    return td__xf_handle(x, XF_AM_TAKEN, on_taken);
}
