#include "common/model/cpu_engine_team.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPIN_PAUSES 3000 /* near 50 us at 40 to 140 cycles a pause */

static void cpu_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static uint32_t cores(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return n > 0 ? (uint32_t)n : 1;
}

void td_team_init(struct td_team *t, uint32_t n)
{
    memset(t, 0, sizeof *t);
    t->n = n;
    t->spins = n > cores() ? 0 : SPIN_PAUSES;
}

void td_team_wait(atomic_uint *word, uint32_t seen, atomic_uint *sleepers, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        /* acquire: pairs with the release store of whoever changed the word */
        if (atomic_load_explicit(word, memory_order_acquire) != seen) {
            return;
        }
        cpu_pause();
    }
    /* seq_cst: either the waker sees this sleeper, or the futex sees the changed word */
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) {
        (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); /* or EAGAIN */
    }
    atomic_fetch_sub(sleepers, 1);
}

void td_team_wake(atomic_uint *word, atomic_uint *sleepers)
{
    if (atomic_load(sleepers) != 0) { /* seq_cst, see td_team_wait */
        (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

/* The last arriver's part. */
static void release(struct td_team *t, td_team_serial_fn serial, void *arg)
{
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    if (serial != NULL) {
        serial(arg);
    }
    atomic_fetch_add(&t->phase, 1); /* seq_cst: publishes, and orders against sleepers */
    td_team_wake(&t->phase, &t->sleepers);
}

void td_team_sync(struct td_team *t, td_team_serial_fn serial, void *arg)
{
    if (t->n > 1) {
        uint32_t seen = atomic_load_explicit(&t->phase, memory_order_relaxed);
        /* acq_rel: the last arriver sees what everybody wrote */
        if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 < t->n) {
            td_team_wait(&t->phase, seen, &t->sleepers, t->spins);
        } else {
            release(t, serial, arg);
        }
    } else if (serial != NULL) {
        serial(arg);
    }
}

void td_team_absent(struct td_team *t, uint32_t count)
{
    if (atomic_fetch_add_explicit(&t->arrived, count, memory_order_acq_rel) + count == t->n) {
        release(t, NULL, NULL);
    }
}

void td_team_run(struct td_team *t, uint32_t member, uint32_t n_items, td_team_item_fn fn,
                 td_team_serial_fn serial, void *arg)
{
    if (t->n == 1) {
        for (uint32_t i = 0; i < n_items; i++) {
            fn(arg, member, i);
        }
    } else {
        /* relaxed: items are independent, the barrier publishes their results */
        uint32_t i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        while (i < n_items) {
            fn(arg, member, i);
            i = atomic_fetch_add_explicit(&t->next, 1, memory_order_relaxed);
        }
    }
    td_team_sync(t, serial, arg);
}

void td_team_share(struct td_team *t, uint32_t member, td_team_item_fn fn, td_team_serial_fn serial,
                   void *arg)
{
    fn(arg, member, member);
    td_team_sync(t, serial, arg);
}
