/* Products: every table gives the reference's bits, rows are independent of each other, and the
 * reference itself is close to the product of the dequantised weights. */
#include "tests/unit/kernels/kernels_util.h"

#define SEED 20261129

struct problem {
    struct tk_weight w;
    struct tk_packed p;
    struct tk_act a;
    float *x; /* [m][k] */
    uint32_t m;
};

static struct problem problem_of(enum tk_wtype type, uint32_t m, uint32_t n, uint32_t k, bool f32)
{
    struct td_rng r = {SEED + (uint64_t)type * 1000 + m * 100 + n + k};
    struct problem p = {.w = ku_weight(type, n, k, &r), .m = m};
    p.p = ku_pack(&p.w, f32);
    p.a = ku_act(m, k);
    p.x = ku_alloc((size_t)m * k * sizeof(float));
    for (size_t i = 0; i < (size_t)m * k; i++) {
        p.x[i] = ku_activation(&r);
    }
    for (uint32_t i = 0; i < m; i++) {
        tk_select(TK_ISA_REF)->quant(p.x + (size_t)i * k, k, &p.a, i, 0);
    }
    if (f32) {
        p.a.x = p.x;
    }
    return p;
}

static void problem_free(struct problem *p)
{
    free((void *)(uintptr_t)p->w.data);
    free(p->p.data);
    free(p->x);
    ku_act_free(&p->a);
}

static float *product(const struct tk_ops *ops, const struct problem *p, bool add)
{
    uint32_t n = p->w.n, stride = n + 5;
    float *y = ku_alloc((size_t)p->m * stride * sizeof(float));
    for (size_t i = 0; i < (size_t)p->m * stride; i++) {
        y[i] = add ? (float)i * 0.25f : 12345.0f;
    }
    struct tk_gemm g = {&p->p, &p->a, 0, p->m, y, stride, 0, add, false};
    ops->gemm(&g, 0, p->p.n_tiles);
    return y;
}

static void every_table_gives_the_bits_of_the_reference(void **state)
{
    static const uint32_t ms[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}, ns[] = {1, 16, 70};
    for (size_t t = 0; t < KU_N_TYPES; t++) {
        for (size_t i = 0; i < sizeof ms / sizeof ms[0] * 3; i++) {
            struct problem p = problem_of(ku_types[t], ms[i / 3], ns[i % 3], 512, i % 5 == 0);
            float *want = product(tk_select(TK_ISA_REF), &p, i % 2 != 0);
            for (size_t s = 0; s < KU_N_ISAS; s++) {
                const struct tk_ops *ops = tk_select(ku_isas[s]);
                if (ops != NULL) {
                    float *got = product(ops, &p, i % 2 != 0);
                    assert_memory_equal(got, want, (size_t)p.m * (p.w.n + 5) * sizeof(float));
                    free(got);
                }
            }
            free(want);
            problem_free(&p);
        }
    }
}

static void wide_rows_give_the_bits_of_the_reference_and_near_exact_products(void **state)
{
    enum { K = 512, N = 35 };
    for (size_t t = 0; t < KU_N_TYPES; t++) {
        for (uint32_t m = 1; m <= 9; m++) {
            struct td_rng r = {SEED + m};
            struct tk_weight w = ku_weight(ku_types[t], N, K, &r);
            struct tk_packed packed = ku_pack(&w, false);
            struct tk_act a = ku_act(2 * m, K);
            float x[K], want[9 * N], got[9 * N], row[K];
            for (uint32_t i = 0; i < m; i++) {
                for (uint32_t k = 0; k < K; k++) {
                    x[k] = ku_activation(&r); /* the last row stays in x */
                }
                tk_select(TK_ISA_AUTO)->quant_wide(x, K, &a, i);
            }
            struct tk_gemm g = {
                .w = &packed, .a = &a, .m = m, .y = want, .y_stride = N, .wide = true};
            tk_select(TK_ISA_REF)->gemm(&g, 0, packed.n_tiles);
            g.y = got;
            for (size_t s = 0; s < KU_N_ISAS; s++) {
                if (tk_select(ku_isas[s]) != NULL) {
                    tk_select(ku_isas[s])->gemm(&g, 0, packed.n_tiles);
                    assert_memory_equal(got, want, m * N * sizeof(float));
                }
            }
            bool floats = w.type == TK_W_F32 || w.type == TK_W_F16 || w.type == TK_W_BF16;
            for (uint32_t c = 0; c < N && !floats; c++) { /* those are rounded themselves */
                double exact = 0, size = 1e-3;
                tk_dequant(w.type, (const uint8_t *)w.data + c * w.row_bytes, K, row);
                for (uint32_t k = 0; k < K; k++) {
                    exact += (double)row[k] * (double)x[k];
                    size += fabs((double)row[k]) * 60;
                }
                assert_true(fabs((double)want[(m - 1) * N + c] - exact) <= size / 60000);
            }
            free((void *)(uintptr_t)w.data);
            free(packed.data);
            ku_act_free(&a);
        }
    }
}

static void a_row_alone_equals_the_row_in_a_batch(void **state)
{
    static const enum tk_isa isas[] = {TK_ISA_REF, TK_ISA_AVX2, TK_ISA_AVX512};
    struct problem p = problem_of(TK_W_Q4_1, 19, 64, 576, false);
    for (size_t s = 0; s < 3; s++) {
        const struct tk_ops *ops = tk_select(isas[s]);
        if (ops == NULL) {
            continue;
        }
        float *batch = product(ops, &p, false);
        for (uint32_t row = 0; row < p.m; row++) {
            struct tk_act one = ku_act(1, 576);
            float y[64];
            struct tk_gemm g = {&p.p, &one, 0, 1, y, 64, 0, false, false};
            ops->quant(p.x + (size_t)row * 576, 576, &one, 0, 0);
            ops->gemm(&g, 0, 3);
            ops->gemm(&g, 3, 1);
            assert_memory_equal(y, batch + (size_t)row * 69, sizeof y);
            ku_act_free(&one);
        }
        free(batch);
    }
    problem_free(&p);
}

static float amax32(const float *x)
{
    float m = 0;
    for (int i = 0; i < 32; i++) {
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    }
    return m;
}

/* Rounding moves an activation by at most amax / 254, and a float weight likewise. */
static void the_reference_is_near_the_exact_product(void **state)
{
    for (size_t t = 0; t < KU_N_TYPES; t++) {
        struct problem p = problem_of(ku_types[t], 3, 33, 256, false);
        bool floats = p.w.type == TK_W_F32 || p.w.type == TK_W_F16 || p.w.type == TK_W_BF16;
        float *y = product(tk_select(TK_ISA_REF), &p, false), w[256];
        for (uint32_t c = 0; c < p.w.n; c++) {
            tk_dequant(p.w.type, (const uint8_t *)p.w.data + c * p.w.row_bytes, 256, w);
            for (uint32_t r = 0; r < p.m; r++) {
                double exact = 0, bound = 1e-4;
                const float *x = p.x + r * 256;
                for (uint32_t k = 0; k < 256; k++) {
                    exact += (double)w[k] * (double)x[k];
                    bound += fabs((double)w[k]) * (double)amax32(x + k / 32 * 32) / 250;
                    bound +=
                        floats ? fabs((double)x[k]) * (double)amax32(w + k / 32 * 32) / 250 : 0;
                }
                assert_true(fabs((double)y[r * 38 + c] - exact) <= bound);
            }
        }
        free(y);
        problem_free(&p);
    }
}

static void f32_numerics_are_near_the_exact_product(void **state)
{
    struct problem p = problem_of(TK_W_Q6_K, 2, 20, 512, true);
    float *y = product(tk_select(TK_ISA_REF), &p, false), w[512];
    for (uint32_t c = 0; c < p.w.n; c++) {
        double exact = 0, size = 0;
        tk_dequant(p.w.type, (const uint8_t *)p.w.data + c * p.w.row_bytes, 512, w);
        for (uint32_t k = 0; k < 512; k++) {
            exact += (double)w[k] * (double)p.x[512 + k];
            size += fabs((double)w[k] * (double)p.x[512 + k]);
        }
        assert_true(fabs((double)y[25 + c] - exact) <= 1e-5 * size);
    }
    free(y);
    problem_free(&p);
}

static void a_shape_without_a_packing_is_refused(void **state)
{
    uint8_t data[4096] = {0};
    struct tk_packed p;
    struct tk_weight odd = {TK_W_Q8_0, 16, 33, data, 4096};
    struct tk_weight k_quant = {TK_W_Q4_K, 1, 32, data, 4096};
    struct tk_weight unknown = {(enum tk_wtype)99, 1, 32, data, 4096};
    struct tk_weight cut = {TK_W_Q8_0, 1, 64, data, 67};
    struct tk_weight huge = {TK_W_F32, 1, TK_MAX_K + 32, data, 4096};
    assert_int_equal(tk_pack_plan(&odd, false, &p), TD_ERR_FILE_UNSUPPORTED);
    assert_int_equal(tk_pack_plan(&k_quant, false, &p), TD_ERR_FILE_UNSUPPORTED);
    assert_int_equal(tk_pack_plan(&unknown, false, &p), TD_ERR_FILE_UNSUPPORTED);
    assert_int_equal(tk_pack_plan(&cut, false, &p), TD_ERR_FILE_FORMAT);
    assert_int_equal(tk_pack_plan(&huge, false, &p), TD_ERR_FILE_UNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_table_gives_the_bits_of_the_reference),
        cmocka_unit_test(wide_rows_give_the_bits_of_the_reference_and_near_exact_products),
        cmocka_unit_test(a_row_alone_equals_the_row_in_a_batch),
        cmocka_unit_test(the_reference_is_near_the_exact_product),
        cmocka_unit_test(f32_numerics_are_near_the_exact_product),
        cmocka_unit_test(a_shape_without_a_packing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
