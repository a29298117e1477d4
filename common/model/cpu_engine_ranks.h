/* cpu_engine_ranks.h - the CPU engine as one rank of a group: who computes what, and what travels.
 *
 * What: shares of heads and columns; the step that rank 0 tells; the trades between the phases of a pass, whose pieces
 * lie in one wire buffer; the end of the group. Not: transport (common/model/ranks.h) and not arithmetic: a trade moves
 * bits, so that a group's results are one process's.
 * Owner: the engine. Thread: the engine's team; td__ce_trade, td__ce_tell, td__ce_hear and td__ce_part: one member at a
 * time, inside a barrier or before it. Bounds: TD_RANKS_MAX ranks; the wire buffer holds the largest trade of max_tokens
 * tokens; a message is at most what max_rows rows of max_model_len tokens need.
 * Failure: `over` says what broke; later trades do nothing, and the pass is left at the next layer.
 */
#ifndef TD_MODEL_CPU_ENGINE_RANKS_H
#define TD_MODEL_CPU_ENGINE_RANKS_H

#include "common/model/cpu_engine_priv.h"
#include "common/model/ranks.h"

enum td__ce_trade_kind {
    TD__CE_NO_TRADE,
    TD__CE_TRADE_ATT,     /* attention outputs to all; K and V of the new tokens to rank 0 */
    TD__CE_TRADE_COLUMNS, /* float columns of o or down to all */
    TD__CE_TRADE_FFN,     /* silu(gate) * up to all */
    TD__CE_TRADE_LOGITS,  /* float columns of the LM head to rank 0 */
    TD__CE_TRADE_LANDED,  /* slices of blocks from rank 0, each rank its heads */
};

/* Rank p has [from[p], from[p + 1]). */
struct td__ce_cut {
    uint32_t from[TD_RANKS_MAX + 1];
};

struct td__ce_ranks {
    struct td_ranks *group; /* borrowed */
    uint32_t rank, n;
    struct td__ce_cut heads; /* KV heads */
    struct td__ce_cut embd;  /* columns of o and down */
    struct td__ce_cut ffn;   /* blocks of TK_QK columns of gate and up */
    struct td__ce_cut vocab; /* columns of the LM head */
    uint8_t *wire;    /* rank p's piece of the running trade behind those of the ranks before it */
    uint8_t *message; /* of a step */
    size_t message_cap;
    td_block_id *landed; /* [max_rows][blocks of a sequence] to hand on before the running step */
    uint32_t n_landed, slices_per_trade;
    td_ticket last_ticket; /* heard */
    struct td_rank_out out[TD_RANKS_MAX];
    struct td_rank_in in[TD_RANKS_MAX];
    /* td_err. Written inside a barrier, or by the engine thread between steps; read behind barriers. So members agree
     * on it wherever they have a barrier of the step before them, and atomic is it for those who have none. */
    atomic_int over;
    atomic_int farewell; /* td_err for other threads */
};

/* --- cpu_engine_ranks.c --- */

/* Whether this engine only helps rank 0. */
static inline bool td__ce_helps(const struct td__ce *e)
{
    return e->ranks != NULL && e->ranks->rank > 0;
}
static inline bool td__ce_over(const struct td__ce *e)
{
    /* relaxed: the barriers order it, see `over` */
    return e->ranks != NULL && atomic_load_explicit(&e->ranks->over, memory_order_relaxed) != TD_OK;
}
static inline void td__ce_set_over(const struct td__ce *e, td_err err)
{
    if (err != TD_OK) {
        atomic_store_explicit(&e->ranks->over, (int)err, memory_order_relaxed);
    }
}
/* Makes e->ranks and its shares of the model. TD_ERR_CONFIG, logged: the model cannot be cut so often. */
td_err td__ce_ranks_make(struct td__ce *e, struct td_ranks *group) TD_MUST_CHECK;
/* The buffers, once the dimensions of e are set. */
td_err td__ce_ranks_buffers(struct td__ce *e) TD_MUST_CHECK;
/* Lists the blocks that rows of the running step got from outside. */
void td__ce_list_landed(struct td__ce *e);
/* Rank 0: tells the running step. */
void td__ce_tell(struct td__ce *e);
/* The others: waits for the next step and lays it out as the running one. False: rank 0 has said goodbye, or over. */
bool td__ce_hear(struct td__ce *e);
/* The engine thread leaves: rank 0 says goodbye when nothing broke; poll and farewell say that the engine has ended. */
void td__ce_part(struct td__ce *e);

/* --- cpu_engine_trade.c; m: tokens, rows or slices of the trade --- */

/* Bytes that the wire buffer needs. */
size_t td__ce_wire_bytes(const struct td__ce *e);
/* Exchanges the pieces of all ranks. */
void td__ce_trade(struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m);
/* This rank's float columns, [m][own columns]. */
float *td__ce_own_columns(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m);
/* Quantises n values of token t into this rank's piece of an ATT or FFN trade, from its block b0 on. */
void td__ce_lay_blocks(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m, uint32_t t,
                       uint32_t b0, const float *src, uint32_t n);
/* Token t's blocks of all ranks into act_att or act_ffn. */
void td__ce_take_blocks(const struct td__ce *e, enum td__ce_trade_kind kind, uint32_t m,
                        uint32_t t);
/* A helping rank: token t's K and V, as its pool has them. Rank 0: the others' into its pool. */
void td__ce_lay_kv(const struct td__ce *e, uint32_t layer, uint32_t m, uint32_t t);
void td__ce_take_kv(const struct td__ce *e, uint32_t layer, uint32_t m, uint32_t t);
/* Adds token t's columns of all ranks to its residual stream. */
void td__ce_add_columns(const struct td__ce *e, uint32_t m, uint32_t t);
/* Rank 0: the others' columns of row i's logits. */
void td__ce_take_logits(const struct td__ce *e, uint32_t m, uint32_t i, float *logits);
/* Slice `at + i` of the landed blocks, the i-th of its trade: from rank 0's pool, into a helping rank's. */
void td__ce_lay_slice(const struct td__ce *e, uint32_t m, uint32_t at, uint32_t i);
void td__ce_take_slice(const struct td__ce *e, uint32_t m, uint32_t at, uint32_t i);

#endif
