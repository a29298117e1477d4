#include "tests/emulate/cuda_emulate.hpp"

#include "kernels/cuda/attn_decode_sm80.cuh"
#include "tests/emulate/emulate.h"

template <int D, int G> static void decode(const attn_args &a, uint32_t blocks, uint64_t seed)
{
    emulate::run(blocks, THREADS, smem_bytes<D>(), seed, [&] { attn_decode_sm80_kernel<D, G>(a); });
    emulate::run(finish_blocks(a), THREADS, 0, seed, [&] { attn_decode_sm80_finish<D>(a); });
}

extern "C" td_err emulate_attn_decode(const struct tk_attn_decode *p, uint64_t seed)
{
    attn_args a;
    TD_TRY(sm80_args_of(p, a));
    const uint32_t blocks = p->max_entries * a.n_kv;
    if (p->head_dim == 128) {
        a.group <= 4 ? decode<128, 4>(a, blocks, seed) : decode<128, 8>(a, blocks, seed);
    } else {
        a.group <= 4 ? decode<64, 4>(a, blocks, seed) : decode<64, 8>(a, blocks, seed);
    }
    return TD_OK;
}
