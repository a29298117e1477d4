// attn_decode_sm80.cu - launches the kernels of attn_decode_sm80.cuh.
#include "kernels/cuda/attn_decode_sm80.cuh"
#include "kernels/cuda/launch.h"

template <int D, int G>
static td_err launch_decode(tk_stream s, const struct tk_attn_decode *p, const attn_args &a)
{
    constexpr uint32_t bytes = smem_bytes<D>();
    TD_TRY(tk_prepare(attn_decode_sm80_kernel<D, G>, bytes));
    tk_launch l(s, p->max_entries * a.n_kv, THREADS, bytes, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, attn_decode_sm80_kernel<D, G>, a));
    tk_launch f(s, finish_blocks(a), THREADS, 0, 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&f.cfg, attn_decode_sm80_finish<D>, a));
    return TD_OK;
}

td_err tk_attn_decode_sm80(tk_stream s, const struct tk_attn_decode *p)
{
    attn_args a;
    TD_TRY(sm80_args_of(p, a));
    if (p->head_dim == 128) {
        return a.group <= 4 ? launch_decode<128, 4>(s, p, a) : launch_decode<128, 8>(s, p, a);
    }
    return a.group <= 4 ? launch_decode<64, 4>(s, p, a) : launch_decode<64, 8>(s, p, a);
}
