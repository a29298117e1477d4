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
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int WARPS = 4; // that compute; as many merge
constexpr int MERGERS = WARPS * 32;
constexpr int THREADS = 2 * WARPS * 32;
constexpr int PARTS = 8; // interleaved sums of a row's partials; part of the numerics
constexpr int PAGES = 2 * TK_CHUNK_TOK / TK_BLOCK_TOK; // of a chunk, at most
constexpr int MAX_G = TK_MAX_GROUP;
constexpr uint32_t MANY_ITEMS = 1024; // from here on rings of two pages per warp, below of three

struct args {
    const tk_bf16 *q;
    tk_bf16 *out;
    const int32_t *lens, *tables;
    const uint32_t *plan;
    uint32_t *count;      // [seq][kv head]: partials written
    uint32_t *done;       // [seq][kv head]: query heads finished
    float2 *part_ml;      // [entry][kv head][8]
    float *part_o;        // [entry][kv head][group][D]
    const float *cos_sin; // NULL: q is rotated and the newest KV is in the pool
    unsigned char *pool;  // this layer's slice of block 0, behind the header
    size_t block_bytes;
    uint32_t n_seqs, n_kv, group, table_stride, table_step, q_stride, out_stride;
    int window; // 0: none
    float scale_log2;
};

template <int D> constexpr int stage_bytes()
{
    return 2 * TK_BLOCK_TOK * D * 2; // K page and V page of one head
}
template <int D> constexpr int o_stride()
{
    return D + 4; // 2 x stride = 8 mod 32: conflict-free stores of O^T fragments
}
template <int D, int STAGES> static size_t smem_bytes(uint32_t group)
{
    return (size_t)WARPS * STAGES * stage_bytes<D>() + WARPS * MAX_G * 8 +
           (WARPS * STAGES + 2) * 8 +
           (WARPS * group * o_stride<D>() > 3 * THREADS ? WARPS * group * o_stride<D>()
                                                        : 3 * THREADS) *
               4;
}

// What a plan entry says of its chunk.
TK_DEV int entry_tok(uint32_t entry)
{
    return entry & TK_CHUNK_IS_LONG ? 2 * TK_CHUNK_TOK : TK_CHUNK_TOK;
}
TK_DEV int entry_first(uint32_t entry)
{
    return (int)(entry & (TK_CHUNK_IS_LONG - 1)) * entry_tok(entry);
}

// Chunks of a row that it sees.
TK_DEV uint32_t row_chunks(const args &a, int len)
{
    static_assert(TK_CHUNK_TOK == 256, "the shifts below");
    const int shift = tk_chunk_tok(len) == TK_CHUNK_TOK ? 8 : 9;
    return len > 0 ? (uint32_t)((len - 1 >> shift) + 1 - (tk_window_start(len, a.window) >> shift))
                   : 0;
}

// Of a warp's pages of a chunk (p = warp, warp + WARPS ..), the number of the first that is seen.
TK_DEV int first_page(const args &a, int len, int first, int warp)
{
    // pages out of the window, from the chunk's start
    const int hidden = max(tk_window_start(len, a.window) - first, 0) / TK_BLOCK_TOK;
    return hidden > warp ? (hidden - warp + WARPS - 1) / WARPS : 0;
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

TK_DEV uint32_t entry_of(const args &a, uint32_t item, uint32_t n_items)
{
    return item < n_items ? __ldcg(a.plan + 1 + TK_MAX_SEQS + item / a.n_kv) : 0;
}

TK_DEV void cursor_fetch(cursor &c, const args &a, int warp, int lane)
{
    const uint32_t seq = c.next_entry >> 16;
    c.next_len = __ldcg(a.lens + seq);
    const uint32_t page = (uint32_t)(entry_first(c.next_entry) / TK_BLOCK_TOK) + warp +
                          (lane % (PAGES / WARPS)) * WARPS;
    c.next_block = page < a.table_stride ? __ldcg(a.tables + (size_t)seq * a.table_step + page) : 0;
}

// Makes the prefetched item the current one and starts reading the one behind it.
TK_DEV void cursor_enter(cursor &c, const args &a, uint32_t n_items, int warp, int lane)
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

TK_DEV void cursor_start(cursor &c, const args &a, uint32_t n_items, int warp, int lane)
{
    c.item = blockIdx.x;
    c.next_entry = entry_of(a, c.item, n_items);
    c.later_entry = entry_of(a, c.item + gridDim.x, n_items);
    cursor_fetch(c, a, warp, lane);
    cursor_enter(c, a, n_items, warp, lane);
}

// Leaves finished items and items in which this warp has no page.
TK_DEV void cursor_advance(cursor &c, const args &a, uint32_t n_items, int warp, int lane)
{
    while (c.item < n_items && c.page >= c.n_pages) {
        c.item += gridDim.x;
        cursor_enter(c, a, n_items, warp, lane);
    }
}

template <int D> struct state {
    float o[D / 16][4]; // O^T fragments
    float m[2],
        l[2]; // running maximum (log2 domain) and this thread's part of the sum, heads 2 (lane % 4) + {0,1}
};

// Adds one page (16 keys) to the state. valid: keys of the page that exist (1..16); those before from are out of the window.
template <int D>
TK_DEV void page_step(state<D> &st, const uint32_t (&qf)[D / 16][2], uint32_t k_addr, int from,
                      int valid, int lane, float scale_log2)
{
    // A page in shared memory is rows of 64 dims, D / 64 rows to a token, swizzled by their number.
    constexpr int HALVES = D / 64;
    const uint32_t v_addr = k_addr + TK_BLOCK_TOK * D * 2;
    if (valid < TK_BLOCK_TOK) {
        // Whatever lies behind the last token may be anything, NaN too: 0 x NaN must not reach O.
        for (int i = lane; i < TK_BLOCK_TOK * D * 2 / 16; i += 32) {
            if ((i >> 3) / HALVES >= valid) {
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(v_addr + i * 16), "r"(0)
                             : "memory");
            }
        }
        proxy_fence(); // the next TMA write of this stage comes after these stores
        __syncwarp();
    }
    float s0[4] = {0, 0, 0, 0}, s1[4] = {0, 0, 0, 0};
    {
        const int sub = (lane >> 4) * 16;
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
            uint32_t f[4];
            const int row = (lane & 15) * HALVES + (ks >> 2);
            ldsm_x4(f, k_addr + row * 128 + ((((ks & 3) * 32) + sub) ^ ((row & 7) << 4)));
            mma16816(ks & 1 ? s1 : s0, f, qf[ks][0], qf[ks][1]);
        }
    }
    float s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = (s0[i] + s1[i]) * scale_log2;
        if (lane / 4 + (i >> 1) * 8 >= valid) {
            s[i] = -INFINITY;
        }
    }
    if (from > 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[i] = lane / 4 + (i >> 1) * 8 < from ? -INFINITY : s[i];
        }
    }
    float corr[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float mx = fmaxf(s[h], s[2 + h]);
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 4));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 8));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 16));
        mx = fmaxf(mx, st.m[h]);
        corr[h] = exp2_fast(st.m[h] - mx); // first page: exp2(-inf) = 0; mx is finite, valid >= 1
        st.m[h] = mx;
        s[h] = exp2_fast(s[h] - mx);
        s[2 + h] = exp2_fast(s[2 + h] - mx);
        st.l[h] = st.l[h] * corr[h] + (s[h] + s[2 + h]);
    }
    const uint32_t p0 = transpose8x8(pack_bf16(s[0], s[1])),
                   p1 = transpose8x8(pack_bf16(s[2], s[3]));
    {
        const int key = (lane & 7) + (lane >> 4) * 8, sub = ((lane >> 3) & 1) * 16;
#pragma unroll
        for (int mt = 0; mt < D / 16; mt++) {
            uint32_t f[4];
            const int row = key * HALVES + (mt >> 2);
            ldsm_x4_t(f, v_addr + row * 128 + ((((mt & 3) * 32) + sub) ^ ((row & 7) << 4)));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                st.o[mt][i] *= corr[i & 1];
            }
            mma16816(st.o[mt], f, p0, p1);
        }
    }
}

template <int D> struct merge_area {
    float *o;   // [WARPS][group][o_stride]
    float2 *ml; // [WARPS][MAX_G]
};

// A thread's share of a (sequence, KV head): dim t of every query head of the group; m and l are the same in all threads.
// G = 4 or 8, the least that holds the group.
template <int G> struct row_acc {
    float m[G], l[G], o[G];
};

// Adds the four warps' states in warp order.
template <int D, int G>
TK_DEV void combine_warps(const merge_area<D> &ma, uint32_t group, int t, row_acc<G> &r)
{
#pragma unroll
    for (int h = 0; h < G; h++) {
        r.m[h] = -INFINITY;
        r.l[h] = r.o[h] = 0;
        if (h < (int)group) {
            float2 v[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                v[w] = ma.ml[w * MAX_G + h];
                r.m[h] = fmaxf(r.m[h], v[w].x);
            }
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = v[w].x == -INFINITY ? 0.f : exp2_fast(v[w].x - r.m[h]);
                r.l[h] += v[w].y * f;
                // a warp without a page wrote zeros
                r.o[h] += t < D ? ma.o[(w * group + h) * o_stride<D>() + t] * f : 0.f;
            }
        }
    }
}

template <int D, int G>
TK_DEV void write_part(const args &a, size_t slot, int t, const row_acc<G> &r)
{
#pragma unroll
    for (int h = 0; h < G; h++) {
        if (h < (int)a.group) {
            if (t < D) {
                __stcg(a.part_o + (slot * a.group + h) * D + t, r.o[h]);
            }
            if (t == h) {
                __stcg(a.part_ml + slot * MAX_G + h, make_float2(r.m[h], r.l[h]));
            }
        }
    }
}

template <int D, int G>
TK_DEV void write_out(tk_bf16 *out, uint32_t group, int t, const row_acc<G> &r)
{
#pragma unroll
    for (int h = 0; h < G; h++) {
        if (h < (int)group && t < D) {
            reinterpret_cast<__nv_bfloat16 *>(out)[h * D + t] =
                __float2bfloat16_rn(r.o[h] / r.l[h]);
        }
    }
}

template <int D, int G>
TK_DEV void merge_loop(const args &a, const merge_area<D> &ma, uint32_t full, uint32_t empty,
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

// A warp's sum of partials; lane owns D / 32 dims.
template <int D> struct lane_acc {
    float m, l, o[D / 32];
};
template <int D> TK_DEV void lane_add(lane_acc<D> &s, float m, float l, const float (&o)[D / 32])
{
    const float mx = fmaxf(s.m, m), f0 = exp2_fast(s.m - mx), f1 = exp2_fast(m - mx);
    s.m = mx;
    s.l = s.l * f0 + l * f1;
#pragma unroll
    for (int v = 0; v < D / 32; v++) {
        s.o[v] = s.o[v] * f0 + o[v] * f1;
    }
}

// Reads up to PARTS partials: chunks c0, c0 + step, .. of one query head.
template <int D>
TK_DEV void read_parts(const args &a, size_t slot0, uint32_t n, uint32_t qh, uint32_t c0,
                       uint32_t step, int lane, float2 (&ml)[PARTS], float (&o)[PARTS][D / 32])
{
    constexpr int V = D / 32;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const uint32_t c = c0 + i * step;
        const size_t slot = slot0 + (size_t)(c < n ? c : c0) * a.n_kv;
        const float *po = a.part_o + (slot * a.group + qh) * D + lane * V;
        ml[i] = __ldcg(a.part_ml + slot * MAX_G + qh);
        if constexpr (V == 4) {
            const float4 x = __ldcg(reinterpret_cast<const float4 *>(po));
            o[i][0] = x.x, o[i][1] = x.y, o[i][2] = x.z, o[i][3] = x.w;
        } else {
            const float2 x = __ldcg(reinterpret_cast<const float2 *>(po));
            o[i][0] = x.x, o[i][1] = x.y;
        }
    }
}

// A whole row by one warp.
template <int D>
TK_DEV lane_acc<D> add_row(const args &a, size_t slot0, uint32_t n, uint32_t qh, int lane)
{
    lane_acc<D> s[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        s[i] = {-INFINITY, 0, {0}};
    }
    for (uint32_t c0 = 0; c0 < n; c0 += PARTS) {
        float2 ml[PARTS];
        float o[PARTS][D / 32];
        read_parts<D>(a, slot0, n, qh, c0, 1, lane, ml, o);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            if (c0 + i < n) {
                lane_add<D>(s[i], ml[i].x, ml[i].y, o[i]);
            }
        }
    }
#pragma unroll
    for (int i = 1; i < PARTS; i++) {
        lane_add<D>(s[0], s[i].m, s[i].l, s[i].o); // sum 0 is never empty
    }
    return s[0];
}

// One of the PARTS sums.
template <int D>
TK_DEV lane_acc<D> add_part(const args &a, size_t slot0, uint32_t n, uint32_t qh, uint32_t part,
                            int lane)
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
TK_DEV unit unit_at(const args &a, uint32_t u)
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

template <int D> TK_DEV void unit_end(const args &a, const unit &x, const lane_acc<D> &s, int lane)
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

TK_DEV void unit_wait(const args &a, const unit &x)
{
    while (ld_acquire(a.count + x.row) < x.n) {
    }
}

// This block's share of the rows that have several chunks. The blocks at the end of the grid begin: with little work
// they are the idle ones.
template <int D> TK_DEV void finish_rows(const args &a, uint32_t blocks, const merge_area<D> &ma)
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

template <int D>
TK_DEV void load_q(uint32_t (&qf)[D / 16][2], const args &a, uint32_t entry, uint32_t head,
                   int lane)
{
    const uint32_t qh = (uint32_t)lane / 4;
    const uint32_t *qp =
        reinterpret_cast<const uint32_t *>(a.q + (size_t)(entry >> 16) * a.q_stride +
                                           (size_t)(head * a.group + qh) * D) +
        lane % 4;
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        qf[ks][0] = qh < a.group ? __ldcg(qp + ks * 8) : 0;
        qf[ks][1] = qh < a.group ? __ldcg(qp + ks * 8 + 4) : 0;
    }
}

// Leaves a warp's state in the merge area.
template <int D>
TK_DEV void leave_state(state<D> &st, const merge_area<D> &ma, uint32_t group, int warp, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        st.l[h] += __shfl_xor_sync(~0u, st.l[h], 4);
        st.l[h] += __shfl_xor_sync(~0u, st.l[h], 8);
        st.l[h] += __shfl_xor_sync(~0u, st.l[h], 16);
    }
    const uint32_t c0 = 2 * (lane % 4);
    if (lane < 4) {
        ma.ml[warp * MAX_G + c0] = make_float2(st.m[0], st.l[0]);
        ma.ml[warp * MAX_G + c0 + 1] = make_float2(st.m[1], st.l[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (c0 + h < group) {
            float *o = ma.o + (warp * group + c0 + h) * o_stride<D>() + lane / 4;
#pragma unroll
            for (int mt = 0; mt < D / 16; mt++) {
                o[mt * 16] = st.o[mt][h];
                o[mt * 16 + 8] = st.o[mt][2 + h];
            }
        }
    }
}

// Rotates q in its fragments: a thread holds dims i and i + D / 2 of its head in k steps ks and ks + D / 32.
template <int D> TK_DEV void rotate_q(uint32_t (&qf)[D / 16][2], const float *cs, int lane)
{
#pragma unroll
    for (int ks = 0; ks < D / 32; ks++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * ks + 8 * r + 2 * (lane % 4);
            const float2 c = __ldg(reinterpret_cast<const float2 *>(cs + i));
            const float2 s = __ldg(reinterpret_cast<const float2 *>(cs + D / 2 + i));
            const uint32_t lo = qf[ks][r], hi = qf[ks + D / 32][r];
            const float x0 = bf16_lo(lo), x1 = bf16_hi(lo), y0 = bf16_lo(hi), y1 = bf16_hi(hi);
            qf[ks][r] = pack_bf16(x0 * c.x - y0 * s.x, x1 * c.y - y1 * s.y);
            qf[ks + D / 32][r] = pack_bf16(y0 * c.x + x0 * s.x, y1 * c.y + x1 * s.y);
        }
    }
}

// Puts the newest token's K (rotated) and V into its page, in shared memory and in the pool; the page was loaded
// without them. Lane i holds dims 2 i, 2 i + 1 of each 64-dim half.
template <int D>
TK_DEV void append_newest(const args &a, uint32_t seq, uint32_t head, int pos, int32_t block,
                          uint32_t page, int lane)
{
    constexpr int HALVES = D / 64;
    const int row = pos % TK_BLOCK_TOK;
    const uint32_t *src = reinterpret_cast<const uint32_t *>(a.q + (size_t)seq * a.q_stride +
                                                             (size_t)(a.n_kv * a.group + head) * D);
    const float *cs = a.cos_sin + (size_t)pos * D;
    uint32_t w[2][HALVES];
#pragma unroll
    for (int p = 0; p < HALVES; p++) {
        w[0][p] = __ldcg(src + p * 32 + lane);
        w[1][p] = __ldcg(src + a.n_kv * (D / 2) + p * 32 + lane);
    }
    if constexpr (HALVES == 2) {
        const float2 c = __ldg(reinterpret_cast<const float2 *>(cs) + lane);
        const float2 s = __ldg(reinterpret_cast<const float2 *>(cs + D / 2) + lane);
        const float x0 = bf16_lo(w[0][0]), x1 = bf16_hi(w[0][0]), y0 = bf16_lo(w[0][1]),
                    y1 = bf16_hi(w[0][1]);
        w[0][0] = pack_bf16(x0 * c.x - y0 * s.x, x1 * c.y - y1 * s.y);
        w[0][1] = pack_bf16(y0 * c.x + x0 * s.x, y1 * c.y + x1 * s.y);
    } else { // the partner, 32 dims on, is 16 lanes away
        const int i = lane % 16;
        const float2 c = __ldg(reinterpret_cast<const float2 *>(cs) + i);
        const float2 s = __ldg(reinterpret_cast<const float2 *>(cs + D / 2) + i);
        const uint32_t other = __shfl_xor_sync(~0u, w[0][0], 16);
        const float sign = lane < 16 ? -1.f : 1.f;
        w[0][0] = pack_bf16(bf16_lo(w[0][0]) * c.x + sign * bf16_lo(other) * s.x,
                            bf16_hi(w[0][0]) * c.y + sign * bf16_hi(other) * s.y);
    }
    unsigned char *dst =
        a.pool + (size_t)block * a.block_bytes + (size_t)head * TK_BLOCK_TOK * D * 2;
#pragma unroll
    for (int kv = 0; kv < 2; kv++) {
#pragma unroll
        for (int p = 0; p < HALVES; p++) {
            const int r = row * HALVES + p;
            const uint32_t at =
                page + kv * TK_BLOCK_TOK * D * 2 + r * 128 + ((lane * 4) ^ ((r & 7) << 4));
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(w[kv][p]) : "memory");
            reinterpret_cast<uint32_t *>(dst + (size_t)kv * a.n_kv * TK_BLOCK_TOK * D * 2 +
                                         r * 128)[lane] = w[kv][p];
        }
    }
    proxy_fence(); // the next TMA write of this stage comes after these stores
    __syncwarp();
}

// What a compute warp needs to load pages: its walk, its ring and its barriers.
struct feed {
    cursor ld;
    uint32_t issued, ring, bars, n_items;
    uint64_t pol;
    int warp, lane;
};

template <int D, int STAGES> TK_DEV void feed_page(feed &f, const CUtensorMap *kv, const args &a)
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
template <int D, int STAGES> TK_DEV void feed_start(feed &f, const CUtensorMap *kv, const args &a)
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

template <int D> TK_DEV void state_clear(state<D> &st)
{
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        st.o[i][0] = st.o[i][1] = st.o[i][2] = st.o[i][3] = 0;
    }
    st.m[0] = st.m[1] = -INFINITY;
    st.l[0] = st.l[1] = 0;
}

template <int D, int STAGES>
TK_DEV void compute_loop(const CUtensorMap *kv, const args &a, const merge_area<D> &ma, feed &f,
                         uint32_t full, uint32_t empty)
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
    attn_decode_kernel(const __grid_constant__ CUtensorMap kv, const args a)
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

__global__ void plan_kernel(const int32_t *lens, uint32_t n, int window, uint32_t *plan,
                            uint32_t cap)
{
    __shared__ uint32_t sum[TK_MAX_SEQS];
    const uint32_t t = threadIdx.x;
    pdl_wait();
    const int len = t < n ? max(lens[t], 0) : 0, tok = tk_chunk_tok(len);
    const uint32_t c0 = (uint32_t)(tk_window_start(len, window) / tok),
                   c = len > 0 ? (uint32_t)((len - 1) / tok) + 1 - c0 : 0;
    sum[t] = c;
    __syncthreads();
    for (uint32_t d = 1; d < blockDim.x; d *= 2) {
        const uint32_t v = t >= d ? sum[t - d] : 0;
        __syncthreads();
        sum[t] += v;
        __syncthreads();
    }
    const uint32_t first = sum[t] - c;
    if (t < n) {
        plan[1 + t] = first;
    }
    for (uint32_t i = 0; i < c; i++) {
        if (first + i < cap) {
            plan[1 + TK_MAX_SEQS + first + i] =
                t << 16 | (c0 + i) | (len > TK_CHUNK_LONG ? TK_CHUNK_IS_LONG : 0);
        }
    }
    if (t == blockDim.x - 1) {
        plan[0] = sum[t] <= cap ? sum[t]
                                : 0; // a list with holes would leave rows waiting for their chunks
    }
}

} // namespace

struct scratch_parts {
    size_t done, ml, o, total;
};
static scratch_parts scratch_layout(uint32_t n_kv, uint32_t group, uint32_t d, uint32_t entries)
{
    scratch_parts p;
    p.done = (size_t)TK_MAX_SEQS * n_kv * 4;
    p.ml = tk_attn_decode_counters(n_kv);
    p.o = (p.ml + (size_t)entries * n_kv * MAX_G * sizeof(float2) + 255) & ~(size_t)255;
    p.total = p.o + (size_t)entries * n_kv * group * d * 4;
    return p;
}

extern "C" size_t tk_attn_decode_counters(uint32_t n_kv_heads)
{
    return (size_t)2 * TK_MAX_SEQS * n_kv_heads * 4;
}

extern "C" size_t tk_attn_decode_scratch(uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                                         uint32_t max_entries)
{
    return scratch_layout(n_kv_heads, group, head_dim, max_entries).total;
}

template <int D, int STAGES, int G>
static td_err launch_decode(tk_stream s, const struct tk_attn_decode *p, const args &a)
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
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads != 0 ||
        p->n_heads / p->n_kv_heads > MAX_G || p->n_seqs == 0 || p->n_seqs > TK_MAX_SEQS ||
        p->q_stride % 2 != 0 || p->window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    args a;
    a.q = p->q;
    a.out = p->out;
    a.lens = p->lens;
    a.tables = p->tables;
    a.plan = p->plan;
    a.cos_sin = p->cos_sin;
    a.pool = nullptr;
    a.block_bytes = 0;
    if (p->cos_sin != nullptr) {
        a.pool = static_cast<unsigned char *>(p->pool->base) + p->layer * p->pool->slice_bytes +
                 p->pool->header_bytes;
        a.block_bytes = p->pool->slice_bytes * p->pool->n_layers;
    }
    a.n_seqs = p->n_seqs;
    a.n_kv = p->n_kv_heads;
    a.group = p->n_heads / p->n_kv_heads;
    a.table_stride = p->table_stride;
    a.table_step = p->one_table ? 0 : p->table_stride;
    a.q_stride = p->q_stride;
    a.out_stride = p->out_stride;
    a.window = (int)p->window;
    a.scale_log2 = p->scale * 1.44269504088896f;
    const scratch_parts sp = scratch_layout(a.n_kv, a.group, p->head_dim, p->max_entries);
    unsigned char *m = static_cast<unsigned char *>(p->scratch);
    a.count = reinterpret_cast<uint32_t *>(m);
    a.done = reinterpret_cast<uint32_t *>(m + sp.done);
    a.part_ml = reinterpret_cast<float2 *>(m + sp.ml);
    a.part_o = reinterpret_cast<float *>(m + sp.o);
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

extern "C" td_err tk_plan_window_device(tk_stream s, const int32_t *lens, uint32_t n_seqs,
                                        uint32_t window, uint32_t *out_words, size_t words)
{
    if (n_seqs == 0 || n_seqs > TK_MAX_SEQS || words <= 1 + TK_MAX_SEQS || window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, 1, TK_MAX_SEQS, 0, 1, false);
    TD_TRY(tk_prepare(plan_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, plan_kernel, lens, n_seqs, (int)window, out_words,
                                   (uint32_t)(words - 1 - TK_MAX_SEQS)));
    return TD_OK;
}

extern "C" td_err tk_plan_device(tk_stream s, const int32_t *lens, uint32_t n_seqs,
                                 uint32_t *out_words, size_t words)
{
    return tk_plan_window_device(s, lens, n_seqs, 0, out_words, words);
}
