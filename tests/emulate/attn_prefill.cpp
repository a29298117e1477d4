#include "tests/emulate/cuda_emulate.hpp"

#include "kernels/cuda/attn_prefill_sm80.cuh"
#include "tests/emulate/emulate.h"

template <int D> static void prefill(const args &a, uint32_t blocks, uint64_t seed)
{
    emulate::run(blocks, THREADS, smem_bytes<D>(), seed, [&] { attn_prefill_sm80_kernel<D>(a); });
}

extern "C" td_err emulate_attn_prefill(const struct tk_attn_prefill *p, uint64_t seed)
{
    args a;
    TD_TRY(args_of(p, a));
    const uint32_t blocks = p->n_tiles * p->n_heads;
    if (p->head_dim == 128) {
        prefill<128>(a, blocks, seed);
    } else {
        prefill<64>(a, blocks, seed);
    }
    return TD_OK;
}
