/* arena.h - scratch memory of one step: allocate many small things, free all at once.
 *
 * Bounds: grows in chunks up to `max_bytes`, keeps its chunks across resets, so a steady state
 * allocates nothing. Failure: NULL when the maximum or memory is reached. Thread: its owner's.
 */
#ifndef TD_BASE_ARENA_H
#define TD_BASE_ARENA_H

#include <stddef.h>

struct td_arena;

struct td_arena *td_arena_create(size_t max_bytes);
struct td_arena *td_arena_destroy(struct td_arena *a);
/* Zeroed, aligned to 16. NULL when full. */
void *td_arena_alloc(struct td_arena *a, size_t bytes);
void *td_arena_copy(struct td_arena *a, const void *src, size_t bytes);
void td_arena_reset(struct td_arena *a);
size_t td_arena_used(const struct td_arena *a);

#define TD_ARENA_NEW(a, type)          ((type *)td_arena_alloc((a), sizeof(type)))
#define TD_ARENA_ARRAY(a, type, count) ((type *)td_arena_alloc((a), sizeof(type) * (size_t)(count)))

#endif
