// launch.h - launching inside kernels/cuda: translation of CUDA errors, device facts, launch configuration.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernels/tk_cuda.h"

// Remembers CUDA's own text for the log of whoever decides (tk_cuda_last_error).
td_err tk_cuda_fail(cudaError_t e, const char *what);

#define TK_TRY_CUDA(call)                                                                          \
    do {                                                                                           \
        const cudaError_t tk_e_ = (call);                                                          \
        if (tk_e_ != cudaSuccess) {                                                                \
            return tk_cuda_fail(tk_e_, #call);                                                     \
        }                                                                                          \
    } while (0)

struct tk_dev {
    uint32_t sms, major, minor;
    size_t l2_bytes;
};
// Facts of the current device, read once per device; NULL when CUDA refuses.
const tk_dev *tk_device();

// Whether launches of this process use the sm_90a kernels; false also when CUDA tells nothing of the device.
bool tk_uses_hopper();
// The other kernels of the operations that have two.
td_err tk_attn_decode_sm80(tk_stream s, const struct tk_attn_decode *p);
td_err tk_attn_prefill_sm80(tk_stream s, const struct tk_attn_prefill *p);
td_err tk_flat_sm80(tk_stream s, const struct tk_flat *p);

// Dynamic shared memory of a kernel, and the largest carve-out: kernels that run under each other's tails
// (programmatic launch) must agree on it, or the SM is drained to switch.
template <typename F> static td_err tk_prepare(F *kernel, size_t smem)
{
    TK_TRY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared));
    if (smem > 0) {
        TK_TRY_CUDA(
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    }
    return TD_OK;
}

// A launch configuration with cluster size and programmatic launch. The latter only beside the sm_90a kernels: code made
// for sm_80 does not wait for the kernel before it.
struct tk_launch {
    cudaLaunchConfig_t cfg;
    cudaLaunchAttribute attr[2];
    tk_launch(tk_stream s, uint32_t grid, uint32_t threads, size_t smem, uint32_t cluster, bool pdl)
    {
        cfg = {};
        cfg.gridDim = dim3(grid);
        cfg.blockDim = dim3(threads);
        cfg.dynamicSmemBytes = smem;
        cfg.stream = s;
        cfg.attrs = attr;
        cfg.numAttrs = 0;
        if (cluster > 1) {
            attr[cfg.numAttrs].id = cudaLaunchAttributeClusterDimension;
            attr[cfg.numAttrs].val.clusterDim.x = cluster;
            attr[cfg.numAttrs].val.clusterDim.y = 1;
            attr[cfg.numAttrs].val.clusterDim.z = 1;
            cfg.numAttrs++;
        }
        if (pdl && tk_uses_hopper()) {
            attr[cfg.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
            attr[cfg.numAttrs].val.programmaticStreamSerializationAllowed = 1;
            cfg.numAttrs++;
        }
    }
};
