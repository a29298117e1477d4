/* The front door of the servers, over loopback sockets, driven pass by pass. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/bufferevent.h>

#include "common/base/log.h"
#include "common/io/acceptor.h"
#include "tests/unit/check.h"

#define MAX_TAKEN 8

static struct td_loop *loop;
static struct td_acceptor *acceptor;
static struct taken {
    struct bufferevent *bev;
    struct td_peer peer;
} taken[MAX_TAKEN];
static uint32_t n_taken;
static bool refuse;

static struct td_peer *take(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    (void)arg;
    if (refuse || n_taken == MAX_TAKEN) {
        return NULL;
    }
    taken[n_taken] = (struct taken){.bev = bev, .peer = *who};
    return &taken[n_taken++].peer;
}

static void open_acceptor(uint32_t max_connections, uint32_t max_per_address)
{
    struct td_acceptor_params p = {.loop = loop,
                                   .host = "127.0.0.1",
                                   .max_connections = max_connections,
                                   .max_per_address = max_per_address,
                                   .take = take};
    assert_int_equal(td_acceptor_create(&p, &acceptor), TD_OK);
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    n_taken = 0;
    refuse = false;
    return td_loop_create(&loop) == TD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_taken; i++) {
        td_acceptor_left(acceptor, &taken[i].peer);
        bufferevent_free(taken[i].bev);
    }
    acceptor = td_acceptor_destroy(acceptor);
    loop = td_loop_destroy(loop);
    return 0;
}

static int dial(void)
{
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(td_acceptor_port(acceptor))};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    return fd;
}

static void settle(uint64_t seen)
{
    for (int i = 0; i < 1000 && n_taken + td_acceptor_refused(acceptor) < seen; i++) {
        td_loop_run_once(loop, 2000);
    }
    assert_int_equal(n_taken + td_acceptor_refused(acceptor), seen);
}

static void a_connection_is_handed_over_with_its_peers_name(void **state)
{
    (void)state;
    open_acceptor(4, 4);
    int fd = dial();
    settle(1);
    assert_int_equal(strncmp(taken[0].peer.name, "127.0.0.1:", 10), 0);
    assert_int_equal(td_acceptor_open(acceptor), 1);
    close(fd);
}

static void a_host_that_falls_silent_is_noticed_by_tcp(void **state)
{
    (void)state;
    int on = 0, idle = 0;
    socklen_t len = sizeof on;
    open_acceptor(4, 4);
    int fd = dial();
    settle(1);
    int taken_fd = bufferevent_getfd(taken[0].bev);
    assert_int_equal(getsockopt(taken_fd, SOL_SOCKET, SO_KEEPALIVE, &on, &len), 0);
    assert_int_equal(getsockopt(taken_fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &len), 0);
    assert_true(on == 1 && idle == 60);
    (void)close(fd);
}

static void the_caps_close_what_is_over_them(void **state)
{
    (void)state;
    open_acceptor(3, 2); /* one address here: the second cap bites first */
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = dial();
    }
    settle(4);
    assert_int_equal(n_taken, 2);
    assert_int_equal(td_acceptor_refused(acceptor), 2);
    char byte;
    assert_int_equal(recv(fds[3], &byte, 1, 0), 0); /* closed by the server */
    for (int i = 0; i < 4; i++) {
        close(fds[i]);
    }
}

static void a_place_is_free_again_when_its_connection_left(void **state)
{
    (void)state;
    open_acceptor(1, 1);
    int one = dial();
    settle(1);
    td_acceptor_left(acceptor, &taken[0].peer);
    bufferevent_free(taken[0].bev);
    n_taken = 0;
    assert_int_equal(td_acceptor_open(acceptor), 0);
    int two = dial();
    settle(1);
    assert_int_equal(td_acceptor_refused(acceptor), 0);
    close(one);
    close(two);
}

static void what_the_taker_refuses_is_closed_and_counted(void **state)
{
    (void)state;
    open_acceptor(4, 4);
    refuse = true;
    int fd = dial();
    settle(1);
    char byte;
    assert_int_equal(td_acceptor_open(acceptor), 0);
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void a_port_in_use_and_a_name_are_refused(void **state)
{
    (void)state;
    open_acceptor(4, 4);
    struct td_acceptor *second = NULL;
    struct td_acceptor_params p = {.loop = loop,
                                   .host = "no.such.name",
                                   .max_connections = 1,
                                   .max_per_address = 1,
                                   .take = take};
    td_log_set_level(TD_LOG_ERROR);
    assert_int_equal(td_acceptor_create(&p, &second), TD_ERR_ADDRESS);
    p.host = "127.0.0.1";
    p.port = td_acceptor_port(acceptor);
    p.option = "--port";
    int ends[2];
    char log[512] = "", who[32];
    assert_int_equal(pipe(ends), 0); /* NOLINT: one thread, no exec */
    td_log_set_fd(ends[1]);
    assert_int_equal(td_acceptor_create(&p, &second), TD_ERR_ADDRESS);
    td_log_set_fd(2);
    assert_true(read(ends[0], log, sizeof log - 1) > 0);
    (void)snprintf(who, sizeof who, "(pid %d)", (int)getpid());
    assert_non_null(strstr(log, "option=--port"));
    assert_non_null(strstr(log, who)); /* who holds it */
    (void)close(ends[0]);
    (void)close(ends[1]);
    assert_null(second);
}

static void a_stopped_door_takes_nobody(void **state)
{
    (void)state;
    open_acceptor(4, 4);
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons(td_acceptor_port(acceptor))};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    td_acceptor_stop(acceptor);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof sa), -1);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_connection_is_handed_over_with_its_peers_name, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_host_that_falls_silent_is_noticed_by_tcp, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_caps_close_what_is_over_them, setup, teardown),
        cmocka_unit_test_setup_teardown(a_place_is_free_again_when_its_connection_left, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(what_the_taker_refuses_is_closed_and_counted, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_port_in_use_and_a_name_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stopped_door_takes_nobody, setup, teardown),
    };
    return cmocka_run_group_tests_name("acceptor", tests, NULL, NULL);
}
