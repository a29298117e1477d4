/* queue.h - a bounded waiting line: priority first, then arrival, each entry with its deadline.
 *
 * The rule (td_sched_key): an entry's place is its arrival time plus its priority times
 * TD_SCHED_AGE_US; the smallest goes first, ties go by arrival order. One level of priority is thus
 * worth one second of waiting: an entry can be overtaken only by entries that arrive within
 * (difference of priorities) * TD_SCHED_AGE_US after it, so nobody starves, and equals are served
 * first come, first served. The head is never skipped in favour of a smaller one behind it.
 * Entries are embedded in what waits. Owner and thread: the object that embeds the queue.
 * Bounds: capacity at creation; no allocation later; O(log n). Failure: TD_ERR_OVERLOADED when
 * full.
 */
#ifndef TD_SCHED_QUEUE_H
#define TD_SCHED_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "common/base/heap.h"

#define TD_SCHED_AGE_US       1000000
#define TD_SCHED_MAX_PRIORITY 100 /* levels either way; beyond is clamped */

struct td_queue_item {        /* zero-initialise */
    struct td_heap_node wait; /* deadline */
    int64_t key;
    uint64_t number; /* arrival order */
    int64_t since_us;
    uint32_t slot; /* position + 1; 0: not queued */
};

struct td_queue;

/* Sort key of something with this priority (lower runs first) that arrived at `arrived_us`. */
int64_t td_sched_key(int32_t priority, int64_t arrived_us);

struct td_queue *td_queue_create(size_t capacity);
struct td_queue *td_queue_destroy(struct td_queue *q);
td_err td_queue_push(struct td_queue *q, struct td_queue_item *it, int32_t priority, int64_t now_us,
                     int64_t deadline_us) TD_MUST_CHECK;
/* The entry whose turn it is, or NULL. */
struct td_queue_item *td_queue_head(const struct td_queue *q);
/* Takes an entry out, wherever it stands; not queued is fine. */
void td_queue_remove(struct td_queue *q, struct td_queue_item *it);
/* Takes out and returns an entry whose deadline is <= now, or NULL. */
struct td_queue_item *td_queue_pop_due(struct td_queue *q, int64_t now_us);
/* Earliest deadline, TD_NEVER when empty. */
int64_t td_queue_next_deadline(const struct td_queue *q);
size_t td_queue_count(const struct td_queue *q);
static inline bool td_queue_holds(const struct td_queue_item *it)
{
    return it->slot != 0;
}

#endif
