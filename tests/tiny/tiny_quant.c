#include "tests/tiny/tiny_quant.h"

#include <math.h>
#include <string.h>

#include "common/base/assert.h"
#include "common/model/dequant.h"

static void store16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Stores x as a half and returns what was stored. */
static float store_half(uint8_t *p, float x)
{
    uint16_t h = td_f32_to_f16(x);

    store16(p, h);
    return td_f16_to_f32(h);
}

/* Nearest code in [lo, hi] to x / step; 0 where the step is 0. */
static int code(float x, float step, int lo, int hi)
{
    float q = step != 0 ? rintf(x / step) : 0;

    return q < (float)lo ? lo : q > (float)hi ? hi : (int)q;
}

static float max_abs(const float *x, int n)
{
    float m = 0;

    for (int i = 0; i < n; i++) {
        m = fabsf(x[i]) > m ? fabsf(x[i]) : m;
    }
    return m;
}

static void range(const float *x, int n, float *lo, float *hi)
{
    *lo = *hi = x[0];
    for (int i = 1; i < n; i++) {
        *lo = x[i] < *lo ? x[i] : *lo;
        *hi = x[i] > *hi ? x[i] : *hi;
    }
}

static void pack_nibbles(const int *q, uint8_t *out)
{
    for (int j = 0; j < 16; j++) {
        out[j] = (uint8_t)((q[j] & 15) | (q[j + 16] & 15) << 4);
    }
}

static void pack_fifth(const int *q, uint8_t *out)
{
    memset(out, 0, 4);
    for (int j = 0; j < 32; j++) {
        out[j / 8] |= (uint8_t)(((q[j] >> 4) & 1) << j % 8);
    }
}

/* ---- blocks of 32 ---- */

/* Codes around zero: `bits` wide, stored with an offset. */
static void symmetric(const float *x, int bits, uint8_t *d_at, int *q)
{
    int half = 1 << (bits - 1);
    float d = store_half(d_at, max_abs(x, 32) / (float)(half - 1));

    for (int j = 0; j < 32; j++) {
        q[j] = code(x[j], d, -half, half - 1) + half;
    }
}

/* Codes from the block's minimum up. */
static void asymmetric(const float *x, int bits, uint8_t *d_at, int *q)
{
    int top = (1 << bits) - 1;
    float lo;
    float hi;
    float d;
    float m;

    range(x, 32, &lo, &hi);
    d = store_half(d_at, (hi - lo) / (float)top);
    m = store_half(d_at + 2, lo);
    for (int j = 0; j < 32; j++) {
        q[j] = code(x[j] - m, d, 0, top);
    }
}

static void block_q4_0(const float *x, uint8_t *out)
{
    int q[32];

    symmetric(x, 4, out, q);
    pack_nibbles(q, out + 2);
}

static void block_q4_1(const float *x, uint8_t *out)
{
    int q[32];

    asymmetric(x, 4, out, q);
    pack_nibbles(q, out + 4);
}

static void block_q5_0(const float *x, uint8_t *out)
{
    int q[32];

    symmetric(x, 5, out, q);
    pack_fifth(q, out + 2);
    pack_nibbles(q, out + 6);
}

static void block_q5_1(const float *x, uint8_t *out)
{
    int q[32];

    asymmetric(x, 5, out, q);
    pack_fifth(q, out + 4);
    pack_nibbles(q, out + 8);
}

static void block_q8_0(const float *x, uint8_t *out)
{
    float d = store_half(out, max_abs(x, 32) / 127);

    for (int j = 0; j < 32; j++) {
        out[2 + j] = (uint8_t)code(x[j], d, -127, 127);
    }
}

/* ---- blocks of 256 ---- */

static void pack_k_scales(const uint8_t *scale, const uint8_t *min, uint8_t out[12])
{
    for (int j = 0; j < 4; j++) {
        out[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4) << 6);
        out[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4) << 6);
        out[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

/* Header of Q4_K and Q5_K (16 bytes), then codes 0 to top in q[256]. */
static void k_codes(const float *x, int top, uint8_t *out, uint8_t *q)
{
    float step[8];
    float low[8];
    uint8_t scale[8];
    uint8_t min[8];
    float d;
    float dmin;

    for (int s = 0; s < 8; s++) {
        float hi;

        range(x + 32 * s, 32, &low[s], &hi);
        low[s] = low[s] < 0 ? -low[s] : 0; /* the minimum is stored as what is taken away */
        step[s] = (hi + low[s]) / (float)top;
        step[s] = step[s] > 0 ? step[s] : 0;
    }
    d = store_half(out, max_abs(step, 8) / 63);
    dmin = store_half(out + 2, max_abs(low, 8) / 63);
    for (int s = 0; s < 8; s++) {
        scale[s] = (uint8_t)code(step[s], d, 0, 63);
        min[s] = (uint8_t)code(low[s], dmin, 0, 63);
        for (int j = 0; j < 32; j++) {
            q[32 * s + j] =
                (uint8_t)code(x[32 * s + j] + dmin * (float)min[s], d * (float)scale[s], 0, top);
        }
    }
    pack_k_scales(scale, min, out + 4);
}

static void pack_k_nibbles(const uint8_t *q, uint8_t *out)
{
    for (int i = 0; i < 128; i++) {
        const uint8_t *pair = q + 64 * (i / 32) + i % 32;

        out[i] = (uint8_t)((pair[0] & 15) | (pair[32] & 15) << 4);
    }
}

static void block_q4_k(const float *x, uint8_t *out)
{
    uint8_t q[256];

    k_codes(x, 15, out, q);
    pack_k_nibbles(q, out + 16);
}

static void block_q5_k(const float *x, uint8_t *out)
{
    uint8_t q[256];

    k_codes(x, 31, out, q);
    memset(out + 16, 0, 32);
    for (int i = 0; i < 256; i++) {
        out[16 + i % 32] |= (uint8_t)((q[i] >> 4) << i / 32);
    }
    pack_k_nibbles(q, out + 48);
}

static void block_q6_k(const float *x, uint8_t *out)
{
    float step[16];
    float d;

    memset(out, 0, 192);
    for (int s = 0; s < 16; s++) {
        step[s] = max_abs(x + 16 * s, 16) / 31;
    }
    d = store_half(out + 208, max_abs(step, 16) / 127);
    for (int i = 0; i < 256; i++) {
        int sc = code(step[i / 16], d, -128, 127);
        int q = code(x[i], d * (float)sc, -32, 31) + 32;
        int quarter = i % 128 / 32;
        int half = i / 128;

        out[192 + i / 16] = (uint8_t)sc;
        out[64 * half + 32 * (quarter % 2) + i % 32] |= (uint8_t)((q & 15) << (quarter / 2 * 4));
        out[128 + 32 * half + i % 32] |= (uint8_t)((q >> 4) << (2 * quarter));
    }
}

static void value_f32(const float *x, uint8_t *out)
{
    memcpy(out, x, sizeof *x);
}

static void value_f16(const float *x, uint8_t *out)
{
    store16(out, td_f32_to_f16(*x));
}

static void value_bf16(const float *x, uint8_t *out)
{
    store16(out, td_f32_to_bf16(*x));
}

static void (*const block_fn[])(const float *, uint8_t *) = {
    [TD_DTYPE_F32] = value_f32,   [TD_DTYPE_F16] = value_f16,   [TD_DTYPE_Q4_0] = block_q4_0,
    [TD_DTYPE_Q4_1] = block_q4_1, [TD_DTYPE_Q5_0] = block_q5_0, [TD_DTYPE_Q5_1] = block_q5_1,
    [TD_DTYPE_Q8_0] = block_q8_0, [TD_DTYPE_Q4_K] = block_q4_k, [TD_DTYPE_Q5_K] = block_q5_k,
    [TD_DTYPE_Q6_K] = block_q6_k, [TD_DTYPE_BF16] = value_bf16,
};

void td_tiny_quantize_row(enum td_dtype dtype, const float *x, size_t n, uint8_t *out)
{
    const struct td_dtype_info *info = td_dtype_info((uint32_t)dtype);

    TD_REQUIRE(td_dequant_supported(dtype) && n % info->block == 0);
    for (size_t i = 0; i < n; i += info->block, out += info->block_bytes) {
        block_fn[dtype](x + i, out);
    }
}
