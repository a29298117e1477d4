// attn_decode.cu - paged split-KV decode attention, one query row per sequence.
//
// Shapes: q and out [n_seqs][n_heads][D] bf16, D = 64 or 128; KV pool of tk_cuda.h through a layer's 5-D tensor map; up to 8
//   query heads per KV head. Block tables int32. Alignment: pool 128 bytes, q and out 4 bytes.
// Design: S^T = K Q^T and O^T = V^T P^T with mma.m16n8k16: keys (then dims) are the 16 rows, the query heads of one KV
//   head the 8 columns, so each KV byte is read once for the whole group. A work item is (sequence, chunk of 256
//   tokens, of 512 in long sequences, KV head). Four compute warps of a block share an item by pages: page p of the chunk belongs to warp p % 4.
//   Every warp has its own ring of pages and barriers, filled by its lane 0 and running ahead across items. At the end
//   of an item the compute warps leave (max, sum, O) in shared memory and go on; four merge warps add them in warp
//   order. A sequence of one chunk is then finished. Others leave a partial and count it. When a block has no items
//   left it adds up its share of (sequence, query head) rows: it waits for the row's count and adds the partials, chunk c into sum
//   c % 8, ascending, then the eight sums in order. One warp does a row, or eight warps do where rows are few and long:
//   the same order, which depends on the sequence's length alone, and nobody waits for memory inside the streaming loop. (The first version let the
//   last to arrive merge: blocks that fell behind got all the merging and fell further behind.)
//   All blocks must be able to run at once; the launcher starts two per SM.
//   Pages behind the newest token's are loaded before griddepcontrol.wait: see struct tk_attn_decode.
// Bound by: device memory (KV bytes). Measured: see NOTES.md.
#include "kernels/cuda/attn_decode.cuh"
#include "kernels/cuda/launch.h"

namespace
{

constexpr int MERGERS = WARPS * 32;
constexpr int THREADS = 2 * WARPS * 32;
constexpr uint32_t MANY_ITEMS = 1024; // from here on rings of two pages per warp, below of three

template <int D, int STAGES> static size_t smem_bytes(uint32_t group)
{
    return (size_t)WARPS * STAGES * stage_bytes<D>() + WARPS * MAX_G * 8 +
           (WARPS * STAGES + 2) * 8 +
           (WARPS * group * o_stride<D>() > 3 * THREADS ? WARPS * group * o_stride<D>()
                                                        : 3 * THREADS) *
               4;
}

// One warp's walk over the pages it loads. Entries and tables of the next item are read one item ahead, so that no
// chain of loads stalls the ring.
struct cursor {
    uint32_t item;       // work item; >= n_items when done
    int page, n_pages;   // of this warp within the chunk
    bool newest;         // the warp's last page holds the newest token
    int32_t block;       // lane i: block number of this warp's page i
    uint32_t next_entry; // of item + gridDim.x
    int32_t next_len, next_block;
    uint32_t later_entry; // of item + 2 gridDim.x
};

TK_DEV void cursor_fetch(cursor &c, const attn_args &a, int warp, int lane)
{
    const uint32_t seq = c.next_entry >> 16;
    c.next_len = __ldcg(a.lens + seq);
    const uint32_t page = (uint32_t)(entry_first(c.next_entry) / TK_BLOCK_TOK) + warp +
                          (lane % (PAGES / WARPS)) * WARPS;
    c.next_block = page < a.table_stride ? __ldcg(a.tables + (size_t)seq * a.table_step + page) : 0;
}

// Makes the prefetched item the current one and starts reading the one behind it.
TK_DEV void cursor_enter(cursor &c, const attn_args &a, uint32_t n_items, int warp, int lane)
{
    const int first = entry_first(c.next_entry),
              tok = min(c.next_len - first, entry_tok(c.next_entry));
    const int pages = (tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    c.page = first_page(a, c.next_len, first, warp);
    c.n_pages = c.item < n_items && pages > warp ? (pages - warp + WARPS - 1) / WARPS : 0;
    c.newest = first + tok == c.next_len && (pages - 1) % WARPS == warp;
    c.block = c.next_block;
    c.next_entry = c.later_entry;
    cursor_fetch(c, a, warp, lane);
    c.later_entry = entry_of(a, c.item + 2 * gridDim.x, n_items);
}

TK_DEV void cursor_start(cursor &c, const attn_args &a, uint32_t n_items, int warp, int lane)
{
    c.item = blockIdx.x;
    c.next_entry = entry_of(a, c.item, n_items);
    c.later_entry = entry_of(a, c.item + gridDim.x, n_items);
    cursor_fetch(c, a, warp, lane);
    cursor_enter(c, a, n_items, warp, lane);
}

// Leaves finished items and items in which this warp has no page.
TK_DEV void cursor_advance(cursor &c, const attn_args &a, uint32_t n_items, int warp, int lane)
{
    while (c.item < n_items && c.page >= c.n_pages) {
        c.item += gridDim.x;
        cursor_enter(c, a, n_items, warp, lane);
    }
}

template <int D, int G>
TK_DEV void merge_loop(const attn_args &a, const merge_area<D> &ma, uint32_t full, uint32_t empty,
                       uint32_t n_items)
{
    const int t = threadIdx.x - MERGERS;
    uint32_t ph = 0;
    for (uint32_t item = blockIdx.x; item < n_items; item += gridDim.x) {
        const uint32_t e = entry_of(a, item, n_items), head = item % a.n_kv, seq = e >> 16;
        const int len = __ldcg(a.lens + seq);
        row_acc<G> r;
        bar_wait(full, ph);
        ph ^= 1;
        combine_warps<D, G>(ma, a.group, t, r);
        bar_arrive(empty); // every thread: racecheck does not follow one elected arrival per warp
        if (row_chunks(a, len) == 1) {
            write_out<D, G>(a.out + (size_t)seq * a.out_stride + (size_t)head * a.group * D,
                            a.group, t, r);
            continue;
        }
        write_part<D, G>(a, item, t, r);
        named_sync(1, MERGERS);
        if (t == 0) {
            red_release(a.count + seq * a.n_kv + head); // everybody's writes, through the barrier
        }
    }
}

// One of the PARTS sums.
template <int D>
TK_DEV lane_acc<D> add_part(const attn_args &a, size_t slot0, uint32_t n, uint32_t qh,
                            uint32_t part, int lane)
{
    lane_acc<D> s = {-INFINITY, 0, {0}};
    for (uint32_t c0 = part; c0 < n; c0 += PARTS * PARTS) {
        float2 ml[PARTS];
        float o[PARTS][D / 32];
        read_parts<D>(a, slot0, n, qh, c0, PARTS, lane, ml, o);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            if (c0 + i * PARTS < n) {
                lane_add<D>(s, ml[i].x, ml[i].y, o[i]);
            }
        }
    }
    return s;
}

struct unit {
    uint32_t seq, kvh, qh, n, row;
    size_t slot0;
};
TK_DEV unit unit_at(const attn_args &a, uint32_t u)
{
    unit x;
    const uint32_t heads = a.n_kv * a.group;
    x.seq = u / heads;
    x.kvh = u % heads / a.group;
    x.qh = u % a.group;
    x.n = row_chunks(a, __ldcg(a.lens + x.seq));
    x.row = x.seq * a.n_kv + x.kvh;
    x.slot0 = (size_t)__ldcg(a.plan + 1 + x.seq) * a.n_kv + x.kvh;
    return x;
}

template <int D>
TK_DEV void unit_end(const attn_args &a, const unit &x, const lane_acc<D> &s, int lane)
{
    __nv_bfloat16 *out = reinterpret_cast<__nv_bfloat16 *>(a.out) + (size_t)x.seq * a.out_stride +
                         (size_t)(x.kvh * a.group + x.qh) * D + lane * (D / 32);
#pragma unroll
    for (int v = 0; v < D / 32; v++) {
        out[v] = __float2bfloat16_rn(s.o[v] / s.l);
    }
    if (lane == 0 && atomicAdd(a.done + x.row, 1) == a.group - 1) {
        a.count[x.row] = 0; // all query heads have seen the count: ready for the next layer
        a.done[x.row] = 0;
    }
}

TK_DEV void unit_wait(const attn_args &a, const unit &x)
{
    while (ld_acquire(a.count + x.row) < x.n) {
    }
}

// This block's share of the rows that have several chunks. The blocks at the end of the grid begin: with little work
// they are the idle ones.
template <int D>
TK_DEV void finish_rows(const attn_args &a, uint32_t blocks, const merge_area<D> &ma)
{
    static_assert(PARTS == THREADS / 32, "one sum per warp");
    constexpr int V = D / 32;
    const uint32_t units = a.n_seqs * a.n_kv * a.group, block = blocks - 1 - blockIdx.x;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool few = units <= blocks; // then a block per row is faster where the row is long
    for (uint32_t u = warp * blocks + block; u < units; u += PARTS * blocks) {
        const unit x = unit_at(a, u);
        if (x.n < 2 || (few && x.n > PARTS)) {
            continue;
        }
        unit_wait(a, x); // every lane acquires
        unit_end<D>(a, x, add_row<D>(a, x.slot0, x.n, x.qh, lane), lane);
    }
    if (!few || block >= units) {
        return;
    }
    const unit x = unit_at(a, block);
    if (x.n <= PARTS) {
        return;
    }
    unit_wait(a, x);
    lane_acc<D> s = add_part<D>(a, x.slot0, x.n, x.qh, warp, lane);
    float *mine = ma.o + warp * (2 + D); // the merge area is free by now
    mine[0] = s.m;
    mine[1] = s.l;
#pragma unroll
    for (int v = 0; v < V; v++) {
        mine[2 + lane * V + v] = s.o[v];
    }
    __syncthreads();
    if (warp == 0) {
        for (int w = 1; w < PARTS; w++) {
            const float *p = ma.o + w * (2 + D);
            float o[V];
#pragma unroll
            for (int v = 0; v < V; v++) {
                o[v] = p[2 + lane * V + v];
            }
            lane_add<D>(s, p[0], p[1], o);
        }
        unit_end<D>(a, x, s, lane);
    }
}

// What a compute warp needs to load pages: its walk, its ring and its barriers.
struct feed {
    cursor ld;
    uint32_t issued, ring, bars, n_items;
    uint64_t pol;
    int warp, lane;
};

template <int D, int STAGES>
TK_DEV void feed_page(feed &f, const CUtensorMap *kv, const attn_args &a)
{
    constexpr int STAGE = stage_bytes<D>();
    const int32_t blk = __shfl_sync(~0u, f.ld.block, f.ld.page & 31);
    if (f.lane == 0) {
        const uint32_t st = f.issued % STAGES, bar = f.bars + 8 * st;
        bar_expect(bar, STAGE);
        tma_5d(f.ring + st * STAGE, kv, bar, 0, 0, (int)(f.ld.item % a.n_kv), 0, blk, f.pol);
    }
    f.issued++;
    f.ld.page++;
    cursor_advance(f.ld, a, f.n_items, f.warp, f.lane);
}

// Fills the ring and waits for the kernel before us. Old pages are complete whatever that one does; it may still be writing
// the newest token's, unless we do that ourselves.
template <int D, int STAGES>
TK_DEV void feed_start(feed &f, const CUtensorMap *kv, const attn_args &a)
{
    cursor_start(f.ld, a, f.n_items, f.warp, f.lane);
    cursor_advance(f.ld, a, f.n_items, f.warp, f.lane);
    while (f.issued < STAGES && f.ld.item < f.n_items &&
           !(a.cos_sin == nullptr && f.ld.newest && f.ld.page == f.ld.n_pages - 1)) {
        feed_page<D, STAGES>(f, kv, a);
    }
    pdl_wait();
    while (f.issued < STAGES && f.ld.item < f.n_items) {
        feed_page<D, STAGES>(f, kv, a);
    }
    if (f.ld.item >= f.n_items) {
        pdl_launch();
    }
}

template <int D, int STAGES>
TK_DEV void compute_loop(const CUtensorMap *kv, const attn_args &a, const merge_area<D> &ma,
                         feed &f, uint32_t full, uint32_t empty)
{
    constexpr int STAGE = stage_bytes<D>();
    feed_start<D, STAGES>(f, kv, a);
    uint32_t entry = entry_of(a, blockIdx.x, f.n_items),
             next = entry_of(a, blockIdx.x + gridDim.x, f.n_items);
    uint32_t qf[D / 16][2], qn[D / 16][2], used = 0, ph = 1;
    int len = __ldcg(a.lens + (entry >> 16)), len_next;
    load_q<D>(qn, a, entry, blockIdx.x % a.n_kv, f.lane);
    for (uint32_t item = blockIdx.x; item < f.n_items; item += gridDim.x) {
        const int first = entry_first(entry); // position of the chunk
        const int tok = min(len - first, entry_tok(entry)),
                  pages = (tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            qf[i][0] = qn[i][0];
            qf[i][1] = qn[i][1];
        }
        if (a.cos_sin != nullptr) {
            rotate_q<D>(qf, a.cos_sin + (size_t)(len - 1) * D, f.lane);
        }
        len_next = __ldcg(a.lens + (next >> 16));
        load_q<D>(qn, a, next, (item + gridDim.x) % a.n_kv, f.lane);
        state<D> st;
        state_clear<D>(st);
        const int hidden = tk_window_start(len, a.window) - first; // tokens, from the chunk's start
        for (int p = f.warp + first_page(a, len, first, f.warp) * WARPS; p < pages; p += WARPS) {
            const uint32_t slot = used % STAGES, page = f.ring + slot * STAGE;
            const int left = tok - p * TK_BLOCK_TOK; // tokens from here to the chunk's end
            bar_wait(f.bars + 8 * slot, (used / STAGES) & 1);
            if (a.cos_sin != nullptr && first + tok == len && left <= TK_BLOCK_TOK) {
                const uint32_t seq = entry >> 16;
                const uint32_t at = (uint32_t)first / TK_BLOCK_TOK + p;
                append_newest<D>(a, seq, item % a.n_kv, len - 1,
                                 __ldcg(a.tables + (size_t)seq * a.table_step + at), page, f.lane);
            }
            page_step<D>(st, qf, page, hidden - p * TK_BLOCK_TOK, min(left, TK_BLOCK_TOK), f.lane,
                         a.scale_log2);
            used++;
            __syncwarp();
            if (f.ld.item < f.n_items) {
                feed_page<D, STAGES>(f, kv, a);
                if (f.ld.item >= f.n_items) {
                    pdl_launch(); // our last load is on its way: the next kernel may start filling its own ring
                }
            }
        }
        bar_wait(empty, ph);
        ph ^= 1;
        leave_state<D>(st, ma, a.group, f.warp, f.lane);
        bar_arrive(full);
        entry = next;
        len = len_next;
        next = entry_of(a, item + 2 * gridDim.x, f.n_items);
    }
}

template <int D, int STAGES, int G>
__global__ void __launch_bounds__(THREADS, 2)
    attn_decode_kernel(const __grid_constant__ CUtensorMap kv, const attn_args a)
{
    extern __shared__ unsigned char raw[];
    constexpr int STAGE = stage_bytes<D>();
    const int warp = threadIdx.x >> 5;
    const uint32_t base = smem_u32(raw);
    if (base % 1024 != 0) {
        __trap(); // the swizzle needs it; dynamic shared memory starts at a multiple when there is no static one
    }
    merge_area<D> ma;
    ma.ml = reinterpret_cast<float2 *>(raw + WARPS * STAGES * STAGE);
    uint64_t *bars = reinterpret_cast<uint64_t *>(ma.ml + WARPS * MAX_G);
    ma.o = reinterpret_cast<float *>(bars + WARPS * STAGES + 2);
    const uint32_t full = smem_u32(bars + WARPS * STAGES), empty = full + 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < WARPS * STAGES; i++) {
            bar_init(smem_u32(bars + i), 1);
        }
        bar_init(full, MERGERS);
        bar_init(empty, MERGERS);
        bar_init_fence();
        tma_prefetch_map(&kv);
    }
    __syncthreads();
    const uint32_t n_items = __ldcg(a.plan) * a.n_kv;
    if (n_items == 0) {
        pdl_wait(); // who waits for us relies on everything before us too
        return;
    }
    // Blocks without an item add rows, one each at most; the others leave the device to the next kernel.
    const uint32_t rows = a.n_seqs * a.n_kv * a.group,
                   blocks = min(gridDim.x, min(n_items, gridDim.x) + rows);
    if (blockIdx.x >= blocks) {
        return;
    }
    if (warp < WARPS) {
        feed f;
        f.issued = 0;
        f.ring = base + warp * STAGES * STAGE;
        f.bars = smem_u32(bars + warp * STAGES);
        f.n_items = n_items;
        f.pol = evict_first();
        f.warp = warp;
        f.lane = threadIdx.x & 31;
        compute_loop<D, STAGES>(&kv, a, ma, f, full, empty);
    } else {
        pdl_wait();
        merge_loop<D, G>(a, ma, full, empty, n_items);
    }
    __syncthreads();
    finish_rows<D>(a, blocks, ma);
}

} // namespace

extern "C" size_t tk_attn_decode_counters(uint32_t n_kv_heads)
{
    return scratch_layout(n_kv_heads, 1, 64, 0).ml;
}

extern "C" size_t tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                                         uint32_t max_entries)
{
    return scratch_layout(n_kv_heads, group, head_dim, max_entries).total;
}

template <int D, int STAGES, int G>
static td_err launch_decode(tk_stream s, const struct tk_attn_decode *p, const attn_args &a)
{
    const size_t bytes = smem_bytes<D, STAGES>(a.group);
    TD_TRY(tk_prepare(attn_decode_kernel<D, STAGES, G>, bytes));
    const tk_dev *dev = tk_device();
    if (dev == nullptr) {
        return TD_ERR_DEVICE;
    }
    // Two blocks per SM: one waits at the end of its item while the other streams.
    const uint32_t most = p->max_entries * p->n_kv_heads;
    const uint32_t grid = most < 2 * dev->sms ? most : 2 * dev->sms;
    tk_launch l(s, grid, THREADS, bytes, 1, p->pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, attn_decode_kernel<D, STAGES, G>,
                                   *(const CUtensorMap *)(const void *)p->kv->bytes, a));
    return TD_OK;
}

extern "C" td_err tk_attn_decode(tk_stream s, const struct tk_attn_decode *p)
{
    if (!tk_uses_hopper()) {
        return tk_attn_decode_sm80(s, p);
    }
    attn_args a;
    TD_TRY(attn_args_of(p, a));
    if (p->cos_sin != nullptr) {
        a.pool = static_cast<unsigned char *>(p->pool->base) + p->layer * p->pool->slice_bytes +
                 p->pool->header_bytes;
        a.block_bytes = p->pool->slice_bytes * p->pool->n_layers;
    }
    // Much work: fewer bytes in flight serve device memory better. Little: latency counts. No bit depends on it.
    const bool many = p->max_entries * p->n_kv_heads > MANY_ITEMS;
    switch (p->head_dim) {
    case 128:
        if (a.group > 4) {
            return launch_decode<128, 2, 8>(s, p, a);
        }
        return many ? launch_decode<128, 2, 4>(s, p, a) : launch_decode<128, 3, 4>(s, p, a);
    case 64:
        return a.group <= 4 ? launch_decode<64, 4, 4>(s, p, a) : launch_decode<64, 4, 8>(s, p, a);
    default:
        return TD_ERR_UNSUPPORTED;
    }
}
