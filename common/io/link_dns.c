#include "common/io/link_dns.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#define TD_LOG_ROOM "io"
#include "common/base/log.h"

struct name {
    char host[TD_DNS_HOST];
    bool fresh; /* a result waits for the loop */
    td_err err;
    unsigned n;
    char addrs[TD_DNS_MAX_ADDRS][TD_DNS_ADDR];
};

/* Shared by the loop and the resolver; whoever leaves last frees it, because getaddrinfo cannot be
 * interrupted. */
struct shared {
    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    bool closed;          /* the loop has left: `wake` must not be rung */
    struct td_wake *wake; /* borrowed from td_dns */
    int64_t every_us;
    unsigned asked; /* td_dns_add() calls: the resolver starts a round when it falls behind */
    unsigned count;
    struct name names[TD_DNS_MAX_NAMES];
};

struct td_dns {
    struct shared *shared; /* owned together with the resolver thread */
    struct td_wake *wake;  /* owned */
    td_dns_fn fn;
    void *arg;
};

static void shared_free(struct shared *s)
{
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_cond_destroy(&s->changed);
    free(s);
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void collect(struct name *out, const struct addrinfo *list)
{
    unsigned dropped = 0;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
        char text[INET6_ADDRSTRLEN];
        const void *raw = NULL;
        if (a->ai_family == AF_INET) {
            raw = &((const struct sockaddr_in *)(const void *)a->ai_addr)->sin_addr;
        } else if (a->ai_family == AF_INET6) {
            raw = &((const struct sockaddr_in6 *)(const void *)a->ai_addr)->sin6_addr;
        }
        if (raw == NULL || inet_ntop(a->ai_family, raw, text, sizeof text) == NULL) {
            continue;
        }
        if (out->n == TD_DNS_MAX_ADDRS) {
            dropped++;
            continue;
        }
        (void)snprintf(out->addrs[out->n++], TD_DNS_ADDR, a->ai_family == AF_INET6 ? "[%s]" : "%s",
                       text);
    }
    if (dropped > 0) {
        TD_LOG(WARN, "a name has too many addresses, ignoring the rest", "host=%s ignored=%u",
               out->host, dropped);
    }
    qsort(out->addrs, out->n, TD_DNS_ADDR, compare);
    unsigned kept = 0;
    for (unsigned i = 0; i < out->n; i++) {
        if (kept == 0 || strcmp(out->addrs[kept - 1], out->addrs[i]) != 0) {
            memmove(out->addrs[kept++], out->addrs[i], TD_DNS_ADDR);
        }
    }
    out->n = kept;
}

static void look_up(struct name *out)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
    struct addrinfo *list = NULL;
    int rv = getaddrinfo(out->host, NULL, &hints, &list);
    out->n = 0;
    out->err = TD_OK;
    if (rv != 0) {
        TD_LOG(INFO, "a name does not resolve, trying again", "host=%s err=\"%s\"", out->host,
               gai_strerror(rv));
        out->err = TD_ERR_ADDRESS;
        return;
    }
    collect(out, list);
    freeaddrinfo(list);
}

static void wait_for_round(struct shared *s, unsigned done)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(s->every_us / 1000000);
    until.tv_nsec += (long)(s->every_us % 1000000 * 1000);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    int rv = 0;
    while (!s->closed && s->asked == done && rv != ETIMEDOUT) {
        rv = pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
}

static void *resolver(void *arg)
{
    struct shared *s = arg;
    static _Thread_local struct name one;
    (void)pthread_setname_np(pthread_self(), "td-dns");
    (void)pthread_mutex_lock(&s->lock);
    while (!s->closed) {
        unsigned asked = s->asked;
        for (unsigned i = 0; i < s->count && !s->closed; i++) {
            (void)snprintf(one.host, sizeof one.host, "%s", s->names[i].host);
            (void)pthread_mutex_unlock(&s->lock);
            look_up(&one);
            (void)pthread_mutex_lock(&s->lock);
            one.fresh = true;
            s->names[i] = one;
            if (!s->closed) {
                td_wake_ring(s->wake);
            }
        }
        wait_for_round(s, asked);
    }
    (void)pthread_mutex_unlock(&s->lock);
    shared_free(s);
    return NULL;
}

static void on_wake(void *arg)
{
    struct td_dns *d = arg;
    struct shared *s = d->shared;
    struct name *one = td_zalloc(1, sizeof *one);
    for (unsigned i = 0; one != NULL && i < TD_DNS_MAX_NAMES; i++) {
        (void)pthread_mutex_lock(&s->lock);
        bool fresh = i < s->count && s->names[i].fresh;
        if (fresh) {
            s->names[i].fresh = false;
            *one = s->names[i];
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (fresh) {
            d->fn(d->arg, i, one->addrs, one->n, one->err);
        }
    }
    free(one);
}

static td_err start(struct shared *s)
{
    pthread_attr_t attr;
    pthread_t thread;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    int rv = pthread_create(&thread, &attr, resolver, s);
    (void)pthread_attr_destroy(&attr);
    if (rv != 0) {
        TD_LOG(ERROR, "cannot start the resolver thread", "errno=%d", rv);
        return TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

td_err td_dns_create(struct td_loop *loop, int64_t every_us, td_dns_fn fn, void *arg,
                     struct td_dns **out_dns)
{
    TD_REQUIRE(every_us > 0 && fn != NULL);
    struct td_dns *d = td_zalloc(1, sizeof *d);
    struct shared *s = td_zalloc(1, sizeof *s);
    td_err e = d != NULL && s != NULL ? TD_OK : TD_ERR_NO_MEMORY;
    if (e == TD_OK) {
        e = td_wake_create(loop, "dns", on_wake, d, &d->wake);
    }
    if (e != TD_OK) {
        free(d);
        free(s);
        return e;
    }
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->changed, &attr);
    (void)pthread_condattr_destroy(&attr);
    s->wake = d->wake;
    s->every_us = every_us;
    d->shared = s;
    d->fn = fn;
    d->arg = arg;
    e = start(s);
    if (e != TD_OK) {
        (void)td_wake_destroy(d->wake);
        shared_free(s);
        free(d);
        return e;
    }
    *out_dns = d;
    return TD_OK;
}

struct td_dns *td_dns_destroy(struct td_dns *d)
{
    if (d != NULL) {
        (void)pthread_mutex_lock(&d->shared->lock);
        d->shared->closed = true;
        (void)pthread_cond_signal(&d->shared->changed);
        (void)pthread_mutex_unlock(&d->shared->lock);
        d->wake = td_wake_destroy(d->wake);
        free(d);
    }
    return NULL;
}

td_err td_dns_add(struct td_dns *d, const char *host, unsigned *out_name)
{
    struct shared *s = d->shared;
    td_err e = TD_ERR_FULL;
    if (strlen(host) >= TD_DNS_HOST) {
        return TD_ERR_ADDRESS;
    }
    (void)pthread_mutex_lock(&s->lock);
    if (s->count < TD_DNS_MAX_NAMES) {
        (void)snprintf(s->names[s->count].host, TD_DNS_HOST, "%s", host);
        *out_name = s->count++;
        s->asked++;
        (void)pthread_cond_signal(&s->changed);
        e = TD_OK;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return e;
}
