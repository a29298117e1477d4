#include "common/base/ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/base/assert.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define RING_LINE 64 /* cache line: producer and consumer never write the same one */

struct td_ring {
    size_t mask;
    size_t record_bytes;
    unsigned char *records;          /* owned [mask + 1][record_bytes] */
    int fd;                          /* owned; -1 without */
    _Alignas(RING_LINE) size_t tail; /* written by the producer */
    size_t head_seen;                /* producer's last view of head */
    _Alignas(RING_LINE) size_t head; /* written by the consumer */
    size_t tail_seen;                /* consumer's last view of tail */
};

td_err td_ring_create(size_t capacity, size_t record_bytes, bool with_fd, struct td_ring **out_ring)
{
    TD_REQUIRE(capacity > 0 && (capacity & (capacity - 1)) == 0 && record_bytes > 0);
    struct td_ring *r = td_zalloc_aligned(RING_LINE, sizeof *r);
    if (r == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    r->fd = -1;
    r->mask = capacity - 1;
    r->record_bytes = record_bytes;
    r->records = td_zalloc(capacity, record_bytes);
    if (r->records == NULL) {
        (void)td_ring_destroy(r);
        return TD_ERR_NO_MEMORY;
    }
    if (with_fd) {
        r->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        if (r->fd < 0) {
            TD_LOG(ERROR, "eventfd failed", "errno=%d", errno);
            (void)td_ring_destroy(r);
            return TD_ERR_IO;
        }
    }
    *out_ring = r;
    return TD_OK;
}

struct td_ring *td_ring_destroy(struct td_ring *r)
{
    if (r != NULL) {
        if (r->fd >= 0) {
            (void)close(r->fd);
        }
        free(r->records);
        free(r);
    }
    return NULL;
}

td_err td_ring_push(struct td_ring *r, const void *record)
{
    /* Only the producer writes tail, so it may read it relaxed. */
    size_t tail = __atomic_load_n(&r->tail, __ATOMIC_RELAXED);
    if (tail - r->head_seen > r->mask) {
        /* Acquire pairs with the consumer's release: its reads of the slot are over. */
        r->head_seen = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);
        if (tail - r->head_seen > r->mask) {
            return TD_ERR_FULL;
        }
    }
    memcpy(r->records + (tail & r->mask) * r->record_bytes, record, r->record_bytes);
    /* Release publishes the record. */
    __atomic_store_n(&r->tail, tail + 1, __ATOMIC_RELEASE);
    if (r->fd >= 0) {
        /* Every push signals: a consumer that stops popping early is still woken by the next
         * record. A full counter (EAGAIN) leaves the descriptor readable, which is all that is
         * needed. */
        uint64_t one = 1;
        while (write(r->fd, &one, sizeof one) < 0 && errno == EINTR) {
        }
    }
    return TD_OK;
}

bool td_ring_pop(struct td_ring *r, void *out_record)
{
    size_t head = __atomic_load_n(&r->head, __ATOMIC_RELAXED);
    if (head == r->tail_seen) {
        /* Acquire pairs with the producer's release: the record is complete. */
        r->tail_seen = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
        if (head == r->tail_seen) {
            return false;
        }
    }
    memcpy(out_record, r->records + (head & r->mask) * r->record_bytes, r->record_bytes);
    /* Release gives the slot back after the copy. */
    __atomic_store_n(&r->head, head + 1, __ATOMIC_RELEASE);
    return true;
}

size_t td_ring_count(const struct td_ring *r)
{
    /* Head first: tail can only have grown since, so the difference never wraps. */
    size_t head = __atomic_load_n(&r->head, __ATOMIC_ACQUIRE);
    size_t tail = __atomic_load_n(&r->tail, __ATOMIC_ACQUIRE);
    return tail - head <= r->mask ? tail - head : r->mask + 1;
}

int td_ring_fd(const struct td_ring *r)
{
    return r->fd;
}

void td_ring_ack(struct td_ring *r)
{
    uint64_t n;
    if (r->fd >= 0) {
        while (read(r->fd, &n, sizeof n) < 0 && errno == EINTR) {
        }
    }
}
