/* Row operations with AVX2, in the sixteen-lane order of NUMERICS.md. */
#include <string.h>

#include "kernels/cpu/avx2/tk_avx2.h"
#include "kernels/tk_internal.h"

static __m256 load_n(const float *x, int n)
{
    return _mm256_maskload_ps(x, first8(n));
}

static float max8(__m256 v)
{
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

static void quant_block(const float *x, int8_t *q, struct tk_qblk *out)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_setzero_ps();
    int32_t ints[TK_QK], sum = 0;
    for (int i = 0; i < TK_QK; i += 8) {
        m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    }
    float amax = max8(m);
    bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
    __m256 id = _mm256_set1_ps(tiny ? 0 : 127.0f / amax);
    for (int i = 0; i < TK_QK; i += 8) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), id));
        v = tiny ? _mm256_setzero_si256() : v;
        _mm256_storeu_si256((__m256i *)(void *)(ints + i), v);
    }
    for (int i = 0; i < TK_QK; i++) {
        q[i] = (int8_t)ints[i];
        sum += ints[i];
        if (i == 15) {
            out->sum_low = sum;
        }
    }
    out->sum = sum;
    out->d = tiny ? 0 : amax / 127.0f;
    out->s = out->d * (float)sum;
}

static void quant(const float *x, uint32_t n, const struct tk_act *a, uint32_t r, uint32_t b0)
{
    size_t kb = a->k / TK_QK;
    for (uint32_t b = 0; b < n / TK_QK; b++) {
        size_t at = ((size_t)(r / TK_PANEL) * kb + b0 + b) * TK_PANEL + r % TK_PANEL;
        quant_block(x + (size_t)b * TK_QK, a->q + at * TK_QK, a->b + at);
    }
}

static void sum_digits(const int8_t *q, struct tk_qblk *out)
{
    out->sum = 0;
    for (int i = 0; i < TK_QK; i++) {
        out->sum += q[i];
        if (i == 15) {
            out->sum_low = out->sum;
        }
    }
}

static void quant_wide_block(const float *x, int8_t *high, int8_t *low, struct tk_qblk *bh,
                             struct tk_qblk *bl)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    __m256 m = _mm256_setzero_ps();
    int32_t ints[TK_QK];
    for (int i = 0; i < TK_QK; i += 8) {
        m = _mm256_max_ps(m, _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)));
    }
    float amax = max8(m);
    bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
    __m256 id = _mm256_set1_ps(tiny ? 0 : 32512.0f / amax);
    for (int i = 0; i < TK_QK; i += 8) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), id));
        v = tiny ? _mm256_setzero_si256() : v;
        _mm256_storeu_si256((__m256i *)(void *)(ints + i), v);
    }
    for (int i = 0; i < TK_QK; i++) {
        low[i] = (int8_t)(((ints[i] + 128) & 255) - 128);
        high[i] = (int8_t)((ints[i] - low[i]) / 256);
    }
    sum_digits(high, bh);
    sum_digits(low, bl);
    bh->d = bl->d = tiny ? 0 : amax / 32512.0f;
    bh->s = bl->s = bh->d * (float)(256 * bh->sum + bl->sum);
}

static void quant_wide(const float *x, uint32_t n, const struct tk_act *a, uint32_t r)
{
    size_t kb = a->k / TK_QK, row = 2 * (size_t)r;
    for (uint32_t b = 0; b < n / TK_QK; b++) {
        size_t at = (row / TK_PANEL * kb + b) * TK_PANEL + row % TK_PANEL;
        quant_wide_block(x + (size_t)b * TK_QK, a->q + at * TK_QK, a->q + (at + 1) * TK_QK,
                         a->b + at, a->b + at + 1);
    }
}

static void rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    __m256 lo = _mm256_setzero_ps(), hi = lo;
    for (uint32_t i = 0; i < n; i += 16) {
        __m256 a = load_n(x + i, (int)(n - i)), b = load_n(x + i + 8, (int)(n - i) - 8);
        lo = _mm256_fmadd_ps(a, a, lo);
        hi = _mm256_fmadd_ps(b, b, hi);
    }
    __m128 mean = _mm_set_ss(fold16(lo, hi) / (float)n + eps);
    __m256 r = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    for (uint32_t i = 0; i < n; i += 8) {
        int left = (int)(n - i);
        __m256 v = _mm256_mul_ps(load_n(x + i, left), r);
        _mm256_maskstore_ps(y + i, first8(left), _mm256_mul_ps(v, load_n(w + i, left)));
    }
}

static void swiglu(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 8) {
        int left = (int)(n - i);
        __m256 v = load_n(g + i, left);
        __m256 e = exp8(_mm256_xor_ps(v, _mm256_set1_ps(-0.0f)));
        v = _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
        _mm256_maskstore_ps(y + i, first8(left), _mm256_mul_ps(v, load_n(u + i, left)));
    }
}

static void attn_finish(const float *so, float sl, uint32_t head_dim, float *out)
{
    __m256 r = _mm256_set1_ps(1.0f / sl);
    for (uint32_t d = 0; d < head_dim; d += 8) {
        _mm256_storeu_ps(out + d, _mm256_mul_ps(_mm256_loadu_ps(so + d), r));
    }
}

static uint32_t argmax(const float *x, uint32_t n)
{
    const __m256 worst = _mm256_set1_ps(-__builtin_inff());
    __m256 m = worst;
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i k = first8((int)(n - i));
        __m256 v = _mm256_maskload_ps(x + i, k);
        m = _mm256_max_ps(m, _mm256_blendv_ps(worst, v, _mm256_castsi256_ps(k)));
    }
    float best = max8(m);
    for (uint32_t i = 0; i < n; i++) {
        if (x[i] == best) {
            return i;
        }
    }
    return 0;
}

static float exps(const float *x, uint32_t n, float max, float scale, float *out)
{
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256 m = _mm256_set1_ps(max), s = _mm256_set1_ps(scale);
    for (uint32_t i = 0, half = 0; i < n; i += 8, half ^= 1) {
        __m256i k = first8((int)(n - i));
        __m256 v = _mm256_sub_ps(_mm256_maskload_ps(x + i, k), m);
        v = _mm256_and_ps(exp8(_mm256_mul_ps(v, s)), _mm256_castsi256_ps(k));
        _mm256_maskstore_ps(out + i, k, v);
        sum[half] = _mm256_add_ps(sum[half], v);
    }
    return fold16(sum[0], sum[1]);
}

static bool all_finite(const float *x, uint32_t n)
{
    const __m256i inf = _mm256_set1_epi32(0x7f800000);
    __m256i bad = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        __m256i v = _mm256_castps_si256(load_n(x + i, (int)(n - i)));
        bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(_mm256_and_si256(v, inf), inf));
    }
    return _mm256_testz_si256(bad, bad) != 0;
}

const struct tk_ops tk__avx2_ops = {
    .name = "avx2",
    .gemm = tk__avx2_gemm,
    .quant = quant,
    .quant_wide = quant_wide,
    .rmsnorm = rmsnorm,
    .swiglu = swiglu,
    .attn = tk__avx2_attn,
    .attn_f32 = tk__avx2_attn_f32,
    .attn_merge = tk__ref_attn_merge,
    .attn_finish = attn_finish,
    .argmax = argmax,
    .exps = exps,
    .all_finite = all_finite,
};
