/* kv_layout.h - the versioned description of a KV block: what two nodes must share before a slice may cross.
 *
 * A block holds `block_tok` tokens of every layer of one KV group; inside: layer, K/V, head, token, dim ("page first").
 * One layer of one block is a slice: `slice_bytes` contiguous bytes at block * block_bytes + layer * slice_bytes.
 * Value type, no owner. The id is part of Attach and of the hand-over record; unequal ids never pair.
 */
#ifndef TD_MODEL_KV_LAYOUT_H
#define TD_MODEL_KV_LAYOUT_H

#include <stdint.h>

#define TD_KV_MAX_GROUPS 4
#define TD_KV_HASH_TOK   16 /* hash unit of the whole cluster; block_tok is a multiple */

enum td_kv_dtype { TD_KV_BF16, TD_KV_F16, TD_KV_F32, TD_KV_FP8, TD_KV_INT8 };
/* Order inside a slice. TOKEN_DIM: K and V both [head][token][dim]. K_DIM_TOKEN: K is [head][dim][token], V as before. */
enum td_kv_order { TD_KV_TOKEN_DIM, TD_KV_K_DIM_TOKEN };

struct td_kv_layout {
    uint32_t version; /* of this description: 1 */
    uint32_t group;
    uint32_t n_layers, n_kv_heads, head_dim, block_tok;
    uint32_t dtype; /* enum td_kv_dtype */
    uint32_t order; /* enum td_kv_order */
    uint32_t slice_bytes;
    uint64_t block_bytes; /* n_layers * slice_bytes */
    uint32_t window;      /* retention: tokens that a token sees, itself included; 0: all */
};

/* Stable 64-bit id over all fields. */
uint64_t td_kv_layout_id(const struct td_kv_layout *l);

#endif
