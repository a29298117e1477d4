#include "common/node/role.h"

#include <string.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "tests/unit/node/role_cases.h"

/* The base of a role by itself: a role with sequences that are nothing but their record. */
struct seq {
    _Alignas(16) struct nd_work w;
};

static const struct nd_role_shape shape = {
    .n_seats = 4, .work_bytes = sizeof(struct seq), .n_tokens = 8};

static void role_up(struct nd_role *r, struct nd_actions *a, struct td_engine_info *e)
{
    *e = role_engine();
    struct nd_core_params p = role_params(e);
    assert_int_equal(nd_role_init(r, &p, &shape), TD_OK);
    assert_int_equal(nd_actions_init(a, ND_MIN_ACTIONS), TD_OK);
    r->out = a;
}

static void role_down(struct nd_role *r, struct nd_actions *a)
{
    nd_role_fini(r);
    nd_actions_fini(a);
}

static struct nd_work *known(struct nd_role *r, uint64_t router, uint64_t counter)
{
    struct td_wire_request q = rig_request(counter, 10, 10);
    struct nd_work *w = NULL;
    q.id.router_epoch = router;
    assert_int_equal(nd_works_open(r->works, &q, 1000, &w), TD_OK);
    return w;
}

static void creation_survives_every_failed_allocation(void **state)
{
    struct td_engine_info e = role_engine();
    struct nd_core_params p = role_params(&e);
    struct nd_role r;
    td_err err;
    unsigned nth = 0;
    (void)state;
    do {
        td_mem_fail_nth(++nth);
        err = nd_role_init(&r, &p, &shape);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
        td_mem_fail_nth(0);
        nd_role_fini(&r);
    } while (err != TD_OK);
    assert_true(nth > 5);
}

static void a_batch_that_fits_no_block_is_refused(void **state)
{
    struct td_engine_info e = role_engine();
    struct nd_core_params p = role_params(&e);
    struct nd_role r;
    (void)state;
    p.chunk_tokens = 0;
    assert_int_equal(nd_role_init(&r, &p, &shape), TD_ERR_CONFIG);
    nd_role_fini(&r);
}

static void seats_are_twice_the_running_within_a_limit(void **state)
{
    struct nd_core_params p = {.max_seqs = 3};
    (void)state;
    assert_int_equal(nd_role_seats(&p, 100), 6);
    assert_int_equal(nd_role_seats(&p, 5), 5);
}

static void records_are_walked_by_router(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    uint32_t n = 0;
    (void)state;
    role_up(&r, &a, &e);
    for (uint64_t i = 1; i <= 4; i++) {
        (void)known(&r, i % 2 == 0 ? 7 : 8, i);
    }
    for (uint32_t at = 0; nd_role_next(&r, &at, 0) != NULL; n++) {
    }
    assert_int_equal(n, 4);
    for (uint32_t at = 0; nd_role_next(&r, &at, 9) != NULL; n++) {
    }
    assert_int_equal(n, 4);
    struct nd_work *w;
    for (uint32_t at = 0; (w = nd_role_next(&r, &at, 7)) != NULL; n++) {
        assert_int_equal(w->id.router_epoch, 7);
        nd_works_close(r.works, w); /* closing while walking is allowed */
    }
    assert_int_equal(n, 6);
    role_down(&r, &a);
}

/* Steps end in the order in which they began; a row that the engine mixes up has failed. */
static void a_flight_tells_its_rows_and_outlives_the_next_ones_start(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    (void)state;
    role_up(&r, &a, &e);
    struct td_row rows[2] = {{.n = 7}, {.n = 1}};
    for (uint32_t i = 0; i < TD_ENGINE_MAX_INFLIGHT; i++) {
        struct nd_flight *f = nd_role_flight(&r);
        nd_flight_add(f, (struct td_seq_ref){10 + i, 1}, 7, 7);
        nd_flight_add(f, (struct td_seq_ref){20 + i, 5}, 0, 1);
        assert_int_equal(f->prompt_tok, 7); /* decode rows have none */
        nd_role_launch(&r, f, rows);
    }
    for (uint32_t i = 0; i < TD_ENGINE_MAX_INFLIGHT; i++) {
        struct td_row_result res[2] = {{.seq = {10 + i, 1}}, {.seq = {20 + i, 6}}};
        struct td_step_result late = {.ticket = 2 + i, .rows = res, .n_rows = 2};
        assert_null(nd_role_landed(&r, &late));
        struct td_step_result done = {.ticket = 1 + i, .rows = res, .n_rows = 2};
        const struct nd_flight *f = nd_role_landed(&r, &done);
        const struct td_row_result *row = NULL;
        assert_non_null(f);
        assert_int_equal(nd_flight_result(f, &done, 0, &row), TD_OK);
        assert_ptr_equal(row, &res[0]);
        assert_int_equal(nd_flight_result(f, &done, 1, &row),
                         TD_ERR_SEQ_FAILED); /* another tenancy */
        res[1].seq.generation = 5;
        done.n_rows = 1; /* not named at all */
        assert_int_equal(nd_flight_result(f, &done, 1, &row), TD_ERR_SEQ_FAILED);
        nd_role_drop_flight(&r);
    }
    assert_int_equal(r.n_flights, 0);
    role_down(&r, &a);
}

static void the_earliest_limit_of_a_drain_counts_and_is_said_once(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    struct td_wire_state s = {0};
    (void)state;
    role_up(&r, &a, &e);
    struct nd_event ev = {.type = ND_EV_DRAIN, .deadline_us = 500};
    assert_true(nd_role_drain(&r, &ev));
    ev.deadline_us = 900;
    assert_true(nd_role_drain(&r, &ev));
    assert_int_equal(nd_role_next_deadline(&r), 500);
    nd_role_state(&r, &s);
    assert_true(s.draining);
    r.now = 499;
    assert_false(nd_role_drain_over(&r));
    r.now = 500;
    assert_true(nd_role_drain_over(&r));
    assert_false(nd_role_drain_over(&r));
    ev.type = ND_EV_UNDRAIN;
    assert_true(nd_role_drain(&r, &ev));
    nd_role_state(&r, &s);
    assert_false(s.draining);
    ev.type = ND_EV_TICK;
    assert_false(nd_role_drain(&r, &ev));
    role_down(&r, &a);
}

static void another_routers_work_is_counted_and_not_touched(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    struct td_wire_msg m = {.type = TD_WIRE_CANCEL};
    struct nd_event ev = {.type = ND_EV_MSG, .router_epoch = 7, .msg = &m};
    (void)state;
    role_up(&r, &a, &e);
    m.cancel.id.router_epoch = 7;
    assert_false(nd_role_is_foreign(&r, &ev));
    assert_int_equal(a.n, 0);
    m.cancel.id.router_epoch = 8;
    assert_true(nd_role_is_foreign(&r, &ev));
    assert_int_equal(a.n, 1);
    assert_int_equal(a.list[0].metric, ND_M_STALE);
    role_down(&r, &a);
}

static void what_is_not_served_is_ended_with_a_reason(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    struct td_work_id id = {.router_epoch = 7, .counter = 3};
    (void)state;
    role_up(&r, &a, &e);
    nd_role_refuse(&r, 7, &id, "not here");
    assert_int_equal(a.n, 1);
    assert_int_equal(a.list[0].router_epoch, 7);
    assert_int_equal(a.list[0].msg->type, TD_WIRE_END);
    assert_int_equal(a.list[0].msg->end.err, TD_ERR_UNSUPPORTED);
    assert_string_equal(a.list[0].msg->end.text, "not here");
    assert_true(td_work_id_eq(&a.list[0].msg->end.id, &id));
    role_down(&r, &a);
}

static void a_sum_that_is_off_by_one_is_noticed(void **state)
{
    struct td_engine_info e;
    struct nd_actions a;
    struct nd_role r;
    struct nd_role_sums sums = {.seats = 1};
    (void)state;
    role_up(&r, &a, &e);
    assert_int_not_equal(nd_slots_take(r.seats), 0);
    assert_int_equal(nd_role_check(&r, &sums), TD_OK);
    for (int i = 0; i < 3; i++) {
        struct nd_role_sums off = sums;
        *(i == 0 ? &off.blocks : i == 1 ? &off.seats : &off.slots) += 1;
        assert_int_equal(nd_role_check(&r, &off), TD_ERR_INTERNAL);
    }
    r.broken = true;
    assert_int_equal(nd_role_check(&r, &sums), TD_ERR_INTERNAL);
    role_down(&r, &a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_survives_every_failed_allocation),
        cmocka_unit_test(a_batch_that_fits_no_block_is_refused),
        cmocka_unit_test(seats_are_twice_the_running_within_a_limit),
        cmocka_unit_test(records_are_walked_by_router),
        cmocka_unit_test(a_flight_tells_its_rows_and_outlives_the_next_ones_start),
        cmocka_unit_test(the_earliest_limit_of_a_drain_counts_and_is_said_once),
        cmocka_unit_test(another_routers_work_is_counted_and_not_touched),
        cmocka_unit_test(what_is_not_served_is_ended_with_a_reason),
        cmocka_unit_test(a_sum_that_is_off_by_one_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
