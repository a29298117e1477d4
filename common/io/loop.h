/* loop.h - the event loop of a process: timers, descriptors, signals, and the way in from other
 * threads.
 *
 * What: a thin shell over libevent. One loop, one thread: every callback runs on the thread that
 * calls td_loop_run().
 * Not: a protocol, a buffer, a thread pool. HTTP pieces that live in common/io reach libevent by
 * td_loop_event_base().
 * Owner: main(). Thread: everything is the loop thread's, except what is marked TD_ANY.
 * Rules for callbacks: no blocking call, nothing over 1 ms. A callback that took longer than
 * TD_LOOP_STALL_US is counted and logged with the name of its source. Any object may be destroyed
 * inside any callback, its own included; after destroy its callback never runs.
 * Bounds: TD_LOOP_MAX_TIMERS, TD_LOOP_MAX_POSTS.
 * Failure: creation fails with an error; nothing fails later.
 */
#ifndef TD_IO_LOOP_H
#define TD_IO_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/thread.h"

#define TD_LOOP_MAX_TIMERS 16384
#define TD_LOOP_MAX_POSTS  4096
#define TD_LOOP_STALL_US   250000

struct event_base;
struct td_loop;
struct td_timer;
struct td_watch;
struct td_wake;

typedef void (*td_loop_fn)(void *arg);

td_err td_loop_create(struct td_loop **out_loop) TD_MUST_CHECK;
/* Requires: all timers, watches, wakes of this loop are destroyed; posts not yet run are dropped.
 * NULL is fine. */
struct td_loop *td_loop_destroy(struct td_loop *l);
/* Runs callbacks until td_loop_stop(). */
void td_loop_run(struct td_loop *l);
/* One pass for tests and drains: waits at most `max_wait_us` for something to do, runs what is due,
 * returns. */
void td_loop_run_once(struct td_loop *l, int64_t max_wait_us);
/* Ends td_loop_run() after the callbacks that are due now. Sticky: a later td_loop_run() returns at
 * once. */
TD_ANY void td_loop_stop(struct td_loop *l);
/* Callbacks that took longer than TD_LOOP_STALL_US, and the longest so far. */
uint64_t td_loop_stalls(const struct td_loop *l);
int64_t td_loop_longest_us(const struct td_loop *l);
/* For evhttp and bufferevents in common/io only; valid until destroy. */
struct event_base *td_loop_event_base(struct td_loop *l);

/* ---- timers: one shot, absolute, on the clock of td_now_us(); never early ---- */
/* `name` is static: it appears in logs. Not armed yet. */
td_err td_timer_create(struct td_loop *l, const char *name, td_loop_fn fn, void *arg,
                       struct td_timer **out_timer) TD_MUST_CHECK;
struct td_timer *td_timer_destroy(struct td_timer *t);
/* Arms or moves it; a time in the past fires in the next pass; TD_NEVER disarms. */
void td_timer_set(struct td_timer *t, int64_t at_us);
/* TD_NEVER when not armed. */
int64_t td_timer_at(const struct td_timer *t);

/* ---- descriptors: level-triggered; the descriptor stays the caller's and must outlive the watch
 * ---- */
#define TD_WATCH_READ  1u
#define TD_WATCH_WRITE 2u
typedef void (*td_watch_fn)(void *arg, unsigned ready);

td_err td_watch_create(struct td_loop *l, const char *name, int fd, unsigned events, td_watch_fn fn,
                       void *arg, struct td_watch **out_watch) TD_MUST_CHECK;
/* Changes what is watched; 0 pauses. */
td_err td_watch_set(struct td_watch *w, unsigned events) TD_MUST_CHECK;
struct td_watch *td_watch_destroy(struct td_watch *w);

/* ---- signals ---- */
struct td_signal;
td_err td_signal_create(struct td_loop *l, int signo, td_loop_fn fn, void *arg,
                        struct td_signal **out_signal) TD_MUST_CHECK;
struct td_signal *td_signal_destroy(struct td_signal *s);
/* Holds SIGTERM and SIGINT back (they stay pending) in this thread and all it creates from now on.
 * main() holds them from its first line, lets them through while the loop runs, and holds them
 * again on the way out, so that neither a slow start nor a second signal cuts a clean end short. */
void td_signals_hold(void);
void td_signals_let_through(void);

/* ---- from other threads ---- */
/* A wake is a doorbell: td_wake_ring() from any thread makes `fn` run once on the loop; rings
 * before it ran merge. Never fails, never blocks for long, allocates nothing: the way for library
 * callbacks. Destroy only when no other thread can ring any more. */
td_err td_wake_create(struct td_loop *l, const char *name, td_loop_fn fn, void *arg,
                      struct td_wake **out_wake) TD_MUST_CHECK;
struct td_wake *td_wake_destroy(struct td_wake *w);
TD_ANY void td_wake_ring(struct td_wake *w);
/* Runs fn(arg) on the loop once, in the order of posting; from the loop itself: in the next pass.
 * TD_ERR_FULL when TD_LOOP_MAX_POSTS wait. */
TD_ANY td_err td_loop_post(struct td_loop *l, td_loop_fn fn, void *arg) TD_MUST_CHECK;

#endif
