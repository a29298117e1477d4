/* The client against our own server in a thread of its own, and against listeners that say the wrong thing. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/io/grpc_client.h"
#include "common/io/grpc_server.h"
#include "common/io/tls.h"
#include "common/io/tls_client.h"
#include "tests/unit/check.h"
#include "tests/unit/io/cert_rig.h"

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

/* Says what the client sent beside its message. */
static void h_meta(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)message;
    (void)len;
    const char *value = td_http_header_get(td_grpc_call_request(c), "x-told");
    bool forever = td_grpc_call_deadline(c) == TD_NEVER;
    td_grpc_call_set_request_id(c, "id-7");
    if (td_grpc_send(c, value, strlen(value)) == TD_OK &&
        td_grpc_send(c, forever ? "forever" : "bounded", 7) == TD_OK) {
        td_grpc_finish(c, TD_GRPC_OK, NULL, NULL, 0);
    }
}

/* Never answers; the client's deadline is kept by both. */
static void h_mute(void *arg, struct td_grpc_call *c, const uint8_t *message, size_t len)
{
    (void)arg;
    (void)c;
    (void)message;
    (void)len;
}

static const struct td_grpc_method methods[] = {{.name = "Echo", .handle = h_echo},
                                                {.name = "Fail", .handle = h_fail},
                                                {.name = "Endless", .handle = h_endless},
                                                {.name = "Meta", .handle = h_meta},
                                                {.name = "Mute", .handle = h_mute}};

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

static struct td_tls *tls;
static struct identity ca, server_id, friend_id;

/* with_tls: 0 none, 1 the server's certificate, 2 the client's too. */
static int start(int with_tls)
{
    td_log_set_level(TD_LOG_ERROR);
    struct td_grpc_server_params p;
    td_grpc_server_defaults(&p);
    assert_int_equal(td_loop_create(&loop), TD_OK);
    cert_folder_make();
    ca = cert_make("ca", NULL, -10, 3600);
    server_id = cert_make("127.0.0.1", &ca, -10, 3600);
    friend_id = cert_make("friend", &ca, -10, 3600);
    cert_write("ca", NULL, ca.cert);
    cert_write("cert", NULL, server_id.cert);
    cert_write("key", server_id.key, NULL);
    cert_write("friend-cert", NULL, friend_id.cert);
    cert_write("friend-key", friend_id.key, NULL);
    const struct td_tls_params t = {.loop = loop,
                                    .cert = cert_path("cert"),
                                    .key = cert_path("key"),
                                    .client_ca = with_tls == 2 ? cert_path("ca") : NULL,
                                    .poll_us = 10000000};
    if (with_tls > 0) {
        assert_int_equal(td_tls_create(&t, &tls), TD_OK);
    }
    p.h2.loop = loop;
    p.h2.host = "127.0.0.1";
    p.h2.tls = tls;
    p.admit = admit;
    assert_int_equal(td_grpc_server_create(&p, &server), TD_OK);
    const struct td_grpc_service service = {
        .name = "a.B", .methods = methods, .n_methods = TD_COUNT(methods)};
    td_grpc_server_add(server, &service);
    (void)snprintf(address, sizeof address, "127.0.0.1:%u",
                   (unsigned)td_h2_server_port(td_grpc_server_h2(server)));
    return pthread_create(&thread, NULL, serve, NULL);
}

static int setup(void **state)
{
    (void)state;
    return start(0);
}

static int setup_tls(void **state)
{
    (void)state;
    return start(1);
}

static int setup_mutual(void **state)
{
    (void)state;
    return start(2);
}

static int teardown(void **state)
{
    (void)state;
    td_loop_stop(loop);
    (void)pthread_join(thread, NULL);
    server = td_grpc_server_destroy(server);
    tls = td_tls_destroy(tls);
    loop = td_loop_destroy(loop);
    cert_drop(&ca);
    cert_drop(&server_id);
    cert_drop(&friend_id);
    cert_folder_remove();
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

static void what_is_no_address_or_no_metadata_is_told(void **state)
{
    (void)state;
    char long_key[TD_GRPC_CLIENT_MAX_KEY + 2];
    memset(long_key, 'k', sizeof long_key);
    long_key[TD_GRPC_CLIENT_MAX_KEY + 1] = 0;
    const struct td_http_header upper[] = {{"X-Told", "yes"}}, control[] = {{"x-told", "a\nb"}};
    const struct td_http_header many[TD_GRPC_CLIENT_METADATA + 1] = {{"x-told", "yes"}};
    const struct td_grpc_client_call rows[] = {
        {.address = "localhost", .path = "/a.B/Echo"},
        {.address = address, .path = "/a.B/Echo\r\n"},
        {.address = address, .path = "/a.B/Echo", .key = long_key},
        {.address = address, .path = "/a.B/Echo", .key = "\x01"},
        {.address = address, .path = "/a.B/Echo", .metadata = upper, .n_metadata = 1},
        {.address = address, .path = "/a.B/Echo", .metadata = control, .n_metadata = 1},
        {.address = address, .path = "/a.B/Echo", .metadata = many, .n_metadata = TD_COUNT(many)}};
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct td_grpc_client_answer a;
        struct td_grpc_client_call call = rows[i];
        call.timeout_us = 10000000;
        why[0] = 0;
        assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_ERR_BAD_REQUEST);
        assert_true(why[0] != 0);
    }
    const struct td_grpc_client_call nobody = {
        .address = "127.0.0.1:1", .path = "/a.B/Echo", .timeout_us = 10000000};
    struct td_grpc_client_answer a;
    assert_int_equal(td_grpc_client_run(&nobody, &a, why, sizeof why), TD_ERR_PEER_LOST);
}

static void metadata_and_the_answers_id_travel(void **state)
{
    (void)state;
    const struct td_http_header told[] = {{"x-told", "hello"}};
    struct td_grpc_client_call call = {.address = address,
                                       .path = "/a.B/Meta",
                                       .key = "secret",
                                       .timeout_us = 10000000,
                                       .metadata = told,
                                       .n_metadata = 1};
    static const char *const want[] = {"bounded", "forever"};
    for (int i = 0; i < 2; i++) {
        struct td_grpc_client_answer a;
        const uint8_t *data = NULL;
        size_t len = 0;
        call.timeout_us = i == 0 ? 10000000 : TD_NEVER;
        assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_OK);
        assert_int_equal(a.status, TD_GRPC_OK);
        assert_string_equal(a.request_id, "id-7");
        assert_true(td_grpc_client_message(&a, 0, &data, &len));
        assert_true(len == 5 && memcmp(data, "hello", 5) == 0);
        assert_true(td_grpc_client_message(&a, 1, &data, &len));
        assert_true(len == 7 && memcmp(data, want[i], 7) == 0);
        td_grpc_client_answer_fini(&a);
    }
}

struct seen {
    uint32_t n, enough;
    size_t bytes;
};

static bool on_message(void *arg, const uint8_t *data, size_t len)
{
    struct seen *s = arg;
    s->bytes += len > 0 && data != NULL ? len : 0;
    return ++s->n != s->enough;
}

static void messages_are_handed_over_as_they_come_until_it_is_enough(void **state)
{
    (void)state;
    static uint8_t big[100000];
    struct seen seen = {0};
    struct td_grpc_client_answer a;
    struct td_grpc_client_call call = {.address = address,
                                       .path = "/a.B/Echo",
                                       .key = "secret",
                                       .message = big,
                                       .len = sizeof big,
                                       .timeout_us = 10000000,
                                       .on_message = on_message,
                                       .arg = &seen};
    assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_OK);
    assert_true(seen.n == 2 && a.n_messages == 2 && seen.bytes == sizeof big + 4);
    assert_int_equal(a.bytes.len, 0);
    td_grpc_client_answer_fini(&a);
    seen = (struct seen){.enough = 1};
    call.path = "/a.B/Endless";
    assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_OK);
    assert_true(seen.n == 1 && a.status == TD_GRPC_OK);
    td_grpc_client_answer_fini(&a);
    call.max_answer = sizeof big - 1;
    call.path = "/a.B/Echo";
    assert_int_equal(td_grpc_client_run(&call, &a, why, sizeof why), TD_ERR_TOO_LARGE);
}

static void a_deadline_ends_a_call_that_nobody_answers(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    const struct td_grpc_client_call call = {
        .address = address, .path = "/a.B/Mute", .key = "secret", .timeout_us = 20000};
    td_err err = td_grpc_client_run(&call, &a, why, sizeof why);
    if (err == TD_OK) { /* the server was the first to notice */
        assert_int_equal(a.status, TD_GRPC_DEADLINE_EXCEEDED);
        td_grpc_client_answer_fini(&a);
    } else {
        assert_int_equal(err, TD_ERR_BUDGET);
    }
}

static void a_silent_server_that_lives_is_waited_for(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    const struct td_grpc_client_call call = {.address = address,
                                             .path = "/a.B/Mute",
                                             .key = "secret",
                                             .timeout_us = 300000,
                                             .keepalive_us = 100000};
    td_err err = td_grpc_client_run(&call, &a, why, sizeof why);
    if (err == TD_OK) {
        assert_int_equal(a.status, TD_GRPC_DEADLINE_EXCEEDED);
        td_grpc_client_answer_fini(&a);
    } else {
        assert_int_equal(err,
                         TD_ERR_BUDGET); /* and not TD_ERR_PEER_LOST: its PINGs were answered */
    }
}

/* ---- TLS ---- */

static td_err run_tls(const struct td_tls_client_params *p)
{
    struct td_tls_client *c = NULL;
    struct td_grpc_client_answer a;
    assert_int_equal(td_tls_client_create(p, &c, why, sizeof why), TD_OK);
    const struct td_grpc_client_call call = {.address = address,
                                             .path = "/a.B/Echo",
                                             .key = "secret",
                                             .message = "hi",
                                             .len = 2,
                                             .timeout_us = 10000000,
                                             .tls = c};
    td_err err = td_grpc_client_run(&call, &a, why, sizeof why);
    if (err == TD_OK) {
        assert_true(a.status == TD_GRPC_OK && a.n_messages == 2);
        td_grpc_client_answer_fini(&a);
    }
    td_tls_client_destroy(c);
    return err;
}

static void calls_by_tls_check_who_answers(void **state)
{
    (void)state;
    assert_int_equal(run_tls(&(struct td_tls_client_params){.ca = cert_path("ca")}), TD_OK);
    assert_int_equal(run_tls(&(struct td_tls_client_params){.ca = cert_path("friend-cert")}),
                     TD_ERR_PEER_AUTH);
    assert_int_equal(
        run_tls(&(struct td_tls_client_params){.ca = cert_path("ca"), .server_name = "other"}),
        TD_ERR_PEER_AUTH);
    struct td_grpc_client_answer a;
    assert_int_equal(run("/a.B/Echo", "secret", "", 0, &a), TD_ERR_PEER_LOST); /* no TLS */
    assert_non_null(strstr(why, "want TLS"));
}

static void calls_by_mutual_tls_show_who_calls(void **state)
{
    (void)state;
    assert_int_equal(run_tls(&(struct td_tls_client_params){.ca = cert_path("ca"),
                                                            .cert = cert_path("friend-cert"),
                                                            .key = cert_path("friend-key")}),
                     TD_OK);
    assert_int_equal(run_tls(&(struct td_tls_client_params){.ca = cert_path("ca")}),
                     TD_ERR_PEER_AUTH);
}

/* ---- servers that lie ---- */

/* What a server says, frame by frame. */
struct script {
    uint8_t bytes[200000];
    size_t len;
};

static void say(struct script *s, const void *data, size_t len)
{
    assert_true(s->len + len <= sizeof s->bytes);
    if (len > 0) {
        memcpy(s->bytes + s->len, data, len);
    }
    s->len += len;
}

enum { F_DATA = 0, F_HEADERS = 1, F_RST = 3, F_SETTINGS = 4, F_PUSH = 5, F_GOAWAY = 7, F_MORE = 9 };
enum { END_STREAM = 1, END_HEADERS = 4 };

static void frame(struct script *s, int type, int flags, uint32_t stream, const void *data,
                  size_t len)
{
    const uint8_t head[9] = {(uint8_t)(len >> 16),
                             (uint8_t)(len >> 8),
                             (uint8_t)len,
                             (uint8_t)type,
                             (uint8_t)flags,
                             0,
                             0,
                             0,
                             (uint8_t)stream};
    say(s, head, sizeof head);
    say(s, data, len);
}

/* Literal header fields, never indexed; "name\0value\0...". */
static size_t header_block(const char *list, uint8_t *out)
{
    size_t n = 0;
    for (const char *at = list; *at != 0;) {
        out[n++] = 0x10;
        for (int i = 0; i < 2; i++) {
            size_t len = strlen(at);
            out[n++] = (uint8_t)len;
            memcpy(out + n, at, len);
            n += len;
            at += len + 1;
        }
    }
    return n;
}

static void headers(struct script *s, const char *list, int flags)
{
    uint8_t block[1024];
    frame(s, F_HEADERS, flags, 1, block, header_block(list, block));
}

#define HEAD ":status\000200\0content-type\0application/grpc\0"

static void u32_frame(struct script *s, int type, uint32_t stream, uint32_t a, uint32_t b, int n)
{
    const uint8_t d[8] = {(uint8_t)(a >> 24), (uint8_t)(a >> 16), (uint8_t)(a >> 8), (uint8_t)a,
                          (uint8_t)(b >> 24), (uint8_t)(b >> 16), (uint8_t)(b >> 8), (uint8_t)b};
    frame(s, type, 0, stream, d, (size_t)n);
}

/* Reads frames until the client has said all of its request. */
static void hear(int fd)
{
    uint8_t buf[65536];
    size_t have = 0, at = 24; /* behind the preface */
    ssize_t n = 0;
    while (have < sizeof buf && (n = read(fd, buf + have, sizeof buf - have)) > 0) {
        have += (size_t)n;
        while (have >= at + 9) {
            size_t len = (size_t)buf[at] << 16 | (size_t)buf[at + 1] << 8 | buf[at + 2];
            if (buf[at + 3] == F_DATA && (buf[at + 4] & END_STREAM) != 0) {
                return;
            }
            at += 9 + len;
        }
    }
}

/* One listener, one client: after the request come `bytes`, then the end if `ends`. */
static td_err against(const void *bytes, size_t n, bool hears, bool ends,
                      struct td_grpc_client_call *call, struct td_grpc_client_answer *out)
{
    struct sockaddr_in sa = {.sin_family = AF_INET};
    socklen_t len = sizeof sa;
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
        (void)signal(SIGPIPE, SIG_IGN);
        peer = accept(fd, NULL, NULL);
        if (hears) {
            hear(peer);
        }
        (void)!write(peer, bytes, n);
        while (!ends && read(peer, sink, sizeof sink) > 0) {
        }
        _exit(0);
    }
    (void)snprintf(name, sizeof name, "127.0.0.1:%u", (unsigned)ntohs(sa.sin_port));
    call->address = name;
    call->path = "/a.B/Echo";
    td_err err = td_grpc_client_run(call, out, why, sizeof why);
    (void)close(fd);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return err;
}

static td_err against_script(const struct script *s, struct td_grpc_client_answer *out)
{
    struct td_grpc_client_call call = {.timeout_us = 10000000};
    return against(s->bytes, s->len, true, false, &call, out);
}

static void servers_that_say_the_wrong_thing_or_nothing_are_told_apart(void **state)
{
    (void)state;
    static const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
    struct td_grpc_client_answer a;
    struct td_grpc_client_call call = {.timeout_us = 10000000};
    assert_int_equal(against(http, sizeof http - 1, false, false, &call, &a), TD_ERR_PROTOCOL);
    assert_int_equal(against("", 0, false, true, &call, &a), TD_ERR_PEER_LOST);
    call.timeout_us = 50000;
    assert_int_equal(against("", 0, false, false, &call, &a), TD_ERR_BUDGET);
    call.timeout_us = TD_NEVER;
    call.keepalive_us = 20000;
    assert_int_equal(against("", 0, false, false, &call, &a), TD_ERR_PEER_LOST);
    assert_non_null(strstr(why, "silent"));
}

static struct script script;

static struct script *begin(void)
{
    script.len = 0;
    frame(&script, F_SETTINGS, 0, 0, NULL, 0);
    return &script;
}

static void resets_goaways_and_http_statuses_become_statuses(void **state)
{
    (void)state;
    static const struct {
        int type;
        uint32_t code;
        enum td_grpc_status status;
    } rows[] = {{F_RST, 7, TD_GRPC_UNAVAILABLE},
                {F_RST, 8, TD_GRPC_CANCELLED},
                {F_RST, 11, TD_GRPC_RESOURCE_EXHAUSTED},
                {F_RST, 12, TD_GRPC_PERMISSION_DENIED},
                {F_RST, 2, TD_GRPC_INTERNAL},
                {F_GOAWAY, 0, TD_GRPC_UNAVAILABLE}};
    struct td_grpc_client_answer a;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        struct script *s = begin();
        if (rows[i].type == F_RST) {
            u32_frame(s, F_RST, 1, rows[i].code, 0, 4);
        } else { /* the last stream that counts is 0 */
            u32_frame(s, F_GOAWAY, 0, 0, rows[i].code, 8);
        }
        assert_int_equal(against_script(s, &a), TD_OK);
        assert_int_equal(a.status, rows[i].status);
        assert_true(a.text[0] != 0);
        td_grpc_client_answer_fini(&a);
    }
    static const struct {
        const char *head;
        enum td_grpc_status status;
    } https[] = {{":status\000503\0", TD_GRPC_UNAVAILABLE},
                 {":status\000401\0", TD_GRPC_UNAUTHENTICATED},
                 {":status\000404\0", TD_GRPC_UNIMPLEMENTED},
                 {":status\000403\0", TD_GRPC_PERMISSION_DENIED},
                 {":status\000418\0", TD_GRPC_UNKNOWN}};
    for (size_t i = 0; i < TD_COUNT(https); i++) {
        headers(begin(), https[i].head, END_STREAM | END_HEADERS);
        assert_int_equal(against_script(&script, &a), TD_OK);
        assert_int_equal(a.status, https[i].status);
        td_grpc_client_answer_fini(&a);
    }
}

static void a_status_that_is_none_is_unknown_and_a_pushback_is_kept(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    headers(begin(), HEAD "grpc-status\00017\0grpc-retry-pushback-ms\000250\0",
            END_STREAM | END_HEADERS);
    assert_int_equal(against_script(&script, &a), TD_OK);
    assert_true(a.status == TD_GRPC_UNKNOWN && a.retry_ms == 250);
    td_grpc_client_answer_fini(&a);
    headers(begin(), HEAD "grpc-status\000014\0grpc-retry-pushback-ms\000-1\0",
            END_STREAM | END_HEADERS);
    assert_int_equal(against_script(&script, &a), TD_OK);
    assert_true(a.status == TD_GRPC_UNAVAILABLE && a.retry_ms == -1);
    td_grpc_client_answer_fini(&a);
}

static void answers_that_are_not_grpc_are_refused(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    static const struct {
        const char *head;
        const char *data;
        size_t len;
        td_err err;
    } rows[] = {
        {":status\000200\0content-type\0text/html\0", "<html>", 6, TD_ERR_PROTOCOL},
        {HEAD, "", 0, TD_ERR_PROTOCOL},                    /* no status */
        {HEAD, "\1\0\0\0\1x", 6, TD_ERR_PROTOCOL},         /* compressed */
        {HEAD, "\7\0\0\0\1x", 6, TD_ERR_PROTOCOL},         /* a flag of nobody's */
        {HEAD, "\0\xff\xff\xff\xff", 5, TD_ERR_TOO_LARGE}, /* 4 GiB to come */
        {HEAD, "\0\x01\0\0\1", 5, TD_ERR_TOO_LARGE},       /* one more than 16 MiB */
    };
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        headers(begin(), rows[i].head, END_HEADERS);
        frame(&script, F_DATA, END_STREAM, 1, rows[i].data, rows[i].len);
        assert_int_equal(against_script(&script, &a), rows[i].err);
    }
    headers(begin(), HEAD, END_HEADERS); /* half a message, then all is well */
    frame(&script, F_DATA, 0, 1, "\0\0\0\0\5ab", 7);
    headers(&script, "grpc-status\0000\0", END_STREAM | END_HEADERS);
    assert_int_equal(against_script(&script, &a), TD_ERR_PROTOCOL);
}

static void headers_without_end_are_cut(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    uint8_t block[256];
    char value[101];
    struct script *s = begin();
    memset(value, 'v', sizeof value);
    value[100] = 0;
    uint8_t one[128] = {0x10, 6, 'x', '-', 'f', 'i', 'l', 'l', 100};
    memcpy(one + 9, value, 100);
    frame(s, F_HEADERS, 0, 1, block, header_block(HEAD, block));
    for (int i = 0; i < 300; i++) { /* 300 times 138 bytes, and never the end */
        frame(s, F_MORE, 0, 1, one, 109);
    }
    td_err err = against_script(s, &a);
    assert_true(err == TD_ERR_TOO_LARGE || err == TD_ERR_PROTOCOL);
    s = begin();
    for (int i = 0; i < 900; i++) { /* heads that promise another head */
        headers(s, ":status\000103\0link\0x\0", END_HEADERS);
    }
    assert_int_equal(against_script(s, &a), TD_ERR_TOO_LARGE);
}

static void frames_that_no_server_may_send_do_no_harm(void **state)
{
    (void)state;
    struct td_grpc_client_answer a;
    uint8_t junk[600];
    uint8_t push[64] = {0, 0, 0, 2};
    for (size_t i = 0; i < sizeof junk; i++) {
        junk[i] = (uint8_t)(i * 97 + 13);
    }
    struct script *s = begin();
    say(s, junk, sizeof junk);
    td_err err = against_script(s, &a);
    assert_true(err != TD_OK);
    s = begin();
    size_t n = header_block(":method\0GET\0:scheme\0http\0:path\0/\0:authority\0x\0", push + 4);
    for (uint8_t i = 0; i < 100; i++) { /* we have switched it off: each is reset */
        push[3] = (uint8_t)(2 + 2 * i);
        frame(s, F_PUSH, END_HEADERS, 1, push, n + 4);
    }
    headers(s, HEAD "grpc-status\0005\0", END_STREAM | END_HEADERS);
    assert_int_equal(against_script(s, &a), TD_OK);
    assert_int_equal(a.status, TD_GRPC_NOT_FOUND);
    td_grpc_client_answer_fini(&a);
    s = begin();
    frame(s, F_HEADERS, END_HEADERS, 1, "\xff\xff\xff\xff\xff\xff\xff", 7); /* no HPACK */
    err = against_script(s, &a);
    assert_true(err == TD_ERR_PROTOCOL || (err == TD_OK && a.status == TD_GRPC_INTERNAL));
    if (err == TD_OK) {
        td_grpc_client_answer_fini(&a);
    }
}

#define T(name)  cmocka_unit_test_setup_teardown(name, setup, teardown)
#define S(name)  cmocka_unit_test_setup_teardown(name, setup_tls, teardown)
#define M2(name) cmocka_unit_test_setup_teardown(name, setup_mutual, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(messages_of_any_size_come_back),
        T(a_status_is_an_answer_with_its_text_and_code),
        T(enough_messages_end_an_endless_stream),
        T(what_is_no_address_or_no_metadata_is_told),
        T(metadata_and_the_answers_id_travel),
        T(messages_are_handed_over_as_they_come_until_it_is_enough),
        T(a_deadline_ends_a_call_that_nobody_answers),
        T(a_silent_server_that_lives_is_waited_for),
        S(calls_by_tls_check_who_answers),
        M2(calls_by_mutual_tls_show_who_calls),
        cmocka_unit_test(servers_that_say_the_wrong_thing_or_nothing_are_told_apart),
        cmocka_unit_test(resets_goaways_and_http_statuses_become_statuses),
        cmocka_unit_test(a_status_that_is_none_is_unknown_and_a_pushback_is_kept),
        cmocka_unit_test(answers_that_are_not_grpc_are_refused),
        cmocka_unit_test(headers_without_end_are_cut),
        cmocka_unit_test(frames_that_no_server_may_send_do_no_harm),
    };
    return cmocka_run_group_tests_name("grpc_client", tests, NULL, NULL);
}
