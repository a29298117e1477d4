#include "common/io/link_session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/io/link_int.h"

/* Sessions, their timers and data, and the list of actions. Where a session stands:
 *
 *   listener: PROVE is right -> WAIT -> (first frame of the dialer) -> UP
 *   dialer:   ACCEPT is right -> UP
 *   both:     UP -> (its connection is gone) -> DETACHED -> (resumed within T_dead) -> UP
 *
 * LOST ends UP and DETACHED: T_dead without a word or a connection, a new epoch, BYE, a frame that
 * is authentic and wrong. */

#define ACK_FRAMES 32u    /* acknowledge at the latest after so many frames ... */
#define ACK_BYTES  65536u /* ... or bytes */

/* ---- actions ---- */

struct link_event *link_event_add(struct td_link *l, enum td_link_action_type type)
{
    TD_INSIST(l->event_count < l->max_events); /* td_link_create() says why it suffices */
    struct link_event *e = &l->events[(l->event_head + l->event_count) % l->max_events];
    l->event_count++;
    e->text[0] = e->name[0] = '\0';
    e->info_session = LINK_NONE;
    e->action = (struct td_link_action){.type = type, .target = TD_LINK_NO_TARGET};
    return e;
}

static struct link_event *session_event(struct td_link *l, const struct link_session *s,
                                        enum td_link_action_type type)
{
    struct link_event *e = link_event_add(l, type);
    e->action.session = link_handle(s->generation, s->slot);
    e->action.target = s->target;
    e->action.peer_epoch = s->peer_epoch;
    e->action.user = s->user;
    (void)snprintf(e->name, sizeof e->name, "%s", s->peer_name);
    return e;
}

void link_refused(struct td_link *l, const struct link_conn *c, td_err e, const char *text,
                  bool remote)
{
    struct link_event *ev = link_event_add(l, TD_LINK_REFUSED);
    l->stats.refused++;
    ev->action.conn = link_handle(c->generation, c->slot);
    ev->action.target = c->target;
    ev->action.peer_epoch = c->peer_epoch;
    ev->action.err = e;
    ev->action.remote = remote;
    (void)snprintf(ev->text, sizeof ev->text, "%s", text);
    if (c->target != LINK_NONE) {
        link_target_slow(&l->targets[c->target]);
    }
}

static void pop_event(struct td_link *l, struct td_link_action *out)
{
    struct link_event *e = &l->events[l->event_head];
    l->event_head = (l->event_head + 1) % l->max_events;
    l->event_count--;
    *out = e->action;
    out->peer_name = e->name;
    out->text = e->text;
    if (e->info_session != LINK_NONE) {
        out->bytes = l->sessions[e->info_session].info.data;
        out->len = l->sessions[e->info_session].info.len;
    }
    if (l->event_count == 0) {
        l->event_head = 0; /* stay in warm memory */
    }
}

static bool dirty_action(struct td_link *l, struct td_link_action *out)
{
    while (l->dirty_conns != LINK_NONE) {
        struct link_conn *c = &l->conns[l->dirty_conns];
        if (c->state != CONN_FREE && link_conn_action(l, c, out)) {
            return true; /* stays in the list: it may have more to do */
        }
        l->dirty_conns = c->next_dirty;
        c->dirty = false;
    }
    while (l->dirty_targets != LINK_NONE) {
        struct link_target *t = &l->targets[l->dirty_targets];
        *out = (struct td_link_action){
            .type = TD_LINK_DIAL, .target = l->dirty_targets, .peer_name = "", .text = ""};
        l->dirty_targets = t->next_dirty;
        t->dirty = false;
        if (t->used && !t->removed && t->due && !t->dialing && t->conn == LINK_NONE) {
            t->due = false;
            t->dialing = true;
            return true;
        }
    }
    return false;
}

bool td_link_next(struct td_link *l, int64_t now_us, struct td_link_action *out)
{
    l->now = now_us;
    link_conn_parse(l);
    if (l->event_count > 0) {
        pop_event(l, out);
        return true;
    }
    struct link_session *s = link_session_of(l, l->message.session);
    l->message.session = 0;
    if (s != NULL) {
        *out = (struct td_link_action){.type = TD_LINK_MESSAGE,
                                       .session = link_handle(s->generation, s->slot),
                                       .target = s->target,
                                       .peer_epoch = s->peer_epoch,
                                       .peer_name = s->peer_name,
                                       .text = "",
                                       .user = s->user,
                                       .bytes = l->message.data,
                                       .len = l->message.len};
        return true;
    }
    if (l->in.conn != 0) {
        return td_link_next(l, now_us,
                            out); /* the message's session ended meanwhile; at most once */
    }
    return dirty_action(l, out);
}

/* ---- timers ---- */

void link_arm(struct td_link *l, struct link_timer *t, int64_t at_us)
{
    td_err e = td_heap_set(l->timers, &t->node, at_us);
    TD_INSIST(e == TD_OK); /* the heap has room for every object */
}

static int64_t earliest(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* A heartbeat that is due but cannot leave yet (the last write is not done) needs no timer: the end
 * of that write looks again, and silence decides in the end. */
static void session_arm(struct td_link *l, struct link_session *s)
{
    int64_t at = TD_NEVER;
    if (s->state == SESSION_DETACHED) {
        at = s->lost_at_us;
    } else if (s->state != SESSION_FREE) {
        at = earliest(s->heard_us + l->t_dead, s->ack_due_us);
        at = s->sent_us + l->t_beat > l->now ? earliest(at, s->sent_us + l->t_beat) : at;
    }
    link_arm(l, &s->timer, at);
}

void link_session_sent(struct td_link *l, struct link_session *s)
{
    s->sent_us = l->now;
    s->ack_now = false;
    s->owed_frames = s->owed_bytes = 0;
    s->ack_due_us = TD_NEVER;
    if (s->timer.node.slot == 0 || s->timer.node.at_us > l->now + l->t_beat) {
        link_arm(l, &s->timer, l->now + l->t_beat);
    }
}

static void session_timer(struct td_link *l, struct link_session *s)
{
    char text[TD_LINK_TEXT];
    if (s->state == SESSION_DETACHED && l->now >= s->lost_at_us) {
        (void)snprintf(text, sizeof text, "no connection for %.1f s", (double)l->t_dead / 1e6);
        link_session_lost(l, s, TD_ERR_PEER_LOST, text);
        return;
    }
    if (s->state != SESSION_DETACHED && l->now - s->heard_us >= l->t_dead) {
        l->stats.silences++;
        (void)snprintf(text, sizeof text, "silent for %.1f s", (double)l->t_dead / 1e6);
        link_session_lost(l, s, TD_ERR_PEER_LOST, text);
        return;
    }
    if (s->state == SESSION_UP) {
        if (l->now >= s->ack_due_us) {
            s->ack_now = true;
            s->ack_due_us = TD_NEVER;
        }
        if (s->ack_now || l->now - s->sent_us >= l->t_beat) {
            link_conn_dirty(l, &l->conns[s->conn]);
        }
    }
    session_arm(l, s);
}

int64_t td_link_next_deadline(const struct td_link *l)
{
    const struct td_heap_node *n = td_heap_peek(l->timers);
    return n != NULL ? n->at_us : TD_NEVER;
}

/* We were asleep (a stopped process, a paused machine), not the peers: what they sent meanwhile still waits in our sockets.
 * Everybody gets the time of one beat to be heard, counted from now. */
static void forgive_own_sleep(struct td_link *l, int64_t now_us)
{
    const struct td_heap_node *n = td_heap_peek(l->timers);
    if (n == NULL || now_us - n->at_us < l->t_dead / 2) {
        return;
    }
    int64_t heard = now_us - l->t_dead + l->t_beat;
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        struct link_session *s = &l->sessions[i];
        if (s->state == SESSION_DETACHED) {
            s->lost_at_us = s->lost_at_us > now_us + l->t_beat ? s->lost_at_us : now_us + l->t_beat;
        } else if (s->state != SESSION_FREE) {
            s->heard_us = s->heard_us > heard ? s->heard_us : heard;
        }
    }
}

void td_link_tick(struct td_link *l, int64_t now_us)
{
    struct td_heap_node *n;
    forgive_own_sleep(l, now_us);
    l->now = now_us;
    while ((n = td_heap_pop_due(l->timers, now_us)) != NULL) {
        struct link_timer *t = td_heap_entry(n, struct link_timer, node);
        switch (t->kind) {
        case LINK_T_CONN:
            link_conn_timer(l, &l->conns[t->slot]);
            break;
        case LINK_T_SESSION:
            session_timer(l, &l->sessions[t->slot]);
            break;
        case LINK_T_TARGET:
            link_target_due(l, t->slot);
            break;
        }
    }
}

/* ---- sessions ---- */

struct link_session *link_session_of(const struct td_link *l, uint64_t handle)
{
    uint32_t slot = (uint32_t)handle - 1;
    if (handle == 0 || slot >= l->max_sessions || l->sessions[slot].state == SESSION_FREE ||
        l->sessions[slot].generation != (uint32_t)(handle >> 32)) {
        return NULL;
    }
    return &l->sessions[slot];
}

struct link_session *link_session_find(struct td_link *l, uint64_t peer_epoch)
{
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        struct link_session *s = &l->sessions[i];
        if (s->state != SESSION_FREE && s->peer_epoch == peer_epoch) {
            return s;
        }
    }
    return NULL;
}

bool link_session_can_resume(const struct link_session *s, uint64_t received)
{
    return received + 1 >= s->queue.base && received < s->queue.next_cut;
}

struct link_session *link_session_new(struct td_link *l)
{
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        struct link_session *s = &l->sessions[i];
        if (s->state != SESSION_FREE) {
            continue;
        }
        if (s->queue.slices == NULL && link_queue_init(&s->queue, &l->limits) != TD_OK) {
            link_queue_fini(&s->queue);
            return NULL;
        }
        link_queue_reset(&s->queue);
        td_buf_clear(&s->info);
        td_buf_clear(&s->big);
        s->state = SESSION_WAIT;
        s->conn = s->target = LINK_NONE;
        s->user = NULL;
        s->order = ++l->orders;
        s->received = s->emitted = 0;
        s->owed_frames = s->owed_bytes = s->big_total = 0;
        s->ack_due_us = TD_NEVER;
        s->stats = (struct td_link_session_stats){0};
        l->stats.sessions++;
        return s;
    }
    return NULL;
}

void link_session_free(struct td_link *l, struct link_session *s)
{
    if (s->target != LINK_NONE && l->targets[s->target].session == s->slot) {
        l->targets[s->target].session = LINK_NONE;
    }
    s->state = SESSION_FREE;
    s->generation++;
    link_arm(l, &s->timer, TD_NEVER);
    l->stats.sessions--;
}

void link_session_attach(struct td_link *l, struct link_session *s, struct link_conn *c)
{
    s->conn = c->slot;
    c->session = s->slot;
    s->heard_us = s->sent_us = l->now;
    s->ack_due_us = TD_NEVER;
    session_arm(l, s);
}

void link_session_opened(struct td_link *l, struct link_session *s, bool resumed)
{
    s->state = SESSION_UP;
    s->ack_now = true; /* the first frame tells the listener that the dialer agrees */
    if (s->target != LINK_NONE) {
        l->targets[s->target].attempts = l->targets[s->target].refusals = 0;
    }
    struct link_event *e = session_event(l, s, resumed ? TD_LINK_RESUMED : TD_LINK_UP);
    if (resumed) {
        s->stats.resumes++;
    } else {
        e->info_session = s->slot;
    }
    session_arm(l, s);
    link_conn_dirty(l, &l->conns[s->conn]);
}

/* True when a later session of the same name exists: the process behind this one has been replaced.
 */
static bool is_replaced(const struct td_link *l, const struct link_session *s)
{
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        const struct link_session *o = &l->sessions[i];
        if (o->state != SESSION_FREE && o->order > s->order && o->peer_epoch != s->peer_epoch &&
            s->peer_name[0] != '\0' && strcmp(o->peer_name, s->peer_name) == 0) {
            return true;
        }
    }
    return false;
}

void link_session_detach(struct td_link *l, struct link_session *s)
{
    s->conn = LINK_NONE;
    if (s->state == SESSION_WAIT) {
        link_session_free(l, s);
        return;
    }
    if (is_replaced(l, s)) {
        link_session_lost(l, s, TD_ERR_PEER_LOST, "the peer has restarted");
        return;
    }
    if (s->state == SESSION_UP) {
        (void)session_event(l, s, TD_LINK_DETACHED);
    }
    s->state = SESSION_DETACHED;
    s->lost_at_us = l->now + l->t_dead;
    session_arm(l, s);
}

/* Takes the session off its connection without the rules of detaching. */
static struct link_conn *unhook(struct td_link *l, struct link_session *s)
{
    struct link_conn *c = s->conn != LINK_NONE ? &l->conns[s->conn] : NULL;
    s->conn = LINK_NONE;
    if (c != NULL) {
        c->session = LINK_NONE;
    }
    return c;
}

void link_session_lost(struct td_link *l, struct link_session *s, td_err e, const char *text)
{
    struct link_conn *c = unhook(l, s);
    if (s->state != SESSION_WAIT) {
        struct link_event *ev = session_event(l, s, TD_LINK_LOST);
        l->stats.lost++;
        ev->action.err = e;
        (void)snprintf(ev->text, sizeof ev->text, "%s", text);
    }
    link_session_free(l, s);
    if (c != NULL) {
        link_conn_kill(l, c);
    }
}

/* We found the peer breaking the protocol, or cannot hold what it sends: over, and it is told. */
static void fail(struct td_link *l, struct link_session *s, td_err e, const char *text)
{
    struct link_conn *c = unhook(l, s);
    link_session_lost(l, s, e, text);
    link_conn_put_reason(l, c, LINK_BYE, e, text);
    link_conn_flush(l, c);
}

void td_link_session_close(struct td_link *l, int64_t now_us, uint64_t session, td_err reason)
{
    struct link_session *s = link_session_of(l, session);
    l->now = now_us;
    if (s == NULL) {
        return;
    }
    struct link_conn *c = unhook(l, s);
    if (s->target != LINK_NONE) {
        link_target_slow(&l->targets[s->target]);
    }
    link_session_free(l, s);
    if (c != NULL) {
        link_conn_put_reason(l, c, LINK_BYE, reason, td_err_text(reason));
        link_conn_flush(l, c);
    }
}

/* ---- data ---- */

static void owe_ack(struct td_link *l, struct link_session *s, uint32_t bytes)
{
    s->owed_frames++;
    s->owed_bytes += bytes;
    if (s->owed_frames >= ACK_FRAMES || s->owed_bytes >= ACK_BYTES) {
        s->ack_now = true;
        link_conn_dirty(l, &l->conns[s->conn]);
    } else if (s->ack_due_us == TD_NEVER) {
        s->ack_due_us = l->now + l->t_ack;
        if (s->timer.node.slot == 0 || s->ack_due_us < s->timer.node.at_us) {
            link_arm(l, &s->timer, s->ack_due_us);
        }
    }
}

static void deliver(struct td_link *l, struct link_session *s, const uint8_t *data, size_t len)
{
    s->stats.bytes_received += len;
    l->message.session = link_handle(s->generation, s->slot);
    l->message.data = data;
    l->message.len = len;
}

/* A piece of a cut message. False when it does not fit what came before. */
static bool take_piece(struct td_link *l, struct link_session *s, const struct link_frame *f)
{
    const uint8_t *data = f->payload;
    size_t len = f->len;
    if ((f->flags & LINK_F_FIRST) != 0) {
        if (len < LINK_TOTAL_BYTES) {
            return false;
        }
        td_buf_clear(&s->big);
        if (s->big.cap > TD_LINK_KEEP) {
            td_buf_fini(&s->big);
            td_buf_init(&s->big, TD_LINK_MAX_MESSAGE);
        }
        s->big_total = link_get32(data);
        data += LINK_TOTAL_BYTES;
        len -= LINK_TOTAL_BYTES;
    }
    if (s->big_total == 0 || s->big_total > TD_LINK_MAX_MESSAGE ||
        len > s->big_total - s->big.len) {
        return false;
    }
    if (td_buf_append(&s->big, data, len) != TD_OK) {
        fail(l, s, TD_ERR_NO_MEMORY, "no memory for a message");
        return true;
    }
    if ((f->flags & LINK_F_LAST) != 0) {
        if (s->big.len != s->big_total) {
            return false;
        }
        s->big_total = 0;
        deliver(l, s, s->big.data, s->big.len);
    }
    return true;
}

static bool take_data(struct td_link *l, struct link_session *s, const struct link_frame *f)
{
    const uint8_t whole = LINK_F_FIRST | LINK_F_LAST;
    s->stats.frames_received++;
    if (f->seq <= s->received) {
        s->stats.duplicates++;
        s->ack_now = true;
        link_conn_dirty(l, &l->conns[s->conn]);
#ifndef TD_BUG_RESEND_TWICE /* planted: a frame that was sent again is delivered again */
        return true;
#endif
    } else if (f->seq != s->received + 1) {
        return false;
    } else {
        s->received = f->seq;
        owe_ack(l, s, (uint32_t)f->len);
    }
    if ((f->flags & whole) == whole) {
        if (f->len == 0) {
            return false;
        }
        deliver(l, s, f->payload, f->len);
        return true;
    }
    return (f->flags & LINK_F_BIG) != 0 && take_piece(l, s, f);
}

void link_session_frame(struct td_link *l, struct link_session *s, const struct link_frame *f)
{
    char text[TD_LINK_TEXT];
    td_err e;
    bool ok = false;
    if (f->type == LINK_BYE && link_reason_parse(f->payload, f->len, &e, text)) {
        if (s->target != LINK_NONE) {
            link_target_slow(&l->targets[s->target]);
        }
        link_session_lost(l, s, e, text);
        return;
    }
    if (f->type == LINK_DATA || f->type == LINK_BEAT) {
        ok = link_queue_ack(&s->queue, f->ack);
    }
    if (ok && link_queue_bytes(&s->queue) > 0) {
        link_conn_dirty(l, &l->conns[s->conn]); /* the window may have opened */
    }
    if (ok && f->type == LINK_DATA) {
        uint32_t generation = s->generation;
        ok = take_data(l, s, f);
        if (s->generation != generation) {
            return; /* it ended */
        }
    }
    if (!ok) {
        l->stats.bad_frames++;
        fail(l, s, TD_ERR_PROTOCOL, "an authentic frame that does not fit the session");
    }
}

td_err td_link_send(struct td_link *l, int64_t now_us, uint64_t session, uint64_t key,
                    const uint8_t *data, size_t len)
{
    struct link_session *s = link_session_of(l, session);
    l->now = now_us;
    if (s == NULL || s->state == SESSION_WAIT) {
        return TD_ERR_CLOSED;
    }
    if (len == 0) {
        return TD_ERR_BAD_REQUEST;
    }
    if (len > TD_LINK_MAX_MESSAGE) {
        return TD_ERR_TOO_LARGE;
    }
    TD_TRY(link_queue_push(&s->queue, key, data, len));
    s->stats.bytes_sent += len;
    if (s->conn != LINK_NONE) {
        link_conn_dirty(l, &l->conns[s->conn]);
    }
    return TD_OK;
}

uint64_t td_link_session_by_epoch(const struct td_link *l, uint64_t peer_epoch)
{
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        const struct link_session *s = &l->sessions[i];
        if ((s->state == SESSION_UP || s->state == SESSION_DETACHED) &&
            s->peer_epoch == peer_epoch) {
            return link_handle(s->generation, s->slot);
        }
    }
    return 0;
}

void td_link_session_set_user(struct td_link *l, uint64_t session, void *user)
{
    struct link_session *s = link_session_of(l, session);
    if (s != NULL) {
        s->user = user;
    }
}

bool td_link_session_stats(const struct td_link *l, uint64_t session,
                           struct td_link_session_stats *out)
{
    const struct link_session *s = link_session_of(l, session);
    if (s == NULL) {
        return false;
    }
    *out = s->stats;
    out->queued_bytes = link_queue_bytes(&s->queue);
    out->unacked_bytes = link_queue_unacked(&s->queue);
    out->attached = s->state == SESSION_UP;
    out->heard_us = s->heard_us;
    return true;
}

void td_link_stats(const struct td_link *l, struct td_link_stats *out)
{
    *out = l->stats;
}
