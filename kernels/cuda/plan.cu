// plan.cu - work lists of decode attention from lengths that live on the device; one block, every device.
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/tk_cuda.h"

namespace
{

__global__ void plan_kernel(const int32_t *lens, uint32_t n, int window, uint32_t *plan,
                            uint32_t cap)
{
    __shared__ uint32_t sum[TK_MAX_SEQS];
    const uint32_t t = threadIdx.x;
    pdl_wait();
    const int len = t < n ? max(lens[t], 0) : 0, tok = tk_chunk_tok(len);
    const uint32_t c0 = (uint32_t)(tk_window_start(len, window) / tok),
                   c = len > 0 ? (uint32_t)((len - 1) / tok) + 1 - c0 : 0;
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
            plan[1 + TK_MAX_SEQS + first + i] =
                t << 16 | (c0 + i) | (len > TK_CHUNK_LONG ? TK_CHUNK_IS_LONG : 0);
        }
    }
    if (t == blockDim.x - 1) {
        plan[0] = sum[t] <= cap ? sum[t]
                                : 0; // a list with holes would leave rows waiting for their chunks
    }
}

} // namespace

extern "C" td_err tk_plan_window_device(tk_stream s, const int32_t *lens, uint32_t n_seqs,
                                        uint32_t window, uint32_t *out_words, size_t words)
{
    if (n_seqs == 0 || n_seqs > TK_MAX_SEQS || words <= 1 + TK_MAX_SEQS || window > INT32_MAX) {
        return TD_ERR_UNSUPPORTED;
    }
    tk_launch l(s, 1, TK_MAX_SEQS, 0, 1, false);
    TD_TRY(tk_prepare(plan_kernel, 0));
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, plan_kernel, lens, n_seqs, (int)window, out_words,
                                   (uint32_t)(words - 1 - TK_MAX_SEQS)));
    return TD_OK;
}

extern "C" td_err tk_plan_device(tk_stream s, const int32_t *lens, uint32_t n_seqs,
                                 uint32_t *out_words, size_t words)
{
    return tk_plan_window_device(s, lens, n_seqs, 0, out_words, words);
}
