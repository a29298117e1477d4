// flat.cu - flat products of decode: y[rows][N] = x[rows][K] W[N][K]^T for 1..64 rows, with fused epilogues.
//
// Shapes: W bf16, N padded to 128 rows in memory, K % 64 = 0, plain [N][K] or tiled [N/128][K/64][128][64] (the tensor
//   map tells); x bf16 [rows][K]. RESIDUAL: N % 128 = 0 and N <= 8192. Alignment: 16 bytes, TMA's.
// Design: swapped operands. A tile of 128 weight rows is wgmma's M (two warpgroups of 64), the tokens its N (8, 16, 32 or
//   64). Rings of 64-wide K slices (W 16 KB; x 1 to 8 KB) are filled with TMA by one thread each; W with evict-first, and
//   without griddepcontrol.wait, because weights do not depend on the kernel before. The rings stay under 110 KB so that
//   the next kernel's block fits beside ours and starts its own weights while our tail runs.
//   Narrow products split K over a cluster of 2 or 4 blocks; the partial tiles meet in distributed shared memory and are
//   added in rank order, each block finishing its share of the rows. Wide ones walk several row tiles.
//   The cut depends on N and K alone, and all row counts run the same order of k, so a row does not depend on its
//   neighbours.
// Bound by: device memory (weight bytes) up to about 64 rows. Measured: see NOTES.md.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int TILE = TK_FLAT_ROWS;                // weight rows of a tile
constexpr int W_BYTES = TILE * 128;               // of one K slice of a tile
constexpr int CONSUMERS = 256;                    // two warpgroups
constexpr int SCALERS = 64;                       // one thread per token computes the norm's scale
constexpr int THREADS = CONSUMERS + 64 + SCALERS; // + loaders of W and x
constexpr int MAX_CLUSTER = 4;
constexpr int TARGET_BLOCKS =
    132; // part of the numerics: the K split follows from it, not from the device
constexpr int PART_ROWS = 32; // rows behind one partial sum of squares
constexpr int STAGED_LD =
    TILE + 4; // staged accumulators [token][row]: 2 x LD = 8 mod 32, no bank conflicts

struct args {
    tk_bf16 *out, *h, *hg;
    const tk_bf16 *gain;
    float *sumsq, *best_val, *out_f32;
    int32_t *best_idx;
    const float *norm;
    uint32_t norm_parts, rows, n, k_slices, tiles, out_stride, mode, cluster, early, ahead;
    float norm_inv_dim, norm_eps;
};

// Two rings: weights come from device memory, late and once; tokens from L2, soon and often.
template <int N> struct shape {
    static constexpr int W_STAGES = N == 64 ? 4 : 6;
    static constexpr int X_STAGES = N == 64 ? 5 : N == 32 ? 3 : N == 16 ? 5 : 6;
    static constexpr int X_BYTES = N * 128;
    static constexpr int RINGS = W_STAGES * W_BYTES + X_STAGES * X_BYTES;
    static constexpr int SMEM = RINGS + 64 * 4 + 8 * 64 * 8 + (W_STAGES + X_STAGES) * 16;
    static_assert(N * STAGED_LD * 4 <= W_STAGES * W_BYTES, "the staged tile reuses the ring");
};

template <int N> struct smem_map {
    uint32_t w, x, w_full, w_empty, x_full, x_empty;
    float *stage_f; // the ring again, as staged accumulators [N][STAGED_LD]
    float *scale;   // [64]
    float *best;    // [8 warps][64] values, then indices
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

struct run {
    uint32_t first, step; // row tiles of this cluster
    uint32_t k0, k1;      // K slices of this block
};

TK_DEV uint32_t total_slices(const args &a, const run &r)
{
    const uint32_t my_tiles = r.first < a.tiles ? (a.tiles - r.first + r.step - 1) / r.step : 0;
    return my_tiles * (r.k1 - r.k0);
}

// Slices i .. of this block's walk on their way into L2.
TK_DEV void prefetch_w(const CUtensorMap *w, const args &a, const run &r, uint32_t i, uint32_t end,
                       uint64_t pol)
{
    const uint32_t per_tile = r.k1 - r.k0;
    for (; i < end; i++) {
        tma_4d_prefetch(w, 0, 0, (int)(r.k0 + i % per_tile), (int)(r.first + i / per_tile * r.step),
                        pol);
    }
}

// One thread. Weights do not depend on the kernel before us: no wait for it here. The next kernel may start when
// `early` slices are left to load. (Bringing slices into L2 ahead of the ring all the way made everything slower:
// NOTES.md. `ahead` does it once, when the ring is full, which is while the kernel before us still runs.)
template <int N>
TK_DEV void load_w(const CUtensorMap *w, const smem_map<N> &sm, const args &a, const run &r)
{
    const uint64_t pol = evict_first();
    const uint32_t total = total_slices(a, r);
    uint32_t tile = r.first, k = r.k0;
    ring_pos<shape<N>::W_STAGES> p = {0, 1};
    bool told = false;
    for (uint32_t i = 0; i < total; i++) {
        if (!told && total - i <= a.early) {
            pdl_launch();
            told = true;
        }
        if (i == shape<N>::W_STAGES) {
            prefetch_w(w, a, r, i, min(total, i + a.ahead), pol);
        }
        bar_wait(sm.w_empty + 8 * p.st, p.ph);
        bar_expect(sm.w_full + 8 * p.st, W_BYTES);
        tma_4d(sm.w + p.st * W_BYTES, w, sm.w_full + 8 * p.st, 0, 0, (int)k, (int)tile, pol);
        p.next();
        if (++k == r.k1) {
            k = r.k0;
            tile += r.step;
        }
    }
    if (!told) {
        pdl_launch();
    }
}

// One thread.
template <int N>
TK_DEV void load_x(const CUtensorMap *x, const smem_map<N> &sm, const args &a, const run &r)
{
    const uint32_t total = total_slices(a, r);
    ring_pos<shape<N>::X_STAGES> p = {0, 1};
    uint32_t k = r.k0;
    pdl_wait();
    for (uint32_t i = 0; i < total; i++) {
        bar_wait(sm.x_empty + 8 * p.st, p.ph);
        bar_expect(sm.x_full + 8 * p.st, shape<N>::X_BYTES);
        tma_2d_keep(sm.x + p.st * shape<N>::X_BYTES, x, sm.x_full + 8 * p.st, (int)k * 64, 0);
        p.next();
        k = k + 1 == r.k1 ? r.k0 : k + 1;
    }
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
TK_DEV void finish_direct(const float (&d)[N / 2], const args &a, const smem_map<N> &sm,
                          uint32_t base, int lane, best_of<N, BEST> &best)
{
    const uint32_t r0 = base + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const float2 sc = *reinterpret_cast<const float2 *>(sm.scale + 8 * j + 2 * (lane % 4));
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

TK_DEV bool better(float v, int32_t i, float w, int32_t j)
{
    return v > w || (v == w && i < j);
}

// One (value, index) per token and block.
template <int N>
TK_DEV void finish_argmax(best_of<N, true> &b, const args &a, const smem_map<N> &sm, int tid)
{
    const int warp = tid / 32, lane = tid % 32;
    int32_t *bi = reinterpret_cast<int32_t *>(sm.best + 8 * 64);
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
#pragma unroll
        for (int x = 4; x <= 16; x *= 2) {
            const float v = __shfl_xor_sync(~0u, b.v[j], x);
            const int32_t i = __shfl_xor_sync(~0u, b.i[j], x);
            if (better(v, i, b.v[j], b.i[j])) {
                b.v[j] = v;
                b.i[j] = i;
            }
        }
        if (lane < 4) {
            const int tok = 8 * (j / 2) + 2 * lane + (j & 1);
            sm.best[warp * 64 + tok] = b.v[j];
            bi[warp * 64 + tok] = b.i[j];
        }
    }
    named_sync(2, CONSUMERS);
    if (tid < (int)a.rows) {
        float v = sm.best[tid];
        int32_t i = bi[tid];
        for (int w = 1; w < 8; w++) {
            if (better(sm.best[w * 64 + tid], bi[w * 64 + tid], v, i)) {
                v = sm.best[w * 64 + tid];
                i = bi[w * 64 + tid];
            }
        }
        a.best_val[(size_t)blockIdx.x * TK_MAX_ROWS + tid] = v;
        a.best_idx[(size_t)blockIdx.x * TK_MAX_ROWS + tid] = i;
    }
}

// Epilogue over the cluster: this block finishes rows [rank R, rank R + R) of the tile, R = 128 / cluster. A thread owns
// one row and every step-th token; a warp thus has 32 rows of a token at a time, batch() tokens in flight.
template <int N> constexpr int batch()
{
    return N >= 32 ? 4 : N / 8;
}
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

// h, gain: the first batch's residual rows and the row's gain, read before the cluster's barrier.
template <int N>
TK_DEV void finish_cluster(const args &a, const smem_map<N> &sm, const share &sh,
                           tk_bf16 (&h)[batch<N>()], float gain)
{
    constexpr int BATCH = batch<N>();
    // 32 lanes read 32 neighbouring rows: a remote read of scattered words costs a packet each.
    const uint32_t stage = smem_u32(sm.stage_f) + sh.row * 4;
    uint32_t peer[MAX_CLUSTER];
#pragma unroll
    for (uint32_t c = 0; c < MAX_CLUSTER; c++) {
        peer[c] = map_rank(stage, c < a.cluster ? c : 0);
    }
    for (uint32_t tok = sh.tok; tok < a.rows; tok += BATCH * sh.step) {
        if (tok != sh.tok) {
            share_h(a, sh, tok, h);
        }
        float y[BATCH][MAX_CLUSTER];
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t t = tok + b * sh.step;
#pragma unroll
            for (uint32_t c = 0; c < MAX_CLUSTER; c++) {
                y[b][c] =
                    t < a.rows && c < a.cluster ? ld_cluster(peer[c] + t * (STAGED_LD * 4)) : 0.f;
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t t = tok + b * sh.step;
            if (t < a.rows) {
                float sum = y[b][0];
#pragma unroll
                for (uint32_t c = 1; c < MAX_CLUSTER; c++) {
                    sum += y[b][c]; // + 0 behind the cluster's end
                }
                share_out(a, sh, sm.scale, t, sum, h[b], gain);
            }
        }
    }
}

template <int N>
TK_DEV void tile_products(float (&d)[N / 2], const smem_map<N> &sm, uint32_t slices, int wg,
                          int lane, ring_pos<shape<N>::W_STAGES> &wp,
                          ring_pos<shape<N>::X_STAGES> &xp)
{
    uint32_t w_prev = 0, x_prev = 0;
    for (uint32_t k = 0; k < slices; k++) {
        bar_wait(sm.x_full + 8 * xp.st, xp.ph);
        bar_wait(sm.w_full + 8 * wp.st, wp.ph);
        const uint64_t da = wg_desc(sm.w + wp.st * W_BYTES + wg * (W_BYTES / 2), 0, 1024);
        const uint64_t db = wg_desc(sm.x + xp.st * shape<N>::X_BYTES, 0, 1024);
        wg_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wgmma_ss(d, da + 2 * i, db + 2 * i, k != 0 || i != 0);
        }
        wg_commit();
        if (k != 0) {
            wg_wait<1>();
            if (lane == 0) {
                bar_arrive(sm.w_empty + 8 * w_prev);
                bar_arrive(sm.x_empty + 8 * x_prev);
            }
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

template <int N, bool BEST>
TK_DEV void consume(const smem_map<N> &sm, const args &a, const run &r, uint32_t rank, int tid)
{
    const int warp = tid / 32, lane = tid % 32;
    pdl_wait(); // for h, and for the order of our own writes
    float d[N / 2];
    best_of<N, BEST> best;
    if constexpr (BEST) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            best.v[i] = -INFINITY;
            best.i[i] = 0x7fffffff;
        }
    }
    ring_pos<shape<N>::W_STAGES> wp = {0, 0};
    ring_pos<shape<N>::X_STAGES> xp = {0, 0};
    const bool staged = !BEST && (a.cluster > 1 || a.mode == TK_FLAT_RESIDUAL);
    bool scaled = false;
    for (uint32_t tile = r.first; tile < a.tiles; tile += r.step) {
        tile_products<N>(d, sm, r.k1 - r.k0, warp / 4, lane, wp, xp);
        if (!scaled) {
            named_sync(1, CONSUMERS + SCALERS);
            scaled = true;
        }
        if (!staged) {
            finish_direct<N, BEST>(d, a, sm, tile * TILE + warp * 16, lane, best);
            continue;
        }
        const uint32_t groups = TILE / 32 / a.cluster; // of 32 rows
        share sh;
        sh.row = rank * (TILE / a.cluster) + (warp % groups) * 32 + lane;
        sh.n = tile * TILE + sh.row;
        sh.tok = warp / groups;
        sh.step = CONSUMERS / 32 / groups;
        sh.lane = lane;
        named_sync(2, CONSUMERS); // both warpgroups have read the ring for the last time
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float *p = sm.stage_f + (8 * j + 2 * (lane % 4)) * STAGED_LD + warp * 16 + lane / 4;
            p[0] = d[4 * j];
            p[STAGED_LD] = d[4 * j + 1];
            p[8] = d[4 * j + 2];
            p[STAGED_LD + 8] = d[4 * j + 3];
        }
        tk_bf16 h[batch<N>()]; // on their way during the barriers
        share_h(a, sh, sh.tok, h);
        const float gain = a.mode == TK_FLAT_RESIDUAL && sh.n < a.n
                               ? __uint_as_float((uint32_t)__ldg(a.gain + sh.n) << 16)
                               : 0.f;
        named_sync(2, CONSUMERS);
        if (a.cluster > 1) {
            // All staged stores are in shared memory behind the barrier above; a releasing arrive would add a fence of
            // the whole GPU (about 1 us) that nothing here needs.
            cluster_arrive_relaxed();
            cluster_wait();
        }
        finish_cluster<N>(a, sm, sh, h, gain);
    }
    if constexpr (BEST) {
        finish_argmax<N>(best, a, sm, tid);
    }
}

template <int N, bool BEST>
__global__ void __launch_bounds__(THREADS, BEST ? 1 : 2)
    flat_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const args a)
{
    using S = shape<N>;
    extern __shared__ unsigned char raw[];
    smem_map<N> sm;
    sm.w = smem_u32(raw);
    if (sm.w % 1024 != 0) {
        __trap();
    }
    sm.x = sm.w + S::W_STAGES * W_BYTES;
    sm.stage_f = reinterpret_cast<float *>(raw);
    sm.scale = reinterpret_cast<float *>(raw + S::RINGS);
    sm.best = sm.scale + 64;
    uint64_t *bars = reinterpret_cast<uint64_t *>(sm.best + 8 * 64 * 2);
    sm.w_full = smem_u32(bars);
    sm.w_empty = sm.w_full + 8 * S::W_STAGES;
    sm.x_full = sm.w_empty + 8 * S::W_STAGES;
    sm.x_empty = sm.x_full + 8 * S::X_STAGES;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    if (tid == CONSUMERS) {
        for (int i = 0; i < S::W_STAGES; i++) {
            bar_init(sm.w_full + 8 * i, 1);
            bar_init(sm.w_empty + 8 * i, CONSUMERS / 32);
        }
        for (int i = 0; i < S::X_STAGES; i++) {
            bar_init(sm.x_full + 8 * i, 1);
            bar_init(sm.x_empty + 8 * i, CONSUMERS / 32);
        }
        bar_init_fence();
        tma_prefetch_map(&w);
        tma_prefetch_map(&x);
    }
    __syncthreads();
    const uint32_t rank = a.cluster > 1 ? cluster_rank() : 0;
    run r;
    r.first = blockIdx.x / a.cluster;
    r.step = gridDim.x / a.cluster;
    r.k0 = a.k_slices * rank / a.cluster;
    r.k1 = a.k_slices * (rank + 1) / a.cluster;
    if (warp < CONSUMERS / 32) {
        consume<N, BEST>(sm, a, r, rank, tid);
    } else {
        const int role = warp - CONSUMERS / 32;
        if (role >= 2) {
            pdl_wait();
            row_scale(a, sm.scale, tid - (THREADS - SCALERS));
            named_arrive(1, CONSUMERS + SCALERS);
        } else if (lane == 0 && role == 0) {
            load_w<N>(&w, sm, a, r);
        } else if (lane == 0) {
            load_x<N>(&x, sm, a, r);
        }
        __syncwarp();
        if (a.cluster > 1) { // the consumers' barrier
            cluster_arrive_relaxed();
            cluster_wait();
        }
    }
    if (a.cluster >
        1) { // nobody leaves while its shared memory is being read; what we read has been used by now
        cluster_arrive_relaxed();
        cluster_wait();
    }
}

// How many K slices before its last load a block lets the next kernel start. Found by search over whole decode steps (an
// H200, Llama-3-8B's shape; NOTES.md); it moves no bit of any result.
uint32_t early_slices(const struct tk_flat *p)
{
    if (p->rows <= 4) {
        return UINT32_MAX; // attention leaves most SMs idle: whatever can start, starts
    }
    switch (p->mode) {
    case TK_FLAT_SWIGLU:
        return 3;
    case TK_FLAT_RESIDUAL:
        return p->k > p->n ? UINT32_MAX : 0;
    case TK_FLAT_STORE:
    case TK_FLAT_ARGMAX:
    default:
        return 0;
    }
}

// Blocks along K: part of the numerics, so a function of the product's shape alone.
uint32_t k_cut(uint32_t n, uint32_t k, uint32_t mode)
{
    const uint32_t tiles = (n + TILE - 1) / TILE;
    uint32_t c = 1;
    if (mode == TK_FLAT_STORE || mode == TK_FLAT_RESIDUAL) {
        while (c < MAX_CLUSTER && tiles * c * 2 <= TARGET_BLOCKS && k / 64 >= c * 8) {
            c *= 2;
        }
    }
    return c;
}

// Row tiles that run at once, so that every block gets the same number of them.
uint32_t tiles_at_once(uint32_t n, uint32_t most)
{
    const uint32_t tiles = (n + TILE - 1) / TILE, passes = (tiles + most - 1) / most;
    return (tiles + passes - 1) / passes;
}

template <int N, bool BEST>
td_err launch_as(tk_stream s, const struct tk_flat *p, const args &a, uint32_t tiles)
{
    constexpr int bytes = shape<N>::SMEM;
    TD_TRY(tk_prepare(flat_kernel<N, BEST>, bytes));
    tk_launch l(s, tiles * a.cluster, THREADS, bytes, a.cluster, p->pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, flat_kernel<N, BEST>,
                                   *(const CUtensorMap *)(const void *)p->w->bytes,
                                   *(const CUtensorMap *)(const void *)p->x->bytes, a));
    return TD_OK;
}

template <int N>
td_err launch_flat(tk_stream s, const struct tk_flat *p, const args &a, uint32_t tiles)
{
    return p->mode == TK_FLAT_ARGMAX ? launch_as<N, true>(s, p, a, tiles)
                                     : launch_as<N, false>(s, p, a, tiles);
}

} // namespace

extern "C" uint32_t tk_flat_norm_parts(uint32_t n)
{
    return n / PART_ROWS;
}

extern "C" uint32_t tk_flat_argmax_parts(uint32_t n)
{
    return tiles_at_once(n, TARGET_BLOCKS);
}

extern "C" td_err tk_flat(tk_stream s, const struct tk_flat *p)
{
    if (!tk_uses_hopper()) {
        return tk_flat_sm80(s, p);
    }
    if (p->rows == 0 || p->rows > TK_MAX_ROWS || p->n == 0 || p->k < 64 || p->k % 64 != 0 ||
        p->norm.parts > TK_NORM_PARTS) {
        return TD_ERR_UNSUPPORTED;
    }
    if ((p->mode == TK_FLAT_RESIDUAL &&
         (p->n % TILE != 0 || p->n / TILE > TARGET_BLOCKS || p->n / PART_ROWS > TK_NORM_PARTS)) ||
        (p->mode == TK_FLAT_SWIGLU && p->n % 16 != 0)) {
        return TD_ERR_UNSUPPORTED;
    }
    args a;
    a.out = p->out;
    a.h = p->h;
    a.hg = p->hg;
    a.gain = p->gain;
    a.sumsq = p->sumsq;
    a.best_val = p->best_val;
    a.best_idx = p->best_idx;
    a.out_f32 = p->out_f32;
    a.norm = p->norm.sumsq;
    a.norm_parts = p->norm.parts;
    a.norm_inv_dim = p->norm.parts != 0 ? 1.f / (float)p->norm.dim : 0.f;
    a.norm_eps = p->norm.eps;
    a.rows = p->rows;
    a.n = p->n;
    a.k_slices = p->k / 64;
    a.tiles = (p->n + TILE - 1) / TILE;
    a.out_stride = p->out_stride;
    a.mode = p->mode;
    a.cluster = k_cut(p->n, p->k, p->mode);
    a.early = early_slices(p);
    a.ahead = p->l2_ahead;
    // At 33 to 64 rows two blocks per SM stream better than one block with two tiles.
    const bool wide = p->rows > 32 && p->mode != TK_FLAT_ARGMAX;
    const uint32_t tiles = tiles_at_once(p->n, wide ? 2 * TARGET_BLOCKS : TARGET_BLOCKS);
    if (p->rows <= 8) {
        return launch_flat<8>(s, p, a, tiles);
    }
    if (p->rows <= 16) {
        return launch_flat<16>(s, p, a, tiles);
    }
    if (p->rows <= 32) {
        return launch_flat<32>(s, p, a, tiles);
    }
    return launch_flat<64>(s, p, a, tiles);
}
