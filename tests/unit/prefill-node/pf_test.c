/* The prefill core alone: every state against every event, with a decode node that exists only as
 * messages. Covers pf_seq.c, pf_exec.c and pf_stash.c. */
#include "prefill-node/pf_core.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

#define P     0u
#define D     1u /* not there */
#define PEER  0xe001u
#define OTHER 0xe009u
#define LAND  0x55u

#define HOLD_MS 60500u /* longer than the budget */

/* HELD, GIVING and GIVEN: parked, pushing and handing of a prompt that is held for an outside router. */
enum at { QUEUED, EXEC, EXEC_TABLE, PARKED, PUSHING, HANDING, HELD, GIVING, GIVEN, ENDING, STATES };
static const char *const names[STATES] = {"queued",  "exec", "exec with table", "parked", "pushing",
                                          "handing", "held", "giving",          "given",  "ending"};
static const char *const waits[STATES] = {
    "blocks for its prompt",     "its chunks to be computed", "its chunks to be computed",
    "decode's block table",      "earlier pushes to end",     "decode to take over",
    "decode's block table",      "earlier pushes to end",     "decode to take over",
    "its step and posts to end",
};

static struct rig *one(uint32_t n_blocks)
{
    struct rig_params p = {.n_blocks = n_blocks, .chunk = 16, .max_batched = 16};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    r->node[P].hold_pushes = true;
    return r;
}

/* A table from `peer` whose ticket names `named`. */
static void say_table_as(struct rig *r, const struct td_wire_request *q, uint64_t peer,
                         uint64_t named, uint8_t nonce)
{
    static struct td_block_ref refs[64];
    struct td_wire_msg prefill = rig_prefill(r, P, D, q);
    uint32_t n = (q->n_prompt + RIG_BLOCK - 1) / RIG_BLOCK;
    for (uint32_t i = 0; i < n; i++) {
        refs[i] = (struct td_block_ref){i + 3, 1};
    }
    struct td_wire_msg m = {.type = TD_WIRE_TABLE,
                            .table = {.id = q->id,
                                      .ticket = prefill.prefill.ticket,
                                      .land = LAND,
                                      .layout_id = RIG_LAYOUT_ID,
                                      .n_tok = q->n_prompt,
                                      .n_blocks = n,
                                      .blocks = refs}};
    m.table.ticket.d_epoch = named;
    m.table.ticket.nonce[5] = nonce;
    rig_peer_msg(r, P, peer, &m);
    rig_deliver(r);
}

static void say_table(struct rig *r, const struct td_wire_request *q, uint64_t peer, uint8_t nonce)
{
    say_table_as(r, q, peer, PEER, nonce);
}

/* Brings a request into a state. */
static struct rig *bring(enum at state, struct td_wire_request *q)
{
    struct rig *r = one(state == QUEUED ? 8 : 64);
    bool held = state == HELD || state == GIVING || state == GIVEN;
    bool computed = held || state == PARKED || state == PUSHING || state == HANDING;
    *q = rig_request(1, state == PUSHING || state == GIVING ? 320 : 64, held ? 1 : 10);
    struct td_wire_msg m = rig_prefill(r, P, D, q);
    if (held) {
        m.prefill.ticket.d_epoch = 0;
        m.prefill.hold_ms = HOLD_MS;
    }
    if (state == QUEUED) {
        struct td_wire_request first = rig_request(2, 120, 10);
        struct td_wire_msg before = rig_prefill(r, P, D, &first);
        rig_msg(r, P, &before, TD_OK);
    }
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    if (state == EXEC_TABLE || state == PUSHING || state == HANDING || state == ENDING) {
        say_table(r, q, PEER, 0);
    }
    while (computed && rig_finish(r, P)) {
    }
    if (state == GIVING || state == GIVEN) {
        say_table(r, q, PEER, 0);
    }
    if (state == ENDING) {
        struct td_wire_msg cancel = rig_cancel(&q->id);
        rig_msg(r, P, &cancel, TD_OK);
        rig_deliver(r);
    }
    assert_string_equal(rig_wait(r, P, &q->id), waits[state]);
    return r;
}

enum event {
    CANCEL,
    TABLE,
    TABLE_FOREIGN,
    TAKEN,
    TAKEN_BAD,
    TAKEN_FOREIGN,
    ABORT,
    PEER_LOST,
    PUSH_FAILS,
    STEP_FAILS,
    ROUTER_LOST,
    DRAINED,
    TIME,
    EVENTS
};
static const char *const events[EVENTS] = {
    "cancel",        "table",   "foreign table", "taken",      "taken with error",
    "foreign taken", "abort",   "peer lost",     "push fails", "step fails",
    "router lost",   "drained", "time passes"};

static void fire(struct rig *r, enum event e, const struct td_wire_request *q)
{
    struct td_wire_msg m = {.type = TD_WIRE_TAKEN, .taken = {.id = q->id}};
    switch (e) {
    case CANCEL:
        m = rig_cancel(&q->id);
        rig_msg(r, P, &m, TD_OK);
        break;
    case TABLE:
        say_table(r, q, PEER, 0);
        break;
    case TABLE_FOREIGN:
        say_table(r, q, PEER, 1);
        break;
    case TAKEN:
        rig_peer_msg(r, P, PEER, &m);
        break;
    case TAKEN_BAD:
        m.taken.err = TD_ERR_KV_MISMATCH;
        rig_peer_msg(r, P, PEER, &m);
        break;
    case TAKEN_FOREIGN:
        rig_peer_msg(r, P, OTHER, &m);
        break;
    case ABORT:
        m = (struct td_wire_msg){.type = TD_WIRE_ABORT,
                                 .abort = {.id = q->id, .land = LAND, .err = TD_ERR_BUDGET}};
        rig_peer_msg(r, P, PEER, &m);
        break;
    case PEER_LOST:
        rig_lose(r, P, PEER);
        break;
    case PUSH_FAILS:
        if (r->node[P].n_pushes > 0) {
            rig_end_push(r, P, TD_ERR_TRANSPORT);
        }
        break;
    case STEP_FAILS:
        r->node[P].fail_rows = true;
        (void)rig_finish(r, P);
        break;
    case ROUTER_LOST:
        rig_plain(r, P, ND_EV_ROUTER_LOST, 0);
        break;
    case DRAINED:
        rig_plain(r, P, ND_EV_DRAIN, r->now);
        rig_deliver(r);
        rig_pass(r, 1);
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
#define CANCELLED TD_ERR_CANCELLED
#define BUDGET    TD_ERR_BUDGET
#define LEASE     TD_ERR_LEASE
#define MISMATCH  TD_ERR_KV_MISMATCH
#define LOST      TD_ERR_PEER_LOST
#define TRANSPORT TD_ERR_TRANSPORT
#define FAILED    TD_ERR_DEVICE
#define DRAINING  TD_ERR_DRAINING
#define SILENT    2 /* over without a word: the router is gone */

/* clang-format off */
static const int heard[STATES][EVENTS] = {
    /*               CANCEL     TABLE   FOREIGN TAKEN   BAD       FOREIGN ABORT   LOST    PUSH       STEP    ROUTER  DRAIN     TIME */
    [QUEUED]     = {CANCELLED, ONWARD, ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD,    ONWARD, SILENT, DRAINING, BUDGET},
    [EXEC]       = {CANCELLED, ONWARD, ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD,    FAILED, SILENT, DRAINING, BUDGET},
    [EXEC_TABLE] = {CANCELLED, ONWARD, ONWARD, ONWARD, MISMATCH, ONWARD, BUDGET, LOST,   TRANSPORT, FAILED, SILENT, DRAINING, BUDGET},
    [PARKED]     = {CANCELLED, ONWARD, ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD,    ONWARD, SILENT, DRAINING, LEASE},
    [PUSHING]    = {CANCELLED, ONWARD, ONWARD, ONWARD, MISMATCH, ONWARD, BUDGET, LOST,   TRANSPORT, ONWARD, SILENT, DRAINING, LEASE},
    [HANDING]    = {CANCELLED, ONWARD, ONWARD, ONWARD, MISMATCH, ONWARD, BUDGET, LOST,   TRANSPORT, ONWARD, SILENT, DRAINING, LEASE},
    [HELD]       = {CANCELLED, ONWARD, ONWARD, ONWARD, ONWARD,   ONWARD, ONWARD, ONWARD, ONWARD,    ONWARD, SILENT, DRAINING, LEASE},
    [GIVING]     = {CANCELLED, ONWARD, ONWARD, ONWARD, MISMATCH, ONWARD, BUDGET, LOST,   TRANSPORT, ONWARD, SILENT, DRAINING, LEASE},
    [GIVEN]      = {CANCELLED, ONWARD, ONWARD, ONWARD, MISMATCH, ONWARD, BUDGET, LOST,   TRANSPORT, ONWARD, SILENT, DRAINING, LEASE},
    [ENDING]     = {CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED, CANCELLED},
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
            const struct td_wire_end *end = rig_end(r, P, &q.id);
            int got = end != NULL ? (int)end->err : ONWARD;
            got = got == ONWARD && heard[s][e] == SILENT ? SILENT : got;
            if (got != heard[s][e]) {
                fail_msg("%s x %s: heard %d instead of %d", names[s], events[e], got, heard[s][e]);
            }
            /* Whatever happened: within the bounds everything is back. */
            r->node[P].hold_pushes = false;
            rig_post(r, P);
            rig_settle(r);
            rig_pass(r, 61 * RIG_SECOND);
            rig_settle(r);
            rig_assert_idle(r, P);
            (void)rig_destroy(r);
        }
    }
}

static void decode_hears_of_every_bad_end_once(void **state)
{
    (void)state;
    for (unsigned s = EXEC_TABLE; s < ENDING; s++) {
        if (s == PARKED || s == HELD) {
            continue; /* no table: decode does not wait */
        }
        struct td_wire_request q;
        struct rig *r = bring((enum at)s, &q);
        fire(r, CANCEL, &q);
        fire(r, CANCEL, &q);
        assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), 1);
        assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.land, LAND);
        (void)rig_destroy(r);
    }
}

static void a_foreign_or_second_table_is_refused(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(EXEC, &q);
    say_table(r, &q, PEER, 1);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    say_table(r, &q, OTHER, 0);
    assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), 2);
    assert_int_equal(r->node[P].n_pushes, 0);
    say_table(r, &q, PEER, 0);
    assert_int_equal(r->node[P].n_pushes, 1);
    say_table(r, &q, PEER, 0);
    assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), 3);
    assert_int_equal(r->node[P].n_pushes, 1);
    (void)rig_destroy(r);
}

static void a_held_prompt_goes_to_any_peer_that_knows_the_nonce_once(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(HELD, &q);
    assert_int_equal(rig_tokens(r, &q), 1);
    assert_int_equal(rig_finish_of(r, &q.id), TD_FINISH_NONE); /* though max_tokens is 1 */
    rig_pass(r, 30 * RIG_SECOND);
    struct nd_counts counts = {0};
    pf_role_ops.count(r->node[P].core, &counts);
    assert_int_equal(counts.held, 1);
    assert_int_equal(counts.table, 0);
    say_table(r, &q, OTHER, 1);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    say_table(r, &q, OTHER, 0); /* its ticket names PEER */
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    assert_string_equal(rig_wait(r, P, &q.id), waits[HELD]);
    say_table(r, &q, PEER, 0);
    assert_string_equal(rig_wait(r, P, &q.id), waits[GIVEN]);
    counts = (struct nd_counts){0};
    pf_role_ops.count(r->node[P].core, &counts);
    assert_int_equal(counts.held + counts.table, 0);
    assert_int_equal(counts.transfer, 1);
    uint32_t refused = rig_count(r, P, TD_WIRE_ABORT, &q.id);
    say_table(r, &q, PEER, 0);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), refused + 1);
    assert_int_equal(r->node[P].n_pushes, 4); /* chunks of one block each */
    (void)rig_destroy(r);
}

static void a_hold_ends_at_its_time_and_says_so_to_who_comes_late(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(HELD, &q);
    rig_pass(r, HOLD_MS * 1000 - 1);
    assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), 4);
    rig_pass(r, 1);
    assert_int_equal(rig_end(r, P, &q.id)->err, TD_ERR_LEASE);
    rig_assert_idle(r, P);
    say_table(r, &q, PEER, 0);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_LEASE);
    struct td_wire_msg again = rig_prefill(r, P, D, &q);
    rig_msg(r, P, &again, TD_OK); /* the same work never runs twice */
    rig_deliver(r);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

static void a_table_of_a_node_that_the_ticket_does_not_name_is_refused(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(PARKED, &q);
    say_table_as(r, &q, OTHER, OTHER, 0); /* it knows the nonce */
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    assert_string_equal(rig_wait(r, P, &q.id), waits[PARKED]);
    (void)rig_destroy(r);
}

/* Neither the ticket's life nor the request's budget ends a hold: both were for its first token. */
static void a_hold_is_given_past_its_budget_and_then_has_a_lease(void **state)
{
    struct td_wire_request q = rig_request(1, 64, 1);
    (void)state;
    struct rig *r = one(64);
    q.budget_ms = 2000;
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    m.prefill.ticket.d_epoch = 0;
    m.prefill.ticket.life_ms = 3000;
    m.prefill.hold_ms = HOLD_MS;
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    while (rig_finish(r, P)) {
    }
    rig_pass(r, 5 * RIG_SECOND);
    say_table(r, &q, PEER, 0);
    assert_string_equal(rig_wait(r, P, &q.id), waits[GIVEN]);
    rig_pass(r, 29 * RIG_SECOND);
    assert_null(rig_end(r, P, &q.id));
    rig_pass(r, 2 * RIG_SECOND);
    assert_int_equal(rig_end(r, P, &q.id)->err, TD_ERR_LEASE);
    (void)rig_destroy(r);
}

static void hold(struct rig *r, uint64_t counter, uint32_t n_prompt)
{
    struct td_wire_request q = rig_request(counter, n_prompt, 1);
    q.budget_ms = 10 * HOLD_MS;
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    m.prefill.ticket.d_epoch = 0;
    m.prefill.hold_ms = HOLD_MS;
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
}

static void compute_all(struct rig *r)
{
    while (rig_finish(r, P)) {
    }
}

/* An outside router that takes nothing must not keep others out. */
static void holds_leave_half_of_the_seats_and_blocks_to_others(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {16, 160}; /* of 8 seats 4 are taken first; of 64 blocks 32 */
    static const uint32_t held[] = {4, 3};
    for (uint32_t i = 0; i < 2; i++) {
        struct rig_params p = {.n_blocks = 64, .max_slots = 4, .max_seqs = 4};
        struct rig *r = rig_create();
        assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
        for (uint32_t n = 1; n <= 8; n++) {
            hold(r, n, lengths[i]);
        }
        compute_all(r);
        assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), held[i] * ((lengths[i] + 15) / 16));
        struct td_wire_request q = rig_request(20, 64, 10);
        struct td_wire_msg m = rig_prefill(r, P, D, &q);
        rig_msg(r, P, &m, TD_OK);
        rig_deliver(r);
        compute_all(r);
        assert_int_equal(rig_tokens(r, &q), 1);
        rig_pass(r, HOLD_MS * INT64_C(1000) + 1); /* the next ones have their turn */
        compute_all(r);
        assert_true(rig_blocks(r, P, TD_BLK_PARKED) >= held[i] * ((lengths[i] + 15) / 16));
        (void)rig_destroy(r);
    }
}

static void send(struct rig *r, const struct td_wire_request *q)
{
    struct td_wire_msg m = rig_prefill(r, P, D, q);
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
}

/* Both lines are one as long as there is room for both. */
static void holds_and_others_take_turns_as_they_came(void **state)
{
    struct rig_params p = {.n_blocks = 64, .max_slots = 1};
    struct td_wire_request q[4];
    (void)state;
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    for (uint32_t i = 0; i < 4; i++) {
        q[i] = rig_request(1 + i, 16, 10);
        if (i == 2) {
            hold(r, 1 + i, 16);
        } else {
            send(r, &q[i]);
        }
        rig_pass(r, 1000);
    }
    for (uint32_t i = 0; i < 4; i++) {
        for (uint32_t k = i; k < 4; k++) {
            assert_string_equal(rig_wait(r, P, &q[k].id), waits[k == i ? EXEC : QUEUED]);
        }
        assert_true(rig_finish(r, P));
    }
    (void)rig_destroy(r);
}

static void one_hold_fits_however_long(void **state)
{
    struct rig_params p = {.n_blocks = 16};
    (void)state;
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    hold(r, 1, 160); /* 10 of 16 blocks */
    hold(r, 2, 16);
    compute_all(r);
    assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), 10);
    (void)rig_destroy(r);
}

static void holds_leave_half_of_the_line_to_others(void **state)
{
    struct rig_params p = {.n_blocks = 64, .max_slots = 2, .max_seqs = 2, .max_queue = 6};
    (void)state;
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    for (uint32_t n = 1; n <= 8; n++) { /* 2 are held, 3 wait */
        hold(r, n, 16);
        compute_all(r);
    }
    assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), 2);
    struct td_wire_state told = {0};
    pf_role_ops.state(r->node[P].core, &told);
    assert_int_equal(told.queued_requests, 3);
    assert_int_equal(told.running_requests, 2);
    for (uint64_t n = 1; n <= 8; n++) {
        struct td_work_id id = rig_request(n, 16, 1).id;
        assert_int_equal(rig_end(r, P, &id) != NULL, n > 5);
        assert_true(n <= 5 || rig_end(r, P, &id)->err == TD_ERR_OVERLOADED);
    }
    for (uint64_t n = 20; n < 27; n++) { /* 2 run, 3 wait */
        struct td_wire_request q = rig_request(n, 64, 10);
        struct td_wire_msg m = rig_prefill(r, P, D, &q);
        rig_msg(r, P, &m, TD_OK);
        rig_deliver(r);
        assert_int_equal(rig_end(r, P, &q.id) != NULL, n >= 25);
        assert_true(n < 25 || rig_end(r, P, &q.id)->err == TD_ERR_OVERLOADED);
    }
    (void)rig_destroy(r);
}

static void a_hold_that_names_a_decode_node_is_refused(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 1);
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    m.prefill.hold_ms = HOLD_MS;
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, P, &q.id)->err, TD_ERR_BAD_REQUEST);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

static void a_table_for_an_unknown_work_of_this_process_does_not_wait(void **state)
{
    (void)state;
    struct rig_params p = {.local_epoch = 0x77};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    struct td_wire_request q = rig_request(1, 64, 1);
    q.id.router_epoch = 0x77;
    say_table(r, &q, PEER, 0);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

static void a_table_that_does_not_fit_the_prompt_is_refused(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(EXEC, &q);
    struct td_wire_request longer = rig_request(1, 200, 10);
    say_table(r, &longer, PEER, 0);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_KV_MISMATCH);
    assert_string_equal(rig_wait(r, P, &q.id), waits[EXEC]);
    (void)rig_destroy(r);
}

static void a_table_ahead_of_its_request_waits_for_it(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 10);
    say_table(r, &q, PEER, 0);
    assert_string_equal(rig_wait(r, P, &q.id), "a table waits for its request");
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(r->node[P].n_pushes, 1); /* posted with the first step */
    assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), 0);
    (void)rig_destroy(r);
}

static void an_early_table_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 10);
    say_table(r, &q, PEER, 0);
    rig_pass(r, 31 * RIG_SECOND);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_STALE);
    rig_assert_idle(r, P);
    say_table(r, &q, PEER, 0);
    rig_lose(r, P, PEER);
    rig_deliver(r);
    rig_assert_idle(r, P);
    for (uint64_t i = 0; i < 70; i++) { /* the stash is bounded */
        struct td_wire_request other = rig_request(100 + i, 64, 10);
        say_table(r, &other, PEER, 0);
        const struct td_wire_msg *a = rig_last(r, P, TD_WIRE_ABORT, &other.id);
        assert_true(i < 64 ? a == NULL : a != NULL && a->abort.err == TD_ERR_OVERLOADED);
    }
    (void)rig_destroy(r);
}

static void a_cancel_of_an_early_table_sends_it_back(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 10);
    say_table(r, &q, PEER, 0);
    fire(r, CANCEL, &q);
    assert_int_equal(rig_last(r, P, TD_WIRE_ABORT, &q.id)->abort.err, TD_ERR_CANCELLED);
    assert_false(rig_last(r, P, TD_WIRE_CANCEL_ACK, &q.id)->cancel_ack.known);
    say_table(r, &q, PEER, 0); /* and a later one finds its grave */
    assert_int_equal(rig_count(r, P, TD_WIRE_ABORT, &q.id), 2);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

/* The first chunk's push is posted together with the step that computes it, gated by its ticket; the
 * last push carries the partial block; the record counts the slices. */
static void chunks_are_pushed_while_the_next_are_computed(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 60, 10);
    say_table(r, &q, PEER, 0);
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    for (uint32_t i = 0; i < 4; i++) {
        const struct td_xfer_cmd *cmd = &r->node[P].pushes[i].cmd;
        assert_int_equal(r->node[P].n_pushes, i + 1);
        assert_int_equal(cmd->ticket, i + 1);
        assert_int_equal(cmd->ticket, r->node[P].ticket);
        assert_int_equal(cmd->first_block, i);
        assert_int_equal(cmd->n_blocks, 1);
        assert_int_equal(cmd->chunk, i);
        assert_int_equal(cmd->land, LAND);
        assert_int_equal(cmd->blocks[0].index, i + 3);
        assert_null(rig_last(r, P, TD_WIRE_RECORD, &q.id));
        assert_true(rig_finish(r, P));
    }
    const struct td_wire_record *rec = &rig_last(r, P, TD_WIRE_RECORD, &q.id)->record;
    assert_int_equal(rec->n_slices, 4 * RIG_LAYERS);
    assert_int_equal(rec->n_tok, 60);
    assert_int_equal(rec->first_token, rig_expect(&q, 0));
    assert_int_equal(rec->p_epoch, 0xe000);
    assert_int_equal(rec->d_epoch, PEER);
    assert_int_equal(rig_tokens(r, &q), 1); /* the router did not wait for any of it */
    (void)rig_destroy(r);
}

static void only_what_decode_lacks_is_pushed(void **state)
{
    static struct td_block_ref refs[2] = {{8, 1}, {9, 1}};
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 60, 10);
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    struct td_wire_msg t = {.type = TD_WIRE_TABLE,
                            .table = {.id = q.id,
                                      .ticket = m.prefill.ticket,
                                      .land = LAND,
                                      .layout_id = RIG_LAYOUT_ID,
                                      .first_tok = 32,
                                      .n_tok = 28,
                                      .n_blocks = 2,
                                      .blocks = refs}};
    rig_peer_msg(r, P, PEER, &t);
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    while (rig_finish(r, P)) {
    }
    assert_int_equal(r->node[P].n_pushes, 2);
    assert_int_equal(r->node[P].pushes[0].cmd.first_block, 0);
    assert_int_equal(r->node[P].pushes[0].cmd.chunk, 0);
    assert_int_equal(r->node[P].pushes[1].cmd.blocks[0].index, 9);
    assert_int_equal(rig_last(r, P, TD_WIRE_RECORD, &q.id)->record.n_slices, 2 * RIG_LAYERS);
    (void)rig_destroy(r);
}

static void source_blocks_wait_for_their_pushes_to_end(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(HANDING, &q);
    fire(r, TAKEN, &q);
    assert_null(rig_end(r, P, &q.id)); /* taken, but four posts are still under way */
    assert_int_equal(rig_blocks(r, P, TD_BLK_PARKED), 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(rig_blocks(r, P, TD_BLK_FREE), 60);
        rig_end_push(r, P, TD_OK);
        rig_deliver(r);
    }
    assert_int_equal(rig_end(r, P, &q.id)->err, TD_OK);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

/* A post that never ends: quarantined, then the endpoint is closed, then free. */
static void a_post_that_hangs_is_fenced_by_closing(void **state)
{
    struct td_wire_request q;
    (void)state;
    struct rig *r = bring(HANDING, &q);
    struct rig_push kept[4];
    memcpy(kept, r->node[P].pushes, sizeof kept);
    r->node[P].n_pushes = 0; /* hidden from PUSH_CANCEL */
    fire(r, CANCEL, &q);
    assert_int_equal(rig_blocks(r, P, TD_BLK_QUARANTINED), 4);
    assert_string_equal(rig_wait(r, P, &q.id), waits[ENDING]);
    rig_pass(r, 4 * RIG_SECOND);
    assert_int_equal(rig_blocks(r, P, TD_BLK_QUARANTINED), 4);
    rig_pass(r, 2 * RIG_SECOND);
    rig_assert_idle(r, P);
    for (int i = 0; i < 4; i++) {
        free((void *)(uintptr_t)kept[i].cmd.blocks);
        free((void *)(uintptr_t)kept[i].cmd.src);
    }
    (void)rig_destroy(r);
}

static void a_full_queue_and_a_bad_request_are_refused_without_a_block(void **state)
{
    struct rig_params p = {.n_blocks = 8, .max_queue = 2};
    (void)state;
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    struct td_wire_request q[5];
    for (uint64_t i = 0; i < 4; i++) {
        q[i] = rig_request(i, 100, 10);
        struct td_wire_msg m = rig_prefill(r, P, D, &q[i]);
        rig_msg(r, P, &m, TD_OK);
    }
    rig_deliver(r);
    assert_null(rig_end(r, P, &q[2].id));
    assert_int_equal(rig_end(r, P, &q[3].id)->err, TD_ERR_OVERLOADED);
    q[4] = rig_request(4, 100, 10);
    struct td_wire_msg m = rig_prefill(r, P, D, &q[4]);
    rig_msg(r, P, &m, TD_ERR_UNKNOWN_REQUIRES);
    rig_deliver(r);
    assert_int_equal(rig_end(r, P, &q[4].id)->err, TD_ERR_UNKNOWN_REQUIRES);
    struct td_wire_request stale = rig_request(5, 10, 10);
    m = rig_prefill(r, P, D, &stale);
    m.prefill.ticket.p_epoch = 5; /* meant for an earlier life of this node */
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_end(r, P, &stale.id)->err, TD_ERR_STALE);
    (void)rig_destroy(r);
}

static void a_request_that_comes_twice_runs_once(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 10);
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    rig_msg(r, P, &m, TD_OK);
    rig_msg(r, P, &m, TD_OK);
    rig_deliver(r);
    assert_int_equal(rig_state(r, P).running_requests, 1);
    fire(r, CANCEL, &q);
    rig_settle(r);
    rig_msg(r, P, &m, TD_OK);
    rig_settle(r);
    assert_int_equal(rig_count(r, P, TD_WIRE_END, &q.id), 1);
    rig_assert_idle(r, P);
    (void)rig_destroy(r);
}

static void work_of_another_router_epoch_is_not_accepted(void **state)
{
    (void)state;
    struct rig *r = one(64);
    struct td_wire_request q = rig_request(1, 64, 10);
    struct td_wire_msg m = rig_prefill(r, P, D, &q);
    struct nd_event ev = {.type = ND_EV_MSG, .router_epoch = 999, .msg = &m};
    nd_actions_reset(&r->node[P].actions);
    pf_role_ops.step(r->node[P].core, r->now, &ev, &r->node[P].actions);
    assert_int_equal(pf_role_ops.work_count(r->node[P].core), 0);
    (void)rig_destroy(r);
}

static void counts_and_the_last_word_tell_where_a_prompt_is(void **state)
{
    static const struct {
        enum at at;
        uint32_t blocks, table, transfer;
        unsigned phase;
    } rows[] = {{EXEC, 0, 1, 0, 1},
                {EXEC_TABLE, 0, 0, 0, 1},
                {PARKED, 0, 1, 1, 2},
                {PUSHING, 0, 0, 1, 2},
                {HANDING, 0, 0, 1, 2}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct td_wire_request q;
        struct rig *r = bring(rows[i].at, &q);
        struct nd_counts n = {0};
        r->node[P].ops->count(r->node[P].core, &n);
        assert_int_equal(n.blocks, rows[i].blocks);
        assert_int_equal(n.table, rows[i].table);
        assert_int_equal(n.transfer, rows[i].transfer);
        uint32_t before = r->node[P].n_done;
        struct td_wire_msg cancel = rig_cancel(&q.id);
        rig_msg(r, P, &cancel, TD_OK);
        rig_deliver(r);
        const struct nd_done *d = &r->node[P].done;
        assert_int_equal(r->node[P].n_done, before + 1);
        assert_true(td_work_id_eq(&d->id, &q.id) && !d->decode);
        assert_int_equal(d->err, TD_ERR_CANCELLED);
        assert_int_equal(d->phase, rows[i].phase);
        assert_int_equal(d->n_output, rows[i].transfer);
        assert_true((d->record_us != 0) == (rows[i].at == HANDING));
        assert_true((d->table_us != 0) == (rows[i].table == 0));
        (void)rig_destroy(r);
    }
}

/* Every work ends in the event that loses their router: the list of actions is sized for that. */
static void a_router_with_a_full_queue_may_be_lost_in_one_event(void **state)
{
    enum { WORKS = 5000 };
    (void)state;
    struct rig_params p = {.n_blocks = 8, .chunk = 16, .max_batched = 16, .max_queue = WORKS};
    struct rig *r = rig_create();
    assert_int_equal(rig_add(r, &pf_role_ops, &p), P);
    for (uint64_t i = 1; i <= WORKS; i++) {
        struct td_wire_request q = rig_request(i, i == 1 ? 120 : 64, 10);
        struct td_wire_msg m = rig_prefill(r, P, D, &q);
        rig_msg(r, P, &m, TD_OK);
        rig_deliver(r);
    }
    rig_plain(r, P, ND_EV_ROUTER_LOST, 0);
    rig_deliver(r); /* refuses an overflow */
    assert_true(r->node[P].actions.n > ND_MIN_ACTIONS);
    while (rig_finish(r, P)) {
    }
    rig_assert_idle(r, P);
    rig_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_the_last_word_tell_where_a_prompt_is),
        cmocka_unit_test(every_event_in_every_state_is_answered_as_the_table_says),
        cmocka_unit_test(decode_hears_of_every_bad_end_once),
        cmocka_unit_test(a_foreign_or_second_table_is_refused),
        cmocka_unit_test(a_held_prompt_goes_to_any_peer_that_knows_the_nonce_once),
        cmocka_unit_test(a_hold_ends_at_its_time_and_says_so_to_who_comes_late),
        cmocka_unit_test(a_table_of_a_node_that_the_ticket_does_not_name_is_refused),
        cmocka_unit_test(a_hold_is_given_past_its_budget_and_then_has_a_lease),
        cmocka_unit_test(holds_leave_half_of_the_seats_and_blocks_to_others),
        cmocka_unit_test(holds_and_others_take_turns_as_they_came),
        cmocka_unit_test(one_hold_fits_however_long),
        cmocka_unit_test(holds_leave_half_of_the_line_to_others),
        cmocka_unit_test(a_hold_that_names_a_decode_node_is_refused),
        cmocka_unit_test(a_table_for_an_unknown_work_of_this_process_does_not_wait),
        cmocka_unit_test(a_table_that_does_not_fit_the_prompt_is_refused),
        cmocka_unit_test(a_table_ahead_of_its_request_waits_for_it),
        cmocka_unit_test(an_early_table_does_not_wait_for_ever),
        cmocka_unit_test(a_cancel_of_an_early_table_sends_it_back),
        cmocka_unit_test(chunks_are_pushed_while_the_next_are_computed),
        cmocka_unit_test(only_what_decode_lacks_is_pushed),
        cmocka_unit_test(source_blocks_wait_for_their_pushes_to_end),
        cmocka_unit_test(a_post_that_hangs_is_fenced_by_closing),
        cmocka_unit_test(a_full_queue_and_a_bad_request_are_refused_without_a_block),
        cmocka_unit_test(a_request_that_comes_twice_runs_once),
        cmocka_unit_test(work_of_another_router_epoch_is_not_accepted),
        cmocka_unit_test(a_router_with_a_full_queue_may_be_lost_in_one_event),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("prefill-node/pf", tests, NULL, NULL);
}
