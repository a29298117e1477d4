// attn_prefill.cu - causal prefill attention over paged KV for a ragged batch of chunks.
//
// Shapes: q [rows][n_heads][128] bf16 through a 3-D map, KV pool through its 5-D map, out [rows][n_heads][128]; any group
//   size. A chunk is n rows at positions pos0 ..; its keys 0 .. pos0 + n - 1 lie in the pool already.
// Design: a block computes 128 query rows of one head against tiles of 128 keys, which start at multiples of 128 from
//   position 0 whatever the chunking, last tile first. The four warps of the third warpgroup load, one each for the halves
//   of K and of V (one 2 KB box per page and half head, a lane per box): a single warp issued V too late. Two warpgroups of
//   64 rows compute: scores with wgmma from shared memory, P stays in registers as the A operand of P V. Q K of the next
//   tile is issued before the softmax of this one, and two named barriers let one warpgroup's softmax run under the
//   other's products. Persistent blocks walk a list that is sorted longest first, forwards and backwards in turn; where it
//   is long, heads of one KV group go together, so that their K and V stay in L2.
// A window leaves out tiles and pages that no row of a query tile sees.
// Exactness: a masked tile leaves m, l and O bit-equal, so a row's result does not depend on the chunk it came in. V rows
//   behind the last token are zeroed in shared memory, since 0 x NaN of a stale page would reach O.
// Bound by: the matrix units and exp2. Measured: see NOTES.md.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int D = 128;
constexpr int KEYS = TK_TILE_KEYS;
constexpr int ROWS = TK_TILE_ROWS;
constexpr int CONSUMERS = 256;
constexpr int THREADS = CONSUMERS + 128;
constexpr uint32_t HALF = KEYS * 128;   // bytes of 64 dims of a K or V tile
constexpr uint32_t KV_BYTES = 2 * HALF; // a K or V tile
constexpr uint32_t Q_HALF = 64 * 128;   // 64 dims of a warpgroup's rows
constexpr uint32_t Q_BYTES = ROWS * D * 2;
constexpr uint32_t PAGE_HALF = TK_BLOCK_TOK * 128;
constexpr int TILE_PAGES = KEYS / TK_BLOCK_TOK;
constexpr int STAGES = 2; // three were slower
constexpr int SMEM = (int)(Q_BYTES + 2 * STAGES * KV_BYTES) + 256;

enum { BAR_WG0 = 2, BAR_WG1 = 3, BAR_PAIR = 4, BAR_OUT0 = 5 };

struct args {
    tk_bf16 *out;
    const tk_chunk *chunks;
    const uint32_t *tiles;
    const int32_t *tables;
    uint32_t n_tiles, n_heads, group, n_kv, layer, table_stride, out_stride;
    uint32_t section; // heads, a divisor of n_heads
    int window;       // 0: none
    float scale_log2;
};

struct smem_map {
    uint32_t q, k, v;
    uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty;
};

struct work {
    int row0, rows; // first row in q and out; rows that exist
    int pos0;       // position of the first row
    int kv_len;     // keys in the pool
    int n_tiles;    // key tiles, 0: nothing to do
    int tile0;      // the first of them that a row sees
    int hidden;     // pages of that one that no row sees
    int head, table;
};

// This block's work in a round, in sections of a.section heads that take all tiles each; false at the end. Rounds of a
// section alternate in direction, which evens out a list that is sorted longest first.
TK_DEV bool work_get(const args &a, uint32_t round, work &w)
{
    const uint32_t g = gridDim.x, per = a.n_tiles * a.section, rounds = (per + g - 1) / g;
    const uint32_t head0 = round / rounds * a.section, r = round % rounds;
    if (head0 >= a.n_heads) {
        return false;
    }
    const uint32_t idx = r * g + (r & 1 ? g - 1 - blockIdx.x : blockIdx.x);
    w.n_tiles = 0;
    if (idx >= per) {
        return true; // a hole in the last round
    }
    const uint32_t e = a.tiles[idx / a.section];
    const tk_chunk c = a.chunks[e >> 16];
    const int first = (int)(e & 0xffff) * ROWS;
    w.head = (int)(head0 + idx % a.section);
    w.row0 = c.row0 + first;
    w.rows = min(c.n - first, ROWS);
    w.pos0 = c.pos0 + first;
    w.kv_len = c.pos0 + c.n;
    w.n_tiles = (w.pos0 + w.rows - 1) / KEYS + 1;
    const int seen = tk_window_start(w.pos0 + 1, a.window);
    w.tile0 = seen / KEYS;
    w.hidden = seen % KEYS / TK_BLOCK_TOK;
    w.table = c.table;
    return true;
}

struct ring_pos {
    uint32_t st, ph;
    TK_DEV_MEMBER void next()
    {
        if (++st == STAGES) {
            st = 0;
            ph ^= 1;
        }
    }
};

// ---- loaders ----
// One of four warps: K or V, one half of the head. A lane loads a page of the tile.
TK_DEV void load_half(const CUtensorMap *kv, uint32_t dst, uint32_t bar, int page0, int pages,
                      int half, int head, int layer, int32_t blk, int lane)
{
    if (lane == 0) {
        bar_expect(bar, (uint32_t)(pages - page0) * PAGE_HALF);
    }
    __syncwarp();
    if (lane >= page0 && lane < pages) {
        tma_5d_keep(dst + lane * PAGE_HALF, kv, bar, half * 64, 0, head, layer, blk);
    }
}

TK_DEV void load_q(const CUtensorMap *q, const smem_map &sm, const work &w, int lane)
{
    if (lane == 0) {
        bar_expect(sm.q_full, Q_BYTES);
        for (int i = 0; i < 4; i++) {
            tma_3d(sm.q + i * Q_HALF, q, sm.q_full, (i & 1) * 64, w.head, w.row0 + (i >> 1) * 64,
                   evict_first());
        }
    }
    __syncwarp();
}

TK_DEV void loader(const CUtensorMap *kv, const CUtensorMap *q, const smem_map &sm, const args &a,
                   int warp, int lane)
{
    const int v = warp >> 1, half = warp & 1;
    const uint32_t ring = (v ? sm.v : sm.k) + half * HALF, full = v ? sm.v_full : sm.k_full,
                   empty = v ? sm.v_empty : sm.k_empty;
    ring_pos p = {0, 0};
    uint32_t q_ph = 1;
    work w;
    for (uint32_t round = 0; work_get(a, round, w); round++) {
        if (w.n_tiles == 0) {
            continue;
        }
        const int head = w.head / (int)a.group + v * (int)a.n_kv;
        const int32_t *table = a.tables + (size_t)w.table * a.table_stride;
        int j = w.n_tiles - 1;
        int pages = (min(w.kv_len - j * KEYS, KEYS) + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
        int32_t blk = lane < pages ? table[j * TILE_PAGES + lane] : 0;
        if (warp == 3) { // V is needed last
            bar_wait(sm.q_empty, q_ph);
            q_ph ^= 1;
            load_q(q, sm, w, lane);
        }
        for (; j >= w.tile0; j--) {
            const int32_t next =
                j > w.tile0 && lane < TILE_PAGES ? table[(j - 1) * TILE_PAGES + lane] : 0;
            bar_wait(empty + 8 * p.st, p.ph ^ 1);
            load_half(kv, ring + p.st * KV_BYTES, full + 8 * p.st, j == w.tile0 ? w.hidden : 0,
                      pages, half, head, (int)a.layer, blk, lane);
            p.next();
            blk = next;
            pages = TILE_PAGES;
        }
    }
}

// ---- compute ----
TK_DEV void scores(float (&s)[64], uint32_t q, uint32_t k)
{
    const uint64_t dq = wg_desc(q, 0, 1024), dk = wg_desc(k, 0, 1024);
    wg_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        wgmma_ss(s, dq + (i >> 2) * (Q_HALF >> 4) + (i & 3) * 2,
                 dk + (i >> 2) * (HALF >> 4) + (i & 3) * 2, i != 0);
    }
    wg_commit();
}

TK_DEV void values(float (&o)[64], const uint32_t (&p)[32], uint32_t v)
{
    const uint64_t dv = wg_desc(v, HALF, 1024);
    wg_fence();
#pragma unroll
    for (int i = 0; i < 8; i++) {
        wgmma_rs_t(o, p + 4 * i, dv + i * (2048 >> 4));
    }
    wg_commit();
}

TK_DEV void release(uint32_t bar, int lane)
{
    if (lane == 0) {
        bar_arrive(bar);
    }
}

TK_DEV void mask_tile(float (&s)[64], int key0, int pos, int lane)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int key = key0 + 8 * (i >> 2) + 2 * (lane & 3) + (i & 1);
        if (key > pos + ((i >> 1) & 1) * 8) {
            s[i] = -INFINITY;
        }
    }
}

// Keys before the window of their row.
TK_DEV void mask_window(float (&s)[64], int key0, int pos, int window, int lane)
{
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int key = key0 + 8 * (i >> 2) + 2 * (lane & 3) + (i & 1);
        if (key <= pos + ((i >> 1) & 1) * 8 - window) {
            s[i] = -INFINITY;
        }
    }
}

struct rows_state {
    float m[2], l[2]; // running maximum of raw scores; this thread's part of the sum
};

// s becomes exp2((s - max) scale); returns the factors of the old O.
TK_DEV void softmax(float (&s)[64], rows_state &r, float (&f)[2], float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float mx = fmaxf(s[2 * h], s[2 * h + 1]);
#pragma unroll
        for (int j = 1; j < 16; j++) {
            mx = fmaxf(mx, fmaxf(s[4 * j + 2 * h], s[4 * j + 2 * h + 1]));
        }
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2));
        mx = fmaxf(mx, r.m[h]);
        const float base =
            mx == -INFINITY ? 0.f : mx * scale; // nothing visible yet: keep everything zero
        f[h] = mx == r.m[h] ? 1.f : exp2_fast(r.m[h] * scale - base); // exactly 1: see the loop
        r.m[h] = mx;
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float a = exp2_fast(s[4 * j + 2 * h] * scale - base);
            const float b = exp2_fast(s[4 * j + 2 * h + 1] * scale - base);
            s[4 * j + 2 * h] = a;
            s[4 * j + 2 * h + 1] = b;
            sum += a + b;
        }
        r.l[h] = r.l[h] * f[h] + sum;
    }
}

// A score accumulator is the A operand of P V as it stands: k step t takes d[8 t + 2 i], d[8 t + 2 i + 1].
// The products of P V run under the exponentials only if these come before the wait for them. ptxas moves the wait up
// inside a basic block, so the block ends here: at a branch that depends on every exponential and is never taken.
TK_DEV void softmax_first(const rows_state &r)
{
    if (__any_sync(~0u, r.l[0] + r.l[1] < 0.f)) {
        asm volatile("nanosleep.u32 0;" ::: "memory");
    }
}

TK_DEV void pack_p(uint32_t (&p)[32], const float (&s)[64])
{
#pragma unroll
    for (int i = 0; i < 32; i++) {
        p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
}

// Zeroes rows of V from row0 on that hold no token's numbers.
TK_DEV void zero_rows(uint32_t v, int row0, int rows, int tid)
{
    // Both warpgroups are here, for the same tile.
    for (int i = tid; i < rows * 16; i += CONSUMERS) {
        const int row = row0 + (i >> 4), half = (i >> 3) & 1;
        asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(v + half * HALF + row * 128 +
                                                                   (i & 7) * 16),
                     "r"(0)
                     : "memory");
    }
    proxy_fence();
    named_sync(BAR_PAIR, CONSUMERS);
}

TK_DEV void store_out(const float (&o)[64], const rows_state &r, const args &a, const work &w,
                      uint32_t q, int wg, int t)
{
    const int lane = t & 31, warp = t >> 5;
    float inv[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = r.l[h];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        inv[h] = 1.f / l;
    }
    // 16 rows of this warp: matrices are (rows 0-7, 8 dims), (rows 8-15, same dims), then the next 8 dims.
    const int row = warp * 16 + (lane & 15), x = (row & 7) << 4;
#pragma unroll
    for (int c = 0; c < 8; c++) {
        const uint32_t at =
            q + (c >> 2) * Q_HALF + row * 128 + (((c & 3) * 32 + (lane >> 4) * 16) ^ x);
        stsm_x4(at, pack_bf16(o[8 * c] * inv[0], o[8 * c + 1] * inv[0]),
                pack_bf16(o[8 * c + 2] * inv[1], o[8 * c + 3] * inv[1]),
                pack_bf16(o[8 * c + 4] * inv[0], o[8 * c + 5] * inv[0]),
                pack_bf16(o[8 * c + 6] * inv[1], o[8 * c + 7] * inv[1]));
    }
    __syncwarp();
    // Each warp copies its own rows: 16 lanes to a row of 256 bytes.
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int rr = warp * 16 + i * 2 + (lane >> 4), c = lane & 15;
        uint4 v;
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(q + (c >> 3) * Q_HALF + rr * 128 + (((c & 7) * 16) ^ ((rr & 7) << 4)))
                     : "memory");
        if (wg * 64 + rr < w.rows) {
            tk_bf16 *dst =
                a.out + (size_t)(w.row0 + wg * 64 + rr) * a.out_stride + (size_t)w.head * D;
            reinterpret_cast<uint4 *>(dst)[c] = v;
        }
    }
}

TK_DEV void compute(const smem_map &sm, const args &a, int wg, int t)
{
    const int lane = t & 31, warp = t >> 5;
    const uint32_t q = sm.q + wg * 2 * Q_HALF;
    const int mine = BAR_WG0 + wg, other = BAR_WG0 + (wg ^ 1);
    ring_pos kp = {0, 0}, vp = {0, 0};
    uint32_t q_ph = 0;
    work w;
    if (wg == 1) {
        named_arrive(BAR_WG0, CONSUMERS); // warpgroup 0 goes first
    }
    for (uint32_t round = 0; work_get(a, round, w); round++) {
        if (w.n_tiles == 0) {
            continue;
        }
        const int pos = w.pos0 + wg * 64 + warp * 16 + lane / 4;
        const int tail = w.kv_len - (w.n_tiles - 1) * KEYS; // keys that exist in the last tile
        float s[64], o[64], f[2];
        uint32_t p[32];
        rows_state r = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
        for (int i = 0; i < 64; i++) {
            o[i] = 0;
        }
        int j = w.n_tiles - 1;
        bar_wait(sm.q_full, q_ph);
        q_ph ^= 1;
        bar_wait(sm.k_full + 8 * kp.st, kp.ph);
        named_sync(mine, CONSUMERS);
        scores(s, q, sm.k + kp.st * KV_BYTES);
        named_arrive(other, CONSUMERS);
        wg_wait<0>();
        release(sm.k_empty + 8 * kp.st, lane);
        kp.next();
        mask_tile(s, j * KEYS, pos, lane);
        if (a.window != 0) {
            mask_window(s, j * KEYS, pos, a.window, lane);
        }
        softmax(s, r, f, a.scale_log2);
        pack_p(p, s);
        if (tail < KEYS) {
            bar_wait(sm.v_full + 8 * vp.st, vp.ph);
            zero_rows(sm.v + vp.st * KV_BYTES, tail, KEYS - tail, wg * 128 + t);
        }
        for (j--; j >= w.tile0; j--) {
            bar_wait(sm.k_full + 8 * kp.st, kp.ph);
            named_sync(mine, CONSUMERS);
            scores(s, q, sm.k + kp.st * KV_BYTES);
            bar_wait(sm.v_full + 8 * vp.st, vp.ph);
            values(o, p, sm.v + vp.st * KV_BYTES);
            named_arrive(other, CONSUMERS);
            wg_wait<1>();
            release(sm.k_empty + 8 * kp.st, lane);
            kp.next();
            if (j * KEYS + KEYS - 1 > w.pos0) {
                mask_tile(s, j * KEYS, pos, lane);
            }
            if (a.window != 0 && j * KEYS <= w.pos0 + ROWS - 1 - a.window) {
                mask_window(s, j * KEYS, pos, a.window, lane);
            }
            softmax(s, r, f, a.scale_log2);
            softmax_first(r);
            wg_wait<0>();
            release(sm.v_empty + 8 * vp.st, lane);
            vp.next();
            // Multiplying by 1 is exact, so leaving it out where no maximum moved changes no bit.
            if (__any_sync(~0u, f[0] != 1.f || f[1] != 1.f)) {
#pragma unroll
                for (int i = 0; i < 64; i++) {
                    o[i] *= f[(i >> 1) & 1];
                }
            }
            pack_p(p, s);
        }
        bar_wait(sm.v_full + 8 * vp.st, vp.ph);
        if (w.hidden != 0) {
            zero_rows(sm.v + vp.st * KV_BYTES, 0, w.hidden * TK_BLOCK_TOK, wg * 128 + t);
        }
        values(o, p, sm.v + vp.st * KV_BYTES);
        wg_wait<0>();
        release(sm.v_empty + 8 * vp.st, lane);
        vp.next();
        store_out(o, r, a, w, q, wg, t);
        proxy_fence(); // the next TMA write of Q comes after our use of its memory
        bar_arrive(sm.q_empty);
    }
}

__global__ void __launch_bounds__(THREADS, 1)
    attn_prefill_kernel(const __grid_constant__ CUtensorMap kv,
                        const __grid_constant__ CUtensorMap q, const args a)
{
    extern __shared__ unsigned char raw[];
    smem_map sm;
    sm.q = smem_u32(raw);
    if (sm.q % 1024 != 0) {
        __trap();
    }
    sm.k = sm.q + Q_BYTES;
    sm.v = sm.k + STAGES * KV_BYTES;
    sm.q_full = sm.v + STAGES * KV_BYTES;
    sm.q_empty = sm.q_full + 8;
    sm.k_full = sm.q_full + 16;
    sm.k_empty = sm.k_full + 8 * STAGES;
    sm.v_full = sm.k_empty + 8 * STAGES;
    sm.v_empty = sm.v_full + 8 * STAGES;
    const int wg = threadIdx.x / 128, t = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        bar_init(sm.q_full, 1);
        bar_init(sm.q_empty, CONSUMERS);
        for (int i = 0; i < STAGES; i++) {
            bar_init(sm.k_full + 8 * i, 2); // two halves
            bar_init(sm.v_full + 8 * i, 2);
            bar_init(sm.k_empty + 8 * i, CONSUMERS / 32);
            bar_init(sm.v_empty + 8 * i, CONSUMERS / 32);
        }
        bar_init_fence();
        tma_prefetch_map(&kv);
        tma_prefetch_map(&q);
    }
    __syncthreads();
    if (wg == 2) {
        asm volatile(
            "setmaxnreg.dec.sync.aligned.u32 40;"); // 128 x 40 + 256 x 232 = what 384 x 168 leave
        loader(&kv, &q, sm, a, t >> 5, t & 31);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        compute(sm, a, wg, t);
    }
}

// Few heads at once keep their K and V in L2; SECTION_ROUNDS rounds keep the blocks evenly busy. It moves no bit.
constexpr uint32_t SECTION_ROUNDS = 7;
uint32_t section_heads(const struct tk_attn_prefill *p, uint32_t grid)
{
    uint32_t kv_heads = p->n_kv_heads;
    const uint32_t group = p->n_heads / p->n_kv_heads;
    while (kv_heads % 2 == 0 && p->n_tiles * (kv_heads / 2 * group) >= SECTION_ROUNDS * grid) {
        kv_heads /= 2;
    }
    return kv_heads * group;
}

} // namespace

extern "C" td_err tk_attn_prefill(tk_stream s, const struct tk_attn_prefill *p)
{
    if (p->head_dim != (uint32_t)D || !tk_uses_hopper()) {
        return tk_attn_prefill_sm80(s, p);
    }
    if (p->n_kv_heads == 0 || p->n_heads % p->n_kv_heads != 0 || p->n_tiles == 0 ||
        p->out_stride % 8 != 0 || p->window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    const tk_dev *dev = tk_device();
    if (dev == nullptr) {
        return TD_ERR_DEVICE;
    }
    args a;
    a.out = p->out;
    a.chunks = p->chunks;
    a.tiles = p->tiles;
    a.tables = p->tables;
    a.n_tiles = p->n_tiles;
    a.n_heads = p->n_heads;
    a.group = p->n_heads / p->n_kv_heads;
    a.n_kv = p->n_kv_heads;
    a.layer = p->layer;
    a.table_stride = p->table_stride;
    a.out_stride = p->out_stride;
    a.window = (int)p->window;
    a.scale_log2 = p->scale * 1.44269504088896f;
    TD_TRY(tk_prepare(attn_prefill_kernel, SMEM));
    const uint32_t total = p->n_tiles * p->n_heads, grid = total < dev->sms ? total : dev->sms;
    a.section = section_heads(p, grid);
    tk_launch l(s, grid, THREADS, SMEM, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, attn_prefill_kernel,
                                   *(const CUtensorMap *)(const void *)p->kv->bytes,
                                   *(const CUtensorMap *)(const void *)p->q->bytes, a));
    return TD_OK;
}
