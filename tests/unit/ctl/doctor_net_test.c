/* Addresses taken apart, ports tried, and transports that cannot be measured. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/check.h"

#include "ctl/doctor_net.h"

static struct ctl_report report;

static int fresh(void **state)
{
    (void)state;
    memset(&report, 0, sizeof report);
    return 0;
}

static void addresses_of_every_form_are_taken_apart(void **state)
{
    (void)state;
    static const struct {
        const char *address, *host, *port;
    } rows[] = {{"8000", "127.0.0.1", "8000"},       {"localhost:1", "localhost", "1"},
                {"127.0.0.1:0", "127.0.0.1", "0"},   {"[::1]:65535", "::1", "65535"},
                {"tcp://host:8101", "host", "8101"}, {"http://host:8001/", "host", "8001"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char host[64], port[8];
        assert_true(ctl_doctor_split(rows[i].address, host, sizeof host, port, sizeof port));
        assert_string_equal(host, rows[i].host);
        assert_string_equal(port, rows[i].port);
    }
}

static void what_is_no_address_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",        "host",     "host:",    ":1",     "h:x",
                                      "h:1x",    "h:65536",  "h:123456", "::1",    "::1:80",
                                      "[::1]80", "[::1",     "[::1]",    "tcp://", "h:-1",
                                      "[]:1",    "http://h", "h: 1",     "1:2:3",  "tcp://[::1:5"};
    char host[64], port[8];
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(ctl_doctor_split(bad[i], host, sizeof host, port, sizeof port));
    }
    char longest[200];
    (void)snprintf(longest, sizeof longest, "%0100d:1", 0);
    assert_false(ctl_doctor_split(longest, host, sizeof host, port, sizeof port));
    ctl_doctor_port(&report, "h:x", true);
    assert_int_equal(report.findings[0].verdict, CTL_V_FAIL);
}

static void a_free_port_is_ok_and_one_in_use_is_not(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    char address[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(a.sin_port));
    ctl_doctor_port(&report, address, true);
    assert_int_equal(report.findings[0].verdict, CTL_V_FAIL);
    assert_int_equal(strncmp(report.findings[0].detail, "in use by ", 10), 0);
    ctl_doctor_port(&report, address, false);
    assert_int_equal(report.findings[1].verdict, CTL_V_WARN);
    (void)close(fd);
    ctl_doctor_port(&report, "127.0.0.1:0", true); /* any free one */
    assert_int_equal(report.findings[2].verdict, CTL_V_OK);
}

static void an_address_of_another_host_fails(void **state)
{
    (void)state;
    ctl_doctor_port(&report, "192.0.2.1:80", true); /* reserved for documentation */
    assert_int_equal(report.findings[0].verdict, CTL_V_FAIL);
    assert_non_null(strstr(report.findings[0].detail, "no address of this host"));
    char name[96];
    (void)snprintf(name, sizeof name, "%064d.invalid:80", 0); /* a label too long to be asked for */
    ctl_doctor_port(&report, name, true);
    assert_int_equal(report.findings[1].verdict, CTL_V_FAIL);
}

static void a_device_that_does_not_exist_is_named_with_the_reason(void **state)
{
    (void)state;
    struct ctl_transfer_params p = {.device = "nosuch0", .megabytes = 1};
    ctl_doctor_transfer(&report, &p, "tcp", false);
    ctl_doctor_transfer(&report, &p, "tcp", true);
    assert_int_equal(report.findings[0].verdict, CTL_V_WARN);
    assert_int_equal(report.findings[1].verdict, CTL_V_FAIL);
    assert_non_null(strstr(report.findings[1].detail, "no such device"));
    assert_non_null(strstr(report.findings[1].remedy, "--kv-device"));
}

static void a_transport_is_measured_and_says_what_that_means(void **state)
{
    (void)state;
    struct ctl_transfer_params p = {.device = "lo", .megabytes = 4, .kv_bytes_per_tok = 1000};
    ctl_doctor_transfer(&report, &p, "tcp", true);
    const struct ctl_finding *f = &report.findings[0];
    assert_true(f->verdict == CTL_V_OK || f->verdict == CTL_V_WARN); /* slow machines warn */
    assert_string_equal(f->values[0].name, "gb_per_s");
    assert_true(f->values[0].value > 0);
    assert_non_null(strstr(f->detail, "tcp on lo: "));
    assert_non_null(strstr(f->detail, "prompt tokens/s"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(addresses_of_every_form_are_taken_apart, fresh),
        cmocka_unit_test_setup(what_is_no_address_is_refused, fresh),
        cmocka_unit_test_setup(a_free_port_is_ok_and_one_in_use_is_not, fresh),
        cmocka_unit_test_setup(an_address_of_another_host_fails, fresh),
        cmocka_unit_test_setup(a_device_that_does_not_exist_is_named_with_the_reason, fresh),
        cmocka_unit_test_setup(a_transport_is_measured_and_says_what_that_means, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
