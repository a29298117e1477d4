/* The two role cores against each other: no sockets, no threads, tokens that prove which KV was
 * read. tests/sim does the same at scale and with faults of links. */
#include "common/node/core.h"

#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/rng.h"
#include "decode-node/dc_core.h"
#include "prefill-node/pf_core.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define P 0u
#define D 1u

static struct rig *pair_of(const struct rig_params *p, const struct rig_params *d)
{
    static const struct rig_params none = {0};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, p != NULL ? p : &none), P);
    assert_int_equal(rig_add(r, &dc_role_ops, d != NULL ? d : &none), D);
    return r;
}

static void assert_both_idle(const struct rig *r)
{
    rig_assert_idle(r, P);
    rig_assert_idle(r, D);
}

static void assert_ended(const struct rig *r, uint32_t node, const struct td_work_id *id, td_err e)
{
    const struct td_wire_end *end = rig_end(r, node, id);
    assert_non_null(end);
    assert_string_equal(td_err_code(end->err), td_err_code(e));
}

static void one_request_gives_the_tokens_of_one_engine(void **state)
{
    (void)state;
    struct rig *r = pair_of(NULL, NULL);
    struct td_wire_request q = rig_request(1, 200, 40);
    rig_ask(r, P, D, &q);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 40);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_LENGTH);
    assert_ended(r, P, &q.id, TD_OK);
    assert_ended(r, D, &q.id, TD_OK);
    const struct td_wire_stages *g = &rig_end(r, P, &q.id)->stages;
    assert_int_equal(g->prompt_tokens, 200);
    assert_int_equal(g->kv_bytes, 13 * RIG_LAYERS * RIG_BLOCK * 8);
    assert_string_equal(g->transport, "rig");
    assert_true(g->prefill_us > 0);
    g = &rig_end(r, D, &q.id)->stages;
    assert_int_equal(g->output_tokens, 40);
    assert_true(g->decode_us > 0 && g->prefill_us > 0);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

static void many_requests_share_batches_and_keep_their_tokens(void **state)
{
    enum { N = 40 };
    static const uint32_t chunks[] = {16, 48, 128};
    (void)state;
    for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++) {
        struct rig_params p = {.chunk = chunks[k]};
        struct rig *r = pair_of(&p, NULL);
        struct td_wire_request q[N];
        for (uint32_t i = 0; i < N; i++) {
            q[i] = rig_request(i, 1 + (i * 37) % 150, 1 + (i * 13) % 30);
            rig_ask(r, P, D, &q[i]);
        }
        rig_settle(r);
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(rig_tokens(r, &q[i]), 1 + (i * 13) % 30);
            assert_ended(r, P, &q[i].id, TD_OK);
            assert_ended(r, D, &q[i].id, TD_OK);
        }
        assert_both_idle(r);
        (void)rig_destroy(r);
    }
}

static void alone_and_split_give_the_same(void **state)
{
    struct rig_params both = {.local_prefill = true};
    (void)state;
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &dc_role_ops, &both), 0);
    struct td_wire_request q[10];
    for (uint32_t i = 0; i < 10; i++) {
        q[i] = rig_request(i, 20 + i * 31, 25);
        struct td_wire_msg m = rig_reserve_local(&q[i]);
        rig_msg(r, 0, &m, TD_OK);
    }
    rig_settle(r);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(rig_tokens(r, &q[i]), 25);
        assert_ended(r, 0, &q[i].id, TD_OK);
    }
    rig_assert_idle(r, 0);
    assert_int_equal(rig_state(r, 0).role, TD_ROLE_BOTH);
    (void)rig_destroy(r);
}

static void a_request_may_end_with_its_first_token(void **state)
{
    (void)state;
    struct rig *r = pair_of(NULL, NULL);
    struct td_wire_request one = rig_request(1, 100, 1);
    struct td_wire_request stop = rig_request(2, 100, 50);
    stop.sampling.n_stop_ids = 1;
    stop.sampling.stop_ids[0] = rig_expect(&stop, 0);
    rig_ask(r, P, D, &one);
    rig_ask(r, P, D, &stop);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &one), 1);
    assert_int_equal(rig_finish_of(r, &one.id), TD_FINISH_LENGTH);
    assert_int_equal(rig_tokens(r, &stop), 1);
    assert_int_equal(rig_finish_of(r, &stop.id), TD_FINISH_STOP);
    assert_ended(r, P, &stop.id, TD_OK);
    assert_ended(r, D, &stop.id, TD_OK);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

static void a_stop_token_before_min_tokens_does_not_end(void **state)
{
    (void)state;
    struct rig *r = pair_of(NULL, NULL);
    struct td_wire_request q = rig_request(3, 50, 30);
    q.sampling.n_stop_ids = 2;
    q.sampling.stop_ids[0] = rig_expect(&q, 2);
    q.sampling.stop_ids[1] = rig_expect(&q, 9);
    q.sampling.min_tokens = 5;
    rig_ask(r, P, D, &q);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 10);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_STOP);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

static void a_full_decode_node_lets_the_kv_park_and_come_later(void **state)
{
    struct rig_params small = {.n_blocks = 20};
    (void)state;
    struct rig *r = pair_of(NULL, &small);
    struct td_wire_request first = rig_request(1, 250, 20); /* 16 blocks, grows to 17 */
    struct td_wire_request later = rig_request(2, 100, 20);
    rig_ask(r, P, D, &first);
    rig_ask(r, P, D, &later);
    rig_deliver(r);
    while (rig_finish(r, P)) {
    }
    assert_string_equal(rig_wait(r, P, &later.id), "decode's block table");
    assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), 7);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &first), 20);
    assert_int_equal(rig_tokens(r, &later), 20);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

static void a_replay_continues_where_the_last_attempt_stopped(void **state)
{
    int32_t ids[64];
    (void)state;
    struct rig *r = pair_of(NULL, NULL);
    struct td_wire_request whole = rig_request(4, 40, 20);
    for (uint32_t i = 0; i < 40; i++) {
        ids[i] = whole.prompt[i];
    }
    for (uint32_t i = 0; i < 7; i++) {
        ids[40 + i] = rig_expect(&whole, i);
    }
    struct td_wire_request rest = whole;
    rest.prompt = ids;
    rest.n_prompt = 47;
    rest.n_replayed = 7;
    rest.id.attempt = 1;
    rig_ask(r, P, D, &rest);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &rest), 13);
    assert_int_equal(r->node[P].output_pos, 40); /* the engine is told where its output began */
    assert_int_equal(rig_finish_of(r, &rest.id), TD_FINISH_LENGTH);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

/* Cancel at every moment of a request's life, on both nodes, twice: acknowledged each time, all
 * blocks back, no token afterwards. */
static void a_cancel_at_any_moment_gives_everything_back(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 60; moment++) {
        struct rig_params p = {.chunk = 16};
        struct rig *r = pair_of(&p, NULL);
        struct td_wire_request q = rig_request(1, 200, 30);
        struct td_wire_msg cancel = rig_cancel(&q.id);
        rig_ask(r, P, D, &q);
        rig_deliver(r);
        for (uint32_t i = 0; i < moment; i++) {
            (void)rig_finish(r, i % 3 == 2 ? P : D);
            (void)rig_finish(r, P);
        }
        uint32_t before = rig_tokens(r, &q);
        for (int twice = 0; twice < 2; twice++) {
            rig_msg(r, P, &cancel, TD_OK);
            rig_msg(r, D, &cancel, TD_OK);
            rig_deliver(r);
        }
        rig_settle(r);
        assert_int_equal(rig_tokens(r, &q), before);
        assert_int_equal(rig_count(r, P, TD_WIRE_CANCEL_ACK, &q.id), 2);
        assert_int_equal(rig_count(r, D, TD_WIRE_CANCEL_ACK, &q.id), 2);
        assert_non_null(rig_end(r, P, &q.id));
        assert_non_null(rig_end(r, D, &q.id));
        assert_both_idle(r);
        (void)rig_destroy(r);
    }
}

static void a_cancel_ahead_of_its_request_stops_it_there(void **state)
{
    (void)state;
    struct rig *r = pair_of(NULL, NULL);
    struct td_wire_request q = rig_request(1, 100, 30);
    struct td_wire_msg cancel = rig_cancel(&q.id);
    rig_msg(r, P, &cancel, TD_OK);
    rig_msg(r, D, &cancel, TD_OK);
    rig_ask(r, P, D, &q);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &q), 0);
    assert_ended(r, P, &q.id, TD_ERR_CANCELLED);
    assert_ended(r, D, &q.id, TD_ERR_CANCELLED);
    assert_both_idle(r);
    (void)rig_destroy(r);
}

/* Either node dies after any number of steps: the other ends or finishes, and is idle within the
 * bound. */
static void a_death_at_any_moment_leaves_the_other_clean(void **state)
{
    (void)state;
    for (uint32_t moment = 0; moment < 40; moment++) {
        uint32_t victim = moment % 2 == 0 ? P : D;
        struct rig_params p = {.chunk = 16};
        struct rig *r = pair_of(&p, NULL);
        struct td_wire_request q[3] = {rig_request(1, 200, 10), rig_request(2, 90, 10),
                                       rig_request(3, 17, 10)};
        for (int i = 0; i < 3; i++) {
            rig_ask(r, P, D, &q[i]);
        }
        rig_deliver(r);
        for (uint32_t i = 0; i < moment / 2; i++) {
            (void)rig_finish(r, P);
            (void)rig_finish(r, i % 2 == 0 ? D : P);
        }
        rig_kill(r, victim);
        rig_settle(r);
        rig_pass(r, 61 * RIG_SECOND);
        rig_assert_idle(r, victim == P ? D : P);
        for (int i = 0; i < 3; i++) {
            const struct td_wire_end *end = rig_end(r, victim == P ? D : P, &q[i].id);
            assert_non_null(end);
            assert_true(end->err == TD_OK || td_err_retryable(end->err));
            (void)rig_tokens(r, &q[i]);
        }
        (void)rig_destroy(r);
    }
}

/* Any message of the hand-over is lost: both sides end within their bounds, nothing stays. */
static void a_lost_message_of_the_hand_over_is_noticed(void **state)
{
    static const enum td_wire_type lost[] = {TD_WIRE_TABLE, TD_WIRE_RECORD, TD_WIRE_TAKEN};
    (void)state;
    for (size_t k = 0; k < sizeof lost / sizeof lost[0]; k++) {
        struct rig *r = pair_of(NULL, NULL);
        struct td_wire_request q = rig_request(1, 100, 8);
        r->drop = 1u << lost[k];
        rig_ask(r, P, D, &q);
        rig_settle(r);
        r->drop = 0;
        rig_pass(r, 61 * RIG_SECOND);
        assert_non_null(rig_end(r, P, &q.id));
        assert_non_null(rig_end(r, D, &q.id));
        if (lost[k] == TD_WIRE_RECORD) {
            assert_ended(r, D, &q.id, TD_ERR_LEASE); /* prefill's lease notices */
        }
        assert_both_idle(r);
        (void)rig_destroy(r);
    }
}

static void random_pick(struct rig *r, struct td_rng *g, struct td_wire_request *q, uint32_t n)
{
    struct td_wire_request *one = &q[td_rng_below(g, n)];
    struct td_wire_msg cancel = rig_cancel(&one->id);
    uint32_t node = (uint32_t)td_rng_below(g, r->n_nodes);
    switch (td_rng_below(g, 13)) {
    case 0:
        rig_msg(r, P, &cancel, TD_OK);
        rig_msg(r, D, &cancel, TD_OK);
        break;
    case 1:
        rig_pass(r, (int64_t)td_rng_below(g, 3) * RIG_SECOND);
        break;
    case 2:
        r->node[node].hold_pushes = !r->node[node].hold_pushes;
        rig_post(r, node);
        break;
    case 3:
        r->node[node].fail_rows = td_rng_below(g, 4) == 0;
        break;
    case 4:
        r->drop = td_rng_below(g, 4) == 0 ? 1u << (TD_WIRE_TABLE + td_rng_below(g, 4)) : 0;
        break;
    case 6:
        r->node[D].hold_unlanded = !r->node[D].hold_unlanded;
        if (!r->node[D].hold_unlanded) {
            rig_fence(r, D);
        }
        break;
    case 5:
        if (td_rng_below(g, 6) == 0) {
            rig_lose(r, node, r->node[node == P ? D : P].epoch);
        }
        break;
    default:
        (void)rig_finish(r, node);
    }
}

/* Hundreds of random histories; check() and waits() after every event (rig.c), the tokens that came
 * are right, and in the end everything is free. */
static void random_histories_end_with_everything_free(void **state)
{
    enum { N = 24 };
    (void)state;
    const char *more = getenv("RIG_SEEDS"); /* a soak by hand */
    uint64_t last = more != NULL ? strtoull(more, NULL, 10) : 150;
    for (uint64_t seed = 1; seed <= last; seed++) {
        struct td_rng g = {seed};
        struct rig_params p = {.n_blocks = 64, .chunk = 32, .max_seqs = 6};
        struct rig_params d = {.n_blocks = 40 + (uint32_t)(seed % 40), .max_seqs = 5};
        struct rig *r = pair_of(&p, &d);
        struct td_wire_request q[N];
        for (uint32_t i = 0; i < N; i++) {
            q[i] = rig_request(i, 1 + (uint32_t)td_rng_below(&g, 180),
                               1 + (uint32_t)td_rng_below(&g, 60));
            q[i].priority = (int32_t)td_rng_below(&g, 3);
            q[i].budget_ms = 2000 + (uint32_t)td_rng_below(&g, 40000);
        }
        for (uint32_t i = 0; i < N; i++) {
            rig_ask(r, P, D, &q[i]);
            rig_deliver(r);
            for (int k = 0; k < 8; k++) {
                random_pick(r, &g, q, N);
                rig_deliver(r);
            }
        }
        for (uint32_t node = 0; node < 2; node++) {
            r->node[node].hold_pushes = false;
            r->node[node].fail_rows = false;
            r->node[node].hold_unlanded = false;
            rig_post(r, node);
            rig_fence(r, node);
        }
        r->drop = 0;
        rig_settle(r);
        rig_pass(r, 61 * RIG_SECOND);
        rig_settle(r);
        for (uint32_t i = 0; i < N; i++) {
            (void)rig_tokens(r, &q[i]);
            assert_non_null(rig_end(r, P, &q[i].id));
            assert_non_null(rig_end(r, D, &q[i].id));
        }
        assert_both_idle(r);
        (void)rig_destroy(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_gives_the_tokens_of_one_engine),
        cmocka_unit_test(many_requests_share_batches_and_keep_their_tokens),
        cmocka_unit_test(alone_and_split_give_the_same),
        cmocka_unit_test(a_request_may_end_with_its_first_token),
        cmocka_unit_test(a_stop_token_before_min_tokens_does_not_end),
        cmocka_unit_test(a_full_decode_node_lets_the_kv_park_and_come_later),
        cmocka_unit_test(a_replay_continues_where_the_last_attempt_stopped),
        cmocka_unit_test(a_cancel_at_any_moment_gives_everything_back),
        cmocka_unit_test(a_cancel_ahead_of_its_request_stops_it_there),
        cmocka_unit_test(a_death_at_any_moment_leaves_the_other_clean),
        cmocka_unit_test(a_lost_message_of_the_hand_over_is_noticed),
        cmocka_unit_test(random_histories_end_with_everything_free),
    };
    td_log_set_level(getenv("RIG_LOG") != NULL ? TD_LOG_DEBUG : TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/pair", tests, NULL, NULL);
}
