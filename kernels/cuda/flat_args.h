// flat_args.h - what every kernel of flat products is told of one, and how that follows from struct tk_flat. Plain C++, so that
// tests/emulate can include it.
#pragma once
#include "kernels/tk_cuda.h"

namespace
{

struct flat_args {
    tk_bf16 *out, *h, *hg;
    const tk_bf16 *gain;
    float *sumsq, *best_val, *out_f32;
    int32_t *best_idx;
    const float *norm;
    uint32_t norm_parts, rows, n, tiles, out_stride, mode;
    float norm_inv_dim, norm_eps;
};

// What all kernels ask of a product; each adds its own limits.
inline bool flat_sound(const struct tk_flat *p)
{
    return p->rows != 0 && p->rows <= TK_MAX_ROWS && p->n != 0 && p->k >= 64 && p->k % 64 == 0 &&
           p->norm.parts <= TK_NORM_PARTS &&
           (p->mode != TK_FLAT_RESIDUAL || p->n % TK_FLAT_ROWS == 0) &&
           (p->mode != TK_FLAT_SWIGLU || p->n % 16 == 0);
}

// tile: weight rows of one.
inline void fill_flat(flat_args &a, const struct tk_flat *p, uint32_t tile)
{
    a.out = p->out;
    a.h = p->h;
    a.hg = p->hg;
    a.gain = p->gain;
    a.sumsq = p->sumsq;
    a.best_val = p->best_val;
    a.best_idx = p->best_idx;
    a.out_f32 = p->out_f32;
    a.norm = p->norm.sumsq;
    a.norm_parts = p->norm.parts;
    a.norm_inv_dim = p->norm.parts != 0 ? 1.f / (float)p->norm.dim : 0.f;
    a.norm_eps = p->norm.eps;
    a.rows = p->rows;
    a.n = p->n;
    a.tiles = (p->n + tile - 1) / tile;
    a.out_stride = p->out_stride;
    a.mode = p->mode;
}

} // namespace
