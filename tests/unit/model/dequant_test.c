#include "common/model/dequant.h"

#include <math.h>

#include "tests/tiny/tiny_quant.h"
#include "tests/unit/model/model_util.h"

static uint32_t bits(float f)
{
    uint32_t b;

    memcpy(&b, &f, 4);
    return b;
}

/* Random blocks and their values from the `gguf` package: tests/golden/oracle.py blocks. */
static void every_type_equals_the_independent_reader_bit_for_bit(void **state)
{
    struct td_buf file;
    struct golden g;
    uint32_t n_types;
    float out[512];

    (void)state;
    read_golden("model/blocks.bin", &file);
    g = (struct golden){file.data, file.len};
    assert_memory_equal(golden_bytes(&g, 8), "TDBLOCK1", 8);
    n_types = golden_u32(&g);
    assert_int_equal(n_types, 11);
    for (uint32_t i = 0; i < n_types; i++) {
        enum td_dtype dtype = (enum td_dtype)golden_u32(&g);
        uint32_t n = golden_u32(&g);
        uint32_t len = golden_u32(&g);
        uint8_t *raw = exact_copy(golden_bytes(&g, len), len);

        assert_true(td_dequant_supported(dtype));
        assert_int_equal(n, 512);
        td_dequant_row(dtype, raw, n, out);
        free(raw);
        for (uint32_t k = 0; k < n; k++) {
            float want = golden_f32(&g);

            if (bits(out[k]) != bits(want)) {
                fail_msg("%s value %u: %g, not %g", td_dtype_info((uint32_t)dtype)->name, k,
                         (double)out[k], (double)want);
            }
        }
    }
    assert_int_equal(g.left, 0);
    td_buf_fini(&file);
}

static void types_without_a_definition_here_are_not_supported(void **state)
{
    (void)state;
    assert_false(td_dequant_supported(TD_DTYPE_Q2_K));
    assert_false(td_dequant_supported(TD_DTYPE_IQ4_XS));
    assert_false(td_dequant_supported(TD_DTYPE_I32));
    assert_false(td_dequant_supported((enum td_dtype)99));
}

static void halves_survive_the_round_trip(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = td_f16_to_f32((uint16_t)h);

        if (isnan(f)) {
            assert_true(isnan(td_f16_to_f32(td_f32_to_f16(f))));
        } else {
            assert_int_equal(td_f32_to_f16(f), h);
        }
    }
}

static void halves_round_to_nearest_even(void **state)
{
    static const struct {
        float f;
        uint16_t h;
    } rows[] = {
        {1.0f, 0x3c00},
        {1.0f + 0x1p-11f, 0x3c00},     /* tie, down to even */
        {1.0f + 3 * 0x1p-11f, 0x3c02}, /* tie, up to even */
        {1.0f + 0x1.002p-11f, 0x3c01}, /* above the tie */
        {65504.0f, 0x7bff},            /* the largest */
        {65519.0f, 0x7bff},
        {65520.0f, 0x7c00}, /* rounds to infinity */
        {1e30f, 0x7c00},
        {0x1p-24f, 0x0001}, /* the smallest */
        {0x1p-25f, 0x0000}, /* tie, down to zero */
        {0x1.002p-25f, 0x0001},
        {0x1.ffcp-15f, 0x0400}, /* tie between subnormal and normal */
        {-2.0f, 0xc000},
        {-0.0f, 0x8000},
    };

    (void)state;
    for (size_t i = 0; i < TD_COUNT(rows); i++) {
        uint16_t h = td_f32_to_f16(rows[i].f);

        if (h != rows[i].h) {
            fail_msg("%a: %04x, not %04x", (double)rows[i].f, h, rows[i].h);
        }
    }
}

static void bfloat16_rounds_to_nearest_even_and_keeps_nan(void **state)
{
    (void)state;
    assert_int_equal(td_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(td_f32_to_bf16(1.0f + 0x1p-8f), 0x3f80);
    assert_int_equal(td_f32_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
    assert_int_equal(td_f32_to_bf16(3.4e38f), 0x7f80);
    assert_true(isnan(td_bf16_to_f32(td_f32_to_bf16(NAN))));
    assert_true(td_bf16_to_f32(0xbf80) == -1.0f);
}

/* The tests' own quantiser is within half a step of what it was given, for every type. */
static void quantised_values_come_back_within_half_a_step(void **state)
{
    static const struct {
        enum td_dtype dtype;
        float tolerance;
    } rows[] = {
        {TD_DTYPE_F32, 0},       {TD_DTYPE_F16, 0x1p-11f}, {TD_DTYPE_BF16, 0x1p-8f},
        {TD_DTYPE_Q4_0, 0.08f},  {TD_DTYPE_Q4_1, 0.07f},   {TD_DTYPE_Q5_0, 0.04f},
        {TD_DTYPE_Q5_1, 0.035f}, {TD_DTYPE_Q8_0, 0.005f},  {TD_DTYPE_Q4_K, 0.09f},
        {TD_DTYPE_Q5_K, 0.05f},  {TD_DTYPE_Q6_K, 0.02f},
    };
    float x[256];
    float y[256];
    uint8_t packed[1024];

    (void)state;
    for (int i = 0; i < 256; i++) {
        x[i] = sinf((float)i * 0.37f) * (1.0f - (float)(i % 32) / 64.0f);
    }
    for (size_t r = 0; r < TD_COUNT(rows); r++) {
        td_tiny_quantize_row(rows[r].dtype, x, 256, packed);
        td_dequant_row(rows[r].dtype, packed, 256, y);
        for (int i = 0; i < 256; i++) {
            if (!(fabsf(x[i] - y[i]) <= rows[r].tolerance)) {
                fail_msg("%s value %d: %g, not %g", td_dtype_info((uint32_t)rows[r].dtype)->name, i,
                         (double)y[i], (double)x[i]);
            }
        }
    }
}

static void a_row_that_is_not_whole_blocks_is_a_bug_of_the_caller(void **state)
{
    float out[32];

    (void)state;
    CHECK_ABORTS(td_dequant_row(TD_DTYPE_Q4_0, out, 31, out));
    CHECK_ABORTS(td_dequant_row(TD_DTYPE_Q2_K, out, 256, out));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_equals_the_independent_reader_bit_for_bit),
        cmocka_unit_test(types_without_a_definition_here_are_not_supported),
        cmocka_unit_test(halves_survive_the_round_trip),
        cmocka_unit_test(halves_round_to_nearest_even),
        cmocka_unit_test(bfloat16_rounds_to_nearest_even_and_keeps_nan),
        cmocka_unit_test(quantised_values_come_back_within_half_a_step),
        cmocka_unit_test(a_row_that_is_not_whole_blocks_is_a_bug_of_the_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
