/* tk_avx2.h - what the AVX2 files share, all compiled with the same flags: prototypes (each follows
 * the field of struct tk_ops of the same name, tk.h) and vector pieces. Sixteen lanes are a pair of
 * registers. Never included by a file of another instruction set. */
#ifndef TD_KERNELS_TK_AVX2_H
#define TD_KERNELS_TK_AVX2_H

#include <immintrin.h>

#include "kernels/tk.h"

#define TK__INLINE static inline __attribute__((always_inline))

void tk__avx2_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles);
void tk__avx2_attn(const struct tk_attn *a);
void tk__avx2_attn_f32(const struct tk_attn *a);

/* Lanes 0..7 and 8..15 folded in the order of NUMERICS.md. */
TK__INLINE float fold16(__m256 lo, __m256 hi)
{
    __m256 a = _mm256_add_ps(lo, hi);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* exp of NUMERICS.md. */
TK__INLINE __m256 exp8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 live = _mm256_cmp_ps(x, _mm256_set1_ps(-87.0f), _CMP_GT_OQ);
    x = _mm256_min_ps(x, _mm256_set1_ps(88.0f));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(0x1.715476p+0f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0x1.63p-1f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(0x1.bd0106p-13f), r);
    __m256 p = _mm256_set1_ps(1.0f / 5040);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 720));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 120));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 24));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f / 6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(0.5f));
    p = _mm256_fmadd_ps(p, r, one);
    p = _mm256_fmadd_ps(p, r, one);
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    __m256 two_n = _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
    return _mm256_and_ps(live, _mm256_mul_ps(p, two_n));
}

/* Mask of the first n of 8 lanes. */
TK__INLINE __m256i first8(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

#endif
