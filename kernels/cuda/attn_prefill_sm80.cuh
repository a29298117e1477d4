// attn_prefill_sm80.cuh - causal prefill attention over paged KV without Hopper's instructions: the kernel.
//
// Shapes: q [rows][n_heads][D] bf16, D = 64 or 128; KV pool of tk_cuda.h; out [rows][n_heads][D]; any group size. A chunk
//   is n rows at positions pos0 ..; its keys 0 .. pos0 + n - 1 lie in the pool already. Alignment: q 16 bytes, out 4.
// Design: FlashAttention-2. A block computes TK_TILE_ROWS query rows of one head, 16 to each of eight warps, against tiles
//   of 64 keys, which start at multiples of 64 from position 0 whatever the chunking, last tile first. Q lives in registers
//   as A fragments; S = Q K^T and O += P V with mma.m16n8k16, P straight from the score accumulators. K and V come page by
//   page with cp.async into a ring of two tiles, rows of D swizzled in columns of 16 bytes. Blocks are dealt most keys
//   first, the heads of a tile next to each other, so that a KV head is read from device memory once.
// A window leaves out tiles that no row of a query tile sees, and pages.
// Exactness: a masked tile leaves m, l and O bit-equal, so a row's result does not depend on the chunk it came in. Rows of
//   V without a token are zeros: 0 x NaN of a stale page would reach O.
// Bound by: the matrix units (mma.sync). Measured: see NOTES.md.
#pragma once
#ifndef TK_EMULATE
#include "kernels/cuda/ptx.cuh"
#endif
#include "kernels/tk_cuda.h"

namespace
{

constexpr int WARPS = TK_TILE_ROWS / 16;
constexpr int THREADS = WARPS * 32;
constexpr int KEYS = 64; // of a tile; part of the numerics
constexpr int STAGES = 2;

struct args {
    const tk_bf16 *q;
    tk_bf16 *out;
    const tk_chunk *chunks;
    const uint32_t *tiles;
    const int32_t *tables;
    const unsigned char *pool; // of this layer, behind block 0's header
    uint64_t block_step;
    uint32_t n_heads, n_kv, group, table_stride, q_stride, out_stride;
    int window; // 0: none
    float scale_log2;
};

template <int D> constexpr uint32_t tile_bytes() // K or V
{
    return KEYS * D * 2;
}
template <int D> constexpr uint32_t q_bytes()
{
    return TK_TILE_ROWS * D * 2;
}
template <int D> constexpr uint32_t smem_bytes()
{
    return q_bytes<D>() + STAGES * 2 * tile_bytes<D>();
}

struct work {
    int row0, rows;     // first row in q and out; rows that exist
    int pos0;           // position of the first row
    int seen0;          // pages before this position are not read
    int kv_len;         // keys in the pool
    int tile0, n_tiles; // key tiles: from tile0 to n_tiles - 1
    uint32_t head;
    const int32_t *table;
};

TK_DEV work work_of(const args &a, uint32_t block)
{
    const uint32_t e = a.tiles[block / a.n_heads];
    const tk_chunk c = a.chunks[e >> 16];
    const int first = (int)(e & 0xffff) * TK_TILE_ROWS;
    work w;
    w.head = block % a.n_heads;
    w.row0 = c.row0 + first;
    w.rows = min(c.n - first, TK_TILE_ROWS);
    w.pos0 = c.pos0 + first;
    w.kv_len = c.pos0 + c.n;
    w.n_tiles = (w.pos0 + w.rows - 1) / KEYS + 1;
    const int seen = tk_window_start(w.pos0 + 1, a.window);
    w.tile0 = seen / KEYS;
    w.seen0 = seen / TK_BLOCK_TOK * TK_BLOCK_TOK;
    w.table = a.tables + (size_t)c.table * a.table_stride;
    return w;
}

// Address of 16-byte column c of a row of D in a swizzled tile.
template <int D> TK_DEV uint32_t at(uint32_t tile, int row, int c)
{
    return tile + row * (D * 2) + ((c ^ (row & 7)) << 4);
}

// Q rows that do not exist become zeros.
template <int D> TK_DEV void load_q(const args &a, const work &w, uint32_t q)
{
    constexpr int COLS = D / 8;
    for (int i = (int)threadIdx.x; i < TK_TILE_ROWS * COLS; i += THREADS) {
        const int row = i / COLS, c = i % COLS, from = row < w.rows ? row : 0;
        cp_async16(at<D>(q, row, c),
                   a.q + (size_t)(w.row0 + from) * a.q_stride + (size_t)w.head * D + c * 8,
                   row < w.rows ? 16 : 0);
    }
}

// Key tile j: K, then V. Rows without a token, and pages that nobody sees, become zeros; their table entries may be anything.
template <int D> TK_DEV void load_tile(const args &a, const work &w, int j, uint32_t k)
{
    constexpr int COLS = D / 8;
    const uint32_t head = w.head / a.group;
    for (int i = (int)threadIdx.x; i < KEYS * COLS; i += THREADS) {
        const int row = i / COLS, c = i % COLS, key = j * KEYS + row;
        const bool real = key >= w.seen0 && key < w.kv_len;
        const int32_t block = real ? w.table[key / TK_BLOCK_TOK] : 0;
        const unsigned char *src = a.pool + (real ? (uint64_t)block * a.block_step : 0) +
                                   ((size_t)head * TK_BLOCK_TOK + key % TK_BLOCK_TOK) * D * 2 +
                                   c * 16;
        cp_async16(at<D>(k, row, c), src, real ? 16 : 0);
        cp_async16(at<D>(k + tile_bytes<D>(), row, c), src + (size_t)a.n_kv * TK_BLOCK_TOK * D * 2,
                   real ? 16 : 0);
    }
}

// This warp's 16 rows of Q as A fragments.
template <int D> TK_DEV void q_fragments(uint32_t (&qf)[D / 16][4], uint32_t q, int warp, int lane)
{
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        ldsm_x4(qf[ks], at<D>(q, warp * 16 + (lane & 15), 2 * ks + (lane >> 4)));
    }
}

// s[n-tile][..]: raw scores of 16 rows against 64 keys.
template <int D>
TK_DEV void scores(float (&s)[KEYS / 8][4], const uint32_t (&qf)[D / 16][4], uint32_t k, int lane)
{
    const int key = (lane & 7) + ((lane >> 4) << 3), half = (lane >> 3) & 1;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    }
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
#pragma unroll
        for (int n = 0; n < KEYS / 8; n += 2) {
            uint32_t b[4]; // two tiles of 8 keys
            ldsm_x4(b, at<D>(k, n * 8 + key, 2 * ks + half));
            mma16816(s[n], qf[ks], b[0], b[1]);
            mma16816(s[n + 1], qf[ks], b[2], b[3]);
        }
    }
}

// Keys behind their row, and those before its window. pos: of the thread's first row; the second is 8 on.
TK_DEV void mask_tile(float (&s)[KEYS / 8][4], int key0, int pos, int window, int lane)
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = key0 + n * 8 + 2 * (lane & 3) + (i & 1), row = pos + (i >> 1) * 8;
            if (key > row || (window != 0 && key <= row - window)) {
                s[n][i] = -INFINITY;
            }
        }
    }
}

struct rows_state {
    float m[2], l[2]; // running maximum of raw scores; this thread's part of the sum
};

// s becomes exp2((s - max) scale); f: the factors of the old O, exactly 1 where the maximum stays.
TK_DEV void softmax(float (&s)[KEYS / 8][4], rows_state &r, float (&f)[2], float scale)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float mx = s[0][2 * h];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            mx = fmaxf(mx, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        }
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 1));
        mx = fmaxf(mx, __shfl_xor_sync(~0u, mx, 2));
        mx = fmaxf(mx, r.m[h]);
        const float base =
            mx == -INFINITY ? 0.f : mx * scale; // nothing visible yet: keep everything zero
        f[h] = mx == r.m[h] ? 1.f : exp2_fast(r.m[h] * scale - base);
        r.m[h] = mx;
        float sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const float x = exp2_fast(s[n][2 * h] * scale - base);
            const float y = exp2_fast(s[n][2 * h + 1] * scale - base);
            s[n][2 * h] = x;
            s[n][2 * h + 1] = y;
            sum += x + y;
        }
        r.l[h] = r.l[h] * f[h] + sum;
    }
}

// O += P V. The score accumulators of two tiles of 8 keys are the A operand of 16 keys as they stand.
template <int D>
TK_DEV void values(float (&o)[D / 8][4], const float (&s)[KEYS / 8][4], uint32_t v, int lane)
{
#pragma unroll
    for (int ks = 0; ks < KEYS / 16; ks++) {
        const uint32_t p[4] = {pack_bf16(s[2 * ks][0], s[2 * ks][1]),
                               pack_bf16(s[2 * ks][2], s[2 * ks][3]),
                               pack_bf16(s[2 * ks + 1][0], s[2 * ks + 1][1]),
                               pack_bf16(s[2 * ks + 1][2], s[2 * ks + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t b[4]; // two tiles of 8 dims
            ldsm_x4_t(b, at<D>(v, ks * 16 + (lane & 15), n + (lane >> 4)));
            mma16816(o[n], p, b[0], b[1]);
            mma16816(o[n + 1], p, b[2], b[3]);
        }
    }
}

template <int D>
TK_DEV void store_out(const float (&o)[D / 8][4], const rows_state &r, const args &a, const work &w,
                      int warp, int lane)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = r.l[h];
        l += __shfl_xor_sync(~0u, l, 1);
        l += __shfl_xor_sync(~0u, l, 2);
        const float inv = 1.f / l;
        const int row = warp * 16 + lane / 4 + h * 8;
        if (row < w.rows) {
            uint32_t *dst = reinterpret_cast<uint32_t *>(
                a.out + (size_t)(w.row0 + row) * a.out_stride + (size_t)w.head * D);
#pragma unroll
            for (int n = 0; n < D / 8; n++) {
                dst[n * 4 + (lane & 3)] = pack_bf16(o[n][2 * h] * inv, o[n][2 * h + 1] * inv);
            }
        }
    }
}

// One key tile of this warp's rows.
template <int D>
TK_DEV void tile_step(float (&o)[D / 8][4], rows_state &r, const uint32_t (&qf)[D / 16][4],
                      const args &a, const work &w, int j, uint32_t k)
{
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    const int pos = w.pos0 + warp * 16 + lane / 4;
    float s[KEYS / 8][4], f[2];
    scores<D>(s, qf, k, lane);
    if (j * KEYS + KEYS - 1 > w.pos0 ||
        (a.window != 0 && j * KEYS <= w.pos0 + TK_TILE_ROWS - 1 - a.window)) {
        mask_tile(s, j * KEYS, pos, a.window, lane);
    }
    softmax(s, r, f, a.scale_log2);
    if (__any_sync(~0u, f[0] != 1.f || f[1] != 1.f)) { // times 1 is exact: no bit depends on it
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[n][i] *= f[i >> 1];
            }
        }
    }
    values<D>(o, s, k + tile_bytes<D>(), lane);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1) attn_prefill_sm80_kernel(const args a)
{
    TK_DYNAMIC_SHARED(raw);
    const work w = work_of(a, blockIdx.x);
    const uint32_t q = smem_u32(raw), ring = q + q_bytes<D>();
    const int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
    uint32_t qf[D / 16][4];
    float o[D / 8][4];
    rows_state r = {{-INFINITY, -INFINITY}, {0, 0}};
    load_q<D>(a, w, q);
    load_tile<D>(a, w, w.n_tiles - 1, ring);
    cp_async_commit();
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0;
    }
    uint32_t used = 0;
    for (int j = w.n_tiles - 1; j >= w.tile0; j--, used++) {
        if (j > w.tile0) {
            load_tile<D>(a, w, j - 1, ring + (used + 1) % STAGES * 2 * tile_bytes<D>());
        }
        cp_async_commit(); // perhaps an empty group: the count stays the same
        cp_async_wait<1>();
        __syncthreads();
        if (used == 0) {
            q_fragments<D>(qf, q, warp, lane);
        }
        tile_step<D>(o, r, qf, a, w, j, ring + used % STAGES * 2 * tile_bytes<D>());
        __syncthreads(); // everybody has read this stage
    }
    store_out<D>(o, r, a, w, warp, lane);
}

static td_err args_of(const struct tk_attn_prefill *p, args &a)
{
    if ((p->head_dim != 64 && p->head_dim != 128) || p->n_kv_heads == 0 ||
        p->n_heads % p->n_kv_heads != 0 || p->n_tiles == 0 || p->out_stride % 2 != 0 ||
        p->q->row_step % 8 != 0 || p->window > INT32_MAX ||
        (uint64_t)p->n_tiles * p->n_heads > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    a.q = static_cast<const tk_bf16 *>(p->q->base);
    a.out = p->out;
    a.chunks = p->chunks;
    a.tiles = p->tiles;
    a.tables = p->tables;
    a.pool = static_cast<const unsigned char *>(p->kv->base) + p->layer * p->kv->layer_step;
    a.block_step = p->kv->block_step;
    a.n_heads = p->n_heads;
    a.n_kv = p->n_kv_heads;
    a.group = p->n_heads / p->n_kv_heads;
    a.table_stride = p->table_stride;
    a.q_stride = p->q->row_step;
    a.out_stride = p->out_stride;
    a.window = (int)p->window;
    a.scale_log2 = p->scale * 1.44269504088896f;
    return TD_OK;
}

} // namespace
