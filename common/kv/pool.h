/* pool.h - the ownership ledger of the KV blocks: who holds which block, in which state, until
 * when.
 *
 * What: every block is in exactly one state of enum td_blk_state. A block that is neither free nor
 * cached has one owner (a nonzero handle of the role's choosing) and one deadline. A block's
 * generation grows each time an owner lets go of it, so {index, generation} names one tenancy of a
 * block everywhere outside the pool, and a stale reference is seen.
 * Not: the memory (the engine's backend owns it), the timers (the role's core arms one per
 * sequence; the deadline kept here is what the ledger shows and check() demands), the prefix tree.
 * Owner: one role core. Thread: the loop's. Bounds: TD_KV_POOL_MAX_BLOCKS, fixed at creation; no
 * allocation afterwards; every call is O(blocks named).
 * Failure: TD_ERR_NO_CAPACITY when too few blocks are free, TD_ERR_STALE when a block is not the
 * caller's or the edge is not in the table; on failure nothing has changed.
 *
 * Edges (pool.c: edges[]):
 *   free        -> reserved, filling, running   take
 *   cached      -> running, filling, free       hit (prefix tree), evict
 *   reserved    -> filling, running, parked, quarantined, free
 *   filling     -> running, parked, quarantined, cached, free
 *   running     -> parked, quarantined, cached, free
 *   parked      -> filling, running, quarantined, cached, free
 *   quarantined -> free                         only once nobody can read or write it any more
 */
#ifndef TD_KV_POOL_H
#define TD_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/err.h"
#include "proto/wire.h"

#define TD_KV_POOL_MAX_BLOCKS (1u << 26)

typedef uint64_t td_kv_owner; /* 0: nobody */

struct td_kv_pool;

td_err td_kv_pool_create(uint32_t n_blocks, struct td_kv_pool **out_pool) TD_MUST_CHECK;
struct td_kv_pool *td_kv_pool_destroy(struct td_kv_pool *p);

/* Takes n free blocks, all or none; the most recently freed first. `state` is reserved, filling or
 * running. */
td_err td_kv_pool_take(struct td_kv_pool *p, td_kv_owner owner, enum td_blk_state state,
                       int64_t deadline_us, uint32_t n, uint32_t *out_ids) TD_MUST_CHECK;
/* Moves n blocks of `owner` to another state (not free, not cached) under a new deadline, all or
 * none; the same state only renews the deadline. */
td_err td_kv_pool_move(struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n,
                       enum td_blk_state state, int64_t deadline_us) TD_MUST_CHECK;
/* `owner` lets go of n blocks, all or none; they are free and their generations have grown. */
td_err td_kv_pool_release(struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids,
                          uint32_t n) TD_MUST_CHECK;

/* The name of the block's present tenancy. */
struct td_block_ref td_kv_pool_ref(const struct td_kv_pool *p, uint32_t id);
/* Whether `ref` still names a block of `owner`. Any ref is legal. */
bool td_kv_pool_holds(const struct td_kv_pool *p, td_kv_owner owner, struct td_block_ref ref);
/* State, owner and deadline of one block (`id` below size). */
enum td_blk_state td_kv_pool_state(const struct td_kv_pool *p, uint32_t id);
td_kv_owner td_kv_pool_owner(const struct td_kv_pool *p, uint32_t id);
int64_t td_kv_pool_deadline(const struct td_kv_pool *p, uint32_t id);

uint32_t td_kv_pool_size(const struct td_kv_pool *p);
uint32_t td_kv_pool_count(const struct td_kv_pool *p, enum td_blk_state state);
/* Blocks that somebody holds: neither free nor cached. */
uint32_t td_kv_pool_held(const struct td_kv_pool *p);
/* True when each of the `n` blocks is `owner`'s, in a state whose bit (1u << state) `states` has. */
bool td_kv_pool_owns(const struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n,
                     unsigned states);
/* Number of blocks held past their deadline at `now`; O(size): tests and the simulator. */
uint32_t td_kv_pool_overdue(const struct td_kv_pool *p, int64_t now_us);
const char *td_kv_state_name(enum td_blk_state s);

/* Recounts everything: states sum to the pool, the free list holds exactly the free blocks, and
 * exactly the others have an owner and a deadline. TD_ERR_INTERNAL, logged, when not. O(size). */
td_err td_kv_pool_check(const struct td_kv_pool *p) TD_MUST_CHECK;

#endif
