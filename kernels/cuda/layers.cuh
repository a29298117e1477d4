// layers.cuh - whole layers of a decode step in one launch: attention, o, gate and up, down, the next layer's qkv, and again.
//
// Shapes, bits: as tk_attn_decode (head_dim 128, rope and append fused) and tk_flat with 1 to 8 rows; every order of sums is theirs.
// Design: flat_chain.cu's, whose products, parts and tags these are, over all layers: one block per SM for the whole launch;
//   its loader of weights never waits for anybody, so no boundary stops the stream of weights before the rings are full.
//   Attention is a stage like the products. Its items (sequence, chunk, KV head) are dealt to the blocks that have no unit of
//   the qkv before it first. An item's KV pages go through the ring of weights, two to a stage, ahead of o's weights: the
//   loader brings them while qkv is computed. The consumers' first four warps are an item's four warps, the other four merge.
//   Nobody finishes qkv where attention follows in the launch: an item's block waits for the tagged parts of K of its
//   head's tiles (head_dim = TILE: a head of q, k or v is a tile), adds and scales them as tk_flat does, and has its rows in
//   shared memory: one trip through L2 instead of three. What an item leaves is tagged, too, so that whoever sums a row
//   (sequence, query head) waits for the numbers themselves; eight warps make its eight interleaved sums. One or two rows' output, of up to 64 heads,
//   is left with tags again, and the scalers put it into o's ring; of more, the loader of tokens waits for the count of
//   blocks that are done, as behind a product.
//   Who does what: layers_plan.h. All blocks must be able to run at once.
// Bound by: device memory (weight bytes). Measured: NOTES.md.
#pragma once
#include <string.h>

#include "kernels/cuda/attn_decode.cuh"
#include "kernels/cuda/flat_chain.cuh"
#include "kernels/cuda/layers_plan.h"

namespace
{

constexpr int N = 8;   // tokens of a product
constexpr int D = 128; // of a head
constexpr int PAGE = stage_bytes<D>();
constexpr int PAGES_AT_ONCE = W_BYTES / PAGE; // in a stage of the ring of weights
constexpr int ROW = D + 8;                    // a head's row in shared memory: no bank conflicts
constexpr int W_STAGES = shape<N>::W_STAGES, X_STAGES = 14, X_BYTES = N * 128;
constexpr uint32_t IN_FLIGHT = shape<N>::IN_FLIGHT;
static_assert(D == TILE && PAGES_AT_ONCE == 2 && PARTS == CONSUMERS / 32 && 2 * WARPS == PARTS);

// The work area: the tags used so far, finished blocks of each kind of stage (a line each), the products' parts, those of
// the qkv that attention sums (nobody may wait for all of them before the next product's come), attention's.
constexpr uint32_t HEAD_WORDS = LINE * (1 + TK_STAGES);
constexpr uint32_t FLAT_PARTS = TARGET_BLOCKS * N * TILE;
constexpr uint32_t HEADS = TK_LAYERS_ITEMS * MAX_G; // of items: a row and a pair (max, sum) each
constexpr uint32_t OUT_WORDS =
    TK_LAYERS_HEADS * D / 2; // attention's output of a token, two numbers a word
constexpr uint32_t ALL_PARTS =
    2 * FLAT_PARTS + HEADS * D + HEADS * 2 + TK_LAYERS_TAGGED * OUT_WORDS;
constexpr size_t WORK_BYTES = HEAD_WORDS * sizeof(uint32_t) + sizeof(uint2) * ALL_PARTS;
constexpr uint32_t TAGS =
    UINT32_MAX - 2 * TK_LAYERS_MAX * TK_STAGES; // then they begin again, with zeros in the parts

struct product {
    CUtensorMap x;
    args a; // its gain: the layer's
    uint32_t units;
    bool split; // finished by shares
};

struct layers {
    product st[TK_STAGES - 1];
    attn_args at; // its pool: the first layer's
    uint32_t n_stages, rows;
    bool tagged; // o's tokens come with tags
    size_t slice_bytes;
    uint32_t *work, *stuck;
    uint64_t *times;
    const tk_bf16 *gain[TK_LAYERS_MAX][2];     // o's, down's
    CUtensorMap map[TK_LAYERS_MAX][TK_STAGES]; // KV; o, gate and up, down, the next qkv
};
static_assert(sizeof(layers) <= 32764, "parameters of a kernel");

// Shared memory behind the rings.
struct shared_area {
    float scale[64];
    uint64_t bars[2 * (W_STAGES + X_STAGES) + 2];
    float2 ml[WARPS * MAX_G];
    __nv_bfloat16 rows[(MAX_G + 2) * ROW]; // an item's q, k, v
    float o[WARPS * MAX_G * o_stride<D>()];
};
constexpr int RINGS = W_STAGES * W_BYTES + X_STAGES * X_BYTES;
constexpr int SMEM = RINGS + (int)sizeof(shared_area);
static_assert(SMEM <= 232448 && PARTS * (2 + D) <= WARPS * MAX_G * o_stride<D>());

// What a block's warps share.
struct block {
    rings sm;
    uint32_t ready;   // barrier: the input of a stage with a norm is there
    uint32_t drained; // barrier, where tagged: all tokens before o's are in the ring or used
    shared_area *area;
    uint32_t n_items;
    bool tagged; // as told, where there is an item
};

TK_DEV const product &product_of(const layers &c, uint32_t kind)
{
    return c.st[kind - 1];
}
TK_DEV bool is_last(const layers &c, uint32_t s)
{
    return s + 1 == c.n_stages;
}
TK_DEV uint32_t *done_at(const layers &c, uint32_t kind)
{
    return c.work + LINE * (1 + kind);
}
// [unit][token][row of the tile] of (number, tag)
TK_DEV uint2 *parts_at(const layers &c)
{
    return reinterpret_cast<uint2 *>(c.work + HEAD_WORDS);
}
TK_DEV uint2 *qkv_parts_at(const layers &c)
{
    return parts_at(c) + FLAT_PARTS;
}
// [item][query head of the group][dim], and [item][MAX_G] of (max, sum)
TK_DEV uint2 *item_o_at(const layers &c, size_t item, uint32_t head)
{
    return parts_at(c) + 2 * FLAT_PARTS + (item * c.at.group + head) * D;
}
TK_DEV uint2 *item_ml_at(const layers &c, size_t item, uint32_t head)
{
    return parts_at(c) + 2 * FLAT_PARTS + (size_t)HEADS * D + (item * MAX_G + head) * 2;
}
// [token][two neighbours of its output]
TK_DEV uint2 *out_at(const layers &c, uint32_t tok, uint32_t word)
{
    return parts_at(c) + 2 * FLAT_PARTS + (size_t)HEADS * (D + 2) + tok * OUT_WORDS + word;
}
// Of what stage s leaves: unlike any that lies in the work area, where zeros are nobody's.
TK_DEV uint32_t tag_of(uint32_t base, uint32_t s)
{
    return base + s + 1;
}

TK_DEV bool has_unit(const layers &c, uint32_t kind)
{
    return tk_stage_first(kind, blockIdx.x, gridDim.x) < product_of(c, kind).units;
}
TK_DEV bool has_item(const block &b)
{
    return tk_stage_first(TK_STAGE_ATTN, blockIdx.x, gridDim.x) < b.n_items;
}
TK_DEV bool is_scaled(const layers &c, const block &b, uint32_t s)
{
    const uint32_t kind = tk_stage_kind(s);
    return tk_stage_is_scaled(kind, is_last(c, s), has_unit(c, kind), has_item(b));
}

// Blocks that are done with stage s when all are, of this launch's first layers to that one.
TK_DEV uint32_t all_done(const layers &c, const block &b, uint32_t s)
{
    const uint32_t kind = tk_stage_kind(s);
    if (kind == TK_STAGE_QKV) {
        return tk_stage_blocks(product_of(c, kind).units, 0, gridDim.x); // only the last one tells
    }
    return (tk_stage_layer(s) + 1) *
           (kind == TK_STAGE_ATTN ? tk_stage_blocks(b.n_items, c.rows, gridDim.x)
                                  : tk_stage_blocks(product_of(c, kind).units, 0, gridDim.x));
}

// One thread: what stage s > 0 reads is written by everybody. Attention's items wait for tags instead.
TK_DEV void wait_input(const layers &c, const block &b, uint32_t s)
{
    const uint32_t all = all_done(c, b, s - 1), *done = done_at(c, tk_stage_kind(s - 1));
    spin wait(STUCK_DONE, s);
    while ((wait.seen = ld_acquire(done)) < all) {
        __nanosleep(POLL_NS);
        wait.again();
    }
}

// In builds with TK_LAYER_TIMES: when a block had a stage's input (0) and was done with it (1).
TK_DEV void stamp(const layers &c, uint32_t s, uint32_t which)
{
#ifdef TK_LAYER_TIMES
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    if (c.times != nullptr) {
        c.times[((size_t)s * gridDim.x + blockIdx.x) * 2 + which] = t;
    }
#else
    (void)c, (void)s, (void)which;
#endif
}

// ---- attention's items ----
struct item {
    uint32_t seq, head;
    int len, first, tok; // of the sequence; the chunk's position, its tokens
    int page0, pages;    // of the chunk: the first that is seen, the end
    int32_t newest;      // the block of the newest token, where the chunk has it; else -1
};
TK_DEV item item_at(const attn_args &a, uint32_t i)
{
    const uint32_t entry = __ldcg(a.plan + 1 + TK_MAX_SEQS + i / a.n_kv);
    item t;
    t.seq = entry >> 16;
    t.head = i % a.n_kv;
    t.len = __ldcg(a.lens + t.seq);
    t.first = entry_first(entry);
    t.tok = min(t.len - t.first, entry_tok(entry));
    t.page0 = max(tk_window_start(t.len, a.window) - t.first, 0) / TK_BLOCK_TOK;
    t.pages = (t.tok + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
    t.newest = -1;
    if (t.first + t.tok == t.len) {
        t.newest = __ldcg(a.tables + (size_t)t.seq * a.table_step + (t.len - 1) / TK_BLOCK_TOK);
    }
    return t;
}

// ---- loader of weights and KV: one thread ----
struct feed {
    ring_pos<W_STAGES> p, landed;
    uint32_t flying;
    uint64_t pol;
};

// The next stage of the ring, when it is free and few enough loads fly.
TK_DEV uint32_t feed_slot(feed &f, const rings &sm)
{
    bar_wait(sm.w_empty + 8 * f.p.st, f.p.ph);
    while (f.flying >= IN_FLIGHT) {
        bar_wait(sm.w_full + 8 * f.landed.st, f.landed.ph);
        f.landed.next();
        f.flying--;
    }
    const uint32_t st = f.p.st;
    f.p.next();
    f.flying++;
    return st;
}

TK_DEV void load_item(feed &f, const layers &c, const block &b, uint32_t layer, uint32_t i)
{
    const attn_args &a = c.at;
    const CUtensorMap *map = &c.map[layer][TK_STAGE_ATTN];
    const item t = item_at(a, i);
    const int32_t *table = a.tables + (size_t)t.seq * a.table_step + t.first / TK_BLOCK_TOK;
    int32_t page[PAGES_AT_ONCE];
#pragma unroll
    for (int j = 0; j < PAGES_AT_ONCE; j++) {
        page[j] = t.page0 + j < t.pages ? __ldcg(table + t.page0 + j) : 0;
    }
    for (int p = t.page0; p < t.pages; p += PAGES_AT_ONCE) {
        int32_t now[PAGES_AT_ONCE];
#pragma unroll
        for (int j = 0; j < PAGES_AT_ONCE; j++) { // the next ones are on their way while we wait
            now[j] = page[j];
            const int next = p + PAGES_AT_ONCE + j;
            page[j] = next < t.pages ? __ldcg(table + next) : 0;
        }
        const uint32_t st = feed_slot(f, b.sm), bar = b.sm.w_full + 8 * st;
        bar_expect(bar, min(t.pages - p, PAGES_AT_ONCE) * PAGE);
#pragma unroll
        for (int j = 0; j < PAGES_AT_ONCE; j++) {
            if (p + j < t.pages) {
                tma_5d(b.sm.w + st * W_BYTES + j * PAGE, map, bar, 0, 0, (int)t.head, 0, now[j],
                       f.pol);
            }
        }
    }
}

TK_DEV void load_product(feed &f, const layers &c, const block &b, uint32_t layer, uint32_t kind)
{
    const product &st = product_of(c, kind);
    for (uint32_t u = tk_stage_first(kind, blockIdx.x, gridDim.x); u < st.units; u += gridDim.x) {
        const unit n = unit_of(st.a, u);
        for (uint32_t k = n.k0; k < n.k1; k++) {
            const uint32_t at = feed_slot(f, b.sm), bar = b.sm.w_full + 8 * at;
            bar_expect(bar, W_BYTES);
            tma_4d(b.sm.w + at * W_BYTES, &c.map[layer][kind], bar, 0, 0, (int)k, (int)n.tile,
                   f.pol);
        }
    }
}

// Waits for nobody but the block's own consumers: neither weights nor KV pages are this launch's or the one's before. The newest
// token's page is brought as it is and completed by append.
TK_DEV void load_w(const layers &c, const block &b)
{
    feed f = {{0, 1}, {0, 0}, 0, evict_first()};
    pdl_launch();
    for (uint32_t s = 0; s < c.n_stages; s++) {
        const uint32_t kind = tk_stage_kind(s), layer = tk_stage_layer(s);
        if (kind != TK_STAGE_ATTN) {
            load_product(f, c, b, layer, kind);
            continue;
        }
        for (uint32_t i = tk_stage_first(kind, blockIdx.x, gridDim.x); i < b.n_items;
             i += gridDim.x) {
            load_item(f, c, b, layer, i);
        }
        for (uint32_t k = 0; k < TK_STAGES && s + TK_STAGES + k < c.n_stages; k++) {
            tma_prefetch_map(&c.map[layer + 1][k]);
        }
    }
}

// Past the stages of the ring that somebody else fills.
TK_DEV void skip_slices(const layers &c, uint32_t kind, ring_pos<X_STAGES> &p)
{
    const product &st = product_of(c, kind);
    for (uint32_t u = tk_stage_first(kind, blockIdx.x, gridDim.x); u < st.units; u += gridDim.x) {
        const unit n = unit_of(st.a, u);
        for (uint32_t k = n.k0; k < n.k1; k++) {
            p.next();
        }
    }
}

// ---- loader of tokens: one thread. Tells the scalers when the input of a stage with a norm is there ----
TK_DEV void load_x(const layers &c, const block &b)
{
    ring_pos<X_STAGES> p = {0, 1};
    pdl_wait();
    for (uint32_t s = 0; s < c.n_stages; s++) {
        const uint32_t kind = tk_stage_kind(s);
        if (kind == TK_STAGE_ATTN) {
            continue;
        }
        const product &st = product_of(c, kind);
        const bool scaled = is_scaled(c, b, s);
        if (!scaled && !has_unit(c, kind)) {
            continue;
        }
        if (kind == TK_STAGE_O && b.tagged) { // the scalers bring them
            skip_slices(c, kind, p);
            continue;
        }
        wait_input(c, b, s);
        stamp(c, s, 0);
        if (scaled) {
            bar_arrive(b.ready);
        }
        proxy_fence_global(); // others' ordinary stores before our copies
        for (uint32_t u = tk_stage_first(kind, blockIdx.x, gridDim.x); u < st.units;
             u += gridDim.x) {
            const unit n = unit_of(st.a, u);
            for (uint32_t k = n.k0; k < n.k1; k++) {
                bar_wait(b.sm.x_empty + 8 * p.st, p.ph);
                bar_expect(b.sm.x_full + 8 * p.st, X_BYTES);
                tma_2d_keep(b.sm.x + p.st * X_BYTES, &st.x, b.sm.x_full + 8 * p.st, (int)k * 64, 0);
                p.next();
            }
        }
    }
}

// ---- scalers: one thread per token ----
// Where there are few rows, they bring o's tokens into the ring: each word of attention's output has a tag, so nobody counts the
// blocks that are done, and nothing goes through TMA. Two warps, every other slice each; what was read is then stored
// slice by slice, since the last ones wait for the first ones' place. `drained`: a unit's heads may be there before this block
// is through its own qkv, and a ring's phase two behind looks like the right one. A token without a sequence is zeros.
TK_DEV void bring_tokens(const layers &c, const block &b, ring_pos<X_STAGES> &p, uint32_t s,
                         uint32_t tag, int t)
{
    constexpr int BATCH = 8; // slices of a warp that are on their way at once
    static_assert(X_STAGES % 2 == 0,
                  "a slice and the one that takes its place are the same warp's");
    const product &st = product_of(c, TK_STAGE_O);
    const uint32_t warp = t / 32, lane = t % 32;
    if (has_unit(c, TK_STAGE_O)) {
        bar_wait(b.drained, tk_stage_layer(s) & 1);
    }
    for (uint32_t u = tk_stage_first(TK_STAGE_O, blockIdx.x, gridDim.x); u < st.units;
         u += gridDim.x) {
        const unit n = unit_of(st.a, u);
        for (uint32_t k0 = n.k0; k0 < n.k1; k0 += 2 * BATCH) {
            uint2 v[TK_LAYERS_TAGGED][BATCH];
#pragma unroll
            for (uint32_t r = 0; r < TK_LAYERS_TAGGED; r++) {
                const bool live = r < st.a.rows && __ldcg(c.at.lens + r) > 0;
#pragma unroll
                for (uint32_t i = 0; i < BATCH; i++) {
                    v[r][i] = make_uint2(0, live && k0 + 2 * i + warp < n.k1 ? tag - 1 : tag);
                }
            }
            bool complete;
            spin wait(STUCK_OUT, tag);
            do {
                wait.again();
                complete = true;
#pragma unroll
                for (uint32_t r = 0; r < TK_LAYERS_TAGGED; r++) {
#pragma unroll
                    for (uint32_t i = 0; i < BATCH; i++) {
                        if (v[r][i].y != tag) {
                            v[r][i] = get_tagged(out_at(c, r, (k0 + 2 * i + warp) * 32 + lane));
                        }
                    }
                }
#pragma unroll
                for (uint32_t r = 0; r < TK_LAYERS_TAGGED; r++) {
#pragma unroll
                    for (uint32_t i = 0; i < BATCH; i++) {
                        complete = complete && v[r][i].y == tag;
                    }
                }
            } while (__any_sync(~0u, !complete));
            if (t == 0) {
                stamp(c, s, 0);
            }
#pragma unroll
            for (uint32_t i = 0; i < 2 * BATCH; i++) {
                if (k0 + i >= n.k1) {
                    break;
                }
                if (i % 2 == warp) {
                    const uint32_t x = b.sm.x + p.st * X_BYTES;
                    bar_wait(b.sm.x_empty + 8 * p.st, p.ph);
#pragma unroll
                    for (uint32_t r = 0; r < TK_LAYERS_TAGGED; r++) {
                        st_shared(x + r * 128 + ((lane * 4) ^ (r << 4)), v[r][i / 2].x);
                    }
                    proxy_fence(); // before wgmma reads them
                    __syncwarp();
                    if (lane == 0) {
                        bar_arrive(b.sm.x_full + 8 * p.st);
                    }
                }
                p.next();
            }
        }
    }
}

// No scales are overwritten before they were used, and `ready` is never a phase ahead: whoever has a stage scaled is waited
// for, behind its use, before the next such stage's input is complete.
TK_DEV void scale_rows(const layers &c, const block &b, int t)
{
    uint32_t phase = 0, base = 0;
    ring_pos<X_STAGES> p = {0, 1};
    if (b.tagged) {
        pdl_wait();
        base = ld_acquire(c.work);
    }
    for (uint32_t s = 0; s < c.n_stages; s++) {
        const uint32_t kind = tk_stage_kind(s);
        if (kind == TK_STAGE_ATTN) {
            continue;
        }
        if (kind == TK_STAGE_O && b.tagged) {
            bring_tokens(c, b, p, s, tag_of(base, s - 1), t);
            continue;
        }
        skip_slices(c, kind, p);
        if (!is_scaled(c, b, s)) {
            continue;
        }
        bar_wait(b.ready, phase);
        phase ^= 1;
        row_scale(product_of(c, kind).a, b.area->scale, t);
        __syncwarp();
        named_arrive(1, CONSUMERS + SCALERS);
    }
}

// ---- consumers ----
struct consumer {
    ring_pos<W_STAGES> wp;
    ring_pos<X_STAGES> xp;
    item first;    // of its block, the same in every layer
    uint32_t base; // of the launch's tags
    int tid, warp, lane;
};

// cos and sin of an item's newest position, of this lane's dims of q (rotate_q) and of k (rotate_newest): on their way before
// q is there, since whoever acquires empties the L1 cache.
struct angles {
    float2 c[D / 32][2], s[D / 32][2], kc, ks;
};
TK_DEV angles angles_at(const attn_args &a, const item &t, int lane)
{
    const float *cs = a.cos_sin + (size_t)(t.len - 1) * D;
    angles g;
#pragma unroll
    for (int ks = 0; ks < D / 32; ks++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = 16 * ks + 8 * r + 2 * (lane % 4);
            g.c[ks][r] = __ldg(reinterpret_cast<const float2 *>(cs + i));
            g.s[ks][r] = __ldg(reinterpret_cast<const float2 *>(cs + D / 2 + i));
        }
    }
    g.kc = __ldg(reinterpret_cast<const float2 *>(cs) + lane);
    g.ks = __ldg(reinterpret_cast<const float2 *>(cs + D / 2) + lane);
    return g;
}

// The rows of an item's heads, q, k and v not yet rotated, from the qkv before: as tk_flat's STORE has them.
template <int G>
TK_DEV void gather(const layers &c, const block &b, const consumer &me, const item &t, uint32_t s)
{
    constexpr int R = (G + 2) / 2; // two rows at a time
    const attn_args &a = c.at;
    const args &p = product_of(c, TK_STAGE_QKV).a;
    const uint32_t dim = me.tid % D, tag = tag_of(me.base, s - 1);
    uint32_t tile[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t j = 2 * r + me.tid / D;
        tile[r] =
            j < a.group ? t.head * a.group + j : j * a.n_kv + t.head; // k behind all q, then v
    }
    if (s == 0) { // the launch before left them
#pragma unroll
        for (int r = 0; r < R; r++) {
            const uint32_t j = 2 * r + me.tid / D;
            if (j < a.group + 2) {
                reinterpret_cast<tk_bf16 *>(b.area->rows)[j * ROW + dim] =
                    __ldcg(a.q + (size_t)t.seq * a.q_stride + tile[r] * D + dim);
            }
        }
        return;
    }
    const uint2 *part[R];
    uint2 v[R][MAX_CUT];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t j = 2 * r + me.tid / D;
        part[r] = qkv_parts_at(c) + ((size_t)tile[r] * p.cut * N + t.seq) * TILE + dim;
#pragma unroll
        for (uint32_t k = 0; k < MAX_CUT; k++) {
            v[r][k] = make_uint2(0, j < a.group + 2 && k < p.cut ? tag - 1 : tag);
        }
    }
    spin wait(STUCK_QKV, tag);
    if (me.lane == 0) { // one looks, seldom, until there is something
        while ((wait.seen = get_tagged(part[0]).y) != tag) {
            __nanosleep(POLL_NS);
            wait.again();
        }
    }
    __syncwarp();
    bool complete;
    do {
        wait.again();
        complete = true;
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < MAX_CUT; k++) {
                if (v[r][k].y != tag) {
                    v[r][k] = get_tagged(part[r] + k * N * TILE);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < MAX_CUT; k++) {
                complete = complete && v[r][k].y == tag;
            }
        }
    } while (__any_sync(~0u, !complete));
    const float scale = b.area->scale[t.seq];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const uint32_t j = 2 * r + me.tid / D;
        float sum = __uint_as_float(v[r][0].x);
#pragma unroll
        for (uint32_t k = 1; k < MAX_CUT; k++) {
            sum = p.cut > 1 ? sum + __uint_as_float(v[r][k].x) : sum; // + 0 behind the last part
        }
        if (j < a.group + 2) {
            b.area->rows[j * ROW + dim] = __float2bfloat16_rn(sum * scale);
        }
    }
}

// One of an item's four warps: its pages as they come. A stage of the ring is two warps' pages, but everybody's to let go.
TK_DEV void walk_pages(const layers &c, const block &b, consumer &me, const item &t,
                       const angles &g, uint32_t layer, state<D> &st)
{
    const attn_args &a = c.at;
    const uint32_t *rows = reinterpret_cast<const uint32_t *>(b.area->rows);
    const int hidden = tk_window_start(t.len, a.window) - t.first; // tokens, from the chunk's start
    uint32_t qf[D / 16][2];
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) {
        const uint32_t qh = me.lane / 4;
        const uint32_t *q = rows + qh * (ROW / 2) + me.lane % 4 + ks * 8;
        qf[ks][0] = qh < a.group ? q[0] : 0;
        qf[ks][1] = qh < a.group ? q[4] : 0;
    }
#pragma unroll
    for (int ks = 0; ks < D / 32; ks++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            rotate_pair(qf[ks][r], qf[ks + D / 32][r], g.c[ks][r], g.s[ks][r]);
        }
    }
    for (int p = t.page0; p < t.pages; p += PAGES_AT_ONCE) {
        const int mine = p + ((me.warp - p) & (WARPS - 1)), left = t.tok - mine * TK_BLOCK_TOK;
        const uint32_t page = b.sm.w + me.wp.st * W_BYTES + (mine - p) * PAGE;
        bar_wait(b.sm.w_full + 8 * me.wp.st, me.wp.ph);
        if (mine < min(p + PAGES_AT_ONCE, t.pages)) {
            if (t.newest >= 0 && left <= TK_BLOCK_TOK) {
                const uint32_t *k = rows + a.group * (ROW / 2) + me.lane, *v = k + ROW / 2;
                uint32_t w[2][2] = {{k[0], k[32]}, {v[0], v[32]}};
                rotate_pair(w[0][0], w[0][1], g.kc, g.ks);
                put_newest<D>(a, w,
                              a.pool + layer * c.slice_bytes + (size_t)t.newest * a.block_bytes +
                                  (size_t)t.head * TK_BLOCK_TOK * D * 2,
                              (t.len - 1) % TK_BLOCK_TOK, page, me.lane);
            }
            page_step<D>(st, qf, page, hidden - mine * TK_BLOCK_TOK, min(left, TK_BLOCK_TOK),
                         me.lane, a.scale_log2);
        }
        __syncwarp();
        if (me.lane == 0) {
            bar_arrive(b.sm.w_empty + 8 * me.wp.st);
        }
        me.wp.next();
    }
}

// The same of a warp that has no page.
TK_DEV void pass_pages(const block &b, consumer &me, const item &t)
{
    for (int p = t.page0; p < t.pages; p += PAGES_AT_ONCE) {
        bar_wait(b.sm.w_full + 8 * me.wp.st, me.wp.ph);
        __syncwarp();
        if (me.lane == 0) {
            bar_arrive(b.sm.w_empty + 8 * me.wp.st);
        }
        me.wp.next();
    }
}

// The four warps' states become the row's output, or a part of it for all to read.
template <int G>
TK_DEV void leave_item(const layers &c, const merge_area<D> &ma, const item &t, uint32_t i,
                       uint32_t tag, int dim)
{
    const attn_args &a = c.at;
    row_acc<G> r;
    combine_warps<D, G>(ma, a.group, dim, r);
    if (row_chunks(a, t.len) == 1) {
        write_out<D, G>(a.out + (size_t)t.seq * a.out_stride + (size_t)t.head * a.group * D,
                        a.group, dim, r);
#pragma unroll
        for (int h = 0; h < G; h++) {
            const float y = r.o[h] / r.l[h], other = __shfl_xor_sync(~0u, y, 1);
            if (c.tagged && h < (int)a.group && dim % 2 == 0) {
                put_tagged(out_at(c, t.seq, (t.head * a.group + h) * (D / 2) + dim / 2),
                           __uint_as_float(pack_bf16(y, other)), tag);
            }
        }
        return;
    }
#pragma unroll
    for (int h = 0; h < G; h++) {
        if (h < (int)a.group) {
            put_tagged(item_o_at(c, i, h) + dim, r.o[h], tag);
            if (dim == h) {
                put_tagged(item_ml_at(c, i, h), r.m[h], tag);
                put_tagged(item_ml_at(c, i, h) + 1, r.l[h], tag);
            }
        }
    }
}

// Adds an item's part of a row to a sum, when it is there.
TK_DEV void add_item(const layers &c, lane_acc<D> &s, size_t i, uint32_t head, uint32_t tag,
                     int lane)
{
    const uint2 *o = item_o_at(c, i, head) + lane * (D / 32), *ml = item_ml_at(c, i, head);
    spin wait(STUCK_ROW, tag);
    uint4 v[2], m;
    bool complete;
    do {
        wait.again();
        m = get_tagged2(ml);
        wait.seen = m.y;
        v[0] = get_tagged2(o);
        v[1] = get_tagged2(o + 2);
        complete = m.y == tag && m.w == tag && v[0].y == tag && v[0].w == tag && v[1].y == tag &&
                   v[1].w == tag;
    } while (__any_sync(~0u, !complete));
    const float x[D / 32] = {__uint_as_float(v[0].x), __uint_as_float(v[0].z),
                             __uint_as_float(v[1].x), __uint_as_float(v[1].z)};
    lane_add<D>(s, __uint_as_float(m.x), __uint_as_float(m.z), x);
}

// A row of several chunks: chunk k into sum k % PARTS, ascending, a warp to each; then the sums in order.
TK_DEV void finish_row(const layers &c, float *sums, const consumer &me, uint32_t u, uint32_t tag)
{
    const attn_args &a = c.at;
    const uint32_t heads = a.n_kv * a.group, seq = u / heads, kvh = u % heads / a.group,
                   qh = u % a.group;
    const uint32_t n = row_chunks(a, __ldcg(a.lens + seq));
    if (n < 2) {
        return;
    }
    const size_t item0 = (size_t)__ldcg(a.plan + 1 + seq) * a.n_kv + kvh;
    lane_acc<D> s = {-INFINITY, 0, {0}};
    for (uint32_t k = me.warp; k < n; k += PARTS) {
        add_item(c, s, item0 + (size_t)k * a.n_kv, qh, tag, me.lane);
    }
    float *mine = sums + me.warp * (2 + D);
    named_sync(3, CONSUMERS); // the merge area and the sums of the row before have been read
    mine[0] = s.m;
    mine[1] = s.l;
#pragma unroll
    for (int v = 0; v < D / 32; v++) {
        mine[2 + v * 32 + me.lane] = s.o[v];
    }
    named_sync(3, CONSUMERS);
    if (me.warp != 0) {
        return;
    }
    for (int w = 1; w < PARTS; w++) {
        const float *p = sums + w * (2 + D);
        float o[D / 32];
#pragma unroll
        for (int v = 0; v < D / 32; v++) {
            o[v] = p[2 + v * 32 + me.lane];
        }
        lane_add<D>(s, p[0], p[1], o);
    }
    const uint32_t at = (kvh * a.group + qh) * (D / 2) + me.lane * (D / 64);
    uint32_t *out = reinterpret_cast<uint32_t *>(a.out + (size_t)seq * a.out_stride) + at;
#pragma unroll
    for (int v = 0; v < D / 64; v++) {
        const uint32_t y = pack_bf16(s.o[2 * v] / s.l, s.o[2 * v + 1] / s.l);
        if (c.tagged) {
            put_tagged(out_at(c, seq, at + v), __uint_as_float(y), tag);
        }
        out[v] = y;
    }
}

// This block's items and rows. False: it has none, or nobody waits for its end.
template <int G> TK_DEV bool attend(const layers &c, const block &b, consumer &me, uint32_t s)
{
    const uint32_t tag = tag_of(me.base, s);
    const uint32_t row0 = tk_stage_first_row(blockIdx.x, gridDim.x);
    merge_area<D> ma;
    ma.o = b.area->o;
    ma.ml = b.area->ml;
    if (b.tagged && has_unit(c, TK_STAGE_O) && me.tid == 0) {
        bar_arrive(b.drained);
    }
    if (has_item(b) && s > 0) {
        named_sync(1, CONSUMERS + SCALERS);
    }
    for (uint32_t i = tk_stage_first(TK_STAGE_ATTN, blockIdx.x, gridDim.x); i < b.n_items;
         i += gridDim.x) {
        const item t = i < gridDim.x ? me.first : item_at(c.at, i);
        const angles g = angles_at(c.at, t, me.lane);
        gather<G>(c, b, me, t, s);
        named_sync(3, CONSUMERS); // rows are there; the item's before merge is done
        if (me.tid == 0) {
            stamp(c, s, 0);
        }
        if (me.warp < WARPS) {
            state<D> st;
            state_clear<D>(st);
            walk_pages(c, b, me, t, g, tk_stage_layer(s), st);
            leave_state<D>(st, ma, c.at.group, me.warp, me.lane);
        } else {
            pass_pages(b, me, t);
        }
        named_sync(3, CONSUMERS);
        if (me.warp >= WARPS) {
            leave_item<G>(c, ma, t, i, tag, me.tid - WARPS * 32);
        }
    }
    if (b.n_items != 0) { // a plan that did not fit computes nothing
        for (uint32_t u = row0; u < c.rows; u += gridDim.x) {
            finish_row(c, ma.o, me, u, tag);
        }
    }
    const bool tells = tk_stage_tells(b.tagged, has_item(b), row0 < c.rows);
    if (tk_stage_keeps_step(tells, has_item(b), s) && me.tid == 0) {
        wait_input(c, b, s - 1);
    }
    return tells;
}

// This block's units of a product. False: it has none, or nobody waits for its end.
TK_DEV bool multiply(const layers &c, const block &b, consumer &me, uint32_t s)
{
    const uint32_t kind = tk_stage_kind(s), tag = tag_of(me.base, s);
    const product &st = product_of(c, kind);
    const args &a = st.a;
    const tk_bf16 *gain = c.gain[tk_stage_layer(s)][kind == TK_STAGE_DOWN];
    const bool summed = tk_stage_is_summed(kind, is_last(c, s));
    bool scaled = !summed || a.norm_parts == 0;
    float d[N / 2];
    best_of<N, false> none;
    for (uint32_t u = tk_stage_first(kind, blockIdx.x, gridDim.x); u < st.units; u += gridDim.x) {
        const unit n = unit_of(a, u);
        tile_products<N>(d, b.sm, n.k1 - n.k0, me.warp / 4, me.lane, me.wp, me.xp);
        if (st.split || !summed) {
            put_part<N>(d, (summed ? parts_at(c) : qkv_parts_at(c)) + (size_t)u * N * TILE, tag,
                        a.rows, me.warp, me.lane);
        }
        if (!scaled) {
            named_sync(1, CONSUMERS + SCALERS);
            scaled = true;
        }
        if (summed && st.split) {
            finish_split<N>(parts_at(c), a, gain, n, b.area->scale, tag, me.warp, me.lane);
        } else if (summed) {
            finish_direct<N, false>(d, a, b.area->scale, n.tile * TILE + me.warp * 16, me.lane,
                                    none);
        }
    }
    return summed && has_unit(c, kind);
}

// One thread, behind a barrier of all that wrote: this block is done with stage s.
TK_DEV void tell_done(const layers &c, const block &b, uint32_t s, uint32_t base)
{
    uint32_t *done = done_at(c, tk_stage_kind(s));
    if (!is_last(c, s)) {
        red_release(done);
        return;
    }
    if (atomicAdd(done, 1) + 1 == all_done(c, b, s)) { // nobody waits for anything any more
        for (uint32_t k = 0; k < TK_STAGES; k++) {
            *done_at(c, k) = 0;
        }
        base += c.n_stages;
        if (base > TAGS) {
            for (uint32_t i = 0; i < ALL_PARTS; i++) {
                parts_at(c)[i] = make_uint2(0, 0);
            }
            base = 0;
        }
        *c.work = base;
    }
}

template <int G> TK_DEV void consume(const layers &c, const block &b, int tid)
{
    pdl_wait(); // for q and h, and for the order of our own writes
    consumer me = {{0, 0}, {0, 0}, {}, ld_acquire(c.work), tid, tid / 32, tid % 32};
    if (has_item(b)) {
        me.first = item_at(c.at, tk_stage_first(TK_STAGE_ATTN, blockIdx.x, gridDim.x));
    }
    for (uint32_t s = 0; s < c.n_stages; s++) {
        const bool told =
            tk_stage_kind(s) == TK_STAGE_ATTN ? attend<G>(c, b, me, s) : multiply(c, b, me, s);
        if (told) {
            proxy_fence_global(); // our ordinary stores before others' copies
            named_sync(2, CONSUMERS);
            if (tid == 0) {
                tell_done(c, b, s, me.base);
            }
        }
        if (tid == 0) {
            stamp(c, s, 1);
        }
    }
}

template <int G> TK_DEV void run_block(const layers &c, unsigned char *raw)
{
    block b;
    b.sm.w = smem_u32(raw);
    if (b.sm.w % 1024 != 0) {
        __trap();
    }
    b.area = reinterpret_cast<shared_area *>(raw + RINGS);
    b.sm.x = b.sm.w + W_STAGES * W_BYTES;
    b.sm.w_full = smem_u32(b.area->bars);
    b.sm.w_empty = b.sm.w_full + 8 * W_STAGES;
    b.sm.x_full = b.sm.w_empty + 8 * W_STAGES;
    b.sm.x_empty = b.sm.x_full + 8 * X_STAGES;
    b.ready = b.sm.x_empty + 8 * X_STAGES;
    b.drained = b.ready + 8;
    const int tid = threadIdx.x, warp = tid / 32, lane = tid % 32;
    if (tid == CONSUMERS) {
        for (int i = 0; i < W_STAGES; i++) {
            bar_init(b.sm.w_full + 8 * i, 1);
            bar_init(b.sm.w_empty + 8 * i, CONSUMERS / 32);
        }
        for (int i = 0; i < X_STAGES; i++) {
            bar_init(b.sm.x_full + 8 * i, 1);
            bar_init(b.sm.x_empty + 8 * i, CONSUMERS / 32);
        }
        bar_init(b.ready, 1);
        bar_init(b.drained, 1);
        bar_init_fence();
        for (uint32_t k = 0; k < TK_STAGES && k < c.n_stages; k++) {
            tma_prefetch_map(&c.map[0][k]);
        }
        for (uint32_t k = 0; k < TK_STAGES - 1 && k + 1 < c.n_stages; k++) {
            tma_prefetch_map(&c.st[k].x);
        }
#ifdef TK_SPIN_MS
        stuck_at = c.stuck;
#endif
    }
    b.n_items =
        __ldcg(c.at.plan) * c.at.n_kv; // not the launch's before: as attention's, read early
    b.tagged = c.tagged && b.n_items != 0;
    __syncthreads();
    if (warp < CONSUMERS / 32) {
        consume<G>(c, b, tid);
    } else if (warp >= CONSUMERS / 32 + 2) {
        scale_rows(c, b, tid - (THREADS - SCALERS));
    } else if (lane == 0 && warp == CONSUMERS / 32) {
        load_w(c, b);
    } else if (lane == 0) {
        load_x(c, b);
    }
}

template <int G>
__global__ void __launch_bounds__(THREADS, 1) layers_kernel(const __grid_constant__ layers c)
{
    TK_DYNAMIC_SHARED(raw);
    run_block<G>(c, raw);
}

// ---- host ----
const enum tk_flat_mode modes[TK_CHAIN_MAX] = {TK_FLAT_RESIDUAL, TK_FLAT_SWIGLU, TK_FLAT_RESIDUAL,
                                               TK_FLAT_STORE};

inline bool attention_fits(const struct tk_attn_decode *a, const struct tk_attn_decode *first,
                           uint32_t i)
{
    attn_args unused;
    return attn_args_of(a, unused) == TD_OK && a->head_dim == D && a->cos_sin != nullptr &&
           !a->one_table && a->out_stride % 2 == 0 && a->n_seqs <= TK_LAYERS_ROWS &&
           (uint64_t)a->max_entries * a->n_kv_heads <= TK_LAYERS_ITEMS &&
           a->max_entries == first->max_entries && a->pool == first->pool &&
           a->layer == first->layer + i && a->layer < a->pool->n_layers &&
           a->cos_sin == first->cos_sin && a->scale == first->scale &&
           a->q_stride == first->q_stride && a->out_stride == first->out_stride &&
           a->q == first->q && a->out == first->out && a->plan == first->plan &&
           a->lens == first->lens && a->tables == first->tables && a->n_seqs == first->n_seqs &&
           a->n_heads == first->n_heads && a->n_kv_heads == first->n_kv_heads &&
           a->window == first->window && a->table_stride == first->table_stride;
}

inline bool same_product(const struct tk_flat *p, const struct tk_flat *q)
{
    return p->n == q->n && p->k == q->k && p->out == q->out && p->h == q->h && p->hg == q->hg &&
           p->sumsq == q->sumsq && p->norm.sumsq == q->norm.sumsq &&
           p->norm.parts == q->norm.parts && p->norm.dim == q->norm.dim &&
           p->norm.eps == q->norm.eps && p->out_stride == q->out_stride &&
           memcmp(p->x->bytes, q->x->bytes, sizeof p->x->bytes) == 0;
}

inline bool layer_fits(const struct tk_layer *l, const struct tk_layer *first, uint32_t i,
                       bool last, uint32_t blocks)
{
    const struct tk_attn_decode *a = &l->attention;
    bool fits = attention_fits(a, &first->attention, i) && l->n_products <= TK_CHAIN_MAX &&
                l->n_products + (last ? 1 : 0) >= TK_CHAIN_MAX &&
                l->products[0].k == a->n_heads * D;
    for (uint32_t p = 0; fits && p < l->n_products; p++) {
        const struct tk_flat *f = &l->products[p];
        fits = f->mode == modes[p] && f->rows == a->n_seqs && product_fits(f, blocks) &&
               (p >= first->n_products || same_product(f, &first->products[p]));
    }
    const struct tk_flat *qkv = &l->products[TK_CHAIN_MAX - 1];
    const uint32_t width = (a->n_heads + 2 * a->n_kv_heads) * D;
    return fits && (l->n_products < TK_CHAIN_MAX ||
                    (qkv->n == width && qkv->out == a->q && qkv->out_stride == a->q_stride &&
                     width / TILE * k_cut(qkv->n, qkv->k, qkv->mode) <=
                         min(blocks, (uint32_t)TARGET_BLOCKS)));
}

inline bool layers_fit(const struct tk_layer *l, uint32_t n, uint32_t blocks)
{
    bool fits = n >= 1 && n <= TK_LAYERS_MAX;
    for (uint32_t i = 0; fits && i < n; i++) {
        fits = layer_fits(&l[i], &l[0], i, i + 1 == n, blocks);
    }
    return fits;
}

// What all layers share, of the first; then what each has of its own.
inline td_err fill(layers &c, const struct tk_layers *l)
{
    const struct tk_layer *first = &l->layers[0];
    TD_TRY(attn_args_of(&first->attention, c.at));
    const struct tk_kv_pool *pool = first->attention.pool;
    c.at.pool = static_cast<unsigned char *>(pool->base) +
                first->attention.layer * pool->slice_bytes + pool->header_bytes;
    c.at.block_bytes = pool->slice_bytes * pool->n_layers;
    c.slice_bytes = pool->slice_bytes;
    c.rows = first->attention.n_seqs * first->attention.n_heads;
    c.n_stages = (l->n - 1) * TK_STAGES + 1 + l->layers[l->n - 1].n_products;
    c.work = static_cast<uint32_t *>(l->work);
    c.stuck = l->stuck;
    c.times = l->times;
    c.tagged = tk_layers_are_tagged(first->attention.n_seqs, first->attention.n_heads);
    for (uint32_t p = 0; p < first->n_products; p++) {
        const struct tk_flat *f = &first->products[p];
        product &st = c.st[p];
        st.x = *(const CUtensorMap *)(const void *)f->x->bytes;
        st.a = args_of(f);
        st.units = st.a.tiles * st.a.cut;
        st.split = st.a.cut > 1 || f->mode == TK_FLAT_RESIDUAL;
    }
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tk_layer *y = &l->layers[i];
        c.map[i][TK_STAGE_ATTN] = *(const CUtensorMap *)(const void *)y->attention.kv->bytes;
        for (uint32_t p = 0; p < y->n_products; p++) {
            c.map[i][1 + p] = *(const CUtensorMap *)(const void *)y->products[p].w->bytes;
        }
        c.gain[i][0] = y->products[TK_STAGE_O - 1].gain;
        c.gain[i][1] = y->products[TK_STAGE_DOWN - 1].gain;
    }
    return TD_OK;
}

} // namespace
