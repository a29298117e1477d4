/* Products with AVX2: up to two rows of a panel, one column group, in registers.
 *
 * Design: lanes are columns (16 are two registers), so the order of NUMERICS.md holds by itself.
 * vpmaddubsw adds two products in 16 bits and saturates: unsigned nibbles and five-bit values times
 * +-128 stay below 32767; signed bytes are widened to 16 bits, even and odd ones apart, since both
 * -128 * -128 and a moved sign would go wrong.
 */
#include <string.h>

#include "kernels/cpu/avx2/tk_avx2.h"
#include "kernels/tk_internal.h"

#define MAX_ROWS 2 /* and the two digits of a wide row */

TK__INLINE bool is_nibbles(enum tk_kind kind)
{
    return kind == TK_Q4_OFF || kind == TK_Q4_MIN || kind == TK_Q4_MINF;
}

TK__INLINE __m256i load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

TK__INLINE __m256i quad_of(const int8_t *q, int i)
{
    int32_t v;
    memcpy(&v, q + 4 * i, sizeof v);
    return _mm256_set1_epi32(v);
}

/* Half h (columns 8h..8h+7) of k-quad j, as stored; signed kinds come out signed. */
TK__INLINE __m256i weights(enum tk_kind kind, const uint8_t *tile, int j, int h)
{
    if (is_nibbles(kind)) {
        __m256i v = load(tile + 64 * (j / 2) + 32 * h);
        v = j % 2 != 0 ? _mm256_srli_epi16(v, 4) : v;
        return _mm256_and_si256(v, _mm256_set1_epi8(15));
    }
    __m256i v = load(tile + 64 * j + 32 * h);
    return kind == TK_Q8_MINF ? v : _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80));
}

/* Signed bytes of each 16 bits, widened: the odd and the even ones. */
TK__INLINE __m256i odd16(__m256i v)
{
    return _mm256_srai_epi16(v, 8);
}

TK__INLINE __m256i even16(__m256i v)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}

/* Sum of the four products of each column. */
TK__INLINE __m256i dot4(enum tk_kind kind, __m256i w, __m256i q)
{
    if (is_nibbles(kind) || kind == TK_Q8_MINF) {
        return _mm256_madd_epi16(_mm256_maddubs_epi16(w, q), _mm256_set1_epi16(1));
    }
    return _mm256_add_epi32(_mm256_madd_epi16(even16(w), even16(q)),
                            _mm256_madd_epi16(odd16(w), odd16(q)));
}

TK__INLINE __m256 scale(enum tk_kind kind, const uint8_t *tile, int which, int h)
{
    const uint8_t *p = tile + (is_nibbles(kind) ? TK__NIBBLE_BYTES : TK__BYTE_BYTES);
    if (kind == TK_Q4_OFF || kind == TK_Q4_MIN || kind == TK_Q8_F16) {
        p += 32 * which + 16 * h;
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
    }
    return _mm256_loadu_ps((const float *)(const void *)(p + 64 * which + 32 * h));
}

/* One block of one column group and the digit rows of a panel. */
struct operands {
    const uint8_t *tile;
    const int8_t *q;
    const struct tk_qblk *b;
};

/* sum[r] = integer sums of k-quads [j0, j1) of half h. */
TK__INLINE void sums(enum tk_kind kind, int R, const struct operands *o, int h, int j0, int j1,
                     __m256i *sum)
{
    for (int r = 0; r < R; r++) {
        sum[r] = _mm256_setzero_si256();
    }
    for (int j = j0; j < j1; j++) {
        __m256i w = weights(kind, o->tile, j, h);
        for (int r = 0; r < R; r++) {
            sum[r] = _mm256_add_epi32(sum[r], dot4(kind, w, quad_of(o->q + r * TK_QK, j)));
        }
    }
}

TK__INLINE __m256 scaled(__m256 acc, __m256i sum, __m256 dw, float da)
{
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(dw, _mm256_set1_ps(da)), acc);
}

/* Two digit rows become one row's sum. */
TK__INLINE void join_digits(bool wide, __m256i *sum)
{
    if (wide) {
        sum[0] = _mm256_add_epi32(_mm256_slli_epi32(sum[0], 8), sum[1]);
    }
}

TK__INLINE void block(enum tk_kind kind, int R, bool wide, const struct operands *o, int h,
                      __m256 *acc)
{
    __m256i sum[MAX_ROWS];
    int rows = wide ? R / 2 : R;
    if (kind == TK_Q8_HALVES) {
        for (int half = 0; half < 2; half++) {
            sums(kind, R, o, h, 4 * half, 4 * half + 4, sum);
            join_digits(wide, sum);
            for (int r = 0; r < rows; r++) {
                acc[r] = scaled(acc[r], sum[r], scale(kind, o->tile, half, h), o->b[r].d);
            }
        }
        return;
    }
    sums(kind, R, o, h, 0, 8, sum);
    for (int r = 0; r < R && kind == TK_Q4_OFF; r++) {
        sum[r] = _mm256_sub_epi32(sum[r], _mm256_set1_epi32(8 * o->b[r].sum));
    }
    join_digits(wide, sum);
    for (int r = 0; r < rows; r++) {
        acc[r] = scaled(acc[r], sum[r], scale(kind, o->tile, 0, h), o->b[r].d);
        if (kind == TK_Q4_MIN || kind == TK_Q4_MINF || kind == TK_Q8_MINF) {
            acc[r] = _mm256_fmadd_ps(scale(kind, o->tile, 1, h), _mm256_set1_ps(o->b[r].s), acc[r]);
        }
    }
}

TK__INLINE void store(const struct tk_gemm *g, uint32_t t, uint32_t row, int h, __m256 acc)
{
    int left = (int)(g->w->n - t * TK_LANES) - 8 * h;
    float *y = g->y + (size_t)row * g->y_stride + (t * TK_LANES - g->col0) + 8 * h;
    __m256i mask = first8(left);
    if (g->add) {
        acc = _mm256_add_ps(_mm256_maskload_ps(y, mask), acc);
    }
    _mm256_maskstore_ps(y, mask, acc);
}

/* R digit rows from `row`. */
TK__INLINE void rows(enum tk_kind kind, int R, bool wide, const struct tk_gemm *g, uint32_t t,
                     uint32_t row)
{
    uint32_t kb = g->w->k / TK_QK, r0 = g->row0 + row;
    size_t at = (size_t)(r0 / TK_PANEL) * kb * TK_PANEL + r0 % TK_PANEL;
    const uint8_t *tile = g->w->data + (size_t)t * kb * g->w->tile_bytes;
    __m256 acc[2][MAX_ROWS];
    for (int i = 0; i < R; i++) {
        acc[0][i] = acc[1][i] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < kb; b++, tile += tk__layouts[kind].tile_bytes, at += TK_PANEL) {
        if (R == 1) {
            _mm_prefetch((const char *)tile + 4096, _MM_HINT_T0);
        }
        struct operands o = {tile, g->a->q + at * TK_QK, g->a->b + at};
        block(kind, R, wide, &o, 0, acc[0]);
        block(kind, R, wide, &o, 1, acc[1]);
    }
    for (int r = 0; r < (wide ? 1 : R); r++) {
        store(g, t, (wide ? row / 2 : row) + (uint32_t)r, 0, acc[0][r]);
        store(g, t, (wide ? row / 2 : row) + (uint32_t)r, 1, acc[1][r]);
    }
}

TK__INLINE void tiles(enum tk_kind kind, bool wide, const struct tk_gemm *g, uint32_t t,
                      uint32_t end)
{
    uint32_t m = wide ? 2 * g->m : g->m;
    for (; t < end; t++) {
        uint32_t row = 0;
        for (; row + MAX_ROWS <= m; row += MAX_ROWS) {
            rows(kind, MAX_ROWS, wide, g, t, row);
        }
        if (row < m) {
            rows(kind, 1, false, g, t, row);
        }
    }
}

/* One function per kind, so that each is compiled for its own layout. */
#define KIND_FN(name, kind)                                                                        \
    static void name(const struct tk_gemm *g, uint32_t t, uint32_t end)                            \
    {                                                                                              \
        if (g->wide) {                                                                             \
            tiles(kind, true, g, t, end);                                                          \
        } else {                                                                                   \
            tiles(kind, false, g, t, end);                                                         \
        }                                                                                          \
    }
KIND_FN(gemm_q4_off, TK_Q4_OFF)
KIND_FN(gemm_q4_min, TK_Q4_MIN)
KIND_FN(gemm_q4_minf, TK_Q4_MINF)
KIND_FN(gemm_q8_f16, TK_Q8_F16)
KIND_FN(gemm_q8_f32, TK_Q8_F32)
KIND_FN(gemm_q8_minf, TK_Q8_MINF)
KIND_FN(gemm_q8_halves, TK_Q8_HALVES)

/* f32 numerics: k in order, one fma each. */
static void gemm_f32(const struct tk_gemm *g, uint32_t t, uint32_t end)
{
    uint32_t k = g->w->k;
    for (; t < end; t++) {
        const float *w = (const float *)(const void *)(g->w->data + (size_t)t * k * TK_LANES * 4);
        for (uint32_t row = 0; row < g->m; row++) {
            const float *x = g->a->x + (size_t)(g->row0 + row) * k;
            __m256 lo = _mm256_setzero_ps(), hi = lo;
            for (uint32_t i = 0; i < k; i++) {
                __m256 v = _mm256_set1_ps(x[i]);
                lo = _mm256_fmadd_ps(_mm256_loadu_ps(w + (size_t)i * TK_LANES), v, lo);
                hi = _mm256_fmadd_ps(_mm256_loadu_ps(w + (size_t)i * TK_LANES + 8), v, hi);
            }
            store(g, t, row, 0, lo);
            store(g, t, row, 1, hi);
        }
    }
}

void tk__avx2_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles)
{
    static void (*const by_kind[TK_N_KINDS])(const struct tk_gemm *, uint32_t, uint32_t) = {
        [TK_Q4_OFF] = gemm_q4_off,       [TK_Q4_MIN] = gemm_q4_min, [TK_Q4_MINF] = gemm_q4_minf,
        [TK_Q8_F16] = gemm_q8_f16,       [TK_Q8_F32] = gemm_q8_f32, [TK_Q8_MINF] = gemm_q8_minf,
        [TK_Q8_HALVES] = gemm_q8_halves, [TK_F32] = gemm_f32,
    };
    by_kind[g->w->kind](g, tile0, tile0 + n_tiles);
}
