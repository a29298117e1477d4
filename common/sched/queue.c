#include "common/sched/queue.h"

#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

struct td_queue {
    struct td_queue_item *
        *at;               /* owned array [capacity] of borrowed entries: a heap by (key, number) */
    struct td_heap *waits; /* owned: the same entries by deadline */
    size_t capacity;
    size_t count;
    uint64_t arrivals;
};

int64_t td_sched_key(int32_t priority, int64_t arrived_us)
{
    if (priority > TD_SCHED_MAX_PRIORITY) {
        priority = TD_SCHED_MAX_PRIORITY;
    }
    if (priority < -TD_SCHED_MAX_PRIORITY) {
        priority = -TD_SCHED_MAX_PRIORITY;
    }
    return arrived_us + (int64_t)priority * TD_SCHED_AGE_US;
}

struct td_queue *td_queue_create(size_t capacity)
{
    TD_REQUIRE(capacity > 0 && capacity < UINT32_MAX);
    struct td_queue *q = td_zalloc(1, sizeof *q);
    if (q == NULL) {
        return NULL;
    }
    q->capacity = capacity;
    q->at = td_zalloc(capacity, sizeof(struct td_queue_item *));
    q->waits = td_heap_create(capacity);
    if (q->at == NULL || q->waits == NULL) {
        return td_queue_destroy(q);
    }
    return q;
}

struct td_queue *td_queue_destroy(struct td_queue *q)
{
    if (q != NULL) {
        q->waits = td_heap_destroy(q->waits);
        free(q->at);
        free(q);
    }
    return NULL;
}

static bool before(const struct td_queue_item *a, const struct td_queue_item *b)
{
    return a->key != b->key ? a->key < b->key : a->number < b->number;
}

static void put(struct td_queue *q, size_t i, struct td_queue_item *it)
{
    q->at[i] = it;
    it->slot = (uint32_t)i + 1;
}

static void sift_up(struct td_queue *q, size_t i)
{
    struct td_queue_item *it = q->at[i];
    while (i > 0 && before(it, q->at[(i - 1) / 2])) {
        put(q, i, q->at[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(q, i, it);
}

static void sift_down(struct td_queue *q, size_t i)
{
    struct td_queue_item *it = q->at[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= q->count) {
            break;
        }
        if (child + 1 < q->count && before(q->at[child + 1], q->at[child])) {
            child++;
        }
        if (!before(q->at[child], it)) {
            break;
        }
        put(q, i, q->at[child]);
        i = child;
    }
    put(q, i, it);
}

td_err td_queue_push(struct td_queue *q, struct td_queue_item *it, int32_t priority, int64_t now_us,
                     int64_t deadline_us)
{
    TD_REQUIRE(it->slot == 0 && deadline_us != TD_NEVER);
    if (q->count == q->capacity || td_heap_set(q->waits, &it->wait, deadline_us) != TD_OK) {
        return TD_ERR_OVERLOADED;
    }
    it->key = td_sched_key(priority, now_us);
    it->number = q->arrivals++;
    it->since_us = now_us;
    put(q, q->count, it);
    sift_up(q, q->count++);
    return TD_OK;
}

struct td_queue_item *td_queue_head(const struct td_queue *q)
{
    return q->count > 0 ? q->at[0] : NULL;
}

void td_queue_remove(struct td_queue *q, struct td_queue_item *it)
{
    if (it->slot == 0) {
        return;
    }
    size_t i = it->slot - 1;
    TD_INSIST(i < q->count && q->at[i] == it);
    struct td_queue_item *last = q->at[--q->count];
    it->slot = 0;
    td_heap_remove(q->waits, &it->wait);
    if (last != it) {
        put(q, i, last);
        sift_up(q, i);
        sift_down(q, last->slot - 1);
    }
}

struct td_queue_item *td_queue_pop_due(struct td_queue *q, int64_t now_us)
{
    struct td_heap_node *n = td_heap_pop_due(q->waits, now_us);
    if (n == NULL) {
        return NULL;
    }
    struct td_queue_item *it = td_heap_entry(n, struct td_queue_item, wait);
    td_queue_remove(q, it);
    return it;
}

int64_t td_queue_next_deadline(const struct td_queue *q)
{
    const struct td_heap_node *n = td_heap_peek(q->waits);
    return n != NULL ? n->at_us : TD_NEVER;
}

size_t td_queue_count(const struct td_queue *q)
{
    return q->count;
}
