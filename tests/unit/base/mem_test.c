#include "common/base/mem.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/unit/check.h"

static int destroyed;

static int *number_destroy(int *p)
{
    if (p != NULL) {
        destroyed++;
        free(p);
    }
    return NULL;
}
TD_DEFINE_CLEANUP(int, number_destroy)

static int *make(bool keep)
{
    TD_CLEANUP(number_destroyp) int *p = td_zalloc(1, sizeof *p);
    return keep ? TD_STEAL(p) : NULL;
}

static void cleanup_destroys_at_scope_end_unless_stolen(void **state)
{
    (void)state;
    destroyed = 0;
    assert_null(make(false));
    assert_int_equal(destroyed, 1);
    int *kept = make(true);
    assert_non_null(kept);
    assert_int_equal(destroyed, 1);
    number_destroy(kept);
}

static void memory_comes_zeroed_and_overflow_is_refused(void **state)
{
    static const unsigned char zeros[256];
    (void)state;
    TD_CLEANUP(td_freep) unsigned char *p = td_zalloc(16, 16);
    assert_memory_equal(p, zeros, sizeof zeros);
    volatile size_t huge = SIZE_MAX / 2;
    assert_null(td_zalloc(huge, 3));
}

static void zero_sized_requests_return_memory(void **state)
{
    (void)state;
    TD_CLEANUP(td_freep) void *a = td_zalloc(0, 8);
    TD_CLEANUP(td_freep) void *b = td_realloc(NULL, 0);
    assert_non_null(a);
    assert_non_null(b);
}

static void aligned_memory_is_aligned_and_zeroed(void **state)
{
    static const unsigned char zeros[1000];
    (void)state;
    for (size_t align = 64; align <= 4096; align *= 2) {
        void *p = td_zalloc_aligned(align, sizeof zeros);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % align, 0);
        assert_memory_equal(p, zeros, sizeof zeros);
        free(p);
    }
    CHECK_ABORTS(free(td_zalloc_aligned(48, 8)));
}

static void exactly_the_nth_allocation_fails(void **state)
{
    (void)state;
    td_mem_fail_nth(3);
    for (int i = 1; i <= 5; i++) {
        char *p = td_strdup("text");
        assert_true((p == NULL) == (i == 3));
        free(p);
    }
    td_mem_fail_nth(1);
    td_mem_fail_nth(0);
    char *p = td_strdup("text");
    assert_string_equal(p, "text");
    free(p);
}

static void a_failed_realloc_keeps_the_old_memory(void **state)
{
    (void)state;
    char *p = td_strdup("kept");
    td_mem_fail_nth(1);
    assert_null(td_realloc(p, 1000));
    assert_string_equal(p, "kept");
    char *bigger = td_realloc(p, 1000);
    assert_string_equal(bigger, "kept");
    free(bigger);
}

static void the_fault_point_makes_allocations_fail(void **state)
{
    (void)state;
    assert_int_equal(td_fault_configure("alloc.fail=fail:after=1:times=1"), TD_OK);
    for (int i = 0; i < 3; i++) {
        void *p = td_zalloc(1, 1);
        assert_true((p == NULL) == (i == 1));
        free(p);
    }
    td_fault_reset();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cleanup_destroys_at_scope_end_unless_stolen),
        cmocka_unit_test(memory_comes_zeroed_and_overflow_is_refused),
        cmocka_unit_test(zero_sized_requests_return_memory),
        cmocka_unit_test(aligned_memory_is_aligned_and_zeroed),
        cmocka_unit_test(exactly_the_nth_allocation_fails),
        cmocka_unit_test(a_failed_realloc_keeps_the_old_memory),
        cmocka_unit_test(the_fault_point_makes_allocations_fail),
    };
    return cmocka_run_group_tests_name("base/mem", tests, NULL, NULL);
}
