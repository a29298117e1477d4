/* Products with AVX-512 VNNI: up to eight rows of a panel x one column group in registers.
 *
 * Design: lanes are columns, so every column adds its blocks in the order of NUMERICS.md whatever R
 * is. vpdpbusd takes the stored unsigned weights; what the offset adds is removed by starting the
 * integer sum at -offset * (sum of the block's activations). Nibbles are split in registers: the
 * shifts run on pipes that the products leave idle. One row streams weights and prefetches ahead;
 * several column groups at a time would be several streams, which memory serves at half the rate.
 */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/avx512/tk_avx512.h"
#include "kernels/tk_internal.h"

#define PREFETCH_AHEAD 8192

struct operands {
    const uint8_t *w; /* first tile of the column group */
    const int8_t *q;  /* first row of the panel, block 0 */
    const struct tk_qblk *b;
    uint32_t kb;
};

TK__INLINE __m512i quad_of(const int8_t *q, int i)
{
    int32_t v;
    memcpy(&v, q + 4 * i, sizeof v);
    return _mm512_set1_epi32(v);
}

TK__INLINE __m512i start_sum(enum tk_kind kind, const struct tk_qblk *b)
{
    if (kind == TK_Q4_OFF) {
        return _mm512_set1_epi32(-8 * b->sum);
    }
    if (kind == TK_Q8_F16 || kind == TK_Q8_F32) {
        return _mm512_set1_epi32(-128 * b->sum);
    }
    return _mm512_setzero_si512();
}

TK__INLINE bool is_nibbles(enum tk_kind kind)
{
    return kind == TK_Q4_OFF || kind == TK_Q4_MIN || kind == TK_Q4_MINF;
}

TK__INLINE __m512 scale(enum tk_kind kind, const uint8_t *tile, int which)
{
    const uint8_t *p = tile + (is_nibbles(kind) ? TK__NIBBLE_BYTES : TK__BYTE_BYTES);
    if (kind == TK_Q4_OFF || kind == TK_Q4_MIN || kind == TK_Q8_F16) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(p + 32 * which)));
    }
    return _mm512_loadu_ps((const float *)(const void *)(p + 64 * which));
}

/* Digit rows 2r and 2r + 1 become the sum of row r. */
TK__INLINE void join_digits(int R, __m512i *sum)
{
    for (int r = 0; r < R / 2; r++) {
        sum[r] = _mm512_add_epi32(_mm512_slli_epi32(sum[2 * r], 8), sum[2 * r + 1]);
    }
}

/* sum[R] = products of k-quads [j0, j1) (j0 even), added to what is there. */
TK__INLINE void dots(enum tk_kind kind, int R, const uint8_t *tile, const int8_t *q, int j0, int j1,
                     __m512i *sum)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = j0; j < j1; j += 2) {
        __m512i even, odd;
        if (is_nibbles(kind)) {
            __m512i v = _mm512_loadu_si512(tile + 32 * j);
            even = _mm512_and_si512(v, low);
            odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        } else {
            even = _mm512_loadu_si512(tile + 64 * j);
            odd = _mm512_loadu_si512(tile + 64 * j + 64);
        }
        for (int r = 0; r < R; r++) {
            sum[r] = _mm512_dpbusd_epi32(sum[r], even, quad_of(q + r * TK_QK, j));
        }
        for (int r = 0; r < R; r++) {
            sum[r] = _mm512_dpbusd_epi32(sum[r], odd, quad_of(q + r * TK_QK, j + 1));
        }
    }
}

/* acc[r] += sum[r] scaled; digit is the step between the qblk of two rows. */
TK__INLINE void scaled(int rows, int digit, __m512 d, const struct tk_qblk *b, const __m512i *sum,
                       __m512 *acc)
{
    for (int r = 0; r < rows; r++) {
        __m512 s = _mm512_mul_ps(d, _mm512_set1_ps(b[r * digit].d));
        acc[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r]), s, acc[r]);
    }
}

/* acc[R], or acc[R / 2] of wide rows, takes one block of one column group. */
TK__INLINE void block(enum tk_kind kind, int R, bool wide, const uint8_t *tile, const int8_t *q,
                      const struct tk_qblk *b, __m512 *acc)
{
    __m512i sum[TK_PANEL];
    int digit = wide ? 2 : 1, rows = R / digit;
    for (int r = 0; r < R; r++) {
        sum[r] = start_sum(kind, b + r);
    }
    dots(kind, R, tile, q, 0, 8, sum);
    if (wide) {
        join_digits(R, sum);
    }
    scaled(rows, digit, scale(kind, tile, 0), b, sum, acc);
    if (kind == TK_Q4_MIN || kind == TK_Q4_MINF || kind == TK_Q8_MINF) {
        __m512 m = scale(kind, tile, 1);
        for (int r = 0; r < rows; r++) {
            acc[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(b[r * digit].s), acc[r]);
        }
    }
}

/* Q6_K: a scale for each half of the block. */
TK__INLINE void block_halves(int R, bool wide, const uint8_t *tile, const int8_t *q,
                             const struct tk_qblk *b, __m512 *acc)
{
    __m512i sum[TK_PANEL];
    int digit = wide ? 2 : 1;
    for (int half = 0; half < 2; half++) {
        for (int r = 0; r < R; r++) {
            int32_t s = half == 0 ? b[r].sum_low : b[r].sum - b[r].sum_low;
            sum[r] = _mm512_set1_epi32(-128 * s);
        }
        dots(TK_Q8_HALVES, R, tile, q, 4 * half, 4 * half + 4, sum);
        if (wide) {
            join_digits(R, sum);
        }
        scaled(R / digit, digit, scale(TK_Q8_HALVES, tile, half), b, sum, acc);
    }
}

TK__INLINE void prefetch_tile(const uint8_t *tile, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *)tile + PREFETCH_AHEAD + i, _MM_HINT_T0);
    }
}

/* acc over all of K. */
TK__INLINE void column(enum tk_kind kind, int R, bool wide, const struct operands *o, __m512 *acc)
{
    const size_t tile_bytes = tk__layouts[kind].tile_bytes;
    const uint8_t *tile = o->w;
    const int8_t *q = o->q;
    const struct tk_qblk *b = o->b;
    for (int r = 0; r < R; r++) {
        acc[r] = _mm512_setzero_ps();
    }
    for (uint32_t i = 0; i < o->kb; i++) {
        if (R <= 2) {
            prefetch_tile(tile, tile_bytes);
        }
        if (kind == TK_Q8_HALVES) {
            block_halves(R, wide, tile, q, b, acc);
        } else {
            block(kind, R, wide, tile, q, b, acc);
        }
        tile += tile_bytes;
        q += TK__PANEL_BYTES;
        b += TK_PANEL;
    }
}

TK__INLINE void store(const struct tk_gemm *g, uint32_t t, uint32_t row, int R, const __m512 *acc)
{
    __mmask16 mask = lanes(g->w->n - t * TK_LANES);
    float *y = g->y + (size_t)row * g->y_stride + (t * TK_LANES - g->col0);
    for (int r = 0; r < R; r++, y += g->y_stride) {
        __m512 v = acc[r];
        if (g->add) {
            v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y), v);
        }
        _mm512_mask_storeu_ps(y, mask, v);
    }
}

/* R digit rows from `row`, of one panel. */
TK__INLINE void panel(enum tk_kind kind, int R, bool wide, const struct tk_gemm *g, uint32_t t,
                      uint32_t row)
{
    uint32_t kb = g->w->k / TK_QK;
    uint32_t r0 = g->row0 + row;
    size_t at = (size_t)(r0 / TK_PANEL) * kb * TK_PANEL + r0 % TK_PANEL;
    size_t stride = (size_t)kb * g->w->tile_bytes;
    struct operands o = {g->w->data + t * stride, g->a->q + at * TK_QK, g->a->b + at, kb};
    __m512 acc[TK_PANEL];
    column(kind, R, wide, &o, acc);
    store(g, t, wide ? row / 2 : row, wide ? R / 2 : R, acc);
}

/* Rows that are no multiple of 8 end with 4, 2 and 1: every count of its own would be compiled for
 * every kind. */
TK__INLINE void tiles(enum tk_kind kind, const struct tk_gemm *g, uint32_t t, uint32_t end)
{
    for (; t < end; t++) {
        uint32_t row = 0;
        for (; row + 8 <= g->m; row += 8) {
            panel(kind, 8, false, g, t, row);
        }
        if (g->m - row >= 4) {
            panel(kind, 4, false, g, t, row);
            row += 4;
        }
        if (g->m - row >= 2) {
            panel(kind, 2, false, g, t, row);
            row += 2;
        }
        if (row < g->m) {
            panel(kind, 1, false, g, t, row);
        }
    }
}

TK__INLINE void wide_tiles(enum tk_kind kind, const struct tk_gemm *g, uint32_t t, uint32_t end)
{
    for (; t < end; t++) {
        uint32_t row = 0, rows = 2 * g->m;
        for (; row + 8 <= rows; row += 8) {
            panel(kind, 8, true, g, t, row);
        }
        for (; row < rows; row += 2) {
            panel(kind, 2, true, g, t, row);
        }
    }
}

/* One function per kind, so that each is compiled for its own layout. */
#define KIND_FN(name, kind)                                                                        \
    static void name(const struct tk_gemm *g, uint32_t t, uint32_t end)                            \
    {                                                                                              \
        if (g->wide) {                                                                             \
            wide_tiles(kind, g, t, end);                                                           \
        } else {                                                                                   \
            tiles(kind, g, t, end);                                                                \
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
        for (uint32_t row = 0; row < g->m; row += 4) {
            uint32_t rows = g->m - row < 4 ? g->m - row : 4;
            const float *x[4];
            __m512 acc[4];
            for (uint32_t r = 0; r < 4; r++) {
                x[r] = g->a->x + (size_t)(g->row0 + row + (r < rows ? r : 0)) * k;
                acc[r] = _mm512_setzero_ps();
            }
            for (uint32_t i = 0; i < k; i++) {
                __m512 v = _mm512_loadu_ps(w + (size_t)i * TK_LANES);
                for (int r = 0; r < 4; r++) {
                    acc[r] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[r][i]), acc[r]);
                }
            }
            for (uint32_t r = 0; r < rows; r++) {
                store(g, t, row + r, 1, &acc[r]);
            }
        }
    }
}

void tk__avx512_gemm(const struct tk_gemm *g, uint32_t tile0, uint32_t n_tiles)
{
    static void (*const by_kind[TK_N_KINDS])(const struct tk_gemm *, uint32_t, uint32_t) = {
        [TK_Q4_OFF] = gemm_q4_off,       [TK_Q4_MIN] = gemm_q4_min, [TK_Q4_MINF] = gemm_q4_minf,
        [TK_Q8_F16] = gemm_q8_f16,       [TK_Q8_F32] = gemm_q8_f32, [TK_Q8_MINF] = gemm_q8_minf,
        [TK_Q8_HALVES] = gemm_q8_halves, [TK_F32] = gemm_f32,
    };
    by_kind[g->w->kind](g, tile0, tile0 + n_tiles);
}
