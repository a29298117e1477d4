#include "common/io/link_session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "link_net.h"

/* ---- traffic: numbered messages whose content can be checked ---- */

#define KEYS 5

struct traffic {
    struct td_rng rng;
    uint64_t sent[KEYS], got[KEYS]; /* next number, by order key */
    uint64_t n_sent, n_got, bytes;
    size_t max_len;
    unsigned bad;
};

static size_t make_message(uint8_t *out, uint64_t key, uint64_t number, size_t len)
{
    memcpy(out, &key, 8);
    memcpy(out + 8, &number, 8);
    for (size_t i = 16; i < len; i++) {
        out[i] = (uint8_t)(number * 31 + key * 7 + i);
    }
    return len;
}

static void check_message(void *arg, struct net_end *e, const struct td_link_action *a)
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
    if (key >= KEYS || number != t->got[key]) {
        t->bad++;
        return;
    }
    (void)make_message(want, key, number, a->len);
    if (memcmp(want, a->bytes, a->len) != 0) {
        t->bad++;
    }
    t->got[key]++;
    t->n_got++;
}

static void send_one(struct net *n, int from, uint64_t session, struct traffic *t)
{
    static uint8_t m[2u << 20];
    uint64_t key = td_rng_below(&t->rng, KEYS);
    size_t len =
        16 + (size_t)td_rng_below(&t->rng, td_rng_below(&t->rng, 20) == 0 ? t->max_len : 300);
    (void)make_message(m, key, t->sent[key], len);
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

/* ---- handshake ---- */

static void both_ends_come_up_and_know_each_other(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 1);
    assert_int_equal(n.ends[0].ups, 1);
    assert_int_equal(n.ends[1].ups, 1);
    assert_string_equal(n.ends[0].peer_name, "d0");
    assert_string_equal(n.ends[0].info, "node info");
    assert_string_equal(n.ends[1].peer_name, "r0");
    assert_string_equal(n.ends[1].info, "router info");
    assert_true(td_link_session_by_epoch(n.ends[0].link, 1001) == n.ends[0].session);
    assert_int_equal(n.ends[0].refusals + n.ends[1].refusals, 0);
    net_fini(&n);
}

static void a_router_that_starts_first_connects_when_the_node_appears(void **state)
{
    struct net n;
    (void)state;
    net_init(&n, 2);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    net_start(&n, 0, &r);
    net_target(&n, 0, 1);
    net_run(&n, 60000000);
    assert_int_equal(n.ends[0].ups, 0);
    net_start(&n, 1, &d);
    net_run(&n, TD_LINK_BACKOFF_MAX_US * 5 / 4 + 100000);
    assert_int_equal(n.ends[0].ups, 1);
    assert_int_equal(n.ends[1].ups, 1);
    net_fini(&n);
}

static void pair_with_keys(struct net *n, const struct td_link_key *rk, uint32_t n_rk,
                           const struct td_link_key *dk, uint32_t n_dk)
{
    net_init(n, 3);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    r.keys = rk;
    r.n_keys = n_rk;
    d.keys = dk;
    d.n_keys = n_dk;
    net_start(n, 0, &r);
    net_start(n, 1, &d);
    net_target(n, 0, 1);
    net_run(n, 50000);
}

static void a_wrong_secret_is_refused_by_the_router(void **state)
{
    struct net n;
    struct td_link_key a = net_key("k1", "secret number one"),
                       b = net_key("k1", "secret number two");
    (void)state;
    pair_with_keys(&n, &a, 1, &b, 1);
    assert_int_equal(n.ends[0].ups + n.ends[1].ups, 0);
    assert_int_equal(n.ends[0].refusals, 1);
    assert_int_equal(n.ends[0].refused_err, TD_ERR_PEER_AUTH);
    assert_non_null(strstr(n.ends[0].text, "k1"));
    net_fini(&n);
}

static void a_key_id_that_the_node_does_not_have_is_refused_with_its_name(void **state)
{
    struct net n;
    struct td_link_key a = net_key("new", NET_SECRET), b = net_key("old", NET_SECRET);
    (void)state;
    pair_with_keys(&n, &a, 1, &b, 1);
    assert_int_equal(n.ends[0].ups + n.ends[1].ups, 0);
    assert_int_equal(n.ends[0].refused_err, TD_ERR_PEER_AUTH);
    assert_true(n.ends[0].refused_remote);
    assert_non_null(strstr(n.ends[0].text, "'new'"));
    net_fini(&n);
}

static void a_node_with_two_keys_serves_routers_of_both(void **state)
{
    struct net n;
    struct td_link_key both[2] = {net_key("new", "the new secret of it"),
                                  net_key("old", NET_SECRET)};
    (void)state;
    pair_with_keys(&n, &both[1], 1, both, 2);
    assert_int_equal(n.ends[1].ups, 1);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1002, "r1", "");
    r.keys = &both[0];
    net_start(&n, 2, &r);
    net_target(&n, 2, 1);
    net_run(&n, 50000);
    assert_int_equal(n.ends[1].ups, 2);
    assert_int_equal(n.ends[1].losts, 0);
    net_fini(&n);
}

/* Drives a raw connection against a link: the test is the peer. */
struct raw {
    struct net net;
    uint64_t conn;
    struct td_buf out; /* what the link wrote */
    bool closed;
};

static void raw_drain(struct raw *r)
{
    struct td_link_action a;
    struct td_link *l = r->net.ends[1].link;
    while (td_link_next(l, r->net.now, &a)) {
        if (a.type == TD_LINK_WRITE) {
            assert_int_equal(td_buf_append(&r->out, a.bytes, a.len), TD_OK);
            td_link_conn_wrote(l, r->net.now, a.conn);
        } else if (a.type == TD_LINK_CLOSE) {
            r->closed = true;
            td_link_conn_closed(l, r->net.now, a.conn);
        } else {
            net_note(&r->net, 1, &a);
        }
    }
}

static void raw_open(struct raw *r)
{
    uint8_t nonce[TD_LINK_NONCE];
    net_nonce(&r->net, nonce);
    r->closed = false;
    td_buf_clear(&r->out);
    assert_int_equal(
        td_link_conn_open(r->net.ends[1].link, r->net.now, TD_LINK_NO_TARGET, nonce, &r->conn),
        TD_OK);
    raw_drain(r);
}

static void raw_init(struct raw *r)
{
    memset(r, 0, sizeof *r);
    net_init(&r->net, 4);
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "node info");
    net_start(&r->net, 1, &d);
    td_buf_init(&r->out, 1u << 20);
    raw_open(r);
}

static void raw_fini(struct raw *r)
{
    td_buf_fini(&r->out);
    net_fini(&r->net);
}

static void raw_put(struct raw *r, const uint8_t *data, size_t len)
{
    td_link_conn_bytes(r->net.ends[1].link, r->net.now, r->conn, data, len);
    raw_drain(r);
}

#include "common/io/link_frame.h"

static size_t raw_frame(uint8_t *out, uint8_t type, const uint8_t *body, size_t len)
{
    struct link_frame f = {.type = type, .len = len};
    uint8_t *p = link_frame_begin(out, &f);
    memcpy(p, body, len);
    memset(p + len, 0, TD_MAC_BYTES);
    return LINK_OVERHEAD + len;
}

static struct link_hello raw_hello(void)
{
    struct link_hello h = {
        .version_min = 1, .version_max = 1, .epoch = 1000, .role = TD_LINK_ROUTER};
    memcpy(h.key_id, "k1", 3);
    memset(h.nonce, 7, sizeof h.nonce);
    return h;
}

static void raw_put_hello(struct raw *r, const struct link_hello *h)
{
    uint8_t body[LINK_HELLO_BYTES], frame[LINK_HELLO_BYTES + LINK_OVERHEAD];
    size_t len = link_hello_write(h, body);
    raw_put(r, frame, raw_frame(frame, LINK_HELLO, body, len));
}

static void a_dialer_that_cannot_prove_the_secret_is_refused_by_the_node(void **state)
{
    struct raw r;
    uint8_t frame[256], name[] = {2, 'r', '0'};
    struct link_hello h = raw_hello();
    (void)state;
    raw_init(&r);
    raw_put_hello(&r, &h);
    assert_false(r.closed);
    assert_true(r.out.len > LINK_OVERHEAD);
    assert_int_equal(r.out.data[4], LINK_CHALLENGE);
    raw_put(&r, frame, raw_frame(frame, LINK_PROVE, name, sizeof name));
    assert_true(r.closed);
    assert_int_equal(r.net.ends[1].refused_err, TD_ERR_PEER_AUTH);
    assert_int_equal(r.net.ends[1].ups, 0);
    raw_fini(&r);
}

static void a_version_range_without_overlap_is_refused_naming_both(void **state)
{
    struct raw r;
    struct link_hello h = raw_hello();
    (void)state;
    raw_init(&r);
    h.version_min = 7;
    h.version_max = 9;
    raw_put_hello(&r, &h);
    assert_true(r.closed);
    assert_int_equal(r.net.ends[1].refused_err, TD_ERR_PEER_VERSION);
    assert_non_null(strstr(r.net.ends[1].text, "router 7 to 9, node 1 to 1"));
    assert_int_equal(r.out.data[4], LINK_REFUSE);
    raw_fini(&r);
}

static void a_newer_dialer_that_still_speaks_our_version_gets_it(void **state)
{
    struct raw r;
    struct link_hello h = raw_hello();
    struct link_challenge ch;
    (void)state;
    raw_init(&r);
    h.version_max = 9;
    raw_put_hello(&r, &h);
    assert_true(link_challenge_parse(r.out.data + 24, r.out.len - LINK_OVERHEAD, &ch));
    assert_int_equal(ch.version, TD_LINK_VERSION_MAX);
    raw_fini(&r);
}

static void garbage_and_huge_lengths_are_dropped_without_an_answer(void **state)
{
    static const char *const strangers[] = {"GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff________",
                                            "\x01\x00\x00\x00_", "\x00\x00\x00\x00____",
                                            "SSH-2.0-OpenSSH_9.2\r\n"};
    struct raw r;
    (void)state;
    raw_init(&r);
    for (size_t i = 0; i < TD_COUNT(strangers); i++) {
        static const size_t lens[] = {18, 12, 5, 8, 21};
        raw_put(&r, (const uint8_t *)strangers[i], lens[i]);
        assert_true(r.closed);
        assert_int_equal(r.out.len, 0);
        raw_open(&r);
    }
    raw_fini(&r);
}

static void a_stranger_that_says_nothing_is_dropped_after_the_handshake_time(void **state)
{
    struct raw r;
    (void)state;
    raw_init(&r);
    r.net.now += TD_LINK_T_HANDSHAKE_US - 1;
    td_link_tick(r.net.ends[1].link, r.net.now);
    raw_drain(&r);
    assert_false(r.closed);
    r.net.now += 1;
    td_link_tick(r.net.ends[1].link, r.net.now);
    raw_drain(&r);
    assert_true(r.closed);
    raw_fini(&r);
}

static void the_oldest_stranger_gives_way_when_pending_is_full(void **state)
{
    struct raw r;
    uint8_t nonce[TD_LINK_NONCE] = {1};
    uint64_t conn;
    (void)state;
    raw_init(&r);
    for (int i = 0; i < 7; i++) {
        r.net.now++;
        assert_int_equal(
            td_link_conn_open(r.net.ends[1].link, r.net.now, TD_LINK_NO_TARGET, nonce, &conn),
            TD_OK);
        raw_drain(&r);
    }
    assert_false(r.closed);
    r.net.now++;
    assert_int_equal(
        td_link_conn_open(r.net.ends[1].link, r.net.now, TD_LINK_NO_TARGET, nonce, &conn), TD_OK);
    raw_drain(&r);
    assert_true(r.closed);
    struct td_link_stats s;
    td_link_stats(r.net.ends[1].link, &s);
    assert_int_equal(s.pending, 8);
    assert_int_equal(s.evicted, 1);
    raw_fini(&r);
}

static td_err refuse_all(void *arg, uint64_t epoch, const uint8_t *info, size_t len, char *text,
                         size_t cap)
{
    (void)epoch;
    (void)snprintf(text, cap, "here %s, there %.*s", (const char *)arg, (int)len,
                   (const char *)info);
    return TD_ERR_PEER_MODEL;
}

static void checked_pair(struct net *n, bool router_checks)
{
    static char a[] = "mine";
    net_init(n, 5);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "model-r");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "model-d");
    (router_checks ? &r : &d)->check = refuse_all;
    (router_checks ? &r : &d)->check_arg = a;
    net_start(n, 0, &r);
    net_start(n, 1, &d);
    net_target(n, 0, 1);
    net_run(n, 50000);
}

static void a_peer_that_does_not_fit_is_refused_and_told_why(void **state)
{
    (void)state;
    for (int router_checks = 0; router_checks < 2; router_checks++) {
        struct net n;
        checked_pair(&n, router_checks != 0);
        for (int e = 0; e < 2; e++) {
            assert_int_equal(n.ends[e].ups, 0);
            assert_int_equal(n.ends[e].refusals, 1);
            assert_int_equal(n.ends[e].refused_err, TD_ERR_PEER_MODEL);
            assert_string_equal(n.ends[e].text, router_checks ? "here mine, there model-d"
                                                              : "here mine, there model-r");
            assert_int_equal(n.ends[e].refused_remote, (e == 0) != (router_checks != 0));
        }
        net_fini(&n);
    }
}

static void a_refused_target_is_dialed_again_but_slowly(void **state)
{
    struct net n;
    (void)state;
    checked_pair(&n, false);
    net_run(&n, 60000000);
    assert_in_range(n.ends[0].refusals, 60 * 1000000 / (TD_LINK_BACKOFF_MAX_US * 5 / 4 + 100000),
                    60);
    net_fini(&n);
}

/* ---- data ---- */

static void messages_of_all_sizes_arrive_once_and_in_order(void **state)
{
    struct net n;
    struct traffic t = {.rng = {11}, .max_len = 300000};
    (void)state;
    net_pair(&n, 11);
    n.ends[1].on_message = check_message;
    n.ends[1].arg = &t;
    for (int i = 0; i < 3000; i++) {
        send_one(&n, 0, n.ends[0].session, &t);
        if (i % 7 == 0) {
            net_run(&n, 300);
        }
    }
    net_run(&n, 5000000);
    assert_int_equal(t.bad, 0);
    assert_int_equal(t.n_got, t.n_sent);
    assert_true(t.n_sent > 1000);
    net_fini(&n);
}

/* Thousands of resets while traffic flows both ways. */
static void reset_storm(uint64_t seed, unsigned resets, unsigned *out_resumes)
{
    struct net n;
    struct traffic t[2] = {{.rng = {seed}, .max_len = 200000},
                           {.rng = {seed + 1}, .max_len = 3000}};
    net_pair(&n, seed);
    for (int e = 0; e < 2; e++) {
        n.ends[e].on_message = check_message;
        n.ends[e].arg = &t[1 - e];
    }
    for (unsigned i = 0; i < resets; i++) {
        for (int k = 0; k < 4; k++) {
            send_one(&n, 0, n.ends[0].session, &t[0]);
            send_one(&n, 1, n.ends[1].session, &t[1]);
        }
        /* A connection that is reset while it shakes hands is dialed again only after a backoff: now and then wait for
         * that, else most resets would find nothing to reset. */
        net_run(&n, (int64_t)td_rng_below(&n.rng, td_rng_below(&n.rng, 2) == 0 ? 4000 : 600000));
        net_reset_all(&n);
    }
    net_run(&n, 20000000);
    for (int e = 0; e < 2; e++) {
        assert_int_equal(t[e].bad, 0);
        assert_int_equal(t[e].n_got, t[e].n_sent);
        assert_int_equal(n.ends[e].losts, 0);
        assert_int_equal(n.ends[e].ups, 1);
    }
    *out_resumes = n.ends[0].resumes;
    net_fini(&n);
}

static void nothing_is_lost_or_doubled_over_thousands_of_resets(void **state)
{
    unsigned total = 0;
    (void)state;
    for (uint64_t seed = 100; seed < 110; seed++) {
        unsigned resumes = 0;
        reset_storm(seed, 500, &resumes);
        total += resumes;
    }
    assert_true(total > 2000);
}

static void a_session_resumes_after_nine_seconds(void **state)
{
    struct net n;
    struct traffic t = {.rng = {12}, .max_len = 1000};
    (void)state;
    net_pair(&n, 12);
    n.ends[1].on_message = check_message;
    n.ends[1].arg = &t;
    n.cut = true;
    net_reset_all(&n);
    for (int i = 0; i < 100; i++) {
        send_one(&n, 0, n.ends[0].session, &t);
    }
    net_run(&n, 9000000);
    n.cut = false;
    net_run(&n, 900000);
    assert_int_equal(n.ends[0].resumes, 1);
    assert_int_equal(n.ends[1].resumes, 1);
    assert_int_equal(n.ends[0].losts + n.ends[1].losts, 0);
    assert_int_equal(t.n_got, t.n_sent);
    assert_int_equal(t.bad, 0);
    net_fini(&n);
}

static void a_session_is_lost_at_both_ends_after_eleven_seconds(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 13);
    uint64_t old = n.ends[0].session;
    n.cut = true;
    net_reset_all(&n);
    net_run(&n, 11000000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_int_equal(n.ends[1].losts, 1);
    assert_int_equal(n.ends[0].lost_err, TD_ERR_PEER_LOST);
    assert_int_equal(td_link_send(n.ends[0].link, n.now, old, 0, (const uint8_t *)"x", 1),
                     TD_ERR_CLOSED);
    n.cut = false;
    net_run(&n, 4000000);
    assert_int_equal(n.ends[0].ups, 2);
    assert_int_equal(n.ends[1].ups, 2);
    assert_true(n.ends[0].session != old);
    net_fini(&n);
}

static void an_idle_link_stays_up_by_heartbeats(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 14);
    uint64_t before = n.bytes;
    net_run(&n, 600000000);
    assert_int_equal(n.ends[0].losts + n.ends[1].losts, 0);
    assert_int_equal(n.ends[0].detaches, 0);
    /* Ten minutes: about 120 beats each way, and no more talk than that. */
    assert_in_range(n.bytes - before, 2 * 100 * LINK_OVERHEAD, 2 * 130 * LINK_OVERHEAD);
    net_fini(&n);
}

static void silence_of_ten_seconds_ends_the_session(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 15);
    n.cut = true; /* no reset: bytes just stop */
    net_run(&n, 9400000);
    assert_int_equal(n.ends[0].losts + n.ends[1].losts, 0);
    net_run(&n, 700000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_int_equal(n.ends[1].losts, 1);
    assert_non_null(strstr(n.ends[0].text, "silent"));
    net_fini(&n);
}

static void a_restarted_node_ends_the_old_session_at_once(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 16);
    net_kill(&n, 1);
    struct td_link_params d = net_params(TD_LINK_NODE, 2001, "d0", "");
    net_start(&n, 1, &d);
    net_run(&n, 500000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_non_null(strstr(n.ends[0].text, "restarted"));
    assert_int_equal(n.ends[0].ups, 2);
    assert_int_equal(n.ends[0].resumes, 0);
    net_fini(&n);
}

static void a_restarted_router_ends_the_old_session_at_once(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 17);
    net_kill(&n, 0);
    assert_int_equal(n.ends[1].losts, 0);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 2000, "r0", "");
    net_start(&n, 0, &r);
    net_target(&n, 0, 1);
    net_run(&n, 100000);
    assert_int_equal(n.ends[1].losts, 1);
    assert_int_equal(n.ends[1].ups, 2);
    net_fini(&n);
}

static void a_refused_redial_means_that_the_process_has_ended(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 18);
    n.refused = true;
    net_kill(&n, 1);
    net_run(&n, 1000000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_non_null(strstr(n.ends[0].text, "ended"));
    net_fini(&n);
}

static void a_closed_session_ends_at_the_peer_with_the_reason(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 19);
    td_link_session_close(n.ends[1].link, n.now, n.ends[1].session, TD_ERR_DRAINING);
    net_drain(&n, 1);
    net_run(&n, 100000);
    assert_int_equal(n.ends[1].losts, 0);
    assert_int_equal(n.ends[0].losts, 1);
    assert_int_equal(n.ends[0].lost_err, TD_ERR_DRAINING);
    net_fini(&n);
}

static void a_removed_target_ends_its_session_and_is_not_dialed(void **state)
{
    struct net n;
    uint32_t t;
    (void)state;
    net_pair(&n, 20);
    td_link_target_remove(n.ends[0].link, n.now, 0);
    net_drain(&n, 0);
    net_run(&n, 30000000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_int_equal(n.ends[1].losts, 1);
    assert_int_equal(n.ends[1].lost_err, TD_ERR_CLOSED);
    assert_int_equal(n.ends[0].ups, 1);
    assert_int_equal(td_link_target_add(n.ends[0].link, n.now, &t), TD_OK);
    assert_int_equal(t, 0);
    net_fini(&n);
}

static void two_routers_share_a_node(void **state)
{
    struct net n;
    struct traffic t[2] = {{.rng = {21}, .max_len = 5000}, {.rng = {22}, .max_len = 5000}};
    (void)state;
    net_pair(&n, 21);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1002, "r1", "");
    net_start(&n, 2, &r);
    net_target(&n, 2, 1);
    net_run(&n, 100000);
    assert_int_equal(n.ends[1].ups, 2);
    n.ends[0].on_message = n.ends[2].on_message = check_message;
    n.ends[0].arg = &t[0];
    n.ends[2].arg = &t[1];
    for (int i = 0; i < 200; i++) {
        send_one(&n, 1, n.ends[1].sessions[0], &t[0]);
        send_one(&n, 1, n.ends[1].sessions[2], &t[1]);
        net_run(&n, 1000);
    }
    net_kill(&n, 2);
    for (int i = 0; i < 200; i++) {
        send_one(&n, 1, n.ends[1].sessions[0], &t[0]);
        net_run(&n, 1000);
    }
    net_run(&n, 100000);
    assert_int_equal(t[0].bad + t[1].bad, 0);
    assert_int_equal(t[0].n_got, t[0].n_sent);
    assert_int_equal(t[1].n_got, 200);
    net_fini(&n);
}

static void one_node_at_two_addresses_gets_one_session(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 23);
    net_target(&n, 0, 1);
    net_run(&n, 20000000);
    assert_int_equal(n.ends[0].ups, 1);
    assert_int_equal(n.ends[1].ups, 1);
    assert_int_equal(n.ends[0].losts + n.ends[1].losts, 0);
    assert_int_equal(n.ends[0].refused_err, TD_ERR_STALE);
    net_fini(&n);
}

/* ---- hostile bytes on an open connection ---- */

static int flip_in; /* messages until one bit flips */

static void flip_tap(struct net *n, int to, uint8_t *data, size_t len)
{
    if (to == 1 && flip_in > 0 && --flip_in == 0) {
        data[td_rng_below(&n->rng, len)] ^= (uint8_t)(1u << td_rng_below(&n->rng, 8));
    }
}

static void a_changed_bit_costs_the_connection_but_no_message(void **state)
{
    (void)state;
    for (uint64_t seed = 200; seed < 300; seed++) {
        struct net n;
        struct traffic t = {.rng = {seed}, .max_len = 2000};
        net_pair(&n, seed);
        n.ends[1].on_message = check_message;
        n.ends[1].arg = &t;
        n.tap = flip_tap;
        flip_in = 3;
        for (int i = 0; i < 40; i++) {
            send_one(&n, 0, n.ends[0].session, &t);
            net_run(&n, 300);
        }
        net_run(&n, 9000000); /* a flipped length may leave the node waiting for bytes until silence
                                 kills */
        if (n.ends[1].losts == 0) {
            assert_int_equal(t.n_got, t.n_sent);
        }
        assert_int_equal(t.bad, 0);
        net_fini(&n);
    }
}

static struct td_buf record; /* frames that went to end 1 */

static void record_tap(struct net *n, int to, uint8_t *data, size_t len)
{
    (void)n;
    if (to == 1) {
        assert_int_equal(td_buf_append(&record, data, len), TD_OK);
    }
}

static void a_replayed_frame_is_refused(void **state)
{
    struct net n;
    struct traffic t = {.rng = {24}, .max_len = 100};
    (void)state;
    net_pair(&n, 24);
    n.ends[1].on_message = check_message;
    n.ends[1].arg = &t;
    n.tap = record_tap;
    td_buf_init(&record, 1u << 20);
    send_one(&n, 0, n.ends[0].session, &t);
    net_run(&n, 10000);
    n.tap = NULL;
    assert_int_equal(t.n_got, 1);
    for (int i = 0; i < NET_PIPES; i++) {
        if (n.pipes[i].used) {
            td_link_conn_bytes(n.ends[1].link, n.now, n.pipes[i].conn[1], record.data, record.len);
            net_drain(&n, 1);
        }
    }
    assert_int_equal(n.ends[1].detaches, 1);
    net_run(&n, 100000);
    assert_int_equal(n.ends[1].messages, 1);
    assert_int_equal(n.ends[1].resumes, 1);
    td_buf_fini(&record);
    net_fini(&n);
}

static void a_recorded_connection_played_again_gets_nowhere(void **state)
{
    struct net n;
    uint64_t conn;
    uint8_t nonce[TD_LINK_NONCE];
    struct td_link_action a;
    (void)state;
    td_buf_init(&record, 1u << 20);
    net_init(&n, 25);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    net_start(&n, 0, &r);
    net_start(&n, 1, &d);
    n.tap = record_tap;
    net_target(&n, 0, 1);
    net_run(&n, 50000);
    n.tap = NULL;
    assert_int_equal(n.ends[1].ups, 1);
    net_nonce(&n, nonce);
    assert_int_equal(td_link_conn_open(n.ends[1].link, n.now, TD_LINK_NO_TARGET, nonce, &conn),
                     TD_OK);
    td_link_conn_bytes(n.ends[1].link, n.now, conn, record.data, record.len);
    bool closed = false;
    while (td_link_next(n.ends[1].link, n.now, &a)) {
        assert_true(a.type != TD_LINK_UP && a.type != TD_LINK_LOST && a.type != TD_LINK_DETACHED);
        if (a.type == TD_LINK_CLOSE && a.conn == conn) {
            closed = true;
            td_link_conn_closed(n.ends[1].link, n.now, conn);
        } else if (a.type == TD_LINK_WRITE) {
            td_link_conn_wrote(n.ends[1].link, n.now, a.conn);
        }
    }
    assert_true(closed);
    assert_int_equal(n.ends[1].losts, 0);
    td_buf_fini(&record);
    net_fini(&n);
}

/* ---- flow ---- */

struct order {
    uint64_t big_bytes, smalls_before_big, big_done;
};

static void note_order(void *arg, struct net_end *e, const struct td_link_action *a)
{
    struct order *o = arg;
    (void)e;
    if (a->len > 100000) {
        o->big_done++;
        o->big_bytes = a->len;
    } else if (o->big_done == 0) {
        o->smalls_before_big++;
    }
}

static void small_messages_overtake_a_big_one(void **state)
{
    struct net n;
    struct order o = {0};
    static uint8_t big[4u << 20];
    (void)state;
    net_pair(&n, 26);
    n.ends[1].on_message = note_order;
    n.ends[1].arg = &o;
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 1, big, sizeof big),
                     TD_OK);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 2, big, 40), TD_OK);
    }
    net_drain(&n, 0);
    net_run(&n, 5000000);
    assert_int_equal(o.big_done, 1);
    assert_int_equal(o.big_bytes, sizeof big);
    assert_int_equal(o.smalls_before_big, 50);
    net_fini(&n);
}

static void a_small_message_does_not_overtake_a_big_one_of_its_own_key(void **state)
{
    struct net n;
    struct order o = {0};
    static uint8_t big[1u << 20];
    (void)state;
    net_pair(&n, 27);
    n.ends[1].on_message = note_order;
    n.ends[1].arg = &o;
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 9, big, sizeof big),
                     TD_OK);
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 9, big, 40), TD_OK);
    net_drain(&n, 0);
    net_run(&n, 5000000);
    assert_int_equal(o.big_done, 1);
    assert_int_equal(o.smalls_before_big, 0);
    assert_int_equal(n.ends[1].messages, 2);
    net_fini(&n);
}

static void a_big_message_is_not_starved_by_small_ones(void **state)
{
    struct net n;
    struct order o = {0};
    static uint8_t big[256u << 10];
    (void)state;
    net_pair(&n, 28);
    n.ends[1].on_message = note_order;
    n.ends[1].arg = &o;
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 1, big, sizeof big),
                     TD_OK);
    for (int i = 0; i < 4000; i++) {
        assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 2, big, 40), TD_OK);
    }
    net_drain(&n, 0);
    net_run(&n, 5000000);
    assert_int_equal(o.big_done, 1);
    assert_true(o.smalls_before_big < 200);
    net_fini(&n);
}

static void the_queue_is_bounded_and_usable_again_after_acknowledgements(void **state)
{
    struct net n;
    static uint8_t m[60000];
    unsigned taken = 0;
    (void)state;
    net_init(&n, 29);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    r.queue_bytes = 1u << 20;
    net_start(&n, 0, &r);
    net_start(&n, 1, &d);
    net_target(&n, 0, 1);
    net_run(&n, 50000);
    n.cut = true;
    td_err e;
    while ((e = td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, sizeof m)) == TD_OK) {
        taken++;
        net_drain(&n, 0);
    }
    assert_int_equal(e, TD_ERR_FULL);
    assert_int_equal(taken, (1u << 20) / sizeof m);
    n.cut = false;
    net_run(&n, 3000000);
    assert_int_equal(n.ends[1].messages, taken);
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, sizeof m), TD_OK);
    net_fini(&n);
}

static void what_is_in_flight_never_exceeds_the_window(void **state)
{
    struct net n;
    static uint8_t m[3000];
    (void)state;
    net_init(&n, 30);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    r.window_bytes = 20000;
    r.frame_payload = 4096;
    net_start(&n, 0, &r);
    net_start(&n, 1, &d);
    net_target(&n, 0, 1);
    net_run(&n, 50000);
    for (int i = 0; i < 300; i++) {
        struct td_link_session_stats s;
        assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, sizeof m),
                         TD_OK);
        net_drain(&n, 0);
        (void)net_step(&n, n.now + 200);
        assert_true(td_link_session_stats(n.ends[0].link, n.ends[0].session, &s));
        assert_true(s.unacked_bytes < 20000 + 4096);
    }
    net_run(&n, 5000000);
    assert_int_equal(n.ends[1].messages, 300);
    net_fini(&n);
}

static void messages_beyond_the_bounds_are_refused_at_the_door(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 31);
    static uint8_t m[TD_LINK_MAX_MESSAGE + 1];
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, sizeof m),
                     TD_ERR_TOO_LARGE);
    assert_int_equal(td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, 0),
                     TD_ERR_BAD_REQUEST);
    assert_int_equal(td_link_send(n.ends[0].link, n.now, 77, 0, m, 1), TD_ERR_CLOSED);
    assert_int_equal(
        td_link_send(n.ends[0].link, n.now, n.ends[0].session, 0, m, TD_LINK_MAX_MESSAGE), TD_OK);
    net_drain(&n, 0);
    net_run(&n, 20000000);
    assert_int_equal(n.ends[1].messages, 1);
    net_fini(&n);
}

static void times_follow_the_scale(void **state)
{
    struct net n;
    (void)state;
    net_init(&n, 32);
    struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
    struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
    r.time_scale = d.time_scale = 0.1;
    net_start(&n, 0, &r);
    net_start(&n, 1, &d);
    net_target(&n, 0, 1);
    net_run(&n, 50000);
    n.cut = true;
    net_run(&n, 1100000);
    assert_int_equal(n.ends[0].losts, 1);
    assert_int_equal(n.ends[1].losts, 1);
    net_fini(&n);
}

static void creation_survives_any_failed_allocation(void **state)
{
    (void)state;
    struct td_link_params p = net_params(TD_LINK_NODE, 5, "n", "info");
    for (unsigned i = 1; i < 200; i++) {
        struct td_link *l = NULL;
        td_mem_fail_nth(i);
        td_err e = td_link_create(&p, &l);
        td_mem_fail_nth(0);
        l = td_link_destroy(l);
        if (e == TD_OK) {
            return;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
    }
    fail_msg("creation never succeeded");
}

static void a_handshake_survives_any_failed_allocation(void **state)
{
    (void)state;
    for (unsigned i = 1; i < 60; i++) {
        struct net n;
        net_init(&n, 33);
        struct td_link_params r = net_params(TD_LINK_ROUTER, 1000, "r0", "");
        struct td_link_params d = net_params(TD_LINK_NODE, 1001, "d0", "");
        net_start(&n, 0, &r);
        net_start(&n, 1, &d);
        /* The buffers of the first connection and the session are taken here. A pipe's open must
         * not fail, so the first two allocations (one slot each) are left alone. */
        td_mem_fail_nth(i + 2);
        net_target(&n, 0, 1);
        net_run(&n, 8000000);
        td_mem_fail_nth(0);
        assert_true(n.ends[0].ups >= 1);
        assert_true(td_link_session_by_epoch(n.ends[1].link, 1000) != 0);
        net_fini(&n);
    }
}

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(both_ends_come_up_and_know_each_other),
        T(a_router_that_starts_first_connects_when_the_node_appears),
        T(a_wrong_secret_is_refused_by_the_router),
        T(a_key_id_that_the_node_does_not_have_is_refused_with_its_name),
        T(a_node_with_two_keys_serves_routers_of_both),
        T(a_dialer_that_cannot_prove_the_secret_is_refused_by_the_node),
        T(a_version_range_without_overlap_is_refused_naming_both),
        T(a_newer_dialer_that_still_speaks_our_version_gets_it),
        T(garbage_and_huge_lengths_are_dropped_without_an_answer),
        T(a_stranger_that_says_nothing_is_dropped_after_the_handshake_time),
        T(the_oldest_stranger_gives_way_when_pending_is_full),
        T(a_peer_that_does_not_fit_is_refused_and_told_why),
        T(a_refused_target_is_dialed_again_but_slowly),
        T(messages_of_all_sizes_arrive_once_and_in_order),
        T(nothing_is_lost_or_doubled_over_thousands_of_resets),
        T(a_session_resumes_after_nine_seconds),
        T(a_session_is_lost_at_both_ends_after_eleven_seconds),
        T(an_idle_link_stays_up_by_heartbeats),
        T(silence_of_ten_seconds_ends_the_session),
        T(a_restarted_node_ends_the_old_session_at_once),
        T(a_restarted_router_ends_the_old_session_at_once),
        T(a_refused_redial_means_that_the_process_has_ended),
        T(a_closed_session_ends_at_the_peer_with_the_reason),
        T(a_removed_target_ends_its_session_and_is_not_dialed),
        T(two_routers_share_a_node),
        T(one_node_at_two_addresses_gets_one_session),
        T(a_changed_bit_costs_the_connection_but_no_message),
        T(a_replayed_frame_is_refused),
        T(a_recorded_connection_played_again_gets_nowhere),
        T(small_messages_overtake_a_big_one),
        T(a_small_message_does_not_overtake_a_big_one_of_its_own_key),
        T(a_big_message_is_not_starved_by_small_ones),
        T(the_queue_is_bounded_and_usable_again_after_acknowledgements),
        T(what_is_in_flight_never_exceeds_the_window),
        T(messages_beyond_the_bounds_are_refused_at_the_door),
        T(times_follow_the_scale),
        T(creation_survives_any_failed_allocation),
        T(a_handshake_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
