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
#include "kernels/cuda/flat.cuh"

namespace
{

constexpr int STAGED_LD =
    TILE + 4; // staged accumulators [token][row]: 2 x LD = 8 mod 32, no bank conflicts

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
    rings ring;
    float *stage_f; // the ring again, as staged accumulators [N][STAGED_LD]
    float *scale;   // [64]
    float *best;    // [8 warps][64] values, then indices
};

struct run {
    uint32_t first, step; // row tiles of this cluster
    uint32_t k0, k1;      // K slices of this block
};

TK_DEV uint32_t total_slices(const args &a, const run &r)
{
    const uint32_t my_tiles = r.first < a.tiles ? (a.tiles - r.first + r.step - 1) / r.step : 0;
    return my_tiles * (r.k1 - r.k0);
}

// One thread. Weights do not depend on the kernel before us: no wait for it here. The next kernel may start when
// `early` slices are left to load.
template <int N>
TK_DEV void load_w(const CUtensorMap *w, const rings &sm, const args &a, const run &r,
                   uint32_t early)
{
    const uint64_t pol = evict_first();
    const uint32_t total = total_slices(a, r);
    uint32_t tile = r.first, k = r.k0;
    ring_pos<shape<N>::W_STAGES> p = {0, 1};
    bool told = false;
    for (uint32_t i = 0; i < total; i++) {
        if (!told && total - i <= early) {
            pdl_launch();
            told = true;
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
TK_DEV void load_x(const CUtensorMap *x, const rings &sm, const args &a, const run &r)
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

template <int N> TK_DEV void stage_tile(const float (&d)[N / 2], float *stage, int warp, int lane)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        float *p = stage + (8 * j + 2 * (lane % 4)) * STAGED_LD + warp * 16 + lane / 4;
        p[0] = d[4 * j];
        p[STAGED_LD] = d[4 * j + 1];
        p[8] = d[4 * j + 2];
        p[STAGED_LD + 8] = d[4 * j + 3];
    }
}

// Epilogue over the cluster: its parts meet in distributed shared memory.
template <int N>
TK_DEV void finish_cluster(const float (&d)[N / 2], const args &a, const smem_map<N> &sm,
                           uint32_t tile, uint32_t rank, int warp, int lane)
{
    const share sh = share_of(a, tile, rank, warp, lane);
    named_sync(2, CONSUMERS); // both warpgroups have read the ring for the last time
    stage_tile<N>(d, sm.stage_f, warp, lane);
    constexpr int BATCH = N >= 32 ? 4 : N / 8;
    tk_bf16 h[BATCH]; // on their way during the barriers
    share_h(a, sh, sh.tok, h);
    const float gain = share_gain(a, a.gain, sh);
    named_sync(2, CONSUMERS);
    if (a.cut > 1) {
        // All staged stores are in shared memory behind the barrier above; a releasing arrive would add a fence of
        // the whole GPU (about 1 us) that nothing here needs.
        cluster_arrive_relaxed();
        cluster_wait();
    }
    // 32 lanes read 32 neighbouring rows: a remote read of scattered words costs a packet each.
    uint32_t peer[MAX_CUT];
#pragma unroll
    for (uint32_t c = 0; c < MAX_CUT; c++) {
        peer[c] = map_rank(smem_u32(sm.stage_f) + sh.row * 4, c < a.cut ? c : 0);
    }
    finish_share<BATCH>(a, sm.scale, sh, h, gain, [&](uint32_t tok) {
        share_parts<BATCH> p;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const uint32_t t = tok + b * sh.step;
#pragma unroll
            for (uint32_t c = 0; c < MAX_CUT; c++) {
                p.y[b][c] =
                    t < a.rows && c < a.cut ? ld_cluster(peer[c] + t * (STAGED_LD * 4)) : 0.f;
            }
        }
        return p;
    });
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
    const bool staged = !BEST && (a.cut > 1 || a.mode == TK_FLAT_RESIDUAL);
    bool scaled = false;
    for (uint32_t tile = r.first; tile < a.tiles; tile += r.step) {
        tile_products<N>(d, sm.ring, r.k1 - r.k0, warp / 4, lane, wp, xp);
        if (!scaled) {
            named_sync(1, CONSUMERS + SCALERS);
            scaled = true;
        }
        if (staged) {
            finish_cluster<N>(d, a, sm, tile, rank, warp, lane);
        } else {
            finish_direct<N, BEST>(d, a, sm.scale, tile * TILE + warp * 16, lane, best);
        }
    }
    if constexpr (BEST) {
        finish_argmax<N>(best, a, sm, tid);
    }
}

template <int N, bool BEST>
__global__ void __launch_bounds__(THREADS, BEST ? 1 : 2)
    flat_kernel(const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x,
                const args a, const uint32_t early)
{
    using S = shape<N>;
    extern __shared__ unsigned char raw[];
    smem_map<N> sm;
    sm.ring.w = smem_u32(raw);
    if (sm.ring.w % 1024 != 0) {
        __trap();
    }
    sm.ring.x = sm.ring.w + S::W_STAGES * W_BYTES;
    sm.stage_f = reinterpret_cast<float *>(raw);
    sm.scale = reinterpret_cast<float *>(raw + S::RINGS);
    sm.best = sm.scale + 64;
    uint64_t *bars = reinterpret_cast<uint64_t *>(sm.best + 8 * 64 * 2);
    sm.ring.w_full = smem_u32(bars);
    sm.ring.w_empty = sm.ring.w_full + 8 * S::W_STAGES;
    sm.ring.x_full = sm.ring.w_empty + 8 * S::W_STAGES;
    sm.ring.x_empty = sm.ring.x_full + 8 * S::X_STAGES;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    if (tid == CONSUMERS) {
        for (int i = 0; i < S::W_STAGES; i++) {
            bar_init(sm.ring.w_full + 8 * i, 1);
            bar_init(sm.ring.w_empty + 8 * i, CONSUMERS / 32);
        }
        for (int i = 0; i < S::X_STAGES; i++) {
            bar_init(sm.ring.x_full + 8 * i, 1);
            bar_init(sm.ring.x_empty + 8 * i, CONSUMERS / 32);
        }
        bar_init_fence();
        tma_prefetch_map(&w);
        tma_prefetch_map(&x);
    }
    __syncthreads();
    const uint32_t rank = a.cut > 1 ? cluster_rank() : 0;
    run r;
    r.first = blockIdx.x / a.cut;
    r.step = gridDim.x / a.cut;
    r.k0 = a.k_slices * rank / a.cut;
    r.k1 = a.k_slices * (rank + 1) / a.cut;
    if (warp < CONSUMERS / 32) {
        consume<N, BEST>(sm, a, r, rank, tid);
    } else {
        const int role = warp - CONSUMERS / 32;
        if (role >= 2) {
            pdl_wait();
            row_scale(a, sm.scale, tid - (THREADS - SCALERS));
            named_arrive(1, CONSUMERS + SCALERS);
        } else if (lane == 0 && role == 0) {
            load_w<N>(&w, sm.ring, a, r, early);
        } else if (lane == 0) {
            load_x<N>(&x, sm.ring, a, r);
        }
        __syncwarp();
        if (a.cut > 1) { // the consumers' barrier
            cluster_arrive_relaxed();
            cluster_wait();
        }
    }
    if (a.cut >
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
    tk_launch l(s, tiles * a.cut, THREADS, bytes, a.cut, p->pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(
        &l.cfg, flat_kernel<N, BEST>, *(const CUtensorMap *)(const void *)p->w->bytes,
        *(const CUtensorMap *)(const void *)p->x->bytes, a, early_slices(p)));
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
    if (!flat_fits(p)) {
        return TD_ERR_UNSUPPORTED;
    }
    const args a = args_of(p);
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
