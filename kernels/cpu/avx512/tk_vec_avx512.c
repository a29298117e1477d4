/* Row operations with AVX-512, in the sixteen-lane order of NUMERICS.md. */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/avx512/tk_avx512.h"
#include "kernels/tk_internal.h"

void tk__avx512_quant(const float *x, uint32_t n, const struct tk_act *a, uint32_t r, uint32_t b0)
{
    size_t kb = a->k / TK_QK;
    for (uint32_t i = 0; i < n / TK_QK; i++, x += TK_QK) {
        size_t at = ((size_t)(r / TK_PANEL) * kb + b0 + i) * TK_PANEL + r % TK_PANEL;
        struct tk_qblk *out = a->b + at;
        __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
        float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v0), _mm512_abs_ps(v1)));
        bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
        __m512 id = _mm512_set1_ps(tiny ? 0 : 127.0f / amax);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, id));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, id));
        if (tiny) {
            q0 = q1 = _mm512_setzero_si512();
        }
        int8_t *q = a->q + at * TK_QK;
        _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtsepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtsepi32_epi8(q1));
        out->d = tiny ? 0 : amax / 127.0f;
        out->sum_low = _mm512_reduce_add_epi32(q0);
        out->sum = out->sum_low + _mm512_reduce_add_epi32(q1);
        out->s = out->d * (float)out->sum;
    }
}

static void wide_sums(__m512i q0, __m512i q1, int8_t *q, struct tk_qblk *out)
{
    _mm_storeu_si128((__m128i *)(void *)q, _mm512_cvtepi32_epi8(q0));
    _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm512_cvtepi32_epi8(q1));
    out->sum_low = _mm512_reduce_add_epi32(q0);
    out->sum = out->sum_low + _mm512_reduce_add_epi32(q1);
}

/* The low digit of 16-bit values: their low byte, signed. */
static __m512i low_digit(__m512i q)
{
    return _mm512_srai_epi32(_mm512_slli_epi32(q, 24), 24);
}

void tk__avx512_quant_wide(const float *x, uint32_t n, const struct tk_act *a, uint32_t r)
{
    size_t kb = a->k / TK_QK, row = 2 * (size_t)r;
    for (uint32_t i = 0; i < n / TK_QK; i++, x += TK_QK) {
        size_t at = (row / TK_PANEL * kb + i) * TK_PANEL + row % TK_PANEL;
        struct tk_qblk *high = a->b + at, *low = a->b + at + 1;
        __m512 v0 = _mm512_loadu_ps(x), v1 = _mm512_loadu_ps(x + 16);
        float amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(v0), _mm512_abs_ps(v1)));
        bool tiny = !(amax >= 1e-30f && amax <= 3.4e38f);
        __m512 id = _mm512_set1_ps(tiny ? 0 : 32512.0f / amax);
        __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(v0, id));
        __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(v1, id));
        if (tiny) {
            q0 = q1 = _mm512_setzero_si512();
        }
        __m512i l0 = low_digit(q0), l1 = low_digit(q1);
        __m512i h0 = _mm512_srai_epi32(_mm512_sub_epi32(q0, l0), 8);
        __m512i h1 = _mm512_srai_epi32(_mm512_sub_epi32(q1, l1), 8);
        wide_sums(h0, h1, a->q + at * TK_QK, high);
        wide_sums(l0, l1, a->q + (at + 1) * TK_QK, low);
        high->d = low->d = tiny ? 0 : amax / 32512.0f;
        high->s = low->s = high->d * (float)(256 * high->sum + low->sum);
    }
}

void tk__avx512_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    __m512 ss = _mm512_setzero_ps();
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes(n - i), x + i);
        ss = _mm512_fmadd_ps(v, v, ss);
    }
    __m128 mean = _mm_set_ss(fold16(ss) / (float)n + eps);
    __m512 r = _mm512_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = lanes(n - i);
        __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(k, x + i), r);
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, w + i)));
    }
}

void tk__avx512_swiglu(const float *g, const float *u, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = lanes(n - i);
        __m512 v = _mm512_maskz_loadu_ps(k, g + i);
        __m512 e = exp16(_mm512_xor_ps(v, _mm512_set1_ps(-0.0f)));
        v = _mm512_div_ps(v, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
        _mm512_mask_storeu_ps(y + i, k, _mm512_mul_ps(v, _mm512_maskz_loadu_ps(k, u + i)));
    }
}

void tk__avx512_attn_merge(const struct tk_attn *part, float *sm, float *sl, float *so, bool first)
{
    uint32_t dim = part->head_dim;
    for (uint32_t v = 0; v < part->nq; v++) {
        const float *o = part->o + (size_t)v * dim;
        float *out = so + (size_t)v * dim;
        if (part->limit[v] == 0) {
            continue;
        }
        if (first) {
            sm[v] = part->m[v];
            sl[v] = part->l[v];
            memcpy(out, o, dim * sizeof *o);
            continue;
        }
        float m = part->m[v] > sm[v] ? part->m[v] : sm[v];
        __m512 e = exp16(
            _mm512_set_ps(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, part->m[v] - m, sm[v] - m));
        __m512 a = _mm512_permutexvar_ps(_mm512_setzero_si512(), e);
        __m512 b = _mm512_permutexvar_ps(_mm512_set1_epi32(1), e);
        __m512 l = _mm512_mul_ps(_mm512_set1_ps(part->l[v]), b);
        sl[v] = _mm512_cvtss_f32(_mm512_fmadd_ps(_mm512_set1_ps(sl[v]), a, l));
        sm[v] = m;
        for (uint32_t d = 0; d < dim; d += 16) {
            __m512 t = _mm512_mul_ps(_mm512_loadu_ps(o + d), b);
            _mm512_storeu_ps(out + d, _mm512_fmadd_ps(_mm512_loadu_ps(out + d), a, t));
        }
    }
}

void tk__avx512_attn_finish(const float *so, float sl, uint32_t head_dim, float *out)
{
    __m512 r = _mm512_set1_ps(1.0f / sl);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        _mm512_storeu_ps(out + d, _mm512_mul_ps(_mm512_loadu_ps(so + d), r));
    }
}

uint32_t tk__avx512_argmax(const float *x, uint32_t n)
{
    const __m512 worst = _mm512_set1_ps(-__builtin_inff());
    __m512 m = worst;
    for (uint32_t i = 0; i < n; i += 16) {
        m = _mm512_max_ps(m, _mm512_mask_loadu_ps(worst, lanes(n - i), x + i));
    }
    __m512 best = _mm512_set1_ps(_mm512_reduce_max_ps(m));
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = lanes(n - i);
        k = _mm512_mask_cmp_ps_mask(k, _mm512_maskz_loadu_ps(k, x + i), best, _CMP_EQ_OQ);
        if (k != 0) {
            return i + (uint32_t)__builtin_ctz(k);
        }
    }
    return 0;
}

float tk__avx512_exps(const float *x, uint32_t n, float max, float scale, float *out)
{
    __m512 sum = _mm512_setzero_ps(), m = _mm512_set1_ps(max), s = _mm512_set1_ps(scale);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = lanes(n - i);
        __m512 v = _mm512_sub_ps(_mm512_maskz_loadu_ps(k, x + i), m);
        v = _mm512_maskz_mov_ps(k, exp16(_mm512_mul_ps(v, s)));
        _mm512_mask_storeu_ps(out + i, k, v);
        sum = _mm512_add_ps(sum, v);
    }
    return fold16(sum);
}

bool tk__avx512_all_finite(const float *x, uint32_t n)
{
    const __m512i inf = _mm512_set1_epi32(0x7f800000);
    for (uint32_t i = 0; i < n; i += 16) {
        __mmask16 k = lanes(n - i);
        __m512i v = _mm512_castps_si512(_mm512_maskz_loadu_ps(k, x + i));
        if (_mm512_mask_cmpeq_epi32_mask(k, _mm512_and_si512(v, inf), inf) != 0) {
            return false;
        }
    }
    return true;
}

const struct tk_ops tk__avx512_ops = {
    .name = "avx512-vnni",
    .gemm = tk__avx512_gemm,
    .quant = tk__avx512_quant,
    .quant_wide = tk__avx512_quant_wide,
    .rmsnorm = tk__avx512_rmsnorm,
    .swiglu = tk__avx512_swiglu,
    .attn = tk__avx512_attn,
    .attn_f32 = tk__avx512_attn_f32,
    .attn_merge = tk__avx512_attn_merge,
    .attn_finish = tk__avx512_attn_finish,
    .argmax = tk__avx512_argmax,
    .exps = tk__avx512_exps,
    .all_finite = tk__avx512_all_finite,
};
