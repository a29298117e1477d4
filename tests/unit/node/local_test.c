/* The router inside of a node, by hand and with a role that really serves (the rig). */
#include "common/node/local.h"

#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "decode-node/dc_core.h"
#include "tests/unit/check.h"
#include "tests/unit/node/rig.h"

struct heard { /* what the service was told of one work */
    uint32_t n_tokens, n_ends;
    int32_t tokens[64];
    struct nd_local_end end;
};

static void on_token(void *arg, const struct nd_local_token *t)
{
    struct heard *h = arg;
    assert_int_equal(t->index, h->n_tokens);
    assert_int_equal(h->n_ends, 0);
    h->tokens[h->n_tokens++] = t->token;
}

static void on_end(void *arg, const struct nd_local_end *e)
{
    struct heard *h = arg;
    h->n_ends++;
    h->end = *e;
    h->end.text = NULL;
}

static const struct nd_local_ops ops = {.on_token = on_token, .on_end = on_end};

static struct nd_local *make(enum td_role role)
{
    struct nd_local_params p = {.epoch = RIG_ROUTER,
                                .node_epoch = 0xe000,
                                .role = role,
                                .layout_id = RIG_LAYOUT_ID,
                                .numerics_id = RIG_NUMERICS,
                                .hold_ms = 1000,
                                .max_tokens = 2 * RIG_MAX_ROWS};
    struct nd_local *l = NULL;
    assert_int_equal(nd_local_create(&p, &l), TD_OK);
    return l;
}

static struct nd_local_request whole(const struct td_wire_request *q)
{
    return (struct nd_local_request){.mode = ND_LOCAL_WHOLE,
                                     .request_id = "r",
                                     .budget_ms = 60000,
                                     .prompt = q->prompt,
                                     .n_prompt = q->n_prompt,
                                     .sampling = q->sampling};
}

static void hear(struct nd_local *l)
{
    struct nd_local_word w;
    while (nd_local_next(l, &w)) {
        if (w.type == ND_LOCAL_TOKEN) {
            w.ops->on_token(w.arg, &w.token);
        } else if (w.type == ND_LOCAL_END) {
            w.ops->on_end(w.arg, &w.end);
        }
    }
    assert_int_equal(nd_local_check(l), TD_OK);
}

/* The role's words since mail `from`. */
static void carry(const struct rig *r, struct nd_local *l, uint32_t *from)
{
    for (; *from < r->n_mail; (*from)++) {
        if (r->mail[*from].to == nd_local_epoch(l)) {
            nd_local_take(l, &r->mail[*from].msg);
        }
    }
    hear(l);
}

static void whole_requests_are_answered_by_the_role(void **state)
{
    enum { N = 6 };
    (void)state;
    struct rig *r = rig_create();
    struct rig_params both = {.local_prefill = true};
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h[N] = {0};
    uint32_t at = 0;
    assert_int_equal(rig_add(r, &dc_role_ops, &both), 0);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 5 + i);
        struct nd_local_request lr = whole(&q);
        struct td_wire_msg m;
        uint64_t ref = 0;
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h[i], &ref, &m), TD_OK);
        rig_msg(r, 0, &m, TD_OK);
    }
    assert_int_equal(nd_local_count(l), N);
    rig_settle(r);
    carry(r, l, &at);
    for (uint32_t i = 0; i < N; i++) {
        struct td_wire_request q = rig_request(i, 10 + 20 * i, 5 + i);
        assert_int_equal(h[i].n_ends, 1);
        assert_int_equal(h[i].end.err, TD_OK);
        assert_int_equal(h[i].end.finish, TD_FINISH_LENGTH);
        assert_int_equal(h[i].end.stages.output_tokens, 5 + i);
        assert_int_equal(h[i].n_tokens, 5 + i);
        for (uint32_t k = 0; k < 5 + i; k++) {
            assert_int_equal(h[i].tokens[k], rig_expect(&q, k));
        }
    }
    assert_int_equal(nd_local_count(l), 0);
    rig_assert_idle(r, 0);
    l = nd_local_destroy(l);
    (void)rig_destroy(r);
}

static void a_cancel_ends_a_work_once_and_a_late_one_is_nothing(void **state)
{
    (void)state;
    struct rig *r = rig_create();
    struct rig_params both = {.local_prefill = true};
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    uint32_t at = 0;
    assert_int_equal(rig_add(r, &dc_role_ops, &both), 0);
    struct td_wire_request q = rig_request(1, 40, 20);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    rig_msg(r, 0, &m, TD_OK);
    rig_deliver(r);
    assert_true(nd_local_cancel(l, ref, &m));
    rig_msg(r, 0, &m, TD_OK);
    rig_settle(r);
    carry(r, l, &at);
    assert_int_equal(h.n_ends, 1);
    assert_int_equal(h.end.err, TD_ERR_CANCELLED);
    assert_int_equal(h.end.finish, TD_FINISH_NONE);
    assert_false(nd_local_cancel(l, ref, &m));
    rig_assert_idle(r, 0);
    l = nd_local_destroy(l);
    (void)rig_destroy(r);
}

static struct td_wire_msg end_of(const struct nd_local *l, uint64_t ref)
{
    struct td_wire_msg m = {.type = TD_WIRE_END};
    m.end = (struct td_wire_end){.id = {.router_epoch = nd_local_epoch(l), .counter = ref},
                                 .err = TD_ERR_BUDGET,
                                 .text = "spent",
                                 .stages.transport = ""};
    return m;
}

static void nothing_is_said_of_a_detached_work(void **state)
{
    (void)state;
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    nd_local_detach(l, ref);
    m = end_of(l, ref);
    nd_local_take(l, &m);
    hear(l);
    assert_int_equal(h.n_ends, 0);
    assert_int_equal(nd_local_count(l), 0);
    nd_local_detach(l, ref); /* over: nothing */
    l = nd_local_destroy(l);
}

static void works_are_bounded_and_their_numbers_never_come_twice(void **state)
{
    (void)state;
    static uint64_t refs[ND_LOCAL_MAX_WORKS];
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct heard h = {0};
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request lr = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &refs[i], &m), TD_OK);
    }
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_ERR_OVERLOADED);
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        m = end_of(l, refs[i]);
        nd_local_take(l, &m);
        nd_local_take(l, &m); /* a second end is nobody's */
    }
    hear(l);
    assert_int_equal(h.n_ends, ND_LOCAL_MAX_WORKS);
    assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, &h, &ref, &m), TD_OK);
    for (uint32_t i = 0; i < ND_LOCAL_MAX_WORKS; i++) {
        assert_true(refs[i] != ref);
    }
    l = nd_local_destroy(l);
}

static void a_mode_that_the_role_does_not_serve_is_refused(void **state)
{
    (void)state;
    static const enum td_role roles[] = {TD_ROLE_PREFILL, TD_ROLE_DECODE};
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        struct nd_local *l = make(roles[i]);
        struct td_wire_request q = rig_request(1, 4, 2);
        struct nd_local_request lr = whole(&q);
        struct td_wire_msg m;
        uint64_t ref = 0;
        assert_int_equal(nd_local_submit(l, &lr, NULL, &ops, NULL, &ref, &m), TD_ERR_UNSUPPORTED);
        assert_int_equal(nd_local_count(l), 0);
        l = nd_local_destroy(l);
    }
}

static void a_prompt_and_a_budget_are_needed(void **state)
{
    (void)state;
    struct nd_local *l = make(TD_ROLE_BOTH);
    struct td_wire_request q = rig_request(1, 4, 2);
    struct nd_local_request none = whole(&q);
    struct nd_local_request late = whole(&q);
    struct td_wire_msg m;
    uint64_t ref = 0;
    none.n_prompt = 0;
    late.budget_ms = 0;
    assert_int_equal(nd_local_submit(l, &none, NULL, &ops, NULL, &ref, &m), TD_ERR_BAD_REQUEST);
    assert_int_equal(nd_local_submit(l, &late, NULL, &ops, NULL, &ref, &m), TD_ERR_BAD_REQUEST);
    l = nd_local_destroy(l);
}

static void creation_survives_each_failing_allocation(void **state)
{
    (void)state;
    struct nd_local_params p = {.epoch = 1, .node_epoch = 2, .role = TD_ROLE_BOTH, .max_tokens = 4};
    struct nd_local *l = NULL;
    td_err e = TD_ERR_NO_MEMORY;
    unsigned n = 0;
    while (e == TD_ERR_NO_MEMORY) {
        td_mem_fail_nth(++n);
        e = nd_local_create(&p, &l);
        td_mem_fail_nth(0);
    }
    assert_int_equal(e, TD_OK);
    assert_true(n > 3);
    l = nd_local_destroy(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_requests_are_answered_by_the_role),
        cmocka_unit_test(a_cancel_ends_a_work_once_and_a_late_one_is_nothing),
        cmocka_unit_test(nothing_is_said_of_a_detached_work),
        cmocka_unit_test(works_are_bounded_and_their_numbers_never_come_twice),
        cmocka_unit_test(a_mode_that_the_role_does_not_serve_is_refused),
        cmocka_unit_test(a_prompt_and_a_budget_are_needed),
        cmocka_unit_test(creation_survives_each_failing_allocation),
    };
    td_log_set_level(TD_LOG_ERROR);
    return cmocka_run_group_tests_name("node/local", tests, NULL, NULL);
}
