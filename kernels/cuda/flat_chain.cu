// flat_chain.cu - up to four flat products in one launch, each reading what the one before wrote.
//
// Shapes, modes, alignment: as tk_flat; RESIDUAL without a norm, SWIGLU and STORE with one. Bits: those of one tk_flat each,
//   since the cut of K and every sum's order are the same.
// Design: one block per SM stays for the whole chain. A tile's part of K (a unit) belongs to one block, chosen by the unit's
//   number. The loader of weights walks through all products without waiting for anybody: while the blocks agree that a product
//   is done, its rings fill with the next one's weights. Only the loader of tokens waits, for the product's count of finished
//   blocks. Parts of K meet in device memory (L2), each number beside a tag that says which launch and product wrote it: the
//   reader waits for the tag, so neither side needs a fence (the idea of NCCL's LL protocol). Each block of a tile finishes
//   its share of the rows, parts in order. The last block of the last product zeroes the counts and moves the tags on.
//   All blocks must be able to run at once: a grid of one block per SM.
// Bound by: device memory (weight bytes). Measured: see NOTES.md.
#include "kernels/cuda/flat_chain.cuh"

namespace
{

// The work area: launches so far, finished blocks of each product (a line each), then the parts.
constexpr uint32_t HEAD_WORDS = LINE * (1 + TK_CHAIN_MAX);
constexpr uint32_t PARTS = TARGET_BLOCKS * TK_CHAIN_ROWS * TILE;
constexpr uint32_t TAGGED =
    UINT32_MAX / TK_CHAIN_MAX; // launches until tags begin again, with zeros in the parts

struct stage {
    CUtensorMap w, x;
    args a;
    uint32_t units; // tiles x parts of K
    bool split;     // finished by shares
};

struct chain {
    stage st[TK_CHAIN_MAX];
    uint32_t n;
    uint32_t *work;
    uint32_t late; // blocks, the last ones, that start when the kernel before us has ended
};

TK_DEV uint32_t *done_at(const chain &c, uint32_t s)
{
    return c.work + LINE * (1 + s);
}
// [unit][token][row of the tile] of (number, tag)
TK_DEV uint2 *parts_at(const chain &c)
{
    return reinterpret_cast<uint2 *>(c.work + HEAD_WORDS);
}
// Of the parts that this launch's product s leaves: unlike any that lies in the work area, where zeros are nobody's.
TK_DEV uint32_t tag_of(uint32_t launches, uint32_t s)
{
    return launches * TK_CHAIN_MAX + s + 1;
}
TK_DEV uint32_t blocks_of(const stage &st)
{
    return min(st.units, gridDim.x);
}

// One thread: product s's input is written by everybody.
TK_DEV void wait_input(const chain &c, uint32_t s)
{
    if (s > 0) {
        const uint32_t all = blocks_of(c.st[s - 1]);
        while (ld_acquire(done_at(c, s - 1)) != all) {
            __nanosleep(POLL_NS);
        }
    }
}

// This block's first unit of a product; then every gridDim.x-th. From the far end in the second half of a chain: who has one
// unit less of the second product than others goes on with the third.
TK_DEV uint32_t first_unit(uint32_t s)
{
    return s < 2 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
}

// One thread. Blocks that start early bring the first product's weights of those that do not into L2.
TK_DEV void load_for_late(const chain &c, uint64_t pol)
{
    const stage &st = c.st[0];
    const uint32_t early = gridDim.x - c.late, slices = (st.a.k_slices + st.a.cut - 1) / st.a.cut;
    if (blockIdx.x >= early || st.units <= early) {
        return;
    }
    for (uint32_t i = blockIdx.x; i < (blocks_of(st) - early) * slices; i += early) {
        const unit n = unit_of(st.a, early + i / slices);
        if (n.k0 + i % slices < n.k1) {
            tma_4d_prefetch(&st.w, 0, 0, (int)(n.k0 + i % slices), (int)n.tile, pol);
        }
    }
}

// One thread.
template <int W_STAGES, int IN_FLIGHT> TK_DEV void load_w(const chain &c, const rings &sm)
{
    const uint64_t pol = evict_first();
    ring_pos<W_STAGES> p = {0, 1}, landed = {0, 0};
    uint32_t issued = 0;
    pdl_launch();
    load_for_late(c, pol);
    for (uint32_t s = 0; s < c.n; s++) {
        const stage &st = c.st[s];
        for (uint32_t u = first_unit(s); u < st.units; u += gridDim.x) {
            const unit n = unit_of(st.a, u);
            for (uint32_t k = n.k0; k < n.k1; k++) {
                bar_wait(sm.w_empty + 8 * p.st, p.ph);
                if (issued++ >= IN_FLIGHT) {
                    bar_wait(sm.w_full + 8 * landed.st, landed.ph);
                    landed.next();
                }
                bar_expect(sm.w_full + 8 * p.st, W_BYTES);
                tma_4d(sm.w + p.st * W_BYTES, &st.w, sm.w_full + 8 * p.st, 0, 0, (int)k,
                       (int)n.tile, pol);
                p.next();
            }
        }
    }
}

// One thread. Tells the scalers when the input of a product with a norm is there.
template <int N, int X_STAGES> TK_DEV void load_x(const chain &c, const rings &sm, uint32_t ready)
{
    ring_pos<X_STAGES> p = {0, 1};
    pdl_wait();
    for (uint32_t s = 0; s < c.n; s++) {
        const stage &st = c.st[s];
        if (first_unit(s) >= st.units) {
            continue;
        }
        wait_input(c, s);
        if (st.a.norm_parts != 0) {
            bar_arrive(ready);
        }
        proxy_fence_global(); // others' ordinary stores before our copies
        for (uint32_t u = first_unit(s); u < st.units; u += gridDim.x) {
            const unit n = unit_of(st.a, u);
            for (uint32_t k = n.k0; k < n.k1; k++) {
                bar_wait(sm.x_empty + 8 * p.st, p.ph);
                bar_expect(sm.x_full + 8 * p.st, N * 128);
                tma_2d_keep(sm.x + p.st * (N * 128), &st.x, sm.x_full + 8 * p.st, (int)k * 64, 0);
                p.next();
            }
        }
    }
}

// One thread per token. No product's scales are overwritten before they were used, and `ready` is never a phase ahead: the
// input of the next product with a norm is complete only when this block is done with the one before, whose consumers met
// the scalers.
TK_DEV void scale_rows(const chain &c, float *scale, uint32_t ready, int t)
{
    uint32_t phase = 0;
    for (uint32_t s = 0; s < c.n; s++) {
        const stage &st = c.st[s];
        if (first_unit(s) >= st.units || st.a.norm_parts == 0) {
            continue;
        }
        bar_wait(ready, phase);
        phase ^= 1;
        row_scale(st.a, scale, t);
        __syncwarp();
        named_arrive(1, CONSUMERS + SCALERS);
    }
}

// One thread, behind a barrier of all that wrote: this block is done with product s.
TK_DEV void tell_done(const chain &c, uint32_t s, uint32_t launches)
{
    if (s + 1 < c.n) {
        red_release(done_at(c, s));
        return;
    }
    if (atomicAdd(done_at(c, s), 1) + 1 ==
        blocks_of(c.st[s])) { // nobody waits for anything any more
        for (uint32_t i = 0; i < c.n; i++) {
            *done_at(c, i) = 0;
        }
        if (launches + 1 == TAGGED) {
            for (uint32_t i = 0; i < PARTS; i++) {
                parts_at(c)[i] = make_uint2(0, 0);
            }
        }
        *c.work = (launches + 1) % TAGGED;
    }
}

template <int N> TK_DEV void consume(const chain &c, const rings &sm, const float *scale, int tid)
{
    const int warp = tid / 32, lane = tid % 32;
    pdl_wait(); // for h, and for the order of our own writes
    const uint32_t launches = ld_acquire(c.work);
    float d[N / 2];
    best_of<N, false> none;
    ring_pos<shape<N>::W_STAGES> wp = {0, 0};
    ring_pos<shape<N>::X_STAGES> xp = {0, 0};
    for (uint32_t s = 0; s < c.n; s++) {
        const stage &st = c.st[s];
        const args &a = st.a;
        if (first_unit(s) >= st.units) {
            continue;
        }
        bool scaled = a.norm_parts == 0;
        for (uint32_t u = first_unit(s); u < st.units; u += gridDim.x) {
            const unit n = unit_of(a, u);
            tile_products<N>(d, sm, n.k1 - n.k0, warp / 4, lane, wp, xp);
            if (st.split) {
                put_part<N>(d, parts_at(c) + (size_t)u * N * TILE, tag_of(launches, s),
                            (a.rows + 7) & ~7u, warp, lane);
            }
            if (!scaled) {
                named_sync(1, CONSUMERS + SCALERS);
                scaled = true;
            }
            if (st.split) {
                finish_split<N>(parts_at(c), a, a.gain, n, scale, tag_of(launches, s), warp, lane);
            } else {
                finish_direct<N, false>(d, a, scale, n.tile * TILE + warp * 16, lane, none);
            }
        }
        proxy_fence_global(); // our ordinary stores before others' copies
        named_sync(2, CONSUMERS);
        if (tid == 0) {
            tell_done(c, s, launches);
        }
    }
}

template <int N>
__global__ void __launch_bounds__(THREADS, 1) chain_kernel(const __grid_constant__ chain c)
{
    using S = shape<N>;
    extern __shared__ unsigned char raw[];
    rings sm;
    sm.w = smem_u32(raw);
    if (sm.w % 1024 != 0) {
        __trap();
    }
    sm.x = sm.w + S::W_STAGES * W_BYTES;
    float *scale = reinterpret_cast<float *>(raw + S::RINGS);
    sm.w_full = smem_u32(scale + 64);
    sm.w_empty = sm.w_full + 8 * S::W_STAGES;
    sm.x_full = sm.w_empty + 8 * S::W_STAGES;
    sm.x_empty = sm.x_full + 8 * S::X_STAGES;
    const uint32_t ready = sm.x_empty + 8 * S::X_STAGES;
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
        bar_init(ready, 1);
        bar_init_fence();
        for (uint32_t s = 0; s < c.n; s++) {
            tma_prefetch_map(&c.st[s].w);
            tma_prefetch_map(&c.st[s].x);
        }
    }
    __syncthreads();
    if (warp < CONSUMERS / 32) {
        consume<N>(c, sm, scale, tid);
    } else if (warp >= CONSUMERS / 32 + 2) {
        scale_rows(c, scale, ready, tid - (THREADS - SCALERS));
    } else if (lane == 0 && warp == CONSUMERS / 32) {
        load_w<S::W_STAGES, S::IN_FLIGHT>(c, sm);
    } else if (lane == 0) {
        load_x<N, S::X_STAGES>(c, sm, ready);
    }
}

template <int N> td_err launch_chain(tk_stream st, const chain &c, uint32_t blocks, bool pdl)
{
    TD_TRY(tk_prepare(chain_kernel<N>, shape<N>::SMEM));
    tk_launch l(st, blocks, THREADS, shape<N>::SMEM, 1, pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, chain_kernel<N>, c));
    return TD_OK;
}

} // namespace

extern "C" size_t tk_chain_work_bytes(void)
{
    return HEAD_WORDS * sizeof(uint32_t) + sizeof(uint2) * PARTS;
}

extern "C" bool tk_chain_fits(const struct tk_flat *products, uint32_t n)
{
    const tk_dev *dev = tk_device();
    bool fits = tk_uses_hopper() && dev != nullptr && n >= 1 && n <= TK_CHAIN_MAX;
    for (uint32_t i = 0; fits && i < n; i++) {
        fits = product_fits(&products[i], dev->sms) && products[i].rows == products[0].rows;
    }
    return fits;
}

extern "C" td_err tk_chain(tk_stream s, const struct tk_chain *p)
{
    if (!tk_chain_fits(p->products, p->n)) {
        return TD_ERR_UNSUPPORTED;
    }
    chain c = {};
    c.n = p->n;
    c.work = static_cast<uint32_t *>(p->work);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct tk_flat *f = &p->products[i];
        stage &st = c.st[i];
        st.w = *(const CUtensorMap *)(const void *)f->w->bytes;
        st.x = *(const CUtensorMap *)(const void *)f->x->bytes;
        st.a = args_of(f);
        st.units = st.a.tiles * st.a.cut;
        st.split = st.a.cut > 1 || f->mode == TK_FLAT_RESIDUAL;
    }
    const uint32_t rows = p->products[0].rows, blocks = tk_device()->sms;
    c.late = 2 * p->late <= blocks ? p->late : 0;
    if (rows <= 8) {
        return launch_chain<8>(s, c, blocks, p->pdl);
    }
    return rows <= 16 ? launch_chain<16>(s, c, blocks, p->pdl)
                      : launch_chain<32>(s, c, blocks, p->pdl);
}
