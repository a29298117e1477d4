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

/* ---- data ---- */

static void messages_of_all_sizes_arrive_once_and_in_order(void **state)
{
    struct net n;
    struct traffic t = {.rng = {11}, .max_len = 300000};
    (void)state;
    net_pair(&n, 11);
    n.ends[1].on_message = net_check_message;
    n.ends[1].arg = &t;
    for (int i = 0; i < 3000; i++) {
        net_send_one(&n, 0, n.ends[0].session, &t);
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
        n.ends[e].on_message = net_check_message;
        n.ends[e].arg = &t[1 - e];
    }
    for (unsigned i = 0; i < resets; i++) {
        for (int k = 0; k < 4; k++) {
            net_send_one(&n, 0, n.ends[0].session, &t[0]);
            net_send_one(&n, 1, n.ends[1].session, &t[1]);
        }
        /* A connection that is reset while it shakes hands is dialed again only after a backoff:
         * now and then wait for that, else most resets would find nothing to reset. */
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
    n.ends[1].on_message = net_check_message;
    n.ends[1].arg = &t;
    n.cut = true;
    net_reset_all(&n);
    for (int i = 0; i < 100; i++) {
        net_send_one(&n, 0, n.ends[0].session, &t);
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

static void a_process_that_slept_does_not_take_its_peers_for_dead(void **state)
{
    struct net n;
    (void)state;
    net_pair(&n, 16);
    n.now += 74000000; /* the whole machine stood still: nothing moved, all clocks did */
    for (int end = 0; end < 2; end++) {
        td_link_tick(n.ends[end].link, n.now);
        net_drain(&n, end);
    }
    net_run(&n, 20000000);
    assert_int_equal(n.ends[0].losts + n.ends[1].losts, 0);
    n.cut = true;
    net_run(&n, 11000000);
    assert_int_equal(n.ends[0].losts, 1);
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
    n.ends[0].on_message = n.ends[2].on_message = net_check_message;
    n.ends[0].arg = &t[0];
    n.ends[2].arg = &t[1];
    for (int i = 0; i < 200; i++) {
        net_send_one(&n, 1, n.ends[1].sessions[0], &t[0]);
        net_send_one(&n, 1, n.ends[1].sessions[2], &t[1]);
        net_run(&n, 1000);
    }
    net_kill(&n, 2);
    for (int i = 0; i < 200; i++) {
        net_send_one(&n, 1, n.ends[1].sessions[0], &t[0]);
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

#define T(name) cmocka_unit_test(name)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(messages_of_all_sizes_arrive_once_and_in_order),
        T(nothing_is_lost_or_doubled_over_thousands_of_resets),
        T(a_session_resumes_after_nine_seconds),
        T(a_session_is_lost_at_both_ends_after_eleven_seconds),
        T(an_idle_link_stays_up_by_heartbeats),
        T(silence_of_ten_seconds_ends_the_session),
        T(a_process_that_slept_does_not_take_its_peers_for_dead),
        T(a_restarted_node_ends_the_old_session_at_once),
        T(a_restarted_router_ends_the_old_session_at_once),
        T(a_refused_redial_means_that_the_process_has_ended),
        T(a_closed_session_ends_at_the_peer_with_the_reason),
        T(a_removed_target_ends_its_session_and_is_not_dialed),
        T(two_routers_share_a_node),
        T(one_node_at_two_addresses_gets_one_session),
        T(small_messages_overtake_a_big_one),
        T(a_small_message_does_not_overtake_a_big_one_of_its_own_key),
        T(a_big_message_is_not_starved_by_small_ones),
        T(the_queue_is_bounded_and_usable_again_after_acknowledgements),
        T(what_is_in_flight_never_exceeds_the_window),
        T(messages_beyond_the_bounds_are_refused_at_the_door),
        T(times_follow_the_scale),
        T(creation_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
