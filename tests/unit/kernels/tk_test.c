/* The choice of a table, dequantised rows, and the steps that are the same code in every table. */
#include "tests/unit/kernels/kernels_util.h"

static void rope_turns_pairs_and_halves(void **state)
{
    const float angle = 0.7f, cs[4] = {cosf(angle), sinf(angle), 0, 1};
    float pairs[6] = {1, 2, 3, 4, 5, 6}, halves[6] = {1, 2, 3, 4, 5, 6};
    tk_rope(pairs, cs, 1, 6, 4, TK_ROPE_PAIRS, 2);
    tk_rope(halves, cs, 1, 6, 4, TK_ROPE_HALVES, 1);
    assert_float_equal(pairs[0], 2 * (cosf(angle) - 2 * sinf(angle)), 1e-6);
    assert_float_equal(pairs[1], 2 * (sinf(angle) + 2 * cosf(angle)), 1e-6);
    assert_float_equal(pairs[2], -8, 0);
    assert_float_equal(pairs[3], 6, 0);
    assert_float_equal(pairs[5], 12, 0);
    assert_float_equal(halves[0], cosf(angle) - 3 * sinf(angle), 1e-6);
    assert_float_equal(halves[2], sinf(angle) + 3 * cosf(angle), 1e-6);
    assert_float_equal(halves[1], -4, 0);
    assert_float_equal(halves[3], 2, 0);
    assert_float_equal(halves[4], 5, 0);
}

static void keys_lie_by_dim_and_values_by_token(void **state)
{
    uint16_t k[32 * 16] = {0}, v[16 * 32] = {0};
    float key[32], value[32];
    for (uint32_t d = 0; d < 32; d++) {
        key[d] = (float)d;
        value[d] = -(float)d;
    }
    key[3] = 1.00390625f; /* a tie: rounds to even, down */
    tk_kv_write_bf16(key, value, 32, 5, k, v);
    assert_int_equal(k[3 * 16 + 5], 0x3f80);
    assert_int_equal(k[2 * 16 + 5], 0x4000);
    assert_int_equal(v[5 * 32 + 2], 0xc000);
    assert_int_equal(k[2 * 16 + 4], 0);
}

/* Values worked out by hand from the file formats. */
static void rows_of_a_file_are_dequantised_by_their_format(void **state)
{
    uint8_t q8[34] = {0x00, 0x3c}, q4[20] = {0x00, 0x40, 0x00, 0xbc}; /* d 1; d 2, m -1 */
    float out[32];
    q8[2] = 0x80;
    q8[33] = 0x7f;
    tk_dequant(TK_W_Q8_0, q8, 32, out);
    assert_true(out[0] == -128 && out[31] == 127 && out[1] == 0);
    q4[4] = 0xf3;
    tk_dequant(TK_W_Q4_1, q4, 32, out);
    assert_true(out[0] == 5 && out[16] == 29 && out[1] == -1);
}

static void every_selected_table_is_complete(void **state)
{
    static const enum tk_isa isas[] = {TK_ISA_AUTO, TK_ISA_REF, TK_ISA_AVX2, TK_ISA_AVX512};
    assert_non_null(tk_select(TK_ISA_AUTO));
    assert_string_equal(tk_select(TK_ISA_REF)->name, "portable");
    for (size_t i = 0; i < 4; i++) {
        const struct tk_ops *o = tk_select(isas[i]);
        if (o != NULL) {
            assert_true(o->gemm && o->quant && o->quant_wide && o->rmsnorm && o->swiglu &&
                        o->attn && o->attn_f32 && o->attn_merge && o->attn_finish && o->argmax &&
                        o->exps && o->all_finite);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rope_turns_pairs_and_halves),
        cmocka_unit_test(keys_lie_by_dim_and_values_by_token),
        cmocka_unit_test(rows_of_a_file_are_dequantised_by_their_format),
        cmocka_unit_test(every_selected_table_is_complete),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
