/* tk_avx512.h - what the AVX-512 files share, all compiled with the same flags: prototypes (each
 * follows the field of struct tk_ops of the same name, tk.h) and vector pieces. Never included by a
 * file of another instruction set. */
#ifndef TD_KERNELS_TK_AVX512_H
#define TD_KERNELS_TK_AVX512_H

#include <immintrin.h>

#include "kernels/tk.h"

#define TK__INLINE static inline __attribute__((always_inline))

void tk__avx512_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles);
void tk__avx512_quant(const float *x, uint32_t n, const struct tk_act *a, uint32_t r, uint32_t b0);
void tk__avx512_quant_wide(const float *x, uint32_t n, const struct tk_act *a, uint32_t r);
void tk__avx512_rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y);
void tk__avx512_swiglu(const float *g, const float *u, uint32_t n, float *y);
void tk__avx512_attn(const struct tk_attn *a);
void tk__avx512_attn_f32(const struct tk_attn *a);
void tk__avx512_attn_merge(const struct tk_attn *part, float *sm, float *sl, float *so, bool first);
void tk__avx512_attn_finish(const float *so, float sl, uint32_t head_dim, float *out);
uint32_t tk__avx512_argmax(const float *x, uint32_t n);
float tk__avx512_exps(const float *x, uint32_t n, float max, float scale, float *out);
bool tk__avx512_all_finite(const float *x, uint32_t n);

/* The first n lanes; all for 16 and more. */
TK__INLINE __mmask16 lanes(uint32_t n)
{
    return _cvtu32_mask16(n >= TK_LANES ? 0xffffu : (1u << n) - 1);
}

/* Lanes folded in the order of NUMERICS.md. */
TK__INLINE float fold16(__m512 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* exp of NUMERICS.md. */
TK__INLINE __m512 exp16(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __mmask16 live = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.0f), _CMP_GT_OQ);
    x = _mm512_min_ps(x, _mm512_set1_ps(88.0f));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(0x1.715476p+0f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-0x1.63p-1f), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(0x1.bd0106p-13f), r);
    __m512 p = _mm512_set1_ps(1.0f / 5040);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 720));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, one);
    p = _mm512_fmadd_ps(p, r, one);
    __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    __m512 two_n = _mm512_castsi512_ps(_mm512_slli_epi32(e, 23));
    return _mm512_maskz_mul_ps(live, p, two_n);
}

#endif
