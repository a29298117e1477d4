/* One chunk of attention with AVX-512.
 *
 * Design: scores have tokens in lanes (K is stored [dim][16 tokens], so no horizontal sums), the
 * weighted sum of V has dims in lanes. Query vectors are taken in groups that fill the registers;
 * bf16 is widened in registers by shifts that run beside the products. Every score and every output
 * dim is one chain of fma in the order of NUMERICS.md, so grouping never changes a bit.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/avx512/tk_avx512.h"
#include "kernels/tk_internal.h"

/* Sixteen values of a KV block from element `at`. */
TK__INLINE __m512 kv16(const void *base, size_t at, bool f32)
{
    if (f32) {
        return _mm512_loadu_ps((const float *)base + at);
    }
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)base + at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* How a call's inlined copies differ: constants, so that what is off costs nothing. */
struct mode {
    bool f32, window;
};

/* Where the visible tokens of vector v begin. */
TK__INLINE uint32_t first_of(const struct tk_attn *a, struct mode mode, uint32_t v)
{
    return mode.window ? a->first[v] : 0;
}

/* Scores of NV vectors from v0 against B blocks from b0. */
TK__INLINE void scores(const struct tk_attn *a, bool f32, int NV, int B, uint32_t v0, uint32_t b0)
{
    uint32_t dim = a->head_dim;
    const float *q = a->q + (size_t)v0 * dim;
    const void *k[4];
    __m512 acc[16];
    for (int b = 0; b < B; b++) {
        k[b] = a->k[b0 + (uint32_t)b];
    }
    for (int i = 0; i < NV * B; i++) {
        acc[i] = _mm512_setzero_ps();
    }
    for (uint32_t d = 0; d < dim; d++) {
        __m512 kv[4];
        for (int b = 0; b < B; b++) {
            kv[b] = kv16(k[b], (size_t)d * TK_BLOCK_TOK, f32);
        }
        for (int v = 0; v < NV; v++) {
            __m512 x = _mm512_set1_ps(q[(size_t)v * dim + d]);
            for (int b = 0; b < B; b++) {
                acc[v * B + b] = _mm512_fmadd_ps(x, kv[b], acc[v * B + b]);
            }
        }
    }
    for (int v = 0; v < NV; v++) {
        float *s = a->scratch + (size_t)(v0 + (uint32_t)v) * TK_CHUNK_TOK + b0 * TK_BLOCK_TOK;
        for (int b = 0; b < B; b++) {
            _mm512_storeu_ps(s + b * TK_BLOCK_TOK, acc[v * B + b]);
        }
    }
}

/* Blocks lie far apart, so the hardware does not foresee them: few vectors would wait for each. */
static void prefetch_blocks(const struct tk_attn *a, const void *const *blocks, uint32_t b0,
                            uint32_t n, bool f32)
{
    uint32_t bytes = a->head_dim * TK_BLOCK_TOK * (f32 ? 4 : 2);
    uint32_t end = (a->n_tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    for (uint32_t b = b0; b < b0 + n && b < end; b++) {
        for (uint32_t i = 0; i < bytes; i += 64) {
            _mm_prefetch((const char *)blocks[b] + i, _MM_HINT_T1);
        }
    }
}

TK__INLINE void scores_group(const struct tk_attn *a, struct mode mode, int NV, uint32_t v0)
{
    uint32_t limit = 0, first = TK_CHUNK_TOK;
    for (int v = 0; v < NV; v++) {
        uint32_t l = a->limit[v0 + (uint32_t)v], f = first_of(a, mode, v0 + (uint32_t)v);
        limit = l > limit ? l : limit;
        first = f < first ? f : first;
    }
    uint32_t b = first / TK_BLOCK_TOK, n = (limit + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    if (NV <= 4) {
        prefetch_blocks(a, a->k, b, 4, mode.f32);
        for (; b + 4 <= n; b += 4) {
            prefetch_blocks(a, a->k, b + 4, 4, mode.f32);
            prefetch_blocks(a, a->v, b, 4, mode.f32);
            scores(a, mode.f32, NV, 4, v0, b);
        }
        prefetch_blocks(a, a->v, b, 4, mode.f32);
    }
    for (; b + 2 <= n; b += 2) {
        scores(a, mode.f32, NV, 2, v0, b);
    }
    if (b < n) {
        scores(a, mode.f32, NV, 1, v0, b);
    }
}

/* Lanes of tokens t.. that lie in [first, n). */
TK__INLINE __mmask16 visible(uint32_t first, uint32_t n, uint32_t t)
{
    return first <= t ? lanes(n - t) : _kandn_mask16(lanes(first - t), lanes(n - t));
}

/* Scores become weights: m, l of one vector. Without windows `first` is the constant 0. */
TK__INLINE void softmax(const struct tk_attn *a, uint32_t v, uint32_t first)
{
    float *s = a->scratch + (size_t)v * TK_CHUNK_TOK;
    const __m512 worst = _mm512_set1_ps(-__builtin_inff());
    __m512 m = worst, sum = _mm512_setzero_ps();
    uint32_t n = a->limit[v], t0 = first / TK_LANES * TK_LANES;
    for (uint32_t t = t0; t < n; t += 16) {
        __mmask16 k = visible(first, n, t);
        m = _mm512_max_ps(m, _mm512_mask_loadu_ps(worst, k, s + t));
    }
    float best = _mm512_reduce_max_ps(m);
    m = _mm512_set1_ps(best);
    for (uint32_t t = t0; t < n; t += 16) {
        __mmask16 k = visible(first, n, t);
        __m512 e = exp16(_mm512_sub_ps(_mm512_loadu_ps(s + t), m));
        e = _mm512_maskz_mov_ps(k, e);
        _mm512_storeu_ps(s + t, e);
        sum = _mm512_add_ps(sum, e);
    }
    a->m[v] = best;
    a->l[v] = fold16(sum);
}

/* Tokens [t0, t1) of a chunk. */
struct span {
    uint32_t t0, t1;
};

/* o[16 DV dims from d0] of NV vectors += weights of a span's tokens times V. */
TK__INLINE void weigh(const struct tk_attn *a, bool f32, int NV, int DV, uint32_t v0, uint32_t d0,
                      struct span s)
{
    uint32_t dim = a->head_dim;
    const float *p = a->scratch + (size_t)v0 * TK_CHUNK_TOK;
    float *o = a->o + (size_t)v0 * dim + d0;
    __m512 acc[24];
    for (int v = 0; v < NV; v++) {
        for (int i = 0; i < DV; i++) {
            acc[v * DV + i] = _mm512_loadu_ps(o + (size_t)v * dim + 16 * i);
        }
    }
    for (uint32_t t = s.t0; t < s.t1;) {
        const void *base = a->v[t / TK_BLOCK_TOK];
        uint32_t end = (t / TK_BLOCK_TOK + 1) * TK_BLOCK_TOK < s.t1
                           ? (t / TK_BLOCK_TOK + 1) * TK_BLOCK_TOK
                           : s.t1;
        for (; t < end; t++) {
            __m512 kv[4];
            for (int i = 0; i < DV; i++) {
                kv[i] = kv16(base, (size_t)(t % TK_BLOCK_TOK) * dim + d0 + 16 * (uint32_t)i, f32);
            }
            for (int v = 0; v < NV; v++) {
                __m512 x = _mm512_set1_ps(p[(size_t)v * TK_CHUNK_TOK + t]);
                for (int i = 0; i < DV; i++) {
                    acc[v * DV + i] = _mm512_fmadd_ps(x, kv[i], acc[v * DV + i]);
                }
            }
        }
    }
    for (int v = 0; v < NV; v++) {
        for (int i = 0; i < DV; i++) {
            _mm512_storeu_ps(o + (size_t)v * dim + 16 * i, acc[v * DV + i]);
        }
    }
}

TK__INLINE void weigh_dims(const struct tk_attn *a, bool f32, int NV, uint32_t v0, uint32_t t0,
                           uint32_t t1)
{
    uint32_t d = 0;
    if (t0 >= t1) {
        return;
    }
    for (; d + 64 <= a->head_dim; d += 64) {
        weigh(a, f32, NV, 4, v0, d, (struct span){t0, t1});
    }
    for (; d < a->head_dim; d += 16) {
        weigh(a, f32, NV, 1, v0, d, (struct span){t0, t1});
    }
}

/* Tokens that only some of NV vectors see already, those all see together, then what only some
 * still see. */
TK__INLINE void weigh_group(const struct tk_attn *a, struct mode mode, int NV, uint32_t v0)
{
    uint32_t common = TK_CHUNK_TOK, from = 0;
    for (int v = 0; v < NV; v++) {
        uint32_t l = a->limit[v0 + (uint32_t)v], f = first_of(a, mode, v0 + (uint32_t)v);
        common = l < common ? l : common;
        from = f > from ? f : from;
    }
    common = common < from ? from : common;
    memset(a->o + (size_t)v0 * a->head_dim, 0, (size_t)NV * a->head_dim * sizeof *a->o);
    for (int v = 0; from > 0 && v < NV; v++) {
        uint32_t l = a->limit[v0 + (uint32_t)v];
        weigh_dims(a, mode.f32, 1, v0 + (uint32_t)v, first_of(a, mode, v0 + (uint32_t)v),
                   l < from ? l : from);
    }
    weigh_dims(a, mode.f32, NV, v0, from, common);
    for (int v = 0; v < NV; v++) {
        weigh_dims(a, mode.f32, 1, v0 + (uint32_t)v, common, a->limit[v0 + (uint32_t)v]);
    }
}

TK__INLINE void all_scores(const struct tk_attn *a, struct mode mode)
{
    uint32_t v = 0;
    for (; v + 8 <= a->nq; v += 8) {
        scores_group(a, mode, 8, v);
    }
    for (; v + 4 <= a->nq; v += 4) {
        scores_group(a, mode, 4, v);
    }
    switch (a->nq - v) {
    case 3:
        scores_group(a, mode, 3, v);
        break;
    case 2:
        scores_group(a, mode, 2, v);
        break;
    case 1:
        scores_group(a, mode, 1, v);
        break;
    default:
        break;
    }
}

TK__INLINE void all_weights(const struct tk_attn *a, struct mode mode)
{
    uint32_t v = 0;
    for (; v + 6 <= a->nq; v += 6) {
        weigh_group(a, mode, 6, v);
    }
    for (; v + 3 <= a->nq; v += 3) {
        weigh_group(a, mode, 3, v);
    }
    for (; v < a->nq; v++) {
        weigh_group(a, mode, 1, v);
    }
}

TK__INLINE void attn(const struct tk_attn *a, struct mode mode)
{
    all_scores(a, mode);
    for (uint32_t v = 0; v < a->nq; v++) {
        softmax(a, v, first_of(a, mode, v));
    }
    all_weights(a, mode);
}

/* Copies of their own, so that windows cost the others nothing. */
__attribute__((noinline)) static void attn_window(const struct tk_attn *a)
{
    attn(a, (struct mode){false, true});
}

__attribute__((noinline)) static void attn_window_f32(const struct tk_attn *a)
{
    attn(a, (struct mode){true, true});
}

void tk__avx512_attn(const struct tk_attn *a)
{
    if (a->first != NULL) {
        attn_window(a);
        return;
    }
    attn(a, (struct mode){false, false});
}

void tk__avx512_attn_f32(const struct tk_attn *a)
{
    if (a->first != NULL) {
        attn_window_f32(a);
        return;
    }
    attn(a, (struct mode){true, false});
}
