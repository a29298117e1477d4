#define TD_LOG_ROOM "kv"
#include "common/kv/pool.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/base/assert.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"

#define NO_BLOCK UINT32_MAX
#define BIT(s)   (1u << (unsigned)(s))

struct block {
    td_kv_owner owner;   /* 0: free or cached */
    int64_t deadline_us; /* TD_NEVER: free or cached */
    uint32_t generation; /* of the present tenancy */
    uint32_t next_free;  /* NO_BLOCK: end of the list, or not free */
    enum td_blk_state state;
};

struct td_kv_pool {
    struct block *blocks; /* owned [size] */
    uint32_t size;
    uint32_t free_head;
    uint32_t count[TD_BLK_STATES];
};

/* The only legal changes of state; cached and parked are walked by later features. */
static const unsigned edges[TD_BLK_STATES] = {
    [TD_BLK_FREE] = BIT(TD_BLK_RESERVED) | BIT(TD_BLK_FILLING) | BIT(TD_BLK_RUNNING),
    [TD_BLK_CACHED] = BIT(TD_BLK_RUNNING) | BIT(TD_BLK_FILLING) | BIT(TD_BLK_FREE),
    [TD_BLK_RESERVED] = BIT(TD_BLK_FILLING) | BIT(TD_BLK_RUNNING) | BIT(TD_BLK_PARKED) |
                        BIT(TD_BLK_QUARANTINED) | BIT(TD_BLK_FREE),
    [TD_BLK_FILLING] = BIT(TD_BLK_RUNNING) | BIT(TD_BLK_PARKED) | BIT(TD_BLK_QUARANTINED) |
                       BIT(TD_BLK_CACHED) | BIT(TD_BLK_FREE),
    [TD_BLK_RUNNING] =
        BIT(TD_BLK_PARKED) | BIT(TD_BLK_QUARANTINED) | BIT(TD_BLK_CACHED) | BIT(TD_BLK_FREE),
    [TD_BLK_PARKED] = BIT(TD_BLK_FILLING) | BIT(TD_BLK_RUNNING) | BIT(TD_BLK_QUARANTINED) |
                      BIT(TD_BLK_CACHED) | BIT(TD_BLK_FREE),
    [TD_BLK_QUARANTINED] = BIT(TD_BLK_FREE),
};

static const char *const names[TD_BLK_STATES] = {
    [TD_BLK_FREE] = "free",
    [TD_BLK_CACHED] = "cached",
    [TD_BLK_RESERVED] = "reserved",
    [TD_BLK_FILLING] = "filling",
    [TD_BLK_RUNNING] = "running",
    [TD_BLK_PARKED] = "parked",
    [TD_BLK_QUARANTINED] = "quarantined",
};

td_err td_kv_pool_create(uint32_t n_blocks, struct td_kv_pool **out_pool)
{
    TD_REQUIRE(out_pool != NULL);
    if (n_blocks == 0 || n_blocks > TD_KV_POOL_MAX_BLOCKS) {
        return TD_ERR_CONFIG;
    }
    struct td_kv_pool *p = td_zalloc(1, sizeof *p);
    if (p == NULL) {
        return TD_ERR_NO_MEMORY;
    }
    p->blocks = td_zalloc(n_blocks, sizeof *p->blocks);
    if (p->blocks == NULL) {
        (void)td_kv_pool_destroy(p);
        return TD_ERR_NO_MEMORY;
    }
    p->size = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++) {
        p->blocks[i] = (struct block){.deadline_us = TD_NEVER,
                                      .generation = 1,
                                      .next_free = i + 1 < n_blocks ? i + 1 : NO_BLOCK};
    }
    p->count[TD_BLK_FREE] = n_blocks;
    *out_pool = p;
    return TD_OK;
}

struct td_kv_pool *td_kv_pool_destroy(struct td_kv_pool *p)
{
    if (p != NULL) {
        free(p->blocks);
        free(p);
    }
    return NULL;
}

static bool edge_ok(enum td_blk_state from, enum td_blk_state to)
{
    return from == to || (edges[from] & BIT(to)) != 0;
}

/* The one place where a block changes its state. */
static void set_state(struct td_kv_pool *p, struct block *b, enum td_blk_state to)
{
    TD_INSIST(edge_ok(b->state, to));
    TD_INSIST(p->count[b->state] > 0);
    p->count[b->state]--;
    p->count[to]++;
    b->state = to;
}

#ifdef TD_BUG_DOUBLE_GRANT
/* Planted: while something is quarantined, the last block of a grant is a running one of somebody
 * else. The pool's own books stay in order. */
static uint32_t steal_block(struct td_kv_pool *p, td_kv_owner owner)
{
    for (uint32_t i = 0; i < p->size; i++) {
        struct block *b = &p->blocks[i];
        if (b->state == TD_BLK_RUNNING && b->owner != owner) {
            b->owner = owner;
            return i;
        }
    }
    return NO_BLOCK;
}
#endif

static void grant(struct td_kv_pool *p, uint32_t id, td_kv_owner owner, enum td_blk_state state,
                  int64_t deadline_us)
{
    struct block *b = &p->blocks[id];
    TD_INSIST(b->state == TD_BLK_FREE && b->owner == 0);
    p->free_head = b->next_free;
    b->next_free = NO_BLOCK;
    b->owner = owner;
    b->deadline_us = deadline_us;
    set_state(p, b, state);
}

td_err td_kv_pool_take(struct td_kv_pool *p, td_kv_owner owner, enum td_blk_state state,
                       int64_t deadline_us, uint32_t n, uint32_t *out_ids)
{
    TD_REQUIRE(owner != 0 && deadline_us != TD_NEVER);
    TD_REQUIRE(state != TD_BLK_FREE && edge_ok(TD_BLK_FREE, state));
    if (n > p->count[TD_BLK_FREE]) {
        return TD_ERR_NO_CAPACITY;
    }
    for (uint32_t i = 0; i < n; i++) {
#ifdef TD_BUG_DOUBLE_GRANT
        out_ids[i] =
            i + 1 == n && p->count[TD_BLK_QUARANTINED] > 0 ? steal_block(p, owner) : NO_BLOCK;
        if (out_ids[i] != NO_BLOCK) {
            break;
        }
#endif
        out_ids[i] = p->free_head;
        grant(p, p->free_head, owner, state, deadline_us);
    }
    return TD_OK;
}

/* Whether every block is the owner's and may go to `to`. */
static bool may_move(const struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n,
                     enum td_blk_state to)
{
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= p->size || p->blocks[ids[i]].owner != owner ||
            !edge_ok(p->blocks[ids[i]].state, to)) {
            return false;
        }
    }
    return true;
}

td_err td_kv_pool_move(struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n,
                       enum td_blk_state state, int64_t deadline_us)
{
    TD_REQUIRE(owner != 0 && deadline_us != TD_NEVER);
    TD_REQUIRE(state != TD_BLK_FREE && state != TD_BLK_CACHED);
    if (!may_move(p, owner, ids, n, state)) {
        return TD_ERR_STALE;
    }
    for (uint32_t i = 0; i < n; i++) {
        set_state(p, &p->blocks[ids[i]], state);
        p->blocks[ids[i]].deadline_us = deadline_us;
    }
    return TD_OK;
}

td_err td_kv_pool_release(struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n)
{
    TD_REQUIRE(owner != 0);
    if (!may_move(p, owner, ids, n, TD_BLK_FREE)) {
        return TD_ERR_STALE;
    }
    /* Backwards, so that the next taker gets them in their old order. A block named twice is seen
     * at its second turn, when it is nobody's. */
    for (uint32_t i = n; i-- > 0;) {
        struct block *b = &p->blocks[ids[i]];
        if (b->owner != owner) {
            return TD_ERR_STALE;
        }
        set_state(p, b, TD_BLK_FREE);
        b->owner = 0;
        b->deadline_us = TD_NEVER;
        b->generation++;
        b->next_free = p->free_head;
        p->free_head = ids[i];
    }
    return TD_OK;
}

struct td_block_ref td_kv_pool_ref(const struct td_kv_pool *p, uint32_t id)
{
    TD_REQUIRE(id < p->size);
    return (struct td_block_ref){id, p->blocks[id].generation};
}

bool td_kv_pool_holds(const struct td_kv_pool *p, td_kv_owner owner, struct td_block_ref ref)
{
    return owner != 0 && ref.index < p->size && p->blocks[ref.index].owner == owner &&
           p->blocks[ref.index].generation == ref.generation;
}

enum td_blk_state td_kv_pool_state(const struct td_kv_pool *p, uint32_t id)
{
    TD_REQUIRE(id < p->size);
    return p->blocks[id].state;
}

td_kv_owner td_kv_pool_owner(const struct td_kv_pool *p, uint32_t id)
{
    TD_REQUIRE(id < p->size);
    return p->blocks[id].owner;
}

int64_t td_kv_pool_deadline(const struct td_kv_pool *p, uint32_t id)
{
    TD_REQUIRE(id < p->size);
    return p->blocks[id].deadline_us;
}

uint32_t td_kv_pool_size(const struct td_kv_pool *p)
{
    return p->size;
}

uint32_t td_kv_pool_count(const struct td_kv_pool *p, enum td_blk_state state)
{
    TD_REQUIRE((unsigned)state < TD_BLK_STATES);
    return p->count[state];
}

uint32_t td_kv_pool_held(const struct td_kv_pool *p)
{
    return p->size - p->count[TD_BLK_FREE] - p->count[TD_BLK_CACHED];
}

bool td_kv_pool_owns(const struct td_kv_pool *p, td_kv_owner owner, const uint32_t *ids, uint32_t n,
                     unsigned states)
{
    for (uint32_t i = 0; i < n; i++) {
        if (td_kv_pool_owner(p, ids[i]) != owner ||
            (states & 1u << (unsigned)td_kv_pool_state(p, ids[i])) == 0) {
            return false;
        }
    }
    return true;
}

uint32_t td_kv_pool_overdue(const struct td_kv_pool *p, int64_t now_us)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->size; i++) {
        n += p->blocks[i].deadline_us < now_us;
    }
    return n;
}

const char *td_kv_state_name(enum td_blk_state s)
{
    return (unsigned)s < TD_BLK_STATES ? names[s] : "?";
}

static bool held(enum td_blk_state s)
{
    return s != TD_BLK_FREE && s != TD_BLK_CACHED;
}

td_err td_kv_pool_check(const struct td_kv_pool *p)
{
    uint32_t count[TD_BLK_STATES] = {0};
    for (uint32_t i = 0; i < p->size; i++) {
        const struct block *b = &p->blocks[i];
        if ((unsigned)b->state >= TD_BLK_STATES || held(b->state) != (b->owner != 0) ||
            held(b->state) != (b->deadline_us != TD_NEVER)) {
            TD_LOG(ERROR, "kv block breaks the ledger", "block=%u state=%d owner=%" PRIx64, i,
                   (int)b->state, b->owner);
            return TD_ERR_INTERNAL;
        }
        count[b->state]++;
    }
    for (unsigned s = 0; s < TD_BLK_STATES; s++) {
        if (count[s] != p->count[s]) {
            TD_LOG(ERROR, "kv states do not sum up", "state=%s counted=%u kept=%u", names[s],
                   count[s], p->count[s]);
            return TD_ERR_INTERNAL;
        }
    }
    uint32_t listed = 0;
    uint32_t id = p->free_head;
    for (; id != NO_BLOCK && listed <= p->size; id = p->blocks[id].next_free, listed++) {
        if (id >= p->size || p->blocks[id].state != TD_BLK_FREE) {
            break;
        }
    }
    if (id != NO_BLOCK || listed != count[TD_BLK_FREE]) {
        TD_LOG(ERROR, "kv free list is broken", "listed=%u free=%u", listed, count[TD_BLK_FREE]);
        return TD_ERR_INTERNAL;
    }
    return TD_OK;
}
