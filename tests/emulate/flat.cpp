#include "tests/emulate/cuda_emulate.hpp"

#include "kernels/cuda/flat_sm80.cuh"
#include "tests/emulate/emulate.h"

template <int N> static void flat(const args &a, uint64_t seed)
{
    emulate::run(blocks_of(a), THREADS, smem_bytes<N>(), seed, [&] { flat_sm80_kernel<N>(a); });
}

extern "C" td_err emulate_flat(const struct tk_flat *p, uint64_t seed)
{
    args a;
    TD_TRY(args_of(p, a));
    if (p->rows <= 8) {
        flat<8>(a, seed);
    } else if (p->rows <= 16) {
        flat<16>(a, seed);
    } else if (p->rows <= 32) {
        flat<32>(a, seed);
    } else {
        flat<64>(a, seed);
    }
    return TD_OK;
}
