/* Messages and events nobody should send: fields drawn from what is known, what is nearly known and
 * what is random. The rig checks invariants and deadlines after each; afterwards everything is free. */
#include "common/node/core.h"

#include "common/base/log.h"
#include "common/base/rng.h"
#include "decode-node/dc_core.h"
#include "prefill-node/pf_core.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define P 0u
#define D 1u
#define N 12u

struct liar {
    struct rig *r;
    struct td_rng g;
    struct td_wire_request q[N];
};

static uint64_t roll(struct liar *l, uint64_t n)
{
    return td_rng_below(&l->g, n);
}

/* Mostly the truth, sometimes its neighbour, sometimes anything. */
static uint64_t bend(struct liar *l, uint64_t truth)
{
    switch (roll(l, 8)) {
    case 0:
        return truth + 1;
    case 1:
        return truth - 1;
    case 2:
        return td_rng_next(&l->g);
    case 3:
        return roll(l, 3);
    default:
        return truth;
    }
}

static struct td_work_id some_id(struct liar *l)
{
    struct td_work_id id = l->q[roll(l, N)].id;
    id.attempt = (uint32_t)bend(l, id.attempt);
    return id;
}

/* The land of that work, if decode has told one. */
static uint64_t some_land(struct liar *l, const struct td_work_id *id)
{
    const struct td_wire_msg *m = rig_last(l->r, D, TD_WIRE_TABLE, id);
    return bend(l, m != NULL ? m->table.land : 0);
}

static struct td_wire_msg peer_lie(struct liar *l)
{
    static struct td_block_ref refs[128];
    struct td_work_id id = some_id(l);
    struct td_wire_msg m = {.type = (enum td_wire_type)(TD_WIRE_TABLE + roll(l, 4))};
    switch ((int)m.type) {
    case TD_WIRE_TABLE:
        m.table = (struct td_wire_table){.id = id,
                                         .ticket = {bend(l, 0xe000), bend(l, 0xe001), {0}, 60000},
                                         .land = some_land(l, &id),
                                         .layout_id = bend(l, RIG_LAYOUT_ID),
                                         .first_tok = (uint32_t)bend(l, 0),
                                         .n_tok = (uint32_t)bend(l, 100),
                                         .n_blocks = (uint32_t)roll(l, 128),
                                         .blocks = refs};
        m.table.ticket.nonce[0] = (uint8_t)id.counter;
        break;
    case TD_WIRE_RECORD:
        m.record = (struct td_wire_record){.id = id,
                                           .land = some_land(l, &id),
                                           .p_epoch = bend(l, 0xe000),
                                           .d_epoch = bend(l, 0xe001),
                                           .layout_id = bend(l, RIG_LAYOUT_ID),
                                           .numerics_id = bend(l, RIG_NUMERICS),
                                           .n_tok = (uint32_t)bend(l, 100),
                                           .n_slices = (uint32_t)bend(l, 21),
                                           .first_token = (int32_t)bend(l, 5),
                                           .finish = (enum td_finish)roll(l, 5),
                                           .seed = bend(l, id.counter + 5),
                                           .stages.transport = ""};
        break;
    case TD_WIRE_TAKEN:
        m.taken = (struct td_wire_taken){.id = id, .err = roll(l, 2) ? TD_OK : TD_ERR_STALE};
        break;
    default:
        m.abort = (struct td_wire_abort){.id = id, .land = some_land(l, &id), .err = TD_ERR_LEASE};
    }
    return m;
}

static struct td_wire_msg router_lie(struct liar *l)
{
    struct td_wire_request q = l->q[roll(l, N)];
    q.id = some_id(l);
    q.budget_ms = (uint32_t)bend(l, q.budget_ms);
    q.n_replayed = (uint32_t)bend(l, 0);
    q.kv_group = (uint32_t)(roll(l, 8) == 0);
    q.layout_id = bend(l, q.layout_id);
    q.priority = (int32_t)bend(l, 0);
    q.sampling.max_tokens = (uint32_t)bend(l, q.sampling.max_tokens);
    q.sampling.n_stop_ids = (uint32_t)bend(l, 0);
    struct td_wire_msg m = roll(l, 2) ? rig_prefill(l->r, P, D, &q) : rig_reserve(l->r, P, D, &q);
    if (roll(l, 4) == 0) {
        m = rig_cancel(&q.id);
    } else if (m.type == TD_WIRE_PREFILL) {
        m.prefill.ticket.life_ms = (uint32_t)bend(l, 60000);
        m.prefill.ticket.p_epoch = bend(l, 0xe000);
    } else {
        m.reserve.mode = (enum td_reserve_mode)roll(l, 4);
        m.reserve.p_address_len = roll(l, 3) == 0 ? 0 : m.reserve.p_address_len;
        m.reserve.ticket.d_epoch = bend(l, 0xe001);
    }
    return m;
}

static void xfer_lie(struct liar *l, uint32_t node)
{
    static const enum td_xfer_event_type types[] = {TD_XFER_LANDED, TD_XFER_LAND_BAD,
                                                    TD_XFER_PUSHED, TD_XFER_UNLANDED};
    struct td_work_id id = some_id(l);
    struct td_xfer_event ev = {.type = types[roll(l, 4)],
                               .land = td_rng_next(&l->g),
                               .push = roll(l, 2) ? td_rng_next(&l->g) : roll(l, 64) << 44 | 1,
                               .n_slices = (uint32_t)bend(l, 3),
                               .n_bytes = 5};
    if (ev.type == TD_XFER_LANDED || ev.type == TD_XFER_LAND_BAD) {
        ev.land = some_land(l, &id); /* bytes of a peer may come at any time */
    }
    rig_xfer(l->r, node, &ev);
}

static void lie(struct liar *l)
{
    uint32_t node = (uint32_t)roll(l, 2);
    struct td_wire_msg m;
    switch (roll(l, 6)) {
    case 0:
    case 1:
        m = peer_lie(l);
        rig_peer_msg(l->r, node, bend(l, node == P ? 0xe001 : 0xe000), &m);
        break;
    case 2:
        m = router_lie(l);
        rig_msg(l->r, node, &m, roll(l, 16) == 0 ? TD_ERR_UNKNOWN_REQUIRES : TD_OK);
        break;
    case 3:
        xfer_lie(l, node);
        break;
    case 4:
        rig_pass(l->r, (int64_t)roll(l, 500000));
        break;
    default:
        (void)rig_finish(l->r, node);
    }
    rig_deliver(l->r);
}

static void lies_never_break_an_invariant_or_outlive_their_bounds(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct liar l = {.r = rig_create(), .g = {seed}};
        struct rig_params p = {.n_blocks = 64, .chunk = 32, .max_queue = 16};
        assert_int_equal(rig_add(l.r, &pf_role_ops, &p), P);
        assert_int_equal(rig_add(l.r, &dc_role_ops, &p), D);
        for (uint32_t i = 0; i < N; i++) {
            l.q[i] = rig_request(i, 100, 8 + i);
            l.q[i].budget_ms = 20000;
        }
        for (uint32_t i = 0; i < 600; i++) {
            if (i % 50 == 0) {
                rig_ask(l.r, P, D, &l.q[i / 50]);
            }
            lie(&l);
        }
        rig_settle(l.r);
        rig_pass(l.r, (int64_t)26 * 3600 * RIG_SECOND); /* a lied budget may be a day */
        rig_settle(l.r);
        assert_int_equal(pf_role_ops.work_count(l.r->node[P].core), 0);
        assert_int_equal(dc_role_ops.work_count(l.r->node[D].core), 0);
        assert_int_equal(rig_blocks(l.r, P, TD_BLK_FREE), 64);
        assert_int_equal(rig_blocks(l.r, D, TD_BLK_FREE), 64);
        (void)rig_destroy(l.r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lies_never_break_an_invariant_or_outlive_their_bounds),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/hostile", tests, NULL, NULL);
}
