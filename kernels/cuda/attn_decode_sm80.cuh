// attn_decode_sm80.cuh - paged split-KV decode attention without Hopper's instructions: the kernels.
//
// Shapes and arithmetic: as attn_decode.cu, whose pages, chunks, warps and partials it shares (attn_decode.cuh).
// Design: a block per work item (sequence, chunk, KV head), found through the plan, which lives on the device: blocks
//   behind its end leave at once. Each of four warps brings its pages into a ring of two with cp.async, behind nobody but
//   itself. At the end the warps' states meet in shared memory. A sequence of one chunk is then finished; the partials of
//   others are added by a second kernel, a warp to each (sequence, query head), in the order that attn_decode.cu has too.
// Bound by: device memory (KV bytes). Measured: see NOTES.md.
#pragma once
#include "kernels/cuda/attn_decode.cuh"

namespace
{

constexpr int THREADS = WARPS * 32;
constexpr int STAGES = 2; // pages of a warp

template <int D> constexpr uint32_t ring_bytes()
{
    return WARPS * STAGES * stage_bytes<D>();
}
// The warps' states take the ring's place when all pages have been used.
template <int D> constexpr uint32_t smem_bytes()
{
    static_assert(WARPS * MAX_G * o_stride<D>() * 4 <= ring_bytes<D>(), "states fit into the ring");
    return ring_bytes<D>() + WARPS * MAX_G * (uint32_t)sizeof(float2);
}

// Page `block` of this head, K then V, one cp.async group of the warp.
template <int D>
TK_DEV void page_load(const attn_args &a, uint32_t page, int32_t block, uint32_t head, int lane)
{
    const unsigned char *src =
        a.pool + (size_t)block * a.block_bytes + (size_t)head * TK_BLOCK_TOK * D * 2;
#pragma unroll
    for (int kv = 0; kv < 2; kv++) {
#pragma unroll 4
        for (int i = lane; i < TK_BLOCK_TOK * D / 8; i += 32) {
            const int row = i >> 3;
            cp_async16(page + kv * TK_BLOCK_TOK * D * 2 + row * 128 + (((i & 7) ^ (row & 7)) << 4),
                       src + (size_t)kv * a.n_kv * TK_BLOCK_TOK * D * 2 + i * 16, 16);
        }
    }
}

// What a warp has to do in its block's item.
struct share {
    uint32_t seq, head;
    int len, first, tok, pages; // of the chunk
    int page0;                  // the warp's first page
};

TK_DEV share share_of(const attn_args &a, uint32_t item, int warp)
{
    const uint32_t e = entry_of(a, item, item + 1);
    share w;
    w.seq = e >> 16;
    w.head = item % a.n_kv;
    w.len = __ldcg(a.lens + w.seq);
    w.first = entry_first(e);
    w.tok = min(w.len - w.first, entry_tok(e));
    w.pages = (w.tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    w.page0 = warp + first_page(a, w.len, w.first, warp) * WARPS;
    return w;
}

template <int D>
TK_DEV void walk_pages(state<D> &st, uint32_t (&qf)[D / 16][2], const attn_args &a, const share &w,
                       uint32_t ring, int lane)
{
    const int32_t *table = a.tables + (size_t)w.seq * a.table_step + w.first / TK_BLOCK_TOK;
    const int hidden = tk_window_start(w.len, a.window) - w.first; // tokens, from the chunk's start
    const bool newest = a.cos_sin != nullptr && w.first + w.tok == w.len;
    for (int i = 0; i < STAGES - 1; i++) {
        if (w.page0 + i * WARPS < w.pages) {
            page_load<D>(a, ring + i * stage_bytes<D>(), __ldcg(table + w.page0 + i * WARPS),
                         w.head, lane);
        }
        cp_async_commit();
    }
    uint32_t used = 0;
    for (int p = w.page0; p < w.pages; p += WARPS, used++) {
        const int ahead = p + (STAGES - 1) * WARPS, left = w.tok - p * TK_BLOCK_TOK;
        const uint32_t page = ring + used % STAGES * stage_bytes<D>();
        if (ahead < w.pages) {
            page_load<D>(a, ring + (used + STAGES - 1) % STAGES * stage_bytes<D>(),
                         __ldcg(table + ahead), w.head, lane);
        }
        cp_async_commit(); // perhaps an empty group: the count stays the same
        cp_async_wait<STAGES - 1>();
        __syncwarp();
        if (newest && left <= TK_BLOCK_TOK) {
            append_newest<D>(a, w.seq, w.head, w.len - 1, __ldcg(table + p), page, lane);
        }
        page_step<D>(st, qf, page, hidden - p * TK_BLOCK_TOK, min(left, TK_BLOCK_TOK), lane,
                     a.scale_log2);
        __syncwarp(); // everybody has read the page
    }
}

template <int D, int G>
__global__ void __launch_bounds__(THREADS) attn_decode_sm80_kernel(const attn_args a)
{
    TK_DYNAMIC_SHARED(raw);
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    if (blockIdx.x >= __ldcg(a.plan) * a.n_kv) {
        return;
    }
    merge_area<D> ma;
    ma.o = reinterpret_cast<float *>(raw);
    ma.ml = reinterpret_cast<float2 *>(raw + ring_bytes<D>());
    const share w = share_of(a, blockIdx.x, warp);
    uint32_t qf[D / 16][2];
    load_q<D>(qf, a, w.seq << 16, w.head, lane);
    if (a.cos_sin != nullptr) {
        rotate_q<D>(qf, a.cos_sin + (size_t)(w.len - 1) * D, lane);
    }
    state<D> st;
    state_clear<D>(st);
    walk_pages<D>(st, qf, a, w, smem_u32(raw) + warp * STAGES * stage_bytes<D>(), lane);
    __syncthreads();
    leave_state<D>(st, ma, a.group, warp, lane);
    __syncthreads();
    row_acc<G> r;
    combine_warps<D, G>(ma, a.group, (int)threadIdx.x, r);
    if (row_chunks(a, w.len) == 1) {
        write_out<D, G>(a.out + (size_t)w.seq * a.out_stride + (size_t)w.head * a.group * D,
                        a.group, (int)threadIdx.x, r);
    } else {
        write_part<D, G>(a, blockIdx.x, (int)threadIdx.x, r);
    }
}

// Rows of several chunks.
template <int D>
__global__ void __launch_bounds__(THREADS) attn_decode_sm80_finish(const attn_args a)
{
    const int warp = (int)threadIdx.x >> 5, lane = (int)threadIdx.x & 31;
    const uint32_t u = blockIdx.x * WARPS + (uint32_t)warp, heads = a.n_kv * a.group;
    if (u >= a.n_seqs * heads || __ldcg(a.plan) == 0) { // a plan that did not fit computes nothing
        return;
    }
    const uint32_t seq = u / heads, kvh = u % heads / a.group, qh = u % a.group;
    const uint32_t n = row_chunks(a, __ldcg(a.lens + seq));
    if (n < 2) {
        return;
    }
    const size_t slot0 = (size_t)__ldcg(a.plan + 1 + seq) * a.n_kv + kvh;
    const lane_acc<D> s = add_row<D>(a, slot0, n, qh, lane);
    __nv_bfloat16 *out = reinterpret_cast<__nv_bfloat16 *>(a.out) + (size_t)seq * a.out_stride +
                         (size_t)(kvh * a.group + qh) * D + lane * (D / 32);
#pragma unroll
    for (int v = 0; v < D / 32; v++) {
        out[v] = __float2bfloat16_rn(s.o[v] / s.l);
    }
}

// As attn_args_of, with the pool of the map.
static td_err sm80_args_of(const struct tk_attn_decode *p, attn_args &a)
{
    TD_TRY(attn_args_of(p, a));
    if ((p->head_dim != 64 && p->head_dim != 128) || p->max_entries > INT32_MAX / p->n_kv_heads) {
        return TD_ERR_UNSUPPORTED;
    }
    a.pool = static_cast<unsigned char *>(const_cast<void *>(p->kv->base));
    a.block_bytes = p->kv->block_step;
    return TD_OK;
}

TK_HOST_DEVICE static inline uint32_t finish_blocks(const attn_args &a)
{
    return (a.n_seqs * a.n_kv * a.group + WARPS - 1) / WARPS;
}

} // namespace
