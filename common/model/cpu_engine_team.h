/* cpu_engine_team.h - a fixed team of threads that share the items of one phase after another.
 *
 * What: a work counter and a barrier whose last arriver runs a short serial piece before it lets
 * the others go, so that small steps cost no barrier of their own. Not: a task graph; which thread
 * takes an item is not defined, so items must be independent. Waiting: spins about 50 us, then
 * sleeps; sleeps at once when the team has more members than the process has cores. With one member
 * no atomic is touched. Owner: the engine; members call only td_team_run(), td_team_share() and td_team_sync(), all
 * of them in the same order. Memory order: what a member wrote before a barrier is seen by all
 * after.
 */
#ifndef TD_MODEL_CPU_ENGINE_TEAM_H
#define TD_MODEL_CPU_ENGINE_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#define TD_TEAM_MAX 256

struct td_team {
    uint32_t n;
    uint32_t spins; /* pauses before sleeping */
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint phase; /* futex word */
    atomic_uint sleepers;
    _Alignas(64) atomic_uint next; /* item */
};

typedef void (*td_team_item_fn)(void *arg, uint32_t member, uint32_t item);
typedef void (*td_team_serial_fn)(void *arg);

void td_team_init(struct td_team *t, uint32_t n);
/* Barrier; the last arriver runs serial (may be NULL) first. */
void td_team_sync(struct td_team *t, td_team_serial_fn serial, void *arg);
/* Items [0, n) by fn, then td_team_sync(). */
void td_team_run(struct td_team *t, uint32_t member, uint32_t n_items, td_team_item_fn fn,
                 td_team_serial_fn serial, void *arg);

/* Item `member` only, then td_team_sync(): for work cut into equal shares beforehand. */
void td_team_share(struct td_team *t, uint32_t member, td_team_item_fn fn, td_team_serial_fn serial,
                   void *arg);

/* Arrives at the barrier for members that will never come, without waiting. */
void td_team_absent(struct td_team *t, uint32_t count);

/* Waits until *word differs from `seen` (spins pauses, then futex); *sleepers counts sleepers. */
void td_team_wait(atomic_uint *word, uint32_t seen, atomic_uint *sleepers, uint32_t spins);
/* Wakes sleepers after *word was changed. */
void td_team_wake(atomic_uint *word, atomic_uint *sleepers);

#endif
