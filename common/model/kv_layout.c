#include "common/model/kv_layout.h"

#include "common/base/rng.h"

uint64_t td_kv_layout_id(const struct td_kv_layout *l)
{
    const uint64_t fields[] = {l->version,   l->group, l->n_layers, l->n_kv_heads,  l->head_dim,
                               l->block_tok, l->dtype, l->order,    l->slice_bytes, l->block_bytes};
    uint64_t h = 0x74642d6b762d6c61ull;
    for (unsigned i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        h = td_mix64(h ^ (fields[i] + 0x9e3779b97f4a7c15ull * (i + 1)));
    }
    /* Layouts from before windows existed keep their id. */
    return l->window == 0 ? h : td_mix64(h ^ (l->window + 0x9e3779b97f4a7c15ull * 11));
}
