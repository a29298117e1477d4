/* The client against a scripted server: a thread that answers one connection with given bytes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/check.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/http_client.h"
#include "common/io/http_server.h"
#include "common/io/tls.h"
#include "common/io/tls_client.h"
#include "tests/unit/io/cert_rig.h"

#define SECOND 1000000ll

struct server {
    int fd;
    uint16_t port;
    const char *say;   /* the answer; NULL: none */
    size_t pad;        /* then so many 'x' */
    const char *until; /* reads the request so far; NULL: its head */
    bool hold;         /* keep the connection open until the client leaves */
    char request[4096];
    pthread_t thread;
};

static void send_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) {
            return;
        }
        data += sent;
        n -= (size_t)sent;
    }
}

static void read_head(struct server *s, int fd)
{
    size_t n = 0;
    while (n + 1 < sizeof s->request &&
           strstr(s->request, s->until != NULL ? s->until : "\r\n\r\n") == NULL) {
        ssize_t got = recv(fd, s->request + n, sizeof s->request - 1 - n, 0);
        if (got <= 0) {
            return;
        }
        n += (size_t)got;
    }
}

static void *serve(void *arg)
{
    struct server *s = arg;
    char byte;
    int fd = accept(s->fd, NULL, NULL);
    if (fd < 0) {
        return NULL;
    }
    read_head(s, fd);
    if (s->say != NULL) {
        send_all(fd, s->say, strlen(s->say));
    }
    for (size_t i = 0; i < s->pad; i += 1024) {
        char block[1024];
        memset(block, 'x', sizeof block);
        send_all(fd, block, sizeof block);
    }
    if (s->hold) {
        while (recv(fd, &byte, 1, 0) > 0) {
        }
    }
    (void)close(fd);
    return NULL;
}

static int listen_somewhere(uint16_t *out_port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *out_port = ntohs(a.sin_port);
    return fd;
}

static void start(struct server *s)
{
    s->fd = listen_somewhere(&s->port);
    assert_int_equal(listen(s->fd, 4), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
}

static void stop(struct server *s)
{
    (void)shutdown(s->fd, SHUT_RDWR); /* ends an accept() that nobody came to */
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    (void)close(s->fd);
}

static td_err ask(struct server *s, const char *path, int64_t timeout_us, size_t max_body,
                  struct td_http_client_answer *out)
{
    char url[128], why[160] = "";
    start(s);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u%s", s->port, path);
    td_err err = td_http_client_get(url, timeout_us, max_body, out, why, sizeof why);
    stop(s);
    assert_true((err == TD_OK) == (why[0] == 0)); /* a failure has a reason */
    return err;
}

static void an_answer_comes_whole_with_its_status(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"};
    struct td_http_client_answer a;
    assert_int_equal(ask(&s, "/nodes?x=1", 20 * SECOND, 100, &a), TD_OK);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.body.len, 5);
    assert_string_equal((const char *)a.body.data, "hello"); /* terminated, for parsers of text */
    td_http_client_answer_fini(&a);
    assert_int_equal(strncmp(s.request, "GET /nodes?x=1 HTTP/1.1\r\n", 25), 0);
    assert_non_null(strstr(s.request, "Host: 127.0.0.1:"));
    assert_non_null(strstr(s.request, "Connection: close\r\n"));
}

static void a_text_is_posted_with_its_type_and_length(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
                       .until = "{\"a\":1}"};
    struct td_http_client_answer a;
    char url[64], why[160] = "";
    start(&s);
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/drain", s.port);
    struct td_http_client_body body = {.type = "application/json", .text = "{\"a\":1}"};
    assert_int_equal(td_http_client_post(url, &body, 20 * SECOND, 100, &a, why, sizeof why), TD_OK);
    stop(&s);
    assert_int_equal(a.status, 200);
    assert_int_equal(strncmp(s.request, "POST /drain HTTP/1.1\r\n", 22), 0);
    assert_non_null(strstr(s.request, "Content-Type: application/json\r\n"));
    assert_non_null(strstr(s.request, "Content-Length: 7\r\n"));
    assert_non_null(strstr(s.request, "\r\n\r\n{\"a\":1}"));
    td_http_client_answer_fini(&a);
}

static void a_url_is_checked_without_asking(void **state)
{
    (void)state;
    char why[160] = "";
    assert_int_equal(td_http_client_check("http://127.0.0.1:1/x", NULL, why, sizeof why), TD_OK);
    assert_string_equal(why, "");
    assert_int_equal(td_http_client_check("https://x", NULL, why, sizeof why), TD_ERR_BAD_REQUEST);
    assert_string_not_equal(why, "");
}

static void a_url_without_a_path_asks_for_the_root(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 204 No Content\r\n\r\n"};
    struct td_http_client_answer a;
    assert_int_equal(ask(&s, "", 20 * SECOND, 100, &a), TD_OK);
    assert_int_equal(a.status, 204);
    assert_int_equal(a.body.len, 0);
    assert_non_null(a.body.data);
    td_http_client_answer_fini(&a);
    assert_int_equal(strncmp(s.request, "GET / HTTP/1.1\r\n", 16), 0);
}

static void any_status_is_an_answer(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"};
    struct td_http_client_answer a;
    assert_int_equal(ask(&s, "/x", 20 * SECOND, 100, &a), TD_OK);
    assert_int_equal(a.status, 404);
    td_http_client_answer_fini(&a);
}

static void chunks_and_bodies_that_end_with_the_connection_are_read(void **state)
{
    (void)state;
    struct server chunked = {.say = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                                    "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"};
    struct server closed = {.say = "HTTP/1.0 200 OK\r\n\r\nabcde"};
    struct td_http_client_answer a;
    assert_int_equal(ask(&chunked, "/", 20 * SECOND, 100, &a), TD_OK);
    assert_string_equal((const char *)a.body.data, "abcde");
    td_http_client_answer_fini(&a);
    assert_int_equal(ask(&closed, "/", 20 * SECOND, 100, &a), TD_OK);
    assert_string_equal((const char *)a.body.data, "abcde");
    td_http_client_answer_fini(&a);
}

static void a_body_at_the_bound_fits_and_one_byte_more_does_not(void **state)
{
    (void)state;
    struct server fits = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabcde"};
    struct server big = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nabcdef"};
    struct server endless = {.say = "HTTP/1.0 200 OK\r\n\r\n", .pad = 1 << 20};
    struct td_http_client_answer a;
    assert_int_equal(ask(&fits, "/", 20 * SECOND, 5, &a), TD_OK);
    td_http_client_answer_fini(&a);
    assert_int_equal(ask(&big, "/", 20 * SECOND, 5, &a), TD_ERR_TOO_LARGE);
    assert_int_equal(ask(&endless, "/", 20 * SECOND, 5000, &a), TD_ERR_TOO_LARGE);
}

static void an_endless_head_is_refused(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 200 OK\r\nX: ", .pad = 1 << 20};
    struct td_http_client_answer a;
    assert_int_not_equal(ask(&s, "/", 20 * SECOND, 100, &a), TD_OK);
}

static void garbage_is_a_protocol_error(void **state)
{
    (void)state;
    struct server s = {.say = "SSH-2.0-OpenSSH_9.2\r\n\r\n", .hold = true};
    struct td_http_client_answer a;
    assert_int_equal(ask(&s, "/", 20 * SECOND, 100, &a), TD_ERR_PROTOCOL);
}

static void a_connection_that_ends_early_is_a_lost_peer(void **state)
{
    (void)state;
    struct server nothing = {.say = NULL};
    struct server half = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc"};
    struct td_http_client_answer a;
    assert_int_equal(ask(&nothing, "/", 20 * SECOND, 100, &a), TD_ERR_PEER_LOST);
    assert_int_equal(ask(&half, "/", 20 * SECOND, 100, &a), TD_ERR_PEER_LOST);
}

static void silence_ends_at_the_deadline(void **state)
{
    (void)state;
    struct server silent = {.hold = true};
    struct server half = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", .hold = true};
    struct td_http_client_answer a;
    assert_int_equal(ask(&silent, "/", SECOND / 20, 100, &a), TD_ERR_BUDGET);
    assert_int_equal(ask(&half, "/", SECOND / 20, 100, &a), TD_ERR_BUDGET);
}

static void a_port_without_a_listener_is_a_lost_peer_and_says_refused(void **state)
{
    (void)state;
    uint16_t port;
    char url[64], why[160] = "";
    struct td_http_client_answer a;
    int fd = listen_somewhere(&port); /* bound, never listening: nobody else gets it meanwhile */
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u/", port);
    assert_int_equal(td_http_client_get(url, 20 * SECOND, 100, &a, why, sizeof why),
                     TD_ERR_PEER_LOST);
    assert_non_null(strstr(why, "refused"));
    (void)close(fd);
}

static void what_is_not_a_plain_http_url_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "nonsense",
                                      "127.0.0.1:8001",
                                      "https://127.0.0.1:1/",
                                      "http://",
                                      "http:///nodes",
                                      "http://127.0.0.1:0/",
                                      "http://127.0.0.1:70000/",
                                      "http://127.0.0.1:x/",
                                      "http://127.0.0.1:1/a b",
                                      "http://127.0.0.1:1/a\r\nX: y",
                                      "ftp://127.0.0.1/"};
    struct td_http_client_answer a;
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        char why[160] = "";
        assert_int_equal(td_http_client_get(bad[i], SECOND, 100, &a, why, sizeof why),
                         TD_ERR_BAD_REQUEST);
        assert_string_not_equal(why, "");
    }
    /* A label of 64 bytes: no resolver needs to be asked. */
    char name[96], text[160] = "";
    (void)snprintf(name, sizeof name, "http://%064d.invalid:1/", 0);
    assert_int_equal(td_http_client_get(name, SECOND, 100, &a, text, sizeof text), TD_ERR_ADDRESS);
    assert_string_not_equal(text, "");
    char *longest = test_malloc(TD_HTTP_CLIENT_MAX_URL + 16), why[160];
    memset(longest, 'a', TD_HTTP_CLIENT_MAX_URL + 15);
    memcpy(longest, "http://h/", 9);
    longest[TD_HTTP_CLIENT_MAX_URL + 15] = 0;
    assert_int_equal(td_http_client_get(longest, SECOND, 100, &a, why, sizeof why),
                     TD_ERR_BAD_REQUEST);
    test_free(longest);
}

static void a_failed_allocation_is_an_error_and_leaks_nothing(void **state)
{
    (void)state;
    struct td_http_client_answer a;
    td_err err = TD_ERR_NO_MEMORY;
    for (unsigned n = 1; err != TD_OK && n < 20; n++) {
        struct server s = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"};
        td_mem_fail_nth(n);
        err = ask(&s, "/", 20 * SECOND, 100, &a);
        td_mem_fail_nth(0);
        assert_true(err == TD_OK || err == TD_ERR_NO_MEMORY);
    }
    assert_int_equal(err, TD_OK);
    td_http_client_answer_fini(&a);
}

/* ---- TLS, against our own server in a thread of its own ---- */

static struct td_loop *loop;

static void answer(void *arg, struct td_http_exchange *x)
{
    (void)arg;
    const char *body = td_http_exchange_verified(x) ? "known" : "unknown";
    td_http_respond(x, 200, NULL, 0, "text/plain", body, strlen(body));
}

static void *run_loop(void *arg)
{
    (void)arg;
    td_loop_run(loop);
    return NULL;
}

/* The answer's text, or why there is none. */
static td_err ask_tls(uint16_t port, const struct td_tls_client_params *p, char text[256])
{
    char url[64];
    struct td_tls_client *tls = NULL;
    struct td_http_client_answer a;
    assert_int_equal(td_tls_client_create(p, &tls, text, 256), TD_OK);
    (void)snprintf(url, sizeof url, "https://127.0.0.1:%u/", (unsigned)port);
    const struct td_http_client_request r = {
        .url = url, .timeout_us = 20 * SECOND, .max_body = 100, .tls = tls};
    td_err err = td_http_client_run(&r, &a, text, 256);
    if (err == TD_OK) {
        (void)snprintf(text, 256, "%s", (const char *)a.body.data);
        td_http_client_answer_fini(&a);
    }
    td_tls_client_destroy(tls);
    return err;
}

static void make_files(void)
{
    struct identity ca = cert_make("ca", NULL, -10, 3600);
    struct identity server = cert_make("127.0.0.1", &ca, -10, 3600);
    struct identity friend = cert_make("friend", &ca, -10, 3600);
    struct identity stranger = cert_make("stranger", NULL, -10, 3600);
    cert_folder_make();
    cert_write("ca", NULL, ca.cert);
    cert_write("cert", NULL, server.cert);
    cert_write("key", server.key, NULL);
    cert_write("friend-cert", NULL, friend.cert);
    cert_write("friend-key", friend.key, NULL);
    cert_write("stranger-cert", NULL, stranger.cert);
    cert_write("stranger-key", stranger.key, NULL);
    cert_drop(&ca);
    cert_drop(&server);
    cert_drop(&friend);
    cert_drop(&stranger);
}

static void check_tls(uint16_t port)
{
    char text[256];
    static const struct {
        const char *ca, *cert, *key, *name, *text;
        td_err err;
    } rows[] = {
        {"ca", NULL, NULL, NULL, "unknown", TD_OK},
        {"ca", "friend-cert", "friend-key", NULL, "known", TD_OK},
        {"ca", "stranger-cert", "stranger-key", NULL, "server", TD_ERR_PEER_AUTH},
        {"stranger-cert", NULL, NULL, NULL, "not trusted", TD_ERR_PEER_AUTH},
        {"ca", NULL, NULL, "other.example", "another name", TD_ERR_PEER_AUTH},
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_tls_client_params p = {.ca = cert_path(rows[i].ca), .server_name = rows[i].name};
        if (rows[i].cert != NULL) {
            p.cert = cert_path(rows[i].cert);
            p.key = cert_path(rows[i].key);
        }
        td_err err = ask_tls(port, &p, text);
        /* TLS 1.3: the refusal may be overtaken by the end of the connection. */
        assert_true(err == rows[i].err || (i == 2 && err == TD_ERR_PEER_LOST));
        assert_non_null(strstr(text, rows[i].text));
    }
}

static void tls_checks_the_server_and_shows_who_asks(void **state)
{
    (void)state;
    struct td_http_server *http = NULL;
    struct td_tls *tls = NULL;
    struct td_http_server_params p;
    char text[256];
    pthread_t thread;
    td_log_set_level(TD_LOG_ERROR);
    make_files();
    const struct td_tls_files files = {cert_path("cert"), cert_path("key"), cert_path("ca")};
    assert_int_equal(td_loop_create(&loop), TD_OK);
    assert_int_equal(td_tls_create_admin(loop, &files, &tls), TD_OK);
    td_http_server_defaults(&p);
    p.loop = loop;
    p.host = "127.0.0.1";
    p.tls = tls;
    p.alpn = TD_ALPN_BOTH;
    p.handler = answer;
    assert_int_equal(td_http_server_create(&p, &http), TD_OK);
    assert_int_equal(pthread_create(&thread, NULL, run_loop, NULL), 0);
    check_tls(td_http_server_port(http));
    struct server plain = {.say = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
                           .until = "\x16"};
    start(&plain);
    const struct td_tls_client_params none = {0};
    assert_int_equal(ask_tls(plain.port, &none, text), TD_ERR_PEER_AUTH);
    assert_non_null(strstr(text, "no TLS"));
    stop(&plain);
    td_loop_stop(loop);
    assert_int_equal(pthread_join(thread, NULL), 0);
    td_http_server_destroy(http);
    td_tls_destroy(tls);
    loop = td_loop_destroy(loop);
    cert_folder_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_comes_whole_with_its_status),
        cmocka_unit_test(a_text_is_posted_with_its_type_and_length),
        cmocka_unit_test(a_url_is_checked_without_asking),
        cmocka_unit_test(a_url_without_a_path_asks_for_the_root),
        cmocka_unit_test(any_status_is_an_answer),
        cmocka_unit_test(chunks_and_bodies_that_end_with_the_connection_are_read),
        cmocka_unit_test(a_body_at_the_bound_fits_and_one_byte_more_does_not),
        cmocka_unit_test(an_endless_head_is_refused),
        cmocka_unit_test(garbage_is_a_protocol_error),
        cmocka_unit_test(a_connection_that_ends_early_is_a_lost_peer),
        cmocka_unit_test(silence_ends_at_the_deadline),
        cmocka_unit_test(a_port_without_a_listener_is_a_lost_peer_and_says_refused),
        cmocka_unit_test(what_is_not_a_plain_http_url_is_refused),
        cmocka_unit_test(tls_checks_the_server_and_shows_who_asks),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
