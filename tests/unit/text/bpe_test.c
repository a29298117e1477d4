#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/text/bpe.h"

#define N_BASE 4u /* symbols 0..3; rules make 4, 5, ... */

/* Rules over random pairs of earlier symbols, ids in order of making, ranks shuffled. */
static struct td_text_merges *random_rules(struct td_rng *r, uint32_t n)
{
    struct td_text_merges *m = NULL;
    assert_int_equal(td_text_merges_create(n, &m), TD_OK);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t a = (uint32_t)td_rng_below(r, N_BASE + i);
        const uint32_t b = (uint32_t)td_rng_below(r, N_BASE + i);
        const uint32_t rank = i * 7919u % n; /* n is no multiple of 7919 */
        if (td_text_merges_get(m, a, b).rank == TD_TEXT_NO_RANK) {
            td_text_merges_put(m, a, b, (struct td_text_pair){rank, N_BASE + i});
        }
    }
    return m;
}

/* The definition, slowly. */
static size_t slow(const struct td_text_merges *m, uint32_t *ids, size_t n)
{
    for (;;) {
        size_t best = SIZE_MAX;
        struct td_text_pair to = {TD_TEXT_NO_RANK, 0};
        for (size_t i = 0; i + 1 < n; i++) {
            const struct td_text_pair p = td_text_merges_get(m, ids[i], ids[i + 1]);
            if (p.rank < to.rank) {
                to = p;
                best = i;
            }
        }
        if (best == SIZE_MAX) {
            return n;
        }
        ids[best] = to.id;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void the_scan_and_the_heap_follow_the_definition(void **state)
{
    struct td_rng r = {1};
    struct td_text_bpe b = {0};
    for (int round = 0; round < 400; round++) {
        struct td_text_merges *m = random_rules(&r, 1 + (uint32_t)td_rng_below(&r, 60));
        for (int k = 0; k < 20; k++) {
            uint32_t want[TD_TEXT_SMALL];
            uint32_t small[TD_TEXT_SMALL];
            uint32_t large[TD_TEXT_SMALL];
            const size_t n = 1 + (size_t)td_rng_below(&r, TD_TEXT_SMALL);
            for (size_t i = 0; i < n; i++) {
                want[i] = (uint32_t)td_rng_below(&r, N_BASE);
            }
            memcpy(small, want, sizeof small);
            memcpy(large, want, sizeof large);
            const size_t n_want = slow(m, want, n);
            size_t n_large = 0;
            assert_int_equal(td_text_bpe_small(m, small, n), n_want);
            assert_int_equal(td_text_bpe_large(m, &b, large, n, &n_large), TD_OK);
            assert_int_equal(n_large, n_want);
            assert_memory_equal(small, want, n_want * sizeof *want);
            assert_memory_equal(large, want, n_want * sizeof *want);
        }
        td_text_merges_destroy(m);
    }
    td_text_bpe_fini(&b);
}

static void a_million_equal_symbols_merge_in_pairs_of_pairs(void **state)
{
    const size_t n = 1000001;
    struct td_text_merges *m = NULL;
    struct td_text_bpe b = {0};
    uint32_t *ids = calloc(n, sizeof *ids);
    assert_non_null(ids);
    assert_int_equal(td_text_merges_create(2, &m), TD_OK);
    td_text_merges_put(m, 0, 0, (struct td_text_pair){0, 1});
    td_text_merges_put(m, 1, 1, (struct td_text_pair){1, 2});
    size_t out = 0;
    assert_int_equal(td_text_bpe_large(m, &b, ids, n, &out), TD_OK);
    assert_int_equal(out, 250001);
    assert_int_equal(ids[0], 2);
    assert_int_equal(ids[out - 2], 2);
    assert_int_equal(ids[out - 1], 0);
    td_text_bpe_fini(&b);
    td_text_merges_destroy(m);
    free(ids);
}

static void a_pair_given_twice_takes_the_later_rank(void **state)
{
    struct td_text_merges *m = NULL;
    assert_int_equal(td_text_merges_create(2, &m), TD_OK);
    td_text_merges_put(m, 1, 2, (struct td_text_pair){5, 9});
    td_text_merges_put(m, 1, 2, (struct td_text_pair){6, 9});
    assert_int_equal(td_text_merges_get(m, 1, 2).rank, 6);
    assert_int_equal(td_text_merges_get(m, 2, 1).rank, TD_TEXT_NO_RANK);
    td_text_merges_destroy(m);
}

static void a_failing_allocation_leaves_the_scratch_usable(void **state)
{
#if TD_WITH_FAULTS
    struct td_text_merges *m = NULL;
    struct td_text_bpe b = {0};
    uint32_t ids[3] = {0, 0, 0};
    size_t n = 0;
    for (unsigned nth = 1; nth <= 2; nth++) {
        td_mem_fail_nth(nth);
        assert_int_equal(td_text_merges_create(1, &m), TD_ERR_NO_MEMORY);
        td_mem_fail_nth(0);
    }
    assert_int_equal(td_text_merges_create(1, &m), TD_OK);
    td_text_merges_put(m, 0, 0, (struct td_text_pair){0, 1});
    for (unsigned nth = 1; nth <= 2; nth++) {
        td_mem_fail_nth(nth);
        assert_int_equal(td_text_bpe_large(m, &b, ids, 3, &n), TD_ERR_NO_MEMORY);
        td_mem_fail_nth(0);
    }
    assert_int_equal(td_text_bpe_large(m, &b, ids, 3, &n), TD_OK);
    assert_int_equal(n, 2);
    td_text_bpe_fini(&b);
    td_text_merges_destroy(m);
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scan_and_the_heap_follow_the_definition),
        cmocka_unit_test(a_million_equal_symbols_merge_in_pairs_of_pairs),
        cmocka_unit_test(a_pair_given_twice_takes_the_later_rank),
        cmocka_unit_test(a_failing_allocation_leaves_the_scratch_usable),
    };
    return cmocka_run_group_tests_name("text/bpe", tests, NULL, NULL);
}
