/* The client against our own server in a thread of its own, and against listeners that say the wrong thing. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/grpc_client.h"
#include "common/io/grpc_server.h"
#include "tests/unit/check.h"

static struct td_loop *loop;
static struct td_grpc_server *server;
static pthread_t thread;
static char address[64], why[256];

static void h_echo(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    if (td_grpc_send(c, message, len) == TD_OK && td_grpc_send(c, "more", 4) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

static void h_fail(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    td_grpc_fail(c, TD_ERR_OVERLOADED, "50% \xc3\xa9", 1);
}

static void h_endless(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    TD_IGNORE(td_grpc_send(c, message, len)); /* the client goes when it has it */
}

static const struct td_grpc_method methods[] = {{.name = "Echo", .handle = h_echo},
                                                {.name = "Fail", .handle = h_fail},
                                                {.name = "Endless", .handle = h_endless}};

static td_err admit(void *arg, struct td_grpc_call *c)
{
    (void)arg;
    const char *key = td_http_header_get(td_grpc_call_request(c), "authorization");
    return key != NULL && strcmp(key, "Bearer secret") == 0 ? TD_OK : TD_ERR_UNAUTHORIZED;
}

static void *serve(void *arg)
{
    (void)arg;
    td_loop_run(loop);
    return NULL;
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    p.h2.loop = loop;
    p.h2.host = "127.0.0.1";
    p.admit = admit;
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    const struct td_grpc_service service = {
        .name = "a.B", .methods = methods, .n_methods = TD_COUNT(methods)};
    td_grpc_server_add(server, &service);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)td_h2_server_port(td_grpc_server_h2(server)));
    return pthread_create(&thread, NULL, serve, NULL);
}

static int teardown(void **state)
{
    (void)state;
    td_loop_stop(loop);
    (void)pthread_join(thread, NULL);
    server = td_grpc_server_destroy(server);
    loop = td_loop_destroy(loop);
    return 0;
}

static td_err run(const char *path, const char *key, const void *message, size_t len,
                  struct td_grpc_client_answer *out)
{
    const struct td_grpc_client_call call = {.address = address,
                                             .path = path,
                                             .key = key,
                                             .message = message,
                                             .len = len,
                                             .timeout_us = 10000000};
    return td_grpc_client_run(&call, out, why, sizeof why);
}

static void messages_of_any_size_come_back(void **state)
{
    (void)state;
    static uint8_t big[300000];
    static const size_t sizes[] = {0, 5, sizeof big};
    for (size_t i = 0; i < sizeof big; i++) {
        big[i] = (uint8_t)(i * 31);
    }
    for (size_t i = 0; i < TD_COUNT(sizes); i++) {
        struct td_grpc_client_answer a;
        const uint8_t *data = NULL;
        size_t len = 0;
        assert_int_equal(run("/a.B/Echo", "secret", big, sizes[i], &a), TD_OK);
        assert_int_equal(a.status, TD_GRPC_OK);
        assert_int_equal(a.n_messages, 2);
        assert_true(td_grpc_client_message(&a, 0, &data, &len));
        assert_int_equal(len, sizes[i]);
        assert_memory_equal(data, big, len);
        assert_true(td_grpc_client_message(&a, 1, &data, &len));
        assert_int_equal(len, 4);
        assert_false(td_grpc_client_message(&a, 2, &data, &len));
        td_grpc_client_answer_fini(&a);
    }
}

static void a_status_is_an_answer_with_its_text_and_code(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    assert_int_equal(run("/a.B/Fail", "secret", "", 0, &a), TD_OK);
    assert_int_equal(a.status, TD_GRPC_RESOURCE_EXHAUSTED);
    assert_string_equal(a.text, "50% ??"); /* what is no ASCII stays out of terminals */
    assert_string_equal(a.code, "overloaded");
    td_grpc_client_answer_fini(&a);
    assert_int_equal(run("/a.B/Echo", NULL, "", 0, &a), TD_OK);
    assert_int_equal(a.status, TD_GRPC_UNAUTHENTICATED);
    td_grpc_client_answer_fini(&a);
}

static void enough_messages_end_an_endless_stream(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    const struct td_grpc_client_call call = {.address = address,
                                             .path = "/a.B/Endless",
                                             .key = "secret",
                                             .message = "x",
                                             .len = 1,
                                             .timeout_us = 10000000,
                                             .max_messages = 1};
    assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_OK);
    assert_int_equal(a.n_messages, 1);
    td_grpc_client_answer_fini(&a);
}

static void what_is_no_address_or_nobodys_is_told(void **state)
{
    (void)state;
    static const struct {
        const char *address;
        td_err err;
    } rows[] = {{"localhost", TD_ERR_BAD_REQUEST},
                {":1", TD_ERR_BAD_REQUEST},
                {"a:", TD_ERR_BAD_REQUEST},
                {"a:123456", TD_ERR_BAD_REQUEST},
                {"127.0.0.1:65536", TD_ERR_BAD_REQUEST},
                {"127.0.0.1:0", TD_ERR_BAD_REQUEST},
                {"a:1x", TD_ERR_BAD_REQUEST},
                {"127.0.0.1:1", TD_ERR_PEER_LOST},
                {"no.such.invalid:1", TD_ERR_ADDRESS}};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_grpc_client_answer a;
        const struct td_grpc_client_call call = {
            .address = rows[i].address, .path = "/a.B/Echo", .timeout_us = 10000000};
        why[0] = 0;
        assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), rows[i].err);
        assert_true(why[0] != 0);
    }
}

/* A listener that sends `bytes` to its one client, then closes if `closes`. */
static td_err against(const char *bytes, bool closes, int64_t timeout_us)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof sa;
    struct td_grpc_client_answer a;
    char name[32];
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0), peer = -1;
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char sink[1024];
        peer = accept(fd, NULL, NULL);
        (void)!write(peer, bytes, strlen(bytes));
        while (!closes && read(peer, sink, sizeof sink) > 0) {
        }
        _exit(0);
    }
    (void)snprintf(name, sizeof name, "127.0.0.1:%u", (unsigned)ntohs(sa.sin_port));
    const struct td_grpc_client_call call = {
        .address = name, .path = "/a.B/Echo", .timeout_us = timeout_us};
    td_err err = td_grpc_client_run(&call, &a, why, sizeof why);
    (void)close(fd);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return err;
}

static void servers_that_say_the_wrong_thing_or_nothing_are_told_apart(void **state)
{
    (void)state;
    assert_int_equal(against("HTTP/1.1 400 Bad Request\r\n\r\n", false, 10000000), TD_ERR_PROTOCOL);
    assert_int_equal(against("", false, 50000), TD_ERR_BUDGET);
    assert_int_equal(against("", true, 10000000), TD_ERR_PEER_LOST);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(messages_of_any_size_come_back),
        T(a_status_is_an_answer_with_its_text_and_code),
        T(enough_messages_end_an_endless_stream),
        cmocka_unit_test(what_is_no_address_or_nobodys_is_told),
        cmocka_unit_test(servers_that_say_the_wrong_thing_or_nothing_are_told_apart),
    };
    return cmocka_run_group_tests_name("grpc_client", tests, NULL, NULL);
}
