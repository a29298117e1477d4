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
        n.ends[1].on_message = net_check_message;
        n.ends[1].arg = &t;
        n.tap = flip_tap;
        flip_in = 3;
        for (int i = 0; i < 40; i++) {
            net_send_one(&n, 0, n.ends[0].session, &t);
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
    n.ends[1].on_message = net_check_message;
    n.ends[1].arg = &t;
    n.tap = record_tap;
    td_buf_init(&record, 1u << 20);
    net_send_one(&n, 0, n.ends[0].session, &t);
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

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_changed_bit_costs_the_connection_but_no_message),
        T(a_replayed_frame_is_refused),
        T(a_recorded_connection_played_again_gets_nowhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
