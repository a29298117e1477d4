#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/io/ucx.h"
#include "tests/unit/check.h"

static const struct td_ucx_params loopback = {.device = "lo", .transports = "sm,tcp"};

static void a_device_beyond_loopback_needs_trust_for_tcp(void **state)
{
    (void)state;
    assert_int_equal(td_ucx_check_device("lo", "", false), TD_OK);
    assert_int_equal(td_ucx_check_device("all", "", false), TD_ERR_CONFIG);
    assert_int_equal(td_ucx_check_device("all", "", true), TD_OK);
    assert_int_equal(td_ucx_check_device("all", "sm", false), TD_OK);
    assert_int_equal(td_ucx_check_device("all", "^tcp", false), TD_OK);
    assert_int_equal(td_ucx_check_device("all", "^sm", false), TD_ERR_CONFIG);
    assert_int_equal(td_ucx_check_device("all", "sm,tcp", false), TD_ERR_CONFIG);
    assert_int_equal(td_ucx_check_device("lo,all", "all", false), TD_ERR_CONFIG);
    assert_int_equal(td_ucx_check_device("nosuchdevice", "", true), TD_ERR_ADDRESS);
    assert_int_equal(td_ucx_check_device("../../lo", "", true), TD_ERR_ADDRESS);
    assert_int_equal(td_ucx_check_device("lo:1,nosuchdevice", "", true), TD_ERR_ADDRESS);
    assert_int_equal(
        td_ucx_check_device("a_name_that_is_much_longer_than_any_device_of_any_machine_can_be_x",
                            "", true),
        TD_ERR_ADDRESS);
    assert_int_equal(td_ucx_check_device("", "", true), TD_ERR_CONFIG);
    assert_int_equal(td_ucx_check_device(NULL, "", true), TD_ERR_CONFIG);
}

static void a_refused_device_opens_nothing(void **state)
{
    struct td_ucx_params p = {.device = "all", .transports = "tcp"};
    struct td_ucx u = {0};
    (void)state;
    assert_int_equal(td_ucx_open(&p, &u), TD_ERR_CONFIG);
    assert_null(u.worker);
    td_ucx_close(&u); /* a zeroed one is fine */
}

static void an_unknown_transport_is_an_error(void **state)
{
    struct td_ucx_params p = {.device = "lo", .transports = "nosuchtransport"};
    struct td_ucx u = {0};
    (void)state;
    char log[4096];
    int ends[2];
    assert_int_equal(pipe(ends), 0); /* NOLINT: one thread, no exec */
    td_log_set_fd(ends[1]);
    td_err e = td_ucx_open(&p, &u);
    td_log_set_fd(2);
    (void)close(ends[1]);
    ssize_t n = read(ends[0], log, sizeof log - 1);
    (void)close(ends[0]);
    log[n > 0 ? n : 0] = '\0';
    assert_true(e != TD_OK);
    assert_non_null(strstr(log, "level=error")); /* names the option, not only UCX's own words */
    assert_non_null(strstr(log, "see --kv-transports"));
}

static void the_pool_is_registered_once(void **state)
{
    static uint8_t pool[1 << 16];
    struct td_ucx_params p = loopback;
    struct td_ucx u;
    (void)state;
    p.pool = pool;
    p.pool_bytes = sizeof pool;
    assert_int_equal(td_ucx_open(&p, &u), TD_OK);
    assert_int_equal(u.registrations, 1);
    td_ucx_close(&u);
    td_ucx_close(&u); /* twice is as good as once */
}

static void no_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static void an_address_of_ours_connects_and_no_other_does(void **state)
{
    struct td_ucx a;
    struct td_ucx b;
    uint8_t bad[TD_UCX_MAX_ADDRESS + 1];
    ucp_ep_h ep = NULL;
    ucp_err_handler_t h = {no_error, NULL};
    ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = UCP_EP_CLOSE_FLAG_FORCE};
    (void)state;
    assert_int_equal(td_ucx_open(&loopback, &a), TD_OK);
    assert_int_equal(td_ucx_open(&loopback, &b), TD_OK);
    assert_true(a.address_bytes <= TD_UCX_MAX_ADDRESS);
    for (size_t i = 0; i < a.address_bytes; i++) { /* any byte that differs */
        memcpy(bad, a.address, a.address_bytes);
        bad[i] ^= 0x20;
        assert_int_equal(td_ucx_connect(&b, bad, a.address_bytes, h, &ep), TD_ERR_ADDRESS);
        assert_false(td_ucx_address_ok(bad, a.address_bytes));
    }
    for (size_t n = 0; n < a.address_bytes; n++) { /* any length that differs */
        assert_int_equal(td_ucx_connect(&b, a.address, n, h, &ep), TD_ERR_ADDRESS);
    }
    assert_int_equal(td_ucx_connect(&b, bad, sizeof bad, h, &ep), TD_ERR_ADDRESS);
    assert_int_equal(td_ucx_connect(&b, NULL, 0, h, &ep), TD_ERR_ADDRESS);
    assert_true(td_ucx_address_ok(a.address, a.address_bytes));
    assert_int_equal(td_ucx_connect(&b, a.address, a.address_bytes, h, &ep), TD_OK);
    assert_string_equal(td_ucx_transport(ep), "shm"); /* the faster of the two */
    ucs_status_ptr_t r = ucp_ep_close_nbx(ep, &force);
    if (UCS_PTR_IS_PTR(r)) {
        ucp_request_free(r);
    }
    td_ucx_close(&b);
    td_ucx_close(&a);
}

static void a_worker_of_tags_may_pass_from_thread_to_thread(void **state)
{
    struct td_ucx_params p = loopback;
    struct td_ucx u;
    ucp_worker_attr_t worker = {.field_mask = UCP_WORKER_ATTR_FIELD_THREAD_MODE};
    (void)state;
    p.tags = true;
    assert_int_equal(td_ucx_open(&p, &u), TD_OK);
    assert_int_equal(ucp_worker_query(u.worker, &worker), UCS_OK);
    assert_int_equal(worker.thread_mode, UCS_THREAD_MODE_SERIALIZED);
    td_ucx_close(&u);
}

static void signals_are_left_to_the_program(void **state)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP};
    struct td_ucx u;
    (void)state;
    assert_int_equal(td_ucx_open(&loopback, &u), TD_OK);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction now;
        struct sigaction ours = {.sa_handler = SIG_IGN};
        struct sigaction old;
        assert_int_equal(sigaction(signals[i], &ours, &old), 0);
        assert_int_equal(sigaction(signals[i], &old, &now), 0);
        assert_true(now.sa_handler == SIG_IGN); /* UCX would have swallowed it */
    }
    td_ucx_close(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_beyond_loopback_needs_trust_for_tcp),
        cmocka_unit_test(a_refused_device_opens_nothing),
        cmocka_unit_test(an_unknown_transport_is_an_error),
        cmocka_unit_test(the_pool_is_registered_once),
        cmocka_unit_test(an_address_of_ours_connects_and_no_other_does),
        cmocka_unit_test(a_worker_of_tags_may_pass_from_thread_to_thread),
        cmocka_unit_test(signals_are_left_to_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
