// map.cu - maps of matrices and pools (for TMA and for kernels without), device facts, which kernels, the last CUDA error's
//   text.
// The driver's encoder is looked up at run time, so nothing links libcuda.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/launch.h"

namespace
{
thread_local char last_error[256] = "";
int wanted_path = TK_PATH_AUTO; // read and written atomically

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

encode_fn encoder()
{
    static encode_fn fn = [] {
        void *p = nullptr;
        cudaDriverEntryPointQueryResult st;
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault,
                                             &st) != cudaSuccess ||
            st != cudaDriverEntryPointSuccess) {
            p = nullptr;
        }
        return reinterpret_cast<encode_fn>(p);
    }();
    return fn;
}

// bf16, 128-byte swizzle; strides in bytes of dims 1 .. rank - 1.
td_err encode(tk_map *out, const void *base, uint32_t rank, const cuuint64_t *dims,
              const cuuint64_t *strides, const cuuint32_t *box)
{
    static_assert(sizeof(CUtensorMap) == sizeof(out->bytes), "tensor map size");
    const tk_dev *dev = tk_device();
    if (dev == nullptr) {
        return TD_ERR_DEVICE;
    }
    if (dev->major < 9) {
        memset(out->bytes, 0, sizeof out->bytes); // no TMA: nobody reads them
        return TD_OK;
    }
    const encode_fn fn = encoder();
    if (fn == nullptr) {
        return TD_ERR_DEVICE;
    }
    const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    CUtensorMap m;
    const CUresult r =
        fn(&m, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void *>(base), dims, strides, box,
           ones, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
           CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r != CUDA_SUCCESS) {
        snprintf(last_error, sizeof last_error, "cuTensorMapEncodeTiled: %d", (int)r);
        return TD_ERR_UNSUPPORTED;
    }
    memcpy(out->bytes, &m, sizeof m);
    return TD_OK;
}
} // namespace

td_err tk_cuda_fail(cudaError_t e, const char *what)
{
    snprintf(last_error, sizeof last_error, "%.180s: %s", what, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? TD_ERR_NO_MEMORY : TD_ERR_DEVICE;
}

extern "C" const char *tk_cuda_last_error(void)
{
    return last_error;
}

const tk_dev *tk_device()
{
    constexpr int MAX_DEV = 16;
    static tk_dev dev[MAX_DEV];
    static bool known[MAX_DEV];
    int id = 0;
    if (cudaGetDevice(&id) != cudaSuccess || id < 0 || id >= MAX_DEV) {
        return nullptr;
    }
    // Two threads may fill the same row at once, with the same values.
    if (!__atomic_load_n(&known[id], __ATOMIC_ACQUIRE)) {
        int sms = 0, l2 = 0, major = 0, minor = 0;
        if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, id) != cudaSuccess ||
            cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, id) != cudaSuccess ||
            cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id) != cudaSuccess ||
            cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, id) != cudaSuccess) {
            return nullptr;
        }
        dev[id].major = (uint32_t)major;
        dev[id].minor = (uint32_t)minor;
        dev[id].sms = (uint32_t)sms;
        dev[id].l2_bytes = (size_t)l2;
        __atomic_store_n(&known[id], true, __ATOMIC_RELEASE);
    }
    return &dev[id];
}

bool tk_uses_hopper()
{
    const tk_dev *dev = tk_device();
    enum tk_path path = TK_PATH_SM80;
    // Relaxed: set before the first launch, by whoever starts the launching threads.
    const int wanted = __atomic_load_n(&wanted_path, __ATOMIC_RELAXED);
    return dev != nullptr &&
           tk_path_for(dev->major, dev->minor, (enum tk_path)wanted, &path) == TD_OK &&
           path == TK_PATH_SM90A;
}

extern "C" td_err tk_path_set(enum tk_path wanted, enum tk_path *out_used)
{
    int id = 0;
    TK_TRY_CUDA(cudaGetDevice(&id));
    const tk_dev *dev = tk_device();
    if (dev == nullptr) {
        return TD_ERR_DEVICE;
    }
    TD_TRY(tk_path_for(dev->major, dev->minor, wanted, out_used));
    __atomic_store_n(&wanted_path, (int)wanted, __ATOMIC_RELAXED);
    return TD_OK;
}

extern "C" td_err tk_kv_map(const tk_kv_pool *p, tk_map *out)
{
    const size_t body = (size_t)2 * p->n_kv_heads * TK_BLOCK_TOK * p->head_dim * 2;
    if ((p->head_dim != 64 && p->head_dim != 128) || p->slice_bytes < body + p->header_bytes ||
        p->slice_bytes % 16 != 0 || p->header_bytes % 16 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    const cuuint64_t dims[5] = {p->head_dim, TK_BLOCK_TOK, 2 * p->n_kv_heads, p->n_layers,
                                p->n_blocks};
    const cuuint64_t strides[4] = {p->head_dim * 2, (cuuint64_t)TK_BLOCK_TOK * p->head_dim * 2,
                                   p->slice_bytes, p->slice_bytes * p->n_layers};
    const cuuint32_t box[5] = {64, TK_BLOCK_TOK, 1, 1, 1};
    out->base = static_cast<const char *>(p->base) + p->header_bytes;
    out->block_step = strides[3];
    out->layer_step = p->slice_bytes;
    return encode(out, out->base, 5, dims, strides, box);
}

extern "C" td_err tk_kv_decode_map(const tk_kv_pool *p, uint32_t layer, tk_map *out)
{
    const size_t body = (size_t)2 * p->n_kv_heads * TK_BLOCK_TOK * p->head_dim * 2;
    if ((p->head_dim != 64 && p->head_dim != 128) || layer >= p->n_layers ||
        p->slice_bytes < body + p->header_bytes || p->slice_bytes % 16 != 0 ||
        p->header_bytes % 16 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    const cuuint64_t rows = (cuuint64_t)TK_BLOCK_TOK * p->head_dim / 64;
    const cuuint64_t dims[5] = {64, rows, p->n_kv_heads, 2, p->n_blocks};
    const cuuint64_t strides[4] = {128, rows * 128, rows * 128 * p->n_kv_heads,
                                   p->slice_bytes * p->n_layers};
    const cuuint32_t box[5] = {64, (cuuint32_t)rows, 1, 2, 1};
    out->base = static_cast<const char *>(p->base) + layer * p->slice_bytes + p->header_bytes;
    out->block_step = strides[3];
    out->layer_step = 0;
    return encode(out, out->base, 5, dims, strides, box);
}

extern "C" td_err tk_rows_map(const tk_bf16 *q, uint32_t rows, uint32_t n_heads, uint32_t head_dim,
                              uint32_t row_stride, tk_map *out)
{
    if ((head_dim != 64 && head_dim != 128) || row_stride % 8 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    const cuuint64_t dims[3] = {head_dim, n_heads, rows};
    const cuuint64_t strides[2] = {head_dim * 2, (cuuint64_t)row_stride * 2};
    const cuuint32_t box[3] = {64, 1, 64};
    out->base = q;
    out->row_step = row_stride;
    return encode(out, q, 3, dims, strides, box);
}

extern "C" td_err tk_flat_w_map(const tk_bf16 *w, uint32_t n, uint32_t k, bool tiled, tk_map *out)
{
    if (n == 0 || k == 0 || k % 64 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    const cuuint64_t units = (n + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS;
    const cuuint64_t dims[4] = {64, TK_FLAT_ROWS, k / 64, units};
    const cuuint64_t plain[3] = {(cuuint64_t)k * 2, 128, (cuuint64_t)k * 2 * TK_FLAT_ROWS};
    const cuuint64_t tiles[3] = {128, 128 * TK_FLAT_ROWS, (cuuint64_t)k * 2 * TK_FLAT_ROWS};
    const cuuint32_t box[4] = {64, TK_FLAT_ROWS, 1, 1};
    out->base = w;
    out->row_step = k;
    out->tiled = tiled;
    return encode(out, w, 4, dims, tiled ? tiles : plain, box);
}

static uint32_t padded_rows(uint32_t rows)
{
    return rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
}

extern "C" td_err tk_flat_x_map(const tk_bf16 *x, uint32_t rows, uint32_t k, uint32_t row_stride,
                                tk_map *out)
{
    if (rows == 0 || rows > TK_MAX_ROWS || k % 64 != 0 || row_stride % 8 != 0) {
        return TD_ERR_UNSUPPORTED;
    }
    const cuuint64_t dims[2] = {k, rows};
    const cuuint64_t strides[1] = {(cuuint64_t)row_stride * 2};
    const cuuint32_t box[2] = {64, padded_rows(rows)};
    out->base = x;
    out->row_step = row_stride;
    return encode(out, x, 2, dims, strides, box);
}
