/* One chunk of attention with AVX2: the shape of the AVX-512 file with half the width, so that
 * sixteen tokens are two registers. One chain of fma per score and per output dim (NUMERICS.md). */
#include <string.h>

#include "kernels/cpu/avx2/tk_avx2.h"
#include "kernels/tk_internal.h"

#define GROUP 3 /* query vectors that share a load of K or V */

TK__INLINE __m256 kv8(const void *base, size_t at, bool f32)
{
    if (f32) {
        return _mm256_loadu_ps((const float *)base + at);
    }
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)base + at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Where the visible tokens of vector v begin. */
TK__INLINE uint32_t first_of(const struct tk_attn *a, uint32_t v)
{
    return a->first != NULL ? a->first[v] : 0;
}

/* Scores of NV vectors from v0 against block b. */
TK__INLINE void scores(const struct tk_attn *a, bool f32, int NV, uint32_t v0, uint32_t b)
{
    uint32_t dim = a->head_dim;
    const float *q = a->q + (size_t)v0 * dim;
    __m256 acc[GROUP][2];
    for (int v = 0; v < NV; v++) {
        acc[v][0] = acc[v][1] = _mm256_setzero_ps();
    }
    for (uint32_t d = 0; d < dim; d++) {
        __m256 lo = kv8(a->k[b], (size_t)d * TK_BLOCK_TOK, f32);
        __m256 hi = kv8(a->k[b], (size_t)d * TK_BLOCK_TOK + 8, f32);
        for (int v = 0; v < NV; v++) {
            __m256 x = _mm256_set1_ps(q[(size_t)v * dim + d]);
            acc[v][0] = _mm256_fmadd_ps(x, lo, acc[v][0]);
            acc[v][1] = _mm256_fmadd_ps(x, hi, acc[v][1]);
        }
    }
    for (int v = 0; v < NV; v++) {
        float *s = a->scratch + (size_t)(v0 + (uint32_t)v) * TK_CHUNK_TOK + b * TK_BLOCK_TOK;
        _mm256_storeu_ps(s, acc[v][0]);
        _mm256_storeu_ps(s + 8, acc[v][1]);
    }
}

static void softmax(const struct tk_attn *a, uint32_t v)
{
    float *s = a->scratch + (size_t)v * TK_CHUNK_TOK;
    uint32_t n = a->limit[v], first = first_of(a, v), t0 = first / TK_LANES * TK_LANES;
    float best = -__builtin_inff();
    for (uint32_t t = first; t < n; t++) {
        best = s[t] > best ? s[t] : best;
    }
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t t = t0, half = 0; t < n; t += 8, half ^= 1) {
        __m256 e = exp8(_mm256_sub_ps(_mm256_loadu_ps(s + t), _mm256_set1_ps(best)));
        e = _mm256_and_ps(e, _mm256_castsi256_ps(first8((int)(n - t))));
        if (t < first) {
            e = _mm256_andnot_ps(_mm256_castsi256_ps(first8((int)(first - t))), e);
        }
        _mm256_storeu_ps(s + t, e);
        sum[half] = _mm256_add_ps(sum[half], e);
    }
    a->m[v] = best;
    a->l[v] = fold16(sum[0], sum[1]);
}

/* o[16 dims from d0] of NV vectors += weights of tokens [t0, t1) times V. */
TK__INLINE void weigh(const struct tk_attn *a, bool f32, int NV, uint32_t v0, uint32_t d0,
                      uint32_t t0, uint32_t t1)
{
    uint32_t dim = a->head_dim;
    const float *p = a->scratch + (size_t)v0 * TK_CHUNK_TOK;
    float *o = a->o + (size_t)v0 * dim + d0;
    __m256 acc[GROUP][2];
    for (int v = 0; v < NV; v++) {
        acc[v][0] = _mm256_loadu_ps(o + (size_t)v * dim);
        acc[v][1] = _mm256_loadu_ps(o + (size_t)v * dim + 8);
    }
    for (uint32_t t = t0; t < t1; t++) {
        size_t at = (size_t)(t % TK_BLOCK_TOK) * dim + d0;
        __m256 lo = kv8(a->v[t / TK_BLOCK_TOK], at, f32);
        __m256 hi = kv8(a->v[t / TK_BLOCK_TOK], at + 8, f32);
        for (int v = 0; v < NV; v++) {
            __m256 x = _mm256_set1_ps(p[(size_t)v * TK_CHUNK_TOK + t]);
            acc[v][0] = _mm256_fmadd_ps(x, lo, acc[v][0]);
            acc[v][1] = _mm256_fmadd_ps(x, hi, acc[v][1]);
        }
    }
    for (int v = 0; v < NV; v++) {
        _mm256_storeu_ps(o + (size_t)v * dim, acc[v][0]);
        _mm256_storeu_ps(o + (size_t)v * dim + 8, acc[v][1]);
    }
}

/* Whole chunk for NV vectors: scores, weights, then the tokens that only some see already, those
 * all see, and those only some still see. */
TK__INLINE void group(const struct tk_attn *a, bool f32, int NV, uint32_t v0)
{
    uint32_t common = TK_CHUNK_TOK, most = 0, from = 0, least = TK_CHUNK_TOK;
    for (int v = 0; v < NV; v++) {
        uint32_t l = a->limit[v0 + (uint32_t)v], f = first_of(a, v0 + (uint32_t)v);
        common = l < common ? l : common;
        most = l > most ? l : most;
        from = f > from ? f : from;
        least = f < least ? f : least;
    }
    common = common < from ? from : common;
    for (uint32_t b = least / TK_BLOCK_TOK; b * TK_BLOCK_TOK < most; b++) {
        scores(a, f32, NV, v0, b);
    }
    for (int v = 0; v < NV; v++) {
        softmax(a, v0 + (uint32_t)v);
    }
    memset(a->o + (size_t)v0 * a->head_dim, 0, (size_t)NV * a->head_dim * sizeof *a->o);
    for (uint32_t d = 0; d < a->head_dim; d += TK_LANES) {
        for (int v = 0; from > 0 && v < NV; v++) {
            uint32_t l = a->limit[v0 + (uint32_t)v];
            weigh(a, f32, 1, v0 + (uint32_t)v, d, first_of(a, v0 + (uint32_t)v),
                  l < from ? l : from);
        }
        weigh(a, f32, NV, v0, d, from, common);
        for (int v = 0; v < NV; v++) {
            weigh(a, f32, 1, v0 + (uint32_t)v, d, common, a->limit[v0 + (uint32_t)v]);
        }
    }
}

TK__INLINE void attn(const struct tk_attn *a, bool f32)
{
    uint32_t v = 0;
    for (; v + GROUP <= a->nq; v += GROUP) {
        group(a, f32, GROUP, v);
    }
    for (; v < a->nq; v++) {
        group(a, f32, 1, v);
    }
}

void tk__avx2_attn(const struct tk_attn *a)
{
    attn(a, false);
}

void tk__avx2_attn_f32(const struct tk_attn *a)
{
    attn(a, true);
}
