/* ranks_util.h - a group of ranks within one process: what fills common/model/ranks.h for tests, one caller a rank.
 *
 * Pieces are copied from the sender's memory under one lock; everybody waits on one condition. A call fails after
 * RU_WAIT_S, so that a test that would hang ends in words. From the `fail_at`-th call on (0: never) the group is over, as
 * if a process had died; so it is once a rank calls stop: then the others get TD_ERR_PEER_LOST, itself TD_ERR_CLOSED. */
#ifndef TD_TESTS_UNIT_MODEL_RANKS_UTIL_H
#define TD_TESTS_UNIT_MODEL_RANKS_UTIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/model/ranks.h"

#define RU_MAX    16
#define RU_WAIT_S 120

struct ru_group;

struct ru_rank {
    struct td_ranks base;
    struct ru_group *group;
    bool stopped;
    uint8_t *told; /* owned; the message that has not been heard */
    size_t n_told;
};

struct ru_group {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t n;
    struct ru_rank ranks[RU_MAX];
    struct td_rank_out box[RU_MAX][RU_MAX]; /* [from][to]; data NULL: empty */
    bool over;
    uint64_t calls, tells, fail_at, bytes;
};

static inline td_err ru_state(const struct ru_rank *r)
{
    return r->stopped ? TD_ERR_CLOSED : r->group->over ? TD_ERR_PEER_LOST : TD_OK;
}

static inline void ru_end(struct ru_group *g)
{
    g->over = true;
    (void)pthread_cond_broadcast(&g->changed);
}

/* Counts a call; the lock is held from here to ru_leave(). */
static inline td_err ru_enter(struct ru_rank *r)
{
    struct ru_group *g = r->group;

    (void)pthread_mutex_lock(&g->lock);
    g->calls++;
    if (g->fail_at != 0 && g->calls >= g->fail_at) {
        ru_end(g);
    }
    return ru_state(r);
}

static inline td_err ru_leave(struct ru_rank *r, td_err err)
{
    (void)pthread_mutex_unlock(&r->group->lock);
    return err;
}

static inline td_err ru_wait(struct ru_rank *r, const struct timespec *until)
{
    if (pthread_cond_timedwait(&r->group->changed, &r->group->lock, until) != 0) {
        ru_end(r->group);
        return TD_ERR_STALLED;
    }
    return ru_state(r);
}

static inline struct timespec ru_deadline(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += RU_WAIT_S;
    return t;
}

/* Takes what rank p has put out for r. */
static inline td_err ru_take(struct ru_rank *r, uint32_t p, const struct td_rank_in *in)
{
    struct ru_group *g = r->group;
    struct td_rank_out *box = &g->box[p][r->base.rank];

    if (box->bytes != in->bytes) {
        ru_end(g);
        return TD_ERR_PROTOCOL;
    }
    memcpy(in->data, box->data, in->bytes);
    g->bytes += in->bytes;
    box->data = NULL;
    (void)pthread_cond_broadcast(&g->changed);
    return TD_OK;
}

static inline td_err ru_swap(struct ru_rank *r, const struct td_rank_out *out,
                             const struct td_rank_in *in)
{
    struct ru_group *g = r->group;
    struct timespec until = ru_deadline();
    uint32_t me = r->base.rank;
    td_err err = TD_OK;

    for (uint32_t p = 0; p < g->n; p++) {
        if (p != me && out[p].bytes > 0) {
            g->box[me][p] = out[p];
        }
    }
    (void)pthread_cond_broadcast(&g->changed);
    for (uint32_t p = 0; p < g->n && err == TD_OK; p++) {
        while (p != me && in[p].bytes > 0 && g->box[p][me].data == NULL && err == TD_OK) {
            err = ru_wait(r, &until);
        }
        if (p != me && in[p].bytes > 0 && err == TD_OK) {
            err = ru_take(r, p, &in[p]);
        }
    }
    for (uint32_t p = 0; p < g->n; p++) {
        while (g->box[me][p].data != NULL && err == TD_OK) {
            err = ru_wait(r, &until);
        }
        g->box[me][p].data = NULL; /* after an error: the memory may go */
    }
    return err;
}

static inline td_err ru_exchange(struct td_ranks *base, const struct td_rank_out *out,
                                 const struct td_rank_in *in)
{
    struct ru_rank *r = (struct ru_rank *)(void *)base;
    td_err err = ru_enter(r);

    return ru_leave(r, err != TD_OK ? err : ru_swap(r, out, in));
}

static inline td_err ru_tell_one(struct ru_rank *r, struct ru_rank *to, const void *data, size_t n)
{
    struct timespec until = ru_deadline();
    td_err err = ru_state(r);

    while (to->told != NULL && err == TD_OK) {
        err = ru_wait(r, &until);
    }
    if (err == TD_OK) {
        to->told = malloc(n + 1);
        assert_non_null(to->told);
        memcpy(to->told, data, n);
        to->n_told = n;
        (void)pthread_cond_broadcast(&r->group->changed);
    }
    return err;
}

static inline td_err ru_tell(struct td_ranks *base, const void *data, size_t n)
{
    struct ru_rank *r = (struct ru_rank *)(void *)base;
    td_err err = ru_enter(r);

    r->group->tells++;
    for (uint32_t p = 1; p < r->group->n && err == TD_OK; p++) {
        err = ru_tell_one(r, &r->group->ranks[p], data, n);
    }
    return ru_leave(r, err);
}

static inline td_err ru_hear(struct td_ranks *base, void *out, size_t cap, size_t *out_n)
{
    struct ru_rank *r = (struct ru_rank *)(void *)base;
    td_err err = ru_enter(r);

    while (r->told == NULL && err == TD_OK) {
        (void)pthread_cond_wait(&r->group->changed, &r->group->lock);
        err = ru_state(r);
    }
    if (r->told != NULL && !r->stopped) { /* was told before the group ended */
        err = TD_OK;
    }
    if (err == TD_OK && r->n_told > cap) {
        ru_end(r->group);
        err = TD_ERR_PROTOCOL;
    }
    if (err == TD_OK) {
        memcpy(out, r->told, r->n_told);
        *out_n = r->n_told;
        free(r->told);
        r->told = NULL;
        (void)pthread_cond_broadcast(&r->group->changed);
    }
    return ru_leave(r, err);
}

static inline void ru_stop(struct td_ranks *base)
{
    struct ru_rank *r = (struct ru_rank *)(void *)base;

    (void)pthread_mutex_lock(&r->group->lock);
    r->stopped = true;
    ru_end(r->group);
    (void)pthread_mutex_unlock(&r->group->lock);
}

static inline struct ru_group *ru_group_make(uint32_t n)
{
    static const struct td_ranks_ops ops = {ru_exchange, ru_tell, ru_hear, ru_stop};
    struct ru_group *g = calloc(1, sizeof *g);

    assert_true(g != NULL && n >= 2 && n <= RU_MAX);
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_cond_init(&g->changed, NULL);
    g->n = n;
    for (uint32_t p = 0; p < n; p++) {
        g->ranks[p] = (struct ru_rank){.base = {.ops = &ops, .rank = p, .n = n}, .group = g};
    }
    return g;
}

static inline void ru_group_free(struct ru_group *g)
{
    for (uint32_t p = 0; p < g->n; p++) {
        free(g->ranks[p].told);
    }
    (void)pthread_cond_destroy(&g->changed);
    (void)pthread_mutex_destroy(&g->lock);
    free(g);
}

#endif
