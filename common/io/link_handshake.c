#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/io/link_int.h"

/* Design. Five frames, each end learning one thing at a time (-> from the dialer, <- back):
 *
 *   -> HELLO      nonce, versions, key id, session to resume. The listener picks version and key
 *                 and derives the keys of this connection.
 *   <- CHALLENGE  nonce, resumed or not. Tagged: the listener knows the secret.
 *   -> PROVE      name, info. Tagged: the dialer knows it, and is not a replay.
 *   <- ACCEPT     name, info.
 *   -> any frame  the session is up on both sides.
 *
 * Nothing that a stranger says changes a session: the old connection of a session is given up only
 * after PROVE. Either end may answer REFUSE with a reason; before the keys exist it is a hint and
 * no more. */

static void refuse(struct td_link *l, struct link_conn *c, td_err e, const char *text)
{
    link_refused(l, c, e, text, false);
    link_conn_put_reason(l, c, LINK_REFUSE, e, text);
    link_conn_flush(l, c);
}

static void bad(struct td_link *l, struct link_conn *c)
{
    l->stats.bad_frames++;
    link_conn_kill(l, c);
}

static bool set_keys(struct td_link *l, struct link_conn *c, const uint8_t *challenge, size_t len,
                     bool dialer)
{
    struct td_piece hello = {c->hello, c->hello_len}, answer = {challenge, len};
    if (link_set_macs(&c->mac_in, &c->mac_out, c->key, &hello, &answer, dialer) != TD_OK) {
        link_conn_kill(l, c); /* out of memory: the dialer comes again */
        return false;
    }
    c->count_in = c->count_out = 0;
    c->keyed = true;
    return true;
}

static void put_identity(struct td_link *l, struct link_conn *c, uint8_t type)
{
    struct link_frame f = {.type = type, .payload = l->scratch};
    f.len = link_identity_write(l->name, l->info.data, l->info.len, l->scratch);
    bool fits = link_conn_put(l, c, &f);
    TD_INSIST(fits); /* out_cap holds the whole handshake */
}

/* ---- dialer ---- */

void link_handshake_start(struct td_link *l, struct link_conn *c)
{
    struct link_target *t = &l->targets[c->target];
    struct link_hello h = {
        .version_min = TD_LINK_VERSION_MIN,
        .version_max = TD_LINK_VERSION_MAX,
        .features = l->features,
        .epoch = l->epoch,
        .role = (uint8_t)l->role,
    };
    if (t->session != LINK_NONE) {
        const struct link_session *s = &l->sessions[t->session];
        c->resume = link_handle(s->generation, s->slot);
        h.session = s->id;
        h.received = s->received;
        h.peer_epoch = s->peer_epoch;
    }
    c->key = &l->keys[0];
    memcpy(h.key_id, c->key->id, TD_LINK_KEY_ID);
    memcpy(h.nonce, c->nonce, TD_LINK_NONCE);
    c->hello_len = link_hello_write(&h, c->hello);
    bool fits = link_conn_put(
        l, c, &(struct link_frame){.type = LINK_HELLO, .payload = c->hello, .len = c->hello_len});
    TD_INSIST(fits);
}

/* The node does not know the session any more: it is over, and a new one begins. False when the
 * dial must not go on. */
static bool check_challenge(struct td_link *l, struct link_conn *c, const struct link_challenge *ch)
{
    char text[TD_LINK_TEXT];
    if (ch->role != TD_LINK_NODE || ch->epoch == l->epoch) {
        refuse(l, c, TD_ERR_PROTOCOL, "the process at this address is not a node");
        return false;
    }
    struct link_session *other = link_session_find(l, ch->epoch);
    if (other != NULL && other->target != c->target) {
        refuse(l, c, TD_ERR_STALE, "this node is already linked at another address");
        return false;
    }
    struct link_session *s = link_session_of(l, c->resume);
    if (s == NULL) {
        c->resume = 0;
        return !ch->resumed; /* the session ended while we asked for it */
    }
    if (ch->resumed && ch->session == s->id && ch->epoch == s->peer_epoch &&
        link_session_can_resume(s, ch->received)) {
        return true;
    }
    if (ch->resumed) {
        link_session_lost(l, s, TD_ERR_PROTOCOL,
                          "the node resumes the session at a place that does not exist");
        return false;
    }
    if (ch->epoch != s->peer_epoch) {
        (void)snprintf(text, sizeof text,
                       "the node has restarted: epoch %016" PRIx64 ", now %016" PRIx64,
                       s->peer_epoch, ch->epoch);
    } else {
        (void)snprintf(text, sizeof text, "the node has given this session up");
    }
    link_session_lost(l, s, TD_ERR_PEER_LOST, text);
    c->resume = 0;
    return true;
}

static void on_challenge(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    struct link_challenge ch;
    char text[TD_LINK_TEXT];
    if (f->type == LINK_REFUSE) {
        td_err e;
        if (!link_reason_parse(f->payload, f->len, &e, text)) {
            bad(l, c);
            return;
        }
        link_refused(l, c, e, text, true);
        link_conn_kill(l, c);
        return;
    }
    if (f->type != LINK_CHALLENGE || !link_challenge_parse(f->payload, f->len, &ch) ||
        ch.version < TD_LINK_VERSION_MIN || ch.version > TD_LINK_VERSION_MAX) {
        bad(l, c);
        return;
    }
    if (!set_keys(l, c, f->payload, f->len, true)) {
        return;
    }
    if (!link_conn_verify(c, f)) {
        c->keyed = false;
        l->stats.bad_frames++;
        (void)snprintf(text, sizeof text, "the node does not know the secret that we call key '%s'",
                       c->key->id);
        refuse(l, c, TD_ERR_PEER_AUTH,
               text); /* without a tag: the node sees that we cannot prove */
        return;
    }
    c->peer_epoch = ch.epoch;
    c->session_id = ch.session;
    c->peer_received = ch.received;
    if (!check_challenge(l, c, &ch)) {
        if (c->state == CONN_CHALLENGE) {
            link_conn_kill(l, c);
        }
        return;
    }
    c->state = CONN_ACCEPT;
    put_identity(l, c, LINK_PROVE);
}

/* ---- listener ---- */

static const struct td_link_key *find_key(const struct td_link *l, const char *id)
{
    for (uint32_t i = 0; i < l->n_keys; i++) {
        if (strcmp(l->keys[i].id, id) == 0) {
            return &l->keys[i];
        }
    }
    return NULL;
}

/* False when the dialer was refused. */
static bool check_hello(struct td_link *l, struct link_conn *c, const struct link_hello *h)
{
    char text[TD_LINK_TEXT];
    if (h->version_min > TD_LINK_VERSION_MAX || h->version_max < TD_LINK_VERSION_MIN) {
        (void)snprintf(text, sizeof text, "no common link version: router %u to %u, node %d to %d",
                       h->version_min, h->version_max, TD_LINK_VERSION_MIN, TD_LINK_VERSION_MAX);
        refuse(l, c, TD_ERR_PEER_VERSION, text);
        return false;
    }
    if (h->role != TD_LINK_ROUTER || h->epoch == l->epoch) {
        refuse(l, c, TD_ERR_PROTOCOL, "only routers dial");
        return false;
    }
    c->key = find_key(l, h->key_id);
    if (c->key == NULL) {
        (void)snprintf(text, sizeof text, "the cluster secret named '%s' is not known to this node",
                       h->key_id);
        refuse(l, c, TD_ERR_PEER_AUTH, text);
        return false;
    }
    return true;
}

static void on_hello(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    struct link_hello h;
    uint8_t body[LINK_CHALLENGE_BYTES];
    if (f->type != LINK_HELLO || !link_hello_parse(f->payload, f->len, &h)) {
        bad(l, c);
        return;
    }
    if (!check_hello(l, c, &h)) {
        return;
    }
    memcpy(c->hello, f->payload, f->len);
    c->hello_len = f->len;
    struct link_challenge ch = {
        .version = h.version_max < TD_LINK_VERSION_MAX ? h.version_max : TD_LINK_VERSION_MAX,
        .features = l->features,
        .epoch = l->epoch,
        .session = link_session_id(h.nonce, c->nonce),
        .role = (uint8_t)l->role,
    };
    struct link_session *s = link_session_find(l, h.epoch);
    if (s != NULL && s->state != SESSION_WAIT && h.session == s->id && h.peer_epoch == l->epoch &&
        link_session_can_resume(s, h.received)) {
        ch.resumed = true;
        ch.session = s->id;
        ch.received = s->received;
        c->resume = link_handle(s->generation, s->slot);
    }
    memcpy(ch.nonce, c->nonce, TD_LINK_NONCE);
    c->peer_epoch = h.epoch;
    c->session_id = ch.session;
    c->peer_received = h.received;
    size_t len = link_challenge_write(&ch, body);
    if (!set_keys(l, c, body, len, false)) {
        return;
    }
    c->key = NULL;
    c->state = CONN_PROVE;
    bool fits = link_conn_put(
        l, c, &(struct link_frame){.type = LINK_CHALLENGE, .payload = body, .len = len});
    TD_INSIST(fits);
}

/* ---- both ---- */

/* Brings an old session onto this connection. False when it ended in between. */
static bool resume(struct td_link *l, struct link_conn *c)
{
    struct link_session *s = link_session_of(l, c->resume);
    if (s == NULL || !link_session_can_resume(s, c->peer_received)) {
        link_conn_kill(l, c);
        return false;
    }
    if (s->conn != LINK_NONE) {
        struct link_conn *old = &l->conns[s->conn];
        s->conn = LINK_NONE;
        old->session = LINK_NONE;
        link_conn_kill(l, old);
    }
    uint64_t peer_has = c->peer_received;
#ifdef TD_BUG_RESEND_TWICE
    peer_has = s->queue.base - 1; /* planted: sends again what the peer has said it has */
#endif
    bool known = link_queue_ack(&s->queue, peer_has);
    TD_INSIST(known);
    link_queue_rewind(&s->queue);
    link_session_attach(l, s, c);
    return true;
}

/* Ends what the peer's new session replaces: another session of its epoch, or one of its name that
 * has no connection (it has restarted). */
static void end_replaced(struct td_link *l, uint64_t epoch, const char *name)
{
    for (uint32_t i = 0; i < l->max_sessions; i++) {
        struct link_session *s = &l->sessions[i];
        if (s->state == SESSION_FREE) {
            continue;
        }
        if (s->peer_epoch == epoch) {
            link_session_lost(l, s, TD_ERR_PEER_LOST, "the peer began a new session");
        } else if (s->state == SESSION_DETACHED && name[0] != '\0' &&
                   strcmp(s->peer_name, name) == 0) {
            link_session_lost(l, s, TD_ERR_PEER_LOST, "the peer has restarted");
        }
    }
}

/* A new session of the peer that proved itself on this connection; NULL when it was refused. */
static struct link_session *begin(struct td_link *l, struct link_conn *c, const char *name,
                                  const uint8_t *info, size_t info_len)
{
    char text[TD_LINK_TEXT];
    end_replaced(l, c->peer_epoch, name);
    struct link_session *s = link_session_new(l);
    if (s == NULL) {
        (void)snprintf(text, sizeof text, "all %u sessions are in use", l->max_sessions);
        refuse(l, c, TD_ERR_FULL, text);
        return NULL;
    }
    s->id = c->session_id;
    s->peer_epoch = c->peer_epoch;
    (void)snprintf(s->peer_name, sizeof s->peer_name, "%s", name);
    if (td_buf_append(&s->info, info, info_len) != TD_OK) {
        link_session_free(l, s);
        refuse(l, c, TD_ERR_NO_MEMORY, "out of memory");
        return NULL;
    }
    s->target = c->target;
    if (c->target != LINK_NONE) {
        l->targets[c->target].session = s->slot;
    }
    link_session_attach(l, s, c);
    return s;
}

/* PROVE at the listener, ACCEPT at the dialer: who the peer is, and whether it fits. */
static void on_identity(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    bool dialer = c->state == CONN_ACCEPT;
    char name[TD_LINK_MAX_NAME + 1], text[TD_LINK_TEXT];
    const uint8_t *info;
    size_t info_len;
    td_err e;
    if (f->type == LINK_REFUSE && link_reason_parse(f->payload, f->len, &e, text)) {
        link_refused(l, c, e, text, true);
        link_conn_kill(l, c);
        return;
    }
    if (f->type != (dialer ? LINK_ACCEPT : LINK_PROVE) ||
        !link_identity_parse(f->payload, f->len, name, &info, &info_len)) {
        bad(l, c);
        return;
    }
    text[0] = '\0';
    e = l->check != NULL ? l->check(l->check_arg, c->peer_epoch, info, info_len, text, sizeof text)
                         : TD_OK;
    if (e != TD_OK) {
        refuse(l, c, e, text[0] != '\0' ? text : td_err_text(e));
        return;
    }
    l->stats.pending--;
    c->state = dialer ? CONN_OPEN : CONN_READY;
    bool resumed = c->resume != 0;
    struct link_session *s;
    if (resumed) {
        if (!resume(l, c)) {
            return;
        }
        s = &l->sessions[c->session];
    } else {
        s = begin(l, c, name, info, info_len);
        if (s == NULL) {
            return;
        }
    }
    if (dialer) {
        link_conn_deadline(l, c, TD_NEVER);
        link_session_opened(l, s, resumed);
    } else {
        put_identity(l, c, LINK_ACCEPT);
    }
}

static void on_ready(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    char text[TD_LINK_TEXT];
    td_err e;
    /* Only a refusal comes here: every other frame opens the session (link_conn.c). */
    if (!link_reason_parse(f->payload, f->len, &e, text)) {
        bad(l, c);
        return;
    }
    link_refused(l, c, e, text, true);
    link_conn_kill(l, c);
}

void link_handshake_frame(struct td_link *l, struct link_conn *c, const struct link_frame *f)
{
    static void (*const steps[CONN_STATES])(struct td_link *, struct link_conn *,
                                            const struct link_frame *) = {
        [CONN_HELLO] = on_hello,     [CONN_CHALLENGE] = on_challenge, [CONN_PROVE] = on_identity,
        [CONN_ACCEPT] = on_identity, [CONN_READY] = on_ready,
    };
    TD_INSIST(steps[c->state] != NULL);
    steps[c->state](l, c, f);
}
