#include "tests/emulate/hopper_emulate.hpp"

#include "kernels/cuda/layers.cuh"
#include "tests/emulate/emulate.h"

/* The reference's maps know base and steps; these are what map.cu would have encoded. */
static CUtensorMap matrix_map(const struct tk_map *m, uint32_t n, uint32_t k)
{
    const uint64_t row = (uint64_t)m->row_step * 2;
    return {static_cast<const unsigned char *>(m->base),
            {row, 128, row * TK_FLAT_ROWS, 0},
            4,
            {64, TK_FLAT_ROWS, k / 64, (n + TK_FLAT_ROWS - 1) / TK_FLAT_ROWS, 1},
            {64, TK_FLAT_ROWS, 1, 1, 1}};
}
static CUtensorMap tokens_map(const struct tk_map *m, uint32_t rows, uint32_t k)
{
    return {static_cast<const unsigned char *>(m->base),
            {(uint64_t)m->row_step * 2, 0, 0, 0},
            2,
            {k, rows, 1, 1, 1},
            {64, N, 1, 1, 1}};
}
static CUtensorMap kv_map(const struct tk_attn_decode *a)
{
    const uint32_t rows = TK_BLOCK_TOK * a->head_dim / 64;
    const uint64_t head = (uint64_t)rows * 128;
    return {static_cast<const unsigned char *>(a->kv->base),
            {128, head, head * a->n_kv_heads, a->kv->block_step},
            5,
            {64, rows, a->n_kv_heads, 2, a->pool->n_blocks},
            {64, rows, 1, 2, 1}};
}

extern "C" size_t emulate_layers_work_bytes(void)
{
    return WORK_BYTES;
}

extern "C" td_err emulate_layers(const struct tk_layers *l, uint32_t sms, uint64_t seed)
{
    static layers c;
    if (!layers_fit(l->layers, l->n, sms)) {
        return TD_ERR_UNSUPPORTED;
    }
    memset(static_cast<void *>(&c), 0, sizeof c);
    TD_TRY(fill(c, l));
    for (uint32_t i = 0; i < l->n; i++) {
        const struct tk_layer *y = &l->layers[i];
        c.map[i][TK_STAGE_ATTN] = kv_map(&y->attention);
        for (uint32_t p = 0; p < y->n_products; p++) {
            const struct tk_flat *f = &y->products[p];
            c.map[i][1 + p] = matrix_map(f->w, f->n, f->k);
            c.st[p].x = tokens_map(f->x, f->rows, f->k);
        }
    }
    emulate::hopper_reset();
    emulate::idle = emulate::land_any;
    const auto kernel = [&] {
        TK_DYNAMIC_SHARED(raw);
        c.at.group <= 4 ? run_block<4>(c, raw) : run_block<8>(c, raw);
    };
    emulate::run(sms, THREADS, SMEM, seed, kernel, sms);
    return emulate::flights.empty() ? TD_OK : TD_ERR_DEVICE;
}
