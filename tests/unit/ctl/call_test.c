/* What a status means for a script; and that what cannot be asked over gRPC is told apart. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/check.h"

#include "common/base/mem.h"
#include "ctl/call.h"

static int silence(void **state)
{
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static void only_ok_is_done_and_lateness_is_no_answer(void **state)
{
    (void)state;
    static const struct {
        enum td_grpc_status status;
        enum ctl_exit exit;
    } rows[] = {{TD_GRPC_OK, CTL_OK},
                {TD_GRPC_NOT_FOUND, CTL_FAILED},
                {TD_GRPC_UNAVAILABLE, CTL_FAILED},
                {TD_GRPC_UNIMPLEMENTED, CTL_FAILED},
                {TD_GRPC_DEADLINE_EXCEEDED, CTL_UNREACHABLE}};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_grpc_client_answer a = {.status = rows[i].status};
        td_buf_init(&a.bytes, 100);
        assert_int_equal(td_buf_append(&a.bytes, "x", 1), TD_OK);
        assert_int_equal(ctl_call_judge("p0", i % 2 == 0, &a), rows[i].exit);
        assert_true((a.bytes.data != NULL) == (rows[i].exit == CTL_OK)); /* else it is freed */
        td_grpc_client_answer_fini(&a);
    }
}

static bool never(void *arg, const uint8_t *data, size_t len)
{
    (void)arg;
    (void)data;
    (void)len;
    return false;
}

static void a_wrong_address_is_wrong_usage_and_nobody_is_unreachable(void **state)
{
    (void)state;
    static const struct {
        const char *router;
        enum ctl_exit exit;
    } rows[] = {{"ftp://x", CTL_USAGE},
                {"http://127.0.0.1:1/tandem", CTL_USAGE},
                {"127.0.0.1:1", CTL_UNREACHABLE},
                {"https://127.0.0.1:1", CTL_UNREACHABLE}};
    const struct td_buf nothing = {0};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        const struct ctl_admin a = {.router = (char *)(uintptr_t)rows[i].router, .timeout_s = 20};
        struct td_grpc_client_answer answer;
        assert_int_equal(ctl_call_admin(&a, "ListNodes", "x", &nothing, &answer), rows[i].exit);
        assert_int_equal(ctl_call_admin_stream(&a, "WatchEvents", &nothing, never, NULL),
                         rows[i].exit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_ok_is_done_and_lateness_is_no_answer),
        cmocka_unit_test(a_wrong_address_is_wrong_usage_and_nobody_is_unreachable),
    };
    return cmocka_run_group_tests_name("call", tests, silence, NULL);
}
