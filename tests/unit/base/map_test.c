#include "common/base/map.h"

#include "common/base/mem.h"
#include "common/base/rng.h"
#include "tests/unit/check.h"

#define KEYS 300

static char values[KEYS];

static struct td_key key(uint64_t i)
{
    return (struct td_key){i / 7, i % 7 << 60};
}

static void a_value_is_found_replaced_and_removed(void **state)
{
    (void)state;
    struct td_map *m = td_map_create(4, 1);
    assert_null(td_map_get(m, key(1)));
    assert_int_equal(td_map_put(m, key(1), &values[1]), TD_OK);
    assert_ptr_equal(td_map_get(m, key(1)), &values[1]);
    assert_int_equal(td_map_put(m, key(1), &values[2]), TD_OK);
    assert_int_equal(td_map_count(m), 1);
    assert_ptr_equal(td_map_del(m, key(1)), &values[2]);
    assert_null(td_map_del(m, key(1)));
    assert_int_equal(td_map_count(m), 0);
    assert_null(td_map_destroy(m));
}

static void the_capacity_is_met_and_not_passed(void **state)
{
    (void)state;
    for (size_t capacity = 1; capacity < 40; capacity++) {
        struct td_map *m = td_map_create(capacity, capacity);
        for (size_t i = 0; i < capacity; i++) {
            assert_int_equal(td_map_put(m, key(i), &values[i]), TD_OK);
        }
        assert_int_equal(td_map_put(m, key(capacity), &values[0]), TD_ERR_FULL);
        assert_int_equal(td_map_put(m, key(0), &values[1]), TD_OK); /* replacing needs no room */
        assert_null(td_map_get(m, key(capacity)));
        (void)td_map_destroy(m);
    }
}

static void random_operations_agree_with_a_plain_table(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        void *want[KEYS] = {0};
        size_t count = 0;
        struct td_rng r = {seed};
        struct td_map *m = td_map_create(KEYS, seed);
        for (int step = 0; step < 5000; step++) {
            size_t i = (size_t)td_rng_below(&r, KEYS);
            if (td_rng_below(&r, 2) == 0) {
                count += want[i] == NULL;
                want[i] = &values[td_rng_below(&r, KEYS)];
                assert_int_equal(td_map_put(m, key(i), want[i]), TD_OK);
            } else {
                count -= want[i] != NULL;
                assert_ptr_equal(td_map_del(m, key(i)), want[i]);
                want[i] = NULL;
            }
            assert_int_equal(td_map_count(m), count);
        }
        for (size_t i = 0; i < KEYS; i++) {
            assert_ptr_equal(td_map_get(m, key(i)), want[i]);
        }
        (void)td_map_destroy(m);
    }
}

static void null_is_not_a_value(void **state)
{
    (void)state;
    struct td_map *m = td_map_create(4, 1);
    CHECK_ABORTS((void)(td_map_put(m, key(1), NULL) == TD_OK));
    (void)td_map_destroy(m);
}

static void every_failing_allocation_yields_null(void **state)
{
    struct td_map *m = NULL;
    (void)state;
    for (unsigned n = 1; m == NULL; n++) {
        td_mem_fail_nth(n);
        m = td_map_create(4, 0);
        td_mem_fail_nth(0);
        assert_true((m != NULL) == (n == 3));
    }
    (void)td_map_destroy(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_value_is_found_replaced_and_removed),
        cmocka_unit_test(the_capacity_is_met_and_not_passed),
        cmocka_unit_test(random_operations_agree_with_a_plain_table),
        cmocka_unit_test(null_is_not_a_value),
        cmocka_unit_test(every_failing_allocation_yields_null),
    };
    return cmocka_run_group_tests_name("base/map", tests, NULL, NULL);
}
