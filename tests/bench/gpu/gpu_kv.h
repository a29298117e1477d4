/* gpu_kv.h - a KV pool for checks: full of NaN, into which sequences of given lengths are placed through a shuffled block
 * table; only what belongs to a token holds numbers.
 * Thread: one. Failure: exits the process (gpu.h).
 */
#ifndef GPU_BENCH_KV_H
#define GPU_BENCH_KV_H

#include "tests/bench/gpu/gpu.h"

struct gpu_kv {
    struct tk_kv_pool pool;
    struct tk_map map;
    uint32_t n_seqs, stride;
    int32_t spare; /* a block that nobody has */
    int32_t *tables_h;
    int32_t *tables, *lens;
};

struct gpu_kv gpu_kv_make(const int32_t *lens, uint32_t n_seqs, uint32_t heads, uint32_t dim,
                          uint32_t layers, uint32_t header, uint64_t seed);
/* Points every block that lies wholly before token from of sequence seq at one that is full of NaN. */
void gpu_kv_hide(struct gpu_kv *c, uint32_t seq, int32_t from);
void gpu_kv_drop(struct gpu_kv *c);

#endif
