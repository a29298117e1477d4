#include "common/model/rope.h"

#include <math.h>

#include "tests/unit/model/model_util.h"

/* libm in float64 rounded to float32 differs from ours in the last place at most. */
static bool one_ulp(float a, double b)
{
    float f = (float)b;

    return a == f || nextafterf(a, f) == f || fabs((double)a - b) < 1e-12;
}

static void frequencies_equal_the_power_to_one_ulp(void **state)
{
    static const float thetas[] = {1, 10000, 100000, 500000, 1e6f, 1e12f};
    float freq[256];

    (void)state;
    for (size_t t = 0; t < TD_COUNT(thetas); t++) {
        for (uint32_t dim = 2; dim <= 512; dim *= 2) {
            td_rope_freqs(thetas[t], dim, freq);
            assert_true(freq[0] == 1);
            for (uint32_t i = 0; i < dim / 2; i++) {
                assert_true(one_ulp(freq[i], pow((double)thetas[t], -2.0 * i / dim)));
            }
        }
    }
}

static void angles_equal_sine_and_cosine_to_one_ulp(void **state)
{
    static const uint32_t positions[] = {0,    1,    2,      3,       100,           511,
                                         4095, 8191, 131071, 1000003, (1u << 24) - 1};
    float freq[64];
    float c[64];
    float s[64];

    (void)state;
    td_rope_freqs(10000, 128, freq);
    for (size_t p = 0; p < TD_COUNT(positions); p++) {
        td_rope_angles(freq, 64, positions[p], c, s);
        for (uint32_t i = 0; i < 64; i++) {
            double x = (double)positions[p] * (double)freq[i];

            assert_true(one_ulp(c[i], cos(x)));
            assert_true(one_ulp(s[i], sin(x)));
        }
    }
}

/* The same bits on every machine and compiler: a digest of a table, fixed when it was first made.
 */
static void the_table_never_changes(void **state)
{
    uint64_t h = 14695981039346656037ull;
    float freq[32];
    float table[64];

    (void)state;
    td_rope_freqs(100000, 64, freq);
    for (uint32_t pos = 0; pos < 8192; pos += 7) {
        td_rope_angles(freq, 32, pos, table, table + 32);
        for (size_t i = 0; i < sizeof table; i++) {
            h = (h ^ ((const uint8_t *)table)[i]) * 1099511628211ull;
        }
    }
    assert_true(h == 0xddbea8fd50ebe77ull);
}

static void a_position_past_the_maximum_is_a_bug_of_the_caller(void **state)
{
    float f = 1;
    float c;
    float s;

    (void)state;
    CHECK_ABORTS(td_rope_angles(&f, 1, TD_ROPE_MAX_POS, &c, &s));
    CHECK_ABORTS(td_rope_freqs(10000, 3, &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_equal_the_power_to_one_ulp),
        cmocka_unit_test(angles_equal_sine_and_cosine_to_one_ulp),
        cmocka_unit_test(the_table_never_changes),
        cmocka_unit_test(a_position_past_the_maximum_is_a_bug_of_the_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
