#include "common/kv/pool.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define N     64u
#define OWNER 7u

static struct td_kv_pool *pool_of(uint32_t n)
{
    struct td_kv_pool *p = NULL;
    assert_int_equal(td_kv_pool_create(n, &p), TD_OK);
    return p;
}

static void a_new_pool_is_free_and_adds_up(void **state)
{
    (void)state;
    struct td_kv_pool *p = pool_of(N);
    assert_int_equal(td_kv_pool_size(p), N);
    assert_int_equal(td_kv_pool_count(p, TD_BLK_FREE), N);
    assert_int_equal(td_kv_pool_check(p), TD_OK);
    assert_null(td_kv_pool_destroy(p));
    struct td_kv_pool *none = NULL;
    assert_int_equal(td_kv_pool_create(0, &none), TD_ERR_CONFIG);
    assert_int_equal(td_kv_pool_create(TD_KV_POOL_MAX_BLOCKS + 1, &none), TD_ERR_CONFIG);
}

static void taking_is_all_or_nothing(void **state)
{
    uint32_t ids[N + 1];
    (void)state;
    struct td_kv_pool *p = pool_of(N);
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 5, N + 1, ids), TD_ERR_NO_CAPACITY);
    assert_int_equal(td_kv_pool_count(p, TD_BLK_FREE), N);
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 5, N, ids), TD_OK);
    assert_int_equal(td_kv_pool_count(p, TD_BLK_RESERVED), N);
    assert_int_equal(td_kv_pool_take(p, OWNER + 1, TD_BLK_RUNNING, 5, 1, ids), TD_ERR_NO_CAPACITY);
    assert_int_equal(td_kv_pool_check(p), TD_OK);
    (void)td_kv_pool_destroy(p);
}

static void nobody_can_move_or_release_blocks_of_another(void **state)
{
    uint32_t ids[4];
    (void)state;
    struct td_kv_pool *p = pool_of(N);
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_FILLING, 5, 4, ids), TD_OK);
    assert_int_equal(td_kv_pool_move(p, OWNER + 1, ids, 4, TD_BLK_RUNNING, 9), TD_ERR_STALE);
    assert_int_equal(td_kv_pool_release(p, OWNER + 1, ids, 4), TD_ERR_STALE);
    uint32_t wild[1] = {N};
    assert_int_equal(td_kv_pool_release(p, OWNER, wild, 1), TD_ERR_STALE);
    assert_int_equal(td_kv_pool_count(p, TD_BLK_FILLING), 4);
    assert_int_equal(td_kv_pool_release(p, OWNER, ids, 4), TD_OK);
    assert_int_equal(td_kv_pool_release(p, OWNER, ids, 4), TD_ERR_STALE);
    assert_int_equal(td_kv_pool_check(p), TD_OK);
    (void)td_kv_pool_destroy(p);
}

static void generations_tell_tenancies_apart(void **state)
{
    uint32_t ids[1];
    (void)state;
    struct td_kv_pool *p = pool_of(1);
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 5, 1, ids), TD_OK);
    struct td_block_ref old = td_kv_pool_ref(p, ids[0]);
    assert_true(td_kv_pool_holds(p, OWNER, old));
    assert_int_equal(td_kv_pool_release(p, OWNER, ids, 1), TD_OK);
    assert_false(td_kv_pool_holds(p, OWNER, old));
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 5, 1, ids), TD_OK);
    assert_false(td_kv_pool_holds(p, OWNER, old));
    assert_false(td_kv_pool_holds(p, OWNER, (struct td_block_ref){99, 1}));
    assert_true(td_kv_pool_holds(p, OWNER, td_kv_pool_ref(p, ids[0])));
    (void)td_kv_pool_destroy(p);
}

/* The table of pool.h, written down a second time on purpose. */
static const char legal[TD_BLK_STATES][TD_BLK_STATES + 1] = {
    /*                free cached reserved filling running parked quarantined */
    [TD_BLK_RESERVED] = "1011111", [TD_BLK_FILLING] = "1101111",     [TD_BLK_RUNNING] = "1100111",
    [TD_BLK_PARKED] = "1101111",   [TD_BLK_QUARANTINED] = "1000001",
};

/* Brings a fresh block into a state by legal moves. */
static void bring(struct td_kv_pool *p, uint32_t *id, enum td_blk_state to)
{
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 5, 1, id), TD_OK);
    if (to != TD_BLK_RESERVED) {
        assert_int_equal(td_kv_pool_move(p, OWNER, id, 1, to, 5), TD_OK);
    }
}

static void every_edge_is_legal_or_refused(void **state)
{
    (void)state;
    for (unsigned from = TD_BLK_RESERVED; from < TD_BLK_STATES; from++) {
        for (unsigned to = 0; to < TD_BLK_STATES; to++) {
            uint32_t id;
            struct td_kv_pool *p = pool_of(2);
            bring(p, &id, (enum td_blk_state)from);
            td_err want = legal[from][to] == '1' ? TD_OK : TD_ERR_STALE;
            if (to == TD_BLK_FREE) {
                assert_int_equal(td_kv_pool_release(p, OWNER, &id, 1), want);
            } else if (to != TD_BLK_CACHED) { /* a later feature; no door leads there yet */
                assert_int_equal(td_kv_pool_move(p, OWNER, &id, 1, (enum td_blk_state)to, 6), want);
            }
            assert_int_equal(td_kv_pool_check(p), TD_OK);
            (void)td_kv_pool_destroy(p);
        }
    }
}

static void held_blocks_show_their_owner_and_deadline(void **state)
{
    uint32_t ids[3];
    (void)state;
    struct td_kv_pool *p = pool_of(N);
    assert_int_equal(td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, 100, 3, ids), TD_OK);
    assert_int_equal(td_kv_pool_owner(p, ids[1]), OWNER);
    assert_int_equal(td_kv_pool_deadline(p, ids[1]), 100);
    assert_int_equal(td_kv_pool_overdue(p, 100), 0);
    assert_int_equal(td_kv_pool_overdue(p, 101), 3);
    assert_int_equal(td_kv_pool_move(p, OWNER, ids, 3, TD_BLK_RESERVED, 200), TD_OK);
    assert_int_equal(td_kv_pool_overdue(p, 101), 0);
    unsigned reserved = 1u << TD_BLK_RESERVED;
    assert_int_equal(td_kv_pool_held(p), 3);
    assert_true(td_kv_pool_owns(p, OWNER, ids, 3, reserved | 1u << TD_BLK_FILLING));
    assert_false(td_kv_pool_owns(p, OWNER, ids, 3, 1u << TD_BLK_FILLING)); /* another state */
    assert_false(td_kv_pool_owns(p, OWNER + 1, ids, 3, reserved));
    assert_int_equal(td_kv_pool_release(p, OWNER, &ids[2], 1), TD_OK);
    assert_int_equal(td_kv_pool_held(p), 2);
    assert_true(td_kv_pool_owns(p, OWNER, ids, 2, reserved));
    assert_false(td_kv_pool_owns(p, OWNER, ids, 3, reserved)); /* the last is nobody's */
    assert_int_equal(td_kv_pool_release(p, OWNER, ids, 2), TD_OK);
    assert_int_equal(td_kv_pool_owner(p, ids[1]), 0);
    assert_true(td_kv_pool_deadline(p, ids[1]) == TD_NEVER);
    (void)td_kv_pool_destroy(p);
}

static void a_holder_needs_a_name_and_a_deadline(void **state)
{
    uint32_t ids[1];
    (void)state;
    struct td_kv_pool *p = pool_of(N);
    CHECK_ABORTS((void)!td_kv_pool_take(p, 0, TD_BLK_RESERVED, 5, 1, ids));
    CHECK_ABORTS((void)!td_kv_pool_take(p, OWNER, TD_BLK_RESERVED, TD_NEVER, 1, ids));
    CHECK_ABORTS((void)!td_kv_pool_take(p, OWNER, TD_BLK_QUARANTINED, 5, 1, ids));
    (void)td_kv_pool_destroy(p);
}

/* Random owners take, move and release for a long time; a shadow of who holds what must agree. */
static void the_ledger_agrees_with_a_shadow_after_random_moves(void **state)
{
    enum { OWNERS = 8, MOVES = 4000 };
    static const enum td_blk_state moves[] = {TD_BLK_RESERVED, TD_BLK_FILLING, TD_BLK_RUNNING,
                                              TD_BLK_PARKED, TD_BLK_QUARANTINED};
    (void)state;
    struct td_rng r = {42};
    struct td_kv_pool *p = pool_of(N);
    uint32_t held[OWNERS][N];
    uint32_t n[OWNERS] = {0};
    for (int i = 0; i < MOVES; i++) {
        unsigned o = (unsigned)td_rng_below(&r, OWNERS);
        uint32_t want = (uint32_t)td_rng_below(&r, 12);
        uint32_t total = 0;
        for (unsigned k = 0; k < OWNERS; k++) {
            total += n[k];
        }
        switch (td_rng_below(&r, 3)) {
        case 0:
            if (total + want <= N) {
                assert_int_equal(
                    td_kv_pool_take(p, o + 1, TD_BLK_RESERVED, i + 1, want, &held[o][n[o]]), TD_OK);
                n[o] += want;
            }
            break;
        case 1:
            (void)!td_kv_pool_move(p, o + 1, held[o], n[o], moves[td_rng_below(&r, 5)], i + 1);
            break;
        default:
            assert_int_equal(td_kv_pool_release(p, o + 1, held[o], n[o]), TD_OK);
            n[o] = 0;
        }
        assert_int_equal(td_kv_pool_check(p), TD_OK);
        for (unsigned k = 0; k < OWNERS; k++) {
            for (uint32_t b = 0; b < n[k]; b++) {
                assert_int_equal(td_kv_pool_owner(p, held[k][b]), k + 1);
            }
        }
    }
    (void)td_kv_pool_destroy(p);
}

#if TD_WITH_FAULTS
static void creation_survives_every_failed_allocation(void **state)
{
    (void)state;
    td_err e = TD_ERR_NO_MEMORY;
    for (unsigned nth = 1; e != TD_OK; nth++) {
        struct td_kv_pool *p = NULL;
        td_mem_fail_nth(nth);
        e = td_kv_pool_create(N, &p);
        assert_true(e == TD_OK || e == TD_ERR_NO_MEMORY);
        (void)td_kv_pool_destroy(p);
    }
    td_mem_fail_nth(0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_pool_is_free_and_adds_up),
        cmocka_unit_test(taking_is_all_or_nothing),
        cmocka_unit_test(nobody_can_move_or_release_blocks_of_another),
        cmocka_unit_test(generations_tell_tenancies_apart),
        cmocka_unit_test(every_edge_is_legal_or_refused),
        cmocka_unit_test(held_blocks_show_their_owner_and_deadline),
        cmocka_unit_test(a_holder_needs_a_name_and_a_deadline),
        cmocka_unit_test(the_ledger_agrees_with_a_shadow_after_random_moves),
#if TD_WITH_FAULTS
        cmocka_unit_test(creation_survives_every_failed_allocation),
#endif
    };
    return cmocka_run_group_tests_name("kv/pool", tests, NULL, NULL);
}
