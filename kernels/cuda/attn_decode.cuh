// attn_decode.cuh - what the decode attention kernels of both devices share: the arithmetic of a page, of a chunk's four
// warps and of a row's partials, rotation and append of the newest token, the layout of the scratch buffer.
//
// Four warps share a chunk by pages: page p belongs to warp p % 4. A page in shared memory is K then V of one head, rows of
// 64 dims (D / 64 of them to a token), 16-byte columns swizzled by the row's number. Included by one file per device
// (attn_decode.cu, attn_decode_sm80.cuh), each in its own translation unit.
#pragma once
#ifndef TK_EMULATE
#include "kernels/cuda/ptx.cuh"
#endif
#include "kernels/tk_cuda.h"

namespace
{

constexpr int WARPS = 4; // that compute; as many merge
constexpr int PARTS = 8; // interleaved sums of a row's partials; part of the numerics
constexpr int PAGES = 2 * TK_CHUNK_TOK / TK_BLOCK_TOK; // of a chunk, at most
constexpr int MAX_G = TK_MAX_GROUP;
struct attn_args {
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
TK_DEV uint32_t row_chunks(const attn_args &a, int len)
{
    static_assert(TK_CHUNK_TOK == 256, "the shifts below");
    const int shift = tk_chunk_tok(len) == TK_CHUNK_TOK ? 8 : 9;
    return len > 0
               ? (uint32_t)(((len - 1) >> shift) + 1 - (tk_window_start(len, a.window) >> shift))
               : 0;
}

// Of a warp's pages of a chunk (p = warp, warp + WARPS ..), the number of the first that is seen.
TK_DEV int first_page(const attn_args &a, int len, int first, int warp)
{
    // pages out of the window, from the chunk's start
    const int hidden = max(tk_window_start(len, a.window) - first, 0) / TK_BLOCK_TOK;
    return hidden > warp ? (hidden - warp + WARPS - 1) / WARPS : 0;
}

TK_DEV uint32_t entry_of(const attn_args &a, uint32_t item, uint32_t n_items)
{
    return item < n_items ? __ldcg(a.plan + 1 + TK_MAX_SEQS + item / a.n_kv) : 0;
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
                st_shared_zero16(v_addr + i * 16);
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
                // not one FMA: what the compiler makes of it must not depend on what it knows of t
                const float o = t < D ? ma.o[(w * group + h) * o_stride<D>() + t] : 0.f;
                r.o[h] = __fadd_rn(r.o[h], __fmul_rn(o, f));
            }
        }
    }
}

template <int D, int G>
TK_DEV void write_part(const attn_args &a, size_t slot, int t, const row_acc<G> &r)
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
TK_DEV void read_parts(const attn_args &a, size_t slot0, uint32_t n, uint32_t qh, uint32_t c0,
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
TK_DEV lane_acc<D> add_row(const attn_args &a, size_t slot0, uint32_t n, uint32_t qh, int lane)
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

template <int D>
TK_DEV void load_q(uint32_t (&qf)[D / 16][2], const attn_args &a, uint32_t entry, uint32_t head,
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

// Two dims and their partners, half a head on.
TK_DEV void rotate_pair(uint32_t &lo, uint32_t &hi, float2 c, float2 s)
{
    const float x0 = bf16_lo(lo), x1 = bf16_hi(lo), y0 = bf16_lo(hi), y1 = bf16_hi(hi);
    lo = pack_bf16(x0 * c.x - y0 * s.x, x1 * c.y - y1 * s.y);
    hi = pack_bf16(y0 * c.x + x0 * s.x, y1 * c.y + x1 * s.y);
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
            rotate_pair(qf[ks][r], qf[ks + D / 32][r], c, s);
        }
    }
}

// Rotates the newest token's K. Lane i holds dims 2 i, 2 i + 1 of each 64-dim half.
template <int D> TK_DEV void rotate_newest(uint32_t (&k)[D / 64], const float *cs, int lane)
{
    if constexpr (D == 128) {
        const float2 c = __ldg(reinterpret_cast<const float2 *>(cs) + lane);
        const float2 s = __ldg(reinterpret_cast<const float2 *>(cs + D / 2) + lane);
        rotate_pair(k[0], k[1], c, s);
    } else { // the partner, 32 dims on, is 16 lanes away
        const int i = lane % 16;
        const float2 c = __ldg(reinterpret_cast<const float2 *>(cs) + i);
        const float2 s = __ldg(reinterpret_cast<const float2 *>(cs + D / 2) + i);
        const uint32_t other = __shfl_xor_sync(~0u, k[0], 16);
        const float sign = lane < 16 ? -1.f : 1.f;
        k[0] = pack_bf16(bf16_lo(k[0]) * c.x + sign * bf16_lo(other) * s.x,
                         bf16_hi(k[0]) * c.y + sign * bf16_hi(other) * s.y);
    }
}

// Puts the newest token's K and V (w[0], w[1]) into its page, in shared memory and in the pool (block: the page's, of
// this head): row `row` of the page.
template <int D>
TK_DEV void put_newest(const attn_args &a, const uint32_t (&w)[2][D / 64], unsigned char *block,
                       int row, uint32_t page, int lane)
{
    constexpr int HALVES = D / 64;
#pragma unroll
    for (int kv = 0; kv < 2; kv++) {
#pragma unroll
        for (int p = 0; p < HALVES; p++) {
            const int r = row * HALVES + p;
            const uint32_t at =
                page + kv * TK_BLOCK_TOK * D * 2 + r * 128 + ((lane * 4) ^ ((r & 7) << 4));
            st_shared(at, w[kv][p]);
            reinterpret_cast<uint32_t *>(block + (size_t)kv * a.n_kv * TK_BLOCK_TOK * D * 2 +
                                         r * 128)[lane] = w[kv][p];
        }
    }
    proxy_fence(); // the next TMA write of this stage comes after these stores
    __syncwarp();
}

// Appends the newest token, whose page was loaded without it.
template <int D>
TK_DEV void append_newest(const attn_args &a, uint32_t seq, uint32_t head, int pos, int32_t block,
                          uint32_t page, int lane)
{
    constexpr int HALVES = D / 64;
    const uint32_t *src = reinterpret_cast<const uint32_t *>(a.q + (size_t)seq * a.q_stride +
                                                             (size_t)(a.n_kv * a.group + head) * D);
    uint32_t w[2][HALVES];
#pragma unroll
    for (int p = 0; p < HALVES; p++) {
        w[0][p] = __ldcg(src + p * 32 + lane);
        w[1][p] = __ldcg(src + a.n_kv * (D / 2) + p * 32 + lane);
    }
    rotate_newest<D>(w[0], a.cos_sin + (size_t)pos * D, lane);
    put_newest<D>(a, w,
                  a.pool + (size_t)block * a.block_bytes + (size_t)head * TK_BLOCK_TOK * D * 2,
                  pos % TK_BLOCK_TOK, page, lane);
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

struct scratch_parts {
    size_t done, ml, o, total;
};
static scratch_parts scratch_layout(uint32_t n_kv, uint32_t group, uint32_t d, uint32_t entries)
{
    scratch_parts p;
    p.done = (size_t)TK_MAX_SEQS * n_kv * 4;
    p.ml = 2 * p.done;
    p.o = (p.ml + (size_t)entries * n_kv * MAX_G * sizeof(float2) + 255) & ~(size_t)255;
    p.total = p.o + (size_t)entries * n_kv * group * d * 4;
    return p;
}

// The shapes and buffers of a launch; a.pool and a.block_bytes are the caller's.
static td_err attn_args_of(const struct tk_attn_decode *p, attn_args &a)
{
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads != 0 ||
        p->n_heads / p->n_kv_heads > MAX_G || p->n_seqs == 0 || p->n_seqs > TK_MAX_SEQS ||
        p->q_stride % 2 != 0 || p->window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    a.q = p->q;
    a.out = p->out;
    a.lens = p->lens;
    a.tables = p->tables;
    a.plan = p->plan;
    a.cos_sin = p->cos_sin;
    a.pool = nullptr;
    a.block_bytes = 0;
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
    return TD_OK;
}

} // namespace
