#include "tests/bench/gpu/gpu_kv.h"

#include <stdlib.h>
#include <string.h>

struct gpu_kv gpu_kv_make(const int32_t *lens, uint32_t n_seqs, uint32_t heads, uint32_t dim,
                          uint32_t layers, uint32_t header, uint64_t seed)
{
    struct gpu_kv c;
    uint32_t blocks = 0;
    memset(&c, 0, sizeof c);
    c.n_seqs = n_seqs;
    for (uint32_t i = 0; i < n_seqs; i++) {
        const uint32_t n = ((uint32_t)lens[i] + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
        blocks += n;
        c.stride = n > c.stride ? n : c.stride;
    }
    c.stride += 3;
    const uint32_t n_blocks = blocks + 7;
    const size_t slice = tk_kv_slice_bytes(heads, dim, header);
    c.pool = (struct tk_kv_pool){
        gpu_alloc(slice * layers * n_blocks), n_blocks, layers, heads, dim, header, slice};
    gpu_poison(c.pool.base, slice * layers * n_blocks);
    int32_t *perm = malloc(n_blocks * sizeof *perm);
    c.tables_h = malloc(((size_t)n_seqs * c.stride + 1) * sizeof *c.tables_h);
    if (perm == NULL || c.tables_h == NULL) {
        exit(2);
    }
    gpu_shuffle(perm, (int32_t)n_blocks, seed);
    uint32_t at = 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        for (uint32_t j = 0; j < c.stride; j++) {
            const uint32_t n = ((uint32_t)lens[i] + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
            c.tables_h[i * c.stride + j] = j < n ? perm[at++] : -1;
        }
    }
    c.spare = perm[at];
    free(perm);
    c.tables = gpu_upload(c.tables_h, (size_t)n_seqs * c.stride * sizeof *c.tables_h);
    c.lens = gpu_upload(lens, n_seqs * sizeof *lens);
    TK(tk_kv_map(&c.pool, &c.map));
    /* Tokens go in through tk_rope_kv's own writes in one case and here, row by row of a page, in the others. */
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t i = 0; i < n_seqs; i++) {
            const uint32_t n = ((uint32_t)lens[i] + TK_BLOCK_TOK - 1) / TK_BLOCK_TOK;
            for (uint32_t j = 0; j < n; j++) {
                const uint32_t tok = (uint32_t)lens[i] - j * TK_BLOCK_TOK;
                unsigned char *p = (unsigned char *)c.pool.base +
                                   (size_t)c.tables_h[i * c.stride + j] * slice * layers +
                                   l * slice + header;
                const size_t rows = tok < TK_BLOCK_TOK ? tok : TK_BLOCK_TOK;
                if (rows == TK_BLOCK_TOK) {
                    gpu_fill_bf16((tk_bf16 *)(void *)p, (size_t)2 * heads * TK_BLOCK_TOK * dim, 1.f,
                                  seed + i * 977 + j);
                    continue;
                }
                for (uint32_t h = 0; h < 2 * heads; h++) {
                    gpu_fill_bf16((tk_bf16 *)(void *)(p + (size_t)h * TK_BLOCK_TOK * dim * 2),
                                  rows * dim, 1.f, seed + i * 977 + j * 31 + h);
                }
            }
        }
    }
    return c;
}

void gpu_kv_hide(struct gpu_kv *c, uint32_t seq, int32_t from)
{
    for (int32_t j = 0; j < from / TK_BLOCK_TOK; j++) {
        c->tables_h[seq * c->stride + (uint32_t)j] = c->spare;
    }
    CU(cudaMemcpy(c->tables, c->tables_h, (size_t)c->n_seqs * c->stride * sizeof *c->tables_h,
                  cudaMemcpyHostToDevice));
}

void gpu_kv_drop(struct gpu_kv *c)
{
    gpu_free(c->pool.base);
    gpu_free(c->tables);
    gpu_free(c->lens);
    free(c->tables_h);
}
