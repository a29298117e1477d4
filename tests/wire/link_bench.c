/* link_bench.c - what the control link costs: frames and bytes a second through the pure session
 * alone (both ends in one thread, no sockets) and through NNG over loopback; memory of an idle
 * session.
 *
 *   link_bench [seconds]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/io/link_nng.h"

static struct td_link_key key = {.id = "bench", .secret = "0123456789abcdef", .secret_len = 16};

static struct td_link_params params(enum td_link_role role, uint64_t epoch)
{
    return (struct td_link_params){.role = role,
                                   .epoch = epoch,
                                   .name = role == TD_LINK_ROUTER ? "r" : "n",
                                   .keys = &key,
                                   .n_keys = 1,
                                   .jitter_seed = epoch};
}

/* ---- the pure session ---- */

struct pure {
    struct td_link *link[2];
    uint64_t conn[2], session;
    uint64_t messages, bytes;
};

/* Carries out what end i wants; the other end reads at once. */
static void pure_pump(struct pure *p, int i)
{
    struct td_link_action a;
    static const uint8_t nonce[TD_LINK_NONCE] = {1};
    while (td_link_next(p->link[i], 1, &a)) {
        if (a.type == TD_LINK_DIAL) {
            if (td_link_conn_open(p->link[1], 1, TD_LINK_NO_TARGET, nonce, &p->conn[1]) != TD_OK ||
                td_link_conn_open(p->link[0], 1, a.target, nonce, &p->conn[0]) != TD_OK) {
                exit(1);
            }
        } else if (a.type == TD_LINK_WRITE) {
            td_link_conn_bytes(p->link[1 - i], 1, p->conn[1 - i], a.bytes, a.len);
            struct td_link_action b;
            while (td_link_next(p->link[1 - i], 1, &b)) {
                if (b.type == TD_LINK_MESSAGE) {
                    p->messages++;
                    p->bytes += b.len;
                } else if (b.type == TD_LINK_WRITE) {
                    td_link_conn_bytes(p->link[i], 1, p->conn[i], b.bytes, b.len);
                    td_link_conn_wrote(p->link[1 - i], 1, b.conn);
                    break; /* its actions come in the outer loop */
                }
            }
            td_link_conn_wrote(p->link[i], 1, a.conn);
        } else if (a.type == TD_LINK_UP && i == 0) {
            p->session = a.session;
        }
    }
}

static void bench_pure(size_t len, double seconds)
{
    struct pure p = {0};
    struct td_link_params r = params(TD_LINK_ROUTER, 1), n = params(TD_LINK_NODE, 2);
    uint32_t target;
    uint8_t *m = calloc(1, len);
    if (m == NULL || td_link_create(&r, &p.link[0]) != TD_OK ||
        td_link_create(&n, &p.link[1]) != TD_OK ||
        td_link_target_add(p.link[0], 1, &target) != TD_OK) {
        exit(1);
    }
    for (int i = 0; i < 8; i++) {
        pure_pump(&p, 0);
        pure_pump(&p, 1);
    }
    int64_t start = td_now_us(), end = start + (int64_t)(seconds * 1e6), now = start;
    while (now < end) {
        for (int i = 0; i < 64; i++) {
            if (td_link_send(p.link[0], 1, p.session, 0, m, len) != TD_OK) {
                break;
            }
        }
        pure_pump(&p, 0);
        pure_pump(&p, 1);
        now = td_now_us();
    }
    double took = (double)(now - start) / 1e6;
    printf(
        "pure session, %zu-byte messages: %.0f messages/s, %.1f MB/s (both ends in one thread)\n",
        len, (double)p.messages / took, (double)p.bytes / took / 1e6);
    free(m);
    p.link[0] = td_link_destroy(p.link[0]);
    p.link[1] = td_link_destroy(p.link[1]);
}

/* ---- over NNG ---- */

struct net {
    uint64_t session, got, bytes;
};

static void on_up(void *arg, const struct td_link_peer *peer)
{
    ((struct net *)arg)->session = peer->session;
}

static void on_message(void *arg, uint64_t session, uint64_t epoch, const uint8_t *data, size_t len)
{
    struct net *n = arg;
    (void)session;
    (void)epoch;
    (void)data;
    n->got++;
    n->bytes += len;
}

static const struct td_link_ops ops = {.on_up = on_up, .on_message = on_message};

static void bench_nng(size_t len, double seconds)
{
    struct td_loop *loop = NULL;
    struct td_link_nng *end[2] = {NULL, NULL};
    struct net state[2] = {{0}};
    uint8_t *m = calloc(1, len);
    if (m == NULL || td_loop_create(&loop) != TD_OK) {
        exit(1);
    }
    for (int i = 0; i < 2; i++) {
        struct td_link_nng_params p = {
            .loop = loop,
            .link = params(i == 0 ? TD_LINK_ROUTER : TD_LINK_NODE, 1 + (uint64_t)i),
            .ops = &ops,
            .arg = &state[i]};
        if (td_link_nng_create(&p, &end[i]) != TD_OK) {
            exit(1);
        }
    }
    if (td_link_nng_listen(end[1], "tcp://127.0.0.1:0") != TD_OK ||
        td_link_nng_dial(end[0], td_link_nng_listen_url(end[1], 0)) != TD_OK) {
        exit(1);
    }
    while (state[0].session == 0 || state[1].session == 0) {
        td_loop_run_once(loop, 10000);
    }
    int64_t start = td_now_us(), stop = start + (int64_t)(seconds * 1e6);
    while (td_now_us() < stop) {
        struct td_link_session_stats s;
        (void)td_link_session_stats(td_link_nng_core(end[0]), state[0].session, &s);
        for (int i = 0; i < 256 && s.queued_bytes < 4u << 20; i++) {
            if (td_link_nng_send(end[0], state[0].session, 0, m, len) != TD_OK) {
                break;
            }
        }
        td_loop_run_once(loop, 0);
    }
    double took = (double)(td_now_us() - start) / 1e6;
    printf("nng over loopback, %zu-byte messages: %.0f messages/s, %.1f MB/s (both ends on one "
           "loop)\n",
           len, (double)state[1].got / took, (double)state[1].bytes / took / 1e6);
    for (int i = 0; i < 2; i++) {
        end[i] = td_link_nng_destroy(end[i]);
    }
    loop = td_loop_destroy(loop);
    free(m);
}

/* ---- round trip ---- */

struct echo {
    struct td_link_nng *n;
    uint64_t session, got;
};

static void echo_up(void *arg, const struct td_link_peer *peer)
{
    ((struct echo *)arg)->session = peer->session;
}

static void echo_message(void *arg, uint64_t session, uint64_t epoch, const uint8_t *data,
                         size_t len)
{
    struct echo *e = arg;
    (void)epoch;
    e->got++;
    if (td_link_nng_send(e->n, session, 0, data, len) != TD_OK) {
        exit(1);
    }
}

static void bench_round_trip(double seconds)
{
    static const struct td_link_ops echo_ops = {.on_up = echo_up, .on_message = echo_message};
    struct td_loop *loop = NULL;
    struct echo e[2] = {{0}};
    if (td_loop_create(&loop) != TD_OK) {
        exit(1);
    }
    for (int i = 0; i < 2; i++) {
        struct td_link_nng_params p = {
            .loop = loop,
            .link = params(i == 0 ? TD_LINK_ROUTER : TD_LINK_NODE, 1 + (uint64_t)i),
            .ops = &echo_ops,
            .arg = &e[i]};
        if (td_link_nng_create(&p, &e[i].n) != TD_OK) {
            exit(1);
        }
    }
    if (td_link_nng_listen(e[1].n, "tcp://127.0.0.1:0") != TD_OK ||
        td_link_nng_dial(e[0].n, td_link_nng_listen_url(e[1].n, 0)) != TD_OK) {
        exit(1);
    }
    while (e[0].session == 0 || e[1].session == 0) {
        td_loop_run_once(loop, 10000);
    }
    if (td_link_nng_send(e[0].n, e[0].session, 0, (const uint8_t *)"ping", 4) != TD_OK) {
        exit(1);
    }
    int64_t start = td_now_us(), stop = start + (int64_t)(seconds * 1e6);
    while (td_now_us() < stop) {
        td_loop_run_once(loop, 10000);
    }
    printf("nng over loopback, one message to and fro: %.1f us\n",
           (double)(td_now_us() - start) / (double)e[0].got);
    for (int i = 0; i < 2; i++) {
        e[i].n = td_link_nng_destroy(e[i].n);
    }
    loop = td_loop_destroy(loop);
}

/* Resident bytes of this process. */
static size_t resident(void)
{
    size_t total, pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%zu %zu", &total, &pages) != 2) {
        exit(1);
    }
    (void)fclose(f);
    return pages * 4096;
}

static void memory_of_sessions(void)
{
    enum { N = 64 };
    static struct pure p[N];
    struct td_link_params n = params(TD_LINK_NODE, 2);
    struct td_link *node = NULL;
    n.max_sessions = N;
    size_t before = resident();
    if (td_link_create(&n, &node) != TD_OK) {
        exit(1);
    }
    size_t created = resident();
    for (int i = 0; i < N; i++) {
        struct td_link_params r = params(TD_LINK_ROUTER, 100 + (uint64_t)i);
        uint32_t target;
        r.max_sessions = r.max_targets = r.max_pending = 1;
        p[i].link[1] = node;
        if (td_link_create(&r, &p[i].link[0]) != TD_OK ||
            td_link_target_add(p[i].link[0], 1, &target) != TD_OK) {
            exit(1);
        }
    }
    size_t idle = resident();
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 8; k++) {
            pure_pump(&p[i], 0);
            pure_pump(&p[i], 1);
        }
    }
    printf("resident: %zu KB for a node's links when created, %zu KB for each idle session (both "
           "ends together)\n",
           (created - before) / 1024, (resident() - idle) / 1024 / N);
    for (int i = 0; i < N; i++) {
        p[i].link[0] = td_link_destroy(p[i].link[0]);
    }
    node = td_link_destroy(node);
}

int main(int argc, char **argv)
{
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 2.0;
    static const size_t sizes[] = {64, 1000, 60000, 1000000};
    td_log_set_level(TD_LOG_WARN);
    memory_of_sessions();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bench_pure(sizes[i], seconds);
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bench_nng(sizes[i], seconds);
    }
    bench_round_trip(seconds);
    return 0;
}
