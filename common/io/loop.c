#include "common/io/loop.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/heap.h"
#include "common/base/mem.h"
#define TD_LOG_ROOM "io"
#include "common/base/log.h"

/* Design. libevent supplies descriptors and signals. Timers are ours (a heap and one libevent
 * timeout for the earliest): libevent compares with a coarse clock and may fire milliseconds early,
 * which pure state machines must not see. Other threads reach the loop through one eventfd: rung
 * wakes form a list, posts a ring, both under `lock`, which is never held while a callback runs. */

struct td_timer {
    struct td_heap_node node;
    struct td_loop *loop; /* borrowed */
    const char *name;
    td_loop_fn fn;
    void *arg;
};

struct td_watch {
    struct td_loop *loop; /* borrowed */
    struct event *event;  /* owned */
    const char *name;
    td_watch_fn fn;
    void *arg;
    int fd;
    unsigned events;
};

struct td_signal {
    struct td_loop *loop; /* borrowed */
    struct event *event;  /* owned */
    td_loop_fn fn;
    void *arg;
};

struct td_wake {
    struct td_loop *loop; /* borrowed */
    struct td_wake *next; /* in loop->rung; guarded by loop->lock */
    bool rung;            /* guarded by loop->lock */
    const char *name;
    td_loop_fn fn;
    void *arg;
};

struct post {
    td_loop_fn fn;
    void *arg;
};

struct td_loop {
    struct event_base *base; /* owned */
    struct td_heap *timers;  /* owned */
    struct event *timeout;   /* owned: for the earliest timer */
    int64_t timeout_at;      /* what `timeout` is armed for */
    int64_t pass_us;    /* while timers run: one set for then or earlier waits for the next pass */
    struct event *door; /* owned: watches door_fd */
    int door_fd;        /* owned eventfd: rung by other threads */
    bool stopped;       /* loop thread only */
    unsigned objects;   /* timers, watches, signals, wakes alive */
    uint64_t stalls;
    int64_t longest_us;
    pthread_mutex_t lock; /* below: shared with other threads */
    bool stop_asked;
    struct td_wake *rung; /* list, in order of ringing */
    struct td_wake **rung_tail;
    uint32_t post_head, post_count;
    struct post posts[TD_LOOP_MAX_POSTS];
};

/* ---- accounting ---- */

static void account(struct td_loop *l, const char *name, int64_t began_us)
{
    int64_t took = td_now_us() - began_us;
    if (took > l->longest_us) {
        l->longest_us = took;
    }
    if (took > TD_LOOP_STALL_US) {
        l->stalls++;
        TD_LOG(INFO, "a callback held the loop", "source=%s ms=%lld", name,
               (long long)(took / 1000));
    }
}

/* ---- timers ---- */

static void arm_timeout(struct td_loop *l)
{
    struct td_heap_node *first = td_heap_peek(l->timers);
    int64_t at = first != NULL ? first->at_us : TD_NEVER;
    if (at == l->timeout_at) {
        return;
    }
    l->timeout_at = at;
    if (at == TD_NEVER) {
        (void)event_del(l->timeout); /* cannot fail for a valid event */
        return;
    }
    int64_t wait = at - td_now_us();
    wait = wait > 0 ? wait : 0;
    struct timeval tv = {.tv_sec = wait / 1000000, .tv_usec = wait % 1000000};
    TD_INSIST(event_add(l->timeout, &tv) ==
              0); /* its place in libevent's heap was taken at creation */
}

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct td_loop *l = arg;
    int64_t now = td_now_us();
    struct td_heap_node *n;
    (void)fd;
    (void)what;
    l->timeout_at = TD_NEVER;
    l->pass_us = now;
    while ((n = td_heap_pop_due(l->timers, now)) != NULL) {
        struct td_timer *t = td_heap_entry(n, struct td_timer, node);
        const char *name = t->name;
        int64_t began = td_now_us();
        t->fn(t->arg);
        account(l, name, began);
    }
    l->pass_us = INT64_MIN;
    arm_timeout(l);
}

td_err td_timer_create(struct td_loop *l, const char *name, td_loop_fn fn, void *arg,
                       struct td_timer **out_timer)
{
    TD_REQUIRE(l != NULL && fn != NULL);
    struct td_timer *t = td_zalloc(1, sizeof *t);
    if (t == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    t->loop = l;
    t->name = name;
    t->fn = fn;
    t->arg = arg;
    l->objects++;
    *out_timer = t;
    return TD_OK;
}

struct td_timer *td_timer_destroy(struct td_timer *t)
{
    if (t != NULL) {
        td_timer_set(t, TD_NEVER);
        t->loop->objects--;
        free(t);
    }
    return NULL;
}

void td_timer_set(struct td_timer *t, int64_t at_us)
{
    td_assert_on(td_loop);
    if (at_us <= t->loop->pass_us) {
        at_us = t->loop->pass_us + 1;
    }
    td_err e = td_heap_set(t->loop->timers, &t->node, at_us);
    /* TD_LOOP_MAX_TIMERS armed at once: a leak of ours, and a wait without a deadline is worse than
     * an end. */
    TD_INSIST(e == TD_OK);
    arm_timeout(t->loop);
}

int64_t td_timer_at(const struct td_timer *t)
{
    return t->node.slot != 0 ? t->node.at_us : TD_NEVER;
}

/* ---- descriptors ---- */

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    struct td_watch *w = arg;
    struct td_loop *l = w->loop;
    const char *name = w->name;
    unsigned ready = ((what & EV_READ) != 0 ? TD_WATCH_READ : 0u) |
                     ((what & EV_WRITE) != 0 ? TD_WATCH_WRITE : 0u);
    int64_t began = td_now_us();
    (void)fd;
    w->fn(w->arg, ready);
    account(l, name, began);
}

td_err td_watch_create(struct td_loop *l, const char *name, int fd, unsigned events, td_watch_fn fn,
                       void *arg, struct td_watch **out_watch)
{
    TD_REQUIRE(l != NULL && fn != NULL && fd >= 0);
    struct td_watch *w = td_zalloc(1, sizeof *w);
    if (w == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    w->loop = l;
    w->name = name;
    w->fn = fn;
    w->arg = arg;
    w->fd = fd;
    w->event = event_new(l->base, fd, EV_PERSIST, on_ready, w);
    l->objects++;
    if (w->event == NULL || td_watch_set(w, events) != TD_OK) {
        (void)td_watch_destroy(w);
        return TD_ERR_NO_MEMORY;
    }
    *out_watch = w;
    return TD_OK;
}

td_err td_watch_set(struct td_watch *w, unsigned events)
{
    td_assert_on(td_loop);
    if (events == w->events) {
        return TD_OK;
    }
    short what = EV_PERSIST;
    what = (short)(what | ((events & TD_WATCH_READ) != 0 ? EV_READ : 0));
    what = (short)(what | ((events & TD_WATCH_WRITE) != 0 ? EV_WRITE : 0));
    (void)event_del(w->event); /* cannot fail for a valid event */
    w->events = 0;
    if (events == 0) {
        return TD_OK;
    }
    if (event_assign(w->event, w->loop->base, w->fd, what, on_ready, w) != 0 ||
        event_add(w->event, NULL) != 0) {
        TD_LOG(ERROR, "cannot watch a descriptor", "source=%s fd=%d errno=%d", w->name, w->fd,
               errno);
        return TD_ERR_IO;
    }
    w->events = events;
    return TD_OK;
}

struct td_watch *td_watch_destroy(struct td_watch *w)
{
    if (w != NULL) {
        if (w->event != NULL) {
            event_free(w->event);
        }
        w->loop->objects--;
        free(w);
    }
    return NULL;
}

/* ---- signals ---- */

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    struct td_signal *s = arg;
    struct td_loop *l = s->loop;
    int64_t began = td_now_us();
    (void)signo;
    (void)what;
    s->fn(s->arg);
    account(l, "signal", began);
}

td_err td_signal_create(struct td_loop *l, int signo, td_loop_fn fn, void *arg,
                        struct td_signal **out_signal)
{
    TD_REQUIRE(l != NULL && fn != NULL);
    struct td_signal *s = td_zalloc(1, sizeof *s);
    if (s == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    s->loop = l;
    s->fn = fn;
    s->arg = arg;
    s->event = evsignal_new(l->base, signo, on_signal, s);
    l->objects++;
    if (s->event == NULL || event_add(s->event, NULL) != 0) {
        TD_LOG(ERROR, "cannot catch a signal", "signo=%d", signo);
        (void)td_signal_destroy(s);
        return TD_ERR_IO;
    }
    *out_signal = s;
    return TD_OK;
}

struct td_signal *td_signal_destroy(struct td_signal *s)
{
    if (s != NULL) {
        if (s->event != NULL) {
            event_free(s->event);
        }
        s->loop->objects--;
        free(s);
    }
    return NULL;
}

/* ---- from other threads ---- */

/* Caller holds lock or has just released it: a write to an eventfd never blocks here (its counter
 * cannot overflow). */
static void ring_door(struct td_loop *l)
{
    uint64_t one = 1;
    while (write(l->door_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static struct td_wake *take_rung(struct td_loop *l)
{
    (void)pthread_mutex_lock(&l->lock);
    struct td_wake *w = l->rung;
    if (w != NULL) {
        l->rung = w->next;
        if (l->rung == NULL) {
            l->rung_tail = &l->rung;
        }
        w->next = NULL;
        w->rung = false;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return w;
}

static bool take_post(struct td_loop *l, struct post *out)
{
    (void)pthread_mutex_lock(&l->lock);
    bool any = l->post_count > 0;
    if (any) {
        *out = l->posts[l->post_head];
        l->post_head = (l->post_head + 1) % TD_LOOP_MAX_POSTS;
        l->post_count--;
    }
    (void)pthread_mutex_unlock(&l->lock);
    return any;
}

/* Runs what was there when the door opened, not what callbacks add: that waits for the next pass.
 */
static void on_door(evutil_socket_t fd, short what, void *arg)
{
    struct td_loop *l = arg;
    uint64_t n;
    struct post p;
    (void)what;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) {
    }
    (void)pthread_mutex_lock(&l->lock);
    uint32_t posts = l->post_count, wakes = 0;
    for (struct td_wake *w = l->rung; w != NULL; w = w->next) {
        wakes++;
    }
    l->stopped = l->stopped || l->stop_asked;
    (void)pthread_mutex_unlock(&l->lock);
    for (struct td_wake *w; wakes > 0 && (w = take_rung(l)) != NULL; wakes--) {
        const char *name = w->name;
        int64_t began = td_now_us();
        w->fn(w->arg);
        account(l, name, began);
    }
    for (; posts > 0 && take_post(l, &p); posts--) {
        int64_t began = td_now_us();
        p.fn(p.arg);
        account(l, "post", began);
    }
    if (l->stopped) {
        (void)event_base_loopbreak(l->base);
    }
}

td_err td_wake_create(struct td_loop *l, const char *name, td_loop_fn fn, void *arg,
                      struct td_wake **out_wake)
{
    TD_REQUIRE(l != NULL && fn != NULL);
    struct td_wake *w = td_zalloc(1, sizeof *w);
    if (w == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    w->loop = l;
    w->name = name;
    w->fn = fn;
    w->arg = arg;
    l->objects++;
    *out_wake = w;
    return TD_OK;
}

struct td_wake *td_wake_destroy(struct td_wake *w)
{
    if (w == NULL) {
        return NULL;
    }
    struct td_loop *l = w->loop;
    (void)pthread_mutex_lock(&l->lock);
    if (w->rung) {
        struct td_wake **at = &l->rung;
        while (*at != w) {
            at = &(*at)->next;
        }
        *at = w->next;
        if (w->next == NULL) {
            l->rung_tail = at;
        }
    }
    (void)pthread_mutex_unlock(&l->lock);
    l->objects--;
    free(w);
    return NULL;
}

void td_wake_ring(struct td_wake *w)
{
    struct td_loop *l = w->loop;
    bool first = false;
    (void)pthread_mutex_lock(&l->lock);
    if (!w->rung) {
        w->rung = true;
        w->next = NULL;
        *l->rung_tail = w;
        l->rung_tail = &w->next;
        first = true;
    }
    (void)pthread_mutex_unlock(&l->lock);
    if (first) {
        ring_door(l);
    }
}

td_err td_loop_post(struct td_loop *l, td_loop_fn fn, void *arg)
{
    (void)pthread_mutex_lock(&l->lock);
    bool full = l->post_count == TD_LOOP_MAX_POSTS;
    if (!full) {
        l->posts[(l->post_head + l->post_count) % TD_LOOP_MAX_POSTS] =
            (struct post){.fn = fn, .arg = arg};
        l->post_count++;
    }
    (void)pthread_mutex_unlock(&l->lock);
    if (full) {
        return TD_ERR_FULL;
    }
    ring_door(l);
    return TD_OK;
}

void td_loop_stop(struct td_loop *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->stop_asked = true;
    (void)pthread_mutex_unlock(&l->lock);
    ring_door(l);
}

/* ---- the loop ---- */

static td_err build(struct td_loop *l)
{
    static const struct timeval never = {.tv_sec = 3600};
    struct event_config *cfg = event_config_new();
    if (cfg != NULL) {
        /* Fresh time for every timeout: a callback may have taken long. */
        (void)event_config_set_flag(cfg, EVENT_BASE_FLAG_NO_CACHE_TIME);
        l->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    l->timers = td_heap_create(TD_LOOP_MAX_TIMERS);
    l->door_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->base == NULL || l->timers == NULL || l->door_fd < 0) {
        return TD_ERR_NO_MEMORY;
    }
    l->timeout = event_new(l->base, -1, 0, on_timeout, l);
    l->door = event_new(l->base, l->door_fd, EV_READ | EV_PERSIST, on_door, l);
    if (l->timeout == NULL || l->door == NULL || event_add(l->door, NULL) != 0) {
        return TD_ERR_NO_MEMORY;
    }
    /* Grows libevent's heap once, so that arm_timeout() cannot fail later. */
    if (event_add(l->timeout, &never) != 0 || event_del(l->timeout) != 0) {
        return TD_ERR_NO_MEMORY;
    }
    return TD_OK;
}

td_err td_loop_create(struct td_loop **out_loop)
{
    struct td_loop *l = td_zalloc(1, sizeof *l);
    if (l == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    (void)pthread_mutex_init(&l->lock, NULL); /* a default mutex cannot fail on Linux */
    l->rung_tail = &l->rung;
    l->timeout_at = TD_NEVER;
    l->pass_us = INT64_MIN;
    l->door_fd = -1;
    td_err e = build(l);
    if (e != TD_OK) {
        TD_LOG(ERROR, "cannot create the event loop", "errno=%d", errno);
        (void)td_loop_destroy(l);
        return e;
    }
    *out_loop = l;
    return TD_OK;
}

struct td_loop *td_loop_destroy(struct td_loop *l)
{
    if (l == NULL) {
        return NULL;
    }
    TD_REQUIRE(l->objects == 0);
    if (l->timeout != NULL) {
        event_free(l->timeout);
    }
    if (l->door != NULL) {
        event_free(l->door);
    }
    if (l->base != NULL) {
        event_base_free(l->base);
    }
    if (l->door_fd >= 0) {
        (void)close(l->door_fd);
    }
    (void)td_heap_destroy(l->timers);
    (void)pthread_mutex_destroy(&l->lock);
    free(l);
    return NULL;
}

void td_loop_run(struct td_loop *l)
{
    td_assert_on(td_loop);
    while (!l->stopped) {
        if (event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0) {
            TD_LOG(ERROR, "the event loop failed", "errno=%d", errno);
            return;
        }
    }
}

static void on_pass_over(void *arg)
{
    (void)arg; /* its only purpose is to bound the wait of td_loop_run_once() */
}

void td_loop_run_once(struct td_loop *l, int64_t max_wait_us)
{
    struct td_timer bound = {.loop = l, .name = "pass", .fn = on_pass_over};
    td_assert_on(td_loop);
    td_timer_set(&bound, td_now_us() + max_wait_us);
    (void)event_base_loop(l->base, EVLOOP_ONCE); /* an error shows as an early return */
    td_timer_set(&bound, TD_NEVER);
}

uint64_t td_loop_stalls(const struct td_loop *l)
{
    return l->stalls;
}

int64_t td_loop_longest_us(const struct td_loop *l)
{
    return l->longest_us;
}

struct event_base *td_loop_event_base(struct td_loop *l)
{
    return l->base;
}

static void mask_signals(int how)
{
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)pthread_sigmask(how, &set, NULL);
}

void td_signals_hold(void)
{
    mask_signals(SIG_BLOCK);
}

void td_signals_let_through(void)
{
    mask_signals(SIG_UNBLOCK);
}
