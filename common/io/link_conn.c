#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/link_int.h"

/* Connections: bytes in, frames out of them, tags checked, frames made. The handshake and the
 * session decide. */

/* What a state accepts. max_payload bounds memory before the peer is authenticated. */
static const struct {
    size_t max_payload;
    bool keyed; /* every frame carries a tag; CHALLENGE makes the key itself, so its state checks on
                   its own */
} states[CONN_STATES] = {
    [CONN_HELLO] = {LINK_MAX_HELLO, false},
    [CONN_CHALLENGE] = {4 + TD_LINK_TEXT, false},
    [CONN_PROVE] = {1 + TD_LINK_MAX_NAME + TD_LINK_MAX_INFO, true},
    [CONN_ACCEPT] = {1 + TD_LINK_MAX_NAME + TD_LINK_MAX_INFO, true},
    [CONN_READY] = {TD_LINK_FRAME_PAYLOAD + LINK_TOTAL_BYTES, true},
    [CONN_OPEN] = {TD_LINK_FRAME_PAYLOAD + LINK_TOTAL_BYTES, true},
};
_Static_assert(TD_LINK_FRAME_PAYLOAD + LINK_TOTAL_BYTES + LINK_HEADER_BYTES + TD_MAC_BYTES <=
                   TD_LINK_MAX_FRAME,
               "a full piece fits into a frame");
_Static_assert(LINK_MAX_HELLO <= 4 + TD_LINK_TEXT, "CHALLENGE and REFUSE fit");

struct link_conn *link_conn_of(struct td_link *l, uint64_t handle)
{
    uint32_t slot = (uint32_t)handle - 1;
    if (handle == 0 || slot >= l->max_conns || l->conns[slot].state == CONN_FREE ||
        l->conns[slot].generation != (uint32_t)(handle >> 32)) {
        return NULL;
    }
    return &l->conns[slot];
}

void link_conn_dirty(struct td_link *l, struct link_conn *c)
{
    if (!c->dirty) {
        c->dirty = true;
        c->next_dirty = l->dirty_conns;
        l->dirty_conns = c->slot;
    }
}

void link_conn_deadline(struct td_link *l, struct link_conn *c, int64_t at_us)
{
    c->deadline_us = at_us;
    td_err e = td_heap_set(l->timers, &c->timer.node, at_us);
    TD_INSIST(e == TD_OK); /* the heap has room for every object */
}

/* ---- out ---- */

static void tag(struct td_mac *m, uint64_t count, const uint8_t *frame, size_t len,
                uint8_t out[TD_MAC_BYTES])
{
    uint8_t count_bytes[8];
    link_put64(count_bytes, count);
    td_mac_tag(m, (struct td_piece[]){{count_bytes, sizeof count_bytes}, {frame, len}}, 2, out);
}

/* Puts the tag behind the frame that stands at the end of `out`, and counts it. */
static void seal(struct td_link *l, struct link_conn *c, size_t frame_bytes)
{
    uint8_t *frame = c->out + c->out_len;
    size_t covered = frame_bytes - TD_MAC_BYTES;
    if (c->keyed) {
        tag(c->mac_out, c->count_out++, frame, covered, frame + covered);
    } else {
        memset(frame + covered, 0, TD_MAC_BYTES);
    }
    c->out_len += frame_bytes;
    link_conn_dirty(l, c);
}

bool link_conn_put(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    size_t bytes = LINK_OVERHEAD + f->len;
    if (bytes > l->out_cap - c->out_len) {
        return false;
    }
    uint8_t *payload = link_frame_begin(c->out + c->out_len, f);
    if (f->len > 0) {
        memcpy(payload, f->payload, f->len);
    }
    seal(l, c, bytes);
    return true;
}

void link_conn_put_reason(struct td_link *l, struct link_conn *c, uint8_t type, td_err e,
                          const char *text)
{
    uint8_t body[4 + TD_LINK_TEXT];
    struct link_frame f = {.type = type, .payload = body};
    f.len = link_reason_write(e, text, body);
    (void)link_conn_put(l, c,
                        &f); /* a reason that does not fit is not told; the close tells enough */
}

static bool put_data(struct td_link *l, struct link_conn *c, struct link_session *s,
                     const struct link_slice *slice, uint64_t seq)
{
    size_t extra = slice->first && !slice->last ? LINK_TOTAL_BYTES : 0;
    size_t bytes = LINK_OVERHEAD + extra + slice->len;
    if (bytes > l->out_cap - c->out_len) {
        return false;
    }
    uint8_t *payload = link_frame_begin(
        c->out + c->out_len,
        &(struct link_frame){
            .type = LINK_DATA,
            .flags =
                (uint8_t)((slice->lane == TD_LINK_LANE_BIG ? LINK_F_BIG : 0u) |
                          (slice->first ? LINK_F_FIRST : 0u) | (slice->last ? LINK_F_LAST : 0u)),
            .seq = seq,
            .ack = s->received,
            .len = extra + slice->len,
        });
    if (extra > 0) {
        link_put32(payload, slice->total);
    }
    link_queue_copy(&s->queue, slice, payload + extra);
    seal(l, c, bytes);
    s->stats.frames_sent++;
    if (seq <= s->emitted) {
        s->stats.frames_resent++;
    } else {
        s->emitted = seq;
    }
    return true;
}

/* Everything that may leave now: data in its order, and an acknowledgement when one is owed and no
 * data carries it. */
static void fill(struct td_link *l, struct link_conn *c)
{
    struct link_session *s = &l->sessions[c->session];
    const struct link_slice *slice;
    uint64_t seq;
    bool any = false;
    while ((slice = link_queue_peek(&s->queue, &seq)) != NULL && put_data(l, c, s, slice, seq)) {
        link_queue_emitted(&s->queue);
        any = true;
    }
    if (!any && (s->ack_now || l->now - s->sent_us >= l->t_beat)) {
        any = link_conn_put(l, c, &(struct link_frame){.type = LINK_BEAT, .ack = s->received});
    }
    if (any) {
        link_session_sent(l, s);
    }
}

bool link_conn_action(struct td_link *l, struct link_conn *c, struct td_link_action *out)
{
    *out = (struct td_link_action){.conn = link_handle(c->generation, c->slot),
                                   .target = c->target,
                                   .peer_name = "",
                                   .text = ""};
    if (c->state == CONN_OPEN && !c->writing) {
        fill(l, c);
    }
    if (c->state == CONN_CLOSING) {
        out->type = TD_LINK_CLOSE;
        bool first = !c->close_told;
        c->close_told = true;
        return first;
    }
    if (!c->writing && c->out_told < c->out_len) {
        out->type = TD_LINK_WRITE;
        out->bytes = c->out + c->out_told;
        out->len = c->out_len - c->out_told;
        c->out_told = c->out_len;
        c->writing = true;
        return true;
    }
    return false;
}

void td_link_conn_wrote(struct td_link *l, int64_t now_us, uint64_t conn)
{
    struct link_conn *c = link_conn_of(l, conn);
    l->now = now_us;
    if (c == NULL || !c->writing) {
        return;
    }
    c->writing = false;
    if (c->out_told == c->out_len) {
        c->out_told = c->out_len = 0;
        if (c->state == CONN_FLUSH) {
            c->state = CONN_CLOSING;
            link_conn_deadline(l, c, TD_NEVER);
        }
    }
    link_conn_dirty(l, c);
}

/* ---- ends ---- */

static void part_from_session(struct td_link *l, struct link_conn *c)
{
    if (c->session != LINK_NONE) {
        struct link_session *s = &l->sessions[c->session];
        c->session = LINK_NONE;
        link_session_detach(l, s);
    }
}

static bool is_pending(enum conn_state state)
{
    return state == CONN_HELLO || state == CONN_CHALLENGE || state == CONN_PROVE ||
           state == CONN_ACCEPT;
}

/* Leaves the handshake or the open state for good. */
static void leave(struct td_link *l, struct link_conn *c, enum conn_state next)
{
    if (is_pending(c->state)) {
        l->stats.pending--;
    }
    part_from_session(l, c);
    c->state = next;
    c->keyed = c->keyed && next == CONN_FLUSH;
    link_conn_dirty(l, c);
}

void link_conn_kill(struct td_link *l, struct link_conn *c)
{
    if (c->state != CONN_CLOSING && c->state != CONN_FREE) {
        leave(l, c, CONN_CLOSING);
        link_conn_deadline(l, c, TD_NEVER);
    }
}

void link_conn_flush(struct td_link *l, struct link_conn *c)
{
    leave(l, c, CONN_FLUSH);
    link_conn_deadline(l, c, l->now + l->t_linger);
    if (c->out_len == 0) {
        link_conn_kill(l, c);
    }
}

void link_conn_timer(struct td_link *l, struct link_conn *c)
{
    if (l->now < c->deadline_us) {
        link_conn_deadline(l, c, c->deadline_us);
        return;
    }
    if (c->state != CONN_FLUSH) {
        l->stats.handshake_timeouts++;
    }
    link_conn_kill(l, c);
}

static void conn_free(struct td_link *l, struct link_conn *c)
{
    link_conn_deadline(l, c, TD_NEVER);
    c->state = CONN_FREE;
    c->generation++;
    td_buf_clear(&c->rx);
    c->rx_used = false;
}

void td_link_conn_closed(struct td_link *l, int64_t now_us, uint64_t conn)
{
    struct link_conn *c = link_conn_of(l, conn);
    l->now = now_us;
    if (c == NULL) {
        return;
    }
    bool was_open = c->state == CONN_OPEN;
    if (c->state != CONN_CLOSING) {
        leave(l, c, CONN_CLOSING);
    }
    uint32_t target = c->target;
    conn_free(l, c);
    if (target != LINK_NONE && l->targets[target].conn == c->slot) {
        l->targets[target].conn = LINK_NONE;
        link_target_retry(l, &l->targets[target], was_open);
    }
}

/* ---- opening ---- */

/* The stranger that has been silent for longest gives way to a new one. */
static void evict_oldest(struct td_link *l)
{
    struct link_conn *oldest = NULL;
    for (uint32_t i = 0; i < l->max_conns; i++) {
        struct link_conn *c = &l->conns[i];
        if (is_pending(c->state) && c->target == LINK_NONE &&
            (oldest == NULL || c->opened_us < oldest->opened_us)) {
            oldest = c;
        }
    }
    if (oldest != NULL) {
        l->stats.evicted++;
        link_conn_kill(l, oldest);
    }
}

static struct link_conn *conn_new(struct td_link *l)
{
    for (uint32_t i = 0; i < l->max_conns; i++) {
        struct link_conn *c = &l->conns[i];
        if (c->state == CONN_FREE) {
            /* A slot takes its buffer with its first connection and keeps it. */
            c->out = c->out != NULL ? c->out : td_zalloc(l->out_cap, 1);
            if (c->out == NULL) {
                return NULL;
            }
            /* May still stand in the dirty list from its last life; that is harmless. */
            c->target = c->session = LINK_NONE;
            c->writing = c->close_told = c->keyed = c->rx_used = false;
            c->out_len = c->out_told = 0;
            c->count_in = c->count_out = 0;
            c->hello_len = 0;
            c->resume = 0;
            c->key = NULL;
            return c;
        }
    }
    return NULL;
}

td_err td_link_conn_open(struct td_link *l, int64_t now_us, uint32_t target,
                         const uint8_t nonce[TD_LINK_NONCE], uint64_t *out_conn)
{
    l->now = now_us;
    struct link_target *t = NULL;
    if (target != TD_LINK_NO_TARGET) {
        TD_REQUIRE(target < l->max_targets);
        t = &l->targets[target];
        t->dialing = false;
        if (!t->used || t->removed || t->conn != LINK_NONE) {
            t->used = t->used && !t->removed;
            return TD_ERR_STALE;
        }
    }
    if (l->stats.pending >= l->max_pending && t == NULL) {
        evict_oldest(l);
    }
    struct link_conn *c = conn_new(l);
    if (c == NULL) {
        if (t != NULL) {
            link_target_retry(l, t, false);
        }
        return TD_ERR_FULL;
    }
    c->opened_us = now_us;
    memcpy(c->nonce, nonce, TD_LINK_NONCE);
    l->stats.pending++;
    link_conn_deadline(l, c, now_us + l->t_handshake);
    if (t != NULL) {
        c->target = target;
        t->conn = c->slot;
        c->state = CONN_CHALLENGE;
        link_handshake_start(l, c);
    } else {
        c->state = CONN_HELLO;
    }
    *out_conn = link_handle(c->generation, c->slot);
    return TD_OK;
}

/* ---- in ---- */

bool link_conn_verify(struct link_conn *c, const struct link_frame *f)
{
    uint8_t want[TD_MAC_BYTES];
    const uint8_t *frame = f->payload - LINK_HEADER_BYTES - LINK_LEN_BYTES;
    tag(c->mac_in, c->count_in, frame, (size_t)(f->mac - frame), want);
    if (!td_equal_secret(want, f->mac, TD_MAC_BYTES)) {
        return false;
    }
    c->count_in++;
    return true;
}

static void handle(struct td_link *l, struct link_conn *c, const uint8_t *frame, size_t size)
{
    struct link_frame f;
    if (!link_frame_parse(frame, size, &f) ||
        (states[c->state].keyed && !link_conn_verify(c, &f))) {
        l->stats.bad_frames++;
        if (c->state == CONN_PROVE) {
            link_refused(l, c, TD_ERR_PEER_AUTH,
                         "the dialer could not prove that it knows the cluster secret", false);
        }
        link_conn_kill(l, c);
        return;
    }
    if (c->state == CONN_OPEN || c->state == CONN_READY) {
        struct link_session *s = &l->sessions[c->session];
        s->heard_us = l->now;
        if (c->state == CONN_READY && f.type != LINK_REFUSE) {
            c->state = CONN_OPEN;
            link_conn_deadline(l, c, TD_NEVER);
            link_session_opened(l, s, s->state != SESSION_WAIT);
        }
        if (c->state == CONN_OPEN) {
            link_session_frame(l, s, &f);
            return;
        }
    }
    link_handshake_frame(l, c, &f);
}

void link_conn_release_rx(struct td_link *l)
{
    struct link_conn *c = link_conn_of(l, l->in.conn);
    if (c != NULL && c->rx_used) {
        td_buf_clear(&c->rx);
        c->rx_used = false;
    }
}

/* Moves input into rx until it holds `want` bytes; false when input ended before, or memory did. */
static bool gather(struct td_link *l, struct link_conn *c, size_t want)
{
    size_t n = want - c->rx.len < l->in.len ? want - c->rx.len : l->in.len;
    if (td_buf_append(&c->rx, l->in.data, n) != TD_OK) {
        link_conn_kill(l, c);
        return false;
    }
    l->in.data += n;
    l->in.len -= n;
    return c->rx.len == want;
}

/* The next whole frame, in place when it lies whole in the input. False: none. */
static bool next_frame(struct td_link *l, struct link_conn *c, const uint8_t **out,
                       size_t *out_size)
{
    size_t max = states[c->state].max_payload;
    bool direct = c->rx.len == 0 && l->in.len >= LINK_LEN_BYTES;
    if (!direct && c->rx.len < LINK_LEN_BYTES && !gather(l, c, LINK_LEN_BYTES)) {
        return false;
    }
    size_t size = link_frame_size(direct ? l->in.data : c->rx.data, max);
    if (size == 0) {
        l->stats.bad_frames++;
        link_conn_kill(l, c);
        return false;
    }
    if (direct && l->in.len >= size) {
        *out = l->in.data;
        l->in.data += size;
        l->in.len -= size;
    } else {
        if (!gather(l, c, size)) {
            return false;
        }
        c->rx_used = true;
        *out = c->rx.data;
    }
    *out_size = size;
    return true;
}

void link_conn_parse(struct td_link *l)
{
    while (l->in.conn != 0 && l->event_count == 0 && l->message.session == 0) {
        struct link_conn *c = link_conn_of(l, l->in.conn);
        const uint8_t *frame;
        size_t size;
        if (c == NULL || c->state == CONN_FLUSH || c->state == CONN_CLOSING) {
            l->in.conn = 0; /* nobody listens to it any more */
            return;
        }
        link_conn_release_rx(l);
        if (l->in.len == 0 || !next_frame(l, c, &frame, &size)) {
            l->in.conn = 0;
            return;
        }
        handle(l, c, frame, size);
    }
}

void td_link_conn_bytes(struct td_link *l, int64_t now_us, uint64_t conn, const uint8_t *data,
                        size_t len)
{
    TD_REQUIRE(l->in.conn == 0); /* td_link_next() has returned false */
    l->now = now_us;
    if (link_conn_of(l, conn) != NULL && len > 0) {
        l->in.conn = conn;
        l->in.data = data;
        l->in.len = len;
    }
}
