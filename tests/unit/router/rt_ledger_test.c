#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/mem.h"
#include "router/rt_ledger.h"

static const int32_t ids[3] = {7, 8, 9};
static const struct td_logit_bias bias[1] = {{.id = 4, .bias = -1}};

static struct rt_submit request(void)
{
    return (struct rt_submit){.prompt = ids,
                              .n_prompt = 3,
                              .sampling = {.max_tokens = 5, .n_bias = 1, .bias = bias},
                              .tenant = "acme",
                              .request_id = NULL};
}

static void an_entry_owns_copies_and_is_found_by_its_counter(void **state)
{
    (void)state;
    struct rt_ledger l;
    assert_int_equal(rt_ledger_init(&l, 2), TD_OK);
    struct rt_submit s = request();
    struct rt_entry *e = NULL, *f = NULL;
    assert_int_equal(rt_ledger_open(&l, &s, &e), TD_OK);
    assert_ptr_not_equal(e->tokens, ids);
    assert_memory_equal(e->tokens, ids, sizeof ids);
    assert_ptr_not_equal(e->sampling.bias, bias);
    assert_string_equal(e->tenant, "acme");
    assert_string_equal(e->request_id, "");
    assert_ptr_equal(rt_ledger_find(&l, e->counter), e);
    assert_int_equal(rt_ledger_open(&l, &s, &f), TD_OK);
    assert_int_equal(rt_ledger_open(&l, &s, &f), TD_ERR_OVERLOADED);
    uint64_t old = e->counter;
    rt_ledger_close(&l, e);
    assert_null(rt_ledger_find(&l, old));
    assert_int_equal(rt_ledger_open(&l, &s, &e), TD_OK);
    assert_int_not_equal(e->counter, old);
    rt_ledger_fini(&l);
}

static void opening_survives_failing_allocations(void **state)
{
    (void)state;
    struct rt_ledger l;
    assert_int_equal(rt_ledger_init(&l, 2), TD_OK);
    struct rt_submit s = request();
    for (unsigned n = 1;; n++) {
        struct rt_entry *e = NULL;
        td_mem_fail_nth(n);
        td_err err = rt_ledger_open(&l, &s, &e);
        td_mem_fail_nth(0);
        if (err == TD_OK) {
            break;
        }
        assert_int_equal(err, TD_ERR_NO_MEMORY);
        assert_int_equal(l.by_phase[RT_FREE], 2);
        assert_true(n < 16);
    }
    rt_ledger_fini(&l);
}

static void phases_are_counted(void **state)
{
    (void)state;
    struct rt_ledger l;
    assert_int_equal(rt_ledger_init(&l, 4), TD_OK);
    struct rt_submit s = request();
    struct rt_entry *e = NULL;
    assert_int_equal(rt_ledger_open(&l, &s, &e), TD_OK);
    assert_int_equal(l.by_phase[RT_QUEUED], 1);
    rt_ledger_set_phase(&l, e, RT_PREFILL);
    rt_ledger_set_phase(&l, e, RT_DECODE);
    rt_ledger_set_phase(&l, e, RT_CLOSING);
    assert_int_equal(l.by_phase[RT_CLOSING], 1);
    assert_string_equal(rt_phase_name(RT_CLOSING), "closing");
    rt_ledger_close(&l, e);
    assert_int_equal(l.by_phase[RT_FREE], 4);
    rt_ledger_fini(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_owns_copies_and_is_found_by_its_counter),
        cmocka_unit_test(opening_survives_failing_allocations),
        cmocka_unit_test(phases_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
