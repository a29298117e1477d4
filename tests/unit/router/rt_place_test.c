/* Placement: the predictor against round robin on the same seeded arrivals, and the refusals with
 * their reasons. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/rt_place.h"

static struct rt_node *add(struct rt_nodes *ns, uint64_t epoch, enum td_role role,
                           uint32_t us_per_ktok)
{
    static const uint8_t addr[1] = {1};
    struct td_wire_rank rank = {.address = addr, .address_len = 1};
    struct td_wire_node_info i = {.epoch = epoch,
                                  .name = "n",
                                  .role = role,
                                  .layout = {.id = 1, .block_tok = 16},
                                  .max_model_len = 8192,
                                  .n_blocks = 10000,
                                  .max_seqs = 64,
                                  .n_ranks = 1,
                                  .ranks = &rank};
    struct rt_node *n = NULL;
    assert_int_equal(rt_nodes_up(ns, &i, &n), TD_OK);
    struct td_wire_state s = {.seq = 1,
                              .full = true,
                              .ready = true,
                              .role = role,
                              .prefill_us_per_ktok = us_per_ktok,
                              .decode_step_us = 1000};
    s.blocks[TD_BLK_FREE] = 10000;
    assert_true(rt_node_report(n, &s));
    return n;
}

/* Three prefill nodes, one of them four times slower; Poisson-like arrivals of mixed prompts.
 * Returns the mean time to the first token. The nodes' queues are modelled exactly and reported
 * every 50 ms, late as in life. */
static double mean_ttft(enum rt_policy policy, uint64_t seed)
{
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    struct rt_decision *dec = td_zalloc(1, sizeof *dec);
    struct rt_placer pl = {.policy = policy, .max_node_queue = 1000};
    struct rt_node *p[3];
    int64_t free_at[3] = {0, 0, 0}, now = 0, next_report = 0;
    static const uint32_t cost[3] = {100000, 100000, 400000};
    for (uint32_t i = 0; i < 3; i++) {
        p[i] = add(ns, 10 + i, TD_ROLE_PREFILL, cost[i]);
    }
    (void)add(ns, 99, TD_ROLE_DECODE, 0);
    struct td_rng rng = {.state = seed};
    double sum = 0;
    for (int k = 0; k < 2000; k++) {
        now += (int64_t)td_rng_below(&rng, 80000);
        uint32_t n = 50 + (uint32_t)td_rng_below(&rng, td_rng_below(&rng, 10) == 0 ? 4000 : 400);
        for (uint32_t i = 0; now >= next_report && i < 3; i++) {
            int64_t left = free_at[i] > now ? free_at[i] - now : 0;
            struct td_wire_state s = p[i]->state;
            s.seq++;
            s.queued_prompt_tok = (uint64_t)left * 1000u / cost[i];
            (void)rt_node_report(p[i], &s);
        }
        next_report = now >= next_report ? now + 50000 : next_report;
        struct rt_place_request r = {.n_prompt = n, .max_output = 64};
        assert_int_equal(rt_place(&pl, ns, &r, dec), TD_OK);
        uint32_t at = (uint32_t)(dec->p->epoch - 10);
        dec->p->unreported_tok += n;
        int64_t start = free_at[at] > now ? free_at[at] : now;
        free_at[at] = start + (int64_t)n * cost[at] / 1000;
        sum += (double)(free_at[at] - now);
    }
    free(ns);
    free(dec);
    return sum / 2000;
}

static void the_predictor_beats_round_robin(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        double predict = mean_ttft(RT_POLICY_PREDICT, seed),
               rr = mean_ttft(RT_POLICY_ROUND_ROBIN, seed);
        assert_true(predict * 1.5 < rr);
    }
}

static td_err place_one(struct rt_nodes *ns, uint32_t n_prompt)
{
    static struct rt_decision dec;
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = n_prompt, .max_output = 16};
    return rt_place(&pl, ns, &r, &dec);
}

static void refusals_name_their_reason(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    assert_int_equal(place_one(ns, 10), TD_ERR_NO_NODE);
    struct rt_node *p = add(ns, 1, TD_ROLE_PREFILL, 1), *d = add(ns, 2, TD_ROLE_DECODE, 1);
    assert_int_equal(place_one(ns, 10), TD_OK);
    assert_int_equal(place_one(ns, 8192), TD_ERR_CONTEXT_LENGTH);
    d->n_blocks = 4;
    assert_int_equal(place_one(ns, 100), TD_ERR_CONTEXT_LENGTH); /* no pool will ever hold it */
    d->n_blocks = 100;
    p->inflight = 4;
    assert_int_equal(place_one(ns, 10), TD_ERR_OVERLOADED);
    p->inflight = 0;
    p->numerics_id = 5;
    assert_int_equal(place_one(ns, 10), TD_ERR_NO_PAIR);
    p->numerics_id = 0;
    d->state.draining = true;
    assert_int_equal(place_one(ns, 10), TD_ERR_NO_NODE);
    free(ns);
}

static void a_node_that_failed_the_request_is_the_last_choice(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    (void)add(ns, 1, TD_ROLE_PREFILL, 1);
    (void)add(ns, 2, TD_ROLE_PREFILL, 1000000);
    (void)add(ns, 3, TD_ROLE_DECODE, 1);
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 10, .max_output = 16, .avoid = {1}};
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    assert_int_equal(dec.p->epoch, 2);
    rt_nodes_down(ns, 2);
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    assert_int_equal(dec.p->epoch, 1);
    free(ns);
}

static void a_full_decode_node_is_passed_over(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    (void)add(ns, 1, TD_ROLE_PREFILL, 1000);
    struct rt_node *full = add(ns, 2, TD_ROLE_DECODE, 1);
    (void)add(ns, 3, TD_ROLE_DECODE, 1);
    full->state.blocks[TD_BLK_FREE] = 0;
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 100, .max_output = 16};
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    assert_int_equal(dec.d->epoch, 3);
    free(ns);
}

static bool kept(const struct rt_decision *d, uint64_t p, uint64_t dd)
{
    for (uint32_t i = 0; i < RT_MAX_CANDIDATES && i < d->n_candidates; i++) {
        if (d->candidates[i].p_epoch == p && d->candidates[i].d_epoch == dd) {
            return true;
        }
    }
    return false;
}

static void of_more_pairs_than_fit_the_best_are_kept(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    for (uint32_t i = 0; i < 20; i++) { /* the later the better, so each newcomer replaces one */
        (void)add(ns, 100 + i, TD_ROLE_PREFILL, 1000 * (20 - i));
        (void)add(ns, 200 + i, TD_ROLE_DECODE, 1);
    }
    struct rt_node *slow = rt_nodes_find(ns, 200);
    slow->state.decode_step_us = 1000000;
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 1000, .max_output = 16};
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    assert_int_equal(dec.n_candidates, 400);
    assert_int_equal(dec.p->epoch, 119);
    assert_true(kept(&dec, dec.p->epoch, dec.d->epoch));
    assert_true(kept(&dec, 119, 219) && kept(&dec, 118, 219));
    assert_false(kept(&dec, 100, 201));
    for (uint32_t i = 0; i < RT_MAX_CANDIDATES; i++) {
        assert_int_not_equal(dec.candidates[i].d_epoch, 200); /* the slow one */
    }
    free(ns);
}

static void round_robin_takes_each_of_many_pairs_in_turn(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    uint8_t seen[100] = {0};
    for (uint32_t i = 0; i < 10; i++) {
        (void)add(ns, 100 + i, TD_ROLE_PREFILL, 1000);
        (void)add(ns, 200 + i, TD_ROLE_DECODE, 1);
    }
    struct rt_placer pl = {.policy = RT_POLICY_ROUND_ROBIN, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 10, .max_output = 16};
    for (int k = 0; k < 100; k++) {
        assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
        seen[(dec.p->epoch - 100) * 10 + dec.d->epoch - 200]++;
    }
    for (int k = 0; k < 100; k++) {
        assert_int_equal(seen[k], 1);
    }
    free(ns);
}

static void a_candidate_carries_the_numbers_it_was_judged_by(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    struct rt_node *p = add(ns, 1, TD_ROLE_PREFILL, 100000), *d = add(ns, 2, TD_ROLE_DECODE, 1);
    p->pending_tok = 500;
    d->inflight = 3;
    d->state.blocks[TD_BLK_FREE] = 40;
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 100, .max_output = 16, .avoid = {2}};
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    const struct rt_candidate *c = &dec.candidates[0];
    assert_int_equal(c->waiting_tok, 500);
    assert_int_equal(c->prefill_us, 60000);
    assert_int_equal(c->free_blk, 40);
    assert_int_equal(c->need_blk, 7);
    assert_int_equal(c->d_run, 3);
    assert_true(c->avoided);
    d->n_blocks = 2; /* numbers also beside a refusal */
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_CONTEXT_LENGTH);
    assert_int_equal(dec.candidates[0].excluded, TD_ERR_NO_CAPACITY);
    assert_int_equal(dec.candidates[0].need_blk, 7);
    free(ns);
}

static void a_node_without_link_gets_nothing_and_is_waited_for(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    (void)add(ns, 1, TD_ROLE_PREFILL, 1);
    struct rt_node *d = add(ns, 2, TD_ROLE_DECODE, 1), *full = add(ns, 3, TD_ROLE_DECODE, 1);
    struct rt_place_request r = {.n_prompt = 10, .max_output = 2};
    d->detached = true;
    for (unsigned policy = RT_POLICY_PREDICT; policy <= RT_POLICY_ROUND_ROBIN; policy++) {
        struct rt_placer pl = {.policy = policy, .max_node_queue = 4};
        for (int k = 0; k < 4; k++) {
            assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
            assert_int_equal(dec.d->epoch, 3);
            assert_int_equal(dec.n_candidates, 1);
        }
    }
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    full->inflight = 1000;
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_OVERLOADED);
    rt_nodes_down(ns, 3);
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_OVERLOADED);
    assert_null(dec.d);
    r.only_d = 2; /* a probe does not wait */
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_NO_NODE);
    r.only_d = 0;
    d->held = true; /* would not take it anyway */
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_NO_NODE);
    d->held = d->detached = false;
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    free(ns);
}

static void a_pinned_request_sees_its_pair_only(void **state)
{
    (void)state;
    struct rt_nodes *ns = td_zalloc(1, sizeof *ns);
    static struct rt_decision dec;
    (void)add(ns, 1, TD_ROLE_PREFILL, 1);
    (void)add(ns, 2, TD_ROLE_PREFILL, 1000000);
    (void)add(ns, 3, TD_ROLE_DECODE, 1);
    struct rt_placer pl = {.policy = RT_POLICY_PREDICT, .max_node_queue = 4};
    struct rt_place_request r = {.n_prompt = 10, .max_output = 2, .only_p = 2, .only_d = 3};
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_OK);
    assert_int_equal(dec.p->epoch, 2);
    assert_int_equal(dec.n_candidates, 1);
    r.only_d = 1;
    assert_int_equal(rt_place(&pl, ns, &r, &dec), TD_ERR_NO_NODE);
    free(ns);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_predictor_beats_round_robin),
        cmocka_unit_test(refusals_name_their_reason),
        cmocka_unit_test(a_node_that_failed_the_request_is_the_last_choice),
        cmocka_unit_test(a_full_decode_node_is_passed_over),
        cmocka_unit_test(of_more_pairs_than_fit_the_best_are_kept),
        cmocka_unit_test(round_robin_takes_each_of_many_pairs_in_turn),
        cmocka_unit_test(a_node_without_link_gets_nothing_and_is_waited_for),
        cmocka_unit_test(a_pinned_request_sees_its_pair_only),
        cmocka_unit_test(a_candidate_carries_the_numbers_it_was_judged_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
