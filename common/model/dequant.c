#include "common/model/dequant.h"

#include <string.h>

#include "common/base/assert.h"

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (p[1] << 8));
}

static float half_at(const uint8_t *p)
{
    return td_f16_to_f32(load16(p));
}

static float float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float td_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t fraction = h & 0x3ffu;

    if (exponent == 31) {
        return float_of_bits(sign | 0x7f800000u | fraction << 13);
    }
    if (exponent == 0) { /* subnormal: fraction * 2^-24 is exact in float32 */
        float f = (float)fraction * 0x1.0p-24f;

        return sign != 0 ? -f : f;
    }
    return float_of_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

uint16_t td_f32_to_f16(float f)
{
    uint32_t bits = bits_of_float(f);
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    uint32_t mag = bits & 0x7fffffffu;

    if (mag > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x1ffu));
    }
    if (mag >= 0x47800000u) { /* 65536 and above; 65520 to 65535 round up below */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (mag <
        0x38800000u) { /* below 2^-14: adding 0.5 leaves the fraction, rounded, in the low bits */
        uint32_t r = bits_of_float(float_of_bits(mag) + 0.5f) - bits_of_float(0.5f);

        return (uint16_t)(sign | r);
    }
    mag += 0xfffu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

float td_bf16_to_f32(uint16_t h)
{
    return float_of_bits((uint32_t)h << 16);
}

uint16_t td_f32_to_bf16(float f)
{
    uint32_t bits = bits_of_float(f);

    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (uint16_t)((bits >> 16) | 0x40u);
    }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* ---- blocks of 32 ---- */

static void block_q4_0(const uint8_t *b, float *out)
{
    float d = half_at(b);

    for (int j = 0; j < 16; j++) {
        out[j] = (float)((b[2 + j] & 15) - 8) * d;
        out[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

static void block_q4_1(const uint8_t *b, float *out)
{
    float d = half_at(b);
    float m = half_at(b + 2);

    for (int j = 0; j < 16; j++) {
        out[j] = (float)(b[4 + j] & 15) * d + m;
        out[j + 16] = (float)(b[4 + j] >> 4) * d + m;
    }
}

/* The fifth bits of a block, least significant first. */
static uint32_t fifth_bits(const uint8_t *p)
{
    return (uint32_t)load16(p) | (uint32_t)load16(p + 2) << 16;
}

static int quint(const uint8_t *nibbles, uint32_t fifth, int j)
{
    int low = j < 16 ? nibbles[j] & 15 : nibbles[j - 16] >> 4;

    return low | (int)((fifth >> j) & 1u) << 4;
}

static void block_q5_0(const uint8_t *b, float *out)
{
    float d = half_at(b);
    uint32_t fifth = fifth_bits(b + 2);

    for (int j = 0; j < 32; j++) {
        out[j] = (float)(quint(b + 6, fifth, j) - 16) * d;
    }
}

static void block_q5_1(const uint8_t *b, float *out)
{
    float d = half_at(b);
    float m = half_at(b + 2);
    uint32_t fifth = fifth_bits(b + 4);

    for (int j = 0; j < 32; j++) {
        out[j] = (float)quint(b + 8, fifth, j) * d + m;
    }
}

static void block_q8_0(const uint8_t *b, float *out)
{
    float d = half_at(b);

    for (int j = 0; j < 32; j++) {
        out[j] = (float)(int8_t)b[2 + j] * d;
    }
}

/* ---- blocks of 256 ---- */

void td_dequant_k_scales(const uint8_t packed[12], uint8_t out_scale[8], uint8_t out_min[8])
{
    /* Bytes 0-3 and 4-7: the low six bits are scales and minima 0-3, the high two belong to 4-7,
     * whose low nibbles share bytes 8-11. */
    for (int j = 0; j < 4; j++) {
        out_scale[j] = packed[j] & 63;
        out_min[j] = packed[j + 4] & 63;
        out_scale[j + 4] = (uint8_t)((packed[j + 8] & 15) | (packed[j] >> 6) << 4);
        out_min[j + 4] = (uint8_t)((packed[j + 8] >> 4) | (packed[j + 4] >> 6) << 4);
    }
}

static void block_q4_k(const uint8_t *b, float *out)
{
    float d = half_at(b);
    float dmin = half_at(b + 2);
    const uint8_t *q = b + 16;
    uint8_t scale[8];
    uint8_t min[8];

    td_dequant_k_scales(b + 4, scale, min);
    for (int s = 0; s < 8; s++) { /* 32 values each; pairs share 32 bytes */
        float ds = d * (float)scale[s];
        float ms = dmin * (float)min[s];

        for (int j = 0; j < 32; j++) {
            int v = (q[32 * (s / 2) + j] >> (s % 2 * 4)) & 15;

            out[32 * s + j] = ds * (float)v - ms;
        }
    }
}

static void block_q5_k(const uint8_t *b, float *out)
{
    float d = half_at(b);
    float dmin = half_at(b + 2);
    const uint8_t *high = b + 16;
    const uint8_t *q = b + 48;
    uint8_t scale[8];
    uint8_t min[8];

    td_dequant_k_scales(b + 4, scale, min);
    for (int s = 0; s < 8; s++) {
        float ds = d * (float)scale[s];
        float ms = dmin * (float)min[s];

        for (int j = 0; j < 32; j++) {
            int v = ((q[32 * (s / 2) + j] >> (s % 2 * 4)) & 15) | ((high[j] >> s) & 1) << 4;

            out[32 * s + j] = ds * (float)v - ms;
        }
    }
}

static void block_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *low = b;
    const uint8_t *high = b + 128;
    const int8_t *scale = (const int8_t *)b + 192;
    float d = half_at(b + 208);

    for (int i = 0; i < 256; i++) {
        int half = i / 128; /* 128 values share 64 low and 32 high bytes */
        int quarter = i % 128 / 32;
        int j = i % 32;
        int sixteen = i / 16;
        int lo = (low[64 * half + 32 * (quarter % 2) + j] >> (quarter / 2 * 4)) & 15;
        int hi = (high[32 * half + j] >> (2 * quarter)) & 3;

        out[i] = d * (float)scale[sixteen] * (float)((lo | hi << 4) - 32);
    }
}

/* ---- rows ---- */

static void value_f32(const uint8_t *b, float *out)
{
    memcpy(out, b, sizeof *out);
}

static void value_f16(const uint8_t *b, float *out)
{
    *out = half_at(b);
}

static void value_bf16(const uint8_t *b, float *out)
{
    *out = td_bf16_to_f32(load16(b));
}

static void (*const block_fn[])(const uint8_t *, float *) = {
    [TD_DTYPE_F32] = value_f32,   [TD_DTYPE_F16] = value_f16,   [TD_DTYPE_Q4_0] = block_q4_0,
    [TD_DTYPE_Q4_1] = block_q4_1, [TD_DTYPE_Q5_0] = block_q5_0, [TD_DTYPE_Q5_1] = block_q5_1,
    [TD_DTYPE_Q8_0] = block_q8_0, [TD_DTYPE_Q4_K] = block_q4_k, [TD_DTYPE_Q5_K] = block_q5_k,
    [TD_DTYPE_Q6_K] = block_q6_k, [TD_DTYPE_BF16] = value_bf16,
};

bool td_dequant_supported(enum td_dtype dtype)
{
    return (size_t)dtype < TD_COUNT(block_fn) && block_fn[dtype] != NULL;
}

void td_dequant_row(enum td_dtype dtype, const void *src, size_t n, float *out)
{
    const struct td_dtype_info *info = td_dtype_info((uint32_t)dtype);
    const uint8_t *b = src;

    TD_REQUIRE(td_dequant_supported(dtype) && n % info->block == 0);
    for (size_t i = 0; i < n; i += info->block, b += info->block_bytes) {
        block_fn[dtype](b, out + i);
    }
}
