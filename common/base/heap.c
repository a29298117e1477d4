#include "common/base/heap.h"

#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/mem.h"

struct td_heap {
    struct td_heap_node **at; /* owned array [capacity] of borrowed nodes */
    size_t capacity;
    size_t count;
};

struct td_heap *td_heap_create(size_t capacity)
{
    TD_REQUIRE(capacity > 0 && capacity < UINT32_MAX);
    struct td_heap *h = td_zalloc(1, sizeof *h);
    if (h == NULL) {
        return NULL;
    }
    h->at = td_zalloc(capacity, sizeof(struct td_heap_node *));
    if (h->at == NULL) {
        return td_heap_destroy(h);
    }
    h->capacity = capacity;
    return h;
}

struct td_heap *td_heap_destroy(struct td_heap *h)
{
    if (h != NULL) {
        free(h->at);
        free(h);
    }
    return NULL;
}

static void put(struct td_heap *h, size_t i, struct td_heap_node *n)
{
    h->at[i] = n;
    n->slot = (uint32_t)i + 1;
}

static void sift_up(struct td_heap *h, size_t i)
{
    struct td_heap_node *n = h->at[i];
    while (i > 0 && n->at_us < h->at[(i - 1) / 2]->at_us) {
        put(h, i, h->at[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(h, i, n);
}

static void sift_down(struct td_heap *h, size_t i)
{
    struct td_heap_node *n = h->at[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= h->count) {
            break;
        }
        if (child + 1 < h->count && h->at[child + 1]->at_us < h->at[child]->at_us) {
            child++;
        }
        if (h->at[child]->at_us >= n->at_us) {
            break;
        }
        put(h, i, h->at[child]);
        i = child;
    }
    put(h, i, n);
}

td_err td_heap_set(struct td_heap *h, struct td_heap_node *n, int64_t at_us)
{
    if (at_us == TD_NEVER) {
        td_heap_remove(h, n);
        return TD_OK;
    }
    if (n->slot == 0) {
        if (h->count == h->capacity) {
            return TD_ERR_FULL;
        }
        put(h, h->count++, n);
    }
    TD_INSIST(n->slot <= h->count && h->at[n->slot - 1] == n);
    n->at_us = at_us;
    sift_up(h, n->slot - 1);
    sift_down(h, n->slot - 1);
    return TD_OK;
}

void td_heap_remove(struct td_heap *h, struct td_heap_node *n)
{
    if (n->slot == 0) {
        return;
    }
    size_t i = n->slot - 1;
    TD_INSIST(i < h->count && h->at[i] == n);
    struct td_heap_node *last = h->at[--h->count];
    n->slot = 0;
    if (last != n) {
        put(h, i, last);
        sift_up(h, i);
        sift_down(h, last->slot - 1);
    }
}

struct td_heap_node *td_heap_peek(const struct td_heap *h)
{
    return h->count > 0 ? h->at[0] : NULL;
}

struct td_heap_node *td_heap_pop_due(struct td_heap *h, int64_t now_us)
{
    struct td_heap_node *n = td_heap_peek(h);
    if (n == NULL || n->at_us > now_us) {
        return NULL;
    }
    td_heap_remove(h, n);
    return n;
}

size_t td_heap_count(const struct td_heap *h)
{
    return h->count;
}
