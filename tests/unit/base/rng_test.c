#include "common/base/rng.h"

#include <string.h>

#include "tests/unit/check.h"

static void one_seed_gives_one_sequence(void **state)
{
    struct td_rng a = {42};
    struct td_rng b = {42};
    struct td_rng c = {43};
    (void)state;
    uint64_t first = td_rng_next(&a);
    assert_true(first == td_rng_next(&b));
    assert_true(first != td_rng_next(&c));
    for (int i = 0; i < 100; i++) {
        assert_true(td_rng_next(&a) == td_rng_next(&b));
    }
}

/* The published first outputs of splitmix64 for seed 1234567. */
static void the_sequence_is_splitmix64(void **state)
{
    struct td_rng r = {1234567};
    (void)state;
    assert_true(td_rng_next(&r) == 6457827717110365317ull);
    assert_true(td_rng_next(&r) == 3203168211198807973ull);
    assert_true(td_rng_next(&r) == 9817491932198370423ull);
}

static void draws_stay_below_the_bound_and_meet_every_value(void **state)
{
    struct td_rng r = {7};
    int seen[6] = {0};
    (void)state;
    for (int i = 0; i < 6000; i++) {
        uint64_t v = td_rng_below(&r, 6);
        assert_true(v < 6);
        seen[v]++;
    }
    for (int i = 0; i < 6; i++) {
        assert_in_range(seen[i], 800, 1200);
    }
    assert_true(td_rng_below(&r, 1) == 0);
}

static void unit_draws_lie_in_zero_to_one_with_mean_one_half(void **state)
{
    struct td_rng r = {9};
    double sum = 0;
    (void)state;
    for (int i = 0; i < 10000; i++) {
        double v = td_rng_unit(&r);
        assert_true(v >= 0.0 && v < 1.0);
        sum += v;
    }
    assert_true(sum > 4800 && sum < 5200);
}

static void kernel_randomness_fills_every_byte_and_differs(void **state)
{
    unsigned char bytes[1000];
    unsigned seen[1000] = {0};
    (void)state;
    for (int round = 0; round < 8; round++) {
        memset(bytes, 0, sizeof bytes);
        td_rng_fill(bytes, sizeof bytes);
        for (size_t i = 0; i < sizeof bytes; i++) {
            seen[i] |= bytes[i];
        }
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_not_equal(seen[i], 0); /* zero eight times: one in 2^64 */
    }
    assert_true(td_rng_u64_secure() != td_rng_u64_secure());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_seed_gives_one_sequence),
        cmocka_unit_test(the_sequence_is_splitmix64),
        cmocka_unit_test(draws_stay_below_the_bound_and_meet_every_value),
        cmocka_unit_test(unit_draws_lie_in_zero_to_one_with_mean_one_half),
        cmocka_unit_test(kernel_randomness_fills_every_byte_and_differs),
    };
    return cmocka_run_group_tests_name("base/rng", tests, NULL, NULL);
}
