/* Exit statuses for everything that a router's admin port may answer, or not. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "tests/unit/check.h"

#include "ctl/admin.h"

struct server {
    int fd;
    char url[64], request[2048];
    const char *say;
    pthread_t thread;
};

static void *serve(void *arg)
{
    struct server *s = arg;
    int fd = accept(s->fd, NULL, NULL);
    size_t n = 0;
    ssize_t got;
    if (fd < 0) {
        return NULL;
    }
    while (strstr(s->request, "\r\n\r\n") == NULL && n + 1 < sizeof s->request &&
           (got = recv(fd, s->request + n, sizeof s->request - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    (void)send(fd, s->say, strlen(s->say), MSG_NOSIGNAL);
    (void)close(fd);
    return NULL;
}

static void bind_somewhere(struct server *s, const char *tail)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(s->fd >= 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &n), 0);
    (void)snprintf(s->url, sizeof s->url, "127.0.0.1:%u%s", ntohs(a.sin_port), tail);
}

static enum ctl_exit get(struct server *s, const char *path, json_t **out)
{
    struct ctl_admin a = {.router = s->url, .timeout_s = 20};
    assert_int_equal(listen(s->fd, 1), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, serve, s), 0);
    enum ctl_exit status = ctl_admin_get(&a, path, out);
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    (void)close(s->fd);
    return status;
}

static int silence(void **state)
{
    (void)state;
    return freopen("/dev/null", "w", stderr) != NULL ? 0 : -1;
}

static void an_answer_is_parsed_and_the_url_completed(void **state)
{
    (void)state;
    struct server s = {.say = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}"};
    json_t *doc = NULL;
    bind_somewhere(&s, "//"); /* no scheme, slashes behind */
    assert_int_equal(get(&s, "/nodes", &doc), CTL_OK);
    assert_int_equal(json_integer_value(json_object_get(doc, "a")), 1);
    json_decref(doc);
    assert_int_equal(strncmp(s.request, "GET /nodes HTTP/1.1\r\n", 21), 0);
}

static void errors_and_what_is_not_json_are_failures(void **state)
{
    (void)state;
    static const char *const say[] = {
        "HTTP/1.1 404 Not Found\r\nContent-Length: 26\r\n\r\n{\"error\":{\"message\":\"no\"}}",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx",
        "220 mail ready\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof say / sizeof say[0]; i++) {
        struct server s = {.say = say[i]};
        json_t *doc = NULL;
        bind_somewhere(&s, "");
        assert_int_equal(get(&s, "/nodes", &doc), CTL_FAILED);
        assert_null(doc);
    }
}

static void nobody_listening_is_unreachable(void **state)
{
    (void)state;
    struct server s = {0};
    json_t *doc = NULL;
    bind_somewhere(&s, ""); /* bound, so that nobody else listens there, but not listening */
    struct ctl_admin a = {.router = s.url, .timeout_s = 20};
    assert_int_equal(ctl_admin_get(&a, "/nodes", &doc), CTL_UNREACHABLE);
    char url[80];
    (void)snprintf(url, sizeof url, "https://%s", s.url);
    a.router = url;
    assert_int_equal(ctl_admin_get(&a, "/nodes", &doc), CTL_UNREACHABLE);
    (void)close(s.fd);
}

static void a_wrong_url_is_wrong_usage(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "/", "http://", "http://a b", "ftp://x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        json_t *doc = NULL;
        struct ctl_admin a = {.router = (char *)(uintptr_t)bad[i], .timeout_s = 20};
        assert_int_equal(ctl_admin_get(&a, "/nodes", &doc), CTL_USAGE);
    }
}

static void the_message_of_an_error_is_found_or_empty(void **state)
{
    (void)state;
    json_t *e = json_loads("{\"error\":{\"message\":\"no such\"}}", 0, NULL);
    json_t *odd = json_loads("{\"error\":5}", 0, NULL);
    assert_string_equal(ctl_admin_message(e), "no such");
    assert_string_equal(ctl_admin_message(odd), "");
    assert_string_equal(ctl_admin_message(NULL), "");
    json_decref(e);
    json_decref(odd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_parsed_and_the_url_completed),
        cmocka_unit_test(errors_and_what_is_not_json_are_failures),
        cmocka_unit_test(nobody_listening_is_unreachable),
        cmocka_unit_test(a_wrong_url_is_wrong_usage),
        cmocka_unit_test(the_message_of_an_error_is_found_or_empty),
    };
    return cmocka_run_group_tests(tests, silence, NULL);
}
