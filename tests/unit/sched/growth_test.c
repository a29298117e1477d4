#include "common/sched/growth.h"

#include "common/base/rng.h"
#include "tests/unit/check.h"

static void before_anything_was_seen_the_prior_or_the_limit_is_expected(void **state)
{
    struct td_growth g = {0};
    (void)state;
    assert_int_equal(td_growth_expect(&g, 1, 10000), TD_GROWTH_PRIOR);
    assert_int_equal(td_growth_expect(&g, 1, 40), 40);
    assert_int_equal(td_growth_expect(&g, 40, 40), 40);
    assert_int_equal(td_growth_expect(&g, 300, 10000), 450);
}

static void what_was_seen_is_expected_given_what_is_there(void **state)
{
    struct td_growth g = {0};
    (void)state;
    for (int i = 0; i < 10; i++) {
        td_growth_seen(&g, 10);
        td_growth_seen(&g, 100);
    }
    assert_int_equal(td_growth_expect(&g, 1, 10000), 55);
    assert_int_equal(td_growth_expect(&g, 10, 10000), 100); /* the short ones are out */
    assert_int_equal(td_growth_expect(&g, 100, 10000), 150);
    assert_int_equal(td_growth_expect(&g, 100, 101), 101);
}

static void old_lengths_are_forgotten(void **state)
{
    struct td_growth g = {0};
    (void)state;
    td_growth_seen(&g, 1000);
    for (int i = 0; i < TD_GROWTH_WINDOW; i++) {
        td_growth_seen(&g, 20);
    }
    assert_int_equal(td_growth_expect(&g, 1, 10000), 20);
}

static void the_peak_counts_blocks_that_are_back_in_time(void **state)
{
    struct td_growth_seq s[2] = {{160, 0}, {160, 160}};
    (void)state;
    /* One ends at once: the other's growth fits into what it gives back. */
    assert_int_equal(td_growth_peak(s, 2, 16), 21); /* 20 blocks and half a block each */
    struct td_growth_seq t[2] = {{160, 160}, {160, 160}};
    assert_int_equal(td_growth_peak(t, 2, 16), 41);
    assert_int_equal(td_growth_peak(t, 0, 16), 0);
}

/* The formula against running it: sequences that grow a token a step and leave at their end. */
static void the_peak_is_close_to_a_simulated_one(void **state)
{
    enum { N = 40 };
    struct td_rng r = {3};
    (void)state;
    for (int round = 0; round < 50; round++) {
        struct td_growth_seq s[N];
        struct td_growth_seq run[N];
        for (int i = 0; i < N; i++) {
            run[i] = s[i] = (struct td_growth_seq){1 + (uint32_t)td_rng_below(&r, 300),
                                                   (uint32_t)td_rng_below(&r, 300)};
        }
        uint32_t most = 0;
        for (uint32_t t = 0; t <= 300; t++) {
            uint32_t now = 0;
            for (int i = 0; i < N; i++) {
                now += run[i].remain_tok >= t ? (run[i].held_tok + t + 15) / 16 : 0;
            }
            most = now > most ? now : most;
        }
        uint32_t got = td_growth_peak(s, N, 16);
        assert_true(got + 12 > most && got < most + 12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_anything_was_seen_the_prior_or_the_limit_is_expected),
        cmocka_unit_test(what_was_seen_is_expected_given_what_is_there),
        cmocka_unit_test(old_lengths_are_forgotten),
        cmocka_unit_test(the_peak_counts_blocks_that_are_back_in_time),
        cmocka_unit_test(the_peak_is_close_to_a_simulated_one),
    };
    return cmocka_run_group_tests_name("sched/growth", tests, NULL, NULL);
}
