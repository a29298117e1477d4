// flat_chain.cuh - what launches of several flat products share (flat_chain.cu: a chain of them; layers.cu: whole layers): the
// parts of a product that the blocks leave for each other, and the products that can be cut so. Design: flat_chain.cu's head.
#pragma once
#include "kernels/cuda/flat.cuh"

namespace
{

constexpr uint32_t POLL_NS = 40;
constexpr uint32_t LINE = 32; // words of an L2 line

// Rings as deep as an SM has room, for the boundaries, but few slices of weights in flight at a time: more make device
// memory slower and SMs unequal (NOTES.md).
template <int N> struct shape {
    static constexpr int W_STAGES = N == 8 ? 12 : N == 16 ? 11 : 10;
    static constexpr int X_STAGES = N == 32 ? 14 : 16;
    static constexpr int IN_FLIGHT = 4;
    static constexpr int RINGS = W_STAGES * W_BYTES + X_STAGES * N * 128;
    static constexpr int SMEM = RINGS + 64 * 4 + (W_STAGES + X_STAGES) * 16 + 8;
};

struct unit {
    uint32_t tile, part, k0, k1;
};
TK_DEV unit unit_of(const args &a, uint32_t u)
{
    unit r;
    r.tile = u / a.cut;
    r.part = u % a.cut;
    r.k0 = a.k_slices * r.part / a.cut;
    r.k1 = a.k_slices * (r.part + 1) / a.cut;
    return r;
}

// This block's part of a tile, for all to read: [token][row of the tile], of the first `tokens` tokens.
template <int N>
TK_DEV void put_part(const float (&d)[N / 2], uint2 *to, uint32_t tag, uint32_t tokens, int warp,
                     int lane)
{
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const uint32_t tok = 8 * j + 2 * (lane % 4);
        uint2 *p = to + tok * TILE + warp * 16 + lane / 4;
        if (tok < tokens) {
            put_tagged(p, d[4 * j], tag);
            put_tagged(p + 8, d[4 * j + 2], tag);
        }
        if (tok + 1 < tokens) {
            put_tagged(p + TILE, d[4 * j + 1], tag);
            put_tagged(p + TILE + 8, d[4 * j + 3], tag);
        }
    }
}

// The parts of a batch, all read at once, until each has its tag.
template <int N, int BATCH>
TK_DEV share_parts<BATCH> wait_parts(const uint2 *part0, const args &a, const share &sh,
                                     uint32_t tok, uint32_t tag)
{
    uint2 v[BATCH][MAX_CUT];
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
#pragma unroll
        for (uint32_t c = 0; c < MAX_CUT; c++) {
            const bool any = tok + b * sh.step < a.rows && c < a.cut;
            v[b][c] = make_uint2(0, any ? tag - 1 : tag);
        }
    }
    bool complete;
    spin wait(STUCK_PART, tag);
    do {
        wait.again();
        complete = true;
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
#pragma unroll
            for (uint32_t c = 0; c < MAX_CUT; c++) {
                if (v[b][c].y != tag) {
                    v[b][c] = get_tagged(part0 + (c * N + tok + b * sh.step) * TILE);
                }
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
#pragma unroll
            for (uint32_t c = 0; c < MAX_CUT; c++) {
                complete = complete && v[b][c].y == tag;
            }
        }
    } while (__any_sync(~0u, !complete));
    share_parts<BATCH> p;
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
#pragma unroll
        for (uint32_t c = 0; c < MAX_CUT; c++) {
            p.y[b][c] = __uint_as_float(v[b][c].x);
        }
    }
    return p;
}

// parts: the work area's [unit][token][row of the tile]; gain: of all rows. h was written by a product before, which the
// tokens in our ring told us is done.
template <int N>
TK_DEV void finish_split(const uint2 *parts, const args &a, const tk_bf16 *gain, const unit &n,
                         const float *scale, uint32_t tag, int warp, int lane)
{
    const share sh = share_of(a, n.tile, n.part, warp, lane);
    constexpr int BATCH = N / 8; // of a warp's tokens: all where K is cut in four
    tk_bf16 h[BATCH];            // on their way while the parts arrive
    share_h(a, sh, sh.tok, h);
    const float g = share_gain(a, gain, sh);
    const uint2 *part0 = parts + (size_t)n.tile * a.cut * N * TILE + sh.row;
    finish_share<BATCH>(a, scale, sh, h, g,
                        [&](uint32_t tok) { return wait_parts<N, BATCH>(part0, a, sh, tok, tag); });
}

// A product of a chain: what the kernel takes for granted.
inline bool product_fits(const struct tk_flat *p, uint32_t blocks)
{
    if (!flat_fits(p) || p->rows > TK_CHAIN_ROWS || p->mode == TK_FLAT_ARGMAX ||
        (p->norm.parts == 0) != (p->mode == TK_FLAT_RESIDUAL)) {
        return false;
    }
    const uint32_t tiles = (p->n + TILE - 1) / TILE, cut = k_cut(p->n, p->k, p->mode);
    // parts of a tile wait for each other, so they must run at once
    return (cut == 1 && p->mode != TK_FLAT_RESIDUAL) ||
           tiles * cut <= min(blocks, (uint32_t)TARGET_BLOCKS);
}

} // namespace
