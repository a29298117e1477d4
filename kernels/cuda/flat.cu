// flat.cu - flat products of decode: y[rows][N] = x[rows][K] W[N][K]^T for 1..64 rows, with fused epilogues.
//
// Shapes: W bf16, N padded to 128 rows in memory, K % 64 = 0, plain [N][K] or tiled [N/128][K/64][128][64] (the tensor
//   map tells); x bf16 [rows][K]. RESIDUAL: N % 128 = 0 and N <= 8192. Alignment: 16 bytes, TMA's.
// Design: swapped operands. 128 weight rows are wgmma's M (two warpgroups of 64), the tokens its N (8, 16, 32 or 64).
//   A ring of 64-wide K slices (W 16 KB + x) is filled by one thread with TMA; W with evict-first, and W of the whole
//   ring before griddepcontrol.wait, because weights do not depend on the kernel before. The ring stays under 110 KB so
//   that the next kernel's block fits beside ours and starts its own weights while our tail runs.
//   Narrow products (N / 128 < 66) split K over a cluster of 2 or 4 blocks; the partial tiles meet in distributed shared
//   memory and are added in rank order, each block finishing its share of the rows. Wide ones walk several row tiles.
//   The cut depends on N alone, and all row counts run the same order of k, so a row does not depend on its neighbours.
// Bound by: device memory (weight bytes) up to about 64 rows. Measured: see NOTES.md.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int TILE = TK_FLAT_ROWS;          // weight rows of a tile
constexpr int W_BYTES = TILE * 128;         // of one K slice
constexpr int CONSUMERS = 256;              // two warpgroups
constexpr int THREADS = CONSUMERS + 128;    // + loader warp + three warps for the norm's scale
constexpr int MAX_CLUSTER = 4;
constexpr int TARGET_BLOCKS = 132;          // part of the numerics: the K split follows from it, not from the device
constexpr int PART_ROWS = 32;               // rows behind one partial sum of squares

struct args {
    tk_bf16 *out, *h, *hg;
    const tk_bf16 *gain;
    float *sumsq, *best_val, *out_f32;
    int32_t *best_idx;
    const float *norm;
    uint32_t norm_parts, rows, n, k_slices, tiles, out_stride, mode, cluster, x_rows;
    float norm_inv_dim, norm_eps;
};

template <int N> struct shape {
    static constexpr int STAGE = W_BYTES + N * 128;
    static constexpr int STAGES = N == 64 ? 4 : N == 32 ? 5 : 6;
    static constexpr int SMEM = STAGE * STAGES + 64 * 4 + STAGES * 16 + 8 * 64 * 8;
    static constexpr int LD = N + 1; // of the staged accumulators: odd, so that a column of rows hits all banks
    static_assert(TILE * LD * 4 <= STAGE * STAGES, "the staged tile reuses the ring");
};

template <int N> struct smem_map {
    uint32_t ring, full, empty;
    float *stage_f; // the ring again, as staged accumulators [TILE][LD]
    float *scale;   // [64]
    float *best;    // [8 warps][64] values, then indices
};

// The scale of each row from the partial sums: four interleaved sums, then ((0 + 1) + (2 + 3)).
TK_DEV void row_scales(const args &a, float *scale, int t)
{
    if (t >= TK_MAX_ROWS) {
        return;
    }
    if (a.norm_parts == 0 || t >= (int)a.rows) {
        scale[t] = 1.f;
        return;
    }
    float s[4] = {0, 0, 0, 0};
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

template <int N>
TK_DEV void load_all(const CUtensorMap *w, const CUtensorMap *x, const smem_map<N> &sm, const args &a, const run &r)
{
    using S = shape<N>;
    const uint64_t pol = evict_first();
    const uint32_t per_tile = r.k1 - r.k0;
    const uint32_t my_tiles = r.first < a.tiles ? (a.tiles - r.first + r.step - 1) / r.step : 0;
    const uint32_t total = my_tiles * per_tile;
    const uint32_t ahead = total < (uint32_t)S::STAGES ? total : (uint32_t)S::STAGES;
    uint32_t tile = r.first, k = r.k0;
    // Weights do not depend on the kernel before us.
    for (uint32_t i = 0; i < ahead; i++) {
        bar_expect(sm.full + 8 * i, S::STAGE);
        tma_4d(sm.ring + i * S::STAGE, w, sm.full + 8 * i, 0, 0, (int)k, (int)tile, pol);
        if (++k == r.k1) {
            k = r.k0;
            tile += r.step;
        }
    }
    pdl_wait();
    uint32_t kx = r.k0;
    for (uint32_t i = 0; i < ahead; i++) {
        tma_2d_keep(sm.ring + i * S::STAGE + W_BYTES, x, sm.full + 8 * i, (int)kx * 64, 0);
        kx = kx + 1 == r.k1 ? r.k0 : kx + 1;
    }
    uint32_t st = 0, ph = 0;
    for (uint32_t i = ahead; i < total; i++) {
        bar_wait(sm.empty + 8 * st, ph);
        const uint32_t dst = sm.ring + st * S::STAGE, bar = sm.full + 8 * st;
        bar_expect(bar, S::STAGE);
        tma_4d(dst, w, bar, 0, 0, (int)k, (int)tile, pol);
        tma_2d_keep(dst + W_BYTES, x, bar, (int)k * 64, 0);
        if (++k == r.k1) {
            k = r.k0;
            tile += r.step;
        }
        if (++st == (uint32_t)S::STAGES) {
            st = 0;
            ph ^= 1;
        }
    }
    pdl_launch();
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

// Epilogue straight from registers, when K is not split. Thread holds rows r0, r0 + 8 and tokens 8 j + 2 (lane % 4) + i.
template <int N, bool BEST>
TK_DEV void finish_direct(const float (&d)[N / 2], const args &a, const smem_map<N> &sm, uint32_t tile, int warp,
                          int lane, best_of<N, BEST> &best)
{
    const uint32_t base = tile * TILE + warp * 16, r0 = base + lane / 4;
    __nv_bfloat16 *out = reinterpret_cast<__nv_bfloat16 *>(a.out);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t tok = 8 * j + 2 * (lane % 4) + i;
            if (tok >= a.rows) {
                continue;
            }
            const float sc = sm.scale[tok], y0 = d[4 * j + i] * sc, y1 = d[4 * j + 2 + i] * sc;
            if (!BEST && a.mode == TK_FLAT_SWIGLU) {
                const float s = y0 / (1.f + __expf(-y0));
                if (r0 + 8 < a.n) {
                    out[(size_t)tok * a.out_stride + base / 2 + lane / 4] = __float2bfloat16_rn(s * y1);
                }
            } else if (!BEST) {
                if (r0 < a.n) {
                    out[(size_t)tok * a.out_stride + r0] = __float2bfloat16_rn(y0);
                }
                if (r0 + 8 < a.n) {
                    out[(size_t)tok * a.out_stride + r0 + 8] = __float2bfloat16_rn(y1);
                }
            } else {
                if (a.out_f32 != nullptr) {
                    if (r0 < a.n) {
                        a.out_f32[(size_t)tok * a.out_stride + r0] = y0;
                    }
                    if (r0 + 8 < a.n) {
                        a.out_f32[(size_t)tok * a.out_stride + r0 + 8] = y1;
                    }
                }
                if (r0 < a.n) {
                    best.offer(2 * j + i, y0, r0);
                }
                if (r0 + 8 < a.n) {
                    best.offer(2 * j + i, y1, r0 + 8);
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
template <int N> TK_DEV void finish_argmax(best_of<N, true> &b, const args &a, const smem_map<N> &sm, int tid)
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

// Epilogue over the cluster: this block finishes rows [rank R, rank R + R) of the tile, R = 128 / cluster. A warp takes
// 32 rows of one token at a time.
template <int N>
TK_DEV void finish_cluster(const args &a, const smem_map<N> &sm, uint32_t tile, uint32_t rank, int tid)
{
    using S = shape<N>;
    const uint32_t rows_here = TILE / a.cluster, groups = rows_here / 32;
    const uint32_t stage = smem_u32(sm.stage_f);
    uint32_t peer[MAX_CLUSTER];
#pragma unroll
    for (uint32_t c = 0; c < MAX_CLUSTER; c++) {
        peer[c] = map_rank(stage, c < a.cluster ? c : 0);
    }
    __nv_bfloat16 *out = reinterpret_cast<__nv_bfloat16 *>(a.out);
    __nv_bfloat16 *hp = reinterpret_cast<__nv_bfloat16 *>(a.h), *hgp = reinterpret_cast<__nv_bfloat16 *>(a.hg);
    const __nv_bfloat16 *gp = reinterpret_cast<const __nv_bfloat16 *>(a.gain);
    const int lane = tid % 32;
#pragma unroll 2
    for (uint32_t it = tid / 32; it < a.rows * groups; it += CONSUMERS / 32) {
        const uint32_t tok = it / groups, row = rank * rows_here + (it % groups) * 32 + lane;
        const uint32_t off = (row * S::LD + tok) * 4, n = tile * TILE + row;
        float y = 0;
#pragma unroll
        for (uint32_t c = 0; c < MAX_CLUSTER; c++) {
            if (c < a.cluster) {
                y += ld_cluster(peer[c] + off);
            }
        }
        if (a.mode == TK_FLAT_STORE) {
            if (n < a.n) {
                out[(size_t)tok * a.out_stride + n] = __float2bfloat16_rn(y * sm.scale[tok]);
            }
            continue;
        }
        const size_t at = (size_t)tok * a.n + n;
        const __nv_bfloat16 h = __float2bfloat16_rn(__bfloat162float(hp[at]) + y);
        const float hf = __bfloat162float(h);
        hp[at] = h;
        hgp[at] = __float2bfloat16_rn(hf * __bfloat162float(gp[n]));
        float q = hf * hf;
#pragma unroll
        for (int x = 16; x >= 1; x /= 2) {
            q += __shfl_xor_sync(~0u, q, x);
        }
        if (lane == 0) {
            a.sumsq[(size_t)(n / PART_ROWS) * TK_MAX_ROWS + tok] = q;
        }
    }
}

template <int N>
TK_DEV void tile_products(float (&d)[N / 2], const smem_map<N> &sm, uint32_t slices, int wg, int lane, uint32_t &st,
                          uint32_t &ph)
{
    using S = shape<N>;
    uint32_t prev = ~0u;
    for (uint32_t k = 0; k < slices; k++) {
        bar_wait(sm.full + 8 * st, ph);
        const uint32_t at = sm.ring + st * S::STAGE;
        const uint64_t da = wg_desc(at + wg * (W_BYTES / 2), 0, 1024), db = wg_desc(at + W_BYTES, 0, 1024);
        wg_fence();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wgmma_ss(d, da + 2 * i, db + 2 * i, k != 0 || i != 0);
        }
        wg_commit();
        if (prev != ~0u) {
            wg_wait<1>();
            if (lane == 0) {
                bar_arrive(sm.empty + 8 * prev);
            }
        }
        prev = st;
        if (++st == (uint32_t)S::STAGES) {
            st = 0;
            ph ^= 1;
        }
    }
    wg_wait<0>();
    if (lane == 0 && prev != ~0u) {
        bar_arrive(sm.empty + 8 * prev);
    }
}

template <int N, bool BEST>
__global__ void __launch_bounds__(THREADS, BEST ? 1 : 2)
    flat_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x, const args a)
{
    using S = shape<N>;
    extern __shared__ unsigned char raw[];
    smem_map<N> sm;
    sm.ring = smem_u32(raw);
    if (sm.ring % 1024 != 0) {
        __trap();
    }
    sm.stage_f = reinterpret_cast<float *>(raw);
    sm.scale = reinterpret_cast<float *>(raw + S::STAGE * S::STAGES);
    sm.best = sm.scale + 64;
    uint64_t *bars = reinterpret_cast<uint64_t *>(sm.best + 8 * 64 * 2);
    sm.full = smem_u32(bars);
    sm.empty = sm.full + 8 * S::STAGES;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    if (tid == CONSUMERS) {
        for (int i = 0; i < S::STAGES; i++) {
            bar_init(sm.full + 8 * i, 1);
            bar_init(sm.empty + 8 * i, 8);
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
    const bool staged = a.cluster > 1 || a.mode == TK_FLAT_RESIDUAL;

    if (warp >= CONSUMERS / 32) {
        if (warp == CONSUMERS / 32) {
            if (lane == 0) {
                load_all<N>(&w, &x, sm, a, r);
            }
            __syncwarp();
        } else {
            pdl_wait();
            row_scales(a, sm.scale, tid - CONSUMERS - 32);
            named_arrive(1, CONSUMERS + 96);
        }
        if (a.cluster > 1) {
            cluster_arrive();
            cluster_wait();
            cluster_arrive();
            cluster_wait();
        }
        return;
    }
    pdl_wait(); // for h and for the order of our own writes
    float d[N / 2];
    best_of<N, BEST> best;
    if constexpr (BEST) {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            best.v[i] = -INFINITY;
            best.i[i] = 0x7fffffff;
        }
    }
    uint32_t st = 0, ph = 0;
    bool scaled = false;
    for (uint32_t tile = r.first; tile < a.tiles; tile += r.step) {
        tile_products<N>(d, sm, r.k1 - r.k0, warp / 4, lane, st, ph);
        if (!scaled) {
            named_sync(1, CONSUMERS + 96);
            scaled = true;
        }
        if (!staged) {
            finish_direct<N, BEST>(d, a, sm, tile, warp, lane, best);
            continue;
        }
        named_sync(2, CONSUMERS); // both warpgroups have read the ring for the last time
        const uint32_t row = warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            float *p = sm.stage_f + row * S::LD + 8 * j + 2 * (lane % 4);
            p[0] = d[4 * j];
            p[1] = d[4 * j + 1];
            p[8 * S::LD] = d[4 * j + 2];
            p[8 * S::LD + 1] = d[4 * j + 3];
        }
        if (a.cluster > 1) {
            cluster_arrive();
            cluster_wait();
        } else {
            named_sync(2, CONSUMERS);
        }
        finish_cluster<N>(a, sm, tile, rank, tid);
    }
    if constexpr (BEST) {
        finish_argmax<N>(best, a, sm, tid);
    }
    if (a.cluster > 1) {
        cluster_arrive(); // nobody leaves while its shared memory is being read
        cluster_wait();
    }
}

struct cut {
    uint32_t cluster, blocks;
};
cut choose_cut(uint32_t n, uint32_t k, uint32_t mode)
{
    const uint32_t tiles = (n + TILE - 1) / TILE;
    cut c = {1, tiles};
    if (mode == TK_FLAT_STORE || mode == TK_FLAT_RESIDUAL) {
        while (c.cluster < MAX_CLUSTER && tiles * c.cluster * 2 <= TARGET_BLOCKS && k / 64 >= c.cluster * 8) {
            c.cluster *= 2;
        }
    }
    if (tiles > TARGET_BLOCKS) {
        const uint32_t passes = (tiles + TARGET_BLOCKS - 1) / TARGET_BLOCKS;
        c.blocks = (tiles + passes - 1) / passes;
    }
    c.blocks *= c.cluster;
    return c;
}

template <int N, bool BEST>
td_err launch_as(tk_stream s, const struct tk_flat *p, const args &a, uint32_t blocks)
{
    constexpr int bytes = shape<N>::SMEM;
    TK_TRY_CUDA(cudaFuncSetAttribute(flat_kernel<N, BEST>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    tk_launch l(s, blocks, THREADS, bytes, a.cluster, p->pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, flat_kernel<N, BEST>, *(const CUtensorMap *)(const void *)p->w->bytes,
                                   *(const CUtensorMap *)(const void *)p->x->bytes, a));
    return TD_OK;
}

template <int N> td_err launch_flat(tk_stream s, const struct tk_flat *p, const args &a, uint32_t blocks)
{
    return p->mode == TK_FLAT_ARGMAX ? launch_as<N, true>(s, p, a, blocks) : launch_as<N, false>(s, p, a, blocks);
}

} // namespace

extern "C" uint32_t tk_flat_norm_parts(uint32_t n)
{
    return n / PART_ROWS;
}

extern "C" uint32_t tk_flat_argmax_parts(uint32_t n)
{
    return choose_cut(n, 64, TK_FLAT_ARGMAX).blocks;
}

extern "C" td_err tk_flat(tk_stream s, const struct tk_flat *p)
{
    if (p->rows == 0 || p->rows > TK_MAX_ROWS || p->n == 0 || p->k < 64 || p->k % 64 != 0 ||
        p->norm.parts > TK_NORM_PARTS) {
        return TD_ERR_UNSUPPORTED;
    }
    if ((p->mode == TK_FLAT_RESIDUAL && (p->n % TILE != 0 || p->n / TILE > TARGET_BLOCKS ||
                                         p->n / PART_ROWS > TK_NORM_PARTS)) ||
        (p->mode == TK_FLAT_SWIGLU && p->n % 16 != 0)) {
        return TD_ERR_UNSUPPORTED;
    }
    const cut c = choose_cut(p->n, p->k, p->mode);
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
    a.cluster = c.cluster;
    a.x_rows = p->rows;
    if (p->rows <= 8) {
        return launch_flat<8>(s, p, a, c.blocks);
    }
    if (p->rows <= 16) {
        return launch_flat<16>(s, p, a, c.blocks);
    }
    if (p->rows <= 32) {
        return launch_flat<32>(s, p, a, c.blocks);
    }
    return launch_flat<64>(s, p, a, c.blocks);
}
