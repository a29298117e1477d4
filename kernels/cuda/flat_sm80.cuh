// flat_sm80.cuh - flat products of decode without Hopper's instructions: the kernel.
//
// Shapes, modes and alignment: as flat.cu; W plain or tiled.
// Design: swapped operands as there: 32 weight rows are a block's tile, two warps of 16 (mma.m16n8k16's M), tokens are the
//   N. Four pairs of warps take the 64-wide slices of K in turn: pair q has slices q, q + 4, ..; their sums are added in the
//   order of q. Slices come with cp.async into a ring of stages of four, W and x, rows of 128 bytes swizzled in columns of
//   16. The order of k depends on K alone, and no token's column depends on another's.
// Bound by: device memory (weight bytes); at 64 rows by reading x from L2 once per tile. Measured: see NOTES.md.
#pragma once
#ifndef TK_EMULATE
#include "kernels/cuda/ptx.cuh"
#endif
#include "kernels/cuda/flat_args.h"

namespace
{

constexpr int TILE = 32;  // weight rows; also those behind one partial sum of squares
constexpr int PARTS = 4;  // of K; part of the numerics
constexpr int SLICE = 64; // of K
constexpr int WARPS = 2 * PARTS;
constexpr int THREADS = WARPS * 32;
constexpr int W_SLICE = TILE * 128; // bytes
constexpr int LD =
    TILE + 4; // of staged sums [part][token][row]: 2 x LD = 8 mod 32, no bank conflicts

template <int N> constexpr int stages()
{
    return N == 64 ? 2 : 3;
}
template <int N> constexpr uint32_t stage_bytes()
{
    return PARTS * (W_SLICE + N * 128);
}
template <int N> constexpr uint32_t smem_bytes()
{
    static_assert(PARTS * N * LD * 4 <= stages<N>() * stage_bytes<N>(), "sums fit into the ring");
    return stages<N>() * stage_bytes<N>() + TK_MAX_ROWS * 4;
}

struct args : flat_args {
    const tk_bf16 *w, *x;
    uint32_t k, x_stride;
    bool tiled;
};

// Slices of one stage: of PARTS slices of K from `first` on, those that exist.
template <int N>
TK_DEV void load_stage(const args &a, uint32_t tile, uint32_t first, uint32_t stage)
{
    const uint32_t slices = a.k / SLICE;
    for (int i = (int)threadIdx.x; i < PARTS * (TILE + N) * 8; i += THREADS) {
        const int part = i / ((TILE + N) * 8), row = i / 8 % (TILE + N), c = i & 7;
        const uint32_t slice = first + (uint32_t)part;
        if (slice >= slices) {
            continue;
        }
        const bool weight = row < TILE;
        const uint32_t r = weight ? tile * TILE + (uint32_t)row : (uint32_t)(row - TILE);
        const bool real = r < (weight ? a.n : a.rows);
        const tk_bf16 *src = weight ? a.w : a.x;
        if (real && weight && a.tiled) {
            src +=
                (((size_t)(r / TK_FLAT_ROWS) * slices + slice) * TK_FLAT_ROWS + r % TK_FLAT_ROWS) *
                SLICE;
        } else if (real) {
            src += (size_t)r * (weight ? a.k : a.x_stride) + slice * SLICE;
        }
        // rows of x follow those of W, part by part
        cp_async16(stage + part * (W_SLICE + N * 128) + row * 128 + ((c ^ (row & 7)) << 4),
                   src + c * 8, real ? 16 : 0);
    }
}

// d += 16 weight rows times N tokens over one slice. w: of the warp's rows; x: behind the tile's W.
template <int N> TK_DEV void slice_products(float (&d)[N / 8][4], uint32_t w, uint32_t x, int lane)
{
#pragma unroll
    for (int pair = 0; pair < 2; pair++) { // of k steps of 16
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = lane & 15, c = (pair * 2 + i) * 2 + (lane >> 4);
            ldsm_x4(a[i], w + row * 128 + ((c ^ (row & 7)) << 4));
        }
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            uint32_t b[4]; // two k steps of 8 tokens
            const int row = n * 8 + (lane & 7), c = pair * 4 + (lane >> 3);
            ldsm_x4(b, x + row * 128 + ((c ^ (row & 7)) << 4));
            mma16816(d[n], a[0], b[0], b[1]);
            mma16816(d[n], a[1], b[2], b[3]);
        }
    }
}

// The sums of a tile by this warp's part of K; the ring is free behind it.
template <int N>
TK_DEV void tile_products(float (&d)[N / 8][4], const args &a, uint32_t tile, uint32_t ring)
{
    constexpr int STAGES = stages<N>();
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, part = warp >> 1;
    const uint32_t slices = a.k / SLICE, steps = (slices + PARTS - 1) / PARTS;
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0;
    }
    for (uint32_t i = 0; i < STAGES - 1; i++) {
        if (i < steps) {
            load_stage<N>(a, tile, i * PARTS, ring + i * stage_bytes<N>());
        }
        cp_async_commit();
    }
    for (uint32_t i = 0; i < steps; i++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads(); // stage i has come, and everybody has read stage i - 1
        const uint32_t ahead = i + STAGES - 1;
        if (ahead < steps) {
            load_stage<N>(a, tile, ahead * PARTS, ring + ahead % STAGES * stage_bytes<N>());
        }
        cp_async_commit(); // perhaps an empty group: the count stays the same
        if (i * PARTS + (uint32_t)part < slices) {
            const uint32_t w = ring + i % STAGES * stage_bytes<N>() + part * (W_SLICE + N * 128);
            slice_products<N>(d, w + (warp & 1) * 16 * 128, w + W_SLICE, lane);
        }
    }
    __syncthreads();
}

// The scale of a row from the partial sums of squares: four interleaved sums, then ((0 + 1) + (2 + 3)), as flat.cu.
TK_DEV float row_scale(const args &a, uint32_t row)
{
    if (a.norm_parts == 0 || row >= a.rows) {
        return 1.f;
    }
    float s[4] = {0, 0, 0, 0};
    uint32_t p = 0;
    for (; p + 4 <= a.norm_parts; p += 4) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] += __ldcg(a.norm + (size_t)(p + i) * TK_MAX_ROWS + row);
        }
    }
#pragma unroll
    for (int i = 0; i < 3; i++) {
        if (p + i < a.norm_parts) {
            s[i] += __ldcg(a.norm + (size_t)(p + i) * TK_MAX_ROWS + row);
        }
    }
    return rsqrtf(((s[0] + s[1]) + (s[2] + s[3])) * a.norm_inv_dim + a.norm_eps);
}

// Lane i of a warp has weight row i of the tile for one token.
TK_DEV void finish_residual(const args &a, uint32_t tile, uint32_t tok, uint32_t n, float y)
{
    const size_t at = (size_t)tok * a.n + n;
    const __nv_bfloat16 h =
        __float2bfloat16_rn(__bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(a.h)[at]) + y);
    const float hf = __bfloat162float(h);
    reinterpret_cast<__nv_bfloat16 *>(a.h)[at] = h;
    reinterpret_cast<__nv_bfloat16 *>(a.hg)[at] = __float2bfloat16_rn(
        hf * __bfloat162float(reinterpret_cast<const __nv_bfloat16 *>(a.gain)[n]));
    float q = hf * hf;
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        q += __shfl_xor_sync(~0u, q, x);
    }
    if (threadIdx.x % 32 == 0) {
        a.sumsq[(size_t)tile * TK_MAX_ROWS + tok] = q;
    }
}

struct best {
    float v;
    int32_t i;
};
TK_DEV best better(best a, best b)
{
    return b.v > a.v || (b.v == a.v && b.i < a.i) ? b : a;
}

// All lanes come here, whatever exists.
TK_DEV void finish_token(const args &a, uint32_t tile, uint32_t tok, float y, float scale,
                         best &top)
{
    const uint32_t lane = threadIdx.x % 32, n = tile * TILE + lane;
    const bool real = tok < a.rows && n < a.n;
    __nv_bfloat16 *out = reinterpret_cast<__nv_bfloat16 *>(a.out) + (size_t)tok * a.out_stride;
    switch (a.mode) {
    case TK_FLAT_STORE:
        if (real) {
            out[n] = __float2bfloat16_rn(y * scale);
        }
        break;
    case TK_FLAT_RESIDUAL:
        if (tok < a.rows) { // the whole warp; n is a multiple of the tile here
            finish_residual(a, tile, tok, n, y);
        }
        break;
    case TK_FLAT_SWIGLU: {
        const float g = y * scale, u = __shfl_xor_sync(~0u, g, 8);
        const uint32_t at = tile * (TILE / 2) + lane / 16 * 8 + lane % 8;
        if (tok < a.rows && (lane & 8) == 0 && at < a.n / 2) {
            out[at] = __float2bfloat16_rn(__fdividef(g, 1.f + __expf(-g)) * u);
        }
        break;
    }
    default:
        if (real) {
            y *= scale;
            if (y > top.v) { // tiles ascend: the first stays
                top = {y, (int32_t)n};
            }
            if (a.out_f32 != nullptr) {
                a.out_f32[(size_t)tok * a.out_stride + n] = y;
            }
        }
        break;
    }
}

template <int N> __global__ void __launch_bounds__(THREADS) flat_sm80_kernel(const args a)
{
    TK_DYNAMIC_SHARED(raw);
    const uint32_t ring = smem_u32(raw);
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    float *sums = reinterpret_cast<float *>(raw); // [PARTS][N][LD], in the ring
    float *scale = reinterpret_cast<float *>(raw + stages<N>() * stage_bytes<N>());
    float d[N / 8][4];
    best top[N / 8];
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        top[i] = {-INFINITY, 0x7fffffff};
    }
    if (threadIdx.x < TK_MAX_ROWS) {
        scale[threadIdx.x] = row_scale(a, threadIdx.x); // seen by all behind tile_products
    }
    for (uint32_t tile = blockIdx.x; tile < a.tiles; tile += gridDim.x) {
        tile_products<N>(d, a, tile, ring);
        float *mine = sums + (warp >> 1) * N * LD + (warp & 1) * 16 + lane / 4;
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
            float *p = mine + (n * 8 + 2 * (lane & 3)) * LD;
            p[0] = d[n][0];
            p[LD] = d[n][1];
            p[8] = d[n][2];
            p[LD + 8] = d[n][3];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            const int tok = i * 8 + warp;
            const float *p = sums + tok * LD + lane;
            const float y = ((p[0] + p[N * LD]) + p[2 * N * LD]) + p[3 * N * LD];
            finish_token(a, tile, (uint32_t)tok, y, scale[tok], top[i]);
        }
        __syncthreads(); // the ring is free again
    }
#pragma unroll
    for (int i = 0; i < N / 8; i++) {
        best b = top[i];
#pragma unroll
        for (int x = 16; x >= 1; x /= 2) {
            b = better(b, {__shfl_xor_sync(~0u, b.v, x), __shfl_xor_sync(~0u, b.i, x)});
        }
        const uint32_t tok = (uint32_t)(i * 8 + warp);
        if (a.mode == TK_FLAT_ARGMAX && lane == 0 && tok < a.rows) {
            a.best_val[(size_t)blockIdx.x * TK_MAX_ROWS + tok] = b.v;
            a.best_idx[(size_t)blockIdx.x * TK_MAX_ROWS + tok] = b.i;
        }
    }
}

static td_err args_of(const struct tk_flat *p, args &a)
{
    if (!flat_sound(p) || p->x->row_step % 8 != 0 ||
        (p->mode == TK_FLAT_RESIDUAL && p->n / TILE > TK_NORM_PARTS)) {
        return TD_ERR_UNSUPPORTED;
    }
    fill_flat(a, p, TILE);
    a.w = static_cast<const tk_bf16 *>(p->w->base);
    a.x = static_cast<const tk_bf16 *>(p->x->base);
    a.k = p->k;
    a.x_stride = p->x->row_step;
    a.tiled = p->w->tiled;
    return TD_OK;
}

// An ARGMAX product leaves a part per block, as many as the header says; the others take a tile to a block.
static inline uint32_t blocks_of(const args &a)
{
    const uint32_t parts = tk_flat_argmax_parts(a.n);
    return a.mode == TK_FLAT_ARGMAX && parts < a.tiles ? parts : a.tiles;
}

} // namespace
