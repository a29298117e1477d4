/* ring.h - the only door between threads: a bounded single-producer single-consumer ring of
 * fixed-size records, with an optional eventfd that wakes the consumer.
 *
 * Bounds: capacity a power of two, fixed at creation. Failure: push on a full ring returns
 * TD_ERR_FULL, nothing lost. Thread: one producer, one consumer. Memory order: the producer's
 * release store of `tail` publishes the record; the consumer's release store of `head` gives the
 * slot back.
 */
#ifndef TD_BASE_RING_H
#define TD_BASE_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_ring;

/* with_fd: creates a non-blocking eventfd that td_ring_push signals. */
td_err td_ring_create(size_t capacity, size_t record_bytes, bool with_fd,
                      struct td_ring **out_ring) TD_MUST_CHECK;
struct td_ring *td_ring_destroy(struct td_ring *r);
td_err td_ring_push(struct td_ring *r, const void *record) TD_MUST_CHECK;
/* False when empty. */
bool td_ring_pop(struct td_ring *r, void *out_record);
/* Records waiting (exact for the consumer, a snapshot for others). */
size_t td_ring_count(const struct td_ring *r);
/* -1 without. */
int td_ring_fd(const struct td_ring *r);
/* Consumer: drains the eventfd. Call before popping until empty. */
void td_ring_ack(struct td_ring *r);

#endif
