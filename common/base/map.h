/* map.h - a fixed-capacity hash map from a 64-bit or 128-bit key to a pointer or index; open
 * addressing, no allocation after creation. Values are not NULL (store an index as index + 1). Keys
 * are mixed with a per-map seed. Iteration order is not defined: nothing may depend on it.
 */
#ifndef TD_BASE_MAP_H
#define TD_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"

struct td_key {
    uint64_t a, b;
};
struct td_map;

struct td_map *td_map_create(size_t capacity, uint64_t seed);
struct td_map *td_map_destroy(struct td_map *m);
/* TD_ERR_FULL at capacity; replaces an existing value. */
td_err td_map_put(struct td_map *m, struct td_key k, void *value) TD_MUST_CHECK;
void *td_map_get(const struct td_map *m, struct td_key k);
/* Returns the removed value, or NULL. */
void *td_map_del(struct td_map *m, struct td_key k);
size_t td_map_count(const struct td_map *m);

#endif
