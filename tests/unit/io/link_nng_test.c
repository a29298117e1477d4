#include "common/io/link_nng.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/io/link_frame.h"

/* All ends live in one loop; whatever is waited for must happen within GIVE_UP_US, however slow the
 * machine. */
#define GIVE_UP_US 60000000
#define TIME_SCALE 0.2
#define ENDS       3

struct end {
    struct td_link_nng *n;
    unsigned ups, losts, refusals, detaches, resumes;
    uint64_t session, epoch, next_in, next_out;
    uint64_t sessions[2]; /* of the first two peers, in order of coming up */
    unsigned bad;
    td_err lost_err, refused_err;
    bool refused_remote;
    char text[TD_LINK_TEXT], peer[64], url[TD_LINK_NNG_URL];
};

struct rig {
    struct td_loop *loop;
    struct end ends[ENDS];
    char dir[64];
};

static void on_up(void *arg, const struct td_link_peer *p)
{
    struct end *e = arg;
    if (e->ups < 2) {
        e->sessions[e->ups] = p->session;
    }
    e->ups++;
    e->session = p->session;
    e->epoch = p->epoch;
    (void)snprintf(e->peer, sizeof e->peer, "%s", p->name);
    (void)snprintf(e->url, sizeof e->url, "%s", p->url);
}

static void on_message(void *arg, uint64_t session, uint64_t epoch, const uint8_t *data, size_t len)
{
    struct end *e = arg;
    uint64_t number;
    (void)session;
    (void)epoch;
    if (len < 8) {
        e->bad++;
        return;
    }
    memcpy(&number, data, 8);
    e->bad += number != e->next_in;
    e->next_in++;
    for (size_t i = 8; i < len; i++) {
        e->bad += data[i] != (uint8_t)(number + i);
    }
}

static void on_lost(void *arg, uint64_t session, uint64_t epoch, td_err reason, const char *text)
{
    struct end *e = arg;
    (void)session;
    (void)epoch;
    e->losts++;
    e->lost_err = reason;
    (void)snprintf(e->text, sizeof e->text, "%s", text);
}

static void on_refused(void *arg, const char *url, td_err reason, const char *text, bool remote)
{
    struct end *e = arg;
    (void)url;
    e->refusals++;
    e->refused_err = reason;
    e->refused_remote = remote;
    (void)snprintf(e->text, sizeof e->text, "%s", text);
}

static void on_attached(void *arg, uint64_t session, uint64_t epoch, bool attached)
{
    struct end *e = arg;
    (void)session;
    (void)epoch;
    *(attached ? &e->resumes : &e->detaches) += 1;
}

static const struct td_link_ops ops = {on_up, on_message, on_lost, on_refused, on_attached};

static struct td_link_key key_of(const char *secret)
{
    struct td_link_key k = {.id = "k1", .secret_len = (uint32_t)strlen(secret)};
    memcpy(k.secret, secret, k.secret_len);
    return k;
}

static void start(struct rig *r, int i, enum td_link_role role, uint64_t epoch, const char *secret)
{
    struct td_link_key k = key_of(secret);
    char name[8] = {role == TD_LINK_ROUTER ? 'r' : 'n', (char)('0' + i)};
    struct td_link_nng_params p = {
        .loop = r->loop,
        .link = {.role = role,
                 .epoch = epoch,
                 .name = name,
                 .info = (const uint8_t *)name,
                 .info_len = 2,
                 .keys = &k,
                 .n_keys = 1,
                 .time_scale = TIME_SCALE,
                 .max_sessions = 8,
                 .max_pending = 16},
        .ops = &ops,
        .arg = &r->ends[i],
        .resolve_every_us = 100000,
    };
    assert_int_equal(td_link_nng_create(&p, &r->ends[i].n), TD_OK);
}

#define SECRET "the secret of this cluster"

static int setup(void **state)
{
    struct rig *r = td_zalloc(1, sizeof *r);
    assert_non_null(r);
    td_fault_reset();
    assert_int_equal(td_loop_create(&r->loop), TD_OK);
    (void)snprintf(r->dir, sizeof r->dir, "/tmp/td-link-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    *state = r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    char path[128];
    td_fault_reset();
    for (int i = 0; i < ENDS; i++) {
        r->ends[i].n = td_link_nng_destroy(r->ends[i].n);
    }
    r->loop = td_loop_destroy(r->loop);
    (void)snprintf(path, sizeof path, "%s/s", r->dir);
    (void)unlink(path);
    (void)rmdir(r->dir);
    free(r);
    return 0;
}

#define UNTIL(r, cond)                                                                             \
    do {                                                                                           \
        int64_t give_up_ = td_now_us() + GIVE_UP_US;                                               \
        while (!(cond) && td_now_us() < give_up_) {                                                \
            td_loop_run_once((r)->loop, 20000);                                                    \
        }                                                                                          \
        assert_true(cond);                                                                         \
    } while (0)

static void connect_pair(struct rig *r, const char *url)
{
    start(r, 0, TD_LINK_ROUTER, 100, SECRET);
    start(r, 1, TD_LINK_NODE, 200, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[1].n, url), TD_OK);
    assert_int_equal(td_link_nng_dial(r->ends[0].n, td_link_nng_listen_url(r->ends[1].n, 0)),
                     TD_OK);
    UNTIL(r, r->ends[0].ups == 1 && r->ends[1].ups == 1);
}

static td_err send_next(struct rig *r, int i, uint64_t session, size_t len)
{
    static uint8_t m[300000];
    struct end *e = &r->ends[i];
    memcpy(m, &e->next_out, 8);
    for (size_t k = 8; k < len; k++) {
        m[k] = (uint8_t)(e->next_out + k);
    }
    td_err err = td_link_nng_send(e->n, session, 1, m, len);
    e->next_out += err == TD_OK;
    return err;
}

static void a_free_port_is_published_and_both_ends_come_up(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    const char *url = td_link_nng_listen_url(r->ends[1].n, 0);
    assert_true(strncmp(url, "tcp://127.0.0.1:", 16) == 0);
    assert_string_not_equal(url, "tcp://127.0.0.1:0");
    assert_string_equal(r->ends[0].peer, "n1");
    assert_string_equal(r->ends[0].url, url);
    assert_true(r->ends[0].epoch == 200);
    assert_string_equal(r->ends[1].peer, "r0");
    assert_string_equal(r->ends[1].url, "");
}

static void messages_arrive_once_in_order_and_whole_both_ways(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    for (int i = 0; i < 3000; i++) {
        (void)send_next(r, 0, r->ends[0].session, i % 500 == 0 ? 250000 : (size_t)(8 + i % 700));
        (void)send_next(r, 1, r->ends[1].session, (size_t)(8 + i % 90));
        if (i % 16 == 0) {
            td_loop_run_once(r->loop, 0);
        }
    }
    UNTIL(r,
          r->ends[1].next_in == r->ends[0].next_out && r->ends[0].next_in == r->ends[1].next_out);
    assert_int_equal(r->ends[0].next_out, 3000);
    assert_int_equal(r->ends[0].bad + r->ends[1].bad, 0);
}

static void a_router_may_start_before_the_node(void **state)
{
    struct rig *r = *state;
    char url[128];
    (void)snprintf(url, sizeof url, "ipc://%s/s", r->dir);
    start(r, 0, TD_LINK_ROUTER, 100, SECRET);
    assert_int_equal(td_link_nng_dial(r->ends[0].n, url), TD_OK);
    for (int i = 0; i < 20; i++) {
        td_loop_run_once(r->loop, 10000);
    }
    assert_int_equal(r->ends[0].ups, 0);
    start(r, 1, TD_LINK_NODE, 200, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[1].n, url), TD_OK);
    UNTIL(r, r->ends[0].ups == 1 && r->ends[1].ups == 1);
}

static void two_routers_use_one_node(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    start(r, 2, TD_LINK_ROUTER, 102, SECRET);
    assert_int_equal(td_link_nng_dial(r->ends[2].n, td_link_nng_listen_url(r->ends[1].n, 0)),
                     TD_OK);
    UNTIL(r, r->ends[2].ups == 1 && r->ends[1].ups == 2);
    struct end *node = &r->ends[1];
    for (int i = 0; i < 100; i++) {
        assert_int_equal(send_next(r, 1, node->sessions[0], 50), TD_OK);
    }
    node->next_out = 0;
    for (int i = 0; i < 200; i++) {
        assert_int_equal(send_next(r, 1, node->sessions[1], 50), TD_OK);
    }
    UNTIL(r, r->ends[0].next_in == 100 && r->ends[2].next_in == 200);
    assert_int_equal(r->ends[0].bad + r->ends[2].bad, 0);
}

static void dropped_connections_lose_and_double_nothing(void **state)
{
    struct rig *r = *state;
    if (!TD_WITH_FAULTS) {
        skip();
    }
    connect_pair(r, "tcp://127.0.0.1:0");
    assert_int_equal(td_fault_configure("ctl.drop=drop:prob=0.02"), TD_OK);
    int64_t give_up = td_now_us() + GIVE_UP_US;
    for (int i = 0; r->ends[0].resumes < 8 && td_now_us() < give_up; i++) {
        (void)send_next(r, 0, r->ends[0].session, i % 1000 == 0 ? 200000 : (size_t)(8 + i % 300));
        (void)send_next(r, 1, r->ends[1].session, (size_t)(8 + i % 90));
        td_loop_run_once(r->loop, 0);
    }
    assert_true(r->ends[0].resumes >= 8);
    td_fault_reset();
    UNTIL(r,
          r->ends[1].next_in == r->ends[0].next_out && r->ends[0].next_in == r->ends[1].next_out);
    assert_int_equal(r->ends[0].bad + r->ends[1].bad, 0);
    assert_int_equal(r->ends[0].losts + r->ends[1].losts, 0);
}

static void a_delayed_write_arrives_later_but_arrives(void **state)
{
    struct rig *r = *state;
    if (!TD_WITH_FAULTS) {
        skip();
    }
    connect_pair(r, "tcp://127.0.0.1:0");
    assert_int_equal(td_fault_configure("ctl.delay=delay:us=5000"), TD_OK);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(send_next(r, 0, r->ends[0].session, 100), TD_OK);
    }
    UNTIL(r, r->ends[1].next_in == 20);
    assert_int_equal(r->ends[1].bad, 0);
}

static void a_wrong_secret_is_refused(void **state)
{
    struct rig *r = *state;
    start(r, 0, TD_LINK_ROUTER, 100, "not the secret of it");
    start(r, 1, TD_LINK_NODE, 200, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[1].n, "tcp://127.0.0.1:0"), TD_OK);
    assert_int_equal(td_link_nng_dial(r->ends[0].n, td_link_nng_listen_url(r->ends[1].n, 0)),
                     TD_OK);
    UNTIL(r, r->ends[0].refusals >= 2);
    assert_int_equal(r->ends[0].refused_err, TD_ERR_PEER_AUTH);
    assert_int_equal(r->ends[0].ups + r->ends[1].ups, 0);
}

static void a_good_bye_ends_the_session_at_once(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    td_link_nng_close(r->ends[1].n, TD_ERR_DRAINING);
    UNTIL(r, td_link_nng_idle(r->ends[1].n) && r->ends[0].losts == 1);
    assert_int_equal(r->ends[0].lost_err, TD_ERR_DRAINING);
    assert_int_equal(r->ends[1].losts, 0);
}

static void a_dead_node_is_noticed_by_the_refused_redial(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    r->ends[1].n = td_link_nng_destroy(r->ends[1].n);
    UNTIL(r, r->ends[0].losts == 1);
    assert_non_null(strstr(r->ends[0].text, "ended"));
}

static void a_restarted_node_gets_a_new_session(void **state)
{
    struct rig *r = *state;
    char url[128];
    (void)snprintf(url, sizeof url, "ipc://%s/s", r->dir);
    connect_pair(r, url);
    r->ends[1].n = td_link_nng_destroy(r->ends[1].n);
    start(r, 1, TD_LINK_NODE, 201, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[1].n, url), TD_OK);
    UNTIL(r, r->ends[0].ups == 2);
    assert_int_equal(r->ends[0].losts, 1);
    assert_true(r->ends[0].epoch == 201);
}

static void a_socket_file_left_by_a_dead_process_is_replaced(void **state)
{
    struct rig *r = *state;
    char url[128];
    struct sockaddr_un {
        sa_family_t family;
        char path[108];
    } a = {.family = AF_UNIX};
    (void)snprintf(url, sizeof url, "ipc://%s/s", r->dir);
    (void)snprintf(a.path, sizeof a.path, "%s/s", r->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    (void)close(fd);
    connect_pair(r, url);
}

static void an_address_in_use_is_refused(void **state)
{
    struct rig *r = *state;
    connect_pair(r, "tcp://127.0.0.1:0");
    start(r, 2, TD_LINK_NODE, 202, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[2].n, td_link_nng_listen_url(r->ends[1].n, 0)),
                     TD_ERR_ADDRESS);
    assert_int_equal(td_link_nng_listen(r->ends[2].n, "nonsense://x"), TD_ERR_ADDRESS);
    assert_string_equal(td_link_nng_listen_url(r->ends[2].n, 0), "");
}

static void a_name_is_resolved_and_dialed(void **state)
{
    struct rig *r = *state;
    char url[128];
    start(r, 0, TD_LINK_ROUTER, 100, SECRET);
    start(r, 1, TD_LINK_NODE, 200, SECRET);
    assert_int_equal(td_link_nng_listen(r->ends[1].n, "tcp://127.0.0.1:0"), TD_OK);
    (void)snprintf(url, sizeof url, "tcp://localhost:%s",
                   strrchr(td_link_nng_listen_url(r->ends[1].n, 0), ':') + 1);
    assert_int_equal(td_link_nng_dial(r->ends[0].n, url), TD_OK);
    UNTIL(r, r->ends[0].ups == 1);
    assert_string_equal(r->ends[0].url, td_link_nng_listen_url(r->ends[1].n, 0));
}

/* ---- strangers ---- */

static int stranger(const char *url)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)strtol(strrchr(url, ':') + 1, NULL, 10));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    (void)connect(fd, (struct sockaddr *)&a, sizeof a);
    return fd;
}

static bool is_closed(int fd)
{
    char c;
    ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

static void put_nonsense(int fd, int kind)
{
    static const uint8_t huge[8] = {0xff, 0xff, 0xff, 0x7f, 1, 0, 0, 0};
    static const uint8_t zero[64];
    uint8_t long_frame[4] = {0, 0, 1, 0}; /* 64 KB: fine for a frame, too much for a stranger */
    uint8_t wrong_magic[LINK_OVERHEAD + LINK_HELLO_BYTES] = {0};
    switch (kind) {
    case 0:
        (void)send(fd, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 35, MSG_NOSIGNAL);
        break;
    case 1:
        (void)send(fd, huge, sizeof huge, MSG_NOSIGNAL);
        break;
    case 2:
        (void)send(fd, zero, sizeof zero, MSG_NOSIGNAL);
        break;
    case 3:
        (void)send(fd, long_frame, sizeof long_frame, MSG_NOSIGNAL);
        break;
    case 4:
        link_put32(wrong_magic, sizeof wrong_magic - 4);
        wrong_magic[4] = LINK_HELLO;
        (void)send(fd, wrong_magic, sizeof wrong_magic, MSG_NOSIGNAL);
        break;
    default: /* says nothing */
        break;
    }
}

static void a_listener_survives_a_hundred_strangers(void **state)
{
    struct rig *r = *state;
    int fds[100];
    connect_pair(r, "tcp://127.0.0.1:0");
    const char *url = td_link_nng_listen_url(r->ends[1].n, 0);
    for (int i = 0; i < 100; i++) {
        fds[i] = stranger(url);
        td_loop_run_once(r->loop, 1000);
        put_nonsense(fds[i], i % 6);
        (void)send_next(r, 0, r->ends[0].session, 100);
    }
    start(r, 2, TD_LINK_ROUTER, 102, SECRET);
    assert_int_equal(td_link_nng_dial(r->ends[2].n, url), TD_OK);
    UNTIL(r, r->ends[2].ups == 1);
    for (int i = 0; i < 100; i++) {
        UNTIL(r, is_closed(fds[i]));
        (void)close(fds[i]);
    }
    UNTIL(r, r->ends[1].next_in == 100);
    assert_int_equal(r->ends[1].bad, 0);
    assert_int_equal(r->ends[0].losts + r->ends[0].detaches, 0);
    struct td_link_stats s;
    td_link_stats(td_link_nng_core(r->ends[1].n), &s);
    assert_int_equal(s.pending, 0);
    assert_int_equal(s.sessions, 2);
}

static void creation_survives_any_failed_allocation(void **state)
{
    struct rig *r = *state;
    struct td_link_key k = key_of(SECRET);
    struct td_link_nng_params p = {
        .loop = r->loop,
        .link = {.role = TD_LINK_NODE,
                 .epoch = 1,
                 .name = "n",
                 .keys = &k,
                 .n_keys = 1,
                 .max_sessions = 2},
        .ops = &ops,
        .arg = &r->ends[0],
    };
    for (unsigned i = 1; i < 64; i++) {
        td_mem_fail_nth(i);
        td_err e = td_link_nng_create(&p, &r->ends[0].n);
        td_mem_fail_nth(0);
        if (e == TD_OK) {
            return;
        }
        assert_int_equal(e, TD_ERR_NO_MEMORY);
        assert_null(r->ends[0].n);
    }
    fail_msg("creation never succeeded");
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        T(a_free_port_is_published_and_both_ends_come_up),
        T(messages_arrive_once_in_order_and_whole_both_ways),
        T(a_router_may_start_before_the_node),
        T(two_routers_use_one_node),
        T(dropped_connections_lose_and_double_nothing),
        T(a_delayed_write_arrives_later_but_arrives),
        T(a_wrong_secret_is_refused),
        T(a_good_bye_ends_the_session_at_once),
        T(a_dead_node_is_noticed_by_the_refused_redial),
        T(a_restarted_node_gets_a_new_session),
        T(a_socket_file_left_by_a_dead_process_is_replaced),
        T(an_address_in_use_is_refused),
        T(a_name_is_resolved_and_dialed),
        T(a_listener_survives_a_hundred_strangers),
        T(creation_survives_any_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
