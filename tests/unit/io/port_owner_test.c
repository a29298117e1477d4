/* Finding who listens: in given tables, and this process itself. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/check.h"

#include "common/io/port_owner.h"

static const char table[] = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
                            "retrnsmt   uid  timeout inode\n"
                            "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 "
                            "00000000     0        0 11 1 0\n"
                            "   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 "
                            "00000000     0        0 22 1 0\n"
                            "  12: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 "
                            "00000000  1000        0 33 1 0\n";

static void the_listening_socket_of_a_port_is_found(void **state)
{
    (void)state;
    assert_int_equal(td_port_owner_inode(table, 8080), 11);
    assert_int_equal(td_port_owner_inode(table, 80), 33);
    assert_int_equal(td_port_owner_inode(table, 8081), 0); /* connected, not listening */
    assert_int_equal(td_port_owner_inode(table, 1), 0);
}

static void addresses_of_ipv6_are_read_and_odd_tables_survived(void **state)
{
    (void)state;
    assert_int_equal(
        td_port_owner_inode("   0: 00000000000000000000000001000000:1F90 "
                            "00000000000000000000000000000000:0000 0A 00000000:00000000 "
                            "00:00000000 00000000     0        0 44 1 0",
                            8080),
        44);
    assert_int_equal(td_port_owner_inode("", 8080), 0);
    assert_int_equal(td_port_owner_inode("\n\n:\n 0: x:1F90", 8080), 0);
}

static void a_port_of_this_process_is_ours(void **state)
{
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    char owner[64], want[32];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    td_port_owner(ntohs(a.sin_port), owner, sizeof owner);
    (void)snprintf(want, sizeof want, "(pid %d)", (int)getpid());
    assert_non_null(strstr(owner, want));
    (void)close(fd);
    td_port_owner(ntohs(a.sin_port), owner, sizeof owner);
    assert_null(strstr(owner, want));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_listening_socket_of_a_port_is_found),
        cmocka_unit_test(addresses_of_ipv6_are_read_and_odd_tables_survived),
        cmocka_unit_test(a_port_of_this_process_is_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
