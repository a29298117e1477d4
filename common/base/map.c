#include "common/base/map.h"

#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

/* Linear probing with backward-shift deletion: no tombstones, so a map that lives for months does
 * not slow down. */
struct slot {
    struct td_key key;
    void *value; /* borrowed; NULL: free */
};

struct td_map {
    struct slot *slots; /* owned [mask + 1], at least 4/3 of capacity */
    size_t mask;
    size_t capacity;
    size_t count;
    uint64_t seed;
};

struct td_map *td_map_create(size_t capacity, uint64_t seed)
{
    TD_REQUIRE(capacity > 0 && capacity <= SIZE_MAX / 8);
    size_t n = 8;
    while (n < capacity + capacity / 3 + 1) {
        n *= 2;
    }
    struct td_map *m = td_zalloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    m->slots = td_zalloc(n, sizeof *m->slots);
    if (m->slots == NULL) {
        return td_map_destroy(m);
    }
    m->mask = n - 1;
    m->capacity = capacity;
    m->seed = seed;
    return m;
}

struct td_map *td_map_destroy(struct td_map *m)
{
    if (m != NULL) {
        free(m->slots);
        free(m);
    }
    return NULL;
}

static size_t home(const struct td_map *m, struct td_key k)
{
    return (size_t)td_mix64(td_mix64(k.a ^ m->seed) + k.b) & m->mask;
}

/* The slot that holds k, or the free one where it belongs. */
static size_t find(const struct td_map *m, struct td_key k)
{
    size_t i = home(m, k);
    while (m->slots[i].value != NULL && (m->slots[i].key.a != k.a || m->slots[i].key.b != k.b)) {
        i = (i + 1) & m->mask;
    }
    return i;
}

td_err td_map_put(struct td_map *m, struct td_key k, void *value)
{
    TD_REQUIRE(value != NULL);
    size_t i = find(m, k);
    if (m->slots[i].value == NULL) {
        if (m->count == m->capacity) {
            return TD_ERR_FULL;
        }
        m->count++;
    }
    m->slots[i] = (struct slot){k, value};
    return TD_OK;
}

void *td_map_get(const struct td_map *m, struct td_key k)
{
    return m->slots[find(m, k)].value;
}

void *td_map_del(struct td_map *m, struct td_key k)
{
    size_t hole = find(m, k);
    void *removed = m->slots[hole].value;
    if (removed == NULL) {
        return NULL;
    }
    /* Move back every follower whose home is not between the hole and its place (cyclically). */
    for (size_t i = (hole + 1) & m->mask; m->slots[i].value != NULL; i = (i + 1) & m->mask) {
        size_t from_home = (i - home(m, m->slots[i].key)) & m->mask;
        if (from_home >= ((i - hole) & m->mask)) {
            m->slots[hole] = m->slots[i];
            hole = i;
        }
    }
    m->slots[hole].value = NULL;
    m->count--;
    return removed;
}

size_t td_map_count(const struct td_map *m)
{
    return m->count;
}
