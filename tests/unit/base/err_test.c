#include "common/base/err.h"

#include <string.h>

#include "tests/unit/check.h"

static const td_err all[] = {TD_OK,
#define ROW(name, value, code, http, retry, cls, text) TD_ERR_##name,
                             TD_ERR_TABLE(ROW)
#undef ROW
};
#define N_ALL (sizeof all / sizeof all[0])

static void every_error_has_a_code_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ALL; i++) {
        const char *code = td_err_code(all[i]);
        assert_true(td_err_known((int)all[i]));
        assert_int_equal(strspn(code, "abcdefghijklmnopqrstuvwxyz_"), strlen(code));
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(code, td_err_code(all[j]));
            assert_int_not_equal(all[i], all[j]);
        }
    }
}

static void every_failure_is_negative_and_has_a_failing_status(void **state)
{
    (void)state;
    for (size_t i = 1; i < N_ALL; i++) {
        assert_true((int)all[i] < 0);
        assert_in_range(td_err_http(all[i]), 400, 599);
        assert_true(td_err_text(all[i])[0] != '\0');
        assert_int_not_equal(td_err_class_of(all[i]), TD_CLASS_NONE);
    }
}

static void success_is_zero_with_status_200(void **state)
{
    (void)state;
    assert_int_equal(TD_OK, 0);
    assert_string_equal(td_err_code(TD_OK), "ok");
    assert_int_equal(td_err_http(TD_OK), 200);
    assert_false(td_err_retryable(TD_OK));
}

static void overload_may_be_retried_and_bad_requests_may_not(void **state)
{
    (void)state;
    assert_true(td_err_retryable(TD_ERR_OVERLOADED));
    assert_int_equal(td_err_http(TD_ERR_OVERLOADED), 429);
    assert_false(td_err_retryable(TD_ERR_BAD_REQUEST));
    assert_int_equal(td_err_http(TD_ERR_NO_NODE), 503);
}

static void a_lost_peer_is_of_the_peer_class(void **state)
{
    (void)state;
    assert_true(td_err_is_peer(TD_ERR_PEER_LOST));
    assert_false(td_err_is_peer(TD_ERR_NO_MEMORY));
}

static void an_unknown_number_reads_as_internal_error(void **state)
{
    (void)state;
    td_err wire = (td_err)-999;
    assert_false(td_err_known(-999));
    assert_false(td_err_known(1));
    assert_string_equal(td_err_code(wire), "internal_error");
    assert_int_equal(td_err_http(wire), 500);
}

static td_err forward(td_err e, int *reached)
{
    TD_TRY(e);
    *reached = 1;
    return TD_OK;
}

static void try_returns_the_failure_and_goes_on_after_success(void **state)
{
    int reached = 0;
    (void)state;
    assert_int_equal(forward(TD_ERR_FULL, &reached), TD_ERR_FULL);
    assert_int_equal(reached, 0);
    assert_int_equal(forward(TD_OK, &reached), TD_OK);
    assert_int_equal(reached, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_has_a_code_of_its_own),
        cmocka_unit_test(every_failure_is_negative_and_has_a_failing_status),
        cmocka_unit_test(success_is_zero_with_status_200),
        cmocka_unit_test(overload_may_be_retried_and_bad_requests_may_not),
        cmocka_unit_test(a_lost_peer_is_of_the_peer_class),
        cmocka_unit_test(an_unknown_number_reads_as_internal_error),
        cmocka_unit_test(try_returns_the_failure_and_goes_on_after_success),
    };
    return cmocka_run_group_tests_name("base/err", tests, NULL, NULL);
}
