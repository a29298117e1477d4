// gpu_ref.cu - random data and naive float64 references for the checks. Slow and obvious on purpose.
#include <cuda_bf16.h>

#include "tests/bench/gpu/gpu.h"

namespace
{
__device__ uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Sum of four uniforms, variance 1: close enough to normal, with the toggling of real data.
__global__ void fill(__nv_bfloat16 *p, size_t n, float scale, uint64_t seed)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint64_t r = mix(seed ^ (i * 0x2545f4914f6cdd1dull));
        float f = 0;
        for (int j = 0; j < 4; j++) {
            f += (float)((r >> (16 * j)) & 0xffff) / 65536.f - 0.5f;
        }
        p[i] = __float2bfloat16(f * 1.7320508f * scale);
    }
}

__global__ void ref_attn(const __nv_bfloat16 *q, uint32_t q_stride, const gpu_ref_row *rows,
                         uint32_t n_heads, const unsigned char *pool, size_t block_bytes,
                         uint32_t n_kv, uint32_t d, const int32_t *tables, uint32_t table_stride,
                         double scale, float *out)
{
    __shared__ double s[128];
    const uint32_t row = blockIdx.x, head = blockIdx.y, t = threadIdx.x,
                   kvh = head / (n_heads / n_kv);
    const gpu_ref_row r = rows[row];
    const __nv_bfloat16 *qp = q + (size_t)row * q_stride + (size_t)head * d;
    const int32_t *table = tables + (size_t)r.table * table_stride;
    double m = -1e300, l = 0, o = 0;
    for (int k0 = r.from; k0 < r.visible; k0 += 128) {
        const int n = min(128, r.visible - k0);
        __syncthreads();
        if ((int)t < n) {
            const int key = k0 + (int)t;
            const __nv_bfloat16 *kp = reinterpret_cast<const __nv_bfloat16 *>(
                                          pool + (size_t)table[key / TK_BLOCK_TOK] * block_bytes) +
                                      ((size_t)kvh * TK_BLOCK_TOK + key % TK_BLOCK_TOK) * d;
            double dot = 0;
            for (uint32_t i = 0; i < d; i++) {
                dot += (double)__bfloat162float(qp[i]) * (double)__bfloat162float(kp[i]);
            }
            s[t] = dot * scale;
        }
        __syncthreads();
        double mx = m;
        for (int i = 0; i < n; i++) {
            mx = fmax(mx, s[i]);
        }
        const double f = exp(m - mx);
        l *= f;
        o *= f;
        m = mx;
        for (int i = 0; i < n; i++) {
            const double p = exp(s[i] - m);
            const int key = k0 + i;
            l += p;
            if (t < d) {
                const __nv_bfloat16 *vp =
                    reinterpret_cast<const __nv_bfloat16 *>(
                        pool + (size_t)table[key / TK_BLOCK_TOK] * block_bytes) +
                    ((size_t)(n_kv + kvh) * TK_BLOCK_TOK + key % TK_BLOCK_TOK) * d;
                o += p * (double)__bfloat162float(vp[t]);
            }
        }
    }
    if (t < d) {
        out[((size_t)row * n_heads + head) * d + t] = (float)(o / l);
    }
}

__global__ void ref_product(const __nv_bfloat16 *x, uint32_t ldx, const __nv_bfloat16 *w,
                            bool tiled, uint32_t n, uint32_t k, float *out)
{
    const uint32_t col = blockIdx.x, row = blockIdx.y, lane = threadIdx.x;
    double s = 0;
    for (uint32_t i = lane; i < k; i += 32) {
        const size_t at =
            tiled ? ((size_t)(col / 128) * (k / 64) + i / 64) * 8192 + (col % 128) * 64 + i % 64
                  : (size_t)col * k + i;
        s += (double)__bfloat162float(x[(size_t)row * ldx + i]) * (double)__bfloat162float(w[at]);
    }
    for (int o = 16; o > 0; o /= 2) {
        s += __shfl_xor_sync(~0u, s, o);
    }
    if (lane == 0) {
        out[(size_t)row * n + col] = (float)s;
    }
}

__global__ void __launch_bounds__(512) sweep(const uint4 *p, size_t n, uint4 *sink)
{
    uint4 a = make_uint4(0, 0, 0, 0);
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[j] = __ldcs(p + i + j * step);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            a.x ^= v[j].x, a.y ^= v[j].y, a.z ^= v[j].z, a.w ^= v[j].w;
        }
    }
    if (a.x == 0x12345 && a.y == 0x777 && a.z == 1) {
        *sink = a; // never, in practice; keeps the loads alive
    }
}
} // namespace

extern "C" void gpu_fill_bf16(tk_bf16 *p, size_t n, float scale, uint64_t seed)
{
    fill<<<1056, 256>>>(reinterpret_cast<__nv_bfloat16 *>(p), n, scale, seed);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
}

extern "C" void gpu_ref_attn(const tk_bf16 *q, uint32_t q_stride, const gpu_ref_row *rows,
                             uint32_t n_rows, uint32_t n_heads, const tk_kv_pool *pool,
                             uint32_t layer, const int32_t *tables, uint32_t table_stride,
                             float scale, float *out)
{
    const unsigned char *base = static_cast<const unsigned char *>(pool->base) +
                                layer * pool->slice_bytes + pool->header_bytes;
    ref_attn<<<dim3(n_rows, n_heads), 128>>>(
        reinterpret_cast<const __nv_bfloat16 *>(q), q_stride, rows, n_heads, base,
        pool->slice_bytes * pool->n_layers, pool->n_kv_heads, pool->head_dim, tables, table_stride,
        (double)scale, out);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
}

extern "C" void gpu_ref_product(const tk_bf16 *x, uint32_t ldx, const tk_bf16 *w, bool tiled,
                                uint32_t rows, uint32_t n, uint32_t k, float *out)
{
    ref_product<<<dim3(n, rows), 32>>>(reinterpret_cast<const __nv_bfloat16 *>(x), ldx,
                                       reinterpret_cast<const __nv_bfloat16 *>(w), tiled, n, k,
                                       out);
    CU(cudaGetLastError());
    CU(cudaDeviceSynchronize());
}

extern "C" void gpu_read_sweep(tk_stream s, const void *p, size_t bytes, void *sink)
{
    sweep<<<132 * 4, 512, 0, s>>>(static_cast<const uint4 *>(p), bytes / 16,
                                  static_cast<uint4 *>(sink));
    CU(cudaGetLastError());
}
