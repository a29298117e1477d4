/* Row operations: every table gives the reference's bits over odd lengths, and the reference is
 * near the same step in binary64. */
#include "tests/unit/kernels/kernels_util.h"

#define MAX_N 700
#define GUARD 16

static const uint32_t lengths[] = {1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 576, 699};
#define N_LENGTHS (sizeof lengths / sizeof lengths[0])

static void fill(float *x, uint32_t n, float scale, uint64_t seed)
{
    struct td_rng r = {seed};
    for (uint32_t i = 0; i < n; i++) {
        x[i] = ku_float(&r, scale);
    }
}

static void poison(float *y)
{
    memset(y, 0xab, (MAX_N + GUARD) * sizeof *y);
}

/* Calls `step` for each length and each table and compares whole poisoned buffers. */
typedef void (*step_fn)(const struct tk_ops *, const float *x, const float *w, uint32_t n,
                        float *y);

static void compare_tables(step_fn step, float scale)
{
    float x[MAX_N], w[MAX_N], want[MAX_N + GUARD], got[MAX_N + GUARD];
    for (size_t i = 0; i < N_LENGTHS; i++) {
        fill(x, MAX_N, scale, i);
        fill(w, MAX_N, scale, i + 100);
        poison(want);
        step(tk_select(TK_ISA_REF), x, w, lengths[i], want);
        for (size_t s = 0; s < KU_N_ISAS; s++) {
            if (tk_select(ku_isas[s]) != NULL) {
                poison(got);
                step(tk_select(ku_isas[s]), x, w, lengths[i], got);
                assert_memory_equal(got, want, sizeof got);
            }
        }
    }
}

static void norm_step(const struct tk_ops *o, const float *x, const float *w, uint32_t n, float *y)
{
    o->rmsnorm(x, w, n, 1e-5f, y);
}

static void swiglu_step(const struct tk_ops *o, const float *x, const float *w, uint32_t n,
                        float *y)
{
    o->swiglu(x, w, n, y);
}

static void exps_step(const struct tk_ops *o, const float *x, const float *w, uint32_t n, float *y)
{
    y[MAX_N] = o->exps(x, n, 20, 1.7f, y);
}

static void argmax_step(const struct tk_ops *o, const float *x, const float *w, uint32_t n,
                        float *y)
{
    y[0] = (float)o->argmax(x, n);
}

static void rmsnorm_is_the_same_in_every_table(void **state)
{
    compare_tables(norm_step, 3);
}

static void swiglu_is_the_same_in_every_table(void **state)
{
    compare_tables(swiglu_step, 1);
    compare_tables(swiglu_step, 200); /* both ends of exp */
}

static void exps_and_their_sum_are_the_same_in_every_table(void **state)
{
    compare_tables(exps_step, 20);
    compare_tables(exps_step, 0.01f);
}

static void argmax_is_the_same_in_every_table(void **state)
{
    compare_tables(argmax_step, 5);
}

static void quantised_rows_are_the_same_in_every_table(void **state)
{
    enum { K = 576, ROWS = 11 };
    float x[K];
    struct tk_act want = {0}, got;
    for (size_t s = 0; s <= KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(s == 0 ? TK_ISA_REF : ku_isas[s - 1]);
        if (ops == NULL) {
            continue;
        }
        got = ku_act(ROWS, K);
        memset(got.b, 0, 16 * K / 32 * sizeof *got.b);
        for (uint32_t row = 0; row < ROWS; row++) {
            fill(x, K, row == 3 ? 1e-32f : row == 4 ? 1e-20f : row == 5 ? 1e30f : 2, row);
            for (uint32_t i = 0; i < K; i++) { /* ties, in exact steps */
                x[i] = row == 6 ? (float)((int)(i % 255) - 127) * 0.5f : x[i];
            }
            ops->quant(x, 64, &got, row, 0);
            ops->quant(x + 64, K - 64, &got, row, 2);
        }
        if (s == 0) {
            want = got;
            continue;
        }
        assert_memory_equal(got.q, want.q, 16 * K);
        assert_memory_equal(got.b, want.b, 16 * K / 32 * sizeof *got.b);
        ku_act_free(&got);
    }
    ku_act_free(&want);
}

static void wide_rows_are_the_same_in_every_table_and_keep_sixteen_bits(void **state)
{
    enum { K = 96, ROWS = 7 };
    float x[ROWS][K];
    struct tk_act want = {0}, got;
    for (uint32_t row = 0; row < ROWS; row++) {
        fill(x[row], K, row == 3 ? 1e-32f : 2, row);
        x[row][5] = row == 2 ? -3.0f : 3.0f; /* +-32512, both ends */
    }
    for (size_t s = 0; s <= KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(s == 0 ? TK_ISA_REF : ku_isas[s - 1]);
        if (ops == NULL) {
            continue;
        }
        got = ku_act(2 * ROWS, K);
        memset(got.b, 0, 16 * K / 32 * sizeof *got.b);
        for (uint32_t row = 0; row < ROWS; row++) {
            ops->quant_wide(x[row], K, &got, row);
        }
        if (s == 0) {
            want = got;
            continue;
        }
        assert_memory_equal(got.q, want.q, 16 * K);
        assert_memory_equal(got.b, want.b, 16 * K / 32 * sizeof *got.b);
        ku_act_free(&got);
    }
    for (uint32_t i = 0; i < 32; i++) { /* row 1, block 0: digit rows 2 and 3 */
        float v = want.b[2].d * (float)(256 * want.q[2 * 32 + i] + want.q[3 * 32 + i]);
        assert_true(fabsf(v - x[1][i]) <= 3.0f / 32512);
    }
    ku_act_free(&want);
}

static void exp_is_within_two_units_of_the_exact_value(void **state)
{
    for (float x = -86.99f; x < 88; x += 0.0137f) {
        double exact = exp((double)x);
        assert_true(fabs((double)tk_exp(x) - exact) <= 2.5e-7 * exact);
    }
    assert_true(tk_exp(-87.0f) == 0 && tk_exp(-1e30f) == 0);
    assert_true(tk_exp(0) == 1.0f);
    assert_true(isfinite(tk_exp(1e30f)));
}

static void argmax_takes_the_lowest_of_equal_values(void **state)
{
    for (size_t s = 0; s <= KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(s == 0 ? TK_ISA_REF : ku_isas[s - 1]);
        float x[50];
        for (uint32_t i = 0; i < 50 && ops != NULL; i++) {
            x[i] = i == 21 || i == 40 ? 3.0f : -1.0f;
        }
        if (ops != NULL) {
            assert_int_equal(ops->argmax(x, 50), 21);
        }
    }
}

static void a_value_that_is_not_finite_is_found(void **state)
{
    for (size_t s = 0; s <= KU_N_ISAS; s++) {
        const struct tk_ops *ops = tk_select(s == 0 ? TK_ISA_REF : ku_isas[s - 1]);
        float x[37];
        for (uint32_t at = 0; at < 37 && ops != NULL; at++) {
            fill(x, 37, 1e38f, at);
            assert_true(ops->all_finite(x, 37));
            x[at] = at % 2 != 0 ? NAN : -INFINITY;
            assert_false(ops->all_finite(x, 37));
            assert_true(ops->all_finite(x, at));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_is_the_same_in_every_table),
        cmocka_unit_test(swiglu_is_the_same_in_every_table),
        cmocka_unit_test(exps_and_their_sum_are_the_same_in_every_table),
        cmocka_unit_test(argmax_is_the_same_in_every_table),
        cmocka_unit_test(quantised_rows_are_the_same_in_every_table),
        cmocka_unit_test(wide_rows_are_the_same_in_every_table_and_keep_sixteen_bits),
        cmocka_unit_test(exp_is_within_two_units_of_the_exact_value),
        cmocka_unit_test(argmax_takes_the_lowest_of_equal_values),
        cmocka_unit_test(a_value_that_is_not_finite_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
