#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/io/loop.h"
#include "common/io/ranks.h"
#include "common/io/ranks_int.h"
#include "tests/unit/check.h"
#include "tests/unit/io/ranks_world.h"

/* ---- what ranks do ---- */

static td_err bye(struct td_ranks *r)
{
    char got[16];
    size_t n = 0;
    if (r->rank == 0) {
        return r->ops->tell(r, BYE, sizeof BYE);
    }
    TD_TRY(r->ops->hear(r, got, sizeof got, &n));
    return n == sizeof BYE && strcmp(got, BYE) == 0 ? TD_OK : TD_ERR_PROTOCOL;
}

static td_err say_bye(struct td_ranks *r, struct found *f)
{
    (void)f;
    return bye(r);
}

static size_t size_of(uint32_t from, uint32_t to, uint32_t round)
{
    static const size_t sizes[] = {4096, 1, 300000, 0, 16u << 20, 8192, 65536, 17};
    return sizes[(from * 5 + to * 3 + round) % TD_COUNT(sizes)];
}

static void fill(uint8_t *at, size_t n, uint64_t seed)
{
    struct td_rng rng = {seed};
    for (size_t i = 0; i + 8 <= n; i += 8) {
        uint64_t v = td_rng_next(&rng);
        memcpy(at + i, &v, 8);
    }
    for (size_t i = n & ~(size_t)7; i < n; i++) {
        at[i] = (uint8_t)td_rng_next(&rng);
    }
}

static uint64_t seed_of(uint32_t from, uint32_t to, uint32_t round)
{
    return (uint64_t)round << 16 | from << 8 | to;
}

static td_err one_round(struct td_ranks *r, uint32_t round)
{
    struct td_rank_out out[MAX_N] = {0};
    struct td_rank_in in[MAX_N] = {0};
    uint8_t *sent[MAX_N] = {0}, *want = malloc(16u << 20);
    td_err e = want != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < r->n; i++) {
        sent[i] = malloc(size_of(r->rank, i, round) + 1);
        fill(sent[i], size_of(r->rank, i, round), seed_of(r->rank, i, round));
        out[i] = (struct td_rank_out){sent[i], size_of(r->rank, i, round)};
        in[i] = (struct td_rank_in){calloc(1, size_of(i, r->rank, round) + 1),
                                    size_of(i, r->rank, round)};
    }
    e = e == TD_OK ? r->ops->exchange(r, out, in) : e;
    for (uint32_t i = 0; i < r->n; i++) {
        if (e == TD_OK && i != r->rank) {
            fill(want, in[i].bytes, seed_of(i, r->rank, round));
            e = memcmp(want, in[i].data, in[i].bytes) == 0 ? TD_OK : TD_ERR_KV_MISMATCH;
        }
        free(sent[i]);
        free(in[i].data);
    }
    free(want);
    return e;
}

/* Rounds of unequal sizes, with a message of rank 0 between them. */
static td_err exchange_all(struct td_ranks *r, struct found *f)
{
    TD_CLEANUP(td_freep) uint8_t *told = malloc(100000);
    TD_CLEANUP(td_freep) uint8_t *heard = malloc(100000);
    for (uint32_t round = 0; round < 8; round++) {
        size_t n = 1 + round * 12000, got = 0;
        fill(told, n, round);
        if (r->rank == 0) {
            TD_TRY(r->ops->tell(r, told, n));
        } else {
            TD_TRY(r->ops->hear(r, heard, 100000, &got));
            if (got != n || memcmp(told, heard, n) != 0) {
                return TD_ERR_KV_MISMATCH;
            }
        }
        TD_TRY(one_round(r, round));
        f->step++;
    }
    return bye(r);
}

/* Exchanges until something happens. */
static td_err exchange_for_ever(struct td_ranks *r, struct found *f)
{
    uint8_t a[4096] = {1}, b[MAX_N][4096];
    struct td_rank_out out[MAX_N];
    struct td_rank_in in[MAX_N];
    for (uint32_t i = 0; i < r->n; i++) {
        out[i] = (struct td_rank_out){a, sizeof a};
        in[i] = (struct td_rank_in){b[i], sizeof b[i]};
    }
    for (;;) {
        TD_TRY(r->ops->exchange(r, out, in));
        f->step++;
    }
}

static td_err hear_for_ever(struct td_ranks *r, struct found *f)
{
    uint8_t got[16];
    size_t n;
    for (;;) {
        f->step++;
        TD_TRY(r->ops->hear(r, got, sizeof got, &n));
    }
}

/* What the main thread of an idle rank 0 does. */
static td_err watch(struct td_ranks *r, struct found *f)
{
    struct pollfd fd = {.fd = td_ranks_watch_fd(r), .events = POLLIN};
    f->step++;
    while (td_ranks_check(r) == TD_OK) {
        (void)poll(&fd, 1, -1);
    }
    return td_ranks_check(r);
}

static void run_all(const char *transports, uint32_t n,
                    td_err (*body)(struct td_ranks *, struct found *))
{
    world_up(transports, n);
    for (uint32_t i = 0; i < n; i++) {
        start(i, spec_of(i, body));
    }
}

static void all_end_well(void)
{
    for (uint32_t i = 0; i < w->n; i++) {
        end(i);
        assert_int_equal(w->found[i].join, TD_OK);
        assert_int_equal(w->found[i].run, TD_OK);
    }
}

/* ---- exchanges ---- */

static void exchanges(const char *transports, uint32_t n)
{
    run_all(transports, n, exchange_all);
    all_end_well();
    for (uint32_t i = 0; i < n; i++) {
        const struct td_ranks_stats *s = &w->found[i].stats;
        assert_int_equal(s->exchanges, 9); /* with the first one */
        assert_true(s->bytes_in > 0 && s->bytes_out > 0 && s->wait_us > 0);
    }
    world_down();
}

static void two_ranks_exchange_exact_bytes(void **state)
{
    exchanges(*state, 2);
}

static void three_ranks_exchange_exact_bytes(void **state)
{
    exchanges(*state, 3);
}

static void four_ranks_exchange_exact_bytes(void **state)
{
    exchanges(*state, 4);
}

static void a_killed_rank_ends_an_exchange_everywhere(void **state)
{
    run_all(*state, 3, exchange_for_ever);
    wait_step(0, 5);
    kill_rank(2);
    for (uint32_t i = 0; i < 2; i++) {
        end(i);
        assert_int_equal(w->found[i].run, TD_ERR_PEER_LOST);
    }
    world_down();
}

static void a_killed_rank_0_ends_an_exchange_everywhere(void **state)
{
    run_all(*state, 3, exchange_for_ever);
    wait_step(0, 5);
    kill_rank(0);
    for (uint32_t i = 1; i < 3; i++) {
        end(i);
        assert_int_equal(w->found[i].run, TD_ERR_PEER_LOST);
    }
    world_down();
}

static void a_rank_killed_while_idle_is_noticed_by_all(void **state)
{
    world_up(*state, 3);
    start(0, spec_of(0, watch));
    start(1, spec_of(1, hear_for_ever));
    start(2, spec_of(2, hear_for_ever));
    for (uint32_t i = 0; i < 3; i++) {
        wait_step(i, 1);
    }
    kill_rank(1);
    end(0);
    end(2);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    assert_int_equal(w->found[2].run, TD_ERR_PEER_LOST);
    world_down();
}

static void a_killed_rank_0_is_noticed_while_hearing(void **state)
{
    world_up(*state, 3);
    start(0, spec_of(0, watch));
    start(1, spec_of(1, hear_for_ever));
    start(2, spec_of(2, hear_for_ever));
    for (uint32_t i = 0; i < 3; i++) {
        wait_step(i, 1);
    }
    kill_rank(0);
    end(1);
    end(2);
    assert_int_equal(w->found[1].run, TD_ERR_PEER_LOST);
    assert_int_equal(w->found[2].run, TD_ERR_PEER_LOST);
    world_down();
}

static void a_frozen_rank_stalls_an_exchange(void **state)
{
    world_up(*state, 2);
    for (uint32_t i = 0; i < 2; i++) {
        struct spec s = spec_of(i, exchange_for_ever);
        s.wait_us = 500000;
        start(i, s);
    }
    wait_step(0, 5);
    assert_int_equal(kill(pids[1], SIGSTOP), 0);
    end(0);
    assert_int_equal(w->found[0].run, TD_ERR_STALLED);
    assert_int_equal(kill(pids[1], SIGCONT), 0);
    end(1);
    assert_true(w->found[1].run == TD_ERR_PEER_LOST || w->found[1].run == TD_ERR_STALLED);
    world_down();
}

static void a_frozen_rank_is_named_to_all(void **state)
{
    world_up(*state, 3);
    for (uint32_t i = 0; i < 3; i++) {
        struct spec s = spec_of(i, exchange_for_ever);
        s.wait_us = i == 1 ? 500000 : ALARM_S * 1000000ll; /* rank 1 notices first, and says so */
        start(i, s);
    }
    wait_step(0, 5);
    assert_int_equal(kill(pids[2], SIGSTOP), 0);
    end(1);
    end(0);
    assert_int_equal(w->found[1].run, TD_ERR_STALLED);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    kill_rank(2);
    world_down();
}

static void *stop_soon(void *arg)
{
    struct td_ranks *r = arg;
    (void)poll(NULL, 0, 50); /* the other thread is in its call by now, or stops at its door */
    r->ops->stop(r);
    r->ops->stop(r);
    return NULL;
}

static td_err hear_and_be_stopped(struct td_ranks *r, struct found *f)
{
    pthread_t t;
    (void)pthread_create(&t, NULL, stop_soon, r);
    td_err e = hear_for_ever(r, f);
    (void)pthread_join(t, NULL);
    size_t n;
    return r->ops->hear(r, &n, sizeof n, &n) == e ? e : TD_ERR_INTERNAL; /* and from now on */
}

static td_err exchange_and_be_stopped(struct td_ranks *r, struct found *f)
{
    pthread_t t;
    (void)pthread_create(&t, NULL, stop_soon, r);
    td_err e = exchange_for_ever(r, f);
    (void)pthread_join(t, NULL);
    return e;
}

static void stopped(const char *transports, td_err (*body)(struct td_ranks *, struct found *))
{
    world_up(transports, 2);
    start(0, spec_of(0, watch)); /* does not exchange */
    start(1, spec_of(1, body));
    end(1);
    end(0);
    assert_int_equal(w->found[1].run, TD_ERR_CLOSED);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    world_down();
}

static void another_thread_stops_whoever_waits(void **state)
{
    stopped(*state, hear_and_be_stopped);
    stopped(*state, exchange_and_be_stopped);
}

static td_err exchange_other_sizes(struct td_ranks *r, struct found *f)
{
    static uint8_t a[8192], b[8192];
    size_t sent = r->rank == 0 ? 4000 : 8192; /* 0 to 1 is short; 1 to 0 is long */
    struct td_rank_out out[2] = {{a, sent}, {a, sent}};
    struct td_rank_in in[2] = {{b, 4096}, {b, 4096}};
    (void)f;
    return r->ops->exchange(r, out, in);
}

static void a_message_of_another_size_breaks_the_protocol(void **state)
{
    run_all(*state, 2, exchange_other_sizes);
    for (uint32_t i = 0; i < 2; i++) {
        end(i);
        assert_true(w->found[i].run == TD_ERR_PROTOCOL || w->found[i].run == TD_ERR_PEER_LOST);
    }
    assert_true(w->found[0].run == TD_ERR_PROTOCOL || w->found[1].run == TD_ERR_PROTOCOL);
    world_down();
}

static td_err tell_too_much(struct td_ranks *r, struct found *f)
{
    uint8_t bytes[64] = {0};
    size_t n = 77;
    if (r->rank == 0) {
        td_err e = r->ops->tell(r, bytes, sizeof bytes);
        return e != TD_OK ? e : watch(r, f);
    }
    td_err e = r->ops->hear(r, bytes, sizeof bytes / 2, &n);
    return n == 77 ? e : TD_ERR_INTERNAL; /* outputs are untouched on failure */
}

static void a_message_longer_than_the_room_breaks_the_protocol(void **state)
{
    run_all(*state, 2, tell_too_much);
    end(0);
    end(1);
    assert_int_equal(w->found[1].run, TD_ERR_PROTOCOL);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    world_down();
}

static void a_fault_point_fails_an_exchange(void **state)
{
    world_up(*state, 2);
    struct spec s = spec_of(1, exchange_for_ever);
    s.fault = "rank.exchange=fail:after=3:times=1";
    start(0, spec_of(0, exchange_for_ever));
    start(1, s);
    end(0);
    end(1);
    assert_int_equal(w->found[1].run, TD_ERR_TRANSPORT);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    world_down();
}

/* Rank 0's main thread and its rank's see the end of the group as no loss. */
static td_err leave_slowly(struct td_ranks *r, struct found *f)
{
    struct pollfd fd = {.fd = td_ranks_watch_fd(r), .events = POLLIN};
    if (r->rank != 0) {
        /* LEAVE is here, or was read by the exchange of the joining; the goodbye lies in UCX, unheard */
        (void)poll(&fd, 1, 500);
        TD_TRY(td_ranks_check(r));
        f->step++;
        if (poll(&fd, 1, 0) != 0) {
            return TD_ERR_INTERNAL; /* a main loop would spin */
        }
    }
    return bye(r);
}

static void a_goodbye_is_heard_after_rank_0_left(void **state)
{
    run_all(*state, 3, leave_slowly);
    all_end_well();
    world_down();
}

/* ---- loading ---- */

/* The others load for a while; rank 0 must not come through before they have. */
static td_err load(struct td_ranks *r, struct found *f)
{
    f->step = 1;
    if (r->rank != 0) {
        (void)poll(NULL, 0, (int)r->rank * 50);
        f->step = 2;
    }
    TD_TRY(td_ranks_loaded(r, 20000000));
    for (uint32_t i = 1; r->rank == 0 && i < r->n; i++) {
        if (w->found[i].step != 2) {
            return TD_ERR_INTERNAL;
        }
    }
    return bye(r);
}

static void rank_0_waits_for_those_that_load(void **state)
{
    run_all(*state, 3, load);
    all_end_well();
    world_down();
}

static td_err load_for_ever(struct td_ranks *r, struct found *f)
{
    f->step = 1;
    if (r->rank != 0) {
        return hear_for_ever(r, f);
    }
    return td_ranks_loaded(r, 20000000);
}

static void a_rank_that_dies_while_it_loads_is_lost(void **state)
{
    run_all(*state, 3, load_for_ever);
    wait_step(0, 1);
    wait_step(2, 1);
    kill_rank(2);
    end(0);
    end(1);
    assert_int_equal(w->found[0].run, TD_ERR_PEER_LOST);
    assert_int_equal(w->found[1].run, TD_ERR_PEER_LOST);
    world_down();
}

static void a_signal_ends_the_waiting_for_those_that_load(void **state)
{
    run_all(*state, 2, load_for_ever);
    wait_step(0, 1);
    assert_int_equal(kill(pids[0], SIGTERM), 0);
    end(0);
    end(1);
    assert_int_equal(w->found[0].run, TD_ERR_CANCELLED);
    assert_int_equal(w->found[1].run,
                     TD_ERR_PEER_LOST); /* no goodbye: the engine's, and there is none here */
    world_down();
}

static td_err load_too_long(struct td_ranks *r, struct found *f)
{
    return r->rank == 0 ? td_ranks_loaded(r, 100000) : hear_for_ever(r, f);
}

static void the_loading_ends_in_time(void **state)
{
    run_all(*state, 2, load_too_long);
    end(0);
    end(1);
    assert_int_equal(w->found[0].run, TD_ERR_STALLED);
    assert_int_equal(w->found[1].run, TD_ERR_PEER_LOST);
    world_down();
}

/* ---- joining ---- */

static int listen_here(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int on = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    a.sin_port = htons(w->port);
    assert_int_equal(setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(l, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(l, 8), 0);
    not_for_ranks = l;
    return l;
}

static void end_listening(int l)
{
    (void)close(l);
    not_for_ranks = -1;
}

static void ranks_find_each_other_in_any_order(void **state)
{
    world_up(*state, 3);
    int l = listen_here();
    start(2, spec_of(2, say_bye));
    for (int i = 0; i < 2; i++) {       /* it dials, and dials again */
        int fd = accept(l, NULL, NULL); /* NOLINT: no exec */
        assert_true(fd >= 0);
        (void)close(fd);
    }
    end_listening(l);
    start(0, spec_of(0, say_bye));
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

/* Rank 0 waits; this one is refused; the right one comes and the group stands. */
static void refused(struct spec bad, td_err want)
{
    start(0, spec_of(0, say_bye));
    start(MAX_N, bad);
    end(MAX_N);
    assert_int_equal(w->found[MAX_N].join, want);
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

static void a_wrong_secret_is_refused(void **state)
{
    struct spec s = spec_of(1, say_bye);
    world_up(*state, 2);
    s.key.secret[3] ^= 1;
    refused(s, TD_ERR_PEER_AUTH);
}

static void an_unknown_key_is_refused(void **state)
{
    struct spec s = spec_of(1, say_bye);
    world_up(*state, 2);
    s.key.id[1] = '2';
    refused(s, TD_ERR_PEER_AUTH);
}

static void another_model_is_refused(void **state)
{
    struct spec s = spec_of(1, say_bye);
    world_up(*state, 2);
    s.terms.model_id[31] ^= 1;
    refused(s, TD_ERR_PEER_MODEL);
}

static void other_sizes_are_refused(void **state)
{
    struct spec s = spec_of(1, say_bye);
    world_up(*state, 2);
    s.terms.max_rows = 9;
    refused(s, TD_ERR_CONFIG);
}

static void a_rank_beyond_the_group_is_refused(void **state)
{
    struct spec s = spec_of(3, say_bye);
    world_up(*state, 2);
    w->n = 4; /* what the bad one believes */
    start(MAX_N, s);
    w->n = 2;
    start(0, spec_of(0, say_bye));
    end(MAX_N);
    assert_int_equal(w->found[MAX_N].join, TD_ERR_CONFIG);
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

static void a_rank_is_refused_while_its_first_lives_and_taken_after(void **state)
{
    world_up(*state, 3);
    start(0, spec_of(0, say_bye));
    start(1, spec_of(1, say_bye));
    start(MAX_N, spec_of(1, say_bye));
    while (w->found[1].join == NOT_DONE && w->found[MAX_N].join == NOT_DONE) {
        (void)poll(NULL, 0, 1);
    }
    uint32_t out = w->found[1].join != NOT_DONE ? 1 : MAX_N; /* whichever came second */
    uint32_t in = out == 1 ? MAX_N : 1;
    assert_int_equal(w->found[out].join, TD_ERR_CONFIG);
    end(out);
    kill_rank(in);
    w->found[1].join = NOT_DONE;
    start(1, spec_of(1, say_bye)); /* in place of the dead one */
    start(2, spec_of(2, say_bye));
    all_end_well();
    world_down();
}

static void a_dropped_connection_is_dialed_again(void **state)
{
    world_up(*state, 2);
    struct spec s = spec_of(0, say_bye);
    s.fault = "rank.join=fail:times=2";
    start(0, s);
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

static void the_joining_ends_in_time(void **state)
{
    world_up(*state, 2);
    struct spec s = spec_of(0, say_bye);
    s.join_us = 200000;
    start(0, s);
    end(0);
    assert_int_equal(w->found[0].join, TD_ERR_STALLED);
    s = spec_of(1, say_bye);
    s.join_us = 200000;
    start(1, s);
    end(1);
    assert_int_equal(w->found[1].join, TD_ERR_STALLED);
    world_down();
}

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    a.sin_port = htons(w->port);
    for (;;) { /* rank 0 may not listen yet */
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0) {
            return fd;
        }
        (void)close(fd);
        (void)poll(NULL, 0, 1);
    }
}

static void a_signal_ends_the_joining(void **state)
{
    world_up(*state, 2);
    start(0, spec_of(0, say_bye));
    (void)close(dial()); /* it waits */
    assert_int_equal(kill(pids[0], SIGTERM), 0);
    end(0);
    assert_int_equal(w->found[0].join, TD_ERR_CANCELLED);
    start(1, spec_of(1, say_bye));
    assert_int_equal(kill(pids[1], SIGTERM), 0);
    assert_int_equal(waitpid(pids[1], NULL, 0),
                     pids[1]); /* ended by it before it was held, or by us */
    assert_true(w->found[1].join == TD_ERR_CANCELLED || w->found[1].join == NOT_DONE);
    world_down();
}

/* Everything until the other end closes, or `cap` bytes. */
static size_t read_all(int fd, uint8_t *buf, size_t cap)
{
    size_t n = 0;
    ssize_t got;
    while (n < cap && (got = recv(fd, buf + n, cap - n, 0)) > 0) {
        n += (size_t)got;
    }
    return n;
}

static void raw_wait(struct rk_conn *c, struct rank_frame *f)
{
    struct pollfd fd = {.fd = c->fd, .events = POLLIN};
    enum rk_read r;
    while ((r = td__rk_conn_read(c, f)) == RK_READ_NOTHING) {
        (void)poll(&fd, 1, -1);
    }
    assert_int_equal(r, RK_READ_FRAME);
}

static void refusal_in(const uint8_t *bytes, size_t n, td_err want)
{
    struct rank_frame f = {0};
    td_err e;
    char why[TD_LINK_TEXT];
    assert_true(n >= RANK_OVERHEAD && rank_frame_parse(bytes, n, &f));
    assert_int_equal(f.type, RANK_REFUSE);
    assert_true(link_reason_parse(f.payload, f.len, &e, why));
    assert_int_equal(e, want);
}

static void another_version_is_refused(void **state)
{
    uint8_t hello[RANK_HELLO_BYTES], frame[1024];
    struct rank_hello h = {.version_min = 7, .version_max = 9, .rank = 1, .n = 2, .key_id = "k1"};
    world_up(*state, 2);
    start(0, spec_of(0, say_bye));
    int fd = dial();
    size_t n = rank_frame_write(RANK_HELLO, hello, rank_hello_write(&h, hello), frame);
    assert_int_equal(send(fd, frame, n, 0), n);
    n = read_all(fd, frame, sizeof frame);
    refusal_in(frame, n, TD_ERR_PEER_VERSION);
    (void)close(fd);
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

/* Whoever stands in rank 0's place can refuse, but an end in peace is only our own signal's: that rank exits as one that
 * has to be started again. */
static void a_refusal_is_no_goodbye(void **state)
{
    uint8_t hello[1024], reason[4 + TD_LINK_TEXT], frame[1024];
    world_up(*state, 2);
    assert_int_equal(listen(w->place, 1), 0);
    start(1, spec_of(1, say_bye));
    int fd = accept(w->place, NULL, NULL);
    assert_true(fd >= 0 && recv(fd, hello, sizeof hello, 0) > 0);
    size_t n = link_reason_write(TD_ERR_CANCELLED, "go away", reason);
    n = rank_frame_write(RANK_REFUSE, reason, n, frame);
    assert_int_equal(send(fd, frame, n, 0), n);
    end(1);
    assert_int_equal(w->found[1].join, TD_ERR_PROTOCOL);
    (void)close(fd);
    world_down();
}

/* A dialer of our own, up to the challenge. */
static void raw_hello(struct rk_conn *c, const struct spec *s, struct rank_frame *challenge)
{
    struct rank_hello h = {.version_min = 1, .version_max = 1, .rank = s->rank, .n = w->n};
    td__rk_conn_open(c, dial(), RK_CHALLENGE);
    memcpy(h.key_id, s->key.id, sizeof h.key_id);
    c->key = &s->key;
    c->hello_len = rank_hello_write(&h, c->hello_bytes);
    assert_true(td__rk_conn_put(c, RANK_HELLO, c->hello_bytes, c->hello_len));
    assert_true(td__rk_conn_flush(c));
    raw_wait(c, challenge);
    assert_int_equal(challenge->type, RANK_CHALLENGE);
    assert_true(td__rk_conn_set_keys(c, challenge->payload, challenge->len, true));
    assert_true(td__rk_conn_verify(c, challenge));
}

static bool raw_prove(struct rk_conn *c, const struct spec *s, const uint8_t *address, size_t n)
{
    uint8_t prove[RANK_MAX_PAYLOAD];
    struct rank_who who = {
        .terms = s->terms, .name = "raw", .address = address, .address_bytes = n};
    return td__rk_conn_put(c, RANK_PROVE, prove, rank_prove_write(&who, prove));
}

static void raw_refused(struct rk_conn *c, td_err want)
{
    struct rank_frame f;
    char why[TD_LINK_TEXT];
    td_err e;
    raw_wait(c, &f);
    assert_int_equal(f.type, RANK_REFUSE);
    assert_true(td__rk_conn_verify(c, &f)); /* rank 0 stands by it */
    assert_true(link_reason_parse(f.payload, f.len, &e, why));
    assert_int_equal(e, want);
}

static void a_proof_is_good_for_one_connection(void **state)
{
    static struct rk_conn a, b;
    const struct spec s = spec_of(1, say_bye);
    uint8_t proof[RANK_MAX_BYTES];
    struct rank_frame f;
    world_up(*state, 2);
    start(0, spec_of(0, say_bye));
    raw_hello(&a, &s, &f);
    assert_true(raw_prove(&a, &s, (const uint8_t *)"no address", 10));
    size_t n = a.out.len;
    memcpy(proof, a.out.data, n);
    assert_true(td__rk_conn_flush(&a));
    raw_refused(&a, TD_ERR_ADDRESS); /* who it is was believed */
    raw_hello(&b, &s, &f);           /* the same HELLO to the byte */
    assert_memory_equal(a.hello_bytes, b.hello_bytes, a.hello_len);
    assert_int_equal(send(b.fd, proof, n, 0), n);
    raw_refused(&b, TD_ERR_PEER_AUTH);
    td__rk_conn_close(&a);
    td__rk_conn_close(&b);
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

/* Joins as it should, and dies when the others learn of each other. */
static void die_when_listed(const struct spec *s)
{
    static struct rk_conn c;
    struct td_ucx_params p = {.device = "lo", .transports = w->transports, .tags = true};
    struct td_ucx u;
    struct rank_frame f;
    (void)alarm(ALARM_S);
    if (td_ucx_open(&p, &u) != TD_OK) {
        _exit(2);
    }
    raw_hello(&c, s, &f);
    (void)raw_prove(&c, s, u.address, u.address_bytes);
    (void)td__rk_conn_flush(&c);
    do {
        raw_wait(&c, &f);
    } while (f.type != RANK_PEER);
    _exit(0);
}

static void a_rank_that_dies_once_all_are_there_ends_the_joining(void **state)
{
    const struct spec s = spec_of(2, say_bye);
    world_up(*state, 3);
    start(0, spec_of(0, say_bye));
    start(1, spec_of(1, say_bye));
    pids[2] = fork();
    if (pids[2] == 0) {
        die_when_listed(&s);
    }
    for (uint32_t i = 0; i < 3; i++) {
        end(i);
    }
    assert_int_equal(w->found[0].join, TD_ERR_PEER_LOST);
    /* or UCX said so first: the memory through which it would reach the other is gone */
    assert_true(w->found[1].join == TD_ERR_PEER_LOST || w->found[1].join == TD_ERR_TRANSPORT);
    world_down();
}

/* Whatever answers at rank 0's address: the dialer comes again until rank 0 does. */
static void a_false_rank_0_is_dialed_again(void **state)
{
    uint8_t bytes[256], ch[RANK_CHALLENGE_BYTES] = {0};
    struct rank_challenge bad = {.version = 9};
    world_up(*state, 2);
    int l = listen_here();
    start(1, spec_of(1, say_bye));
    for (uint32_t i = 0; i < 4; i++) {
        int fd = accept(l, NULL, NULL); /* NOLINT: no exec */
        size_t n = sizeof bytes;
        fill(bytes, n, i);
        if (i == 1) {
            link_put32(bytes, TD_RANK_MAX_FRAME + 1);
        } else if (i == 2) {
            n = rank_frame_write(RANK_GO, NULL, 0, bytes);
        } else if (i == 3) {
            n = rank_frame_write(RANK_CHALLENGE, ch, rank_challenge_write(&bad, ch), bytes);
        }
        assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
        (void)read_all(fd, bytes, RANK_OVERHEAD + RANK_HELLO_BYTES + 1); /* until it hangs up */
        (void)close(fd);
    }
    end_listening(l);
    start(0, spec_of(0, say_bye));
    all_end_well();
    world_down();
}

/* The link of a false rank 0 that knows no secret, but the key's name. */
static void a_rank_0_without_the_secret_is_refused(void **state)
{
    uint8_t bytes[512], ch[RANK_CHALLENGE_BYTES];
    struct rank_challenge c = {.version = 1};
    world_up(*state, 2);
    int l = listen_here();
    start(1, spec_of(1, say_bye));
    int fd = accept(l, NULL, NULL); /* NOLINT: no exec */
    size_t n = RANK_OVERHEAD + RANK_HELLO_BYTES;
    assert_int_equal(read_all(fd, bytes, n), n);
    n = rank_frame_write(RANK_CHALLENGE, ch, rank_challenge_write(&c, ch), bytes);
    assert_int_equal(send(fd, bytes, n, 0), n);
    n = read_all(fd, bytes, sizeof bytes);
    refusal_in(bytes, n, TD_ERR_PEER_AUTH);
    (void)close(fd);
    end_listening(l);
    end(1);
    assert_int_equal(w->found[1].join, TD_ERR_PEER_AUTH);
    world_down();
}

static void strangers_close_only_themselves(void **state)
{
    uint8_t bytes[4096];
    struct td_rng rng = {99};
    world_up(*state, 2);
    start(0, spec_of(0, say_bye));
    for (int i = 0; i < 40; i++) {
        int fd = dial();
        fill(bytes, sizeof bytes, td_rng_next(&rng));
        if (i % 4 == 0) { /* a length beyond every bound */
            link_put32(bytes, i % 8 == 0 ? UINT32_MAX : TD_RANK_MAX_FRAME + 1);
        } else if (i % 4 == 1) { /* a right length, a wrong payload */
            link_put32(bytes, RANK_OVERHEAD - RANK_LEN_BYTES + RANK_HELLO_BYTES);
            link_put32(bytes + 4, RANK_HELLO);
        } else if (i % 4 == 2) { /* beyond what a stranger may say */
            link_put32(bytes, RANK_OVERHEAD - RANK_LEN_BYTES + RANK_MAX_HELLO + 1);
        }
        (void)send(fd, bytes, sizeof bytes, MSG_NOSIGNAL);
        assert_int_equal(read_all(fd, bytes, sizeof bytes), 0); /* closed without a word */
        (void)close(fd);
    }
    start(1, spec_of(1, say_bye));
    all_end_well();
    world_down();
}

static void silent_strangers_make_room(void **state)
{
    int fds[TD_RANK_MAX_STRANGERS + 4];
    world_up(*state, 2);
    start(0, spec_of(0, say_bye));
    for (size_t i = 0; i < TD_COUNT(fds); i++) {
        fds[i] = dial(); /* the last ones wait in the kernel */
    }
    start(1, spec_of(1, say_bye));
    all_end_well();
    for (size_t i = 0; i < TD_COUNT(fds); i++) {
        (void)close(fds[i]);
    }
    world_down();
}

static void wrong_parameters_are_refused(void **state)
{
    struct spec s = spec_of(1, say_bye);
    char name[16];
    struct td_ranks *r = NULL;
    world_up(*state, 2);
    const struct td_rank_params good = params_of(&s, name, sizeof name);
    struct td_rank_params p = good;
    p.n = 1;
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.n = TD_RANKS_MAX + 1;
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.rank = 2;
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.n_keys = 0;
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.name = "two words";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.leader = "127.0.0.1:0";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p = good;
    p.kv_device = "nosuchdevice";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_ADDRESS);
    p = good;
    p.kv_device = "all"; /* TCP beyond loopback, and no trust */
    p.kv_transports = "tcp";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    assert_null(r);
    world_down();
}

static void addresses_are_split(void **state)
{
    static const char *const bad[] = {"",           ":1",   "host",        "host:",  "host:x",
                                      "host:65536", "[]:1", "host:123456", "host:-1"};
    char host[256], port[8];
    (void)state;
    assert_int_equal(td__rk_split("--x", "[::1]:8102", host, port), TD_OK);
    assert_string_equal(host, "::1");
    assert_string_equal(port, "8102");
    assert_int_equal(td__rk_split("--x", "pod-0.group.ns.svc:0", host, port), TD_OK);
    assert_string_equal(host, "pod-0.group.ns.svc");
    for (size_t i = 0; i < TD_COUNT(bad); i++) {
        assert_int_equal(td__rk_split("--x", bad[i], host, port), TD_ERR_CONFIG);
    }
    assert_int_equal(td__rk_split("--x", NULL, host, port), TD_ERR_CONFIG);
}

/* ---- in one process, for the sanitizers ---- */

struct thread_rank {
    struct spec s;
    pthread_t thread;
    td_err join, run;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;
    struct found f = {0};
    char name[16];
    struct td_ranks *r = NULL;
    struct td_rank_params p = params_of(&t->s, name, sizeof name);
    t->join = td_ranks_join(&p, &r);
    if (t->join == TD_OK) {
        t->run = t->s.body(r, &f);
        (void)td_ranks_destroy(r);
    }
    return NULL;
}

static void threads(const char *transports, struct thread_rank *t, uint32_t n)
{
    world_up(transports, n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(pthread_create(&t[i].thread, NULL, thread_main, &t[i]), 0);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(pthread_join(t[i].thread, NULL), 0);
    }
    world_down();
}

static void ranks_of_one_process_exchange_too(void **state)
{
    struct thread_rank t[2] = {{.s = spec_of(0, exchange_all)}, {.s = spec_of(1, exchange_all)}};
    threads(*state, t, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t[i].join, TD_OK);
        assert_int_equal(t[i].run, TD_OK);
    }
}

/* Rank 0 alone: every allocation of its joining fails once. */
static void no_memory_is_an_error_and_leaves_nothing(void **state)
{
    struct spec s = spec_of(0, say_bye);
    char name[16];
    struct td_ranks *r = NULL;
    td_err e = TD_ERR_NO_MEMORY;
    unsigned n = 0;
    world_up(*state, 2);
    struct td_rank_params p = params_of(&s, name, sizeof name);
    p.join_us = 20000;
    while (e != TD_ERR_STALLED) {
        td_mem_fail_nth(++n);
        e = td_ranks_join(&p, &r);
        assert_true(e == TD_ERR_NO_MEMORY || e == TD_ERR_STALLED);
        assert_null(r);
    }
    td_mem_fail_nth(0);
    assert_true(n > 2);
    world_down();
}

static void the_port_is_written_for_those_who_wait(void **state)
{
    struct spec s = spec_of(0, say_bye);
    char name[16], path[] = "/tmp/ranks_test.XXXXXX", line[64] = "";
    unsigned port = 0;
    struct td_ranks *r = NULL;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    world_up(*state, 2);
    struct td_rank_params p = params_of(&s, name, sizeof name);
    p.listen = "127.0.0.1:0";
    p.port_file = path;
    p.join_us = 20000;
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_STALLED);
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    (void)fclose(f);
    assert_int_equal(sscanf(line, "ranks %u", &port), 1); /* NOLINT: our own line */
    assert_true(port > 0 && port < 65536);
    (void)unlink(path);
    p.listen = "nowhere";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_CONFIG);
    p.listen = "192.0.2.1:0"; /* nobody's */
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_ADDRESS);
    p.listen = w->address;
    p.port_file = "/nonexistent/ports";
    assert_int_equal(td_ranks_join(&p, &r), TD_ERR_IO);
    world_down();
}

#define OVER(test)                                                                                 \
    {#test "_over_shm", test, NULL, NULL, (void *)(uintptr_t) "sm"},                               \
    {                                                                                              \
#test "_over_tcp", test, NULL, NULL, (void *)(uintptr_t) "tcp"                             \
    }
#define OVER_SHM(test)                                                                             \
    {                                                                                              \
#test, test, NULL, NULL, (void *)(uintptr_t) "sm"                                          \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        OVER(two_ranks_exchange_exact_bytes),
        OVER(three_ranks_exchange_exact_bytes),
        OVER(four_ranks_exchange_exact_bytes),
        OVER(a_killed_rank_ends_an_exchange_everywhere),
        OVER(a_killed_rank_0_ends_an_exchange_everywhere),
        OVER(a_rank_killed_while_idle_is_noticed_by_all),
        OVER(a_killed_rank_0_is_noticed_while_hearing),
        OVER(a_frozen_rank_stalls_an_exchange),
        OVER(a_frozen_rank_is_named_to_all),
        OVER(another_thread_stops_whoever_waits),
        OVER(a_message_of_another_size_breaks_the_protocol),
        OVER(a_message_longer_than_the_room_breaks_the_protocol),
        OVER(a_fault_point_fails_an_exchange),
        OVER(a_goodbye_is_heard_after_rank_0_left),
        OVER_SHM(rank_0_waits_for_those_that_load),
        OVER_SHM(a_rank_that_dies_while_it_loads_is_lost),
        OVER_SHM(a_signal_ends_the_waiting_for_those_that_load),
        OVER_SHM(the_loading_ends_in_time),
        OVER_SHM(ranks_find_each_other_in_any_order),
        OVER_SHM(a_wrong_secret_is_refused),
        OVER_SHM(an_unknown_key_is_refused),
        OVER_SHM(another_model_is_refused),
        OVER_SHM(other_sizes_are_refused),
        OVER_SHM(a_rank_beyond_the_group_is_refused),
        OVER_SHM(a_rank_is_refused_while_its_first_lives_and_taken_after),
        OVER_SHM(a_dropped_connection_is_dialed_again),
        OVER_SHM(the_joining_ends_in_time),
        OVER_SHM(a_signal_ends_the_joining),
        OVER_SHM(another_version_is_refused),
        OVER_SHM(a_refusal_is_no_goodbye),
        OVER_SHM(a_proof_is_good_for_one_connection),
        OVER_SHM(a_rank_that_dies_once_all_are_there_ends_the_joining),
        OVER_SHM(a_false_rank_0_is_dialed_again),
        OVER_SHM(a_rank_0_without_the_secret_is_refused),
        OVER_SHM(strangers_close_only_themselves),
        OVER_SHM(silent_strangers_make_room),
        OVER(ranks_of_one_process_exchange_too), /* UCX starts here: nothing is forked after it */
        OVER_SHM(addresses_are_split),
        OVER_SHM(no_memory_is_an_error_and_leaves_nothing),
        OVER_SHM(the_port_is_written_for_those_who_wait),
        OVER_SHM(wrong_parameters_are_refused),
    };
    if (argc == 2) {
        cmocka_set_test_filter(argv[1]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
