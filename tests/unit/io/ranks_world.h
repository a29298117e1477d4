/* ranks_world.h - ranks as processes: starts them, ends them, and keeps what they found. Included by one test program.
 *
 * Every rank is a process of its own, forked before UCX starts in it; this process only watches. What a rank found is
 * written into memory that all share. */
#ifndef TD_TESTS_UNIT_IO_RANKS_WORLD_H
#define TD_TESTS_UNIT_IO_RANKS_WORLD_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/base/fault.h"
#include "common/io/loop.h"
#include "common/io/ranks.h"
#include "tests/unit/check.h"

#define MAX_N    4
#define ALARM_S  60 /* what hangs ends here, and fails */
#define BYE      "bye"
#define NOT_DONE 1 /* no td_err is positive */

struct found {
    volatile int join, run; /* td_err, or NOT_DONE */
    volatile int step;      /* how far the rank has come */
    struct td_ranks_stats stats;
};

struct world {
    struct found found[MAX_N + 1];
    int place; /* keeps the port: bound, not listening */
    char address[32];
    uint16_t port;
    const char *transports;
    uint32_t n;
};

struct spec {
    uint32_t rank;
    struct td_rank_terms terms;
    struct td_link_key key;
    int64_t join_us, wait_us;
    const char *fault;
    td_err (*body)(struct td_ranks *r, struct found *f);
};

static struct world *w; /* shared with the ranks */
static pid_t pids[MAX_N + 1];
static int not_for_ranks = -1; /* a socket that they do not inherit */

static inline struct spec spec_of(uint32_t rank, td_err (*body)(struct td_ranks *, struct found *))
{
    return (struct spec){.rank = rank,
                         .terms = {.model_id = {1, 2, 3}, .numerics_id = 4, .n_blocks = 5},
                         .key = {.id = "k1", .secret = "0123456789abcdef", .secret_len = 16},
                         .join_us = 30000000,
                         .wait_us = 20000000,
                         .body = body};
}

static inline void world_up(const char *transports, uint32_t n)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int on = 1;
    w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w != MAP_FAILED);
    for (size_t i = 0; i < TD_COUNT(w->found); i++) {
        w->found[i].join = w->found[i].run = NOT_DONE;
    }
    w->transports = transports;
    w->n = n;
    w->place = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(w->place >= 0);
    assert_int_equal(setsockopt(w->place, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    assert_int_equal(bind(w->place, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(w->place, (struct sockaddr *)&a, &len), 0);
    w->port = ntohs(a.sin_port);
    (void)snprintf(w->address, sizeof w->address, "127.0.0.1:%u", w->port);
}

static inline void world_down(void)
{
    (void)close(w->place);
    (void)munmap(w, sizeof *w);
}

static inline struct td_rank_params params_of(const struct spec *s, char *name, size_t cap)
{
    (void)snprintf(name, cap, "r%u", s->rank);
    return (struct td_rank_params){.rank = s->rank,
                                   .n = w->n,
                                   .listen = w->address,
                                   .leader = w->address,
                                   .name = name,
                                   .keys = &s->key,
                                   .n_keys = 1,
                                   .terms = s->terms,
                                   .kv_device = "lo",
                                   .kv_transports = w->transports,
                                   .join_us = s->join_us,
                                   .wait_us = s->wait_us};
}

static inline void rank_main(const struct spec *s, struct found *f)
{
    char name[16];
    struct td_ranks *r = NULL;
    struct td_rank_params p = params_of(s, name, sizeof name);
    if (not_for_ranks >= 0) {
        (void)close(not_for_ranks);
    }
    (void)alarm(ALARM_S);
    td_signals_hold();
    if (s->fault != NULL && td_fault_configure(s->fault) != TD_OK) {
        _exit(2);
    }
    f->join = td_ranks_join(&p, &r);
    if (f->join == TD_OK) {
        f->run = s->body(r, f);
        td_ranks_stats_get(r, &f->stats);
        r = td_ranks_destroy(r);
    }
    _exit(r != NULL);
}

/* In slot `slot` of the world. */
static inline void start(uint32_t slot, struct spec s)
{
    (void)fflush(stdout);
    pids[slot] = fork();
    assert_true(pids[slot] >= 0);
    if (pids[slot] == 0) {
        rank_main(&s, &w->found[slot]);
    }
}

static inline void end(uint32_t slot)
{
    int status;
    assert_int_equal(waitpid(pids[slot], &status, 0), pids[slot]);
    pids[slot] = 0;
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline void kill_rank(uint32_t slot)
{
    assert_int_equal(kill(pids[slot], SIGKILL), 0);
    assert_int_equal(waitpid(pids[slot], NULL, 0), pids[slot]);
    pids[slot] = 0;
}

/* Waits for a rank to come so far; its alarm is ours. */
static inline void wait_step(uint32_t slot, int step)
{
    while (w->found[slot].step < step) {
        assert_int_equal(waitpid(pids[slot], NULL, WNOHANG), 0); /* it lives */
        (void)poll(NULL, 0, 1);
    }
}

#endif
