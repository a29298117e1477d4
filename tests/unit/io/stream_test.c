/* Against our own acceptor in a thread of its own, which sends back what it gets, and against mute and lying listeners. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/acceptor.h"
#include "common/io/stream.h"
#include "common/io/tls.h"
#include "common/io/tls_client.h"
#include "tests/unit/check.h"
#include "tests/unit/io/cert_rig.h"

#define BYE  0x7f /* a first byte that ends the connection */
#define SOON (td_now_us() + 10000000)

static struct td_loop *loop;
static struct td_acceptor *acceptor;
static struct td_tls *tls;
static struct td_tls_client *trust;
static struct identity ca, server_id, friend_id;
static struct td_peer peers[8];
static struct bufferevent *bevs[8];
static uint32_t n_peers;
static pthread_t thread;
static char address[64], why[256];

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)arg;
    char first = 0;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (evbuffer_copyout(in, &first, 1) == 1 && first == BYE) {
        td_acceptor_say_end(bev);
    }
    (void)bufferevent_write_buffer(bev, in);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)arg;
    if ((what & BEV_EVENT_CONNECTED) == 0) {
        td_acceptor_say_end(bev);
    }
}

static struct td_peer *take(void *arg, struct bufferevent *bev, const struct td_peer *who)
{
    (void)arg;
    if (n_peers == TD_COUNT(peers)) {
        return NULL;
    }
    bevs[n_peers] = bev;
    peers[n_peers] = *who;
    bufferevent_setcb(bev, on_read, NULL, on_event, NULL);
    (void)bufferevent_enable(bev, EV_READ | EV_WRITE);
    return &peers[n_peers++];
}

static void *serve(void *arg)
{
    (void)arg;
    td_loop_run(loop);
    return NULL;
}

static void make_identities(void)
{
    ca = cert_make("ca", NULL, -10, 3600);
    server_id = cert_make("127.0.0.1", &ca, -10, 3600);
    friend_id = cert_make("friend", &ca, -10, 3600);
    cert_write("ca", NULL, ca.cert);
    cert_write("cert", NULL, server_id.cert);
    cert_write("key", server_id.key, NULL);
    cert_write("friend-cert", NULL, friend_id.cert);
    cert_write("friend-key", friend_id.key, NULL);
}

/* with_tls: 0 none, 1 server's only, 2 mutual. */
static void start(int with_tls)
{
    struct td_acceptor_params p = {.loop = loop,
                                   .host = "127.0.0.1",
                                   .alpn = TD_ALPN_H2,
                                   .max_connections = TD_COUNT(peers),
                                   .max_per_address = TD_COUNT(peers),
                                   .take = take};
    struct td_tls_params t = {.loop = loop,
                              .cert = cert_path("cert"),
                              .key = cert_path("key"),
                              .client_ca = with_tls == 2 ? cert_path("ca") : NULL,
                              .poll_us = 10000000};
    if (with_tls > 0) {
        assert_int_equal(td_tls_create(&t, &tls), TD_OK);
    }
    p.tls = tls;
    assert_int_equal(td_acceptor_create(&p, &acceptor), TD_OK);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)td_acceptor_port(acceptor));
    assert_int_equal(pthread_create(&thread, NULL, serve, NULL), 0);
}

static int setup(void **state)
{
    (void)state;
    td_log_set_level(TD_LOG_ERROR);
    cert_folder_make();
    make_identities();
    n_peers = 0;
    acceptor = NULL;
    tls = NULL;
    trust = NULL;
    return td_loop_create(&loop) == TD_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    if (acceptor != NULL) {
        td_loop_stop(loop);
        (void)pthread_join(thread, NULL);
    }
    for (uint32_t i = 0; i < n_peers; i++) {
        bufferevent_free(bevs[i]);
    }
    td_acceptor_destroy(acceptor);
    td_tls_destroy(tls);
    td_loop_destroy(loop);
    td_tls_client_destroy(trust);
    cert_drop(&ca);
    cert_drop(&server_id);
    cert_drop(&friend_id);
    cert_folder_remove();
    return 0;
}

static void trust_as(const struct td_tls_client_params *p)
{
    trust = td_tls_client_destroy(trust);
    assert_int_equal(td_tls_client_create(p, &trust, why, sizeof why), TD_OK);
}

static td_err open_as(const struct td_tls_client_params *p, const char *alpn)
{
    struct td_stream *s = NULL;
    trust_as(p);
    why[0] = 0;
    td_err err = td_stream_open(address, trust, alpn, SOON, &s, why, sizeof why);
    assert_true((err == TD_OK) == (s != NULL));
    td_stream_close(s);
    return err;
}

/* `len` bytes out and back. */
static void echo(struct td_stream *s, size_t len)
{
    static uint8_t out[300000], in[sizeof out];
    size_t got = 0, n = 0;
    for (size_t i = 0; i < len; i++) {
        out[i] = (uint8_t)(i * 31 + len);
    }
    assert_int_equal(td_stream_write(s, out, len, SOON), TD_OK);
    while (got < len) {
        assert_int_equal(td_stream_read(s, in + got, len - got, SOON, &n), TD_OK);
        assert_true(n > 0 && n <= len - got);
        got += n;
    }
    assert_memory_equal(in, out, len);
}

static void go_and_come_back(int with_tls)
{
    struct td_stream *s = NULL;
    trust_as(&(struct td_tls_client_params){.ca = cert_path("ca")});
    start(with_tls);
    assert_int_equal(
        td_stream_open(address, with_tls > 0 ? trust : NULL, TD_ALPN_H2, SOON, &s, why, sizeof why),
        TD_OK);
    echo(s, 1);
    echo(s, 40000);
    td_stream_close(s);
}

static void bytes_come_back_in_cleartext(void **state)
{
    (void)state;
    go_and_come_back(0);
}

static void bytes_come_back_by_tls(void **state)
{
    (void)state;
    go_and_come_back(1);
}

static void a_certificate_must_be_trusted_and_be_the_servers(void **state)
{
    (void)state;
    struct identity stranger = cert_make("ca", NULL, -10, 3600);
    cert_write("stranger", NULL, stranger.cert);
    start(1);
    assert_int_equal(open_as(&(struct td_tls_client_params){.ca = cert_path("ca")}, TD_ALPN_H2),
                     TD_OK);
    assert_int_equal(
        open_as(&(struct td_tls_client_params){.ca = cert_path("stranger")}, TD_ALPN_H2),
        TD_ERR_PEER_AUTH);
    assert_non_null(strstr(why, "not trusted"));
    assert_int_equal(open_as(&(struct td_tls_client_params){0}, TD_ALPN_H2), TD_ERR_PEER_AUTH);
    assert_int_equal(open_as(&(struct td_tls_client_params){.ca = cert_path("ca"),
                                                            .name_option = "--tls-server-name",
                                                            .server_name = "other.example"},
                             TD_ALPN_H2),
                     TD_ERR_PEER_AUTH);
    assert_non_null(strstr(why, "--tls-server-name"));
    assert_int_equal(
        open_as(&(struct td_tls_client_params){.ca = cert_path("ca"), .server_name = "127.0.0.1"},
                TD_ALPN_H2),
        TD_OK);
    assert_int_equal(open_as(&(struct td_tls_client_params){.ca = cert_path("ca")}, TD_ALPN_HTTP),
                     TD_ERR_PEER_AUTH); /* the server speaks h2 */
    cert_drop(&stranger);
}

static void a_server_that_wants_a_certificate_gets_ours(void **state)
{
    (void)state;
    struct td_stream *s = NULL;
    char byte = 0;
    size_t n = 0;
    start(2);
    trust_as(&(struct td_tls_client_params){
        .ca = cert_path("ca"), .cert = cert_path("friend-cert"), .key = cert_path("friend-key")});
    assert_int_equal(td_stream_open(address, trust, TD_ALPN_H2, SOON, &s, why, sizeof why), TD_OK);
    echo(s, 1000);
    td_stream_close(s);
    trust_as(&(struct td_tls_client_params){.ca = cert_path("ca")});
    s = NULL;
    td_err err = td_stream_open(address, trust, TD_ALPN_H2, SOON, &s, why, sizeof why);
    if (err == TD_OK) { /* TLS 1.3: the refusal comes with the first answer */
        err = td_stream_read(s, &byte, 1, SOON, &n);
        (void)snprintf(why, sizeof why, "%s", td_stream_why(s));
        td_stream_close(s);
    }
    assert_int_equal(err, TD_ERR_PEER_AUTH);
    assert_non_null(strstr(why, "certificate"));
}

/* A listener of one client: sends `bytes` to it and then nothing, or ends. */
static td_err against(const char *bytes, bool ends, int64_t timeout_us)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof sa;
    struct td_stream *s = NULL;
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof sa), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&sa, &len), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char sink[1024];
        int peer = accept(fd, NULL, NULL);
        (void)!write(peer, bytes, strlen(bytes));
        while (!ends && read(peer, sink, sizeof sink) > 0) {
        }
        _exit(0);
    }
    (void)snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)ntohs(sa.sin_port));
    td_err err =
        td_stream_open(address, trust, TD_ALPN_H2, td_now_us() + timeout_us, &s, why, sizeof why);
    td_stream_close(s);
    (void)close(fd);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return err;
}

static void a_listener_that_is_mute_or_speaks_no_tls_is_told(void **state)
{
    (void)state;
    trust_as(&(struct td_tls_client_params){.ca = cert_path("ca")});
    assert_int_equal(against("HTTP/1.1 400 Bad Request\r\n\r\n", false, 10000000),
                     TD_ERR_PEER_AUTH);
    assert_non_null(strstr(why, "no TLS"));
    assert_int_equal(against("", true, 10000000), TD_ERR_PEER_LOST);
    assert_int_equal(against("", false, 50000), TD_ERR_BUDGET);
}

static void the_end_of_the_other_side_is_told(void **state)
{
    (void)state;
    struct td_stream *s = NULL;
    char byte = 0;
    size_t n = 0;
    start(1);
    trust_as(&(struct td_tls_client_params){.ca = cert_path("ca")});
    assert_int_equal(td_stream_open(address, trust, TD_ALPN_H2, SOON, &s, why, sizeof why), TD_OK);
    echo(s, 10);
    assert_int_equal(td_stream_read(s, &byte, 1, td_now_us() + 1000, &n), TD_ERR_BUDGET);
    byte = BYE;
    assert_int_equal(td_stream_write(s, &byte, 1, SOON), TD_OK);
    td_err err = td_stream_read(s, &byte, 1, SOON, &n);
    assert_true(err == TD_ERR_CLOSED || err == TD_ERR_PEER_LOST);
    td_stream_close(s);
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
                {"[]:1", TD_ERR_BAD_REQUEST},
                {"a:1x", TD_ERR_BAD_REQUEST},
                {"127.0.0.1:1", TD_ERR_PEER_LOST},
                {"localhost:1", TD_ERR_PEER_LOST},
                {"no.such.invalid:1", TD_ERR_ADDRESS}};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_stream *s = NULL;
        why[0] = 0;
        assert_int_equal(
            td_stream_open(rows[i].address, NULL, TD_ALPN_H2, SOON, &s, why, sizeof why),
            rows[i].err);
        assert_null(s);
        assert_true(why[0] != 0);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(bytes_come_back_in_cleartext),
        T(bytes_come_back_by_tls),
        T(a_certificate_must_be_trusted_and_be_the_servers),
        T(a_server_that_wants_a_certificate_gets_ours),
        T(a_listener_that_is_mute_or_speaks_no_tls_is_told),
        T(the_end_of_the_other_side_is_told),
        T(what_is_no_address_or_nobodys_is_told),
    };
    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
