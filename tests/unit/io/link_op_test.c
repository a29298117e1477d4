#include "common/io/link_op.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

struct seen {
    struct link_op op;
    unsigned calls;
    int result;
    bool end_inside;
};

static void note(void *arg)
{
    struct seen *s = arg;
    s->calls++;
    s->result = nng_aio_result(s->op.aio);
    assert_false(s->op.busy);
    if (s->end_inside) {
        link_op_fini(&s->op);
    }
}

static void run_until_called(struct td_loop *loop, const struct seen *s)
{
    int64_t give_up = td_now_us() + 60000000;
    while (s->calls == 0 && td_now_us() < give_up) {
        td_loop_run_once(loop, 20000);
    }
}

static void a_completion_reaches_the_loop_once(void **state)
{
    struct td_loop *loop = NULL;
    struct seen s = {.calls = 0};
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(link_op_init(&s.op, loop, "test", note, &s), TD_OK);
    link_op_begin(&s.op);
    nng_sleep_aio(1, s.op.aio);
    run_until_called(loop, &s);
    assert_int_equal(s.calls, 1);
    assert_int_equal(s.result, 0);
    td_loop_run_once(loop, 1000);
    assert_int_equal(s.calls, 1);
    link_op_fini(&s.op);
    loop = td_loop_destroy(loop);
}

static void a_stopped_operation_does_not_call_back(void **state)
{
    struct td_loop *loop = NULL;
    struct seen s = {.calls = 0};
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(link_op_init(&s.op, loop, "test", note, &s), TD_OK);
    link_op_begin(&s.op);
    nng_sleep_aio(60000, s.op.aio);
    link_op_fini(&s.op); /* its ring is dropped with its doorbell */
    td_loop_run_once(loop, 1000);
    assert_int_equal(s.calls, 0);
    link_op_fini(&s.op); /* twice is fine */
    loop = td_loop_destroy(loop);
}

static void an_operation_may_end_itself(void **state)
{
    struct td_loop *loop = NULL;
    struct seen s = {.end_inside = true};
    (void)state;
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(link_op_init(&s.op, loop, "test", note, &s), TD_OK);
    link_op_begin(&s.op);
    nng_sleep_aio(1, s.op.aio);
    run_until_called(loop, &s);
    assert_int_equal(s.calls, 1);
    loop = td_loop_destroy(loop);
}

static void errors_are_translated(void **state)
{
    (void)state;
    assert_int_equal(link_nng_err(0), TD_OK);
    assert_int_equal(link_nng_err(NNG_ENOMEM), TD_ERR_NO_MEMORY);
    assert_int_equal(link_nng_err(NNG_EADDRINUSE), TD_ERR_ADDRESS);
    assert_int_equal(link_nng_err(NNG_ECLOSED), TD_ERR_CLOSED);
    assert_int_equal(link_nng_err(NNG_EPROTO), TD_ERR_TRANSPORT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_completion_reaches_the_loop_once),
        cmocka_unit_test(a_stopped_operation_does_not_call_back),
        cmocka_unit_test(an_operation_may_end_itself),
        cmocka_unit_test(errors_are_translated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
