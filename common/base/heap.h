/* heap.h - timers: a binary min-heap of deadlines over embedded nodes.
 *
 * The node sits in the object that waits; removal by node is O(log n). Bounds: capacity fixed at
 * creation. Owner and thread: the object that embeds it. Failure: TD_ERR_FULL.
 */
#ifndef TD_BASE_HEAP_H
#define TD_BASE_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_heap_node {
    int64_t at_us; /* deadline; read-only while queued */
    uint32_t slot; /* position + 1; 0: not queued. Zero-initialise. */
};

struct td_heap;

struct td_heap *td_heap_create(size_t capacity);
struct td_heap *td_heap_destroy(struct td_heap *h);
/* Inserts, or moves an already queued node, to `at_us`; TD_NEVER removes it. Ties keep insertion
 * order unspecified but deterministic for the same sequence of calls. */
td_err td_heap_set(struct td_heap *h, struct td_heap_node *n, int64_t at_us) TD_MUST_CHECK;
void td_heap_remove(struct td_heap *h, struct td_heap_node *n);
/* Earliest node, or NULL. */
struct td_heap_node *td_heap_peek(const struct td_heap *h);
/* Removes and returns the earliest node whose deadline is <= now, or NULL. */
struct td_heap_node *td_heap_pop_due(struct td_heap *h, int64_t now_us);
size_t td_heap_count(const struct td_heap *h);
#define td_heap_entry(node, type, member) ((type *)(void *)((char *)(node)-offsetof(type, member)))

#endif
