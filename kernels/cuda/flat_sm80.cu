// flat_sm80.cu - launches the kernel of flat_sm80.cuh.
#include "kernels/cuda/flat_sm80.cuh"
#include "kernels/cuda/launch.h"

template <int N> static td_err launch_flat(tk_stream s, const args &a)
{
    TD_TRY(tk_prepare(flat_sm80_kernel<N>, smem_bytes<N>()));
    tk_launch l(s, blocks_of(a), THREADS, smem_bytes<N>(), 1, false);
    TK_TRY_CUDA(cudaLaunchKernelEx(&l.cfg, flat_sm80_kernel<N>, a));
    return TD_OK;
}

td_err tk_flat_sm80(tk_stream s, const struct tk_flat *p)
{
    args a;
    TD_TRY(args_of(p, a));
    if (p->rows <= 8) {
        return launch_flat<8>(s, a);
    }
    if (p->rows <= 16) {
        return launch_flat<16>(s, a);
    }
    return p->rows <= 32 ? launch_flat<32>(s, a) : launch_flat<64>(s, a);
}
