// attn_decode.cu - paged split-KV decode attention, one query row per sequence.
//
// Shapes: q and out [n_seqs][n_heads][D] bf16, D = 64 or 128; KV pool of tk_cuda.h through its 5-D tensor map; up to 8
//   query heads per KV head. Block tables int32. Alignment: pool 128 bytes, q and out 4 bytes.
// Design: S^T = K Q^T and O^T = V^T P^T with mma.m16n8k16: keys (then dims) are the 16 rows, the query heads of one KV
//   head the 8 columns, so each KV byte is read once for the whole group. A work item is (sequence, chunk of 256
//   tokens, KV head). The 4 warps of a block share an item by pages: page p of the chunk belongs to warp p % 4. Every
//   warp has its own ring of pages and barriers, filled by its lane 0 and running ahead across items, so that the main
//   loop has no block-wide barrier. At the end of an item the warps' (max, sum, O) meet in shared memory and are added in
//   warp order; a sequence of one chunk is then finished, others leave a partial, and the last block to arrive adds
//   the partials: warp w takes chunks w, w + 4, .. ascending, then warp order again. Order depends on the sequence's
//   length alone.
// Bound by: device memory (KV bytes). Measured: see NOTES.md.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int WARPS = 4;
constexpr int THREADS = WARPS * 32;
constexpr int PAGES = TK_CHUNK_TOK / TK_BLOCK_TOK; // of a full chunk
constexpr int MAX_G = TK_MAX_GROUP;

struct args {
    const tk_bf16 *q;
    tk_bf16 *out;
    const int32_t *lens, *tables;
    const uint32_t *plan;
    uint32_t *count;  // [seq][kv head]
    float2 *part_ml;  // [entry][kv head][8]
    float *part_o;    // [entry][kv head][group][D]
    uint32_t n_kv, group, layer, table_stride, q_stride, out_stride;
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
    return (size_t)WARPS * STAGES * stage_bytes<D>() + WARPS * MAX_G * 8 + WARPS * STAGES * 8 + 16 +
           WARPS * group * o_stride<D>() * 4;
}

// One warp's position in its sequence of pages; used twice, for loads and for products.
struct cursor {
    uint32_t item;  // work item, n_items when done
    int page;       // next of this warp's pages within the chunk: 0 .. n_pages - 1
    int n_pages;    // this warp's pages in the chunk
    int32_t block;  // lane i: block number of page i
};

TK_DEV void cursor_enter(cursor &c, const args &a, uint32_t n_items, int warp, int lane, bool tables)
{
    c.page = 0;
    c.n_pages = 0;
    if (c.item >= n_items) {
        return;
    }
    const uint32_t e = a.plan[1 + TK_MAX_SEQS + c.item / a.n_kv];
    const uint32_t seq = e >> 16, chunk = e & 0xffff;
    const int tok = min(a.lens[seq] - (int)chunk * TK_CHUNK_TOK, TK_CHUNK_TOK);
    const int pages = (tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    c.n_pages = pages > warp ? (pages - warp + WARPS - 1) / WARPS : 0;
    if (tables && lane < c.n_pages) {
        c.block = a.tables[(size_t)seq * a.table_stride + chunk * PAGES + warp + lane * WARPS];
    }
}

// Skips items in which this warp has no page; leaves c.item at the next item with work, or past the end.
TK_DEV void cursor_advance(cursor &c, const args &a, uint32_t n_items, int warp, int lane, bool tables)
{
    while (c.item < n_items && c.page >= c.n_pages) {
        c.item += gridDim.x;
        cursor_enter(c, a, n_items, warp, lane, tables);
    }
}

template <int D> struct state {
    float o[D / 16][4]; // O^T fragments
    float m[2], l[2];   // running maximum (log2 domain) and this thread's part of the sum, heads 2 (lane % 4) + {0,1}
};

// Adds one page (16 keys) to the state. valid: keys of the page that exist (1..16).
template <int D>
TK_DEV void page_step(state<D> &st, const uint32_t (&qf)[D / 16][2], uint32_t k_addr, int valid, int lane,
                      float scale_log2)
{
    constexpr int HALF = TK_BLOCK_TOK * 128; // bytes of a 64-dim half page
    const uint32_t v_addr = k_addr + TK_BLOCK_TOK * D * 2;
    if (valid < TK_BLOCK_TOK) {
        // Whatever lies behind the last token may be anything, NaN too: 0 x NaN must not reach O.
        for (int i = lane; i < TK_BLOCK_TOK * D * 2 / 16; i += 32) {
            const int row = (i >> 3) & (TK_BLOCK_TOK - 1);
            if (row >= valid) {
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(v_addr + i * 16), "r"(0) : "memory");
            }
        }
        proxy_fence(); // the next TMA write of this stage comes after these stores
        __syncwarp();
    }
    float s0[4] = {0, 0, 0, 0}, s1[4] = {0, 0, 0, 0};
    {
        const int row = lane & 15, sub = (lane >> 4) * 16, x = (row & 7) << 4;
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
            uint32_t f[4];
            ldsm_x4(f, k_addr + (ks >> 2) * HALF + row * 128 + ((((ks & 3) * 32) + sub) ^ x));
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
    const uint32_t p0 = transpose8x8(pack_bf16(s[0], s[1])), p1 = transpose8x8(pack_bf16(s[2], s[3]));
    {
        const int row = (lane & 7) + (lane >> 4) * 8, sub = ((lane >> 3) & 1) * 16, x = (row & 7) << 4;
#pragma unroll
        for (int mt = 0; mt < D / 16; mt++) {
            uint32_t f[4];
            ldsm_x4_t(f, v_addr + (mt >> 2) * HALF + row * 128 + ((((mt & 3) * 32) + sub) ^ x));
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

// Adds the four warps' states in warp order. Thread t < D owns dim t. part != NULL: leaves a partial, else bf16 out.
template <int D>
TK_DEV void combine(const merge_area<D> &ma, uint32_t group, float *part_o, float2 *part_ml, tk_bf16 *out)
{
    const int t = threadIdx.x;
    for (uint32_t h = 0; h < group; h++) {
        float m = -INFINITY, l = 0, o = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            m = fmaxf(m, ma.ml[w * MAX_G + h].x);
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float2 v = ma.ml[w * MAX_G + h];
            const float f = v.x == -INFINITY ? 0.f : exp2_fast(v.x - m);
            l += v.y * f;
            if (t < D && v.x != -INFINITY) {
                o += ma.o[(w * group + h) * o_stride<D>() + t] * f;
            }
        }
        if (part_o != nullptr) {
            if (t < D) {
                __stcg(part_o + h * D + t, o);
            }
            if (t == 0) {
                __stcg(part_ml + h, make_float2(m, l));
            }
        } else if (t < D) {
            reinterpret_cast<__nv_bfloat16 *>(out)[h * D + t] = __float2bfloat16_rn(o / l);
        }
    }
}

// Warp w adds the partials of chunks w, w + 4, ..; lane i owns dims 4 i .. 4 i + 3 (D = 128) or 2 i, 2 i + 1 (D = 64).
template <int D>
TK_DEV void gather_parts(const merge_area<D> &ma, const args &a, uint32_t entry0, uint32_t n_chunks, uint32_t head,
                         int warp, int lane)
{
    constexpr int V = D / 32;
    for (uint32_t h0 = 0; h0 < a.group; h0 += 4) {
        float m[4], l[4], o[4][V];
#pragma unroll
        for (int h = 0; h < 4; h++) {
            m[h] = -INFINITY;
            l[h] = 0;
#pragma unroll
            for (int v = 0; v < V; v++) {
                o[h][v] = 0;
            }
        }
        const uint32_t nh = min(a.group - h0, 4u);
#pragma unroll 2
        for (uint32_t c = warp; c < n_chunks; c += WARPS) {
            const size_t slot = (size_t)(entry0 + c) * a.n_kv + head;
#pragma unroll
            for (int h = 0; h < 4; h++) {
                if (h < (int)nh) {
                    const float2 ml = __ldcg(a.part_ml + slot * MAX_G + h0 + h);
                    const float *po = a.part_o + (slot * a.group + h0 + h) * D + lane * V;
                    float p[V];
                    if constexpr (V == 4) {
                        const float4 x = __ldcg(reinterpret_cast<const float4 *>(po));
                        p[0] = x.x, p[1] = x.y, p[2] = x.z, p[3] = x.w;
                    } else {
                        const float2 x = __ldcg(reinterpret_cast<const float2 *>(po));
                        p[0] = x.x, p[1] = x.y;
                    }
                    const float mx = fmaxf(m[h], ml.x);
                    const float f0 = exp2_fast(m[h] - mx), f1 = exp2_fast(ml.x - mx);
                    m[h] = mx;
                    l[h] = l[h] * f0 + ml.y * f1;
#pragma unroll
                    for (int v = 0; v < V; v++) {
                        o[h][v] = o[h][v] * f0 + p[v] * f1;
                    }
                }
            }
        }
#pragma unroll
        for (int h = 0; h < 4; h++) {
            if (h < (int)nh) {
                if (lane == 0) {
                    ma.ml[warp * MAX_G + h0 + h] = make_float2(m[h], l[h]);
                }
#pragma unroll
                for (int v = 0; v < V; v++) {
                    ma.o[(warp * a.group + h0 + h) * o_stride<D>() + lane * V + v] = o[h][v];
                }
            }
        }
    }
}

template <int D, int STAGES>
__global__ void __launch_bounds__(THREADS) attn_decode_kernel(const __grid_constant__ CUtensorMap kv, const args a)
{
    extern __shared__ unsigned char raw[];
    constexpr int STAGE = stage_bytes<D>();
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const uint32_t base = smem_u32(raw);
    if (base % 1024 != 0) {
        __trap(); // the swizzle needs it; dynamic shared memory starts at a multiple when there is no static one
    }
    const uint32_t ring = base + warp * STAGES * STAGE;
    merge_area<D> ma;
    ma.ml = reinterpret_cast<float2 *>(raw + WARPS * STAGES * STAGE);
    uint64_t *bars = reinterpret_cast<uint64_t *>(ma.ml + WARPS * MAX_G);
    uint32_t *flag = reinterpret_cast<uint32_t *>(bars + WARPS * STAGES);
    ma.o = reinterpret_cast<float *>(flag + 4);
    const uint32_t full = smem_u32(bars + warp * STAGES);

    if (lane == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_init(full + 8 * i, 1);
        }
        bar_init_fence();
        tma_prefetch_map(&kv);
    }
    __syncwarp();
    // Everything below may be written by the kernel before us: the query, the newest token's KV, on the first layer
    // the plan.
    pdl_wait();
    const uint32_t n_items = a.plan[0] * a.n_kv;
    const uint64_t pol = evict_first();

    cursor ld;
    ld.item = blockIdx.x;
    ld.block = 0;
    cursor_enter(ld, a, n_items, warp, lane, true);
    cursor_advance(ld, a, n_items, warp, lane, true);
    uint32_t issued = 0, used = 0;
    auto issue = [&]() {
        const int32_t blk = __shfl_sync(~0u, ld.block, ld.page & 31);
        if (lane == 0) {
            const uint32_t st = issued % STAGES, bar = full + 8 * st, dst = ring + st * STAGE;
            const int head = (int)(ld.item % a.n_kv);
            bar_expect(bar, STAGE);
#pragma unroll
            for (int p = 0; p < 2 * (D / 64); p++) {
                const int is_v = p / (D / 64), half = p % (D / 64);
                tma_5d(dst + p * TK_BLOCK_TOK * 128, &kv, bar, half * 64, 0, is_v * (int)a.n_kv + head, (int)a.layer,
                       blk, pol);
            }
        }
        issued++;
        ld.page++;
        cursor_advance(ld, a, n_items, warp, lane, true);
    };
    for (int i = 0; i < STAGES; i++) {
        if (ld.item < n_items) {
            issue();
        }
    }

    for (uint32_t item = blockIdx.x; item < n_items; item += gridDim.x) {
        const uint32_t e = a.plan[1 + TK_MAX_SEQS + item / a.n_kv], head = item % a.n_kv;
        const uint32_t seq = e >> 16, chunk = e & 0xffff;
        const int len = a.lens[seq];
        const int tok = min(len - (int)chunk * TK_CHUNK_TOK, TK_CHUNK_TOK);
        const int pages = (tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;

        uint32_t qf[D / 16][2];
        const uint32_t qh = (uint32_t)lane / 4;
        const uint32_t *qp = reinterpret_cast<const uint32_t *>(a.q + (size_t)seq * a.q_stride +
                                                                (size_t)(head * a.group + qh) * D) +
                             lane % 4;
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++) {
            qf[ks][0] = qh < a.group ? qp[ks * 8] : 0;
            qf[ks][1] = qh < a.group ? qp[ks * 8 + 4] : 0;
        }
        state<D> st;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            st.o[i][0] = st.o[i][1] = st.o[i][2] = st.o[i][3] = 0;
        }
        st.m[0] = st.m[1] = -INFINITY;
        st.l[0] = st.l[1] = 0;

        for (int p = warp; p < pages; p += WARPS) {
            const uint32_t slot = used % STAGES;
            bar_wait(full + 8 * slot, (used / STAGES) & 1);
            page_step<D>(st, qf, ring + slot * STAGE, min(tok - p * TK_BLOCK_TOK, TK_BLOCK_TOK), lane, a.scale_log2);
            used++;
            __syncwarp();
            if (ld.item < n_items) {
                issue();
                if (ld.item >= n_items) {
                    pdl_launch(); // our last load is on its way: the next kernel may start filling its own ring
                }
            }
        }

        // Meet the other warps.
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
            if (c0 + h < a.group) {
                float *o = ma.o + (warp * a.group + c0 + h) * o_stride<D>() + lane / 4;
#pragma unroll
                for (int mt = 0; mt < D / 16; mt++) {
                    o[mt * 16] = st.o[mt][h];
                    o[mt * 16 + 8] = st.o[mt][2 + h];
                }
            }
        }
        __syncthreads();
        tk_bf16 *out = a.out + (size_t)seq * a.out_stride + (size_t)head * a.group * D;
        const uint32_t n_chunks = (uint32_t)(len + TK_CHUNK_TOK - 1) / TK_CHUNK_TOK;
        if (n_chunks == 1) {
            combine<D>(ma, a.group, nullptr, nullptr, out);
            __syncthreads();
            continue;
        }
        combine<D>(ma, a.group, a.part_o + (size_t)item * a.group * D, a.part_ml + (size_t)item * MAX_G, nullptr);
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            const uint32_t old = atomicAdd(a.count + (size_t)seq * a.n_kv + head, 1);
            __threadfence();
            *flag = old == n_chunks - 1;
            if (old == n_chunks - 1) {
                a.count[(size_t)seq * a.n_kv + head] = 0; // for the next layer; nobody else is left to count
            }
        }
        __syncthreads();
        if (*flag) {
            gather_parts<D>(ma, a, a.plan[1 + seq], n_chunks, head, warp, lane);
            __syncthreads();
            combine<D>(ma, a.group, nullptr, nullptr, out);
        }
        __syncthreads();
    }
}

__global__ void plan_kernel(const int32_t *lens, uint32_t n, uint32_t *plan, uint32_t cap)
{
    __shared__ uint32_t sum[TK_MAX_SEQS];
    const uint32_t t = threadIdx.x;
    pdl_wait();
    const uint32_t c = t < n && lens[t] > 0 ? (uint32_t)(lens[t] + TK_CHUNK_TOK - 1) / TK_CHUNK_TOK : 0;
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
            plan[1 + TK_MAX_SEQS + first + i] = t << 16 | i;
        }
    }
    if (t == blockDim.x - 1) {
        plan[0] = min(sum[t], cap);
    }
}

} // namespace

struct scratch_parts {
    size_t ml, o, total;
};
static scratch_parts scratch_layout(uint32_t max_seqs, uint32_t n_kv, uint32_t group, uint32_t d, uint32_t entries)
{
    scratch_parts p;
    p.ml = ((size_t)max_seqs * n_kv * 4 + 255) & ~(size_t)255;
    p.o = p.ml + (size_t)entries * n_kv * MAX_G * sizeof(float2);
    p.o = (p.o + 255) & ~(size_t)255;
    p.total = p.o + (size_t)entries * n_kv * group * d * 4;
    return p;
}

extern "C" size_t tk_attn_decode_scratch(uint32_t max_seqs, uint32_t n_kv_heads, uint32_t group, uint32_t head_dim,
                                         uint32_t max_entries)
{
    return scratch_layout(max_seqs, n_kv_heads, group, head_dim, max_entries).total;
}

template <int D, int STAGES> static td_err launch_decode(tk_stream s, const struct tk_attn_decode *p, const args &a)
{
    const size_t bytes = smem_bytes<D, STAGES>(a.group);
    TK_TRY_CUDA(cudaFuncSetAttribute(attn_decode_kernel<D, STAGES>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)bytes));
    const tk_dev *dev = tk_device();
    if (dev == nullptr) {
        return TD_ERR_DEVICE;
    }
    // Two blocks per SM: one waits at the end of its item while the other streams.
    const uint32_t most = p->max_entries * p->n_kv_heads;
    const uint32_t grid = most < 2 * dev->sms ? most : 2 * dev->sms;
    tk_launch l(s, grid, THREADS, bytes, 1, p->pdl);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, attn_decode_kernel<D, STAGES>, *(const CUtensorMap *)(const void *)p->kv->bytes, a));
    return TD_OK;
}

extern "C" td_err tk_attn_decode(tk_stream s, const struct tk_attn_decode *p)
{
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads != 0 || p->n_heads / p->n_kv_heads > MAX_G ||
        p->n_seqs == 0 || p->n_seqs > TK_MAX_SEQS || p->q_stride % 2 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    args a;
    a.q = p->q;
    a.out = p->out;
    a.lens = p->lens;
    a.tables = p->tables;
    a.plan = p->plan;
    a.n_kv = p->n_kv_heads;
    a.group = p->n_heads / p->n_kv_heads;
    a.layer = p->layer;
    a.table_stride = p->table_stride;
    a.q_stride = p->q_stride;
    a.out_stride = p->out_stride;
    a.scale_log2 = p->scale * 1.44269504088896f;
    const scratch_parts sp = scratch_layout(p->n_seqs, a.n_kv, a.group, p->head_dim, p->max_entries);
    unsigned char *m = static_cast<unsigned char *>(p->scratch);
    a.count = reinterpret_cast<uint32_t *>(m);
    a.part_ml = reinterpret_cast<float2 *>(m + sp.ml);
    a.part_o = reinterpret_cast<float *>(m + sp.o);
    switch (p->head_dim) {
    case 128:
        return launch_decode<128, 3>(s, p, a);
    case 64:
        return launch_decode<64, 4>(s, p, a);
    default:
        return TD_ERR_UNSUPPORTED;
    }
}

extern "C" td_err tk_plan_device(tk_stream s, const int32_t *lens, uint32_t n_seqs, uint32_t *out_words, size_t words)
{
    if (n_seqs == 0 || n_seqs > TK_MAX_SEQS || words <= 1 + TK_MAX_SEQS) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, 1, TK_MAX_SEQS, 0, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, plan_kernel, lens, n_seqs, out_words, (uint32_t)(words - 1 - TK_MAX_SEQS)));
    return TD_OK;
}
