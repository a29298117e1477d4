#include "common/base/arena.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

static void allocations_are_zeroed_aligned_and_apart(void **state)
{
    static const unsigned char zeros[300];
    unsigned char *got[200];
    (void)state;
    struct td_arena *a = td_arena_create((size_t)1 << 20);
    struct td_rng r = {1};
    for (size_t i = 0; i < 200; i++) {
        got[i] = td_arena_alloc(a, 300);
        assert_non_null(got[i]);
        assert_int_equal((uintptr_t)got[i] % 16, 0);
        assert_memory_equal(got[i], zeros, 300);
        memset(got[i], (int)(td_rng_next(&r) | 1) & 0xff, 300);
    }
    r.state = 1;
    for (size_t i = 0; i < 200; i++) {
        unsigned char want = (unsigned char)((td_rng_next(&r) | 1) & 0xff);
        assert_int_equal(got[i][0], want);
        assert_int_equal(got[i][299], want);
    }
    assert_int_equal(td_arena_used(a), 200 * 300);
    assert_null(td_arena_destroy(a));
}

static void the_maximum_is_met_and_not_passed(void **state)
{
    (void)state;
    struct td_arena *a = td_arena_create(1024);
    assert_non_null(td_arena_alloc(a, 1000));
    assert_null(td_arena_alloc(a, 64));
    assert_null(td_arena_alloc(a, 2000));
    assert_null(td_arena_alloc(a, SIZE_MAX));
    td_arena_reset(a);
    assert_non_null(td_arena_alloc(a, 1024));
    assert_null(td_arena_alloc(a, 1));
    (void)td_arena_destroy(a);
}

static void a_steady_state_allocates_nothing(void **state)
{
    (void)state;
    struct td_arena *a = td_arena_create((size_t)4 << 20);
    for (int round = 0; round < 10; round++) {
        td_mem_fail_nth(round == 0 ? 0 : 1);
        struct td_rng r = {3};
        for (int i = 0; i < 1000; i++) {
            assert_non_null(td_arena_alloc(a, (size_t)td_rng_below(&r, 3000)));
        }
        td_arena_reset(a);
        assert_int_equal(td_arena_used(a), 0);
    }
    td_mem_fail_nth(0);
    (void)td_arena_destroy(a);
}

static void big_and_copied_things_fit(void **state)
{
    (void)state;
    struct td_arena *a = td_arena_create((size_t)1 << 20);
    char *big = td_arena_alloc(a, 200000);
    assert_non_null(big);
    big[199999] = 'x';
    assert_string_equal(td_arena_copy(a, "copied", 7), "copied");
    uint32_t *numbers = TD_ARENA_ARRAY(a, uint32_t, 10);
    assert_non_null(numbers);
    assert_int_equal(numbers[9], 0);
    assert_int_equal(*TD_ARENA_NEW(a, uint32_t), 0);
    (void)td_arena_destroy(a);
}

static void every_failing_allocation_is_survived(void **state)
{
    bool done = false;
    (void)state;
    for (unsigned n = 1; !done; n++) {
        td_mem_fail_nth(n);
        struct td_arena *a = td_arena_create((size_t)1 << 20);
        done = a != NULL && td_arena_alloc(a, 10) != NULL && td_arena_alloc(a, 100000) != NULL;
        td_mem_fail_nth(0);
        assert_null(td_arena_destroy(a));
        assert_true(done == (n == 4));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocations_are_zeroed_aligned_and_apart),
        cmocka_unit_test(the_maximum_is_met_and_not_passed),
        cmocka_unit_test(a_steady_state_allocates_nothing),
        cmocka_unit_test(big_and_copied_things_fit),
        cmocka_unit_test(every_failing_allocation_is_survived),
    };
    return cmocka_run_group_tests_name("base/arena", tests, NULL, NULL);
}
