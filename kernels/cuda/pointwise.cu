// pointwise.cu - the memory-bound kernels between products: embedding, RMSNorm, rope + KV write, SwiGLU, end of argmax.
//
// Shapes: rows of bf16, dim % 8 = 0, dim <= 16384; 16-byte alignment. One block per row where a row is reduced.
// Bound by: device memory; in decode by the launch (they take part in programmatic launch).
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_cuda.h"

namespace
{

constexpr int NORM_THREADS = 256;
constexpr int MAX_VEC = 8; // 16-byte vectors per thread of a row: dim <= 256 x 8 x 8

TK_DEV void unpack8(const uint4 v, float f[8])
{
    f[0] = bf16_lo(v.x), f[1] = bf16_hi(v.x), f[2] = bf16_lo(v.y), f[3] = bf16_hi(v.y);
    f[4] = bf16_lo(v.z), f[5] = bf16_hi(v.z), f[6] = bf16_lo(v.w), f[7] = bf16_hi(v.w);
}
TK_DEV uint4 pack8(const float f[8])
{
    return make_uint4(pack_bf16(f[0], f[1]), pack_bf16(f[2], f[3]), pack_bf16(f[4], f[5]),
                      pack_bf16(f[6], f[7]));
}

// Sum over the block in a fixed order: lanes by shuffle, then warps ascending.
TK_DEV float block_sum(float v)
{
    __shared__ float part[32];
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        v += __shfl_xor_sync(~0u, v, x);
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = v;
    }
    __syncthreads();
    float s = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++) {
        s += part[i];
    }
    return s;
}

__global__ void __launch_bounds__(NORM_THREADS)
    embed_kernel(const tk_bf16 *table, const int32_t *tokens, uint32_t dim, const tk_bf16 *gain,
                 tk_bf16 *h, tk_bf16 *hg, float *sumsq)
{
    pdl_wait();
    pdl_launch();
    const uint32_t row = blockIdx.x, vecs = dim / 8;
    const uint4 *src = reinterpret_cast<const uint4 *>(table + (size_t)__ldcg(tokens + row) * dim);
    uint4 *dst = reinterpret_cast<uint4 *>(h + (size_t)row * dim);
    float q = 0;
    for (uint32_t i = threadIdx.x; i < vecs; i += NORM_THREADS) {
        const uint4 v = src[i];
        dst[i] = v;
        if (hg != nullptr) {
            float f[8], g[8];
            unpack8(v, f);
            unpack8(reinterpret_cast<const uint4 *>(gain)[i], g);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                q += f[j] * f[j];
                g[j] *= f[j];
            }
            reinterpret_cast<uint4 *>(hg + (size_t)row * dim)[i] = pack8(g);
        }
    }
    if (hg != nullptr) {
        q = block_sum(q);
        if (threadIdx.x == 0) {
            sumsq[row] = q;
        }
    }
}

__global__ void __launch_bounds__(NORM_THREADS)
    rmsnorm_kernel(tk_bf16 *h, const tk_bf16 *add, const tk_bf16 *gain, tk_bf16 *out, uint32_t dim,
                   float inv_mean, float eps)
{
    const uint32_t row = blockIdx.x, vecs = dim / 8;
    uint4 *hp = reinterpret_cast<uint4 *>(h + (size_t)row * dim);
    uint4 keep[MAX_VEC];
    float q = 0;
#pragma unroll
    for (int k = 0; k < MAX_VEC; k++) {
        const uint32_t i = threadIdx.x + k * NORM_THREADS;
        if (i < vecs) {
            float f[8];
            keep[k] = hp[i];
            if (add != nullptr) {
                float a[8];
                unpack8(keep[k], f);
                unpack8(reinterpret_cast<const uint4 *>(add + (size_t)row * dim)[i], a);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    f[j] += a[j];
                }
                keep[k] = pack8(f);
                hp[i] = keep[k];
            }
            unpack8(keep[k], f);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                q += f[j] * f[j];
            }
        }
    }
    const float sc = rsqrtf(block_sum(q) * inv_mean + eps);
#pragma unroll
    for (int k = 0; k < MAX_VEC; k++) {
        const uint32_t i = threadIdx.x + k * NORM_THREADS;
        if (i < vecs) {
            float f[8], g[8];
            unpack8(keep[k], f);
            unpack8(reinterpret_cast<const uint4 *>(gain)[i], g);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                f[j] *= sc * g[j];
            }
            reinterpret_cast<uint4 *>(out + (size_t)row * dim)[i] = pack8(f);
        }
    }
}

struct rope_args {
    tk_bf16 *qkv;
    const float *cos_sin;
    const int32_t *pos, *table_of, *tables;
    unsigned char *pool; // first byte behind the header of this layer in block 0
    size_t block_bytes;
    uint32_t rows, n_heads, n_kv, head_dim, table_stride, row_stride;
    const tk_bf16 *bias, *q_norm, *k_norm;
    float eps;
};

TK_DEV void add8(float x[8], const tk_bf16 *v)
{
    float f[8];
    unpack8(*reinterpret_cast<const uint4 *>(v), f);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x[j] += f[j];
    }
}

// RMSNorm over the head that per_head neighbouring lanes hold, 16 values each.
TK_DEV void norm_head(float x[8], float y[8], const tk_bf16 *gain_x, const tk_bf16 *gain_y,
                      uint32_t per_head, float eps)
{
    float g[8], h[8], q = 0;
    unpack8(*reinterpret_cast<const uint4 *>(gain_x), g);
    unpack8(*reinterpret_cast<const uint4 *>(gain_y), h);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        q += x[j] * x[j] + y[j] * y[j];
    }
    const uint32_t first = threadIdx.x % 32 / per_head * per_head;
    const uint32_t mask = (per_head == 32 ? ~0u : (1u << per_head) - 1) << first;
    for (uint32_t d = per_head / 2; d >= 1; d /= 2) {
        q += __shfl_xor_sync(mask, q, d);
    }
    const float s = rsqrtf(q / (float)(16 * per_head) + eps);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        x[j] *= s * g[j];
        y[j] *= s * h[j];
    }
}

// Bias, norm and rotation of 8 pairs of a head.
TK_DEV void shape_head(const rope_args &a, uint32_t head, uint32_t i, int pos, uint4 &lo, uint4 &hi)
{
    const uint32_t half = a.head_dim / 2;
    const bool turns = head < a.n_heads + a.n_kv;
    float x[8], y[8];
    unpack8(lo, x);
    unpack8(hi, y);
    if (a.bias != nullptr) {
        add8(x, a.bias + head * a.head_dim + 8 * i);
        add8(y, a.bias + head * a.head_dim + half + 8 * i);
    }
    if (turns && a.q_norm != nullptr) {
        const tk_bf16 *gain = (head < a.n_heads ? a.q_norm : a.k_norm) + 8 * i;
        norm_head(x, y, gain, gain + half, a.head_dim / 16, a.eps);
    }
    if (turns) {
        const float *cs = a.cos_sin + (size_t)pos * a.head_dim + 8 * i;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float c = cs[j], s = cs[half + j], u = x[j];
            x[j] = u * c - y[j] * s;
            y[j] = y[j] * c + u * s;
        }
    }
    lo = pack8(x);
    hi = pack8(y);
}

// A thread rotates 8 pairs (i, i + D/2) of one head of one row; those of a head are neighbours in a warp.
__global__ void __launch_bounds__(256) rope_kv_kernel(const rope_args a)
{
    pdl_wait();
    pdl_launch();
    const uint32_t per_head = a.head_dim / 16, heads = a.n_heads + 2 * a.n_kv;
    const uint32_t idx = blockIdx.x * 256 + threadIdx.x;
    if (idx >= a.rows * heads * per_head) {
        return;
    }
    const uint32_t i = idx % per_head, head = idx / per_head % heads, row = idx / per_head / heads;
    const int pos = __ldcg(a.pos + row);
    if (pos < 0) {
        return;
    }
    tk_bf16 *src = a.qkv + (size_t)row * a.row_stride + head * a.head_dim;
    uint4 lo = __ldcg(reinterpret_cast<const uint4 *>(src) + i);
    uint4 hi = __ldcg(reinterpret_cast<const uint4 *>(src + a.head_dim / 2) + i);
    if (head < a.n_heads + a.n_kv || a.bias != nullptr) {
        shape_head(a, head, i, pos, lo, hi);
    }
    tk_bf16 *dst = src;
    if (head >= a.n_heads) {
        const uint32_t t = a.table_of != nullptr ? (uint32_t)a.table_of[row] : row;
        const int32_t blk = a.tables[(size_t)t * a.table_stride + pos / TK_BLOCK_TOK];
        // heads n_heads .. are K then V: exactly the slice's order
        dst = reinterpret_cast<tk_bf16 *>(a.pool + (size_t)blk * a.block_bytes) +
              ((size_t)(head - a.n_heads) * TK_BLOCK_TOK + pos % TK_BLOCK_TOK) * a.head_dim;
    }
    reinterpret_cast<uint4 *>(dst)[i] = lo;
    reinterpret_cast<uint4 *>(dst + a.head_dim / 2)[i] = hi;
}

__global__ void __launch_bounds__(256) swiglu_kernel(const tk_bf16 *gu, tk_bf16 *out, uint32_t rows,
                                                     uint32_t ffn, uint32_t interleaved)
{
    const uint32_t vecs = ffn / 8;
    const size_t idx = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (idx >= (size_t)rows * vecs) {
        return;
    }
    const size_t row = idx / vecs;
    const uint32_t i = (uint32_t)(idx % vecs);
    const uint4 *src = reinterpret_cast<const uint4 *>(gu + row * 2 * ffn);
    float g[8], u[8];
    unpack8(interleaved ? src[2 * i] : src[i], g);
    unpack8(interleaved ? src[2 * i + 1] : src[vecs + i], u);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        g[j] = g[j] / (1.f + __expf(-g[j])) * u[j];
    }
    reinterpret_cast<uint4 *>(out + row * ffn)[i] = pack8(g);
}

__global__ void __launch_bounds__(32)
    argmax_end_kernel(const float *val, const int32_t *idx, uint32_t parts, int32_t *token,
                      int32_t *pos, int32_t *lens)
{
    pdl_wait();
    pdl_launch();
    const uint32_t row = blockIdx.x, lane = threadIdx.x;
    float v = -INFINITY;
    int32_t b = 0x7fffffff;
    for (uint32_t p = lane; p < parts; p += 32) {
        const float w = __ldcg(val + (size_t)p * TK_MAX_ROWS + row);
        const int32_t j = __ldcg(idx + (size_t)p * TK_MAX_ROWS + row);
        if (w > v || (w == v && j < b)) {
            v = w;
            b = j;
        }
    }
#pragma unroll
    for (int x = 16; x >= 1; x /= 2) {
        const float w = __shfl_xor_sync(~0u, v, x);
        const int32_t j = __shfl_xor_sync(~0u, b, x);
        if (w > v || (w == v && j < b)) {
            v = w;
            b = j;
        }
    }
    if (lane == 0) {
        token[row] =
            b == 0x7fffffff ? 0 : b; // all NaN: token 0, the engine checks logits on its own path
        if (pos != nullptr) {
            pos[row]++;
        }
        if (lens != nullptr) {
            lens[row]++;
        }
    }
}

} // namespace

extern "C" td_err tk_embed(tk_stream s, const tk_bf16 *table, const int32_t *tokens, uint32_t rows,
                           uint32_t dim, const tk_bf16 *gain, tk_bf16 *h, tk_bf16 *hg, float *sumsq,
                           bool pdl)
{
    if (rows == 0 || dim % 8 != 0 || (hg != nullptr && rows > TK_MAX_ROWS)) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, rows, NORM_THREADS, 0, 1, pdl);
    TD_TRY(tk_prepare(embed_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, embed_kernel, table, tokens, dim, gain, h, hg, sumsq));
    return TD_OK;
}

extern "C" td_err tk_rmsnorm(tk_stream s, tk_bf16 *h, const tk_bf16 *add, const tk_bf16 *gain,
                             tk_bf16 *out, uint32_t rows, uint32_t dim, uint32_t mean_dim,
                             float eps)
{
    if (rows == 0 || dim % 8 != 0 || dim > NORM_THREADS * MAX_VEC * 8 || mean_dim == 0 ||
        mean_dim > dim) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, rows, NORM_THREADS, 0, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, rmsnorm_kernel, h, add, gain, out, dim,
                                   1.f / (float)mean_dim, eps));
    return TD_OK;
}

extern "C" td_err tk_rope_kv(tk_stream s, const struct tk_rope_kv *p)
{
    const uint32_t lanes = p->head_dim / 16; // of a head
    if (p->rows == 0 || p->head_dim % 16 != 0 || p->row_stride % 8 != 0 || lanes == 0 ||
        (p->q_norm != nullptr && (lanes > 32 || 32 % lanes != 0 || p->k_norm == nullptr))) {
        return TD_ERR_UNSUPPORTED;
    }
    rope_args a;
    a.bias = p->bias;
    a.q_norm = p->q_norm;
    a.k_norm = p->k_norm;
    a.eps = p->eps;
    a.qkv = p->qkv;
    a.cos_sin = p->cos_sin;
    a.pos = p->pos;
    a.table_of = p->table_of;
    a.tables = p->tables;
    a.pool = static_cast<unsigned char *>(p->pool->base) + p->layer * p->pool->slice_bytes +
             p->pool->header_bytes;
    a.block_bytes = p->pool->slice_bytes * p->pool->n_layers;
    a.rows = p->rows;
    a.n_heads = p->n_heads;
    a.n_kv = p->n_kv_heads;
    a.head_dim = p->head_dim;
    a.table_stride = p->table_stride;
    a.row_stride = p->row_stride;
    const size_t threads = (size_t)p->rows * (p->n_heads + 2 * p->n_kv_heads) * (p->head_dim / 16);
    tk_launch l(s, (uint32_t)((threads + 255) / 256), 256, 0, 1, p->pdl);
    TD_TRY(tk_prepare(rope_kv_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, rope_kv_kernel, a));
    return TD_OK;
}

extern "C" td_err tk_swiglu(tk_stream s, const tk_bf16 *gate_up, tk_bf16 *out, uint32_t rows,
                            uint32_t ffn, bool interleaved)
{
    if (rows == 0 || ffn % 8 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, (uint32_t)(((size_t)rows * (ffn / 8) + 255) / 256), 256, 0, 1, false);
    TK_TRY_CUDA(
        cudaLaunchKernelEx(&l.cfg, swiglu_kernel, gate_up, out, rows, ffn, (uint32_t)interleaved));
    return TD_OK;
}

extern "C" td_err tk_argmax_end(tk_stream s, const float *best_val, const int32_t *best_idx,
                                uint32_t parts, uint32_t rows, int32_t *token, int32_t *pos,
                                int32_t *lens, bool pdl)
{
    if (rows == 0 || rows > TK_MAX_ROWS || parts == 0 || parts > TK_ARGMAX_PARTS) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, rows, 32, 0, 1, pdl);
    TD_TRY(tk_prepare(argmax_end_kernel, 0));
    TK_TRY_CUDA(
        cudaLaunchKernelEx(&l.cfg, argmax_end_kernel, best_val, best_idx, parts, token, pos, lens));
    return TD_OK;
}
