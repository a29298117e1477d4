/* The decode core alone: every state against every event, with a prefill node that exists only as
 * messages; then room, shortage and the batch. Covers dc_seq.c, dc_land.c, dc_room.c, dc_batch.c. */
#include "decode-node/dc_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define D     0u
#define P     1u /* not there */
#define PEER  0xe001u
#define OTHER 0xe009u

enum at { QUEUED, LANDING, FLOWING, RECORDED, READY, RUNNING, PREFILL, ENDING, STATES };
static const char *const names[STATES] = {"queued", "landing", "flowing", "recorded",
                                          "ready",  "running", "prefill", "ending"};
static const char *const waits[STATES] = {
    "room in the pool",
    "slices and record from prefill",
    "slices and record from prefill",
    "slices and record from prefill",
    "a place in the batch",
    "its next token",
    "its chunks to be computed",
    "its step to end and its land to be fenced",
};

/* Every test runs with one step in flight, and with two. */
static uint32_t steps_in_flight;

static int one_step(void **state)
{
    (void)state;
    steps_in_flight = 1;
    return 0;
}

static int two_steps(void **state)
{
    (void)state;
    steps_in_flight = 2;
    return 0;
}

static struct rig *one(const struct rig_params *p)
{
    struct rig *r = rig_create();
    struct rig_params q = *p;
    q.steps_in_flight = steps_in_flight;
    assert_int_equal(rig_add(r, &dc_role_ops, &q), D);
    return r;
}

static uint64_t land_of(const struct rig *r, const struct td_work_id *id)
{
    const struct td_wire_msg *m = rig_last(r, D, TD_WIRE_TABLE, id);
    assert_non_null(m);
    return m->table.land;
}

/* The land is called by the id of P's work. */
static void say_slices(struct rig *r, const struct td_work_id *source, uint32_t slices)
{
    struct td_xfer_event ev = {.type = TD_XFER_LANDED,
                               .land = land_of(r, source),
                               .n_slices = slices,
                               .n_bytes = (uint64_t)slices * 128,
                               .transport = "rig"};
    rig_xfer(r, D, &ev);
    rig_deliver(r);
}

static void say_landed(struct rig *r, const struct td_wire_request *q, uint32_t slices)
{
    say_slices(r, &q->id, slices);
}

static struct td_wire_msg record_of(const struct rig *r, const struct td_wire_request *q)
{
    return (struct td_wire_msg){.type = TD_WIRE_RECORD,
                                .record = {.id = q->id,
                                           .land = land_of(r, &q->id),
                                           .p_epoch = PEER,
                                           .d_epoch = 0xe000,
                                           .layout_id = RIG_LAYOUT_ID,
                                           .numerics_id = RIG_NUMERICS,
                                           .n_tok = q->n_prompt,
                                           .n_slices = 2 * RIG_LAYERS,
                                           .first_token = rig_expect(q, 0),
                                           .seed = q->sampling.seed,
                                           .stages.transport = ""}};
}

static void say_record(struct rig *r, const struct td_wire_request *q)
{
    struct td_wire_msg m = record_of(r, q);
    rig_peer_msg(r, D, PEER, &m);
    rig_deliver(r);
}

static void reserve(struct rig *r, const struct td_wire_request *q)
{
    struct td_wire_msg m = rig_reserve(r, P, D, q);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
}

static void hand_over(struct rig *r, const struct td_wire_request *q)
{
    reserve(r, q);
    say_landed(r, q, 2 * RIG_LAYERS);
    say_record(r, q);
}

/* Brings a request into a state. */
static struct rig *bring(enum at state, struct td_wire_request *q)
{
    struct rig_params p = {.n_blocks = state == QUEUED ? 8 : 64,
                           .max_slots = state == READY ? 1 : 8,
                           .local_prefill = true};
    struct rig *r = one(&p);
    struct td_wire_request first = rig_request(2, 110, 10);
    *q = rig_request(1, 60, 10);
    switch (state) {
    case QUEUED:
        reserve(r, &first);
        reserve(r, q);
        break;
    case READY:
        hand_over(r, &first);
        hand_over(r, q);
        break;
    case RUNNING:
        hand_over(r, q);
        break;
    case PREFILL: {
        struct td_wire_msg m = rig_reserve_local(q);
        rig_msg(r, D, &m, TD_OK);
        rig_deliver(r);
        break;
    }
    case LANDING:
    case FLOWING:
    case RECORDED:
    case ENDING:
        reserve(r, q);
        if (state != LANDING) {
            say_landed(r, q, RIG_LAYERS);
        }
        if (state == RECORDED) {
            say_record(r, q);
        }
        if (state == ENDING) {
            struct td_wire_msg cancel = rig_cancel(&q->id);
            r->node[D].hold_unlanded = true;
            rig_msg(r, D, &cancel, TD_OK);
            rig_deliver(r);
        }
        break;
    case STATES:
        break;
    }
    assert_string_equal(rig_wait(r, D, &q->id), waits[state]);
    return r;
}

enum event {
    CANCEL,
    RECORD,
    RECORD_BAD,
    RECORD_FOREIGN,
    REST_LANDS,
    LAND_BAD,
    ABORT,
    ABORT_FOREIGN,
    PEER_LOST,
    STEP_FAILS,
    ROUTER_LOST,
    DRAINED,
    STALL,
    TIME,
    EVENTS
};
static const char *const events[EVENTS] = {
    "cancel",      "record",  "bad record",    "foreign record", "the rest lands",
    "bad slice",   "abort",   "foreign abort", "peer lost",      "step fails",
    "router lost", "drained", "stall",         "time passes"};

static uint64_t any_land(const struct rig *r, const struct td_wire_request *q)
{
    return rig_last(r, D, TD_WIRE_TABLE, &q->id) != NULL ? land_of(r, &q->id) : 0x100000001u;
}

static void fire_peer(struct rig *r, enum event e, const struct td_wire_request *q)
{
    struct td_wire_msg m = {0};
    if (e == RECORD || e == RECORD_BAD || e == RECORD_FOREIGN) {
        if (rig_last(r, D, TD_WIRE_TABLE, &q->id) == NULL) {
            return;
        }
        m = record_of(r, q);
        m.record.numerics_id += e == RECORD_BAD;
    } else {
        m = (struct td_wire_msg){
            .type = TD_WIRE_ABORT,
            .abort = {.id = q->id, .land = any_land(r, q), .err = TD_ERR_LEASE}};
    }
    rig_peer_msg(r, D, e == RECORD_FOREIGN || e == ABORT_FOREIGN ? OTHER : PEER, &m);
}

static void fire(struct rig *r, enum event e, const struct td_wire_request *q)
{
    struct td_wire_msg m;
    struct td_xfer_event bad = {.type = TD_XFER_LAND_BAD, .err = TD_ERR_KV_MISMATCH};
    switch (e) {
    case CANCEL:
        m = rig_cancel(&q->id);
        rig_msg(r, D, &m, TD_OK);
        break;
    case RECORD:
    case RECORD_BAD:
    case RECORD_FOREIGN:
    case ABORT:
    case ABORT_FOREIGN:
        fire_peer(r, e, q);
        break;
    case REST_LANDS:
        if (rig_last(r, D, TD_WIRE_TABLE, &q->id) != NULL) {
            say_landed(r, q, 2 * RIG_LAYERS);
        }
        break;
    case LAND_BAD:
        bad.land = any_land(r, q);
        rig_xfer(r, D, &bad);
        break;
    case PEER_LOST:
        rig_lose(r, D, PEER);
        break;
    case STEP_FAILS:
        r->node[D].fail_rows = true;
        (void)rig_finish(r, D);
        break;
    case ROUTER_LOST:
        rig_plain(r, D, ND_EV_ROUTER_LOST, 0);
        break;
    case DRAINED:
        rig_plain(r, D, ND_EV_DRAIN, r->now);
        rig_deliver(r);
        rig_pass(r, 1);
        break;
    case STALL:
        rig_pass(r, 6 * RIG_SECOND);
        break;
    case TIME:
        rig_pass(r, 61 * RIG_SECOND);
        break;
    case EVENTS:
        break;
    }
    rig_deliver(r);
}

/* What the router hears at once; ONWARD: nothing, the request goes on. */
#define ONWARD    1
#define SILENT    2 /* over without a word: the router is gone */
#define CANCELLED TD_ERR_CANCELLED
#define BUDGET    TD_ERR_BUDGET
#define MISMATCH  TD_ERR_KV_MISMATCH
#define LOST      TD_ERR_PEER_LOST
#define LEASE     TD_ERR_LEASE
#define STALLED   TD_ERR_STALLED
#define FAILED    TD_ERR_DEVICE
#define DRAINING  TD_ERR_DRAINING

/* clang-format off */
static const int heard[STATES][EVENTS] = {
    /*             CANCEL     RECORD  BAD       FOREIGN REST    SLICE     ABORT   FOREIGN LOST    STEP    ROUTER  DRAIN     STALL   TIME */
    [QUEUED]   = {CANCELLED, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD, SILENT, DRAINING, ONWARD, BUDGET},
    [LANDING]  = {CANCELLED, ONWARD, MISMATCH, ONWARD, ONWARD, MISMATCH, LEASE,  ONWARD, LOST,   ONWARD, SILENT, DRAINING, ONWARD, BUDGET},
    [FLOWING]  = {CANCELLED, ONWARD, MISMATCH, ONWARD, ONWARD, MISMATCH, LEASE,  ONWARD, LOST,   ONWARD, SILENT, DRAINING, ONWARD, BUDGET},
    [RECORDED] = {CANCELLED, ONWARD, ONWARD,   ONWARD, ONWARD, MISMATCH, LEASE,  ONWARD, LOST,   ONWARD, SILENT, DRAINING, STALLED, STALLED},
    [READY]    = {CANCELLED, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD, SILENT, DRAINING, ONWARD, BUDGET},
    [RUNNING]  = {CANCELLED, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, FAILED, SILENT, DRAINING, ONWARD, BUDGET},
    [PREFILL]  = {CANCELLED, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, FAILED, SILENT, DRAINING, ONWARD, BUDGET},
    [ENDING]   = {CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED},
};
/* clang-format on */

static void every_event_in_every_state_is_answered_as_the_table_says(void **state)
{
    (void)state;
    for (unsigned s = 0; s < STATES; s++) {
        for (unsigned e = 0; e < EVENTS; e++) {
            struct td_wire_request q;
            struct rig *r = bring((enum at)s, &q);
            fire(r, (enum event)e, &q);
            const struct td_wire_end *end = rig_end(r, D, &q.id);
            int got = end != NULL ? (int)end->err : ONWARD;
            got = got == ONWARD && heard[s][e] == SILENT ? SILENT : got;
            if (got != heard[s][e]) {
                fail_msg("%s x %s: heard %d instead of %d", names[s], events[e], got, heard[s][e]);
            }
            /* Whatever happened: within the bounds everything is back. */
            rig_settle(r);
            rig_pass(r, 61 * RIG_SECOND);
            rig_settle(r);
            rig_pass(r, 6 * RIG_SECOND);
            rig_assert_idle(r, D);
            (void)rig_destroy(r);
        }
    }
}

static void prefill_hears_once_that_it_may_stop(void **state)
{
    (void)state;
    for (unsigned s = LANDING; s <= RECORDED; s++) {
        struct td_wire_request q;
        struct rig *r = bring((enum at)s, &q);
        fire(r, CANCEL, &q);
        fire(r, CANCEL, &q);
        assert_int_equal(rig_count(r, D, TD_WIRE_ABORT, &q.id), 1);
        assert_int_equal(rig_count(r, D, TD_WIRE_CANCEL_ACK, &q.id), 2);
        (void)rig_destroy(r);
    }
}

static void a_request_is_taken_when_record_and_slices_are_there(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(FLOWING, &q);
    assert_int_equal(rig_blocks(r, D, TD_BLK_FILLING), 4);
    say_record(r, &q);
    assert_null(rig_last(r, D, TD_WIRE_TAKEN, &q.id));
    say_landed(r, &q, 2 * RIG_LAYERS);
    assert_int_equal(rig_last(r, D, TD_WIRE_TAKEN, &q.id)->taken.err, TD_OK);
    assert_int_equal(rig_blocks(r, D, TD_BLK_RUNNING), 4);
    assert_int_equal(r->node[D].n_lands, 0);
    (void)rig_destroy(r);
}

/* Everything a record says is checked; each row spoils one field. */
static void a_record_that_does_not_verify_is_never_used(void **state)
{
    enum { FIELDS = 9 };
    (void)state;
    for (int i = 0; i < FIELDS; i++) {
        struct td_wire_request q;
        struct rig *r = bring(LANDING, &q);
        struct td_wire_msg m = record_of(r, &q);
        bool stale = i < 4; /* names another tenancy: not for us */
        switch (i) {
        case 0:
            m.record.land += 1ull << 32;
            break;
        case 1:
            m.record.id.attempt++;
            break;
        case 2:
            m.record.p_epoch++;
            break;
        case 3:
            m.record.d_epoch++;
            break;
        case 4:
            m.record.layout_id++;
            break;
        case 5:
            m.record.n_tok--;
            break;
        case 6:
            m.record.n_slices++;
            break;
        case 7:
            m.record.first_token = (int32_t)RIG_VOCAB;
            break;
        default:
            m.record.seed++;
        }
        rig_peer_msg(r, D, PEER, &m);
        rig_deliver(r);
        const struct td_wire_msg *taken = rig_last(r, D, TD_WIRE_TAKEN, &m.record.id);
        assert_int_equal(taken->taken.err, stale ? TD_ERR_STALE : TD_ERR_KV_MISMATCH);
        assert_true(stale == (rig_end(r, D, &q.id) == NULL));
        assert_int_equal(rig_tokens(r, &q), 0);
        assert_int_equal(r->node[D].n_steps, 0);
        (void)rig_destroy(r);
    }
}

static void blocks_stay_quarantined_until_their_land_is_fenced(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(FLOWING, &q);
    r->node[D].hold_unlanded = true;
    fire(r, PEER_LOST, &q);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_PEER_LOST);
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 4);
    rig_fence(r, D);
    rig_deliver(r);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_fence_that_does_not_come_is_forced_by_closing(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(ENDING, &q);
    rig_pass(r, 4 * RIG_SECOND);
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 4);
    rig_pass(r, 2 * RIG_SECOND);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

/* Closing the endpoint fences what was ending; a land that was open must still be ended. */
static void a_close_ends_the_other_lands_of_the_peer_too(void **state)
{
    struct td_wire_request q, other = rig_request(7, 40, 10);
    (void)state;
    struct rig *r = bring(ENDING, &q);
    rig_pass(r, 3 * RIG_SECOND);
    reserve(r, &other);
    assert_int_equal(r->node[D].n_lands, 2);
    rig_pass(r, 2 * RIG_SECOND + 1);
    assert_int_equal(rig_end(r, D, &other.id)->err, TD_ERR_PEER_LOST);
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 3);
    rig_fence(r, D);
    rig_deliver(r);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_stall_clock_starts_with_the_record_and_restarts_with_each_slice(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(LANDING, &q);
    say_landed(r, &q, 1);
    rig_pass(r, 20 * RIG_SECOND); /* a layer that takes its time is no stall */
    assert_null(rig_end(r, D, &q.id));
    struct td_wire_msg m = record_of(r, &q);
    assert_true(m.record.n_slices > 5);
    rig_peer_msg(r, D, PEER, &m);
    rig_deliver(r);
    for (uint32_t i = 2; i <= 5; i++) {
        say_landed(r, &q, i);
        rig_pass(r, 4 * RIG_SECOND);
        assert_null(rig_end(r, D, &q.id));
    }
    rig_pass(r, 2 * RIG_SECOND);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_STALLED);
    (void)rig_destroy(r);
}

/* Nobody's heartbeats watch over a prompt that is held for an outside router, nor its prefill node. Its land is named by the
 * hold's id. */
static void take(struct rig *r, struct td_wire_request *q, struct td_work_id source)
{
    struct td_wire_msg m = rig_reserve(r, P, D, q);
    m.reserve.held = source;
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
}

static void a_held_prompt_is_given_up_when_its_prefill_node_is_silent(void **state)
{
    struct rig_params p = {.n_blocks = 64, .max_slots = 8};
    struct td_wire_request q = rig_request(1, 60, 10);
    struct td_work_id source = {.router_epoch = 0x77, .counter = 9};
    (void)state;
    q.budget_ms = 600000;
    struct rig *r = one(&p);
    take(r, &q, source);
    rig_pass(r, 29 * RIG_SECOND);
    assert_null(rig_end(r, D, &q.id));
    say_slices(r, &source, 1);
    rig_pass(r, 29 * RIG_SECOND);
    assert_null(rig_end(r, D, &q.id));
    rig_pass(r, 2 * RIG_SECOND);
    assert_non_null(rig_end(r, D, &q.id));
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_STALLED);
    assert_non_null(rig_last(r, D, TD_WIRE_ABORT, &source)); /* by the name that prefill knows */
    rig_fence(r, D);
    rig_deliver(r);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_held_prompt_waits_for_its_turn_while_its_prefill_node_speaks(void **state)
{
    struct rig_params p = {.n_blocks = 64, .max_slots = 8};
    struct td_wire_request q = rig_request(1, 60, 10), other = rig_request(2, 60, 10);
    struct td_work_id source = {.router_epoch = 0x77, .counter = 9};
    struct td_work_id before = {.router_epoch = 0x77, .counter = 8};
    (void)state;
    q.budget_ms = other.budget_ms = 600000;
    struct rig *r = one(&p);
    take(r, &other, before);
    take(r, &q, source);
    for (uint32_t i = 1; i <= 5; i++) {
        rig_pass(r, 20 * RIG_SECOND);
        say_slices(r, &before, i);
        assert_null(rig_end(r, D, &q.id));
    }
    assert_null(rig_end(r, D, &other.id));
    rig_pass(r, 20 * RIG_SECOND);
    struct td_wire_request named = other;
    named.id = before;
    say_record(r, &named); /* it speaks, whatever it says */
    rig_pass(r, 20 * RIG_SECOND);
    assert_null(rig_end(r, D, &q.id));
    rig_pass(r, 11 * RIG_SECOND);
    assert_non_null(rig_end(r, D, &q.id));
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_STALLED);
    (void)rig_destroy(r);
}

static void a_record_names_no_more_slices_than_the_window_shows(void **state)
{
    struct rig_params p = {.n_blocks = 64, .window = 32};
    struct td_wire_request q = rig_request(1, 100, 10), held = q;
    (void)state;
    held.id = (struct td_work_id){.router_epoch = 0x77, .counter = 9};
    struct rig *r = one(&p);
    take(r, &q, held.id);
    uint32_t asked = rig_last(r, D, TD_WIRE_TABLE, &held.id)->table.n_blocks;
    assert_int_equal(asked, 3);
    struct td_wire_msg m = record_of(r, &held);
    m.record.n_slices = (asked + 1) * RIG_LAYERS;
    rig_peer_msg(r, D, PEER, &m);
    rig_deliver(r);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_KV_MISMATCH);
    assert_int_equal(rig_last(r, D, TD_WIRE_TAKEN, &held.id)->taken.err, TD_ERR_KV_MISMATCH);
    (void)rig_destroy(r);
}

static void a_first_token_that_ends_the_request_needs_no_kv(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(LANDING, &q);
    struct td_wire_msg m = record_of(r, &q);
    m.record.finish = TD_FINISH_STOP;
    m.record.n_slices = 0;
    rig_peer_msg(r, D, PEER, &m);
    rig_deliver(r);
    assert_int_equal(rig_last(r, D, TD_WIRE_TAKEN, &q.id)->taken.err, TD_OK);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_OK);
    assert_int_equal(rig_tokens(r, &q), 1);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_STOP);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_first_step_also_carries_the_first_token(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(RUNNING, &q);
    assert_int_equal(rig_tokens(r, &q), 0);
    /* The KV of the stub is not there, so only the first token can be as expected. */
    (void)rig_finish(r, D);
    const struct td_wire_tokens none = {0}, *t = &none;
    for (uint32_t i = 0; i < r->n_mail; i++) {
        t = r->mail[i].msg.type == TD_WIRE_TOKENS ? &r->mail[i].msg.tokens : t;
    }
    if (t->n != 2 || t->tokens == NULL) {
        fail_msg("%u tokens, not 2", t->n);
        return;
    }
    assert_int_equal(t->tokens[0].index, 0);
    assert_int_equal(t->tokens[0].token, rig_expect(&q, 0));
    assert_int_equal(t->tokens[1].index, 1);
    (void)rig_destroy(r);
}

/* An engine of several ranks hands landed KV on once; what it computes itself, never. */
static void only_the_first_row_after_a_hand_over_says_that_kv_has_landed(void **state)
{
    struct td_wire_request q, own;
    (void)state;
    struct rig *r = bring(RUNNING, &q);
    for (uint32_t i = 0; i < 4; i++) {
        const struct rig_step *s = &r->node[D].steps[0];
        assert_int_equal(s->n_rows, 1);
        assert_int_equal(s->rows[0].pos, q.n_prompt + i);
        assert_int_equal(s->rows[0].want & TD_KV_LANDED, i == 0 ? TD_KV_LANDED : 0);
        assert_true(rig_finish(r, D));
    }
    (void)rig_destroy(r);
    r = bring(PREFILL, &own);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(r->node[D].steps[0].rows[0].want & TD_KV_LANDED, 0);
        assert_true(rig_finish(r, D));
    }
    (void)rig_destroy(r);
}

static void local_work_needs_the_role_both(void **state)
{
    struct rig_params p = {0};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q = rig_request(1, 20, 5);
    struct td_wire_msg m = rig_reserve_local(&q);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_UNSUPPORTED);
    assert_int_equal(rig_state(r, D).role, TD_ROLE_DECODE);
    (void)rig_destroy(r);
}

static void a_ticket_of_another_life_or_a_spent_one_is_refused(void **state)
{
    struct rig_params p = {.n_blocks = 8};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q = rig_request(1, 20, 5);
    struct td_wire_msg m = rig_reserve(r, P, D, &q);
    m.reserve.ticket.d_epoch = 77;
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_STALE);
    struct td_wire_request first = rig_request(2, 110, 10);
    struct td_wire_request late = rig_request(3, 110, 10);
    reserve(r, &first);
    m = rig_reserve(r, P, D, &late);
    m.reserve.ticket.life_ms = 3000;
    rig_msg(r, D, &m, TD_OK);
    struct td_wire_request taker = rig_request(4, 110, 10);
    m = rig_reserve(r, P, D, &taker);
    m.reserve.ticket.life_ms = 3000;
    m.reserve.held = (struct td_work_id){.router_epoch = 0x77, .counter = 9};
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    rig_pass(r, 4 * RIG_SECOND);
    assert_int_equal(rig_end(r, D, &late.id)->err, TD_ERR_STALE);
    assert_int_equal(rig_end(r, D, &taker.id)->err,
                     TD_ERR_LEASE); /* what was held is not any more */
    assert_null(rig_end(r, D, &first.id));
    (void)rig_destroy(r);
}

/* ---- room ---- */

/* A replay that D prefills itself: the engine is told where the request's own output begins. */
static void a_local_replay_tells_where_its_output_begins(void **state)
{
    struct rig_params p = {.local_prefill = true};
    int32_t ids[47];
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request whole = rig_request(4, 40, 20);
    for (uint32_t i = 0; i < 47; i++) {
        ids[i] = i < 40 ? whole.prompt[i] : rig_expect(&whole, i - 40);
    }
    struct td_wire_request rest = whole;
    rest.prompt = ids;
    rest.n_prompt = 47;
    rest.n_replayed = 7;
    rest.id.attempt = 1;
    struct td_wire_msg m = rig_reserve_local(&rest);
    rig_msg(r, D, &m, TD_OK);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &rest), 13);
    assert_int_equal(r->node[D].output_pos, 40);
    (void)rig_destroy(r);
}

static struct td_wire_request local(struct rig *r, uint64_t counter, uint32_t prompt, uint32_t out,
                                    int32_t priority)
{
    struct td_wire_request q = rig_request(counter, prompt, out);
    q.priority = priority;
    q.budget_ms = 3600000;
    struct td_wire_msg m = rig_reserve_local(&q);
    rig_msg(r, D, &m, TD_OK);
    rig_deliver(r);
    return q;
}

/* failures.md 10, `alone`. */
static void one_request_alone_that_outgrows_the_pool_ends_with_no_capacity(void **state)
{
    struct rig_params p = {.n_blocks = 8, .local_prefill = true};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q = local(r, 1, 20, 500, 0);
    rig_settle(r);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_NO_CAPACITY);
    assert_int_equal(rig_tokens(r, &q), 8 * RIG_BLOCK - 20 + 1);
    struct td_wire_request next = local(r, 2, 20, 50, 0);
    rig_settle(r);
    assert_int_equal(rig_end(r, D, &next.id)->err, TD_OK);
    assert_int_equal(rig_tokens(r, &next), 50);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_prompt_longer_than_the_pool_is_refused_at_once(void **state)
{
    struct rig_params p = {.n_blocks = 8, .local_prefill = true};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q = local(r, 1, 8 * RIG_BLOCK, 5, 0);
    assert_int_equal(rig_end(r, D, &q.id)->err, TD_ERR_CONTEXT_LENGTH);
    (void)rig_destroy(r);
}

/* failures.md 10, `squeeze`: 64 blocks, 40 requests that grow eightfold, half of them high priority;
 * the router replays what ends with no_capacity. Returns the steps it took. */
static uint32_t squeeze(uint32_t *out_replays, uint32_t *out_high_ended, bool stops)
{
    enum { N = 40 };
    struct rig_params p = {.n_blocks = 64, .local_prefill = true, .max_seqs = 32};
    struct rig *r = one(&p);
    struct td_wire_request q[N];
    bool done[N] = {false};
    uint32_t steps = 0;
    *out_replays = *out_high_ended = 0;
    for (uint32_t i = 0; i < N; i++) {
        q[i] = rig_request(i, 16, stops ? 400 : 112);
        q[i].budget_ms = 3600000;
        q[i].priority = i % 2 == 0 ? 0 : 5;
        if (stops) {
            q[i].sampling.n_stop_ids = 1;
            q[i].sampling.stop_ids[0] = rig_expect(&q[i], 100 + i);
            q[i].sampling.min_tokens = 100 + i;
        }
        struct td_wire_msg m = rig_reserve_local(&q[i]);
        rig_msg(r, D, &m, TD_OK);
    }
    rig_deliver(r);
    for (uint32_t left = N; left > 0; steps++) {
        assert_true(steps < 20000);
        (void)rig_finish(r, D);
        for (uint32_t i = 0; i < N; i++) {
            const struct td_wire_end *end = done[i] ? NULL : rig_end(r, D, &q[i].id);
            if (end == NULL) {
                continue;
            }
            if (end->err == TD_OK) {
                done[i] = true;
                left--;
                assert_int_equal(rig_tokens(r, &q[i]), stops ? 101 + i : 112);
                continue;
            }
            assert_int_equal(end->err, TD_ERR_NO_CAPACITY);
            *out_replays += 1;
            *out_high_ended += q[i].priority == 0;
            q[i].id.attempt++;
            struct td_wire_msg m = rig_reserve_local(&q[i]);
            rig_msg(r, D, &m, TD_OK);
            rig_deliver(r);
        }
    }
    rig_settle(r); /* a step that was under way at the last end */
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
    return steps;
}

/* The same load under a fixed reserve of `percent` of the pool, ended requests starting again: the
 * policy to be measured against. Returns the steps. */
static uint32_t fixed_reserve(uint32_t percent)
{
    enum { N = 40, POOL = 64, LANES = 32, OUT = 112 };
    uint32_t out[N] = {0};
    uint32_t blocks[N] = {0};
    bool running[N] = {false};
    uint32_t order[N];
    uint32_t free_blocks = POOL;
    uint32_t n_running = 0;
    uint32_t left = N;
    for (uint32_t i = 0; i < N; i++) { /* priority, then arrival */
        order[i] = i < N / 2 ? 2 * i : 2 * (i - N / 2) + 1;
    }
    for (uint32_t steps = 1; steps < 20000; steps++) {
        for (uint32_t k = 0; k < N; k++) {
            uint32_t i = order[k];
            if (out[i] < OUT && !running[i] && n_running < LANES && free_blocks > 0 &&
                (n_running == 0 || (free_blocks - 1) * 100 >= percent * POOL)) {
                running[i] = true;
                blocks[i] = 1;
                free_blocks--;
                n_running++;
            }
        }
        for (uint32_t k = 0; k < N; k++) {
            uint32_t i = order[k];
            for (uint32_t v = N; running[i] && blocks[i] < (16 + out[i]) / 16 + 1;) {
                if (free_blocks > 0) {
                    free_blocks--;
                    blocks[i]++;
                } else if (running[order[--v]]) {
                    running[order[v]] = false;
                    free_blocks += blocks[order[v]];
                    out[order[v]] = 0;
                    n_running--;
                }
            }
        }
        for (uint32_t i = 0; i < N; i++) {
            if (running[i] && ++out[i] == OUT) {
                running[i] = false;
                free_blocks += blocks[i];
                n_running--;
                left--;
            }
        }
        if (left == 0) {
            return steps;
        }
    }
    return UINT32_MAX;
}

static void a_squeezed_pool_serves_everybody_and_spares_high_priority(void **state)
{
    static const uint32_t reserves[] = {0, 5, 10, 25, 50};
    uint32_t replays;
    uint32_t high;
    (void)state;
    uint32_t best = UINT32_MAX;
    for (size_t i = 0; i < sizeof reserves / sizeof reserves[0]; i++) {
        uint32_t steps = fixed_reserve(reserves[i]);
        best = steps < best ? steps : best;
    }
    uint32_t steps = squeeze(&replays, &high, false);
    print_message("# squeeze: %u steps, best fixed reserve %u, %u ended\n", steps, best, replays);
    assert_int_equal(high, 0);
    assert_int_equal(replays, 0);
    assert_true(steps * 8 <= best * 10);
    steps = squeeze(&replays, &high, true); /* lengths that nobody can know */
    print_message("# squeeze with stops: %u steps, %u ended\n", steps, replays);
    assert_int_equal(high, 0);
    assert_true(replays <= 12);
}

static void teach_short_outputs(struct rig *r)
{
    for (uint64_t i = 0; i < 20; i++) {
        struct td_wire_request q = rig_request(100 + i, 10, 400);
        q.sampling.n_stop_ids = 1;
        q.sampling.stop_ids[0] = rig_expect(&q, 2);
        struct td_wire_msg m = rig_reserve_local(&q);
        rig_msg(r, D, &m, TD_OK);
        rig_settle(r);
    }
}

static void a_wrong_guess_ends_the_request_that_matters_least(void **state)
{
    struct rig_params p = {.n_blocks = 12, .local_prefill = true};
    (void)state;
    for (int younger_is_urgent = 0; younger_is_urgent < 2; younger_is_urgent++) {
        struct rig *r = one(&p);
        teach_short_outputs(r);
        struct td_wire_request a = local(r, 1, 30, 100, younger_is_urgent ? 1 : 0);
        struct td_wire_request b = local(r, 2, 30, 100, 0);
        rig_settle(r);
        const struct td_work_id *spared = younger_is_urgent ? &b.id : &a.id;
        const struct td_work_id *ended = younger_is_urgent ? &a.id : &b.id;
        assert_int_equal(rig_end(r, D, spared)->err, TD_OK);
        assert_int_equal(rig_end(r, D, ended)->err, TD_ERR_NO_CAPACITY);
        assert_true(rig_tokens(r, &a) + rig_tokens(r, &b) > 100);
        rig_assert_idle(r, D);
        (void)rig_destroy(r);
    }
}

/* A victim whose slices may still land gives its blocks only when fenced; who lacks the block sits
 * out, and goes on with the right token. */
static void a_row_waits_for_a_victim_to_be_fenced(void **state)
{
    struct rig_params p = {.n_blocks = 8, .local_prefill = true};
    (void)state;
    struct rig *r = one(&p);
    teach_short_outputs(r);
    struct td_wire_request old = local(r, 1, 30, 80, 0);  /* 2 blocks, grows to 7: a surprise */
    struct td_wire_request young = rig_request(2, 64, 1); /* 4 blocks */
    young.priority = 3;
    for (int i = 0; i < 20; i++) {
        (void)rig_finish(r, D);
    }
    reserve(r, &young);
    assert_string_equal(rig_wait(r, D, &young.id), waits[LANDING]);
    r->node[D].hold_unlanded = true;
    rig_settle(r);
    assert_int_equal(rig_end(r, D, &young.id)->err, TD_ERR_NO_CAPACITY);
    assert_null(rig_end(r, D, &old.id));
    assert_int_equal(rig_blocks(r, D, TD_BLK_QUARANTINED), 4);
    assert_int_equal(r->node[D].n_steps, 0);
    uint32_t before = rig_tokens(r, &old);
    r->node[D].hold_unlanded = false;
    rig_fence(r, D);
    rig_settle(r);
    assert_true(rig_tokens(r, &old) > before);
    assert_int_equal(rig_tokens(r, &old), 80);
    assert_int_equal(rig_end(r, D, &old.id)->err, TD_OK);
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void the_line_is_served_by_priority_and_nobody_is_skipped(void **state)
{
    struct rig_params p = {.n_blocks = 16, .local_prefill = true};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request running = local(r, 1, 100, 60, 0);
    struct td_wire_request big = local(r, 2, 150, 8, 0);
    struct td_wire_request small = local(r, 3, 10, 8, 0);
    struct td_wire_request urgent = local(r, 4, 150, 8, -1);
    assert_string_equal(rig_wait(r, D, &small.id), waits[QUEUED]); /* behind the big one */
    while (rig_end(r, D, &running.id) == NULL) {
        (void)rig_finish(r, D);
    }
    assert_string_equal(rig_wait(r, D, &urgent.id), waits[PREFILL]);
    assert_string_equal(rig_wait(r, D, &big.id), waits[QUEUED]);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &big), 8);
    assert_int_equal(rig_tokens(r, &small), 8);
    (void)rig_destroy(r);
}

static void rows_join_and_leave_between_steps(void **state)
{
    struct rig_params p = {.n_blocks = 256, .local_prefill = true};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q[12];
    for (uint32_t i = 0; i < 12; i++) {
        q[i] = local(r, i, 10 + i, 5 + i, 0);
        (void)rig_finish(r, D);
        (void)rig_finish(r, D);
    }
    assert_true(r->node[D].steps[0].n_rows > 3);
    rig_settle(r);
    for (uint32_t i = 0; i < 12; i++) {
        assert_int_equal(rig_tokens(r, &q[i]), 5 + i);
    }
    rig_assert_idle(r, D);
    (void)rig_destroy(r);
}

static void a_long_local_prompt_does_not_stop_running_streams(void **state)
{
    struct rig_params p = {.n_blocks = 256, .local_prefill = true, .chunk = 64, .max_batched = 64};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request stream = local(r, 1, 10, 60, 0);
    (void)rig_finish(r, D);
    struct td_wire_request prompt = local(r, 2, 900, 4, 0);
    uint32_t before = rig_tokens(r, &stream);
    for (uint32_t i = 1; i <= 10; i++) {
        (void)rig_finish(r, D);
        assert_int_equal(rig_tokens(r, &stream), before + i);
    }
    assert_string_equal(rig_wait(r, D, &prompt.id), waits[PREFILL]);
    rig_settle(r);
    assert_int_equal(rig_tokens(r, &prompt), 4);
    (void)rig_destroy(r);
}

static void counts_and_the_last_word_tell_where_a_request_is(void **state)
{
    static const struct {
        enum at at;
        uint32_t blocks, transfer;
        unsigned phase;
    } rows[] = {{QUEUED, 1, 1, 0},
                {LANDING, 0, 1, 2},
                {FLOWING, 0, 1, 2},
                {RUNNING, 0, 0, 3},
                {PREFILL, 0, 0, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct td_wire_request q;
        struct rig *r = bring(rows[i].at, &q);
        struct nd_counts n = {0};
        r->node[D].ops->count(r->node[D].core, &n);
        assert_int_equal(n.blocks, rows[i].blocks);
        assert_int_equal(n.transfer, rows[i].transfer);
        assert_int_equal(n.pending_tok, rows[i].blocks * 60);
        assert_int_equal(r->node[D].n_done, 0);
        struct td_wire_msg cancel = rig_cancel(&q.id);
        rig_msg(r, D, &cancel, TD_OK);
        rig_deliver(r);
        const struct nd_done *d = &r->node[D].done;
        assert_int_equal(r->node[D].n_done, 1);
        assert_true(td_work_id_eq(&d->id, &q.id) && d->decode);
        assert_int_equal(d->err, TD_ERR_CANCELLED);
        assert_int_equal(d->phase, rows[i].phase);
        (void)rig_destroy(r);
    }
}

static void the_last_word_carries_times_sizes_and_the_trace(void **state)
{
    static const char trace[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    struct rig_params p = {.n_blocks = 64};
    (void)state;
    struct rig *r = one(&p);
    struct td_wire_request q = rig_request(1, 60, 10);
    q.traceparent = trace;
    q.tracestate = "rojo=1,congo=2";
    rig_pass(r, 1000);
    hand_over(r, &q);
    rig_settle(r);
    const struct nd_done *d = &r->node[D].done;
    assert_int_equal(r->node[D].n_done, 1);
    assert_string_equal(d->trace, trace);
    assert_string_equal(d->state, "rojo=1,congo=2");
    assert_int_equal(d->err, TD_OK);
    assert_int_equal(d->finish, TD_FINISH_LENGTH);
    assert_int_equal(d->n_prompt, 60);
    assert_int_equal(d->n_output, 10);
    assert_int_equal(d->max_tokens, 10);
    assert_int_equal(d->n_slices, 2 * RIG_LAYERS);
    assert_int_equal(d->kv_bytes, 2 * RIG_LAYERS * 128);
    assert_true(d->arrived_us > 0 && d->arrived_us <= d->table_us);
    assert_true(d->table_us <= d->record_us && d->record_us <= d->decode_us);
    assert_true(d->decode_us <= d->last_us && d->last_us <= d->ended_us);
    (void)rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_local_replay_tells_where_its_output_begins),
        cmocka_unit_test(counts_and_the_last_word_tell_where_a_request_is),
        cmocka_unit_test(the_last_word_carries_times_sizes_and_the_trace),
        cmocka_unit_test(every_event_in_every_state_is_answered_as_the_table_says),
        cmocka_unit_test(prefill_hears_once_that_it_may_stop),
        cmocka_unit_test(a_request_is_taken_when_record_and_slices_are_there),
        cmocka_unit_test(a_record_that_does_not_verify_is_never_used),
        cmocka_unit_test(blocks_stay_quarantined_until_their_land_is_fenced),
        cmocka_unit_test(a_fence_that_does_not_come_is_forced_by_closing),
        cmocka_unit_test(a_close_ends_the_other_lands_of_the_peer_too),
        cmocka_unit_test(the_stall_clock_starts_with_the_record_and_restarts_with_each_slice),
        cmocka_unit_test(a_held_prompt_is_given_up_when_its_prefill_node_is_silent),
        cmocka_unit_test(a_held_prompt_waits_for_its_turn_while_its_prefill_node_speaks),
        cmocka_unit_test(a_record_names_no_more_slices_than_the_window_shows),
        cmocka_unit_test(a_first_token_that_ends_the_request_needs_no_kv),
        cmocka_unit_test(the_first_step_also_carries_the_first_token),
        cmocka_unit_test(only_the_first_row_after_a_hand_over_says_that_kv_has_landed),
        cmocka_unit_test(local_work_needs_the_role_both),
        cmocka_unit_test(a_ticket_of_another_life_or_a_spent_one_is_refused),
        cmocka_unit_test(one_request_alone_that_outgrows_the_pool_ends_with_no_capacity),
        cmocka_unit_test(a_prompt_longer_than_the_pool_is_refused_at_once),
        cmocka_unit_test(a_squeezed_pool_serves_everybody_and_spares_high_priority),
        cmocka_unit_test(a_wrong_guess_ends_the_request_that_matters_least),
        cmocka_unit_test(a_row_waits_for_a_victim_to_be_fenced),
        cmocka_unit_test(the_line_is_served_by_priority_and_nobody_is_skipped),
        cmocka_unit_test(rows_join_and_leave_between_steps),
        cmocka_unit_test(a_long_local_prompt_does_not_stop_running_streams),
    };
    enum { N = sizeof tests / sizeof tests[0] };
    static struct CMUnitTest all[2 * N];
    static char two[N][96];
    for (size_t i = 0; i < N; i++) {
        (void)snprintf(two[i], sizeof two[i], "%s_with_two_steps_in_flight", tests[i].name);
        all[i] = all[N + i] = tests[i];
        all[i].setup_func = one_step;
        all[N + i].setup_func = two_steps;
        all[N + i].name = two[i];
    }
    td_log_set_level(getenv("RIG_LOG") != NULL ? TD_LOG_DEBUG : TD_LOG_ERROR);
    return cmocka_run_group_tests_name("decode-node/dc", all, NULL, NULL);
}
