#include "link_net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

void net_nonce(struct net *n, uint8_t out[TD_LINK_NONCE])
{
    for (int i = 0; i < TD_LINK_NONCE; i++) {
        out[i] = (uint8_t)td_rng_next(&n->rng);
    }
}

static struct net_pipe *net_find(struct net *n, int end, uint64_t conn, int *side)
{
    for (int i = 0; i < NET_PIPES; i++) {
        for (int s = 0; s < 2; s++) {
            struct net_pipe *p = &n->pipes[i];
            if (p->used && p->end[s] == end && p->conn[s] == conn) {
                *side = s;
                return p;
            }
        }
    }
    return NULL;
}

static void net_side_closed(struct net *n, struct net_pipe *p, int side)
{
    uint64_t conn = p->conn[side];
    p->conn[side] = 0;
    td_buf_clear(&p->q[0]);
    td_buf_clear(&p->q[1]);
    p->used = p->conn[0] != 0 || p->conn[1] != 0;
    if (conn != 0 && p->end[side] >= 0) {
        td_link_conn_closed(n->ends[p->end[side]].link, n->now, conn);
        net_drain(n, p->end[side]);
    }
}

static void net_reset(struct net *n, struct net_pipe *p)
{
    net_side_closed(n, p, 0);
    net_side_closed(n, p, 1);
}

void net_reset_all(struct net *n)
{
    for (int i = 0; i < NET_PIPES; i++) {
        if (n->pipes[i].used) {
            net_reset(n, &n->pipes[i]);
        }
    }
}

static struct net_pipe *net_pipe_new(struct net *n)
{
    for (int i = 0; i < NET_PIPES; i++) {
        struct net_pipe *p = &n->pipes[i];
        if (!p->used) {
            p->used = true;
            p->conn[0] = p->conn[1] = 0;
            p->owes_wrote[0] = p->owes_wrote[1] = false;
            for (int s = 0; s < 2; s++) {
                td_buf_fini(&p->q[s]);
                td_buf_init(&p->q[s], 64u << 20);
            }
            return p;
        }
    }
    abort();
}

static void net_dial(struct net *n, int from, uint32_t target)
{
    uint8_t nonce[TD_LINK_NONCE];
    int to = (int)n->ends[from].dials[target];
    if (n->refused) {
        td_link_dial_refused(n->ends[from].link, n->now, target);
        return;
    }
    if (n->cut || n->ends[to].link == NULL) {
        td_link_dial_failed(n->ends[from].link, n->now, target);
        return;
    }
    struct net_pipe *p = net_pipe_new(n);
    p->end[0] = from;
    p->end[1] = to;
    net_nonce(n, nonce);
    if (td_link_conn_open(n->ends[to].link, n->now, TD_LINK_NO_TARGET, nonce, &p->conn[1]) !=
        TD_OK) {
        p->used = false;
        td_link_dial_failed(n->ends[from].link, n->now, target);
        return;
    }
    net_nonce(n, nonce);
    if (td_link_conn_open(n->ends[from].link, n->now, target, nonce, &p->conn[0]) != TD_OK) {
        net_side_closed(n, p, 1);
        return;
    }
    net_drain(n, to);
}

void net_note(struct net *n, int end, const struct td_link_action *a)
{
    struct net_end *e = &n->ends[end];
    switch (a->type) {
    case TD_LINK_UP:
        e->ups++;
        e->session = a->session;
        if (a->peer_epoch >= 1000 && a->peer_epoch < 1000 + NET_ENDS) {
            e->sessions[a->peer_epoch - 1000] = a->session;
        }
        (void)snprintf(e->peer_name, sizeof e->peer_name, "%s", a->peer_name);
        (void)snprintf(e->info, sizeof e->info, "%.*s", (int)a->len,
                       a->bytes != NULL ? (const char *)a->bytes : "");
        break;
    case TD_LINK_DETACHED:
        e->detaches++;
        break;
    case TD_LINK_RESUMED:
        e->resumes++;
        break;
    case TD_LINK_LOST:
        e->losts++;
        e->lost_err = a->err;
        (void)snprintf(e->text, sizeof e->text, "%s", a->text);
        break;
    case TD_LINK_REFUSED:
        e->refusals++;
        e->refused_err = a->err;
        e->refused_remote = a->remote;
        (void)snprintf(e->text, sizeof e->text, "%s", a->text);
        break;
    case TD_LINK_MESSAGE:
        e->messages++;
        if (e->on_message != NULL) {
            e->on_message(e->arg, e, a);
        }
        break;
    case TD_LINK_DIAL:
    case TD_LINK_WRITE:
    case TD_LINK_CLOSE:
        abort();
    }
}

static void net_write(struct net *n, int end, const struct td_link_action *a)
{
    int side;
    struct net_pipe *p = net_find(n, end, a->conn, &side);
    if (p == NULL) {
        abort();
    }
    n->bytes += a->len;
    if (p->conn[1 - side] != 0 || p->end[1 - side] < 0) {
        if (p->q[1 - side].len == 0) {
            p->at[1 - side] = n->now + n->delay_us / 2 +
                              (int64_t)td_rng_below(&n->rng, (uint64_t)n->delay_us / 2 + 1);
        }
        size_t from = p->q[1 - side].len;
        if (td_buf_append(&p->q[1 - side], a->bytes, a->len) != TD_OK &&
            td_buf_append(&p->q[1 - side], a->bytes, a->len) !=
                TD_OK) { /* the first may be a test's failing one */
            abort();
        }
        if (n->tap != NULL) {
            n->tap(n, p->end[1 - side], p->q[1 - side].data + from, a->len);
        }
    }
    if (td_rng_below(&n->rng, 4) != 0) {
        td_link_conn_wrote(n->ends[end].link, n->now, a->conn);
    } else {
        p->owes_wrote[side] = true;
    }
}

void net_drain(struct net *n, int end)
{
    struct td_link_action a;
    struct td_link *l = n->ends[end].link;
    while (l != NULL && td_link_next(l, n->now, &a)) {
        if (a.type == TD_LINK_DIAL) {
            net_dial(n, end, a.target);
        } else if (a.type == TD_LINK_WRITE) {
            net_write(n, end, &a);
        } else if (a.type == TD_LINK_CLOSE) {
            int side;
            struct net_pipe *p = net_find(n, end, a.conn, &side);
            if (p == NULL) {
                abort();
            }
            p->conn[side] = 0;
            td_link_conn_closed(l, n->now, a.conn);
            int other = 1 - side;
            if (p->q[other].len == 0) { /* else it hears of the end after the last bytes */
                net_side_closed(n, p, other);
            }
        } else {
            net_note(n, end, &a);
        }
    }
}

/* Delivers a random piece of what waits for one side. */
static void net_deliver(struct net *n, struct net_pipe *p, int side)
{
    static uint8_t piece[256 * 1024];
    size_t len = 1 + (size_t)td_rng_below(&n->rng, p->q[side].len);
    if (td_rng_below(&n->rng, 3) == 0) {
        len = p->q[side].len;
    }
    len = len < sizeof piece ? len : sizeof piece;
    memcpy(piece, p->q[side].data, len);
    td_buf_consume(&p->q[side], len);
    int end = p->end[side];
    if (end >= 0 && p->conn[side] != 0) {
        td_link_conn_bytes(n->ends[end].link, n->now, p->conn[side], piece, len);
        net_drain(n, end);
    }
    if (p->used && p->q[side].len == 0 && p->conn[1 - side] == 0 && p->conn[side] != 0 &&
        p->end[1 - side] >= 0) {
        net_side_closed(n, p, side);
    }
}

/* One round: time moves to the next thing that happens (at most to `until`), and it happens. False:
 * nothing before. */
bool net_step(struct net *n, int64_t until)
{
    int64_t next = until;
    for (int i = 0; i < NET_ENDS; i++) {
        if (n->ends[i].link != NULL) {
            int64_t at = td_link_next_deadline(n->ends[i].link);
            next = at < next ? at : next;
        }
    }
    for (int i = 0; i < NET_PIPES; i++) {
        for (int s = 0; s < 2; s++) {
            struct net_pipe *p = &n->pipes[i];
            if (p->used && p->owes_wrote[s] && n->now < next) {
                next = n->now + 1;
            }
            if (p->used && !n->cut && p->q[s].len > 0 && p->at[s] < next) {
                next = p->at[s];
            }
        }
    }
    bool more = next < until;
    n->now = next > n->now ? next : n->now;
    for (int i = 0; i < NET_PIPES; i++) {
        for (int s = 0; s < 2; s++) {
            struct net_pipe *p = &n->pipes[i];
            if (p->used && p->owes_wrote[s] && p->conn[s] != 0) {
                p->owes_wrote[s] = false;
                td_link_conn_wrote(n->ends[p->end[s]].link, n->now, p->conn[s]);
                net_drain(n, p->end[s]);
            }
            p->owes_wrote[s] = p->owes_wrote[s] && p->conn[s] != 0;
            if (p->used && !n->cut && p->q[s].len > 0 && p->at[s] <= n->now) {
                net_deliver(n, p, s);
            }
        }
    }
    for (int i = 0; i < NET_ENDS; i++) {
        if (n->ends[i].link != NULL && td_link_next_deadline(n->ends[i].link) <= n->now) {
            td_link_tick(n->ends[i].link, n->now);
            net_drain(n, i);
        }
    }
    return more;
}

void net_run(struct net *n, int64_t us)
{
    int64_t until = n->now + us;
    while (n->now < until) {
        (void)net_step(n, until);
    }
}

struct td_link_key net_key(const char *id, const char *secret)
{
    struct td_link_key k = {0};
    (void)snprintf(k.id, sizeof k.id, "%s", id);
    k.secret_len = (uint32_t)strlen(secret);
    memcpy(k.secret, secret, k.secret_len);
    return k;
}

static const struct td_link_key *net_default_key(void)
{
    static struct td_link_key k;
    k = net_key("k1", NET_SECRET);
    return &k;
}

struct td_link_params net_params(enum td_link_role role, uint64_t epoch, const char *name,
                                 const char *info)
{
    return (struct td_link_params){
        .role = role,
        .epoch = epoch,
        .name = name,
        .info = (const uint8_t *)info,
        .info_len = strlen(info),
        .keys = net_default_key(),
        .n_keys = 1,
        .jitter_seed = epoch,
        .max_sessions = 8,
        .max_pending = 8,
        .max_targets = 4,
        .queue_msgs = 4096,
        .window_frames = 256,
    };
}

void net_init(struct net *n, uint64_t seed)
{
    memset(n, 0, sizeof *n);
    n->rng.state = seed;
    n->now = 1000000;
    n->delay_us = 400;
}

void net_fini(struct net *n)
{
    for (int i = 0; i < NET_ENDS; i++) {
        n->ends[i].link = td_link_destroy(n->ends[i].link);
    }
    for (int i = 0; i < NET_PIPES; i++) {
        td_buf_fini(&n->pipes[i].q[0]);
        td_buf_fini(&n->pipes[i].q[1]);
    }
}

void net_start(struct net *n, int end, const struct td_link_params *p)
{
    if (td_link_create(p, &n->ends[end].link) != TD_OK) {
        abort();
    }
    n->ends[end].listens = p->role == TD_LINK_NODE;
}

/* The process of this end dies: its pipes are closed, its link is gone. */
void net_kill(struct net *n, int end)
{
    n->ends[end].link = td_link_destroy(n->ends[end].link);
    for (int i = 0; i < NET_PIPES; i++) {
        struct net_pipe *p = &n->pipes[i];
        for (int s = 0; s < 2; s++) {
            if (p->used && p->end[s] == end && p->conn[s] != 0) {
                p->conn[s] = 0;
                net_side_closed(n, p, 1 - s);
            }
        }
    }
}

void net_target(struct net *n, int from, int to)
{
    uint32_t t;
    if (td_link_target_add(n->ends[from].link, n->now, &t) != TD_OK) {
        abort();
    }
    n->ends[from].dials[t] = (uint32_t)to;
    net_drain(n, from);
}

/* Router 0 and node 1, connected. */
void net_pair(struct net *n, uint64_t seed)
{
    net_init(n, seed);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "router info");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "node info");
    net_start(n, 0, &r);
    net_start(n, 1, &d);
    net_target(n, 0, 1);
    net_run(n, 50000);
}

static size_t net_make_message(uint8_t *out, uint64_t key, uint64_t number, size_t len)
{
    memcpy(out, &key, 8);
    memcpy(out + 8, &number, 8);
    for (size_t i = 16; i < len; i++) {
        out[i] = (uint8_t)(number * 31 + key * 7 + i);
    }
    return len;
}

void net_check_message(void *arg, struct net_end *e, const struct td_link_action *a)
{
    static uint8_t want[2u << 20];
    struct traffic *t = arg;
    uint64_t key, number;
    (void)e;
    if (a->len < 16) {
        t->bad++;
        return;
    }
    memcpy(&key, a->bytes, 8);
    memcpy(&number, a->bytes + 8, 8);
    if (key >= NET_KEYS || number != t->got[key]) {
        t->bad++;
        return;
    }
    (void)net_make_message(want, key, number, a->len);
    if (memcmp(want, a->bytes, a->len) != 0) {
        t->bad++;
    }
    t->got[key]++;
    t->n_got++;
}

void net_send_one(struct net *n, int from, uint64_t session, struct traffic *t)
{
    static uint8_t m[2u << 20];
    uint64_t key = td_rng_below(&t->rng, NET_KEYS);
    size_t len =
        16 + (size_t)td_rng_below(&t->rng, td_rng_below(&t->rng, 20) == 0 ? t->max_len : 300);
    (void)net_make_message(m, key, t->sent[key], len);
    /* Key 0 stands for "no order": those stay small and so keep their order all the same. */
    len = key == 0 && len > 316 ? 316 : len;
    td_err e = td_link_send(n->ends[from].link, n->now, session, key, m, len);
    if (e == TD_OK) {
        t->sent[key]++;
        t->n_sent++;
        t->bytes += len;
    } else if (e != TD_ERR_FULL) {
        t->bad++;
    }
    net_drain(n, from);
}
