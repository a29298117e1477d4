#include "common/sched/growth.h"

#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/check.h"

static void before_enough_was_seen_the_prior_or_the_limit_is_expected(void **state)
{
    struct td_growth g = {0};
    (void)state;
    for (int i = 0; i < TD_GROWTH_TRUST; i++) {
        assert_int_equal(td_growth_expect(&g, 1, 10000), TD_GROWTH_PRIOR);
        assert_int_equal(td_growth_expect(&g, 1, 40), 40);
        assert_int_equal(td_growth_expect(&g, 40, 40), 40);
        assert_int_equal(td_growth_expect(&g, 300, 10000), 451);
        td_growth_seen(&g, 3, false);
    }
    assert_int_equal(td_growth_expect(&g, 1, 10000), 4);
}

static void what_was_seen_is_expected_given_what_is_there(void **state)
{
    struct td_growth g = {0};
    (void)state;
    for (int i = 0; i < 10; i++) {
        td_growth_seen(&g, 10, false);
        td_growth_seen(&g, 100, false);
    }
    assert_int_equal(td_growth_expect(&g, 1, 10000), 69);   /* mean 55 and a quarter */
    assert_int_equal(td_growth_expect(&g, 10, 10000), 125); /* the short ones are out */
    assert_int_equal(td_growth_expect(&g, 100, 10000), 151);
    assert_int_equal(td_growth_expect(&g, 100, 101), 101);
}

static void the_limit_is_expected_while_most_run_into_theirs(void **state)
{
    struct td_growth g = {0};
    (void)state;
    for (int i = 0; i < TD_GROWTH_TRUST; i++) {
        td_growth_seen(&g, 8, true);
    }
    assert_int_equal(td_growth_expect(&g, 1, 500), 500);
    for (int i = 0; i < TD_GROWTH_WINDOW; i++) {
        td_growth_seen(&g, 8, false);
    }
    assert_int_equal(g.n_limited, 0);
    assert_int_equal(td_growth_expect(&g, 1, 500), 10);
}

static void old_lengths_are_forgotten(void **state)
{
    struct td_growth g = {0};
    (void)state;
    td_growth_seen(&g, 1000, false);
    for (int i = 0; i < TD_GROWTH_WINDOW; i++) {
        td_growth_seen(&g, 20, false);
    }
    assert_int_equal(td_growth_expect(&g, 1, 10000), 25);
}

static void the_peak_counts_blocks_that_are_back_in_time(void **state)
{
    struct td_growth_seq s[2] = {{160, 0}, {160, 160}};
    (void)state;
    /* One ends at once: the other's growth fits into what it gives back. */
    assert_int_equal(td_growth_peak(s, 2, 16), 20);
    struct td_growth_seq t[2] = {{160, 160}, {160, 160}};
    assert_int_equal(td_growth_peak(t, 2, 16), 40);
    assert_int_equal(td_growth_peak(t, 0, 16), 0);
}

/* Most blocks at any moment when the sequences grow a token a step and leave at their end. */
static uint32_t run(const struct td_growth_seq *s, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t t = 0; t <= 300; t++) {
        uint32_t now = 0;
        for (uint32_t i = 0; i < n; i++) {
            now += s[i].remain_tok >= t ? (s[i].held_tok + t + 15) / 16 : 0;
        }
        most = now > most ? now : most;
    }
    return most;
}

static void the_peak_is_what_a_run_needs(void **state)
{
    enum { N = 150 };
    struct td_rng r = {3};
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct td_growth_seq s[N];
        for (int i = 0; i < N; i++) {
            s[i] = (struct td_growth_seq){1 + (uint32_t)td_rng_below(&r, 300),
                                          (uint32_t)td_rng_below(&r, 300)};
        }
        uint32_t few = run(s, TD_GROWTH_EXACT);
        uint32_t all = run(s, N);
        struct td_growth_seq copy[N];
        memcpy(copy, s, sizeof s);
        assert_int_equal(td_growth_peak(copy, TD_GROWTH_EXACT, 16), few);
        memcpy(copy, s, sizeof s);
        uint32_t got = td_growth_peak(copy, N, 16);
        assert_true(got + all / 32 > all && got < all + all / 32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_enough_was_seen_the_prior_or_the_limit_is_expected),
        cmocka_unit_test(what_was_seen_is_expected_given_what_is_there),
        cmocka_unit_test(the_limit_is_expected_while_most_run_into_theirs),
        cmocka_unit_test(old_lengths_are_forgotten),
        cmocka_unit_test(the_peak_counts_blocks_that_are_back_in_time),
        cmocka_unit_test(the_peak_is_what_a_run_needs),
    };
    return cmocka_run_group_tests_name("sched/growth", tests, NULL, NULL);
}
