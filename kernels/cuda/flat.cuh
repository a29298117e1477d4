// flat.cuh - what the two launches of flat products share (flat.cu: one product; flat_chain.cu: several): arguments, rings,
// a tile's products and the epilogues. Shapes, modes and numerics: tk_flat in tk_cuda.h and flat.cu's head.
#pragma once
#include "kernels/cuda/flat_args.h"
#ifndef TK_EMULATE
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma.cuh"
#endif
#include "kernels/tk_cuda.h"

namespace
{

constexpr int TILE = TK_FLAT_ROWS;                // weight rows of a tile
constexpr int W_BYTES = TILE * 128;               // of one K slice of a tile
constexpr int CONSUMERS = 256;                    // two warpgroups
constexpr int SCALERS = 64;                       // one thread per token computes the norm's scale
constexpr int THREADS = CONSUMERS + 64 + SCALERS; // + loaders of W and x
constexpr int MAX_CUT = 4;                        // parts of K
constexpr int TARGET_BLOCKS =
    132; // part of the numerics: the K split follows from it, not from the device
constexpr int PART_ROWS = 32; // rows behind one partial sum of squares

struct args : flat_args {
    uint32_t k_slices, cut;
};

// The two rings of a block by their shared addresses: stage s of W at w + s W_BYTES, of x at x + s N 128.
struct rings {
    uint32_t w, x, w_full, w_empty, x_full, x_empty;
};

template <int STAGES> struct ring_pos {
    uint32_t st, ph;
    TK_DEV_MEMBER void next()
    {
        if (++st == (uint32_t)STAGES) {
            st = 0;
            ph ^= 1;
        }
    }
};

// The scale of a row from the partial sums: four interleaved sums, then ((0 + 1) + (2 + 3)). Off the consumers' path: they
// need it in the epilogue only.
TK_DEV void row_scale(const args &a, float *scale, int t)
{
    float s[4] = {0, 0, 0, 0};
    if (a.norm_parts == 0 || t >= (int)a.rows) {
        scale[t] = 1.f;
        return;
    }
    uint32_t p = 0;
#pragma unroll 4
    for (; p + 4 <= a.norm_parts; p += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] += __ldcg(a.norm + (size_t)(p + i) * TK_MAX_ROWS + t);
        }
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (p + i < a.norm_parts) {
            s[i] += __ldcg(a.norm + (size_t)(p + i) * TK_MAX_ROWS + t);
        }
    }
    scale[t] = rsqrtf(((s[0] + s[1]) + (s[2] + s[3])) * a.norm_inv_dim + a.norm_eps);
}

// The running maxima of the ARGMAX mode; empty otherwise, so that two blocks of the other modes fit an SM's registers.
template <int N, bool BEST> struct best_of {
    float v[N / 4];
    int32_t i[N / 4];
    TK_DEV_MEMBER void offer(int j, float y, uint32_t row)
    {
        if (y > v[j]) {
            v[j] = y;
            i[j] = (int32_t)row;
        }
    }
};
template <int N> struct best_of<N, false> {
    TK_DEV_MEMBER void offer(int, float, uint32_t)
    {
    }
};

// The 8 x 8 block (rows, tokens) that a warp holds as {token 2 (lane % 4), + 1} of row lane / 4 goes out as pairs of rows
// of token lane / 4: two rows per 4-byte store, 16 bytes of a token per quad.
TK_DEV void store_block(tk_bf16 *out, uint32_t stride, uint32_t rows, uint32_t tok0, uint32_t row0,
                        uint32_t n, float y0, float y1, int lane)
{
    const uint32_t v = transpose8x8(pack_bf16(y0, y1));
    const uint32_t tok = tok0 + lane / 4, row = row0 + 2 * (lane % 4);
    if (tok < rows && row < n) {
        tk_bf16 *p = out + (size_t)tok * stride + row;
        if (row + 1 < n && ((row | stride) & 1) == 0) {
            *reinterpret_cast<uint32_t *>(p) = v;
        } else {
            p[0] = (tk_bf16)(v & 0xffff);
            if (row + 1 < n) {
                p[1] = (tk_bf16)(v >> 16);
            }
        }
    }
}

// Epilogue straight from registers, when K is not split; base: this warp's first row. Thread holds rows r0, r0 + 8 and tokens 8 j + 2 (lane % 4) + i.
template <int N, bool BEST>
TK_DEV void finish_direct(const float (&d)[N / 2], const args &a, const float *scale, uint32_t base,
                          int lane, best_of<N, BEST> &best)
{
    const uint32_t r0 = base + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 sc = *reinterpret_cast<const float2 *>(scale + 8 * j + 2 * (lane % 4));
        const float y[4] = {d[4 * j] * sc.x, d[4 * j + 1] * sc.y, d[4 * j + 2] * sc.x,
                            d[4 * j + 3] * sc.y};
        if (!BEST && a.mode == TK_FLAT_SWIGLU) {
            const float s0 = __fdividef(y[0], 1.f + __expf(-y[0])),
                        s1 = __fdividef(y[1], 1.f + __expf(-y[1]));
            store_block(a.out, a.out_stride, a.rows, 8 * j, base / 2, a.n / 2, s0 * y[2], s1 * y[3],
                        lane);
        } else if (!BEST) {
            store_block(a.out, a.out_stride, a.rows, 8 * j, base, a.n, y[0], y[1], lane);
            store_block(a.out, a.out_stride, a.rows, 8 * j, base + 8, a.n, y[2], y[3], lane);
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t tok = 8 * j + 2 * (lane % 4) + (i & 1), row = r0 + (i >> 1) * 8;
                if (tok < a.rows && row < a.n) {
                    best.offer(2 * j + (i & 1), y[i], row);
                    if (a.out_f32 != nullptr) {
                        a.out_f32[(size_t)tok * a.out_stride + row] = y[i];
                    }
                }
            }
        }
    }
}

// Epilogue where K is split: the block with part `rank` of K finishes rows [rank R, rank R + R) of the tile, R = 128 / parts.
// A thread owns one row and every step-th token; a warp thus has 32 rows of a token at a time, BATCH tokens in flight.
struct share {
    uint32_t row, n;    // within the tile; of the product
    uint32_t tok, step; // first token of this warp
    int lane;
};

template <int BATCH>
TK_DEV void share_h(const args &a, const share &sh, uint32_t tok, tk_bf16 (&h)[BATCH])
{
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
        const uint32_t t = tok + b * sh.step;
        h[b] = a.mode == TK_FLAT_RESIDUAL && t < a.rows && sh.n < a.n ? __ldcg(a.h + t * a.n + sh.n)
                                                                      : (tk_bf16)0;
    }
}

TK_DEV void share_out(const args &a, const share &sh, const float *scale, uint32_t tok, float y,
                      tk_bf16 h_old, float gain)
{
    if (a.mode == TK_FLAT_STORE) {
        if (sh.n < a.n) {
            reinterpret_cast<__nv_bfloat16 *>(a.out)[(size_t)tok * a.out_stride + sh.n] =
                __float2bfloat16_rn(y * scale[tok]);
        }
        return;
    }
    if (sh.n >= a.n) {
        return; // a whole warp: n is a multiple of 128 here
    }
    const uint32_t at = tok * a.n + sh.n;
    const __nv_bfloat16 h = __float2bfloat16_rn(__uint_as_float((uint32_t)h_old << 16) + y);
    const float hf = __bfloat162float(h);
    reinterpret_cast<__nv_bfloat16 *>(a.h)[at] = h;
    reinterpret_cast<__nv_bfloat16 *>(a.hg)[at] = __float2bfloat16_rn(hf * gain);
    float q = hf * hf;
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        q += __shfl_xor_sync(~0u, q, x);
    }
    if (sh.lane == 0) {
        a.sumsq[(sh.n / PART_ROWS) * TK_MAX_ROWS + tok] = q;
    }
}

// This thread's share of a tile: part `rank` of the cut, warp and lane of the consumers.
TK_DEV share share_of(const args &a, uint32_t tile, uint32_t rank, int warp, int lane)
{
    const uint32_t groups = TILE / 32 / a.cut; // of 32 rows
    share sh;
    sh.row = rank * (TILE / a.cut) + (warp % groups) * 32 + lane;
    sh.n = tile * TILE + sh.row;
    sh.tok = warp / groups;
    sh.step = CONSUMERS / 32 / groups;
    sh.lane = lane;
    return sh;
}

TK_DEV float share_gain(const args &a, const tk_bf16 *gain, const share &sh)
{
    return a.mode == TK_FLAT_RESIDUAL && sh.n < a.n
               ? __uint_as_float((uint32_t)__ldg(gain + sh.n) << 16)
               : 0.f;
}

// The parts of a batch's sums, of this thread's row: [token of the batch][part], zeros behind the rows and the cut.
template <int BATCH> struct share_parts {
    float y[BATCH][MAX_CUT];
};

// h, gain: the first batch's residual rows and the row's gain, read before the parts are complete. parts(token): those of a
// batch; they are added in order.
template <int BATCH, typename PARTS>
TK_DEV void finish_share(const args &a, const float *scale, const share &sh, tk_bf16 (&h)[BATCH],
                         float gain, PARTS parts)
{
    for (uint32_t tok = sh.tok; tok < a.rows; tok += BATCH * sh.step) {
        if (tok != sh.tok) {
            share_h(a, sh, tok, h);
        }
        const share_parts<BATCH> p = parts(tok);
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t t = tok + b * sh.step;
            if (t < a.rows) {
                float sum = p.y[b][0];
#pragma unroll
                for (uint32_t c = 1; c < MAX_CUT; c++) {
                    sum += p.y[b][c]; // + 0 behind the last part
                }
                share_out(a, sh, scale, t, sum, h[b], gain);
            }
        }
    }
}

// Starts the four k steps of 16 of the rings' next stage, when it is there. FIRST: d is whatever it was.
template <int N, bool FIRST>
TK_DEV void slice_products(float (&d)[N / 2], const rings &sm, uint32_t w_half, uint32_t w_st,
                           uint32_t w_ph, uint32_t x_st, uint32_t x_ph)
{
    bar_wait(sm.x_full + 8 * x_st, x_ph);
    bar_wait(sm.w_full + 8 * w_st, w_ph);
    const uint64_t da = wg_desc(sm.w + w_st * W_BYTES + w_half, 0, 1024);
    const uint64_t db = wg_desc(sm.x + x_st * (N * 128), 0, 1024);
    wg_fence();
    if constexpr (FIRST) {
        wgmma_first(d, da, db);
    } else {
        wgmma_ss(d, da, db, 1);
    }
#pragma unroll
    for (int i = 1; i < 4; i++) {
        wgmma_ss(d, da + 2 * i, db + 2 * i, 1);
    }
    wg_commit();
}

// d = this warpgroup's 64 rows of a tile times the tokens, over the next `slices` stages of both rings.
template <int N, int W_STAGES, int X_STAGES>
TK_DEV void tile_products(float (&d)[N / 2], const rings &sm, uint32_t slices, int wg, int lane,
                          ring_pos<W_STAGES> &wp, ring_pos<X_STAGES> &xp)
{
    const uint32_t w_half = wg * (W_BYTES / 2);
    slice_products<N, true>(d, sm, w_half, wp.st, wp.ph, xp.st, xp.ph);
    uint32_t w_prev = wp.st, x_prev = xp.st;
    wp.next();
    xp.next();
    for (uint32_t k = 1; k < slices; k++) {
        slice_products<N, false>(d, sm, w_half, wp.st, wp.ph, xp.st, xp.ph);
        wg_wait<1>();
        if (lane == 0) {
            bar_arrive(sm.w_empty + 8 * w_prev);
            bar_arrive(sm.x_empty + 8 * x_prev);
        }
        w_prev = wp.st;
        x_prev = xp.st;
        wp.next();
        xp.next();
    }
    wg_wait<0>();
    if (lane == 0) {
        bar_arrive(sm.w_empty + 8 * w_prev);
        bar_arrive(sm.x_empty + 8 * x_prev);
    }
}

// Blocks along K: part of the numerics, so a function of the product's shape alone.
inline uint32_t k_cut(uint32_t n, uint32_t k, uint32_t mode)
{
    const uint32_t tiles = (n + TILE - 1) / TILE;
    uint32_t c = 1;
    if (mode == TK_FLAT_STORE || mode == TK_FLAT_RESIDUAL) {
        while (c < MAX_CUT && tiles * c * 2 <= TARGET_BLOCKS && k / 64 >= c * 8) {
            c *= 2;
        }
    }
    return c;
}

// Whether tk_flat and tk_chain compute this product.
inline bool flat_fits(const struct tk_flat *p)
{
    return flat_sound(p) && (p->mode != TK_FLAT_RESIDUAL ||
                             (p->n / TILE <= TARGET_BLOCKS && p->n / PART_ROWS <= TK_NORM_PARTS));
}

inline args args_of(const struct tk_flat *p)
{
    args a;
    fill_flat(a, p, TILE);
    a.k_slices = p->k / 64;
    a.cut = k_cut(p->n, p->k, p->mode);
    return a;
}

} // namespace
