#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/io/link_frame.h"
#include "common/io/link_session.h"
#include "link_net.h"

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
        T(a_handshake_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
