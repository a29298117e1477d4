// attn_prefill_sm80.cu - launches the kernel of attn_prefill_sm80.cuh.
#include "kernels/cuda/attn_prefill_sm80.cuh"
#include "kernels/cuda/launch.h"

template <int D> static td_err launch_prefill(tk_stream s, const args &a, uint32_t blocks)
{
    TD_TRY(tk_prepare(attn_prefill_sm80_kernel<D>, smem_bytes<D>()));
    tk_launch l(s, blocks, THREADS, smem_bytes<D>(), 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, attn_prefill_sm80_kernel<D>, a));
    return TD_OK;
}

td_err tk_attn_prefill_sm80(tk_stream s, const struct tk_attn_prefill *p)
{
    args a;
    TD_TRY(args_of(p, a));
    const uint32_t blocks = p->n_tiles * p->n_heads;
    return p->head_dim == 128 ? launch_prefill<128>(s, a, blocks)
                              : launch_prefill<64>(s, a, blocks);
}
